"""`UpdateLog`: updates of a live set or a live catalogue in a file, each of them whole or not there.

The file is a header and records: `<length u32> <CRC-32 u32> <kind u8> <update>`, numbers little-endian. The CRC is of
the kind and the update. A record that is cut off or damaged at the end was not acknowledged, and is cut away. A damaged
one before a whole one is an error: what follows it was acknowledged.
"""

from __future__ import annotations

import os
import struct
import uuid
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

try:
    import fcntl
except ImportError:  # Windows has no such locks: nothing keeps two live sets apart there
    fcntl = None  # type: ignore[assignment]

from ..errors import Advice, ConstraintError, TableFileError
from .file import sync

INSERT, DELETE, PUT = 1, 2, 3

SIDS, ITEMS = b"MWLIVE1\n", b"MWITEM1\n"
"""How logs begin, of live sets and of live catalogues."""

_OWNERS = {SIDS: "live set", ITEMS: "live catalogue"}
_HEADER = struct.Struct("<8sIIQI")  # magic, V, L, rows of the base, CRC of its arrays
_SAME = 16  # bytes of magic, V and L, which all logs of one catalogue have
_RECORD = struct.Struct("<II")
MOST_BYTES = 2**32 - 1  # of a kind and an update


@dataclass(frozen=True)
class Covered:
    """How much of an earlier log a base has in it: the header of that log, and where the rest begins."""

    header: bytes
    end: int


class UpdateLog:
    """Updates since one base, in a file that is made where there is none.

    header: as `header_of` the base. covered: what the base has in it of the log before; a crash may have kept `restart`
    from putting a new one in its place.

    One live set at a time writes to a file: the log holds an exclusive lock on it until `close`, on POSIX systems.

    Raises TableFileError for a file that is no log, one of another base, and one that another live set writes to.
    """

    def __init__(self, path: Path, header: bytes, covered: Covered | None = None) -> None:
        self.path, self._header = path, header
        self._file = _locked(path)
        try:
            found = os.pread(self._file, _HEADER.size, 0)
            if len(found) < _HEADER.size and header.startswith(found):  # new, or it was cut off while it was made
                os.ftruncate(self._file, 0)
                os.pwrite(self._file, header, 0)
                os.fsync(self._file)
                sync(path.parent)
            self._header, self._begin = _beginning(path, self._file, header, covered)
        except BaseException:
            self.close()
            raise
        self._end = self._begin

    def close(self) -> None:
        """Close the file, after which another live set may write to it."""
        handle, self._file = getattr(self, "_file", -1), -1
        if handle >= 0:
            os.close(handle)

    __del__ = close

    @property
    def covered(self) -> Covered:
        """All that is in the log now."""
        return Covered(self._header, self._end)

    def restart(self, header: bytes, covered: Covered) -> None:
        """Replace this log by one that begins with a new base. The new base holds all that was `covered`.

        The base must be on the disk before. Whenever a crash comes, either log is whole. Raises OSError, after which
        this log goes on.
        """
        temporary = self.path.with_name(f"{self.path.name}.{uuid.uuid4().hex}.part")
        handle = -1
        try:
            handle = _locked(temporary)
            write(handle, header + os.pread(self._file, self._end - covered.end, covered.end), 0)
            os.fsync(handle)
            os.replace(temporary, self.path)
        except BaseException:
            if handle >= 0:
                os.close(handle)
            temporary.unlink(missing_ok=True)
            raise
        os.close(self._file)
        self._end += _HEADER.size - covered.end
        self._file, self._header, self._begin = handle, header, _HEADER.size
        sync(self.path.parent)

    def recover(self) -> Iterator[tuple[int, bytes]]:
        """Yield the kind and the bytes of each update, and cut away what comes after the last whole one."""
        data, at = self.path.read_bytes(), self._begin
        for kind, update, end in _records(data, at):
            yield kind, update
            at = end
        if _is_damaged(data, at):
            raise _damaged(self.path, at)
        os.ftruncate(self._file, at)
        os.fsync(self._file)
        self._end = at

    def append(self, kind: int, update: bytes) -> None:
        """Write an update; it is on the disk when this returns, or OSError is raised and it is not in the log.

        Raises ConstraintError for one that is too long for a record.
        """
        body = bytes([kind]) + update
        if len(body) > MOST_BYTES:
            raise ConstraintError(
                f"an update of {len(body):,} bytes is more than a log can hold in one record, {MOST_BYTES:,}",
                remedies=[Advice("Make it in several calls.")],
            )
        record = _RECORD.pack(len(body), zlib.crc32(body)) + body
        try:
            write(self._file, record, self._end)
            os.fsync(self._file)
        except OSError:
            os.ftruncate(self._file, self._end)
            raise
        self._end += len(record)


