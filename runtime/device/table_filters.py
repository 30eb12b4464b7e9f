"""Filters of a table of sequences as an accelerator holds them: one bit an edge, and what masks allow of what is kept.

Which edges lead to what is kept is found on the host when filters are put, so that a step only reads a bit for each
edge that it reads anyway. Shapes follow from the table and from how many filters there are, never from what they keep.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...table.kept_edges import kept_edges
from ...table.sid_filter import SidFilter
from ...table.transition_table import Level, TransitionTable
from .backend import Array
from .device_table import DeviceTable

MOST_ENTRIES = 2**31 - 1
"""The most entries of an array of all filters of a batch: positions have 32 bits where a device has no wider ones."""


@dataclass(frozen=True, eq=False)
class DeviceTableFilters:
    """What of a table leads to sequences that F filters keep.

    Bits are in words of 32, the lowest first; the arrays of all filters stand one behind the other.
    """

    some: Array  # (F,) int32: 1 where any sequence is kept
    edges: Array  # (F W,) int32: bits of edges; that of E, which stands for all entries of tails, is set
    ends: Array  # (F X,) int32: bits of the rows in which a kept sequence ends
    masks: Array  # (F (U + 1), ceil(V / 32)) uint32: the table's masks, with what is kept alone; the last is empty
    distance: Array  # (F S,) int32: fewest tokens from each row to a kept end; (0,) without distances, or of one length
    of: Array  # (B,) which filter each row of a batch begins with; its type is that of states
    words: int  # W: those of E + 1 bits, and of the edges of a row more
    end_words: int  # X: S // 32 + 1
    ends_in_rows: bool  # whether any sequence of the table ends in a row


@dataclass(frozen=True, eq=False)
class DeviceFilteredTable:
    """A `DeviceTable` of sequences under filters."""

    table: DeviceTable
    kept: DeviceTableFilters

    # what decoders ask of a table
    calls = None
    is_trie = True

    @property
    def vocab_size(self) -> int:
        """V: tokens are 0 .. V - 1."""
        return self.table.vocab_size

    @property
    def eos(self) -> int | None:
        """The token that ends a sequence; None where sequences end by themselves."""
        return self.table.eos

    @property
    def other_ends(self) -> tuple[int, ...]:
        """The tokens that end a sequence, beside `eos`."""
        return self.table.other_ends

    @property
    def ends(self) -> tuple[int, ...]:
        """The tokens that end a sequence, `eos` first."""
        return self.table.ends

    @property
    def fixed_length(self) -> int | None:
        """The length of every sequence; None where lengths differ or EOS is needed to end."""
        return self.table.fixed_length

    @property
    def min_length(self) -> int:
        """Fewest tokens in a sequence of the table."""
        return self.table.min_length

    @property
    def max_length(self) -> int | None:
        """Most tokens in a sequence of the table."""
        return self.table.max_length

    @property
    def has_masks(self) -> bool:
        """Whether any row has a mask."""
        return self.table.has_masks

    @property
    def num_states(self) -> int:
        """One more than the node of the dead state."""
        return self.table.num_states

    @property
    def dead(self) -> int:
        """The node of the state that allows nothing."""
        return self.table.dead

    @property
    def levels(self) -> tuple[Level, ...]:
        """What is static at each depth, whatever filters keep."""
        return self.table.levels

    @property
    def sparse_width(self) -> int:
        """Most edges of a row without a mask."""
        return self.table.sparse_width


def with_filters(
    dev: DeviceTable | DeviceFilteredTable,
    filters: Sequence[SidFilter],
    of: NDArray[Any],
    convert: Callable[[NDArray[Any]], Any],
) -> DeviceFilteredTable:
    """Return a table on a device with filters of it; each array goes through `convert`.

    of: (B,) which filter each row of a batch begins with. Raises ValueError for more filters than can be addressed.
    """
    bare = dev.table if isinstance(dev, DeviceFilteredTable) else dev
    table = filters[0].table
    assert isinstance(table, TransitionTable)
    count, rows, edges = len(filters), table.num_rows, table.num_edges
    widest = max(level.width for level in table.levels)
    lengths_differ = table.min_length != table.max_length and bare.distance.shape[0] > 0
    # as many words are read at once as the widest row asks for, from those of any edge on
    words, end_words, size = edges // 32 + 2 + -(-widest // 32), rows // 32 + 1, -(-table.vocab_size // 32)
    masks = np.zeros((count, len(table.bases.masks) + 1, size), np.uint32)
    if max(count * words, masks.size, count * rows * lengths_differ) > MOST_ENTRIES:
        raise ValueError(f"{count} filters of {table.num_sequences:,} sequences are more than can be addressed")
    edge_bits, end_bits = np.zeros((count, words), np.uint32), np.zeros((count, end_words), np.uint32)
    far = np.zeros((count, rows if lengths_differ else 0), np.int32)
    some = np.zeros(count, np.int32)
    for i, each in enumerate(filters):
        found = kept_edges(table, each.rows, lengths_differ, masks[i, :-1])
        some[i] = found.any
        edge_bits[i, : found.edges.size] = found.edges
        edge_bits[i, edges >> 5] |= np.uint32(1 << (edges & 31))
        end_bits[i] = found.ends
        if found.distance is not None:
            far[i] = found.distance
    kept = DeviceTableFilters(
        some=convert(some),
        edges=convert(edge_bits.reshape(-1).view(np.int32)),
        ends=convert(end_bits.reshape(-1).view(np.int32)),
        masks=convert(masks.reshape(-1, size)),
        distance=convert(far.reshape(-1)),
        of=convert(of.astype(np.int64)),
        words=words,
        end_words=end_words,
        ends_in_rows=bool(table.rows.accepting.any()),
    )
    return DeviceFilteredTable(bare, kept)
