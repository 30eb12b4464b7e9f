"""The package's shape: public names, what imports what, and that importing stays light."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import maskwright as mw

ROOT = Path(mw.__file__).parent

# what each part may import of the others, besides errors
ALLOWED = {
    "errors": set(),
    "kernels": set(),
    "automata": {"automata", "kernels"},
    "bundle": {"kernels"},
    "matrix": {"kernels", "table"},
    "table": {"kernels"},
    "compile": {"automata", "bundle", "compile", "kernels", "matrix", "table"},
    "runtime": {"bundle", "kernels", "matrix", "runtime", "table"},
    "demo": {"demo", "table", "compile", "runtime", ""},
    "cli": {"automata", "compile", "demo", "drawing", "serve", "table", ""},
    "drawing": {"automata", "compile", "table"},
    "serve": {"automata", "compile", "runtime", "serve", "table", ""},
    "": {"automata", "compile", "matrix", "runtime", "table"},
}
HEAVY = {
    "torch": {"runtime/torch_ops.py", "runtime/triton_ops.py", "runtime/integrations", "demo", "serve"},
    "triton": {"runtime/triton_ops.py"},
    "transformers": {"runtime/integrations", "compile/tokenizers.py", "serve"},
    "jax": {"runtime/jax_ops.py"},
    "graphviz": {"drawing.py"},
    "pyarrow": {"compile/sequences.py", "cli.py"},
    "lark": {"compile/grammar/lark.py"},
    "referencing": {"compile/json_schema/documents.py"},
    "jsonschema_specifications": {"compile/json_schema/documents.py"},
    "pydantic": {"serve"},
    "fastapi": {"serve"},
    "starlette": {"serve"},
    "uvicorn": {"serve"},
    "prometheus_client": {"serve"},
    "sklearn": {"demo"},
    "matplotlib": {"demo"},
}


def sources() -> list[Path]:
    parts = (
        "automata",
        "compile",
        "compile/grammar",
        "compile/json_schema",
        "compile/regex",
        "kernels",
        "runtime",
        "runtime/decode",
    )
    folders = [ROOT, *(ROOT / name for name in (*parts, "runtime/integrations", "demo", "serve"))]
    return [path for folder in folders for path in sorted(folder.glob("*.py"))]


def imports(path: Path) -> list[str]:
    """Return what a file imports, as absolute names."""
    package = ["maskwright", *path.relative_to(ROOT).parent.parts]
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            found += [module] if node.module or not node.level else [f"{module}.{alias.name}" for alias in node.names]
    return found


@pytest.mark.parametrize("path", sources(), ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_run_one_way(path):
    relative = path.relative_to(ROOT)
    part = relative.parts[0].removesuffix(".py") if len(relative.parts) > 1 else relative.stem.replace("__init__", "")
    for name in imports(path):
        first, *rest = name.split(".")
        if first == "maskwright":
            is_part = rest and ((ROOT / rest[0]).is_dir() or (ROOT / f"{rest[0]}.py").exists())
            target = rest[0] if is_part else ""
            assert target in ALLOWED[part] | {"errors"}, f"{relative} imports {name}"
        if first in HEAVY:
            allowed = HEAVY[first]
            homes = {str(relative), *map(str, relative.parents)}
            assert homes & allowed, f"{relative} imports {name}"


def test_importing_the_package_brings_in_no_optional_dependency():
    code = "import sys, maskwright, maskwright.cli, maskwright.runtime.numpy_ops; print(*sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {*HEAVY, "regex"} & set(out.stdout.split())


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
        "ArenaError",
        "Budget",
        "BudgetError",
        "Cache",
        "Capacity",
        "ConstraintError",
        "DataError",
        "GrammarError",
        "LazyTable",
        "MaskwrightError",
        "Matcher",
        "MissingDependencyError",
        "NoTableError",
        "RegexError",
        "SchemaError",
        "SortedMatrix",
        "SpecialToken",
        "TableError",
        "TableFileError",
        "Tag",
        "TaggedText",
        "TransitionTable",
        "Vocabulary",
        "VocabularyMismatchError",
        "compile_choices",
        "compile_grammar",
        "compile_json_schema",
        "compile_regex",
        "compile_sequences",
        "compile_sids",
        "compile_structural_tag",
        "sort_sids",
    }
    for name in mw.__all__:
        assert getattr(mw, name).__doc__


def test_every_backend_has_the_same_operations():
    pytest.importorskip("torch")
    pytest.importorskip("jax")
    from maskwright.runtime import jax_ops, numpy_ops, torch_ops

    def names(module):
        tree = ast.parse(Path(module.__file__).read_text())
        return {n.name for n in tree.body if isinstance(n, ast.FunctionDef) and not n.name.startswith("_")}

    assert names(torch_ops) == names(jax_ops) == names(numpy_ops) - {"edges", "moves"}


def test_all_packages_are_listed_for_the_wheel():
    import tomllib

    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    found = {".".join(["maskwright", *path.parent.relative_to(ROOT).parts]) for path in sources()}
    assert set(listed) == found
