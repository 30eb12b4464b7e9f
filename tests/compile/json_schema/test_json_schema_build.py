"""The skeleton of a formula says of every value what the formula says, by label, and has no dead ends."""

from __future__ import annotations

import itertools
import json
import sys
import time
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, example, given, reject, settings
from hypothesis import strategies as st

from maskwright.automata.budget import Budget
from maskwright.automata.labelled import Labelled
from maskwright.compile.json_schema.algebra import (
    ANY,
    ARRAY,
    BOOLEAN,
    FALSE,
    NEVER,
    NULL,
    NUMBER,
    OBJECT,
    STRING,
    TRUE,
    AllOf,
    AnyOf,
    Contains,
    Integer,
    ItemCount,
    Items,
    Length,
    MemberCount,
    Members,
    Multiple,
    Names,
    Node,
    Not,
    OneOfValues,
    Pattern,
    Range,
    Reference,
    Required,
    Types,
    Unique,
    Words,
    all_of,
    any_of,
    atoms,
    negate,
    once_each,
)
from maskwright.compile.json_schema.approximations import Approximations, KeywordPlace
from maskwright.compile.json_schema.build import build, new_builder
from maskwright.compile.json_schema.cases import Branch, either
from maskwright.compile.json_schema.key_order import in_order
from maskwright.compile.json_schema.skeleton import (
    AnyOrder,
    ArrayAutomaton,
    Bounded,
    Finite,
    Free,
    ObjectAutomaton,
    ObjectState,
    Step,
    Value,
)
from maskwright.compile.json_schema.sketches import ALL
from maskwright.compile.json_schema.unordered_members import UnorderedDerivatives
from maskwright.depth import enough_stack
from maskwright.errors import BudgetError, ConstraintError, SchemaError
from tests.strategies.odd_schemas import orders

NUMBERS = [Decimal(text) for text in ("0", "1", "2", "3", "-1", "0.5", "10")]
STRINGS = ["", "a", "b", "ab", "aa", "x1", "abc"]
KEYS = ["a", "b", "c", "x", "xa", "y"]


# ------------------------------------------------------------------------------------- what a formula says, naively


def kind_of(value: Any) -> int:
    if value is None:
        return NULL
    if value is True:
        return TRUE
    if value is False:
        return FALSE
    return {Decimal: NUMBER, str: STRING, list: ARRAY, dict: OBJECT}[type(value)]


def holds(node: Any, value: Any) -> bool:
    """Return whether a value is in a node, by the words of each atom's definition."""
    shape = type(node)
    if shape is Types:
        return bool(node.mask & kind_of(value))
    if shape is AllOf:
        return all(holds(part, value) for part in node.parts)
    if shape is AnyOf:
        return any(holds(part, value) for part in node.parts)
    if shape is Not:
        return not holds(node.part, value)
    if shape is Reference:
        return holds(node.node, value)
    return node.kind != kind_of(value) or ATOMS[shape](node, value)


def between(low: int, count: int, high: int | None) -> bool:
    return low <= count and (high is None or count <= high)


def in_range(node: Range, x: Decimal) -> bool:
    above = node.low is None or x > node.low or (x == node.low and not node.low_open)
    return above and (node.high is None or x < node.high or (x == node.high and not node.high_open))


def in_members(node: Members, value: dict[str, Any]) -> bool:
    properties = dict(node.properties)
    for key, member in value.items():
        nodes = [properties[key]] if key in properties else []
        nodes += [inside for source, inside in node.patterns if source.lstrip("^") in (key[:1], "")]
        if not all(holds(inside, member) for inside in nodes or [node.rest]):
            return False
    return True


def distinct(left: tuple[Node, ...], items: list[Any]) -> bool:
    classes = [[i for i, node in enumerate(left) if holds(node, item)] for item in items]
    return all(classes) and len({c[0] for c in classes}) == len(classes)


ATOMS: dict[type, Callable[[Any, Any], bool]] = {
    Integer: lambda node, x: x == int(x),
    Range: in_range,
    Multiple: lambda node, x: x % node.of == 0,
    OneOfValues: lambda node, x: x in node.values,
    Length: lambda node, s: between(node.low, len(s), node.high),
    Pattern: lambda node, s: node.source.lstrip("^") in (s[:1], ""),  # only patterns of the form ^c are used here
    Words: lambda node, s: s in node.words,
    Items: lambda node, a: all(holds(n, i) for n, i in zip((*node.prefix, *[node.rest] * len(a)), a, strict=False)),
    ItemCount: lambda node, a: between(node.low, len(a), node.high),
    Contains: lambda node, a: between(node.low, sum(holds(node.node, i) for i in a), node.high),
    Unique: lambda node, a: distinct(node.left, a),
    Members: in_members,
    Required: lambda node, o: all(key in o for key in node.keys),
    MemberCount: lambda node, o: between(node.low, len(o), node.high),
    Names: lambda node, o: all(holds(node.node, key) for key in o),
}


def readings(value: Any) -> list[Any]:
    """Return what a text may say to a reader if any member but the last could have the key of one behind it."""
    if isinstance(value, list):
        return [list(items) for items in itertools.product(*map(readings, value))]
    if isinstance(value, dict):
        found = []
        for kept in itertools.product([True, False], repeat=max(len(value) - 1, 0)):
            keys = [key for key, keep in zip(value, (*kept, True), strict=False) if keep]
            found += [
                dict(zip(keys, each, strict=True))
                for each in itertools.product(*[readings(value[key]) for key in keys])
            ]
        return found
    return [value]


def mentions(node: Any, shape: type) -> bool:
    if isinstance(node, Reference):
        return mentions(node.node, shape)
    if isinstance(node, Node):
        return type(node) is shape or mentions(node.args, shape)
    return isinstance(node, tuple) and any(mentions(part, shape) for part in node)


