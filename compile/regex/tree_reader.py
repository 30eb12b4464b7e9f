"""Turn the tree of a pattern into nodes of `Elements`."""

from __future__ import annotations

from bisect import bisect_right

from ...automata.utf8 import ANY, Ranges
from .derivatives import Elements, Node
from .lower import settled
from .tree import Anchor, Boundary, Chars, Concat, Look, Repeat, Text, Union
from .tree import Node as Tree
from .unicode import NEWLINE


def sets_of(tree: Tree) -> tuple[Ranges, ...]:
    """Return the sets of characters that a pattern tells apart."""
    found: dict[Ranges, None] = {}
    points: dict[str, None] = {}
    todo: list[Tree] = [tree]
    while todo:
        node = todo.pop()
        if isinstance(node, Text):
            points.update(dict.fromkeys(node.text))
        elif isinstance(node, Chars):
            found[node.ranges] = None
        elif isinstance(node, (Concat, Union)):
            todo.extend(node.items)
        elif isinstance(node, (Repeat, Look)):
            todo.append(node.item)
        elif isinstance(node, Boundary):
            found[node.word] = None
        elif isinstance(node, Anchor):
            if node.kind == "last newline":
                found[NEWLINE] = None
            elif node.terminators:
                found[node.terminators] = None
    found.update(dict.fromkeys(((ord(c), ord(c)),) for c in points))
    found.pop(ANY, None)
    return tuple(sorted(found))


def _is_anchor(tree: Tree, kind: str) -> bool:
    return isinstance(tree, Anchor) and tree.kind == kind


class TreeReader:
    """Turns the tree of a pattern into nodes of `Elements`, without recursion."""

    def __init__(self, elements: Elements) -> None:
        self._elements = elements
        self._points = elements.alphabet.representatives
        self._starts = elements.alphabet.starts.tolist()
        self._class_of_range = elements.alphabet.class_of_range.tolist()
        self._bits: dict[Ranges, int] = {}
        self._bit_of: dict[str, int] = {}

    def classes(self, ranges: Ranges) -> int:
        """Return the classes of a set that the alphabet tells apart, as bits."""
        found = self._bits.get(ranges)
        if found is None:
            lows = [low for low, _ in ranges]
            found = 0
            for c, point in enumerate(self._points):
                k = bisect_right(lows, point) - 1
                if k >= 0 and point <= ranges[k][1]:
                    found |= 1 << c
            self._bits[ranges] = found
        return found

    def in_text(self, tree: Tree, around: Node) -> Node:
        """Return the node of texts in which a tree matches, with other texts around it.

        Where it begins with the start of the text there is none before it. So no such anchor is left to be asked about.
        """
        e = self._elements
        branches = tree.items if isinstance(tree, Union) else (tree,)
        found = []
        for branch in branches:
            items = list(branch.items) if isinstance(branch, Concat) else [branch]
            is_first, is_last = _is_anchor(items[0], "start"), _is_anchor(items[-1], "end")
            if not is_first and not is_last:
                found.append(e.concat((around, self.node(branch), around)))
                continue
            items = items[is_first : len(items) - (is_last and len(items) > is_first)]
            node = e.concat([self.node(item) for item in items])
            found.append(e.concat(([] if is_first else [around]) + [node] + ([] if is_last else [around])))
        return found[0] if len(found) == 1 else e.union(found)

    def node(self, tree: Tree) -> Node:
        """Return the node of a tree."""
        e = self._elements
        made: list[Node] = []
        todo: list[tuple[Tree, bool]] = [(tree, False)]
        while todo:
            here, is_ready = todo.pop()
            if isinstance(here, Text):
                made.append(e.text(tuple([self._class_of(c) for c in here.text])))
            elif isinstance(here, Chars):
                made.append(e.characters(self.classes(here.ranges)))
            elif isinstance(here, (Concat, Union)):
                if not is_ready:
                    todo.append((here, True))
                    todo.extend([(item, False) for item in reversed(here.items)])
                    continue
                first = len(made) - len(here.items)
                parts = made[first:]
                del made[first:]
                made.append(e.concat(parts) if isinstance(here, Concat) else e.union(parts))
            elif isinstance(here, (Repeat, Look)):
                if not is_ready:
                    todo.extend(((here, True), (settled(here.item) if isinstance(here, Look) else here.item, False)))
                    continue
                part = made.pop()
                if isinstance(here, Repeat):
                    made.append(e.repeat(part, here.low, here.high))
                else:
                    made.append(self._look(here, part))
            else:
                assert isinstance(here, (Anchor, Boundary)), "a pattern has no other nodes before it is lowered"
                made.append(self._anchor(here) if isinstance(here, Anchor) else self._boundary(here))
        return made[0]

    def _class_of(self, character: str) -> int:
        """Return the class of a character as a bit."""
        found = self._bit_of.get(character)
        if found is None:
            c = self._class_of_range[bisect_right(self._starts, ord(character)) - 1]
            found = self._bit_of[character] = 1 << c if c >= 0 else 0
        return found

    def _look(self, look: Look, part: Node) -> Node:
        e = self._elements
        if not look.behind:
            return e.ahead(e.element(e.concat((part, e.any_text)), e.end), look.negated)
        if part.kind == "characters":
            classes = part.value ^ ((1 << e.alphabet.classes) - 1) if look.negated else part.value
            return e.question(classes, look.negated)
        return e.question(0, look.negated, e.tracker(part))

    def _anchor(self, anchor: Anchor) -> Node:
        e, ends = self._elements, self.classes(anchor.terminators)
        if anchor.kind in ("start", "line start"):
            return e.question(ends, True)
        if anchor.kind == "end":
            return e.ahead(e.end, False)
        if anchor.kind == "last newline":
            newline = e.characters(self.classes(NEWLINE))
            return e.ahead(e.element(e.repeat(newline, 0, 1), e.end), False)
        more = e.concat((e.characters(ends), e.any_text))
        return e.ahead(e.element(e.repeat(more, 0, 1), e.end), False)

    def _boundary(self, boundary: Boundary) -> Node:
        e, word = self._elements, self.classes(boundary.word)
        others = word ^ ((1 << e.alphabet.classes) - 1)
        behind, not_behind = e.question(word, False), e.question(others, True)
        ahead = e.element(e.concat((e.characters(word), e.any_text)), e.end)
        is_ahead, is_not_ahead = e.ahead(ahead, False), e.ahead(ahead, True)
        if not boundary.negated:
            return e.union((e.concat((behind, is_not_ahead)), e.concat((not_behind, is_ahead))))
        inside = e.concat((behind, is_ahead))
        if boundary.in_empty:
            return e.union((inside, e.concat((not_behind, is_not_ahead))))
        some = e.ahead(e.element(e.concat((e.characters(others), e.any_text)), e.end), False)
        return e.union((inside, e.concat((e.question(others, False), is_not_ahead)), e.concat((not_behind, some))))
