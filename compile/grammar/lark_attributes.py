"""Attributes of rules, as llguidance has them: `name[lazy, suffix="</a>", temperature=0.5]: /.*/`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from lark import Token, Tree

from .lark_definitions import FaultError
from .lark_parser import Parsed

_NAMES = ("capture", "lazy", "max_tokens", "stop", "stop_capture", "suffix", "temperature")


class Attributes(NamedTuple):
    """What they say of the texts; capture and temperature say nothing of these.

    stop, suffix: the value of a terminal, None if there is none.
    """

    lazy: bool = False
    stop: Parsed | None = None
    suffix: Parsed | None = None
    nothing: bool = False  # whether no token may be written

    @property
    def ends(self) -> bool:
        """Whether they say where the rule's terminal ends."""
        return self.lazy or self.stop is not None or self.suffix is not None


def attributes_of(trees: Iterable[Parsed]) -> Attributes:
    """Return what the attributes of a rule say. Raises FaultError."""
    said: dict[str, Token | Tree[Token] | None] = {}
    where: dict[str, Token] = {}
    for tree in trees:
        name, *value = tree.children
        if name not in _NAMES:
            raise FaultError(f"there is no attribute {name}: it is one of {', '.join(_NAMES)}", name)
        if name in said:
            raise FaultError(f"the attribute {name} is given twice: remove one", name)
        said[str(name)], where[str(name)] = value[0] if value else None, name
        _check(name, value[0] if value else None)
    if "stop" in said and "suffix" in said:
        raise FaultError("stop and suffix exclude each other: give one of them", where["suffix"])
    if "stop_capture" in said and "stop" not in said and "suffix" not in said:
        raise FaultError("stop_capture names the text of stop or suffix, and there is neither", where["stop_capture"])
    most = said.get("max_tokens")
    if most is not None and int(str(most)):
        raise FaultError(
            "max_tokens is not supported, because one text is written in few tokens or in many: count characters, as "
            "in /.{0,20}/",
            where["max_tokens"],
        )
    return Attributes("lazy" in said, said.get("stop"), said.get("suffix"), most is not None)


def _check(name: Token, value: Token | Tree[Token] | None) -> None:
    """Raise FaultError for a value of another kind than an attribute takes."""
    inner = value.children[0] if isinstance(value, Tree) else value
    if name == "lazy":
        if value is not None:
            raise FaultError("lazy takes no value", name)
    elif name in ("capture", "stop_capture"):
        if value is None and name == "capture":
            return
        text = inner.children[0] if isinstance(inner, Tree) and inner.data == "literal" else None
        if not isinstance(text, Token) or text.type != "STRING" or not text.endswith('"'):
            raise FaultError(f"{name} takes a name in quotes", name)
    elif name == "max_tokens":
        if not isinstance(value, Token) or not value.isdecimal() or len(value) > 10:
            raise FaultError("max_tokens takes a number", name)
    elif name == "temperature":
        if not isinstance(value, Token):
            raise FaultError("temperature takes a number", name)
    elif not isinstance(inner, Tree) or inner.data not in ("literal", "range", "terminal", "regex"):
        raise FaultError(f"{name} takes a text, a pattern or a terminal", name)


def is_empty_text(value: Parsed | None) -> bool:
    """Whether a value is the text of no character: with this stop, a rule ends like any other."""
    inner = None if value is None else value.children[0]
    return isinstance(inner, Tree) and inner.data == "literal" and str(inner.children[0]) == '""'
