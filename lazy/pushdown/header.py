"""The header: where a lazy machine keeps the arrays that its kernels read, and how numbers lie in them.

A kernel takes one int64 array, the header, in place of some thirty array arguments (see `kernels.pointers`). Most
places hold the address of an array, and the next place its number of elements. The last ones hold plain numbers.
`PushdownMemory` writes the header and keeps the arrays alive.

Kernels take names from this file.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ...kernels.arrays import ByteArray, Int, Int32Array, Int64Array, Uint64Array
from ...kernels.compiled import kernel
from ...kernels.pointers import array_at
from ...vocabulary.characters import BYTE_GROUP, UNCLEAN
from ...vocabulary.token_trie import OF_NODE

# What kernels return in place of a state
DONE = -1  # all went well
NEEDS_BASE = -2  # the header says which characters the state reads freely: call again with the mask for these
NEEDS_STATE = -2  # of `read_token`: a state has no row yet, and comes second: write it and call again
NEEDS_SITES = -3  # of `read_token`: more of the stack is popped than was passed
READS_LITTLE = -4  # the state reads so few characters freely that a walk of the trie is quick

NOT_LOOKED = -(1 << 40)  # in place of how many bytes a state reads freely, before a kernel looked
UNBOUNDED = 1 << 40  # characters of a string whose length has no bound
ALL_BYTES = 1 << 20  # more bytes than any token has
IN_ORDER = ALL_BYTES + 1  # in place of bytes read freely: read all tokens in the order of the trie


# Places of arrays in the header, two numbers each
(
    # the machine; see `automata.pushdown`
    AT_ROWS, AT_CALLS, AT_SITE_START, AT_SITE_STATES, AT_SITE_LEAF, AT_TEMPLATES, AT_KEYS, AT_USES,
    AT_STRING_ROWS,  # the rows of any string, from which counted strings are read
    AT_STRINGS,  # (3, n) of counted strings: first state, fewest characters, most characters or -1
    AT_STATE_FRAMES, AT_SITE_FRAMES,  # frames that a state and a return site require, 0 beyond the array
    # the trie of all tokens and the trie of rests, by `vocabulary.Branches`; a rest is what a token has left where a
    # fragment ends inside it, and its number is its symbol
    AT_BYTE, AT_NODE, AT_TOKEN, AT_REST_BYTE, AT_REST_NODE, AT_REST_SYMBOL,
    AT_CONTENTS,  # OF_CONTENT numbers for each string by its content
    AT_FREE_SETS,  # pairs of sets of groups: those read freely, and others that are read; the size counts the pairs
    AT_CHARACTERS,  # sets of groups of each node in `AT_NODE`
    AT_IS_CERTAIN,  # whether a state can be left within the frames that it requires, whatever comes
    AT_PUSHED,  # for `read_token`: the return sites that a token leaves on the stack
    AT_LABELS_AHEAD,  # two numbers for each content: the address of the labels that each state may end with, and words
    AT_SHARES,  # `Vocabulary.shares`
    # the trie of all tokens in depth-first order, by `vocabulary.TokenTrie`
    AT_PREORDER_BYTE, AT_PREORDER_DEPTH, AT_PREORDER_SKIP, AT_PREORDER_GROUPS, AT_PREORDER_TOKEN,
) = range(0, 60, 2)  # fmt: skip
# Places of numbers
(
    AT_LEVELS,  # levels that a walk may go down
    AT_SYMBOLS,  # how many rests there are
    AT_EMPTY_REST,  # the symbol of the empty rest, -1 if there is none
    AT_ANY_STRING,  # the library's state of a string without conditions
    AT_ANY_STRING_GROUPS,  # the groups of characters that this state reads
    AT_DEPTH,  # most open frames
    AT_WORDS,  # words of a mask
    AT_EOS,
    AT_SCRATCH,  # the address of the memory for a walk: see `scratch`
    # what a kernel answers with `NEEDS_BASE`: the groups that a state reads freely, other groups that it reads, and how
    # many bytes, ALL_BYTES for any token, minus the number of characters where it counts these
    AT_FREE_GROUPS, AT_OTHER_GROUPS, AT_FREE_BYTES,
    HEADER,
) = range(60, 73)  # fmt: skip


OF_CONTENT = 10
"""Numbers of a string by its content: its first state; the addresses of classes, transitions and labels; how many
states and classes; the free state, after which anything may come; the most characters, -1 for any number; the addresses
of the characters that must follow each state, and of the free set of each state, each 0 if there is none."""
OF_LEVEL = 10
"""Numbers of each level of a walk."""
MOST_PENDING = 128
"""Parts of the trie that a walk of one string may leave to the general walk."""
OF_BASE = 12
"""Numbers of a base: see `bases.Base`."""
OF_CACHE = 8
"""Numbers of a cache of string masks: see `StringMaskCache.at`."""
MOST_FREE_SETS = 256
"""Pairs in `AT_FREE_SETS`."""
FOUND_HERE = 512
"""Added to the number of a pair: it was found for this very state, not for one that leads here."""
IS_TOTAL = 1024
"""Added to the number of a pair: the state reads any characters, and so do all states that follow."""
SETS_OF_NODE = OF_NODE // 2
"""Numbers of 64 bits of a node."""
PLAIN = np.uint64(
    sum({1 << int(group) for group in BYTE_GROUP} - {1 << int(BYTE_GROUP[b]) for b in (*range(32), 34, 92)})
) & ~np.uint64(1 << UNCLEAN)
"""Groups of characters that JSON writes as they are."""
ESCAPED = np.uint64(sum(1 << int(BYTE_GROUP[b]) for b in b'"\\\x7f'))
"""Groups of other bytes that strings may have: the quote, the backslash, and DEL, which is grouped with controls."""


@kernel
def record_of(records: Int, count: Int, size: Int, here: Int) -> Int:
    """Return the address of the last record whose first number is at most a state; records hold `size` numbers each."""
    numbers = array_at(records, size * count, np.int64)
    low, high = np.int64(0), count
    while high - low > 1:
        middle = (low + high) >> 1
        if numbers[size * middle] <= here:
            low = middle
        else:
            high = middle
    return records + 8 * size * low


class Trie(NamedTuple):
    """A trie whose nodes lie with the children of a node side by side."""

    byte: ByteArray  # (M,)
    node: Int32Array  # (M + 1, OF_NODE), flat
    sets: Uint64Array  # the same memory as numbers of 64 bits
    token: Int32Array  # the tokens in the order of the nodes, or the symbols of rests


@kernel
def token_trie(header: Int64Array) -> Trie:
    """Return the trie of all tokens."""
    byte = array_at(header[AT_BYTE], header[AT_BYTE + 1], np.uint8)
    node = array_at(header[AT_NODE], header[AT_NODE + 1], np.int32)
    sets = array_at(header[AT_NODE], header[AT_NODE + 1] >> 1, np.uint64)
    return Trie(byte, node, sets, array_at(header[AT_TOKEN], header[AT_TOKEN + 1], np.int32))


@kernel
def trie_of(header: Int64Array, rests: Int) -> Trie:
    """Return the trie of rests, or that of all tokens if rests is 0."""
    shift = AT_REST_BYTE - AT_BYTE if rests else 0
    byte = array_at(header[AT_BYTE + shift], header[AT_BYTE + shift + 1], np.uint8)
    node = array_at(header[AT_NODE + shift], header[AT_NODE + shift + 1], np.int32)
    sets = array_at(header[AT_NODE + shift], header[AT_NODE + shift + 1] >> 1, np.uint64)
    return Trie(byte, node, sets, array_at(header[AT_TOKEN + shift], header[AT_TOKEN + shift + 1], np.int32))
