"""The few classes of vLLM and SGLang that maskwright's own build on, in modules of their names."""

from __future__ import annotations

import enum
import json
import os
import sys
import types
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from maskwright.engines import releases


def put(monkeypatch: pytest.MonkeyPatch, name: str, **members: Any) -> types.ModuleType:
    """Make a module that has these members importable, in packages that are made for it."""
    parts = name.split(".")
    for end in range(1, len(parts) + 1):
        at = ".".join(parts[:end])
        if at not in sys.modules or not hasattr(sys.modules[at], "of_tests"):
            module = types.ModuleType(at)
            module.of_tests, module.__path__ = True, []
            monkeypatch.setitem(sys.modules, at, module)
            if end > 1:
                setattr(sys.modules[".".join(parts[: end - 1])], parts[end - 1], module)
    vars(sys.modules[name]).update(members)
    return sys.modules[name]


def forget(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """Have modules of the package imported anew, on what is importable now."""
    for name in names:
        monkeypatch.delitem(sys.modules, name, raising=False)


def known(monkeypatch: pytest.MonkeyPatch, engine: str, release: str) -> None:
    """Have the classes that are in place be those of a release, the only one that is known."""
    table = json.loads(releases.FILE.read_text())
    found: releases.Table = {name: {part: {} for part in table[name]} for name in table}
    for part, codes in table[engine].items():
        for code in codes:
            thing = releases.code_at(releases.place_of(code)[0])
            if thing is not None:
                found[engine][part][code] = {releases.digest(releases.source_of(thing)): release}
    monkeypatch.setattr(releases, "table", lambda: found)
    releases.warn.cache_clear()


TAG = '{"structures": [{"begin": "<f>", "schema": {"const": 1}, "end": "</f>"}], "triggers": ["<f>"]}'


class Options(enum.Enum):
    JSON = enum.auto()
    JSON_OBJECT = enum.auto()
    REGEX = enum.auto()
    GRAMMAR = enum.auto()
    CHOICE = enum.auto()
    STRUCTURAL_TAG = enum.auto()


@dataclass
class Backend:
    vllm_config: Any
    tokenizer: Any
    vocab_size: int


class ValidationError(Exception):
    def __init__(self, message: str, *, parameter: str | None = None, value: Any = None) -> None:
        super().__init__(message)
        self.parameter, self.value = parameter, value


@dataclass
class Asked:
    """vLLM's `StructuredOutputsParams`."""

    json: Any = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: str | None = None
    disable_any_whitespace: bool = False
    disable_additional_properties: bool = False
    whitespace_pattern: str | None = None
    _backend: str | None = None
    _backend_was_auto: bool = False

    def __post_init__(self) -> None:
        pass


def key_of(params: Asked) -> tuple[Options, str]:
    """Return what vLLM's `get_structured_output_key` does for the texts of these tests."""
    for name, option in (("json", Options.JSON), ("regex", Options.REGEX), ("grammar", Options.GRAMMAR)):
        if getattr(params, name) is not None:
            return option, getattr(params, name)
    raise ValueError("nothing is asked for")


class Params:
    """vLLM's `SamplingParams`."""

    def __init__(
        self, structured_outputs: Any = None, stops: tuple[int, ...] = (), extra_args: dict[str, Any] | None = None
    ) -> None:
        self.extra_args = extra_args
        self.structured_outputs, self.all_stop_token_ids = structured_outputs, set(stops)

    def _validate_structured_outputs(self, model_config: Any, structured_outputs_config: Any, tokenizer: Any) -> None:
        """Check what vLLM's own does, in its order, and choose a backend."""
        asked = self.structured_outputs
        if structured_outputs_config is None or asked is None:
            return
        if model_config.is_diffusion:
            raise ValidationError("Structured outputs are not yet supported for diffusion language models.")
        if tokenizer is None:
            raise ValidationError("Structured outputs requires a tokenizer")
        if asked._backend and not (structured_outputs_config.backend == "auto" and asked._backend_was_auto):
            raise ValidationError("Request-level structured output backend selection is not supported.")
        if isinstance(asked.json, str) and not asked.json.strip():
            raise ValidationError("structured_outputs.json cannot be an empty string")
        deep = asked.json if isinstance(asked.json, str) else ""
        if deep.count("{") + deep.count("[") > 64:
            raise ValidationError("The JSON schema is nested too deeply")
        sys.modules["vllm.v1.structured_output.backend_xgrammar"].validate_xgrammar_grammar(self)
        asked._backend, asked._backend_was_auto = "xgrammar", True


def chosen_by_vllm(sampling_params: Any) -> None:
    raise AssertionError("no backend of vLLM's is asked")


def chosen_by_vllm_too(sampling_params: Any, tokenizer: Any = None) -> None:
    raise AssertionError("no backend of vLLM's is asked")


class Manager:
    """vLLM's `StructuredOutputManager`."""

    def __init__(self, vllm_config: Any) -> None:
        self.backend, self.tokenizer = None, vllm_config.tokenizer


class AsyncLLM:
    """vLLM's, whose loop is that of its API."""

    def __init__(self, config: Any, tokenizer: Any) -> None:
        self.input_processor = types.SimpleNamespace(
            model_config=config.model_config, structured_outputs_config=config.structured_outputs_config,
            tokenizer=tokenizer,
        )  # fmt: skip

    async def add_request(self, request_id: str, prompt: Any, params: Any, priority: int = 0) -> Any:
        known = self.input_processor
        params._validate_structured_outputs(known.model_config, known.structured_outputs_config, known.tokenizer)
        return request_id, priority


class InputProcessor:
    """vLLM's."""

    def _validate_params(self, params: Any, supported_tasks: Any) -> None:
        raise AssertionError("the stand-in of the loop checks by itself")


class BeamSearch:
    """vLLM's `BeamSearchOfflineMixin`."""

    def _init_beam_search_structured_output(self, structured_outputs: Any, tokenizer: Any) -> Any:
        raise AssertionError("this is vLLM's own")


class ItemParams(types.SimpleNamespace):
    """What of vLLM's `SamplingParams` matters to a request that names a catalogue."""

    def __init__(self, extra_args: dict[str, Any] | None, end: int | None = None, **given: Any) -> None:
        fields = {
            "max_tokens": 16, "min_tokens": 0, "structured_outputs": None, "ignore_eos": False, "stop": [],
            "stop_token_ids": [], "bad_words": [], "allowed_token_ids": None, "thinking_token_budget": None,
            "trace_decode_token_ids": None, "repetition_detection": None, "logit_bias": None,
        }  # fmt: skip
        super().__init__(extra_args=extra_args, eos_token_id=end, **fields | given)


class HttpRequest:
    """vLLM's requests over HTTP, which its beam search makes parameters of."""

    def __init__(self, vllm_xargs: dict[str, Any] | None = None, structured_outputs: Any = None) -> None:
        self.vllm_xargs, self.structured_outputs = vllm_xargs, structured_outputs

    def extract_structured_outputs(self) -> Any:
        return self.structured_outputs

    def to_beam_search_params(self, max_tokens: int, default_sampling_params: Any = None) -> Any:
        return max_tokens, default_sampling_params


def process_dict_updates(entries: dict[int, Any], update: Any, new: Any) -> None:
    """Do what vLLM's function of this name does: those that were added, then removed, then moved."""
    if update is None:
        return
    for index, *given in update.added:
        entries.pop(index, None)
        if (made := new(*given)) is not None:
            entries[index] = made
    for index in update.removed:
        entries.pop(index, None)
    for a, b, swaps in update.moved:
        of_a, of_b = entries.pop(a, None), entries.pop(b, None)
        if of_a is not None:
            entries[b] = of_a
        if of_b is not None and swaps:
            entries[a] = of_b


def vllm(
    monkeypatch: pytest.MonkeyPatch, version: str = "0.32.0", plugins: list[str] | None = None
) -> types.SimpleNamespace:
    """Put a vLLM of a version in place; return the classes that the plugin changes, made anew."""
    made = types.SimpleNamespace(
        Params=type("Params", (Params,), dict(vars(Params))), Manager=type("Manager", (), dict(vars(Manager))),
        BeamSearch=type("BeamSearch", (), dict(vars(BeamSearch))), AsyncLLM=type("AsyncLLM", (), dict(vars(AsyncLLM))),
        Completion=type("Completion", (HttpRequest,), dict(vars(HttpRequest))),
        Chat=type("Chat", (HttpRequest,), dict(vars(HttpRequest))), tokenizer=types.SimpleNamespace(eos_token_id=1),
    )  # fmt: skip
    # which the plugin adds to: what it was comes back after the test
    monkeypatch.setenv("MASKWRIGHT_ENGINE_OPTIONS", os.environ.get("MASKWRIGHT_ENGINE_OPTIONS", ""))
    made.said = []
    log = types.SimpleNamespace(info=lambda *_: None, warning=lambda text, *more: made.said.append(text % more))
    envs = put(monkeypatch, "vllm.envs", VLLM_PLUGINS=plugins)
    put(monkeypatch, "vllm", __version__=version, envs=envs)
    put(monkeypatch, "vllm.logger", init_logger=lambda name: log)
    put(monkeypatch, "vllm.config", VllmConfig=object)
    put(monkeypatch, "vllm.exceptions", VLLMValidationError=ValidationError)
    put(monkeypatch, "vllm.sampling_params", SamplingParams=made.Params)
    put(monkeypatch, "vllm.v1.structured_output.backend_xgrammar", validate_xgrammar_grammar=chosen_by_vllm)
    put(monkeypatch, "vllm.v1.structured_output.backend_guidance", validate_guidance_grammar=chosen_by_vllm_too)
    put(monkeypatch, "vllm.v1.structured_output", StructuredOutputManager=made.Manager)
    put(monkeypatch, "vllm.v1.structured_output.request", get_structured_output_key=key_of)
    put(
        monkeypatch, "vllm.v1.structured_output.backend_types", StructuredOutputBackend=Backend,
        StructuredOutputGrammar=type("StructuredOutputGrammar", (), {}), StructuredOutputOptions=Options,
    )  # fmt: skip
    put(monkeypatch, "vllm.entrypoints.generate.beam_search.offline", BeamSearchOfflineMixin=made.BeamSearch)
    put(monkeypatch, "vllm.entrypoints.openai.completion.protocol", CompletionRequest=made.Completion)
    put(monkeypatch, "vllm.entrypoints.openai.chat_completion.protocol", ChatCompletionRequest=made.Chat)
    put(monkeypatch, "vllm.v1.engine.async_llm", AsyncLLM=made.AsyncLLM)
    put(monkeypatch, "vllm.v1.engine.input_processor", InputProcessor=InputProcessor)
    put(monkeypatch, "vllm.tokenizers", cached_tokenizer_from_config=lambda model_config: made.tokenizer)
    put(
        monkeypatch, "vllm.v1.sample.logits_processor", LogitsProcessor=type("LogitsProcessor", (), {}),
        process_dict_updates=process_dict_updates,
    )  # fmt: skip
    put(
        monkeypatch, "vllm.v1.worker.gpu.sample.logits_processor",
        LogitsProcessor=type("LogitsProcessorV2", (), {}),
    )  # fmt: skip
    put(
        monkeypatch, "vllm.v1.sample.logits_processor.interface",
        LogitsProcessor=sys.modules["vllm.v1.sample.logits_processor"].LogitsProcessor,
    )  # fmt: skip
    put(
        monkeypatch, "vllm.v1.worker.gpu.sample.logits_processor.interface",
        LogitsProcessor=sys.modules["vllm.v1.worker.gpu.sample.logits_processor"].LogitsProcessor,
    )  # fmt: skip
    known(monkeypatch, "vLLM", "0.32.0")
    names = ("backend", "requests", "replacements", "admission", "logits_processor", "host_rows", "device_rows")
    forget(monkeypatch, *(f"maskwright.engines.vllm.{name}" for name in names))
    return made


@dataclass
class Reasoned:
    """SGLang's `ReasonerGrammarObject`."""

    grammar: Any


@dataclass
class Reasoner:
    """SGLang's `ReasonerGrammarBackend`."""

    grammar_backend: Any
    reasoning_parser: Any
    tokenizer: Any
    enable_strict_thinking: bool = False


def sglang(monkeypatch: pytest.MonkeyPatch, version: str = "0.5.23", **serving: Any) -> types.SimpleNamespace:
    """Put an SGLang of a version in place; return its list of choices, its registry, its buffers and its hooks."""
    made = types.SimpleNamespace(choices=["xgrammar"], registry={}, buffers={}, hooks={})

    class GrammarObject:
        def __init__(self) -> None:
            self.grammar_stats = self.current_token = None

    class Invalid(GrammarObject):
        def __init__(self, error_message: str) -> None:
            super().__init__()
            self.error_message = error_message

    @dataclass
    class Stats:
        is_cache_hit: bool = False
        tree_traversal_time: Any = None
        dispatch_type: str | None = None

    def buffer(name: str, vocab_mask: torch.Tensor, max_rows: int) -> torch.Tensor:
        return made.buffers.setdefault(name, vocab_mask)

    def register(name: str, init_func: Any) -> None:
        made.registry[name] = init_func

    settings = {
        "reasoning_parser": None, "enable_strict_thinking": False, "constrained_json_whitespace_pattern": None,
        "constrained_json_max_whitespace_cnt": None, "constrained_json_disable_any_whitespace": False, **serving,
    }  # fmt: skip
    put(monkeypatch, "sglang", __version__=version)
    put(
        monkeypatch, "sglang.srt.arg_groups.choices", GRAMMAR_BACKEND_CHOICES=made.choices,
        add_grammar_backend_choices=made.choices.extend,
    )  # fmt: skip
    put(
        monkeypatch, "sglang.srt.constrained.base_grammar_backend", BaseGrammarObject=GrammarObject,
        BaseGrammarBackend=type("BaseGrammarBackend", (), {}), GrammarStats=Stats, InvalidGrammarObject=Invalid,
        register_grammar_backend=register, register_vocab_mask_buffer=buffer,
    )  # fmt: skip
    put(monkeypatch, "sglang.srt.constrained.reasoner_grammar_backend", ReasonerGrammarBackend=Reasoner)
    put(monkeypatch, "sglang.srt.parser.reasoning_parser", ReasoningParser=types.SimpleNamespace)
    put(monkeypatch, "sglang.srt.runtime_context", get_serving=lambda: types.SimpleNamespace(**settings))
    verify = lambda self, vocab_size: None  # noqa: E731
    process = lambda self, req: False  # noqa: E731
    manager = type("GrammarManager", (), {"process_req_with_grammar": process})
    put(monkeypatch, "sglang.srt.constrained.grammar_manager", GrammarManager=manager)
    params = type("SamplingParams", (), {"verify": verify})
    put(monkeypatch, "sglang.srt.sampling.sampling_params", SamplingParams=params)
    registry = types.SimpleNamespace(register=lambda path, hook, kind: made.hooks.__setitem__(path, (kind.name, hook)))
    kinds = enum.Enum("HookType", "BEFORE AFTER AROUND REPLACE")
    put(monkeypatch, "sglang.srt.plugins.hook_registry", HookRegistry=registry, HookType=kinds)
    put(monkeypatch, "sglang.srt.managers.schedule_batch", FINISH_ABORT=lambda *given: given)
    known(monkeypatch, "SGLang", "0.5.23")
    forget(monkeypatch, "maskwright.engines.sglang.backend")
    return made
