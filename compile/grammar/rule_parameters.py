"""Parameters of rules, as llguidance has them: an integer of 64 bits that a call passes on and conditions ask for."""

from __future__ import annotations

import re
from collections.abc import Callable

_BITS = 64
_ALL = (1 << _BITS) - 1
_TOKEN = re.compile(r"\s*(0[xX][0-9a-fA-F]+|\d+|[a-z_]+|[(),:\[\]])")

_COMPARED: dict[str, Callable[[int, int], bool]] = {
    "eq": int.__eq__, "ne": int.__ne__, "lt": int.__lt__, "le": int.__le__, "gt": int.__gt__, "ge": int.__ge__
}  # fmt: skip


class ParameterError(ValueError):
    """What is wrong with an expression or a condition."""


def value_of(expression: str, given: int | None) -> int:
    """Return what an expression such as `incr([0:3])` makes of a parameter, of which None is none.

    >>> value_of("set_bit(2)", 1), value_of("incr([0:2])", 3), value_of("0x10", None)
    (5, 3, 16)
    """
    reader = _Reader(expression, given)
    value = reader.expression()
    reader.end()
    return value


def holds(condition: str, given: int | None) -> bool:
    """Return whether a condition such as `and(bit_clear(0), lt([0:3], 5))` holds for a parameter.

    >>> holds("and(bit_clear(0), lt([1:4], 2))", 2), holds("is_ones([0:2])", 2)
    (True, False)
    """
    reader = _Reader(condition, given)
    value = reader.condition()
    reader.end()
    return value


class _Reader:
    def __init__(self, text: str, given: int | None) -> None:
        self.tokens: list[str] = []
        at = 0
        text = text.rstrip()
        while at < len(text):
            found = _TOKEN.match(text, at)
            if not found:
                raise ParameterError(f"{text[at]!r} has no place in it")
            self.tokens.append(found[1])
            at = found.end()
        self.at, self._given = 0, given

    @property
    def given(self) -> int:
        if self._given is None:
            raise ParameterError("it asks for a parameter, and the rule has none: write name::_ before the colon")
        return self._given

    def next(self) -> str:
        self.at += 1
        return self.tokens[self.at - 1] if self.at <= len(self.tokens) else ""

    def take(self, wanted: str) -> None:
        found = self.next()
        if found != wanted:
            raise ParameterError(f"{wanted} is missing before {found!r}" if found else f"{wanted} is missing")

    def end(self) -> None:
        if self.at < len(self.tokens):
            raise ParameterError(f"{self.tokens[self.at]!r} has no place in it")

    def number(self, most: int = _ALL) -> int:
        found = self.next()
        if not found[:1].isdigit() or len(found) > 24:
            raise ParameterError(f"a number of at most 64 bits is needed, not {found!r}")
        value = int(found, 16 if found[:2] in ("0x", "0X") else 10)
        if value > most:
            raise ParameterError(f"{found} is too large: the most is {most}")
        return value

    def bits(self) -> tuple[int, int]:
        """Read `_` or `[from:to]`, and return where the bits begin and a mask of so many."""
        found = self.next()
        if found == "_":
            return 0, _ALL
        if found != "[":
            raise ParameterError(f"_ or [from:to] is needed, not {found!r}")
        begin = self.number(_BITS - 1)
        self.take(":")
        end = self.number(_BITS)
        self.take("]")
        if end <= begin:
            raise ParameterError(f"the bits [{begin}:{end}] are none: the end must be larger")
        return begin, (1 << (end - begin)) - 1

    def expression(self) -> int:
        name = self.next()
        if name == "_":
            return self.given
        if name[:1].isdigit():
            self.at -= 1
            return self.number()
        self.take("(")
        if name in ("set_bit", "clear_bit"):
            bit = 1 << self.number(_BITS - 1)
            value = self.given | bit if name == "set_bit" else self.given & ~bit
        elif name in ("bit_and", "bit_or"):
            other = self.number()
            value = self.given & other if name == "bit_and" else self.given | other
        elif name in ("incr", "decr"):
            begin, mask = self.bits()
            held = self.given >> begin & mask
            one = 1 << begin
            value = self.given + one * (held < mask) if name == "incr" else self.given - one * (held > 0)
        else:
            raise ParameterError(f"there is no {name!r} of a parameter")
        self.take(")")
        return value

    def condition(self) -> bool:
        name = self.next()
        if name == "true":
            if self.at < len(self.tokens) and self.tokens[self.at] == "(":
                self.take("(")
                self.take(")")
            return True
        self.take("(")
        if name in ("and", "or"):
            first = self.condition()
            self.take(",")
            second = self.condition()
            value = first and second if name == "and" else first or second
        elif name == "not":
            value = not self.condition()
        elif name in ("bit_clear", "bit_set"):
            value = (self.given >> self.number(_BITS - 1) & 1) == (name == "bit_set")
        elif name in ("is_ones", "is_zeros"):
            begin, mask = self.bits()
            value = (self.given >> begin & mask) == (mask if name == "is_ones" else 0)
        else:
            compared = _COMPARED.get(name.removeprefix("bit_count_"))
            if compared is None:
                raise ParameterError(f"there is no condition {name!r}")
            begin, mask = self.bits()
            held = self.given >> begin & mask
            self.take(",")
            counts = name.startswith("bit_count_")
            value = compared(held.bit_count() if counts else held, self.number(_BITS - 1 if counts else _ALL))
        self.take(")")
        return value
