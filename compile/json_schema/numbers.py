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
from collections.abc import Iterable, Mapping
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from ...automata import ops
from ...automata.budget import Meter
from ...automata.dfa import BYTES, Dfa
from ...automata.labelled import Labelled, labelled, relabelled, spelled
from ...automata.minimize import canonical
from ...automata.nfa import Nfa
from ...automata.subsets import determinize
from ..regex.lower import to_dfa
from .algebra import AllOf, AnyOf, Integer, Multiple, Node, Not, OneOfValues, Range, Types, all_of, atoms
from .memo import remembered

_MANY_REMAINDERS = 20_000  # states from which a bounded range is rather counted out
_MOST_TOLD = 1 << 16  # states by which several divisors are told apart at once
_MOST_COUNTED = 2_000
_MOST_REMAINDERS = 1 << 18  # that are gone through to see which of them matter

_ZERO, _ONE = Decimal(0), Decimal(1)
_FEW = 4096  # numbers that are tried one by one rather than told apart by their digits
_LESS, _EQUAL, _GREATER, _ALL = 1, 2, 4, 7  # how a magnitude stands to a bound


def numbers(parts: tuple[Node, ...], meter: Meter) -> Labelled | None:
    """Return the texts of the numbers in some part, label i for those in parts[i]; None if no number is in any.

    parts: formulas as `algebra.restrict` makes them for NUMBER, pairwise disjoint. Raises BudgetError.
    """
    return remembered(_results, parts, lambda: _numbers(parts, meter))


def _numbers(parts: tuple[Node, ...], meter: Meter) -> Labelled | None:
    found = {i: _texts(part, meter) for i, part in enumerate(parts) if type(part) is not Types or part.args[0]}
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
    dfas.update({i: _spelled(texts, meter) for i, texts in listed.items()})
    nothing = _grammar("nothing")
    return labelled([dfas.get(i, nothing) for i in range(len(parts))], meter)


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
        return (_fraction(value, meter) / _fraction(node.args[0], meter)).denominator == 1
    raise TypeError(f"not about numbers: {node!r}")


# ------------------------------------------------------------------------------------------------------- formulas

_results: dict[tuple[Node, ...], Labelled | None] = {}
_languages: dict[tuple[object, ...], Dfa] = {}


def _texts(node: Node, meter: Meter) -> Dfa | list[bytes]:
    """Return the texts of a formula's numbers: a list where they are counted out."""
    signs = _signs(node)
    if signs is not None:
        return _signed(*signs)
    whole = _is_whole(node)
    values = _values(node, meter)
    if values is not None:
        shortest = [_plain(value, meter) for value in values]
        if not whole:
            shortest += [text + ".0" for text in shortest if "." not in text]
        return [text.encode() for text in shortest]
    return remembered(_languages, (node, whole), lambda: _regular(node, whole, meter))


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


def _is_whole(node: Node) -> bool:
    """Whether the formula says outright that its numbers are integral."""
    kind = type(node)
    if kind is AllOf:
        return any(_is_whole(part) for part in node.args)
    if kind is AnyOf:
        return all(_is_whole(part) for part in node.args)
    return kind is Integer


def _values(node: Node, meter: Meter) -> Iterable[Decimal] | None:
    """Return the formula's numbers, each once, if it lists them, else None."""
    kind = type(node)
    if kind is OneOfValues:
        values: frozenset[Decimal] = node.args[0]
        return values
    if kind is AllOf:
        for i, part in enumerate(node.args):
            listed = _values(part, meter)
            if listed is not None:
                others = node.args[:i] + node.args[i + 1 :]
                return [value for value in listed if all(holds(other, value, meter) for other in others)]
        # one condition is quicker said in digits
        if sum(type(part) in (Multiple, Not, AnyOf) for part in node.args) > 1:
            return _few_multiples(node, meter)
    if kind is AnyOf:
        found: set[Decimal] = set()
        for part in node.args:
            listed = _values(part, meter)
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
    remainders = [part for part in node.args if _is_about_remainders(part)]
    truths = {}
    for atom in atoms(*remainders):
        ratio = step if type(atom) is Integer else step / _fraction(atom.args[0], meter)
        truths[atom] = np.array(
            [k * ratio.numerator % ratio.denominator == 0 for k in range(first, last + 1)], np.bool_
        )
    inside = np.ones(max(last - first + 1, 0), np.bool_)
    for part in remainders:
        inside &= _truths(part, truths)
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