def told_apart(node: Any, outside: bool = True) -> bool:
    """Return whether what a formula says of undeclared members may depend on how their values fail."""
    if type(node) is Not and type(node.part) is Members:
        return True
    if type(node) is Members:
        inside = [*dict(node.properties).values(), *dict(node.patterns).values(), node.rest]
        return not outside or any(told_apart(part, False) for part in inside)
    if type(node) is Reference:
        return told_apart(node.node, outside)
    if type(node) in (AllOf, AnyOf, Not):
        return any(told_apart(part, outside) for part in node.args)
    if type(node) in (Items, Contains, Unique):
        return any(told_apart(part, False) for part in atoms_inside(node))
    return False


def atoms_inside(node: Any) -> list[Node]:
    if type(node) is Items:
        return [*node.prefix, node.rest]
    return list(node.left) if type(node) is Unique else [node.node]


def check_label(node: Node, instance: Any, found: bool) -> None:
    """Assert that an instance is allowed if it is in a formula, or in all its readings where these may differ."""
    expected = holds(node, instance)
    if found or not expected or not told_apart(node):
        assert found == expected, instance
    elif not mentions(node, MemberCount):  # of as many members as are written some would have to be the same
        assert not all(holds(node, reading) for reading in readings(instance)), instance


# ------------------------------------------------------------------------------------ what a skeleton says, naively


def run(labelled: Labelled, text: bytes) -> int:
    state = 0
    for byte in text:
        state = int(labelled.transition[state, labelled.class_of[byte]])
        if state < 0:
            return -1
    return int(labelled.label[state])


def text_label(text: Any, content: str) -> int:
    if isinstance(text, Finite):
        return text.words.get(content, -1)
    if isinstance(text, Free):
        return text.label
    if isinstance(text, Bounded):
        return text.label if between(text.low, len(content), text.high) else -1
    return run(text.content, content.encode()) if text.most is None or len(content) <= text.most else -1


def label(value: Value, instance: Any) -> int:
    """Return the label of an instance whose members are written in canonical order; -1 where it is not allowed.

    That order is: declared keys as they are declared, then those that are or have become undeclared ones.
    """
    kind = kind_of(instance)
    if kind == NUMBER:
        return -1 if value.number is None else run(value.number, format(instance, "f").encode())
    if kind == STRING:
        return -1 if value.string is None else text_label(value.string, instance)
    if kind == ARRAY:
        return -1 if value.array is None else array_label(value.array, instance)
    if kind == OBJECT:
        return -1 if value.object is None else object_label(value.object, instance)
    return value.literals.get(json.dumps(instance), -1)


def array_label(automaton: ArrayAutomaton, instance: list[Any]) -> int:
    if automaton.free >= 0:
        return automaton.free
    state = automaton.states[0]
    for item in instance:
        if state.item is None:
            return -1
        if (which := label(state.item.value, item)) < 0 or (on := state.item.following[which]) < 0:
            return -1
        state = automaton.states[on]
    return state.close


def next_step(automaton: ObjectAutomaton, state: ObjectState, key: str) -> Step | None:
    if key in automaton.keys:
        place = automaton.keys.index(key)
        if automaton.language is not None:
            assert run(automaton.language, key.encode()) == place
        return state.steps[place] if state.first <= place < state.last else None
    which = 0
    if automaton.language is not None:
        which = run(automaton.language, key.encode()) - len(automaton.keys)
        assert which >= 0
    return state.others.get(which)


def object_label(automaton: ObjectAutomaton, instance: dict[str, Any]) -> int:
    if automaton.free >= 0:
        return automaton.free
    if automaton.any_order:
        return walked(automaton, list(instance.items()))
    order = {key: place for place, key in enumerate(automaton.keys)}
    left = sorted(instance, key=lambda key: order.get(key, len(order)))
    state = automaton.states[0]
    while left:
        steps = {key: next_step(automaton, state, key) for key in left}
        own = [
            key for key, step in steps.items() if step is not None and key in order and step is not state.others.get(0)
        ]
        key = own[0] if own else left[0]
        step = steps[key]
        if step is None:
            return -1
        if (which := label(step.value, instance[key])) < 0 or (on := step.following[which]) < 0:
            return -1
        state = automaton.states[on]
        left.remove(key)
    return state.close


def steps_of(state: Any) -> list[Step]:
    if isinstance(state, ObjectState):
        found = [step for step in state.steps[state.first : state.last] if step is not None]
        return found + list(state.others.values())
    return [] if state.item is None else [state.item]


def all_states(automaton: Any) -> list[Any]:
    found = [*automaton.states]
    if isinstance(automaton, ObjectAutomaton) and automaton.unordered is not None:
        unordered = automaton.unordered.read()
        numbers = [0]
        for i in numbers:  # which grow meanwhile
            found.append(unordered.state(i))
            following = [to for step in steps_of(found[-1]) for to in step.following]
            numbers += sorted(set(following) - {-1, *numbers})
    return found


def reachable(root: Value) -> list[Value]:
    found: dict[Value, None] = {root: None}
    pending = [root]
    while pending:
        value = pending.pop()
        for automaton in (value.array, value.object):
            for state in () if automaton is None else all_states(automaton):
                for step in steps_of(state):
                    if step.value not in found:
                        found[step.value] = None
                        pending.append(step.value)
    return list(found)


def scalar_labels(value: Value) -> set[int]:
    found = set(value.literals.values())
    if value.number is not None:
        found |= set(value.number.label.tolist())
    text = value.string
    if isinstance(text, (Free, Bounded)):
        found.add(text.label)
    elif isinstance(text, Finite):
        found |= set(text.words.values())
    elif text is not None:
        found |= set(text.content.label.tolist())
    found |= {part.free for part in (value.array, value.object) if part is not None}
    return found - {-1}


