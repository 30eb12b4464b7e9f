"""What all parts of the emitter share: the machine that they write, and how they write it."""

from __future__ import annotations

from ...automata.budget import Meter
from ...automata.pushdown import PushdownMachine
from .escapes import quoted
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
