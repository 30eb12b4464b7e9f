"""What stands around eight functions of vLLM, and the constraints that they share in a process."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from vllm.config import VllmConfig
from vllm.exceptions import VLLMValidationError
from vllm.sampling_params import SamplingParams
from vllm.v1.structured_output.request import get_structured_output_key

from ...errors import ConstraintError
from ..constraints import EngineConstraints, engine_vocabulary, tell_unenforced
from ..options import options_of
from .admission import Admission
from .backend import KINDS, MaskwrightBackend
from .requests import check_beam_search, check_processor, check_request

if TYPE_CHECKING:
    from vllm import LLM
    from vllm.config import ModelConfig, StructuredOutputsConfig
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.entrypoints.openai.completion.protocol import CompletionRequest
    from vllm.sampling_params import BeamSearchParams, StructuredOutputsParams
    from vllm.tokenizers import TokenizerLike
    from vllm.v1.engine.async_llm import AsyncLLM
    from vllm.v1.structured_output import StructuredOutputManager


class Replacements:
    """The functions, and the constraints of the tokenizer of a process: a process has one model."""

    def __init__(self) -> None:
        self._constraints: EngineConstraints | None = None
        self._tokenizer: TokenizerLike | None = None
        self._admission: Admission | None = None  # of a process whose loop answers clients
        self._lock = threading.Lock()

    def constraints_of(self, tokenizer: TokenizerLike, model: ModelConfig) -> EngineConstraints:
        """Return the constraints of a tokenizer, made the first time. Raises the errors of `EngineConstraints`.

        model: vLLM's config of the model, whose generation config says which tokens end a text.
        """
        with self._lock:
            return self._constraints_of(tokenizer, model)

    def _constraints_of(self, tokenizer: TokenizerLike, model: ModelConfig) -> EngineConstraints:
        known, vocab_size = self._constraints, model.get_vocab_size()
        if known is None or self._tokenizer is not tokenizer or known.vocabulary.size != vocab_size:
            # Mistral's tokenizers come in a wrapper of vLLM's own around one of transformers
            inner = getattr(tokenizer, "transformers_tokenizer", tokenizer)
            ends = model.try_get_generation_config().get("eos_token_id")
            given = [] if ends is None else [ends] if isinstance(ends, int) else ends
            vocabulary = engine_vocabulary(inner, vocab_size, given)
            if known is None or known.vocabulary != vocabulary:
                known = self._constraints = EngineConstraints(vocabulary, options_of())
            self._tokenizer = tokenizer
        return known

    def _backend(self, vllm_config: VllmConfig, tokenizer: TokenizerLike, tells: bool = True) -> MaskwrightBackend:
        vocab_size = vllm_config.model_config.get_vocab_size()
        known = self.constraints_of(tokenizer, vllm_config.model_config)
        return MaskwrightBackend(vllm_config, tokenizer, vocab_size, known, tells)

    def manager(self, original: Callable[..., None]) -> Callable[..., None]:
        """Return the constructor of the manager, which has its backend before vLLM would choose one."""

        def __init__(manager: StructuredOutputManager, vllm_config: VllmConfig) -> None:  # noqa: N807  # it is this method
            _check_config(vllm_config)
            original(manager, vllm_config)
            if not vllm_config.model_config.skip_tokenizer_init:
                manager.backend = self._backend(vllm_config, manager.tokenizer)

        return __init__

    def validator(self, original: Callable[..., None]) -> Callable[..., None]:
        """Return what checks a request: vLLM's own checks, then the constraint; a fault is vLLM's own answer."""

        def _validate_structured_outputs(
            params: SamplingParams,
            model_config: ModelConfig,
            structured_outputs_config: StructuredOutputsConfig | None,
            tokenizer: TokenizerLike,
        ) -> None:
            check_processor(params, model_config.logits_processors)
            original(params, model_config, structured_outputs_config, tokenizer)
            if structured_outputs_config is None or params.structured_outputs is None:
                return
            check_request(params, lambda: self.constraints_of(tokenizer, model_config), self._admission)

        return _validate_structured_outputs

    def admission(self, original: Callable[..., Any], check: Callable[..., None]) -> Callable[..., Any]:
        """Return what takes a request on the loop of vLLM's API, once its constraint was tried beside the loop.

        check: vLLM's own checks of structured outputs, which come first. What they or the constraint are refused for,
        vLLM finds again where it checks the request.
        """

        async def add_request(
            llm: AsyncLLM, request_id: str, prompt: Any, params: Any, *given: Any, **named: Any
        ) -> Any:
            asked, inputs = getattr(params, "structured_outputs", None), llm.input_processor
            if asked is not None and inputs.structured_outputs_config is not None:
                with suppress(ValueError, VLLMValidationError):
                    check(params, inputs.model_config, inputs.structured_outputs_config, inputs.tokenizer)
                    kind, source = get_structured_output_key(asked)
                    known = await asyncio.to_thread(self._admitting, inputs.tokenizer, inputs.model_config)
                    await known.admit(KINDS[kind.name], source)
            return await original(llm, request_id, prompt, params, *given, **named)

        return add_request

    def _admitting(self, tokenizer: TokenizerLike, model: ModelConfig) -> Admission:
        """Return what tries constraints of a tokenizer, made the first time. Raises ConstraintError."""
        known = self.constraints_of(tokenizer, model)
        with self._lock:
            if self._admission is None or self._admission.constraints is not known:
                self._admission = Admission(known)
            return self._admission

    def any_backend(self, original: Callable[..., None]) -> Callable[..., None]:
        """Return what asks whether a backend of vLLM's takes a constraint: none of them is asked to compile it."""

        def validate_grammar(sampling_params: SamplingParams, tokenizer: TokenizerLike | None = None) -> None:
            pass

        return validate_grammar

    def beam_search(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Return what prepares beam search in-process: a backend, the constraint's key, and a bitmask of one row."""

        def _init_beam_search_structured_output(
            llm: LLM, structured_outputs: StructuredOutputsParams, tokenizer: TokenizerLike
        ) -> Any:
            config = llm.llm_engine.vllm_config
            params = SamplingParams(structured_outputs=structured_outputs)
            params._validate_structured_outputs(config.model_config, config.structured_outputs_config, tokenizer)
            backend = self._backend(config, tokenizer, tells=False)  # it makes a grammar a beam and step
            kind, source = get_structured_output_key(structured_outputs)
            tell_unenforced("of beam search", backend.constraints.matcher(KINDS[kind.name], source))
            return backend, (kind, source), backend.allocate_token_bitmask(1)

        return _init_beam_search_structured_output

    def beam_params(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Return what makes the parameters of a beam search over HTTP, and refuses constraints, which it would drop."""

        def to_beam_search_params(
            request: CompletionRequest | ChatCompletionRequest,
            max_tokens: int,
            default_sampling_params: dict[str, Any] | None = None,
        ) -> BeamSearchParams:
            check_beam_search(request)
            return original(request, max_tokens, default_sampling_params)

        return to_beam_search_params


def _check_config(vllm_config: VllmConfig) -> None:
    """Raise ConstraintError if vLLM was told to do what maskwright does not do."""
    asked = vllm_config.structured_outputs_config
    if asked.backend != "auto":
        raise ConstraintError(
            f"structured_outputs_config asks for the backend {asked.backend}, and VLLM_PLUGINS for maskwright: leave "
            "one of them out"
        )
