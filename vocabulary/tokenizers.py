"""Readers of tokenizers: the exact bytes of each token id, from the objects of the packages people use, or from files.

    transformers, tokenizers   by what their decoder does to each token
    sentencepiece              by the type of each piece
    tiktoken, mistral-common   they give bytes

Objects are asked, and only `read_file` imports one of these packages, to make an object. A token has exact bytes if the
tokenizer, decoding ids one after the other, always writes the same for it. Decoders that break this only at a text's
first or last space are read as if they kept that space, and `Reading` says so; others are refused by name.
"""

from __future__ import annotations

import base64
import binascii
import importlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import ConstraintError, DataError, MaskwrightError, MissingDependencyError

if TYPE_CHECKING:
    from sentencepiece import SentencePieceProcessor
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerBase


_SPACE = "▁"  # what SentencePiece writes for a space
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")  # a piece that is one byte

Encode = Callable[[str], Sequence[int]]


@dataclass(frozen=True)
class Reading:
    """What a tokenizer says about itself; `Vocabulary` tells what each field means."""

    tokens: list[bytes]
    special: set[int]
    eos: int | None
    encode: Encode | None
    leading_space: bool = False
    trailing_space: bool = False
    names: Mapping[str, int] = field(default_factory=dict)


# ----------------------------------------------------------------------------------------------------- encoders
# Objects, not functions inside the readers: they can be pickled wherever the tokenizer can.


@dataclass(frozen=True)
class _OfTransformers:
    tok: PreTrainedTokenizerBase

    def __call__(self, text: str) -> Sequence[int]:
        # without splitting at special tokens: "</s>" in a text is text
        ids: Sequence[int] = self.tok.encode(text, add_special_tokens=False, split_special_tokens=True, verbose=False)
        return ids


@dataclass(frozen=True)
class _OfTokenizers:
    tok: Tokenizer

    def __call__(self, text: str) -> Sequence[int]:
        before = self.tok.encode_special_tokens
        self.tok.encode_special_tokens = True
        try:
            ids: Sequence[int] = self.tok.encode(text, add_special_tokens=False).ids
        finally:
            self.tok.encode_special_tokens = before
        return ids


@dataclass(frozen=True)
class _OfMistral:
    tok: Any

    def __call__(self, text: str) -> Sequence[int]:
        ids: Sequence[int] = self.tok.encode(text, bos=False, eos=False)
        return ids


# -------------------------------------------------------------------------------------------------- transformers


def read_transformers(tok: Any) -> Reading:
    """Return what a transformers tokenizer, fast or slow, or a `tokenizers.Tokenizer` says about itself.

    Raises ConstraintError for other objects and for tokenizers whose tokens have no exact bytes.
    """
    if hasattr(tok, "backend_tokenizer"):
        return _read_fast(tok.backend_tokenizer, _declared_special(tok), tok.eos_token_id, _OfTransformers(tok))
    if hasattr(tok, "get_added_tokens_decoder"):
        return _read_fast(tok, set(), None, _OfTokenizers(tok))
    if hasattr(getattr(tok, "tokenizer", None), "instruct_tokenizer"):
        return read_mistral(tok.tokenizer)
    if hasattr(tok, "convert_ids_to_tokens"):
        return _read_slow(tok, _OfTransformers(tok))
    raise _foreign(tok, "from_transformers", "a transformers tokenizer or a tokenizers.Tokenizer")


def _declared_special(tok: PreTrainedTokenizerBase) -> set[int]:
    return {i for i in tok.all_special_ids if i is not None}


