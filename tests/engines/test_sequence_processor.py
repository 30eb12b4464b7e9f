"""A processor of one sequence: what it leaves is what a `Matcher` allows."""

from __future__ import annotations

import numpy as np
import pytest

import maskwright as mw
from maskwright.engines.sequence_processor import SequenceProcessor
from tests.strategies import tokenizer_zoo

VOCAB = tokenizer_zoo.byte_level_bpe()[1]
TABLE = mw.compile_json_schema({"type": "array", "items": {"enum": ["ab", 1]}}, VOCAB)
PROMPT = [70, 71, 70]


def tensors(kind: str):
    """Return how a library writes an array of numpy's, and back."""
    if kind == "numpy":
        return lambda x: x, lambda x: x
    torch = pytest.importorskip("torch")
    return torch.from_numpy, lambda x: x.numpy()


@pytest.mark.parametrize("kind", ["numpy", "torch"])
@pytest.mark.parametrize("axes", [1, 2])
def test_answers_are_complete_within_their_tokens_and_only_what_is_allowed_is_left(kind, axes):
    there, back = tensors(kind)
    rng = np.random.default_rng(0)
    processor = SequenceProcessor(TABLE, max_tokens=12)
    for _ in range(3):
        plain, ids = mw.Matcher(TABLE, max_tokens=12), list(PROMPT)
        while ids[-1] != VOCAB.eos:
            logits = rng.standard_normal(VOCAB.size + 9).astype(np.float32)
            given = (there(np.array(x).reshape(-1) if axes == 1 else np.array([x])) for x in (ids, logits))
            left = back(processor(*given))
            assert left.shape == ((VOCAB.size + 9,) if axes == 1 else (1, VOCAB.size + 9))
            left = left.reshape(-1)
            allowed = np.unpackbits(plain.mask().view(np.uint8), bitorder="little")[: VOCAB.size] > 0
            assert (np.isfinite(left[: VOCAB.size]) == allowed).all()
            assert (left[: VOCAB.size][allowed] == logits[: VOCAB.size][allowed]).all()
            assert np.isneginf(left[VOCAB.size :]).all()
            ids.append(int(left.argmax()))
            assert plain.advance(ids[-1])
        assert len(ids) - len(PROMPT) - 1 <= 12
        assert plain.is_terminated
        processor.reset()


def test_another_sequence_without_reset_and_constraints_without_an_end_are_refused():
    logits = np.zeros(VOCAB.size, np.float32)
    processor = SequenceProcessor(TABLE)
    processor(np.array(PROMPT), logits)
    for ids in ([70, 71], [70, 70, 70], [70, 71, 71, 70]):
        with pytest.raises(ValueError, match=r"do not continue the 3 of the last call.*call reset\(\)"):
            processor(np.array(ids), logits)
    with pytest.raises(ValueError, match=r"tokens \[0\] are not allowed"):
        processor(np.array([*PROMPT, 0]), logits)
    with pytest.raises(ValueError, match="3 logits for a vocabulary"):
        processor(np.array(PROMPT), logits[:3])
    for ids, given, what in (
        ([PROMPT, PROMPT], logits, r"tokens \(2, 3\)"),
        ([PROMPT], logits[None].repeat(2, 0), r"logits \(2, "),
        (70, logits, r"tokens \(\)"),
        ([PROMPT], logits[None, None], r"logits \(1, 1, "),
    ):
        with pytest.raises(ValueError, match=what + ".* must be one row: a batch takes one processor a sequence"):
            processor(np.array(ids), given)
    processor(np.array([PROMPT]), logits[None])  # as before
    with pytest.raises(mw.errors.ConstraintError, match="no token that ends a sequence"):
        SequenceProcessor(mw.compile_sids([[1, 2]], vocab_size=4))
