"""What each keyword of JSON Schema says, as a formula: one function per keyword, or per group that acts together.

`formula` compiles a schema. The schema of a member or an item is compiled along with the schema around it, unless it is
a reference or lies deep. Then it becomes a `Reference`, one for each place that references lead to, so that recursion
ends there. Subschemas for the same value (`allOf`, `$ref` beside other keywords, ..) become part of one formula.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from decimal import Decimal
from functools import partial

from ...automata.budget import Budget, Meter
from ...errors import Advice, ConstraintError, SchemaError
from . import unevaluated
from .algebra import (
    ANY,
    ARRAY,
    EVERYTHING,
    NEVER,
    NUMBER,
    OBJECT,
    STRING,
    AllOf,
    AnyOf,
    Format,
    Integer,
    ItemCount,
    Length,
    MemberCount,
    Members,
    Multiple,
    Names,
    Node,
    Not,
    Pattern,
    Range,
    Reference,
    Required,
    Types,
    Unenforceable,
    Unique,
    all_of,
    any_of,
    contains_in,
    items_in,
    once_each,
    restrict,
)
from .approximations import Approximations, KeywordPlace
from .branches import Branches
from .context import ABSENT, KINDS, UNIVERSAL, Compiler, Handler, Handlers, KeywordContext
from .dialects import DIALECTS, Dialect
from .documents import Documents, Target
from .formats import IDN, KNOWN, has_idna
from .literals import number, one_of, values_of
from .source import Json, SchemaSource, pointer, quoted, read
from .widened import Widened

NARROWER = {
    "not": "where an undeclared member must fail a test (by not, oneOf or if, over additionalProperties, "
    "patternProperties or unevaluatedProperties), a text is refused if another undeclared member that is tested and "
    "passes comes after it: the key of the failing member might be written again, and a reader keeps the last value. "
    "Write the failing member last, or declare its key in properties",
}
"""Keywords under which some valid texts are refused, so that nothing invalid is accepted; and which texts, and why."""

_MOST_VALUES = 12  # of items with uniqueItems: the automaton remembers which of them came


def formula(
    schema: SchemaSource,
    *,
    approximations: Approximations | None = None,
    documents: Mapping[str, SchemaSource] | None = None,
    meter: Meter | None = None,
    widened: bool = True,
) -> Node:
    """Return the JSON values that a schema describes, as a formula.

    schema: a dict, a bool, JSON text or a pydantic model class, of a draft from 4 to 2020-12 as `$schema` says, else
    2020-12. approximations: what may stay unenforced, and then notes it; None for nothing. documents: schemas that
    references may lead to, by URI. widened: whether what is not enforced is left out; else it is an `Unenforceable`.

    Raises SchemaError, with the JSON Pointer, if a part is malformed or cannot be enforced exactly; for some parts only
    when their formula is asked for. Raises BudgetError if the meter runs out.
    """
    compiler = Compiler(
        Documents(read(schema), documents), approximations or Approximations(), meter or Budget().begin(), _OFFICIAL
    )
    root = compiler.documents.root
    node = compiler.begin(partial(compiler.enter, Target(root.root, root, ""), ""))
    return Widened().upper(node) if widened and compiler.approximations.allowed else node


# ------------------------------------------------------------------------------------------------------- any value

_INTEGER = Integer()
_TYPES: dict[str, Node] = {name: Types(mask) for name, mask in KINDS.items()}
_TYPES["integer"] = AllOf(Types(NUMBER), _INTEGER)
_TYPE_NAMES = ", ".join(f'"{name}"' for name in KINDS)


def type_(context: KeywordContext, value: Json) -> Node:
    """Values of a type, or of one of several."""
    if type(value) is str:
        node = _TYPES.get(value)
        if node is not None:
            return node
        raise context.wrong(f"one of {_TYPE_NAMES}, or a list of them", "type")
    if not isinstance(value, (list, tuple)) or not value:
        raise context.wrong(f"one of {_TYPE_NAMES}, or a list of them", "type")
    mask = 0
    for i, name in enumerate(value):
        if not isinstance(name, str) or name not in KINDS:
            raise context.wrong(f"one of {_TYPE_NAMES}", "type", i)
        mask |= KINDS[name]
    kinds = Types(mask) if mask != EVERYTHING else ANY
    return all_of([kinds, _INTEGER]) if "integer" in value and "number" not in value else kinds


def enum(context: KeywordContext, value: Json) -> Node:
    """Values equal to one of a list."""
    if not isinstance(value, (list, tuple)):
        raise context.wrong("an array of the values allowed", "enum")
    return _values(context, "enum", value)


def const(context: KeywordContext, value: Json) -> Node:
    """Values equal to one."""
    return _values(context, "const", [value])


def _values(context: KeywordContext, keyword: str, values: Iterable[Json]) -> Node:
    try:
        return one_of(values)
    except ConstraintError:  # such as the end of the budget
        raise
    except ValueError as error:
        raise SchemaError(f'"{keyword}" has what is no JSON value: {error}', pointer((context.path, keyword))) from None


# -------------------------------------------------------------------------------------------------------- numbers


def bounds(context: KeywordContext, _: Json) -> Node | None:
    """Numbers between `minimum` and `maximum`; `exclusive..` is a bound of its own, or true, as in draft 4."""
    low, low_open = _bound(context, "minimum", "exclusiveMinimum", 1)
    high, high_open = _bound(context, "maximum", "exclusiveMaximum", -1)
    if low is None and high is None:
        return None
    if low is not None and high is not None and (low > high or (low == high and (low_open or high_open))):
        return Types(EVERYTHING & ~NUMBER)
    return Range(low, high, low_open, high_open)


def _bound(context: KeywordContext, plain: str, exclusive: str, sign: int) -> tuple[Decimal | None, bool]:
    """Return the stricter of two bounds, and whether it is exclusive."""
    bound, edge = context.get(plain), context.get(exclusive)
    limit: Decimal | None = None
    if bound is not ABSENT:
        limit = number(bound)
        if limit is None:
            raise context.wrong("a number", plain)
    if edge is ABSENT or edge is False:
        return limit, False
    if edge is True:
        return limit, limit is not None
    other = number(edge)
    if other is None:
        raise context.wrong("a number", exclusive)
    if limit is None or (other - limit) * sign >= 0:
        return other, True
    return limit, False


def multiple_of(context: KeywordContext, value: Json) -> Node:
    """Multiples of a number."""
    of = number(value)
    if of is None or of <= 0:
        raise context.wrong("a number above 0", "multipleOf")
    return Multiple(of)


# -------------------------------------------------------------------------------------------------------- strings


def length(context: KeywordContext, _: Json) -> Node | None:
    """Strings of a number of characters."""
    low, high = context.counts("minLength", "maxLength")
    if high is not None and low > high:
        return Types(EVERYTHING & ~STRING)
    return Length(low, high) if low or high is not None else None


def pattern(context: KeywordContext, value: Json) -> Node | None:
    """Strings in which a pattern matches somewhere."""
    if not isinstance(value, str):
        raise context.wrong("a string with a regular expression", "pattern")
    return None if value in UNIVERSAL else Pattern(value)


def _integers(bits: int, signed: bool) -> Node:
    half = 1 << (bits - 1)
    low, high = (-half, half - 1) if signed else (0, 2 * half - 1)
    return AllOf(_INTEGER, Range(Decimal(low), Decimal(high), False, False))


_NUMERIC = {
    **{f"int{bits}": _integers(bits, True) for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": _integers(bits, False) for bits in (8, 16, 32, 64)},
}


def format_(context: KeywordContext, value: Json) -> Node | None:
    """Strings of a format, or numbers of one such as `int32`. Unknown formats are annotations."""
    if not isinstance(value, str):
        raise context.wrong("a string", "format")
    node = _NUMERIC.get(value)
    if node is not None:
        return node
    if value in IDN and not has_idna():
        if not context.kinds() & STRING:
            return None
        install = Advice("Install the library: pip install 'maskwright[idn]'")
        why = f"{quoted(value)} needs the tables of the library idna, which is not installed"
        context.place("format").approximate(why, "any string", install)
        return Unenforceable(STRING, "format", value)
    return Format(value) if value in KNOWN else None


# --------------------------------------------------------------------------------------------------------- arrays


def items(context: KeywordContext, _: Json) -> Node:
    """Arrays by their items: `prefixItems` and `items`, or `items` as an array and `additionalItems`."""
    first, others = context.item_schemas()
    prefix = [context.nested(schema, *keys) for schema, keys in first]
    return items_in(tuple(prefix), context.nested(others[0], *others[1]))


def item_count(context: KeywordContext, _: Json) -> Node | None:
    """Arrays of a number of items."""
    low, high = context.counts("minItems", "maxItems")
    if high is not None and low > high:
        return Types(EVERYTHING & ~ARRAY)
    return ItemCount(low, high) if low or high is not None else None


def contains(context: KeywordContext, value: Json) -> Node:
    """Arrays of which a number of items, at least one by default, are in a schema."""
    low = context.count("minContains")
    return contains_in(context.nested(value, "contains"), 1 if low is None else low, context.count("maxContains"))


def unique_items(context: KeywordContext, value: Json) -> Node | None:
    """Arrays without equal items, if items have few values."""
    if value is False or not context.kinds() & ARRAY:
        return None
    if value is not True:
        raise context.wrong("true or false", "uniqueItems")
    most = context.count("maxItems")
    prefix, others = context.item_schemas()
    entries = [*prefix, others] if most is None or most > len(prefix) else prefix[:most]
    nodes = [context.nested(schema, *keys) for schema, keys in entries]
    if len(entries) > len(prefix) and nodes[-1] is NEVER:
        entries, nodes = entries[:-1], nodes[:-1]
    ends = len(entries) <= len(prefix)  # each entry is one item
    if (most is not None and most <= 1) or (ends and _pairwise(context, nodes)):
        return None
    nodes = [
        context.compiler.peek(node, schema, context.scope, (context.path, *keys))
        for node, (schema, keys) in zip(nodes, entries, strict=True)
    ]
    values = values_of(any_of(nodes), _MOST_VALUES)
    if values is None:
        context.place("uniqueItems").approximate(f"its items may have more than {_MOST_VALUES} values", "equal items")
        return Unenforceable(ARRAY, "uniqueItems", True)
    return Unique(values)


def _pairwise(context: KeywordContext, nodes: list[Node]) -> bool:
    """Whether nodes are plainly disjoint, each from each."""
    disjoint = context.compiler.branches.disjoint
    return len(nodes) <= 32 and all(disjoint(nodes[i], nodes[j]) for i in range(len(nodes)) for j in range(i))


# -------------------------------------------------------------------------------------------------------- objects


def members(context: KeywordContext, _: Json) -> Node | None:
    """Objects by their members: `properties`, `patternProperties` and `additionalProperties`."""
    named = _properties(context)
    matched, in_every_key = _by_pattern(context)
    rest = context.get("additionalProperties")
    other = ANY if rest is ABSENT else context.nested(rest, "additionalProperties")
    if not in_every_key:
        if not named and not matched and other is ANY:
            return None
        return Members(named, matched, other)
    every = all_of(Members((), (), node) for node in in_every_key if node is not ANY)
    return all_of([Members(named, matched, ANY), every]) if named or matched else every


def _properties(context: KeywordContext) -> tuple[tuple[str, Node], ...]:
    """Return the nodes of `properties` by key."""
    if context.get("properties") is ABSENT:
        return ()
    properties = context.by_name("properties", "schemas by the names of members")
    nested, scope, path = context.compiler.nested, context.scope, context.path
    return tuple([(key, nested(value, scope, (path, "properties", key))) for key, value in properties.items()])


def _by_pattern(context: KeywordContext) -> tuple[tuple[tuple[str, Node], ...], list[Node]]:
    """Return the nodes of `patternProperties` by pattern, and apart those of patterns that match in every key."""
    matched: list[tuple[str, Node]] = []
    in_every_key: list[Node] = []
    if context.get("patternProperties") is not ABSENT:
        for source, value in context.by_name("patternProperties", "schemas by regular expressions").items():
            node = context.nested(value, "patternProperties", source)
            if source in UNIVERSAL:
                in_every_key.append(node)
            else:
                matched.append((source, node))
    return tuple(matched), in_every_key


def required(context: KeywordContext, value: Json) -> Node | None:
    """Objects that have some members."""
    if not isinstance(value, (list, tuple)):
        raise context.wrong(
            "an array of names (a member's own schema cannot ask for it: the object's \"required\" lists it)",
            "required",
        )
    if not value:
        return None
    return Required(tuple(dict.fromkeys(context.names("required", value))))


def member_count(context: KeywordContext, _: Json) -> Node | None:
    """Objects of a number of members."""
    low, high = context.counts("minProperties", "maxProperties")
    if high is not None and low > high:
        return Types(EVERYTHING & ~OBJECT)
    counts: list[Node] = []
    if low:
        counts.append(MemberCount(low, None, _counting(context, "minProperties", low)))
    if high is not None:
        counts.append(MemberCount(0, high, _counting(context, "maxProperties", high + 1)))
    return all_of(counts) if counts else None


def _counting(context: KeywordContext, keyword: str, least: int) -> KeywordPlace | None:
    """Return the place of a keyword that asks for so many members; None if each such count can be kept."""
    return None if least < 2 else context.place(keyword)


def property_names(context: KeywordContext, value: Json) -> Node | None:
    """Objects whose keys, as strings, are in a schema."""
    node = context.nested(value, "propertyNames")
    if not _has_reference(node):
        node = restrict(node, STRING)
    return None if node is ANY else Names(node)


@once_each
def _has_reference(node: Node) -> bool:
    """Return whether a formula has a `Reference` in place."""
    return type(node) is Reference or (
        type(node) in (AllOf, AnyOf, Not) and any(_has_reference(part) for part in node.args)
    )


def dependent_required(context: KeywordContext, _: Json) -> Node | None:
    """Objects that have some members if they have another."""
    needed = context.by_name("dependentRequired", "arrays of names by the names of members")
    return all_of([_needs(context, "dependentRequired", key, names) for key, names in needed.items()])


def dependent_schemas(context: KeywordContext, _: Json) -> Node | None:
    """Objects that are in a schema if they have a member."""
    schemas = context.by_name("dependentSchemas", "schemas by the names of members")
    return all_of([without(key, context.in_place(schema, "dependentSchemas", key)) for key, schema in schemas.items()])


def dependencies(context: KeywordContext, _: Json) -> Node | None:
    """`dependentRequired` and `dependentSchemas` in one keyword, as up to draft 7."""
    needed = context.by_name("dependencies", "arrays of names, or schemas, by the names of members")
    return all_of(
        [
            _needs(context, "dependencies", key, entry)
            if isinstance(entry, (list, tuple))
            else without(key, context.in_place(entry, "dependencies", key))
            for key, entry in needed.items()
        ]
    )


def _needs(context: KeywordContext, keyword: str, key: str, names: Json) -> Node:
    """Objects that have some members if they have a key."""
    if not isinstance(names, (list, tuple)):
        raise context.wrong("an array of the names of members", keyword, key)
    others = tuple(name for name in dict.fromkeys(context.names(keyword, names)) if name != key)
    return any_of([Not(Required((key,))), Required(others)]) if others else ANY


def without(key: str, node: Node) -> Node:
    """Return the values in a node, and those that have no member of a key."""
    return any_of([Types(EVERYTHING & ~OBJECT), Not(Required((key,))), node]) if node is not ANY else ANY


# ---------------------------------------------------------------------------------------------------- in place


def all_of_(context: KeywordContext, _: Json) -> Node:
    """Values in all of several schemas."""
    return all_of(context.branches("allOf"))


def any_of_(context: KeywordContext, _: Json) -> Node:
    """Values in at least one of several schemas."""
    return any_of(context.branches("anyOf"))


def one_of_(context: KeywordContext, _: Json) -> Node:
    """Values in exactly one of several schemas."""
    return any_of(context.compiler.branches.exactly_one(context.branches("oneOf")))


def not_(context: KeywordContext, value: Json) -> Node:
    """Values that are not in a schema."""
    return context.compiler.branches.negate(context.in_place(value, "not"))


def if_(context: KeywordContext, value: Json) -> Node | None:
    """Values that are in `then` if they are in a schema, and in `else` if not."""
    then, other = context.get("then"), context.get("else")
    if then is ABSENT and other is ABSENT:
        return None
    condition = context.in_place(value, "if")
    yes = ANY if then is ABSENT else context.in_place(then, "then")
    no = ANY if other is ABSENT else context.in_place(other, "else")
    return either(context.compiler.branches, condition, yes, no)


def either(branches: Branches, condition: Node, yes: Node, no: Node) -> Node:
    """Return the values that are in `yes` if they are in a condition, and in `no` if not."""
    if yes is ANY:
        return ANY if no is ANY else any_of([condition, no])
    opposite = branches.negate(condition)
    if no is ANY:
        return any_of([opposite, yes])
    return any_of([all_of([condition, yes]), all_of([opposite, no])])


def reference(keyword: str) -> Handler:
    """Return the function of `$ref`, `$dynamicRef` or `$recursiveRef`: the values in the schema that it leads to."""

    def follow(context: KeywordContext, value: Json) -> Node:
        return context.compiler.reference(keyword, value, context.scope, (context.path, keyword))

    return follow


# ------------------------------------------------------------------------------------------------------------ table


def group(handler: Handler, *keywords: str) -> dict[str, Handler]:
    """Return a function for each keyword of a group: that of the first one that is there speaks for all."""

    def after(first: tuple[str, ...]) -> Handler:
        def handle(context: KeywordContext, value: Json) -> Node | None:
            schema = context.schema
            for keyword in first:
                if keyword in schema and context.get(keyword) is not ABSENT:
                    return None
            return handler(context, value)

        return handle

    return {keyword: after(keywords[:i]) if i else handler for i, keyword in enumerate(keywords)}


HANDLERS: dict[str, Handler] = {
    "type": type_,
    "enum": enum,
    "const": const,
    **group(bounds, "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
    "multipleOf": multiple_of,
    **group(length, "minLength", "maxLength"),
    "pattern": pattern,
    "format": format_,
    **group(items, "items", "prefixItems"),
    **group(item_count, "minItems", "maxItems"),
    "contains": contains,
    "uniqueItems": unique_items,
    **group(members, "properties", "patternProperties", "additionalProperties"),
    "required": required,
    **group(member_count, "minProperties", "maxProperties"),
    "propertyNames": property_names,
    "dependentRequired": dependent_required,
    "dependentSchemas": dependent_schemas,
    "dependencies": dependencies,
    "allOf": all_of_,
    "anyOf": any_of_,
    "oneOf": one_of_,
    "not": not_,
    "if": if_,
    "$ref": reference("$ref"),
    "$dynamicRef": reference("$dynamicRef"),
    "$recursiveRef": reference("$recursiveRef"),
    "unevaluatedItems": unevaluated.whole,
    "unevaluatedProperties": unevaluated.whole,
}


_OFFICIAL: dict[Dialect, Handlers] = {
    dialect: {word: HANDLERS[word] for word in HANDLERS if word in dialect.keywords} for dialect in DIALECTS.values()
}
