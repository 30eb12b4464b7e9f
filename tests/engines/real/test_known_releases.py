"""The code of the engines that are installed is that of a known release."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from maskwright.engines import releases


@pytest.mark.filterwarnings("ignore::UserWarning")  # of devices that are not here
@pytest.mark.parametrize(
    ("engine", "part"), [(engine, part) for engine, parts in releases.table().items() for part in parts]
)
def test_code_that_runs_is_that_of_its_release(engine, part, monkeypatch):
    """Raises if not; a part of a later release is not in an older one."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "stand_ins"))
    version = pytest.importorskip(engine.lower()).__version__
    if version.partition("+")[0] not in releases.known_releases(engine, part):
        pytest.skip(f"{engine} {version} has no {part}")
    for code in releases.table()[engine][part]:
        importlib.import_module(code.partition(":")[0])
    releases.check(engine, version, part, "stop")
