"""Objects: the automaton that reads the members of formulas about objects."""

from __future__ import annotations

from .algebra import Node
from .member_derivatives import MemberDerivatives
from .records import automaton_of, record_of
from .skeleton import ObjectAutomaton
from .unordered_members import UnorderedDerivatives, UnsureError, in_any_order
from .value_builder import ValueBuilder


def objects(builder: ValueBuilder, parts: tuple[Node, ...], any_order: bool = False) -> ObjectAutomaton | None:
    """Return the automaton of formulas about objects; None if plainly no object is in any."""
    if len(parts) == 1:
        record = record_of(parts[0])
        if record is not None:
            return automaton_of(builder, record, any_order)
    automaton = MemberDerivatives(builder, parts).automaton
    if any_order:
        try:
            automaton.unordered = UnorderedDerivatives(builder, parts).unordered
        except UnsureError:
            automaton.unordered = in_any_order(builder, parts)
    return automaton
