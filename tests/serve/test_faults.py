"""Faults and load: processes killed while they write, files damaged anywhere, clients that go; nothing leaks."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import random
import re
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import maskwright as mw
from maskwright.errors import RegexError, SchemaError

BYTES = [b"", *(bytes([b]) for b in range(256)), b'{"', b'": ']
IN_PROC = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="what a process holds is read from /proc")


@pytest.fixture(scope="module")
def vocab():
    return mw.Vocabulary.from_bytes(BYTES, eos=0)


# ------------------------------------------------------------------------------------------- the cache on disk

# everything is compiled before, so that most of the time is spent writing
WRITER = """
import random, sys
import maskwright as mw
import tests.serve.test_faults as t
from maskwright.compile.constraint_source import Source
vocab = mw.Vocabulary.from_bytes(t.BYTES, eos=0)
rng = random.Random(int(sys.argv[2]))
cache = mw.Cache(vocab)
made = [t.ask(cache, n, whole=True) for n in range(t.SOURCES)]

def known(*_, **__):
    if isinstance(made[n], Exception):
        raise made[n]
    return made[n]

Source.compile = known
cache = mw.Cache(vocab, directory=sys.argv[1], max_entries=1, directory_bytes=int(sys.argv[3]))
print("ready", flush=True)
while True:
    n = rng.randrange(t.SOURCES)
    t.ask(cache, n)
    files = t.files_of(sys.argv[1])
    rng.shuffle(files)
    for file in files[20:21]:  # so that there is always something to be written, and something that is there
        file.unlink(missing_ok=True)
