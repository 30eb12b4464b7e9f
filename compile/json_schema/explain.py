"""Why a schema matches no value, for an error message."""

from __future__ import annotations

from .algebra import ARRAY, NUMBER, OBJECT, STRING, Node
from .records import Record, record_of
from .value_builder import ValueBuilder

_LEVELS = 5  # levels of members that an explanation goes down
_TYPES = {NUMBER: "number", STRING: "string", ARRAY: "array", OBJECT: "object"}


def explain(builder: ValueBuilder, node: Node) -> str:
    """Return why a formula has no value, when it is known to have none."""
    return _Reasons(builder).of(node, _LEVELS)


class _Reasons:
    def __init__(self, builder: ValueBuilder) -> None:
        self._builder = builder

    def _is_empty(self, node: Node) -> bool:
        value = self._builder.value((node,))
        return not self._builder.trimmed()[value] & 1

    def of(self, node: Node, levels: int) -> str:
        """Return why a formula has no value, going down at most so many levels of members."""
        kinds = self._builder.by_kind(self._builder.cases.flat(node))
        if not kinds:
            return "no value is left of any type (false, or types, values, bounds and not that exclude each other)"
        return "; ".join([self._of_kind(kind, formula, levels) for kind, formula in kinds.items()])

    def _of_kind(self, kind: int, formula: Node, levels: int) -> str:
        if levels and kind == OBJECT:
            record = record_of(formula) or Record([], {}, {}, [])
            for key in record.required:
                if key in record.forbidden:
                    return f"the member {key!r} is required, and may not be there"
                for members in record.members:
                    node = dict(members.properties).get(key)
                    if node is None and not members.patterns:
                        node = members.rest
                    if node is not None and self._is_empty(node):
                        return f"the member {key!r} is required, and no value fits it: {self.of(node, levels - 1)}"
        if kind == ARRAY:
            return "no array fits its items, their number and contains together"
        if kind == OBJECT:
            return "no object has all required members with values that fit"
        return f"no {_TYPES[kind]} fits all that is said of it"
