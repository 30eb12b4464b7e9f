"""What is done to every request: an id, its key, the size of its body, a count, a line in the log; errors as sent."""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import json
import logging
import re
import secrets
import time
from collections.abc import Iterable
from typing import Any, Protocol

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .metrics import ServerMetrics
from .refusals import Refused
from .settings import Limits

_log = logging.getLogger("maskwright.serve.requests")

ANSWERED = {"/v1/chat/completions": "chat", "/v1/completions": "completions", "/v1/retrieve": "retrieve"}
"""Routes whose requests are counted, and how metrics call them."""

_OPEN = ("/health", "/ready", "/metrics")  # for probes, which have no key
_ID = re.compile(r"[\x21-\x7e]{1,128}")


class Watched(Protocol):
    """What is read of a service."""

    limits: Limits

    @property
    def metrics(self) -> ServerMetrics:
        """Its metrics."""


class JSON(Response):
    """A JSON document in ASCII, because messages may quote lone surrogates, which UTF-8 cannot encode."""

    media_type = "application/json"

    def render(self, content: object) -> bytes:
        return json.dumps(content, separators=(",", ":")).encode("ascii")


def body_of(scope: Scope, refused: Refused) -> dict[str, Any]:
    """Return an error as it is sent, with the id of the request."""
    return {"error": {**refused.body["error"], "request_id": scope["maskwright.id"]}}


def error_of(scope: Scope, refused: Refused) -> JSON:
    """Return the answer to a request that is refused."""
    return JSON(
        body_of(scope, refused),
        status_code=refused.status,
        headers={**refused.headers, "X-Request-Id": scope["maskwright.id"]},
    )


class Watch:
    """Stands before the application."""

    def __init__(self, app: ASGIApp, service: Watched, api_keys: Iterable[str] = (), log: bool = False) -> None:
        self._app, self._service, self._log = app, service, log
        self._keys = [key.encode() for key in api_keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = time.monotonic()
        headers = Headers(scope=scope)
        own = headers.get("x-request-id", "")
        scope["maskwright.id"] = own if _ID.fullmatch(own) else secrets.token_hex(16)
        key = self._key(headers)
        scope["maskwright.client"] = client_at(scope.get("client")) if key is None else f"key {key}"
        app = self._app if key is not None or not self._keys or scope["path"] in _OPEN else _refuse_unknown
        if scope.get("maskwright.crowded"):
            app = _refuse_crowd
        status, most, read = 500, self._service.limits.max_body_bytes, 0

        async def bounded() -> Message:
            nonlocal read
            message = await receive()
            read += len(message.get("body", b""))
            if read > most:
                raise HTTPException(413, f"a body has at most {most:,} bytes here (--max-body-bytes)")
            return message

        async def noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)["X-Request-Id"] = scope["maskwright.id"]
            await send(message)

        try:
            await app(scope, bounded, noted)
        except asyncio.CancelledError:
            scope["maskwright"] = "disconnected"
            raise
        except Exception:
            scope["maskwright"] = "failed"
            raise
        finally:
            endpoint = ANSWERED.get(scope["path"]) if scope["method"] == "POST" else None
            outcome = scope.get("maskwright") or _outcome(status)
            if endpoint is not None:
                self._service.metrics.requests.labels(endpoint, outcome).inc()
            if self._log:
                self._write(scope, status, outcome, time.monotonic() - began)

    def _key(self, headers: Headers) -> int | None:
        """Return which of the keys goes with a request, None if none does."""
        scheme, _, key = headers.get("authorization", "").partition(" ")
        given = key.strip().encode("latin-1", "replace")
        # all keys are compared, in time that does not depend on how much of one is right
        right = [at for at, each in enumerate(self._keys) if hmac.compare_digest(given, each)]
        return right[0] if right and scheme.lower() == "bearer" else None

    @staticmethod
    def _write(scope: Scope, status: int, outcome: str, seconds: float) -> None:
        client = scope.get("client")
        line = {
            "id": scope["maskwright.id"], "client": client[0] if client else None, "method": scope["method"],
            "path": scope["path"], "status": status, "outcome": outcome, "seconds": round(seconds, 6),
        }  # fmt: skip
        _log.info(json.dumps(line))


async def _refuse_unknown(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer a request without one of the server's keys; its body is not read."""
    refused = Refused(
        "send one of this server's keys, as Authorization: Bearer KEY", status=401, code="invalid_api_key"
    )
    await error_of(scope, refused)(scope, receive, send)


async def _refuse_crowd(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer a request beyond the limit of connections, and close its connection; its body is not read."""
    refused = Refused(
        "too many clients are connected (--max-connections): try again later", status=503, code="too_many_connections"
    )
    answer = error_of(scope, refused)
    answer.headers["Connection"] = "close"
    await answer(scope, receive, send)


def client_at(peer: tuple[str, int] | None) -> str:
    """Return which client is at an address: the address; of IPv6 the network, as one client has all addresses of it."""
    host = "" if peer is None else peer[0]
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is None:
            return str(ipaddress.IPv6Network((int(address), 64), strict=False))
        address = address.ipv4_mapped
    return str(address)


def _outcome(status: int) -> str:
    if status < 400:
        return "done"
    return "overloaded" if status in (429, 503) else "failed" if status >= 500 else "refused"
