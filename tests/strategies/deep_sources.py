"""Constraints that are nested as deep as is asked for, by what is nested in what."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

Source = Callable[[int], str]

LEVELS = (10, 300, 10_000, 1_000_000)


def within(before: str, core: str, after: str) -> Source:
    """Return what writes a core with so many of the same around it."""
    return lambda levels: before * levels + core + after * levels


def chain(link: str) -> Source:
    """Return what writes so many definitions, each of which names the next: link has it as TO."""

    def write(levels: int) -> str:
        links = (f'"d{i}":{link.replace("TO", f"#/$defs/d{i + 1}")}' for i in range(levels))
        return f'{{"$ref":"#/$defs/d0","$defs":{{{",".join(links)},"d{levels}":{{"type":"integer"}}}}}}'

    return write


def rules(first: str, rule: str, last: str) -> Source:
    """Return what writes so many rules, each of which names the next: AT is a rule's number, TO the next one's."""

    def write(levels: int) -> str:
        lines = (rule.replace("AT", str(i)).replace("TO", str(i + 1)) for i in range(levels))
        return "\n".join([first, *lines, last.replace("AT", str(levels))]) + "\n"

    return write


INTEGER = '{"type":"integer"}'

SCHEMAS: dict[str, Source] = {
    "properties": within('{"properties":{"a":', INTEGER, "}}"),
    "required": within('{"properties":{"a":', INTEGER, '},"required":["a"],"additionalProperties":false}'),
    "items": within('{"type":"array","items":', INTEGER, "}"),
    "prefixItems": within('{"prefixItems":[', INTEGER, "]}"),
    "additionalProperties": within('{"additionalProperties":', INTEGER, "}"),
    "patternProperties": within('{"patternProperties":{"^a":', INTEGER, "}}"),
    "propertyNames": within('{"propertyNames":', '{"type":"string"}', "}"),
    "contains": within('{"contains":', INTEGER, "}"),
    "dependentSchemas": within('{"dependentSchemas":{"a":', INTEGER, "}}"),
    "unevaluatedProperties": within('{"unevaluatedProperties":', INTEGER, "}"),
    "anyOf": within('{"anyOf":[{"type":"null"},', INTEGER, "]}"),
    "allOf": within('{"allOf":[', INTEGER, "]}"),
    "oneOf": within('{"oneOf":[', INTEGER, "]}"),
    "not": within('{"not":', INTEGER, "}"),
    "if": within('{"if":', INTEGER, ',"then":true}'),
    "not in a member": lambda levels: f'{{"properties":{{"a":{SCHEMAS["not"](levels)}}}}}',
    "members and branches": within('{"properties":{"a":{"anyOf":[{"type":"null"},', INTEGER, "]}}}"),
    "$defs": within('{"$defs":{"a":', INTEGER, "}}"),
    "$ref": chain('{"$ref":"TO"}'),
    "$ref in anyOf": chain('{"anyOf":[{"type":"null"},{"$ref":"TO"}]}'),
    "$ref in properties": chain('{"properties":{"a":{"$ref":"TO"}},"required":["a"],"additionalProperties":false}'),
    "$anchor": lambda levels: (
        f'{{"$ref":"#x","$defs":{{"a":{within(_MEMBER, _ANCHORED, "}}")(levels)}}}}}'
    ),
    "enum": lambda levels: f'{{"enum":[{"[" * levels}1{"]" * levels}]}}',
    "const": lambda levels: f'{{"const":{_OBJECT * levels}1{"}" * levels}}}',
    "default": lambda levels: f'{{"type":"integer","default":{"[" * levels}1{"]" * levels}}}',
    "unknown": lambda levels: f'{{"type":"integer","x-y":{_OBJECT * levels}1{"}" * levels}}}',
    "never closed": lambda levels: '{"items":' * levels,
    "pattern": lambda levels: f'{{"type":"string","pattern":"{"(" * levels}a{")" * levels}"}}',
}  # fmt: skip
_OBJECT, _MEMBER, _ANCHORED = '{"a":', '{"properties":{"a":', '{"$anchor":"x","type":"integer"}'

PATTERNS: dict[str, Source] = {
    "groups": within("(", "a", ")"),
    "repeats": within("(?:b", "a", ")?"),
    "branches": within("(?:b|", "a", ")"),
    "counts": within("(?:", "a", "){1,2}"),
    "anchors": within("(?:^c|", "a", "$)"),
    "boundaries": within(r"(?:\bc|", "a", r"\b)?"),
    "lookaheads": lambda levels: f"{'(?=' * levels}a{')' * levels}a",
    "lookbehinds": lambda levels: f"a{'(?<=' * levels}a{')' * levels}",
    "not ahead": lambda levels: f"{'(?!' * levels}a{')' * levels}[a-z]",
    "never closed": lambda levels: "(" * levels,
    "stars": lambda levels: "a" + "*" * levels,
}  # fmt: skip

_EBNF: dict[str, Source] = {
    "groups": lambda levels: f'root ::= {"(" * levels}"a"{")" * levels}',
    "repeats": lambda levels: f'root ::= {_B * levels}"a"{")*" * levels}',
    "branches": lambda levels: f'root ::= {_B_OR * levels}"a"{")" * levels}',
    "around itself": lambda levels: f'root ::= {_B_OR * levels}root{_C * levels}',
    "rules": rules("root ::= r0", "rAT ::= rTO", 'rAT ::= "a"'),
    "rules in brackets": rules("root ::= r0", 'rAT ::= "(" rTO ")" | "x"', 'rAT ::= "a"'),
    "never closed": lambda levels: "root ::= " + "(" * levels,
}  # fmt: skip
_B, _B_OR, _C = '("b" ', '("b" | ', ' "c")?'

GRAMMARS: dict[str, dict[str, Source]] = {
    "ebnf": _EBNF,
    "gbnf": {
        **_EBNF,
        "stars": lambda levels: 'root ::= "a"' + "*" * levels,
        "counts": lambda levels: 'root ::= "a"' + "{1,2}" * levels,
    },
    "lark": {
        "groups": lambda levels: f'start: {"(" * levels}"a"{")" * levels}',
        "repeats": lambda levels: f'start: {_B * levels}"a"{")*" * levels}',
        "options": lambda levels: f'start: {_B_IN * levels}"a"{"]" * levels}',
        "in a terminal": lambda levels: f'start: T\nT: {_B * levels}"a"{")*" * levels}',
        "in a pattern": lambda levels: f"start: /{'(' * levels}a{')' * levels}/",
        "lazy in a pattern": lambda levels: f"start: /{'(b|c' * levels}a{')*?' * levels}/",
        "rules": rules("start: r0", "rAT: rTO", 'rAT: "a"'),
        "terminals": rules("start: T0", 'TAT: TTO "b"', 'TAT: "a"'),
        "templates": lambda levels: f'start: {"t{" * levels}"a"{"}" * levels}\nt{{x}}: "(" x ")"\n',
        "never closed": lambda levels: "start: " + "(" * levels,
    },
}  # fmt: skip
_B_IN = '["b" '

_CONST = '{"type":"const_string","value":"a"}'


def formats(before: str, after: str) -> Source:
    return lambda levels: f'{{"type":"structural_tag","format":{before * levels}{_CONST}{after * levels}}}'


def one_format(**given: Any) -> str:
    return json.dumps({"type": "structural_tag", "format": given})


TAGS: dict[str, Source] = {
    "sequence": formats('{"type":"sequence","elements":[', "]}"),
    "or": formats('{"type":"or","elements":[{"type":"const_string","value":"b"},', "]}"),
    "optional": formats('{"type":"optional","content":', "}"),
    "star": formats('{"type":"star","content":', "}"),
    "tag": formats('{"type":"tag","begin":"<","end":">","content":', "}"),
    "triggered": formats(
        '{"type":"triggered_tags","triggers":["<"],"tags":[{"begin":"<a>","end":"</a>","content":', "}]}"
    ),
    "lists": formats('{"type":"sequence","elements":[[', "]]}"),
    "schema": lambda levels: (
        '{"type":"structural_tag","format":{"type":"json_schema","json_schema":' + SCHEMAS["required"](levels) + "}}"
    ),
    "older": lambda levels: (
        '{"type":"structural_tag","triggers":["<"],"structures":[{"begin":"<a>","end":"</a>","schema":'
        + SCHEMAS["required"](levels) + "}]}"
    ),
    "pattern": lambda levels: one_format(type="regex", pattern=PATTERNS["repeats"](levels)),
    "grammar": lambda levels: one_format(type="grammar", grammar=_EBNF["groups"](levels)),
}  # fmt: skip

CHOICES: dict[str, Source] = {"lists": lambda levels: "[" * levels + '"a"' + "]" * levels}


def value_of(text: str) -> Any:
    """Return the value of JSON text without recursion, whatever its depth; what is never closed is closed."""
    decoder, at, open_parts, keys, root = json.JSONDecoder(), 0, [], [], None
    while at < len(text):
        c = text[at]
        if c in " ,:":
            at += 1
            continue
        if c in "]}":
            open_parts.pop()
            at += 1
            continue
        if c in "[{":
            found: Any = [] if c == "[" else {}
            at += 1
        else:
            found, at = decoder.raw_decode(text, at)
            if open_parts and isinstance(open_parts[-1], dict) and text.startswith(":", at):
                keys.append(found)
                continue
        if not open_parts:
            root = found
        elif isinstance(open_parts[-1], dict):
            open_parts[-1][keys.pop()] = found
        else:
            open_parts[-1].append(found)
        if c in "[{":
            open_parts.append(found)
    return root
