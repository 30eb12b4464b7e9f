"""Processes that compile, in lanes: a constraint that takes long waits for its like, and never for an ordinary one."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import replace
from typing import TypeAlias

from ...automata.budget import Budget
from ...errors import BudgetError
from ...table.transition_table import TransitionTable
from ...vocabulary.vocabulary import Vocabulary
from ..constraint_source import Source
from .compilers import Allowance, Compilers, Warm
from .folder import Folder

_SLICES = (0.02, 0.2)  # seconds that a constraint has in each lane but the last
_NICE = (5, 7, 10)  # of each lane's processes: what takes longest gives way to the others

_Found: TypeAlias = Future[TransitionTable | None]


class Lanes:
    """Processes as `Compilers`, of which the first ones only take what is soon compiled.

    A constraint has a short time in the first lane, a longer one in the next, and its budget in the last. So ordinary
    constraints wait for the short time of others at most, however many come that take long. Processes start with the
    first constraint, and end with this process.

    count: how many processes the last lane has. warm, folder: as for `Compilers`.
    """

    def __init__(self, vocabulary: Vocabulary, count: int, warm: Warm, folder: Folder | None = None) -> None:
        counts = (*(1 for _ in _SLICES), count)
        self._lanes = [
            _Lane(Compilers(vocabulary, each, warm, folder=folder, nice=nice))
            for each, nice in zip(counts, _NICE, strict=True)
        ]

    def compile(
        self, source: Source, budget: Budget | None = None, shared: Allowance | None = None
    ) -> TransitionTable | None:
        """Return what `Compilers.compile` does. Any thread may call it. Raises its errors."""
        for found in self._tried(source, Budget() if budget is None else budget, shared):
            if not _wants_more(found.exception()):
                return found.result()
        return found.result()

    async def tried(self, source: Source, budget: Budget) -> TransitionTable | None:
        """Return what `compile` does, on an event loop. A task that is cancelled leaves the queue."""
        for found in self._tried(source, budget, None):
            try:
                return await asyncio.wrap_future(found)
            except BudgetError as error:
                late = error
                if not _wants_more(error):
                    break
        raise late

    def _tried(self, source: Source, budget: Budget, shared: Allowance | None) -> Iterator[_Found]:
        """Yield what is found in each lane, the next one once it is asked for."""
        for lane, seconds in zip(self._lanes, (*_SLICES, budget.seconds), strict=True):
            yield lane.submit(source, replace(budget, seconds=min(seconds, budget.seconds)), shared)


def _wants_more(error: BaseException | None) -> bool:
    """Whether a constraint was stopped for its seconds, of which the next lane has more."""
    return isinstance(error, BudgetError) and error.limit == "seconds"


class _Lane:
    """Processes, and a thread that waits for each."""

    def __init__(self, compilers: Compilers) -> None:
        self._compilers = compilers
        compilers.start(at_once=False)
        self._jobs: queue.SimpleQueue[tuple[_Found, Source, Budget, Allowance | None]] = queue.SimpleQueue()
        for _ in range(compilers.count):  # an executor's would be waited for where this process ends
            threading.Thread(target=self._work, name="maskwright-lane", daemon=True).start()

    def submit(self, source: Source, budget: Budget, shared: Allowance | None) -> _Found:
        found: _Found = Future()
        self._jobs.put((found, source, budget, shared))
        return found

    def _work(self) -> None:
        while True:
            found, source, budget, shared = self._jobs.get()
            if not found.set_running_or_notify_cancel():
                continue
            try:
                found.set_result(self._compilers.compile(source, budget, shared))
            except BaseException as error:  # of the source, or of a process: whoever waits gets it
                found.set_exception(error)
