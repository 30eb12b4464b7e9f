"""The closure of a core: the rules that begin in it, the frames that wait for them, and the state that results.

`close` works in three passes. `_begin_rules` finds the rules that are called, and lists who calls each. `_make_frames`
gives each of these rules a frame: an existing one, if the same callers wait in it. `_find_state` makes the state of all
positions, or finds an equal one.

Frames are made callers first. Rules that wait for each other form a *group*, and their frames are made together. A rule
that ends where its caller ends needs no frame of its own: it has the edges of its caller's frame.
"""

from __future__ import annotations

import numpy as np

from ...kernels.arrays import Int, Int64Array
from ...kernels.compiled import kernel
from ...kernels.pointers import array_at
from .header import (
    AT_ACCEPTS,
    AT_ACTIVE,
    AT_BUFFER,
    AT_CALL_NODE,
    AT_CALL_RULE,
    AT_CALL_START,
    AT_CELLS,
    AT_CORE,
    AT_EDGE_FRAME,
    AT_EDGE_NODE,
    AT_ENTRY,
    AT_FRAME_START,
    AT_GROUP_DATA,
    AT_GROUP_FRAME,
    AT_GROUP_SLOTS,
    AT_GROUP_START,
    AT_HEAD,
    AT_ITEM_FRAME,
    AT_ITEM_POSITION,
    AT_LINK,
    AT_LOCAL_OF,
    AT_LOOPS,
    AT_NODE_FINAL,
    AT_PATH,
    AT_RULE_GROUP,
    AT_RULE_NODE,
    AT_RULES,
    AT_SCAN,
    AT_STATE_SLOTS,
    AT_STATE_START,
    AT_TERMINAL,
    AT_TERMINAL_START,
    AT_VISITED,
    AT_WORK,
    BIAS,
    FULL,
    LOCAL,
    NEEDED,
    NUM_CLASSES,
    NUM_EDGES,
    NUM_FRAMES,
    NUM_GROUP_WORDS,
    NUM_GROUPS,
    NUM_ITEMS,
    NUM_STATES,
    PAUSE,
    ROOT,
    SPENT,
    STAMP,
    must_pause,
)
from .sets import find_set, hash_of, sort_unique


@kernel
def close(header: Int64Array, count: Int) -> Int:
    """Return the state of the core at hand, of `count` numbers, or FULL minus a place."""
    scans, begun = _begin_rules(header, count)
    if scans < 0:
        return scans
    full = _make_frames(header, begun)
    if full < 0:
        return full
    local_of = array_at(header[AT_LOCAL_OF], header[AT_LOCAL_OF + 1], np.int64)
    scan = array_at(header[AT_SCAN], header[AT_SCAN + 1], np.int64)
    for k in range(scans):
        frame = scan[k] & 0xFFFFFFFF
        if frame >= LOCAL:
            scan[k] = scan[k] >> 32 << 32 | local_of[frame - LOCAL]
    return _find_state(header, sort_unique(scan, np.int64(0), scans))


