"""Updates of a live catalogue as bytes, which its log holds.

An insert is the number of items (u32), their tokens (N, L) u32, and their ids: (N,) i64; or, of strings, the bytes of
each, (N,) i64, and their text. A delete is rows of items, (N,) i64. All numbers are little-endian.
"""

from __future__ import annotations

import struct
from typing import Any

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
