"""All that is asked of private or changing parts of transformers: for a new version, look here."""

from __future__ import annotations

from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any, TypeAlias

from torch import Tensor

from ...errors import MissingDependencyError

if TYPE_CHECKING:
    from transformers import (
        GenerationConfig,
    )
    from transformers.utils.generic import ModelOutput


try:
    from transformers.cache_utils import DynamicCache, DynamicLayer, DynamicSlidingWindowLayer, EncoderDecoderCache
    from transformers.generation import logits_process as logits_process
    from transformers.generation import stopping_criteria as stopping_criteria
    from transformers.generation.utils import (
        ALL_CACHE_NAMES,
        GenerateBeamDecoderOnlyOutput,
        GenerateBeamEncoderDecoderOutput,
    )
except ImportError:
    raise MissingDependencyError(
        "this module needs transformers, 5 or later: pip install 'maskwright[transformers]'"
    ) from None

Model: TypeAlias = Any
"""A model of transformers. Its class says too little of its methods: a type checker takes some for tensors."""

_LIST_CALL: CodeType = logits_process.LogitsProcessorList.__call__.__code__

# these choose among what is allowed, so they come after the constraint
WARPERS = tuple(
    getattr(logits_process, name)
    for name in (
        "TemperatureLogitsWarper", "TopHLogitsWarper", "TopKLogitsWarper", "TopPLogitsWarper", "MinPLogitsWarper",
        "TypicalLogitsWarper", "EpsilonLogitsWarper", "EtaLogitsWarper", "WatermarkLogitsProcessor",
        "SynthIDTextWatermarkLogitsProcessor", "LogitNormalization",
    )
    if hasattr(logits_process, name)
)  # fmt: skip


def frame_of_list(frame: FrameType | None) -> FrameType | None:
    """Return the first frame, going outwards, that runs a `LogitsProcessorList`; None outside of `generate`.

    A processor may be called through others. Every run of `generate` makes a list of its own, which tells runs apart.
    """
    while frame is not None and frame.f_code is not _LIST_CALL:
        frame = frame.f_back
    return frame


def list_in(frame: FrameType) -> logits_process.LogitsProcessorList:
    """Return the list of processors that a frame of `frame_of_list` runs."""
    found: logits_process.LogitsProcessorList = frame.f_locals["self"]
    return found


def list_of_assisted_run(frame: FrameType | None) -> logits_process.LogitsProcessorList | None:
    """Return the processors of the run that decodes with an assistant's, going outwards; None if there is none."""
    while frame is not None:
        if frame.f_code.co_name == "_assisted_decoding":
            found: logits_process.LogitsProcessorList | None = frame.f_locals.get("logits_processor")
            return found
        frame = frame.f_back
    return None


def end_tokens(config: GenerationConfig) -> list[int]:
    """Return the tokens with which a generation config, as `generate` prepares it, ends sequences."""
    ends = config._eos_token_tensor
    return [] if ends is None else [token for token in ends.tolist() if token >= 0]


def pad_token(config: GenerationConfig) -> Tensor | None:
    """Return the token that fills up ended rows, None where there is none."""
    found: Tensor | None = config._pad_token_tensor
    return found


def set_pad_token(config: GenerationConfig, token: Tensor) -> None:
    """Have ended rows filled up with a token."""
    config._pad_token_tensor = token


def sample(model: Model, input_ids: Tensor, **options: Any) -> Any:
    """Return what transformers' own loop for greedy decoding and sampling returns."""
    return type(model)._sample(model, input_ids, **options)


def prepared(
    model: Model, input_ids: Tensor, mask: Tensor, **options: Any
) -> tuple[Tensor, GenerationConfig, dict[str, Any]]:
    """Return what `generate` would begin with: the ids that go on, its config and the arguments of the first step.

    Of an encoder-decoder `input_ids` (B, P) are what its encoder reads, which this runs. mask: (B, P), 0 at the
    padding. options: of `generate`.
    """

    def begin(model: Model, ids: Tensor, **given: Any) -> tuple[Tensor, GenerationConfig, dict[str, Any]]:
        for name in ("logits_processor", "stopping_criteria"):
            del given[name]
        return ids, given.pop("generation_config"), given

    alone = {"num_beams": 1, "do_sample": False, "num_return_sequences": 1}
    found: tuple[Tensor, GenerationConfig, dict[str, Any]] = model.generate(
        input_ids, attention_mask=mask, custom_generate=begin, **alone, **options
    )
    return found


