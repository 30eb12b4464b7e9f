"""Atoms of formulas about values that are being written: what is left of a keyword after what has been read.

An atom about a whole value is one of `algebra`. Once the value is begun, these take the place of some of them. Like
nodes of the algebra they are known by their content, and equal ones are one object.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...automata.dfa import Dfa
from ...automata.formulas import Formula, Formulas, Inside, kept
from ...automata.utf8 import text
from ...lazy.machine.rules import NO_LIMIT
from ..json_schema.algebra import ARRAY, OBJECT, Members, Node
from ..regex.pattern_rules import PatternRules

# -------------------------------------------------------------------------------------------------------- contents


class DfaState:
    """A state of a DFA: made by `DfaStates`."""

    __slots__ = ("_estimate", "_states", "accepts", "state")
    is_live = True  # a canonical DFA has no other states

    def __init__(self, states: DfaStates, state: int) -> None:
        self._states, self.state = states, state
        self.accepts = bool(states.dfa.accepting[state])
        self._estimate = -1

    def after(self, formulas: Formulas, character: str) -> Formula:
        """Return what is left after a character, written in UTF-8."""
        dfa, state = self._states.dfa, self.state
        for byte in character.encode():
            state = int(dfa.transition[state, dfa.class_of[byte]])
            if state < 0:
                return formulas.nothing
        return self._states.formula(formulas, state)

    @property
    def estimate(self) -> int:
        """About how many bytes lead to an end."""
        if self._estimate < 0:
            self._estimate = self._states.distance(self.state)
        return self._estimate

    def __repr__(self) -> str:
        return f"DfaState({self.state})"


class DfaStates:
    """The states of one DFA as formulas. DFAs are known by their identity."""

    def __init__(self, dfa: Dfa) -> None:
        self.dfa = dfa
        self._known: dict[int, Formula] = {}
        self._distance: list[int] | None = None

    def formula(self, formulas: Formulas, state: int) -> Formula:
        """Return the formula of a state, everything where it reads any text."""
        found = self._known.get(state)
        if found is None:
            if self.dfa.is_empty:
                found = formulas.nothing
            elif self._reads_any_text(state):
                found = formulas.everything
            else:
                found = formulas.atom(DfaState(self, state))
            self._known[state] = found
        return found

    def _reads_any_text(self, state: int) -> bool:
        """Whether all UTF-8 can be read from a state."""
        any_text, dfa = text(), self.dfa
        pairs = {(state, 0)}
        todo = [(state, 0)]
        while todo:
            here, beside = todo.pop()
            if any_text.accepting[beside] and not dfa.accepting[here]:
                return False
            for byte in _BYTES_OF_UTF8:
                to = int(any_text.transition[beside, any_text.class_of[byte]])
                if to < 0:
                    continue
                mine = int(dfa.transition[here, dfa.class_of[byte]])
                if mine < 0:
                    return False
                if (mine, to) not in pairs:
                    pairs.add((mine, to))
                    todo.append((mine, to))
        return True

    def distance(self, state: int) -> int:
        """Return the least number of bytes to an end."""
        if self._distance is None:
            dfa = self.dfa
            found = [0 if accepts else -1 for accepts in dfa.accepting.tolist()]
            before: list[set[int]] = [set() for _ in found]
            for here, row in enumerate(dfa.transition.tolist()):
                for to in row:
                    if to >= 0:
                        before[to].add(here)
            level = [state for state, far in enumerate(found) if not far]
            while level:
                level = [here for to in level for here in before[to] if _closer(found, here, found[to] + 1)]
            self._distance = found
        return max(self._distance[state], 0)


def _closer(found: list[int], state: int, distance: int) -> bool:
    if found[state] >= 0:
        return False
    found[state] = distance
    return True


_BYTES_OF_UTF8 = sorted({*range(0x80), 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, *range(0xC2, 0xF5)} | set(range(0x80, 0xC0)))


class PatternState:
    """What is left of a pattern after what has been read: a state of its own rules, which are read lazily."""

    __slots__ = ("_states", "accepts", "state")
    is_live = True  # rows lead to no other states
    estimate = 1

    def __init__(self, states: PatternStates, state: int) -> None:
        self._states, self.state = states, state
        self.accepts = states.rules.accepts(state)

    def after(self, formulas: Formulas, character: str) -> Formula:
        """Return what is left after a character."""
        return self._states.after(formulas, self.state, character)

    def counts(self, formulas: Formulas) -> tuple[Formula, int] | None:
        """Return what is left after characters that are counted, and how many may follow, else None."""
        found = self._states.rules.counts(self.state)
        return None if found is None else (self._states.formula(formulas, found[0]), found[1])

    def alike(self, formulas: Formulas) -> Formula:
        """Return the formula of a state that reads the same tokens."""
        return self._states.formula(formulas, self._states.rules.alike(self.state))

    def __repr__(self) -> str:
        return f"PatternState({self.state})"


class PatternStates:
    """The states of one pattern as formulas."""

    def __init__(self, rules: PatternRules) -> None:
        self.rules = rules
        self._alphabet = rules.alphabets[0]
        self._known: dict[int, Formula] = {}
        self._rows: dict[int, Sequence[int]] = {}

    def _row(self, state: int) -> Sequence[int]:
        row = self._rows.get(state)
        if row is None:
            row = self._rows[state] = self.rules.row(state)
        return row

    def start(self, formulas: Formulas) -> Formula:
        """Return the formula of the texts in which the pattern matches."""
        return formulas.nothing if self.rules.is_empty else self.formula(formulas, 0)

    def after(self, formulas: Formulas, state: int, character: str) -> Formula:
        """Return the formula of the state behind a character."""
        to = self._row(state)[self._alphabet.class_of(character)]
        return formulas.nothing if to < 0 else self.formula(formulas, to)

    def formula(self, formulas: Formulas, state: int) -> Formula:
        """Return the formula of a state, everything where it reads any text."""
        found = self._known.get(state)
        if found is None:
            atom = PatternState(self, state)
            if atom.accepts and all(map(state.__eq__, self._row(state))):
                found = formulas.everything
            else:
                found = formulas.atom(atom)
            self._known[state] = found
        return found


class Count(Node):
    """Contents of low .. high characters, high None for no bound: Count(low, high)."""

    __slots__ = ()

    def after(self, formulas: Formulas, character: str) -> Formula:
        """Return what is left after a character."""
        low, high = self.args
        return counted(formulas, max(low - 1, 0), None if high is None else high - 1)

    def counts(self, formulas: Formulas) -> tuple[Formula, int] | None:
        """Return what is left after any character, and how many may follow; None where none may."""
        high = self.args[1]
        return None if high == 0 else (self.after(formulas, ""), NO_LIMIT if high is None else int(high))

    @property
    def accepts(self) -> bool:
        """Whether the content may end here."""
        return bool(self.args[0] == 0)

    @property
    def is_live(self) -> bool:
        """Whether some content has so many characters."""
        return True

    @property
    def estimate(self) -> int:
        """How many characters lead to an end."""
        return int(self.args[0])


def counted(formulas: Formulas, low: int, high: int | None) -> Formula:
    """Return the formula of contents of low .. high characters."""
    if high is not None and high < low:
        return formulas.nothing
    return formulas.everything if not low and high is None else formulas.atom(Count(low, high))


class WordsLeft:
    """A place in the trie of some words."""

    __slots__ = ("accepts", "branches", "estimate")
    is_live = True

    def __init__(self) -> None:
        self.accepts = False
        self.branches: dict[str, WordsLeft] = {}
        self.estimate = 0

    def after(self, formulas: Formulas, character: str) -> Formula:
        """Return what is left after a character."""
        found = self.branches.get(character)
        return formulas.nothing if found is None else formulas.atom(found)

    def __repr__(self) -> str:
        return f"WordsLeft({''.join(self.branches)!r})"


def trie_of_words(words: tuple[str, ...]) -> WordsLeft:
    """Return the root of the trie of some words."""
    root = WordsLeft()
    for word in words:
        here = root
        for character in word:
            here = here.branches.setdefault(character, WordsLeft())
        here.accepts = True
    todo = [root]
    for node in todo:
        todo.extend(node.branches.values())
    for node in reversed(todo):
        node.estimate = 0 if node.accepts else 1 + min([each.estimate for each in node.branches.values()], default=0)
    return root


# --------------------------------------------------------------------------------------------------------- objects


class Has(Node):
    """Objects of which a member of a key is still to come: Has(key)."""

    __slots__ = ()
    kind = OBJECT
    key: str = property(lambda self: self.args[0])  # type: ignore[assignment]


class MembersAtLeast(Node):
    """Objects of which so many members, or more, are still to come: MembersAtLeast(number above 0, keyword's place)."""

    __slots__ = ()
    kind = OBJECT


class Lacks(Node):
    """What is left of the negation of Members after an undeclared member that failed: Lacks(members).

    The key may come again with a value that passes, and a reader of the text keeps the last value. So any undeclared
    member that is asked something and passes leads back to the negation.
    """

    __slots__ = ()
    kind = OBJECT
    members: Members = property(lambda self: self.args[0])  # type: ignore[assignment]


# ---------------------------------------------------------------------------------------------------------- arrays


class ItemsAtLeast(Node):
    """Arrays of which so many items or more are still to come: ItemsAtLeast(number above 0)."""

    __slots__ = ()
    kind = ARRAY


class Contained(Node):
    """Arrays of which so many items in a node, or more, are still to come: Contained(node, number above 0)."""

    __slots__ = ()
    kind = ARRAY


@kept
def atoms_in(formula: Formula) -> tuple[Any, ...]:
    """Return the atoms of a formula at its own level, each once."""
    found: dict[Any, None] = {}
    if formula.atom is not None and type(formula.atom) is not Inside:
        found[formula.atom] = None
    for part in formula.parts:
        found.update(dict.fromkeys(atoms_in(part)))
    return tuple(found)
