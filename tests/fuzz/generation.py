"""Cases without end: attacks that are kept, what strategies draw, and changes of both."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any

import hypothesis
from hypothesis import HealthCheck, Phase
from hypothesis import strategies as st

from tests.strategies import odd_schemas, patterns, random_schemas

from . import seeds
from .attacks import ATTACKS
from .cases import Case
from .mutation import mutated_json, mutated_text

_DRAWN = 40  # examples that are drawn at a time
_BETWEEN = 8  # cases between two attacks, each of which may take seconds


def _drawn(strategy: st.SearchStrategy[Any], seed: int) -> list[Any]:
    """Return examples of a strategy, the same for the same seed."""
    found: list[Any] = []

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=_DRAWN, database=None, phases=[Phase.generate], deadline=None, derandomize=False,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @hypothesis.given(strategy)
    def note(example: Any) -> None:
        found.append(example)

    note()
    return found


def _is_json(value: Any) -> bool:
    """Return whether a value is the same once it was written."""
    try:
        return bool(json.loads(json.dumps(value)) == value)
    except (TypeError, ValueError):
        return False


_DRAFTS = st.sampled_from(sorted(random_schemas.DRAFTS)).flatmap(lambda draft: random_schemas.schemas(draft=draft))
_STRATEGIES: dict[str, st.SearchStrategy[Any]] = {
    **dict.fromkeys(("schema", "threads", "signals"), (_DRAFTS | odd_schemas.schemas).filter(_is_json)),
    "regex": patterns.patterns,
    "choices": st.lists(st.text(max_size=8) | st.sampled_from(["a", "ab", "", "é😀"]), max_size=12),
}


def _schema(rng: Random, known: Sequence[Any]) -> Any:
    made = mutated_json(rng, rng.choice(known), known, seeds.SCHEMA_KEYS)
    return (
        mutated_text(rng, json.dumps(made), ('"', "{", "]", ",", "1e9", "\\u", "NaN"), ["{}"])
        if rng.random() < 0.1
        else made
    )


def _regex(rng: Random, known: Sequence[str]) -> Any:
    return mutated_text(rng, rng.choice(known), seeds.PATTERN_PIECES, known)


def _grammar(rng: Random, known: Sequence[str]) -> Any:
    return mutated_text(rng, rng.choice(known), seeds.GRAMMAR_PIECES, known)


def _tag(rng: Random, known: Sequence[Any]) -> Any:
    return mutated_json(rng, rng.choice(known), [*known, *seeds.SCHEMAS], seeds.TAG_KEYS)


def _choices(rng: Random, known: Sequence[Any]) -> Any:
    return [mutated_text(rng, each, ("a", "é", "\ud800", "\n", " "), ["ab", "aab"]) for each in rng.choice(known)]


def _body(rng: Random, known: Sequence[tuple[str, Any]]) -> Any:
    bodies = []
    for _ in range(3):
        path, value = rng.choice(known)
        others = [other for _, other in known]
        text = json.dumps(mutated_json(rng, value, [*others, *seeds.SCHEMAS], seeds.REQUEST_KEYS))
        if rng.random() < 0.15:
            text = mutated_text(rng, text, ('"', "{", "]", "\xff", "\x00", "1e999"), ["{}"])
        bodies.append((path, text.encode("utf-8", "replace").decode("latin-1")))
    return bodies


_MUTATIONS: dict[str, tuple[Callable[[Random, Any], Any], Sequence[Any]]] = {
    **dict.fromkeys(("schema", "threads", "signals"), (_schema, seeds.SCHEMAS)),
    "regex": (_regex, seeds.PATTERNS), "grammar": (_grammar, seeds.GRAMMARS),
    "tag": (_tag, seeds.TAGS), "choices": (_choices, (["red", "green"], ["a", "aa", "é"], ["😀"])),
    "http": (_body, seeds.REQUESTS),
}  # fmt: skip


def cases(kind: str, seed: int) -> Iterator[Case]:
    """Yield cases of a kind without end, the same for the same seed; each attack once, among what is made up."""
    rng = Random(f"{kind} {seed}")
    attacks = rng.sample(sorted(ATTACKS.get(kind, ())), len(ATTACKS.get(kind, ())))
    for number, case in enumerate(_made_up(kind, rng)):
        if attacks and number % _BETWEEN == 0:
            yield Case(kind, attack=attacks.pop(), seed=rng.randrange(1 << 32))
        yield case


def _made_up(kind: str, rng: Random) -> Iterator[Case]:
    while True:
        if kind not in _MUTATIONS:  # the seed says all
            yield Case(kind, rng.randrange(64), seed=rng.randrange(1 << 32))
            continue
        mutate, known = _MUTATIONS[kind]
        drawn = _drawn(_STRATEGIES[kind], rng.randrange(1 << 32)) if kind in _STRATEGIES else []
        for source in drawn:
            yield Case(kind, source, seed=rng.randrange(1 << 32))
        for _ in range(_DRAWN):
            yield Case(kind, mutate(rng, [*known, *drawn]), seed=rng.randrange(1 << 32))
