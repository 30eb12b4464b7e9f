"""The model that real engines serve in tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.suites.engines.tiny import write_model


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    """Write a Llama of random weights with a tokenizer trained on the spot."""
    folder = tmp_path_factory.mktemp("tiny")
    write_model(folder)
    return folder
