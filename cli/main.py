"""The command line: `maskwright build`, `merge`, `compile`, `sample`, `show`, `inspect`, `serve` and `warm`."""

from __future__ import annotations

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from .. import __version__
from ..errors import MaskwrightError
from ..first_use import warm as make_ready
from ..kernels import compiled
from . import build, compile, inspect, sample, serve, show
from .tokenizer import Tokenizer, optional_tokenizer
from .wording import failure


class _Commands(click.Group):
    """Shows maskwright's own errors, and those of files, without a traceback."""

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:  # of `| head`: click ends in silence
            raise
        except MaskwrightError as error:
            raise failure(error) from None
        except OSError as error:
            raise click.ClickException(str(error)) from None


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__)
def main() -> None:
    """Compile what a model may write into one flat table."""


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


for command in (
    build.build, build.merge, compile.group, sample.group, show.group, inspect.group, serve.serve, warm,
):  # fmt: skip
    main.add_command(command)


if __name__ == "__main__":
    main()
