"""From the skeleton of a schema to a machine: bytes, punctuation, keys, calls.

An object or array that stands in one place only is written out there; one that stands in several is a fragment of its
own, which they call. Strings and numbers are always called: most of them are the library's.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...automata.budget import Meter
from ...automata.codes import DEAD, KEEP, RETURN
from ...automata.labelled import Labelled, labels_ahead, leading_to, states_before
from ...automata.pushdown import PushdownMachine
from ...automata.string_content import Content
from ...automata.utf8 import characters_left
from ...kernels.limits import MOST_DEPTH
from .formats import is_format
from .fragments import come_narrowly, ending_freely, free_state, in_text, numbered, total_states
from .layout import BACKSLASH, CLOSE_ARRAY, CLOSE_OBJECT, OPEN_ARRAY, OPEN_OBJECT, QUOTE, Writer, after_number
from .library import Library, frames
from .skeleton import (
    AnyOrder,
    ArrayAutomaton,
    ArrayState,
    Bounded,
    Finite,
    Free,
    ObjectAutomaton,
    ObjectState,
    Regular,
    Step,
    Value,
)
from .strings import cut, escaped, has_spellings, partition

_WRITING = "writing out a schema"
_AT_ONCE = 64  # states, before somebody looks at the clock
_AT_FIRST = 1200  # states of a lazy table that are written before somebody comes to them
_MOST_KEYS = 1024  # of an object: each of its sites has an entry for each
_ANY = -1  # any object or array, as something that is called
_NUMBER_BYTES = np.arange(256, dtype=np.uint16)


def emit(root: Value, library: Library, meter: Meter) -> PushdownMachine:
    """Return the machine of the texts that `root` allows."""
    emitter = Emitter((root,), library, meter)
    emitter.finish()
    return emitter.machine


class Emitter:
    """Writes the machine of a skeleton, by and by where it is `lazy`: what stands behind a key or bracket, later.

    roots: the values that stand at the top, as often as they do. Here that is one, which is the whole text. depth: the
    most frames of what is lazy; None where it is not.
    """

    def __init__(self, roots: Sequence[Value], library: Library, meter: Meter, depth: int | None = None) -> None:
        self.roots, self.library, self.meter = roots, library, meter
        self.lazy = depth is not None
        self.by_content = self.lazy and not library.layout.ascii  # whether strings are read by their content
        self.machine = PushdownMachine(library.machine)
        self.writer = Writer(self.machine, library.places, library.layout, self.lazy)
        self.uses: defaultdict[int, int] = defaultdict(int)
        self.found: list[ObjectAutomaton | ArrayAutomaton] = []  # all there are
        self.fragments: dict[int, int] = {}  # first state of each object and array that is called
        self.numbers: dict[tuple[int, tuple[int, ...] | None], tuple[int, tuple[int, int], int]] = {}
        self.texts: dict[int, tuple[int, tuple[int, ...]]] = {}
        self.tries: dict[int, tuple[int, int]] = {}  # of listed words
        self._count()
        height = self.machine.height
        # whatever the schema may open
        self.fits = depth is not None and height is not None and height <= frames(self.machine, depth)
        # so that the depth may run out, and what has several labels has to say what is needed behind it. Of texts that
        # are read by their content, `lazy_kernels.needed_behind` says so
        self.recurs = height is None
        self.in_frame = self.recurs and not self.by_content
        self.any_order = any(isinstance(each, ObjectAutomaton) and each.any_order for each in self.found)
        self._whole()

    def _whole(self) -> None:
        m, (root,) = self.machine, self.roots
        end = m.state()
        m.accepting.add(end)
        if root.number is not None:  # at the end of everything a number ends without a further byte
            rows = self._number_rows(root.number)
            rows[rows <= KEEP] = DEAD
            first = m.dfa(_NUMBER_BYTES, rows)
            m.accepting.update((np.flatnonzero(root.number.label >= 0) + first).tolist())
            for byte in np.flatnonzero(rows[0] >= 0).tolist():
                m.edge(0, byte, first + int(rows[0, byte]))
        self.value(0, root, (end,), number=False)

    def begin(self, meter: Meter) -> None:
        """Write what texts come to first, but nothing that is much work; meter: of all that is written later."""
        m = self.machine
        left = min(_AT_FIRST, (self.meter.budget.states - m.size) // 2)
        while left > 0 and (done := m.spread(_AT_ONCE, alone=False)):
            left -= done
            self.meter.check(states=m.size, doing=_WRITING)
        self.meter = meter

    def finish(self) -> None:
        """Write all that was left for later."""
        m = self.machine
        while m.spread(_AT_ONCE):
            self.meter.check(states=m.size, doing=_WRITING)

    def release(self) -> None:
        """Let go of what nobody will ask to be written any more: a skeleton that recurs holds itself."""
        self.machine.pending.clear()
        for automaton in () if self.any_order else self.found:  # in any order it may be written again
            automaton.states.clear()

    def _count(self) -> None:
        """Count in how many places each object and array stands, and how many may be open at once."""
        uses = self.uses
        todo = list({id(root): root for root in self.roots}.values())
        seen = {id(root) for root in todo}
        below: dict[int, set[int]] = {}  # objects and arrays within each, _ANY for those of the library
        top: set[int] = set()
        for root in self.roots:
            top.update(_brackets(root))
            for name in set(_brackets(root)):
                uses[name] += 1
        while todo:
            value = todo.pop()
            for automaton in (value.object, value.array):
                if automaton is None or automaton.free >= 0 or id(automaton) in below:
                    continue
                inside = below[id(automaton)] = set()
                self.found.append(automaton)
                # in any order, what a key leads to is written for each set of keys before it
                times = 2 if isinstance(automaton, ObjectAutomaton) and automaton.any_order else 1
                for step in all_steps(automaton):
                    value = step.value
                    for opened in (value.object, value.array):
                        if opened is not None:
                            name = _ANY if opened.free >= 0 else id(opened)
                            uses[name] += times
                            inside.add(name)
                    if id(value) not in seen:
                        seen.add(id(value))
                        todo.append(value)
        self.machine.anything = _ANY in top or any(_ANY in inside for inside in below.values())
        self.machine.height = self._height(top, below)

    def _height(self, top: set[int], below: Mapping[int, set[int]]) -> int | None:
        """Return how many objects and arrays may be called at once; None if some call themselves."""
        uses = self.uses
        heights = {_ANY: 0}
        open_ones: set[int] = set()
        todo = [(automaton, False) for automaton in top]
        while todo:
            automaton, done = todo.pop()
            if done:
                open_ones.discard(automaton)
                heights[automaton] = max(
                    (heights[other] + (other == _ANY or uses[other] > 1) for other in below[automaton]), default=0
                )
            elif automaton not in heights and automaton not in open_ones:
                open_ones.add(automaton)
                todo.append((automaton, True))
                for other in below[automaton]:
                    if other in open_ones:
                        return None
                    todo.append((other, False))
        return max((heights[other] + (other == _ANY or uses[other] > 1) for other in top), default=0)

    def frames_bound(self) -> int | None:
        """Return how many frames suffice to leave whatever may be open; None where the depth is never reached."""
        m = self.machine
        if self.fits:
            return 0 if m.anything else None
        left: list[tuple[Any, list[int]]] = [
            (automaton, list(range(len(automaton.states)))) for automaton in self.found
        ]
        done: dict[int, set[int]] = {id(automaton): set() for automaton in self.found}  # states that can end by now
        frames = -1
        for all_labels in (True, False):  # that lead on; else the best of them is counted on
            changed = True
            while changed and left:
                frames += 1
                before = {automaton: 0 in ended for automaton, ended in done.items()}
                changed = False
                moving = True
                while moving:
                    moving = False
                    for automaton, states in left:
                        ended = done[id(automaton)]
                        before_this = len(ended)
                        for i in reversed(states):  # most steps lead to later states
                            if self._ends(automaton, i, ended, before, done, all_labels):
                                ended.add(i)
                        if len(ended) > before_this:
                            states[:] = [i for i in states if i not in ended]
                            moving = changed = True
                left = [(automaton, states) for automaton, states in left if states]
        # and one for what comes behind a key that was chosen: it may be called, and then need as many
        return frames + 2 if not left else MOST_DEPTH

    def _ends(
        self, automaton: Any, i: int, ended: set[int], before: dict[int, bool], done: dict[int, set[int]],
        all_labels: bool,
    ) -> bool:  # fmt: skip
        """Return whether from a state of an object or array its end can be reached."""
        state = automaton.states[i]
        if state.close >= 0:
            return True
        if isinstance(state, ArrayState):
            steps: Iterable[Step | None] = (state.item,)
        else:
            # the last one declared is often required: it leads to the end, if one does
            steps = chain(reversed(state.steps[state.first : state.last]), state.others.values())
        for step in steps:
            if step is None:
                continue
            following = step.following
            if len(following) == 1:
                if following[0] not in ended:
                    continue
            elif not (all if all_labels else any)([j in ended for j in following if j >= 0]):
                continue
            value = step.value
            if value.literals or value.number is not None or value.string is not None:
                return True
            for inside in (value.object, value.array):
                if inside is None:
                    continue
                if inside.free >= 0:
                    return True  # in a frame of its own, which `frames_bound` adds
                if before[id(inside)] if self.uses[id(inside)] > 1 else 0 in done[id(inside)]:
                    return True
        return False

    # ------------------------------------------------------------------------------------------------ values

    def value(self, state: int, value: Value, follow: tuple[int, ...], number: bool = True) -> None:
        """Read a value in `state`, then on in follow[label]."""
        m, w = self.machine, self.writer
        for word, label in value.literals.items():
            w.word(state, word, follow[label])
        if number and value.number is not None:
            start, fragment, site = self._number(value.number, follow)
            m.enter(state, start, fragment, site)
            if start < self.library.machine.size:
                m.twins[state] = start, site
        text = value.string
        if text is not None:
            if type(text) is Free:
                w.string(state, follow[text.label])
            elif type(text) is Finite:
                self._words(state, text, follow)
            elif type(text) is Regular and self.in_frame and _forks(text.content):
                m.edge(state, QUOTE, self._by_place(text.content, follow))
            elif type(text) is Bounded or type(text) is Regular:
                first, order = self._text(text)
                site = m.site(tuple(follow[label] for label in order), True)
                m.edge(state, QUOTE, m.call(site, first))
                if type(text) is Bounded and self.lazy and text.low <= 1:  # no token is far from being as in any string
                    m.twins[state] = self.library.places.quote, site
        if value.array is not None:
            if value.array.free >= 0:
                w.any_array(state, follow[value.array.free])
            else:
                self._opened(state, OPEN_ARRAY, value.array, follow, self._array)
        if value.object is not None:
            if value.object.free >= 0:
                w.any_object(state, follow[value.object.free])
            else:
                self._opened(state, OPEN_OBJECT, value.object, follow, self._object)

    def _opened(
        self, state: int, opener: int, automaton: Any, follow: tuple[int, ...], write: Callable[..., None]
    ) -> None:
        """Read an opening bracket, and what it opens: here, or by a call where it stands in several places."""
        m = self.machine
        if self.uses[id(automaton)] > 1:
            first = self.fragments.get(id(automaton))
            if first is None:
                ends = tuple(RETURN - label for label in range(len(follow)))
                first = self.fragments[id(automaton)] = m.later(lambda: write(first, automaton, ends))
            m.edge(state, opener, m.call(m.site(follow, False), first))
        else:
            here = m.later(lambda: write(here, automaton, follow))
            m.edge(state, opener, here)

    def _number(self, number: Labelled, follow: tuple[int, ...]) -> tuple[int, tuple[int, int], int]:
        """Return the first state of a number's fragment, the fragment, and the site it is entered with."""
        m, placed = self.machine, False
        if len(follow) > 1:
            used = set(number.label.tolist()) - {-1}
            placed = self.recurs and len(used) > 1
            follow = tuple([to if label in used else -1 for label, to in enumerate(follow)])
        key = id(number), follow if placed else None
        found = self.numbers.get(key)
        if found is None:
            for known, start, fragment in () if placed else self.library.numbers:
                if known is number:
                    return start, fragment, m.site(follow, True)
            rows = self._number_rows(number)
            first = (m.dfa_later if self.lazy and not placed else m.dfa)(_NUMBER_BYTES, rows)
            m.accepting.update((np.flatnonzero(number.label >= 0) + first).tolist())
            site = m.place(first, len(rows), follow) if placed else -1
            found = self.numbers[key] = first, (first, len(rows)), site
        start, fragment, site = found
        return start, fragment, site if placed else m.site(follow, True)

    def _number_rows(self, number: Labelled) -> NDArray[np.int32]:
        rows = number.transition[:, number.class_of].astype(np.int32)
        ends = np.flatnonzero(number.label >= 0)
        after = np.frombuffer(after_number(self.library.layout), np.uint8)
        rows[ends[:, None], after] = KEEP - number.label[ends, None]
        return rows

    def _text(self, text: Bounded | Regular) -> tuple[int, tuple[int, ...]]:
        """Return the first state of a string's fragment, after the opening quote, and the labels of its ends."""
        m = self.machine
        found = self.texts.get(id(text))
        if found is None:
            if isinstance(text, Bounded):
                lengths = self.library.lengths
                states = lengths.count(text.low, text.high)
                self.meter.check(bytes=32 * states, doing="counting the characters of a string")
                if self.lazy:
                    first = m.string(text.low, text.high, states)
                else:
                    first = m.block(lengths.opening(text.low, text.high, m.size))
                    m.counted.append((first, m.size - first, text.low, text.high))
                found = first, (text.label,)
            else:
                found = self._content(text)
            self.texts[id(text)] = found
        return found

    def _content(self, text: Regular) -> tuple[int, tuple[int, ...]]:
        """Return the same of a string by its content."""
        if not self.lazy:
            return self._written(text)
        m, content = self.machine, text.content
        free = free_state(content) if text.most is None else -1
        needed = np.zeros(0, np.int32) if text.most is None else _needed(content)
        found = self.as_it_is(content, free, needed, text.most)
        if found is not None:
            return found
        if content.label.max() > 0:  # the order of labels is known when it is written
            return self._written(text)

        def write() -> None:
            start, _ = self._written(text)
            m.copy(later, start)
            if start == self.library.places.body:
                m.twins[later] = start, -1

        later = m.later(write, alone=True)
        return later, (0,)

    def as_it_is(
        self, content: Labelled, free: int, needed: NDArray[np.int32], most: int | None = None
    ) -> tuple[int, tuple[int, ...]] | None:
        """Return the same of a string that is read by its content, None where that cannot be; see `Content`."""
        if not self.by_content:
            return None
        label, order = ordered(content.label, free)
        if free == 0:
            return self.library.places.body, order[:1]
        class_of = np.ascontiguousarray(content.class_of, np.uint16)
        transition, label = (np.ascontiguousarray(array, np.int32) for array in (content.transition, label))
        first = self.machine.text(Content(class_of, transition, label, free, -1 if most is None else most, needed))
        return None if first is None else (first, order)

    def _by_place(self, content: Labelled, follow: tuple[int, ...]) -> int:
        """Return the code that reads a string by its content in states that lead to follow[label]; see `_InFrame`."""
        text, m = _InFrame(self, content), self.machine
        if text.free >= 0:
            return text.code(follow, text.free)
        first = m.dfa(text.class_of, text.codes) if self.lazy else self._apart(content, text.class_of, text.codes)
        return m.call(m.place(first, len(text.codes), follow), first)

    def _apart(self, content: Labelled, class_of: NDArray[Any], codes: NDArray[np.int32]) -> int:
        """Add the JSON texts of a content as a DFA whose rows are made on their own, and return its first state."""
        codes = numbered(class_of, codes, self.library.vocabulary)
        first = self.machine.dfa(class_of, codes)
        self.machine.apart.append((first, class_of, codes, is_format(content.transition)))
        return first

    def _written(self, text: Regular) -> tuple[int, tuple[int, ...]]:
        """Write a string by its content, and return the same of it."""
        m, places, ascii = self.machine, self.library.places, self.library.layout.ascii
        content = cut(text, self.meter)
        class_of, codes = escaped(content, ascii, self.meter)
        labels = int(RETURN - codes.min()) + 1
        free = None if ascii else ending_freely(content, class_of, codes)
        if free is None:
            first = m.dfa_later(class_of, codes) if self.lazy else self._apart(content, class_of, codes)
            return first, tuple(range(labels))
        # what comes before is written out, as rows that differ little from those of any string, which ends by label 0
        state, before = free
        rows = codes[:, class_of]
        label = int(RETURN - rows[state, QUOTE])
        order = (label, *(other for other in range(labels) if other != label))
        if not before[0]:
            return places.body, order
        kept = np.flatnonzero(before)
        # codes of the machine: ends by their place in `order`, states before by number, others like a string's
        place = np.empty(labels, np.int32)
        place[list(order)] = np.arange(labels)
        number = (np.cumsum(before) - 1 + m.size).astype(np.int32)
        for old, known in self.like_string(rows, state).items():
            number[old] = known
        mine = rows[kept]
        out = np.where(mine >= 0, number[np.maximum(mine, 0)], mine)
        ends = mine <= RETURN
        out[ends] = RETURN - place[RETURN - mine[ends]]
        # an escape that leads out of all that comes before could spell what leads elsewhere: only those that cannot
        leaves = mine[:, BACKSLASH] == rows[state, BACKSLASH]
        out[leaves, BACKSLASH] = places.escape
        first = m.block(out.astype(np.int32))
        like = (mine[:, 0x20:0x80] == state).mean(axis=1) > 0.5  # else the difference would be the larger row
        for new in np.flatnonzero(like).tolist():
            m.twins[first + new] = places.body, -1
        return first, order

    def like_string(self, rows: NDArray[Any], state: int) -> dict[int, int]:
        """Return the library's state for `state` and for those that are in a character on the way back to it."""
        library = self.library
        like = {state: library.places.body}
        todo = [state]
        while todo:
            here = todo.pop()
            for byte in range(0x80, 0x100):
                target = int(rows[here, byte])
                if target >= 0 and target not in like:
                    like[target] = int(library.machine.rows[like[here], byte])
                    todo.append(target)
        return like

    def _words(self, state: int, text: Finite, follow: tuple[int, ...]) -> None:
        if self.lazy:
            trie = self.tries.get(id(text))
            if trie is None:
                words = [self._quoted(word)[1:-1] for word in text.words]
                trie = self.tries[id(text)] = self.machine.trie(words, list(text.words.values()))
            first = self.machine.use(trie, follow)
            if first is not None:
                self.machine.edge(state, QUOTE, first)
                return
        spelt = sorted((self._quoted(word), label) for word, label in text.words.items() if follow[label] >= 0)
        self._spell(state, 0, [(data, follow[label]) for data, label in spelt])

    def _quoted(self, word: str) -> bytes:
        return json.dumps(word, ensure_ascii=self.library.layout.ascii).encode()

    def _spell(self, state: int, depth: int, texts: Sequence[tuple[bytes, int]]) -> None:
        """Read one of some texts, sorted, none the beginning of another, from their byte `depth` on."""
        m = self.machine
        todo = [(state, depth, 0, len(texts))]
        while todo:
            state, depth, low, high = todo.pop()
            first, last = texts[low][0], texts[high - 1][0]
            if high - low == 1:
                m.chain(state, first[depth:], texts[low][1])
                continue
            common = depth
            while first[common] == last[common]:
                common += 1
            if common > depth:
                branch = m.state()
                m.chain(state, first[depth:common], branch)
                state, depth = branch, common
            begin = low
            while begin < high:
                byte = texts[begin][0][depth]
                end = begin + 1
                while end < high and texts[end][0][depth] == byte:
                    end += 1
                if end - begin == 1:
                    m.chain(state, texts[begin][0][depth:], texts[begin][1])
                else:
                    branch = m.state()
                    m.edge(state, byte, branch)
                    todo.append((branch, depth + 1, begin, end))
                begin = end

    # ------------------------------------------------------------------------------------------------ arrays

    def _array(self, first: int, array: ArrayAutomaton, ends: tuple[int, ...]) -> None:
        """Read an array after its opening bracket; ends: codes by label."""
        m = self.machine
        here = array.states[0]
        if here.item is not None:
            start = _Array(self, array, ends).item(0, here.item)
            m.copy(first, start)
            self.writer.line(first, start)
        if here.close >= 0:
            m.late(first, CLOSE_ARRAY, ends[here.close])

    def closed(self, state: int, bracket: int, label: int, ends: tuple[int, ...], known: dict[int, int]) -> None:
        """Read a closing bracket, on a line of its own perhaps. known: the states that read nothing else, by label."""
        m = self.machine
        m.edge(state, bracket, ends[label])
        if self.library.layout.flexible:
            found = known.get(label)
            if found is None:
                found = known[label] = m.state()
                m.edge(found, bracket, ends[label])
            self.writer.line(state, found)

    # ------------------------------------------------------------------------------------------------ objects

    def _object(self, first: int, automaton: ObjectAutomaton, ends: tuple[int, ...]) -> None:
        """Read an object after its opening brace; ends: codes by label."""
        m = self.machine
        written = _Object(self, automaton, ends)
        key, quoted = written.next_key(0)
        if key >= 0:
            m.edge(first, QUOTE, quoted)
            self.writer.line(first, key)
        close = written.states[0].close
        if close >= 0:
            m.edge(first, CLOSE_OBJECT, ends[close])


