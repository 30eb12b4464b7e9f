"""Prompts into a model of transformers, and the texts that it writes out of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ...errors import ConstraintError
from ...table.constraint import Constraint
from ...vocabulary.vocabulary import Vocabulary
from . import compat
from .compat import Model
from .generate import constrained_generate

if TYPE_CHECKING:
    pass
    from transformers import GenerationConfig


def size_of(model: Model) -> int:
    """Return V, the width of a model's logits."""
    outputs = model.get_output_embeddings()
    return int(outputs.weight.shape[0]) if outputs is not None else int(model.config.get_text_config().vocab_size)


def ends_of(model: Model) -> list[int]:
    """Return the tokens with which a model's generation config ends texts."""
    ends = model.generation_config.eos_token_id
    return [] if ends is None else list(ends) if isinstance(ends, Sequence) else [int(ends)]


def written_texts(
    model: Model,
    tokenizer: Any,
    prompts: Sequence[Any],
    vocabulary: Vocabulary,
    table: Constraint,
    options: Mapping[str, Any],
) -> list[list[str]]:
    """Return the texts that a model writes after each prompt, as many as `num_return_sequences` of options says.

    prompts: texts, or conversations as lists of messages. options: of `model.generate`. Raises ValueError for a prompt
    without tokens; ConstraintError where something ended the run before a text was complete.
    """
    rows = [_encoded(tokenizer, prompt) for prompt in prompts]
    for i, row in enumerate(rows):
        if not row:
            raise ValueError(f"prompt {i} has no tokens: a model needs at least one, such as the tokenizer's bos_token")
    pad = vocabulary.eos if tokenizer.pad_token_id is None else int(tokenizer.pad_token_id)
    ids, mask = _padded(rows, pad, not model.config.is_encoder_decoder)
    run = _Run()
    out = model.generate(
        input_ids=ids.to(model.device), attention_mask=mask.to(model.device), custom_generate=run.method, tables=table,
        return_dict_in_generate=True, **options,
    )  # fmt: skip
    scores = getattr(out, "sequences_scores", None)  # of beam search: -inf where there are fewer than were asked for
    there = [True] * len(out.sequences) if scores is None else (scores > -torch.inf).tolist()
    ends = {*vocabulary.ends, *run.ends}
    texts = [
        _text(row[run.first :], ends, vocabulary, options.get("distances", True)) if here else None
        for row, here in zip(out.sequences.tolist(), there, strict=True)
    ]
    count = len(texts) // len(rows)
    return [[text for text in texts[at : at + count] if text is not None] for at in range(0, len(texts), count)]


class _Run:
    """What transformers decided of a run: where its texts begin, and what ends them."""

    first = 0
    ends: Sequence[int] = ()

    @property
    def method(self) -> Any:
        """`constrained_generate`, which notes this."""

        @wraps(constrained_generate)  # transformers looks for the names of its parameters
        def noted(model: Model, input_ids: Tensor, *, generation_config: GenerationConfig, **options: Any) -> Any:
            forced = generation_config.forced_bos_token_id is not None and input_ids.shape[1] == 1
            self.first = input_ids.shape[1] + forced  # a token that is forced is no part of a text
            self.ends = compat.end_tokens(generation_config)
            return constrained_generate(model, input_ids, generation_config=generation_config, **options)

        return noted


def _encoded(tokenizer: Any, prompt: Any) -> list[int]:
    """Return the tokens of a prompt: of a text with those that begin one, of a conversation as its template has it."""
    if isinstance(prompt, str):
        return list(tokenizer(prompt)["input_ids"])
    found = tokenizer.apply_chat_template(prompt, add_generation_prompt=True, tokenize=True, return_dict=True)
    return list(found["input_ids"])


def _padded(rows: list[list[int]], pad: int | None, left: bool) -> tuple[Tensor, Tensor]:
    """Return rows of tokens as one array (n, L), and 1 where each has its own."""
    length = max(map(len, rows))
    if pad is None:
        raise ConstraintError("no token ends a text or fills up rows: the tokenizer needs an eos_token")
    fill = [[pad] * (length - len(row)) for row in rows]
    ids = [[*more, *row] if left else [*row, *more] for row, more in zip(rows, fill, strict=True)]
    own = [[1] * len(row) for row in rows]
    none = [[0] * len(more) for more in fill]
    mask = [[*zero, *one] if left else [*one, *zero] for one, zero in zip(own, none, strict=True)]
    return torch.tensor(ids), torch.tensor(mask)


def _text(tokens: list[int], ends: set[int], vocabulary: Vocabulary, complete: bool) -> str:
    """Return what tokens spell before the first that ends a text. complete: raise ConstraintError where none does."""
    stop = next((i for i, token in enumerate(tokens) if token in ends), None)
    if stop is None and complete:
        raise ConstraintError(
            "the run ended before a text was complete: take what ends runs early, such as max_time, out of the model's "
            "generation_config"
        )
    return vocabulary.decode(tokens[:stop]).decode("utf-8", "replace")
