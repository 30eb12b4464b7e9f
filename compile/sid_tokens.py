"""Codes of semantic IDs and the tokens of a model that stand for them: offsets into a vocabulary, or tokens by name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import Advice, ConstraintError
from ..kernels.limits import MOST_TOKENS
from ..vocabulary.vocabulary import Vocabulary
from .sequences import check_vocabulary_size
from .token_names import no_such_names


@dataclass(frozen=True, eq=False)
class CodeTokens:
    """Which token stands for each code of each level: code + offset, or an entry of the level's list."""

    offsets: tuple[int, ...]  # (L,); () where there are lists
    lists: tuple[
        NDArray[np.int64], ...
    ] = ()  # of (C,) each, -1 for a code that no item has; () where there are offsets

    @property
    def length(self) -> int:
        """L: the levels."""
        return len(self.offsets or self.lists)

    def tokens(
        self,
        codes: NDArray[Any],
        out: NDArray[Any] | None = None,
        vocab_size: int = MOST_TOKENS,
        first_row: int = 0,
    ) -> NDArray[Any]:
        """Return the tokens of codes (.., L), all below `vocab_size`; into `out`, if that is given.

        first_row: the number that the first row has in errors. Raises ConstraintError naming the row of a code that has
        no token.
        """
        codes = np.asarray(codes)
        if codes.ndim == 0 or codes.shape[-1] != self.length or codes.dtype.kind not in "iu":
            raise ConstraintError(f"codes must be integers (.., {self.length}), not {codes.dtype} {codes.shape}")
        out = np.empty(codes.shape, np.int64) if out is None else out
        for level in range(self.length):
            column = codes[..., level]
            if self.offsets:
                wrong = (column < 0) | (column >= max(vocab_size - self.offsets[level], 0))
            else:
                wrong = (column < 0) | (column >= len(self.lists[level]))
                token = self.lists[level][np.where(wrong, 0, column).astype(np.int64)]
                wrong |= (token < 0) | (token >= vocab_size)
            if wrong.any():
                row = int(np.argmax(wrong))
                raise ConstraintError(
                    f"row {first_row + row} has code {column.reshape(-1)[row]} at position {level}, "
                    + self._known(level, vocab_size)
                )
            out[..., level] = column.astype(np.int64) + self.offsets[level] if self.offsets else token
        return out

    def codes(self, tokens: NDArray[Any]) -> NDArray[np.int64]:
        """Return the codes of tokens (.., L); -1 for what stands for none at its level."""
        tokens = np.asarray(tokens, np.int64)
        if tokens.ndim == 0 or tokens.shape[-1] != self.length:
            raise ValueError(f"tokens must have shape (.., {self.length}), not {tokens.shape}")
        out = np.empty(tokens.shape, np.int64)
        for level in range(self.length):
            column = tokens[..., level]
            if self.offsets:
                out[..., level] = np.maximum(column - self.offsets[level], -1)
                continue
            order = np.argsort(self.lists[level], kind="stable")
            ascending = self.lists[level][order]
            place = np.minimum(np.searchsorted(ascending, column), len(order) - 1)
            out[..., level] = np.where((ascending[place] == column) & (column >= 0), order[place], -1)
        return out

    def _known(self, level: int, vocab_size: int) -> str:
        """Say which codes have tokens at a level."""
        if self.offsets:
            most = vocab_size - 1 - self.offsets[level]
            return f"outside 0 .. {most}: the offset is {self.offsets[level]:,}, and there are {vocab_size:,} tokens"
        return f"for which the catalogue has no token: it has {int((self.lists[level] >= 0).sum()):,} there"


def with_offsets(offsets: int | Sequence[int], length: int) -> CodeTokens:
    """Return what stands for codes where each level's begin at an offset. Raises ConstraintError."""
    given = np.asarray(offsets)
    if given.dtype.kind not in "iu" or given.ndim > 1 or given.shape not in ((), (length,)) or given.min() < 0:
        raise ConstraintError(
            f"must be a number, or {length} of them, one a level, 0 or more, not {offsets!r}", argument="offsets"
        )
    return CodeTokens(tuple(np.broadcast_to(given, (length,)).tolist()))


