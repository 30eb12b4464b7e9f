"""What a tokenizer's tokens spell: their bytes by id, laid out as a trie.

A constraint on text is an automaton over bytes; a model writes tokens. `Vocabulary` holds the exact bytes of every
token id, whatever tokenizer they come from, and `TokenTrie` lays them out so that one walk over the trie tells where
each token leads from a state of a byte automaton.
"""

from __future__ import annotations

import difflib
import hashlib
import os
import string
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, lru_cache
from itertools import accumulate, pairwise, product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import ConstraintError, VocabularyMismatchError
from ..kernels.compiled import kernel
from ..kernels.limits import MOST_TOKENS
from . import tokenizers

_LONGEST = 65_535  # bytes of a token; depths are uint16
_MOST_BYTES = 2**31 - 1  # of all tokens together; node numbers are int32

Encoder = Callable[[str], Sequence[int]]

_CONTEXTS = ("", "\n", ":", "0", "x", "\u00a0")
"""Texts beside which a tokenizer shows how it writes a text inside another, tried in this order."""


UNCLEAN = 63
"""Group of a trie's content that is not whole characters."""


def _byte_groups() -> NDArray[np.uint8]:
    """Return the group of each byte (256,) that can begin a character; `UNCLEAN` of those that cannot.

    Signs are groups of their own, letters and digits are together; beyond ASCII, first bytes of scripts that
    constraints treat alike are.
    """
    together = [b"0123456789", b"abcdef", b"ghijklmnopqrstuvwxyz", b"ABCDEF", b"GHIJKLMNOPQRSTUVWXYZ"]
    controls = bytes(b for b in range(32) if b not in b"\t\n\r") + b"\x7f"
    alone = [bytes([b]) for b in range(128) if b not in b"".join(together) + controls]
    starts = (
        0xC2,
        0xC3,
        0xC4,
        0xCA,
        0xCE,
        0xD0,
        0xD4,
        0xD8,
        0xDC,
        0xE0,
        0xE1,
        0xE2,
        0xE3,
        0xE4,
        0xE5,
        0xEA,
        0xED,
        0xEE,
        0xF0,
    )
    leads = [bytes(range(low, high)) for low, high in pairwise([*starts, 0xF5])]
    out = np.full(256, UNCLEAN, np.uint8)
    for group, members in enumerate([*together, controls, *alone, *leads]):
        out[list(members)] = group
    return out


BYTE_GROUP = _byte_groups()
"""Group of each byte that begins a character: a set of groups, one bit each, says what lies in a part of the trie."""
IS_SIGN = np.isin(np.arange(256), list(string.punctuation.encode()))
"""Whether a byte (256,) is a sign that is seen: each of these is a group of its own."""


def _behind() -> NDArray[np.int64]:
    """Return for each first byte of a character the least and greatest next one, and how many follow, (256, 3)."""
    out = np.zeros((256, 3), np.int64)
    out[:, 0], out[:, 1] = 0x80, 0xBF
    for first, column, limit in ((0xE0, 0, 0xA0), (0xED, 1, 0x9F), (0xF0, 0, 0x90), (0xF4, 1, 0x8F)):
        out[first, column] = limit
    for first, count in ((0xC2, 1), (0xE0, 2), (0xF0, 3)):
        out[first:0xF5, 2] = count
    return out


BEHIND = _behind()
"""Of each byte that begins a character: the least and the greatest second byte, and how many follow."""


MARKS = bytes([*range(0xFF, 0xF4, -1), 0xC1, 0xC0])
"""Bytes that stand nowhere in UTF-8, by which automata over bytes know special tokens: see `Vocabulary.marked`."""
_MOST_MARKED = 8  # of one vocabulary kept, with their tries and JSON libraries


