"""Tables whose sequences are known, and the tests that draws from them pass."""

from __future__ import annotations

import functools
from collections import Counter
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import chi2

import maskwright as mw
from maskwright.runtime import numpy_ops
from tests.oracles import naive
from tests.support.backends import out

ERROR = 1e-6  # how often each statistical test would fail a correct program, were its seed not fixed


class Case(NamedTuple):
    """A table whose sequences, within max_tokens, are known."""

    table: mw.TransitionTable
    rows: set[naive.Tokens]
    max_tokens: int

    @property
    def vocab(self) -> int:
        return self.table.vocab_size


def members(table: mw.TransitionTable, max_tokens: int, distances: bool = True) -> set[naive.Tokens]:
    """Return all sequences of a table with EOS of at most max_tokens tokens, by walking the specification.

    distances: those that may be begun under a budget. Of nested tables these are fewer, as distances are upper bounds.
    """
    table, found, live = table.to_table(), set(), [((), (0, ()))]
    while live:
        prefix, place = live.pop()
        for token, target in numpy_ops.moves(table, place).items():
            if token == table.eos:
                found.add(prefix)
            elif len(prefix) < max_tokens and (
                not distances or numpy_ops.fewest_tokens(table, target) < max_tokens - len(prefix)
            ):
                live.append(((*prefix, token), target))
    return found


@functools.cache
def case(name: str) -> Case:
    rng = np.random.default_rng(3)
    if name.startswith("sids"):
        rows = rng.integers(1, 8, (30, 3))
        table = mw.compile_sids(rows, 40, eos=0 if "eos" in name else None)
        return Case(table, set(map(tuple, rows.tolist())), 3)
    if name == "ragged":
        rows = {(1,), (1, 2), (1, 2, 3, 4), (5, 5), (5, 6, 7), (6,), (7, 1, 1, 1), (7, 2)}
        return Case(mw.compile_sequences(sorted(rows), vocab_size=8, eos=0), rows, 4)
    if name == "regex":
        vocab = mw.Vocabulary.from_bytes([b"", b"a", b"b", b"ab", b"bb", b"c"], eos=0)
        table = mw.compile_regex("(a|bb){0,2}c?", vocab)
        return Case(table, members(table, 5), 5)
    if name == "endless":
        vocab = mw.Vocabulary.from_bytes([b"", b"a", b"b", b"ab", b"c"], eos=0)
        table = mw.compile_regex("a(b|ab)*c", vocab)
        return Case(table, members(table, 5), 5)
    if name == "choices":  # a graph in which few tokens are allowed everywhere: the static way, without levels
        vocab = mw.Vocabulary.from_bytes([b"", *(bytes([b]) for b in range(97, 123))], eos=0)
        table = mw.compile_regex("ab|acd|b", vocab)
        return Case(table, members(table, 3), 3)
    words = [b"", b"[", b"]", b",", b"[[", b"]]", b"[]", b"],[", b"[],"]
    words += [bytes([b]) for b in range(256) if bytes([b]) not in words]
    lists = {"type": "array", "items": {"$ref": "#"}, "maxItems": 2}
    table = mw.compile_json_schema(lists, mw.Vocabulary.from_bytes(words, eos=0), depth=3, whitespace="compact")
    return Case(table, members(table, 5, distances=name == "lists"), 5)


def seeded(name: str, seed: int = 0) -> Any:
    if name == "numpy":
        return np.random.default_rng(seed)
    if name == "torch":
        import torch

        return torch.Generator().manual_seed(seed)
    import jax

    return jax.random.key(seed)


def fits(counts: Counter[Any], wanted: dict[Any, float]) -> None:
    """Fail unless counts are from a distribution, by a chi-square test; outcomes expected less than 5 times are one."""
    n = sum(counts.values())
    assert set(counts) <= set(wanted)
    assert abs(sum(wanted.values()) - 1) < 1e-9
    likely = [x for x, p in wanted.items() if n * p >= 5]
    observed, expected = [counts[x] for x in likely], [n * wanted[x] for x in likely]
    if n - sum(expected) >= 5:
        observed, expected = [*observed, n - sum(observed)], [*expected, n - sum(expected)]
    statistic = sum((o - e) ** 2 / e for o, e in zip(observed, expected, strict=True))
    assert len(expected) > 1
    assert statistic < chi2.isf(ERROR, len(expected) - 1), "statistic"


PROMPTS = [(0,), (3, 2, 0)]


RECORD = r'\{"name": "(Ada|Alan|Bo)", "tags": \[("a"|"ab")?\], "kind": "(north|northern) pole"\}'


@cache
def words() -> mw.Vocabulary:
    """All bytes and some words, written by the longest match."""
    more = [
        b"Ada",
        b"Al",
        b'{"',
        b"name",
        b'": "',
        b'", "',
        b'": [',
        b"tags",
        b"kind",
        b"nor",
        b"north",
        b"th",
        b" pole",
    ]
    return mw.Vocabulary.from_bytes([b"", *more, b'"}', *(bytes([b]) for b in range(256))], eos=0)


@cache
def subject(kind: str) -> tuple[mw.TransitionTable, Any, int]:
    """A table, its vocabulary where text is forced by it, and a greatest length."""
    if kind == "record":
        return mw.compile_regex(RECORD, words()), words(), 60
    if kind == "tree":
        schema = {
            "type": "object",
            "properties": {"on": {"type": "boolean"}, "sub": {"$ref": "#"}},
            "required": ["on"],
            "additionalProperties": False,
        }
        return mw.compile_json_schema(schema, words(), depth=2, whitespace=(", ", ": ")), words(), 80
    c = case(kind)
    return c.table, None, c.max_tokens


def rows_of(found: Any) -> list[tuple[int, ...] | None]:
    """Return the tokens of each row, None of those that are not valid."""
    columns = (out(found.tokens), out(found.lengths), out(found.valid))
    assert all((tokens[n:] == -1).all() for tokens, n, _ in zip(*columns, strict=True))
    return [tuple(tokens[:n].tolist()) if ok else None for tokens, n, ok in zip(*columns, strict=True)]
