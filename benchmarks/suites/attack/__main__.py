"""Run the suite."""

from __future__ import annotations

from ...parts import run_parts
from . import __doc__ as about
from .latency import latency
from .memory import memory
from .report import report

if __name__ == "__main__":
    run_parts("attack", about, {"latency": latency, "memory": memory}, report)
