"""Who may send requests, how slowly, and what each request leaves in headers and log."""

from __future__ import annotations

import contextlib
import json
import logging
import shutil
import socket
import ssl
import subprocess
import time

import pytest

pytest.importorskip("transformers")
pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")
httpx = pytest.importorskip("httpx")

from maskwright.serve import loading  # noqa: E402
from maskwright.serve.middleware import client_at  # noqa: E402
from maskwright.serve.settings import Access  # noqa: E402
from tests.support.servers import post, running, wait  # noqa: E402


@pytest.fixture(scope="module")
def guarded():
    access = Access(
        port=0, api_keys=("first", "secönd"), max_header_bytes=2000, read_seconds=0.6, write_seconds=0.6,
        log_requests=True,
    )  # fmt: skip
    with running(access=access) as service:
        yield service


def connect(service):
    host, port = service.url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=20)


def is_cut_off(connection):
    """Whether the server ends the connection; raises TimeoutError if it does not."""
    try:
        while connection.recv(4096):
            pass
    except ConnectionError:
        pass
    return True


@pytest.mark.parametrize(
    ("header", "status"),
    [
        (b"Bearer first", 200), (b"bearer  first", 200), ("Bearer secönd".encode(), 200), (None, 401), (b"first", 401),
        (b"Bearer", 401), (b"Bearer firs", 401), (b"Bearer firstt", 401), (b"Basic first", 401), (b"Bearer \xff", 401),
    ],
)  # fmt: skip
def test_a_request_is_carried_out_with_a_key_alone(guarded, header, status):
    headers = {} if header is None else {"authorization": header}
    out = httpx.get(f"{guarded.url}/v1/models", headers=headers)
    assert out.status_code == status
    if status == 401:
        error = out.json()["error"]
        assert (error["type"], error["code"]) == ("authentication_error", "invalid_api_key")
        assert out.headers["www-authenticate"] == "Bearer"
        body = b"{" * 1000
        unread = httpx.post(f"{guarded.url}/v1/completions", headers=headers, content=body)
        assert unread.status_code == 401
        assert httpx.get(f"{guarded.url}/no-such-page", headers=headers).status_code == 401


def test_probes_need_no_key_and_the_model_is_not_asked_without_one(guarded):
    assert [httpx.get(guarded.url + path).status_code for path in ("/health", "/metrics")] == [200, 200]
    assert post(guarded, prompt="x", max_tokens=2).status_code == 401


def test_each_answer_has_an_id_which_errors_and_the_log_name(guarded, caplog):
    caplog.set_level(logging.INFO, "maskwright.serve.requests")
    headers = {"authorization": "Bearer first", "x-request-id": "mine-7"}
    out = httpx.post(f"{guarded.url}/v1/completions", headers=headers, json={"model": loading.TINY})
    assert (out.status_code, out.headers["x-request-id"], out.json()["error"]["request_id"]) == (400, *["mine-7"] * 2)
    odd = httpx.get(f"{guarded.url}/health", headers={"x-request-id": "a b"})
    assert odd.headers["x-request-id"] not in ("", "a b")
    wait(lambda: any("mine-7" in message for message in caplog.messages))
    line = json.loads(next(message for message in caplog.messages if "mine-7" in message))
    assert line.pop("seconds") > 0
    assert line == {
        "id": "mine-7", "client": "127.0.0.1", "method": "POST", "path": "/v1/completions", "status": 400,
        "outcome": "refused",
    }  # fmt: skip


