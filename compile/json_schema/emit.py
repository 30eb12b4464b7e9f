"""From the skeleton of a schema to a machine: bytes, punctuation, keys, calls.

An object or array that stands in one place only is written out there. One that stands in several places is a fragment
of its own, which they call. Strings and numbers are always called: most of them are the library's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from ...automata.budget import Meter
from ...automata.pushdown import PushdownMachine
from ...automata.state_ranges import DEAD, RETURN
from ...lazy.pushdown.shortest_ends import Anchored
from .emit_keys import Behind, KeyEmitter
from .emit_scalars import Follow, ScalarEmitter
from .in_frame import EmitContext
from .layout import CLOSE_ARRAY, CLOSE_OBJECT, OPEN_ARRAY, OPEN_OBJECT, QUOTE
from .library import Library, frames
from .nesting import Nesting
from .shortest import Anchor, ShortestTexts
from .skeleton import AnyOrder, ArrayAutomaton, ContainerAutomaton, ObjectAutomaton, ObjectState, Step, Value

_WRITING = "writing out a schema"
_AT_ONCE = 64  # states that are written between two looks at the clock
_AT_FIRST = 1200  # states of a lazy table that are written before a text comes to them


def emit(root: Value, library: Library, meter: Meter) -> PushdownMachine:
    """Return the machine of the texts that `root` allows."""
    emitter = Emitter((root,), library, meter)
    emitter.finish()
    return emitter.machine


class Emitter:
    """Writes the machine of a skeleton; if it is `lazy`, the states behind a key or bracket are left for later.

    roots: the values that stand at the top, as often as they do. Here that is one, which is the whole text. depth: the
    most frames of a lazy machine; None for one that is not lazy.
    """

    def __init__(self, roots: Sequence[Value], library: Library, meter: Meter, depth: int | None = None) -> None:
        self.roots = roots
        self._nesting = Nesting(roots)
        height = self._nesting.height
        self._has_any_order = any(
            isinstance(each, ObjectAutomaton) and each.any_order for each in self._nesting.containers
        )  # known here, as a machine may be freed when modules are gone
        self.context = EmitContext(library, meter, lazy=depth is not None, recurs=height is None)
        self.machine = self.context.machine
        self.machine.anything, self.machine.height = self._nesting.calls_library, height
        self.scalars = ScalarEmitter(self.context)
        self._fragments: dict[int, int] = {}  # first state of each object and array that is called
        self.anchors: dict[int, Anchor] = {}  # where the states of a lazy machine that are left for later stand
        # whether the frames suffice for all that the schema may open
        self._fits = depth is not None and height is not None and height <= frames(self.machine, depth)
        self.is_read = False  # whether texts come to states already
        self._whole()

    def _whole(self) -> None:
        m, (root,) = self.machine, self.roots
        end = m.state()
        m.accepting.add(end)
        if root.number is not None:  # at the end of everything a number ends without a further byte
            self.scalars.last_number(root.number)
        self.value(0, root, (end,), number=False)

    def begin(self, meter: Meter) -> None:
        """Write the states that texts come to first, but none that is much work; meter: of all later writing."""
        m = self.machine
        left = min(_AT_FIRST, (self.context.meter.budget.states - m.size) // 2)
        while left > 0 and (done := m.spread(_AT_ONCE, alone=False)):
            left -= done
            self.context.meter.check(states=m.size, doing=_WRITING)
        self.context.meter, self.is_read = meter, True

    def finish(self) -> None:
        """Write all states that were left for later."""
        m = self.machine
        while m.spread(_AT_ONCE):
            self.context.meter.check(states=m.size, doing=_WRITING)

    def release(self) -> None:
        """Free what no text will reach any more: a skeleton that recurs holds itself."""
        self.machine.pending.clear()
        if self._has_any_order:
            return  # it may be written again
        for automaton in self._nesting.containers:
            automaton.states.clear()

    def frames_bound(self) -> int | None:
        """Return how many frames suffice to leave whatever may be open; None where the depth is never reached."""
        if self._fits:
            return 0 if self.machine.anything else None
        return self._nesting.frames_bound()

    @property
    def has_shortest_texts(self) -> bool:
        """Whether `anchor_of` can be called: not where members may come in any order."""
        return not self._has_any_order

    def anchor_of(self) -> Callable[[int], Anchored | None]:
        """Return the function that says of a state that was left for later how far the end of what it is in is."""
        texts = ShortestTexts(self._nesting, self.context.library.layout, limited=not self._fits)
        anchors = self.anchors

        def anchored(state: int) -> Anchored | None:
            anchor = anchors.get(state)
            return None if anchor is None else Anchored(*texts.after(anchor), anchor.ends)

        return anchored

    def later(self, write: Callable[[int], None], automaton: ContainerAutomaton, at: int | Step, ends: Follow) -> int:
        """Return a new state that is left for later; see `Anchor` for where it stands."""
        state = self.machine.later(write)
        if self.context.lazy:
            self.anchors[state] = Anchor(automaton, at, ends)
        return state

    # ------------------------------------------------------------------------------------------------ values

    def value(self, state: int, value: Value, follow: Follow, number: bool = True) -> None:
        """Read a value in `state`, then on in follow[label]; number: whether numbers are read here too."""
        writer = self.context.writer
        for word, label in value.literals.items():
            writer.word(state, word, follow[label])
        if number and value.number is not None:
            self.scalars.number(state, value.number, follow)
        if value.string is not None:
            self.scalars.string(state, value.string, follow)
        array, members = value.array, value.object
        if array is not None:
            if array.free >= 0:
                writer.any_array(state, follow[array.free])
            else:
                self._opened(state, OPEN_ARRAY, array, follow, lambda first, ends: self._array(first, array, ends))
        if members is not None:
            if members.free >= 0:
                writer.any_object(state, follow[members.free])
            else:
                self._opened(
                    state, OPEN_OBJECT, members, follow, lambda first, ends: self._object(first, members, ends)
                )

    def _opened(
        self, state: int, opener: int, automaton: ContainerAutomaton, follow: Follow,
        write: Callable[[int, tuple[int, ...]], None],
    ) -> None:  # fmt: skip
        """Read an opening bracket, and what it opens: here, or by a call where it stands in several places.

        write: reads the inside from a state on, and leads from its ends to a code by label.
        """
        m = self.machine
        if self._nesting.is_called(automaton):
            first = self._fragments.get(id(automaton))
            if first is None:
                ends = tuple(RETURN - label for label in range(len(follow)))
                called = self.later(lambda state: write(state, ends), automaton, -1, ends)
                first = self._fragments[id(automaton)] = called
            m.edge(state, opener, m.call(m.site(follow, False), first))
        else:
            here = self.later(lambda state: write(state, follow), automaton, -1, follow)
            m.edge(state, opener, here)

    def _array(self, first: int, array: ArrayAutomaton, ends: tuple[int, ...]) -> None:
        """Read an array after its opening bracket; ends: codes by label."""
        m = self.machine
        here = array.states[0]
        if here.item is not None:
            start = _Array(self, array, ends).item(0, here.item)
            m.copy(first, start)
            self.context.writer.line(first, start)
        if here.close >= 0:
            m.late(first, CLOSE_ARRAY, ends[here.close])

    def _object(self, first: int, automaton: ObjectAutomaton, ends: tuple[int, ...]) -> None:
        """Read an object after its opening brace; ends: codes by label."""
        m = self.machine
        written = (_Unordered if automaton.any_order else _Object)(self, automaton, ends)
        key, quoted = written.next_key(0)
        if key >= 0:
            m.edge(first, QUOTE, quoted)
            self.context.writer.line(first, key)
        close = written.close(0)
        if close >= 0:
            m.edge(first, CLOSE_OBJECT, ends[close])

    def closed(self, state: int, bracket: int, label: int, ends: tuple[int, ...], known: dict[int, int]) -> None:
        """Read a closing bracket, on a line of its own perhaps. known: the states that read nothing else, by label."""
        m = self.machine
        m.edge(state, bracket, ends[label])
        if self.context.library.layout.flexible:
            found = known.get(label)
            if found is None:
                found = known[label] = m.state()
                m.edge(found, bracket, ends[label])
            self.context.writer.line(state, found)


class _Array:
    """An array, each of whose states is written when a text comes to it. ends: codes by label."""

    __slots__ = ("_after", "_automaton", "_before", "_closing", "_emitter", "_ends", "_states")

    def __init__(self, emitter: Emitter, automaton: ArrayAutomaton, ends: tuple[int, ...]) -> None:
        self._emitter, self._automaton, self._states, self._ends = emitter, automaton, automaton.states, ends
        self._before: dict[int, int] = {}  # the state that reads the next item
        self._after: dict[int, int] = {}  # the state that reads a comma or the end
        self._closing: dict[int, int] = {}

    def item(self, i: int, step: Step) -> int:
        """Return the state before the item that a state of the automaton reads."""
        found = self._before.get(i)
        if found is None:
            found = self._before[i] = self._emitter.machine.state()
            follow = tuple([self._behind(j) if j >= 0 else -1 for j in step.following])
            self._emitter.value(found, step.value, follow)
        return found

    def _behind(self, i: int) -> int:
        """Return the state behind an item, in a state of the automaton."""
        found = self._after.get(i)
        if found is None:
            found = self._emitter.later(partial(self._write, i), self._automaton, i, self._ends)
            self._after[i] = found
        return found

    def _write(self, i: int, state: int) -> None:
        """Write the state behind an item."""
        here, emitter = self._states[i], self._emitter
        if here.item is not None:
            emitter.context.writer.separator(state, self.item(i, here.item))
        if here.close >= 0:
            emitter.closed(state, CLOSE_ARRAY, here.close, self._ends, self._closing)


class _Object:
    """An object, each of whose states is written when a text comes to it. ends: codes by label."""

    __slots__ = ("_after", "_automaton", "_closing", "_emitter", "_ends", "_keys", "_named", "_opened")

    def __init__(self, emitter: Emitter, automaton: ObjectAutomaton, ends: tuple[int, ...]) -> None:
        self._emitter, self._automaton, self._ends = emitter, automaton, ends
        self._after: dict[int, int] = {}  # the state behind a member, by state of the automaton
        self._named: dict[Step, int] = {}  # the state behind a key, by step
        self._opened: dict[int, tuple[int, int]] = {}  # the state that reads the next key, and the code of its quote
        self._closing: dict[int, int] = {}
        self._keys = KeyEmitter(emitter.context, emitter.scalars, automaton)

    def close(self, i: int) -> int:
        """Return the label of an object that ends in a state of the automaton, or -1."""
        return self._automaton.states[i].close

    def _next(self, i: int) -> tuple[ObjectState, Behind]:
        """Return a state of the automaton, and the function that gives the states behind its keys."""
        return self._automaton.states[i], self._behind

    def _behind(self, step: Step) -> int:
        """Return the state behind a key."""
        found = self._named.get(step)
        if found is None:
            found = self._emitter.later(partial(self._value, step), self._automaton, step, self._ends)
            self._named[step] = found
        return found

    def _value(self, step: Step, named: int) -> None:
        """Write the state behind a key, and the value that comes there."""
        state = self._emitter.machine.state()
        follow = tuple([self._then(j) if j >= 0 else -1 for j in step.following])
        self._emitter.value(state, step.value, follow)
        self._emitter.context.writer.colon(named, state)

    def _then(self, i: int) -> int:
        """Return the state behind a member, in a state of the automaton."""
        found = self._after.get(i)
        if found is None:
            found = self._emitter.later(partial(self._write, i), self._automaton, i, self._ends)
            self._after[i] = found
        return found

    def next_key(self, i: int) -> tuple[int, int]:
        """Return the state that reads the next key, and the code behind its quote; DEAD if there is none."""
        found = self._opened.get(i)
        if found is None:
            quoted, site = self._keys.opened(*self._next(i))
            if quoted == DEAD:
                found = DEAD, DEAD
            else:
                m = self._emitter.machine
                found = m.state(), quoted
                m.edge(found[0], QUOTE, quoted)
                if site >= 0:
                    m.twins[found[0]] = self._emitter.context.library.places.quote, site
            self._opened[i] = found
        return found

    def _write(self, i: int, state: int) -> None:
        """Write the state behind a member."""
        emitter = self._emitter
        key, _ = self.next_key(i)
        if key >= 0:
            emitter.context.writer.separator(state, key)
        close = self.close(i)
        if close >= 0:
            emitter.closed(state, CLOSE_OBJECT, close, self._ends, self._closing)


class _Unordered(_Object):
    """An object whose members come in any order: each set of keys that came has states of its own."""

    __slots__ = ("_guessed", "_states")

    def __init__(self, emitter: Emitter, automaton: ObjectAutomaton, ends: tuple[int, ...]) -> None:
        super().__init__(emitter, automaton, ends)
        self._states = AnyOrder(automaton, emitter.context.meter)
        self._guessed: set[int] = set()  # states behind members that were only expected

    def close(self, i: int) -> int:
        """Return the label of an object that ends in a state, or -1."""
        return self._states.close(i)

    def _next(self, i: int) -> tuple[ObjectState, Behind]:
        """Return what is left in a state, and the function that gives the states behind the keys that may still come.

        Texts come to few of these. The one behind the next key of the schema is written ahead of them, and those behind
        undeclared keys, as whatever was begun may become one.
        """
        emitter, states = self._emitter, self._states
        left, came = states.left(i, emitter.context.meter), states.came(i)
        steps = [(step, 1 << j) for j, step in enumerate(left.steps) if step is not None and not came >> j & 1]
        usual = self._automaton.unordered is None  # else it is much work to look ahead
        looks = usual and emitter.is_read and i not in self._guessed
        expected = [n for n, (_, key) in enumerate(steps) if key > came][:1] if looks else []
        steps += [(step, 0) for step in left.others.values()]
        first = emitter.machine.size

        def write(state: int) -> None:
            step, key = steps[state - first]
            following = states.following(step, came | key)
            if usual:
                emitter.machine.soon(self._then(following[0]))
            if state - first in expected:
                self._guessed.add(following[0])
            self._value(Step(step.value, following), state)

        named = {step: first + n for n, (step, _) in enumerate(steps)}
        emitter.machine.later(write, alone=True, count=len(steps))
        for n in (*expected, *range(len(steps) - len(left.others), len(steps))):
            emitter.machine.soon(first + n)
        return left, lambda step: named.get(step, DEAD)

    def _then(self, i: int) -> int:
        """Return the state behind a member, which is left alone: there is one for each set of keys."""
        found = self._after.get(i)
        if found is None:
            found = self._after[i] = self._emitter.machine.later(partial(self._write, i), alone=True)
        return found
