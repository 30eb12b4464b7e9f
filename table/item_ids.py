"""Ids of items, integers or strings, one for each input row of a set: few bytes an id, and no object a row."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import ConstraintError, TableError

ItemId = int | str


def python_values(given: Any) -> list[Any]:
    """Return the values of an array, a list or an Arrow column as Python has them."""
    if hasattr(given, "to_pylist"):
        return list(given.to_pylist())
    if hasattr(given, "tolist"):
        given = given.tolist()
    return [value.item() if isinstance(value, np.generic) else value for value in given]


_MOST = 1 << 63
_TAKEN_AT_ONCE = 1 << 18  # strings whose bytes are looked up at once, at 16 bytes each


@dataclass(frozen=True, eq=False)
class ItemIds:
    """N ids. Integers have 64 bits; strings lie in one text of UTF-8, with where each begins."""

    numbers: NDArray[np.int64] | None  # (N,), of integers
    text: NDArray[np.uint8] | None  # (K,), of strings
    starts: NDArray[np.int64] | None  # (N + 1,), of strings

    @classmethod
    def of(cls, ids: Any) -> ItemIds:
        """Return ids from an array, a list or an Arrow column of integers or of strings.

        Raises ConstraintError naming the row of an id that is null or neither.
        """
        if type(ids).__module__.split(".")[0] == "pyarrow":
            return _from_arrow(ids)
        if isinstance(ids, (list, tuple)) and any(isinstance(value, str) for value in ids[:1]):
            return _from_strings(list(ids))  # an array would have the longest's room for each
        array = ids if isinstance(ids, np.ndarray) else np.asarray(ids, None if len(ids) else np.int64)
        if array.ndim != 1:
            raise ConstraintError(f"item ids must have shape (N,), not {array.shape}")
        if array.dtype.kind == "u" and array.size and array.max() > np.iinfo(np.int64).max:
            row = int(array.argmax())
            raise ConstraintError(f"row {row} has item id {array[row]}: integers must fit 64 bits with a sign")
        if array.dtype.kind in "iu":
            return cls(array.astype(np.int64), None, None)
        values = list(ids) if array.dtype.kind in "US" and not isinstance(ids, np.ndarray) else array.tolist()
        return _from_strings(values)

    @classmethod
    def joined(cls, parts: Sequence[ItemIds]) -> ItemIds:
        """Return the ids of several parts, one behind the other. Raises ConstraintError for a mix of kinds."""
        if all(part.numbers is not None for part in parts):
            return cls(np.concatenate([part.numbers for part in parts if part.numbers is not None]), None, None)
        texts = [part.text for part in parts if part.text is not None]
        if len(texts) < len(parts):
            raise ConstraintError("item ids are integers in one part and strings in another: make all of them one kind")
        lengths = [np.diff(part.starts) for part in parts if part.starts is not None]
        return cls(None, np.concatenate(texts), np.append(0, np.cumsum(np.concatenate(lengths))))

    @classmethod
    def from_names(cls, arrays: dict[str, NDArray[Any]]) -> ItemIds:
        """Return the ids that `by_name` named, out of a file. Raises TableError for arrays that are none of ids."""
        found = cls(arrays.get("items.numbers"), arrays.get("items.text"), arrays.get("items.starts"))
        found._check()
        return found

    def _check(self) -> None:
        numbers, text, starts = self.numbers, self.text, self.starts
        if numbers is not None and text is None and starts is None:
            if numbers.ndim != 1 or numbers.dtype != np.int64:
                raise TableError(f"item ids must be int64 (N,), not {numbers.dtype} {numbers.shape}")
            return
        if numbers is not None or text is None or starts is None:
            raise TableError("item ids must be numbers, or a text and where each begins")
        if text.ndim != 1 or text.dtype != np.uint8 or starts.ndim != 1 or starts.dtype != np.int64 or not starts.size:
            raise TableError("the text of item ids must be uint8 (K,), their starts int64 (N + 1,)")
        if starts[0] != 0 or starts[-1] != text.size or (np.diff(starts) < 0).any():
            raise TableError("starts of item ids must begin with 0, rise, and end with the size of their text")
        try:
            text.tobytes().decode()
        except UnicodeDecodeError as error:
            raise TableError(f"the text of item ids is not UTF-8: byte {error.start} is not") from None
        if (text[starts[starts < text.size]] & 0xC0 == 0x80).any():
            raise TableError("an item id begins in the middle of a character")

    def by_name(self) -> dict[str, NDArray[Any]]:
        """Return the arrays by the names that they have in a file."""
        named = {"items.numbers": self.numbers, "items.text": self.text, "items.starts": self.starts}
        return {name: array for name, array in named.items() if array is not None}

    def __len__(self) -> int:
        if self.numbers is not None:
            return len(self.numbers)
        return 0 if self.starts is None else len(self.starts) - 1

    def __iter__(self) -> Iterator[ItemId]:
        return iter(self.at(np.arange(len(self))))

    def __getitem__(self, row: int) -> ItemId:
        return self.at(np.array([range(len(self))[row]]))[0]

    def at(self, rows: NDArray[Any]) -> list[ItemId]:
        """Return the ids of rows (n,)."""
        if self.numbers is not None:
            return list(self.numbers[rows].tolist())
        assert self.text is not None
        assert self.starts is not None
        bounds = zip(self.starts[rows].tolist(), self.starts[rows + 1].tolist(), strict=True)
        return [self.text[begin:end].tobytes().decode() for begin, end in bounds]

    def take(self, rows: NDArray[Any]) -> ItemIds:
        """Return the ids of rows (n,).

        >>> list(ItemIds.of(["hat", "shoe"]).take(np.array([1, 0])))
        ['shoe', 'hat']
        """
        if self.numbers is not None:
            return ItemIds(self.numbers[rows], None, None)
        assert self.text is not None
        assert self.starts is not None
        lengths = np.diff(self.starts)[rows]
        starts = np.append(0, np.cumsum(lengths))
        text = np.empty(starts[-1], np.uint8)
        for low in range(0, len(rows), _TAKEN_AT_ONCE):
            part = slice(low, low + _TAKEN_AT_ONCE)
            begin, stop = starts[low], starts[min(low + _TAKEN_AT_ONCE, len(rows))]
            places = np.repeat(self.starts[rows[part]] - starts[:-1][part], lengths[part]) + np.arange(begin, stop)
            text[begin:stop] = self.text[places]
        return ItemIds(None, text, starts)

    @property
    def nbytes(self) -> int:
        """Bytes of all ids."""
        return sum(array.nbytes for array in self.by_name().values())

    def __repr__(self) -> str:
        kind = "integers" if self.numbers is not None else "strings"
        return f"ItemIds({len(self):,} {kind}, {self.nbytes:,} bytes)"


class IdIndex:
    """The rows of items by their ids: those of the first rows, and of rows that come later.

    It is worked out when it is first asked. Any thread may ask; one at a time appends.
    """

    def __init__(self, ids: ItemIds) -> None:
        self._ids = ids
        self._later: dict[ItemId, list[int]] = {}
        self._lock = threading.Lock()
        self._built: tuple[NDArray[Any], NDArray[np.int32], int] | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Return what is copied: the lock is not."""
        return {"_ids": self._ids, "_later": self._later, "_built": self._built}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=threading.Lock())

    def append(self, first: int, ids: ItemIds) -> None:
        """Take ids of later rows, from row `first` on."""
        for row, each in enumerate(ids, start=first):
            self._later.setdefault(each, []).append(row)

    def rows(self, ids: Sequence[ItemId], count: int) -> list[NDArray[np.int64]]:
        """Return for each id its rows below `count`, ascending; none for an id that no item has."""
        if self._built is None:
            with self._lock:
                self._built = self._built or self._sorted()
        keys, order, longest = self._built
        own = str if self._ids.numbers is None else int
        found = [self._later.get(each, [])[:] if type(each) is own else [] for each in ids]
        # a text of more characters than all ids have bytes is looked for no further, however long it is
        asked = [at for at, each in enumerate(ids) if type(each) is own and _may_be(each, longest)]
        if asked:
            wanted = index_keys(_ids_of([ids[at] for at in asked]))
            low = np.searchsorted(keys, wanted)
            counts = np.searchsorted(keys, wanted, "right") - low
            rows = order[np.repeat(low + counts - np.cumsum(counts), counts) + np.arange(counts.sum())]
            earlier: dict[int, list[int]] = {}
            for at, row, each in zip(np.repeat(asked, counts).tolist(), rows.tolist(), self._ids.at(rows), strict=True):
                if each == ids[at]:  # keys of strings are hashes
                    earlier.setdefault(at, []).append(row)
            for at, first in earlier.items():
                found[at] = first + found[at]
        return [np.array([row for row in rows if row < count], np.int64) for rows in found]

    def _sorted(self) -> tuple[NDArray[Any], NDArray[np.int32], int]:
        """Return the keys of the first rows in order, the row of each, and the bytes of the longest id."""
        keys = index_keys(self._ids)
        order = np.argsort(keys, kind="stable").astype(np.int32)
        longest = 0 if self._ids.starts is None else int(np.diff(self._ids.starts).max(initial=0))
        return keys[order], order, longest


