"""What tokens spell, whatever tokenizer they come from."""

from __future__ import annotations

import base64
import functools
import json
import pickle
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import maskwright as mw
from maskwright.vocabulary.vocabulary import Vocabulary
from tests.strategies import tokenizer_zoo as zoo

ALL = pytest.mark.parametrize("name", zoo.ZOO)
FEW = settings(max_examples=40, deadline=None)

PLAIN = "the| quick|don't|Straße|café|e\u0301|ﬁ|Å|👩‍👩‍👧|🎉|世界|こ|Быстрая|.|,|{|12|<tool>|<0x41>|##ing|</w>"
WORDS = st.sampled_from([*PLAIN.split("|"), *" \n\t\0\x85\u00a0\ufeff\u200d", "  "])
TEXTS = st.lists(WORDS | st.text(max_size=4), max_size=12).map("".join)


def at_the_ends(vocab: Vocabulary, spelt: bytes) -> bytes:
    """Drop the spaces at the ends of a text that the vocabulary says its tokenizer drops."""
    if vocab.leading_space:
        spelt = spelt.removeprefix(b" ")
    if vocab.trailing_space:
        spelt = spelt.removesuffix(b" ")
    return spelt


# ------------------------------------------------------------------------------------------------------ bytes


@ALL
@FEW
@given(text=TEXTS)
def test_tokens_spell_what_the_tokenizer_decodes(name: str, text: str) -> None:
    animal = zoo.ZOO[name]
    tok, vocab = animal.make()
    if vocab.leading_space:
        text = text.lstrip(" ▁")  # some drop more than one space at the start
    ids = [i for i in animal.encode(tok, text) if i not in vocab.special]  # without what it does not know
    assume(name != "byte-level BPE" or "café" not in text)  # its decoder takes the added text for bytes
    assert at_the_ends(vocab, vocab.decode(ids)) == animal.decode(tok, ids).encode()


@pytest.mark.parametrize("name", [name for name, animal in zoo.ZOO.items() if animal.lossless])
@FEW
@given(text=TEXTS)
def test_a_lossless_tokenizer_gives_back_every_byte(name: str, text: str) -> None:
    animal = zoo.ZOO[name]
    tok, vocab = animal.make()
    assert vocab.decode(animal.encode(tok, text)) == text.encode()
    assert vocab.encode(text) == animal.encode(tok, text)


@ALL
@FEW
@given(data=st.data())
def test_a_token_adds_its_bytes_to_any_text_before_it(name: str, data: st.DataObject) -> None:
    """Any ids that a model may write, in any order: not only those that the tokenizer would choose."""
    animal = zoo.ZOO[name]
    tok, vocab = animal.make()
    first = next(i for i, token in enumerate(vocab.tokens) if token.strip().isalpha())
    whole = [i for i, token in enumerate(vocab.tokens[:2000]) if token and _is_text(token)]
    if name == "byte-level BPE":
        whole.remove(vocab.tokens.index("café".encode()))
    ids = data.draw(st.lists(st.sampled_from(whole), max_size=6))
    before, after = animal.decode(tok, [first]).encode(), animal.decode(tok, [first, *ids]).encode()
    if vocab.trailing_space:  # only the last space of all is dropped
        before, after = vocab.decode([first]), after + b" " * vocab.decode([first, *ids]).endswith(b" ")
    assert after == before + vocab.decode(ids)


def _is_text(token: bytes) -> bool:
    try:
        return "\ufffd" not in token.decode()
    except UnicodeDecodeError:
        return False


def test_added_tokens_spell_their_text_and_special_ones_spell_nothing() -> None:
    tok, vocab = zoo.byte_level_bpe()
    for text in ("<tool>", "café", "  "):
        assert vocab.tokens[tok.token_to_id(text)] == text.encode()
    assert vocab.tokens[tok.token_to_id("<|end|>")] == b""
    assert vocab.eos in vocab.special

    sp, vocab = zoo.sentencepiece_bpe()
    assert vocab.tokens[sp.piece_to_id("<tool>")] == b"<tool>"
    assert vocab.tokens[sp.piece_to_id("<ctrl>")] == b""
    assert vocab.tokens[sp.piece_to_id("<0x0A>")] == b"\n"
    assert vocab.tokens[sp.unk_id()] == b""
    assert vocab.eos == sp.eos_id()


def test_special_tokens_written_in_a_text_are_text() -> None:
    tok, vocab = zoo.byte_level_bpe()
    ids = vocab.encode("a<|end|>b")
    assert tok.token_to_id("<|end|>") not in ids
    assert vocab.decode(ids) == b"a<|end|>b"
    assert tok.encode("<|end|>").ids == [tok.token_to_id("<|end|>")], "the tokenizer itself is left as it was"


