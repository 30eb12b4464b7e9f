"""A lazy table of JSON texts: what reads the machine of a schema while it is still written."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import numpy as np
from numpy.typing import NDArray

from ...automata.budget import Budget, Meter
from ...automata.frames_required import frames_required
from ...errors import Unenforced
from ...kernels.limits import MOST_DEPTH
from ...kernels.preparing import preparing
from ...lazy.lazy_table import LazyTable
from ...lazy.pushdown.end_bounds import EndRule
from ...lazy.pushdown.lazy_pushdown import FrameRule, LazyPushdown
from ...lazy.pushdown.memory import LibraryParts
from ...table.transition_table import TransitionTable
from ...vocabulary.vocabulary import Vocabulary
from ..bind.link import too_deep
from .build import build
from .emit import Emitter
from .keywords import formula
from .layout import Layout
from .library import Library, frames


def lazily(
    library: Library, emitted: Callable[[Meter], Emitter], make: Callable[[], TransitionTable], vocabulary: Vocabulary,
    *, source: str, depth: int, renews: bool, unenforced: Callable[[], tuple[Unenforced, ...]], meter: Meter,
) -> LazyTable:  # fmt: skip
    """Return the lazy table of the machine that an emitter writes, whose arrays `make` makes.

    emitted: returns the emitter, given a meter. meter: of all that is written at once; later writing has no limit of
    time. renews: whether texts lead to ever more states, so that the machine is written anew once much of the budget is
    spent. unenforced: returns what of the schemas is not enforced.

    Raises ConstraintError if no text fits into the depth.
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

    with preparing():
        _load_loops()
    reader = read(meter)
    return LazyTable(
        reader,
        make,
        vocabulary,
        source=source,
        depth=reader.depth,
        renewed=renewed if renews else None,
        unenforced=unenforced,
    )


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
    """Load the kernels that write states, 3 to 15 ms each, before a text waits for one."""
    vocabulary = Vocabulary.from_bytes([bytes([byte]) for byte in range(256)])
    for layout in (Layout(), Layout(ascii=True)):
        library, meter = Library.of(vocabulary, layout), Budget(seconds=math.inf).begin()
        emitter = Emitter((build(formula(_OF_ALL_KINDS, meter=meter), meter),), library, meter, 1)
        emitter.finish()
        _reader(library, emitter, 1, meter).frames_required(0)


def _reader(library: Library, emitter: Emitter, depth: int, meter: Meter) -> LazyPushdown:
    """Return the reader of the machine of a lazy emitter."""
    machine = emitter.machine
    bound = emitter.frames_bound()

    def limits() -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.bool_]]:
        if bound == 0:
            return np.zeros(0, np.int32), np.zeros(0, np.int32), np.zeros(0, np.bool_)
        emitter.finish()
        return frames_required(machine, MOST_DEPTH)

    parts = LibraryParts(
        library.vocabulary, library.remainders, library.bases, library.places.body, library.counted,
        library.string_masks,
    )  # fmt: skip
    rule = FrameRule(limits, depth, None if bound is None else bound + library.most_opened)
    has_bounds = not library.layout.ascii and emitter.has_shortest_texts
    return LazyPushdown(
        machine, parts, rule, meter, emitter.release, EndRule(library, emitter.anchor_of) if has_bounds else None
    )
