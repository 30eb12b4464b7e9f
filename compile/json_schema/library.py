"""The part of a JSON table that depends on the vocabulary and the layout alone, bound once."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, NamedTuple, TypeVar, get_type_hints

import numpy as np
from numpy.typing import NDArray

from ...automata.budget import Budget, Meter
from ...automata.labelled import Labelled
from ...automata.pushdown import PushdownMachine
from ...automata.state_ranges import RETURN
from ...errors import ConstraintError
from ...kernels.limits import MOST_DEPTH
from ...kernels.mask_buffers import MaskBuffers
from ...kernels.preparing import preparing
from ...lazy.pushdown.bases import Base
from ...lazy.pushdown.shortest_ends import LibraryEnds
from ...lazy.pushdown.string_mask_cache import Counted, StringMaskCache
from ...vocabulary.token_trie import TokenTrie
from ...vocabulary.vocabulary import Vocabulary
from .. import store
from ..bind.arrays import TrieArrays
from ..bind.fragment import Fragment, bind_fragment
from ..bind.library import LinkedLibrary, LinkedRows, bind_rows, linked_fields
from ..bind.symbols import ADMIT_ANY, ADMIT_JSON, Symbols
from .algebra import ANY, Integer
from .bounded import Lengths, follow_string
from .layout import QUOTE, Layout
from .library_machine import leaves, nested
from .numbers import numbers
from .writer import Places

Group = TypeVar("Group", bound=tuple[Any, ...])

KEPT_BYTES = 64 << 20  # of bound string fragments kept for further schemas
_MOST_KEPT = 16  # libraries of one vocabulary: one for each layout, and for each set of bytes that may follow a value
_KEEPING = threading.Lock()  # held where these change: schemas are compiled, and read, in several threads


@dataclass(frozen=True, eq=False)
class Library(LinkedLibrary):
    """What every table of one vocabulary and layout begins with."""

    is_shared: ClassVar[bool] = True

    layout: Layout
    places: Places
    numbers: tuple[tuple[Labelled, int, tuple[int, int]], ...]  # those that have a fragment here
    closes: NDArray[np.bool_]  # (M,) of each trie node, whether a quote lies at or below it
    name: str  # under which it is kept
    fragments: OrderedDict[tuple[bytes, bytes], Fragment] = field(default_factory=OrderedDict)

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
        trie = TrieArrays.of(self.vocabulary.trie)
        out, exits = np.empty((trie.token.size, 3), np.int32), np.empty((trie.token.size, 3), np.int32)
        symbols = self.symbols
        symbol_of = {}
        for y in range(self.num_symbols):
            v, offset = int(symbols.token[symbols.remainder[y]]), int(symbols.offset[symbols.remainder[y]])
            symbol_of[self.text[self.text_start[v] + offset : self.text_start[v + 1]].tobytes()] = y
        start, exit_start = [0], [0]
        stays, leaves = [], []
        for q in range(len(rows)):
            stay, leave = follow_string(rows, trie, q, out, exits)
            stays.append(out[:stay][np.argsort(out[:stay, 0], kind="stable")])
            chosen = [
                (v, symbol_of.get(self.text[self.text_start[v] + n : self.text_start[v + 1]].tobytes(), -1), c)
                for v, n, c in exits[:leave].tolist()
            ]
            leaves.append(np.array(sorted(c for c in chosen if c[1] >= 0), np.int32).reshape(-1, 3))
            start.append(start[-1] + stay)
            exit_start.append(exit_start[-1] + len(leaves[-1]))
        inside, ends = np.concatenate(stays), np.concatenate(leaves)
        return {
            "start": np.array(start), "token": inside[:, 0].copy(), "target": inside[:, 1].copy(),
            "characters": inside[:, 2].copy(), "exit_start": np.array(exit_start), "exit_token": ends[:, 0].copy(),
            "exit_symbol": ends[:, 1].copy(), "exit_characters": ends[:, 2].copy(),
        }  # fmt: skip

    @cached_property
    def bases(self) -> dict[int, Base]:
        """What the wide states of the library allow, by state."""
        bases, exits, found = self.rows.bases, self.rows.exits, {}
        for state in np.flatnonzero(self.rows.base >= 0).tolist():
            base = int(self.rows.base[state])
            listed = int(exits.of_base[base])
            part = slice(*exits.start[listed : listed + 2].tolist()) if listed >= 0 else slice(0, 0)
            token, symbol = exits.token[part].astype(np.int32), exits.symbol[part].astype(np.int32)
            mask = bases.masks[bases.mask[base]]
            found[state] = Base.of(mask, token, symbol, token[:0], buffers=MaskBuffers(mask.size))
        return found

    @cached_property
    def ends(self) -> LibraryEnds:
        """How few bytes it takes to end the library's fragments."""
        return LibraryEnds(self.machine, (self.places.body, self.places.escape, self.places.key_escape))

    @cached_property
    def quoted(self) -> NDArray[np.uint32]:
        """The tokens that have a quote, as a mask (ceil(V / 32),), read-only."""
        found = np.zeros(-(-self.vocabulary.size // 32), np.uint32)
        for token, text in enumerate(self.vocabulary.tokens):
            if QUOTE in text:
                found[token >> 5] |= np.uint32(1 << (token & 31))
        found.flags.writeable = False
        return found

    @cached_property
    def string_masks(self) -> StringMaskCache:
        """Masks of strings that all lazy machines share."""
        return StringMaskCache(self.vocabulary, self.bases[self.places.body])

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

    def like_string(self, rows: NDArray[np.int32], state: int) -> dict[int, int]:
        """Return the library's state that reads as a state does, for that and for those in a character on its way back.

        rows: (N, 256) codes of the JSON text of a string's content. state: one that reads any string.
        """
        like = {state: self.places.body}
        todo = [state]
        while todo:
            here = todo.pop()
            for byte in range(0x80, 0x100):
                target = int(rows[here, byte])
                if target >= 0 and target not in like:
                    like[target] = int(self.machine.rows[like[here], byte])
                    todo.append(target)
        return like

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

    def fragment(
        self, class_of: NDArray[Any], codes: NDArray[np.int32], common: bool, symbols: Symbols,
        counters: NDArray[np.int64], meter: Meter,
    ) -> tuple[Fragment, Symbols]:  # fmt: skip
        """Bind a string fragment, or find it where an earlier schema left it; the symbols may grow."""
        if codes.min() < RETURN:  # symbols of several labels are this schema's own
            return bind_fragment(
                class_of, codes, self.vocabulary, self.closes, self.token_text, symbols, counters, meter
            )
        key = (class_of.tobytes(), codes.tobytes())
        with _KEEPING:
            found = self.fragments.get(key)
            if found is not None:
                self.fragments.move_to_end(key)
                return found, symbols
        name = store.name_of("text", self.name, *key) if common else ""
        arrays = store.load(name) if common else None
        if arrays is not None:
            found = _from_names(Fragment, arrays)
        else:
            found, symbols = bind_fragment(
                class_of, codes, self.vocabulary, self.closes, self.token_text, symbols, counters, meter
            )
            if common:
                store.save(name, _by_name(found))
        with _KEEPING:
            kept = self.fragments
            kept[key] = found
            while sum(fragment.nbytes for fragment in kept.values()) > KEPT_BYTES and len(kept) > 1:
                kept.popitem(last=False)
        return found, symbols

    @classmethod
    def of(cls, vocabulary: Vocabulary, layout: Layout, meter: Meter | None = None) -> Library:
        """Return the library of a vocabulary and a layout; those asked for last are kept.

        meter: of who asks, where the library is not one that all share.
        """
        return vocabulary.derived.of(_Libraries).of(vocabulary, layout, meter)


class _Libraries:
    """The libraries of one vocabulary by layout, those asked for last."""

    def __init__(self) -> None:
        self._kept: OrderedDict[Layout, Library] = OrderedDict()

    def of(self, vocabulary: Vocabulary, layout: Layout, meter: Meter | None) -> Library:
        """Return the library of a layout, built if it is not kept."""
        found = self._kept.get(layout)
        if found is None:
            with preparing() if meter is None else nullcontext():
                found = _build(vocabulary, layout, meter)
        with _KEEPING:
            self._kept[layout] = found
            self._kept.move_to_end(layout)
            while len(self._kept) > _MOST_KEPT:
                self._kept.popitem(last=False)
        return found


def _build(vocabulary: Vocabulary, layout: Layout, meter: Meter | None) -> Library:
    needed = set(range(256)) - {0xC0, 0xC1, *range(0xF5, 0x100)}  # all that UTF-8 uses
    alone = vocabulary.token_bytes[vocabulary.token_offset[:-1][np.diff(vocabulary.token_offset) == 1]]
    missing = sorted(needed - set(alone.tolist()))
    if missing:
        raise ConstraintError(
            f"the vocabulary has no token for the single byte {bytes(missing[:1])!r}"
            + (f" and {len(missing) - 1} others" if len(missing) > 1 else "")
            + ": JSON Schema needs one of each byte that UTF-8 uses, so that every text that was begun can be finished"
        )
    leaf, places = leaves(layout)
    machine, places = nested(leaf, places, layout)
    masked = (places.quote, places.spaced, places.body, places.number_start, places.integer_start)  # twins
    name = store.name_of(
        "json", vocabulary.spelling, repr((layout, masked)), machine.rows.tobytes(), machine.calls.tobytes(),
        *(array.tobytes() for array in machine.sites),
    )  # fmt: skip
    arrays = store.load(name)
    if arrays is None:
        admit = ADMIT_ANY if set(layout.after) & set(b"tfn") else ADMIT_JSON
        rows = bind_rows(machine, vocabulary, masked, admit=admit, meter=meter)
        store.save(name, _by_name(rows))
    else:
        rows = _from_names(LinkedRows, arrays)
    return Library(
        **linked_fields(machine, vocabulary, rows), layout=layout, places=places, numbers=_numbers(places),
        closes=_closing(vocabulary.trie), name=name,
    )  # fmt: skip


def _closing(trie: TokenTrie) -> NDArray[np.bool_]:
    """Return for each node whether a quote lies at or below it."""
    before = np.concatenate(([0], np.cumsum(trie.byte == QUOTE)))
    closes: NDArray[np.bool_] = before[trie.skip] > before[:-1]
    return closes


def _numbers(places: Places) -> tuple[tuple[Labelled, int, tuple[int, int]], ...]:
    """Return the numbers that have a fragment in the library."""
    found = []
    for node, start, fragment in (
        (ANY, places.number_start, places.number),
        (Integer(), places.integer_start, places.integer),
    ):
        number = numbers((node,), Budget().begin())
        if number is not None:
            found.append((number, start, fragment))
    return tuple(found)


def frames(machine: PushdownMachine, depth: int) -> int:
    """Return how many frames may be open: of a schema that does not recurse, all that it opens beside `depth`."""
    height = machine.height
    return depth if height is None or height <= depth else min(depth + height, MOST_DEPTH)


def _by_name(group: NamedTuple) -> dict[str, NDArray[Any]]:
    """Return the arrays of a named tuple of arrays and of such tuples, by names such as `bases.masks`."""
    out: dict[str, NDArray[Any]] = {}
    for name, part in group._asdict().items():
        if _is_group(type(part)):
            out |= {f"{name}.{key}": array for key, array in _by_name(part).items()}
        else:
            out[name] = part
    return out


def _from_names(kind: type[Group], arrays: Mapping[str, NDArray[Any]], prefix: str = "") -> Group:
    """Return a group of the arrays that `_by_name` names. Raises KeyError for a name that is missing."""
    return kind(*(
        _from_names(hint, arrays, f"{prefix}{name}.") if _is_group(hint) else arrays[prefix + name]
        for name, hint in get_type_hints(kind).items()
    ))  # fmt: skip


def _is_group(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, tuple)