def _may_be(each: ItemId, longest: int) -> bool:
    """Return whether an id may be among some: of integers of 64 bits, or of strings of so many bytes at most."""
    return len(each) <= longest if isinstance(each, str) else -_MOST <= each < _MOST


def _ids_of(values: list[Any]) -> ItemIds:
    """Return ids that are all of one kind. A lone surrogate makes a string that equals none of others."""
    if isinstance(values[0], int):
        return ItemIds(np.array(values, np.int64), None, None)
    return _of_bytes([value.encode("utf-8", "surrogatepass") for value in values])


def index_keys(ids: ItemIds) -> NDArray[Any]:
    """Return what ids are sorted by: integers themselves, hashes of 64 bits of strings."""
    if ids.numbers is not None:
        return ids.numbers
    assert ids.text is not None
    assert ids.starts is not None
    starts, lengths = ids.starts[:-1], np.diff(ids.starts)
    text = np.append(ids.text, np.zeros(8, np.uint8))
    words = np.ndarray(len(text) - 7, "<u8", text, strides=(1,))  # the 8 bytes from each byte on
    found = lengths.astype(np.uint64) * _PRIME
    for at in range(0, int(lengths.max(initial=0)), 8):
        left = np.flatnonzero(lengths > at)
        part = words[starts[left] + at] & _FIRST_BYTES[np.minimum(lengths[left] - at, 8)]
        part = (found[left] ^ part) * _PRIME
        found[left] = part ^ (part >> np.uint64(29))
    return found


