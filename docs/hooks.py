"""What the documentation site takes from the code: tables of options, keywords, arrays and fields, and the sources.

MkDocs calls the functions named `on_...`. A page asks for a table with a comment, `<!-- generated: NAME -->`, or
`<!-- inline: NAME -->` within a line, where NAME is a key of `TABLES`. Links to files of `examples/` and
`benchmarks/results/` lead to copies on the site.
"""

from __future__ import annotations

import ast
import inspect
import re
import shutil
import sys
import tempfile
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click

from maskwright.cli.main import main as command_line
from maskwright.compile.json_schema.approximations import ALLOWED
from maskwright.compile.json_schema.dialects import DIALECTS
from maskwright.compile.json_schema.formats import INEXACT, KNOWN
from maskwright.compile.json_schema.keywords import NARROWER
from maskwright.table.groups import GROUPS, SPECS

ROOT = Path(__file__).resolve().parent.parent
RESULTS, EXAMPLES = ROOT / "benchmarks" / "results", ROOT / "examples"
_OUTSIDE = re.compile(r"\((?:\.\./)+(benchmarks/results|examples)/([^)\s]+)\)")
_MARK = re.compile(r"<!-- (?:generated|inline): (\w+) -->")
WIDE = {"examples": {"hide": ["toc"]}, "results": {"hide": ["toc", "navigation"]}}
"""Folders whose lines of code or tables are too wide to stand beside the columns of links."""


# ------------------------------------------------------------------------------------------------- events of MkDocs


def on_startup(**_: Any) -> None:
    """Make the sources of the package, and nothing else of the checkout, what mkdocstrings reads."""
    folder = Path(tempfile.mkdtemp(prefix="maskwright-docs-"))
    (folder / "maskwright").mkdir()
    for inside in packages():
        (folder / "maskwright" / inside).mkdir(exist_ok=True, parents=True)
        for source in (ROOT / inside).glob("*.py"):
            shutil.copy(source, folder / "maskwright" / inside)
    sys.path.insert(0, str(folder))
    _folders.append(folder)


def on_shutdown(**_: Any) -> None:
    """Remove the copy of the sources."""
    for folder in _folders:
        sys.path.remove(str(folder))
        shutil.rmtree(folder)
    _folders.clear()


_folders: list[Path] = []