def test_gaps_between_ids_have_no_bytes() -> None:
    enc, vocab = zoo.tiktoken_bpe()
    assert vocab.eos == enc.eot_token
    assert vocab.size == enc.n_vocab
    assert set(vocab.tokens[enc.eot_token :]) == {b""}
    assert vocab.special == {enc.eot_token, enc.n_vocab - 1}


def test_a_tokenizer_says_which_space_it_drops() -> None:
    spaces = {
        name: (vocab.leading_space, vocab.trailing_space)
        for name, animal in zoo.ZOO.items()
        if not name.startswith(("mistral", "tekken"))
        for vocab in [animal.make()[1]]
    }
    drops_none = {
        "byte-level BPE",
        "Metaspace never",
        "byte-fallback BPE, no strip",
        "sentencepiece Unigram",
        "tiktoken",
    }
    assert {name for name, ends in spaces.items() if ends == (False, False)} == drops_none
    assert {name for name, ends in spaces.items() if ends == (False, True)} == {"BPE with </w>"}


def test_mistral_generations_drop_the_first_space_or_none() -> None:
    assert not zoo.tekken()[1].leading_space
    assert zoo.mistral_sentencepiece()[1].leading_space
    assert zoo.mistral_sentencepiece("tokenizer.model.v1")[1].leading_space


def test_a_tekken_vocabulary_from_its_bytes_is_the_same() -> None:
    tok, vocab = zoo.tekken()
    tokens = [tok.id_to_byte_piece(i) for i in range(tok.n_words)]
    assert Vocabulary.from_bytes(tokens, eos=2, special=range(1000)) == vocab
    assert vocab.spells_all_bytes
    assert (vocab.trie.byte.size, vocab.trie.longest) == (266_312, 76)


def test_a_mistral_tokenizer_is_read_through_its_wrappers() -> None:
    tok, vocab = zoo.mistral_sentencepiece()
    from mistral_common.tokens.tokenizers.mistral import MistralTokenizer

    wrapped = MistralTokenizer.from_file(str(tok.file_path))
    assert Vocabulary.from_mistral(wrapped) == vocab
    assert Vocabulary.from_mistral(wrapped.instruct_tokenizer) == vocab
    assert Vocabulary.from_sentencepiece(tok._model) == vocab


# ----------------------------------------------------------------------------------------------- transformers


def test_a_fast_transformers_tokenizer_adds_special_tokens_and_padding() -> None:
    transformers = pytest.importorskip("transformers")
    tok, bare = zoo.byte_level_bpe()
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tok, eos_token="<|end|>")
    assert Vocabulary.from_transformers(fast) == bare
    fast.add_special_tokens({"additional_special_tokens": ["<|im_end|>"]})
    fast.add_tokens(["</think>"])
    end, think = fast.convert_tokens_to_ids(["<|im_end|>", "</think>"])
    vocab = Vocabulary.from_transformers(fast, size=1024, eos=end)
    assert (vocab.size, vocab.eos, vocab.tokens[end], vocab.tokens[think]) == (1024, end, b"", b"</think>")
    assert {fast.eos_token_id, end} <= vocab.special
    assert vocab.tokens[1023] == b""
    text = "<|im_end|> </think> text"
    assert end not in vocab.encode(text)
    assert vocab.decode(vocab.encode(text)) == text.encode()


def test_clip_writes_a_space_for_its_end_of_word() -> None:
    transformers = pytest.importorskip("transformers")
    words = [
        "t",
        "h",
        "e",
        "e</w>",
        "h</w>",
        "th",
        "the</w>",
        "fox</w>",
        "ox</w>",
        "f",
        "o",
        "x",
        "x</w>",
        "Ã",
        "©</w>",
    ]
    vocab = {t: i for i, t in enumerate(["<|startoftext|>", "<|endoftext|>", *words])}
    merges = [("t", "h"), ("th", "e</w>"), ("o", "x</w>"), ("f", "ox</w>")]
    tok = transformers.CLIPTokenizer(vocab=vocab, merges=merges)
    read = Vocabulary.from_transformers(tok)
    ids = tok.encode("The fox é", add_special_tokens=False)
    assert read.trailing_space
    assert read.decode(ids) == "the fox é ".encode()
    assert at_the_ends(read, read.decode(ids)) == tok.decode(ids).encode()


