"""Put machines with calls and vocabularies together: one that others are built on, bound once, and what is on top."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ...automata.budget import Budget, Meter
from ...automata.pushdown import PushdownMachine, needs
from ...errors import ConstraintError, NoTableError
from ...kernels.limits import MOST_DEPTH
from ...table.flat import grouped
from ...table.graph_checks import Common, leads_out
from ...table.transition_table import TransitionTable
from ...vocabulary.vocabulary import BYTE_GROUP, UNCLEAN, Vocabulary
from .link_kernels import (
    ACTION,
    ACTIONS,
    ADMIT_ANY,
    ADMIT_NONE,
    EDGES,
    EXITS,
    REMAINDERS,
    SYMBOLS,
    Pools,
    Symbols,
    empty_symbols,
    loops_of,
    mark_tokens,
    more_symbols,
    place,
    place_actions,
    ranked,
    resolve_sites,
    tokens_of,
    walk_rows,
)

if TYPE_CHECKING:
    from ..json_schema.bounded import Lengths
    from ..json_schema.fragments import Fragment

_WIDE = 512  # own edges from which on a row of what others are built on becomes a mask
_VERY_WIDE = 4096  # the same for rows on top: fewer are found sooner as they are
_ROOM = 16_384  # slots for remainders that are added
_ROWS_AT_ONCE = 1024  # walked before somebody looks at the clock
_ROWS_TAKEN = 64  # walked before they become masks and own edges: all of them may be wide
_PLACES_AT_ONCE = 1 << 22  # of stacks, of tokens that may come first
_PACED = 1024  # rows after which it is known how long the others take
_BINDING = "binding a constraint to the vocabulary"


@dataclass(frozen=True, eq=False)
class LinkedLibrary:
    """A machine bound to a vocabulary, on which others are built: its rows but the first, exits, and sites."""

    is_shared: ClassVar[bool] = False  # whether several are

    vocabulary: Vocabulary
    machine: PushdownMachine
    text: NDArray[np.uint8]  # the bytes of all tokens
    text_start: NDArray[np.int32]  # (V + 1,)
    symbols: Symbols
    num_remainders: int
    num_symbols: int
    arrays: dict[str, NDArray[Any]]  # those of a table, of the machine's rows but the first
    wide: NDArray[np.int32]  # (L,) base of each state, -1 for none
    actions: Pools  # only what concerns actions
    nothing: int  # the remainder without bytes

    def copied_symbols(self) -> Symbols:
        """Return the symbols in arrays of their own, to which whatever is built on it adds."""
        known, r, y = self.symbols, self.num_remainders, self.num_symbols
        out = Symbols(
            known.slots.copy(), np.empty_like(known.token), np.empty_like(known.offset), np.empty_like(known.alive),
            known.symbol_slots.copy(), np.empty_like(known.remainder), np.empty_like(known.label),
        )  # fmt: skip
        for name, size in (("token", r), ("offset", r), ("alive", r), ("remainder", y), ("label", y)):
            getattr(out, name)[:size] = getattr(known, name)[:size]
        return out

    @property
    def lengths(self) -> Lengths:
        """What strings of bounded length are put together from, of which only JSON's machines have some."""
        raise AssertionError("only JSON has strings whose characters are counted")

    def fragment(
        self, class_of: NDArray[Any], codes: NDArray[np.int32], common: bool, symbols: Symbols,
        counters: NDArray[np.int64], meter: Meter,
    ) -> tuple[Fragment, Symbols]:  # fmt: skip
        """Bind a string fragment, of which only JSON's machines have some."""
        raise AssertionError("only JSON has fragments that are bound on their own")


def text_of(vocabulary: Vocabulary) -> tuple[NDArray[np.uint8], NDArray[np.int32]]:
    """Return the bytes of all tokens, one more behind them, and where each token's begin (V + 1,)."""
    return np.append(vocabulary.token_bytes, np.uint8(0)), vocabulary.token_offset.astype(np.int32)


def bound_parts(
    machine: PushdownMachine, vocabulary: Vocabulary, text: NDArray[np.uint8], text_start: NDArray[np.int32],
    arrays: dict[str, NDArray[Any]],
) -> dict[str, Any]:  # fmt: skip
    """Return the fields of a `Bound` from the arrays of `bind_rows`."""
    remainders, used = arrays["remainder_token"].size, arrays["symbol_remainder"].size
    symbols = empty_symbols(1 << max(15, int(2 * remainders + _ROOM).bit_length()))
    symbols.token[:remainders], symbols.offset[:remainders] = arrays["remainder_token"], arrays["remainder_offset"]
    symbols.remainder[:used] = arrays["symbol_remainder"]
    symbols.label[:used] = arrays["symbol_label"]
    symbols.alive[arrays["symbol_remainder"]] = True
    place(symbols, text, text_start, remainders, used)
    actions = arrays["action_state"].size
    pools = _pools(0, 0, max(1 << 14, 1 << (4 * actions).bit_length()), arrays["action_push"].size)
    for key in ("action_state", "action_start", "action_push"):
        getattr(pools, key)[: arrays[key].size] = arrays[key]
    pools.counters[ACTIONS] = actions
    pools = pools._replace(action_slots=_rehash_actions(pools, pools.action_slots.size))
    return {
        "vocabulary": vocabulary, "machine": machine, "text": text, "text_start": text_start, "symbols": symbols,
        "num_remainders": remainders, "num_symbols": used, "arrays": arrays, "wide": arrays["wide"], "actions": pools,
        "nothing": _nothing_left(symbols, text_start, remainders),
    }  # fmt: skip


