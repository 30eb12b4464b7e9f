"""A schema that is being compiled: the formulas made of its parts so far, and what a keyword sees of its schema."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from enum import Enum
from functools import partial
from typing import Any, Final, TypeAlias

from ...automata.budget import Meter
from ...depth import LIMIT, MOST_IN_PLACE
from ...errors import SchemaError
from .algebra import (
    ANY,
    ARRAY,
    BOOLEAN,
    EVERYTHING,
    NEVER,
    NULL,
    NUMBER,
    OBJECT,
    STRING,
    Node,
    Reference,
    all_of,
)
from .approximations import Approximations, KeywordPlace
from .branches import Branches
from .dialects import DIALECTS, Dialect
from .documents import Documents, Scope, Target
from .evaluated import Evaluated
from .literals import check_text, number
from .source import Json, Key, Path, pointer, shown

HUGEST = 10**18  # the largest count with a meaning
_DEEPEST = 24  # levels of members and items; deeper ones become a `Reference`
_MOST_STEPS = 16  # references in a row that are followed to see what an item is


class Absent(Enum):
    """The value of a keyword that is not there."""

    ABSENT = "absent"


ABSENT: Final = Absent.ABSENT
UNIVERSAL = frozenset({"", "^", "$", ".*", "^.*", ".*$", "(.*)", ".{0,}"})
"""Patterns that match somewhere in every text."""
WHOLE = frozenset({"unevaluatedItems", "unevaluatedProperties"})
"""Keywords whose functions return the node of the whole schema that they stand in."""
KINDS = {
    "null": NULL, "boolean": BOOLEAN, "integer": NUMBER, "number": NUMBER, "string": STRING, "array": ARRAY,
    "object": OBJECT,
}  # fmt: skip

Handler: TypeAlias = "Callable[[KeywordContext, Json], Node | None]"
"""A function that says what a keyword means, given where it stands and its value; None if nothing."""
Handlers: TypeAlias = dict[str, Handler]
Located: TypeAlias = tuple[Json, tuple[Key, ...]]
"""A subschema, and the keys that lead to it."""
Place: TypeAlias = tuple[int, Scope]
"""A schema where it stands: its identity, and its scope."""


class Compiler:
    """One compilation: the documents, and the formulas made of their parts so far."""

    def __init__(
        self,
        documents: Documents,
        approximations: Approximations,
        meter: Meter,
        handlers: Mapping[Dialect, Handlers],
    ) -> None:
        self.documents = documents
        self.approximations = approximations
        self.meter = meter
        self.branches = Branches(meter)
        self.evaluated: dict[tuple[int, Scope, int], Evaluated] = {}  # by place and type of the value
        self.active: dict[Hashable, None] = {}  # places that are being compiled for the value at hand, outermost first
        self._made: dict[Place, Node] = {}
        self._later: dict[Place, Reference] = {}
        self._handlers = dict(handlers)
        self._depth = 0  # of members and items
        self._in_place = 0

    # ------------------------------------------------------------------------------------------------ schemas

    def begin(self, make: Callable[[], Node]) -> Node:
        """Return what `make` compiles, as if no other schema were being compiled."""
        before = self.active, self._depth, self._in_place
        self.active, self._depth, self._in_place = {}, 0, 0
        try:
            self.meter.check(doing="reading the schema")
            return make()
        finally:
            self.active, self._depth, self._in_place = before

    def nested(self, schema: Json, scope: Scope, path: Path) -> Node:
        """Return the node of a member's or an item's schema."""
        if not isinstance(schema, dict):
            return self.schema(schema, scope, path)
        key = (id(schema), scope)
        node = self._made.get(key)
        if node is not None:
            return node
        if not _REFERRING.isdisjoint(schema) and _refers(schema):
            reference = schema.get("$ref")
            if type(reference) is str and _is_reference(schema, scope):
                return self._reference_later(reference, scope, path)
            return self._place_later(schema, scope, path)
        if self._depth + self._in_place + len(self.active) >= _DEEPEST:
            return self._place_later(schema, scope, path)
        self._depth += 1
        in_place, self._in_place = self._in_place, 0
        try:
            node = self._made[key] = self.schema(schema, scope, path)
        finally:
            self._depth -= 1
            self._in_place = in_place
        return node

    def _reference_later(self, reference: str, scope: Scope, path: Path) -> Reference:
        """Return the one Reference for all members and items that consist of the same `$ref`."""
        later = scope.later.get(reference)
        if later is None:
            make = partial(self.reference, "$ref", reference, scope, (path, "$ref"))
            later = scope.later[reference] = Reference(partial(self.begin, make))
        return later

    def _place_later(self, schema: dict[str, Json], scope: Scope, path: Path) -> Reference:
        """Return the one Reference to a schema where it stands."""
        key = (id(schema), scope)
        later = self._later.get(key)
        if later is None:
            make = partial(self.schema, schema, scope, path)
            later = self._later[key] = Reference(partial(self.begin, make))
        return later

    def peek(self, node: Node, schema: Json, scope: Scope, path: Path) -> Node:
        """Return an item's node; for a `Reference` the node of its target, if that plainly lists scalars."""
        if type(node) is not Reference:
            return node
        for _ in range(_MOST_STEPS):
            if not isinstance(schema, dict) or not _is_reference(schema, scope):
                break
            target = self.documents.resolve(scope, "$ref", schema["$ref"], (path, "$ref"))
            schema, scope, path = target.contents, target.scope, target.path
        if not isinstance(schema, dict) or _refers(schema):
            return node
        if "enum" in schema or "const" in schema or schema.get("type") in ("boolean", "null", "integer"):
            return self.nested(schema, scope, path)
        return node

    def reference(self, keyword: str, reference: Json, scope: Scope, path: Path) -> Node:
        """Return the node of what a reference leads to."""
        return self.enter(self.documents.resolve(scope, keyword, reference, path), path)

    def enter(self, target: Target, path: Path) -> Node:
        """Return the node of a schema that may be entered from several places, or from inside itself."""
        key = (id(target.contents), target.scope)
        node = self._made.get(key)
        if node is None:
            self.guard(key, path)
            try:
                node = self.schema(target.contents, target.scope, target.path)
            finally:
                del self.active[key]
            self._made[key] = node
        return node

    def guard(self, key: Hashable, path: Path) -> None:
        """Note that a place is being compiled, until it is deleted from `active`. Raises SchemaError for a loop."""
        if key in self.active:
            raise SchemaError(
                "reference loop: the schema leads back to itself with no member or item in between, so it says "
                "nothing about a value: take out the reference",
                pointer(path),
            )
        self.active[key] = None

    def in_place(self, schema: Json, scope: Scope, path: Path) -> Node:
        """Return the node of a subschema that applies to the same value."""
        if not isinstance(schema, dict):
            return self.schema(schema, scope, path)
        key = (id(schema), scope)
        node = self._made.get(key)
        if node is None:
            self._in_place += 1
            try:
                node = self._made[key] = self.schema(schema, scope, path)
            finally:
                self._in_place -= 1
        return node

    def schema(self, schema: Json, scope: Scope, path: Path) -> Node:
        """Return the node of a schema."""
        if type(schema) is not dict:
            if schema is True:
                return ANY
            if schema is False:
                return NEVER
            if not isinstance(schema, dict):
                raise SchemaError(f"a schema is an object, true or false, not {shown(schema)}", pointer(path))
        if self._in_place + len(self.active) > MOST_IN_PLACE:
            raise SchemaError(
                f"more than {MOST_IN_PLACE} subschemas that apply in place lie in each other: flatten them",
                pointer(path),
            ).reaching(LIMIT, MOST_IN_PLACE)
        if scope.id in schema:
            scope = scope.enter(schema, path)
        handlers = self.handlers(scope.dialect)
        context = KeywordContext(self, schema, scope, path)
        if scope.ref_alone and "$ref" in schema:
            handler = handlers.get("$ref")
            return ANY if handler is None else handler(context, schema["$ref"]) or ANY
        parts = []
        for keyword, value in schema.items():
            handler = handlers.get(keyword)
            if handler is not None:
                if keyword in WHOLE:
                    return handler(context, value) or ANY
                part = handler(context, value)
                if part is not None:
                    parts.append(part)
        if len(parts) == 1:
            return parts[0]
        return all_of(parts) if parts else ANY

    def handlers(self, dialect: Dialect) -> Handlers:
        """Return the functions of a dialect's keywords."""
        found = self._handlers.get(dialect)
        if found is None:  # a caller's dialect has the functions of the draft it builds on, without some keywords
            drafts = self._handlers[DIALECTS[dialect.version]]
            found = self._handlers[dialect] = {word: drafts[word] for word in drafts if word in dialect.keywords}
        return found


