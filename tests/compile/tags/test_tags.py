"""Text with tags: what is read, and what tables hold, against looking for triggers and ends in strings."""

from __future__ import annotations

import json
import pickle
import random
from typing import Any

import numpy as np
import pytest

import maskwright as mw
from maskwright.automata.budget import Budget
from maskwright.compile.bind import link
from maskwright.compile.grammar import build as grammars
from maskwright.compile.grammar.build import compile_form
from maskwright.compile.grammar.form import Grammar
from maskwright.compile.grammar.special_tokens import VALUE, replaced, spelt
from maskwright.compile.json_schema.request import request
from maskwright.compile.tags.build import compile_structural_tag
from maskwright.compile.tags.reading import read_tags
from maskwright.compile.tags.tagged_text import SpecialToken, Tag, TaggedText, plain
from maskwright.compile.tags.value_machine import Symbols
from maskwright.compile.tags.values import compile_values, node_of, with_rules
from tests.oracles.naive_tags import SPECIAL, accepts

NAMES = {"<|x|>": SPECIAL[0], "<|y|>": SPECIAL[1], "<t>": SPECIAL[2]}  # the last has bytes
LONGER = [
    b"<a",
    b"a>",
    b"</",
    b"</a>",
    b"><",
    b"ab",
    b'"<',
    b'"</a',
    b"}</a>b",
    b'{"',
    b'":',
    b"1<",
    b"12",
    b"<<",
    b"b<a>1",
]
LONGER += [b'"tx', b'"t', b"1t", b"]tx<", b"}ab<a>"]
FIRST = 257 + len(LONGER)


@pytest.fixture(scope="module")
def vocab() -> mw.Vocabulary:
    tokens = [b"", *(bytes([b]) for b in range(256)), *LONGER, b"", b"", b"<t>"]
    special = {"<|x|>": FIRST, "<|y|>": FIRST + 1}
    return mw.Vocabulary.from_bytes(tokens, eos=0, special=special, names={"<t>": FIRST + 2})


def written(text: str, rng: random.Random | None = None) -> list[int]:
    """Return tokens for a text, single bytes or, by chance, longer ones."""
    out: list[int] = []
    data = text
    while data:
        if data[0] in SPECIAL:
            out.append(FIRST + SPECIAL.index(data[0]))
            data = data[1:]
            continue
        fitting = [i for i, token in enumerate(LONGER) if data.startswith(token.decode())]
        if rng is not None and fitting and rng.random() < 0.7:
            at = rng.choice(fitting)
            out.append(257 + at)
            data = data[len(LONGER[at]) :]
            continue
        out += [1 + byte for byte in data[0].encode()]
        data = data[1:]
    return out


def allowed(matcher: mw.Matcher, size: int) -> set[int]:
    mask = matcher.mask()
    return {i for i in range(size) if mask[i >> 5] >> (i & 31) & 1}


def by_machine(tag: dict[str, Any], vocab: mw.Vocabulary) -> mw.TransitionTable:
    """Return the table by way of the machine of JSON, also where there is none."""
    meter = Budget().begin()
    reading = read_tags(plain(tag), meter, vocab)
    grammar, marked = spelt(reading.grammar, vocab, reading.tokens)
    return compile_values(grammar, reading.schemas, marked, request(True, whitespace="compact"), meter)


def by_rules(tag: dict[str, Any], vocab: mw.Vocabulary) -> mw.TransitionTable:
    """Return the table by way of a grammar in which JSON values are rules, also where there is no need of one."""
    meter = Budget().begin()
    reading = read_tags(plain(tag), meter, vocab)
    grammar, marked = spelt(reading.grammar, vocab, reading.tokens)
    asked = request(True, whitespace="compact")
    symbols = Symbols()
    nodes = {f"{VALUE}{j}": node_of(schema, symbols, asked, meter)[0] for j, schema in enumerate(reading.schemas)}
    rules = {name: replaced(body, nodes) for name, body in grammar.rules.items()}
    form = with_rules(Grammar(rules, grammar.start), symbols, asked, meter)
    return compile_form(form, marked, source="rules", meter=meter)


# ------------------------------------------------------------------------------------------------ random formats

PLAIN: list[dict[str, Any]] = [
    {"type": "regex", "pattern": "[ab<]*"},
    {"type": "regex", "pattern": "(ab|</?)*"},
    {"type": "const_string", "value": "ab"},
    {"type": "any_text"},
    {"type": "any_text", "excludes": ["ab"]},
    {"type": "any_text", "max_chars": 2},
]
MEMBER = {
    "type": "object",
    "properties": {"a": {"type": "string", "maxLength": 2}},
    "required": ["a"],
    "additionalProperties": False,
}
SCHEMAS: list[Any] = [
    {"type": "integer", "minimum": 0},
    {"enum": ["a", "ab", 1]},
    MEMBER,
    {"type": "string", "pattern": "^[ab<]*$"},
    {"type": "array", "items": {"type": ["string", "boolean"]}, "maxItems": 2},
]
VALUES: list[dict[str, Any]] = [{"type": "json_schema", "json_schema": schema} for schema in SCHEMAS]
BEGINS: list[Any] = ["<a>", "<b>", "<a", "<ab>", {"type": "token", "token": "<|x|>"}]
ENDS: list[Any] = ["</a>", "</", "<", ["</a>", "b"], ["", "b"], "", "tx"]
ENDS += [{"type": "token", "token": "<|y|>"}, {"type": "token", "token": "<t>"}]


