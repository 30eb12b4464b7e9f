"""A catalogue in shards: the file of one shard, and the manifest that says which files make up the whole."""

from __future__ import annotations

import hashlib
import json
import os
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import TableError, TableFileError
from . import file
from .item_ids import ItemIds
from .sorted_matrix import SortedMatrix

MANIFEST = "manifest.json"
MANIFEST_VERSION = 1
"""Version of the manifest's format; a reader refuses any other."""

AGAIN = "run the same `maskwright build` again, which makes only what is missing"

_FILE = file.FileKind("maskwright.shard", "shard", 1, 1, "build the shards again, in a new folder")
_MATRIX = ("columns", "item_start", "item_row")


@dataclass(frozen=True, eq=False)
class Shard:
    """The items of a catalogue whose sequences lie in one interval, in the order of the input.

    The matrix has n input rows; `rows` says which of all input rows each of them is.
    """

    matrix: SortedMatrix
    rows: NDArray[np.int64]  # (n,) ascending
    ids: ItemIds  # (n,)

    def __post_init__(self) -> None:
        count = self.matrix.num_items
        if self.rows.shape != (count,) or self.rows.dtype != np.int64 or len(self.ids) != count:
            raise TableError(f"there are {count:,} items, {len(self.rows):,} row numbers and {len(self.ids):,} ids")
        if count and (self.rows[0] < 0 or (np.diff(self.rows) < 1).any()):
            raise TableError("row numbers must begin with 0 or more and rise")

    def save(self, path: str | os.PathLike[str], build: str) -> None:
        """Write the shard to one file, in full or not at all; build: the key of the build that it is of."""
        arrays = {name: getattr(self.matrix, name) for name in _MATRIX} | {"rows": self.rows} | self.ids.by_name()
        header = {"arrays": list(arrays), "build": build, "vocab_size": self.matrix.vocab_size}
        file.write_arrays(path, _FILE, header, arrays)

    @classmethod
    def load(cls, path: str | os.PathLike[str], build: str) -> Shard:
        """Read a shard back. Raises FileNotFoundError; TableFileError if it is damaged or of another build."""
        header, named = file.read_arrays(path, _FILE, None)
        try:
            if header["build"] != build:
                raise TableError("it is a shard of another build")
            for array in named.values():
                array.flags.writeable = False  # given away: the matrix need not copy them
            matrix = SortedMatrix(header["vocab_size"], *(named[name] for name in _MATRIX))
            return cls(matrix, named["rows"], ItemIds.from_names(named))
        except (TableError, TypeError, KeyError, ValueError) as error:
            raise TableFileError(f"{os.fspath(path)} is not a valid shard: {error}") from error


@dataclass(frozen=True)
class ShardRecord:
    """What a manifest says of one shard."""

    file: str  # its name in the folder of the manifest
    sha256: str  # of the file's bytes
    bytes: int  # of the file
    rows: int  # input rows
    sequences: int  # distinct ones
    first: tuple[int, ...]  # (L,) tokens of the first sequence
    last: tuple[int, ...]  # (L,) tokens of the last sequence


@dataclass(frozen=True)
class Manifest:
    """The shards of a finished build, in order: what each file is, and what was built from what.

    Every sequence of a shard lies between its `first` and `last`, and before those of the next shard.
    """

    folder: Path
    build: str  # key of the build: a hash of what it was made from
    vocab_size: int  # V
    offsets: tuple[int, ...]  # (L,) of each level the token of code 0
    dataset: Mapping[str, Any]  # files with sizes and rows, columns
    splitters: tuple[tuple[int, ...], ...]  # of (L,) codes each: where shards begin, but the first
    shards: tuple[ShardRecord, ...]

    def __post_init__(self) -> None:
        """Raise TableError unless the shards follow each other."""
        if not self.shards:
            raise TableError("there are no shards")
        for before, after in pairwise(self.shards):
            if before.last >= after.first:
                raise TableError(f"{after.file} begins before {before.file} ends")
        if any(len(shard.first) != self.length or Path(shard.file).name != shard.file for shard in self.shards):
            raise TableError("a shard has sequences of another length, or a file in another folder")

    @property
    def length(self) -> int:
        """L: the levels."""
        return len(self.offsets)

    @property
    def num_items(self) -> int:
        """N: input rows."""
        return sum(shard.rows for shard in self.shards)

    @property
    def num_sequences(self) -> int:
        """Q: distinct sequences."""
        return sum(shard.sequences for shard in self.shards)

    def save(self) -> None:
        """Write the manifest to its folder, in full or not at all."""
        told = asdict(self)
        del told["folder"]
        told = {"format": "maskwright.shards", "version": MANIFEST_VERSION, **told}
        told["checksum"] = _checksum(told)
        write_text(self.folder / MANIFEST, json.dumps(told, indent=1))

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> Manifest:
        """Read the manifest in a folder.

        Raises FileNotFoundError if there is none, as of a build that did not end; TableFileError if it is damaged or of
        another format version.
        """
        path = Path(folder) / MANIFEST
        try:
            told = json.loads(path.read_text())
            if told["format"] != "maskwright.shards":
                raise TableFileError(f"{path} is no manifest of shards")
            if told.pop("version") != MANIFEST_VERSION:
                raise TableFileError(
                    f"{path} has another format version, this maskwright reads {MANIFEST_VERSION}: {_FILE.again}"
                )
            if told.pop("checksum") != _checksum({**told, "version": MANIFEST_VERSION}):
                raise TableFileError(f"{path} was changed after it was written: {AGAIN}")
            del told["format"]
            told["shards"] = tuple(
                ShardRecord(**{**shard, "first": tuple(shard["first"]), "last": tuple(shard["last"])})
                for shard in told["shards"]
            )
            told["offsets"] = tuple(told["offsets"])
            told["splitters"] = tuple(map(tuple, told["splitters"]))
            return cls(folder=Path(folder), **told)
        except FileNotFoundError:
            raise FileNotFoundError(f"there is no {MANIFEST} in {folder}: the build did not end. {AGAIN}") from None
        except TableFileError:
            raise
        except (TableError, TypeError, KeyError, ValueError, AttributeError) as error:
            raise TableFileError(f"{path} is damaged ({error}): {AGAIN}") from None

    def shard(self, number: int) -> Shard:
        """Read one shard. Raises TableFileError if its file is missing, truncated or not the one that was built."""
        record = self.shards[number]
        path = self.folder / record.file
        if not path.exists():
            raise TableFileError(f"{path} is missing: {AGAIN}")
        if path.stat().st_size != record.bytes or sha256(path) != record.sha256:
            raise TableFileError(f"{path} is truncated or was changed after it was built: {AGAIN}")
        return Shard.load(path, self.build)


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def write_text(path: Path, text: str) -> None:
    """Write a text file in full or not at all."""
    temporary = path.with_name(f"{path.name}.{uuid.uuid4().hex}.part")
    try:
        temporary.write_text(text)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _checksum(told: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a manifest without its checksum."""
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()
