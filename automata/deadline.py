"""The timer of all compilations: it says which threads have spent the seconds of their budgets.

A compilation runs in `with meter:`. The timer, one thread of the process, sleeps until the first of them could be late,
then reads the processor clocks of their threads. It marks a thread that is late in words that all kernels read. A
kernel that finds its thread there returns, and its call raises BudgetError: see `kernels/deadline.py`. Loops in Python
ask `look`.

Where no thread can read the clock of another, nothing is marked: only `Meter.check` finds that the seconds are spent,
and a kernel runs to its end.
"""

from __future__ import annotations

import contextlib
import math
import os
import threading
import time
from typing import Any

from ..kernels import deadline
from ..kernels.preparing import Preparing, preparing
from ..kernels.thread_clock import Clock, clock_of_this_thread

_AGAIN = 0.01  # seconds until a thread that found no place is looked at again, and the least that the timer sleeps


class Entry:
    """A compilation of a thread, and the processor seconds at which it is late; made by that thread."""

    def __init__(self, meter: Any, clock: Clock, seconds: float) -> None:
        self.meter, self.thread = meter, threading.get_ident()
        self.place: int | None = None  # of its mark
        self._clock = clock
        self._preparing: Preparing = preparing()
        self._until = self._spent() + seconds

    def _spent(self) -> float:
        clock = self._clock()
        return clock - self._preparing.seconds_at(clock)

    def left(self) -> float:
        """Return the seconds that are left."""
        return self._until - self._spent()


class _Timer:
    """Marks the threads of its entries when they are late."""

    def __init__(self) -> None:
        self._changed = threading.Condition(threading.Lock())
        self._entries: set[Entry] = set()
        self._wakes = math.inf  # when it looks next, by the clock of `time.monotonic`
        self._runs = False

    def add(self, entry: Entry) -> None:
        """Mark the entry's thread once it is late. Most compilations end before the timer wakes, and never wake it."""
        with self._changed:
            self._entries.add(entry)
            if not self._runs:
                threading.Thread(target=self._run, name="maskwright-deadline", daemon=True).start()
                self._runs = True
            elif time.monotonic() + entry.left() < self._wakes:
                self._changed.notify()

    def remove(self, entry: Entry) -> None:
        """Take the mark of an entry back."""
        with self._changed:
            self._entries.discard(entry)
            if entry.place is not None:
                deadline.unmark(entry.place)
                entry.place = None

    def _run(self) -> None:
        with self._changed:
            while True:
                sleep = min((self._mark(entry) for entry in self._entries), default=math.inf)
                self._wakes = time.monotonic() + sleep
                self._changed.wait(None if sleep == math.inf else min(sleep, threading.TIMEOUT_MAX))

    def _mark(self, entry: Entry) -> float:
        """Mark a thread if it is late; return the seconds after which it is to be looked at again."""
        if entry.place is not None:
            return math.inf
        with contextlib.suppress(OSError):  # a thread that ended within its `with`, as the process is about to
            left = entry.left()
            if left <= 0:
                entry.place = deadline.mark(entry.thread)
                return _AGAIN if entry.place is None else math.inf
            return max(left, _AGAIN)
        return math.inf


class _Open(threading.local):
    """The compilations that this thread is in, the outermost first."""

    def __init__(self) -> None:
        self.entries: list[Entry | None] = []


_open = _Open()
_timer = _Timer()


def _begin_anew() -> None:
    """Forget the timer of a process that was forked: its thread is not here."""
    global _timer
    deadline.unmark_all()
    _timer, _open.entries[:] = _Timer(), [None] * len(_open.entries)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_anew)


def begin(meter: Any, seconds: float) -> None:
    """Begin a compilation of this thread that is late after some processor seconds, if they are finite."""
    entry = None
    clock = clock_of_this_thread() if seconds < math.inf else None
    if clock is not None:
        entry = Entry(meter, clock, seconds)
        try:
            _timer.add(entry)
        except RuntimeError:  # no thread can be begun: the process is about to end
            _timer.remove(entry)
            entry = None
    _open.entries.append(entry)


def end() -> None:
    """End the compilation of this thread that began last."""
    entry = _open.entries.pop()
    if entry is not None:
        _timer.remove(entry)


def look(doing: str) -> None:
    """Raise BudgetError if this thread is late: for loops in Python, which may ask each time."""
    if deadline.is_any_late():
        for entry in _open.entries:
            if entry is not None and entry.place is not None:
                entry.meter.stop(doing)


def stop() -> None:
    """Raise BudgetError where a kernel has stopped, as its thread is late."""
    for entry in _open.entries:
        if entry is not None and entry.place is not None:
            entry.meter.stop()
    raise SystemError("a kernel stopped, though its thread is not late")


deadline.raise_by(stop)
