"""`maskwright sample`: random members of a constraint on text."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import click
import numpy as np

from ..automata.budget import Budget, Meter
from ..compile.constraint_source import Source
from ..compile.regex.lower import to_dfa
from ..compile.tags.tagged_text import plain
from ..errors import ConstraintError
from ..kernels.limits import UNREACHABLE
from ..runtime.device.on_demand import has_lengths
from ..runtime.host.matcher import Matcher
from ..table.constraint import Constraint
from ..vocabulary.vocabulary import Vocabulary
from . import options
from .input_files import name_of, read_bytes, read_choices
from .table_report import warn_unenforced
from .wording import naming

_TRIES = 1000  # of a text that nobody can say in advance will be short enough
_END = 256  # the token that ends a text, after all bytes
_BYTES = Vocabulary.from_bytes([*(bytes([byte]) for byte in range(256)), b""], eos=_END)
# how likely each byte is beside others: letters, then blanks, and seldom what does not print
_WEIGHT = np.array([1 if 0x20 < b < 0x7F else 1 / 8 if b in b" \t\n\r" else 1 / 64 for b in range(256)] + [8])


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
    """Show random members of a constraint on text.

    Of a pattern or a list of choices each is as likely as any other. Others are drawn byte by byte, with more letters
    than blanks and characters outside ASCII. Prints one member a line. An empty member, or one with characters that do
    not print, appears as a Python string.
    """


@group.command("regex")
@options.pattern
@draw
@options.budget
def regex(regex: options.Pattern, draw: Draw, budget: Budget) -> None:
    """Show random texts that match PATTERN as a whole."""
    with budget.begin() as meter:
        dfa = to_dfa(regex.pattern, flags=regex.flags, meter=meter)
        shortest = dfa.shortest()
        if shortest is None:
            raise ConstraintError(f"the pattern matches nothing: {regex.pattern!r}")
        draw.check_room(len(shortest))
        rng = np.random.default_rng(draw.seed)
        for _ in range(draw.number):
            _print_member(dfa.sample(rng, draw.max_bytes, meter=meter).decode())


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


@group.command("json-schema")
@options.constraint_file
@options.json_form
@draw
@options.budget
def json_schema(file: Path, form: options.JsonForm, draw: Draw, budget: Budget) -> None:
    """Show random JSON texts that fit the JSON Schema in FILE (- for standard input)."""
    with naming(name_of(file)):
        _print_drawn(Source.json_schema(read_bytes(file), **form.read()), draw, budget)


@group.command("grammar")
@options.grammar_file
@draw
@options.budget
def grammar(grammar: options.GrammarFile, draw: Draw, budget: Budget) -> None:
    """Show random texts of the grammar in FILE, UTF-8 (- for standard input), in Lark's notation, GBNF or EBNF."""
    with naming(grammar.name):
        _print_drawn(grammar.read(), draw, budget)


@group.command("tags")
@options.constraint_file
@options.json_form
@draw
@options.budget
def tags(file: Path, form: options.JsonForm, draw: Draw, budget: Budget) -> None:
    """Show random texts with the tags that FILE describes, JSON (- for standard input)."""
    with naming(name_of(file)):
        _print_drawn(Source.structural_tag(plain(read_bytes(file)), **form.read()), draw, budget)


def _print_drawn(source: Source, draw: Draw, budget: Budget) -> None:
    """Print random members, within one budget. Raises ConstraintError if none is as short, or none is found."""
    constraint = source.compile(_BYTES, budget)
    with budget.begin() as meter:
        promised = has_lengths(constraint)
        if promised and (shortest := constraint.to_table().min_length) < UNREACHABLE:
            draw.check_room(shortest)
        rng = np.random.default_rng(draw.seed)
        for _ in range(draw.number):
            tries = (_drawn(constraint, draw.max_bytes, rng, promised, meter) for _ in range(_TRIES))
            member = next((text for text in tries if text is not None), None)
            if member is None:
                raise ConstraintError(
                    f"no member of at most {draw.max_bytes} bytes was found in {_TRIES:,} tries: raise --max-bytes"
                )
            _print_member(member.decode())
        warn_unenforced(constraint)


def _drawn(
    constraint: Constraint, most: int, rng: np.random.Generator, promised: bool, meter: Meter
) -> bytes | None:  # fmt: skip
    """Return a random member of at most so many bytes, drawn byte by byte; None where one grew too long.

    Raises BudgetError.
    """
    matcher = Matcher(constraint, max_tokens=most if promised else None)
    written = bytearray()
    while len(written) <= most:
        meter.check(doing="drawing members")
        allowed = np.unpackbits(matcher.mask().view(np.uint8), count=_END + 1, bitorder="little") * _WEIGHT
        token = int(rng.choice(_END + 1, p=allowed / allowed.sum()))
        if token == _END:
            return bytes(written)
        matcher.advance(token)
        written.append(token)
    return None


def _print_member(member: str) -> None:
    click.echo(member if member and member.isprintable() else repr(member))
