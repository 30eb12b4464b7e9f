"""Decoders: pure functions of a step function, a table and a state, written once for every backend."""

from __future__ import annotations

from .beam import Beams, beam_search

__all__ = ["Beams", "beam_search"]
