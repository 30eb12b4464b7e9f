"""An `Arena` says of each of its tables what the table says itself, whatever else is there, came or went."""

from __future__ import annotations

import dataclasses
import itertools
import random
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import maskwright as mw
from maskwright.runtime import numpy_ops, torch_ops
from maskwright.runtime.arena.arena import Arena
from maskwright.runtime.arena.arrays import ArenaArrays
from maskwright.runtime.arena.capacity import Capacity
from maskwright.runtime.arena.space import Space
from maskwright.runtime.decode import beam_search, sample_sequences
from maskwright.runtime.host import nested_masks
from maskwright.table.graph_checks import Common, leads_out
from maskwright.table.groups import (
    NO_ACTIONS,
    NO_SITES,
    NO_TRIE,
    Bases,
    Edges,
    Rows,
    TableArrays,
    TokenClasses,
    no_exits,
)
from maskwright.table.states import NestedState
from tests.marks import marked
from tests.support.nested_schemas import SMALL

torch = pytest.importorskip("torch")

RECURSIVE = {
    "$ref": "#/$defs/x",
    "$defs": {
        "x": {
            "type": "object",
            "properties": {
                "k": {"type": "integer", "minimum": 3},
                "n": {"$ref": "#/$defs/x"},
                "s": {"type": "string", "maxLength": 9},
            },
            "required": ["k"],
        }
    },
}
ENDS = {  # how soon it can end depends on what is in it
    "type": "array", "contains": {"$ref": "#/$defs/x"},
    "$defs": {"x": {"type": "object", "properties": {"a": {"type": "array", "contains": {"$ref": "#/$defs/x"}}}}},
}  # fmt: skip


@pytest.fixture(scope="module")
def vocab():
    words = [b'{"', b'": ', b'"}', b"}}", b'", "', b'"k": ', b"]}", b"[[", b"ab"]
    return mw.Vocabulary.from_bytes([b"", *(bytes([b]) for b in range(256)), *words], eos=0)


@pytest.fixture(scope="module")
def tables(vocab):
    found = [
        mw.compile_json_schema(RECURSIVE, vocab),
        mw.compile_regex("[a-z]{1,50}", vocab, lazy=False),
        mw.compile_choices(["red", "green", "redder"], vocab),
        mw.compile_json_schema({"type": "array", "items": {"enum": ["a", 1, None]}, "maxItems": 3}, vocab),
        mw.compile_json_schema({}, vocab),
        mw.compile_json_schema({}, vocab, depth=3),
        mw.compile_json_schema(RECURSIVE, vocab, depth=2, whitespace="compact"),
        mw.compile_json_schema(ENDS, vocab, depth=5),
        trie(vocab, [[1, 2, 3], [1, 2], [5], [7, 7, 7, 7]]),
    ]
    return [table.to_table() for table in found]


def trie(vocab, sequences):
    """A table of token sequences for a vocabulary of text."""
    table = mw.compile_sequences(sequences, vocab_size=vocab.size, eos=0)
    return dataclasses.replace(table, vocabulary=vocab.fingerprint, source=f"sequences {sequences}")


def number(n):
    return {"type": "object", "properties": {f"key{n}": {"type": "integer", "minimum": n}}, "required": [f"key{n}"]}


@pytest.fixture(scope="module")
def arena(vocab, tables):
    """All tables, with others between them that came and went, so that nothing lies where it did in its own table."""
    made = Arena(vocab, SMALL)
    others = [mw.compile_json_schema(number(n), vocab) for n in range(4)]
    handles = []
    for i, table in enumerate(tables):
        other = made.add(others[i % 4])
        handles.append(made.add(table))
        made.drop(other)
    made.handles = handles
    return made


def backend(name):
    """The operations of a backend, how they are traced, and how arrays go in and out."""
    if name == "jax":
        jax = pytest.importorskip("jax")
        from maskwright.runtime import jax_ops

        return jax_ops, jax.jit, jax.numpy.asarray
    if name == "numpy":
        return numpy_ops, lambda function: function, np.asarray
    return torch_ops, lambda function: function, lambda x: torch.from_numpy(np.asarray(x))


def placed(name, arena, distances=False):
    """An arena on a device; "torch" runs as on an accelerator, "host" as eager torch does on a CPU."""
    dev = backend(name)[0].to_device(arena, distances=distances)
    return dataclasses.replace(dev, host=None) if name == "torch" else dev


def bits(mask):
    return np.flatnonzero(np.unpackbits(np.asarray(mask).astype(np.uint32).view(np.uint8), bitorder="little"))


def walk(name, arena, tables, order, rng, steps, remaining=None):
    """Walk a batch along random tokens, comparing every mask and acceptance with each table's own."""
    ops, traced, array = backend(name)
    dev = ops.with_start_states(placed(name, arena, remaining is not None), [arena.handles[i] for i in order])
    masks, advance, accepting = (traced(f) for f in (ops.bitmask, ops.advance, ops.accepting))
    state = ops.start(dev, len(order))
    tables = [table.to_table() for table in tables]
    own = [numpy_ops.start(tables[i], 1) for i in order]
    left = None if remaining is None else np.array(remaining)
    opening = {1 + ord("{"), 1 + ord("["), 257, 264}
    for step in range(steps):
        found = np.asarray(masks(dev, state, *(() if left is None else (array(left),))))
        ends = np.asarray(accepting(dev, state))
        tokens = []
        for row, i in enumerate(order):
            budget = () if left is None else (left[row : row + 1],)
            expected = numpy_ops.bitmask(tables[i], own[row], *budget)[0]
            assert np.array_equal(found[row].astype(np.uint32), expected), (i, step)
            assert ends[row] == numpy_ops.accepting(tables[i], own[row])[0]
            allowed = bits(expected)
            pick = [t for t in allowed if t in opening] if rng.random() < 0.5 else []
            token = rng.choice(pick or list(allowed)) if allowed.size else 0
            tokens.append(int(token) if rng.random() < 0.98 else int(rng.integers(1, 260)))
            own[row] = numpy_ops.advance(tables[i], own[row], np.array(tokens[-1:]))
        state = advance(dev, state, array(np.array(tokens)))
        left = None if left is None else np.maximum(left - 1, 0)


