"""Requests that are open, of which one client cannot have them all."""

from __future__ import annotations

from collections import Counter

from .refusals import Refused


class Places:
    """Counts what clients have open.

    at_once: how many are worked on at a time. most_waiting: how many more may wait; one client has half of these at
    most, so that another finds a place in the other half. unit: what is counted, for errors.
    """

    def __init__(self, at_once: int, most_waiting: int, unit: str) -> None:
        self._most, self._alone, self._unit = at_once + most_waiting, at_once + most_waiting // 2, unit
        self._held = Counter[str]()
        self.open = 0

    def take(self, count: int, client: str) -> None:
        """Count some in; `leave` counts them out. Raises Refused if there are too many."""
        held = self._held[client]
        if count > self._alone:
            raise Refused(
                f"the request wants {count} {self._unit}, and one client has {self._alone} at most: ask for fewer",
                param="n",
            )
        if held + count > self._alone:
            raise Refused(
                f"{held} {self._unit} of this client are open, of {self._alone} that one may have: try again later",
                status=429, code="client_queue_full",
            )  # fmt: skip
        if self.open + count > self._most:
            raise Refused(
                f"the queue is full: {self.open} of {self._most} {self._unit} are open (--max-queue). Try again later",
                status=503, code="queue_full",
            )  # fmt: skip
        self.open += count
        self._held[client] += count

    def leave(self, count: int, client: str) -> None:
        """Count out what `take` has counted in."""
        self.open -= count
        self._held -= Counter({client: count})  # which forgets clients that have none left
