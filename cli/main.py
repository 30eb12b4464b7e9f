"""The command line: `maskwright build`, `compile`, `sample`, `show`, `inspect`, `demo` and `serve`."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, get_args

import click
import numpy as np
from rich.console import Console
from rich.table import Table

from .. import (
    Budget,
    Capacity,
    Vocabulary,
    __version__,
    compile_choices,
    compile_grammar,
    compile_json_schema,
    compile_regex,
    compile_sequences,
    compile_sids,
    compile_structural_tag,
)
from ..compile.grammar.notations import Syntax
from ..compile.json_schema.build import build as build_skeleton
from ..compile.json_schema.keywords import ALLOWED, formula
from ..compile.json_schema.request import wrong_pattern
from ..compile.json_schema.source import read as read_schema
from ..compile.regex.lower import to_dfa
from ..compile.regex.parse import parse
from ..compile.tags.reading import read_tags
from ..compile.tags.tagged_text import plain
from ..errors import (
    BudgetError,
    ConstraintError,
    DataError,
    GrammarError,
    MaskwrightError,
    MissingDependencyError,
    NoTableError,
    RegexError,
    SchemaError,
)
from ..kernels.limits import MOST_DEPTH, UNREACHABLE
from ..lazy.lazy_table import Compiled, LazyTable
from ..table.transition_table import TransitionTable
from . import drawing

_MOST_BASES = 20  # shown by `inspect`
_SAID = 120  # letters of what another package says of a tokenizer


class _Commands(click.Group):
    """Shows maskwright's own errors, and those of files, without a traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:  # of `| head`: click ends in silence
            raise
        except RegexError as error:  # it shows the pattern, where nothing is to be exchanged
            raise click.ClickException(str(error)) from None
        except (MaskwrightError, OSError) as error:
            raise click.ClickException(_with_options(str(error))) from None


def _with_options(message: str) -> str:
    """Return a message with options in place of arguments of Python's."""
    message = re.sub(r"budget=Budget\((\w+)=\.\.\.\)", r"--budget-\1", message)
    message = re.sub(r'allow=\["(\w+)"\]', r"--allow \1", message)
    message = re.sub(r'documents=\{"(.*)": \.\.\.\}', r"--document \1 FILE", message)
    message = message.replace("any_order=True takes far more than any_order=False", "--any-order takes far more")
    message = re.sub(r": a Matcher follows it[^.;]*", ": in Python a Matcher follows it", message)
    message = re.sub(r"^(eos|flags|size) must", r"--\1 must", message)
    return message.replace("leave out eos= if", "leave out --eos if").replace("(vocab_size=", "(--vocab-size ")


