"""Tables by what they were compiled from: each compiled once, kept in memory and, if wanted, in a folder."""

from __future__ import annotations

import contextlib
import copy
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from ...automata.budget import Budget
from ...errors import AllowKeyword, BudgetError, ConstraintError, NoTableError, SchemaError
from ...lazy.lazy_table import Compiled, LazyTable
from ...table.transition_table import TransitionTable
from ...table.weak_cache import memory_of
from ...vocabulary.vocabulary import Vocabulary
from ..arguments import check_vocabulary
from ..constraint_source import Source
from ..grammar.notations import Syntax
from ..json_schema.approximations import allowed_keywords
from .compilers import Allowance, Compiles, compile_all, reading_budget
from .folder import Folder, Key, key_of


class CacheStats(NamedTuple):
    """What a cache holds, and what it was asked for since it was made."""

    entries: int  # tables and errors
    bytes: int
    hits: int  # answered from memory
    waits: int  # answered by a compilation that another thread had begun
    disk_hits: int  # answered from the folder
    compilations: int  # of which those with errors are
    failures: int
    evictions: int


@dataclass
class Counts:
    """The counts of one cache, kept under its lock."""

    hits: int = 0
    waits: int = 0
    disk_hits: int = 0
    compilations: int = 0
    failures: int = 0
    evictions: int = 0
    bytes: int = 0  # of all entries

    def stats(self, entries: int) -> CacheStats:
        """Return the counts so far, with how many entries there are."""
        return CacheStats(
            entries, self.bytes, self.hits, self.waits, self.disk_hits, self.compilations, self.failures, self.evictions
        )


_SPELLINGS = 4  # of one source, kept with it


class Warmed(NamedTuple):
    """What `warm` did, by the position of each schema."""

    tables: int  # how many are there now
    errors: dict[int, ConstraintError]


@dataclass(eq=False)
class _Entry:
    """A table, or why there is none."""

    found: Compiled | ConstraintError
    spellings: list[Any]  # by which it was asked for
    bytes: int = 0
    own: int = 0  # of these, what does not change

    def size(self) -> int:
        """Return the bytes that are held for it now; a lazy table grows as it is read."""
        return self.own + (0 if isinstance(self.found, ConstraintError) else memory_of(self.found))


