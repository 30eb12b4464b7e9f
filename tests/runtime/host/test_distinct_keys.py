"""Objects whose members are counted: what a matcher remembers, beside `jsonschema` and beside trying each token."""

import json
import random

import jsonschema
import numpy as np
import pytest

import maskwright as mw
from maskwright.errors import NoTableError, SchemaError

ACROSS = [
    b'{"', b'"a"', b'","', b'":1', b',"a":1', b',"a"', b',"b":2,"c', b'"a":1,"a"', b'"a":1,"b":', b'1,"a',
    b'1,"', b'},"',
    b'},"a":', b'}}', b'{"a":', b'{"a":1}', b'"},"', b'","b":"', b'":{"', b'":[1', b'],"a', b"\\u00", b"61",
    b"ab", b'b":',
    b'"a', b'a"', b"aa", b'": "', b'", "', b"[{", b"},{",
]  # fmt: skip
VOCAB = mw.Vocabulary.from_bytes([b"", *(bytes([b]) for b in range(256)), *ACROSS], eos=0)
OBJECT = {"type": "object"}


def written(text):
    """Return tokens of one byte each."""
    return [1 + byte for byte in text.encode()]


CASES = [
    ({**OPEN, "minProperties": 2}, ['{"x":1,"y":2}', '{"x":1,"y":2,"z":{"a":1,"a":2}}'], [
        '{"x":1}', '{"x":1,"x":2}', r'{"x":1,"\u0078":2}', '{"x":1,"y":2,"x":1}', r'{"é":1,"\u00e9":2}',
        r'{"/":1,"\/":1}',
    ])
    for OPEN in (OBJECT, {**OBJECT, "properties": {"q": True}}, {**OBJECT, "maxProperties": 3})
] + [
    ({"not": {"maxProperties": 2}}, ['{"a":1,"b":2,"c":3}'], ["[1]", '{"a":1,"b":2,"a":3}', '{"a":1,"b":2}']),
    ({**OBJECT, "minProperties": 3, "required": ["r"]}, ['{"x":1,"r":2,"y":1}'], ['{"x":1,"r":2,"x":1}']),
    (
        {**OBJECT, "additionalProperties": {"$ref": "#/$defs/two"}, "$defs": {"two": {"minProperties": 2}}},
        ['{"a":{"b":1,"c":2},"a":1}', '{"a":[{"b":1}]}'], ['{"a":{"b":1}}', '{"a":{"b":1,"b":2}}'],
    ),
    ({"anyOf": [{**OBJECT, "minProperties": 2}, {"type": "string"}]}, ['"a"', '{"a":1,"b":1}'], ['{"a":1,"a":1}']),
    ({"items": {**OBJECT, "minProperties": 2}}, ['[{"a":1,"b":2},{"a":1,"b":2}]'], ['[{"a":1,"b":2},{"a":1,"a":2}]']),
    (
        {**OBJECT, "minProperties": 2, "additionalProperties": {"type": "array", "uniqueItems": True}},
        ['{"a":[1,2],"b":[1]}'], ['{"a":[1,1],"b":[1]}', '{"a":[1],"a":[2]}'],
    ),
    (
        {"type": "array", "uniqueItems": True, "items": {**OBJECT, "minProperties": 2}},
        ['[{"a":1,"b":2},{"a":2,"b":2}]'], ['[{"a":1,"b":2},{"b":2,"a":1}]', '[{"a":1,"a":2}]'],
    ),
    (
        {**OBJECT, "minProperties": 2, "patternProperties": {"^a": {"type": "integer"}}},
        ['{"a":1,"ab":2}'], ['{"a":1,"a":2}'],
    ),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "accepted", "rejected"), CASES)
@pytest.mark.parametrize("any_order", [False, True])
def test_a_key_counts_once_however_it_is_written(schema, accepted, rejected, any_order):
    table = mw.compile_json_schema(schema, VOCAB, any_order=any_order)
    validator = jsonschema.Draft202012Validator(schema)
    for text in accepted + rejected:
        matcher = mw.Matcher(table, VOCAB)
        found = all(map(matcher.advance, written(text))) and matcher.is_accepting
        assert found == table.accepts([*written(text), 0]) == (text in accepted), text
        assert not found or validator.is_valid(json.loads(text))
    assert table.unenforced == ()
    with pytest.raises(NoTableError):
        table.to_table()


