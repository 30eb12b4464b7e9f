"""How the command line words errors: with its options, and the file that a constraint comes from."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import assert_never

import click
from rich.console import Console

from ..errors import (
    AddDocument,
    Advice,
    AllowKeyword,
    KeepOrder,
    MaskwrightError,
    RaiseBudget,
    RaiseCapacity,
    ReadOnDemand,
    Remedy,
    Wording,
    shown_pointer,
)


class CommandWording(Wording):
    """Words errors for a user of the command line; source: the file that the constraint comes from."""

    def __init__(self, source: str | None = None) -> None:
        self._source = source

    def argument(self, name: str) -> str:
        return f"--{name.replace('_', '-')}"

    def place(self, pointer: str | None, line: int | None, column: int | None) -> str:
        if self._source is None or (pointer is None and line is None):
            return super().place(pointer, line, column)
        if not pointer:
            where = self._source
        elif "#" in pointer:  # the document has a URI of its own
            where = shown_pointer(pointer)
        else:
            where = f"{self._source}#{shown_pointer(pointer)}"
        return where if line is None else f"{where}, line {line}, column {column}"

    def remedy(self, remedy: Remedy) -> str:
        match remedy:
            case Advice():
                return self.advice(remedy)
            case RaiseBudget(limits=limits, otherwise=otherwise):
                return f"Raise it with {' or '.join(f'--budget-{limit}' for limit in limits)}, or {otherwise}"
            case RaiseCapacity(name=name, least=least):
                return f"Give the arena more room, Capacity({name}={'N' if least is None else least})"
            case AllowKeyword(keyword=keyword, approximation=approximation):
                return f"Pass --allow {keyword} to accept {approximation}, or take it out"
            case AddDocument(uri=uri):
                return f"Pass it, --document {uri} FILE"
            case KeepOrder():
                return "--any-order takes far more than members in the schema's order"
            case ReadOnDemand():
                return "In Python a Matcher follows it"
            case _:
                assert_never(remedy)


def failure(error: MaskwrightError, source: str | None = None) -> click.ClickException:
    """Return the error that ends a command with a message and without a traceback."""
    return click.ClickException(error.worded(CommandWording(source)))


@contextmanager
def naming(source: str) -> Iterator[None]:
    """Name the file that a constraint comes from in the errors about it."""
    try:
        yield
    except MaskwrightError as error:
        raise failure(error, source) from None


def console() -> Console:
    """Return a console as wide as the terminal; lines that go to a file or another program are never cut."""
    made = Console()
    if not made.is_terminal:
        made.width = 10_000
    return made
