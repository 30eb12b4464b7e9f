"""What follows from the rules of a grammar: which are reached, empty, productive, and which embed themselves."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

from ...automata.deadline import look
from .form import EMPTY, NEVER, Choice, Grammar, Graph, Node, Region, Repeat, Rule, Sequence, Special, Terminal, Text

READING = "reading a grammar"


def items(node: Node) -> tuple[Node, ...]:
    """Return what a node is put together from."""
    if isinstance(node, (Sequence, Choice)):
        return node.items
    if isinstance(node, Region):
        return (node.body,)
    return (node.item,) if isinstance(node, Repeat) else ()


def called(node: Node, *, within: bool = True) -> Iterable[str]:
    """Yield the names of the rules that a node calls, once for each call. within: whether to look into regions."""
    todo = [node]
    while todo:
        look(READING)
        each = todo.pop()
        if isinstance(each, Rule):
            yield each.name
        elif isinstance(each, (Sequence, Choice)):  # as `items` has them, in half the time: this runs for each node
            todo.extend(each.items)
        elif isinstance(each, Repeat):
            todo.append(each.item)
        elif isinstance(each, Region) and within:
            todo.append(each.body)


def reachable(grammar: Grammar) -> dict[str, Node]:
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
        for other in called(out[name]):
            asked.setdefault(other, name)
            todo.append(other)
    return out


def least(rules: Mapping[str, Node], holds: Callable[[Node, set[str]], bool]) -> set[str]:
    """Return the least set of rules closed under holds(body, set)."""
    out: set[str] = set()
    left = list(rules)
    for _ in range(_PASSES):
        before = len(out)
        for name in reversed(left):
            if holds(rules[name], out):
                out.add(name)
        if len(out) == before:
            return out
        left = [name for name in left if name not in out]
    users: dict[str, list[str]] = {}
    for name in left:
        for other in called(rules[name]):
            users.setdefault(other, []).append(name)
    while left:
        name = left.pop()
        if name not in out and holds(rules[name], out):
            out.add(name)
            left.extend(users.get(name, ()))
    return out


_PASSES = 3  # over all rules, before those that others wait for are looked up: rules mostly stand before what they name


def _derives(node: Node, known: set[str], leaf: Callable[[Text | Terminal | Special], bool]) -> bool:
    """Return whether a node derives something, if a leaf says it of itself and the rules known do."""
    if isinstance(node, Rule):
        return node.name in known
    if isinstance(node, Sequence):
        return all(_derives(item, known, leaf) for item in node.items)
    if isinstance(node, Choice):
        return any(_derives(item, known, leaf) for item in node.items)
    if isinstance(node, Repeat):
        return node.low == 0 or _derives(node.item, known, leaf)
    if isinstance(node, Region):
        return leaf(node.opener) and _derives(node.body, known, leaf) and leaf(node.closer)
    assert not isinstance(node, Graph), "it becomes rules before"
    return leaf(node)


def _is_empty(node: Text | Terminal | Special) -> bool:
    """Return whether a leaf derives the empty text."""
    return not node.data if isinstance(node, Text) else isinstance(node, Terminal) and bool(node.dfa.accepting[0])


def nullable_rules(
    rules: Mapping[str, Node], is_empty: Callable[[Text | Terminal | Special], bool] = _is_empty
) -> set[str]:  # fmt: skip
    """Return the rules that derive the empty text, which a leaf derives if `is_empty` says so."""
    return least(rules, lambda node, known: _derives(node, known, is_empty))


def _derives_some(node: Text | Terminal | Special) -> bool:
    return not isinstance(node, Terminal) or not node.dfa.is_empty


def productive_rules(rules: Mapping[str, Node]) -> set[str]:
    """Return the rules that derive some text."""
    return least(rules, lambda node, known: _derives(node, known, _derives_some))


def check_productive(grammar: Grammar) -> None:
    """Raise GrammarError if some rule derives no text, whether it is reached or not."""
    productive = productive_rules(grammar.rules)
    lost = [name for name in grammar.rules if name not in productive]
    if lost:
        shown = list(dict.fromkeys(name.partition("\0")[0] for name in lost))  # without what tells parts of one apart
        names = ", ".join(shown[:5]) + (" and others" if len(shown) > 5 else "")
        raise grammar.error(
            f"{'a rule derives' if len(lost) == 1 else 'some rules derive'} no text at all, as every way to end it "
            f"leads back to itself: {names}",
            lost[0],
        )


def without_dead_ends(rules: Mapping[str, Node], made: Collection[str] = ()) -> dict[str, Node]:
    """Return rules without the branches that derive no text, and without those of the rules made that derive none.

    Where all of a rule that somebody wrote derives none, all stay as they are, for `check_productive` to name it.
    """
    productive = productive_rules(rules)
    if any(name not in productive and name not in made for name in rules):
        return dict(rules)

    def kept(node: Node) -> Node:
        if isinstance(node, Rule):
            return node if node.name in productive else NEVER
        if isinstance(node, Choice):
            items = [item for item in map(kept, node.items) if item is not NEVER]
            return Choice(tuple(items)) if items else NEVER
        if isinstance(node, Sequence):
            items = [kept(item) for item in node.items]
            return NEVER if NEVER in items else Sequence(tuple(items))
        if isinstance(node, Repeat):
            item = kept(node.item)
            return Repeat(item, node.low, node.high) if item is not NEVER else EMPTY if not node.low else NEVER
        return NEVER if isinstance(node, Terminal) and node.dfa.is_empty else node

    return {name: kept(body) for name, body in rules.items() if name in productive}


def may_read(node: Node, known: set[str]) -> bool:
    """Return whether a node, of which the rules known may, may read something."""
    if isinstance(node, Text):
        return bool(node.data)
    if isinstance(node, Terminal):
        return bool((node.dfa.transition >= 0).any())
    if isinstance(node, Rule):
        return node.name in known
    if isinstance(node, Repeat) and node.high == 0:
        return False
    return isinstance(node, (Special, Region)) or any(may_read(item, known) for item in items(node))


def embedding(rules: Mapping[str, Node], nonempty: set[str]) -> dict[str, int]:
    """Return the rules that derive themselves with something on either side, and which derive each other by number.

    Only these may have no automaton: of rules that derive each other, each on one side only, and all on the same, the
    texts are regular (Chomsky 1959). What stands within regions does not count.
    """
    order, group = in_order({name: tuple(set(called(body, within=False))) for name, body in rules.items()})
    group_of = dict(zip(order, group, strict=True))
    sides: dict[int, set[str]] = {}
    for name, body in rules.items():
        todo = [(body, False, False)]
        while todo:
            look(READING)
            node, before, after = todo.pop()
            if isinstance(node, Rule):
                if group_of[node.name] == group_of[name]:
                    sides.setdefault(group_of[name], set()).update(["before"] * before + ["after"] * after)
            elif isinstance(node, Sequence):
                read = [i for i, item in enumerate(node.items) if may_read(item, nonempty)]
                first, last = (read[0], read[-1]) if read else (len(node.items), -1)
                todo += [(item, before or i > first, after or i < last) for i, item in enumerate(node.items)]
            elif isinstance(node, Repeat) and node.high != 1:
                again = may_read(node.item, nonempty)
                todo.append((node.item, before or again, after or again))
            elif not isinstance(node, Region):
                todo.extend((item, before, after) for item in items(node))
    return {name: number for name, number in group_of.items() if len(sides.get(number, ())) == 2}


def in_order(calls: Mapping[str, Collection[str]]) -> tuple[list[str], list[int]]:
    """Return nodes of a graph, callers first, and the number of each one's strongly connected component (Tarjan)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    held: set[str] = set()
    found: list[str] = []  # the components, last ones first
    ends: list[int] = []
    path: list[str] = []
    left: list[list[str]] = []  # what each node of the path calls and was not looked at yet, the next one last

    def enter(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        held.add(node)
        path.append(node)
        left.append(sorted(calls[node], reverse=True))

    for root in calls:
        if root in index:
            continue
        enter(root)
        while path:
            node, others = path[-1], left[-1]
            while others:
                other = others.pop()
                if other not in index:
                    enter(other)
                    break
                if other in held:
                    low[node] = min(low[node], index[other])
            else:
                path.pop()
                left.pop()
                if path:
                    low[path[-1]] = min(low[path[-1]], low[node])
                if low[node] == index[node]:
                    begin = len(found)
                    while len(found) == begin or found[-1] != node:
                        found.append(stack.pop())
                    held.difference_update(found[begin:])
                    ends.append(len(found))
    order: list[str] = []
    group: list[int] = []
    for number, end in enumerate(reversed(ends)):
        begin = ends[-number - 2] if number + 1 < len(ends) else 0
        order += found[begin:end]
        group += [number] * (end - begin)
    return order, group
