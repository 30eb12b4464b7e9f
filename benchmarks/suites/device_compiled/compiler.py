"""Compiling in a child process, which ends where a step takes too long."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from types import TracebackType
from typing import Any

from ...harness import ROOT, processor_seconds
from .targets import prepare

LIMIT = 120.0
"""Processor seconds that one step may take to compile."""

_POLL = 0.5  # seconds between two looks at the processor time of the child


class Compiler:
    """A child process that compiles steps for targets; one that takes too long is stopped, and another is started.

    Use it in a `with` statement.
    """

    def __init__(self, limit: float = LIMIT) -> None:
        """limit: processor seconds of one step."""
        self.limit = limit
        self._child: subprocess.Popen[str] | None = None

    def __enter__(self) -> Compiler:
        """Return this."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop the child."""
        self._stop()

    def compile(self, step: str, target: str) -> dict[str, Any]:
        """Return the record of a step compiled for a target, {"over": limit} where it takes longer than that.

        Raises RuntimeError where the compiler refuses the step, or ends.
        """
        child = self._child = self._child or self._start()
        assert child.stdin is not None
        assert child.stdout is not None
        begin = processor_seconds(child.pid)
        child.stdin.write(json.dumps({"step": step, "target": target}) + "\n")
        child.stdin.flush()
        while not select.select([child.stdout], [], [], _POLL)[0]:
            if processor_seconds(child.pid) - begin > self.limit + self._making(begin):
                self._stop()
                return {"over": self.limit}
        line = child.stdout.readline()
        if not line:
            self._stop()
            raise RuntimeError(f"{step} for {target}: the compiler's process ended")
        told: dict[str, Any] = json.loads(line)
        if "error" in told:
            raise RuntimeError(f"{step} for {target}: {told['error']}")
        return told

    @staticmethod
    def _making(begin: float) -> float:
        """Return the seconds that a child may take besides: a new one imports JAX and makes tables."""
        return 60.0 if begin < 1 else 20.0

    def _start(self) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", f"{__package__}.worker"],
            cwd=ROOT,
            env=prepare(dict(os.environ)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def _stop(self) -> None:
        if self._child is not None:
            self._child.kill()
            self._child.communicate()
            self._child = None
