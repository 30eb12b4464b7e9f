"""Atomic groups and possessive quantifiers as what they say: nothing that a matcher would have preferred follows.

An atomic group takes its preferred match, whatever comes behind. While a matcher's threads read a word, those before
the first that matches are preferred: the word is taken where none of them matches further on. So a group becomes its
words, by the threads that are left before the match, each behind a negative lookahead of these threads.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...automata.budget import Budget
from ...automata.deadline import look
from ...errors import BudgetError
from .preferred import PreferredWords
from .tree import EMPTY, Anchor, Boundary, Chars, Concat, Look, Node, Repeat, Union

_DOING = "taking a group of a pattern apart"
_MOST_STATES = 48
_MOST_NODES = 5_000

Threads = tuple[int, ...]


class TooLargeError(Exception):
    """A group has more states, or needs more nodes, than are taken apart."""


def atomic(node: Node) -> Node:
    """Return the tree of an atomic group around a node, which has no assertions. Raises TooLargeError."""
    try:
        words = PreferredWords(node, [], Budget(states=10_000, bytes=1 << 26, seconds=1.0).begin())
    except BudgetError:
        raise TooLargeError from None
    start = words.threads()
    automaton = _Automaton(words, start)
    left: dict[Threads, list[int]] = {}  # what is preferred to the match, by states
    for i, threads in enumerate(automaton.states):
        if words.matches(threads):
            left.setdefault(threads[:-1], []).append(i)
    branches: list[Node] = []
    for preferred, ends in left.items():
        own = automaton.tree(ends)
        if preferred:
            others = _Automaton(words, preferred)
            longer = others.tree([i for i, threads in enumerate(others.states) if words.matches(threads)])
            own = Concat((own, Look(longer, behind=False, negated=True)))
        branches.append(own)
    return branches[0] if len(branches) == 1 else Union(tuple(branches))


def has_assertions(root: Node) -> bool:
    """Whether a tree asks for the text around some place."""
    todo = [root]
    while todo:
        node = todo.pop()
        if isinstance(node, (Look, Boundary, Anchor)):
            return True
        if isinstance(node, (Concat, Union)):
            todo.extend(node.items)
        elif isinstance(node, Repeat):
            todo.append(node.item)
    return False


class _Automaton:
    """The lists of threads that a word may lead to from one, and which characters lead from each to each."""

    def __init__(self, words: PreferredWords, start: Threads) -> None:
        self.states = [start]
        number = {start: 0}
        self._edges: dict[tuple[int, int], Node] = {}
        for i, threads in enumerate(self.states):
            look(_DOING)
            for ranges, threads_after in words.steps(threads):
                j = number.setdefault(threads_after, len(number))
                if j == len(self.states):
                    if j >= _MOST_STATES:
                        raise TooLargeError
                    self.states.append(threads_after)
                known = self._edges.get((i, j))
                self._edges[i, j] = Chars(ranges) if known is None else _either(known, Chars(ranges))

    def tree(self, ends: Sequence[int]) -> Node:
        """Return what leads from the first state to some, by taking one state after the other out (Kleene)."""
        edges = dict(self._edges)
        final, begin = len(self.states), -1
        edges[begin, 0] = EMPTY
        for end in ends:
            edges[end, final] = EMPTY
        for state in range(len(self.states)):
            look(_DOING)
            loop = edges.pop((state, state), None)
            into = [(i, node) for (i, j), node in edges.items() if j == state]
            out = [(j, node) for (i, j), node in edges.items() if i == state]
            edges = {(i, j): node for (i, j), node in edges.items() if state not in (i, j)}
            for i, before in into:
                for j, after in out:
                    parts = [before, *([] if loop is None else [Repeat(loop, 0, None)]), after]
                    way = _row(parts)
                    known = edges.get((i, j))
                    edges[i, j] = way if known is None else _either(known, way)
            if sum(map(_size, edges.values())) > _MOST_NODES:
                raise TooLargeError
        return edges.get((begin, final), Chars(()))


def _row(parts: Sequence[Node]) -> Node:
    left = [
        item for part in parts if part is not EMPTY for item in (part.items if isinstance(part, Concat) else (part,))
    ]
    return EMPTY if not left else left[0] if len(left) == 1 else Concat(tuple(left))


def _either(one: Node, two: Node) -> Node:
    return Union(tuple(item for node in (one, two) for item in (node.items if isinstance(node, Union) else (node,))))


def _size(node: Node) -> int:
    if isinstance(node, (Concat, Union)):
        return 1 + sum(map(_size, node.items))
    return 1 + _size(node.item) if isinstance(node, Repeat) else 1
