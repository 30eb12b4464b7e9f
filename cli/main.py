"""The command line: `maskwright build`, `merge`, `compile`, `sample`, `show`, `inspect`, `serve` and `warm`."""

from __future__ import annotations

import click

from .. import __version__
from ..errors import MaskwrightError
from . import build, compile, inspect, merge, sample, serve, show, warm
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


for command in (
    build.build, merge.merge, compile.group, sample.group, show.group, inspect.group, serve.serve, warm.warm,
):  # fmt: skip
    main.add_command(command)


if __name__ == "__main__":
    main()
