"""`maskwright inspect`: what a table holds, and how a grammar is followed."""

from __future__ import annotations

from pathlib import Path

import click

from ..automata.budget import Budget
from ..compile.constraint_source import Source
from ..compile.tags.tagged_text import plain
from ..table.transition_table import TransitionTable
from . import options
from .input_files import name_of, read_bytes
from .table_report import print_table, print_way
from .tokenizer import Tokenizer, optional_tokenizer, single_bytes
from .wording import console, naming


@click.group("inspect", cls=options.TableGroup)
def group() -> None:
    """Show what a constraint comes to: inspect FILE for a compiled table, inspect grammar FILE, inspect tags FILE."""


@group.command("table")
@click.argument("file", type=options.FILE)
def table(file: Path) -> None:
    """Show what a table holds: states, edges, lengths, bytes by part; levels of sequences, bases of texts."""
    print_table(TransitionTable.load(file), console())


@group.command("grammar")
@options.grammar_file
@optional_tokenizer
@options.budget
def grammar(grammar: options.GrammarFile, tokenizer: Tokenizer | None, budget: Budget) -> None:
    """Show how the grammar in FILE is followed, and its table; over single bytes without a tokenizer.

    A regular grammar is a DFA. A grammar whose nesting is delimited, as by brackets, has a table of calls and returns.
    Any other grammar has no table: it is read state by state.
    """
    source = grammar.read()
    vocabulary = single_bytes() if tokenizer is None else tokenizer.vocabulary()
    with naming(grammar.name):
        made = source.compile(vocabulary, budget)
    print_way(made, console())


@group.command("tags")
@options.constraint_file
@options.json_form
@optional_tokenizer
@options.budget
def tags(file: Path, form: options.JsonForm, tokenizer: Tokenizer | None, budget: Budget) -> None:
    """Show how the text with tags in FILE is followed, and its table; over single bytes without a tokenizer.

    As with a grammar, this is a DFA, or calls and returns for JSON and brackets, or reading without a table.
    """
    with naming(name_of(file)):
        source = Source.structural_tag(plain(read_bytes(file)), **form.read())
        made = source.compile(single_bytes() if tokenizer is None else tokenizer.vocabulary(), budget)
    print_way(made, console())
