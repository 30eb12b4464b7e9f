"""A grammar as a network: nodes between terminals, joined by terminals and by calls of rules.

A *position* is a node, or a state within a terminal that stands between two nodes. Nothing in the network is empty:
what a node leads to without reading, through rules that derive the empty text as well, is part of the node.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...automata.budget import Meter
from ...automata.deadline import look
from ...automata.dfa import BYTES, Dfa
from ...automata.network import Network
from .analysis import READING, called, check_productive, embedding, in_order, least, may_read, nullable_rules, reachable
from .form import Choice, Grammar, Node, Region, Repeat, Rule, Sequence, Terminal, Text

_NOTHING = Text(b"")  # stands where a region begins or ends: nothing is read from there


@dataclass
class _Building:
    """Nodes in the making, with edges that read nothing. Most nodes have edges of one kind: the others take no list."""

    count: int = 0
    free: defaultdict[int, list[int]] = field(default_factory=lambda: defaultdict(list))  # without terminal or call
    atoms: defaultdict[int, list[tuple[int, int]]] = field(default_factory=lambda: defaultdict(list))  # terminal, node
    calls: defaultdict[int, list[tuple[str, int]]] = field(default_factory=lambda: defaultdict(list))
    automata: dict[Any, int] = field(default_factory=dict)  # number of each terminal
    pieces: list[Text | Dfa] = field(default_factory=list)
    regions: dict[int, Region] = field(default_factory=dict)  # by identity, in order

    def node(self) -> int:
        """Return a new node."""
        self.count += 1
        return self.count - 1

    def piece(self, key: object, what: Text | Dfa) -> int:
        """Return the number of a terminal, which is the same for the same key."""
        found = self.automata.get(key)
        if found is None:
            found = self.automata[key] = len(self.pieces)
            self.pieces.append(what)
        return found

    def terminal(self, item: Text | Terminal) -> int:
        """Return the number of an item of a grammar."""
        return self.piece(item.data, item) if isinstance(item, Text) else self.piece(id(item.dfa), item.dfa)


def build(grammar: Grammar, meter: Meter) -> Network:
    """Return the network of a grammar.

    Raises GrammarError for a rule that derives no text at all and can be reached, or is not there; BudgetError.
    """
    check_productive(grammar)
    rules = reachable(grammar)
    nonempty = least(rules, may_read)
    writer = _Writer(grammar, rules, nonempty, meter)
    ends = writer.put_rules()
    start, regions = writer.put_whole()
    embeds = bool(embedding(rules, nonempty))
    closures = _Closures(writer.made, ends, nullable_rules(rules), meter)
    return _arranged(writer.made, closures, writer.begins, start, embeds, regions, meter)


class _Writer:
    """Writes the rules of a grammar into nodes."""

    def __init__(self, grammar: Grammar, rules: Mapping[str, Node], nonempty: set[str], meter: Meter) -> None:
        self._grammar, self._rules, self._nonempty, self._meter = grammar, rules, nonempty, meter
        self._inline = _inlined(rules, grammar.start)
        self.made = _Building()
        self._end = self.made.node()  # of the whole
        self.begins: dict[str, int] = {}  # of rules that are called
        self._spaces: dict[int, int] = {}  # see `_space_before`
        self._in_place: list[tuple[Node, int, int]] = []  # bodies of rules that are still to be put

    def put_rules(self) -> set[int]:
        """Write the rules that are called, and return the nodes where a rule, or the whole, ends."""
        ends = {self._end}
        for name, body in self._rules.items():
            if name not in self._inline and name in self._nonempty:
                self.begins[name], end = self.made.node(), self.made.node()
                ends.add(end)
                self._put_all(body, self.begins[name], end)
        return ends

    def put_whole(self) -> tuple[int, list[int]]:
        """Write the whole and the regions in it, and return where it begins, and where each region's inside does."""
        made = self.made
        start = made.node()
        self._put_all(Rule(self._grammar.start), start, self._end)
        done: list[int] = []
        while len(done) < len(made.regions):  # which may have others within
            for key in list(made.regions)[len(done) :]:
                inside, closing, closed = made.node(), made.node(), made.node()
                self._put_all(made.regions[key].body, inside, closing)
                made.atoms[closing].append((made.terminal(made.regions[key].closer), closed))
                made.atoms[closed].append((made.piece(("closed", key), _NOTHING), self._end))
                done.append(self._space_before(inside))
        return self._space_before(start), done

    def _space_before(self, node: int) -> int:
        """Return a node from which one comes to `node`, with what is ignored before it."""
        ignored, made = self._grammar.ignored, self.made
        if ignored is None:
            return node
        found = self._spaces.get(node)
        if found is None:
            found = self._spaces[node] = made.node()
            made.free[found].append(node)
            made.atoms[found].append((made.piece(id(ignored), ignored), found))
        return found

    def _put_all(self, item: Node, begin: int, to: int) -> None:
        """Lead from one node to another by what an item derives, with the rules that are written in place."""
        self._put(item, begin, to)
        while self._in_place:
            self._put(*self._in_place.pop())

    def _put(self, item: Node, begin: int, to: int) -> None:
        """Lead from one node to another by what an item derives, but for rules in place, which may be a long chain."""
        look(READING)
        made = self.made
        if isinstance(item, (Text, Terminal)):
            if not item.data if isinstance(item, Text) else item.dfa.accepting[0]:
                made.free[begin].append(to)
            if not isinstance(item, Text) or item.data:
                made.atoms[begin].append((made.terminal(item), self._space_before(to)))
        elif isinstance(item, Rule):
            if item.name not in self._nonempty:
                made.free[begin].append(to)
            elif item.name in self._inline:
                self._in_place.append((self._rules[item.name], begin, to))
            else:
                made.calls[begin].append((item.name, to))
        elif isinstance(item, Sequence):
            for part in item.items[:-1]:
                between = made.node()
                self._put(part, begin, between)
                begin = between
            if item.items:
                self._put(item.items[-1], begin, to)
            else:
                made.free[begin].append(to)
        elif isinstance(item, Choice):
            for part in item.items:
                self._put(part, begin, to)
        elif isinstance(item, Region):
            if id(item) not in made.regions:
                made.regions[id(item)] = item
            opened = made.node()
            made.atoms[begin].append((made.terminal(item.opener), opened))
            made.atoms[opened].append((made.piece(("opened", id(item)), _NOTHING), self._space_before(to)))
        else:
            assert isinstance(item, Repeat), "special tokens are texts by now"
            self._put_repeat(item, begin, to)
        if made.count & 1023 == 0:
            self._meter.check(states=made.count, doing=READING)

    def _put_repeat(self, item: Repeat, begin: int, to: int) -> None:
        made, meter = self.made, self._meter
        meter.check(states=made.count + max(item.low, item.high or 0), doing=READING)
        for _ in range(item.low):
            between = made.node()
            self._put(item.item, begin, between)
            begin = between
            meter.check(states=made.count, doing=READING)
        if item.high is None:
            loop = made.node()
            made.free[begin].append(loop)
            self._put(item.item, loop, loop)
            made.free[loop].append(to)
            return
        for _ in range(item.high - item.low):
            made.free[begin].append(to)
            between = made.node()
            self._put(item.item, begin, between)
            begin = between
            meter.check(states=made.count, doing=READING)
        made.free[begin].append(to)


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
    # one that comes back to itself through such rules alone stays a rule
    below = {name: tuple({other for other in called(rules[name]) if other in out}) for name in out}
    order, group = in_order(below)
    sizes = np.bincount(group) if group else np.zeros(0, np.int64)
    alone = (name for name, number in zip(order, group, strict=True) if sizes[number] == 1)
    return {name for name in alone if name not in below[name]}


