"""Tokenizers of every kind, real ones from packages and small ones trained here, each with its `Vocabulary`.

Each function returns (tokenizer, vocabulary), made once per process; a test that asks for one whose package is missing
is skipped. `ZOO` has them by name as `Animal`s, which encode and decode alike.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from maskwright.vocabulary.vocabulary import Vocabulary

CORPUS = [
    "The quick brown fox jumps over the lazy dog, and the dog doesn't mind.",
    '{"name": "Ada", "age": 36, "tags": ["math", "engine"], "note": null}',
    "Ein süßer Käse für 12,50 €; naïve café, Ångström: ½ of it.",
    "def f(x):\n    return  x + 1\n\n\tpass",
    "Быстрая лиса прыгает через ленивую собаку.",
    "敏捷的棕色狐狸跳过了懒狗。 こんにちは世界。",
    "emoji: 👩‍👩‍👧 🎉🎉 and e\u0301 combined",
    "numbers 0 1 2 3 4 5 6 7 8 9 10 2024-05-17 and words don't stop, really!",
] * 8

Pair = tuple[Any, Vocabulary]


# ---------------------------------------------------------------------------------------------- inside packages


def data_file(name: str) -> Path:
    package = pytest.importorskip("mistral_common")
    path = Path(package.__file__).parent / "data" / name
    if not path.exists():
        pytest.skip(f"this release of mistral-common has no {name}")
    return path


@cache
def tekken(name: str = "tekken_240911.json") -> Pair:
    """Tekken: byte-level, 131,072 tokens, the first 1,000 special."""
    path = data_file(name)
    from mistral_common.tokens.tokenizers.tekken import Tekkenizer

    tok = Tekkenizer.from_file(path)
    return tok, Vocabulary.from_mistral(tok)


@cache
def mistral_sentencepiece(name: str = "mistral_instruct_tokenizer_240323.model.v3") -> Pair:
    """A SentencePiece BPE with byte fallback, 32,000 tokens or some more."""
    path = data_file(name)
    pytest.importorskip("sentencepiece")
    from mistral_common.tokens.tokenizers.sentencepiece import SentencePieceTokenizer

    tok = SentencePieceTokenizer(path)
    return tok, Vocabulary.from_mistral(tok)


# ------------------------------------------------------------------------------------ trained with `tokenizers`


@cache
def byte_level_bpe() -> Pair:
    """As GPT-2: all 256 bytes, "<|end|>" special, "<tool>", "café" and two spaces added as text."""
    hf = pytest.importorskip("tokenizers")
    tok = hf.Tokenizer(hf.models.BPE())
    tok.pre_tokenizer = hf.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tok.decoder = hf.decoders.ByteLevel()
    letters = hf.pre_tokenizers.ByteLevel.alphabet()
    trainer = hf.trainers.BpeTrainer(
        vocab_size=600, initial_alphabet=letters, special_tokens=["<|end|>"], show_progress=False
    )
    tok.train_from_iterator(CORPUS, trainer)
    tok.add_tokens(["<tool>", "café", "  "])
    return tok, Vocabulary.from_transformers(tok, eos=0)


def _spaces_marked(model: Any, trainer: Any, scheme: str) -> Any:
    import tokenizers as hf

    tok = hf.Tokenizer(model)
    tok.pre_tokenizer = hf.pre_tokenizers.Metaspace(prepend_scheme=scheme)
    tok.decoder = hf.decoders.Metaspace(prepend_scheme=scheme)
    tok.train_from_iterator(CORPUS, trainer)
    return tok


@cache
def metaspace_unigram(scheme: str = "always") -> Pair:
    """As T5: a Unigram model behind Metaspace, with "<unk>" for what it does not know."""
    hf = pytest.importorskip("tokenizers")
    trainer = hf.trainers.UnigramTrainer(
        vocab_size=400, special_tokens=["</s>", "<unk>"], unk_token="<unk>", show_progress=False
    )
    tok = _spaces_marked(hf.models.Unigram(), trainer, scheme)
    return tok, Vocabulary.from_transformers(tok, eos=tok.token_to_id("</s>"))


@cache
def byte_fallback_bpe(strip: bool = True) -> Pair:
    """As Llama 2 (or, not stripping, as Gemma): "▁" for spaces, "<0x0A>" for bytes, decoders in a row."""
    hf = pytest.importorskip("tokenizers")
    steps = [hf.decoders.Replace("▁", " "), hf.decoders.ByteFallback(), hf.decoders.Fuse()]
    normal = [hf.normalizers.Replace(" ", "▁")]
    if strip:
        steps.append(hf.decoders.Strip(" ", 1, 0))
        normal.insert(0, hf.normalizers.Prepend("▁"))
    trained = hf.Tokenizer(hf.models.BPE())
    trained.pre_tokenizer = hf.pre_tokenizers.Metaspace(prepend_scheme="always" if strip else "never")
    special = ["<unk>", "</s>", *(f"<0x{b:02X}>" for b in range(256))]
    trained.train_from_iterator(
        CORPUS, hf.trainers.BpeTrainer(vocab_size=700, special_tokens=special, show_progress=False)
    )
    import json

    model = json.loads(trained.to_str())["model"]
    merges = [tuple(pair) for pair in model["merges"]]
    tok = hf.Tokenizer(hf.models.BPE(model["vocab"], merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tok.normalizer = hf.normalizers.Sequence(normal)
    tok.decoder = hf.decoders.Sequence(steps)
    tok.add_special_tokens(["<unk>", "</s>"])
    return tok, Vocabulary.from_transformers(tok, eos=1)


@cache
def wordpiece(cleanup: bool = True) -> Pair:
    """As BERT: "##" continues a word."""
    hf = pytest.importorskip("tokenizers")
    tok = hf.Tokenizer(hf.models.WordPiece(unk_token="[UNK]"))
    tok.normalizer = hf.normalizers.BertNormalizer(lowercase=True)
    tok.pre_tokenizer = hf.pre_tokenizers.BertPreTokenizer()
    tok.decoder = hf.decoders.WordPiece(cleanup=cleanup)
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    trainer = hf.trainers.WordPieceTrainer(vocab_size=400, special_tokens=special, show_progress=False)
    tok.train_from_iterator(CORPUS, trainer)
    return tok, Vocabulary.from_transformers(tok, eos=3)


@cache
def word_end_bpe() -> Pair:
    """A BPE that marks the end of a word by "</w>"."""
    hf = pytest.importorskip("tokenizers")
    tok = hf.Tokenizer(hf.models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"))
    tok.pre_tokenizer = hf.pre_tokenizers.Whitespace()
    tok.decoder = hf.decoders.BPEDecoder()
    trainer = hf.trainers.BpeTrainer(
        vocab_size=500, special_tokens=["<unk>", "</s>"], end_of_word_suffix="</w>", show_progress=False
    )
    tok.train_from_iterator(CORPUS, trainer)
    return tok, Vocabulary.from_transformers(tok, eos=1)


@cache
def word_level() -> Pair:
    """Whole words and no decoder: they are joined by spaces."""
    hf = pytest.importorskip("tokenizers")
    tok = hf.Tokenizer(hf.models.WordLevel(unk_token="<unk>"))
    tok.pre_tokenizer = hf.pre_tokenizers.Whitespace()
    trainer = hf.trainers.WordLevelTrainer(special_tokens=["<unk>", "</s>"], show_progress=False)
    tok.train_from_iterator(CORPUS, trainer)
    return tok, Vocabulary.from_transformers(tok, eos=1)


# --------------------------------------------------------------------------------- trained with `sentencepiece`


@cache
def sentencepiece_model(kind: str, faithful: bool) -> bytes:
    spm = pytest.importorskip("sentencepiece")
    model = io.BytesIO()
    more: dict[str, Any] = {}
    if faithful:
        more = {
            "normalization_rule_name": "identity",
            "remove_extra_whitespaces": False,
            "add_dummy_prefix": False,
        }
    spm.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS),
        model_writer=model,
        vocab_size=600,
        model_type=kind,
        byte_fallback=True,
        character_coverage=0.98,
        user_defined_symbols=["<tool>"],
        control_symbols=["<ctrl>"],
        hard_vocab_limit=False,
        minloglevel=2,
        **more,
    )
    return model.getvalue()


@cache
def sentencepiece_bpe() -> Pair:
    """SentencePiece BPE with byte fallback as it comes: texts are normalised and begin with a space."""
    spm = pytest.importorskip("sentencepiece")
    sp = spm.SentencePieceProcessor(model_proto=sentencepiece_model("bpe", False))
    return sp, Vocabulary.from_sentencepiece(sp)


@cache
def sentencepiece_unigram() -> Pair:
    """SentencePiece Unigram with byte fallback that keeps texts as they are."""
    spm = pytest.importorskip("sentencepiece")
    sp = spm.SentencePieceProcessor(model_proto=sentencepiece_model("unigram", True))
    return sp, Vocabulary.from_sentencepiece(sp)


# -------------------------------------------------------------------------------------------------- tiktoken


@cache
def tiktoken_bpe() -> Pair:
    """A tiktoken encoding with the ranks of `byte_level_bpe`, two special tokens, and a gap before the last."""
    tiktoken = pytest.importorskip("tiktoken")
    _, vocab = byte_level_bpe()
    texts = sorted({t for t in vocab.tokens if t and t not in (b"<tool>", "café".encode(), b"  ")}, key=len)
    single = [bytes([b]) for b in range(256)]
    ranks = {t: i for i, t in enumerate([*single, *(t for t in texts if len(t) > 1)])}
    enc = tiktoken.Encoding(
        "small",
        pat_str=r"\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+|\s+",
        mergeable_ranks=ranks,
        special_tokens={"<|endoftext|>": len(ranks), "<|im_start|>": len(ranks) + 5},
    )
    return enc, Vocabulary.from_tiktoken(enc)


# ----------------------------------------------------------------------------------------------------- all


@dataclass(frozen=True)
class Animal:
    """One tokenizer of the zoo with its own ways to encode and decode."""

    make: Callable[[], Pair]
    encode: Callable[[Any, str], list[int]]
    decode: Callable[[Any, list[int]], str]
    lossless: bool = False  # decoding what it encodes gives back any text


def _fast(make: Callable[[], Pair], lossless: bool = False) -> Animal:
    return Animal(make, lambda tok, text: tok.encode(text).ids, lambda tok, ids: str(tok.decode(ids)), lossless)


def _mistral(make: Callable[[], Pair], lossless: bool = False) -> Animal:
    return Animal(
        make, lambda t, text: t.encode(text, bos=False, eos=False), lambda t, ids: str(t.decode(ids)), lossless
    )


def _plain(make: Callable[[], Pair], lossless: bool = False) -> Animal:
    return Animal(make, lambda t, text: list(t.encode(text)), lambda t, ids: str(t.decode(ids)), lossless)


ZOO = {
    "tekken": _mistral(tekken, True),
    "tekken older": _mistral(lambda: tekken("tekken_240718.json"), True),
    "mistral v1": _mistral(lambda: mistral_sentencepiece("tokenizer.model.v1")),
    "mistral v2": _mistral(lambda: mistral_sentencepiece("mistral_instruct_tokenizer_240216.model.v2")),
    "mistral v3": _mistral(mistral_sentencepiece),
    "mistral v7": _mistral(lambda: mistral_sentencepiece("mistral_instruct_tokenizer_241114.model.v7")),
    "byte-level BPE": _fast(byte_level_bpe),
    "Metaspace Unigram": _fast(metaspace_unigram),
    "Metaspace first": _fast(lambda: metaspace_unigram("first")),
    "Metaspace never": _fast(lambda: metaspace_unigram("never")),
    "byte-fallback BPE": _fast(byte_fallback_bpe),
    "byte-fallback BPE, no strip": _fast(lambda: byte_fallback_bpe(False)),
    "WordPiece": _fast(wordpiece),
    "WordPiece, no clean-up": _fast(lambda: wordpiece(False)),
    "BPE with </w>": _fast(word_end_bpe),
    "WordLevel": _fast(word_level),
    "sentencepiece BPE": _plain(sentencepiece_bpe),
    "sentencepiece Unigram": _plain(sentencepiece_unigram),
    "tiktoken": _plain(tiktoken_bpe, True),
}
