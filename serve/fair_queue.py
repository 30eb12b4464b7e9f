"""Places for long work, which clients take in turns."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from dataclasses import dataclass, field
from typing import NamedTuple

from .refusals import Refused


class _Waiting(NamedTuple):
    granted: asyncio.Future[None]
    sequences: int


@dataclass
class _Client:
    running: int = 0  # places that it has
    sequences: int = 0  # that wait
    queue: deque[_Waiting] = field(default_factory=deque)


class Turns:
    """Places that clients take in turns: each has a queue of its own, and the queues are served round robin.

    A client that has places takes one more only while more than that many are free. So one client never has more than
    half of them (of an odd number, one more). While only one client has some, another finds one free, unless there is
    only one. Whoever has none finds one sooner than those who have some.

    places: how many there are. most: sequences of one client that may wait.
    """

    def __init__(self, places: int, most: int) -> None:
        self.free, self._most = places, most  # places that nobody has
        self._clients: OrderedDict[str, _Client] = OrderedDict()  # the one whose turn is next comes first

    @property
    def clients(self) -> int:
        """How many clients have a place or wait for one."""
        return len(self._clients)

    @property
    def waiting(self) -> int:
        """How many wait for a place."""
        return sum(len(client.queue) for client in self._clients.values())

    async def take(self, name: str, sequences: int = 1) -> None:
        """Wait for a place, which `give` returns. If the task is cancelled meanwhile, it leaves the queue.

        name: of the client. sequences: how many wait with it. Raises Refused if too many of the client's wait.
        """
        client = self._clients.setdefault(name, _Client())
        if not client.queue and self._may_run(client):
            self._run(name, client)
            return
        if client.sequences and client.sequences + sequences > self._most:
            raise Refused(
                f"{client.sequences} sequences of this client wait for their constraints to be compiled already: "
                "try again later",
                status=429, code="compile_queue_full",
            )  # fmt: skip
        mine = _Waiting(asyncio.get_running_loop().create_future(), sequences)
        client.queue.append(mine)
        client.sequences += sequences
        try:
            await mine.granted
        except asyncio.CancelledError:
            if mine.granted.done() and not mine.granted.cancelled():  # both came at once
                self.give(name)
            elif mine in client.queue:  # else `give` has skipped it
                client.queue.remove(mine)
                client.sequences -= sequences
                self._forget(name, client)
            raise

    def give(self, name: str) -> None:
        """Return a client's place, for the next."""
        client = self._clients[name]
        client.running -= 1
        self.free += 1
        self._clients.move_to_end(name)  # behind those who came while it had the place
        self._forget(name, client)
        while (found := self._next()) is not None:
            name, client = found
            granted, sequences = client.queue.popleft()
            client.sequences -= sequences
            if granted.done():  # its task is cancelled, and has not had its turn of the event loop yet
                self._forget(name, client)
            else:
                self._run(name, client)
                granted.set_result(None)

    def _next(self) -> tuple[str, _Client] | None:
        """Return the client whose turn it is, None if there is no place for any."""
        ready = ((name, client) for name, client in self._clients.items() if client.queue and self._may_run(client))
        return next(ready, None)

    def _may_run(self, client: _Client) -> bool:
        return self.free > client.running

    def _run(self, name: str, client: _Client) -> None:
        client.running += 1
        self.free -= 1
        self._clients.move_to_end(name)

    def _forget(self, name: str, client: _Client) -> None:
        if not client.running and not client.queue:
            del self._clients[name]
