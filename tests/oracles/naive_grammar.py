"""An obvious, slow recogniser of a grammar's form, which everything faster is compared with."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from maskwright.automata.dfa import Dfa
from maskwright.compile.grammar.form import Choice, Grammar, Node, Repeat, Rule, Special, Terminal, Text
from maskwright.compile.grammar.form import Sequence as Row


def accepts(grammar: Grammar, data: bytes | Sequence[int | str]) -> bool:
    """Whether a text is in the language: bytes, or a list of bytes as integers and special tokens by their names."""
    return len(data) in Recogniser(grammar, data).ends()


def members(grammar: Grammar, alphabet: Sequence[bytes | str], longest: int) -> set[Any]:
    """Return the words of at most so many letters of an alphabet; a tuple of letters where some are special tokens."""
    found = set()
    plain = all(isinstance(letter, bytes) for letter in alphabet)
    for length in range(longest + 1):
        for word in itertools.product(alphabet, repeat=length):
            data = [b for letter in word for b in ([letter] if isinstance(letter, str) else letter)]
            if accepts(grammar, data):
                found.add(b"".join(word) if plain else word)  # type: ignore[arg-type]
    return found


class Recogniser:
    """Where each rule may end that begins at a place, by going over all of them until nothing is new."""

    def __init__(self, grammar: Grammar, data: bytes | Sequence[int | str]) -> None:
        self.grammar, self.data = grammar, data
        self.rule_ends: dict[tuple[str, int], set[int]] = {}

    def ends(self) -> set[int]:
        """Return where the start rule may end that begins with the text, what is ignored after it included."""
        self.rule_ends[self.grammar.start, 0] = set()
        while True:
            before = {key: set(ends) for key, ends in self.rule_ends.items()}
            for name, place in list(self.rule_ends):
                self.rule_ends[name, place] |= self.of(self.grammar.rules[name], place)
            if self.rule_ends == before:
                break
        return {e for end in self.rule_ends[self.grammar.start, 0] for e in self.ignored(end)}

    def of(self, node: Node, place: int) -> set[int]:
        """Return where a node may end that begins at a place, as far as is known."""
        if isinstance(node, Rule):
            return set(self.rule_ends.setdefault((node.name, place), set()))
        if isinstance(node, Choice):
            return {end for item in node.items for end in self.of(item, place)}
        if isinstance(node, Row):
            ends = {place}
            for item in node.items:
                ends = {after for end in ends for after in self.of(item, end)}
            return ends
        if isinstance(node, Repeat):
            ends = {place}
            for _ in range(node.low):
                ends = {after for end in ends for after in self.of(node.item, end)}
            rounds = 0
            while node.high is None or rounds < node.high - node.low:
                more = ends | {after for end in ends for after in self.of(node.item, end)}
                if more == ends:
                    break
                ends, rounds = more, rounds + 1
            return ends
        return {end for begin in self.ignored(place) for end in self.terminal(node, begin)}

    def terminal(self, node: Text | Terminal | Special, place: int) -> set[int]:
        """Return where a terminal may end that begins right at a place."""
        if isinstance(node, Text):
            end = place + len(node.data)
            return {end} if list(self.data[place:end]) == list(node.data) else set()
        if isinstance(node, Special):
            return {place + 1} if self.data[place : place + 1] == [node.name] else set()
        found = set(words_at(node.dfa, self.data, place))
        if not node.contexts:
            return found
        return {
            end for end in found
            if any(own.accepts(self.data[place:end]) and after.accepts(self.data[end:]) for own, after in node.contexts)
        }  # fmt: skip

    def ignored(self, place: int) -> set[int]:
        """Return where what is ignored may end that begins at a place."""
        ends = {place}
        if self.grammar.ignored is not None:
            while True:
                more = ends | {after for end in ends for after in words_at(self.grammar.ignored, self.data, end)}
                if more == ends:
                    break
                ends = more
        return ends


def words_at(dfa: Dfa, data: bytes | Sequence[int | str], place: int) -> Iterator[int]:
    """Yield where the words of a DFA end that begin at a place."""
    state = 0
    if dfa.accepting[0]:
        yield place
    for i in range(place, len(data)):
        symbol = data[i]
        if isinstance(symbol, str):
            return
        state = dfa.step(state, symbol)
        if state < 0:
            return
        if dfa.accepting[state]:
            yield i + 1
