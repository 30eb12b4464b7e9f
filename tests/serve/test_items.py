"""The server of items, asked over HTTP: its answers against beam search, its updates against a dictionary."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import random as randoms
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("fastapi")
httpx = pytest.importorskip("httpx")

from prometheus_client.parser import text_string_to_metric_families  # noqa: E402

import maskwright as mw  # noqa: E402
from maskwright.runtime.integrations.item_search import ItemSearch, Query  # noqa: E402
from maskwright.serve import loading  # noqa: E402
from maskwright.serve.items import example, models, routes  # noqa: E402
from maskwright.serve.items.service import ItemService, id_of  # noqa: E402
from maskwright.serve.items.shop import Shop  # noqa: E402
from maskwright.serve.refusals import Refused  # noqa: E402
from maskwright.serve.settings import CatalogueSettings, ItemSettings, Limits  # noqa: E402
from maskwright.table import update_log  # noqa: E402
from tests.support import browsers  # noqa: E402
from tests.support.servers import free_port, serving, wait  # noqa: E402

ROOT = Path(__file__).parents[2]
AS_JSON = {"Content-Type": "application/json"}


@contextlib.contextmanager
def items_served(folder, *, limits=None, follow=False, log=True, api_keys=(), **options):
    """A server of the example's model and catalogue, with files in a folder."""
    file = folder / "items.catalogue"
    if not file.exists():
        example.catalogue().save(file)
    settings = ItemSettings(filters=(("cheap", "price < 50"),), **options)
    shop = Shop(
        CatalogueSettings("example", file, folder / "items.log" if log else None, follow, capacity=500),
        settings.filters,
    )
    service = ItemService([models.example()], [shop], settings, limits)
    app = routes.create_app(service, api_keys=api_keys)
    try:
        with serving(app, service) as one:
            one.held = shop
            yield one
    finally:
        shop.close()


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    with items_served(tmp_path_factory.mktemp("items")) as one:
        yield one


def ask(service, **fields):
    return httpx.post(f"{service.url}/v1/retrieve", json=fields, timeout=60)


def put(service, item, **fields):
    return httpx.put(f"{service.url}/v1/catalogues/example/items/{item}", json=fields, timeout=60)


def delete(service, item):
    return httpx.delete(f"{service.url}/v1/catalogues/example/items/{item}", timeout=60)


def bulk(service, *lines):
    body = "\n".join(line and json.dumps(line) for line in lines)
    return httpx.post(f"{service.url}/v1/catalogues/example/items", content=body, timeout=60)


def state(service):
    return httpx.get(f"{service.url}/v1/catalogues/example").json()


# --------------------------------------------------------------------------------------------------------- searches


def expected(service, version, *, history, beams, limit, keep, deny):
    """The items that a search with a cache of its own finds."""
    model = next(iter(service.models.values()))
    prompt = []
    for each in history:  # of one that was removed what it was last
        there, ever = version.rows_of([each])[0], version.rows_of([each], removed=True)[0]
        prompt += version.tokens_of(there[:1] if there.size else ever[-1:]).reshape(-1).tolist()
    kept = version.filter(np.ones(len(version), bool) if keep is None else version.keeps(keep))
    if deny:
        kept = kept & version.without(deny)
    placed = model.search.place(version.table)
    (found,) = model.search.search(placed, [Query(prompt, beams, kept)])
    ranked = []
    for rows, score in zip(kept.input_rows(found.states), found.scores.tolist(), strict=True):
        for each in version.ids.at(np.sort(rows)):
            if each not in [name for name, _ in ranked]:
                ranked.append((each, score))
    return ranked[:limit]


@pytest.mark.long
@pytest.mark.parametrize("rounds", [40, pytest.param(1000, marks=pytest.mark.slow)])
def test_answers_are_those_of_beam_search_while_items_come_and_go(rounds, tmp_path):
    random = randoms.Random(0)
    filters = [None, "cheap", "category in ('hat', 'shoe') and price > 30", "not (category == 'bag')", "price < 8"]
    with items_served(tmp_path) as service:
        ids = list(service.held.newest().ids)
        for at in range(rounds):
            if random.random() < 0.5:
                item = random.choice(ids)
                there = service.held.newest().rows_of([item])[0].size
                if random.random() < 0.5 and there:
                    assert delete(service, item).status_code == 200
                elif there and random.random() < 0.5:
                    assert put(service, item, columns={"price": random.random() * 100}).status_code == 200
                else:
                    assert put(service, item, sid=[random.randrange(32) for _ in range(3)]).status_code == 200
            asked = {
                "history": random.sample(ids, random.randrange(1, 8)), "beams": random.randrange(1, 40),
                "limit": random.randrange(1, 30),
            }  # fmt: skip
            keep = random.choice(filters)
            deny = random.sample(ids, random.choice([0, 0, 3, 200]))
            exclude = random.random() < 0.3
            answer = ask(
                service, **asked, **({} if keep is None else {"filter": keep}), deny=deny, exclude_history=exclude,
                columns=["price"],
            )  # fmt: skip
            assert answer.status_code == 200, answer.text
            told, version = answer.json(), service.held.newest()
            assert told["epoch"] == version.epoch
            expression = "price < 50" if keep == "cheap" else keep
            right = expected(
                service, version, keep=expression, deny=[*deny, *(asked["history"] if exclude else ())], **asked
            )
            assert [item["id"] for item in told["items"]] == [each for each, _ in right], at
            np.testing.assert_allclose([item["score"] for item in told["items"]], [s for _, s in right], atol=1e-5)
            for item in told["items"]:
                rows = version.rows_of([item["id"]])[0]
                assert item["sid"] in version.code_tokens.codes(version.tokens_of(rows)).tolist()
                assert item["columns"]["price"] in version.columns["price"].at(rows)