@pytest.mark.long
@pytest.mark.parametrize("name", ["numpy", "host", "torch", "jax"])
def test_a_batch_of_all_tables_is_what_each_table_says_itself(name, arena, tables):
    rng = np.random.default_rng(1)
    order = [*range(len(tables)), 0, 4, 8]
    for _ in range(3):
        walk(name, arena, tables, order, rng, 30)


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "ends"),
    marked(itertools.product(["numpy", "host", "torch", "jax"], [1, 6]), slow=[("numpy", 1), ("numpy", 6), ("jax", 6)]),
)
def test_budgets_are_kept_as_each_table_keeps_them(name, ends, vocab, tables):
    made = Arena(vocab, dataclasses.replace(SMALL, ends=ends), distances=True)
    chosen = tables if ends > 1 else [table for table in tables if not several(table)]
    assert len(chosen) == (9 if ends > 1 else 8)
    made.handles = [made.add(table) for table in chosen]
    rng = np.random.default_rng(2)
    order = list(range(len(chosen)))
    for extra in (0, 1, 7):
        walk(name, made, chosen, order, rng, 12, [table.min_length + extra for table in chosen])


def several(table):
    return table.is_nested and table.distances.code.shape[1] > 1


NEAR = [  # texts that come near the depth of 2, and of 4
    (RECURSIVE, 2, b'{"k": 3, "n": {"k": 4, "n": {"k": 5}}}'), (RECURSIVE, 2, b'{"k": 3, "n": {"k": 4, "nn": [[1]]}}'),
    (ENDS, 4, b'[{"a":[{"a":[{"a":[{"a":[{}]}]}]}]}]'), ({}, 3, b'[[[[1]]]]'), ({}, 2, b'{"a": {"b": [{}]}}'),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "budgets"),
    marked(itertools.product(["numpy", "host", "torch"], [False, True]), slow=[("numpy", True), ("torch", True)]),
)
def test_near_the_depth_it_says_what_a_table_of_less_depth_says(name, budgets, vocab):
    ops, _, array = backend(name)
    made = Arena(vocab, dataclasses.replace(SMALL, ends=6), distances=budgets)
    refused = 0
    for schema, depth, text in NEAR:
        table = mw.compile_json_schema(schema, vocab, depth=depth).to_table()
        dev = ops.with_start_states(placed(name, made, budgets), [made.add(table)])
        state, own, step = ops.start(dev, 1), numpy_ops.start(table, 1), 1 if schema is ENDS else 11
        for done, byte in enumerate(text):
            rooms = [None] if not budgets else range(len(text) - done - 5, len(text) - done + 30, step)
            for room in rooms:
                left = () if room is None else (np.array([room]),)
                found = np.asarray(ops.bitmask(dev, state, *map(array, left)))[0].astype(np.uint32)
                assert np.array_equal(found, numpy_ops.bitmask(table, own, *left)[0]), (schema, text[:done], room)
            token = np.array([1 + byte])
            state, own = ops.advance(dev, state, array(token)), numpy_ops.advance(table, own, token)
        refused += not numpy_ops.accepting(table, own)[0]
    assert refused >= 3


def test_a_budget_needs_an_arena_with_distances(vocab, arena, tables):
    with pytest.raises(ValueError, match="distances=True"):
        torch_ops.to_device(arena, distances=True)
    one = Arena(vocab, dataclasses.replace(SMALL, ends=1), distances=True)
    with pytest.raises(mw.errors.ArenaError, match=r"ways to end .* Capacity\(ends="):
        one.add(next(table for table in tables if several(table)))


@pytest.mark.parametrize("seed", range(3))
def test_tables_that_come_and_go_leave_all_others_as_they_are(seed, vocab, tables):
    rng = random.Random(seed)
    pool = [*tables, *(mw.compile_json_schema(number(n), vocab) for n in range(25))]
    made = Arena(vocab, dataclasses.replace(SMALL, states=9000, edges=30_000, masks=60))
    held: list = []
    numpy_rng = np.random.default_rng(seed)
    for _ in range(60):
        if held and rng.random() < 0.45:
            made.drop(held.pop(rng.randrange(len(held))))
            continue
        try:
            held.append(made.add(rng.choice(pool)))
        except mw.errors.ArenaError as error:
            assert "no room" in str(error)  # noqa: PT017
            assert held
            made.drop(held.pop(0))
        if held:
            made.handles = held
            walk("host", made, [handle.table for handle in held], list(range(len(held))), numpy_rng, 6)
    for handle in held:
        made.drop(handle)
    big = Arena(vocab, made.capacity)
    while made.evict():
        pass
    assert made.stored.free == big.stored.free  # nothing was lost on the way
    assert not made.lists


def test_what_tables_share_is_there_once(vocab):
    made = Arena(vocab, SMALL)
    made.add(mw.compile_json_schema(number(0), vocab))
    first = made.stored.free
    made.add(mw.compile_json_schema(number(1), vocab))
    second = made.stored.free
    assert first["masks"] - second["masks"] <= 2
    assert first["classes"] - second["classes"] < 100
    second_table = mw.compile_json_schema(number(1), vocab).to_table()
    for name, size, common in (
        ("states", second_table.num_rows, second_table.common.rows),
        ("sites", second_table.num_sites, second_table.common.sites),
        ("actions", second_table.num_actions, second_table.common.actions),
    ):
        assert 0 < common < size
        assert first[name] - second[name] == size - common + 1
    assert first["edges"] - second["edges"] < second_table.num_edges / 2
    before = made.stored
    handle = made.add(mw.compile_json_schema(number(1), vocab))  # the same again, compiled anew
    assert made.stored == before
    made.drop(handle)
    assert made.stored == before


