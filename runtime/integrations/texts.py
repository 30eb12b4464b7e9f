"""Prompts into a model of transformers, and the texts that it writes out of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ...errors import ConstraintError
from ...table.constraint import Constraint
from ...vocabulary.vocabulary import Vocabulary
from ..host.matcher import Matcher
from .generate import constrained_generate


def size_of(model: Any) -> int:
    """Return V, the width of a model's logits."""
    outputs = model.get_output_embeddings()
    return int(outputs.weight.shape[0]) if outputs is not None else int(model.config.get_text_config().vocab_size)


def ends_of(model: Any) -> list[int]:
    """Return the tokens with which a model's generation config ends texts."""
    ends = model.generation_config.eos_token_id
    return [] if ends is None else list(ends) if isinstance(ends, Sequence) else [int(ends)]


def written_texts(
    model: Any, tokenizer: Any, prompts: Sequence[Any], vocabulary: Vocabulary, table: Constraint, options: Any
) -> list[list[str]]:
    """Return the texts that a model writes after each prompt, as many as `num_return_sequences` of options says.

    prompts: texts, or conversations as lists of messages. options: of `model.generate`. Raises ValueError for a prompt
    without tokens.
    """
    rows = [_encoded(tokenizer, prompt) for prompt in prompts]
    for i, row in enumerate(rows):
        if not row:
            raise ValueError(f"prompt {i} has no tokens: a model needs at least one, such as the tokenizer's bos_token")
    decoder_only = not model.config.is_encoder_decoder
    pad = vocabulary.eos if tokenizer.pad_token_id is None else int(tokenizer.pad_token_id)
    ids, mask = _padded(rows, pad, decoder_only)
    out = model.generate(
        input_ids=ids.to(model.device), attention_mask=mask.to(model.device), custom_generate=constrained_generate,
        tables=table, **options,
    )  # fmt: skip
    begin = ids.shape[1] if decoder_only else _decoder_prompt(model, options)
    ends = {vocabulary.eos, *ends_of(model)}
    texts = [_text(row[begin:], ends, vocabulary) for row in out.tolist()]
    if not Matcher(table).is_accepting:  # a row of padding, where there are fewer sequences than were asked for
        texts = [text or None for text in texts]
    count = len(texts) // len(rows)
    return [[text for text in texts[at : at + count] if text is not None] for at in range(0, len(texts), count)]


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


def _decoder_prompt(model: Any, options: Mapping[str, Any]) -> int:
    """Return how many tokens of a decoder come before the text: the one it starts with, and one that is forced."""
    config = options.get("generation_config") or model.generation_config
    forced = options.get("forced_bos_token_id", config.forced_bos_token_id)
    return 1 + (forced is not None)


def _text(tokens: list[int], ends: set[int | None], vocabulary: Vocabulary) -> str | None:
    """Return what tokens spell before the first that ends a text."""
    stop = next((i for i, token in enumerate(tokens) if token in ends), len(tokens))
    return vocabulary.decode(tokens[:stop]).decode("utf-8", "replace")
