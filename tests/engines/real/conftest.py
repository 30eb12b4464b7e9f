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


@pytest.fixture(scope="module")
def vllm_server(model, tmp_path_factory) -> Callable[..., AbstractContextManager[str]]:
    """Return a context manager that runs vLLM's server with maskwright's plugin and says where it is.

    It takes further arguments of the command, and variables of the environment.
    """
    pytest.importorskip("vllm")
    stand_ins = str(Path(__file__).parents[1] / "stand_ins")

    @contextmanager
    def run(*arguments: str, variables: Mapping[str, str] | None = None) -> Iterator[str]:
        log = tmp_path_factory.mktemp("server") / "log"
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        known = {name: value for name, value in os.environ.items() if name != "MASKWRIGHT_ENGINE_OPTIONS"}
        paths = os.pathsep.join([stand_ins, *filter(None, [known.get("PYTHONPATH")])])
        known |= {"VLLM_PLUGINS": "maskwright", "VLLM_CPU_KVCACHE_SPACE": "1", "PYTHONPATH": paths, **(variables or {})}
        command = [
            sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model),
            "--served-model-name", "tiny", "--port", str(port), "--enforce-eager", "--max-model-len", "256",
            "--dtype", "float32", *arguments,
        ]  # fmt: skip
        with log.open("w") as written:
            running = subprocess.Popen(command, env=known, stdout=written, stderr=written)
        url = f"http://127.0.0.1:{port}"
        try:
            for _ in range(600):
                try:
                    urllib.request.urlopen(f"{url}/health").close()
                    break
                except OSError:
                    assert running.poll() is None, log.read_text()[-4000:]
                    time.sleep(1)
            yield url
        finally:
            running.terminate()
            running.wait(120)

    return run
