"""The HTTP API of texts: routes and streams."""

from __future__ import annotations

import json
import time
import weakref
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from .middleware import JSON, body_of
from .playground_api import Playground, routes
from .refusals import Refused
from .requests import ChatRequest, CompletionRequest
from .service import Answer, Plan, Service
from .web import OBJECT, GoneError, errors, new_app, unless_gone

WARNING = "X-Maskwright-Warning"
_MOST_WARNED = 500  # characters of a warning
_MOST_WARNINGS = 8  # tools with a reason each; clients take some hundred headers


def create_app(
    service: Service, *, playground: bool = True, api_keys: Sequence[str] = (), log_requests: bool = False
) -> FastAPI:
    """Return the application, whose lifespan starts and stops the service.

    playground: whether its page is at /. api_keys: one of them must go with each request, if there are any.
    log_requests: whether each request is a line in the log.
    """
    held, service = service, weakref.proxy(service)  # FastAPI keeps routes forever, so none may hold a model
    play = Playground(service) if playground else None

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        await held.start()
        try:
            yield
        finally:
            if play is not None:
                play.close()
            await held.stop()

    model = {
        "id": service.loaded.name, "object": "model", "created": int(time.time()), "owned_by": "maskwright",
        "max_model_len": service.loaded.context,
    }  # fmt: skip
    app = new_app(service, [model], lifespan, api_keys=api_keys, log_requests=log_requests)

    @app.post("/v1/chat/completions", response_model=OBJECT, responses=errors(400, 404, 413, 429, 500, 503))
    async def chat_completions(asked: ChatRequest, request: Request) -> Response:
        return await _answer(service, asked, request)

    @app.post("/v1/completions", response_model=OBJECT, responses=errors(400, 404, 413, 429, 500, 503))
    async def completions(asked: CompletionRequest, request: Request) -> Response:
        return await _answer(service, asked, request)

    @app.api_route("/v1/responses", methods=["GET", "POST"], include_in_schema=False)
    @app.api_route("/v1/responses/{rest:path}", methods=["GET", "POST", "DELETE"], include_in_schema=False)
    async def responses() -> Response:
        raise Refused(
            "the Responses API is not served, as it keeps conversations and runs tools, and this server keeps nothing: "
            "send POST /v1/chat/completions, text.format as response_format, and the whole conversation as messages",
            status=404, code="responses_not_served",
        )  # fmt: skip

    if play is not None:
        app.include_router(routes(play))
    return app


# ------------------------------------------------------------------------------------------------------- answering


async def _answer(service: Service, asked: ChatRequest | CompletionRequest, request: Request) -> Response:
    """Answer a request, whole or as a stream. A refusal comes before the first byte of an answer."""
    begun: list[Answer] = []

    async def prepared() -> Plan:
        plan = await service.plan(asked)
        begun.append(await service.begin(plan, request.scope["maskwright.client"]))
        return plan

    async def whole() -> Response:
        plan = await prepared()
        async for _ in begun[0].pieces():
            pass
        return _warning(JSON(plan.form.whole(begun[0].choices, begun[0].usage)), begun[0])

    streams = False
    try:
        if not asked.stream:
            return await unless_gone(request.receive, whole())
        plan = await unless_gone(request.receive, prepared())
        streams = True
        with_usage = asked.stream_options is not None and bool(asked.stream_options.include_usage)
        return _warning(_Stream(_chunks(begun[0], plan, with_usage), begun[0]), begun[0])
    except GoneError:
        request.scope["maskwright"] = "disconnected"
        return Response(status_code=499)
    finally:
        if begun and not streams:
            begun[0].close()


def _warning(response: Response, answer: Answer) -> Response:
    """Name in the headers of an answer the tools that the model could not call, and why; and keywords not enforced."""
    for refused in answer.left_out[:_MOST_WARNINGS]:
        response.headers.append(WARNING, _one_line(f"{refused.param} cannot be called: {refused}"))
    more = [refused.param for refused in answer.left_out[_MOST_WARNINGS:]]
    if more:
        response.headers.append(WARNING, f"nor can {', '.join(map(str, more))}")
    for each in answer.unenforced[:_MOST_WARNINGS]:
        response.headers.append(WARNING, _one_line(str(each)))
    if len(answer.unenforced) > _MOST_WARNINGS:
        response.headers.append(WARNING, f"nor are {len(answer.unenforced) - _MOST_WARNINGS} more keywords")
    return response


def _one_line(message: str) -> str:
    """Return a message as a header can hold it: in ASCII, not too long."""
    line = json.dumps(message)[1:-1]
    return line if len(line) <= _MOST_WARNED else line[:_MOST_WARNED] + "..."


async def _chunks(answer: Answer, plan: Plan, with_usage: bool) -> AsyncIterator[dict[str, Any]]:
    """Yield the objects of a stream, one for each event."""
    form = plan.form
    for choice in answer.choices:
        for first in form.first(choice):
            yield form.chunk([first], None, with_usage)
    async for choice, parts, log_probs in answer.pieces():
        for told in form.piece(choice, parts, log_probs):
            yield form.chunk([told], None, with_usage)
    if with_usage:
        yield form.chunk([], answer.usage, True)


class _Stream(Response):
    """Server-sent events, which end as soon as the client hangs up."""

    media_type = "text/event-stream"

    def __init__(self, chunks: AsyncIterator[dict[str, Any]], answer: Answer) -> None:
        self._chunks, self._answer = chunks, answer
        self.status_code, self.background = 200, None
        self.init_headers({"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await unless_gone(receive, self._send(scope, send))
        except (GoneError, OSError):
            scope["maskwright"] = "disconnected"
        finally:
            self._answer.close()

    async def _send(self, scope: Scope, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})

        async def event(data: str, more: bool = True) -> None:
            await send({"type": "http.response.body", "body": f"data: {data}\n\n".encode("ascii"), "more_body": more})

        try:
            async for chunk in self._chunks:
                await event(json.dumps(chunk, separators=(",", ":")))
        except Refused as refused:
            scope["maskwright"] = "failed"
            await event(json.dumps(body_of(scope, refused)), more=False)
            return
        await event("[DONE]", more=False)
