"""A grammar as a network: nodes between terminals, joined by terminals and by calls of rules.

A *position* is a node, or a state within a terminal that stands between two nodes. Nothing in the network is empty:
what a node leads to without reading, through rules that derive the empty text as well, is part of the node.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...automata.budget import Meter
from ...automata.dfa import BYTES, Dfa
from ...automata.network import Network
from .analysis import called, check_productive, embedding, in_order, least, may_read, nullable_rules, reachable
from .form import Choice, Grammar, Node, Region, Repeat, Rule, Sequence, Terminal, Text


@dataclass
class _Building:
    """Nodes in the making, with edges that read nothing."""

    free: list[list[int]] = field(default_factory=list)  # edges without terminal or call
    atoms: list[list[tuple[int, int]]] = field(default_factory=list)  # (terminal, node)
    calls: list[list[tuple[str, int]]] = field(default_factory=list)
    automata: dict[Any, int] = field(default_factory=dict)  # number of each terminal
    pieces: list[Text | Dfa] = field(default_factory=list)
    regions: dict[int, Region] = field(default_factory=dict)  # by identity, in order

    def node(self) -> int:
        self.free.append([])
        self.atoms.append([])
        self.calls.append([])
        return len(self.free) - 1

    def piece(self, key: Any, what: Text | Dfa) -> int:
        found = self.automata.get(key)
        if found is None:
            found = self.automata[key] = len(self.pieces)
            self.pieces.append(what)
        return found

    def terminal(self, item: Text | Terminal) -> int:
        return self.piece(item.data, item) if isinstance(item, Text) else self.piece(id(item.dfa), item.dfa)


def build(grammar: Grammar, meter: Meter) -> Network:
    """Return the network of a grammar.

    Raises GrammarError for a rule that derives no text at all and can be reached, or is not there; BudgetError.
    """
    check_productive(grammar)
    rules = reachable(grammar)
    nullable = nullable_rules(rules)
    nonempty = least(rules, may_read)
    inline = _inlined(rules, grammar.start)
    made = _Building()
    end = made.node()
    ends, begins = {}, {}
    spaces: dict[int, int] = {}

    def space_before(node: int) -> int:
        """Return a node from which one comes to `node`, with what is ignored before it."""
        if grammar.ignored is None:
            return node
        found = spaces.get(node)
        if found is None:
            found = spaces[node] = made.node()
            made.free[found].append(node)
            made.atoms[found].append((made.piece(id(grammar.ignored), grammar.ignored), found))
        return found

    def put(item: Node, begin: int, to: int) -> None:
        """Lead from one node to another by what an item derives."""
        if isinstance(item, (Text, Terminal)):
            if not item.data if isinstance(item, Text) else item.dfa.accepting[0]:
                made.free[begin].append(to)
            if not isinstance(item, Text) or item.data:
                made.atoms[begin].append((made.terminal(item), space_before(to)))
        elif isinstance(item, Rule):
            if item.name not in nonempty:
                made.free[begin].append(to)
            elif item.name in inline:
                put(rules[item.name], begin, to)
            else:
                made.calls[begin].append((item.name, to))
        elif isinstance(item, Sequence):
            for part in item.items[:-1]:
                between = made.node()
                put(part, begin, between)
                begin = between
            if item.items:
                put(item.items[-1], begin, to)
            else:
                made.free[begin].append(to)
        elif isinstance(item, Choice):
            for part in item.items:
                put(part, begin, to)
        elif isinstance(item, Region):
            if id(item) not in made.regions:
                made.regions[id(item)] = item
            opened = made.node()
            made.atoms[begin].append((made.terminal(item.opener), opened))
            made.atoms[opened].append((made.piece(("opened", id(item)), _NOTHING), space_before(to)))
        else:
            assert isinstance(item, Repeat), "special tokens are texts by now"
            put_repeat(item, begin, to)
        if len(made.free) & 1023 == 0:
            meter.check(states=len(made.free), doing="reading a grammar")

    def put_repeat(item: Repeat, begin: int, to: int) -> None:
        meter.check(states=len(made.free) + max(item.low, item.high or 0), doing="reading a grammar")
        for _ in range(item.low):
            between = made.node()
            put(item.item, begin, between)
            begin = between
            meter.check(states=len(made.free), doing="reading a grammar")
        if item.high is None:
            loop = made.node()
            made.free[begin].append(loop)
            put(item.item, loop, loop)
            made.free[loop].append(to)
            return
        for _ in range(item.high - item.low):
            made.free[begin].append(to)
            between = made.node()
            put(item.item, begin, between)
            begin = between
            meter.check(states=len(made.free), doing="reading a grammar")
        made.free[begin].append(to)

    for name, body in rules.items():
        if name not in inline and name in nonempty:
            begins[name], ends[name] = made.node(), made.node()
            put(body, begins[name], ends[name])
    start = made.node()
    put(Rule(grammar.start), start, end)
    done: list[int] = []
    while len(done) < len(made.regions):  # which may have others within
        for key in list(made.regions)[len(done) :]:
            inside, closing, closed = made.node(), made.node(), made.node()
            put(made.regions[key].body, inside, closing)
            made.atoms[closing].append((made.terminal(made.regions[key].closer), closed))
            made.atoms[closed].append((made.piece(("closed", key), _NOTHING), end))
            done.append(space_before(inside))
    start = space_before(start)
    embeds = bool(embedding(rules, nonempty))
    return _arranged(made, begins, {end, *ends.values()}, nullable, start, embeds, done, meter)


def _inlined(rules: Mapping[str, Node], start: str) -> set[str]:
    """Return the rules that need no call: what they derive is a terminal, or they are called once."""
    count: dict[str, int] = {}
    for body in rules.values():
        for name in called(body):
            count[name] = count.get(name, 0) + 1
    out = {
        name
        for name, body in rules.items()
        if name != start and (isinstance(body, (Text, Terminal)) or count.get(name, 0) == 1)
    }
    # one that comes back to itself through such rules alone stays a rule, and so does every one that is far within
    below = {name: [other for other in called(rules[name]) if other in out] for name in out}
    order, group = in_order({name: set(others) for name, others in below.items()})
    sizes = np.bincount(group) if group else np.zeros(0, np.int64)
    within = dict.fromkeys(order, 0)
    for name, number in zip(order, group, strict=True):  # callers first
        if sizes[number] > 1 or name in below[name] or within[name] >= _MOST_INLINED:
            out.discard(name)
            within[name] = 0
        for other in below[name]:
            within[other] = max(within[other], within[name] + 1)
    return out


_MOST_INLINED = 16  # rules in place of each other's calls


# ---------------------------------------------------------------------------------------------------- arrays


def _arranged(
    made: _Building, begins: Mapping[str, int], finals: set[int], nullable: set[str], start: int,
    embeds: bool, regions: list[int], meter: Meter,
) -> Network:  # fmt: skip
    """Return the arrays of a network: of nodes that can be reached, without edges that read nothing."""
    closed: dict[int, tuple[list[tuple[int, int]], list[tuple[str, int]], bool]] = {}

    def close(node: int) -> tuple[list[tuple[int, int]], list[tuple[str, int]], bool]:
        found = closed.get(node)
        if found is not None:
            return found
        seen, todo, final = {node}, [node], False
        atoms: list[tuple[int, int]] = []
        calls: list[tuple[str, int]] = []
        while todo:
            here = todo.pop()
            final |= here in finals
            atoms += made.atoms[here]
            further = made.free[here]
            if made.calls[here]:
                calls += made.calls[here]
                further = further + [to for name, to in made.calls[here] if name in nullable]
            for to in further:
                if to not in seen:
                    seen.add(to)
                    todo.append(to)
        found = closed[node] = sorted(set(atoms)), sorted(set(calls)), final
        return found

    number: dict[int, int] = {}  # of nodes that can be reached; those that read alike have the same
    alike: dict[Any, int] = {((), (), True): 0}
    order: list[int] = [0]  # node 0 is the end of the whole
    todo = [start, *begins.values(), *regions]
    for node in todo:
        if node in number:
            continue
        atoms, calls, final = close(node)
        key = (tuple(atoms), tuple(calls), final)
        known = alike.get(key)
        if known is None:
            known = alike[key] = len(order)
            order.append(node)
            todo += [to for _, to in atoms]
            todo += [to for _, to in calls]
        number[node] = known
    closed[0] = [], [], True
    meter.check(states=len(order), doing="reading a grammar")

    names, groups = in_order({name: {other for other, _ in close(begins[name])[1]} for name in begins})
    number_of = {name: i for i, name in enumerate(names)}
    class_of, first, transition, ends = _terminals(made.pieces)
    sizes = np.diff(first)
    at: dict[tuple[int, int], int] = {}  # the first position of each terminal before each node
    used: list[tuple[int, int]] = []
    count = 0
    terminal_start, call_start = [0], [0]
    terminal: list[int] = []
    call_rule: list[int] = []
    call_node: list[int] = []
    node_final = np.zeros(len(order), np.uint8)
    for n, node in enumerate(order):
        atoms, calls, is_final = close(node)
        for piece, to in dict.fromkeys((piece, number[to]) for piece, to in atoms):
            position = at.get((piece, to))
            if position is None:
                position = at[piece, to] = count
                used.append((piece, to))
                count += int(sizes[piece])
            terminal.append(position)
        for rule, to in sorted({(number_of[name], number[to]) for name, to in calls}):
            call_rule.append(rule)
            call_node.append(to)
        terminal_start.append(len(terminal))
        call_start.append(len(call_rule))
        node_final[n] = is_final + (is_final and not atoms and not calls) * 2
    pieces = np.array([piece for piece, _ in used], np.int64)
    lengths = sizes[pieces] if len(used) else np.zeros(0, np.int64)
    begin = np.cumsum(lengths) - lengths
    meter.check(states=count, doing="reading a grammar")
    return Network(
        class_of=class_of,
        transition=transition,
        ends=ends,
        position_state=(np.arange(count) - np.repeat(begin, lengths) + np.repeat(first[pieces], lengths)).astype(
            np.int32
        )
        if count
        else np.zeros(0, np.int32),
        position_node=np.repeat(np.array([to for _, to in used], np.int32), lengths),
        node_final=node_final,
        terminal_start=np.array(terminal_start, np.int32),
        terminal=np.array(terminal, np.int32),
        call_start=np.array(call_start, np.int32),
        call_rule=np.array(call_rule, np.int32),
        call_node=np.array(call_node, np.int32),
        rule_node=np.array([number[begins[name]] for name in names], np.int32),
        rule_group=np.array(groups, np.int32),
        start=number[start],
        rules=tuple(names),
        embeds=embeds,
        region_node=np.array([number[node] for node in regions], np.int32),
        mark=_marks(made, sizes),
    )


_NOTHING = Text(b"")  # stands where a region begins or ends: nothing is read from there


def _marks(made: _Building, sizes: NDArray[np.int64]) -> NDArray[np.int32]:
    """Return of each state of terminals which region begins or ends there."""
    marks = np.zeros(len(made.pieces), np.int32)
    for number, key in enumerate(made.regions):
        marks[made.automata["opened", key]] = 2 * number + 1
        marks[made.automata["closed", key]] = 2 * number + 2
    return np.repeat(marks, sizes)


def _terminals(
    pieces: list[Text | Dfa],
) -> tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.int32], NDArray[np.uint8]]:
    """Return terminals over common classes: classes, the first state of each, transitions, ends."""
    dfas = [piece for piece in pieces if isinstance(piece, Dfa)]
    apart = np.zeros(BYTES, np.int64)  # bytes that stand in texts are classes of their own
    letters = sorted({byte for piece in pieces if isinstance(piece, Text) for byte in piece.data})
    apart[letters] = np.arange(1, len(letters) + 1)
    symbols = np.stack([apart, *(dfa.class_of[:BYTES].astype(np.int64) for dfa in dfas)])
    key = np.zeros(BYTES, np.int64)
    for row in symbols:
        _, key = np.unique(key * (int(row.max()) + 1) + row, return_inverse=True)
    classes = int(key.max()) + 1
    example = np.zeros(classes, np.int64)
    example[key[::-1]] = np.arange(BYTES - 1, -1, -1)
    rows: list[NDArray[np.int32]] = []
    ends: list[NDArray[np.uint8]] = []
    first = [0]
    for piece in pieces:
        if isinstance(piece, Dfa):
            size = piece.num_states
            table = piece.transition[:, piece.class_of[example]].astype(np.int32)
            ends.append((piece.accepting + 2 * (table >= 0).any(axis=1)).astype(np.uint8))
        else:
            symbols_of = key[np.frombuffer(piece.data, np.uint8)]
            size = len(symbols_of) + 1
            table = np.full((size, classes), -1, np.int32)
            table[np.arange(size - 1), symbols_of] = np.arange(1, size)
            ends.append(np.array([2] * (size - 1) + [1], np.uint8))
        np.add(table, first[-1], out=table, where=table >= 0)
        rows.append(table)
        first.append(first[-1] + size)
    return (
        key.astype(np.int32), np.array(first, np.int64),
        np.concatenate(rows).reshape(-1) if rows else np.zeros(0, np.int32),
        np.concatenate(ends) if ends else np.zeros(0, np.uint8),
    )  # fmt: skip
