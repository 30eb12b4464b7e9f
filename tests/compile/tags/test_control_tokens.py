"""Control tokens by their names in the texts of structural tags."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

import maskwright as mw
from maskwright.compile.tags.build import compile_structural_tag
from maskwright.compile.tags.tagged_text import SpecialToken, Tag, TaggedText
from maskwright.engines.constraints import EngineConstraints
from maskwright.engines.options import EngineOptions

HARMONY = ["<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|constrain|>", "<|call|>", "<|return|>"]
IDS = {name: 257 + i for i, name in enumerate(HARMONY)}
TOOL = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
LETTERS = [b"", *(bytes([b]) for b in range(256))]
ANY = {"type": "any_text"}


@pytest.fixture(scope="module")
def harmony() -> mw.Vocabulary:
    """Tokens of gpt-oss, of which <|call|> and <|return|> end a text."""
    return mw.Vocabulary.from_bytes([*LETTERS, *[b""] * 7], eos=[0, IDS["<|return|>"], IDS["<|call|>"]], special=IDS)


@pytest.fixture(scope="module")
def plain() -> mw.Vocabulary:
    """The same tokens, none of which but 0 ends a text."""
    return mw.Vocabulary.from_bytes([*LETTERS, *[b""] * 7], eos=0, special=IDS)


def written(text: str, *, tokens: bool = True) -> list[int]:
    """Return the tokens of a text, as a model writes it: control tokens where it has their names."""
    out: list[int] = []
    while text:
        name = next((name for name in HARMONY if tokens and text.startswith(name)), None)
        out += [IDS[name]] if name else [1 + byte for byte in text[0].encode()]
        text = text[len(name or "x") :]
    return out


def tag_of(begin: Any, content: Any, end: Any) -> dict[str, Any]:
    return {"type": "tag", "begin": begin, "content": content, "end": end}


CALL = "<|channel|>commentary to=functions.f <|constrain|>json<|message|>"
FORMAT = {
    "type": "triggered_tags",
    "triggers": ["<|channel|>analysis", "<|channel|>commentary to="],
    "tags": [
        tag_of("<|channel|>analysis<|message|>", ANY, "<|end|>"),
        tag_of(CALL, {"type": "json_schema", "json_schema": TOOL}, "<|call|>"),
    ],
}


@pytest.mark.parametrize("ends", [False, True])
def test_the_tags_of_harmony_are_its_tokens(ends, harmony, plain):
    vocab = harmony if ends else plain
    table = compile_structural_tag({"type": "structural_tag", "format": FORMAT}, vocab)
    thought = "<|channel|>analysis<|message|>I should call <f>.<|end|>"
    call = CALL + '{"city": "Rome"}'
    for each in (table, table.to_table()):
        assert each.accepts(written(thought))
        assert each.accepts(written(thought + call + "<|call|>"))
        assert not each.accepts(written(thought[:-1] + "|>"))
        assert not each.accepts(written(call.replace("Rome", "<|call|>")))
        assert not each.accepts(written("<|channel|>commentary to=functions.g <|message|>"))
        assert not each.accepts(written(CALL + '{"town": 1}<|call|>'))
        assert each.accepts(written(call + "<|call|>" + thought)) == (not ends)  # which follows nothing that has ended
        assert each.accepts(written(call)) == ends  # a text may end there, with any of the tokens for that
        assert each.accepts(written("<|channel|>analysis", tokens=False))  # letters are text as any other
        assert not each.accepts([IDS["<|channel|>"], *written("final")])


@pytest.mark.parametrize("form", [
    {"type": "const_string", "value": "<|start|>a<|end|>"},
    tag_of("<|start|>a", {"type": "const_string", "value": ""}, "<|end|>"),
    tag_of("<|start|>", {"type": "regex", "pattern": "a"}, ["</a>", "<|end|>"]),
    {"type": "sequence", "elements": [
        {"type": "const_string", "value": "<|start|>"},
        tag_of("a", {"type": "optional", "content": {"type": "const_string", "value": "x"}}, "<|end|>"),
    ]},
    {"type": "triggered_tags", "triggers": ["<|start|>"], "tags": [tag_of("<|start|>a", ANY, "<|end|>")],
     "at_least_one": True},
    {"type": "tags_with_separator", "separator": "<|message|>", "tags": [tag_of("<|start|>a", ANY, "<|end|>")]},
    {"type": "token_triggered_tags", "trigger_tokens": ["<|start|>"],
     "tags": [tag_of({"type": "token", "token": "<|start|>"}, ANY, "<|end|>")]},
    {"type": "structural_tag", "structures": [{"begin": "<|start|>", "schema": {"const": "a"}, "end": "<|end|>"}],
     "triggers": ["<|start|>"]},
    TaggedText([Tag("<|start|>a", "<|end|>", content=ANY)], at_least=1),
    TaggedText([Tag("<|start|>a", SpecialToken("<|end|>"), content=ANY)], triggers=["<|start|>"]),
])  # fmt: skip
def test_a_name_in_any_text_of_a_tag_is_the_token(form, plain):
    table = compile_structural_tag(form, plain)
    quoted = isinstance(form, dict) and "structures" in form
    text = '<|start|>"a"<|end|>' if quoted else "<|start|>a<|end|>"
    engine = EngineConstraints(plain, EngineOptions())
    tables = [table] if isinstance(form, TaggedText) else [table, engine.compile("structural_tag", json.dumps(form))]
    for each in tables:
        for _ in range(2):
            assert each.accepts(written(text))
            free = isinstance(form, TaggedText) or form["type"] in ("triggered_tags", "token_triggered_tags")
            free = (free and not (isinstance(form, dict) and form.get("at_least_one"))) or quoted
            free = free and not (isinstance(form, TaggedText) and form.at_least)
            assert each.accepts(written(text, tokens=False)) == free  # as text without tags
            assert not each.accepts([IDS["<|start|>"], *written(text[len("<|start|>") :], tokens=False)])
            each.to_table()


def test_free_text_ends_with_a_control_token_and_the_text_beside_it(plain):
    form = {"type": "sequence", "elements": [ANY, {"type": "const_string", "value": "ab<|end|>"}]}
    table = compile_structural_tag(form, plain)
    for text, right in (
        ("xab<|end|>", True),
        ("ababab<|end|>", True),
        ("a<|end|>", False),
        ("ab<|end|>ab<|end|>", False),
    ):
        assert table.accepts(written(text)) == right, text


def test_a_mark_of_the_tokenizer_that_spells_its_text_is_text():
    vocab = mw.Vocabulary.from_bytes(
        [*LETTERS, b"<tool_call>", b""], eos=0, names={"<tool_call>": 257, "</tool_call>": 258}
    )
    table = compile_structural_tag(tag_of("<tool_call>", {"type": "regex", "pattern": "a"}, "</tool_call>"), vocab)
    for begin in ([257], written("<tool_call>")):
        assert table.accepts([*begin, *written("a"), 258])


@pytest.mark.parametrize("pattern", [
    r"<\|start\|>a", r"a|<\|end\|>", r"\<\|end\|\>", r"(<)\|end\|>", r"\x3c\|end\|>", r"(?:<\|)(?:end)(?:\|>)",
    r"<\|(start|end)\|>", r"<{1}\|end\|>", r"(?:x|<\|)+end\|>", r"(a|(b|<\|)*)*end\|>", r"<\|en+d?d\|>",
    r"(?x) < \| end \| >", r"(?i)<\|END\|>", r"(?i:<)\|\x65nd\|>", r"a(?!<\|end\|>)b", r"(?:.*<\|){3}end\|>",
])  # fmt: skip
def test_a_pattern_with_the_name_of_a_control_token_points_to_the_token(pattern, plain):
    with pytest.raises(mw.errors.ConstraintError, match="matches characters alone") as found:
        compile_structural_tag(tag_of("<", {"type": "regex", "pattern": pattern}, ">"), plain)
    assert found.value.pointer == "/content/pattern"
    assert '{"type": "token", "token": "<|' in str(found.value)
    assert found.value.remedies


@pytest.mark.parametrize(("pattern", "text"), [
    (r"[<]\|start\|>a", "<|start|>a"), (r"a|[<]\|end\|>", "<|end|>"), (r"<[|]end\|>", "<|end|>"), (r".*", "<|end|>"),
    (r"[a-z<|>]*", "<|end|>"), (r"(?s:.)*end\|>", "<|end|>"), (r"<\|[a-z]+\|>", "<|end|>"), (r"<\|end\|", "<|end|"),
    (r"(?:<\|x)?end\|>", "end|>"), (r"(<\|x){2}e?nd\|>", "<|x<|xnd|>"), (r"<\|\b(?:end)\|{2}>", "<|end||>"),
    (r"(?i)[<]\|end\|>", "<|END|>"), (r"<\|e(?:nd\|>){0}", "<|e"),
])  # fmt: skip
def test_a_pattern_that_says_that_characters_are_meant_matches_them(pattern, text, plain):
    table = compile_structural_tag({"type": "regex", "pattern": pattern}, plain)
    assert table.accepts(written(text, tokens=False))
    assert not table.accepts(written("<|message|>"))


@pytest.mark.parametrize(
    ("syntax", "grammar"),
    [
        ("ebnf", 'root ::= "<|start|>" "a"'),
        ("gbnf", 'root ::= "x" | "b<|start|>a"'),
        ("lark", 'start: "<|start|>" "a"'),
        ("ebnf", 'root ::= "<|" ("start" | "b") "|>"'),
        ("lark", r"start: /<\|start\|>/"),
        ("lark", r"start: /(<)\|start\|>a/"),
        ("lark", r'start: A "start|>"' + "\n" + r"A: /\x3c\|/"),
        ("lark", r'start: "<|START|>"i'),
        ("lark", 'start: "<|" A "|>"\nA: "start" | /b+/'),
    ],
)
def test_a_grammar_with_a_name_in_quotes_points_to_the_token(syntax, grammar, plain):
    form = {"type": "grammar", "grammar": grammar, "syntax": syntax}
    with pytest.raises(mw.errors.ConstraintError, match="in quotes or in a pattern") as found:
        compile_structural_tag(tag_of("<", form, ">"), plain)
    assert found.value.pointer == "/content/grammar"
    assert '{"type": "token", "token": "<|start|>"}' in str(found.value)
    bare = {**form, "grammar": grammar.replace('"<|start|>"', "<|start|>")}
    if syntax == "lark" and bare != form:
        assert compile_structural_tag(tag_of("<", bare, ">"), plain).accepts(written("<<|start|>a>"))


def test_a_grammar_that_says_that_characters_are_meant_takes_them(plain):
    for pattern in (r"/[<]\|start\|>/", r"/<\|[a-z]+\|>/", "/.*/"):
        form = {"type": "grammar", "grammar": f"start: {pattern}", "syntax": "lark"}
        assert compile_structural_tag(form, plain).accepts(written("<|start|>", tokens=False))


def test_nested_repeats_are_searched_for_names_in_time(plain):
    pattern = "(?:" * 150 + r"<\|x|star" + ")*" * 150
    form = {"type": "or", "elements": [{"type": "regex", "pattern": "b|" + pattern}]}
    began = time.thread_time()
    assert compile_structural_tag(form, plain).accepts(written("<|xstar"))
    assert time.thread_time() - began < 5


def test_names_that_a_vocabulary_does_not_know_are_refused_and_the_token_goes_by_its_id():
    vocab = mw.Vocabulary.from_bytes([*LETTERS, b""], eos=0, special=[257])
    with pytest.raises(mw.errors.ConstraintError, match="looks like a control token") as found:
        compile_structural_tag(tag_of("<|start|>", ANY, ">"), vocab)
    assert found.value.pointer == "/begin"
    assert '{"type": "token", "token": ' in str(found.value)
    table = compile_structural_tag(tag_of({"type": "token", "token": 257}, ANY, ">"), vocab)
    assert table.accepts([257, *written("a>")])
    letters = mw.Vocabulary.from_bytes(LETTERS, eos=0)  # has no control tokens that a name could mean
    assert compile_structural_tag(tag_of("<|start|>", ANY, ">"), letters).accepts(written("<|start|>a>", tokens=False))


def test_a_text_ends_with_the_token_that_ends_it_and_nothing_follows(harmony):
    call = tag_of("<f>", {"type": "regex", "pattern": "a+"}, "<|call|>")
    for end in ("<|call|>", {"type": "token", "token": "<|return|>"}, {"type": "token", "token": 0}):
        for form, texts in (
            ({**call, "end": end}, {"<f>aa": True, "<f>": False, "": False}),
            ({"type": "star", "content": {**call, "end": end}}, {"<f>aa": True, "": True, "<f>a<f>a": False}),
            ({"type": "sequence", "elements": [ANY, {**call, "end": end}, ANY]}, {"x<f>a": True, "<f>ax": False}),
            ({"type": "or", "elements": [{**call, "end": end}, {"type": "const_string", "value": "b"}]},
             {"b": True, "<f>a": True, "<f>ab": False}),
            ({"type": "tags_with_separator", "separator": "<|end|>",
              "tags": [{**call, "end": end}, {**call, "end": "b"}]},
             {"<f>ab<|end|><f>a": True, "<f>a<|end|><f>a": False}),
        ):  # fmt: skip
            table = compile_structural_tag(form, harmony)
            assert {text: table.accepts(written(text)) for text in texts} == texts, form
    more = {"type": "sequence", "elements": [call, {"type": "const_string", "value": "b"}]}
    with pytest.raises(mw.errors.ConstraintError, match="nothing can follow it"):
        compile_structural_tag(more, harmony)


def test_as_many_tokens_as_there_are_marks_are_named():
    names = {f"<|{i}|>": 257 + i for i in range(14)}
    vocab = mw.Vocabulary.from_bytes([*LETTERS, *[b""] * 14], eos=0, special={**names, "</s>": 0})
    for count, ends in ((13, ""), (12, "</s>")):
        text = "".join(list(names)[:count])
        table = compile_structural_tag({"type": "const_string", "value": text + ends}, vocab)
        assert table.accepts(list(range(257, 257 + count)))
        with pytest.raises(
            mw.errors.ConstraintError, match=f"{count + 1} special tokens in one constraint: the most is {count}"
        ):
            compile_structural_tag({"type": "const_string", "value": text + f"<|{count}|>" + ends}, vocab)
