"""Terminals as languages: what llguidance's operators and attributes say, which no backtracking matcher knows.

In these a pattern is the set of texts that it matches as a whole, in whatever order a matcher would try them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...automata import ops
from ...automata.budget import Meter
from ...automata.deadline import look
from ...automata.dfa import BYTES, Dfa
from ...automata.minimize import canonical
from ...automata.nfa import Nfa
from ...automata.subsets import determinize
from ...automata.utf8 import text
from .analysis import READING


def all_but(dfa: Dfa, meter: Meter) -> Dfa:
    """Return the texts, in UTF-8, that are not in a language."""
    return ops.difference(text(), dfa, meter)


def shortest_of(dfa: Dfa, meter: Meter) -> Dfa:
    """Return the words of a language no beginning of which is one as well: where a lazy terminal ends."""
    transition = dfa.transition.copy()
    transition[dfa.accepting] = -1
    return canonical(dfa.class_of, transition, dfa.accepting, meter=meter)


def going_on(dfa: Dfa, meter: Meter) -> Dfa:
    """Return the words of a language, and all that begins with one."""
    states, classes = dfa.transition.shape
    transition = np.full((states + 1, classes), states, np.int32)
    transition[:-1][~dfa.accepting] = dfa.transition[~dfa.accepting]
    return canonical(dfa.class_of, transition, np.append(dfa.accepting, True), meter=meter)


def before(dfa: Dfa, stop: Dfa, meter: Meter) -> Dfa:
    """Return the words that some word of another language makes a word of a language."""
    both = dfa.class_of[:BYTES].astype(np.int64) * stop.transition.shape[1] + stop.class_of[:BYTES]
    bytes_of = np.unique(both, return_index=True)[1]
    states, others = dfa.num_states, stop.num_states
    cells = (states + 1) * (others + 1)
    meter.check(states=states, bytes=cells * (len(bytes_of) + 2), doing="finding where a stop may follow")
    first = np.vstack((dfa.transition, np.full((1, dfa.transition.shape[1]), -1)))
    second = np.vstack((stop.transition, np.full((1, stop.transition.shape[1]), -1)))
    ends = np.zeros((states + 1, others + 1), np.bool_)
    ends[:-1, :-1] = np.outer(dfa.accepting, stop.accepting)
    while True:
        look(READING)
        more = ends.copy()
        for byte in bytes_of.tolist():
            more |= ends[first[:, dfa.class_of[byte]]][:, second[:, stop.class_of[byte]]]
        if (more == ends).all():
            break
        ends = more
    return canonical(dfa.class_of, dfa.transition, ends[:-1, 0].copy(), meter=meter)


def substrings(chunks: Sequence[str], meter: Meter) -> Dfa:
    """Return the texts of some chunks in a row, from any to any, none at all included: a suffix automaton of chunks."""
    rows: list[dict[str, int]] = [{}]
    length, link, last = [0], [-1], 0
    for count, chunk in enumerate(chunks):
        if not chunk:
            continue
        if not count & 1023:
            meter.check(states=len(rows), bytes=200 * len(rows), doing="finding all parts of a text")
        here = len(rows)
        rows.append({})
        length.append(length[last] + 1)
        link.append(0)
        state, last = last, here
        while state >= 0 and chunk not in rows[state]:
            rows[state][chunk] = here
            state = link[state]
        if state < 0:
            continue
        to = rows[state][chunk]
        if length[to] == length[state] + 1:
            link[here] = to
            continue
        copied = len(rows)
        rows.append(dict(rows[to]))
        length.append(length[state] + 1)
        link.append(link[to])
        link[to] = link[here] = copied
        while state >= 0 and rows[state].get(chunk) == to:
            rows[state][chunk] = copied
            state = link[state]
    size = len(rows)
    edges: list[tuple[int, int, int, int]] = []
    for state, row in enumerate(rows):
        if not state & 1023:
            meter.check(states=size, bytes=100 * len(edges), doing="finding all parts of a text")
        for chunk, to in row.items():
            data = chunk.encode()
            at = state
            for byte in data[:-1]:
                edges.append((at, byte, byte, size))
                at, size = size, size + 1
            edges.append((at, data[-1], data[-1], to))
    nfa = Nfa(BYTES, meter)
    return determinize(
        nfa, nfa.embed_edges(np.array(edges, np.int32).reshape(-1, 4), size, [0], list(range(len(rows))))
    )
