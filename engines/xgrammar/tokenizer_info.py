"""A tokenizer's vocabulary, as callers of XGrammar give it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from enum import Enum
from functools import cached_property
from typing import Any

from ...vocabulary.tokenizers import from_byte_letters, from_byte_name
from ...vocabulary.vocabulary import Vocabulary
from .config import VERSION
from .exception import DeserializeFormatError, DeserializeVersionError, UsageError, parsed, raising

_STOPS = (
    "</s>", "<|end_of_text|>", "<|eot_id|>", "<|endoftext|>", "<eos>", "<|eos|>", "<end_of_turn>",
    "<｜end▁of▁sentence｜>",
)  # fmt: skip
"""Names of tokens that end texts where nobody says which do."""


class VocabType(Enum):
    """How tokens are spelled: as text, or in the alphabet of a kind of tokenizer."""

    RAW = 0
    BYTE_FALLBACK = 1  # "<0x0A>" is a byte, "▁" a space
    BYTE_LEVEL = 2  # each letter is a byte


_BYTES: Mapping[VocabType, Callable[[str], bytes]] = {
    VocabType.RAW: str.encode,
    VocabType.BYTE_FALLBACK: lambda text: _encoded(from_byte_name(text)),
    VocabType.BYTE_LEVEL: from_byte_letters,
}


class TokenizerInfo:
    """The tokens that texts are written with.

    A token without text is a control token. Tokens of a list are known by their names to structural tags. Where a list
    lacks a token for one of the 256 bytes, as lists of tests do, masks say what the grammar allows as text, and not
    whether these tokens can go on to an end, as in XGrammar. Vocabularies of tokenizers that `from_huggingface` reads
    are left as they are: what cannot be ended is not begun.

    Args:
        encoded_vocab: The tokens by id, of bytes or spelled as `vocab_type` says; or a `Vocabulary`.
        vocab_type: How they are spelled.
        vocab_size: V, the width of the logits, where it is not their number.
        stop_token_ids: The tokens that end a text; None for those with a usual name.
        add_prefix_space: Whether the tokenizer puts a space before each text; nothing here depends on it.

    Raises:
        ConstraintError: A token or an id cannot be.
    """

    def __init__(
        self,
        encoded_vocab: Sequence[bytes | str] | Vocabulary,
        vocab_type: VocabType = VocabType.RAW,
        *,
        vocab_size: int | None = None,
        stop_token_ids: int | Sequence[int] | None = None,
        add_prefix_space: bool = False,
    ) -> None:
        self.vocab_type, self.add_prefix_space = vocab_type, add_prefix_space
        if isinstance(encoded_vocab, Vocabulary):
            self.vocabulary, self._size = encoded_vocab, encoded_vocab.size
            return
        spell = _BYTES[vocab_type]
        tokens = [token if isinstance(token, bytes) else spell(token) for token in encoded_vocab]
        size = len(tokens) if vocab_size is None else vocab_size
        tokens = [*tokens[:size], *[b""] * (size - len(tokens))]
        given = [stop_token_ids] if isinstance(stop_token_ids, int) else stop_token_ids
        stops = [i for i, token in enumerate(tokens) if _text(token) in _STOPS] if given is None else list(given)
        names = {name: i for i, token in reversed([*enumerate(tokens)]) if token and (name := _text(token)) is not None}
        self._set(tokens, stops, names)

    def _set(self, tokens: Sequence[bytes], stops: Sequence[int], names: Mapping[str, int]) -> None:
        self._size = len(tokens)
        spelled = {token for i, token in enumerate(tokens) if i not in stops}
        added = [bytes([b]) for b in range(256) if bytes([b]) not in spelled]
        with raising():
            self.vocabulary = Vocabulary.from_bytes(
                [*tokens, *added], eos=stops or None, special=[i for i, token in enumerate(tokens) if not token],
                names=names,
            )  # fmt: skip

    @classmethod
    def from_huggingface(
        cls, tokenizer: object, *, vocab_size: int | None = None, stop_token_ids: int | Sequence[int] | None = None
    ) -> TokenizerInfo:
        """Return that of a transformers tokenizer.

        vocab_size: the width of logits; tokens beyond it are left out. stop_token_ids: the tokens that end a text, in
        place of the tokenizer's own.

        Raises ConstraintError for a tokenizer whose tokens have no exact bytes, for ids that it does not have, and for
        no ids.
        """
        with raising():
            whole = Vocabulary.from_transformers(tokenizer)
            if vocab_size is not None and vocab_size < whole.size:
                eos = whole.ends if stop_token_ids is None else stop_token_ids
                made = Vocabulary.from_bytes(
                    whole.tokens[:vocab_size], eos=eos or None, special={i for i in whole.special if i < vocab_size},
                    names={name: i for name, i in whole.special_ids.items() if i < vocab_size}, encode=whole.encoder,
                    leading_space=whole.leading_space, trailing_space=whole.trailing_space,
                )  # fmt: skip
            else:
                made = Vocabulary.from_transformers(tokenizer, size=vocab_size, eos=stop_token_ids)
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if backend is None:
            kind = VocabType.BYTE_FALLBACK if "<0x0A>" in tokenizer.get_vocab() else VocabType.RAW  # type: ignore[attr-defined]
            return cls(made, kind, add_prefix_space=made.leading_space)
        found = cls._detect_metadata_from_hf(backend.to_str())
        return cls(made, found["vocab_type"], add_prefix_space=found["add_prefix_space"])

    @staticmethod
    def _detect_metadata_from_hf(backend_str: str) -> dict[str, Any]:
        """Return the vocab_type and add_prefix_space of a tokenizer.json."""
        config = parsed(backend_str)
        kinds = {each.get("type") for each in _steps(config.get("decoder"), "decoders")}
        kind = VocabType.BYTE_LEVEL if "ByteLevel" in kinds else VocabType.RAW
        if "ByteFallback" in kinds and kind is VocabType.RAW:
            kind = VocabType.BYTE_FALLBACK
        puts_space = any(
            each.get("type") == "Prepend" and each.get("prepend") == "▁"
            for each in _steps(config.get("normalizer"), "normalizers")
        )
        before = config.get("pre_tokenizer") or {}
        spaced = before.get("type") == "Metaspace" and before.get("prepend_scheme") in ("always", "first")
        return {"vocab_type": kind, "add_prefix_space": puts_space or spaced}

    @property
    def vocab_size(self) -> int:
        """V: tokens are 0 .. V - 1."""
        return self._size

    @property
    def stop_token_ids(self) -> list[int]:
        """The tokens that end a text."""
        return list(self.vocabulary.ends)

    @property
    def special_token_ids(self) -> list[int]:
        """The tokens that have no text, without those that end one."""
        ends = self.vocabulary.ends
        return [i for i, token in enumerate(self.vocabulary.tokens[: self._size]) if not token and i not in ends]

    @property
    def prepend_space_in_tokenization(self) -> bool:
        """The older name of `add_prefix_space`."""
        return self.add_prefix_space

    @cached_property
    def decoded_vocab(self) -> list[bytes]:
        """The bytes of each token; of one without text its name, b"" if it has none."""
        tokens = list(self.vocabulary.tokens[: self._size])
        for name, i in self.vocabulary.special_ids.items():
            tokens[i] = tokens[i] or name.encode()
        return tokens

    def ending_with(self, ends: tuple[int, ...]) -> Vocabulary:
        """Return the vocabulary with other tokens that end a text. Raises UsageError for none, and for ids beyond V."""
        size, old = self._size, self.vocabulary
        if not ends or not all(0 <= i < size for i in ends):
            raise UsageError(f"override_stop_tokens must be ids from 0 to {size - 1}, at least one, not {list(ends)}")
        tokens = tuple(b"" if i in ends else token for i, token in enumerate(old.tokens))
        return replace(old, tokens=tokens, eos=ends[0], other_ends=ends[1:], special=old.special.union(ends))

    def dump_metadata(self) -> str:
        """Return all but the tokens as JSON text."""
        return json.dumps(self.metadata)

    @property
    def metadata(self) -> dict[str, Any]:
        """What `dump_metadata` writes."""
        return {
            "vocab_type": self.vocab_type.value, "vocab_size": self._size, "add_prefix_space": self.add_prefix_space,
            "stop_token_ids": self.stop_token_ids,
        }  # fmt: skip

    @classmethod
    def from_vocab_and_metadata(cls, encoded_vocab: Sequence[bytes | str], metadata: str) -> TokenizerInfo:
        """Return that of a list of tokens and what `dump_metadata` wrote. Raises DeserializeFormatError."""
        said = parsed(metadata)
        try:
            return cls(
                encoded_vocab, VocabType(said["vocab_type"]), vocab_size=said["vocab_size"],
                stop_token_ids=said["stop_token_ids"], add_prefix_space=said["add_prefix_space"],
            )  # fmt: skip
        except (KeyError, TypeError) as error:
            raise DeserializeFormatError(f"this is no metadata of a tokenizer: {error!r}") from None

    def serialize_json(self) -> str:
        """Return it as JSON text; the tokenizer's own function from texts to tokens is left out."""
        vocabulary = self.vocabulary
        return json.dumps({
            **self.metadata, "special_token_ids": self.special_token_ids,
            "tokens": [token.decode("latin-1") for token in vocabulary.tokens], "names": dict(vocabulary.special_ids),
            "leading_space": vocabulary.leading_space, "trailing_space": vocabulary.trailing_space,
            "__VERSION__": VERSION,
        })  # fmt: skip

    @classmethod
    def deserialize_json(cls, json_string: str) -> TokenizerInfo:
        """Return what was written. Raises InvalidJSONError, DeserializeFormatError and DeserializeVersionError."""
        said = checked(parsed(json_string))
        try:
            tokens = [token.encode("latin-1") for token in said["tokens"]]
            special = [i for i, token in enumerate(tokens) if not token]
            with raising():
                vocabulary = Vocabulary.from_bytes(
                    tokens, eos=said["stop_token_ids"] or None, special=special, names=said["names"],
                    leading_space=said["leading_space"], trailing_space=said["trailing_space"],
                )  # fmt: skip
            made = cls(vocabulary, VocabType(said["vocab_type"]), add_prefix_space=said["add_prefix_space"])
            made._size = said["vocab_size"]
        except (KeyError, TypeError, AttributeError) as error:
            raise DeserializeFormatError(f"this is no tokenizer: {error!r}") from None
        return made


def checked(said: Any) -> dict[str, Any]:
    """Return what a text says. Raises DeserializeFormatError and DeserializeVersionError."""
    if not isinstance(said, dict):
        raise DeserializeFormatError("an object was written, not this")
    if said.get("__VERSION__") != VERSION:
        raise DeserializeVersionError(f"the version is {said.get('__VERSION__')!r}, and {VERSION!r} is read")
    return said


def _steps(step: Any, inner: str) -> list[dict[str, Any]]:
    """Return the steps of a part of a tokenizer.json."""
    if not isinstance(step, dict):
        return []
    return step.get(inner) or [] if step.get("type") == "Sequence" else [step]


def _encoded(text: str | bytes) -> bytes:
    return text if isinstance(text, bytes) else text.replace("▁", " ").encode()


def _text(token: bytes) -> str | None:
    try:
        return token.decode()
    except UnicodeDecodeError:
        return None
