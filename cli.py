"""The command line: `maskwright build`, `inspect` and `demo`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.console import Console
from rich.table import Table

from . import __version__, compile_sequences, compile_sids
from .errors import ConstraintError, MaskwrightError, MissingDependencyError
from .table import TransitionTable


class _Commands(click.Group):
    """Shows maskwright's own errors as one line, without a traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (MaskwrightError, FileNotFoundError) as error:
            raise click.ClickException(str(error)) from None


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__)
def main() -> None:
    """Compile what a model may write into one flat table."""


@main.command()
@click.argument("source", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--column", "columns", multiple=True, help="Column of integer lists; or one --column per token position.")
@click.option("--vocab-size", type=click.IntRange(min=1), required=True, help="Tokens lie in 0 .. N - 1.")
@click.option("--ragged", is_flag=True, help="Sequences differ in length.")
@click.option("--eos", type=click.IntRange(min=0), help="Token that a model writes to end a sequence.")
@click.option("-o", "--output", type=click.Path(dir_okay=False, path_type=Path), required=True)
def build(source: Path, columns: tuple[str, ...], vocab_size: int, ragged: bool, eos: int | None, output: Path) -> None:
    """Compile the sequences in SOURCE (.parquet, .arrow, .feather or .npy) into a table."""
    if not output.parent.is_dir():
        raise click.UsageError(f"there is no folder {output.parent} to write {output.name} in")
    began = time.perf_counter()
    ids = _read(source, columns)
    table = compile_sequences(ids, vocab_size=vocab_size, eos=eos) if ragged else compile_sids(ids, vocab_size, eos=eos)
    table.save(output)
    rows = table.item_row.size
    click.echo(
        f"{output}: {rows:,} rows, {table.num_sequences:,} distinct, {table.nbytes / 1e6:,.1f} MB, "
        f"{time.perf_counter() - began:.2f} s"
    )


@main.command()
@click.argument("table", type=click.Path(exists=True, dir_okay=False, path_type=Path))
def inspect(table: Path) -> None:
    """Show what a table holds: states, edges, bytes by part, branch counts by level."""
    _show(TransitionTable.load(table), Console())


@main.command()
@click.option(
    "--data",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Real semantic IDs and histories (folders index, info, valid, test) instead of the synthetic catalogue.",
)
@click.option(
    "--out", type=click.Path(file_okay=False, path_type=Path), default=Path("demo-results"), show_default=True
)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
def demo(data: Path | None, out: Path, seed: int) -> None:
    """Train a small generative-retrieval model and compare unconstrained with constrained beam search."""
    from . import demo as package  # brings in torch and scikit-learn

    report = package.run(data=data, out=out, seed=seed, progress=lambda line: click.echo(line, err=True))
    report.print(Console())


def _read(source: Path, columns: tuple[str, ...]) -> Any:
    """Return the sequences of a file as an array, a memory map or an Arrow column."""
    if source.suffix == ".npy":
        if columns:
            raise click.UsageError("--column goes with Parquet and Arrow files; a .npy file holds one array")
        try:
            array = np.load(source, mmap_mode="r", allow_pickle=False)
        except (ValueError, EOFError, OSError) as error:
            raise ConstraintError(f"{source} cannot be read: {error}") from None
        if not isinstance(array, np.ndarray):
            array.close()
            raise ConstraintError(f"{source} holds several arrays: save the one with the sequences by itself")
        return array
    if source.suffix not in (".parquet", ".arrow", ".feather"):
        raise click.UsageError(f"{source} is neither .parquet, .arrow, .feather nor .npy")
    try:
        import pyarrow.feather
        import pyarrow.parquet
    except ModuleNotFoundError:
        raise MissingDependencyError(f"reading {source} needs pyarrow: pip install 'maskwright[arrow]'") from None
    parquet = source.suffix == ".parquet"
    try:
        names = (pyarrow.parquet.read_schema if parquet else _feather_schema)(source).names
        _check_columns(source, columns, names)
        table = (pyarrow.parquet.read_table if parquet else pyarrow.feather.read_table)(source, columns=list(columns))
    except (pyarrow.ArrowException, OSError) as error:
        raise ConstraintError(f"{source} cannot be read: {error}") from None
    if len(columns) == 1:
        return table.column(0)
    return np.stack([_token_column(name, table.column(name)) for name in columns], axis=1)


def _check_columns(source: Path, columns: tuple[str, ...], names: list[str]) -> None:
    if not columns:
        raise click.UsageError(f"name the column that holds the sequences with --column, one of: {', '.join(names)}")
    for name in columns:
        if name not in names:
            raise ConstraintError(f"{source} has no column {name!r}; it has {', '.join(names)}")


def _token_column(name: str, column: Any) -> Any:
    """Return a column of one token a row as an array."""
    import pyarrow

    if not pyarrow.types.is_integer(column.type):
        raise ConstraintError(f"column {name!r} holds {column.type}: tokens must be integers")
    if column.null_count:
        row = int(np.argmax(column.is_null().to_numpy()))
        raise ConstraintError(f"row {row} of column {name!r} is null: drop it or give it a token")
    return column.to_numpy()


def _feather_schema(source: Path) -> Any:
    import pyarrow

    with pyarrow.memory_map(str(source)) as file:
        return pyarrow.ipc.open_file(file).schema


def _show(table: TransitionTable, console: Console) -> None:
    facts = Table(box=None, show_header=False)
    lengths = (
        f"{table.min_length}" if table.min_length == table.max_length else f"{table.min_length} to {table.max_length}"
    )
    for name, value in (
        ("sequences", f"{table.num_sequences:,} distinct in {table.item_row.size:,} rows"),
        ("length", f"{lengths} tokens"),
        ("vocabulary", f"{table.vocabulary}, V = {table.vocab_size:,}, eos = {table.eos}"),
        ("states", f"{table.num_states:,}, of which {table.num_rows:,} have a row of edges"),
        ("edges", f"{table.num_edges:,}"),
        (
            "bytes",
            f"{table.nbytes:,} ({table.nbytes / table.num_sequences:.1f} a sequence), map to rows aside",
        ),
        ("source", table.source),
    ):
        facts.add_row(name, value)
    console.print(facts)

    parts = Table(title="bytes by part", title_justify="left")
    parts.add_column("array")
    parts.add_column("type")
    parts.add_column("shape")
    parts.add_column("bytes", justify="right")
    for name, size in table.bytes_by_part.items():
        array = getattr(table, name)
        parts.add_row(name, str(array.dtype), str(array.shape), f"{size:,}")
    console.print(parts)

    levels = Table(title="branches by level", title_justify="left")
    for heading in ("level", "rows", "edges", "most branches", "masks"):
        levels.add_column(heading, justify="right")
    for depth, level in enumerate(table.levels):
        rows = edges = 0
        if depth < table.level_start.size - 1:
            lo, hi = table.level_start[depth], table.level_start[depth + 1]
            rows, edges = int(hi - lo), int(table.row_start[hi] - table.row_start[lo])
        levels.add_row(str(depth), f"{rows:,}", f"{edges:,}", f"{level.width:,}", "yes" if level.dense else "")
    console.print(levels)


if __name__ == "__main__":
    main()
