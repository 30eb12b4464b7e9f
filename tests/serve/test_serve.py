"""The server, asked as clients ask it: with the official client, and with whatever else comes in."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import math
import os
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor

import jsonschema
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

import maskwright as mw
from maskwright.cli.main import main
from tests.strategies import tokenizer_zoo

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")
openai = pytest.importorskip("openai")
httpx = pytest.importorskip("httpx")

from prometheus_client.parser import text_string_to_metric_families  # noqa: E402

from maskwright.compile.grammar.notations import syntax_of  # noqa: E402
from maskwright.serve import constraints, loading  # noqa: E402
from maskwright.serve.answers import Call, CallMarks, Calls, DecodedText, call_marks  # noqa: E402
from maskwright.serve.service import Service  # noqa: E402
from maskwright.serve.settings import Limits  # noqa: E402
from tests.support.servers import HELLO, client_of, post, running, wait  # noqa: E402

CITY = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "founded": {"type": "integer"},
        "twins": {"type": "array", "items": {"$ref": "#/$defs/twin"}, "maxItems": 2},
    },
    "required": ["name", "founded"],
    "additionalProperties": False,
    "$defs": {"twin": {"enum": ["York", "Ulm"]}},
}
LIST = """
start: item ("," item)~0..2 [";"]
item: ITEM
ITEM: /[a-c]+/
%ignore " "
"""
EBNF = "root ::= pair | pair ',' pair\npair ::= [a-c]+ \"::=\" [0-9]"
OWN = "main ::= digit | digit digit\ndigit ::= [0-9]"
NESTED = 'start: "(" start ")" | /[0-9]+/'
PALINDROMES = 'start: "a" start "a" | "b" start "b" | "a" | "b"'  # no letter says whether the middle was passed
TAGS = {
    "type": "structural_tag",
    "format": {"type": "sequence", "elements": [
        {"type": "regex", "pattern": "[a-c]{0,3}"},
        {"type": "tag", "begin": "<f>", "content": {"type": "json_schema", "json_schema": {"enum": ["x", True]}},
         "end": "</f>"},
    ]},
}  # fmt: skip
OLDER = {
    "type": "structural_tag",
    "structures": [{"begin": "e", "schema": {"const": {"a": None}}, "end": "."}],
    "triggers": ["e"],
}
DISTINCT = {
    "type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 99}, "minItems": 3, "maxItems": 3,
    "uniqueItems": True,
}  # fmt: skip
LONG = "[a-z]{700}"


@pytest.fixture(scope="module")
def service():
    with running(limits=Limits(max_queue=100)) as one:
        yield one
        assert one.open == 0


@pytest.fixture(scope="module")
def client(service):
    return client_of(service)


def idle(service):
    """Wait until nothing of any request is left."""
    wait(lambda: not (service.open or service.worker.running or service.worker.waiting))


# ------------------------------------------------------------------------------------------------- what is written


def chat(client, **options):
    return client.chat.completions.create(model=loading.TINY, messages=HELLO, **options)


def schema_format(schema):
    return {"type": "json_schema", "json_schema": {"name": "it", "schema": schema, "strict": True}}


@pytest.mark.parametrize("seed", range(4))
def test_a_chat_fits_its_schema_and_is_complete(client, seed):
    out = chat(client, response_format=schema_format(CITY), max_tokens=60, seed=seed)
    jsonschema.validate(json.loads(out.choices[0].message.content), CITY)
    assert out.choices[0].finish_reason == "stop"
    assert out.usage.completion_tokens <= 60
    assert out.usage.total_tokens == out.usage.prompt_tokens + out.usage.completion_tokens


def test_a_json_object_is_one(client):
    for seed in range(3):
        out = chat(client, response_format={"type": "json_object"}, max_tokens=30, seed=seed)
        assert isinstance(json.loads(out.choices[0].message.content), dict)


@pytest.mark.parametrize(
    ("fields", "fits"),
    [
        ({"guided_regex": "[a-c]{3,5}[0-9]"}, lambda text: re.fullmatch("[a-c]{3,5}[0-9]", text)),
        ({"guided_choice": ["red", "green"]}, lambda text: text in ("red", "green")),
        ({"guided_json": CITY}, lambda text: jsonschema.validate(json.loads(text), CITY) is None),
        ({"guided_json": json.dumps(CITY)}, lambda text: jsonschema.validate(json.loads(text), CITY) is None),
        ({"guided_regex": r"\d{40}"}, lambda text: re.fullmatch("[0-9]{40}", text)),
        ({"structured_outputs": {"regex": r"\w{3}\s"}}, lambda text: re.fullmatch(r"\w{3}\s", text, re.ASCII)),
        ({"structured_outputs": {"regex": "x+y"}}, lambda text: re.fullmatch("x+y", text)),
        ({"structured_outputs": {"choice": ["a", "ab", ""]}}, lambda text: text in ("a", "ab", "")),
        ({"structured_outputs": {"json": {"const": 1.5}}}, lambda text: text == "1.5"),
        ({"guided_json": DISTINCT, "allow": ["uniqueItems"]}, lambda text: len(json.loads(text)) == 3),
        ({"guided_json": DISTINCT}, lambda text: len(set(json.loads(text))) == 3),
        ({"structured_outputs": {"json": DISTINCT}, "allow": ["uniqueItems"]}, lambda text: len(json.loads(text)) == 3),
        ({"structured_outputs": {"json_object": True}}, lambda text: isinstance(json.loads(text), dict)),
        ({"guided_grammar": LIST}, lambda text: re.fullmatch("( *[a-c]+ *,){0,2} *[a-c]+ *;? *", text)),
        (
            {"guided_grammar": NESTED},
            lambda text: re.fullmatch(r"(\(*)[0-9]+(\)*)", text) and text.count("(") == text.count(")"),
        ),
        ({"guided_grammar": EBNF}, lambda text: re.fullmatch("[a-c]+::=[0-9](,[a-c]+::=[0-9])?", text)),
        (
            {"structured_outputs": {"grammar": LIST, "start": "item", "syntax": "lark"}},
            lambda text: re.fullmatch("[a-c ]+", text),
        ),
        (
            {"structured_outputs": {"grammar": OWN, "start": "main", "syntax": "gbnf"}},
            lambda text: re.fullmatch("[0-9]{1,2}", text),
        ),
        (
            {"response_format": {"type": "grammar", "grammar": OWN, "start": "digit"}},
            lambda text: re.fullmatch("[0-9]", text),
        ),
        ({"response_format": TAGS}, lambda text: re.fullmatch('[a-c]{0,3}<f>("x"|true)</f>', text)),
        (
            {"structured_outputs": {"structural_tag": json.dumps(TAGS)}},
            lambda text: re.fullmatch('[a-c]{0,3}<f>("x"|true)</f>', text),
        ),
        ({"response_format": OLDER}, lambda text: re.fullmatch(r'([^e]|e\{\s*"a":\s*null\s*\}\.)*', text)),
        (
            {"structured_outputs": {"structural_tag": OLDER}},
            lambda text: re.fullmatch(r'([^e]|e\{\s*"a":\s*null\s*\}\.)*', text),
        ),
    ],
)
def test_constraints_in_the_form_of_vllm_hold(client, fields, fits):
    out = client.completions.create(model=loading.TINY, prompt="a", max_tokens=50, n=3, extra_body=fields)
    assert [choice.finish_reason for choice in out.choices] == ["stop"] * 3
    assert all(fits(choice.text) for choice in out.choices)


def test_what_is_not_enforced_is_said_in_headers(service):
    fields = {"prompt": "a", "max_tokens": 50, "guided_json": DISTINCT}
    for more, said in (
        ({"allow": "all"}, ["guided_json#/uniqueItems is not enforced: equal items may be written"]),
        (
            {"allow": ["uniqueItems", "format"]},
            ["guided_json#/uniqueItems is not enforced: equal items may be written"],
        ),
        ({"allow": "all", "guided_json": CITY}, []),
    ):
        out = post(service, **(fields | more))
        assert out.status_code == 200
        assert out.headers.get_list("x-maskwright-warning") == said


@pytest.mark.parametrize("constraint", [None, schema_format(CITY)])
def test_a_stream_says_what_the_whole_says(client, constraint):
    options = {"max_tokens": 40, "seed": 5, "n": 2, "logprobs": True}
    options |= {} if constraint is None else {"response_format": constraint}
    whole = chat(client, **options)
    texts, ends, log_probs, usage = ["", ""], [None, None], [[], []], None
    for chunk in chat(client, **options, stream=True, stream_options={"include_usage": True}):
        usage = chunk.usage or usage
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
            ends[choice.index] = choice.finish_reason or ends[choice.index]
            log_probs[choice.index] += choice.logprobs.content if choice.logprobs else []
    assert texts == [choice.message.content for choice in whole.choices]
    assert ends == [choice.finish_reason for choice in whole.choices]
    assert usage.completion_tokens == whole.usage.completion_tokens == sum(map(len, log_probs))
    for own, choice in zip(log_probs, whole.choices, strict=True):
        assert [each.token for each in own] == [each.token for each in choice.logprobs.content]
        text = b"".join(bytes(each.bytes) for each in own).decode(errors="replace")
        assert text == choice.message.content
        assert all(each.logprob <= 0 for each in own)


def test_a_seed_decides_what_is_written_and_choices_differ(client):
    def texts(**options):
        out = client.completions.create(model=loading.TINY, prompt=["a", "bc"], max_tokens=12, n=2, **options)
        assert [choice.index for choice in out.choices] == [0, 1, 2, 3]
        return [choice.text for choice in out.choices]

    assert texts(seed=-3) == texts(seed=-3)
    assert len({*texts(seed=1), *texts(seed=9)}) == 8
    greedy = texts(temperature=0)
    assert greedy[0] == greedy[1]
    assert texts(extra_body={"top_k": 1}, seed=2) == greedy


def test_tokens_may_be_given_as_numbers(client, service):
    ids = service.loaded.vocabulary.encode("abc")
    said = [
        client.completions.create(model=loading.TINY, prompt=prompt, max_tokens=8, seed=1).choices[0].text
        for prompt in ("abc", ids, [ids])
    ]
    assert said[0] == said[1] == said[2]


@given(
    st.lists(st.sampled_from(["a", "b", "ab", "é", "€"]), max_size=12),
    st.lists(st.text("abé", min_size=1, max_size=3), max_size=3),
    st.randoms(),
)
@settings(deadline=None)
def test_text_ends_before_the_first_stop_however_it_comes(parts, stops, rng):
    vocabulary = mw.Vocabulary.from_bytes([b"", *(bytes([b]) for b in range(256)), b"ab"], eos=0)
    text = "".join(parts)
    tokens = vocabulary.encode(text)
    made, said, at = DecodedText(vocabulary, stops), "", 0
    while at < len(tokens) and not made.stopped:
        count = rng.randint(1, 4)
        said += made.feed(tokens[at : at + count], False)
        at += count
    said += made.feed([], True)
    ends = [n for n in range(len(text) + 1) if any(text[:n].endswith(stop) for stop in stops)]
    complete = [stop for stop in stops if ends and text[: ends[0]].endswith(stop)]
    assert said == (text[: ends[0] - max(map(len, complete))] if ends else text)
    assert made.stopped == bool(ends)


def test_the_best_tokens_are_told_where_they_are_asked_for(client):
    out = chat(client, max_tokens=6, seed=1, temperature=0, logprobs=True, top_logprobs=3).choices[0]
    for token in out.logprobs.content:
        assert len(token.top_logprobs) == 3
        assert token.top_logprobs[0].token == token.token  # the best one, at temperature 0
        assert token.top_logprobs[0].logprob == token.logprob < 0
        assert [each.logprob for each in token.top_logprobs] == sorted(each.logprob for each in token.top_logprobs)[
            ::-1
        ]
    stream = chat(client, max_tokens=6, seed=1, temperature=0, logprobs=True, top_logprobs=3, stream=True)
    told = [each for part in stream for choice in part.choices if choice.logprobs for each in choice.logprobs.content]
    assert told == out.logprobs.content
    body = {"guided_choice": ["red", "green"]}
    one = client.completions.create(model=loading.TINY, prompt="a", logprobs=20, seed=2, extra_body=body).choices[0]
    first = one.logprobs.top_logprobs[0]
    assert math.isclose(sum(map(math.exp, first.values())), 1, rel_tol=1e-5)
    assert all("red".startswith(text) or "green".startswith(text) for text in first)
    assert first[one.logprobs.tokens[0]] == one.logprobs.token_logprobs[0]


def test_a_stop_ends_free_text_and_frees_its_row(client, service):
    whole = client.completions.create(model=loading.TINY, prompt="a", max_tokens=40, seed=3, temperature=0).choices[0]
    stop = next(c for c in whole.text[5:] if whole.text.index(c) >= 3)
    idle(service)
    steps = service.worker.steps
    out = client.completions.create(
        model=loading.TINY, prompt="a", max_tokens=1000, seed=3, temperature=0, stop=[stop, "zzz"]
    )
    assert out.choices[0].text == whole.text[: whole.text.index(stop)]
    assert out.choices[0].finish_reason == "stop"
    idle(service)
    assert service.worker.steps - steps < 300


# ------------------------------------------------------------------------------------------------------------ tools


ARGUMENTS = {
    "type": "object",
    "properties": {"at": {"$ref": "#/$defs/place"}},
    "required": ["at"],
    "additionalProperties": False,
    "$defs": {"place": {"enum": ["Ulm", 7]}},
}
DEPENDS = {
    "type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 99}, "minItems": 3, "maxItems": 3,
    "if": {"contains": {"const": 7}}, "then": {"uniqueItems": True},
}  # fmt: skip
SETS = [{"type": "function", "function": {"name": "pick", "parameters": {
    "properties": {"names": {"type": "array", "items": {"type": "string"}, "uniqueItems": True}}, "required": ["names"],
}}}]  # fmt: skip
TOOLS = [
    {"type": "function", "function": {"name": "weather", "description": "now", "parameters": ARGUMENTS}},
    {"type": "function", "function": {"name": "stop-it"}},
]


def check_call(name, arguments):
    if name == "weather":
        jsonschema.validate(json.loads(arguments), ARGUMENTS)
    else:
        assert (name, arguments) == ("stop-it", "{}")


def test_a_required_call_names_a_function_and_fits_its_schema(client):
    named = set()
    for seed in range(8):
        out = chat(client, tools=TOOLS, tool_choice="required", seed=seed, max_tokens=90, parallel_tool_calls=False)
        choice = out.choices[0]
        [call] = choice.message.tool_calls
        assert (choice.finish_reason, choice.message.content, call.type) == ("tool_calls", None, "function")
        check_call(call.function.name, call.function.arguments)
        named.add(call.function.name)
    assert named == {"weather", "stop-it"}


def test_a_named_function_gets_its_arguments(client):
    out = chat(client, tools=TOOLS, tool_choice={"type": "function", "function": {"name": "weather"}}, max_tokens=40)
    [call] = out.choices[0].message.tool_calls
    check_call(call.function.name, call.function.arguments)
    assert out.choices[0].finish_reason == "stop"


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "weather"}}])
def test_a_streamed_call_is_the_same_call(client, choice):
    for seed in range(4):
        options = {"tools": TOOLS, "tool_choice": choice, "seed": seed, "max_tokens": 60}
        whole = chat(client, **options).choices[0].message.tool_calls[0].function
        name, arguments, ids = "", "", set()
        for chunk in chat(client, **options, stream=True):
            for call in chunk.choices[0].delta.tool_calls or []:
                name += call.function.name or ""
                arguments += call.function.arguments or ""
                ids |= {call.id} - {None}
        assert (name, arguments) == (whole.name, whole.arguments)
        assert len(ids) == 1


@pytest.mark.long
@given(st.text(max_size=30), st.randoms())
def test_a_call_comes_apart_wherever_it_is_cut(value, rng):
    arguments = json.dumps({"a": value})
    text, made, said = f'{{"name": "f_1", "arguments": {arguments}}}', Call(None), ""
    while text:
        count = rng.randint(1, 9)
        said += made.feed(text[:count])
        text = text[count:]
    assert (made.name, said) == ("f_1", arguments)


@pytest.fixture(scope="module")
def talkative():
    """A server whose model likes to call tools, and to end."""
    loaded = loading.tiny()
    words = (*loaded.vocabulary.tokens, b"<tool_call>", b"\n</tool_call>")
    loaded.vocabulary = mw.Vocabulary.from_bytes(words, eos=0)
    loaded.encode, loaded.chat = loaded.vocabulary.encode, lambda *_: [1, 2, 3]
    loaded.model.resize_token_embeddings(len(words), mean_resizing=False)
    with torch.no_grad():  # new rows are drawn from whatever the tests before have left of a generator
        for rows in (loaded.model.get_input_embeddings().weight, loaded.model.get_output_embeddings().weight):
            rows[-2:] = 0.0
    liked = torch.zeros(len(words))
    liked[[0, len(words) - 2]] = torch.tensor([2.5, 4.0])
    loaded.model.lm_head.register_forward_hook(lambda module, given, out: out + liked)
    with running(loaded) as one:
        yield client_of(one)


CALLS = "<tool_call>\n?.*?</tool_call>"  # ends right, as no argument of these tools has it within


def test_auto_has_text_with_calls_of_tools_in_it_each_of_which_fits(talkative):
    named, counts = set(), set()
    for seed in range(12):
        choice = chat(talkative, tools=TOOLS, max_tokens=150, seed=seed, logprobs=True).choices[0]
        calls = choice.message.tool_calls or []
        for call in calls:
            check_call(call.function.name, call.function.arguments)
        assert len({call.id for call in calls}) == len(calls)
        whole = b"".join(bytes(each.bytes) for each in choice.logprobs.content).decode()
        said = re.sub(CALLS, "", whole, flags=re.DOTALL)
        assert choice.message.content == (said or (None if calls else ""))
        assert whole.count("<tool_call>") == len(calls)
        full = len(choice.logprobs.content) == 150
        assert choice.finish_reason == ("tool_calls" if calls else "length" if full else "stop")
        named |= {call.function.name for call in calls}
        counts.add(len(calls))
    assert named == {"weather", "stop-it"}
    assert min(counts) == 0
    assert max(counts) > 1


def test_auto_writes_one_call_at_most_where_calls_are_not_to_be_parallel(talkative):
    out = chat(talkative, tools=TOOLS, tool_choice="auto", max_tokens=150, n=12, seed=0, parallel_tool_calls=False)
    assert {len(choice.message.tool_calls or []) for choice in out.choices} == {0, 1}


def test_an_answer_ends_behind_its_first_call_where_calls_are_not_to_be_parallel(talkative):
    options = {"tools": TOOLS, "max_tokens": 150, "n": 12, "seed": 0, "logprobs": True, "parallel_tool_calls": False}
    for choice in ("auto", "required"):
        called = 0
        for each in chat(talkative, tool_choice=choice, **options).choices:
            whole = b"".join(bytes(token.bytes) for token in each.logprobs.content).decode()
            count = len(each.message.tool_calls or [])
            called += count
            assert count == whole.count("<tool_call>")
            assert count == 0 or (whole.endswith("</tool_call>") and each.finish_reason == "tool_calls")
            assert (count == 1 and whole.startswith("<tool_call>")) or choice == "auto"
        assert called


def test_several_calls_may_be_required(talkative):
    counts = set()
    out = chat(talkative, tools=TOOLS, tool_choice="required", max_tokens=150, n=16, seed=0)
    for choice in out.choices:
        assert (choice.finish_reason, choice.message.content) == ("tool_calls", None)
        for call in choice.message.tool_calls:
            check_call(call.function.name, call.function.arguments)
        counts.add(len(choice.message.tool_calls))
    assert min(counts) >= 1
    assert max(counts) > 1


def test_marks_of_calls_that_are_control_tokens_are_these_tokens():
    """A tokenizer that marks <tool_call> special, and a model that only knows its id."""
    loaded = loading.tiny()
    words = (*loaded.vocabulary.tokens, b"", b"")
    first = len(words) - 2
    special = {"<tool_call>": first, "</tool_call>": first + 1}
    loaded.vocabulary = mw.Vocabulary.from_bytes(words, eos=0, special=special)
    loaded.encode, loaded.chat = loaded.vocabulary.encode, lambda *_: [1, 2, 3]
    loaded.model.resize_token_embeddings(len(words), mean_resizing=False)
    liked = torch.zeros(len(words))
    liked[first] = 3.0
    loaded.model.lm_head.register_forward_hook(lambda module, given, out: out + liked)
    with running(loaded) as one, client_of(one) as client:
        for choice in ("auto", "required"):
            called = 0
            for each in chat(client, tools=TOOLS, tool_choice=choice, max_tokens=120, n=6, seed=1).choices:
                for call in each.message.tool_calls or []:
                    check_call(call.function.name, call.function.arguments)
                    called += 1
                assert each.message.tool_calls or choice == "auto"
            assert called
        said = chat(client, max_tokens=40, n=6, seed=1).choices  # without tools the token is no text
        assert not any("\udc00" in choice.message.content for choice in said)


def test_letters_that_spell_a_control_token_are_no_mark():
    vocabulary = mw.Vocabulary.from_bytes(
        [b"", *(bytes([b]) for b in range(256)), b"", b""], eos=0, special={"<tool_call>": 257, "</tool_call>": 258}
    )
    marks = call_marks(vocabulary)
    call = '{"name": "f", "arguments": {"a": 1}}'
    tokens = [*vocabulary.encode("<tool_call>é"), 257, *vocabulary.encode(call), 258, *vocabulary.encode("é")]
    text, calls = DecodedText(vocabulary, [], marks.tokens), Calls(marks)
    for i, token in enumerate(tokens):
        for found, more in calls.feed(text.feed([token], i + 1 == len(tokens)), i + 1 == len(tokens)):
            if found is not None:
                found.arguments += more
    assert [(found.name, found.arguments) for found in calls.found] == [("f", '{"a": 1}')]


def test_text_that_is_cut_at_its_longest_says_so_under_auto(client):
    choice = chat(client, tools=TOOLS, max_tokens=3, temperature=0).choices[0]
    assert (choice.finish_reason, choice.message.tool_calls) == ("length", None)


def test_streamed_text_with_calls_is_the_same(talkative):
    several = 0
    for seed in range(6):
        options = {"tools": TOOLS, "max_tokens": 150, "seed": seed, "logprobs": True}
        whole = chat(talkative, **options).choices[0]
        content, calls, log_probs, end = "", {}, 0, None
        for chunk in chat(talkative, **options, stream=True):
            [choice] = chunk.choices
            content += choice.delta.content or ""
            log_probs += len(choice.logprobs.content) if choice.logprobs else 0
            end = choice.finish_reason or end
            for call in choice.delta.tool_calls or []:
                if call.id is not None:
                    assert call.index == len(calls)
                    calls[call.index] = [call.id, call.function.name, ""]
                calls[call.index][2] += call.function.arguments or ""
        told = [(call.function.name, call.function.arguments) for call in whole.message.tool_calls or []]
        assert [(name, arguments) for _, name, arguments in calls.values()] == told
        assert content == (whole.message.content or "")
        assert (end, log_probs) == (whole.finish_reason, len(whole.logprobs.content))
        several += len(told) > 1
    assert several


PIECES = ["a", "<", "<tool_call", "_call>", "</tool_call>", "\n", "é"]
VALUES = st.text('"\\\\}{]<a/', max_size=6) | st.just("</tool_call><tool_call>")


@given(
    st.lists(st.one_of(st.sampled_from(PIECES), st.tuples(VALUES, st.booleans(), st.booleans())), max_size=8),
    st.randoms(),
)
def test_text_with_calls_comes_apart_wherever_it_is_cut(parts, rng):
    text, said, calls = "", "", []
    for part in parts:
        if isinstance(part, str):  # no two of which make a call
            text, said = text + part, said + part
            continue
        value, before, behind = part
        calls.append(("f-1", json.dumps({"a": [{value: value}]}, ensure_ascii=False)))
        call = f'{{"name": "f-1", "arguments": {calls[-1][1]}}}'
        text += "<tool_call>" + "\n" * before + call + "\n" * behind + "</tool_call>"
    made, heard, read, at = Calls(CallMarks()), "", {}, 0
    while at < len(text):
        count = rng.randint(1, 20)
        for call, more in made.feed(text[at : at + count], at + count >= len(text)):
            if call is None:
                heard += more
            else:
                read[call.index] = read.get(call.index, "") + more
        at += count
    assert [(call.name, read[call.index]) for call in made.found] == calls
    assert heard == said
    assert made.ended(True) == ("tool_calls" if calls else "length")


def test_a_conversation_with_calls_is_read(client):
    messages = [
        *HELLO,
        {"role": "assistant", "tool_calls": [
            {"id": "call_1", "type": "function", "function": {"name": "stop-it", "arguments": "{}"}}
        ]},
        {"role": "tool", "tool_call_id": "call_1", "content": [{"type": "text", "text": "done"}]},
    ]  # fmt: skip
    for choice in ("none", "required"):
        out = client.chat.completions.create(
            model=loading.TINY, messages=messages, tools=TOOLS, tool_choice=choice, max_tokens=90
        )
        assert (out.choices[0].message.tool_calls is None) == (choice == "none")


# ----------------------------------------------------------------------------------------------------------- errors


DEEP = {"type": "array", "items": True}
for _ in range(150):
    DEEP = {"items": DEEP}


def test_the_responses_api_is_refused_with_what_to_send_instead(service):
    for answer in (httpx.post(f"{service.url}/v1/responses", json={}), httpx.get(f"{service.url}/v1/responses/r1")):
        error = answer.json()["error"]
        assert (answer.status_code, error["code"]) == (404, "responses_not_served")
        assert "/v1/chat/completions" in error["message"]


BAD_TOOL = {"type": "function", "function": {"name": "f", "parameters": {"properties": {"x": 3}}}}
REFUSED = [
    ({"tools": [*TOOLS, BAD_TOOL]}, 400, f"tools[{len(TOOLS)}].function.parameters", "^function 'f': /properties/x"),
    ({"model": "other"}, 404, "model", "there is no model 'other'"),
    ({"messages": None}, 400, "messages", "valid list"),
    ({"messages": []}, 400, "messages", "at least 1"),
    ({"messages": [{"role": "user"}]}, 400, "messages[0].content", "has content"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, 400, "messages[0].content", "text"),
    ({"messages": [{"role": "user", "content": "\ud800"}]}, 400, "messages", "lone surrogate"),
    ({"max_tokens": 0}, 400, "max_tokens", "greater"),
    ({"max_tokens": True}, 400, "max_tokens", "integer"),
    ({"max_tokens": 10**9}, 400, "max_tokens", "at most 1024"),
    ({"max_tokens": 3, "max_completion_tokens": 4}, 400, "max_tokens", "differ"),
    ({"temperature": -1}, 400, "temperature", "greater"),
    ({"temperature": 1e-9}, 400, "temperature", "must be 0"),
    ({"top_p": 0}, 400, "top_p", "greater than 0"),
    ({"n": 129}, 400, "n", "128"),
    ({"n": 128}, 400, "n", "ask for fewer"),
    ({"presence_penalty": 0.5}, 400, "presence_penalty", "not supported, as the server keeps no counts"),
    ({"frequency_penalty": -1.0}, 400, "frequency_penalty", "not supported, as the server keeps no counts"),
    ({"repetition_penalty": 1.1}, 400, "repetition_penalty", "not supported: the server keeps no counts"),
    ({"logit_bias": {"5": 1.0}}, 400, "logit_bias", "not supported, as tokens are drawn"),
    ({"top_logprobs": 2}, 400, "top_logprobs", "goes with logprobs: true"),
    ({"top_logprobs": 21, "logprobs": True}, 400, "top_logprobs", "20"),
    ({"frobnicate": 1}, 400, "frobnicate", "frobnicate is not supported"),
    ({"guided_grammar": "root ::= x"}, 400, "guided_grammar", "^line 1, column 10: there is no rule x[^^]*\\^"),
    ({"guided_grammar": 'x: "a"'}, 400, "guided_grammar", "start"),
    ({"guided_grammar": "%import .secret.X\nstart: X"}, 400, "guided_grammar", "relative to this grammar's file"),
    ({"guided_grammar": 'start: "a"' + " " * 300_000}, 400, "guided_grammar", "max-schema-bytes"),
    ({"guided_grammar": 'start: "a"', "guided_regex": "a"}, 400, "guided_grammar", "at the same time"),
    ({"guided_grammar": 'start: "a"~30', "max_tokens": 20}, 400, "max_tokens", "30 tokens"),
    ({"guided_grammar": 3}, 400, "guided_grammar", "string"),
    ({"structured_outputs": {"grammar": "x"}}, 400, "structured_outputs.grammar", "line 1"),
    ({"structured_outputs": {"grammar": EBNF, "syntax": "lark"}}, 400, "structured_outputs.grammar", "line 1"),
    ({"structured_outputs": {"grammar": EBNF, "syntax": "bnf"}}, 400, "structured_outputs.syntax", "'lark', 'gbnf'"),
    ({"structured_outputs": {"regex": "a", "syntax": "lark"}}, 400, "structured_outputs.syntax", "goes with grammar"),
    ({"response_format": {"type": "grammar"}}, 400, "response_format.grammar", "missing"),
    ({"grammar": "root ::= x"}, 400, "grammar", "guided_grammar"),
    ({"structured_outputs": {}}, 400, "structured_outputs", "asks for nothing"),
    ({"functions": []}, 400, "functions", "old form of tools"),
    ({"stream_options": {"include_usage": True}}, 400, "stream_options", "stream: true"),
    ({"response_format": {"type": "json_schema"}}, 400, "response_format.json_schema", "missing"),
    ({"response_format": {"type": "xml"}}, 400, "response_format", "expected tags"),
    ({"guided_json": {"properties": {"a/b": {"type": "strin"}}}}, 400, "guided_json", "^/properties/a~1b/type"),
    ({"guided_json": {"minimum": "x"}}, 400, "guided_json", "^/minimum"),
    ({"guided_json": False}, 400, "guided_json", ""),
    ({"guided_json": "{"}, 400, "guided_json", "malformed JSON"),
    ({"guided_json": "[]"}, 400, "guided_json", "a schema is an object"),
    ({"guided_json": {"$ref": "http://example.org/x"}}, 400, "guided_json", "example.org"),
    ({"guided_json": {"pattern": "(a"}}, 400, "guided_json", "^/pattern"),
    ({"guided_json": {"not": DISTINCT}}, 400, "guided_json", '^/not/uniqueItems: .*Send "allow": ."uniqueItems".'),
    ({"guided_json": {"not": DISTINCT}, "allow": ["minProperties"]}, 400, "guided_json", "^/not/uniqueItems: "),
    ({"guided_json": DISTINCT, "allow": ["pattern"]}, 400, "allow", 'a list of format, .*: the string "pattern" is'),
    ({"guided_json": DISTINCT, "allow": "uniqueItems"}, 400, "allow", "list"),
    ({"guided_regex": "a", "allow": ["uniqueItems"]}, 400, "allow", "there is none"),
    ({"allow": ["uniqueItems"]}, 400, "allow", "there is none"),
    ({"any_order": True}, 400, "any_order", "there is none"),
    ({"any_order": True, "guided_choice": ["a"]}, 400, "any_order", "there is none"),
    ({"guided_regex": "(a"}, 400, "guided_regex", "never closed"),
    ({"guided_regex": "a" * 300_000}, 400, "guided_regex", "max-schema-bytes"),
    ({"guided_regex": "[^\\s\\S]"}, 400, "guided_regex", "matches nothing"),
    ({"guided_choice": []}, 400, "guided_choice", "at least 1"),
    ({"guided_choice": ["a"], "guided_regex": "a"}, 400, "guided_choice", "at the same time"),
    ({"guided_regex": "a+", "stop": "b"}, 400, "stop", "complete"),
    ({"stop": ""}, 400, "stop", ""),
    ({"guided_regex": "[ab]{30}", "max_tokens": 20}, 400, "max_tokens", "30 tokens"),
    ({"tools": TOOLS, "stop": "x"}, 400, "stop", "complete"),
    ({"tools": TOOLS, "response_format": {**TAGS}}, 400, "tools", "at the same time"),
    ({"tools": TOOLS, "response_format": {"type": "json_schema", "json_schema": {
        "name": "x", "schema": {"properties": {"x": 3}}}}}, 400,
     "response_format.json_schema.schema", "^/properties/x"),
    ({"tools": [{"type": "function", "function": {"name": "f", "parameters": {"properties": {"x": 3}}}}]}, 400,
     "tools[0].function.parameters", "^function 'f': /properties/x"),
    ({"response_format": {"type": "structural_tag"}}, 400, "response_format", "^/: 'format' is missing"),
    ({"response_format": {**TAGS, "x": 1}}, 400, "response_format", "^/: 'x' is not known here"),
    ({"response_format": {**OLDER, "triggers": ["f"]}}, 400, "response_format", "^/structures/0/begin: no trigger"),
    ({"response_format": {**OLDER, "triggers": 3}}, 400, "response_format", "^/triggers: a list is needed"),
    ({"structured_outputs": {"structural_tag": "{"}}, 400, "structured_outputs.structural_tag", "malformed JSON"),
    ({"structured_outputs": {"structural_tag": "true"}}, 400, "structured_outputs.structural_tag", "is an object"),
    ({"structured_outputs": {"structural_tag": {"type": "xml"}}}, 400, "structured_outputs.structural_tag",
     'format the string "xml" is not known'),
    ({"structured_outputs": {"structural_tag": TAGS}, "guided_regex": "a"}, 400, "guided_regex", "at the same time"),
    ({"structural_tag": "{}"}, 400, "structural_tag", "send it as response_format"),
    ({"tool_choice": "required"}, 400, "tool_choice", "no tools"),
    ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "f"}}}, 400,
     "tool_choice.function.name", "no function 'f'"),
    ({"tools": [*TOOLS, TOOLS[0]], "tool_choice": "required"}, 400, "tools[2].function.name", "two functions"),
    ({"tools": TOOLS, "tool_choice": "required", "guided_regex": "a"}, 400, "tools", "at the same time"),
    ({"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "string"}}}],
      "tool_choice": "required"}, 400, "tools[0].function.parameters", "arguments of 'f' are an object"),
    ({"tools": [{"type": "function", "function": {"name": "f", "parameters": {"properties": {"x": 3}}}}],
      "tool_choice": "required"}, 400, "tools[0].function.parameters", "^function 'f': /properties/x"),
    ({"tools": [{"type": "function", "function": {"name": "f", "parameters": {"properties": {"x": 3}}}}],
      "tool_choice": {"type": "function", "function": {"name": "f"}}}, 400,
     "tools[0].function.parameters", "^function 'f': /properties/x"),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "status", "param", "said"), REFUSED, ids=lambda each: str(each)[:50])
def test_what_cannot_be_done_is_refused_by_name(service, fields, status, param, said):
    body = json.dumps({"model": loading.TINY, "messages": HELLO, "max_tokens": 50, **fields})
    out = httpx.post(
        f"{service.url}/v1/chat/completions", content=body, headers={"content-type": "application/json"}, timeout=60
    )
    error = out.json()["error"]
    assert (out.status_code, error["param"], error["type"]) == (status, param, "invalid_request_error")
    assert re.search(said, error["message"])


def test_a_pattern_asks_for_unicode_by_name(service):
    for pattern, reads in ((r"\d", False), (r"(?u)\d", True), (r"(?iu)\d", True), (r"(?u:\d)", True)):
        table = service.table(constraints.Constraint("regex", pattern, "guided_regex"))
        spelt = service.loaded.vocabulary.encode("\u0663")  # an Arabic three
        assert (table.accepts(spelt), table.accepts(service.loaded.vocabulary.encode("3"))) == (reads, True), pattern


def test_members_come_in_any_order_where_a_request_asks_for_it(service):
    schema = {
        "properties": {"a": {"const": 1}, "b": {"const": 2}},
        "required": ["a", "b"],
        "additionalProperties": False,
    }
    schema = {"type": "object", **schema}
    seen = set()
    for seed in range(12):
        out = post(service, prompt="x", guided_json=schema, any_order=True, max_tokens=30, seed=seed)
        seen.add(tuple(json.loads(out.json()["choices"][0]["text"])))
    assert seen == {("a", "b"), ("b", "a")}


def test_one_tool_that_cannot_be_enforced_does_not_fail_the_others(client, service):
    parameters = {"properties": {"numbers": DEPENDS}, "required": ["numbers"], "additionalProperties": False}
    wrong = {"type": "function", "function": {"name": "pick", "parameters": parameters}}
    for choice in ("required", "auto"):
        body = {"messages": HELLO, "tools": [wrong, *TOOLS], "tool_choice": choice, "max_tokens": 60}
        out = post(service, "/v1/chat/completions", **body)
        assert out.status_code == 200
        (warning,) = out.headers.get_list("x-maskwright-warning")
        assert warning.startswith(
            "tools[0].function.parameters cannot be called: function 'pick': /properties/numbers/then/uniqueItems: "
        )
        streamed = post(service, "/v1/chat/completions", stream=True, **body)
        assert streamed.headers["x-maskwright-warning"] == warning
        calls = out.json()["choices"][0]["message"].get("tool_calls") or []
        assert [call["function"]["name"] != "pick" for call in calls] == [True] * (choice == "required" or len(calls))
        strict = {"type": "function", "function": {**wrong["function"], "strict": True}}
        refused = post(service, "/v1/chat/completions", **{**body, "tools": [*TOOLS, strict]})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "tools[2].function.parameters")


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "pick"}}])
def test_arguments_of_tools_keep_their_items_distinct(client, service, choice):
    few = {**DISTINCT, "items": {"type": "integer", "minimum": 0, "maximum": 13}, "minItems": 5, "maxItems": 5}
    parameters = {"properties": {"numbers": few}, "required": ["numbers"], "additionalProperties": False}
    tools = [{"type": "function", "function": {"name": "pick", "parameters": parameters}}]
    options = {"tools": tools, "tool_choice": choice, "parallel_tool_calls": False, "max_tokens": 200}
    picked = []
    for seed in range(12):
        (answer,) = chat(client, **options, seed=seed).choices
        if answer.finish_reason != "length":
            picked += [call for call in answer.message.tool_calls if call.function.name == "pick"]
    assert len(picked) > 1
    assert all(len(set(json.loads(call.function.arguments)["numbers"])) == 5 for call in picked)


def test_a_call_that_is_cut_before_its_name_is_whole_is_not_listed(client):
    cut = 0
    for seed in range(30):
        (answer,) = chat(client, tools=SETS, tool_choice="required", seed=seed, max_tokens=12).choices
        assert all(call.function.name == "pick" for call in answer.message.tool_calls or ())
        cut += not answer.message.tool_calls
    assert cut


@pytest.mark.parametrize("choice", ["required", "auto"])
def test_arguments_of_tools_may_have_what_is_not_enforced_by_name(client, service, choice):
    parameters = {"properties": {"numbers": DEPENDS}, "required": ["numbers"], "additionalProperties": False}
    tools = [{"type": "function", "function": {"name": "pick", "parameters": parameters}}]
    options = {"tools": tools, "tool_choice": choice, "max_tokens": 80}
    with pytest.raises(openai.BadRequestError) as found:
        chat(client, **options)
    assert found.value.body["pointer"] == "/properties/numbers/then/uniqueItems"
    assert found.value.body["param"] == "tools[0].function.parameters"
    body = {"messages": HELLO, **options, "allow": ["uniqueItems"]}
    (warning,) = post(service, "/v1/chat/completions", **body).headers.get_list("x-maskwright-warning")
    assert warning.startswith("tools[0].function.parameters#/properties/numbers/then/uniqueItems is not enforced: ")
    for seed in range(3):
        message = chat(client, **options, seed=seed, extra_body={"allow": ["uniqueItems"]}).choices[0].message
        assert message.tool_calls or choice == "auto"
        for call in message.tool_calls or ():
            numbers = json.loads(call.function.arguments)["numbers"]
            assert len(numbers) == 3
            assert all(0 <= number <= 99 for number in numbers)


def test_an_error_of_a_schema_has_its_json_pointer(client):
    schema = {"type": "object", "properties": {"a": {"items": {"minLength": -1}}}}
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError) as found:
            chat(client, response_format=schema_format(schema), stream=stream)
        error = found.value.body
        assert error["pointer"] == "/properties/a/items/minLength"
        assert error["param"] == "response_format.json_schema.schema"
        assert error["code"] == "invalid_schema"


def test_an_error_of_a_grammar_has_its_line_and_column(client):
    with pytest.raises(openai.BadRequestError) as found:
        chat(client, extra_body={"structured_outputs": {"grammar": 'start: "a"\nx: "b" y'}})
    error = found.value.body
    assert (error["code"], error["line"], error["column"]) == ("invalid_grammar", 2, 8)
    assert (error["param"], error["position"]) == ("structured_outputs.grammar", 18)


@pytest.mark.parametrize(
    ("content", "code", "pointer", "more"),
    [
        ({"type": "regex", "pattern": "(a"}, "invalid_regex", "/format/content/pattern", {"position": 0}),
        ({"type": "grammar", "grammar": "root ::=\nx"}, "invalid_grammar", "/format/content/grammar", {"line": 2}),
        ({"type": "json_schema", "json_schema": {"items": {"type": 3}}}, "invalid_schema",
         "/format/content/json_schema/items/type", {"keyword": None}),
        ({"type": "any_text", "max_chars": -1}, "invalid_constraint", "/format/content/max_chars", {}),
    ],
)  # fmt: skip
def test_an_error_within_tags_has_its_json_pointer(client, content, code, pointer, more):
    tag = {"type": "structural_tag", "format": {"type": "tag", "begin": "<a>", "content": content, "end": "</a>"}}
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError) as found:
            chat(client, response_format=tag, stream=stream)
        error = found.value.body
        assert (error["param"], error["code"], error["pointer"]) == ("response_format", code, pointer)
        assert more.items() <= error.items()


def test_a_grammar_that_has_no_table_is_read_as_it_is_and_may_be_cut(client, service):
    ends = set()
    for seed in range(6):
        out = chat(client, extra_body={"guided_grammar": PALINDROMES}, max_tokens=8, seed=seed).choices[0]
        ends.add(out.finish_reason)
        if out.finish_reason == "stop":
            assert out.message.content == out.message.content[::-1]
        assert set(out.message.content) <= set("ab")
        before = service.cache.stats.compilations
    assert "length" in ends
    assert service.cache.stats.compilations == before


@pytest.mark.parametrize(
    ("grammar", "syntax"),
    [
        ('start: "a"', "lark"), ('start: NAME "::=" NAME\nNAME: "x"', "lark"), ('// root ::= x\nstart: "a"', "lark"),
        ('root ::= "a"', "ebnf"), ("# says\n  root::=[a]", "ebnf"), ('a-b\t::= "start: x"', "ebnf"), ("", "lark"),
        ('root ::= "a: b"\nb: ::= c', "ebnf"), ('start: "a"\n | "b ::= c"', "lark"),
    ],
)  # fmt: skip
def test_a_grammar_is_ebnf_if_a_line_begins_with_a_name_and_two_colons_and_equals(grammar, syntax):
    assert syntax_of(grammar) == syntax


def test_annotations_and_fields_that_change_nothing_are_taken(service):
    nothing = {
        "user": "u", "metadata": {"a": "b"}, "presence_penalty": 0, "frequency_penalty": 0.0, "logit_bias": {},
        "best_of": 1, "echo": False, "suffix": None, "top_k": -1, "response_format": {"type": "text"}, "n": None,
        "service_tier": "auto", "logprobs": None, "seed": None, "stop": None,
    }  # fmt: skip
    out = post(service, prompt="a", max_tokens=3, **nothing)
    assert out.status_code == 200, out.text


@pytest.mark.long
def test_limits_of_a_server_are_told():
    limits = Limits(max_body_bytes=3000, budget=mw.Budget(states=50), max_tokens=5000)
    with running(limits=limits) as one:
        out = post(one, prompt="a" * 4000)
        assert out.status_code == 413
        assert "--max-body-bytes" in out.json()["error"]["message"]
        out = post(one, prompt="a", guided_choice=[f"{n}" * 5 for n in range(30)]).json()["error"]
        assert out["code"] == "constraint_too_expensive"
        assert "--budget-states" in out["message"]
        out = post(one, prompt="a" * 2900, max_tokens=2000).json()["error"]
        assert (out["code"], out["param"]) == ("context_length_exceeded", "max_tokens")
    with running(limits=Limits(budget=mw.Budget(seconds=0))) as one:
        out = post(one, prompt="a", guided_json=CITY).json()["error"]
        assert out["code"] == "constraint_too_expensive"
        assert "--budget-seconds" in out["message"]


# ------------------------------------------------------------------------------------------------------------- load


@pytest.mark.long
def test_forty_clients_with_all_kinds_of_constraints_get_what_they_asked_for(service):
    def ask(n):
        rng = random.Random(n)
        kind = rng.choice(("schema", "regex", "choice", "grammar", "tags", "tool", "auto", "free"))
        client = client_of(service)
        options = {"max_tokens": rng.choice((40, 60)), "seed": n, "temperature": rng.choice((0, 0.8, 1.3))}
        if kind == "schema":
            schema = {**CITY, "title": f"t{n % 7}", "required": ["name"] if n % 2 else ["founded"]}
            out = chat(client, response_format=schema_format(schema), **options)
            jsonschema.validate(json.loads(out.choices[0].message.content), schema)
        elif kind == "tool":
            out = chat(client, tools=TOOLS, tool_choice="required", **{**options, "max_tokens": 90})
            call = out.choices[0].message.tool_calls[0].function
            check_call(call.name, call.arguments)
        elif kind == "regex":
            pattern = f"[a-z]{{{n % 9 + 1},20}}[0-9]+"
            out = chat(client, extra_body={"guided_regex": pattern}, **options)
            assert re.fullmatch(pattern, out.choices[0].message.content)
        elif kind == "choice":
            choices = [f"choice {n} {i}" for i in range(3)]
            out = chat(client, extra_body={"guided_choice": choices}, **options)
            assert out.choices[0].message.content in choices
        elif kind == "grammar":
            grammar = f"root ::= [a-z]+ '{n % 7}'"
            out = chat(client, extra_body={"structured_outputs": {"grammar": grammar}}, **options)
            assert re.fullmatch(f"[a-z]+{n % 7}", out.choices[0].message.content)
        elif kind == "tags":
            out = chat(client, response_format=TAGS, **options)
            assert re.fullmatch('[a-c]{0,3}<f>("x"|true)</f>', out.choices[0].message.content)
        else:
            out = chat(client, **options, **({"tools": TOOLS} if kind == "auto" else {}))
        if kind not in ("free", "auto"):
            assert out.choices[0].finish_reason in ("stop", "tool_calls")
        return kind

    with ThreadPoolExecutor(40) as pool:
        assert len(set(pool.map(ask, range(40)))) == 8
    idle(service)


def post_from(address, service):
    """Ask for a long answer; the server takes each address for a client of its own."""
    body = {"model": loading.TINY, "prompt": "a", "guided_regex": "[a-z]{60}", "max_tokens": 60}
    with httpx.Client(transport=httpx.HTTPTransport(local_address=address, verify=False), timeout=60) as client:
        return client.post(f"{service.url}/v1/completions", json=body)


def test_a_full_queue_says_when_to_come_back():
    with running(limits=Limits(rows=1, max_queue=1), slow=0.03) as one, ThreadPoolExecutor(2) as pool:
        asked = [pool.submit(post_from, "127.0.0.2", one), pool.submit(post_from, "127.0.0.3", one)]
        wait(lambda: one.open == 2)
        out = post(one, prompt="a", max_tokens=3)
        assert (out.status_code, out.json()["error"]["code"]) == (503, "queue_full")
        assert int(out.headers["retry-after"]) >= 1
        assert [each.result().status_code for each in asked] == [200, 200]
        assert post(one, prompt="a", max_tokens=3).status_code == 200


@pytest.mark.parametrize("stream", [False, True])
def test_who_hangs_up_leaves_its_rows_to_others(stream):
    with running(limits=Limits(rows=2, max_tokens=1000), slow=0.02) as one:
        body = {"model": loading.TINY, "prompt": "a", "guided_regex": LONG, "max_tokens": 800, "n": 4, "stream": stream}
        port = int(one.url.rsplit(":", 1)[1])
        raw = json.dumps(body).encode()
        head = (
            f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(raw)}"
        )
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.sendall(head.encode() + b"\r\n\r\n" + raw)
            wait(lambda: one.worker.running == 2 and one.worker.waiting == 2)
            if stream:
                assert b"200 OK" in connection.recv(1000)
        began = time.monotonic()
        idle(one)
        assert time.monotonic() - began < 6
        text = httpx.get(f"{one.url}/metrics").text
        assert 'endpoint="completions",outcome="disconnected"} 1.0' in text


def test_every_malformed_request_is_answered_and_none_kills_the_server(service):
    rng = random.Random(0)
    values = [
        None, True, 0, -1, 1.5, 10**30, "", "a", "\ud800", "\x00", [], {}, [1], ["a"], [[]], [[1, 10**12]], [-1],
        {"type": "text"}, {"type": "json_object"}, {"type": "json_schema", "json_schema": {"name": "", "schema": {}}},
        {"json": {"type": []}}, {"regex": "["}, {"choice": ["\ud800"]}, float("nan"), float("inf"), 1e-300, "[" * 400,
        {"structural_tag": {"type": "tag"}}, {"structural_tag": "3"}, {"type": "structural_tag", "format": DEEP}, TAGS,
        DEEP, {"$ref": "#"}, {"enum": []}, {"pattern": "("}, {"minimum": 1e308}, {"multipleOf": 0}, ["a", 1],
        [{"role": "user", "content": "x"}], [{"role": "tool", "content": None}], [{"type": "function"}],
    ]  # fmt: skip
    names = [
        "model", "prompt", "messages", "max_tokens", "temperature", "top_p", "top_k", "min_p", "seed", "n", "stop",
        "stream", "stream_options", "response_format", "structured_outputs", "guided_json", "guided_regex",
        "guided_choice", "tools", "tool_choice", "logprobs", "user", "x", "max_completion_tokens", "metadata",
    ]  # fmt: skip
    bodies = [
        b"", b"{", b"[]", b"null", b"3", b'"a"', b"{}", b"\xff\xfe", b'{"a":1}{', b"[" * 100_000,
        b'{"model": ' * 3000, b'{"max_tokens": ' + b"9" * 5000 + b"}", b'{"model":"a","model":"b"}',
    ]  # fmt: skip
    for name in names:  # each value in each place, and then some at once
        for value in values:
            own = {"messages": HELLO} if name.startswith(("mess", "tool")) else {"prompt": "a"}
            body = {"model": loading.TINY, **own, "max_tokens": 3, name: value}
            bodies.append(json.dumps(body).encode())
    for _ in range(350):
        body = {"model": loading.TINY, "prompt": "a", "max_tokens": 3}
        if rng.random() < 0.5:
            body = {"model": loading.TINY, "messages": HELLO, "max_tokens": 3}
        for _ in range(rng.randint(1, 3)):
            body[rng.choice(names)] = rng.choice(values)
        bodies.append(json.dumps(body).encode())
    seen = {}
    with httpx.Client(base_url=service.url, timeout=60) as client:
        for body in bodies:
            path = "/v1/chat/completions" if b'"messages"' in body else "/v1/completions"
            kind = rng.choice(("application/json",) * 5 + ("text/plain",))
            out = client.post(path, content=body, headers={"content-type": kind})
            assert out.status_code in (200, 400, 404), (body[:300], out.text)
            if out.status_code != 200:
                assert set(out.json()["error"]) >= {"message", "type", "param", "code"}
            seen[out.status_code] = seen.get(out.status_code, 0) + 1
        for method, path in (
            ("GET", "/v1/completions"),
            ("POST", "/health"),
            ("GET", "/nothing"),
            ("PUT", "/v1/models"),
        ):
            out = client.request(method, path)
            assert out.status_code in (404, 405)
            assert out.json()["error"]["message"]
    assert seen[200] > 10
    assert seen[400] > 200
    assert service.fault is None
    idle(service)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_requests_made_from_the_description_never_fail_the_server(service):
    schemathesis = pytest.importorskip("schemathesis")
    from hypothesis import HealthCheck

    description = httpx.get(f"{service.url}/openapi.json").json()
    api = schemathesis.openapi.from_dict(description)
    count = 0
    for path in ("/v1/chat/completions", "/v1/completions", "/v1/models/{name}"):
        operation = api[path]["GET" if "{" in path else "POST"]

        @given(case=operation.as_strategy())
        @settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck), database=None)
        def ask(case):
            nonlocal count
            if isinstance(case.body, dict):
                case.body["model"] = loading.TINY
            out = case.call(base_url=service.url)
            assert out.status_code < 500 or out.status_code == 503
            count += 1

        ask()
    assert count > 300
    assert service.fault is None


# --------------------------------------------------------------------------------------------------- beginning, end


def test_a_fault_of_the_engine_is_told_to_all_who_wait_and_by_health():
    with running(limits=Limits(rows=1)) as one, ThreadPoolExecutor(3) as pool:
        step, calls = one.worker.engine.step, []

        def broken():
            calls.append(1)
            if len(calls) > 5 and one.open == 3:
                raise RuntimeError("the device is gone")
            time.sleep(0.01)
            return step()

        one.worker.engine.step = broken
        fields = {"prompt": "a", "guided_regex": LONG, "max_tokens": 800}
        asked = [pool.submit(post, one, **fields, stream=n == 2) for n in range(3)]
        for each in asked[:2]:
            out = each.result(30)
            assert (out.status_code, out.json()["error"]["code"]) == (500, "engine_fault")
        assert '"engine_fault"' in asked[2].result(30).text
        assert "[DONE]" not in asked[2].result().text
        out = httpx.get(f"{one.url}/health")
        assert (out.status_code, out.json()["status"]) == (503, "failed")
        assert httpx.get(f"{one.url}/ready").status_code == 503
        assert post(one, prompt="a").json()["error"]["code"] == "engine_fault"
        assert one.open == 0


def test_a_model_that_rules_all_out_is_a_fault_of_its_own():
    loaded = loading.tiny()
    with torch.no_grad():
        loaded.model.lm_head.weight[5:] = float("nan")
    with running(loaded) as one:
        assert "no numbers" in one.fault
        assert httpx.get(f"{one.url}/ready").status_code == 503


@pytest.mark.parametrize("grace", [20.0, 0.3])
def test_a_server_that_is_told_to_stop_lets_what_is_written_end_up_to_a_time(grace):
    limits, before = Limits(rows=2, grace_seconds=grace), set(threading.enumerate())
    with running(limits=limits, slow=0.03) as one, ThreadPoolExecutor(2) as pool:
        asked = [
            pool.submit(post, one, prompt="a", guided_regex="[a-z]{100}", max_tokens=100, stream=stream)
            for stream in (False, True)
        ]
        wait(lambda: one.worker.running == 2)
        one.server.should_exit = True
        wait(lambda: one.draining)
        with contextlib.suppress(httpx.TransportError):  # nothing listens any more
            assert post(one, prompt="a").status_code == 503
        began = time.monotonic()
        whole, stream = (each.result(30) for each in asked)
        if grace > 1:
            assert re.fullmatch("[a-z]{100}", whole.json()["choices"][0]["text"])
            assert stream.text.endswith("data: [DONE]\n\n")
        else:
            assert (whole.status_code, whole.json()["error"]["code"]) == (503, "shutting_down")
            assert '"shutting_down"' in stream.text
            assert time.monotonic() - began < 10
        one.thread.join(10)
        assert not one.thread.is_alive()
        assert "maskwright-engine" not in {thread.name for thread in set(threading.enumerate()) - before}


@pytest.mark.long
def test_a_server_that_has_ended_keeps_nothing():
    with running() as one:
        assert post(one, prompt="a", max_tokens=2).status_code == 200
        engine = weakref.ref(one.worker.engine)
    del one
    gc.collect()
    assert engine() is None


@pytest.mark.long
def test_the_command_serves_and_ends_by_sigterm(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [
        sys.executable,
        "-m",
        "maskwright.cli.main",
        "serve",
        "--port",
        str(port),
        "--rows",
        "2",
        "--cache-dir",
        tmp_path,
    ]
    process = subprocess.Popen(
        list(map(str, command)), stderr=subprocess.PIPE, text=True, env={**os.environ, "HF_HUB_OFFLINE": "1"}
    )
    try:
        url = f"http://127.0.0.1:{port}"

        def ready():
            assert process.poll() is None
            with contextlib.suppress(httpx.TransportError):
                return httpx.get(f"{url}/ready").status_code == 200

        wait(ready)
        out = httpx.post(
            f"{url}/v1/completions",
            json={"model": loading.TINY, "prompt": "a", "guided_choice": ["ab", "c"]},
            timeout=60,
        )
        assert out.json()["choices"][0]["text"] in ("ab", "c")
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=30)
    finally:
        process.kill()
    assert process.returncode in (0, -signal.SIGTERM)
    assert "nonsense" in said
    assert "Traceback" not in said
    assert list(tmp_path.glob("table-*"))


def test_options_of_the_command_are_checked(tmp_path, monkeypatch):
    def said(*arguments):
        out = CliRunner().invoke(main, ["serve", *map(str, arguments)])
        assert out.exit_code
        return out.output

    assert "go with --model" in said("--eos", 3)
    assert "has no config.json" in said("--model", tmp_path)
    (tmp_path / "config.json").write_text("{")
    assert "cannot load" in said("--model", tmp_path)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert "pip install 'maskwright[serve]'" in said()


def test_metrics_are_what_prometheus_reads(service, client):
    def read():
        text = httpx.get(f"{service.url}/metrics").text
        return {
            (sample.name, *sorted(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }

    before = read()
    pattern = "name: (abc|def)"
    for _ in range(2):
        out = client.completions.create(
            model=loading.TINY, prompt="abc", max_tokens=20, extra_body={"guided_regex": pattern}
        )
    post(service, prompt="a", n=0)
    after = read()
    grown = {key: after[key] - before.get(key, 0) for key in after}
    assert grown["maskwright_requests_total", ("endpoint", "completions"), ("outcome", "done")] == 2
    assert grown["maskwright_requests_total", ("endpoint", "completions"), ("outcome", "refused")] == 1
    assert grown["maskwright_prompt_tokens_total",] == 6
    assert grown["maskwright_generated_tokens_total",] == 2 * out.usage.completion_tokens
    assert grown["maskwright_forced_tokens_total",] >= 12
    assert grown["maskwright_cache_requests_total", ("origin", "compiled")] == 1
    assert grown["maskwright_cache_requests_total", ("origin", "memory")] == 1
    assert grown["maskwright_compile_seconds_count",] == 2
    assert grown["maskwright_time_to_first_token_seconds_count",] == 2
    assert grown["maskwright_step_seconds_count",] > 0
    assert after["maskwright_rows",] == 16
    assert (after["maskwright_running",], after["maskwright_queue_length",]) == (0, 0)


def test_models_are_listed(client):
    assert [model.id for model in client.models.list()] == [loading.TINY]
    assert client.models.retrieve(loading.TINY).id == loading.TINY
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")


# ----------------------------------------------------------------------------------------------------------- models


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model of transformers with a byte-level tokenizer, and several tokens that end a text."""
    path = tmp_path_factory.mktemp("model") / "small"
    made, _ = tokenizer_zoo.byte_level_bpe()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<|endoftext|>")
    config = transformers.LlamaConfig(
        vocab_size=len(tokenizer) + 5, hidden_size=16, intermediate_size=16, num_hidden_layers=1,
        num_attention_heads=2, eos_token_id=[tokenizer.eos_token_id, 70, len(tokenizer) + 2],
        max_position_embeddings=256,
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(config)
    model.generation_config.eos_token_id = [tokenizer.eos_token_id, 70, len(tokenizer) + 2]
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


@pytest.mark.long
def test_a_model_is_loaded_from_its_folder(folder):
    loaded = loading.load(folder, device="cpu")
    assert loaded.name == "small"
    assert loaded.context == 256
    assert loaded.stop_ids == {70}  # is text, which constraints need
    assert loaded.vocabulary.ends == (loaded.vocabulary.size - 6, loaded.vocabulary.size - 3)
    assert any("no chat template" in note for note in loaded.notes)
    text = loaded.vocabulary.decode(loaded.chat([{"role": "user", "content": "hello"}], None, {})).decode()
    assert text == "user: hello\nassistant:"
    with running(loaded, Limits(max_tokens=200)) as one:
        client = client_of(one)
        out = client.chat.completions.create(
            model="small", messages=HELLO, response_format=schema_format(CITY), max_tokens=60, seed=0
        )
        jsonschema.validate(json.loads(out.choices[0].message.content), CITY)
        ends = set()
        for seed in range(6):
            out = client.completions.create(
                model="small", prompt="a", max_tokens=150, seed=seed, temperature=2.0, logprobs=0
            )
            ends.add(out.choices[0].finish_reason)
            assert loaded.vocabulary.tokens[70].decode() not in out.choices[0].logprobs.tokens
        assert "stop" in ends
        idle(one)


def test_a_chat_template_is_followed_and_may_refuse(folder, tmp_path):
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    tokenizer.chat_template = (
        "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system here') }}{% endif %}"
        "<{{ m.role }}>{{ m.content }}{% endfor %}{% if tools %}{{ tools[0].function.name }}{% endif %}<bot>"
    )
    tokenizer.save_pretrained(tmp_path)
    loaded = loading.load(folder, tokenizer=tmp_path, device="cpu")
    assert not loaded.notes
    assert loaded.vocabulary.decode(loaded.chat(HELLO, None, {})) == b"<user>hello<bot>"
    assert loaded.vocabulary.decode(loaded.chat(HELLO, TOOLS, {})) == b"<user>helloweather<bot>"
    from maskwright.serve.refusals import Refused

    with pytest.raises(Refused, match="no system here"):
        loaded.chat([{"role": "system", "content": "x"}], None, {})


def test_a_service_can_be_asked_without_http():
    """In one event loop, as an application that embeds it would."""
    from maskwright.serve.requests import CompletionRequest

    async def ask():
        service = Service(loading.tiny(), Limits(rows=2))
        await service.start()
        try:
            asked = CompletionRequest(model=loading.TINY, prompt="a", guided_regex="[ab]{4}", n=3)
            answer = await service.begin(await service.plan(asked))
            async for _ in answer.pieces():
                pass
            answer.close()
            return [choice.said for choice in answer.choices]
        finally:
            await service.stop()

    assert all(re.fullmatch("[ab]{4}", text) for text in asyncio.run(ask()))
