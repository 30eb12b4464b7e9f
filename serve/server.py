"""Running the application under uvicorn: connections of slow clients, and stopping without cutting off answers."""

from __future__ import annotations

import asyncio
import logging
import socket
import sys
from collections import Counter
from typing import TYPE_CHECKING, Any, Protocol

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from .middleware import client_at
from .settings import Access, Limits

if TYPE_CHECKING:
    from uvicorn._types import ASGI3Application, ASGIReceiveCallable, ASGISendCallable


_IDLE_SECONDS = 5  # between two requests of a connection, after which it is closed


class Stopped(Protocol):
    """What a service is told when its server stops."""

    limits: Limits

    def drain(self) -> None:
        """Refuse new requests from now on."""

    def cancel_all(self) -> None:
        """End the answers that are still open."""


class Server(uvicorn.Server):
    """uvicorn, but a stop first refuses new requests and gives open answers `grace_seconds` to end."""

    def __init__(self, app: FastAPI, service: Stopped, access: Access, *, log_level: str = "warning") -> None:
        self._service = service
        grace = service.limits.grace_seconds
        config = uvicorn.Config(
            app, host=access.host, port=access.port, log_level=log_level, lifespan="on", access_log=False, ws="none",
            http=patient_for(access), h11_max_incomplete_event_size=access.max_header_bytes,
            timeout_keep_alive=_IDLE_SECONDS, ssl_certfile=access.certificate, ssl_keyfile=access.private_key,
            timeout_graceful_shutdown=int(grace) + 5,  # if a client does not read its answer
        )  # fmt: skip
        super().__init__(config)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop the service first, then connections, then the engine's thread."""
        self._service.drain()
        ending = asyncio.create_task(self._cancel_later())
        try:
            await super().shutdown(sockets)
        finally:
            ending.cancel()

    async def _cancel_later(self) -> None:
        await asyncio.sleep(self._service.limits.grace_seconds)
        self._service.cancel_all()


def patient_for(access: Access) -> type[H11Protocol]:
    """Return the protocol of connections, which are cut off where a client is slower than `access` says.

    uvicorn itself waits forever for the rest of a request, and for a client to read its answer. Once
    there are as many connections as there may be, it takes no requests of others, however idle those are; here an idle
    one makes room.
    """
    idle: dict[Patient, str] = {}  # connections without a whole request, oldest first, and the client of each

    def make_room() -> None:
        """Cut off an idle connection of the client that has most of them, if there is any.

        It is the oldest of those that hold no byte of a request, and the oldest of all if each holds some.
        """
        if idle:
            most = Counter(idle.values()).most_common(1)[0][0]
            theirs = [each for each, client in idle.items() if client == most]
            oldest = next((each for each in theirs if not each.holds_bytes), theirs[0])
            del idle[oldest]
            oldest.transport.abort()

    class Patient(H11Protocol):
        """A connection with a deadline for each request, and one for a client that does not read."""

        _reading: asyncio.TimerHandle | None = None
        _writing: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            if len(self.connections) > access.max_connections:
                make_room()
            self._await_request()

        @property
        def app(self) -> ASGI3Application:
            """The application, told if there are too many connections."""
            return _crowded(self._app) if len(self.connections) > access.max_connections else self._app

        @app.setter
        def app(self, app: ASGI3Application) -> None:
            self._app = app

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._await_request()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            self._await_request()
            if self.transport.is_closing() and self.transport.get_write_buffer_size():
                self._await_reader()  # it closes when the client has read the rest

        def pause_writing(self) -> None:
            super().pause_writing()
            self._await_reader()

        def resume_writing(self) -> None:
            super().resume_writing()
            if not self.transport.is_closing():
                self._stop_writing()

        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc)
            self._stop_reading()
            self._stop_writing()

        @property
        def holds_bytes(self) -> bool:
            """Whether a part of a request has come."""
            begun = self.cycle is not None and not self.cycle.response_complete
            return begun or bool(self.conn.trailing_data[0])

        def _await_request(self) -> None:
            """Count the time while a request is not there as a whole, from its first byte or before."""
            waits = self.cycle is None or self.cycle.response_complete or self.cycle.more_body
            if not waits or self.transport.is_closing():
                self._stop_reading()
            elif self._reading is None:
                self._reading = self.loop.call_later(access.read_seconds, self.transport.abort)
                idle[self] = client_at(self.client)

        def _await_reader(self) -> None:
            if self._writing is None:
                self._writing = self.loop.call_later(access.write_seconds, self.transport.abort)

        def _stop_reading(self) -> None:
            if self._reading is not None:
                self._reading.cancel()
                self._reading = None
                idle.pop(self, None)

        def _stop_writing(self) -> None:
            if self._writing is not None:
                self._writing.cancel()
                self._writing = None

    return Patient


def _crowded(app: ASGI3Application) -> ASGI3Application:
    """Return an application that is told with each request that there are too many connections."""

    async def told(scope: Any, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        await app(scope | {"maskwright.crowded": True}, receive, send)

    return told


def run(app: FastAPI, service: Stopped, access: Access) -> None:
    """Serve an application until SIGTERM or SIGINT."""
    # the engine's thread gets the interpreter back from a thread that compiles ten times sooner
    sys.setswitchinterval(0.0005)
    if access.log_requests:
        _log_to_standard_error()
    Server(app, service, access).run()


def _log_to_standard_error() -> None:
    log = logging.getLogger("maskwright.serve.requests")
    log.setLevel(logging.INFO)
    log.propagate = False
    log.addHandler(logging.StreamHandler())
