"""Settings for all tests."""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # tests run in several processes: more threads only get in the way
os.environ.setdefault("JAX_PLATFORMS", "cpu")
