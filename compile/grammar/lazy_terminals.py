"""Lazy terminals: where one is complete, it is all that was read, and no other that began there goes on.

A lexer decides so while it reads. Without one the other terminals lose the words that it would not let them finish: of
one that may begin where a lazy terminal does, those that begin with a word of that. Terminals may begin at one place if
the grammar begins with them, or if they follow terminals that may begin at one place and share a word; a rule may be
followed by whatever follows one of its calls.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np

from ...automata import ops
from ...automata.budget import Meter
from ...automata.deadline import look
from ...automata.dfa import Dfa
from .analysis import READING, called, in_order, nullable_rules, productive_rules, without_dead_ends
from .form import EMPTY, Choice, Grammar, Node, Repeat, Rule, Sequence, Special, Terminal, Text
from .languages import going_on
from .regular import dfa_of
from .special_tokens import VALUE

_Leaf = Text | Terminal | Special


def settled(grammar: Grammar, meter: Meter) -> Grammar:
    """Return a grammar in which no terminal goes on where a lazy one that began with it is complete.

    Raises GrammarError for a lazy terminal beside a JSON value that may begin alike, BudgetError.
    """
    rules, where = _copied(grammar.rules, grammar.start), grammar.where or {}
    grammar = replace(grammar, rules=rules, where={name: where.get(name.partition("\0")[0], 0) for name in rules})
    places = _Places(grammar.rules)
    lazy = [_lazy(leaf) for leaf in places.leaves]
    if not any(dfa is not None for dfa in lazy):
        return grammar
    made: list[Node] = []
    beside = places.beside(grammar.start, meter)
    for i, leaf in enumerate(places.leaves):
        others = {id(dfa): dfa for j in _bits(beside[i]) if j != i and (dfa := lazy[j]) is not None}
        rule = places.rule_of[i]
        if not others:
            made.append(leaf)
        elif isinstance(leaf, Terminal) and leaf.lazy not in (None, leaf.dfa):
            raise grammar.error("stop= beside another lazy terminal is not supported: write suffix=", rule)
        elif isinstance(leaf, Terminal) and leaf.contexts:
            raise grammar.error("what asks for the text behind it cannot begin where a lazy terminal does", rule)
        elif not isinstance(leaf, Special):
            made.append(_without(leaf, list(others.values()), meter))
        elif leaf.name.startswith(VALUE) and any(_begins_as_json(dfa) for dfa in others.values()):
            raise grammar.error("a lazy terminal may begin as the JSON value beside it: put a text before one", rule)
        else:
            made.append(leaf)
    each = iter(made)
    rules = {name: _replaced(body, each) for name, body in grammar.rules.items()}
    productive = productive_rules(grammar.rules) - {grammar.start}
    return replace(grammar, rules=without_dead_ends(rules, productive))


def _copied(rules: Mapping[str, Node], start: str) -> dict[str, Node]:
    """Return rules of which each has one call, but for those that come back to themselves.

    What a lazy terminal ends at one call goes on at another.
    """
    order, group = in_order({name: tuple(set(called(body))) for name, body in rules.items()})
    sizes = Counter(group)
    alone = {name for name, number in zip(order, group, strict=True) if sizes[number] == 1}
    alone -= {name for name in alone if name in called(rules[name])} | {start}
    made: dict[str, Node] = {}

    nodes = 0

    def copied(node: Node) -> Node:
        nonlocal nodes
        look(READING)
        nodes += 1
        if isinstance(node, (Sequence, Choice)):
            return type(node)(tuple([copied(item) for item in node.items]))
        if isinstance(node, Repeat):
            return Repeat(copied(node.item), node.low, node.high)
        if not isinstance(node, Rule) or node.name not in alone or nodes > _MOST_NODES:
            if isinstance(node, Rule) and node.name not in made:
                todo.setdefault(node.name, node.name)
            return node
        name = f"{node.name}\0{len(made) + len(todo)}"
        todo[name] = node.name
        return Rule(name)

    todo = {start: start}
    while todo:
        name, old = todo.popitem()
        made[name] = EMPTY  # until its turn comes
        made[name] = copied(rules[old])
    return made


_MOST_NODES = 50_000  # up to which rules are copied


def _lazy(leaf: _Leaf) -> Dfa | None:
    """Return where a lazy terminal is complete. One that may be empty reads nothing, and ends nothing."""
    found = leaf.lazy if isinstance(leaf, Terminal) else None
    return None if found is None or found.accepting[0] else found


def _without(leaf: Text | Terminal, lazy: list[Dfa], meter: Meter) -> Node:
    """Return a leaf without the words that begin with one of a lazy terminal; two of these may end together."""
    own = dfa_of(leaf, meter)
    is_lazy = isinstance(leaf, Terminal) and leaf.lazy is not None
    left = own
    for dfa in lazy:
        taken = going_on(dfa, meter)
        left = ops.difference(left, ops.difference(taken, dfa, meter) if is_lazy else taken, meter)
    return leaf if ops.equivalent(left, own) else Terminal(_name(leaf), left, lazy=left if is_lazy else None)


def _name(leaf: Text | Terminal) -> str:
    return leaf.name if isinstance(leaf, Terminal) else repr(leaf.data)


def _begins_as_json(dfa: Dfa) -> bool:
    return bool((dfa.transition[0, dfa.class_of[np.frombuffer(b'"[{-0123456789tfn', np.uint8)]] >= 0).any())


def _may_be_empty(leaf: _Leaf) -> bool:
    """Whether what follows a leaf may begin where it does; before it is known that a stop follows, that is read."""
    if isinstance(leaf, Terminal):
        return bool(leaf.dfa.accepting[0]) and (leaf.lazy is None or bool(leaf.lazy.accepting[0]))
    return isinstance(leaf, Text) and not leaf.data


def _bits(number: int) -> Iterator[int]:
    while number:
        low = number & -number
        yield low.bit_length() - 1
        number ^= low


def _replaced(node: Node, leaves: Iterator[Node]) -> Node:
    """Return a node with other leaves, in the order in which they stand."""
    if isinstance(node, (Sequence, Choice)):
        return type(node)(tuple([_replaced(item, leaves) for item in node.items]))
    if isinstance(node, Repeat):
        return Repeat(_replaced(node.item, leaves), node.low, node.high)
    return node if isinstance(node, Rule) else next(leaves)


class _Places:
    """The leaves of rules where they stand, and which may follow which (Glushkov). Sets of leaves are integers."""

    def __init__(self, rules: Mapping[str, Node]) -> None:
        self.leaves: list[_Leaf] = []
        self.rule_of: list[str] = []
        self._rules = rules
        self._nullable = nullable_rules(rules, _may_be_empty)
        self._ends = dict.fromkeys(rules, (0, 0))  # what a rule may begin and end with
        for name, body in rules.items():
            self._count(body, name)
        self._after = [0] * len(self.leaves)
        while True:
            before = self._ends.copy(), self._after.copy()
            self._at = 0
            for name, body in rules.items():
                self._ends[name] = self._read(body)[1:]
            if before == (self._ends, self._after):
                break

    def _count(self, node: Node, rule: str) -> None:
        if isinstance(node, (Sequence, Choice)):
            for item in node.items:
                self._count(item, rule)
        elif isinstance(node, Repeat):
            self._count(node.item, rule)
        elif not isinstance(node, Rule):
            assert isinstance(node, _Leaf), "regions and graphs are made later"
            self.leaves.append(node)
            self.rule_of.append(rule)

    def _read(self, node: Node) -> tuple[bool, int, int]:
        """Return whether a node may be empty, and the leaves that it may begin and end with."""
        look(READING)
        if isinstance(node, Rule):
            return node.name in self._nullable, *self._ends[node.name]
        if isinstance(node, Choice):
            parts = [self._read(item) for item in node.items]
            first = last = 0
            for _, begin, end in parts:
                first, last = first | begin, last | end
            return any(empty for empty, _, _ in parts), first, last
        if isinstance(node, Sequence):
            all_empty, first, last = True, 0, 0
            for item in node.items:
                empty, begin, end = self._read(item)
                self._join(last, begin)
                first |= begin if all_empty else 0
                last = last | end if empty else end
                all_empty = all_empty and empty
            return all_empty, first, last
        if isinstance(node, Repeat):
            empty, first, last = self._read(node.item)
            if node.high != 1:
                self._join(last, first)
            return empty or not node.low, first, last
        assert isinstance(node, _Leaf)
        self._at += 1
        bit = 1 << (self._at - 1)
        return _may_be_empty(node), bit, bit

    def _join(self, last: int, first: int) -> None:
        for leaf in _bits(last):
            self._after[leaf] |= first

    def beside(self, start: str, meter: Meter) -> list[int]:
        """Return, of each leaf, which may begin where it does."""
        found = [0] * len(self.leaves)
        todo: list[tuple[int, int]] = []

        def together(leaves: int) -> None:
            for i in _bits(leaves):
                look(READING)
                new = leaves & ~found[i]
                found[i] |= new
                todo.extend((i, j) for j in _bits(new) if i <= j)
            meter.check(bytes=80 * len(todo), doing=READING)

        together(self._ends[start][0])
        shared: dict[tuple[int, int], bool] = {}
        while todo:
            look(READING)
            i, j = todo.pop()
            if i == j or self._share(i, j, shared, meter):
                together(self._after[i] | self._after[j])
        return found

    def _share(self, i: int, j: int, known: dict[tuple[int, int], bool], meter: Meter) -> bool:
        """Whether two leaves have a word in common."""
        one, two = self.leaves[i], self.leaves[j]
        if isinstance(one, Special) or isinstance(two, Special):
            return isinstance(one, Special) and isinstance(two, Special)
        if isinstance(one, Text) and isinstance(two, Text):
            return one.data == two.data
        key = id(one), id(two)
        if key not in known:
            known[key] = not ops.intersection(dfa_of(one, meter), dfa_of(two, meter), meter).is_empty
        return known[key]
