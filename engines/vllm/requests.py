"""Refuse a request of vLLM before it is queued, by the field that is at fault."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vllm.exceptions import VLLMValidationError
from vllm.sampling_params import SamplingParams
from vllm.v1.structured_output.request import get_structured_output_key

from ...errors import ConstraintError, MaskwrightError
from ..catalogues import CATALOGUE, PREFIX, CatalogueRequest, Catalogues, SidConstraint, request_of
from ..constraints import EngineConstraints
from ..options import VARIABLE
from ..wording import said
from .admission import Admission
from .backend import KINDS

if TYPE_CHECKING:
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.entrypoints.openai.completion.protocol import CompletionRequest


BACKEND = "maskwright"
_log = logging.getLogger(__name__)

# fields of a request that vLLM does not hand on to any backend: they would change nothing, without a word
_NOT_ENFORCED = {
    "disable_any_whitespace": f'the server\'s operator sets "whitespace": "compact" in {VARIABLE}, for all requests',
    "disable_additional_properties": 'write "additionalProperties": false into the schema',
    "whitespace_pattern": f'the server\'s operator sets "whitespace": "compact" in {VARIABLE}, for all requests',
}


def check_request(
    params: SamplingParams, constraints: Callable[[], EngineConstraints], admission: Admission | None
) -> None:
    """Check the constraint of a request before the request is queued.

    admission: where it was tried; None to compile it here, so that it is found once the request is queued.
    Raises VLLMValidationError, which is a 400 over HTTP, with the pointer, line or position at fault.
    """
    asked = params.structured_outputs
    for name, instead in _NOT_ENFORCED.items():
        if getattr(asked, name):
            raise VLLMValidationError(
                f"{name} is not enforced: leave it out; {instead}", parameter=f"structured_outputs.{name}"
            )
    if asked.json_object is False:
        raise VLLMValidationError(
            "json_object must be true, or left out", parameter="structured_outputs.json_object"
        )  # fmt: skip
    asked.__post_init__()  # that one constraint is given, and only one
    kind, source = get_structured_output_key(asked)
    field = f"structured_outputs.{KINDS[kind.name]}"
    try:
        known = constraints()
        known.check_stops(sorted(params.all_stop_token_ids))
        check = admission.check if admission is not None and admission.constraints is known else known.compile
        check(KINDS[kind.name], source)
    except MaskwrightError as error:
        raise VLLMValidationError(said(error), parameter=field) from error
    # vLLM refuses a request that names another backend than the engine's: this one says who checked it
    asked._backend, asked._backend_was_auto = BACKEND, True


PROCESSOR = "maskwright.engines.vllm.logits_processor:CatalogueProcessor"
"""How vLLM is told of the logits processor."""

_BESIDE = {
    "structured_outputs": "is another constraint",
    "ignore_eos": "keeps an answer from ending",
    "stop": "may cut an item",
    "bad_words": "may leave nothing to write",
    "allowed_token_ids": "may leave nothing to write",
    "thinking_token_budget": "writes tokens of its own",
    "trace_decode_token_ids": "writes tokens of its own",
    "repetition_detection": "may cut an item",
}
"""Fields of a request that cannot be kept beside a catalogue, and what each would do."""


def check_items(params: SamplingParams, catalogues: Catalogues) -> None:
    """Raise VLLMValidationError for a request that names a catalogue and cannot be kept to its items, by the field."""
    try:
        asked = request_of(params.extra_args)
        if asked is None:
            return
        table = catalogues.constraint(asked)
    except ConstraintError as error:
        raise VLLMValidationError(said(error), parameter=error.argument) from error
    for name, does in _BESIDE.items():
        value = getattr(params, name, None)  # a release may not have the field
        if value is not None and value is not False and value != []:
            raise VLLMValidationError(f"{name} {does}, and {CATALOGUE} is given: leave one out", parameter=name)
    stops = [token for token in params.stop_token_ids if catalogues.uses(asked.catalogue, token)]
    if stops:
        raise VLLMValidationError(
            f"token {stops[0]} ends an answer and is in semantic IDs of {asked.catalogue!r}: take it out of "
            "stop_token_ids",
            parameter="stop_token_ids",
        )
    if any(not math.isfinite(bias) for bias in (params.logit_bias or {}).values()):
        raise VLLMValidationError(
            "logit_bias may leave nothing to write unless it is finite: use maskwright_deny or a filter",
            parameter="logit_bias",
        )
    shortest = table.min_length
    if params.max_tokens is not None and params.max_tokens < shortest:
        raise VLLMValidationError(
            f"max_tokens={params.max_tokens} is less than an item of {asked.catalogue!r} takes, {shortest}",
            parameter="max_tokens",
            value=params.max_tokens,
        )
    if params.min_tokens > shortest:
        raise VLLMValidationError(
            f"min_tokens={params.min_tokens} is more than an item of {asked.catalogue!r} may have, {shortest}",
            parameter="min_tokens",
            value=params.min_tokens,
        )


@dataclass(frozen=True, eq=False)
class Items:
    """Members of which a request's answer is one of: the same ones as long as the request lives, also if preempted."""

    constraint: SidConstraint | None  # None where none was left when the request began


def items_of(params: SamplingParams, asked: CatalogueRequest, catalogues: Catalogues) -> Items:
    """Return the items of a request: of the newest version when this is first called for its parameters."""
    found: Items | None = getattr(params, "of_maskwright", None)
    if found is None:
        try:
            found = Items(catalogues.constraint(asked, admits=False))
        except ConstraintError as error:  # since it was admitted
            _log.warning("an answer is empty: %s", said(error))
            found = Items(None)
        params.of_maskwright = found
    return found


def check_processor(params: SamplingParams, processors: Sequence[str | type] | None) -> None:
    """Raise VLLMValidationError for a request that names a catalogue where nothing reads it.

    processors: those of the engine, by name or as classes.
    """
    loaded = [each if isinstance(each, str) else f"{each.__module__}:{each.__qualname__}" for each in processors or ()]
    own = [name for name in params.extra_args or () if name.startswith(PREFIX)]
    if own and PROCESSOR not in loaded:
        raise VLLMValidationError(
            f"{own[0]} needs a logits processor: the operator starts vLLM with --logits-processors {PROCESSOR}",
            parameter=own[0],
        )


def check_beam_search(request: CompletionRequest | ChatCompletionRequest) -> None:
    """Raise VLLMValidationError for a beam search over HTTP with a constraint, which vLLM would leave out."""
    own = [name for name in request.vllm_xargs or () if name.startswith(PREFIX)]
    if own or request.extract_structured_outputs() is not None:
        field = own[0] if own else "structured_outputs"
        raise VLLMValidationError(
            f"vLLM's beam search over HTTP keeps to no constraint: leave out use_beam_search or {field}; "
            "maskwright.engines.vllm.beam_search searches a catalogue exactly",
            parameter="use_beam_search",
        )
