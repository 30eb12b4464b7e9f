"""Catalogues of semantic IDs that an engine's operator names, and which of them a request asks for.

A catalogue with a log changes while the engine serves, and so does the file of a filter. Both are looked at whenever a
request asks for one, and at no other time: an update that was acknowledged before is there. A request keeps the
constraint that it was given.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Mapping
from functools import cache
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from safetensors import safe_open

from ..compile.catalogue import Catalogue
from ..compile.found_items import AnyFilter, Table, table_of
from ..errors import ConstraintError, DataError, MaskwrightError
from ..table.sid_filter import SidFilter
from ..table.snapshot import LiveFilter, Snapshot
from ..table.sorted_matrix import SortedMatrix
from ..table.transition_table import TransitionTable
from .options import VARIABLE, CatalogueFile, EngineOptions, FilterFile, options_of

CATALOGUE, FILTER, DENY = "maskwright_catalogue", "maskwright_filter", "maskwright_deny"
PREFIX = "maskwright_"

SidConstraint = Table | AnyFilter

_log = logging.getLogger(__name__)


class CatalogueRequest(NamedTuple):
    """The catalogue that an answer comes from, filters that its items pass, and ids of items that are left out."""

    catalogue: str
    filters: tuple[str, ...] = ()
    deny: tuple[Any, ...] = ()


def request_of(fields: Mapping[str, Any] | None) -> CatalogueRequest | None:
    """Return what a request's extra fields ask for, None if nothing.

    fields: "maskwright_catalogue", a name; "maskwright_filter", a name or a list of names, which must all pass;
    "maskwright_deny", a list of ids of items. Others are not maskwright's unless they begin with "maskwright_".

    Raises ConstraintError, with the field as its argument, for a field that there is not and a value of another type.

    >>> request_of({"maskwright_catalogue": "items", "maskwright_deny": [7]})
    CatalogueRequest(catalogue='items', filters=(), deny=(7,))
    """
    own = {name: value for name, value in (fields or {}).items() if name.startswith(PREFIX)}
    for name in own:
        if name not in (CATALOGUE, FILTER, DENY):
            raise ConstraintError(f"is no field: there are {CATALOGUE}, {FILTER} and {DENY}", argument=name)
    if not own:
        return None
    if CATALOGUE not in own:
        raise ConstraintError(f"needs the catalogue that it is of: add {CATALOGUE}", argument=next(iter(own)))
    name = own[CATALOGUE]
    if not isinstance(name, str):
        raise ConstraintError(f"must be the name of a catalogue, not {name!r}", argument=CATALOGUE)
    filters = own.get(FILTER, [])
    filters = [filters] if isinstance(filters, str) else filters
    if not isinstance(filters, list | tuple) or not all(isinstance(each, str) for each in filters):
        raise ConstraintError(f"must be the name of a filter, or a list of names, not {filters!r}", argument=FILTER)
    deny = own.get(DENY, [])
    if not isinstance(deny, list | tuple) or not all(type(each) in (int, str) for each in deny):
        raise ConstraintError("must be a list of ids of items, integers or strings", argument=DENY)
    return CatalogueRequest(name, tuple(filters), tuple(deny))


class _Held:
    """A catalogue that the options name, in its newest version.

    fault: why there may be newer ones that cannot be read, "" where there is none to say. ends: tokens that end an
    answer of the model. unwritable: rows of items that came with one of them: they are left out.
    """

    def __init__(self, name: str, path: CatalogueFile) -> None:
        self.name, self.lives, self.fault = name, path.log is not None, ""
        self.held = _read(path)
        self.unwritable: NDArray[np.int64] = np.zeros(0, np.int64)
        self.ends: Mapping[int, str] = {}
        self._used: tuple[object, NDArray[np.bool_]] = (None, np.zeros(0, np.bool_))

    @property
    def table(self) -> Table:
        """The table of the newest version."""
        return self.held.table if isinstance(self.held, Catalogue) else self.held

    def refresh(self) -> bool:
        """Return whether there is a newer version, and take it. Where that cannot be, `fault` and the log say why."""
        if not self.lives or not isinstance(self.held, Catalogue):
            return False
        try:
            newest, now = self.held.publish(), self.held.table
            if (newest.table.vocab_size, newest.table.max_length) != (now.vocab_size, now.max_length):
                raise self._wrong("is another one now, with other tokens: start the engine again")
        except (MaskwrightError, OSError) as error:
            if self.fault != str(error):
                _log.error("the catalogue %r stays as it was: %s", self.name, error)
            self.fault = str(error)
            return False
        self.held, self.fault = newest, ""
        if newest.table is now:
            return False
        self._leave_out(newest)
        return True

    def _leave_out(self, newest: Catalogue) -> None:
        """Find the items that the model cannot write."""
        rows = np.zeros(0, np.int64)
        ends = [token for token in self.ends if self.uses(token)]
        if ends and isinstance(newest.table, Snapshot) and newest.table.items is not None:
            items = newest.table.items
            rows = np.flatnonzero(np.isin(items.tokens, ends).any(axis=1) & items.live)
        if rows.size and not np.array_equal(rows, self.unwritable):
            _log.error(
                "%d items of the catalogue %r are left out: token %d in the semantic ID of one is %s, which ends an "
                "answer (item %r)", len(rows), self.name, ends[0], self.ends[ends[0]], newest.ids.at(rows[-1:])[0],
            )  # fmt: skip
        self.unwritable = rows

    def check(self, vocab_size: int, ends: Mapping[int, str]) -> None:
        """Raise ConstraintError if a model cannot write the catalogue; later items that it cannot are left out."""
        table = self.table
        if table.vocab_size > vocab_size:
            raise self._wrong(
                f"has {table.vocab_size:,} tokens, and the model {vocab_size:,}: make it for this model",
            )
        for token, what in ends.items():
            if self.uses(token):
                raise self._wrong(
                    f"has token {token} in a semantic ID, and it is {what}, which ends an answer: make it with other "
                    "tokens"
                )
        own = next(iter(ends), None)
        if table.eos is not None and table.eos != own:
            raise self._wrong(f"ends with token {table.eos}, and answers of this model with {own}: make it without eos")
        for token in table.ends:
            if token not in ends:
                raise self._wrong(
                    f"ends with token {token} too, which ends no answer of this model: make it without that end"
                )
        self.ends = ends

    def _wrong(self, what: str) -> ConstraintError:
        return ConstraintError(f"catalogues: {self.name!r} {what}", argument=VARIABLE)

    def uses(self, token: int) -> bool:
        """Return whether any semantic ID has a token."""
        table = self.table
        whole = table.base.matrix if isinstance(table, Snapshot) else table
        if self._used[0] is not whole:
            self._used = whole, _tokens_of(whole)
        used = 0 <= token < self._used[1].size and bool(self._used[1][token])
        if not isinstance(table, Snapshot):
            return used
        if used:  # of a row that may be gone
            used = bool(((table.base.matrix.columns == token) & table.base.live_rows(table.bits)).any())
        return used or bool((table.delta == token).any())


class _NamedFilter:
    """A filter that the options name, as its file was when it was last as it should be.

    fault: why the file of now is not taken, "" where it is.
    """

    def __init__(self, name: str, path: FilterFile, table: Table) -> None:
        self.name, self.of, self.fault, self._path = name, path.catalogue, "", path.keep
        self._stamp: tuple[int, int, int] | None = None  # of the file that was read, None if that was wrong
        self._handle = -1
        self._load(table)

    def _load(self, table: Table) -> None:
        with open(self._path, "rb") as file:
            stamp, keep = _stamp(os.fstat(file.fileno())), _booleans(file, self._path)
            self._made: AnyFilter | None = _filter(table, keep)
            self._close()
            self._handle = os.dup(file.fileno())  # held, so that no other file gets its number
        self._keep, self._stamp = keep, stamp

    def _close(self) -> None:
        handle, self._handle = self._handle, -1
        if handle >= 0:
            os.close(handle)

    __del__ = _close

    def of_table(self, table: Table) -> AnyFilter:
        """Return the filter of the newest version of its catalogue."""
        if self._made is None:
            self._made = _filter(table, self._keep)
        return self._made

    def forget(self) -> None:
        """Drop what was made of a version that is no longer the newest."""
        self._made = None

    def refresh(self, table: Table) -> None:
        """Read the file again if another took its place. Where that cannot be, `fault` and the log say why."""
        try:
            if _stamp(os.stat(self._path)) != self._stamp:
                self._load(table)
        except (MaskwrightError, OSError) as error:
            if self.fault != str(error):
                _log.error("the filter %r stays as it was: %s", self.name, error)
            self.fault, self._stamp = str(error), None
        else:
            self.fault = ""


class Catalogues:
    """All catalogues and filters that options name.

    Raises ConstraintError for a file that is not there or holds something else, by the name that it has in the options.
    """

    def __init__(self, options: EngineOptions) -> None:
        self._held: dict[str, _Held] = {}
        for name, path in options.catalogues.items():
            try:
                self._held[name] = _Held(name, path)
            except (MaskwrightError, OSError) as error:
                raise ConstraintError(f"catalogues: {name!r}: {error}", argument=VARIABLE) from error
        self._filters: dict[str, _NamedFilter] = {}
        for name, keep in options.filters.items():
            try:
                if keep.catalogue not in self._held:
                    raise ConstraintError(f"there is no catalogue {keep.catalogue!r}")
                self._filters[name] = _NamedFilter(name, keep, self._held[keep.catalogue].table)
            except (MaskwrightError, OSError) as error:
                raise ConstraintError(f"filters: {name!r}: {error}", argument=VARIABLE) from error
        self._changes, self._lock = True, threading.Lock()

    def __len__(self) -> int:
        return len(self._held)

    def tables(self) -> dict[str, Table]:
        """Return the tables, sorted matrices and newest snapshots by name."""
        return {name: held.table for name, held in self._held.items()}

    @property
    def living(self) -> list[str]:
        """The names of catalogues that change."""
        return [name for name, held in self._held.items() if held.lives]

    def keep_still(self, why: str) -> None:
        """Look at no file again, because several processes must find the same.

        Raises ConstraintError, with `why`, if a catalogue has a log.
        """
        if self.living:
            raise ConstraintError(
                f"catalogues: {self.living[0]!r} has a log, and {why}: leave the log out, or run one process for each "
                "engine",
                argument=VARIABLE,
            )
        self._changes = False

    def constraint(self, asked: CatalogueRequest, *, admits: bool = True) -> SidConstraint:
        """Return what answers to a request are members of, of the newest version.

        admits: whether a request may be refused for a file that cannot be read any more; if not, it gets what was last
        read. Raises ConstraintError, with the field as its argument: for names that there are not, denied ids of a
        table that has no items, and where no item is left. Any thread may call it.
        """
        with self._lock:
            return self._constraint(asked, admits)

    def _constraint(self, asked: CatalogueRequest, admits: bool) -> SidConstraint:
        held = self._held.get(asked.catalogue)
        if held is None:
            there = ", ".join(map(repr, sorted(self._held))) or "none"
            raise ConstraintError(f"names {asked.catalogue!r}, and there are {there}", argument=CATALOGUE)
        named = [self._filter(asked, name) for name in asked.filters]
        if self._changes:
            for each in named:  # before the items: a filter may say of an item that has just come
                each.refresh(held.table)
            if held.refresh():
                for other in self._filters.values():
                    if other.of == held.name:
                        other.forget()
        if admits:
            faults = [(CATALOGUE, held.name, held.fault), *((FILTER, each.name, each.fault) for each in named)]
            for field, name, fault in faults:
                if fault:
                    raise ConstraintError(f"names {name!r}, which cannot be read: {fault}", argument=field)
        kept: Any = held.table
        for at, each in enumerate(named):
            kept = kept & each.of_table(held.table) if at else each.of_table(held.table)
        if asked.deny or held.unwritable.size:
            kept = _without(kept, held, asked)
        if not (kept.rows.any() if isinstance(kept, SidFilter) else kept.num_sequences):
            field = DENY if asked.deny else FILTER if named else CATALOGUE
            raise ConstraintError(f"leaves no item of the catalogue {asked.catalogue!r}", argument=field)
        return kept  # type: ignore[no-any-return]

    def check(self, vocab_size: int, ends: Mapping[int, str]) -> None:
        """Raise ConstraintError for a catalogue that a model cannot write.

        vocab_size: V of the model. ends: the tokens that end an answer, by how they are called in an error: the
        tokenizer's own must come first. A catalogue's sequences may end with that one, and beside it with others of
        them.
        """
        for held in self._held.values():
            held.check(vocab_size, ends)

    def uses(self, name: str, token: int) -> bool:
        """Return whether any semantic ID of a catalogue has a token. Raises KeyError for a name that there is not.

        None has one that ends an answer of the model: such items are left out.
        """
        held = self._held[name]
        return token not in held.ends and held.uses(token)

    def _filter(self, asked: CatalogueRequest, name: str) -> _NamedFilter:
        found = self._filters.get(name)
        if found is None:
            there = ", ".join(map(repr, sorted(self._filters))) or "none"
            raise ConstraintError(f"names {name!r}, and there are {there}", argument=FILTER)
        if found.of != asked.catalogue:
            raise ConstraintError(
                f"names {name!r}, a filter of the catalogue {found.of!r} and not of {asked.catalogue!r}",
                argument=FILTER,
            )
        return found


def _without(kept: Any, held: _Held, asked: CatalogueRequest) -> AnyFilter:
    """Return what is kept without denied items, and without those that cannot be written. Raises ConstraintError."""
    catalogue = held.held
    if not isinstance(catalogue, Catalogue):
        raise ConstraintError(
            f"needs a catalogue with items, and {asked.catalogue!r} is a table without: the server's operator "
            "makes it with Catalogue.of",
            argument=DENY,
        )
    kind = str if catalogue.ids.numbers is None else int
    for each in asked.deny:
        if not isinstance(each, kind):
            named = "strings" if kind is str else "integers"
            raise ConstraintError(
                f"has {each!r}, and ids of the catalogue {asked.catalogue!r} are {named}", argument=DENY
            )
    if isinstance(kept, Snapshot | LiveFilter):
        return kept.without_rows(np.unique(np.concatenate([held.unwritable, *catalogue.rows_of(asked.deny)])))
    left = catalogue.without(list(asked.deny))
    return left if kept is held.table else kept & left


def table_and_filter(constraint: SidConstraint) -> tuple[Table, AnyFilter | None]:
    """Return what a constraint is a part of, and the filter that it is, None of the whole."""
    return table_of(constraint), constraint if isinstance(constraint, SidFilter | LiveFilter) else None


def catalogues_here() -> Catalogues:
    """Return the catalogues that this process's options name, read the first time. Raises ConstraintError."""
    return _read_once(os.environ.get(VARIABLE, ""), os.getpid())


