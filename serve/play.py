"""The playground: a page at /, and what it asks: a source's table, a text's way through it, what may come where.

It shares the service's cache and limits but has threads of its own, few of them, and a short queue, and never the
engine's: requests of the API wait for nothing that is asked here.
"""

from __future__ import annotations

import asyncio
import copy
import json
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import cached_property
from importlib import resources
from typing import Annotated, Any, Literal

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from ..errors import ArenaError, ConstraintError, TableError
from ..lazy.lazy_table import Compiled, LazyTable
from .constraints import Constraint
from .refusals import Refused, of_constraint
from .service import Service
from .walk import Place, Walker

MOST_TEXT = 32 << 10
"""Bytes of a text that is led through a table."""

_THREADS = 2
_WAITING = 16  # questions that wait for one of them
_SHOWN = 100  # tokens told at once
_REMEMBERED = 1000  # tables of which it is known how long they took
_FILES = {"index.html": "text/html", "style.css": "text/css", "script.js": "text/javascript"}
_HEADERS = {
    "Cache-Control": "no-cache",
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class Source(BaseModel):
    """What may be written, as it is typed."""

    model_config = ConfigDict(extra="forbid", strict=True)

    kind: str
    source: str
    whitespace: Literal["flexible", "compact"] | None = None  # of JSON; the server's own if None
    allow: Annotated[list[str], Field(max_length=100)] = []  # keywords that need not be enforced


class Text(Source):
    """A text that is to be led through it."""

    text: str


class Where(Text):
    """A place on its way, and which of the tokens allowed there are wanted."""

    step: Annotated[int, Field(ge=0)]
    filter: Annotated[str, Field(max_length=200)] = ""
    offset: Annotated[int, Field(ge=0, le=1 << 30)] = 0


def _schema(asked: Source) -> Constraint:
    return Constraint("schema", asked.source, "source", asked.whitespace, tuple(sorted(set(asked.allow))))


def _regex(asked: Source) -> Constraint:
    return Constraint("regex", asked.source, "source")


def _choices(asked: Source) -> Constraint:
    lines = asked.source.replace("\r\n", "\n").removesuffix("\n").split("\n")
    if "" in lines:
        empty = lines == [""]
        raise Refused(
            "there are no choices: write one a line" if empty else f"line {lines.index('') + 1} is empty: remove it",
            param="source", code="invalid_constraint",
        )  # fmt: skip
    return Constraint("choices", lines, "source")


def _grammar(asked: Source) -> Constraint:
    return Constraint("grammar", asked.source, "source")


def _tags(asked: Source) -> Constraint:
    return Constraint("tags", asked.source, "source")


KINDS: dict[str, Callable[[Source], Constraint]] = {
    "schema": _schema, "regex": _regex, "choices": _choices, "grammar": _grammar, "tags": _tags,
}  # fmt: skip
"""The kinds of sources, by the name that the page has for them as well."""


class Playground:
    """What the page asks of one service."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._pool = ThreadPoolExecutor(_THREADS, "maskwright-playground")
        self._lock = threading.Lock()  # of all that follows
        self._open = 0
        self._seconds: OrderedDict[tuple[str, str], float] = OrderedDict()  # that tables took, by their source
        self._tokenizing, self._walking = threading.Lock(), threading.Lock()

    @cached_property
    def _walker(self) -> Walker:
        """The vocabulary with a tokenizer of its own: that of the engine is used by one thread at a time."""
        return Walker(copy.deepcopy(self._service.loaded.vocabulary))

    def close(self) -> None:
        """Answer nothing more."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def ask(self, question: Callable[[], dict[str, Any]]) -> Response:
        """Return an answer that one of the threads works out; Refused, also where too many wait."""

        def answer() -> bytes:
            return json.dumps(question(), separators=(",", ":")).encode("ascii")

        with self._lock:
            if self._service.draining:
                raise Refused("the server is shutting down", status=503, code="shutting_down")
            if self._open >= _THREADS + _WAITING:
                raise Refused("others are using the playground: try again", status=503, code="playground_busy")
            self._open += 1
        try:
            asked = self._pool.submit(answer)
        except RuntimeError:  # closed a moment ago
            self._done(None)
            raise Refused("the server is shutting down", status=503, code="shutting_down") from None
        asked.add_done_callback(self._done)  # not before, whoever has hung up by then
        return Response(await asyncio.wrap_future(asked), media_type="application/json")

    def _done(self, asked: Future[bytes] | None) -> None:
        with self._lock:
            self._open -= 1

    # --------------------------------------------------------------------------------------- questions, in threads

    def about(self) -> dict[str, Any]:
        """Return what there is to know of the server."""
        service = self._service
        white = service.limits.whitespace
        return {
            "model": service.loaded.name, "tokens": service.loaded.vocabulary.size, "kinds": list(KINDS),
            "whitespace": white if isinstance(white, str) else list(white), "max_text_bytes": MOST_TEXT,
        }  # fmt: skip

    def compile(self, asked: Source) -> dict[str, Any]:
        """Return how large a source's table is, and what it took."""
        before, began = self._service.cache.stats, time.perf_counter()
        table, room = self._table(asked), None
        try:
            table.to_table()
        except ConstraintError as error:  # a grammar may have no arrays
            room = str(of_constraint(error, "source"))
        seconds, after = time.perf_counter() - began, self._service.cache.stats
        # others may have asked meanwhile: what took no time was there
        compiled = after.compilations > before.compilations and not (after.hits > before.hits and seconds < 1e-3)
        origin = "compiled" if compiled else "disk" if after.disk_hits > before.disk_hits else "memory"
        name = asked.kind, table.source
        with self._lock:
            if compiled:
                self._seconds[name] = seconds
                while len(self._seconds) > _REMEMBERED:
                    self._seconds.popitem(last=False)
            first = self._seconds.get(name)
        try:
            if room is None:
                self._service.arena.fits(table)
        except ArenaError as error:
            room = str(of_constraint(error, "source"))
        return {
            "fingerprint": table.source, "origin": origin, "seconds": seconds, "compile_seconds": first,
            "no_room": room, **_size(table),
        }  # fmt: skip

    def step(self, asked: Text) -> dict[str, Any]:
        """Return a text's tokens as far as they are allowed, and what becomes of it."""
        raw = _raw(asked)
        table = self._table(asked)
        try:
            tokens = self._encode(raw)
        except ConstraintError as error:
            return {"verdict": {"kind": "unwritable", "message": str(error)}, "tokens": [], "rest": [], "place": None}
        walker = self._walker
        with self._reading(asked, table):
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

    def allowed(self, asked: Where) -> dict[str, Any]:
        """Return what may come at a step of a text."""
        raw, wanted = _raw(asked), _utf8(asked.filter, "filter")
        table = self._table(asked)
        try:
            tokens = self._encode(raw)
        except ConstraintError as error:
            raise Refused(str(error), param="text", code="unwritable") from None
        with self._reading(asked, table):
            matcher = self._walker.place(table, raw, tokens, asked.step, self._busy)
            here = self._walker.look(matcher, wanted, asked.offset, _SHOWN)
        return self._told(here)

    @contextmanager
    def _reading(self, asked: Source, table: Compiled) -> Iterator[None]:
        """Have texts read one at a time, as others want the interpreter too; Refused where that takes too much.

        A grammar that is read as it is grows by that, so the cache is asked again, which counts its bytes anew.
        """
        try:
            with self._walking:
                yield
        except (ConstraintError, TableError) as error:
            raise of_constraint(error, "source") from None
        finally:
            if _is_read(table):
                self._table(asked)

    def _busy(self) -> bool:
        """Return whether something is being written."""
        return self._service.worker.running > 0

    def _told(self, place: Place) -> dict[str, Any]:
        spelt = self._walker.vocabulary.tokens
        return {
            **place._asdict(), "forced": place.forced.hex(), "tokens": [(i, spelt[i].hex()) for i in place.tokens],
        }  # fmt: skip

    def _table(self, asked: Source) -> Compiled:
        make = KINDS.get(asked.kind)
        if make is None:
            raise Refused(f"kind is one of {', '.join(KINDS)}, not {asked.kind[:40]!r}", param="kind")
        return self._service.table(make(asked))

    def _encode(self, raw: bytes) -> list[int]:
        with self._tokenizing:
            return self._walker.vocabulary.encode(raw)


def _is_read(table: Compiled) -> bool:
    """Return whether a table has no arrays, and is read as its source is."""
    return isinstance(table, LazyTable) and not table.is_complete


def _size(table: Compiled) -> dict[str, Any]:
    """Return how large a table is, and which way texts are followed by it; of one without arrays, so far."""
    if isinstance(table, LazyTable) and (machine := table.machine) is not None:
        return {"way": "as it is read", "states": machine.num_states, "bytes": table.memory}
    table = table.to_table()
    return {
        "way": "delimited" if table.is_nested else "regular", "states": table.num_states, "edges": table.num_edges,
        "masks": len(table.bases.masks), "bytes": table.nbytes, "calls": table.num_sites,
        "depth": table.depth if table.is_nested else 0,
    }  # fmt: skip


def _raw(asked: Text) -> bytes:
    """Return a text's bytes, if there are not too many."""
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
    """Return the page and what it asks; no part of the API that is described."""
    router = APIRouter(include_in_schema=False)
    folder = resources.files(__package__) / "playground"
    for name, kind in _FILES.items():
        page = _file((folder / name).read_bytes(), kind)
        router.add_api_route("/" if name == "index.html" else f"/playground/{name}", page, methods=["GET", "HEAD"])

    @router.get("/playground/about")
    async def about() -> Response:
        return await playground.ask(playground.about)

    @router.post("/playground/compile")
    async def compile(asked: Source) -> Response:
        return await playground.ask(lambda: playground.compile(asked))

    @router.post("/playground/step")
    async def step(asked: Text) -> Response:
        return await playground.ask(lambda: playground.step(asked))

    @router.post("/playground/allowed")
    async def allowed(asked: Where) -> Response:
        return await playground.ask(lambda: playground.allowed(asked))

    return router


def _file(content: bytes, kind: str) -> Callable[[], Any]:
    async def page() -> Response:
        return Response(content, media_type=kind, headers=_HEADERS)

    return page