def _read_fast(backend: Tokenizer, special: set[int], eos: int | None, encode: Encode) -> Reading:
    texts = {i: text for text, i in backend.get_vocab(with_added_tokens=True).items()}
    added = {i: token.content for i, token in backend.get_added_tokens_decoder().items()}
    special |= {i for i, token in backend.get_added_tokens_decoder().items() if token.special}
    special |= _unknown(backend)
    rules = _Rules.read(backend)
    tokens = [b""] * (max([*texts, *added], default=-1) + 1)
    for i, text in (texts | added).items():
        if rules.byte_level and i in added:
            tokens[i] = text.encode()  # the decoder would take its letters for bytes, "é" for the single byte E9
        elif i not in special:
            tokens[i] = rules.spell(text)
    names = {text: i for i, text in (texts | added).items() if i in special or i in added}
    return Reading(tokens, special, eos, encode, rules.leading_space, rules.trailing_space, names)


def _unknown(backend: Tokenizer) -> set[int]:
    """Return the id that the model writes for what it does not know: it stands for no text."""
    if type(backend.model).__name__ == "Unigram":  # it has no attribute for this
        at = json.loads(backend.model.__getstate__()).get("unk_id")
    else:
        unknown = getattr(backend.model, "unk_token", None)
        at = None if unknown is None else backend.token_to_id(unknown)
    return set() if at is None else {at}


@dataclass
class _Rules:
    """What a decoder does to one token, as steps from its text towards its bytes."""

    steps: list[Callable[[str], str | bytes]] = field(default_factory=list)
    byte_level: bool = False
    fused: bool = False  # later decoders see one text, no longer tokens
    leading_space: bool = False
    trailing_space: bool = False

    @classmethod
    def read(cls, backend: Tokenizer) -> _Rules:
        """Return the rules of a `tokenizers.Tokenizer`; raises ConstraintError for a decoder that has none."""
        rules = cls()
        if backend.decoder is None:  # tokens are joined by spaces
            rules.leading_space = True
            rules.steps.append(lambda text: f" {text}")
            return rules
        try:
            config = json.loads(backend.decoder.__getstate__())
        except Exception as error:  # a bare Exception is what the package raises for a decoder written in Python
            raise _refused(type(backend.decoder).__name__, f"does not say what it does ({error})") from None
        # with an end-of-word mark and a byte-level decoder, it is a wrapper of the decoder that makes the mark a space
        rules._add(config, getattr(backend.model, "end_of_word_suffix", None) or "")
        return rules

    def spell(self, text: str) -> bytes:
        """Return the bytes of the token that the tokenizer calls `text`."""
        for step in self.steps:
            done = step(text)
            if isinstance(done, bytes):
                return done
            text = done
        return text.encode()

    def _add(self, config: dict[str, Any], suffix: str) -> None:
        """Add what one decoder does, given as in a tokenizer.json."""
        kind = config["type"]
        one_letter = kind == "Replace" and len(config["pattern"].get("String", "")) == 1 and not self.byte_level
        if self.fused and kind not in ("Fuse", "Strip") and not one_letter:
            raise _refused(kind, "comes after tokens have been joined, so that what it does crosses tokens")
        match kind:
            case "Sequence":
                for inner in config["decoders"]:
                    self._add(inner, suffix)
            case "ByteLevel":
                self.byte_level = self.fused = True
                self.trailing_space = bool(suffix)
                self.steps.append(lambda text: from_byte_letters(text, suffix))
            case "ByteFallback":
                self.steps.append(from_byte_name)
            case "Metaspace":
                self.leading_space |= config.get("prepend_scheme", "always") != "never"
                self.steps.append(lambda text: text.replace(config["replacement"], " "))
            case "Replace" if "String" in config["pattern"]:
                self.steps.append(lambda text: text.replace(config["pattern"]["String"], config["content"]))
            case "WordPiece":
                self.leading_space = True
                self.steps.append(lambda text: _word_piece(text, config["prefix"], config["cleanup"]))
            case "BPEDecoder":
                self.trailing_space = True
                self.steps.append(lambda text: text.replace(config["suffix"], " "))
            case "Strip" if self.fused:
                ends = config["content"], config["start"], config["stop"]
                if ends[0] != " " or max(ends[1:]) > 1:
                    raise _refused(kind, f"drops more than one space at an end of the text {ends}")
                self.leading_space |= config["start"] == 1
                self.trailing_space |= config["stop"] == 1
            case "Strip":
                self.steps.append(lambda text: _strip(text, config["content"], config["start"], config["stop"]))
            case "Fuse":
                self.fused = True
            case _:
                raise _refused(kind, "is not one whose tokens have bytes of their own")