def _slow_tokenizers(folder: Path) -> dict[str, tuple[Any, str]]:
    import transformers
    from transformers.models.bert.tokenization_bert_legacy import BertTokenizerLegacy

    model = folder / "sp.model"
    model.write_bytes(zoo.sentencepiece_model("bpe", False))
    plain, byte_tok = zoo.wordpiece()[0], zoo.byte_level_bpe()[0]
    pieces = folder / "vocab.txt"
    pieces.write_text("\n".join(sorted(plain.get_vocab(), key=plain.get_vocab().__getitem__)))
    whole = json.loads(byte_tok.to_str())["model"]
    (folder / "vocab.json").write_text(json.dumps({**whole["vocab"], "[UNK]": len(whole["vocab"])}))
    (folder / "merges.txt").write_text("#version\n" + "\n".join(" ".join(pair) for pair in whole["merges"]) + "\n")
    clvp = transformers.ClvpTokenizer(
        str(folder / "vocab.json"), str(folder / "merges.txt"), unk_token="[UNK]", pad_token="[UNK]"
    )
    return {
        "BertGeneration": (transformers.BertGenerationTokenizer(str(model)), "The quick brown fox, naïve 👩"),
        "ByT5": (transformers.ByT5Tokenizer(), "The fox \x00 世界 👩"),
        "BertLegacy": (BertTokenizerLegacy(str(pieces)), "the quick brown fox doesn't"),
        "Clvp": (clvp, "the quick fox"),
    }


@pytest.mark.parametrize("name", ["BertGeneration", "ByT5", "BertLegacy", "Clvp"])
def test_tokenizers_written_in_python_spell_what_they_decode(name: str, tmp_path: Path) -> None:
    pytest.importorskip("transformers", minversion="5")
    pytest.importorskip("sentencepiece")
    tok, text = _slow_tokenizers(tmp_path)[name]
    vocab = Vocabulary.from_transformers(tok)
    ids = tok.encode(text, add_special_tokens=False)
    assert not vocab.special.intersection(ids)
    assert len(ids) >= 3
    own = tok.decode(ids, clean_up_tokenization_spaces=False)
    assert at_the_ends(vocab, vocab.decode(ids)) == own.encode()
    assert vocab.eos == tok.eos_token_id


def test_transformers_around_mistral_common_is_the_same_vocabulary() -> None:
    pytest.importorskip("transformers", minversion="5")
    from transformers.tokenization_mistral_common import MistralCommonBackend

    tok, vocab = zoo.mistral_sentencepiece()
    assert Vocabulary.from_transformers(MistralCommonBackend(str(tok.file_path))) == vocab


def test_decoders_without_exact_bytes_are_refused_by_name() -> None:
    hf = pytest.importorskip("tokenizers")
    d = hf.decoders

    class Own:
        def decode_chain(self, tokens: list[str]) -> list[str]:
            return tokens

    refused = {
        "'CTC'": d.CTC(),
        "'Decoder'": d.Decoder.custom(Own()),
        "'Replace'": d.Replace(hf.Regex(" +"), " "),
        "'Metaspace' comes after": d.Sequence([d.Fuse(), d.Metaspace()]),
        "'Replace' comes after": d.Sequence([d.ByteLevel(), d.Replace("a", "b")]),
        "drops more than one space": d.Sequence([d.Fuse(), d.Strip(" ", 2, 0)]),
    }
    for message, decoder in refused.items():
        tok = hf.Tokenizer(hf.models.WordLevel({"a": 0}, "a"))
        tok.decoder = decoder
        with pytest.raises(mw.errors.ConstraintError, match=message):
            Vocabulary.from_transformers(tok)


@pytest.mark.parametrize("order", ["strip first", "fallback first"])
def test_decoders_apply_in_their_order(order: str) -> None:
    hf = pytest.importorskip("tokenizers")
    d = hf.decoders
    steps = {
        "strip first": [d.Strip("_", 1, 1), d.Replace("ab", "c"), d.ByteFallback(), d.Fuse()],
        "fallback first": [d.ByteFallback(), d.Fuse(), d.Replace("a", "b")],
    }[order]
    words = ["<unk>", "__abab_", "<0x61>", "<0xC3>", "<0xA9>", "<0x6>", "xay"]
    tok = hf.Tokenizer(hf.models.WordLevel({word: i for i, word in enumerate(words)}, "<unk>"))
    tok.decoder = d.Sequence(steps)
    vocab = Vocabulary.from_transformers(tok)
    ids = [1, 2, 3, 4, 5, 6, 2]
    assert vocab.decode(ids) == tok.decode(ids).encode()


# -------------------------------------------------------------------------------------------------------- files


def _ranks(vocab: Vocabulary) -> str:
    lines = [f"{base64.b64encode(token).decode()} {i}" for i, token in enumerate(vocab.tokens) if token]
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer.model", "x.model.v3", "tekken.json"])
@pytest.mark.parametrize("folder", [False, True])
def test_a_file_is_read_by_the_package_it_belongs_to(name: str, folder: bool, tmp_path: Path) -> None:
    path = tmp_path / name
    if name == "tokenizer.json":
        tok, vocab = zoo.byte_level_bpe()
        tok.save(str(path))
        vocab = Vocabulary.from_transformers(tok)  # the file does not say which token ends a text
    elif name == "tekken.json":
        vocab = zoo.tekken()[1]
        path.symlink_to(zoo.data_file("tekken_240911.json"))
    else:
        vocab = zoo.sentencepiece_bpe()[1]
        path.write_bytes(zoo.sentencepiece_model("bpe", False))
    if folder and name == "x.model.v3":
        with pytest.raises(
            mw.errors.DataError, match=r"has neither tokenizer_config.json nor tekken.json, tokenizer.json"
        ):
            Vocabulary.from_file(tmp_path)
        return
    read = Vocabulary.from_file(tmp_path if folder else path)
    assert (read, read.special) == (vocab, vocab.special)
    assert read.encode("the fox") == vocab.encode("the fox")


