"""Arrays of distinct items: what a matcher remembers, beside `jsonschema` and beside trying each token."""

import copy
import json
import pickle
import random
import re
from decimal import Decimal

import jsonschema
import numpy as np
import pytest

import maskwright as mw
from maskwright.errors import ConstraintError, NoTableError, SchemaError
from tests.support.backends import ALL, backend, out

ACROSS = [
    b'{"', b'"a"', b'","', b"1,1", b"12", b",1", b'",', b'"]', b'", "', b"],[", b"[1", b"[[", b"}]", b"},{", b'{"a":',
    b'":1', b"0,0", b'"b","b"', b'"a","', b"1]", b"],", b',"a"', b'"a":1,"b":', b"1.0", b"e0", b'a"', b"ab", b"true",
    b",true", b"null,", b"\\u00", b"61", b'"b":', b"true,true", b"[1,1]", b"],[1,", b"[],[]", b":[1,1", b'":[1,',
]  # fmt: skip
"""Tokens that begin in one item and end in another."""
VOCAB = mw.Vocabulary.from_bytes([b"", *(bytes([b]) for b in range(256)), *ACROSS], eos=0)
UNIQUE = {"type": "array", "uniqueItems": True}


def written(text):
    """Return tokens of one byte each."""
    return [1 + byte for byte in text.encode()]


def fits(table, text):
    """Return whether a matcher reads a text, and whether the table says the same."""
    matcher = mw.Matcher(table, VOCAB)
    found = all(map(matcher.advance, written(text))) and matcher.is_accepting
    assert table.accepts([*written(text), 0]) == found
    return found


CASES = [
    (UNIQUE, ["[]", "[1]", "[1, true]", "[0, false, null]", '["1", 1]', "[[], {}]"], ["[1, 1]", "[null,null]"]),
    (UNIQUE, ["[1, 10, 0.1]", "[-1, 1]"], ["[1, 1.0]", "[100, 1e2]", "[0, -0.0e7]", "[1e0, 10e-1]", "[5e-1, 0.50]"]),
    (UNIQUE, [r'["a", "\u0062"]', r'["\u00e9", "e"]'], [r'["a", "\u0061"]', r'["/", "\/"]', '["é", "\\u00E9"]']),
    (UNIQUE, ['[{"a": 1}, {"a": 2}]', "[[1, 2], [2, 1]]"], ['[{"a":1,"b":2}, {"b":2.0,"a":1}]', "[[1], [1.0]]"]),
    (UNIQUE, ['[{"a":1},{"a":1,"b":1}]'], ['[{"a":2},{"a":1,"a":2}]', "[[[]], [[]]]", "[{},{}]"]),
    (UNIQUE, [r'["\ud83d\ude00", "x"]'], ['["\U0001f600", "\\ud83d\\ude00"]']),
    ({**UNIQUE, "items": {"type": "integer"}}, ["[0, 1, 2]", "[-1, 1]"], ["[0, 0]", "[0, -0]", "[7, 7]"]),
    ({**UNIQUE, "items": {"type": "integer", "minimum": 0, "maximum": 40}}, ["[4, 40, 0]"], ["[4, 4]", "[40, 40]"]),
    ({**UNIQUE, "items": UNIQUE}, ["[[1], [2]]", "[[], [1, 2], [2, 1]]"], ["[[1], [1]]", "[[1, 1]]", "[[],[]]"]),
    ({**UNIQUE, "items": {"type": "string"}, "minItems": 3}, ['["a", "b", "c"]'], ['["a", "b", "b"]', '["a", "b"]']),
    ({"properties": {"a": UNIQUE, "b": {"type": "array"}}}, ['{"a":[1],"b":[1,1]}'], ['{"a":[1,1]}']),
    ({"patternProperties": {"^x": UNIQUE}}, ['{"y":[1,1],"x":[1]}'], ['{"x":[1,1]}', '{"y":[1,1],"xy":[1,1]}']),
    ({"items": {"$ref": "#/$defs/a"}, "$defs": {"a": UNIQUE}}, ["[[1],[1]]"], ["[[1,1]]"]),
    ({"anyOf": [{"type": "string"}, {**UNIQUE, "items": {"type": "string"}}]}, ['"a"', '["a","b"]'], ['["a","a"]']),
    (
        {"properties": {"a": {"$ref": "#"}, "b": UNIQUE}, "additionalProperties": False},
        ['{"a":{"b":[1]},"b":[1]}'], ['{"a":{"b":[1,1]}}', '{"a":{"a":{"b":[2,2]}}}', '{"a":{},"b":[1,1]}'],
    ),
    ({"allOf": [{"type": "array", "items": {"type": "string"}}, {"uniqueItems": True}]}, ['["a"]'], ['["a","a"]']),
    ({**UNIQUE, "prefixItems": [{"enum": [1, 2]}, {"const": 1}], "minItems": 2}, ["[2,1]", "[2,1,3]"], ["[1,1]"]),
    (
        {**UNIQUE, "prefixItems": [{"enum": [1, 2]}, {"enum": [1, 2, 3]}, {"enum": [1, 3]}], "minItems": 3},
        ["[2,1,3]", "[1,2,3]", "[2,3,1]"], ["[1,3,3]", "[2,2,1]"],
    ),
    ({**UNIQUE, "items": {"type": "integer"}, "contains": {"minimum": 5}, "minContains": 2}, ["[2,5,6]"], ["[5,5]"]),
    ({**UNIQUE, "prefixItems": [{"type": "string"}], "items": {"type": "integer"}}, ['["1",1]'], ['["1",1,1]']),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "accepted", "rejected"), CASES)