def a_tag(rng: random.Random, contents: list[dict[str, Any]], deep: int) -> dict[str, Any]:
    content = rng.choice(contents)
    if deep and rng.random() < 0.2:
        content = some_tags(rng, contents, deep - 1)
    elif rng.random() < 0.2:
        content = {"type": "sequence", "elements": [{"type": "const_string", "value": rng.choice("ab")}, content]}
    return {"type": "tag", "begin": rng.choice(BEGINS), "content": content, "end": rng.choice(ENDS)}


def some_tags(rng: random.Random, contents: list[dict[str, Any]], deep: int) -> dict[str, Any]:
    tags = [a_tag(rng, contents, deep) for _ in range(rng.randint(1, 2))]
    low = rng.choice([0, 0, 1, 2])
    out: dict[str, Any] = {"type": "triggered_tags", "tags": tags, "at_least": low}
    if rng.random() < 0.5:
        out["at_most"] = low + rng.randint(0, 1)
    if low < 2:
        out["stop_after_first"] = rng.random() < 0.2
        out["at_least_one"] = rng.random() < 0.2 and out.get("at_most") != 0
    if rng.random() < 0.2:
        return {**out, "type": "tags_with_separator", "separator": rng.choice(["", "b", "<"])}
    begins = [tag["begin"] for tag in tags if isinstance(tag["begin"], str)]
    out["triggers"] = begins if rng.random() < 0.5 else sorted({begin[: rng.randint(1, 2)] for begin in begins})
    out["excludes"] = rng.choice([[], [], ["ab"]])
    return out


def a_format(rng: random.Random, contents: list[dict[str, Any]], deep: int) -> dict[str, Any]:
    """Return a format of any kind."""
    kind = rng.choice(["tags", "tags", "tag", "content", "sequence", "or", "times"])
    if kind == "tags" or deep == 0:
        return some_tags(rng, contents, 1)
    if kind == "tag":
        return a_tag(rng, [*contents, a_format(rng, contents, deep - 1)], 0)
    if kind == "content":
        return rng.choice(contents)
    if kind in ("sequence", "or"):
        return {"type": kind, "elements": [a_format(rng, contents, deep - 1) for _ in range(rng.randint(1, 3))]}
    times = rng.choice(["optional", "plus", "star", "repeat"])
    out: dict[str, Any] = {"type": times, "content": a_format(rng, contents, deep - 1)}
    return {**out, "min": 1, "max": 2} if times == "repeat" else out


def a_text(rng: random.Random, tag: dict[str, Any]) -> str:
    """Return a text that may be a member: pieces of tags in some order, or tags as they are meant."""

    def name(part: Any) -> str:
        part = rng.choice(part) if isinstance(part, list) else part
        return part if isinstance(part, str) else NAMES[part["token"]]

    def inside(part: dict[str, Any]) -> str:
        kind = part["type"]
        if kind == "json_schema":
            return rng.choice(["1", "12", '"a"', '"ab"', '{"a":"b"}', '{"a":"<"}', '["a",true]', "[]", '"<a"', "0"])
        if kind == "sequence":
            return "".join(map(inside, part["elements"]))
        if kind == "tag":
            return name(part["begin"]) + inside(part["content"]) + name(part["end"])
        if kind in ("triggered_tags", "tags_with_separator"):
            between = part.get("separator")
            out = ""
            for i in range(rng.choice([0, 1, 1, 2, 3])):
                out += (between if i else "") if between is not None else rng.choice(["", "b", "<", "é", "a<"])
                out += inside({**rng.choice(part["tags"]), "type": "tag"})
            return out + (rng.choice(["", "b", "<", "<a"]) if between is None else "")
        if kind == "or":
            return inside(rng.choice(part["elements"]))
        if kind in ("optional", "plus", "star", "repeat"):
            return "".join(inside(part["content"]) for _ in range(rng.choice([0, 1, 1, 2])))
        return part.get("value") or rng.choice(["", "a", "ab", "<", "</", "ab<", "b"])

    text = inside(tag["format"])
    for _ in range(rng.choice([0, 0, 0, 1, 2])):
        at = rng.randint(0, len(text))
        put = rng.choice(["", "a", "<", ">", "</a>", "b", '"', SPECIAL[0], SPECIAL[2]])
        text = text[:at] + put + text[at + rng.randint(0, 2) :]
    return text


@pytest.mark.long
@pytest.mark.parametrize("part", [0, 1, *(pytest.param(part, marks=pytest.mark.slow) for part in (2, 3))])
@pytest.mark.parametrize("kind", ["plain", "values"])
def test_random_tags_allow_what_looking_for_triggers_and_ends_says(kind, part, vocab, monkeypatch):
    """Membership, masks against single bytes, arrays against what is read as it is, both ways down where both are."""
    if part % 2:  # rows as wide as those of large vocabularies, which have bases
        monkeypatch.setattr(link, "VERY_WIDE", 3)
    members = others = made = 0
    for seed in range(25 * part, 25 * part + 25):
        rng = random.Random(f"{kind}{seed}")
        make = some_tags if seed % 2 else a_format
        tag = {"type": "structural_tag", "format": make(rng, PLAIN + VALUES if kind == "values" else PLAIN, 2)}
        try:
            table = compile_structural_tag(tag, vocab, whitespace="compact")
        except mw.errors.ConstraintError:
            continue
        made += 1
        tables = [table]
        tables.append((by_machine if kind == "plain" else by_rules)(tag, vocab))
        texts = {a_text(rng, tag) for _ in range(40)}
        tokens = {text: written(text, rng) for text in texts}
        # a token that has bytes is text where it is not named
        spoken = SPECIAL[2] if '"<t>"' in json.dumps(tag) else "<t>"
        expected = {text: accepts(tag, text.replace(SPECIAL[2], spoken), NAMES) for text in texts}
        members += sum(expected.values())
        others += len(texts) - sum(expected.values())
        for each in tables:
            for text in texts:
                assert each.accepts(written(text)) == expected[text], (seed, tag, text)
                assert each.accepts(tokens[text]) == expected[text], (seed, tag, text)
        walked = sorted(text for text in texts if expected[text])[:3]
        for each in tables:
            for text in walked:
                check_masks(each, vocab, tokens[text])
        whole = [mw.Matcher(each) for each in tables]  # these read what was there before
        for each in tables:
            each.to_table()
            assert {t for t in texts if each.accepts(tokens[t])} == {t for t in texts if expected[t]}, (seed, tag)
        whole += [mw.Matcher(each) for each in tables]
        for text in walked:
            for token in tokens[text]:
                masks = {each.mask().tobytes() for each in whole}
                assert len(masks) == 1, (seed, tag, text)
                assert all(each.advance(token) for each in whole)
            for each in whole:
                each.reset()
    assert made > 8, made
    assert members > 40, members
    assert others > 40, others


