"""A library machine bound to a vocabulary, on top of which other machines link."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...automata.budget import Budget, Meter
from ...automata.pushdown import PushdownMachine
from ...table.groups import Actions, Bases, Exits, TokenClasses
from ...vocabulary.vocabulary import Vocabulary
from .arrays import ACTIONS, EDGES, EXITS, REMAINDERS, SYMBOLS, TokenText
from .fragment import CountedStrings, Fragment
from .link_pools import ACTION, ActionPool, LinkPools, empty_link_pools, with_actions
from .pushdown_walk import BINDING, StatesToWalk, walk
from .return_sites import resolve
from .symbols import ADMIT_ANY, Symbols, bare_remainder, empty_symbols, place_symbols
from .wide_rows import FreeTokens, WideRows, free_tokens, loops_of, starts

WIDE = 512  # own edges from which on a library row becomes a base
_ROOM = 16_384  # slots for remainders that are added
_ROWS_TAKEN = 64  # walked before they become bases and own edges: all of them may be wide
_PACED = 1024  # rows after which it is known how long the others take


class LinkedRows(NamedTuple):
    """What is known of a machine's states but the first, and of its sites, in arrays; N states."""

    edge_count: NDArray[np.int32]  # (N - 1,) own edges
    edge_token: NDArray[np.int32]
    edge_code: NDArray[np.int32]  # a state, ACTION + action, or KILL
    base: NDArray[np.int32]  # (N,) of each state, -1 for none
    bases: Bases
    classes: TokenClasses
    exits: Exits  # of_row: (N - 1,)
    actions: Actions
    sites: NDArray[np.int32]  # (3, n) site, symbol and target, sorted
    remainder_token: NDArray[np.int32]  # (R,) a token that ends with each remainder
    remainder_offset: NDArray[np.int32]  # (R,) where it begins in it
    symbol_remainder: NDArray[np.int32]  # (Y,)


@dataclass(frozen=True, eq=False)
class LinkedLibrary:
    """A library machine already bound to a vocabulary. Stores every row except row 0, plus exits and return sites."""

    is_shared: ClassVar[bool] = False  # whether several machines are built on it

    vocabulary: Vocabulary
    machine: PushdownMachine
    text: NDArray[np.uint8]  # the bytes of all tokens
    text_start: NDArray[np.int32]  # (V + 1,)
    symbols: Symbols
    num_remainders: int
    num_symbols: int
    rows: LinkedRows
    actions: ActionPool
    nothing: int  # the remainder without bytes

    @property
    def token_text(self) -> TokenText:
        """The bytes of all tokens, as kernels take them."""
        return TokenText(self.text, self.text_start)

    def copied_symbols(self) -> Symbols:
        """Return the symbols in arrays of their own, to which a machine on top adds."""
        return self.symbols.copied(self.num_remainders, self.num_symbols)

    @property
    def lengths(self) -> CountedStrings:
        """Strings of bounded length, which only JSON's machines have."""
        raise AssertionError("only JSON has strings whose characters are counted")

    def fragment(
        self, class_of: NDArray[Any], codes: NDArray[np.int32], common: bool, symbols: Symbols,
        counters: NDArray[np.int64], meter: Meter,
    ) -> tuple[Fragment, Symbols]:  # fmt: skip
        """Bind a string fragment, which only JSON's machines have."""
        raise AssertionError("only JSON has fragments that are bound on their own")


def linked_fields(machine: PushdownMachine, vocabulary: Vocabulary, rows: LinkedRows) -> dict[str, Any]:
    """Return the fields of a `LinkedLibrary` from what `bind_rows` returns."""
    text = TokenText.of(vocabulary)
    remainders, used = rows.remainder_token.size, rows.symbol_remainder.size
    symbols = empty_symbols(1 << max(15, int(2 * remainders + _ROOM).bit_length()))
    alive = np.isin(np.arange(remainders), rows.symbol_remainder)
    symbols.remainders[:remainders] = np.column_stack((rows.remainder_token, rows.remainder_offset, alive))
    symbols.symbols[:used] = np.column_stack((rows.symbol_remainder, rows.exits.label))
    place_symbols(symbols, text, remainders, used)
    return {
        "vocabulary": vocabulary, "machine": machine, "text": text.data, "text_start": text.start, "symbols": symbols,
        "num_remainders": remainders, "num_symbols": used, "rows": rows, "actions": with_actions(rows.actions),
        "nothing": bare_remainder(symbols, text, remainders),
    }  # fmt: skip


