"""A table of text as a TPU reads it: a record for each state, and lists of tokens in rows of 128 words.

A kernel copies the record of a row's state, which says where the state's lists lie, then those lists. What following a
code needs stands beside each token, so that no list is followed by a gather.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ....table.transition_table import TransitionTable
from ..backend import Array
from ..device_table import DeviceCalls, DeviceTable, arrays_of, device_table, pops_by_symbol, statics_of
from .tpu_layout import LANES

(
    OWN_FIRST, OWN_COUNT,  # entries of `own_rows`
    EXIT_FIRST, EXIT_COUNT, BASE_EXIT_FIRST, BASE_EXIT_COUNT,  # entries of `exit_rows`: the state's own, and its base's
    POPS,  # most frames that an exit can leave: the state's own, and above 16 bits its base's
    MASK,  # the row of `mask_rows` of its base
    ACCEPTING,
    PUSH,  # the site that its base lies on, or -1
    PUSH_FRAMES, PUSH_ROOM, PUSH_DISTANCE,  # of that site
    CLASSES,  # the row of `class_rows` of its base, -1 if its classes need nothing that may be missing
    CLASS_ROOM, CLASS_DISTANCE,  # the most that any of these classes needs
) = range(16)  # fmt: skip
"""The words of a state's record."""

RECORD = 16  # words

FEWEST_BLOCKS = 3
"""Rows of 128 entries that a kernel copies of each list ahead; behind the last entry there are as many."""

MOST_ROOM = 0x7FFF
"""Frames that never fit: the depth of a table must be below."""

MOST_TOKENS = 1 << 19
MOST_SYMBOLS = 8 * LANES
MOST_POPS = 128  # frames that one token leaves
MOST_SITES = 1 << 16  # whose bits and distances lie in SMEM
MOST_SLOTS = 1 << 10
MOST_BYTES = 1 << 28
"""Memory that a table's rows for kernels may take; of larger ones the arrays of every device are read."""

_TOKENS_PER_ROW = 32 * LANES
_SUBLANES = 8


@dataclass(frozen=True, eq=False)
class TpuTextTable(DeviceTable):
    """A graph or a nested table as a TPU holds it: a `DeviceTable`, and the same in int32 rows of 128 words.

    Of `own_rows` F rows belong together, for 128 edges: their tokens, what the codes need that they lead to (see
    `needs_of`), and the distances of those where distances were put. Of `exit_rows` two: tokens and symbols. A site has
    rows of 128 symbols: what the code needs that a symbol leads to, or -1 - y where symbol y leaves the next frame, and
    then rows of distances. A state has in `class_rows` how many classes its base has, the row of `class_masks` of class
    1, how many frames each class needs, and their distances. Masks are R rows of 128 words, R a multiple of 8.
    """

    states: Array  # (ceil((S + 2) / 8), 1, 128) records of 16 words
    mask_rows: Array  # (U + 1, R, 128) the last allows nothing
    own_rows: Array  # (n * F, 1, 128)
    exit_rows: Array  # (n * 2, 1, 128)
    site_rows: Array  # ((K + 1) * ceil(Y / 128) * (F - 1), 1, 128)
    site_bits: Array  # (ceil((K + 1) / 32),) which sites are no leaves
    class_rows: Array  # (n * class_blocks, 1, 128)
    class_masks: Array  # (classes of all lists but class 0, R, 128)
    class_blocks: int  # rows of 128 words that a state has in `class_rows`


class _Lists(NamedTuple):
    """Lists of entries, packed into blocks of 128 so that few of them lie in more blocks than they must."""

    at: NDArray[np.int64]  # where each entry goes
    first: NDArray[np.int64]  # of each list
    blocks: int


