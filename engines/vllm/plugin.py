"""The entry point of vLLM's plugins: maskwright in place of the backends that vLLM chooses among.

vLLM has no registry of backends. Two of its functions choose one: what makes the manager of structured outputs, and
what prepares beam search in-process. What checks a request still runs, without the two functions by which it asks
whether a backend of vLLM's takes the constraint. Over HTTP its beam search leaves constraints out without a word: two
more functions refuse that. What takes requests on the loop of its API has constraints tried in processes first. This
wraps all eight, or fewer where a release changed what is of beam search or of the loop.

vLLM loads this file in every process, whether it names the plugin or not: it imports nothing until it is named.
"""

from __future__ import annotations

from typing import Any

NAME = "maskwright"
_INSTEAD = f"take {NAME} out of VLLM_PLUGINS"


def register() -> None:
    """Make maskwright the backend of structured outputs in this process, if `VLLM_PLUGINS` names it; else do nothing.

    vLLM calls it in every process, more than once. Raises MissingDependencyError, with nothing replaced, for a release
    of vLLM that is not known, or one whose functions are not as they were. Beam search alone is done without.
    """
    import vllm
    from vllm import envs
    from vllm.logger import init_logger

    if NAME not in (envs.VLLM_PLUGINS or ()):
        return
    log = init_logger(f"vllm.plugins.{NAME}")
    from vllm.v1.structured_output import StructuredOutputManager

    if getattr(StructuredOutputManager.__init__, "of_maskwright", False):
        return
    from ...errors import MissingDependencyError
    from ..releases import check

    check("vLLM", vllm.__version__, "structured outputs", _INSTEAD)
    from vllm.sampling_params import SamplingParams
    from vllm.v1.structured_output import backend_guidance, backend_xgrammar

    from .replacements import Replacements

    made = Replacements()
    replaced: list[tuple[Any, str, Any]] = [
        (StructuredOutputManager, "__init__", made.manager),
        (SamplingParams, "_validate_structured_outputs", made.validator),
        (backend_xgrammar, "validate_xgrammar_grammar", made.any_backend),
        (backend_guidance, "validate_guidance_grammar", made.any_backend),
    ]
    try:
        check("vLLM", vllm.__version__, "beam search", "leave constraints out of beam search")
    except MissingDependencyError as error:
        log.warning("vLLM's beam search keeps to no constraint: %s", error)
    else:
        from vllm.entrypoints.generate.beam_search.offline import BeamSearchOfflineMixin
        from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
        from vllm.entrypoints.openai.completion.protocol import CompletionRequest

        replaced += [
            (BeamSearchOfflineMixin, "_init_beam_search_structured_output", made.beam_search),
            (CompletionRequest, "to_beam_search_params", made.beam_params),
            (ChatCompletionRequest, "to_beam_search_params", made.beam_params),
        ]
    try:
        check("vLLM", vllm.__version__, "admission", "send constraints that begin soon")
    except MissingDependencyError as error:
        log.warning("constraints are checked on the loop of vLLM's API, which then waits: %s", error)
    else:
        from vllm.v1.engine.async_llm import AsyncLLM

        from .admission import share_tables

        share_tables()
        checks = SamplingParams._validate_structured_outputs
        replaced.append((AsyncLLM, "add_request", lambda original: made.admission(original, checks)))
    for owner, name, make in replaced:
        replacement = make(getattr(owner, name))
        replacement.of_maskwright = True
        setattr(owner, name, replacement)
    log.info("maskwright is the backend of structured outputs")