def test_requests_at_once_get_the_answers_that_they_get_alone(service):
    random = randoms.Random(1)
    ids = list(service.held.newest().ids)
    asked = [
        {"history": random.sample(ids, random.randrange(1, 20)), "beams": random.randrange(1, 50), "limit": 50,
         **({"filter": "cheap"} if random.random() < 0.5 else {})}
        for _ in range(40)
    ]  # fmt: skip
    alone = [ask(service, **each).json()["items"] for each in asked]
    with ThreadPoolExecutor(20) as pool:
        together = [answer.json()["items"] for answer in pool.map(lambda each: ask(service, **each), asked)]
    for one, other in zip(alone, together, strict=True):
        assert [item["id"] for item in one] == [item["id"] for item in other]
        np.testing.assert_allclose([i["score"] for i in one], [i["score"] for i in other], rtol=2e-6)


def test_a_prompt_may_be_text_or_tokens(service):
    version = service.held.newest()
    (rows,) = version.rows_of(["hat-1"])
    tokens = version.tokens_of(rows[:1])[0].tolist()
    as_text = ask(service, prompt="liked {history}!", history=["hat-1"]).json()
    encode = next(iter(service.models.values())).plain
    as_tokens = ask(service, prompt=[*encode("liked "), *tokens, *encode("!")]).json()
    assert as_text["items"] == as_tokens["items"]
    assert as_text["usage"]["prompt_tokens"] == len(encode("liked ")) + 3 + 1
    assert ask(service, prompt="anything").json()["items"]


def notes_of(answer):
    assert answer.status_code == 200, answer.text
    return {note["code"]: note for note in answer.json()["notes"]}


def test_what_is_left_out_is_told(service):
    assert put(service, "gone", sid=[1, 2, 3]).status_code == 200
    assert delete(service, "gone").status_code == 200
    answer = ask(service, history=["hat-1", "gone", "never"], deny=["nobody", "hat-2"], limit=10)
    notes = notes_of(answer)
    assert notes["unknown_history"]["ids"] == ["never"]
    assert notes["removed_history"]["ids"] == ["gone"]
    assert notes["unknown_deny"]["ids"] == ["nobody"]
    empty = ask(service, history=["hat-1"], filter="price < 0")
    assert empty.json()["items"] == []
    assert "filter_keeps_none" in notes_of(empty)
    best = answer.json()["items"]
    least = (best[2]["score"] + best[3]["score"]) / 2
    few = ask(service, history=["hat-1", "gone"], deny=["hat-2"], limit=10, min_score=least)
    assert [item["id"] for item in few.json()["items"]] == [item["id"] for item in best[:3]]
    assert "below_min_score" in notes_of(few)
    assert "fewer_items" in notes_of(ask(service, history=["hat-1"], beams=2, limit=400))
    long = notes_of(ask(service, history=["hat-1"] * 2000, limit=1))
    assert "1364 items" in long["history_cut"]["message"]


@pytest.mark.parametrize(
    ("fields", "status", "param", "why"),
    [
        ({}, 400, None, "a prompt or a history"),
        ({"history": ["hat-1"], "catalogue": "other"}, 404, "catalogue", "there are: example"),
        ({"history": ["hat-1"], "model": "other"}, 404, "model", "no model 'other'"),
        ({"history": [5]}, 400, "history", "strings"),
        ({"history": ["\ud800"]}, 400, "history[0]", "unicode"),
        ({"history": ["never"]}, 400, "history", "nothing is left"),
        ({"history": []}, 400, "history", "nothing is left"),
        ({"prompt": []}, 400, "prompt", "nothing is left"),
        ({"prompt": [99_999]}, 400, "prompt", "not in 0 .. 352"),
        ({"prompt": [1] * 5000}, 400, "prompt", "room for 4096"),
        ({"prompt": [1], "history": ["hat-1"]}, 400, "history", "leave one out"),
        ({"prompt": "no place", "history": ["hat-1"]}, 400, "prompt", "{history} once"),
        ({"prompt": "{history}"}, 400, "history", "send a history"),
        ({"history": ["hat-1"], "filter": "colour == 1"}, 400, "filter", "names 'colour'"),
        ({"history": ["hat-1"], "filter": ["cheap", "price <"]}, 400, "filter", "no expression"),
        ({"history": ["hat-1"], "columns": ["colour"]}, 400, "columns", "no column 'colour'"),
        ({"history": ["hat-1"], "beams": 10_000}, 400, "beams", "512 at most"),
        ({"history": ["hat-1"], "beams": 0}, 400, "beams", "greater than"),
        ({"history": ["hat-1"], "surprise": 1}, 400, "surprise", "not supported"),
        ({"history": ["hat-1"], "timeout": 0}, 400, "timeout", "greater than"),
    ],
)
def test_a_wrong_question_is_refused_by_name(service, fields, status, param, why):
    answer = httpx.post(f"{service.url}/v1/retrieve", content=json.dumps(fields), headers=AS_JSON, timeout=60)
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert why in error["message"]
    assert error["param"] == param
    assert error["request_id"] == answer.headers["x-request-id"]