@kernel
def _begin_rules(header: Int64Array, count: Int) -> tuple[Int, Int]:
    """Write the items of the state into `AT_SCAN`, the rules that begin into `AT_RULES`, and who calls each.

    Returns how many items these are, or FULL minus a place, and how many rules. Callers of a rule are in a list: `head`
    has the last entry of the rule, `link` the one before each.
    """
    terminal_start = array_at(header[AT_TERMINAL_START], header[AT_TERMINAL_START + 1], np.int32)
    terminal = array_at(header[AT_TERMINAL], header[AT_TERMINAL + 1], np.int32)
    call_start = array_at(header[AT_CALL_START], header[AT_CALL_START + 1], np.int32)
    call_rule = array_at(header[AT_CALL_RULE], header[AT_CALL_RULE + 1], np.int32)
    call_node = array_at(header[AT_CALL_NODE], header[AT_CALL_NODE + 1], np.int32)
    rule_node = array_at(header[AT_RULE_NODE], header[AT_RULE_NODE + 1], np.int32)
    core = array_at(header[AT_CORE], header[AT_CORE + 1], np.int64)
    work = array_at(header[AT_WORK], header[AT_WORK + 1], np.int64)
    scan = array_at(header[AT_SCAN], header[AT_SCAN + 1], np.int64)
    entry = array_at(header[AT_ENTRY], header[AT_ENTRY + 1], np.int64)
    link = array_at(header[AT_LINK], header[AT_LINK + 1], np.int64)
    head = array_at(header[AT_HEAD], header[AT_HEAD + 1], np.int64)
    active = array_at(header[AT_ACTIVE], header[AT_ACTIVE + 1], np.int64)
    rules = array_at(header[AT_RULES], header[AT_RULES + 1], np.int64)
    header[STAMP] += 1
    stamp = header[STAMP]
    scans, todo, entries, begun = np.int64(0), np.int64(0), np.int64(0), np.int64(0)
    if count + 1 > scan.size:
        return np.int64(FULL - AT_SCAN), begun
    if count + rule_node.size > work.size:
        return np.int64(FULL - AT_WORK), begun
    for k in range(1, count):
        if core[k] >> 62:
            scan[scans] = core[k] & ~(np.int64(1) << 62)
            scans += 1
        else:
            work[todo] = core[k]
            todo += 1
    done = np.int64(0)
    while done < todo:
        node, frame = work[done] >> 32, work[done] & 0xFFFFFFFF
        done += 1
        if scans + terminal_start[node + 1] - terminal_start[node] > scan.size:
            return np.int64(FULL - AT_SCAN), begun
        for x in range(terminal_start[node], terminal_start[node + 1]):
            scan[scans] = np.int64(terminal[x]) << 32 | frame
            scans += 1
        for x in range(call_start[node], call_start[node + 1]):
            rule = np.int64(call_rule[x])
            if entries == entry.size:
                return np.int64(FULL - AT_ENTRY), begun
            if entries == link.size:
                return np.int64(FULL - AT_LINK), begun
            if active[rule] != stamp:
                active[rule], head[rule] = stamp, -1
                rules[begun] = rule
                begun += 1
                work[todo] = np.int64(rule_node[rule]) << 32 | (LOCAL + rule)  # it fits: once for each rule
                todo += 1
            entry[entries], link[entries] = np.int64(call_node[x]) << 32 | frame, head[rule]
            head[rule] = entries
            entries += 1
    header[SPENT] += scans + entries
    return scans, begun


@kernel
def _make_frames(header: Int64Array, begun: Int) -> Int:
    """Write the frame of each rule that begins into `AT_LOCAL_OF`; return 0, or FULL minus a place."""
    rule_group = array_at(header[AT_RULE_GROUP], header[AT_RULE_GROUP + 1], np.int32)
    rules = array_at(header[AT_RULES], header[AT_RULES + 1], np.int64)
    local_of = array_at(header[AT_LOCAL_OF], header[AT_LOCAL_OF + 1], np.int64)
    buffer = array_at(header[AT_BUFFER], header[AT_BUFFER + 1], np.int64)
    sort_unique(rules, np.int64(0), begun)  # callers first
    low: Int = np.int64(0)
    while low < begun:
        group = rule_group[rules[low]]
        high = low + 1
        while high < begun and rule_group[rules[high]] == group:
            high += 1
        loops = False
        used: Int = np.int64(0)
        for member in range(low, high):
            used, waits = _write_edges(header, rules[member], used)
            if used < 0:
                return used
            loops = loops or waits
        at: Int = np.int64(0)
        m: Int = low
        while m < high:
            stop, members = used, high - m
            if not loops:  # no rule waits for another one of them: each is a group of its own
                stop, members = at + 2 + buffer[at + 1], np.int64(1)
                buffer[at] = -1
            frame = _find_frames(header, at, stop, m, members)
            if frame < 0:
                return frame
            for k in range(members):
                local_of[rules[m + k]] = frame + k
            at, m = stop, m + members
        low = high
    return np.int64(0)