def is_apart(table, common):
    """Whether the rows 1 .. and the first bases, sites and actions lead only to one another, whatever leads to them."""
    rows, bases, sites, actions = common
    size = table.num_rows

    def codes(values):
        return all(1 <= c <= rows or c == size + 1 or size + 2 <= c < size + 2 + actions for c in values if c >= 0)

    def distances(row):
        """What the targets of a row's base are away from it, where they are coded so."""
        base = table.rows.base[row]
        targets = (
            table.bases.target[table.bases.target_start[base] : table.bases.target_start[base + 1]]
            if base >= bases
            else ()
        )
        return [code >> 1 for code in targets if code & 1 and 0 <= row + (code >> 1) < size]

    shared = range(1, rows + 1)
    firsts = table.bases.target[: table.bases.target_start[bases]]
    return (
        all(codes(table.edges.target[table.rows.edge_start[s] : table.rows.edge_start[s + 1]]) for s in shared)
        and all(
            table.rows.base[s] < bases and (not table.sites.of_row.size or table.sites.of_row[s] < sites)
            for s in shared
        )
        and not any(code & 1 for code in firsts)
        and all(1 <= code >> 1 <= rows for code in firsts)
        and all(1 <= table.actions.state[a] <= rows for a in range(actions))
        and all(k < sites for k in table.actions.push[: table.actions.push_start[actions]])
        and codes(table.sites.target[: table.sites.start[sites]])
        and not distances(0)
        and all(s + away > rows for s in range(rows + 1, size) for away in distances(s))
    )


def test_what_is_said_to_be_common_is_refused_or_kept_apart_rightly(vocab, tables):
    """Tables with calls, one with strings of bounded length, that are said to have other parts in common."""
    rng = random.Random(0)
    seen = set()
    for table in (tables[i].to_table() for i in (0, 3, 4, 7)):
        fields = {field.name: getattr(table, field.name) for field in dataclasses.fields(mw.TransitionTable)}
        most = table.num_rows - 1, table.bases.mask.size, table.num_sites, table.num_actions
        made, others = Arena(vocab, SMALL), [table]
        made.handles = [made.add(table)]
        tried = [tuple(max(0, count - rng.randrange(3)) for count in table.common) for _ in range(60)]
        tried += [(rows, *rest) for rows in range(1, most[0] + 1, 2) for rest in (table.common[1:], most[1:])]
        tried += [(rng.randint(1, most[0]), *(rng.randint(0, limit) for limit in most[1:])) for _ in range(40)]
        for common in sorted(set(tried)):
            try:
                other = mw.TransitionTable(**{**fields, "common": common, "source": f"with {common}"})
            except mw.errors.TableError:
                assert not common[0] or not is_apart(table, common)
                seen.add(False)
                continue
            assert is_apart(table, common)
            seen.add(True)
            if len(others) < 6 and common != table.common:
                others.append(other)
                made.handles.append(made.add(other))
        walk("host", made, others, list(range(len(others))), np.random.default_rng(1), 25)
    assert len(seen) == 2
    for wrong in ([1, 1, 1], [1, 1, 1, -1], [1.0, 0, 0, 0], "rows", [0, 1, 0, 0], [10**6, 0, 0, 0]):
        with pytest.raises(mw.errors.TableError, match="common"):
            mw.TransitionTable(**{**fields, "common": wrong})


@pytest.mark.parametrize(
    ("row", "away", "leaves"),
    [(3, -1, False), (3, -2, True), (2, 1, False), (2, -1, True), (0, 3, True), (3, 9, False)],
)
def test_no_row_leads_into_what_is_common_by_distance(row, away, leaves):
    """Of four rows the second is common; one leads so many states further: own rows lie without it in an arena."""
    none, nothing = np.zeros(0, np.int32), np.zeros(1, np.int32)
    base_row = np.where(np.arange(4) == row, 0, -1).astype(np.int32)
    starts, target = np.array([0, 1], np.int32), np.array([2 * away + 1], np.int32)
    arrays = TableArrays(
        Rows(np.zeros(5, np.int32), np.zeros(4, np.bool_), base_row, none),
        Edges(np.array([9, 10], np.uint8), none),
        Bases(np.zeros((1, 1), np.uint32), none[:1], none[:1], starts, target),
        TokenClasses(nothing, none.astype(np.uint8), none), NO_TRIE, NO_ACTIONS, no_exits(np.dtype(np.uint8)), NO_SITES,
    )  # fmt: skip
    assert leads_out(arrays, Common(rows=1)) == leaves


@pytest.mark.parametrize("name", ["numpy", "host", "torch", "jax"])
def test_a_table_is_whole_where_the_first_place_was_taken_again(name):
    """What is no action pushes nothing, wherever the pushes of the first action of all lie by now."""
    vocab = mw.Vocabulary.from_bytes([b"", *(bytes([b]) for b in range(256)), b"{" * 8], eos=0)
    first = mw.compile_grammar('start: "[" start "]" | "(" start ")" | "<" start ">" | "a"', vocab)
    last = mw.compile_grammar('start: "{" start "}" | "a"', vocab)
    lists = {"type": "array", "items": {"type": "array", "items": {"type": "object", "properties": {"k": {}}}}}
    others = [mw.compile_json_schema({**lists, "maxItems": n}, vocab) for n in (1, 2, 3)]
    roomy = Arena(vocab, SMALL)
    for table in (first, *others):
        roomy.add(table)
    made = Arena(vocab, dataclasses.replace(SMALL, states=SMALL.states - roomy.stored.free["states"]))
    gone = made.add(first)
    kept = [made.add(table) for table in others]
    made.drop(gone)
    made.handles = [made.add(last), *kept]
    assert made.stored.evictions == 1
    assert made.table.actions.push_start[0] > 0
    walk(name, made, [last, *others], list(range(4)), np.random.default_rng(0), 15)


