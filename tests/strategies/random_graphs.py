"""Random tables of states, as graphs and as tries."""

from __future__ import annotations

import functools
import itertools
import re
from typing import Any

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

import maskwright as mw
from tests.strategies.tables import table_of

some = settings(deadline=None, max_examples=50, suppress_health_check=list(HealthCheck))
seeds = st.integers(0, 2**32 - 1)


def random_graph(seed: int) -> mw.TransitionTable:
    """A table made of everything that graphs have: bases, classes, relative codes, own edges, edges that kill."""
    rng = np.random.default_rng(seed)
    size = int(rng.choice([1, 2, 5, 31, 32, 33, 64, 70, 300]))
    rows = int(rng.integers(1, 11))
    eos = None if rng.random() < 0.3 else int(rng.integers(size))
    words = -(-size // 32)
    tokens = np.array([t for t in range(size) if t != eos], np.int64)
    kind = np.min_scalar_type(size + 1)
    bits = rng.random((int(rng.integers(1, 4)), 32 * words)) < rng.choice([0.2, 0.6, 1.0])
    bits[:, np.setdiff1d(np.arange(32 * words), tokens)] = False
    masks = np.packbits(bits, axis=1, bitorder="little").view("<u4").astype(np.uint32)
    lists = []  # {token: class}
    for _ in range(int(rng.integers(1, 4))):
        classed = np.sort(rng.choice(size, int(rng.integers(0, min(size, 12) + 1)), replace=False))
        lists.append({int(t): int(rng.integers(4)) for t in classed})
    bases: list[tuple[int, int, list[int]]] = []
    base_row, own = np.full(rows, -1, np.int32), []
    bare = rng.choice([0.2, 0.8])  # how many rows have no base
    for s in range(rows):
        if rng.random() < bare:
            continue
        mask, group = int(rng.integers(len(masks))), int(rng.integers(len(lists)))
        codes = [2 * int(t) + 1 if r else 2 * int(t + s) for t, r in zip(
            rng.integers(-s, rows - s, 4), rng.random(4) < 0.5, strict=True
        )]  # fmt: skip
        present = {lists[group].get(t, 0) for t in np.flatnonzero(bits[mask]).tolist()}
        codes = [code if k in present or rng.random() < 0.5 else int(rng.choice([2 * rows - 2, 3 - 2 * rows, 1]))
                 for k, code in enumerate(codes)]  # fmt: skip
        bases.append((mask, group, codes))
        base_row[s] = len(bases) - 1
        for other in range(s):  # or one that an earlier row has, where its codes lead to rows from here as well
            if base_row[other] >= 0 and rng.random() < 0.5:
                m, g, cs = bases[base_row[other]]
                used = {lists[g].get(t, 0) for t in np.flatnonzero(bits[m]).tolist()}
                if all(0 <= (cs[k] >> 1) + (cs[k] & 1) * s < rows for k in used):
                    base_row[s] = base_row[other]
                    break
    for s in range(rows):
        count = int(rng.integers(0, min(tokens.size, rng.choice([1, 4, 40])) + 1))
        row = {int(t): int(rng.integers(rows)) for t in rng.choice(tokens, count, replace=False)}
        if base_row[s] >= 0:
            for t in row:
                if bits[bases[base_row[s]][0], t] and rng.random() < 0.4:
                    row[t] = rows + 1  # the dead state
        own.append(dict(sorted(row.items())))
    arrays: dict[str, Any] = {
        "rows.edge_start": np.cumsum([0, *map(len, own)]).astype(np.int32),
        "edges.token": np.array([*(t for row in own for t in row), size, size + 1], kind),
        "edges.target": np.array([t for row in own for t in row.values()], np.int32),
        "rows.base": base_row,
        "bases.masks": masks,
        "bases.mask": np.array([m for m, _, _ in bases], np.int32),
        "bases.class_list": np.array([g for _, g, _ in bases], np.int32),
        "bases.target_start": np.arange(0, 4 * len(bases) + 1, 4).astype(np.int32),
        "bases.target": np.array([c for _, _, codes in bases for c in codes], np.int32),
        "classes.start": np.cumsum([0, *map(len, lists)]).astype(np.int32),
        "classes.token": np.array([t for group in lists for t in group], kind),
        "classes.number": np.array([k for group in lists for k in group.values()], np.int32),
    }
    accepting = rng.random(rows) < rng.choice([0.1, 0.4])
    while True:
        try:
            return table_of({**arrays, "rows.accepting": accepting.copy()}, vocab_size=size, eos=eos)
        except mw.errors.TableError as error:
            dead_end = re.fullmatch(r"no end can be reached from a row: .* \(at (\d+)\)", str(error))
            if dead_end is None:
                raise
            accepting[int(dead_end[1])] = True


def random_trie(seed: int) -> mw.TransitionTable:
    """Sequences of different lengths, with tails and, for some seeds, a level of masks."""
    rng = np.random.default_rng(seed)
    eos = 0 if rng.random() < 0.6 else None
    if rng.random() < 0.4:
        size = int(rng.choice([33, 64, 70]))
        return mw.compile_sids(rng.integers(eos is not None, size, (600, 3)), size, eos=eos)
    size = int(rng.choice([3, 33, 300]))
    high = min(size, int(rng.choice([3, 6, 300])))
    rows = [rng.integers(1, high, rng.integers(1, 7)).tolist() for _ in range(int(rng.integers(1, 30)))]
    return mw.compile_sequences(rows, vocab_size=size, eos=eos)


def random_table(seed: int) -> mw.TransitionTable:
    return random_trie(seed) if seed % 4 == 0 else random_graph(seed)


@functools.cache
def bound_pattern() -> mw.TransitionTable:
    """A regular expression bound to a vocabulary wide enough that rows share bases."""
    letters = [bytes(w) for n in range(1, 6) for w in itertools.product(b"abcd", repeat=n)]
    rng = np.random.default_rng(0)
    longer = {bytes(rng.choice(list(b"abcd"), rng.integers(6, 12)).tolist()) for _ in range(900)}
    vocab = mw.Vocabulary.from_bytes([b"", *letters, *sorted(longer), *(bytes([b]) for b in range(256))], eos=0)
    table = mw.compile_regex("(?:[abc]{0,40}[bcd]{5,30})(?:x[abcd]*abc[abcd]*)?", vocab, lazy=False)
    assert not table.is_trie
    assert table.bases.mask.size > 1
    assert (table.bases.target & 1).any(), "relative codes"
    assert table.num_edges
    assert (table.edges.target == table.dead).any(), "edges that take a token away"
    assert table.classes.token.size
    return table


def some_nodes(table: mw.TransitionTable, most: int, seed: int = 0) -> np.ndarray:
    """States of all kinds in any order, the dead one and that after EOS among them."""
    rng = np.random.default_rng(seed)
    nodes = rng.permutation(table.num_states)[:most]
    return np.concatenate([[0], nodes, [table.dead, table.after_eos]])
