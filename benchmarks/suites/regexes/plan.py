"""How much of the suite to measure, and the names that its parts share."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

from rich.console import Console

from .patterns import PATTERNS, Pattern

BATCH = 64  # rows whose logits are masked
OURS, REFERENCE = "maskwright", "outlines-core"


console = Console(stderr=True)


@dataclass(frozen=True)
class Plan:
    """How much to measure."""

    quick: bool
    engines: tuple[str, ...]  # those whose exactness is checked

    @property
    def patterns(self) -> list[Pattern]:
        """All patterns, or two of each group."""
        if not self.quick:
            return list(PATTERNS)
        groups = defaultdict(list)
        for pattern in PATTERNS:
            groups[pattern.group].append(pattern)
        return [pattern for group in groups.values() for pattern in group[:2]]

    def rounds(self, usual: int) -> int:
        """Return how often to repeat what is usually repeated so often."""
        return 2 if self.quick else usual


Record = dict[str, Any]
