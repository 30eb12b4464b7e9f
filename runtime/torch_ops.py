"""Operations on a table in PyTorch: eager, under `torch.compile`, and inside CUDA graphs.

No function synchronises with the host or has a shape that depends on data. Names and meaning are those of
`numpy_ops`, the specification. This module is a table of contents: each operation is in the file of its concept in
`device/torch`.
"""

from __future__ import annotations

from .device.torch import arrays
from .device.torch.drawing import (
    draw,
)
from .device.torch.operations import (
    accepting,
    advance,
    allowed_tokens,
    bitmask,
    candidates,
    contains,
    distance,
    end_scores,
    first_tokens,
    log_mass,
    log_probs,
    mask_logits,
    mask_logits_,
    select,
    start,
)
from .device.torch.table import (
    TorchTable,
    to_device,
    with_filters,
    with_snapshot,
    with_start_states,
)

__all__ = [
    "TorchTable",
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
