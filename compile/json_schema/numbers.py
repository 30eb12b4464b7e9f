r"""Formulas about numbers as automata over the texts that are written for them.

A value has many texts, so each formula has its own, such that they are as plain as its schema allows and yet hold
whatever a model is likely to write:

- any number at all, or one under no constraint but its sign: every text of JSON's grammar, exponents included;
- one that must be integral by its type: -?(0|[1-9][0-9]*);
- one of finitely many: its shortest text without exponent and, unless it must be integral by its type, once more with
  .0 where it is integral;
- any other: -?(0|[1-9][0-9]*)(\.[0-9]+)?.

All arithmetic is exact, on digits. The automata of atoms hold all plain texts of a value or none, so that the boolean
operations on texts are those on values.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from decimal import Decimal
from fractions import Fraction

import numpy as np

from ...automata import ops
from ...automata.budget import Meter
from ...automata.deadline import look
from ...automata.dfa import Dfa
from ...automata.labelled import Labelled, labelled, relabelled, spelled
from .algebra import AllOf, AnyOf, Integer, Multiple, Node, Not, OneOfValues, Range, Types, atoms, once_each
from .memo import remembered
from .number_bounds import interval, narrowest
from .number_texts import WRITING, dfa_of_values, dfa_of_words, fraction_of, grammar, plain_text, signed
from .remainders import by_remainder, is_about_remainders, multiples, multiples_between, truths_of

_FEW = 4096  # numbers that are tried one by one rather than told apart by their digits


_results: dict[tuple[Node, ...], Labelled | None] = {}
_languages: dict[tuple[object, ...], Dfa] = {}


def numbers(parts: tuple[Node, ...], meter: Meter) -> Labelled | None:
    """Return the texts of the numbers in some part, label i for those in parts[i]; None if no number is in any.

    parts: formulas as `algebra.restrict` makes them for NUMBER, pairwise disjoint. Raises BudgetError.
    """
    return remembered(_results, parts, lambda: _numbers(parts, meter))


def _numbers(parts: tuple[Node, ...], meter: Meter) -> Labelled | None:
    found = {i: _texts(part, meter) for i, part in enumerate(parts) if type(part) is not Types or part.args[0]}
    look(WRITING)
    words = {word: i for i, texts in found.items() if not isinstance(texts, Dfa) for word in texts}
    dfas = {i: texts for i, texts in found.items() if isinstance(texts, Dfa) and not texts.is_empty}
    if not dfas:
        return spelled(words, meter) if words else None
    if not words and len(dfas) == 1:
        ((i, dfa),) = dfas.items()
        return relabelled(dfa, i)
    listed: dict[int, list[bytes]] = {}
    for word, i in words.items():
        listed.setdefault(i, []).append(word)
    dfas.update({i: dfa_of_words(texts, meter) for i, texts in listed.items()})
    nothing = grammar("nothing")
    return labelled([dfas.get(i, nothing) for i in range(len(parts))], meter)


@once_each
def holds(node: Node, value: Decimal, meter: Meter) -> bool:
    """Whether a number is in a formula as `algebra.restrict` makes it for NUMBER."""
    kind = type(node)
    if kind is AllOf:
        return all(holds(part, value, meter) for part in node.args)
    if kind is AnyOf:
        return any(holds(part, value, meter) for part in node.args)
    if kind is Not:
        return not holds(node.args[0], value, meter)
    if kind is Types:
        return bool(node.args[0])
    if kind is Range:
        low, high, low_open, high_open = node.args
        above = low is None or (value > low if low_open else value >= low)
        return above and (high is None or (value < high if high_open else value <= high))
    if kind is Integer:
        return value == value.to_integral_value()
    if kind is OneOfValues:
        return value in node.args[0]
    if kind is Multiple:
        return (fraction_of(value, meter) / fraction_of(node.args[0], meter)).denominator == 1
    raise TypeError(f"not about numbers: {node!r}")


def _texts(node: Node, meter: Meter) -> Dfa | list[bytes]:
    """Return the texts of a formula's numbers: a list where they are counted out."""
    signs = _signs(node)
    if signs is not None:
        return signed(*signs)
    whole = _is_whole(node)
    values = listed_values(node, meter)
    if values is not None:
        shortest = [plain_text(value, meter) for value in values]
        if not whole:
            shortest += [text + ".0" for text in shortest if "." not in text]
        look(WRITING)
        return [text.encode() for text in shortest]
    return remembered(_languages, (node, whole), lambda: _regular(node, whole, meter))