def _pools(states: int, tokens: int, actions: int = 1 << 14, pushes: int = 0) -> Pools:
    return Pools(
        counters=np.zeros(5, np.int64),
        edge_start=np.zeros(states + 1, np.int64),
        edge_token=np.empty(2 * tokens + 65_536, np.int32),
        edge_code=np.empty(2 * tokens + 65_536, np.int32),
        exit_start=np.zeros(states + 1, np.int64),
        exit_token=np.empty(2 * tokens + 16_384, np.int32),
        exit_symbol=np.empty(2 * tokens + 16_384, np.int32),
        action_slots=np.full(actions, -1, np.int32),
        action_state=np.empty(actions // 2, np.int32),
        action_start=np.zeros(actions // 2 + 1, np.int32),
        action_push=np.empty(4 * actions + 2 * pushes, np.int32),
    )


def bind_rows(
    machine: PushdownMachine, vocabulary: Vocabulary, text: NDArray[np.uint8], text_start: NDArray[np.int32],
    masked: tuple[int, ...] = (), *, admit: int = ADMIT_ANY, split: bool = False, meter: Meter | None = None,
) -> dict[str, NDArray[Any]]:  # fmt: skip
    """Return the arrays that a `Bound` is made of: of all states but the first.

    masked: states whose rows become bases however few edges they have, as others are nearly the same. admit: which
    remainders of tokens may be gone on with, see `link_kernels`. split: wide rows become bases also where some of their
    tokens push, which are edges beside; otherwise a base is all that a row allows, exits aside, as lazy tables take it.
    The meter is that of a library if there is none.
    """
    trie = vocabulary.trie
    if meter is None:
        meter = Budget(seconds=math.inf, bytes=1 << 40).begin()
    states = machine.size
    nothing = np.full(states, -1, np.int32)
    pools, symbols = _pools(_ROWS_TAKEN, trie.token.size), empty_symbols(1 << 17)
    rows = _Rows(vocabulary, states, masked, split=split)
    loops = rows.loops(machine) if split else None
    began = meter.seconds
    for first in range(1, states, _ROWS_TAKEN):
        order = np.arange(first, min(first + _ROWS_TAKEN, states), dtype=np.int32)
        pools.counters[[EDGES, EXITS]] = 0
        pools, symbols = _walk(
            machine, order, (nothing, nothing), vocabulary, text, text_start, pools, symbols, admit, meter, loops
        )
        rows.take(pools, order, loops)
        pace = (meter.seconds - began) / (first + order.size)
        ahead = pace * (states - first - order.size) if first > _PACED else 0.0
        meter.check(states=states, bytes=rows.nbytes, ahead=ahead, doing=_BINDING)
    pools, symbols, triples = _resolve(machine, 0, 0, text, text_start, trie.longest, pools, symbols, admit, meter)

    # which symbols a text can go on with: those that some site reads, perhaps by ending in its turn
    count = int(pools.counters[SYMBOLS])
    alive = np.zeros(count, np.bool_)
    site, symbol, target = triples
    alive[symbol[target >= 0]] = True
    ends = target < 0
    while True:
        more = symbol[ends][alive[-1 - target[ends]]]
        if alive[more].all():
            break
        alive[more] = True
    kept = np.flatnonzero(alive)
    number = np.full(count, -1, np.int32)
    number[kept] = np.arange(kept.size)
    keep = alive[symbol] & ((target >= 0) | alive[np.maximum(-1 - target, 0) % max(count, 1)])
    site, symbol, target = site[keep], number[symbol[keep]], target[keep]
    target = np.where(target < 0, -1 - number[np.maximum(-1 - target, 0) % max(count, 1)], target).astype(np.int32)
    remainders, actions = int(pools.counters[REMAINDERS]), int(pools.counters[ACTIONS])
    return rows.arrays(number) | {
        "site": site, "symbol": symbol, "target": target,
        "remainder_token": symbols.token[:remainders].copy(), "remainder_offset": symbols.offset[:remainders].copy(),
        "symbol_remainder": symbols.remainder[kept], "symbol_label": symbols.label[kept],
        "action_state": pools.action_state[:actions].copy(), "action_start": pools.action_start[: actions + 1].copy(),
        "action_push": pools.action_push[: pools.action_start[actions]].copy(),
    }  # fmt: skip


class _Bases:
    """Wide rows as masks, class lists and targets, each kept once."""

    def __init__(self, vocab_size: int) -> None:
        self._width = -(-vocab_size // 32)
        self._words: dict[int, NDArray[np.uint32]] = {}  # the mask of tokens of some groups of characters
        self._masks: dict[bytes, int] = {}
        self._lists: dict[bytes, int] = {}
        self._classes: list[tuple[NDArray[Any], NDArray[Any]]] = []
        self._made: list[tuple[int, int, NDArray[Any]]] = []  # mask, class list, targets
        self.nbytes = 0

    def add(
        self, token: NDArray[Any], code: NDArray[Any], free: tuple[int, NDArray[np.int32], int] | None = None
    ) -> int:
        """Return the number of a new base, of tokens and the states that they lead to.

        free: groups, tokens of these alone, and the state that they lead to beside.
        """
        key, tokens, state = free or (0, token[:0], -1)
        words = self._words.get(key)
        if words is None:
            bits = np.zeros(32 * self._width, np.uint8)
            bits[tokens] = 1
            words = self._words[key] = np.packbits(bits, bitorder="little").view("<u4").astype(np.uint32)
        words = words.copy()
        count = mark_tokens(token, code, words, int(code.max(initial=state)) + 1)
        mask = words.tobytes()
        if state >= 0:
            count[state] += tokens.size
        targets = np.flatnonzero(count)
        targets = targets[np.argsort(-count[targets], kind="stable")]
        if state >= 0 and targets[0] != state:  # more lead elsewhere
            order = np.argsort(np.append(token, tokens))
            token = np.append(token, tokens)[order]
            code = np.append(code, np.full(tokens.size, state, code.dtype))[order]
        classes = ranked(token, code, targets, count.size)
        found = self._lists.setdefault(classes[0].tobytes() + classes[1].tobytes(), len(self._classes))
        if found == len(self._classes):
            self._classes.append(classes)
            self.nbytes += 2 * classes[0].nbytes
        if mask not in self._masks:
            self._masks[mask] = len(self._masks)
            self.nbytes += len(mask)
        self._made.append((self._masks[mask], found, (2 * targets).astype(np.int32)))
        return len(self._made) - 1

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays of a table, all but `base_exit`."""
        none = np.zeros(0, np.int32)
        return {
            "masks": np.frombuffer(b"".join(self._masks), np.uint32).reshape(-1, self._width),
            "base_mask": np.array([mask for mask, _, _ in self._made], np.int32),
            "base_classes": np.array([classes for _, classes, _ in self._made], np.int32),
            "base_start": _starts([codes for _, _, codes in self._made]),
            "base_target": np.concatenate([none, *(codes for _, _, codes in self._made)]),
            "class_start": _starts([token for token, _ in self._classes]),
            "class_token": np.concatenate([none, *(token for token, _ in self._classes)]),
            "class_id": np.concatenate([none, *(which for _, which in self._classes)]),
        }


class _Rows:
    """Rows as they are walked: own edges of most, bases of those that are wide, lists of exits."""

    def __init__(self, vocabulary: Vocabulary, states: int, masked: tuple[int, ...], *, split: bool) -> None:
        self._masked, self._split, self._trie = masked, split, vocabulary.trie
        self.wide = np.full(states, -1, np.int32)  # the base of each state
        self._count = np.zeros(states - 1, np.int32)
        self._tokens: list[NDArray[Any]] = []
        self._codes: list[NDArray[Any]] = []
        self._bases = _Bases(vocabulary.size)
        self._free: dict[int, NDArray[np.int32]] = {}  # tokens of some groups of characters
        self._exits: list[tuple[NDArray[Any], NDArray[Any]]] = []
        self._exit_count = np.zeros(states, np.int64)
        self._nbytes = 0

    @property
    def nbytes(self) -> int:
        """Bytes so far."""
        return self._nbytes + self._bases.nbytes

    def loops(self, machine: PushdownMachine) -> NDArray[np.uint64]:
        """Return the groups of characters that lead back to each state, 0 where few tokens are of these alone."""
        trie = self._trie
        found: NDArray[np.uint64] = loops_of(machine.rows, BYTE_GROUP, UNCLEAN)
        for groups in np.unique(found).tolist():
            tokens = tokens_of(
                trie.byte, trie.content, trie.skip, trie.token_start, trie.token, BYTE_GROUP, np.uint64(groups)
            )
            if tokens.size > _WIDE:
                self._free[groups] = tokens
            else:
                found[found == np.uint64(groups)] = 0
        return found

    def take(self, pools: Pools, order: NDArray[np.int32], loops: NDArray[np.uint64] | None) -> None:
        """Add the rows that were walked, and what was left out for a loop."""
        for k, state in enumerate(order.tolist()):
            part = slice(*pools.edge_start[k : k + 2].tolist())
            token, code = pools.edge_token[part], pools.edge_code[part]
            exit_part = slice(*pools.exit_start[k : k + 2].tolist())
            exits = pools.exit_token[exit_part].copy(), pools.exit_symbol[exit_part].copy()
            if exits[0].size:
                self._exits.append(exits)
                self._exit_count[state] = exits[0].size
                self._nbytes += 8 * exits[0].size
            plain = code < ACTION  # targets of bases cannot push
            groups = 0 if loops is None else int(loops[state])
            if groups or (plain.sum() > _WIDE and (self._split or plain.all())) or state in self._masked:
                free = (groups, self._free[groups], state) if groups else None
                self.wide[state] = self._bases.add(token[plain], code[plain], free)
                token, code = token[~plain], code[~plain]
            self._count[state - 1] = token.size
            self._tokens.append(token.copy())
            self._codes.append(code.copy())
            self._nbytes += 2 * token.nbytes

    def arrays(self, number: NDArray[np.int32]) -> dict[str, NDArray[Any]]:
        """Return the arrays, with exits of the symbols that have a number, which is what they are called then."""
        none = np.zeros(0, np.int32)
        exit_token = np.concatenate([none, *(token for token, _ in self._exits)])
        exit_symbol = np.concatenate([none, *(symbol for _, symbol in self._exits)])
        states = self._exit_count.size
        kept = number[exit_symbol] >= 0
        start = np.concatenate(([0], np.cumsum(kept)))[np.concatenate(([0], np.cumsum(self._exit_count)))]
        exit_token, exit_symbol = exit_token[kept], number[exit_symbol[kept]]
        lists: dict[bytes, int] = {}
        parts: list[NDArray[Any]] = []
        row_list = np.full(states, -1, np.int32)
        for state in np.flatnonzero(np.diff(start)).tolist():
            lo, hi = int(start[state]), int(start[state + 1])
            content = exit_token[lo:hi].tobytes() + exit_symbol[lo:hi].tobytes()
            row_list[state] = lists.setdefault(content, len(parts))
            if row_list[state] == len(parts):
                parts.append(np.arange(lo, hi))
        chosen = np.concatenate([np.zeros(0, np.int64), *parts])
        based = self.wide >= 0
        bases = self._bases.arrays()
        base_exit = np.full(bases["base_mask"].size, -1, np.int32)
        base_exit[self.wide[based]] = row_list[based]
        row_list[based] = -1
        return bases | {
            "row_count": self._count,
            "edge_token": np.concatenate([none, *self._tokens]),
            "edge_code": np.concatenate([none, *self._codes]),
            "row_exit": row_list[1:],
            "base_row": self.wide[1:],
            "wide": self.wide,
            "base_exit": base_exit,
            "exit_start": _starts(parts),
            "exit_token": exit_token[chosen],
            "exit_symbol": exit_symbol[chosen],
        }


def _starts(parts: list[NDArray[Any]]) -> NDArray[np.int32]:
    """Return where each of some arrays begins when they lie one after the other, and where the last ends."""
    return np.cumsum([0, *map(len, parts)]).astype(np.int32)


def link_machine(
    machine: PushdownMachine, start: int, vocabulary: Vocabulary, source: str, depth: int, meter: Meter
) -> TransitionTable:
    """Return the table of a machine that is built on no other.

    Raises NoTableError where texts could be begun that no depth is enough for; ConstraintError where it is for none.
    """
    if machine.height is None or machine.height > depth:
        need, _, _ = needs(machine, MOST_DEPTH, hope=False)
        if (need[1:] >= MOST_DEPTH).any():
            raise NoTableError(
                "this grammar has no finite table: what is read within brackets decides whether others have to follow, "
                "so that no depth would be enough for every text that was begun"
            )
    text, text_start = text_of(vocabulary)
    arrays = bind_rows(machine, vocabulary, text, text_start, split=True, meter=meter)
    bound = LinkedLibrary(**bound_parts(machine, vocabulary, text, text_start, arrays))
    top = PushdownMachine(machine)
    top.height, top.anything = machine.height, machine.anything
    top.copy(0, start)  # to which nothing leads back
    if start in machine.accepting:
        top.accepting.add(0)
    return link(bound, top, source, depth, meter)


def link(library: LinkedLibrary, machine: PushdownMachine, source: str, depth: int, meter: Meter) -> TransitionTable:
    """Return the table of a machine built on the library's, whose state 0 is its start."""
    vocabulary = library.vocabulary
    trie = vocabulary.trie
    first, states = library.machine.size, machine.size
    meter.check(states=states, bytes=4 * 256 * states, doing=_BINDING)
    known = library.actions
    actions = int(known.counters[ACTIONS])
    pools = _pools(states, trie.token.size, known.action_slots.size, int(known.action_start[actions]))
    pools.action_slots[:] = known.action_slots
    pools.action_state[:actions] = known.action_state[:actions]
    pools.action_start[: actions + 1] = known.action_start[: actions + 1]
    pushes = int(known.action_start[actions])
    pools.action_push[:pushes] = known.action_push[:pushes]
    pools.counters[ACTIONS] = actions
    pools.counters[REMAINDERS], pools.counters[SYMBOLS] = library.num_remainders, library.num_symbols
    symbols = library.copied_symbols()
    symbols = _name_ends(library, machine, symbols, pools.counters)
    walked = np.ones(states, np.bool_)
    walked[1:first] = False
    number = np.arange(states, dtype=np.int32)  # of each state of the machine in the table
    fragments: list[tuple[int, Fragment]] = []
    counted: list[tuple[int, Fragment]] = []
    for at, class_of, codes, common in machine.apart:
        fragment, symbols = library.fragment(class_of, codes, common, symbols, pools.counters, meter)
        walked[at : at + len(fragment.row_count)] = False
        fragments.append((at, fragment))
    for at, opening, low, high in machine.counted:  # the machine has but the beginning of it: all of it comes last
        walked[at : at + opening] = False
        number[at : at + opening] = -1
        counted.append((at, library.lengths.fragment(low, high, meter)))
    total = states
    if counted:
        kept = number >= 0
        number[kept] = np.arange(int(kept.sum()))
        total = int(kept.sum())
        fragments = [(int(number[at]), fragment) for at, fragment in fragments]
        for (at, fragment), (_, opening, _, _) in zip(counted, machine.counted, strict=True):
            number[at : at + opening] = np.arange(total, total + opening)
            fragments.append((total, fragment))
            total += len(fragment.row_count)
        meter.check(bytes=32 * total, doing=_BINDING)
    twin_state, twin_site = machine.all_twins
    order = np.flatnonzero(walked).astype(np.int32)
    pools, symbols = _walk(
        machine, order, (twin_state, twin_site), vocabulary, library.text, library.text_start, pools, symbols,
        ADMIT_NONE, meter,
    )  # fmt: skip
    meter.check(states=states, bytes=sum(array.nbytes for array in pools), doing=_BINDING)
    pools, symbols, triples = _resolve(
        machine, library.machine.num_sites, library.num_symbols, library.text, library.text_start, trie.longest,
        pools, symbols, ADMIT_NONE, meter,
    )  # fmt: skip
    pools, own_wide = _narrowed(pools, np.where(twin_state[order] < 0, number[order], -1), number, vocabulary.size)
    bases = library.lengths if counted else None
    table = _table(
        library, machine, fragments, bases, own_wide, order, number, total, pools, symbols, triples, twin_state,
        twin_site, source, depth,
    )  # fmt: skip
    need = int(table.state_need[0]) if table.state_need.size else 0
    if need > table.depth and not _begins(table):
        raise too_deep(need, table.depth)
    return table


def _walk(
    machine: PushdownMachine, order: NDArray[np.int32], twins: tuple[NDArray[np.int32], NDArray[np.int32]],
    vocabulary: Vocabulary, text: NDArray[np.uint8], text_start: NDArray[np.int32], pools: Pools, symbols: Symbols,
    admit: int, meter: Meter, loops: NDArray[np.uint64] | None = None,
) -> tuple[Pools, Symbols]:  # fmt: skip
    """Walk the rows of some states; loops: of all states, where tokens that lead back to them are left out."""
    trie = vocabulary.trie
    if loops is None:
        loops = np.zeros(machine.size, np.uint64)
    stack = np.zeros((trie.longest + 2, trie.longest + 2), np.int32)
    site_start, site_states, _ = machine.sites
    done = 0
    while done < order.size:
        part = order[: done + _ROWS_AT_ONCE]
        found = walk_rows(
            machine.rows, machine.calls, site_start, site_states, *twins, part, done, trie.byte, trie.skip,
            trie.depth, trie.token_start, trie.token, trie.root_start, text, text_start, stack, admit,
            trie.content, BYTE_GROUP, loops, *pools, *symbols,
        )  # fmt: skip
        if found < 0:
            done, symbols = -1 - found, more_symbols(symbols, text, text_start, pools.counters)
        else:
            done = found
            if found < part.size:
                pools = _grown(pools, trie.token.size)
        if done < order.size:
            meter.check(bytes=sum(array.nbytes for array in pools), doing=_BINDING)
    return pools, symbols


def _grown(pools: Pools, tokens: int) -> Pools:
    """Return pools with room for at least one more row."""

    def longer(array: NDArray[Any], size: int) -> NDArray[Any]:
        out = np.empty(max(size, len(array)), array.dtype)
        out[: len(array)] = array
        return out

    edges, exits = 2 * int(pools.counters[EDGES]) + 2 * tokens, 2 * int(pools.counters[EXITS]) + 2 * tokens
    actions = int(pools.counters[ACTIONS])
    pushes = int(pools.action_start[actions])
    out = pools._replace(
        edge_token=longer(pools.edge_token, edges),
        edge_code=longer(pools.edge_code, edges),
        exit_token=longer(pools.exit_token, exits),
        exit_symbol=longer(pools.exit_symbol, exits),
    )
    if 2 * (actions + 64) > out.action_slots.size:
        size = 4 * out.action_slots.size
        out = out._replace(
            action_slots=_rehash_actions(out, size),
            action_state=longer(out.action_state, size // 2),
            action_start=longer(out.action_start, size // 2 + 1),
        )
    return out._replace(action_push=longer(out.action_push, 2 * pushes + 200_000))


def _rehash_actions(pools: Pools, size: int) -> NDArray[np.int32]:
    slots = np.full(size, -1, np.int32)
    place_actions(int(pools.counters[ACTIONS]), slots, pools.action_state, pools.action_start, pools.action_push)
    return slots


def _resolve(
    machine: PushdownMachine, first_site: int, known: int, text: NDArray[np.uint8], text_start: NDArray[np.int32],
    longest: int, pools: Pools, symbols: Symbols, admit: int, meter: Meter,
) -> tuple[Pools, Symbols, NDArray[np.int32]]:  # fmt: skip
    """Return pools, symbols, and (site, symbol, target) triples (n, 3), sorted."""
    site_start, site_states, _ = machine.sites
    stack = np.zeros((1, longest + 2), np.int32)
    out = np.empty((3, 64 * len(site_start) + 4096), np.int32)
    progress = np.zeros(5, np.int64)
    while True:
        count = resolve_sites(
            machine.rows, machine.calls, site_start, site_states, first_site, known, text, text_start, stack, admit,
            progress, pools.counters, *pools[-4:], *symbols, *out,
        )  # fmt: skip
        if count >= 0:
            triples = out[:, :count]
            order = np.lexsort((triples[1], triples[0]))
            return pools, symbols, triples[:, order]
        meter.check(bytes=out.nbytes, doing=_BINDING)
        if count == -2:
            continue
        longer = np.empty((3, 4 * out.shape[1]), np.int32)
        longer[:, : progress[4]] = out[:, : progress[4]]
        out = longer
        pools = _grown(pools, 0)
        if 4 * int(max(pools.counters[SYMBOLS], pools.counters[REMAINDERS])) > symbols.slots.size:
            symbols = more_symbols(symbols, text, text_start, pools.counters)


def _narrowed(
    pools: Pools, states: NDArray[np.int32], number: NDArray[np.int32], vocab_size: int
) -> tuple[Pools, tuple[NDArray[np.int32], dict[str, NDArray[Any]]] | None]:
    """Return pools where very wide rows have only what pushes, and these states with bases for the rest of them.

    states: of each row, -1 where it has a base as it is.
    """
    start = pools.edge_start[: states.size + 1]
    likely = np.flatnonzero((np.diff(start) > _VERY_WIDE) & (states >= 0)).tolist()
    chosen = [row for row in likely if (pools.edge_code[start[row] : start[row + 1]] < ACTION).sum() > _VERY_WIDE]
    if not chosen:
        return pools, None
    bases = _Bases(vocab_size)
    kept = np.ones(int(start[-1]), np.bool_)
    for row in chosen:
        part = slice(int(start[row]), int(start[row + 1]))
        token, code = pools.edge_token[part], pools.edge_code[part]
        plain = code < ACTION
        bases.add(token[plain], number[code[plain]])
        kept[part] = ~plain
    before = np.concatenate(([0], np.cumsum(kept)))
    edges = int(start[-1])
    narrow = pools._replace(
        edge_start=before[start],
        edge_token=pools.edge_token[:edges][kept],
        edge_code=pools.edge_code[:edges][kept],
    )
    return narrow, (states[chosen], bases.arrays())


def _name_ends(
    library: LinkedLibrary, machine: PushdownMachine, symbols: Symbols, counters: NDArray[np.int64]
) -> Symbols:
    """Make a symbol for the bare end of every label, by which a table knows how far it is from a site to the end."""
    labels = int(np.diff(machine.sites[0]).max(initial=1))
    while 2 * (int(counters[SYMBOLS]) + labels) > symbols.symbol_slots.size:
        symbols = more_symbols(symbols, library.text, library.text_start, counters)
    used = int(counters[SYMBOLS])
    known = set(symbols.label[:used][symbols.remainder[:used] == library.nothing].tolist())
    for label in set(range(1, labels)) - known:
        y = int(counters[SYMBOLS])
        symbols.remainder[y], symbols.label[y] = library.nothing, label
        size = symbols.symbol_slots.size
        at = (library.nothing * 31 + label * 7919) & (size - 1)
        while symbols.symbol_slots[at] >= 0:
            at = (at + 1) & (size - 1)
        symbols.symbol_slots[at] = y
        counters[SYMBOLS] += 1
    return symbols


def _needs(
    machine: PushdownMachine, number: NDArray[np.int32], states: int, depth: int
) -> tuple[int, dict[str, NDArray[Any]]]:
    """Return the depth of a table, and what its states and sites need of it where it can run out."""
    if machine.height is not None and machine.height <= depth:
        if not machine.anything:
            return machine.height, {}
        return depth, {"site_need": np.zeros(machine.num_sites, np.int32)}  # there: it can run out, in free values
    by_state, by_site, _ = needs(machine, MOST_DEPTH)
    out = np.zeros(states, np.int32)
    out[number] = by_state
    return depth, {"state_need": out, "site_need": by_site}


def too_deep(need: int, depth: int) -> ConstraintError:
    """Return the error of a depth with which no token may come first. need: a depth that is enough."""
    return ConstraintError(f"{depth} is enough for no text: raise it to {need}", argument="depth")


def _begins(table: TransitionTable) -> bool:
    """Return whether some token may come first."""
    part = max(1, _PLACES_AT_ONCE // max(1, table.slots))
    for first in range(0, table.vocab_size, part):
        tokens = np.arange(first, min(first + part, table.vocab_size))
        if (table.follow(tokens[:, None]).node != table.dead).any():
            return True
    return False


def _nothing_left(symbols: Symbols, text_start: NDArray[np.int32], count: int) -> int:
    """Return the remainder without bytes, -1 if no token ends where a fragment does."""
    token = symbols.token[:count]
    found = np.flatnonzero(text_start[token] + symbols.offset[:count] == text_start[token + 1])
    return int(found[0]) if found.size else -1


def _table(
    library: LinkedLibrary, machine: PushdownMachine, fragments: list[tuple[int, Fragment]], lengths: Lengths | None,
    own_wide: tuple[NDArray[np.int32], dict[str, NDArray[Any]]] | None,
    order: NDArray[np.int32], number: NDArray[np.int32], states: int, pools: Pools, symbols: Symbols,
    triples: NDArray[np.int32], twin_state: NDArray[np.int32], twin_site: NDArray[np.int32], source: str, depth: int,
) -> TransitionTable:  # fmt: skip
    """Put the library's rows and a schema's together: the start, the library, the rest."""
    lib, vocabulary = library.arrays, library.vocabulary
    first = library.machine.size
    kind = np.min_scalar_type(vocabulary.size + 1)
    order = number[order]

    row_start = np.zeros(states + 1, np.int64)
    row_start[order + 1] = np.diff(pools.edge_start[: order.size + 1])
    row_start[2 : first + 1] = lib["row_count"]
    for at, fragment in fragments:
        row_start[at + 1 : at + 1 + len(fragment.row_count)] = fragment.row_count
    np.cumsum(row_start, out=row_start)
    edges = int(row_start[-1])
    row_start = row_start.astype(np.int32 if edges < 2**31 else np.int64)
    edge_token = np.empty(edges + 2, kind)
    edge_target = np.zeros(edges, np.int32)
    edge_token[-2:] = vocabulary.size, vocabulary.size + 1
    # walked states in runs of successive numbers lie as they are
    cuts = np.flatnonzero(np.diff(order) != 1) + 1
    for run in np.split(np.arange(order.size), cuts) if order.size else ():
        lo, hi = int(pools.edge_start[run[0]]), int(pools.edge_start[run[-1] + 1])
        at = int(row_start[order[run[0]]])
        edge_token[at : at + hi - lo] = pools.edge_token[lo:hi]
        edge_target[at : at + hi - lo] = pools.edge_code[lo:hi]
    at = int(row_start[1])
    edge_token[at : at + lib["edge_token"].size] = lib["edge_token"]
    edge_target[at : at + lib["edge_token"].size] = lib["edge_code"]
    _decode(edge_target, number, states)
    for origin, fragment in fragments:
        at, n = int(row_start[origin]), fragment.edge_target.size
        edge_token[at : at + n] = fragment.edge_token
        dead = len(fragment.row_count)
        edge_target[at : at + n] = np.where(fragment.edge_target == dead, states + 1, fragment.edge_target + origin)

    accepting = np.zeros(states, np.bool_)
    accepting[number[list(machine.accepting)]] = True
    base_row = np.full(states, -1, np.int32)
    base_row[1:first] = lib["base_row"]
    base_push = np.full(states, -1, np.int32)
    twinned = np.flatnonzero(twin_state >= 0)
    base_row[number[twinned]] = library.wide[twin_state[twinned]]
    base_push[number[twinned]] = twin_site[twinned]

    exit_counts = np.diff(pools.exit_start[: order.size + 1])
    has = exit_counts > 0
    row_exit = np.full(states, -1, np.int32)
    row_exit[1:first] = lib["row_exit"]
    row_exit[order] = np.where(has, np.cumsum(has) - 1 + lib["exit_start"].size - 1, -1)
    exits = int(pools.exit_start[order.size])
    parts: dict[str, list[NDArray[Any]]] = {
        "masks": [lib["masks"]], "base_mask": [lib["base_mask"]], "base_classes": [lib["base_classes"]],
        "base_start": [lib["base_start"]], "base_target": [lib["base_target"]], "class_start": [lib["class_start"]],
        "class_token": [lib["class_token"]], "class_id": [lib["class_id"]], "base_exit": [lib["base_exit"]],
        "exit_start": [lib["exit_start"], lib["exit_start"][-1] + np.cumsum(exit_counts[has])],
        "exit_token": [lib["exit_token"], pools.exit_token[:exits]],
        "exit_symbol": [lib["exit_symbol"], pools.exit_symbol[:exits]],
    }  # fmt: skip
    lists = lib["exit_start"].size - 1 + int(has.sum())
    total_exits = lib["exit_token"].size + exits
    masks, bases, classes = len(lib["masks"]), lib["base_mask"].size, lib["class_start"].size - 1
    shared = bases
    targets, classed = lib["base_target"].size, lib["class_token"].size
    if lengths is not None:
        _add_lengths(lengths, parts, masks, classes)
        masks, bases, classes = masks + len(lengths.masks), bases + len(lengths.bases), classes + lengths.states
        targets, classed = int(parts["base_start"][-1][-1]), int(parts["class_start"][-1][-1])
    for origin, fragment in fragments:
        n = len(fragment.row_count)
        if not fragment.base_mask.size:  # its bases are those of all strings that are counted
            base_row[origin : origin + n] = np.where(fragment.base_row >= 0, fragment.base_row + shared, -1)
        else:
            base_row[origin : origin + n] = np.where(fragment.base_row >= 0, fragment.base_row + bases, -1)
        row_exit[origin : origin + n] = np.where(fragment.row_exit >= 0, fragment.row_exit + lists, -1)
        if fragment.masks.size:
            parts["masks"].append(fragment.masks)
        parts["base_mask"].append(fragment.base_mask + masks)
        parts["base_classes"].append(fragment.base_classes + classes)
        parts["base_start"].append(fragment.base_start[1:] + targets)
        relative = fragment.base_target & 1
        parts["base_target"].append(np.where(relative, fragment.base_target, fragment.base_target + 2 * origin))
        parts["class_start"].append(fragment.class_start[1:] + classed)
        parts["class_token"].append(fragment.class_token)
        parts["class_id"].append(fragment.class_id)
        parts["base_exit"].append(np.full(fragment.base_mask.size, -1, np.int32))
        parts["exit_start"].append(fragment.exit_start[1:] + total_exits)
        parts["exit_token"].append(fragment.exit_token)
        parts["exit_symbol"].append(fragment.exit_symbol)
        masks += len(fragment.masks)
        bases += fragment.base_mask.size
        targets += fragment.base_target.size
        classed += fragment.class_token.size
        classes += fragment.class_start.size - 1
        lists += fragment.exit_start.size - 1
        total_exits += fragment.exit_token.size

    if own_wide is not None:
        states_of, made = own_wide
        base_row[states_of] = bases + np.arange(states_of.size)
        parts["masks"].append(made["masks"])
        parts["base_mask"].append(made["base_mask"] + masks)
        parts["base_classes"].append(made["base_classes"] + classes)
        parts["base_start"].append(made["base_start"][1:] + targets)
        parts["base_target"].append(made["base_target"])
        parts["class_start"].append(made["class_start"][1:] + classed)
        parts["class_token"].append(made["class_token"])
        parts["class_id"].append(made["class_id"])
        parts["base_exit"].append(np.full(states_of.size, -1, np.int32))

    sites = machine.num_sites
    site = np.concatenate((lib["site"], triples[0]))
    symbol = np.concatenate((lib["symbol"], triples[1]))
    target = np.concatenate((lib["target"], triples[2]))
    if triples.shape[1] and triples[0, 0] < library.machine.num_sites:  # new symbols at the library's sites
        by_site = np.lexsort((symbol, site))
        site, symbol, target = site[by_site], symbol[by_site], target[by_site]
    _decode(target, number, states)
    site_start = np.zeros(sites + 1, np.int32)
    np.cumsum(np.bincount(site, minlength=sites), out=site_start[1:])
    actions = int(pools.counters[ACTIONS])
    count = int(pools.counters[SYMBOLS])
    token, offset = symbols.token[symbols.remainder[:count]], symbols.offset[symbols.remainder[:count]]
    nothing_left = library.text_start[token] + offset == library.text_start[token + 1]
    kinds: dict[str, Any] = {"masks": np.uint32, "class_token": kind, "exit_token": kind}
    arrays = {
        name: (part[0] if len(part) == 1 else np.concatenate(part)).astype(kinds.get(name, np.int32), copy=False)
        for name, part in parts.items()
    }
    arrays |= {
        "row_start": row_start, "edge_token": edge_token, "edge_target": edge_target, "accepting": accepting,
        "base_row": base_row,
        "action_state": number[pools.action_state[:actions]], "action_start": pools.action_start[: actions + 1].copy(),
        "action_push": pools.action_push[: pools.action_start[actions]].copy(), "row_exit": row_exit,
        "site_start": site_start, "site_symbol": symbol.astype(np.int32), "site_target": target,
        "base_push": base_push, "symbol_label": np.where(nothing_left, symbols.label[:count], -1).astype(np.int32),
        "site_leaf": machine.sites[2],
    }  # fmt: skip
    depth, needed = _needs(machine, number, states, depth)
    arrays |= needed
    if not sites:  # nothing calls
        arrays |= {name: arrays[name][:0] for name in ("row_exit", "base_exit", "base_push")}
    for array in arrays.values():
        array.flags.writeable = False
    common = Common()
    if library.is_shared and sites and first > 1:
        common = Common(
            first - 1, lib["base_mask"].size, library.machine.num_sites, int(library.actions.counters[ACTIONS])
        )
        # strings that are counted share bases, whose classes may lead anywhere by distance where no token is of them
        if leads_out(grouped(arrays), common):
            common = Common()
    return TransitionTable.flat(
        vocab_size=vocabulary.size, eos=vocabulary.eos, vocabulary=vocabulary.fingerprint, source=source, depth=depth,
        common=common, **arrays,
    )  # fmt: skip


def _add_lengths(lengths: Lengths, parts: dict[str, list[NDArray[Any]]], masks: int, classes: int) -> None:
    """Add the masks, class lists and bases of strings that are counted."""
    parts["masks"].append(np.array(lengths.masks))
    parts["base_mask"].append(np.array([mask for mask, _, _ in lengths.bases]) + masks)
    parts["base_classes"].append(np.array([q for _, q, _ in lengths.bases]) + classes)
    sizes = np.cumsum([codes.size for _, _, codes in lengths.bases])
    parts["base_start"].append(sizes + parts["base_start"][-1][-1])
    parts["base_target"].append(np.concatenate([codes for _, _, codes in lengths.bases]))
    listed = np.cumsum([token.size for token, _, _, _ in lengths.classes])
    parts["class_start"].append(listed + parts["class_start"][-1][-1])
    parts["class_token"].append(np.concatenate([token for token, _, _, _ in lengths.classes]))
    parts["class_id"].append(np.concatenate([name for _, name, _, _ in lengths.classes]))
    parts["base_exit"].append(np.full(len(lengths.bases), -1, np.int32))


def _decode(codes: NDArray[np.int32], number: NDArray[np.int32], states: int) -> None:
    """Write targets as a table has them: states by number, then actions, the dead state for what is taken away."""
    actions = codes >= ACTION
    plain = (codes >= 0) & ~actions
    codes[plain] = number[codes[plain]]
    codes[actions] += states + 2 - ACTION
    codes[codes == -(2**31)] = states + 1
