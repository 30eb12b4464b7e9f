"""`unevaluatedProperties` and `unevaluatedItems`: the members and items that no subschema evaluates.

Which members and items a schema evaluates depends on which of its branches a value is in. So each key, pattern and
place has a *condition*, a formula: if a value is in it, the member or item is evaluated. An unevaluated keyword then
says a conjunction of clauses: "the condition holds, or the members that it is about are in the keyword's schema".
There is a clause for each key with a condition of its own, so that combinations of branches need not be tried. Patterns
and `contains` overlap, so there is a clause for each set of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

from .algebra import ANY, ARRAY, OBJECT, Items, Members, Node, Pattern, Required, Types, all_of, any_of
from .branches import Branches
from .context import ABSENT, UNIVERSAL, WHOLE, Compiler, KeywordContext
from .documents import Scope
from .evaluated import DOING, EVALUATES_ALL, EVALUATES_NOTHING, Evaluated, either_of, given
from .source import Json, Key, Path
from .string_languages import holds

T = TypeVar("T")


def whole(context: KeywordContext, _: Json) -> Node:
    """Return the node of a schema that has an unevaluated keyword, or both."""
    compiler, schema = context.compiler, context.schema
    parts: list[Node] = []
    handlers = compiler.handlers(context.scope.dialect)
    for keyword, value in schema.items():
        handler = handlers.get(keyword)
        if handler is not None and keyword not in WHOLE:
            part = handler(context, value)
            if part is not None:
                parts.append(part)
    for keyword, kind, left in (("unevaluatedProperties", OBJECT, _members), ("unevaluatedItems", ARRAY, _items)):
        schema_of_left = context.get(keyword)
        if schema_of_left is not ABSENT:
            node = context.nested(schema_of_left, keyword)
            if node is not ANY:
                parts += left(compiler.branches, _at(context, kind, inside=True), node)
    return all_of(parts)


# --------------------------------------------------------------------------------------------------- what is left


def _members(branches: Branches, evaluated: Evaluated, node: Node) -> Iterator[Node]:
    """Yield clauses that say of each member that it is evaluated, or in a node."""
    if evaluated.members is ANY:
        return
    known = tuple((key, ANY) for key in evaluated.keys)
    always = [pattern for pattern, condition in evaluated.patterns.items() if condition is ANY]
    sometimes = _grouped({p: condition for p, condition in evaluated.patterns.items() if condition is not ANY})
    for left, conditions in _subsets(branches, sometimes):
        others = tuple((pattern, ANY) for pattern in (*always, *(p for some in left for p in some)))
        yield any_of([evaluated.members, *conditions, Members(known, others, node)])
    own: dict[str, Node] = {}
    for key, condition in evaluated.keys.items():
        matching = [condition for p, condition in evaluated.patterns.items() if holds(Pattern(p), key, branches.meter)]
        condition = any_of([condition, *matching])
        if condition is not ANY:
            own[key] = condition
    for condition, keys in _grouped(own).items():
        yield any_of([evaluated.members, condition, Members(tuple((key, node) for key in keys), (), ANY)])


def _items(branches: Branches, evaluated: Evaluated, node: Node) -> Iterator[Node]:
    """Yield clauses that say of each item that it is evaluated, or in a node."""
    if evaluated.items is ANY:
        return
    always = [inner for inner, condition in evaluated.contained.items() if condition is ANY]
    sometimes = _grouped({n: condition for n, condition in evaluated.contained.items() if condition is not ANY})
    first = max((size for size, condition in evaluated.prefix.items() if condition is ANY), default=0)
    for left, conditions in _subsets(branches, sometimes):
        rest = any_of([node, *always, *(inner for some in left for inner in some)])
        for size in sorted({first, *(size for size in evaluated.prefix if size > first)}):
            further = [condition for more, condition in evaluated.prefix.items() if more > size]
            yield any_of([evaluated.items, *conditions, *further, Items((ANY,) * size, rest)])


def _grouped(conditions: dict[T, Node]) -> dict[Node, list[T]]:
    """Return the keys of each condition."""
    groups: dict[Node, list[T]] = {}
    for key, condition in conditions.items():
        groups.setdefault(condition, []).append(key)
    return groups


def _subsets(branches: Branches, groups: dict[Node, list[T]]) -> Iterator[tuple[list[list[T]], list[Node]]]:
    """Yield for each set of conditions the groups outside of it, and the conditions in it."""
    size = sum(map(branches.size, groups)) + 1
    branches.check(size << len(groups) if len(groups) < 64 else 1 << 64, DOING)
    conditions, members = list(groups), list(groups.values())
    for bits in range(1 << len(groups)):
        yield (
            [members[i] for i in range(len(members)) if not bits >> i & 1],
            [conditions[i] for i in range(len(members)) if bits >> i & 1],
        )


def _in(context: KeywordContext, value: Json, kind: int, *keys: Key) -> Evaluated:
    """Return what a subschema for the same value evaluates; kind: OBJECT for members, ARRAY for items."""
    return _of(context.compiler, value, context.scope, (context.path, *keys), kind)


def _of(compiler: Compiler, value: Json, scope: Scope, path: Path, kind: int) -> Evaluated:
    if not isinstance(value, dict) or _EVALUATING.isdisjoint(value):
        return EVALUATES_NOTHING
    key = (id(value), scope, kind)
    found = compiler.evaluated.get(key)
    if found is None:
        context = KeywordContext(compiler, value, scope.enter(value, path), path)
        found = compiler.evaluated[key] = _at(context, kind, inside=False)
    return found


_EVALUATING = frozenset(
    {
        *("$ref", "$dynamicRef", "$recursiveRef", "allOf", "anyOf", "oneOf", "if", "dependentSchemas", "dependencies"),
        *("properties", "patternProperties", "additionalProperties", "prefixItems", "items", "contains"),
        *WHOLE,
    }
)


def _at(context: KeywordContext, kind: int, *, inside: bool) -> Evaluated:
    """Return what a schema evaluates of members or items; inside: without what its unevaluated keyword does."""
    compiler, schema = context.compiler, context.schema
    if context.scope.ref_alone and "$ref" in schema:
        return _referred(context, "$ref", schema["$ref"], kind)
    if not inside and context.get("unevaluatedProperties" if kind == OBJECT else "unevaluatedItems") is not ABSENT:
        return EVALUATES_ALL
    keywords = context.scope.dialect.keywords
    parts = [_members_at(context) if kind == OBJECT else _items_at(context)]
    for keyword, value in schema.items():
        branch = _BRANCHING.get(keyword)
        if branch is not None and keyword in keywords:
            parts.append(branch(context, keyword, value, kind))
    return either_of(compiler.branches, parts)


def _members_at(context: KeywordContext) -> Evaluated:
    """Return which members the keywords of a schema itself evaluate."""
    if context.get("additionalProperties") is not ABSENT:
        return EVALUATES_ALL
    properties, patterns = (
        {} if context.get(keyword) is ABSENT else context.by_name(keyword, "schemas")
        for keyword in ("properties", "patternProperties")
    )
    if not UNIVERSAL.isdisjoint(patterns):
        return EVALUATES_ALL
    if not properties and not patterns:
        return EVALUATES_NOTHING
    return EVALUATES_NOTHING._replace(keys=dict.fromkeys(properties, ANY), patterns=dict.fromkeys(patterns, ANY))


def _items_at(context: KeywordContext) -> Evaluated:
    """Return which items the keywords of a schema itself evaluate."""
    prefix, (_, keys) = context.item_schemas()
    keyword = str(keys[0])
    if context.get(keyword) is not ABSENT and (prefix or keyword == "items"):
        return EVALUATES_ALL
    inner = context.get("contains") if context.scope.dialect.version >= 2020 else ABSENT
    if not prefix and inner is ABSENT:
        return EVALUATES_NOTHING
    return EVALUATES_NOTHING._replace(
        prefix={len(prefix): ANY} if prefix else {},
        contained={context.nested(inner, "contains"): ANY} if inner is not ABSENT else {},
    )


def _all_of(context: KeywordContext, keyword: str, _: Json, kind: int) -> Evaluated:
    """Return what the branches of allOf evaluate."""
    parts = [_in(context, schema, kind, keyword, i) for i, schema in enumerate(context.schemas(keyword))]
    return either_of(context.compiler.branches, parts)


def _any_of(context: KeywordContext, keyword: str, _: Json, kind: int) -> Evaluated:
    """Return what the branches of anyOf or oneOf evaluate, each if the value is in the branch."""
    parts = []
    for i, schema in enumerate(context.schemas(keyword)):
        inner = _in(context, schema, kind, keyword, i)
        if inner is not EVALUATES_NOTHING:
            parts.append(given(context.compiler.branches, context.in_place(schema, keyword, i), inner))
    return either_of(context.compiler.branches, parts)


def _if(context: KeywordContext, keyword: str, value: Json, kind: int) -> Evaluated:
    """Return what `if` and `then` evaluate if the condition holds, and what `else` does if not."""
    branches = context.compiler.branches
    then, other = context.get("then"), context.get("else")
    parts = [_in(context, value, kind, keyword)]
    if then is not ABSENT:
        parts.append(_in(context, then, kind, "then"))
    no = EVALUATES_NOTHING if other is ABSENT else _in(context, other, kind, "else")
    yes = either_of(branches, parts)
    if yes is EVALUATES_NOTHING and no is EVALUATES_NOTHING:
        return EVALUATES_NOTHING
    condition = context.in_place(value, keyword)
    opposite = branches.negate(condition)
    return either_of(branches, [given(branches, condition, yes), given(branches, opposite, no)])


def _dependent(context: KeywordContext, keyword: str, value: Json, kind: int) -> Evaluated:
    """Return what the schemas that depend on members evaluate, each if its member is there."""
    if not isinstance(value, dict):
        return EVALUATES_NOTHING
    parts = []
    for key, schema in value.items():
        has = all_of([Types(OBJECT), Required((key,))])
        parts.append(given(context.compiler.branches, has, _in(context, schema, kind, keyword, key)))
    return either_of(context.compiler.branches, parts)


def _referred(context: KeywordContext, keyword: str, value: Json, kind: int) -> Evaluated:
    """Return what the target of a reference evaluates."""
    path = (context.path, keyword)
    compiler = context.compiler
    target = compiler.documents.resolve(context.scope, keyword, value, path)
    key = (id(target.contents), target.scope, kind)
    compiler.guard(key, path)
    try:
        return _of(compiler, target.contents, target.scope, target.path, kind)
    finally:
        del compiler.active[key]


_BRANCHING = {
    "allOf": _all_of,
    "anyOf": _any_of,
    "oneOf": _any_of,
    "if": _if,
    "dependentSchemas": _dependent,
    "dependencies": _dependent,
    "$ref": _referred,
    "$dynamicRef": _referred,
    "$recursiveRef": _referred,
}