def test_masks_and_lists_that_a_table_has_twice_are_counted_once(vocab):
    patterns = {f"p{i}": {"type": "string", "pattern": f"^.*{i}.*$"} for i in range(12)}
    schema = {"type": "object", "properties": patterns, "additionalProperties": False}
    table = mw.compile_json_schema(schema, vocab).to_table()
    different = len(np.unique(table.bases.masks, axis=0))
    assert different < len(table.bases.masks)
    made = Arena(vocab, dataclasses.replace(SMALL, masks=different))
    made.fits(table)
    made.add(table)
    with pytest.raises(mw.errors.ArenaError, match=f"no room for {different:,} masks"):
        Arena(vocab, dataclasses.replace(SMALL, masks=different - 1)).fits(table)


def test_refused_tables_leave_nothing_to_write(vocab):
    table = mw.compile_json_schema({"type": "string", "pattern": "^[a-m]+.*1$"}, vocab).to_table()
    made = Arena(vocab, dataclasses.replace(SMALL, states=table.num_rows + 60))
    torch_ops.to_device(made)
    made.add(mw.compile_regex("[a-z]{120}", vocab, lazy=False))
    for _ in range(3):
        with pytest.raises(mw.errors.ArenaError):
            made.add(table)
    assert not made.held.changes


def test_an_interrupted_table_leaves_nothing_behind(vocab, monkeypatch):
    made, table = Arena(vocab, SMALL), mw.compile_json_schema(number(1), vocab).to_table()
    free, write = made.stored.free, ArenaArrays.set
    for after in (0, 3, 40, 75):
        left = [after]

        def fails(self, name, start, values, left=left):
            left[0] -= 1
            if left[0] < 0:
                raise MemoryError
            write(self, name, start, values)

        with monkeypatch.context() as patch:
            patch.setattr(ArenaArrays, "set", fails)
            with pytest.raises(MemoryError):
                made.add(table)
        assert made.stored.free == free
        assert not made.lists
        assert not made.held.changes
    made.handles = [made.add(table)]
    walk("host", made, [table], [0], np.random.default_rng(0), 20)


