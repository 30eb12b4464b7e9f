"""A group of commands that takes a compiled table where no command is named."""

from __future__ import annotations

import click


class TableGroup(click.Group):
    """`show FILE` is `show table FILE`, and `inspect FILE` is `inspect table FILE`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0] not in (*self.commands, *self.get_help_option_names(ctx)):
            args = ["table", *args]
        return super().parse_args(ctx, args)
