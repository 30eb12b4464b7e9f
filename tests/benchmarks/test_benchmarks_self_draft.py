"""The benchmark of self-drafting: its searches are those it names, and what is on record is not measured again."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("jax")

from benchmarks.suites import self_draft as bench  # noqa: E402
from examples.demo import DemoConfig  # noqa: E402
from examples.demo.model import ModelConfig, Transformer, blocks_of  # noqa: E402
from examples.demo.synthetic import SyntheticConfig  # noqa: E402
from maskwright.runtime import torch_ops  # noqa: E402
from maskwright.runtime.decode import beam_search  # noqa: E402

CONFIG = replace(
    DemoConfig(),
    synthetic=replace(SyntheticConfig(), items=300, users=200),
    model=replace(ModelConfig(), width=16, heads=2),
    training=replace(DemoConfig().training, steps=1, batch=4),
    beams=10,
    batch=5,
)
PLAN = bench.Plan(CONFIG, rows=15, rounds=1)
SETTINGS = {"training": {"steps": 1, "batch": 4}, "beams": 10, "batch": 5, "shape": (1, 2)}


def test_ordinary_search_takes_one_pass_a_level_and_finds_what_the_decoder_s_own_step_does():
    data, rows = bench.dataset_of(None, 0, PLAN)
    torch.manual_seed(0)
    network = Transformer(CONFIG.model, levels=data.catalogue.length, codes=data.catalogue.codes).eval().double()
    valid = bench.valid_of(data)
    search, passes = bench.ordinary(network, data, valid, PLAN), bench.Passes(network)
    torch.set_default_dtype(torch.float64)  # that of the empty caches
    try:
        found = search(rows)
        assert passes.count == data.catalogue.length
        blocks, counts = blocks_of(rows.histories, data.catalogue.sids, CONFIG.model.history)
        assert len(set(counts.tolist())) > 1  # histories of different lengths, so that padding is in the way
        step, cache = network.decoder(blocks, counts, 10)
        expected = beam_search(
            step, cache, valid.table, ops=torch_ops, batch=len(rows), beams=10, max_tokens=data.catalogue.length
        )
    finally:
        torch.set_default_dtype(torch.float32)
    assert passes.count == 2 * data.catalogue.length + 1
    assert torch.equal(found.tokens, expected.tokens)
    torch.testing.assert_close(found.scores, expected.scores, rtol=0, atol=1e-9)


def watched(monkeypatch: Any) -> list[str]:
    """Return a list to which each training adds its name."""
    trained: list[str] = []
    for name in ("train", "train_drafting"):
        real = getattr(bench, name)

        def note(*args: Any, _real: Any = real, _name: str = name, **options: Any) -> Any:
            trained.append(" ".join([_name, *map(str, options.values())]))
            return _real(*args, **options)

        monkeypatch.setattr(bench, name, note)
    monkeypatch.setattr(bench, "plot", lambda *_: None)
    return trained


def test_after_an_interruption_only_what_is_missing_is_measured_and_nothing_counts_twice(tmp_path, monkeypatch):
    trained = watched(monkeypatch)
    records = bench.Records(tmp_path / "r", SETTINGS)

    real, left = bench.Records.add, [2]

    def add(self: Any, record: Any) -> None:
        if not left[0]:
            raise KeyboardInterrupt
        left[0] -= 1
        real(self, record)

    monkeypatch.setattr(bench.Records, "add", add)
    with pytest.raises(KeyboardInterrupt):
        bench.run(None, 0, bench.HEADLINE, PLAN, records)
    left[0] = 1000
    assert trained == ["train", "train_drafting"]
    trained.clear()
    records = bench.Records(tmp_path / "r", SETTINGS)
    assert [one["method"] for one in records.all] == list(bench.HEADLINE[:2])
    bench.run(None, 0, bench.HEADLINE, PLAN, records)
    assert trained == ["train_drafting"], "what ordinary search found is on record"
    trained.clear()
    bench.run(None, 0, tuple(bench.ABLATIONS), PLAN, records)
    assert trained == ["train_drafting none", "train_drafting add", "train_drafting False"]
    bench.run(None, 0, bench.HEADLINE, PLAN, bench.Records(tmp_path / "r", SETTINGS))
    assert len(trained) == 3
    kept = json.loads((tmp_path / "r.json").read_text())["results"]["records"]
    assert [one["method"] for one in kept] == [*bench.HEADLINE, *bench.ABLATIONS]
    assert {row["seeds"] for row in bench.summarise(kept)["synthetic catalogue"].values()} == {1}
    assert not bench.Records(tmp_path / "r", {**SETTINGS, "beams": 9}).all, "of other settings"


def test_time_is_a_record_of_its_own_that_needs_no_training_and_can_be_taken_again(tmp_path, monkeypatch):
    trained = watched(monkeypatch)
    records = bench.Records(tmp_path / "r", SETTINGS)
    found: Any = {"data": "synthetic catalogue", "seed": 0, **dict.fromkeys(("invalid", "returned"), 0.0)}
    found |= {f"recall@{k}": 0.5 for k in bench.CUTOFFS}
    for method in (*bench.HEADLINE, *bench.ABLATIONS):
        records.add({**found, "method": method})
    steps = []
    real = bench.train_drafting

    def untrained(catalogue: Any, sequences: Any, model: Any, training: Any, *args: Any, **options: Any) -> Any:
        steps.append(training.steps)
        return real(catalogue, sequences, model, training, *args, **options)

    monkeypatch.setattr(bench, "train_drafting", untrained)
    bench.clock(None, PLAN, records)
    assert set(steps) == {0}
    (timed,) = (one for one in records.all if "latency_ms" in one)
    assert timed["passes"] == dict.fromkeys((*bench.HEADLINE, *bench.ABLATIONS), 1) | {bench.ORDINARY: timed["levels"]}
    assert {bench.BY_TABLE, bench.BY_MATRIX, bench.ALONE} <= timed["latency_ms"].keys()
    count = len(trained)
    bench.clock(None, PLAN, records)
    assert len(trained) == count, "it is on record"
    bench.clock(None, PLAN, records, again=True)
    assert len([one for one in records.all if "latency_ms" in one]) == 1
    assert len(records.all) == 1 + len(bench.HEADLINE) + len(bench.ABLATIONS)
    text = (tmp_path / "r.md").read_text()
    assert f"| {bench.ORDINARY} | 1 | 50.0 | 1.000 |" in text
    assert "look-up in the matrix" in text


def test_drafts_are_verified_by_what_the_method_names(monkeypatch):
    """At every step by the table, at the end by the matrix; and both say the same of what was drafted."""
    data, rows = bench.dataset_of(None, 0, PLAN)
    network, head = bench.train_drafting(data.catalogue, data.train, CONFIG.model, CONFIG.training, 0)
    valid = bench.valid_of(data)
    asked: list[Any] = []
    for name in ("contains", "select"):
        real = getattr(torch_ops, name)
        monkeypatch.setattr(
            torch_ops, name, lambda dev, *args, _real=real, **more: asked.append(dev) or _real(dev, *args, **more)
        )
    for kind, dev in ((bench.STEP, valid.table), (bench.END, valid.matrix), (bench.MORE, valid.matrix)):
        asked.clear()
        found = bench.drafting(network, head, data, valid, PLAN, kind)(rows)
        assert [one for one in asked if one is not None] == [dev] * (data.catalogue.length if kind == bench.STEP else 1)
        tokens = found.tokens[found.valid]
        assert torch_ops.contains(valid.table, tokens).all()
    free = bench.drafting(network, head, data, valid, PLAN, bench.NONE)(rows).tokens.flatten(0, 1)
    some = torch.cat([free, torch.as_tensor(np.asarray(data.catalogue.sids[:50]) + 1)])
    by_table, by_matrix = (torch_ops.contains(dev, some) for dev in valid)
    assert torch.equal(by_table, by_matrix)
    assert by_matrix.any()