def test_a_table_that_a_device_could_not_take_is_not_there(vocab, monkeypatch):
    made, table = Arena(vocab, SMALL), mw.compile_json_schema(number(1), vocab).to_table()
    torch_ops.to_device(made)
    (mirror,) = made.mirrors.values()
    free, write = made.stored.free, mirror.write

    def fails(changes):
        write(changes[: len(changes) // 2])
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(mirror, "write", fails)
        with pytest.raises(MemoryError):
            made.add(table)
    assert made.stored.tables == 0
    assert made.stored.free == free
    made.handles = [made.add(table)]
    walk("torch", made, [table], [0], np.random.default_rng(0), 20)


def test_where_room_is_looked_for_in_order_what_fits_is_not_refused(vocab):
    limits = {"states": 400, "bases": 40, "base_targets": 400, "sites": 30, "lists": 400, "actions": 999}
    made = Arena(vocab, dataclasses.replace(SMALL, **limits))
    lists = [
        mw.compile_json_schema({"type": "array", "items": items}, vocab, whitespace="compact")
        for items in ({"const": 2}, {"type": "string", "maxLength": 2})
    ]
    made.drop(made.add(mw.compile_regex("[a-z]{14}", vocab, lazy=False)))
    gone = made.add(lists[0])
    made.add(mw.compile_regex("[a-z]{6}", vocab, lazy=False))
    made.drop(gone)
    made.add(lists[1])


def test_what_nobody_holds_stays_until_its_room_is_needed(vocab):
    tables = [mw.compile_json_schema(number(n), vocab) for n in range(40)]
    common = tables[0].to_table().common.rows
    size = tables[0].to_table().num_rows - common + 1
    made = Arena(vocab, dataclasses.replace(SMALL, states=5 * size + common + 1))
    handles = [made.add(table) for table in tables[:4]]
    made.drop(handles[1])
    made.drop(handles[2])
    assert made.stored.tables == 4
    assert made.stored.held == 2
    made.drop(made.add(tables[1]))  # now 2 is the one used least recently
    made.add(tables[4])
    made.add(tables[5])
    stored = made.stored
    assert stored.evictions == 1
    again = made.add(tables[1])
    assert again.start == handles[1].start
    assert made.stored.evictions == 1
    held = [made.add(table) for table in (tables[0], tables[3])]
    with pytest.raises(mw.errors.ArenaError, match=r"no room for [\d,]+ states in a row: .* are held"):
        made.add(tables[6])
    for handle in held:
        made.drop(handle)


def test_nothing_goes_in_vain_where_what_is_held_lies_in_between(vocab):
    small = [mw.compile_regex(f"[ab]{{{n}}}", vocab, lazy=False) for n in (20, 21, 22)]
    large = mw.compile_regex("[ab]{60}", vocab, lazy=False)
    made = Arena(vocab, dataclasses.replace(SMALL, states=sum(table.num_rows + 1 for table in small) + 5))
    first, _, last = (made.add(table) for table in small)
    made.drop(first)
    made.drop(last)
    before = made.stored
    with pytest.raises(mw.errors.ArenaError, match="in a row"):
        made.add(large)
    assert made.stored == before  # not even what nobody holds
    assert made.add(small[0]).start == first.start
    assert made.add(small[2]).start == last.start
    made = Arena(vocab, dataclasses.replace(SMALL, states=sum(table.num_rows + 1 for table in small) + 5))
    for table in small:
        made.drop(made.add(table))
    made.add(large)  # which would not fit beside any two of them
    assert made.stored.evictions >= 2


def test_masks_that_are_there_are_not_wanted_again(vocab):
    """A table whose masks another has that is held: one that nobody holds goes for its states alone."""
    schemas = [{"type": "string", "maxLength": n} for n in (8, 9)]
    roomy = Arena(vocab, SMALL)
    free = roomy.stored.free
    roomy.add(mw.compile_json_schema(schemas[0], vocab))
    first = {name: free[name] - left for name, left in roomy.stored.free.items()}
    roomy.add(mw.compile_json_schema(schemas[1], vocab))
    both = {name: free[name] - left for name, left in roomy.stored.free.items()}
    assert both["masks"] < 2 * first["masks"]
    made = Arena(vocab, dataclasses.replace(SMALL, masks=both["masks"], states=both["states"] + 5))
    made.add(mw.compile_json_schema(schemas[0], vocab))
    made.drop(made.add(mw.compile_choices(["a" * 20], vocab)))
    made.add(mw.compile_json_schema(schemas[1], vocab))
    assert made.stored.evictions == 1


def test_nothing_goes_in_vain_for_a_table_that_what_is_held_has_no_room_for(vocab):
    made = Arena(vocab, dataclasses.replace(SMALL, states=100))
    held = made.add(mw.compile_regex("[a-z]{60}", vocab, lazy=False))
    made.drop(made.add(mw.compile_regex("[0-9]{20}", vocab, lazy=False)))
    with pytest.raises(mw.errors.ArenaError, match="no room"):
        made.add(mw.compile_regex("[A-Z]{60}", vocab, lazy=False))
    assert (made.stored.tables, made.stored.evictions) == (2, 0)
    made.drop(held)
    made.add(mw.compile_regex("[A-Z]{60}", vocab, lazy=False))


def test_mistakes_are_named(vocab, arena, tables):
    made = Arena(vocab, SMALL)
    handle = made.add(tables[1])
    made.drop(handle)
    with pytest.raises(ValueError, match="dropped before"):
        made.drop(handle)
    with pytest.raises(ValueError, match="dropped before"):
        torch_ops.with_start_states(torch_ops.to_device(made), [handle])
    with pytest.raises(ValueError, match="another arena"):
        made.drop(arena.handles[0])
    with pytest.raises(ValueError, match="another arena"):
        torch_ops.with_start_states(torch_ops.to_device(made), [made.add(tables[1]), arena.handles[0]])
    with pytest.raises(TypeError, match="Handle"):
        made.drop(3)
    with pytest.raises(TypeError, match="Handle"):
        torch_ops.with_start_states(torch_ops.to_device(made), [0])
    for ops in (torch_ops, numpy_ops):
        with pytest.raises(ValueError, match="another arena"):
            ops.with_start_states(ops.to_device(made), [arena.handles[0]])
        with pytest.raises(TypeError, match="to_device"):
            ops.with_start_states(ops.to_device(tables[1]), [arena.handles[0]])
    with pytest.raises(ValueError, match="no handles"):
        torch_ops.with_start_states(torch_ops.to_device(made), [])
    with pytest.raises(ValueError, match="different states"):
        torch_ops.start(torch_ops.to_device(made), 2)
    with pytest.raises(ValueError, match="2 handles or filters for a batch of 3: each needs as many"):
        torch_ops.start(torch_ops.with_start_states(torch_ops.to_device(made), [made.add(tables[1])] * 2), 3)
    other = mw.Vocabulary.from_bytes([b"", b"a"], eos=0)
    with pytest.raises(mw.errors.VocabularyMismatchError, match="compile it with the arena's"):
        made.add(mw.compile_regex("a", other, lazy=False))
    no_end = dataclasses.replace(
        mw.compile_sids([[1, 2]], vocab_size=vocab.size), vocabulary=vocab.fingerprint, source="x"
    )
    with pytest.raises(mw.errors.ArenaError, match="eos=0"):
        made.add(no_end)
    with pytest.raises(TypeError, match="to_device takes"):
        made.add("a")
    matrix = mw.sort_sids([[1, 2]], vocab_size=vocab.size)
    for refused in (made.add, made.fits):
        with pytest.raises(TypeError, match="an Arena holds tables, not a SortedMatrix: compile the rows with compile"):
            refused(matrix)
    with pytest.raises(TypeError, match="Vocabulary"):
        Arena(3)
    with pytest.raises(ValueError, match="with eos"):
        Arena(mw.Vocabulary.from_bytes([b"a"]))
    with pytest.raises(TypeError, match=r"states=\.\.\."):
        Capacity(states=1.5)
    with pytest.raises(ValueError, match="states=0"):
        Capacity(states=0)


@pytest.mark.parametrize("name", ["row_width", "class_width", "exit_width", "site_width", "symbols", "pops", "depth"])
def test_what_is_wider_than_the_arena_is_refused_by_name(name, vocab, tables):
    made = Arena(vocab, dataclasses.replace(SMALL, **{name: 1}))
    with pytest.raises(mw.errors.ArenaError, match=rf"Capacity\({name}=\d+\)"):
        made.add(tables[0])
    assert made.stored.tables == 0
    assert made.stored.free == Arena(vocab, SMALL).stored.free


@pytest.mark.parametrize("name", ["states", "edges", "bases", "base_targets", "masks", "lists", "classes", "exits", "sites", "site_entries", "actions", "pushes"])  # fmt: skip  # noqa: E501
def test_what_never_fits_says_which_part_it_is(name, vocab, tables):
    made = Arena(vocab, dataclasses.replace(SMALL, **{name: 1}))
    with pytest.raises(mw.errors.ArenaError, match=rf"Capacity\({name}=\d+\)") as caught:
        made.add(tables[0])
    assert made.stored.tables == 0
    least = caught.value.remedies[0].least
    if name == "lists":  # of classes, then of exits: each says how many it takes
        with pytest.raises(mw.errors.ArenaError) as caught:
            Arena(vocab, dataclasses.replace(SMALL, lists=least)).add(tables[0])
        assert caught.value.remedies[0].least > least
        least = caught.value.remedies[0].least
    Arena(vocab, dataclasses.replace(SMALL, **{name: least})).add(tables[0])
    assert made.stored.free == Arena(vocab, made.capacity).stored.free


@pytest.mark.long
def test_adding_compiles_nothing_again_in_jax(vocab, tables):
    jax = pytest.importorskip("jax")
    from maskwright.runtime import jax_ops

    made = Arena(vocab, SMALL)
    first = made.add(tables[1])
    traces = []

    @jax.jit
    def step(dev, state, logits):
        traces.append(1)
        masked = jax_ops.mask_logits(dev, logits, state)
        return jax_ops.advance(dev, state, masked.argmax(-1)), masked

    logits = jax.numpy.zeros((1, vocab.size))
    handles = [first]
    for n in range(6):
        dev = jax_ops.with_start_states(jax_ops.to_device(made), handles[-1:])
        state, masked = step(dev, jax_ops.start(dev, 1), logits)
        expected = numpy_ops.mask_logits(
            handles[-1].table, np.zeros((1, vocab.size)), numpy_ops.start(handles[-1].table, 1)
        )
        assert np.array_equal(np.asarray(masked), expected)
        if n % 2:
            made.drop(handles.pop())
        else:
            handles.append(made.add(tables[n % 4]))
        assert isinstance(state.node, jax.Array)
    assert len(traces) == 1


@pytest.mark.long
def test_adding_compiles_nothing_again_in_torch(vocab, tables):
    made = Arena(vocab, SMALL)
    handle = made.add(tables[1])
    dev = dataclasses.replace(torch_ops.to_device(made), host=None)
    compiled = []

    def counting(graph, inputs):
        compiled.append(1)
        return graph.forward

    torch._dynamo.reset()

    @torch.compile(backend=counting, fullgraph=True)
    def step(state, logits):
        masked = torch_ops.mask_logits(dev, logits, state)
        return torch_ops.advance(dev, state, masked.argmax(-1)), masked

    for n in (1, 0, 3, 4):
        handle = made.add(tables[n])
        state = torch_ops.start(torch_ops.with_start_states(dev, [handle] * 2), 2)
        _, masked = step(state, torch.zeros(2, vocab.size))
        own = numpy_ops.start(tables[n], 2)
        assert np.array_equal(masked.numpy(), numpy_ops.mask_logits(tables[n], np.zeros((2, vocab.size)), own))
    assert len(compiled) == 1


def test_arrays_on_a_device_stay_where_they_are(vocab, tables):
    made = Arena(vocab, SMALL)
    dev = torch_ops.to_device(made)
    places = {field.name: getattr(dev, field.name) for field in dataclasses.fields(dev)}
    pointers = {name: x.data_ptr() for name, x in places.items() if isinstance(x, torch.Tensor)}
    for table in tables:
        made.add(table)
    assert torch_ops.to_device(made) is dev
    assert pointers == {name: getattr(dev, name).data_ptr() for name in pointers}
    assert made.nbytes == sum(
        x.nbytes for part in (dev, dev.calls) for name, x in vars(part).items()
        if isinstance(x, torch.Tensor) and not name.startswith("byte_")
    )  # fmt: skip


def test_every_operation_says_what_it_says_of_one_table(arena, tables):
    dev = torch_ops.to_device(arena)
    torch.manual_seed(0)
    for i, table in enumerate(tables):
        logits = torch.randn(3, table.vocab_size)
        mine = torch_ops.start(torch_ops.with_start_states(dev, [arena.handles[i]] * 3), 3)
        one = torch_ops.to_device(table)
        own = torch_ops.start(one, 3)
        assert torch.equal(torch_ops.mask_logits(dev, logits, mine), torch_ops.mask_logits(one, logits, own))
        assert torch.equal(torch_ops.log_mass(dev, logits, mine), torch_ops.log_mass(one, logits, own))
        assert torch.equal(torch_ops.end_scores(dev, logits, mine), torch_ops.end_scores(one, logits, own))
        for found, expected in zip(torch_ops.candidates(dev, logits, mine, 4)[:2], torch_ops.candidates(one, logits, own, 4)[:2], strict=True):  # fmt: skip  # noqa: E501
            assert torch.equal(found, expected)
        scores = torch.zeros(1, 3)
        chosen = torch_ops.select(dev, logits, mine, scores, 5, 0)
        own_chosen = torch_ops.select(one, logits, own, scores, 5, 0)
        assert torch.equal(chosen.scores, own_chosen.scores)
        assert torch.equal(chosen.tokens, own_chosen.tokens)


@pytest.mark.parametrize("name", ["host", "torch"])
def test_decoders_take_a_constraint_for_each_row(name, arena, tables):
    ops, _, array = backend(name)
    chosen = [2, 8, 3]
    rng = np.random.default_rng(5)
    bias = array(rng.normal(size=tables[0].vocab_size).astype(np.float32))

    def step(tokens, cache, t):
        return bias[None] + ops.arrays.zeros((tokens.shape[0], 1), like=bias), cache

    dev = ops.with_start_states(placed(name, arena), [arena.handles[i] for i in chosen])
    found = beam_search(step, None, dev, ops=ops, batch=3, beams=3, max_tokens=12)
    for row, i in enumerate(chosen):
        own = beam_search(step, None, ops.to_device(tables[i]), ops=ops, batch=1, beams=3, max_tokens=12)
        assert np.array_equal(np.asarray(found.valid[row]), np.asarray(own.valid[0]))
        assert np.allclose(np.asarray(found.scores[row]), np.asarray(own.scores[0]), rtol=1e-6)
        width = own.tokens.shape[2]
        assert np.array_equal(np.asarray(found.tokens[row])[:, :width], np.asarray(own.tokens[0]))
    random = torch.Generator().manual_seed(1)
    drawn = sample_sequences(step, None, dev, random, ops=ops, batch=3, samples=4, max_tokens=40)
    for row, i in enumerate(chosen):
        for tokens, valid in zip(drawn.tokens[row].tolist(), drawn.valid[row].tolist(), strict=True):
            assert not valid or tables[i].accepts([t for t in tokens if t >= 0])
    assert drawn.valid.any()


def test_threads_may_add_and_drop_while_others_read(vocab, tables):
    made = Arena(vocab, SMALL)
    held = made.add(tables[0])
    expected = nested_masks.compose_nested(made.table, made_state(made, held))
    wrong, stop = [], threading.Event()

    def churn(seed):
        rng = random.Random(seed)
        for _ in range(40):
            made.drop(made.add(rng.choice(tables[1:])))

    def read():
        while not stop.is_set():
            if not np.array_equal(nested_masks.compose_nested(made.table, made_state(made, held)), expected):
                wrong.append(1)

    reader = threading.Thread(target=read)
    reader.start()
    threads = [threading.Thread(target=churn, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    stop.set()
    reader.join()
    assert not wrong
    assert made.stored.held == 1


def made_state(arena, handle):
    return NestedState(
        np.array([handle.start]), np.zeros((1, arena.capacity.depth + 1), np.int32), np.zeros(1, np.int32)
    )


# ------------------------------------------------------------------------------------------------- input rows


ITEMS = [[1 + i % 3, 5 + i % 4, 9 + i] for i in range(10)]


def items(vocab, sequences, eos=0):
    """A trie of items for a vocabulary of text."""
    table = mw.compile_sids(sequences, vocab_size=vocab.size, eos=eos)
    return dataclasses.replace(table, vocabulary=vocab.fingerprint)


def reached(ops, dev, inside, sequences):
    """The state in which each sequence ends, of as many rows."""
    state = ops.start(dev, len(sequences))
    for column in np.array(sequences).T:
        state = ops.advance(dev, state, inside(column))
    return state


@pytest.mark.long
@pytest.mark.parametrize("name", ["numpy", "torch", "host", pytest.param("jax", marks=pytest.mark.slow)])
@pytest.mark.parametrize("sequences", [ITEMS, [[7, 7], *ITEMS[:4], [1, 5], *ITEMS[4:]]], ids=["fixed", "ragged"])
def test_states_of_an_arena_lead_to_the_right_items_and_their_table_refuses_them(vocab, name, sequences):
    arena = Arena(vocab, SMALL)
    arena.add(mw.compile_regex("[a-z]{1,50}", vocab, lazy=False))
    make = items if len({len(each) for each in sequences}) == 1 else trie
    table = make(vocab, sequences)
    handle = arena.add(table)
    ops, _, inside = backend(name)
    found = [i for i, each in enumerate(sequences) if len(each) == 3]
    dev = ops.with_start_states(placed(name, arena), [handle])
    state = reached(ops, dev, inside, [sequences[i] for i in found])
    assert [rows.tolist() for rows in arena.input_rows(handle, state)] == [[i] for i in found]
    assert [rows.tolist() for rows in arena.input_rows([handle] * 10, state.node)] == [[i] for i in found]
    for node in np.asarray(state.node):
        with pytest.raises(ValueError, match=r"arena\.input_rows\(handles, states\)"):
            table.input_rows([node])
    ended = ops.advance(dev, state, inside(np.zeros(10, np.int64)))
    lost = ops.advance(dev, ended, inside(np.ones(10, np.int64)))
    for other in (ops.start(dev, 10), ended, lost):
        assert [rows.size for rows in arena.input_rows(handle, other)] == [0] * 10
    with pytest.raises(TypeError, match=r"arena\.input_rows\(handles, states\)"):
        arena.table.input_rows(state.node)


@pytest.mark.long
@pytest.mark.parametrize("name", ["numpy", "torch", pytest.param("jax", marks=pytest.mark.slow)])
def test_beams_of_an_arena_lead_to_the_items_that_were_written(vocab, name):
    arena = Arena(vocab, SMALL)
    sets = [ITEMS, [[2, 3, each[2]] for each in ITEMS]]
    handles = [arena.add(items(vocab, each)) for each in sets]
    ops, _, inside = backend(name)
    dev = ops.with_start_states(placed(name, arena), handles)

    def step(tokens, cache, level):
        rows = 2 if tokens is None else tokens.shape[0]
        scores = np.random.default_rng(level).normal(size=(rows, vocab.size)).astype(np.float32)
        return inside(scores), cache

    out = beam_search(step, None, dev, ops=ops, batch=2, beams=10, max_tokens=4)
    tokens, states = np.asarray(out.tokens), np.asarray(out.states)
    for b in range(2):
        rows = arena.input_rows(handles[b], out.states[b])
        assert sorted(int(row[0]) for row in rows) == list(range(10))
        assert [sets[b][int(row[0])] for row in rows] == tokens[b, :, :3].tolist()
    both = arena.input_rows(handles, states.reshape(-1))
    assert [sets[i // 10][int(row[0])] for i, row in enumerate(both)] == tokens[:, :, :3].reshape(20, 3).tolist()
    with pytest.raises(ValueError, match=r"states\[0\] is \d+, which is not a state of its handle's table"):
        arena.input_rows(handles[::-1], states.reshape(-1))


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 40)), max_size=40))
@settings(max_examples=60, deadline=None)
def test_no_state_of_a_trie_in_an_arena_is_one_of_its_own_whatever_came_and_went(script):
    """However places are taken and given back, numbers of tables that are there never overlap."""
    space, taken = Space(160), {}
    for kind, count in script:
        if kind < 3 and taken:
            start = list(taken)[kind % len(taken)]
            space.give(start, taken.pop(start))
            continue
        above = count + 1 if kind % 2 else 0
        start = space.take(count, above)
        if start < 0:
            continue
        assert above <= start <= 160 - count
        assert all(start + count <= other or other + size <= start for other, size in taken.items())
        taken[start] = count
    assert space.free == 160 - sum(taken.values())


def test_input_rows_of_an_arena_refuse_what_they_cannot_tell(vocab):
    arena = Arena(vocab, SMALL)
    table, graph = items(vocab, ITEMS), mw.compile_json_schema(RECURSIVE, vocab)
    handle, other = arena.add(table), arena.add(graph)
    assert handle.start >= table.num_states
    dev = numpy_ops.with_start_states(numpy_ops.to_device(arena), [handle, other])
    state = numpy_ops.start(dev, 2)
    assert [rows.size for rows in arena.input_rows([handle, other], state)] == [0, 0]
    with pytest.raises(ValueError, match="not a state of its handle's table"):
        arena.input_rows([other, handle], state)
    with pytest.raises(ValueError, match="not a state of its handle's table"):
        arena.input_rows(handle, table.walk(ITEMS))  # of the table by itself
    with pytest.raises(ValueError, match="2 handles for 3 states"):
        arena.input_rows([handle, other], [handle.start] * 3)
    with pytest.raises(ValueError, match=r"reshape\(-1\)"):
        arena.input_rows(handle, [[handle.start]])
    with pytest.raises(ValueError, match="another arena"):
        Arena(vocab, SMALL).input_rows(handle, [handle.start])
    with pytest.raises(TypeError, match="a Handle is needed"):
        arena.input_rows([3], [handle.start])
    for stray in (-1, table.num_states):
        with pytest.raises(ValueError, match="outside this table"):
            table.input_rows([stray])
    arena.drop(handle)
    with pytest.raises(ValueError, match="dropped before"):
        arena.input_rows(handle, [handle.start])


@pytest.mark.long
def test_room_for_a_trie_is_twice_its_states_and_an_error_says_so(vocab):
    table = items(vocab, ITEMS)
    rows = table.num_states - 1  # of which the last marks an end
    just = dataclasses.replace(SMALL, states=table.num_states + rows)
    arena = Arena(vocab, just)
    handle = arena.add(table)
    assert handle.start == table.num_states
    arena.drop(handle)
    other = arena.add(items(vocab, ITEMS[::-1]))  # where the first was, which makes room
    assert (other.start, arena.stored.evictions) == (table.num_states, 1)
    with pytest.raises(
        mw.errors.ArenaError, match=rf"behind the first {table.num_states}, the numbers of the table's own"
    ):
        arena.add(table)
    with pytest.raises(mw.errors.ArenaError, match=r"behind the first \d+.*Capacity\(states="):
        Arena(vocab, dataclasses.replace(just, states=just.states - 1)).fits(table)


def test_a_table_that_is_too_large_says_how_large_an_arena_it_takes(vocab):
    table = mw.compile_regex("[a-z]{12}", vocab, lazy=False)
    with pytest.raises(mw.errors.ArenaError) as caught:
        Arena(vocab, dataclasses.replace(SMALL, states=2)).add(table)
    (remedy,) = caught.value.remedies
    assert (remedy.name, remedy.least) == ("states", caught.value.reached)
    Arena(vocab, dataclasses.replace(SMALL, states=remedy.least)).add(table)


def test_a_capacity_of_another_kind_is_refused(vocab):
    with pytest.raises(TypeError, match="capacity must be a Capacity, not int"):
        Arena(vocab, 3)


def test_an_arena_that_was_put_in_inference_mode_takes_tables_outside_of_it():
    torch = pytest.importorskip("torch")
    vocab = mw.Vocabulary.from_bytes([b"", *(bytes([b]) for b in range(256))], eos=0)
    arena = mw.Arena(vocab)
    with torch.inference_mode():
        dev = torch_ops.to_device(arena)
    handle = arena.add(mw.compile_regex("a", vocab, lazy=False).to_table())
    placed = torch_ops.with_start_states(dev, [handle])
    mask = torch_ops.bitmask(placed, torch_ops.start(placed, 1))
    assert np.flatnonzero(np.unpackbits(mask.numpy().view(np.uint8), bitorder="little")).tolist() == [
        vocab.encode("a")[0]
    ]


def test_tables_of_an_arena_have_all_ends_of_its_vocabulary(vocab):
    several = mw.Vocabulary.from_bytes([*vocab.tokens, b"", b""], eos=[0, vocab.size, vocab.size + 1])
    arena = Arena(several, SMALL, distances=True)
    tables = [mw.compile_regex("a?b*", several, lazy=False), mw.compile_json_schema({"enum": [1, [12]]}, several)]
    whole = [table.to_table() for table in tables]
    handles = [arena.add(table) for table in whole]
    rng = np.random.default_rng(0)
    for ops, into in ((numpy_ops, np.asarray), (torch_ops, torch.tensor)):
        dev = ops.with_start_states(ops.to_device(arena, distances=True), handles)
        assert dev.ends == several.ends
        state, matchers = ops.start(dev, 2), [mw.Matcher(table) for table in whole]
        for _ in range(6):
            masks = np.stack([matcher.mask() for matcher in matchers])
            assert np.array_equal(np.asarray(ops.bitmask(dev, state)).view(np.uint32), masks)
            logits = rng.normal(size=(2, several.size)).astype(np.float32)
            allowed = np.unpackbits(masks.view(np.uint8), axis=1, bitorder="little")[:, : several.size] > 0
            wanted = np.where(allowed, logits, -np.inf)
            assert np.array_equal(np.asarray(ops.mask_logits(dev, into(logits), state)), wanted)
            tokens = []
            for matcher, row in zip(matchers, allowed, strict=True):
                ends = np.intersect1d(np.flatnonzero(row), several.ends[1:])
                tokens.append(int(ends[-1] if ends.size and rng.random() < 0.4 else rng.choice(np.flatnonzero(row))))
                assert matcher.advance(tokens[-1])
            state = ops.advance(dev, state, into(np.array(tokens)))