class _OfTable(click.Group):
    """`show FILE` is `show table FILE`, and `inspect FILE` is `inspect table FILE`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0] not in (*self.commands, *self.get_help_option_names(ctx)):
            args = ["table", *args]
        return super().parse_args(ctx, args)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__)
def main() -> None:
    """Compile what a model may write into one flat table."""


# -------------------------------------------------------------------------------------- arguments of several commands

_Command = Callable[..., None]
_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_FILE_OR_DASH = click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path)


def _writable(ctx: click.Context, param: click.Parameter, path: Path) -> Path:
    """Refuse a folder that is not there before anything is worked out."""
    if not path.parent.is_dir():
        raise click.UsageError(f"there is no folder {path.parent} to write {path.name} in")
    return path


def _drawable(ctx: click.Context, param: click.Parameter, path: Path) -> Path:
    if path.suffix not in drawing.FORMATS:
        raise click.UsageError(
            f"a drawing ends in {', '.join(drawing.FORMATS)}, not {path.suffix or 'nothing'!r}: {path}"
        )
    return _writable(ctx, param, path)


def _output(callback: Callable[..., Path], help: str) -> Callable[[_Command], _Command]:
    kind = click.Path(dir_okay=False, path_type=Path)
    return click.option("-o", "--output", type=kind, required=True, callback=callback, help=help)


def _tokenizer(required: bool) -> Callable[[_Command], _Command]:
    options = (
        click.option(
            "--tokenizer",
            type=click.Path(exists=True, path_type=Path),
            required=required,
            metavar="SOURCE",
            help="A tokenizer's folder, or a tokenizer.json, tekken.json, SentencePiece .model or tiktoken file.",
        ),
        click.option("--size", type=click.IntRange(min=1), help="Width of the model's logits, if beyond the tokens."),
        click.option("--eos", type=click.IntRange(min=0), help="Token that ends a text, if not the tokenizer's own."),
    )
    return _all(options)


def _pattern(command: _Command) -> _Command:
    options = (
        click.argument("pattern"),
        click.option("--flags", default="", help='Letters out of "aimsx", as in (?aimsx); u says nothing new.'),
    )
    return _all(options)(command)


def _choices(command: _Command) -> _Command:
    return click.argument("file", type=_FILE_OR_DASH)(command)


def _depth(help: str) -> Callable[[_Command], _Command]:
    return click.option("--depth", type=click.IntRange(1, MOST_DEPTH), default=64, show_default=True, help=help)


def _grammar(command: _Command) -> _Command:
    options = (
        click.argument("grammar", metavar="FILE", type=_FILE_OR_DASH),
        click.option(
            "--syntax", type=click.Choice(get_args(Syntax)), help="Its notation, if not the one that the file ends in."
        ),
        click.option(
            "--start", metavar="NAME", help="The rule to begin with; if not given, start in Lark's notation, else root."
        ),
        _depth("Most calls open inside one another in a table that has calls."),
    )
    return _all(options)(command)


def _separators(ctx: click.Context, param: click.Parameter, given: tuple[str, str] | None) -> tuple[str, str] | None:
    if given is not None and [text.strip(" \t\n\r") for text in given] != [",", ":"]:
        raise click.UsageError(f"--separators must be a comma and a colon with white space around, not {given!r}")
    return given


def _form(command: _Command) -> _Command:
    options = (
        click.option(
            "--whitespace",
            type=click.Choice(["flexible", "compact"]),
            default="flexible",
            show_default=True,
            help="What json.dumps writes in any indentation, or none.",
        ),
        click.option(
            "--separators",
            nargs=2,
            callback=_separators,
            metavar="COMMA COLON",
            help="What stands between items and after keys, such as ', ' ': ', in place of --whitespace.",
        ),
        click.option("--ascii", is_flag=True, help="Write characters outside ASCII as escapes."),
        click.option(
            "--allow",
            multiple=True,
            type=click.Choice(sorted(ALLOWED)),
            help="A keyword that need not be enforced where it cannot be exactly; may be given several times.",
        ),
        click.option(
            "--document",
            "documents",
            nargs=2,
            multiple=True,
            type=(str, _FILE),
            metavar="URI FILE",
            help='A schema that "$ref" may name by its URI; nothing is fetched.',
        ),
        click.option("--any-order", is_flag=True, help="Let members come in any order: a state for each set of keys."),
        _depth("Most recursive schemas open inside one another."),
    )
    return _all(options)(command)


def _budget(command: _Command) -> _Command:
    return _budget_from(Budget())(command)


def _budget_from(usual: Budget) -> Callable[[_Command], _Command]:
    options = [
        click.option(f"--budget-{name}", type=kind, default=getattr(usual, name), show_default=True, help=help)
        for name, kind, help in (
            ("states", click.IntRange(min=1), "Most states of an automaton."),
            ("seconds", click.FloatRange(min=0), "Most seconds."),
            ("bytes", click.IntRange(min=1), "Most bytes of a step's arrays."),
        )
    ]
    return _all(options)


def _tagged(command: _Command) -> _Command:
    return click.argument("tag", metavar="FILE", type=_FILE_OR_DASH)(_form(command))


def _all(options: Any) -> Callable[[_Command], _Command]:
    def add(command: _Command) -> _Command:
        for option in reversed(options):
            command = option(command)
        return command

    return add


_most_states = click.option(
    "--max-states", type=click.IntRange(min=1), default=200, show_default=True, help="Draw at most so many."
)


# ---------------------------------------------------------------------------------------------------------- commands


@main.command()
@click.argument("source", type=_FILE)
@click.option("--column", "columns", multiple=True, help="Column of integer lists; or one --column per token position.")
@click.option("--vocab-size", type=click.IntRange(min=1), required=True, help="Tokens lie in 0 .. N - 1.")
@click.option("--ragged", is_flag=True, help="Sequences differ in length.")
@click.option("--eos", type=click.IntRange(min=0), help="Token that a model writes to end a sequence.")
@_output(_writable, "Where the table is written.")
def build(source: Path, columns: tuple[str, ...], vocab_size: int, ragged: bool, eos: int | None, output: Path) -> None:
    """Compile the sequences in SOURCE (.parquet, .arrow, .feather or .npy) into a table."""
    began = time.perf_counter()
    ids = _read(source, columns)
    table = compile_sequences(ids, vocab_size=vocab_size, eos=eos) if ragged else compile_sids(ids, vocab_size, eos=eos)
    table.save(output)
    rows = table.trie.item_row.size
    click.echo(
        f"{output}: {rows:,} rows, {table.num_sequences:,} distinct, {table.nbytes / 1e6:,.1f} MB, "
        f"{time.perf_counter() - began:.2f} s"
    )


@main.group("compile")
def compile_() -> None:
    """Compile a constraint on text into a table for a tokenizer."""


@compile_.command("regex")
@_pattern
@_tokenizer(required=True)
@_budget
@_output(_writable, "Where the table is written.")
def compile_regex_(
    pattern: str, flags: str, tokenizer: Path, size: int | None, eos: int | None, output: Path, **limits: Any
) -> None:
    """Compile PATTERN, a regular expression as in Python's re, into a table of the texts that it matches as a whole."""
    parse(pattern, flags)  # reading a tokenizer takes seconds: a fault of the pattern is said before
    vocabulary = _vocabulary(tokenizer, size, eos)
    began = time.perf_counter()
    table = compile_regex(pattern, vocabulary, flags=flags, budget=_limits(limits))
    _save(table, output, began, tokenizer)


