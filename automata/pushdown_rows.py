"""The pieces that a pushdown machine is put together from, and the kernel that writes them into its rows."""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..kernels.arrays import Int32Array
from ..kernels.compiled import kernel
from .state_ranges import CALL, DEAD, KEEP, RETURN

ROOM = 1 << 16  # rows of a machine that grows, where those that are not written take no memory


class PieceArrays(NamedTuple):
    """Pieces as arrays: see `Pieces`."""

    blocks: NDArray[np.int32]  # (., 4)
    enters: NDArray[np.int32]  # (., 5)
    edges: NDArray[np.int32]  # (., 4)
    chains: NDArray[np.int32]  # (., 5)
    data: NDArray[np.uint8]
    copies: NDArray[np.int32]  # (., 2)
    late: NDArray[np.int32]  # (., 4)


class Pieces:
    """Pieces that were added and are not written yet, in flat lists."""

    def __init__(self) -> None:
        self.blocks: list[int] = []  # first call, calls, site, first target
        self.enters: list[int] = []  # state, state entered, first call, first state of its fragment, site
        self.edges: list[int] = []  # state, lowest byte, highest byte, code
        self.chains: list[int] = []  # state, first new state, code at the end, first byte, bytes
        self.data = bytearray()  # of chains
        self.copies: list[int] = []  # state, state copied
        self.late: list[int] = []  # as edges, written last

    def __bool__(self) -> bool:
        return bool(self.blocks or self.enters or self.edges or self.chains or self.copies or self.late)

    def arrays(self) -> PieceArrays:
        """Return the pieces as arrays."""
        return PieceArrays(
            _table(self.blocks, 4), _table(self.enters, 5), _table(self.edges, 4), _table(self.chains, 5),
            np.frombuffer(bytes(self.data), np.uint8), _table(self.copies, 2), _table(self.late, 4),
        )  # fmt: skip


class NewRows(NamedTuple):
    """Which rows pieces are written to: first .. stop but for holes, and those of states that were left for later."""

    first: int
    stop: int
    holes: NDArray[np.int32]  # (., 2) first state, states
    reached: NDArray[np.int32]


def _table(flat: Sequence[int], width: int) -> NDArray[np.int32]:
    return np.array(flat, np.int32).reshape(-1, width)


def growing_rows(least: int) -> NDArray[np.int32]:
    """Return rows of UNWRITTEN, `least` or more, that take memory as they are written.

    numpy asks for pages of 2 MB where an array is large. The first row in each takes 5 ms then, to clear the page.
    """
    if not hasattr(mmap, "MADV_NOHUGEPAGE"):  # not Linux
        return np.zeros((least, 256), np.int32)
    count = max(least, ROOM)
    memory = mmap.mmap(-1, 1024 * count, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(memory, np.int32).reshape(count, 256)


@kernel
def fill_rows(
    rows: Int32Array, calls: Int32Array, site_start: Int32Array, site_states: Int32Array, new: NewRows,
    pieces: PieceArrays, again: int,
) -> None:  # fmt: skip
    """Write new rows and calls by their pieces. again: keep rows of DFAs, which were written since the first time."""
    first, stop, holes, reached = new
    blocks, enters, edges, chains, data, copies, late = pieces
    if not again:
        at = np.int64(first)
        for i in range(len(holes)):
            rows[at : holes[i, 0]] = DEAD
            at = np.int64(holes[i, 0] + holes[i, 1])
        rows[at:stop] = DEAD
        for i in range(reached.size):
            rows[reached[i]] = DEAD
        for i in range(len(blocks)):
            for k in range(blocks[i, 1]):
                calls[blocks[i, 0] + k, 0] = blocks[i, 2]
                calls[blocks[i, 0] + k, 1] = blocks[i, 3] + k
    for i in range(len(enters)):
        s, t, block, origin, site = enters[i, 0], enters[i, 1], enters[i, 2], enters[i, 3], enters[i, 4]
        for b in range(256):
            code = rows[t, b]
            if code > 0:
                rows[s, b] = CALL - (block + code - origin)
            elif code <= RETURN and code > KEEP:
                rows[s, b] = site_states[site_start[site] + RETURN - code]
    for i in range(len(edges)):
        for b in range(edges[i, 1], edges[i, 2] + 1):
            rows[edges[i, 0], b] = edges[i, 3]
    for i in range(len(chains)):
        s, fresh, at, n = chains[i, 0], chains[i, 1], chains[i, 3], chains[i, 4]
        for k in range(n):
            code = chains[i, 2] if k == n - 1 else fresh + k
            rows[s, data[at + k]] = code
            s = fresh + k
    for i in range(len(copies)):
        rows[copies[i, 0]] = rows[copies[i, 1]]
    for i in range(len(late)):
        for b in range(late[i, 1], late[i, 2] + 1):
            rows[late[i, 0], b] = late[i, 3]
