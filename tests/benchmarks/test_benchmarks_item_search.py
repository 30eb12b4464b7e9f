"""The benchmark of searches for items: all methods find the same, and each is measured."""

from __future__ import annotations

import json
import sys

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from benchmarks.suites import item_search as bench


def test_all_methods_find_the_same_items_and_stand_in_the_report(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["item_search", "--quick", "--out", str(tmp_path)])
    bench.main()
    (case,) = json.loads((tmp_path / "item_search.json").read_text())["results"]
    assert list(case["methods"]) == [bench.BATCH, bench.ALONE, *bench.NAMES]
    assert case["methods"][bench.BATCH]["times"] == 1
    report = (tmp_path / "item_search.md").read_text()
    assert all(f"| {name} |" in report for name in case["methods"])
