"""Examples in docstrings hold."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

from tests.docs.pages import ROOT

BESIDE = {"tests", "docs", "examples", "benchmarks", "build", "dist"}
SOURCES = [
    path.relative_to(ROOT)
    for top in sorted(ROOT.iterdir()) if top.is_dir() and top.name not in BESIDE and not top.name.startswith((".", "_"))
    for path in sorted(top.rglob("*.py")) if "\n    >>> " in path.read_text()
]  # fmt: skip


@pytest.mark.parametrize("path", SOURCES, ids=str)
def test_docstring_examples_hold(path: Path):
    try:
        module = importlib.import_module(".".join(["maskwright", *path.with_suffix("").parts]))
    except ModuleNotFoundError as error:  # of an optional package
        pytest.skip(f"{error.name} is not installed")
    result = doctest.testmod(module)
    assert result.attempted or "# doctest: +SKIP" in (ROOT / path).read_text()
    assert result.failed == 0


def test_there_are_examples_in_docstrings():
    assert len(SOURCES) > 15
