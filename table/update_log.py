"""`UpdateLog`: updates of a live set in a file, each of them whole or not there.

The file is a header and records: `<length u32> <CRC-32 u32> <kind u8> <tokens>`, numbers little-endian, tokens uint32.
The CRC is of the kind and the tokens. A record that is cut off or damaged at the end was not acknowledged, and is cut
away. A damaged one before a whole one is an error: what follows it was acknowledged.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import Advice, TableFileError
from .sorted_matrix import SortedMatrix

INSERT, DELETE = 1, 2

_MAGIC = b"MWLIVE1\n"
_HEADER = struct.Struct("<8sIIQI")  # magic, V, L, Q, CRC of the base's items
_RECORD = struct.Struct("<II")


class UpdateLog:
    """Updates of a live set since one base, in a file that is made where there is none.

    counts: the items of each sequence of the base, (Q,). One live set at a time may write to a file.

    Raises TableFileError for a file that is no log, or one of another base.
    """

    def __init__(self, path: Path, base: SortedMatrix, counts: NDArray[Any]) -> None:
        self._path, self._length = path, base.length
        header = _HEADER.pack(_MAGIC, base.vocab_size, base.length, base.num_sequences, _checksum(base, counts))
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        found = os.pread(self._file, _HEADER.size, 0)
        if len(found) < _HEADER.size and header.startswith(found):  # new, or it was cut off while it was made
            os.ftruncate(self._file, 0)
            os.pwrite(self._file, header, 0)
            os.fsync(self._file)
            _sync_folder(path.parent)
        elif found != header:
            os.close(self._file)
            self._file = -1
            kind = "a log of another base" if found.startswith(_MAGIC) else "no log of a live set"
            raise TableFileError(
                f"{path} is {kind}", remedies=[Advice("Give the base it was begun with, or another path.")]
            )
        self._end = _HEADER.size

    def __del__(self) -> None:
        """Close the file."""
        if getattr(self, "_file", -1) >= 0:
            os.close(self._file)

    def recover(self) -> Iterator[tuple[int, NDArray[np.uint32]]]:
        """Yield the kind and the rows (N, L) of each update, and cut away what comes after the last whole one."""
        data = self._path.read_bytes()
        at = _HEADER.size
        while at + _RECORD.size <= len(data):
            size, checksum = _RECORD.unpack_from(data, at)
            body = data[at + _RECORD.size : at + _RECORD.size + size]
            if len(body) < size or not size or zlib.crc32(body) != checksum:
                if _is_whole(data, at + _RECORD.size + size):
                    raise TableFileError(
                        f"{self._path} is damaged at byte {at}, and updates after it are whole",
                        remedies=[Advice("Restore the file from a copy, or cut it there and lose those updates.")],
                    )
                break
            yield body[0], np.frombuffer(body, "<u4", offset=1).astype(np.uint32).reshape(-1, self._length)
            at += _RECORD.size + size
        os.ftruncate(self._file, at)
        os.fsync(self._file)
        self._end = at

    def append(self, kind: int, rows: NDArray[Any]) -> None:
        """Write an update; it is on the disk when this returns, or OSError is raised and it is not in the log."""
        body = bytes([kind]) + np.ascontiguousarray(rows, "<u4").tobytes()
        record = _RECORD.pack(len(body), zlib.crc32(body)) + body
        try:
            written = 0
            while written < len(record):
                written += os.pwrite(self._file, record[written:], self._end + written)
            os.fsync(self._file)
        except OSError:
            os.ftruncate(self._file, self._end)
            raise
        self._end += len(record)


def _is_whole(data: bytes, at: int) -> bool:
    """Return whether a whole record begins at a byte."""
    if at + _RECORD.size > len(data):
        return False
    size, checksum = _RECORD.unpack_from(data, at)
    body = data[at + _RECORD.size : at + _RECORD.size + size]
    return bool(size) and len(body) == size and zlib.crc32(body) == checksum


def _checksum(base: SortedMatrix, counts: NDArray[Any]) -> int:
    """Return a checksum of a matrix's tokens and of how many items each of its sequences has."""
    found = zlib.crc32(np.ascontiguousarray(counts, "<i8").data)
    for column in base.columns:
        found = zlib.crc32(np.ascontiguousarray(column, column.dtype.newbyteorder("<")).data, found)
    return found


def _sync_folder(folder: Path) -> None:
    """Write to the disk that a file is in a folder."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
