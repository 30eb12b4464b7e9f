"""The engines, given regular expressions."""

from __future__ import annotations

import time
from typing import Any

from ... import peers
from .patterns import Pattern

# compiled first, so that a process is warm
SMALL = Pattern("small", "warm-up", "yes, twice|no, never", (), (), choices=("yes, twice", "no, never"))


class Maskwright(peers.Maskwright):
    """`compile_regex` and `Matcher`."""

    def compile(self, pattern: Pattern) -> Any:
        return self.mw.compile_regex(pattern.pattern, self.vocab)


class MaskwrightChoices(peers.Maskwright):
    """`compile_choices`, for the patterns that are lists."""

    def compile(self, pattern: Pattern) -> Any:
        return self.mw.compile_choices(list(pattern.choices), self.vocab)


class Outlines(peers.Outlines):
    """outlines-core: `Index`."""

    def compile(self, pattern: Pattern) -> Any:
        return self.lib.Index(pattern.pattern, self.vocab)


class Llguidance(peers.Llguidance):
    """llguidance: `grammar_from_regex`."""

    def compile(self, pattern: Pattern) -> Any:
        return self.at_start(self.lib.LLMatcher.grammar_from_regex(pattern.pattern))


class Xgrammar(peers.Xgrammar):
    """xgrammar: `compile_regex`."""

    def compile(self, pattern: Pattern) -> Any:
        return self.compiler.compile_regex(pattern.pattern)


ENGINES: dict[str, type[peers.Engine]] = {
    "maskwright": Maskwright,
    "maskwright, choices": MaskwrightChoices,
    "outlines-core": Outlines,
    "llguidance": Llguidance,
    "xgrammar": Xgrammar,
}


def takes(engine: str, pattern: Pattern) -> bool:
    """Return whether a pattern is of the kind an engine is for."""
    return bool(pattern.choices) or engine != "maskwright, choices"


def first_mask(engine: peers.Engine, pattern: Pattern) -> tuple[Any, float]:
    """Return a compiled pattern and the seconds from the pattern to the first mask."""
    begin = time.perf_counter()
    compiled = engine.compile(pattern)
    engine.session(compiled).mask()
    return compiled, time.perf_counter() - begin
