"""The arrays of an arena as they are on a device, of shapes that never change."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ..device.device_matrix import Origin
from ..device.device_table import (
    CALL_ARRAYS,
    DEVICE_NAMES,
    MOST_FRAMES,
    DeviceCalls,
    DeviceTable,
    Made,
)
from .arrays import CODE_FRAMES, DISTANCES, ArenaArrays, Change

_BY_ENDS = {
    "code_distance": "distance", "site_distance": "end_distance", "code_room": "distance_room",
    "site_room": "site_distance_room",
}  # fmt: skip
_COPIED = (*(name for name in DEVICE_NAMES if name != "rows.frames_required"), CODE_FRAMES)


class Mirror(Protocol):
    """A copy of an arena's arrays on a device."""

    def read(self) -> DeviceTable:
        """Return what operations take, as it is now, for work that the calling thread gives the device from here on."""

    def write(self, changes: list[tuple[str, int, NDArray[Any]]]) -> None:
        """Write values over part of each array: its name, where the part begins, what to write."""


def by_ends(held: ArenaArrays) -> frozenset[str]:
    """Return arrays on a device whose axis along which tables come in is to be the last: see `device_arrays`."""
    return frozenset(_BY_ENDS.values()) if held.budgets and held.capacity.ends > 1 else frozenset()