def test_a_search_that_is_late_is_given_up_and_frees_its_place(tmp_path):
    with items_served(tmp_path) as service:
        model = next(iter(service.models.values())).search.model
        forward = model.forward

        def slow(*args, **options):
            time.sleep(0.3)
            return forward(*args, **options)

        slow.__signature__ = __import__("inspect").signature(forward)
        model.forward = slow
        answer = ask(service, history=["hat-1"], timeout=0.1)
        assert answer.status_code == 504
        assert answer.json()["error"]["code"] == "deadline_exceeded"
        model.forward = forward
        wait(lambda: not service.searcher.running)
        assert ask(service, history=["hat-1"], timeout=5).status_code == 200
        assert not service.open


@pytest.mark.parametrize(("max_queue", "own"), [(4, 3), (0, 1)])
def test_clients_share_the_queue(max_queue, own, tmp_path):
    """One request is searched, and half of those that wait may be of one client."""
    with items_served(tmp_path, limits=Limits(max_queue=max_queue)) as service:
        model = next(iter(service.models.values())).search
        search, go_on = model.search, threading.Event()
        model.search = lambda *args, **options: (go_on.wait(30), search(*args, **options))[1]
        with ThreadPoolExecutor(4) as pool:
            asked = [pool.submit(ask, service, history=["hat-1"]) for _ in range(own)]
            wait(lambda: service.open == own)
            refused = ask(service, history=["hat-1"])
            assert refused.status_code == 429
            assert refused.json()["error"]["code"] == "client_queue_full"
            go_on.set()
            assert [each.result().status_code for each in asked] == [200] * own


def test_a_batch_that_fails_takes_no_other_with_it(tmp_path):
    with items_served(tmp_path) as service:
        model = next(iter(service.models.values())).search
        search = model.search

        def broken(*args, **options):
            raise RuntimeError("out of memory")

        model.search = broken
        answer = ask(service, history=["hat-1"])
        assert answer.status_code == 500
        assert answer.json()["error"]["code"] == "model_fault"
        model.search = search
        assert ask(service, history=["hat-1"]).status_code == 200
        assert httpx.get(f"{service.url}/health").status_code == 200


def test_a_prompt_that_a_model_cannot_read_takes_no_other_with_it(tmp_path):
    """An encoder with places for 64 tokens, in a batch of two."""
    with items_served(tmp_path) as service:
        model = next(iter(service.models.values()))
        config = transformers.BartConfig(
            vocab_size=example.WIDTH, d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
            decoder_attention_heads=2, encoder_ffn_dim=16, decoder_ffn_dim=16, max_position_embeddings=64,
            eos_token_id=0, pad_token_id=0, decoder_start_token_id=0, forced_eos_token_id=None,
        )  # fmt: skip
        model.search = ItemSearch(transformers.BartForConditionalGeneration(config).eval())
        model.context = None
        search, go_on, batches = model.search.search, threading.Event(), []

        def waits(placed, queries, **options):
            batches.append(len(queries))
            go_on.wait(30)
            return search(placed, queries, **options)

        model.search.search = waits
        with ThreadPoolExecutor(3) as pool:
            first = pool.submit(ask, service, prompt=[1] * 8)
            wait(lambda: batches)
            long, short = (pool.submit(ask, service, prompt=[1] * length) for length in (65, 8))
            wait(lambda: service.open == 3)
            go_on.set()
            assert first.result().json()["items"] == short.result().json()["items"] != []
        assert batches == [1, 1]
        assert long.result().status_code == 400
        assert (error := long.result().json()["error"])["param"] == "prompt", error
        assert "shorten it" in error["message"]


# --------------------------------------------------------------------------------------------------------- updates


def test_an_update_is_there_for_the_next_search(service):
    for at in range(20):
        sid = [31, 31, at]
        answer = put(service, f"new-{at}", sid=sid, columns={"price": 1.5, "title": f"new {at}"})
        assert answer.status_code == 200, answer.text
        found = ask(service, history=["hat-1"], filter=f"id == 'new-{at}'", columns="all").json()
        assert found["epoch"] == answer.json()["epoch"]
        assert [(i["id"], i["sid"]) for i in found["items"]] == [(f"new-{at}", sid)]
        assert found["items"][0]["columns"] == {"title": f"new {at}", "category": None, "price": 1.5}
        held = httpx.get(f"{service.url}/v1/catalogues/example/items/new-{at}").json()
        assert (held["sids"], held["columns"]["price"]) == ([sid], 1.5)
        assert delete(service, f"new-{at}").json()["deleted"] == 1
        gone = ask(service, history=["hat-1"], filter=f"id == 'new-{at}'").json()
        assert gone["items"] == []


def test_items_whose_ids_need_escapes_can_be_put(service):
    name = "a/b c?é"
    path = f"{service.url}/v1/catalogues/example/items/" + "a%2Fb%20c%3F%C3%A9"
    assert httpx.put(path, json={"sid": [1, 1, 1]}).status_code == 200
    assert httpx.get(path).json()["id"] == name
    assert httpx.delete(path).status_code == 200


