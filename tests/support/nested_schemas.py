"""Schemas with calls that every backend reads, and an arena that holds them."""

from __future__ import annotations

import functools

import maskwright as mw
from maskwright.runtime.arena.capacity import Capacity

EOS = 0
WORDS = [
    '{"', '":', "}}", "}]", "[[", "]]", "],", '[{"', '"a"', '"a":', '"b"', "true", "null", "{}", "[]", "}}}", "]}",
    "}],", "],[", '{"a":', "[],[", "[[]", ', "', '": [', "{}}",
]  # fmt: skip
TREE = {
    "type": "object",
    "properties": {"a": {"$ref": "#"}, "b": {"type": "array", "items": {"$ref": "#"}}, "s": {"type": "string"}},
    "additionalProperties": False,
}
LISTS = {"type": "array", "items": {"$ref": "#"}, "maxItems": 2}
FLAT = {"enum": ["one", "two", 3]}
GOOD = {  # how soon a text can end depends on what is in it, and good items take room that others do not
    "$defs": {"good": {"type": "array", "contains": {"anyOf": [{"const": 1}, {"$ref": "#/$defs/good"}]}}},
    "type": "array",
    "items": {"type": "array", "contains": {"type": "array", "contains": {"$ref": "#/$defs/good"}}},
    "contains": {"minItems": 2},
}


@functools.cache
def vocabulary() -> mw.Vocabulary:
    words = [word.encode() for word in WORDS]
    return mw.Vocabulary.from_bytes([b"", *(bytes([b]) for b in range(256)), *words], eos=EOS)


@functools.cache
def compiled(name: str, depth: int = 3) -> mw.TransitionTable:
    schema = {"tree": TREE, "lists": LISTS, "flat": FLAT, "good": GOOD}[name]
    return mw.compile_json_schema(schema, vocabulary(), depth=depth, whitespace="compact").to_table()


SMALL = Capacity(
    states=20_000, edges=80_000, bases=1500, base_targets=6000, masks=120, lists=1000, classes=12_000, exits=4000,
    sites=800, site_entries=20_000, actions=2000, pushes=4000, row_width=400, class_width=512, exit_width=64,
    site_width=160, symbols=1024, pops=16,
)  # fmt: skip
