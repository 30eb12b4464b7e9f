"""What a configuration allows, read plainly: the ground that the operations in numpy stand on.

A configuration is a row of a state: a node and the tuple of sites on its stack, the outermost first; () without calls.
"""

from __future__ import annotations

from typing import cast

import numpy as np

from ..kernels.limits import UNREACHABLE
from ..table.states import NestedState
from ..table.transition_table import TransitionTable
from .arena.view import HostTable
from .device.checks import check_unfiltered
from .device.device_table import AnyState, State

Configuration = tuple[int, tuple[int, ...]]


def edges(dev: HostTable, node: int) -> dict[int, int]:
    """Return the tokens that one state of a table without calls allows and where each leads; EOS where accepting."""
    return {token: target for token, (target, _) in moves(dev, (node, ())).items()}


def moves(dev: HostTable, configuration: Configuration) -> dict[int, Configuration]:
    """Return the tokens that a configuration allows and where each leads; EOS included where accepting."""
    node, stack = configuration
    rows = dev.num_rows
    out: dict[int, Configuration | None] = {}  # None: not allowed
    if node < rows:
        if not dev.is_trie and dev.rows.base[node] >= 0:
            out.update(_base_moves(dev, node, stack))
        if dev.exits.of_row.size and dev.exits.of_row[node] >= 0:
            for token, symbol in _exits(dev, dev.exits.of_row[node]).items():
                out[token] = _resolve(dev, stack, symbol)
        span = slice(dev.rows.edge_start[node], dev.rows.edge_start[node + 1])
        codes = dict(zip(dev.edges.token[span].tolist(), dev.edges.target[span].tolist(), strict=True))
        out.update(_all_followed(dev, stack, codes))
    else:
        token = int(dev.edges.token[dev.num_edges + node - rows])
        if token < dev.vocab_size:
            out[token] = node + 1, ()
    if dev.eos is not None and not stack and dev.is_accepting(node):
        out[dev.eos] = dev.after_eos if node < rows else node, ()
    return {token: target for token, target in out.items() if target is not None}


def _all_followed(dev: HostTable, stack: tuple[int, ...], codes: dict[int, int]) -> dict[int, Configuration | None]:
    """Return where the code of each token leads from a stack, which is read once for each code."""
    led = {code: _followed(dev, stack, code) for code in set(codes.values())}
    return {token: led[code] for token, code in codes.items()}


def _base_moves(dev: HostTable, node: int, stack: tuple[int, ...]) -> dict[int, Configuration | None]:
    """Return what the base of a row allows, its exits included."""
    pushed = stack
    if dev.sites.of_row.size and dev.sites.of_row[node] >= 0:
        found = _push(dev, stack, int(dev.sites.of_row[node]))
        if found is None:
            return {}
        pushed = found
    base = dev.rows.base[node]
    out: dict[int, Configuration | None] = {}
    if dev.exits.of_base.size and dev.exits.of_base[base] >= 0:
        for token, symbol in _exits(dev, dev.exits.of_base[base]).items():
            out[token] = _resolve(dev, pushed, symbol)
    targets, rows = _base_edges(dev, node), dev.num_rows
    inside = {token: target for token, target in targets.items() if 0 <= target < rows}
    out.update(dict.fromkeys(targets))  # outside only where the row's own edges say otherwise
    out.update(_all_followed(dev, pushed, inside))
    return out


def _exits(dev: HostTable, index: int) -> dict[int, int]:
    """Return the tokens of an exit list and the symbol that each leaves with."""
    span = slice(dev.exits.start[index], dev.exits.start[index + 1])
    return dict(zip(dev.exits.token[span].tolist(), dev.exits.symbol[span].tolist(), strict=True))


def _resolve(dev: HostTable, stack: tuple[int, ...], symbol: int) -> Configuration | None:
    """Return where leaving the fragment on top with a symbol leads; None if it is not allowed."""
    while stack:
        site, stack = stack[-1], stack[:-1]
        span = slice(dev.sites.start[site], dev.sites.start[site + 1])
        targets = dict(zip(dev.sites.symbol[span].tolist(), dev.sites.target[span].tolist(), strict=True))
        if symbol not in targets:
            return None
        if targets[symbol] >= 0:
            return _followed(dev, stack, targets[symbol])
        symbol = -1 - targets[symbol]
    return None


