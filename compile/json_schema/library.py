"""The part of a JSON table that depends on the vocabulary and the layout alone, bound once."""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ...automata.budget import Budget, Meter
from ...automata.labelled import Labelled
from ...automata.pushdown import RETURN, PushdownMachine, needs
from ...errors import ConstraintError
from ...kernels.limits import MOST_DEPTH
from ...kernels.mask_buffers import MaskBuffers
from ...lazy.lazy_table import LazyTable
from ...lazy.pushdown.bases import Base
from ...lazy.pushdown.lazy_pushdown import FrameRule, LazyPushdown
from ...lazy.pushdown.memory import LibraryParts
from ...lazy.pushdown.string_mask_cache import Counted, StringMaskCache
from ...table.transition_table import TransitionTable
from ...vocabulary.vocabulary import TokenTrie, Vocabulary
from .. import store
from ..bind.link import LinkedLibrary, bind_rows, bound_parts, text_of, too_deep
from ..bind.link_kernels import ADMIT_ANY, ADMIT_JSON, Symbols
from .algebra import ANY, Integer
from .bounded import Lengths, follow_string
from .fragments import Fragment, bound
from .layout import QUOTE, Layout, Places, leaves, nested

_KEPT_BYTES = 64 << 20  # of bound string fragments kept for further schemas
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

    @cached_property
    def bases(self) -> dict[int, Base]:
        """What the wide states of the library allow, by state."""
        arrays, found = self.arrays, {}
        for state in np.flatnonzero(self.wide >= 0).tolist():
            base = int(self.wide[state])
            listed = int(arrays["base_exit"][base])
            part = slice(*arrays["exit_start"][listed : listed + 2].tolist()) if listed >= 0 else slice(0, 0)
            token, symbol = (arrays[name][part].astype(np.int32) for name in ("exit_token", "exit_symbol"))
            mask = arrays["masks"][arrays["base_mask"][base]]
            found[state] = Base.of(mask, token, symbol, token[:0], buffers=MaskBuffers(mask.size))
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
            return bound(
                class_of, codes, self.vocabulary, self.closes, self.text, self.text_start, symbols, counters,
                meter,
            )  # fmt: skip
        key = (class_of.tobytes(), codes.tobytes())
        with _KEEPING:
            found = self.fragments.get(key)
            if found is not None:
                self.fragments.move_to_end(key)
                return found, symbols
        name = store.name_of("text", self.name, *key) if common else ""
        arrays = store.load(name) if common else None
        if arrays is not None:
            found = Fragment(**arrays)
        else:
            found, symbols = bound(
                class_of, codes, self.vocabulary, self.closes, self.text, self.text_start, symbols, counters,
                meter,
            )  # fmt: skip
            if common:
                store.save(name, dict(found._asdict()))
        with _KEEPING:
            kept = self.fragments
            kept[key] = found
            while sum(fragment.nbytes for fragment in kept.values()) > _KEPT_BYTES and len(kept) > 1:
                kept.popitem(last=False)
        return found, symbols

    @classmethod
    def of(cls, vocabulary: Vocabulary, layout: Layout, meter: Meter | None = None) -> Library:
        """Return the library of a vocabulary and a layout; those asked for last are kept.

        meter: of who asks, where the library is not one that all share.
        """
        known: OrderedDict[Layout, Library] = vocabulary.__dict__.setdefault("_json_libraries", OrderedDict())
        found = known.get(layout) or _build(vocabulary, layout, meter)
        with _KEEPING:
            known[layout] = found
            known.move_to_end(layout)
            while len(known) > _MOST_KEPT:
                known.popitem(last=False)
        return found