@cache
def _read_once(options: str, process: int) -> Catalogues:
    """Return the catalogues of one process: a fork reads them anew, as the locks and threads of another are not its."""
    return Catalogues(options_of({VARIABLE: options}))


def _read(path: CatalogueFile) -> Catalogue | TransitionTable:
    """Return the catalogue or the table of sequences in a file. Raises ConstraintError, OSError, TableFileError."""
    if path.log is not None:
        return Catalogue.open(path.file, log=path.log, follow=True)
    if _kind_of(path.file) == "maskwright":
        table = TransitionTable.load(path.file)
        if not table.is_trie:
            raise ConstraintError(
                f"{path.file} has the table of a text, not of semantic IDs: structured outputs take its source"
            )
        return table
    return Catalogue.load(path.file)


def _kind_of(path: str) -> str:
    """Return by what name a file's header goes, "" where it has none that is known."""
    try:
        with safe_open(path, framework="numpy") as file:
            return "maskwright" if "maskwright" in (file.metadata() or {}) else ""
    except Exception:  # what is wrong with it the loader of a catalogue says
        return ""


def _booleans(file: IO[bytes], path: str) -> NDArray[np.bool_]:
    """Return the array in a file of numpy's. Raises DataError, OSError."""
    try:
        found = np.load(file, allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise DataError(f"{path} is no array of numpy's: {error}") from None
    return np.asarray(found)


def _filter(table: Table, keep: NDArray[Any]) -> AnyFilter:
    """Return a filter of booleans, of a version that lives of its first rows: later ones are not kept.

    Booleans beyond its rows are of items to come. Raises ConstraintError.
    """
    if isinstance(table, Snapshot) and keep.dtype == np.bool_ and keep.ndim == 1:
        keep = np.append(keep, np.zeros(max(0, table.num_items - keep.size), np.bool_))[: table.num_items]
    return table.filter(keep)


def _stamp(found: os.stat_result) -> tuple[int, int, int]:
    """Return what tells a file from one that took its place or was written to."""
    return found.st_ino, found.st_mtime_ns, found.st_size


def _tokens_of(table: TransitionTable | SortedMatrix) -> NDArray[np.bool_]:
    """Return which tokens are in any sequence: (V,)."""
    used = np.zeros(table.vocab_size, np.bool_)
    tokens = table.columns.reshape(-1) if isinstance(table, SortedMatrix) else table.edges.token
    used[tokens[tokens < table.vocab_size]] = True
    return used
