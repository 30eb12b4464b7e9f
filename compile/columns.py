"""Columns of a catalogue: a value of one kind for each item, or none."""

from __future__ import annotations

import keyword
import math
import sys
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ..errors import ConstraintError, TableError
from ..table.item_ids import ItemIds, python_values
from ..table.live_items import GrowingArray

Kind = Literal["bool", "int", "float", "str"]
Value = bool | int | float | str | None

_TYPES: dict[str, Any] = {"bool": np.bool_, "int": np.int64, "float": np.float64, "str": np.int32}
_RESERVED = ("id", "sid", "score")
_MOST = 1 << 63
_MOST_FLOAT = int(sys.float_info.max)
_SPARE_TEXTS = 1024  # that no row has any more, beside one for each row


@dataclass(frozen=True, eq=False)
class Column:
    """The values of one column, which never change.

    kind: "bool", "int" of 64 bits, "float" of 64 bits, or "str". A value may be missing.
    """

    kind: Kind
    values: NDArray[Any]  # (N,); of "str" the place of each in `texts`
    known: NDArray[np.bool_]  # (N,) where there is a value
    texts: Sequence[str] = ()  # distinct ones, of "str"
    _places: Mapping[str, int] | None = field(default=None, repr=False)

    @cached_property
    def places(self) -> Mapping[str, int]:
        """The place of each text, and maybe of others that no item has."""
        return {text: place for place, text in enumerate(self.texts)} if self._places is None else self._places

    @classmethod
    def of(cls, name: str, given: Any, count: int) -> Column:
        """Return the column of values (N,): an array, a list, or an Arrow column; None and NaN are missing.

        Raises ConstraintError naming the row of a value of another kind than those before it.
        """
        check_name(name)
        if len(given) != count:
            raise ConstraintError(
                f"the column {name!r} has {len(given):,} values for {count:,} items: one each is needed",
                argument="columns",
            )
        if type(given).__module__.split(".")[0] == "pyarrow":
            return _from_arrow(name, given)
        if isinstance(given, np.ndarray) and given.ndim == 1 and given.dtype.kind in "biuf":
            known = ~np.ma.getmaskarray(given)  # type: ignore[no-untyped-call]
            return _from_numbers(name, np.ma.filled(given, 0), known)
        values = _with_none(given)
        kinds = {type(value) for value in values if value is not None}
        kind: Kind | None = (
            "bool" if kinds == {bool} else "int" if kinds == {int} else "str" if kinds == {str}
            else "float" if kinds and kinds <= {int, float} else None
        )  # fmt: skip
        if kind is None:
            told = ", ".join(sorted(each.__name__ for each in kinds)) or "no value"
            raise ConstraintError(
                f"the column {name!r} has {told}: all are booleans, integers, numbers or strings", argument="columns"
            )
        made = GrowingColumn(kind)
        made.check(name, values)
        made.append(values)
        return made.view()

    def __len__(self) -> int:
        return len(self.values)

    def at(self, rows: NDArray[Any]) -> list[Value]:
        """Return the values of rows (n,), None where one is missing."""
        values, known = self.values[rows].tolist(), self.known[rows].tolist()
        if self.kind == "str":
            return [self.texts[value] if there else None for value, there in zip(values, known, strict=True)]
        return [value if there else None for value, there in zip(values, known, strict=True)]

    def take(self, rows: NDArray[Any]) -> Column:
        """Return the column of rows (n,)."""
        return Column(self.kind, self.values[rows], self.known[rows], self.texts, self._places)

    def packed(self) -> Column:
        """Return the column of strings with no text that no item has."""
        used, values = np.unique(self.values[self.known], return_inverse=True)
        own = np.zeros(len(self.values), np.int32)
        own[self.known] = values
        return Column("str", own, self.known, [self.texts[place] for place in used.tolist()])

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays by the names that they have in a file, with no text that no item has."""
        if self.kind != "str":
            kind = np.uint8 if self.kind == "bool" else self.values.dtype
            return {"values": self.values.astype(kind), "known": self.known.astype(np.uint8)}
        packed = self.packed()
        texts = ItemIds.of(packed.texts or [""])
        assert texts.text is not None
        assert texts.starts is not None
        known = packed.known.astype(np.uint8)
        return {"values": packed.values, "known": known, "text": texts.text, "starts": texts.starts}

    @classmethod
    def from_arrays(cls, kind: Kind, arrays: Mapping[str, NDArray[Any]], count: int) -> Column:
        """Return the column that `arrays` named, out of a file. Raises TableError, KeyError."""
        values, known = arrays["values"].astype(_TYPES[kind]), arrays["known"].astype(np.bool_)
        texts: Sequence[str] = ()
        if kind == "str":
            texts = list(ItemIds.from_names({"items.text": arrays["text"], "items.starts": arrays["starts"]}))  # type: ignore[arg-type]
        if values.shape != (count,) or known.shape != (count,):
            raise TableError(f"a column has {values.shape} values and {known.shape} marks for {count} items")
        if kind == "str" and count and not (values.min() >= 0 and values.max() < max(1, len(texts))):
            raise TableError("a column has a text that is not there")
        return cls(kind, values, known, texts)


Columns = Mapping[str, Column]


class GrowingColumn:
    """A column whose values are appended to and changed; what `view` returned before never changes.

    Values that come are those that `check` lets pass.
    """

    def __init__(self, kind: Kind, first: Column | None = None) -> None:
        self.kind: Kind = kind
        self._values = GrowingArray(np.empty(0, _TYPES[kind]) if first is None else first.values)
        self._known = GrowingArray(np.empty(0, np.bool_) if first is None else first.known)
        self._texts: list[str] = [] if first is None else list(first.texts)
        self._places = {text: place for place, text in enumerate(self._texts)}
        self._seen = first is not None  # somebody has a view of the values as they are

    def append(self, values: Sequence[Value]) -> None:
        """Append values."""
        made, known = self._read(values)
        self._values.append(made)
        self._known.append(known)

    def append_none(self, count: int) -> None:
        """Append so many values that are missing."""
        self._values.append(np.zeros(count, _TYPES[self.kind]))
        self._known.append(np.zeros(count, np.bool_))

    def at(self, rows: NDArray[np.int64]) -> list[Value]:
        """Return the values of rows (n,)."""
        return self._now().at(rows)

    def set(self, rows: NDArray[np.int64], values: Sequence[Value]) -> None:
        """Change the values of rows (n,)."""
        if not len(rows):
            return
        if len(self._texts) > _SPARE_TEXTS + 2 * len(self._values.view()):
            self._drop_texts()
        made, known = self._read(values)
        if self._seen:
            self._values, self._known = (
                GrowingArray(self._values.view().copy()),
                GrowingArray(self._known.view().copy()),
            )
            self._seen = False
        self._values.view()[rows] = made
        self._known.view()[rows] = known

    def view(self) -> Column:
        """Return the column as it is now."""
        self._seen = True
        return self._now()

    def _now(self) -> Column:
        """Return the column, whose values `set` may change."""
        return Column(self.kind, self._values.view(), self._known.view(), self._texts, self._places)

    def check(self, name: str, values: Sequence[Any]) -> None:
        """Raise ConstraintError for a value of another kind."""
        for row, value in enumerate(values):
            if value is not None and (why := wrong_value(self.kind, value)):
                raise ConstraintError(f"row {row} of the column {name!r} has {value!r:.100}: {why}", argument="columns")

    def _read(self, values: Sequence[Any]) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        known = np.fromiter((value is not None for value in values), np.bool_, len(values))
        out = np.zeros(len(values), _TYPES[self.kind])
        there = [value for value in values if value is not None]
        if self.kind == "str":
            there = [self._place(text) for text in there]
        out[known] = there
        return out, known

    def _drop_texts(self) -> None:
        """Begin with the texts that rows have: others, which changes left behind, would fill the memory."""
        packed = self._now().packed()
        self._values, self._texts = GrowingArray(packed.values), list(packed.texts)
        self._places = {text: place for place, text in enumerate(self._texts)}

    def _place(self, text: str) -> int:
        place = self._places.setdefault(text, len(self._texts))
        if place == len(self._texts):
            self._texts.append(text)
        return place


class GrowingColumns:
    """The columns of a catalogue that lives."""

    def __init__(self, columns: Columns) -> None:
        self._columns = {name: GrowingColumn(column.kind, column) for name, column in columns.items()}

    def checked(self, given: Mapping[str, Any], count: int) -> dict[str, list[Value]]:
        """Return values (n,) by column as Python has them.

        Raises ConstraintError for a column that there is not, and for wrong values of one.
        """
        values = {name: _with_none(each) for name, each in given.items()}
        for name, each in values.items():
            column = self._columns.get(name)
            if column is None:
                there = ", ".join(self._columns) or "none"
                raise ConstraintError(
                    f"names {name!r:.100}, and the catalogue has the columns: {there}", argument="columns"
                )
            if len(each) != count:
                raise ConstraintError(
                    f"the column {name!r} has {len(each):,} values for {count:,} items: one each is needed",
                    argument="columns",
                )
            column.check(name, each)
        return values

    def append(self, values: Mapping[str, Sequence[Any]], count: int) -> None:
        """Append values (n,) of new items; columns that are not named have none."""
        for name, column in self._columns.items():
            if name in values:
                column.append(values[name])
            else:
                column.append_none(count)

    def set(self, rows: NDArray[np.int64], values: Mapping[str, Sequence[Any]]) -> None:
        """Change the values of rows (n,) in the columns that are named."""
        for name, each in values.items():
            self._columns[name].set(rows, each)

    def at(self, rows: NDArray[np.int64]) -> dict[str, list[Value]]:
        """Return the values of rows (n,)."""
        return {name: column.at(rows) for name, column in self._columns.items()}

    def view(self) -> dict[str, Column]:
        """Return the columns as they are now."""
        return {name: column.view() for name, column in self._columns.items()}


def check_name(name: str) -> None:
    """Raise ConstraintError for what cannot be the name of a column."""
    named = isinstance(name, str) and name.isidentifier() and not keyword.iskeyword(name) and name not in _RESERVED
    if not named or unicodedata.normalize("NFKC", name) != name:  # as Python reads it in an expression
        raise ConstraintError(
            f"the column {name!r:.100} needs another name: letters, digits and _, in Unicode's form NFKC, no keyword "
            f"of Python, and none of {', '.join(_RESERVED)}",
            argument="columns",
        )


def columns_of(given: Mapping[str, Any] | None, count: int) -> dict[str, Column]:
    """Return columns of values (N,), as `Column.of` each."""
    return {name: Column.of(name, values, count) for name, values in (given or {}).items()}


def named_arrays(columns: Columns) -> dict[str, NDArray[Any]]:
    """Return the arrays of columns by the names that they have in a file."""
    return {
        f"column.{name}.{part}": array for name, column in columns.items() for part, array in column.arrays().items()
    }


def from_named(kinds: Mapping[str, Kind], named: Mapping[str, NDArray[Any]], count: int) -> dict[str, Column]:
    """Return the columns that `named_arrays` named. Raises TableError, KeyError."""
    found = {}
    for name, kind in kinds.items():
        begin = f"column.{name}."
        arrays = {key.removeprefix(begin): array for key, array in named.items() if key.startswith(begin)}
        found[name] = Column.from_arrays(kind, arrays, count)
    return found


def _with_none(given: Any) -> list[Any]:
    """Return values as Python has them, None for NaN."""
    return [None if isinstance(value, float) and math.isnan(value) else value for value in python_values(given)]


def _from_numbers(name: str, given: NDArray[Any], known: NDArray[np.bool_]) -> Column:
    """Return the column of an array of booleans or numbers; NaN is missing. Raises ConstraintError."""
    if given.dtype.kind == "b":
        return Column("bool", given.copy(), known)
    if given.dtype.kind in "iu":
        if given.dtype.kind == "u" and given.size and int(given.max()) >= _MOST:
            raise ConstraintError(f"the column {name!r} has {given.max()}: integers have 64 bits", argument="columns")
        return Column("int", given.astype(np.int64), known)
    values = given.astype(np.float64)
    if np.isinf(values[known]).any():
        raise ConstraintError(f"the column {name!r} has an infinite value: numbers are finite", argument="columns")
    known = known & ~np.isnan(values)
    return Column("float", np.where(known, values, 0.0), known)


def _from_arrow(name: str, given: Any) -> Column:
    """Return the column of an Arrow column. Raises ConstraintError for a type that no column has."""
    import pyarrow as pa

    array = given.combine_chunks() if isinstance(given, pa.ChunkedArray) else given
    if isinstance(array, pa.ChunkedArray):  # without chunks, or too long for one
        array = pa.concat_arrays(array.chunks) if array.num_chunks else pa.array([], array.type)
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    known = array.is_valid().to_numpy(zero_copy_only=False)
    kind = array.type
    if pa.types.is_boolean(kind):
        return Column("bool", array.fill_null(False).to_numpy(zero_copy_only=False), known)
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return _from_numbers(name, array.fill_null(0).to_numpy(zero_copy_only=False), known)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        coded = array.dictionary_encode()
        places = coded.indices.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int32)
        return Column("str", places, known, coded.dictionary.to_pylist())
    raise ConstraintError(
        f"the column {name!r} holds {kind}: columns are of booleans, integers, numbers or strings", argument="columns"
    )


def wrong_value(kind: Kind, value: Any) -> str:
    """Return why a value is not of a kind, "" if it is."""
    own = type(value)
    if kind == "float":
        right = math.isfinite(value) if own is float else own is int and -_MOST_FLOAT <= value <= _MOST_FLOAT
    elif kind == "int":
        right = own is int and -_MOST <= value < _MOST
    elif kind == "bool":
        right = own is bool
    else:
        right = own is str
        if right and not value.isascii():
            try:
                value.encode()
            except UnicodeEncodeError:
                return "a lone surrogate, which no UTF-8 spells"
    if right:
        return ""
    named = {"float": "finite numbers", "int": "integers of 64 bits", "bool": "booleans", "str": "strings"}
    return f"the column is of {named[kind]}"