def on_files(files: Any, config: Any) -> Any:
    """Add the examples, and what benchmarks measured."""
    from mkdocs.structure.files import File

    for path in sorted(EXAMPLES.glob("*.py")):
        files.append(File.generated(config, f"examples/{path.stem}.md", content=example_page(path)))
    for path in sorted(RESULTS.iterdir()):
        if path.suffix in (".md", ".png"):
            files.append(File.generated(config, f"results/{path.name}", abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Put tables where a page asks for them, and lead links to files outside `docs/` to their copies."""
    page.meta.update(WIDE.get(page.file.src_uri.split("/")[0], {}))
    return relinked(filled(markdown), page.file.src_uri.count("/"))


# ------------------------------------------------------------------------------------------------------------ pages


def filled(markdown: str) -> str:
    """Return a page with its tables. Raises KeyError for one that there is not."""
    return _MARK.sub(lambda found: TABLES[found[1]](), markdown)


def relinked(markdown: str, depth: int) -> str:
    """Return a page, so many folders deep, whose links outside `docs/` lead to pages of the site."""

    def link(found: re.Match[str]) -> str:
        folder = "results" if found[1] == "benchmarks/results" else "examples"
        return f"({'../' * depth}{folder}/{re.sub('[.]py$', '.md', found[2])})"

    return _OUTSIDE.sub(link, markdown)


def example_page(path: Path) -> str:
    """Return the page of one example: its source."""
    return f"# {path.name}\n\n```python\n{path.read_text()}```\n"


def table(head: tuple[str, ...], rows: Iterator[tuple[str, ...]] | list[tuple[str, ...]]) -> str:
    """Return a table of Markdown."""
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)


# ----------------------------------------------------------------------------------------------------------- tables


def commands(command: click.Command = command_line, path: str = "maskwright", level: int = 2) -> str:
    """Return every command of the command line, with its help and its options."""
    context = click.Context(command, info_name=path)
    parts = [] if path == "maskwright" else [f"{'#' * level} `{path}`"]
    parts.append(re.sub(r"(?<!\n)\n(?!\n)", " ", inspect.cleandoc(command.help or "")))
    if not isinstance(command, click.Group):
        parts.append(f"    {path} {' '.join(command.collect_usage_pieces(context))}")
        options = [each for each in command.params if isinstance(each, click.Option)]
        parts.append(table(("option", "meaning"), [_option(each, context) for each in options]))
    else:
        for name in sorted(command.commands):
            inner = f"{path} {name}"
            parts.append(commands(command.commands[name], inner, level if path == "maskwright" else level + 1))
    return "\n\n".join(part for part in parts if part)


def _option(option: click.Option, context: click.Context) -> tuple[str, str]:
    record = option.get_help_record(context)
    assert record is not None, "no option of ours is hidden"
    return f"`{record[0]}`", record[1].replace("<", "&lt;") or " "


def arrays() -> str:
    """Return the arrays of a table, by group."""
    parts = []
    for group, kind in GROUPS.items():
        parts += [f"### `{group}`", " ".join((kind.__doc__ or "").split())]
        parts.append(
            table(
                ("array", "element type", "shape", "meaning"),
                [
                    (f"`{name}`", " or ".join(map(str, spec.kinds)), f"({', '.join(spec.shape)})",
                     spec.meaning + ("; may be empty" if spec.may_be_empty else ""))
                    for name, spec in SPECS.items() if name.startswith(f"{group}.")
                ],
            )
        )  # fmt: skip
    return "\n\n".join(parts)


def drafts() -> str:
    """Return which draft has which keyword."""
    newest = max(DIALECTS)
    names = {2019: "2019-09", 2020: "2020-12"}
    rows = [
        (f"`{word}`", *("yes" if word in each.keywords else "" for each in DIALECTS.values()))
        for word in sorted(DIALECTS[newest].keywords)
    ]
    return table(("keyword", *(names.get(version, str(version)) for version in DIALECTS)), rows)


def formats() -> str:
    """Return every format, and whether it is exact."""
    rows = [(f"`{name}`", _exactness(name)) for name in sorted(KNOWN)]
    return table(("format", "what is enforced"), rows)


def _exactness(name: str) -> str:
    if name in INEXACT:
        return f"**narrower**: {INEXACT[name]}"
    return "exact"


def allowed() -> str:
    """Return the keywords that `allow` may name."""
    return ", ".join(f"`{word}`" for word in sorted(ALLOWED))


def narrower() -> str:
    """Return the keywords under which some valid texts are refused, with the reason."""
    return table(("keyword", "which valid texts are refused"), [(f"`{word}`", why) for word, why in NARROWER.items()])


def files() -> str:
    """Return every file of the package, with the first sentence of its docstring."""
    parts = []
    for package in packages():
        sources = sorted((ROOT / package).glob("*.py"))
        rows = [(f"`{path.name}`", first_sentence(path)) for path in sources if first_sentence(path)]
        parts += [f"### `{package or '.'}/`", table(("file", "what it holds"), rows)]
    return "\n\n".join(parts)


def packages() -> list[str]:
    """Return the folders of the package, as pyproject.toml lists them: "" is the root."""
    names = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    return ["/".join(name.split(".")[1:]) for name in names]


def first_sentence(path: Path) -> str:
    """Return the first paragraph of a module's docstring, "" if it has none."""
    text = ast.get_docstring(ast.parse(path.read_text())) or ""
    return " ".join(text.partition("\n\n")[0].split())


def chat_fields() -> str:
    """Return the fields of a request for a chat completion."""
    from maskwright.serve.requests import ChatRequest

    return _fields(ChatRequest)


def completion_fields() -> str:
    """Return the fields of a request for a completion."""
    from maskwright.serve.requests import CompletionRequest

    return _fields(CompletionRequest)


def retrieve_fields() -> str:
    """Return the fields of a request for items."""
    from maskwright.serve.items.requests import RetrieveRequest

    return _fields(RetrieveRequest)


def _fields(model: Any) -> str:
    schema = model.model_json_schema()
    required = set(schema.get("required", ()))
    return table(
        ("field", "type", ""),
        [
            (f"`{name}`", _spelled(field), "required" if name in required else field.get("description", ""))
            for name, field in schema["properties"].items()
        ],
    )


_BOUNDS = {
    "minimum": "at least", "exclusiveMinimum": "above", "maximum": "at most", "exclusiveMaximum": "below",
    "minItems": "items at least", "maxItems": "items at most", "minLength": "characters at least",
}  # fmt: skip


def _spelled(field: dict[str, Any]) -> str:
    """Return a field's type, as a schema has it, in words."""
    options = [each for each in field.get("anyOf", field.get("oneOf", [])) if each.get("type") != "null"]
    if options:
        return " or ".join(map(_spelled, options))
    if "$ref" in field:
        return f"`{field['$ref'].rpartition('/')[2]}`"
    if "const" in field:
        return f"`{field['const']!r}`"
    if "enum" in field:
        return ", ".join(f"`{each!r}`" for each in field["enum"])
    kind = field.get("type", "any value")
    if kind == "array":
        kind = f"array of {_spelled(field['items'])}"
    bounds = [f"{words} {field[key]}" for key, words in _BOUNDS.items() if key in field]
    return ", ".join([kind, *bounds])


TABLES: dict[str, Callable[[], str]] = {
    "commands": commands,
    "arrays": arrays,
    "drafts": drafts,
    "formats": formats,
    "allowed": allowed,
    "narrower": narrower,
    "files": files,
    "chat_fields": chat_fields,
    "completion_fields": completion_fields,
    "retrieve_fields": retrieve_fields,
}
"""What a page may ask for, by name."""
