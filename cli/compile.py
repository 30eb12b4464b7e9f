"""`maskwright compile`: a constraint on text, compiled into a table for a tokenizer."""

from __future__ import annotations

import time
from pathlib import Path

import click

from ..automata.budget import Budget
from ..compile.constraint_source import Source
from ..compile.json_schema.approximations import Approximations
from ..compile.json_schema.build import build as build_skeleton
from ..compile.json_schema.keywords import formula
from ..compile.json_schema.request import wrong_pattern
from ..compile.json_schema.source import read as read_schema
from ..compile.regex.parse import parse
from ..compile.tags.tagged_text import plain
from ..errors import BudgetError, ConstraintError, GrammarError, RegexError
from ..table.several_ends import one_or_all
from . import options
from .input_files import name_of, read_bytes, read_choices
from .table_report import lengths_of, warn_unenforced
from .tokenizer import Tokenizer, single_bytes, tokenizer
from .wording import naming

# Reading a tokenizer takes seconds. Each command therefore checks its constraint first.


@click.group("compile")
def group() -> None:
    """Compile a constraint on text into a table for a tokenizer."""


@group.command("regex")
@options.pattern
@tokenizer
@options.budget
@options.table_output
def regex(regex: options.Pattern, tokenizer: Tokenizer, budget: Budget, output: Path) -> None:
    """Compile PATTERN, a regular expression of Python's re, into a table of the texts that match it as a whole."""
    parse(regex.pattern, regex.flags)
    _write(Source.regex(regex.pattern, flags=regex.flags), tokenizer, budget, output)


@group.command("choices")
@options.constraint_file
@tokenizer
@options.budget
@options.table_output
def choices(file: Path, tokenizer: Tokenizer, budget: Budget, output: Path) -> None:
    """Compile the lines of FILE, UTF-8 (- for standard input), into a table that allows exactly these texts."""
    _write(Source.choices(read_choices(file)), tokenizer, budget, output)


@group.command("json-schema")
@options.constraint_file
@options.json_form
@tokenizer
@options.budget
@options.table_output
def json_schema(file: Path, form: options.JsonForm, tokenizer: Tokenizer, budget: Budget, output: Path) -> None:
    """Compile the JSON Schema in FILE (- for standard input) into a table of the JSON texts that fit it."""
    text, given = read_bytes(file), form.read()
    with naming(name_of(file)):
        try:
            with budget.begin() as meter:
                found = Approximations(given["allow"])
                node = formula(text, approximations=found, documents=given["documents"], meter=meter)
                build_skeleton(node, meter, form.any_order)
        except RegexError as error:
            raise wrong_pattern(error, read_schema(text)) from None
        _write(Source.json_schema(text, **given), tokenizer, budget, output)


@group.command("grammar")
@options.grammar_file
@tokenizer
@options.budget
@options.table_output
def grammar(grammar: options.GrammarFile, tokenizer: Tokenizer, budget: Budget, output: Path) -> None:
    """Compile the grammar in FILE, UTF-8 (- for standard input), in Lark's notation, GBNF or EBNF, into a table.

    Some grammars have no finite table, so no file can hold one: see `maskwright inspect grammar`.
    """
    source = grammar.read()
    with naming(grammar.name):
        try:
            source.compile(single_bytes(), budget)
        except (GrammarError, BudgetError):
            raise
        except ConstraintError:  # of a vocabulary that is not the tokenizer's
            pass
        _write(source, tokenizer, budget, output)


@group.command("tags")
@options.constraint_file
@options.json_form
@tokenizer
@options.budget
@options.table_output
def tags(file: Path, form: options.JsonForm, tokenizer: Tokenizer, budget: Budget, output: Path) -> None:
    """Compile the structural tag in FILE, JSON (- for standard input), into a table of free text with such tags in it.

    The options of JSON apply to all JSON in tags. Some tags with a grammar in them have no finite table, so no file can
    hold one: see `maskwright inspect tags`.
    """
    with naming(name_of(file)):
        _write(Source.structural_tag(plain(read_bytes(file)), **form.read()), tokenizer, budget, output)


def _write(source: Source, tokenizer: Tokenizer, budget: Budget, output: Path) -> None:
    """Read the tokenizer, make the whole table, write it, and say what it holds."""
    vocabulary = tokenizer.vocabulary()
    began = time.perf_counter()
    table = source.whole.compile(vocabulary, budget).to_table()
    seconds = time.perf_counter() - began
    table.save(output)
    click.echo(
        f"{output}: {table.num_states:,} states, {table.num_edges:,} edges, {len(table.bases.masks):,} masks, "
        f"{table.nbytes / 1e6:,.2f} MB, {lengths_of(table)}, eos = {one_or_all(table.ends)}, {seconds:.2f} s"
    )
    warn_unenforced(table)
    if table.eos is None:
        click.echo(
            f"{tokenizer.tokenizer} does not say which token ends a text, so the table has none: pass its id with "
            "--eos",
            err=True,
        )
