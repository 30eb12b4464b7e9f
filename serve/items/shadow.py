"""`Shadow`: a second model that searches a share of the requests, so that it can be compared before it answers any."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

from ..refusals import Refused
from .metrics import ItemMetrics
from .requests import RetrieveRequest

Retrieve = Callable[[RetrieveRequest], Awaitable[dict[str, Any]]]


class Shadow:
    """Repeats requests with a model, and counts how many of the items that were answered it finds too.

    Answers stay as they are. One request at a time is repeated, and only while no other waits for this model.

    model: its name. share: of the requests, 0 to 1. retrieve: answers a request. is_busy: whether requests wait.
    """

    def __init__(
        self, model: str, share: float, retrieve: Retrieve, is_busy: Callable[[], bool], metrics: ItemMetrics
    ) -> None:  # fmt: skip
        self.model, self.share, self._retrieve, self._is_busy, self._metrics = model, share, retrieve, is_busy, metrics
        self._running: asyncio.Task[None] | None = None

    def follow(self, request: RetrieveRequest, answer: dict[str, Any]) -> None:
        """Repeat a request that has been answered, or leave it out."""
        if answer["model"] == self.model or random.random() >= self.share:
            return
        if self._running is not None or self._is_busy():
            self._metrics.shadowed("left_out")
            return
        self._running = asyncio.create_task(self._repeat(request, answer))

    async def _repeat(self, request: RetrieveRequest, answer: dict[str, Any]) -> None:
        try:
            repeated = request.model_copy(update={"model": self.model, "catalogue": answer["catalogue"], "columns": []})
            found = {item["id"] for item in (await self._retrieve(repeated))["items"]}
            ids = [item["id"] for item in answer["items"]]
            same = sum(each in found for each in ids) / len(ids) if ids else float(not found)
            self._metrics.shadowed("searched", same)
        except Refused:
            self._metrics.shadowed("failed")
        finally:
            self._running = None

    def stop(self) -> None:
        """End the request that is being repeated."""
        if self._running is not None:
            self._running.cancel()
