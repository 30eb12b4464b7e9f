"""The part of a JSON table that depends on the vocabulary and the layout alone, bound once; and linking."""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...automata.budget import Budget, Meter
from ...automata.labelled import Labelled
from ...automata.nested import RETURN, Machine, needs
from ...errors import ConstraintError
from ...table import MOST_DEPTH, TransitionTable
from .. import store
from ..lazy import Base, Counted, Lazy
from ..link import (
    ACTION,
    ACTIONS,
    EDGES,
    EXITS,
    REMAINDERS,
    SYMBOLS,
    Pools,
    Symbols,
    empty_symbols,
    more_symbols,
    place,
    place_actions,
    resolve_sites,
    walk_rows,
)
from ..vocabulary import TokenTrie, Vocabulary
from .algebra import ANY, Integer
from .bounded import Lengths, follow_string
from .fragments import Fragment, bound
from .layout import QUOTE, Layout, Places, leaves, nested

_WIDE = 512  # own edges from which on a row of the library becomes a mask
_ROOM = 16_384  # slots for remainders that a schema adds
_ROWS_AT_ONCE = 1024  # walked before somebody looks at the clock
_BINDING = "binding a schema to the vocabulary"
_KEPT_BYTES = 64 << 20  # of bound string fragments kept for further schemas
_KEEPING = threading.Lock()  # held where these change: schemas are compiled, and read, in several threads


