"""JSON punctuation, and values of any kind, in a machine on top of the library's."""

from __future__ import annotations

from dataclasses import dataclass

from ...automata.pushdown import PushdownMachine
from .layout import COMMA, NEWLINE, OPEN_ARRAY, OPEN_OBJECT, QUOTE, SPACE, Layout


@dataclass(frozen=True)
class Places:
    """The states of a library machine that schemas refer to."""

    quote: int  # before the opening quote of a string
    spaced: int  # before that, or a space and that if there may be one
    body: int  # inside a string
    string: tuple[int, int]  # the string fragment: its first state and number of states
    # after a backslash in a string that must not become one of those listed, whose characters are written raw
    escape: int
    key_escape: int  # the same, if those listed are of printable ASCII
    words: dict[str, int]  # after the first letter of null, true, false
    indent: int  # after a line break
    number: tuple[int, int]
    number_start: int
    integer: tuple[int, int]
    integer_start: int
    object: int  # after the opening brace of any object
    array: int


class Writer:
    """Writes JSON punctuation into a machine.

    lazy: whether masks are found row by row, from those of the library's states that rows are nearly like.
    """

    def __init__(self, machine: PushdownMachine, places: Places, layout: Layout, lazy: bool = False) -> None:
        self.machine, self.places, self.layout, self.lazy = machine, places, layout, lazy

    def string(self, state: int, follow: int) -> None:
        """Read any string, then on in `follow`."""
        m = self.machine
        site = m.site((follow,), True)
        m.edge(state, QUOTE, m.call(site, self.places.body))
        m.twins[state] = self.places.quote, site

    def word(self, state: int, word: str, follow: int) -> None:
        """Read null, true or false, then on in `follow`."""
        m = self.machine
        m.edge(state, ord(word[0]), m.call(m.site((follow,), True), self.places.words[word]))

    def any_object(self, state: int, follow: int) -> None:
        """Read any object, then on in `follow`."""
        m = self.machine
        m.edge(state, OPEN_OBJECT, m.call(m.site((follow,), False), self.places.object))

    def any_array(self, state: int, follow: int) -> None:
        """Read any array, then on in `follow`."""
        m = self.machine
        m.edge(state, OPEN_ARRAY, m.call(m.site((follow,), False), self.places.array))

    def number(self, state: int, follow: int, integer: bool = False) -> None:
        """Read any number, or any integer, then on in `follow`."""
        m, p = self.machine, self.places
        start, fragment = (p.integer_start, p.integer) if integer else (p.number_start, p.number)
        site = m.site((follow,), True)
        m.enter(state, start, fragment, site)
        m.twins.setdefault(state, (start, site))

    def anything(self, state: int, follow: int) -> None:
        """Read any value, then on in `follow`."""
        self.string(state, follow)
        self.any_object(state, follow)
        self.any_array(state, follow)
        self.number(state, follow)
        for word in self.places.words:
            self.word(state, word, follow)

    def line(self, state: int, follow: int) -> None:
        """Read a line break and an indentation, then on in `follow`, which knows no white space."""
        if self.layout.flexible:
            m = self.machine
            m.late(state, NEWLINE, m.call(m.site((follow,), True), self.places.indent))

    def separator(self, state: int, follow: int) -> None:
        """Read a comma, then on in `follow`, which reads what comes next without white space."""
        m = self.machine
        if self.layout.flexible:
            spaced = self._spaced(follow)
            m.edge(state, COMMA, spaced)
            self.line(spaced, follow)
        else:
            m.chain(state, self.layout.comma, follow)

    def colon(self, state: int, follow: int) -> None:
        """Read a colon, then on in `follow`."""
        m = self.machine
        if self.layout.flexible:
            m.edge(state, ord(":"), self._spaced(follow))
        else:
            m.chain(state, self.layout.colon, follow)

    def _spaced(self, follow: int) -> int:
        """Return a state that reads what `follow` does, after a space or none."""
        m = self.machine
        spaced = m.state()
        m.copy(spaced, follow)
        m.late(spaced, SPACE, follow)
        like, site = m.twin(follow) if self.lazy else (-1, -1)
        if like == self.places.quote:
            m.twins[spaced] = self.places.spaced, site
        return spaced
