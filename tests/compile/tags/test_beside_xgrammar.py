"""Structural tags beside XGrammar, where it is installed."""

from __future__ import annotations

import json
import random
from collections import Counter
from typing import Any

import pytest

import maskwright as mw
from maskwright.compile.tags.build import compile_structural_tag
from tests.strategies.structural_tags import random_tag, random_texts

xgrammar = pytest.importorskip("xgrammar")


@pytest.mark.long
def test_xgrammar_takes_every_text_that_a_tag_allows():
    """It takes more: a pattern may hold the end of its tag there, and free text what must follow."""
    letters = ["</s>", *map(chr, range(1, 127))]
    info = xgrammar.TokenizerInfo(
        letters, vocab_type=xgrammar.VocabType.RAW, vocab_size=len(letters), stop_token_ids=[0]
    )
    compiler = xgrammar.GrammarCompiler(info)
    vocab = mw.Vocabulary.from_bytes([b"", *(bytes([b]) for b in range(1, 127))], eos=0)
    counts: Counter[Any] = Counter()
    for seed in range(2000):
        rng = random.Random(seed)
        tag = _shared(random_tag(rng))
        if "<|" in (source := json.dumps(tag)) or '["", "b"]' in source:  # control tokens; an empty end beside others
            continue
        try:
            table = compile_structural_tag(tag, vocab, whitespace="compact")
            other = compiler.compile_structural_tag(source)
        except (mw.errors.ConstraintError, RuntimeError):
            continue
        counts["tags"] += 1
        for text in filter(str.isascii, random_texts(rng, tag, 12)):
            matcher = xgrammar.GrammarMatcher(other)
            theirs = all(matcher.accept_token(ord(character)) for character in text) and matcher.accept_token(0)
            ours = table.accepts([ord(character) for character in text])
            assert theirs or not ours, (seed, source, text)
            counts[ours, theirs] += 1
    assert counts["tags"] > 300, counts
    assert counts[False, True] < 0.03 * counts[True, True], counts


def _shared(form: Any) -> Any:
    """Return a structural tag without what only one of the two has."""
    if isinstance(form, list):
        return [_shared(each) for each in form]
    if not isinstance(form, dict):
        return form
    own = {"at_least", "at_most", "max_chars", "excludes"}
    return {key: _shared(value) for key, value in form.items() if key not in own}
