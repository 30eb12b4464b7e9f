"""Calls of tools as the models of each family write them: asked for, written, and read back."""

from __future__ import annotations

import json
import random
from dataclasses import replace

import pytest

import maskwright as mw
from tests.oracles.parameter_readers import fits
from tests.strategies.styled_calls import random_arguments, random_parameters, written

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")
openai = pytest.importorskip("openai")

from maskwright.serve import loading  # noqa: E402
from maskwright.serve.answers import choice_of, reader_of  # noqa: E402
from maskwright.serve.constraints import Constraint, Function, constraint_of  # noqa: E402
from maskwright.serve.families import FAMILIES, tag_of  # noqa: E402
from maskwright.serve.refusals import Refused  # noqa: E402
from maskwright.serve.requests import ChatRequest  # noqa: E402
from maskwright.serve.settings import Limits  # noqa: E402
from tests.support.servers import HELLO, client_of, running  # noqa: E402

UNTYPED = {name for name, each in FAMILIES.items() if not each.style.startswith(("deepseek", "cohere"))}
MARKS = ["<tool_call>", "</tool_call>", "<minimax:tool_call>"]


@pytest.fixture(scope="module", params=[False, True])
def vocab(request) -> mw.Vocabulary:
    """A vocabulary in which marks are text, or control tokens."""
    names = {mark: 257 + i for i, mark in enumerate(MARKS)} if request.param else {}
    tokens = [b"", *(bytes([b]) for b in range(256)), *(b"" for _ in names or ())]
    return mw.Vocabulary.from_bytes(tokens, eos=0, special=names)


def tokens_of(vocab: mw.Vocabulary, text: str) -> list[int]:
    out: list[int] = []
    while text:
        mark = next((mark for mark in MARKS if mark in vocab.special_ids and text.startswith(mark)), None)
        out += [vocab.special_ids[mark]] if mark else vocab.encode(text[0])
        text = text[len(mark or "a") :]
    return out


def text_of(family: str, calls: list[tuple[str, dict[str, object]]]) -> str:
    one = FAMILIES[family]
    style = "mimo" if family == "mimo" else one.style
    bodies = [
        one.begin_of(name) + written(style, arguments).removesuffix("\n" if one.end.startswith("\n") else "") + one.end
        for name, arguments in calls
    ]
    return one.first + one.gap.join(bodies) + one.last


@pytest.mark.parametrize("family", FAMILIES)
def test_calls_are_allowed_and_read_back_however_their_tokens_come(family, vocab):
    for seed in range(8):
        rng = random.Random(seed)
        schemas = {name: random_parameters(rng) for name in ("f", "f-2")}
        functions = [Function(name, schema, at, False) for at, (name, schema) in enumerate(schemas.items())]
        calls = [(name := rng.choice(list(schemas)), random_arguments(rng, schemas[name])) for _ in range(3)]
        for only in (True, False):
            constraint = Constraint("calls", functions, "tools", only=only, family=family)
            table = mw.compile_structural_tag(
                tag_of(FAMILIES[family], list(schemas.items()), only, True), vocab, whitespace="spaced"
            )
            text = text_of(family, calls) if only else f"so: {text_of(family, calls)}é"
            tokens = tokens_of(vocab, text)
            assert table.accepts(tokens), text
            choice = choice_of(0, vocab, [], reader_of(constraint, vocab)())
            while tokens:
                size = rng.randrange(1, 40)
                choice.feed(tokens[:size], last=len(tokens) <= size)
                tokens = tokens[size:]
            assert choice.calls is not None
            assert [(call.name, json.loads(call.arguments)) for call in choice.calls.found] == calls
            assert choice.said.replace("\n", "") == ("" if only else "so: é")
            assert choice.calls.ended(full=False) == "tool_calls"


def asked(tools, **fields):
    body = {"model": loading.TINY, "messages": HELLO, "tools": tools, **fields}
    return ChatRequest.model_validate(body)


def tool(name, **parameters):
    return {"type": "function", "function": {"name": name, "parameters": {"type": "object", **parameters}}}


