"""Cached machine code is that of the sources as they are."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import maskwright as mw
from maskwright.kernels import compiled

ROOT = Path(mw.__file__).parent

CALLER = """
from maskwright.kernels.compiled import callback, kernel
from numba import types

from .callee import told


@kernel
def doubled(number):
    return 2 * told(number)


@callback(types.int64(types.int64))
def native(number):
    return told(number)
"""
CALLEE = """
from maskwright.kernels.compiled import kernel


@kernel
def told(number):
    return number + {added}


@kernel(inline="always")
def inlined(number):
    return number * {added}
"""
PROGRAM = """
from toy.caller import doubled, native

print(doubled(10), native.ctypes(10), sum(doubled.stats.cache_hits.values()), native.cache_hits)
"""


def write(folder: Path, added: int) -> None:
    (folder / "toy").mkdir(exist_ok=True)
    (folder / "toy/__init__.py").write_text("")
    (folder / "toy/caller.py").write_text(CALLER)
    (folder / "toy/callee.py").write_text(CALLEE.format(added=added))


def run(folder: Path) -> list[int]:
    """Return the answers of a kernel and a callback of another process, and how often each was read from the cache."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return [int(word) for word in done.stdout.split()]


def files(folder: Path) -> set[str]:
    return {path.name for path in folder.rglob("*.nb[ic]")}


@pytest.mark.long
def test_a_kernel_is_compiled_anew_when_one_of_another_file_changes(tmp_path):
    """The new code takes the place of the old; a process that changes nothing reads what another has compiled."""
    write(tmp_path, 1)
    assert run(tmp_path) == [22, 11, 0, 0]
    assert run(tmp_path) == [22, 11, 1, 1]
    kept = files(tmp_path)
    assert len(kept) == 6  # an index and an entry for each of three functions
    for added in (2, 3, 1):
        write(tmp_path, added)
        assert run(tmp_path) == [20 + 2 * added, 10 + added, 0, 0]
        assert run(tmp_path) == [20 + 2 * added, 10 + added, 1, 1]
        assert files(tmp_path) == kept


@pytest.mark.long
def test_a_change_that_concerns_no_kernel_leaves_the_cache(tmp_path):
    write(tmp_path, 1)
    run(tmp_path)
    (tmp_path / "toy/plain.py").write_text("ANSWER = 42\n")
    assert run(tmp_path) == [22, 11, 1, 1]


GROUPED = """
from typing import NamedTuple

from maskwright.kernels.compiled import kernel


class {name}(NamedTuple):
    number: int


@kernel
def told(group):
    return group.number


print(told({name}(7)), sum(told.stats.cache_hits.values()))
"""


@pytest.mark.long
def test_code_that_names_a_class_that_is_gone_is_compiled_anew(tmp_path):
    """The cache's entries hold types of arguments: after a rename they cannot even be read."""
    (tmp_path / "toy").mkdir()
    (tmp_path / "toy/__init__.py").write_text("")
    for name, hits in (("Before", 0), ("Before", 1), ("After", 0), ("After", 1)):
        (tmp_path / "toy/grouped.py").write_text(GROUPED.format(name=name))
        command = [sys.executable, "-c", "import toy.grouped"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert done.stdout.split() == ["7", str(hits)], done.stderr


@pytest.mark.long
def test_a_kernel_of_a_script_is_cached(tmp_path):
    (tmp_path / "script.py").write_text(
        CALLEE.format(added=5) + "print(told(1), sum(told.stats.cache_hits.values()))\n"
    )
    for hits in (0, 1):
        done = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, check=True)
        assert done.stdout.split() == ["6", str(hits)]


def test_kernels_take_names_of_the_package_from_files_that_have_kernels():
    """The stamp of the cache covers these files only: a constant from elsewhere could change unseen."""
    trees = {path: ast.parse(path.read_text()) for folder in ROOT.iterdir() for path in sources_in(folder)}
    having = {path for path in trees if any(mark in path.read_bytes() for mark in compiled.MARKS)}
    assert len(having) > 15
    for path, tree in trees.items():
        if any(imported == "kernel" for _, imported in taken(path, tree)):
            assert path in having
    for path in having:
        found = {name: file for (file, name) in taken(path, trees[path])}
        for function in (node for node in ast.walk(trees[path]) if is_kernel(node)):
            for node in (node for statement in function.body for node in ast.walk(statement)):
                if isinstance(node, ast.Name) and node.id in found:
                    assert found[node.id] in having, (path, function.name, node.id)


def sources_in(path: Path) -> list[Path]:
    """Return Python files of the package: of the root, or under a folder that is a part of it."""
    if path.suffix == ".py":
        return [path]
    return sorted(path.rglob("*.py")) if (path / "__init__.py").exists() else []


def taken(path: Path, tree: ast.Module) -> list[tuple[Path, str]]:
    """Return the names that a file imports from the package, each with the file that it is imported from."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = path.parents[node.level - 1].joinpath(*(node.module or "").split("."))
            for name in node.names:
                file = base.with_suffix(".py") if base.with_suffix(".py").exists() else base / f"{name.name}.py"
                found.append((file, name.asname or name.name))
    return found


def is_kernel(node: ast.AST) -> bool:
    decorators = node.decorator_list if isinstance(node, ast.FunctionDef) else []
    return any("kernel" in ast.unparse(decorator) for decorator in decorators)
