"""`Written`: the items of one array that have been written, all distinct."""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Set
from typing import Any

from .values import Compound, Value, entry, signed_digits, significant

_FEW = 64  # strings that are looked at one by one
_RECENT, _SHORT = 12, 160  # values in a tuple, and in the shorter run, at most
_MOST_PARTS = 64  # keys and indices by which the parts of values are kept


class Written:
    """Distinct values, to which one more is added by making another object: texts that begin alike share most of it.

    The last few values are in a tuple; all others lie in one or two sorted runs, of which the second is shorter.
    """

    __slots__ = ("_digest", "_parts", "_recent", "_runs", "barred", "before", "last", "size")

    def __init__(
        self, runs: tuple[_Run, ...] = (), recent: tuple[Value, ...] = (), before: Written | None = None,
        last: Value = None,
    ) -> None:  # fmt: skip
        self._runs, self._recent, self.before, self.last = runs, recent, before, last
        self.size: int = 0 if before is None else before.size + 1
        self._digest = b""  # once `code` was asked for
        self._parts: dict[tuple[bool, int | str | None], Written] = {}
        self.barred: dict[Any, Any] = {}  # tokens that must not follow, by place, as far as masks asked for them

    def __contains__(self, value: Value) -> bool:
        return value in self._recent or any(value in run.values for run in self._runs)

    def plus(self, value: Value) -> Written:
        """Return these values and one that is not among them."""
        runs, recent = self._runs, (*self._recent, value)
        if len(recent) > _RECENT:
            new = _Run(recent)
            if len(runs) == 2:
                new = _Run((), runs[1], new)
                runs = runs[:1]
                if len(new.values) > _SHORT:
                    new, runs = _Run((), runs[0], new), ()
            runs, recent = (*runs, new), ()
        return Written(runs, recent, self, value)

    def parts(self, is_array: bool, name: int | str | None) -> Written:
        """Return the values that arrays have at an index, or objects at a key; without a key, the keys of objects."""
        key = is_array, name
        later: list[Written] = []
        at: Written | None = self
        while at is not None and key not in at._parts:
            later.append(at)
            at = at.before
        found = EMPTY if at is None else at._parts[key]
        for each in reversed(later):
            value = each.last
            if each.size and type(value) is Compound and value.is_array == is_array:
                own: list[Value] = [value.parts[name]] if name is not None and name in value.parts else []
                if name is None:
                    own = [str(key).encode("utf-8", "surrogatepass") for key in value.parts]
                for part in own:
                    if part not in found:
                        found = found.plus(part)
            if len(each._parts) < _MOST_PARTS:
                each._parts[key] = found
        return found

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
        """Return strings that begin with a prefix: all, or at least `most` if there are more."""
        found = [each for each in self._recent if type(each) is bytes and each.startswith(prefix)]
        for run in self._runs:
            strings = run.strings
            at = bisect_left(strings, prefix)
            while at < len(strings) and len(found) < most and strings[at].startswith(prefix):
                found.append(strings[at])
                at += 1
        return found

    def those_in(self, values: Set[bytes]) -> list[bytes]:
        """Return the strings that are among some."""
        found = [each for each in self._recent if type(each) is bytes and each in values]
        for run in self._runs:
            found += values & run.values
        return found

    def next_bytes(self, prefix: bytes) -> frozenset[int]:
        """Return the bytes that strings have behind a prefix."""
        recent = [each for each in self._recent if type(each) is bytes and each.startswith(prefix)]
        found = {each[len(prefix)] for each in recent if len(each) > len(prefix)}
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
            return any(type(each) is tuple for each in self._recent) or any(run.digits for run in self._runs)
        begun, short = sign + digits, sign + digits.rstrip("0")
        for each in self._recent:
            if type(each) is tuple:
                own = signed_digits(each)
                if own.startswith(begun) or own == short:
                    return True
        for run in self._runs:
            at = bisect_left(run.digits, begun)
            if at < len(run.digits) and run.digits[at].startswith(begun):
                return True
            at = bisect_left(run.digits, short)
            if at < len(run.digits) and run.digits[at] == short:
                return True
        return False

    def has_literal(self, text: bytes) -> bool:
        """Return whether `true`, `false` or `null`, of which the first letter is written, is among these."""
        return {116: True, 102: False, 110: None}[text[0]] in self

    def compounds(self, is_array: bool) -> list[Compound]:
        """Return all arrays, or all objects."""
        found = [each for run in self._runs for each in run.compounds if each.is_array == is_array]
        return found + [each for each in self._recent if type(each) is Compound and each.is_array == is_array]

    def has_compound(self, is_array: bool) -> bool:
        """Return whether there is an array, or an object."""
        recent = (each for each in self._recent if type(each) is Compound)
        return any(each.is_array == is_array for each in recent) or any(
            each.is_array == is_array for run in self._runs for each in run.compounds
        )

    @property
    def has_only_strings(self) -> bool:
        """Whether all values are strings."""
        return all(len(run.strings) == len(run.values) for run in self._runs) and all(
            type(each) is bytes for each in self._recent
        )

    @property
    def first_bytes(self) -> frozenset[int]:
        """The bytes that texts of these values begin with."""
        recent = frozenset(b"".join(map(_first_bytes, self._recent)))
        return recent.union(*(run.first_bytes for run in self._runs))


class _Run:
    """Some values, apart by type."""

    __slots__ = ("compounds", "digits", "first_bytes", "strings", "values")

    def __init__(self, values: tuple[Value, ...], *parts: _Run) -> None:
        if parts:
            first, other = parts
            self.values: frozenset[Value] = first.values | other.values
            self.strings: list[bytes] = sorted(first.strings + other.strings)
            self.digits: list[str] = sorted(first.digits + other.digits)
            self.compounds: list[Compound] = first.compounds + other.compounds
            self.first_bytes: frozenset[int] = first.first_bytes | other.first_bytes
            return
        self.values = frozenset(values)
        self.strings = sorted([each for each in values if type(each) is bytes])
        self.digits = sorted([signed_digits(each) for each in values if type(each) is tuple])
        self.compounds = [each for each in values if type(each) is Compound]
        self.first_bytes = frozenset(b"".join(map(_first_bytes, values)))


def _first_bytes(value: Value) -> bytes:
    if type(value) is Compound:
        return b"[" if value.is_array else b"{"
    if type(value) is tuple:
        return f"-0{value[0].lstrip('-')[0]}".encode()
    return b'"' if type(value) is bytes else str(value)[0].lower().encode()


EMPTY = Written()
