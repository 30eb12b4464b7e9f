"""Kernels take tables of every width: the type of tokens follows the vocabulary's size, that of edges the table's."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

import maskwright as mw
from maskwright.automata import sequence_sort, trie
from maskwright.runtime import numpy_ops

SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "string", "maxLength": 5}, "b": {"type": "array", "items": {"$ref": "#"}}},
    "required": ["a"],
}
KINDS = {
    "regex": lambda vocab: mw.compile_regex("[a-z]{2,9}|[^x]*y", vocab),
    "choices": lambda vocab: mw.compile_choices(["ab", "cde"], vocab),
    "schema": lambda vocab: mw.compile_json_schema(SCHEMA, vocab),
    "grammar": lambda vocab: mw.compile_grammar('start: "(" start ")" | /[a-z]+/', vocab),
    "tags": lambda vocab: mw.compile_structural_tag(mw.TaggedText([mw.Tag("<a>", "</a>", regex="[0-9]+")]), vocab),
}
CAPACITY = mw.Capacity(
    states=1 << 14, edges=1 << 19, bases=1 << 11, base_targets=1 << 14, masks=256, lists=1 << 11, classes=1 << 20,
    exits=1 << 14, sites=1 << 12, site_entries=1 << 16, actions=1 << 12, pushes=1 << 14, depth=65,
)  # fmt: skip


@cache
def vocabulary(size: int) -> mw.Vocabulary:
    rng = np.random.default_rng(0)
    longer = [bytes(rng.integers(97, 123, rng.integers(2, 5)).astype(np.uint8)) for _ in range(size - 257)]
    return mw.Vocabulary.from_bytes([b"", *(bytes([byte]) for byte in range(256)), *longer], eos=0)


def bits(mask: object) -> np.ndarray:
    return np.asarray(mask).view(np.uint32).reshape(-1)


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "size"),
    [
        pytest.param(kind, size, marks=pytest.mark.slow if size > 300 and kind != "regex" else ())
        for kind in KINDS
        for size in (257, 300, 70_000)
    ],
)
def test_a_matcher_and_all_operations_allow_the_same_tokens(kind, size):
    torch = pytest.importorskip("torch")
    from maskwright.runtime import torch_ops

    vocab = vocabulary(size)
    constraint = KINDS[kind](vocab)
    table = constraint.to_table()
    arena = mw.Arena(vocab, CAPACITY, distances=True)
    handle = arena.add(table)
    devices = [(numpy_ops, numpy_ops.to_device(table)), (torch_ops, torch_ops.to_device(table, distances=True))]
    devices += [(ops, ops.with_start_states(ops.to_device(arena), [handle])) for ops in (numpy_ops, torch_ops)]
    states = [ops.start(dev, 1) for ops, dev in devices]
    free, counted, whole = (
        mw.Matcher(constraint, vocab),
        mw.Matcher(constraint, vocab, max_tokens=40),
        mw.Matcher(table),
    )
    for step in range(4):
        expected, left = bits(free.mask()), np.array([40 - step])
        assert np.array_equal(bits(whole.mask()), expected)
        for (ops, dev), state in zip(devices, states, strict=True):
            rest = left if ops is numpy_ops else torch.from_numpy(left)
            assert np.array_equal(bits(ops.bitmask(dev, state)), expected), ops
            assert np.array_equal(bits(ops.bitmask(dev, state, rest)), bits(counted.mask())), ops
        allowed = np.flatnonzero(np.unpackbits(expected.view(np.uint8), bitorder="little"))
        token = int(allowed[len(allowed) // 2])
        if token == vocab.eos or not counted.advance(token):
            break
        assert free.advance(token)
        assert whole.advance(token)
        tokens = np.array([token])
        states = [
            ops.advance(dev, state, tokens if ops is numpy_ops else torch.from_numpy(tokens))
            for (ops, dev), state in zip(devices, states, strict=True)
        ]


@pytest.mark.parametrize("size", [5, 300, 70_000])
@pytest.mark.parametrize("sequences_too", [False, True])
def test_tries_with_edges_of_64_bits_are_as_those_of_32(size, sequences_too, monkeypatch):
    """Of many states: with many sequences too, or with few of them."""
    rows = np.random.default_rng(0).integers(1, min(size, 400), (500, 4))
    expected = mw.compile_sids(rows, size, eos=0)
    monkeypatch.setattr(trie, "WIDE", 0)
    if sequences_too:
        monkeypatch.setattr(sequence_sort, "WIDE", 0)
    table = mw.compile_sids(rows, size, eos=0)
    assert table.arrays.edges.target.dtype == np.int64
    for name, array in expected.arrays.by_name().items():
        if not name.startswith(("bases", "rows.base")):  # masks are made where they are small beside the edges
            assert np.array_equal(array, table.arrays.by_name()[name]), name
    assert np.array_equal(table.distance, expected.distance)
    assert np.array_equal(table.farthest, expected.farthest)
    assert table.contains(rows).all()
    assert not table.contains(np.array([[1, 1, 1, 0]])).any()
    ours, theirs = mw.Matcher(table, max_tokens=6), mw.Matcher(expected, max_tokens=6)
    assert np.array_equal(ours.mask(), theirs.mask())