"""
SOURCES = 60


def ask(cache, n, whole=False):
    """Ask for one of a few sources: patterns, schemas as whole tables, choices, and such as cannot be compiled.

    whole: errors are returned as they are, not as what they say.
    """
    try:
        if n % 4 == 0:
            return cache.compile_regex("[a-c]{1,%d}x{%d}" % (n + 1, n % 7), lazy=False)  # noqa: UP031
        if n % 4 == 1:
            schema = {"type": "object", "properties": {f"p{n}": {"maxLength": n}, "b": {"type": "array"}}}
            return cache.compile_json_schema(schema, lazy=False)
        if n % 4 == 2:
            return cache.compile_choices([f"choice {k}" for k in range(n + 1)])
        if n % 8 == 3:
            return cache.compile_regex("(ab" * n, lazy=False)
        return cache.compile_json_schema({"properties": {f"a{n}": {"type": "none"}}}, lazy=False)
    except (RegexError, SchemaError) as error:
        return error if whole else str(error)


def files_of(folder):
    return sorted(file for file in Path(folder).iterdir() if file.suffix != ".part")


def same_tables(found, wanted):
    if isinstance(wanted, str):
        return found == wanted
    arrays = wanted.arrays.by_name()
    return found.source == wanted.source and all(
        np.array_equal(array, arrays[name]) for name, array in found.arrays.by_name().items()
    )


def kill_at_random(vocab, folder, rounds, limit, seed):
    """Kill two processes that write one folder, again and again; return what files were found in the end."""
    rng = random.Random(seed)
    wanted = [ask(mw.Cache(vocab), n) for n in range(SOURCES)]
    path = os.path.dirname(mw.__file__)
    seen = partly = 0
    waiting = []

    def begin(number):
        command = [sys.executable, "-c", WRITER, str(folder), str(number), str(limit)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, cwd=path)

    try:
        for number in range(rounds):
            waiting += [begin(2 * number), begin(2 * number + 1)]
            for process in waiting[-2:]:
                assert process.stdout.readline() == b"ready\n"
            time.sleep(rng.random() * 0.05)
            for process in waiting[-2:]:
                process.kill()
                process.wait()
                process.stdout.close()
            files = list(folder.iterdir()) if folder.exists() else []
            seen += len(files)  # a loaded machine has deleted most again by now
            partly += sum(file.suffix == ".part" for file in files)
            for file in files:
                if file.suffix == ".safetensors":  # renamed into place, so whole
                    mw.TransitionTable.load(file)
                elif file.suffix == ".json":
                    json.loads(file.read_text())
            if number % 3 == 2 or number == rounds - 1:
                cache = mw.Cache(vocab, directory=folder)
                for n in range(SOURCES):
                    assert same_tables(ask(cache, n), wanted[n]), n
                for file in folder.iterdir():
                    if rng.random() < 0.5:
                        file.unlink()
    finally:
        for process in waiting:
            process.kill()
            process.wait()
    return seen, partly


@pytest.mark.long
def test_processes_killed_at_any_moment_leave_only_whole_tables(vocab, tmp_path):
    seen, _ = kill_at_random(vocab, tmp_path / "cache", 4, 1 << 30, 0)
    assert seen


@pytest.mark.slow
@pytest.mark.parametrize("limit", [1 << 30, 300_000])  # without and with files that are removed to make room
def test_processes_killed_a_hundred_times_leave_only_whole_tables(vocab, tmp_path, limit):
    seen, partly = kill_at_random(vocab, tmp_path / "cache", 50, limit, 1)
    assert seen > 5
    print("files that were never finished:", partly)


def regions(data):
    """Yield (name, first, last) of each part of a safetensors file: the length, the header, each array."""
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    yield "length", 0, 8
    yield "header", 8, 8 + length
    for name, what in header.items():
        if name != "__metadata__" and what["data_offsets"][1] > what["data_offsets"][0]:
            yield name, *(8 + length + offset for offset in what["data_offsets"])


def damages(data, rng):
    """Yield what may have become of a file, each with what was done to it."""
    for name, first, last in regions(data):
        for place in {first, (first + last) // 2, last - 1}:
            yield f"bit of {name}", data[:place] + bytes([data[place] ^ 1 << rng.randrange(8)]) + data[place + 1 :]
            yield f"cut in {name}", data[:place]
        yield f"zeros for {name}", data[:first] + bytes(last - first) + data[last:]
        yield f"ones for {name}", data[:first] + b"\xff" * (last - first) + data[last:]
        yield f"{name} left out", data[:first] + data[last:]
        yield f"{name} twice", data[:last] + data[first:]
    yield "more behind it", data + b"\x00"
    yield "something else", b"\x00" * len(data)
    yield "nothing", b""
    yield "a page of zeros", data[:4096] + bytes(min(4096, max(0, len(data) - 4096))) + data[8192:]


@pytest.mark.long
def test_a_table_damaged_in_any_region_is_made_again(vocab, tmp_path):
    schema = {
        "type": "object",
        "properties": {
            "a": {"type": "array", "items": {"$ref": "#"}},
            "b": {"pattern": "^[a-f]+$"},
            "c": {"minimum": 3},
        },
    }

    def compiled(cache):
        return cache.compile_json_schema(schema, lazy=False)

    wanted = compiled(mw.Cache(vocab, directory=tmp_path))
    assert wanted.is_nested
    (file,) = tmp_path.glob("*.safetensors")
    whole = file.read_bytes()
    names = {name for name, _, _ in regions(whole)}
    assert len(names) > 20
    count = 0
    for what, damaged in damages(whole, random.Random(0)):
        if damaged == whole:
            continue
        file.write_bytes(damaged)
        cache = mw.Cache(vocab, directory=tmp_path)
        assert same_tables(compiled(cache), wanted), what
        assert cache.stats.compilations == 1, what
        assert file.read_bytes() == whole, what
        count += 1
    assert count > 8 * len(names)


# ------------------------------------------------------------------------------------------------- the server


class Served:
    """A `maskwright serve` process, and what it holds."""

    def __init__(self, *options):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        command = [sys.executable, "-m", "maskwright.cli.main", "serve", "--port", str(self.port), *options]
        self.process = subprocess.Popen(
            command, stderr=subprocess.DEVNULL, env={**os.environ, "HF_HUB_OFFLINE": "1", "MALLOC_ARENA_MAX": "2"}
        )

    def __enter__(self):
        self.wait(lambda: self.get("/ready")[0] == 200)
        return self

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(40)
        finally:
            self.process.kill()
            self.process.wait()

    def wait(self, what, seconds=90.0):
        until = time.monotonic() + seconds
        while True:
            with contextlib.suppress(OSError, http.client.HTTPException):
                if what():
                    return
            assert self.process.poll() is None, "the server has ended"
            assert time.monotonic() < until, "it took too long"
            time.sleep(0.05)

    def get(self, path):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request("GET", path)
            out = connection.getresponse()
            return out.status, out.read().decode()
        finally:
            connection.close()

    def post(self, **fields):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            body = json.dumps({"model": "maskwright-tiny", "prompt": "a", **fields})
            connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
            out = connection.getresponse()
            return out.status, json.loads(out.read())
        finally:
            connection.close()

    def metric(self, name):
        values = re.findall(rf"^maskwright_{name}(?:{{.*}})? (\S+)$", self.get("/metrics")[1], re.MULTILINE)
        assert values, name
        return sum(map(float, values))

    def idle(self):
        self.wait(lambda: not (self.metric("running") or self.metric("queue_length") or self.metric("compiling")))

    def holds(self):
        """Resident bytes, threads, open files."""
        folder = Path(f"/proc/{self.process.pid}")
        status = (folder / "status").read_text()
        found = {name: int(re.search(rf"^{name}:\s+(\d+)", status, re.MULTILINE)[1]) for name in ("VmRSS", "Threads")}
        return 1024 * found["VmRSS"], found["Threads"], len(list((folder / "fd").iterdir()))

    def settled(self, threads, files):
        """Wait until there are no more files than there were, nor more threads than pools may have begun since."""
        pools = 4 + min(32, (os.cpu_count() or 1) + 4)  # of compilations, and asyncio's own
        try:
            self.wait(lambda: self.holds()[1] <= threads + pools and self.holds()[2] <= files, 20)
        except AssertionError:
            raise AssertionError(f"threads, files: {self.holds()[1:]}, and before {threads, files}") from None


def schema_number(i):
    """One of any number of schemas, all of different text, rows and lists."""
    kinds = (
        {"type": "integer", "minimum": i},
        {"enum": [f"value {i} {k}" for k in range(i % 9 + 1)]},
        {"type": "string", "pattern": f"^[a-f]{{1,{i % 12 + 1}}}{i}$"},
        {"type": "array", "items": {"const": i}, "maxItems": i % 4},
    )
    return {
        "type": "object",
        "properties": {f"name{i}": kinds[i % 4], "next": {"anyOf": [{"type": "null"}, kinds[(i + 1) % 4]]}},
        "required": [f"name{i}"],
        "additionalProperties": False,
    }


def through_a_small_server(count, warm, bound):
    """Ask for `count` schemas, each its own, after `warm` others; what grew is below a bound in bytes.

    What is bound of patterns is kept for later schemas, up to 64 MB: with that, 2,500 schemas are 60 MB more than 100.
    """
    with Served("--cache-bytes", str(1 << 20), "--rows", "4") as server, ThreadPoolExecutor(4) as pool:

        def one(i):
            status, out = server.post(structured_outputs={"json": schema_number(i)}, max_tokens=120, seed=i)
            assert status == 200, out
            value = json.loads(out["choices"][0]["text"])
            assert f"name{i}" in value
            assert out["choices"][0]["finish_reason"] == "stop"

        list(pool.map(one, range(warm)))
        server.idle()
        rss, threads, files = server.holds()
        forgotten = server.metric("cache_evictions_total")
        list(pool.map(one, range(warm, warm + count)))
        server.idle()
        server.settled(threads, files)
        grown = server.holds()[0] - rss
        assert server.metric("cache_evictions_total") > forgotten, "the cache was never full"
        print(f"{count} schemas: {grown / 1e6:.1f} MB more")
        assert grown < bound


@pytest.mark.long
@IN_PROC
def test_schemas_that_come_and_go_leave_nothing_in_a_server(vocab):
    pytest.importorskip("uvicorn")
    through_a_small_server(80, 60, 100e6)


@pytest.mark.slow
@IN_PROC
def test_a_thousand_schemas_that_come_and_go_leave_nothing_in_a_server(vocab):
    pytest.importorskip("uvicorn")
    through_a_small_server(1000, 200, 100e6)


def half_read(port, body, rng):
    """Begin a stream, read some of it, and go away, one way or another."""
    raw = json.dumps(body).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(raw)}"
    how = rng.randrange(5)
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        if how == 0:  # before all is sent
            connection.sendall(head.encode() + b"\r\n\r\n" + raw[: rng.randrange(len(raw))])
            return
        connection.sendall(head.encode() + b"\r\n\r\n" + raw)
        for _ in range(rng.randrange(6)):
            if not select.select([connection], [], [], 0.5)[0] or not connection.recv(200):
                break
        if how == 1:  # a reset in place of an orderly end
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
        elif how == 2:  # nothing more to say, and gone while it writes
            connection.shutdown(socket.SHUT_WR)


def clients_that_go(clients, each):
    with Served("--rows", "4", "--max-queue", "500") as server:
        schema = {"type": "array", "items": {"type": "string", "maxLength": 200}, "minItems": 3}
        tail = {"structured_outputs": {"json": schema}, "max_tokens": 900, "stream": True}
        for _ in range(3):
            assert server.post(structured_outputs={"json": schema}, max_tokens=60)[0] == 200
        server.idle()
        rss, threads, files = server.holds()
        faults = []

        def gone(number):
            rng = random.Random(number)
            for i in range(each):
                constrained = tail if rng.random() < 0.7 else {"max_tokens": 500, "stream": rng.random() < 0.7}
                body = {"model": "maskwright-tiny", "prompt": "a", "seed": i, "n": rng.randint(1, 3), **constrained}
                try:
                    half_read(server.port, body, rng)
                except OSError as error:
                    faults.append(error)

        def stays(number):
            for i in range(each // 4):
                status, out = server.post(structured_outputs={"json": schema}, max_tokens=40, seed=i)
                if status != 200 or not isinstance(json.loads(out["choices"][0]["text"]), list):
                    faults.append(out)

        work = [threading.Thread(target=gone, args=(number,)) for number in range(clients)]
        work += [threading.Thread(target=stays, args=(number,)) for number in range(2)]
        for thread in work:
            thread.start()
        for thread in work:
            thread.join()
        assert not faults
        server.idle()
        server.settled(threads, files)
        assert server.get("/health")[0] == 200
        assert server.post(structured_outputs={"json": schema}, max_tokens=40)[0] == 200
        grown = server.holds()[0] - rss
        print(f"{clients * each} streams left: {grown / 1e6:.1f} MB more")
        assert grown < 60e6


@pytest.mark.long
@IN_PROC
def test_clients_that_go_in_the_middle_leave_nothing_behind():
    pytest.importorskip("uvicorn")
    clients_that_go(6, 8)


@pytest.mark.slow
@IN_PROC
def test_a_thousand_clients_that_go_in_the_middle_leave_nothing_behind():
    pytest.importorskip("uvicorn")
    clients_that_go(16, 64)


@pytest.mark.slow
@IN_PROC
@pytest.mark.filterwarnings("ignore")
def test_ten_thousand_requests_made_from_the_description_never_fail_the_server():
    schemathesis = pytest.importorskip("schemathesis")
    pytest.importorskip("uvicorn")
    from hypothesis import HealthCheck, given, seed, settings

    with Served("--max-tokens", "24", "--budget-seconds", "2") as server:
        url = f"http://127.0.0.1:{server.port}"
        api = schemathesis.openapi.from_dict(json.loads(server.get("/openapi.json")[1]))
        asked = {}
        _, threads, files = server.holds()

        def ask_all(path):
            @seed(0)
            @given(case=api[path]["POST"].as_strategy())
            @settings(max_examples=5000, deadline=None, suppress_health_check=list(HealthCheck), database=None)
            def ask_one(case):
                if isinstance(case.body, dict):
                    case.body["model"] = "maskwright-tiny"
                out = case.call(base_url=url)
                assert out.status_code in (200, 400, 404, 422), (case.body, out.text[:500])
                if out.status_code != 200:
                    assert out.json()["error"]["message"]
                asked[path, out.status_code] = asked.get((path, out.status_code), 0) + 1

            ask_one()

        for path in ("/v1/chat/completions", "/v1/completions"):
            ask_all(path)
        print("answers by path and status:", asked)
        assert sum(asked.values()) >= 10_000
        server.idle()
        server.settled(threads, files)
        assert server.get("/health")[0] == 200
        assert server.post(guided_regex="[ab]{3}", max_tokens=9)[0] == 200
