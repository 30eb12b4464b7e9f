"""An engine in a process of its own: native code cannot be interrupted, but a process can be ended."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from typing import Any

from ..harness import ROOT, processor_seconds


class Process:
    """A worker that answers in lines of JSON, killed and started anew when it takes too long or dies."""

    def __init__(self, module: str, *arguments: str) -> None:
        """Run a module that says in its first line that it is ready."""
        self.command = [sys.executable, "-m", module, *arguments]
        self.process: subprocess.Popen[bytes] | None = None
        self.ready: dict[str, Any] = {}  # its first line
        self._read = b""

    def send(self, line: str) -> None:
        """Write a line to the worker, which is started if it does not run."""
        process = self.running()
        assert process.stdin is not None
        process.stdin.write(line.encode() + b"\n")

    def running(self) -> subprocess.Popen[bytes]:
        """Return the process, started and ready. Raises RuntimeError where it does not start."""
        if self.process is None:
            self._read = b""
            self.process = subprocess.Popen(
                # unbuffered: `select` must see what has not been read
                self.command, bufsize=0, cwd=ROOT,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            )  # fmt: skip
            ready = self.answer(300.0)
            if isinstance(ready, str):
                raise RuntimeError(f"the worker did not start ({ready}): run `{' '.join(self.command)}` to see why")
            self.ready = ready
        return self.process

    def answer(self, limit: float) -> dict[str, Any] | str:
        """Return the next answer; or "timeout" or "died", with the process ended."""
        assert self.process is not None
        assert self.process.stdout is not None
        pid, out = self.process.pid, self.process.stdout
        begin, spent = time.monotonic(), processor_seconds(pid)
        outcome = "timeout"
        # processor time is what counts, since other work may share the machine; four times that ends it in any case
        while b"\n" in self._read or (processor_seconds(pid) - spent < limit and time.monotonic() - begin < 4 * limit):
            if b"\n" in self._read:
                line, _, self._read = self._read.partition(b"\n")
                answer: dict[str, Any] = json.loads(line)
                return answer
            if select.select([out], [], [], 0.5)[0]:
                some = os.read(out.fileno(), 1 << 20)
                self._read += some
                if not some:
                    outcome = "died"
                    break
        self.close()
        return outcome

    def close(self) -> None:
        """End the process."""
        if self.process is not None:
            self.process.kill()
            self.process.communicate()
            self.process = None
