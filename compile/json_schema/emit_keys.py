"""The keys of one object in the machine of a schema: told apart by a trie, or by an automaton."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from ...automata.labelled import Labelled, leading_to
from ...automata.state_ranges import DEAD
from .contents import before_each, trimmed
from .emit_scalars import ScalarEmitter
from .escapes import has_spellings
from .fragments import come_narrowly, total_states
from .in_frame import EmitContext, InFrame
from .key_classes import partition
from .layout import BACKSLASH
from .skeleton import ObjectAutomaton, ObjectState, Regular, Step

MOST_KEYS = 1024  # of an object whose keys are a trie without rows: each of its sites has an entry for each key
_MANY = 256  # keys whose automaton is smaller than a trie for each state of the object

Behind = Callable[[Step], int]
"""What gives the state behind a key, by the step that the key takes."""


class Branch:
    """A place in the trie of an object's keys: behind `label`, which begins with the byte that leads here."""

    __slots__ = ("branches", "label", "ranks")

    def __init__(self, label: bytes, ranks: list[int]) -> None:
        self.label = label
        self.ranks = ranks  # the keys below by their place in the object's order, sorted; one of a whole key
        self.branches: list[Branch] = []


def trie_of(texts: Sequence[bytes]) -> Branch:
    """Return the trie of some texts, of which none is the beginning of another."""
    order = sorted(range(len(texts)), key=texts.__getitem__)
    root = Branch(b"", list(range(len(texts))))
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
                node.branches.append(Branch(first[depth:], [order[low]]))
            else:
                below = Branch(first[depth:common], sorted(order[low:end]))
                node.branches.append(below)
                todo.append((below, low, end, common))
            low = end
    return root


