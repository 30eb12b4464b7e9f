"""`Catalogue`: a set of semantic IDs with the items that they stand for, in one file."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..automata.sequence_sort import Progress
from ..errors import Advice, ConstraintError, TableError, TableFileError
from ..table import file
from ..table.groups import TableArrays
from ..table.item_ids import ItemId, ItemIds
from ..table.sid_filter import SidFilter, filter_sids
from ..table.snapshot import LiveFilter, Snapshot
from ..table.sorted_matrix import SortedMatrix
from ..table.transition_table import TransitionTable
from ..vocabulary.vocabulary import EndTokens, Vocabulary
from .parquet import ParquetRows
from .sequences import check_vocabulary_size, compile_sids, progress_bar, rectangle, sort_sids
from .sid_tokens import CodeTokens, by_names, with_offsets
from .token_names import are_names, tokens_of_names

FORMAT_VERSION = 1
"""Version of the file format; with several end tokens it is one more, and a reader refuses any other."""

_AGAIN = "make the catalogue again from its items"
_FILE = file.FileKind("maskwright.catalogue", "catalogue", FORMAT_VERSION, FORMAT_VERSION + 1, _AGAIN)
_MATRIX = ("columns", "item_start", "item_row")

AnyFilter = SidFilter | LiveFilter


@dataclass(frozen=True, eq=False)
class Catalogue:
    """A table or sorted matrix of semantic IDs, and the items behind them. Make one with `of` or `from_parquet`.

    N items have semantic IDs of L codes. A code is a number within its level; `code_tokens` has the token of a model
    that stands for it. `table` holds these tokens: it is what `put` and all decoders take, and whatever state or
    sequence they return, `items` says which items it means.
    """

    table: TransitionTable | SortedMatrix | Snapshot
    ids: ItemIds  # (N,) by input row
    code_tokens: CodeTokens
    vocabulary: str = ""  # fingerprint of the tokenizer's vocabulary, "" if none was given
    metadata: Mapping[str, Any] = field(default_factory=dict)  # the user's own: whatever JSON can hold

    def __post_init__(self) -> None:
        rows = _num_items(self.table)
        if len(self.ids) != rows:
            raise TableError(f"there are {len(self.ids):,} item ids for {rows:,} input rows")
        if self.code_tokens.length != self.table.max_length:
            raise TableError(f"codes have {self.code_tokens.length} levels, sequences {self.table.max_length} tokens")
        json.dumps(dict(self.metadata))  # TypeError for what is not JSON

    @classmethod
    def of(
        cls,
        sids: object,
        items: object,
        vocab_size: int | None = None,
        *,
        offsets: int | Sequence[int] = 0,
        names: Sequence[str | Sequence[str]] | None = None,
        vocabulary: Vocabulary | None = None,
        eos: EndTokens | None = None,
        kind: Literal["table", "matrix"] = "table",
        metadata: Mapping[str, Any] | None = None,
    ) -> Catalogue:
        """Return the catalogue of items with semantic IDs.

        sids: (N, L) codes, as `compile_sids` takes them; or names of tokens that `vocabulary` knows, for each item
        "<a_12><b_7>" or ["<a_12>", "<b_7>"]: then a code is the token itself. items: (N,) ids, integers or strings: an
        array, a list or an Arrow column. Several items may have one semantic ID, and one item several.
        vocab_size: V of the model; that of `vocabulary` if left out.

        Which token stands for a code: code + `offsets`, one number for all levels or one for each, as where IDs come
        behind the 32,000 tokens of a text vocabulary; or the token that the vocabulary knows by name. names: for each
        level a pattern such as "<a_{}>", in which {} is the code, or a list of the names of its codes.
        vocabulary: of the tokenizer. Its fingerprint is kept, and `names` are looked up in it.
        eos: as of `compile_sids`; leave it out for IDs, which are all as long. kind: "matrix" for a `SortedMatrix`.

        Raises ConstraintError naming the row, the name or the argument that is wrong.

        >>> catalogue = Catalogue.of([[3, 1], [3, 0]], ["shoe", "hat"], vocab_size=12, offsets=[0, 4])
        >>> catalogue.items(catalogue.states([[3, 4], [3, 5]]))
        ['hat', 'shoe']
        """
        named = are_names(sids)
        _check_written(named, offsets, names)
        codes, ids = tokens_of_names(sids, vocabulary) if named else rectangle(sids), ItemIds.of(items)
        if len(ids) != len(codes):
            raise ConstraintError(
                f"there are {len(ids):,} item ids for {len(codes):,} semantic IDs: one each is needed"
            )
        size = _size(vocab_size, vocabulary)
        known = _code_tokens(codes, offsets, names, vocabulary)
        tokens = np.empty(codes.shape, np.min_scalar_type(size - 1))
        known.tokens(codes, tokens, size)
        return cls._compiled(tokens, ids, known, size, vocabulary, eos, kind, metadata)

    @classmethod
    def from_parquet(
        cls,
        source: str | os.PathLike[str],
        vocab_size: int | None = None,
        *,
        sids: str | Sequence[str],
        items: str,
        offsets: int | Sequence[int] = 0,
        names: Sequence[str | Sequence[str]] | None = None,
        vocabulary: Vocabulary | None = None,
        eos: EndTokens | None = None,
        kind: Literal["table", "matrix"] = "table",
        metadata: Mapping[str, Any] | None = None,
        progress: bool | None = None,
    ) -> Catalogue:
        """Return the catalogue of the items in a Parquet file, or in all files of a folder and of those below it.

        sids: the column with a list of codes in each row, or columns of one code each; or of names, as of `of`.
        items: the column of ids. Files are read in the order of their paths, batch by batch: codes and ids are held,
        and never a whole file besides.
        progress: whether to show a bar; None for long reads on a terminal. Other arguments as of `of`.

        Raises MissingDependencyError without pyarrow, FileNotFoundError, DataError for a file that cannot be read,
        and ConstraintError naming the file and the row.
        """
        rows = ParquetRows(source, sids, items, vocabulary)
        _check_written(rows.are_names, offsets, names)
        if not rows.count:
            raise ConstraintError(f"there are no rows in {os.fspath(source)}: nothing could be decoded")
        size = _size(vocab_size, vocabulary)
        with progress_bar(rows.count, progress) as report:
            if names is None:
                tokens, ids, known = _with_offsets(rows, size, offsets, report)
            else:
                _check_names(offsets, vocabulary)
                tokens, ids, known = _with_names(rows, size, names, vocabulary, report)
        return cls._compiled(tokens, ids, known, size, vocabulary, eos, kind, metadata)

    @classmethod
    def _compiled(
        cls,
        tokens: NDArray[Any],
        ids: ItemIds,
        known: CodeTokens,
        size: int,
        vocabulary: Vocabulary | None,
        eos: EndTokens | None,
        kind: str,
        metadata: Mapping[str, Any] | None,
    ) -> Catalogue:
        if kind not in ("table", "matrix"):
            raise ConstraintError(f'must be "table" or "matrix", not {kind!r}', argument="kind")
        if kind == "matrix" and eos is not None:
            raise ConstraintError("is for tables: the sequences of a sorted matrix end by themselves", argument="eos")
        table = sort_sids(tokens, size) if kind == "matrix" else compile_sids(tokens, size, eos=eos)
        return cls(table, ids, known, vocabulary.fingerprint if vocabulary is not None else "", dict(metadata or {}))

    # ------------------------------------------------------------------------------------------------ items

    def filter(self, keep: object) -> SidFilter | LiveFilter:
        """Return a filter that keeps some items: (N,) booleans in the order of the input, as `filter_sids` takes them.

        Of what a `LiveCatalogue` published it is a `LiveFilter`. Raises ConstraintError as that does.
        """
        if isinstance(self.table, Snapshot):
            return self.table.filter(keep)
        return filter_sids(self.table, keep)

    def without(self, ids: object) -> SidFilter | LiveFilter:
        """Return a filter that leaves out the items with any of some ids, such as those that a user has seen.

        Another item with the same semantic ID is kept. Raises ConstraintError as `filter` does.
        """
        keep = np.ones(len(self), np.bool_)
        keep[self.ids.rows(ids)] = False
        return self.filter(keep)

    def items(
        self, found: object, limit: int | None = None, *, filters: AnyFilter | Sequence[AnyFilter] | None = None
    ) -> list[Any]:
        """Return the ids of the items that were found, each once, the best first.

        found: `Beams` or `Sequences` of a decoder (B, M); or final states, (B, M) or (M,), of the best first, as they
        stand in `states` of these or as `states` of this class returns them. What is not valid, and states that are
        none of a whole sequence, mean no item. Where scores are known they decide, and equals keep their order; items
        that share a semantic ID follow each other in the order of the input.
        limit: the most items for each of B; None for all. filters: those under which the search ran, filter i that of
        the i-th share of B: of items that share a semantic ID only those that it keeps come back.

        Returns a list of ids for each of B, or of states (M,) one list.
        """
        given, lists = self._ranked_all(found, limit, filters)
        return [list(row) for row in lists] if given.is_batch else list(lists[0])

    def ranked(
        self, found: object, limit: int | None = None, *, filters: AnyFilter | Sequence[AnyFilter] | None = None
    ) -> list[Any]:
        """Return pairs of an item's id and its score, as `items` orders them; the score of states alone is NaN."""
        given, lists = self._ranked_all(found, limit, filters)
        return [list(row.items()) for row in lists] if given.is_batch else list(lists[0].items())

    def _ranked_all(
        self, found: object, limit: int | None, filters: AnyFilter | Sequence[AnyFilter] | None
    ) -> tuple[_Found, list[dict[ItemId, float]]]:
        """Return what was found, and the items and scores of each row of it."""
        given = _Found.of(found)
        tables: list[TransitionTable | SortedMatrix | Snapshot | AnyFilter] = [self.table]
        if filters is not None:
            tables = [filters] if isinstance(filters, SidFilter | LiveFilter) else list(filters)
        if any(_whole(one) is not self.table for one in tables):
            raise ConstraintError(
                "is of another catalogue: a filter is made by `filter` of this one", argument="filters"
            )
        batch = len(given.states)
        if not tables or batch % len(tables):
            raise ValueError(f"there are {len(tables)} filters for {batch} rows: as many rows for each are needed")
        each = batch // len(tables)
        rows = zip(given.states, given.scores, given.valid, strict=True)
        return given, [self._ranked(tables[i // each], *row, limit) for i, row in enumerate(rows)]

    def _ranked(
        self,
        table: TransitionTable | SortedMatrix | Snapshot | AnyFilter,
        states: NDArray[Any],
        scores: NDArray[Any],
        valid: NDArray[Any],
        limit: int | None,
    ) -> dict[ItemId, float]:
        """Return the items of states (M,), the best first, with their scores."""
        order = np.argsort(-scores, kind="stable")  # NaN, the last, all keep their order
        order = order[valid[order]]
        rows = table.input_rows(states[order])
        behind = np.repeat(np.arange(len(rows)), [len(group) for group in rows])  # which of the states each row is of
        found = np.concatenate([*rows, np.empty(0, np.int64)]).astype(np.int64)
        found = found[np.lexsort((found, behind))]  # items that share an ID in the order of the input
        out: dict[ItemId, float] = {}
        for item, score in zip(self.ids.at(found), scores[order][behind].tolist(), strict=True):
            if len(out) == limit:
                break
            out.setdefault(item, score)
        return out

    def states(self, tokens: object) -> NDArray[np.int64]:
        """Return the final state of each sequence of tokens (.., T), of which the first L are read: (..).

        As `generate` of transformers writes them, without the prompt. A sequence that is not in the set has a state
        that means no item.
        """
        array = _on_host(tokens)
        length = self.code_tokens.length
        if array.ndim < 1 or array.shape[-1] < length or array.dtype.kind not in "iu":
            raise ValueError(f"tokens must be integers (.., T), T at least {length}, not {array.dtype} {array.shape}")
        flat = np.ascontiguousarray(array[..., :length], np.int64).reshape(-1, length)
        found = self.table.walk(flat) if isinstance(self.table, TransitionTable) else self.table.find(flat)
        return found.reshape(array.shape[:-1])

    def __len__(self) -> int:
        return len(self.ids)

    def __repr__(self) -> str:
        return f"Catalogue({len(self):,} items, {self.table!r})"

    # ------------------------------------------------------------------------------------------------- file

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the catalogue to one safetensors file, in full or not at all.

        Raises ConstraintError for what a `LiveCatalogue` published.
        """
        if isinstance(self.table, Snapshot):
            raise ConstraintError(
                "a snapshot of a live catalogue has no file",
                remedies=[Advice("Save what catalogue() of the LiveCatalogue returns.")],
            )
        if isinstance(self.table, SortedMatrix):
            made: dict[str, Any] = {"kind": "matrix", "vocab_size": self.table.vocab_size}
            arrays = {name: getattr(self.table, name) for name in _MATRIX}
        else:
            made = {"kind": "table", **self.table.header()}
            arrays = self.table.arrays.by_name()
        named = {f"table.{name}": array for name, array in arrays.items()} | self.ids.by_name()
        named |= {f"codes.{level}": tokens for level, tokens in enumerate(self.code_tokens.lists)}
        header = {
            "arrays": list(named),
            "table": made,
            "vocabulary": self.vocabulary,
            "offsets": list(self.code_tokens.offsets),
            "metadata": dict(self.metadata),
        }
        file.write_arrays(path, _FILE, header, named)

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, vocabulary: Vocabulary | str | None = None) -> Catalogue:
        """Read a catalogue back; vocabulary: the one that it must be of, or its fingerprint, if that is to be checked.

        Raises FileNotFoundError; TableFileError for a file that is truncated, no catalogue, of another format version
        or changed since it was written; VocabularyMismatchError for another vocabulary's.
        """
        wanted = vocabulary.fingerprint if isinstance(vocabulary, Vocabulary) else vocabulary
        header, named = file.read_arrays(path, _FILE, wanted)
        try:
            made = dict(header["table"])
            arrays = {name.removeprefix("table."): array for name, array in named.items() if name.startswith("table.")}
            table = (_matrix_of if made.pop("kind") == "matrix" else _table_of)(made, arrays)
            lists = tuple(named[name] for name in header["arrays"] if name.startswith("codes."))
            known = CodeTokens(tuple(header["offsets"]), lists)
            return cls(table, ItemIds.from_names(named), known, header["vocabulary"], header["metadata"])
        except (TableError, TypeError, KeyError, ValueError) as error:
            raise TableFileError(f"{os.fspath(path)} is not a valid catalogue: {error}") from error


def _num_items(table: TransitionTable | SortedMatrix | Snapshot) -> int:
    """Return the rows of items that a table is of. Raises TableError for a snapshot that knows none."""
    if isinstance(table, Snapshot):
        if table.items is None:
            raise TableError("a snapshot of LiveSids knows no items: use that of a LiveCatalogue")
        return int(table.items.live.size)
    return table.num_items if isinstance(table, SortedMatrix) else int(table.trie.item_row.size)


def _whole(table: object) -> Any:
    """Return the table that a filter is of, or the table itself."""
    if isinstance(table, SidFilter):
        return table.table
    return table.snapshot if isinstance(table, LiveFilter) else table


def _table_of(header: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> TransitionTable:
    return TransitionTable(TableArrays.from_names(arrays), **header)


def _matrix_of(header: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> SortedMatrix:
    return SortedMatrix(header["vocab_size"], *(arrays[name] for name in _MATRIX))


# ------------------------------------------------------------------------------------------------------ codes


def _size(vocab_size: int | None, vocabulary: Vocabulary | None) -> int:
    """Return V. Raises ConstraintError, TypeError."""
    if vocabulary is not None and not isinstance(vocabulary, Vocabulary):
        raise TypeError(f"vocabulary must be a Vocabulary, not a {type(vocabulary).__name__}")
    if vocab_size is None and vocabulary is None:
        raise ConstraintError(
            "the number of tokens is not known", remedies=[Advice("Pass {} or {}", ("vocab_size", "vocabulary"))]
        )
    size = vocabulary.size if vocab_size is None and vocabulary is not None else vocab_size
    check_vocabulary_size(size)
    assert size is not None
    return int(size)


def _check_written(named: bool, offsets: object, names: object) -> None:
    """Raise ConstraintError if what says how codes become tokens is given for IDs that are names of tokens."""
    if named and (names is not None or np.any(np.asarray(offsets) != 0)):
        raise ConstraintError("the semantic IDs are names of tokens already: leave names and offsets out")


def _code_tokens(codes: NDArray[Any], offsets: Any, names: Any, vocabulary: Vocabulary | None) -> CodeTokens:
    """Return what stands for codes (N, L). Raises ConstraintError."""
    if names is None:
        return with_offsets(offsets, codes.shape[1])
    found = _check_names(offsets, vocabulary)
    return by_names(names, [np.unique(codes[:, level]) for level in range(codes.shape[1])], found)


def _check_names(offsets: object, vocabulary: Vocabulary | None) -> Vocabulary:
    """Return the vocabulary that has names of tokens. Raises ConstraintError."""
    if vocabulary is None:
        remedies = [Advice("Pass {} too", ("vocabulary",))]
        raise ConstraintError("are looked up in a vocabulary", argument="names", remedies=remedies)
    if np.any(np.asarray(offsets) != 0):
        raise ConstraintError("and offsets both say which token stands for a code: leave one out", argument="names")
    return vocabulary


def _with_offsets(
    rows: ParquetRows, size: int, offsets: int | Sequence[int], report: Progress | None
) -> tuple[NDArray[Any], ItemIds, CodeTokens]:
    """Return tokens (N, L) and ids of rows, whose tokens are known batch by batch."""
    known, tokens, parts = CodeTokens(()), np.empty((0, 0), np.int64), []
    for batch in rows.batches(report):
        if not batch.first:
            known = with_offsets(offsets, batch.codes.shape[1])
            tokens = np.empty((rows.count, known.length), np.min_scalar_type(size - 1))
        batch.check_length(known.length)
        known.tokens(batch.codes, tokens[batch.first : batch.first + len(batch.codes)], size, batch.first)
        parts.append(batch.ids)
    return tokens, ItemIds.joined(parts), known


def _with_names(
    rows: ParquetRows, size: int, names: object, vocabulary: Vocabulary | None, report: Progress | None
) -> tuple[NDArray[Any], ItemIds, CodeTokens]:
    """Return tokens (N, L) and ids of rows, whose tokens are known once all codes are."""
    codes, parts = np.empty((0, 0), np.int64), []
    for batch in rows.batches(report):
        if not batch.first:
            codes = np.empty((rows.count, batch.codes.shape[1]), np.int64)
        batch.check_length(codes.shape[1])
        codes[batch.first : batch.first + len(batch.codes)] = batch.codes
        parts.append(batch.ids)
    known = _code_tokens(codes, 0, names, vocabulary)
    return known.tokens(codes, codes, size), ItemIds.joined(parts), known


# ------------------------------------------------------------------------------------------------------ found


def _on_host(array: object) -> NDArray[Any]:
    """Return an array of any library in numpy."""
    if hasattr(array, "detach"):
        array = array.detach().cpu()
    return np.asarray(array)


class _Found(NamedTuple):
    """Final states of sequences, by what they are ranked, and which of them are valid: (B, M) each."""

    states: NDArray[Any]
    scores: NDArray[Any]  # NaN where only states are known
    valid: NDArray[Any]
    is_batch: bool  # False of states (M,), which have B = 1 here

    @classmethod
    def of(cls, found: object) -> _Found:
        """Return what a decoder returned, or states themselves, on the host. Raises ValueError."""
        states = _on_host(getattr(found, "states", found))
        ranks = getattr(found, "scores", getattr(found, "log_probs", None))
        scores = np.full(states.shape, np.nan) if ranks is None else _on_host(ranks)
        valid = _on_host(found.valid) if hasattr(found, "valid") else np.ones(states.shape, bool)
        if states.ndim not in (1, 2) or states.dtype.kind not in "iu":
            raise ValueError(f"states must be integers (M,) or (B, M), not {states.dtype} {states.shape}")
        return cls(np.atleast_2d(states), np.atleast_2d(scores), np.atleast_2d(valid), states.ndim == 2)
