"""The example of a server of items: a catalogue of 1,000 items, for a model that needs no download."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np

from ...compile.catalogue import Catalogue
from ...vocabulary.vocabulary import Vocabulary
from ..settings import CatalogueSettings, ItemSettings, ModelSettings

NAME = "maskwright-example"
_CATEGORIES = ("shoe", "hat", "coat", "bag", "scarf")
_COLOURS = ("red", "blue", "green", "black", "white")
_CODES, _LEVELS, _ITEMS = 32, 3, 1000
_FIRST = 257  # token of the first code, behind the bytes
WIDTH = _FIRST + _LEVELS * _CODES


def vocabulary() -> Vocabulary:
    """Return the tokens of the example: an end, bytes, and one for each code of each level."""
    codes = [f"<{level}_{code}>".encode() for level in "abc" for code in range(_CODES)]
    return Vocabulary.from_bytes([b"", *(bytes([byte]) for byte in range(256)), *codes], eos=0)


def catalogue() -> Catalogue:
    """Return 1,000 items: the first code of each is of its category, as of IDs that were learnt."""
    random = np.random.default_rng(0)
    kind = random.integers(0, len(_CATEGORIES), _ITEMS)
    colour = random.integers(0, len(_COLOURS), _ITEMS)
    sids = np.stack([kind * 6 + colour, *random.integers(0, _CODES, (_LEVELS - 1, _ITEMS))], axis=1)
    counted = Counter[str]()
    ids, titles = [], []
    for name, shade in zip((_CATEGORIES[k] for k in kind), (_COLOURS[c] for c in colour), strict=True):
        counted[name] += 1
        ids.append(f"{name}-{counted[name]}")
        titles.append(f"{shade} {name} {counted[name]}")
    columns = {
        "title": titles,
        "category": [_CATEGORIES[k] for k in kind.tolist()],
        "price": random.integers(5, 200, _ITEMS).astype(float).tolist(),
    }
    offsets = [_FIRST + _CODES * level for level in range(_LEVELS)]
    return Catalogue.of(
        sids, ids, WIDTH, offsets=offsets, vocabulary=vocabulary(), kind="matrix", columns=columns,
        metadata={"about": "the example of maskwright serve"},
    )  # fmt: skip


@contextmanager
def made(settings: ItemSettings) -> Iterator[ItemSettings]:
    """Add the example's model and catalogue, whose files go when the server ends."""
    with tempfile.TemporaryDirectory(prefix="maskwright-example-") as folder:
        file = Path(folder) / "items.catalogue"
        catalogue().save(file)
        shop = CatalogueSettings("example", file, Path(folder) / "items.log")
        models, catalogues = (*settings.models, ModelSettings(name=NAME)), (*settings.catalogues, shop)
        filters = (("cheap", "price < 50"), *settings.filters)
        yield replace(settings, models=models, catalogues=catalogues, filters=filters)
