"""`maskwright build`: sequences of tokens, such as semantic IDs, compiled into a table, or a catalogue into shards."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Literal, get_args

import click

from ..compile.catalogue import Catalogue
from ..compile.sequences import compile_sequences, compile_sids
from ..compile.shards.build import build_shards
from ..compile.shards.engines import EngineName
from . import options
from .sequence_files import read_sequences


class _Bytes(click.ParamType):  # type: ignore[type-arg]
    """A number of bytes, such as 4GB."""

    name = "SIZE"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        found = re.fullmatch(r"([0-9]+)([kMGT]?)B?", str(value))
        if found is None or int(found[1]) == 0:
            self.fail(f"{value!r} is no size: write 500MB or 4GB", param, ctx)
        scale: int = 1000 ** " kMGT".index(found[2] or " ")
        return int(found[1]) * scale


def _sharded(
    source: Path, output: Path, columns: tuple[str, ...], vocab_size: int, items: str | None, offsets: tuple[int, ...],
    shards: int, engine: EngineName, memory: int | None, workers: int | None,
) -> None:  # fmt: skip
    """Build shards, and say what there is."""
    if not columns:
        raise click.UsageError("name the column that holds the codes with --column; or one --column per code")
    began = time.perf_counter()
    manifest = build_shards(
        source, output, vocab_size, shards=shards, sids=columns[0] if len(columns) == 1 else columns, items=items,
        offsets=offsets[0] if len(offsets) == 1 else offsets or 0, engine=engine, memory=memory, workers=workers,
    )  # fmt: skip
    sizes = [shard.rows for shard in manifest.shards]
    click.echo(
        f"{output}: {len(sizes)} shards of {min(sizes):,} to {max(sizes):,} rows, {manifest.num_items:,} rows, "
        f"{manifest.num_sequences:,} distinct, {sum(shard.bytes for shard in manifest.shards) / 1e6:,.1f} MB, "
        f"{time.perf_counter() - began:.2f} s"
    )


@click.command()
@click.argument("source", type=click.Path(exists=True, path_type=Path))
@click.option("--column", "columns", multiple=True, help="Column of integer lists; or one --column per token position.")
@click.option("--vocab-size", type=click.IntRange(min=1), required=True, help="Tokens lie in 0 .. N - 1.")
@click.option("--ragged", is_flag=True, help="The sequences differ in length.")
@click.option(
    "--eos",
    type=click.IntRange(min=0),
    multiple=True,
    help="Token that a model writes to end a sequence; more than once for several.",
)
@click.option("--shards", type=click.IntRange(min=1), help="Build a catalogue in this many shards.")
@click.option(
    "--engine", type=click.Choice(get_args(EngineName)), default="duckdb", show_default=True,
    help="What reads the files and cuts shards: DuckDB in this process, or Spark. With --shards.",
)  # fmt: skip
@click.option("--items", help="Column of item ids, integers or strings. With --shards.")
@click.option(
    "--offset", "offsets", multiple=True, type=click.IntRange(min=0),
    help="Token of code 0: one for all levels, or one --offset per level. With --shards.",
)  # fmt: skip
@click.option("--memory", type=_Bytes(), help="Most memory to take, such as 4GB. With --shards.")
@click.option("--workers", type=click.IntRange(min=1), help="Shards built at once. With --shards and DuckDB.")
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), required=True, callback=options.writable,
    help="File to write the table to; with --shards, folder to write shards to.",
)  # fmt: skip
def build(
    source: Path, columns: tuple[str, ...], vocab_size: int, ragged: bool, eos: tuple[int, ...], output: Path,
    shards: int | None, **sharding: object,
) -> None:  # fmt: skip
    """Compile the sequences in SOURCE (.parquet, .arrow, .feather or .npy) into a table.

    With --shards SOURCE is a Parquet file, or a folder of them, with an item in each row. Run the same command again if
    it was interrupted: it makes only what is missing. `maskwright merge` joins the shards.
    """
    if shards is not None:
        if ragged or eos:
            raise click.UsageError("--ragged and --eos are for tables: the sequences of shards are all as long")
        _sharded(source, output, columns, vocab_size, shards=shards, **sharding)  # type: ignore[arg-type]
        return
    context = click.get_current_context()
    for name in sharding:
        if context.get_parameter_source(name) is not click.core.ParameterSource.DEFAULT:
            raise click.UsageError(f"--{name.removesuffix('s') if name == 'offsets' else name} goes with --shards")
    if source.is_dir():
        raise click.UsageError(f"{source} is a folder: pass --shards to build a catalogue from its files")
    if output.is_dir():
        raise click.UsageError(f"{output} is a folder: name the file to write the table to")
    began = time.perf_counter()
    ids = read_sequences(source, columns)
    ends = eos or None
    if ragged:
        table = compile_sequences(ids, vocab_size=vocab_size, eos=ends)
    else:
        table = compile_sids(ids, vocab_size, eos=ends)
    table.save(output)
    click.echo(
        f"{output}: {table.num_items:,} rows, {table.num_sequences:,} distinct, {table.nbytes / 1e6:,.1f} MB, "
        f"{time.perf_counter() - began:.2f} s"
    )


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
