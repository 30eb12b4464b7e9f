"""End tokens: the ids that end a text, of which `eos` is the first."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from typing import Any, TypeAlias

import numpy as np

from ..errors import ConstraintError

EndTokens: TypeAlias = int | Iterable[int]
"""One end token, or several, as a model's `generation_config.eos_token_id` has them."""


def checked_ends(eos: Any, size: int, argument: str = "eos") -> tuple[int, ...]:
    """Return end tokens in the order given, each once; () for None.

    eos: an id, a list, tuple or array of ids, or None. argument: what it is called where it was given. Raises
    ConstraintError for ids outside 0 .. size - 1, for an empty list, and for what has no order.
    """
    if eos is None:
        return ()
    several = isinstance(eos, Iterable) and not isinstance(eos, (str, bytes, Mapping, Set))
    given: list[Any] = list(eos) if several else [eos]
    if not given:
        raise ConstraintError("is an empty list: pass at least one token, or leave it out", argument=argument)
    for one in given:
        if not isinstance(one, (int, np.integer)) or isinstance(one, bool) or not 0 <= one < size:
            raise ConstraintError(f"must be token ids from 0 to {size - 1}, not {one!r}", argument=argument)
    return tuple(dict.fromkeys(map(int, given)))
