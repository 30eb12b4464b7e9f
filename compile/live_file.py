"""The file of a live catalogue: all rows of its items, which of them are live, and how much of a log is in it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import TableError, TableFileError
from ..table import file
from ..table.item_ids import ItemIds
from ..table.update_log import ITEMS, Covered, header_of
from .catalogue import Catalogue
from .sequences import sort_sids
from .sid_tokens import CodeTokens

FORMAT_VERSION = 1
"""Version of the file format."""

_FILE = file.FileKind(
    "maskwright.live_catalogue", "live catalogue", FORMAT_VERSION, FORMAT_VERSION, "save it again with compact(save=)"
)


class ItemRows(NamedTuple):
    """N items of a live catalogue, in the order in which they came."""

    tokens: NDArray[Any]  # (N, L)
    live: NDArray[np.bool_]  # (N,) those that were not deleted
    ids: ItemIds  # (N,)

    def header(self, vocab_size: int) -> bytes:
        """Return how a log begins of what comes after these."""
        arrays = (self.tokens, self.live, *self.ids.by_name().values())
        return header_of(ITEMS, vocab_size, self.tokens.shape[1], len(self.tokens), arrays)


def write_live(path: str | Path, like: Catalogue, rows: ItemRows, covered: Covered | None) -> None:
    """Write rows to one file, in full or not at all; it is on the disk on return. like: has all but the items."""
    named = {"tokens": np.ascontiguousarray(rows.tokens), "live": rows.live.astype(np.uint8)} | rows.ids.by_name()
    named |= {f"codes.{level}": tokens for level, tokens in enumerate(like.code_tokens.lists)}
    header = {
        "arrays": list(named),
        "vocab_size": like.table.vocab_size,
        "vocabulary": like.vocabulary,
        "offsets": list(like.code_tokens.offsets),
        "metadata": dict(like.metadata),
        "covered": None if covered is None else [covered.header.hex(), covered.end],
    }
    file.write_arrays(path, _FILE, header, named, durable=True)


def read_live(path: str | Path) -> tuple[Catalogue, ItemRows, Covered | None]:
    """Return the catalogue of the live rows, all rows, and how much of a log is in them.

    Raises FileNotFoundError; TableFileError for a file that is truncated, no live catalogue, or changed since it was
    written.
    """
    header, named = file.read_arrays(path, _FILE, None)
    try:
        tokens, live, ids = named["tokens"], named["live"].astype(np.bool_), ItemIds.from_names(named)
        if tokens.ndim != 2 or live.shape != tokens.shape[:1] or len(ids) != len(tokens) or not live.any():
            raise TableError("tokens, live rows and ids do not fit each other")
        rows, covered = ItemRows(tokens, live, ids), header["covered"]
        known = CodeTokens(
            tuple(header["offsets"]), tuple(named[name] for name in header["arrays"] if name.startswith("codes."))
        )
        alive = np.flatnonzero(live)
        matrix = sort_sids(tokens[alive], header["vocab_size"])
        catalogue = Catalogue(matrix, ids.take(alive), known, header["vocabulary"], header["metadata"])
        return catalogue, rows, None if covered is None else Covered(bytes.fromhex(covered[0]), covered[1])
    except (TableError, TypeError, KeyError, ValueError) as error:
        raise TableFileError(f"{os.fspath(path)} is not a valid live catalogue: {error}") from error