@once_each
def _signs(node: Node) -> tuple[bool, bool, bool] | None:
    """Return whether the negative numbers, zero and the positive ones are in, if only the sign matters, else None."""
    kind = type(node)
    if kind is Types:
        inside = bool(node.args[0])
        return inside, inside, inside
    if kind is Range:
        low, high, low_open, high_open = node.args
        if low or high:
            return None
        below, above = low is None, high is None
        return below, (below or not low_open) and (above or not high_open), above
    if kind is Not:
        inner = _signs(node.args[0])
        return None if inner is None else (not inner[0], not inner[1], not inner[2])
    if kind is AllOf or kind is AnyOf:
        every = all if kind is AllOf else any
        found = []
        for part in node.args:
            inner = _signs(part)
            if inner is None:
                return None
            found.append(inner)
        return every(s[0] for s in found), every(s[1] for s in found), every(s[2] for s in found)
    return None


@once_each
def _is_whole(node: Node) -> bool:
    """Whether the formula says outright that its numbers are integral."""
    kind = type(node)
    if kind is AllOf:
        return any(_is_whole(part) for part in node.args)
    if kind is AnyOf:
        return all(_is_whole(part) for part in node.args)
    return kind is Integer


@once_each
def listed_values(node: Node, meter: Meter) -> Iterable[Decimal] | None:
    """Return the formula's numbers, each once, if it lists them, else None."""
    kind = type(node)
    if kind is OneOfValues:
        values: frozenset[Decimal] = node.args[0]
        return values
    if kind is AllOf:
        for i, part in enumerate(node.args):
            listed = listed_values(part, meter)
            if listed is not None:
                others = node.args[:i] + node.args[i + 1 :]
                return [value for value in listed if all(holds(other, value, meter) for other in others)]
        # one condition is quicker said in digits
        if sum(type(part) in (Multiple, Not, AnyOf) for part in node.args) > 1:
            return _few_multiples(node, meter)
    if kind is AnyOf:
        found: set[Decimal] = set()
        for part in node.args:
            listed = listed_values(part, meter)
            if listed is None:
                return None
            found.update(listed)
        return found
    return None


def _few_multiples(node: Node, meter: Meter) -> list[Decimal] | None:
    """Return the numbers of a conjunction if they are multiples of something between two bounds, and few; else None."""
    low, high = _bounds(node)
    if low is None or high is None or _adjusted(low) > 18 or _adjusted(high) > 18:
        return None
    step = _step(node)
    if step is None:
        return None
    first, last = math.ceil(Fraction(low) / step), math.floor(Fraction(high) / step)
    if last - first >= _FEW:
        return None
    # of what they are multiples is told for all at once
    remainders = [part for part in node.args if is_about_remainders(part)]
    truths = {}
    for atom in atoms(*remainders):
        ratio = step if type(atom) is Integer else step / fraction_of(atom.args[0], meter)
        truths[atom] = np.array(
            [k * ratio.numerator % ratio.denominator == 0 for k in range(first, last + 1)], np.bool_
        )
    inside = np.ones(max(last - first + 1, 0), np.bool_)
    for part in remainders:
        inside &= truths_of(part, truths)
    others = [part for part in node.args if part not in remainders]
    found = []
    for k in [first + i for i in np.flatnonzero(inside).tolist()]:
        value = k * step
        places = 0
        while (value * 10**places).denominator != 1:  # a step is a decimal, and so are its multiples
            places += 1
        exact = Decimal(f"{int(value * 10**places)}e-{places}")  # said in digits, it is not rounded
        if all(holds(part, exact, meter) for part in others):
            found.append(exact)
    return found


