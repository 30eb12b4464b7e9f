"""`Matcher`: against the specification of tables, and texts of real tokenizers against `re`."""

from __future__ import annotations

import copy
import pickle
import re
import tracemalloc
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import maskwright as mw
from maskwright.automata.dfa import Dfa
from maskwright.compile.regex.lower import to_dfa
from maskwright.runtime import numpy_ops
from maskwright.runtime.device.device_table import State
from maskwright.runtime.host import matrix_reader
from maskwright.runtime.host.bitmask_rows import fill_bitmasks
from maskwright.runtime.host.readers import reader_of
from maskwright.table.sorted_matrix import SortedMatrix
from tests.oracles import naive
from tests.strategies import tokenizer_zoo
from tests.strategies.random_graphs import random_table, seeds, some
from tests.support.backends import bits_of


def small(tokens: str = "a b ab ba abc c", eos: int | None = 0) -> mw.Vocabulary:
    return mw.Vocabulary.from_bytes([b"", *tokens.encode().split()], eos=eos)


def allowed(matcher: mw.Matcher) -> list[int]:
    return np.flatnonzero(bits_of(matcher.mask()[None], matcher.table.vocab_size)[0]).tolist()


# ---------------------------------------------------------------------------------- against the specification


class MatcherMachine(RuleBasedStateMachine):
    """A matcher beside a list of the states that the specification has come through."""

    @initialize(seed=seeds, budget=st.none() | st.integers(0, 6))
    def begin(self, seed, budget):
        self.table = random_table(seed)
        self.most = None if budget is None else self.table.min_length + budget
        self.matcher = mw.Matcher(self.table, max_tokens=self.most)
        self.states, self.copies = [0], []

    def state_of(self, node: int) -> int:
        """What the matcher calls a state of the table."""
        return node

    def legal(self) -> dict[int, int]:
        """What may follow, by the definition."""
        edges = numpy_ops.edges(self.table, self.states[-1])
        if self.most is None:
            return edges
        room = self.most - len(self.states)
        return {t: s for t, s in edges.items() if t == self.table.eos or self.table.distance[s] <= room}

    @rule(data=st.data())
    def advance_by_what_is_allowed(self, data):
        legal = self.legal()
        if legal:
            token = data.draw(st.sampled_from(sorted(legal)))
            assert self.matcher.advance(token) is True
            self.states.append(legal[token])

    @rule(token=st.integers(0, 299))
    def advance_by_anything(self, token):
        if token >= self.table.vocab_size:
            with pytest.raises(ValueError, match=f"token {token} is outside the vocabulary"):
                self.matcher.advance(token)
            return
        legal = self.legal()
        assert self.matcher.advance(np.int64(token)) is (token in legal)
        if token in legal:
            self.states.append(legal[token])

    @rule(data=st.data())
    def rollback(self, data):
        n = data.draw(st.integers(0, len(self.states) - 1))
        self.matcher.rollback(n)
        del self.states[len(self.states) - n :]

    @rule()
    def reset(self):
        self.matcher.reset()
        self.states = [0]

    @rule()
    def fork(self):
        self.copies.append((self.matcher, list(self.states)))
        self.matcher = self.matcher.copy()

    @precondition(lambda self: getattr(self, "copies", None))
    @rule()
    def go_back_to_the_first_copy(self):
        self.matcher, self.states = self.copies.pop(0)

    @rule(data=st.data())
    def ask_about_tokens_ahead(self, data):
        tokens = data.draw(st.lists(st.integers(0, self.table.vocab_size - 1), max_size=3))
        legal, state = self.legal(), self.states[-1]
        for i, token in enumerate(tokens):
            if self.most is not None and i:
                return
            state = (legal if not i else numpy_ops.edges(self.table, state)).get(token, self.table.dead)
        assert self.matcher.accepts(tokens) is bool(self.table.is_accepting(state))

    @invariant()
    def it_stands_where_the_specification_does(self):
        if not hasattr(self, "matcher"):
            return
        matcher, legal = self.matcher, self.legal()
        assert matcher.state == self.state_of(self.states[-1])
        assert matcher.num_tokens == len(self.states) - 1
        assert allowed(matcher) == sorted(legal)
        ends = bool(self.table.is_accepting(self.states[-1]))
        assert matcher.is_accepting is ends
        assert matcher.is_finished is (ends and not set(legal) - {self.table.eos})
        assert ends or legal, "neither complete nor a token to write"
        left = None if self.most is None else max(0, self.most - len(self.states) + 1)
        assert matcher.remaining == left
        for other, states in self.copies:
            assert (other.state, other.num_tokens) == (self.state_of(states[-1]), len(states) - 1)