def check_masks(table: mw.TransitionTable, vocab: mw.Vocabulary, tokens: list[int]) -> None:
    """Compare each mask along a text with what its tokens' bytes lead to, one by one."""
    matcher = mw.Matcher(table)
    for token in [*tokens, None]:
        bits = allowed(matcher, vocab.size)
        for i in range(257, vocab.size):
            if i >= FIRST:
                assert (i in bits) == matcher.copy().advance(i)
                continue
            single = matcher.copy()
            assert (i in bits) == all(single.advance(1 + byte) for byte in vocab.tokens[i]), vocab.tokens[i]
        for i in range(1, 257):
            assert (i in bits) == matcher.copy().advance(i)
        assert (0 in bits) == matcher.is_accepting
        if token is not None:
            assert matcher.advance(token)


# ------------------------------------------------------------------------------------------------ forms of input

TOOL = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
CALL = '<tool>{"city": "Rome"}</tool>'


def test_the_forms_of_a_structural_tag_mean_the_same(vocab):
    older = {
        "type": "structural_tag",
        "structures": [{"begin": "<tool>", "schema": TOOL, "end": "</tool>"}],
        "triggers": ["<tool"],
    }
    content = {"type": "json_schema", "json_schema": TOOL}
    tags = [{"type": "tag", "begin": "<tool>", "content": content, "end": "</tool>"}]
    newer = {"type": "structural_tag", "format": {"type": "triggered_tags", "triggers": ["<tool"], "tags": tags}}
    ours = TaggedText([Tag("<tool>", "</tool>", schema=TOOL)], triggers=["<tool"])
    texts = {"": True, "so " + CALL: True, CALL + "." + CALL: True, "<tool": False, "<too": True, CALL[:-1]: False}
    for source in (older, json.dumps(older), newer, json.dumps(newer), newer["format"], ours):
        table = compile_structural_tag(source, vocab)
        assert {text: table.accepts(written(text)) for text in texts} == texts
        assert table.vocabulary == vocab.fingerprint
    sources = {compile_structural_tag(each, vocab).source for each in (newer, json.dumps(newer))}
    assert len(sources) == 1
    assert compile_structural_tag(newer, vocab, whitespace="compact").source not in sources


def test_at_least_and_at_most_so_many_tags_are_written(vocab):
    tag = Tag("<a>", "</a>", regex="b*")
    one = "<a>b</a>"
    for low, high, stop in (
        (0, None, False),
        (1, None, False),
        (2, 3, False),
        (0, 1, False),
        (1, 1, True),
        (0, 1, True),
    ):
        table = compile_structural_tag(TaggedText([tag], at_least=low, at_most=high, stop=stop), vocab)
        for count in range(5):
            fits = low <= count and (high is None or count <= high)
            assert table.accepts(written(one * count)) == fits, (low, high, stop, count)
            assert table.accepts(written(one * count + " so")) == (fits and not (stop and count)), (
                low,
                high,
                stop,
                count,
            )


def test_grammars_stand_in_tags_and_keep_what_they_ignore(vocab):
    nested = Tag("<g>", "</g>", grammar='start: "(" start ")" | "a"\n%ignore " "')
    table = compile_structural_tag(TaggedText([nested]), vocab)
    texts = {"x y<g>( (a) )</g> (": True, "<g>((a)</g>": False, "<g>a </g><g> a</g>": True, "<g></g>": False}
    assert {text: table.accepts(written(text)) for text in texts} == texts
    regular = {"type": "grammar", "grammar": 'root ::= "a" root | "b"'}
    tags = [
        {"begin": "<g>", "content": regular, "end": "</g>"},
        {"begin": "<j>", "content": {"type": "json_schema", "json_schema": {"type": "boolean"}}, "end": "</j>"},
    ]
    both = {"type": "triggered_tags", "triggers": ["<g>", "<j>"], "tags": tags}
    table = compile_structural_tag(both, vocab)
    texts = {"<g>aab</g><j>true</j>": True, "<g>aa</g>": False, "<j>b</j>": False}
    assert {text: table.accepts(written(text)) for text in texts} == texts


def test_numbers_end_where_the_end_of_their_tag_begins(vocab):
    tag = {"begin": "<a>", "content": {"type": "json_schema", "json_schema": {"type": "number"}}, "end": "</a>"}
    last = {"type": "sequence", "elements": [{"type": "const_string", "value": "n="}, tag["content"]]}
    for table in (compile_structural_tag({"type": "tag", **tag}, vocab), compile_structural_tag(last, vocab)):
        reader = mw.Matcher(table)
        for token in written("<a>1" if table.accepts(written("<a>1</a>")) else "n=1"):
            assert reader.advance(token)
        assert reader.is_accepting == (not table.accepts(written("<a>1</a>")))
        table.to_table()
        assert table.accepts(written("<a>-1.5e3</a>")) != table.accepts(written("n=-1.5e3"))
        assert not table.accepts(written("n=1."))