# ---------------------------------------------------------------------------------------------------- arrays


class _Closure(NamedTuple):
    """What a node leads to, without reading and through rules that derive the empty text as well."""

    atoms: tuple[tuple[int, int], ...]  # (terminal, node)
    calls: tuple[tuple[str, int], ...]  # (rule, node)
    final: bool  # whether a rule, or the whole, may end


_ENTRY = 16  # bytes of each entry of a closure: the place in its tuple, and in a key
_UNASKED = 1_024  # nodes and entries of closures between two looks at the meter, each of which takes a system call


class _Closures:
    """The closures of nodes, each made once. One takes no more than the grammar, but together they may be quadratic."""

    def __init__(self, made: _Building, ends: set[int], nullable: set[str], meter: Meter) -> None:
        self._made, self._ends, self._nullable, self._meter = made, ends, nullable, meter
        self._known: dict[int, _Closure] = {}
        self._nbytes = self._unasked = 0

    def of(self, node: int) -> _Closure:
        """Return the closure of a node. Raises BudgetError."""
        found = self._known.get(node)
        if found is None:
            if self._unasked >= _UNASKED:
                self._meter.check(bytes=self._nbytes, doing=READING)
                self._unasked = 0
            found = self._known[node] = self._close(node)
            entries = len(found.atoms) + len(found.calls)
            self._nbytes += _ENTRY * entries
            self._unasked += entries
        return found

    def end_at(self, node: int) -> None:
        """Let a node end and do nothing else."""
        self._known[node] = _Closure((), (), True)

    def _close(self, node: int) -> _Closure:
        made, nullable = self._made, self._nullable
        seen, todo, final = {node}, [node], False
        atoms: list[tuple[int, int]] = []
        calls: list[tuple[str, int]] = []
        while todo:
            look(READING)
            here = todo.pop()
            final |= here in self._ends
            atoms += made.atoms.get(here, ())
            further = made.free.get(here, ())
            found = made.calls.get(here)
            if found:
                calls += found
                further = [*further, *[to for name, to in found if name in nullable]]
            for to in further:
                if to not in seen:
                    seen.add(to)
                    todo.append(to)
        self._unasked += len(seen)
        return _Closure(_in_order(atoms), _in_order(calls), final)


