r"""Derivatives of patterns: what is left of a pattern once a character was read, as formulas whose atoms are elements.

An *element* is a node of the pattern and what follows it, to the end (a right-linear term: Antimirov, "Partial
derivatives of regular expressions", 1996). What is left of an element after a character is a union of elements, of
which there are no more than positions in the pattern. A repeat counts down and is never unrolled, and a union joins
the counts of one repeat to an interval: x{3,5}y | x{6,9}y is x{3,9}y.

**What assertions ask.** (?=x) asks for what follows: it is the formula that the rest is in x.*, beside what else is
left of the pattern. \b, ^ and (?<=c) ask for the character before: a *question* about it, which is answered where a
text gets there. A lookbehind of any width asks whether what came before ends with x: a *tracker* reads .*x from the
start of the text on, beside the pattern, and says so. If x asks for what follows, the answer is a formula about that.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from itertools import pairwise
from typing import Any, NamedTuple

from ...automata.alphabet import Alphabet
from ...automata.deadline import look
from ...automata.formulas import Atom, Formula, Formulas, Kind, kept

READING = "reading a pattern"
NO_QUESTIONS: frozenset[int] = frozenset()
_NO_END = 1 << 62  # characters of the longest text where texts are of any length
_SHARED = 32  # characters at the end of texts, up to which equal ones are one node
_MOST_BEGINNINGS = 40  # of texts within one another that are taken out of a union


class Question(NamedTuple):
    """Asked where a character begins: whether the one before is of some classes, or what a tracker has read ends so."""

    classes: int  # as bits
    at_start: bool  # the answer where there is no character before; of a tracker, the answer if it does not end so
    tracker: int = -1


class OpenAnswer(NamedTuple):
    """A question of a tracker that holds if a formula about what follows does."""

    question: int
    answer: Formula


Held = frozenset[int]
"""The questions that hold at a place, and -1 - k for number k of `Elements.open_answers`."""


class Node:
    """A part of a pattern. Nodes of one `Pattern` are equal only to themselves.

    kind: one of the names below. empty: the formula, of elements and numbers of questions, under which it matches
    nothing. is_plain: whether it has no assertions and matches something. least, most: characters of its shortest and
    longest text, `_NO_END` where there is none. behind: characters that must follow it, as lookahead at its end asks.
    front: questions that are asked where it begins. trackers: all that it may ask.
    """

    __slots__ = ("behind", "count", "empty", "front", "is_plain", "kind", "least", "most", "parts", "trackers", "value")

    def __init__(self, kind: str, parts: tuple[Node, ...], value: Any) -> None:
        self.kind, self.parts, self.value = kind, parts, value
        self.is_plain: bool = all(part.is_plain for part in parts)
        self.front: frozenset[int] = NO_QUESTIONS
        self.trackers: frozenset[int] = NO_QUESTIONS.union(*[part.trackers for part in parts])
        self.least, self.most, self.behind = 0, 0, 0
        self.count: tuple[int, int | None] = (0, None)
        self.empty: Formula


class Element:
    """A node and the element that follows it; the last one has neither. One object for equal ones.

    is_empty: whether lookahead in it plainly asks for more characters than may follow there.

    That is `Elements.end`, where the text ends, or `Elements.here`, where what a tracker looks for may have ended.
    """

    __slots__ = (
        "asked", "counted", "derived", "ends_here", "forms", "front", "is_empty", "is_plain", "least", "most", "node",
        "number", "rest", "trackers",
    )  # fmt: skip

    def __init__(self, node: Node | None, rest: Element | None, number: int, may_be_empty: bool) -> None:
        self.node, self.rest, self.number = node, rest, number
        self.forms: dict[Held, list[Form]] = {}
        self.derived: dict[tuple[int, Held], Formula] = {}
        self.counted: list[Counted] | None = None
        self.asked: dict[Held, tuple[frozenset[int], list[Formula]]] = {}
        self.ends_here: bool = number < 0 if rest is None else rest.ends_here
        if node is None or rest is None:
            self.is_plain, self.least, self.front, self.trackers = True, 0, NO_QUESTIONS, NO_QUESTIONS
            self.most, self.is_empty = 0 if number == 0 else _NO_END, False
            return
        self.most = min(node.most + rest.most, _NO_END)
        self.is_empty = rest.is_empty or node.behind > rest.most
        self.is_plain = node.is_plain and rest.is_plain
        self.least = node.least + rest.least
        self.front = node.front | rest.front if may_be_empty else node.front
        self.trackers = node.trackers | rest.trackers

    def __repr__(self) -> str:
        return f"Element({self.number})"


Apart = tuple[tuple[Node, ...], Node, Element]
"""Of an element with a repeat: the nodes before it, what it repeats, and the element behind it."""


class Counted(NamedTuple):
    """A repeat in an element: what else the element is, and the count."""

    apart: Apart
    low: int
    high: int | None


class Form(NamedTuple):
    """A way to read an element: a character of some classes, then the rest, if a condition holds before it."""

    classes: int
    rest: Element
    condition: Formula


class Elements:
    """The nodes and elements of one pattern, and the formulas over them."""

    def __init__(self, alphabet: Alphabet) -> None:
        self.alphabet = alphabet
        self.formulas = Formulas(self._join)
        self.everything, self.nothing = self.formulas.everything, self.formulas.nothing
        self.questions: list[Question] = []
        self.trackers: list[Formula] = []  # what each reads from the start on
        self.open_answers: list[OpenAnswer] = []
        self._open_number: dict[OpenAnswer, int] = {}
        self._tracker_of: dict[Node, int] = {}
        self._restricted: dict[tuple[Held, frozenset[int]], Held] = {}
        self._number_of: dict[Question, int] = {}
        self._texts: list[tuple[int, ...]] = []
        self._number_of_text: dict[tuple[int, ...], int] = {}
        self._nodes: dict[Hashable, Node] = {}
        self._elements: dict[tuple[int, int], Element] = {}
        self._ids: dict[Node, int] = {}
        self.end = Element(None, None, 0, True)
        self.here = Element(None, None, -1, True)
        self._all_classes = (1 << alphabet.classes) - 1
        self.nothing_read = self._node("empty", (), None)
        self.any_text = self.repeat(self.characters(self._all_classes), 0, None)
        self.anything = self.element(self.any_text, self.end)

    @property
    def count(self) -> int:
        """How many elements there are."""
        return len(self._elements)

    # ------------------------------------------------------------------------------------------------------- nodes

    def _node(self, kind: str, parts: tuple[Node, ...], value: Hashable) -> Node:
        key = kind, tuple([self._ids[part] for part in parts]), value
        found = self._nodes.get(key)
        if found is None:
            found = self._nodes[key] = Node(kind, parts, value)
            self._ids[found] = len(self._ids)
            self._complete(found)
        return found

    def _complete(self, node: Node) -> None:
        """Work out what is known of a new node from its parts."""
        kind, parts, f = node.kind, node.parts, self.formulas
        if kind == "characters":
            node.empty, node.least, node.most, node.is_plain = self.nothing, 1, 1, node.value != 0
        elif kind == "text":
            text, at = self._texts[node.value[0]], node.value[1]
            node.empty, node.is_plain = self.nothing, all(text)
            node.least = node.most = len(text) - at
        elif kind == "empty":
            node.empty = self.everything
        elif kind == "concat":
            node.empty = f.all_of(*[part.empty for part in parts])
            node.least = sum([part.least for part in parts])
            for part in reversed(parts):
                node.behind = max(node.behind, part.behind - node.most)
                node.most = min(node.most + part.most, _NO_END)
            front = set(parts[0].front)
            for before, part in pairwise(parts):
                if before.empty is self.nothing:
                    break
                front |= part.front
            node.front = frozenset(front)
        elif kind == "union":
            node.empty = f.any_of(*[part.empty for part in parts])
            node.least, node.most = min([part.least for part in parts]), max([part.most for part in parts])
            node.behind = min([part.behind for part in parts])
            node.front = NO_QUESTIONS.union(*[part.front for part in parts])
        elif kind == "repeat":
            node.count = node.value
            low, high = node.count
            node.most = min((_NO_END if high is None else high) * parts[0].most, _NO_END)
            node.behind = parts[0].behind if low else 0
            node.empty = self.everything if not low else parts[0].empty
            node.least, node.front = low * parts[0].least, parts[0].front
        elif kind == "question":
            node.is_plain, node.front, node.empty = False, frozenset((node.value,)), f.atom(node.value)
            tracker = self.questions[node.value].tracker
            node.trackers = frozenset((tracker,)) if tracker >= 0 else NO_QUESTIONS
        else:
            element, negated = node.value
            node.is_plain, node.front, node.trackers = False, element.front, element.trackers
            node.behind = 0 if negated else element.least
            holds = self.nothing if element.is_empty else f.atom(element)
            node.empty = f.negated(holds) if negated else holds

    def characters(self, classes: int) -> Node:
        return self._node("characters", (), classes)

    def text(self, classes: tuple[int, ...]) -> Node:
        """Return the node of characters one after the other, each of some classes."""
        number = self._number_of_text.get(classes)
        if number is None:
            number = self._number_of_text[classes] = len(self._texts)
            self._texts.append(classes)
        return self._text_from(number, 0)

    def _text_from(self, which: int, at: int) -> Node:
        text = self._texts[which]
        left = len(text) - at
        if at and 1 < left <= _SHARED:  # texts that end alike have the same states there
            return self.text(text[at:])
        if left > 1:
            return self._node("text", (), (which, at))
        return self.characters(text[at]) if left else self.nothing_read

    def concat(self, parts: Iterable[Node]) -> Node:
        flat: list[Node] = []
        for whole in parts:
            for part in whole.parts if whole.kind == "concat" else () if whole.kind == "empty" else (whole,):
                if flat and flat[-1].kind == part.kind == "repeat" and flat[-1].parts == part.parts:
                    (low, high), (more, most) = flat.pop().count, part.count
                    high = None if high is None or most is None else high + most
                    part = self.repeat(part.parts[0], low + more, high)  # x{a,b}x{c,d} is x{a+c,b+d}
                flat.append(part)
        return self.nothing_read if not flat else flat[0] if len(flat) == 1 else self._node("concat", tuple(flat), None)

    def union(self, parts: Iterable[Node], depth: int = 0) -> Node:
        """Return the node of any of some parts. Texts that begin alike become one part: there may be thousands.

        depth: of a union within texts that begin alike.
        """
        texts: list[tuple[int, ...]] = []
        others: dict[Node, None] = {}
        classes = 0
        for part in parts:
            if part.kind == "text" and depth < _MOST_BEGINNINGS:
                which, at = part.value
                texts.append(self._texts[which][at:])
            elif part.kind == "characters":
                classes |= part.value
            else:
                others[part] = None
        distinct = [*self._joined_texts(texts, depth), *others]
        if classes or not distinct:
            distinct.append(self.characters(classes))
        return distinct[0] if len(distinct) == 1 else self._node("union", tuple(distinct), None)

    def _joined_texts(self, texts: list[tuple[int, ...]], depth: int) -> list[Node]:
        """Return the parts of a union of texts: one for all that begin with the same characters."""
        groups: dict[int, list[tuple[int, ...]]] = {}
        for text in texts:
            groups.setdefault(text[0], []).append(text)
        made = []
        for group in groups.values():
            first, last = min(group), max(group)
            if first == last:
                made.append(self.text(first))
                continue
            same = next((k for k, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), len(first))
            rests = [self.text(text[same:]) for text in dict.fromkeys(group)]
            made.append(self.concat((self.text(first[:same]), self.union(rests, depth + 1))))
        return made

    def repeat(self, part: Node, low: int, high: int | None) -> Node:
        if high == 0 or part.kind == "empty":
            return self.nothing_read
        if part.empty is self.everything:
            low = 0
        if (low, high) == (1, 1):
            return part
        if part.kind == "repeat" and (low, high) == (0, None) and part.count[0] <= 1 and part.count[1] is None:
            part = part.parts[0]  # (x*)* and (x+)*
        return self._node("repeat", (part,), (low, high))

    def question(self, classes: int, at_start: bool, tracker: int = -1) -> Node:
        asked = Question(classes, at_start, tracker)
        number = self._number_of.get(asked)
        if number is None:
            number = self._number_of[asked] = len(self.questions)
            self.questions.append(asked)
        return self._node("question", (), number)

    def ahead(self, element: Element, negated: bool) -> Node:
        return self._node("ahead", (), (element, negated))

    def tracker(self, node: Node) -> int:
        """Return the number of the tracker of texts that end with a node."""
        found = self._tracker_of.get(node)
        if found is None:
            found = self._tracker_of[node] = len(self.trackers)
            self.trackers.append(self.atom(self.element(self.concat((self.any_text, node)), self.here)))
        return found

    # ---------------------------------------------------------------------------------------------------- elements

    def element(self, node: Node, rest: Element) -> Element:
        """Return a node and what follows it."""
        if node.kind == "empty":
            return rest
        for part in reversed(node.parts if node.kind == "concat" else (node,)):
            key = self._ids[part], rest.number
            found = self._elements.get(key)
            if found is None:
                found = self._elements[key] = Element(
                    part, rest, len(self._elements) + 1, part.empty is not self.nothing
                )
            rest = found
        return rest

    def atom(self, element: Element) -> Formula:
        """Return the formula that the rest of the text is in an element."""
        if element.is_empty:
            return self.nothing
        return self.everything if element is self.anything else self.formulas.atom(element)

    def _counted(self, element: Element) -> list[Counted]:
        """Return the first repeats of an element."""
        if element.counted is None:
            element.counted = []
            before: tuple[Node, ...] = ()
            at = element
            for _ in range(3):
                node, rest = at.node, at.rest
                if node is None or rest is None:
                    break
                if node.kind == "repeat":
                    element.counted.append(Counted((before, node.parts[0], rest), *node.count))
                before = (*before, node)
                at = rest
        return element.counted

    def _join(self, parts: set[Formula]) -> None:
        """Join elements that differ in the count of one repeat, where the counts touch."""
        while True:
            look(READING)
            groups: dict[Apart, list[tuple[int, int | None, Formula]]] = {}
            for part in parts:
                if part.kind is Kind.ATOM and isinstance(part.atom, Element):
                    for apart, low, high in self._counted(part.atom):
                        groups.setdefault(apart, []).append((low, high, part))
            for apart, found in groups.items():
                if len(found) > 1 and self._joined(apart, found, parts):
                    break
            else:
                return

    def _joined(self, apart: Apart, found: list[tuple[int, int | None, Formula]], parts: set[Formula]) -> bool:
        """Join the elements that differ in a count; return whether there were any."""
        found.sort(key=lambda each: (each[0], -1 if each[1] is None else each[1], each[2].number))
        low, high, formula = found[0]
        intervals: list[tuple[int, int | None, list[Formula]]] = []
        together = [formula]
        for next_low, next_high, formula in found[1:]:
            if high is None or next_low <= high + 1:
                high = None if high is None or next_high is None else max(high, next_high)
                together.append(formula)
            else:
                intervals.append((low, high, together))
                low, high, together = next_low, next_high, [formula]
        intervals.append((low, high, together))
        before, part, rest = apart
        for low, high, together in intervals:
            if len(together) > 1:
                joined = self.element(self.repeat(part, low, high), rest)
                for node in reversed(before):
                    joined = self.element(node, joined)
                parts.difference_update(together)
                parts.add(self.atom(joined))
        return len(intervals) < len(found)

    # ------------------------------------------------------------------------------------------------- derivatives

    def forms(self, element: Element, held: Held) -> list[Form]:
        """Return all ways to read an element where some of the questions at its front hold."""
        found = element.forms.get(held)
        if found is None:
            look(READING)
            found = element.forms[held] = list(self._forms(element, held))
        return found

    def _forms(self, element: Element, held: Held) -> Iterator[Form]:
        f, everything, nothing = self.formulas, self.everything, self.nothing
        todo: list[tuple[Node, Element, Formula]] = []
        at, condition = element, everything
        while at.node is not None and at.rest is not None and condition is not nothing:
            todo.append((at.node, at.rest, condition))
            condition = f.all_of(condition, self._answered(at.node.empty, held))
            at = at.rest
        todo.reverse()
        while todo:  # ways that read their first character within a node
            node, rest, condition = todo.pop()
            kind, parts = node.kind, node.parts
            if condition is nothing:
                continue
            if kind == "characters":
                yield Form(node.value, rest, condition)
            elif kind == "text":
                which, at_character = node.value
                classes = self._texts[which][at_character]
                yield Form(classes, self.element(self._text_from(which, at_character + 1), rest), condition)
            elif kind == "union":
                todo.extend([(part, rest, condition) for part in reversed(parts)])
            elif kind == "concat":
                behind = [rest]
                for part in reversed(parts[1:]):
                    behind.append(self.element(part, behind[-1]))
                for part in parts:
                    todo.append((part, behind.pop(), condition))
                    condition = f.all_of(condition, self._answered(part.empty, held))
                    if condition is nothing:
                        break
            elif kind == "repeat":
                low, high = node.count
                part, fewer = parts[0], None if high is None else high - 1
                todo.append((part, self.element(self.repeat(part, max(low - 1, 0), fewer), rest), condition))
                if low > 1 and part.empty is not nothing:  # those that must come may read nothing here
                    none = f.all_of(condition, self._answered(part.empty, held))
                    todo.append((part, self.element(self.repeat(part, 0, fewer), rest), none))

    def _answered(self, formula: Formula, held: Held) -> Formula:
        """Return a condition in which the questions are answered."""
        if formula is self.everything or formula is self.nothing:
            return formula
        return self._with_answers(held, formula)

    @kept
    def _with_answers(self, held: Held, formula: Formula) -> Formula:
        open_answers = dict([self.open_answers[-1 - number] for number in held if number < 0])

        def answer(atom: Atom) -> Formula:
            if isinstance(atom, Element):
                return self.atom(atom)
            return self.everything if atom in held else open_answers.get(atom, self.nothing)

        return self.formulas.mapped(formula, self.formulas.exactly(answer), {})

    def derived(self, formula: Formula, c: int, held: Held) -> Formula:
        """Return what is left of a formula after a character of class c, where some questions hold before it."""
        f = self.formulas
        return f.mapped(formula, f.exactly(lambda element: self._derived(element, c, held)), {})

    def _derived(self, element: Element, c: int, held: Held) -> Formula:
        held = self._of_front(held, element)
        found = element.derived.get((c, held))
        if found is None:
            look(READING)
            left = []
            for classes, rest, condition in self.forms(element, held):
                if classes >> c & 1:
                    if condition is self.everything:
                        left.append(self.atom(rest))
                    else:
                        left.append(self.formulas.all_of(self.atom(rest), self.derived(condition, c, held)))
            found = element.derived[c, held] = self.formulas.any_of(*left) if left else self.nothing
        return found

    def ended(self, formula: Formula, held: Held) -> Formula:
        """Return the formula about what follows under which what a tracker looks for has ended here."""

        def answer(element: Element) -> Formula:
            if not element.ends_here:
                return self.atom(element)
            conditions = []
            at = element
            while at.node is not None and at.rest is not None:
                conditions.append(self._answered(at.node.empty, held))
                at = at.rest
            return self.formulas.all_of(*conditions)

        return self.formulas.mapped(formula, self.formulas.exactly(answer), {})

    def accepts(self, formula: Formula, held: Held) -> bool:
        """Return whether a text may end where this is left of it and some questions hold."""
        kind = formula.kind
        if kind is Kind.ATOM or kind is Kind.NOT:
            return self._may_end(formula.atom, held) == (kind is Kind.ATOM)
        found = (self.accepts(part, held) for part in formula.parts)
        return all(found) if kind is Kind.ALL_OF else any(found) if kind is Kind.ANY_OF else kind is Kind.EVERYTHING

    def _may_end(self, element: Element, held: Held) -> bool:
        look(READING)
        at = element
        while at.node is not None and at.rest is not None:
            empty = self._answered(at.node.empty, held)
            if empty is not self.everything and not self.accepts(empty, held):
                return False
            at = at.rest
        return True

    # ---------------------------------------------------------------------------------------------------- questions

    def held(self, formula: Formula, answer: Callable[[Question], Formula]) -> Held:
        """Return which questions hold of those that a formula asks where it stands."""
        found: list[int] = []
        todo = list(self.front(formula))
        seen = set(todo)
        while todo:
            number = todo.pop()
            holds = answer(self.questions[number])
            if holds is self.everything:
                found.append(number)
            elif holds is not self.nothing:
                found.append(self._opened(OpenAnswer(number, holds)))
                asked = self.front(holds) - seen
                seen |= asked
                todo += asked
        return frozenset(found)

    def _opened(self, answer: OpenAnswer) -> int:
        """Return the number that stands for an open answer in `Held`."""
        found = self._open_number.get(answer)
        if found is None:
            found = self._open_number[answer] = -1 - len(self.open_answers)
            self.open_answers.append(answer)
        return found

    def _of_front(self, held: Held, element: Element) -> Held:
        """Return what holds of the questions that an element asks where it stands, and that the answers ask."""
        if not self.open_answers or not held:
            return held & element.front
        key = held, element.front
        found = self._restricted.get(key)
        if found is None:
            asked = set(element.front)
            kept: set[int] = set()
            while True:
                more = {n for n in held - kept if (n if n >= 0 else self.open_answers[-1 - n].question) in asked}
                if not more:
                    break
                kept |= more
                asked.update(*[self.front(self.open_answers[-1 - n].answer) for n in more if n < 0])
            found = self._restricted[key] = frozenset(kept)
        return found

    @kept
    def front(self, formula: Formula) -> frozenset[int]:
        """Return the questions that a formula asks where it stands."""
        own: frozenset[int] = formula.atom.front if isinstance(formula.atom, Element) else NO_QUESTIONS
        return own.union(*map(self.front, formula.parts))

    @kept
    def trackers_of(self, formula: Formula) -> frozenset[int]:
        """Return the trackers that a formula may ask, sooner or later."""
        own = formula.atom.trackers if isinstance(formula.atom, Element) else NO_QUESTIONS
        found = own.union(*map(self.trackers_of, formula.parts))
        return found.union(*[self.trackers_of(self.trackers[each]) for each in found])

    def _asked(self, element: Element, held: Held) -> tuple[frozenset[int], list[Formula]]:
        """Return the sets of classes that an element asks its first character to be of, and under what conditions."""
        found = element.asked.get(held)
        if found is None:
            forms = self.forms(element, held)
            conditions = dict.fromkeys([form.condition for form in forms])
            conditions.pop(self.everything, None)
            found = element.asked[held] = frozenset([form.classes for form in forms]), list(conditions)
        return found

    def first_classes(self, formula: Formula, held: Held) -> set[int]:
        """Return the sets of classes that the next character is asked to be of, as bits."""
        out: set[int] = set()
        todo, seen = [formula], set()
        while todo:
            each = todo.pop()
            if isinstance(each.atom, Element):
                classes, conditions = self._asked(each.atom, self._of_front(held, each.atom))
                out |= classes
                for condition in conditions:
                    if condition not in seen:
                        seen.add(condition)
                        todo.append(condition)
            todo.extend(each.parts)
        return out