def from_byte_name(text: str) -> str | bytes:
    name = _BYTE.fullmatch(text)
    if name is None:
        return text
    byte = bytes.fromhex(name[1])
    return byte.decode() if byte.isascii() else byte  # later steps see a letter that is whole


class _ByteLetters(dict[int, int]):
    """The byte that each letter of byte-level tokenizers stands for: printable Latin-1 itself, the rest from U+0100."""

    def __init__(self) -> None:
        own = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
        others = [b for b in range(256) if b not in own]
        super().__init__({b: b for b in own} | {0x100 + i: b for i, b in enumerate(others)})

    def __missing__(self, letter: int) -> int:
        return 0x100  # no byte: encoding fails


_LETTERS = _ByteLetters()


def from_byte_letters(text: str, suffix: str = "") -> bytes:
    stem = text.removesuffix(suffix)
    end = b" " if suffix and stem != text else b""
    try:
        return stem.translate(_LETTERS).encode("latin-1") + end  # five times as fast as letter by letter
    except UnicodeEncodeError:  # as the decoder takes a token that is not in these letters
        return stem.encode() + end


_CLEANUP = {" .": ".", " ?": "?", " !": "!", " ,": ",", " ' ": "'", " n't": "n't", " 'm": "'m"} | {
    " do not": " don't",
    " 's": "'s",
    " 've": "'ve",
    " 're": "'re",
}


def _word_piece(text: str, prefix: str, cleanup: bool) -> str:
    """Return what a token adds to a text that has begun: a continuation itself, a word after a space."""
    text = text.removeprefix(prefix) if text.startswith(prefix) else f" {text}"
    if cleanup:  # the decoder cleans token by token
        for untidy, tidy in _CLEANUP.items():
            text = text.replace(untidy, tidy)
    return text


def _strip(text: str, content: str, start: int, stop: int) -> str:
    for _ in range(start):
        text = text.removeprefix(content)
    for _ in range(stop):
        text = text.removesuffix(content)
    return text


def _read_slow(tok: Any, encode: Encode) -> Reading:
    """Read a transformers tokenizer written in Python: around SentencePiece, byte-level, WordPiece, or ByT5."""
    special = _declared_special(tok)
    tokens: list[bytes] = []
    added = tok.added_tokens_decoder
    special |= {i for i, token in added.items() if token.special}
    sp = getattr(tok, "sp_model", None)
    letters = getattr(tok, "byte_decoder", None)  # by letter, for byte-level tokenizers
    for i in range(max([len(tok) - 1, *added]) + 1):
        if i in special:
            tokens.append(b"")
            continue
        if i in added:
            text = added[i].content
            tokens.append(text.encode() if not hasattr(tok, "wordpiece_tokenizer") else f" {text}".encode())
            continue
        text = tok.convert_ids_to_tokens(i)
        if sp is not None:
            # ids may be shifted against the model's own, and an id in a gap is called by what is no piece
            piece = sp.piece_to_id(text) if isinstance(text, str) else sp.unk_id()
            tokens.append(_piece(sp, piece) if sp.id_to_piece(piece) == text else b"")
        elif isinstance(letters, dict):
            tokens.append(bytes([letters[letter] for letter in text]))
        elif hasattr(tok, "_utf_vocab_size"):  # ByT5: a token is a byte, called by the character of that number
            tokens.append(text.encode("latin-1"))
        elif hasattr(tok, "wordpiece_tokenizer"):
            tokens.append(_word_piece(text, "##", cleanup=False).encode())
        else:
            raise ConstraintError(
                f"{type(tok).__name__} is written in Python and does not tell the bytes of its tokens: load its fast "
                "version, or work out the bytes of each token and use Vocabulary.from_bytes"
            )
    leading = hasattr(tok, "wordpiece_tokenizer") or (sp is not None and _drops_first_space(sp))
    names = {tok.convert_ids_to_tokens(i): i for i in special} | {token.content: i for i, token in added.items()}
    return Reading(tokens, special, tok.eos_token_id, encode, leading, names=names)


