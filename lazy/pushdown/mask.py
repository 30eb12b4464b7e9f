"""Masks: which tokens a configuration allows, written as changes to the mask of a base."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ...kernels.arrays import Int, Int32Array, Int64Array
from ...kernels.compiled import kernel
from ...kernels.mask_buffers import ALL_WORDS
from ...kernels.pointers import array_at
from ...vocabulary.token_trie import NODE_CHILD, OF_NODE
from .frames import fits
from .free_rows import free_of_row
from .header import (
    AT_EMPTY_REST,
    AT_EOS,
    AT_FREE_BYTES,
    AT_FREE_GROUPS,
    AT_NODE,
    AT_OTHER_GROUPS,
    AT_SITE_START,
    AT_SITE_STATES,
    AT_SYMBOLS,
    AT_WORDS,
    DONE,
    HEADER,
    NEEDS_BASE,
    NOT_LOOKED,
    OF_BASE,
)
from .mask_words import MaskWords, differing_words, renew, set_token, words_of
from .string_walks import has_own_walk, walk_string
from .token_walk import FreeTokens, OpenStack, Template, walk_pending, walk_tokens

NO_WALK = -2
"""In place of a template: the base and its exits say all."""


class Exits(NamedTuple):
    """The exits of a base: tokens that end its string, and go on behind it."""

    token: Int32Array
    symbol: Int32Array  # of the rest behind the end
    characters: Int32Array  # that the token reads before the end, or empty where these do not matter
    label: Int32Array  # with which the string ends, rising, or empty if all are 0


@kernel
def write_mask(
    header_at: int, node: int, template: int, site: int, base: int, least: int, most: int, frames: int, sites: bytes,
    buffer: int, ends: bool, freely: int,
) -> tuple[Int, Int, Int, Int]:  # fmt: skip
    """Write the mask of a state and a stack: see `LazyPushdown.mask`.

    header_at: the address of the header. template, site: see `token_walk.Template`; NO_WALK if the base says all. base,
    buffer: the addresses of a base, see `bases.Base`, and of a `MaskBuffer` of it. least, most: characters that an exit
    must and may read. ends: whether EOS is allowed. freely: bytes that the state reads freely, with the groups in the
    header, see `token_walk.FreeTokens`; 0 if it reads none; NOT_LOOKED to find out, which may return NEEDS_BASE.

    Returns (a state that must be written first, DONE, or NEEDS_BASE; how many open sites the mask depends on; how many
    nodes were read; in how many words the mask differs from its base, or -1 if in too many). These words are in
    `differing_words`.
    """
    header, nothing = array_at(header_at, HEADER, np.int64), np.int64(0)
    if freely == NOT_LOOKED:
        groups, length, others, unwritten = free_of_row(header, node)
        if unwritten != DONE:
            return unwritten, nothing, nothing, np.int64(-1)
        if length:
            header[AT_FREE_GROUPS], header[AT_OTHER_GROUPS] = np.int64(groups), np.int64(others)
            header[AT_FREE_BYTES] = length
            return np.int64(NEEDS_BASE), nothing, nothing, np.int64(-1)
        freely = 0
    mask_at, size, differ_at, differing, token_at, symbol_at, characters_at, label_at, exits, counted, labels, whole = (
        array_at(base, OF_BASE, np.int64)
    )
    # an address makes an array of the type that all calls of `walk_tokens` pass
    packed = np.frombuffer(sites, np.int32)
    real = array_at(packed.ctypes.data, packed.size, np.int32)
    words = words_of(buffer, header[AT_WORDS], array_at(mask_at, size, np.uint32))
    renew(words, whole != 0, array_at(differ_at, differing, np.uint32))
    work = nothing
    looked: Int = np.int64(frames >= 0 and real.size > 0)  # near the depth the site on top matters
    if exits:
        looked = max(looked, np.int64(site < 0))
    if exits and (site >= 0 or real.size):
        listed = Exits(
            array_at(token_at, exits, np.int32), array_at(symbol_at, exits, np.int32),
            array_at(characters_at, counted, np.int32), array_at(label_at, labels, np.int32),
        )  # fmt: skip
        stack = OpenStack(real, np.int64(site < 0), np.int64(frames))
        unwritten, seen, nodes = _write_exits(header, listed, np.int64(site), stack, words, least, most)
        looked, work = max(looked, seen), work + nodes
        if unwritten != DONE:
            return unwritten, looked, work, np.int64(-1)
    if template != NO_WALK:
        stack = OpenStack(real, nothing, np.int64(frames))
        free = FreeTokens(np.uint64(header[AT_OTHER_GROUPS]) if freely else np.uint64(0), np.int64(freely))
        unwritten, seen, nodes = _write_walk(
            header, np.int64(node), stack, Template(np.int64(template), np.int64(site)), free, words
        )
        looked, work = max(looked, seen), work + nodes
        if unwritten != DONE:
            return unwritten, looked, work, np.int64(-1)
    if ends:
        set_token(words, header[AT_EOS], True)
    return np.int64(DONE), looked, work, _note_words(header, words)


@kernel(inline="always")
def _write_exits(
    header: Int64Array, exits: Exits, site: Int, stack: OpenStack, words: MaskWords, least: Int, most: Int
) -> tuple[Int, Int, Int]:
    """Set the bits of the exits whose rests are read behind the end of the string.

    site: the site that says where the string's end leads, -1 for the one on top of the stack. Returns as `walk_tokens`
    does.
    """
    token, symbol, characters, label = exits
    site_start = array_at(header[AT_SITE_START], header[AT_SITE_START + 1], np.int32)
    site_states = array_at(header[AT_SITE_STATES], header[AT_SITE_STATES + 1], np.int32)
    real, popped, frames = stack
    left, empty = site if site >= 0 else np.int64(real[real.size - 1]), header[AT_EMPTY_REST]
    alive = np.empty((header[AT_SYMBOLS] + 31) >> 5, np.uint32)  # the rests that are read
    rests = MaskWords(alive, alive[:0], alive[:0])
    none, nothing, no_list = Template(np.int64(-1), np.int64(-1)), FreeTokens(np.uint64(0), np.int64(0)), symbol[:0]
    looked: Int = np.int64(0)
    work, first = np.int64(0), np.int64(0)
    while first < token.size:
        stop, to = np.int64(token.size), np.int64(site_start[left])
        if label.size:
            stop, to = first, to + label[first]
            while stop < token.size and label[stop] == label[first]:
                stop += 1
        start = np.int64(site_states[to]) if to < site_start[left + 1] else np.int64(-1)
        if start >= 0:
            alive[:] = np.uint32(0)
            state, seen, nodes = walk_tokens(
                header, np.int64(1), start, stack, none, nothing, rests, no_list, np.int64(0), np.int64(0)
            )
            looked, work = max(looked, seen), work + nodes
            if state != DONE:
                return state, looked, work
            if frames >= 0:
                looked = max(looked, min(np.int64(popped + 1), np.int64(real.size)))
            if empty >= 0 and (frames < 0 or fits(header, real[:0], popped, start, real, frames)):
                alive[empty >> 5] |= np.uint32(1) << np.uint32(empty & 31)
            for x in range(first, stop):
                y = symbol[x]
                is_counted = not characters.size or least <= characters[x] <= most
                if is_counted and (alive[y >> 5] >> np.uint32(y & 31)) & np.uint32(1):
                    set_token(words, token[x], True)
        first = stop
    return np.int64(DONE), looked, work


@kernel(inline="always")
def _write_walk(
    header: Int64Array, node: Int, stack: OpenStack, template: Template, free: FreeTokens, words: MaskWords
) -> tuple[Int, Int, Int]:
    """Set and clear the bits of the tokens that a walk of the trie finds; return as `walk_tokens` does."""
    no_list = stack.sites[:0]
    work: Int = np.int64(0)
    if stack.frames < 0 and not free.length and template.state < 0 and has_own_walk(header, node):
        high = np.int64(array_at(header[AT_NODE], OF_NODE, np.int32)[NODE_CHILD])
        left, work = walk_string(header, node, np.int64(0), high, words)
        if left >= 0:
            state, looked, nodes = walk_pending(header, left, stack.sites, words, no_list)
            return state, looked, work + nodes
    state, looked, nodes = walk_tokens(
        header, np.int64(0), node, stack, template, free, words, no_list, np.int64(0), np.int64(0)
    )
    return state, looked, work + nodes


@kernel
def _note_words(header: Int64Array, words: MaskWords) -> Int:
    """Write the words that differ from the base into `differing_words`; return how many, -1 if too many."""
    out, _, noted = words
    if noted[0] == ALL_WORDS:
        return np.int64(-1)
    differ = differing_words(header)
    for k in range(np.uint64(noted[0])):
        w = np.uint64(noted[k + np.uint64(1)])
        differ[k + k], differ[k + k + np.uint64(1)] = np.uint32(w), out[w]
    return np.int64(noted[0])
