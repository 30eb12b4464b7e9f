"""Terminals that ask for what follows them, written into the rules of a grammar without any.

What may follow a place is a language of texts, a *context*; mostly it is all texts. A rule becomes one rule for each
context before it and each behind it, as in the intersection of a grammar with an automaton (Bar-Hillel, Perles and
Shamir 1961): a terminal that is read takes its bytes off the context, and adds what it asks for itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from ...automata import ops
from ...automata.budget import Meter
from ...automata.deadline import look
from ...automata.dfa import Dfa
from ...automata.minimize import canonical
from ...automata.utf8 import text
from .analysis import READING, check_productive, items, without_dead_ends
from .form import EMPTY, NEVER, Choice, Grammar, Node, Repeat, Rule, Sequence, Special, Terminal, Text
from .special_tokens import VALUE

_MOST_CONTEXTS = 64
_MOST_TIMES = 64  # that something is repeated beside a context
_ALL = 0  # the context of all texts

_Leaf = Text | Terminal | Special


def asks_for_contexts(rules: Mapping[str, Node]) -> bool:
    """Whether a terminal asks for what follows it."""
    todo = list(rules.values())
    while todo:
        node = todo.pop()
        if isinstance(node, Terminal) and node.contexts:
            return True
        todo.extend(items(node))
    return False


def without_contexts(grammar: Grammar, meter: Meter) -> Grammar:
    """Return a grammar of the same texts in which no terminal asks for what follows it; it ignores nothing.

    Raises GrammarError for rules that derive nothing, for more contexts than there may be, and for a JSON value or
    a long count where a context is open.
    """
    assert grammar.ignored is None, "it is written into the rules before"
    check_productive(grammar)
    return _Contexts(grammar, meter).grammar()


class _Contexts:
    def __init__(self, grammar: Grammar, meter: Meter) -> None:
        self._old, self._meter = grammar, meter
        self._contexts: list[Dfa] = [text()]
        self._number: dict[tuple[bytes, ...], int] = {_key(text()): _ALL}
        self._read: dict[tuple[int, int], dict[int, Node]] = {}  # of leaves by identity
        self._behind: dict[tuple[str, int], set[int]] = {}  # the contexts behind a rule, by the one before it
        self._asked: dict[tuple[str, int], set[tuple[str, int]]] = {}  # which rules asked for that
        self._made: dict[str, Node] = {}
        self._where: dict[str, int] = {}
        self._todo: list[tuple[str, int, int]] = []
        self._rule = grammar.start
        self._asking = grammar.start, _ALL  # the rule of which `_ways` are looked for
        self._new: list[tuple[str, int]] = []  # rules and contexts that came up meanwhile

    def grammar(self) -> Grammar:
        old = self._old
        self._find_behind()
        ends = sorted(c for c in self._behind[old.start, _ALL] if self._contexts[c].accepting[0])
        start = f"{old.start}\0start"
        self._made[start] = Choice(tuple([self._variant(old.start, _ALL, end) for end in ends]))
        while self._todo:
            self._rule, before, behind = self._todo.pop()
            self._made[_variant_name(self._rule, before, behind)] = self._put(old.rules[self._rule], before, behind)
            self._meter.check(states=len(self._made), doing=READING)
        rules = without_dead_ends(self._made, self._made.keys() - {start})
        return replace(old, rules=rules, start=start, where={**(old.where or {}), **self._where, start: 0})

    def _find_behind(self) -> None:
        """Find, of each rule and each context before it that comes up, which contexts may be behind it."""
        todo = [(self._old.start, _ALL)]
        self._behind[todo[0]] = set()
        while todo:
            rule, before = self._asking = todo.pop()
            self._rule, self._new = rule, todo
            found = self._ways(self._old.rules[rule], before)
            if not found <= self._behind[rule, before]:
                self._behind[rule, before] |= found
                todo.extend(self._asked.get((rule, before), ()))

    def _ways(self, node: Node, before: int) -> set[int]:
        """Return the contexts that may be behind a node, as far as is known."""
        look(READING)
        if isinstance(node, Rule):
            key = node.name, before
            if key not in self._behind:
                self._behind[key] = set()
                self._new.append(key)
            self._asked.setdefault(key, set()).add(self._asking)
            return self._behind[key]
        if isinstance(node, Choice):
            return set().union(*(self._ways(item, before) for item in node.items))
        if isinstance(node, Sequence):
            found = {before}
            for item in node.items:
                found = set().union(*(self._ways(item, each) for each in found))
            return found
        if isinstance(node, Repeat):
            found, all_found = {before}, {before} if not node.low else set()
            times = 0
            while found and (node.high is None or times < node.high):
                found = set().union(*(self._ways(node.item, each) for each in found))
                times += 1
                if times >= node.low:
                    if found <= all_found:
                        break
                    all_found |= found
            return all_found
        return set(self._leaf(node, before))

    # ------------------------------------------------------------------------------------------------------ leaves

    def _leaf(self, leaf: Node, before: int) -> dict[int, Node]:
        """Return what a leaf reads in a context, by the context behind it."""
        assert isinstance(leaf, _Leaf)
        key = id(leaf), before
        found = self._read.get(key)
        if found is None:
            found = self._read[key] = self._read_leaf(leaf, before)
        return found

    def _read_leaf(self, leaf: _Leaf, before: int) -> dict[int, Node]:
        context = self._contexts[before]
        if isinstance(leaf, Text):
            state = 0
            for byte in leaf.data:
                state = context.step(state, byte)
                if state < 0:
                    return {}
            return {self._of(context, state): leaf}
        if isinstance(leaf, Special):
            if leaf.name.startswith(VALUE) and before != _ALL:
                raise self._old.error("a JSON value cannot stand behind what asks for the text there", self._rule)
            return {_ALL: leaf} if context.accepting[0] else {}  # a token that is no text ends it
        found: dict[int, Dfa] = {}
        for words, after in leaf.contexts or ((leaf.dfa, self._contexts[_ALL]),):
            for state, own in self._split(words, before):
                left = self._of(context, state)
                behind = left if not leaf.contexts else self._both(left, after)
                if behind >= 0:
                    found[behind] = ops.union(found[behind], own, self._meter) if behind in found else own
        if not leaf.contexts and len(found) == 1 and before == _ALL:
            return {_ALL: leaf}
        return {behind: Terminal(leaf.name, dfa) for behind, dfa in found.items()}

    def _split(self, words: Dfa, before: int) -> list[tuple[int, Dfa]]:
        """Return words by the state of a context's automaton that they lead to."""
        if before == _ALL:
            return [(0, words)]
        context, found = self._contexts[before], []
        for state in range(context.num_states):
            at = np.arange(context.num_states) == state
            own = canonical(context.class_of, context.transition, at, meter=self._meter)
            both = ops.intersection(words, own, self._meter)
            if not both.is_empty:
                found.append((state, both))
        return found

    def _of(self, dfa: Dfa, state: int) -> int:
        """Return the number of the context that begins at a state."""
        if not state:
            return self._numbered(dfa)
        return self._numbered(canonical(dfa.class_of, dfa.transition, dfa.accepting, state, self._meter))

    def _both(self, context: int, dfa: Dfa) -> int:
        """Return the number of what is in a context and in a language, -1 if that is nothing."""
        both = ops.intersection(self._contexts[context], dfa, self._meter)
        return -1 if both.is_empty else self._numbered(both)

    def _numbered(self, dfa: Dfa) -> int:
        number = self._number.setdefault(_key(dfa), len(self._contexts))
        if number == len(self._contexts):
            if number >= _MOST_CONTEXTS:
                raise self._old.error("terminals ask for too many texts that follow: ask for fewer", self._rule)
            self._contexts.append(dfa)
        return number

    # ------------------------------------------------------------------------------------------------------- rules

    def _variant(self, rule: str, before: int, behind: int) -> Node:
        if behind not in self._behind.get((rule, before), ()):
            return NEVER
        name = _variant_name(rule, before, behind)
        if name not in self._made:
            self._made[name] = EMPTY  # until its turn comes
            self._where[name] = (self._old.where or {}).get(rule, 0)
            self._todo.append((rule, before, behind))
        return Rule(name)

    def _put(self, node: Node, before: int, behind: int) -> Node:
        """Return what a node derives between two contexts."""
        look(READING)
        if isinstance(node, Rule):
            return self._variant(node.name, before, behind)
        if isinstance(node, Choice):
            return _choice([self._put(item, before, behind) for item in node.items])
        if isinstance(node, Sequence):
            return self._row(node.items, before, behind)
        if isinstance(node, Repeat):
            return self._repeat(node, before, behind)
        return self._leaf(node, before).get(behind, NEVER)

    def _row(self, parts: tuple[Node, ...], before: int, behind: int) -> Node:
        done: list[Node] = []
        for i, part in enumerate(parts):
            ways = self._known_ways(part, before)
            if len(ways) != 1 and i + 1 < len(parts):
                rests = [(self._put(part, before, way), self._shared(parts[i + 1 :], way, behind)) for way in ways]
                rest = _choice([_sequence([one, two]) for one, two in rests])
                return _sequence([*done, rest])
            way = behind if i + 1 == len(parts) else next(iter(ways))
            done.append(self._put(part, before, way))
            before = way
        return _sequence(done) if done else EMPTY if before == behind else NEVER

    def _known_ways(self, node: Node, before: int) -> list[int]:
        self._asking, self._new = (self._rule, before), []
        return sorted(self._ways(node, before))

    def _shared(self, parts: tuple[Node, ...], before: int, behind: int) -> Node:
        """Return the rest of a row as a rule of its own, of which there is one."""
        node = parts[0] if len(parts) == 1 else Sequence(parts)
        if len(parts) == 1 and not isinstance(node, (Sequence, Choice, Repeat)):
            return self._put(node, before, behind)
        return self._helper(("rest", *map(id, parts), before, behind), lambda: self._put(node, before, behind))

    def _repeat(self, node: Repeat, before: int, behind: int) -> Node:
        ways = self._known_ways(node.item, before)
        if ways in ([], [before]):
            item = self._put(node.item, before, before)
            if before != behind or (item is NEVER and node.low):
                return NEVER
            return EMPTY if item is NEVER else Repeat(item, node.low, node.high)
        if max(node.low, node.high or 0) > _MOST_TIMES:
            said = f"what asks for the text behind it is repeated more than {_MOST_TIMES} times: lower the number"
            raise self._old.error(said, self._rule)
        return self._again(node.item, node.low, node.high, before, behind)

    def _again(self, item: Node, low: int, high: int | None, before: int, behind: int) -> Node:
        """Return a rule of an item, some times in a row."""

        def make() -> Node:
            rows: list[Node] = [EMPTY] if not low and before == behind else []
            for way in self._known_ways(item, before) if high != 0 else ():
                rest = self._again(item, max(low - 1, 0), None if high is None else high - 1, way, behind)
                rows.append(_sequence([self._put(item, before, way), rest]))
            return _choice(rows)

        return self._helper(("again", id(item), low, high, before, behind), make)

    def _helper(self, key: tuple[object, ...], make: Callable[[], Node]) -> Node:
        """Return a rule for a part of one, which is made once."""
        name = f"\0{key}"
        if name not in self._made:
            self._made[name] = NEVER
            self._where[name] = (self._old.where or {}).get(self._rule, 0)
            self._made[name] = make()
        return Rule(name)


def _variant_name(rule: str, before: int, behind: int) -> str:
    return rule if before == behind == _ALL else f"{rule}\0{before}\0{behind}"


def _key(dfa: Dfa) -> tuple[bytes, ...]:
    return dfa.class_of.tobytes(), dfa.transition.tobytes(), dfa.accepting.tobytes()


def _choice(nodes: list[Node]) -> Node:
    left = [node for node in nodes if node is not NEVER]
    return NEVER if not left else left[0] if len(left) == 1 else Choice(tuple(left))


def _sequence(nodes: list[Node]) -> Node:
    if NEVER in nodes:
        return NEVER
    left = [node for node in nodes if node is not EMPTY]
    return left[0] if len(left) == 1 else Sequence(tuple(left))
