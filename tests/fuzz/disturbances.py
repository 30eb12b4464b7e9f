"""Lazy tables that several threads read at once, and compilations that a signal ends in the middle."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
import types
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Any

import numpy as np

import maskwright as mw

from .workers import DifferenceError, Steps

_THREADS, _TEXTS, _LONGEST = 8, 3, 30
_SECONDS = 8  # of the processor, of all threads together
_LATEST = 0.05  # seconds after which a signal comes
Written = list[tuple[bytes, ...]]


def check_threads(compile_: Callable[[], Any], seed: int, steps: Steps) -> None:
    """Write texts in eight threads on one lazy table; each must see what it sees alone on a table of its own."""
    with steps("compiling lazily"):
        shared, own = compile_(), compile_()
    gate = threading.Barrier(_THREADS)

    def together(number: int) -> Written:
        gate.wait()
        return _written(shared, Random(f"{seed} {number}"))

    with steps("writing in threads", seconds=_SECONDS), ThreadPoolExecutor(_THREADS) as pool:
        found = list(pool.map(together, range(_THREADS)))
    with steps("writing alone", seconds=_SECONDS):
        for number, each in enumerate(found):
            if each != _written(own, Random(f"{seed} {number}")):
                raise DifferenceError(f"thread {number} of {_THREADS} read other masks than it does alone")


def _written(table: Any, rng: Random) -> Written:
    """Write texts; return the masks that were read for each."""
    out = []
    for _ in range(_TEXTS):
        matcher, masks = mw.Matcher(table), []
        for _ in range(_LONGEST):
            mask = matcher.mask()
            masks.append(mask.tobytes())
            allowed = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))
            if not allowed.size or not matcher.advance(int(rng.choice(allowed.tolist()))):
                break
        out.append(tuple(masks))
    return out


class _DisturbedError(BaseException):
    """What the handler of the signal raises, as that of Ctrl-C does."""


def check_signals(compile_: Callable[[], Any], seed: int, steps: Steps) -> None:
    """Interrupt a compilation, or what reads its table, by a signal; then all must be as if nothing had been."""
    rng = Random(seed)
    made: list[Any] = []
    awaited = False

    def disturb(number: int, frame: types.FrameType | None) -> None:
        if awaited:
            raise _DisturbedError

    sys.unraisablehook = lambda told: None  # a signal may come while memory is freed; the worker is forked for this
    before = signal.signal(signal.SIGALRM, disturb)
    try:
        with steps("compiling under signals", seconds=_SECONDS):
            for _ in range(3):
                with contextlib.suppress(_DisturbedError):
                    awaited = True
                    signal.setitimer(signal.ITIMER_REAL, rng.uniform(1e-4, _LATEST))
                    made = [compile_()]
                    _written(made[0], Random(seed))
                    awaited = False
    finally:
        awaited = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    with steps("compiling after signals", seconds=_SECONDS):
        again = compile_()
        expected = _written(again, Random(seed))
    for table in made:
        with steps("writing after signals", seconds=_SECONDS):
            if _written(table, Random(seed)) != expected:
                raise DifferenceError("a table that was interrupted allows something else than a new one")