def _brackets(value: Value) -> list[int]:
    """Return the names of what may open at a value: an object and an array, _ANY for those of the library."""
    return [
        _ANY if automaton.free >= 0 else id(automaton)
        for automaton in (value.object, value.array)
        if automaton is not None
    ]


def all_steps(automaton: ObjectAutomaton | ArrayAutomaton) -> Iterable[Step]:
    """Return the steps of an object or array, each once."""
    steps: dict[int, Step] = {}
    if isinstance(automaton, ArrayAutomaton):
        steps = {id(state.item): state.item for state in automaton.states if state.item is not None}
    else:
        known: set[int] = set()  # of what states share
        unordered = () if automaton.unordered is None else automaton.unordered.states
        for state in chain(unordered, automaton.states):
            if id(state.steps) not in known:
                known.add(id(state.steps))
                steps |= {id(step): step for step in state.steps if step is not None}
            if id(state.others) not in known:
                known.add(id(state.others))
                steps |= {id(step): step for step in state.others.values()}
    return steps.values()


class _Branch:
    """A place in the trie of an object's keys: behind `label`, which begins with the byte that leads here."""

    __slots__ = ("branches", "label", "ranks")

    def __init__(self, label: bytes, ranks: list[int]) -> None:
        self.label = label
        self.ranks = ranks  # the keys below by their place in the object's order, sorted; one of a whole key
        self.branches: list[_Branch] = []