def _regular(node: Node, whole: bool, meter: Meter) -> Dfa:
    """Return the plain texts of a formula's numbers; whole: those without a fraction."""
    kind = type(node)
    if kind is AnyOf:
        return ops.unions([_regular(part, whole, meter) for part in node.args], meter)
    low = high = multiple = None
    low_open = high_open = integral = False
    parts = node.args if kind is AllOf else (node,)
    inner: list[Node] = []
    outer: list[Node] = []
    found: list[Dfa] = []
    remainders = [part for part in parts if type(part) is not Integer and _is_about_remainders(part)]
    if len(remainders) > 1 or (remainders and type(remainders[0]) is AnyOf):
        told = _by_remainder(remainders, meter)
        if told is not None:
            found.append(told)
            parts = tuple([part for part in parts if part not in remainders])
    for part in parts:
        shape = type(part)
        if shape is Range:
            least, most, least_open, most_open = part.args
            if least is not None and (low is None or least > low or (least == low and least_open)):
                low, low_open = least, least_open
            if most is not None and (high is None or most < high or (most == high and most_open)):
                high, high_open = most, most_open
        elif shape is Integer:
            integral = True
        elif shape is Not:
            outer.append(part.args[0])
        elif shape is Multiple and multiple is None:
            multiple = part
        elif shape is not Types or not part.args[0]:
            inner.append(part)
    if multiple is not None:
        values = _counted(multiple.args[0], low, high, meter)
        inner.append(multiple if values is None else OneOfValues(values))
    texts = _interval(low, low_open, high, high_open, not whole, meter)
    if integral and not whole:
        texts = ops.intersection(texts, _grammar("integral"), meter)
    for dfa in (*found, *(_atom(part, meter) for part in inner)):
        texts = ops.intersection(texts, dfa, meter)
    for part in outer:
        texts = ops.difference(texts, _atom(part, meter), meter)
    return texts


def _atom(node: Node, meter: Meter) -> Dfa:
    """Return the plain texts of the numbers of an atom, or of a union; those of multiples among texts of any kind."""
    kind = type(node)
    if kind is Multiple:
        return remembered(_languages, (node,), lambda: _multiples(node.args[0], meter))
    if kind is OneOfValues:
        return remembered(_languages, (node,), lambda: _among(node.args[0], meter))
    if kind is Integer:
        return _grammar("integral")
    if kind is Types:
        return _grammar("plain" if node.args[0] else "nothing")
    return _regular(node, False, meter)


# ---------------------------------------------------------------------------------------------------------- texts

_EXPONENT = "(?:[eE][+-]?[0-9]+)?"
_GRAMMARS = {
    "nothing": "(?!)",
    "plain": r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?",
    "whole": "-?(?:0|[1-9][0-9]*)",
    "integral": r"-?(?:0|[1-9][0-9]*)(?:\.0+)?",
    "zeros": r"(?:\.0+)?",
}


@lru_cache(maxsize=len(_GRAMMARS))
def _grammar(name: str) -> Dfa:
    return to_dfa(_GRAMMARS[name], dialect="ecma")


def any_number() -> Dfa:
    """Return all texts of JSON's numbers."""
    return _signed(True, True, True)


@lru_cache(maxsize=8)
def _signed(negative: bool, zero: bool, positive: bool) -> Dfa:
    """Return all texts of JSON's grammar for the numbers of some signs."""
    magnitude = rf"(?:0\.[0-9]*[1-9][0-9]*|[1-9][0-9]*(?:\.[0-9]+)?){_EXPONENT}"
    branches = [
        text
        for text, inside in ((f"-{magnitude}", negative), (rf"-?0(?:\.0+)?{_EXPONENT}", zero), (magnitude, positive))
        if inside
    ]
    return to_dfa("|".join(branches), dialect="ecma") if branches else _grammar("nothing")


def _plain(value: Decimal, meter: Meter) -> str:
    """Return the shortest text without exponent."""
    _check_digits(value, meter)
    if not value:
        return "0"
    text = format(value, "f")
    return text.rstrip("0").rstrip(".") if "." in text else text


def _fraction(value: Decimal, meter: Meter) -> Fraction:
    _check_digits(value, meter)
    return Fraction(value)


def _check_digits(value: Decimal, meter: Meter) -> None:
    """Raise BudgetError for a number with more digits than its automaton may have states."""
    _, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int):
        raise ValueError(f"{value} is no number")
    written = max(len(digits) + exponent, 0) + max(-exponent, 0)
    if written > 1000:  # the meter looks at its clock
        meter.check(states=8 * written, doing=f"writing a number of {written:,} digits")