MatcherMachine.TestCase.settings = settings(
    max_examples=60, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
)
test_a_matcher_does_what_the_specification_says = MatcherMachine.TestCase


class SortedMatrixMachine(MatcherMachine):
    """A matcher over a sorted matrix beside the states of the table of the same set."""

    @initialize(drawn=naive.sid_sets(), budget=st.none() | st.integers(0, 6))
    def begin(self, drawn, budget):
        rows, vocab = drawn
        self.table = mw.compile_sids(rows, vocab)
        matrix = mw.sort_sids(rows, vocab)
        self.first: dict[int, int] = {}  # the first row that begins with a prefix, by its state
        for depth in range(matrix.length + 1):
            nodes = self.table.walk(matrix.sids[:, :depth]) if depth else np.zeros(len(matrix.sids), np.int64)
            for at, node in enumerate(nodes.tolist()):
                self.first.setdefault(node, at)
        self.most = None if budget is None else matrix.length + budget
        self.matcher = mw.Matcher(matrix, max_tokens=self.most)
        self.states, self.copies = [0], []

    def state_of(self, node: int) -> int:
        return self.first[node]


SortedMatrixMachine.TestCase.settings = MatcherMachine.TestCase.settings
test_a_matcher_over_a_sorted_matrix_does_what_the_specification_of_its_table_says = SortedMatrixMachine.TestCase


@some
@given(seeds, st.integers(0, 6))
def test_random_writing_within_max_tokens_ends_complete(seed, more):
    table = random_table(seed)
    rng = np.random.default_rng(seed)
    matcher = mw.Matcher(table, max_tokens=table.min_length + more)
    for _ in range(5):
        matcher.reset()
        tokens: list[int] = []
        while not matcher.is_finished:
            token = int(rng.choice(allowed(matcher)))
            assert matcher.advance(token)
            if token == table.eos:
                break
            tokens.append(token)
        assert len(tokens) <= table.min_length + more
        assert matcher.is_accepting
        assert table.accepts(tokens)


# ------------------------------------------------------------------------------------------------ sorted matrices


