"""Where free text in tags ends, against a reader that tries every reading."""

from __future__ import annotations

import json
import random
from collections import Counter

import pytest

import maskwright as mw
from maskwright.compile.tags.build import compile_structural_tag
from tests.oracles.naive_tags import accepts
from tests.strategies.structural_tags import NAMES, random_tag, random_texts

TEXTS = 12  # of each tag


@pytest.fixture(scope="module")
def vocab() -> mw.Vocabulary:
    tokens = [b"", *(bytes([b]) for b in range(256)), b"", b""]
    return mw.Vocabulary.from_bytes(tokens, eos=0, special={"<|x|>": 257, "<|y|>": 258})


def written(text: str) -> list[int]:
    special = {character: 257 + i for i, character in enumerate(NAMES.values())}
    out: list[int] = []
    for character in text:
        out += [special[character]] if character in special else [1 + byte for byte in character.encode()]
    return out


def compare(seeds: range, vocab: mw.Vocabulary) -> Counter[str]:
    """Compare random tags with the naive reader, and return how many there were, and what came of them."""
    counts: Counter[str] = Counter()
    for seed in seeds:
        rng = random.Random(seed)
        tag = random_tag(rng)
        try:
            table = compile_structural_tag(tag, vocab, whitespace="compact")
        except mw.ConstraintError:
            counts["refused"] += 1
            continue
        counts["tags"] += 1
        for text in random_texts(rng, tag, TEXTS):
            expected = accepts(tag, text, NAMES)
            counts[str(expected)] += 1
            assert table.accepts(written(text)) == expected, (seed, json.dumps(tag), text)
    return counts


@pytest.mark.long
def test_random_tags_read_what_trying_every_reading_does(vocab):
    counts = compare(range(300), vocab)
    assert counts["tags"] > 150, counts
    assert min(counts["True"], counts["False"]) > 300, counts


@pytest.mark.slow
@pytest.mark.parametrize("part", range(8))
def test_ten_thousand_random_tags_read_what_trying_every_reading_does(part, vocab):
    at = 1000 + 2500 * part
    counts = compare(range(at, at + 2500), vocab)
    assert counts["tags"] > 1250, counts
    assert min(counts["True"], counts["False"]) > 3000, counts
