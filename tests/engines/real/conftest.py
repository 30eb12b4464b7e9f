"""The model that real engines serve in tests, and vLLM's own server."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from benchmarks.suites.engines.tiny import write_model


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    """Write a Llama of random weights with a tokenizer trained on the spot."""
    folder = tmp_path_factory.mktemp("tiny")
    write_model(folder)
    return folder


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def running(command: list[str], known: Mapping[str, str], port: int, log: Path) -> Iterator[str]:
    """Run a server until the block ends, and say where it is once it is healthy."""
    with log.open("w") as written:
        one = subprocess.Popen(command, env=known, stdout=written, stderr=written)
    url = f"http://127.0.0.1:{port}"
    try:
        for _ in range(600):
            try:
                urllib.request.urlopen(f"{url}/health").close()
                break
            except OSError:
                assert one.poll() is None, log.read_text()[-4000:]
                time.sleep(1)
        yield url
    finally:
        one.terminate()
        one.wait(120)


@pytest.fixture(scope="module")
def vllm_server(model, tmp_path_factory) -> Callable[..., AbstractContextManager[str]]:
    """Return a context manager that runs vLLM's server with maskwright's plugin and says where it is.

    It takes further arguments of the command, and variables of the environment.
    """
    pytest.importorskip("vllm")
    stand_ins = str(Path(__file__).parents[1] / "stand_ins")

    @contextmanager
    def run(*arguments: str, variables: Mapping[str, str] | None = None) -> Iterator[str]:
        port = free_port()
        known = {name: value for name, value in os.environ.items() if name != "MASKWRIGHT_ENGINE_OPTIONS"}
        paths = os.pathsep.join([stand_ins, *filter(None, [known.get("PYTHONPATH")])])
        known |= {"VLLM_PLUGINS": "maskwright", "VLLM_CPU_KVCACHE_SPACE": "1", "PYTHONPATH": paths, **(variables or {})}
        command = [
            sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model),
            "--served-model-name", "tiny", "--port", str(port), "--enforce-eager", "--max-model-len", "256",
            "--dtype", "float32", *arguments,
        ]  # fmt: skip
        with running(command, known, port, tmp_path_factory.mktemp("server") / "log") as url:
            yield url

    return run


@pytest.fixture(scope="module")
def sglang_server(model, tmp_path_factory) -> Callable[..., AbstractContextManager[str]]:
    """Return a context manager that runs SGLang's server with the options of maskwright's plugin; as `vllm_server`."""
    pytest.importorskip("sglang")
    stand_ins = str(Path(__file__).parents[1] / "stand_ins")

    @contextmanager
    def run(options: str) -> Iterator[str]:
        port = free_port()
        paths = os.pathsep.join([stand_ins, *filter(None, [os.environ.get("PYTHONPATH")])])
        known = {**os.environ, "PYTHONPATH": paths, "MASKWRIGHT_ENGINE_OPTIONS": options}
        command = [
            sys.executable, "-m", "sglang.launch_server", "--model-path", str(model), "--port", str(port),
            "--device", "cpu", "--attention-backend", "torch_native", "--sampling-backend", "pytorch",
            "--grammar-backend", "maskwright", "--mem-fraction-static", "0.4", "--max-total-tokens", "65536",
            "--max-running-requests", "256", "--page-size", "1", "--dtype", "float32", "--skip-server-warmup",
        ]  # fmt: skip
        with running(command, known, port, tmp_path_factory.mktemp("server") / "log") as url:
            yield url

    return run
