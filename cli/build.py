"""`maskwright build`: sequences of tokens, such as semantic IDs, compiled into a table."""

from __future__ import annotations

import time
from pathlib import Path

import click

from ..compile.sequences import compile_sequences, compile_sids
from . import options
from .sequence_files import read_sequences


@click.command()
@click.argument("source", type=options.FILE)
@click.option("--column", "columns", multiple=True, help="Column of integer lists; or one --column per token position.")
@click.option("--vocab-size", type=click.IntRange(min=1), required=True, help="Tokens lie in 0 .. N - 1.")
@click.option("--ragged", is_flag=True, help="The sequences differ in length.")
@click.option(
    "--eos",
    type=click.IntRange(min=0),
    multiple=True,
    help="Token that a model writes to end a sequence; more than once for several.",
)
@options.table_output
def build(
    source: Path, columns: tuple[str, ...], vocab_size: int, ragged: bool, eos: tuple[int, ...], output: Path
) -> None:
    """Compile the sequences in SOURCE (.parquet, .arrow, .feather or .npy) into a table."""
    began = time.perf_counter()
    ids = read_sequences(source, columns)
    ends = eos or None
    if ragged:
        table = compile_sequences(ids, vocab_size=vocab_size, eos=ends)
    else:
        table = compile_sids(ids, vocab_size, eos=ends)
    table.save(output)
    click.echo(
        f"{output}: {table.trie.item_row.size:,} rows, {table.num_sequences:,} distinct, {table.nbytes / 1e6:,.1f} MB, "
        f"{time.perf_counter() - began:.2f} s"
    )
