"""Checks of the arrays of graphs and nested tables, so that no kernel and no device reads outside of them.

Lists are scanned without ways out of the loop, so that this is vector code; one that is wrong is searched again.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..errors import TableError
from ..kernels.arrays import Int, Int32Array, Int64Array, has_bit, place_of
from ..kernels.compiled import kernel
from ..kernels.limits import MOST_DEPTH
from . import faults
from .distances import base_class_counts, class_of
from .groups import TableArrays


class Common(NamedTuple):
    """What a graph has in common with others of its vocabulary: a library, on which each was built.

    Those are its rows 1 .. rows, and the first bases, sites and actions, which lead only to one another; the bases lead
    to states, not so many states further. An `Arena` keeps equal ones once.
    """

    rows: int = 0
    bases: int = 0
    sites: int = 0
    actions: int = 0


class FramesRequired(NamedTuple):
    """How many more frames must fit for what a nested table does; empty and 0 for other tables."""

    by_code: Int32Array  # (S + 2 + A,) for a code to be followed
    most: int  # for nothing to be refused
    most_pushes: int  # frames that one token opens


NOTHING_COMMON = Common()


def common_of(found: object) -> Common:
    """Return what a table has in common with others, as a file may say it. Raises TableError for anything else."""
    if not isinstance(found, tuple | list) or len(found) != len(Common._fields):
        raise TableError(f"common must be {len(Common._fields)} numbers, not {found!r}")
    if any(type(count) is not int or count < 0 for count in found):
        raise TableError(f"common must be numbers of rows, bases, sites and actions, not {found!r}")
    if not found[0] and any(found):
        raise TableError("common bases, sites and actions belong to rows, and there are none")
    return Common(*found)


def check_graph(arrays: TableArrays, vocab_size: int, eos: int, common: Common) -> FramesRequired:
    """Return what a graph requires of its stack. Raises TableError for arrays that contradict each other."""
    rows, edges = arrays.rows, arrays.edges
    if rows.base.size != rows.accepting.size or edges.token.size != edges.target.size + 2:
        raise TableError("a graph has an entry of rows.base for every row, and no tail entries")
    if arrays.trie.item_start.tolist() != [0] or arrays.trie.item_row.size:
        raise TableError("a graph has no input rows")
    if rows.edge_start.dtype != np.int32:
        raise TableError("a graph has rows.edge_start of int32")
    faults.check(*mask_fault(arrays, vocab_size, eos))
    faults.check(*_class_fault(arrays, vocab_size))
    faults.check(*_base_fault(arrays))
    faults.check(*_row_fault(arrays, vocab_size, eos))
    frames = FramesRequired(np.zeros(0, np.int32), 0, 0)
    if arrays.sites.is_leaf.size:
        faults.check(*_exit_fault(arrays, vocab_size, eos))
        fault, where, frames = _action_fault(arrays)
        faults.check(fault, where)
        frames.by_code.flags.writeable = False
        faults.check(*_site_fault(arrays))
        fault, where, most, pushes = _row_site_fault(arrays, frames)
        faults.check(fault, where)
        frames = FramesRequired(frames.by_code, int(most), int(pushes))
        faults.check(*_leaving_base_fault(arrays))
    if any(common):
        within = (
            common.rows < rows.accepting.size and common.bases <= arrays.bases.mask.size
            and common.sites <= arrays.sites.is_leaf.size and common.actions <= arrays.actions.state.size
        )  # fmt: skip
        if not within or leads_out(arrays, common):
            raise TableError(f"what is common to tables, {common}, leads outside of it, or other rows lead into it")
    return frames


@kernel
def mask_fault(arrays: TableArrays, vocab_size: int, eos: int) -> tuple[Int, Int]:
    masks, edges = arrays.bases.masks, arrays.edges
    end = edges.target.size
    if edges.token[end] != vocab_size or edges.token[end + 1] != vocab_size + 1:
        return faults.TAIL_END, end
    for u in range(masks.shape[0]):
        if eos >= 0 and has_bit(masks[u], eos):
            return faults.MASK_BIT, u
        if vocab_size & 31 and masks[u, masks.shape[1] - 1] >> np.uint32(vocab_size & 31):
            return faults.MASK_BIT, u
    return faults.SOUND, 0


@kernel
def _class_fault(arrays: TableArrays, vocab_size: int) -> tuple[Int, Int]:
    classes = arrays.classes
    lists = classes.start.size - 1
    if classes.start[0] != 0 or classes.start[lists] != classes.token.size:
        return faults.CLASS_STARTS, 0
    for k in range(lists):
        if classes.start[k + 1] < classes.start[k] or classes.start[k + 1] > classes.token.size:
            return faults.CLASS_STARTS, k
        previous = np.int64(-1)
        for x in range(classes.start[k], classes.start[k + 1]):
            token = np.int64(classes.token[x])
            if token <= previous or token >= vocab_size:
                return faults.UNSORTED_CLASS, x
            if classes.number[x] < 0:
                return faults.CLASS_WITHOUT_TARGET, x
            previous = token
    return faults.SOUND, 0


@kernel
def _base_fault(arrays: TableArrays) -> tuple[Int, Int]:
    rows, bases, classes, exits = arrays.rows.base.size, arrays.bases, arrays.classes, arrays.exits
    lists, count = classes.start.size - 1, bases.mask.size
    if bases.target_start[0] != 0 or bases.target_start[count] != bases.target.size:
        return faults.BASE_STARTS, 0
    targets = np.ones(lists, np.int64)  # that a class list needs
    for k in range(lists):
        for x in range(classes.start[k], classes.start[k + 1]):
            targets[k] = max(targets[k], classes.number[x] + 1)
    for b in range(count):
        if not (0 <= bases.mask[b] < bases.masks.shape[0] and 0 <= bases.class_list[b] < lists):
            return faults.STRAY_MASK, b
        first, stop = bases.target_start[b], bases.target_start[b + 1]
        if stop < first or stop > bases.target.size:
            return faults.BASE_STARTS, b
        if stop - first < targets[bases.class_list[b]]:
            return faults.CLASS_WITHOUT_TARGET, b
        for x in range(first, stop):
            if not bases.target[x] & 1 and not 0 <= bases.target[x] >> 1 < rows:
                return faults.STRAY_BASE_TARGET, b
        if exits.of_base.size and not -1 <= exits.of_base[b] < exits.start.size - 1:
            return faults.STRAY_EXIT_LIST, b
    return faults.SOUND, 0


@kernel
def _row_fault(arrays: TableArrays, vocab_size: int, eos: int) -> tuple[Int, Int]:
    edge_start, edge_token, edge_target = arrays.rows.edge_start, arrays.edges.token, arrays.edges.target
    rows, edges, bases = edge_start.size - 1, edge_target.size, arrays.bases
    dead, codes = rows + 1, rows + 2 + arrays.actions.state.size
    nested = arrays.sites.is_leaf.size > 0
    if edge_start[0] != 0 or edge_start[rows] != edges:
        return faults.EDGE_STARTS, 0
    unsorted, strays = 0, 0  # where tokens do not rise, within rows in the end; tokens and targets that no row may have
    for e in range(1, edges):
        unsorted += edge_token[e] <= edge_token[e - 1]
    for e in range(edges):
        strays += (edge_token[e] >= vocab_size) | (edge_token[e] == eos)
    for s in range(rows):
        a, b = edge_start[s], edge_start[s + 1]
        base = arrays.rows.base[s]
        if b < a or b > edges:
            return faults.EDGE_STARTS, s
        if base < -1 or base >= bases.mask.size:
            return faults.STRAY_BASE, s
        if 0 < a < b:
            unsorted -= edge_token[a] <= edge_token[a - 1]
        if not nested:
            for e in range(a, b):
                if edge_target[e] == dead:
                    token = np.int64(edge_token[e])
                    if base < 0 or token >= vocab_size or not has_bit(bases.masks[bases.mask[base]], token):
                        return faults.TAKES_NOTHING_AWAY, e
    for e in range(edges):
        strays += (edge_target[e] < 0) | (edge_target[e] >= codes) | (edge_target[e] == dead - 1)
    if unsorted or strays:
        for s in range(rows):
            previous: Int = -1
            for e in range(edge_start[s], edge_start[s + 1]):
                token = np.int64(edge_token[e])
                if token <= previous or token >= vocab_size:
                    return faults.UNSORTED_ROW, e
                if token == eos:
                    return faults.EOS_EDGE, e
                if edge_target[e] < 0 or edge_target[e] >= codes or edge_target[e] == dead - 1:
                    return faults.STRAY_EDGE, e
                previous = token
    return faults.SOUND, 0


@kernel
def _exit_fault(arrays: TableArrays, vocab_size: int, eos: int) -> tuple[Int, Int]:
    exits = arrays.exits
    lists, symbols = exits.start.size - 1, exits.label.size
    for y in range(symbols):
        if exits.label[y] < -1:
            return faults.LABEL, y
    if exits.start[0] != 0 or exits.start[lists] != exits.token.size:
        return faults.EXIT_STARTS, 0
    unsorted = strays = 0
    for x in range(1, exits.token.size):
        unsorted += exits.token[x] <= exits.token[x - 1]
    for x in range(exits.token.size):
        strays += (exits.token[x] >= vocab_size) | (exits.token[x] == eos)
    for k in range(lists):
        a, b = exits.start[k], exits.start[k + 1]
        if b < a or b > exits.token.size:
            return faults.EXIT_STARTS, k
        if 0 < a < b:
            unsorted -= exits.token[a] <= exits.token[a - 1]
    if unsorted or strays:
        return faults.UNSORTED_EXIT, 0
    for x in range(exits.symbol.size):
        strays += (exits.symbol[x] < 0) | (exits.symbol[x] >= symbols)
    if strays:
        return faults.STRAY_SYMBOL, 0
    for s in range(exits.of_row.size):
        if not -1 <= exits.of_row[s] < lists:
            return faults.STRAY_EXIT_LIST, s
    return faults.SOUND, 0


@kernel
def _action_fault(arrays: TableArrays) -> tuple[Int, Int, FramesRequired]:
    """Return (fault, where, frames) of actions and of the frames that states and sites require."""
    actions, sites, of_rows = arrays.actions, arrays.sites, arrays.rows.frames_required
    rows, count = arrays.rows.base.size, actions.state.size
    frames = np.zeros(rows + 2 + count, np.int32)
    zero = np.int64(0)
    nothing = FramesRequired(frames, int(zero), int(zero))
    if actions.push_start[0] != 0 or actions.push_start[count] != actions.push.size:
        return faults.PUSH_STARTS, 0, nothing
    for s in range(of_rows.size):
        if not 0 <= of_rows[s] <= MOST_DEPTH:
            return faults.FRAMES, s, nothing
        frames[s] = of_rows[s]
    for k in range(sites.frames_required.size):
        if not 0 <= sites.frames_required[k] <= MOST_DEPTH:
            return faults.FRAMES, k, nothing
    most_pushes: Int = np.int64(0)
    for action in range(count):
        first, stop = np.int64(actions.push_start[action]), np.int64(actions.push_start[action + 1])
        if stop <= first or stop > actions.push.size:
            return faults.PUSH_STARTS, action, nothing
        if not 0 <= actions.state[action] < rows:
            return faults.STRAY_ACTION, action, nothing
        pushed = np.int64(0)
        most: Int = np.int64(0)
        for p in range(first, stop):
            k = actions.push[p]
            if not 0 <= k < sites.is_leaf.size:
                return faults.STRAY_ACTION, action, nothing
            if sites.is_leaf[k] and p + 1 < stop:
                return faults.PUSH_ONTO_LEAF, action, nothing
            if sites.frames_required.size:
                most = max(most, pushed + sites.frames_required[k])
            pushed += not sites.is_leaf[k]
        most = max(most, pushed + frames[actions.state[action]])
        frames[rows + 2 + action] = min(most, MOST_DEPTH + 1)
        most_pushes = max(most_pushes, stop - first)
    most_of_all: Int = np.int64(frames.max())
    return faults.SOUND, 0, FramesRequired(frames, int(most_of_all), int(most_pushes))


@kernel
def _site_fault(arrays: TableArrays) -> tuple[Int, Int]:
    sites, symbols = arrays.sites, arrays.exits.label.size
    dead, codes = arrays.rows.base.size + 1, arrays.rows.base.size + 2 + arrays.actions.state.size
    count = sites.is_leaf.size
    if sites.start[0] != 0 or sites.start[count] != sites.symbol.size:
        return faults.SITE_STARTS, 0
    for k in range(count):
        a, b = sites.start[k], sites.start[k + 1]
        if b < a or b > sites.symbol.size:
            return faults.SITE_STARTS, k
        previous = -1
        for x in range(a, b):
            if sites.symbol[x] <= previous or sites.symbol[x] >= symbols:
                return faults.UNSORTED_SITE, x
            previous = sites.symbol[x]
            code = sites.target[x]
            if code < -symbols or code >= codes or code == dead or code == dead - 1:
                return faults.STRAY_SITE_TARGET, x
    return faults.SOUND, 0


@kernel
def _row_site_fault(arrays: TableArrays, frames: FramesRequired) -> tuple[Int, Int, Int, Int]:
    """Return (fault, where, most frames required, most pushes) of the sites that rows push with their bases."""
    sites = arrays.sites
    most, most_pushes = np.int64(frames.most), np.int64(frames.most_pushes)
    most_state = np.int64(frames.by_code[: arrays.rows.base.size + 2].max())
    for s in range(sites.of_row.size):
        k = sites.of_row[s]
        if not -1 <= k < sites.is_leaf.size:
            return faults.STRAY_ROW_SITE, s, most, most_pushes
        if k >= 0:
            most_pushes = max(most_pushes, np.int64(1))
            if sites.frames_required.size:
                most = max(most, np.int64(sites.frames_required[k]))
            if not sites.is_leaf[k]:
                most = max(most, np.int64(1) + most_state)
    return faults.SOUND, 0, most, most_pushes


@kernel
def _leaving_base_fault(arrays: TableArrays) -> tuple[Int, Int]:
    """Return (fault, where) of rows whose base leads outside the table by a token that the row does not take itself."""
    rows, bases, exits, edges = arrays.rows, arrays.bases, arrays.exits, arrays.edges
    count = rows.base.size
    lowest, highest = _rows_within(arrays)
    held = np.zeros(bases.target.size, np.int64)  # tokens of each class of a base
    counted = np.zeros(bases.mask.size, np.bool_)
    for s in range(count):
        base = rows.base[s]
        if base < 0 or lowest[base] <= s <= highest[base]:
            continue
        # some class leads to no row from here: the row's own edges and exits must take all its tokens
        first = np.int64(bases.target_start[base])
        mask = bases.masks[bases.mask[base]]
        if not counted[base]:
            counted[base] = True
            base_class_counts(arrays, base, held[first : bases.target_start[base + 1]])
        left = np.int64(0)
        for x in range(first, bases.target_start[base + 1]):
            if _leaves(bases.target[x], s, count):
                left += held[x]
        own = exits.of_row[s] if exits.of_row.size else -1
        for e in range(rows.edge_start[s], rows.edge_start[s + 1] if left else rows.edge_start[s]):
            token = np.int64(edges.token[e])
            if has_bit(mask, token) and _leaves(bases.target[first + class_of(arrays, base, token)], s, count):
                left -= 1
        if left and own >= 0:
            for x in range(exits.start[own], exits.start[own + 1]):
                token = np.int64(exits.token[x])
                if not has_bit(mask, token):
                    continue
                if place_of(edges.token, rows.edge_start[s], rows.edge_start[s + 1], token) >= 0:
                    continue
                left -= _leaves(bases.target[first + class_of(arrays, base, token)], s, count)
        if left:
            return faults.BASE_LEAVES_TABLE, s
    return faults.SOUND, 0


@kernel
def _leaves(code: int, state: int, rows: int) -> bool:
    """Return whether a base's code leads to no row from a state."""
    return not 0 <= (np.int64(code) >> 1) + (np.int64(code) & 1) * state < rows


