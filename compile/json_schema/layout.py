"""How JSON is written: bytes of punctuation, and where white space may stand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

MOST_SPACES, MOST_TABS = 256, 64  # of an indentation: 4 spaces or a tab at each of 64 levels
SPACED = (", ", ": ")  # separators of json.dumps
Whitespace: TypeAlias = Literal["flexible", "spaced", "compact"]
HEX = ((0x30, 0x39), (0x41, 0x46), (0x61, 0x66))
QUOTE, BACKSLASH = 0x22, 0x5C
COMMA, OPEN_ARRAY, CLOSE_ARRAY, OPEN_OBJECT, CLOSE_OBJECT = b",[]{}"
NEWLINE, SPACE, TAB = b"\n \t"


@dataclass(frozen=True)
class Layout:
    """Where white space may stand: where json.dumps puts it in any indentation, or exactly these separators.

    after: the bytes that may follow a whole value, where it is a part of a longer text.
    """

    flexible: bool = True
    comma: bytes = b","
    colon: bytes = b":"
    ascii: bool = False
    after: bytes = b""


def after_number(layout: Layout) -> bytes:
    """Return the bytes that may follow a number."""
    return b"]}" + layout.comma[:1] + (b"\n" if layout.flexible else b"")
