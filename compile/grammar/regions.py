"""Rules rewritten without changing what they derive, so that fewer of them embed themselves.

An operator that stands between two of its own rule becomes a list. Brackets become *regions*: two texts, and what
stands between them, which is read with a stack of its own. Where nothing embeds itself but across regions, the input
alone says how many are open.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ...automata.dfa import BYTES, Dfa
from .analysis import called, embedding, least, may_read, reachable
from .form import Choice, Grammar, Node, Region, Repeat, Rule, Sequence, Terminal, Text

_BRACKETS = {b"(": b")", b"[": b"]", b"{": b"}"}
_MOST_EXPANDED = 64  # alternatives of one rule, those of rules that stand for several of its own among them


def with_lists(grammar: Grammar) -> Grammar:
    """Return a grammar of the same texts where `e: e op e | "-" e | x` is a list of operands.

    From a rule E with alternatives E A E, P E, E S and B one derives P* B S*, any number of them with A between.
    """
    rules = dict(grammar.rules)
    for name in reachable(grammar):
        found = _as_list(name, rules)
        if found is not None:
            rules[name] = found
    return replace(grammar, rules=rules)


def _as_list(name: str, rules: Mapping[str, Node]) -> Node | None:
    """Return the list that a rule derives, None if it is not on both sides of its alternatives."""
    between: list[Node] = []
    before: list[Node] = []
    after: list[Node] = []
    plain: list[Node] = []
    for parts in _alternatives(name, rules):
        first, last = (bool(ends) and _is_rule(ends[0], name) for ends in (parts[:1], parts[-1:]))
        if first and len(parts) == 1:
            continue  # e: e
        if first and last:
            between.append(Sequence(tuple(parts[1:-1])))
        elif last:
            before.append(Sequence(tuple(parts[:-1])))
        elif first:
            after.append(Sequence(tuple(parts[1:])))
        else:
            plain.append(Sequence(tuple(parts)))
    if not plain or not (between or (before and after)):
        return None
    operand: Node = Choice(tuple(plain))
    if before:
        operand = Sequence((Repeat(Choice(tuple(before)), 0, None), operand))
    if after:
        operand = Sequence((operand, Repeat(Choice(tuple(after)), 0, None)))
    if not between:
        return operand
    return Sequence((operand, Repeat(Sequence((Choice(tuple(between)), operand)), 0, None)))


def _alternatives(name: str, rules: Mapping[str, Node]) -> list[list[Node]]:
    """Return the alternatives of a rule, with those of rules that are one and have it at an end in their place."""
    out: list[list[Node]] = []
    todo = [(parts, frozenset((name,))) for parts in _flat(rules[name])]
    while todo:
        parts, seen = todo.pop(0)
        only = parts[0] if len(parts) == 1 else None
        if isinstance(only, Rule) and only.name not in seen and len(todo) + len(out) < _MOST_EXPANDED:
            others = list(_flat(rules[only.name]))
            if any(_at_end(other, name) for other in others):
                todo = [(other, seen | {only.name}) for other in others] + todo
                continue
        out.append(parts)
    return out


def _at_end(parts: list[Node], name: str) -> bool:
    return any(_is_rule(part, name) for part in parts[:1] + parts[-1:])


def _is_rule(node: Node, name: str) -> bool:
    return isinstance(node, Rule) and node.name == name


def _flat(node: Node) -> Iterator[list[Node]]:
    """Yield the alternatives of a node, each as what stands one after the other."""
    if isinstance(node, Choice):
        for item in node.items:
            yield from _flat(item)
    else:
        yield _row(node)


def _row(node: Node) -> list[Node]:
    if not isinstance(node, Sequence):
        return [node]
    return [part for item in node.items for part in _row(item)]


# ------------------------------------------------------------------------------------------------------ regions


def delimited(grammar: Grammar) -> Iterator[Grammar]:
    """Yield grammars of the same texts with regions, in which no rule embeds itself otherwise, the likeliest first.

    Brackets are regions wherever they are, then only where a rule comes back to itself within them. Where rules still
    embed themselves, the words before the first and after the last place where one does are brackets as well.
    """
    words: dict[int, bytes] = {}
    rules = reachable(grammar)
    if grammar.ignored is None:  # nothing may stand between the two then, whether they are one text or two
        rules = {name: _apart(body) for name, body in rules.items()}
    nonempty = least(rules, may_read)
    for everywhere in (True, False):
        extra: dict[bytes, set[bytes]] = {}
        while True:
            looping = None if everywhere else embedding(rules, nonempty)
            changed = {name: _marked(name, body, rules, words, extra, looping) for name, body in rules.items()}
            left = embedding(changed, nonempty)
            if not left:
                yield replace(grammar, rules={**grammar.rules, **changed})
                break
            known = sum(map(len, extra.values()))
            for name in left:
                for parts in _rows(changed[name]):
                    pair = _around(name, parts, left, rules, words)
                    if pair is not None:
                        extra.setdefault(pair[0], set()).add(pair[1])
            if sum(map(len, extra.values())) == known:
                break


def _apart(node: Node) -> Node:
    """Return a node in which brackets are texts of their own."""
    if isinstance(node, (Sequence, Choice)):
        return type(node)(tuple(map(_apart, node.items)))
    if isinstance(node, Repeat):
        return Repeat(_apart(node.item), node.low, node.high)
    if not isinstance(node, Text):
        return node
    parts = [part for part in re.split(rb"([()\[\]{}])", node.data) if part]
    return node if len(parts) < 2 else Sequence(tuple(map(Text, parts)))


def _marked(
    name: str, node: Node, rules: Mapping[str, Node], words: dict[int, bytes], extra: Mapping[bytes, set[bytes]],
    looping: Mapping[str, int] | None,
) -> Node:  # fmt: skip
    """Return a node with its brackets as regions; looping: only of those within which one of these rules is called."""

    def inner(item: Node) -> Node:
        return _marked(name, item, rules, words, extra, looping)

    if isinstance(node, Choice):
        return Choice(tuple(map(inner, node.items)))
    if isinstance(node, Repeat):
        return Repeat(inner(node.item), node.low, node.high)
    if not isinstance(node, Sequence):
        return node
    open_ones: list[tuple[Node, Text | Terminal, bytes]] = []
    rows: list[list[Node]] = [[]]
    for part in _row(node):
        word, terminal = _word(part, rules, words)
        if open_ones and terminal and _closes(open_ones[-1][2], word, extra):
            opener, begins, _ = open_ones.pop()
            body = Sequence(tuple(rows.pop()))
            calls = set(called(body))
            if looping is None or any(looping.get(other) == looping.get(name, -1) for other in calls):
                rows[-1].append(Region(begins, body, terminal))
            else:
                rows[-1] += [opener, *body.items, part]
        elif terminal and (word[-1:] in _BRACKETS or word in extra):
            open_ones.append((part, terminal, word))
            rows.append([])
        else:
            rows[-1].append(inner(part))
    while open_ones:  # what was not closed is no bracket
        opener, *_ = open_ones.pop()
        body_of = rows.pop()
        rows[-1] += [opener, *body_of]
    return Sequence(tuple(rows[0]))


def _closes(opener: bytes, word: bytes, extra: Mapping[bytes, set[bytes]]) -> bool:
    return _BRACKETS.get(opener[-1:]) == word[:1] or word in extra.get(opener, ())


def _rows(node: Node) -> Iterator[list[Node]]:
    """Yield all sequences within a node, regions aside."""
    if isinstance(node, Sequence):
        parts = _row(node)
        yield parts
        for part in parts:
            yield from _rows(part)
    elif isinstance(node, Choice):
        for item in node.items:
            yield from _rows(item)
    elif isinstance(node, Repeat):
        yield from _rows(node.item)


def _around(
    name: str, parts: list[Node], left: Mapping[str, int], rules: Mapping[str, Node], words: dict[int, bytes]
) -> tuple[bytes, bytes] | None:
    """Return the words around all places of a sequence where a rule of the same group is called."""
    places = [
        i for i, part in enumerate(parts) if any(left.get(other) == left[name] for other in called(part, within=False))
    ]
    while places:
        before = [word for part in parts[: places[0]] if (word := _word(part, rules, words)[0])]
        after = [word for part in parts[places[-1] + 1 :] if (word := _word(part, rules, words)[0])]
        if before and after:
            return before[-1], after[0]
        places.pop(0 if after else -1)  # one that stands at an end of its rule
    return None


def _word(node: Node, rules: Mapping[str, Node], words: dict[int, bytes]) -> tuple[bytes, Text | Terminal | None]:
    """Return the one word that a node derives, in small letters where case is no matter, and the terminal that has it.

    Empty and None if it derives none or several.
    """
    seen: set[str] = set()
    while isinstance(node, Rule) and node.name not in seen:
        seen.add(node.name)
        node = rules[node.name]
        if isinstance(node, (Sequence, Choice)) and len(node.items) == 1:
            node = node.items[0]
    word = b""
    if isinstance(node, Text):
        word = node.data
    elif isinstance(node, Terminal):
        if id(node.dfa) not in words:
            words[id(node.dfa)] = _only_word(node.dfa)
        word = words[id(node.dfa)]
    return (word, node) if word and isinstance(node, (Text, Terminal)) else (b"", None)


def _only_word(dfa: Dfa) -> bytes:
    """Return the only word of a DFA, in small letters if it has it in any case; empty if it has others."""
    rows = dfa.transition[:, dfa.class_of[:BYTES]]
    out = ""
    state = 0
    while not dfa.accepting[state]:
        ways = _characters(rows, state)
        letters = {character.casefold() for character, _ in ways}
        targets = {to for _, to in ways}
        if len(letters) != 1 or len(targets) != 1 or len(out) >= dfa.num_states:
            return b""
        out += letters.pop()
        state = targets.pop()
    return b"" if (rows[state] >= 0).any() else out.encode()


def _characters(rows: NDArray[np.int32], state: int) -> list[tuple[str, int]]:
    """Return the characters that a DFA may read in a state, with where they lead; none if they are many."""
    found: list[tuple[str, int]] = []
    todo = [(b"", state)]
    while todo:
        data, here = todo.pop()
        ways = np.flatnonzero(rows[here] >= 0).tolist()
        if len(ways) > 8 or len(data) > 3:
            return []
        for byte in ways:
            more, to = data + bytes([byte]), int(rows[here, byte])
            try:
                found.append((more.decode(), to))
            except UnicodeDecodeError:
                todo.append((more, to))
    return found