def test_a_matcher_goes_back_in_and_out_of_tags(vocab):
    table = compile_structural_tag(TaggedText([Tag("<tool>", SpecialToken("<|y|>"), schema=TOOL)]), vocab)
    tokens = written("so <tool>") + written('{"city": "Rome"}') + written(SPECIAL[1] + "!")
    matcher = mw.Matcher(table, vocab)
    masks = []
    for token in tokens:
        masks.append(matcher.mask().tobytes())
        assert matcher.advance(token)
    assert matcher.is_accepting
    for n in range(len(tokens) - 1, -1, -1):
        matcher.rollback(1)
        assert matcher.mask().tobytes() == masks[n]
    for token in written("<tool>{"):
        assert matcher.advance(token)
    assert matcher.forced_text() == b'"city":' or matcher.forced_text() == b""
    for token in written('"city": "a"}'):
        assert matcher.advance(token)
    assert allowed(matcher, vocab.size) == {FIRST + 1}


def test_tables_can_be_pickled_and_saved(vocab, tmp_path):
    table = compile_structural_tag(TaggedText([Tag(SpecialToken("<t>"), "</", schema=TOOL)]), vocab)
    again = pickle.loads(pickle.dumps(table))
    assert again.vocabulary == vocab.fingerprint
    table.to_table().save(tmp_path / "tags.table")
    read = mw.TransitionTable.load(tmp_path / "tags.table", vocabulary=vocab)
    for each in (again, read):
        assert each.accepts(written(SPECIAL[2] + '{"city": "a"}</ ok'))
        assert not each.accepts(written(SPECIAL[2]))
        assert each.accepts(written("<t>"))


def test_a_processor_keeps_generated_text_within_tags(vocab):
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from maskwright.runtime.integrations.processor import ConstraintLogitsProcessor

    tag = Tag("<a>", "</a>", schema={"enum": ["a", "b"]})
    table = compile_structural_tag(TaggedText([tag], at_least=1, stop=True), vocab)
    processor = ConstraintLogitsProcessor(table, max_tokens=40)
    rng = np.random.default_rng(0)
    ids = torch.zeros(4, 1, dtype=torch.long)
    for _ in range(41):
        logits = torch.tensor(rng.normal(size=(4, vocab.size)), dtype=torch.float32)
        logits[:, 257:] += 2
        ids = torch.cat((ids, processor(ids, logits).argmax(1, keepdim=True)), 1)
    for row in ids[:, 1:].tolist():
        text = vocab.decode([i for i in row if i]).decode(errors="replace")
        assert text.endswith(('<a>"a"</a>', '<a>"b"</a>'))


# ------------------------------------------------------------------------------------------------ special tokens


def test_a_token_that_is_named_is_itself_and_its_text_by_others_is_text(vocab):
    table = compile_structural_tag(
        TaggedText([Tag(SpecialToken("<t>"), SpecialToken("<|y|>"), regex="[a-z<>]*")]), vocab
    )
    inside = written(SPECIAL[2] + "a<t>" + SPECIAL[1])
    for each in (table, table.to_table()):
        assert each.accepts(written("a<t>b"))
        assert each.accepts([*inside, *written("<t>")])
        assert not each.accepts(written(SPECIAL[2]))
        assert not each.accepts([*inside[:-1], FIRST + 2, inside[-1]])


def test_vocabularies_without_the_named_token_say_which_they_know(vocab):
    with pytest.raises(
        mw.errors.ConstraintError, match=r"no special token of the name '<\|z\|>': did you mean .*'<\|x\|>'"
    ):
        compile_structural_tag(TaggedText([Tag(SpecialToken("<|z|>"), "x", regex="a")]), vocab)
    other = mw.Vocabulary.from_bytes([b"", *(bytes([b]) for b in range(256))], eos=0)
    with pytest.raises(mw.errors.ConstraintError, match="it knows none"):
        compile_structural_tag(TaggedText([Tag(SpecialToken("<|z|>"), "x", regex="a")]), other)
    by_id = {"type": "tag", "begin": {"type": "token", "token": 99999}, "content": {"type": "any_text"}, "end": "x"}
    with pytest.raises(mw.errors.ConstraintError, match="outside the vocabulary"):
        compile_structural_tag(by_id, vocab)


def test_tokens_by_id_are_those_by_name(vocab):
    def tag(begin: Any) -> dict[str, Any]:
        content = {"type": "json_schema", "json_schema": TOOL}
        return {"type": "token_triggered_tags", "trigger_tokens": [begin], "tags": [
            {"begin": {"type": "token", "token": begin}, "content": content, "end": {"type": "token", "token": "<|y|>"}}
        ]}  # fmt: skip

    text = written("a" + SPECIAL[0] + '{"city": "x"}' + SPECIAL[1])
    for table in (compile_structural_tag(tag("<|x|>"), vocab), compile_structural_tag(tag(FIRST), vocab)):
        assert table.accepts(text)
        assert not table.accepts(text[:-1])


# ------------------------------------------------------------------------------------------------------- errors


ANY = {"begin": "<a>", "content": {"type": "any_text"}, "end": "</a>"}


def triggered(**more: Any) -> dict[str, Any]:
    return {"type": "structural_tag", "format": {"type": "triggered_tags", "triggers": ["<a"], "tags": [ANY], **more}}