_PRIME = np.uint64(0x9E3779B97F4A7C15)
_FIRST_BYTES = np.array([(1 << 8 * count) - 1 for count in range(9)], np.uint64)


def _from_strings(values: list[Any]) -> ItemIds:
    """Return ids that must be strings."""
    encoded = []
    for row, value in enumerate(values):
        if not isinstance(value, str):
            raise ConstraintError(f"row {row} has item id {value!r}: all ids must be integers, or all strings")
        try:
            encoded.append(value.encode())
        except UnicodeEncodeError:
            raise ConstraintError(
                f"row {row} has item id {value!r}: it has a lone surrogate, which no UTF-8 spells"
            ) from None
    return _of_bytes(encoded)


def _of_bytes(encoded: list[bytes]) -> ItemIds:
    """Return ids that are strings, of which these are the bytes."""
    lengths = np.fromiter(map(len, encoded), np.int64, len(encoded))
    return ItemIds(None, np.frombuffer(b"".join(encoded), np.uint8), np.append(0, np.cumsum(lengths)))


def _from_arrow(column: Any) -> ItemIds:
    """Return the ids of an Arrow column."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if isinstance(column, pa.ChunkedArray):
        return ItemIds.joined([_from_arrow(chunk) for chunk in column.chunks]) if column.num_chunks else ItemIds.of([])
    if not isinstance(column, pa.Array):
        raise ConstraintError(
            f"a pyarrow {type(column).__name__} was given: pass one column of it, such as table['id']"
        )
    if column.null_count:
        raise ConstraintError(f"row {pc.index(column.is_null(), True).as_py()} has no item id: drop it or give it one")
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if pa.types.is_integer(column.type):
        return ItemIds.of(column.to_numpy(zero_copy_only=False))
    if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
        raise ConstraintError(f"the column of item ids holds {column.type}: ids must be integers or strings")
    column = column.cast(pa.large_string())
    count, first = len(column), column.offset
    _, offsets, text = column.buffers()
    if not count:
        return ItemIds(None, np.empty(0, np.uint8), np.zeros(1, np.int64))
    starts = np.frombuffer(offsets, np.int64, count + 1, 8 * first)
    held = np.empty(0, np.uint8) if text is None else np.frombuffer(text, np.uint8)[starts[0] : starts[-1]]
    return ItemIds(None, held.copy(), starts - starts[0])
