"""Calls in the styles of all families, read by the tool parsers of vLLM and SGLang themselves."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import pytest

import maskwright as mw
from tests.oracles.parameter_readers import fits
from tests.strategies.styled_calls import DSML, SPACED, call_of, random_arguments, random_parameters, tag_of, walked

VLLM = {
    "qwen_3_coder": "qwen3_coder", "mimo": "mimo", "glm_4_7": "glm47", "minimax": "minimax_m2",
    "minimax_m3": "minimax_m3", "deepseek_v3_2": "deepseek_v32", "deepseek_v4": "deepseek_v4",
    "deepseek_v4_1": "deepseek_v41", "kimi_k3": "kimi_k3",
}  # fmt: skip
SGLANG = {
    "qwen_3_coder": "qwen3_coder", "glm_4_7": "glm47", "minimax": "minimax-m2", "minimax_m3": "minimax-m3",
    "deepseek_v3_2": "deepseekv32", "deepseek_v4": "deepseekv4", "deepseek_v4_1": "deepseekv41", "kimi_k3": "kimi_k3",
}  # fmt: skip
"""Not MiMo: SGLang reads HTML entities in its values, which vLLM takes as they are."""
MARKS = [
    "<tool_call>", "</tool_call>", "<think>", "</think>", "<minimax:tool_call>", "</minimax:tool_call>", "<|open|>",
    "<|close|>", "<|sep|>",
    *(f"<{end}{DSML}{name}>" for end in ("", "/") for name in ("function_calls", "tool_calls", " calls")),
]  # fmt: skip
Reader = Callable[[str, str, dict[str, Any]], list[tuple[str, str]]]


class _Tokenizer:
    """As much of a tokenizer as the parsers look at."""

    all_special_ids: tuple[int, ...] = ()
    all_special_tokens: tuple[str, ...] = ()
    chat_template = None
    eos_token_id = len(MARKS)

    def get_vocab(self) -> dict[str, int]:
        return {mark: i for i, mark in enumerate(MARKS)}

    def convert_tokens_to_ids(self, token: str) -> int | None:
        return self.get_vocab().get(token)

    def encode(self, text: str, **_: Any) -> list[int]:
        return []


def by_vllm(family: str, text: str, parameters: dict[str, Any]) -> list[tuple[str, str]]:
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.tool_parsers import ToolParserManager

    tool = {"type": "function", "function": {"name": "f", "parameters": parameters}}
    asked = ChatCompletionRequest.model_validate(
        {"model": "m", "messages": [{"role": "user", "content": "x"}], "tools": [tool]}
    )
    parser = ToolParserManager.get_tool_parser(VLLM[family])(_Tokenizer(), asked.tools)
    calls = parser.extract_tool_calls(text, request=asked).tool_calls
    return [(call.function.name, call.function.arguments) for call in calls]


def by_sglang(family: str, text: str, parameters: dict[str, Any]) -> list[tuple[str, str]]:
    from sglang.srt.entrypoints.openai.protocol import Tool
    from sglang.srt.function_call.function_call_parser import FunctionCallParser

    tool = Tool.model_validate({"type": "function", "function": {"name": "f", "parameters": parameters}})
    _, calls = FunctionCallParser([tool], SGLANG[family]).parse_non_stream(text)
    return [(call.name, call.parameters) for call in calls]


@pytest.mark.parametrize(
    ("package", "read", "family"),
    [*(("vllm", by_vllm, family) for family in VLLM), *(("sglang", by_sglang, family) for family in SGLANG)],
)
def test_a_tool_parser_reads_every_call_into_arguments_that_fit(package: str, read: Reader, family: str) -> None:
    pytest.importorskip(package)
    vocab = mw.Vocabulary.from_bytes([b"", *(bytes([b]) for b in range(256))], eos=0)
    count = 0
    for seed in range(30):
        rng = random.Random(seed)
        schema = random_parameters(rng)
        if package == "sglang":  # an enumeration of several types has strings alone there
            schema["properties"].pop("mixed", None)
            schema["required"] = [name for name in schema["required"] if name != "mixed"]
        table = mw.compile_structural_tag(tag_of(family, schema), vocab, **SPACED)
        forced = [(call_of(family, arguments), arguments) for arguments in (random_arguments(rng, schema),) * 2]
        for text, arguments in forced:
            assert table.accepts(vocab.encode(text)), text
            [(name, found)] = read(family, text, schema)
            assert name == "f"
            assert fits(schema, json.loads(found)), (text, found)
            if package == "vllm":
                assert json.loads(found) == arguments, text
        for _ in range(3):
            text = walked(rng, mw.Matcher(table), vocab)
            if text is None or any(mark in text for mark in ("e", "E")):
                continue  # a number of a large exponent is infinite where it is read
            count += 1
            [(name, found)] = read(family, text, schema)
            assert fits(schema, json.loads(found)), (text, found)
    assert count or package