def test_an_id_in_a_path_is_told_exactly(service):
    answer = put(service, "x" * 5000, sid=[1, 1, 1])
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "id")
    assert id_of("10", strings=False) == 10
    assert id_of("10", strings=True) == "10"
    for other in ("1_0", "+10", "010", " 10", "\u0661\u0660", "10.0", "1" * 5000):
        with pytest.raises(Refused, match="no id of this catalogue"):
            id_of(other, strings=False)


def test_new_items_that_share_a_prefix_have_room(tmp_path):
    """Between compactions few sequences may be added below one prefix: a client's update makes room for itself."""
    sids = np.random.default_rng(0).integers(0, 10, (200, 5))
    offsets = [257 + 10 * level for level in range(5)]
    columns = {"price": [1.0] * 200}
    made = mw.Catalogue.of(
        sids, [f"i{at}" for at in range(200)], example.WIDTH, offsets=offsets, kind="matrix", columns=columns
    )
    made.save(tmp_path / "items.catalogue")
    with items_served(tmp_path) as service:
        lines = [{"id": f"n{at}", "sid": [7, 7, 7, at // 10, at % 10]} for at in range(100)]
        for answer in [put(service, line["id"], sid=line["sid"]) for line in lines[:40]] + [bulk(service, *lines)]:
            assert answer.status_code == 200, answer.text
        assert state(service)["items"] == 300
        found = ask(service, history=["i1"], filter="id == 'n99'").json()["items"]
        assert [(item["id"], item["sid"]) for item in found] == [("n99", [7, 7, 7, 9, 9])]
    with items_served(tmp_path) as service:
        assert (state(service)["items"], state(service)["epoch"]) == (300, 41)


def test_a_search_says_whether_more_beams_may_find_more(tmp_path):
    with items_served(tmp_path) as service:
        for fields, why in (
            ({"beams": 4, "limit": 10}, "more beams may find more"),
            ({"filter": "id in ('hat-1', 'hat-2')"}, "there are no others"),
        ):
            (note,) = ask(service, history=["hat-1"], **fields).json()["notes"]
            assert note["code"] == "fewer_items"
            assert why in note["message"]
        bulk(service, *({"id": each, "delete": True} for each in service.held.newest().ids))
        found = ask(service, history=["hat-1"]).json()
        assert (state(service)["items"], found["items"]) == (0, [])
        assert "no others" in found["notes"][-1]["message"]


def test_updates_that_wait_hold_up_no_search(service, tmp_path):
    """However many updates wait for the log, searches go on."""
    held = threading.Event()
    shop = service.held
    shop.updates.submit(held.wait, 60)
    try:
        with ThreadPoolExecutor(8) as pool:
            waiting = [pool.submit(put, service, f"w{at}", sid=[1, 1, at]) for at in range(8)]
            time.sleep(0.5)
            assert ask(service, history=["hat-1"]).status_code == 200
            assert not any(each.done() for each in waiting)
            held.set()
            assert {each.result().status_code for each in waiting} == {200}
    finally:
        held.set()
    bulk(service, *({"id": f"w{at}", "delete": True} for at in range(8)))


def test_a_log_that_cannot_be_written_is_told_and_changes_nothing(tmp_path, monkeypatch):
    with items_served(tmp_path) as service:
        with monkeypatch.context() as patch:
            patch.setattr(update_log, "write", full)
            answer = bulk(service, {"id": "hat-1", "columns": {"price": 1}}, {"id": "hat-2", "delete": True})
        error = answer.json()["error"]
        assert (answer.status_code, error["code"], error["line"], error["acknowledged"]) == (500, "log_fault", 1, 0)
        assert "No space left" in error["message"]
        assert state(service)["epoch"] == 0
        assert delete(service, "hat-1").json()["epoch"] == 1
    with items_served(tmp_path) as service:
        assert (state(service)["items"], state(service)["epoch"]) == (999, 1)


def full(*arguments):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_filter_of_no_catalogue_is_refused_at_the_start(tmp_path):
    example.catalogue().save(tmp_path / "items.catalogue")
    for text, why in (("price <", "is no expression"), ("prize < 5", "names 'prize'")):
        shop = Shop(CatalogueSettings("example", tmp_path / "items.catalogue"), [("wrong", text)])
        with pytest.raises(mw.errors.ConstraintError, match=f"the filter 'wrong' is of no catalogue: .*{why}"):
            ItemService([models.example()], [shop], ItemSettings())


def test_a_log_that_was_removed_is_made_anew(tmp_path):
    with items_served(tmp_path) as service:
        (tmp_path / "items.log").unlink()
        assert put(service, "hat-1", columns={"price": 1}).status_code == 200
        wait(lambda: (tmp_path / "items.log").exists())
        assert put(service, "hat-1", columns={"price": 2}).status_code == 200
    with items_served(tmp_path) as service:
        assert service.held.newest().columns["price"].at(service.held.newest().rows_of(["hat-1"])[0]) == [2.0]


def test_a_bulk_update_is_made_line_by_line(service):
    before = state(service)["items"]
    lines = [{"id": f"bulk-{at}", "sid": [30, at % 32, at // 32], "columns": {"price": at}} for at in range(100)]
    told = bulk(service, *lines, {"id": "bulk-3", "delete": True}, {"id": "bulk-4", "columns": {"price": 99.5}}).json()
    assert (told["put"], told["deleted"]) == (101, 1)
    now = state(service)
    assert (now["items"], now["epoch"]) == (before + 99, told["epoch"])
    version = service.held.newest()
    assert version.columns["price"].at(version.rows_of(["bulk-4"])[0]) == [99.5]
    removed = bulk(service, *({"id": f"bulk-{at}", "delete": True} for at in range(100) if at != 3)).json()
    assert removed["deleted"] == 99
    assert state(service)["items"] == before


@pytest.mark.parametrize(
    ("lines", "line", "acknowledged", "why"),
    [
        ([{"id": "x1", "sid": [1, 1, 1]}, {"id": 5, "sid": [1, 1, 1]}], 2, 0, "strings"),
        ([{"id": "x1", "sid": [1, 1, 1]}, {"sid": [1, 1, 1]}], 2, 0, "Field required"),
        ([{"id": "x1", "sid": [1, 1, 1], "columns": {"colour": 1}}], 1, 0, "no column 'colour'"),
        ([{"id": "x1", "delete": True, "sid": [1, 1, 1]}], 1, 0, "an id alone"),
        ([{"id": "x1", "sid": [1, 1, 1]}, {"id": "nobody", "delete": True}], 2, 1, "no item 'nobody'"),
        ([{"id": "x1", "sid": [1, 1, 1]}, {"id": "x2", "columns": {"price": 1}}], 2, 1, "needs a semantic ID"),
        ([{"id": "x1", "sid": [1, 1, 1]}, {"id": "x2", "sid": [1, 1, 99]}], 2, 0, "code 99"),
        ([{"id": "x1", "sid": [1, 1, 10**30]}], 1, 0, "no code"),
        ([{"id": "x1", "sid": [1, 1]}], 1, 0, "3"),
        ([{"id": "x1", "sid": []}], 1, 0, "3"),
        ([{"id": "x1", "sid": [1, 1, 1], "columns": {"price": "dear"}}], 1, 0, "finite numbers"),
        ([{"id": "x1", "sid": [1, 1, 1], "columns": {"price": 10**400}}], 1, 0, "finite numbers"),
        ([{"id": "hat-2", "columns": {"price": 7}}, {"id": "x2", "columns": {"price": 1}}], 2, 0, "semantic ID"),
        (
            ["", {"id": "x1", "sid": [1, 1, 1]}, "", {"id": "hat-2", "delete": True}, {"id": "y", "delete": True}],
            5,
            1,
            "y",
        ),
    ],
)
def test_a_wrong_line_is_named_and_says_what_is_in_the_log(service, lines, line, acknowledged, why):
    before = state(service)["epoch"]
    answer = bulk(service, *lines)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert why in error["message"]
    assert (error["line"], error["acknowledged"]) == (line, acknowledged)
    assert state(service)["epoch"] == before + acknowledged == error.get("epoch", before)
    there = service.held.newest().rows_of(["x1"])[0].size
    assert there == bool(acknowledged)
    if there:
        delete(service, "x1")


def test_what_no_update_is_is_refused(service):
    for body, why in (("", "no line"), ("{", "line 1"), ("[1]", "line 1"), ("[" * 10_000, "line 1")):
        answer = httpx.post(f"{service.url}/v1/catalogues/example/items", content=body)
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_item"), body[:5]
        assert why in answer.json()["error"]["message"]
    assert delete(service, "nobody").status_code == 404
    assert httpx.get(f"{service.url}/v1/catalogues/other").status_code == 404
    assert httpx.get(f"{service.url}/v1/catalogues/example/items/nobody").status_code == 404


def test_more_items_than_there_is_room_for_make_the_file_anew(tmp_path):
    with items_served(tmp_path) as service:
        for begin in range(0, 1200, 300):
            lines = [
                {"id": f"many-{at}", "sid": [26 + at // 1024, at // 32 % 32, at % 32]}
                for at in range(begin, begin + 300)
            ]
            answer = bulk(service, *lines)
            assert answer.status_code == 200, answer.text
        assert state(service)["items"] == 2200
        found = ask(service, history=["hat-1"], filter="id == 'many-1199'").json()
        assert [item["id"] for item in found["items"]] == ["many-1199"]
    with items_served(tmp_path) as service:
        assert state(service)["items"] == 2200
        assert state(service)["epoch"] == 4


def test_many_items_below_one_prefix_are_taken(tmp_path):
    with items_served(tmp_path) as service:
        for at in range(32):
            assert put(service, f"near-{at}", sid=[31, 31, at]).status_code == 200
        found = ask(service, history=["hat-1"], filter="id == 'near-31'").json()
        assert [item["sid"] for item in found["items"]] == [[31, 31, 31]]
        assert put(service, "near-0", sid=[31, 31, 99]).status_code == 400
        service.held.newest().save(tmp_path / "items.catalogue")
    with items_served(tmp_path, log=False) as service:  # the file is of a catalogue that lives now
        assert state(service)["items"] == 1032


def test_a_catalogue_without_a_log_takes_no_updates(tmp_path):
    with items_served(tmp_path, log=False) as service:
        assert ask(service, history=["hat-1"]).json()["items"]
        for answer in (put(service, "x", sid=[1, 1, 1]), delete(service, "hat-1"), bulk(service, {"id": "x"})):
            assert (answer.status_code, answer.json()["error"]["code"]) == (409, "catalogue_fixed")


def test_several_processes_follow_one_log(tmp_path):
    with items_served(tmp_path) as writer, items_served(tmp_path, follow=True) as follower:
        for at in range(10):
            epoch = put(writer, "hat-1", sid=[3, at, 7], columns={"price": at}).json()["epoch"]
            found = ask(follower, history=["hat-2"], filter="id == 'hat-1'", columns=["price"]).json()
            assert found["epoch"] == epoch
            assert [(i["sid"], i["columns"]["price"]) for i in found["items"]] == [([3, at, 7], float(at))]
        assert put(follower, "x", sid=[1, 1, 1]).json()["error"]["code"] == "catalogue_follows"
        (tmp_path / "items.log").unlink()
        found = ask(follower, history=["hat-2"])
        assert found.status_code == 200  # of what it read last
        assert "items.log" in state(follower)["fault"]


@pytest.mark.long
def test_answers_are_of_the_epoch_that_they_name_while_others_update(tmp_path):
    with items_served(tmp_path) as service:
        ids = list(service.held.newest().ids)
        lock, alive, history = threading.Lock(), set(ids), {0: frozenset(ids)}
        done, faults = threading.Event(), []

        def update(seed):
            random = randoms.Random(seed)
            while not done.is_set():
                with lock:
                    item = random.choice(ids)
                    answer = delete(service, item) if item in alive else put(service, item, sid=[1, 2, 3])
                    alive.symmetric_difference_update({item})
                    history[answer.json()["epoch"]] = frozenset(alive)

        def search(seed):
            random = randoms.Random(seed)
            for _ in range(15):
                told = ask(service, history=random.sample(ids, 4), beams=30, limit=100).json()
                found = [item["id"] for item in told["items"]]
                then = None
                for _ in range(1000):  # until the epoch's update is noted
                    then = history.get(told["epoch"])
                    if then is not None:
                        break
                    time.sleep(0.001)
                if then is None or not then.issuperset(found):
                    faults.append((told["epoch"], found))

        updating = threading.Thread(target=update, args=(0,))
        updating.start()
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(search, range(8)))
        done.set()
        updating.join()
        assert not faults
        assert len(history) > 20


# -------------------------------------------------------------------------------------------------- the server itself


def test_metrics_and_probes(service):
    ask(service, history=["hat-1"])
    text = httpx.get(f"{service.url}/metrics").text
    found = {(sample.name, sample.labels.get("catalogue", "")): sample.value
             for family in text_string_to_metric_families(text) for sample in family.samples}  # fmt: skip
    assert found["maskwright_catalogue_items", "example"] == state(service)["items"]
    assert found["maskwright_catalogue_epoch", "example"] == state(service)["epoch"]
    assert found["maskwright_search_seconds_count", ""] > 0
    assert found["maskwright_ready", ""] == 1
    assert httpx.get(f"{service.url}/ready").json() == {"ready": True}
    assert httpx.get(f"{service.url}/v1/models").json()["data"][0]["id"] == example.NAME


def test_answers_are_as_the_description_of_the_api_says(service):
    jsonschema = pytest.importorskip("jsonschema")
    described = httpx.get(f"{service.url}/openapi.json").json()
    base = "/v1/catalogues/example/items"
    for method, path, route, body in (
        ("POST", "/v1/retrieve", "/v1/retrieve", {"history": ["hat-1", "never"], "columns": "all", "limit": 2}),
        ("POST", "/v1/retrieve", "/v1/retrieve", {"history": []}),
        ("GET", "/v1/catalogues", "/v1/catalogues", None),
        ("GET", "/v1/catalogues/example", "/v1/catalogues/{catalogue}", None),
        ("GET", "/v1/catalogues/other", "/v1/catalogues/{catalogue}", None),
        ("PUT", f"{base}/told", "/v1/catalogues/{catalogue}/items/{item}", {"sid": [1, 2, 3]}),
        ("GET", f"{base}/told", "/v1/catalogues/{catalogue}/items/{item}", None),
        ("DELETE", f"{base}/told", "/v1/catalogues/{catalogue}/items/{item}", None),
        ("DELETE", f"{base}/told", "/v1/catalogues/{catalogue}/items/{item}", None),
        ("POST", base, "/v1/catalogues/{catalogue}/items", {"id": "hat-1", "columns": {"price": 5}}),
        ("POST", base, "/v1/catalogues/{catalogue}/items", {"id": 5}),
        ("GET", "/v1/models", "/v1/models", None),
        ("GET", "/v1/models/other", "/v1/models/{name}", None),
        ("GET", "/health", "/health", None),
        ("GET", "/ready", "/ready", None),
    ):
        answer = httpx.request(method, service.url + path, **({} if body is None else {"json": body}))
        told = described["paths"][route][method.lower()]["responses"][str(answer.status_code)]
        schema = {**told["content"]["application/json"]["schema"], "components": described["components"]}
        assert schema.get("type") != "string", route
        jsonschema.validate(answer.json(), schema)


def test_the_description_knows_which_questions_say_nothing(service):
    jsonschema = pytest.importorskip("jsonschema")
    described = httpx.get(f"{service.url}/openapi.json").json()
    schema = {**described["components"]["schemas"]["RetrieveRequest"], "components": described["components"]}
    judge = jsonschema.Draft202012Validator(schema)
    for asked in (
        {},
        {"prompt": None, "history": None},
        {"history": ["hat-1"]},
        {"prompt": "x"},
        {"prompt": [1], "history": None},
    ):
        assert judge.is_valid(asked) != (ask(service, **asked).status_code == 400), asked


def test_errors_name_the_field_that_is_wrong(service):
    for fields, param, why in (
        ({"prompt": ""}, "prompt", "the prompt is empty"), ({"prompt": []}, "prompt", "the prompt is empty"),
        ({"history": ["never"]}, "history", "it knows no item of the history"),
        ({"history": [1]}, "history", "history has 1, and ids of this catalogue are strings"),
    ):  # fmt: skip
        refused = ask(service, **fields)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, param), fields
        assert why in refused.json()["error"]["message"]
    wrong = httpx.post(f"{service.url}/v1/retrieve", content=b'{"beams": ', headers=AS_JSON).json()["error"]
    assert (wrong["param"], wrong["message"][:20]) == (None, "the body is not JSON")
    gone = bulk(service, {"id": "never", "delete": True}).json()["error"]
    assert (gone["param"], gone["message"]) == ("id", "there is no item 'never' to delete: none was removed")
    short = put(service, "told", sid=[1, 2]).json()["error"]
    assert (short["param"], short["message"]) == ("sid", "sid has 2 codes, and semantic IDs of this catalogue have 3")


def test_a_wrong_method_is_told_all_right_ones(service):
    for path, methods in (
        ("/v1/catalogues/example/items/hat-1", "DELETE, GET, PUT"), ("/v1/catalogues/example/items", "POST"),
        ("/v1/retrieve", "POST"), ("/v1/models", "GET"),
    ):  # fmt: skip
        answer = httpx.request("PATCH", service.url + path)
        assert (answer.status_code, answer.headers["Allow"]) == (405, methods)


def test_keys_are_those_of_the_text_server(tmp_path):
    with items_served(tmp_path, api_keys=("secret",)) as service:
        assert ask(service, history=["hat-1"]).status_code == 401
        assert put(service, "x", sid=[1, 1, 1]).status_code == 401
        answer = httpx.post(
            f"{service.url}/v1/retrieve", json={"history": ["hat-1"]}, headers={"Authorization": "Bearer secret"}
        )
        assert answer.status_code == 200


def test_models_and_catalogues_go_by_name(tmp_path):
    example.catalogue().save(tmp_path / "one")
    example.catalogue().save(tmp_path / "two")
    shops = [Shop(CatalogueSettings(name, tmp_path / name)) for name in ("one", "two")]
    torch.manual_seed(1)
    first = models.example()
    second = replace(first, name="second")
    service = ItemService([first, second], shops, ItemSettings())
    with serving(routes.create_app(service), service):
        assert "one, two" in ask(service, history=["hat-1"], model="second").json()["error"]["message"]
        assert ask(service, history=["hat-1"], catalogue="two").status_code == 400
        told = ask(service, history=["hat-1"], model="second", catalogue="two").json()
        assert (told["model"], told["catalogue"], len(told["items"])) == ("second", "two", 10)
    with pytest.raises(mw.errors.ConstraintError, match="two of one name"):
        ItemService([first, first], shops, ItemSettings())


def samples(service, family):
    """Return the values of a metric by their labels."""
    families = text_string_to_metric_families(httpx.get(f"{service.url}/metrics").text)
    found = next((each for each in families if each.name == family), None)
    return {} if found is None else {(each.name, *each.labels.values()): each.value for each in found.samples}


def test_a_shadow_searches_a_share_of_the_requests_and_changes_no_answer(tmp_path):
    example.catalogue().save(tmp_path / "one")
    first = models.example()
    other = replace(first, name="other", search=models.ItemSearch(loading.untrained(example.WIDTH, 0.2)))
    settings = ItemSettings(shadow=("other", 1.0))
    service = ItemService([first, other], [Shop(CatalogueSettings("one", tmp_path / "one"))], settings)
    with serving(routes.create_app(service), service):

        def repeated(outcome):
            return samples(service, "maskwright_shadow_requests").get(("maskwright_shadow_requests_total", outcome), 0)

        shares = 0.0
        for n in range(1, 4):
            fields = {"history": [f"hat-{n}"], "limit": 20, "filter": "price < 500"}
            answer = ask(service, model=first.name, **fields).json()
            wait(lambda n=n: repeated("searched") == n)
            theirs = ask(service, model="other", **fields).json()
            ids, found = ([item["id"] for item in each["items"]] for each in (answer, theirs))
            shares += sum(each in found for each in ids) / len(ids)
            assert answer["model"] == first.name
        told = samples(service, "maskwright_shadow_same")
        assert told["maskwright_shadow_same_sum",] == pytest.approx(shares)
        assert 0 < shares < 3
        assert repeated("searched") == 3  # and those of the shadow itself are not repeated
        with ThreadPoolExecutor(8) as pool:
            asked = pool.map(lambda n: ask(service, model=first.name, history=[f"hat-{n}"]), range(1, 41))
            assert {each.status_code for each in asked} == {200}
        wait(lambda: repeated("searched") + repeated("left_out") == 43)
        assert repeated("left_out") > 0
        service.models["other"] = replace(other, context=1)
        ask(service, model=first.name, history=["hat-1"])
        wait(lambda: repeated("failed") == 1)
        assert service.now()[:2] == (0, 0)
    with pytest.raises(mw.errors.ConstraintError, match="the shadow 'never' is no model here; there are: "):
        ItemService([first], [], ItemSettings(shadow=("never", 0.5)))


# --------------------------------------------------------------------------------------------------------- the page


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with browsers.opened(tmp_path_factory.mktemp("profile")) as one:
        yield one


def settled(page):
    page.wait_for_selector("main[aria-busy=false]")
    return page.locator("#found li code").all_inner_texts()


def test_a_page_sells_items_out_and_brings_them_back(browser, tmp_path):
    with items_served(tmp_path) as service, browsers.watched_page(browser, service) as page:
        page.goto(service.url)
        first = settled(page)
        assert len(first) == 10
        assert first == [item["id"] for item in ask(service, history=[page.input_value("#history")]).json()["items"]]
        wait(lambda: page.locator("#tree .level.shown").count() == 3)
        assert page.locator("#tree .level").nth(2).locator("text").count() == 20
        page.locator("#found li").first.get_by_text("Sell out").click()
        page.wait_for_selector("#gone:not([hidden])")
        wait(lambda: first[0] not in settled(page))
        assert service.held.newest().rows_of([first[0]])[0].size == 0
        page.get_by_text("Bring it back").click()
        wait(lambda: settled(page) == first)
        page.fill("#filter", "category == 'hat'")
        wait(lambda: settled(page) and all(each.startswith("hat-") for each in settled(page)))
        page.fill("#history", "nobody, " + first[1])
        wait(lambda: "nobody" in page.inner_text("#notes"))
        page.fill("#filter", "colour == 1")
        wait(lambda: "names 'colour'" in page.inner_text("#fault"))


PROGRAM = """
import sys
from maskwright.cli.main import main
main(["serve", "--model", sys.argv[1], "--catalogue", sys.argv[2], "--log", sys.argv[3], "--port", sys.argv[4]])
"""


@contextlib.contextmanager
def process(folder, port):
    """A server in a process of its own, which is killed at the end."""
    if not (folder / "model").exists():
        models.example().search.model.save_pretrained(folder / "model")
        example.catalogue().save(folder / "items.catalogue")
    arguments = [str(folder / name) for name in ("model", "items.catalogue", "items.log")]
    running = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *arguments, str(port)], cwd=ROOT, stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)])},
    )  # fmt: skip
    try:
        wait(lambda: _is_ready(port, running), 120)
        yield running
    finally:
        running.send_signal(signal.SIGKILL)
        running.wait()


