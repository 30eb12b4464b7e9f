"""The arrays of a table, declared once: names, element types, shapes and meanings.

Everything on the host that needs the list of arrays derives it from here: the file, the arena, the pointers for
kernels, the checks of types and shapes, and the reports of sizes. To add an array, add one field. If devices read it,
say what they hold in its place in `runtime/device/device_table.py` and `runtime/arena/device_arrays.py`.

Letters in shapes are sizes: S rows, E edges of rows, T tail entries, H rows that may have a base, U masks, W words of
32 tokens, R bases, X targets of bases, C class lists, Z entries of class lists, D depths of a trie, Q sequences,
N input rows, A actions, P pushes, L exit lists, O entries of exit lists, Y symbols, K return sites, M entries of sites.

Kernels take names from this file.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, NamedTuple, get_type_hints

import numpy as np
from numpy.typing import DTypeLike, NDArray

from ..errors import TableError
from ..kernels.arrays import BoolArray, HostArray, UintArray
from ..kernels.arrays import Int32Array as Int32Array
from ..kernels.arrays import IntArray as IntArray

TokenArray = UintArray


class ArraySpec(NamedTuple):
    """What one array of a table is.

    kinds: element types that are allowed; "token" is the smallest unsigned type that holds V + 1, "edge" the type of
    `rows.edge_start`. shape: an expression for each axis, in the letters of this module's docstring.
    """

    kinds: tuple[np.dtype[Any] | str, ...]
    shape: tuple[str, ...]
    meaning: str
    may_be_empty: bool = False  # (0,) stands for "nothing of this kind"

    def size(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
        """Return the shape where the letters stand for these sizes."""
        return tuple(
            sum(int(term) if term.isdigit() else sizes[term] for term in axis.split(" + ")) for axis in self.shape
        )


_INT32, _INT64, _BOOL, _UINT32 = (np.dtype(kind) for kind in (np.int32, np.int64, np.bool_, np.uint32))


def _numbers(shape: str, meaning: str, *, may_be_empty: bool = False) -> ArraySpec:
    return ArraySpec((_INT32,), (shape,), meaning, may_be_empty)


def _large_numbers(shape: str, meaning: str) -> ArraySpec:
    return ArraySpec((_INT32, _INT64), (shape,), meaning)


def _tokens(shape: str, meaning: str) -> ArraySpec:
    return ArraySpec(("token",), (shape,), meaning)


class Rows(NamedTuple):
    """States that have edges of their own."""

    edge_start: Annotated[IntArray, _large_numbers("S + 1", "row s owns the edges edge_start[s] .. edge_start[s + 1]")]
    accepting: Annotated[BoolArray, ArraySpec((_BOOL,), ("S",), "whether a sequence may end in the row")]
    base: Annotated[Int32Array, _numbers("H", "the base that the row shares, -1 for none")]
    frames_required: Annotated[
        Int32Array, _numbers("S", "how many more frames must fit for the row to be entered", may_be_empty=True)
    ]


class Edges(NamedTuple):
    """Tokens that lead on from rows, then the entries of tails."""

    token: Annotated[
        TokenArray,
        _tokens("E + T + 2", "tokens, sorted within a row; then tail entries, whose end is V; then V, V + 1"),
    ]
    target: Annotated[
        IntArray, ArraySpec(("edge",), ("E",), "the state, or the code, that each edge of a row leads to")
    ]


class Bases(NamedTuple):
    """Sets of tokens that many rows share."""

    masks: Annotated[NDArray[np.uint32], ArraySpec((_UINT32,), ("U", "W"), "bit i of word w is token 32 * w + i")]
    mask: Annotated[Int32Array, _numbers("R", "the row of masks that says which tokens a base allows")]
    class_list: Annotated[Int32Array, _numbers("R", "the class list that says where its tokens lead")]
    target_start: Annotated[
        Int32Array, _numbers("R + 1", "base r owns the targets target_start[r] .. target_start[r + 1]")
    ]
    target: Annotated[
        Int32Array, _numbers("X", "coded targets, by class: code c leads from s to (c >> 1) + (c & 1) * s")
    ]


class TokenClasses(NamedTuple):
    """Lists of tokens that lead elsewhere than most tokens of a base; tokens that are not listed have class 0."""

    start: Annotated[Int32Array, _numbers("C + 1", "list c is the entries start[c] .. start[c + 1]")]
    token: Annotated[TokenArray, _tokens("Z", "tokens, sorted within a list")]
    number: Annotated[Int32Array, _numbers("Z", "the class of each token")]


class TrieLevels(NamedTuple):
    """What only a trie has: its rows by depth, and the way back from final states to the input."""

    level_start: Annotated[
        NDArray[np.int64],
        ArraySpec((_INT64,), ("D + 1",), "the rows of depth d are level_start[d] .. level_start[d + 1]", True),
    ]
    item_start: Annotated[
        IntArray, _large_numbers("Q + 1", "final state k stands for items item_start[k] .. item_start[k + 1]")
    ]
    item_row: Annotated[IntArray, _large_numbers("N", "rows of the input")]


class Actions(NamedTuple):
    """Targets that push return sites before they lead to a row."""

    state: Annotated[Int32Array, _numbers("A", "the row that each action leads to")]
    push_start: Annotated[
        Int32Array, _numbers("A + 1", "action a pushes push[push_start[a]] .. push[push_start[a + 1]]")
    ]
    push: Annotated[Int32Array, _numbers("P", "return sites, in the order in which they are pushed")]


class Exits(NamedTuple):
    """Tokens in which a fragment ends."""

    of_row: Annotated[Int32Array, _numbers("S", "the row's own exit list, -1 for none", may_be_empty=True)]
    of_base: Annotated[Int32Array, _numbers("R", "the base's exit list, -1 for none", may_be_empty=True)]
    start: Annotated[Int32Array, _numbers("L + 1", "exit list l is the entries start[l] .. start[l + 1]")]
    token: Annotated[TokenArray, _tokens("O", "tokens, sorted within a list")]
    symbol: Annotated[Int32Array, _numbers("O", "the symbol that the fragment is left with")]
    label: Annotated[Int32Array, _numbers("Y", "how a fragment ended, by symbol; -1 where bytes of the token are left")]


class Sites(NamedTuple):
    """Return sites: where to go on when a fragment is left."""

    start: Annotated[Int32Array, _numbers("K + 1", "site k is the entries start[k] .. start[k + 1]")]
    symbol: Annotated[Int32Array, _numbers("M", "symbols, sorted within a site")]
    target: Annotated[Int32Array, _numbers("M", "a code, or -1 - y: leave this frame too, with symbol y")]
    is_leaf: Annotated[BoolArray, ArraySpec((_BOOL,), ("K",), "pushed for fragments that make no calls")]
    frames_required: Annotated[
        Int32Array, _numbers("K", "how many more frames must fit for the site to be pushed", may_be_empty=True)
    ]
    of_row: Annotated[
        Int32Array, _numbers("S", "the site that tokens of the row's base push, -1 for none", may_be_empty=True)
    ]


class TableArrays(NamedTuple):
    """All arrays of a table, in groups. Kernels take this as one argument."""

    rows: Rows
    edges: Edges
    bases: Bases
    classes: TokenClasses
    trie: TrieLevels
    actions: Actions
    exits: Exits
    sites: Sites

    def by_name(self) -> dict[str, HostArray]:
        """Return the arrays by their names in files and reports, such as `rows.edge_start`."""
        parts: tuple[Any, ...] = self
        return {f"{group}.{field}": array for group, part in zip(self._fields, parts, strict=True)
                for field, array in zip(part._fields, part, strict=True)}  # fmt: skip

    @classmethod
    def from_names(cls, arrays: Mapping[str, HostArray]) -> TableArrays:
        """Return the groups of arrays with the names of `by_name`. Raises KeyError for a name that is missing."""
        return cls(*(group(*(arrays[f"{name}.{field}"] for field in group._fields)) for name, group in GROUPS.items()))

    def with_arrays(self, **changes: HostArray) -> TableArrays:
        """Return the groups with other arrays, named as in `rows__edge_start`."""
        arrays = self.by_name() | {name.replace("__", "."): array for name, array in changes.items()}
        if unknown := sorted(set(arrays) - set(SPECS)):
            raise TypeError(f"a table has no arrays {', '.join(unknown)}: it has {', '.join(SPECS)}")
        return self.from_names(arrays)

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return sum(array.nbytes for part in self for array in part)

    def map(self, function: Callable[[HostArray], Any]) -> TableArrays:
        """Return the groups with a function applied to each array."""
        parts: tuple[Any, ...] = self
        return type(self)(*(type(part)(*map(function, part)) for part in parts))


GROUPS: dict[str, Any] = get_type_hints(TableArrays)
"""The group types by name, in order."""


def _declared() -> dict[str, ArraySpec]:
    found = {}
    for name, group in GROUPS.items():
        for field, hint in get_type_hints(group, include_extras=True).items():
            found[f"{name}.{field}"] = next(part for part in hint.__metadata__ if isinstance(part, ArraySpec))
    return found


SPECS: dict[str, ArraySpec] = _declared()
"""What each array is, by its name in files and reports."""


def _none(kind: DTypeLike = np.int32) -> HostArray:
    array = np.zeros(0, kind)
    array.flags.writeable = False
    return array


def _no_lists() -> NDArray[np.int32]:
    array = np.zeros(1, np.int32)
    array.flags.writeable = False
    return array


NO_TRIE = TrieLevels(_none(np.int64), _no_lists(), _none())
"""What a graph has in place of levels and items."""

NO_ACTIONS = Actions(_none(), _no_lists(), _none())
"""What a table without calls has in place of actions."""

NO_SITES = Sites(_no_lists(), _none(), _none(), _none(np.bool_), _none(), _none())
"""What a table without calls has in place of return sites."""


def no_exits(token_kind: np.dtype[Any]) -> Exits:
    """Return what a table without calls has in place of exits."""
    return Exits(_none(), _none(), _no_lists(), _none(token_kind), _none(), _none())


def check_declared(arrays: TableArrays, vocab_size: int) -> None:
    """Raise TableError for an array whose type or shape is not as declared here."""
    token, edge = np.min_scalar_type(vocab_size + 1), arrays.rows.edge_start.dtype
    named = arrays.by_name()
    for name, spec in SPECS.items():
        array = named[name]
        kinds = [
            {"token": token, "edge": edge}.get(kind, kind) if isinstance(kind, str) else kind for kind in spec.kinds
        ]
        if array.dtype not in kinds or array.ndim != len(spec.shape):
            raise TableError(f"{name} is {array.dtype} with {array.ndim} axes, not {kinds[0]} with {len(spec.shape)}")
    sizes = {"W": -(-vocab_size // 32)}
    axes = [
        (name, expression, size)
        for name, spec in SPECS.items() if not (spec.may_be_empty and named[name].size == 0)
        for expression, size in zip(spec.shape, named[name].shape, strict=True)
    ]  # fmt: skip
    # expressions of one letter first: they say what the letters of the others are
    for name, expression, size in sorted(axes, key=lambda axis: len(re.findall("[A-Z]", axis[1]))):
        fixed, unknown = 0, []
        for term in expression.split(" + "):
            if term.isdigit():
                fixed += int(term)
            elif term in sizes:
                fixed += sizes[term]
            else:
                unknown.append(term)
        if unknown:
            sizes[unknown[0]] = size - fixed
        if size < fixed or (not unknown and size != fixed):
            raise TableError(f"{name} has a size of {size}, not {expression} = {fixed}")
    if sizes["S"] < 1:
        raise TableError("rows.edge_start has no row to start from")
    if sizes["H"] > sizes["S"]:
        raise TableError("rows.base is longer than there are rows")