@pytest.mark.long
def test_rows_of_a_sorted_matrix_are_read_or_searched_whichever_is_less_and_nothing_is_built(monkeypatch):
    monkeypatch.setattr(mw.TransitionTable, "__post_init__", lambda *_: pytest.fail("a table was made"))
    rng = np.random.default_rng(0)
    sizes = ((7, np.uint8), (256, np.uint8), (65_536, np.uint16), (70_001, np.uint32))
    inputs = [rng.integers(0, vocab, (30_000, 2)) for vocab, _ in sizes]
    for (vocab, _), rows in zip(sizes, inputs, strict=True):
        rows[:9, 0], rows[0] = 3, vocab - 1
    matrices = [mw.sort_sids(rows, vocab) for (vocab, _), rows in zip(sizes, inputs, strict=True)]
    searched = []
    real = np.searchsorted
    monkeypatch.setattr(np, "searchsorted", lambda *args: searched.append(len(args[0])) or real(*args))
    for (vocab, dtype), rows, matrix in zip(sizes, inputs, matrices, strict=True):
        assert matrix.columns.dtype == dtype
        matcher = mw.Matcher(matrix)
        for prefix in ((), (3,), (vocab - 1,)):
            matcher.reset()
            assert all(matcher.advance(token) for token in prefix)
            at = len(prefix)
            assert allowed(matcher) == sorted({row[at] for row in rows.tolist() if tuple(row[:at]) == prefix})
            assert matcher.mask().shape == (-(-vocab // 32),)
    assert len(searched) == 1  # of all rows of 256 tokens; 7 tokens have 49 rows, and others too few
    assert searched[0] > matrix_reader.LEAP * 256


def test_a_matcher_over_a_sorted_matrix_ends_with_its_length_and_says_where_the_items_are():
    rows = [[3, 1, 2], [0, 2, 2], [3, 1, 0], [0, 2, 2]]
    matrix = mw.sort_sids(rows, 4)
    matcher = mw.Matcher(matrix, max_tokens=3)
    assert matcher.table is matrix
    assert repr(matcher) == "Matcher(state=0, num_tokens=0, max_tokens=3, is_accepting=False)"
    for token, choices, end in ((0, [0, 3], False), (2, [2], False), (2, [2], True)):
        assert allowed(matcher) == choices
        assert not matcher.is_finished
        assert matcher.advance(token)
        assert matcher.is_accepting is end
    assert matcher.is_finished
    assert (matcher.remaining, matcher.stack, allowed(matcher)) == (0, (), [])
    assert not any(matcher.advance(token) for token in range(4))
    assert matrix.input_rows(matcher.state)[0].tolist() == [1, 3]
    assert matcher.accepts([]) is True
    matcher.reset()
    assert [matcher.accepts(row) for row in (*rows, [3, 1, 1], [3, 1])] == [True] * 4 + [False] * 2
    with pytest.raises(ValueError, match="read-only"):
        matcher.mask()[0] = 0


def test_a_sorted_matrix_is_refused_what_its_table_is_refused():
    rows = [[3, 1, 2], [0, 2, 2]]
    made = mw.compile_sids(rows, 40), mw.sort_sids(rows, 40)
    assert made[0].vocabulary == made[1].vocabulary
    for ask in (
        lambda one: mw.Matcher(one, max_tokens=2),
        lambda one: mw.Matcher(one, max_tokens=2.5),
        lambda one: mw.Matcher(one, "x"),
        lambda one: mw.Matcher(one, small()),
        lambda one: mw.Matcher(one).forced_text(),
        lambda one: mw.Matcher(one).forced_tokens(),
        lambda one: mw.Matcher(one).rollback(1),
        *(lambda one, token=token: mw.Matcher(one).advance(token) for token in (-1, 40, 2**70, 1.0, "a", None)),
        lambda one: mw.Matcher(one).accepts([3, 99]),
    ):
        said = []
        for one in made:
            with pytest.raises((TypeError, ValueError)) as error:
                ask(one)
            said.append((error.type, str(error.value)))
        assert said[0] == said[1]


def test_sorted_matrices_that_have_matchers_can_be_copied_and_sent_away():
    matrix = mw.sort_sids([[3, 1, 2], [0, 2, 2]], 4)
    matcher = mw.Matcher(matrix, max_tokens=5)
    assert matcher.advance(3)
    assert matcher.mask().tolist() == [2]
    for other in (pickle.loads(pickle.dumps(matrix)), copy.deepcopy(matrix)):
        assert mw.Matcher(other).accepts([0, 2, 2])
    for twin in (pickle.loads(pickle.dumps(matcher)), copy.copy(matcher)):
        assert (twin.state, twin.num_tokens, twin.remaining) == (1, 1, 4)
        assert twin.advance(1)
    assert matcher.num_tokens == 1


def test_masks_kept_for_a_sorted_matrix_are_bounded_and_shared_by_threads():
    rows = np.random.default_rng(0).integers(0, 6, (500, 5))
    matrix, table = mw.sort_sids(rows, 6), mw.compile_sids(rows, 6)
    first = mw.Matcher(matrix)
    reader = reader_of(matrix, False)
    reader.most = 5

    def walk(row: list[int]) -> None:
        mine, theirs = first.copy(), mw.Matcher(table)
        for token in row:
            assert (mine.mask() == theirs.mask()).all()
            assert mine.advance(token) is theirs.advance(token) is True

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(walk, rows[:40].tolist()))
    assert 0 < len(reader.composed) <= 5


@pytest.mark.parametrize("size", [40, 6_000])
@pytest.mark.parametrize("make", [mw.sort_sids, mw.compile_sids])
def test_what_masks_take_is_counted_with_what_is_around_them_and_bounded(make, size):
    rows = np.random.default_rng(0).integers(0, size, (2_000, 4)).tolist()
    items = make(rows, size)
    matcher, host = mw.Matcher(items), reader_of(items, False)
    matcher.mask()
    before = host.nbytes
    tracemalloc.start()
    for row in rows:
        for token in row:
            assert matcher.advance(token)
            matcher.mask()
        matcher.reset()
    taken = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert 0.9 * taken < host.nbytes - before < 1.9 * taken
    assert host.nbytes / len(host.composed) * host.most <= 32 << 20
    assert host.most > (30 << 20) // (4 * host.words + 500)


# ------------------------------------------------------------------------------------------------ misuse


def test_what_is_no_token_is_refused_and_nothing_changes():
    matcher = mw.Matcher(mw.compile_regex("ab*", small()))
    assert matcher.advance(1)
    for token in (-1, 7, 2**70):
        with pytest.raises(ValueError, match=rf"token {token} is outside the vocabulary, 0 \.\. 6"):
            matcher.advance(token)
    for token in (1.0, "a", None, np.float32(1)):
        with pytest.raises(TypeError):
            matcher.advance(token)
    with pytest.raises(ValueError, match="outside the vocabulary"):
        matcher.accepts([2, 99])
    assert matcher.advance(1) is False
    assert (matcher.num_tokens, matcher.state) == (1, int(matcher.table.walk([[1]])[0]))
    for n in (2, -1):
        with pytest.raises(ValueError, match=f"cannot take back {n} tokens: 1 have been taken"):
            matcher.rollback(n)
    with pytest.raises(TypeError):
        matcher.rollback(1.0)
    assert matcher.num_tokens == 1


def test_what_a_matcher_cannot_be_made_of_is_refused():
    table = mw.compile_regex("ab*c", small())
    with pytest.raises(TypeError, match=r"a Matcher takes a TransitionTable, .* or a LiveFilter, not list"):
        mw.Matcher([])
    with pytest.raises(TypeError, match=r"a Matcher takes a Vocabulary, not str: .* Vocabulary\.from_bytes"):
        mw.Matcher(table, "x")
    with pytest.raises(mw.errors.VocabularyMismatchError, match="pass the vocabulary that it was compiled with"):
        mw.Matcher(table, small("x y"))
    with pytest.raises(ValueError, match="max_tokens=0 is less than the shortest match, 1 tokens"):
        mw.Matcher(table, max_tokens=0)
    with pytest.raises(TypeError):
        mw.Matcher(table, max_tokens=2.5)
    for ask in (mw.Matcher(table).forced_text, mw.Matcher(table).forced_tokens):
        with pytest.raises(ValueError, match=r"Matcher\(table, vocabulary\)"):
            ask()


@pytest.mark.parametrize("most", [None, 1, 2])
def test_after_eos_only_eos_follows_again_and_again(most):
    matcher = mw.Matcher(mw.compile_regex("ab*", small()), max_tokens=most)
    assert matcher.advance(1)
    for _ in range(4):
        assert matcher.advance(0)
        assert allowed(matcher) == [0]
        assert matcher.is_accepting
        assert matcher.is_finished
        assert not any(matcher.advance(token) for token in range(1, 7))
    matcher.rollback(4)
    assert allowed(matcher) == ([0] if most == 1 else [0, 2])


def test_without_eos_a_match_ends_where_it_stands():
    matcher = mw.Matcher(mw.compile_regex("ab", small(eos=None)))
    assert matcher.advance(3)
    assert matcher.is_accepting
    assert matcher.is_finished
    assert allowed(matcher) == []
    assert not matcher.advance(0)


def test_masks_cannot_be_written_to():
    for most in (None, 3):
        matcher = mw.Matcher(mw.compile_regex("(?:ab)*c", small()), max_tokens=most)
        with pytest.raises(ValueError, match="read-only"):
            matcher.mask()[0] = 0
        assert matcher.mask().dtype == np.uint32


def test_masks_kept_for_a_table_are_bounded(monkeypatch):
    table = mw.compile_regex("[ab]{0,60}c", small())
    matcher = mw.Matcher(table)
    reader = reader_of(table, False)
    reader.most = 5
    rng = np.random.default_rng(0)

    def walk(seed: int) -> None:
        own = matcher.copy()
        for _ in range(30):
            assert own.advance(1)
            assert (own.mask() == numpy_ops.bitmask(table, State(np.array([own.state])))[0]).all()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(walk, rng.integers(0, 9, 20)))
    assert 0 < len(reader.composed) <= 5


