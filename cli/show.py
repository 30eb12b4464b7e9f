"""`maskwright show`: drawings of automata and tables."""

from __future__ import annotations

from pathlib import Path

import click

from ..automata.budget import Budget
from ..compile.regex.lower import to_dfa
from ..compile.text import compile_regex
from ..errors import ConstraintError
from ..table.transition_table import TransitionTable
from . import drawing, options
from .tokenizer import Tokenizer, optional_tokenizer


@click.group("show", cls=options.TableGroup)
def group() -> None:
    """Draw an automaton through Graphviz: show regex PATTERN, or show FILE for a compiled table.

    The output is .svg, .pdf, .png, or .dot for the graph itself. All but .dot need the program dot.
    """


@group.command("regex")
@options.pattern
@optional_tokenizer
@options.budget
@options.max_states
@options.drawing_output
def regex(regex: options.Pattern, tokenizer: Tokenizer | None, budget: Budget, max_states: int, output: Path) -> None:
    """Draw the smallest DFA over bytes of what PATTERN matches; with a tokenizer, how many tokens each state allows."""
    with budget.begin() as meter:
        dfa = to_dfa(regex.pattern, flags=regex.flags, meter=meter)
    _check_few(dfa.num_states, max_states)
    allowed = None
    if tokenizer is not None:
        vocabulary = tokenizer.vocabulary()
        table = compile_regex(regex.pattern, vocabulary, flags=regex.flags, lazy=False, budget=budget).to_table()
        allowed = drawing.tokens_by_state(dfa, table, vocabulary)
    drawing.write(drawing.draw_dfa(dfa, allowed=allowed, title=regex.pattern), output)
    click.echo(f"{output}: {dfa.num_states:,} states of the DFA")


@group.command("table")
@click.argument("file", type=options.FILE)
@optional_tokenizer
@options.max_states
@options.drawing_output
def table(file: Path, tokenizer: Tokenizer | None, max_states: int, output: Path) -> None:
    """Draw a compiled table: its states, and on each edge how many tokens it allows.

    With the table's tokenizer, an edge of few tokens shows what they spell.
    """
    loaded = TransitionTable.load(file)
    if loaded.is_nested:
        raise ConstraintError(
            f"{file} cannot be drawn: it has calls, as tables of JSON Schemas do, so that where a state leads depends "
            "on what is open around it; see `maskwright inspect`"
        )
    drawn = drawing.num_drawn(loaded)
    _check_few(drawn, max_states)
    vocabulary = None if tokenizer is None else tokenizer.vocabulary()
    drawing.write(drawing.draw_table(loaded, vocabulary=vocabulary, title=file.name), output)
    click.echo(f"{output}: {drawn:,} of {loaded.num_states:,} states, all but the one after EOS and the dead one")


def _check_few(drawn: int, most: int) -> None:
    if drawn > most:
        raise ConstraintError(
            f"{drawn:,} states to draw are more than a drawing can show clearly: make the constraint smaller, or raise "
            f"--max-states, now {most:,}"
        )