def test_equal_items_are_refused_however_they_are_written(schema, accepted, rejected):
    table = mw.compile_json_schema(schema, VOCAB)
    assert all(fits(table, text) for text in accepted)
    assert not any(fits(table, text) for text in rejected)
    assert table.unenforced == ()


@pytest.mark.parametrize(
    ("items", "begun", "others"),
    [
        ([{"enum": [1, 2]}, {"const": 1}], "[2", "[1"),
        ([{"enum": [1, 2]}, {"enum": [1, 2, 3]}, {"enum": [1, 3]}], "[2,1", "[2,2"),
        ([{"enum": [1, 2]}, {"enum": [1, 2, 3, 4]}, {"enum": [1, 3]}, {"enum": [1, 2]}], "[2,4,3,1", "[2,3"),
        ([{"type": "integer"}, {"const": 1}], "[11,1", "[1,"),
        ([{"type": "string"}, {"enum": ["a", "b"]}, {"const": "a"}], '["c","b","a"', '["b"'),
    ],
)
def test_items_leave_values_for_those_that_must_follow(items, begun, others):
    table = mw.compile_json_schema({**UNIQUE, "prefixItems": items, "minItems": len(items)}, VOCAB)
    matcher = mw.Matcher(table, VOCAB)
    assert matcher.accept_tokens(written(begun))
    matcher.reset()
    assert not matcher.accept_tokens(written(others))


def test_a_token_that_begins_an_array_leaves_values_too():
    tokens = [b'["v0"', b'["v1"', b'["v', b'{"a":["v0"', b'[["v0"', b'[["v1"', b'<["v0', b'<["v1', b'<["v', b'<[["v0']
    vocabulary = mw.Vocabulary.from_bytes([*VOCAB.tokens, *tokens], eos=0)
    names = [{"enum": [f"v{i}" for i in range(14)]}, {"const": "v0"}]
    array = {**UNIQUE, "prefixItems": names, "items": False, "minItems": 2}
    for schema in (array, {**UNIQUE, "items": array}, {"properties": {"a": array}, "required": ["a"]}):
        content = {"type": "json_schema", "json_schema": schema}
        tag = {"type": "structural_tag", "format": {"type": "tag", "begin": "<", "content": content, "end": ">"}}
        for begin, table in (
            ("", mw.compile_json_schema(schema, vocabulary)), ("<", mw.compile_structural_tag(tag, vocabulary)),
        ):  # fmt: skip
            for opened in ("", begin, f"{begin}[", f'{begin}{{"a":'):
                matcher = mw.Matcher(table)
                matcher.accept_tokens(written(opened))
                assert allowed(matcher) == [t for t in range(vocabulary.size) if matcher.copy().advance(t)]


def scalar(rng):
    return rng.choice(
        [
            {"type": "string"}, {"type": "string", "maxLength": 1}, {"type": "integer"}, {"type": "number"}, {},
            {"type": "integer", "minimum": 0, "maximum": 30}, {"type": "string", "pattern": "^(a|bc*)$"},
            {"type": "string", "pattern": "^[ab]{1,4}$"}, {"enum": [1, 2, 1.5, "a", None, True, [1], {"a": 1}]},
            {"type": ["string", "integer", "null", "boolean"]}, {"type": "number", "multipleOf": 0.5},
            {"type": "number", "minimum": 0, "maximum": 0.2}, {"type": "boolean"},
            {"enum": [str(i) for i in range(20)]},
        ]
    )  # fmt: skip


def schema_of(rng, depth=0):
    """Return a random schema, with arrays of distinct items of all kinds."""
    kind = rng.random()
    if depth > 2 or kind < 0.3:
        return scalar(rng)
    if kind < 0.65:
        found = {"type": "array", "items": schema_of(rng, depth + 1), "uniqueItems": rng.random() < 0.8}
        options = {"minItems": rng.choice([1, 2]), "maxItems": rng.choice([3, 5]), "contains": scalar(rng)}
        options["prefixItems"] = [schema_of(rng, depth + 2)]
        return found | {key: value for key, value in options.items() if rng.random() < 0.15}
    if kind < 0.9:
        properties = {key: schema_of(rng, depth + 1) for key in rng.sample("abc", 2)}
        options = {"additionalProperties": rng.random() < 0.3, "required": list(properties)}
        chosen = {key: value for key, value in options.items() if rng.random() < 0.6}
        return {"type": "object", "properties": properties, **chosen}
    if rng.random() < 0.5:
        return {"anyOf": [schema_of(rng, depth + 1), {"type": "string"}]}
    branches = []
    for values in rng.choice([(["a"], ["b"]), (["a", "b"], ["b"]), ([1], ["b"], [True]), (["a"], ["b"], ["b", "c"])]):
        members = [("k", {"enum": values}), ("a", schema_of(rng, depth + 1)), ("b", schema_of(rng, depth + 1))]
        rng.shuffle(members)
        more = {} if rng.random() < 0.5 else {"additionalProperties": False}
        branches.append({"type": "object", "properties": dict(members), "required": ["k"], **more})
    return {rng.choice(["anyOf", "anyOf", "oneOf"]): branches}


