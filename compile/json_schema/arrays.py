"""Arrays: automata whose letters are items."""

from __future__ import annotations

from collections.abc import Sequence

from .algebra import (
    ANY,
    NEVER,
    STRING,
    AllOf,
    AnyOf,
    Contains,
    ItemCount,
    Items,
    Node,
    Not,
    Types,
    Unique,
    all_of,
    any_of,
    atoms,
    closes,
    counted,
    is_any,
    is_never,
    negate,
)
from .skeleton import ArrayAutomaton, ArrayState, Step, Value
from .value_builder import ValueBuilder
from .value_tests import Case

_FINDING = "finding the states of an array"


def arrays(builder: ValueBuilder, parts: tuple[Node, ...]) -> ArrayAutomaton | None:
    """Return the automaton of formulas about arrays; None if plainly no array is in any."""
    if len(parts) == 1:
        pieces = parts[0].args if type(parts[0]) is AllOf else parts
        if all(type(piece) is Items or type(piece) is ItemCount for piece in pieces):
            return _counted_items(builder, pieces)
        if all(type(piece) is Unique or type(piece) is ItemCount or _same_for_all(piece) for piece in pieces):
            words = _single_words(builder, pieces)
            if words is not None:
                return _distinct_words(builder, words, pieces)
    return _Derivatives(builder, parts).automaton


def _counted_items(builder: ValueBuilder, pieces: Sequence[Node]) -> ArrayAutomaton | None:
    """Return the automaton of a conjunction of Items and ItemCount, whose states are numbers of items."""
    low, high, longest = 0, None, 0
    conditions = []
    for piece in pieces:
        if type(piece) is Items:
            conditions.append(piece)
            longest = max(longest, len(piece.args[0]))
        else:
            low = max(low, piece.args[0])
            if piece.args[1] is not None:
                high = piece.args[1] if high is None else min(high, piece.args[1])
    last = max(low, longest) if high is None else high  # the last state; it loops if there is no bound
    if last < low:
        return None
    builder.meter.check(states=last + 1, doing="counting the items of an array")
    states = []
    value: Value | None = None
    for place in range(last + 1):
        if place <= longest:  # from there on all items are alike
            node = all_of([builder.cases.flat(_item(condition, place)) for condition in conditions])
            value = None if is_never(node) else builder.one(node)
        if value is None or place == high:
            if place < low:
                return None
            states.append(ArrayState(0, None))
            break
        on = place if place == last else place + 1
        states.append(ArrayState(0 if place >= low else -1, Step(value, (on,))))
    automaton = ArrayAutomaton(states=states)
    builder.sound.add(automaton)
    return automaton


def _same_for_all(piece: Node) -> bool:
    """Return whether a formula asks the same of all items."""
    return type(piece) is Items and not piece.args[0]


def _single_words(builder: ValueBuilder, pieces: Sequence[Node]) -> list[Node] | None:
    """Return the node of each word that items may be, if `Unique` lists words; None if it lists anything else."""
    uniques = [piece for piece in pieces if type(piece) is Unique]
    if len(uniques) != 1:
        return None
    asked = [builder.cases.flat(piece.args[1]) for piece in pieces if type(piece) is Items]
    values = [builder.cases.flat(value) for value in uniques[0].args[0]]
    found = [node for value in values if builder.by_kind(node := all_of([value, *asked]))]
    return found if all(builder.by_kind(node).keys() == {STRING} for node in found) else None


def _distinct_words(builder: ValueBuilder, words: Sequence[Node], pieces: Sequence[Node]) -> ArrayAutomaton | None:
    """Return the automaton of arrays of distinct words, whose states are sets of the words that are left.

    All its steps share one value, although words that are gone lead nowhere. Each node is one word, as `Unique` has it,
    or none. So the value is a list of words, and the emitter begins no listed word that leads nowhere.
    """
    counts = [piece.args for piece in pieces if type(piece) is ItemCount]
    low = max([low for low, *_ in counts], default=0)
    high = min([len(words), *(high for _, high, *_ in counts if high is not None)])
    if high < low:
        return None
    value = builder.value(tuple(words)) if words else None
    sets = [(1 << len(words)) - 1]
    number = {sets[0]: 0}
    states: list[ArrayState] = []
    for left in sets:  # which grows meanwhile
        if not len(states) & 255:
            builder.meter.check(states=len(sets), doing=_FINDING)
        taken = len(words) - left.bit_count()
        item = None
        if value is not None and taken < high:
            following = []
            for k in range(len(words)):
                rest = left & ~(1 << k)
                if rest != left and rest not in number:
                    number[rest] = len(sets)
                    sets.append(rest)
                following.append(number[rest] if rest != left else -1)
            item = Step(value, tuple(following))
        states.append(ArrayState(0 if taken >= low else -1, item))
    automaton = ArrayAutomaton(states=states)
    builder.sound.add(automaton)
    return automaton