def _spelled(words: Iterable[bytes], meter: Meter) -> Dfa:
    found = spelled(dict.fromkeys(words, 0), meter)
    return Dfa(found.class_of, found.transition, found.label == 0)


def _among(values: frozenset[Decimal], meter: Meter) -> Dfa:
    """Return the plain texts of these numbers."""
    integral: list[bytes] = []
    fractions: list[bytes] = []
    for value in values:
        text = _plain(value, meter)
        (fractions if "." in text else integral).append(text.encode())
        if not value:
            integral.append(b"-0")
    nfa = Nfa(BYTES, meter)
    zeros = [(48, 48)]
    first = nfa.concat([nfa.union([nfa.literal(text) for text in integral]), nfa.embed(_grammar("zeros"))])
    second = nfa.concat([nfa.union([nfa.literal(text) for text in fractions]), nfa.repeat(nfa.symbols(zeros), 0, None)])
    return determinize(nfa, nfa.union([first, second]), meter)


# ---------------------------------------------------------------------------------------------------------- bounds


def _letters() -> NDArray[np.uint16]:
    class_of = np.zeros(BYTES, np.uint16)
    class_of[45], class_of[46] = 1, 2
    class_of[48:58] = np.arange(3, 13)
    return class_of


_LETTERS = _letters()  # no part of a number, minus, point, and the ten digits
_WIDTH = 13


def _interval(
    low: Decimal | None, low_open: bool, high: Decimal | None, high_open: bool, fraction: bool, meter: Meter
) -> Dfa:
    """Return the plain texts of the numbers between two bounds; fraction: whether they may have one."""
    key = (low, low_open, high, high_open, fraction)
    return remembered(_languages, key, lambda: _between(low, low_open, high, high_open, fraction, meter))


def _between(
    low: Decimal | None, low_open: bool, high: Decimal | None, high_open: bool, fraction: bool, meter: Meter
) -> Dfa:
    if low is None and high is None:
        return _grammar("plain" if fraction else "whole")
    if low is None:
        return _bounded(high or _ZERO, False, high_open, fraction, meter)
    above = _bounded(low, True, low_open, fraction, meter)
    if high is None:
        return above
    return ops.intersection(above, _bounded(high, False, high_open, fraction, meter), meter)


def _bounded(bound: Decimal, above: bool, is_open: bool, fraction: bool, meter: Meter) -> Dfa:
    """Return the plain texts of the numbers above, or else below, a bound."""
    _check_digits(bound, meter)
    whole, _, part = format(abs(bound), "f").partition(".")
    whole, part = whole.lstrip("0"), part.rstrip("0")
    beyond = _GREATER if is_open else _GREATER | _EQUAL
    within = _LESS if is_open else _LESS | _EQUAL
    if not bound:
        far, near = beyond, 0 if is_open else _EQUAL
    elif (bound > 0) == above:  # magnitudes beyond the bound's on its own side of zero, none on the other
        far, near = beyond, 0
    else:
        far, near = _ALL, within
    positive, negative = (far, near) if above else (near, far)

    rows = [[-1] * _WIDTH]
    accepting = [False]
    for sign, wanted in enumerate((positive, negative)):
        if wanted:
            first = len(rows)
            _compare(*(("", "") if wanted == _ALL else (whole, part)), wanted, fraction, rows, accepting)
            if sign:
                rows[0][1] = first
            else:
                rows[0][3:] = rows[first][3:]
    return canonical(_LETTERS, np.array(rows, np.int32), np.array(accepting, np.bool_), meter=meter)