class KeywordContext:
    """Where a keyword stands in a schema, and what its function asks about the keywords beside it."""

    __slots__ = ("compiler", "path", "schema", "scope")

    def __init__(self, compiler: Compiler, schema: dict[str, Json], scope: Scope, path: Path) -> None:
        self.compiler = compiler
        self.schema = schema
        self.scope = scope
        self.path = path

    def get(self, keyword: str) -> Json | Absent:
        """Return a keyword's value; `ABSENT` if it is not there, or no keyword of this dialect."""
        if keyword in self.schema and keyword in self.scope.dialect.keywords:
            return self.schema[keyword]
        return ABSENT

    def nested(self, schema: Json, *keys: Key) -> Node:
        """Return the node of a member's or an item's schema."""
        return self.compiler.nested(schema, self.scope, (self.path, *keys))

    def in_place(self, schema: Json, *keys: Key) -> Node:
        """Return the node of a subschema that applies to the same value."""
        return self.compiler.in_place(schema, self.scope, (self.path, *keys))

    def kinds(self) -> int:
        """Return the types that `type` leaves."""
        kinds = self.get("type")
        mask = 0
        for name in kinds if isinstance(kinds, list) else [kinds]:
            mask |= KINDS.get(name, EVERYTHING) if isinstance(name, str) else EVERYTHING
        return mask

    def count(self, keyword: str) -> int | None:
        """Return the value of a keyword that counts something; None if it is not there."""
        value = self.get(keyword)
        if value is ABSENT:
            return None
        if type(value) is not int:
            decimal = number(value)
            if decimal is None or decimal != decimal.to_integral_value():
                raise self.wrong("an integer of 0 or more", keyword)
            value = int(decimal) if decimal.adjusted() < 30 else HUGEST + 1
        if value < 0:
            raise self.wrong("an integer of 0 or more", keyword)
        if value > HUGEST:
            raise self.wrong(f"at most {HUGEST:,}", keyword)
        return int(value)

    def counts(self, least: str, most: str) -> tuple[int, int | None]:
        """Return the values of two keywords that count something: 0 and None if they are not there."""
        return self.count(least) or 0, self.count(most)

    def branches(self, keyword: str) -> list[Node]:
        """Return the nodes of a keyword's list of schemas, which apply to the same value."""
        nodes, in_place = [], self.compiler.in_place  # fewer calls inside one another
        for i, schema in enumerate(self.schemas(keyword)):
            nodes.append(in_place(schema, self.scope, (self.path, keyword, i)))
        return nodes

    def schemas(self, keyword: str) -> list[Json]:
        """Return a keyword's list of schemas."""
        value = self.schema[keyword]
        if not isinstance(value, (list, tuple)) or not value:
            raise self.wrong("an array of one or more schemas", keyword)
        return list(value)

    def by_name(self, keyword: str, expected: str) -> dict[str, Json]:
        """Return a keyword's value, an object with something by names that can be written."""
        value = self.schema[keyword]
        if not isinstance(value, dict):
            raise self.wrong(f"an object with {expected}", keyword)
        self._check_names(keyword, value)
        return value

    def names(self, keyword: str, names: Sequence[Json]) -> list[str]:
        """Return the names that a keyword lists. Raises SchemaError if one cannot be written."""
        found = [name for name in names if isinstance(name, str)]
        if len(found) < len(names):
            raise self._wrong_name(keyword, "that is no string")
        self._check_names(keyword, found)
        return found

    def _check_names(self, keyword: str, names: Iterable[str]) -> None:
        try:
            check_text("".join(names))
        except TypeError:  # the keys of a dict may be anything
            raise self._wrong_name(keyword, "that is no string") from None
        except ValueError as error:
            raise self._wrong_name(keyword, f"that is no text: {error}") from None

    def _wrong_name(self, keyword: str, why: str) -> SchemaError:
        return SchemaError(f'"{keyword}" has a name {why}', pointer((self.path, keyword)))

    def item_schemas(self) -> tuple[list[Located], Located]:
        """Return the schemas of the first items, and that of all others, each with the keys that lead to it."""
        first, rest = self.get("prefixItems"), self.get("items")
        names = "prefixItems", "items"
        if isinstance(rest, (list, tuple)):
            if first is not ABSENT:
                raise self.wrong('a schema, since "prefixItems" is there', "items")
            first, rest = rest, self.get("additionalItems")
            names = "items", "additionalItems"
        if first is ABSENT:
            first = ()
        elif not isinstance(first, (list, tuple)):
            raise self.wrong("an array of schemas", names[0])
        prefix: list[Located] = [(schema, (names[0], i)) for i, schema in enumerate(first)]
        return prefix, (True if rest is ABSENT else rest, (names[1],))

    def wrong(self, expected: str, *keys: Key) -> SchemaError:
        """Return the error for a value of the wrong kind: of a keyword, or of an entry within its value."""
        value: Any = self.schema
        for key in keys:
            value = value[key]
        what = f'"{keys[0]}" must be' if len(keys) == 1 else f'an entry of "{keys[0]}" must be'
        return SchemaError(f"{what} {expected}, not {shown(value)}", pointer((self.path, *keys)))

    def place(self, keyword: str) -> KeywordPlace:
        """Return where a keyword of the schema stands, for one that may have to be approximated."""
        return KeywordPlace((self.path, keyword), self.compiler.approximations)