@pytest.mark.parametrize(
    "sent",
    [
        b"", b"GET /health HTTP/1.1\r\nHost: x\r\n", b"GET /health HTTP/1.1\r\nHost: x\r\n\r\nGET /health",
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer first\r\nContent-Length: 100\r\n\r\n{",
    ],
    ids=["nothing", "half of the headers", "half of a second request", "half of a body"],
)  # fmt: skip
def test_a_client_that_does_not_finish_its_request_is_cut_off(guarded, sent):
    began = time.monotonic()
    with connect(guarded) as connection:
        connection.sendall(sent)
        assert is_cut_off(connection)
    assert time.monotonic() - began < 15
    assert guarded.open == 0


def test_a_client_that_sends_a_byte_now_and_then_is_cut_off_too(guarded):
    with connect(guarded) as connection, pytest.raises(ConnectionError):
        send_slowly(connection, b"a" * 100)


def send_slowly(connection, data):
    for at in range(len(data)):
        connection.sendall(data[at : at + 1])
        time.sleep(0.1)


def test_headers_have_a_limit(guarded):
    with connect(guarded) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\nX-Long: " + b"a" * 3000)
        assert b"400" in connection.recv(100)


def test_a_client_that_does_not_read_its_answers_is_cut_off(guarded):
    with connect(guarded) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.settimeout(0.2)
        asked = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n" * 1000
        began = time.monotonic()
        with pytest.raises(ConnectionError):
            send_for_long(connection, asked)
        assert time.monotonic() - began < 30
    wait(lambda: not guarded.server.server_state.connections)


def send_for_long(connection, data):
    """Send until the server ends the connection, and read nothing."""
    while True:
        with contextlib.suppress(TimeoutError):
            connection.send(data)


def test_idle_connections_make_room_for_more_and_busy_ones_do_not():
    with running(access=Access(port=0, max_connections=2), slow=0.02) as service:
        idle = [connect(service) for _ in range(5)]
        assert httpx.get(f"{service.url}/health").status_code == 200
        assert is_cut_off(idle[0])
        busy = [connect(service) for _ in range(2)]
        body = json.dumps({"model": loading.TINY, "prompt": "x", "max_tokens": 900, "stream": True}).encode()
        for each in busy:
            each.sendall(
                b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                b"Content-Length: %d\r\n\r\n%s" % (len(body), body)
            )
            assert b"200 OK" in each.recv(100)
        out = httpx.get(f"{service.url}/health")
        error = out.json()["error"]
        assert (out.status_code, error["code"], error["type"]) == (503, "too_many_connections", "overloaded")
        assert (out.headers["retry-after"], out.headers["connection"]) == ("1", "close")
        assert error["request_id"] == out.headers["x-request-id"]
        for each in (*idle, *busy):
            each.close()
        wait(lambda: not service.open)
        assert httpx.get(f"{service.url}/health").status_code == 200


def test_a_connection_without_a_byte_makes_room_before_one_that_is_sending():
    with running(access=Access(port=0, max_connections=2)) as service:
        connections = service.server.server_state.connections
        with connect(service) as sending, connect(service) as silent:
            sending.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n")
            wait(lambda: len(connections) == 2 and any(each.holds_bytes for each in connections))
            assert httpx.get(f"{service.url}/ready").status_code == 200
            assert is_cut_off(silent)
            sending.sendall(b"\r\n")
            assert b"200 OK" in sending.recv(100)


@pytest.mark.parametrize(
    ("host", "client"),
    [
        ("192.0.2.1", "192.0.2.1"), ("::ffff:192.0.2.1", "192.0.2.1"), ("2001:db8::1:2", "2001:db8::/64"),
        ("2001:db8:0:1::2", "2001:db8:0:1::/64"), ("::1", "::/64"), ("fe80::1%eth0", "fe80::/64"), ("proxy", "proxy"),
    ],
)  # fmt: skip
def test_a_client_is_an_address_or_a_network(host, client):
    assert client_at((host, 1)) == client


def test_requests_come_over_https(tmp_path):
    if shutil.which("openssl") is None:
        pytest.skip("openssl makes the certificate, and is not there")
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    names = ["-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run([*made, *names, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    access = Access(port=0, certificate=certificate, private_key=key)
    with running(access=access) as service:
        url = service.url.replace("http:", "https:")
        out = httpx.get(f"{url}/health", verify=ssl.create_default_context(cafile=certificate))
        assert out.json() == {"status": "ok"}