# ------------------------------------------------------------------------------------------------- sentencepiece


def read_sentencepiece(sp: Any) -> Reading:
    """Return what a `SentencePieceProcessor` says about itself; raises ConstraintError for other objects."""
    if not (hasattr(sp, "id_to_piece") and hasattr(sp, "is_byte")):
        raise _foreign(sp, "from_sentencepiece", "a sentencepiece.SentencePieceProcessor")
    size = sp.get_piece_size()
    special = {i for i in range(size) if sp.is_control(i) or sp.is_unknown(i) or sp.is_unused(i)}
    tokens = [_piece(sp, i) for i in range(size)]
    names = {sp.id_to_piece(i): i for i in sorted(special) if not sp.is_unused(i)}
    eos = sp.eos_id()  # -1 for none
    return Reading(tokens, special, eos if eos >= 0 else None, sp.encode, _drops_first_space(sp), names=names)


def _piece(sp: SentencePieceProcessor, i: int) -> bytes:
    """Return the bytes of piece i: none if it is a control, unknown or unused piece."""
    if sp.is_control(i) or sp.is_unknown(i) or sp.is_unused(i):
        return b""
    text: str = sp.id_to_piece(i)
    if sp.is_byte(i):
        return bytes.fromhex(text[3:5])
    return text.replace(_SPACE, " ").encode()


def _drops_first_space(sp: SentencePieceProcessor) -> bool:
    """Whether decoding drops the space that a text starts with; settings of the model decide, so one piece is tried."""
    for i in range(sp.get_piece_size()):
        piece = _piece(sp, i)
        if piece.startswith(b" ") and not sp.is_byte(i):
            return bool(sp.decode([i]).encode() != piece)
    return False


# ------------------------------------------------------------------------------------- tiktoken, mistral-common


def read_tiktoken(enc: Any) -> Reading:
    """Return what a `tiktoken.Encoding` says about itself; raises ConstraintError for other objects."""
    if not hasattr(enc, "decode_single_token_bytes"):
        raise _foreign(enc, "from_tiktoken", "a tiktoken.Encoding")
    names = {text: enc.encode_single_token(text) for text in sorted(enc.special_tokens_set)}
    tokens = []
    for i in range(enc.n_vocab):
        try:
            tokens.append(enc.decode_single_token_bytes(i))
        except KeyError:  # ids need not be contiguous
            tokens.append(b"")
    try:
        eos = enc.eot_token
    except KeyError:  # "<|endoftext|>" is not among its special tokens
        eos = None
    return Reading(tokens, set(names.values()), eos, enc.encode_ordinary, names=names)


def read_mistral(tok: Any) -> Reading:
    """Return what a mistral-common tokenizer says about itself: a `MistralTokenizer` or one of those inside it.

    Raises ConstraintError for other objects.
    """
    given = tok
    tok = getattr(tok, "instruct_tokenizer", tok)
    tok = getattr(tok, "tokenizer", tok)
    if hasattr(tok, "id_to_byte_piece"):  # Tekken: special tokens come first and give no bytes
        special = {i for i in range(tok.n_words) if tok.is_special(i)}
        names = {tok.id_to_piece(i): i for i in sorted(special)}
        tokens = [tok.id_to_byte_piece(i) for i in range(tok.n_words)]
        return Reading(tokens, special, tok.eos_id, _OfMistral(tok), names=names)
    if hasattr(getattr(tok, "_model", None), "is_byte"):  # its SentencePieceProcessor, which it has no name for
        return read_sentencepiece(tok._model)
    raise _foreign(given, "from_mistral", "a mistral-common MistralTokenizer, Tekkenizer or SentencePieceTokenizer")