@compile_.command("choices")
@_choices
@_tokenizer(required=True)
@_budget
@_output(_writable, "Where the table is written.")
def compile_choices_(
    file: Path, tokenizer: Path, size: int | None, eos: int | None, output: Path, **limits: Any
) -> None:
    """Compile the lines of FILE, UTF-8 (- for standard input), into a table that allows exactly these texts."""
    choices = _read_choices(file)
    vocabulary = _vocabulary(tokenizer, size, eos)
    began = time.perf_counter()
    table = compile_choices(choices, vocabulary, budget=_limits(limits))
    _save(table, output, began, tokenizer)


@compile_.command("json-schema")
@click.argument("schema", metavar="FILE", type=_FILE_OR_DASH)
@_form
@_tokenizer(required=True)
@_budget
@_output(_writable, "Where the table is written.")
def compile_json_schema_(
    schema: Path, whitespace: str, separators: tuple[str, str] | None, ascii: bool, allow: tuple[str, ...],
    documents: tuple[tuple[str, Path], ...], any_order: bool, depth: int, tokenizer: Path, size: int | None,
    eos: int | None, output: Path, **limits: Any,
) -> None:  # fmt: skip
    """Compile the JSON Schema in FILE (- for standard input) into a table of the JSON texts that fit it."""
    text, known = _read_bytes(schema), {uri: path.read_bytes() for uri, path in documents}
    budget = _limits(limits)
    try:
        # reading a tokenizer takes seconds: what is wrong with the schema is said before
        meter = budget.begin()
        try:
            build_skeleton(formula(text, allow=frozenset(allow), documents=known, meter=meter), meter, any_order)
        except RegexError as error:
            raise wrong_pattern(error, read_schema(text)) from None
        vocabulary = _vocabulary(tokenizer, size, eos)
        began = time.perf_counter()
        table = compile_json_schema(
            text, vocabulary, whitespace=separators or whitespace, ascii=ascii, allow=allow, documents=known,
            any_order=any_order, depth=depth, lazy=False, budget=budget,
        )  # fmt: skip
    except SchemaError as error:
        said = str(error).removeprefix(f"{error.pointer or '/'}: ")
        # a document of the caller's is named by its URI
        where = error.pointer if "#" in error.pointer else f"{_name(schema)}{'#' * bool(error.pointer)}{error.pointer}"
        raise click.ClickException(_with_options(f"{where}: {said}")) from None
    _save(table, output, began, tokenizer)


@compile_.command("grammar")
@_grammar
@_tokenizer(required=True)
@_budget
@_output(_writable, "Where the table is written.")
def compile_grammar_(
    grammar: Path, syntax: Syntax | None, start: str | None, depth: int, tokenizer: Path, size: int | None,
    eos: int | None, output: Path, **limits: Any,
) -> None:  # fmt: skip
    """Compile the grammar in FILE, UTF-8 (- for standard input), in Lark's notation, GBNF or EBNF, into a table.

    A grammar that can only be read as it is, see `maskwright inspect grammar`, has no table that a file could hold.
    """
    text, syntax = _read_grammar(grammar, syntax)
    with _faults_of(grammar):
        # reading a tokenizer takes seconds: what is wrong with the grammar is said before
        try:
            compile_grammar(text, _single_bytes(), start=start, syntax=syntax, depth=depth, budget=_limits(limits))
        except (GrammarError, BudgetError):
            raise
        except ConstraintError:  # of a vocabulary that is not the tokenizer's
            pass
        vocabulary = _vocabulary(tokenizer, size, eos)
        began = time.perf_counter()
        table = compile_grammar(text, vocabulary, start=start, syntax=syntax, depth=depth, budget=_limits(limits))
        _save(table, output, began, tokenizer)


@compile_.command("tags")
@_tagged
@_tokenizer(required=True)
@_budget
@_output(_writable, "Where the table is written.")
def compile_tags_(tag: Path, tokenizer: Path, size: int | None, eos: int | None, output: Path, **options: Any) -> None:
    """Compile the structural tag in FILE, JSON (- for standard input), into a table of free text with such tags in it.

    Its options are those of the JSON in tags. Tags with a grammar in them that can only be read as it is, see
    `maskwright inspect tags`, have no table that a file could hold.
    """
    with _faults_of_tags(tag):
        make = _read_tags(tag, **options)  # before a tokenizer, which takes seconds to read
        vocabulary = _vocabulary(tokenizer, size, eos)
        began = time.perf_counter()
        table = make(vocabulary).to_table()
    _save(table, output, began, tokenizer)


def _read_tags(
    tag: Path, *, whitespace: str, separators: tuple[str, str] | None, ascii: bool, allow: tuple[str, ...],
    documents: tuple[tuple[str, Path], ...], any_order: bool, depth: int, **limits: Any,
) -> Callable[[Vocabulary], Compiled]:  # fmt: skip
    """Return what makes the table of a file of tags."""
    contents, budget = plain(_read_bytes(tag)), _limits(limits)
    known = {uri: path.read_bytes() for uri, path in documents}
    read_tags(contents, budget.begin())
    return lambda vocabulary: compile_structural_tag(
        contents, vocabulary, whitespace=separators or whitespace, ascii=ascii, allow=allow, documents=known,
        any_order=any_order, depth=depth, budget=budget,
    )  # fmt: skip


