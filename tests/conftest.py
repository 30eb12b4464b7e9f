"""Settings for all tests."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile

os.environ.setdefault("OMP_NUM_THREADS", "1")  # tests run in several processes: more threads only get in the way
os.environ.setdefault("JAX_PLATFORMS", "cpu")

if "MASKWRIGHT_CACHE" not in os.environ:  # nothing a user has kept may decide a test, and nothing of tests is kept
    os.environ["MASKWRIGHT_CACHE"] = tempfile.mkdtemp(prefix="maskwright-tests-")
    atexit.register(shutil.rmtree, os.environ["MASKWRIGHT_CACHE"], ignore_errors=True)
