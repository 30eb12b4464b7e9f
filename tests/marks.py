"""Marks at single cases of a test: the others of the test stay where they are."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def marked(cases: Iterable[Any], *, slow: Collection[Any] = (), long: Collection[Any] = ()) -> list[Any]:
    """Return the cases as parameters, some with the marks `slow` and `long`; a case of several values is a tuple.

    Raises ValueError for what is marked and is none of the cases.
    """
    cases = list(cases)
    for case in (*slow, *long):
        if case not in cases:
            raise ValueError(f"{case!r} is marked and is none of the cases: {cases!r}")
    return [
        _parameter(case, [name for name, some in (("slow", slow), ("long", long)) if case in some]) for case in cases
    ]


def _parameter(case: Any, marks: list[str]) -> Any:
    values = case if isinstance(case, tuple) else (case,)
    return pytest.param(*values, marks=[getattr(pytest.mark, name) for name in marks])