def lists(seed, count):
    """Yield tables of random schemas that a matcher sees to, with the schemas."""
    rng = random.Random(seed)
    while count:
        schema = {"type": "array", "items": schema_of(rng), "uniqueItems": True}
        try:
            whitespace = rng.choice(["compact", "flexible", "spaced"])
            table = mw.compile_json_schema(schema, VOCAB, whitespace=whitespace, any_order=rng.random() < 0.2)
        except SchemaError:
            continue
        if table.unique is not None:
            count -= 1
            yield rng, schema, table


def exact(text):
    return json.loads(text, parse_float=Decimal)


def can_be_judged(text):
    """Return whether `json` and `Decimal` read a text: not half characters, nor numbers of such sizes."""
    return re.search(rb"\\ud|e[+-]?[0-9]{7}", text.lower()) is None


def allowed(matcher):
    return [int(i) for i in np.flatnonzero(np.unpackbits(matcher.mask().view(np.uint8), bitorder="little"))]


LISTED = {"type": "array", "items": {"type": "string"}}


def told(word, *members):
    """Return the objects whose member "kind" is a word, with more members."""
    return {"type": "object", "properties": {"kind": {"const": word}, **dict(members)}, "required": ["kind"]}


@pytest.mark.parametrize("word", ["anyOf", "oneOf"])
def test_a_member_tells_in_which_branch_items_are_distinct(word):
    set_of = {**UNIQUE, "items": {"type": "string"}}
    inner = {"anyOf": [told("x", ("n", UNIQUE)), told("y", ("n", {"type": "array"}))]}
    branches = [told("a", ("tags", set_of)), told("b", ("tags", LISTED)), told("c", ("in", inner)), told("d")]
    table = mw.compile_json_schema({"items": {word: branches}}, VOCAB, whitespace="compact")
    for text in (
        '{"kind":"a","tags":["x","y"]}', '{"kind":"b","tags":["x","x"]}', '{"kind":"d","tags":[1,1]}',
        '{"kind":"c","in":{"kind":"y","n":[1,1]}}', '{"kind":"c","in":{"kind":"x","n":[1,2]},"tags":[1,1]}',
    ):  # fmt: skip
        assert fits(table, f"[{text},{text}]")
    for text in ('{"kind":"a","tags":["x","x"]}', '{"kind":"c","in":{"kind":"x","n":[1,1]}}'):
        assert not fits(table, f'[{{"kind":"b","tags":["x","x"]}},{text}]')


def test_a_union_that_leads_back_to_itself_is_told_apart_too():
    node = {"$ref": "#/$defs/node"}
    branches = [
        told("a", ("next", node), ("t", UNIQUE)),
        told("b", ("next", {"anyOf": [node, {"type": "null"}]}), ("t", LISTED)),
    ]
    table = mw.compile_json_schema({**node, "$defs": {"node": {"anyOf": branches}}}, VOCAB, whitespace="compact")
    assert fits(
        table, '{"kind":"b","next":{"kind":"a","next":{"kind":"b","next":null,"t":["x","x"]},"t":[1,2]},"t":["x","x"]}'
    )
    assert not fits(table, '{"kind":"b","next":{"kind":"a","t":[1,1]}}')
    assert not fits(table, '{"kind":"a","next":{"kind":"a","t":[1,1]},"t":[]}')
    beside = {"properties": {"t": {"maxItems": 3}}}, {"properties": {"t": {"minItems": 4}, "z": {}}, "required": ["z"]}
    union = {"anyOf": [told("a", ("t", UNIQUE)), told("b", ("t", LISTED))]}
    with pytest.raises(SchemaError, match="may come later"):  # what stands beside it says nothing of the order
        mw.compile_json_schema({"allOf": [union, {"anyOf": [*beside]}]}, VOCAB)


def test_a_member_that_only_branches_declare_which_no_longer_hold_is_told_too():
    """Another member has ruled out the branch that orders it behind what tells."""
    first = {"x": {"type": "string"}, "kind": {"const": "a"}, "t": UNIQUE}
    second = {"x": {"type": "integer"}, "kind": {"const": "b"}}
    branches = [{"type": "object", "properties": each, "required": ["x", "kind"]} for each in (first, second)]
    table = mw.compile_json_schema({"anyOf": branches}, VOCAB, whitespace="compact")
    for text, right in (
        ('{"x":1,"t":[1,1],"kind":"b"}', True), ('{"x":1,"kind":"b","t":[1,1]}', True),
        ('{"x":"s","kind":"a","t":[1,1]}', False), ('{"x":"s","kind":"a","t":[1,2]}', True),
    ):  # fmt: skip
        assert fits(table, text) == right, text


def test_what_another_part_needs_later_is_left_to_it():
    needs = {"prefixItems": [{"enum": [1, 2]}, {"type": "string"}, {"const": 1}], "minItems": 3}
    schema = {"allOf": [{"properties": {"a": UNIQUE}}, {"properties": {"a": needs}}]}
    table = mw.compile_json_schema(schema, VOCAB, whitespace="compact")
    assert fits(table, '{"a":[2,"x",1]}')
    assert fits(table, '{"a":[2,"x",1,3]}')
    matcher = mw.Matcher(table)
    assert matcher.accept_tokens(written('{"a":['))
    assert allowed(matcher) == [t for t in range(VOCAB.size) if matcher.copy().advance(t)]
    assert not matcher.accept_tokens(written("1,"))