class LogReader:
    """The updates that another process writes to a log, read while it writes: no lock is held, and nothing is written.

    header, covered: as of `UpdateLog`. covered_now: returns what the base on the disk covers now, None where it covers
    nothing. Once the writer has saved its base, the log begins anew, and reading goes on in the new one.

    Raises FileNotFoundError, and TableFileError for a file that is no log and one of another base.
    """

    def __init__(
        self, path: Path, header: bytes, covered: Covered | None, covered_now: Callable[[], Covered | None]
    ) -> None:
        self.path, self._covered_now = path, covered_now
        self._file = os.open(path, os.O_RDONLY)
        try:
            self._header, self._at = _beginning(path, self._file, header, covered)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the file."""
        handle, self._file = getattr(self, "_file", -1), -1
        if handle >= 0:
            os.close(handle)

    __del__ = close

    def new(self) -> list[tuple[int, bytes]]:
        """Return the kind and the bytes of each update that is whole and was not returned before.

        Raises FileNotFoundError for a log that is gone; TableFileError for one that is damaged before its end or has
        less in it than was read, and where another took its place whose base covers none of this one, or more than was
        read.
        """
        replaced = not os.path.samestat(os.fstat(self._file), os.stat(self.path))
        found = self._whole_records()  # a log that was replaced has its last record by now
        if replaced and self._go_on():
            found += self._whole_records()
        return found

    def _whole_records(self) -> list[tuple[int, bytes]]:
        size = os.fstat(self._file).st_size
        if size == self._at:
            return []
        if size < self._at:
            raise TableFileError(
                f"{self.path} has {size:,} bytes, and {self._at:,} were read before",
                remedies=[Advice("Restore the file from a copy.")],
            )
        for last in (False, True):
            data, at = _read(self._file, self._at), 0
            found = []
            for kind, update, end in _records(data, 0):
                found.append((kind, update))
                at = end
            # a record may be written while it is read, and one after it too: only damage is there when read again
            if not _is_damaged(data, at):
                break
            if last:
                raise _damaged(self.path, self._at + at)
        self._at += at
        return found

    def _go_on(self) -> bool:
        """Go on in the log that is in the place of this one; return False while it has no whole header."""
        handle = os.open(self.path, os.O_RDONLY)
        try:
            header, covered = os.pread(handle, _HEADER.size, 0), self._covered_now()
            if len(header) < _HEADER.size:
                return False
            if covered is None or (covered.header, header[:_SAME]) != (self._header, self._header[:_SAME]):
                raise TableFileError(f"{self.path} is a log of another base", remedies=[Advice("Open both anew.")])
            if covered.end > self._at:
                raise _shorter(self.path)
            handle, self._file = self._file, handle
            self._header, self._at = header, _HEADER.size + self._at - covered.end
            return True
        finally:
            os.close(handle)


def check_apart(base: str | os.PathLike[str], log: Path) -> None:
    """Raise ConstraintError if the file of a base is that of a log."""
    if Path(base).resolve() == log.resolve() or (Path(base).exists() and log.exists() and log.samefile(base)):
        raise ConstraintError(
            f"{base} is the log of this live set: base and log are two files", argument="save",
            remedies=[Advice("Give another path for the base.")],
        )  # fmt: skip


def _beginning(path: Path, handle: int, header: bytes, covered: Covered | None) -> tuple[bytes, int]:
    """Return the header of a log, and where the updates begin that its base does not have. Raises TableFileError."""
    found = os.pread(handle, _HEADER.size, 0)
    if found == header:
        return found, _HEADER.size
    if covered is None or found != covered.header:
        magic = header[: len(SIDS)]
        kind = "a log of another base" if found.startswith(magic) else f"no log of a {_OWNERS[magic]}"
        raise TableFileError(
            f"{path} is {kind}", remedies=[Advice("Give the base it was begun with, or another path.")]
        )
    if os.fstat(handle).st_size < covered.end:
        raise _shorter(path)
    return found, covered.end


def _records(data: bytes, at: int) -> Iterator[tuple[int, bytes, int]]:
    """Yield the kind and the bytes of each update from a byte on, and where it ends, up to the last whole one."""
    while _is_whole(data, at):
        size, _ = _RECORD.unpack_from(data, at)
        body, at = at + _RECORD.size, at + _RECORD.size + size
        yield data[body], data[body + 1 : at], at


def _is_damaged(data: bytes, at: int) -> bool:
    """Return whether a record that is not whole, at a byte, has a whole one behind it."""
    if at + _RECORD.size > len(data):
        return False
    size, _ = _RECORD.unpack_from(data, at)
    return _is_whole(data, at + _RECORD.size + size)


def _shorter(path: Path) -> TableFileError:
    return TableFileError(
        f"{path} has less in it than the base that was saved from it",
        remedies=[Advice("Restore the file from a copy.")],
    )


def _damaged(path: Path, at: int) -> TableFileError:
    return TableFileError(
        f"{path} is damaged at byte {at}, and updates after it are whole",
        remedies=[Advice("Restore the file from a copy, or cut it there and lose those updates.")],
    )


def _read(handle: int, at: int) -> bytes:
    """Return all bytes of a file from a place on."""
    parts = []
    while part := os.pread(handle, 1 << 26, at):
        parts.append(part)
        at += len(part)
    return b"".join(parts)


def _is_whole(data: bytes, at: int) -> bool:
    """Return whether a whole record begins at a byte."""
    if at + _RECORD.size > len(data):
        return False
    size, checksum = _RECORD.unpack_from(data, at)
    body = data[at + _RECORD.size : at + _RECORD.size + size]
    return bool(size) and len(body) == size and zlib.crc32(body) == checksum


def header_of(magic: bytes, vocab_size: int, length: int, rows: int, arrays: Iterable[NDArray[Any]]) -> bytes:
    """Return how a log of a base begins, of which these are all arrays."""
    found = 0
    for array in arrays:
        found = zlib.crc32(np.ascontiguousarray(array, array.dtype.newbyteorder("<")).data, found)
    return _HEADER.pack(magic, vocab_size, length, rows, found)


def write(handle: int, data: bytes, at: int) -> None:
    """Write all bytes at a place."""
    written = 0
    while written < len(data):
        written += os.pwrite(handle, data[written:], at + written)


def _locked(path: Path) -> int:
    """Return the file at a path, made where there is none, with an exclusive lock. Raises TableFileError.

    The lock goes with the process.
    """
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            if fcntl is not None:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(handle), os.stat(path)):
                return handle
        except FileNotFoundError:  # another log took its place meanwhile, and went
            pass
        except BlockingIOError:
            os.close(handle)
            raise TableFileError(
                f"another live set writes to {path}",
                remedies=[Advice("Give each its own log, or close() the other one first.")],
            ) from None
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)
