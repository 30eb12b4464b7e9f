"""Kernels that were compiled ahead are called with the types that they have, or refused by name."""

from __future__ import annotations

import ast
import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import maskwright as mw
from maskwright.kernels import native
from maskwright.kernels.ahead import signatures
from maskwright.kernels.compiled import LIBRARY
from maskwright.table.distances import breadth_first, reversed_edges
from maskwright.table.walk import walk_trie

ROOT = Path(mw.__file__).parent
ahead = pytest.mark.skipif(LIBRARY is None, reason="numba compiles the kernels of this process")


def test_the_signatures_are_read_as_they_are_written(tmp_path):
    kept = signatures.FILE.read_text()
    signatures.write(signatures.read(), tmp_path / "signatures.txt")
    assert (tmp_path / "signatures.txt").read_text() == kept


@pytest.mark.parametrize("line", ["no signature", "table.walk walk(int32[:) loops", "table.walk walk(what[:])"])
def test_a_line_that_is_no_signature_is_an_error(tmp_path, line):
    file = tmp_path / "signatures.txt"
    file.write_text(f"{line}\n")
    with pytest.raises((ValueError, TypeError)):
        signatures.read(file)


def kernels() -> set[tuple[Path, str]]:
    """Return the kernels of the package by file and name."""
    return {
        (path, node.name)
        for path, tree in trees().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and is_kernel(node)
    }


def is_kernel(node: ast.AST) -> bool:
    decorators = node.decorator_list if isinstance(node, ast.FunctionDef) else []
    return any(ast.unparse(each).startswith("kernel") for each in decorators)


def trees() -> dict[Path, ast.Module]:
    """Return the package's files as trees."""
    if not _trees:
        apart = {"tests", "benchmarks", "docs", "examples", "build", "dist"}
        for folder in sorted(ROOT.iterdir()):
            if folder.is_dir() and not folder.name.startswith(".") and folder.name not in apart:
                _trees.update({path: ast.parse(path.read_text()) for path in folder.rglob("*.py")})
    return _trees


_trees: dict[Path, ast.Module] = {}


@pytest.mark.long
def test_every_kernel_that_python_calls_is_compiled_ahead_and_no_other_name_is():
    """A kernel's name outside of kernels is a call, or hands it on to be called."""
    every = kernels()
    listed = {(ROOT / f"{each.module.replace('.', '/')}.py", each.name) for each in signatures.read()}
    made = {(path, name) for path, name in listed if (path, name) not in every}
    assert {name for _, name in made} <= {"_walk_tokens"}, made  # made kernels by a call, not by a decorator
    called = set()
    for path, tree in trees().items():
        names = {name: (path, name) for file, name in every if file == path}
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.level:
                base = path.parents[node.level - 1].joinpath(*(node.module or "").split(".")).with_suffix(".py")
                names |= {a.asname or a.name: (base, a.name) for a in node.names if (base, a.name) in every}
        called |= {names[name] for name in names_outside(tree) if name in names}
    assert called <= listed, sorted(f"{path.relative_to(ROOT)}:{name}" for path, name in called - listed)


def names_outside(tree: ast.Module) -> set[str]:
    """Return the names that are read outside of kernels."""
    found: set[str] = set()

    def visit(node: ast.AST) -> None:
        for child in ast.iter_child_nodes(node):
            if is_kernel(child) or (isinstance(child, ast.FunctionDef) and child.name == "_walk_tokens"):
                continue
            if isinstance(child, ast.Name):
                found.add(child.id)
            visit(child)

    visit(tree)
    return found


@ahead
@pytest.mark.parametrize(
    "arguments",
    [
        (),
        (np.ones(2, bool), np.zeros(3, np.int64)),
        (np.ones(2, bool), np.zeros(3, np.int64), np.zeros(1, np.int64)),
        (np.ones(2, bool), np.zeros(3, np.int64), np.zeros(4, np.int32)[::2]),
        (np.ones(2, bool), np.zeros(3, ">i8"), np.zeros(1, np.int32)),
        (np.ones((2, 1), bool), np.zeros(3, np.int64), np.zeros(1, np.int32)),
        ([True], np.zeros(3, np.int64), np.zeros(1, np.int32)),
        (np.ones(2, bool), np.zeros(3, np.int64), np.zeros(1, np.int32), 4),
    ],
)
def test_arguments_of_other_types_are_refused_by_name(arguments):
    with pytest.raises(mw.errors.KernelError, match=r"no table\.distances\.breadth_first\(") as raised:
        breadth_first(*arguments)
    assert raised.value.remedies


