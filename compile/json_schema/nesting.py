"""How the objects and arrays of a skeleton stand inside one another: in how many places, and how many at once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain

from ...kernels.limits import MOST_DEPTH
from .algebra import ARRAY, OBJECT, Node, Reference
from .skeleton import ArrayState, ContainerAutomaton, ObjectAutomaton, ObjectState, Step, Value, all_steps

_HOLDS_NODES = frozenset((0, ARRAY, OBJECT))
_SPARE = 16  # frames that are left at least for values that turn up later
_ANY = -1  # the name of any object or array, which the library reads; others are named by their identity


class Nesting:
    """In how many places each object and array below some values stands, and how many may be open at once.

    An object or array with one place is written out there. One with several is called, and a call takes a frame.

    roots: the values at the top, each as often as it stands there.
    """

    def __init__(self, roots: Sequence[Value]) -> None:
        self.containers: list[ContainerAutomaton] = []  # all that have states
        self.calls_library = False  # whether any object or any array may stand somewhere
        self.height: int | None = 0  # how many objects and arrays may be called at once; None where some recur
        self._places: defaultdict[int, int] = defaultdict(int)
        # whether values may turn up later, below objects in any order, and how many may be open at once then
        self._grows, self._levels = False, 0
        self._count(roots)

    def is_called(self, automaton: ContainerAutomaton) -> bool:
        """Return whether an object or array stands in several places, which call it, or may do so later."""
        return self._grows or self._places[id(automaton)] > 1

    def _count(self, roots: Sequence[Value]) -> None:
        places = self._places
        todo = list({id(root): root for root in roots}.values())
        seen = {id(root) for root in todo}
        below: dict[int, set[int]] = {}  # names of the objects and arrays directly within each
        top: set[int] = set()
        for root in roots:
            top.update(_containers(root))
            for name in set(_containers(root)):
                places[name] += 1
        while todo:
            value = todo.pop()
            for automaton in (value.object, value.array):
                if automaton is None or automaton.free >= 0 or id(automaton) in below:
                    continue
                inside = below[id(automaton)] = set()
                self.containers.append(automaton)
                if isinstance(automaton, ObjectAutomaton) and automaton.unordered is not None:
                    levels = automaton.unordered.levels
                    self._grows = True
                    self._levels = max(self._levels, MOST_DEPTH if levels is None else levels)
                # in any order, the state behind a key is written once for each set of keys before it
                times = 2 if isinstance(automaton, ObjectAutomaton) and automaton.any_order else 1
                for step in all_steps(automaton):
                    value = step.value
                    for opened in (value.object, value.array):
                        if opened is not None:
                            name = _ANY if opened.free >= 0 else id(opened)
                            places[name] += times
                            inside.add(name)
                    if id(value) not in seen:
                        seen.add(id(value))
                        todo.append(value)
        self.calls_library = self._grows or _ANY in top or any(_ANY in inside for inside in below.values())
        height = self._height(top, below)
        self.height = None if height is None or self._levels == MOST_DEPTH else max(height, self._levels)

    def _height(self, top: set[int], below: Mapping[int, set[int]]) -> int | None:
        """Return how many objects and arrays may be called at once; None if some call themselves."""
        heights = {_ANY: 0}
        open_ones: set[int] = set()
        todo = [(name, False) for name in top]
        while todo:
            name, done = todo.pop()
            if done:
                open_ones.discard(name)
                heights[name] = self._highest(below[name], heights)
            elif name not in heights and name not in open_ones:
                open_ones.add(name)
                todo.append((name, True))
                for other in below[name]:
                    if other in open_ones:
                        return None
                    todo.append((other, False))
        return self._highest(top, heights)

    def _highest(self, names: Iterable[int], heights: Mapping[int, int]) -> int:
        """Return the most calls that one of some objects and arrays makes, its own included."""
        return max(
            (heights[name] + (name == _ANY or self._grows or self._places[name] > 1) for name in names), default=0
        )

    def frames_bound(self) -> int:
        """Return how many frames suffice to end any text that was begun; `MOST_DEPTH` where no number is sure to.

        The search goes by rounds: after n rounds it knows the states from which n frames suffice. In the first rounds
        every label must lead on; where that finds no more states, one that leads on is enough.
        """
        left: list[tuple[ContainerAutomaton, list[int]]] = [
            (automaton, list(range(len(automaton.states)))) for automaton in self.containers
        ]
        done: dict[int, set[int]] = {id(automaton): set() for automaton in self.containers}  # states that can end
        frames = -1
        for all_labels in (True, False):
            changed = True
            while changed and left:
                frames += 1
                before = {name: 0 in ended for name, ended in done.items()}
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
        if left:
            return MOST_DEPTH
        # a value behind a chosen key may be called, and need as many again: one frame more
        return max(2 * frames + 4, _SPARE) if self._grows else frames + 2

    def _ends(
        self, automaton: ContainerAutomaton, i: int, ended: set[int], before: Mapping[int, bool],
        done: Mapping[int, set[int]], all_labels: bool,
    ) -> bool:  # fmt: skip
        """Return whether state i of an object or array can reach the end.

        ended: its own states that can. before: which objects and arrays could end a round earlier, for those that are
        called. done: the states that can, by object and array.
        """
        state = automaton.states[i]
        if state.close >= 0:
            return True
        for step in _steps_to_the_end(state):
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
                if before[id(inside)] if self.is_called(inside) else 0 in done[id(inside)]:
                    return True
        return False


def levels_of(node: Node) -> int | None:
    """Return how many objects and arrays may be open at once in a formula, any object or array at the end as one.

    None where it recurs, or may do so: where it refers to a schema that is not compiled yet.
    """
    levels: dict[Node, int] = {}
    opened: set[Node] = set()
    todo = [(node, False)]
    while todo:
        node, done = todo.pop()
        if done:
            opened.discard(node)
            inside = max([levels[each] for each in _inside(node)], default=1)
            levels[node] = inside + (node.kind in (ARRAY, OBJECT))
        elif node in opened or (type(node) is Reference and not node.is_made):
            return None
        elif node not in levels:
            opened.add(node)
            todo.append((node, True))
            todo.extend([(each, False) for each in _inside(node)])
    return levels[node]


def _inside(node: Node) -> list[Node]:
    """Return the formulas that are parts of one, or of its members and items."""
    if type(node) is Reference:
        return [node.node]
    found: list[Node] = []
    todo = [node.args] if node.kind in _HOLDS_NODES else []
    while todo:
        for each in todo.pop():
            if isinstance(each, Node):
                found.append(each)
            elif type(each) is tuple:
                todo.append(each)
    return found


def _steps_to_the_end(state: ArrayState | ObjectState) -> Iterable[Step | None]:
    """Return the steps of a state, those first that probably lead to the end."""
    if isinstance(state, ArrayState):
        return (state.item,)
    # the last declared key is often a required one: if any step leads to the end, that one does
    return chain(reversed(state.steps[state.first : state.last]), state.others.values())


def _containers(value: Value) -> list[int]:
    """Return the names of the object and the array that may stand at a value."""
    return [
        _ANY if automaton.free >= 0 else id(automaton)
        for automaton in (value.object, value.array)
        if automaton is not None
    ]