def _trie(texts: Sequence[bytes]) -> _Branch:
    """Return the trie of some texts, of which none is the beginning of another."""
    order = sorted(range(len(texts)), key=texts.__getitem__)
    root = _Branch(b"", list(range(len(texts))))
    todo = [(root, 0, len(order), 0)]
    while todo:
        node, low, high, depth = todo.pop()
        while low < high:
            byte = texts[order[low]][depth]
            end = low + 1
            while end < high and texts[order[end]][depth] == byte:
                end += 1
            first, last = texts[order[low]], texts[order[end - 1]]
            common = depth + 1
            while end - low > 1 and first[common] == last[common]:
                common += 1
            if end - low == 1:
                node.branches.append(_Branch(first[depth:], [order[low]]))
            else:
                below = _Branch(first[depth:common], sorted(order[low:end]))
                node.branches.append(below)
                todo.append((below, low, end, common))
            low = end
    return root


class _Array:
    """An array that is written by and by. ends: codes by label."""

    __slots__ = ("after", "before", "closing", "emitter", "ends", "states")

    def __init__(self, emitter: Emitter, automaton: ArrayAutomaton, ends: tuple[int, ...]) -> None:
        self.emitter, self.states, self.ends = emitter, automaton.states, ends
        self.before: dict[int, int] = {}  # the state that reads the next item
        self.after: dict[int, int] = {}  # the state that reads a comma or the end
        self.closing: dict[int, int] = {}

    def item(self, i: int, step: Step) -> int:
        """Return the state before the item that a state of the automaton reads."""
        found = self.before.get(i)
        if found is None:
            found = self.before[i] = self.emitter.machine.state()
            follow = tuple([self.behind(j) if j >= 0 else -1 for j in step.following])
            self.emitter.value(found, step.value, follow)
        return found

    def behind(self, i: int) -> int:
        """Return the state behind an item, in a state of the automaton."""
        found = self.after.get(i)
        if found is None:
            found = self.after[i] = self.emitter.machine.later(lambda: self.write(i))
        return found

    def write(self, i: int) -> None:
        """Write that state."""
        here, state, emitter = self.states[i], self.after[i], self.emitter
        if here.item is not None:
            emitter.writer.separator(state, self.item(i, here.item))
        if here.close >= 0:
            emitter.closed(state, CLOSE_ARRAY, here.close, self.ends, self.closing)