def a_tagged(content: Any, end: Any = "</a>", begin: Any = "<a>") -> dict[str, Any]:
    tag = {"begin": begin, "content": content, "end": end}
    return {"type": "structural_tag", "format": {"type": "triggered_tags", "triggers": ["<a"], "tags": [tag]}}


def nested(levels: int) -> dict[str, Any]:
    value: dict[str, Any] = {"type": "const_string", "value": "a"}
    for level in range(levels - 1):
        value = (
            {"type": "sequence", "elements": [value]}
            if level % 2
            else {"type": "tag", "begin": "(", "content": value, "end": ")"}
        )
    return value


ANY_TEXT = {"type": "any_text"}
NUMBER = {"type": "json_schema", "json_schema": {"type": "number"}}
X: dict[str, Any] = {"type": "token", "token": "<|x|>"}
BY_TOKEN = {"type": "token_triggered_tags", "tags": [{"begin": X, "content": ANY_TEXT, "end": "</a>"}]}
WITHIN = {"type": "triggered_tags", "triggers": ["</"], "tags": [{"begin": "</b>", "content": NUMBER, "end": ";"}]}


def value_or(schema: Any, text: str) -> dict[str, Any]:
    either = [{"type": "json_schema", "json_schema": schema}, {"type": "const_string", "value": text}]
    return {"type": "or", "elements": either}


ERRORS: list[tuple[Any, str]] = [
    ('{"type": ', "malformed JSON"),
    ({"type": "structural_tag"}, "/: 'format' is missing"),
    ({"type": "structural_tag", "format": {"type": "html"}}, "/format: the format the string \"html\" is not known"),
    ({"type": "structural_tag", "format": 3}, "/format: a format is an object, not 3"),
    ({"type": "structural_tag", "structures": [], "triggers": []}, "/structures: the list is empty"),
    ({"type": "structural_tag", "structures": [{"begin": "<", "schema": {}}], "triggers": []}, "/structures/0: 'end'"),
    (triggered(trigger=1), "/format: 'trigger' is not known here: it may have at_least"),
    (triggered(triggers=["<b"]), "/format/tags/0/begin: no trigger is the beginning of '<a>'"),
    (triggered(triggers=["<a", "<b"]), "/format/triggers: no tag begins with the trigger '<b'"),
    (
        triggered(triggers=["<b>", "x<b>y"], tags=[{**ANY, "begin": "<b>"}, {**ANY, "begin": "x<b>y"}]),
        "/format/tags/1/begin: its trigger 'x<b>y' never occurs: '<b>' occurs within it first",
    ),
    (triggered(triggers="<a"), "/format/triggers: a list is needed"),
    (triggered(triggers=[""]), "/format/triggers/0: the text is empty"),
    (triggered(at_least=2, at_most=1), "/format/at_most: at most 1 tags are fewer than at least 2"),
    (triggered(at_least=-1), "/format/at_least: a count, 0 or more, is needed, not -1"),
    (triggered(at_least_one=1), "/format/at_least_one: true or false is needed, not 1"),
    (triggered(at_least=2, stop_after_first=True), "the first tag cannot be the last of at least 2"),
    (triggered(excludes=["<a"]), "cannot be a trigger and excluded as well"),
    (a_tagged({"type": "qwen_xml_parameter", "json_schema": {"type": "null"}}), "parameters are an object, and the"),
    (a_tagged({**NUMBER, "style": "hermes"}), "/content/style: the style is one of json, qwen_xml, .*, not the string"),
    (a_tagged({"type": "any_text", "max_tokens": 3}), "/content/max_tokens: tokens within a text are not counted"),
    (a_tagged({"type": "regex", "pattern": "(a"}), "(?s)^/format/tags/0/content/pattern: .*\\^"),
    (a_tagged({"type": "regex", "pattern": "a", "flags": 3}), "/content/flags: a text is needed"),
    (a_tagged({"type": "regex", "pattern": "a", "flags": "q"}), "/content/flags: .*letters out of"),
    (a_tagged({"type": "regex", "pattern": "</a>"}), "/format/tags/0/content: .*occurs within it first"),
    (a_tagged({"type": "grammar", "grammar": "root ::= ("}), "^/format/tags/0/content/grammar, line 1, column"),
    (a_tagged({"type": "json_schema", "json_schema": {"type": "strin"}}), "/format/tags/0/content/json_schema/type: "),
    (a_tagged({"type": "json_schema", "json_schema": {"pattern": "(a"}}), "/content/json_schema/pattern: "),
    (a_tagged(NUMBER, "1"), "/content/json_schema: the schema allows a number, .* '1' may follow"),
    (a_tagged(NUMBER, ""), "the schema allows a number"),
    (a_tagged({"type": "any_text"}, "</a>", ""), "/format/tags/0/begin: no trigger is the beginning of ''"),
    (a_tagged({"type": "any_text"}, {"type": "tok"}), "/format/tags/0/end"),
    (a_tagged({"type": "any_text"}, {"token": "<|z|>"}), "^/format/tags/0/end/token: .* no special token of the name"),
    (a_tagged({"type": "any_text"}, {"token": 10**6}), "^/format/tags/0/end/token: token 1000000 is outside"),
    (a_tagged({"type": "any_text"}, {"token": 5}), "^/format/tags/0/end/token: token 5 is the single byte"),
    (
        {"type": "tag", "begin": {"token": 0}, "content": ANY_TEXT, "end": "</a>"},
        "a token that ends a text stands where more must follow",
    ),
    (a_tagged({"type": "any_text", "max_chars": 10**20}), "/format/tags/0/content/max_chars: the most is"),
    (a_tagged({**NUMBER, "excludes": 0}), "/format/tags/0/content/excludes: a list is needed"),
    (a_tagged({"type": "grammar", "grammar": "root ::= root"}), "/grammar, line 1, column 1: a rule derives no"),
    (a_tagged({"type": "repeat", "content": ANY_TEXT, "min": 0, "max": -1.0}), "/content/max: a count, 0 or more"),
    ("[]", "/: a structural tag is an object, not the array"),
    (TaggedText([Tag("<", "</", regex="a")], excludes="foo"), "/format/excludes: a list is needed"),
    (TaggedText([Tag("<", "</", regex="a")], triggers=5), "/format/triggers: a list is needed"),
    (nested(65), "^/: formats stand within each other more than 64 deep"),
    (a_tagged({"type": "sequence", "elements": [{"type": "any_text"}, NUMBER]}), "where this JSON value begins, other"),
    (
        {"type": "or", "elements": [{"type": "json_schema", "json_schema": {"const": v}} for v in ("a", "b")]},
        "/elements/1/json_schema: this JSON value and that of /elements/0/json_schema may begin",
    ),
    (
        {**BY_TOKEN, "trigger_tokens": ["<|x|>", "<|y|>"]},
        "/trigger_tokens: '<\\|y\\|>' must be a trigger and the begin",
    ),
    ({**BY_TOKEN, "trigger_tokens": []}, "/trigger_tokens: '<\\|x\\|>' must be a trigger and the begin"),
    (
        {**BY_TOKEN, "trigger_tokens": ["<|x|>"], "exclude_tokens": ["<|y|>"]},
        "/exclude_tokens: free text has no special",
    ),
    (a_tagged(WITHIN), "/content/triggers: the end of the tag around, '</a>', never occurs"),
    (a_tagged({**WITHIN, "triggers": ["</a>"], "tags": [{**WITHIN["tags"][0], "begin": "</a>"}]}),
     "/content/triggers: '</a>' cannot be a trigger and an end as well"),
    (a_tagged({"type": "repeat", "content": ANY_TEXT, "min": 2, "max": 1}), "/content/max: at most 1 times"),
    (a_tagged({**NUMBER, "any_order": 1}), "/content/any_order: true or false"),
    (a_tagged({"type": "regex", "pattern": "a[^\\s\\S]"}), "/content/pattern: the pattern matches nothing"),
    (
        {"type": "sequence", "elements": [NUMBER, NUMBER]},
        "/elements/0/json_schema: the schema allows a number, and nothing",
    ),
    (value_or({"const": True}, "tx"), "other text may go on with 't'"),
    (value_or({"type": "array"}, "[x"), "other text may go on with '\\['"),
    (value_or({"type": "object"}, "{x"), "other text may go on with '{'"),
    (
        {"type": "tag", "begin": {"type": "token", "token": -1}, "content": ANY_TEXT, "end": "x"},
        "/begin/token: token -1 is outside the vocabulary",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("tag", "message"), ERRORS, ids=range(len(ERRORS)))
def test_errors_say_where_and_what(tag, message, vocab):
    with pytest.raises(mw.errors.ConstraintError, match=message):
        compile_structural_tag(tag, vocab)


def test_arguments_of_another_kind_are_type_errors(vocab):
    with pytest.raises(TypeError, match="a TaggedText, a dict or JSON text, not list"):
        compile_structural_tag([], vocab)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="of the class Tag"):
        compile_structural_tag(TaggedText([{}]), vocab)  # type: ignore[list-item]
    with pytest.raises(mw.errors.ConstraintError, match="has schema and regex: give one of"):
        compile_structural_tag(TaggedText([Tag("<", ">", schema=True, regex="a")]), vocab)