def text_table(table: TransitionTable, convert: Callable[[NDArray[Any]], Any], distances: bool) -> DeviceTable:
    """Lay a graph or a nested table out for a TPU; each array goes through `convert`.

    distances: with the distances for `remaining`. A table that kernels do not take, see `_takes`, is a `DeviceTable`.
    """
    plain = device_table(table, lambda array: array, DeviceTable, distances)
    rows = _rows_of(plain, table) if _takes(plain) else None
    if rows is None:
        return device_table(table, convert, DeviceTable, distances)
    class_blocks = int(rows["class_rows"].shape[1])
    rows["class_rows"] = rows["class_rows"].reshape(-1, 1, LANES)
    calls = plain.calls
    if calls is not None:
        arrays = {name: convert(getattr(calls, name)) for name in arrays_of(DeviceCalls)}
        calls = DeviceCalls(**arrays, **{name: getattr(calls, name) for name in statics_of(DeviceCalls)})
    return TpuTextTable(
        **{name: convert(getattr(plain, name)) for name in arrays_of(DeviceTable)},
        **{name: getattr(plain, name) for name in statics_of(DeviceTable)},
        **{name: convert(array) for name, array in rows.items()},
        calls=calls,
        class_blocks=class_blocks,
    )


def _takes(dev: DeviceTable) -> bool:
    """Return whether kernels take a table: a graph or a nested table within the sizes above."""
    calls = dev.calls
    if dev.is_trie or not 0 < dev.vocab_size <= MOST_TOKENS:
        return False
    if calls is None:
        return True
    sites: int = calls.site_frames.shape[0]
    small = sites <= MOST_SITES and 8 * sites * symbols_wide(calls) <= MOST_BYTES
    narrow = calls.symbols <= MOST_SYMBOLS and 0 < calls.pops <= MOST_POPS
    return small and narrow and calls.slots <= MOST_SLOTS and calls.depth < MOST_ROOM


