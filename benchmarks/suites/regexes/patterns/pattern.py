"""A regular expression with its texts, the truth about any text, and mutations of those that match."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import dataclass

STRANGE = 'é٣日ß\n\t "\\.-_/:@0aZ'  # what a mutation may put in, besides the text's own characters


@dataclass(frozen=True)
class Pattern:
    """A regular expression, the group it is in, texts it matches and texts it does not."""

    name: str
    group: str
    pattern: str
    positive: tuple[str, ...]
    negative: tuple[str, ...]
    choices: tuple[str, ...] = ()  # where the pattern is nothing but these, joined by |
    judge: Callable[[str], bool] | None = None  # where `re` would take exponential time

    def truth(self) -> Callable[[str], bool]:
        """Return a function that says whether a whole text matches."""
        if self.judge is not None:
            return self.judge
        if r"\p" in self.pattern:
            import regex

            expression = regex.compile(self.pattern)
            return lambda text: expression.fullmatch(text) is not None
        compiled = re.compile(self.pattern)
        return lambda text: compiled.fullmatch(text) is not None


def check(pattern: Pattern) -> None:
    """Raise ValueError where a text does not match as written, or where there are fewer than three of a kind."""
    matches = pattern.truth()
    for texts, expected in ((pattern.positive, True), (pattern.negative, False)):
        if len(set(texts)) < 3:
            raise ValueError(f"pattern {pattern.name!r} has fewer than three texts that match={expected}: add some")
        for text in texts:
            if matches(text) != expected:
                raise ValueError(f"pattern {pattern.name!r}: match={not expected} for {text!r}, listed as {expected}")


def mutations(pattern: Pattern, count: int = 20) -> list[str]:
    """Return texts one or two edits away from those that match, the same ones every time; most match no more."""
    rng = random.Random(pattern.name)
    texts: list[str] = []
    seen = {*pattern.positive, *pattern.negative}
    while len(texts) < count:
        text = rng.choice(pattern.positive)
        for _ in range(rng.choice((1, 1, 2))):
            text = _edited(text, rng)
        if text not in seen:
            seen.add(text)
            texts.append(text)
    return texts


def _edited(text: str, rng: random.Random) -> str:
    at = rng.randrange(len(text) + 1)
    # the text's own characters come first: near misses find more than strange bytes do
    new = rng.choice(text) if text and rng.random() < 0.7 else rng.choice(STRANGE)
    edit = rng.randrange(6)
    if edit == 0:
        return text[:at] + new + text[at:]
    if edit == 1:
        return text[:at] + text[at + 1 :]
    if edit == 2:
        return text[:at] + new + text[at + 1 :]
    if edit == 3:
        return text[:at] + text[at : at + 2][::-1] + text[at + 2 :]
    if edit == 4:
        return text[:at] + text[at:].swapcase()
    return text[: max(at, 1)]
