"""Internationalised names are valid by the library `idna`, and by the Bidi rule for whole names (RFC 5893, 2)."""

from __future__ import annotations

import random
import re
import sys
import unicodedata

import numpy as np
import pytest

import maskwright as mw
from maskwright.automata.budget import Budget
from maskwright.compile.json_schema import formats
from maskwright.compile.json_schema.algebra import Format
from maskwright.compile.json_schema.approximations import Approximations
from maskwright.compile.json_schema.keywords import formula
from maskwright.errors import Advice, AllowKeyword, SchemaError

idna = pytest.importorskip("idna")

DOTS = "[.\u3002\uff0e\uff61]"
POOLS = [
    *("abzl-019", "AZ", ".", "\u3002\uff0e\uff61", "éüßñčạ\u0301\u0323\u0308", "l\u00b7", "0\u0660\u06f0"),
    *("αβϊ\u0375ς", "דגשת\u05f3\u05f4", "ابيکهآ\u0653\u0654\u064e\u0651\u200c"),
    *("कनऩय\u093c\u094d\u0951\u200c\u200d\u093f\u0940", "ক\u09c7\u09be\u09d7\u09cd", "க\u0bca\u0bbe\u0bc6\u0bd7"),
    *("ป\u0e39\u0e48\u0e38", "かがカ\u3099\u309a・漢字", "한글실\u302e", "ጀመ", "ខ\u17d2មែរ"),
    *("မရ\u1014\u1037\u103a\u102e\u1025", "\U0001f600\U00020000\u0640\u07fa\u3031", "\ud7a4\u0378"),
]


def is_valid(name: str) -> bool:
    """Whether `idna` takes a name, each label of one with letters from right to left keeps to the Bidi rule, and no
    label is empty."""
    if re.search(f"{DOTS}$", name):
        return False
    try:
        idna.encode(name)
        if any(unicodedata.bidirectional(char) in ("R", "AL", "AN") for char in name):
            for label in re.split(DOTS, name):
                idna.check_bidi(label, check_ltr=True)
    except UnicodeError:
        return False
    return True


def names(seed: int, count: int) -> list[str]:
    rng = random.Random(seed)
    found = []
    for _ in range(count):
        pools = [*rng.sample(POOLS, rng.randint(1, 3)), POOLS[0]]
        weights = [4] * (len(pools) - 1) + [1]
        length = rng.choice((1, 2, 3, 4, 5, 8, 13, 20))
        found.append("".join(map(rng.choice, rng.choices(pools, weights, k=length))))
    return found


def test_no_name_is_accepted_that_idna_rejects_and_none_is_surely_wrong_that_it_takes():
    meter = Budget().begin()
    host, mail = (formats.language(name, meter) for name in ("idn-hostname", "idn-email"))
    upper = formats.superset("idn-hostname", meter)
    accepted = valid = 0
    for name in names(1, 60_000):
        truth, found = is_valid(name), host.accepts(name.encode())
        assert truth or not found, ascii(name)
        assert upper.accepts(name.encode()) or not truth, ascii(name)
        assert truth or not mail.accepts(f"a@{name}".encode()), ascii(name)
        accepted += found
        valid += truth
    assert valid > 3000
    assert accepted > 0.8 * valid


def test_sampled_names_are_valid_and_their_labels_come_close_to_63_octets():
    dfa = formats.language("idn-hostname", Budget().begin())
    rng = np.random.default_rng(2)
    longest = 0
    for length in (5, 9, 15, 30, 60, 120, 250):
        for _ in range(60):
            name = dfa.sample(rng, length).decode()
            assert is_valid(name), ascii(name)
            longest = max(longest, len(idna.encode(name)))
    assert 150 < longest <= 253
    rng2 = random.Random(3)
    most = 0
    letters = [*(chr(code) for code in range(0xE0, 0x250)), *(chr(code) for code in range(0x1E00, 0x1F00))]
    letters = [char for char in letters if dfa.accepts(char.encode())]
    for _ in range(20_000):
        some = rng2.choices(rng2.sample(letters, rng2.randint(1, 6)), k=rng2.randint(1, 17))
        some += rng2.choices("a0z", k=rng2.randint(0, 49))
        rng2.shuffle(some)
        label = "".join(some)
        if dfa.accepts(label.encode()):
            most = max(most, len(idna.alabel(label)))
    assert 53 <= most <= 61


def test_each_letter_of_the_scripts_is_taken_as_idna_takes_it():
    dfa = formats.language("idn-hostname", Budget().begin())
    alone = {char for char in map(chr, range(0x80, 0xD7A4)) if dfa.accepts(char.encode())}
    assert len(alone) > 38_000
    for char in alone:
        assert idna.alabel(char).startswith(b"xn--"), char
    for char in "ßλяաשبअক가ก漢かწጀក":
        assert char in alone


def test_without_the_library_the_formats_are_refused_with_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "idna", None)
    for name in ("idn-hostname", "idn-email"):
        with pytest.raises(SchemaError, match=r"needs the tables of the library idna.*'maskwright\[idn\]'") as caught:
            formula({"properties": {"a": {"format": name}}})
        assert caught.value.pointer == "/properties/a/format"
        assert [type(each) for each in caught.value.remedies] == [Advice, AllowKeyword]
        found = Approximations({"format"})
        formula({"format": name}, approximations=found)
        assert [(each.keyword, each.approximation) for each in found.found] == [("format", "any string")]
        assert formula({"type": "integer", "format": name}) is formula({"type": "integer"})


def test_a_schema_with_an_internationalised_name_has_masks():
    vocab = mw.Vocabulary.from_bytes([b"", *(bytes([b]) for b in range(256))], eos=0)
    for lazy in (True, False):
        table = mw.compile_json_schema(
            {"properties": {"a": {"type": "string", "format": "idn-hostname"}}}, vocab, lazy=lazy
        )
        for name, valid in (("실례.테스트", True), ("〮실례", False), ("a\u00b7l", False), ("xn--x", False)):
            assert table.accepts(vocab.encode(f'{{"a": "{name}"}}')) == valid
    assert formula({"format": "idn-hostname"}) is Format("idn-hostname")
