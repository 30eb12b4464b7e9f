"""Refuse a request of vLLM before it is queued, by the field that is at fault."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vllm.exceptions import VLLMValidationError
from vllm.sampling_params import SamplingParams
from vllm.v1.structured_output.request import get_structured_output_key

from ...errors import MaskwrightError
from ..constraints import EngineConstraints
from ..options import VARIABLE
from ..wording import said
from .backend import KINDS

BACKEND = "maskwright"

# fields of a request that vLLM does not hand on to any backend: they would change nothing, without a word
_NOT_ENFORCED = {
    "disable_any_whitespace": f'the server\'s operator sets "whitespace": "compact" in {VARIABLE}, for all requests',
    "disable_additional_properties": 'write "additionalProperties": false into the schema',
    "whitespace_pattern": f'the server\'s operator sets "whitespace": "compact" in {VARIABLE}, for all requests',
}


def check_request(params: SamplingParams, constraints: Callable[[], EngineConstraints]) -> None:
    """Compile the constraint of a request, so that it is found once the request is queued.

    Raises VLLMValidationError, which is a 400 over HTTP, with the pointer, line or position at fault.
    """
    asked: Any = params.structured_outputs
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
        known.compile(KINDS[kind.name], source)
    except MaskwrightError as error:
        raise VLLMValidationError(said(error), parameter=field) from error
    except RecursionError:
        raise VLLMValidationError("it is nested too deeply to be read: make it flatter", parameter=field) from None
    # vLLM refuses a request that names another backend than the engine's: this one says who checked it
    asked._backend, asked._backend_was_auto = BACKEND, True
