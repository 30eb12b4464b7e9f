"""Compile a node of a grammar that calls no rule, or only regular ones, into a DFA."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ...automata.budget import Meter
from ...automata.dfa import BYTES, Dfa
from ...automata.nfa import Fragment, Nfa
from ...automata.subsets import determinize
from . import form
from .form import Choice, Node, Repeat, Rule, Special, Terminal, Text


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
        if isinstance(node, Rule):
            assert rule is not None
            return nfa.embed(rule(node.name))
        assert isinstance(node, (form.Sequence, Choice))
        parts = [fragment(item) for item in node.items]
        return nfa.concat(parts) if isinstance(node, form.Sequence) else nfa.union(parts)

    return determinize(nfa, fragment(node))