def check_trimmed(root: Value) -> None:
    """Everything in a skeleton can be reached and ended: rounds until nothing changes, unlike the code under test."""
    values = reachable(root)
    alive: dict[Value, set[int]] = {value: scalar_labels(value) for value in values}

    def targets(step: Step) -> set[int]:
        return {on for which, on in enumerate(step.following) if on >= 0 and which in alive[step.value]}

    def reached(automaton: Any) -> set[int]:
        found, pending = {0}, [0]
        while pending:
            for step in steps_of(automaton.states[pending.pop()]):
                for on in targets(step) - found:
                    found.add(on)
                    pending.append(on)
        return found

    changed = True
    while changed:
        changed = False
        for value in values:
            for automaton in (value.array, value.object):
                if automaton is not None and automaton.free < 0:
                    labels = {automaton.states[i].close for i in reached(automaton)} - {-1}
                    changed |= not labels <= alive[value]
                    alive[value] |= labels
    for value in values:
        for automaton in (value.array, value.object):
            if automaton is None or automaton.free >= 0:
                continue
            assert reached(automaton) == set(range(len(automaton.states)))
            ends = {i for i, state in enumerate(automaton.states) if state.close >= 0}
            while more := {
                i
                for i, state in enumerate(automaton.states)
                if i not in ends and any(targets(step) & ends for step in steps_of(state))
            }:
                ends |= more
            assert ends == set(range(len(automaton.states)))
            for state in automaton.states:
                for step in steps_of(state):
                    assert len(step.following) == step.value.labels
                    assert any(on >= 0 for on in step.following)
                    assert all(which in alive[step.value] for which, on in enumerate(step.following) if on >= 0)


def made(parts: tuple[Node, ...], any_order: bool = False) -> tuple[Value, int]:
    """Return the trimmed value of disjoint formulas, and its inhabited labels."""
    builder = new_builder(Budget(seconds=60).begin(), any_order)
    value = builder.value(parts)
    return value, builder.trimmed()[value]


def made_unless_refused(parts: tuple[Node, ...], any_order: bool = False) -> tuple[Value, int]:
    """Return the same, unless members would have to be counted that cannot be told apart: such formulas are no case."""
    try:
        return made(parts, any_order)
    except SchemaError as error:
        assume(error.keyword != "minProperties")
        raise


def obj(properties: dict[str, Node], required: str = "", rest: Node = ANY, **patterns: Node) -> Node:
    members = Members(tuple(properties.items()), tuple((f"^{key}", node) for key, node in patterns.items()), rest)
    return all_of([Types(OBJECT), members, *([Required(tuple(required.split()))] if required else [])])


def arr(rest: Node, *prefix: Node) -> Node:
    return all_of([Types(ARRAY), Items(prefix, rest)])


def word(*words: str) -> Node:
    return all_of([Types(STRING), Words(words)])


INT = all_of([Types(NUMBER), Integer()])
STR = Types(STRING)


# ------------------------------------------------------------------------------------------------- random formulas

scalars = st.sampled_from([None, True, False, *NUMBERS, *STRINGS])
instances = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4),
    max_leaves=8,
)
counts = st.tuples(st.integers(0, 3), st.none() | st.integers(0, 4))
STRICT = Approximations()
UNIQUE = [word("a"), word("b"), all_of([Types(NUMBER), OneOfValues(frozenset([Decimal(1)]))]), Types(NULL)]

leaves = st.one_of(
    st.sampled_from([ANY, NEVER, INT, STR, Types(NULL), Types(BOOLEAN), Types(OBJECT), Types(ARRAY | STRING)]),
    st.lists(st.sampled_from(STRINGS), min_size=1, max_size=3, unique=True).map(lambda words: word(*words)),
    st.sets(st.sampled_from(NUMBERS), min_size=1).map(lambda values: OneOfValues(frozenset(values))),
    st.builds(lambda low, high: Length(low, high), st.integers(0, 2), st.none() | st.integers(0, 3)),
    st.just(Pattern("^a")),
    st.builds(
        Range, st.sampled_from([None, Decimal(0)]), st.sampled_from([None, Decimal(2)]), st.booleans(), st.booleans()
    ),
    st.just(Multiple(Decimal("0.5"))),
    st.just(Required(("a",))),
    counts.map(lambda c: ItemCount(*c)),
    counts.map(lambda c: MemberCount(*c, None)),
    counts.map(lambda c: MemberCount(*c, KeywordPlace(("", "minProperties"), STRICT))),
    st.lists(st.sampled_from(KEYS), min_size=1, max_size=3, unique=True).map(lambda keys: Required(tuple(keys))),
    st.sampled_from([Names(word("a", "b", "x")), Names(Pattern("^x")), Names(Not(Pattern("^a"))), Names(Length(0, 1))]),
    st.lists(st.sampled_from(UNIQUE), min_size=1, max_size=4, unique=True).map(lambda left: Unique(tuple(left))),
)


def composed(inner: st.SearchStrategy[Node]) -> st.SearchStrategy[Node]:
    perhaps_later = inner | inner.map(lambda node: Reference(lambda: node))
    properties = st.dictionaries(st.sampled_from(KEYS), perhaps_later, max_size=3).map(lambda d: tuple(d.items()))
    patterns = st.dictionaries(st.sampled_from(["^x", "^a", "^"]), perhaps_later, max_size=1).map(
        lambda d: tuple(d.items())
    )
    few = st.lists(inner, min_size=2, max_size=3)
    return st.one_of(
        st.builds(Members, properties, st.just(()) | patterns, st.sampled_from([ANY, ANY, NEVER]) | perhaps_later),
        st.builds(Items, st.lists(perhaps_later, max_size=2).map(tuple), st.sampled_from([ANY, NEVER]) | perhaps_later),
        st.builds(lambda node, count: Contains(node, *count), perhaps_later, counts),
        few.map(all_of),
        few.map(any_of),
        few.map(lambda nodes: all_of([Types(OBJECT), *nodes])),
        st.tuples(inner, inner).map(lambda p: any_of([all_of([p[0], negate(p[1])]), all_of([p[1], negate(p[0])])])),
        inner.map(negate),
    )


formulas = st.recursive(leaves, composed, max_leaves=10)