def test_tables_that_have_matchers_can_be_copied_and_sent_away():
    table = mw.compile_regex("ab*c", small())
    matcher = mw.Matcher(table)
    assert matcher.advance(1)
    for other in (pickle.loads(pickle.dumps(table)), copy.deepcopy(table)):
        assert mw.Matcher(other).advance(3)
    for twin in (copy.copy(matcher), copy.deepcopy(matcher)):
        assert twin.table is table
        assert twin.advance(2)
        assert (twin.num_tokens, matcher.num_tokens) == (2, 1)


def test_a_matcher_can_be_sent_away_and_goes_on_from_where_it_stands():
    vocab = small()
    matcher = mw.Matcher(mw.compile_regex("ab*c", vocab), vocab, max_tokens=4)
    assert matcher.advance(1)
    assert matcher.advance(2)
    twin = pickle.loads(pickle.dumps(matcher))
    assert (twin.state, twin.num_tokens, twin.remaining) == (matcher.state, 2, 2)
    assert twin.mask().tolist() == matcher.mask().tolist()
    twin.rollback(1)
    assert twin.forced_text() == matcher.copy().forced_text()
    assert [twin.advance(6), matcher.num_tokens] == [True, 2]


def test_a_matcher_shows_where_it_stands():
    matcher = mw.Matcher(mw.compile_regex("ab*", small()))
    assert repr(matcher) == "Matcher(state=0, num_tokens=0, is_accepting=False)"
    assert matcher.advance(1)
    assert repr(matcher) == f"Matcher(state={matcher.state}, num_tokens=1, is_accepting=True)"
    assert "max_tokens=3, " in repr(mw.Matcher(matcher.table, max_tokens=3))