class _Object:
    """An object that is written by and by. ends: codes by label."""

    __slots__ = ("after", "closing", "emitter", "ends", "keys", "named", "opened", "states")

    def __init__(self, emitter: Emitter, automaton: ObjectAutomaton, ends: tuple[int, ...]) -> None:
        self.emitter, self.ends = emitter, ends
        self.states: Sequence[ObjectState] = AnyOrder(automaton) if automaton.any_order else automaton.states
        self.after: dict[int, int] = {}
        self.named: dict[int, int] = {}  # the state behind a key, by step
        self.opened: dict[int, tuple[int, int]] = {}  # the state that reads the next key, and that behind its quote
        self.closing: dict[int, int] = {}
        self.keys = _Keys(emitter, automaton)

    def behind(self, step: Step) -> int:
        """Return the state behind a key."""
        found = self.named.get(id(step))
        if found is None:
            found = self.named[id(step)] = self.emitter.machine.later(lambda: self.value(step))
        return found

    def value(self, step: Step) -> None:
        """Write that state, and the value that comes there."""
        state = self.emitter.machine.state()
        follow = tuple([self.then(j) if j >= 0 else -1 for j in step.following])
        self.emitter.value(state, step.value, follow)
        self.emitter.writer.colon(self.named[id(step)], state)

    def then(self, i: int) -> int:
        """Return the state behind a member, in a state of the automaton."""
        found = self.after.get(i)
        if found is None:
            found = self.after[i] = self.emitter.machine.later(lambda: self.write(i))
        return found

    def next_key(self, i: int) -> tuple[int, int]:
        """Return the state that reads the next key, and the code behind its quote; DEAD if there is none."""
        found = self.opened.get(i)
        if found is None:
            quoted, site = self.keys.opened(self.states[i], self.behind)
            if quoted == DEAD:
                found = DEAD, DEAD
            else:
                m = self.emitter.machine
                found = m.state(), quoted
                m.edge(found[0], QUOTE, quoted)
                if site >= 0:
                    m.twins[found[0]] = self.emitter.library.places.quote, site
            self.opened[i] = found
        return found

    def write(self, i: int) -> None:
        """Write the state behind a member."""
        here, state, emitter = self.states[i], self.after[i], self.emitter
        key, _ = self.next_key(i)
        if key >= 0:
            emitter.writer.separator(state, key)
        if here.close >= 0:
            emitter.closed(state, CLOSE_OBJECT, here.close, self.ends, self.closing)


