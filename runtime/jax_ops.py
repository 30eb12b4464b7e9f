"""Operations on a table in JAX: under `jit`, `vmap` and `lax.scan`, on CPU, GPU and TPU.

A table from `to_device` is a pytree: pass it to a jitted function as an argument. Names and meaning of the operations
are those of `numpy_ops`, the specification. This module is a table of contents: each operation is in the file of its
concept in `device/jax`.
"""

from __future__ import annotations

from .device.jax import arrays
from .device.jax.operations import (
    accepting,
    advance,
    allowed_tokens,
    bitmask,
    candidates,
    contains,
    distance,
    draw,
    end_scores,
    first_tokens,
    log_mass,
    log_probs,
    mask_logits,
    mask_logits_,
    select,
    start,
)
from .device.jax.table import (
    to_device,
    with_filters,
    with_snapshot,
    with_start_states,
)

__all__ = [
    "accepting",
    "advance",
    "allowed_tokens",
    "arrays",
    "bitmask",
    "candidates",
    "contains",
    "distance",
    "draw",
    "end_scores",
    "first_tokens",
    "log_mass",
    "log_probs",
    "mask_logits",
    "mask_logits_",
    "select",
    "start",
    "to_device",
    "with_filters",
    "with_snapshot",
    "with_start_states",
]