@dataclass(frozen=True, eq=False)
class Library:
    """What every table of one vocabulary and layout begins with."""

    vocabulary: Vocabulary
    layout: Layout
    machine: Machine
    places: Places
    text: NDArray[np.uint8]  # the bytes of all tokens
    text_start: NDArray[np.int32]  # (V + 1,)
    symbols: Symbols
    num_remainders: int
    num_symbols: int
    arrays: dict[str, NDArray[Any]]  # those of a table, of the library's rows but the first
    wide: NDArray[np.int32]  # (L,) base of each state, -1 for none
    actions: Pools  # only what concerns actions
    numbers: tuple[tuple[Labelled, int, tuple[int, int]], ...]  # those that have a fragment here
    nothing: int  # the remainder without bytes
    closes: NDArray[np.bool_]  # (M,) of each trie node, whether a quote lies at or below it
    name: str  # under which it is kept
    fragments: OrderedDict[tuple[bytes, bytes], Fragment] = field(default_factory=OrderedDict)
    free_masks: dict[tuple[int, int], Base] = field(default_factory=dict)  # as `Lazy` has them

    @cached_property
    def lengths(self) -> Lengths:
        """What strings of bounded length are put together from."""
        first, count = self.places.string
        rows = self.machine.rows[first : first + count].copy()
        rows[rows >= 0] -= first
        name = store.name_of("lengths", self.name)
        arrays = store.load(name)
        if arrays is None:
            arrays = self._followed(rows)
            store.save(name, arrays)
        quotes = np.append(np.flatnonzero(self.text == QUOTE), self.text.size)
        opening = quotes[np.searchsorted(quotes, self.text_start[:-1])]  # the first at or behind each token's start
        reach = int((self.text_start[1:] - opening).max(initial=1))
        known: dict[str, Any] = arrays
        return Lengths(rows, first, self.vocabulary.size, reach=reach, **known)

    def _followed(self, rows: NDArray[np.int32]) -> dict[str, NDArray[Any]]:
        """Return where each token leads within a string, and over how many characters, as `Lengths` has it."""
        trie = self.vocabulary.trie
        out, exits = np.empty((trie.token.size, 3), np.int32), np.empty((trie.token.size, 3), np.int32)
        symbols = self.symbols
        symbol_of = {}
        for y in range(self.num_symbols):
            v, offset = int(symbols.token[symbols.remainder[y]]), int(symbols.offset[symbols.remainder[y]])
            symbol_of[self.text[self.text_start[v] + offset : self.text_start[v + 1]].tobytes()] = y
        start, exit_start = [0], [0]
        stays, leaves = [], []
        for q in range(len(rows)):
            stay, leave = follow_string(
                rows, trie.byte, trie.skip, trie.depth, trie.token_start, trie.token, trie.root_start, q, out, exits
            )
            stays.append(out[:stay][np.argsort(out[:stay, 0], kind="stable")])
            chosen = [
                (v, symbol_of.get(self.text[self.text_start[v] + n : self.text_start[v + 1]].tobytes(), -1), c)
                for v, n, c in exits[:leave].tolist()
            ]
            leaves.append(np.array(sorted(c for c in chosen if c[1] >= 0), np.int32).reshape(-1, 3))
            start.append(start[-1] + stay)
            exit_start.append(exit_start[-1] + len(leaves[-1]))
        stay, leave = np.concatenate(stays), np.concatenate(leaves)
        return {
            "start": np.array(start), "token": stay[:, 0].copy(), "target": stay[:, 1].copy(),
            "characters": stay[:, 2].copy(), "exit_start": np.array(exit_start), "exit_token": leave[:, 0].copy(),
            "exit_symbol": leave[:, 1].copy(), "exit_characters": leave[:, 2].copy(),
        }  # fmt: skip

    def copied_symbols(self) -> Symbols:
        """Return the symbols in arrays of their own, to which a schema adds."""
        known, r, y = self.symbols, self.num_remainders, self.num_symbols
        out = Symbols(
            known.slots.copy(), np.empty_like(known.token), np.empty_like(known.offset), np.empty_like(known.alive),
            known.symbol_slots.copy(), np.empty_like(known.remainder), np.empty_like(known.label),
        )  # fmt: skip
        for name, size in (("token", r), ("offset", r), ("alive", r), ("remainder", y), ("label", y)):
            getattr(out, name)[:size] = getattr(known, name)[:size]
        return out

    @cached_property
    def bases(self) -> dict[int, Base]:
        """What the wide states of the library allow, by state."""
        arrays, found = self.arrays, {}
        for state in np.flatnonzero(self.wide >= 0).tolist():
            base = int(self.wide[state])
            listed = int(arrays["base_exit"][base])
            part = slice(*arrays["exit_start"][listed : listed + 2].tolist()) if listed >= 0 else slice(0, 0)
            token, symbol = (arrays[name][part].astype(np.int32) for name in ("exit_token", "exit_symbol"))
            found[state] = Base.of(arrays["masks"][arrays["base_mask"][base]], token, symbol, token[:0])
        return found

    @cached_property
    def counted(self) -> Counted:
        """What strings of bounded length are read with."""
        lengths = self.lengths
        known: dict[tuple[int, int | None], Base] = {}

        def base(q: int, left: int | None) -> Base:
            found = known.get((q, left))
            if found is None:
                part = slice(lengths.exit_start[q], lengths.exit_start[q + 1])
                exits = lengths.exit_token[part], lengths.exit_symbol[part], lengths.exit_characters[part]
                found = known[q, left] = Base.of(lengths.mask_of(q, left), *exits)
            return found

        lengths.near()
        for left in range(1, lengths.most_needed):
            base(0, left)
        return Counted(lengths.rows, lengths.most_needed, base)

    @cached_property
    def most_opened(self) -> int:
        """The most brackets that one token opens."""
        opens = np.frombuffer(b"[{", np.uint8)
        before = np.concatenate(([0], np.cumsum(np.isin(self.text, opens))))
        return int(np.diff(before[self.text_start]).max(initial=0))

    @cached_property
    def remainders(self) -> Vocabulary:
        """What may follow where a fragment ends within a token, by symbol."""
        symbols = self.symbols
        token, offset = (array[symbols.remainder[: self.num_symbols]] for array in (symbols.token, symbols.offset))
        texts = [
            self.text[self.text_start[v] + at : self.text_start[v + 1]].tobytes()
            for v, at in zip(token.tolist(), offset.tolist(), strict=True)
        ]
        return Vocabulary.from_bytes(texts)

    @classmethod
    def of(cls, vocabulary: Vocabulary, layout: Layout) -> Library:
        """Return the library, made once for each vocabulary and layout."""
        known: dict[Layout, Library] = vocabulary.__dict__.setdefault("_json_libraries", {})
        found = known.get(layout)
        if found is None:
            found = known[layout] = _build(vocabulary, layout)
        return found


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


