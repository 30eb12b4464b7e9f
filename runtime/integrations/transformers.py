"""Generation with Hugging Face transformers: a logits processor, and a decoding method that carries states itself.

This module is a table of contents: the processor is in `processor`, the decoding method in `generate`, tables put on
a device for both in `placed`.
"""

from __future__ import annotations

from .generate import constrained_generate
from .placed import PlacedTable, place
from .processor import ConstraintLogitsProcessor

__all__ = ["ConstraintLogitsProcessor", "PlacedTable", "constrained_generate", "place"]