def _is_reference(schema: dict[str, Json], scope: Scope) -> bool:
    """Whether a schema says no more than its `$ref`."""
    if type(schema.get("$ref")) is not str:
        return False
    keywords = scope.dialect.keywords
    if len(schema) == 1 or scope.ref_alone:
        return "$ref" in keywords
    return (
        "$ref" in keywords and not any(key in keywords and key != "$ref" for key in schema) and scope.id not in schema
    )


_LISTS = ("allOf", "anyOf", "oneOf")
_SINGLES = ("not", "if", "then", "else")
_BY_KEY = ("dependentSchemas", "dependencies")
_REFERRING = frozenset({"$ref", "$dynamicRef", "$recursiveRef", *_LISTS, *_SINGLES, *_BY_KEY})


def _refers(schema: Json) -> bool:
    """Return whether a reference applies in place somewhere in a schema, or may."""
    todo: list[Any] = [schema]
    while todo:
        here = todo.pop()
        if not isinstance(here, dict) or _REFERRING.isdisjoint(here):
            continue
        if "$ref" in here or "$dynamicRef" in here or "$recursiveRef" in here:
            return True
        for keyword in _LISTS:
            parts = here.get(keyword)
            if isinstance(parts, (list, tuple)):
                todo.extend(parts)
        for keyword in _BY_KEY:
            parts = here.get(keyword)
            if isinstance(parts, dict):
                todo.extend(parts.values())
        todo.extend(map(here.get, _SINGLES))
    return False