def last(word, *members):
    """Return such objects, in which what tells comes last."""
    found = told(word, *members)
    return {**found, "properties": dict(reversed(found["properties"].items()))}


SUB = [{"properties": {"sub": {"const": "x"}, "t": UNIQUE}}, {"properties": {"sub": {"const": "y"}}}]
COMES_LATE = [
    {"anyOf": [last("a", ("t", UNIQUE)), last("b", ("t", {"type": "array"}))]},
    {"anyOf": [last("a", ("t", UNIQUE)), last("b", ("t", {"type": "object", "properties": {"u": UNIQUE}}))]},
    {"anyOf": [told("a", ("t", UNIQUE)), last("b", ("t", {"type": "array"}))]},
    {"properties": {"t": True}, "anyOf": [told("a", ("t", UNIQUE)), told("b", ("t", {"type": "array"}))]},
    {"anyOf": [
        {**last("a", ("sub", {"enum": ["x", "y"]})), "anyOf": [{**each, "required": ["sub"]} for each in SUB]},
        last("b", ("sub", {"type": "integer"})),
    ]},
]  # fmt: skip


@pytest.mark.parametrize("schema", COMES_LATE)
def test_what_tells_must_come_before_what_it_decides(schema):
    with pytest.raises(SchemaError, match=r"not in all|may come later|differ further"):
        mw.compile_json_schema(schema, VOCAB)
    first = {"anyOf": [told("a", ("t", UNIQUE)), told("b", ("t", {"type": "array"}))]}
    mw.compile_json_schema(first, VOCAB)
    with pytest.raises(SchemaError, match="not in all"):
        mw.compile_json_schema(first, VOCAB, any_order=True)
    content = {"type": "json_schema", "json_schema": first, "any_order": True}
    tag = {"type": "structural_tag", "format": {"type": "tag", "begin": "<t>", "content": content, "end": "</t>"}}
    with pytest.raises(SchemaError, match="not in all"):
        mw.compile_structural_tag(tag, VOCAB)


INTEGERS = {**UNIQUE, "items": {"type": "integer"}}
FEW = {"type": "array", "minItems": 3, "items": {"enum": [1, 2]}}
NEEDS = {**UNIQUE, "prefixItems": [{"enum": ["x", "y"]}, {"const": "x"}], "minItems": 2, "items": {"type": "string"}}
ELSEWHERE = [
    {"allOf": [{"properties": {"a": INTEGERS}}, {"properties": {"a": FEW}}]},
    {"properties": {"ab": FEW}, "patternProperties": {"^a": INTEGERS}},
    {"patternProperties": {"^a": INTEGERS, "b$": FEW}},
    {"patternProperties": {
        "^a": {**UNIQUE, "items": {"type": ["boolean", "integer"]}},
        "b$": {**UNIQUE, "minItems": 3, "items": {"type": ["boolean", "string"]}},
    }},
    {"type": "array", "allOf": [{"items": INTEGERS}, {"items": FEW}]},
    {"anyOf": [{"properties": {"a": INTEGERS}}, {"properties": {"a": NEEDS}}]},
    {"anyOf": [{"type": "array", "items": INTEGERS}, {"type": "array", "items": NEEDS}]},
]  # fmt: skip


@pytest.mark.parametrize("schema", ELSEWHERE)
def test_what_an_array_needs_counts_wherever_it_is_said(schema):
    with pytest.raises(SchemaError, match="fewer than") as found:
        mw.compile_json_schema(schema, VOCAB)
    assert found.value.keyword == "uniqueItems"


def test_arrays_within_an_array_are_told_from_items_that_came_since_the_last_mask():
    never = {"type": "array", "items": LISTED, "contains": {"type": "number"}}
    inner = {**UNIQUE, "prefixItems": [{"enum": [1, 2, 1.5, "a", None, True, [1], {"a": 1}]}], "items": never}
    matcher = mw.Matcher(mw.compile_json_schema({**UNIQUE, "items": inner}, VOCAB, whitespace="compact"))
    for text in ("[[1],", "[1.5],", "[[1.0]],"):
        assert matcher.accept_tokens(written(text))
        assert allowed(matcher) == [t for t in range(VOCAB.size) if matcher.copy().advance(t)]


def test_many_members_that_tell_are_refused_within_the_budget():
    def union(i):
        arrays = ("a", UNIQUE), ("b", {"type": "array"})
        branches = [{f"k{i}": {"const": word}, f"t{i}": array} for word, array in arrays]
        return {"anyOf": [{"properties": each, "required": [f"k{i}"]} for each in branches]}

    few, many = ({"type": "object", "allOf": [union(i) for i in range(count)]} for count in (3, 40))
    mw.compile_json_schema(few, VOCAB)
    with pytest.raises(SchemaError, match="too many branches apart"):
        mw.compile_json_schema(many, VOCAB)


