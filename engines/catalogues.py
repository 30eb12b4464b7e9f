"""Catalogues of semantic IDs that an engine's operator names, and which of them a request asks for."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from safetensors import safe_open

from ..compile.catalogue import Catalogue
from ..errors import ConstraintError, DataError, MaskwrightError
from ..table.sid_filter import SidFilter
from ..table.snapshot import Snapshot
from ..table.sorted_matrix import SortedMatrix
from ..table.transition_table import TransitionTable
from .options import VARIABLE, EngineOptions, options_of

CATALOGUE, FILTER, DENY = "maskwright_catalogue", "maskwright_filter", "maskwright_deny"
PREFIX = "maskwright_"

SidConstraint = TransitionTable | SortedMatrix | SidFilter


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


class Catalogues:
    """All catalogues and filters that options name, read once.

    Raises ConstraintError for a file that is not there or holds something else, by the name that it has in the options.
    """

    def __init__(self, options: EngineOptions) -> None:
        self._held: dict[str, Catalogue | TransitionTable] = {}
        for name, path in options.catalogues.items():
            try:
                self._held[name] = _read(path)
            except (MaskwrightError, OSError) as error:
                raise ConstraintError(f"catalogues: {name!r}: {error}", argument=VARIABLE) from error
        self._used: dict[str, NDArray[np.bool_]] = {}
        self._filters: dict[str, tuple[str, SidFilter]] = {}
        for name, (of, path) in options.filters.items():
            try:
                self._filters[name] = (of, self._table(of).filter(_booleans(path)))
            except (MaskwrightError, OSError) as error:
                raise ConstraintError(f"filters: {name!r}: {error}", argument=VARIABLE) from error

    def __len__(self) -> int:
        return len(self._held)

    def tables(self) -> dict[str, TransitionTable | SortedMatrix]:
        """Return the tables and sorted matrices by name."""
        return {name: _table_of(held) for name, held in self._held.items()}

    def constraint(self, asked: CatalogueRequest) -> SidConstraint:
        """Return what answers to a request are members of.

        Raises ConstraintError, with the field as its argument: for names that there are not, denied ids of a table
        that has no items, and where no item is left.
        """
        held = self._held.get(asked.catalogue)
        if held is None:
            there = ", ".join(map(repr, sorted(self._held))) or "none"
            raise ConstraintError(f"names {asked.catalogue!r}, and there are {there}", argument=CATALOGUE)
        found = [self._filter(asked, name) for name in asked.filters]
        if asked.deny:
            found.append(self._without(held, asked))
        if not found:
            return _table_of(held)
        kept = found[0]
        for each in found[1:]:
            kept = kept & each
        if not kept.rows.any():
            field = DENY if asked.deny else FILTER
            raise ConstraintError(f"leaves no item of the catalogue {asked.catalogue!r}", argument=field)
        return kept

    def check(self, vocab_size: int, ends: Mapping[int, str]) -> None:
        """Raise ConstraintError for a catalogue that a model cannot write.

        vocab_size: V of the model. ends: the tokens that end an answer, by how they are called in an error: the
        tokenizer's own must come first. A catalogue's sequences may end with that one, and beside it with others of
        them.
        """
        for name, held in self._held.items():
            table = _table_of(held)
            if table.vocab_size > vocab_size:
                raise ConstraintError(
                    f"catalogues: {name!r} has {table.vocab_size:,} tokens, and the model {vocab_size:,}: make it for "
                    "this model",
                    argument=VARIABLE,
                )
            for token, what in ends.items():
                if self.uses(name, token):
                    raise ConstraintError(
                        f"catalogues: {name!r} has token {token} in a semantic ID, and it is {what}, which ends an "
                        "answer: make it with other tokens",
                        argument=VARIABLE,
                    )
            own = next(iter(ends), None)
            if table.eos is not None and table.eos != own:
                raise ConstraintError(
                    f"catalogues: {name!r} ends with token {table.eos}, and answers of this model with {own}: make it "
                    "without eos",
                    argument=VARIABLE,
                )
            for token in table.ends:
                if token not in ends:
                    raise ConstraintError(
                        f"catalogues: {name!r} ends with token {token} too, which ends no answer of this model: make "
                        "it without that end",
                        argument=VARIABLE,
                    )

    def uses(self, name: str, token: int) -> bool:
        """Return whether any semantic ID of a catalogue has a token. Raises KeyError for a name that there is not."""
        used = self._used.get(name)
        if used is None:
            used = self._used[name] = _tokens_of(_table_of(self._held[name]))
        return 0 <= token < used.size and bool(used[token])

    def _table(self, name: str) -> TransitionTable | SortedMatrix:
        held = self._held.get(name)
        if held is None:
            raise ConstraintError(f"there is no catalogue {name!r}")
        return _table_of(held)

    def _filter(self, asked: CatalogueRequest, name: str) -> SidFilter:
        of, found = self._filters.get(name, ("", None))
        if found is None:
            there = ", ".join(map(repr, sorted(self._filters))) or "none"
            raise ConstraintError(f"names {name!r}, and there are {there}", argument=FILTER)
        if of != asked.catalogue:
            raise ConstraintError(
                f"names {name!r}, a filter of the catalogue {of!r} and not of {asked.catalogue!r}", argument=FILTER
            )
        return found

    def _without(self, held: Catalogue | TransitionTable, asked: CatalogueRequest) -> SidFilter:
        if not isinstance(held, Catalogue):
            raise ConstraintError(
                f"needs a catalogue with items, and {asked.catalogue!r} is a table without: the server's operator "
                "makes it with Catalogue.of",
                argument=DENY,
            )
        kind = str if held.ids.numbers is None else int
        for each in asked.deny:
            if not isinstance(each, kind):
                named = "strings" if kind is str else "integers"
                raise ConstraintError(
                    f"has {each!r}, and ids of the catalogue {asked.catalogue!r} are {named}", argument=DENY
                )
        kept = held.without(list(asked.deny))
        assert isinstance(kept, SidFilter)  # no file holds a live set
        return kept


def catalogues_here() -> Catalogues:
    """Return the catalogues that this process's options name, read the first time. Raises ConstraintError."""
    return _read_once(os.environ.get(VARIABLE, ""))


