"""The skeleton of a schema as rules of a grammar: for JSON beside what only a grammar says.

A rule is a value, an object or an array together with the label that it ends with. The texts are those of the machine
that `emit` writes; but of keys that are not declared, each character that may yet make a declared one has only the
escapes that it needs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...automata.budget import Meter
from ...automata.dfa import BYTES, Dfa
from ...automata.labelled import Labelled
from ...automata.minimize import canonical
from ...automata.state_ranges import RETURN
from ..grammar import form
from ..grammar.form import EMPTY, Choice, Graph, Node, Repeat, Rule, Terminal, Text
from ..json_schema.escapes import escaped, has_spellings, quoted
from ..json_schema.fragments import ending_freely
from ..json_schema.key_classes import partition
from ..json_schema.layout import MOST_SPACES, MOST_TABS, QUOTE, Layout
from ..json_schema.library_machine import leaves
from ..json_schema.number_texts import any_number
from ..json_schema.skeleton import (
    AnyOrder,
    ArrayAutomaton,
    ArrayState,
    Bounded,
    Finite,
    ObjectAutomaton,
    ObjectState,
    Regular,
    Step,
    Value,
)
from ..json_schema.strings import cut
from ..regex.lower import to_dfa

_DOING = "writing a schema as rules"
_BYTES = np.arange(BYTES, dtype=np.uint16)

LazyMachine = ArrayAutomaton | ObjectAutomaton


class Rules:
    """Rules of values, made as they are asked for; `finish` makes all that these have asked for."""

    def __init__(self, layout: Layout, meter: Meter) -> None:
        self.layout, self.meter = layout, meter
        self._rules: dict[str, Node] = {}
        self._todo: list[tuple[str, Callable[[], Node]]] = []
        self._known: dict[Any, Rule] = {}
        self._states: dict[LazyMachine, AnyOrder] = {}  # of objects whose members come in any order
        self._ended: dict[LazyMachine, list[set[int]]] = {}  # the labels with which each may end, by state
        self._languages: dict[LazyMachine, Labelled | None] = {}
        self._terminals: dict[Any, Terminal] = {}
        self._kept: dict[int, Any] = {}  # what is known by its identity
        leaf, places = leaves(layout)
        first, states = places.string
        rows = leaf.rows[first : first + states]
        self._string = np.where(rows >= 0, rows - first, rows)  # (states, 256) any string, from behind its quote
        self._line, self._comma, self._colon = _punctuation(layout)

    def value(self, value: Value, label: int) -> Node:
        """Return what derives the texts of a value that end with a label."""
        return self._rule((value, label), lambda: self._value(value, label))

    def finish(self) -> dict[str, Node]:
        """Return all rules."""
        while self._todo:
            name, make = self._todo.pop()
            self._rules[name] = make()
            self.meter.check(states=len(self._rules), bytes=1024 * len(self._rules), doing=_DOING)
        return self._rules

    def _rule(self, key: object, make: Callable[[], Node]) -> Rule:
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = Rule(f"\0JSON {len(self._known)}")
            self._todo.append((found.name, make))
        return found

    # ------------------------------------------------------------------------------------------------ values

    def _value(self, value: Value, label: int) -> Node:
        ways: list[Node] = [Text(word.encode()) for word, ends in value.literals.items() if ends == label]
        number, text = value.number, value.string
        if number is not None and (number.label == label).any():
            ways.append(self._labelled("a number", number, label, lambda: _only(number, label, self.meter)))
        if isinstance(text, Finite):
            ways += [Text(self._quoted(word)) for word, ends in text.words.items() if ends == label]
        elif isinstance(text, Regular):
            if (text.content.label == label).any():
                key = "a string", text, label
                ways.append(self._terminal(key, lambda: self._spelled(cut(text, self.meter), label)))
        elif text is not None and text.label == label:
            ways.append(self._any_string(text.low, text.high) if isinstance(text, Bounded) else self._any_string())
        for kind, automaton in (("array", value.array), ("object", value.object)):
            if automaton is None:
                continue
            if automaton.free >= 0:
                ways += [self._any(kind)] if automaton.free == label else []
            elif label in self._ends(automaton, 0):
                ways.append(_bracketed(kind, self._inside(automaton, label)))
        return Choice(tuple(ways))

    def _any(self, kind: str) -> Rule:
        """Return any value, object or array."""

        def make() -> Node:
            if kind == "value":
                words = [Text(word) for word in (b"null", b"true", b"false")]
                number = self._terminal(("a number", None), any_number)
                return Choice((*words, number, self._any_string(), self._any("object"), self._any("array")))
            one: Node = self._any("value")
            if kind == "object":
                one = form.Sequence((self._any_string(), self._colon, one))
            others = Repeat(form.Sequence((self._comma, one)), 0, None)
            return _bracketed(kind, Choice((EMPTY, form.Sequence((self._line, one, others, self._line)))))

        return self._rule(kind, make)

    def _inside(self, automaton: LazyMachine, label: int) -> Node:
        """Return what stands between the brackets of an object or array that ends with a label."""
        first = self._next(automaton, 0, label)
        ways: list[Node] = [form.Sequence((self._line, first))] if first is not None else []
        return Choice((EMPTY, *ways) if self._at(automaton, 0).close == label else tuple(ways))

    def _at(self, automaton: LazyMachine, i: int) -> Any:
        """Return a state of an object or array, as its items or members are read."""
        return self._reading(automaton)[i]

    def _reading(self, automaton: LazyMachine) -> Sequence[Any]:
        if isinstance(automaton, ArrayAutomaton) or not automaton.any_order:
            return automaton.states
        found = self._states.get(automaton)
        if found is None:
            found = self._states[automaton] = AnyOrder(automaton)
        return found

    def _behind(self, automaton: LazyMachine, i: int, label: int) -> Node:
        """Return what stands behind an item or member that leads to a state."""

        def make() -> Node:
            following = self._next(automaton, i, label)
            ways: list[Node] = [form.Sequence((self._comma, following))] if following is not None else []
            return Choice((self._line, *ways) if self._at(automaton, i).close == label else tuple(ways))

        return self._rule((automaton, i, label), make)

    def _next(self, automaton: LazyMachine, i: int, label: int) -> Node | None:
        """Return the item or member that comes next in a state, and all behind it; None if there is none."""
        if isinstance(automaton, ArrayAutomaton):
            item = automaton.states[i].item
            return None if item is None else self._step(automaton, item, label)
        state, keys, language = self._at(automaton, i), automaton.keys, self._language(automaton)
        ways: list[Node] = []
        declared = self._declared(automaton, state, state.first, label)
        if declared is not None:
            ways.append(declared)
        for c, step in state.others.items():
            pair = self._pair(automaton, step, label)
            if pair is not None and language is not None:
                ways.append(form.Sequence((self._key(language, len(keys) + c), pair)))
        return Choice(tuple(ways)) if ways else None

    def _declared(self, automaton: ObjectAutomaton, state: ObjectState, first: int, label: int) -> Node | None:
        """Return the declared members that may come next, from a place on. States with the same steps share them."""
        for j in range(first, state.last):
            step = state.steps[j]
            pair = None if step is None else self._pair(automaton, step, label)
            if pair is not None:
                break
        else:
            return None

        def make() -> Node:
            language, name = self._language(automaton), automaton.keys[j]
            several = language is not None and has_spellings(name, self.layout.ascii)
            key = self._key(language, j) if several and language is not None else Text(self._quoted(name))
            others = self._declared(automaton, state, j + 1, label)
            return Choice((form.Sequence((key, pair)), *(() if others is None else (others,))))

        self._kept[id(state.steps)] = state.steps
        return self._rule((automaton, id(state.steps), j, state.last, label), make)

    def _pair(self, automaton: LazyMachine, step: Step, label: int) -> Node | None:
        """Return what stands behind the key of a member."""
        inside = self._step(automaton, step, label)
        if inside is None:
            return None
        return self._rule((automaton, step, label), lambda: form.Sequence((self._colon, inside)))

    def _step(self, automaton: LazyMachine, step: Step, label: int) -> Node | None:
        """Return a value, and what stands behind it; None where that does not lead to an end with this label."""
        ways = [
            form.Sequence((self.value(step.value, j), self._behind(automaton, i, label)))
            for j, i in enumerate(step.following)
            if i >= 0 and label in self._ends(automaton, i)
        ]
        return Choice(tuple(ways)) if ways else None

    def _ends(self, automaton: LazyMachine, i: int) -> set[int]:
        """Return the labels with which an object or array may end from one of its states."""
        found = self._ended.get(automaton)
        if found is None:
            found = self._ended[automaton] = self._find_ends(self._reading(automaton))
        return found[i]

    def _find_ends(self, states: Sequence[Any]) -> list[set[int]]:
        """Return the labels with which an object or array may end, by state."""
        found: list[set[int]] = []
        before: dict[int, set[int]] = {}  # from where each state is reached
        for i, state in enumerate(states):  # of which there may be more meanwhile
            found.append({state.close} - {-1})
            for step in _steps(state):
                for to in step.following:
                    if to >= 0:
                        before.setdefault(to, set()).add(i)
            if not i & 127:
                self.meter.check(states=len(states), doing=_DOING)
        todo = list(range(len(found)))
        while todo:
            i = todo.pop()
            for j in before.get(i, ()):
                if not found[i] <= found[j]:
                    found[j] |= found[i]
                    todo.append(j)
        return found

    # --------------------------------------------------------------------------------------------- terminals

    def _quoted(self, word: str) -> bytes:
        return quoted(word, self.layout.ascii)

    def _terminal(self, key: tuple[Any, ...], make: Callable[[], Dfa]) -> Terminal:
        """Return a terminal by its name and what it is made of."""
        found = self._terminals.get(key)
        if found is None:
            found = self._terminals[key] = Terminal(key[0], make())
        return found

    def _labelled(self, name: str, words: Labelled, label: int, make: Callable[[], Dfa]) -> Terminal:
        self._kept[id(words)] = words
        return self._terminal((name, id(words), label), make)

    def _any_string(self, low: int = 0, high: int | None = None) -> Terminal:
        """Return any string of low .. high characters."""
        return self._terminal(("a string", low, high), lambda: self._counted(low, high))

    def _counted(self, low: int, high: int | None) -> Dfa:
        most = low if high is None else high
        columns, class_of = np.unique(self._string, axis=1, return_inverse=True)
        count = len(columns)
        self.meter.check(states=count * (most + 1), bytes=16 * (most + 1) * columns.size, doing=_DOING)
        rows = np.broadcast_to(columns, (most + 1, *columns.shape))
        place = np.arange(most + 1, dtype=np.int32)[:, None, None]
        after = place + (rows == 0)  # a character has been read where the string is back in its first state
        goes = (rows >= 0) & (np.bool_(high is None) | (after + (rows > 0) <= most))
        codes = np.where(goes, np.minimum(after, most) * count + rows, -1)
        codes[(rows == RETURN) & (place >= low)] = RETURN
        return _quoted_dfa(class_of.reshape(-1).astype(np.uint16), codes.reshape(-1, columns.shape[1]), 0, self.meter)

    def _language(self, automaton: ObjectAutomaton) -> Labelled | None:
        """Return what tells the keys of an object apart, None where none may come but those that are declared."""
        if automaton.language is not None or not any(state.others for state in automaton.states):
            return automaton.language
        if automaton not in self._languages:
            self._languages[automaton] = partition(automaton.keys, (), self.meter)[0]
        return self._languages[automaton]

    def _key(self, language: Labelled, label: int) -> Terminal:
        return self._labelled("a key", language, label, lambda: self._spelled(language, label))

    def _spelled(self, content: Labelled, label: int) -> Dfa:
        """Return the JSON texts of the words of a label."""
        ascii = self.layout.ascii
        class_of, codes = escaped(content, ascii, self.meter)
        free = None if ascii else ending_freely(content, class_of, codes)
        if free is not None:  # any string may follow, with every escape
            state = free[0]
            rows = codes[:, class_of]
            rest = np.where(self._string > 0, self._string + len(rows) - 1, self._string)
            rest[self._string == 0], rest[self._string == RETURN] = state, rows[state, QUOTE]
            rows[state] = rest[0]
            class_of, codes = _BYTES, np.concatenate((rows, rest[1:]))
        return _quoted_dfa(class_of, codes, label, self.meter)


def without_graphs(node: Node, graphs: dict[str, Graph]) -> Node:
    """Return a node in which rules stand for graphs, and add these by the rules' names."""
    if isinstance(node, Graph):
        name = f"\0graph {len(graphs)} "
        graphs[name] = node
        return Rule(f"{name}{node.start}")
    if isinstance(node, (form.Sequence, Choice)):
        return type(node)(tuple(without_graphs(item, graphs) for item in node.items))
    return Repeat(without_graphs(node.item, graphs), node.low, node.high) if isinstance(node, Repeat) else node