def _compare(whole: str, part: str, wanted: int, fraction: bool, rows: list[list[int]], accepting: list[bool]) -> None:
    """Append the states that read a magnitude and accept it if it stands to a bound as wanted.

    whole, part: the bound's digits before and after the point, without zeros at their outer ends.
    """
    n, k = len(whole), len(part)
    less, equal, greater = (bool(wanted & outcome) for outcome in (_LESS, _EQUAL, _GREATER))
    base = len(rows)
    # so far the bound's i first digits; i digits that are less, or greater; more digits than the bound; a zero alone
    same, below, above = base, base + n, base + 2 * n
    longer = base + 3 * n + 1
    zero = longer + 1
    # after the point: less or greater at any rate, each first without a digit; the bound's j first digits
    point_less, point_greater = zero + 1, zero + 3
    tail = zero + 5
    last = max(k, 1)
    points = (point_less, point_greater, tail) if fraction else (-1, -1, -1)

    def add(accept: bool, point: int, digits: list[int]) -> None:
        accepting.append(accept)
        rows.append([-1, -1, point, *digits])

    none = [-1] * 10
    for i in range(n + 1):  # same
        if i == n:
            digits = [longer] * 10 if n else [zero] + [longer] * 9
        else:
            d = int(whole[i])
            digits = [below + i + 1] * d + [same + i + 1] + [above + i + 1] * (9 - d)
            if not i:
                digits[0] = zero
        add(i > 0 and (less if i < n or k else equal), (points[2] if i == n else points[0]) if i else -1, digits)
    for i in range(1, n + 1):  # below
        add(less, points[0], [below + i + 1 if i < n else longer] * 10)
    for i in range(1, n + 1):  # above
        add(greater if i == n else less, points[1] if i == n else points[0], [above + i + 1 if i < n else longer] * 10)
    add(greater, points[1], [longer] * 10)
    add(less if n or k else equal, points[0] if n else points[2], none)
    if not fraction:
        return
    for accept, to in ((less, point_less + 1), (greater, point_greater + 1)):
        add(False, -1, [to] * 10)
        add(accept, -1, [to] * 10)
    for j in range(last + 1):  # tail
        d = int(part[j]) if j < k else 0
        digits = [point_less + 1] * d + [tail + min(j + 1, last)] + [point_greater + 1] * (9 - d)
        add(j > 0 and (less if j < k else equal), -1, digits)


# ------------------------------------------------------------------------------------------------------- multiples


def _multiples(of: Decimal, meter: Meter) -> Dfa:
    """Return texts of which the plain ones are those of the multiples of a positive number."""
    _check_digits(of, meter)
    factor, scale = _scaled(of)
    places = max(-scale, 0)
    states = factor * (places + 1) + 3
    meter.check(states=states, bytes=4 * _WIDTH * states, doing=f"dividing by {of}")
    if scale > 0:
        rest = np.arange(factor, dtype=np.int64)
        # a multiple of `factor`, then as many zeros as the scale says; or zero
        transition = np.full((factor, _WIDTH), -1, np.int32)
        transition[:, 1] = rest  # where a minus may stand is up to the grammar
        transition[:, 3:] = (10 * rest[:, None] + np.arange(10)) % factor
        nfa = Nfa(BYTES, meter)
        head = nfa.embed(canonical(_LETTERS, transition, rest == 0, meter=meter))
        scaled = nfa.concat([head, nfa.literal(b"0" * scale)])
        nothing = nfa.concat([nfa.repeat(nfa.literal(b"-"), 0, 1), nfa.literal(b"0")])
        whole = nfa.union([scaled, nothing])
        return determinize(nfa, nfa.concat([whole, nfa.embed(_grammar("zeros"))]), meter)
    return _told_by_remainder(np.arange(factor) == 0, places, False, meter)


def _is_about_remainders(node: Node) -> bool:
    """Whether a formula asks for nothing but of what a number is a multiple."""
    kind = type(node)
    if kind is AllOf or kind is AnyOf or kind is Not:
        return all(map(_is_about_remainders, node.args))
    return kind is Multiple or kind is Integer


