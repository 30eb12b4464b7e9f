"""What the README and the examples show runs as shown."""

from __future__ import annotations

import doctest
import re
import subprocess
import sys
from pathlib import Path

import pytest

import maskwright as mw
from maskwright.compile import sequences

ROOT = Path(mw.__file__).parent


def run(path: Path, folder: Path) -> str:
    out = subprocess.run([sys.executable, "-W", "error", path], cwd=folder, capture_output=True, text=True, check=False)
    assert out.returncode == 0, out.stderr
    return out.stdout


def test_the_readme_runs_from_top_to_bottom(tmp_path):
    pytest.importorskip("torch")
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert len(blocks) >= 3
    script = tmp_path / "readme.py"
    script.write_text("\n".join(blocks))
    assert "array" in run(script, tmp_path)


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.py")), ids=lambda p: p.stem)
def test_examples_run(path, tmp_path):
    pytest.importorskip("jax" if "jax" in path.stem else "torch")
    printed = run(path, tmp_path)
    assert printed
    assert path.name in (ROOT / "examples" / "README.md").read_text()
    assert "False" not in printed.replace("[ True False]", "")


def test_docstring_examples_hold():
    assert doctest.testmod(sequences).failed == 0


def test_files_named_in_the_readme_exist():
    for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "docs" / "design.md"):
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
