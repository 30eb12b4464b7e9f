"""Files of catalogues: a fixed one with its table, and one that lives with all rows and how much of a log they hold."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import Advice, ConstraintError, TableError, TableFileError
from ..table import file
from ..table.groups import TableArrays
from ..table.item_ids import ItemIds
from ..table.snapshot import Snapshot
from ..table.sorted_matrix import SortedMatrix
from ..table.transition_table import TransitionTable
from ..table.update_log import ITEMS, Covered, header_of
from .columns import Columns, from_named, named_arrays
from .sequences import sort_sids
from .sid_tokens import CodeTokens

FORMAT_VERSION = 1
"""Version of both formats. It is one more with several end tokens, two more with columns; a reader refuses others."""

_AGAIN = "make the catalogue again from its items"
_FIXED = file.FileKind(
    "maskwright.catalogue", "catalogue", FORMAT_VERSION, FORMAT_VERSION + 1, _AGAIN, FORMAT_VERSION + 2
)
_LIVE = file.FileKind(
    "maskwright.live_catalogue", "live catalogue", FORMAT_VERSION, FORMAT_VERSION, "save it again", FORMAT_VERSION + 2
)
_MATRIX = ("columns", "item_start", "item_row")


class CatalogueHeader(NamedTuple):
    """What a catalogue says beside its items."""

    code_tokens: CodeTokens
    vocabulary: str
    metadata: Mapping[str, Any]

    def written(self, **more: Any) -> dict[str, Any]:
        """Return the header as a file has it, but for the names of arrays."""
        return {
            "vocabulary": self.vocabulary,
            "offsets": list(self.code_tokens.offsets),
            "metadata": dict(self.metadata),
            **more,
        }

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the lists of tokens by the names that a file has for them."""
        return {f"codes.{level}": tokens for level, tokens in enumerate(self.code_tokens.lists)}

    @classmethod
    def read(cls, header: Mapping[str, Any], named: Mapping[str, NDArray[Any]], length: int | None) -> CatalogueHeader:
        """Return that of a file whose sequences have a length. Raises TableError, KeyError."""
        lists = tuple(named[name] for name in header["arrays"] if name.startswith("codes."))
        known = CodeTokens(tuple(header["offsets"]), lists)
        if known.length != length:
            raise TableError(f"codes have {known.length} levels, sequences {length} tokens")
        return cls(known, header["vocabulary"], header["metadata"])


class ItemRows(NamedTuple):
    """N items of a catalogue that lives, in the order in which they came."""

    tokens: NDArray[Any]  # (N, L)
    live: NDArray[np.bool_]  # (N,) those that were not deleted
    ids: ItemIds  # (N,)
    columns: Columns  # (N,) each

    @classmethod
    def of(cls, matrix: SortedMatrix, ids: ItemIds, columns: Columns) -> ItemRows:
        """Return the items of a sorted matrix, in the order of its input."""
        tokens = np.empty((matrix.num_items, matrix.length), matrix.columns.dtype)
        order = matrix.item_row if matrix.item_row.size else slice(None)
        counts = np.diff(matrix.item_start) if matrix.item_start.size else 1
        for level, column in enumerate(matrix.columns):
            tokens[order, level] = np.repeat(column, counts)
        return cls(tokens, np.ones(len(tokens), np.bool_), ids, columns)

    def header(self, vocab_size: int) -> bytes:
        """Return how a log begins of what comes after these."""
        arrays = (self.tokens, self.live, *self.ids.by_name().values(), *named_arrays(self.columns).values())
        return header_of(ITEMS, vocab_size, self.tokens.shape[1], len(self.tokens), arrays)


def matrix_of(table: TransitionTable | SortedMatrix | Snapshot, what: str) -> SortedMatrix:
    """Return the sorted matrix of a catalogue with this table. Raises ConstraintError: what needs one, by name."""
    if isinstance(table, SortedMatrix):
        return table
    raise ConstraintError(
        f"{what} are of sorted matrices, and this catalogue has another table",
        remedies=[] if isinstance(table, Snapshot) else [Advice('Make it with {}="matrix"', ("kind",))],
    )


def is_fixed(path: str | os.PathLike[str]) -> bool:
    """Return whether a file has a fixed catalogue, and not one that lives. Raises FileNotFoundError, TableFileError."""
    return file.kind_of(path, (_FIXED, _LIVE)) is _FIXED