def test_formats_stand_within_each_other_as_deep_as_is_said(vocab):
    assert compile_structural_tag(nested(64), vocab).accepts(written("(" * 32 + "a" + ")" * 32))
    within = {"type": "sequence", "elements": []}
    within["elements"].append(within)
    for compile_it in (
        lambda: compile_structural_tag(within, vocab),
        lambda: mw.Cache(vocab).compile_structural_tag(within),
    ):
        with pytest.raises(mw.errors.ConstraintError, match="or one within itself"):
            compile_it()


def test_what_looks_for_long_texts_is_within_the_budget(vocab):
    long = {"type": "any_text", "excludes": ["xy" * 500_000]}
    with pytest.raises(mw.errors.BudgetError, match="triggers and ends"):
        compile_structural_tag(long, vocab, budget=Budget(bytes=100_000_000))


def test_a_tag_that_nothing_begins_is_one_where_it_stands(vocab):
    """Reasoning that the prompt has begun, as XGrammar's own formats have it."""
    thought = {"type": "tag", "begin": "", "content": {"type": "any_text", "excludes": ["<a>"]}, "end": "</a>"}
    table = compile_structural_tag({"type": "sequence", "elements": [thought, {"type": "any_text"}]}, vocab)
    for text, right in (("b</a>b", True), ("</a>", True), ("b", False), ("<a></a>", False), ("</a><a>", True)):
        assert table.accepts(written(text)) == right


def test_of_ends_at_one_place_the_longer_says_what_the_content_is(vocab):
    """Of "ab" and "b" the former counts where both end, so that "xa" is no content there."""
    for content, text, right in (("xa", "xab", False), ("x", "xab", True), ("x", "xb", True), ("xa?", "xab", True)):
        tag = {"type": "tag", "begin": "<", "content": {"type": "regex", "pattern": content}, "end": ["ab", "b"]}
        assert compile_structural_tag(tag, vocab).accepts(written("<" + text)) == right