class _Keys:
    """The keys of one object, as a trie that its states share as far as they read the same.

    What a state of the object reads below a branch of the trie follows from which keys below may come next: usually
    those of a range in the order of the object, so that two places in two sorted lists say it.
    """

    def __init__(self, emitter: Emitter, automaton: ObjectAutomaton) -> None:
        self.emitter, self.automaton = emitter, automaton
        self.trie: _Branch | None = None
        self.language = automaton.language
        states = automaton.reading()
        if (
            self.language is None
            and any(state.others for state in states)
            and any(has_spellings(key, emitter.library.layout.ascii) for key in automaton.keys)
        ):
            # a key of several spellings is told from those that are not declared by its content
            self.language, _ = partition(automaton.keys, (), emitter.meter)
        if self.language is not None:
            self.language = _that_come(self.language, automaton)
        # one list of steps for all states
        self.is_shared = not automaton.any_order and all(state.steps is states[0].steps for state in states)
        self.made: dict[Any, int] = {}
        self.closed: tuple[int, int] | None = None  # the trie without rows, where no others may come
        self.open: int | None = None  # the first state of that where others may
        self.behind = [DEAD] * len(automaton.keys)  # the states behind keys, as far as they have been asked for
        self.fragments: dict[bytes, tuple[int, tuple[int, ...]]] = {}  # by the labels that may come next
        self.shared: bool | None = None  # whether one automaton of keys serves all states
        self.contents: list[Labelled] = []  # kept, as they are known by their identity
        self.in_frame: _InFrame | None = None
        self.before: tuple[NDArray[np.int64], NDArray[np.int32]] | None = None  # `states_before` of the language
        self.total: list[tuple[int, bool]] = []  # `total_states` of it, and which of these are free

    def opened(self, here: ObjectState, behind: Callable[[Step], int]) -> tuple[int, int]:
        """Return where the opening quote of the next key leads in a state of the object, as a code; DEAD if nowhere.

        And the site that is pushed there where all keys but those declared are read as any string is, else -1.
        """
        if self.language is not None:
            return self._by_language(self.language, here, behind), -1
        if self.emitter.lazy and len(self.automaton.keys) <= _MOST_KEYS:
            code, site = self._without_rows(here, behind)
            if code is not None:
                return code, site
        if self.trie is None:
            self.trie = _trie([self.emitter._quoted(key)[1:] for key in self.automaton.keys])
        other = here.others.get(0)
        if other is not None:
            return self._open(here, behind, behind(other)), -1
        live = any(here.steps[j] is not None for j in range(here.first, here.last))
        return (self._closed(here, behind) if live else DEAD), -1

    def _next(self, here: ObjectState, behind: Callable[[Step], int]) -> Callable[[_Branch], tuple[int, ...]]:
        """Return what tells apart the states of the object that differ in what may come next below a branch."""
        if self.is_shared:
            first, last = here.first, here.last
            return lambda node: (bisect_left(node.ranks, first), bisect_left(node.ranks, last))

        def targets(node: _Branch) -> tuple[int, ...]:
            found = []
            for j in node.ranks:
                step = here.steps[j] if here.first <= j < here.last else None
                found.append(DEAD if step is None else behind(step))
            return tuple(found)

        return targets

    def _target(self, here: ObjectState, j: int, behind: Callable[[Step], int]) -> int:
        step = here.steps[j] if here.first <= j < here.last else None
        return DEAD if step is None else behind(step)

    def _closed(self, here: ObjectState, behind: Callable[[Step], int]) -> int:
        """Return the state that reads one of the keys that may come next."""
        m = self.emitter.machine
        variant = self._next(here, behind)
        todo: list[tuple[_Branch, int]] = []

        def inside(node: _Branch) -> int:
            """Return the state behind the first byte of a branch's label; DEAD if no key below may come next."""
            if not node.branches:
                target = self._target(here, node.ranks[0], behind)
                if target == DEAD or len(node.label) == 1:
                    return target
                key: tuple[Any, ...] = (id(node), target)
            elif (
                not any(self._target(here, j, behind) != DEAD for j in node.ranks[slice(*variant(node))])
                if self.is_shared
                else all(target == DEAD for target in variant(node))
            ):
                return DEAD
            else:
                key = (id(node), *variant(node))
            state = self.made.get(key)
            if state is None:
                state = self.made[key] = m.state()
                if not node.branches:
                    m.chain(state, node.label[1:], target)
                else:
                    at = state
                    if len(node.label) > 1:
                        at = m.state()
                        m.chain(state, node.label[1:], at)
                    todo.append((node, at))
            return state

        assert self.trie is not None
        key = (id(self.trie), *variant(self.trie))
        root = self.made.get(key)
        if root is None:
            root = self.made[key] = m.state()
            todo.append((self.trie, root))
        while todo:
            node, state = todo.pop()
            for branch in node.branches:
                target = inside(branch)
                if target != DEAD:
                    m.edge(state, branch.label[0], target)
        return root

    def _without_rows(self, here: ObjectState, behind: Callable[[Step], int]) -> tuple[int | None, int]:
        """Return what `opened` does, for a trie without rows.

        One serves all states of the object in which a key that is not declared may come, as whatever was begun may
        still become one, and another all where none may. A site says by label which keys may come, and where they
        lead: on the stack, or of the use of the trie. None where the numbers of states have run out.
        """
        other = here.others.get(0)
        first, last, known = here.first, here.last, self.behind
        if not self.is_shared:
            targets = [self._target(here, j, behind) for j in range(first, last)]
        else:
            for j in range(first, last):
                step = here.steps[j]
                if known[j] == DEAD and step is not None:
                    known[j] = behind(step)
            targets = known[first:last]
        if other is None and all(target == DEAD for target in targets):
            return DEAD, -1
        m, size = self.emitter.machine, len(self.automaton.keys)
        states = DEAD if other is None else behind(other), *(DEAD,) * first, *targets, *(DEAD,) * (size - last)
        if other is None:
            if self.closed is None:
                self.closed = self._words()
            return m.use(self.closed, states), -1
        if self.open is None:
            places, keys = self.emitter.library.places, self.automaton.keys
            escape = places.key_escape if all(map(str.isascii, keys)) else places.escape
            # no key has an escape here, as it would have several spellings, and an automaton
            self.open = m.use(self._words(places.body, escape), None) if keys else places.body
        site = m.site(states, True)
        return None if self.open is None else m.call(site, self.open), site

    def _words(self, *others: int) -> tuple[int, int]:
        """Return the trie of all keys. others: the string and the escape of those that are not declared."""
        words = [self.emitter._quoted(key)[1:-1] for key in self.automaton.keys]
        return self.emitter.machine.trie(words, range(1, len(words) + 1), *others)

    def _open(self, here: ObjectState, behind: Callable[[Step], int], other: int) -> int:
        """Return the state that reads a key that may come next, or any that is not declared, then `other`."""
        m, places = self.emitter.machine, self.emitter.library.places
        site = m.site((other,), True)
        # an escape must not spell what may still become a declared key
        escape = m.call(site, places.key_escape if all(map(str.isascii, self.automaton.keys)) else places.escape)
        variant = self._next(here, behind)
        rows = self.emitter.library.machine.rows
        todo: list[tuple[_Branch, int, int, int]] = []

        def state_at(node: _Branch, depth: int, inside: int) -> int:
            """Return the state behind so many bytes of a branch's label; inside: that of a string."""
            key = (site, id(node), depth, *variant(node))
            state = self.made.get(key)
            if state is None:
                state = self.made[key] = m.state()
                m.enter(state, inside, places.string, site)
                if inside == places.body:
                    m.twins[state] = places.body, site  # which also says that any characters are read; see `_is_any`
                todo.append((node, depth, state, inside))
            return state

        assert self.trie is not None
        root = state_at(self.trie, 0, places.body)
        while todo:
            node, depth, state, inside = todo.pop()
            if depth < len(node.label):
                ways = [(node.label[depth], node, depth + 1)]
            else:
                ways = [(branch.label[0], branch, 1) for branch in node.branches]
            if ways and inside == places.body:
                m.edge(state, BACKSLASH, escape)
            for byte, branch, read in ways:
                if not branch.branches and read == len(branch.label):  # the closing quote of a declared key
                    m.edge(state, byte, self._target(here, branch.ranks[0], behind))
                else:
                    m.edge(state, byte, state_at(branch, read, int(rows[inside, byte])))
        return root

    def _by_language(self, language: Labelled, here: ObjectState, behind: Callable[[Step], int]) -> int:
        """Return the code where keys are told apart by an automaton."""
        targets = [DEAD] * (int(language.label.max()) + 1)  # by label
        for j in range(here.first, here.last):
            step = here.steps[j]
            if step is not None:
                targets[j] = behind(step)
        for c, step in here.others.items():
            targets[len(self.automaton.keys) + c] = behind(step)
        if all(target == DEAD for target in targets):
            return DEAD
        if self.shared is None:
            self.shared = self._is_shared(language)
        if self.emitter.in_frame:
            if self.in_frame is None:
                self.in_frame = _InFrame(self.emitter, language)
            return self.in_frame.code(targets, self.in_frame.free if self.shared else self._alive(language, targets)[1])
        m = self.emitter.machine
        if self.shared:  # one automaton for all states: a key that may not come next is an end that leads nowhere
            found = self.fragments.get(b"")
            if found is None:
                found = self.fragments[b""] = self.emitter._content(Regular(language))
            start, order = found
            return m.call(m.site(tuple([targets[label] for label in order]), True), start)
        code = self._as_it_is(language, targets) if self.emitter.by_content else None
        return self._told_apart(language, targets) if code is None else code

    def _alive(self, language: Labelled, targets: list[int]) -> tuple[NDArray[np.bool_], int]:
        """Return from which states of an automaton some key can be completed that may come, and the free one, or -1."""
        arrays = language.class_of, language.transition
        if self.before is None:
            self.before = _before(language)
            every = np.ones(len(language.label), np.bool_)
            self.total = [(state, come_narrowly(*arrays, state, every)) for state in total_states(*arrays).tolist()]
        ends = np.append(np.array(targets) != DEAD, False)[language.label]
        lives = leading_to(self.before, ends)
        # what comes narrowly before keys are gone does so behind them as well
        return lives, next((s for s, sure in self.total if ends[s] and (sure or come_narrowly(*arrays, s, lives))), -1)

    def _as_it_is(self, language: Labelled, targets: list[int]) -> int | None:
        """Return the code where only some keys may come of an automaton that is read as it is, None where it is not."""
        key = (np.array(targets) != DEAD).tobytes()
        found = self.fragments.get(key)
        if found is None:
            lives, free = self._alive(language, targets)
            if not lives[0]:
                return DEAD
            found = self.emitter.as_it_is(language, free, lives.astype(np.int32) - 1)
            if found is None:
                return None
            self.fragments[key] = found
        start, order = found
        m = self.emitter.machine
        return m.call(m.site(tuple([targets[label] for label in order]), True), start)

    def _told_apart(self, language: Labelled, targets: list[int]) -> int:
        """Return the code where an automaton of the keys that may come is written out."""
        states = [target for target in dict.fromkeys(targets) if target != DEAD]
        rank = {target: n for n, target in enumerate(states)}
        renamed = np.array([*[rank.get(target, -1) for target in targets], -1], np.int32)
        key = renamed.tobytes()
        found = self.fragments.get(key)
        if found is None:
            content = language._replace(label=renamed[language.label])
            lives = leading_to(_before(language), content.label >= 0)
            if not lives[0]:
                return DEAD
            content = trimmed(content, lives)
            self.contents.append(content)
            found = self.fragments[key] = self.emitter._content(Regular(content))
        start, order = found
        m = self.emitter.machine
        return m.call(m.site(tuple([states[label] for label in order]), True), start)

    def _is_shared(self, language: Labelled) -> bool:
        """Whether from everywhere in the automaton some key can be completed that may come next in every state."""
        keys = len(self.automaton.keys)
        always: set[int] | None = None
        for here in self.automaton.reading():
            if here.others or here.first < here.last:
                always = set(here.others) if always is None else always & set(here.others)
        if not always:
            return False
        ends = np.isin(language.label, [keys + c for c in always])
        return bool(leading_to(_before(language), ends).all())


