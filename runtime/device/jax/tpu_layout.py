"""A trie as a TPU reads it: arrays in rows of 128 words, so that one copy brings what a beam needs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ....table.transition_table import TransitionTable
from ..backend import Array
from ..device_table import DeviceTable, arrays_of, device_table

LANES = 128  # words of a row
WORDS_PER_ROW = LANES // 2  # of a mask; as many counts stand behind them
TOKENS_PER_ROW = 32 * WORDS_PER_ROW
WIDEST = 4 * LANES  # edges of a state up to which a kernel looks at all of them

_TILE = 8 * LANES  # words: a TPU lays out an array of one axis so that whole tiles can be read as rows in place


@dataclass(frozen=True, eq=False)
class TpuTable(DeviceTable):
    """A trie as a TPU holds it: `row_start`, `edge_token`, `edge_target` and `base_row` are int32 in whole tiles.

    Behind its end each is padded, to a multiple of 1,024, and so far that the rows of any state's edges are inside. A
    padded array means what it means in a `DeviceTable`, so every operation takes either. A token takes 4 bytes, in a
    `DeviceTable` 2 where V is below 65,536.
    """

    mask_ranks: Array  # ((U + 1) * J, 1, 128), see `mask_ranks`


def fits(table: TransitionTable) -> bool:
    """Return whether a table can be laid out for a TPU: a trie whose indices are of 32 bits."""
    return table.is_trie and table.rows.edge_start.dtype.itemsize <= 4


def tpu_table(table: TransitionTable, convert: Callable[[NDArray[Any]], Any], distances: bool) -> TpuTable:
    """Lay a trie out for a TPU; each array goes through `convert`. distances: with the distances for `remaining`."""
    ranks = mask_ranks(table.bases.masks, table.vocab_size)
    held = device_table(table, lambda array: array, TpuTable, distances, mask_ranks=ranks)
    fill = {"row_start": 0, "edge_token": table.vocab_size, "edge_target": 0, "base_row": table.bases.mask.size}
    arrays = {name: getattr(held, name) for name in arrays_of(TpuTable)}
    arrays |= {name: _in_tiles(arrays[name], value) for name, value in fill.items()}
    return replace(held, **{name: convert(array) for name, array in arrays.items()})


def _in_tiles(array: NDArray[Any], fill: int) -> NDArray[np.int32]:
    """Return an array (n,) in whole tiles, with at least the rows of one state more."""
    size = -(-(array.size + WIDEST + LANES) // _TILE) * _TILE
    out = np.full(size, fill, np.int32)
    out[: array.size] = array
    return out


def mask_ranks(masks: NDArray[np.uint32], vocab_size: int) -> NDArray[np.int32]:
    """Return masks (U, W) with the number of bits set before each word: ((U + 1) * J, 1, 128), J rows a mask.

    Row j of a mask has its words 64 j to 64 j + 63, and behind them the counts of bits before each. The last mask is
    for states without one: it allows nothing.
    """
    per_mask = -(-vocab_size // TOKENS_PER_ROW)
    words = np.zeros((len(masks) + 1, per_mask * WORDS_PER_ROW), np.uint32)
    words[:-1, : masks.shape[1]] = masks[:, : words.shape[1]]
    bits = np.bitwise_count(words).astype(np.int32)
    before = np.cumsum(bits, axis=1, dtype=np.int32) - bits
    parts = [part.reshape(-1, 1, WORDS_PER_ROW) for part in (words.view(np.int32), before)]
    return np.concatenate(parts, axis=2)
