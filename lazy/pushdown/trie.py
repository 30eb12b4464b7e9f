"""The trie of all tokens, and the trie of rests, as walks read them: see `vocabulary.Branches`."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ...kernels.arrays import ByteArray, Int, Int32Array, Int64Array, Uint64Array
from ...kernels.compiled import kernel
from ...kernels.pointers import array_at
from .header import AT_BYTE, AT_NODE, AT_REST_BYTE, AT_TOKEN


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