def _walk(
    machine: Machine, order: NDArray[np.int32], twins: tuple[NDArray[np.int32], NDArray[np.int32]],
    vocabulary: Vocabulary, text: NDArray[np.uint8], text_start: NDArray[np.int32], pools: Pools, symbols: Symbols,
    admit: bool, meter: Meter,
) -> tuple[Pools, Symbols]:  # fmt: skip
    trie = vocabulary.trie
    stack = np.zeros((trie.longest + 2, trie.longest + 2), np.int32)
    site_start, site_states, _ = machine.sites
    done = 0
    while done < order.size:
        part = order[: done + _ROWS_AT_ONCE]
        found = walk_rows(
            machine.rows, machine.calls, site_start, site_states, *twins, part, done, trie.byte, trie.skip,
            trie.depth, trie.token_start, trie.token, trie.root_start, text, text_start, stack, admit, *pools, *symbols,
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
    machine: Machine, first_site: int, known: int, text: NDArray[np.uint8], text_start: NDArray[np.int32],
    longest: int, pools: Pools, symbols: Symbols, generic: bool, meter: Meter,
) -> tuple[Pools, Symbols, NDArray[np.int32]]:  # fmt: skip
    """Return pools, symbols, and (site, symbol, target) triples (n, 3), sorted."""
    site_start, site_states, _ = machine.sites
    stack = np.zeros((1, longest + 2), np.int32)
    out = np.empty((3, 64 * len(site_start) + 4096), np.int32)
    progress = np.zeros(5, np.int64)
    while True:
        count = resolve_sites(
            machine.rows, machine.calls, site_start, site_states, first_site, known, text, text_start, stack, generic,
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


def _build(vocabulary: Vocabulary, layout: Layout) -> Library:
    needed = set(range(256)) - {0xC0, 0xC1, *range(0xF5, 0x100)}  # all that UTF-8 uses
    missing = sorted(needed - {t[0] for t in vocabulary.tokens if len(t) == 1})
    if missing:
        raise ConstraintError(
            f"the vocabulary has no token for the single byte {bytes(missing[:1])!r}"
            + (f" and {len(missing) - 1} others" if len(missing) > 1 else "")
            + ": JSON Schema needs one of each byte that UTF-8 uses, so that every text that was begun can be finished"
        )
    leaf, places = leaves(layout)
    machine, places = nested(leaf, places, layout)
    text = np.frombuffer(b"".join(vocabulary.tokens) + b"\0", np.uint8)
    text_start = np.zeros(vocabulary.size + 1, np.int32)
    np.cumsum([len(t) for t in vocabulary.tokens], out=text_start[1:])
    masked = (places.quote, places.body, places.number_start, places.integer_start)  # twins
    name = store.name_of(
        "json", vocabulary.fingerprint, repr((layout, masked)), machine.rows.tobytes(), machine.calls.tobytes(),
        *(array.tobytes() for array in machine.sites),
    )  # fmt: skip
    arrays = store.load(name)
    if arrays is None:
        arrays = _bound(machine, vocabulary, text, text_start, masked)
        store.save(name, arrays)
    remainders, used = arrays["remainder_token"].size, arrays["symbol_remainder"].size
    symbols = empty_symbols(1 << max(15, int(2 * remainders + _ROOM).bit_length()))
    symbols.token[:remainders], symbols.offset[:remainders] = arrays["remainder_token"], arrays["remainder_offset"]
    symbols.remainder[:used] = arrays["symbol_remainder"]
    symbols.label[:used] = 0
    symbols.alive[arrays["symbol_remainder"]] = True
    place(symbols, text, text_start, remainders, used)
    actions = arrays["action_state"].size
    pools = _pools(0, 0, max(1 << 14, 1 << (4 * actions).bit_length()), arrays["action_push"].size)
    for key in ("action_state", "action_start", "action_push"):
        getattr(pools, key)[: arrays[key].size] = arrays[key]
    pools.counters[ACTIONS] = actions
    pools = pools._replace(action_slots=_rehash_actions(pools, pools.action_slots.size))
    return Library(
        vocabulary, layout, machine, places, text, text_start, symbols, remainders, used, arrays, arrays["wide"], pools,
        _numbers(places), _nothing_left(symbols, text_start, remainders), _closing(vocabulary.trie), name,
    )  # fmt: skip


def _bound(
    machine: Machine, vocabulary: Vocabulary, text: NDArray[np.uint8], text_start: NDArray[np.int32],
    masked: tuple[int, ...],
) -> dict[str, NDArray[Any]]:  # fmt: skip
    """Return the library's arrays, worked out."""
    trie = vocabulary.trie
    meter = Budget(seconds=math.inf, bytes=1 << 40).begin()
    states = machine.size
    order = np.arange(1, states, dtype=np.int32)
    nothing = np.full(states, -1, np.int32)
    pools, symbols = _walk(
        machine, order, (nothing, nothing), vocabulary, text, text_start,
        _pools(states, trie.token.size), empty_symbols(1 << 20), True, meter,
    )  # fmt: skip
    pools, symbols, triples = _resolve(machine, 0, 0, text, text_start, trie.longest, pools, symbols, True, meter)

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
    keep = alive[symbol] & ((target >= 0) | alive[np.maximum(-1 - target, 0) % count])
    site, symbol, target = site[keep], number[symbol[keep]], target[keep]
    target = np.where(target < 0, -1 - number[np.maximum(-1 - target, 0) % count], target).astype(np.int32)
    used = int(pools.counters[EXITS])
    exit_kept = alive[pools.exit_symbol[:used]]
    exit_before = np.concatenate(([0], np.cumsum(exit_kept)))
    exit_start = exit_before[pools.exit_start[:states]]
    exit_token, exit_symbol = pools.exit_token[:used][exit_kept], number[pools.exit_symbol[:used][exit_kept]]
    arrays, wide = _library_arrays(pools, states, exit_start, exit_token, exit_symbol, vocabulary, masked)
    remainders, actions = int(pools.counters[REMAINDERS]), int(pools.counters[ACTIONS])
    return arrays | {
        "site": site, "symbol": symbol, "target": target, "wide": wide,
        "remainder_token": symbols.token[:remainders].copy(), "remainder_offset": symbols.offset[:remainders].copy(),
        "symbol_remainder": symbols.remainder[kept], "action_state": pools.action_state[:actions].copy(),
        "action_start": pools.action_start[: actions + 1].copy(),
        "action_push": pools.action_push[: pools.action_start[actions]].copy(),
    }  # fmt: skip


def _nothing_left(symbols: Symbols, text_start: NDArray[np.int32], count: int) -> int:
    """Return the remainder without bytes."""
    token = symbols.token[:count]
    return int(np.flatnonzero(text_start[token] + symbols.offset[:count] == text_start[token + 1])[0])


def _closing(trie: TokenTrie) -> NDArray[np.bool_]:
    """Return for each node whether a quote lies at or below it."""
    before = np.concatenate(([0], np.cumsum(trie.byte == QUOTE)))
    closes: NDArray[np.bool_] = before[trie.skip] > before[:-1]
    return closes


def _numbers(places: Places) -> tuple[tuple[Labelled, int, tuple[int, int]], ...]:
    """Return the numbers that have a fragment in the library."""
    from .numbers import numbers

    found = []
    for node, start, fragment in (
        (ANY, places.number_start, places.number),
        (Integer(), places.integer_start, places.integer),
    ):
        number = numbers((node,), Budget().begin())
        if number is not None:
            found.append((number, start, fragment))
    return tuple(found)


def _library_arrays(
    pools: Pools, states: int, exit_start: NDArray[Any], exit_token: NDArray[Any], exit_symbol: NDArray[Any],
    vocabulary: Vocabulary, masked: tuple[int, ...],
) -> tuple[dict[str, NDArray[Any]], NDArray[np.int32]]:  # fmt: skip
    """Return the arrays of the library's rows, wide ones and some others as bases, and the base of each state."""
    words = -(-vocabulary.size // 32)
    counts = np.diff(pools.edge_start[:states])
    wide = np.full(states, -1, np.int32)
    masks: list[NDArray[np.uint32]] = []
    tokens, codes, base_target, class_token, class_id = [], [], [], [], []
    base_start, class_start, base_exit = [0], [0], []
    row_count = np.zeros(states - 1, np.int32)
    row_exit = np.full(states - 1, -1, np.int32)
    list_start = [0]
    lists: list[NDArray[Any]] = []
    known: dict[bytes, int] = {}
    for row in range(states - 1):
        lo, hi = pools.edge_start[row : row + 2]
        first, stop = int(exit_start[row]), int(exit_start[row + 1]) if row + 1 < states else len(exit_token)
        listed = -1
        if stop > first:
            content = exit_token[first:stop].tobytes() + exit_symbol[first:stop].tobytes()
            listed = known.setdefault(content, len(lists))
            if listed == len(lists):
                lists.append(np.arange(first, stop))
                list_start.append(list_start[-1] + stop - first)
        pushes = (pools.edge_code[lo:hi] >= ACTION).any()  # which targets of bases cannot
        if (counts[row] <= _WIDE or pushes) and row + 1 not in masked:
            tokens.append(pools.edge_token[lo:hi])
            codes.append(pools.edge_code[lo:hi])
            row_count[row] = hi - lo
            row_exit[row] = listed
            continue
        wide[row + 1] = len(masks)
        base_exit.append(listed)
        bits = np.zeros(32 * words, np.uint8)
        bits[pools.edge_token[lo:hi]] = 1
        masks.append(np.packbits(bits, bitorder="little").view("<u4").astype(np.uint32))
        targets, which = np.unique(pools.edge_code[lo:hi], return_inverse=True)
        by_count = np.argsort(-np.bincount(which), kind="stable")
        rank = np.argsort(by_count)[which]
        base_target.extend((2 * targets[by_count]).tolist())
        base_start.append(len(base_target))
        listed_tokens = rank > 0
        class_token.append(pools.edge_token[lo:hi][listed_tokens])
        class_id.append(rank[listed_tokens])
        class_start.append(class_start[-1] + int(listed_tokens.sum()))
    chosen = np.concatenate([np.zeros(0, np.int64), *lists]).astype(np.int64)
    return {
        "row_count": row_count,
        "edge_token": np.concatenate([np.zeros(0, np.int32), *tokens]),
        "edge_code": np.concatenate([np.zeros(0, np.int32), *codes]),
        "row_exit": row_exit,
        "base_row": wide[1:],
        "masks": np.array(masks, np.uint32).reshape(-1, words),
        "base_mask": np.arange(len(masks), dtype=np.int32),
        "base_classes": np.arange(len(masks), dtype=np.int32),
        "base_start": np.array(base_start, np.int32),
        "base_target": np.array(base_target, np.int32),
        "base_exit": np.array(base_exit, np.int32),
        "class_start": np.array(class_start, np.int32),
        "class_token": np.concatenate([np.zeros(0, np.int32), *class_token]),
        "class_id": np.concatenate([np.zeros(0, np.int32), *class_id]).astype(np.int32),
        "exit_start": np.array(list_start, np.int32),
        "exit_token": exit_token[chosen],
        "exit_symbol": exit_symbol[chosen],
    }, wide  # fmt: skip


def link(library: Library, machine: Machine, source: str, depth: int, meter: Meter) -> TransitionTable:
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
        fragment, symbols = _fragment(library, class_of, codes, common, symbols, pools.counters, meter)
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
        machine, order, (twin_state, twin_site), vocabulary, library.text, library.text_start, pools, symbols, False,
        meter,
    )  # fmt: skip
    meter.check(states=states, bytes=sum(array.nbytes for array in pools), doing=_BINDING)
    pools, symbols, triples = _resolve(
        machine, library.machine.num_sites, library.num_symbols, library.text, library.text_start, trie.longest,
        pools, symbols, False, meter,
    )  # fmt: skip
    bases = library.lengths if counted else None
    return _table(
        library, machine, fragments, bases, order, number, total, pools, symbols, triples, twin_state, twin_site,
        source, depth,
    )  # fmt: skip


def lazily(library: Library, emitter: Any, depth: int, meter: Meter) -> Lazy:
    """Return what reads the machine of an emitter that is lazy, as it is."""
    machine = emitter.machine
    bound = emitter.frames_bound(depth)

    def limits() -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        if bound == 0:
            return np.zeros(0, np.int32), np.zeros(0, np.int32)
        emitter.finish()
        return needs(machine, MOST_DEPTH)

    return Lazy(
        machine, library.vocabulary, library.bases, library.remainders, library.places.body,
        lambda: library.counted, limits, library.free_masks, depth,
        None if bound is None else bound + library.most_opened, meter,
    )  # fmt: skip


def _name_ends(library: Library, machine: Machine, symbols: Symbols, counters: NDArray[np.int64]) -> Symbols:
    """Make a symbol for the bare end of every label, by which a table knows how far it is from a site to the end."""
    labels = int(np.diff(machine.sites[0]).max(initial=1))
    while 2 * (int(counters[SYMBOLS]) + labels) > symbols.symbol_slots.size:
        symbols = more_symbols(symbols, library.text, library.text_start, counters)
    for label in range(1, labels):
        y = int(counters[SYMBOLS])
        symbols.remainder[y], symbols.label[y] = library.nothing, label
        size = symbols.symbol_slots.size
        at = (library.nothing * 31 + label * 7919) & (size - 1)
        while symbols.symbol_slots[at] >= 0:
            at = (at + 1) & (size - 1)
        symbols.symbol_slots[at] = y
        counters[SYMBOLS] += 1
    return symbols


def _needs(machine: Machine, number: NDArray[np.int32], states: int, depth: int) -> tuple[int, dict[str, NDArray[Any]]]:
    """Return the depth of a table, and what its states and sites need of it where it can run out."""
    if machine.height is not None and machine.height <= depth:
        if not machine.anything:
            return machine.height, {}
        return depth, {"site_need": np.zeros(machine.num_sites, np.int32)}  # there: it can run out, in free values
    by_state, by_site = needs(machine, MOST_DEPTH)
    out = np.zeros(states, np.int32)
    out[number] = by_state
    return depth, {"state_need": out, "site_need": by_site}


def _fragment(
    library: Library, class_of: NDArray[Any], codes: NDArray[np.int32], common: bool, symbols: Symbols,
    counters: NDArray[np.int64], meter: Meter,
) -> tuple[Fragment, Symbols]:  # fmt: skip
    """Bind a string fragment, or find it where an earlier schema left it; the symbols may grow."""
    if codes.min() < RETURN:  # symbols of several labels are this schema's own
        return bound(
            class_of, codes, library.vocabulary, library.closes, library.text, library.text_start, symbols, counters,
            meter,
        )  # fmt: skip
    key = (class_of.tobytes(), codes.tobytes())
    with _KEEPING:
        found = library.fragments.get(key)
        if found is not None:
            library.fragments.move_to_end(key)
            return found, symbols
    name = store.name_of("text", library.name, *key) if common else ""
    arrays = store.load(name) if common else None
    if arrays is not None:
        found = Fragment(**arrays)
    else:
        found, symbols = bound(
            class_of, codes, library.vocabulary, library.closes, library.text, library.text_start, symbols, counters,
            meter,
        )  # fmt: skip
        if common:
            store.save(name, dict(found._asdict()))
    with _KEEPING:
        kept = library.fragments
        kept[key] = found
        while sum(fragment.nbytes for fragment in kept.values()) > _KEPT_BYTES and len(kept) > 1:
            kept.popitem(last=False)
    return found, symbols


def _table(
    library: Library, machine: Machine, fragments: list[tuple[int, Fragment]], lengths: Lengths | None,
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
    for run in np.split(np.arange(order.size), cuts) if cuts.size else [np.arange(order.size)]:
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
    for array in arrays.values():
        array.flags.writeable = False
    return TransitionTable.graph(
        vocab_size=vocabulary.size, eos=vocabulary.eos, vocabulary=vocabulary.fingerprint, source=source, depth=depth,
        **arrays,
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