def symbols_wide(calls: DeviceCalls) -> int:
    """Return how many symbols a site has room for in its rows: whole rows of 128."""
    return -(-max(calls.symbols, 1) // LANES) * LANES


def has_distances(dev: DeviceTable) -> bool:
    """Return whether distances stand beside tokens: they were put, and no ends are told apart."""
    put: bool = dev.distance.shape[0] > 0
    return put and dev.distance.ndim == 1


def mask_height(vocab_size: int) -> int:
    """Return how many rows of 128 words a mask has."""
    return -(-vocab_size // (_TOKENS_PER_ROW * _SUBLANES)) * _SUBLANES


def _rows_of(dev: DeviceTable, table: TransitionTable) -> dict[str, NDArray[Any]] | None:
    """Return the arrays that a `TpuTextTable` has besides; None where they take more than MOST_BYTES."""
    records = np.zeros((dev.num_states, RECORD), np.int64)
    records[:, PUSH] = records[:, CLASSES] = -1
    records[: dev.num_rows, ACCEPTING] = dev.accepting
    records[dev.after_eos, ACCEPTING] = 1
    rows: dict[str, NDArray[Any]] = {}
    rows["own_rows"] = _own_rows(dev, records)
    base = _looked_up(dev.base_row, np.arange(dev.num_states), 0)
    records[:, MASK] = dev.base_mask[base]
    rows |= _call_rows(dev, table, base, records)
    masks = _masks_of(dev)
    classes = _class_rows(dev, base, records, masks, sum(array.nbytes for array in rows.values()) + masks.nbytes)
    if classes is None:
        return None
    rows |= classes
    rows["mask_rows"] = masks
    states = np.zeros((-(-dev.num_states * RECORD // LANES), 1, LANES), np.int32)
    states.reshape(-1)[: records.size] = records.reshape(-1)
    rows["states"] = states
    return rows if sum(array.nbytes for array in rows.values()) <= MOST_BYTES else None


def needs_of(dev: DeviceTable, code: NDArray[Any]) -> NDArray[np.int32]:
    """Return what must be free for codes to be followed: frames << 16 | slots.

    The dead state needs MOST_ROOM frames, which are never free.
    """
    room, pushed = np.zeros(code.shape, np.int64), np.zeros(code.shape, np.int64)
    if dev.calls is not None:
        action = np.maximum(code - dev.dead, 0)
        room = dev.calls.action_room[action].astype(np.int64)
        if dev.calls.state_room.shape[0]:
            room = np.maximum(room, dev.calls.state_room[np.minimum(code, dev.dead)])
        pushed = dev.calls.action_start[action + 1] - dev.calls.action_start[action]
    room = np.where(code == dev.dead, MOST_ROOM, np.minimum(room, MOST_ROOM))
    needs: NDArray[np.int32] = (room << 16 | np.minimum(pushed, MOST_ROOM)).astype(np.int32)
    return needs


def packed(counts: NDArray[Any]) -> _Lists:
    """Return where entries of lists go, the lists one behind the other.

    A list begins in a new block if it would lie in one block more where the last one ends.
    """
    first, end = np.zeros(counts.size, np.int64), 0
    for i, count in enumerate(counts.tolist()):
        lane = end % LANES
        if lane and -(-(lane + count) // LANES) > -(-count // LANES):
            end += LANES - lane
        first[i], end = end, end + count
    within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    return _Lists(np.repeat(first, counts) + within, first, -(-end // LANES) + FEWEST_BLOCKS)


def _interleaved(lists: _Lists, *fields: NDArray[Any]) -> NDArray[np.int32]:
    """Return fields of entries as rows of 128 words: those of a block one behind the other."""
    out = np.zeros((len(fields), lists.blocks * LANES), np.int32)
    for row, field in zip(out, fields, strict=True):
        row[lists.at] = field
    return np.ascontiguousarray(out.reshape(len(fields), lists.blocks, LANES).swapaxes(0, 1)).reshape(-1, 1, LANES)


def _own_rows(dev: DeviceTable, records: NDArray[np.int64]) -> NDArray[np.int32]:
    counts = np.diff(dev.row_start)
    lists, edges = packed(counts), int(counts.sum())
    records[: dev.num_rows, OWN_FIRST], records[: dev.num_rows, OWN_COUNT] = lists.first, counts
    target = dev.edge_target[:edges]
    fields = [dev.edge_token[:edges], needs_of(dev, target)]
    return _interleaved(lists, *fields, *([dev.distance[target]] if has_distances(dev) else []))


def _call_rows(
    dev: DeviceTable, table: TransitionTable, base: NDArray[Any], records: NDArray[np.int64]
) -> dict[str, NDArray[Any]]:
    """Return the rows of exits and sites; of a table without calls there is nothing in them."""
    calls, counted = dev.calls, has_distances(dev)
    if calls is None:
        nothing = np.zeros((2 * FEWEST_BLOCKS, 1, LANES), np.int32)
        return {"exit_rows": nothing, "site_rows": nothing, "site_bits": np.zeros(1, np.int32)}
    counts = np.diff(calls.exit_start[:-1])
    exits = int(counts.sum())
    lists = packed(counts)
    pops = pops_by_symbol(table)
    most = np.zeros(counts.size + 1, np.int64)  # by list; the last is the empty one
    np.maximum.at(most, np.repeat(np.arange(counts.size), counts), pops[calls.exit_symbol[:exits]])
    first, counts = np.append(lists.first, 0), np.append(counts, 0)
    own = _looked_up(calls.row_exit, np.arange(dev.num_states), counts.size - 1)
    of_base = _looked_up(calls.base_exit, base, counts.size - 1)
    records[:, EXIT_FIRST], records[:, EXIT_COUNT] = first[own], counts[own]
    records[:, BASE_EXIT_FIRST], records[:, BASE_EXIT_COUNT] = first[of_base], counts[of_base]
    records[:, POPS] = most[own] | most[of_base] << 16
    push = _looked_up(calls.base_push, np.arange(dev.num_states), -1)
    records[:, PUSH] = push
    records[:, PUSH_FRAMES] = calls.site_frames[push]
    records[:, PUSH_ROOM] = np.minimum(calls.site_room[push], MOST_ROOM)
    if counted:
        records[:, PUSH_DISTANCE] = calls.site_distance[push]
    width = symbols_wide(calls)
    sites = calls.site_frames.shape[0]
    target = np.full((sites, width), dev.dead, np.int64)
    target[np.repeat(np.arange(sites - 1), np.diff(table.sites.start)), table.sites.symbol] = table.sites.target
    code = np.maximum(target, 0)
    planes = [np.where(target < 0, target, needs_of(dev, code))]
    if counted:
        planes.append(dev.distance[code])
    bits = np.zeros(-(-sites // 32) * 32, np.uint8)
    bits[:sites] = calls.site_frames != 0
    return {
        "exit_rows": _interleaved(lists, calls.exit_token[:exits], calls.exit_symbol[:exits]),
        "site_rows": np.stack(planes, axis=1).astype(np.int32).reshape(-1, 1, LANES),
        "site_bits": np.packbits(bits, bitorder="little").view("<i4").astype(np.int32),
    }


def _looked_up(array: NDArray[Any], at: NDArray[Any], otherwise: int) -> NDArray[np.int64]:
    """Return array[at], as far as it goes, else its last entry; `otherwise` where it has none."""
    if not array.shape[0]:
        return np.full(at.shape, otherwise, np.int64)
    return np.asarray(array[np.minimum(at, array.shape[0] - 1)], np.int64)


def _masks_of(dev: DeviceTable) -> NDArray[np.int32]:
    """Return the masks in rows of 128 words."""
    words = dev.masks.view("<i4")
    masks = np.zeros((words.shape[0], mask_height(dev.vocab_size) * LANES), np.int32)
    masks[:, : words.shape[1]] = words
    return masks.reshape(words.shape[0], -1, LANES)


def _class_rows(
    dev: DeviceTable, base: NDArray[Any], records: NDArray[np.int64], masks: NDArray[np.int32], used: int
) -> dict[str, NDArray[Any]] | None:
    """Return what the classes of bases need, where states may have no room for them or be too far from an end.

    None if that takes too much memory, of which so much is used.
    """
    counted, height = has_distances(dev), masks.shape[1]
    limited = counted or (dev.calls is not None and dev.calls.state_room.shape[0] > 0)
    starts = dev.class_start[:-1]  # without the empty list
    counts = np.array(
        [dev.class_id[low:high].max(initial=0) + 1 for low, high in itertools.pairwise(starts.tolist())], np.int64
    )
    first = np.append(0, np.cumsum(counts - 1))  # of each list's masks: there is none of class 0
    if not limited or used + int(first[-1]) * height * LANES * 4 > MOST_BYTES:
        nothing = {"class_rows": np.zeros((1, 1, LANES)), "class_masks": np.zeros((1, height, LANES))}
        return None if limited else {name: array.astype(np.int32) for name, array in nothing.items()}
    members = _class_masks(dev, first, height)
    size = -(-(2 + (2 if counted else 1) * int(counts.max(initial=1))) // LANES) * LANES
    found: list[NDArray[np.int64]] = []
    for r in range(dev.base_mask.shape[0] - 1):
        states = np.flatnonzero(base == r)
        if not states.size:
            continue
        of, mask = int(dev.base_classes[r]), masks[dev.base_mask[r]]
        count = int(counts[of])
        named = members[first[of] : first[of + 1]]
        has_tokens = np.append((mask & ~np.bitwise_or.reduce(named, axis=0)).any(), (named & mask).any(axis=(1, 2)))
        code = dev.base_target[dev.base_start[r] :][:count].astype(np.int64)
        target = np.clip((code >> 1) + (code & 1) * states[:, None], 0, dev.dead)
        planes = [needs_of(dev, target) >> 16, *([dev.distance[target]] if counted else [])]
        for plane, word in zip(planes, (CLASS_ROOM, CLASS_DISTANCE), strict=False):
            records[states, word] = plane.max(axis=1, initial=0, where=has_tokens)
        numbers = np.broadcast_to([count, first[of]], (states.size, 2))
        rows, which = np.unique(np.concatenate([numbers, *planes], axis=1), axis=0, return_inverse=True)
        records[states, CLASSES] = sum(map(len, found)) + which.reshape(-1)
        found.append(np.pad(rows, ((0, 0), (0, size - rows.shape[1]))))
        used += size * 4 * len(rows)
        if used > MOST_BYTES:
            return None
    rows = np.concatenate(found) if found else np.zeros((1, size), np.int64)
    return {"class_rows": rows.astype(np.int32).reshape(len(rows), -1, LANES), "class_masks": members}


def _class_masks(dev: DeviceTable, first: NDArray[np.int64], height: int) -> NDArray[np.int32]:
    """Return the tokens of each class but class 0 of each list, as masks: one all zeros where there are none."""
    entries = int(dev.class_start[-1])
    lists = np.repeat(np.arange(first.size - 1), np.diff(dev.class_start[:-1]))
    name, token = dev.class_id[:entries], dev.class_token[:entries].astype(np.int64)
    row = first[lists] + name - 1
    named = name > 0
    words = np.zeros((max(int(first[-1]), 1), height * LANES), np.uint32)
    np.bitwise_or.at(words, (row[named], token[named] >> 5), np.uint32(1) << (token[named] & 31).astype(np.uint32))
    return words.view(np.int32).reshape(len(words), height, LANES)
