"""A real `maskwright serve` process and clients in threads, for `serving.py`: what is written, how fast, and for whom.

Clients are plain `http.client` connections that stay open, so that they take little of the processors that the server
has to share with them.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

Record = dict[str, Any]


class Reply(NamedTuple):
    """One request as its client saw it."""

    which: int  # of what was asked
    seconds: float
    status: int
    body: Record


class Client:
    """One connection to a server."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)

    def post(self, path: str, body: Record) -> tuple[int, Record]:
        """Return the status and the document that a request is answered by."""
        self._connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        reply = self._connection.getresponse()
        return reply.status, json.loads(reply.read())

    def get(self, path: str) -> tuple[int, str]:
        """Return the status and the text at a path."""
        self._connection.request("GET", path)
        reply = self._connection.getresponse()
        return reply.status, reply.read().decode()


@contextlib.contextmanager
def served(*options: str) -> Iterator[tuple[int, int]]:
    """Run `maskwright serve` until the block is left; its port and its process."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "maskwright.cli.main", "serve", "--port", str(port), *options]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL, env={**os.environ, "HF_HUB_OFFLINE": "1"})
    try:
        until = time.monotonic() + 120
        while True:
            with contextlib.suppress(OSError, http.client.HTTPException):
                if Client(port).get("/ready")[0] == 200:
                    break
            if process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"the server did not come up (exit code {process.poll()})")
            time.sleep(0.1)
        yield port, process.pid
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def asked(
    port: int, clients: int, bodies: Iterator[tuple[int, Record]], enough: Callable[[Reply], bool] = lambda _: False
) -> tuple[list[Reply], float]:
    """Return the replies to (which, body) in the order they came, and the seconds from the first to the last.

    Each client sends its next request once the one before is answered. enough: after which nothing more is sent.
    """
    lock, out = threading.Lock(), []
    done = False

    def run() -> None:
        nonlocal done
        client = Client(port)
        while True:
            with lock:
                one = None if done else next(bodies, None)
            if one is None:
                return
            began = time.perf_counter()
            status, body = client.post("/v1/completions", one[1])
            reply = Reply(one[0], time.perf_counter() - began, status, body)
            with lock:
                out.append(reply)
                done = done or enough(reply)

    threads = [threading.Thread(target=run) for _ in range(clients)]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return out, time.perf_counter() - began


def steps(port: int) -> tuple[int, float]:
    """Return how many steps the engine has taken, and their seconds, by the server's own account."""
    found = {}
    for line in Client(port).get("/metrics")[1].splitlines():
        name, _, value = line.rpartition(" ")
        if name in ("maskwright_step_seconds_count", "maskwright_step_seconds_sum"):
            found[name] = float(value)
    return int(found["maskwright_step_seconds_count"]), found["maskwright_step_seconds_sum"]
