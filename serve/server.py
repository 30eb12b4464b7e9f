"""Running the application under uvicorn, and stopping it without cutting off answers."""

from __future__ import annotations

import asyncio
import socket
import sys

import uvicorn

from .app import create_app
from .service import Service


class Server(uvicorn.Server):
    """uvicorn, but a stop first refuses new requests and gives open answers `grace_seconds` to end."""

    def __init__(
        self, service: Service, host: str, port: int, *, playground: bool = True, log_level: str = "warning"
    ) -> None:
        self._service = service
        grace = service.limits.grace_seconds
        config = uvicorn.Config(
            create_app(service, playground=playground), host=host, port=port, log_level=log_level, lifespan="on",
            access_log=False, timeout_graceful_shutdown=int(grace) + 5,  # if a client does not read its answer
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
        self._service.worker.cancel_all()


def run(service: Service, host: str, port: int, *, playground: bool = True) -> None:
    """Serve until SIGTERM or SIGINT."""
    # the engine's thread gets the interpreter back from a thread that compiles ten times sooner
    sys.setswitchinterval(0.0005)
    Server(service, host, port, playground=playground).run()