@ahead
def test_whole_numbers_fit_where_their_value_does_and_arrays_may_be_read_only():
    edge_start, token = np.array([0, 1], np.int32), np.array([3, 7, 8], np.uint8)
    target, accepting = np.array([1], np.int32), np.array([False])
    token.flags.writeable = False
    given = edge_start, token, target, accepting
    for kind in (int, np.int8, np.uint64):
        out = np.zeros(1, np.int64)
        walk_trie(*given, kind(7), kind(5), np.array([[3]]), out)
        assert out.tolist() == [1]
    for wrong in (2**63, True, 1.0, None):
        with pytest.raises(mw.errors.KernelError):
            walk_trie(*given, wrong, -1, np.array([[3]]), np.zeros(1, np.int64))


@ahead
def test_what_a_kernel_returns_owns_its_memory():
    order, start, target = np.array([0, 1]), np.array([0, 2, 3]), np.array([1, 0, 1], np.int32)
    made = [reversed_edges(order, start, target) for _ in range(100)]
    for ways, back, origin in made:
        assert (ways.tolist(), back.tolist(), origin.tolist()) == ([2, 1], [0, 1, 3], [0, 0, 1])
        assert all(array.base is not None and array.flags.writeable for array in (ways, back, origin))


def test_a_kernel_that_only_kernels_call_says_so():
    with pytest.raises(mw.errors.KernelError, match=r"no a\.b\(int\)"):
        native.InnerKernel("a", "b")(1)


USE = """
import pickle
from maskwright.kernels.compiled import kernels_from
from maskwright.table.graph_checks import mask_fault

arrays, vocab_size = pickle.load(open("arrays.pickle", "rb"))
print(mask_fault(arrays, vocab_size, 0)[0], kernels_from().split()[0])
"""  # a fault if a mask has the bit of EOS, for which another file's kernel looks


def copied(folder: Path) -> Path:
    """Return a copy of the package in a folder, with its library."""
    ignored = shutil.ignore_patterns(
        ".*", "__pycache__", "tests", "benchmarks", "docs", "examples", "build", "*.egg-info"
    )
    shutil.copytree(ROOT, folder / "maskwright", ignore=ignored, symlinks=True)
    vocabulary = mw.Vocabulary.from_bytes([b"", *(bytes([byte]) for byte in range(256))], eos=0)
    arrays = mw.compile_regex("[^x]*", vocabulary).to_table().arrays
    assert arrays.bases.masks.size
    (folder / "arrays.pickle").write_bytes(pickle.dumps((arrays, vocabulary.size)))
    return folder / "maskwright"


def used(folder: Path, **more: str) -> subprocess.CompletedProcess[str]:
    environment = {name: text for name, text in os.environ.items() if name != "MASKWRIGHT_JIT"}
    environment |= {"PYTHONPATH": str(folder), "MASKWRIGHT_CACHE": str(folder / "cache"), **more}
    return subprocess.run([sys.executable, "-c", USE], env=environment, cwd=folder, capture_output=True, text=True)


@ahead
@pytest.mark.long
def test_a_library_of_other_sources_is_not_used(tmp_path):
    """After a change numba compiles kernels anew, or it is an error; the caller of what changed has not changed."""
    package = copied(tmp_path)
    assert used(tmp_path).stdout.split() == ["0", "compiled"]
    bits = package / "kernels" / "arrays.py"
    text = bits.read_text()
    assert text.count("!= 0") == 1
    bits.write_text(text.replace("!= 0", "< 2"))
    fault, kind = used(tmp_path).stdout.split()
    assert fault != "0"
    assert kind == "kernels"
    refused = used(tmp_path, MASKWRIGHT_JIT="0")
    assert "no library of compiled kernels" in refused.stderr
    bits.write_text(text)
    assert used(tmp_path, MASKWRIGHT_JIT="0").stdout.split() == ["0", "compiled"]
    assert used(tmp_path, MASKWRIGHT_JIT="1").stdout.split() == ["0", "kernels"]
    assert "MASKWRIGHT_JIT is 'yes'" in used(tmp_path, MASKWRIGHT_JIT="yes").stderr


@ahead
@pytest.mark.long
def test_a_file_that_is_no_library_is_not_used(tmp_path):
    library = copied(tmp_path) / "kernels" / native.FILE_NAME
    library.write_bytes(b"something else")
    assert used(tmp_path).stdout.split() == ["0", "kernels"]


@ahead
@pytest.mark.long
def test_nothing_has_to_be_writable(tmp_path):
    copied(tmp_path)
    (tmp_path / "cache").write_text("")
    done = used(tmp_path, HOME="/nowhere", XDG_CACHE_HOME="")
    assert (done.stdout.split(), done.stderr) == (["0", "compiled"], "")
    named = used(tmp_path, MASKWRIGHT_CACHE="", XDG_CACHE_HOME="", HOME="")
    assert (named.stdout.split(), named.stderr) == (["0", "compiled"], "")