@pytest.mark.parametrize("seed", range(8))
def test_masks_are_the_tokens_that_can_be_taken_and_no_text_comes_to_a_dead_end(seed):
    texts = 0
    for rng, schema, table in lists(seed, 25):
        validator = jsonschema.Draft202012Validator(exact(json.dumps(schema)))
        matcher, length, tokens = mw.Matcher(table, VOCAB), rng.choice([10, 30, 60]), []
        while len(tokens) < length + 150:
            free = allowed(matcher)
            assert free, (schema, VOCAB.decode(tokens))
            if rng.random() < 0.2:
                assert free == [t for t in range(VOCAB.size) if matcher.copy().advance(t)], (schema, tokens)
            if free == [0] or (0 in free and (len(tokens) >= length or rng.random() < 0.3)):
                break
            choices = [t for t in free if t]
            likely = [t for t in choices if VOCAB.tokens[t] in (b"a", b'"', b"1", b",", b"]", b"b", b"0", b"}")]
            across = [t for t in choices if t > 256]
            if len(tokens) >= length:
                choices = [t for t in choices if VOCAB.tokens[t] in (b'"', b"]", b"}", b",")] or choices
            else:
                choices = rng.choice([likely, across, choices]) or choices
            tokens.append(rng.choice(choices))
            assert matcher.advance(tokens[-1]), (schema, VOCAB.decode(tokens))
        if matcher.is_accepting and can_be_judged(VOCAB.decode(tokens)):
            texts += 1
            assert validator.is_valid(exact(VOCAB.decode(tokens))), (schema, VOCAB.decode(tokens))
    assert texts > 10


MARKS = [
    b"<t>",
    b"</t>",
    b"<u>",
    b"]</t>",
    b"]</t><t>[",
    b'<t>["a","a"',
    b'"]</t> ',
    b"1</t>,",
    b"<t>[[1],",
    b"</u>[1,1",
]
TAGGED = mw.Vocabulary.from_bytes([*VOCAB.tokens, *MARKS], eos=0)
"""Tokens that go from the text around JSON into it, and out of it."""


def tagged(rng, schemas):
    """Return a structural tag with a schema between <t> and </t>, and another one between <u> and </u>."""
    contents = [{"type": "json_schema", "json_schema": schema} for schema in schemas]
    tags = [
        {"type": "tag", "begin": f"<{name}>", "content": content, "end": f"</{name}>"}
        for name, content in zip("tu", contents, strict=True)
    ]  # fmt: skip
    free = {"type": "triggered_tags", "triggers": ["<t", "<u>"], "tags": tags}
    listed = {"type": "tags_with_separator", "tags": tags, "separator": ", ", "at_least_one": True}
    row = {"type": "sequence", "elements": [tags[0], {"type": "regex", "pattern": "[a-c]{0,3}"}, *tags]}
    return {"type": "structural_tag", "format": rng.choice([free, listed, row])}


def values_in(text):
    """Yield the values of a text with tags, each with its tag's name."""
    at, decoder = 0, json.JSONDecoder(parse_float=Decimal)
    while (found := re.search("<([tu])>", text[at:])) is not None:
        value, at = decoder.raw_decode(text, at + found.end())
        yield found[1], value


@pytest.mark.parametrize("seed", range(6))
def test_tags_keep_items_of_json_distinct(seed):
    rng, texts = random.Random(seed), 0
    for _ in range(12):
        schemas = [{"type": "array", "items": schema_of(rng), "uniqueItems": rng.random() < 0.8}, schema_of(rng)]
        rng.shuffle(schemas)
        try:
            table = mw.compile_structural_tag(tagged(rng, schemas), TAGGED, whitespace="compact")
        except SchemaError:
            continue
        matcher, length, tokens = mw.Matcher(table, TAGGED), rng.choice([10, 30, 60]), []
        while len(tokens) < length + 300:
            free = allowed(matcher)
            assert free, (schemas, TAGGED.decode(tokens))
            if rng.random() < 0.1:
                assert free == [t for t in range(TAGGED.size) if matcher.copy().advance(t)], (schemas, tokens)
            if free == [0] or (0 in free and len(tokens) >= length):
                break
            choices = [t for t in free if t]
            ends = [t for t in choices if TAGGED.tokens[t][:1] in (b'"', b"]", b"}", b"<", b"/")]
            likely = [t for t in choices if TAGGED.tokens[t] in (b"a", b'"', b"1", b",", b"]", b"[")]
            across = [t for t in choices if t > 256]
            choices = (ends if len(tokens) >= length else rng.choice([likely, across, ends, choices])) or choices
            tokens.append(rng.choice(choices))
            assert matcher.advance(tokens[-1])
        text = TAGGED.decode(tokens)
        if matcher.is_accepting and can_be_judged(text):
            assert table.accepts([*tokens, 0])
            for name, value in values_in(text.decode()):
                texts += 1
                schema = exact(json.dumps(schemas["tu".index(name)]))
                assert jsonschema.Draft202012Validator(schema).is_valid(value), (schemas, text)
    assert texts > 5


