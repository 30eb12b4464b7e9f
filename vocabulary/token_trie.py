"""All tokens' bytes as a trie, and the walk over it that tells where each token leads.

A constraint on text is an automaton over bytes, and a model writes tokens. A walk over the trie steps the automaton
once for each node, so tokens that begin alike share steps, and tokens that begin with forbidden bytes take none:

>>> import numpy as np
>>> tokens = [b"a", b"ab", b"b", b"ba", b"bab"]
>>> trie = token_trie(tokens, np.frombuffer(b"".join(tokens), np.uint8), np.array([0, 1, 3, 4, 6, 9]))
>>> step = {("start", "a"): "after a", ("after a", "b"): "start"}  # accepts (ab)*, perhaps with an a behind
>>> states, leads, node = {0: "start"}, {}, 0
>>> while node < len(trie.byte):
...     depth = int(trie.depth[node])
...     state = step.get((states[depth - 1], chr(trie.byte[node])))
...     if state is None:
...         node = int(trie.skip[node])  # nothing below the node is allowed
...         continue
...     states[depth] = state
...     for token in trie.token[trie.token_start[node] : trie.token_start[node + 1]].tolist():
...         leads[tokens[token]] = state
...     node += 1
>>> leads
{b'a': 'after a', b'ab': 'start'}

Each compiler walks so in a kernel of its own, as each has other automata: `compile/bind` with a DFA, and with a machine
that calls and returns, `compile/json_schema` with bounded numbers and strings, `lazy` with the states of one mask. They
leave out more nodes. Below a node whose `content` and `height` say that the automaton reads all that is there, the
tokens `token_start[node]` .. `token_start[skip[node]]` are taken at once. The walks for masks go over `Branches`, the
same nodes in another order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..kernels.arrays import ByteArray, Int, Int32Array, Int64Array, Uint16Array
from ..kernels.compiled import kernel
from .characters import BYTE_GROUP, TokenCharacters, begun_characters, groups_below


@dataclass(frozen=True)
class TokenTrie:
    """The trie of all tokens' bytes in depth-first order, children by ascending byte, the root left out.

    M nodes, K tokens that have bytes. The children of node i are i + 1, `skip[i + 1]`, ... below `skip[i]`; what lies
    below the root for first byte b are the nodes `root_start[b]` .. `root_start[b + 1]`. The tokens that end at
    node i are `token[token_start[i] : token_start[i + 1]]`: several, ascending, where tokens have the same bytes.
    """

    byte: NDArray[np.uint8]  # (M,)
    skip: NDArray[np.int32]  # (M,) the node just after the node's subtree
    depth: NDArray[np.uint16]  # (M,) bytes from the root: 1 for its children
    height: NDArray[np.uint16]  # (M,) bytes from the node to the deepest one below it, 0 where there is none
    content: NDArray[np.uint64]  # (M,) groups of the characters at the node and below it, see `groups_below`
    token_start: NDArray[np.int32]  # (M + 1,)
    token: NDArray[np.int32]  # (K,) ids in depth-first order
    root_start: NDArray[np.int32]  # (257,)
    longest: int  # bytes of the longest token

    @cached_property
    def branches(self) -> Branches:
        """The nodes in another order, in which the children of each node stand side by side."""
        above = np.full(self.byte.size, -1, np.int64)  # the node of which each is a child, -1 for the root
        by_depth = np.argsort(self.depth, kind="stable")
        stops = np.cumsum(np.bincount(self.depth, minlength=self.longest + 1))
        for d in range(2, self.longest + 1):
            parents, nodes = by_depth[stops[d - 2] : stops[d - 1]], by_depth[stops[d - 1] : stops[d]]
            above[nodes] = parents[np.searchsorted(parents, nodes) - 1]
        order = np.argsort(above, kind="stable")
        first = np.concatenate(([0], np.cumsum(np.bincount(above + 1, minlength=above.size + 1))))
        start, skip = self.token_start, self.skip[order]
        node = np.zeros((order.size + 1, OF_NODE), np.int32)
        node[:-1, NODE_CHILD], node[:-1, NODE_STOP] = first[order + 1], first[order + 2]
        node[:-1, NODE_TOKENS : NODE_TOKENS + 3] = np.stack((start[order], start[order + 1], start[skip]), axis=1)
        node[:-1, NODE_REACH] = self.depth[order] + self.height[order]
        characters = groups_below(self.byte, self.depth, start, BYTE_GROUP, False)[order]
        node.view(np.uint64)[:-1, NODE_CHARACTERS] = characters
        return Branches(self.byte[order], characters, node)

    def characters(self, size: int) -> TokenCharacters:
        """Return the characters of the vocabulary's `size` tokens.

        Groups have the bit of `UNCLEAN` for a token that is not UTF-8, but not for one that ends inside a character.
        """
        count = np.diff(self.token_start)
        groups, length = np.full(size, ~np.uint64(0)), np.zeros(size, np.uint16)
        begun, first = np.zeros(size, np.uint16), begun_characters(self.byte, self.depth, BYTE_GROUP)
        for whole, part in ((groups, first[0]), (begun, first[1]), (length, self.depth)):
            whole[self.token] = np.repeat(part, count)
            whole.flags.writeable = False
        return TokenCharacters(groups, length, begun)


class Branches(NamedTuple):
    """The nodes of a trie, the children of each side by side, so that a walk compares them in one place of memory.

    Nodes below come soon after, as in the trie, and often lie on the same lines of memory. A walk passes over most
    bytes and sets of characters, so these lie by themselves. All else of a node lies together, with its set once more.
    """

    byte: NDArray[np.uint8]  # (M,)
    characters: NDArray[np.uint64]  # (M,)
    node: NDArray[np.int32]  # (M + 1, OF_NODE)


NODE_CHILD, NODE_TOKENS, NODE_REACH, NODE_STOP, OF_NODE = 0, 1, 4, 5, 8
"""Columns of a node: its first child (nodes 0 .. node[0, NODE_CHILD] are those of the root); the first of the tokens
that end here, then the first of those below, then the first behind those; the bytes from the root to the deepest node
below; the node after its last child; and the number of columns."""
NODE_CHARACTERS = 3
"""Where a node has, among its numbers of 64 bits, the groups of characters at it and below it. These include characters
that tokens only begin or end."""


def token_trie(tokens: Sequence[bytes], token_bytes: NDArray[np.uint8], token_offset: NDArray[np.int64]) -> TokenTrie:
    """Return the trie of all tokens that have bytes.

    Those of id i are tokens[i], and token_bytes[token_offset[i] : token_offset[i + 1]] too.
    """
    # sorting Python's bytes takes 40 ms for 131,072 tokens; numpy's own byte strings would lose trailing zeros
    order = np.array(sorted(range(len(tokens)), key=tokens.__getitem__), np.int32)
    order = order[np.count_nonzero(np.diff(token_offset) == 0) :]  # ids without bytes sort first
    byte, skip, depth, height, token_start, root_start, longest = _build(order, token_bytes, token_offset)
    content = groups_below(byte, depth, token_start, BYTE_GROUP, True)
    for array in (byte, skip, depth, height, content, token_start, order, root_start):
        array.flags.writeable = False
    return TokenTrie(byte, skip, depth, height, content, token_start, order, root_start, int(longest))


@kernel
def _build(
    order: Int32Array, token_bytes: ByteArray, token_offset: Int64Array
) -> tuple[ByteArray, Int32Array, Uint16Array, Uint16Array, Int32Array, Int32Array, Int]:
    """Return (byte, skip, depth, height, token_start, root_start, longest): the trie of tokens `order`, (K,) sorted."""
    count = order.size
    shared = np.zeros(count + 1, np.int64)  # bytes each token shares with the one before
    nodes = np.int64(0)
    longest = np.int64(0)
    before, length_before = np.int64(0), np.int64(0)
    for k in range(count):
        begin = token_offset[order[k]]
        length = token_offset[order[k] + 1] - begin
        same = np.int64(0)
        most = min(length, length_before)
        while same < most and token_bytes[begin + same] == token_bytes[before + same]:
            same += 1
        shared[k] = same
        nodes += length - same
        longest = max(longest, length)
        before, length_before = begin, length

    byte = np.empty(nodes, np.uint8)
    skip = np.empty(nodes, np.int32)
    depth = np.empty(nodes, np.uint16)
    height = np.zeros(nodes, np.uint16)
    token_start = np.empty(nodes + 1, np.int32)
    root_start = np.empty(257, np.int32)
    path = np.empty(longest + 1, np.int64)  # the open node of each depth
    node = np.int64(0)
    first = 0  # first bytes below this have their root_start
    open_depth = np.int64(0)
    for k in range(count):
        begin = token_offset[order[k]]
        length = token_offset[order[k] + 1] - begin
        for d in range(shared[k], open_depth):
            skip[path[d]] = node
        for d in range(shared[k], length):
            byte[node] = token_bytes[begin + d]
            depth[node] = d + 1
            token_start[node] = k
            path[d] = node
            if d == 0:
                while first <= byte[node]:
                    root_start[first] = node
                    first += 1
            node += 1
        for d in range(length):
            height[path[d]] = max(height[path[d]], length - 1 - d)
        open_depth = length
    for d in range(open_depth):
        skip[path[d]] = node
    root_start[first:] = node
    token_start[nodes] = count
    return byte, skip, depth, height, token_start, root_start, longest