WEATHER = tool(
    "weather",
    properties={
        "city": {"type": "string", "maxLength": 8}, "days": {"type": "integer", "minimum": 1, "maximum": 14},
        "units": {"type": "array", "items": {"enum": ["C", "F"]}, "maxItems": 2},
    },
    required=["city", "days"], additionalProperties=False,
)  # fmt: skip
NOW = tool("now", properties={}, additionalProperties=False)
NESTED = tool(
    "nested", properties={"a": {"$ref": "#/$defs/D"}}, required=["a"],
    **{"$defs": {"D": {"type": "object", "properties": {}}}},
)  # fmt: skip


def test_a_named_function_is_one_call_in_the_form_of_the_family():
    named = {"type": "function", "function": {"name": "now"}}
    found = constraint_of(asked([WEATHER, NOW], tool_choice=named), "glm_4_7")
    assert found is not None
    assert (found.kind, found.tool, found.only, found.parallel) == ("calls", "now", True, False)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_server_writes_calls_of_its_family(family):
    loaded = replace(loading.tiny(), calls=family)
    with running(loaded, limits=Limits(max_tokens=1000)) as service:
        client = client_of(service)
        for choice in ("required", {"type": "function", "function": {"name": "weather"}}):
            answer = client.chat.completions.create(
                model=loading.TINY, messages=HELLO, tools=[WEATHER, NOW], tool_choice=choice, max_tokens=700, seed=1,
                parallel_tool_calls=False,
            )  # fmt: skip
            [one] = answer.choices
            assert one.finish_reason == "tool_calls"
            [call] = one.message.tool_calls
            parameters = WEATHER if call.function.name == "weather" else NOW
            assert fits(parameters["function"]["parameters"], json.loads(call.function.arguments))
        if family in UNTYPED:
            with pytest.raises(openai.BadRequestError, match=r"nested.*says no types"):
                client.chat.completions.create(
                    model=loading.TINY, messages=HELLO, tools=[NESTED], tool_choice="required", max_tokens=300
                )
        parts = list(
            client.chat.completions.create(
                model=loading.TINY, messages=HELLO, tools=[NOW], tool_choice="required", max_tokens=700, seed=2,
                stream=True,
            )
        )  # fmt: skip
        told = [call for part in parts for call in part.choices[0].delta.tool_calls or ()]
        assert {call.function.name for call in told if call.function.name} == {"now"}


# ----------------------------------------------------------------------------------- more of what agents send


SHAPE = {
    "type": "object", "properties": {"at": {"$ref": "#/$defs/at"}}, "required": ["at"], "additionalProperties": False,
    "$defs": {"at": {"enum": ["<tool_call>", "here"]}},
}  # fmt: skip
BESIDE = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SHAPE}}


@pytest.mark.parametrize("family", ["hermes", *FAMILIES])
def test_an_answer_is_calls_or_fits_its_schema(family, vocab):
    found = constraint_of(asked([WEATHER, NOW], response_format=BESIDE), family)
    assert found is not None
    matcher = mw.Matcher(found.to_compile("spaced").compile(vocab), vocab)
    read = reader_of(found, vocab)
    call = (
        '<tool_call>{"name": "now", "arguments": {}}</tool_call>'
        if family == "hermes"
        else text_of(family, [("now", {})])
    )
    rng = random.Random(family)
    for text, calls in ((call, 1), ('{"at": "<tool_call>"}', 0), ('{"at": "here"}', 0)):
        tokens = tokens_of(vocab, text) if calls else vocab.encode(text)
        assert matcher.accepts(tokens), text
        choice = choice_of(0, vocab, [], read())
        while tokens:
            size = rng.randint(1, 9)
            choice.feed(tokens[:size], len(tokens) <= size)
            tokens = tokens[size:]
        assert len(choice.calls.found) == calls
        assert choice.said == ("" if calls else text)
        assert choice.calls.ended(False) == ("tool_calls" if calls else "stop")
    for text in ("", "so ", '{"at": "there"}', '{"at": "here"} ', "x" + call, call + '{"at": "here"}'):
        assert not matcher.accepts(tokens_of(vocab, text)), text


