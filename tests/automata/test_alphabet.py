"""Alphabets against all characters, spelled one by one."""

from __future__ import annotations

import json
import random
from json.encoder import encode_basestring, encode_basestring_ascii

import pytest

import maskwright as mw
from maskwright.automata.alphabet import NOTHING, Alphabet, Spelling, string_alphabet, utf8_alphabet
from maskwright.automata.utf8 import Ranges, normalize_ranges

EDGES = [0, 0x7F, 0x80, 0x7FF, 0x800, 0xD7FF, 0xE000, 0xFFFF, 0x10000, 0x3FFFF, 0x40000, 0x10FFFF]
PLACES = [*EDGES, 0x22, 0x5C, 0x41, 0x61, 0xE9, 0x3B1, 0x20AC, 0x1F600]
BAD = [bytes.fromhex(text) for text in ["c080", "c1bf", "e09fbf", "eda080", "f08fbfbf", "f4908080", "80", "f5"]]


def some_sets(rng: random.Random) -> tuple[Ranges, ...]:
    sets = []
    for _ in range(rng.choice([0, 1, 2, 5, 90])):
        ranges = []
        for _ in range(rng.choice([1, 1, 3, 30])):
            low = max(0, rng.choice(PLACES) + rng.choice([0, 0, 1, -1, rng.randrange(-300, 300)]))
            ranges.append((min(low, 0x10FFFF), min(low + rng.choice([0, 1, 63, 64, 5000, 200_000]), 0x10FFFF)))
        sets.append(normalize_ranges(ranges))
    return tuple(sets)


def read(alphabet: Alphabet, text: bytes) -> int | None:
    """Return the class of the whole character that bytes spell, None for what is none."""
    at = -1
    for i, byte in enumerate(text):
        found = int(alphabet.root[byte] if at < 0 else alphabet.inner[at, byte])
        if found == NOTHING:
            return None
        if found < 0:
            return ~found if i == len(text) - 1 else None
        at = found
    return None


def members(sets: tuple[Ranges, ...], point: int) -> tuple[bool, ...]:
    return tuple(any(low <= point <= high for low, high in ranges) for ranges in sets)


def some_points(rng: random.Random, sets: tuple[Ranges, ...]) -> set[int]:
    points = {*PLACES, *range(0x100), *(rng.randrange(0x110000) for _ in range(300))}
    points |= {x for ranges in sets for pair in ranges for end in pair for x in (end - 1, end, end + 1)}
    return {point for point in points if 0 <= point <= 0x10FFFF and not 0xD800 <= point < 0xE000}


@pytest.mark.parametrize("seed", range(40))
def test_classes_are_what_sets_tell_apart_and_bytes_spell_them(seed: int) -> None:
    rng = random.Random(seed)
    sets = some_sets(rng)
    alphabet = utf8_alphabet(sets)
    of_class: dict[tuple[bool, ...], int] = {}
    for point in some_points(rng, sets):
        c = alphabet.class_of(chr(point))
        assert of_class.setdefault(members(sets, point), c) == c
        assert read(alphabet, chr(point).encode()) == c
    assert len(set(of_class.values())) == len(of_class) <= alphabet.classes
    for c, point in enumerate(alphabet.representatives):
        assert alphabet.class_of(chr(point)) == c


def test_all_characters_and_no_others() -> None:
    sets = (((0x61, 0x7A),), ((0xE9, 0xE9), (0x3B1, 0x3C9), (0x1F600, 0x1F64F)))
    alphabet = utf8_alphabet(sets)
    for point in range(0x110000):
        if not 0xD800 <= point < 0xE000:
            assert read(alphabet, chr(point).encode()) == alphabet.class_of(chr(point))
    for bad in BAD:
        assert read(alphabet, bad) is None


@pytest.mark.parametrize("seed", range(20))
def test_what_is_in_reach_within_a_character(seed: int) -> None:
    alphabet = utf8_alphabet(some_sets(random.Random(seed)))

    def classes_at(n: int) -> set[int]:
        found = {int(x) for x in alphabet.inner[n].tolist() if x != NOTHING}
        return {~x for x in found if x < 0}.union(*(classes_at(x) for x in found if x >= 0))

    for n in range(len(alphabet.inner)):
        said = {c for c in range(alphabet.classes) if int(alphabet.reach[n, c >> 6]) >> (c & 63) & 1}
        assert said == classes_at(n)
    lines = {row.tobytes() for row in alphabet.inner}
    assert len(lines) == len(alphabet.inner)


@pytest.mark.parametrize("spelling", [Spelling.ANY, Spelling.NEEDED])
@pytest.mark.parametrize("ascii", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_strings_of_json_spell_each_character_as_a_table_does(seed: int, ascii: bool, spelling: Spelling) -> None:
    rng = random.Random(seed)
    sets = some_sets(rng)
    alphabet = string_alphabet(sets, spelling, ascii)
    plain = utf8_alphabet(sets)
    schema = {"type": "string"} if spelling is Spelling.ANY else {"type": "string", "not": {"const": "zz"}}
    table = mw.compile_json_schema(
        schema, mw.Vocabulary.from_bytes([bytes([b]) for b in range(256)]), ascii=ascii, lazy=False
    )
    assert read(alphabet, b'"') == alphabet.end == alphabet.classes - 1
    for point in rng.sample(sorted(some_points(rng, sets)), 200) + list(range(0x20)) + [0x22, 0x5C, 0x2F, 0x7F]:
        c = chr(point)
        units = c.encode("utf-16-be").hex()
        escape = "".join("\\u" + units[k : k + 4] for k in range(0, len(units), 4))
        spellings = {c, escape, escape.upper().replace("U", "u"), escape[:-1], "\\" + c}
        spellings |= {f"\\{x}" for x in 'bfnrt/"u'}
        for written in spellings | {encode_basestring(c)[1:-1], encode_basestring_ascii(c)[1:-1]}:
            text = written.encode()
            found = read(alphabet, text)
            accepted = text != b'"' and table.accepts([*b'"' + text + b'"'])
            assert (found is not None) == accepted or text == b'"', written
            if accepted:
                assert found == plain.class_of(json.loads(f'"{written}"', strict=False))
