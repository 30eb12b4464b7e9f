"""Arguments and options that several commands share, each group gathered into one typed value."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import click

from ..automata.budget import Budget
from ..compile.constraint_source import Source
from ..compile.grammar.notations import Syntax
from ..compile.json_schema.approximations import ALL, ALLOWED, allowed_keywords
from ..compile.json_schema.layout import Whitespace
from ..kernels.limits import MOST_DEPTH
from . import drawing
from .input_files import name_of, read_bytes, read_grammar

Command = Callable[..., None]
Decorator = Callable[[Command], Command]

FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
FILE_OR_DASH = click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path)


class Named(click.ParamType[Any]):
    """A value with a name or without, as NAME=VALUE or VALUE: a pair of the name, or None, and the value.

    What stands before the first = is a name if it is an identifier that may have hyphens.
    """

    name = "[name=]value"

    def __init__(self, value: click.ParamType[Any]) -> None:
        self._value = value

    def get_metavar(self, param: click.Parameter, ctx: click.Context | None = None) -> str:
        """Return how the value is shown in help."""
        kind = "TEXT" if isinstance(self._value, click.types.StringParamType) else "PATH"
        return f"[NAME=]{kind}"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, tuple):
            return value
        name, sign, rest = value.partition("=")
        if not sign or not name.replace("-", "_").isidentifier() or rest.startswith("="):
            return None, self._value.convert(value, param, ctx)
        return name, self._value.convert(rest, param, ctx)


class TableGroup(click.Group):
    """`show FILE` is `show table FILE`, and `inspect FILE` is `inspect table FILE`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0] not in (*self.commands, *self.get_help_option_names(ctx)):
            args = ["table", *args]
        return super().parse_args(ctx, args)


def gathered(into: str, make: Callable[..., object], *options: Decorator) -> Decorator:
    """Add options to a command, which takes them as one argument, `into`: what `make` returns for their values.

    The parameters of `make` have the names of the options' values.
    """
    names = list(inspect.signature(make).parameters)

    def add(command: Command) -> Command:
        @functools.wraps(command)
        def call(**given: object) -> None:
            own = {name: given.pop(name) for name in names}
            command(**given, **{into: make(**own)})

        made: Command = call
        for option in reversed(options):
            made = option(made)
        return made

    return add


# ----------------------------------------------------------------------------------------------------------- output


def writable(ctx: click.Context, param: click.Parameter, path: Path) -> Path:
    """Refuse a folder that does not exist before any work begins."""
    if not path.parent.is_dir():
        raise click.UsageError(f"there is no folder {path.parent} to write {path.name} in")
    return path


def _drawable(ctx: click.Context, param: click.Parameter, path: Path) -> Path:
    """Refuse a kind of drawing that cannot be written."""
    if path.suffix not in drawing.FORMATS:
        raise click.UsageError(
            f"a drawing ends in {', '.join(drawing.FORMATS)}, not {path.suffix or 'nothing'!r}: {path}"
        )
    return writable(ctx, param, path)


def _output(callback: Callable[[click.Context, click.Parameter, Path], Path], help: str) -> Decorator:
    kind = click.Path(dir_okay=False, path_type=Path)
    return click.option("-o", "--output", type=kind, required=True, callback=callback, help=help)


table_output = _output(writable, "File to write the table to.")
catalogue_output = _output(writable, "File to write the catalogue to.")
drawing_output = _output(_drawable, "File to write the drawing to; its ending says in which format.")
max_states = click.option(
    "--max-states", type=click.IntRange(min=1), default=200, show_default=True, help="Most states to draw."
)


# ------------------------------------------------------------------------------------------------------ constraints


@dataclass(frozen=True)
class Pattern:
    """A regular expression and its flags."""

    pattern: str
    flags: str


pattern = gathered(
    "regex",
    Pattern,
    click.argument("pattern"),
    click.option("--flags", default="", help='Letters out of "aimsx", as in (?aimsx). The flag u changes nothing.'),
)

constraint_file = click.argument("file", type=FILE_OR_DASH)


def depth(help: str) -> Decorator:
    """Return the option of how many calls may be open."""
    return click.option("--depth", type=click.IntRange(1, MOST_DEPTH), default=64, show_default=True, help=help)


