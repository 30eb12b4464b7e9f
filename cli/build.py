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
@click.option("--eos", type=click.IntRange(min=0), help="Token that a model writes to end a sequence.")
@options.table_output
def build(source: Path, columns: tuple[str, ...], vocab_size: int, ragged: bool, eos: int | None, output: Path) -> None:
    """Compile the sequences in SOURCE (.parquet, .arrow, .feather or .npy) into a table."""
    began = time.perf_counter()
    ids = read_sequences(source, columns)
    table = compile_sequences(ids, vocab_size=vocab_size, eos=eos) if ragged else compile_sids(ids, vocab_size, eos=eos)
    table.save(output)
    click.echo(
        f"{output}: {table.trie.item_row.size:,} rows, {table.num_sequences:,} distinct, {table.nbytes / 1e6:,.1f} MB, "
        f"{time.perf_counter() - began:.2f} s"
    )
