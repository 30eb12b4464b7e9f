"""Docs, docstrings, comments and messages name only what there is: files, names in them, extras, targets, commands."""

from __future__ import annotations

import ast
import fnmatch
import io
import re
import tokenize
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import click
import pytest

from maskwright.cli.main import main as command_line
from tests.docs.pages import PAGES, ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
BESIDE = {"benchmarks", "build", "dist", "docs", "examples", "tests"}
PACKAGE = [
    path for top in sorted(ROOT.iterdir())
    if top.suffix == ".py" or (top.is_dir() and top.name not in BESIDE and not top.name.startswith((".", "_")))
    for path in ([top] if top.is_file() else sorted(top.rglob("*.py"))) if not path.is_symlink()
]  # fmt: skip
READMES = [path for path in ROOT.glob("*/**/README.md") if not path.relative_to(ROOT).parts[0].startswith(".")]
TEXTS = [*dict.fromkeys([*PAGES, *READMES, ROOT / "RELEASE.md", ROOT / "SECURITY.md", ROOT / "Makefile"]), *PACKAGE]

FILE = re.compile(r"`((?:[\w.-]+/)*[\w-]+\.(?:py|md|txt|toml|json|yml|c|h))`")
BARE = re.compile(r"(?<![\w./`])((?:\w+/)+\w+\.py)\b")
SUFFIXES = {".py", ".md", ".txt", ".toml", ".json", ".png", ".yml", ".c", ".h"}
FOLDER = re.compile(r"`((?:[\w-]+/)+)`")
IN_A_FILE = re.compile(r"`([\w.*]+)(?:\([^`]*\))?`,? (?:of|in) (?:the file )?`((?:\w+/)*\w+\.py)`")
DOTTED = re.compile(r"`((?:maskwright\.)?[a-z_]\w*(?:\.\w+)+)(?:\(\))?`")
EXTRA = re.compile(r"maskwright\[([\w,-]+)\]")
TARGET = re.compile(r"`make ([a-z][\w-]*)|^\s+(?:- run: |\$ )?make ([a-z][\w-]*)$", re.MULTILINE)
COMMAND = re.compile(r"`maskwright ((?:[^`\n\\]|\\\n)+)`")
FENCE = re.compile(r"^( *)```(\w*).*?\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
SHELLS = {"bash", "console", "sh", "shell"}
LINE = re.compile(r"^ *(?:\$ )?maskwright ((?:[^\n\\]|\\\n)+)$", re.MULTILINE)


def shown(path: Path) -> str:
    return str(path.relative_to(ROOT))


@cache
def prose(path: Path) -> str:
    """Return what a file says to people: of code its comments and literal texts."""
    text = path.read_text()
    if path.suffix != ".py":
        return text
    comments = [
        token.string for token in tokenize.generate_tokens(io.StringIO(text).readline) if token.type == tokenize.COMMENT
    ]
    literals = [
        node.value
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    return "\n".join([*comments, *literals])


@cache
def files() -> list[str]:
    """Return all files of the project, by their paths."""
    found = []
    for top in ROOT.iterdir():
        found.append(top.name)
        if top.is_dir() and (not top.name.startswith((".", "_")) or top.name in (".ci", ".github")):
            found += [shown(path) for path in top.rglob("*") if "__pycache__" not in path.parts]
    return found


def places(name: str) -> list[Path]:
    """Return the files or folders that a path may mean, from the root or with folders before it left out."""
    name = re.sub(r"^(\.\./)+", "", name.rstrip("/"))
    return [ROOT / each for each in files() if each == name or each.endswith(f"/{name}")]


@cache
def defined(path: Path) -> frozenset[str]:
    """Return the names that a file of Python defines anywhere, and those that it imports."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            found.add(node.attr)
        elif isinstance(node, ast.arg):
            found.add(node.arg)
    return frozenset(found) | imported(path)


@cache
def imported(path: Path) -> frozenset[str]:
    """Return the names that a file of Python imports."""
    found = (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.alias))
    return frozenset((node.asname or node.name).rpartition(".")[2] for node in found)


@cache
def everywhere() -> frozenset[str]:
    """Return the names that the package, its tests or its benchmarks define."""
    return frozenset().union(*(defined(ROOT / each) for each in files() if each.endswith(".py")))


def dead(path: Path) -> Iterator[str]:
    """Return what the prose of a file names and is not there."""
    text = prose(path)
    for name in FILE.findall(text) + BARE.findall(text) + FOLDER.findall(text):
        if not places(name) and name not in ELSEWHERE:
            yield name
    for name, file in IN_A_FILE.findall(text):
        found = places(file)
        last = name.rpartition(".")[2]
        if found and not any(fnmatch.filter(defined(each) - imported(each), last) for each in found):
            yield f"{name} in {file}"
    for name in DOTTED.findall(text):
        if (last := missing(name)) and name not in ELSEWHERE:
            yield f"{name}: {last}"
    for extras in EXTRA.findall(text):
        yield from (f"maskwright[{each}]" for each in extras.split(",") if each not in extras_of_the_project())
    for target in filter(None, (name for found in TARGET.findall(text) for name in found)):
        if target not in targets():
            yield f"make {target}"
    blocks = FENCE.findall(text) if path.suffix == ".md" else []
    fenced = [line for _, language, block in blocks if language in SHELLS for line in LINE.findall(block)]
    for line in [*COMMAND.findall(text), *fenced]:
        if f"maskwright {line}" not in ELSEWHERE:
            yield from unknown_of_command(line)


def missing(name: str) -> str | None:
    """Return the part of a dotted name of the project that is not there, None if all are or it is another project's."""
    first, *rest = name.removeprefix("maskwright.").split(".")
    if rest[-1:] and f".{rest[-1]}" in SUFFIXES:
        return None
    at = ROOT / first
    if at.is_dir() and (at / "__init__.py").exists() and first not in VARIABLES:
        while rest and (at / rest[0]).is_dir():
            at = at / rest.pop(0)
        at = at / f"{rest.pop(0)}.py" if rest and (at / f"{rest[0]}.py").is_file() else at / "__init__.py"
        if rest and rest[0] not in defined(at):
            return rest[0]
    elif first not in VARIABLES:
        return None
    return next((each for each in rest if each not in everywhere()), None)


@cache
def extras_of_the_project() -> frozenset[str]:
    return frozenset(PROJECT["project"]["optional-dependencies"])


@cache
def targets() -> frozenset[str]:
    return frozenset(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def unknown_of_command(line: str) -> Iterator[str]:
    """Return the command of a line if there is none of that name, or the options that it does not take."""
    words = re.split(r"[|#<>]|&&", line.replace("\\\n", " "))[0].split()
    command: click.Command = command_line
    while isinstance(command, click.Group) and words and re.fullmatch(r"[a-z][\w-]*", words[0]):
        name = words.pop(0)
        found = command.get_command(click.Context(command), name)
        if found is None:
            yield f"maskwright {line}: no command {name}"
            return
        command = found
    known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    if isinstance(command, click.Group):  # options of any of its commands
        for name in command.list_commands(click.Context(command)):
            of = command.get_command(click.Context(command), name)
            known |= {option for parameter in (of.params if of else ()) for option in parameter.opts}
    for word in words:
        option = re.match(r"--[a-z][\w-]*", word)
        if option and option[0] not in known | {"--help"}:
            yield f"maskwright {line}: no option {option[0]}"


VARIABLES = {"table", "vocabulary"}
"""Names of folders that are also those of values: their attributes are defined somewhere."""
ELSEWHERE = {
    "index/", "info/", "valid/", "test/",  # of datasets, and of what a user writes
    "demo.json", "demo.png", "manifest.json", "plan.json", "structured_outputs.json",
    "benchmarks/results/device-cuda.md", "device-tpu.md", "device-cpu.md",  # written on such a machine
    "maskwright is the backend of structured outputs",  # a line of a log
}  # fmt: skip
"""Files and folders of others, and what programs write."""


@pytest.mark.parametrize("path", TEXTS, ids=shown)
def test_what_is_named_is_there(path: Path):
    assert not list(dead(path))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("see `automata/no_such_file.py`", "automata/no_such_file.py"),
        ("in automata/no_such_file.py, which", "automata/no_such_file.py"),
        ("see `no_such_folder/`", "no_such_folder/"),
        ("every `no_such_*` in `text.py`", "no_such_* in text.py"),
        ("every `Budget*` in `text.py`", "Budget* in text.py"),  # which only imports it
        ("`kernel` of `kernels/compiled.py`, `lazy.pushdown.no_such_name`", "lazy.pushdown.no_such_name: no_such_name"),
        ("`table.no_such_attribute`", "table.no_such_attribute: no_such_attribute"),
        ("pip install 'maskwright[torch,hf]'", "maskwright[hf]"),
        ("`make no-such-target`", "make no-such-target"),
        ("`maskwright no-such`", "maskwright no-such: no command no-such"),
        (
            "```bash\nmaskwright serve model --no-such 1\n```\n",
            "maskwright serve model --no-such 1: no option",
        ),
        ("`maskwright compile regex '[a-z]+' \\\n  --no-such 1`", "--no-such"),
    ],
)
def test_what_is_not_there_is_found(text: str, found: str, tmp_path: Path):
    page = tmp_path / "page.md"
    page.write_text(text)
    (only,) = dead(page)
    assert found in only