# ------------------------------------------------------------------------------------------------ jumping forward


def continuation(dfa: Dfa, state: int) -> bytes:
    """What every member goes on with from a state, byte by byte."""
    text = b""
    while not dfa.accepting[state]:
        following = [b for b in range(256) if dfa.step(state, b) >= 0]
        if len(following) != 1:
            break
        text += bytes(following)
        state = dfa.step(state, following[0])
    return text


PATTERNS = [
    r'\{"name": "[a-z]+", "age": \d{1,3}\}',
    "(?:the quick |the quiet )?brown fox",
    "abcabcabc(?:abc)*d",
    "naïve (?:ж|з)x{3}",
    "(?:true|false|null)",
    "x{3,5}y",
]


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("make", [tokenizer_zoo.byte_level_bpe, tokenizer_zoo.tiktoken_bpe])
def test_forced_text_is_what_every_match_goes_on_with(pattern, make):
    _, vocab = make()
    table, dfa = mw.compile_regex(pattern, vocab), to_dfa(pattern)
    rng = np.random.default_rng(0)
    for _ in range(8):
        matcher, text = mw.Matcher(table, vocab), b""
        while not matcher.is_finished:
            state = 0
            for byte in text:
                state = dfa.step(state, byte)
            forced = matcher.forced_text()
            assert forced == continuation(dfa, state)
            tokens = matcher.forced_tokens()
            spelt = vocab.decode(tokens)
            assert forced.startswith(spelt)
            before = matcher.num_tokens
            walker = matcher.copy()
            assert all(walker.advance(token) for token in tokens)
            assert matcher.num_tokens == before, "the matcher does not move"
            whole = forced.decode("utf-8", "ignore").encode()
            own = vocab.encode(whole)
            if walker.is_finished:
                assert tokens == own
            else:
                assert tokens == own[: max(0, len(own) - 1)]
            bytewise = matcher.copy()
            assert all(bytewise.advance(vocab.tokens.index(bytes([b]))) for b in forced)
            for token in tokens or [int(rng.choice([t for t in allowed(matcher) if t != table.eos] or [vocab.eos]))]:
                assert matcher.advance(token)
                text += vocab.tokens[token]
        assert re.fullmatch(pattern, text.decode())


@some
@given(st.data())
def test_forced_text_of_gappy_vocabularies_is_what_every_path_of_tokens_spells(data):
    """Without all bytes as tokens, what bytes could write is not what tokens can."""
    words = data.draw(st.sets(st.text("abc", min_size=1, max_size=3), min_size=1, max_size=6))
    vocab = mw.Vocabulary.from_bytes([b"", *sorted(w.encode() for w in words)], eos=0)
    choices = ["".join(data.draw(st.lists(st.sampled_from(sorted(words)), min_size=1, max_size=5))) for _ in range(2)]
    table = mw.compile_choices(choices, vocab)
    spelt = {b""} - {b""}
    paths = [((), 0)]
    while paths:
        path, node = paths.pop()
        if table.is_accepting(node):
            spelt.add(vocab.decode(path))
        paths += [((*path, t), s) for t, s in numpy_ops.edges(table, node).items() if t]
    shortest = min(spelt, key=len)
    common = next(n for n in range(len(shortest), -1, -1) if all(text.startswith(shortest[:n]) for text in spelt))
    assert mw.Matcher(table, vocab).forced_text() == shortest[:common]


def test_forced_text_looks_past_tokens_that_begin_like_others():
    vocab = mw.Vocabulary.from_bytes([b"", b"a", b"ab", b"c", b"d"], eos=0)
    matcher = mw.Matcher(mw.compile_choices(["abd", "acd"], vocab), vocab)
    assert matcher.forced_text() == b"a", "after the token a, only c: but ab is a token as well"
    assert mw.Matcher(mw.compile_choices(["abd"], vocab), vocab).forced_text() == b"abd"
    assert mw.Matcher(mw.compile_choices(["abd"], vocab), vocab).forced_tokens() == [2, 4]


