"""What well-behaved clients notice of an attack."""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

from ..serving.load import Client, served
from ..serving.times import percentiles

CLIENTS, KNOWN, TOKENS = 4, 20, 32
ADDRESS = "127.0.0.2"
BUDGET = "2"  # seconds of one constraint
HOSTILE, ROUNDS, EACH = 10_000, 3, 15.0  # hostile requests; times without and with the attack at least; their seconds
Record = dict[str, Any]


def schema(number: int) -> Record:
    """Return an everyday schema, another for each number."""
    return {
        "type": "object",
        "properties": {
            f"name{number}": {"type": "string", "maxLength": 8}, "size": {"type": "integer", "minimum": 0},
            "kind": {"enum": ["a", "b", f"k{number % 7}"]},
        },
        "required": [f"name{number}", "kind"], "additionalProperties": False,
    }  # fmt: skip


class Good:
    """Well-behaved clients, of whom every fourth request has a new constraint."""

    def __init__(self, port: int) -> None:
        self._port, self._new = port, itertools.count(KNOWN)
        self.seconds: dict[tuple[str, str], list[float]] = {}  # by constraint, and time
        self.failed = Counter[str]()
        self._lock = threading.Lock()

    def ask(self, when: str, seconds: float) -> None:
        """Send requests for so long, each client its next one once it has the answer."""
        until = time.monotonic() + seconds
        threads = [threading.Thread(target=self._one, args=(when, until, at)) for at in range(CLIENTS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _one(self, when: str, until: float, at: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=300, source_address=(ADDRESS, 0))
        for turn in itertools.count(at):
            if time.monotonic() > until:
                return
            kind = "new" if turn % 4 == 0 else "known"
            number = next(self._new) if kind == "new" else turn % KNOWN
            body = {
                "model": "maskwright-tiny", "prompt": "Answer: ", "max_tokens": TOKENS, "seed": turn,
                "guided_json": schema(number),
            }  # fmt: skip
            began = time.perf_counter()
            try:
                connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
                answer = connection.getresponse()
                text = answer.read()
                failed = "" if answer.status == 200 else f"{answer.status}: {text[:80]!r}"
            except (OSError, http.client.HTTPException) as error:
                failed = type(error).__name__
                connection.close()
            with self._lock:
                self.seconds.setdefault((kind, when), []).append(time.perf_counter() - began)
                if failed:
                    self.failed[f"{when}, {failed}"] += 1


class Attack:
    """A process that attacks."""

    def __init__(self, port: int, ways: tuple[str, ...]) -> None:
        command = [sys.executable, "-m", "benchmarks.suites.attack.attackers", str(port), *ways]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._in, self._out = self._process.stdin, self._process.stdout
        self._out.readline()

    def seen(self) -> Counter[str]:
        """Return what became of its requests so far."""
        self._in.write("\n")
        self._in.flush()
        return Counter(json.loads(self._out.readline()))

    def end(self) -> Counter[str]:
        """Stop it, and return what became of its requests."""
        self._in.close()
        found = Counter[str](json.loads(self._out.readline()))
        self._process.wait()
        return found


@contextlib.contextmanager
def attacking(port: int, found: Counter[str], *ways: str) -> Iterator[Attack]:
    """Attack until the block is left; what became of the requests is added to `found`."""
    attack = Attack(port, ways)
    try:
        yield attack
    finally:
        found.update(attack.end())


def hostile(seen: Counter[str]) -> int:
    """Return how many hostile requests were answered, or cut off."""
    return sum(count for name, count in seen.items() if name.startswith("hostile"))


def settle(port: int) -> None:
    """Wait until a server has nothing more to compile or to write."""
    names = ("maskwright_compiling", "maskwright_running", "maskwright_queue_length")
    until = time.monotonic() + 120
    while time.monotonic() < until:
        lines = Client(port).get("/metrics")[1].splitlines()
        if not any(float(line.split()[1]) for line in lines if line.startswith(names)):
            return
        time.sleep(0.2)


def latency(scale: float) -> list[Record]:
    """10,000 hostile requests, 200 slow clients and 32 bombs at a time: latency of others, with and without."""
    wanted = int(HOSTILE * scale)
    with served("--budget-seconds", BUDGET) as (port, _):
        good, found = Good(port), Counter[str]()
        good.ask("warm", 5.0)
        for turn in itertools.count(1):
            good.ask("without", EACH)
            with attacking(port, found, "bombs", "hostile", "slow"):
                time.sleep(1.0)
                good.ask("with", EACH)
            print(f"{turn}: {hostile(found):,} of {wanted:,} hostile requests", file=sys.stderr, flush=True)
            settle(port)
            if turn >= ROUNDS and hostile(found) >= wanted:
                break
        health = Client(port).get("/health")[0]
        again, _ = Client(port).post("/v1/completions", {"model": "maskwright-tiny", "prompt": "x", "max_tokens": 4})
    out: list[Record] = []
    for (kind, when), seconds in sorted(good.seconds.items()):
        if when != "warm":
            out.append({
                "constraint": kind, "attack": when, "requests": len(seconds),
                "latency_ms": percentiles([1e3 * each for each in seconds]),
            })  # fmt: skip
    out.append({
        "hostile": hostile(found), "seen": dict(sorted(found.items())), "failed": dict(good.failed),
        "health": health, "answers": again,
    })  # fmt: skip
    return out