def _item(items: Items, place: int) -> Node:
    """Return the node of the item at a place."""
    prefix: tuple[Node, ...] = items.args[0]
    rest: Node = items.args[1]
    return prefix[place] if place < len(prefix) else rest


class _Derivatives:
    """The automaton of any formulas.

    A state is a place, up to the longest prefix, and what is left of each formula.
    """

    def __init__(self, builder: ValueBuilder, parts: tuple[Node, ...]) -> None:
        self._builder = builder
        self._longest = 0
        for atom in atoms(*parts):
            if type(atom) is Items:
                self._longest = max(self._longest, len(atom.prefix))
            elif type(atom) is Unique:
                builder.cases.exclude(atom.left)
        self._states: dict[tuple[int, tuple[Node, ...]], int] = {}
        self._found: list[tuple[int, tuple[Node, ...]]] = []
        self.automaton = ArrayAutomaton()
        self._state(0, parts)
        for place, left in self._found:  # which grows meanwhile
            builder.meter.check(states=len(self._found), doing=_FINDING)
            close = next((label for label, node in enumerate(left) if closes(node)), -1)
            self.automaton.states.append(ArrayState(close, self._step(place, left)))

    def _state(self, place: int, left: tuple[Node, ...]) -> int:
        key = (place, left)
        found = self._states.get(key)
        if found is None:
            found = self._states[key] = len(self._found)
            self._found.append(key)
        return found

    def _step(self, place: int, left: tuple[Node, ...]) -> Step | None:
        cases = self._by_values(left[0], place) if len(left) == 1 else None
        if cases is None:
            cases = self._builder.cases.expand(tuple([self._after(node, place) for node in left]))
        if not cases:
            return None
        on = min(place + 1, self._longest)
        following = tuple([self._state(on, rest) for _, rest in cases])
        return self._builder.step(cases, following)

    def _by_values(self, node: Node, place: int) -> list[Case] | None:
        """Return the cases of an item if items are distinct and in a few disjoint nodes; None for other formulas."""
        parts = node.args if type(node) is AllOf else (node,)
        if [type(part) for part in parts].count(Unique) != 1:
            return None
        cases = self._builder.cases
        conditions: list[Node] = []
        after: list[Node] = []
        values: tuple[Node, ...] = ()
        for part in parts:
            if type(part) is Unique:
                values = part.args[0]
                after.append(part)
            elif type(part) is Items:
                conditions.append(cases.flat(_item(part, place)))
                after.append(self._after_items(part, place))
            elif type(part) is ItemCount:
                after.append(counted(part))
            else:
                return None
        condition = all_of(conditions)
        found: list[Case] = []
        for i, value in enumerate(map(cases.flat, values)):
            if cases.within(value, condition):
                both = value
            elif cases.apart(value, condition):
                continue
            else:
                both = all_of([value, condition])
            others = Unique(values[:i] + values[i + 1 :])
            rest = all_of([others if type(part) is Unique else part for part in after])
            if not is_never(both) and not is_never(rest):
                found.append((both, (rest,)))
        return found

    def _after_items(self, node: Node, place: int) -> Node:
        """Return what is left of an Items after the item at a place."""
        prefix, rest = node.args
        left = Items((), rest) if prefix and place + 1 >= len(prefix) else node
        return ANY if not left.args[0] and is_any(self._builder.cases.flat(rest)) else left

    def _after(self, node: Node, place: int, known: dict[Node, Node] | None = None) -> Node:
        """Return the derivative of a formula by the item at a place: tests on the item, and what is left then.

        known: the derivatives by node, for parts that formulas have in common.
        """
        shape = type(node)
        if shape is Types:
            return node
        if shape is AllOf or shape is AnyOf:
            known = {} if known is None else known
            found = known.get(node)
            if found is None:
                parts = [self._after(part, place, known) for part in node.args]
                found = known[node] = all_of(parts) if shape is AllOf else any_of(parts)
            return found
        if shape is Not:
            return negate(self._after(node.args[0], place))
        cases = self._builder.cases
        if isinstance(node, Items):
            return all_of([cases.test(_item(node, place)), self._after_items(node, place)])
        if shape is ItemCount:
            return counted(node)
        if shape is Contains:
            inside = cases.test(node.args[0])
            if is_never(inside):
                return ANY if node.args[1] == 0 else NEVER
            fewer = _contains(
                node.args[0], max(node.args[1] - 1, 0), None if node.args[2] is None else node.args[2] - 1
            )
            return any_of([all_of([inside, fewer]), all_of([negate(inside), node])])
        if shape is Unique:
            left = node.args[0]
            return any_of([all_of([cases.test(one), Unique(left[:i] + left[i + 1 :])]) for i, one in enumerate(left)])
        raise TypeError(f"not a formula about arrays: {node!r}")


def _contains(node: Node, low: int, high: int | None) -> Node:
    """Return a Contains, simplified."""
    if high is not None and high < low:
        return NEVER
    return Contains(node, low, high) if low or high is not None else ANY
