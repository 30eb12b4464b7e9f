"""Sources that mean something, which mutation starts from, and the pieces that it puts in."""

from __future__ import annotations

from typing import Any

SCHEMAS: tuple[Any, ...] = (
    {
        "type": "object",
        "properties": {
            "name": {"type": "string", "minLength": 1, "maxLength": 20, "pattern": "^[A-Z][a-z]*$"},
            "age": {"type": "integer", "minimum": 0, "exclusiveMaximum": 150},
            "tags": {"type": "array", "items": {"enum": ["a", "b", 1, None]}, "minItems": 1, "maxItems": 4},
            "next": {"$ref": "#"},
        },
        "required": ["name", "age"], "additionalProperties": False,
    },
    {
        "$defs": {
            "node": {
                "properties": {"value": {"type": "number", "multipleOf": 0.5}, "left": {"$ref": "#/$defs/node"}},
                "patternProperties": {"^x-": {"type": ["string", "null"]}}, "minProperties": 1, "maxProperties": 3,
            },
        },
        "anyOf": [{"$ref": "#/$defs/node"}, {"type": "array", "prefixItems": [{"const": 1}, True], "items": False}],
    },
    {
        "if": {"properties": {"kind": {"const": "a"}}, "required": ["kind"]},
        "then": {"properties": {"a": {"type": "string", "format": "date"}}, "required": ["a"]},
        "else": {"properties": {"b": {"type": "boolean"}}}, "unevaluatedProperties": False,
    },
    {"oneOf": [{"type": "string", "pattern": "a.c$"}, {"multipleOf": 3}, {"contains": {"const": 2}, "maxContains": 2}]},
    {"not": {"type": ["object", "array"]}, "propertyNames": {"maxLength": 3}},
    {
        "allOf": [{"dependentRequired": {"a": ["b"]}}, {"dependentSchemas": {"b": {"minProperties": 3}}}],
        "propertyNames": {"pattern": "^[ab]{1,3}$", "not": {"const": "ab"}},
    },
    {"type": "string", "format": "date-time"}, {"type": "string", "format": "uuid"}, {"format": "ipv6"},
    {"format": "idn-email"}, {"format": "uri"}, {"format": "duration"}, {"format": "json-pointer"},
    {"$schema": "http://json-schema.org/draft-07/schema#", "definitions": {"a": {"items": [{}, {"$ref": "#"}]}},
     "additionalItems": {"$ref": "#/definitions/a"}, "dependencies": {"x": ["y"], "z": {"maxProperties": 2}}},
    {"$id": "https://a.example/b", "$anchor": "c", "properties": {"a": {"$ref": "#c"}, "b": {"$ref": "/b"}}},
    {"$dynamicAnchor": "n", "items": {"$dynamicRef": "#n"}, "unevaluatedItems": False, "prefixItems": [{"const": 0}]},
    True, False, {},
)  # fmt: skip
SCHEMA_KEYS = (
    "type", "enum", "const", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "minLength",
    "maxLength", "pattern", "format", "items", "prefixItems", "additionalItems", "contains", "minContains",
    "maxContains", "minItems", "maxItems", "uniqueItems", "properties", "patternProperties", "additionalProperties",
    "propertyNames", "required", "minProperties", "maxProperties", "dependentRequired", "dependentSchemas",
    "dependencies", "allOf", "anyOf", "oneOf", "not", "if", "then", "else", "$ref", "$defs", "definitions", "$id",
    "$anchor", "$dynamicRef", "$dynamicAnchor", "$schema", "unevaluatedItems", "unevaluatedProperties", "discriminator",
    "nullable", "title", "default", "contentEncoding", "$recursiveRef", "$vocabulary", "", "a", "b",
)  # fmt: skip

PATTERNS = (
    r"[a-c]{2,5}\d+", r"(?i:ab|cd)*?x{0,3}", r"^(?:\w+\s?){1,4}$", r"(?=a)\b[^\W_]+(?<!b)", r"(?s:.)*é[^a-z]",
    r"\p{L}\P{Lu}{2}", r"(?P<n>a|b)+\Z", r"(a|b)*a(a|b){6}", r"[\d\-.]+(?!x)", r"\u00e9|\x41|\t[\]\\]", "",
    r"(?m:^a$\n?)*", r"a|b||c", r"😀{2}|[ä-ü]",
)  # fmt: skip
PATTERN_PIECES = (
    *"abc()[]{}|*+?.^$\\-,:=!<0129 é😀\n", "(?:", "(?=", "(?!", "(?<=", "(?<!", "(?i)", "(?s:", "(?P<n>", "{2}",
    "{,3}", "{2,}", "{9,99}", "{1000}", r"\d", r"\w", r"\S", r"\b", r"\B", r"\Z", r"\p{L}", r"\1", r"\u0041", "[^",
    "a-z", "[[:alpha:]]", "*?", "++", "\ud800", "\U0010ffff",
)  # fmt: skip

