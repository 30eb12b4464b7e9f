"""Files of arrays: safetensors with a header, a version, and a SHA-256 over everything; and the file of a table."""

from __future__ import annotations

import hashlib
import json
import os
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from safetensors import safe_open
from safetensors.numpy import save_file

from ..errors import TableError, TableFileError, VocabularyMismatchError
from .groups import SPECS

FORMAT_VERSION = 5
"""Version of the file format of tables with one end token or none."""

SEVERAL_ENDS_VERSION = 6
"""Version of the file format of tables with several end tokens, so that a reader that knows of one refuses them."""


class FileKind(NamedTuple):
    """A kind of file."""

    key: str  # of the entry of the metadata that has the header
    what: str  # it is, in errors
    version: int  # of a table with one end token or none
    several_ends: int  # version of a table with several; a reader refuses any that it does not know
    again: str  # how to make a file anew
    columns: int | None = None  # version of a catalogue with columns

    def version_of(self, header: Mapping[str, Any]) -> int:
        """Return the version of a file with a header, which is that of a table or has that of a table inside."""
        if self.columns is not None and header.get("columns"):
            return self.columns
        return self.several_ends if "other_ends" in header.get("table", header) else self.version

    @property
    def versions(self) -> list[int]:
        """All versions, each once."""
        known = (self.version, self.several_ends, self.columns)
        return [version for version in dict.fromkeys(known) if version is not None]


def write(path: str | os.PathLike[str], header: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write the arrays of a table, named as in `SPECS`, and a header to one file, in full or not at all."""
    write_arrays(path, _table(), header, {name: arrays[name] for name in SPECS})


def read(path: str | os.PathLike[str], vocabulary: str | None) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Return the header and the arrays of a table's file.

    vocabulary: the fingerprint that the table must have been compiled for, None for any. Raises FileNotFoundError;
    TableFileError for a file that is truncated, not maskwright's, of another format version or changed since it was
    written; VocabularyMismatchError for another vocabulary's.
    """
    return read_arrays(path, _table(), vocabulary, tuple(SPECS))


def _table() -> FileKind:
    again = "build it again from its source, with the `maskwright compile` or `maskwright build` that made it"
    return FileKind("maskwright", "table", FORMAT_VERSION, SEVERAL_ENDS_VERSION, again)


def write_arrays(
    path: str | os.PathLike[str],
    kind: FileKind,
    header: Mapping[str, Any],
    arrays: Mapping[str, NDArray[Any]],
    durable: bool = False,
) -> None:
    """Write arrays and a header to one file of a kind, in full or not at all. durable: it is on the disk on return."""
    target = Path(path)
    if not target.parent.is_dir():
        raise FileNotFoundError(f"there is no folder {target.parent} to save {target.name} in")
    described = {"version": kind.version_of(header), **header}
    described["checksum"] = _checksum(described, arrays)
    temporary = target.with_name(f"{target.name}.{uuid.uuid4().hex}.part")
    try:
        temporary.touch()
        mode = temporary.stat().st_mode
        save_file(dict(arrays), temporary, {kind.key: json.dumps(described, sort_keys=True)})
        temporary.chmod(mode)  # safetensors makes files that only their owner can read
        if durable:
            sync(temporary)
        os.replace(temporary, target)
        if durable:
            sync(target.parent)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def sync(path: Path) -> None:
    """Return when a file, or which files are in a folder, is on the disk. Windows syncs no folders."""
    if os.name == "nt" and path.is_dir():
        return
    handle = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def read_arrays(
    path: str | os.PathLike[str], kind: FileKind, vocabulary: str | None, names: tuple[str, ...] | None = None
) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Return the header and the arrays of a file of a kind; errors as of `read`.

    names: arrays that must be there, in the order in which they count for the checksum; None for those that the header
    lists as "arrays".
    """
    name = os.fspath(path)
    with _opened(name, kind) as (file, header):
        wanted = tuple(header["arrays"]) if names is None else names
        missing = sorted(set(wanted) - set(file.keys()))
        if missing:
            raise TableFileError(f"{name} lacks {', '.join(missing)}: build it again from its source")
        arrays = {key: file.get_tensor(key) for key in wanted}
    checksum = header.pop("checksum", None)
    if checksum != _checksum(header, arrays):
        raise TableFileError(f"{name} was changed after it was written: build it again from its source")
    del header["version"]
    if vocabulary is not None and header.get("vocabulary") != vocabulary:
        raise VocabularyMismatchError(
            f"{name} was compiled for vocabulary {header.get('vocabulary')}, not {vocabulary}: compile it again"
        )
    return header, arrays


def read_header(path: str | os.PathLike[str], kind: FileKind) -> dict[str, Any]:
    """Return the header of a file of a kind, whose arrays are not looked at; errors as of `read`."""
    with _opened(os.fspath(path), kind) as (_, header):
        return header


@contextmanager
def _opened(name: str, kind: FileKind) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Return a context with a file of a kind and its header; what goes wrong in it is said of the file."""
    try:
        with safe_open(name, framework="numpy") as file:
            metadata = file.metadata() or {}
            if kind.key not in metadata:
                raise TableFileError(
                    f"{name} is a safetensors file, but not one that maskwright wrote for a {kind.what}"
                )
            header = dict(json.loads(metadata[kind.key]))
            if header.get("version") not in kind.versions:
                read = " and ".join(map(str, kind.versions))
                raise TableFileError(
                    f"{name} has format version {header.get('version')}, this maskwright reads {read}: {kind.again}"
                )
            yield file, header
    except FileNotFoundError:
        raise FileNotFoundError(f"no {kind.what} at {name}") from None
    except TableError:
        raise
    except Exception as error:  # whatever a reader of damaged files may raise
        raise TableFileError(
            f"{name} is truncated or is not a maskwright {kind.what} ({error}): build it again from its source"
        ) from error


def kind_of(path: str | os.PathLike[str], kinds: tuple[FileKind, ...]) -> FileKind:
    """Return which kind a file is of; the first where it is of none, as whose reader says what is wrong with it."""
    try:
        with safe_open(os.fspath(path), framework="numpy") as opened:
            metadata = opened.metadata() or {}
    except Exception:  # whatever a reader of damaged files may raise
        metadata = {}
    return next((kind for kind in kinds if kind.key in metadata), kinds[0])


def _checksum(header: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> str:
    """Return the SHA-256 over the header and every array's name, type, shape and bytes, in their order."""
    digest = hashlib.sha256(json.dumps(header, sort_keys=True).encode())
    for name, given in arrays.items():
        array = np.ascontiguousarray(given)
        digest.update(f"{name} {array.dtype.str} {array.shape};".encode())
        digest.update(array.view(np.uint8).data if array.size else b"")
    return digest.hexdigest()