@main.group()
def sample() -> None:
    """Show random members of a constraint on text, each as likely as any other.

    One member a line; an empty one, or one with characters that do not print, is shown as a Python string.
    """


def _sampling(command: _Command) -> _Command:
    options = (
        click.option("-n", "--number", type=click.IntRange(min=0), default=10, show_default=True, help="How many."),
        click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True),
        click.option(
            "--max-bytes", type=click.IntRange(min=0), default=64, show_default=True, help="Longest member drawn."
        ),
    )
    return _all(options)(command)


@sample.command("regex")
@_pattern
@_sampling
@_budget
def sample_regex(pattern: str, flags: str, number: int, seed: int, max_bytes: int, **limits: Any) -> None:
    """Show random texts that PATTERN matches as a whole."""
    dfa = to_dfa(pattern, flags=flags, meter=_limits(limits).begin())
    shortest = dfa.shortest()
    if shortest is None:
        raise ConstraintError(f"the pattern matches nothing: {pattern!r}")
    _check_room(len(shortest), max_bytes)
    rng = np.random.default_rng(seed)
    for _ in range(number):
        _print_member(dfa.sample(rng, max_bytes).decode())


@sample.command("choices")
@_choices
@_sampling
def sample_choices(file: Path, number: int, seed: int, max_bytes: int) -> None:
    """Show random lines of FILE, UTF-8 (- for standard input); one that is there twice is no likelier."""
    choices = {choice: len(choice.encode()) for choice in _read_choices(file)}
    _check_room(min(choices.values()), max_bytes)
    short = [choice for choice, size in choices.items() if size <= max_bytes]
    for i in np.random.default_rng(seed).integers(len(short), size=number).tolist():
        _print_member(short[i])


def _check_room(shortest: int, max_bytes: int) -> None:
    if shortest > max_bytes:
        raise ConstraintError(
            f"no member has at most {max_bytes} bytes: the shortest has {shortest}; raise --max-bytes"
        )


def _print_member(member: str) -> None:
    click.echo(member if member and member.isprintable() else repr(member))


@main.group(cls=_OfTable)
def show() -> None:
    """Draw an automaton through Graphviz: show regex PATTERN, or show FILE for a compiled table.

    The output is .svg, .pdf, .png, or .dot for the graph itself; all but .dot need the program dot.
    """


@show.command("regex")
@_pattern
@_tokenizer(required=False)
@_budget
@_most_states
@_output(_drawable, "Where the drawing is written.")
def show_regex(
    pattern: str, flags: str, tokenizer: Path | None, size: int | None, eos: int | None, max_states: int, output: Path,
    **limits: Any,
) -> None:  # fmt: skip
    """Draw the smallest DFA, over bytes, of what PATTERN matches; with a tokenizer, the tokens each state allows."""
    budget = _limits(limits)
    dfa = to_dfa(pattern, flags=flags, meter=budget.begin())
    _check_few(dfa.num_states, max_states)
    vocabulary = _if_given(tokenizer, size, eos)
    allowed = None
    if vocabulary is not None:
        table = compile_regex(pattern, vocabulary, flags=flags, budget=budget)
        allowed = drawing.tokens_by_state(dfa, table, vocabulary)
    drawing.write(drawing.draw_dfa(dfa, allowed=allowed, title=pattern), output)
    click.echo(f"{output}: {dfa.num_states:,} states of the DFA")


@show.command("table")
@click.argument("table", metavar="FILE", type=_FILE)
@_tokenizer(required=False)
@_most_states
@_output(_drawable, "Where the drawing is written.")
def show_table(
    table: Path, tokenizer: Path | None, size: int | None, eos: int | None, max_states: int, output: Path
) -> None:
    """Draw a compiled table: states and edges with how many tokens they allow; with its tokenizer, what few spell."""
    loaded = TransitionTable.load(table)
    if loaded.is_nested:
        raise ConstraintError(
            f"{table} cannot be drawn: it has calls, as tables of JSON Schemas do, so that where a state leads depends "
            "on what is open around it; see `maskwright inspect`"
        )
    drawn = drawing.num_drawn(loaded)
    _check_few(drawn, max_states)
    vocabulary = _if_given(tokenizer, size, eos)
    drawing.write(drawing.draw_table(loaded, vocabulary=vocabulary, title=table.name), output)
    click.echo(f"{output}: {drawn:,} of {loaded.num_states:,} states, all but the one after EOS and the dead one")


def _check_few(drawn: int, most: int) -> None:
    if drawn > most:
        raise ConstraintError(
            f"{drawn:,} states to draw are more than a drawing can show clearly: make the constraint smaller, or raise "
            f"--max-states, now {most:,}"
        )


@main.group(cls=_OfTable)
def inspect() -> None:
    """Show what a constraint comes to: inspect FILE for a compiled table, inspect grammar FILE, inspect tags FILE."""


@inspect.command("table")
@click.argument("table", metavar="FILE", type=_FILE)
def inspect_table(table: Path) -> None:
    """Show what a table holds: states, edges, lengths, bytes by part; levels of sequences, bases of texts."""
    _show(TransitionTable.load(table), _console())


