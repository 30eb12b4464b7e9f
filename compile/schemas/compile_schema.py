"""Compile JSON Schemas: states that are settled ahead where that takes little time, else states by derivatives."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from ...automata.budget import Budget, Meter
from ...automata.formulas import uncollected
from ...depth import Flat, enough_stack, inside
from ...errors import BudgetError, RegexError, SchemaError
from ...lazy.lazy_table import Compiled, LazyTable
from ...lazy.machine.lazy_machine import ByteMachine
from ...lazy.protocol import LazyMachine
from ...lazy.unique.memory import start
from ...table.transition_table import TransitionTable
from ...vocabulary.vocabulary import Vocabulary
from ..arguments import begin_budget, check_vocabulary
from ..json_schema.approximations import Approximations
from ..json_schema.request import Request, blaming_order, request, warn_of, wrong_pattern
from .witness import TakesLongError

if TYPE_CHECKING:
    from ..json_schema.layout import Whitespace
    from ..json_schema.source import Schema, SchemaSource

_MOST_SETTLED = {  # states that are settled, by what is being done: how many in any case, and for each part of a schema
    "telling the cases of a value apart": (100, 0.5),
    "finding the states of an object": (450, 1.0),
    "finding the states of an array": (500, 4.0),
}
_MOST_STATES = (10_000, 10.0)  # of other automata, such as those of patterns
_MOST_SEARCHED = 3000  # states that the search for a first text looks at


def compile_json_schema(
    schema: SchemaSource,
    vocabulary: Vocabulary,
    *,
    whitespace: Whitespace | tuple[str, str] = "flexible",
    ascii: bool = False,
    allow: Iterable[str] | Literal["all"] = (),
    documents: Mapping[str, SchemaSource] | None = None,
    any_order: bool = False,
    depth: int = 64,
    lazy: bool = True,
    budget: Budget | None = None,
) -> Compiled:
    """Compile a JSON Schema into a table that allows exactly the JSON texts, in one form, of the values that fit it.

    Every assertion is enforced exactly or refused with its JSON Pointer; formats are assertions. Declared members are
    written in the order of the schema, each key at most once. Other keys come anywhere between them; such a key may
    come again, and its last value counts.

    Args:
        schema: A dict or bool, JSON text, or a pydantic model class; of any draft from 4 to 2020-12, by its "$schema",
            else 2020-12.
        vocabulary: The tokens that texts are written with.
        whitespace: "flexible" for what json.dumps writes in any indentation, "spaced" for what it writes without one,
            "compact" for none, or the two separators between items and after keys, such as (",", ": ").
        ascii: Write characters outside ASCII as escapes, as json.dumps does unless told otherwise.
        allow: Keywords that may stay unenforced where they cannot be exact, by name, such as "uniqueItems"; or "all",
            which warns of each that does. `unenforced` of the table lists them.
        documents: Schemas by URI that "$ref" may name; nothing is ever fetched.
        any_order: Members may come in any order; declared keys still come at most once, and required ones must. Which
            came is part of a state: a `LazyTable` has the states that texts reach, its arrays up to 2^n for n keys.
        depth: How many recursive schemas may be open inside one another. Where values are classified while they are
            written, nothing limits the depth.
        lazy: Whether to return a `LazyTable`, whose arrays are only made if something asks for them.
        budget: Limits of this compilation and of what is read later.

    Returns:
        A `LazyTable`, or a `TransitionTable` if it is not to be lazy.

    Raises:
        SchemaError: The schema is malformed, fits no value or is not supported; `pointer` says where.
        BudgetError: A limit was reached.
        ConstraintError: No text fits into `depth`, or `allow` names no keyword.
        TypeError: An argument is of another type.
        ValueError: An argument has a value that it cannot have.

    Examples:
        >>> vocab = Vocabulary.from_bytes([b"", *(bytes([b]) for b in range(256)), b'{"'], eos=0)
        >>> table = compile_json_schema({"properties": {"a": {"type": "integer"}}, "required": ["a"]}, vocab)
        >>> table.accepts([257, *(1 + b for b in b'a": 1}'), 0])
        True
    """
    check_vocabulary(vocabulary)
    asked = request(
        schema, whitespace=whitespace, ascii=ascii, allow=allow, documents=documents, any_order=any_order, depth=depth
    )
    made = compile_request(asked, vocabulary, lazy=lazy, budget=budget)
    warn_of(allow, made)
    return made


def compile_request(
    asked: Request, vocabulary: Vocabulary, *, lazy: bool = True, budget: Budget | None = None
) -> Compiled:
    """Return the table of a request, as `compile_json_schema` does."""
    if not isinstance(lazy, bool):
        raise TypeError(f"lazy must be True or False, not {lazy!r}")
    from ..json_schema.library import Library

    Library.of(vocabulary, asked.layout)  # what all schemas of a vocabulary share costs none of them time
    try:
        with uncollected(), blaming_order(asked.any_order), begin_budget(budget) as meter, enough_stack(_TOO_DEEP):
            if not lazy:
                return _Settled(asked, vocabulary, meter).table(meter)
            made = _with_memory(asked, vocabulary, meter)
    except RegexError as error:
        raise wrong_pattern(error, asked.contents) from error
    shallow = asked._replace(contents=True, documents=None)
    return made.made_by(_again, shallow, Flat(asked.contents), Flat(asked.documents), vocabulary, budget)


def _with_memory(asked: Request, vocabulary: Vocabulary, meter: Meter) -> LazyTable:
    """Return a lazy table, beside which matchers remember items and keys if states cannot.

    Raises SchemaError for a keyword that cannot be enforced so either.
    """
    from ..json_schema.remembered import remembering

    made, remembered = remembering(asked, lambda widened: _lazily(widened, vocabulary, meter), meter)
    return made if remembered is None else remembered.seen_to(made, start(remembered.rule), vocabulary)


def _again(
    asked: Request, contents: Schema, documents: Mapping[str, SchemaSource] | None, vocabulary: Vocabulary,
    budget: Budget | None,
) -> Compiled:  # fmt: skip
    """Return the table of a request that was sent in parts."""
    return compile_request(asked._replace(contents=contents, documents=documents), vocabulary, budget=budget)


_TOO_DEEP = partial(SchemaError, pointer="")


class _Settled:
    """A schema whose objects and arrays have their states settled: it is known how each value leads on.

    Raises the errors of `compile_json_schema`.
    """

    def __init__(self, asked: Request, vocabulary: Vocabulary, meter: Meter) -> None:
        # imported here, as they take a third of the time of importing the package, which may have no schemas to compile
        from ..json_schema.build import build
        from ..json_schema.keywords import formula
        from ..json_schema.library import Library

        self._asked, self._vocabulary, self._library = asked, vocabulary, Library.of(vocabulary, asked.layout)
        self.approximations = found = Approximations(asked.allowed)
        node = formula(asked.contents, approximations=found, documents=asked.documents, meter=meter)
        self._root = build(node, meter, asked.any_order)

    def table(self, meter: Meter) -> TransitionTable:
        """Return the whole table."""
        from ..bind.link import link
        from ..json_schema.emit import emit
        from ..json_schema.library import frames

        machine = emit(self._root, self._library, meter)
        depth = frames(machine, self._asked.depth)
        return link(self._library, machine, self._asked.source, depth, meter).noting(self.approximations.found)

    def lazy_table(self, meter: Meter) -> LazyTable:
        """Return the lazy table of the machine that has these states."""
        from ..json_schema.emit import Emitter
        from ..json_schema.lazily import lazily

        asked = self._asked

        def make() -> TransitionTable:
            with (
                uncollected(),
                blaming_order(asked.any_order),
                begin_budget(meter.budget) as again,
                enough_stack(_TOO_DEEP),
            ):
                return self.table(again)

        return lazily(
            self._library, lambda meter: Emitter((self._root,), self._library, meter, asked.depth), make,
            self._vocabulary, source=asked.source, depth=asked.depth, renews=asked.any_order,
            unenforced=lambda: self.approximations.found, meter=meter,
        )  # fmt: skip


class _TakesLongError(Exception):
    """So many states that the other way is tried."""


class _Settling(Meter):
    """A meter under which few states are settled for the size of a schema. It counts, and reads no clock for that."""

    parts = 0  # of the schema

    def check(self, *, states: int = 0, bytes: int = 0, ahead: float = 0.0, doing: str) -> None:
        """Raise _TakesLongError for many states, and BudgetError as other meters do."""
        most, for_each = _MOST_SETTLED.get(doing, _MOST_STATES)
        if states > max(most, for_each * self.parts):
            raise _TakesLongError
        super().check(states=states, bytes=bytes, ahead=ahead, doing=doing)


def _lazily(asked: Request, vocabulary: Vocabulary, meter: Meter) -> LazyTable:
    """Return a lazy table: of settled states, or by derivatives where there are many states to settle.

    Either way may take for ever where the other takes milliseconds. Which is taken depends on counts, so that it is the
    same one wherever a schema is compiled. Where neither ends by these counts, both have half of what is left.
    """
    if not vocabulary.spells_all_bytes:
        return _Settled(asked, vocabulary, meter).lazy_table(meter)
    try:
        settling = _Settling(meter.budget)
        settling.parts = _parts_of(asked.contents)
        return _Settled(asked, vocabulary, settling).lazy_table(meter)
    except _TakesLongError:
        pass
    try:
        return _by_derivatives(asked, vocabulary, meter, meter.budget, _MOST_SEARCHED)
    except TakesLongError:
        pass
    half = max(meter.budget.seconds - meter.seconds, 0) / 2
    try:
        with replace(meter.budget, seconds=half).begin() as share:
            settled = _Settled(asked, vocabulary, share)
        return settled.lazy_table(meter)
    except BudgetError:
        return _by_derivatives(asked, vocabulary, meter, meter.budget, None)


def _parts_of(contents: Schema) -> int:
    """Return how many members and items a schema has at all levels; a part that several share counts once."""
    new: dict[int, Any] = {id(contents): contents} if isinstance(contents, dict) else {}
    known = dict(new)
    while new:
        new = {id(part): part for part in inside(new.values()) if id(part) not in known}
        known.update(new)
    return sum(map(len, known.values()))


def _by_derivatives(
    asked: Request, vocabulary: Vocabulary, meter: Meter, budget: Budget, most: int | None
) -> LazyTable:
    """Return the lazy table of a machine whose states are derivatives of the schema's formula.

    budget: of what is made later. most: states that the search for a first text looks at, None for any number.
    """
    from .schema_rules import schema_rules

    approximations = Approximations(asked.allowed)

    def machine(meter: Meter) -> ByteMachine:
        rules = schema_rules(asked, vocabulary, meter, approximations, most)
        patient = replace(budget, seconds=math.inf).begin()
        rules.begin_reading(patient)
        return ByteMachine(rules, vocabulary, patient, frames=True, seconds=budget.seconds)

    def renewed(old: LazyMachine) -> LazyMachine:
        if not isinstance(old, ByteMachine) or not old.is_large:
            return old
        with uncollected(), budget.begin() as again, enough_stack(_TOO_DEEP):
            return machine(again)

    def make() -> TransitionTable:
        with uncollected(), blaming_order(asked.any_order), begin_budget(budget) as again, enough_stack(_TOO_DEEP):
            return _Settled(asked, vocabulary, again).table(again)

    first = machine(meter)
    meter.check(states=first.num_states, bytes=first.nbytes, doing="reading a schema")
    return LazyTable(
        first, make, vocabulary, source=asked.source, depth=first.depth, renewed=renewed,
        unenforced=lambda: approximations.found, is_small=False,
    )  # fmt: skip
