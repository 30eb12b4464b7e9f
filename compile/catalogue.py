"""`Catalogue`: semantic IDs and the items that they stand for: made, filtered, changed, looked up, saved and cut."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ..errors import Advice, ConstraintError, TableError
from ..table.item_ids import ItemIds
from ..table.sharded_files import ShardedFiles
from ..table.sharded_matrix import ShardedMatrix
from ..table.snapshot import Snapshot
from ..table.transition_table import TransitionTable
from ..table.update_log import check_apart
from ..vocabulary.token_ids import EndTokens
from ..vocabulary.vocabulary import Vocabulary
from .catalogue_file import CatalogueHeader, ItemRows, is_fixed, matrix_of, read_fixed, write_fixed
from .found_items import AnyFilter, Table, on_host, ranked_items
from .item_follower import ItemFollower
from .item_store import ItemStore
from .parquet import ParquetRows, read_with_names, read_with_offsets
from .sequences import compile_sids, progress_bar, rectangle, sort_sids
from .shards.build import build_shards
from .shards.merge import merged
from .sid_tokens import CodeTokens, check_names, check_written, code_tokens_of, vocab_size_of
from .token_names import are_names, tokens_of_names

Kind = Literal["table", "matrix"]


@dataclass(frozen=True, eq=False)
class Catalogue:
    """A set of semantic IDs with the items that they stand for. Make one with `of`, `from_parquet` or `merge_shards`.

    N items have semantic IDs of L codes. A code is a number within its level; `code_tokens` has the token of a model
    that stands for it. `to_device` and all decoders take `table`, and whatever states or sequences they return, `items`
    says which items these mean.

    A catalogue never changes. One that lives, which `live` and `open` return, is a version of a store: `insert` and
    `delete` change the store, and `publish` returns the next version. Searches keep the version that they began with.
    Items of a store are rows: those that it began with in their order, then each inserted one. A row is never used
    again, so columns over the items only grow. All methods may be called from any thread.

    Attributes:
        table: The tokens of the IDs: a `TransitionTable` of kind "table", a `SortedMatrix` of kind "matrix", a
            `Snapshot` of a catalogue that lives.
        ids: The ids of the items, (N,) by input row.
        code_tokens: Which token stands for each code.
        vocabulary: The fingerprint of the tokenizer's vocabulary, "" if none was given.
        metadata: The user's own, whatever JSON can hold.

    Examples:
        >>> shop = Catalogue.of([[3, 1], [3, 0]], ["shoe", "hat"], 12, offsets=[0, 4], kind="matrix").live()
        >>> shop.insert([[2, 2]], ["sock"])
        >>> shop.delete(["hat"])
        >>> shop = shop.publish()
        >>> shop.items(shop.states([[3, 5], [3, 4], [2, 6]]))
        ['shoe', 'sock']
    """

    table: Table
    ids: ItemIds
    code_tokens: CodeTokens
    vocabulary: str = ""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    _store: ItemStore | ItemFollower | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        rows = self.table.num_items
        if len(self.ids) != rows:
            raise TableError(f"there are {len(self.ids):,} item ids for {rows:,} input rows")
        if self.code_tokens.length != self.table.max_length:
            raise TableError(f"codes have {self.code_tokens.length} levels, sequences {self.table.max_length} tokens")
        json.dumps(dict(self.metadata))  # TypeError for what is not JSON

    @classmethod
    def of(
        cls, sids: object, items: object, vocab_size: int | None = None, *, offsets: int | Sequence[int] = 0,
        names: Sequence[str | Sequence[str]] | None = None, vocabulary: Vocabulary | None = None,
        eos: EndTokens | None = None, kind: Kind = "table", metadata: Mapping[str, Any] | None = None,
    ) -> Catalogue:  # fmt: skip
        """Return the catalogue of items with semantic IDs.

        Several items may have one semantic ID, and one item several.

        Args:
            sids: (N, L) codes, as `compile_sids` takes them; or names of tokens that `vocabulary` knows, for each item
                `"<a_12><b_7>"` or `["<a_12>", "<b_7>"]`: then a code is the token itself.
            items: (N,) ids, integers or strings: an array, a list or an Arrow column.
            vocab_size: V of the model; that of `vocabulary` if left out.
            offsets: The token of code 0, one number for all levels or one for each: IDs that come behind the 32,000
                tokens of a text vocabulary have 32,000.
            names: In place of offsets, the tokens by name: for each level a pattern such as `"<a_{}>"`, in which {} is
                the code, or a list of the names of its codes.
            vocabulary: That of the tokenizer. Its fingerprint is kept, and names are looked up in it.
            eos: As in `compile_sids`; leave it out for IDs, which are all as long.
            kind: "table", or "matrix" for a sorted matrix, which is needed to live and to lie on several devices.
            metadata: Anything that JSON can hold.

        Returns:
            A catalogue of N items.

        Raises:
            ConstraintError: The row, the name or the argument that it names is wrong.

        Examples:
            >>> catalogue = Catalogue.of([[3, 1], [3, 0]], ["shoe", "hat"], vocab_size=12, offsets=[0, 4])
            >>> catalogue.items(catalogue.states([[3, 4], [3, 5]]))
            ['hat', 'shoe']
        """
        named = are_names(sids)
        check_written(named, offsets, names)
        codes, ids = tokens_of_names(sids, vocabulary) if named else rectangle(sids), ItemIds.of(items)
        if len(ids) != len(codes):
            raise ConstraintError(
                f"there are {len(ids):,} item ids for {len(codes):,} semantic IDs: one each is needed"
            )
        size = vocab_size_of(vocab_size, vocabulary)
        known = code_tokens_of(codes, offsets, names, vocabulary)
        tokens = np.empty(codes.shape, np.min_scalar_type(size - 1))
        known.tokens(codes, tokens, size)
        return cls._compiled(tokens, ids, known, size, vocabulary, eos, kind, metadata)

    @classmethod
    def from_parquet(
        cls, source: str | os.PathLike[str], vocab_size: int | None = None, *, sids: str | Sequence[str], items: str,
        offsets: int | Sequence[int] = 0, names: Sequence[str | Sequence[str]] | None = None,
        vocabulary: Vocabulary | None = None, eos: EndTokens | None = None, kind: Kind = "table",
        metadata: Mapping[str, Any] | None = None, progress: bool | None = None,
    ) -> Catalogue:  # fmt: skip
        """Return the catalogue of the items in a Parquet file, or in all files of a folder and of those below it.

        Files are read in the order of their paths, batch by batch: codes and ids are held, and never a whole file
        besides.

        Args:
            source: The file or folder.
            vocab_size: V of the model; that of `vocabulary` if left out.
            sids: The column with a list of codes in each row, or columns of one code each; or of names, as of `of`.
            items: The column of ids.
            offsets: As in `of`.
            names: As in `of`.
            vocabulary: As in `of`.
            eos: As in `of`.
            kind: As in `of`.
            metadata: As in `of`.
            progress: Whether to show a bar; None for long reads on a terminal.

        Returns:
            A catalogue of as many items as there are rows.

        Raises:
            MissingDependencyError: pyarrow is not installed.
            FileNotFoundError: There is no such file or folder.
            DataError: A file cannot be read.
            ConstraintError: The file and row, or the argument, that it names is wrong.

        Examples:
            >>> catalogue = Catalogue.from_parquet("items/", 33_000, sids="sid", items="item_id")  # doctest: +SKIP
        """
        rows = ParquetRows(source, sids, items, vocabulary)
        check_written(rows.are_names, offsets, names)
        if not rows.count:
            raise ConstraintError(f"there are no rows in {os.fspath(source)}: nothing could be decoded")
        size = vocab_size_of(vocab_size, vocabulary)
        with progress_bar(rows.count, progress) as report:
            if names is None:
                tokens, ids, known = read_with_offsets(rows, size, offsets, report)
            else:
                check_names(offsets, vocabulary)
                tokens, ids, known = read_with_names(rows, size, names, vocabulary, report)
        return cls._compiled(tokens, ids, known, size, vocabulary, eos, kind, metadata)

    @classmethod
    def _compiled(
        cls, tokens: NDArray[Any], ids: ItemIds, known: CodeTokens, size: int, vocabulary: Vocabulary | None,
        eos: EndTokens | None, kind: Kind, metadata: Mapping[str, Any] | None,
    ) -> Catalogue:  # fmt: skip
        if kind not in ("table", "matrix"):
            raise ConstraintError(f'must be "table" or "matrix", not {kind!r}', argument="kind")
        if kind == "matrix" and eos is not None:
            raise ConstraintError("is for tables: the sequences of a sorted matrix end by themselves", argument="eos")
        table = sort_sids(tokens, size) if kind == "matrix" else compile_sids(tokens, size, eos=eos)
        return cls(table, ids, known, vocabulary.fingerprint if vocabulary is not None else "", dict(metadata or {}))

    # ------------------------------------------------------------------------------------------------ items

    @property
    def num_items(self) -> int:
        """How many items there are: of a catalogue that lives, without those that were deleted."""
        if isinstance(self.table, Snapshot) and self.table.items is not None:
            return int(self.table.items.live.sum())
        return len(self)

    def filter(self, keep: Any) -> AnyFilter:
        """Return a filter that keeps some items.

        Filters of one catalogue, of one version if it lives, are joined by `&`, `|` and `~`, item by item.
        `ops.with_filters` gives each row of a batch its own; a `Matcher` and `to_device` take a filter in place of a
        table.

        Args:
            keep: (N,) booleans in the order of the input: an array, or a column of Arrow, Polars, pandas or DuckDB. Of
                a catalogue that lives one for each row that ever was; those of deleted items say nothing.

        Returns:
            A `SidFilter`; of a catalogue that lives a `LiveFilter`, which `at` takes over to later versions.

        Raises:
            ConstraintError: These are no booleans, there is a null, or there are not as many as items.

        Examples:
            >>> catalogue = Catalogue.of([[3, 1], [3, 0]], ["shoe", "hat"], vocab_size=4)
            >>> catalogue.filter([True, False]).contains([[3, 1], [3, 0]])
            array([ True, False])
        """
        return self.table.filter(keep)

    def without(self, ids: object) -> AnyFilter:
        """Return a filter that leaves out the items with any of some ids, such as those that a user has seen.

        Another item with the same semantic ID is kept.

        Args:
            ids: (n,) ids of items, which need not be there.

        Returns:
            The filter, as of `filter`.

        Examples:
            >>> catalogue = Catalogue.of([[3, 1], [3, 0]], ["shoe", "hat"], vocab_size=4)
            >>> catalogue.without(["hat"]).contains([[3, 1], [3, 0]])
            array([ True, False])
        """
        rows = self.ids.rows(ids)
        if isinstance(self.table, Snapshot):
            return self.table.without_rows(rows)
        keep = np.ones(len(self), np.bool_)
        keep[rows] = False
        return self.filter(keep)

    def items(
        self, found: object, limit: int | None = None, *, filters: AnyFilter | Sequence[AnyFilter] | None = None
    ) -> list[Any]:
        """Return the ids of the items that were found, each once, the best first.

        What is not valid, and states that are none of a whole sequence, mean no item. Where scores are known they
        decide, and equals keep their order; items that share a semantic ID follow each other in the order of the input.

        Args:
            found: `Beams` or `Sequences` of a decoder (B, M); or final states, (B, M) or (M,), the best first, as they
                stand in `states` of these or as `states` of this class returns them.
            limit: The most items for each of B; None for all.
            filters: Those under which the search ran, filter i that of the i-th share of B: of items that share a
                semantic ID only those that it keeps come back.

        Returns:
            A list of ids for each of B; of states (M,) one list.

        Raises:
            ConstraintError: A filter is of another catalogue or version.

        Examples:
            >>> catalogue = Catalogue.of([[3, 1], [3, 0]], ["shoe", "hat"], vocab_size=4)
            >>> catalogue.items(catalogue.states([[3, 0], [3, 1]]))
            ['hat', 'shoe']
        """
        lists, is_batch = ranked_items(self.table, self.ids, found, limit, filters)
        return [list(row) for row in lists] if is_batch else list(lists[0])

    def ranked(
        self, found: object, limit: int | None = None, *, filters: AnyFilter | Sequence[AnyFilter] | None = None
    ) -> list[Any]:
        """Return pairs of an item's id and its score, as `items` orders them. Arguments are those of `items`.

        Returns:
            A list of pairs for each of B; of states (M,) one list, whose scores are NaN.

        Examples:
            >>> catalogue = Catalogue.of([[3, 1], [3, 0]], ["shoe", "hat"], vocab_size=4)
            >>> catalogue.ranked(catalogue.states([[3, 0]]))
            [('hat', nan)]
        """
        lists, is_batch = ranked_items(self.table, self.ids, found, limit, filters)
        return [list(row.items()) for row in lists] if is_batch else list(lists[0].items())

    def states(self, tokens: object) -> NDArray[np.int64]:
        """Return the final state of each sequence of tokens, as `generate` of transformers writes them.

        Args:
            tokens: (.., T) integers without the prompt, of which the first L are read.

        Returns:
            (..) states. A sequence that is not in the set has a state that means no item.

        Raises:
            ValueError: These are no integers, or fewer than L.

        Examples:
            >>> catalogue = Catalogue.of([[3, 1], [3, 0]], ["shoe", "hat"], vocab_size=4)
            >>> catalogue.items(catalogue.states([[3, 1], [0, 0]]))
            ['shoe']
        """
        array = on_host(tokens)
        length = self.code_tokens.length
        if array.ndim < 1 or array.shape[-1] < length or array.dtype.kind not in "iu":
            raise ValueError(f"tokens must be integers (.., T), T at least {length}, not {array.dtype} {array.shape}")
        flat = np.ascontiguousarray(array[..., :length], np.int64).reshape(-1, length)
        found = self.table.walk(flat) if isinstance(self.table, TransitionTable) else self.table.find(flat)
        return found.reshape(array.shape[:-1])

    def __len__(self) -> int:
        return len(self.ids)

    def __repr__(self) -> str:
        return f"Catalogue({self.num_items:,} items, {self.table!r})"

    # ---------------------------------------------------------------------------------------------- changes

    def live(
        self, capacity: int = 1 << 16, *, widths: tuple[int, ...] | None = None,
        log: str | os.PathLike[str] | None = None,
    ) -> Catalogue:  # fmt: skip
        """Return this catalogue as the first version of one that lives, into which items are inserted.

        Args:
            capacity: The most sequences that may be added before `compact` is needed.
            widths: (L,) the most of these below a prefix, by depth, which bounds the work of a step.
            log: A file to which each update is written before the call returns. Where it exists, its updates are made
                again first, up to the last that is whole. One store at a time writes to it, until `close`.

        Returns:
            The catalogue with the updates of the log.

        Raises:
            ConstraintError: The catalogue is not of kind "matrix", or lives already.
            TableFileError: The file is no log, one of another catalogue, damaged before its end, or in use.

        Examples:
            >>> shop = Catalogue.of([[3, 1]], ["shoe"], vocab_size=4, kind="matrix").live(capacity=1_000)
        """
        matrix = matrix_of(self.table, "live catalogues")
        header = CatalogueHeader(self.code_tokens, self.vocabulary, self.metadata)
        rows = ItemRows.of(matrix, self.ids)
        return self._of_store(ItemStore(header, rows, matrix, capacity, widths=widths, log=log))

    @classmethod
    def open(
        cls, path: str | os.PathLike[str], capacity: int = 1 << 16, *, vocabulary: Vocabulary | None = None,
        widths: tuple[int, ...] | None = None, log: str | os.PathLike[str] | None = None, follow: bool = False,
    ) -> Catalogue:  # fmt: skip
        """Return a catalogue that lives and begins with a file that `save` wrote.

        Args:
            path: The file, of a catalogue that lives or one of kind "matrix". Rows of items are what they were.
            capacity: As in `live`.
            vocabulary: The one that the catalogue must be of, if that is to be checked.
            widths: As in `live`.
            log: The one that was written to when the file was saved, or another.
            follow: Whether another process writes to the log: this one reads it, and `publish` returns the version of
                its last whole update. Any number of processes may follow a log, each with a capacity of its own.

        Returns:
            The catalogue with the updates of the log.

        Raises:
            FileNotFoundError: There is no such file, or no log to follow.
            ConstraintError: The catalogue in the file is not of kind "matrix", or file and log are one.
            TableFileError: As in `load`, and as of `live` for the log.
            VocabularyMismatchError: The file is of another vocabulary.

        Examples:
            >>> shop = Catalogue.open("shop.catalogue", log="updates.log")  # doctest: +SKIP
        """
        if log is not None:
            check_apart(path, Path(log))
        fingerprint = None if vocabulary is None else vocabulary.fingerprint
        if follow:
            return cls._of_store(ItemFollower(path, log, fingerprint, capacity, widths=widths))
        if is_fixed(path):
            return cls.load(path, vocabulary=vocabulary).live(capacity, widths=widths, log=log)
        return cls._of_store(ItemStore.opened(path, fingerprint, capacity, widths=widths, log=log))

    @classmethod
    def _of_store(cls, store: ItemStore | ItemFollower) -> Catalogue:
        table, ids = store.publish()
        made = cls(table, ids, *store.header)
        object.__setattr__(made, "_store", store)
        return made

    @property
    def _living(self) -> ItemStore | ItemFollower:
        """The store of a catalogue that lives. Raises ConstraintError for one that is fixed."""
        if self._store is None:
            advice = Advice("Call live(), or open its file with Catalogue.open.")
            raise ConstraintError("this catalogue is fixed: its items neither come nor go", remedies=[advice])
        return self._store

    @property
    def _changing(self) -> ItemStore:
        """The store of a catalogue that this process changes. Raises ConstraintError for others."""
        if isinstance(self._living, ItemFollower):
            raise ConstraintError("this catalogue follows the log of another process, which alone changes its items")
        return self._living

    @property
    def num_added(self) -> int:
        """How many sequences the store has beside those of the last `compact`: the capacity at most."""
        return self._living.num_delta

    def insert(self, sids: Any, items: Any) -> None:
        """Add items to the store: `publish` shows them. Each takes the next row.

        Args:
            sids: (N, L) codes, as those of the catalogue.
            items: (N,) ids. One that is there already has one semantic ID more.

        Raises:
            ConstraintError: A code has no token, ids are of another kind, there is no room for more sequences, or the
                catalogue is fixed. None was added.
        """
        self._changing.insert(sids, items)

    def delete(self, items: Any) -> None:
        """Remove items from the store: `publish` shows that. A call looks through all ids: give many at once.

        Args:
            items: (n,) ids; all items that have one of them go.

        Raises:
            ConstraintError: No item has one of the ids, or the catalogue is fixed. None was removed.
        """
        self._changing.delete(items)

    def publish(self) -> Catalogue:
        """Return the next version: the items of the store as they are now, for searches that begin from now on.

        Returns:
            The catalogue, whose table `ops.with_snapshot` puts in the place of that of an earlier version. The table of
            one that follows a log is the same as long as nothing came.

        Raises:
            ConstraintError: The catalogue is fixed.
            FileNotFoundError, TableFileError: The log that it follows is gone, damaged, or one of another catalogue.
        """
        return self._of_store(self._living)

    def compact(self) -> None:
        """Make room for more sequences: in a thread of its own, while all else goes on.

        Shapes on devices stay as they are for several times the capacity; then JAX and torch compile once.

        Raises:
            ConstraintError: There is no room for what came meanwhile, or the catalogue is fixed. Nothing changed.
        """
        self._changing.compact()

    def close(self) -> None:
        """Close the log of the store, so that another may write to it. Updates then raise ValueError.

        Raises:
            ConstraintError: The catalogue is fixed.
        """
        self._changing.close()

    def fixed(self) -> Catalogue:
        """Return the items that the store has now as a catalogue that is fixed, its rows numbered anew.

        Raises:
            ConstraintError: There is no item left.
        """
        if self._store is None:
            return self
        matrix, ids = self._store.live_rows()
        return replace(self, table=matrix, ids=ids)

    # ------------------------------------------------------------------------------------------------ files

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the catalogue to one file, in full or not at all.

        Of a catalogue that lives these are all rows that the store has now, for `open`: it is compacted, and once the
        file is on the disk a log begins anew, with what came meanwhile. A crash at any time loses no update: keep file
        and log together. Call it in a thread of its own.

        Args:
            path: The file.

        Raises:
            FileNotFoundError: There is no folder for it.
            ConstraintError: No item is left, or the file is the log.
            OSError: The file cannot be written. A log goes on as it was.

        Examples:
            >>> Catalogue.of([[3, 1]], ["shoe"], vocab_size=4).save("shop.catalogue")  # doctest: +SKIP
        """
        if self._store is not None:
            self._changing.compact(save=Path(path))
            return
        assert not isinstance(self.table, Snapshot)  # which a store goes with
        write_fixed(path, CatalogueHeader(self.code_tokens, self.vocabulary, self.metadata), self.table, self.ids)

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, vocabulary: Vocabulary | None = None) -> Catalogue:
        """Return the fixed catalogue in a file that `save` wrote. Open one that lives with `open`.

        Args:
            path: The file.
            vocabulary: The one that the catalogue must be of, if that is to be checked.

        Returns:
            The catalogue, as it was saved.

        Raises:
            FileNotFoundError: There is no such file.
            TableFileError: The file is truncated, no fixed catalogue, of another format version, or was changed.
            VocabularyMismatchError: The file is of another vocabulary.

        Examples:
            >>> catalogue = Catalogue.load("shop.catalogue")  # doctest: +SKIP
        """
        header, table, ids = read_fixed(path, None if vocabulary is None else vocabulary.fingerprint)
        return cls(table, ids, *header)

    # ----------------------------------------------------------------------------------------------- shards

    build_shards = staticmethod(build_shards)

    @classmethod
    def merge_shards(cls, folder: str | os.PathLike[str], *, kind: Kind = "table") -> Catalogue:
        """Return the catalogue of all shards: array for array that of `from_parquet` over the same files.

        Shards are read and checked one by one.

        Args:
            folder: That of `build_shards`.
            kind: "matrix" for a sorted matrix, which is joined in memory little above its own size; a table is compiled
                from the joined rows.

        Returns:
            The catalogue.

        Raises:
            FileNotFoundError: There is no manifest.
            TableFileError: The shard that it names is missing, truncated or was changed.
            ConstraintError: There are more rows than a sorted matrix may have.

        Examples:
            >>> catalogue = Catalogue.merge_shards("shards", kind="matrix")  # doctest: +SKIP
        """
        return cls(*merged(folder, kind))

    @staticmethod
    def open_shards(folder: str | os.PathLike[str], shards: int) -> ShardedFiles:
        """Return the shards of a build, to be put on devices without a merge: each process reads those of its own.

        Args:
            folder: That of `build_shards`.
            shards: N, the devices, as many as there are files at most.

        Returns:
            What `to_device` takes with a mesh: files with `filter`, `locate` and `manifest`.

        Raises:
            FileNotFoundError: There is no manifest.
            TableFileError: The manifest is damaged.
            ConstraintError: There are fewer files, or sequences have fewer than three tokens.
        """
        return ShardedFiles(folder, shards)

    def shards(self, shards: int) -> ShardedMatrix:
        """Return the catalogue's sorted matrix cut into intervals of rows, to be put on as many devices.

        A catalogue that lives needs no cutting: `to_device` takes its `table` with a mesh.

        Args:
            shards: N, the devices.

        Returns:
            What `to_device` takes with a mesh.

        Raises:
            ConstraintError: N is less than one, sequences have fewer than three tokens, or the catalogue is not of kind
                "matrix".
        """
        return ShardedMatrix(matrix_of(self.table, "shards"), shards)
