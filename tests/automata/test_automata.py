"""Automata over bytes: every language against a naive oracle, every DFA in canonical form, every limit named."""

from __future__ import annotations

import itertools
import re
import time
from dataclasses import dataclass
from functools import reduce

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maskwright.automata import ops, utf8
from maskwright.automata.budget import Budget, Meter
from maskwright.automata.dfa import Dfa
from maskwright.automata.minimize import canonical
from maskwright.automata.nfa import Fragment, Nfa
from maskwright.automata.subsets import determinize
from maskwright.errors import BudgetError, ConstraintError
from maskwright.kernels.arrays import slot_of

LETTERS = b"abc"
WORDS = [bytes(w) for n in range(6) for w in itertools.product(LETTERS, repeat=n)]


# ------------------------------------------------------------------------------------------------------ trees


@dataclass(frozen=True)
class Tree:
    """A regular expression: a kind, its children, and numbers that depend on the kind."""

    kind: str
    parts: tuple[Tree, ...] = ()
    data: tuple[int, ...] = ()


def leaves() -> st.SearchStrategy[Tree]:
    letter = st.sampled_from(LETTERS)
    pairs = st.tuples(letter, letter).map(sorted)
    return st.one_of(
        st.lists(pairs, max_size=2).map(lambda rs: Tree("symbols", data=tuple(itertools.chain(*rs)))),
        st.lists(letter, max_size=3).map(lambda word: Tree("literal", data=tuple(word))),
        st.just(Tree("nothing")),
        st.just(Tree("empty")),
    )


def compounds(children: st.SearchStrategy[Tree]) -> st.SearchStrategy[Tree]:
    several = st.lists(children, max_size=3).map(tuple)
    bounds = st.tuples(st.integers(0, 3), st.integers(-1, 3))
    return st.one_of(
        several.map(lambda parts: Tree("concat", parts)),
        several.map(lambda parts: Tree("union", parts)),
        children.map(lambda part: Tree("embed", (part,))),
        st.tuples(children, bounds).map(lambda x: Tree("repeat", (x[0],), (x[1][0], x[1][0] + x[1][1]))),
    )


trees = st.recursive(leaves(), compounds, max_leaves=8)


def build(tree: Tree, nfa: Nfa) -> Fragment:
    match tree.kind:
        case "symbols":
            return nfa.symbols(zip(tree.data[::2], tree.data[1::2], strict=True))
        case "literal":
            return nfa.literal(bytes(tree.data))
        case "nothing":
            return nfa.nothing()
        case "empty":
            return nfa.empty()
        case "embed":
            return nfa.embed(compiled(tree.parts[0]))
        case "repeat":
            low, high = tree.data
            return nfa.repeat(build(tree.parts[0], nfa), low, None if high < low else high)
        case _:
            parts = [build(part, nfa) for part in tree.parts]
            return nfa.concat(parts) if tree.kind == "concat" else nfa.union(parts)


def compiled(tree: Tree) -> Dfa:
    nfa = Nfa()
    return determinize(nfa, build(tree, nfa))


def language(tree: Tree, length: int) -> set[bytes]:
    """The words of a tree up to a length, by the definition of each operator."""

    def join(left: set[bytes], right: set[bytes]) -> set[bytes]:
        return {a + b for a in left for b in right if len(a) + len(b) <= length}

    parts = [language(part, length) for part in tree.parts]
    match tree.kind:
        case "symbols":
            ranges = zip(tree.data[::2], tree.data[1::2], strict=True)
            return {bytes([b]) for low, high in ranges for b in range(low, high + 1)} if length else set()
        case "literal":
            return {bytes(tree.data)} if len(tree.data) <= length else set()
        case "nothing":
            return set()
        case "empty":
            return {b""}
        case "embed":
            return parts[0]
        case "union":
            return set().union(*parts)
        case "concat":
            words = {b""}
            for part in parts:
                words = join(words, part)
            return words
        case _:
            low, high = tree.data
            powers = [{b""}]
            # after as many copies as there are letters, more of them add nothing but what is there already
            for _ in range(low + length + 1 if high < low else high):
                powers.append(join(powers[-1], parts[0]))
            return set().union(*powers[low:])


def accepted(dfa: Dfa, words: list[bytes] = WORDS) -> set[bytes]:
    return {word for word in words if dfa.accepts(word)}


# ------------------------------------------------------------------------------------------------------ oracles


def simulate(nfa: Nfa, fragment: Fragment, word: bytes) -> bool:
    """Run a nondeterministic automaton on a word, sets of states and all."""
    edges, epsilons = (array.tolist() for array in nfa.arrays())

    def closed(states: set[int]) -> set[int]:
        todo = list(states)
        while todo:
            state = todo.pop()
            for a, b in epsilons:
                if a == state and b not in states:
                    states.add(b)
                    todo.append(b)
        return states

    states = closed({fragment.start})
    for symbol in word:
        states = closed({d for s, low, high, d in edges if s in states and low <= symbol <= high})
    return fragment.end in states