def test_forced_tokens_stop_before_a_character_that_is_not_forced():
    _, vocab = tokenizer_zoo.byte_level_bpe()
    matcher = mw.Matcher(mw.compile_choices(["quick жж", "quick зз"], vocab), vocab)
    assert matcher.forced_text() == b"quick \xd0"
    assert matcher.forced_tokens() == vocab.encode("quick ")[:-1]
    single = [b"", *(bytes([b]) for b in range(256)), b"quick"]
    vocab = mw.Vocabulary.from_bytes(single, eos=0, encode=lambda text: [1 + b for b in text.encode()])
    matcher = mw.Matcher(mw.compile_choices(["quick жж", "quick зз"], vocab), vocab)
    assert matcher.forced_tokens() == [1 + b for b in b"quick"], "as this tokenizer writes it, not in long tokens"


def test_forced_tokens_keep_within_the_budget():
    vocab = small("a b ab abab")
    table = mw.compile_regex("abab", vocab)
    assert mw.Matcher(table, vocab).forced_tokens() == [4]
    byte_by_byte = mw.Vocabulary.from_bytes(vocab.tokens, eos=0, encode=lambda text: ["ab".index(c) + 1 for c in text])
    assert mw.Matcher(table, byte_by_byte).forced_tokens() == [1, 2, 1, 2]
    tight = mw.Matcher(table, byte_by_byte, max_tokens=3)
    assert tight.forced_tokens() == [1]
    assert [tight.advance(token) for token in (1, 2, 1, 3)] == [True, True, False, True]
    assert tight.is_finished


@pytest.mark.parametrize(
    "name", ["mistral v1", "mistral v3", "mistral v7", "byte-fallback BPE", "Metaspace Unigram", "tekken"]
)
def test_forced_tokens_are_found_where_the_tokenizer_puts_a_space_before_a_text(name):
    _, vocab = tokenizer_zoo.ZOO[name].make()
    table = mw.compile_regex(r'\d\{"name": "Ada", "age": \d+\}', vocab)
    matcher = mw.Matcher(table, vocab)
    assert matcher.advance(vocab.tokens.index(b"7"))
    tokens = matcher.forced_tokens()
    forced = b'{"name": "Ada", "age": '
    assert matcher.forced_text() == forced
    assert forced.startswith(vocab.decode(tokens))
    assert vocab.decode(tokens).startswith(b'{"name": "Ada"')
    assert tokens == vocab.encode(forced)[:-1]
    assert all(matcher.advance(token) for token in tokens)


# ------------------------------------------------------------------------------------------------ tries


def test_tables_of_sequences_are_matched_too():
    rows = [(3, 1, 4), (3, 1), (5, 9, 2, 6), (3, 5)]
    matcher = mw.Matcher(mw.compile_sequences(rows, vocab_size=40, eos=0))
    assert allowed(matcher) == [3, 5]
    assert [matcher.advance(t) for t in (3, 2, 1)] == [True, False, True]
    assert allowed(matcher) == [0, 4]
    assert matcher.accepts([]) and matcher.accepts([4, 0]) and not matcher.accepts([5])  # noqa: PT018
    assert matcher.advance(4)
    assert allowed(matcher) == [0]
    assert matcher.is_finished
    short = mw.Matcher(matcher.table, max_tokens=2)
    assert allowed(short) == [3]
    assert [short.advance(t) for t in (5, 3, 1, 4, 0)] == [False, True, True, False, True]


# ------------------------------------------------------------------------------------------- real tokenizers

TEXTS = [
    r"[a-z]{1,8}(?: [a-z]{1,8}){0,3}",
    r"(?:\+\d{1,2} )?\d{3}-\d{4}",
    r'\{"name": "(?:[^"\\\x00-\x1f]|\\["\\nt]){0,9}", "age": (?:0|[1-9]\d?)\}',
    r"[а-яё]{2,6}|[ぁ-ん]{1,4}|👩|é{2}",
    r"(?=.*\d)[\w ]{3,10}!",
    r"(?: (?:the|dog|fox|quick|1|2|,)){1,4}",
]
FEWER = {
    "WordPiece": 1,
    "WordPiece, no clean-up": 1,
    "BPE with </w>": 1,
    "WordLevel": 0,
}  # members that are written at the least: these tokenizers lack bytes, and are trained anew each time