def on_device(held: ArenaArrays, change: Change) -> Iterator[tuple[str, int, NDArray[Any]]]:
    """Yield what a part of one of the arena's arrays is on a device: (array, where it begins, values)."""
    cap, (name, start, stop) = held.capacity, change
    part = held.by_name[name][start:stop]
    if name == CODE_FRAMES:
        before = max(0, cap.states + 2 - start)  # states, then actions
        if before:
            yield "state_room", start, part[:before]
        if len(part) > before:
            yield "action_room", start + before - cap.states - 1, part[before:]
        return
    if name in DISTANCES:
        last = part.astype(np.int32) if not name.endswith("room") else part.clip(max=MOST_FRAMES).astype(np.int32)
        if cap.ends == 1:
            yield {"code_distance": "distance"}.get(name, name), start, last.reshape(len(last))
        else:
            yield _BY_ENDS[name], start, last
        return
    device = DEVICE_NAMES[name]
    if name == "bases.masks":
        size = 8 * -(-held.view.vocab_size // 64)
        out = np.zeros((stop - start, size), np.uint8)
        words = np.ascontiguousarray(part, "<u4").view(np.uint8)
        out[:, : words.shape[1]] = words[:, :size]
        yield device, start, out
    elif name in ("exits.of_row", "exits.of_base"):
        yield device, start, np.where(part < 0, 2 * cap.lists, part)
    elif name == "rows.base":
        yield device, start, np.where(part < 0, cap.bases, part)
    elif name == "sites.is_leaf":
        yield device, start, (~part).astype(np.int32)
    elif name in ("actions.state", "actions.push_start"):
        if name == "actions.push_start" and start == 0:  # no action is read as one before all, without pushes
            yield device, 0, part[:1]
        yield device, start + 1, part
    else:
        yield device, start, part


def device_arrays(held: ArenaArrays) -> dict[str, NDArray[Any]]:
    """Return all arrays as they are on a device now.

    Where ends are told apart, the axis along which tables come in is the first, as `Mirror.write` has it.
    """
    out = _empty(held)
    distances = tuple(DISTANCES)[: 4 if held.capacity.ends > 1 else 2] if held.budgets else ()
    for name in _COPIED + distances:
        for device, start, values in on_device(held, Change(name, 0, len(held.by_name[name]))):
            out[device][start : start + len(values)] = values
    return out


def _empty(held: ArenaArrays) -> dict[str, NDArray[Any]]:
    """Return arrays as they are on a device where there is no table."""
    cap, table = held.capacity, held.view
    size, kind, lists = table.vocab_size, table.edges.token.dtype, 2 * cap.lists

    def room(count: int) -> NDArray[np.int32]:
        return np.zeros(count, np.int32)

    out: dict[str, NDArray[Any]] = {
        "row_start": room(cap.states + 1), "edge_token": np.full(cap.edges + 2 + cap.row_width, size, kind),
        "edge_target": room(cap.edges), "accepting": np.zeros(cap.states, np.bool_),
        "base_row": np.full(cap.states + 1, cap.bases, np.int32),
        "masks": np.zeros((cap.masks + 1, 8 * -(-size // 64)), np.uint8), "rank": np.zeros((1, 1), np.int32),
        "base_mask": np.full(cap.bases + 1, cap.masks, np.int32),
        "base_classes": np.full(cap.bases + 1, lists, np.int32), "base_start": room(cap.bases + 1),
        "base_target": room(cap.base_targets + 1), "class_start": room(lists + 2),
        "class_token": np.full(cap.classes + cap.class_width + 1, size, kind),
        "class_id": room(cap.classes + cap.class_width + 1), "distance": room(0), "starts": room(0),
        "row_exit": np.full(cap.states + 1, lists, np.int32),
        "base_exit": np.full(cap.bases + 1, lists, np.int32), "exit_start": room(lists + 2),
        "exit_token": np.zeros(cap.exits + cap.exit_width + 1, kind),
        "exit_symbol": room(cap.exits + cap.exit_width + 1), "base_push": np.full(cap.states + 1, -1, np.int32),
        "site_start": room(cap.sites + 2), "site_symbol": room(cap.site_entries + 1),
        "site_target": np.full(cap.site_entries + 1, table.dead, np.int32), "site_frames": room(cap.sites + 1),
        "site_room": room(cap.sites + 1), "site_distance": room(0), "end_distance": room(0),
        "distance_room": room(0), "site_distance_room": room(0), "action_state": room(cap.actions + 1),
        "action_start": room(cap.actions + 2), "action_push": room(cap.pushes),
        "action_room": room(cap.actions + 1), "state_room": room(cap.states + 2),
    }  # fmt: skip
    if held.budgets:
        codes, ends = cap.states + 2 + cap.actions, cap.ends
        if ends == 1:
            out |= {"distance": room(codes), "site_distance": room(cap.sites + 1)}
        else:
            out |= {
                "distance": np.zeros((codes, ends), np.int32),
                "end_distance": np.zeros((cap.sites + 1, ends, ends), np.int32),
                "distance_room": np.zeros((codes, ends), np.int32),
                "site_distance_room": np.zeros((cap.sites + 1, ends, ends), np.int32),
            }
    return out


def device_table_of(
    held: ArenaArrays, convert: Callable[[str, NDArray[Any]], Any], kind: type[Made], host: bool, **more: NDArray[Any]
) -> Made:
    """Return the arena as a `kind` of device table; each array goes through convert(name, array).

    host: operations may run on the host.
    """
    cap, table = held.capacity, held.view
    arrays = {name: convert(name, array) for name, array in {**device_arrays(held), **more}.items()}
    calls = DeviceCalls(
        **{name: arrays.pop(name) for name in CALL_ARRAYS}, depth=cap.depth, slots=cap.depth + 1,
        symbols=cap.symbols, exit_width=cap.exit_width, site_width=cap.site_width, pops=cap.pops,
    )  # fmt: skip
    return kind(
        **arrays, calls=calls, vocab_size=table.vocab_size, num_rows=cap.states, num_edges=cap.edges,
        num_states=cap.states + 2, eos=table.eos, other_ends=table.other_ends, fixed_length=None, min_length=0,
        max_length=None, levels=(),
        sparse_width=cap.row_width, class_width=cap.class_width, has_masks=True, is_trie=False,
        start_accepting=True, host=table if host else None, arena=table.number,
        origin=Origin(None),
    )  # fmt: skip
