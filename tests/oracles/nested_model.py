"""A simulation of what tables with calls say, random ones, and one of a machine over bytes."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import numpy as np

import maskwright as mw
from maskwright.kernels.limits import UNREACHABLE
from maskwright.table.states import NestedState
from tests.strategies.tables import table_of

Place = tuple[int, tuple[int, ...]]


@dataclass
class Base:
    targets: dict[int, int]  # by token of the mask
    exits: dict[int, int] | None  # symbol by token


@dataclass
class Row:
    edges: dict[int, Any]  # by token: a state, ("action", number), or None for the dead state
    exits: dict[int, int] | None = None
    base: int | None = None
    push: int | None = None
    accepting: bool = False
    need: int = 0


@dataclass
class Site:
    targets: dict[int, Any]  # by symbol: a state, ("action", number) or ("leave", symbol)
    leaf: bool = False
    need: int = 0


class Far(NamedTuple):
    states: list[list[int]]
    sites: list[list[list[int]]]
    state_rooms: list[list[int]]
    site_rooms: list[list[list[int]]]


@dataclass
class Model:
    """What a nested table says, in sets and tuples."""

    size: int
    eos: int | None
    depth: int
    rows: list[Row]
    bases: list[Base]
    sites: list[Site]
    actions: list[tuple[list[int], int]]
    labels: list[int]
    shared_exits: list[dict[int, int]] = field(default_factory=list)

    def moves(self, place: Place) -> dict[int, Place]:
        node, stack = place
        end = len(self.rows)
        if node >= end:
            return {self.eos: place} if node == end and self.eos is not None else {}
        row = self.rows[node]
        found: dict[int, Place | None] = {}
        if row.base is not None:
            base = self.bases[row.base]
            below = stack if row.push is None else self.push(stack, row.push)
            if below is not None:
                for token, symbol in (base.exits or {}).items():
                    found[token] = self.resolve(below, symbol)
                for token, target in base.targets.items():
                    found[token] = self.enter(below, target)
        for token, symbol in (row.exits or {}).items():
            found[token] = self.resolve(stack, symbol)
        for token, target in row.edges.items():
            found[token] = None if target is None else self.enter(stack, target)
        if row.accepting and not stack and self.eos is not None:
            found[self.eos] = (end, ())
        return {token: reached for token, reached in found.items() if reached is not None}

    def frames(self, stack: tuple[int, ...]) -> int:
        return sum(not self.sites[k].leaf for k in stack)

    def push(self, stack: tuple[int, ...], site: int) -> tuple[int, ...] | None:
        if self.frames(stack) + self.sites[site].need > self.depth:
            return None
        stack = (*stack, site)
        return stack if self.frames(stack) <= self.depth and len(stack) <= self.depth + 1 else None

    def enter(self, stack: tuple[int, ...], target: Any) -> Place | None:
        pushes, state = ([], target) if isinstance(target, int) else self.actions[target[1]]
        below: tuple[int, ...] | None = stack
        for site in pushes:
            below = self.push(below, site)
            if below is None:
                return None
        return (state, below) if self.frames(below) + self.rows[state].need <= self.depth else None

    def resolve(self, stack: tuple[int, ...], symbol: int) -> Place | None:
        if not stack or symbol not in self.sites[stack[-1]].targets:
            return None
        target = self.sites[stack[-1]].targets[symbol]
        if isinstance(target, tuple) and target[0] == "leave":
            return self.resolve(stack[:-1], target[1])
        return self.enter(stack[:-1], target)

    def belonging(self) -> tuple[list[set[str]], list[set[str]]]:
        """Where rows, and what lies below sites, can be: inside of a fragment, or outside of all."""
        rows: list[set[str]] = [set() for _ in self.rows]
        sites: list[set[str]] = [set() for _ in self.sites]
        rows[0] = {"outside"}

        def enter(target: Any, where: set[str]) -> None:
            pushes, state = ([], target) if isinstance(target, int) else self.actions[target[1]]
            for k in pushes:
                sites[k] |= where
                where = {"inside"} if where else set()
            rows[state] |= where

        while True:
            before = [set(x) for x in (*rows, *sites)]
            for s, row in enumerate(self.rows):
                for target in row.edges.values():
                    if target is not None:
                        enter(target, rows[s])
                if row.base is not None:
                    if row.push is not None:
                        sites[row.push] |= rows[s]
                    for state in self.left_of_base(row):
                        enter(state, rows[s] if row.push is None else {"inside"} if rows[s] else set())
            for k, site in enumerate(self.sites):
                for target in site.targets.values():
                    if not (isinstance(target, tuple) and target[0] == "leave"):
                        enter(target, sites[k])
            if before == [*rows, *sites]:
                return rows, sites

    def ends(self) -> tuple[list[Any], int, list[Any]]:
        """The ends, how many of them fragments with calls have, and by which accepting rows end.

        An end is a symbol that leaves nothing behind, or those that all rows have whose first exit has one symbol.
        """
        where_rows, where_sites = self.belonging()
        found: list[Any] = []
        outer = 1
        for leaf in (False, True):
            for k, site in enumerate(self.sites):
                for y in sorted(site.targets) if where_sites[k] and site.leaf is leaf else ():
                    if self.labels[y] >= 0 and y not in found:
                        found.append(y)
            outer = outer if leaf else max(1, len(found))
        found = found or [None]
        own: list[Any] = [found[0]] * len(self.rows)
        groups: dict[int, list[int]] = {}
        for s, row in enumerate(self.rows):
            if row.accepting and "inside" in where_rows[s] and len(found) > 1:
                own[s] = None
                exits = [y for t, y in sorted((row.exits or {}).items()) if t not in row.edges]
                if exits:
                    groups.setdefault(exits[0], []).append(s)
        for members in groups.values():
            exits = [{y for t, y in self.rows[s].exits.items() if t not in self.rows[s].edges} for s in members]
            found.append(("exits", frozenset.intersection(*map(frozenset, exits)), members[0]))
            for s in members:
                own[s] = found[-1]
        return found, outer, own

    def left_of_base(self, row: Row) -> set[int]:
        """Where a row's own edges and exits leave its base to lead."""
        own = {**(row.exits or {}), **row.edges}
        return {state for token, state in self.bases[row.base].targets.items() if token not in own}

    def distances(self) -> Far:
        """What is least of states and sites by ends, over what is always allowed, by passes until nothing changes.

        Frames, where states need some and there are several ends, then tokens over ways with as few frames as that.
        """
        frames = None
        if any(row.need for row in self.rows) and len(self.ends()[0]) > 1:
            frames = self.least(None, True)
        tokens = self.least(frames, False)
        return Far(*tokens, *(frames or ([], [])))

    @functools.cached_property
    def far(self) -> Far:
        return self.distances()

    def least(self, rooms: Any, of_frames: bool) -> tuple[Any, Any]:
        tight = any(row.need for row in self.rows)
        ends, outer, own_end = self.ends()
        where_rows, where_sites = self.belonging()
        states = [dict.fromkeys(ends, UNREACHABLE) for _ in self.rows]
        sites = [{end: dict.fromkeys(ends[:outer], UNREACHABLE) for end in ends} for _ in self.sites]

        def needed(target: Any) -> int:
            pushes, state = ([], target) if isinstance(target, int) else self.actions[target[1]]
            most, frames = 0, 0
            for k in pushes:
                most = max(most, frames + self.sites[k].need)
                frames += not self.sites[k].leaf
            return max(most, frames + self.rows[state].need)

        def room_of(s: int, end: Any) -> int:
            return 0 if rooms is None else rooms[0][s][ends.index(end)]

        def room_below(k: int, end: Any, other: Any) -> int:
            return 0 if rooms is None else rooms[1][k][ends.index(end)][ends.index(other)]

        def ways(target: Any, below: int = 0) -> dict[Any, list[tuple[int, int]]]:
            """By end: the room and the tokens of each way there; of frames alone, the room."""
            pushes, state = ([], target) if isinstance(target, int) else self.actions[target[1]]
            opened = [sum(not self.sites[k].leaf for k in pushes[:i]) + below for i in range(len(pushes) + 1)]
            need = below + needed(target)
            if of_frames:
                found = {end: [(max(need, opened[-1] + n), 0)] for end, n in states[state].items()}
            else:
                found = {end: [(max(need, opened[-1] + room_of(state, end)), n)] for end, n in states[state].items()}
            for k, frames in reversed(list(zip(pushes, opened, strict=False))):
                found = returned(k, frames, found)
            return found

        def returned(k: int, frames: int, found: Any) -> dict[Any, list[tuple[int, int]]]:
            out: dict[Any, set[tuple[int, int]]] = {d: set() for d in ends[:outer]}
            for end, several in found.items():
                for d, n in sites[k][end].items():
                    if of_frames:
                        out[d] |= {(max(room, frames + n), 0) for room, _ in several}
                    else:
                        out[d] |= {(max(room, frames + room_below(k, end, d)), n + more) for room, more in several}
            return {d: list(several) for d, several in out.items() if several}

        def least_of(target: Any) -> dict[Any, list[tuple[int, int]]]:
            """The same of a code with no more room than each end takes: of actions too, one way only."""
            return {end: [min(several)] for end, several in ways(target).items()}

        def lower(where: dict[Any, int], found: Any, most: Any, more: int) -> None:
            for end, several in found.items():
                for room, tokens in several:
                    if of_frames:
                        where[end] = min(where[end], room)
                    elif room <= most(end):
                        where[end] = min(where[end], tokens + more)

        def left(target: Any, outside: bool) -> Any:
            """Where exits lead: a code, or another end, but for where nothing is below."""
            if isinstance(target, tuple) and target[0] == "leave":
                return {target[1]: [(0, 0)]} if target[1] in ends and not outside else {}
            return least_of(target)

        def with_room(found: Any, room: int) -> Any:
            return {end: [(max(room, own), n) for own, n in several] for end, several in found.items()}

        while True:
            before = [dict(x) for x in states], [{end: dict(x) for end, x in site.items()} for site in sites]
            for s, row in enumerate(self.rows):
                outside = "outside" in where_rows[s]

                def most(end: Any, s: int = s, row: Row = row) -> int:
                    return room_of(s, end) if rooms is not None else row.need if tight else 10**9

                if row.accepting and own_end[s] in states[s]:
                    states[s][own_end[s]] = 0
                own = {**(row.exits or {}), **row.edges}
                for t in row.edges.values():
                    if t is not None:
                        lower(states[s], least_of(t), most, 1)
                for t, y in (row.exits or {}).items():
                    if t not in row.edges:
                        lower(states[s], left(("leave", y), outside), most, 1)
                if row.base is None:
                    continue
                base = self.bases[row.base]
                site = None if row.push is None else self.sites[row.push]
                frames = 0 if site is None or site.leaf else 1
                need = 0 if site is None else max(frames, site.need)
                for token, state in base.targets.items():
                    if token not in own:
                        found = ways(state, frames)
                        found = found if site is None else returned(row.push, 0, found)
                        lower(states[s], with_room(found, need), most, 1)
                for token, symbol in (base.exits or {}).items():
                    if token in own or token in base.targets or self.labels[symbol] < 0:
                        continue
                    if site is None:
                        lower(states[s], left(("leave", symbol), outside), most, 1)
                    elif symbol in site.targets:
                        lower(states[s], with_room(left(site.targets[symbol], outside), need), most, 1)
            for k, site in enumerate(self.sites):
                outside = "outside" in where_sites[k]
                for y, target in site.targets.items() if where_sites[k] else ():
                    there = {end: n for end, n in left(target, outside).items() if end in ends[:outer]}
                    for end in ends:

                        def most(other: Any, k: int = k, end: Any = end, need: int = site.need) -> int:
                            return room_below(k, end, other) if rooms is not None else need if tight else 10**9

                        if end == y or (isinstance(end, tuple) and y in end[1]):
                            lower(sites[k][end], there, most, end != y)
            if (states, sites) == before:
                by_end = [[min(UNREACHABLE, n) for n in found.values()] for found in states]
                return by_end, [[[min(UNREACHABLE, n) for n in x.values()] for x in site.values()] for site in sites]

    def distance(self, place: Place) -> int:
        """In how many tokens a place can be complete, as far as `distances` knows."""
        node, stack = place
        ends, frames = len(self.far.sites[0]), 0
        if node >= len(self.rows):
            return 0 if node == len(self.rows) and not stack else UNREACHABLE
        below = [0, *[UNREACHABLE] * (ends - 1)]
        for k in stack:
            rooms = self.far.site_rooms[k] if self.far.site_rooms else [[0] * ends] * ends
            below = [
                min(
                    n + m if frames + r <= self.depth else UNREACHABLE
                    for n, m, r in zip(steps, below, room, strict=False)
                )
                for steps, room in zip(self.far.sites[k], rooms, strict=True)
            ]
            frames += not self.sites[k].leaf
        rooms = self.far.state_rooms[node] if self.far.state_rooms else [0] * ends
        own = zip(self.far.states[node], below, rooms, strict=True)
        return min(n + m if frames + r <= self.depth or not self.far.state_rooms else UNREACHABLE for n, m, r in own)

    def table(self, **fields: Any) -> mw.TransitionTable:
        """The same as arrays."""
        rows, size = len(self.rows), self.size
        kind = np.min_scalar_type(size + 1)
        words = -(-size // 32)

        def coded(target: Any) -> int:
            if target is None:
                return rows + 1
            if isinstance(target, int):
                return target
            return -1 - target[1] if target[0] == "leave" else rows + 2 + target[1]

        def numbers(values: Any, dtype: Any = np.int32) -> np.ndarray:
            return np.array(list(values), dtype)

        def starts(lists: Any) -> np.ndarray:
            return np.cumsum([0, *map(len, lists)]).astype(np.int32)

        lists: list[dict[int, int]] = []

        def exits(symbols: dict[int, int] | None) -> int:
            if symbols is None:
                return -1
            if symbols not in lists:
                lists.append(dict(sorted(symbols.items())))
            return lists.index(symbols)

        masks: list[bytes] = []
        classes: list[dict[int, int]] = []
        base_mask, base_classes, targets = [], [], []
        for base in self.bases:
            bits = np.zeros(32 * words, bool)
            bits[list(base.targets)] = True
            masks.append(np.packbits(bits, bitorder="little").tobytes())
            base_mask.append(masks.index(masks[-1]))
            kinds = sorted(set(base.targets.values())) or [0]
            targets.append([2 * target for target in kinds])
            classes.append({t: kinds.index(s) for t, s in sorted(base.targets.items()) if kinds.index(s)})
            base_classes.append(len(classes) - 1)
        row_exit, base_exit = [exits(row.exits) for row in self.rows], [exits(base.exits) for base in self.bases]
        edges = [dict(sorted(row.edges.items())) for row in self.rows]
        sites = [dict(sorted(site.targets.items())) for site in self.sites]
        arrays: dict[str, Any] = {
            "rows.edge_start": starts(edges),
            "edges.token": numbers([*(t for row in edges for t in row), size, size + 1], kind),
            "edges.target": numbers(coded(target) for row in edges for target in row.values()),
            "rows.accepting": numbers((row.accepting for row in self.rows), bool),
            "rows.base": numbers(-1 if row.base is None else row.base for row in self.rows),
            "bases.masks": np.frombuffer(b"".join(masks), "<u4").reshape(-1, words).astype(np.uint32),
            "bases.mask": numbers(base_mask),
            "bases.class_list": numbers(base_classes),
            "bases.target_start": starts(targets),
            "bases.target": numbers(code for codes in targets for code in codes),
            "classes.start": starts(classes),
            "classes.token": numbers((t for group in classes for t in group), kind),
            "classes.number": numbers(k for group in classes for k in group.values()),
            "actions.state": numbers(state for _, state in self.actions),
            "actions.push_start": starts([pushes for pushes, _ in self.actions]),
            "actions.push": numbers(site for pushes, _ in self.actions for site in pushes),
            "exits.of_row": numbers(row_exit) if max(row_exit, default=-1) >= 0 else numbers([]),
            "exits.of_base": numbers(base_exit) if max(base_exit, default=-1) >= 0 else numbers([]),
            "exits.start": starts(lists),
            "exits.token": numbers((t for symbols in lists for t in symbols), kind),
            "exits.symbol": numbers(y for symbols in lists for y in symbols.values()),
            "sites.start": starts(sites),
            "sites.symbol": numbers(y for site in sites for y in site),
            "sites.target": numbers(coded(target) for site in sites for target in site.values()),
            "exits.label": numbers(self.labels),
            "sites.is_leaf": numbers((site.leaf for site in self.sites), bool),
        }
        if any(row.push is not None for row in self.rows):
            arrays["sites.of_row"] = numbers(-1 if row.push is None else row.push for row in self.rows)
        if any(row.need for row in self.rows):
            arrays["rows.frames_required"] = numbers(row.need for row in self.rows)
        if any(site.need for site in self.sites):
            arrays["sites.frames_required"] = numbers(site.need for site in self.sites)
        arrays |= {name.replace("__", "."): value for name, value in fields.items()}
        return table_of(arrays, vocab_size=size, eos=self.eos, depth=self.depth)


def random_model(seed: int) -> Model:
    """Anything that nested tables can say, sensible or not: leaves below other frames, needs that mean nothing."""
    rng = np.random.default_rng(seed)
    size = int(rng.choice([3, 8, 31, 33, 64, 70, 300]))
    rows, sites, symbols = int(rng.integers(1, 8)), int(rng.integers(1, 6)), int(rng.integers(1, 7))
    eos = None if rng.random() < 0.3 else int(rng.integers(size))
    tokens = [t for t in range(size) if t != eos]
    leaf = (rng.random(sites) < 0.3).tolist()
    needs = rng.random() < 0.6
    depth = int(rng.integers(0, 5))

    def need() -> int:
        return int(rng.integers(0, 3)) if needs and rng.random() < 0.4 else 0

    def pick(most: int) -> list[int]:
        return [int(t) for t in rng.choice(tokens, int(rng.integers(0, min(most, len(tokens)) + 1)), replace=False)]

    actions = []
    for _ in range(int(rng.integers(0, 5))):
        pushes = [int(k) for k in rng.integers(sites, size=int(rng.integers(1, 4)))]
        pushes = [k for k in pushes[:-1] if not leaf[k]] + pushes[-1:]
        actions.append((pushes, int(rng.integers(rows))))

    def code() -> Any:
        if actions and rng.random() < 0.6:
            return ("action", int(rng.integers(len(actions))))
        return int(rng.integers(rows))

    def symbols_of(most: int) -> dict[int, int]:
        return {t: int(rng.integers(symbols)) for t in pick(most)}

    bases = [
        Base(
            {t: int(rng.integers(rows)) for t in (pick(6) if rng.random() < 0.5 else pick(size))},
            symbols_of(12) if rng.random() < 0.7 else None,
        )
        for _ in range(int(rng.integers(0, 4)))
    ]
    table_rows = []
    for _ in range(rows):
        own = {t: None if rng.random() < 0.2 else code() for t in pick(int(rng.choice([1, 4, 12])))}
        exits = {t: y for t, y in symbols_of(8).items() if t not in own} if rng.random() < 0.6 else None
        based = bool(bases) and rng.random() < 0.6
        table_rows.append(
            Row(
                own, exits, int(rng.integers(len(bases))) if based else None,
                int(rng.integers(sites)) if based and rng.random() < 0.5 else None, bool(rng.random() < 0.3), need(),
            )
        )  # fmt: skip
    table_sites, density = [], float(rng.choice([0.7, 1.0]))
    for k in range(sites):
        present = np.flatnonzero(rng.random(symbols) < density).tolist()
        targets = {y: ("leave", int(rng.integers(symbols))) if rng.random() < 0.3 else code() for y in present}
        table_sites.append(Site(targets, leaf[k], need()))
    labels = np.where(rng.random(symbols) < 0.6, rng.integers(0, 3, symbols), -1).tolist()
    return Model(size, eos, depth, table_rows, bases, table_sites, actions, labels)


def random_nested(seed: int) -> mw.TransitionTable:
    return random_model(seed).table()


def state_of(table: mw.TransitionTable, places: list[Place]) -> NestedState:
    stack = np.zeros((len(places), table.slots), np.int32)
    for i, (_, sites) in enumerate(places):
        stack[i, : len(sites)] = sites
    heights = np.array([len(sites) for _, sites in places], np.int32)
    return NestedState(np.array([node for node, _ in places], np.int64), stack, heights)


def some_places(model: Model, seed: int, most: int = 12) -> list[Place]:
    """Places that tokens lead to, and others that only fit into the arrays."""
    rng = np.random.default_rng(seed)
    found: list[Place] = [(0, ()), (len(model.rows), ()), (len(model.rows) + 1, ())]
    for _ in range(most):
        height = int(rng.integers(0, model.depth + 2))
        stack = tuple(int(k) for k in rng.integers(len(model.sites), size=height))
        found.append((int(rng.integers(len(model.rows))), stack))
    for place in list(found):
        for _ in range(2):
            following = model.moves(place)
            if following:
                place = following[sorted(following)[int(rng.integers(len(following)))]]
                found.append(place)
    return found


ROOMY = (153, 248, 338, 597, 760, 826, 852)  # models of which some ends take frames that others do not
TOKENS = [
    *"[],1\"a()", "[[", "]]", "],", ",1", '["', '"]', '"a', 'a"', 'a",', '"]]', "[]", "])", "([", "1]", '"],[', ",[[",
    "]],", "aa", 'aaa"]', "()", "[1,", ")]", '","',
]  # fmt: skip


class PushdownMachine:
    """A machine over bytes with calls: arrays of 1, of strings and of records; a record is a list in parentheses.

    After a string of an odd number of a only one of an even number or the end may follow: strings have labels, and
    the same fragment is entered where both are taken and where only one is.
    """

    START, END, ARRAY, ITEM, NEXT, ODD, EVEN, RECORD, CLOSE, AFTER_ODD = range(10)
    ROOT, IN_ARRAY, IN_RECORD, AFTER_STRING = range(4)  # where a call returns to
    RETURN: ClassVar = {
        (ROOT, 0): END,
        (ROOT, 1): END,
        (IN_ARRAY, 0): ITEM,
        (IN_ARRAY, 1): AFTER_ODD,
        (IN_RECORD, 0): CLOSE,
        (AFTER_STRING, 0): ITEM,
    }

    def step(self, state: int, byte: str) -> tuple[str, Any]:
        value = {"[": (self.ARRAY, False), '"': (self.EVEN, True), "(": (self.RECORD, False)}
        if state in (self.START, self.ARRAY, self.NEXT):
            if byte == "]" and state == self.ARRAY:
                return "return", 0
            if byte == "1":
                return "go", self.END if state == self.START else self.ITEM
            if byte in value:
                return "call", (self.ROOT if state == self.START else self.IN_ARRAY, *value[byte])
        if state == self.ITEM and byte in ",]":
            return ("go", self.NEXT) if byte == "," else ("return", 0)
        if state == self.AFTER_ODD and byte in ",]":
            return ("go", 10) if byte == "," else ("return", 0)
        if state == 10 and byte == '"':
            return "call", (self.AFTER_STRING, self.EVEN, True)
        if state in (self.ODD, self.EVEN) and byte in 'a"':
            odd = state == self.ODD
            return ("go", self.EVEN if odd else self.ODD) if byte == "a" else ("return", int(odd))
        if state == self.RECORD and byte == "[":
            return "call", (self.IN_RECORD, self.ARRAY, False)
        if state == self.CLOSE and byte == ")":
            return "return", 0
        return "dead", None


def bound(depth: int, tokens: list[str] = TOKENS) -> tuple[Model, list[str]]:
    """The model that binding the machine to tokens gives; the last token is EOS."""
    machine = PushdownMachine()
    eos = len(tokens)
    symbols: dict[tuple[int, str], int] = {}
    actions: dict[tuple[tuple[int, ...], int], int] = {}
    pending: list[tuple[int, int]] = []
    sites = [
        Site({}, leaf, need) for leaf in (False, True) for need in (0, 0, 0, 0)
    ]  # ROOT, IN_ARRAY, IN_RECORD; leaves
    # going on after a record's list needs nothing; a call inside it needs room for what it calls, by its entry

    def run(state: int, text: str) -> Any:
        """Where a text leads: (pushes, state), ("left", symbol), or None."""
        pushed: list[int] = []
        for i, byte in enumerate(text):
            kind, what = machine.step(state, byte)
            if kind == "dead":
                return None
            if kind == "go":
                state = what
            elif kind == "call":
                pushed.append(what[0] + 4 * what[2])
                state = what[1]
            elif pushed:
                state = machine.RETURN[pushed.pop() % 4, what]
            else:
                name = what, text[i + 1 :]
                if name not in symbols:
                    symbols[name] = len(symbols)
                    pending.append(name)
                return "left", symbols[name]
        return tuple(pushed), state

    def coded(found: Any) -> Any:
        if found[0] == "left":
            return "leave", found[1]
        if not found[0]:
            return found[1]
        return "action", actions.setdefault(found, len(actions))

    rows = []
    for s in range(11):
        edges, exits = {}, {}
        for t, text in enumerate(tokens):
            found = run(s, text)
            if found is not None:
                code = coded(found)
                if isinstance(code, tuple) and code[0] == "leave":
                    exits[t] = code[1]
                else:
                    edges[t] = code
        rows.append(Row(edges, exits or None, None, None, s == PushdownMachine.END, int(s == PushdownMachine.RECORD)))
    while pending:
        label, rest = pending.pop()
        for k, site in enumerate(sites):
            if (k % 4, label) not in machine.RETURN:
                continue
            found = run(machine.RETURN[k % 4, label], rest)
            if found is not None:
                site.targets[symbols[label, rest]] = coded(found)
    labels = [label if not rest else -1 for label, rest in symbols]
    model = Model(
        len(tokens) + 1, eos, depth, rows, [], sites, [(list(pushes), state) for pushes, state in actions], labels
    )
    # strings share a base of their own: what stays inside and what leaves
    for s in (PushdownMachine.EVEN, PushdownMachine.ODD):
        inside = {t: target for t, target in rows[s].edges.items() if isinstance(target, int)}
        model.bases.append(Base(inside, rows[s].exits))
        rows[s].edges = {t: target for t, target in rows[s].edges.items() if t not in inside}
        rows[s].exits, rows[s].base = None, len(model.bases) - 1
    return model, [*tokens, "<eos>"]


def sets_of(words: np.ndarray, size: int) -> list[set[int]]:
    """Return the tokens that each mask allows."""
    words = np.ascontiguousarray(np.atleast_2d(words)).astype("<u4")
    bits = np.unpackbits(words.view(np.uint8), axis=1, bitorder="little")
    assert not bits[:, size:].any()
    return [set(np.flatnonzero(row).tolist()) for row in bits]