def write_fixed(
    path: str | os.PathLike[str], header: CatalogueHeader, table: TransitionTable | SortedMatrix, ids: ItemIds,
    columns: Columns,
) -> None:  # fmt: skip
    """Write a fixed catalogue to one file, in full or not at all."""
    if isinstance(table, SortedMatrix):
        made: dict[str, Any] = {"kind": "matrix", "vocab_size": table.vocab_size}
        arrays = {name: getattr(table, name) for name in _MATRIX}
    else:
        made = {"kind": "table", **table.header()}
        arrays = table.arrays.by_name()
    named = {f"table.{name}": array for name, array in arrays.items()} | ids.by_name() | header.arrays()
    named |= named_arrays(columns)
    written = header.written(arrays=list(named), table=made, **_kinds(columns))
    file.write_arrays(path, _FIXED, written, named)


def read_fixed(
    path: str | os.PathLike[str], vocabulary: str | None
) -> tuple[CatalogueHeader, TransitionTable | SortedMatrix, ItemIds, Columns]:
    """Return what a fixed catalogue says beside its items, its table, their ids and columns.

    Raises FileNotFoundError; TableFileError for a file that is truncated, no fixed catalogue, of another format version
    or changed since it was written; VocabularyMismatchError for another vocabulary's.
    """
    read, named = file.read_arrays(path, _FIXED, vocabulary)
    try:
        made = dict(read["table"])
        table: TransitionTable | SortedMatrix
        arrays = {name.removeprefix("table."): array for name, array in named.items() if name.startswith("table.")}
        if made.pop("kind") == "matrix":
            table = SortedMatrix(made["vocab_size"], *(arrays[name] for name in _MATRIX))
        else:
            table = TransitionTable(TableArrays.from_names(arrays), **made)
        ids = ItemIds.from_names(named)
        if len(ids) != table.num_items:
            raise TableError(f"there are {len(ids):,} item ids for {table.num_items:,} input rows")
        columns = from_named(dict(read.get("columns", ())), named, len(ids))
        return CatalogueHeader.read(read, named, table.max_length), table, ids, columns
    except (TableError, TypeError, KeyError, ValueError) as error:
        raise TableFileError(f"{os.fspath(path)} is not a valid catalogue: {error}") from error


def write_live(
    path: str | os.PathLike[str], header: CatalogueHeader, rows: ItemRows, vocab_size: int, covered: Covered | None,
    epoch: int,
) -> None:  # fmt: skip
    """Write rows to one file, in full or not at all; it is on the disk on return.

    covered: what they hold of a log. epoch: how many updates they have taken.
    """
    named = {"tokens": np.ascontiguousarray(rows.tokens), "live": rows.live.astype(np.uint8)} | rows.ids.by_name()
    named |= header.arrays() | named_arrays(rows.columns)
    covers = None if covered is None else [covered.header.hex(), covered.end]
    written = header.written(
        arrays=list(named), vocab_size=vocab_size, covered=covers, epoch=epoch, **_kinds(rows.columns)
    )
    file.write_arrays(path, _LIVE, written, named, durable=True)


def read_live(
    path: str | os.PathLike[str], vocabulary: str | None
) -> tuple[CatalogueHeader, ItemRows, SortedMatrix, Covered | None, int]:
    """Return what a catalogue that lives says beside its items, all rows, the matrix of the live ones, what they cover.

    The last is the number of updates that they have taken. Raises as `read_fixed` does.
    """
    read, named = file.read_arrays(path, _LIVE, vocabulary)
    try:
        tokens, live, ids = named["tokens"], named["live"].astype(np.bool_), ItemIds.from_names(named)
        if tokens.ndim != 2 or live.shape != tokens.shape[:1] or len(ids) != len(tokens) or not live.any():
            raise TableError("tokens, live rows and ids do not fit each other")
        header = CatalogueHeader.read(read, named, tokens.shape[1])
        rows = ItemRows(tokens, live, ids, from_named(dict(read.get("columns", ())), named, len(tokens)))
        matrix = sort_sids(tokens[live], read["vocab_size"])
        return header, rows, matrix, _covered(read), int(read.get("epoch", 0))
    except (TableError, TypeError, KeyError, ValueError) as error:
        raise TableFileError(f"{os.fspath(path)} is not a valid live catalogue: {error}") from error


def _kinds(columns: Columns) -> dict[str, Any]:
    """Return the entry of a header that has the names and kinds of columns, if there are any."""
    return {"columns": [[name, column.kind] for name, column in columns.items()]} if columns else {}


def covered_now(path: str | os.PathLike[str]) -> Covered | None:
    """Return how much of a log a catalogue that lives has in it, None of one that is fixed. Reads the header alone."""
    return None if is_fixed(path) else _covered(file.read_header(path, _LIVE))


def _covered(header: Mapping[str, Any]) -> Covered | None:
    found = header["covered"]
    return None if found is None else Covered(bytes.fromhex(found[0]), found[1])
