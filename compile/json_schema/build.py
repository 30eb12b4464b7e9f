"""From formulas to the skeleton: automata over members and items, deterministic down to each value.

A value's formulas are taken apart by type (`value_builder.py`). Numbers and strings become automata at once. Arrays and
objects are read item by item and member by member. What is left of a formula after one (its Brzozowski derivative) is
again a formula, over what remains to be read and over tests on the value just read; `cases.py` splits it by the tests.
A state of an array or object is a place (how many items there were, which keys are behind) with what is left.

The usual object, a conjunction, is written down directly: its state is the place alone (`records.py`).
"""

from __future__ import annotations

from ...automata.budget import Meter
from ...errors import SchemaError
from .algebra import Node
from .arrays import arrays
from .explain import explain
from .member_derivatives import MemberDerivatives
from .nesting import levels_of
from .records import automaton_of, record_of
from .skeleton import ObjectAutomaton, Step, Value
from .unordered_members import UnorderedMembers
from .value_builder import Containers, ValueBuilder


def objects(builder: ValueBuilder, parts: tuple[Node, ...], any_order: bool = False) -> ObjectAutomaton | None:
    """Return the automaton of formulas about objects; None if plainly no object is in any."""
    if len(parts) == 1:
        record = record_of(parts[0])
        if record is not None:
            return automaton_of(builder, record, any_order)
    automaton = MemberDerivatives(builder, parts).automaton()
    if any_order:
        automaton.unordered = UnorderedMembers(builder, parts)
        builder.unordered.append(automaton.unordered)
    return automaton


def new_builder(meter: Meter, any_order: bool = False) -> ValueBuilder:
    """Return a builder of values, which reads arrays and objects too."""
    return ValueBuilder(meter, Containers(arrays, objects), any_order)


def build(node: Node, meter: Meter, any_order: bool = False) -> Value:
    """Return the skeleton of a schema's formula, trimmed: every text that it begins can be ended.

    any_order: whether members may come in any order. Raises SchemaError if no value is in the formula, and BudgetError.
    """
    builder = new_builder(meter, any_order)
    root = builder.value((node,))
    if not builder.trimmed()[root] & 1:
        raise SchemaError(f"the schema matches no value: {explain(builder, node)}", "")
    if builder.unordered:
        builder.levels = levels_of(node)
    for each in builder.unordered[:]:  # what is wrong with a schema, or takes long, shows there
        each.read().state(0)
    builder.narrow(Step(root, (0,)))
    return root
