"""The console that reports are printed on."""

from __future__ import annotations

from rich.console import Console


def console() -> Console:
    """Return a console as wide as the terminal; lines that go to a file or another program are never cut."""
    made = Console()
    if not made.is_terminal:
        made.width = 10_000
    return made
