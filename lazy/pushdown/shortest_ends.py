"""How few bytes it takes to end a text from where a `LazyPushdown` stands: a bound for budgets of tokens.

Where every byte is a token of its own, as many tokens are enough. The states that are left for later are *anchors*: the
schema says how far an end is from there. So a search from a written state ends at the next anchors, and writes nothing.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...automata.content_bytes import NO_WAY, bytes_of, content_bytes, escape_bytes
from ...automata.pushdown import PushdownMachine
from ...automata.state_ranges import CALL, DEAD, KEEP, KEYS, PHASES, RETURN, STRINGS, TEXTS, UNWRITTEN
from ...automata.word_tries import KEY_CHILD, KEY_LABEL, KEY_LIKE, KEY_NEXT, KEY_STOP

Ends = dict[int, int]
"""By the label with which a fragment ends: frames that are opened until then, times `FRAME`, plus bytes.

Fewer frames matter before fewer bytes. The label `ACCEPTED` stands for the end of the text, where nothing is open.
"""

FRAME = 1 << 31
_NEVER = FRAME * FRAME
ACCEPTED = -1


class SearchError(Exception):
    """An end is so far that the search for it was given up."""


class Anchored(NamedTuple):
    """What is known of an anchor: bytes and frames by label of the object or array, and where each label leads."""

    bytes: dict[int, int]
    frames: dict[int, int]
    ends: tuple[int, ...]


AnchorOf = Callable[[int], Anchored | None]
"""What says where a state stands in the schema, None where that is not known."""


class ShortestEnds:
    """The fewest bytes from each state to an end of its fragment, found when they are asked for, and kept.

    `left` is how many states searches may look at from now on; then they raise SearchError, and keep what they found.

    machine: the one that is read. anchor_of: says what the schema knows of a state. reach: writes a state without a row
    that is no anchor. counted_states: states of any string, which counted strings have for each count.
    """

    def __init__(
        self, machine: PushdownMachine, library: LibraryEnds, anchor_of: AnchorOf, reach: Callable[[int], None],
        any_string: int, counted_states: int,
    ) -> None:  # fmt: skip
        self._machine, self.library, self._anchor_of, self._reach = machine, library, anchor_of, reach
        self._known: dict[int, Ends] = dict(enumerate(library.ends[1:], 1))
        self._any_string, self._counted_states = any_string, counted_states
        self.left = 0
        self._contents: dict[int, NDArray[np.int64]] = {}
        self._depths: dict[int, list[int]] = {}  # of the states of each trie of words

    def ends(self, state: int) -> Ends:
        """Return how far each end of a state's fragment is."""
        found = self._known.get(state)
        if found is None:
            if state >= TEXTS:
                found = self._of_content(state)
            elif state >= STRINGS:
                found = self._of_counted(state)
            elif state >= KEYS:
                found = self._of_words(state)
            else:
                found = self._of_anchor(state)
                if found is None:
                    found = self._searched(state)
            self._known[state] = found
        return found

    def leads(self, site: int) -> list[int]:
        """Return the states to which a site leads by label, below 0 where there is none."""
        _, _, start, states, *_ = self._machine.arrays()
        found: list[int] = states[start[site] : start[site + 1]].tolist()
        return found

    # ------------------------------------------------------------------------------------------------------- strings

    def content_of(self, state: int) -> tuple[Any, NDArray[np.int64]]:
        """Return the content that a state belongs to, and what `content_bytes` finds of it."""
        texts = self._machine.texts
        n = bisect_right(texts, state, key=lambda content: content.first) - 1
        content, found = texts[n], self._contents.get(n)
        if found is None:
            found = content_bytes(content.class_of, content.transition, content.label, counted=content.most >= 0)
            if content.needed.size:
                found[content.needed < 0] = found.max(initial=0)
            self._contents[n] = found
        return content, found

    def _of_content(self, state: int) -> Ends:
        content, found = self.content_of(state)
        place, phase = divmod(state - content.first, PHASES)
        q = place % content.label.size
        least = escape_bytes(content, found, q, phase) if phase else found[q]
        sizes = bytes_of(least, content.most >= 0).tolist()
        return {label: 1 + size for label, size in enumerate(sizes) if size < NO_WAY}

    def _of_counted(self, state: int) -> Ends:
        strings = self._machine.strings
        first, low, _ = strings[bisect_right(strings, state, key=lambda string: string[0]) - 1]
        k, q = divmod(state - first, self._counted_states)
        more = max(0, low - k - (q > 0))
        return {label: size + more for label, size in self._known[self._any_string + q].items()}

    def _of_words(self, state: int) -> Ends:
        machine = self._machine
        uses = machine.uses
        first, stop, trie, site = uses[bisect_right(uses, state, key=lambda use: use[0]) - 1]
        keys = machine.arrays()[6]
        depths = self._depths.get(trie)
        if depths is None:
            depths = self._depths[trie] = _depths(keys, trie, trie + stop - first)
        here = state - first + trie
        leads = [] if site < 0 else self.leads(site)
        found: Ends = {}
        like = int(keys[here, KEY_LIKE])
        if site < 0 and like >= 0:
            found.update(self._known[like])
        labels = keys[here : keys[here, KEY_STOP], KEY_LABEL].tolist()
        for label, depth in zip(labels, depths[here - trie :], strict=False):
            if label >= 0:
                size = 1 + depth - depths[here - trie]
                if site < 0:
                    found[label] = min(found.get(label, NO_WAY), size)
                elif leads[label] >= 0:
                    _take(found, size, self.ends(leads[label]))
        return found

    # ---------------------------------------------------------------------------------------------------------- rows

    def _of_anchor(self, state: int) -> Ends | None:
        anchored = self._anchor_of(state)
        if anchored is None:
            return None
        found: Ends = {}
        for label, size in anchored.bytes.items():
            code = anchored.ends[label]
            cost = anchored.frames.get(label, 0) * FRAME + size
            if code <= RETURN:
                found[RETURN - code] = min(found.get(RETURN - code, _NEVER), cost)
            elif code >= 0:
                _take(found, cost, self.ends(code))
        return found

    def _searched(self, start: int) -> Ends:
        """Find the ends of a state with a row: Dijkstra's algorithm, up to states whose ends are known."""
        found: Ends = {}
        best, queue = {start: 0}, [(0, start)]
        accepting = self._machine.accepting
        while queue:
            cost, state = heappop(queue)
            if cost > best[state]:
                continue
            self.left -= 1
            if self.left < 0:
                raise SearchError
            if state != start:
                known = self._known.get(state)
                if known is None and (state >= KEYS or self._anchor_of(state) is not None):
                    known = self.ends(state)
                if known is not None:
                    _take(found, cost, known)
                    continue
            if state in accepting:
                found[ACCEPTED] = min(found.get(ACCEPTED, _NEVER), cost)
            for more, to in self._leads(state, found, cost):
                total = _sum(cost, more)
                if to not in best or total < best[to]:
                    best[to] = total
                    heappush(queue, (total, to))
        return found

    def _leads(self, state: int, found: Ends, cost: int) -> Iterator[tuple[int, int]]:
        """Yield where a state leads and how far, and note the ends of its fragment in `found`."""
        codes = self._codes(state)
        for code in codes:
            if code > 0:
                yield 1, code
            elif code <= CALL:
                site, target = self._machine.arrays()[1][CALL - code].tolist()
                opened = 0 if self._machine.arrays()[4][site] else FRAME
                leads = self.leads(site)
                for label, inner in self.ends(target).items():
                    if 0 <= label < len(leads) and leads[label] >= 0:
                        yield opened + 1 + inner, leads[label]
            elif code <= KEEP:
                found[KEEP - code] = min(found.get(KEEP - code, _NEVER), cost)
            elif code <= RETURN:
                found[RETURN - code] = min(found.get(RETURN - code, _NEVER), cost + 1)

    def _codes(self, state: int) -> list[int]:
        """Return the distinct codes of a state with a row."""
        codes = set(self._machine.arrays()[0][state].tolist())
        if UNWRITTEN in codes:
            self._reach(state)
            codes = set(self._machine.arrays()[0][state].tolist())
        codes.discard(DEAD)
        return sorted(codes)