@inspect.command("grammar")
@_grammar
@_tokenizer(required=False)
@_budget
def inspect_grammar(
    grammar: Path, syntax: Syntax | None, start: str | None, depth: int, tokenizer: Path | None, size: int | None,
    eos: int | None, **limits: Any,
) -> None:  # fmt: skip
    """Show which way down the grammar in FILE takes, and its table; over single bytes if there is no tokenizer.

    A regular grammar is a DFA. One whose nesting is delimited, as by brackets, has a table of calls and returns. Any
    other has no table, and is read as it is, state by state.
    """
    text, syntax = _read_grammar(grammar, syntax)
    vocabulary = _if_given(tokenizer, size, eos) or _single_bytes()
    with _faults_of(grammar):
        table = compile_grammar(text, vocabulary, start=start, syntax=syntax, depth=depth, budget=_limits(limits))
    _show_way(table)


@inspect.command("tags")
@_tagged
@_tokenizer(required=False)
@_budget
def inspect_tags(tag: Path, tokenizer: Path | None, size: int | None, eos: int | None, **options: Any) -> None:
    """Show how the text with tags in FILE is followed, and its table; over single bytes if there is no tokenizer.

    As of a grammar: by a DFA, by calls and returns where JSON or brackets are in it, or, without a table, as it is.
    """
    with _faults_of_tags(tag):
        table = _read_tags(tag, **options)(_if_given(tokenizer, size, eos) or _single_bytes())
    _show_way(table)


@main.command()
@click.option(
    "--data",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Real semantic IDs and histories (folders index, info, valid, test) instead of the synthetic catalogue.",
)
@click.option(
    "--out", type=click.Path(file_okay=False, path_type=Path), default=Path("demo-results"), show_default=True
)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
def demo(data: Path | None, out: Path, seed: int) -> None:
    """Train a small generative-retrieval model and compare unconstrained with constrained beam search."""
    from .. import demo as package  # brings in torch and scikit-learn

    report = package.run(data=data, out=out, seed=seed, progress=lambda line: click.echo(line, err=True))
    report.print(_console())


def _capacity(ctx: click.Context, param: click.Parameter, given: tuple[str, ...]) -> Capacity:
    """Return the arena's capacity with what was said of it."""
    limits: dict[str, int] = {}
    for one in given:
        name, _, value = one.partition("=")
        if name not in Capacity.__dataclass_fields__ or not value.isdecimal():
            raise click.UsageError(
                f"--arena takes NAME=NUMBER, the name one of {', '.join(Capacity.__dataclass_fields__)}: {one!r}"
            )
        limits[name] = int(value)
    try:
        return Capacity(**limits)
    except ValueError as error:
        raise click.UsageError(str(error)) from None


@main.command()
@click.option(
    "--model",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Folder of a causal language model of transformers; without one a small model of nonsense is made.",
)
@click.option(
    "--tokenizer",
    type=click.Path(exists=True, path_type=Path),
    metavar="SOURCE",
    help="Its tokenizer, if that is not in the same folder: a folder or a file, as for `compile`.",
)
@click.option("--eos", type=click.IntRange(min=0), help="Token that ends a text, if not the tokenizer's own.")
@click.option("--name", help="What clients call the model, if not as its folder.")
@click.option("--device", help="Such as cuda:1; a GPU if there is one, else the CPU.")
@click.option("--dtype", default="auto", show_default=True, help="Type of the weights, such as bfloat16.")
@click.option("--host", default="127.0.0.1", show_default=True)
@click.option("--port", type=click.IntRange(0, 65535), default=8000, show_default=True)
@click.option("--rows", type=click.IntRange(min=1), default=16, show_default=True, help="Sequences written at once.")
@click.option("--max-queue", type=click.IntRange(min=0), default=256, show_default=True, help="Sequences that wait.")
@click.option("--max-tokens", type=click.IntRange(min=1), default=1024, show_default=True, help="Longest answer.")
@click.option(
    "--max-schema-bytes", type=click.IntRange(min=1), default=1 << 18, show_default=True, help="Longest constraint."
)
@click.option(
    "--max-body-bytes", type=click.IntRange(min=1), default=4 << 20, show_default=True, help="Longest request."
)
@click.option("--compile-threads", type=click.IntRange(min=1), default=4, show_default=True)
@_budget_from(Budget(seconds=10.0))
@click.option(
    "--whitespace",
    type=click.Choice(["flexible", "compact"]),
    default="flexible",
    show_default=True,
    help="Of JSON: what json.dumps writes in any indentation, or none.",
)
@click.option(
    "--separators", nargs=2, callback=_separators, metavar="COMMA COLON", help="Such as ', ' ': ', in its place."
)
@click.option(
    "--cache-dir", type=click.Path(file_okay=False, path_type=Path), help="Where tables are kept for later processes."
)
@click.option("--cache-bytes", type=click.IntRange(min=1), default=1 << 30, show_default=True, help="Of memory.")
@click.option(
    "--cache-dir-bytes", type=click.IntRange(min=1), default=4 << 30, show_default=True, help="Of the folder."
)
@click.option(
    "--arena",
    "capacity",
    multiple=True,
    callback=_capacity,
    metavar="NAME=NUMBER",
    help="More or less room for tables on the device, such as states=2000000; may be given several times.",
)
@click.option(
    "--grace",
    type=click.FloatRange(min=0),
    default=30.0,
    show_default=True,
    help="Seconds for what is being written when the server is told to stop.",
)
@click.option(
    "--playground/--no-playground", default=True, show_default=True, help="A page at / to try constraints on texts."
)
def serve(
    model: Path | None, tokenizer: Path | None, eos: int | None, name: str | None, device: str | None, dtype: str,
    host: str, port: int, rows: int, max_queue: int, max_tokens: int, max_schema_bytes: int, max_body_bytes: int,
    compile_threads: int, whitespace: str, separators: tuple[str, str] | None, cache_dir: Path | None,
    cache_bytes: int, cache_dir_bytes: int, capacity: Capacity, grace: float, playground: bool, **limits: Any,
) -> None:  # fmt: skip
    """Serve the OpenAI API over one model: chat and completions, in the form that each request asks for."""
    if model is None and (tokenizer, eos, name, device) != (None,) * 4:
        raise click.UsageError("--tokenizer, --eos, --name and --device go with --model")
    from ..serve import start  # brings in torch and FastAPI

    start(
        model, tokenizer=tokenizer, eos=eos, name=name, device=device, dtype=dtype, host=host, port=port,
        capacity=capacity, cache_bytes=cache_bytes, cache_directory=cache_dir, directory_bytes=cache_dir_bytes,
        say=lambda line: click.echo(line, err=True), rows=rows, max_queue=max_queue, max_tokens=max_tokens,
        max_schema_bytes=max_schema_bytes, max_body_bytes=max_body_bytes, compile_threads=compile_threads,
        budget=_limits(limits), grace_seconds=grace, whitespace=separators or whitespace,
        playground=playground,
    )  # fmt: skip


