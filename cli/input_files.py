"""Reading constraints on text from files or standard input."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import click

from ..compile.grammar.notations import Syntax
from ..errors import ConstraintError, DataError


def name_of(file: Path) -> str:
    """Return how messages call a file: "-" is standard input."""
    return "standard input" if str(file) == "-" else str(file)


def read_bytes(file: Path) -> bytes:
    """Return the contents of a file, or of standard input for "-"."""
    with click.open_file(str(file), "rb") as stream:
        raw: bytes = stream.read()
    return raw


def read_text(file: Path) -> str:
    """Return the UTF-8 text of a file, or of standard input for "-", without a byte order mark. Raises DataError."""
    raw = read_bytes(file)
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise DataError(f"line {line} of {name_of(file)} is not UTF-8: save the file as UTF-8") from None


def read_choices(file: Path) -> list[str]:
    """Return the lines of a UTF-8 file without their ends. Raises DataError, and ConstraintError for no lines."""
    lines = [line.removesuffix("\r") for line in read_text(file).removesuffix("\n").split("\n")]
    if lines == [""]:
        raise ConstraintError(f"{name_of(file)} is empty: write one choice a line")
    if "" in lines:
        raise DataError(f"line {lines.index('') + 1} of {name_of(file)} is empty: remove it")
    return lines


def read_grammar(file: Path, syntax: Syntax | None) -> tuple[str, Syntax]:
    """Return a grammar and its notation; the file's ending says the notation if it is not given.

    Raises DataError, and UsageError for a file that ends otherwise.
    """
    known: dict[str, Syntax] = {f".{name}": name for name in get_args(Syntax)}
    syntax = known.get(file.suffix.lower()) if syntax is None else syntax
    if syntax is None:
        raise click.UsageError(
            f"{name_of(file)} ends in none of {', '.join(known)}: say which notation it is in with --syntax"
        )
    return read_text(file), syntax
