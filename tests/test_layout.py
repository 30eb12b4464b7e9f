"""The package's shape: public names, what imports what, and that importing stays light."""

from __future__ import annotations

import ast
import inspect
import json
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path

import pytest

import maskwright as mw

ROOT = Path(mw.__file__).parent

LAYERS = (
    "errors",
    "depth",
    "kernels",
    "automata",
    "vocabulary",
    "table",
    "lazy",
    "compile/store",
    "compile/arguments",
    "compile/regex",
    "compile/bind",
    "compile/grammar",
    "compile/json_schema",
    "compile/schemas",
    "compile/tags",
    "compile",
    "compile/shards",
    "compile/catalogue",
    "compile/cache",
    "runtime/host",
    "runtime/device",
    "runtime/arena",
    "runtime/device/torch",
    "runtime/device/jax",
    "runtime",
    "runtime/decode",
    "runtime/integrations",
    "",
    "engines",
    "serve",
    "cli",
)
"""Folders, and single files, in the order in which they build on each other: each may import only what comes before."""

NEVER_OF_COMPILE = "runtime"
"""What reads tables knows nothing of how they are made."""

TO_COME = json.loads((Path(__file__).parent / "layout_to_come.json").read_text())
"""Where the package does not keep to its layout yet. These lists may only shrink: a name goes once it is mended."""

HEAVY = {
    "torch": {"runtime/device/torch", "runtime/integrations", "engines", "serve"},
    "triton": {"runtime/device/torch"},
    "transformers": {"runtime/integrations", "vocabulary/tokenizers.py", "serve"},
    "jax": {"runtime/device/jax"},
    "vllm": {"engines/vllm"},
    "sglang": {"engines/sglang"},
    "graphviz": {"cli/drawing.py"},
    "duckdb": {"compile/shards/duckdb_engine.py"},
    "pyspark": {"compile/shards/spark_engine.py"},
    "py4j": {"compile/shards/spark_engine.py"},
    "pyarrow": {
        *(f"compile/{name}" for name in ("shards", "sequences.py", "parquet.py", "columns.py", "token_names.py")),
        "table/item_ids.py",
        "cli",
    },
    "lark": {
        f"compile/grammar/{name}.py"
        for name in ("lark", "lark_attributes", "lark_definitions", "lark_parser", "lark_terminals")
    },
    "referencing": {"compile/json_schema/documents.py"},
    "idna": {"compile/json_schema/domain_names.py"},
    "jsonschema_specifications": {"compile/json_schema/documents.py"},
    "pydantic": {"serve"},
    "fastapi": {"serve"},
    "starlette": {"serve"},
    "uvicorn": {"serve"},
    "prometheus_client": {"serve"},
    "sklearn": set(),
    "matplotlib": set(),
}
"""Optional dependencies, and the only places that may import them."""


def sources() -> list[Path]:
    """Return the files of the package."""
    apart = {"tests", "benchmarks", "examples", "docs", "build", "dist"}
    tops = [
        p for p in sorted(ROOT.iterdir()) if p.is_dir() and p.name not in apart and not p.name.startswith((".", "_"))
    ]
    found = [path for top in tops for path in sorted(top.rglob("*.py"))]
    return [path for path in (*sorted(ROOT.glob("*.py")), *found) if not path.is_symlink()]


def named(path: Path) -> str:
    """Return the dotted name of a file within the package: "" of its own `__init__.py`."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def imports(path: Path, *, at_once: bool = False) -> list[str]:
    """Return what a file imports, as absolute names; at_once: without what functions and type checkers import."""
    package = ["maskwright", *path.relative_to(ROOT).parent.parts]
    found = []
    tree = parsed(path)
    for node in tree.body if at_once else ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            if module.split(".")[0] == "maskwright":
                found += [f"{module}.{alias.name}" for alias in node.names]
            else:
                found.append(module)
    return found


def module_of(name: str) -> str | None:
    """Return the module of the package that an imported name is in, None of other packages."""
    first, *rest = name.split(".")
    if first != "maskwright":
        return None
    while rest and not (ROOT.joinpath(*rest).is_dir() or ROOT.joinpath(*rest).with_suffix(".py").exists()):
        rest.pop()
    return ".".join(rest)


def layer(module: str) -> int:
    """Return the place of a module among `LAYERS`: that of itself, or of its folder."""
    parts = module.split(".") if module else []
    for end in range(len(parts), 0, -1):
        if "/".join(parts[:end]) in LAYERS:
            return LAYERS.index("/".join(parts[:end]))
    return LAYERS.index("")


@pytest.mark.parametrize("path", sources(), ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_run_one_way(path):
    relative = path.relative_to(ROOT)
    own = layer(named(path))
    for name in imports(path):
        module = module_of(name)
        if module is not None and f"{relative} imports {module}" not in TO_COME["upward_imports"]:
            assert layer(module) <= own, f"{relative} imports {name}"
            if relative.parts[0] == NEVER_OF_COMPILE:
                assert module.split(".")[0] != "compile", f"{relative} imports {name}"
        first = name.split(".")[0]
        if first in HEAVY:
            homes = {str(relative), *map(str, relative.parents)}
            assert homes & HEAVY[first], f"{relative} imports {name}"


@pytest.mark.long
def test_no_modules_import_each_other():
    graph = {
        named(path): {m for name in imports(path) if (m := module_of(name)) is not None and m != named(path)}
        for path in sources()
    }
    circles = sorted(sorted(part) for part in strongly_connected(graph) if len(part) > 1)
    assert circles == TO_COME["circles"]


def strongly_connected(graph: dict[str, set[str]]) -> list[list[str]]:
    """Return the strongly connected parts of a graph, by Tarjan's algorithm."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    parts: list[list[str]] = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in graph.get(node, ()):
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            at = stack.index(node)
            parts.append(stack[at:])
            del stack[at:]

    for node in graph:
        if node not in index:
            visit(node)
    return parts