def bind_rows(
    machine: PushdownMachine, vocabulary: Vocabulary, masked: Sequence[int] = (), *, admit: int = ADMIT_ANY,
    split: bool = False, meter: Meter | None = None,
) -> LinkedRows:  # fmt: skip
    """Return the rows of all states but the first. Raises BudgetError.

    masked: states whose rows become bases however few edges they have, as others are nearly the same. admit: which
    remainders of tokens a text may go on with, see `symbols`. split: wide rows become bases also if some of their
    tokens push; these are edges beside. Without it a base is all that a row allows, exits aside, as lazy tables take
    it. The meter is that of a library if there is none.
    """
    trie, text = vocabulary.trie, TokenText.of(vocabulary)
    if meter is None:
        meter = Budget(seconds=math.inf, bytes=1 << 40).begin()
    states = machine.size
    nothing = np.full(states, -1, np.int32)
    pools, symbols = empty_link_pools(_ROWS_TAKEN, trie.token.size), empty_symbols(1 << 17)
    rows = _RowsTaken(vocabulary, states, masked, split=split)
    loops = rows.loops(machine) if split else np.zeros(states, np.uint64)
    began = meter.seconds
    for first in range(1, states, _ROWS_TAKEN):
        order = np.arange(first, min(first + _ROWS_TAKEN, states), dtype=np.int32)
        pools.counters[[EDGES, EXITS]] = 0
        to_walk = StatesToWalk(order, nothing, nothing, loops)
        pools, symbols = walk(machine, to_walk, vocabulary, text, pools, symbols, admit, meter)
        rows.take(pools, order, loops)
        pace = (meter.seconds - began) / (first + order.size)
        ahead = pace * (states - first - order.size) if first > _PACED else 0.0
        meter.check(states=states, bytes=rows.nbytes, ahead=ahead, doing=BINDING)
    pools, symbols, sites = resolve(machine, 0, 0, text, trie.longest, pools, symbols, admit, meter)
    return rows.linked(pools, symbols, sites)


def _read_on(symbols: int, triples: NDArray[np.int32]) -> NDArray[np.bool_]:
    """Return the symbols that some site reads on, perhaps by ending in its turn."""
    alive = np.zeros(symbols, np.bool_)
    _, symbol, target = triples
    alive[symbol[target >= 0]] = True
    ends = target < 0
    while True:
        more = symbol[ends][alive[-1 - target[ends]]]
        if alive[more].all():
            return alive
        alive[more] = True


def _renumbered_sites(
    triples: NDArray[np.int32], alive: NDArray[np.bool_], number: NDArray[np.int32]
) -> NDArray[np.int32]:
    """Return the triples of symbols that are read on, by their new numbers."""
    site, symbol, target = triples
    most = max(alive.size, 1)
    keep = alive[symbol] & ((target >= 0) | alive[np.maximum(-1 - target, 0) % most])
    site, symbol, target = site[keep], number[symbol[keep]], target[keep]
    target = np.where(target < 0, -1 - number[np.maximum(-1 - target, 0) % most], target).astype(np.int32)
    return np.stack((site, symbol, target))


