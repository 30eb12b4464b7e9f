"""How many tokens it takes from a state to an end, for tries and graphs. Nested tables: `nested_distances.py`."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import TableError
from ..kernels.arrays import Int, Int32Array, Int64Array, count_bits, has_bit, place_of
from ..kernels.compiled import kernel
from ..kernels.deadline import is_late
from ..kernels.limits import UNREACHABLE
from .groups import TableArrays


class GraphFacts(NamedTuple):
    """What a pass over a graph finds."""

    distance: Int32Array  # (S + 2,) fewest tokens to an accepting row, EOS aside
    longest: int | None  # most tokens in a sequence, None where there is no most


@kernel
def trie_distances(arrays: TableArrays, vocab_size: int, out: Int32Array) -> None:
    """Write the fewest tokens from each state of a trie to an end; edges lead to higher numbers: one backward pass."""
    edge_start, edge_token, edge_target = arrays.rows.edge_start, arrays.edges.token, arrays.edges.target
    rows, edges = edge_start.size - 1, edge_target.size
    for entry in range(edge_token.size - 1, edges - 1, -1):
        s = rows + entry - edges
        if edge_token[entry] >= vocab_size:
            out[s] = 0 if edge_token[entry] == vocab_size else UNREACHABLE
        else:
            out[s] = out[s + 1] + 1
    for s in range(rows - 1, -1, -1):
        best = 0 if arrays.rows.accepting[s] else UNREACHABLE
        if not arrays.rows.accepting[s]:
            for e in range(edge_start[s], edge_start[s + 1]):
                best = min(best, out[edge_target[e]] + 1)
        out[s] = best


@kernel
def farthest(arrays: TableArrays, is_trie: bool, vocab_size: int, distance: Int32Array, out: Int32Array) -> None:
    """Raise each state's entry of `out` to the largest distance that one of its tokens leads to."""
    edge_start, edge_token, edge_target = arrays.rows.edge_start, arrays.edges.token, arrays.edges.target
    rows, edges = edge_start.size - 1, edge_target.size
    dead = distance.size - 1
    for s in range(rows):
        for e in range(edge_start[s], edge_start[s + 1]):
            if edge_target[e] != dead:
                out[s] = max(out[s], distance[edge_target[e]])
        if not is_trie and arrays.rows.base[s] >= 0:
            base = arrays.rows.base[s]
            for x in range(arrays.bases.target_start[base], arrays.bases.target_start[base + 1]):
                code = arrays.bases.target[x]
                t = (np.int64(code) >> 1) + (code & 1) * s
                if 0 <= t < rows:
                    out[s] = max(out[s], distance[t])
    for s in range(rows, dead):
        if edge_token[edges + s - rows] < vocab_size:
            out[s] = distance[s + 1]


def graph_facts(arrays: TableArrays) -> GraphFacts:
    """Return the distances and the longest sequence of a graph without calls.

    Raises TableError for a base that leads outside the table.
    """
    outside, order, start, to = _distinct_targets(arrays)
    if outside >= 0:
        raise TableError(f"a base leads outside the table (at {outside})")
    ways, back, origin = reversed_edges(order, start, to)
    distance = breadth_first(arrays.rows.accepting, back, origin)
    longest = int(_longest_path(ways, back, origin))
    after = np.array([0, UNREACHABLE], np.int32)  # after EOS, and the dead state
    return GraphFacts(np.concatenate([distance, after]), None if longest < 0 else longest)


@kernel
def base_class_counts(arrays: TableArrays, base: int, out: NDArray[np.int64]) -> None:
    """Write how many tokens of a base's mask have each of its classes."""
    bases, classes = arrays.bases, arrays.classes
    mask = bases.masks[bases.mask[base]]
    out[:] = 0
    if out.size:
        out[0] = count_bits(mask)
    listed = bases.class_list[base]
    for x in range(classes.start[listed], classes.start[listed + 1]):
        if has_bit(mask, np.int64(classes.token[x])):
            out[0] -= 1
            out[classes.number[x]] += 1


@kernel
def class_of(arrays: TableArrays, base: int, token: Int) -> Int:
    """Return the class that a token has in the class list of a base."""
    listed = arrays.bases.class_list[base]
    found = place_of(arrays.classes.token, arrays.classes.start[listed], arrays.classes.start[listed + 1], token)
    return np.int64(arrays.classes.number[found]) if found >= 0 else np.int64(0)


@kernel
def _by_base(base: Int32Array, bases: int) -> NDArray[np.int64]:
    """Return rows in the order of their bases, those without one first."""
    place = np.zeros(bases + 2, np.int64)
    for s in range(base.size):
        place[base[s] + 2] += 1
    for b in range(bases + 1):
        place[b + 1] += place[b]
    order = np.empty(base.size, np.int64)
    for s in range(base.size):
        order[place[base[s] + 1]] = s
        place[base[s] + 1] += 1
    return order


