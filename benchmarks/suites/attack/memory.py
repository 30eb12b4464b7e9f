"""Whether the memory of a server stays flat while schemas come and go."""

from __future__ import annotations

import itertools
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..serving.load import Reply, asked, served
from .latency import schema

SCHEMAS, REQUESTS, CLIENTS, PARTS = 20_000, 100_000, 16, 20
CACHE = 8 << 20  # bytes, of which some hundred schemas of these have room
Record = dict[str, Any]


def memory(scale: float) -> list[Record]:
    """20,000 distinct schemas through a bounded cache, 100,000 requests: what the server and its processes hold."""
    schemas, requests = max(400, int(SCHEMAS * scale)), max(2000, int(REQUESTS * scale))
    out: list[Record] = []
    with served("--cache-bytes", str(CACHE)) as (port, process):

        def bodies(first: int, count: int) -> Iterator[tuple[int, Record]]:
            for i in range(first, first + count):
                # each schema is asked for five times, close together
                number = i // 5 % schemas
                yield i, {
                    "model": "maskwright-tiny", "prompt": "x", "max_tokens": 24, "seed": i,
                    "guided_json": schema(number),
                }  # fmt: skip

        first = 0
        for part in itertools.count():
            count = min(-(-requests // PARTS), requests - first)
            if not count:
                break
            replies, seconds = asked(port, CLIENTS, bodies(first, count))
            first += count
            own, children = resident(process)
            out.append({
                "part": part, "requests": first, "seconds": seconds, "server_bytes": own, "process_bytes": children,
                "statuses": dict(Counter(map(_status, replies))),
            })  # fmt: skip
    return out


def _status(reply: Reply) -> str:
    return str(reply.status)


def resident(process: int) -> tuple[int, int]:
    """Return the bytes of a process in memory that are its own, and those of the processes that it has started."""
    below: dict[int, list[int]] = {}
    for each in Path("/proc").iterdir():
        if each.name.isdecimal():
            try:
                parent = int((each / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:  # it has gone
                continue
            below.setdefault(parent, []).append(int(each.name))
    family, found = [process], 0
    for pid in family:
        family += below.get(pid, [])
    for pid in family[1:]:
        found += _anonymous(pid)
    return _anonymous(process), found


def _anonymous(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return 1024 * int(line.split()[1])
    raise RuntimeError(f"process {pid} of {os.uname().sysname} does not say what it holds")
