"""A lazy machine against a naive reader of the same rules, byte by byte."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import maskwright as mw
from maskwright.automata.alphabet import NOTHING
from maskwright.automata.budget import Budget
from maskwright.lazy.lazy_table import LazyTable
from maskwright.lazy.machine import memory
from maskwright.lazy.machine.lazy_machine import ByteMachine
from maskwright.lazy.machine.rules import CALL, DEAD, KEEP, POP
from maskwright.runtime.host.readers import reader_of
from maskwright.runtime.host.stack_reader import Limits, Stack

BYTES = list(b'ab1[]{},"\\ \xc3\xa9\xbf\xe2\x82')


class ToyAlphabet:
    """Characters of one byte, and some of two and three, which spell classes."""

    def __init__(self, rng: random.Random, classes: int) -> None:
        self.classes = classes
        self.root = np.full(256, NOTHING, np.int32)
        self.inner = np.full((3, 256), NOTHING, np.int32)
        self.reach = np.zeros((3, -(-classes // 64)), np.uint64)
        for byte in range(0x80) if rng.random() < 0.5 else BYTES:
            if byte < 0x80 and rng.random() < 0.9:
                self.root[byte] = ~rng.randrange(classes)
        for byte in range(0xC2, 0xE0) if rng.random() < 0.5 else [0xC3]:
            self.root[byte] = rng.randrange(2)
        self.root[0xE2] = rng.choice([NOTHING, 2])
        for n in range(2):
            for byte in range(0x80, 0xC0) if rng.random() < 0.5 else [0x82, 0xA9, 0xBF]:
                known = rng.choice([0, rng.randrange(classes)])
                self.inner[n, byte] = ~known
                self.reach[n, known >> 6] |= np.uint64(1) << np.uint64(known & 63)
        self.inner[2, 0x80:0xC0] = rng.randrange(2)
        self.reach[2] = self.reach[int(self.inner[2, 0x80])]


class ToyRules:
    """Random rows; `KEEP` only for classes that no character of several bytes has."""

    def __init__(self, rng: random.Random, states: int, frames: bool) -> None:
        self.alphabets: Any = [ToyAlphabet(rng, rng.choice([3, 9, 70])) for _ in range(2)]
        self.calls: list[tuple[int, tuple[int, ...]]] = []
        self.end = states
        self._of = [rng.randrange(2) for _ in range(states + 1)]
        self._accepts = [rng.random() < 0.4 for _ in range(states)] + [True]
        self.row_of: list[list[int]] = []
        self.asked: list[int] = []
        for state in range(states):
            alphabet = self.alphabets[self._of[state]]
            long = {int(~c) for c in alphabet.inner[:2][alphabet.inner[:2] != NOTHING].tolist()}
            row = []
            main = rng.choice([state, DEAD, rng.randrange(states)])
            for c in range(alphabet.classes):
                kind = rng.random()
                if kind < 0.5:
                    row.append(main)
                elif kind < 0.7 or not frames:
                    row.append(rng.choice([DEAD, rng.randrange(states)]))
                elif kind < 0.8:
                    row.append(POP)
                elif kind < 0.9:
                    row.append(POP if c in long else KEEP)
                else:
                    behind = tuple(rng.randrange(states) for _ in range(rng.choice([1, 1, 2, 3])))
                    self.calls.append((rng.randrange(states), behind))
                    row.append(CALL - len(self.calls) + 1)
            self.row_of.append(row)
        self.row_of.append([DEAD] * self.alphabets[self._of[states]].classes)
        self.nbytes = self.left_out = 0
        self.count_of: dict[int, tuple[int, int]] = {}
        self.end_of: dict[int, int] = {}
        if states > 3 and rng.random() < 0.7:
            self._count(rng, states)
        some = rng.choice([0, 0, 1, 4])  # rows that may be made with another
        self.neighbours = [[rng.randrange(states) for _ in range(some)] for _ in range(states + 1)]

    def _count(self, rng: random.Random, states: int) -> None:
        """Make the last states such as count the characters of most classes, and are alike else."""
        chain = list(range(states - rng.choice([2, 3]), states))
        self._of[chain[0] : states] = [self._of[chain[0]]] * len(chain)
        classes = self.alphabets[self._of[chain[0]]].classes
        model = self.row_of[rng.randrange(states)] if len(self.row_of[0]) == classes else [DEAD] * classes
        model = [each if each not in chain else DEAD for each in (model * classes)[:classes]]
        others = set(rng.sample(range(classes), classes // 4))
        for left, state in enumerate(chain):
            on = chain[left - 1] if left else DEAD
            self.row_of[state] = [model[c] if c in others else on for c in range(classes)]
            if left:
                self.count_of[state] = on, left
        for c in range(len(self.row_of[0])):
            if rng.random() < 0.3:
                self.row_of[0][c] = chain[-1]

    def alphabet_of(self, state: int) -> int:
        return self._of[state]

    def row(self, state: int) -> Sequence[int]:
        self.asked.append(state)
        return self.row_of[state]

    def rows(self, state: int) -> tuple[list[int], Any]:
        with_it = [each for each in self.neighbours[state] if self._of[each] == self._of[state]]
        states = [state, *{each for each in with_it if each != state and each not in self.row_of[each]}]
        self.row(state)
        return states, np.array([self.row_of[each] for each in states], np.int32)

    def accepts(self, state: int) -> bool:
        return self._accepts[state]

    def counts(self, state: int) -> tuple[int, int] | None:
        return self.count_of.get(state)

    def alike(self, state: int) -> int:
        return state

    def bytes_to_end(self, state: int) -> int | None:
        return self.end_of.get(state)

    def text_to_end(self, state: int) -> bytes | None:
        raise AssertionError("nobody asks for it here")


Place = tuple[int, int, tuple[int, ...]]
"""A state, a place within a character (0 for none, else 1 + its row), and the open frames, the outermost first."""


def naive_step(rules: ToyRules, place: Place, byte: int) -> Place | None:
    state, inner, frames = place
    while True:
        alphabet = rules.alphabets[rules.alphabet_of(state)]
        found = int(alphabet.inner[inner - 1, byte] if inner else alphabet.root[byte])
        if found == NOTHING:
            return None
        if found >= 0:
            at = found if found < 2 else int(alphabet.inner[found, 0x80])
            behind = {int(~c) for c in alphabet.inner[at].tolist() if c != NOTHING}
            return (state, found + 1, frames) if any(rules.row_of[state][c] != DEAD for c in behind) else None
        code = rules.row_of[state][~found]
        if code >= 0:
            return code, 0, frames
        if code == DEAD:
            return None
        if code <= CALL:
            to, behind_frames = rules.calls[CALL - code]
            return to, 0, (*frames, *behind_frames)
        if not frames:
            return (rules.end, 0, ()) if code == POP else None
        state, frames = frames[-1], frames[:-1]
        if code == POP:
            return state, 0, frames


def naive_read(rules: ToyRules, place: Place | None, text: bytes) -> Place | None:
    for byte in text:
        if place is None:
            return None
        place = naive_step(rules, place, byte)
    return place


@pytest.mark.parametrize("seed", range(60))
def test_masks_and_tokens_are_those_of_a_naive_reader(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(seed)
    every = (1 << 64) - 1  # tokens of any groups are kept, or none are
    monkeypatch.setattr(memory, "LETTERS", rng.choice([every, every, 0]))
    monkeypatch.setattr(memory, "SOME_GROUPS", 1)
    monkeypatch.setattr(memory, "MANY_CLASSES", 1)
    frames = seed % 3 > 0
    rules = ToyRules(rng, rng.choice([1, 3, 12]), frames)
    words = {bytes(rng.choice(BYTES) for _ in range(rng.choice([2, 3, 5, 9]))) for _ in range(150)}
    words |= {bytes([rng.choice(BYTES)]) * n for n in range(2, 6)}
    tokens = [b"", *(bytes([b]) for b in range(256)), *sorted(words)]
    vocab = mw.Vocabulary.from_bytes(tokens, eos=0)
    machine = ByteMachine(rules, vocab, Budget().begin(), frames)
    table = LazyTable(machine, lambda: None, vocab, source="", depth=0)  # type: ignore[arg-type,return-value]
    reader = reader_of(table, False)
    for _ in range(3):
        place, naive = reader.start(), (0, 0, ())
        for _ in range(12):
            expected = np.zeros(vocab.size, bool)
            after = {t: naive_read(rules, naive, tokens[t]) for t in range(1, vocab.size)}
            for token, found in after.items():
                expected[token] = found is not None
            expected[0] = not naive[2] and not naive[1] and rules.accepts(naive[0])
            mask = np.unpackbits(reader.mask(place).view(np.uint8), bitorder="little")[: vocab.size]
            assert np.array_equal(mask.astype(bool), expected)
            refused = [t for t in range(1, vocab.size) if after[t] is None]
            for token in rng.sample(refused, min(5, len(refused))):
                assert reader.step(place, token) is None
            allowed = [t for t in range(1, vocab.size) if after[t] is not None]
            if not allowed:
                break
            token = rng.choice(allowed[-8:] if rng.random() < 0.6 else allowed)
            place = reader.step(place, token)
            assert place is not None
            naive = after[token]  # type: ignore[assignment]
            state, inner = divmod(place[0], machine.num_inner)
            assert (state, tuple(place[1].as_array().tolist())) == (naive[0], naive[2])
            assert bool(inner) == bool(naive[1])


@pytest.mark.parametrize("seed", range(20))
def test_bounds_are_the_bytes_that_rules_say(seed: int) -> None:
    rng = random.Random(seed)
    rules = ToyRules(rng, 8, False)
    tokens = [b"", *(bytes([b]) for b in range(256)), b"ab", b"a1", b"[]", b"\xc3\xa9a", b"b\xc3"]
    machine = ByteMachine(rules, mw.Vocabulary.from_bytes(tokens, eos=0), Budget().begin())
    characters = [bytes([b]) for b in range(128)]
    leads = [*(bytes([b]) for b in range(0xC2, 0xE0)), b"\xe2\x80"]
    characters += [lead + bytes([b]) for b in range(0x80, 0xC0) for lead in leads]
    steps = {
        (state, found[0], len(text))
        for state in range(8)
        for text in characters
        if (found := naive_read(rules, (state, 0, ()), text)) is not None
    }
    far = dict.fromkeys(range(8), 1 << 30)
    for _ in range(9):  # the least number of bytes, until nothing changes
        far |= {state: 0 for state in range(8) if rules.accepts(state)}
        for state, to, length in steps:
            far[state] = min(far[state], length + far[to])
    rules.end_of = {state: length for state, length in far.items() if length < 1 << 30}
    stack = Stack(Limits(1 << 31, 0, 0, -1, 0, {}), -1, None)
    for state in range(8):
        place = state * machine.num_inner
        allowed = machine.mask(place, b"", -1)[0].copy()
        assert machine.nearest(place, stack) in ((far[state],) if far[state] < 1 << 30 else range(1 << 30, 1 << 31))
        after = {t: naive_read(rules, (state, 0, ()), tokens[t]) for t in range(1, len(tokens))}
        behind = {t: far[found[0]] for t, found in after.items() if found is not None and not found[1]}
        for room in (1, 2, 4, 100):
            mask = machine.within(place, stack, -1, room)
            assert not (mask & ~allowed).any()
            for token, found in after.items():
                is_allowed = bool(mask[token >> 5] >> (token & 31) & 1)
                if token in behind:
                    assert is_allowed == (behind[token] < room)
                elif found is not None and is_allowed:  # within a character: some way on ends in time
                    mores = [start + bytes([b]) for start in (b"", b"\x80") for b in range(0x80, 0xC0)]
                    nexts = [(len(more), naive_read(rules, found, more)) for more in mores]
                    assert any(x is not None and not x[1] and far[x[0]] + n < room for n, x in nexts)
        farthest = machine.farthest(place, stack)
        assert farthest >= max(behind.values(), default=-1)
        if all(found is None or not found[1] for found in after.values()):
            assert min(farthest, 1 << 30) == max(behind.values(), default=-1)


def test_a_row_is_made_once_and_only_where_a_text_comes() -> None:
    rng = random.Random(0)
    rules = ToyRules(rng, 500, False)
    vocab = mw.Vocabulary.from_bytes([b"", *(bytes([b]) for b in range(256))], eos=0)
    machine = ByteMachine(rules, vocab, Budget().begin())
    machine.mask(0, b"", -1)
    assert len(rules.asked) == 1
    machine.mask(1, b"", -1)
    assert len(rules.asked) <= 2


def test_a_machine_ends_at_its_budget_and_can_be_read_on() -> None:
    rules = ToyRules(random.Random(1), 50, False)
    vocab = mw.Vocabulary.from_bytes([b"", *(bytes([b]) for b in range(256))], eos=0)
    machine = ByteMachine(rules, vocab, Budget(states=3).begin())
    before, _, _ = machine.mask(0, b"", -1)
    kept = before.copy()
    machine.mask(machine.num_inner, b"", -1)
    with pytest.raises(mw.errors.BudgetError) as caught:
        [machine.mask(state * machine.num_inner, b"", -1) for state in range(50)]
    assert caught.value.limit == "states"
    assert machine.is_large
    assert np.array_equal(machine.mask(0, b"", -1)[0], kept)
