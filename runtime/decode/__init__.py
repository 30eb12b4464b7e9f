"""Decoders: pure functions of a step function, a table and a state, written once for every backend."""

from __future__ import annotations

from .beam import Beams, beam_search
from .sampling import Sample, Sequences, allowed_logits, sample, sample_allowed, sample_sequences
from .unbiased import Unbiased, rerank, sample_unbiased

__all__ = [
    "Beams",
    "Sample",
    "Sequences",
    "Unbiased",
    "allowed_logits",
    "beam_search",
    "rerank",
    "sample",
    "sample_allowed",
    "sample_sequences",
    "sample_unbiased",
]
