"""Every example runs as it is, in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import ROOT

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))

pytestmark = pytest.mark.long


SETTINGS = ("JAX_DISABLE_MOST_OPTIMIZATIONS", "XLA_FLAGS")  # of the tests, which users do not have


def run(path: Path, folder: Path) -> str:
    environment = {name: value for name, value in os.environ.items() if name not in SETTINGS}
    command = [sys.executable, "-W", "error", path]
    out = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert out.returncode == 0, out.stderr
    return out.stdout


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.stem)
def test_examples_run(path, tmp_path):
    pytest.importorskip("jax" if "jax" in path.stem else "torch")
    printed = run(path, tmp_path)
    assert printed
    assert path.name in (ROOT / "examples" / "README.md").read_text()
    assert "False" not in printed.replace("[ True False]", "")


def test_the_first_example_shows_the_idea_by_itself():
    """It fits a reader's patience, and takes nothing from maskwright but what it compares with, at its end."""
    source = (ROOT / "examples/00_how_it_works.py").read_text()
    assert sum(bool(line.strip()) for line in source.splitlines()) < 250
    before, imported, _ = source.partition("import maskwright as mw")
    assert imported
    assert "mw." not in before
    assert "maskwright." not in source.replace("maskwright's", "")
