"""Automata over the plain texts of the multiples of numbers, by the remainders of what has been read."""

from __future__ import annotations

import math
from collections.abc import Mapping
from decimal import Decimal
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from ...automata.budget import Meter
from ...automata.dfa import BYTES, Dfa
from ...automata.minimize import canonical
from ...automata.nfa import Nfa
from ...automata.subsets import determinize
from .algebra import AllOf, AnyOf, Integer, Multiple, Node, Not, all_of, atoms, once_each
from .number_texts import BYTE_CLASSES, NUM_CLASSES, check_digits, factor_and_scale, fraction_of, grammar

_MANY_REMAINDERS = 20_000  # states above which the multiples within bounds are listed instead
_MOST_TOLD = 1 << 16  # states of an automaton that tells several divisors apart at once
_MOST_COUNTED = 2_000  # multiples that are listed
_MOST_REMAINDERS = 1 << 18  # that are tried to see which of them matter
_ONE = Decimal(1)


def multiples(of: Decimal, meter: Meter) -> Dfa:
    """Return texts of which the plain ones are those of the multiples of a positive number."""
    check_digits(of, meter)
    factor, scale = factor_and_scale(of)
    places = max(-scale, 0)
    states = factor * (places + 1) + 3
    meter.check(states=states, bytes=4 * NUM_CLASSES * states, doing=f"dividing by {of}")
    if scale > 0:
        rest = np.arange(factor, dtype=np.int64)
        # a multiple of `factor`, then as many zeros as the scale says; or zero
        transition = np.full((factor, NUM_CLASSES), -1, np.int32)
        transition[:, 1] = rest  # where a minus may stand is up to the grammar
        transition[:, 3:] = (10 * rest[:, None] + np.arange(10)) % factor
        nfa = Nfa(BYTES, meter)
        head = nfa.embed(canonical(BYTE_CLASSES, transition, rest == 0, meter=meter))
        scaled = nfa.concat([head, nfa.literal(b"0" * scale)])
        nothing = nfa.concat([nfa.repeat(nfa.literal(b"-"), 0, 1), nfa.literal(b"0")])
        whole = nfa.union([scaled, nothing])
        return determinize(nfa, nfa.concat([whole, nfa.embed(grammar("zeros"))]), meter)
    return _told_by_remainder(np.arange(factor) == 0, places, False, meter)


@once_each
def is_about_remainders(node: Node) -> bool:
    """Whether a formula asks for nothing but of what a number is a multiple."""
    kind = type(node)
    if kind is AllOf or kind is AnyOf or kind is Not:
        return all(map(is_about_remainders, node.args))
    return kind is Multiple or kind is Integer


def by_remainder(parts: list[Node], meter: Meter) -> Dfa | None:
    """Return texts of which the plain ones are those of the numbers in all of some formulas about remainders.

    None where there are too many remainders: the formulas are then told apart one by one.
    """
    divisors = {atom: _ONE if type(atom) is Integer else atom.args[0] for atom in atoms(*parts)}
    places = 0
    for divisor in divisors.values():
        check_digits(divisor, meter)
        places = max(places, -factor_and_scale(divisor)[1])
    units = {atom: int(Fraction(divisor) * 10**places) for atom, divisor in divisors.items()}
    period = math.lcm(*units.values())
    if period > _MOST_REMAINDERS:
        return None
    rest = np.arange(period)
    node = all_of(parts)
    inside = truths_of(node, {atom: rest % unit == 0 for atom, unit in units.items()})
    for prime in _primes(period):  # most conditions make some others needless
        while period % prime == 0 and (inside.reshape(prime, -1) == inside[: period // prime]).all():
            period //= prime
            inside = inside[:period]
    if period * (places + 1) > _MOST_TOLD:
        return None
    finer = bool(truths_of(node, dict.fromkeys(units, np.zeros(1, np.bool_)))[0])
    return _told_by_remainder(inside, places, finer, meter)


@once_each
def truths_of(node: Node, truths: Mapping[Node, NDArray[np.bool_]]) -> NDArray[np.bool_]:
    """Return where a formula holds, given where its atoms do."""
    kind = type(node)
    if kind is AllOf or kind is AnyOf:
        inside: NDArray[np.bool_] = (np.logical_and if kind is AllOf else np.logical_or).reduce(
            [truths_of(part, truths) for part in node.args]
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

    transition = np.full((no + 3, NUM_CLASSES), -1, np.int32)
    sections = transition[:no].reshape(places + 1, period, NUM_CLASSES)
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
    return canonical(BYTE_CLASSES, transition, accepting, start, meter)


def multiples_between(
    of: Decimal, low: Decimal | None, high: Decimal | None, meter: Meter
) -> frozenset[Decimal] | None:
    """Return the multiples between two bounds if a list is shorter than telling remainders apart, else None."""
    check_digits(of, meter)
    factor, scale = factor_and_scale(of)
    if low is None or high is None or factor * (max(-scale, 0) + 2) <= _MANY_REMAINDERS:
        return None
    unit = fraction_of(of, meter)
    first, last = -(-fraction_of(low, meter) // unit), fraction_of(high, meter) // unit
    if last - first >= _MOST_COUNTED:
        return None
    return frozenset(
        Decimal((int(i < 0), tuple(map(int, str(abs(i) * factor))), scale)) for i in range(first, last + 1)
    )
