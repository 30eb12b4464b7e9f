"""Formulas about a number, once its first character is to be read: states of automata over its text.

A value has many texts. Which of them are written depends on all that is asked of the number, as `json_schema.numbers`
has it: any text of JSON's grammar where nothing but the sign matters; no fraction where a number that fits is integral
by its type; the shortest text, or that with .0, of one of a few; else any text without an exponent. A number of which
formulas ask on several levels is first of all written as each of those asks that it is in. So what is asked of its
text stands beside what is asked of its value, and no negation, or gate, is about texts.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache

from ...automata.dfa import Dfa
from ...automata.formulas import Formula, Kind, kept
from ..json_schema.algebra import (
    ANY,
    NEVER,
    Integer,
    Multiple,
    Node,
    OneOfValues,
    Range,
    all_of,
    any_of,
    negate,
)
from ..json_schema.number_bounds import interval, narrowest
from ..json_schema.number_texts import any_number, dfa_of_values, grammar, signed
from ..json_schema.numbers import numbers
from ..json_schema.remainders import multiples, multiples_between
from ..regex.lower import to_dfa
from .schema_formulas import Path, SchemaFormulas

NUMBER_CHARACTERS = "-+.0123456789eE"
_FEW, _MOST_DIGITS = 4096, 18  # as `json_schema.numbers` has them
_BESIDE = 2  # formulas that ask something of a number: multiples are listed from there on


class NumberFormulas:
    """Begins numbers."""

    def __init__(self, schema: SchemaFormulas) -> None:
        self._schema = schema
        self._begun: dict[tuple[Formula, Path], Formula] = {}

    def begun(self, formula: Formula, path: Path) -> Formula:
        """Return what is asked of a number at a path before its first character, about its text."""
        found = self._begun.get((formula, path))
        if found is None:
            found = self._begun[formula, path] = self._begin(formula, path)
        return found

    def _begin(self, formula: Formula, path: Path) -> Formula:
        schema = self._schema
        if not path and not schema.is_gated(formula):
            return self._alone(formula)
        parts = [part for part in schema.innermost(formula, path) if part.kind is not Kind.NOTHING]
        f = schema.formulas
        by_sign = all(map(_is_by_sign, parts))
        of_value = self._by_sign if by_sign else self._value
        value = self._at(formula, path, of_value)
        texts = [self._state(any_number() if by_sign else grammar("plain"))]
        for part in parts:
            if _is_whole(part):
                texts.append(f.any_of(f.negated(of_value(part)), self._state(grammar("whole"))))
            if _is_listed(min(len(parts) - 1, _BESIDE), part):
                texts.append(f.any_of(f.negated(of_value(part)), self._state(_shortest())))
        asked = f.all_of(*texts)
        for place in reversed(path):
            asked = f.inside(place, asked)
        return f.all_of(value, asked)

    def _at(self, formula: Formula, path: Path, of_value: Callable[[Formula], Formula]) -> Formula:
        """Return a formula in which each formula at a path becomes one about texts."""
        if not path:
            return of_value(formula)
        schema = self._schema

        def of_inside(literal: Formula) -> Formula:
            atom = literal.atom
            if literal.is_open and atom.place == path[0]:
                return schema.formulas.inside(path[0], self._at(atom.formula, path[1:], of_value))
            return literal

        return schema.formulas.mapped(formula, of_inside, {}) if formula.is_open else formula

    def _alone(self, formula: Formula) -> Formula:
        """Return the texts of the numbers in a formula on which nothing else depends, as one automaton."""
        found = numbers((_node(formula),), self._schema.meter)
        if found is None:
            return self._schema.nothing
        return self._state(Dfa(found.class_of, found.transition, found.label == 0))

    def _state(self, dfa: Dfa) -> Formula:
        return self._schema.start_of(dfa)

    # ------------------------------------------------------------------------------------------------------ values

    @kept
    def _value(self, formula: Formula) -> Formula:
        """Return the numbers in a formula, in all their texts without an exponent."""
        schema, kind = self._schema, formula.kind
        f = schema.formulas
        if kind is Kind.ALL_OF:
            bounds = [part for part in formula.parts if part.kind is Kind.ATOM and type(part.atom) is Range]
            others = [part for part in formula.parts if part not in bounds]
            low, low_open, high, high_open = narrowest([part.atom for part in bounds])
            found = []
            for part in others:
                atom = part.atom
                if part.kind is Kind.ATOM and type(atom) is Multiple:
                    listed = multiples_between(atom.args[0], low, high, schema.meter)
                    if listed is not None:
                        found.append(self._state(dfa_of_values(listed, schema.meter)))
                        continue
                found.append(self._value(part))
            if bounds:
                found.append(self._state(interval(low, low_open, high, high_open, True, schema.meter)))
            return f.all_of(*found)
        if kind is Kind.ATOM or kind is Kind.NOT:
            return schema.formulas.exactly(lambda atom: self._state(self._atom(atom)))(formula)
        if kind is Kind.ANY_OF:
            return f.any_of(*map(self._value, formula.parts))
        if kind is Kind.ONE_OF or kind is Kind.NOT_ONE_OF:
            exactly_one = f.one_of(*map(self._value, formula.parts))
            return exactly_one if kind is Kind.ONE_OF else f.negated(exactly_one)
        return formula

    def _atom(self, atom: Node) -> Dfa:
        meter, shape = self._schema.meter, type(atom)
        if shape is Range:
            low, high, low_open, high_open = atom.args
            return interval(low, low_open, high, high_open, True, meter)
        if shape is Integer:
            return grammar("integral")
        if shape is Multiple:
            return multiples(atom.args[0], meter)
        if shape is OneOfValues:
            return dfa_of_values(atom.args[0], meter)
        raise TypeError(f"not about numbers: {atom!r}")

    @kept
    def _by_sign(self, formula: Formula) -> Formula:
        """Return the numbers in a formula about signs, in all their texts."""
        of_literal = self._schema.formulas.exactly(lambda atom: self._state(signed(*_signs_of(atom))))
        return self._schema.formulas.mapped(formula, of_literal, {})


@lru_cache(maxsize=1)
def _shortest() -> Dfa:
    """Return the shortest text of each number, and that with .0 if it is integral."""
    fraction = r"\.[0-9]*[1-9]"
    return to_dfa(rf"0(?:\.0)?|-?0{fraction}|-?[1-9][0-9]*(?:\.0|{fraction})?", dialect="ecma")


@kept
def _node(formula: Formula) -> Node:
    """Return the node of a formula about numbers, none of whose atoms is a state."""
    kind = formula.kind
    if kind is Kind.EVERYTHING:
        return ANY
    if kind is Kind.NOTHING:
        return NEVER
    if kind is Kind.ALL_OF:
        return all_of(map(_node, formula.parts))
    if kind is Kind.ANY_OF:
        return any_of(map(_node, formula.parts))
    node: Node = formula.atom
    return node if kind is Kind.ATOM else negate(node)


def _signs_of(atom: Node) -> tuple[bool, bool, bool]:
    """Return whether the negative numbers, zero and the positive ones are in a range that begins or ends at zero."""
    low, high, low_open, high_open = atom.args
    below, above = low is None, high is None
    return below, (below or not low_open) and (above or not high_open), above


@kept
def _is_by_sign(formula: Formula) -> bool:
    """Return whether nothing but the sign of a number matters."""
    if formula.atom is not None:
        atom = formula.atom
        return type(atom) is Range and not atom.args[0] and not atom.args[1]
    return all(map(_is_by_sign, formula.parts))


@kept
def _is_whole(formula: Formula) -> bool:
    """Return whether a formula says outright that its numbers are integral."""
    kind = formula.kind
    if kind is Kind.ALL_OF:
        return any(map(_is_whole, formula.parts))
    if kind is Kind.ANY_OF or kind is Kind.ONE_OF:
        return all(map(_is_whole, formula.parts))
    return kind is Kind.ATOM and type(formula.atom) is Integer


@kept
def _is_listed(beside: int, formula: Formula) -> bool:
    """Return whether the numbers of a formula are listed, and written as listed numbers are.

    beside: how many other formulas a number may have to be in, or not to be in, `_BESIDE` for more.
    """
    kind = formula.kind
    if kind is Kind.ALL_OF:
        return any(_is_listed(0, part) for part in formula.parts) or _is_few_multiples(formula.parts, beside)
    if kind is Kind.ANY_OF:
        return all(_is_listed(beside, part) for part in formula.parts)
    if kind is Kind.ONE_OF:
        beside = min(beside + len(formula.parts) - 1, _BESIDE)
        return all(_is_listed(beside, part) for part in formula.parts)
    return kind is Kind.ATOM and type(formula.atom) is OneOfValues


def _is_few_multiples(parts: tuple[Formula, ...], beside: int) -> bool:
    """Return whether a conjunction has few multiples of something, and conditions from which on they are listed."""
    atoms = [part.atom for part in parts if part.kind is Kind.ATOM]
    others = sum([part.kind is not Kind.ATOM or type(part.atom) is Multiple for part in parts])
    low, _, high, _ = narrowest([atom for atom in atoms if type(atom) is Range])
    steps = [
        Decimal(1) if type(atom) is Integer else atom.args[0] for atom in atoms if type(atom) in (Integer, Multiple)
    ]
    if others + beside < _BESIDE or not steps or low is None or high is None:
        return False
    if any(value and abs(value.adjusted()) > _MOST_DIGITS for value in (low, high, *steps)):
        return False
    step = Fraction(steps[0])
    for other in map(Fraction, steps[1:]):  # the least common multiple
        numerator = math.lcm(step.numerator * other.denominator, other.numerator * step.denominator)
        step = Fraction(numerator, step.denominator * other.denominator)
    return math.floor(Fraction(high) / step) - math.ceil(Fraction(low) / step) < _FEW
