"""Changes at random, of texts and of values of JSON."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

ODD: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 0.5, -0.0, 1e-300, 1e300, 10**20, -(10**20), 2**31, 2**63, 2**64, "", "a", "\ud800",
    "😀", "^", "(", "a{2,}", "\\", "[]", [], {}, [[]], {"": {}}, [None], {"type": "string"}, {"$ref": "#"}, 3, 64,
    1000, 65536,
)  # fmt: skip
"""Values that stand where others are expected."""


def mutated_text(rng: Random, text: str, pieces: Sequence[str], others: Sequence[str]) -> str:
    """Return a text with one to four changes. pieces: what may be put in; others: texts of which parts may be."""
    for _ in range(rng.randint(1, 4)):
        at = rng.randint(0, len(text))
        stop = min(len(text), at + rng.choice((0, 1, 1, 2, 5, 20)))
        part = text[at:stop]
        change = rng.randrange(6)
        if change == 0:
            part = ""
        elif change == 1:
            part = rng.choice(pieces) + part
        elif change == 2:
            part = rng.choice(pieces)
        elif change == 3:
            part *= rng.choice((2, 3, 40))
        elif change == 4:
            other = rng.choice(others)
            begin = rng.randint(0, len(other))
            part = other[begin : begin + rng.choice((1, 4, 30))] + part
        else:
            part = part[::-1]
        text = text[:at] + part + text[stop:]
    return text


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield (container, key) of all values within a value."""
    for key, each in list(value.items() if isinstance(value, dict) else enumerate(value)):
        yield value, key
        if isinstance(each, (dict, list)):
            yield from _places(each)


def mutated_json(rng: Random, value: Any, others: Sequence[Any], keys: Sequence[str]) -> Any:
    """Return a copy of a value with one to four changes. others: values whose parts may be put in; keys: names too."""
    whole = [copy.deepcopy(value)]
    for _ in range(rng.randint(1, 4)):
        container, key = rng.choice(list(_places(whole)))
        there = container[key]
        change = rng.randrange(8)
        if change == 0 and container is not whole:
            del container[key]
        elif change == 1:
            container[key] = copy.deepcopy(rng.choice(ODD))
        elif change == 2:
            held, name = rng.choice(list(_places([rng.choice(others)])))
            container[key] = copy.deepcopy(held[name])
        elif change == 3 and isinstance(there, dict):
            there[rng.choice(keys)] = copy.deepcopy(rng.choice(ODD))
        elif change == 4 and isinstance(there, dict):
            held, name = rng.choice(list(_places([rng.choice(others)])))
            there[name if isinstance(name, str) else rng.choice(keys)] = copy.deepcopy(held[name])
        elif change == 5 and isinstance(there, (int, float)) and not isinstance(there, bool):
            container[key] = rng.choice((there + 1, -there, there * 1000, there * 2**40, 1 / (there or 1)))
        elif change == 6 and isinstance(container, dict) and isinstance(key, str):
            container[rng.choice(keys)] = container.pop(key)
        elif change == 7 and isinstance(there, list) and there:
            there.extend(copy.deepcopy(rng.choices(there, k=rng.choice((1, 2, 30)))))
    return whole[0]
