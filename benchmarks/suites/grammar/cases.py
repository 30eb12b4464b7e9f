"""Grammars and their texts, from `grammars/`."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from pathlib import Path

GRAMMARS = Path(__file__).parent / "grammars"


@dataclasses.dataclass(frozen=True)
class Case:
    """A grammar and its texts."""

    name: str
    title: str  # the first line of its file
    lark: str
    llguidance: str
    inside: tuple[str, ...]
    outside: tuple[str, ...]  # texts that are not in the language
    beyond: tuple[str, ...]  # texts that are, but that the grammar leaves out

    @property
    def texts(self) -> list[tuple[str, bool]]:
        """Every text, and whether the grammar derives it."""
        return [(text, True) for text in self.inside] + [(text, False) for text in (*self.outside, *self.beyond)]


def cases(only: Iterable[str] | None = None) -> list[Case]:
    """Return the grammars of this benchmark, or those named. Raises ValueError for a name that is none of them."""
    names = sorted(path.stem for path in GRAMMARS.glob("*.json"))
    unknown = sorted(set(only or ()) - set(names))
    if unknown:
        raise ValueError(f"no grammar is called {', '.join(unknown)}: there are {', '.join(names)}")
    return [_case(name) for name in names if only is None or name in only]


def _case(name: str) -> Case:
    lark = (GRAMMARS / f"{name}.lark").read_text()
    other = GRAMMARS / f"{name}.llguidance.lark"
    texts = json.loads((GRAMMARS / f"{name}.json").read_text())
    title = lark.split("\n", 1)[0].removeprefix("// ")
    kinds = (tuple(texts[kind]) for kind in ("inside", "outside", "beyond"))
    return Case(name, title, lark, other.read_text() if other.exists() else lark, *kinds)
