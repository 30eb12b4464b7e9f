"""What every application of the server has: routes for probes, errors in OpenAI's shape, clients that go away."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol, TypeVar

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Match
from starlette.types import Receive

from .. import __version__
from ..compile.json_schema.source import check_text_depth
from ..errors import SchemaError
from .metrics import ServerMetrics
from .middleware import JSON, Watch, error_of
from .refusals import Refused, of_constraint
from .requests import WHY
from .settings import Limits

T = TypeVar("T")

Lifespan = Callable[[FastAPI], AbstractAsyncContextManager[None]]
_SHOWN = 3  # faults of one request in a message


OBJECT = dict[str, Any]
"""How the description of the API calls an answer whose fields it does not list."""


class Error(BaseModel):
    """An error, in the shape of OpenAI's API."""

    error: dict[str, Any]


def errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return what the description of the API says of a route's errors."""
    return {status: {"model": Error} for status in statuses}


class Served(Protocol):
    """What an application asks of the service behind it."""

    limits: Limits
    draining: bool
    warm: bool

    @property
    def metrics(self) -> ServerMetrics:
        """The metrics, of which the count of requests is kept here."""

    @property
    def fault(self) -> str | None:
        """The reason why nothing can be answered, None if it can."""

    @property
    def ready(self) -> bool:
        """Whether requests are taken and answered."""


def new_app(
    service: Served, models: Sequence[Mapping[str, Any]], lifespan: Lifespan, *, api_keys: Sequence[str] = (),
    log_requests: bool = False,
) -> FastAPI:  # fmt: skip
    """Return an application with routes for probes, metrics and the list of models; others are added to it.

    models: as OpenAI's API describes each. api_keys: one of them must go with each request, if there are any.
    log_requests: whether each request is a line in the log.
    """
    app = FastAPI(title="maskwright", version=__version__, lifespan=lifespan, docs_url=None, redoc_url=None)
    app.router.route_class = _Route
    app.add_middleware(Watch, service=service, api_keys=api_keys, log=log_requests)
    app.add_exception_handler(Refused, _refused)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(Exception, _unforeseen)

    @app.get("/v1/models", response_model=OBJECT)
    async def all_models() -> Response:
        return JSON({"object": "list", "data": list(models)})

    @app.get("/v1/models/{name:path}", response_model=OBJECT, responses=errors(404))
    async def one_model(name: str) -> Response:
        found = next((model for model in models if model["id"] == name), None)
        if found is None:
            raise Refused(f"there is no model {name!r} here", status=404, param="model", code="model_not_found")
        return JSON(found)

    @app.get("/health", response_model=OBJECT, responses=errors(503))
    async def health() -> Response:
        fault = service.fault
        return JSON(
            {"status": "ok"} if fault is None else {"status": "failed", "error": fault}, 200 if fault is None else 503
        )

    @app.get("/ready", response_model=OBJECT, responses=errors(503))
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


class GoneError(Exception):
    """The client has closed the connection."""


async def unless_gone(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Return the result of some work. If the client hangs up first, cancel the work and raise GoneError."""
    doing, leaving = asyncio.ensure_future(work), asyncio.ensure_future(_gone(receive))
    try:
        await asyncio.wait((doing, leaving), return_when=asyncio.FIRST_COMPLETED)
        if doing.done():
            return doing.result()
        raise GoneError
    finally:
        for task in (doing, leaving):
            task.cancel()
        await asyncio.gather(doing, leaving, return_exceptions=True)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


# ---------------------------------------------------------------------------------------------------------- errors


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, Refused), "FastAPI calls a handler for its own kind of error"
    return error_of(request.scope, error)


async def _invalid(request: Request, error: Exception) -> Response:
    """Answer with the names of the wrong fields, in place of FastAPI's 422."""
    assert isinstance(error, RequestValidationError), "FastAPI calls a handler for its own kind of error"
    faults = error.errors()
    is_json = bool(faults) and faults[0]["type"] != "json_invalid"  # otherwise the place is that of a character
    first = _param(faults[0]["loc"]) if is_json else None
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


_ALTERNATIVES = {"str", "int", "bool", "NamedTool", "AllowedChoice"}


def _said(fault: Mapping[str, Any]) -> str:
    where = _param(fault["loc"])
    name = str(fault["loc"][-1]) if fault["loc"] else ""
    if fault["type"] == "extra_forbidden":
        why = WHY.get(name, "it is unknown, or would change the answer: leave it out")
        return f"{where or name} is not supported: {why}"
    if fault["type"] == "json_invalid":
        return f"the body is not JSON: {fault.get('ctx', {}).get('error', '')}"
    if where is None and fault["type"] == "wrong_value":
        return str(fault["msg"])
    if where is None:
        return "the body must be a JSON object, sent as application/json"
    if fault["type"] == "missing":
        return f"{where} is missing"
    return f"{where}: {fault['msg']}"


async def _http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException), "FastAPI calls a handler for its own kind of error"
    answer = error_of(request.scope, Refused(str(error.detail), status=error.status_code))
    answer.headers.update(error.headers or {})
    if error.status_code == 405:  # the router tells the methods of one of its routes for the path
        routes = [route for route in request.app.routes if route.matches(request.scope)[0] is not Match.NONE]
        answer.headers["Allow"] = ", ".join(sorted({each for route in routes for each in route.methods or ()}))
    return answer


async def _unforeseen(request: Request, error: Exception) -> Response:
    fault = Refused("the server has a fault, and its log says which", status=500, code="internal_error")
    return error_of(request.scope, fault)
