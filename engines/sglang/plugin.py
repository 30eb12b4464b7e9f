"""The entry point of SGLang's plugins: `--grammar-backend maskwright`, and catalogues under beam search.

SGLang loads this file in every process, whether it names the backend or not: it imports nothing until it is used.
"""

from __future__ import annotations

import inspect
import logging
import os
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sglang.srt.constrained.base_grammar_backend import BaseGrammarBackend
    from sglang.srt.constrained.grammar_manager import GrammarManager
    from sglang.srt.managers.schedule_batch import Req
    from sglang.srt.sampling.sampling_params import SamplingParams
    from sglang.srt.server_args import ServerArgs


NAME = "maskwright"
_VARIABLE = "MASKWRIGHT_ENGINE_OPTIONS"  # that of engines/options.py, which is only imported where it is set
_PREFIX = "maskwright_"  # of engines/catalogues.py
_REQUESTS = "sglang.srt.constrained.grammar_manager.GrammarManager.process_req_with_grammar"
_VERIFY = "sglang.srt.sampling.sampling_params.SamplingParams.verify"
_log = logging.getLogger(__name__)


def register() -> None:
    """Give SGLang the name of the backend, and have its beam search keep to catalogues; every process calls it.

    Raises SystemExit for options that are wrong, and for a release that is not known where the operator named
    catalogues: other errors of a plugin SGLang only logs, and would then answer with anything.
    """
    from sglang.srt.arg_groups.choices import GRAMMAR_BACKEND_CHOICES, add_grammar_backend_choices
    from sglang.srt.constrained.base_grammar_backend import register_grammar_backend

    if NAME not in GRAMMAR_BACKEND_CHOICES:
        add_grammar_backend_choices([NAME])
    register_grammar_backend(NAME, make_backend)
    if not os.environ.get(_VARIABLE, "").strip():
        _hook_names()
        return
    from ...errors import ConstraintError, MissingDependencyError

    try:
        from ..options import options_of

        options = options_of()
        if options.allow:
            _hook_requests()
        if options.catalogues:
            _hook_beam_search()
        else:
            _hook_names()
    except (ConstraintError, MissingDependencyError) as error:
        raise SystemExit(f"maskwright: {error}") from error


def _hook_requests() -> None:
    """Have what is not enforced logged with the id of the request, which SGLang tells no backend."""
    import sglang

    from ...errors import MissingDependencyError
    from ..releases import check

    try:
        check("SGLang", sglang.__version__, "ids of requests", f"unset {_VARIABLE}")
    except MissingDependencyError as error:
        _log.warning("the log does not say what of a request is not enforced: %s", error)
        return
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(_REQUESTS, _tell, HookType.AFTER)


def _tell(waits: bool, manager: GrammarManager, req: Req) -> None:
    """Log what of a request is not enforced; waits: whether its grammar is still compiled."""
    from .backend import tell_of_request

    tell_of_request(req.rid, req.grammar)


def _hook_names() -> None:
    """Have requests that name a catalogue refused, as there are none, if this release checks requests as the tested."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType
    from sglang.srt.sampling.sampling_params import SamplingParams

    verify = getattr(SamplingParams, "verify", None)
    if callable(verify) and tuple(inspect.signature(verify).parameters) == ("self", "vocab_size"):
        HookRegistry.register(_VERIFY, _check_names, HookType.AFTER)


def _check_names(result: None, params: SamplingParams, vocab_size: int) -> None:
    """Raise ValueError for a request that names a catalogue."""
    given = params.custom_params
    if isinstance(given, dict) and any(isinstance(key, str) and key.startswith(_PREFIX) for key in given):
        from ..catalogues import catalogues_here
        from .beam_search import CatalogueBeams

        CatalogueBeams([], catalogues_here).check(result, params, vocab_size)


def _hook_beam_search() -> None:
    """Raise MissingDependencyError for a release that is not known, ConstraintError for options that are wrong."""
    import sglang

    from ..releases import check

    check("SGLang", sglang.__version__, "beam search", f"unset {_VARIABLE}")
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    from ..catalogues import catalogues_here
    from ..options import options_of
    from .beam_search import CatalogueBeams

    beams = CatalogueBeams(list(options_of().catalogues), catalogues_here)
    for path, (kind, hook) in beams.hooks().items():
        HookRegistry.register(path, hook, HookType[kind])


def make_backend(
    server_args: ServerArgs, tokenizer: object, vocab_size: int, eos_token_ids: set[int] | None
) -> BaseGrammarBackend:
    """Return the backend of a server that asks for it, inside SGLang's own for thoughts if it has a reasoning parser.

    Raises MissingDependencyError for a release of SGLang that is not known, ConstraintError for settings and
    tokenizers that the backend does not serve. What SGLang hears from a plugin at once it only logs, so this waits
    until the server wants the backend, and then stops it.
    """
    import sglang

    from ..releases import check

    check("SGLang", sglang.__version__, "structured outputs", "name another --grammar-backend")
    from sglang.srt.runtime_context import get_serving

    from ..constraints import EngineConstraints, engine_vocabulary, processes_beside
    from ..options import options_of
    from .backend import MaskwrightBackend

    serving = get_serving()
    options = replace(options_of(), whitespace=_whitespace(options_of().whitespace, serving))
    vocabulary = engine_vocabulary(tokenizer, vocab_size, eos_token_ids or ())
    made = MaskwrightBackend(EngineConstraints(vocabulary, options, processes_beside()))
    if not serving.reasoning_parser:
        return made
    check("SGLang", sglang.__version__, "reasoning", "leave out --reasoning-parser")
    # SGLang wraps its own backends so, and returns a registered one before that
    from sglang.srt.constrained.reasoner_grammar_backend import ReasonerGrammarBackend
    from sglang.srt.parser.reasoning_parser import ReasoningParser

    parser = ReasoningParser(model_type=serving.reasoning_parser, stream_reasoning=False, tokenizer=tokenizer)
    return ReasonerGrammarBackend(made, parser, tokenizer, enable_strict_thinking=serving.enable_strict_thinking)


def _whitespace(wanted: str, serving: Any) -> str:
    """Return the white space of JSON that the operator wants, or less, as SGLang's settings ask.

    Raises ConstraintError for settings to which no layout keeps.
    """
    if serving.constrained_json_disable_any_whitespace:
        return "compact"
    pattern = serving.constrained_json_whitespace_pattern
    most = getattr(serving, "constrained_json_max_whitespace_cnt", None)  # SGLang 0.5.20 has none
    if pattern is None and most is None:
        return wanted
    from ...errors import ConstraintError

    where = "--constrained-json-whitespace-pattern"
    try:
        found = re.compile(r"\s*" if pattern is None else pattern)
    except re.error as error:
        raise ConstraintError(f"{where} is no pattern: {error}") from None
    for layout, blanks in (("spaced", ("", " ")), ("compact", ("",))):
        keeps = all(found.fullmatch(blank) and (most is None or len(blank) <= most) for blank in blanks)
        if keeps and (layout == "compact" or wanted != "compact"):
            return layout
    raise ConstraintError(
        f"JSON has no white space in some places, and {where} {pattern!r} with --constrained-json-max-whitespace-cnt "
        f"{most} asks for some: change them"
    )
