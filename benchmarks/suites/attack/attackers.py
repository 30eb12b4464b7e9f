"""Clients that attack a server: `python -m benchmarks.suites.attack.attackers PORT WAY ...`.

They run at lower priority (`nice` 10) than all else on the machine, as attackers have processors of their own. Once
standard input ends, they stop and write one line of JSON: what became of the requests.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import random
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from tests.fuzz.attacks import ATTACKS
from tests.fuzz.generation import cases

BOMBER, SLOW_ONE, HOSTILE_ONE = "127.0.0.3", "127.0.0.4", "127.0.0.5"  # whom the server takes for three clients
BOMBS, SLOW, HOSTILE = 32, 200, 8  # at a time
_PATIENCE = 3.0  # seconds after which a hostile client goes on to its next request
_NICE = 10
_MODEL = "maskwright-tiny"
Seen = Counter[str]


async def connect(port: int, address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Return a connection from an address."""
    return await asyncio.open_connection("127.0.0.1", port, local_addr=(address, 0))


async def post(port: int, address: str, path: str, body: bytes) -> int:
    """Return the status of the answer to a request, on a connection of its own; 0 if there is none."""
    reader, writer = await connect(port, address)
    try:
        head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nConnection: close\r\n"
        writer.write(head.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        line = await reader.readline()
        while await reader.read(1 << 16):
            pass
        return int(line.split()[1]) if line else 0
    finally:
        writer.close()


def bombs() -> Iterator[bytes]:
    """Yield requests with constraints that take all there is, no two alike."""
    for number in itertools.count():
        kinds: tuple[dict[str, Any], ...] = (
            {"guided_regex": f"(a|b)*a(a|b){{24}}{number}"},
            {"guided_json": {"pattern": f"^(?:a|b)*a(a|b){{22}}{number}$"}},
            {"guided_regex": f"(?:[ab]{{24}}a[ab]*)?{number}"},
            {"guided_json": {
                "propertyNames": {"pattern": f"(a|b)*a(a|b){{18}}{number}"}, "minProperties": number % 5,
            }},
            {"guided_grammar": f'start: (A | B)+ "{number}"\nA: /(a|b)*a(a|b){{18}}/\nB: /(a|b)*b(a|b){{18}}/'},
        )  # fmt: skip
        yield json.dumps({"model": _MODEL, "prompt": "x", "max_tokens": 4, **kinds[number % len(kinds)]}).encode()


def hostile(seed: int) -> Iterator[tuple[str, bytes]]:
    """Yield requests of the fuzzer without end."""
    for case in cases("http", seed):
        for path, body in ATTACKS["http"][case.attack]() if case.attack else case.source:
            yield path, body if isinstance(body, bytes) else body.encode("latin-1")


async def throw_bombs(port: int, made: Iterator[bytes], seen: Seen) -> None:
    """Send one bomb after the other."""
    for body in made:
        status = await post(port, BOMBER, "/v1/completions", body)
        seen[f"bomb {status}"] += 1
        if status in (429, 503):
            await asyncio.sleep(1)  # as it is told


async def send_hostile(port: int, made: Iterator[tuple[str, bytes]], seen: Seen) -> None:
    """Send one hostile request after the other."""
    for path, body in made:
        try:
            seen[f"hostile {await asyncio.wait_for(post(port, HOSTILE_ONE, path, body), _PATIENCE)}"] += 1
        except TimeoutError:
            seen["hostile, given up"] += 1


async def be_slow(port: int, number: int, seen: Seen) -> None:
    """Send nothing, or the head or the body of a request byte by byte, as often as the server lets that happen.

    number: the kind of client, modulo 3. It reads no answer.
    """
    rng = random.Random(number)
    body = json.dumps({"model": _MODEL, "prompt": "x", "max_tokens": 900, "stream": True}).encode()
    while True:
        reader, writer = await connect(port, SLOW_ONE)
        head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n"
        whole = head % len(body) + b"\r\n" + body
        kind = ("nothing", "head", "body")[number % 3]
        with contextlib.suppress(OSError):
            if kind == "body":
                writer.write(whole[: -len(body)])
                whole = body
            for at in range(len(whole)):
                await asyncio.sleep(0.5 + rng.random())
                if kind != "nothing":
                    writer.write(whole[at : at + 1])
                    await writer.drain()
                if reader.at_eof() or writer.is_closing():
                    break
        seen[f"slow {kind} cut off"] += 1
        writer.close()


async def attack(port: int, ways: list[str]) -> Seen:
    """Attack in some ways, of "bombs", "hostile" and "slow", until standard input ends."""
    seen = Seen()
    made, bodies = bombs(), hostile(port)  # another order in each run

    async def again(what: Callable[[], Awaitable[None]]) -> None:
        while True:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                await what()
            seen["connections refused"] += 1
            await asyncio.sleep(0.1)

    kinds: dict[str, list[Callable[[], Awaitable[None]]]] = {
        "bombs": [lambda: throw_bombs(port, made, seen)] * BOMBS,
        "hostile": [lambda: send_hostile(port, bodies, seen)] * HOSTILE,
        "slow": [lambda n=n: be_slow(port, n, seen) for n in range(SLOW)],  # type: ignore[misc]
    }
    tasks = [asyncio.create_task(again(each)) for way in ways for each in kinds[way]]
    print("ready", flush=True)

    def told() -> None:
        while sys.stdin.readline():  # each line asks how far it is
            print(json.dumps(seen), flush=True)

    await asyncio.to_thread(told)
    running = set(tasks)
    while running:  # until Python 3.12, `wait_for` loses a cancellation that comes together with a result
        for task in running:
            task.cancel()
        _, running = await asyncio.wait(running, timeout=0.2)
    return seen


if __name__ == "__main__":
    os.nice(_NICE)
    print(json.dumps(asyncio.run(attack(int(sys.argv[1]), sys.argv[2:]))), flush=True)
