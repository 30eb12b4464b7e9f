"""Tables with calls: numpy, packed masks, walks and `Matcher` against a simulation of what such tables say."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import os
import pickle
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import maskwright as mw
from maskwright.kernels.limits import UNREACHABLE
from maskwright.runtime import numpy_ops
from maskwright.runtime.host import masks as host_masks
from maskwright.runtime.host import nested_masks
from maskwright.runtime.host.nested_reader import NestedReader
from maskwright.runtime.host.readers import reader_of
from maskwright.runtime.numpy_moves import configurations_of
from maskwright.table.states import NestedState
from tests.oracles.nested_model import (
    ROOMY,
    TOKENS,
    Base,
    Model,
    Place,
    PushdownMachine,
    Row,
    Site,
    bound,
    random_model,
    random_nested,
    sets_of,
    some_places,
    state_of,
)
from tests.strategies.tables import replaced

some = settings(deadline=None, max_examples=50, suppress_health_check=list(HealthCheck))
seeds = st.integers(0, 2**32 - 1)


def places_of(state: NestedState) -> list[Place]:
    for row, height in zip(state.stack, state.height.tolist(), strict=True):
        assert not row[height:].any(), "slots above the height are 0"
    return configurations_of(None, state)  # type: ignore[arg-type]


def stood(reader: Any, place: Place) -> Any:
    """The place of matchers that is any place."""
    node, stack = place
    return node, functools.reduce(reader.pushed, stack, reader.start()[1])


# ------------------------------------------------------------------------------------------------ agreement


def with_rooms(test: Any) -> Any:
    for seed in ROOMY:
        test = example(seed)(test)
    return test


def test_the_random_tables_of_these_tests_have_what_nested_tables_can_have():
    models = [random_model(seed) for seed in range(80)]
    reached: list[tuple[Model, Place]] = []
    deeper = refused = 0
    for seed, model in enumerate(models):
        for place in some_places(model, seed):
            reached.append((model, place))
            loose = dataclasses.replace(
                model, depth=50,
                rows=[dataclasses.replace(r, need=0) for r in model.rows],
                sites=[dataclasses.replace(s, need=0) for s in model.sites],
            )  # fmt: skip
            refused += set(model.moves(place)) != set(loose.moves(place))
            deeper += any(len(stack) < len(place[1]) - 1 for _, stack in model.moves(place).values())
    assert len(reached) > 1000
    assert refused > 100
    assert deeper > 50
    assert sum(any(row.push is not None for row in model.rows) for model in models) > 10
    assert sum(any(len(pushes) > 1 for pushes, _ in model.actions) for model in models) > 10
    far = [model.far for model in models]
    assert sum(any(1 < d < UNREACHABLE for by_end in one.states for d in by_end) for one in far) > 4
    assert sum(len(one.sites[0]) > len(one.sites[0][0]) > 1 for one in far) > 4
    assert sum(any(d < UNREACHABLE for site in one.sites for by_end in site for d in by_end[1:]) for one in far) > 4
    roomy = [random_model(seed).far for seed in ROOMY]
    assert all(any(0 < n < UNREACHABLE for site in one.site_rooms for room in site for n in room) for one in roomy)
    assert any(0 < n < UNREACHABLE for one in roomy for room in one.state_rooms for n in room)


@some
@given(seeds)
def test_numpy_does_what_the_arrays_mean(seed):
    model = random_model(seed)
    table = model.table()
    for place in some_places(model, seed):
        assert numpy_ops.moves(table, place) == model.moves(place)


@some
@given(seeds)
def test_masks_and_steps_of_batches_agree_with_the_simulation(seed):
    model = random_model(seed)
    table = model.table()
    places = some_places(model, seed)
    state = state_of(table, places)
    wanted = [set(model.moves(place)) for place in places]
    assert sets_of(numpy_ops.bitmask(table, state), table.vocab_size) == wanted
    assert sets_of(nested_masks.compose_nested(table, state), table.vocab_size) == wanted
    ends = [not stack and (node == len(model.rows) or (node < len(model.rows) and model.rows[node].accepting))
            for node, stack in places]  # fmt: skip
    assert numpy_ops.accepting(table, state).tolist() == ends
    rng = np.random.default_rng(seed)
    for _ in range(4):
        tokens = rng.integers(-1, table.vocab_size + 1, len(places))
        for i, legal in enumerate(wanted):
            if legal and rng.random() < 0.8:
                tokens[i] = rng.choice(sorted(legal))
        following = [model.moves(place).get(int(t), (table.dead, ())) for place, t in zip(places, tokens, strict=True)]
        assert places_of(numpy_ops.advance(table, state, tokens)) == following
        assert places_of(table.follow(tokens[:, None], state)) == following


@some
@given(seeds)
def test_walks_from_the_start_agree_with_the_simulation(seed):
    model = random_model(seed)
    table = model.table()
    rng = np.random.default_rng(seed)
    tokens = rng.integers(-1, table.vocab_size + 1, (40, 6))
    places: list[Place] = [(0, ())] * 40
    for t in range(6):
        for i, place in enumerate(places):
            following = model.moves(place)
            if following and rng.random() < 0.9:
                tokens[i, t] = rng.choice(sorted(following))
            places[i] = following.get(int(tokens[i, t]), (table.dead, ()))
        assert places_of(table.follow(tokens[:, : t + 1])) == places
        assert table.walk(tokens[:, : t + 1]).tolist() == [node for node, _ in places]
    ends = numpy_ops.accepting(table, state_of(table, places)).tolist()
    assert table.contains(tokens).tolist() == ends
    assert numpy_ops.contains(table, tokens).tolist() == ends
    assert [table.accepts(row) for row in tokens.tolist()] == ends


@some
@given(seeds)
def test_a_matcher_does_what_the_simulation_does(seed):
    model = random_model(seed)
    table = model.table()
    rng = np.random.default_rng(seed)
    for _ in range(4):
        matcher, came = mw.Matcher(table), [(0, ())]
        for _ in range(8):
            legal = model.moves(came[-1])
            for _ in range(2):  # the second time from what was kept
                assert sets_of(matcher.mask(), table.vocab_size) == [set(legal)]
            for token in rng.integers(0, table.vocab_size, 5).tolist():
                if token not in legal:
                    assert matcher.advance(token) is False
            assert (matcher.state, matcher.stack) == came[-1]
            node, stack = came[-1]
            ends = not stack and (node == table.after_eos or (node < table.num_rows and model.rows[node].accepting))
            assert matcher.is_accepting is ends
            assert matcher.is_finished is (ends and not set(legal) - {table.eos})
            if not legal:
                break
            token = sorted(legal)[int(rng.integers(len(legal)))]
            assert matcher.advance(token) is True
            came.append(legal[token])
        for one in (matcher.copy(), pickle.loads(pickle.dumps(matcher)), matcher):
            for n in (0, 1, len(came)):
                if n < len(came):
                    other = one.copy()
                    other.rollback(n)
                    assert (other.state, other.stack) == came[len(came) - 1 - n]


@some
@given(seeds)
def test_what_matchers_read_is_what_the_simulation_says_at_any_place(seed):
    model = random_model(seed)
    table = model.table()
    reader = reader_of(table, False)
    for place in some_places(model, seed):
        if place[0] == table.dead:  # where no matcher goes
            continue
        at, legal = stood(reader, place), model.moves(place)
        for _ in range(2):
            assert sets_of(reader.mask(at), table.vocab_size) == [set(legal)]
        node, stack = place
        ends = not stack and (node == table.after_eos or (node < table.num_rows and model.rows[node].accepting))
        assert reader.ends(at) is ends
        for token in range(table.vocab_size):
            reached = reader.step(at, token)
            assert (None if reached is None else reader.configuration(reached)) == legal.get(token)


@some
@with_rooms
@given(seeds)
def test_distances_are_the_definition(seed):
    model = random_model(seed)
    table = model.table()
    far = model.far
    ends = len(far.sites[0])
    after_eos = [0, *[UNREACHABLE] * (ends - 1)]
    assert table.distances.code[: table.num_states].tolist() == [*far.states, after_eos, [UNREACHABLE] * ends]
    assert table.distances.site.tolist() == far.sites
    assert table.distances.code_frames[: table.num_rows].tolist() == far.state_rooms
    assert table.distances.site_frames.tolist() == far.site_rooms
    assert table.distance.tolist() == [*map(min, far.states), 0, UNREACHABLE]
    assert table.min_length == far.states[0][0]
    assert table.max_length is None
    for place in some_places(model, seed):
        assert min(numpy_ops.fewest_tokens(table, place), UNREACHABLE) == min(model.distance(place), UNREACHABLE)


def test_without_tokens_that_end_a_list_exactly_no_budget_can_be_kept():
    model, _ = bound(2, ["[", "1,", "1]],", "1]", "],", '"', '"]'])
    only = dataclasses.replace(model, labels=[-1] * len(model.labels))
    assert only.table().min_length == UNREACHABLE
    with pytest.raises(ValueError, match="max_tokens cannot be kept"):
        mw.Matcher(only.table(), max_tokens=100)


@some
@with_rooms
@given(seeds)
def test_masks_under_budgets_agree(seed):
    model = random_model(seed)
    table = model.table()
    places = some_places(model, seed)
    state = state_of(table, places)
    rng = np.random.default_rng(seed)
    for high in (3, 9, 2**40):
        room = rng.integers(0, high, len(places))
        wanted = []
        for place, left in zip(places, room.tolist(), strict=True):
            reached = model.moves(place).items()
            within = {t for t, there in reached if model.distance(there) <= min(left, UNREACHABLE) - 1}
            wanted.append(within | {t for t in model.moves(place) if t == table.eos})
        assert sets_of(numpy_ops.bitmask(table, state, room), table.vocab_size) == wanted
        assert sets_of(nested_masks.compose_nested(table, state, room), table.vocab_size) == wanted
        reader = reader_of(table, True)
        reader.budgets(table)
        for place, left, tokens in zip(places, room.tolist(), wanted, strict=True):
            at = stood(reader, place)
            assert sets_of(reader.made(at, left), table.vocab_size) == [tokens]
            if left > reader.farthest(at):
                assert sets_of(reader.mask(at), table.vocab_size) == [tokens]
            for token in range(table.vocab_size):
                reached = reader.step(at, token)
                in_time = reached is not None and (token == table.eos or reader.distance(reached) < left)
                assert in_time is (token in tokens)


@some
@given(seeds)
def test_numpy_candidates_and_selections_carry_stacks(seed):
    model = random_model(seed)
    table = model.table()
    places = some_places(model, seed)[:6]
    state = state_of(table, places)
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(len(places), table.vocab_size + 2)).astype(np.float32)
    found = numpy_ops.candidates(table, logits, state, 4)
    assert found.states.stack.shape == (len(places), 4, table.slots)
    for row, place in enumerate(places):
        legal = model.moves(place)
        best = sorted(legal, key=lambda t: -logits[row, t])[:4]
        assert found.tokens[row, : len(best)].tolist() == best
        reached = places_of(NestedState(*(array[row] for array in found.states)))
        assert reached == [legal[t] for t in best] + [(table.dead, ())] * (4 - len(best))
    picked = numpy_ops.select(table, logits, state, np.zeros((2, 3), np.float32), 4, 0)
    tokens, parents = picked.tokens.reshape(-1), picked.parents.reshape(-1)
    gathered = numpy_ops.arrays.gather(state, np.repeat([0, 3], 4) + parents)
    after = places_of(numpy_ops.advance(table, gathered, tokens))
    for slot, place in enumerate(places_of(picked.state)):
        if picked.scores.reshape(-1)[slot] > -np.inf:
            assert place == after[slot]
        else:
            assert place == (table.dead, ())


# ------------------------------------------------------------------------- tables that mean something


def allowed_by_bytes(text: str) -> bool:
    """Whether a text is one that the machine accepts, by the machine alone."""
    machine, state, stack = PushdownMachine(), 0, []
    for byte in text:
        kind, what = machine.step(state, byte)
        if kind == "dead":
            return False
        if kind == "go":
            state = what
        elif kind == "call":
            stack.append(what[0])
            state = what[1]
        else:
            if not stack:
                return False
            state = machine.RETURN.get((stack.pop(), what), -1)
    return state == PushdownMachine.END and not stack


def nesting(text: str) -> int:
    depth = most = 0
    for byte in text:
        depth += (byte in "[(") - (byte in "])")
        most = max(most, depth)
    return most


def written(matcher: mw.Matcher, rng: np.random.Generator, stop: float) -> list[int]:
    """Tokens that random choices among what is allowed make, until the end or for long enough."""
    tokens: list[int] = []
    eos = matcher.table.eos
    while len(tokens) < 60:
        (legal,) = sets_of(matcher.mask(), matcher.table.vocab_size)
        if eos in legal and (len(legal) == 1 or rng.random() < stop):
            break
        token = sorted(legal - {eos})[int(rng.integers(len(legal - {eos})))]
        assert matcher.advance(token)
        tokens.append(token)
    return tokens


def test_a_table_bound_to_tokens_accepts_what_its_bytes_say():
    model, tokens = bound(6)
    table = model.table()
    rng = np.random.default_rng(0)
    for text in ('[[1,"aa"],([])]', "([[1]])", '["a","aa",1]', '"aaa"', '["a","aa"]', "1", "[" * 5 + "]" * 5):
        assert allowed_by_bytes(text)
        assert table.accepts([tokens.index(c) for c in text]), text
    for text in ('["a",1]', '["a","a"]', "([)", "()", "[1", "]", '[["a",[]]]'):
        assert not allowed_by_bytes(text)
        assert not table.accepts([tokens.index(c) for c in text]), text
    finished = 0
    for _ in range(200):
        chosen = written(mw.Matcher(table), rng, 1.0)
        text = "".join(tokens[t] for t in chosen)
        if mw.Matcher(table).accepts(chosen):
            assert allowed_by_bytes(text)
            finished += 1
        single = [tokens.index(c) for c in text]
        if nesting(text) > 6:  # a list that begins and ends in one token is never on the stack
            continue
        assert mw.Matcher(table).accepts(single) is table.accepts(chosen)
    assert finished > 50


@pytest.mark.parametrize("depth", [0, 1, 2, 3])
def test_nothing_is_nested_deeper_than_the_limit_or_entered_that_needs_to_be(depth):
    model, tokens = bound(depth)
    table = model.table()
    rng = np.random.default_rng(depth)
    for text in ("[" * depth + "]" * depth if depth else "1", "(" + "[]" + ")"):
        fits = nesting(text) <= depth
        matcher = mw.Matcher(table)
        taken = [matcher.advance(tokens.index(c)) for c in text]
        assert all(taken) is fits, text
        if not fits:
            assert taken[0] is False or depth > 0, "what could not be finished is not begun"
    assert mw.Matcher(table).advance(tokens.index("[")) is (depth >= 1)
    assert mw.Matcher(table).advance(tokens.index("(")) is (depth >= 2), "a record needs a list inside"
    for _ in range(60):
        matcher = mw.Matcher(table)
        while not matcher.is_finished and matcher.num_tokens < 40:
            (legal,) = sets_of(matcher.mask(), table.vocab_size)
            assert legal, "never a dead end"
            assert matcher.advance(sorted(legal)[int(rng.integers(len(legal)))])
            assert sum(not model.sites[k].leaf for k in matcher.stack) <= depth


@pytest.mark.parametrize("depth", [1, 2, 3, 8])
@pytest.mark.parametrize("words", [TOKENS, [t for t in TOKENS if len(t) == 1]], ids=["all", "characters"])
def test_whatever_is_written_within_max_tokens_ends_complete(depth, words):
    model, tokens = bound(depth, words)
    table = model.table()
    rng = np.random.default_rng(depth)
    with pytest.raises(ValueError, match="cannot be promised"):
        mw.Matcher(table, max_tokens=table.min_length - 1)
    lengths = []
    for most in (*range(table.min_length, 12), 30):
        for _ in range(25):
            matcher = mw.Matcher(table, max_tokens=most)
            chosen = written(matcher, rng, 0.3)
            assert len(chosen) <= most
            assert matcher.is_accepting
            assert table.accepts(chosen)
            assert allowed_by_bytes("".join(tokens[t] for t in chosen))
            lengths.append(most - len(chosen))
    assert 0 in lengths


def test_far_from_the_end_a_budget_changes_nothing_and_makes_no_masks(monkeypatch):
    model, tokens = bound(4)
    table = model.table()
    with pytest.raises(TypeError, match="use compose_nested"):
        host_masks.compose(table, np.zeros(1, np.int64))
    with pytest.raises(TypeError, match=r"see distances\.farthest"):
        table.farthest  # noqa: B018 - a property
    matcher, free = mw.Matcher(table, max_tokens=40), mw.Matcher(table)
    monkeypatch.setattr(NestedReader, "made", lambda *_: pytest.fail("made for nothing"))
    for text in ("[", '"', "a", '"', ",", "[[", "1]"):
        token = tokens.index(text) if text in tokens else tokens.index('"')
        assert matcher.mask().tolist() == free.mask().tolist()
        assert matcher.advance(token) is free.advance(token)


def test_what_is_kept_of_masks_depends_on_the_sites_that_were_looked_at_and_no_others():
    model, tokens = bound(40)
    table = model.table()
    matcher = mw.Matcher(table)
    for _ in range(20):
        matcher.mask()
        assert matcher.advance(tokens.index("["))
    reader = reader_of(table, False)
    first = len(reader.composed)
    masks = []
    for _ in range(10):
        masks.append(matcher.mask())
        assert matcher.advance(tokens.index("["))
    assert len(reader.composed) == first, "at any depth the same"
    assert all(mask is masks[0] for mask in masks)
    reader.most = 3
    for _ in range(30):
        token = sorted(sets_of(matcher.mask(), table.vocab_size)[0])[0]
        assert matcher.advance(token)
        assert len(reader.composed) <= 3 + 5


def test_masks_do_not_change_however_they_are_held():
    model, _ = bound(30, [*TOKENS, *(f"{a}," for a in range(40))])
    table = model.table()

    def walk(seed: int) -> None:
        rng = np.random.default_rng(seed)
        matcher = mw.Matcher(table, max_tokens=None if seed % 2 else 60)
        held: list[tuple[Any, list[int]]] = []
        ways = (
            lambda mask: mask, lambda mask: mask[1:], lambda mask: mask.view(np.int32), memoryview,
            lambda mask: mask[None].T, lambda mask: [mask][0:1][0], lambda mask: np.asarray(mask).reshape(-1, 1),
        )  # fmt: skip
        for step in range(400):
            mask = matcher.mask()
            with pytest.raises(ValueError, match="read-only"):
                mask[0] = 0
            legal = sorted(sets_of(mask, table.vocab_size)[0] - {table.eos})
            way = ways[step % len(ways)](mask)
            if rng.random() < 0.5:
                held.append((way, np.asarray(way).tolist()))
            del mask, way
            if not legal or step % 20 == 19:
                matcher.reset()
            else:
                assert matcher.advance(legal[int(rng.integers(len(legal)))])
            for one, before in held:
                assert np.asarray(one).tolist() == before
            if len(held) > 12:
                del held[int(rng.integers(12))]

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(walk, range(8)))


def test_memory_of_masks_that_nobody_holds_is_used_again():
    table = bound(3, [*TOKENS, *(f"{a}," for a in range(4000))])[0].table()
    matcher = mw.Matcher(table)
    places = set()
    for _ in range(2):
        for _ in range(3):
            places.add(matcher.mask().ctypes.data)
    assert len(places) <= 2


def test_forced_text_goes_through_calls_and_returns():
    letters = ["(", ")", "[", "]", "1", ",", '"', "a"]
    model, tokens = bound(2, letters)
    vocab = mw.Vocabulary.from_bytes([*(t.encode() for t in letters), b""], eos=len(letters))
    table = model.table(vocabulary=vocab.fingerprint)
    matcher = mw.Matcher(table, vocab)
    assert matcher.forced_text() == b""
    assert matcher.advance(tokens.index("("))
    assert matcher.forced_text() == b"["
    assert matcher.advance(tokens.index("["))
    assert matcher.forced_text() == b""
    assert matcher.advance(tokens.index("]"))
    assert matcher.forced_text() == b")"
    assert matcher.forced_tokens() == [tokens.index(")")]
    assert matcher.stack == (PushdownMachine.ROOT,)


# ------------------------------------------------------------------------- budgets where ends are told apart


ITEM = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"], "additionalProperties": False}
LABELLED: dict[str, Any] = {  # where how soon a text can end depends on what is in it
    "one": {"type": "array", "items": {"enum": [1, 12, 2]}, "contains": {"const": 1}},
    "two": {"type": "array", "items": {"enum": [1, 2, "a", None]}, "contains": {"const": 1}, "minContains": 2},
    "not": {"type": "array", "items": {"not": {"type": "array", "items": {"const": 1}}}, "contains": {"type": "array"}},
    "either": {"oneOf": [
        {"type": "object", "properties": {"a": {"enum": [1, 2]}, "b": {"const": 1}}, "required": ["b"],
         "additionalProperties": False},
        {"type": "object", "properties": {"a": {"const": 1}, "b": {"enum": [1, 2]}}, "additionalProperties": False},
    ]},
    "lists": {"type": "array", "items": {"type": "array", "items": ITEM}, "contains": {"contains": {
        "properties": {"a": {"const": 2}}}}},
    "recursive": {"anyOf": [{"const": 1}, {"type": "array", "contains": {"$ref": "#"}, "items": {
        "anyOf": [{"$ref": "#"}, {"const": 2}, {"type": "array", "items": {"const": 2}}]}}]},
    "deep": {  # good items take frames that others do not
        "$defs": {"good": {"type": "array", "contains": {"anyOf": [{"const": 1}, {"$ref": "#/$defs/good"}]}}},
        "type": "array",
        "items": {"type": "array", "contains": {"type": "array", "contains": {"$ref": "#/$defs/good"}}},
        "contains": {"minItems": 2},
    },
}  # fmt: skip
SPELT = ["[[", "]]", "],", ",[", "1,", "1]", "[1", '{"a":', '"a":', "},", '"b"', "}]", "[]", "null"]


@functools.cache
def labelled(name: str, depth: int) -> mw.TransitionTable:
    tokens = [b"", *(bytes([b]) for b in range(256)), *(word.encode() for word in SPELT)]
    vocabulary = mw.Vocabulary.from_bytes(tokens, eos=0)
    return mw.compile_json_schema(LABELLED[name], vocabulary, depth=depth, whitespace="compact").to_table()


def wandering(table: mw.TransitionTable, count: int, length: int) -> list[Place]:
    """Places that random tokens lead to, half of the time those that open something."""
    rng = np.random.default_rng(0)
    opening = [1 + ord("["), 1 + ord("{"), 257, 260]
    found: dict[Place, None] = {(0, ()): None}
    for walk in range(count):
        place: Place = (0, ())
        for _ in range(length):
            moves = numpy_ops.moves(table, place)
            moves.pop(table.eos, None)
            if not moves:
                break
            tokens = [t for t in opening if t in moves] if walk % 2 and rng.random() < 0.6 else []
            place = moves[int(rng.choice(tokens or sorted(moves)))]
            found[place] = None
    return list(found)


@pytest.mark.parametrize("depth", [2, 3, 64])
@pytest.mark.parametrize("name", LABELLED)
def test_some_allowed_token_always_lowers_the_distance_and_the_start_has_one(name, depth):
    table = labelled(name, depth)
    assert table.distances.site.shape[1] > 1
    assert table.min_length < UNREACHABLE
    reader, without = reader_of(table, True), 0
    reader.budgets(table)
    for place in wandering(table, 16, 30):
        far = numpy_ops.fewest_tokens(table, place)
        node, stack = place
        at = stood(reader, place)
        assert min(reader.distance(at), UNREACHABLE) == min(far, UNREACHABLE)
        moves = numpy_ops.moves(table, place)
        moves.pop(table.eos, None)
        further = [numpy_ops.fewest_tokens(table, following) for following in moves.values()]
        assert max(further, default=-1) <= reader.farthest(at)
        if far == 0:
            assert not stack
            assert table.is_accepting(node)
        elif far < UNREACHABLE:
            assert min(further) < far
        else:
            without += 1
    assert without == 0 or depth < 64, "with enough room there is always an end"


@pytest.mark.parametrize(("name", "depth"), [(name, depth) for name in LABELLED for depth in (2, 3, 64)])
def test_whatever_a_budget_allows_can_be_completed_within_it(name, depth):
    """By following every token that is allowed."""
    table = labelled(name, depth)
    starts = [
        (place, numpy_ops.fewest_tokens(table, place) + more) for place in wandering(table, 4, 12) for more in (0, 1)
    ]
    todo = [((0, ()), table.min_length + 2)] + [(place, room) for place, room in starts if room <= 9]
    seen = set(todo)
    while todo and len(seen) < 2500:
        place, room = todo.pop()
        (allowed,) = sets_of(
            nested_masks.compose_nested(table, state_of(table, [place]), np.array([room])), table.vocab_size
        )
        assert allowed, "nothing is allowed"
        moves = numpy_ops.moves(table, place)
        for token in allowed - {table.eos}:
            assert room > 0
            following = moves[token], room - 1
            if following not in seen:
                seen.add(following)
                todo.append(following)


# ------------------------------------------------------------------------------------------------ the arrays


def test_a_nested_table_is_saved_and_read_back(tmp_path):
    model, _ = bound(3)
    table = model.table()
    table.save(tmp_path / "x.safetensors")
    loaded = mw.TransitionTable.load(tmp_path / "x.safetensors")
    for name, array in table.arrays.by_name().items():
        assert np.array_equal(array, loaded.arrays.by_name()[name])
    assert (loaded.min_length, loaded.max_length, loaded.depth, loaded.slots) == (1, None, 3, 4)
    twin = pickle.loads(pickle.dumps(table))
    assert twin.accepts([0, 1]) is table.accepts([0, 1])
    assert mw.Matcher(twin).mask().tolist() == mw.Matcher(table).mask().tolist()


def with_bases() -> mw.TransitionTable:
    """One of the random tables that has everything."""
    for seed in itertools.count():
        table = random_nested(seed)
        if table.num_actions and min(
            table.sites.of_row.size, table.exits.of_base.size, table.exits.of_row.size, table.rows.frames_required.size,
            table.sites.frames_required.size, table.exits.token.size, table.num_edges, table.eos is not None,
        ):  # fmt: skip
            sizes = np.diff(table.exits.start).max(initial=0), np.diff(table.sites.start).max(initial=0)
            if min(sizes) > 1 and (table.sites.of_row >= 0).any() and (table.sites.target < 0).any():
                return table
    raise AssertionError


def changed(array: np.ndarray, at: Any, value: Any) -> np.ndarray:
    array = array.copy()
    array[at] = value
    return array


FAULTS = [
    ("edges.target", lambda t: changed(t.edges.target, 0, t.num_states + t.num_actions), "an edge leads outside"),
    ("edges.target", lambda t: changed(t.edges.target, 0, t.after_eos), "an edge leads outside"),
    ("edges.target", lambda t: changed(t.edges.target, 0, -1), "an edge leads outside"),
    ("actions.state", lambda t: changed(t.actions.state, 0, t.num_rows), "an action leads or pushes outside"),
    ("actions.push", lambda t: changed(t.actions.push, 0, t.num_sites), "an action leads or pushes outside"),
    ("actions.push", lambda t: changed(t.actions.push, 0, -1), "an action leads or pushes outside"),
    ("actions.push_start", lambda t: changed(t.actions.push_start, -1, 10**6), "actions.push_start does not rise"),
    ("actions.push_start", lambda t: changed(t.actions.push_start, 1, 0), "actions.push_start does not rise"),
    ("actions.push_start", lambda t: t.actions.push_start[:-1], "actions.push_start has a size of"),
    (
        "exits.of_row",
        lambda t: changed(t.exits.of_row, 0, t.exits.start.size - 1),
        "exits.of_row or exits.of_base points outside",
    ),
    ("exits.of_row", lambda t: changed(t.exits.of_row, 0, -2), "exits.of_row or exits.of_base points outside"),
    ("exits.of_row", lambda t: t.exits.of_row[:-1], "exits.of_row has a size of"),
    ("exits.of_base", lambda t: changed(t.exits.of_base, 0, -2), "exits.of_row or exits.of_base points outside"),
    ("exits.of_base", lambda t: np.append(t.exits.of_base, np.int32(0)), "exits.of_base has a size of"),
    ("sites.of_row", lambda t: changed(t.sites.of_row, 0, t.num_sites), "sites.of_row points outside"),
    ("sites.of_row", lambda t: changed(t.sites.of_row, 0, -2), "sites.of_row points outside"),
    ("exits.start", lambda t: changed(t.exits.start, -1, 10**6), "exits.start does not rise"),
    ("exits.start", lambda t: t.exits.start[:0], "exits.start has a size of 0"),
    ("exits.token", lambda t: t.exits.token[::-1], "tokens of an exit list are not strictly increasing"),
    ("exits.token", lambda t: changed(t.exits.token, -1, t.vocab_size), "below vocab_size"),
    ("exits.token", lambda t: t.exits.token.astype(np.int64), "exits.token is int64"),
    ("exits.symbol", lambda t: changed(t.exits.symbol, 0, t.num_symbols), "an exit's symbol is outside"),
    ("exits.symbol", lambda t: changed(t.exits.symbol, 0, -1), "an exit's symbol is outside"),
    ("exits.symbol", lambda t: t.exits.symbol[1:], "exits.symbol has a size of"),
    ("sites.start", lambda t: changed(t.sites.start, 1, 10**6), "sites.start does not rise"),
    ("sites.symbol", lambda t: changed(t.sites.symbol, 0, t.num_symbols), "symbols of a site are not strictly"),
    ("sites.symbol", lambda t: t.sites.symbol[::-1], "symbols of a site are not strictly"),
    ("sites.target", lambda t: changed(t.sites.target, 0, -1 - t.num_symbols), "a site leads outside"),
    ("sites.target", lambda t: changed(t.sites.target, 0, t.dead), "a site leads outside"),
    ("sites.target", lambda t: changed(t.sites.target, 0, t.num_states + t.num_actions), "a site leads outside"),
    ("exits.label", lambda t: changed(t.exits.label, 0, -2), "exits.label is less than -1"),
    ("sites.is_leaf", lambda t: t.sites.is_leaf[1:], "sites.is_leaf has a size of"),
    ("rows.frames_required", lambda t: changed(t.rows.frames_required, 0, -1), "frames_required is negative"),
    (
        "rows.frames_required",
        lambda t: changed(t.rows.frames_required, 0, 2**30),
        "frames_required is negative or more than any depth",
    ),
    ("sites.frames_required", lambda t: changed(t.sites.frames_required, 0, -1), "frames_required is negative"),
    ("depth", lambda t: -1, "depth must be an integer from 0"),
    ("depth", lambda t: 2**20, "depth must be an integer from 0"),
    ("depth", lambda t: True, "depth must be an integer from 0"),
    ("sites.start", lambda t: t.sites.start[:1], "has a size of"),
    ("eos", lambda t: int(t.exits.token[0]), "eos"),
]


@pytest.mark.parametrize(("name", "change", "message"), FAULTS, ids=[f"{f[0]}: {f[2]}" for f in FAULTS])
def test_arrays_of_calls_that_contradict_each_other_are_refused(name, change, message):
    table = with_bases()
    with pytest.raises(mw.errors.TableError, match=message):
        replaced(table, name, change(table))


def test_an_action_that_pushes_onto_a_leaf_is_refused():
    model = Model(
        3, None, 3, [Row({0: ("action", 0)}, None, None, None, True)], [], [Site({}, True)], [([0, 0], 0)], []
    )
    with pytest.raises(mw.errors.TableError, match="an action pushes onto a leaf"):
        model.table()


def test_no_more_frames_than_there_are_slots_are_opened_even_where_a_table_makes_calls_from_leaves():
    row = Row({0: ("action", 0)}, None, 0, 0, True)
    model = Model(3, 2, 2, [row], [Base({1: 0}, None)], [Site({}, True)], [([0], 0)], [])
    table = model.table()
    for height in range(4):
        place = 0, (0,) * height
        allowed = {0, 1} & set(model.moves(place))
        assert len(allowed) == (2 if height < 3 else 0)
        assert set(numpy_ops.moves(table, place)) - {2} == allowed
        state = state_of(table, [place])
        assert sets_of(nested_masks.compose_nested(table, state), 3)[0] - {2} == allowed
        for token in (0, 1):
            reached = (0, (0,) * (height + 1)) if height < 3 else (table.dead, ())
            assert places_of(table.follow([[token]], state)) == [reached]
            reader = reader_of(table, False)
            assert sets_of(reader.mask(stood(reader, place)), 3)[0] - {2} == allowed
            assert (reader.step(stood(reader, place), token) is not None) is (height < 3)


def test_a_base_may_lead_outside_only_by_tokens_that_the_row_takes_itself():
    model = Model(
        40, None, 1, [Row({}, None, 0), Row({2: None}, {3: 0}, 0, None, True)], [Base({1: 0, 2: 1, 3: 1}, None)],
        [Site({0: 0})], [], [0],
    )  # fmt: skip
    table = model.table(bases__target=np.array([0, 3], np.int32))  # class 1: the state after this one
    assert numpy_ops.moves(table, (0, ())) == {1: (0, ()), 2: (1, ()), 3: (1, ())}
    assert numpy_ops.moves(table, (1, (0,))) == {1: (0, (0,)), 3: (0, ())}
    model.rows[1].exits = None
    with pytest.raises(mw.errors.TableError, match="a row's base leads outside the table"):
        model.table(bases__target=np.array([0, 3], np.int32))
    with pytest.raises(mw.errors.TableError, match="a row's base leads outside the table"):
        model.table(bases__target=np.array([3, 0], np.int32))


def test_tables_without_calls_have_nothing_of_them_and_tries_take_none():
    flat = mw.compile_regex("ab*", mw.Vocabulary.from_bytes([b"", b"a", b"b"], eos=0), lazy=False)
    assert (flat.is_nested, flat.slots, flat.depth, flat.num_sites, flat.num_symbols) == (False, 0, 0, 0, 0)
    lists = np.zeros(3, np.int32)
    for name, value in (("depth", 3), ("exits.label", np.zeros(1, np.int32)), ("exits.start", lists)):
        with pytest.raises(mw.errors.TableError, match="a table without return sites has no"):
            replaced(flat, name, value)
    trie = mw.compile_sids([[1, 2]], 4)
    arrays = trie.arrays.with_arrays(sites__start=np.zeros(2, np.int32), sites__is_leaf=np.zeros(1, bool))
    with pytest.raises(mw.errors.TableError, match="a trie has no return sites"):
        dataclasses.replace(trie, arrays=arrays)


@pytest.mark.parametrize("where", ["node", "height", "site", "after EOS"])
def test_states_of_other_tables_are_refused(where):
    table = bound(2)[0].table()
    state = state_of(table, [(PushdownMachine.ARRAY, (0, 1))] * 3)
    node, stack, height = (array.copy() for array in state)
    if where == "node":
        node[1] = table.num_states
    elif where == "height":
        height[1] = table.slots + 1
    elif where == "site":
        stack[1, 0] = table.num_sites
    else:
        node[1] = table.after_eos
    bad = NestedState(node, stack, height)
    for ask in (lambda: table.follow([[0]] * 3, bad), lambda: nested_masks.compose_nested(table, bad)):
        with pytest.raises(ValueError, match=r"outside this table|row 1 has a stack of height \d with sites"):
            ask()
    with pytest.raises(ValueError, match="use follow"):
        table.walk([[0]] * 3, state.node)
    with pytest.raises(ValueError, match="node and height"):
        table.follow([[0]] * 2, state)


FORGED = """
import sys, dataclasses
sys.path.insert(0, {root!r})
import numpy as np, maskwright as mw
from maskwright.runtime import numpy_ops
from maskwright.runtime.host import nested_masks
from maskwright.runtime.host.nested_reader import NestedReader
from maskwright.runtime.host.readers import reader_of
from maskwright.runtime.host import masks as host_masks
from tests.runtime.device.test_nested_operations import *
names = ["edges.target", "actions.state", "actions.push_start", "actions.push", "exits.of_row",
         "exits.of_base", "exits.start", "exits.token", "exits.symbol", "sites.start", "sites.symbol",
         "sites.target", "sites.of_row", "sites.is_leaf", "rows.frames_required", "sites.frames_required",
         "rows.base", "bases.target", "bases.target_start", "classes.number", "rows.edge_start", "depth"]
