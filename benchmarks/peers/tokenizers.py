"""The vocabulary that suites are run on."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Tokenizer:
    """A vocabulary's bytes by token, empty for special tokens, and how a text is cut into tokens."""

    tokens: list[bytes]
    special: list[int]
    eos: int
    encode: Callable[[str], list[int]]

    @functools.cached_property
    def bytes_alone(self) -> dict[int, int]:
        """The token of each single byte."""
        return {token[0]: i for i, token in enumerate(self.tokens) if len(token) == 1}

    def spell(self, text: str) -> list[int]:
        """Return a text's bytes as one token each."""
        return [self.bytes_alone[byte] for byte in text.encode()]


def tekken() -> Tokenizer:
    """Return Tekken, 131,072 tokens, from the file that comes with mistral-common."""
    import mistral_common
    from mistral_common.tokens.tokenizers.tekken import Tekkenizer

    tekkenizer = Tekkenizer.from_file(Path(mistral_common.__file__).parent / "data" / "tekken_240911.json")
    special = range(tekkenizer.num_special_tokens)
    tokens = [b"" if i in special else tekkenizer.id_to_byte_piece(i) for i in range(tekkenizer.n_words)]
    return Tokenizer(
        tokens, list(special), tekkenizer.eos_id, lambda text: tekkenizer.encode(text, bos=False, eos=False)
    )
