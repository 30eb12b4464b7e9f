"""`strict_mode` of XGrammar: objects have no properties that the schema does not name, and lists no further items.

A schema is rewritten into one that says so itself. Whatever it allows the schema allows as well.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from ...compile.json_schema.dialects import DIALECTS, by_uri
from ...compile.json_schema.source import Schema, check_depth, pointer
from ...depth import enough_stack
from ...errors import ConstraintError, SchemaError

_MEMBERS = ("properties", "patternProperties")
_SAYS_MEMBERS = ("additionalProperties", "unevaluatedProperties")
_SAYS_ITEMS = ("additionalItems", "unevaluatedItems")
_LISTS = ("allOf", "anyOf", "oneOf")
_IN_PLACE = (*_LISTS, "if", "then", "else", "dependentSchemas")
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
_ANNOTATIONS = frozenset(
    ("title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly", "$comment")
)
_DEFINITIONS = ("$defs", "definitions")


def closed(schema: Schema) -> Schema:
    """Return the schema of the same values without what the schema does not name.

    A schema that names no properties at all, such as {"type": "object"}, stays open, as in XGrammar. So does one that
    says itself what others may be. Raises ConstraintError where the draft of the schema has no way to say it.

    >>> closed({"properties": {"a": {"type": "object"}}})
    {'properties': {'a': {'type': 'object'}}, 'additionalProperties': False}
    """
    check_depth(schema)
    with enough_stack(partial(SchemaError, pointer="")):
        return _Closing(schema).whole() if isinstance(schema, dict) else schema


class _Closing:
    """Rewrites one schema."""

    def __init__(self, root: dict[str, Any]) -> None:
        uri = root.get("$schema")
        dialect = by_uri(uri) if isinstance(uri, str) else None
        self._root, self._dialect = root, dialect or DIALECTS[2020]
        self._definitions = _DEFINITIONS[self._dialect.version < 2019]
        self._copies: dict[str, Any] = {}  # closed definitions, by key

    def whole(self) -> dict[str, Any]:
        made: dict[str, Any] = self._node(self._root)
        if self._copies:
            made[self._definitions] = {**made.get(self._definitions, {}), **self._copies}
        return made

    def _node(self, node: Any, close: bool = True) -> Any:
        """Return a schema with all that stands in it closed, and itself if `close`."""
        if not isinstance(node, dict):
            return node
        if node is not self._root and isinstance(node.get(self._dialect.id), str):
            raise _not_closed(f'it has a part with an "{self._dialect.id}" of its own')
        if self._dialect.ref_alone and "$ref" in node:
            return {**node, "$ref": self._closed_reference(node["$ref"])} if close else node
        made = {key: self._keyword(key, value) for key, value in node.items()}
        return self._closed(node, made) if close else made

    def _keyword(self, key: str, value: Any) -> Any:
        """Return what a keyword says, with the values that stand in it closed.

        What is not, if, oneOf and contains stays: if these allowed less, the whole could allow more.
        """
        if key in _MEMBERS and isinstance(value, dict):
            return {name: self._node(each) for name, each in value.items()}
        if key in (*_DEFINITIONS, "dependentSchemas") and isinstance(value, dict):
            return {name: self._node(each, False) for name, each in value.items()}
        if key in ("prefixItems", "items") and isinstance(value, list):
            return [self._node(each) for each in value]
        if key in ("items", *_SAYS_MEMBERS, *_SAYS_ITEMS):
            return self._node(value)
        if key in ("allOf", "anyOf") and isinstance(value, list):
            return [self._node(each, False) for each in value]
        return self._node(value, False) if key in ("then", "else") else value

    def _closed(self, node: dict[str, Any], made: dict[str, Any]) -> dict[str, Any]:
        others = {key for key in (*_IN_PLACE, *_REFERENCES) if key in node}
        alone = others and not any(key in node for key in (*_MEMBERS, "prefixItems", *_SAYS_MEMBERS, *_SAYS_ITEMS))
        if others == {"$ref"} and set(node) - {"$ref", *_DEFINITIONS, "$schema", "$id"} <= _ANNOTATIONS:
            made["$ref"] = self._closed_reference(node["$ref"])
        elif alone and len(others) == 1 and others <= {"anyOf", "oneOf"}:
            (key,) = others
            if isinstance(node[key], list):  # of what one of alternatives is, none says which one it is
                made["anyOf"] = [self._node(each) for each in node[key]]
        else:
            self._say(made, node, "unevaluated" if others else "additional")
        return made

    def _say(self, made: dict[str, Any], node: dict[str, Any], kind: str) -> None:
        """Say of a schema that there is nothing else; kind: how, which depends on what stands beside it."""
        if not any(key in node for key in _SAYS_MEMBERS) and self._names(node, _MEMBERS):
            made[self._known(f"{kind}Properties")] = False
        items = node.get("items")
        if any(key in node for key in _SAYS_ITEMS) or not isinstance(items, list | None):
            return
        if isinstance(items, list):
            made[self._known(f"{kind}Items")] = False
        elif self._names(node, ("prefixItems",)):
            made["items" if kind == "additional" else self._known("unevaluatedItems")] = False

    def _known(self, keyword: str) -> str:
        if keyword not in self._dialect.keywords:
            raise _not_closed(f'it needs "{keyword}", which its draft does not have')
        return keyword

    def _names(self, node: Any, keywords: tuple[str, ...]) -> bool:
        """Return whether one of these keywords speaks of the values of a schema itself."""
        seen: set[int] = set()
        todo = [node]
        while todo:
            here = todo.pop()
            if not isinstance(here, dict) or id(here) in seen:
                continue
            seen.add(id(here))
            if any(key in here for key in keywords):
                return True
            todo += self._beside(here)
        return False

    def _beside(self, node: dict[str, Any]) -> Iterator[Any]:
        """Yield the schemas that speak of the same values as one."""
        for key in _REFERENCES:
            if key in node:
                yield self._target(node[key])
        for key in _IN_PLACE:
            value = node.get(key)
            yield from value if isinstance(value, list) else ()
            if isinstance(value, dict):
                yield from value.values() if key == "dependentSchemas" else (value,)

    def _closed_reference(self, reference: object) -> str:
        """Return a reference to a copy of what one names, which is closed."""
        target = self._target(reference)
        if target is self._root:
            return "#"
        key = f"{reference}, closed"
        if key not in self._copies:
            self._copies[key] = {}  # it may refer to itself
            self._copies[key] = self._node(target)
        return pointer(("#", self._definitions, key))

    def _target(self, reference: object) -> Any:
        """Return the schema that a reference into this one names."""
        here: Any = self._root
        if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
            raise _not_closed(f"it refers to {reference!r}, which is no path within it")
        for step in reference.removeprefix("#").split("/")[1:]:
            name = _unquoted(step).replace("~1", "/").replace("~0", "~")
            try:
                here = here[int(name)] if isinstance(here, list) else here[name]
            except (LookupError, ValueError, TypeError):
                raise ConstraintError(f"{reference!r} refers to nothing") from None
        return here


def _unquoted(step: str) -> str:
    if "%" not in step:
        return step
    from urllib.parse import unquote  # 20 ms to import, for those who need it

    return unquote(step)


def _not_closed(why: str) -> ConstraintError:
    return ConstraintError(
        f'strict_mode cannot close this schema: {why}. Write "additionalProperties": false into it and pass '
        "strict_mode=False"
    )