def _build(vocabulary: Vocabulary, layout: Layout, meter: Meter | None) -> Library:
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
    text, text_start = text_of(vocabulary)
    masked = (places.quote, places.spaced, places.body, places.number_start, places.integer_start)  # twins
    name = store.name_of(
        "json", vocabulary.spelling, repr((layout, masked)), machine.rows.tobytes(), machine.calls.tobytes(),
        *(array.tobytes() for array in machine.sites),
    )  # fmt: skip
    arrays = store.load(name)
    if arrays is None:
        admit = ADMIT_ANY if set(layout.after) & set(b"tfn") else ADMIT_JSON
        arrays = bind_rows(machine, vocabulary, text, text_start, masked, admit=admit, meter=meter)
        store.save(name, arrays)
    return Library(
        **bound_parts(machine, vocabulary, text, text_start, arrays), layout=layout, places=places,
        numbers=_numbers(places), closes=_closing(vocabulary.trie), name=name,
    )  # fmt: skip


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


def frames(machine: PushdownMachine, depth: int) -> int:
    """Return how many frames may be open: of a schema that does not recurse, all that it opens beside `depth`."""
    height = machine.height
    return depth if height is None or height <= depth else min(depth + height, MOST_DEPTH)


def lazily(
    library: Library, emitted: Callable[[Meter], Any], make: Callable[[], TransitionTable], vocabulary: Vocabulary, *,
    source: str, depth: int, renews: bool, meter: Meter,
) -> LazyTable:  # fmt: skip
    """Return the lazy table of what is emitted under a meter, which `make` works out.

    meter: of what is written now; nobody waits for what is never reached. renews: whether texts lead to ever more of
    it, so that it is emitted anew once much of the budget is spent. Raises ConstraintError where the depth is enough
    for no text.
    """
    patient = replace(meter.budget, seconds=math.inf)

    def read(meter: Meter) -> LazyPushdown:
        emitter = emitted(meter)
        emitter.begin(patient.begin())
        reader = _reader(library, emitter, frames(emitter.machine, depth), patient.begin())
        if reader.most_frames_required > reader.depth and not reader.mask(0, b"", 0)[0].any():
            raise too_deep(reader.frames_required(0), reader.depth)
        return reader

    def renewed(reader: LazyPushdown) -> LazyPushdown:
        return read(patient.begin()) if reader.is_large else reader

    _load_loops()
    reader = read(meter)
    return LazyTable(
        reader, make, vocab_size=vocabulary.size, eos=vocabulary.eos, vocabulary=vocabulary.fingerprint, source=source,
        depth=reader.depth, renewed=renewed if renews else None,
    )  # fmt: skip


_OF_ALL_KINDS = {
    "properties": {
        "listed": {"enum": ["a", "ab"]},
        "bounded": {"maxLength": 9},
        "patterns": {"pattern": "^(?:[a-cé]{2,40}|x.*y)$", "allOf": [{"pattern": "^a"}], "maxLength": 30},
        "prefix": {"pattern": "^a"},
        "again": {"$ref": "#"},
    },
    "patternProperties": {"^x": True, "y$": {"type": "null"}},
}


@cache
def _load_loops() -> None:
    """Load the loops with which states are written, 3 to 15 ms each, before somebody waits for the mask of one."""
    from .build import build
    from .emit import Emitter
    from .keywords import formula

    vocabulary = Vocabulary.from_bytes([bytes([byte]) for byte in range(256)])
    for layout in (Layout(), Layout(ascii=True)):
        library, meter = Library.of(vocabulary, layout), Budget(seconds=math.inf).begin()
        emitter = Emitter((build(formula(_OF_ALL_KINDS, meter=meter), meter),), library, meter, 1)
        emitter.finish()
        _reader(library, emitter, 1, meter).frames_required(0)


def _reader(library: Library, emitter: Any, depth: int, meter: Meter) -> LazyPushdown:
    """Return what reads the machine of an emitter that is lazy, as it is."""
    machine = emitter.machine
    bound = emitter.frames_bound()

    def limits() -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.bool_]]:
        if bound == 0:
            return np.zeros(0, np.int32), np.zeros(0, np.int32), np.zeros(0, np.bool_)
        emitter.finish()
        return needs(machine, MOST_DEPTH)

    parts = LibraryParts(
        library.vocabulary, library.remainders, library.bases, library.places.body, library.counted,
        library.string_masks,
    )  # fmt: skip
    frames = FrameRule(limits, depth, None if bound is None else bound + library.most_opened)
    return LazyPushdown(machine, parts, frames, meter, emitter.release)
