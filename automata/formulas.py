"""Formulas over atoms, of which equal ones are one object: the states of machines that are made while a text is read.

A formula says what is still asked of the text that follows. A machine that steps formulas by what it reads needs no
table of all its states, and intersection, union and complement cost nothing ahead: they are formulas. The states of a
regular language are its derivatives (Brzozowski 1964, Antimirov 1996); that there are finitely many holds only up to
simple equations, so formulas are kept in a normal form: negation stands at atoms, `AllOf` and `AnyOf` are flat, sorted
and without repetition, and what follows from a part in one step is gone.

>>> f = Formulas()
>>> a, b = f.atom("a"), f.atom("b")
>>> f.all_of(a, b) is f.all_of(b, a, b), f.all_of(a, f.negated(a)) is f.nothing, f.any_of(a, f.all_of(a, b)) is a
(True, True, True)
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import contextmanager
from enum import IntEnum
from functools import wraps
from typing import Any, ParamSpec, TypeAlias, TypeVar, cast

from .deadline import look

Atom: TypeAlias = Any
"""What an atom says: any hashable value, which only those that make the formulas can read."""

_Arguments = ParamSpec("_Arguments")
_Found = TypeVar("_Found")


class Kind(IntEnum):
    """What a formula is made of. `ONE_OF` holds where exactly one part does, `NOT_ONE_OF` where another number do."""

    EVERYTHING = 0
    NOTHING = 1
    ATOM = 2
    NOT = 3
    ALL_OF = 4
    ANY_OF = 5
    ONE_OF = 6
    NOT_ONE_OF = 7


class Formula:
    """A formula of one `Formulas`. Compare by identity.

    parts: of `ALL_OF`, `ANY_OF`, `ONE_OF` and `NOT_ONE_OF`, by ascending number. atom: of `ATOM` and `NOT`. number: no
    other formula of the same `Formulas` has it. is_open: whether an `Inside` occurs in it. memo: what was found of the
    formula, see `kept`.
    """

    __slots__ = ("_negated", "atom", "is_open", "kind", "memo", "number", "parts")

    def __init__(self, kind: Kind, parts: tuple[Formula, ...], atom: Atom, number: int, is_open: bool) -> None:
        self.kind, self.parts, self.atom, self.number, self.is_open = kind, parts, atom, number, is_open
        self.memo: dict[Any, Any] = {}
        self._negated: Formula | None = None

    def __repr__(self) -> str:
        if self.kind is Kind.ATOM or self.kind is Kind.NOT:
            return f"{'' if self.kind is Kind.ATOM else '~'}{self.atom!r}"
        return f"{self.kind.name}({', '.join(map(repr, self.parts))})"


class Inside:
    """An atom: what is being written at a place, such as the value of a member, is in a formula.

    Its negation is that it is in the negated formula, and several of one place are one, so that what is asked of a
    place stands in one formula.
    """

    __slots__ = ("formula", "place")

    def __init__(self, place: Hashable, formula: Formula) -> None:
        self.place, self.formula = place, formula

    def __repr__(self) -> str:
        return f"Inside({self.place!r}, {self.formula!r})"


Literal = Callable[[Formula], Formula]
"""What a formula that is an atom or a negated atom becomes."""
Join = Callable[[set[Formula]], None]
"""Makes the parts of a union fewer where it can, in place: see `Formulas`."""


class Formulas:
    """Makes formulas, each once.

    join: called with the parts of a union, two or more; it may replace some of them by others whose union is the same.
    """

    def __init__(self, join: Join | None = None) -> None:
        self._join = join
        self._made: dict[Any, Formula] = {}
        self._known: dict[Any, Formula] = {}
        self.everything = self._make(Kind.EVERYTHING, ())
        self.nothing = self._make(Kind.NOTHING, ())
        self.everything._negated, self.nothing._negated = self.nothing, self.everything

    def __len__(self) -> int:
        """Return how many formulas there are."""
        return len(self._made)

    def _make(self, kind: Kind, parts: tuple[Formula, ...], atom: Atom = None) -> Formula:
        key = kind, (atom if atom is not None else parts)
        found = self._made.get(key)
        if found is None:
            is_open = any(part.is_open for part in parts)
            found = self._made[key] = Formula(kind, parts, atom, len(self._made), is_open)
        return found

    # ------------------------------------------------------------------------------------------------------ atoms

    def atom(self, atom: Hashable) -> Formula:
        """Return the formula of an atom: anything hashable, other than None and `Inside`."""
        return self._make(Kind.ATOM, (), atom)

    def inside(self, place: Hashable, formula: Formula) -> Formula:
        """Return the formula that what is being written at a place is in a formula."""
        if formula is self.everything or formula is self.nothing:
            return formula
        key = Inside, place, formula
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._make(Kind.ATOM, (), Inside(place, formula))
            found.is_open = True
        return found

    def negated(self, formula: Formula) -> Formula:
        """Return the complement."""
        found = formula._negated
        if found is None:
            kind, parts = formula.kind, formula.parts
            if kind is Kind.ATOM:
                atom = formula.atom
                if type(atom) is Inside:
                    found = self.inside(atom.place, self.negated(atom.formula))
                else:
                    found = self._make(Kind.NOT, (), atom)
            elif kind is Kind.NOT:
                found = self._make(Kind.ATOM, (), formula.atom)
            elif kind is Kind.ALL_OF:
                found = self.any_of(*[self.negated(part) for part in parts])
            elif kind is Kind.ANY_OF:
                found = self.all_of(*[self.negated(part) for part in parts])
            else:
                found = self._make(Kind.NOT_ONE_OF if kind is Kind.ONE_OF else Kind.ONE_OF, parts)
            formula._negated = found
            if found._negated is None:
                found._negated = formula
        return found

    # ------------------------------------------------------------------------------------------------ combinations

    def all_of(self, *formulas: Formula) -> Formula:
        """Return the intersection."""
        return self._combined(Kind.ALL_OF, formulas)

    def any_of(self, *formulas: Formula) -> Formula:
        """Return the union."""
        return self._combined(Kind.ANY_OF, formulas)

    def one_of(self, *formulas: Formula) -> Formula:
        """Return what is in exactly one of some formulas, of which some may be equal.

        It is a formula of its own: written as a union, each formula would occur beside the negations of all others, and
        be derived as often.
        """
        key = Kind.ONE_OF, tuple([formula.number for formula in formulas])
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._one_of(formulas)
        return found

    def _one_of(self, formulas: tuple[Formula, ...]) -> Formula:
        held = 0
        once: dict[Formula, None] = {}
        twice: set[Formula] = set()
        for formula in formulas:
            if formula is self.everything:
                held += 1
            elif formula is not self.nothing:
                if formula in once:
                    twice.add(formula)
                once[formula] = None
        if held > 1:
            return self.nothing
        rest = [formula for formula in once if formula not in twice]
        if held:
            return self.all_of(*map(self.negated, twice), *map(self.negated, rest))
        if twice:
            return self.all_of(*map(self.negated, twice), self.one_of(*rest))
        if not rest:
            return self.nothing
        if len(rest) == 1:
            return rest[0]
        if len(rest) == 2 and self.negated(rest[0]) is rest[1]:
            return self.everything
        first = rest[0].atom
        if type(first) is Inside and all(type(part.atom) is Inside and part.atom.place == first.place for part in rest):
            return self.inside(first.place, self.one_of(*[part.atom.formula for part in rest]))
        return self._make(Kind.ONE_OF, tuple(sorted(rest, key=_number)))

    def _combined(self, kind: Kind, formulas: tuple[Formula, ...]) -> Formula:
        if len(formulas) == 1:
            return formulas[0]
        key: Hashable
        if len(formulas) == 2:
            a, b = formulas[0].number, formulas[1].number
            key = (kind, a, b) if a < b else (kind, b, a)
        else:
            key = kind, frozenset([formula.number for formula in formulas])
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._normal(kind, formulas)
        return found

    def _normal(self, kind: Kind, formulas: Iterable[Formula]) -> Formula:
        is_union = kind is Kind.ANY_OF
        unit, zero = (self.nothing, self.everything) if is_union else (self.everything, self.nothing)
        parts: set[Formula] = set()
        for formula in formulas:
            if formula is zero:
                return zero
            if formula.kind is kind:
                parts.update(formula.parts)
            elif formula is not unit:
                parts.add(formula)
        if len(parts) > 1:
            if any(type(part.atom) is Inside for part in parts):
                self._join_places(is_union, parts)
            if is_union and self._join is not None:
                self._join(parts)
            if zero in parts:
                return zero
            parts.discard(unit)
            for part in parts:
                # of `Inside`, both may hold or none: an unwritten value is in no formula yet
                if part.kind is Kind.NOT and self.negated(part) in parts:
                    return zero
            smaller = self._without_what_follows(Kind.ALL_OF if is_union else Kind.ANY_OF, parts)
            if smaller is not None:
                return self._normal(kind, smaller)
        if not parts:
            return unit
        if len(parts) == 1:
            return next(iter(parts))
        return self._make(kind, tuple(sorted(parts, key=_number)))

    def _join_places(self, is_union: bool, parts: set[Formula]) -> None:
        """Join the formulas about one place."""
        by_place: dict[Hashable, list[Formula]] = {}
        for part in parts:
            if type(part.atom) is Inside:
                by_place.setdefault(part.atom.place, []).append(part)
        for place, found in by_place.items():
            if len(found) > 1:
                parts.difference_update(found)
                inner = [part.atom.formula for part in sorted(found, key=_number)]
                parts.add(self.inside(place, self.any_of(*inner) if is_union else self.all_of(*inner)))

    def _without_what_follows(self, other: Kind, parts: set[Formula]) -> list[Formula] | None:
        """Return the parts without those that another part decides, None where there are none.

        other: the kind of combination that is simplified, a union where the parts are an intersection.
        """
        changed: dict[Formula, Formula | None] = {}
        for part in parts:
            if part.kind is not other:
                continue
            if not parts.isdisjoint(part.parts):
                changed[part] = None
                continue
            kept = [each for each in part.parts if type(each.atom) is Inside or self.negated(each) not in parts]
            if len(kept) < len(part.parts):
                changed[part] = self.any_of(*kept) if other is Kind.ANY_OF else self.all_of(*kept)
        changed.update(dict.fromkeys(_with_parts_of_others([part for part in parts if part.kind is other])))
        if not changed:
            return None
        return [part for part in parts if part not in changed] + [new for new in changed.values() if new is not None]

    # ---------------------------------------------------------------------------------------------------- mapping

    def mapped(self, formula: Formula, of_literal: Literal, known: dict[Formula, Formula]) -> Formula:
        """Return a formula in which each literal, an atom or a negated one, becomes another formula.

        known: the results of the same mapping so far, by formula.
        """
        found = known.get(formula)
        if found is not None:
            return found
        kind = formula.kind
        if kind is Kind.ATOM or kind is Kind.NOT:
            found = of_literal(formula)
        elif kind is Kind.ALL_OF or kind is Kind.ANY_OF:
            look("deriving formulas")
            zero = self.nothing if kind is Kind.ALL_OF else self.everything
            parts = []
            for part in formula.parts:
                new = self.mapped(part, of_literal, known)
                if new is zero:
                    found = zero
                    break
                parts.append(new)
            else:
                found = self.all_of(*parts) if kind is Kind.ALL_OF else self.any_of(*parts)
        elif kind is Kind.ONE_OF or kind is Kind.NOT_ONE_OF:
            found = self.one_of(*[self.mapped(part, of_literal, known) for part in formula.parts])
            if kind is Kind.NOT_ONE_OF:
                found = self.negated(found)
        else:
            found = formula
        known[formula] = found
        return found

    def exactly(self, of_atom: Callable[[Atom], Formula]) -> Literal:
        """Return what literals become if a negated atom becomes the complement of what the atom does."""

        def of_literal(literal: Formula) -> Formula:
            found = of_atom(literal.atom)
            return found if literal.kind is Kind.ATOM else self.negated(found)

        return of_literal


def _with_parts_of_others(formulas: list[Formula]) -> list[Formula]:
    """Return those of some combinations of one kind that have all parts of another of them, and more.

    In a union of intersections they add nothing, and in an intersection of unions they ask for nothing more.
    """
    if len(formulas) < 2:
        return []
    by_first: dict[Formula, list[Formula]] = {}
    for formula in formulas:
        by_first.setdefault(formula.parts[0], []).append(formula)
    found = []
    for formula in formulas:
        inside: set[Formula] | None = None
        for first in formula.parts:
            for other in by_first.get(first, ()):
                if len(other.parts) < len(formula.parts):
                    inside = set(formula.parts) if inside is None else inside
                    if inside.issuperset(other.parts):
                        found.append(formula)
                        break
            else:
                continue
            break
    return found


def _number(formula: Formula) -> int:
    return formula.number


def kept(function: Callable[_Arguments, _Found]) -> Callable[_Arguments, _Found]:
    """Keep what a function of a formula, its last argument, returns.

    Formulas share parts: a walk that goes into a part each time takes a time that is exponential in the depth.
    """
    call: Callable[..., _Found] = function

    @wraps(function)
    def found_or_made(*args: Any) -> Any:  # by position alone: the key has no names
        memo, key = args[-1].memo, (function, *args[:-1])
        found = memo.get(key, memo)
        if found is memo:
            look("reading formulas")
            found = memo[key] = call(*args)
        return found

    return cast("Callable[_Arguments, _Found]", found_or_made)


@contextmanager
def uncollected() -> Iterator[None]:
    """Put off garbage collection. What is made is kept, and a walk over all objects takes longer than making it."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()
