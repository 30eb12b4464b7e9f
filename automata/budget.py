"""What one compilation may spend, and the meter that says when it has spent it."""

from __future__ import annotations

import math
import threading
import time
from dataclasses import dataclass, field
from numbers import Integral, Real

from ..errors import BudgetError, RaiseBudget
from ..kernels.preparing import preparing
from . import deadline


@dataclass(frozen=True)
class Budget:
    """Limits for one compilation; reaching one raises BudgetError, never a smaller result.

    Args:
        states: Of any one deterministic automaton made on the way, before it is minimised.
        seconds: Of the processor, in the thread that compiles; `math.inf` for any number.
        bytes: Of the arrays of the step at hand.

    Raises:
        TypeError: A limit is no number.
        ValueError: A limit is less than 1, or seconds less than 0.

    Examples:
        >>> Budget(seconds=2)
        Budget(states=1000000, seconds=2, bytes=1073741824)
    """

    states: int = 1_000_000
    seconds: float = 30.0
    bytes: int = 1 << 30

    def __post_init__(self) -> None:
        for name in ("states", "bytes"):
            limit = getattr(self, name)
            if not isinstance(limit, Integral) or isinstance(limit, bool):
                raise TypeError(f"Budget({name}=...) must be an integer, not {type(limit).__name__}: {limit!r}")
            if limit < 1:
                raise ValueError(f"Budget({name}=...) must be 1 or more, not {limit}")
        seconds: object = self.seconds
        if not isinstance(seconds, Real) or isinstance(seconds, bool):
            raise TypeError(f"Budget(seconds=...) must be a number, not {type(seconds).__name__}: {seconds!r}")
        if math.isnan(seconds) or seconds < 0:
            raise ValueError(f"Budget(seconds=...) must be 0 or more, not {seconds}")

    def begin(self) -> Meter:
        """Return a meter whose clock starts now."""
        return Meter(self)


def _clock() -> float:
    """Return the processor seconds of this thread, without those that serve all later compilations."""
    clock = time.thread_time()
    return clock - preparing().seconds_at(clock)


@dataclass
class Meter:
    """What a compilation has spent so far: processor time, and the most states and bytes that a step asked for.

    Within `with meter:` kernels, and loops in Python that ask `deadline.look`, end with BudgetError by themselves once
    the seconds are spent. Others, and what needs states or bytes, ask `check`.
    """

    budget: Budget
    states: int = 0
    bytes: int = 0
    _began: float = field(default_factory=_clock)
    _thread: int = field(default_factory=threading.get_ident)
    _spent: float = 0.0  # when a thread was last seen, and by all threads before it
    _before: float = 0.0
    _doing: str = "reading the source"  # named where a kernel stops

    def __enter__(self) -> Meter:
        deadline.begin(self, self.budget.seconds - self.seconds)
        return self

    def __exit__(self, *_: object) -> None:
        deadline.end()

    @property
    def seconds(self) -> float:
        """Processor seconds of the compiling thread, without those that serve all later compilations.

        A machine that is busy with something else costs none. If another thread goes on, its seconds are added.
        """
        if threading.get_ident() != self._thread:
            self._thread, self._began, self._before = threading.get_ident(), _clock(), self._spent
        self._spent = self._before + _clock() - self._began
        return self._spent

    def check(self, *, states: int = 0, bytes: int = 0, ahead: float = 0.0, doing: str) -> None:
        """Raise BudgetError if a step that needs this many states and bytes goes over a limit; ask before spending.

        ahead: seconds that what is left takes at the pace so far. Twice as many as there are end it at once.
        """
        budget, self._doing = self.budget, doing
        if states > budget.states:
            self._stop("states", states, f"more than {budget.states:,} states", f"states={budget.states:,}", doing)
        if bytes > budget.bytes:
            self._stop("bytes", bytes, _size(bytes), f"bytes={budget.bytes:,}", doing)
        self.states = max(self.states, states)
        self.bytes = max(self.bytes, bytes)
        seconds = self.seconds
        if seconds > budget.seconds:
            self.stop(doing)
        if seconds + ahead / 2 > budget.seconds:
            whole = seconds + ahead
            self._stop("seconds", whole, f"about {whole:.0f} s", f"seconds={budget.seconds:g}", doing)

    def stop(self, doing: str = "") -> None:
        """Raise BudgetError, as the seconds are spent. doing: what was last checked if it is not said."""
        allowed = self.budget.seconds
        reached = max(self.seconds, allowed)
        self._stop("seconds", reached, f"more than {allowed:g} s", f"seconds={allowed:g}", doing or self._doing)

    def _stop(self, limit: str, reached: float, need: str, shown: str, doing: str) -> None:
        raise BudgetError(
            f"the constraint needs {need}, reached while {doing} (budget: {shown}; {self.seconds:.1f} s, "
            f"{self.states:,} states, {_size(self.bytes)} so far)",
            limit=limit,
            allowed=getattr(self.budget, limit),
            reached=reached,
            remedies=[RaiseBudget((limit,), "make the constraint smaller")],
        )


def _size(count: int) -> str:
    """Return a number of bytes in a unit that leaves it at least 1.

    >>> _size(10), _size(2_500), _size(30_000_000)
    ('10 bytes', '2 kB', '30 MB')
    """
    if count < 1_000:
        return f"{count} bytes"
    return f"{count / 1e3:,.0f} kB" if count < 1_000_000 else f"{count / 1e6:,.0f} MB"
