"""Requests to the server's application, in one process."""

from __future__ import annotations

import asyncio
import json
from functools import cache
from typing import Any

import maskwright as mw

from .workers import DifferenceError, Steps

_BUDGET = mw.Budget(seconds=1, bytes=256 << 20)  # of each constraint


@cache
def load_model() -> Any:
    """Return the small model that answers; made once, before workers are forked."""
    import torch

    from maskwright.serve import loading

    torch.set_num_threads(1)
    return loading.tiny()


def check_http(source: list[tuple[str, Any]], seed: int, steps: Steps) -> None:
    """Send bodies, one after the other; each answer must be one of ours, and the server must go on.

    source: (path, body) each; a body is bytes, or text in Latin-1.
    """
    from maskwright.serve.app import create_app
    from maskwright.serve.service import Service
    from maskwright.serve.settings import Limits

    limits = Limits(rows=2, max_tokens=8, budget=_BUDGET, compile_processes=1)
    service = Service(load_model(), limits)
    asyncio.run(_ask(service, create_app(service), source, steps))


async def _ask(service: Any, app: Any, source: list[tuple[str, Any]], steps: Steps) -> None:
    import httpx

    async with app.router.lifespan_context(app):
        while not service.warm:
            if service.fault:
                raise DifferenceError(service.fault)
            await asyncio.sleep(0.01)
        steps.forget_memory()
        transport = httpx.ASGITransport(app=app)  # which raises what the application does not answer
        async with httpx.AsyncClient(transport=transport, base_url="http://fuzz", timeout=60) as client:
            for path, body in source:
                content = body if isinstance(body, bytes) else body.encode("latin-1")
                with steps(f"asking {path}", seconds=8):
                    answer = await client.post(path, content=content, headers={"Content-Type": "application/json"})
                    _judge(answer)
            with steps("asking for health"):
                health = await client.get("/health")
                if health.status_code != 200:
                    raise DifferenceError(f"the server is not well: {health.status_code} {health.text[:300]}")


def _judge(answer: Any) -> None:
    """Raise DifferenceError for an answer that no client should get."""
    if answer.status_code >= 500 and answer.status_code != 503:
        raise DifferenceError(f"status {answer.status_code}: {answer.text[:1000]}")
    if answer.headers.get("content-type", "").startswith("text/event-stream"):
        return
    made = json.loads(answer.text)
    if answer.status_code >= 400 and not made["error"]["message"]:
        raise DifferenceError(f"an error that says nothing: {answer.text[:300]}")
