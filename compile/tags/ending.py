"""A token that ends a text, in a tag: the text ends there, and nothing follows."""

from __future__ import annotations

from ..grammar import form
from ..grammar.form import EMPTY, Choice, Node, Repeat, Terminal, Text
from .control_tokens import END


def ended(node: Node) -> Node | None:
    """Return what a node derives without `END`, or up to it where nothing else has to follow; None for nothing."""
    open_, closed = _split(node)
    ways = tuple(each for each in (open_, closed) if each is not None)
    return ways[0] if len(ways) == 1 else Choice(ways) if ways else None


def _split(node: Node) -> tuple[Node | None, Node | None]:
    """Return what a node derives without `END`, and what it derives that ends there."""
    if isinstance(node, Text) and END in node.data:
        data, _, behind = node.data.partition(END)
        return None, None if behind else Text(data)
    if isinstance(node, form.Sequence):
        open_: Node | None = EMPTY
        ways: list[Node] = []
        for i, item in enumerate(node.items):
            if open_ is None:
                break
            before, closed = _split(item)
            if closed is not None and all(map(_may_be_empty, node.items[i + 1 :])):
                ways.append(form.Sequence((open_, closed)))
            open_ = None if before is None else form.Sequence((open_, before))
        return open_, _any(ways)
    if isinstance(node, Choice):
        parts = [_split(item) for item in node.items]
        return _any([way for way, _ in parts if way is not None]), _any([way for _, way in parts if way is not None])
    if isinstance(node, Repeat):
        once, last = _split(node.item)
        if once is None:
            fits = last is not None and node.low <= 1 and node.high != 0
            return EMPTY if node.low == 0 else None, last if fits else None
        if last is None or node.high == 0:
            return Repeat(once, node.low, node.high), None
        fewer = Repeat(once, max(node.low - 1, 0), None if node.high is None else node.high - 1)
        return Repeat(once, node.low, node.high), form.Sequence((fewer, last))
    return node, None


def _any(ways: list[Node]) -> Node | None:
    return None if not ways else ways[0] if len(ways) == 1 else Choice(tuple(ways))


def _may_be_empty(node: Node) -> bool:
    if isinstance(node, Text):
        return not node.data
    if isinstance(node, Terminal):
        return bool(node.dfa.accepting[0])
    if isinstance(node, form.Sequence):
        return all(map(_may_be_empty, node.items))
    if isinstance(node, Choice):
        return any(map(_may_be_empty, node.items))
    return isinstance(node, Repeat) and (node.low == 0 or _may_be_empty(node.item))