# ------------------------------------------------------------------------------------------------ input and output


def _limits(limits: dict[str, Any]) -> Budget:
    """Return the budget that --budget-states and its like ask for."""
    return Budget(**{name.removeprefix("budget_"): limit for name, limit in limits.items()})


def _console() -> Console:
    """Return a console as wide as the terminal; what goes to a file or another program is never cut."""
    console = Console()
    if not console.is_terminal:
        console.width = 10_000
    return console


def _vocabulary(source: Path, size: int | None, eos: int | None) -> Vocabulary:
    """Return the vocabulary of a tokenizer; errors name the source."""
    try:
        return Vocabulary.from_file(source, size=size, eos=eos)
    except DataError as error:
        if error.__cause__ is None or not (source / "tokenizer_config.json").exists():
            raise
        said = " ".join(f"{type(error.__cause__).__name__}: {error.__cause__}".split())
        said = said if len(said) <= _SAID else f"{said[:_SAID]}..."
        raise DataError(
            f"transformers cannot build the tokenizer of the folder {source} ({said}): save it again with "
            "save_pretrained, or pass the tokenizer's own file"
        ) from None
    except ConstraintError as error:
        if str(error).startswith(("eos", "size")):  # an option, not the tokenizer
            raise
        raise ConstraintError(f"{source} holds no tokenizer to compile for: {error}") from None


def _if_given(source: Path | None, size: int | None, eos: int | None) -> Vocabulary | None:
    if source is not None:
        return _vocabulary(source, size, eos)
    if size is not None or eos is not None:
        raise click.UsageError("--size and --eos go with --tokenizer")
    return None


