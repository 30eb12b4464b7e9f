"""The states of a pattern that texts reach: formulas over its elements, and what they must know of what came before."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...automata.alphabet import Alphabet, shortest_spellings, utf8_alphabet
from ...automata.deadline import look
from ...automata.formulas import Formula, Kind, kept
from ...lazy.machine.memory import groups_of
from ...lazy.machine.rules import DEAD, NO_LIMIT
from ...vocabulary.vocabulary import Vocabulary
from .characters import Dialect
from .derivatives import NO_QUESTIONS, READING, Element, Elements, Held, Node, Question
from .lower import settled
from .parse import parse
from .tree_reader import TreeReader, sets_of

_OF_STATE, _OF_FORMULA, _OF_ELEMENT = 400, 600, 700  # bytes that each was seen to take
_FAR = 1 << 20  # the estimate of what is empty
_MOST_ENDING = 3000  # states that the search for a short text looks at
MOST_READING = 3000  # states that the searches for a row look at, while a text waits for it


class State(NamedTuple):
    """What is left of a pattern, which questions at its front hold, and the trackers that it may still ask."""

    left: Formula
    held: Held
    trackers: tuple[tuple[int, Formula, Held], ...]  # a number, what it has left, what holds at its front


class PatternRules:
    """The `Rules` of a pattern. Raises RegexError.

    search: whether a match may stand anywhere in the text.
    """

    alphabets: Sequence[Alphabet]
    calls: list[tuple[int, tuple[int, ...]]]
    end = 0

    def __init__(
        self,
        pattern: str,
        vocabulary: Vocabulary,
        *,
        flags: str = "",
        dialect: Dialect = "python",
        search: bool = False,
    ) -> None:
        tree = settled(parse(pattern, flags, dialect))
        self._vocabulary = vocabulary
        self._most: dict[Node, int] = {}
        alphabet = utf8_alphabet(sets_of(tree))
        self.alphabets, self.calls = [alphabet], []
        self._elements = e = Elements(alphabet)
        around = e.any_text if search else e.nothing_read
        node = TreeReader(e).in_text(tree, around)
        self._all = (1 << alphabet.classes) - 1
        self._states: list[State] = []
        self._number_of: dict[State, int] = {}
        self._spelt = shortest_spellings(alphabet)
        self._ways: dict[State, tuple[bytes, State]] = {}  # what a text to an end goes on with, where that leads
        self._lengths: dict[State, int | None] = {}  # the bytes of that text, None where none was found soon
        self._live: dict[State, bool] = {}
        self._witness: dict[State, tuple[int, State]] = {}  # a character on the way to an end, and the state behind it
        self._stepped: dict[State, list[tuple[int, State]]] = {}
        self._alike: dict[int, int] = {}
        self._clamped: dict[Element, Element] = {}
        self.left_out = 0  # ways on that were left out of rows, as a search took long
        self._is_reading = False
        self._left_to_search: float = math.inf
        self._start = self._placed(e.atom(e.element(node, e.end)), None, ())
        self._number(self._start)

    def begin_reading(self) -> None:
        """Leave a way on out of rows from now on if the search for its end takes long: a text waits for the row."""
        self._is_reading = True

    @property
    def is_empty(self) -> bool:
        """Whether no text matches."""
        return not self._is_live(self._start)

    @property
    def nbytes(self) -> int:
        """About how many bytes all states take."""
        e = self._elements
        return (
            _OF_STATE * (len(self._states) + 2 * len(self._stepped))
            + _OF_FORMULA * len(e.formulas)
            + _OF_ELEMENT * e.count
        )

    def alphabet_of(self, state: int) -> int:
        """Return 0: there is one alphabet."""
        return 0

    def accepts(self, state: int) -> bool:
        """Return whether a text may end in a state."""
        left, held, _ = self._states[state]
        return self._elements.accepts(left, held)

    def row(self, state: int) -> Sequence[int]:
        """Return the state that each class of characters leads to, or DEAD."""
        row = [DEAD] * self.alphabets[0].classes
        self._left_to_search = MOST_READING if self._is_reading else math.inf
        here = self._states[state]
        for classes, after in self._steps(here):
            if self._is_live(after, here):
                number = self._number(after)
                for c in _places(classes):
                    row[c] = number
        return row

    def rows(self, state: int) -> tuple[list[int], NDArray[np.int32]]:
        """Return a state and its row."""
        return [state], np.array([self.row(state)], np.int32)

    def counts(self, state: int) -> tuple[int, int] | None:
        """Return where characters lead that are counted, and how many may follow, else None; see `Rules`.

        They are those of a repeat with which nothing behind it begins.
        """
        left, _, trackers = self._states[state]
        e, element = self._elements, left.atom
        if left.kind is not Kind.ATOM or trackers or not element.is_plain or element.node is None:
            return None
        node, rest = element.node, element.rest
        if node.kind != "repeat" or node.parts[0].kind != "characters" or rest is e.anything:
            return None
        counted = node.parts[0].value
        if any(classes & counted for classes in e.first_classes(e.atom(rest), NO_QUESTIONS)):
            return None
        after = self._after(self._states[state], (counted & -counted).bit_length() - 1)
        if any(to == after and classes & ~counted for classes, to in self._steps(self._states[state])):
            return None  # behind [A-Z]?[a-z]* is [a-z]*, whatever came
        most = node.count[1]
        return self._number(after), NO_LIMIT if most is None else most

    @property
    def num_states(self) -> int:
        """How many states there are so far."""
        return len(self._states)

    def alike(self, state: int) -> int:
        """Return a state that reads the same tokens, and accepts alike.

        Each round of a repeat begins with a character of some set. A repeat that must go on for more rounds than any
        token has such characters may as well go on for one more than that, and one that may go on for more rounds may
        go on for ever. That holds of what has no assertions: there all that is left can be completed, so that only what
        a token itself can come to matters.
        """
        found = self._alike.get(state)
        if found is None:
            left, held, trackers = self._states[state]
            found = state
            if self._is_plain(left):
                parts = left.parts if left.kind is Kind.ANY_OF else (left,)
                e = self._elements
                clamped = e.formulas.any_of(*[e.atom(self._clamp(part.atom)) for part in parts if part.atom])
                if left.atom or left.parts:
                    found = self._number(State(clamped, held, trackers))
            self._alike[state] = found
        return found

    # ------------------------------------------------------------------------------------------------------ states

    def _number(self, state: State) -> int:
        found = self._number_of.get(state)
        if found is None:
            found = self._number_of[state] = len(self._states)
            self._states.append(state)
        return found

    def _placed(self, left: Formula, c: int | None, before: Sequence[tuple[int, Formula, Held]]) -> State:
        """Return the state of what is left behind a character of a class, None at the start.

        before: the trackers behind the character, without what holds at their fronts.
        """
        e = self._elements
        asked = e.trackers_of(left)
        if not asked and not e.questions:
            return State(left, NO_QUESTIONS, ())
        formulas = {number: formula for number, formula, _ in before} if c is not None else dict(enumerate(e.trackers))
        ended: dict[int, Formula] = {}  # by tracker: whether what it looks for ends here

        def answer(question: Question) -> Formula:
            classes, at_start, tracker = question
            if tracker >= 0:
                return e.formulas.negated(ended[tracker]) if at_start else ended[tracker]
            return e.everything if (at_start if c is None else classes >> c & 1) else e.nothing

        trackers = []
        for number in sorted(asked):  # a tracker asks those before it
            formula = formulas[number]
            held = e.held(formula, answer)
            ended[number] = e.ended(formula, held)
            trackers.append((number, formula, held))
        return State(left, e.held(left, answer), tuple(trackers))

    def _after(self, state: State, c: int) -> State:
        """Return the state behind a character of a class."""
        e = self._elements
        left = e.derived(state.left, c, state.held)
        trackers = [(number, e.derived(formula, c, held), held) for number, formula, held in state.trackers]
        return self._placed(left, c, trackers)

    def _steps(self, state: State) -> list[tuple[int, State]]:
        """Return the sets of classes that lead to one state each, as bits, and these states."""
        found = self._stepped.get(state)
        if found is None:
            found = self._stepped[state] = self._find_steps(state)
        return found

    def _find_steps(self, state: State) -> list[tuple[int, State]]:
        e = self._elements
        told_apart = set(e.first_classes(state.left, state.held))
        for _, formula, held in state.trackers:
            told_apart |= e.first_classes(formula, held)
        if e.questions:
            told_apart.update([question.classes for question in e.questions])
        parts = [self._all]
        for classes in told_apart:
            if classes != self._all:
                parts = [piece for part in parts for piece in (part & classes, part & ~classes) if piece]
        found: dict[State, int] = {}
        for part in parts:
            after = self._after(state, (part & -part).bit_length() - 1)
            if after.left is not e.nothing:
                found[after] = found.get(after, 0) | part
        return [(part, after) for after, part in found.items()]

    # -------------------------------------------------------------------------------------------------------- ends

    @kept
    def _is_plain(self, formula: Formula) -> bool:
        """Return whether a formula is a union of elements without assertions, each of which can be completed."""
        if formula.kind is Kind.ATOM:
            plain: bool = formula.atom.is_plain
            return plain
        if formula.kind is Kind.ANY_OF:
            return all(map(self._is_plain, formula.parts))
        return formula is self._elements.everything

    @kept
    def _is_plainly_live(self, formula: Formula) -> bool:
        """Return whether it is plain to see that a formula can be completed."""
        if formula.kind is Kind.ANY_OF:
            return any(map(self._is_plainly_live, formula.parts))
        return self._is_plain(formula)

    def _is_live(self, state: State, beside: State | None = None) -> bool:
        """Return whether some text completes a state. beside: a live state that may well end by the same text."""
        known = self._live.get(state)
        if known is not None:
            return known
        if self._is_complete(state) or self._ends_as(state, beside):
            self._live[state] = True
            return True
        return self._search(state)

    def _is_complete(self, state: State) -> bool:
        """Return whether it is plain to see that a text completes a state."""
        return self._is_plainly_live(state.left) or self._elements.accepts(state.left, state.held)

    def _ends_as(self, state: State, other: State | None) -> bool:
        """Return whether the text that completes another state completes this one, or comes to one that is live."""
        path, at = [], state
        while other in self._witness:
            c, other = self._witness[other]
            after = self._after(at, c)
            path.append((at, c, after))
            known = self._live.get(after)
            if known or (known is None and self._is_complete(after)):
                self._live[after] = True
                for before, class_, behind in path:
                    self._live[before], self._witness[before] = True, (class_, behind)
                return True
            if known is False or after.left is self._elements.nothing:
                break
            at = after
        return False

    def _search(self, state: State) -> bool:
        """Search for a text that completes a state, best first by its estimated length."""
        before: dict[State, tuple[State, int] | None] = {state: None}
        heap = [(0, 0, state, 0)]
        found: State | None = None
        while heap and found is None:
            _, _, here, depth = heapq.heappop(heap)
            known = self._live.get(here)
            if known or self._is_complete(here):
                found = here
            elif known is None:
                look(READING)
                self._left_to_search -= 1
                if self._left_to_search < 0:  # nothing is known of the states that were seen
                    self.left_out += 1
                    return False
                for classes, after in self._steps(here):
                    if after not in before:
                        before[after] = here, (classes & -classes).bit_length() - 1
                        # what a tracker has left to find is likely to be wanted: .{20,90}(?<=a.{12})(?<=bb.{9}) takes
                        # 12 ms so, and more than 9 s by what is left of the pattern alone
                        left = [after.left, *[formula for _, formula, _ in after.trackers]]
                        cost = 2 * sum(map(self._estimate, left)) + depth + 1
                        heapq.heappush(heap, (cost, -len(before), after, depth + 1))
        if found is None:
            self._live.update(dict.fromkeys(before, False))
            return False
        self._live[found] = True
        at, way = found, before[found]
        while way is not None:
            here, c = way
            self._live[here], self._witness[here] = True, (c, at)
            at, way = here, before[here]
        return True

    def bytes_to_end(self, state: int) -> int | None:
        """Return the bytes of `text_to_end`; None where there is none."""
        here = self._states[state]
        if here not in self._lengths:
            self._lengths[here] = None  # so that the next one who asks does not wait as long again for what takes long
            self._find_end(here)
        return self._lengths[here]

    def text_to_end(self, state: int) -> bytes | None:
        """Return a short text that ends a state; None where a search found none soon."""
        if self.bytes_to_end(state) is None:
            return None
        text, here = bytearray(), self._states[state]
        while here in self._ways:
            own, here = self._ways[here]
            text += own
        return bytes(text)

    def _find_end(self, start: State) -> None:
        """Note a text that ends a state, if one is found soon, best first by estimated lengths."""
        before: dict[State, tuple[State, bytes] | None] = {start: None}
        heap = [(0, 0, start, 0)]
        for _ in range(_MOST_ENDING):
            if not heap:
                return
            _, _, here, depth = heapq.heappop(heap)
            known = self._lengths.get(here)
            if known is None and self._elements.accepts(here.left, here.held):
                known = self._lengths[here] = 0
            if known is not None:
                way = before[here]
                while way is not None:
                    after, (here, text) = here, way
                    self._ways[here], known = (text, after), known + len(text)
                    self._lengths[here], self._live[here], way = known, True, before[here]
                return
            look(READING)
            for classes, after in self._steps(here):
                if after not in before and self._lengths.get(after, 0) is not None:
                    text = min([self._spelt[c] for c in _places(classes)], key=len)
                    before[after] = here, text
                    cost = 2 * self._estimate(after.left) + depth + len(text)
                    heapq.heappush(heap, (cost, -len(before), after, depth + len(text)))

    @kept
    def _estimate(self, formula: Formula) -> int:
        """Return about how many characters complete a formula."""
        kind = formula.kind
        if kind is Kind.ATOM:
            least: int = formula.atom.least
            return least
        if kind is Kind.ALL_OF:
            return min(sum(map(self._estimate, formula.parts)), _FAR)
        if kind is Kind.ANY_OF:
            return min(map(self._estimate, formula.parts))
        if kind is Kind.NOT:
            return int(not self._elements.accepts(formula, NO_QUESTIONS))
        return 0 if kind is Kind.EVERYTHING else _FAR

    def _clamp(self, element: Element) -> Element:
        """Return an element whose repeats count no further than a token reads; see `alike`."""
        e, known = self._elements, self._clamped
        chain, at = [], element
        while at not in known and at.node is not None and at.rest is not None:
            chain.append((at, at.node))
            at = at.rest
        found = known.get(at, at)
        for each, node in reversed(chain):  # what follows an element is the end of others
            look(READING)
            if node.kind == "repeat":
                low, high = node.count
                if high is not None or low > 1:
                    most = self._most_rounds(node.parts[0])
                    low, high = min(low, most), None if high is None or high >= most else high
                node = e.repeat(node.parts[0], low, high)
            found = known[each] = e.element(node, found)
        return found

    def _most_rounds(self, node: Node) -> int:
        """Return more rounds of a node than any token reads, one that begins within a character included."""
        found = self._most.get(node)
        if found is None:
            e, alphabet = self._elements, self.alphabets[0]
            bits = 0
            for classes in e.first_classes(e.atom(e.element(node, e.end)), NO_QUESTIONS):
                bits |= classes
            wanted = np.array([bits >> 64 * w & 0xFFFFFFFFFFFFFFFF for w in range(alphabet.reach.shape[1])], np.uint64)
            which = (groups_of(alphabet, len(wanted)) & wanted).any(axis=1)
            groups = int(np.packbits(which, bitorder="little").view(np.uint64)[0])
            found = self._most[node] = self._vocabulary.most_of(groups) + 2
        return found


def _places(bits: int) -> list[int]:
    """Return which bits are set."""
    found = []
    while bits:
        bit = bits & -bits
        found.append(bit.bit_length() - 1)
        bits ^= bit
    return found