def test_equal_schemas_are_one_wherever_they_stand(vocab):
    def tags(*schemas: Any) -> dict[str, Any]:
        made = [{"begin": "<a>", "content": {"type": "json_schema", "json_schema": x}, "end": f"</{i}>"}
                for i, x in enumerate(schemas)]  # fmt: skip
        return {"type": "triggered_tags", "triggers": ["<a>"], "tags": made}

    same, cache = {"type": "null"}, mw.Cache(vocab)
    for compile_it in (lambda x: compile_structural_tag(x, vocab), cache.compile_structural_tag):
        for source in (tags(same, dict(same)), tags(same, same), json.dumps(tags(same, same))):
            table = compile_it(source)
            assert table.accepts(written("<a>null</1>"))
            assert not table.accepts(written("<a>null</2>"))


@pytest.mark.parametrize("text", [{}, {"begin": "<a>", "content": {"type": "regex", "pattern": "[ab]*"}, "end": "b"}])
def test_names_of_tokens_count_in_what_a_cache_keeps(text, tmp_path):
    """Two vocabularies that spell the same, and call two tokens by each other's names."""
    words = [b"", *(bytes([b]) for b in range(256)), b"", b""]
    ways = [{"<|t|>": 257, "<|u|>": 258}, {"<|t|>": 258, "<|u|>": 257}]
    begin = {"type": "token", "token": "<|t|>"}
    content = text.get("content", {"type": "json_schema", "json_schema": {"type": "null"}})
    tag = {"type": "tag", "begin": begin, "content": content, "end": "b"}
    for names in ways:
        named = mw.Vocabulary.from_bytes(words, eos=0, special=names)
        cache = mw.Cache(named, directory=tmp_path)
        for table in (cache.compile_structural_tag(tag), cache.compile_grammar('start: <|t|> "a"')):
            table.to_table()
            assert [mw.Matcher(table).advance(i) for i in (257, 258)] == [names["<|t|>"] == i for i in (257, 258)]


@pytest.mark.parametrize(
    "source", [{"type": "const_string", "value": "ab"}, {"type": "any_text", "max_chars": 3}, 'start: "a" | "ab"']
)
@pytest.mark.parametrize("is_whole", [False, True])
def test_lazy_tables_of_bounded_texts_can_be_pickled(source, is_whole, vocab):
    made = mw.compile_grammar(source, vocab) if isinstance(source, str) else compile_structural_tag(source, vocab)
    other = pickle.loads(pickle.dumps(made.to_table() if is_whole else made)).to_table()
    whole = made.to_table()
    assert (other.min_length, other.max_length) == (whole.min_length, whole.max_length)
    assert other.accepts(written("ab"))


ADJACENT = [{"type": "string"}, {"type": ["string", "null"]}, {"type": "array", "items": {"type": "integer"}}]
BESIDE = [b'""', b"][", b"}{", b'"n', b'l"', b'"[', b'"}', b"]1", b'"  "', b'"\n"', b"null", b"tt", b'"1']


@pytest.mark.parametrize("whitespace", ["compact", "flexible"])
@pytest.mark.parametrize("between", [None, {"type": "regex", "pattern": "\n?"}])
@pytest.mark.parametrize("other", [0, 1, 2])
def test_tokens_reach_from_one_value_into_the_next(other, between, whitespace):
    """A token is allowed where its bytes are, one after the other, read lazily and from the whole table."""
    vocab = mw.Vocabulary.from_bytes([b"", *(bytes([b]) for b in range(256)), *BESIDE], eos=0)
    values = [{"type": "json_schema", "json_schema": ADJACENT[i]} for i in (other, (other + 1) % 3)]
    middle = [between] if between is not None else []
    format_ = {"type": "sequence", "elements": [values[0], *middle, values[1], *middle, values[0]]}
    seen = 0
    for whole in (False, True):
        table = compile_structural_tag(format_, vocab, whitespace=whitespace)
        if whole:
            table.to_table()
        rng = random.Random(other)
        for _ in range(40):
            matcher = mw.Matcher(table)
            for _ in range(12):
                may = allowed(matcher, vocab.size)
                for at, word in enumerate(BESIDE, 257):
                    by_bytes, by_token = matcher.copy(), matcher.copy()
                    assert (at in may) == all(by_bytes.advance(1 + byte) for byte in word) == by_token.advance(at)
                    seen += at in may
                short = [i for i in may if i and (i > 256 or chr(i - 1) in '"[]{}ntul1')]
                if not short or not matcher.advance(rng.choice(short)):
                    break
    assert seen > 50


def test_recursive_schemas_in_tags_are_open_as_deep_as_alone(vocab):
    schema = {"type": "array", "items": {"$ref": "#"}, "maxItems": 2}
    alone = mw.compile_json_schema(schema, vocab, whitespace="compact", depth=3)
    tagged = compile_structural_tag(
        TaggedText([Tag("<a>", "]</", schema=schema)]), vocab, whitespace="compact", depth=3
    )
    texts = ["[" * n + "]" * n for n in range(1, 6)] + ["[[],[[]]]", "[[[],[]],[]]", "[[[[]]]"]
    for _ in range(2):
        assert [tagged.accepts(written(f"<a>{text}]</")) for text in texts] == [
            alone.accepts(written(t)) for t in texts
        ]
        for text in texts[2], texts[6]:
            inside, outside = mw.Matcher(tagged), mw.Matcher(alone)
            assert all(map(inside.advance, written("<a>")))
            for token in written(text)[:-1]:
                assert allowed(inside, vocab.size) - {257 + LONGER.index(b"}</a>b")} == allowed(outside, vocab.size)
                assert inside.advance(token) == outside.advance(token)
        tagged.to_table()
        alone.to_table()


