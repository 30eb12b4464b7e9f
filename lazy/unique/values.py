"""JSON values as a text writes them, equal exactly where JSON Schema calls them equal.

`True`, `False` and `None` stand for themselves. A string is its characters in UTF-8, however they are escaped. A number
is its digits and an exponent, see `number_value`. Arrays and objects are `Compound`.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from typing import TypeAlias

_DIGITS_AT_ONCE = 4000  # that `int` reads


class Compound:
    """An array, with parts by index, or an object, with parts by key. Equal ones have equal digests."""

    __slots__ = ("digest", "is_array", "parts")

    def __init__(self, is_array: bool, parts: dict[int | str, Value]) -> None:
        self.is_array, self.parts = is_array, parts
        found = hashlib.sha256(b"[" if is_array else b"{")
        entries = [entry(key, value) for key, value in parts.items()]
        for each in entries if is_array else sorted(entries):
            found.update(len(each).to_bytes(8, "little") + each)
        self.digest = found.digest()

    def __eq__(self, other: object) -> bool:
        return type(other) is Compound and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)


Value: TypeAlias = "bool | bytes | tuple[str, int] | Compound | None"


def entry(key: int | str, value: Value) -> bytes:
    """Return bytes that tell a member of an object, or an item, from all others."""
    name = b"" if isinstance(key, int) else key.encode("utf-8", "surrogatepass")
    if type(value) is Compound:
        text = b"c" + value.digest
    elif type(value) is bytes:
        text = b"s" + value
    else:
        text = (f"n{value[0]}e{value[1]:x}" if type(value) is tuple else str(value)).encode()
    return len(name).to_bytes(8, "little") + name + text


def number_value(text: bytes) -> tuple[str, int]:
    """Return the digits of a number without zeros at either end, with its sign, and the exponent of the last one.

    >>> number_value(b"1") == number_value(b"1.0") == number_value(b"10e-1") == ("1", 0), number_value(b"-0.0")
    (True, ('0', 0))
    """
    plain, _, power = text.decode().lower().partition("e")
    whole, _, fraction = plain.lstrip("-").partition(".")
    digits = (whole + fraction).lstrip("0")
    short = digits.rstrip("0")
    if not short:
        return "0", 0
    exponent = _integer(power) - len(fraction) + len(digits) - len(short)
    return ("-" if plain.startswith("-") else "") + short, exponent


def _integer(text: str) -> int:
    """Return an integer of any number of digits, 0 for none."""
    digits = text.lstrip("+-").lstrip("0")
    found = 0
    for i in range(0, len(digits), _DIGITS_AT_ONCE):
        part = digits[i : i + _DIGITS_AT_ONCE]
        found = found * 10 ** len(part) + int(part)
    return -found if text.startswith("-") else found


def significant(text: bytes) -> tuple[str, str]:
    """Return the sign, and the digits from the first that is not 0, of a number of which the first part is written.

    >>> significant(b"-0.0120"), significant(b"15e3")
    (('-', '120'), ('+', '15'))
    """
    plain = text.decode().partition("e")[0].partition("E")[0]
    return "-" if plain.startswith("-") else "+", plain.lstrip("-").replace(".", "").lstrip("0")


def signed_digits(value: tuple[str, int]) -> str:
    """Return the digits of a number with its sign."""
    return value[0] if value[0].startswith("-") else "+" + value[0]


def string_value(content: bytes) -> bytes:
    r"""Return the characters of a string, whose content is given as it is written, in UTF-8.

    >>> string_value(rb"\u0061\/")
    b'a/'
    """
    return content if b"\\" not in content else _ESCAPES.sub(_unescaped, content)


def _unescaped(found: re.Match[bytes]) -> bytes:
    text: str = json.loads(b'"' + found[0] + b'"')
    return text.encode("utf-8", "surrogatepass")


_ESCAPES = re.compile(rb"(?:\\u[0-9a-fA-F]{4})+|\\[^u]")


def begun_string(content: bytes) -> bytes:
    r"""Return the first characters of a string of which the first part is written, without an escape that is not.

    >>> begun_string(rb"a\n\u00"), begun_string(rb"a\ud83d")
    (b'a\n', b'a')
    """
    return content if b"\\" not in content else string_value(content[: _end_of_escapes(content)])


def string_is_whole(content: bytes) -> bool:
    """Return whether no escape is begun where a text stands in a string, nor a pair of them."""
    return _end_of_escapes(content) == len(content)


def _end_of_escapes(content: bytes) -> int:
    """Return where the last whole escape ends, or the characters behind it."""
    end = at = content.find(b"\\")
    if at < 0:
        return len(content)
    while end < len(content):
        if content[at] == 92:
            size = 6 if content[at + 1 : at + 2] == b"u" else 2
            rest = content[at + size :]
            if at + size > len(content) or (
                size == 6 and _HIGH.match(content, at + 2) and len(rest) < 6 and rest[:2] in (b"", b"\\", b"\\u")
            ):
                break
            end = at = at + size
        else:
            at = content.find(b"\\", at)
            end = at = len(content) if at < 0 else at
    return end


_HIGH = re.compile(rb"[dD][89abAB]")  # half of a pair of surrogates begins so


def compound(is_array: bool, parts: Iterable[tuple[int | str, Value]]) -> Compound:
    """Return an array or an object; of members with the same key the last one counts."""
    return Compound(is_array, dict(parts))
