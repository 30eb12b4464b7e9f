"""Hypothesis strategies for JSON Schemas that use every keyword of a draft, and for values to try on them."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

KEYS = ("a", "b", "ab", "c")
WORDS = ("", "a", "b", "ab", "ba", "abc")
PATTERNS = ("^a", "b$", "ab?", "^[ab]{1,2}$", "", "^c")
DRAFTS = {
    4: "http://json-schema.org/draft-04/schema#",
    6: "http://json-schema.org/draft-06/schema#",
    7: "http://json-schema.org/draft-07/schema#",
    2019: "https://json-schema.org/draft/2019-09/schema",
    2020: "https://json-schema.org/draft/2020-12/schema",
}

keys = st.sampled_from(KEYS)
numbers = st.integers(-3, 6) | st.sampled_from((0.5, 1.5, -2.5))
scalars = st.none() | st.booleans() | numbers | st.sampled_from(WORDS)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3),
    max_leaves=6,
)
counts = st.integers(0, 3)
types = st.sampled_from(("null", "boolean", "integer", "number", "string", "array", "object"))


def subsets(options: dict[str, st.SearchStrategy[Any]], most: int) -> st.SearchStrategy[dict[str, Any]]:
    """Return a strategy for dictionaries of up to `most` of the options, in any order."""
    return st.lists(st.sampled_from(sorted(options)), max_size=most, unique=True).flatmap(
        lambda names: st.fixed_dictionaries({name: options[name] for name in names})
    )


def leaves(draft: int) -> dict[str, st.SearchStrategy[Any]]:
    """Return strategies for the keywords that hold no schemas."""
    some_keys = st.lists(keys, min_size=1, max_size=2, unique=True)
    options: dict[str, st.SearchStrategy[Any]] = {
        "type": types | st.lists(types, min_size=1, max_size=3, unique=True),
        "enum": st.lists(values, min_size=1, max_size=4),
        "minimum": numbers,
        "maximum": numbers,
        "multipleOf": st.sampled_from((1, 2, 3, 0.5, 1.5)),
        "minLength": counts,
        "maxLength": counts,
        "pattern": st.sampled_from(PATTERNS),
        "minItems": counts,
        "maxItems": counts,
        "uniqueItems": st.booleans(),
        "required": some_keys,
        "minProperties": counts,
        "maxProperties": counts,
        "title": st.just("an annotation"),
    }
    if draft >= 6:
        options |= {"const": values, "exclusiveMinimum": numbers, "exclusiveMaximum": numbers}
    else:
        options |= {"exclusiveMinimum": st.booleans(), "exclusiveMaximum": st.booleans()}
    if draft >= 2019:
        options |= {"dependentRequired": st.dictionaries(keys, some_keys, max_size=2)}
        options |= {"minContains": counts, "maxContains": counts}
    return options


def branches(draft: int, inner: st.SearchStrategy[Any], in_place: st.SearchStrategy[Any]) -> dict[str, Any]:
    """Return strategies for the keywords that hold schemas: `inner` for members and items, or `in_place`."""
    several = st.lists(in_place, min_size=1, max_size=3)
    options: dict[str, Any] = {
        "properties": st.dictionaries(keys, inner, max_size=3),
        "patternProperties": st.dictionaries(st.sampled_from(PATTERNS), inner, max_size=2),
        "additionalProperties": inner,
        "items": inner,
        "allOf": several,
        "anyOf": several,
        "oneOf": several,
        "not": in_place,
    }
    if draft >= 6:
        options |= {"contains": inner, "propertyNames": inner}
    if draft == 2019:  # jsonschema lets `contains` evaluate items there, which only 2020-12 says
        del options["contains"]
    if draft >= 7:
        options |= {"if": in_place, "then": in_place, "else": in_place}
    if draft <= 7:
        options["dependencies"] = st.dictionaries(
            keys, in_place | st.lists(keys, min_size=1, max_size=2, unique=True), max_size=2
        )
    if draft <= 2019:
        # jsonschema 4.26 fails where items is true or false and additionalItems stands beside it
        whole = inner.map(lambda schema: schema if isinstance(schema, dict) else {"allOf": [schema]})
        options["items"] = whole | st.lists(inner, min_size=1, max_size=3)
        options["additionalItems"] = inner
    else:
        options["prefixItems"] = st.lists(inner, min_size=1, max_size=3)
    if draft >= 2019:
        options |= {"unevaluatedProperties": inner, "unevaluatedItems": inner}
        options |= {"dependentSchemas": st.dictionaries(keys, in_place, max_size=2)}
    return options


def bodies(
    draft: int, place: int, definitions: int, most: int = 3, only: frozenset[str] | None = None
) -> st.SearchStrategy[Any]:
    """Return a strategy for schemas that may refer to definitions, in place only to those after `place`.

    most: about how many subschemas without subschemas they have. only: the keywords to use.
    """
    nested = [st.just({"$ref": f"#/definitions/d{i}"}) for i in range(definitions)]
    later = nested[place + 1 :]

    def kept(options: dict[str, Any]) -> dict[str, Any]:
        return options if only is None else {name: options[name] for name in options if name in only}

    leaf: st.SearchStrategy[Any] = subsets(kept(leaves(draft)), 3)
    if draft >= 6:
        leaf = leaf | st.booleans()

    def extend(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        options = {**leaves(draft), **branches(draft, st.one_of(inner, *nested), st.one_of(inner, *later))}
        if later and draft >= 2019:
            options["$ref"] = st.sampled_from([f"#/definitions/d{i}" for i in range(place + 1, definitions)])
        return subsets(kept(options), 4)

    return st.recursive(leaf, extend, max_leaves=most)


@st.composite
def schemas(draw: st.DrawFn, draft: int = 2020, definitions: int = 2, only: frozenset[str] | None = None) -> Any:
    """Return a schema of a draft with definitions, which may be recursive through members and items."""
    root = draw(bodies(draft, -1, definitions, 8, only).filter(lambda schema: isinstance(schema, dict)))
    root = {"$schema": DRAFTS[draft], **root}
    root["definitions"] = {f"d{i}": draw(bodies(draft, i, definitions, 3, only)) for i in range(definitions)}
    return root
