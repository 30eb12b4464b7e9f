"""Semantic IDs that are written as names of tokens, such as "<a_12><b_7>" or ["<a_12>", "<b_7>"]."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import Advice, ConstraintError
from ..vocabulary.vocabulary import Vocabulary

_NAME = re.compile(r"<[^<>]*>")  # where names follow each other without anything between
_SHOWN = 5  # names in an error


def are_names(sids: object) -> bool:
    """Return whether semantic IDs are texts or lists of texts, as the first of them, or its Arrow type, says."""
    if type(sids).__module__.split(".")[0] == "pyarrow":
        return is_text(getattr(sids, "type", None))
    if isinstance(sids, np.ndarray) and sids.dtype.kind != "O":
        return bool(sids.dtype.kind == "U")
    first = next(iter(sids), None) if hasattr(sids, "__iter__") else None
    if isinstance(first, (list, tuple, np.ndarray)):
        first = next(iter(first), None)
    return isinstance(first, str)


def is_text(kind: object) -> bool:
    """Return whether an Arrow type is of texts, or of lists of them."""
    import pyarrow as pa

    if not isinstance(kind, pa.DataType):  # of what is no column
        return False
    if pa.types.is_dictionary(kind) or pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return is_text(kind.value_type)
    if pa.types.is_fixed_size_list(kind):
        return is_text(kind.value_type)
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def tokens_of_names(sids: Any, vocabulary: Vocabulary | None) -> NDArray[np.int64]:
    """Return the tokens (N, L) of semantic IDs that are written as names.

    Raises ConstraintError for a row that is null, of another length than the first, or no sequence of names, and for
    names that the vocabulary does not know, which it names.
    """
    if vocabulary is None:
        raise ConstraintError(
            "the semantic IDs are names of tokens", remedies=[Advice("Pass {} of the tokenizer", ("vocabulary",))]
        )
    rows = sids.to_pylist() if hasattr(sids, "to_pylist") else sids.tolist() if isinstance(sids, np.ndarray) else sids
    tokens: list[list[int]] = []
    missing, known = dict[str, None](), vocabulary.special_ids
    for at, row in enumerate(rows):
        names = _split(row, at) if isinstance(row, str) else row
        if not isinstance(names, (list, tuple, np.ndarray)) or not all(isinstance(name, str) for name in names):
            raise ConstraintError(f"row {at} is {row!r}: a text, or a list of names, is needed")
        if len(names) != len(tokens[0] if tokens else names) or not len(names):
            raise ConstraintError(f"row {at} has {len(names)} names, row 0 has {len(tokens[0]) if tokens else 0}")
        tokens.append([known.get(name, -1) for name in names])
        if -1 in tokens[-1]:
            missing.update(dict.fromkeys(name for name in names if name not in known))
    if missing:
        raise no_such_names(list(missing))
    if not tokens:
        raise ConstraintError("the set is empty: nothing could be decoded")
    return np.array(tokens, np.int64)


def _split(text: str, row: int) -> list[str]:
    """Return the names in a text."""
    names = _NAME.findall(text)
    if "".join(names) != text:
        raise ConstraintError(
            f"row {row} is {text!r}, which is not a sequence of names such as <a_12>: pass lists of names"
        )
    return names


def no_such_names(names: list[str]) -> ConstraintError:
    """Return the error for names that a vocabulary does not know."""
    more = f" and {len(names) - _SHOWN:,} more" if len(names) > _SHOWN else ""
    return ConstraintError(
        f"the vocabulary has no token of the name {', '.join(map(repr, names[:_SHOWN]))}{more}",
        remedies=[Advice("Add these tokens to the tokenizer, make the vocabulary from it again, or correct them")],
    )
