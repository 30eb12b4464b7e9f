"""A budget of tokens that is kept by bounds: masks and `advance` agree whatever was called before, and steps end."""

from __future__ import annotations

import pickle
import random
import time
from typing import Any

import numpy as np
import pytest

import maskwright as mw
from maskwright.compile.regex import pattern_rules
from maskwright.runtime.host.readers import reader_of

TOKENS = [b"", *(bytes([byte]) for byte in range(256)), "日".encode(), b'{"', b'":', b"ab"]
VOCABULARY = mw.Vocabulary.from_bytes(TOKENS, eos=0)
PATTERNS = [r"(é|ü[a-z]{20})x", r"日{1,3}\b", r"[a-c]{2,5}(日|abc){1,2}", r"(?=.*é)(?=.*b).{4,9}", r"(ab|é日?)*c"]
SCHEMAS: list[Any] = [
    {"enum": ["é", "üxxxxxxxxxxxxxxxxxx"]},
    {"type": "object", "properties": {"é": {"type": "boolean"}, "ab": {}}, "required": ["é"]},
    {"type": "array", "items": {"enum": ["abc", "日"]}, "minItems": 2, "maxItems": 4},
    {"type": "string"},
]
CONSTRAINTS = [("regex", each) for each in PATTERNS] + [("json_schema", each) for each in SCHEMAS]


def allowed(matcher: mw.Matcher) -> set[int]:
    """Return the tokens that a matcher allows."""
    return set(np.flatnonzero(np.unpackbits(matcher.mask().view(np.uint8), bitorder="little")).tolist())


def nearest_end(table: Any) -> int:
    """Return in how many tokens a text is known to end."""
    reader = reader_of(table, False)
    return reader.distance(reader.start())


@pytest.mark.parametrize(("kind", "source"), CONSTRAINTS, ids=str)
def test_masks_and_tokens_agree_whatever_was_called_before(kind: str, source: Any) -> None:
    table: Any = getattr(mw, f"compile_{kind}")(source, VOCABULARY)
    nearest = nearest_end(table)
    rng = random.Random(0)
    for _ in range(40):
        matcher = mw.Matcher(table, VOCABULARY, max_tokens=nearest + rng.choice([0, 1, 2, 6]), may_complete=False)
        for _ in range(25):
            unasked, tokens = matcher.copy(), allowed(matcher)  # of which one was not asked for its mask
            assert tokens
            tried = {*rng.sample(sorted(tokens), min(3, len(tokens))), *rng.sample(range(VOCABULARY.size), 3)}
            for token in tried:
                for each in (matcher.copy(), unasked.copy()):
                    assert each.advance(token) == (token in tokens), (token, VOCABULARY.decode(matcher.tokens))
            if rng.random() < 0.03:  # which compiles it again
                same = pickle.loads(pickle.dumps(matcher))
                assert (same.tokens, allowed(same)) == (matcher.tokens, tokens)
                assert all(same.copy().advance(token) == (token in tokens) for token in tried)
            if matcher.is_terminated:
                break
            if rng.random() < 0.3:
                matcher.rollback(rng.randrange(matcher.num_tokens + 1))
            elif rng.random() < 0.8:
                matcher.advance(rng.choice(sorted(tokens)))
            else:  # without another mask
                unasked.advance(rng.choice(sorted(tokens)))
                matcher = unasked
        while not matcher.is_terminated:
            assert matcher.advance(min(allowed(matcher)))
    assert not table.is_complete


def test_a_draft_is_taken_as_far_as_masks_would_allow_it() -> None:
    table = mw.compile_regex(PATTERNS[0], VOCABULARY)
    matcher = mw.Matcher(table, VOCABULARY, max_tokens=3, may_complete=False)
    assert matcher.validate_tokens(VOCABULARY.encode("éx".encode())) == 3
    assert matcher.accepts(VOCABULARY.encode("éx".encode()))


def test_a_matcher_begins_anew_once_its_table_is_complete() -> None:
    table = mw.compile_json_schema(SCHEMAS[2], VOCABULARY)
    assert isinstance(table, mw.LazyTable)
    matchers = [mw.Matcher(table, VOCABULARY, max_tokens=40, may_complete=each) for each in (True, False)]
    for matcher in matchers:
        assert matcher.accept_tokens(VOCABULARY.encode(b'["abc"'))
    table.to_table()
    for matcher in matchers:
        matcher.reset()
        assert allowed(matcher)


def test_an_ending_that_rows_left_out_is_not_forced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pattern_rules, "MOST_READING", 3)
    rng = random.Random(1)
    ended = refused = 0
    for _ in range(30):
        table = mw.compile_regex(r".{3,12}(?<=a.{4})(?<=b.{2})", VOCABULARY)
        assert isinstance(table, mw.LazyTable)
        nearest = nearest_end(table)
        try:
            matcher = mw.Matcher(table, VOCABULARY, max_tokens=nearest + rng.choice([0, 1, 3]), may_complete=False)
            while not matcher.is_terminated:
                assert matcher.advance(rng.choice(sorted(allowed(matcher))))
            ended += 1
        except mw.errors.BudgetError as error:  # which says that no end is known
            refused += error.limit is None
    assert ended
    assert ended + refused == 30


def test_a_mask_that_takes_long_ends_with_its_second_and_may_be_asked_for_again() -> None:
    pattern = "(?=.*a.{20}b)(?=.*c.{25}d)(?=.*e.{22}f).*x.{30}"
    table = mw.compile_regex(pattern, VOCABULARY, flags="a", budget=mw.Budget(seconds=1))
    began = time.thread_time()
    with pytest.raises(mw.errors.ConstraintError):
        mw.Matcher(table, VOCABULARY, max_tokens=120, may_complete=False)
    assert time.thread_time() - began < 5, "it took 12 s without a limit"
    assert mw.Matcher(table, VOCABULARY).mask().any()