class _InFrame:
    """Strings by their content, read in the frame of what is around them, where the depth may run out.

    Each state then says how many frames are needed behind what it may become. Places share the states from which the
    same may still come, as those of an object do behind what tells two of its keys apart.
    """

    def __init__(self, emitter: Emitter, content: Labelled) -> None:
        self.emitter, self.content, self.ascii = emitter, content, emitter.library.layout.ascii
        self.class_of, self.codes = escaped(content, self.ascii, emitter.meter)
        self.free = -1 if self.ascii else free_state(content)
        self.libraries: dict[int, tuple[int, dict[int, int]]] = {}  # see `_library`
        self.made: dict[tuple[int, int, bytes], int] = {}  # states of the machine, by what their labels lead to

    @cached_property
    def ahead(self) -> NDArray[np.uint64]:
        """The labels with which a text may end that goes on from each state (N, W), 64 in a number."""
        ends = self.codes[:, self.class_of[QUOTE]]
        label = np.where(ends <= RETURN, RETURN - ends, -1).astype(np.int32)
        found: NDArray[np.uint64] = labels_ahead(np.ascontiguousarray(self.codes, np.int32), label)
        return found

    def _library(self, free: int) -> tuple[int, dict[int, int]]:
        """Return the state of the text that stands for one of the content from which any string may come.

        And the library's states that do what it does, and what those do that are on the way back to it.
        """
        found = self.libraries.get(free)
        if found is None:
            state = in_text(self.content, self.class_of, self.codes, free)
            known = self.emitter.like_string(self.codes[:, self.class_of], state)
            # an escape that leads out of all that comes before could spell what leads elsewhere: only one that cannot
            known[int(self.codes[state, self.class_of[BACKSLASH]])] = self.emitter.library.places.escape
            found = self.libraries[free] = state, known
        return found

    def code(self, targets: Sequence[int], free: int) -> int:
        """Return the code that reads the words whose labels lead to a state, DEAD if there are none.

        free: the state of the content that is read as the library reads any string, -1 for none.
        """
        m = self.emitter.machine
        leads = np.array(targets, np.int32)
        bits = np.zeros(64 * self.ahead.shape[1], np.uint8)
        bits[: len(leads)] = leads != DEAD
        wanted = np.packbits(bits, bitorder="little").view(np.uint64)
        live: NDArray[np.bool_] = np.any(self.ahead & wanted, axis=1)
        number = np.full(len(self.codes) + 1, DEAD, np.int32)  # codes of states, one more for what is none
        any_string, known, site = -1, dict[int, int](), -1
        if free >= 0 and not self.ascii and leads[self.content.label[free]] != DEAD:
            any_string, known = self._library(free)
            site = m.site((int(leads[self.content.label[free]]),), True)
            for state, there in known.items():
                number[state] = m.call(site, there)
        first, new = m.size, list[int]()

        def find(state: int) -> None:
            ahead = np.unpackbits(self.ahead[state].view(np.uint8), bitorder="little")[: len(leads)]
            key = free, state, leads[ahead.view(np.bool_)].tobytes()
            if key not in self.made:
                self.made[key] = first + len(new)
                new.append(state)
            number[state] = self.made[key]

        if live[0] and 0 not in known:
            find(0)
        rows = []
        for state in new:  # which grows meanwhile
            here: NDArray[np.int32] = self.codes[state]
            for target in np.unique(here[here >= 0]).tolist():
                if number[target] == DEAD and live[target]:
                    find(target)
            row = np.where(here >= 0, number[np.maximum(here, 0)], DEAD)
            row[here <= RETURN] = leads[RETURN - here[here <= RETURN]]
            rows.append(row[self.class_of])
            # else the difference would be the larger row
            if site >= 0 and (here[self.class_of[0x20:0x80]] == any_string).mean() > 0.5:
                m.twins[first + len(rows) - 1] = self.emitter.library.places.body, site
        if rows:
            m.block(np.array(rows, np.int32))
        return int(number[0])


