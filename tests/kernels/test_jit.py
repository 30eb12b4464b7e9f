"""Machine code that numba makes and keeps is that of the sources as they are, and is made once."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

import maskwright as mw
from maskwright.kernels import sources

ROOT = Path(mw.__file__).parent

CALLER = """
from maskwright.kernels.compiled import kernel, native_loop
from maskwright.kernels.pointers import array_at
import numpy as np

from .callee import told


@kernel
def doubled(number):
    return 2 * told(number)


@kernel
def write(address):
    array_at(address, 1, np.int64)[0] = told(array_at(address, 1, np.int64)[0])


def native(number):
    place = np.array([number])
    native_loop(write)(place.ctypes.data)
    return int(place[0])
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

print(doubled(10), native(10), sum(doubled.stats.cache_hits.values()))
"""


def write(folder: Path, added: int) -> None:
    (folder / "toy").mkdir(exist_ok=True)
    (folder / "toy/__init__.py").write_text("")
    (folder / "toy/caller.py").write_text(CALLER)
    (folder / "toy/callee.py").write_text(CALLEE.format(added=added))


def environment(folder: Path) -> dict[str, str]:
    """Return an environment in which machine code is kept under a folder alone.

    Python keeps no bytecode of sources: it takes one that is changed within a second, to the same length, for the same.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith("NUMBA_")}
    kept |= {"MASKWRIGHT_CACHE": str(folder / "cache"), "MASKWRIGHT_JIT": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    return kept | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def run(folder: Path, program: str = PROGRAM, **more: str) -> list[str]:
    """Return the words that another process prints."""
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env=environment(folder) | more)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def folders(folder: Path) -> set[str]:
    return {path.name for path in (folder / "cache").glob("kernels-*")}


@pytest.mark.long
def test_a_kernel_is_compiled_anew_when_one_of_another_file_changes(tmp_path):
    """Other code gets a folder of its own; a process that changes nothing reads what another has compiled."""
    write(tmp_path, 1)
    assert run(tmp_path) == ["22", "11", "0"]
    assert run(tmp_path) == ["22", "11", "1"]
    kept = folders(tmp_path)
    for added, hits in ((2, 0), (2, 1), (3, 0), (1, 1)):
        write(tmp_path, added)
        assert run(tmp_path) == [str(20 + 2 * added), str(10 + added), str(hits)]
    assert len(folders(tmp_path)) == len(kept) + 2


@pytest.mark.long
def test_a_change_that_concerns_no_kernel_leaves_the_cache(tmp_path):
    write(tmp_path, 1)
    run(tmp_path)
    (tmp_path / "toy/plain.py").write_text("ANSWER = 42\n")
    assert run(tmp_path) == ["22", "11", "1"]


@pytest.mark.long
def test_machine_code_that_nobody_has_read_for_long_is_removed(tmp_path):
    write(tmp_path, 1)
    run(tmp_path)
    old = folders(tmp_path)
    for name in old:
        os.utime(tmp_path / "cache" / name, (time.time() - 30 * 24 * 3600,) * 2)
    write(tmp_path, 2)
    run(tmp_path)
    assert len(old - folders(tmp_path)) == 1  # that of the toy; the package's own is in use
    assert len(folders(tmp_path)) == 2


@pytest.mark.long
def test_processes_that_start_together_compile_a_kernel_once(tmp_path):
    """All of them wait for the first: one has compiled, the others have read."""
    write(tmp_path, 1)
    command = [sys.executable, "-c", PROGRAM]
    started = [
        subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True, env=environment(tmp_path))
        for _ in range(4)
    ]
    answers = sorted(process.communicate()[0].split() for process in started)
    assert answers == [["22", "11", "0"], *[["22", "11", "1"]] * 3]


@pytest.mark.long
@pytest.mark.parametrize("where", ["a file", "no home"])
def test_where_nothing_can_be_written_kernels_are_compiled_with_one_warning(tmp_path, where):
    write(tmp_path, 1)
    (tmp_path / "cache").write_text("")
    names = {"MASKWRIGHT_CACHE": "", "XDG_CACHE_HOME": "", "HOME": str(tmp_path / "cache")}
    program = """
import warnings
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    from toy.caller import doubled
    print(doubled(10), *[each.category.__name__ for each in said])
"""
    assert run(tmp_path, program, **({} if where == "a file" else names)) == ["22", "RuntimeWarning"]


@pytest.mark.long
def test_damaged_machine_code_is_compiled_anew(tmp_path):
    write(tmp_path, 1)
    run(tmp_path)
    for file in (tmp_path / "cache").rglob("*.nb[ic]"):
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    assert run(tmp_path) == ["22", "11", "0"]
    assert run(tmp_path) == ["22", "11", "1"]


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
def test_code_that_names_a_class_that_is_gone_is_not_read(tmp_path):
    (tmp_path / "toy").mkdir()
    (tmp_path / "toy/__init__.py").write_text("")
    for name, hits in (("Before", 0), ("Before", 1), ("After", 0), ("After", 1)):
        (tmp_path / "toy/grouped.py").write_text(GROUPED.format(name=name))
        assert run(tmp_path, "import toy.grouped") == ["7", str(hits)]


TWINS = """
from maskwright.kernels.compiled import kernel


def counted(number, within):
    if within is None:
        return number
    return rest(number, None) + within


whole, rest = kernel(counted), kernel(counted)
"""


@pytest.mark.long
def test_two_kernels_of_one_function_do_not_wait_for_each_other(tmp_path):
    (tmp_path / "twins.py").write_text(TWINS)
    command = [sys.executable, "-c", "from twins import whole\nprint(whole(3, 4))"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=environment(tmp_path), timeout=120)
    assert (done.stdout, done.stderr) == ("7\n", "")


@pytest.mark.long
def test_a_kernel_of_a_script_is_kept(tmp_path):
    program = CALLEE.format(added=5) + "print(told(1), sum(told.stats.cache_hits.values()))\n"
    (tmp_path / "script.py").write_text(program)
    for hits in (0, 1):
        command = [sys.executable, "script.py"]
        done = subprocess.run(
            command, cwd=tmp_path, capture_output=True, text=True, check=True, env=environment(tmp_path)
        )
        assert done.stdout.split() == ["6", str(hits)]


def test_kernels_take_names_of_the_package_from_files_that_have_kernels():
    """The stamp of the cache covers these files only: a constant from elsewhere could change unseen."""
    trees = {path: ast.parse(path.read_text()) for folder in ROOT.iterdir() for path in sources_in(folder)}
    having = {path for path in trees if any(mark in path.read_bytes() for mark in sources.MARKS)}
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