def _followed(dev: HostTable, stack: tuple[int, ...], code: int) -> Configuration | None:
    """Return where a code leads from a stack; None if it is the dead state or there is no room for what it needs."""
    if code == dev.dead:
        return None
    pushes: list[int] = []
    if code > dev.dead:
        action = code - dev.num_states
        pushes = dev.actions.push[dev.actions.push_start[action] : dev.actions.push_start[action + 1]].tolist()
        code = int(dev.actions.state[action])
    for site in pushes:
        found = _push(dev, stack, site)
        if found is None:
            return None
        stack = found
    need = dev.rows.frames_required[code] if dev.rows.frames_required.size else 0
    if _frames(dev, stack) + need > dev.depth:
        return None
    return code, stack


def _push(dev: HostTable, stack: tuple[int, ...], site: int) -> tuple[int, ...] | None:
    """Return the stack with one more site on it; None if there is no room for it, or for going on after its return."""
    need = dev.sites.frames_required[site] if dev.sites.frames_required.size else 0
    pushed = (*stack, site)
    if _frames(dev, stack) + need > dev.depth or _frames(dev, pushed) > dev.depth or len(pushed) > dev.slots:
        return None
    return pushed


def _frames(dev: HostTable, stack: tuple[int, ...]) -> int:
    """Return how many frames of a stack are no leaves."""
    return sum(not dev.sites.is_leaf[site] for site in stack)


def configurations_of(dev: HostTable, state: AnyState) -> list[Configuration]:
    """Return the configuration of each row of a state (B,)."""
    check_unfiltered(state)
    if not isinstance(state, NestedState):
        return [(node, ()) for node in state.node.tolist()]
    rows = zip(state.node.tolist(), state.stack.tolist(), state.height.tolist(), strict=True)
    return [(node, tuple(stack[:height])) for node, stack, height in rows]


def state_of(dev: HostTable, rows: list[Configuration], shape: tuple[int, ...]) -> AnyState:
    """Return the state of a shape that has these rows."""
    node = np.array([node for node, _ in rows], np.int64).reshape(shape)
    if not dev.is_nested:
        return State(node)
    stack = np.zeros((len(rows), dev.slots), np.int32)
    for i, (_, sites) in enumerate(rows):
        stack[i, : len(sites)] = sites
    height = np.array([len(sites) for _, sites in rows], np.int32)
    return NestedState(node, stack.reshape(*shape, dev.slots), height.reshape(shape))


def fewest_tokens(dev: HostTable, configuration: Configuration) -> int:
    """Return the tokens in which a configuration can be complete, at least one of which is always allowed."""
    node, stack = configuration
    if not dev.is_nested:
        return int(cast(TransitionTable, dev).distance[node])  # an arena is nested
    code, by_site, _, code_frames, site_frames = dev.distances
    far, frames = [0] + [UNREACHABLE] * (code.shape[1] - 1), 0  # by how the fragment on top ends
    for site in stack:
        steps = by_site[site]
        if len(site_frames):
            steps = np.where(frames + site_frames[site] <= dev.depth, steps, UNREACHABLE)
        far = [min(int(step) + below for step, below in zip(row, far, strict=False)) for row in steps]
        frames += not dev.sites.is_leaf[site]
    own = code[node]
    if len(code_frames):
        own = np.where(frames + code_frames[node] <= dev.depth, own, UNREACHABLE)
    return min(int(one) + below for one, below in zip(own, far, strict=True))


def _base_edges(dev: HostTable, node: int) -> dict[int, int]:
    """Return the tokens that the base of a row allows and the state each leads to from there."""
    base = dev.rows.base[node]
    classes = dev.bases.class_list[base]
    span = slice(dev.classes.start[classes], dev.classes.start[classes + 1])
    class_of = dict(zip(dev.classes.token[span].tolist(), dev.classes.number[span].tolist(), strict=True))
    allowed = np.unpackbits(dev.bases.masks[dev.bases.mask[base]].astype("<u4").view(np.uint8), bitorder="little")
    out = {}
    for token in np.flatnonzero(allowed).tolist():
        code = int(dev.bases.target[dev.bases.target_start[base] + class_of.get(token, 0)])
        out[token] = (code >> 1) + (code & 1) * node
    return out
