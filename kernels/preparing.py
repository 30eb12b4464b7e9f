"""Processor seconds that a thread spends on what serves all later compilations: no budget counts them."""

from __future__ import annotations

import threading
import time


class Preparing:
    """How long one thread has prepared: compiled kernels, or built what all constraints of a vocabulary share.

    Used as a context manager by that thread, also within itself. Other threads may read `seconds_at`.
    """

    def __init__(self) -> None:
        self._depth, self._began, self._finished = 0, 0.0, 0.0

    def __enter__(self) -> None:
        if not self._depth:
            self._began = time.thread_time()
        self._depth += 1

    def __exit__(self, *_: object) -> None:
        if self._depth == 1:  # the sum first: another thread that reads now must not find too few
            self._finished += time.thread_time() - self._began
        self._depth -= 1

    def seconds_at(self, clock: float) -> float:
        """Return the seconds so far, where the processor clock of the thread stands at `clock`."""
        return self._finished + (clock - self._began if self._depth else 0.0)


class _Own(threading.local):
    def __init__(self) -> None:
        self.preparing = Preparing()


_OWN = _Own()


def preparing() -> Preparing:
    """Return what this thread has spent on preparing."""
    return _OWN.preparing