@kernel
def _write_edges(header: Int64Array, rule: Int, used: Int) -> tuple[Int, bool]:
    """Write the rule, how many edges its frame has, and these into `AT_BUFFER`, from `used` on.

    An edge to a frame is a node and the frame plus BIAS. An edge to the frame of a rule of the same group, which is not
    made yet, is a node and BIAS - 1 minus the rule.

    Returns how much of the buffer is used then, or FULL minus a place or PAUSE; and whether there are edges of the
    second kind.
    """
    node_final = array_at(header[AT_NODE_FINAL], header[AT_NODE_FINAL + 1], np.uint8)
    rule_group = array_at(header[AT_RULE_GROUP], header[AT_RULE_GROUP + 1], np.int32)
    frame_start = array_at(header[AT_FRAME_START], header[AT_FRAME_START + 1], np.int32)
    edge_node = array_at(header[AT_EDGE_NODE], header[AT_EDGE_NODE + 1], np.int32)
    edge_frame = array_at(header[AT_EDGE_FRAME], header[AT_EDGE_FRAME + 1], np.int32)
    entry = array_at(header[AT_ENTRY], header[AT_ENTRY + 1], np.int64)
    link = array_at(header[AT_LINK], header[AT_LINK + 1], np.int64)
    head = array_at(header[AT_HEAD], header[AT_HEAD + 1], np.int64)
    local_of = array_at(header[AT_LOCAL_OF], header[AT_LOCAL_OF + 1], np.int64)
    visited = array_at(header[AT_VISITED], header[AT_VISITED + 1], np.int64)
    path = array_at(header[AT_PATH], header[AT_PATH + 1], np.int64)
    buffer = array_at(header[AT_BUFFER], header[AT_BUFFER + 1], np.int64)
    begin, loops, group = used + 2, False, rule_group[rule]
    used = begin
    header[STAMP] += 1
    mark = header[STAMP]
    visited[rule] = mark
    path[0], paths = rule, np.int64(1)
    while paths:
        paths -= 1
        each = head[path[paths]]
        while each >= 0:
            node, frame = entry[each] >> 32, entry[each] & 0xFFFFFFFF
            each = link[each]
            header[SPENT] += 1
            if must_pause(header):
                return np.int64(FULL - PAUSE), loops
            if used + 2 > buffer.size:
                return np.int64(FULL - AT_BUFFER), loops
            if frame >= LOCAL:
                other = frame - LOCAL
                if rule_group[other] == group:
                    if node_final[node] == 3:
                        if visited[other] != mark:
                            visited[other] = mark
                            path[paths] = other
                            paths += 1
                    else:
                        buffer[used] = node << 32 | (BIAS - 1 - other)
                        used += 1
                        loops = True
                    continue
                frame = local_of[other]
            if node_final[node] == 3 and frame != ROOT:
                first, stop = frame_start[frame], frame_start[frame + 1]
                if used + stop - first + 2 > buffer.size:
                    return np.int64(FULL - AT_BUFFER), loops
                header[SPENT] += stop - first
                for x in range(first, stop):
                    buffer[used] = np.int64(edge_node[x]) << 32 | (np.int64(edge_frame[x]) + BIAS)
                    used += 1
            else:
                if node_final[node] == 3:
                    node = np.int64(0)
                buffer[used] = node << 32 | (frame + BIAS)
                used += 1
    used = sort_unique(buffer, begin, used)
    buffer[begin - 2], buffer[begin - 1] = rule, used - begin
    return used, loops


@kernel
def _find_frames(header: Int64Array, first: Int, stop: Int, m: Int, members: Int) -> Int:
    """Return the first frame of a group, or FULL minus a place; it makes them unless there are equal ones.

    first, stop: where the group is in `AT_BUFFER`. m, members: its rules in `AT_RULES`.
    """
    frame_start = array_at(header[AT_FRAME_START], header[AT_FRAME_START + 1], np.int32)
    edge_node = array_at(header[AT_EDGE_NODE], header[AT_EDGE_NODE + 1], np.int32)
    edge_frame = array_at(header[AT_EDGE_FRAME], header[AT_EDGE_FRAME + 1], np.int32)
    group_start = array_at(header[AT_GROUP_START], header[AT_GROUP_START + 1], np.int32)
    group_data = array_at(header[AT_GROUP_DATA], header[AT_GROUP_DATA + 1], np.int64)
    group_frame = array_at(header[AT_GROUP_FRAME], header[AT_GROUP_FRAME + 1], np.int32)
    slots = array_at(header[AT_GROUP_SLOTS], header[AT_GROUP_SLOTS + 1], np.int32)
    rules = array_at(header[AT_RULES], header[AT_RULES + 1], np.int64)
    local_of = array_at(header[AT_LOCAL_OF], header[AT_LOCAL_OF + 1], np.int64)
    buffer = array_at(header[AT_BUFFER], header[AT_BUFFER + 1], np.int64)
    size = stop - first
    found, slot = find_set(slots, group_start, group_data, buffer[first:], size)
    if found >= 0:
        return np.int64(group_frame[found])
    groups, words = header[NUM_GROUPS], header[NUM_GROUP_WORDS]
    frames, edges = header[NUM_FRAMES], header[NUM_EDGES]
    if 2 * (groups + 1) > slots.size:
        return np.int64(FULL - AT_GROUP_SLOTS)
    if groups + 2 > group_start.size:
        return np.int64(FULL - AT_GROUP_START)
    if groups + 1 > group_frame.size:
        return np.int64(FULL - AT_GROUP_FRAME)
    if words + size > group_data.size:
        header[NEEDED] = words + size
        return np.int64(FULL - AT_GROUP_DATA)
    if frames + members + 1 > frame_start.size:
        header[NEEDED] = frames + members + 1
        return np.int64(FULL - AT_FRAME_START)
    if edges + size > edge_node.size:
        header[NEEDED] = edges + size
        return np.int64(FULL - AT_EDGE_NODE)
    if edges + size > edge_frame.size:
        header[NEEDED] = edges + size
        return np.int64(FULL - AT_EDGE_FRAME)
    for k in range(size):
        group_data[words + k] = buffer[first + k]
    group_start[groups + 1], group_frame[groups] = words + size, frames
    slots[slot] = groups
    header[NUM_GROUPS], header[NUM_GROUP_WORDS] = groups + 1, words + size
    for k in range(members):
        local_of[rules[m + k]] = frames + k
    x = first
    for k in range(members):
        for y in range(x + 2, x + 2 + buffer[x + 1]):
            node, frame = buffer[y] >> 32, (buffer[y] & 0xFFFFFFFF) - BIAS
            if frame < 0:
                frame = local_of[-1 - frame]
            edge_node[edges], edge_frame[edges] = node, frame
            edges += 1
        x += 2 + buffer[x + 1]
        frame_start[frames + k + 1] = edges
    header[NUM_FRAMES], header[NUM_EDGES] = frames + members, edges
    return np.int64(frames)