@pytest.mark.long
@given(formulas, st.lists(instances, min_size=1, max_size=12))
@settings(max_examples=600, deadline=None, suppress_health_check=list(HealthCheck))
@example(Not(Members((("a", STR),), (), ANY)), [{"a": Decimal(1)}, {"a": "a", "x": None}])
@example(
    all_of([Members((), (("^x", INT),), STR), Names(Pattern("^x")), MemberCount(2, 3, None)]),
    [{"x": Decimal(1), "xa": Decimal(2)}],
)
def test_one_formula_and_its_skeleton_agree_on_every_instance(node: Node, some: list[Any]) -> None:
    value, alive = made_unless_refused((node,))
    for instance in some:
        found = label(value, instance) == 0
        check_label(node, instance, found)
        assert not found or alive & 1
    if alive:
        check_trimmed(value)


@pytest.mark.long
@given(st.lists(formulas, min_size=2, max_size=4), st.lists(instances, min_size=1, max_size=12))
@settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))
def test_labels_tell_disjoint_formulas_apart(nodes: list[Node], some: list[Any]) -> None:
    check_labels(nodes, some)


def check_labels(nodes: list[Node], some: list[Any], any_order: bool = False) -> None:
    """Hold the labels of formulas, each without those before it, against what is said of instances."""
    parts = tuple(all_of([node, *map(negate, nodes[:i])]) for i, node in enumerate(nodes))
    value, alive = made_unless_refused(parts, any_order=any_order)
    for instance in some:
        for ordered in itertools.islice(orders(instance), 60) if any_order else (instance,):
            found = label(value, ordered)
            for i, part in enumerate(parts):
                check_label(part, ordered, found == i)
            assert found < 0 or alive >> found & 1
    if alive:
        check_trimmed(value)
        check_ends(value)


def check_ends(root: Value) -> None:
    """Of the objects whose members come in any order, every state that some text comes to can be ended."""
    values = reachable(root)
    for value in values:
        automaton = value.object
        if automaton is None or automaton.free >= 0 or not automaton.any_order:
            continue
        states = AnyOrder(automaton)
        before: dict[int, set[int]] = {}
        for i, state in enumerate(states):  # which grow meanwhile
            for step in steps_of(state):
                for to in step.following:
                    if to >= 0:
                        before.setdefault(to, set()).add(i)
        ends = {i for i, state in enumerate(states) if state.close >= 0}
        pending = list(ends)
        while pending:
            for i in before.get(pending.pop(), set()) - ends:
                ends.add(i)
                pending.append(i)
        assert len(ends) == len(states)


@pytest.mark.long
@given(formulas, st.lists(instances, min_size=1, max_size=8))
@settings(max_examples=600, deadline=None, suppress_health_check=list(HealthCheck))
@example(  # of two members one is `b`, so that `a` must be a text
    all_of(
        [
            obj({"a": ANY, "b": ANY}, rest=NEVER),
            MemberCount(2, None, None),
            any_of([Not(Required(("b",))), obj({"a": STR})]),
        ]
    ),
    [{"a": "", "b": None}, {"a": None, "b": None}, {"a": ""}],
)
@example(
    all_of([obj({"c": ANY}, "c"), Not(MemberCount(2, None, None))]), [{"c": None}, {"a": None}, {"c": None, "a": ""}]
)
def test_in_any_order_a_formula_and_its_skeleton_agree_on_every_instance(node: Node, some: list[Any]) -> None:
    value, alive = made_unless_refused((node,), any_order=True)
    for instance in some:
        for ordered in itertools.islice(orders(instance), 60):
            found = label(value, ordered) == 0
            check_label(node, ordered, found)
            assert not found or alive & 1
    if alive:
        check_trimmed(value)
        check_ends(value)


@pytest.mark.long
@given(st.lists(formulas, min_size=2, max_size=3), st.lists(instances, min_size=1, max_size=8))
@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
def test_in_any_order_labels_tell_disjoint_formulas_apart(nodes: list[Node], some: list[Any]) -> None:
    try:
        check_labels(nodes, some, any_order=True)
    except SchemaError as error:  # a count of members that is met in a state which is made late
        if error.keyword not in ("minProperties", "maxProperties"):
            raise
        reject()


def test_in_any_order_states_are_made_as_texts_come_to_them() -> None:
    """An object that is in neither of two has a state for each set of keys that passed: few of them are made."""
    keys = [f"k{i}" for i in range(40)]
    one, two = (obj(dict.fromkeys(keys, node)) for node in (STR, INT))
    neither, alive = made((all_of([Types(OBJECT), negate(one), negate(two)]),), any_order=True)
    assert alive
    x, last = Decimal(1), keys[-1]
    assert walk(neither, [(key, x) for key in keys[1:]]) == -1
    assert walk(neither, [*[(key, x) for key in keys[1:]], ("k0", "")]) == 0
    assert walk(neither, [(last, ""), *[(key, "") for key in keys[1:-1]], ("k0", x)]) == 0
    assert neither.object is not None
    assert neither.object.unordered is not None
    states = neither.object.unordered.read()
    assert isinstance(states, UnorderedDerivatives)
    assert sum(state is not None for state in states.states) < 200


def small_instances() -> list[Any]:
    some: list[Any] = [None, True, Decimal(1), Decimal("0.5"), "a", "b", "x1", ""]
    inner = [None, Decimal(1), "a", "b", [], {}, {"a": "a"}]
    for count in range(4):
        some += [list(items) for items in itertools.product(inner[:4] if count == 3 else inner, repeat=count)]
    for keys in itertools.chain.from_iterable(itertools.combinations(["a", "b", "x", "y"], n) for n in range(4)):
        some += [dict(zip(keys, values, strict=True)) for values in itertools.product(inner[:5], repeat=len(keys))]
    return some


SMALL = small_instances()


