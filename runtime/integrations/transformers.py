"""Generation with Hugging Face transformers: a logits processor, and a decoding method that carries states itself.

This module is a table of contents: the processor is in `processor`, the decoding method in `generate`.
"""

from __future__ import annotations

from .generate import constrained_generate
from .processor import ConstraintLogitsProcessor

__all__ = ["ConstraintLogitsProcessor", "constrained_generate"]
