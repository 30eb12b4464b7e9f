"""One thing to try: what it is tried on, and its source, as JSON holds it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

KINDS = (
    "schema",
    "regex",
    "grammar",
    "tag",
    "choices",
    "table_file",
    "matcher",
    "http",
    "device",
    "threads",
    "signals",
)


@dataclass(frozen=True)
class Case:
    """What is tried; one of the kept attacks is known by its name alone, as it may be larger than memory written out.

    seed: decides all that a check chooses, such as the tokens of a walk.
    """

    kind: str
    source: Any = None
    attack: str | None = None
    seed: int = 0

    def to_json(self) -> dict[str, Any]:
        """Return what `from_json` makes this case of again."""
        return {"kind": self.kind, "source": self.source, "attack": self.attack, "seed": self.seed}

    @classmethod
    def from_json(cls, made: Mapping[str, Any]) -> Case:
        """Return a case that was kept."""
        return cls(made["kind"], made["source"], made["attack"], made["seed"])
