"""One step of a lazy grammar: the state that a class of symbols leads to.

A state is found in three parts. Its *core* is what the symbol leads to: positions within terminals, and nodes behind
terminals and rules that may end here. Equal cores have the same state, so a core that was met before ends the search.
Otherwise `closure` adds the rules that begin in the core, and makes the state.
"""

from __future__ import annotations

import numpy as np

from ...kernels.arrays import Int, Int64Array
from ...kernels.compiled import kernel
from ...kernels.pointers import array_at
from .closure import close
from .header import (
    AT_CELLS,
    AT_CORE,
    AT_CORE_DATA,
    AT_CORE_SLOTS,
    AT_CORE_START,
    AT_CORE_STATE,
    AT_EDGE_FRAME,
    AT_EDGE_NODE,
    AT_ENDS,
    AT_FRAME_START,
    AT_ITEM_FRAME,
    AT_ITEM_POSITION,
    AT_NODE_FINAL,
    AT_POSITION_NODE,
    AT_POSITION_STATE,
    AT_SEEN,
    AT_SEEN_STAMP,
    AT_STATE_START,
    AT_TRANSITION,
    AT_WORK,
    DEAD,
    FULL,
    MOST_SPENT,
    NEEDED,
    NUM_CLASSES,
    NUM_CORE_WORDS,
    NUM_CORES,
    PAUSE,
    ROOT,
    SPENT,
    STAMP,
    UNKNOWN,
    must_pause,
)
from .sets import find_set, is_new, sort_unique


@kernel
def next_state(header: Int64Array, state: Int, symbol: Int) -> Int:
    """Return the state that a class of symbols leads to from a state, and write its cell.

    If state is -1, return the state of the first `symbol` pairs of a node and a frame in `AT_WORK`.

    Returns DEAD if it leads nowhere, or FULL minus a place: see `header`.
    """
    classes = header[NUM_CLASSES]
    cells = array_at(header[AT_CELLS], header[AT_CELLS + 1], np.int32)
    if state >= 0:
        known = cells[state * classes + symbol]
        if known != UNKNOWN:
            return np.int64(known)
    state_start = array_at(header[AT_STATE_START], header[AT_STATE_START + 1], np.int32)
    core = array_at(header[AT_CORE], header[AT_CORE + 1], np.int64)
    header[STAMP] += 1
    if header[SPENT] > MOST_SPENT:
        return np.int64(FULL - PAUSE)
    header[SPENT] += 8 + (state_start[state + 1] - state_start[state] if state >= 0 else 0)
    todo: Int = symbol
    count: Int = np.int64(1)
    if state >= 0:
        todo, count = _read_symbol(header, state, symbol)
        if todo < 0:
            return todo
    count, accepts = _end_rules(header, todo, count)
    if count < 0:
        return count
    found: Int = np.int64(DEAD)
    if count > 1 or accepts:
        core[0] = accepts
        found = _state_of_core(header, sort_unique(core, np.int64(1), count))
    if state >= 0 and found >= DEAD:
        cells[state * classes + symbol] = found
    return found


@kernel
def _read_symbol(header: Int64Array, state: Int, symbol: Int) -> tuple[Int, Int]:
    """Write what the items of a state read: positions within terminals into the core, nodes behind them into the work.

    Returns how many pairs are in the work, or FULL minus a place, and how many numbers are in the core. The first
    number of the core is left for whether a text may end.
    """
    classes = header[NUM_CLASSES]
    transition = array_at(header[AT_TRANSITION], header[AT_TRANSITION + 1], np.int32)
    ends = array_at(header[AT_ENDS], header[AT_ENDS + 1], np.uint8)
    position_state = array_at(header[AT_POSITION_STATE], header[AT_POSITION_STATE + 1], np.int32)
    position_node = array_at(header[AT_POSITION_NODE], header[AT_POSITION_NODE + 1], np.int32)
    state_start = array_at(header[AT_STATE_START], header[AT_STATE_START + 1], np.int32)
    item_position = array_at(header[AT_ITEM_POSITION], header[AT_ITEM_POSITION + 1], np.int32)
    item_frame = array_at(header[AT_ITEM_FRAME], header[AT_ITEM_FRAME + 1], np.int32)
    work = array_at(header[AT_WORK], header[AT_WORK + 1], np.int64)
    core = array_at(header[AT_CORE], header[AT_CORE + 1], np.int64)
    seen = array_at(header[AT_SEEN], header[AT_SEEN + 1], np.int64)
    stamps = array_at(header[AT_SEEN_STAMP], header[AT_SEEN_STAMP + 1], np.int64)
    stamp, todo, count = header[STAMP], np.int64(0), np.int64(1)
    for x in range(state_start[state], state_start[state + 1]):
        position, frame = np.int64(item_position[x]), np.int64(item_frame[x])
        here = np.int64(position_state[position])
        to = np.int64(transition[here * classes + symbol])
        if to < 0:
            continue
        if count == core.size:
            return np.int64(FULL - AT_CORE), count
        if todo == work.size:
            return np.int64(FULL - AT_WORK), count
        position += to - here
        if ends[to] & 2:
            core[count] = np.int64(1) << 62 | position << 32 | frame
            count += 1
        if ends[to] & 1:
            if 2 * todo >= seen.size:
                return np.int64(FULL - AT_SEEN), count
            pair = np.int64(position_node[position]) << 32 | frame
            if is_new(seen, stamps, stamp, pair):
                work[todo] = pair
                todo += 1
    return todo, count


