"""The file of a live set's base: its sequences, how many items each has, and how much of a log is in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import TableError, TableFileError
from . import file
from .sorted_matrix import SortedMatrix
from .update_log import Covered

FORMAT_VERSION = 1
"""Version of the file format."""

_FILE = file.FileKind(
    "maskwright.live", "base of a live set", FORMAT_VERSION, FORMAT_VERSION, "save it again with compact(save=)"
)


def write_base(path: str | Path, base: SortedMatrix, counts: NDArray[Any], covered: Covered | None) -> None:
    """Write a base to one file, in full or not at all; it is on the disk on return. counts: items of each sequence."""
    header = {
        "arrays": ["columns", "counts"],
        "vocab_size": base.vocab_size,
        "covered": None if covered is None else [covered.header.hex(), covered.end],
    }
    file.write_arrays(path, _FILE, header, {"columns": base.columns, "counts": counts}, durable=True)


def read_base(path: str | Path) -> tuple[SortedMatrix, Covered | None]:
    """Return a base, each of whose sequences has its items, and how much of a log is in it.

    Raises FileNotFoundError; TableFileError for a file that is truncated, no base, or changed since it was written.
    """
    header, arrays = file.read_arrays(path, _FILE, None)
    try:
        counts = arrays["counts"]
        start = np.empty(0, np.int64) if (counts == 1).all() else np.append(0, np.cumsum(counts, dtype=np.int64))
        matrix = SortedMatrix(header["vocab_size"], arrays["columns"], start)
        covered = header["covered"]
        return matrix, None if covered is None else Covered(bytes.fromhex(covered[0]), covered[1])
    except (TableError, TypeError, KeyError, ValueError) as error:
        raise TableFileError(f"{path} is not a valid base of a live set: {error}") from error