sound = refused = 0
for seed in range({count}):
    rng = np.random.default_rng(seed)
    table = random_nested(int(rng.integers(60)))
    name = names[seed % len(names)]
    if name == "depth":
        forged = int(rng.integers(0, 70000))
    else:
        forged = table.arrays.by_name()[name].copy()
        if not forged.size:
            continue
        span = 2 * int(forged.max()) + 3
        forged[int(rng.integers(forged.size))] = rng.integers(2) if forged.dtype == bool else (
            rng.choice([rng.integers(0, span), 2**7]) if forged.dtype.kind == "u" else
            rng.choice([rng.integers(-span, span), 2**31 - 1, -2**31, -1]))
    try:
        other = replaced(table, name, forged)
    except (mw.errors.TableError, OverflowError):
        refused += 1
        continue
    sound += 1
    if other.depth > 20:
        other = dataclasses.replace(other, depth=20)
    other.distances
    state = None
    tokens = rng.integers(0, other.vocab_size, (20, 6))
    matchers = [mw.Matcher(other) for _ in range(20)]
    for t in range(6):
        state = other.follow(tokens[:, t : t + 1], state)
        masks = nested_masks.compose_nested(other, state)
        nested_masks.compose_nested(other, state, rng.integers(0, 9, 20))
        for i, legal in enumerate(sets_of(masks, other.vocab_size)):
            if legal and t < 5:
                tokens[i, t + 1] = rng.choice(sorted(legal))
        for i, matcher in enumerate(matchers):
            if matcher.num_tokens < t:
                continue  # it has refused a token before
            if matcher.advance(int(tokens[i, t])):
                assert (matcher.state, matcher.stack) == places_of(state)[i]
                assert matcher.mask().tolist() == masks[i].tolist()
            else:
                assert state.node[i] == other.dead
