"""What a build of shards is made from: files, columns, offsets, and where shards begin."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import ConstraintError, DataError
from ...kernels.limits import MOST_TOKENS
from ..parquet import import_parquet, parquet_files, reading
from ..sequences import check_vocabulary_size, is_integer
from ..sid_tokens import CodeTokens, with_offsets

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq


PLAN = "plan.json"
ROW, CODES, ITEM, SHARD = "mw_row", "mw_codes", "mw_item", "mw_shard"  # columns of what engines write
WORD_BITS = 62
_RESERVED = "mw_"  # with which the names of all columns begin that a build adds to those of files
_ROW_NUMBER = "file_row_number"  # the one that DuckDB adds


@dataclass(frozen=True)
class DataFile:
    """A Parquet file as it was when the build began."""

    path: str
    bytes: int
    modified: int  # nanoseconds
    first: int  # the number of its first row among all
    rows: int


@dataclass(frozen=True)
class Plan:
    """A build. Two of the same request cut shards at the same places, and make the same files."""

    files: tuple[DataFile, ...]
    sids: tuple[str, ...]  # one column of lists of codes, or columns of one code each
    items: str | None  # the column of ids; None: the number of a row is its id
    text_items: bool  # ids are strings
    vocab_size: int
    offsets: tuple[int, ...]  # (L,)
    shards: int  # as many as were asked for
    splitters: tuple[tuple[int, ...], ...] | None = None  # None: not chosen yet

    @classmethod
    def of(
        cls, dataset: str | os.PathLike[str], vocab_size: int, shards: int, sids: str | Sequence[str],
        items: str | None, offsets: int | Sequence[int],
    ) -> Plan:  # fmt: skip
        """Read what files say of themselves. Raises MissingDependencyError, FileNotFoundError, ConstraintError."""
        check_vocabulary_size(vocab_size)
        if not is_integer(shards) or shards < 1:
            raise ConstraintError(f"must be an integer, 1 or more, not {shards!r}", argument="shards")
        columns = (sids,) if isinstance(sids, str) else tuple(sids)
        files, length, text = _files(Path(dataset), columns, items)
        if not length:
            raise ConstraintError(f"there are no rows in {os.fspath(dataset)}: nothing could be decoded")
        known = with_offsets(offsets, length)
        return cls(files, columns, items, text, int(vocab_size), known.offsets, int(shards))

    @property
    def count(self) -> int:
        """N: rows of all files."""
        return sum(file.rows for file in self.files)

    @property
    def length(self) -> int:
        """L: the codes of an item."""
        return len(self.offsets)

    @property
    def code_tokens(self) -> CodeTokens:
        """Which token stands for which code."""
        return CodeTokens(self.offsets)

    @property
    def num_shards(self) -> int:
        """Shards there will be: fewer than asked for where one ID has as many items as several would."""
        assert self.splitters is not None
        return len(self.splitters) + 1

    @property
    def key(self) -> str:
        """A hash of all of this."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()

    def to_json(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """Return a plan that `to_json` wrote. Raises ValueError, TypeError, KeyError."""
        told = json.loads(text)
        told["files"] = tuple(DataFile(**file) for file in told["files"])
        told["sids"], told["offsets"] = tuple(told["sids"]), tuple(told["offsets"])
        told["splitters"] = tuple(map(tuple, told["splitters"]))
        return cls(**told)

    def place_of(self, row: int) -> str:
        """Say in which file, and where in it, a row of the input stands."""
        file = next(file for file in self.files if row < file.first + file.rows)
        return f"row {row - file.first} of {file.path}"

    def check_unchanged(self) -> None:
        """Raise DataError if a file is not what it was when the build began."""
        for file in self.files:
            path = Path(file.path)
            now = path.stat() if path.exists() else None
            if now is None or (now.st_size, now.st_mtime_ns) != (file.bytes, file.modified):
                raise DataError(f"{path} was changed or removed while shards were built: build in a new folder")


def _files(dataset: Path, sids: tuple[str, ...], items: str | None) -> tuple[tuple[DataFile, ...], int, bool]:
    """Return the files of a dataset, the codes of an item, 0 if there are no rows, and whether ids are strings."""
    pq = import_parquet(dataset)
    found, first, length = [], 0, 0
    kinds: set[str] = set()
    for path in parquet_files(dataset):
        path = path.absolute()
        with reading(path), pq.ParquetFile(path) as file:
            _check_columns(path, file.schema_arrow, sids, items, kinds)
            rows, stat = file.metadata.num_rows, path.stat()
            if rows and not length:
                length = len(sids) if len(sids) > 1 else _length_of_first(path, file, sids[0])
        found.append(DataFile(str(path), stat.st_size, stat.st_mtime_ns, first, rows))
        first += rows
    return tuple(found), length, "strings" in kinds


def _length_of_first(path: Path, file: pq.ParquetFile, column: str) -> int:
    first = next(file.iter_batches(1, columns=[column])).column(0)[0]
    if not first.is_valid or not len(first):
        raise ConstraintError(f"row 0 of {path} has no codes: drop it or give it some")
    return len(first)


def _check_columns(path: Path, schema: pa.Schema, sids: tuple[str, ...], items: str | None, kinds: set[str]) -> None:
    """Raise ConstraintError for a file that lacks a column, or has one of another kind than is needed.

    kinds: what ids of items are, in this file and those before.
    """
    import pyarrow.types as types

    for name in (*sids, *([] if items is None else [items])):
        if name not in schema.names:
            raise ConstraintError(f"{path} has no column {name!r}; it has {', '.join(schema.names)}")
        alike = [other for other in schema.names if other.casefold() == name.casefold()]
        if len(alike) > 1:
            told = " and ".join(map(repr, alike))
            raise ConstraintError(f"{path} has columns {told}, which engines take for one: rename all but {name!r}")
    for name in schema.names:
        if name.casefold().startswith(_RESERVED) or name.casefold() == _ROW_NUMBER:
            raise ConstraintError(
                f"{path} has a column {name!r}, a name that the build gives to columns of its own: rename it"
            )
    for name in sids:
        kind = schema.field(name).type
        is_list = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
        if is_list != (len(sids) == 1) or not types.is_integer(kind.value_type if is_list else kind):
            wanted = "lists of integers" if len(sids) == 1 else "integers"
            raise ConstraintError(f"{path} has column {name!r} of {kind}: {wanted} are needed")
    if items is None:
        return
    kind = schema.field(items).type
    text = types.is_string(kind) or types.is_large_string(kind)
    wide = types.is_uint64(kind)  # no integer of an engine holds these and those with a sign
    if not text and not types.is_integer(kind):
        raise ConstraintError(f"{path} has column {items!r} of {kind}: item ids are integers or strings")
    kinds.add("strings" if text else "uint64" if wide else "integers")
    if len(kinds) > 1:
        raise ConstraintError(f"{path} has column {items!r} of {kind}, others of another kind: make them one")


# ---------------------------------------------------------------------------------------------------- splitters


def splitters_of(sample: np.ndarray[Any, Any], vocab_size: int, shards: int) -> tuple[tuple[int, ...], ...]:
    """Return the codes at which shards begin, but the first: quantiles of a random sample (n, L) of the rows.

    A shard begins at a whole sequence, so that no first code is too heavy. One sequence is never cut. A code that is no
    token is taken for the next one that is, as in `shard_expression`, so that no shard is without rows.

    >>> splitters_of(np.array([[1, 1], [1, 2], [1, 3], [2, 0]]), 4, 2)
    ((1, 3),)
    """
    sample = np.clip(sample, 0, _last_token(vocab_size))
    ordered = sample[np.lexsort(sample.T[::-1])]
    at = [-(-len(ordered) * k // shards) for k in range(1, shards)]
    chosen = {tuple(ordered[min(row, len(ordered) - 1)].tolist()) for row in at}
    return tuple(sorted(chosen - {tuple(ordered[0].tolist())}))


def sample_share(count: int, shards: int) -> float:
    """Return which share of rows a sample needs: 10,000 a shard, whose sizes then deviate by 1 %."""
    return min(1.0, max(200_000, 10_000 * shards) / max(count, 1))


def shard_expression(codes: Sequence[str], vocab_size: int, splitters: Sequence[Sequence[int]]) -> str:
    """Return SQL for the number of the shard that a row is in, alike for all engines.

    codes: SQL of each code (L,), of 64 bits. Codes are packed into words, and compared by a tree of CASE, in as many
    steps as the logarithm of the shards. A code that is no token is taken for the next one that is: the row goes to
    some shard, whose task refuses it by name.
    """
    most = _last_token(vocab_size)
    bits = max(1, most.bit_length())
    per_word = WORD_BITS // bits
    words, numbers = [], []
    for begin in range(0, len(codes), per_word):
        part = range(begin, min(begin + per_word, len(codes)))
        scale = [1 << (bits * (part[-1] - level)) for level in part]
        words.append(
            " + ".join(f"least(greatest({codes[lv]}, 0), {most}) * {s}" for lv, s in zip(part, scale, strict=True))
        )
        numbers.append([sum(min(row[lv], most) * s for lv, s in zip(part, scale, strict=True)) for row in splitters])
    return _tree([f"({word})" for word in words], list(zip(*numbers, strict=True)), 0, len(splitters))


def _last_token(vocab_size: int) -> int:
    return min(vocab_size, MOST_TOKENS) - 1


def _tree(words: list[str], at: list[tuple[int, ...]], low: int, high: int) -> str:
    """Return SQL for how many of the splitters `low` to `high` are not above a row, plus `low`."""
    if low == high:
        return str(low)
    middle = (low + high) // 2
    below = ""
    for word, number in zip(reversed(words), reversed(at[middle]), strict=True):
        below = f"{word} < {number} OR ({word} = {number} AND ({below}))" if below else f"{word} < {number}"
    return f"CASE WHEN {below} THEN {_tree(words, at, low, middle)} ELSE {_tree(words, at, middle + 1, high)} END"