def rules_of(graph: Graph, name: str) -> dict[str, Node]:
    """Return the rules of a graph's states: what may be read from each."""
    ways: list[list[Node]] = [[] for _ in range(graph.states)]
    ways[graph.end].append(EMPTY)
    for state, read, to in graph.edges:
        behind = Rule(f"{name}{to}")
        ways[state].append(behind if isinstance(read, Text) and not read.data else form.Sequence((read, behind)))
    alive = {graph.end}
    before = [(to, state) for state, _, to in graph.edges]
    while more := {state for to, state in before if to in alive} - alive:
        alive |= more
    return {
        f"{name}{state}": Choice(tuple(way for way in ways[state] if way is EMPTY or _to(way, name) in alive))
        for state in alive
    }


def _to(way: Node, name: str) -> int:
    rule = way.items[-1] if isinstance(way, form.Sequence) else way
    assert isinstance(rule, Rule)
    return int(rule.name.removeprefix(name))


@lru_cache(maxsize=1)
def _flexible() -> tuple[Node, Node, Node]:
    line = rf"\n(?: {{0,{MOST_SPACES}}}|\t{{0,{MOST_TABS}}})"
    texts = ("white space", f"(?:{line})?"), ("a comma", f",(?: |{line})?"), ("a colon", ": ?")
    inside, comma, colon = (Terminal(name, to_dfa(pattern)) for name, pattern in texts)
    return inside, comma, colon


