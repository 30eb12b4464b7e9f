"""Where free text in tags ends, against a reader that tries every reading."""

from __future__ import annotations

import json
import random
from collections import Counter
from typing import Any

import pytest

import maskwright as mw
from maskwright.compile.tags.build import compile_structural_tag
from tests.oracles.naive_tags import accepts
from tests.strategies.structural_tags import NAMES, random_tag, random_texts

TEXTS = 12  # of each tag


@pytest.fixture(scope="module")
def vocab() -> mw.Vocabulary:
    tokens = [b"", *(bytes([b]) for b in range(256)), b"", b""]
    return mw.Vocabulary.from_bytes(tokens, eos=0, special={"<|x|>": 257, "<|y|>": 258})


def written(text: str) -> list[int]:
    special = {character: 257 + i for i, character in enumerate(NAMES.values())}
    out: list[int] = []
    for character in text:
        out += [special[character]] if character in special else [1 + byte for byte in character.encode()]
    return out


def compare(seeds: range, vocab: mw.Vocabulary) -> Counter[str]:
    """Compare random tags with the naive reader, and return how many there were, and what came of them."""
    counts: Counter[str] = Counter()
    for seed in seeds:
        rng = random.Random(seed)
        tag = random_tag(rng)
        try:
            table = compile_structural_tag(tag, vocab, whitespace="compact")
        except mw.errors.ConstraintError:
            counts["refused"] += 1
            continue
        counts["tags"] += 1
        for text in random_texts(rng, tag, TEXTS):
            expected = accepts(tag, text, NAMES)
            counts[str(expected)] += 1
            assert table.accepts(written(text)) == expected, (seed, json.dumps(tag), text)
    return counts


@pytest.mark.long
def test_random_tags_read_what_trying_every_reading_does(vocab):
    counts = compare(range(300), vocab)
    assert counts["tags"] > 150, counts
    assert min(counts["True"], counts["False"]) > 300, counts


@pytest.mark.slow
@pytest.mark.parametrize("part", range(8))
def test_ten_thousand_random_tags_read_what_trying_every_reading_does(part, vocab):
    at = 1000 + 2500 * part
    counts = compare(range(at, at + 2500), vocab)
    assert counts["tags"] > 1250, counts
    assert min(counts["True"], counts["False"]) > 3000, counts


TRUE = {"type": "json_schema", "json_schema": {"type": "boolean"}}
NULL = {"type": "json_schema", "json_schema": {"type": "null"}}
ANY = {"type": "any_text"}
X = {"type": "const_string", "value": "x"}
CALL = {"type": "tag", "begin": "<j>", "content": TRUE, "end": "</j>"}
CALLS = {"type": "triggered_tags", "triggers": ["<j"], "tags": [CALL]}


def in_order(*elements: Any) -> dict[str, Any]:
    return {"type": "sequence", "elements": list(elements)}


@pytest.mark.parametrize(
    ("content", "right", "wrong"),
    [
        (in_order(TRUE, ANY, X), ["true</tx", "truex"], ["true</t>x", "trueax</t>x", "trueaxx"]),
        (in_order(CALLS, X), ["ax", "a<j>true</j>bx"], ["a</t>x", "a<j>true</j></t>x", "axx", "ax<j>true</j>x"]),
        ({"type": "repeat", "content": in_order(CALLS, X), "min": 1, "max": 2}, ["x", "axbx"], ["a</t>x", "ax</t>x"]),
        (in_order(ANY, {"type": "regex", "pattern": "[0-9]"}, ANY), ["a1b", "12"], ["a</t>1b", "a1</t>b"]),
        (in_order(TRUE, {"type": "regex", "pattern": "[</t>]*"}, NULL), ["true</tnull"], ["true</t>null"]),
    ],
)
def test_free_text_holds_neither_the_end_of_its_tag_nor_what_must_follow(content, right, wrong, vocab):
    tag = {"type": "tag", "begin": "<t>", "content": content, "end": "</t>"}
    table = compile_structural_tag(tag, vocab)
    for each in (table, table.to_table()):
        assert all(each.accepts(written(f"<t>{text}</t>")) for text in right)
        assert not any(each.accepts(written(f"<t>{text}</t>")) for text in wrong)


def test_free_text_before_a_tag_ends_where_the_tag_begins(vocab):
    for last in (CALL, {"type": "or", "elements": [CALL, {**CALL, "begin": "<k>"}]}, {"type": "plus", "content": CALL}):
        table = compile_structural_tag(in_order(ANY, last), vocab)
        for text, fits in (
            ("so: <j>true</j>", True),
            ("<j<j>true</j>", True),
            ("<j>1<j>true</j>", False),
            ("so", False),
        ):
            assert table.accepts(written(text)) == fits, text
    for more in ({}, {"excludes": ["<j>"]}):  # as the error says where the tag need not follow
        form = in_order({**ANY, **more}, {"type": "optional", "content": CALL})
        if not more:
            with pytest.raises(mw.errors.ConstraintError, match='"excludes" keeps'):
                compile_structural_tag(form, vocab)
            continue
        table = compile_structural_tag(form, vocab)
        for text, fits in (("so: <j>true</j>", True), ("so", True), ("<j>", False), ("<j>true</j>so", False)):
            assert table.accepts(written(text)) == fits, text


def test_an_end_that_goes_on_from_one_part_into_the_next_is_seen_or_refused_by_name(vocab):
    less = {"type": "const_string", "value": "<"}
    tag = {"type": "tag", "begin": "<t>", "end": "</t>"}
    table = compile_structural_tag({**tag, "content": in_order(CALL, less, ANY)}, vocab)
    assert table.accepts(written("<t><j>true</j></t</t>"))
    assert not table.accepts(written("<t><j>true</j></t>a</t>"))
    either = {"type": "or", "elements": [TRUE, less]}
    twice = {"type": "repeat", "content": either, "min": 2, "max": 2}
    for content, right, wrong in (
        (in_order(less, CALLS), ["<", "</t", "<<j>true</j>/t>a"], ["</t>", "</t>a", "</t><j>true</j>", "a"]),
        (in_order(either, CALLS), ["true/t>", "</t", "true<j>true</j>/t>"], ["</t>", "</t>a", "true</t>a"]),
        (in_order(twice, CALLS), ["<<", "<true/t>", "<<true<j>true</j>"], ["true</t>a", "<", "<</t>"]),
    ):
        table = compile_structural_tag({**tag, "content": content}, vocab)
        for each in (table, table.to_table()):
            assert all(each.accepts(written(f"<t>{text}</t>")) for text in right), content
            assert not any(each.accepts(written(f"<t>{text}</t>")) for text in wrong), content
    for content in ({"type": "plus", "content": CALLS}, {"type": "repeat", "content": CALLS, "min": 0, "max": 10**6}):
        with pytest.raises(mw.errors.ConstraintError, match="may begin in one part of the content") as found:
            compile_structural_tag({**tag, "content": content}, vocab)
        assert (found.value.pointer, len(found.value.remedies)) == ("/content", 1)
    ends = {"type": "or", "elements": [{**CALL, "begin": "ab"}, {**CALL, "begin": "b"}]}
    with pytest.raises(mw.errors.ConstraintError, match="share letters") as found:
        compile_structural_tag(in_order(ANY, ends), vocab)
    assert (found.value.pointer, len(found.value.remedies)) == ("/elements/0", 1)