@pytest.mark.long
@given(formulas)
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
def test_formulas_agree_with_their_skeletons_on_all_small_instances(node: Node) -> None:
    value, _ = made_unless_refused((node,))
    for instance in SMALL:
        check_label(node, instance, label(value, instance) == 0)


# ----------------------------------------------------------------------------------------------------- by example

ROWS: dict[str, tuple[Node, list[Any], list[Any]]] = {
    "an object whose keys are required or not": (
        obj({"a": STR, "b": INT}, "a"),
        [{"a": "x"}, {"a": "x", "b": Decimal(1)}, {"a": "x", "c": None}],
        [{}, {"b": Decimal(1)}, {"a": None}, "a"],
    ),
    "a closed object": (obj({"a": STR}, rest=NEVER), [{}, {"a": ""}], [{"b": ""}, {"a": "", "b": ""}]),
    "a key that is required and not declared": (obj({"a": STR}, "z"), [{"z": None}], [{"a": ""}]),
    "a key that is forbidden": (
        all_of([obj({"a": STR, "b": STR}), Not(Required(("a",)))]),
        [{}, {"b": ""}, {"c": ""}],
        [{"a": ""}, {"a": "", "b": ""}],
    ),
    "a property that is false": (obj({"a": NEVER, "b": STR, "c": NEVER}), [{}, {"b": ""}], [{"a": ""}, {"c": None}]),
    "not all of two keys": (
        all_of([Types(OBJECT), Not(Required(("a", "b")))]),
        [{}, {"a": None}, {"b": None}, {"x": None}],
        [{"a": None, "b": None}],
    ),
    "a key that depends on another": (
        all_of([obj({"a": STR, "b": STR}), any_of([Not(Required(("a",))), Required(("b",))])]),
        [{}, {"b": ""}, {"a": "", "b": ""}],
        [{"a": ""}],
    ),
    "a count of members": (
        all_of([obj({"a": STR, "b": STR}), MemberCount(2, 3, None)]),
        [{"a": "", "b": ""}, {"a": "", "x": None}, {"x": None, "y": None, "z": None}],
        [{}, {"a": ""}, {"a": "", "b": "", "x": None, "y": None}],
    ),
    "objects told apart by a constant": (
        any_of([obj({"t": word("a"), "v": INT}, "t v"), obj({"t": word("b"), "v": STR}, "t v")]),
        [{"t": "a", "v": Decimal(1)}, {"t": "b", "v": ""}],
        [{"t": "a", "v": ""}, {"t": "b", "v": Decimal(1)}, {"t": "c", "v": ""}, {"v": ""}],
    ),
    "objects told apart by a constant that comes last": (
        any_of([obj({"v": INT, "t": word("a")}, "t v"), obj({"v": any_of([STR, INT]), "t": word("b")}, "t v")]),
        [{"t": "a", "v": Decimal(1)}, {"t": "b", "v": ""}, {"t": "b", "v": Decimal(1)}],
        [{"t": "a", "v": ""}],
    ),
    "an array that begins with given items": (
        arr(STR, INT, NEVER),
        [[], [Decimal(1)]],
        [["a"], [Decimal(1), Decimal(1)], [Decimal(1), "a"]],
    ),
    "a count of items": (
        all_of([arr(STR, INT), ItemCount(2, 3)]),
        [[Decimal(1), ""], [Decimal(1), "", ""]],
        [[], [Decimal(1)], ["", ""], [Decimal(1), "", "", ""]],
    ),
    "exactly two of a kind": (
        all_of([Types(ARRAY), Contains(word("a"), 2, 2)]),
        [["a", "a"], ["a", None, "a"]],
        [["a"], [], ["a", "a", "a"]],
    ),
    "distinct items": (
        all_of([Types(ARRAY), Unique((word("a"), word("b"), Types(NULL)))]),
        [[], ["b", "a"], [None, "a", "b"]],
        [["a", "a"], [None, "b", None], ["c"]],
    ),
    "distinct words": (
        all_of([Types(ARRAY), Unique((word("a"), word("b"), word("ab"))), ItemCount(1, 2)]),
        [["b", "a"], ["ab"], ["ab", "a"]],
        [[], ["a", "a"], ["b", "a", "ab"], ["aa"], [None]],
    ),
    "distinct words of a pattern": (
        all_of([Types(ARRAY), Unique((word("a"), word("b"), word("ab"))), Items((), Pattern("^a"))]),
        [[], ["ab", "a"], ["a"]],
        [["b"], ["a", "a"], ["a", "b"], [Decimal(1)]],
    ),
    "distinct items, of which words may come": (
        all_of([Types(ARRAY), Unique((word("a"), INT, word("b"))), Items((), all_of([STR, Not(Words(("b",)))]))]),
        [[], ["a"]],
        [["b"], ["a", "a"], [Decimal(1)], ["a", Decimal(1)]],
    ),
    "names and patterns": (
        all_of([obj({"a": STR}, rest=NEVER, x=INT), Names(Length(0, 2))]),
        [{"a": "", "xa": Decimal(1)}, {"x": Decimal(2)}],
        [{"a": "", "xyz": Decimal(1)}, {"x": ""}, {"y": ""}],
    ),
}


def test_arrays_of_distinct_words_share_one_value_and_none_longer_than_there_are_words_is_begun() -> None:
    words = [f"w{i}" for i in range(12)]
    node = all_of([Types(ARRAY), Unique(tuple(map(word, words))), ItemCount(3, None)])
    automaton = build(node, Budget().begin()).array
    assert automaton is not None
    assert len(automaton.states) == 2**12
    assert len({id(state.item.value) for state in automaton.states if state.item is not None}) == 1
    with pytest.raises(SchemaError, match="matches no value"):
        build(all_of([Types(ARRAY), Unique((word("a"), word("b"))), ItemCount(3, None)]), Budget().begin())