def first_step(
    model: Model, input_ids: Tensor, config: GenerationConfig, model_kwargs: dict[str, Any]
) -> tuple[Any, dict[str, Any]]:
    """Return a model's outputs for a prompt, and the arguments of the step after it."""
    outputs = model._prefill(input_ids, config, model_kwargs, is_first_iteration=True)
    return outputs, _updated(model, outputs, model_kwargs)


def next_step(model: Model, ids: Tensor, model_kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Return a model's outputs for the last token of ids (n, L), and the arguments of the step after it."""
    new = 1 if model_kwargs["use_cache"] else None
    inputs = model.prepare_inputs_for_generation(ids, next_sequence_length=new, **model_kwargs)
    outputs = model(**inputs, return_dict=True)
    return outputs, _updated(model, outputs, model_kwargs)


def _updated(model: Model, outputs: ModelOutput, model_kwargs: dict[str, Any]) -> dict[str, Any]:
    is_encoder_decoder = model.config.is_encoder_decoder
    found: dict[str, Any] = model._update_model_kwargs_for_generation(
        outputs, model_kwargs, is_encoder_decoder=is_encoder_decoder
    )
    return found


def repeat_inputs(model: Model, ids: Tensor, model_kwargs: dict[str, Any], times: int) -> tuple[Tensor, dict[str, Any]]:
    """Return ids (n, L), and the arguments of a step but for its cache, with each row so often, one after the other."""
    encoder_decoder = model.config.is_encoder_decoder
    found: tuple[Tensor, dict[str, Any]] = model._expand_inputs_for_generation(
        times, encoder_decoder, ids, **model_kwargs
    )
    return found


def reorder_cache(model: object, model_kwargs: dict[str, Any], index: Tensor, *, same_inputs: bool = False) -> None:
    """Gather the rows index (n,) of a model's cache, if it has one.

    same_inputs: each row goes on from one of the same input, so that what is kept of an encoder stays.
    """
    name = next((name for name in ALL_CACHE_NAMES if model_kwargs.get(name) is not None), None)
    if name is not None and hasattr(model, "_reorder_cache"):
        model_kwargs[name] = model._reorder_cache(model_kwargs[name], index)
    elif name is not None:
        cache = model_kwargs[name]
        if same_inputs and isinstance(cache, EncoderDecoderCache):
            cache = cache.self_attention_cache
        cache.reorder_cache(index)


def keeps_state_apart(model: object) -> bool:
    """Return whether a model keeps what it has read in other places than keys and values."""
    return bool(getattr(model, "_is_stateful", False)) or hasattr(model, "_reorder_cache")


def kinds_of_state(model: Model) -> set[type]:
    """Return the kinds of layers of a model's cache that hold anything but keys and values."""
    layers = DynamicCache(config=model.config.get_text_config(decoder=True)).layers
    return {type(layer) for layer in layers} - {DynamicLayer, DynamicSlidingWindowLayer}


def keeps_state_in_modules(model: Model) -> bool:
    """Return whether modules of a model keep what it has read, where no beam is followed, as RecurrentGemma's do."""
    return any(hasattr(module, "_setup_cache") for module in model.modules())


def counts_places_from_padding(model: Model) -> bool:
    """Return whether a model's own places are not those that `generate` gives it, as of RoBERTa."""
    return any(hasattr(module, "create_position_ids_from_input_ids") for module in model.modules())


def beam_output(model: Model, sequences: Tensor, scores: Tensor) -> Any:
    """Return what `generate` returns of a beam search with `return_dict_in_generate`."""
    kind: Any = GenerateBeamEncoderDecoderOutput if model.config.is_encoder_decoder else GenerateBeamDecoderOnlyOutput
    return kind(sequences=sequences, sequences_scores=scores)
