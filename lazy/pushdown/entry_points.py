"""The kernels that Python calls for a mask or a token, without numba's check of the arguments: see `entry_of`."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import numpy as np

from ...kernels.compiled import entry_of
from .content_mask import write_content
from .frames import frames_behind
from .free_contents import reads_little
from .mask import write_mask
from .mask_words import restore, write_free, write_short
from .step import read_token


class EntryPoints(NamedTuple):
    """The compiled kernels, by name."""

    write_mask: Callable[..., tuple[int, int, int, int]]
    write_content: Callable[..., tuple[int, int, int]]
    reads_little: Callable[..., bool]
    restore: Callable[..., None]
    read_token: Callable[..., tuple[int, int, int]]
    write_free: Callable[..., None]
    write_short: Callable[..., None]
    frames_behind: Callable[..., int]


@cache
def entry_points() -> EntryPoints:
    """Load the kernels, which takes 5 to 30 ms for each, before a caller waits for a mask."""
    header, words, numbers = (np.empty(0, kind) for kind in (np.int64, np.uint32, np.int32))
    groups = np.empty(0, np.uint64)
    groups.flags.writeable = False
    return EntryPoints(
        entry_of(write_mask, (0, 0, 0, 0, 0, 0, 0, 0, b"", 0, True, 0)),
        entry_of(write_content, (0, 0, 0, 0, 0, 0)),
        entry_of(reads_little, (header, 0)),
        entry_of(restore, (0, 0, 0, b"")),
        entry_of(read_token, (0, 0, b"", b"")),
        entry_of(write_free, (groups, np.uint64(0), words)),
        entry_of(write_short, (words, numbers, 0, words)),
        entry_of(frames_behind, (header, 0, 0)),
    )
