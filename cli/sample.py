"""`maskwright sample`: random members of a constraint on text."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import click
import numpy as np

from ..automata.budget import Budget
from ..compile.regex.lower import to_dfa
from ..errors import ConstraintError
from . import options
from .input_files import read_choices


@dataclass(frozen=True)
class Draw:
    """How many members to draw, from which seed, and how long they may be."""

    number: int
    seed: int
    max_bytes: int

    def check_room(self, shortest: int) -> None:
        """Raise ConstraintError if even the shortest member is too long."""
        if shortest > self.max_bytes:
            raise ConstraintError(
                f"no member has at most {self.max_bytes} bytes: the shortest has {shortest}; raise --max-bytes"
            )


draw = options.gathered(
    "draw",
    Draw,
    click.option(
        "-n", "--number", type=click.IntRange(min=0), default=10, show_default=True, help="How many members to show."
    ),
    click.option(
        "--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Another seed shows other members."
    ),
    click.option(
        "--max-bytes", type=click.IntRange(min=0), default=64, show_default=True, help="Most bytes of a member."
    ),
)


@click.group("sample")
def group() -> None:
    """Show random members of a constraint on text, each as likely as any other.

    Prints one member a line. An empty member, or one with characters that do not print, appears as a Python string.
    """


@group.command("regex")
@options.pattern
@draw
@options.budget
def regex(regex: options.Pattern, draw: Draw, budget: Budget) -> None:
    """Show random texts that match PATTERN as a whole."""
    dfa = to_dfa(regex.pattern, flags=regex.flags, meter=budget.begin())
    shortest = dfa.shortest()
    if shortest is None:
        raise ConstraintError(f"the pattern matches nothing: {regex.pattern!r}")
    draw.check_room(len(shortest))
    rng = np.random.default_rng(draw.seed)
    for _ in range(draw.number):
        _print_member(dfa.sample(rng, draw.max_bytes).decode())


@group.command("choices")
@options.constraint_file
@draw
def choices(file: Path, draw: Draw) -> None:
    """Show random lines of FILE, UTF-8 (- for standard input); a line that occurs twice is no likelier."""
    sizes = {choice: len(choice.encode()) for choice in read_choices(file)}
    draw.check_room(min(sizes.values()))
    short = [choice for choice, size in sizes.items() if size <= draw.max_bytes]
    for i in np.random.default_rng(draw.seed).integers(len(short), size=draw.number).tolist():
        _print_member(short[i])


def _print_member(member: str) -> None:
    click.echo(member if member and member.isprintable() else repr(member))