# -------------------------------------------------------------------------------------------------------- files

_IN_A_FOLDER = ("tekken.json", "tokenizer.json", "tokenizer.model", "tokenizer.tiktoken")  # the first there is read
_RANK = re.compile(rb"[A-Za-z0-9+/]+={0,2} [0-9]+\r?\n?")  # a line of a file of tiktoken ranks


def read_file(path: Path) -> Reading:
    """Return what a tokenizer's file or folder says, read with the package that it belongs to.

    Nothing is downloaded, and no code that a folder holds is run. Raises FileNotFoundError, DataError for a file that
    is damaged or no tokenizer's, MissingDependencyError, and ConstraintError as the other readers do.
    """
    if not path.exists():
        raise FileNotFoundError(f"there is no tokenizer at {path}")
    if path.is_dir():
        if (path / "tokenizer_config.json").exists():
            if not (path / "tokenizer.json").exists() and _is_sentencepiece(path / "tokenizer.model"):
                try:
                    importlib.import_module("google.protobuf")  # without which transformers takes it for tiktoken's
                except ImportError:
                    return _read_pieces_of_folder(path)
            auto = _package("transformers", path, "pip install 'maskwright[transformers]'").AutoTokenizer
            local = {"local_files_only": True, "trust_remote_code": False}
            return _opened(path, lambda: read_transformers(auto.from_pretrained(str(path), **local)))
        within = next((path / name for name in _IN_A_FOLDER if (path / name).is_file()), None)
        if within is None:
            raise DataError(f"the folder {path} has neither tokenizer_config.json nor {', '.join(_IN_A_FOLDER)}")
        return read_file(within)
    if path.suffix == ".json" and "tekken" in path.name:
        tekken = _package("mistral_common.tokens.tokenizers.tekken", path, "pip install mistral-common")
        return _opened(path, lambda: read_mistral(tekken.Tekkenizer.from_file(path)))
    if path.suffix == ".json":
        package = _package("tokenizers", path, "pip install tokenizers")
        return _opened(path, lambda: read_transformers(package.Tokenizer.from_file(str(path))))
    if _has_ranks(path):  # whatever it is called: Llama 3 has one called tokenizer.model
        return _read_ranks(path)
    if ".model" in path.suffixes:  # also .model.v3
        package = _package("sentencepiece", path, "pip install sentencepiece")
        return _opened(path, lambda: read_sentencepiece(package.SentencePieceProcessor(model_file=str(path))))
    raise DataError(
        f"{path} is no tokenizer that can be read: pass a folder with tokenizer_config.json, or a tokenizer.json, "
        "tekken.json, SentencePiece .model or tiktoken file"
    )


_PIECES_ARE_TOKENS = re.compile(r"(Code)?(Llama|Gemma|Mistral|Mixtral)\d*(_?Text)?(Tokenizer(Fast)?)?", re.IGNORECASE)
"""Tokenizers and kinds of models of transformers whose token ids are the numbers of the pieces; others shift them."""


def _has_ranks(path: Path) -> bool:
    with path.open("rb") as file:
        return _RANK.fullmatch(file.readline(1 << 17)) is not None


def _is_sentencepiece(path: Path) -> bool:
    return path.is_file() and not _has_ranks(path)


