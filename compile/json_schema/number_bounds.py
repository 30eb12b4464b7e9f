"""Automata over the plain texts of the numbers between two bounds, by comparing digits."""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal

import numpy as np

from ...automata import ops
from ...automata.budget import Meter
from ...automata.dfa import Dfa
from ...automata.minimize import canonical
from .algebra import Range
from .memo import remembered
from .number_texts import BYTE_CLASSES, NUM_CLASSES, check_digits, grammar

_ZERO = Decimal(0)
_LESS, _EQUAL, _GREATER, _ALL = 1, 2, 4, 7  # how a magnitude stands to a bound

_intervals: dict[tuple[object, ...], Dfa] = {}


def interval(
    low: Decimal | None, low_open: bool, high: Decimal | None, high_open: bool, fraction: bool, meter: Meter
) -> Dfa:
    """Return the plain texts of the numbers between two bounds; fraction: whether they may have one."""
    key = (low, low_open, high, high_open, fraction)
    return remembered(_intervals, key, lambda: _between(low, low_open, high, high_open, fraction, meter))


def _between(
    low: Decimal | None, low_open: bool, high: Decimal | None, high_open: bool, fraction: bool, meter: Meter
) -> Dfa:
    if low is None and high is None:
        return grammar("plain" if fraction else "whole")
    if low is None:
        return _bounded(high or _ZERO, False, high_open, fraction, meter)
    above = _bounded(low, True, low_open, fraction, meter)
    if high is None:
        return above
    return ops.intersection(above, _bounded(high, False, high_open, fraction, meter), meter)


def _bounded(bound: Decimal, above: bool, is_open: bool, fraction: bool, meter: Meter) -> Dfa:
    """Return the plain texts of the numbers above, or else below, a bound."""
    check_digits(bound, meter)
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

    rows = [[-1] * NUM_CLASSES]
    accepting = [False]
    for sign, wanted in enumerate((positive, negative)):
        if wanted:
            first = len(rows)
            _compare(*(("", "") if wanted == _ALL else (whole, part)), wanted, fraction, rows, accepting)
            if sign:
                rows[0][1] = first
            else:
                rows[0][3:] = rows[first][3:]
    return canonical(BYTE_CLASSES, np.array(rows, np.int32), np.array(accepting, np.bool_), meter=meter)


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


def narrowest(bounds: Iterable[Range]) -> tuple[Decimal | None, bool, Decimal | None, bool]:
    """Return the bounds of the numbers between all of some bounds: low, whether it is out, high, whether it is out."""
    low, low_open, high, high_open = None, False, None, False
    for each in bounds:
        least, most, least_open, most_open = each.args
        if least is not None and (low is None or least > low or (least == low and least_open)):
            low, low_open = least, least_open
        if most is not None and (high is None or most < high or (most == high and most_open)):
            high, high_open = most, most_open
    return low, low_open, high, high_open
