"""Strings by their content in a frame that other things share, where frames may run out."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ...automata.budget import Meter
from ...automata.labelled import Labelled, bytes_ahead, labels_ahead
from ...automata.pushdown import PushdownMachine
from ...automata.state_ranges import DEAD, RETURN
from .escapes import escaped, quoted
from .fragments import free_state, in_text
from .layout import BACKSLASH, QUOTE
from .library import Library
from .writer import Writer


class EmitContext:
    """The machine that is written, on top of a library's.

    lazy: whether states are written when a text comes to them. recurs: whether objects or arrays may stand inside
    themselves, so that frames may run out.
    """

    def __init__(self, library: Library, meter: Meter, lazy: bool, recurs: bool) -> None:
        self.library, self.meter, self.lazy, self.recurs = library, meter, lazy, recurs
        self.machine = PushdownMachine(library.machine)
        self.writer = Writer(self.machine, library.places, library.layout, lazy)
        self.by_content = lazy and not library.layout.ascii  # whether strings are read by their content
        # Where frames may run out, a state of several labels says how many frames it needs behind it. For strings
        # that are read by their content, `lazy.pushdown.frames.frames_behind` says so.
        self.in_frame = recurs and not self.by_content

    def quoted(self, word: str) -> bytes:
        """Return the JSON text of a string in this layout."""
        return quoted(word, self.library.layout.ascii)


class InFrame:
    """Strings by their content, read in the frame of what is around them.

    Each state then says how many frames are needed behind what the string may become. Places share the states from
    which the same may still come, as the states of an object do behind what tells two of its keys apart.
    """

    def __init__(self, context: EmitContext, content: Labelled) -> None:
        self.context, self.content, self.ascii = context, content, context.library.layout.ascii
        self.class_of, self.codes = escaped(content, self.ascii, context.meter)
        self.free = -1 if self.ascii else free_state(content)
        self._templates: dict[int, tuple[int, dict[int, int]]] = {}  # see `_templates_of`
        self._made: dict[tuple[int, int, bytes], int] = {}  # states of the machine, by what their labels lead to

    @cached_property
    def _ahead(self) -> NDArray[np.uint64]:
        """The labels with which a text may end that goes on from each state (N, W), 64 in a number."""
        ends = self.codes[:, self.class_of[QUOTE]]
        label = np.where(ends <= RETURN, RETURN - ends, -1).astype(np.int32)
        self.context.meter.check(bytes=bytes_ahead(label), doing="writing strings")
        found: NDArray[np.uint64] = labels_ahead(np.ascontiguousarray(self.codes, np.int32), label)
        return found

    def _templates_of(self, free: int) -> tuple[int, dict[int, int]]:
        """Return the text's state for the content's state `free`, and the library's states that read alike, by state.

        free: a state of the content from which any string may come. A library state reads alike if it reads the same
        bytes as the text's state, and as the states that lead back to that one.
        """
        found = self._templates.get(free)
        if found is None:
            state = in_text(self.content, self.class_of, self.codes, free)
            library = self.context.library
            known = library.like_string(self.codes[:, self.class_of], state)
            # an escape that leads out of all that comes before could spell what leads elsewhere: only one that cannot
            known[int(self.codes[state, self.class_of[BACKSLASH]])] = library.places.escape
            found = self._templates[free] = state, known
        return found

    def code(self, targets: Sequence[int], free: int) -> int:
        """Return the code that reads the words whose labels lead to a state, DEAD if there are none.

        targets: where each label leads, DEAD for nowhere. free: the state of the content that is read as the library
        reads any string, -1 for none.
        """
        m = self.context.machine
        leads = np.array(targets, np.int32)
        bits = np.zeros(64 * self._ahead.shape[1], np.uint8)
        bits[: len(leads)] = leads != DEAD
        wanted = np.packbits(bits, bitorder="little").view(np.uint64)
        live: NDArray[np.bool_] = np.any(self._ahead & wanted, axis=1)
        number = np.full(len(self.codes) + 1, DEAD, np.int32)  # codes of states, one more for what is none
        any_string, known, site = -1, dict[int, int](), -1
        if free >= 0 and not self.ascii and leads[self.content.label[free]] != DEAD:
            any_string, known = self._templates_of(free)
            site = m.site((int(leads[self.content.label[free]]),), True)
            for state, there in known.items():
                number[state] = m.call(site, there)
        first, new = m.size, list[int]()

        def find(state: int) -> None:
            ahead = np.unpackbits(self._ahead[state].view(np.uint8), bitorder="little")[: len(leads)]
            key = free, state, leads[ahead.view(np.bool_)].tobytes()
            if key not in self._made:
                self._made[key] = first + len(new)
                new.append(state)
            number[state] = self._made[key]

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
                m.twins[first + len(rows) - 1] = self.context.library.places.body, site
        if rows:
            m.block(np.array(rows, np.int32))
        return int(number[0])