def test_rules_of_several_grammars_are_kept_apart(vocab):
    """Each has a rule called root, and one begins with another of its rules."""
    contents = [{"type": "grammar", "grammar": 'root ::= "a"'}, {"type": "grammar", "grammar": 'root ::= "b"'},
                {"type": "grammar", "grammar": 'root ::= "a"\nmain ::= root "b"', "start": "main"}]  # fmt: skip
    tags = [{"begin": f"<{i}>", "content": each, "end": "</"} for i, each in enumerate(contents)]
    table = compile_structural_tag({"type": "triggered_tags", "triggers": ["<"], "tags": tags}, vocab)
    for _ in range(2):
        inside = {(i, text) for i in range(3) for text in ("a", "b", "ab") if table.accepts(written(f"<{i}>{text}</"))}
        assert inside == {(0, "a"), (1, "b"), (2, "ab")}
        table.to_table()


def test_free_text_is_utf_8(vocab):
    table = compile_structural_tag({"type": "triggered_tags", "triggers": ["<"], "tags": [
        {"begin": "<a>", "content": {"type": "any_text"}, "end": "</"}]}, vocab)  # fmt: skip
    for each in (table, table.to_table()):
        for before in ("", "<a>"):
            matcher = mw.Matcher(each)
            assert all(map(matcher.advance, written(before)))
            assert not any(matcher.copy().advance(1 + byte) for byte in (0x80, 0xC0, 0xFE, 0xFF))
            assert matcher.advance(1 + 0xC3)
            assert not matcher.copy().advance(1 + ord("<"))
            assert matcher.advance(1 + 0xA9)


def test_what_no_rule_stands_in_becomes_an_automaton_without_a_network(vocab, monkeypatch):
    """Sixty times up to thirty letters: an NFA has a state for each, a network a set of places."""

    def fails(*_: Any) -> None:
        raise AssertionError

    monkeypatch.setattr(grammars, "automaton", fails)
    words = {"type": "regex", "pattern": "[a-z]{1,30}x?"}
    table = compile_structural_tag({"type": "repeat", "content": words, "min": 3, "max": 60}, vocab).to_table()
    assert table.accepts(written("abc"))
    assert not table.accepts(written("ab"))
    with pytest.raises(AssertionError):
        mw.compile_grammar('start: a a\na: "b" | "c"', vocab).to_table()


@pytest.mark.parametrize("way", ["lazy", "whole", "rules"])
def test_a_format_of_json_or_all_of_them_have_members_in_any_order(way):
    """Of one schema in two tags, one as the format says, the other as it is said for all."""
    point = {"type": "object", "properties": {"a": {"type": "null"}, "b": {"type": "null"}}, "required": ["a", "b"]}
    given = {"type": "json_schema", "json_schema": point}
    tags = [
        {"type": "tag", "begin": "<1>", "content": {**given, "any_order": True}, "end": "</>"},
        {"type": "tag", "begin": "<2>", "content": given, "end": "</>"},
    ]
    tag = {"type": "structural_tag", "format": {"type": "or", "elements": tags}}
    vocab = mw.Vocabulary.from_bytes([b"", *(bytes([b]) for b in range(256))], eos=0)
    backwards = '{"b":null,"a":null}'
    for any_order in (False, True) if way != "rules" else (False,):
        if way == "rules":  # in which nobody asks for all
            table = by_rules(tag, vocab)
        else:
            table = compile_structural_tag(tag, vocab, whitespace="compact", any_order=any_order)
        matcher = mw.Matcher(table.to_table() if way == "whole" else table)
        for text, expected in (
            (f"<1>{backwards}</>", True), (f"<2>{backwards}</>", any_order), ('<2>{"a":null,"b":null}</>', True),
            ('<1>{"b":null,"b":null}</>', False), ('<1>{"b":null}</>', False),
        ):  # fmt: skip
            matcher.reset()
            taken = all(matcher.advance(1 + byte) for byte in text.encode()) and matcher.is_accepting
            assert taken == expected, (text, any_order)


@pytest.mark.parametrize(
    ("source", "unicode"),
    [
        (a_tagged({"type": "regex", "pattern": r"\d"}), False),
        (a_tagged({"type": "regex", "pattern": r"(?u)\d"}), True),
        (a_tagged({"type": "regex", "pattern": r"\d", "flags": ""}), True),
        (TaggedText([Tag("<a>", regex=r"\d", end="</a>")], triggers=["<a>"]), True),
    ],
    ids=str,
)
def test_patterns_of_engines_are_ascii_and_those_of_python_are_not(source, unicode):
    vocab = mw.Vocabulary.from_bytes([b"", *(bytes([b]) for b in range(256))], eos=0)
    table = compile_structural_tag(source, vocab)
    assert table.accepts(vocab.encode("<a>3</a>"))
    assert table.accepts(vocab.encode("<a>\u0663</a>")) == unicode  # an Arabic three


def test_what_is_not_enforced_in_a_tag_is_named_by_its_place_or_its_document(vocab):
    loose = {"type": "array", "items": {"type": "string"}, "uniqueItems": True}
    content = {"type": "json_schema", "json_schema": {"properties": {"a": loose, "b": {"$ref": "urn:x"}}}}
    tag = {"type": "structural_tag", "format": {"type": "tag", "begin": "<", "content": content, "end": ">"}}
    table = mw.compile_structural_tag(tag, vocab, allow=["uniqueItems"], documents={"urn:x": loose})
    pointers = [each.pointer for each in table.unenforced]
    assert sorted(pointers) == ["/format/content/json_schema/properties/a/uniqueItems", "urn:x#/uniqueItems"]
