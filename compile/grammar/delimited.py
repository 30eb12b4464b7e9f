"""A grammar with regions as a machine with calls: where one begins the machine calls, where it ends it returns.

The states are those of the reader (`stacks`) over what stands outside and inside regions, each as if others were
single symbols. A state in which nothing but beginnings of regions stand is a call: what stands within all of them is
read at once, and the site on the stack knows for each set of regions that may have ended where the text goes on. A
state of nothing but ends is a return.

Where either is mixed with something else, the next byte has to tell them apart. Beginnings are left to it: it makes
the call. Ends are taken, as the text may be over: the machine returns to a state behind the call that also knows what
else there was within, and goes back there, by a call with the same site, if the next byte is of that. Where a byte goes
on in both ways, the input alone does not say how many regions are open, and there is no such machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...automata.budget import Meter
from ...automata.dfa import BYTES
from ...automata.network import Network
from ...automata.pushdown import PushdownMachine
from ...automata.refinement import refine
from ...automata.state_ranges import DEAD, RETURN
from ...lazy.grammar.lazy_grammar import NO_TOKENS, LazyGrammar

_PLAIN, _CALL, _RETURN, _UNDECIDED, _EARLY = range(5)

_End = frozenset[int] | int
"""How a fragment ends: with some regions, or early, in a state from which what stands within may still go on."""


class NotDelimitedError(Exception):
    """The input alone does not say where regions begin and end."""


@dataclass
class _Fragment:
    """What stands within some regions that begin together."""

    start: int  # state
    states: set[int] = field(default_factory=set)
    ends: dict[_End, None] = field(default_factory=dict)  # in order
    callers: list[tuple[_Fragment, int]] = field(default_factory=list)  # fragment and state of calls
    calls: dict[int, None] = field(default_factory=dict)  # states


def to_machine(network: Network, meter: Meter) -> tuple[PushdownMachine, int]:
    """Return the machine of a network with regions, and its start.

    Raises NotDelimitedError, BudgetError.
    """
    return _Explored(network, meter).machine()


class _Explored:
    """All states of a network with regions, and which fragments they are in.

    Those of the reader are numbered by it. State -1 - k is the k-th of those behind calls that ended early.
    """

    def __init__(self, network: Network, meter: Meter) -> None:
        self.network, self.meter = network, meter
        self.stacks = LazyGrammar(network, NO_TOKENS, meter)
        self.spread = 0  # states whose cells are known
        self.kinds: dict[int, int] = {}
        self.fragments: dict[frozenset[int], _Fragment] = {}
        self.returns: dict[tuple[int, frozenset[int]], int] = {}
        self.early: dict[tuple[int, int], int] = {}  # by call, and the state in which its fragment ended
        self.early_of: list[tuple[int, int]] = []
        self.whole = _Fragment(0)
        self.todo: list[tuple[_Fragment, int]] = []
        self._reach(self.whole, 0)
        while self.todo:
            self._follow(*self.todo.pop())

    # -------------------------------------------------------------------------------------------- exploring

    def _marks(self, state: int) -> NDArray[np.int32]:
        """Return of each item of a state which region begins or ends there, as `Network.mark` does."""
        return self.network.mark[self.network.position_state[self.stacks.items(state)[0]]]

    def _kind(self, state: int) -> int:
        kind = self.kinds.get(state)
        if kind is None:
            marks = self._marks(state)
            kind = _PLAIN
            if marks.any():
                begins, whole = (marks % 2 == 1).any(), marks.all() and not self.stacks.accepts(state)
                if begins and (marks[marks > 0] % 2 == 0).any():
                    raise NotDelimitedError
                kind = (_CALL if whole else _UNDECIDED) if begins else _RETURN if whole else _EARLY
            self.kinds[state] = kind
        return kind

    def _regions(self, state: int) -> frozenset[int]:
        """Return the regions that begin, or end, at a state."""
        marks = self._marks(state)
        return frozenset(((marks[marks > 0] - 1) // 2).tolist())

    def _end(self, state: int) -> _End | None:
        """Return how a fragment ends where it comes to a state, None if it does not."""
        kind = self._kind(state)
        return self._regions(state) if kind == _RETURN else state if kind == _EARLY else None

    def _fragment(self, state: int) -> _Fragment:
        """Return the fragment that a call enters."""
        regions = self._regions(state)
        found = self.fragments.get(regions)
        if found is None:
            nodes = sorted({int(self.network.region_node[region]) for region in regions})
            found = self.fragments[regions] = _Fragment(self.stacks.enter([(node, 0) for node in nodes]))
            self._reach(found, found.start)
        return found

    def after(self, call: int, end: _End) -> int:
        """Return the state behind a call by how its fragment has ended."""
        if isinstance(end, int):
            found = self.early.get((call, end))
            if found is None:
                found = self.early[call, end] = -1 - len(self.early_of)
                self.early_of.append((call, end))
            return found
        found = self.returns.get((call, end))
        if found is None:
            position, frame = self.stacks.items(call)
            kept = np.isin((self._marks(call) - 1) // 2, list(end))
            nodes = self.network.position_node[position[kept]]
            found = self.stacks.enter(list(zip(nodes.tolist(), frame[kept].tolist(), strict=True)))
            self.returns[call, end] = found
        return found

    def row(self, state: int) -> NDArray[np.int32]:
        """Return where each class of symbols leads without a call that is made late."""
        if state < 0:
            call, end = self.early_of[-1 - state]
            state = self.after(call, self._regions(end))
        while state >= self.spread:
            self.spread = self.stacks.spread(self.spread, self.meter)
        row: NDArray[np.int32] = self.stacks.cells[state]
        return row

    def late(self, state: int) -> tuple[dict[int, tuple[int, int]], dict[int, int]]:
        """Return the calls that classes of symbols make late in a state: the state of each, and where it leads within.

        The second dictionary has the calls that end with the same symbol, and the state that each of these leads to. A
        call is late in two cases: an undecided state makes it, or it returns to a state that has ended early.
        """
        called: dict[int, tuple[int, int]] = {}
        passed: dict[int, int] = {}
        row = self.row(state)

        def enter(call: int, inner: NDArray[np.int32]) -> None:
            for symbol in np.flatnonzero(inner != DEAD).tolist():
                to = int(inner[symbol])
                if row[symbol] != DEAD or symbol in called or symbol in passed or self._kind(to) == _CALL:
                    raise NotDelimitedError
                end = self._end(to)
                if end is None:
                    called[symbol] = call, to
                else:
                    passed[symbol] = self.after(call, end)

        if state < 0:
            call, end = self.early_of[-1 - state]
            enter(call, self.row(end))
            state = self.after(call, self._regions(end))
        if self._kind(state) == _UNDECIDED:
            enter(state, self.row(self._fragment(state).start))
        return called, passed

    def accepts(self, state: int) -> bool:
        """Return whether the text may end in a state."""
        if state < 0:
            call, end = self.early_of[-1 - state]
            state = self.after(call, self._regions(end))
        return self.stacks.accepts(state)

    def _reach(self, fragment: _Fragment, state: int) -> None:
        if state in fragment.states:
            return
        if state >= 0 and self._kind(state) not in (_PLAIN, _UNDECIDED):
            raise NotDelimitedError  # nothing is read between two brackets
        fragment.states.add(state)
        self.todo.append((fragment, state))

    def _follow(self, fragment: _Fragment, state: int) -> None:
        """Reach what a state of a fragment leads to."""
        for to in set(self.row(state).tolist()) - {DEAD}:
            if self._kind(to) == _CALL:
                self._call(fragment, to)
                continue
            end = self._end(to)
            if end is None:
                self._reach(fragment, to)
            elif end not in fragment.ends:
                fragment.ends[end] = None
                if isinstance(end, int):
                    self._follow(fragment, end)  # what still goes on
                for other, call in fragment.callers:
                    self._reach(other, self.after(call, end))
        if state < 0 or self._kind(state) == _UNDECIDED:
            called, passed = self.late(state)
            for to in passed.values():
                self._reach(fragment, to)
            for call in {call for call, _ in called.values()}:
                self._call(fragment, call)

    def _call(self, fragment: _Fragment, state: int) -> None:
        """Note that a fragment makes the call of a state."""
        if state in fragment.calls:
            return
        fragment.calls[state] = None
        inner = self._fragment(state)
        inner.callers.append((fragment, state))
        for ended in list(inner.ends):
            self._reach(fragment, self.after(state, ended))

    # -------------------------------------------------------------------------------------------- machine

    def machine(self) -> tuple[PushdownMachine, int]:
        """Return the machine and its start."""
        fragments = list({id(each): each for each in (self.whole, *self.fragments.values())}.values())
        label = _labels(fragments)
        states = sorted({state for fragment in fragments for state in fragment.states})
        place = {state: i for i, state in enumerate(states)}
        inner = {call: self._fragment(call) for fragment in fragments for call in fragment.calls}
        # what is called: by which state, and where it goes
        calls = [(call, inner[call].start) for call in inner if self.kinds[call] == _CALL]
        number_of: dict[Any, int] = {call: k for k, (call, _) in enumerate(calls)}
        late = {state: self.late(state) for state in states if state < 0 or self.kinds[state] == _UNDECIDED}
        for called, _ in late.values():
            for each in set(called.values()):
                if each not in number_of:
                    number_of[each] = len(calls)
                    calls.append(each)
        # codes count states from 0, and calls below all labels
        base = RETURN - 1 - max(label.values(), default=0)
        code = np.full(self.stacks.num_states + 1, DEAD, np.int64)  # the last is where nothing leads
        for state, kind in self.kinds.items():
            if kind == _CALL and state in number_of:
                code[state] = base - number_of[state]
            elif kind in (_RETURN, _EARLY) and (end := self._end(state)) in label:
                code[state] = RETURN - label[end]
            elif state in place:
                code[state] = place[state]
        rows = code[np.stack([self.row(state) for state in states])]
        for state, (called, passed) in late.items():
            for symbol, each in called.items():
                rows[place[state], symbol] = base - number_of[each]
            for symbol, to in passed.items():
                rows[place[state], symbol] = place[to]
        start = np.array([place[to] for _, to in calls], np.int64)
        site = np.full((len(calls), max(label.values(), default=0) + 1), -1, np.int64)
        for k, (call, _) in enumerate(calls):
            for end in inner[call].ends:
                site[k, label[end]] = place[self.after(call, end)]
        accepting = np.array([self.accepts(state) for state in states], np.bool_)
        self.meter.check(states=len(states), bytes=1024 * len(states), doing="finding all states of a grammar")
        merged = _merged(rows, accepting, base, start, site, self.meter)
        first = np.unique(merged, return_index=True)[1]  # a state of each class

        machine = PushdownMachine()
        number = merged + machine.size
        codes = np.full(-base + len(calls) + 1, DEAD, np.int64)  # of what is below 0
        for other in label.values():
            codes[-RETURN + other] = RETURN - other
        for k, (call, _) in enumerate(calls):
            labels = 1 + max((label[ended] for ended in inner[call].ends), default=0)
            wanted = tuple(int(number[to]) if to >= 0 else -1 for to in site[k, :labels].tolist())
            codes[-base + k] = machine.call(machine.site(wanted, not inner[call].calls), int(number[start[k]]))
        kept = rows[first]
        final = np.where(kept >= 0, number[np.maximum(kept, 0)], codes[np.maximum(-kept, 0)]).astype(np.int32)
        machine.block(final[:, self.network.class_of[:BYTES]])
        machine.accepting = set((1 + np.flatnonzero(accepting[first])).tolist())
        machine.height, machine.anything = _height(self.whole, inner), False
        return machine, int(number[place[0]])


def _labels(fragments: list[_Fragment]) -> dict[_End, int]:
    """Return a label for each end, others for those in which one fragment may end."""
    beside: dict[_End, set[_End]] = {}
    for fragment in fragments:
        for ended in fragment.ends:
            beside.setdefault(ended, set()).update(fragment.ends)
    label: dict[_End, int] = {}
    for ended, others in beside.items():
        used = {label[other] for other in others if other in label}
        label[ended] = next(k for k in range(len(used) + 1) if k not in used)
    return label


def _height(whole: _Fragment, inner: Mapping[int, _Fragment]) -> int | None:
    """Return the most calls open at once that are no leaves; None if they recur."""
    known: dict[int, int] = {}
    todo: list[tuple[_Fragment, bool]] = [(whole, False)]
    open_ones: set[int] = set()
    while todo:
        fragment, done = todo.pop()
        if done:
            open_ones.discard(id(fragment))
            below = [inner[call] for call in fragment.calls]
            known[id(fragment)] = max((known[id(each)] + bool(each.calls) for each in below), default=0)
        elif id(fragment) in open_ones:
            return None
        elif id(fragment) not in known:
            open_ones.add(id(fragment))
            todo.append((fragment, True))
            todo.extend((inner[call], False) for call in fragment.calls)
    return known[id(whole)]


def _merged(
    rows: NDArray[np.int64], accepting: NDArray[np.bool_], base: int, start: NDArray[np.int64],
    site: NDArray[np.int64], meter: Meter,
) -> NDArray[np.int64]:  # fmt: skip
    """Return the class of each state among those that cannot be told apart, classes in order of first ones.

    rows: (N, C) codes; calls are `base` and below. start, site: of each call, where it goes and where it returns to.
    """
    states, classes = rows.shape
    calls, labels = site.shape
    # calls and labels are states as well: a call leads to its start and, by each label, to where it returns
    target = np.where(rows >= 0, rows, np.where(rows <= base, states + base - rows, states + calls + RETURN - rows))
    plain, returns = np.nonzero(rows != DEAD), np.nonzero(site >= 0)
    ends, these = np.arange(labels), np.arange(calls)
    edges = np.concatenate((
        (plain[0], plain[1], target[plain]),
        (states + these, np.full(calls, classes), start),
        (states + returns[0], classes + 1 + returns[1], site[returns]),
        (states + calls + ends, classes + 1 + labels + ends, states + calls + ends),  # all labels differ
    ), axis=1)  # fmt: skip
    meter.check(states=states, bytes=4 * edges.nbytes, doing="merging states of a grammar")
    source, label, to = edges[:, np.argsort(edges[2], kind="stable")]
    total = states + calls + labels
    into = np.concatenate(([0], np.cumsum(np.bincount(to, minlength=total))))
    ending = np.concatenate((accepting, np.zeros(calls + labels, np.bool_)))
    known = np.zeros(total, np.int32), 1
    block = refine(source.astype(np.int32), label.astype(np.int32), into, ending, classes + 1 + 2 * labels, *known)[0]
    _, first, which = np.unique(block[:states], return_index=True, return_inverse=True)
    order = np.argsort(np.argsort(first))
    out: NDArray[np.int64] = order[which.reshape(-1)]
    return out
