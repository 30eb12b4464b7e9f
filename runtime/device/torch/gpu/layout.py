"""A device table as one argument of a Triton kernel: an array of 64-bit numbers, where each array lies and its sizes.

A kernel reads what it needs of it. Each name below is an index into that array; `header_of` makes one from a table.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import triton.language as tl
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from ...device_table import CALL_ARRAYS, arrays_of
from ..table import TorchTable

(
    # addresses of the arrays of a table
    ROW_START, EDGE_TOKEN, EDGE_TARGET, ACCEPTING, BASE_ROW, MASKS, RANK, BASE_MASK, BASE_CLASSES, BASE_START,
    BASE_TARGET, CLASS_START, CLASS_TOKEN, CLASS_ID, DISTANCE,
    # addresses of what a nested table has besides, 0 of another
    ROW_EXIT, BASE_EXIT, EXIT_START, EXIT_TOKEN, EXIT_SYMBOL, BASE_PUSH, SITE_START, SITE_SYMBOL, SITE_TARGET,
    SITE_FRAMES, SITE_ROOM, SITE_DISTANCE, END_DISTANCE, DISTANCE_ROOM, SITE_DISTANCE_ROOM, ACTION_STATE, ACTION_START,
    ACTION_PUSH, ACTION_ROOM, STATE_ROOM,
    # sizes
    VOCAB_SIZE, NUM_ROWS, NUM_EDGES, NUM_STATES, EOS, BASES, MASK_WORDS, NO_BASE, DEPTH, SLOTS,
    SYMBOLS,
    SITE_WIDTH, POPS,
    # lengths of arrays that hold nothing where a table has no such thing; ends of what lies below a site
    ROW_EXITS, BASE_EXITS, BASE_PUSHES, STATE_ROOMS, DISTANCE_ROOMS, OTHERS,
    # steps between the numbers of distances that tell ends apart: by end and code; by end, other end and site
    END_STEP, CODE_STEP, ROOM_END_STEP, ROOM_CODE_STEP, SITE_END_STEP, SITE_OTHER_STEP, SITE_STEP, SITE_ROOM_END_STEP,
    SITE_ROOM_OTHER_STEP, SITE_ROOM_STEP,
) = map(tl.constexpr, range(64))  # fmt: skip

NAMES = tuple(name for name, value in list(globals().items()) if isinstance(value, tl.constexpr))
"""What each number is, in their order."""

_ARRAYS = {name.upper(): name for name in arrays_of(TorchTable)}
_OF_CALLS = {name.upper(): name for name in CALL_ARRAYS}


def _steps(dimension: int, array: str, *, calls: bool) -> Callable[[TorchTable], int]:
    """Return a function that says how far the numbers of an array lie apart along a dimension, 0 if it has not that."""

    def step(dev: TorchTable) -> int:
        found: Tensor = getattr(dev.calls if calls else dev, array)
        return found.stride(dimension) if found.ndim > max(dimension, 1) else 0

    return step


def _of_calls(read: Callable[[Any], int]) -> Callable[[TorchTable], int]:
    return lambda dev: 0 if dev.calls is None else read(dev.calls)


def _if_nested(read: Callable[[TorchTable], int]) -> Callable[[TorchTable], int]:
    return lambda dev: 0 if dev.calls is None else read(dev)


_NUMBERS: dict[str, Callable[[TorchTable], int]] = {
    "VOCAB_SIZE": lambda dev: dev.vocab_size,
    "NUM_ROWS": lambda dev: dev.num_rows,
    "NUM_EDGES": lambda dev: dev.num_edges,
    "NUM_STATES": lambda dev: dev.num_states,
    "EOS": lambda dev: -1 if dev.eos is None else dev.eos,
    "BASES": lambda dev: dev.base_row.shape[0],
    "MASK_WORDS": lambda dev: dev.masks.shape[1] // 4,
    "NO_BASE": lambda dev: dev.base_mask.shape[0] - 1,
    "DEPTH": _of_calls(lambda calls: calls.depth),
    "SLOTS": _of_calls(lambda calls: calls.slots),
    "SYMBOLS": _of_calls(lambda calls: calls.symbols),
    "SITE_WIDTH": _of_calls(lambda calls: calls.site_width),
    "POPS": _of_calls(lambda calls: calls.pops),
    "ROW_EXITS": _of_calls(lambda calls: calls.row_exit.shape[0]),
    "BASE_EXITS": _of_calls(lambda calls: calls.base_exit.shape[0]),
    "BASE_PUSHES": _of_calls(lambda calls: calls.base_push.shape[0]),
    "STATE_ROOMS": _of_calls(lambda calls: calls.state_room.shape[0]),
    "DISTANCE_ROOMS": _of_calls(lambda calls: calls.distance_room.shape[0]),
    "OTHERS": _of_calls(lambda calls: calls.end_distance.shape[1] if calls.end_distance.ndim > 1 else 1),
    "END_STEP": _steps(0, "distance", calls=False),
    "CODE_STEP": _steps(1, "distance", calls=False),
    "ROOM_END_STEP": _if_nested(_steps(0, "distance_room", calls=True)),
    "ROOM_CODE_STEP": _if_nested(_steps(1, "distance_room", calls=True)),
    "SITE_END_STEP": _if_nested(_steps(0, "end_distance", calls=True)),
    "SITE_OTHER_STEP": _if_nested(_steps(1, "end_distance", calls=True)),
    "SITE_STEP": _if_nested(_steps(2, "end_distance", calls=True)),
    "SITE_ROOM_END_STEP": _if_nested(_steps(0, "site_distance_room", calls=True)),
    "SITE_ROOM_OTHER_STEP": _if_nested(_steps(1, "site_distance_room", calls=True)),
    "SITE_ROOM_STEP": _if_nested(_steps(2, "site_distance_room", calls=True)),
}

_headers: Any = WeakTensorKeyDictionary()  # by an array that all views of a table share


def header_of(dev: TorchTable) -> Tensor:
    """Return the header of a table, int64 on its device, made at the first call: that must not be in a CUDA graph."""
    found: Tensor | None = _headers.get(dev.row_start)
    if found is None:
        numbers = [_number(dev, name) for name in NAMES]
        found = _headers[dev.row_start] = torch.tensor(numbers, dtype=torch.int64, device=dev.row_start.device)
    return found


def _number(dev: TorchTable, name: str) -> int:
    if name in _NUMBERS:
        return _NUMBERS[name](dev)
    if name in _ARRAYS:
        array: Tensor = getattr(dev, _ARRAYS[name])
        return array.data_ptr()
    return 0 if dev.calls is None else int(getattr(dev.calls, _OF_CALLS[name]).data_ptr())