@kernel
def _distinct_targets(arrays: TableArrays) -> tuple[Int, Int64Array, Int64Array, Int32Array]:
    """Return (a row whose base leads outside the table or -1, rows in order, where each begins, distinct targets).

    Tokens by class of a base are counted once. A row that shares the base has those targets of it that its own edges
    leave a token.
    """
    edge_start, edge_token, edge_target = arrays.rows.edge_start, arrays.edges.token, arrays.edges.target
    row_base, bases = arrays.rows.base, arrays.bases
    rows = edge_start.size - 1
    dead = rows + 1
    order = _by_base(row_base, bases.mask.size)
    start = np.zeros(rows + 1, np.int64)
    to = np.empty(edge_target.size + 64, np.int32)
    seen = np.full(rows, -1, np.int64)
    left = np.empty(bases.target.size + 1, np.int64)  # tokens of each class that the row's own edges do not take
    used = at = 0
    base = -1
    for i in range(rows):
        if is_late():
            break
        s = order[i]
        if row_base[s] != base:
            base = row_base[s]
            used = bases.target_start[base + 1] - bases.target_start[base]
            base_class_counts(arrays, base, left[:used])
        if at + edge_start[s + 1] - edge_start[s] + used > to.size:
            larger = np.empty(2 * to.size + used + edge_start[s + 1] - edge_start[s], np.int32)
            larger[:at] = to[:at]
            to = larger
        for sign in (-1, 1):
            if sign == 1 and base >= 0:
                for x in range(used):
                    if left[x] > 0:
                        code = np.int64(bases.target[bases.target_start[base] + x])
                        t = (code >> 1) + (code & 1) * s
                        if t < 0 or t >= rows:
                            return s, order, start, to
                        if seen[t] != s:
                            seen[t] = s
                            to[at] = t
                            at += 1
            for e in range(edge_start[s], edge_start[s + 1]):
                t = edge_target[e]
                if sign == 1 and t != dead and seen[t] != s:
                    seen[t] = s
                    to[at] = t
                    at += 1
                if base >= 0:
                    token = np.int64(edge_token[e])
                    if has_bit(bases.masks[bases.mask[base]], token):
                        left[class_of(arrays, base, token)] += sign
        start[i + 1] = at
    return np.int64(-1), order, start, to


@kernel
def reversed_edges(
    order: NDArray[np.int64], start: NDArray[np.int64], to: Int32Array
) -> tuple[Int64Array, Int64Array, Int32Array]:
    """Return how many targets each row has, where the rows that lead to each begin, and these rows."""
    rows, count = order.size, start[order.size]
    back = np.zeros(rows + 1, np.int64)
    for x in range(count):
        back[to[x] + 1] += 1
    for s in range(rows):
        back[s + 1] += back[s]
    origin = np.empty(count, np.int32)
    fill = back[:-1].copy()
    ways = np.empty(rows, np.int64)
    for i in range(rows):
        ways[order[i]] = start[i + 1] - start[i]
        for x in range(start[i], start[i + 1]):
            origin[fill[to[x]]] = order[i]
            fill[to[x]] += 1
    return ways, back, origin


@kernel
def breadth_first(accepting: NDArray[np.bool_], back: NDArray[np.int64], origin: Int32Array) -> Int32Array:
    """Return the distance of each row from the accepting rows, (S,)."""
    rows = accepting.size
    distance = np.full(rows, UNREACHABLE, np.int32)
    queue = np.empty(rows, np.int32)
    head = tail = 0
    for s in range(rows):
        if accepting[s]:
            distance[s] = 0
            queue[tail] = s
            tail += 1
    while head < tail:
        t = queue[head]
        head += 1
        for x in range(back[t], back[t + 1]):
            if distance[origin[x]] == UNREACHABLE:
                distance[origin[x]] = distance[t] + 1
                queue[tail] = origin[x]
                tail += 1
    return distance


@kernel
def _longest_path(ways: NDArray[np.int64], back: NDArray[np.int64], origin: Int32Array) -> Int:
    """Return the most edges on a path from row 0, -1 if there is a circle: from the last rows backwards."""
    rows = ways.size
    longest = np.zeros(rows, np.int64)
    queue = np.empty(rows, np.int32)
    head = tail = 0
    for s in range(rows):
        if ways[s] == 0:
            queue[tail] = s
            tail += 1
    while head < tail:
        t = queue[head]
        head += 1
        for x in range(back[t], back[t + 1]):
            s = origin[x]
            longest[s] = max(longest[s], longest[t] + 1)
            ways[s] -= 1
            if ways[s] == 0:
                queue[tail] = s
                tail += 1
    return longest[0] if tail == rows else np.int64(-1)
