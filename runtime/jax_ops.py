"""Operations on a table in JAX: under `jit`, `vmap` and `lax.scan`, on CPU, GPU and TPU.

A table from `put` is a pytree: pass it to a jitted function as an argument. Names and meaning of the operations are
those of `numpy_ops`, the specification. This module is a table of contents: each operation is in the file of its
concept in `device/jax`.
"""

from __future__ import annotations

from .device.jax.arrays import (
    all_known_true,
    arange,
    concatenate,
    doubled,
    exp,
    gather,
    integers,
    is_concrete,
    is_recording,
    keep,
    keep_packed,
    log_softmax,
    logsumexp,
    lookup,
    lowest,
    pack,
    put_rows,
    scatter,
    search,
    sort,
    split,
    take,
    to_device,
    to_host,
    top_k,
    top_of_beams,
    uniform,
    unpack,
    where,
    zeros,
)
from .device.jax.likelihood import (
    log_probs,
)
from .device.jax.masks import (
    allowed_tokens,
    bitmask,
    log_mass,
    mask_logits,
    mask_logits_,
)
from .device.jax.selection import (
    candidates,
    draw,
    end_scores,
    select,
)
from .device.jax.states import (
    accepting,
    advance,
    contains,
    distance,
    start,
)
from .device.jax.table import (
    at,
    first_tokens,
    put,
)

__all__ = [
    "accepting",
    "advance",
    "all_known_true",
    "allowed_tokens",
    "arange",
    "at",
    "bitmask",
    "candidates",
    "concatenate",
    "contains",
    "distance",
    "doubled",
    "draw",
    "end_scores",
    "exp",
    "first_tokens",
    "gather",
    "integers",
    "is_concrete",
    "is_recording",
    "keep",
    "keep_packed",
    "log_mass",
    "log_probs",
    "log_softmax",
    "logsumexp",
    "lookup",
    "lowest",
    "mask_logits",
    "mask_logits_",
    "pack",
    "put",
    "put_rows",
    "scatter",
    "search",
    "select",
    "sort",
    "split",
    "start",
    "take",
    "to_device",
    "to_host",
    "top_k",
    "top_of_beams",
    "uniform",
    "unpack",
    "where",
    "zeros",
]
