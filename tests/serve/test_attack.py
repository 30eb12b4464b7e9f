"""Constraints that take all there is, while others ask for theirs."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import threading
import time
from dataclasses import replace

import pytest

pytest.importorskip("transformers")
pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")
httpx = pytest.importorskip("httpx")

import maskwright as mw  # noqa: E402
from maskwright.compile.cache.compilers import Compilers, found  # noqa: E402
from maskwright.serve import loading  # noqa: E402
from maskwright.serve.constraints import Constraint, Function  # noqa: E402
from maskwright.serve.refusals import Refused  # noqa: E402
from maskwright.serve.service import Service  # noqa: E402
from maskwright.serve.settings import Limits  # noqa: E402
from tests.strategies import deep_sources as deep  # noqa: E402
from tests.support.servers import running, wait  # noqa: E402


def bomb(number):
    """A pattern that nothing matches, as the search for a text finds out after ever longer."""
    return f"(?:\\d*[a-zé]?(?=.{{3,40}}x)){{8}}[a-w]*{number}"


@contextlib.contextmanager
def client_from(address, service):
    transport = httpx.HTTPTransport(local_address=address, verify=False)  # certificates take long to load
    with httpx.Client(base_url=service.url, transport=transport, timeout=60) as client:
        yield lambda **body: client.post(
            "/v1/completions", json={"model": loading.TINY, "prompt": "x", "max_tokens": 12, **body}
        )


def test_bombs_of_one_client_are_refused_by_their_budget_and_hold_up_nobody_else():
    limits = Limits(compile_processes=2, budget=mw.Budget(seconds=0.3))
    with running(limits=limits) as service, client_from("127.0.0.2", service) as good:
        assert good(guided_regex="[ab]{3}").status_code == 200
        found = []

        def attack(number):
            with client_from("127.0.0.3", service) as ask:
                found.append(ask(guided_regex=bomb(number)))

        threads = [threading.Thread(target=attack, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        wait(lambda: service.turns.waiting >= 3)
        for number in range(3):
            assert good(guided_regex=f"[ab]{{3}}c{number}").status_code == 200
        assert len(found) < 6, "the bombs were over before others were answered"
        for thread in threads:
            thread.join()
        errors = [answer.json()["error"] for answer in found]
        assert {(error["code"], error["limit"]) for error in errors} == {("constraint_too_expensive", "seconds")}
        assert service.turns.waiting == service.open == 0


def test_a_constraint_whose_ends_take_long_to_find_is_refused_and_holds_up_nobody():
    with running(limits=Limits(compile_processes=1)) as service, client_from("127.0.0.2", service) as ask:
        assert ask(guided_regex="[ab]{3}").status_code == 200
        pattern = "(?=.*a.{20}b)(?=.*c.{25}d)(?=.*e.{22}f).*x.{30}"
        found = []
        hostile = threading.Thread(target=lambda: found.append(ask(guided_regex=pattern, max_tokens=120)))
        began = time.monotonic()
        hostile.start()
        with client_from("127.0.0.3", service) as good:
            assert good(guided_regex="[ab]{3}").status_code == 200
        assert time.monotonic() - began < 10
        hostile.join()
        error = found[0].json()["error"]
        assert (error["code"], error["limit"]) == ("constraint_too_expensive", "seconds")
        assert "Make the constraint smaller" in error["message"]


class Gate:
    """Compiles here, each job once it is let through."""

    def __init__(self, vocabulary):
        self.vocabulary, self.jobs, self.open = vocabulary, [], threading.Event()

    def compile(self, source, budget=None, shared=None):
        self.jobs.append(source.contents)
        assert self.open.wait(20)
        if shared is not None:
            shared.left -= 1
            if shared.left < 0:
                raise mw.errors.BudgetError("it takes too long", limit="seconds")
        return found(source, budget, self.vocabulary)


def gated(limits):
    """A service that is not started, and the gate before its compilations."""
    service = Service(loading.tiny(), limits)
    gate = Gate(service.loaded.vocabulary)
    service.cache.compilers = gate
    return service, gate


def ask(service, number, client="a"):
    return asyncio.create_task(service.compile(Constraint("regex", f"a{number}", "x"), 16, "max_tokens", client=client))


async def until(true):
    for _ in range(2000):
        if true():
            return
        await asyncio.sleep(0.005)
    raise TimeoutError


def test_what_several_requests_ask_for_is_compiled_once_and_takes_one_place():
    async def main():
        service, gate = gated(Limits(compile_processes=2))
        tasks = [ask(service, 1, client) for client in "abcab"]
        await until(lambda: len(gate.jobs) == 1 and not service.turns.waiting)
        other = ask(service, 2, "d")  # for which there is a place
        await until(lambda: len(gate.jobs) == 2)
        gate.open.set()
        found = await asyncio.gather(*tasks, other)
        assert len({id(table) for table, _ in found[:-1]}) == 1
        assert gate.jobs == ["a1", "a2"]
        await until(lambda: not service.compiling and service.turns.free == 2)

    asyncio.run(main())


def test_a_request_that_is_given_up_leaves_the_queue_or_its_result_to_others():
    async def main():
        service, gate = gated(Limits(compile_processes=1))
        begun, leaves, stays = (ask(service, number) for number in range(3))
        await until(lambda: service.turns.waiting == 2)
        leaves.cancel()
        await until(lambda: service.turns.waiting == 1)
        begun.cancel()
        await asyncio.gather(begun, leaves, return_exceptions=True)
        gate.open.set()
        await stays
        assert gate.jobs == ["a0", "a2"]
        await ask(service, 0)  # compiled though nobody was left who wanted it
        assert len(gate.jobs) == 2
        await until(lambda: service.turns.free == 1 and not service.compiling)

    asyncio.run(main())


def test_a_client_with_too_many_constraints_that_wait_is_told_so():
    async def main():
        service, gate = gated(Limits(compile_processes=1, max_queue=4))
        tasks = [ask(service, number) for number in range(3)]
        await until(lambda: service.turns.waiting == 2)
        with pytest.raises(Refused) as found:
            await ask(service, 3)
        assert (found.value.status, found.value.code) == (429, "compile_queue_full")
        gate.open.set()
        await asyncio.gather(*tasks)

    asyncio.run(main())


def test_the_playground_takes_turns_for_processes_with_requests():
    async def main():
        service, gate = gated(Limits(compile_processes=1))
        service.loop = asyncio.get_running_loop()
        begun = ask(service, 0)
        await until(lambda: gate.jobs)
        tried = asyncio.create_task(asyncio.to_thread(service.table_in_turn, Constraint("regex", "a9", "x"), "a"))
        await until(lambda: service.turns.waiting == 1)
        other = ask(service, 1, "b")
        await until(lambda: service.turns.waiting == 2)
        gate.open.set()
        await asyncio.gather(begun, tried, other)
        assert gate.jobs == ["a0", "a1", "a9"]
        assert await asyncio.to_thread(service.table_in_turn, Constraint("regex", "a9", "x"), "a") is await tried

    asyncio.run(main())


def test_one_client_leaves_half_of_the_queue_to_others():
    with running(limits=Limits(rows=1, max_queue=5), slow=0.02) as service:
        found = []

        def write(seed):
            with client_from("127.0.0.3", service) as ask:
                found.append(ask(max_tokens=60, seed=seed))

        threads = [threading.Thread(target=write, args=(seed,)) for seed in range(6)]
        for thread in threads:
            thread.start()
        wait(lambda: len(found) == 3)
        assert (service.open, {answer.status_code for answer in found}) == (3, {429})
        assert {answer.json()["error"]["code"] for answer in found} == {"client_queue_full"}
        assert found[0].headers["retry-after"] == "1"
        with client_from("127.0.0.2", service) as good:
            assert good(max_tokens=2, n=3).status_code == 200
            error = good(max_tokens=2, n=4).json()["error"]
            assert error["param"] == "n"
            assert "one client has 3 at most" in error["message"]
        for thread in threads:
            thread.join()
        assert [answer.status_code for answer in found[3:]] == [200] * 3
        wait(lambda: not service.open)
        with client_from("127.0.0.3", service) as ask:
            assert ask(max_tokens=2, n=3).status_code == 200  # all of its sequences have been counted out


def test_a_server_that_can_compile_nothing_is_not_ready(monkeypatch):
    def dead(self, source, budget=None, shared=None):
        raise mw.errors.ProcessError("no process could be started")

    monkeypatch.setattr(Compilers, "compile", dead)
    with running() as service:
        ready, health = (httpx.get(f"{service.url}/{name}") for name in ("ready", "health"))
        assert (ready.status_code, health.status_code, service.warm) == (503, 503, False)
        assert "no process could be started" in ready.json()["why"]


def test_the_tools_of_one_request_share_one_budget():
    service, gate = gated(Limits(budget=mw.Budget(seconds=5)))
    gate.open.set()
    tools = [
        Function(f"f{n}", {"type": "object", "properties": {f"p{n}": {"not": {"uniqueItems": True}}}}, n, False)
        for n in range(100)
    ]
    with pytest.raises(Refused) as found:
        service.offered(Constraint("calls", tools, "tools"))
    assert found.value.code == "constraint_too_expensive"
    assert len(gate.jobs) <= 7


def test_a_process_that_dies_is_replaced_and_the_request_is_told():
    with running(limits=Limits(compile_processes=1, budget=mw.Budget(seconds=20))) as service:
        found = []
        with client_from("127.0.0.1", service) as ask:
            thread = threading.Thread(target=lambda: found.append(ask(guided_regex=bomb(0))))
            before = service.compilers.pids
            thread.start()
            wait(lambda: service.compiling)
            time.sleep(0.3)
            os.kill(before[0], signal.SIGKILL)
            thread.join()
            assert (found[0].status_code, found[0].json()["error"]["code"]) == (500, "compiler_fault")
            assert ask(guided_regex="[ab]{3}").status_code == 200
            assert service.compilers.pids != before
        assert httpx.get(f"{service.url}/health").status_code == 200


def test_clients_take_turns_for_rows():
    with running(limits=Limits(rows=1), slow=0.01) as service:
        ended = []

        def write(address, seed):
            with client_from(address, service) as ask:
                assert ask(max_tokens=60, seed=seed).status_code == 200
                ended.append(address)

        many = [threading.Thread(target=write, args=("127.0.0.3", seed)) for seed in range(6)]
        for thread in many:
            thread.start()
        wait(lambda: service.worker.waiting >= 5)
        few = threading.Thread(target=write, args=("127.0.0.2", 9))
        few.start()
        for thread in (*many, few):
            thread.join()
        assert ended.index("127.0.0.2") <= 3
        assert (service.open, service.worker.waiting, service.fault) == (0, 0, None)


PLACE = '"x": 1'
_IS_JSON = {"Content-Type": "application/json"}


def requests_of(levels: int) -> dict[str, str]:
    """Return a body of a request for each kind of constraint, nested so deep."""
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "x": 1}}}
    schema = deep.SCHEMAS["properties"](levels)
    given = {
        "schema": f'"guided_json": {schema}',
        "text of a schema": f'"guided_json": {json.dumps(schema)}',
        "not": f'"guided_json": {deep.SCHEMAS["not"](levels)}',
        "choice": f'"guided_choice": {deep.CHOICES["lists"](levels)}',
        "regex": f'"guided_regex": {json.dumps(deep.PATTERNS["groups"](levels))}',
        "grammar": f'"guided_grammar": {json.dumps(deep.GRAMMARS["ebnf"]["groups"](levels))}',
        "tag": f'"structured_outputs": {{"structural_tag": {json.dumps(deep.TAGS["tag"](levels))}}}',
        "tool": f'"tools": [{json.dumps(tool).replace(PLACE, schema[1:-1])}], "tool_choice": "required"',
    }
    start = dict.fromkeys(given, '"prompt": "x"') | {"tool": '"messages": [{"role": "user", "content": "x"}]'}
    return {
        name: f'{{{start[name]}, "model": "{loading.TINY}", "max_tokens": 12, {text}}}' for name, text in given.items()
    }


@pytest.mark.long
@pytest.mark.parametrize("bytes_allowed", [None, 1 << 26], ids=["usual limits", "limits of 64 MiB"])
def test_requests_of_any_depth_are_answered_and_so_is_the_next(bytes_allowed: int | None) -> None:
    limits = Limits(compile_processes=1)
    if bytes_allowed is not None:
        limits = replace(limits, max_body_bytes=bytes_allowed, max_schema_bytes=bytes_allowed)
    with running(limits=limits) as service, httpx.Client(base_url=service.url, timeout=60) as client:

        def ask(body: str, path: str = "/v1/completions") -> httpx.Response:
            return client.post(path, content=body, headers=_IS_JSON)

        for levels in deep.LEVELS:
            for name, body in requests_of(levels).items():
                answer = ask(body, "/v1/chat/completions" if name == "tool" else "/v1/completions")
                if len(body) > limits.max_body_bytes:
                    assert answer.status_code == 413
                    assert "--max-body-bytes" in answer.json()["error"]["message"]
                    continue
                assert answer.status_code in (200, 400), answer.text
                if levels >= 10_000:
                    error = answer.json()["error"]
                    assert answer.status_code == 400
                    assert len(answer.content) < 20_000
                    if error["code"] == "constraint_too_large":
                        assert "--max-schema-bytes" in error["message"]
                        assert bytes_allowed is None
                    else:
                        assert error["limit"] == "depth"
            assert ask(requests_of(1)["regex"]).status_code == 200


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-be", "utf-32"])
def test_the_depth_of_a_body_is_seen_in_every_encoding(encoding: str) -> None:
    with running() as service, httpx.Client(base_url=service.url, timeout=60) as client:
        for levels in (700, 10_000):
            nested = "[" * levels + "]" * levels  # of the bytes of ∀ one is a quote in UTF-16
            body = f'{{"model": "{loading.TINY}", "prompt": "∀", "max_tokens": 12, "guided_json": {nested}}}'
            answer = client.post("/v1/completions", content=body.encode(encoding), headers=_IS_JSON)
            assert (answer.status_code, answer.json()["error"]["limit"]) == (400, "depth")
        body = f'{{"model": "{loading.TINY}", "prompt": "∀", "max_tokens": 12, "guided_regex": "a"}}'
        answer = client.post("/v1/completions", content=body.encode(encoding), headers=_IS_JSON)
        assert answer.json()["choices"][0]["text"] == "a"


def test_a_body_with_much_after_its_last_bracket_holds_up_nobody() -> None:
    body = f'{{"model": "{loading.TINY}", "prompt": "x", "guided_choice": [{"[]," * 800}[]]}}' + " " * 500_000
    with running() as service, httpx.Client(base_url=service.url, timeout=60) as client:
        began = time.process_time()
        assert client.post("/v1/completions", content=body, headers=_IS_JSON).status_code == 400
        assert time.process_time() - began < 1