def check_canonical(dfa: Dfa) -> None:
    """Hold a DFA against the definition of its form, naively."""
    N, C = dfa.transition.shape
    assert dfa.class_of.dtype == np.uint16
    assert dfa.transition.dtype == np.int32
    assert dfa.accepting.dtype == np.bool_
    table, ends = dfa.transition.tolist(), dfa.accepting.tolist()
    # classes: all used, numbered by smallest symbol, no equal columns
    assert list(dict.fromkeys(dfa.class_of.tolist())) == list(range(C))
    assert len({tuple(row[c] for row in table) for c in range(C)}) == C
    # breadth first
    order = [0]
    for s in order:
        order += [t for t in dict.fromkeys(table[s]) if t >= 0 and t not in order]
    assert order == list(range(N))
    # every state leads to an end, unless there is none at all
    useful = {s for s in range(N) if ends[s]}
    for _ in range(N):
        useful |= {s for s in range(N) if any(t in useful for t in table[s])}
    assert useful == set(range(N)) or (N == 1 and table == [[-1]] and ends == [False])
    # no two states are equivalent: fill the table of pairs that some word tells apart, N standing for "nowhere"
    table.append([N] * C)
    ends.append(False)
    table = [[t % (N + 1) for t in row] for row in table]
    apart = {(p, q) for p in range(N + 1) for q in range(N + 1) if ends[p] != ends[q]}
    while True:
        pairs = itertools.product(range(N + 1), repeat=2)
        more = {(p, q) for p, q in pairs if any((table[p][c], table[q][c]) in apart for c in range(C))} - apart
        if not more:
            break
        apart |= more
    assert all((p, q) in apart for p in range(N) for q in range(p))


def same(a: Dfa, b: Dfa) -> bool:
    """Whether the arrays are equal."""
    return (
        np.array_equal(a.class_of, b.class_of)
        and np.array_equal(a.transition, b.transition)
        and np.array_equal(a.accepting, b.accepting)
    )


def of_words(*words: bytes) -> Dfa:
    nfa = Nfa()
    return determinize(nfa, nfa.union([nfa.literal(word) for word in words]))


# ------------------------------------------------------------------------------------------------- determinising


@settings(deadline=None, max_examples=150)
@given(trees)
def test_a_dfa_accepts_the_words_of_its_expression_and_no_others(tree):
    assert accepted(compiled(tree)) == language(tree, 5)


@settings(deadline=None, max_examples=40)
@given(trees)
def test_a_dfa_agrees_with_its_nfa_run_on_sets_of_states(tree):
    nfa = Nfa()
    fragment = build(tree, nfa)
    dfa = determinize(nfa, fragment)
    for word in WORDS[:40]:
        assert dfa.accepts(word) == simulate(nfa, fragment, word)


@settings(deadline=None, max_examples=60)
@given(trees)
def test_determinising_gives_canonical_form(tree):
    check_canonical(compiled(tree))


@st.composite
def random_nfas(draw) -> tuple[Nfa, Fragment]:
    """Any automaton: edges on overlapping ranges, markers among them, and epsilons everywhere."""
    alphabet = draw(st.sampled_from([256, 258]))
    n = draw(st.integers(1, 7))
    state, bounds = st.integers(0, n - 1), st.integers(0, alphabet - 1)
    edges = draw(st.lists(st.tuples(state, bounds, bounds, state), max_size=12))
    epsilons = draw(st.lists(st.tuples(state, state), max_size=6))
    nfa = Nfa(alphabet)
    flat = np.array([(s, min(lo, hi), max(lo, hi), d) for s, lo, hi, d in edges], np.int32).reshape(-1, 4)
    fragment = nfa.embed_edges(flat, n, draw(st.lists(state, max_size=2)), draw(st.lists(state, max_size=2)))
    return nfa, nfa.skip(fragment, np.array(epsilons, np.int32).reshape(-1, 2) + fragment.start + 1)


@settings(deadline=None, max_examples=80)
@given(random_nfas(), st.data())
def test_any_nfa_and_its_dfa_agree_on_words_that_the_nfa_can_read(made, data):
    nfa, fragment = made
    dfa = determinize(nfa, fragment)
    check_canonical(dfa)
    bounds = sorted({b for edge in nfa.arrays()[0].tolist() for b in edge[1:3]} | {0, nfa.alphabet - 1})
    near = sorted({min(max(b + d, 0), nfa.alphabet - 1) for b in bounds for d in (-1, 0, 1)})
    for word in data.draw(st.lists(st.lists(st.sampled_from(near), max_size=6), min_size=10, max_size=20)):
        assert dfa.accepts(word) == simulate(nfa, fragment, word)


@pytest.mark.parametrize(("low", "high"), [(0, 0), (0, 1), (1, 1), (2, 5), (0, 300), (299, 300), (300, 300), (3, None)])
def test_a_counted_repetition_has_one_state_for_each_count(low, high):
    nfa = Nfa()
    dfa = determinize(nfa, nfa.repeat(nfa.literal(b"xy"), low, high))
    top = low if high is None else high
    assert dfa.num_states == 2 * top + 1  # for x{3,} the way back is from the last to the one before it
    for count in {0, max(low - 1, 0), low, top, top + 1, top + 7}:
        assert dfa.accepts(b"xy" * count) == (low <= count and (high is None or count <= high))
        assert not dfa.accepts(b"xy" * count + b"x")


@given(st.integers(0, 3), st.integers(0, 6), st.integers(1, 4), st.booleans(), st.booleans())
@settings(max_examples=60, deadline=None)
def test_nested_counted_repetitions_match_what_re_matches(low, more, outer, optional, letter):
    """Of states that differ in how much may follow, the subset construction keeps the one that allows most."""
    inner = f"[ab{'c' if letter else ''}]{{{low},{low + more}}}c"
    pattern = re.compile(f"({inner}){{{0 if optional else outer},{outer}}}".encode())
    nfa = Nfa()
    body = nfa.repeat(nfa.symbols([(97, 99 if letter else 98)]), low, low + more)
    part = nfa.concat([body, nfa.literal(b"c")])
    dfa = determinize(nfa, nfa.repeat(part, 0 if optional else outer, outer))
    rng = np.random.default_rng(low + 7 * more + 49 * outer)
    for length in range(24):
        for word in rng.integers(97, 100, (40, length)).astype(np.uint8):
            assert dfa.accepts(word.tobytes()) == bool(pattern.fullmatch(word.tobytes())), word.tobytes()