def test_counts_that_no_memory_keeps_are_refused_by_name():
    for schema in (
        {"minProperties": 700, "propertyNames": {"pattern": "^[a-h]{1,3}$"}},  # of 584 keys
        {"minProperties": 10**6},
    ):
        with pytest.raises(SchemaError) as error:
            mw.compile_json_schema(schema, VOCAB)
        assert error.value.keyword == "minProperties"
    with pytest.raises(SchemaError, match="minProperties"):
        mw.compile_json_schema({"minProperties": 2}, VOCAB, lazy=False)


def some_schema(rng, depth=0):
    """Return a random schema with objects whose members are counted."""
    kind = rng.random()
    if depth > 2 or (depth and kind < 0.3):
        return rng.choice(
            [{"type": "integer"}, {"type": "string"}, {"type": "string", "maxLength": 2}, {"enum": [1, "a"]}]
        )
    if depth and kind < 0.45:
        unique = {"uniqueItems": True} if rng.random() < 0.3 else {}
        return {"type": "array", "items": some_schema(rng, depth + 1), **unique}
    options = {
        "minProperties": rng.choice([1, 2, 3]), "maxProperties": rng.choice([3, 4]),
        "properties": {key: some_schema(rng, depth + 1) for key in rng.sample("abc", 2)},
        "additionalProperties": some_schema(rng, depth + 1), "required": rng.sample("abc", 1),
        "propertyNames": {"pattern": rng.choice(["^[ab]*$", "^a", "^[a-c]{1,4}$"])},
    }  # fmt: skip
    return {"type": "object", "minProperties": 2} | {key: v for key, v in options.items() if rng.random() < 0.35}


def allowed(matcher):
    return [int(i) for i in np.flatnonzero(np.unpackbits(matcher.mask().view(np.uint8), bitorder="little"))]


@pytest.mark.parametrize("seed", range(6))
def test_masks_are_the_tokens_that_can_be_taken_and_no_text_comes_to_a_dead_end(seed):
    rng = random.Random(seed)
    texts = tables = 0
    while tables < 15:
        schema = some_schema(rng)
        try:
            table = mw.compile_json_schema(schema, VOCAB, whitespace=rng.choice(["compact", "flexible", "spaced"]))
        except SchemaError:
            continue
        if table.unique is None:
            continue
        tables += 1
        matcher, length, tokens = mw.Matcher(table, VOCAB), rng.choice([10, 30, 60]), []
        while len(tokens) < length + 150:
            free = allowed(matcher)
            assert free, (schema, VOCAB.decode(tokens))
            if rng.random() < 0.25:
                assert free == [t for t in range(VOCAB.size) if matcher.copy().advance(t)], (
                    schema,
                    VOCAB.decode(tokens),
                )
            if free == [0] or (0 in free and (len(tokens) >= length or rng.random() < 0.3)):
                break
            choices = [t for t in free if t]
            likely = [t for t in choices if VOCAB.tokens[t] in (b"a", b'"', b"1", b",", b"]", b"b", b":", b"}", b"{")]
            across = [t for t in choices if t > 256]
            if len(tokens) >= length:
                choices = [
                    t for t in choices if VOCAB.tokens[t] in (b'"', b"]", b"}", b",", b":", b"a", b"b")
                ] or choices
            else:
                choices = rng.choice([likely, across, choices]) or choices
            tokens.append(rng.choice(choices))
            assert matcher.advance(tokens[-1]), (schema, VOCAB.decode(tokens))
        text = VOCAB.decode(tokens)
        if matcher.is_accepting and b"\\ud" not in text.lower():
            texts += 1
            assert jsonschema.Draft202012Validator(schema).is_valid(json.loads(text)), (schema, text)
    assert texts > 5


@pytest.mark.parametrize("keys", [
    {"propertyNames": {"pattern": "^[0-9]{2}$"}},
    {"patternProperties": {"^[0-9]{2}$": {}}, "additionalProperties": False},
])  # fmt: skip
def test_no_further_member_begins_where_all_keys_are_used_up(keys):
    table = mw.compile_json_schema({**OBJECT, **keys, "minProperties": 3}, VOCAB, whitespace="compact")
    matcher = mw.Matcher(table)
    used = random.Random(0).sample(range(100), 100)
    for at, key in enumerate(used):
        assert matcher.accept_tokens(written(f'{"," if at else "{"}"{key:02d}":1'))
        if at in (50, 98, 99):
            mask = np.unpackbits(matcher.mask().view(np.uint8), bitorder="little")
            assert np.flatnonzero(mask).tolist() == [t for t in range(VOCAB.size) if matcher.copy().advance(t)]
            assert matcher.copy().advance(written(",")[0]) == (at < 99)
    assert matcher.accept_tokens(written("}"))