@dataclass(frozen=True)
class TokenTrie:
    """The trie of all tokens' bytes in depth-first order, children by ascending byte, the root left out.

    M nodes, K tokens that have bytes. The children of node i are i + 1, `skip[i + 1]`, ... below `skip[i]`; what lies
    below the root for first byte b are the nodes `root_start[b]` .. `root_start[b + 1]`. The tokens that end at
    node i are `token[token_start[i] : token_start[i + 1]]`: several, ascending, where tokens have the same bytes.
    """

    byte: NDArray[np.uint8]  # (M,)
    skip: NDArray[np.int32]  # (M,) the node just after the node's subtree
    depth: NDArray[np.uint16]  # (M,) bytes from the root: 1 for its children
    height: NDArray[np.uint16]  # (M,) bytes from the node to the deepest one below it, 0 where there is none
    content: NDArray[np.uint64]  # (M,) sets of byte groups in the node and below it, see `BYTE_GROUP`
    token_start: NDArray[np.int32]  # (M + 1,)
    token: NDArray[np.int32]  # (K,) ids in depth-first order
    root_start: NDArray[np.int32]  # (257,)
    longest: int  # bytes of the longest token

    @cached_property
    def branches(self) -> Branches:
        """The nodes in another order, the children of each side by side."""
        above = np.full(self.byte.size, -1, np.int64)  # the node of which each is a child, -1 for the root
        by_depth = np.argsort(self.depth, kind="stable")
        stops = np.cumsum(np.bincount(self.depth, minlength=self.longest + 1))
        for d in range(2, self.longest + 1):
            parents, nodes = by_depth[stops[d - 2] : stops[d - 1]], by_depth[stops[d - 1] : stops[d]]
            above[nodes] = parents[np.searchsorted(parents, nodes) - 1]
        order = np.argsort(above, kind="stable")
        first = np.concatenate(([0], np.cumsum(np.bincount(above + 1, minlength=above.size + 1))))
        start, skip = self.token_start, self.skip[order]
        node = np.zeros((order.size + 1, OF_NODE), np.int32)
        node[:-1, NODE_CHILD], node[:-1, NODE_STOP] = first[order + 1], first[order + 2]
        node[:-1, NODE_TOKENS : NODE_TOKENS + 3] = np.stack((start[order], start[order + 1], start[skip]), axis=1)
        node[:-1, NODE_REACH] = self.depth[order] + self.height[order]
        characters = _content(self.byte, self.depth, start, BYTE_GROUP, False)[order]
        node.view(np.uint64)[:-1, NODE_CHARACTERS] = characters
        return Branches(self.byte[order], characters, node)


class Branches(NamedTuple):
    """The nodes of a trie by what they are children of, so that a walk looks at the children of a node in one place.

    What is below them comes soon after, as in the trie, and is often on the same lines of memory. The bytes, and the
    sets of characters, lie by themselves, as a walk passes over most of them; all else of a node lies together, with
    the sets once more.
    """

    byte: NDArray[np.uint8]  # (M,)
    characters: NDArray[np.uint64]  # (M,)
    node: NDArray[np.int32]  # (M + 1, OF_NODE)


# Of a node: its first child (nodes 0 .. node[0, NODE_CHILD] are those of the root); the first of the tokens that end
# here, the first below, the first behind those; the bytes from the root to the deepest node below; the node after its
# last child. And among half as many numbers of 64 bits, the sets of byte groups at and below the node, of characters
# that tokens only begin or end as well.
NODE_CHILD, NODE_TOKENS, NODE_REACH, NODE_STOP, OF_NODE = 0, 1, 4, 5, 8
NODE_CHARACTERS = 3


