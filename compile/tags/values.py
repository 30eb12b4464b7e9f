"""Text with JSON values in it, as a machine: an automaton over bytes and values on top of the library.

Where a part of the text is not regular, the values become rules beside its own instead, and the whole is a grammar.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...automata.budget import Meter
from ...automata.dfa import BYTES, Dfa
from ...automata.formulas import uncollected
from ...automata.labelled import Labelled
from ...automata.network import Network
from ...automata.state_ranges import DEAD, KEEP
from ...errors import Advice, ConstraintError, RegexError, SchemaError, Unenforced
from ...lazy.lazy_table import Compiled
from ...table.transition_table import TransitionTable
from ...vocabulary.vocabulary import MARKS, Vocabulary
from ..arguments import begin_budget
from ..bind.link import link
from ..grammar.analysis import called
from ..grammar.build import automaton, compile_form
from ..grammar.form import Grammar
from ..grammar.network import build as network_of
from ..grammar.regular import dfa_of
from ..grammar.special_tokens import VALUE, replaced
from ..json_schema.approximations import Approximations
from ..json_schema.build import build
from ..json_schema.emit import Emitter
from ..json_schema.keywords import formula
from ..json_schema.layout import OPEN_ARRAY, OPEN_OBJECT, QUOTE
from ..json_schema.lazily import lazily
from ..json_schema.library import Library, frames
from ..json_schema.request import Request, blaming_order, wrong_pattern
from ..json_schema.skeleton import Value
from ..json_schema.source import placed
from .json_rules import Rules


def compile_values(
    grammar: Grammar, schemas: Sequence[tuple[Any, str, bool]], vocabulary: Vocabulary, asked: Request, meter: Meter
) -> Compiled:
    """Return the table of a grammar without special tokens, but with the JSON values of some schemas.

    schemas: contents, where they stand, and whether members come in any order though that is not asked for of all.
    """
    sets = asked.any_order or any(any_order for *_, any_order in schemas)
    with uncollected(), blaming_order(sets):
        found = [Approximations(asked.allowed, where) for _, where, _ in schemas]
        values = [
            value_of(contents, approximations, asked, meter, any_order)
            for (contents, _, any_order), approximations in zip(schemas, found, strict=True)
        ]

        def unenforced() -> tuple[Unenforced, ...]:
            return tuple(each for approximations in found for each in approximations.found)

        dfa = _joined(grammar, len(values), meter)
        if dfa is None:
            form = with_rules(grammar, values, asked, meter)
            return compile_form(
                form, vocabulary, source=asked.source, depth=asked.depth, meter=meter, unenforced=unenforced
            )
        layout = replace(asked.layout, after=_behind(dfa, len(values)))
        library = Library.of(vocabulary, layout, meter if layout.after else None)
        named = [where for _, where, _ in schemas]

        def emitted(meter: Meter) -> _Emitter:
            return _Emitter(dfa, values, named, library, meter, asked.depth)

        def make() -> TransitionTable:
            with uncollected(), blaming_order(sets), begin_budget(meter.budget) as again:
                whole = _Emitter(dfa, values, named, library, again)
                whole.finish()
                return link(library, whole.machine, asked.source, frames(whole.machine, asked.depth), again)

        return lazily(
            library, emitted, make, vocabulary, source=asked.source, depth=asked.depth, renews=sets,
            unenforced=unenforced, meter=meter,
        )  # fmt: skip


def value_of(
    contents: Any, approximations: Approximations, asked: Request, meter: Meter, any_order: bool = False
) -> Value:
    """Return the skeleton of a schema; errors say where in the whole it stands."""
    where = approximations.within
    try:
        node = formula(contents, approximations=approximations, documents=asked.documents, meter=meter)
        return build(node, meter, any_order or asked.any_order)
    except SchemaError as error:
        raise error.at(placed(where, error.pointer)) from error
    except RegexError as error:
        wrong = wrong_pattern(error, contents)
        raise wrong.at(where + wrong.pointer) from error


def _joined(grammar: Grammar, values: int, meter: Meter) -> Dfa | None:
    """Return the DFA of a grammar over bytes and its JSON values, None if a part is not regular."""
    symbols = {f"{VALUE}{j}": BYTES + j for j in range(values)}
    networks: dict[str, Network] = {}
    for name in dict.fromkeys(called(grammar.rules[grammar.start])):
        networks[name] = network_of(Grammar(grammar.rules, name, None, grammar.source, grammar.where), meter)
        if networks[name].embeds:
            return None
    return dfa_of(grammar.rules[grammar.start], meter, symbols, lambda name: automaton(networks[name], meter))


def with_rules(grammar: Grammar, values: Sequence[Value], asked: Request, meter: Meter) -> Grammar:
    """Return a grammar in which JSON values are rules."""
    made = Rules(asked.layout, meter)
    nodes = {f"{VALUE}{j}": made.value(value, 0) for j, value in enumerate(values)}
    rules = {name: replaced(body, nodes) for name, body in grammar.rules.items()}
    return Grammar(rules | made.finish(), grammar.start, None, grammar.source, grammar.where)


def _behind(dfa: Dfa, values: int) -> bytes:
    """Return the bytes with which a text goes on after a JSON value."""
    found: set[int] = set()
    for j in range(values):
        to = dfa.transition[:, dfa.class_of[BYTES + j]]
        rows = dfa.transition[np.unique(to[to >= 0])][:, dfa.class_of] >= 0
        found.update(np.flatnonzero(rows[:, :BYTES].any(axis=0)).tolist())
        if rows[:, BYTES:].any():  # another value
            found.update(_BEGINS)
    return bytes(sorted(found - set(MARKS)))  # which no token has within it


_BEGINS = b'"[{-0123456789tfn'  # with which values begin


_OWN_TAG = Advice(
    "Put it into a tag that begins with a text of its own: free text ends where a tag must follow, and "
    '"excludes" keeps the begin of one that may follow out of it'
)


class _Place(NamedTuple):
    """A JSON value in a text: from one state of its automaton to another."""

    before: int
    value: int
    after: int


class _Emitter(Emitter):
    """Writes the machine of text with JSON values in it, whose automaton is over bytes and values."""

    def __init__(
        self, dfa: Dfa, values: Sequence[Value], where: Sequence[str], library: Library, meter: Meter,
        depth: int | None = None,
    ) -> None:  # fmt: skip
        self.dfa, self.values, self.where = dfa, values, where
        self.places = [
            _Place(s, j, int(dfa.transition[s, dfa.class_of[BYTES + j]]))
            for j in range(len(values))
            for s in np.flatnonzero(dfa.transition[:, dfa.class_of[BYTES + j]] >= 0).tolist()
        ]
        super().__init__([values[place.value] for place in self.places], library, meter, depth)

    @property
    def has_shortest_texts(self) -> bool:
        """Return False: text around values may have bytes that no token is."""
        return False

    def _whole(self) -> None:
        m, dfa = self.machine, self.dfa
        class_of = dfa.class_of[:BYTES]
        rows = dfa.transition[:, class_of]
        self._check(rows)
        first = m.dfa(class_of, dfa.transition)
        m.accepting.update((np.flatnonzero(dfa.accepting) + first).tolist())
        m.copy(0, first)  # nothing leads back to the start itself
        if dfa.accepting[0]:
            m.accepting.add(0)
        for place in self.places:
            value = self.values[place.value]
            if value.number is not None:
                codes = np.where(rows[place.after] >= 0, rows[place.after] + first, DEAD)
                self._number_here(first + place.before, value.number, codes, bool(dfa.accepting[place.after]))
            self.value(first + place.before, value, (first + place.after,), number=False)

    def _number_here(self, state: int, number: Labelled, after: NDArray[Any], ends: bool) -> None:
        """Read a number, which ends where a byte comes that it does not go on with; after: codes of what may follow."""
        m = self.machine
        rows = self.scalars.number_rows(number)
        rows[rows <= KEEP] = DEAD
        first = m.dfa(_BYTES, rows)
        for end in np.flatnonzero(number.label >= 0).tolist():
            for low, high, code in _runs(after):
                m.edges(first + end, low, high, code)
            if ends:
                m.accepting.add(first + end)
        for byte in np.flatnonzero(rows[0] >= 0).tolist():
            m.edge(state, byte, first + int(rows[0, byte]))

    def _check(self, rows: NDArray[np.int32]) -> None:
        """Raise ConstraintError where one byte could go on in two ways."""
        begins: dict[int, dict[int, int]] = {}  # of each state, the bytes with which its values begin
        for place in self.places:
            where, value = self.where[place.value], self.values[place.value]
            known = begins.setdefault(place.before, {})
            for byte in self._first_bytes(value):
                if rows[place.before, byte] >= 0:
                    raise ConstraintError(
                        f"where this JSON value begins, other text may go on with {chr(byte)!r} as well, so that a "
                        "text would have two readings",
                        pointer=where, remedies=[_OWN_TAG],
                    )  # fmt: skip
                if known.setdefault(byte, place.value) != place.value:
                    raise ConstraintError(
                        f"this JSON value and that of {self.where[known[byte]]} may begin in one place with "
                        f"{chr(byte)!r}, so that a text would have two readings",
                        pointer=where, remedies=[Advice("Join the schemas by anyOf, or give their tags other begins")],
                    )  # fmt: skip
        for place in self.places:
            value = self.values[place.value]
            if value.number is None:
                continue
            number = self.scalars.number_rows(value.number)
            ends = value.number.label >= 0
            both = (number[ends] >= 0) & (rows[place.after] >= 0)
            beside = begins.get(place.after)
            if both.any() or beside:
                byte = int(np.flatnonzero(both.any(axis=0))[0]) if both.any() else min(beside or ())
                raise ConstraintError(
                    f"the schema allows a number, and nothing says where it ends if {chr(byte)!r} may follow it",
                    pointer=self.where[place.value],
                    remedies=[Advice("Let the tag end with a text, or the schema exclude numbers")],
                )

    def _first_bytes(self, value: Value) -> set[int]:
        """Return the bytes with which a JSON value begins."""
        found = {ord(word[0]) for word in value.literals}
        if value.string is not None:
            found.add(QUOTE)
        if value.array is not None:
            found.add(OPEN_ARRAY)
        if value.object is not None:
            found.add(OPEN_OBJECT)
        if value.number is not None:
            found.update(np.flatnonzero(self.scalars.number_rows(value.number)[0] >= 0).tolist())
        return found


def _runs(codes: NDArray[Any]) -> Iterator[tuple[int, int, int]]:
    """Yield runs of bytes of the same code, but of `DEAD`: the lowest, the highest, and the code."""
    cuts = [0, *(np.flatnonzero(np.diff(codes)) + 1).tolist(), len(codes)]
    for low, stop in pairwise(cuts):
        if codes[low] != DEAD:
            yield low, stop - 1, int(codes[low])


_BYTES = np.arange(BYTES, dtype=np.uint16)