@pytest.mark.long
@pytest.mark.parametrize("name", tokenizer_zoo.ZOO)
def test_members_can_be_written_as_the_tokenizer_writes_them_and_nothing_else_can(name):
    _, vocab = tokenizer_zoo.ZOO[name].make()
    rng = np.random.default_rng(0)
    closing = [] if vocab.eos is None else [vocab.eos]
    tried = 0
    for pattern in TEXTS:
        dfa = to_dfa(pattern)
        try:
            table = mw.compile_regex(pattern, vocab)
            least = mw.compile_regex(pattern, vocab, lazy=False).min_length
        except mw.errors.ConstraintError:  # no text of this kind can be written with it
            continue
        for length in (8, 30):
            for _ in range(4):
                try:
                    member = dfa.sample(rng, max(length, len(dfa.shortest() or b"")))
                    tokens = vocab.encode(member)
                except mw.errors.ConstraintError:  # it has no tokens for this one
                    continue
                assert vocab.decode(tokens) == member
                tried += 1
                assert table.accepts(tokens)
                assert table.accepts([*tokens, *closing])
                matcher = mw.Matcher(table, vocab)
                assert matcher.accepts([*tokens, *closing])
        for _ in range(3):
            matcher, written = mw.Matcher(table, max_tokens=least + 12), []
            while not matcher.is_finished:
                token = int(rng.choice(allowed(matcher)))
                assert matcher.advance(token)
                written.append(token)
            text = vocab.decode(t for t in written if t != vocab.eos).decode()
            assert re.fullmatch(pattern, text), (pattern, text)
    assert tried == 8 * len(TEXTS) if vocab.spells_all_bytes else tried >= FEWER.get(name, 8)


# ------------------------------------------------------------------------------------------ as engines drive them


def constraints() -> list[mw.LazyTable | mw.TransitionTable | SortedMatrix]:
    """Return one of each kind that a matcher reads: without calls, with calls, lazy, a matrix, and one without EOS."""
    vocab = tokenizer_zoo.byte_level_bpe()[1]
    nested = {"type": "object", "properties": {"a": {"type": "array", "items": {"enum": [1, "x"]}}}}
    return [
        mw.compile_regex("[ab]{2,4}c?", vocab),
        mw.compile_json_schema(nested, vocab).to_table(),
        mw.compile_json_schema(nested, vocab, lazy=True),
        mw.sort_sids(np.array([[1, 2, 3], [1, 4, 5]]), vocab_size=70),
        mw.compile_sids(np.array([[1, 2, 3], [1, 4, 5]]), vocab_size=70),
    ]


def walks(table, rng) -> list[int]:
    """Return tokens that a matcher takes, chosen at random, up to the end if it comes soon."""
    matcher, taken = mw.Matcher(table), []
    while len(taken) < 30 and not matcher.is_terminated:
        token = int(rng.choice(allowed(matcher)))
        assert matcher.advance(token)
        taken.append(token)
    return taken


