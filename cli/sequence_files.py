"""Reading sequences of tokens from .npy, Parquet and Arrow files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np
from numpy.typing import NDArray

from ..errors import ConstraintError, MissingDependencyError

if TYPE_CHECKING:
    import pyarrow as pa


def read_sequences(source: Path, columns: tuple[str, ...]) -> Any:  # an array, a memory map or an Arrow column
    """Return the sequences in a file: one column of integer lists, or columns of one token a row.

    Raises ConstraintError, MissingDependencyError, and UsageError for options that do not fit the file.
    """
    if source.suffix == ".npy":
        if columns:
            raise click.UsageError("--column goes with Parquet and Arrow files; a .npy file holds one array")
        return _read_npy(source)
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


def _read_npy(source: Path) -> NDArray[Any]:
    try:
        array = np.load(source, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError, OSError) as error:
        raise ConstraintError(f"{source} cannot be read: {error}") from None
    if not isinstance(array, np.ndarray):
        array.close()
        raise ConstraintError(f"{source} holds several arrays: save the one with the sequences by itself")
    return array


def _check_columns(source: Path, columns: tuple[str, ...], names: list[str]) -> None:
    if not columns:
        raise click.UsageError(f"name the column that holds the sequences with --column, one of: {', '.join(names)}")
    for name in columns:
        if name not in names:
            raise ConstraintError(f"{source} has no column {name!r}; it has {', '.join(names)}")


def _token_column(name: str, column: pa.ChunkedArray) -> NDArray[Any]:
    """Return a column of one token a row as an array."""
    import pyarrow

    if not pyarrow.types.is_integer(column.type):
        raise ConstraintError(f"column {name!r} holds {column.type}: tokens must be integers")
    if column.null_count:
        row = int(np.argmax(column.is_null().to_numpy()))
        raise ConstraintError(f"row {row} of column {name!r} is null: drop it or give it a token")
    tokens: NDArray[Any] = column.to_numpy()
    return tokens


def _feather_schema(source: Path) -> Any:  # pyarrow has no types
    import pyarrow

    with pyarrow.memory_map(str(source)) as file:
        return pyarrow.ipc.open_file(file).schema
