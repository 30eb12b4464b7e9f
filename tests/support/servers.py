"""A server in a thread, and questions that end in time."""

from __future__ import annotations

import contextlib
import socket
import threading
import time

import pytest

for name in ("torch", "transformers", "fastapi", "uvicorn"):
    pytest.importorskip(name)
httpx = pytest.importorskip("httpx")
openai = pytest.importorskip("openai")

from maskwright.serve import loading  # noqa: E402
from maskwright.serve.app import create_app  # noqa: E402
from maskwright.serve.server import Server  # noqa: E402
from maskwright.serve.service import Service  # noqa: E402
from maskwright.serve.settings import Access, Limits  # noqa: E402

HELLO = [{"role": "user", "content": "hello"}]


def client_of(service):
    """Return a client of OpenAI that asks a service."""
    return openai.OpenAI(base_url=f"{service.url}/v1", api_key="none", max_retries=0, timeout=60)


@contextlib.contextmanager
def running(loaded=None, limits=None, slow=0.0, access=None, playground=True, **options):
    """A server in a thread; `slow` seconds are added to each of its steps."""
    service = Service(loaded or loading.tiny(), limits or Limits(), **options)
    engine, step = service.worker.engine, service.worker.engine.step

    def slower():
        time.sleep(slow)
        return step()

    if slow:
        engine.step = slower
    access = access or Access(port=0)
    app = create_app(service, playground=playground, api_keys=access.api_keys, log_requests=access.log_requests)
    with serving(app, service, access):
        yield service


@contextlib.contextmanager
def serving(app, service, access=None):
    """Any application in a thread; `service.url` is its address."""
    server = Server(app, service, access or Access(port=0))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        wait(lambda: server.started)
        service.url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
        service.thread, service.server = thread, server
        wait(lambda: service.warm or service.fault)
        yield service
    finally:
        server.should_exit = True
        thread.join(30)
        assert not thread.is_alive()


def wait(what, seconds=60.0):
    until = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < until, "it took too long"
        time.sleep(0.01)


def post(service, path="/v1/completions", **fields):
    body = {"model": loading.TINY, **fields}
    return httpx.post(service.url + path, json=body, timeout=60)


def free_port():
    """Return a port that nobody listens on now."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return held.getsockname()[1]
