"""The server of items over a model that real engines serve: `make test-engines`."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("fastapi")
httpx = pytest.importorskip("httpx")

import maskwright as mw  # noqa: E402
from maskwright.serve.items import models, routes  # noqa: E402
from maskwright.serve.items.service import ItemService  # noqa: E402
from maskwright.serve.items.shop import Shop  # noqa: E402
from maskwright.serve.settings import CatalogueSettings, ItemSettings, ModelSettings  # noqa: E402
from tests.support.servers import serving  # noqa: E402

COUNT = 5000


def begin(folder: Path, model: Path) -> Shop:
    """Return a catalogue with a log and a column, for the tokens of a model."""
    size, random = json.loads((model / "config.json").read_text())["vocab_size"], np.random.default_rng(0)
    columns = {"price": random.integers(0, 100, COUNT)}
    sids = random.integers(0, 200, (COUNT, 3)) + np.array([300, 500, 700])
    mw.Catalogue.of(sids, np.arange(COUNT), size, kind="matrix", columns=columns).save(folder / "items")
    return Shop(CatalogueSettings("items", folder / "items", folder / "log"))


def compare(url: str, model: Path, shop: Shop) -> None:
    """Ask for the same with the model in this process, while items go."""
    here, there = models.load(ModelSettings(model, name="here")), models.load(ModelSettings(url=url, name="there"))
    service = ItemService([here, there], [shop], ItemSettings(prompt="user bought {history}:"))
    with serving(routes.create_app(service), service):
        for beams, keep in ((5, "price < 90"), (20, "price < 30"), (64, "price >= 20")):
            fields = {"history": [4, 17, beams], "beams": beams, "filter": keep, "deny": [9, 11], "timeout": 300}
            told = [
                httpx.post(f"{service.url}/v1/retrieve", json={"model": name, **fields}, timeout=400).json()
                for name in ("here", "there")
            ]
            assert [each.get("error") for each in told] == [None, None]
            want, found = ({item["id"]: item["score"] for item in each["items"]} for each in told)
            assert len(found) > 3, told
            assert list(found) == list(want)
            assert max(abs(found[item] - want[item]) for item in want) < 1e-4
            assert told[0]["usage"] == told[1]["usage"]  # both read the same tokens
            shop.delete(list(found)[:2])


def test_items_are_those_of_the_model_that_vllm_serves(vllm_server, model, tmp_path):
    shop = begin(tmp_path, model)
    with vllm_server("--max-logprobs", "128") as url:
        compare(url, model, shop)
    shop.close()


def test_items_are_those_of_the_model_that_sglang_serves(sglang_server, model, tmp_path):
    shop = begin(tmp_path, model)
    files = {"items": {"file": str(tmp_path / "items"), "log": str(tmp_path / "log")}}
    with sglang_server(json.dumps({"catalogues": files})) as url:
        compare(url, model, shop)
    shop.close()