print(sound, refused)
"""


@pytest.mark.slow  # the kernels are compiled anew
def test_forged_arrays_are_refused_or_read_within_bounds(request):
    kernels = request.config.cache.mkdir("kernels-that-check-bounds")  # 20 seconds to compile, once
    code = FORGED.format(root=os.path.dirname(mw.__file__), count=400)
    environment = dict(os.environ, NUMBA_BOUNDSCHECK="1", MASKWRIGHT_JIT="1", MASKWRIGHT_CACHE=str(kernels))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    sound, refused = map(int, done.stdout.split())
    assert sound > 50
    assert refused > 100


def test_distances_of_many_items_take_about_as_long_as_there_are_items():
    vocab = mw.Vocabulary.from_bytes([b"", *(bytes([byte]) for byte in range(256))], eos=0)

    def seconds(items):
        table = mw.compile_json_schema(
            {"type": "array", "items": {"type": "integer"}, "minItems": items}, vocab, lazy=False
        ).to_table()
        began = time.thread_time()
        assert table.distances.code[0, 0] == 2 * items + 1
        return time.thread_time() - began

    seconds(20)  # which may compile the kernels
    assert seconds(4000) < 5  # passes over all rows until nothing changes took 40


@pytest.mark.parametrize("least", [-(2**63), -1])
def test_budgets_below_none_leave_what_a_budget_of_none_does(least):
    vocab = mw.Vocabulary.from_bytes([b"", *(bytes([byte]) for byte in range(256))], eos=0)
    for table in (
        mw.compile_regex("[ab]+", vocab, lazy=False),
        mw.compile_json_schema(True, vocab, lazy=False).to_table(),
    ):
        state = numpy_ops.start(table, 1)
        none, huge = numpy_ops.bitmask(table, state, np.array([0])), numpy_ops.bitmask(table, state)
        assert not none.any()
        assert huge.any()
        for remaining, expected in ((np.array([least]), none), (np.array([2**64 - 1], np.uint64), huge)):
            assert np.array_equal(numpy_ops.bitmask(table, state, remaining), expected)
            if table.is_nested:
                assert np.array_equal(nested_masks.compose_nested(table, state, remaining), expected)
            else:
                assert np.array_equal(host_masks.compose(table, state.node, remaining), expected)