@cache
def _read_once(options: str) -> Catalogues:
    return Catalogues(options_of({VARIABLE: options}))


def _table_of(held: Catalogue | TransitionTable) -> TransitionTable | SortedMatrix:
    table = held.table if isinstance(held, Catalogue) else held
    assert not isinstance(table, Snapshot)  # which no file holds
    return table


def _read(path: str) -> Catalogue | TransitionTable:
    """Return the catalogue or the table of sequences in a file. Raises ConstraintError, OSError, TableFileError."""
    if _kind_of(path) == "maskwright":
        table = TransitionTable.load(path)
        if not table.is_trie:
            raise ConstraintError(
                f"{path} has the table of a text, not of semantic IDs: structured outputs take its source"
            )
        return table
    return Catalogue.load(path)


def _kind_of(path: str) -> str:
    """Return by what name a file's header goes, "" where it has none that is known."""
    try:
        with safe_open(path, framework="numpy") as file:
            return "maskwright" if "maskwright" in (file.metadata() or {}) else ""
    except Exception:  # what is wrong with it the loader of a catalogue says
        return ""


def _booleans(path: str) -> NDArray[np.bool_]:
    """Return the array in a file of numpy's. Raises DataError, OSError."""
    try:
        found = np.load(path, allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise DataError(f"{path} is no array of numpy's: {error}") from None
    return np.asarray(found)


def _tokens_of(table: TransitionTable | SortedMatrix) -> NDArray[np.bool_]:
    """Return which tokens are in any sequence: (V,)."""
    used = np.zeros(table.vocab_size, np.bool_)
    tokens = table.columns.reshape(-1) if isinstance(table, SortedMatrix) else table.edges.token
    used[tokens[tokens < table.vocab_size]] = True
    return used