def by_names(names: Sequence[str | Sequence[str]], used: Sequence[NDArray[Any]], vocabulary: Vocabulary) -> CodeTokens:
    """Return what stands for codes where tokens are known by name: those of the codes that are `used` (L of (C,)).

    names: of each level a pattern such as "<a_{}>", in which {} is the code, or the names of its codes in order.
    Raises ConstraintError naming those that the vocabulary does not know.
    """
    if len(names) != len(used) or isinstance(names, str):
        raise ConstraintError(f"must be {len(used)} patterns or lists, one a level, not {names!r}", argument="names")
    lists, missing = [], []
    for level, (given, codes) in enumerate(zip(names, used, strict=True)):
        if isinstance(given, str) and "{}" not in given:
            raise ConstraintError(
                f"has the pattern {given!r} for level {level}: {{}} stands for the code", argument="names"
            )
        least, most = int(codes.min()), int(codes.max())
        if least < 0 or most >= MOST_TOKENS:
            wrong = least if least < 0 else most
            raise ConstraintError(f"level {level} has code {wrong}: codes are numbers from 0 to {MOST_TOKENS - 1:,}")
        if not isinstance(given, str) and most >= len(given):
            raise ConstraintError(f"names {len(given)} codes of level {level}, which has code {most}", argument="names")
        tokens = np.full(most + 1, -1, np.int64)
        for code in codes.tolist():
            name = given.replace("{}", str(code)) if isinstance(given, str) else given[code]
            found = vocabulary.special_ids.get(name)
            if found is None:
                missing.append(name)
            else:
                tokens[code] = found
        lists.append(tokens)
    if missing:
        raise no_such_names(missing)
    return CodeTokens((), tuple(lists))


def vocab_size_of(vocab_size: int | None, vocabulary: Vocabulary | None) -> int:
    """Return V. Raises ConstraintError, TypeError."""
    if vocabulary is not None and not isinstance(vocabulary, Vocabulary):
        raise TypeError(f"vocabulary must be a Vocabulary, not a {type(vocabulary).__name__}")
    if vocab_size is None and vocabulary is None:
        raise ConstraintError(
            "the number of tokens is not known", remedies=[Advice("Pass {} or {}", ("vocab_size", "vocabulary"))]
        )
    size = vocabulary.size if vocab_size is None and vocabulary is not None else vocab_size
    check_vocabulary_size(size)
    assert size is not None
    return int(size)


def check_written(named: bool, offsets: Any, names: Any) -> None:
    """Raise ConstraintError if what says how codes become tokens is given for IDs that are names of tokens."""
    if named and (names is not None or np.any(np.asarray(offsets) != 0)):
        raise ConstraintError("the semantic IDs are names of tokens already: leave names and offsets out")


def code_tokens_of(codes: NDArray[Any], offsets: Any, names: Any, vocabulary: Vocabulary | None) -> CodeTokens:
    """Return what stands for codes (N, L). Raises ConstraintError."""
    if names is None:
        return with_offsets(offsets, codes.shape[1])
    found = check_names(offsets, vocabulary)
    return by_names(names, [np.unique(codes[:, level]) for level in range(codes.shape[1])], found)


def check_names(offsets: Any, vocabulary: Vocabulary | None) -> Vocabulary:
    """Return the vocabulary that has names of tokens. Raises ConstraintError."""
    if vocabulary is None:
        remedies = [Advice("Pass {} too", ("vocabulary",))]
        raise ConstraintError("are looked up in a vocabulary", argument="names", remedies=remedies)
    if np.any(np.asarray(offsets) != 0):
        raise ConstraintError("and offsets both say which token stands for a code: leave one out", argument="names")
    return vocabulary
