"""Fragments of a machine that are bound on their own: a table puts their rows at their place."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from ...automata.budget import Meter
from ...automata.state_ranges import DEAD, RETURN
from ...kernels.compiled import kernel
from ...kernels.deadline import is_late
from ...table.groups import Bases, Exits, TokenClasses
from ...vocabulary.vocabulary import Vocabulary
from .arrays import TokenText, TrieArrays
from .bind import table_arrays, walked
from .symbols import ADMIT_NONE, Symbols, is_full, more_symbols, symbol_of


class Fragment(NamedTuple):
    """The rows of n states that follow one another, numbered from 0."""

    edge_count: NDArray[np.int32]  # (n,) own edges
    edge_token: NDArray[Any]
    edge_target: NDArray[np.int32]  # from 0; n for the dead state
    base: NDArray[np.int32]  # (n,) of `bases`, or of `CountedStrings` if there are none
    bases: Bases
    classes: TokenClasses
    exits: Exits  # lists of rows alone; symbols are those of the whole table

    @property
    def nbytes(self) -> int:
        """The size of the arrays in bytes."""
        arrays = (self.edge_count, self.edge_token, self.edge_target, self.base)
        return sum(array.nbytes for array in (*arrays, *self.bases, *self.classes, *self.exits))


class CountedStrings(Protocol):
    """Strings whose characters are counted: fragments that share bases."""

    def fragment(self, low: int, high: int | None, meter: Meter) -> Fragment:
        """Return the rows of a string of low .. high characters; of at least low if high is None."""
        ...

    def shared_bases(self) -> tuple[Bases, TokenClasses]:
        """Return the bases of all fragments that were made so far."""
        ...


def exits_of_rows(
    of_row: NDArray[np.int32], start: NDArray[np.int32], token: NDArray[Any], symbol: NDArray[np.int32], bases: int
) -> Exits:
    """Return the exit lists of a fragment's rows; its bases have none."""
    return Exits(of_row, np.full(bases, -1, np.int32), start, token, symbol, np.zeros(0, np.int32))


def bind_fragment(
    class_of: NDArray[Any], codes: NDArray[np.int32], vocabulary: Vocabulary, closes: NDArray[np.bool_],
    text: TokenText, symbols: Symbols, counters: NDArray[np.int64], meter: Meter,
) -> tuple[Fragment, Symbols]:  # fmt: skip
    """Bind a text automaton; its exits are of `symbols`, which may grow. Raises BudgetError.

    codes: (N, C) states, or how the fragment ends. closes: (M,) of each trie node, whether a byte that ends the
    fragment is there or below.
    """
    states = len(codes)
    classes = np.ascontiguousarray(class_of, np.int32)
    transition = np.where(codes >= 0, codes, -1).astype(np.int32)
    rows = walked(classes, transition, np.ones(states, np.bool_), vocabulary, meter)
    arrays = table_arrays(rows, np.zeros(states, np.bool_), np.arange(states, dtype=np.int32), vocabulary.size)
    exits, symbols = _exits(classes, codes, vocabulary, closes, text, symbols, counters, meter)
    target = arrays.edges.target
    return Fragment(
        edge_count=np.diff(arrays.rows.edge_start).astype(np.int32),
        edge_token=arrays.edges.token[:-2],
        edge_target=np.where(target == states + 1, states, target).astype(np.int32),
        base=arrays.rows.base,
        bases=arrays.bases,
        classes=arrays.classes,
        exits=exits._replace(of_base=np.full(arrays.bases.mask.size, -1, np.int32)),
    ), symbols


class _ExitLists(NamedTuple):
    """Exit lists as they are found; equal ones are kept once."""

    of_row: NDArray[np.int32]
    start: NDArray[np.int32]
    hashes: NDArray[np.uint64]
    token: NDArray[np.int32]
    symbol: NDArray[np.int32]