@pytest.mark.parametrize("name", ROWS)
def test_rows(name: str) -> None:
    """Instances that a formula allows and refuses are allowed and refused by its skeleton."""
    node, allowed, refused = ROWS[name]
    value = build(node, Budget().begin())
    check_trimmed(value)
    assert [label(value, instance) for instance in allowed] == [0] * len(allowed)
    assert [label(value, instance) for instance in refused] == [-1] * len(refused)


def test_keys_are_written_in_the_order_of_properties_then_of_what_is_only_required() -> None:
    """A key that is only required follows its conjunction's properties; one with a property elsewhere waits for it."""
    node = all_of([any_of([Required(("b",)), Required(("a",))]), obj({"c": STR, "a": STR}, "z a"), obj({"b": STR})])
    automaton = build(node, Budget().begin()).object
    assert automaton is not None
    assert automaton.keys == ("c", "a", "b", "z")


def test_the_order_of_keys_agrees_with_each_alternative() -> None:
    """An alternative's own order is kept, also where another mentions a later key before."""
    node = any_of(
        [obj({"id": STR, "text": STR, "type": word("a")}, "type"), obj({"id": STR, "data": STR, "type": STR})]
    )
    automaton = build(node, Budget().begin()).object
    assert automaton is not None
    assert automaton.keys == ("id", "text", "data", "type")
    assert in_order([["a", "b", "c"], ["c", "a"], ["d", "b"]]) == ("d", "a", "b", "c")


def walk(value: Value, members: list[tuple[str, Any]]) -> int:
    """Return the label of an object whose members are written just so, repetitions included."""
    assert value.object is not None
    return walked(value.object, members)


def walked(automaton: ObjectAutomaton, members: list[tuple[str, Any]]) -> int:
    states = AnyOrder(automaton) if automaton.any_order else automaton.states
    state = states[0]
    for key, member in members:
        step = next_step(automaton, state, key)
        if step is None or (which := label(step.value, member)) < 0 or (on := step.following[which]) < 0:
            return -1
        state = states[on]
    return state.close


def test_a_key_of_an_alternative_that_is_out_is_an_undeclared_one() -> None:
    """Once the constant tells which alternative it is, the keys of the others come anywhere, in any order."""
    node = any_of([obj({"t": word("a"), "x": INT, "y": INT}, "t"), obj({"t": word("b"), "z": INT, "a": INT}, "t")])
    value = build(node, Budget().begin())
    one = Decimal(1)
    assert value.object is not None
    assert len(value.object.states) <= 7
    assert walk(value, [("t", "a"), ("y", one), ("a", None), ("z", None)]) == 0
    assert walk(value, [("t", "b"), ("z", one), ("a", one), ("y", None), ("b", ""), ("x", None)]) == 0
    assert walk(value, [("t", "b"), ("y", None), ("z", one), ("x", ""), ("a", one)]) == 0
    assert walk(value, [("t", "b"), ("y", None), ("z", None)]) == -1
    assert walk(value, [("t", "b"), ("a", one), ("z", one)]) == -1


def test_a_key_that_decided_an_alternative_is_never_repeated() -> None:
    """Its last value counts for a reader: written twice, `a` could be wrong first and right then, in both of oneOf."""
    one, two = obj({"a": INT, "b": INT}), obj({"b": INT, "c": INT})
    value = build(any_of([all_of([one, negate(two)]), all_of([two, negate(one)])]), Budget().begin())
    x = Decimal(1)
    assert walk(value, [("a", "wrong"), ("b", x)]) == 0
    assert walk(value, [("a", "wrong"), ("b", x), ("a", x)]) == -1
    assert walk(value, [("a", "wrong"), ("a", x), ("b", x)]) == -1
    assert walk(value, [("a", "wrong"), ("b", x), ("z", None), ("a", x)]) == -1


@pytest.mark.long
@given(formulas, st.lists(st.tuples(st.sampled_from(KEYS), scalars), max_size=5))
@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
def test_members_just_as_they_are_written_are_allowed_only_if_the_object_is(node: Node, members: list[Any]) -> None:
    """Whatever the order and what is repeated, nothing is allowed that a reader finds not to be in the formula."""
    if any(type(atom) is MemberCount and atom.place is None for atom in atoms(node)):  # which count what is written
        members = [(key, member) for i, (key, member) in enumerate(members) if key not in dict(members[:i])]
    for any_order in (False, True):
        value, _ = made_unless_refused((node,), any_order)
        if value.object is not None and value.object.free < 0 and walk(value, members) == 0:
            assert holds(node, dict(members))


def test_values_alike_are_one_object() -> None:
    """Members and items with equal formulas share a value, and equal arrays and objects an automaton."""
    inner = obj({"x": STR}, "x")
    node = obj({"a": Reference(lambda: inner), "b": inner, "c": any_of([Types(NULL), inner])})
    automaton = build(node, Budget().begin()).object
    assert automaton is not None
    a, b, c = (step.value for step in automaton.states[0].steps if step is not None)
    assert a is b
    assert c is not a
    assert c.object is a.object


def test_nodes_of_one_form_are_one_object_until_nobody_has_them() -> None:
    assert obj({"only here": STR}) is obj({"only here": Types(STRING)})
    assert Reference(lambda: ANY) is not Reference(lambda: ANY)
    held = [Words((f"only here {i}",)) for i in range(100)]
    assert all(Words((f"only here {i}",)) is one for i, one in enumerate(held))
    seen = [weakref.ref(one) for one in held]
    held.clear()
    assert not any(one() for one in seen)


def test_nodes_made_by_threads_at_once_are_one_object() -> None:
    def make(_: int) -> list[Node]:
        return [obj({f"threads {i}": word(f"{i}")}) for i in range(300)]

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(8) as pool:
            found = list(pool.map(make, range(8)))
    finally:
        sys.setswitchinterval(interval)
    assert all(node is first for nodes in found[1:] for node, first in zip(nodes, found[0], strict=True))


