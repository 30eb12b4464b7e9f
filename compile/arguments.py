"""Check the arguments that every compilation takes: budget, vocabulary and depth; and hash a source."""

from __future__ import annotations

import hashlib
import operator

from ..automata.budget import Budget, Meter
from ..kernels.limits import MOST_DEPTH
from ..vocabulary.vocabulary import Vocabulary


class Compilation(Meter):
    """The meter of a whole compilation: one that ends late raises BudgetError too, though it made a table."""

    def __exit__(self, *raised: object) -> None:
        super().__exit__(*raised)
        if raised[0] is None and self.seconds > self.budget.seconds:
            self.stop()


def begin_budget(budget: Budget | None) -> Compilation:
    if budget is not None and not isinstance(budget, Budget):
        raise TypeError(f"budget must be a Budget, not {type(budget).__name__}")
    return Compilation(budget or Budget())


def check_vocabulary(vocabulary: Vocabulary) -> None:
    if not isinstance(vocabulary, Vocabulary):
        raise TypeError(
            f"a Vocabulary is needed, not a {type(vocabulary).__name__}: make one with Vocabulary.from_transformers "
            "or another from_ method"
        )


def checked_depth(depth: int) -> int:
    """Return the depth of a table with calls. Raises ValueError, and TypeError for what is no integer."""
    depth = operator.index(depth)
    if not 1 <= depth <= MOST_DEPTH:
        raise ValueError(f"depth must be from 1 to {MOST_DEPTH:,}, not {depth}")
    return depth


def source_of(*parts: str) -> str:
    """SHA-256 of what was compiled."""
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()