def _punctuation(layout: Layout) -> tuple[Node, Node, Node]:
    """Return what may stand inside a bracket, between two items, and behind a key."""
    return _flexible() if layout.flexible else (EMPTY, Text(layout.comma), Text(layout.colon))


def _bracketed(kind: str, inside: Node) -> Node:
    opener, closer = (b"{", b"}") if kind == "object" else (b"[", b"]")
    return form.Sequence((Text(opener), inside, Text(closer)))


def _steps(state: ArrayState | ObjectState) -> Iterable[Step]:
    """Return the steps of a state of an object or array."""
    if isinstance(state, ArrayState):
        return () if state.item is None else (state.item,)
    declared = (step for step in state.steps[state.first : state.last] if step is not None)
    return (*declared, *state.others.values())


def _only(words: Labelled, label: int, meter: Meter) -> Dfa:
    """Return the words of a label."""
    return canonical(words.class_of, words.transition, words.label == label, meter=meter)


def _quoted_dfa(class_of: NDArray[np.uint16], codes: NDArray[Any], label: int, meter: Meter) -> Dfa:
    """Return strings from the rows (N, C) behind the opening quote; RETURN less a label is the closing one."""
    states, classes = codes.shape
    quote = int(class_of[QUOTE])
    rows = np.full((states + 2, classes), -1, np.int32)  # the start, those that are given, and the end
    rows[0, quote] = 1
    rows[1:-1] = np.where(codes == RETURN - label, states + 1, np.where(codes >= 0, codes + 1, -1))
    others = np.flatnonzero(class_of == quote)
    if others.size > 1:  # of its class others must not begin a string
        class_of = class_of.copy()
        class_of[QUOTE] = classes
        rows = np.column_stack((rows, rows[:, quote]))
        rows[0, quote] = -1
    ends = np.zeros(states + 2, np.bool_)
    ends[-1] = True
    return canonical(class_of, rows, ends, meter=meter)