class KeyEmitter:
    """The keys of one object, in states that the states of the object share as far as they read the same.

    Without an automaton of keys they are a trie. Which of its states an object's state enters follows from the keys
    that may come next below each branch: usually those of a range in the order of the object, so that two places in
    two sorted lists say it.
    """

    def __init__(self, context: EmitContext, scalars: ScalarEmitter, automaton: ObjectAutomaton) -> None:
        self._context, self._scalars, self._automaton = context, scalars, automaton
        self._trie: Branch | None = None
        states = automaton.reading()
        language = automaton.language
        if (
            language is None
            and any(state.others for state in states)
            and (
                len(automaton.keys) > _MANY
                or any(has_spellings(key, context.library.layout.ascii) for key in automaton.keys)
            )
        ):
            # A key of several spellings is told from those that are not declared by its content. Of many keys, each
            # state of the object would have a trie of its own.
            language, _ = partition(automaton.keys, (), context.meter)
        self._language = None if language is None else KeyLanguage(context, scalars, automaton, language)
        # whether all states share one list of steps
        self._is_shared = not automaton.any_order and all(state.steps is states[0].steps for state in states)
        self._made: dict[tuple[object, ...], int] = {}  # states of the machine
        self._closed_trie: tuple[int, int] | None = None  # the trie without rows, where no other keys may come
        self._open_trie: int | None = None  # the first state of the trie without rows where others may
        self._behind = [DEAD] * len(automaton.keys)  # the states behind keys, as far as they have been asked for

    def opened(self, here: ObjectState, behind: Behind) -> tuple[int, int]:
        """Return where the opening quote of the next key leads in a state of the object, as a code; DEAD if nowhere.

        And the site that is pushed there where all keys but those declared are read as any string is, else -1.
        """
        if self._language is not None:
            return self._language.code(here, behind), -1
        if self._context.lazy and len(self._automaton.keys) <= MOST_KEYS:
            code, site = self._without_rows(here, behind)
            if code is not None:
                return code, site
        if self._trie is None:
            self._trie = trie_of([self._context.quoted(key)[1:] for key in self._automaton.keys])
        other = here.others.get(0)
        if other is not None:
            return self._open(self._trie, here, behind, behind(other)), -1
        live = any(_target(here, j, behind) != DEAD for j in range(here.first, here.last))
        return (self._closed(self._trie, here, behind) if live else DEAD), -1

    def _variant(self, here: ObjectState, behind: Behind) -> Callable[[Branch], tuple[int, ...]]:
        """Return the function that says what may come next below a branch, as far as states of the object differ."""
        if self._is_shared:
            first, last = here.first, here.last
            return lambda node: (bisect_left(node.ranks, first), bisect_left(node.ranks, last))
        return lambda node: tuple([_target(here, j, behind) for j in node.ranks])

    def _closed(self, trie: Branch, here: ObjectState, behind: Behind) -> int:
        """Return the state that reads one of the keys that may come next."""
        m = self._context.machine
        variant = self._variant(here, behind)
        todo: list[tuple[Branch, int]] = []

        def inside(node: Branch) -> int:
            """Return the state behind the first byte of a branch's label; DEAD if no key below may come next."""
            if not node.branches:
                target = _target(here, node.ranks[0], behind)
                if target == DEAD or len(node.label) == 1:
                    return target
                key: tuple[object, ...] = (id(node), target)
            elif (
                not any(_target(here, j, behind) != DEAD for j in node.ranks[slice(*variant(node))])
                if self._is_shared
                else all(target == DEAD for target in variant(node))
            ):
                return DEAD
            else:
                key = (id(node), *variant(node))
            state = self._made.get(key)
            if state is None:
                state = self._made[key] = m.state()
                if not node.branches:
                    m.chain(state, node.label[1:], target)
                else:
                    at = state
                    if len(node.label) > 1:
                        at = m.state()
                        m.chain(state, node.label[1:], at)
                    todo.append((node, at))
            return state

        key = (id(trie), *variant(trie))
        root = self._made.get(key)
        if root is None:
            root = self._made[key] = m.state()
            todo.append((trie, root))
        while todo:
            node, state = todo.pop()
            for branch in node.branches:
                target = inside(branch)
                if target != DEAD:
                    m.edge(state, branch.label[0], target)
        return root

    def _without_rows(self, here: ObjectState, behind: Behind) -> tuple[int | None, int]:
        """Return what `opened` does, for a trie without rows; None where the numbers of states have run out.

        One trie serves all states of the object in which a key that is not declared may come, as whatever was begun
        may still become such a key. Another serves all states where none may. A site says by label which keys may
        come, and where they lead: a site on the stack, or that of the use of the trie.
        """
        other = here.others.get(0)
        first, last, known = here.first, here.last, self._behind
        if not self._is_shared:
            targets = [_target(here, j, behind) for j in range(first, last)]
        else:
            for j in range(first, last):
                step = here.steps[j]
                if known[j] == DEAD and step is not None:
                    known[j] = behind(step)
            targets = known[first:last]
        if other is None and all(target == DEAD for target in targets):
            return DEAD, -1
        m, size = self._context.machine, len(self._automaton.keys)
        states = DEAD if other is None else behind(other), *(DEAD,) * first, *targets, *(DEAD,) * (size - last)
        if other is None:
            if self._closed_trie is None:
                self._closed_trie = self._words()
            return m.use(self._closed_trie, states), -1
        if self._open_trie is None:
            places, keys = self._context.library.places, self._automaton.keys
            escape = places.key_escape if all(map(str.isascii, keys)) else places.escape
            # no key has an escape here, as it would have several spellings, and an automaton
            self._open_trie = m.use(self._words(places.body, escape), None) if keys else places.body
        site = m.site(states, True)
        return None if self._open_trie is None else m.call(site, self._open_trie), site

    def _words(self, *others: int) -> tuple[int, int]:
        """Return the trie of all keys. others: the string and the escape of those that are not declared."""
        words = [self._context.quoted(key)[1:-1] for key in self._automaton.keys]
        return self._context.machine.trie(words, range(1, len(words) + 1), *others)

    def _open(self, trie: Branch, here: ObjectState, behind: Behind, other: int) -> int:
        """Return the state that reads a key that may come next, or any that is not declared, then `other`."""
        m, places = self._context.machine, self._context.library.places
        site = m.site((other,), True)
        # an escape must not spell what may still become a declared key
        escape = m.call(site, places.key_escape if all(map(str.isascii, self._automaton.keys)) else places.escape)
        variant = self._variant(here, behind)
        rows = self._context.library.machine.rows
        todo: list[tuple[Branch, int, int, int]] = []

        def state_at(node: Branch, depth: int, inside: int) -> int:
            """Return the state behind so many bytes of a branch's label; inside: that of a string."""
            key = (site, id(node), depth, *variant(node))
            state = self._made.get(key)
            if state is None:
                state = self._made[key] = m.state()
                m.enter(state, inside, places.string, site)
                if inside == places.body:
                    m.twins[state] = places.body, site  # which also says that any characters are read; see `_is_any`
                todo.append((node, depth, state, inside))
            return state

        root = state_at(trie, 0, places.body)
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
                    m.edge(state, byte, _target(here, branch.ranks[0], behind))
                else:
                    m.edge(state, byte, state_at(branch, read, int(rows[inside, byte])))
        return root


def _target(here: ObjectState, j: int, behind: Behind) -> int:
    """Return the state behind declared key j; DEAD where it may not come next."""
    step = here.steps[j] if here.first <= j < here.last else None
    return DEAD if step is None else behind(step)


