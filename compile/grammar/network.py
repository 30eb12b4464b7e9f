"""A grammar as a network: nodes between terminals, joined by terminals and by calls of rules.

A *position* is a node, or a state within a terminal that stands between two nodes. Nothing in the network is empty:
what a node leads to without reading, through rules that derive the empty text as well, is part of the node.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...automata.budget import Meter
from ...automata.dfa import BYTES, Dfa
from .form import Choice, Grammar, Node, Repeat, Rule, Sequence, Special, Terminal, Text


@dataclass(frozen=True)
class Network:
    """Arrays of a network; C classes of symbols, T states of terminals, Q positions within terminals, N nodes, R rules.

    Symbols are the 256 bytes and the special tokens `specials`, in this order. Rules are numbered so that one that is
    called where another begins comes after it, or is in its group. Node 0 ends and does nothing else.
    """

    class_of: NDArray[np.int32]  # (256 + specials,)
    transition: NDArray[np.int32]  # (T * C,) the state of the same terminal that a class leads to, or -1
    ends: NDArray[np.uint8]  # (T,) 1 where a terminal may end, 2 where it may go on, 3 for both
    position_state: NDArray[np.int32]  # (Q,) of the terminal
    position_node: NDArray[np.int32]  # (Q,) where its end leads to
    node_final: NDArray[np.uint8]  # (N,) 1 where a rule may end, 2 where it can do nothing else, too
    terminal_start: NDArray[np.int32]  # (N + 1,)
    terminal: NDArray[np.int32]  # the first positions of terminals that a node begins with
    call_start: NDArray[np.int32]  # (N + 1,)
    call_rule: NDArray[np.int32]
    call_node: NDArray[np.int32]  # where a call returns to
    rule_node: NDArray[np.int32]  # (R,) where a rule begins
    rule_group: NDArray[np.int32]  # (R,) rules that are called where each other begin have the same
    start: int  # the node where the whole begins
    specials: tuple[str, ...]
    rules: tuple[str, ...]  # names
    nullable: bool  # whether the empty text is in the language
    embeds: bool  # whether a rule stands within itself, with something before it and something after it

    @property
    def classes(self) -> int:
        """The number of classes of symbols."""
        return int(self.class_of.max()) + 1


@dataclass
class _Building:
    """Nodes in the making, with edges that read nothing."""

    free: list[list[int]] = field(default_factory=list)  # edges without terminal or call
    atoms: list[list[tuple[int, int]]] = field(default_factory=list)  # (terminal, node)
    calls: list[list[tuple[str, int]]] = field(default_factory=list)
    automata: dict[Any, int] = field(default_factory=dict)  # number of each terminal
    pieces: list[Text | Special | Dfa] = field(default_factory=list)

    def node(self) -> int:
        self.free.append([])
        self.atoms.append([])
        self.calls.append([])
        return len(self.free) - 1

    def piece(self, key: Any, what: Text | Special | Dfa) -> int:
        found = self.automata.get(key)
        if found is None:
            found = self.automata[key] = len(self.pieces)
            self.pieces.append(what)
        return found


def build(grammar: Grammar, meter: Meter) -> Network:
    """Return the network of a grammar.

    Raises GrammarError for a rule that derives no text at all and can be reached, or is not there; BudgetError.
    """
    rules = _reachable(grammar)
    nullable = _nullable(rules)
    _check_productive(grammar, rules)
    nonempty = _least(rules, _may_read)
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
        if isinstance(item, Text):
            if item.data:
                made.atoms[begin].append((made.piece(item.data, item), space_before(to)))
            else:
                made.free[begin].append(to)
        elif isinstance(item, Terminal):
            if item.dfa.accepting[0]:
                made.free[begin].append(to)
            made.atoms[begin].append((made.piece(id(item.dfa), item.dfa), space_before(to)))
        elif isinstance(item, Special):
            made.atoms[begin].append((made.piece(("special", item.name), item), space_before(to)))
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
        else:
            _put_repeat(item, begin, to)
        if len(made.free) & 1023 == 0:
            meter.check(states=len(made.free), doing="reading a grammar")

    def _put_repeat(item: Repeat, begin: int, to: int) -> None:
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
    start = space_before(start)
    embeds = _embeds(rules, nonempty)
    return _arranged(made, begins, {end, *ends.values()}, nullable, start, grammar.start in nullable, embeds, meter)


# ---------------------------------------------------------------------------------------------------- analysis


def _items(node: Node) -> tuple[Node, ...]:
    """Return what a node is put together from."""
    if isinstance(node, (Sequence, Choice)):
        return node.items
    return (node.item,) if isinstance(node, Repeat) else ()


def _called(node: Node) -> Iterable[str]:
    """Yield the rules that a node names, as often as it does."""
    todo = [node]
    while todo:
        each = todo.pop()
        if isinstance(each, Rule):
            yield each.name
        todo.extend(_items(each))


def _reachable(grammar: Grammar) -> dict[str, Node]:
    """Return the rules that the start rule leads to, the start first."""
    out: dict[str, Node] = {}
    todo, asked = [grammar.start], {grammar.start: grammar.start}
    while todo:
        name = todo.pop()
        if name in out:
            continue
        if name not in grammar.rules:
            raise grammar.error(f"there is no rule {name!r}", asked[name])
        out[name] = grammar.rules[name]
        for other in _called(out[name]):
            asked.setdefault(other, name)
            todo.append(other)
    return out


def _least(rules: Mapping[str, Node], holds: Any) -> set[str]:
    """Return the least set of rules closed under holds(body, set)."""
    out: set[str] = set()
    users: dict[str, list[str]] = {}
    for name, body in rules.items():
        for other in _called(body):
            users.setdefault(other, []).append(name)
    todo = list(rules)
    while todo:
        name = todo.pop()
        if name not in out and holds(rules[name], out):
            out.add(name)
            todo.extend(users.get(name, ()))
    return out


def _is_nullable(node: Node, known: set[str]) -> bool:
    if isinstance(node, Text):
        return not node.data
    if isinstance(node, Terminal):
        return bool(node.dfa.accepting[0])
    if isinstance(node, Rule):
        return node.name in known
    if isinstance(node, Sequence):
        return all(_is_nullable(item, known) for item in node.items)
    if isinstance(node, Choice):
        return any(_is_nullable(item, known) for item in node.items)
    return isinstance(node, Repeat) and (node.low == 0 or _is_nullable(node.item, known))


def _nullable(rules: Mapping[str, Node]) -> set[str]:
    """Return the rules that derive the empty text."""
    return _least(rules, _is_nullable)


def _is_productive(node: Node, known: set[str]) -> bool:
    if isinstance(node, Terminal):
        return not node.dfa.is_empty
    if isinstance(node, Rule):
        return node.name in known
    if isinstance(node, Sequence):
        return all(_is_productive(item, known) for item in node.items)
    if isinstance(node, Choice):
        return any(_is_productive(item, known) for item in node.items)
    return not isinstance(node, Repeat) or node.low == 0 or _is_productive(node.item, known)


def _check_productive(grammar: Grammar, rules: Mapping[str, Node]) -> None:
    """Raise GrammarError if some rule derives no text."""
    productive = _least(rules, _is_productive)
    lost = [name for name in rules if name not in productive]
    if lost:
        names = ", ".join(lost[:5]) + (" and others" if len(lost) > 5 else "")
        raise grammar.error(
            f"{'a rule derives' if len(lost) == 1 else 'some rules derive'} no text at all, as every way to end it "
            f"leads back to itself: {names}",
            lost[0],
        )


def _may_read(node: Node, known: set[str]) -> bool:
    """Return whether a node, of which the rules known may, may read something."""
    if isinstance(node, Text):
        return bool(node.data)
    if isinstance(node, Terminal):
        return node.dfa.num_states > 1
    if isinstance(node, Rule):
        return node.name in known
    if isinstance(node, Repeat) and node.high == 0:
        return False
    return isinstance(node, Special) or any(_may_read(item, known) for item in _items(node))


def _embeds(rules: Mapping[str, Node], nonempty: set[str]) -> bool:
    """Return whether some rule derives itself with something on either side: only then has a grammar no automaton.

    Of rules that derive each other, each on one side only, and all on the same, the texts are regular (Chomsky 1959).
    """
    order, group = _in_order({name: set(_called(body)) for name, body in rules.items()})
    group_of = dict(zip(order, group, strict=True))
    sides: dict[int, set[str]] = {}
    for name, body in rules.items():
        todo = [(body, False, False)]
        while todo:
            node, before, after = todo.pop()
            if isinstance(node, Rule):
                if group_of[node.name] == group_of[name]:
                    sides.setdefault(group_of[name], set()).update(["before"] * before + ["after"] * after)
            elif isinstance(node, Sequence):
                read = [_may_read(item, nonempty) for item in node.items]
                for i, item in enumerate(node.items):
                    todo.append((item, before or any(read[:i]), after or any(read[i + 1 :])))
            elif isinstance(node, Repeat) and node.high != 1:
                again = _may_read(node.item, nonempty)
                todo.append((node.item, before or again, after or again))
            else:
                todo.extend((item, before, after) for item in _items(node))
    return any(len(found) == 2 for found in sides.values())


def _inlined(rules: Mapping[str, Node], start: str) -> set[str]:
    """Return the rules that need no call: what they derive is a terminal, or they are called once."""
    count: dict[str, int] = {}
    for body in rules.values():
        for name in _called(body):
            count[name] = count.get(name, 0) + 1
    out = {
        name
        for name, body in rules.items()
        if name != start and (isinstance(body, (Text, Terminal, Special)) or count.get(name, 0) == 1)
    }
    for name in list(out):  # a rule that comes back to itself through such rules alone stays one
        seen, todo = {name}, [name]
        while todo and name in out:
            for other in _called(rules[todo.pop()]):
                if other == name:
                    out.discard(name)
                    break
                if other in out and other not in seen:
                    seen.add(other)
                    todo.append(other)
    return out


# ---------------------------------------------------------------------------------------------------- arrays


def _arranged(
    made: _Building, begins: Mapping[str, int], finals: set[int], nullable: set[str], start: int, empty: bool,
    embeds: bool, meter: Meter,
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
    todo = [start, *begins.values()]
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

    names, groups = _in_order({name: {other for other, _ in close(begins[name])[1]} for name in begins})
    number_of = {name: i for i, name in enumerate(names)}
    class_of, first, transition, ends, specials = _terminals(made.pieces)
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
        specials=specials,
        rules=tuple(names),
        nullable=empty,
        embeds=embeds,
    )


def _terminals(
    pieces: list[Text | Special | Dfa],
) -> tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.int32], NDArray[np.uint8], tuple[str, ...]]:
    """Return terminals over common classes: classes, the first state of each, transitions, ends, special tokens."""
    specials = [piece.name for piece in pieces if isinstance(piece, Special)]
    dfas = [piece for piece in pieces if isinstance(piece, Dfa)]
    apart = np.zeros(BYTES, np.int64)  # bytes that stand in texts are classes of their own
    letters = sorted({byte for piece in pieces if isinstance(piece, Text) for byte in piece.data})
    apart[letters] = np.arange(1, len(letters) + 1)
    symbols = np.stack([apart, *(dfa.class_of[:BYTES].astype(np.int64) for dfa in dfas)])
    key = np.zeros(BYTES, np.int64)
    for row in symbols:
        _, key = np.unique(key * (int(row.max()) + 1) + row, return_inverse=True)
    classes = int(key.max()) + 1
    class_of = np.concatenate((key, np.arange(classes, classes + len(specials)))).astype(np.int32)
    width = classes + len(specials)
    example = np.zeros(classes, np.int64)
    example[key[::-1]] = np.arange(BYTES - 1, -1, -1)
    rows: list[NDArray[np.int32]] = []
    ends: list[NDArray[np.uint8]] = []
    first = [0]
    for piece in pieces:
        if isinstance(piece, Dfa):
            size = piece.num_states
            table = np.full((size, width), -1, np.int32)
            table[:, :classes] = piece.transition[:, piece.class_of[example]]
            ends.append((piece.accepting + 2 * (table >= 0).any(axis=1)).astype(np.uint8))
        else:
            symbols_of = (
                key[np.frombuffer(piece.data, np.uint8)] if isinstance(piece, Text)
                else np.array([classes + specials.index(piece.name)])
            )  # fmt: skip
            size = len(symbols_of) + 1
            table = np.full((size, width), -1, np.int32)
            table[np.arange(size - 1), symbols_of] = np.arange(1, size)
            ends.append(np.array([2] * (size - 1) + [1], np.uint8))
        np.add(table, first[-1], out=table, where=table >= 0)
        rows.append(table)
        first.append(first[-1] + size)
    return (
        class_of, np.array(first, np.int64), np.concatenate(rows).reshape(-1) if rows else np.zeros(0, np.int32),
        np.concatenate(ends) if ends else np.zeros(0, np.uint8), tuple(specials),
    )  # fmt: skip


def _in_order(calls: Mapping[str, set[str]]) -> tuple[list[str], list[int]]:
    """Return nodes of a graph, callers first, and the number of each one's strongly connected component (Tarjan)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    held: set[str] = set()
    components: list[list[str]] = []
    for root in calls:
        if root in index:
            continue
        work = [(root, iter(sorted(calls[root])))]
        index[root] = low[root] = len(index)
        stack.append(root)
        held.add(root)
        while work:
            node, others = work[-1]
            for other in others:
                if other not in index:
                    index[other] = low[other] = len(index)
                    stack.append(other)
                    held.add(other)
                    work.append((other, iter(sorted(calls[other]))))
                    break
                if other in held:
                    low[node] = min(low[node], index[other])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == index[node]:
                    component = []
                    while True:
                        other = stack.pop()
                        held.discard(other)
                        component.append(other)
                        if other == node:
                            break
                    components.append(component)
    components.reverse()  # they are found last ones first
    return [name for part in components for name in part], [i for i, part in enumerate(components) for _ in part]