@kernel
def _rows_within(arrays: TableArrays) -> tuple[Int64Array, Int64Array]:
    """Return the lowest and the highest row, for each base, from which all its codes lead to rows."""
    rows, bases = arrays.rows.base.size, arrays.bases
    lowest, highest = np.zeros(bases.mask.size, np.int64), np.full(bases.mask.size, rows - 1, np.int64)
    for b in range(bases.mask.size):
        for x in range(bases.target_start[b], bases.target_start[b + 1]):
            code = bases.target[x]
            if code & 1:
                lowest[b] = max(lowest[b], -(np.int64(code) >> 1))
                highest[b] = min(highest[b], rows - 1 - (np.int64(code) >> 1))
    return lowest, highest


def leads_out(arrays: TableArrays, common: Common) -> bool:
    """Return whether what is said to be common leads outside of it, or other rows lead into it by distance."""
    return bool(_leads_out(arrays, common))


@kernel
def _leads_out(arrays: TableArrays, common: Common) -> bool:
    rows, edges, bases, actions, sites = arrays.rows, arrays.edges, arrays.bases, arrays.actions, arrays.sites
    count = rows.edge_start.size - 1
    action = count + 2
    for e in range(rows.edge_start[1], rows.edge_start[common.rows + 1]):
        code = edges.target[e]
        if code == 0 or common.rows < code < count or code >= action + common.actions:
            return True
    for x in range(bases.target_start[common.bases]):
        code = bases.target[x]
        if code & 1 or not 1 <= code >> 1 <= common.rows:
            return True
    for s in range(count):
        if 1 <= s <= common.rows:
            if rows.base[s] >= common.bases or (sites.of_row.size and sites.of_row[s] >= common.sites):
                return True
        elif rows.base[s] >= common.bases:
            for x in range(bases.target_start[rows.base[s]], bases.target_start[rows.base[s] + 1]):
                code = bases.target[x]
                t = s + (np.int64(code) >> 1)
                # own rows lie side by side, the start before the others, without what is common between them
                if code & 1 and 0 <= t < count and (t <= common.rows or s == 0):
                    return True
    for a in range(common.actions):
        if not 1 <= actions.state[a] <= common.rows:
            return True
    for x in range(actions.push_start[common.actions]):
        if actions.push[x] >= common.sites:
            return True
    for x in range(sites.start[common.sites]):
        code = sites.target[x]
        if code == 0 or common.rows < code < count or code >= action + common.actions:
            return True
    return False
