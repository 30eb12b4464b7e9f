"""Compile a node of a grammar that calls no rule, or only regular ones, into a DFA."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from ...automata.budget import Meter
from ...automata.dfa import BYTES, Dfa
from ...automata.nfa import Fragment, Nfa
from ...automata.subsets import determinize
from . import form
from .form import Choice, Graph, Node, Repeat, Rule, Special, Terminal, Text


def dfa_of(
    node: Node, meter: Meter, symbols: Mapping[str, int] | None = None, rule: Callable[[str], Dfa] | None = None
) -> Dfa:
    """Return the minimal DFA of what a node derives, over bytes and the symbols of special tokens by their names.

    rule: the DFA of a rule over bytes.
    """
    symbols = symbols or {}
    nfa = Nfa(BYTES + len(symbols), meter)

    def fragment(node: Node) -> Fragment:
        if isinstance(node, Text):
            return nfa.literal(node.data)
        if isinstance(node, Terminal):
            return nfa.embed(node.dfa)
        if isinstance(node, Special):
            return nfa.symbols([(symbols[node.name], symbols[node.name])])
        if isinstance(node, Repeat):
            return nfa.repeat(fragment(node.item), node.low, node.high)
        if isinstance(node, Graph):
            return _embedded(node, nfa, symbols)
        if isinstance(node, Rule):
            assert rule is not None
            return nfa.embed(rule(node.name))
        assert isinstance(node, (form.Sequence, Choice))
        parts = [fragment(item) for item in node.items]
        return nfa.concat(parts) if isinstance(node, form.Sequence) else nfa.union(parts)

    return determinize(nfa, fragment(node))


def _embedded(graph: Graph, nfa: Nfa, symbols: Mapping[str, int]) -> Fragment:
    """Return the fragment of a graph. A terminal's automaton stands between the two states of its edge."""
    size, skipped = graph.states, []
    plain: list[tuple[int, int, int, int]] = []
    parts: list[NDArray[np.int32]] = []
    for state, read, to in graph.edges:
        if isinstance(read, Special):
            plain.append((state, symbols[read.name], symbols[read.name], to))
        elif isinstance(read, Terminal):
            moved = read.dfa.edges.astype(np.int32)
            moved[:, 0] += size
            moved[:, 3] += size
            parts.append(moved)
            skipped.append((state, size))
            skipped += [(size + at, to) for at in np.flatnonzero(read.dfa.accepting).tolist()]
            size += read.dfa.num_states
        elif not read.data:
            skipped.append((state, to))
        else:
            for byte in read.data[:-1]:
                plain.append((state, byte, byte, size))
                state, size = size, size + 1
            plain.append((state, read.data[-1], read.data[-1], to))
    edges = np.concatenate((np.array(plain, np.int32).reshape(-1, 4), *parts))
    part = nfa.embed_edges(edges, size, [graph.start], [graph.end])
    return nfa.skip(part, np.array(skipped, np.int32).reshape(-1, 2) + part.start + 1) if skipped else part