def test_repetitions_inside_repetitions_take_few_more_states_than_the_result():
    """(.{0,40}x){3}: sets of all the states that could be meant would be hundreds of thousands."""
    meter = Budget(states=22_000).begin()
    nfa = Nfa(meter=meter)
    part = nfa.concat(
        [nfa.repeat(nfa.embed(utf8.char_class(utf8.complement_ranges(((10, 10),)))), 0, 40), nfa.literal(b"x")]
    )
    assert determinize(nfa, nfa.repeat(part, 3, 3), meter).num_states == 19_932


def test_a_counted_repetition_takes_time_linear_in_its_count():
    def seconds(count: int) -> float:
        nfa = Nfa()
        begin = time.thread_time()
        dfa = determinize(nfa, nfa.repeat(nfa.symbols([(97, 122)]), 1, count))
        assert dfa.num_states == count + 1
        return time.thread_time() - begin

    seconds(10)  # compiles the kernels
    short = min(seconds(1000) for _ in range(5))
    long = min(seconds(20_000) for _ in range(5))
    assert long < 20 * short * 5, "twenty times the count took more than five times its share"


def test_a_fragment_with_edges_out_of_its_slices_is_not_repeated():
    nfa = Nfa()
    first, inner, last = nfa.literal(b"a"), nfa.literal(b"b"), nfa.literal(b"c")
    nfa.concat([inner, nfa.literal(b"d")])
    outer = nfa.concat([first, last])
    nfa.repeat(outer, 2, 3)  # foreign states, but no foreign edges: harmless
    with pytest.raises(ValueError, match="build its parts right before it"):
        nfa.repeat(inner._replace(edge_from=0), 2, 2)


def test_a_subset_construction_of_many_states_is_right():
    # the twelfth letter from the end is an a: 2^12 states, none of them equivalent
    nfa = Nfa()
    any_letter = nfa.repeat(nfa.symbols([(97, 98)]), 0, None)
    dfa = determinize(nfa, nfa.concat([any_letter, nfa.literal(b"a"), nfa.repeat(nfa.symbols([(97, 98)]), 11, 11)]))
    assert dfa.num_states == 2**12
    rng = np.random.default_rng(1)
    for _ in range(300):
        word = bytes(rng.choice([97, 98], size=rng.integers(8, 40)).tolist())
        assert dfa.accepts(word) == (len(word) >= 12 and word[-12] == 97)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda nfa: nfa.symbols([(5, 4)]), "no range"),
        (lambda nfa: nfa.symbols([(0, 256)]), "no range within 0 .. 255"),
        (lambda nfa: nfa.repeat(nfa.empty(), 2, 1), "repeated 2 to 1 times"),
        (lambda nfa: nfa.embed(ops.widen(of_words(b"a"), 257)), "does not fit"),
    ],
)
def test_parts_that_cannot_be_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make(Nfa())


# ----------------------------------------------------------------------------------------------------- minimising


@st.composite
def random_dfas(draw) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
    """Arrays of a DFA over three classes with dead, unreachable and equivalent states."""
    n = draw(st.integers(1, 9))
    rows = draw(st.lists(st.lists(st.integers(-1, n - 1), min_size=4, max_size=4), min_size=n, max_size=n))
    class_of = np.full(256, 3, np.uint16)
    class_of[97:100] = draw(st.lists(st.integers(0, 2), min_size=3, max_size=3))
    transition = np.array(rows, np.int32)
    transition[:, 3] = -1
    accepting = np.array(draw(st.lists(st.booleans(), min_size=n, max_size=n)))
    return class_of, transition, accepting, draw(st.integers(0, n - 1))


@settings(deadline=None, max_examples=200)
@given(random_dfas())
def test_canonical_form_keeps_the_language_and_nothing_else(case):
    class_of, transition, accepting, start = case
    dfa = canonical(class_of, transition, accepting, start)
    check_canonical(dfa)
    for word in WORDS[:121]:
        state = start
        for symbol in word:
            state = transition[state, class_of[symbol]] if state >= 0 else -1
        assert dfa.accepts(word) == (state >= 0 and bool(accepting[state]))


@settings(deadline=None, max_examples=100)
@given(random_dfas(), st.randoms(use_true_random=False))
def test_the_same_language_gives_the_same_arrays_however_states_and_classes_are_numbered(case, random):
    class_of, transition, accepting, start = case
    n, classes = transition.shape
    # twice every state, the two mixed at random, then all of them and all classes shuffled
    doubled = np.concatenate([transition, transition])
    for s, c in itertools.product(range(2 * n), range(classes)):
        doubled[s, c] += n * random.randrange(2) if doubled[s, c] >= 0 else 0
    states, columns = list(range(2 * n)), list(range(classes))
    random.shuffle(states)
    random.shuffle(columns)
    place = np.append(np.argsort(states), -1)
    shuffled = np.ascontiguousarray(place[doubled][states][:, columns].astype(np.int32))
    ends = np.concatenate([accepting, accepting])[states]
    other = canonical(np.argsort(columns)[class_of].astype(np.uint16), shuffled, ends, int(place[start]))
    assert same(canonical(class_of, transition, accepting, start), other)


