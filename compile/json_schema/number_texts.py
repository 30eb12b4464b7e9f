"""How numbers are written: JSON's grammar, parts of it, and the texts of single values."""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from ...automata.budget import Meter
from ...automata.deadline import look
from ...automata.dfa import BYTES, Dfa
from ...automata.labelled import spelled
from ...automata.nfa import Nfa
from ...automata.subsets import determinize
from ..regex.lower import to_dfa


def _byte_classes() -> NDArray[np.uint16]:
    class_of = np.zeros(BYTES, np.uint16)
    class_of[45], class_of[46] = 1, 2
    class_of[48:58] = np.arange(3, 13)
    return class_of


_EXPONENT = "(?:[eE][+-]?[0-9]+)?"
_GRAMMARS = {
    "nothing": "(?!)",
    "plain": r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?",
    "whole": "-?(?:0|[1-9][0-9]*)",
    "integral": r"-?(?:0|[1-9][0-9]*)(?:\.0+)?",
    "zeros": r"(?:\.0+)?",
}
WRITING = "writing numbers"
BYTE_CLASSES = _byte_classes()  # (256,): 0 for no part of a number, then minus, point, and the ten digits
NUM_CLASSES = 13


@lru_cache(maxsize=len(_GRAMMARS))
def grammar(name: str) -> Dfa:
    """Return the texts of a part of the grammar of numbers, by its name."""
    return to_dfa(_GRAMMARS[name], dialect="ecma")


def any_number() -> Dfa:
    """Return all texts of JSON's numbers."""
    return signed(True, True, True)


@lru_cache(maxsize=8)
def signed(negative: bool, zero: bool, positive: bool) -> Dfa:
    """Return all texts of JSON's grammar for the numbers of some signs."""
    magnitude = rf"(?:0\.[0-9]*[1-9][0-9]*|[1-9][0-9]*(?:\.[0-9]+)?){_EXPONENT}"
    branches = [
        text
        for text, inside in ((f"-{magnitude}", negative), (rf"-?0(?:\.0+)?{_EXPONENT}", zero), (magnitude, positive))
        if inside
    ]
    return to_dfa("|".join(branches), dialect="ecma") if branches else grammar("nothing")


def plain_text(value: Decimal, meter: Meter) -> str:
    """Return the shortest text of a number without an exponent."""
    check_digits(value, meter)
    if not value:
        return "0"
    text = format(value, "f")
    return text.rstrip("0").rstrip(".") if "." in text else text


def fraction_of(value: Decimal, meter: Meter) -> Fraction:
    """Return a number exactly. Raises BudgetError as `check_digits` does."""
    check_digits(value, meter)
    return Fraction(value)


def check_digits(value: Decimal, meter: Meter) -> None:
    """Raise BudgetError for a number with more digits than its automaton may have states."""
    look(WRITING)
    _, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int):
        raise ValueError(f"{value} is no number")
    written = max(len(digits) + exponent, 0) + max(-exponent, 0)
    if written > 1000:  # the meter looks at its clock
        meter.check(states=8 * written, doing=f"writing a number of {written:,} digits")


def factor_and_scale(value: Decimal) -> tuple[int, int]:
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


def dfa_of_words(words: Iterable[bytes], meter: Meter) -> Dfa:
    """Return the DFA of some texts."""
    found = spelled(dict.fromkeys(words, 0), meter)
    return Dfa(found.class_of, found.transition, found.label == 0)


def dfa_of_values(values: frozenset[Decimal], meter: Meter) -> Dfa:
    """Return the plain texts of these numbers."""
    integral: list[bytes] = []
    fractions: list[bytes] = []
    for value in values:
        text = plain_text(value, meter)
        (fractions if "." in text else integral).append(text.encode())
        if not value:
            integral.append(b"-0")
    nfa = Nfa(BYTES, meter)
    zeros = [(48, 48)]
    first = nfa.concat([nfa.union([nfa.literal(text) for text in integral]), nfa.embed(grammar("zeros"))])
    second = nfa.concat([nfa.union([nfa.literal(text) for text in fractions]), nfa.repeat(nfa.symbols(zeros), 0, None)])
    return determinize(nfa, nfa.union([first, second]), meter)