@kernel
def _end_rules(header: Int64Array, todo: Int, count: Int) -> tuple[Int, Int]:
    """End the rules that may end at the pairs in the work, and add all nodes that go on after them to the core.

    Returns how many numbers are in the core, or FULL minus a place, and whether a text may end.
    """
    node_final = array_at(header[AT_NODE_FINAL], header[AT_NODE_FINAL + 1], np.uint8)
    frame_start = array_at(header[AT_FRAME_START], header[AT_FRAME_START + 1], np.int32)
    edge_node = array_at(header[AT_EDGE_NODE], header[AT_EDGE_NODE + 1], np.int32)
    edge_frame = array_at(header[AT_EDGE_FRAME], header[AT_EDGE_FRAME + 1], np.int32)
    work = array_at(header[AT_WORK], header[AT_WORK + 1], np.int64)
    core = array_at(header[AT_CORE], header[AT_CORE + 1], np.int64)
    seen = array_at(header[AT_SEEN], header[AT_SEEN + 1], np.int64)
    stamps = array_at(header[AT_SEEN_STAMP], header[AT_SEEN_STAMP + 1], np.int64)
    stamp, accepts, done = header[STAMP], np.int64(0), np.int64(0)
    while done < todo:
        pair = work[done]
        done += 1
        if must_pause(header):
            return np.int64(FULL - PAUSE), accepts
        node, frame = pair >> 32, pair & 0xFFFFFFFF
        if node_final[node]:
            header[SPENT] += frame_start[frame + 1] - frame_start[frame]
            if frame == ROOT:
                accepts = np.int64(1)
            for x in range(frame_start[frame], frame_start[frame + 1]):
                if 2 * todo >= seen.size:
                    return np.int64(FULL - AT_SEEN), accepts
                if todo == work.size:
                    return np.int64(FULL - AT_WORK), accepts
                pair = np.int64(edge_node[x]) << 32 | np.int64(edge_frame[x])
                if is_new(seen, stamps, stamp, pair):
                    work[todo] = pair
                    todo += 1
    for x in range(todo):
        if node_final[work[x] >> 32] < 2:
            if count == core.size:
                return np.int64(FULL - AT_CORE), accepts
            core[count] = work[x]
            count += 1
    return count, accepts


@kernel
def _state_of_core(header: Int64Array, count: Int) -> Int:
    """Return the state of the core at hand, of `count` numbers; or FULL minus a place."""
    core = array_at(header[AT_CORE], header[AT_CORE + 1], np.int64)
    core_start = array_at(header[AT_CORE_START], header[AT_CORE_START + 1], np.int32)
    core_data = array_at(header[AT_CORE_DATA], header[AT_CORE_DATA + 1], np.int64)
    core_state = array_at(header[AT_CORE_STATE], header[AT_CORE_STATE + 1], np.int32)
    slots = array_at(header[AT_CORE_SLOTS], header[AT_CORE_SLOTS + 1], np.int32)
    n, slot = find_set(slots, core_start, core_data, core, count)
    if n >= 0:
        return np.int64(core_state[n])
    cores, words = header[NUM_CORES], header[NUM_CORE_WORDS]
    if 2 * (cores + 1) > slots.size:
        return np.int64(FULL - AT_CORE_SLOTS)
    if cores + 2 > core_start.size:
        return np.int64(FULL - AT_CORE_START)
    if cores + 1 > core_state.size:
        return np.int64(FULL - AT_CORE_STATE)
    if words + count > core_data.size:
        header[NEEDED] = words + count
        return np.int64(FULL - AT_CORE_DATA)
    found = close(header, count)
    if found < 0:
        return found
    for k in range(count):
        core_data[words + k] = core[k]
    core_start[cores + 1], core_state[cores] = words + count, found
    slots[slot] = cores
    header[NUM_CORES], header[NUM_CORE_WORDS] = cores + 1, words + count
    return found
