"""`maskwright merge`: the shards of a catalogue joined into one file."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Literal

import click

from ..compile.catalogue import Catalogue
from . import options


@click.command()
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option(
    "--kind", type=click.Choice(["table", "matrix"]), default="table", show_default=True,
    help="Whether the catalogue has a table or a sorted matrix.",
)  # fmt: skip
@options.catalogue_output
def merge(folder: Path, kind: Literal["table", "matrix"], output: Path) -> None:
    """Join the shards that `maskwright build --shards` wrote to FOLDER into one catalogue.

    It is the very catalogue that a build without shards would have made. `Catalogue.load` reads it.
    """
    began = time.perf_counter()
    catalogue = Catalogue.merge_shards(folder, kind=kind)
    catalogue.save(output)
    click.echo(
        f"{output}: {len(catalogue):,} items, {catalogue.table.num_sequences:,} distinct sequences, "
        f"{output.stat().st_size / 1e6:,.1f} MB, {time.perf_counter() - began:.2f} s"
    )
