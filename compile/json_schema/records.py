"""The usual object: nothing depends on earlier members, but for which keys are still required."""

from __future__ import annotations

from typing import NamedTuple

from ...automata.deadline import look
from .algebra import NEVER, AllOf, MemberCount, Members, Names, Node, Not, Required, all_of, is_never
from .key_order import in_order
from .member_letters import FINDING, Letters
from .skeleton import ObjectAutomaton, ObjectState, Step
from .value_builder import ValueBuilder


class Record(NamedTuple):
    """A conjunction of Members, required and forbidden keys, and names of keys."""

    members: list[Members]
    required: dict[str, None]
    forbidden: dict[str, None]
    names: list[Node]


def record_of(node: Node) -> Record | None:
    """Return a formula about objects as a record; None if it is none."""
    record = Record([], {}, {}, [])
    low, high, most = 0, None, None
    for part in node.args if type(node) is AllOf else (node,):
        shape = type(part)
        if shape is Members:
            record.members.append(part)
            if not part.args[1] and is_never(part.args[2]):
                most = len(part.args[0]) if most is None else min(most, len(part.args[0]))
        elif shape is Required:
            record.required.update(dict.fromkeys(part.args[0]))
        elif shape is Names:
            record.names.append(part.args[0])
        elif shape is MemberCount:
            low = max(low, part.args[0])
            if part.args[1] is not None:
                high = part.args[1] if high is None else min(high, part.args[1])
        elif shape is Not and type(part.args[0]) is Required and len(part.args[0].args[0]) == 1:
            record.forbidden[part.args[0].args[0][0]] = None
        else:
            return None
    if low > len(record.required) or (high is not None and (most is None or high < most)):
        return None  # members must be counted
    return record


def automaton_of(builder: ValueBuilder, record: Record, any_order: bool) -> ObjectAutomaton | None:
    """Return the automaton of a record: its states are places, and share one list of steps."""
    required = record.required
    automaton, nodes, classes = _declared(builder, record)
    end = len(nodes)
    size = 50 * (end + 1) * len(classes)  # bytes of the steps of undeclared keys
    builder.meter.check(states=end + 1, bytes=size, doing="finding the members of an object")
    steps: list[Step | None] = []
    one = builder.one
    behind = 0  # the state behind the keys so far: there is one behind each key that may come
    for node in nodes:
        if is_never(node):
            steps.append(None)
        else:
            behind += 1
            steps.append(Step(one(node), (behind,)))
    undeclared = [(c, one(node)) for c, node in enumerate(classes) if not is_never(node)]
    close, last = 0, end
    states = []
    for place in range(end, -1, -1):
        if place < end and automaton.keys[place] in required:
            if steps[place] is None:
                return None
            close, last = -1, place + 1
        if not place or steps[place - 1] is not None:
            others = {c: Step(value, (behind,)) for c, value in undeclared}
            states.append(ObjectState(close, place, last, steps, others))
            behind -= 1
    states.reverse()
    automaton.states = states
    if any_order:
        automaton.required = sum([1 << place for place, key in enumerate(automaton.keys) if key in required])
    builder.sound.add(automaton)
    return automaton


def _declared(builder: ValueBuilder, record: Record) -> tuple[ObjectAutomaton, list[Node], list[Node]]:
    """Return an automaton with keys but no states, the nodes of the values of its keys, and those of other classes."""
    members = record.members
    if len(members) == 1 and not (members[0].patterns or record.forbidden or record.names):
        rest = builder.cases.flat(members[0].rest)
        declared = dict(members[0].properties)
        for key in record.required:
            if key not in declared:
                declared[key] = rest
        nodes = [builder.cases.flat(node) for node in declared.values()]
        return ObjectAutomaton(keys=tuple(declared)), nodes, [rest]
    ordered = dict.fromkeys(in_order([[key for key, _ in one.properties] for one in members]))
    keys = (*(ordered | record.required | record.forbidden),)
    letters = Letters(builder, keys, members, record.names)
    nodes = []
    for letter in range(letters.num):
        look(FINDING)
        forbidden = letter < len(keys) and keys[letter] in record.forbidden
        if forbidden or not all(letters.named(name, letter) for name in record.names):
            nodes.append(NEVER)
        else:
            nodes.append(all_of([letters.node(one, letter) for one in members]))
    return ObjectAutomaton(keys=keys, language=letters.language), nodes[: len(keys)], nodes[len(keys) :]