@dataclass(frozen=True, eq=False, repr=False)
class Vocabulary:
    """The bytes of every token id, and which id ends a text; make one with `from_bytes` or another `from_` method.

    An id has no bytes, b"", if it is a control token, padding beyond the tokenizer's tokens, or a gap between them:
    a constraint on text never allows it, except for `eos`, which ends the text. Tokens that were added to a tokenizer
    without being special spell their text.

    Bytes do not depend on context: they are what the token adds to a text that has already begun. SentencePiece's
    "▁the" spells b" the", and so does WordPiece's "the". Only at the very start of a text do such tokenizers drop that
    one space again when they decode, which `leading_space` says; a model that continues a prompt is not at the start.
    Likewise `trailing_space`: tokens such as "the</w>" spell b"the ", and the last space of a text is dropped.

    `special_ids` are the names by which grammars and tags mean one token, whatever it spells: those of control tokens,
    such as "<|im_end|>", and of tokens that were added to a tokenizer whole, such as "<tool_call>", which have bytes.

    Two vocabularies have the same tables if their fingerprints are equal, but for those of what names special tokens.
    """

    tokens: tuple[bytes, ...]  # (V,) by id
    eos: int | None
    special: frozenset[int]  # ids declared to be control tokens, eos among them
    leading_space: bool = False
    trailing_space: bool = False
    encoder: Encoder | None = field(default=None)  # the tokenizer's own
    special_ids: Mapping[str, int] = field(default_factory=dict)  # by name, see the class
    unmarked: Vocabulary | None = field(default=None)  # of what `marked` returns: these tokens by their own bytes

    # ------------------------------------------------------------------------------------------------- sources

    @classmethod
    def from_bytes(
        cls,
        tokens: Iterable[bytes],
        *,
        eos: int | None = None,
        special: Iterable[int] | Mapping[str, int] = (),
        names: Mapping[str, int] | None = None,
        size: int | None = None,
        encode: Encoder | None = None,
        leading_space: bool = False,
        trailing_space: bool = False,
    ) -> Vocabulary:
        """Return the vocabulary in which id i spells `tokens[i]`; b"" for an id that spells nothing.

        eos: the id that ends a text. special: ids of control tokens, or a dict of these by name; what `tokens` has for
        them and for `eos` is ignored. names: ids by name of further tokens that are meant as a whole, which may have
        bytes. size: the width of the model's logits, where that is more than there are tokens. encode: how the
        tokenizer itself segments a text, without adding special tokens; the vocabulary can be pickled if it can.
        leading_space, trailing_space: see the class.
        Raises ConstraintError if a token is not bytes, an id is out of range, or no token has bytes.

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
            raise _not_bytes(spelt)
        width = _checked_size(size, len(spelt))
        ids = {_checked_id(i, width, "special") for i in special}
        named = {**(names or {}), **named}
        if not all(isinstance(name, str) for name in named):
            raise ConstraintError("names of special tokens must be text, as the tokenizer calls them")
        special_ids = {name: _checked_id(i, width, "names", "must map to token ids") for name, i in named.items()}
        if eos is not None:
            eos = _checked_id(eos, width, "eos")
            ids.add(eos)
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
        return cls(tuple(spelt), eos, frozenset(ids), bool(leading_space), bool(trailing_space), encode, special_ids)

    @classmethod
    def from_transformers(cls, tok: Any, *, size: int | None = None, eos: int | None = None) -> Vocabulary:
        """Return the vocabulary of a transformers tokenizer, or of a `tokenizers.Tokenizer`.

        Bytes are what the tokenizer's decoder writes; a space that it drops at a text's start or end is kept, see the
        class. Clean-up that transformers does after decoding (`clean_up_tokenization_spaces`) is not followed.
        size: the width of the model's logits, `model.config.vocab_size`, where that is more than the tokenizer has.
        eos: the id that ends a text, where it is not the tokenizer's `eos_token_id`.
        Raises ConstraintError, by name, for a decoder or a kind of tokenizer whose tokens have no exact bytes.
        """
        return cls._from(tokenizers.read_transformers(tok), size, eos)

    @classmethod
    def from_tiktoken(cls, enc: Any, *, size: int | None = None, eos: int | None = None) -> Vocabulary:
        """Return the vocabulary of a `tiktoken.Encoding`; gaps between ids have no bytes, "<|endoftext|>" is eos.

        size, eos: as for `from_transformers`. Raises ConstraintError for other objects.
        """
        return cls._from(tokenizers.read_tiktoken(enc), size, eos)

    @classmethod
    def from_sentencepiece(cls, sp: Any, *, size: int | None = None, eos: int | None = None) -> Vocabulary:
        """Return the vocabulary of a `sentencepiece.SentencePieceProcessor`.

        "▁" is a space, a byte piece such as "<0x0A>" is that byte, and user-defined pieces spell their text. Control,
        unknown and unused pieces have no bytes.
        size, eos: as for `from_transformers`. Raises ConstraintError for other objects.
        """
        return cls._from(tokenizers.read_sentencepiece(sp), size, eos)

    @classmethod
    def from_mistral(cls, tok: Any, *, size: int | None = None, eos: int | None = None) -> Vocabulary:
        """Return the vocabulary of a mistral-common tokenizer: a `MistralTokenizer`, or the tokenizer inside one.

        size, eos: as for `from_transformers`. Raises ConstraintError for other objects.
        """
        return cls._from(tokenizers.read_mistral(tok), size, eos)

    @classmethod
    def from_file(cls, path: str | os.PathLike[str], *, size: int | None = None, eos: int | None = None) -> Vocabulary:
        """Return the vocabulary of a tokenizer on disk, read with the package that it belongs to.

        - A folder with tokenizer_config.json: transformers. Another folder is the first it has of tekken.json,
          tokenizer.json, tokenizer.model and tokenizer.tiktoken.
        - tekken*.json: mistral-common. Any other .json: tokenizers.
        - Lines of tokens in base64 and ranks, under any name: tiktoken's format. Any other .model: sentencepiece.

        A tokenizer.json or a tiktoken file does not say which token ends a text: pass `eos`, or there is none. A
        tiktoken file does not hold special tokens either, so `size` must make room for them, and its vocabulary takes
        the longest token at each position to encode. size, eos: as for `from_transformers`. Nothing is downloaded.
        Raises FileNotFoundError, DataError for a file that cannot be read, MissingDependencyError.
        """
        return cls._from(tokenizers.read_file(Path(path)), size, eos)

    @classmethod
    def _from(cls, read: tokenizers.Reading, size: int | None, eos: int | None) -> Vocabulary:
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

    @cached_property
    def fingerprint(self) -> str:
        """A name of this vocabulary, the same everywhere: a SHA-256 over each id's bytes, `eos` and dropped spaces.

        Special ids count only through having no bytes, and the encoder not at all. Nor do names, which change only
        the tables of what names tokens: `names` is part of their source. Of a marked vocabulary it is that of the
        unmarked one, whose tables its tables are.
        """
        return self.spelling if self.unmarked is None else self.unmarked.fingerprint

    @cached_property
    def spelling(self) -> str:
        """The fingerprint of these very bytes, by which what is worked out of them alone is kept."""
        head = f"vocabulary 1 {self.size} {self.eos} {self.leading_space:d} {self.trailing_space:d};"
        digest = hashlib.sha256(head.encode())
        digest.update(np.ascontiguousarray(self.token_offset, "<i8").data)
        digest.update(self.token_bytes.data)
        return f"bytes:{digest.hexdigest()}"

    @cached_property
    def names(self) -> str:
        """A hash of `special_ids`: of which tokens are meant by which names."""
        return hashlib.sha256(repr(sorted(self.special_ids.items())).encode("utf-8", "backslashreplace")).hexdigest()

    @cached_property
    def token_bytes(self) -> NDArray[np.uint8]:
        """All tokens' bytes, by id; those of id i are `token_bytes[token_offset[i] : token_offset[i + 1]]`."""
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
        # sorting Python's bytes takes 40 ms for 131,072 tokens; numpy's own byte strings would lose trailing zeros
        order = np.array(sorted(range(self.size), key=self.tokens.__getitem__), np.int32)
        order = order[np.count_nonzero(np.diff(self.token_offset) == 0) :]  # ids without bytes sort first
        *arrays, longest = _build(order, self.token_bytes, self.token_offset)
        for array in (*arrays, order):
            array.flags.writeable = False
        byte, skip, depth, height, token_start, root_start = arrays
        content = _content(byte, depth, token_start, BYTE_GROUP, True)
        content.flags.writeable = False
        return TokenTrie(byte, skip, depth, height, content, token_start, order, root_start, int(longest))

    @cached_property
    def characters(self) -> tuple[NDArray[np.uint64], NDArray[np.uint16], NDArray[np.uint16]]:
        """The groups of the characters that each token (V,) begins, as bits; its bytes; how many characters it begins.

        All bits for one without bytes. See `BYTE_GROUP`; one that is not UTF-8 has `UNCLEAN` as well, one that ends
        inside a character has not.
        """
        trie = self.trie
        count = np.diff(trie.token_start)
        groups, length = np.full(self.size, ~np.uint64(0)), np.zeros(self.size, np.uint16)
        begun, first = np.zeros(self.size, np.uint16), _begun(trie.byte, trie.depth, BYTE_GROUP)
        for whole, part in ((groups, first[0]), (begun, first[1]), (length, trie.depth)):
            whole[trie.token] = np.repeat(part, count)
            whole.flags.writeable = False
        return groups, length, begun

    @cached_property
    def by_length(self) -> list[tuple[NDArray[np.int32], list[int]]]:
        """Tokens (V,) by rising length, and how many have at most each length: of bytes, and of characters begun."""
        return [
            (np.argsort(lengths, kind="stable").astype(np.int32), np.cumsum(np.bincount(lengths)).tolist())
            for lengths in self.characters[1:]
        ]

    @cached_property
    def shares(self) -> NDArray[np.float64]:
        """The share of tokens without a character of each of 64 groups behind their first; then of at most each length.

        See `BYTE_GROUP`; lengths are in bytes, from 0.
        """
        behind = [token[1:] for token in self.tokens if len(token) > 1]
        starts = np.cumsum([0, *map(len, behind)])[:-1]
        bits = np.uint64(1) << BYTE_GROUP[np.frombuffer(b"".join(behind), np.uint8)].astype(np.uint64)
        within = np.unpackbits(np.bitwise_or.reduceat(bits, starts).view(np.uint8), bitorder="little").reshape(-1, 64)
        without = 1 - within.sum(axis=0) / self.size
        return np.concatenate((without, np.array(self.by_length[0][1]) / self.size))

    @cached_property
    def spells_all_bytes(self) -> bool:
        """Whether each of the 256 bytes is a token, so that any bytes can be written."""
        return {token for token in self.tokens if len(token) == 1} == {bytes([b]) for b in range(256)}

    def __eq__(self, other: object) -> bool:
        return self.fingerprint == other.fingerprint if isinstance(other, Vocabulary) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.fingerprint)

    def __getstate__(self) -> dict[str, Any]:
        return {item.name: getattr(self, item.name) for item in fields(self)}  # what was worked out is again, if needed

    def __repr__(self) -> str:
        return f"Vocabulary(size={self.size}, eos={self.eos}, fingerprint={self.fingerprint[:22]!r})"

    def marked(self, ids: tuple[int, ...]) -> Vocabulary:
        """Return these tokens with those of `ids` spelt by one byte each, `MARKS` in order, which no text has.

        An automaton over bytes reads such a token as itself, whatever its own bytes are. What else had these bytes,
        such as the tokens of single bytes, has none. It has the fingerprint of this vocabulary, as its tables are
        tables of this one. Those asked for last are kept. Raises ConstraintError for more tokens than there are marks.
        """
        if not ids:
            return self
        if len(ids) > len(MARKS):
            raise ConstraintError(f"{len(ids)} special tokens in one constraint: the most is {len(MARKS)}")
        return self._with_marks(ids)

    @cached_property
    def _with_marks(self) -> Callable[[tuple[int, ...]], Vocabulary]:
        return lru_cache(_MOST_MARKED)(self._mark)

    def _mark(self, ids: tuple[int, ...]) -> Vocabulary:
        tokens = list(self.tokens)
        used = np.flatnonzero(np.isin(self.token_bytes, np.frombuffer(MARKS[: len(ids)], np.uint8)))
        for i in np.unique(np.searchsorted(self.token_offset, used, "right") - 1).tolist():
            tokens[i] = b""
        for n, i in enumerate(ids):
            tokens[i] = MARKS[n : n + 1]
        return replace(self, tokens=tuple(tokens), encoder=None, unmarked=self)

    # ------------------------------------------------------------------------------------------------ text and ids

    def decode(self, ids: Iterable[int]) -> bytes:
        """Return the bytes that token ids spell, one after the other; ids that have none add nothing.

        Raises VocabularyMismatchError for an id outside 0 .. V - 1.
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

        Raises ConstraintError for a name that no token has, with some that are like it.
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

        Some tokenizers put a space before any text, or behind it, that a text being continued does not have. Where
        the tokenizer's ids for the text alone spell anything else, it is written beside a short other text, and the
        ids between them are taken, provided that tokens end where the text begins and ends. Where none of a few
        such texts serves, where there is no encoder, and for bytes that are not UTF-8, the longest token is taken at
        each position after which the rest can still be written, and the lowest id of equal ones. That includes what
        the tokenizer would change first, as those do that turn capitals into small letters.
        Raises ConstraintError if no tokens spell the text.
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
            return self._longest_match(raw)
        try:
            text = raw.decode()
        except UnicodeDecodeError:
            return self._longest_match(raw)
        for after, before in product(_CONTEXTS if self.trailing_space else ("",), _CONTEXTS):
            ids = self._between(before, text, after)
            if ids is not None:
                return ids
        try:
            return self._longest_match(raw)
        except ConstraintError:
            own = self.decode(self.encoder(text))
            raise ConstraintError(
                f"the tokenizer writes {_short(raw)} as {_short(own)}, and no tokens spell it exactly: it begins words "
                "with a space, has no tokens for parts of this text, or changes text before splitting it; use text "
                "that it keeps as it is"
            ) from None

    def _between(self, before: str, text: str, after: str) -> list[int] | None:
        """Return the ids of a text between others, one space at the ends of all aside; None where it has none there."""
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
    def _lowest_id(self) -> dict[bytes, int]:
        ids = {token: i for i, token in reversed(list(enumerate(self.tokens)))}
        ids.pop(b"", None)
        return ids

    def _longest_match(self, raw: bytes) -> list[int]:
        ids = self._lowest_id
        stuck = bytearray(len(raw) + 1)  # positions from which the rest cannot be written
        starts: list[int] = []  # of the tokens chosen so far
        position = furthest = 0
        while position < len(raw):
            for end in range(min(position + self.trie.longest, len(raw)), position, -1):
                if not stuck[end] and raw[position:end] in ids:
                    starts.append(position)
                    position = end
                    furthest = max(furthest, end)
                    break
            else:
                if not starts:
                    raise ConstraintError(
                        f"{_short(raw)} cannot be written with this vocabulary: no token fits at byte {furthest}, "
                        f"{raw[furthest : furthest + 1]!r}"
                    )
                stuck[position] = 1  # the token before was too long: take a shorter one
                position = starts.pop()
        return [ids[raw[a:b]] for a, b in pairwise([*starts, len(raw)])]


@kernel
def _build(order: Any, token_bytes: Any, token_offset: Any) -> Any:
    """Return (byte, skip, depth, height, token_start, root_start, longest): the trie of tokens `order`, (K,) sorted."""
    count = order.size
    shared = np.zeros(count + 1, np.int64)  # bytes each token shares with the one before
    nodes = np.int64(0)
    longest = np.int64(0)
    before, length_before = np.int64(0), np.int64(0)
    for k in range(count):
        begin = token_offset[order[k]]
        length = token_offset[order[k] + 1] - begin
        same = np.int64(0)
        most = min(length, length_before)
        while same < most and token_bytes[begin + same] == token_bytes[before + same]:
            same += 1
        shared[k] = same
        nodes += length - same
        longest = max(longest, length)
        before, length_before = begin, length

    byte = np.empty(nodes, np.uint8)
    skip = np.empty(nodes, np.int32)
    depth = np.empty(nodes, np.uint16)
    height = np.zeros(nodes, np.uint16)
    token_start = np.empty(nodes + 1, np.int32)
    root_start = np.empty(257, np.int32)
    path = np.empty(longest + 1, np.int64)  # the open node of each depth
    node = np.int64(0)
    first = 0  # first bytes below this have their root_start
    open_depth = np.int64(0)
    for k in range(count):
        begin = token_offset[order[k]]
        length = token_offset[order[k] + 1] - begin
        for d in range(shared[k], open_depth):
            skip[path[d]] = node
        for d in range(shared[k], length):
            byte[node] = token_bytes[begin + d]
            depth[node] = d + 1
            token_start[node] = k
            path[d] = node
            if d == 0:
                while first <= byte[node]:
                    root_start[first] = node
                    first += 1
            node += 1
        for d in range(length):
            height[path[d]] = max(height[path[d]], length - 1 - d)
        open_depth = length
    for d in range(open_depth):
        skip[path[d]] = node
    root_start[first:] = node
    token_start[nodes] = count
    return byte, skip, depth, height, token_start, root_start, longest


@kernel
def _phases(byte: Any, depth: Any) -> Any:
    """Return where each node (M,) is in a character of UTF-8.

    0: behind one. 1 to 3: so many continuation bytes are to come. 4 to 7: special ones are. 8: it is not UTF-8.
    """
    nodes = byte.size
    deepest: Any = 0
    for i in range(nodes):
        deepest = max(deepest, np.int64(depth[i]))
    phase = np.zeros(nodes, np.uint8)
    path = np.zeros(deepest + 1, np.uint8)
    for i in range(nodes):
        b, before = byte[i], path[depth[i] - 1]
        after = 8
        if before == 0:
            if b < 0x80:
                after = 0
            elif 0xC2 <= b <= 0xDF:
                after = 1
            elif b == 0xE0:
                after = 4
            elif b == 0xED:
                after = 5
            elif 0xE1 <= b <= 0xEF:
                after = 2
            elif b == 0xF0:
                after = 6
            elif 0xF1 <= b <= 0xF3:
                after = 3
            elif b == 0xF4:
                after = 7
        elif before <= 3:
            if 0x80 <= b <= 0xBF:
                after = before - 1
        elif before == 4:
            if 0xA0 <= b <= 0xBF:
                after = 1
        elif before == 5:
            if 0x80 <= b <= 0x9F:
                after = 1
        elif before == 6:
            if 0x90 <= b <= 0xBF:
                after = 2
        elif before == 7 and 0x80 <= b <= 0x8F:
            after = 2
        path[depth[i]] = after
        phase[i] = after
    return phase


@kernel
def _begun(byte: Any, depth: Any, byte_group: Any) -> Any:
    """Return the groups of all characters that begin on the way to each node (M,), as bits, and how many these are.

    `UNCLEAN` is set if it is not UTF-8.
    """
    phase, out, number = _phases(byte, depth), np.empty(byte.size, np.uint64), np.empty(byte.size, np.uint16)
    levels = np.int64(depth.max()) + 1 if depth.size else 1
    path, count = np.zeros(levels, np.uint64), np.zeros(levels, np.uint16)
    for i in range(byte.size):
        own = np.uint64(0)
        if phase[i] == 8:
            own = np.uint64(1) << np.uint64(UNCLEAN)
        elif byte[i] < 0x80 or byte[i] >= 0xC2:
            own = np.uint64(1) << np.uint64(byte_group[byte[i]])
        out[i] = path[depth[i]] = path[depth[i] - 1] | own
        number[i] = count[depth[i]] = count[depth[i] - 1] + (own != 0)
    return out, number


@kernel
def _content(byte: Any, depth: Any, token_start: Any, byte_group: Any, whole: bool) -> Any:
    """Return the groups of all characters that tokens have from each node on (M,), as bits.

    One below which a token is not UTF-8 has `UNCLEAN` as well. whole: and so has one below which a token ends inside a
    character, while a node inside a character has it alone.
    """
    phase = _phases(byte, depth)
    nodes, deepest = byte.size, np.int64(depth.max()) if depth.size else np.int64(0)
    path = np.zeros(deepest + 1, np.uint8)
    out = np.empty(nodes, np.uint64)
    below = np.zeros(deepest + 2, np.uint64)  # by depth: what the nodes seen last have in common with their parent
    unclean = np.uint64(1) << np.uint64(UNCLEAN)
    for i in range(nodes - 1, -1, -1):
        d = np.int64(depth[i])
        own = np.uint64(0)
        if phase[i] == 8 or (whole and phase[i] > 0 and token_start[i + 1] > token_start[i]):
            own = unclean
        elif byte[i] < 0x80 or byte[i] >= 0xC2:
            own = np.uint64(1) << np.uint64(byte_group[byte[i]])
        out[i] = own | below[d + 1]
        below[d + 1] = np.uint64(0)
        below[d] |= out[i]
    for i in range(nodes):
        path[depth[i]] = phase[i]
        inside = depth[i] > 1 and path[depth[i] - 1] > 0
        if (whole and inside) or (depth[i] == 1 and 0x80 <= byte[i] < 0xC2):
            out[i] = unclean
    return out


# -------------------------------------------------------------------------------------------------------- checks


def _is_int(value: Any) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def _checked_size(size: int | None, count: int) -> int:
    if not count:
        raise ConstraintError("the vocabulary is empty: pass the bytes of at least one token")
    if size is None:
        size = count
    if not _is_int(size) or not count <= size <= MOST_TOKENS:
        raise ConstraintError(
            f"must be an integer from {count}, the number of tokens, to {MOST_TOKENS:,}, not {size!r}: "
            "it is the width of the model's logits",
            argument="size",
        )
    return int(size)


def _checked_id(value: Any, size: int, argument: str, what: str = "must be token ids") -> int:
    if not _is_int(value) or not 0 <= value < size:
        raise ConstraintError(f"{what} from 0 to {size - 1}, not {value!r}", argument=argument)
    return int(value)


def _not_bytes(tokens: Sequence[Any]) -> ConstraintError:
    at, token = next((i, t) for i, t in enumerate(tokens) if type(t) is not bytes)
    how = {
        str: "encode it, token.encode(), unless it is spelt in a tokenizer's own alphabet: then use a from_ method",
        type(None): 'use b"" for an id without bytes',
    }.get(type(token), "convert it with bytes(token)" if isinstance(token, (bytearray, memoryview)) else "pass bytes")
    return ConstraintError(f"token {at} is {type(token).__name__}, not bytes: {how}")


def _short(raw: bytes) -> str:
    return repr(raw) if len(raw) <= 40 else f"{raw[:40]!r}..."
