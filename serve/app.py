"""The HTTP API: routes, errors in OpenAI's shape, streams, and clients that go away."""

from __future__ import annotations

import asyncio
import json
import time
import weakref
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from .. import __version__
from ..compile.json_schema.source import check_text_depth
from ..errors import SchemaError
from .middleware import JSON, Watch, body_of, error_of
from .playground_api import Playground, routes
from .refusals import Refused, of_constraint
from .requests import WHY, ChatRequest, CompletionRequest
from .service import Answer, Plan, Service

T = TypeVar("T")

WARNING = "X-Maskwright-Warning"
_MOST_WARNED = 500  # characters of a warning
_MOST_WARNINGS = 8  # tools with a reason each; clients take some hundred headers
_SHOWN = 3  # faults of one request in a message


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

    app = FastAPI(title="maskwright", version=__version__, lifespan=lifespan, docs_url=None, redoc_url=None)
    app.router.route_class = _Route
    app.add_middleware(Watch, service=service, api_keys=api_keys, log=log_requests)
    app.add_exception_handler(Refused, _refused)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(Exception, _unforeseen)
    began = int(time.time())
    model = {
        "id": service.loaded.name, "object": "model", "created": began, "owned_by": "maskwright",
        "max_model_len": service.loaded.context,
    }  # fmt: skip

    @app.post("/v1/chat/completions", response_class=JSON)
    async def chat_completions(asked: ChatRequest, request: Request) -> Response:
        return await _answer(service, asked, request)

    @app.post("/v1/completions", response_class=JSON)
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

    @app.get("/v1/models", response_class=JSON)
    async def models() -> Response:
        return JSON({"object": "list", "data": [model]})

    @app.get("/v1/models/{name:path}", response_class=JSON)
    async def one_model(name: str) -> Response:
        if name != service.loaded.name:
            raise Refused(f"there is no model {name!r} here", status=404, param="model", code="model_not_found")
        return JSON(model)

    @app.get("/health", response_class=JSON)
    async def health() -> Response:
        fault = service.fault
        return JSON(
            {"status": "ok"} if fault is None else {"status": "failed", "error": fault}, 200 if fault is None else 503
        )

    @app.get("/ready", response_class=JSON)
    async def ready() -> Response:
        why = (
            service.fault if service.fault is not None
            else "the server is shutting down" if service.draining
            else "the first answer has not been written yet" if not service.warm
            else None if service.ready
            else "a step takes too long"
        )  # fmt: skip
        return JSON({"ready": why is None, **({} if why is None else {"why": why})}, 200 if why is None else 503)

    @app.get("/metrics", response_class=Response)
    def metrics() -> Response:
        return Response(generate_latest(service.metrics.registry), media_type=CONTENT_TYPE_LATEST)

    if play is not None:
        app.include_router(routes(play))
    return app


class _Route(APIRoute):
    """A route that looks how deep the JSON of a body is nested before anything reads it.

    A route without a body asks for none, as uvicorn then reads on from a client that does not read its answers.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        read = super().get_route_handler()
        if self.body_field is None:
            return read

        async def handle(request: Request) -> Response:
            body = await request.body()
            try:
                check_text_depth(body.decode(json.detect_encoding(body), "replace"))  # as `json.loads` decodes it
            except SchemaError as error:
                refused = of_constraint(error, None)
                raise Refused(f"the body: {refused}", code=refused.code, **refused.more) from None
            return await read(request)

        return handle


# ------------------------------------------------------------------------------------------------------- answering


class _GoneError(Exception):
    """The client has closed the connection."""


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
            return await _unless_gone(request.receive, whole())
        plan = await _unless_gone(request.receive, prepared())
        streams = True
        with_usage = asked.stream_options is not None and bool(asked.stream_options.include_usage)
        return _warning(_Stream(_chunks(begun[0], plan, with_usage), begun[0]), begun[0])
    except _GoneError:
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


async def _unless_gone(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Return the result of some work. If the client hangs up first, cancel the work and raise _GoneError."""
    doing, leaving = asyncio.ensure_future(work), asyncio.ensure_future(_gone(receive))
    try:
        await asyncio.wait((doing, leaving), return_when=asyncio.FIRST_COMPLETED)
        if doing.done():
            return doing.result()
        raise _GoneError
    finally:
        for task in (doing, leaving):
            task.cancel()
        await asyncio.gather(doing, leaving, return_exceptions=True)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


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
            await _unless_gone(receive, self._send(scope, send))
        except (_GoneError, OSError):
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


# ---------------------------------------------------------------------------------------------------------- errors


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, Refused), "FastAPI calls a handler for its own kind of error"
    return error_of(request.scope, error)


async def _invalid(request: Request, error: Exception) -> Response:
    """Answer with the names of the wrong fields, in place of FastAPI's 422."""
    assert isinstance(error, RequestValidationError), "FastAPI calls a handler for its own kind of error"
    faults = error.errors()
    first = _param(faults[0]["loc"]) if faults else None
    seen = list(dict.fromkeys(map(_said, faults)))
    more = f" (and {len(seen) - _SHOWN} more)" if len(seen) > _SHOWN else ""
    return error_of(request.scope, Refused("; ".join(seen[:_SHOWN]) + more, param=first))


def _param(loc: Sequence[str | int]) -> str | None:
    """Return the field at fault, such as "tools[0].function". Pydantic's names of alternatives are left out."""
    out = ""
    before: str | int = ""
    for part in loc[1:]:
        if isinstance(part, int):
            out += f"[{part}]"
        elif part.isidentifier() and part not in _ALTERNATIVES and before != "response_format":  # whose type follows
            out += f".{part}" if out else part
        before = part
    return out or None


_ALTERNATIVES = {"str", "int", "bool", "NamedTool"}


def _said(fault: Mapping[str, Any]) -> str:
    where = _param(fault["loc"])
    name = str(fault["loc"][-1]) if fault["loc"] else ""
    if fault["type"] == "extra_forbidden":
        why = WHY.get(name, "it is unknown, or would change the answer: leave it out")
        return f"{where or name} is not supported: {why}"
    if fault["type"] == "json_invalid":
        return f"the body is not JSON: {fault.get('ctx', {}).get('error', '')}"
    if where is None:
        return "the body must be a JSON object, sent as application/json"
    if fault["type"] == "missing":
        return f"{where} is missing"
    return f"{where}: {fault['msg']}"


async def _http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException), "FastAPI calls a handler for its own kind of error"
    answer = error_of(request.scope, Refused(str(error.detail), status=error.status_code))
    answer.headers.update(error.headers or {})
    return answer


async def _unforeseen(request: Request, error: Exception) -> Response:
    fault = Refused("the server has a fault, and its log says which", status=500, code="internal_error")
    return error_of(request.scope, fault)
