"""Reading codes and item ids from Parquet files, batch by batch: what is held is the result and one batch."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..automata.sequence_sort import Progress
from ..errors import Advice, ConstraintError, DataError, MissingDependencyError
from ..table.item_ids import ItemIds
from ..vocabulary.vocabulary import Vocabulary
from .columns import Column, check_name, columns_of
from .sequences import rectangle
from .sid_tokens import CodeTokens, code_tokens_of, with_offsets
from .token_names import is_text, tokens_of_names

if TYPE_CHECKING:
    import pyarrow as pa


BATCH = 1 << 17  # rows read at once
_ARROW = (".arrow", ".feather", ".ipc")
_ARROW_MAGIC = (b"ARROW1", b"FEA1")  # of Arrow's format of files, of Feather's first version; its streams have none


class Batch(NamedTuple):
    """Rows that follow each other."""

    first: int  # the number of the first of them among all rows
    codes: NDArray[Any]  # (n, L)
    ids: ItemIds  # (n,)
    columns: tuple[Any, ...] = ()  # of Arrow, (n,) each

    def check_length(self, length: int) -> None:
        """Raise ConstraintError unless semantic IDs are as long as those before."""
        if self.codes.shape[1] != length:
            raise ConstraintError(
                f"row {self.first} has {self.codes.shape[1]} codes, row 0 has {length}: semantic IDs have one length"
            )


class ParquetRows:
    """The rows of a Parquet file, or of all in a folder and those below it: files by their paths, rows as they stand.

    sids: one column of lists of codes, or several of one code each; or of names of tokens, which `vocabulary` knows.
    items: the column of ids, integers or strings.

    Raises MissingDependencyError without pyarrow, FileNotFoundError, ConstraintError for a column that a file lacks,
    DataError for a file that cannot be read.
    """

    def __init__(
        self,
        source: str | os.PathLike[str],
        sids: str | Sequence[str],
        items: str,
        vocabulary: Vocabulary | None = None,
        columns: Sequence[str] = (),
    ) -> None:
        self.columns = (columns,) if isinstance(columns, str) else tuple(columns)
        for name in self.columns:
            check_name(name)  # before a long read
        self._pq, self._vocabulary = import_parquet(source), vocabulary
        self._sids, self._items = [sids] if isinstance(sids, str) else list(sids), items
        self._files = parquet_files(Path(source))
        self.count, self.are_names = 0, False
        for path in self._files:
            with reading(path), self._pq.ParquetFile(path) as file:
                schema, rows = file.schema_arrow, file.metadata.num_rows
            for name in (*self._sids, items, *self.columns):
                if name not in schema.names:
                    raise ConstraintError(f"{path} has no column {name!r}; it has {', '.join(schema.names)}")
            self.are_names |= any(is_text(schema.field(name).type) for name in self._sids)
            self.count += rows

    def batches(self, progress: Progress | None = None) -> Iterator[Batch]:
        """Yield all rows in order, and tell `progress` how many have been read."""
        first = 0
        for path in self._files:
            begin = first
            for part in self._parts(path):
                try:
                    codes, ids = self._codes(part), ItemIds.of(part.column(self._items))
                except ConstraintError as error:
                    where = f"{path}, counting from row {first - begin}" if first > begin else f"{path}"
                    raise ConstraintError(f"{where}: {error.message}", remedies=error.remedies) from None
                yield Batch(first, codes, ids, tuple(map(part.column, self.columns)))
                first += len(part)
                if progress is not None:
                    progress("reading", first, self.count)

    def _codes(self, part: pa.RecordBatch) -> NDArray[Any]:
        """Return the codes of a batch (n, L)."""
        if self.are_names:
            columns = [part.column(name) for name in self._sids]
            named = columns[0] if len(columns) == 1 else list(zip(*(c.to_pylist() for c in columns), strict=True))
            return tokens_of_names(named, self._vocabulary)
        if len(self._sids) == 1:
            return rectangle(part.column(self._sids[0]))
        columns = []
        for name in self._sids:
            column = part.column(name)
            if column.null_count:
                row = int(np.argmax(column.is_null().to_numpy(zero_copy_only=False)))
                raise ConstraintError(f"row {row} of column {name!r} is null: drop it or give it a code")
            array = column.to_numpy(zero_copy_only=False)
            if array.dtype.kind not in "iu":
                raise ConstraintError(f"column {name!r} holds {column.type}: codes must be integers")
            columns.append(array)
        return np.stack(columns, axis=1)

    def _parts(self, path: Path) -> Iterator[Any]:
        """Yield the batches of a file that have rows."""
        with reading(path):
            parts = self._pq.ParquetFile(path).iter_batches(
                BATCH, columns=list(dict.fromkeys([*self._sids, self._items, *self.columns]))
            )
        while True:
            with reading(path):
                part = next(parts, None)
            if part is None:
                return
            if len(part):
                yield part


def import_parquet(source: str | os.PathLike[str]) -> Any:  # pyarrow has no types
    """Return pyarrow's module for Parquet. Raises MissingDependencyError."""
    try:
        import pyarrow.parquet as pq
    except ModuleNotFoundError:
        raise MissingDependencyError(
            f"reading {os.fspath(source)} needs pyarrow: pip install 'maskwright[arrow]'"
        ) from None
    return pq


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Raise DataError for what pyarrow cannot read."""
    import pyarrow

    try:
        yield
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"{path} cannot be read: {error}") from None


def parquet_files(source: Path) -> list[Path]:
    """Return the Parquet files of a source, in the order of their paths, but none whose name begins with . or _.

    Raises FileNotFoundError; DataError saying how to convert Arrow files.
    """
    if not source.is_dir():
        if not source.exists():
            raise FileNotFoundError(f"there is no file and no folder {source}")
        with reading(source), source.open("rb") as opened:
            if source.suffix in _ARROW or opened.read(6).startswith(_ARROW_MAGIC):
                raise _arrow_refused(source)
        return [source]
    found = _files_in(source, ".parquet")
    if not found:
        for path in (path for suffix in _ARROW for path in _files_in(source, suffix)):
            raise _arrow_refused(path)
        raise FileNotFoundError(f"there is no file *.parquet in {source}")
    return found


def _files_in(folder: Path, suffix: str) -> list[Path]:
    return [
        path
        for path in sorted(folder.rglob(f"*{suffix}"))
        if not any(part.startswith((".", "_")) for part in path.relative_to(folder).parts)
    ]


def _arrow_refused(path: Path) -> DataError:
    """Return the error that says how to make Parquet of an Arrow file, whose rows keep their order."""
    with reading(path), path.open("rb") as opened:
        in_file = opened.read(6).startswith(_ARROW_MAGIC)
    read = "feather.read_table(p)" if in_file else "ipc.open_stream(pyarrow.memory_map(p)).read_all()"
    code = (
        "import sys, pyarrow; from pyarrow import feather, ipc, parquet; "
        f"[parquet.write_table({read}, p + '.parquet') for p in sys.argv[1:]]"
    )
    return DataError(
        f"{path} is an Arrow file: catalogues and shards are built from Parquet",
        remedies=[Advice(f'Convert such files: python -c "{code}" {shlex.quote(str(path))}')],
    )


def read_with_offsets(
    rows: ParquetRows, size: int, offsets: int | Sequence[int], report: Progress | None
) -> tuple[NDArray[Any], ItemIds, CodeTokens, dict[str, Column]]:
    """Return tokens (N, L), ids and columns of rows, whose tokens are known batch by batch."""
    known, tokens, parts = CodeTokens(()), np.empty((0, 0), np.int64), []
    columns: list[tuple[Any, ...]] = []
    for batch in rows.batches(report):
        if not batch.first:
            known = with_offsets(offsets, batch.codes.shape[1])
            tokens = np.empty((rows.count, known.length), np.min_scalar_type(size - 1))
        batch.check_length(known.length)
        known.tokens(batch.codes, tokens[batch.first : batch.first + len(batch.codes)], size, batch.first)
        parts.append(batch.ids)
        columns.append(batch.columns)
    return tokens, ItemIds.joined(parts), known, _joined(rows, columns)


def read_with_names(
    rows: ParquetRows, size: int, names: Any, vocabulary: Vocabulary | None, report: Progress | None
) -> tuple[NDArray[Any], ItemIds, CodeTokens, dict[str, Column]]:
    """Return tokens (N, L), ids and columns of rows, whose tokens are known once all codes are."""
    codes, parts = np.empty((0, 0), np.int64), []
    columns: list[tuple[Any, ...]] = []
    for batch in rows.batches(report):
        if not batch.first:
            codes = np.empty((rows.count, batch.codes.shape[1]), np.int64)
        batch.check_length(codes.shape[1])
        codes[batch.first : batch.first + len(batch.codes)] = batch.codes
        parts.append(batch.ids)
        columns.append(batch.columns)
    known = code_tokens_of(codes, 0, names, vocabulary)
    return known.tokens(codes, codes, size), ItemIds.joined(parts), known, _joined(rows, columns)


def _joined(rows: ParquetRows, parts: list[tuple[Any, ...]]) -> dict[str, Column]:
    """Return columns of all rows. Raises ConstraintError."""
    import pyarrow as pa

    try:
        whole = {
            name: pa.chunked_array(list(each))
            for name, each in zip(rows.columns, zip(*parts, strict=True), strict=True)
        }
    except (pa.ArrowInvalid, pa.ArrowTypeError, TypeError) as error:
        raise ConstraintError(f"a column has other types in other files: {error}", argument="columns") from None
    return columns_of(whole, rows.count)
