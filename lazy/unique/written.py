"""`Written`: the items of one array that have been written, all distinct."""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from typing import Any

from .values import Compound, Value, entry, signed_digits, significant

_FEW = 64  # strings that are looked at one by one


class Written:
    """Distinct values, to which one more is added by making another object: texts that begin alike share most of it.

    Values lie in runs, each of which has about twice as many as the next, so that to add one moves few of them.
    """

    __slots__ = ("_digest", "_runs", "barred", "before", "last", "size")

    def __init__(self, runs: tuple[_Run, ...] = (), before: Written | None = None, last: Value = None) -> None:
        self._runs, self.before, self.last = runs, before, last
        self.size: int = 0 if before is None else before.size + 1
        self._digest = b""  # once `code` was asked for
        self.barred: dict[Any, Any] = {}  # tokens that must not follow, by place, as far as masks asked for them

    def __contains__(self, value: Value) -> bool:
        return any(value in run.values for run in self._runs)

    def plus(self, value: Value) -> Written:
        """Return these values and one that is not among them."""
        runs, new = self._runs, _Run([value])
        while runs and len(runs[-1].values) <= len(new.values):
            new = _Run([*runs[-1].values, *new.values], runs[-1], new)
            runs = runs[:-1]
        return Written((*runs, new), self, value)

    def code(self) -> bytes:
        """Return bytes that objects have in common to which the same values were added."""
        later: list[Written] = []
        at: Written | None = self
        while at is not None and not at._digest:
            later.append(at)
            at = at.before
        for each in reversed(later):
            before = b"" if each.before is None else each.before._digest
            each._digest = hashlib.sha256(before + entry(0, each.last)).digest()
        return self._digest

    def since(self, earlier: Written) -> Written:
        """Return the values that were added to an earlier object of which this one was made."""
        values: list[Value] = []
        at: Written | None = self
        while at is not earlier:
            assert at is not None
            values.append(at.last)
            at = at.before
        found = EMPTY
        for value in values:
            found = found.plus(value)
        return found

    def strings(self, prefix: bytes, most: int = _FEW) -> list[bytes]:
        """Return strings that begin with a prefix: all, or `most` if there are more."""
        found: list[bytes] = []
        for run in self._runs:
            strings = run.strings
            at = bisect_left(strings, prefix)
            while at < len(strings) and len(found) < most and strings[at].startswith(prefix):
                found.append(strings[at])
                at += 1
        return found

    def next_bytes(self, prefix: bytes) -> frozenset[int]:
        """Return the bytes that strings have behind a prefix."""
        found = set()
        for run in self._runs:
            strings, size = run.strings, len(prefix)
            at = bisect_left(strings, prefix)
            while at < len(strings) and strings[at].startswith(prefix):
                if len(strings[at]) == size:
                    at += 1
                    continue
                byte = strings[at][size]
                found.add(byte)
                at = bisect_left(strings, prefix + bytes([byte]) + b"\xff" * 4, at)  # no text has this byte
        return frozenset(found)

    def may_be_number(self, text: bytes) -> bool:
        """Return whether a number that is written so far may become one of these, as far as its digits show."""
        sign, digits = significant(text)
        if not digits:
            return ("0", 0) in self or any(bisect_left(run.digits, sign + "0") < len(run.digits) for run in self._runs)
        begun, short = sign + digits, sign + digits.rstrip("0")
        for run in self._runs:
            at = bisect_left(run.digits, begun)
            if at < len(run.digits) and run.digits[at].startswith(begun):
                return True
            if short is not begun:
                at = bisect_left(run.digits, short)
                if at < len(run.digits) and run.digits[at] == short:
                    return True
        return False

    def has_literal(self, text: bytes) -> bool:
        """Return whether `true`, `false` or `null`, of which the first letter is written, is among these."""
        return {116: True, 102: False, 110: None}[text[0]] in self

    def compounds(self, is_array: bool) -> list[Compound]:
        """Return all arrays, or all objects."""
        return [each for run in self._runs for each in run.compounds if each.is_array == is_array]

    @property
    def has_only_strings(self) -> bool:
        """Whether all values are strings."""
        return all(len(run.strings) == len(run.values) for run in self._runs)

    @property
    def first_bytes(self) -> frozenset[int]:
        """The bytes that texts of these values begin with."""
        return frozenset().union(*(run.first_bytes for run in self._runs))


class _Run:
    """Some values, apart by type."""

    __slots__ = ("compounds", "digits", "first_bytes", "strings", "values")

    def __init__(self, values: list[Value], *parts: _Run) -> None:
        self.values = frozenset(values)
        if parts:
            self.strings = sorted([each for part in parts for each in part.strings])
            self.digits = sorted([each for part in parts for each in part.digits])
            self.compounds = [each for part in parts for each in part.compounds]
            self.first_bytes: frozenset[int] = frozenset().union(*(part.first_bytes for part in parts))
            return
        self.strings = [each for each in values if type(each) is bytes]
        self.digits = [signed_digits(each) for each in values if type(each) is tuple]
        self.compounds = [each for each in values if type(each) is Compound]
        self.first_bytes = frozenset(b"".join(map(_first_bytes, values)))


def _first_bytes(value: Value) -> bytes:
    if type(value) is Compound:
        return b"[" if value.is_array else b"{"
    if type(value) is tuple:
        return f"-0{value[0].lstrip('-')[0]}".encode()
    return b'"' if type(value) is bytes else str(value)[0].lower().encode()


EMPTY = Written()
