"""How long a call takes, and the names that all parts share."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

ROWS = 64
Record = dict[str, Any]


def microseconds(work: Callable[[], Any]) -> float:
    """Return how long something takes once."""
    begin = time.perf_counter_ns()
    work()
    return (time.perf_counter_ns() - begin) / 1e3


def percentiles(values: list[float]) -> Record:
    """Return the median, the 99th of a hundred and the worst."""
    return {"p50": float(np.percentile(values, 50)), "p99": float(np.percentile(values, 99)), "worst": max(values)}
