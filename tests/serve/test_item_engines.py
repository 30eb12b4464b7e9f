"""The server of items over a model that an engine serves: a stand-in that plays the HTTP APIs of vLLM and SGLang."""

from __future__ import annotations

import contextlib
import http.server
import json
import random as randoms
import threading

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("fastapi")
httpx = pytest.importorskip("httpx")

import maskwright as mw  # noqa: E402
from maskwright.engines.catalogues import Catalogues, request_of, table_and_filter  # noqa: E402
from maskwright.engines.options import VARIABLE, options_of  # noqa: E402
from maskwright.errors import ConstraintError, DataError  # noqa: E402
from maskwright.runtime.integrations.item_search import Query  # noqa: E402
from maskwright.serve.items import engines, example, models, routes  # noqa: E402
from maskwright.serve.items.service import ItemService  # noqa: E402
from maskwright.serve.items.shop import Shop  # noqa: E402
from maskwright.serve.settings import CatalogueSettings, ItemSettings, ModelSettings  # noqa: E402
from tests.support.servers import serving, wait  # noqa: E402


class Engine(http.server.BaseHTTPRequestHandler):
    """An engine that serves the example's model, and follows the log of its catalogue where it is SGLang."""

    local = None  # the example's model, set for each server
    owner, catalogues, key, fault, go_on, asked, encodes, begin = "vllm", None, None, None, None, [], True, []

    def do_GET(self) -> None:
        card = {"id": "served", "owned_by": self.owner, "max_model_len": 4096}
        self.answer(200, {"data": [{"id": "other", "owned_by": self.owner}, card]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.key is not None and self.headers.get("Authorization") != f"Bearer {self.key}":
            self.answer(401, {"error": "Unauthorized"})
        elif self.path == "/tokenize":
            tokens = {"tokens": (self.begin if body["add_special_tokens"] else []) + self.local.plain(body["prompt"])}
            self.answer(*((200, tokens) if self.encodes else (400, {"error": "no tokenizer"})))
        else:
            if self.go_on is not None:
                self.go_on.wait(30)
            if self.fault is not None:
                self.answer(*self.fault)
            elif self.path == "/v1/completions":
                self.completion(body)
            else:
                self.generate(body)

    def completion(self, body) -> None:
        assert (body["model"], body["max_tokens"]) == ("other", 1)  # no model goes by the name "there"
        with torch.no_grad():
            logits = self.local.search.model(torch.tensor([body["prompt"]])).logits[0, -1]
        found = torch.log_softmax(logits, dim=0)
        named = {f"token_id:{token}": float(found[token]) for token in body["logprob_token_ids"]}
        self.answer(200, {"choices": [{"logprobs": {"top_logprobs": [named]}}]})

    def generate(self, body) -> None:
        params = body["sampling_params"]
        self.asked.append(params["custom_params"])
        assert params["beam_width"] == params["n"] >= 2
        try:
            constraint = self.catalogues.constraint(request_of(params["custom_params"]))
        except ConstraintError as error:
            self.answer(400, {"error": {"message": str(error)}})
            return
        table, keep = table_and_filter(constraint)
        search = self.local.search
        (found,) = search.search(search.place(table), [Query(body["input_ids"], params["beam_width"], keep)])
        beams = [
            {"output_ids": tokens, "meta_info": {"sequence_score": score / params["max_new_tokens"]}}
            for tokens, score in zip(table.sequences(found.states).tolist(), found.scores.tolist(), strict=True)
        ]
        self.answer(200, {"meta_info": {"beam_results": beams}})

    def answer(self, code: int, body: object) -> None:
        text = body if isinstance(body, bytes) else json.dumps(body).encode()
        with contextlib.suppress(BrokenPipeError):
            self.send_response(code)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

    def log_message(self, *args: object) -> None:
        """Keep quiet."""


class Many(http.server.ThreadingHTTPServer):
    """A server to which as many may connect at once as to a real one."""

    request_queue_size = 1024


@contextlib.contextmanager
def engine(**given):
    """A running engine, by its class, which has `url`."""
    kind = type("One", (Engine,), {"local": models.example(), "asked": [], **given})
    with Many(("127.0.0.1", 0), kind) as running:
        running.daemon_threads = True
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        kind.url = f"http://127.0.0.1:{running.server_port}/"
        try:
            yield kind
        finally:
            running.shutdown()
            thread.join()


@contextlib.contextmanager
def served(folder, owner="vllm", key=None, filters=(("cheap", "price < 50"),), engine_filters=None, **given):
    """A server of items with the example's model "here" and in an engine, "there"."""
    file, log = folder / "items.catalogue", folder / "items.log"
    if not file.exists():
        example.catalogue().save(file)
    shop = Shop(CatalogueSettings("example", file, log, capacity=500), filters)
    try:
        if owner == "sglang":
            options = {"catalogues": {"example": {"file": str(file), "log": str(log)}}, "filters": engine_filters or {}}
            given["catalogues"] = Catalogues(options_of({VARIABLE: json.dumps(options)}))
        with engine(owner=owner, key=key, **given) as one:
            here, there = models.example(), models.load(ModelSettings(name="there", url=one.url, key=key))
            here.name = "here"
            settings = ItemSettings(filters=filters, deadline=20)
            service = ItemService([here, there], [shop], settings)
            with serving(routes.create_app(service), service):
                service.engine, service.held = one, shop
                yield service
    finally:
        shop.close()


def ask(service, **fields):
    return httpx.post(f"{service.url}/v1/retrieve", json={"model": "there", **fields}, timeout=60)


def error(answer, status):
    assert answer.status_code == status, answer.text
    return answer.json()["error"]


@pytest.mark.parametrize("owner", ["vllm", "sglang"])
def test_answers_are_those_of_the_same_model_here_while_items_come_and_go(owner, tmp_path):
    random = randoms.Random(0)
    filters = [[], ["cheap"], ["category in ('hat', 'shoe')", "price > 30"], ["price < 8"]]
    with served(tmp_path, owner) as service:
        ids, several = list(service.held.newest().ids), 0
        for _ in range(25):
            item = random.choice(ids)
            service.held.put([item], [[random.randrange(32) for _ in range(3)]], {})
            version = service.held.newest()
            service.held.delete([each for each in random.sample(ids, 3) if version.rows_of([each])[0].size])
            fields = {
                "history": random.sample(ids, random.randrange(1, 6)), "beams": random.randrange(2, 12), "limit": 8,
                "filter": random.choice(filters), "deny": random.sample(ids, 20), "columns": ["price"],
                "exclude_history": random.random() < 0.5,
            }  # fmt: skip
            want, found = (ask(service, model=name, **fields).json() for name in ("here", "there"))
            assert [item["id"] for item in found["items"]] == [item["id"] for item in want["items"]]
            scores = [[item.pop("score") for item in told["items"]] for told in (found, want)]
            np.testing.assert_allclose(*scores, atol=1e-4)
            assert (found["items"], found["notes"], found["epoch"]) == (want["items"], want["notes"], want["epoch"])
            several += len(found["items"]) > 1
        assert several > 15


def test_sglang_is_told_by_name_what_a_list_is_too_short_for(tmp_path, monkeypatch):
    cheap = example.catalogue().keeps("price < 50")
    np.save(tmp_path / "cheap.npy", cheap)
    monkeypatch.setattr(engines, "MOST_DENIED", 3)
    named = {"cheap": {"catalogue": "example", "keep": str(tmp_path / "cheap.npy")}}
    with served(tmp_path, "sglang", engine_filters=named) as service:
        fields = {"history": ["hat-1"], "beams": 20, "filter": "cheap", "deny": ["hat-2", "hat-3", "hat-4"]}
        want = ask(service, model="here", **fields).json()["items"]
        found = ask(service, **fields).json()
        assert [item["id"] for item in found["items"]] == [item["id"] for item in want]
        assert service.engine.asked[-1] == {
            "maskwright_catalogue": "example", "maskwright_filter": ["cheap"], "maskwright_deny": fields["deny"]
        }  # fmt: skip
        told = error(ask(service, **{**fields, "filter": "price < 49"}), 400)
        assert (told["param"], told["code"]) == ("filter", "filter_without_name")
        assert "--filter" in told["message"]
        # of what the engine keeps, and the filter here does not, nothing is returned
        np.save(tmp_path / "cheap.npy", ~cheap)
        found = ask(service, **fields).json()
        is_cheap = dict(zip(service.held.newest().ids, cheap, strict=True))
        assert all(is_cheap[item["id"]] for item in found["items"])  # those of a semantic ID that others have too
        assert [note["code"] for note in found["notes"]] == ["changed_items", "fewer_items"]
        told = error(ask(service, history=["hat-1"], beams=1), 400)
        assert (told["param"], told["message"]) == ("beams", "SGLang searches with 2 beams or more")


def test_an_item_is_denied_with_all_its_semantic_ids_or_not_at_all():
    items = mw.Catalogue.of([[1, 2], [3, 4], [5, 6]], [7, 7, 8], 10, kind="matrix").live()
    version = items.publish()
    keep = version.filter(np.array([True, True, False]))
    assert engines.sglang_fields("c", version, keep, None, ()) == {
        "maskwright_catalogue": "c", "maskwright_deny": [8]
    }  # fmt: skip
    assert engines.sglang_fields("c", version, None, [], ()) == {"maskwright_catalogue": "c"}
    one = version.filter(np.array([True, False, True]))
    assert engines.sglang_fields("c", version, one, ["n"], [9]) == {
        "maskwright_catalogue": "c", "maskwright_filter": ["n"], "maskwright_deny": [9]
    }  # fmt: skip
    with pytest.raises(engines.Refused, match="leaves out 1 items"):
        engines.sglang_fields("c", version, one, None, ())


@pytest.mark.parametrize("owner", ["vllm", "sglang"])
@pytest.mark.parametrize(
    ("fault", "status", "code"),
    [
        ((400, {"error": "max_logprobs is 20"}), 400, "engine_refused"),
        ((503, {"error": "overloaded"}), 503, "engine_overloaded"),
        ((500, {"error": "out of memory"}), 502, "engine_error"),
        ((200, {"choices": []}), 502, "engine_unreachable"),
        ((200, b"no JSON"), 502, "engine_unreachable"),
    ],
)
def test_faults_of_the_engine_are_told_and_are_not_those_of_the_server(owner, fault, status, code, tmp_path):
    with served(tmp_path, owner, fault=fault) as service:
        assert httpx.get(f"{service.url}/ready").status_code == 200
        told = error(ask(service, history=["hat-1"]), status)
        assert told["code"] == code
        assert service.engine.url.rstrip("/") in told["message"]
        if status != 502 or fault[0] != 200:
            assert fault[1]["error"] in told["message"]
        service.engine.fault = None
        assert len(ask(service, history=["hat-1"]).json()["items"]) == 10


@pytest.mark.parametrize("owner", ["vllm", "sglang"])
def test_a_slow_engine_holds_up_no_model_here_and_ends_at_the_deadline(owner, tmp_path):
    with served(tmp_path, owner) as service:
        service.engine.go_on = go_on = threading.Event()
        try:
            slow = [
                threading.Thread(target=lambda: ask(service, history=["hat-1"], timeout=20), daemon=True)
                for _ in range(12)
            ]
            for each in slow:
                each.start()
            told = error(ask(service, history=["hat-1"], timeout=0.3), 504)
            assert told["code"] == "deadline_exceeded"
            assert len(ask(service, model="here", history=["hat-1"], timeout=10).json()["items"]) == 10
            wait(lambda: service.engines["there"].running == 8)  # of 4,096 beams at most, 512 each
        finally:
            go_on.set()
        for each in slow:
            each.join(30)
        wait(lambda: service.now()[:2] == (0, 0))


def test_text_is_encoded_by_the_engine_or_refused(tmp_path):
    with served(tmp_path, key="secret", begin=[0]) as service:
        local, there = service.models["here"], service.models["there"]
        assert there.begin == [0]  # which this tokenizer puts before every text
        fields = {"prompt": "bought {history}, then ", "history": ["hat-1"]}
        found = ask(service, **fields).json()
        codes = local.tokens("", service.held.newest().tokens_of(np.array([0])).tolist())
        assert found["usage"]["prompt_tokens"] == len("bought , then ") + 1 + len(codes)
        same = ask(service, prompt=there.tokens("text", ()), model="here").json()["items"]
        assert [item["id"] for item in ask(service, prompt="text").json()["items"]] == [item["id"] for item in same]
    with served(tmp_path, encodes=False) as service:
        assert error(ask(service, **fields), 400)["code"] == "invalid_prompt"
        assert len(ask(service, history=["hat-1"]).json()["items"]) == 10


def test_what_is_no_engine_stops_the_server_at_its_start():
    with engine(owner="llamacpp") as one, pytest.raises(DataError, match="neither vLLM nor SGLang"):
        models.load(ModelSettings(url=one.url))
    with pytest.raises(DataError, match="gave no answer"):
        models.load(ModelSettings(url=one.url))
    with engine() as one:
        assert models.load(ModelSettings(url=one.url)).name == "other"
        assert models.load(ModelSettings(url=one.url, name="served")).search.context == 4096