def _exits(
    classes: NDArray[np.int32], codes: NDArray[np.int32], vocabulary: Vocabulary, closes: NDArray[np.bool_],
    text: TokenText, symbols: Symbols, counters: NDArray[np.int64], meter: Meter,
) -> tuple[Exits, Symbols]:  # fmt: skip
    """Return the exits of a text automaton's states, and the symbols, which may have grown."""
    states, trie = len(codes), TrieArrays.of(vocabulary.trie)
    room, most = trie.token.size + 65_536, 1024
    found = _ExitLists(
        np.empty(states, np.int32), np.zeros(most + 1, np.int32), np.empty(most, np.uint64), np.empty(room, np.int32),
        np.empty(room, np.int32),
    )  # fmt: skip
    done, lists = 0, 0
    while done < states:
        done, lists = _walk_exits(classes, codes, trie, closes, text, symbols, counters, found, done, lists)
        if done < 0:
            done, symbols = -1 - done, more_symbols(symbols, text, counters)
        elif done < states:
            meter.check(bytes=16 * found.token.size, doing="binding a string")
            found = _ExitLists(found.of_row, *(_doubled(array) for array in found[1:]))
    used = int(found.start[lists])
    start, token, symbol = found.start[: lists + 1], found.token[:used], found.symbol[:used]
    return exits_of_rows(found.of_row, start.copy(), token.copy(), symbol.copy(), 0), symbols


def _doubled(array: NDArray[Any]) -> NDArray[Any]:
    out = np.zeros(2 * len(array), array.dtype)
    out[: len(array)] = array
    return out


@kernel
def _walk_exits(
    class_of: NDArray[np.int32], codes: NDArray[np.int32], trie: TrieArrays, closes: NDArray[np.bool_],
    text: TokenText, symbols: Symbols, counters: NDArray[np.int64], found: _ExitLists, first: int, lists: int,
) -> tuple[int, int]:  # fmt: skip
    """Find the exits of a text automaton's states from `first` on.

    Returns (states done, lists); the states as minus one less if there is no room for more symbols.
    """
    byte, skip, depth, token_start = trie.byte, trie.skip, trie.depth, trie.token_start
    token, root_start = trie.token, trie.root_start
    of_row, list_start, out_token, out_symbol = found.of_row, found.start, found.token, found.symbol
    data, start = text
    slots, remainders, symbol_slots, known = symbols
    levels = 2
    for i in range(depth.size):
        if depth[i] + 2 > levels:
            levels = depth[i] + 2
    state = np.empty(levels, np.int32)
    for s in range(first, len(codes)):
        begin = list_start[lists]
        if is_late() or begin + token.size > out_token.size or lists + 2 > list_start.size:
            return s, lists
        count = begin
        state[0] = s
        for b in range(256):
            i, last = root_start[b], root_start[b + 1]
            if i == last or codes[s, class_of[b]] == DEAD:
                continue
            while i < last:
                if not closes[i]:
                    i = skip[i]
                    continue
                d = depth[i] - 1
                code = codes[state[d], class_of[byte[i]]]
                if code >= 0:
                    state[d + 1] = code
                    i += 1
                    continue
                if code <= RETURN:
                    for x in range(token_start[i], token_start[skip[i]]):
                        if is_full(counters, slots, symbol_slots):
                            return -1 - s, lists
                        y = symbol_of(
                            token[x], d + 1, RETURN - code, data, start, slots, remainders, symbol_slots, known,
                            counters, ADMIT_NONE,
                        )  # fmt: skip
                        if y >= 0:
                            out_token[count], out_symbol[count] = token[x], y
                            count += 1
                i = skip[i]
        of_row[s] = -1
        if count > begin:
            of_row[s] = _list_of(found, begin, count, lists)
            if of_row[s] == lists:
                lists += 1
                list_start[lists] = count
    return len(codes), lists


@kernel
def _list_of(found: _ExitLists, begin: int, stop: int, lists: int) -> int:
    """Sort the entries begin .. stop by token, and return the list that has the same: `lists` if it is a new one."""
    start, hashes, token, symbol = found.start, found.hashes, found.token, found.symbol
    n = stop - begin
    keys = np.empty(n, np.int64)
    for k in range(n):
        keys[k] = (np.int64(token[begin + k]) << 32) | np.int64(symbol[begin + k])
    keys.sort()
    key = np.uint64(n)
    for k in range(n):
        token[begin + k] = keys[k] >> 32
        symbol[begin + k] = np.int32(keys[k] & 0xFFFFFFFF)
        key = (key ^ np.uint64(keys[k])) * np.uint64(0x9E3779B97F4A7C15)
        key ^= key >> np.uint64(29)
    for known in range(lists):
        if hashes[known] == key and start[known + 1] - start[known] == n:
            same = True
            for k in range(n):
                at = start[known] + k
                if token[at] != token[begin + k] or symbol[at] != symbol[begin + k]:
                    same = False
                    break
            if same:
                return known
    hashes[lists] = key
    return lists
