"""The exact bytes of every token id, whatever tokenizer they come from."""

from __future__ import annotations

import difflib
import hashlib
import os
import threading
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, lru_cache
from itertools import accumulate, product
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..errors import ConstraintError, VocabularyMismatchError
from . import tokenizers
from .characters import BYTE_GROUP, TokenCharacters, shares_without
from .longest_match import LongestMatch, shortened
from .token_ids import EndTokens, checked_ends, checked_id, checked_size, not_bytes
from .token_trie import TokenTrie, token_trie

T = TypeVar("T")


class Derived:
    """One object of each class that a later layer keeps with a vocabulary, for as long as the vocabulary lives.

    A layer below knows no classes of layers above, so it holds them by their class. Threads may share one.

    >>> class Counts(dict): ...
    >>> derived = Derived()
    >>> derived.of(Counts)["a"] = 1
    >>> derived.of(Counts)
    {'a': 1}
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._objects: dict[type[Any], Any] = {}

    def of(self, kind: type[T]) -> T:
        """Return the object of a class, made by calling the class without arguments when first asked for."""
        with self._lock:
            found = self._objects.get(kind)
            if found is None:
                found = self._objects[kind] = kind()
        assert isinstance(found, kind), "kind() is a kind"
        return found


_LONGEST = 65_535  # bytes of a token; depths are uint16
_MOST_BYTES = 2**31 - 1  # of all tokens together; node numbers are int32

Encoder = Callable[[str], Sequence[int]]

_CONTEXTS = ("", "\n", ":", "0", "x", "\u00a0")
"""Texts beside which a tokenizer shows how it writes a text inside another, tried in this order."""


MARKS = bytes([*range(0xFF, 0xF4, -1), 0xC1, 0xC0])
"""Bytes that stand nowhere in UTF-8, by which automata over bytes know special tokens: see `Vocabulary.marked`."""
_LONG = 4096  # tokens that are likely to begin the most characters of a group
_MOST_MARKED = 8  # of one vocabulary kept, with their tries and JSON libraries


class _MostOf(dict[int, int]):
    """What `Vocabulary.most_of` found, by groups."""


@dataclass(frozen=True, eq=False, repr=False)
class Vocabulary:
    """The bytes of every token id, and the ids that end a text. Make one with `from_bytes` or another `from_` method.

    Control tokens have no bytes, b"", nor has padding beyond the tokenizer's tokens, nor a gap between them. A
    constraint on text never allows such an id, except `ends`, which end the text. A token that was added to a
    tokenizer without being special spells its text.

    A model may end texts with several tokens, as Llama 3 does with 128001, 128008 and 128009. Each of `ends` is allowed
    wherever a text may end. The first is `eos`, which stands for all of them in tables.

    Bytes do not depend on context: a token has the bytes that it adds to a text that has begun. SentencePiece's "▁the"
    spells b" the", and so does WordPiece's "the". Decoders of such tokenizers drop that one space again, but only at
    the very start of a text: `leading_space` is True for them. A model that continues a prompt is not at the start.
    `trailing_space` is True where tokens such as `the</w>` spell b"the " and decoders drop the last space of a text.

    `special_ids` has the names by which grammars and tags mean one token, whatever it spells. These are control tokens,
    such as `<|im_end|>`, and tokens that were added to a tokenizer whole, such as `<tool_call>`, which have bytes.

    Vocabularies with equal fingerprints have the same tables, except tables of constraints that name special tokens.

    Examples:
        >>> Vocabulary.from_bytes([b"</s>", b"a", b"b", b"ab"], eos=0).size
        4
    """

    tokens: tuple[bytes, ...]  # (V,) by id
    eos: int | None
    special: frozenset[int]  # ids declared to be control tokens, the ends among them
    leading_space: bool = False
    trailing_space: bool = False
    encoder: Encoder | None = field(default=None)  # the tokenizer's own
    special_ids: Mapping[str, int] = field(default_factory=dict)  # by name, see the class
    unmarked: Vocabulary | None = field(default=None)  # the vocabulary that `marked` made this one of
    other_ends: tuple[int, ...] = ()  # ids that end a text, beside eos
    derived: Derived = field(default_factory=Derived, init=False)  # kept by later layers, as long as this one lives

    # ------------------------------------------------------------------------------------------------- sources

    @classmethod
    def from_bytes(
        cls,
        tokens: Iterable[bytes],
        *,
        eos: EndTokens | None = None,
        special: Iterable[int] | Mapping[str, int] = (),
        names: Mapping[str, int] | None = None,
        size: int | None = None,
        encode: Encoder | None = None,
        leading_space: bool = False,
        trailing_space: bool = False,
    ) -> Vocabulary:
        """Return the vocabulary in which id i spells `tokens[i]`.

        Args:
            tokens: The bytes of each id, b"" for one that spells nothing.
            eos: The id that ends a text, or a list of such ids, which begins with the one that results show.
            special: Ids of control tokens, or a dict of them by name; their bytes and those of `eos` are ignored.
            names: Ids by name of further tokens that are meant as a whole, which may have bytes.
            size: The width of the model's logits, if it exceeds the number of tokens.
            encode: The tokenizer's own function from a text to ids, which adds no special tokens; the vocabulary can be
                pickled if it can.
            leading_space: Whether decoders drop a space at the start of a text, see the class.
            trailing_space: Whether they drop one at its end, see the class.

        Raises:
            ConstraintError: A token is not bytes, an id is out of range, or no token has bytes.

        Examples:
            >>> vocab = Vocabulary.from_bytes([b"</s>", b"a", b"b", b"ab"], eos=0)
            >>> vocab.encode("aab"), vocab.decode([1, 3])
            ([1, 3], b'aab')
        """
        if isinstance(tokens, (str, bytes, bytearray)):
            raise ConstraintError(f"tokens is one {type(tokens).__name__}: pass a list of bytes, one for each id")
        if not isinstance(tokens, Iterable) or isinstance(tokens, (Mapping, Set)):  # the latter two have no order by id
            raise ConstraintError(f"tokens must be a list of bytes, one for each id, not {type(tokens).__name__}")
        if not isinstance(special, Iterable):
            raise ConstraintError(f"special must be a list of token ids, not {special!r}")
        named = dict(special) if isinstance(special, Mapping) else {}
        special = named.values() if named else special
        if encode is not None and not callable(encode):
            raise ConstraintError(
                f"encode must be a function from a text to its token ids, not {type(encode).__name__}: pass a "
                "tokenizer's method, or use a from_ method for the whole tokenizer"
            )
        spelt = list(tokens)
        if set(map(type, spelt)) - {bytes}:
            raise not_bytes(spelt)
        width = checked_size(size, len(spelt))
        ids = {checked_id(i, width, "special") for i in special}
        named = {**(names or {}), **named}
        if not all(isinstance(name, str) for name in named):
            raise ConstraintError("names of special tokens must be text, as the tokenizer calls them")
        special_ids = {name: checked_id(i, width, "names", "must map to token ids") for name, i in named.items()}
        ends = checked_ends(eos, width)
        ids.update(ends)
        for i in ids:
            if i < len(spelt):
                spelt[i] = b""
        longest = max(map(len, spelt))
        if not longest:
            raise ConstraintError("no token of the vocabulary has bytes: nothing could be written with it")
        if longest > _LONGEST:
            at = next(i for i, token in enumerate(spelt) if len(token) == longest)
            raise ConstraintError(f"token {at} has {longest:,} bytes, the most is {_LONGEST:,}: is it one token?")
        if sum(map(len, spelt)) > _MOST_BYTES:
            raise ConstraintError(f"the tokens have more than {_MOST_BYTES:,} bytes in all")
        spelt.extend([b""] * (width - len(spelt)))
        return cls(
            tuple(spelt), ends[0] if ends else None, frozenset(ids), bool(leading_space), bool(trailing_space), encode,
            special_ids, other_ends=ends[1:],
        )  # fmt: skip

    @classmethod
    def from_transformers(cls, tok: object, *, size: int | None = None, eos: EndTokens | None = None) -> Vocabulary:
        """Return the vocabulary of a transformers tokenizer, or of a `tokenizers.Tokenizer`.

        Bytes are what the tokenizer's decoder writes; a space that it drops at a text's start or end is kept, see the
        class. Clean-up that transformers does after decoding (`clean_up_tokenization_spaces`) is not followed.

        Args:
            tok: The tokenizer.
            size: The width of the model's logits, `model.config.vocab_size`, where that is more than the tokenizer has.
            eos: The id that ends a text, where it is not the tokenizer's `eos_token_id`, or the list of ids that the
                model ends texts with: `model.generation_config.eos_token_id` is taken as it is.

        Raises:
            ConstraintError: Tokens of this decoder or kind of tokenizer, which it names, have no exact bytes.
        """
        return cls._from(tokenizers.read_transformers(tok), size, eos)

    @classmethod
    def from_tiktoken(cls, enc: object, *, size: int | None = None, eos: EndTokens | None = None) -> Vocabulary:
        """Return the vocabulary of a `tiktoken.Encoding`; gaps between ids have no bytes, `<|endoftext|>` is eos.

        Args:
            enc: The encoding.
            size: As in `from_transformers`.
            eos: As in `from_transformers`.

        Raises:
            ConstraintError: It is another object.
        """
        return cls._from(tokenizers.read_tiktoken(enc), size, eos)

    @classmethod
    def from_sentencepiece(cls, sp: object, *, size: int | None = None, eos: EndTokens | None = None) -> Vocabulary:
        """Return the vocabulary of a `sentencepiece.SentencePieceProcessor`.

        "▁" is a space, a byte piece such as `<0x0A>` is that byte, and user-defined pieces spell their text. Control,
        unknown and unused pieces have no bytes.

        Args:
            sp: The processor.
            size: As in `from_transformers`.
            eos: As in `from_transformers`.

        Raises:
            ConstraintError: It is another object.
        """
        return cls._from(tokenizers.read_sentencepiece(sp), size, eos)

    @classmethod
    def from_mistral(cls, tok: object, *, size: int | None = None, eos: EndTokens | None = None) -> Vocabulary:
        """Return the vocabulary of a mistral-common tokenizer.

        Args:
            tok: A `MistralTokenizer`, or the tokenizer inside one.
            size: As in `from_transformers`.
            eos: As in `from_transformers`.

        Raises:
            ConstraintError: It is another object.
        """
        return cls._from(tokenizers.read_mistral(tok), size, eos)

    @classmethod
    def from_file(
        cls, path: str | os.PathLike[str], *, size: int | None = None, eos: EndTokens | None = None
    ) -> Vocabulary:
        """Return the vocabulary of a tokenizer on disk, read with the package that it belongs to.

        - A folder with tokenizer_config.json: transformers. It reads a SentencePiece tokenizer.model with protobuf;
          without protobuf, those of Llama, Gemma and Mistral are read with sentencepiece. Another folder is the first
          it has of tekken.json, tokenizer.json, tokenizer.model and tokenizer.tiktoken.
        - tekken*.json: mistral-common. Any other .json: tokenizers.
        - Lines of tokens in base64 and ranks, under any name: tiktoken's format. Any other .model: sentencepiece.

        A tokenizer.json or a tiktoken file does not say which token ends a text: pass `eos`, or there is none. A
        tiktoken file does not hold special tokens either, so `size` must make room for them, and its vocabulary takes
        the longest token at each position to encode. Nothing is downloaded.

        Args:
            path: The file or folder.
            size: As in `from_transformers`.
            eos: As in `from_transformers`.

        Raises:
            FileNotFoundError: There is no such file.
            DataError: The file cannot be read.
            MissingDependencyError: The package that reads it is not installed.
        """
        return cls._from(tokenizers.read_file(Path(path)), size, eos)

    @classmethod
    def _from(cls, read: tokenizers.Reading, size: int | None, eos: EndTokens | None) -> Vocabulary:
        return cls.from_bytes(
            read.tokens,
            eos=read.eos if eos is None else eos,
            special=read.special,
            names=read.names,
            size=size,
            encode=read.encode,
            leading_space=read.leading_space,
            trailing_space=read.trailing_space,
        )

    # -------------------------------------------------------------------------------------------------- what it is

    @property
    def size(self) -> int:
        """V, the width of the logits: ids are 0 .. V - 1."""
        return len(self.tokens)

    def with_ends(self, ends: EndTokens | None) -> Vocabulary:
        """Return this vocabulary with further ends behind its own, such as those of a model's generation config.

        Args:
            ends: An id, a list of them, or None, as `model.generation_config.eos_token_id` has them. Ids that spell a
                part of texts are left out, as texts need them. Tokens that were added to the tokenizer whole, see
                `special_ids`, are taken, and have no bytes any more.

        Raises:
            ConstraintError: An id is out of range.
        """
        whole = frozenset(self.special_ids.values())
        nothing = isinstance(ends, list | tuple) and not ends
        added = [
            end for end in (() if nothing else checked_ends(ends, self.size, "ends"))
            if end not in self.ends and (not self.tokens[end] or end in whole)
        ]  # fmt: skip
        if not added:
            return self
        eos, *others = *self.ends, *added
        tokens = list(self.tokens)
        for end in added:
            tokens[end] = b""
        special = self.special | set(added)
        return replace(self, tokens=tuple(tokens), eos=eos, special=special, other_ends=tuple(others))

    @property
    def ends(self) -> tuple[int, ...]:
        """The ids that end a text, `eos` first; () where there is none."""
        return () if self.eos is None else (self.eos, *self.other_ends)

    @cached_property
    def fingerprint(self) -> str:
        """The name of this vocabulary on all machines: a SHA-256 of each id's bytes, `ends` and dropped spaces.

        Special ids count only in that they have no bytes. The encoder does not count. Names of tokens do not either:
        they change only tables of constraints that name tokens, and these have `names` in their source. A marked
        vocabulary has the fingerprint of the unmarked one, as it makes tables of that.
        """
        return self.spelling if self.unmarked is None else self.unmarked.fingerprint

    @cached_property
    def spelling(self) -> str:
        """The fingerprint of these very bytes: results that depend on them alone are kept by it."""
        ends = ",".join(map(str, self.ends)) or None
        head = f"vocabulary 1 {self.size} {ends} {self.leading_space:d} {self.trailing_space:d};"
        digest = hashlib.sha256(head.encode())
        digest.update(np.ascontiguousarray(self.token_offset, "<i8").data)
        digest.update(self.token_bytes.data)
        return f"bytes:{digest.hexdigest()}"

    @cached_property
    def names(self) -> str:
        """A SHA-256 of `special_ids`."""
        return hashlib.sha256(repr(sorted(self.special_ids.items())).encode("utf-8", "backslashreplace")).hexdigest()

    @cached_property
    def token_bytes(self) -> NDArray[np.uint8]:
        """All tokens' bytes; those of id i are `token_bytes[token_offset[i] : token_offset[i + 1]]`."""
        return np.frombuffer(b"".join(self.tokens), np.uint8)  # read-only, as bytes are

    @cached_property
    def token_offset(self) -> NDArray[np.int64]:
        """Where each token's bytes start in `token_bytes`, (V + 1,)."""
        offset = np.zeros(self.size + 1, np.int64)
        np.cumsum(np.fromiter(map(len, self.tokens), np.int64, self.size), out=offset[1:])
        offset.flags.writeable = False
        return offset

    @cached_property
    def trie(self) -> TokenTrie:
        """The trie of all tokens that have bytes; built when first asked for."""
        return token_trie(self.tokens, self.token_bytes, self.token_offset)

    @cached_property
    def characters(self) -> TokenCharacters:
        """The groups of the characters that each token (V,) begins; its bytes; how many characters it begins."""
        return self.trie.characters(self.size)

    @cached_property
    def by_length(self) -> list[tuple[NDArray[np.int32], list[int]]]:
        """Tokens (V,) by rising length, and how many have at most each length: in bytes, and in characters begun."""
        return [
            (np.argsort(lengths, kind="stable").astype(np.int32), np.cumsum(np.bincount(lengths)).tolist())
            for lengths in (self.characters.length, self.characters.begun)
        ]

    def most_of(self, groups: int) -> int:
        """Return the most characters of some groups, bits of `BYTE_GROUP`, that any token begins."""
        known = self.derived.of(_MostOf)
        found = known.get(groups)
        if found is None:
            is_in = np.array([groups >> group & 1 for group in BYTE_GROUP.tolist()], np.int64)
            text, offset, longest_other = self._longest
            found = _most(is_in, text, offset)
            if found < longest_other:
                found = _most(is_in, self.token_bytes, self.token_offset)
            known[groups] = found
        return found

    @cached_property
    def _longest(self) -> tuple[NDArray[np.uint8], NDArray[np.int64], int]:
        """The longest tokens as one text, where each begins in it, and the bytes of the longest of the others."""
        order = np.argsort(-np.diff(self.token_offset), kind="stable")
        text = [self.tokens[token] for token in order[:_LONG].tolist()]
        offset = np.concatenate(([0], np.cumsum([len(token) for token in text])))
        others = max([len(self.tokens[token]) for token in order[_LONG : _LONG + 1].tolist()], default=0)
        return np.frombuffer(b"".join(text), np.uint8), offset, others

    @cached_property
    def shares(self) -> NDArray[np.float64]:
        """The share of tokens without a character of each of 64 groups behind their first byte, see `BYTE_GROUP`.

        Then the share of tokens of at most each length, from 0, in bytes.
        """
        return np.concatenate((shares_without(self.tokens), np.array(self.by_length[0][1]) / self.size))

    @cached_property
    def spells_all_bytes(self) -> bool:
        """Whether each of the 256 bytes is a token, so that any bytes can be written."""
        return {token for token in self.tokens if len(token) == 1} == {bytes([b]) for b in range(256)}

    def __eq__(self, other: object) -> bool:
        return self.fingerprint == other.fingerprint if isinstance(other, Vocabulary) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.fingerprint)

    def __getstate__(self) -> dict[str, Any]:
        # the rest is worked out again
        return {item.name: getattr(self, item.name) for item in fields(self) if item.init}

    def __setstate__(self, state: dict[str, Any]) -> None:
        for name, value in {**state, "derived": Derived()}.items():
            object.__setattr__(self, name, value)

    def __repr__(self) -> str:
        ends = f"ends={self.ends}" if self.other_ends else f"eos={self.eos}"
        return f"Vocabulary(size={self.size}, {ends}, fingerprint={self.fingerprint[:22]!r})"

    def marked(self, ids: tuple[tuple[int, ...], ...]) -> Vocabulary:
        """Return these tokens with those of each set spelt by one byte that no text has, from `MARKS` in order.

        An automaton over bytes thus reads a special token as one symbol, whatever its own bytes are. Other tokens with
        such bytes, such as those of a single one, have no bytes any more. The fingerprint is that of this vocabulary.
        The marked vocabularies that were asked for last are kept.
        Raises ConstraintError for more tokens than there are marks.
        """
        if not ids:
            return self
        if len(ids) > len(MARKS):
            raise ConstraintError(f"{len(ids)} special tokens in one constraint: the most is {len(MARKS)}")
        return self._with_marks(ids)

    @cached_property
    def _with_marks(self) -> Callable[[tuple[tuple[int, ...], ...]], Vocabulary]:
        return lru_cache(_MOST_MARKED)(self._mark)

    def _mark(self, ids: tuple[tuple[int, ...], ...]) -> Vocabulary:
        tokens = list(self.tokens)
        used = np.flatnonzero(np.isin(self.token_bytes, np.frombuffer(MARKS[: len(ids)], np.uint8)))
        for i in np.unique(np.searchsorted(self.token_offset, used, "right") - 1).tolist():
            tokens[i] = b""
        for n, those in enumerate(ids):
            for i in those:
                tokens[i] = MARKS[n : n + 1]
        return replace(self, tokens=tuple(tokens), encoder=None, unmarked=self)

    # ------------------------------------------------------------------------------------------------ text and ids

    def decode(self, ids: Iterable[int]) -> bytes:
        """Return the bytes that token ids spell, one after the other.

        Args:
            ids: The ids.

        Returns:
            Their bytes.

        Raises:
            VocabularyMismatchError: An id is outside 0 .. V - 1.
        """
        parts = []
        for position, i in enumerate(ids):
            if not 0 <= i < self.size:
                raise VocabularyMismatchError(
                    f"token {i} at position {position} is outside 0 .. {self.size - 1}: the ids are of another "
                    "vocabulary, or size= was not given as wide as the model's logits"
                )
            parts.append(self.tokens[i])
        return b"".join(parts)

    def id_of(self, name: str) -> int:
        """Return the id of a token by its name in `special_ids`.

        Args:
            name: Its name, such as `<|im_end|>`.

        Returns:
            Its id.

        Raises:
            ConstraintError: No token has this name; the error has some that are like it.
        """
        found = self.special_ids.get(name)
        if found is not None:
            return found
        near = difflib.get_close_matches(name, self.special_ids, 3, 0.5)
        if near:
            hint = f"did you mean {' or '.join(map(repr, near))}?"
        elif self.special_ids:
            hint = f"it knows {len(self.special_ids)}, such as {', '.join(map(repr, list(self.special_ids)[:3]))}"
        else:
            hint = "it knows none: make it from the tokenizer, or pass special={name: id}"
        raise ConstraintError(f"the vocabulary knows no special token of the name {name!r}: {hint}")

    def encode(self, text: str | bytes) -> list[int]:
        """Return ids that spell a text exactly, as the tokenizer itself writes it inside a longer text.

        Some tokenizers put a space before or behind any text. A text that continues another does not have that space.
        If the tokenizer's ids for the text alone spell anything else, the tokenizer writes it beside each of a few
        short texts, and the ids between are taken if tokens end where the text begins and ends. If that never works, if
        there is no encoder, or if the bytes are not UTF-8, the ids are those of `LongestMatch`. So are those of a text
        that the tokenizer would change first, as tokenizers do that turn capitals into small letters.

        Args:
            text: The text, or its bytes.

        Returns:
            Its ids.

        Raises:
            ConstraintError: No tokens spell the text.
        """
        if not isinstance(text, (str, bytes)):
            raise ConstraintError(f"a text is str or bytes, not {type(text).__name__}")
        if isinstance(text, str):
            try:
                raw = text.encode()
            except UnicodeEncodeError as error:
                raise ConstraintError(
                    f"the text has a lone surrogate at position {error.start}, which no UTF-8 spells: remove it"
                ) from None
        else:
            raw = text
        if self.encoder is None:
            return self._longest_match.encode(raw)
        try:
            text = raw.decode()
        except UnicodeDecodeError:
            return self._longest_match.encode(raw)
        for after, before in product(_CONTEXTS if self.trailing_space else ("",), _CONTEXTS):
            ids = self._between(before, text, after)
            if ids is not None:
                return ids
        try:
            return self._longest_match.encode(raw)
        except ConstraintError:
            own = self.decode(self.encoder(text))
            raise ConstraintError(
                f"the tokenizer writes {shortened(raw)} as {shortened(own)}, and no tokens spell it exactly: it "
                "begins words with a space, has no tokens for parts of this text, or changes text before splitting it; "
                "use text that it keeps as it is"
            ) from None

    def _between(self, before: str, text: str, after: str) -> list[int] | None:
        """Return the ids that the tokenizer gives a text between two others, None if tokens span its ends.

        One space more at either end of the whole is allowed.
        """
        assert self.encoder is not None
        ids = [int(i) for i in self.encoder(before + text + after)]
        spelt, raw, tail = self.decode(ids), text.encode(), after.encode()
        ends = [0, *accumulate(len(self.tokens[i]) for i in ids)]
        for head in (before.encode(), f" {before}".encode()):
            if spelt not in (head + raw + tail, head + raw + tail + b" "):
                continue
            # what has no bytes at an end, such as an added special token, is no part of the text
            first = bisect_right(ends, len(head)) - 1
            last = bisect_left(ends, len(head) + len(raw))
            if self.decode(ids[first:last]) == raw and all(self.tokens[i] for i in ids[first:last]):
                return ids[first:last]
        return None

    @cached_property
    def _longest_match(self) -> LongestMatch:
        return LongestMatch(self.tokens)


# -------------------------------------------------------------------------------------------------------- checks


def _most(is_in: NDArray[np.int64], text: NDArray[np.uint8], offset: NDArray[np.int64]) -> int:
    """Return the most bytes of a set that a token has, of tokens that stand one behind the other in a text."""
    begun = np.concatenate(([0], np.cumsum(is_in[text])))
    return int(np.diff(begun[offset]).max(initial=0))
