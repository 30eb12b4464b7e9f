"""Which releases of the engines are known, by the code of theirs that maskwright replaces or builds on.

`releases.json` has this code by engine and part: functions with their parameters, and classes. Beside each are hashes
of its syntax tree and the releases with that tree. To see what a new release changed:

    python -m maskwright.engines.releases vLLM 0.34.0 path/to/new.whl --old path/to/old.whl

With `--add` the release is known from then on.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import hashlib
import importlib
import inspect
import json
import logging
import re
import textwrap
import zipfile
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import TypeAlias

from ..errors import MissingDependencyError
from .options import VARIABLE, options_of

Table: TypeAlias = dict[str, dict[str, dict[str, dict[str, str]]]]
"""Releases, with a blank between them, by engine, part, code and hash."""

FILE = Path(__file__).with_name("releases.json")
_UNSEEN = (
    "type_params",
    "type_comment",
    "kind",
    "annotation",
    "returns",
    "ctx",
)  # what does not run, or is new in 3.12
_log = logging.getLogger(__name__)


@cache
def table() -> Table:
    """Return what is known."""
    found: Table = json.loads(FILE.read_text())
    return found


def known_releases(engine: str, part: str | None = None) -> list[str]:
    """Return the releases of an engine that are known, or those of them that have a part, the oldest first."""
    parts = table()[engine].values() if part is None else [table()[engine][part]]
    return _ascending(" ".join(each for code in parts for hashes in code.values() for each in hashes.values()).split())


def _ascending(releases: Iterable[str]) -> list[str]:
    return sorted(set(releases), key=lambda release: [*map(int, release.split("."))])


def check(engine: str, found: str, part: str, instead: str) -> None:
    """Raise MissingDependencyError unless a part of an engine is as in a known release, or the operator takes others.

    found: the engine's version; a local part, as in "+cpu", is ignored. instead: how to do without maskwright. A part
    that the operator's option "untested" lets pass is logged once.
    """
    release, known = found.partition("+")[0], known_releases(engine)
    unlike = []
    for code, hashes in table()[engine][part].items():
        where, asked = place_of(code)
        thing = code_at(where)
        takes = None if thing is None else _parameters(thing)
        if thing is None or not _fits(takes, asked):
            why = "is not" if thing is None else f"takes {_shown(takes)} and not {_shown(asked)}"
            raise MissingDependencyError(
                f"{where} {why} in {engine} {found}, so maskwright cannot serve {part} there: install {engine} "
                f"{known[0]} to {known[-1]}, or {instead}"
            )
        if release not in hashes.get(digest(source_of(thing)), "").split():
            unlike.append((where, hashes))
    if not unlike:
        return
    new = [where for where, hashes in unlike if digest(source_of(code_at(where))) not in hashes]
    told = f"maskwright was tested with {engine} {known[0]} to {known[-1]}, and this is {found}"
    told += f", in which {' and '.join(new)} differ" if new else ", whose code that maskwright builds on is the same"
    if not options_of().untested:
        raise MissingDependencyError(
            f'{told}: install one of these, set "untested": true in {VARIABLE} to use {part} all the same, or {instead}'
        )
    warn(f"{told}: {part} may not work as they should")


@cache
def warn(told: str) -> None:
    _log.warning(told)


# ---------------------------------------------------------------------------------------------- of code that runs


def place_of(code: str) -> tuple[str, tuple[str, ...] | None]:
    """Return where code is, and the parameters that it takes: None for a class; "..." stands for any more."""
    where, is_function, takes = code.partition("(")
    return where, tuple(re.findall(r"\w+|\.{3}", takes)) if is_function else None


def _fits(takes: tuple[str, ...] | None, asked: tuple[str, ...] | None) -> bool:
    """Return whether code takes the parameters that it should."""
    if asked is None or takes is None or asked[-1:] != ("...",):
        return asked is None or takes == asked
    return takes[: len(asked) - 1] == asked[:-1]


def code_at(where: str) -> object:
    """Return what is there in the engine that is installed; None where nothing is."""
    module, _, names = where.partition(":")
    try:
        thing: object = importlib.import_module(module)
    except ImportError:
        return None
    for name in names.split("."):
        thing = getattr(thing, name, None)
    return thing


def _parameters(thing: object) -> tuple[str, ...]:
    return tuple(inspect.signature(thing).parameters) if callable(thing) else ()


def _shown(takes: tuple[str, ...] | None) -> str:
    return f"({', '.join(takes or ())})"


def source_of(thing: object) -> str:
    """Return the source of a function or class; "" where there is none, as of compiled code."""
    try:
        return textwrap.dedent(inspect.getsource(thing))  # type: ignore[arg-type]  # another object is a TypeError
    except (OSError, TypeError):
        return ""


# ----------------------------------------------------------------------------------------------------- of source


def digest(source: str) -> str:
    r"""Return a hash of the syntax tree of code, without docstrings and annotations.

    It is the same in each version of Python.

    >>> digest("def f(a: int):\n    'Doc.'\n    return a") == digest("def f(a):  # the same\n  return (a)")
    True
    """
    return hashlib.sha256(repr(_plain(ast.parse(source))).encode()).hexdigest()[:12]


def _plain(node: object) -> object:
    if isinstance(node, list):
        return [_plain(each) for each in node]
    if not isinstance(node, ast.AST):
        return node
    fields = dict(ast.iter_fields(node))
    body = fields.get("body")
    if isinstance(body, list) and body and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
        fields["body"] = body[1:]
    seen = {name: _plain(value) for name, value in fields.items() if name not in _UNSEEN}
    return type(node).__name__, [(name, value) for name, value in sorted(seen.items()) if value not in (None, [])]


def source_in(place: Path, where: str) -> str | None:
    """Return the source of code in a wheel, or in a folder of packages; None where it is not."""
    module, _, names = where.partition(":")
    path = module.replace(".", "/")
    text = _text(place, f"{path}.py") or _text(place, f"{path}/__init__.py")
    scope: ast.AST | None = ast.parse(text or "")
    for name in names.split("."):
        defined = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
        members = getattr(scope, "body", [])
        scope = next((each for each in members if isinstance(each, defined) and each.name == name), None)
    if not isinstance(scope, defined):
        return None
    first = min(each.lineno for each in (scope, *scope.decorator_list))
    return textwrap.dedent("".join((text or "").splitlines(keepends=True)[first - 1 : scope.end_lineno]))


def _text(place: Path, path: str) -> str | None:
    if place.is_dir():
        return (place / path).read_text() if (place / path).is_file() else None
    with zipfile.ZipFile(place) as wheel:
        return wheel.read(path).decode() if path in wheel.namelist() else None


def changes(engine: str, release: str, new: Path, old: Path | None = None) -> Iterator[str]:
    """Yield each change of the code that maskwright builds on, with its difference from an old release if given."""
    for part, codes in table()[engine].items():
        for code, hashes in codes.items():
            where, asked = place_of(code)
            source = source_in(new, where)
            if source is None:
                yield f"{part}: {where} is not in {release}"
                continue
            tree = ast.parse(source).body[0]
            takes = None
            if isinstance(tree, (ast.FunctionDef, ast.AsyncFunctionDef)):
                takes = tuple(each.arg for each in (*tree.args.posonlyargs, *tree.args.args, *tree.args.kwonlyargs))
            if not _fits(takes, asked):
                yield f"{part}: {where} takes {_shown(takes)} and not {_shown(asked)} in {release}"
            if digest(source) not in hashes:
                yield f"{part}: {where} differs in {release}"
                before = None if old is None else source_in(old, where)
                if before is not None:
                    lines = (before.splitlines(), source.splitlines())
                    yield "\n".join(difflib.unified_diff(*lines, "old", release, lineterm=""))


def add(engine: str, release: str, new: Path) -> None:
    """Make a release known by its source."""
    for codes in table()[engine].values():
        for code, hashes in codes.items():
            source = source_in(new, place_of(code)[0])
            if source is not None:
                hashes[digest(source)] = " ".join(_ascending([*hashes.get(digest(source), "").split(), release]))
    FILE.write_text(json.dumps(table(), indent=1) + "\n")


def main() -> None:
    """Print what a release changed; see the module."""
    parser = argparse.ArgumentParser(prog="python -m maskwright.engines.releases", description=main.__doc__)
    parser.add_argument("engine", choices=sorted(table()))
    parser.add_argument("release")
    parser.add_argument("new", type=Path, help="its wheel, or the folder that its package is in")
    parser.add_argument("--old", type=Path, help="the same of an older release, to print differences")
    parser.add_argument("--add", action="store_true", help="make the release known")
    given = parser.parse_args()
    for line in changes(given.engine, given.release, given.new, given.old):
        print(line)
    if given.add:
        add(given.engine, given.release, given.new)


if __name__ == "__main__":
    main()
