"""The entry point of vLLM's plugins: maskwright in place of the backends that vLLM chooses among.

vLLM 0.32 has no registry of backends. Three functions of its own name them: what makes the manager of structured
outputs, what checks a request, and what prepares beam search in-process. Over HTTP its beam search leaves constraints
out without a word: two more functions refuse that. What checks a request still runs, without the two functions by which
it asks whether a backend of vLLM's takes the constraint. This replaces all seven, or none.

vLLM loads this file in every process, whether it names the plugin or not: it imports nothing until it is named.
"""

from __future__ import annotations

import inspect
from types import ModuleType
from typing import Any

NAME = "maskwright"
_INSTEAD = f"take {NAME} out of VLLM_PLUGINS"


def register() -> None:
    """Make maskwright the backend of structured outputs in this process, if `VLLM_PLUGINS` names it; else do nothing.

    vLLM calls it in every process, more than once. Raises MissingDependencyError, with nothing replaced, for a release
    of vLLM that was not tested, or one whose functions are not as they were.
    """
    import vllm
    from vllm import envs
    from vllm.logger import init_logger

    if NAME not in (envs.VLLM_PLUGINS or ()):
        return
    from ..options import check_version

    check_version("vLLM", vllm.__version__, _INSTEAD)
    from vllm.entrypoints.generate.beam_search.offline import BeamSearchOfflineMixin
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.entrypoints.openai.completion.protocol import CompletionRequest
    from vllm.sampling_params import SamplingParams
    from vllm.v1.structured_output import StructuredOutputManager, backend_guidance, backend_xgrammar

    from .replacements import Replacements

    made = Replacements()
    replaced: list[tuple[Any, str, tuple[str, ...], Any]] = [
        (StructuredOutputManager, "__init__", ("self", "vllm_config"), made.manager),
        (
            SamplingParams, "_validate_structured_outputs",
            ("self", "model_config", "structured_outputs_config", "tokenizer"), made.validator,
        ),
        (
            BeamSearchOfflineMixin, "_init_beam_search_structured_output", ("self", "structured_outputs", "tokenizer"),
            made.beam_search,
        ),
        (backend_xgrammar, "validate_xgrammar_grammar", ("sampling_params",), made.any_backend),
        (backend_guidance, "validate_guidance_grammar", ("sampling_params", "tokenizer"), made.any_backend),
        *(
            (request, "to_beam_search_params", ("self", "max_tokens", "default_sampling_params"), made.beam_params)
            for request in (CompletionRequest, ChatCompletionRequest)
        ),
    ]  # fmt: skip
    originals: list[Any] = [getattr(owner, name, None) for owner, name, _, _ in replaced]
    if all(getattr(original, "of_maskwright", False) for original in originals):
        return
    for (owner, name, asked, _), original in zip(replaced, originals, strict=True):
        _check(owner, name, asked, original)
    for (owner, name, _, make), original in zip(replaced, originals, strict=True):
        replacement = make(original)
        replacement.of_maskwright = True
        setattr(owner, name, replacement)
    init_logger(f"vllm.plugins.{NAME}").info("maskwright is the backend of structured outputs")


def _check(owner: type | ModuleType, name: str, asked: tuple[str, ...], original: object) -> None:
    """Raise MissingDependencyError unless a function is there with these parameters."""
    from ...errors import MissingDependencyError

    where = f"{owner.__module__}.{owner.__name__}" if isinstance(owner, type) else owner.__name__
    found = tuple(inspect.signature(original).parameters) if callable(original) else None
    if found != asked:
        raise MissingDependencyError(
            f"{where}.{name} takes {found} and not {asked} in this vLLM, so maskwright "
            f"cannot replace it: install a release that was tested, or {_INSTEAD}"
        )
