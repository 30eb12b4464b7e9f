"""Operations on a table in PyTorch: eager, under `torch.compile`, and inside CUDA graphs.

No function synchronises with the host or has a shape that depends on data. Names and meaning are those of
`numpy_ops`, the specification. This module is a table of contents: each operation is in the file of its concept in
`device/torch`.
"""

from __future__ import annotations

from .device.torch.arrays import (
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
    running_max,
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
from .device.torch.drawing import (
    draw,
)
from .device.torch.likelihood import (
    log_probs,
)
from .device.torch.masks import (
    allowed_tokens,
    bitmask,
    log_mass,
    mask_logits,
    mask_logits_,
)
from .device.torch.selection import (
    candidates,
    end_scores,
    select,
)
from .device.torch.states import (
    accepting,
    advance,
    contains,
    distance,
    start,
)
from .device.torch.table import (
    TorchTable,
    at,
    filtered,
    first_tokens,
    put,
    refreshed,
)

__all__ = [
    "TorchTable",
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
    "filtered",
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
    "refreshed",
    "running_max",
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
