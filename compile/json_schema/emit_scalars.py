"""Numbers and strings in the machine of a schema: fragments that a site calls, the library's where it has them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ...automata.labelled import Labelled
from ...automata.state_ranges import DEAD, KEEP, RETURN
from ...automata.string_content import Content
from .contents import characters_needed, has_several_labels, ordered
from .escapes import escaped
from .formats import is_format
from .fragments import ending_freely, free_state, numbered
from .in_frame import EmitContext, InFrame
from .layout import BACKSLASH, QUOTE, after_number
from .skeleton import Bounded, Finite, Free, Regular, StringSet
from .strings import cut

Follow = tuple[int, ...]
"""Where a value leads by its label: a state, or -1 where a value of that label may not stand."""

_NUMBER_BYTES = np.arange(256, dtype=np.uint16)


class ScalarEmitter:
    """Writes numbers and strings, each fragment once."""

    def __init__(self, context: EmitContext) -> None:
        self._context = context
        self._numbers: dict[tuple[int, Follow | None], tuple[int, tuple[int, int], int]] = {}
        self._fragments: dict[int, tuple[int, tuple[int, ...]]] = {}  # of strings, by identity
        self._tries: dict[int, tuple[int, int]] = {}  # of listed words, by identity

    # ----------------------------------------------------------------------------------------------- numbers

    def number(self, state: int, number: Labelled, follow: Follow) -> None:
        """Read a number in `state`, up to the byte behind it, then on in follow[label]."""
        context = self._context
        m, library = context.machine, context.library
        start, fragment, site = self._number_fragment(number, follow)
        m.enter(state, start, fragment, site)
        if start < library.machine.size:
            m.twins[state] = start, site

    def last_number(self, number: Labelled) -> None:
        """Read a number at the start of the machine, where the text ends with the number."""
        m = self._context.machine
        rows = self.number_rows(number)
        rows[rows <= KEEP] = DEAD
        first = m.dfa(_NUMBER_BYTES, rows)
        m.accepting.update((np.flatnonzero(number.label >= 0) + first).tolist())
        for byte in np.flatnonzero(rows[0] >= 0).tolist():
            m.edge(0, byte, first + int(rows[0, byte]))

    def _number_fragment(self, number: Labelled, follow: Follow) -> tuple[int, tuple[int, int], int]:
        """Return the first state of a number's fragment, the fragment, and the site it is entered with."""
        context, placed = self._context, False
        m = context.machine
        if len(follow) > 1:
            used = set(number.label.tolist()) - {-1}
            placed = context.recurs and len(used) > 1
            follow = tuple([to if label in used else -1 for label, to in enumerate(follow)])
        key = id(number), follow if placed else None
        found = self._numbers.get(key)
        if found is None:
            for known, start, fragment in () if placed else context.library.numbers:
                if known is number:
                    return start, fragment, m.site(follow, True)
            rows = self.number_rows(number)
            first = (m.dfa_later if context.lazy and not placed else m.dfa)(_NUMBER_BYTES, rows)
            m.accepting.update((np.flatnonzero(number.label >= 0) + first).tolist())
            site = m.place(first, len(rows), follow) if placed else -1
            found = self._numbers[key] = first, (first, len(rows)), site
        start, fragment, site = found
        return start, fragment, site if placed else m.site(follow, True)

    def number_rows(self, number: Labelled) -> NDArray[np.int32]:
        """Return the rows (N, 256) of a number's states, as codes; the byte behind the number is kept."""
        rows = number.transition[:, number.class_of].astype(np.int32)
        ends = np.flatnonzero(number.label >= 0)
        after = np.frombuffer(after_number(self._context.library.layout), np.uint8)
        rows[ends[:, None], after] = KEEP - number.label[ends, None]
        return rows

    # ----------------------------------------------------------------------------------------------- strings

    def string(self, state: int, text: StringSet, follow: Follow) -> None:
        """Read a string in `state`, then on in follow[label]."""
        context = self._context
        m = context.machine
        if type(text) is Free:
            context.writer.string(state, follow[text.label])
        elif type(text) is Finite:
            self._words(state, text, follow)
        elif type(text) is Regular and context.in_frame and has_several_labels(text.content):
            m.edge(state, QUOTE, self._by_place(text.content, follow))
        elif type(text) is Bounded or type(text) is Regular:
            first, order = self._fragment(text)
            site = m.site(tuple(follow[label] for label in order), True)
            m.edge(state, QUOTE, m.call(site, first))
            if type(text) is Bounded and context.lazy and text.low <= 1:  # most tokens lead as in any string
                m.twins[state] = context.library.places.quote, site

    def _fragment(self, text: Bounded | Regular) -> tuple[int, tuple[int, ...]]:
        """Return the first state of a string's fragment, after the opening quote, and the labels of its ends."""
        context = self._context
        m = context.machine
        found = self._fragments.get(id(text))
        if found is None:
            if isinstance(text, Bounded):
                lengths = context.library.lengths
                states = lengths.count(text.low, text.high)
                context.meter.check(bytes=32 * states, doing="counting the characters of a string")
                if context.lazy:
                    first = m.string(text.low, text.high, states)
                else:
                    first = m.block(lengths.opening(text.low, text.high, m.size))
                    m.counted.append((first, m.size - first, text.low, text.high))
                found = first, (text.label,)
            else:
                found = self.content(text)
            self._fragments[id(text)] = found
        return found

    def content(self, text: Regular) -> tuple[int, tuple[int, ...]]:
        """Return the first state of the fragment of a string by its content, and the labels of its ends in order."""
        context = self._context
        if not context.lazy:
            return self._written(text)
        m, content = context.machine, text.content
        free = free_state(content) if text.most is None else -1
        needed = np.zeros(0, np.int32) if text.most is None else characters_needed(content)
        found = self.as_it_is(content, free, needed, text.most)
        if found is not None:
            return found
        if content.label.max() > 0:  # the order of labels is known when it is written
            return self._written(text)

        def write(state: int) -> None:
            start, _ = self._written(text)
            m.copy(state, start)
            if start == context.library.places.body:
                m.twins[state] = start, -1

        return m.later(write, alone=True), (0,)

    def as_it_is(
        self, content: Labelled, free: int, needed: NDArray[np.int32], most: int | None = None
    ) -> tuple[int, tuple[int, ...]] | None:
        """Return the same as `content` of a string whose DFA is read as it is; None where that cannot be.

        needed: the characters that must follow each state (N,), or none; see `Content`. most: the characters of the
        string at most, None for no bound.
        """
        context = self._context
        if not context.by_content:
            return None
        label, order = ordered(content.label, free)
        if free == 0:
            return context.library.places.body, order[:1]
        class_of = np.ascontiguousarray(content.class_of, np.uint16)
        transition, label = (np.ascontiguousarray(array, np.int32) for array in (content.transition, label))
        first = context.machine.text(Content(class_of, transition, label, free, -1 if most is None else most, needed))
        return None if first is None else (first, order)

    def _by_place(self, content: Labelled, follow: Follow) -> int:
        """Return the code that reads a string by its content in states that lead to follow[label]; see `InFrame`."""
        text, m = InFrame(self._context, content), self._context.machine
        if text.free >= 0:
            return text.code(follow, text.free)
        lazy = self._context.lazy
        first = m.dfa(text.class_of, text.codes) if lazy else self._apart(content, text.class_of, text.codes)
        return m.call(m.place(first, len(text.codes), follow), first)

    def _apart(self, content: Labelled, class_of: NDArray[np.uint16], codes: NDArray[np.int32]) -> int:
        """Add the JSON texts of a content as a DFA whose rows are made on their own, and return its first state."""
        m = self._context.machine
        codes = numbered(class_of, codes, self._context.library.vocabulary)
        first = m.dfa(class_of, codes)
        m.apart.append((first, class_of, codes, is_format(content.transition)))
        return first

    def _written(self, text: Regular) -> tuple[int, tuple[int, ...]]:
        """Write the states of a string by its content, and return the same as `content`."""
        context = self._context
        m, places, ascii = context.machine, context.library.places, context.library.layout.ascii
        content = cut(text, context.meter)
        class_of, codes = escaped(content, ascii, context.meter)
        labels = int(RETURN - codes.min()) + 1
        free = None if ascii else ending_freely(content, class_of, codes)
        if free is None:
            first = m.dfa_later(class_of, codes) if context.lazy else self._apart(content, class_of, codes)
            return first, tuple(range(labels))
        # The states before the free one are written out. Their rows differ little from those of any string, which ends
        # by label 0.
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
        for old, known in context.library.like_string(rows, state).items():
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

    # ---------------------------------------------------------------------------------------- listed strings

    def _words(self, state: int, text: Finite, follow: Follow) -> None:
        context = self._context
        m = context.machine
        if context.lazy:
            trie = self._tries.get(id(text))
            if trie is None:
                words = [context.quoted(word)[1:-1] for word in text.words]
                trie = self._tries[id(text)] = m.trie(words, list(text.words.values()))
            first = m.use(trie, follow)
            if first is not None:
                m.edge(state, QUOTE, first)
                return
        spelt = sorted((context.quoted(word), label) for word, label in text.words.items() if follow[label] >= 0)
        self._spell(state, [(data, follow[label]) for data, label in spelt])

    def _spell(self, state: int, texts: Sequence[tuple[bytes, int]]) -> None:
        """Read one of some texts, sorted, none the beginning of another, each with the state it leads to."""
        m = self._context.machine
        todo = [(state, 0, 0, len(texts))]
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
