"""Settings for all tests."""

from __future__ import annotations

import atexit
import gc
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from maskwright.kernels.compiled import kernel_folder
from tests.named_folders import NamedFolders

# the clock decides nothing: a first example may compile kernels, and any may wait for a processor. The same examples
# each time, unless a seed is given: --hypothesis-seed=random looks for others
settings.register_profile(
    "maskwright", deadline=None, derandomize=not any(x.startswith("--hypothesis-seed") for x in sys.argv),
    database=None, suppress_health_check=[HealthCheck.too_slow],
)  # fmt: skip
settings.load_profile("maskwright")

os.environ.setdefault("OMP_NUM_THREADS", "1")  # tests run in several processes: more threads only get in the way
# threads that wait for work sleep: they took processors from other tests. One of torch's threads took 23 s, now 4
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# what is compiled here is run once or twice: a quarter less time. Examples and benchmarks run what users run
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
# XLA's newer way to write code for fusions takes two thirds of the time to compile a step. Examples run with it, as for
# users. An XLA that has only that way ends the process, and names this flag: take it out then
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_use_fusion_emitters=false")

if "MASKWRIGHT_CACHE" not in os.environ:  # nothing a user has kept may decide a test, and nothing of tests is kept
    kept = kernel_folder()  # but machine code, which has a folder of its own for each state of the sources
    os.environ["MASKWRIGHT_CACHE"] = tempfile.mkdtemp(prefix="maskwright-tests-")
    atexit.register(shutil.rmtree, os.environ["MASKWRIGHT_CACHE"], ignore_errors=True)
    if kept is not None:
        (Path(os.environ["MASKWRIGHT_CACHE"]) / kept.name).symlink_to(kept)


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(NamedFolders(config))


_MOST_MEMORY = 4 << 30  # of a process, from which on it forgets what JAX compiled: over all tests that is gigabytes


@pytest.fixture(scope="module", autouse=True)
def _forget_compiled() -> Iterator[None]:
    """Let go of what JAX compiled for a module once it is much: it is of little use to others."""
    yield
    status = Path("/proc/self/statm")  # only Linux has it
    if "jax" in sys.modules and status.exists():
        resident = int(status.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        if resident > _MOST_MEMORY:
            sys.modules["jax"].clear_caches()


def pytest_collection_finish() -> None:
    """Have the garbage collector leave out all modules, and look less often: that was a tenth of the time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)
