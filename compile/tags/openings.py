"""The texts with which a format begins, as far as they are fixed: what ends free text that stands before it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...automata.budget import Meter
from ...errors import ConstraintError
from .control_tokens import ControlTokens, token_name
from .occurrences import Ends


class Openings:
    """Finds the texts with one of which each text of a format begins.

    A format that is malformed begins with nothing known: whoever reads it says what is wrong.
    """

    def __init__(self, tokens: ControlTokens, meter: Meter) -> None:
        self.tokens, self.meter = tokens, meter

    def of(self, value: object) -> Ends | None:
        """Return the texts, of which none is empty, or None where it may begin with others, or be empty."""
        self.meter.check(doing="reading a structural tag")
        if not isinstance(value, Mapping):
            return None
        kind, elements, tags = value.get("type"), value.get("elements"), value.get("tags")
        if kind == "const_string":
            return self._text(value.get("value"))
        if kind == "token":
            return self._text(value)
        if kind == "tag":
            return self._text(value.get("begin"))
        if kind == "sequence" and isinstance(elements, (list, tuple)):
            return next((self.of(each) for each in elements if not self.is_empty(each)), None)
        if kind == "or":
            return self._any(elements)
        if kind == "plus" or (kind == "repeat" and type(value.get("min")) is int and value["min"] > 0):
            return self.of(value.get("content"))
        begun = value.get("at_least_one") is True
        if (kind in ("triggered_tags", "token_triggered_tags") and begun) or (
            kind == "tags_with_separator" and (begun or (type(value.get("at_least")) is int and value["at_least"] > 0))
        ):
            return self._any([{"type": "tag", **tag} if isinstance(tag, Mapping) else None for tag in _listed(tags)])
        return None

    def is_empty(self, value: object) -> bool:
        """Whether a format is the empty text."""
        return isinstance(value, Mapping) and value.get("type") == "const_string" and value.get("value") == ""

    def _any(self, formats: object) -> Ends | None:
        found: dict[bytes, None] = {}
        for each in _listed(formats):
            begins = self.of(each)
            if begins is None:
                return None
            found.update(dict.fromkeys(begins))
        return tuple(found) or None

    def _text(self, value: object) -> Ends | None:
        """Return a text or token as the only one."""
        try:
            if isinstance(value, Mapping):
                return (self.tokens.mark(token_name(value.get("token"), ""), ""),)
            return (self.tokens.spelled(value, ""),) if isinstance(value, str) and value else None
        except ConstraintError:
            return None


def _listed(value: object) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else []
