"""The playground: a page at /, and its questions: the table of a source, the walk of a text, the tokens at a place.

It shares the service's cache, limits and processes that compile, for which its clients take turns with those of the
API. It has a few threads and a short queue of its own, so requests of the API never wait for a text that it walks.
"""

from __future__ import annotations

import asyncio
import copy
import json
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import cached_property
from importlib import resources
from typing import Annotated, Any

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from ..compile.json_schema.layout import Whitespace
from ..errors import ConstraintError, TableError
from ..lazy.lazy_table import Compiled, LazyTable
from .constraints import Constraint
from .playground_trace import Place, Walker
from .refusals import Refused, of_constraint, said
from .requests import Keywords
from .service import Service

MOST_TEXT = 32 << 10
"""Most bytes of a text to walk through a table."""

THREADS = 2
WAITING = 16  # questions that wait for a thread
_SHOWN = 100  # tokens in one answer
_REMEMBERED = 1000  # tables whose compile time is kept
_FILES = {"index.html": "text/html", "style.css": "text/css", "script.js": "text/javascript"}
_HEADERS = {
    "Cache-Control": "no-cache",
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class SourceQuestion(BaseModel):
    """A question about a source: a constraint as a user types it."""

    model_config = ConfigDict(extra="forbid", strict=True)

    kind: str
    source: str
    whitespace: Whitespace | None = None  # of JSON; the server's own if None
    allow: Keywords = []  # that may stay unenforced


class TextQuestion(SourceQuestion):
    """A question about a text under a source."""

    text: str


class PlaceQuestion(TextQuestion):
    """A question about the tokens that may follow at one step of a text."""

    step: Annotated[int, Field(ge=0)]
    filter: Annotated[str, Field(max_length=200)] = ""
    offset: Annotated[int, Field(ge=0, le=1 << 30)] = 0


def _schema(asked: SourceQuestion) -> Constraint:
    return Constraint("schema", asked.source, "source", asked.whitespace, tuple(asked.allow))


def _regex(asked: SourceQuestion) -> Constraint:
    return Constraint("regex", asked.source, "source")


def _choices(asked: SourceQuestion) -> Constraint:
    lines = asked.source.replace("\r\n", "\n").removesuffix("\n").split("\n")
    if "" in lines:
        empty = lines == [""]
        raise Refused(
            "there are no choices: write one a line" if empty else f"line {lines.index('') + 1} is empty: remove it",
            param="source", code="invalid_constraint",
        )  # fmt: skip
    return Constraint("choices", lines, "source")


def _grammar(asked: SourceQuestion) -> Constraint:
    return Constraint("grammar", asked.source, "source")


def _tags(asked: SourceQuestion) -> Constraint:
    return Constraint("tags", asked.source, "source")


KINDS: dict[str, Callable[[SourceQuestion], Constraint]] = {
    "schema": _schema, "regex": _regex, "choices": _choices, "grammar": _grammar, "tags": _tags,
}  # fmt: skip
"""The kinds of sources, by their names in the page."""


class Playground:
    """The answers to the page's questions, from one service."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._pool = ThreadPoolExecutor(THREADS, "maskwright-playground")
        self._lock = threading.Lock()  # for `_open` and `_seconds`
        self._open = 0
        self._seconds: OrderedDict[tuple[str, str], float] = OrderedDict()  # to compile, by kind and source
        self._tokenizing, self._walking = threading.Lock(), threading.Lock()

    @cached_property
    def _walker(self) -> Walker:
        """A walker with a tokenizer of its own, because only one thread at a time may use the engine's."""
        return Walker(copy.deepcopy(self._service.loaded.vocabulary))

    def close(self) -> None:
        """Refuse further questions."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def ask(self, question: Callable[[], dict[str, Any]]) -> Response:
        """Return the answer that one of the threads works out. Raises Refused, also if too many questions wait."""

        def answer() -> bytes:
            return json.dumps(question(), separators=(",", ":")).encode("ascii")

        with self._lock:
            if self._service.draining:
                raise Refused("the server is shutting down", status=503, code="shutting_down")
            if self._open >= THREADS + WAITING:
                raise Refused("others are using the playground: try again", status=503, code="playground_busy")
            self._open += 1
        try:
            asked = self._pool.submit(answer)
        except RuntimeError:  # closed a moment ago
            self._done(None)
            raise Refused("the server is shutting down", status=503, code="shutting_down") from None
        asked.add_done_callback(self._done)  # counts the question out when it ends, even if its client has gone
        return Response(await asyncio.wrap_future(asked), media_type="application/json")

    def _done(self, asked: Future[bytes] | None) -> None:
        with self._lock:
            self._open -= 1

    # --------------------------------------------------------------------------------------- questions, in threads

    def about(self) -> dict[str, Any]:
        """Return facts about the server."""
        service = self._service
        white = service.limits.whitespace
        return {
            "model": service.loaded.name, "tokens": service.loaded.vocabulary.size, "kinds": list(KINDS),
            "whitespace": white if isinstance(white, str) else list(white), "max_text_bytes": MOST_TEXT,
        }  # fmt: skip

    def compile(self, asked: SourceQuestion, client: str) -> dict[str, Any]:
        """Return the size of what a source is read by, and the time until then, with that for the client's turn."""
        before, began = self._service.cache.stats, time.perf_counter()
        table = self._table(asked, client)
        seconds, after = time.perf_counter() - began, self._service.cache.stats
        # other questions may change the counts meanwhile: a table that took no time was in the cache
        compiled = after.compilations > before.compilations and not (after.hits > before.hits and seconds < 1e-3)
        origin = "compiled" if compiled else "disk" if after.disk_hits > before.disk_hits else "memory"
        name = asked.kind, table.source
        with self._lock:
            if compiled:
                self._seconds[name] = seconds
                while len(self._seconds) > _REMEMBERED:
                    self._seconds.popitem(last=False)
            first = self._seconds.get(name)
        return {
            "fingerprint": table.source, "origin": origin, "seconds": seconds, "compile_seconds": first, **_size(table),
        }  # fmt: skip

    def step(self, asked: TextQuestion, client: str) -> dict[str, Any]:
        """Return the allowed tokens of a text, and the verdict on it."""
        raw = _raw(asked)
        table = self._table(asked, client)
        try:
            tokens = self._encode(raw)
        except ConstraintError as error:
            return {"verdict": {"kind": "unwritable", "message": said(error)}, "tokens": [], "rest": [], "place": None}
        walker = self._walker
        with self._reading(asked, table, client):
            walk = walker.walk(table, raw, tokens, self._busy)
            here = walker.look(walk.matcher, limit=_SHOWN)
        verdict: dict[str, Any] = {"kind": "fits" if walk.matcher.is_accepting else "open"}
        if walk.wrong is not None:
            before = raw[: walk.wrong].decode(errors="ignore")
            verdict = {
                "kind": "refused", "token": walk.token, "byte": walk.wrong, "line": before.count("\n") + 1,
                "column": len(before) - before.rfind("\n"),
            }  # fmt: skip
        return {"verdict": verdict, "tokens": walk.steps, "rest": walk.rest, "place": self._told(here)}

    def allowed(self, asked: PlaceQuestion, client: str) -> dict[str, Any]:
        """Return the tokens that may follow at a step of a text."""
        raw, wanted = _raw(asked), _utf8(asked.filter, "filter")
        table = self._table(asked, client)
        try:
            tokens = self._encode(raw)
        except ConstraintError as error:
            raise Refused(said(error), param="text", code="unwritable") from None
        with self._reading(asked, table, client):
            matcher = self._walker.place(table, raw, tokens, asked.step, self._busy)
            here = self._walker.look(matcher, wanted, asked.offset, _SHOWN)
        return self._told(here)

    @contextmanager
    def _reading(self, asked: SourceQuestion, table: Compiled, client: str) -> Iterator[None]:
        """Let one thread at a time walk texts, because other threads want the interpreter. Raises Refused.

        Reading a grammar without a table adds states to it, so the cache counts its bytes again afterwards.
        """
        try:
            with self._walking:
                yield
        except (ConstraintError, TableError) as error:
            raise of_constraint(error, "source") from None
        finally:
            if _is_read(table):
                self._table(asked, client)

    def _busy(self) -> bool:
        """Return whether the engine is writing answers."""
        return self._service.worker.running > 0

    def _told(self, place: Place) -> dict[str, Any]:
        spelt = self._walker.vocabulary.tokens
        return {
            **place._asdict(), "forced": place.forced.hex(), "tokens": [(i, spelt[i].hex()) for i in place.tokens],
        }  # fmt: skip

    def _table(self, asked: SourceQuestion, client: str) -> Compiled:
        make = KINDS.get(asked.kind)
        if make is None:
            raise Refused(f"kind is one of {', '.join(KINDS)}, not {asked.kind[:40]!r}", param="kind")
        return self._service.table_in_turn(make(asked), client)

    def _encode(self, raw: bytes) -> list[int]:
        with self._tokenizing:
            return self._walker.vocabulary.encode(raw)


def _is_read(table: Compiled) -> bool:
    """Return whether a constraint has no arrays yet, so that reading it adds states."""
    return isinstance(table, LazyTable) and not table.is_complete


def _size(table: Compiled) -> dict[str, Any]:
    """Return the size of a table and the way it follows texts; without arrays, the size so far."""
    if isinstance(table, LazyTable) and (machine := table.machine) is not None:
        return {"way": "as it is read", "states": machine.num_states, "bytes": table.memory}
    table = table.to_table()
    return {
        "way": "delimited" if table.is_nested else "regular", "states": table.num_states, "edges": table.num_edges,
        "masks": len(table.bases.masks), "bytes": table.nbytes, "calls": table.num_sites,
        "depth": table.depth if table.is_nested else 0,
    }  # fmt: skip


def _raw(asked: TextQuestion) -> bytes:
    """Return a text's bytes. Raises Refused for too many."""
    raw = _utf8(asked.text, "text")
    if len(raw) > MOST_TEXT:
        raise Refused(
            f"the text has {len(raw):,} bytes, and the playground reads {MOST_TEXT:,}: take a part of it", param="text",
            code="text_too_long",
        )  # fmt: skip
    return raw


def _utf8(text: str, param: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise Refused("it has a lone surrogate, which no UTF-8 spells: remove it", param=param) from None


# ----------------------------------------------------------------------------------------------------------- routes


def routes(playground: Playground) -> APIRouter:
    """Return the routes of the page and its questions, which the API's description leaves out."""
    router = pages(_FILES)

    @router.get("/playground/about")
    async def about() -> Response:
        return await playground.ask(playground.about)

    @router.post("/playground/compile")
    async def compile(asked: SourceQuestion, request: Request) -> Response:
        return await playground.ask(lambda: playground.compile(asked, request.scope["maskwright.client"]))

    @router.post("/playground/step")
    async def step(asked: TextQuestion, request: Request) -> Response:
        return await playground.ask(lambda: playground.step(asked, request.scope["maskwright.client"]))

    @router.post("/playground/allowed")
    async def allowed(asked: PlaceQuestion, request: Request) -> Response:
        return await playground.ask(lambda: playground.allowed(asked, request.scope["maskwright.client"]))

    return router


def pages(files: Mapping[str, str]) -> APIRouter:
    """Return the routes of a page: files by their types, of which the one of HTML is at /."""
    router = APIRouter(include_in_schema=False)
    folder = resources.files(f"{__package__}.playground")
    for name, kind in files.items():
        page = _file((folder / name).read_bytes(), kind)
        router.add_api_route("/" if kind == "text/html" else f"/playground/{name}", page, methods=["GET", "HEAD"])
    return router


def _file(content: bytes, kind: str) -> Callable[[], Any]:
    async def page() -> Response:
        return Response(content, media_type=kind, headers=_HEADERS)

    return page
