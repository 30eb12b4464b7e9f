"""Examples in docstrings hold."""

from __future__ import annotations

import doctest
import importlib
import inspect
from collections.abc import Iterator
from pathlib import Path

import pytest

import maskwright as mw
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


WITHIN = {
    "Arena.check", "Arena.check_budgets", "Arena.mirror", "TransitionTable.graph", "TransitionTable.is_accepting",
    "TransitionTable.noting", "TransitionTable.sequence_numbers", "TransitionTable.sequences_of",
    "TransitionTable.shortest_of", "Vocabulary.marked", "Vocabulary.most_of",
}  # fmt: skip
"""Methods that other parts of the package call, and no user."""


def public() -> Iterator[tuple[str, object]]:
    """Yield what the package exports, and the public methods of its classes, by name."""
    for name in mw.__all__:
        found = getattr(mw, name)
        yield name, found
        if inspect.isclass(found):
            for member, value in inspect.getmembers(found, inspect.isroutine):
                own = not member.startswith("_") and (value.__module__ or "").startswith("maskwright")
                if own and f"{name}.{member}" not in WITHIN:
                    yield f"{name}.{member}", value


PUBLIC = dict(public())


@pytest.mark.parametrize("name", PUBLIC)
def test_public_names_say_what_their_arguments_are(name: str):
    text = inspect.getdoc(PUBLIC[name]) or ""
    assert text.splitlines()[0].endswith(".")
    if not inspect.isclass(PUBLIC[name]):
        given = [each for each in inspect.signature(PUBLIC[name]).parameters if each not in ("self", "cls")]
        assert (
            not given or "\nArgs:\n" in text or "short for" in text or "Arguments are those of" in text
        )  # ruff asks for all of them there


@pytest.mark.parametrize("name", mw.__all__)
def test_exported_names_have_an_example(name: str):
    assert "\nExamples:\n    >>> " in (getattr(mw, name).__doc__ and inspect.getdoc(getattr(mw, name)))