@given(st.lists(st.lists(st.tuples(st.integers(0, 3), st.booleans()), unique_by=lambda pair: pair[0]), min_size=1))
def test_the_condition_of_several_branches_is_their_union(branches: list[list[tuple[int, bool]]]) -> None:
    tests = [Required((key,)) for key in "abcd"]
    made_of = [
        Branch((), ALL, tuple(tests[i] for i, ok in one if ok), tuple(tests[i] for i, ok in one if not ok))
        for one in branches
    ]
    found = either(made_of)
    for size in range(5):
        for keys in itertools.combinations("abcd", size):
            expected = any(all((("abcd"[i] in keys) == ok) for i, ok in one) for one in branches)
            assert holds(found, dict.fromkeys(keys)) == expected


def test_what_one_branch_passes_need_not_fail_in_another() -> None:
    a, b, c = (Required((key,)) for key in "abc")
    chain = [Branch((), ALL, (a,), ()), Branch((), ALL, (b,), (a,)), Branch((), ALL, (c,), (a, b))]
    assert either(chain) is any_of([a, b, c])


@given(st.permutations(UNIQUE), st.integers(1, 4), st.sampled_from([STR, INT, ANY, word("a", "zz"), any_of(UNIQUE)]))
def test_distinct_items_are_those_of_their_values_and_of_the_items(left: list[Node], size: int, rest: Node) -> None:
    node = all_of([Types(ARRAY), Items((), rest), Unique(tuple(left[:size])), ItemCount(0, 3)])
    value, _ = made((node,))
    for length in range(4):
        for items in itertools.product(["a", "b", Decimal(1), None], repeat=length):
            assert label(value, list(items)) == (0 if holds(node, list(items)) else -1), items


def test_any_object_and_any_array_are_free() -> None:
    value = build(Types(OBJECT | ARRAY), Budget().begin())
    assert value.object is not None
    assert value.array is not None
    assert (value.object.free, value.array.free, value.object.states) == (0, 0, [])


def test_states_of_a_usual_object_share_their_steps() -> None:
    automaton = build(obj(dict.fromkeys(KEYS, STR), "b"), Budget().begin()).object
    assert automaton is not None
    assert len({id(state.steps) for state in automaton.states}) == 1
    assert [(state.first, state.last) for state in automaton.states] == [(0, 2), (1, 2), *((i, 6) for i in range(2, 7))]


def test_no_state_stands_behind_a_key_that_may_not_be() -> None:
    automaton = build(obj({"a": STR, "b": NEVER, "c": STR, "d": NEVER}), Budget().begin()).object
    assert automaton is not None
    assert [(state.first, state.last) for state in automaton.states] == [(0, 4), (1, 4), (3, 4)]
    assert object_label(automaton, {"a": "", "c": "", "e": ""}) == 0
    assert object_label(automaton, {"a": "", "d": ""}) == -1


# ------------------------------------------------------------------------------------------------------- recursion


def test_a_recursive_schema_is_a_loop() -> None:
    tree: Reference = Reference(lambda: obj({"v": INT, "next": any_of([Types(NULL), tree])}, "v next", NEVER))
    value = build(tree, Budget().begin())
    check_trimmed(value)
    one, two = Decimal(1), Decimal(2)
    assert label(value, {"v": one, "next": {"v": two, "next": None}}) == 0
    assert label(value, {"v": one, "next": {"v": two, "next": "a"}}) == -1
    assert len(reachable(value)) < 6


def test_recursion_under_a_negation_is_a_loop_with_labels() -> None:
    """Arrays of arrays .. none of which has a string in it, one of which has, in one value with two labels."""
    clean: Reference = Reference(lambda: any_of([Types(NULL), arr(clean)]))
    parts = (all_of([clean, Types(ARRAY)]), all_of([negate(clean), Types(ARRAY)]))
    value, alive = made(parts)
    check_trimmed(value)
    assert alive == 3
    for instance in ([], [[None], []], [["a"]], [[], [[], [[], "a"]], None], ["a", []]):
        assert label(value, instance) == (0 if holds(clean, instance) else 1)


ENDLESS: Reference = Reference(lambda: obj({"next": ENDLESS}, "next"))
UNSATISFIABLE: dict[str, tuple[Node, str]] = {
    "nothing": (NEVER, "no value is left"),
    "types that exclude each other": (all_of([STR, Types(NUMBER)]), "no value is left"),
    "a required member that is false": (obj({"a": NEVER}, "a"), "the member 'a' is required, and no value fits it"),
    "a member not allowed": (obj({"a": STR}, "b", NEVER), "the member 'b' is required, and no value fits it"),
    "deeper down": (
        obj({"a": Reference(lambda: obj({"b": all_of([word("x"), Length(2, None)])}, "b"))}, "a"),
        "the member 'a' is required, and no value fits it: the member 'b' is required, and no value fits it: no string",
    ),
    "a member required and forbidden": (
        all_of([obj({}, "a b"), Not(Required(("a",)))]),
        "'a' is required, and may not",
    ),
    "an object within itself without end": (ENDLESS, "the member 'next' is required"),
    "an array that must have an item and may not": (all_of([arr(NEVER), ItemCount(1, None)]), "no array fits"),
    "counts that cross": (all_of([Types(ARRAY), ItemCount(3, 2)]), "no array fits"),
    "more members than there are keys": (
        all_of([obj({"a": STR}, rest=NEVER), MemberCount(2, None, None)]),
        "no object has",
    ),
    "alternatives that are all impossible": (any_of([obj({"a": NEVER}, "a"), obj({"b": NEVER}, "b")]), "no object has"),
}


@pytest.mark.parametrize("name", UNSATISFIABLE)
def test_what_matches_nothing_is_an_error_that_says_why(name: str) -> None:
    node, reason = UNSATISFIABLE[name]
    with pytest.raises(SchemaError, match="the schema matches no value") as caught:
        build(node, Budget().begin())
    assert reason in str(caught.value)