@kernel
def _find_state(header: Int64Array, scans: Int) -> Int:
    """Return the state of the first items in `AT_SCAN`, or FULL minus a place; it makes it unless there is one."""
    core = array_at(header[AT_CORE], header[AT_CORE + 1], np.int64)
    scan = array_at(header[AT_SCAN], header[AT_SCAN + 1], np.int64)
    state_start = array_at(header[AT_STATE_START], header[AT_STATE_START + 1], np.int32)
    item_position = array_at(header[AT_ITEM_POSITION], header[AT_ITEM_POSITION + 1], np.int32)
    item_frame = array_at(header[AT_ITEM_FRAME], header[AT_ITEM_FRAME + 1], np.int32)
    accepts = array_at(header[AT_ACCEPTS], header[AT_ACCEPTS + 1], np.uint8)
    slots = array_at(header[AT_STATE_SLOTS], header[AT_STATE_SLOTS + 1], np.int32)
    slot = hash_of(scan, scans, core[0]) & (slots.size - 1)
    while slots[slot] >= 0:
        n = slots[slot]
        begin = state_start[n]
        if state_start[n + 1] - begin == scans and accepts[n] == core[0]:
            same = True
            for k in range(scans):
                if np.int64(item_position[begin + k]) << 32 | np.int64(item_frame[begin + k]) != scan[k]:
                    same = False
                    break
            if same:
                return np.int64(n)
        slot = (slot + 1) & (slots.size - 1)
    states, items = header[NUM_STATES], header[NUM_ITEMS]
    if 2 * (states + 1) > slots.size:
        return np.int64(FULL - AT_STATE_SLOTS)
    if states + 2 > state_start.size:
        return np.int64(FULL - AT_STATE_START)
    if (states + 1) * header[NUM_CLASSES] > header[AT_CELLS + 1]:
        return np.int64(FULL - AT_CELLS)
    if states + 1 > accepts.size:
        return np.int64(FULL - AT_ACCEPTS)
    if states + 1 > header[AT_LOOPS + 1]:
        return np.int64(FULL - AT_LOOPS)
    if items + scans > item_position.size:
        header[NEEDED] = items + scans
        return np.int64(FULL - AT_ITEM_POSITION)
    if items + scans > item_frame.size:
        header[NEEDED] = items + scans
        return np.int64(FULL - AT_ITEM_FRAME)
    for k in range(scans):
        item_position[items + k], item_frame[items + k] = scan[k] >> 32, scan[k] & 0xFFFFFFFF
    state_start[states + 1], accepts[states] = items + scans, core[0]
    slots[slot] = states
    header[NUM_STATES], header[NUM_ITEMS] = states + 1, items + scans
    return np.int64(states)
