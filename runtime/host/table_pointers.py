"""The arrays of a nested table by their addresses, in one header: see `kernels/pointers.py`.

The layout follows the declaration in `table/groups.py`: an array that is declared there is in the header, at the
position that `ARRAY` says.
"""

from __future__ import annotations

from functools import singledispatch
from typing import Any, Protocol, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ...kernels.arrays import ByteArray, HostArray, Int32Array, Int64Array
from ...kernels.compiled import kernel
from ...kernels.pointers import address_of, array_at, put
from ...table.grouped import GroupedArrays
from ...table.groups import SPECS, Actions, Bases, Edges, Exits, Rows, Sites, TableArrays, TokenClasses, TrieLevels
from ...table.nested_distances import Distances
from ...table.states import NestedState
from ...table.weak_cache import Kept

ROWS, EOS, VOCAB_SIZE, SYMBOLS, WORDS, DEPTH, SLOTS, MOST_NEED, MOST_PUSHES, _FIRST = range(10)
"""Positions of the numbers that a header begins with."""

ARRAY: Any = TableArrays.from_names({name: _FIRST + 2 * i for i, name in enumerate(SPECS)})  # type: ignore[misc]
"""Positions of the addresses of arrays, in the groups of the arrays: ARRAY.rows.edge_start, for example."""

CODE_NEED = _FIRST + 2 * len(SPECS)
"""Position of `TransitionTable.code_frames_required`, which is worked out, not declared."""

LENGTH = CODE_NEED + 2
"""The numbers in a header."""


class HostTable(Protocol):
    """What the host reads of a table: a `TransitionTable` has it, and so has an arena."""

    @property
    def arrays(self) -> TableArrays:
        """All arrays, in groups."""

    @property
    def code_frames_required(self) -> Int32Array:
        """How many more frames must fit for each code to be followed."""

    @property
    def distance(self) -> Int32Array:
        """Fewest tokens from each state to an end."""

    @property
    def distances(self) -> Distances:
        """Of a nested table: distances by the ends of fragments."""

    @property
    def vocab_size(self) -> int:
        """V: tokens."""

    @property
    def eos(self) -> int | None:
        """The token that ends a sequence."""

    @property
    def depth(self) -> int:
        """The most open frames that are no leaves."""

    @property
    def slots(self) -> int:
        """The places of a stack."""

    @property
    def num_rows(self) -> int:
        """S: states with edges of their own."""

    def follow(self, tokens: ArrayLike, state: NestedState) -> NestedState:
        """Return where each row of tokens (N, L) of a nested table leads; the dead state if it is not allowed."""

    @property
    def num_states(self) -> int:
        """All states."""

    @property
    def num_sites(self) -> int:
        """K: return sites."""

    @property
    def num_symbols(self) -> int:
        """Y: symbols that fragments are left with."""

    @property
    def most_frames_required(self) -> int:
        """With so many frames left nothing is refused for want of them."""

    @property
    def most_pushes(self) -> int:
        """The most frames that a token opens."""

    @property
    def is_trie(self) -> bool:
        """Whether this is a set of sequences."""

    @property
    def is_nested(self) -> bool:
        """Whether a stack belongs to the states."""


class TablePointers:
    """A header for kernels, with the arrays that it points to.

    To hand a kernel an array takes 0.08 microseconds, to compose the mask of one configuration from 36 of them 20. The
    arrays stay where they are, and are not written to, as long as the pointers live.
    """

    __slots__ = ("_arrays", "address", "header")

    def __init__(
        self, arrays: TableArrays, code_frames_required: Int32Array, *, eos: int | None, vocab_size: int, depth: int,
        slots: int, most_frames_required: int = 0, most_pushes: int = 0,
    ) -> None:  # fmt: skip
        self._arrays = arrays, code_frames_required
        self.header = header = np.zeros(LENGTH, np.int64)
        self.address = address_of(header)
        header[ROWS], header[EOS] = arrays.rows.edge_start.size - 1, -1 if eos is None else eos
        header[VOCAB_SIZE], header[SYMBOLS] = vocab_size, arrays.exits.label.size
        header[WORDS], header[DEPTH], header[SLOTS] = arrays.bases.masks.shape[1], depth, slots
        self.set_most(most_frames_required, most_pushes)
        for at, (name, array) in enumerate(arrays.by_name().items()):
            assert array.flags.c_contiguous, name
            put(header, _FIRST + 2 * at, array)
        put(header, CODE_NEED, code_frames_required)

    @property
    def nbytes(self) -> int:
        """Bytes of the header; the arrays are the table's."""
        return int(self.header.nbytes)

    @property
    def most_frames_required(self) -> int:
        """With so many frames left nothing is refused for want of them."""
        return int(self.header[MOST_NEED])

    @property
    def most_pushes(self) -> int:
        """The most frames that a token opens."""
        return int(self.header[MOST_PUSHES])

    def set_most(self, most_frames_required: int, most_pushes: int) -> None:
        """Note how many frames may be needed, and pushed at once, of arrays that change."""
        self.header[MOST_NEED], self.header[MOST_PUSHES] = most_frames_required, most_pushes

    @classmethod
    def of(cls, table: HostTable) -> TablePointers:
        """Return new pointers to a nested table."""
        return cls(
            table.arrays, table.code_frames_required, eos=table.eos, vocab_size=table.vocab_size, depth=table.depth,
            slots=table.slots, most_frames_required=table.most_frames_required, most_pushes=table.most_pushes,
        )  # fmt: skip


