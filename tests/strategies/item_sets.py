"""Sets of items as matrices: fixed ones, and ones that change."""

from __future__ import annotations

import functools
from collections import Counter
from typing import Any, NamedTuple

import numpy as np

import maskwright as mw
from maskwright.runtime.device.device_table import MatrixState
from maskwright.table.live_sids import LiveSids
from maskwright.table.sorted_matrix import SortedMatrix


class Case(NamedTuple):
    """A set as a table and as a matrix, with all its prefixes as states of both, and the dead state last."""

    rows: np.ndarray
    table: mw.TransitionTable
    matrix: SortedMatrix
    nodes: np.ndarray  # (P,) states of the table
    state: MatrixState  # (P,) intervals found in a sorted list of tuples

    @property
    def vocab(self) -> int:
        return self.table.vocab_size

    def some(self, count: int) -> np.ndarray:
        """Return places of states of all depths, the dead one among them: as many for all cases."""
        at = [np.flatnonzero(self.state.depth == depth)[::-1] for depth in range(self.matrix.length + 1)]
        return np.resize([row[i] for i in range(count) for row in at if i < len(row)][:count], count)

    def as_matrix(self, nodes: np.ndarray) -> MatrixState:
        """Return the intervals of states of the table."""
        at = np.searchsorted(self.nodes, nodes)
        assert (self.nodes[at] == nodes).all()
        return MatrixState(*(array[at] for array in self.state))


@functools.cache
def case(name: str) -> Case:
    rng = np.random.default_rng(4)
    rows, vocab = {
        "few tokens": lambda: (rng.integers(0, 5, (60, 4)), 5),  # with duplicates
        "masks": lambda: (rng.integers(0, 100, (9000, 3)), 100),  # after the first token too
        "more rows than tokens": lambda: (rng.integers(0, 4, (3000, 7)), 4),
        "skewed": lambda: (np.stack([rng.zipf(1.5, 900) % 9, rng.zipf(1.2, 900) % 60, np.arange(900) % 59], 1), 500),
        "two words": lambda: (rng.choice([3, 2999], (300, 12)), 3000),
        "late": lambda: (np.insert(np.indices((20, 20)).reshape(2, -1).T, [0], [[9] * 7], axis=1), 300),
        "one row": lambda: (np.array([[4, 0, 32, 7]]), 33),
        "all rows equal": lambda: (np.array([[4, 0, 32, 7]] * 5), 33),
        "one token": lambda: (rng.integers(0, 70, (30, 1)), 70),
        "two in all": lambda: (rng.integers(0, 2, (50, 5)), 2),
        "one in all": lambda: (np.zeros((3, 2), np.int64), 1),
    }[name]()
    table, matrix = mw.compile_sids(rows, vocab), mw.sort_sids(rows, vocab)
    distinct = sorted({tuple(row) for row in rows.tolist()})
    places: dict[int, tuple[int, int, int]] = {}
    for depth in range(rows.shape[1] + 1):
        heads = np.array(distinct)[:, :depth]
        nodes = table.walk(heads) if depth else np.zeros(len(heads), np.int64)
        for at, node in enumerate(nodes.tolist()):
            low, _, _ = places.get(node, (at, 0, 0))
            places[node] = low, at + 1, depth
    places[table.dead] = (len(distinct), len(distinct), rows.shape[1])
    nodes = np.array(sorted(places))
    state = MatrixState(*np.array([places[node] for node in nodes.tolist()]).T)
    return Case(rows, table, matrix, nodes, state)


CASES = [
    "few tokens", "masks", "more rows than tokens", "skewed", "two words", "late",
    "one row", "all rows equal", "one token", "two in all", "one in all",
]  # fmt: skip


def some_logits(count: int, vocab: int, seed: int = 0, special: bool = False) -> np.ndarray:
    """Logits (count, V + 3): wider than the vocabulary, with rows that have no distribution if `special`."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(count, vocab + 3)).astype(np.float32)
    if special:
        logits[rng.random(logits.shape) < 0.1] = -np.inf
        for at, value in enumerate((np.nan, np.inf, -np.inf)):
            logits[at::17] = value
        logits[3::17, vocab + 1] = np.nan  # not allowed: it spoils the full softmax, but no mask
    return logits


Items = Counter[tuple[int, ...]]
KINDS = {  # vocabulary, length, rows of the base, tokens that are drawn from
    "few tokens": (5, 4, 60, 5),
    "masks": (100, 3, 3000, 100),
    "skewed": (60, 3, 900, 9),
    "one token": (70, 1, 30, 70),
    "two words": (3000, 12, 100, 2),
}


class Changing:
    """A live set beside a Counter, with random updates of both."""

    def __init__(self, kind: str, seed: int = 0, **options: Any) -> None:
        self.vocab, self.length, rows, self.tokens = KINDS[kind]
        self.rng = np.random.default_rng(seed)
        drawn = self.draw(rows)
        self.items: Items = Counter(map(tuple, drawn.tolist()))
        self.base = mw.sort_sids(drawn, self.vocab)
        options = {"capacity": 300, "widths": (300,) * self.length} | options
        self.live = LiveSids(self.base, **options)

    def draw(self, count: int) -> np.ndarray:
        skew = self.rng.integers(0, self.tokens, (2, count, self.length)).min(axis=0)
        return skew * ((self.vocab - 1) // max(1, self.tokens - 1))

    def update(self, most: int = 12) -> None:
        """Insert some items, known and new ones, and delete some."""
        known = list(self.items.elements())
        add = self.draw(int(self.rng.integers(1, most)))
        if known:
            add = np.concatenate([add, [known[i] for i in self.rng.integers(0, len(known), 2)]])
        self.live.insert(add)
        self.items.update(map(tuple, add.tolist()))
        known = list(self.items.elements())
        gone = [known[i] for i in self.rng.permutation(len(known))[: self.rng.integers(0, most)]]
        self.live.delete(np.array(gone, np.int64).reshape(-1, self.length))
        self.items.subtract(gone)
        self.items = +self.items

    def table(self) -> mw.TransitionTable:
        """The table of the sequences that are in the set."""
        return mw.compile_sids(np.array(list(self.items)), self.vocab)


def walked(ops: Any, dev: Any, rows: np.ndarray, depths: np.ndarray, into: Any) -> Any:
    """States that `advance` comes to after the first tokens of rows, `depths` of them."""
    state = ops.start(dev, len(rows))
    for at in range(rows.shape[1]):
        after = ops.advance(dev, state, into(rows[:, at].astype(np.int64)))
        state = type(state)(*(ops.arrays.where(into(depths > at), a, b) for a, b in zip(after, state, strict=True)))
    return state
