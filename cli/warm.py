"""`maskwright warm`: what the first use on a machine would make, made ahead."""

from __future__ import annotations

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from ..first_use import warm as make_ready
from ..kernels import compiled
from .tokenizer import Tokenizer, optional_tokenizer


@click.command()
@optional_tokenizer
@click.option(
    "--processes",
    type=click.IntRange(min=1),
    help="How many compile at once; as many as processors, up to 8, if not given.",
)
def warm(tokenizer: Tokenizer | None, processes: int | None) -> None:
    """Make ready what the first use on this machine would make: kernels and, with --tokenizer, a vocabulary's files."""
    vocabulary = None if tokenizer is None else tokenizer.vocabulary()
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=Console(stderr=True)) as bar:
        tasks = {}

        def tell(what: str, done: int, of: int) -> None:
            if what not in tasks:
                tasks[what] = bar.add_task(what, total=of)
            bar.update(tasks[what], completed=done)

        make_ready(vocabulary, processes=processes, progress=tell)
    click.echo(f"ready; this process has {compiled.kernels_from()}")
