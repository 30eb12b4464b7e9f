"""Keep the end of a tag out of its text.

A *stretch* is text of a tag with neither JSON, nor what a grammar derives, nor another tag in it: what `const_string`,
`regex`, `any_text`, tokens, separators, and free text around other tags say, one behind the other. The end of the tag
does not occur in a stretch, and first occurs behind the last one.

What is put together of texts and patterns alone is one automaton here. Where stretches go on from one part of a format
to the next, the text before decides what may follow: `before` has the states of `Occurrences` that it may end in.
Where these states allow different texts, each part is read once for each of them, see `_ways`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from typing import NoReturn

import numpy as np

from ...automata import ops
from ...automata.budget import Meter
from ...automata.dfa import BYTES, Dfa
from ...errors import Advice, ConstraintError
from ..grammar import form
from ..grammar.analysis import items
from ..grammar.form import EMPTY, Choice, Node, Repeat, Terminal, Text
from ..grammar.regular import dfa_of
from .control_tokens import END
from .occurrences import Ends, Occurrences

Before = Callable[[], frozenset[int]]
Ways = dict[int, Node]
"""What is derived, by the state of `Occurrences` that its texts end in."""
_MOST_ROUNDS = 16  # of a repetition, read one by one
_MOST_STATES = 3  # between any number of rounds
_MOST_NODES, _MOST_DEEP = 50_000, 200  # of what is read a state at a time
_DOING = "keeping the end of a tag out of its text"


class Sealed(form.Sequence):
    """What is no text of the tag around it: another tag, or what a grammar derives."""

    __slots__ = ()


class NeverError(ConstraintError):
    """A format that derives nothing, as what ends it occurs within it first."""


class Stretches:
    """Puts the end of one tag behind its content. shown: what writes a text for messages."""

    def __init__(self, ends: Ends, where: str, shown: Callable[[bytes], str], meter: Meter) -> None:
        self.ends, self.where, self.shown, self.meter = ends, where, shown, meter
        self.found = Occurrences(ends, meter)
        self._dfas: dict[int, tuple[Node, Dfa]] = {}
        self._known: dict[tuple[int, int], tuple[Node, Ways]] = {}

    def closed(self, content: Node, live: Ends) -> Node:
        """Return a content and its end, one of `live`. Raises ConstraintError, `NeverError` where nothing is left."""
        self._live = live
        try:
            made = self._last(content, _fresh)
        except _DependsError:
            closes = [(end, self.found.closed(end)) for end in live]
            ways = self._ways(content, 0).items()
            made = _any([form.Sequence((text, Text(end))) for end, fits in closes for at, text in ways if fits[at]])
            if made is not None and _is_large(made):
                self._refuse()
        if made is None:
            raise NeverError(
                f"whatever this is, an end of its tag, {self.shown(live[0])}, occurs within it first",
                pointer=self.where, remedies=[Advice("Take another end")],
            )  # fmt: skip
        return made

    def _last(self, node: Node, before: Before) -> Node | None:
        """Return what ends a content, with the end of the tag behind it."""
        if _is_run(node):
            ways = [(_terminal(self._run(node, before, end), self.where), end) for end in self._live]
            return _any([None if text is None else form.Sequence((text, Text(end))) for text, end in ways])
        if isinstance(node, form.Sequence) and not isinstance(node, Sealed):
            *others, last = _runs_of(node)
            parts = []
            for each in others:
                part, before = self._part(each, before)
                if part is None:
                    return None
                parts.append(part)
            closed = self._last(last, before)
            return None if closed is None else form.Sequence((*parts, closed))
        if isinstance(node, Repeat) and (node.low, node.high) == (0, 1):
            node = Choice((EMPTY, node.item))
        if isinstance(node, Choice):
            return _any([self._last(item, before) for item in node.items])
        part, after = self._part(node, before)
        end = None if part is None else self._last(EMPTY, after)
        return None if part is None or end is None else form.Sequence((part, end))

    def _part(self, node: Node, before: Before) -> tuple[Node | None, Before]:
        """Return what a node derives in which no end occurs, None for nothing, and what it may leave before others."""
        self.meter.check(doing=_DOING)
        if _is_run(node):
            made = self._run(node, before, None)
            return _terminal(made, self.where), cache(lambda: self._after(made, before()))
        if isinstance(node, Sealed) or not isinstance(node, (form.Sequence, Choice, Repeat)):
            return node, _fresh
        if isinstance(node, form.Sequence):
            parts = []
            for each in _runs_of(node):
                part, before = self._part(each, before)
                if part is None:
                    return None, before
                parts.append(part)
            return form.Sequence(tuple(parts)), before
        if isinstance(node, Choice):
            ways = [self._part(item, before) for item in node.items]
            kept = [after for part, after in ways if part is not None]
            return _any([part for part, _ in ways]), cache(lambda: frozenset().union(*(after() for after in kept)))
        if node.high == 0:
            return EMPTY, before
        once = node.item
        part, after = self._part(once, before)
        if node.high != 1:
            states = before()
            while part is not None and not after() <= states:
                states |= after()
                part, after = self._part(once, partial(_same, states))
        if part is None:
            return (EMPTY, before) if node.low == 0 else (None, before)
        again = Repeat(part, node.low, node.high)
        return again, cache(lambda: before() | after()) if node.low == 0 else after

    # ---------------------------------------------------------------------------------------------------- runs

    def _run(self, node: Node, before: Before, end: bytes | None) -> Dfa:
        """Return the texts of a node in which no end occurs, nor earlier than behind them if an end follows."""
        dfa = self._dfa(node)
        made = {state: self._cut(dfa, state, end) for state in before()}
        first = next(iter(made.values()))
        if not all(ops.equivalent(first, each) for each in made.values()):
            raise _DependsError
        return first

    def _dfa(self, node: Node) -> Dfa:
        """Return the texts of a node that is a run."""
        kept = id(node)
        if kept not in self._dfas:
            self._dfas[kept] = node, dfa_of(node, self.meter)  # the node stays, so that no other has its identity
        return self._dfas[kept][1]

    def _cut(self, dfa: Dfa, start: int, end: bytes | None) -> Dfa:
        may_end = None if end is None else self.found.closed(end)
        return ops.intersection(dfa, self.found.quiet(self.meter, may_end, start), self.meter)

    def _after(self, dfa: Dfa, before: frozenset[int]) -> frozenset[int]:
        """Return the states that a text of a DFA may end in. All texts of the DFA are without an end."""
        if dfa.is_empty:
            return frozenset()
        seen = {(0, state) for state in before}
        todo = list(seen)
        rows = dfa.transition[:, dfa.class_of[:BYTES]].astype(np.int64)
        while todo:
            state, at = todo.pop()
            both = rows[state] * len(self.found.rows) + self.found.rows[at]
            for pair in np.unique(both[rows[state] >= 0]).tolist():
                following = divmod(pair, len(self.found.rows))
                if following not in seen:
                    seen.add(following)
                    todo.append(following)
            self.meter.check(states=len(seen), bytes=200 * len(seen), doing=_DOING)
        return frozenset(at for state, at in seen if dfa.accepting[state])

    # -------------------------------------------------------------------------------------- a state at a time

    def _ways(self, node: Node, start: int) -> Ways:
        """Return what a node derives behind a text that ends in a state, by the state that it ends in then."""
        key = id(node), start
        if key not in self._known:
            self.meter.check(doing=_DOING)
            self._known[key] = node, self._ways_of(node, start)  # the node stays, as in `_dfa`
        return self._known[key][1]

    def _ways_of(self, node: Node, start: int) -> Ways:
        if _is_run(node):
            quiet = self._cut(self._dfa(node), start, None)
            states = np.arange(len(self.found.rows))
            made: Ways = {}
            for at in sorted(self._after(quiet, frozenset((start,)))):
                ending_here = self.found.quiet(self.meter, states == at, start)
                made[at] = Terminal(f"text at {self.where}", ops.intersection(quiet, ending_here, self.meter))
            return made
        if isinstance(node, Sealed) or not isinstance(node, (form.Sequence, Choice, Repeat)):
            return {0: node}
        if isinstance(node, form.Sequence):
            ways: Ways = {start: EMPTY}
            for each in _runs_of(node):
                ways = self._followed(ways, each)
            return ways
        if isinstance(node, Choice):
            return _joined(*(self._ways(item, start) for item in node.items))
        return self._repeated(node, start)

    def _followed(self, ways: Ways, node: Node) -> Ways:
        """Return texts that a node follows."""
        return _joined(*(
            {to: form.Sequence((*_flat(form.Sequence((text,))), behind)) for to, behind in self._ways(node, at).items()}
            for at, text in ways.items()
        ))  # fmt: skip

    def _repeated(self, node: Repeat, start: int) -> Ways:
        """Return the ways of a repetition: some rounds one by one, then rounds that all begin in the same state."""
        now: Ways = {start: EMPTY}
        out: list[Ways] = []
        low, high = node.low, node.high
        for _ in range(_MOST_ROUNDS):
            if low == 0:
                out.append(now)
            if high == 0 or not now:
                return _joined(*out)
            if len(now) == 1:
                [(at, text)] = now.items()
                once = self._ways(node.item, at)
                if once.keys() == {at}:
                    return _joined(*out, {at: form.Sequence((text, Repeat(once[at], low, high)))})
            if low == 0 and high is None:
                return _joined(*(
                    {to: form.Sequence((text, rest)) for to, rest in self._any_number(node.item, at).items()}
                    for at, text in now.items()
                ))  # fmt: skip
            now = self._followed(now, node.item)
            low, high = max(low - 1, 0), None if high is None else high - 1
        return self._refuse()

    def _any_number(self, item: Node, start: int) -> Ways:
        """Return the ways of any number of rounds (Kleene, 1956)."""
        edges: dict[int, Ways] = {}
        todo = [start]
        while todo:
            at = todo.pop()
            if at not in edges:
                edges[at] = self._ways(item, at)
                todo += edges[at]
        if len(edges) > _MOST_STATES:
            self._refuse()
        for mid in edges:
            again = Repeat(edges[mid][mid], 0, None) if mid in edges[mid] else EMPTY
            edges = {
                at: _joined(ways, {to: form.Sequence((ways[mid], again, rest)) for to, rest in edges[mid].items()})
                if mid in ways
                else ways
                for at, ways in edges.items()
            }
        return _joined({start: EMPTY}, edges[start])

    def _refuse(self) -> NoReturn:
        raise ConstraintError(
            f"the end of this tag, {self.shown(self.ends[0])}, may begin in one part of the content and go on in "
            "the next, in more ways than are followed",
            pointer=self.where,
            remedies=[
                Advice(
                    "Take an end whose beginning no part ends with, write the parts as one regex, or leave out the "
                    "repetition of triggered_tags, which have any number of tags"
                )
            ],
        )


class _DependsError(Exception):
    """What a part may be depends on the text before it."""


def _is_large(node: Node) -> bool:
    """Whether a node, in which parts may stand in several places, is too large or too deep to be compiled."""
    todo = [(node, 0)]
    count = 0
    while todo:
        each, deep = todo.pop()
        count += 1
        if count > _MOST_NODES or deep > _MOST_DEEP:
            return True
        todo += [(item, deep + 1) for item in items(each)]
    return False


def _joined(*several: Mapping[int, Node]) -> Ways:
    """Return several ways as one, by the states that they end in."""
    found: dict[int, list[Node | None]] = {}
    for ways in several:
        for at, text in ways.items():
            found.setdefault(at, []).append(text)
    return {at: made for at, texts in found.items() if (made := _any(texts)) is not None}


def _same(states: frozenset[int]) -> frozenset[int]:
    return states


def _fresh() -> frozenset[int]:
    return frozenset((0,))


def _terminal(dfa: Dfa, where: str) -> Node | None:
    return None if dfa.is_empty else Terminal(f"text at {where}", dfa)


def _any(ways: list[Node | None]) -> Node | None:
    kept = tuple(way for way in ways if way is not None)
    return kept[0] if len(kept) == 1 else Choice(kept) if kept else None


def _runs_of(node: form.Sequence) -> list[Node]:
    """Return the items of a sequence, those of sequences in it among them, neighbours that are text as one."""
    out: list[Node] = []
    run: list[Node] = []
    for item in _flat(node):
        if _is_run(item):
            run.append(item)
            continue
        if run:
            out.append(form.Sequence(tuple(run)))
            run = []
        out.append(item)
    return [*out, form.Sequence(tuple(run))] if run or not out else out


def _flat(node: form.Sequence) -> Iterator[Node]:
    for item in node.items:
        if isinstance(item, form.Sequence) and not isinstance(item, Sealed):
            yield from _flat(item)
        else:
            yield item


def _is_run(node: Node) -> bool:
    """Whether a node is put together of texts and patterns alone."""
    if isinstance(node, Text):
        return END not in node.data
    if isinstance(node, Sealed):
        return False
    if isinstance(node, (form.Sequence, Choice)):
        return all(map(_is_run, node.items))
    return isinstance(node, Terminal) or (isinstance(node, Repeat) and _is_run(node.item))