def _is_ready(port, running):
    assert running.poll() is None, "the server ended"
    with contextlib.suppress(httpx.TransportError):
        return httpx.get(f"http://127.0.0.1:{port}/ready").status_code == 200
    return False


@pytest.mark.slow
@pytest.mark.parametrize("kills", [4])
def test_nothing_acknowledged_is_lost_by_a_kill(kills, tmp_path):
    random, model, sent = randoms.Random(0), {}, {}
    for _ in range(kills):
        port = free_port()
        path = f"http://127.0.0.1:{port}/v1/catalogues/items/items/"
        with process(tmp_path, port) as running:
            for item, price in model.items():
                held = httpx.get(path + item).json()["columns"]["price"]
                assert held in (price, sent[item]), item  # what was sent last may be there, acknowledged or not
            ends = threading.Timer(random.uniform(0.2, 1.5), running.send_signal, [signal.SIGKILL])
            ends.start()
            with contextlib.suppress(httpx.TransportError), httpx.Client() as client:
                while True:
                    item, price = f"new-{random.randrange(50)}", random.random()
                    sent[item] = price
                    model.setdefault(item, None)
                    if model[item] is None:
                        del model[item]
                    sid = [1, 1, random.randrange(32)]
                    told = client.put(path + item, json={"sid": sid, "columns": {"price": price}})
                    assert told.status_code == 200
                    model[item] = price
            ends.join()
    assert len(model) > 10


EXAMPLE = """
import sys
from maskwright.cli.main import main
main(["serve", "--example", "--port", sys.argv[1]])
"""


def test_sigterm_closes_what_is_open_before_the_process_ends(tmp_path):
    port, files = free_port(), tmp_path / "temporary"
    files.mkdir()
    running = subprocess.Popen(
        [sys.executable, "-c", EXAMPLE, str(port)], cwd=ROOT, stderr=subprocess.DEVNULL,
        env={**os.environ, "TMPDIR": str(files), "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)])},
    )  # fmt: skip
    try:
        wait(lambda: _is_ready(port, running), 120)
        assert list(files.glob("maskwright-example-*"))
        running.send_signal(signal.SIGTERM)
        assert running.wait(60) == -signal.SIGTERM
        assert not list(files.glob("maskwright-example-*"))
    finally:
        running.kill()
        running.wait()