def _by_remainder(parts: list[Node], meter: Meter) -> Dfa | None:
    """Return texts of which the plain ones are those of the numbers in all of some formulas about remainders.

    None where there are too many remainders: the formulas are then told apart one by one.
    """
    divisors = {atom: _ONE if type(atom) is Integer else atom.args[0] for atom in atoms(*parts)}
    places = 0
    for divisor in divisors.values():
        _check_digits(divisor, meter)
        places = max(places, -_scaled(divisor)[1])
    units = {atom: int(Fraction(divisor) * 10**places) for atom, divisor in divisors.items()}
    period = math.lcm(*units.values())
    if period > _MOST_REMAINDERS:
        return None
    rest = np.arange(period)
    node = all_of(parts)
    inside = _truths(node, {atom: rest % unit == 0 for atom, unit in units.items()})
    for prime in _primes(period):  # most conditions make some others needless
        while period % prime == 0 and (inside.reshape(prime, -1) == inside[: period // prime]).all():
            period //= prime
            inside = inside[:period]
    if period * (places + 1) > _MOST_TOLD:
        return None
    finer = bool(_truths(node, dict.fromkeys(units, np.zeros(1, np.bool_)))[0])
    return _told_by_remainder(inside, places, finer, meter)


def _truths(node: Node, truths: Mapping[Node, NDArray[np.bool_]]) -> NDArray[np.bool_]:
    """Return where a formula holds, given where its atoms do."""
    kind = type(node)
    if kind is AllOf or kind is AnyOf:
        inside: NDArray[np.bool_] = (np.logical_and if kind is AllOf else np.logical_or).reduce(
            [_truths(part, truths) for part in node.args]
        )
        return inside
    return ~truths[node.args[0]] if kind is Not else truths[node]


def _primes(number: int) -> list[int]:
    """Return the prime factors of a number, each once.

    >>> _primes(360)
    [2, 3, 5]
    """
    found = []
    prime = 2
    while prime * prime <= number:
        if number % prime == 0:
            found.append(prime)
            while number % prime == 0:
                number //= prime
        prime += 1
    return [*found, number] if number > 1 else found


def _told_by_remainder(inside: NDArray[np.bool_], places: int, finer: bool, meter: Meter) -> Dfa:
    """Return texts of which the plain ones are those of some multiples of 10 ** -places.

    inside: (period,), whether so many of these units are in, and as many more as the period says. finer: whether
    numbers that are no multiple of the unit are in.
    """
    # remainders of the whole part, and after each place of the fraction; behind the last one, whether it is in
    period = inside.size
    rest = np.arange(period, dtype=np.int64)
    following = (10 * rest[:, None] + np.arange(10)) % period  # (period, digits)
    start = 0
    if not places:  # the last two digits say the remainder by 100, so that remainders are alike that two digits make so
        ahead = inside + inside[following] @ (2 << np.arange(10))
        alike = ahead * period + rest % (period // math.gcd(period, 100))
        _, first, number = np.unique(alike, return_index=True, return_inverse=True)
        start = number[0]
        inside, following = inside[first], number[following[first]]
        period = inside.size
        rest = np.arange(period)
    no = (places + 1) * period
    yes, beyond = no + 1, no + 2

    def after(place: int, rest: NDArray[np.int64]) -> NDArray[np.int64]:
        return (place + 1) * period + rest if place < places else np.where(inside[rest], yes, no)

    transition = np.full((no + 3, _WIDTH), -1, np.int32)
    sections = transition[:no].reshape(places + 1, period, _WIDTH)
    sections[0, :, 1] = rest  # where a minus may stand is up to the grammar
    sections[0, :, 2] = after(0, rest)
    sections[0, :, 3:] = following
    transition[no:, 3] = no, yes, beyond
    if finer:
        transition[no:, 4:] = beyond
    accepting = np.full(no + 3, finer)
    accepting[no], accepting[yes] = False, True
    ends = accepting[:no].reshape(places + 1, period)
    power = 1
    for place in range(places - 1, -1, -1):
        sections[place + 1, :, 3:] = after(place + 1, following)
        power = power * 10 % period
        ends[place + 1] = inside[rest * power % period]
    ends[0] = inside[rest * power % period]
    return canonical(_LETTERS, transition, accepting, start, meter)


def _scaled(value: Decimal) -> tuple[int, int]:
    """Return (factor, scale) with the value factor * 10 ** scale, the factor no multiple of 10."""
    _, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int) or value <= 0:
        raise ValueError(f"multiples of {value} are not defined: it must be a number above 0")
    factor = 0
    for digit in digits:
        factor = 10 * factor + digit
    while factor % 10 == 0:
        factor //= 10
        exponent += 1
    return factor, exponent


def _counted(of: Decimal, low: Decimal | None, high: Decimal | None, meter: Meter) -> frozenset[Decimal] | None:
    """Return the multiples between two bounds where that is shorter than telling remainders apart, else None."""
    _check_digits(of, meter)
    factor, scale = _scaled(of)
    if low is None or high is None or factor * (max(-scale, 0) + 2) <= _MANY_REMAINDERS:
        return None
    unit = _fraction(of, meter)
    first, last = -(-_fraction(low, meter) // unit), _fraction(high, meter) // unit
    if last - first >= _MOST_COUNTED:
        return None
    return frozenset(
        Decimal((int(i < 0), tuple(map(int, str(abs(i) * factor))), scale)) for i in range(first, last + 1)
    )