def test_a_folder_that_transformers_saved_says_which_token_ends_a_text(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    tok, vocab = zoo.byte_level_bpe()
    transformers.PreTrainedTokenizerFast(tokenizer_object=tok, eos_token="<|end|>").save_pretrained(tmp_path)
    assert Vocabulary.from_file(str(tmp_path)) == vocab
    assert Vocabulary.from_file(tmp_path / "tokenizer.json", eos=0) == vocab
    wide = Vocabulary.from_file(tmp_path, size=1024, eos=5)
    assert (wide.size, wide.eos) == (1024, 5)


@pytest.fixture
def sentencepiece_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a folder of a model that has pieces alone, and have protobuf be missing."""
    (tmp_path / "tokenizer.model").write_bytes(zoo.sentencepiece_model("bpe", False))
    monkeypatch.setitem(sys.modules, "google.protobuf", None)
    return tmp_path


def write_config(folder: Path, **told: Any) -> None:
    (folder / "tokenizer_config.json").write_text(json.dumps(told))


@pytest.mark.parametrize("kind", ["LlamaTokenizer", "GemmaTokenizerFast", None])
def test_a_folder_with_pieces_is_read_without_protobuf(kind: str | None, sentencepiece_folder: Path) -> None:
    _, vocab = zoo.sentencepiece_bpe()
    size = vocab.size
    added = {
        "1": {"content": "<s>", "special": True},
        str(size + 1): {"content": "<|end|>", "special": True},
        str(size + 2): {"content": "  ", "special": False},
    }
    ends = {"content": "<|end|>", "lstrip": False}
    write_config(sentencepiece_folder, tokenizer_class=kind, added_tokens_decoder=added, eos_token=ends)
    read = Vocabulary.from_file(sentencepiece_folder)
    assert read.tokens[:size] == vocab.tokens
    assert read.tokens[size:] == (b"", b"", b"  ")
    assert read.eos == size + 1
    assert read.special >= {*vocab.special, size + 1}
    assert read.encode("the quick fox") == vocab.encode("the quick fox")
    write_config(sentencepiece_folder, tokenizer_class=kind)
    assert Vocabulary.from_file(sentencepiece_folder) == vocab


@pytest.mark.parametrize(
    ("told", "named"),
    [
        ({"tokenizer_class": "XLMRobertaTokenizer"}, "XLMRobertaTokenizer"),
        ({"tokenizer_class": "LlamaTokenizer", "added_tokens_decoder": {"1": {"content": "<pad>"}}}, "LlamaTokenizer"),
    ],
)
def test_pieces_whose_numbers_are_no_token_ids_need_protobuf(
    told: dict[str, Any], named: str, sentencepiece_folder: Path
) -> None:
    write_config(sentencepiece_folder, **told)
    with pytest.raises(mw.errors.MissingDependencyError, match=f"the ids of {named} .* pip install protobuf"):
        Vocabulary.from_file(sentencepiece_folder)


@pytest.mark.parametrize("name", ["cl100k.tiktoken", "tokenizer.model", "ranks"])
def test_a_file_of_ranks_is_read_whatever_it_is_called(name: str, tmp_path: Path) -> None:
    enc, vocab = zoo.tiktoken_bpe()
    (tmp_path / name).write_text(_ranks(vocab))
    read = Vocabulary.from_file(tmp_path / name, size=enc.n_vocab, eos=enc.eot_token)
    assert read == vocab
    assert read.decode(read.encode("the quick fox")) == b"the quick fox"
    assert read.encoder is None
    assert Vocabulary.from_file(tmp_path / name).eos is None


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("tokenizer.json", "{", r"tokenizer.json cannot be read as a tokenizer \(Exception: EOF"),
        ("tekken.json", "{}", r"tekken.json cannot be read as a tokenizer \(KeyError: 'config'\)"),
        ("x.model", "no model", r"x.model cannot be read as a tokenizer \(RuntimeError: .*ModelProto"),
        ("tokenizer_config.json", "{", r"cannot be read as a tokenizer \(JSONDecodeError: "),
        ("ranks", "YQ== 0\nYg==\n", "line 2 of .*ranks is not a token in base64 and its rank"),
        ("ranks", "YQ== 0\nYg= 1\n", "line 2 of .*ranks is not a token in base64 and its rank"),
        ("ranks", "YQ== 0\n\nYg== 0\n", "line 3 of .*ranks has rank 0, which no other token may have"),
        ("ranks", "YQ== 0\nYg== 99999999\n", "ranks has 2 tokens and the rank 99,999,999"),
        ("x.txt", "the fox", "x.txt is no tokenizer that can be read: pass a folder with tokenizer_config.json"),
        ("x.txt", "", "x.txt is no tokenizer that can be read"),
    ],
)
def test_damaged_files_are_refused_by_name(name: str, content: str, message: str, tmp_path: Path) -> None:
    for package in ("transformers", "tokenizers", "sentencepiece", "mistral_common"):
        pytest.importorskip(package)
    (tmp_path / name).write_text(content)
    with pytest.raises(mw.errors.DataError, match=message):
        Vocabulary.from_file(tmp_path if name == "tokenizer_config.json" else tmp_path / name)


def test_a_path_where_nothing_is_and_packages_that_are_missing_are_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(FileNotFoundError, match="there is no tokenizer at"):
        Vocabulary.from_file(tmp_path / "gpt2")
    for name, package, install in (
        ("tokenizer_config.json", "transformers", r"pip install 'maskwright\[transformers\]'"),
        ("tekken.json", "mistral_common.tokens.tokenizers.tekken", "pip install mistral-common"),
        ("tokenizer.json", "tokenizers", "pip install tokenizers"),
        ("x.model", "sentencepiece", "pip install sentencepiece"),
    ):
        (tmp_path / name).write_text("{}")
        monkeypatch.setitem(sys.modules, package, None)
        with pytest.raises(mw.errors.MissingDependencyError, match=f"reading .* needs .*: {install}"):
            Vocabulary.from_file(tmp_path if name == "tokenizer_config.json" else tmp_path / name)


def test_a_real_vocabulary_is_ready_in_a_fraction_of_a_second() -> None:
    _, known = zoo.tekken()
    tokens = list(known.tokens)
    seconds = []
    for _ in range(4):
        begin = time.process_time()
        vocab = Vocabulary.from_bytes(tokens, eos=2, special=range(1000))
        assert vocab.trie.longest == 76
        assert vocab.fingerprint == known.fingerprint
        seconds.append(time.process_time() - begin)
    assert min(seconds) < 2  # of a processor's time, of any: 0.2 is usual, a loop over tokens would take far longer


# ----------------------------------------------------------------------------------------------- text and ids


@settings(max_examples=300, deadline=None)
@given(
    tokens=st.lists(st.text("ab", min_size=1, max_size=4).map(str.encode), min_size=1, max_size=6),
    text=st.text("ab", max_size=10).map(str.encode),
)
def test_without_an_encoder_the_longest_tokens_that_work_out_are_taken(tokens: list[bytes], text: bytes) -> None:
    def best(rest: bytes) -> list[int] | None:
        if not rest:
            return []
        for token in sorted(set(tokens), key=len, reverse=True):
            if rest.startswith(token) and (more := best(rest[len(token) :])) is not None:
                return [tokens.index(token), *more]
        return None

    vocab, ids = Vocabulary.from_bytes(tokens), best(text)
    if ids is None:
        with pytest.raises(
            mw.errors.ConstraintError, match="cannot be written with this vocabulary: no token fits at byte"
        ):
            vocab.encode(text)
    else:
        assert vocab.encode(text) == ids
        assert vocab.decode(ids) == text


def test_finding_that_a_long_text_cannot_be_written_takes_no_time_to_speak_of() -> None:
    vocab = Vocabulary.from_bytes([b"a" * n for n in range(1, 20)])
    with pytest.raises(mw.errors.ConstraintError, match="no token fits at byte 5000, b'!'"):
        vocab.encode("a" * 5000 + "!")


def test_bytes_that_are_no_text_are_written_by_longest_match() -> None:
    _, vocab = zoo.byte_level_bpe()
    assert vocab.decode(vocab.encode(b"the \xff\xfe fox")) == b"the \xff\xfe fox"
    assert vocab.encode("naïve".encode()) == vocab.encode("naïve")


@functools.cache
def without_encoder(name: str) -> Vocabulary:
    return Vocabulary.from_bytes(zoo.ZOO[name].make()[1].tokens)


INSIDE = st.lists(st.sampled_from([" the", "dog", " ", "quick", "é", "🎉", "\n", "12", '{"', "The"]), max_size=6).map(
    "".join
)


@ALL
@FEW
@given(text=INSIDE | TEXTS)
def test_ids_spell_the_text_exactly_if_any_tokens_can(name: str, text: str) -> None:
    vocab = zoo.ZOO[name].make()[1]
    try:
        without_encoder(name).encode(text)
    except mw.errors.ConstraintError:
        with pytest.raises(mw.errors.ConstraintError, match="and no tokens spell it exactly"):
            vocab.encode(text)
    else:
        ids = vocab.encode(text)
        assert vocab.decode(ids) == text.encode()
        assert all(vocab.tokens[i] for i in ids)


MISTRAL = pytest.mark.parametrize("name", ["mistral v1", "mistral v2", "mistral v3", "mistral v7"])


@MISTRAL
def test_no_space_is_put_before_a_text_that_has_none_nor_another_before_one_that_has(name: str) -> None:
    tok, vocab = zoo.ZOO[name].make()
    assert vocab.decode(tok.encode("red", bos=False, eos=False)) == b" red", "as the tokenizer writes it alone"
    assert [vocab.tokens[i] for i in vocab.encode("red")] == [b"red"]
    assert [vocab.tokens[i] for i in vocab.encode(" and then")] == [b" and", b" then"]
    assert mw.compile_choices(["red", "green"], vocab).accepts(vocab.encode("red"))


@MISTRAL
@FEW
@given(text=st.lists(st.sampled_from(["the", " quick", " ", "é", "🎉", "12", "{", "\n"]), max_size=8).map("".join))
def test_a_text_is_segmented_as_it_is_inside_a_longer_one(name: str, text: str) -> None:
    tok, vocab = zoo.ZOO[name].make()
    line = tok.encode("\n", bos=False, eos=False)
    assert line + vocab.encode(text) == tok.encode("\n" + text, bos=False, eos=False)


def test_a_text_is_taken_from_between_others_where_tokens_end_at_its_ends() -> None:
    tokens = " |r|e|d|:| r|d |: | :|\nr|d\n|re|x|0|\n| \n| 0| x|\n |0 |x |\u00a0| \u00a0|\u00a0 ".encode().split(b"|")

    def encode(text: str) -> list[int]:
        """Put a space before and behind every text, and join two pairs of characters."""
        return [tokens.index(part.encode()) for part in re.findall(r"\nr|d\n|(?:^ )?.(?: $)?", f" {text} ", re.DOTALL)]

    vocab = Vocabulary.from_bytes(tokens, encode=encode, leading_space=True, trailing_space=True)
    assert vocab.decode(encode("red")) == b" red "
    assert [tokens[i] for i in vocab.encode("red")] == [b"r", b"e", b"d"]
    assert [tokens[i] for i in Vocabulary.from_bytes(tokens).encode("red")] == [b"re", b"d"], "by longest match"


def test_special_tokens_that_an_encoder_adds_are_no_part_of_the_text() -> None:
    vocab = Vocabulary.from_bytes(
        [b"", b"a", b"b", b""], eos=3, special=[0], encode=lambda text: [0, *("ab".index(c) + 1 for c in text), 3]
    )
    assert vocab.encode("ab") == [1, 2]


def test_a_text_that_the_tokenizer_changes_is_written_by_longest_match_or_refused() -> None:
    sp, vocab = zoo.sentencepiece_bpe()
    assert vocab.decode(sp.encode("ﬁne")) == b" fine"
    assert vocab.encode("ﬁne") == without_encoder("sentencepiece BPE").encode("ﬁne")
    with pytest.raises(
        mw.errors.ConstraintError, match=r"the tokenizer writes b'The fox' as b' the fox', and no tokens"
    ):
        zoo.wordpiece()[1].encode("The fox")
    with pytest.raises(
        mw.errors.ConstraintError, match=r"it begins words with a space, has no tokens for parts of this text"
    ):
        zoo.word_level()[1].encode("zebra")


# ---------------------------------------------------------------------------------------------------- pickling


@ALL
def test_a_vocabulary_can_be_sent_to_another_process_with_its_tokenizer(name: str) -> None:
    vocab = zoo.ZOO[name].make()[1]
    assert vocab.trie.longest
    sent = pickle.dumps(vocab)
    assert len(sent) < len(pickle.dumps(vocab.encoder)) + 2 * len(vocab.token_bytes) + 20 * vocab.size, "no trie in it"
    read = pickle.loads(sent)
    assert (read.fingerprint, read.special) == (vocab.fingerprint, vocab.special)
    text = "a red dog" if name == "BPE with </w>" else " the fox"  # which no token of it begins
    assert read.encode(text) == vocab.encode(text)
    assert not read.token_bytes.flags.writeable


def test_a_transformers_tokenizer_is_sent_along() -> None:
    transformers = pytest.importorskip("transformers")
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=zoo.byte_fallback_bpe()[0], eos_token="</s>")
    vocab = Vocabulary.from_transformers(fast)
    read = pickle.loads(pickle.dumps(vocab))
    assert read == vocab
    assert read.encode("The fox") == vocab.encode("The fox")


# ------------------------------------------------------------------------------------------------ fingerprint


def test_the_fingerprint_is_the_same_in_another_process() -> None:
    code = (
        "from maskwright.vocabulary.vocabulary import Vocabulary as V;"
        "print(V.from_bytes([b'</s>', b'a\\0', b'', b'\\xff'], eos=0, special={3, 2}, size=7).fingerprint)"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    here = Vocabulary.from_bytes([b"</s>", b"a\0", b"", b"\xff"], eos=0, special=[2, 3], size=7)
    assert out.stdout.strip() == here.fingerprint
    assert here.fingerprint.startswith("bytes:")


def test_the_fingerprint_tells_apart_what_matters() -> None:
    make = Vocabulary.from_bytes
    different = [
        make([b"ab", b"c"]),
        make([b"a", b"bc"]),
        make([b"c", b"ab"]),
        make([b"ab", b"c"], size=3),
        make([b"ab", b"c", b""], eos=2),
        make([b"ab", b"c"], leading_space=True),
        make([b"ab", b"c"], trailing_space=True),
        make([b"ab", b"c", b"\0"]),
    ]
    assert len({vocab.fingerprint for vocab in different}) == len(different)
    assert len(set(different)) == len(different)
    assert make([b"ab", b"c"], encode=lambda text: [0]) == make([b"ab", b"c"])
    assert make([b"ab", b"c"], special=[1]) == make([b"ab", b""])
    assert make([b"a"]) != "a"


def test_a_vocabulary_cannot_be_changed() -> None:
    vocab = Vocabulary.from_bytes([b"a", b"b"], eos=1)
    with pytest.raises(AttributeError):
        vocab.eos = 0  # type: ignore[misc]
    assert not vocab.token_offset.flags.writeable
    assert not vocab.token_bytes.flags.writeable
    assert repr(vocab).startswith("Vocabulary(size=2, eos=1, fingerprint='bytes:")


def test_all_bytes_are_spelt_only_if_each_of_the_256_is_a_token() -> None:
    single = [bytes([b]) for b in range(256)]
    assert Vocabulary.from_bytes([*single, b"ab"]).spells_all_bytes
    assert not Vocabulary.from_bytes([*single, b"ab"], special=[7]).spells_all_bytes


# ------------------------------------------------------------------------------------------------------ errors


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"tokens": []}, "the vocabulary is empty: pass the bytes of at least one token"),
        ({"tokens": ["a", "b"]}, r"token 0 is str, not bytes: encode it, token.encode\(\)"),
        ({"tokens": [b"a", None]}, 'token 1 is NoneType, not bytes: use b"" for an id without bytes'),
        ({"tokens": [b"a", bytearray(b"b")]}, r"token 1 is bytearray, not bytes: convert it with bytes\(token\)"),
        ({"tokens": [b"a", 7]}, "token 1 is int, not bytes: pass bytes"),
        ({"tokens": b"abc"}, "tokens is one bytes: pass a list of bytes"),
        ({"tokens": None}, "tokens must be a list of bytes, one for each id, not NoneType"),
        ({"tokens": {b"a": 1, b"b": 0}}, "tokens must be a list of bytes, one for each id, not dict"),
        ({"tokens": {b"a"}}, "tokens must be a list of bytes, one for each id, not set"),
        ({"tokens": [b"a"], "special": None}, "special must be a list of token ids, not None"),
        ({"tokens": [b"a"], "encode": "gpt2"}, "encode must be a function from a text to its token ids, not str"),
        ({"tokens": [b"a"], "eos": 1}, "eos must be token ids from 0 to 0, not 1"),
        ({"tokens": [b"a", b"b"], "eos": -1}, "eos must be token ids from 0 to 1, not -1"),
        ({"tokens": [b"a", b"b"], "eos": True}, "eos must be token ids from 0 to 1, not True"),
        ({"tokens": [b"a", b"b"], "eos": "b"}, "eos must be token ids from 0 to 1, not 'b'"),
        ({"tokens": [b"a", b"b"], "eos": [0, 2]}, "eos must be token ids from 0 to 1, not 2"),
        ({"tokens": [b"a", b"b"], "eos": [0, None]}, "eos must be token ids from 0 to 1, not None"),
        ({"tokens": [b"a", b"b"], "eos": []}, "eos is an empty list: pass at least one token, or leave it out"),
        ({"tokens": [b"a", b"b"], "eos": {0}}, r"eos must be token ids from 0 to 1, not \{0\}"),
        ({"tokens": [b"a", b"b"], "special": [0, 2]}, "special must be token ids from 0 to 1, not 2"),
        ({"tokens": [b"a", b"b"], "special": ["a"]}, "special must be token ids from 0 to 1, not 'a'"),
        ({"tokens": [b"a", b"b"], "size": 1}, "size must be an integer from 2, the number of tokens, to .*, not 1"),
        ({"tokens": [b"a"], "size": 2.0}, "size must be an integer from 1, .* not 2.0"),
        ({"tokens": [b"", b"</s>"], "eos": 1}, "no token of the vocabulary has bytes"),
        ({"tokens": [b"a", b"b" * 65_536]}, "token 1 has 65,536 bytes, the most is 65,535"),
    ],
)
def test_wrong_input_is_refused_with_its_place(arguments: dict[str, Any], message: str) -> None:
    tokens = arguments.pop("tokens")
    with pytest.raises(mw.errors.ConstraintError, match=message):
        Vocabulary.from_bytes(tokens, **arguments)


def test_foreign_objects_are_refused_with_what_to_use() -> None:
    for method, wanted in {
        "from_transformers": "a transformers tokenizer",
        "from_tiktoken": "a tiktoken.Encoding",
        "from_sentencepiece": "a sentencepiece.SentencePieceProcessor",
        "from_mistral": "a mistral-common MistralTokenizer",
    }.items():
        with pytest.raises(
            mw.errors.ConstraintError, match=f"Vocabulary.{method} needs {wanted}.*, not str: load it first"
        ):
            getattr(Vocabulary, method)("gpt2")
        with pytest.raises(mw.errors.ConstraintError, match=r"not object: use the from_ method of the package"):
            getattr(Vocabulary, method)(object())


def test_a_constraint_that_no_words_begin_is_refused_with_a_hint_where_words_begin_with_a_space() -> None:
    vocab = zoo.word_level()[1]
    with pytest.raises(
        mw.errors.ConstraintError, match="its words spell a space before them: begin the constraint with one"
    ):
        mw.compile_choices(["The quick"], vocab)
    assert mw.compile_choices([" The quick"], vocab).accepts(vocab.encode(" The quick"))
    with pytest.raises(mw.errors.ConstraintError, match=r"that every such text needs$"):
        mw.compile_choices(["c"], Vocabulary.from_bytes([b"a", b"b"]))


def test_ids_and_texts_that_are_none_are_refused() -> None:
    vocab = Vocabulary.from_bytes([b"a", b"b"])
    with pytest.raises(mw.errors.VocabularyMismatchError, match=r"token 2 at position 1 is outside 0 .. 1"):
        vocab.decode([0, 2])
    with pytest.raises(mw.errors.VocabularyMismatchError, match=r"token -1 at position 0"):
        vocab.decode([-1])
    with pytest.raises(mw.errors.ConstraintError, match="a text is str or bytes, not list"):
        vocab.encode([1])  # type: ignore[arg-type]
    with pytest.raises(mw.errors.ConstraintError, match="lone surrogate at position 1"):
        vocab.encode("a\ud800")
    assert vocab.encode("") == []


def test_several_tokens_may_end_a_text() -> None:
    tokens = [b"</s>", b"a", b"<|eot|>", b"b"]
    several = Vocabulary.from_bytes(tokens, eos=[2, 0, 2])
    assert (several.eos, several.other_ends, several.ends) == (2, (0,), (2, 0))
    assert several.tokens == (b"", b"a", b"", b"b")
    assert several.special == {0, 2}
    assert pickle.loads(pickle.dumps(several)).ends == (2, 0)
    assert several.marked(((1,),)).ends == (2, 0)
    assert "ends=(2, 0)" in repr(several)
    one = Vocabulary.from_bytes(tokens, eos=2, special=[0])
    fingerprints = {each.fingerprint for each in (several, one, Vocabulary.from_bytes(tokens, eos=[0, 2]))}
    assert len(fingerprints) == 3  # tables are not the same
    assert one == Vocabulary.from_bytes(tokens, eos=[2], special=[0])
    assert one.ends == (2,)
    assert Vocabulary.from_bytes([b"a"]).ends == ()


def test_further_ends_are_taken_as_a_generation_config_has_them() -> None:
    plain = Vocabulary.from_bytes([b"</s>", b"a", b"", b"<t>"], eos=0, special=[2], names={"<t>": 3})
    for asked, ends in (
        (None, (0,)), ([], (0,)), ((), (0,)), (0, (0,)), (2, (0, 2)), ([3, 0, 2], (0, 3, 2)), ([1, 2, 2], (0, 2)),
        (np.array([2]), (0, 2)),
    ):  # fmt: skip
        made = plain.with_ends(asked)
        assert made.ends == ends
        assert [made.tokens[end] for end in ends] == [b""] * len(ends)
    for wrong in (4, [2, -1], ["2"], True, {2}):
        with pytest.raises(mw.errors.ConstraintError, match="ends must be token ids from 0 to 3, not ") as error:
            plain.with_ends(wrong)  # type: ignore[arg-type]
        assert error.value.argument == "ends"


def test_the_fingerprint_of_one_end_is_that_of_earlier_versions() -> None:
    """Tables that were compiled before vocabularies could have several ends stay valid."""
    known = {
        0: "bytes:3ae069c60bd49aa5e618f0c55b815eb2194cac541acaafd6478c8cfab0b284a6",
        None: "bytes:978d705cc03a1790efa3202a38cf832048832975f0de6eb75e374fe40734c10e",
    }
    for eos, fingerprint in known.items():
        assert Vocabulary.from_bytes([b"</s>", b"a", b"b", b"ab"], eos=eos, special=[0]).fingerprint == fingerprint
