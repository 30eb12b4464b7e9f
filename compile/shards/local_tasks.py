"""Tasks of shards in processes of this machine: so many at once, and again in a new process if one is killed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from typing import IO

from ...errors import DataError, error_from_json
from ...table.shards import AGAIN, ShardRecord
from .plan import Plan

_ATTEMPTS = 3
_PROGRAM = (  # an interrupt of the terminal is meant for the process that began this one
    f"import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); from {__package__}.shard_task import main; main()"
)


def run_tasks(folder: Path, plan: Plan, numbers: Sequence[int], workers: int) -> Iterator[ShardRecord]:
    """Yield what each task made, in the order in which they end.

    Raises what a task raised; DataError for one whose process ended three times before it did. Processes still at work
    then are killed, as they are if whoever asks is interrupted; the next build makes their shards.
    """
    every = [_Worker(folder) for _ in range(min(workers, len(numbers)))]
    idle: SimpleQueue[_Worker] = SimpleQueue()
    for worker in every:
        idle.put(worker)
    with ThreadPoolExecutor(len(every)) as pool:  # each thread waits for one process
        try:
            waiting: set[Future[ShardRecord]] = {pool.submit(_task, idle, plan, number) for number in numbers}
            while waiting:
                done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
                for future in done:
                    yield future.result()
        except BaseException:  # an interrupt too
            for worker in every:
                worker.kill()
            raise
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
            for worker in every:
                worker.close()


def _task(idle: SimpleQueue[_Worker], plan: Plan, number: int) -> ShardRecord:
    worker = idle.get()
    try:
        for _ in range(_ATTEMPTS):
            line = worker.ask(number)
            if line.endswith("\n"):  # else the process ended within it
                told = json.loads(line)
                if "error" in told:
                    raise error_from_json(told["error"])
                return ShardRecord(**{**told, "first": tuple(told["first"]), "last": tuple(told["last"])})
            said = worker.close()
        raise DataError(
            f"the process that built shard {number} of {plan.num_shards} ended {_ATTEMPTS} times, last with {said}: "
            f"{AGAIN}"
        )
    finally:
        idle.put(worker)


class _Worker:
    """A process that builds shards, begun when it is first asked."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process: subprocess.Popen[str] | None = None
        self._errors: IO[str] | None = None
        self._is_over = False
        self._lock = threading.Lock()  # no process begins once all are killed

    def ask(self, number: int) -> str:
        """Return the line that the process writes for a shard, not whole if it ends before."""
        with self._lock:
            if self._is_over:
                return ""
            process = self._process = self._process or self._begun()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            print(number, file=process.stdin, flush=True)
        except BrokenPipeError:  # it was killed while it waited
            return ""
        return process.stdout.readline()

    def _begun(self) -> subprocess.Popen[str]:
        path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)  # it finds what this process does
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115
        return subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, str(self._folder)], text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors,
            env={**os.environ, "PYTHONPATH": path},
        )  # fmt: skip

    def kill(self) -> None:
        """Kill the process, and begin none from now on. Any thread may call it."""
        with self._lock:
            self._is_over = True
            process = self._process  # another thread may be closing it
        if process is not None:
            process.kill()

    def close(self) -> str:
        """End the process, and say how it ended."""
        if self._process is None:
            return "no process"
        with self._process as process:
            assert process.stdin is not None
            with suppress(BrokenPipeError):
                process.stdin.close()
            status = process.wait()
        self._process = None
        assert self._errors is not None
        with self._errors as errors:
            errors.seek(0)
            lines = errors.read().strip().splitlines()
        return f"status {status} ({lines[-1] if lines else 'without a message'})"