def test_a_schema_of_the_answer_says_nothing_of_answers_that_are_calls():
    for choice in ("required", {"type": "function", "function": {"name": "now"}}):
        found = constraint_of(asked([WEATHER, NOW], tool_choice=choice, response_format=BESIDE))
        assert found == constraint_of(asked([WEATHER, NOW], tool_choice=choice))
    found = constraint_of(asked([WEATHER, NOW], tool_choice="none", response_format=BESIDE))
    assert found is not None
    assert (found.kind, found.source) == ("schema", SHAPE)


def test_what_is_wrong_with_the_answers_schema_or_not_enforced_is_told_by_its_field(vocab):
    wrong = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"uniqueItems": True, "title": "x"}}}
    for family in ("hermes", "glm_4_7"):
        found = constraint_of(asked([WEATHER, NOW], response_format=wrong, allow=["uniqueItems"]), family)
        assert found is not None
        told = found.named(found.to_compile("spaced").compile(vocab).unenforced)
        assert [each.pointer for each in told] == ["response_format.json_schema.schema#/uniqueItems"]


@pytest.mark.parametrize("family", ["hermes", "qwen_3_coder"])
def test_a_server_writes_calls_or_an_answer_of_a_schema(family):
    with running(replace(loading.tiny(), calls=family), limits=Limits(max_tokens=1000)) as service:
        client = client_of(service)
        options = {
            "model": loading.TINY, "messages": HELLO, "tools": [WEATHER, NOW], "response_format": BESIDE,
            "max_tokens": 900, "parallel_tool_calls": False,
        }  # fmt: skip
        seen = set()
        for seed in range(12):
            [one] = client.chat.completions.create(**options, seed=seed).choices
            if one.message.tool_calls:
                assert (one.finish_reason, one.message.content) == ("tool_calls", None)
            else:
                assert one.finish_reason == "stop"
                assert json.loads(one.message.content)["at"] in ("<tool_call>", "here")
            streamed = "".join(
                choice.delta.content or ""
                for chunk in client.chat.completions.create(**options, seed=seed, stream=True)
                for choice in chunk.choices
            )
            assert streamed == (one.message.content or "")
            seen.add(one.finish_reason)
        assert seen == {"tool_calls", "stop"}


def test_allowed_tools_are_as_if_there_were_no_others():
    choice = {"mode": "required", "tools": [{"type": "function", "function": {"name": "now"}}]}
    found = constraint_of(asked([WEATHER, NOW], tool_choice={"type": "allowed_tools", "allowed_tools": choice}))
    assert found is not None
    assert [(each.name, each.at) for each in found.source] == [("now", 1)]
    assert found.only
    choice["tools"].append({"type": "function", "function": {"name": "then"}})
    with pytest.raises(Refused, match="no function 'then' among tools: weather, now") as error:
        constraint_of(asked([WEATHER, NOW], tool_choice={"type": "allowed_tools", "allowed_tools": choice}))
    assert error.value.param == "tool_choice.allowed_tools.tools[1].function.name"


def test_a_chat_template_reads_variables_of_the_request():
    seen = []

    class Tokenizer:
        def __call__(self, text, **options):
            return {"input_ids": [len(text)]}

        def apply_chat_template(self, messages, **options):
            seen.append(options)
            return "a"

    _, chat = loading.of_transformers(Tokenizer())
    assert chat([], None, {"enable_thinking": False, "reasoning_effort": "low"}) == [1]
    assert seen == [
        {
            "tools": None, "tokenize": False, "add_generation_prompt": True, "enable_thinking": False,
            "reasoning_effort": "low",
        }
    ]  # fmt: skip
    with pytest.raises(Refused, match="'tools'"):
        chat([], None, {"tools": []})
    with pytest.raises(Refused, match="no chat template that reads reasoning_effort") as error:
        loading.tiny().chat(HELLO, None, {"reasoning_effort": "low"})
    assert error.value.param == "reasoning_effort"