_pointers: Kept[TablePointers] = Kept()


@singledispatch
def pointers_of(table: object) -> TablePointers:
    """Return the pointers to a nested table, made once and kept as long as the table lives."""
    raise TypeError(f"there are no pointers to a {type(table).__name__}")


@pointers_of.register
def _of_table(table: GroupedArrays) -> TablePointers:
    return _pointers.made(table.owner, lambda: TablePointers.of(cast(HostTable, table)))


@kernel
def array_of(header: NDArray[np.int64], at: int, kind: type[np.generic] | np.dtype[Any]) -> HostArray:
    """Return the array whose address is at a position of a header, flat, with elements of a type."""
    return array_at(header[at], header[at + 1], kind)


@kernel
def arrays_of(header: NDArray[np.int64], kind: type[np.generic]) -> TableArrays:
    """Return the arrays of a nested table, in groups; kind: the type of tokens.

    Arrays that a kernel does not read cost it nothing.
    """
    words = header[WORDS]
    masks = array_of(header, ARRAY.bases.masks, np.uint32)
    return TableArrays(
        Rows(
            array_of(header, ARRAY.rows.edge_start, np.int32), array_of(header, ARRAY.rows.accepting, np.uint8),
            array_of(header, ARRAY.rows.base, np.int32), array_of(header, ARRAY.rows.frames_required, np.int32),
        ),
        Edges(array_of(header, ARRAY.edges.token, kind), array_of(header, ARRAY.edges.target, np.int32)),
        Bases(
            masks.reshape((masks.size // words, words)), array_of(header, ARRAY.bases.mask, np.int32),
            array_of(header, ARRAY.bases.class_list, np.int32), array_of(header, ARRAY.bases.target_start, np.int32),
            array_of(header, ARRAY.bases.target, np.int32),
        ),
        TokenClasses(
            array_of(header, ARRAY.classes.start, np.int32), array_of(header, ARRAY.classes.token, kind),
            array_of(header, ARRAY.classes.number, np.int32),
        ),
        TrieLevels(
            array_of(header, ARRAY.trie.level_start, np.int64), array_of(header, ARRAY.trie.item_start, np.int32),
            array_of(header, ARRAY.trie.item_row, np.int32),
        ),
        Actions(
            array_of(header, ARRAY.actions.state, np.int32), array_of(header, ARRAY.actions.push_start, np.int32),
            array_of(header, ARRAY.actions.push, np.int32),
        ),
        Exits(
            array_of(header, ARRAY.exits.of_row, np.int32), array_of(header, ARRAY.exits.of_base, np.int32),
            array_of(header, ARRAY.exits.start, np.int32), array_of(header, ARRAY.exits.token, kind),
            array_of(header, ARRAY.exits.symbol, np.int32), array_of(header, ARRAY.exits.label, np.int32),
        ),
        Sites(
            array_of(header, ARRAY.sites.start, np.int32), array_of(header, ARRAY.sites.symbol, np.int32),
            array_of(header, ARRAY.sites.target, np.int32), array_of(header, ARRAY.sites.is_leaf, np.uint8),
            array_of(header, ARRAY.sites.frames_required, np.int32), array_of(header, ARRAY.sites.of_row, np.int32),
        ),
    )  # fmt: skip


@kernel
def header_at(address: int) -> Int64Array:
    """Return the header at an address."""
    return array_at(address, LENGTH, np.int64)


@kernel
def leaves_of(header: NDArray[np.int64]) -> ByteArray:
    """Return which return sites are leaves."""
    return array_of(header, ARRAY.sites.is_leaf, np.uint8)