def _in_order(edges: list[tuple[Any, int]]) -> tuple[tuple[Any, int], ...]:
    return tuple(sorted(set(edges)) if len(edges) > 1 else edges)


def _reached(closures: _Closures, roots: list[int]) -> tuple[list[int], dict[int, int]]:
    """Return the nodes that can be reached, and their numbers; those that read alike have the same.

    Node 0 is the end of the whole, which does nothing else.
    """
    number: dict[int, int] = {}
    alike = {_Closure((), (), True): 0}
    order: list[int] = [0]
    todo = list(roots)
    for node in todo:
        if node in number:
            continue
        closure = closures.of(node)
        known = alike.get(closure)
        if known is None:
            known = alike[closure] = len(order)
            order.append(node)
            todo += [to for _, to in closure.atoms]
            todo += [to for _, to in closure.calls]
        number[node] = known
    closures.end_at(0)
    return order, number


class _Positions:
    """Places within terminals: each terminal before each node is there once."""

    def __init__(self, sizes: NDArray[np.int64]) -> None:
        self._sizes = sizes  # states of each terminal
        self._at: dict[tuple[int, int], int] = {}
        self.count = 0

    def of(self, piece: int, node: int) -> int:
        """Return the first position of a terminal before a node."""
        found = self._at.get((piece, node))
        if found is None:
            found = self._at[piece, node] = self.count
            self.count += int(self._sizes[piece])
        return found

    def arrays(self, first: NDArray[np.int64]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Return the state and the node of each position. first: the first state of each terminal."""
        pieces = np.array([piece for piece, _ in self._at], np.int64)
        lengths = self._sizes[pieces] if pieces.size else np.zeros(0, np.int64)
        begin = np.cumsum(lengths) - lengths
        state = np.zeros(0, np.int32)
        if self.count:
            offset = np.repeat(first[pieces], lengths) - np.repeat(begin, lengths)
            state = (np.arange(self.count) + offset).astype(np.int32)
        return state, np.repeat(np.array([node for _, node in self._at], np.int32), lengths)


def _arranged(
    made: _Building, closures: _Closures, begins: Mapping[str, int], start: int, embeds: bool, regions: list[int],
    meter: Meter,
) -> Network:  # fmt: skip
    """Return the arrays of a network: of nodes that can be reached, without edges that read nothing."""
    order, number = _reached(closures, [start, *begins.values(), *regions])
    meter.check(states=len(order), doing=READING)
    names, groups = in_order({name: tuple({other for other, _ in closures.of(begins[name]).calls}) for name in begins})
    number_of = {name: i for i, name in enumerate(names)}
    class_of, first, transition, ends = _terminals(made.pieces, meter)
    sizes = np.diff(first)
    positions = _Positions(sizes)
    terminal_start, call_start = [0], [0]
    terminal: list[int] = []
    calls: list[tuple[int, int]] = []
    node_final = np.zeros(len(order), np.uint8)
    for n, node in enumerate(order):
        look(READING)
        found = closures.of(node)
        terminal += [
            positions.of(piece, to) for piece, to in dict.fromkeys((piece, number[to]) for piece, to in found.atoms)
        ]
        calls += sorted({(number_of[name], number[to]) for name, to in found.calls})
        terminal_start.append(len(terminal))
        call_start.append(len(calls))
        node_final[n] = found.final + (found.final and not found.atoms and not found.calls) * 2
    meter.check(states=positions.count, doing=READING)
    position_state, position_node = positions.arrays(first)
    return Network(
        class_of=class_of,
        transition=transition,
        ends=ends,
        position_state=position_state,
        position_node=position_node,
        node_final=node_final,
        terminal_start=np.array(terminal_start, np.int32),
        terminal=np.array(terminal, np.int32),
        call_start=np.array(call_start, np.int32),
        call_rule=np.array([rule for rule, _ in calls], np.int32),
        call_node=np.array([to for _, to in calls], np.int32),
        rule_node=np.array([number[begins[name]] for name in names], np.int32),
        rule_group=np.array(groups, np.int32),
        start=number[start],
        rules=tuple(names),
        embeds=embeds,
        region_node=np.array([number[node] for node in regions], np.int32),
        mark=_marks(made, sizes),
    )


def _marks(made: _Building, sizes: NDArray[np.int64]) -> NDArray[np.int32]:
    """Return of each state of terminals which region begins or ends there."""
    marks = np.zeros(len(made.pieces), np.int32)
    for number, key in enumerate(made.regions):
        marks[made.automata["opened", key]] = 2 * number + 1
        marks[made.automata["closed", key]] = 2 * number + 2
    return np.repeat(marks, sizes)


def _terminals(
    pieces: list[Text | Dfa], meter: Meter
) -> tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.int32], NDArray[np.uint8]]:
    """Return terminals over common classes: classes, the first state of each, transitions, ends."""
    dfas = [piece for piece in pieces if isinstance(piece, Dfa)]
    apart = np.zeros(BYTES, np.int64)  # bytes that stand in texts are classes of their own
    letters = sorted({byte for piece in pieces if isinstance(piece, Text) for byte in piece.data})
    apart[letters] = np.arange(1, len(letters) + 1)
    symbols = np.stack([apart, *(dfa.class_of[:BYTES].astype(np.int64) for dfa in dfas)])
    key = np.zeros(BYTES, np.int64)
    for row in symbols:
        look(READING)
        _, key = np.unique(key * (int(row.max()) + 1) + row, return_inverse=True)
    classes = int(key.max()) + 1
    total = sum([piece.num_states if isinstance(piece, Dfa) else len(piece.data) + 1 for piece in pieces])
    meter.check(bytes=2 * total * (4 * classes + 1), doing=READING)
    example = np.zeros(classes, np.int64)
    example[key[::-1]] = np.arange(BYTES - 1, -1, -1)
    rows: list[NDArray[np.int32]] = []
    ends: list[NDArray[np.uint8]] = []
    first = [0]
    for piece in pieces:
        look(READING)
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
