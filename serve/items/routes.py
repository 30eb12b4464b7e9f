"""The HTTP API of items: searches, catalogues and their updates, and the page to try them."""

from __future__ import annotations

import asyncio
import time
import weakref
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from fastapi import FastAPI, Request
from pydantic import ValidationError
from starlette.responses import Response

from ...compile.json_schema.source import check_text_depth
from ...errors import SchemaError
from .. import playground_api
from ..middleware import JSON
from ..refusals import Refused
from ..web import OBJECT, GoneError, errors, new_app, unless_gone
from .requests import Acknowledged, Item, Line, RetrieveAnswer, RetrieveRequest
from .service import ItemService, Numbered

MOST_LINES = 10_000
"""Most lines of one bulk update."""

_ERRORS = errors(400, 401, 404, 409, 413, 429, 500, 502, 503, 504)
_BULK = {
    "requestBody": {
        "required": True,
        "content": {
            "application/x-ndjson": {
                "schema": {
                    "type": "string",
                    "description": "One JSON object a line, of an item with its id, or with an id and delete.",
                },
                "example": '{"id": "hat-1", "sid": [1, 2], "columns": {"price": 5}}\n{"id": "hat-2", "delete": true}',
            }
        },
    }
}
_FILES = {"items.html": "text/html", "items.js": "text/javascript", "style.css": "text/css"}


def create_app(
    service: ItemService, *, page: bool = True, api_keys: Sequence[str] = (), log_requests: bool = False
) -> FastAPI:
    """Return the application, whose lifespan starts and stops the service; arguments as of `app.create_app`.

    page: whether the page to try it is at /.
    """
    held, service = service, weakref.proxy(service)  # FastAPI keeps routes forever, so none may hold a model

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        await held.start()
        try:
            yield
        finally:
            await held.stop()

    began = int(time.time())
    models = [
        {"id": each.name, "object": "model", "created": began, "owned_by": "maskwright", "max_model_len": each.context}
        for each in service.models.values()
    ]
    app = new_app(service, models, lifespan, api_keys=api_keys, log_requests=log_requests)

    @app.post("/v1/retrieve", response_model=RetrieveAnswer, responses=_ERRORS)
    async def retrieve(asked: RetrieveRequest, request: Request) -> Response:
        """Return the best items for a prompt or a history."""
        work = service.retrieve(asked, request.scope["maskwright.client"], request.scope["maskwright.id"])
        try:
            return JSON(await unless_gone(request.receive, work))
        except GoneError:
            request.scope["maskwright"] = "disconnected"
            return Response(status_code=499)

    @app.get("/v1/catalogues", response_model=OBJECT, responses=_ERRORS)
    async def catalogues() -> Response:
        """Return the state of all catalogues."""
        found = await asyncio.to_thread(lambda: [shop.about() for shop in service.shops.values()])
        return JSON({"object": "list", "data": found})

    @app.get("/v1/catalogues/{catalogue}", response_model=OBJECT, responses=_ERRORS)
    async def one_catalogue(catalogue: str) -> Response:
        """Return the state of a catalogue."""
        return JSON(await asyncio.to_thread(service.shop(catalogue).about))

    @app.post("/v1/catalogues/{catalogue}/items", response_model=Acknowledged, responses=_ERRORS, openapi_extra=_BULK)
    async def bulk(catalogue: str, request: Request) -> Response:
        """Put and delete items, one a line. The answer comes once all of them are in the log."""
        shop = service.shop(catalogue)
        lines = await asyncio.to_thread(_lines, await request.body())
        return JSON(await service.update(shop, lines))

    @app.get("/v1/catalogues/{catalogue}/items/{item:path}", response_model=OBJECT, responses=_ERRORS)
    async def one_item(catalogue: str, item: str) -> Response:
        """Return an item as it is now."""
        return JSON(await asyncio.to_thread(service.item, service.shop(catalogue), item))

    @app.put("/v1/catalogues/{catalogue}/items/{item:path}", response_model=Acknowledged, responses=_ERRORS)
    async def put(catalogue: str, item: str, given: Item) -> Response:
        """Replace or add an item. The answer comes once that is in the log."""
        return JSON(await service.put(service.shop(catalogue), item, given))

    @app.delete("/v1/catalogues/{catalogue}/items/{item:path}", response_model=Acknowledged, responses=_ERRORS)
    async def delete(catalogue: str, item: str) -> Response:
        """Remove an item. The answer comes once that is in the log."""
        return JSON(await service.delete(service.shop(catalogue), item))

    if page:
        app.include_router(playground_api.pages(_FILES))
    return app


def _lines(body: bytes) -> list[Numbered]:
    """Return the lines of a bulk update. Raises Refused with the number of a line that is wrong."""
    found: list[Numbered] = []
    for number, line in enumerate(body.split(b"\n"), start=1):
        if not line.strip():
            continue
        if len(found) == MOST_LINES:
            raise Refused(f"there are more than {MOST_LINES:,} lines: send them in parts", code="too_many_lines")
        try:
            check_text_depth(line.decode("utf-8", "replace"))
            found.append((number, Line.model_validate_json(line)))
        except SchemaError as error:
            why = f"line {number}: {error.message}"
            raise Refused(why, line=number, acknowledged=0, code="invalid_item") from None
        except ValidationError as error:
            fault = error.errors(include_url=False, include_context=False, include_input=False)[0]
            where = ".".join(str(part) for part in fault["loc"])
            raise Refused(
                f"line {number}: {f'{where}: ' if where else ''}{fault['msg']}", line=number, acknowledged=0,
                code="invalid_item",
            ) from None  # fmt: skip
    if not found:
        raise Refused("the body has no line: send one JSON object for each item", code="invalid_item")
    return found