def _forks(content: Labelled) -> bool:
    """Return whether words end with several labels."""
    ends = content.label[content.label >= 0]
    return bool((ends != ends[0]).any())


def ordered(label: NDArray[Any], free: int) -> tuple[NDArray[Any], tuple[int, ...]]:
    """Return labels by their place in an order, and that: first that of the free state, as any string ends by 0."""
    order = tuple(range(int(label.max()) + 1))
    if free < 0 or not label[free]:
        return label, order
    order = (int(label[free]), *(other for other in order if other != label[free]))
    place = np.full(len(order) + 1, -1, np.int32)
    place[list(order)] = np.arange(len(order))
    return place[label], order


def _that_come(language: Labelled, automaton: ObjectAutomaton) -> Labelled:
    """Return the automaton of an object's keys without those that come next in none of its states, if any do."""
    ranges: dict[int, tuple[Sequence[Step | None], int, int]] = {}  # of lists of steps, which states share
    labels: set[int] = set()
    keys = len(automaton.keys)
    for here in automaton.reading():
        steps, first, last = ranges.get(id(here.steps), (here.steps, here.first, here.last))
        ranges[id(here.steps)] = steps, min(first, here.first), max(last, here.last)
        labels.update([keys + c for c in here.others])
    for steps, first, last in ranges.values():
        if automaton.any_order:  # ranges mean nothing
            first, last = 0, keys
        labels.update([j for j in range(first, last) if steps[j] is not None])
    comes = np.isin(language.label, list(labels))
    if (comes | (language.label < 0)).all():
        return language
    lives = leading_to(_before(language), comes)
    if not lives[0]:
        return language
    return trimmed(language._replace(label=np.where(comes, language.label, np.int32(-1))), lives)


def _before(content: Labelled) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Return `states_before` of a content."""
    found: tuple[NDArray[np.int64], NDArray[np.int32]] = states_before(
        np.ascontiguousarray(content.transition, np.int32)
    )
    return found


def _needed(content: Labelled) -> NDArray[np.int32]:
    """Return how many characters must follow each state of a content, -1 where no word with a label can be read."""
    class_of = np.ascontiguousarray(content.class_of, np.uint16)
    needed: NDArray[np.int32] = characters_left(
        class_of, np.ascontiguousarray(content.transition, np.int32), content.label >= 0, False
    )
    return needed


def trimmed(content: Labelled, live: NDArray[np.bool_]) -> Labelled:
    """Return an automaton without some states, which no others need."""
    number = np.append(np.where(live, np.cumsum(live) - 1, -1), -1).astype(np.int32)
    return Labelled(content.class_of, number[content.transition[live]], content.label[live])
