"""Vocabularies and machines as kernels take them: named tuples of arrays.

Kernels take names from this file.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...automata.pushdown import PushdownMachine
from ...vocabulary.token_trie import TokenTrie
from ...vocabulary.vocabulary import Vocabulary

EDGES, EXITS, ACTIONS, REMAINDERS, SYMBOLS = range(5)
"""Places in the array of counters that linking keeps."""
KILL = -(2**31)
"""The code of an edge that takes a token of the row's base away."""


class TrieArrays(NamedTuple):
    """The arrays of a `TokenTrie`: M nodes, K tokens."""

    byte: NDArray[np.uint8]  # (M,)
    skip: NDArray[np.int32]  # (M,)
    depth: NDArray[np.uint16]  # (M,)
    height: NDArray[np.uint16]  # (M,)
    content: NDArray[np.uint64]  # (M,)
    token_start: NDArray[np.int32]  # (M + 1,)
    token: NDArray[np.int32]  # (K,)
    root_start: NDArray[np.int32]  # (257,)

    @staticmethod
    def of(trie: TokenTrie) -> TrieArrays:
        """Return the arrays of a trie."""
        return TrieArrays(
            trie.byte, trie.skip, trie.depth, trie.height, trie.content, trie.token_start, trie.token, trie.root_start
        )


class TokenText(NamedTuple):
    """The bytes of all tokens: those of token v are data[start[v] : start[v + 1]]."""

    data: NDArray[np.uint8]  # with one more byte at the end
    start: NDArray[np.int32]  # (V + 1,)

    @staticmethod
    def of(vocabulary: Vocabulary) -> TokenText:
        """Return the bytes of a vocabulary's tokens."""
        return TokenText(np.append(vocabulary.token_bytes, np.uint8(0)), vocabulary.token_offset.astype(np.int32))


class MachineArrays(NamedTuple):
    """The arrays of a `PushdownMachine`: N states, K return sites."""

    rows: NDArray[np.int32]  # (N, 256) codes by byte
    calls: NDArray[np.int32]  # (calls, 2) return site and first state
    site_start: NDArray[np.int32]  # (K + 1,)
    site_states: NDArray[np.int32]  # by label

    @staticmethod
    def of(machine: PushdownMachine) -> MachineArrays:
        """Return the arrays of a machine."""
        site_start, site_states, _ = machine.sites
        return MachineArrays(machine.rows, machine.calls, site_start, site_states)