def test_alternatives_that_match_nothing_vanish() -> None:
    """What leads only to an endless or impossible value is not in the skeleton."""
    node = obj({"a": STR, "b": any_of([INT, ENDLESS]), "c": ENDLESS, "d": STR}, rest=NEVER)
    value = build(node, Budget().begin())
    check_trimmed(value)
    automaton = value.object
    assert automaton is not None
    steps = automaton.states[0].steps
    assert steps[2] is None
    assert steps[1] is not None
    assert steps[1].value.object is None
    assert label(value, {"a": "", "d": ""}) == 0
    assert label(value, {"a": "", "c": ""}) == -1


# ---------------------------------------------------------------------------------------------- large and hostile


def timed(node: Node, seconds: float = 60.0) -> tuple[Value, float]:
    started = time.perf_counter()
    return build(node, Budget(seconds=seconds).begin()), time.perf_counter() - started


@pytest.mark.long
def test_deep_nesting_does_not_exhaust_the_stack() -> None:
    node: Node = STR
    for _ in range(10_000):
        node = obj({"a": Reference(lambda node=node: node)}, "a")
    value, _ = timed(node)
    for _ in range(10_000):
        assert value.object is not None
        step = value.object.states[0].steps[0]
        assert step is not None
        value = step.value
    assert isinstance(value.string, Free)


def test_thousands_of_properties_take_linear_time() -> None:
    value, seconds = timed(obj({f"key{i}": [STR, INT, Types(NULL)][i % 3] for i in range(10_000)}))
    assert value.object is not None
    assert len(value.object.states) == 10_001
    assert seconds < 5
    assert label(value, {"key7": Decimal(1), "key9999": ""}) == 0


def test_thousands_of_properties_one_of_which_is_impossible_take_linear_time() -> None:
    value, seconds = timed(obj({f"key{i}": ENDLESS if i == 5000 else STR for i in range(10_000)}, "key9999"))
    assert seconds < 10
    assert label(value, {"key7": "", "key9999": ""}) == 0
    assert label(value, {"key7": "", "key5000": "", "key9999": ""}) == -1


def test_many_alternatives_told_apart_by_a_constant_take_little_time() -> None:
    branches = [obj({"t": word(f"a{i}"), f"v{i}": INT}, f"t v{i}", NEVER) for i in range(300)]
    value, seconds = timed(any_of(branches))
    assert seconds < 5
    assert label(value, {"t": "a7", "v7": Decimal(1)}) == 0
    assert label(value, {"t": "a7", "v8": Decimal(1)}) == -1


def test_overlapping_alternatives_within_budget_or_an_error() -> None:
    """Exactly one of many alternatives about different keys has exponentially many states."""
    branches = [all_of([obj({f"k{i}": STR}), Required((f"k{i}",))]) for i in range(40)]
    one_of = any_of([all_of([b, *[negate(c) for c in branches if c is not b]]) for b in branches])
    try:
        value, _ = timed(one_of, seconds=3)
    except BudgetError:
        return
    assert label(value, {"k3": ""}) == 0


@pytest.mark.long
def test_what_members_are_asked_is_told_apart_once_for_all_counts() -> None:
    """A state for each number of members would else find it out anew."""
    some = [negate(Members((), ((letter, negate(word(letter.upper()))),), ANY)) for letter in "ab"]
    value, seconds = timed(all_of([Types(OBJECT), *some, MemberCount(2, 1000, None)]))
    assert seconds < 5
    needed = {"a": "A", "xb": "B"}
    for count, expected in ((1, -1), (2, 0), (1000, 0), (1001, -1)):
        others = {f"x{i}": None for i in range(count - 2)}
        assert label(value, dict(list((others | needed).items())[-count:])) == expected
    assert label(value, needed | {"xb": "b"}) == -1


@pytest.mark.long
@pytest.mark.parametrize("shape", [ItemCount, MemberCount])
def test_huge_bounds_are_met_by_the_budget(shape: Any) -> None:
    kind = shape.kind
    inner: Node = Items((), STR) if kind == ARRAY else Members((), (), STR)
    started = time.perf_counter()
    with pytest.raises(BudgetError):
        build(
            all_of([Types(kind), inner, shape(10_000_000, None, *[None] * (shape is MemberCount))]),
            Budget(seconds=4).begin(),
        )
    assert time.perf_counter() - started < 20


def test_deep_nesting_in_place_is_an_error_in_words() -> None:
    node: Node = STR
    for i in range(20_000):
        node = AllOf(Length(i, None), AnyOf(Pattern("^a"), node))
    with pytest.raises(ConstraintError, match="stack of calls"), enough_stack():
        build(node, Budget().begin())


def test_a_state_for_every_count_of_items() -> None:
    value, _ = timed(all_of([arr(STR), ItemCount(1000, 3000)]))
    assert value.array is not None
    assert len(value.array.states) == 3001
    assert [label(value, [""] * n) for n in (999, 1000, 3000, 3001)] == [-1, 0, 0, -1]


def test_parts_are_asked_about_once_for_the_same_arguments_and_again_for_others():
    def said_by(kept: Callable[[Any], Any]) -> Any:
        def said(node: Node, mark: str) -> str:
            inside = "or" if type(node) is AnyOf else mark
            parts = node.args if type(node) is AllOf or type(node) is AnyOf else ()
            return f"{mark}({','.join(asked(part, inside) for part in parts)})"

        asked = kept(said)
        return asked

    part = any_of([Length(1, 2), Pattern("a")])
    whole = all_of([part, any_of([all_of([part, Pattern("b")]), Pattern("c")])])
    for mark in ("x", "y"):
        assert said_by(once_each)(whole, mark) == said_by(lambda said: said)(whole, mark)

    count = 0

    @once_each
    def visit(node: Node) -> None:
        nonlocal count
        count += 1
        for each in node.args if type(node) is AllOf or type(node) is AnyOf else ():
            visit(each)

    for i in range(40):
        whole = any_of([all_of([whole, Length(i, 90)]), all_of([whole, Length(i, 91)])])
    visit(whole)
    assert count < 1_000
