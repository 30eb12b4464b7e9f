"""Decoders: pure functions of a step function, a table and a state, written once for every backend."""

from __future__ import annotations

from .beam import Beams, beam_search
from .continuation import Continuation, continue_from
from .jump import Forced, Jumped, count_forced, sample_jumping, take_forced
from .reader import Reader
from .sampling import Sample, Sequences, allowed_logits, sample, sample_allowed, sample_sequences
from .speculative import Speculated, speculative_sample
from .unbiased import Unbiased, rerank, sample_unbiased

__all__ = [
    "Beams",
    "Continuation",
    "Forced",
    "Jumped",
    "Reader",
    "Sample",
    "Sequences",
    "Speculated",
    "Unbiased",
    "allowed_logits",
    "beam_search",
    "continue_from",
    "count_forced",
    "rerank",
    "sample",
    "sample_allowed",
    "sample_jumping",
    "sample_sequences",
    "sample_unbiased",
    "speculative_sample",
    "take_forced",
]
