"""The arrays of an arena: those of the declaration in `table/groups.py` at fixed sizes, and distances by ends."""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from ...kernels.limits import UNREACHABLE
from ...table.groups import NO_TRIE, SPECS, Int32Array, TableArrays
from ...table.nested_distances import Distances
from .capacity import Capacity, VocabularyLike
from .view import ArenaView, FrameLimits

CODE_FRAMES = "code_frames_required"
"""How many more frames must fit for a code to be followed: of states, the two behind them, then actions."""

DISTANCES = {"code_distance": "code", "site_distance": "site", "code_room": "code_frames", "site_room": "site_frames"}
"""The fields of `Distances` by the names of the arena's arrays that hold them."""


class Change(NamedTuple):
    """A part of an array that was written over."""

    name: str
    start: int
    stop: int


class ArenaArrays:
    """The arrays that the tables of an arena share, by name, and which parts of them have changed.

    An array of the declaration has its name there, such as `rows.edge_start`. `view` shows them all as one table.
    """

    def __init__(self, vocabulary: VocabularyLike, capacity: Capacity, number: int, *, budgets: bool) -> None:
        self.capacity, self.budgets = capacity, budgets
        self.changes: list[Change] = []
        declared = _declared(capacity, vocabulary.size)
        codes = capacity.states + 2 + capacity.actions
        needed = np.zeros(codes, np.int32)
        distances = _distances(capacity, codes)
        self.by_name: dict[str, NDArray[Any]] = {
            **declared, CODE_FRAMES: needed, **{name: distances[field] for name, field in DISTANCES.items()}
        }  # fmt: skip
        by_end = None
        if budgets:
            distances["code"][capacity.states] = 0  # after EOS nothing need follow
            by_end = Distances(**{field: _shown(array) for field, array in distances.items()})
        # kernels are compiled for arrays that nobody writes to
        shown = {name: _shown(array) for name, array in declared.items()}
        shown["rows.frames_required"] = _shown(needed[: capacity.states])
        self.view = ArenaView(
            TableArrays.from_names(shown), vocabulary.size, cast(int, vocabulary.eos), vocabulary.fingerprint,
            capacity.depth, number, _shown(needed), FrameLimits(), by_end,
            other_ends=tuple(getattr(vocabulary, "other_ends", ())),
        )  # fmt: skip

    def set(self, name: str, start: int, values: NDArray[Any]) -> None:
        """Write values over part of an array."""
        if len(values):
            self.by_name[name][start : start + len(values)] = values
            self.changes.append(Change(name, start, start + len(values)))


def _declared(cap: Capacity, vocab_size: int) -> dict[str, Int32Array | NDArray[Any]]:
    """Return the arrays of the declaration, in which there is nothing yet."""
    lists = 2 * cap.lists
    sizes = {
        "S": cap.states, "E": cap.edges, "T": 0, "H": cap.states, "U": cap.masks, "W": -(-vocab_size // 32),
        "R": cap.bases, "X": cap.base_targets, "C": lists, "Z": cap.classes, "A": cap.actions, "P": cap.pushes,
        "L": lists, "O": cap.exits, "Y": cap.symbols, "K": cap.sites, "M": cap.site_entries,
    }  # fmt: skip
    filled = {
        "rows.edge_start": cap.edges, "rows.base": -1, "edges.token": vocab_size, "edges.target": cap.states + 1,
        "exits.of_row": -1, "exits.of_base": -1, "sites.of_row": -1,
    }  # fmt: skip
    kinds = {"token": np.min_scalar_type(vocab_size + 1), "edge": np.dtype(np.int32)}
    out: dict[str, NDArray[Any]] = {f"trie.{name}": array for name, array in NO_TRIE._asdict().items()}
    for name, spec in SPECS.items():
        kind = spec.kinds[0]
        if name == "rows.frames_required":  # shown as a part of all codes'
            out[name] = np.zeros(0, np.int32)
        elif name not in out:
            out[name] = np.full(spec.size(sizes), filled.get(name, 0), kinds[kind] if isinstance(kind, str) else kind)
    out["edges.token"][-1] = vocab_size + 1
    return out


def _distances(cap: Capacity, codes: int) -> dict[str, NDArray[np.int64]]:
    """Return distances by the fields of `Distances`, in which nothing can be reached."""
    ends, told_apart = cap.ends, cap.ends > 1
    return {
        "code": np.full((codes, ends), UNREACHABLE, np.int64),
        "site": np.full((cap.sites, ends, ends), UNREACHABLE, np.int64),
        "farthest": np.full((0, ends), UNREACHABLE, np.int64),
        "code_frames": np.zeros((codes if told_apart else 0, ends), np.int64),
        "site_frames": np.zeros((cap.sites if told_apart else 0, ends, ends), np.int64),
    }


def _shown(array: NDArray[Any]) -> NDArray[Any]:
    """Return an array that shows another and cannot be written to."""
    view = array.view()
    view.flags.writeable = False
    return view