def test_importing_the_package_brings_in_no_optional_dependency():
    code = "import sys, maskwright, maskwright.cli.main, maskwright.runtime.numpy_ops; print(*sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {*HEAVY, "regex"} & set(out.stdout.split())


@pytest.mark.long
def test_only_a_reference_to_another_document_brings_in_the_libraries_for_it():
    code = (
        "import sys, maskwright as mw\n"
        "vocab = mw.Vocabulary.from_bytes([b'', *(bytes([b]) for b in range(256))], eos=0)\n"
        "for schema in ({'$ref': '#/$defs/a', '$defs': {'a': {'type': 'integer'}}}, {'$ref': 'x:y'}):\n"
        "    mw.compile_json_schema(schema, vocab, documents={'x:y': {'type': 'integer'}})\n"
        "    print(*({'referencing', 'jsonschema_specifications', 'pydantic', 'regex'} & set(sys.modules)))\n"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    first, second = (set(line.split()) for line in out.stdout.splitlines())
    assert first == set()
    assert second == {"referencing", "jsonschema_specifications"}


def test_the_public_names_are_these():
    assert set(mw.__all__) == {
        "Arena",
        "Budget",
        "Cache",
        "Capacity",
        "Catalogue",
        "LazyTable",
        "Matcher",
        "Source",
        "SpecialToken",
        "Tag",
        "TaggedText",
        "TransitionTable",
        "Vocabulary",
        "compile_choices",
        "compile_grammar",
        "compile_json_schema",
        "compile_regex",
        "compile_sequences",
        "compile_sids",
        "compile_structural_tag",
        "generate",
        "logits_processor",
        "sort_sids",
        "warm",
    }
    for name in mw.__all__:
        assert getattr(mw, name).__doc__


def test_every_backend_has_the_same_operations():
    pytest.importorskip("torch")
    pytest.importorskip("jax")
    from maskwright.runtime import jax_ops, numpy_ops, torch_ops

    def names(module):
        operations = set(module.__all__) - {"arrays"}
        assert all(callable(getattr(module, name)) for name in operations)
        return {name for name in operations if name.islower()}

    assert names(torch_ops) == names(jax_ops) == names(numpy_ops) - {"edges", "fewest_tokens", "moves"}


def test_every_backend_has_the_primitives_with_the_parameters_that_the_protocol_names():
    pytest.importorskip("torch")
    pytest.importorskip("jax")
    from maskwright.runtime.device import numpy_arrays
    from maskwright.runtime.device.backend import Backend
    from maskwright.runtime.device.jax import arrays as jax_arrays
    from maskwright.runtime.device.torch import arrays as torch_arrays

    for name, asked in vars(Backend).items():
        if name.startswith("_"):
            continue
        for backend in (numpy_arrays, torch_arrays, jax_arrays):
            found = getattr(backend, name)
            if found.__module__ == backend.__name__:  # otherwise a function of the library
                assert list(inspect.signature(found).parameters) == list(inspect.signature(asked).parameters)[1:], name


def test_all_packages_are_listed_for_the_wheel():
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    assert set(listed) == {".".join(["maskwright", *path.parent.relative_to(ROOT).parts]) for path in sources()}


def test_no_file_is_longer_than_600_lines():
    found = sorted(str(p.relative_to(ROOT)) for p in sources() if p.read_text().count("\n") > 600)
    assert found == TO_COME["long_files"]


@cache
def functions() -> list[tuple[str, ast.FunctionDef]]:
    return [
        (f"{path.relative_to(ROOT)}:{node.name}", node)
        for path in sources()
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]


@pytest.mark.long
def test_no_function_is_longer_than_100_lines():
    found = sorted(name for name, node in functions() if (node.end_lineno or 0) - node.lineno + 1 > 100)
    assert found == TO_COME["long_functions"]


@pytest.mark.long
def test_no_function_takes_more_than_12_parameters():
    found = sorted(
        name for name, node in functions() if len([*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]) > 12
    )
    assert found == TO_COME["wide_functions"]
