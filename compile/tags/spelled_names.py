r"""Names of control tokens that patterns and grammars spell in letters, which a model that has the token never writes.

What counts is what a pattern says, not how: `<\|end\|>`, `(<)\|end\|>`, `\x3c\|(?:end|start)\|>` and `(?i:<\|END\|>)`
spell <|end|>. A class is no letter: `[<]\|end\|>` says that characters are meant, and `.*` spells nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from ...automata.budget import Budget
from ...automata.deadline import look
from ..grammar import form
from ..regex import tree
from ..regex.parse import parse
from .occurrences import Occurrences

Node = form.Node | tree.Node


def spelled_name(node: Node, names: tuple[str, ...]) -> str | None:
    """Return a name, one of some, that a text of a pattern or of a rule has in letters; None if there is none.

    What other rules derive is not looked at.
    """
    walk = _Walk(names)
    walk.after(node, 0)
    return walk.name


class _Walk:
    """Follows letters through a pattern by the states of `Occurrences`: how much of a name a text ends with.

    Results are kept by part and state, so that nested repeats take no more than parts times states.
    """

    def __init__(self, names: tuple[str, ...]) -> None:
        self.name: str | None = None
        self._found = _occurrences(names)
        self._most = 1 + max(len(name.encode("utf-8", "surrogatepass")) for name in names)  # rounds that change states
        self._known: dict[tuple[int, int], frozenset[int]] = {}
        self._patterns: dict[str, tree.Node] = {}  # of terminals; kept, so that no other node has the same identity

    def after(self, node: Node, state: int) -> frozenset[int]:
        """Return the states after a part, before which a text is in some state."""
        key = id(node), state
        found = self._known.get(key)
        if found is None:
            look("reading a structural tag")
            found = self._known[key] = self._after(node, state)
        return found

    def _after(self, node: Node, state: int) -> frozenset[int]:
        if isinstance(node, form.Text):
            return frozenset((self._read(node.data, state),))
        if isinstance(node, tree.Text):
            return frozenset((self._read(node.text.encode("utf-8", "surrogatepass"), state),))
        if isinstance(node, tree.Chars):
            return frozenset(self._read(letter.encode(), state) for letter in _cases(node)) or _NOTHING
        if isinstance(node, (form.Sequence, tree.Concat)):
            return self._in_a_row(node.items, state)
        if isinstance(node, (form.Choice, tree.Union)):
            return frozenset().union(*(self.after(item, state) for item in node.items))
        if isinstance(node, (form.Repeat, tree.Repeat)):
            return self._repeated(node, state)
        if isinstance(node, form.Terminal) and node.pattern is not None:
            pattern = self._patterns.get(node.pattern)
            if pattern is None:
                pattern = self._patterns[node.pattern] = parse(node.pattern)
            return self.after(pattern, state)
        if isinstance(node, form.Region):
            return self._in_a_row((node.opener, node.body, node.closer), state)
        if isinstance(node, (form.Terminal, form.Special, form.Rule)):
            return _NOTHING
        if isinstance(node, tree.Look):
            self.after(node.item, 0)
        return frozenset((state,))  # an assertion reads nothing

    def _read(self, data: bytes, state: int) -> int:
        rows, ends = self._found.rows, self._found.ends
        for byte in data:
            state = int(rows[state, byte])
            name = ends[state]
            if name is not None:
                self.name = name.decode("utf-8", "surrogatepass")
        return state

    def _in_a_row(self, items: Iterable[Node], state: int) -> frozenset[int]:
        states = frozenset((state,))
        for item in items:
            states = self._all_after(item, states)
        return states

    def _all_after(self, node: Node, states: Iterable[int]) -> frozenset[int]:
        return frozenset().union(*(self.after(node, state) for state in states))

    def _repeated(self, node: form.Repeat | tree.Repeat, state: int) -> frozenset[int]:
        states = frozenset((state,))
        for _ in range(min(node.low, self._most)):
            states = self._all_after(node.item, states)
        found, new, rounds = states, states, self._most if node.high is None else node.high - node.low
        while new and rounds:
            new = self._all_after(node.item, new) - found
            found |= new
            rounds -= 1
        return found


_NOTHING = frozenset((0,))  # the state of a text that ends with no part of a name


def _cases(node: tree.Chars) -> list[str]:
    """Return the cases of a letter if a class is just these, as where case is ignored; nothing for other classes."""
    if not 2 <= sum(high - low + 1 for low, high in node.ranges) <= _MOST_CASES:
        return []
    letters = [chr(point) for low, high in node.ranges for point in range(low, high + 1)]
    return letters if len({letter.casefold() for letter in letters}) == 1 else []


_MOST_CASES = 4


@lru_cache(16)
def _occurrences(names: tuple[str, ...]) -> Occurrences:
    return Occurrences([name.encode("utf-8", "surrogatepass") for name in names], Budget().begin())