@dataclass(frozen=True)
class GrammarFile:
    """A grammar in a file, its notation, the rule it begins with, and the depth of its table."""

    file: Path
    syntax: Syntax | None
    start: str | None
    depth: int

    @property
    def name(self) -> str:
        """How messages call the file."""
        return name_of(self.file)

    def read(self) -> Source:
        """Return what is to be compiled. Raises DataError, UsageError."""
        text, syntax = read_grammar(self.file, self.syntax)
        return Source.grammar(text, start=self.start, syntax=syntax, depth=self.depth)


grammar_file = gathered(
    "grammar",
    GrammarFile,
    click.argument("file", type=FILE_OR_DASH),
    click.option(
        "--syntax",
        type=click.Choice(get_args(Syntax)),
        help="Notation of the grammar. Without it, the ending of FILE says the notation.",
    ),
    click.option(
        "--start", metavar="NAME", help='The rule that a text begins with: "start" in Lark\'s notation, else "root".'
    ),
    depth("Most calls that may be open inside one another, in a table with calls."),
)


def separators(ctx: click.Context, param: click.Parameter, given: tuple[str, str] | None) -> tuple[str, str] | None:
    """Refuse separators that JSON does not allow."""
    if given is not None and [text.strip(" \t\n\r") for text in given] != [",", ":"]:
        raise click.UsageError(f"--separators must be a comma and a colon with white space around, not {given!r}")
    return given


whitespace, server_whitespace = (
    click.option(
        "--whitespace",
        type=click.Choice(get_args(Whitespace)),
        default=default,
        show_default=True,
        help='White space of the JSON: "flexible" allows all that json.dumps writes in any indentation, "spaced" what '
        'it writes without one, "compact" none.',
    )
    for default in ("flexible", "spaced")
)
separator_pair = click.option(
    "--separators",
    nargs=2,
    callback=separators,
    metavar="COMMA COLON",
    help="The exact text between items and after keys, such as ', ' ': ', in place of --whitespace.",
)


allow = click.option(
    "--allow",
    multiple=True,
    type=click.Choice([*sorted(ALLOWED), ALL]),
    help="A keyword to leave unenforced where it cannot be enforced exactly, or all. May be given several times.",
)


def allowed(given: tuple[str, ...]) -> tuple[str, ...]:
    """Return the keywords that --allow names, ascending."""
    return allowed_keywords(ALL if ALL in given else given)


@dataclass(frozen=True)
class JsonForm:
    """How JSON texts are written, and what their schemas may leave unenforced or refer to."""

    whitespace: Whitespace
    separators: tuple[str, str] | None
    ascii: bool
    allow: tuple[str, ...]
    documents: tuple[tuple[str, Path], ...]
    any_order: bool
    depth: int

    def read(self) -> dict[str, Any]:
        """Return the arguments of `compile_json_schema`, with the schemas of --document."""
        return {
            "whitespace": self.separators or self.whitespace, "ascii": self.ascii, "allow": allowed(self.allow),
            "documents": {uri: read_bytes(file) for uri, file in self.documents}, "any_order": self.any_order,
            "depth": self.depth,
        }  # fmt: skip


json_form = gathered(
    "form",
    JsonForm,
    whitespace,
    separator_pair,
    click.option("--ascii", is_flag=True, help="Write characters outside ASCII as escapes."),
    allow,
    click.option(
        "--document",
        "documents",
        nargs=2,
        multiple=True,
        type=(str, FILE),
        metavar="URI FILE",
        help='A schema that "$ref" may name by its URI. Nothing is fetched.',
    ),
    click.option(
        "--any-order",
        is_flag=True,
        help="Let the members of objects come in any order. The table then has a state for each set of keys.",
    ),
    depth("Most objects and arrays of a recursive schema that may be open inside one another."),
)


# ---------------------------------------------------------------------------------------------------------- budgets


def budget_from(usual: Budget) -> Decorator:
    """Return the options of a budget, which has the usual limits unless a user sets others."""
    return gathered(
        "budget",
        Budget,
        *(
            click.option(
                f"--budget-{name}", name, type=kind, default=getattr(usual, name), show_default=True, help=help
            )
            for name, kind, help in (
                ("states", click.IntRange(min=1), "Most states of an automaton."),
                ("seconds", click.FloatRange(min=0), "Most seconds of a compilation."),
                ("bytes", click.IntRange(min=1), "Most bytes of the arrays of one step."),
            )
        ),
    )


budget = budget_from(Budget())