@pytest.mark.parametrize("which", range(5))
def test_what_engines_call_says_what_single_steps_say(which):
    table, rng = constraints()[which], np.random.default_rng(which)
    size = table.vocab_size
    for _ in range(12):
        tokens = walks(table, rng)
        stepped, given = mw.Matcher(table), mw.Matcher(table)
        for at, token in enumerate(tokens):
            assert not stepped.is_terminated
            rows = np.full((3, -(-size // 32) + 1), -1, np.int32)
            stepped.fill_bitmask(rows, 1)
            assert rows[1, :-1].view(np.uint32).tolist() == stepped.mask().tolist()
            assert rows[1, -1] == 0
            assert (rows[[0, 2]] == -1).all()
            drafts = [*tokens[at:], int(rng.integers(size)), int(rng.integers(size))]
            follows = mw.Matcher(table)
            assert follows.accept_tokens(tokens[:at])
            count = 0
            for draft in drafts:  # the definition: one after the other, none after the end
                if follows.is_terminated or not follows.advance(draft):
                    break
                count += 1
            assert stepped.validate_tokens(drafts) == count >= len(tokens) - at
            assert stepped.num_tokens == at
            assert stepped.advance(token)
        wrong = [t for t in range(size) if t not in set(allowed(stepped))][:1]
        if wrong:
            assert given.accept_tokens([*tokens, *wrong]) is False
            assert given.num_tokens == 0
        assert given.accept_tokens(iter(tokens)) is True
        assert given.num_tokens == len(tokens)
        assert given.is_terminated is stepped.is_terminated
        given.rollback(len(tokens))
        assert given.mask().tolist() == mw.Matcher(table).mask().tolist()


def test_a_sequence_has_ended_once_it_has_taken_eos_or_can_take_nothing_more():
    matcher = mw.Matcher(mw.compile_regex("ab?", small()))
    ends = []
    for token in (1, 2, 0, 0):
        assert matcher.advance(token)
        ends.append(matcher.is_terminated)
    assert ends == [False, False, True, True]
    matcher.rollback(2)
    assert matcher.is_finished
    assert not matcher.is_terminated
    assert matcher.validate_tokens([0, 0]) == 1
    endless = mw.Matcher(mw.compile_regex("ab?", small(eos=None)))
    assert [endless.advance(1), endless.is_terminated, endless.advance(2), endless.is_terminated] == [
        True, False, True, True,
    ]  # fmt: skip


@pytest.mark.parametrize("eos", [0, None])
@pytest.mark.parametrize("sids", [[[1, 2, 3], [1, 2, 4], [5, 6, 7]], [[1], [1, 2]], [[4]]])
def test_a_sequence_of_a_set_ends_as_any_other(sids, eos):
    table = mw.compile_sequences(sids, vocab_size=8, eos=eos)
    for sid in sids:
        matcher = mw.Matcher(table)
        assert matcher.accept_tokens(sid)
        goes_on = any(other[: len(sid)] == sid and other != sid for other in sids)
        assert matcher.is_terminated is (eos is None and not goes_on)
        if eos is not None:
            assert matcher.validate_tokens([eos, eos]) == 1
            assert matcher.advance(eos)
            assert matcher.is_terminated
            matcher.rollback(1)
            assert not matcher.is_terminated


def test_bitmasks_of_torch_are_filled_where_they_are():
    torch = pytest.importorskip("torch")
    matcher = mw.Matcher(mw.compile_regex("(ab)+", small()))
    rows = torch.full((2, 1), -1, dtype=torch.int32)
    matcher.fill_bitmask(rows[1:])
    assert rows[0].tolist() == [-1]
    assert rows[1].numpy().view(np.uint32).tolist() == matcher.mask().tolist()


@pytest.mark.parametrize(
    ("bitmask", "row", "error", "message"),
    [
        (np.zeros((2, 1), np.int64), 0, TypeError, "int32 or uint32, not int64"),
        (np.zeros(1, np.int32), 0, ValueError, "two axes"),
        (np.zeros((2, 0), np.int32), 0, ValueError, "the vocabulary takes 1"),
        (np.zeros((2, 1), np.int32), 2, IndexError, "row 2 is outside"),
        (np.zeros((2, 1), np.int32), -1, IndexError, "row -1 is outside"),
        ([[0]], 0, TypeError, "not list"),
    ],
)
def test_bitmasks_that_cannot_be_filled_are_refused(bitmask, row, error, message):
    with pytest.raises(error, match=message):
        mw.Matcher(mw.compile_regex("(ab)+", small())).fill_bitmask(bitmask, row)


@pytest.mark.parametrize("threads", [1, 3])
def test_rows_that_threads_fill_are_those_of_each_matcher(threads):
    tables, rng = constraints()[:3], np.random.default_rng(7)
    matchers = []
    for at in range(40):
        matchers.append(mw.Matcher(tables[at % 3]))
        assert matchers[-1].accept_tokens(walks(tables[at % 3], rng)[: at % 5])
    rows = rng.permutation(44)[:40]
    bitmask = np.full((44, -(-tables[0].vocab_size // 32)), -1, np.int32)
    fill_bitmasks(matchers, bitmask, rows, threads=threads)
    for matcher, row in zip(matchers, rows, strict=True):
        assert bitmask[row].view(np.uint32).tolist() == matcher.mask().tolist()
    assert (np.delete(bitmask, rows, axis=0) == -1).all()


def test_threads_refuse_what_they_cannot_fill_and_hand_on_errors():
    matcher = mw.Matcher(mw.compile_regex("(ab)+", small()))
    bitmask = np.zeros((4, 1), np.int32)
    with pytest.raises(ValueError, match="a matcher comes twice"):
        fill_bitmasks([matcher, matcher], bitmask)
    with pytest.raises(ValueError, match="1 rows and 2 matchers"):
        fill_bitmasks([matcher, matcher.copy()], bitmask, [0])
    with pytest.raises(ValueError, match="threads=0"):
        fill_bitmasks([matcher], bitmask, threads=0)
    with pytest.raises(IndexError, match="row 9"):
        fill_bitmasks([matcher, matcher.copy()], bitmask, [0, 9], threads=2)
    fill_bitmasks([], bitmask)
    assert not bitmask[1:].any()