PARAMETERS = {
    "type": "object",
    "properties": {
        "names": {**UNIQUE, "items": {"type": "string"}},
        "n": {"type": "integer"},
        "all": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["names", "n"],
}


def in_xml(**parameters):
    """Return parameters as Qwen3-Coder writes them."""
    return "\n".join([f"<parameter={name}>\n{text}\n</parameter>" for name, text in parameters.items()])


CALLS = [
    (None, '{"names":["a","b"],"n":1,"all":["a","a"]}', '{"names":["a","a"],"n":1}'),
    ("qwen_xml", in_xml(names='["a","b"]', n="12", all='["a","a"]'), in_xml(names='["a","a"]')),
]


@pytest.mark.parametrize(("style", "fits", "equal"), CALLS)
def test_parameters_of_tools_keep_their_items_distinct(style, fits, equal):
    content = {"type": "json_schema", "json_schema": PARAMETERS, **({"style": style} if style else {})}
    others = {**content, "json_schema": {"type": "object", "properties": {"names": {"type": "array"}}}}
    tags = [
        {"type": "tag", "begin": f"<{name}>\n", "content": each, "end": f"\n</{name}>"}
        for name, each in (("t", content), ("u", others))
    ]  # fmt: skip
    tag = {"type": "structural_tag", "format": {"type": "triggered_tags", "triggers": ["<"], "tags": tags}}
    table = mw.compile_structural_tag(tag, TAGGED, whitespace="compact")
    assert table.accepts(TAGGED.encode(f"so: <t>\n{fits}\n</t>, <t>\n{fits}\n</t>"))
    begun = equal[: equal.index("]") + 1]
    assert not mw.Matcher(table).accept_tokens(written(f"so: <t>\n{begun}"))
    assert not mw.Matcher(table).accept_tokens(written(f"so: <t>\n{fits}\n</t>, <t>\n{begun}"))
    other = equal.replace(',"n":1', "")
    assert table.accepts(TAGGED.encode(f"<u>\n{other}\n</u>"))
    assert table.unenforced == ()


def test_tags_keep_items_and_counted_keys_distinct():
    counted = {"type": "object", "minProperties": 2, "additionalProperties": {"type": "integer"}}
    table = mw.compile_structural_tag(tagged(random.Random(1), [UNIQUE, counted]), TAGGED, whitespace="compact")
    assert table.unenforced == ()
    ends = ("<t>[1]</t>, <u>{}</u>", "<t>[1]</t><u>{}</u>", "<t>[1]</t>abc<t>[1]</t><u>{}</u>")  # of all three forms
    for members, fits in (('{"a":1,"b":1}', True), ('{"a":1,"a":2}', False), (r'{"a":1,"\u0061":2}', False)):
        assert any(table.accepts([*TAGGED.encode(end.format(members)), 0]) for end in ends) == fits
    assert not any(
        table.accepts([*TAGGED.encode(end.format('{"a":1,"b":1}').replace("[1]", "[1,1]")), 0]) for end in ends
    )


@pytest.mark.parametrize(
    ("schema", "style", "why"),
    [
        ({"type": "object", "additionalProperties": UNIQUE}, "qwen_xml", "does not declare"),
        ({"type": "object", "properties": {"a": UNIQUE}}, "minimax_m3_xml", "a form of its own"),
        ({"type": "object", "properties": {"a": {"not": UNIQUE}}}, None, "under not"),
        (
            {"type": "object", "anyOf": [told("a", ("t", UNIQUE)), told("b", ("t", LISTED))]},
            "glm_xml",
            "the parameter 'kind' tells",
        ),
        (
            {"type": "object", "minProperties": 2, "additionalProperties": {"type": "string"}},
            "qwen_xml",
            "might come twice",
        ),
    ],
)
def test_parameters_that_no_matcher_keeps_distinct_are_refused_by_name(schema, style, why):
    content = {"type": "json_schema", "json_schema": schema, **({"style": style} if style else {})}
    tag = {"type": "structural_tag", "format": {"type": "tag", "begin": "<t>", "content": content, "end": "</t>"}}
    with pytest.raises(SchemaError, match=why) as found:
        mw.compile_structural_tag(tag, TAGGED)
    assert found.value.keyword in ("uniqueItems", "minProperties")
    assert found.value.pointer.startswith("/format/content/json_schema")


def test_a_parameter_may_decide_which_parameters_follow():
    strings = {**UNIQUE, "items": {"type": "string"}}
    deciding = {
        "type": "object", "required": ["k", "s"], "additionalProperties": False,
        "properties": {"k": {"type": "array", "items": {"type": "integer"}}, "s": strings, "t": strings},
        "anyOf": [
            {"properties": {"k": {"maxItems": 1}}, "required": ["t"]},
            {"properties": {"k": {"minItems": 2}, "t": False}},
        ],
    }  # fmt: skip
    contents = [{"type": "json_schema", "json_schema": each, "style": "qwen_xml"} for each in (deciding, PARAMETERS)]
    tags = [
        {"type": "tag", "begin": f"<{name}>\n", "content": content, "end": f"\n</{name}>"}
        for name, content in zip("ab", contents, strict=True)
    ]
    table = mw.compile_structural_tag(
        {"type": "structural_tag", "format": {"type": "triggered_tags", "triggers": ["<"], "tags": tags}}, TAGGED,
        whitespace="compact",
    )  # fmt: skip
    for given, fits in (
        ({"k": "[1]", "s": '["a"]', "t": '["a","b"]'}, True), ({"k": "[1]", "s": '["a"]'}, False),
        ({"k": "[1,1]", "s": '["a","b"]'}, True), ({"k": "[1,1]", "s": '["a","a"]'}, False),
        ({"k": "[1]", "s": '["a"]', "t": '["b","b"]'}, False), ({"k": "[1]", "s": '["b","b"]', "t": "[]"}, False),
    ):  # fmt: skip
        text = f"<b>\n{in_xml(names='[]', n=1)}\n</b>, <a>\n{in_xml(**given)}\n</a>"
        assert table.accepts([*TAGGED.encode(text), 0]) == fits, given
        matcher = mw.Matcher(table)
        assert (matcher.accept_tokens(TAGGED.encode(text)) and matcher.is_accepting) == fits, given
        assert not table.accepts([*TAGGED.encode(f"{text}<b>\n{in_xml(names='[1,1]', n=1)}\n</b>"), 0])


def test_json_beside_text_of_a_grammar_is_refused_if_its_items_must_be_distinct():
    nested = {"type": "grammar", "grammar": 'root ::= "(" root? ")"'}
    value = {"type": "json_schema", "json_schema": {"items": UNIQUE}}
    tag = {"type": "structural_tag", "format": {"type": "sequence", "elements": [nested, value]}}
    with pytest.raises(SchemaError, match="the text around it is not regular") as found:
        mw.compile_structural_tag(tag, TAGGED)
    assert found.value.pointer == "/format/elements/1/json_schema/items/uniqueItems"


NUMBER_OR_LIST = {"type": "or", "elements": [
    {"type": "json_schema", "json_schema": {"type": "integer"}}, {"type": "json_schema", "json_schema": UNIQUE},
]}  # fmt: skip


def test_values_of_which_some_have_distinct_items_may_begin_in_one_place():
    tag = {"type": "tag", "begin": "<t>", "content": NUMBER_OR_LIST, "end": "</t>"}
    listed = {"type": "tags_with_separator", "tags": [tag], "separator": "", "at_least_one": True}
    table = mw.compile_structural_tag({"type": "structural_tag", "format": listed}, TAGGED, whitespace="compact")
    matcher = mw.Matcher(table)
    assert allowed(matcher) == [t for t in range(TAGGED.size) if matcher.copy().advance(t)]
    for text, fits in (
        ("12</t><t>[1,2]", True),
        ("[1,2]</t><t>-7", True),
        ("7</t><t>[3,3]", False),
        ("[[],[]]", False),
    ):
        assert table.accepts([*TAGGED.encode(f"<t>{text}</t>"), 0]) == fits
        assert mw.Matcher(table).accept_tokens(written(f"<t>{text}</t>")) == fits


VALUES = [
    *("1", "1.0", "10e-1", "2", "0", "-0", "0.0", "true", "false", "null", '"a"', r'"\u0061"', '"b"', '"1"', "[]"),
    *("[1]", "[1.0]", '{"a":1}', '{"a":1,"b":2}', '{"b":2,"a":1.0}', "{}", "10", "1e1", "[true]", "[[]]", "[null,1]"),
]


def random_text(rng, depth=0):
    kind = rng.random()
    if depth < 3 and kind < 0.25:
        return "[" + ",".join(random_text(rng, depth + 1) for _ in range(rng.randrange(4))) + "]"
    if depth < 3 and kind < 0.35:
        keys = rng.sample("abc", rng.randrange(3))
        return "{" + ",".join(f'"{key}":{random_text(rng, depth + 1)}' for key in keys) + "}"
    return rng.choice(VALUES)


INSIDE = {"type": "array", "items": {"anyOf": [UNIQUE, {"not": {"type": "array"}}]}}


@pytest.mark.parametrize("schema", [UNIQUE, INSIDE])
def test_random_arrays_of_all_types_are_judged_as_jsonschema_judges_them(schema):
    rng = random.Random(5)
    table, validator = mw.compile_json_schema(schema, VOCAB), jsonschema.Draft202012Validator(schema)
    judged = set()
    for _ in range(4000):
        text = "[" + ",".join(random_text(rng) for _ in range(rng.randrange(1, 5))) + "]"
        found = table.unique.accepts(written(text))  # the machine reads all of these texts
        assert found == validator.is_valid(exact(text)), text
        judged.add(found)
        if rng.random() < 0.1:
            assert fits(table, text) == found
    assert judged == {True, False}


def test_matchers_go_back_part_and_begin_again():
    table = mw.compile_json_schema(UNIQUE, VOCAB)
    matcher = mw.Matcher(table, VOCAB)
    assert matcher.accept_tokens(written('["a","b"'))
    other = copy.copy(matcher)
    assert matcher.accept_tokens(written(',"c"'))
    assert not matcher.accepts(written(',"c"]'))
    assert other.accepts(written(',"c"]'))
    matcher.rollback(4)
    assert matcher.accepts(written(',"c"]'))
    sent = pickle.loads(pickle.dumps(matcher))
    assert np.array_equal(sent.mask(), matcher.mask())
    assert not sent.accepts(written(',"b"]'))
    matcher.reset()
    assert matcher.accept_tokens(written('["b"]'))
    assert matcher.advance(0)
    assert matcher.is_terminated


def test_what_must_follow_does_not_make_items_equal():
    table = mw.compile_json_schema({**UNIQUE, "items": {"enum": [f"item {i}" for i in range(20)]}}, VOCAB)
    matcher = mw.Matcher(table, VOCAB)
    assert matcher.forced_text() == b"["
    assert matcher.accept_tokens(written('["item 1'))
    assert matcher.copy().accepts(written('"]'))
    assert matcher.accept_tokens(written('","item 1'))
    assert matcher.forced_text() == b""  # one of ten digits, and no quote
    assert not matcher.advance(written('"')[0])
    for i in range(2, 10):
        assert matcher.accept_tokens(written(f'{i}","item 1'))


def test_several_end_tokens_end_a_text():
    vocabulary = mw.Vocabulary.from_bytes([*VOCAB.tokens, b""], eos=(0, VOCAB.size))
    table = mw.compile_json_schema({**UNIQUE, "items": {"type": "string"}}, vocabulary)
    matcher = mw.Matcher(table, vocabulary)
    assert matcher.accept_tokens(written('["a"]'))
    assert {0, VOCAB.size} <= set(allowed(matcher))
    assert matcher.advance(VOCAB.size)
    assert matcher.is_terminated


@pytest.mark.parametrize("name", ALL)
def test_devices_ask_the_host_for_each_place(name):
    ops, into = backend(name)
    table = mw.compile_json_schema({**UNIQUE, "items": {"type": "string", "maxLength": 2}}, VOCAB)
    dev = ops.to_device(table)
    rng, matchers, state = random.Random(3), [mw.Matcher(table) for _ in range(4)], ops.start(dev, 4)
    for _ in range(25):
        masks = np.stack([matcher.mask() for matcher in matchers])
        assert (out(ops.bitmask(dev, state)).view(np.uint32) == masks).all()
        choices = [[t for t in allowed(matcher) if VOCAB.tokens[t] in _LETTERS] or [0] for matcher in matchers]
        tokens = [rng.choice(choice) for choice in choices]
        assert all(matcher.advance(token) for matcher, token in zip(matchers, tokens, strict=True))
        state = ops.advance(dev, state, into(np.array(tokens)))


_LETTERS = (b"a", b"b", b'"', b",", b"]", b"[", b'","', b'"a"')


def test_batches_and_bitmasks_have_the_same_masks():
    table = mw.compile_json_schema({**UNIQUE, "items": {"type": "integer"}}, VOCAB)
    matcher = mw.Matcher(table, VOCAB)
    assert matcher.accept_tokens(written("[1,12,"))
    rows = np.zeros((2, -(-VOCAB.size // 32)), np.int32)
    matcher.fill_bitmask(rows, 1)
    assert np.array_equal(rows[1].view(np.uint32), matcher.mask())


def test_no_table_and_no_number_of_tokens_is_promised():
    table = mw.compile_json_schema(UNIQUE, VOCAB)
    with pytest.raises(NoTableError, match="uniqueItems"):
        table.to_table()
    with pytest.raises(ConstraintError, match="max_tokens cannot be kept where a matcher sees to uniqueItems"):
        mw.Matcher(table, VOCAB, max_tokens=100)
    with pytest.raises(SchemaError, match="/uniqueItems"):
        mw.compile_json_schema(UNIQUE, VOCAB, lazy=False)
    small = mw.compile_json_schema({**UNIQUE, "items": {"enum": [1, 2, 3]}}, VOCAB)
    assert small.unique is None  # of few values there is a table
    assert small.to_table().accepts(written("[1,2]"))
    without = mw.compile_json_schema(UNIQUE, VOCAB, allow=["uniqueItems"])
    assert without.unique is None
    assert without.accepts(written("[1,1]"))


REFUSED = [
    ({"not": UNIQUE}, "/not/uniqueItems", "under not"),
    ({"anyOf": [UNIQUE, {"type": "array", "items": {"type": "string"}}]}, "/anyOf/0/uniqueItems", "not in all"),
    (
        {"anyOf": [{**told("a", ("b", UNIQUE)), "required": []}, told("b", ("b", {"type": "array"}))]},
        "/anyOf/0/properties/b/uniqueItems",
        "not in all",
    ),
    (
        {"anyOf": [told("a", ("b", UNIQUE)), told("a", ("b", {"type": "array"}))]},
        "/anyOf/0/properties/b/uniqueItems",
        "not in all",
    ),
    ({"if": {"contains": {"const": 1}}, "then": {"items": UNIQUE}}, "/then/items/uniqueItems", "not in all"),
    ({**UNIQUE, "contains": {"type": "string"}, "maxContains": 2}, "/uniqueItems", "contains counts"),
    ({**UNIQUE, "items": {"type": "integer", "minimum": 1, "maximum": 20}, "minItems": 21}, "/uniqueItems", "fewer"),
    ({"contains": UNIQUE}, "/contains/uniqueItems", "contains"),
    (
        {"properties": {"a": UNIQUE, "b": {**UNIQUE, "contains": {"const": 1}, "maxContains": 1}}},
        "/properties/b/uniqueItems",
        "contains counts",
    ),
    (
        {"properties": {"a": UNIQUE, "b": {"anyOf": [LISTED, {**UNIQUE}]}}},
        "/properties/b/anyOf/1/uniqueItems",
        "not in all",
    ),
    ({"properties": {"a": UNIQUE, "b": {"not": {**UNIQUE}}}}, "/properties/b/not/uniqueItems", "under not"),
]


@pytest.mark.parametrize(("schema", "pointer", "why"), REFUSED)
def test_what_depends_on_something_else_is_refused_by_name(schema, pointer, why):
    with pytest.raises(SchemaError) as found:
        mw.compile_json_schema(schema, VOCAB)
    assert (found.value.pointer, found.value.keyword) == (pointer, "uniqueItems")
    assert why in str(found.value)
