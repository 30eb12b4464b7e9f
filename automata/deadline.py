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
import sys
import threading
import time
from types import FrameType
from typing import Protocol

from ..kernels import deadline
from ..kernels.preparing import Preparing, preparing
from ..kernels.thread_clock import Clock, clock_of_this_thread

_AGAIN = 0.01  # seconds until a thread that found no place is looked at again, and the least that the timer sleeps


class Stoppable(Protocol):
    """A compilation's meter, as far as the timer needs it."""

    def stop(self, doing: str = "") -> None:
        """Raise BudgetError: the seconds are spent."""


class Entry:
    """A compilation of a thread, and the processor seconds at which it is late; made by that thread."""

    def __init__(self, meter: Stoppable, clock: Clock, seconds: float, frame: FrameType | None) -> None:
        self.meter, self.thread, self._frame = meter, threading.get_ident(), frame
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

    def runs(self) -> bool:
        """Return whether the thread is still in its `with`, which a signal may have ended before `end` was called."""
        frame = sys._current_frames().get(self.thread)
        while frame is not None and frame is not self._frame:
            frame = frame.f_back
        return frame is not None


class _Timer:
    """Marks the threads of its entries when they are late.

    Handlers of signals may raise between any two lines of `add` and `remove`: locks are those whose `with` no signal
    divides, and an entry that was left behind is dropped before its thread would be marked.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()  # of marks
        self._wake = threading.Lock()  # held, but while the timer is to look at once
        self._wake.acquire()
        self._entries: set[Entry] = set()
        self._wakes = math.inf  # when it looks next, by the clock of `time.monotonic`
        self._runs = False

    def add(self, entry: Entry) -> None:
        """Mark the entry's thread once it is late. Most compilations end before the timer wakes, and never wake it."""
        self._entries.add(entry)
        if not self._runs:
            threading.Thread(target=self._run, name="maskwright-deadline", daemon=True).start()
            self._runs = True
        elif time.monotonic() + entry.left() < self._wakes:
            with contextlib.suppress(RuntimeError):  # it is awake already
                self._wake.release()

    def remove(self, entry: Entry) -> None:
        """Take the mark of an entry back."""
        self._entries.discard(entry)
        with self._lock:
            place, entry.place = entry.place, None
            if place is not None:
                deadline.unmark(place)

    def _run(self) -> None:
        while True:
            self._wakes = math.inf  # who comes while it looks wakes it
            sleep = min((self._mark(entry) for entry in list(self._entries)), default=math.inf)
            self._wakes = time.monotonic() + sleep
            self._wake.acquire(timeout=-1 if sleep == math.inf else min(sleep, threading.TIMEOUT_MAX))

    def _mark(self, entry: Entry) -> float:
        """Mark a thread if it is late; return the seconds after which it is to be looked at again."""
        with contextlib.suppress(OSError):  # a thread that ended within its `with`, as the process is about to
            left = entry.left()
            if left > 0:
                return max(left, _AGAIN)
            if not entry.runs():
                self.remove(entry)
                return math.inf
            with self._lock:
                if entry.place is None and entry in self._entries:
                    entry.place = deadline.mark(entry.thread)
            return _AGAIN
        self._entries.discard(entry)
        return math.inf


class _Open(threading.local):
    """The compilations that this thread is in, the outermost first."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []

    def drop_ended(self) -> None:
        """Drop the innermost that a signal has ended."""
        while self.entries and not self.entries[-1].runs():
            _timer.remove(self.entries[-1])
            self.entries.pop()


_open = _Open()
_timer = _Timer()


def _begin_anew() -> None:
    """Forget the timer of a process that was forked: its thread is not here."""
    global _timer
    deadline.unmark_all()
    _timer = _Timer()
    _open.entries.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_anew)


def begin(meter: Stoppable, seconds: float) -> None:
    """Begin a compilation of this thread that is late after some processor seconds; a meter calls it in its `with`."""
    _open.drop_ended()
    clock = clock_of_this_thread()
    entry = Entry(meter, clock or time.thread_time, seconds, sys._getframe(2))
    _open.entries.append(entry)
    if clock is not None and seconds < math.inf:
        with contextlib.suppress(RuntimeError):  # no thread can be begun: the process is about to end
            _timer.add(entry)


def end() -> None:
    """End the compilation of this thread that began last."""
    if len(_open.entries) > 1:
        _open.drop_ended()
    if _open.entries:
        _timer.remove(_open.entries[-1])
        _open.entries.pop()


def look(doing: str) -> None:
    """Raise BudgetError if this thread is late: for loops in Python, which may ask each time."""
    if deadline.is_any_late():
        for entry in _open.entries:
            if entry.place is not None:
                entry.meter.stop(doing)


def stop() -> None:
    """Raise BudgetError where a kernel has stopped, as its thread is late."""
    for entry in _open.entries:
        if entry.place is not None:
            entry.meter.stop()
    raise SystemError("a kernel stopped, though its thread is not late")


deadline.raise_by(stop)
