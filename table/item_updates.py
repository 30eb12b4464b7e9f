"""Updates of a live catalogue as bytes, which its log holds.

An insert is the number of items (u32), their tokens (N, L) u32, and their ids: (N,) i64; or, of strings, the bytes of
each, (N,) i64, and their text. A delete is rows of items, (N,) i64. A put is the bytes of an insert behind their number
(u32), rows that go and rows whose columns change, each (N,) i64 behind their number (u32); and as JSON the values of
columns, of inserted items and of rows that change: [{name: [value, ..]}, {name: [value, ..]}]. All numbers are
little-endian.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .item_ids import ItemIds

_COUNT = struct.Struct("<I")


def bytes_of_insert(tokens: NDArray[Any], ids: ItemIds) -> bytes:
    """Return the bytes of inserted items, which have tokens (N, L)."""
    parts = [_COUNT.pack(len(tokens)), np.ascontiguousarray(tokens, "<u4").tobytes()]
    if ids.numbers is not None:
        return b"".join([*parts, np.ascontiguousarray(ids.numbers, "<i8").tobytes()])
    assert ids.starts is not None
    assert ids.text is not None
    return b"".join([*parts, np.diff(ids.starts).astype("<i8").tobytes(), ids.text.tobytes()])


def insert_of_bytes(update: bytes, length: int, strings: bool) -> tuple[NDArray[np.uint32], ItemIds]:
    """Return tokens (N, L) and ids of inserted items. strings: of which kind the ids are."""
    (count,) = _COUNT.unpack_from(update)
    tokens = np.frombuffer(update, "<u4", count * length, _COUNT.size).astype(np.uint32).reshape(-1, length)
    at = _COUNT.size + tokens.nbytes
    numbers = np.frombuffer(update, "<i8", count, at).astype(np.int64)
    if not strings:
        return tokens, ItemIds(numbers, None, None)
    text = np.frombuffer(update, np.uint8, offset=at + numbers.nbytes)
    return tokens, ItemIds(None, text, np.append(0, np.cumsum(numbers)))


def bytes_of_delete(rows: NDArray[np.int64]) -> bytes:
    """Return the bytes of rows (N,) whose items were deleted."""
    return np.ascontiguousarray(rows, "<i8").tobytes()


def delete_of_bytes(update: bytes) -> NDArray[np.int64]:
    """Return the rows (N,) whose items were deleted."""
    return np.frombuffer(update, "<i8").astype(np.int64)


class Put(NamedTuple):
    """Items that come, rows that go, and rows whose columns change, all at once."""

    tokens: NDArray[Any]  # (n, L) of items that come
    ids: ItemIds  # (n,)
    values: Mapping[str, Sequence[Any]]  # (n,) each, of columns
    gone: NDArray[np.int64]  # rows
    changed: NDArray[np.int64]  # (k,) rows
    changes: Mapping[str, Sequence[Any]]  # (k,) each, of columns

    def to_bytes(self) -> bytes:
        """Return the bytes of the put."""
        insert = bytes_of_insert(self.tokens, self.ids)
        parts = [_COUNT.pack(len(insert)), insert]
        for rows in (self.gone, self.changed):
            parts += [_COUNT.pack(len(rows)), bytes_of_delete(rows)]
        return b"".join([*parts, json.dumps([self.values, self.changes], separators=(",", ":")).encode()])

    @classmethod
    def of_bytes(cls, update: bytes, length: int, strings: bool) -> Put:
        """Return the put that bytes are of; arguments as of `insert_of_bytes`."""
        (size,) = _COUNT.unpack_from(update)
        at = _COUNT.size + size
        tokens, ids = insert_of_bytes(update[_COUNT.size : at], length, strings)
        rows = []
        for _ in range(2):
            (count,) = _COUNT.unpack_from(update, at)
            at += _COUNT.size + 8 * count
            rows.append(delete_of_bytes(update[at - 8 * count : at]))
        values, changes = json.loads(update[at:])
        return cls(tokens, ids, values, rows[0], rows[1], changes)
