"""`Catalogue`: semantic IDs and the items that they stand for: made, filtered, changed, looked up, saved and cut."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ..errors import Advice, ConstraintError
from ..table.item_ids import ItemIds
from ..table.sharded_files import ShardedFiles
from ..table.sharded_matrix import ShardedMatrix
from ..table.snapshot import Snapshot
from ..table.update_log import check_apart
from ..vocabulary.token_ids import EndTokens
from ..vocabulary.vocabulary import Vocabulary
from .catalogue_file import CatalogueHeader, ItemRows, is_fixed, matrix_of, read_fixed, write_fixed
from .columns import Columns, columns_of
from .item_follower import ItemFollower
from .item_store import ItemStore
from .items import Items
from .parquet import ParquetRows, read_with_names, read_with_offsets
from .sequences import compile_sids, progress_bar, rectangle, sort_sids
from .shards.build import build_shards
from .shards.merge import merged
from .sid_tokens import CodeTokens, check_names, check_written, code_tokens_of, vocab_size_of
from .token_names import are_names, tokens_of_names

Kind = Literal["table", "matrix"]


@dataclass(frozen=True, eq=False)
class Catalogue(Items):
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
        columns: Values of the items by the names of columns, (N,) by row: `columns["price"].at(rows)`.
        epoch: How many updates a catalogue that lives had taken; all processes that follow one log count alike.

    Examples:
        >>> shop = Catalogue.of([[3, 1], [3, 0]], ["shoe", "hat"], 12, offsets=[0, 4], kind="matrix").live()
        >>> shop.insert([[2, 2]], ["sock"])
        1
        >>> shop.delete(["hat"])
        2
        >>> shop = shop.publish()
        >>> shop.items(shop.states([[3, 5], [3, 4], [2, 6]]))
        ['shoe', 'sock']
    """

    _store: ItemStore | ItemFollower | None = field(default=None, init=False, repr=False)

    @classmethod
    def of(
        cls, sids: object, items: object, vocab_size: int | None = None, *, offsets: int | Sequence[int] = 0,
        names: Sequence[str | Sequence[str]] | None = None, vocabulary: Vocabulary | None = None,
        eos: EndTokens | None = None, kind: Kind = "table", metadata: Mapping[str, Any] | None = None,
        columns: Mapping[str, Any] | None = None,
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
            columns: Values (N,) by the names of columns, such as `{"price": [5, 9]}`: booleans, integers, numbers or
                strings of one kind a column, None where one is missing. Whole numbers alone make a column of
                integers, which takes no 19.5 later: write one as 5.0. `where` filters by them.

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
        kept = columns_of(columns, len(ids))
        return cls._compiled(tokens, (ids, known, kept), size, vocabulary, eos, kind, metadata)

    @classmethod
    def from_parquet(
        cls, source: str | os.PathLike[str], vocab_size: int | None = None, *, sids: str | Sequence[str], items: str,
        offsets: int | Sequence[int] = 0, names: Sequence[str | Sequence[str]] | None = None,
        vocabulary: Vocabulary | None = None, eos: EndTokens | None = None, kind: Kind = "table",
        metadata: Mapping[str, Any] | None = None, columns: Sequence[str] = (),
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
            columns: Names of columns of the files that the catalogue keeps, of the kinds that `of` has.

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
        rows = ParquetRows(source, sids, items, vocabulary, columns)
        check_written(rows.are_names, offsets, names)
        if not rows.count:
            raise ConstraintError(f"there are no rows in {os.fspath(source)}: nothing could be decoded")
        size = vocab_size_of(vocab_size, vocabulary)
        with progress_bar(rows.count) as report:
            if names is None:
                tokens, ids, known, kept = read_with_offsets(rows, size, offsets, report)
            else:
                check_names(offsets, vocabulary)
                tokens, ids, known, kept = read_with_names(rows, size, names, vocabulary, report)
        return cls._compiled(tokens, (ids, known, kept), size, vocabulary, eos, kind, metadata)

    @classmethod
    def _compiled(
        cls, tokens: NDArray[Any], items: tuple[ItemIds, CodeTokens, Columns], size: int,
        vocabulary: Vocabulary | None, eos: EndTokens | None, kind: Kind, metadata: Mapping[str, Any] | None,
    ) -> Catalogue:  # fmt: skip
        if kind not in ("table", "matrix"):
            raise ConstraintError(f'must be "table" or "matrix", not {kind!r}', argument="kind")
        if kind == "matrix" and eos is not None:
            raise ConstraintError("is for tables: the sequences of a sorted matrix end by themselves", argument="eos")
        table = sort_sids(tokens, size) if kind == "matrix" else compile_sids(tokens, size, eos=eos)
        ids, known, columns = items
        fingerprint = vocabulary.fingerprint if vocabulary is not None else ""
        return cls(table, ids, known, fingerprint, dict(metadata or {}), columns)

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
        rows = ItemRows.of(matrix, self.ids, self.columns)
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
        now = store.publish()
        made = cls(now.table, now.ids, *store.header, now.columns, now.epoch, now.by_id)
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

    def insert(self, sids: Any, items: Any, columns: Mapping[str, Sequence[Any]] | None = None) -> int:
        """Add items to the store: `publish` shows them. Each takes the next row.

        Args:
            sids: (N, L) codes, as those of the catalogue.
            items: (N,) ids. One that is there already has one semantic ID more.
            columns: Values (N,) by column; of a column that is not named they are missing.

        Returns:
            The epoch that shows them.

        Raises:
            ConstraintError: A code has no token, ids or values are of another kind, or the catalogue is fixed. None was
                added.
            DeltaFullError: There is no room for more sequences before `compact`. None was added.
        """
        return self._changing.insert(sids, items, columns or {})

    def put(self, items: Any, sids: Any = None, columns: Mapping[str, Sequence[Any]] | None = None) -> int:
        """Replace or add items in the store, all at once: `publish` shows that.

        An item that keeps its semantic ID keeps its row, so that updates of its columns need no more memory. Another
        takes the next row. Where there is no room for more sequences, this compacts the store first.

        Args:
            items: (N,) ids, each once. What there is with such an id is replaced.
            sids: (N, L) codes; left out, each item is there and keeps its own.
            columns: Values (N,) by column. A column that is not named stays as it was for an item that is there, and is
                missing for another.

        Returns:
            The epoch that shows them.

        Raises:
            ConstraintError: As of `insert`; an id comes twice; or there is no such item, and no semantic ID is given.
                Nothing was changed.

        Examples:
            >>> shop = Catalogue.of([[3, 1]], ["shoe"], 4, kind="matrix", columns={"price": [70]}).live()
            >>> shop.put(["shoe", "hat"], [[3, 1], [2, 0]], {"price": [60, 20]})
            1
            >>> shop.publish().where("price < 50").num_sequences
            1
        """
        return self._changing.put(items, sids, columns or {})

    def delete(self, items: Any) -> int:
        """Remove items from the store: `publish` shows that.

        Args:
            items: (n,) ids; all items that have one of them go.

        Returns:
            The epoch that does not show them.

        Raises:
            ConstraintError: No item has one of the ids, or the catalogue is fixed. None was removed.
        """
        return self._changing.delete(items)

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
        matrix, ids, columns = self._store.live_rows()
        return replace(self, table=matrix, ids=ids, columns=columns, epoch=0, _index=None)

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
        header = CatalogueHeader(self.code_tokens, self.vocabulary, self.metadata)
        write_fixed(path, header, self.table, self.ids, self.columns)

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
        header, table, ids, columns = read_fixed(path, None if vocabulary is None else vocabulary.fingerprint)
        return cls(table, ids, *header, columns)

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