class KeyLanguage:
    """The keys of one object, told apart by an automaton over their content.

    Label j < len(keys) is the declared key j, and label len(keys) + c an undeclared key of class c.
    """

    def __init__(
        self, context: EmitContext, scalars: ScalarEmitter, automaton: ObjectAutomaton, language: Labelled
    ) -> None:
        self._context, self._scalars, self._automaton = context, scalars, automaton
        self._language = _of_keys_that_come(language, automaton)
        self._fragments: dict[bytes, tuple[int, tuple[int, ...]]] = {}  # by the labels that may come next
        self._shared: dict[tuple[int, ...], bool] = {}  # see `_serves`
        self._contents: list[Labelled] = []  # kept alive, as they are known by their identity
        self._in_frame: InFrame | None = None
        self._before: tuple[NDArray[np.int64], NDArray[np.int32]] | None = None  # `states_before` of the language
        self._total: list[tuple[int, bool]] = []  # `total_states` of the language, and which of these are free

    def code(self, here: ObjectState, behind: Behind) -> int:
        """Return where the opening quote of the next key leads in a state of the object, DEAD if nowhere."""
        language = self._language
        targets = [DEAD] * (int(language.label.max()) + 1)  # by label
        for j in range(here.first, here.last):
            step = here.steps[j]
            if step is not None:
                targets[j] = behind(step)
        for c, step in here.others.items():
            targets[len(self._automaton.keys) + c] = behind(step)
        if all(target == DEAD for target in targets):
            return DEAD
        shared = self._serves((*here.others,))
        if self._context.in_frame:
            if self._in_frame is None:
                self._in_frame = InFrame(self._context, language)
            return self._in_frame.code(targets, self._in_frame.free if shared else self._alive(targets)[1])
        m = self._context.machine
        if shared:  # one automaton for all such states: a key that may not come next is an end that leads nowhere
            found = self._fragments.get(b"")
            if found is None:
                found = self._fragments[b""] = self._scalars.content(Regular(language))
            start, order = found
            return m.call(m.site(tuple([targets[label] for label in order]), True), start)
        code = self._as_it_is(targets) if self._context.by_content else None
        return self._told_apart(targets) if code is None else code

    def _alive(self, targets: list[int]) -> tuple[NDArray[np.bool_], int]:
        """Return from which states some key can be completed that may come, and the free state, or -1."""
        language = self._language
        arrays = language.class_of, language.transition
        if self._before is None:
            self._before = before_each(language)
            every = np.ones(len(language.label), np.bool_)
            self._total = [(state, come_narrowly(*arrays, state, every)) for state in total_states(*arrays).tolist()]
        ends = np.append(np.array(targets) != DEAD, False)[language.label]
        lives = leading_to(self._before, ends)
        # what comes narrowly before keys are gone does so behind them as well
        free = (s for s, sure in self._total if ends[s] and (sure or come_narrowly(*arrays, s, lives)))
        return lives, next(free, -1)

    def _as_it_is(self, targets: list[int]) -> int | None:
        """Return the code where only some keys may come of an automaton that is read as it is, None where it is not."""
        key = (np.array(targets) != DEAD).tobytes()
        found = self._fragments.get(key)
        if found is None:
            lives, free = self._alive(targets)
            if not lives[0]:
                return DEAD
            found = self._scalars.as_it_is(self._language, free, lives.astype(np.int32) - 1)
            if found is None:
                return None
            self._fragments[key] = found
        start, order = found
        m = self._context.machine
        return m.call(m.site(tuple([targets[label] for label in order]), True), start)

    def _told_apart(self, targets: list[int]) -> int:
        """Return the code where an automaton of the keys that may come is written out."""
        language = self._language
        states = [target for target in dict.fromkeys(targets) if target != DEAD]
        rank = {target: n for n, target in enumerate(states)}
        renamed = np.array([*[rank.get(target, -1) for target in targets], -1], np.int32)
        key = renamed.tobytes()
        found = self._fragments.get(key)
        if found is None:
            content = language._replace(label=renamed[language.label])
            lives = leading_to(before_each(language), content.label >= 0)
            if not lives[0]:
                return DEAD
            content = trimmed(content, lives)
            self._contents.append(content)
            found = self._fragments[key] = self._scalars.content(Regular(content))
        start, order = found
        m = self._context.machine
        return m.call(m.site(tuple([states[label] for label in order]), True), start)

    def _serves(self, others: tuple[int, ...]) -> bool:
        """Whether from everywhere in the automaton some key can be completed that is of these undeclared classes."""
        found = self._shared.get(others)
        if found is None:
            ends = np.isin(self._language.label, [len(self._automaton.keys) + c for c in others])
            found = self._shared[others] = bool(others) and bool(leading_to(before_each(self._language), ends).all())
        return found


def _of_keys_that_come(language: Labelled, automaton: ObjectAutomaton) -> Labelled:
    """Return the automaton of an object's keys without those that come next in none of its states, if any do."""
    ranges: dict[int, tuple[Sequence[Step | None], int, int]] = {}  # of lists of steps, which states share
    labels: set[int] = set()
    keys = len(automaton.keys)
    for here in automaton.reading():
        steps, first, last = ranges.get(id(here.steps), (here.steps, here.first, here.last))
        ranges[id(here.steps)] = steps, min(first, here.first), max(last, here.last)
        labels.update([keys + c for c in here.others])
    for steps, first, last in ranges.values():
        if automaton.required is not None:  # ranges mean nothing
            first, last = 0, keys
        labels.update([j for j in range(first, last) if steps[j] is not None])
    comes = np.isin(language.label, list(labels))
    if (comes | (language.label < 0)).all():
        return language
    lives = leading_to(before_each(language), comes)
    if not lives[0]:
        return language
    return trimmed(language._replace(label=np.where(comes, language.label, np.int32(-1))), lives)
