"""What the automaton of an object keeps while it is made."""

from __future__ import annotations

from ...automata.budget import Meter
from .member_letters import FINDING

_OFTEN = 1 << 20  # bytes after which the meter is asked again


class KeptBytes:
    """Counts bytes that are kept, and asks the meter once in a while."""

    def __init__(self, meter: Meter) -> None:
        self._meter, self.size, self._asked = meter, 0, 0

    def add(self, size: int) -> None:
        """Note that some bytes more are kept. Raises BudgetError."""
        self.size += size
        if self.size - self._asked > _OFTEN:
            self._asked = self.size
            self._meter.check(bytes=self.size, doing=FINDING)
