"""What one compilation may spend, and the meter that says when it has spent it."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from ..errors import BudgetError


@dataclass(frozen=True)
class Budget:
    """Limits for one compilation; reaching one raises BudgetError, never a smaller result."""

    states: int = 200_000  # of any one automaton made on the way, before it is minimised
    seconds: float = 30.0
    bytes: int = 1 << 30  # of the arrays of the step at hand

    def begin(self) -> Meter:
        """Return a meter whose clock starts now."""
        return Meter(self)


@dataclass
class Meter:
    """What a compilation has spent so far: the clock, and the most states and bytes that a step asked for."""

    budget: Budget
    started: float = field(default_factory=time.monotonic)
    states: int = 0
    bytes: int = 0

    @property
    def seconds(self) -> float:
        """Seconds since the compilation began."""
        return time.monotonic() - self.started

    def check(self, *, states: int = 0, bytes: int = 0, doing: str) -> None:
        """Raise BudgetError if a step that needs this many states and bytes goes over a limit; ask before spending."""
        budget = self.budget
        if states > budget.states:
            self._stop("states", f"more than {budget.states:,} states", f"states={budget.states:,}", doing)
        if bytes > budget.bytes:
            self._stop("bytes", f"{bytes / 1e6:,.0f} MB", f"bytes={budget.bytes:,}", doing)
        self.states = max(self.states, states)
        self.bytes = max(self.bytes, bytes)
        if self.seconds > budget.seconds:
            self._stop("seconds", f"more than {budget.seconds:g} s", f"seconds={budget.seconds:g}", doing)

    def _stop(self, limit: str, need: str, shown: str, doing: str) -> None:
        raise BudgetError(
            f"the constraint needs {need}, reached while {doing} (budget: {shown}; {self.seconds:.1f} s, "
            f"{self.states:,} states, {self.bytes / 1e6:.0f} MB so far): "
            f"raise it with budget=Budget({limit}=...), or make the constraint smaller"
        )
