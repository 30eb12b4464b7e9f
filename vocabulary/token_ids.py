"""Checks of tokens and their ids, the end tokens of a vocabulary among them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any, TypeAlias, TypeGuard

import numpy as np

from ..errors import ConstraintError
from ..kernels.limits import MOST_TOKENS

EndTokens: TypeAlias = int | Iterable[int]
"""One end token, or several, as a model's `generation_config.eos_token_id` has them."""


def checked_ends(eos: object, size: int, argument: str = "eos") -> tuple[int, ...]:
    """Return end tokens in the order given, each once; () for None.

    eos: an id, a list, tuple or array of ids, or None. argument: what it is called where it was given. Raises
    ConstraintError for ids outside 0 .. size - 1, for an empty list, and for what has no order.
    """
    if eos is None:
        return ()
    given: list[Any] = [eos]
    if isinstance(eos, Iterable) and not isinstance(eos, (str, bytes, Mapping, Set)):
        given = list(eos)
    if not given:
        raise ConstraintError("is an empty list: pass at least one token, or leave it out", argument=argument)
    for one in given:
        if not isinstance(one, (int, np.integer)) or isinstance(one, bool) or not 0 <= one < size:
            raise ConstraintError(f"must be token ids from 0 to {size - 1}, not {one!r}", argument=argument)
    return tuple(dict.fromkeys(map(int, given)))


def is_int(value: object) -> TypeGuard[int]:
    """Return whether a value is a whole number, of Python or numpy."""
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def checked_size(size: int | None, count: int) -> int:
    """Return the width of the logits, `count` if it is not given. Raises ConstraintError below the number of tokens."""
    if not count:
        raise ConstraintError("the vocabulary is empty: pass the bytes of at least one token")
    if size is None:
        size = count
    if not is_int(size) or not count <= size <= MOST_TOKENS:
        raise ConstraintError(
            f"must be an integer from {count}, the number of tokens, to {MOST_TOKENS:,}, not {size!r}: "
            "it is the width of the model's logits",
            argument="size",
        )
    return int(size)


def checked_id(value: object, size: int, argument: str, what: str = "must be token ids") -> int:
    """Return an id of 0 .. size - 1. Raises ConstraintError."""
    if not is_int(value) or not 0 <= value < size:
        raise ConstraintError(f"{what} from 0 to {size - 1}, not {value!r}", argument=argument)
    return int(value)


def not_bytes(tokens: Sequence[Any]) -> ConstraintError:
    """Return the error for the first token that is not of bytes."""
    at, token = next((i, t) for i, t in enumerate(tokens) if type(t) is not bytes)
    how = {
        str: "encode it, token.encode(), unless it is spelt in a tokenizer's own alphabet: then use a from_ method",
        type(None): 'use b"" for an id without bytes',
    }.get(type(token), "convert it with bytes(token)" if isinstance(token, (bytearray, memoryview)) else "pass bytes")
    return ConstraintError(f"token {at} is {type(token).__name__}, not bytes: {how}")