class LibraryEnds:
    """How far the ends of each state of a library's machine are, whose fragments call one another.

    strings: the states where strings begin, or go on behind a backslash.
    """

    def __init__(self, machine: PushdownMachine, strings: tuple[int, ...]) -> None:
        rows, calls, (start, states, leaf) = machine.rows, machine.calls.tolist(), machine.sites
        codes = [sorted(set(row.tolist()) - {DEAD, UNWRITTEN}) for row in rows]
        self.ends: list[Ends] = [{} for _ in codes]
        found, changed = self.ends, True
        while changed:
            changed = False
            for state in range(len(codes) - 1, 0, -1):
                ends: Ends = {}
                for code in codes[state]:
                    if code > 0:
                        _take(ends, 1, found[code])
                    elif code <= CALL:
                        site, target = calls[CALL - code]
                        for label, inner in found[target].items():
                            at = int(start[site]) + label
                            if at < start[site + 1] and states[at] >= 0:
                                _take(ends, 1 + inner + (0 if leaf[site] else FRAME), found[states[at]])
                    elif code <= KEEP:
                        ends[KEEP - code] = 0
                    else:
                        ends[RETURN - code] = min(ends.get(RETURN - code, _NEVER), 1)
                changed |= ends != found[state]
                found[state] = ends
        self.within_strings = set(strings)
        waiting = list(strings)
        while waiting:
            for code in codes[waiting.pop()]:
                if code > 0 and code not in self.within_strings:
                    self.within_strings.add(code)
                    waiting.append(code)
        self.longest_string = max(found[state][0] for state in self.within_strings)  # bytes that end any string


def _sum(before: int, behind: int) -> int:
    """Return what two ways take one after the other: bytes add up, and frames of the first are closed by then."""
    frames, size = divmod(before, FRAME)
    more_frames, more = divmod(behind, FRAME)
    return max(frames, more_frames) * FRAME + size + more


def _take(found: Ends, cost: int, behind: Ends) -> None:
    """Lower ends to those that lie behind a way."""
    for label, more in behind.items():
        total = _sum(cost, more)
        if total < found.get(label, _NEVER):
            found[label] = total


def _depths(keys: NDArray[np.int32], first: int, stop: int) -> list[int]:
    """Return how many bytes lead to each state of a trie of words."""
    used = int(keys[first, KEY_STOP])
    children, siblings = keys[first:used, KEY_CHILD].tolist(), keys[first:used, KEY_NEXT].tolist()
    found = [0] * (stop - first)
    for here, child in enumerate(children):  # which come after it
        while child >= 0:
            found[child - first] = found[here] + 1
            child = siblings[child - first]
    return found
