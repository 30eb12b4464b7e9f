"""Sources that once took all the time or memory there is, or look as if they could: made anew each time, never kept.

Each is a function without arguments under its kind and name.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any

TINY = "maskwright-tiny"
DRAFT = "https://json-schema.org/draft/2020-12/schema"


def chained_conditions(levels: int) -> Any:
    """Return `if`, `then` and `else` that lead to the next level by `$ref`, each twice."""
    definitions = {
        f"d{n}": {
            "if": {"$ref": f"#/$defs/d{n + 1}"},
            "then": {"properties": {"a": {"$ref": f"#/$defs/d{n + 1}"}}},
            "else": {"$ref": f"#/$defs/d{n + 1}"},
        }
        for n in range(levels)
    }
    return {"$ref": "#/$defs/d0", "$defs": {**definitions, f"d{levels}": {"required": ["x"]}}}


def shared(levels: int, keyword: str | None) -> Any:
    """Return a Python object in which each part stands twice, as anchors of YAML make it; a list of parts if None."""
    part: Any = {"type": "integer"} if keyword else 1
    for _ in range(levels):
        part = {keyword: [part, part]} if keyword else {"a": part, "b": part}
    return part if keyword else {"const": part}


def nested(levels: int, keyword: str) -> Any:
    """Return a Python object of schemas within schemas."""
    part: Any = True
    for _ in range(levels):
        part = {keyword: [part] if keyword in ("allOf", "anyOf") else part}
    return part


def recursive_items(count: int) -> Any:
    """Return arrays of arrays that all have so many items."""
    return {"type": "array", "items": {"anyOf": [{"type": "integer"}, {"$ref": "#"}]}, "minItems": count}


def overlapping_patterns(count: int) -> Any:
    """Return patterns of keys of which any may hold together."""
    return {"patternProperties": {f"[a-z]{{{n}}}{n}": {"minimum": n} for n in range(1, count)}}


def many_branches(count: int) -> Any:
    """Return alternatives of which exactly one holds, each of two keys."""
    one = [{"properties": {f"k{n}": {"const": n}}, "required": [f"k{(n * 7) % count}"]} for n in range(count)]
    return {"type": "object", "oneOf": one}


def counts_within_counts(levels: int) -> str:
    """Return a pattern in which each level is repeated."""
    pattern = "a?"
    for _ in range(levels):
        pattern = f"(?:{pattern}){{1,9}}"
    return pattern


def names_in_a_circle(count: int) -> str:
    """Return a grammar whose rules each name two others."""
    rules = (f'r{n}: r{(n + 1) % count} "a" r{(n * 7 + 3) % count} | "b"' for n in range(count))
    return "start: r0\n" + "\n".join(rules)


def tags(count: int, **fields: Any) -> Any:
    """Return tags that differ by numbers, in text that they interrupt."""
    each = [
        {"type": "tag", "begin": f"<f{n}>", "content": {"type": "json_schema", "json_schema": True}, "end": f"</f{n}>"}
        for n in range(count)
    ]
    return {
        "type": "structural_tag",
        "format": {"type": "triggered_tags", "triggers": ["<f"], "tags": each, **fields},
    }


def nested_tags(levels: int) -> Any:
    """Return tags within tags."""
    part: Any = {"type": "any_text"}
    for n in range(levels):
        part = {"type": "tag", "begin": f"<{n}>", "content": part, "end": f"</{n}>"}
    return {"type": "structural_tag", "format": part}


def long_number(digits: int, keyword: str) -> str:
    """Return the text of a schema with a number of so many digits."""
    return f'{{"{keyword}": {"7" * digits}}}'


def completion(**fields: Any) -> bytes:
    """Return the body of a request."""
    return json.dumps({"model": TINY, "prompt": "a", "max_tokens": 4, **fields}).encode()


_SCHEMAS: dict[str, Callable[[], Any]] = {
    **{f"conditions chained {n} times": partial(chained_conditions, n) for n in (8, 25, 40, 60)},
    "parts of allOf shared 60 times": partial(shared, 60, "allOf"),
    "parts of anyOf shared 60 times": partial(shared, 60, "anyOf"),
    "parts of oneOf shared 40 times": partial(shared, 40, "oneOf"),
    "parts of a constant shared 60 times": partial(shared, 60, None),
    "not in not 10,000 times": partial(nested, 10_000, "not"),
    "items in items 10,000 times": partial(nested, 10_000, "items"),
    "allOf in allOf 100,000 times": partial(nested, 100_000, "allOf"),
    **{f"text of {n:,} brackets": partial("{}".format, "[" * n) for n in (10_000, 1_000_000)},
    **{f"text of {n:,} keys": partial("{}".format, '{"not":' * n + "{}" + "}" * n) for n in (10_000, 100_000)},
    "a constant of 100,000 brackets": partial("{}".format, '{"const":' + "[" * 100_000 + "]" * 100_000 + "}"),
    "names by a long pattern": lambda: {"propertyNames": {"pattern": "^(a|b){1,800}$"}, "minProperties": 2},
    "names by counted patterns": lambda: {
        "propertyNames": {"pattern": "^[a-z]{2,300}x[a-z]{2,300}$"}, "properties": {"axa": True, "b" * 300: True},
        "patternProperties": {"a{30,90}b": True, "[ab]{20}c": {"type": "null"}},
    },
    "names by patterns that double": lambda: {"propertyNames": {"pattern": "(a|b)*a(a|b){18}"}},
    "patterns that double and overlap": lambda: {
        "patternProperties": {"a.{12}b": True, "b.{13}a": {"type": "null"}, "(a|b).{14}$": {"minimum": 0}},
    },
    "80 patterns of keys": partial(overlapping_patterns, 80),
    "150 branches of which one holds": partial(many_branches, 150),
    "20,000 items": partial(recursive_items, 20_000),
    "1,000,000,000 items": partial(recursive_items, 10**9),
    "at least 10 ** 40 items": lambda: {"minItems": 10**40},
    "20,000 keys": lambda: {"properties": {f"key{n}": {"type": "integer"} for n in range(20_000)}},
    "20,000 required keys": lambda: {"required": [f"key{n}" for n in range(20_000)]},
    "20,000 constants": lambda: {"enum": [f"word {n * 7919}" for n in range(20_000)]},
    "a string of 1,000,000 characters": lambda: {"const": "a" * 1_000_000},
    "at least 1,000,000 characters": lambda: {"minLength": 1_000_000, "pattern": "^a"},
    "contains 200 of 300": lambda: {"contains": {"minimum": 3}, "minContains": 200, "maxContains": 300},
    "contains within contains": lambda: {"contains": {"contains": {"contains": {"const": 1}, "minContains": 9}}},
    "multiples that share no factor": lambda: {"allOf": [{"multipleOf": n} for n in (97, 89, 83, 79, 73)]},
    "multiples of none": lambda: {"not": {"anyOf": [{"multipleOf": n} for n in (2, 3, 5, 7, 11, 13)]}},
    "a step of 1e-300": lambda: {"multipleOf": 1e-300},
    "bounds far apart": lambda: {"minimum": -1e300, "maximum": 1e308, "multipleOf": 0.001},
    "unevaluated behind many branches": lambda: {
        "anyOf": [{"properties": {f"k{n}": {"type": "integer"}}} for n in range(14)], "unevaluatedProperties": False,
    },
    "dependencies of each on the next": lambda: {
        "dependentRequired": {f"k{n}": [f"k{n + 1}"] for n in range(40)}, "properties": {f"k{n}": {} for n in range(41)}
    },
    "dynamic references": lambda: {
        "$schema": DRAFT, "$id": "https://a.example/", "$dynamicAnchor": "a",
        "allOf": [{"properties": {"a": {"$dynamicRef": "#a"}}}, {"items": {"$dynamicRef": "#a"}}],
    },
    "a reference to itself": lambda: {"$ref": "#"},
    "references in a circle": lambda: {
        "$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}},
    },
    "a formula of parity": lambda: {
        "allOf": [{"oneOf": [{"required": [f"k{n}"]}, {"required": [f"k{(n + 1) % 16}"]}]} for n in range(16)],
    },
    **{
        f"{keyword} of {n:,} digits": partial(long_number, n, keyword)
        for keyword in ("minimum", "const", "multipleOf", "minLength", "maxItems")
        for n in (4_400, 40_000)
    },
    "an exponent of 1,000,000,000": lambda: '{"minimum": 1e1000000000, "maximum": 1e-1000000000}',
    "a lone surrogate": lambda: {"const": "\ud800", "properties": {"\udfff": {"pattern": "\ud800"}}},
}  # fmt: skip

_PATTERNS: dict[str, Callable[[], Any]] = {
    "100,000 lookarounds": lambda: "(?=a)" * 100_000 + "a",
    "100,000 lookarounds behind": lambda: "a" + "(?<=a)" * 100_000,
    "100,000 anchors": lambda: "^" * 100_000 + "a" + "$" * 100_000,
    "lookarounds of lookarounds": lambda: "(?=" * 500 + "a" + ")" * 500 + "a",
    "100 different lookarounds": lambda: "".join(f"(?=.*{chr(97 + n % 26)}{{{n + 1}}})" for n in range(100)) + ".*",
    **{f"{n:,} groups": partial("{}".format, "(" * n + "a" + ")" * n) for n in (10_000, 1_000_000)},
    **{f"{n:,} open groups": partial("{}".format, "(?:" * n) for n in (10_000, 1_000_000)},
    "sets in 100,000 brackets": lambda: "[" * 100_000,
    **{f"counts within counts {n} deep": partial(counts_within_counts, n) for n in (3, 6, 12)},
    "a count of 1,000,000,000": lambda: "a{1000000000}",
    "a count of 5,000 digits": lambda: "a{" + "9" * 5_000 + "}",
    "a set counted 100,000 times": lambda: "[a-zé😀]{0,100000}",
    "what doubles 24 times": lambda: "(a|b)*a(a|b){24}",
    "what doubles backwards": lambda: "(?:(a|b){24}a(a|b)*)?",
    "100,000 alternatives": lambda: "|".join(f"w{n * 7919}" for n in range(100_000)),
    "stars in stars": lambda: "(?:" * 200 + "a*" + ")*" * 200,
    "any of 3,000": lambda: ".{3000}",
    "unicode words counted": lambda: r"\w{1,400}",
}

_GRAMMARS: dict[str, Callable[[], Any]] = {
    **{f"{n:,} brackets": partial("{}".format, "start: " + "(" * n + '"a"' + ")" * n) for n in (10_000, 1_000_000)},
    **{f"{n:,} open brackets": partial("{}".format, "start: " + "[" * n) for n in (10_000, 100_000)},
    "5,000 rules in a circle": partial(names_in_a_circle, 5_000),
    "30 rules in a circle": partial(names_in_a_circle, 30),
    "rules that double 60 times": lambda: (
        "start: r0\n" + "\n".join(f"r{n}: r{n + 1} r{n + 1}" for n in range(60)) + '\nr60: "a"'
    ),
    "terminals that double 60 times": lambda: (
        "start: T0\n" + "\n".join(f"T{n}: T{n + 1} T{n + 1}" for n in range(60)) + '\nT60: "a"'
    ),
    "a rule 5,000 long": lambda: "start: " + "r " * 5_000 + '\nr: "a"?',
    "counts within counts": lambda: 'start: ((("a"~1..99)~1..99)~1..99)~1..99',
    "a count of 5,000 digits": lambda: 'start: "a"~' + "9" * 5_000,
    "an ambiguous sum": lambda: 'start: start start | start start start | "a" | ""',
    "terminals of patterns that double": lambda: "start: (A | B)+\nA: /(a|b)*a(a|b){15}/\nB: /(a|b)*b(a|b){15}/",
    "lookarounds in terminals": lambda: "start: A+\nA: /" + "(?=a)" * 20_000 + "a/",
    "gbnf of 10,000 groups": lambda: "root ::= " + "(" * 10_000 + '"a"' + ")" * 10_000,
    "gbnf of a large count": lambda: 'root ::= ("a" | "b"){1,1000000000}',
    "20,000 literals": lambda: "start: " + " | ".join(f'"w{n * 7919}"' for n in range(20_000)),
    "left recursion 300 deep": lambda: (
        "start: r0\n" + "\n".join(f'r{n}: r{(n + 1) % 300} "{chr(97 + n % 26)}" | "x{n}"' for n in range(300))
    ),
}

_TAGS: dict[str, Callable[[], Any]] = {
    "500 tags": partial(tags, 500),
    "tags counted": partial(tags, 3, at_least_one=True, stop_after_first=True),
    "tags within tags 2,000 times": partial(nested_tags, 2_000),
    "tags within tags 60 times": partial(nested_tags, 60),
    "a text of brackets": lambda: "[" * 1_000_000,
    "a regex that doubles": lambda: {
        "type": "structural_tag", "format": {"type": "regex", "pattern": "(a|b)*a(a|b){22}"},
    },
    "a schema of chained conditions": lambda: {
        "type": "structural_tag", "format": {"type": "json_schema", "json_schema": chained_conditions(30)},
    },
    "a long trigger": lambda: {
        "structures": [{"begin": "a" * 20_000 + "b", "schema": True, "end": "</a>"}], "triggers": ["a" * 20_000],
    },
    "a sequence of shared parts": lambda: {
        "type": "structural_tag", "format": {"type": "sequence", "elements": [shared(40, "elements")] * 2},
    },
}  # fmt: skip

_CHOICES: dict[str, Callable[[], Any]] = {
    "200,000 choices": lambda: [f"choice {n * 7919}" for n in range(200_000)],
    "a choice of 1,000,000 characters": lambda: ["a" * 1_000_000, "b"],
    "choices that end alike": lambda: [f"{n}" + "x" * 2_000 for n in range(500)],
    "the same choice 100,000 times": lambda: ["a"] * 100_000,
    "lone surrogates": lambda: ["\ud800", "\udfff\ud800"],
    "nothing": list,
    "an empty choice": lambda: [""],
}

_BODIES: dict[str, Callable[[], Any]] = {
    "brackets": lambda: [("/v1/completions", b"[" * 1_000_000)],
    "keys": lambda: [("/v1/completions", b'{"a":' * 100_000)],
    "a long number": lambda: [("/v1/completions", b'{"max_tokens": ' + b"9" * 5_000 + b"}")],
    "chained conditions": lambda: [("/v1/completions", completion(guided_json=chained_conditions(30)))],
    "lookarounds": lambda: [("/v1/completions", completion(guided_regex="(?=a)" * 20_000 + "a"))],
    "a regex that doubles": lambda: [("/v1/completions", completion(guided_regex="(a|b)*a(a|b){24}"))],
    "groups in a grammar": lambda: [("/v1/completions", completion(guided_grammar="start: " + "(" * 100_000))],
    "a deep schema as text": lambda: [("/v1/completions", completion(guided_json='{"not":' * 50_000))],
    "not UTF-8": lambda: [("/v1/completions", b'{"model": "\xff\xfe"}')],
    "lone surrogates": lambda: [("/v1/completions", completion(prompt="\ud800", guided_regex="\udfff"))],
    "numbers that are none": lambda: [("/v1/completions", completion(temperature=float("nan")))],
    "tokens far outside": lambda: [("/v1/completions", completion(prompt=[-1, 2**31, 2**63, 10**30]))],
    "logprobs without end": lambda: [("/v1/completions", completion(logprobs=10**9, n=10**9, best_of=10**9))],
    "1,000 tools": lambda: [
        (
            "/v1/chat/completions",
            json.dumps({
                "model": TINY, "messages": [{"role": "user", "content": "a"}], "max_tokens": 4,
                "tools": [
                    {"type": "function", "function": {"name": f"t{n}", "parameters": {"type": "object"}}}
                    for n in range(1_000)
                ],
                "tool_choice": "required",
            }).encode(),
        )
    ],
}  # fmt: skip

ATTACKS: dict[str, dict[str, Callable[[], Any]]] = {
    "schema": _SCHEMAS,
    "regex": _PATTERNS,
    "grammar": _GRAMMARS,
    "tag": _TAGS,
    "choices": _CHOICES,
    "http": _BODIES,
}
"""By kind and name. Bodies are lists of (path, bytes)."""