class Cache:
    """Compiled tables of one vocabulary, for any number of threads.

    Each source is compiled once, however many threads ask for it at the same time. One that cannot be compiled is kept
    as well, and raises the same error again, unless only time ran out. What was asked for least recently goes first;
    lazy tables grow while they are read, and count as large as they are when they are asked for. A table that somebody
    still uses stays whole, whatever the cache forgets.

    Args:
        vocabulary: That of all tables.
        max_bytes: The most bytes in memory.
        max_entries: The most tables and errors in memory.
        directory: Where tables are kept on disk too, for other processes and later ones. Of lazy tables that is what
            `LazyTable.to_table` works out. Damaged files are made again, and a folder that cannot be written is done
            without.
        directory_bytes: The most bytes on disk.
        compilers: Processes that compile in place of the threads that ask, under hard limits, or `InThread` for the
            same without processes. Whoever makes the cache starts and closes them. What begins soon is then compiled by
            the thread that asks, once a process has tried it, and is lazy; each mask and token of it has half a second
            at most. Whole are tables that were not asked for as lazy ones, those that take long to begin, and those
            that are soon made where there are no bounds of ends.

    Raises:
        TypeError: A limit is no integer, or there is no vocabulary.
        ValueError: A limit is less than 1.

    Examples:
        >>> vocab = Vocabulary.from_bytes([b"", *(bytes([b]) for b in range(256))], eos=0)
        >>> cache = Cache(vocab)
        >>> cache.compile_regex("[ab]+") is cache.compile_regex("[ab]+"), cache.stats.compilations
        (True, 1)
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        *,
        max_bytes: int = 1 << 30,
        max_entries: int = 10_000,
        directory: str | os.PathLike[str] | None = None,
        directory_bytes: int = 4 << 30,
        compilers: Compiles | None = None,
    ) -> None:
        check_vocabulary(vocabulary)
        for name, limit in (
            ("max_bytes", max_bytes),
            ("max_entries", max_entries),
            ("directory_bytes", directory_bytes),
        ):
            if isinstance(limit, bool) or not isinstance(limit, int):
                raise TypeError(f"{name} must be an integer, not {type(limit).__name__}")
            if limit < 1:
                raise ValueError(f"{name}={limit} must be 1 or more")
        self.vocabulary, self.max_bytes, self.max_entries = vocabulary, max_bytes, max_entries
        self._folder = None if directory is None else Folder(Path(directory), directory_bytes, vocabulary)
        self._lock = threading.Lock()
        self._entries: OrderedDict[Any, _Entry] = OrderedDict()
        self._key_of: dict[Any, Any] = {}  # by spelling
        self._running: dict[Any, Future[_Entry]] = {}
        self._counts = Counts()
        self.compilers = compilers
        self._shared: Allowance | None = None
        self._compiles = True

    # ------------------------------------------------------------------------------------------------ asking

    def compile(self, source: Source, budget: Budget | None = None) -> Compiled:
        """Return the table of a source.

        The order of keys in JSON has a meaning, and makes another table; spacing has none. Why a grammar has no arrays
        is remembered as well, once somebody has asked for them.

        Args:
            source: Of any kind.
            budget: Limits of this compilation, if there is one; tables of other budgets are others.

        Returns:
            The table, as `Source.compile` makes it.

        Raises:
            ConstraintError: What `Source.compile` raises.

        Examples:
            >>> cache = Cache(Vocabulary.from_bytes([b"", *(bytes([b]) for b in range(256))], eos=0))
            >>> cache.compile(Source.choices(["a", "b"])).accepts([98])
            True
        """
        spelling = source.spelling
        if spelling is not None and (entry := self._known((spelling, budget))) is not None:
            return _answer(entry)
        hashed = source.key(self.vocabulary)
        if hashed is None:
            return source.compile(self.vocabulary, budget)  # which says what is wrong
        return self._get(
            key_of(source, hashed, budget), None if spelling is None else (spelling, budget), source, budget
        )

    def compile_json_schema(
        self, schema: object, *, lazy: bool = True, budget: Budget | None = None, **options: Any
    ) -> Compiled:
        """Return the table of a JSON Schema: short for `compile(Source.json_schema(..))`."""
        return self.compile(Source.json_schema(schema, lazy=lazy, **options), budget)

    def compile_regex(
        self, pattern: str, *, flags: str = "", lazy: bool = True, budget: Budget | None = None
    ) -> Compiled:
        """Return the table of a pattern: short for `compile(Source.regex(..))`."""
        return self.compile(Source.regex(pattern, flags=flags, lazy=lazy), budget)

    def compile_choices(self, choices: Iterable[str], *, budget: Budget | None = None) -> TransitionTable:
        """Return the table of a list of texts: short for `compile(Source.choices(..))`."""
        return self.compile(Source.choices(choices), budget).to_table()

    def compile_grammar(
        self, grammar: str, *, start: str | None = None, syntax: Syntax = "lark", depth: int = 64,
        budget: Budget | None = None,
    ) -> Compiled:  # fmt: skip
        """Return the table of a grammar: short for `compile(Source.grammar(..))`."""
        return self.compile(Source.grammar(grammar, start=start, syntax=syntax, depth=depth), budget)

    def compile_structural_tag(self, tag: object, *, budget: Budget | None = None, **options: Any) -> Compiled:
        """Return the table of text with tags: short for `compile(Source.structural_tag(..))`."""
        return self.compile(Source.structural_tag(tag, **options), budget)

    def warm(
        self, sources: Sequence[Any], *, processes: int | None = None, progress: bool = False, **options: Any
    ) -> Warmed:
        """Compile JSON Schemas in parallel processes, whole tables, so that asking for them finds them.

        What cannot be compiled is kept as an error; a table that is larger than its budget allows is left out, since a
        lazy one may still do. A lazy one that is there is worked out here.

        Args:
            sources: The schemas.
            processes: How many compile at once; None for as many as there are processors.
            progress: Whether to show a bar.
            **options: Of `compile_json_schema`, with which they will be asked for.

        Returns:
            How many schemas have tables, and what is wrong with the others, by their places.

        Raises:
            TypeError: `sources` is one schema, not a list of some.
            ValueError: `processes` is no integer, 1 or more.

        Examples:
            >>> cache.warm([{"type": "integer"}], processes=2)  # doctest: +SKIP
        """
        if isinstance(sources, (str, bytes, Mapping)):
            raise TypeError("warm takes a list of schemas, not one")
        if processes is not None and (isinstance(processes, bool) or not isinstance(processes, int) or processes < 1):
            raise ValueError(
                f"processes={processes!r} must be an integer, 1 or more, or None for as many as processors"
            )
        from rich.progress import Progress

        budget = options.pop("budget", None)
        if "allow" in options:  # which may be read only once
            options["allow"] = allowed_keywords(options["allow"])
        asked = [Source.json_schema(schema, **options) for schema in sources]
        wanted = [(n, *self._wanted(each, budget)) for n, each in enumerate(asked)]
        found: dict[Any, Compiled | ConstraintError] = {}
        places: dict[Any, list[int]] = {}
        for n, key, _ in wanted:
            if key is not None:
                places.setdefault(key, []).append(n)
        mine: dict[Any, Future[_Entry]] = {}
        others: dict[Any, Future[_Entry]] = {}
        for key in places:
            kept = None if self._folder is None else self._folder.read(key)
            with self._lock:
                if key in self._entries:
                    found[key] = self._entries[key].found
                elif key in self._running:
                    others[key] = self._running[key]
                elif kept is None:
                    mine[key] = self._running[key] = Future()
                else:
                    self._counts.disk_hits += 1
            if kept is not None and key not in found and key not in others:
                found[key] = self._keep(key, None, kept).found
        try:
            with Progress(disable=not progress, transient=True) as bar:
                task = bar.add_task("compiling", total=len(mine))
                jobs = [(key, asked[places[key][0]].whole) for key in mine]
                for key, made in compile_all(self.vocabulary, jobs, budget, processes):
                    bar.advance(task)
                    found[key] = made
                    with self._lock:
                        self._counts.compilations += 1
                        self._counts.failures += isinstance(made, ConstraintError)
                    if not isinstance(made, BudgetError) and not _is_of_tables(made):
                        entry = self._keep(key, None, made)
                        self._write(key, made)
                        with self._lock:
                            del self._running[key]
                        mine.pop(key).set_result(entry)
        finally:
            with self._lock:
                for key in mine:
                    del self._running[key]
            for waiting in mine.values():
                waiting.set_exception(_AbandonedError())  # who waits makes it, perhaps lazily
        for key, running in others.items():
            with contextlib.suppress(_AbandonedError):
                found[key] = running.result().found
        for key, there in found.items():
            if isinstance(there, LazyTable):
                try:
                    there.to_table()
                except (BudgetError, NoTableError) as error:
                    found[key] = error
        wrong = {n: error for n, _, error in wanted if error is not None}
        for key, where in places.items():
            each = found.get(key)
            if isinstance(each, ConstraintError):
                wrong.update(dict.fromkeys(where, each))
        compiled = {key for key, each in found.items() if not isinstance(each, ConstraintError)}
        tables = sum(len(where) for key, where in places.items() if key in compiled)
        return Warmed(tables, dict(sorted(wrong.items())))

    def _wanted(self, source: Source, budget: Budget | None) -> tuple[Any, ConstraintError | None]:
        """Return the key of a schema, or what is wrong with it."""
        try:
            return key_of(source, source.key(self.vocabulary) or "", budget), None
        except ConstraintError as error:
            return None, error

    @property
    def stats(self) -> CacheStats:
        """What the cache holds, and what it was asked for."""
        with self._lock:
            return self._counts.stats(len(self._entries))

    def without_compiling(self) -> Cache:
        """Return a view of this cache that only answers from memory, and raises NotCompiledError for all else."""
        view = copy.copy(self)
        view._compiles = False
        return view

    def sharing(self, seconds: Allowance) -> Cache:
        """Return a view of this cache, made with compilers, whose compilations share some seconds.

        Args:
            seconds: What they share.

        Returns:
            The view.
        """
        view = copy.copy(self)
        view._shared = seconds
        return view

    def clear(self) -> None:
        """Forget all tables and errors in memory; what is in the folder stays."""
        with self._lock:
            self._entries.clear()
            self._key_of.clear()
            self._counts.bytes = 0

    # ----------------------------------------------------------------------------------------------- memory

    def _known(self, spelling: object) -> _Entry | None:
        """Return what was found before for a spelling."""
        with self._lock:
            key = self._key_of.get(spelling)
            return None if key is None else self._hit(key)

    def _hit(self, key: Key) -> _Entry | None:
        """Return the entry of a key, as the one asked for most recently; under the lock."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        self._entries.move_to_end(key)
        self._counts.hits += 1
        size = entry.size()
        if size != entry.bytes:
            self._counts.bytes += size - entry.bytes
            entry.bytes = size
            self._make_room()
        return entry

    def _get(self, key: Key, spelling: object, source: Source, budget: Budget | None) -> Compiled:
        """Return what there is for a key, or make it, while others who want it wait."""

        def make() -> Compiled:
            if self.compilers is None:
                return source.compile(self.vocabulary, budget)
            found: Compiled | None = self.compilers.compile(source, budget, self._shared)
            return source.compile(self.vocabulary, reading_budget(budget)) if found is None else found

        while True:
            with self._lock:
                entry = self._hit(key)
                if entry is not None:
                    self._spelled(key, entry, spelling)
                    return _answer(entry)
                if not self._compiles:
                    raise NotCompiledError
                running = self._running.get(key)
                if running is None:
                    mine = self._running[key] = Future()
                    break
                self._counts.waits += 1
            try:
                return _answer(running.result())
            except _AbandonedError:  # whoever had begun was interrupted
                continue
        first: list[ConstraintError] = []
        try:
            entry = self._made(key, spelling, make, first)
        except BaseException:
            with self._lock:
                del self._running[key]
            mine.set_exception(_AbandonedError())
            raise
        with self._lock:
            del self._running[key]
        if first and _is_late(first[0]) and self._shared is not None:
            mine.set_exception(_AbandonedError())  # others have seconds of their own
        else:
            mine.set_result(entry)
        if first:
            raise first[0]
        return _answer(entry)

    def _made(self, key: Key, spelling: object, make: Callable[[], Compiled], first: list[ConstraintError]) -> _Entry:
        """Return a new entry, read or compiled; an error is put into `first` as it came, with what caused it."""
        kept = None if self._folder is None else self._folder.read(key)
        with self._lock:
            self._counts.disk_hits += kept is not None
            self._counts.compilations += kept is None
        if kept is not None:
            return self._keep(key, spelling, kept)
        found: Compiled | ConstraintError
        try:
            found = make()
        except ConstraintError as error:
            first.append(error)
            found = copy.copy(error)  # without the frames that it came through
        if isinstance(found, LazyTable):
            self._keep_arrays(key, found)
        else:
            self._write(key, found)
        with self._lock:
            self._counts.failures += isinstance(found, ConstraintError)
        if isinstance(found, ConstraintError) and _is_late(found):
            return _Entry(found, [], own=0)  # for those who wait; the next one may find a faster moment
        return self._keep(key, spelling, found)

    def _keep(self, key: Key, spelling: object, found: Compiled | ConstraintError) -> _Entry:
        entry = _Entry(found, [], own=1024 + _length(key))
        with self._lock:
            before = self._entries.pop(key, None)
            if before is not None:
                self._forget(before)
            self._spelled(key, entry, spelling)
            entry.bytes = entry.size()
            self._counts.bytes += entry.bytes
            self._entries[key] = entry
            self._make_room()
        return entry

    def _spelled(self, key: Key, entry: _Entry, spelling: object) -> None:
        """Note how an entry was asked for; under the lock."""
        if spelling is None or spelling in self._key_of:
            return
        if len(entry.spellings) >= _SPELLINGS:
            oldest = entry.spellings.pop(0)
            self._key_of.pop(oldest, None)
            entry.own -= _length(oldest)
        entry.spellings.append(spelling)
        self._key_of[spelling] = key
        entry.own += _length(spelling)

    def _make_room(self) -> None:
        """Forget what was asked for least recently, but for the last; under the lock."""
        while len(self._entries) > 1 and (self._counts.bytes > self.max_bytes or len(self._entries) > self.max_entries):
            _, entry = self._entries.popitem(last=False)
            self._forget(entry)
            self._counts.evictions += 1

    def _forget(self, entry: _Entry) -> None:
        self._counts.bytes -= entry.bytes
        for spelling in entry.spellings:
            self._key_of.pop(spelling, None)

    # ------------------------------------------------------------------------------------------------- disk

    def _keep_arrays(self, key: Key, table: LazyTable) -> None:
        """Have a lazy table's arrays kept in the folder once they are worked out, or here why that cannot be done."""
        folder = self._folder
        why: list[ConstraintError] = []

        def around(make: Callable[[], TransitionTable]) -> TransitionTable:
            if why:  # found out once, which may have taken a whole budget
                raise copy.copy(why[0])
            there = None if folder is None else folder.read(key)
            if isinstance(there, TransitionTable):  # another process may have been quicker
                return there
            try:
                made = make()
            except ConstraintError as error:
                if error.limit != "seconds":
                    why.append(copy.copy(error))
                raise
            if folder is not None:
                folder.write(key, made)
            return made

        table.keep_with(around)

    def _write(self, key: Key, found: TransitionTable | ConstraintError) -> None:
        if self._folder is not None:
            self._folder.write(key, found)


def _is_late(error: ConstraintError) -> bool:
    """Whether an error says that time ran out, of which another compilation may have more."""
    return error.limit == "seconds"


class NotCompiledError(Exception):
    """What a view of a cache that does not compile has no answer to."""


class _AbandonedError(Exception):
    """A compilation that was interrupted."""


def _answer(entry: _Entry) -> Compiled:
    """Return an entry's table, or raise its error: a new one each time, as errors gather frames they come through."""
    if not isinstance(entry.found, ConstraintError):
        return entry.found
    raise copy.copy(entry.found)


def _length(key: object) -> int:
    """Return about how many bytes a key takes."""
    if isinstance(key, tuple):
        return sum(map(_length, key))
    return len(key) if isinstance(key, (str, bytes)) else 64


def _is_of_tables(made: object) -> bool:
    """Return whether a schema is refused as a table, which a matcher may still keep to: `uniqueItems` of any values."""
    return (
        isinstance(made, SchemaError)
        and made.keyword == "uniqueItems"
        and any(isinstance(each, AllowKeyword) for each in made.remedies)
    )