def distinct_states(transition: np.ndarray, accepting: np.ndarray) -> int:
    """Count classes of equivalent states by splitting all of them again and again, a missing transition as a state."""
    block, before = accepting.astype(np.int64), 0
    while len(set(block.tolist())) > before:
        before = len(set(block.tolist()))
        rows = np.column_stack([block, np.append(block, -1)[transition]])
        block = np.unique(rows, axis=0, return_inverse=True)[1].ravel()
    return before


@pytest.mark.long
@settings(deadline=None, max_examples=30)
@given(st.integers(0, 2**32 - 1), st.integers(60, 250), st.integers(1, 60), st.booleans())
def test_wide_automata_of_many_states_are_minimised_too(seed, classes, kinds, forward):
    # every state is one of a few kinds of rows, its targets any state of the right kind: at most `kinds` are distinct
    rng = np.random.default_rng(seed)
    n = 300
    kind = np.append(rng.integers(0, kinds, n), -1)
    wanted = np.where(rng.random((kinds, classes)) < 0.4, rng.integers(0, kinds, (kinds, classes)), -1)
    if forward:  # deep rather than wide
        wanted = np.where(wanted > np.arange(kinds)[:, None], wanted, -1)
    wanted[:-1, 0] = np.arange(1, kinds)
    wanted[:, 1:] = np.where(rng.random((kinds, 1)) < 0.5, wanted[:, 1:], -1)
    kind[:kinds] = np.arange(kinds)
    states_of = [np.flatnonzero(kind == k) for k in range(kinds)]
    transition = np.full((n, classes), -1, np.int32)
    for s in range(n):
        for c in np.flatnonzero(wanted[kind[s]] >= 0):
            transition[s, c] = rng.choice(states_of[wanted[kind[s], c]])
    accepting = (kind == kinds - 1)[:n]
    class_of = np.append(np.arange(classes), np.full(256 - classes, classes - 1)).astype(np.uint16)
    dfa = canonical(class_of, transition, accepting)
    assert dfa.num_states == distinct_states(wanted, np.arange(kinds) == kinds - 1)
    assert dfa.num_states == distinct_states(dfa.transition, dfa.accepting)
    for _ in range(20):
        state, word = 0, []
        while state >= 0 and len(word) < 2 * kinds:
            assert dfa.accepts(word) == accepting[state]
            ways = np.flatnonzero(transition[state] >= 0)
            if not ways.size:
                break
            word.append(int(rng.choice(ways)) if rng.random() < 0.97 else int(rng.integers(classes)))
            state = transition[state, word[-1]]


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 2**32 - 1), st.integers(2, 40), st.integers(20, 60), st.integers(1, 3))
def test_states_that_only_long_words_tell_apart_are_kept_apart(seed, words, length, letters):
    # a trie of long words, half of them with the ends of others: round after round tells only a few states apart
    rng = np.random.default_rng(seed)
    rows, accepting = [[-1] * letters], [False]
    texts = rng.integers(0, letters, (words, length))
    texts[::2, length // 2 :] = texts[1, length // 2 :]
    for text in texts.tolist():
        state = 0
        for letter in text:
            if rows[state][letter] < 0:
                rows[state][letter] = len(rows)
                rows.append([-1] * letters)
                accepting.append(False)
            state = rows[state][letter]
        accepting[state] = True
    transition, ends = np.array(rows, np.int32), np.array(accepting)
    dfa = canonical(np.minimum(np.arange(256), letters - 1).astype(np.uint16), transition, ends)
    assert dfa.num_states == distinct_states(transition, ends) == distinct_states(dfa.transition, dfa.accepting)
    for text in texts.tolist():
        assert dfa.accepts(text)
        assert not dfa.accepts(text[:-1])


@pytest.mark.parametrize("broken", ["target", "class", "start", "accepting"])
def test_arrays_that_are_no_dfa_are_refused(broken):
    class_of, transition, accepting = np.zeros(256, np.uint16), np.zeros((2, 1), np.int32), np.ones(2, np.bool_)
    transition[1, 0] = 2 if broken == "target" else 0
    class_of[255] = broken == "class"
    start = 2 if broken == "start" else 0
    with pytest.raises(ValueError, match="no DFA"):
        canonical(class_of, transition, accepting[1:] if broken == "accepting" else accepting, start)


# -------------------------------------------------------------------------------------------------------- algebra


@pytest.mark.long
@settings(deadline=None, max_examples=100)
@given(trees, trees)
def test_boolean_operations_are_those_of_sets(left, right):
    a, b = compiled(left), compiled(right)
    words_a, words_b = language(left, 4), language(right, 4)
    words = [w for w in WORDS if len(w) <= 4]
    for operation, expected in (
        (ops.union, words_a | words_b),
        (ops.intersection, words_a & words_b),
        (ops.difference, words_a - words_b),
        (ops.symmetric_difference, words_a ^ words_b),
    ):
        made = operation(a, b)
        check_canonical(made)
        assert accepted(made, words) == expected
    assert accepted(ops.complement(a), words) == set(words) - words_a
    assert ops.equivalent(a, b) == (ops.is_subset(a, b) and ops.is_subset(b, a))
    assert ops.is_subset(a, b) == ops.difference(a, b).is_empty


@settings(deadline=None, max_examples=60)
@given(trees, trees)
def test_the_laws_of_sets_hold_to_the_last_array(left, right):
    a, b = compiled(left), compiled(right)
    union, both, minus = ops.union(a, b), ops.intersection(a, b), ops.difference(a, b)
    assert same(ops.complement(union), ops.intersection(ops.complement(a), ops.complement(b)))
    assert same(ops.complement(both), ops.union(ops.complement(a), ops.complement(b)))
    assert same(ops.complement(ops.complement(a)), a)
    assert same(union, ops.union(b, a))
    assert same(both, ops.intersection(b, a))
    assert same(minus, ops.intersection(a, ops.complement(b)))
    assert ops.intersection(minus, b).is_empty
    assert ops.is_subset(a, union)
    assert ops.is_subset(both, a)
    assert same(ops.symmetric_difference(a, b), ops.difference(union, both))
    assert ops.symmetric_difference(a, a).is_empty


@settings(deadline=None, max_examples=60)
@given(trees, trees)
def test_concatenation_star_and_reversal_are_those_of_languages(left, right):
    a, b = compiled(left), compiled(right)
    words = [w for w in WORDS if len(w) <= 4]
    joined = ops.concat(a, b)
    assert accepted(joined, words) == language(Tree("concat", (left, right)), 4)
    assert accepted(ops.star(a), words) == language(Tree("repeat", (left,), (0, -1)), 4)
    assert accepted(ops.reverse(a), words) == {w[::-1] for w in language(left, 4)}
    assert same(ops.reverse(ops.reverse(a)), a)
    assert same(ops.reverse(joined), ops.concat(ops.reverse(b), ops.reverse(a)))
    assert same(ops.star(ops.star(a)), ops.star(a))


def test_the_complement_is_over_all_symbols_of_the_alphabet():
    everything = ops.complement(of_words())
    assert everything.num_states == 1
    assert everything.accepts(bytes(range(256)))
    markers = ops.complement(ops.widen(of_words(b"a"), 258))
    assert markers.accepts([97, 257])
    assert not markers.accepts([97])


def test_automata_over_different_alphabets_do_not_mix():
    a = of_words(b"a")
    wide = ops.widen(a, 257)
    for operation in (ops.union, ops.intersection, ops.difference, ops.concat, ops.equivalent, ops.is_subset):
        with pytest.raises(ValueError, match=r"widen\(\) the smaller"):
            operation(a, wide)


# -------------------------------------------------------------------------------------------------------- markers


@settings(deadline=None, max_examples=60)
@given(trees)
def test_widening_lets_looping_markers_stand_anywhere_and_others_nowhere(tree):
    dfa = compiled(tree)
    wide = ops.widen(dfa, 259, loops=(256, 258))
    check_canonical(wide)
    for word in WORDS[:121]:
        assert wide.accepts(word) == dfa.accepts(word)
        for at in range(len(word) + 1):
            assert wide.accepts([*word[:at], 258, 256, *word[at:]]) == dfa.accepts(word)
            assert not wide.accepts([*word[:at], 257, *word[at:]])
    assert same(ops.erase(wide, (256, 258)), dfa)


@st.composite
def marked_words(draw) -> list[list[int]]:
    return draw(st.lists(st.lists(st.sampled_from([97, 98, 255, 256, 257]), max_size=6), max_size=6))


@settings(deadline=None, max_examples=80)
@given(marked_words())
def test_erasing_markers_deletes_them_from_every_word(words):
    nfa = Nfa(258)
    dfa = determinize(nfa, nfa.union([nfa.literal(word) for word in words]))
    erased = ops.erase(dfa, (256, 257))
    check_canonical(erased)
    expected = {bytes(s for s in word if s < 256) for word in words}
    assert set(erased.members()) == expected


def test_erasing_a_marker_that_shares_a_range_with_bytes_keeps_the_bytes():
    nfa = Nfa(257)
    dfa = determinize(nfa, nfa.repeat(nfa.symbols([(250, 256)]), 2, 2))
    assert set(ops.erase(dfa, (256,)).members()) == {
        *(bytes([b]) for b in range(250, 256)),
        *(bytes(pair) for pair in itertools.product(range(250, 256), repeat=2)),
        b"",
    }


def test_markers_that_are_left_over_are_named():
    dfa = ops.widen(of_words(b"a"), 258, loops=(256, 257))
    with pytest.raises(ValueError, match="marker 257 is in use"):
        ops.erase(dfa, (256,))
    with pytest.raises(ValueError, match="only new symbols"):
        ops.widen(dfa, 258, loops=(257,))
    with pytest.raises(ValueError, match="2 markers: erase them"):
        next(dfa.members())


# ------------------------------------------------------------------------------------------------ counting, sampling


@settings(deadline=None, max_examples=100)
@given(trees)
def test_counts_and_members_agree_with_enumeration(tree):
    dfa, words = compiled(tree), language(tree, 5)
    assert dfa.count(5) == [sum(len(w) == n for w in words) for n in range(6)]
    ordered = sorted(words, key=lambda w: (len(w), w))
    found = list(itertools.takewhile(lambda w: len(w) <= 5, dfa.members(len(words) + 1)))
    assert found == ordered
    assert dfa.is_empty == (dfa.shortest() is None)
    if words:
        assert dfa.shortest() == ordered[0]
    # a DFA of N states accepts infinitely many words exactly if it accepts one of N to 2N - 1 symbols
    N = dfa.num_states
    assert dfa.is_finite == (not any(dfa.count(2 * N)[N:]))
    if dfa.is_finite:
        size = dfa.cardinality()
        assert size == sum(dfa.count(N))
        if size < 3000:  # nested repetitions can have more members than there is time
            assert len(set(dfa.members())) == size
    else:
        assert dfa.cardinality() is None


def test_cardinalities_are_exact_where_no_machine_integer_holds_them():
    nfa = Nfa()
    dfa = determinize(nfa, nfa.repeat(nfa.symbols([(0, 255)]), 0, 100))
    assert dfa.cardinality() == sum(256**n for n in range(101))
    assert dfa.count(100)[100] == 256**100


def test_members_of_an_infinite_language_come_in_shortlex_order_without_end():
    nfa = Nfa()
    dfa = determinize(nfa, nfa.repeat(nfa.union([nfa.literal(b"b"), nfa.literal(b"aa")]), 0, None))
    assert list(dfa.members(8)) == [b"", b"b", b"aa", b"bb", b"aab", b"baa", b"bbb", b"aaaa"]
    assert list(dfa.members(0)) == []


def test_sampling_is_uniform_over_members():
    dfa = of_words(b"", b"a", b"ab", b"abc", b"b", b"cab", b"cccc", b"toolong")
    rng = np.random.default_rng(5)
    draws = [dfa.sample(rng, 4) for _ in range(7000)]
    counts = {word: draws.count(word) for word in set(draws)}
    assert set(counts) == set(dfa.members()) - {b"toolong"}
    # chi-square with 6 degrees of freedom is above 22.5 once in a thousand
    assert sum((n - 1000) ** 2 / 1000 for n in counts.values()) < 22.5


def test_samples_of_a_language_of_astronomic_size_are_members_of_every_kind():
    nfa = Nfa()
    dfa = determinize(nfa, nfa.repeat(nfa.symbols([(97, 98)]), 1, 200))
    rng = np.random.default_rng(6)
    draws = [dfa.sample(rng, 300) for _ in range(200)]
    assert all(dfa.accepts(word) for word in draws)
    share = [len(word) == 200 for word in draws].count(True)  # half of all members have the full length
    assert 60 < share < 140
    assert abs(b"".join(draws).count(b"a") / len(b"".join(draws)) - 0.5) < 0.02
    assert len(dfa.sample(rng, 3)) <= 3


@pytest.mark.parametrize("budget", [Budget(seconds=0.1), Budget(bytes=1 << 20)])
def test_counting_members_stays_within_a_budget(budget):
    nfa = Nfa()
    dfa = determinize(nfa, nfa.repeat(nfa.symbols([(97, 122)]), 4000, 4000))
    with pytest.raises(BudgetError, match="counting members") as raised:
        dfa.sample(np.random.default_rng(0), 8000, meter=budget.begin())
    assert raised.value.reached < 2 * raised.value.allowed


def test_sampling_nothing_says_why():
    rng = np.random.default_rng(0)
    with pytest.raises(ConstraintError, match="no word is accepted"):
        of_words().sample(rng, 5)
    with pytest.raises(ConstraintError, match="the shortest has 6, so raise max_length"):
        of_words(b"longer").sample(rng, 5)


# ---------------------------------------------------------------------------------------------------------- UTF-8


BOUNDARIES = sorted(
    {
        min(max(edge + d, 0), 0x10FFFF)
        for edge in (0, 0x7F, 0x80, 0x7FF, 0x800, 0xFFF, 0xD7FF, 0xE000, 0xFFFF, 0x10000, 0x3FFFF, 0x40000, 0x10FFFF)
        for d in (-65, -64, -63, -1, 0, 1, 63, 64, 65)
    }
)


def is_surrogate(c: int) -> bool:
    return 0xD800 <= c <= 0xDFFF


code_points = st.one_of(st.sampled_from(BOUNDARIES), st.integers(0, 0x10FFFF))
range_lists = st.lists(st.tuples(code_points, code_points).map(lambda p: (min(p), max(p))), max_size=5)


@settings(deadline=None, max_examples=100)
@given(range_lists)
def test_a_character_class_holds_exactly_the_encodings_of_its_characters(ranges):
    dfa = utf8.char_class(tuple(ranges))
    assert all(not is_surrogate(c) for pair in utf8.normalize_ranges(ranges) for c in pair)
    for c in {*BOUNDARIES, *(min(max(e + d, 0), 0x10FFFF) for r in ranges for e in r for d in (-1, 0, 1))}:
        if not is_surrogate(c):
            assert dfa.accepts(chr(c).encode()) == any(low <= c <= high for low, high in ranges)
    scalars = sum(high - low + 1 for low, high in utf8.normalize_ranges(ranges))
    assert dfa.cardinality() == scalars  # so nothing else is accepted


LENGTHS = ((0, 0x7F), (0x80, 0x7FF), (0x800, 0xFFFF), (0x10000, 0x10FFFF))  # in 1, 2, 3, 4 bytes


def byte_ranges(ranges: list[tuple[int, int]]) -> list[tuple[tuple[int, int], ...]]:
    """Return sequences of byte ranges that together match exactly the encodings of these code points, in order."""
    sequences: list[tuple[tuple[int, int], ...]] = []
    for low, high in utf8.normalize_ranges(ranges):
        for first, last in LENGTHS:
            if max(low, first) <= min(high, last):
                split_bytes(max(low, first), min(high, last), sequences)
    return sequences


def split_bytes(low: int, high: int, sequences: list[tuple[tuple[int, int], ...]]) -> None:
    """Append the sequences for low .. high, all encoded in the same number of bytes."""
    tail = len(chr(high).encode()) - 1
    # where the ends differ above these bits, all below must run over 0 .. 2^bits - 1
    for bits in range(6 * tail, 0, -6):
        mask = (1 << bits) - 1
        if low & ~mask != high & ~mask:
            if low & mask:
                split_bytes(low, low | mask, sequences)
                split_bytes((low | mask) + 1, high, sequences)
                return
            if high & mask != mask:
                split_bytes(low, (high & ~mask) - 1, sequences)
                split_bytes(high & ~mask, high, sequences)
                return
    sequences.append(tuple(zip(chr(low).encode(), chr(high).encode(), strict=True)))


@settings(deadline=None, max_examples=60)
@given(range_lists)
def test_character_classes_and_byte_ranges_are_the_same_language(ranges):
    sequences = byte_ranges(ranges)
    nfa = Nfa()
    made = determinize(nfa, nfa.union([nfa.concat([nfa.symbols([r]) for r in s]) for s in sequences]))
    dfa = utf8.char_class(tuple(ranges))
    assert same(made, dfa)
    check_canonical(dfa)
    for before, after in itertools.pairwise(sequences):
        assert [high for _, high in before] < [low for low, _ in after], "sequences overlap or are out of order"


@settings(deadline=None, max_examples=60)
@given(range_lists)
def test_complemented_ranges_hold_every_other_scalar_value(ranges):
    rest = utf8.complement_ranges(ranges)
    assert utf8.complement_ranges(rest) == utf8.normalize_ranges(ranges)
    a, b = utf8.char_class(tuple(ranges)), utf8.char_class(rest)
    assert ops.intersection(a, b).is_empty
    assert same(ops.union(a, b), utf8.char_class(utf8.ANY))


@pytest.mark.parametrize(
    "data",
    [
        b"\x80",
        b"\xbf",
        b"\xc0\x80",
        b"\xc1\xbf",
        b"\xc2",
        b"\xc2\x00",
        b"\xe0\x80\x80",
        b"\xe0\x9f\xbf",
        b"\xe2\x82",
        b"\xed\xa0\x80",
        b"\xed\xbf\xbf",
        b"\xf0\x80\x80\x80",
        b"\xf0\x8f\xbf\xbf",
        b"\xf0\x9f\x98",
        b"\xf4\x90\x80\x80",
        b"\xf5\x80\x80\x80",
        b"\xff",
        b"a\xc2",
        b"\xc3\xa9\x80",
    ],
)
def test_overlong_truncated_and_surrogate_bytes_are_refused(data):
    with pytest.raises(UnicodeDecodeError):
        data.decode()
    assert not utf8.text().accepts(data)
    assert not utf8.char_class(utf8.ANY).accepts(data)
    assert not utf8.char_class(((0, 0x10FFFF),)).accepts(data)


@settings(deadline=None, max_examples=300)
@given(
    st.one_of(
        st.binary(max_size=6),
        st.lists(st.sampled_from([*b"\x00a\x7f\x80\x90\x9f\xa0\xbf\xc2\xe0\xed\xf0\xf4"]), max_size=6).map(bytes),
    )
)
def test_text_is_what_python_decodes(data):
    try:
        data.decode()
        valid = True
    except UnicodeDecodeError:
        valid = False
    assert utf8.text().accepts(data) == valid


@settings(deadline=None)
@given(st.text())
def test_text_accepts_every_string(string):
    assert utf8.text().accepts(string.encode())


def test_text_is_the_star_of_any_character():
    assert same(utf8.text(), ops.star(utf8.char_class(utf8.ANY)))
    check_canonical(utf8.text())


def test_the_class_of_word_characters_agrees_with_the_re_module():
    string = "".join(chr(c) for c in range(0x110000) if not is_surrogate(c))
    ranges = tuple((ord(m[0][0]), ord(m[0][-1])) for m in re.finditer(r"\w+", string))
    dfa = utf8.char_class(ranges)
    assert dfa.cardinality() == len(re.findall(r"\w", string))
    assert all(dfa.accepts(c.encode()) == bool(re.match(r"\w", c)) for c in string[:0x3000])


@pytest.mark.parametrize("bad", [(-1, 5), (0, 0x110000), (9, 8)])
def test_ranges_outside_unicode_are_refused(bad):
    with pytest.raises(ValueError, match="no range of code points"):
        utf8.char_class((bad,))


# --------------------------------------------------------------------------------------------------------- budgets


def explosive(nfa: Nfa, count: int = 18) -> Fragment:
    """A letter a, `count` letters from the end: 2^count states."""
    return nfa.concat(
        [
            nfa.repeat(nfa.symbols([(97, 98)]), 0, None),
            nfa.literal(b"a"),
            nfa.repeat(nfa.symbols([(97, 98)]), count - 1, count - 1),
        ]
    )


@pytest.mark.parametrize(
    ("budget", "message"),
    [
        (
            Budget(states=1000),
            r"more than 1,000 states, reached while determinising .*Raise it with budget=Budget\(states",
        ),
        (Budget(bytes=50_000), r"\d+ kB, reached while determinising \(budget: bytes=50,000; .*Budget\(bytes=\.\.\.\)"),
        (Budget(seconds=0.0), r"more than 0 s, reached while .*Raise it with budget=Budget\(seconds=\.\.\.\)"),
    ],
)
def test_determinising_beyond_a_limit_names_it(budget, message):
    nfa = Nfa()
    fragment = explosive(nfa)
    with pytest.raises(BudgetError, match=message):
        determinize(nfa, fragment, budget.begin())


def test_a_limit_that_is_exactly_enough_is_enough():
    for states, enough in ((4096, True), (4095, False)):
        nfa = Nfa(meter=Budget(states=states).begin())
        fragment = explosive(nfa, 12)
        if enough:
            assert determinize(nfa, fragment).num_states == 4096
        else:
            with pytest.raises(BudgetError):
                determinize(nfa, fragment)


def test_the_clock_stops_a_long_determinisation_soon_after_its_limit():
    nfa = Nfa(meter=Budget(states=1 << 40, bytes=1 << 40, seconds=0.3).begin())
    fragment = explosive(nfa, 40)
    begin = time.monotonic()
    with pytest.raises(BudgetError, match=r"seconds=0\.3; \d\.\d s"):
        determinize(nfa, fragment)
    assert time.monotonic() - begin < 3


def test_a_repetition_that_is_too_large_is_refused_before_it_is_made():
    nfa = Nfa(meter=Budget(bytes=1_000_000).begin())
    inner = nfa.repeat(nfa.symbols([(97, 98)]), 0, 1000)
    with pytest.raises(BudgetError, match="while repeating a part of 2,000 states 1,000 times"):
        nfa.repeat(inner, 1000, 1000)
    assert nfa.num_states == 2000


def test_products_and_reversals_stay_within_the_budget():
    nfa = Nfa()
    a, b = (determinize(nfa, nfa.repeat(nfa.literal(b"a"), 0, n)) for n in (99, 100))
    loop_a, loop_b = (determinize(nfa, nfa.repeat(nfa.repeat(nfa.literal(b"a"), n, n), 0, None)) for n in (97, 101))
    with pytest.raises(BudgetError, match="while intersecting"):
        ops.intersection(loop_a, loop_b, Budget(states=5000).begin())
    assert ops.intersection(loop_a, loop_b).num_states == 97 * 101
    assert ops.union(a, b, Budget(states=200).begin()).num_states == 101
    nfa = Nfa()
    backwards = ops.reverse(determinize(nfa, explosive(nfa, 16)))
    assert backwards.num_states == 17
    with pytest.raises(BudgetError, match="states"):
        ops.reverse(backwards, Budget(states=3000).begin())


@settings(deadline=None)
@given(st.lists(trees, min_size=1, max_size=4))
def test_several_languages_are_put_together_as_two_by_two_in_their_order(some):
    dfas = [compiled(tree) for tree in some]
    union = both = dfas[0]
    for dfa in dfas[1:]:
        union, both = ops.union(union, dfa), ops.intersection(both, dfa)
    assert ops.equivalent(ops.unions(dfas), union)
    assert ops.equivalent(ops.intersections(dfas), both)


def test_what_narrows_much_is_intersected_before_it_could_grow():
    def with_word(word: bytes) -> Dfa:
        nfa = Nfa()
        anything = [(0, 255)]
        around = [nfa.repeat(nfa.symbols(anything), 0, None) for _ in range(2)]
        return determinize(nfa, nfa.concat([around[0], nfa.literal(word), around[1]]))

    nfa = Nfa()
    few = determinize(nfa, nfa.repeat(nfa.symbols([(97, 98)]), 0, 3))
    words = [with_word(bytes([c]) * 40) for c in range(97, 105)]
    with pytest.raises(BudgetError, match="while intersecting"):
        reduce(lambda made, dfa: ops.intersection(made, dfa, Budget(states=5000).begin()), [*words, few])
    assert ops.intersections([*words, few], Budget(states=5000).begin()).is_empty


@pytest.mark.parametrize("shift", [0, 1, 8, 32, 48])
def test_keys_of_two_parts_are_spread_whichever_part_tells_them_apart(shift):
    slots = 1 << 16
    for few in (1, 18):
        keys = [high << shift | low for high in range(16_000 // few) for low in range(min(few, 1 << shift))]
        found = {slot_of(np.int64(key), slots) for key in keys}
        assert len(found) > 0.75 * len(keys)  # at random 0.89


@pytest.mark.parametrize(
    ("limits", "error", "message"),
    [
        ({"states": -1}, ValueError, "Budget(states=...) must be 1 or more, not -1"),
        ({"states": "x"}, TypeError, "Budget(states=...) must be an integer, not str: 'x'"),
        ({"states": 100.5}, TypeError, "Budget(states=...) must be an integer, not float: 100.5"),
        ({"states": True}, TypeError, "Budget(states=...) must be an integer, not bool"),
        ({"bytes": None}, TypeError, "Budget(bytes=...) must be an integer, not NoneType"),
        ({"bytes": 0}, ValueError, "Budget(bytes=...) must be 1 or more, not 0"),
        ({"seconds": None}, TypeError, "Budget(seconds=...) must be a number, not NoneType"),
        ({"seconds": float("nan")}, ValueError, "Budget(seconds=...) must be 0 or more, not nan"),
        ({"seconds": -1}, ValueError, "Budget(seconds=...) must be 0 or more, not -1"),
    ],
)
def test_what_is_no_limit_is_refused_when_the_budget_is_made(limits, error, message):
    with pytest.raises(error, match=re.escape(message)):
        Budget(**limits)


def test_limits_may_be_numbers_of_numpy_and_time_without_end():
    assert Budget(states=np.int32(5), seconds=np.float32(2), bytes=np.uint8(7)) == Budget(5, 2.0, 7)
    Budget(seconds=float("inf")).begin().check(states=1, doing="testing")


@pytest.mark.parametrize(("size", "shown"), [(10, "10 bytes"), (2_500, "2 kB"), (3_000_000, "3 MB")])
def test_a_size_is_said_in_a_unit_that_shows_it(size, shown):
    with pytest.raises(BudgetError, match=f"needs {shown}, reached while testing"):
        Budget(bytes=size - 1).begin().check(bytes=size, doing="testing")


def test_a_meter_remembers_the_most_that_was_asked_for():
    meter = Meter(Budget(states=10, bytes=100))
    meter.check(states=7, bytes=80, doing="testing")
    meter.check(states=3, doing="testing")
    assert (meter.states, meter.bytes) == (7, 80)
    with pytest.raises(BudgetError, match="7 states, 80 bytes so far"):
        meter.check(states=11, doing="testing")