GRAMMARS = (
    'start: item ("," item)~0..2 [";"]\nitem: ITEM | "(" start ")"\nITEM: /[a-c]+/\n%ignore " "',
    'start: start "+" term | term\nterm: term "*" atom | atom\natom: NUMBER | "(" start ")"\nNUMBER: /[0-9]+/',
    'start: "a" start "a" | "b" start "b" | "a" | "b"',
    '%import common.ESCAPED_STRING\n%import common.WS\n%ignore WS\nstart: "{" [pair ("," pair)*] "}"\n'
    "pair: ESCAPED_STRING \":\" (start | ESCAPED_STRING)",
    'start: list{"x", "y"}\nlist{a, b}: a (b a)*', 'start: "if"i NAME | NAME\nNAME.2: /[a-z]{1,4}/\n',
    'root ::= pair | pair "," pair\npair ::= [a-c]+ "::=" [0-9]{1,3}',
    'root ::= "(" root? ")" | [^()\\n]{2,4} | value\nvalue ::= ("a" | "b")* # a comment',
    "root ::= expr\nexpr ::= term (('+' | '-') term)*\nterm ::= [0-9]+ | '(' expr ')'",
)  # fmt: skip
GRAMMAR_PIECES = (
    *"ab()[]{}|*+?.,:\"'/\\~!_ \n", "start", "start: ", "root ::= ", "::=", '"a"', "/a+/", "/(?=a)a/", "~2..5", "~99",
    "%ignore ", "%import common.INT", "%declare X", "-> n", "?", "INT", "x: x x\n", "{1,9}", "[^a]", '""', "i", ".1",
)  # fmt: skip

TAGS: tuple[Any, ...] = (
    {"type": "structural_tag", "format": {"type": "sequence", "elements": [
        {"type": "regex", "pattern": "[a-c]{0,3}"},
        {"type": "tag", "begin": "<f>", "content": {"type": "json_schema", "json_schema": {"enum": ["x", True]}},
         "end": "</f>"},
    ]}},
    {"structures": [{"begin": "<a>", "schema": {"const": {"a": None}}, "end": "</a>"}], "triggers": ["<a"],
     "type": "structural_tag"},
    {"type": "structural_tag", "format": {
        "type": "triggered_tags", "triggers": ["<t"], "at_least_one": True, "stop_after_first": False,
        "excludes": ["!"],
        "tags": [
            {"begin": "<t1>", "content": {"type": "any_text", "excludes": ["x"]}, "end": ["</t>", "</t1>"]},
            {"begin": "<t2>", "content": {"type": "grammar", "grammar": 'root ::= "a" root "b" | "c"'}, "end": "."},
        ]}},
    {"type": "structural_tag", "format": {
        "type": "tags_with_separator", "separator": ",", "at_least_one": False,
        "tags": [{"type": "tag", "begin": "(", "content": {"type": "const_string", "value": "v"}, "end": ")"}]}},
    {"type": "structural_tag", "format": {"type": "or", "elements": [
        {"type": "star", "content": {"type": "const_string", "value": "ab"}},
        {"type": "repeat", "min": 1, "max": 3, "content": {"type": "regex", "pattern": "c|d"}},
        {"type": "optional", "content": {"type": "plus", "content": {"type": "any_text"}}},
    ]}},
)  # fmt: skip
TAG_KEYS = (
    "type", "format", "elements", "tags", "triggers", "begin", "content", "end", "schema", "structures", "value",
    "json_schema", "pattern", "grammar", "separator", "excludes", "at_least_one", "stop_after_first", "min", "max",
    "max_tokens", "max_chars", "style", "token",
)  # fmt: skip

_MODEL = {"model": "maskwright-tiny", "max_tokens": 4}
_ASKED = {**_MODEL, "messages": [{"role": "user", "content": "hello"}]}
REQUESTS: tuple[tuple[str, Any], ...] = (
    ("/v1/completions", {**_MODEL, "prompt": "a", "guided_regex": "[a-c]{1,3}", "seed": 1}),
    ("/v1/completions", {**_MODEL, "prompt": [3, 4], "guided_choice": ["a", "b"], "n": 2, "temperature": 0.5}),
    ("/v1/completions", {**_MODEL, "prompt": ["a", "b"], "structured_outputs": {"grammar": 'start: "a"'}}),
    ("/v1/chat/completions", {**_ASKED, "stream": True, "stream_options": {"include_usage": True}, "stop": ["x"]}),
    ("/v1/chat/completions", {**_ASKED, "response_format": {"type": "json_schema", "json_schema": {
        "name": "it", "strict": True, "schema": {"type": "object", "properties": {"a": {"type": "integer"}}}}}}),
    ("/v1/chat/completions", {**_ASKED, "response_format": {"type": "json_object"}, "logprobs": True, "top_p": 0.9}),
    ("/v1/chat/completions", {**_ASKED, "tool_choice": "auto", "tools": [
        {"type": "function", "function": {"name": "f", "parameters": {"properties": {"x": {"enum": [1]}}}}}]}),
    ("/v1/chat/completions", {**_ASKED, "response_format": {"type": "structural_tag", **TAGS[1]}}),
)  # fmt: skip
REQUEST_KEYS = (
    "model", "prompt", "messages", "max_tokens", "max_completion_tokens", "n", "best_of", "stream", "stop", "seed",
    "temperature", "top_p", "top_k", "logprobs", "top_logprobs", "response_format", "tools", "tool_choice", "echo",
    "guided_json", "guided_regex", "guided_choice", "guided_grammar", "structured_outputs", "allow", "logit_bias",
    "role", "content", "name", "tool_calls", "suffix", "user", "parallel_tool_calls", "frequency_penalty",
)  # fmt: skip