def _adjusted(value: Decimal) -> int:
    return max(value.adjusted(), -value.adjusted()) if value else 0


@once_each
def _bounds(node: Node) -> tuple[Decimal | None, Decimal | None]:
    """Return bounds between which the formula's numbers lie, None where none is plain to see."""
    kind = type(node)
    if kind is Range:
        return node.args[0], node.args[1]
    if kind is AllOf:
        parts = [_bounds(part) for part in node.args]
        return (
            max((low for low, _ in parts if low is not None), default=None),
            min((high for _, high in parts if high is not None), default=None),
        )
    return None, None


@once_each
def _step(node: Node) -> Fraction | None:
    """Return a number of which all the formula's numbers are multiples, None where none is plain to see."""
    kind = type(node)
    if kind is Integer:
        return Fraction(1)
    if kind is Multiple:
        return Fraction(node.args[0]) if _adjusted(node.args[0]) <= 18 else None
    if kind is AllOf or kind is AnyOf:
        steps = [_step(part) for part in node.args]
        known = [step for step in steps if step is not None]
        if not known or (kind is AnyOf and len(known) < len(steps)):
            return None
        common = known[0]
        for step in known[1:]:
            if kind is AllOf:  # a multiple of both: the least common one
                common = Fraction(
                    math.lcm(common.numerator * step.denominator, step.numerator * common.denominator),
                    common.denominator * step.denominator,
                )
            else:
                common = Fraction(
                    math.gcd(common.numerator * step.denominator, step.numerator * common.denominator),
                    common.denominator * step.denominator,
                )
        return common
    return None


@once_each
def _regular(node: Node, whole: bool, meter: Meter) -> Dfa:
    """Return the plain texts of a formula's numbers; whole: those without a fraction."""
    kind = type(node)
    if kind is AnyOf:
        return ops.unions([_regular(part, whole, meter) for part in node.args], meter)
    multiple = None
    integral = False
    parts = node.args if kind is AllOf else (node,)
    inner: list[Node] = []
    outer: list[Node] = []
    found: list[Dfa] = []
    bounds: list[Range] = []
    remainders = [part for part in parts if type(part) is not Integer and is_about_remainders(part)]
    if len(remainders) > 1 or (remainders and type(remainders[0]) is AnyOf):
        told = by_remainder(remainders, meter)
        if told is not None:
            found.append(told)
            parts = tuple([part for part in parts if part not in remainders])
    for part in parts:
        shape = type(part)
        if isinstance(part, Range):
            bounds.append(part)
        elif shape is Integer:
            integral = True
        elif shape is Not:
            outer.append(part.args[0])
        elif shape is Multiple and multiple is None:
            multiple = part
        elif shape is not Types or not part.args[0]:
            inner.append(part)
    low, low_open, high, high_open = narrowest(bounds)
    if multiple is not None:
        values = multiples_between(multiple.args[0], low, high, meter)
        inner.append(multiple if values is None else OneOfValues(values))
    texts = interval(low, low_open, high, high_open, not whole, meter)
    if integral and not whole:
        texts = ops.intersection(texts, grammar("integral"), meter)
    for dfa in (*found, *(_atom(part, meter) for part in inner)):
        texts = ops.intersection(texts, dfa, meter)
    for part in outer:
        texts = ops.difference(texts, _atom(part, meter), meter)
    return texts


def _atom(node: Node, meter: Meter) -> Dfa:
    """Return the plain texts of the numbers of an atom, or of a union; those of multiples among texts of any kind."""
    kind = type(node)
    if kind is Multiple:
        return remembered(_languages, (node,), lambda: multiples(node.args[0], meter))
    if kind is OneOfValues:
        return remembered(_languages, (node,), lambda: dfa_of_values(node.args[0], meter))
    if kind is Integer:
        return grammar("integral")
    if kind is Types:
        return grammar("plain" if node.args[0] else "nothing")
    return _regular(node, False, meter)