def _read_choices(file: Path) -> list[str]:
    """Return the lines of a UTF-8 file, "-" for standard input, without their ends and a byte order mark."""
    raw, name = _read_bytes(file), _name(file)
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise DataError(f"line {line} of {name} is not UTF-8: save the file as UTF-8") from None
    lines = [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")]
    if lines == [""]:
        raise ConstraintError(f"{name} is empty: write one choice a line")
    if "" in lines:
        raise DataError(f"line {lines.index('') + 1} of {name} is empty: remove it")
    return lines


def _read_grammar(file: Path, syntax: Syntax | None) -> tuple[str, Syntax]:
    """Return a grammar and its notation, which the file's ending says where it was not given."""
    known: dict[str, Syntax] = {f".{name}": name for name in get_args(Syntax)}
    syntax = known.get(file.suffix.lower()) if syntax is None else syntax
    if syntax is None:
        raise click.UsageError(
            f"{_name(file)} ends in none of {', '.join(known)}: say which notation it is in with --syntax"
        )
    raw = _read_bytes(file)
    try:
        return raw.decode("utf-8-sig"), syntax
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise DataError(f"line {line} of {_name(file)} is not UTF-8: save the file as UTF-8") from None


@contextmanager
def _faults_of(file: Path) -> Iterator[None]:
    """Name the file whose grammar is at fault."""
    try:
        yield
    except GrammarError as error:  # it shows a line of the grammar, where nothing is to be exchanged
        raise click.ClickException(f"{_name(file)}, {error}") from None


@contextmanager
def _faults_of_tags(file: Path) -> Iterator[None]:
    """Name the file whose tags are at fault, with the JSON Pointer of what is."""
    try:
        yield
    except (BudgetError, NoTableError):
        raise
    except ConstraintError as error:
        said = str(error)
        placed = _PLACED.match(said)
        if placed is None:
            raise
        pointer = "" if placed["pointer"] == "/" else f"#{placed['pointer']}"
        within = "" if placed["within"] is None else f", {placed['within']}"
        said = said[placed.end() :]
        if not isinstance(error, (GrammarError, RegexError)):  # which show what nothing is to be exchanged in
            said = _with_options(said)
        raise click.ClickException(f"{_name(file)}{pointer}{within}: {said}") from None


_PLACED = re.compile(r"(?:(?P<within>line \d+, column \d+): )?(?:in )?(?P<pointer>/.*?): ")  # as errors of tags begin


def _single_bytes() -> Vocabulary:
    return Vocabulary.from_bytes([bytes([byte]) for byte in range(256)])


def _read_bytes(file: Path) -> bytes:
    with click.open_file(str(file), "rb") as stream:
        raw: bytes = stream.read()
    return raw


def _name(file: Path) -> str:
    return "standard input" if str(file) == "-" else str(file)


def _save(table: Compiled, output: Path, began: float, tokenizer: Path) -> None:
    table = table.to_table()
    seconds = time.perf_counter() - began
    table.save(output)
    click.echo(
        f"{output}: {table.num_states:,} states, {table.num_edges:,} edges, {len(table.bases.masks):,} masks, "
        f"{table.nbytes / 1e6:,.2f} MB, {_lengths(table)}, eos = {table.eos}, {seconds:.2f} s"
    )
    if table.eos is None:
        click.echo(
            f"{tokenizer} does not say which token ends a text, so the table has none: pass its id with --eos", err=True
        )


def _read(source: Path, columns: tuple[str, ...]) -> Any:
    """Return the sequences of a file as an array, a memory map or an Arrow column."""
    if source.suffix == ".npy":
        if columns:
            raise click.UsageError("--column goes with Parquet and Arrow files; a .npy file holds one array")
        try:
            array = np.load(source, mmap_mode="r", allow_pickle=False)
        except (ValueError, EOFError, OSError) as error:
            raise ConstraintError(f"{source} cannot be read: {error}") from None
        if not isinstance(array, np.ndarray):
            array.close()
            raise ConstraintError(f"{source} holds several arrays: save the one with the sequences by itself")
        return array
    if source.suffix not in (".parquet", ".arrow", ".feather"):
        raise click.UsageError(f"{source} is neither .parquet, .arrow, .feather nor .npy")
    try:
        import pyarrow.feather
        import pyarrow.parquet
    except ModuleNotFoundError:
        raise MissingDependencyError(f"reading {source} needs pyarrow: pip install 'maskwright[arrow]'") from None
    parquet = source.suffix == ".parquet"
    try:
        names = (pyarrow.parquet.read_schema if parquet else _feather_schema)(source).names
        _check_columns(source, columns, names)
        table = (pyarrow.parquet.read_table if parquet else pyarrow.feather.read_table)(source, columns=list(columns))
    except (pyarrow.ArrowException, OSError) as error:
        raise ConstraintError(f"{source} cannot be read: {error}") from None
    if len(columns) == 1:
        return table.column(0)
    return np.stack([_token_column(name, table.column(name)) for name in columns], axis=1)


def _check_columns(source: Path, columns: tuple[str, ...], names: list[str]) -> None:
    if not columns:
        raise click.UsageError(f"name the column that holds the sequences with --column, one of: {', '.join(names)}")
    for name in columns:
        if name not in names:
            raise ConstraintError(f"{source} has no column {name!r}; it has {', '.join(names)}")


def _token_column(name: str, column: Any) -> Any:
    """Return a column of one token a row as an array."""
    import pyarrow

    if not pyarrow.types.is_integer(column.type):
        raise ConstraintError(f"column {name!r} holds {column.type}: tokens must be integers")
    if column.null_count:
        row = int(np.argmax(column.is_null().to_numpy()))
        raise ConstraintError(f"row {row} of column {name!r} is null: drop it or give it a token")
    return column.to_numpy()


def _feather_schema(source: Path) -> Any:
    import pyarrow

    with pyarrow.memory_map(str(source)) as file:
        return pyarrow.ipc.open_file(file).schema


# ---------------------------------------------------------------------------------------------------------- inspect


def _show_way(table: Compiled) -> None:
    """Show a table, or why there is none."""
    console = _console()
    try:
        whole = table.to_table()
    except ConstraintError as error:
        facts = _facts()
        facts.add_row("followed by", _way(table))
        facts.add_row("because", _with_options(str(error)))
        facts.add_row("source", table.source)
        console.print(facts)
    else:
        _show(whole, console)


def _show(table: TransitionTable, console: Console) -> None:
    facts = _facts()
    size = f"{table.nbytes:,}"
    if table.is_trie:
        facts.add_row("sequences", f"{table.num_sequences:,} distinct in {table.trie.item_row.size:,} rows")
        size += f" ({table.nbytes / table.num_sequences:.1f} a sequence), map to rows aside"
    else:
        facts.add_row("followed by", _way(table))
    facts.add_row("length", _lengths(table))
    facts.add_row("vocabulary", f"{table.vocabulary}, V = {table.vocab_size:,}, eos = {table.eos}")
    facts.add_row("states", _states(table))
    facts.add_row("edges", f"{table.num_edges:,}")
    has_bases = not table.is_trie and table.bases.mask.size > 0
    if has_bases:
        shared = int(np.count_nonzero(table.rows.base >= 0))
        facts.add_row(
            "bases", f"{table.bases.mask.size:,}, shared by {shared:,} rows, with {len(table.bases.masks):,} masks"
        )
        lists = table.classes.start.size - 1
        facts.add_row("class lists", f"{lists:,}, with {table.classes.token.size:,} tokens that have a class")
    ends = int(np.count_nonzero(table.rows.accepting))
    accept = f"{ends:,} row accepts" if ends == 1 else f"{ends:,} rows accept"
    if table.is_nested:
        leaves = int(np.count_nonzero(table.sites.is_leaf))
        facts.add_row("calls", f"{table.num_sites:,} return sites, {leaves:,} of parts that make no calls themselves")
        facts.add_row("pushes", f"{table.num_actions:,} actions, of up to {table.most_pushes:,} sites at once")
        lists, exits = table.exits.start.size - 1, table.exits.token.size
        facts.add_row("exits", f"{exits:,} tokens in {lists:,} lists, with {table.num_symbols:,} symbols")
        facts.add_row("depth", f"{table.depth:,} calls may be open at once, beside one that makes none itself")
        facts.add_row("ends", f"{accept} where no call is open")
    elif not table.is_trie:
        reach = drawing.in_tokens(int(table.distance[table.distance != UNREACHABLE].max()))
        facts.add_row("ends", f"{accept}; from any state one is at most {reach} away")
    facts.add_row("bytes", size)
    facts.add_row("source", table.source)
    console.print(facts)

    parts = Table(title="bytes by part", title_justify="left")
    parts.add_column("array")
    parts.add_column("type")
    parts.add_column("shape")
    parts.add_column("bytes", justify="right")
    for name, array in table.arrays.by_name().items():
        if array.size:
            parts.add_row(name, str(array.dtype), str(array.shape), f"{array.nbytes:,}")
    console.print(parts)
    if table.is_trie:
        console.print(_level_table(table))
    elif has_bases:
        console.print(_base_table(table))


def _facts() -> Table:
    facts = Table(box=None, show_header=False)
    facts.add_column()
    facts.add_column(overflow="fold")  # a hash is longer than many a terminal is wide
    return facts


def _way(table: Compiled) -> str:
    """Return how texts are followed; of a lazy table, if its arrays could not be worked out."""
    if isinstance(table, LazyTable) and not table.is_complete:
        return "states that are made as texts come to them (as it is read)"
    return "calls and returns (delimited)" if table.is_nested else "the states of a DFA (regular)"


def _states(table: TransitionTable) -> str:
    rows = table.num_rows
    tails = drawing.num_drawn(table) - rows
    kinds = f"{rows:,} row{'s' * (rows != 1)}" + f", {tails:,} in tails" * (tails > 0)
    return f"{table.num_states:,}: {kinds}, the one after EOS and the dead one"


def _level_table(table: TransitionTable) -> Table:
    levels = Table(title="branches by level", title_justify="left")
    for heading in ("level", "rows", "edges", "most branches", "masks"):
        levels.add_column(heading, justify="right")
    for depth, level in enumerate(table.levels):
        rows = edges = 0
        if depth < table.trie.level_start.size - 1:
            lo, hi = table.trie.level_start[depth], table.trie.level_start[depth + 1]
            rows, edges = int(hi - lo), int(table.rows.edge_start[hi] - table.rows.edge_start[lo])
        levels.add_row(str(depth), f"{rows:,}", f"{edges:,}", f"{level.width:,}", "yes" if level.dense else "")
    return levels


def _base_table(table: TransitionTable) -> Table:
    """Return the bases that most rows share."""
    shared = np.bincount(table.rows.base[table.rows.base >= 0], minlength=table.bases.mask.size)
    own = np.diff(table.rows.edge_start)
    order = np.argsort(-shared, kind="stable")[:_MOST_BASES]
    more = f", {order.size} of {shared.size:,}" if order.size < shared.size else ""
    bases = Table(title=f"bases by the rows that share them{more}", title_justify="left")
    for heading in ("base", "rows", "their edges", "mask", "tokens", "class list", "targets"):
        bases.add_column(heading, justify="right")
    for base in order.tolist():
        mask = table.bases.mask[base]
        values = (
            base, shared[base], own[table.rows.base == base].sum(), mask,
            np.bitwise_count(table.bases.masks[mask]).sum(),
            table.bases.class_list[base], table.bases.target_start[base + 1] - table.bases.target_start[base],
        )  # fmt: skip
        bases.add_row(*(f"{int(value):,}" for value in values))
    return bases


def _lengths(table: TransitionTable) -> str:
    if table.max_length is None:
        return f"{drawing.in_tokens(table.min_length)} or more"
    if table.min_length == table.max_length:
        return drawing.in_tokens(table.min_length)
    return f"{table.min_length:,} to {drawing.in_tokens(table.max_length)}"


if __name__ == "__main__":
    main()