def _read_pieces_of_folder(path: Path) -> Reading:
    """Return what a folder of transformers with tokenizer.model says, without transformers, which needs protobuf.

    Tokens that its tokenizer_config.json adds come behind the pieces. Raises MissingDependencyError if the ids of
    tokens are not, or may not be, the numbers of pieces.
    """

    def read() -> Reading:
        config, model = json.loads((path / "tokenizer_config.json").read_text()), path / "config.json"
        of_model = json.loads(model.read_text()) if model.exists() else {}
        kind = config.get("tokenizer_class") or of_model.get("model_type")
        pieces = read_file(path / "tokenizer.model")
        added = {int(i): told for i, told in config.get("added_tokens_decoder", {}).items()}
        size = len(pieces.tokens)
        spelled = {**dict(enumerate(pieces.tokens)), **{i: name.encode() for name, i in pieces.names.items()}}
        contents = {i: told["content"].replace(_SPACE, " ").encode() for i, told in added.items() if i < size}
        moved = any(content != spelled[i] for i, content in contents.items())
        if moved or not (kind is None or _PIECES_ARE_TOKENS.fullmatch(kind)):
            raise MissingDependencyError(
                f"reading {path} needs protobuf, as the ids of {kind or 'its tokens'} are not those of "
                "tokenizer.model: pip install protobuf"
            )
        tokens = pieces.tokens + [b""] * (max(added, default=-1) + 1 - size)
        special, names = set(pieces.special), dict(pieces.names)
        for i, told in added.items():
            if told.get("special"):
                tokens[i], names[told["content"]] = b"", i
                special.add(i)
            elif i >= size:
                tokens[i] = told["content"].encode()
        end = config.get("eos_token")
        name = end.get("content") if isinstance(end, dict) else end
        return replace(pieces, tokens=tokens, special=special, names=names, eos=names.get(str(name), pieces.eos))

    return _opened(path, read)


def _package(name: str, path: Path, install: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:  # or what the package itself needs
        package = name.partition(".")[0].replace("_", "-")
        raise MissingDependencyError(f"reading {path} needs {package} ({error}): {install}") from None


def _opened(path: Path, read: Callable[[], Reading]) -> Reading:
    """Return what `read` returns; whatever a package raises for a damaged file becomes one line."""
    try:
        return read()
    except MaskwrightError:
        raise
    except ImportError as error:  # some kinds of tokenizer need one package more
        raise MissingDependencyError(f"reading {path} needs another package: {_one_line(error)}") from error
    except Exception as error:
        said = f"{type(error).__name__}: {_one_line(error)}"
        raise DataError(f"{path} cannot be read as a tokenizer ({said}): save or fetch it again") from error


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]


def _read_ranks(path: Path) -> Reading:
    """Read tiktoken's lines of a token in base64 and its rank, which is its id.

    The file names neither special tokens nor how a text is split before merging, so there is no encoder.
    """
    by_rank: dict[int, bytes] = {}
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        if not line:
            continue
        try:
            token, rank = line.split()
            at = int(rank)
            spelt = base64.b64decode(token, validate=True)
        except (ValueError, binascii.Error):
            raise DataError(
                f"line {number} of {path} is not a token in base64 and its rank: fetch the file again"
            ) from None
        if at < 0 or at in by_rank:
            raise DataError(
                f"line {number} of {path} has rank {at}, which no other token may have: fetch the file again"
            )
        by_rank[at] = spelt
    size = max(by_rank) + 1
    if size > 2 * len(by_rank):  # a rank is an index: one that is damaged must not ask for all memory
        raise DataError(f"{path} has {len(by_rank):,} tokens and the rank {size - 1:,}: fetch the file again")
    return Reading([by_rank.get(i, b"") for i in range(size)], set(), None, None)


# ------------------------------------------------------------------------------------------------------- errors


def _foreign(given: object, method: str, wanted: str) -> ConstraintError:
    kind = type(given)
    name = f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")
    hint = (
        "load it first, such as with AutoTokenizer.from_pretrained, or use Vocabulary.from_file"
        if isinstance(given, str)
        else ("use the from_ method of the package that it comes from, or Vocabulary.from_bytes")
    )
    return ConstraintError(f"Vocabulary.{method} needs {wanted}, not {name}: {hint}")


def _refused(kind: str, why: str) -> ConstraintError:
    return ConstraintError(
        f"the tokenizer's decoder {kind!r} {why}: work out the bytes of each token and use Vocabulary.from_bytes"
    )