class _RowsTaken:
    """Rows as they are walked: own edges of most, bases of those that are wide, lists of exits."""

    def __init__(self, vocabulary: Vocabulary, states: int, masked: Sequence[int], *, split: bool) -> None:
        self._masked, self._split, self._trie = masked, split, vocabulary.trie
        self._base = np.full(states, -1, np.int32)
        self._count = np.zeros(states - 1, np.int32)
        self._tokens: list[NDArray[Any]] = []
        self._codes: list[NDArray[Any]] = []
        self._wide = WideRows(vocabulary.size)
        self._free: dict[int, NDArray[np.int32]] = {}  # tokens of some groups of characters
        self._exits: list[tuple[NDArray[Any], NDArray[Any]]] = []
        self._exit_count = np.zeros(states, np.int64)
        self._nbytes = 0

    @property
    def nbytes(self) -> int:
        """Bytes so far."""
        return self._nbytes + self._wide.nbytes

    def loops(self, machine: PushdownMachine) -> NDArray[np.uint64]:
        """Return the groups of characters that lead back to each state, 0 where few tokens are of these alone."""
        found: NDArray[np.uint64] = loops_of(machine.rows)
        for groups in np.unique(found).tolist():
            tokens = free_tokens(groups, self._trie)
            if tokens.size > WIDE:
                self._free[groups] = tokens
            else:
                found[found == np.uint64(groups)] = 0
        return found

    def take(self, pools: LinkPools, order: NDArray[np.int32], loops: NDArray[np.uint64]) -> None:
        """Add the rows that were walked, and the tokens that were left out for a loop."""
        for k, state in enumerate(order.tolist()):
            part = slice(*pools.edges.start[k : k + 2].tolist())
            token, code = pools.edges.token[part], pools.edges.value[part]
            part = slice(*pools.exits.start[k : k + 2].tolist())
            exits = pools.exits.token[part].copy(), pools.exits.value[part].copy()
            if exits[0].size:
                self._exits.append(exits)
                self._exit_count[state] = exits[0].size
                self._nbytes += 8 * exits[0].size
            plain = code < ACTION  # targets of bases cannot push
            groups = int(loops[state])
            if groups or (plain.sum() > WIDE and (self._split or plain.all())) or state in self._masked:
                free = FreeTokens(groups, self._free[groups], state) if groups else None
                self._base[state] = self._wide.add(token[plain], code[plain], free)
                token, code = token[~plain], code[~plain]
            self._count[state - 1] = token.size
            self._tokens.append(token.copy())
            self._codes.append(code.copy())
            self._nbytes += 2 * token.nbytes

    def linked(self, pools: LinkPools, symbols: Symbols, triples: NDArray[np.int32]) -> LinkedRows:
        """Return all rows and where sites lead, without symbols and exits that no text goes on with."""
        none = np.zeros(0, np.int32)
        count, remainders = int(pools.counters[SYMBOLS]), int(pools.counters[REMAINDERS])
        alive = _read_on(count, triples)
        kept = np.flatnonzero(alive)
        number = np.full(count, -1, np.int32)
        number[kept] = np.arange(kept.size)
        bases, classes = self._wide.groups()
        return LinkedRows(
            edge_count=self._count,
            edge_token=np.concatenate([none, *self._tokens]),
            edge_code=np.concatenate([none, *self._codes]),
            base=self._base,
            bases=bases,
            classes=classes,
            exits=self._kept_exits(number)._replace(label=symbols.label[kept]),
            actions=pools.actions.used(int(pools.counters[ACTIONS])),
            sites=_renumbered_sites(triples, alive, number),
            remainder_token=symbols.token[:remainders].copy(),
            remainder_offset=symbols.offset[:remainders].copy(),
            symbol_remainder=symbols.remainder[kept],
        )

    def _kept_exits(self, number: NDArray[np.int32]) -> Exits:
        """Return the exits of the symbols that have a new number."""
        none = np.zeros(0, np.int32)
        exit_token = np.concatenate([none, *(token for token, _ in self._exits)])
        exit_symbol = np.concatenate([none, *(symbol for _, symbol in self._exits)])
        kept = number[exit_symbol] >= 0
        start = np.concatenate(([0], np.cumsum(kept)))[np.concatenate(([0], np.cumsum(self._exit_count)))]
        exit_token, exit_symbol = exit_token[kept], number[exit_symbol[kept]]
        lists: dict[bytes, int] = {}
        parts: list[NDArray[Any]] = []
        row_list = np.full(self._exit_count.size, -1, np.int32)
        for state in np.flatnonzero(np.diff(start)).tolist():
            lo, hi = int(start[state]), int(start[state + 1])
            content = exit_token[lo:hi].tobytes() + exit_symbol[lo:hi].tobytes()
            row_list[state] = lists.setdefault(content, len(parts))
            if row_list[state] == len(parts):
                parts.append(np.arange(lo, hi))
        chosen = np.concatenate([np.zeros(0, np.int64), *parts])
        based = self._base >= 0
        of_base = np.full(len(self._wide), -1, np.int32)
        of_base[self._base[based]] = row_list[based]
        row_list[based] = -1
        return Exits(row_list[1:], of_base, starts(parts), exit_token[chosen], exit_symbol[chosen], none)
