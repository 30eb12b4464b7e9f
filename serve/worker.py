"""The thread that owns the engine: requests come in through a list under a lock, and go out by a callback."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..lazy.lazy_table import Compiled
from ..runtime.integrations.engine import Engine, Request

_log = logging.getLogger("maskwright.serve")


class Event(NamedTuple):
    """What has happened to a sequence in one step."""

    tokens: list[int]
    log_probs: list[float]
    forced: int
    finished: str | None  # "stop", "length", "cancelled", "no distribution", "budget", "refused" or "fault"
    why: str = ""


@dataclass(eq=False)
class Job:
    """One sequence that is wanted, and who is told of it, by `Worker`'s `tell`."""

    prompt: list[int]
    table: Compiled | None
    options: dict[str, Any]  # of `Engine.add`
    listener: Any
    index: int
    request: Request | None = None
    told: int = 0  # tokens
    forced: int = 0
    ended: bool = False


Tell = Callable[[list[tuple[Job, Event]]], None]


class Worker:
    """Steps an engine as long as there is work. An exception there ends it, and is told to all who wait.

    stop_ids: tokens that end a sequence without a table, beside the engine's eos. seen: called with the seconds of
    each step. All methods may be called from any thread.
    """

    def __init__(self, engine: Engine, stop_ids: frozenset[int], seen: Callable[[float], None]) -> None:
        self.engine, self._stop_ids, self._seen = engine, stop_ids, seen
        self.fault: BaseException | None = None
        self.steps = 0
        self.stepping_since: float | None = None
        self._commands: list[Callable[[], None]] = []
        self._jobs: dict[int, Job] = {}  # by id of the engine's request, which they hold
        self._wake = threading.Condition()
        self._submitted: set[Job] = set()  # not with the engine yet
        self._closing = False
        self._tell: Tell = lambda batch: None
        self._thread = threading.Thread(target=self._run, name="maskwright-engine", daemon=True)

    def start(self, tell: Tell) -> None:
        """Begin; tell(events) is called from the thread, once a step."""
        self._tell = tell
        self._thread.start()

    def submit(self, jobs: Sequence[Job]) -> bool:
        """Hand sequences over; False if there is nobody to do them any more."""
        with self._wake:
            if self.fault is not None or self._closing:
                return False
            for job in jobs:
                self._submitted.add(job)
                self._commands.append(lambda job=job: self._add(job))  # type: ignore[misc]
            self._wake.notify()
        return True

    def cancel(self, jobs: Sequence[Job]) -> None:
        """End sequences where they are; who listens is told, unless they have ended."""
        with self._wake:
            if jobs and self.fault is None:
                self._commands.append(lambda: self._cancel(jobs))
                self._wake.notify()

    def cancel_all(self) -> None:
        """End all there are."""
        with self._wake:
            if self.fault is None:
                self._commands.append(lambda: self._cancel(list(self._jobs.values())))
                self._wake.notify()

    def close(self, seconds: float) -> None:
        """Cancel what is left and end the thread, waiting so long for it."""
        self.cancel_all()
        with self._wake:
            self._closing = True
            self._wake.notify()
        if self._thread.is_alive():
            self._thread.join(seconds)

    @property
    def waiting(self) -> int:
        """Sequences that have no row yet."""
        return len(self.engine.waiting) + len(self._submitted)

    @property
    def running(self) -> int:
        """Sequences that have a row."""
        return max(0, len(self._jobs) - len(self.engine.waiting))

    def stalled(self, seconds: float) -> bool:
        """Whether one step has taken longer than so many seconds."""
        since = self.stepping_since
        return since is not None and time.monotonic() - since > seconds

    # ---------------------------------------------------------------------------------------------- in the thread

    def _run(self) -> None:
        try:
            while True:
                with self._wake:
                    while not (self._commands or self.engine.busy or self._closing):
                        self._wake.wait()
                    commands, self._commands = self._commands, []
                    if self._closing and not commands:
                        return
                for command in commands:
                    command()
                if self.engine.busy:
                    self._step()
        except BaseException as error:
            _log.exception("the engine has failed; nothing is written any more")
            with self._wake:
                self.fault, self.stepping_since = error, None
                left = {*self._jobs.values(), *self._submitted}
                self._commands.clear()
                self._jobs.clear()
                self._submitted.clear()
            why = f"the engine has failed ({type(error).__name__}): the server has to be started again"
            self._tell([(job, Event([], [], 0, "fault", why)) for job in left])

    def _add(self, job: Job) -> None:
        self._submitted.discard(job)
        try:
            job.request = self.engine.add(job.prompt, job.table, **job.options)
        except (ValueError, TypeError) as error:  # of this request alone
            job.ended = True
            self._tell([(job, Event([], [], 0, "refused", str(error)))])
            return
        self._jobs[id(job.request)] = job

    def _cancel(self, jobs: Sequence[Job]) -> None:
        ended = []
        for job in jobs:
            if job.request is None or job.ended:
                continue
            self.engine.cancel(job.request)
            ended.append((job, self._event(job, len(job.request.tokens), "cancelled")))
        self._tell(ended)

    def _step(self) -> None:
        self.stepping_since = began = time.monotonic()
        written = self.engine.step()
        self.stepping_since = None
        self.steps += 1
        self._seen(time.monotonic() - began)
        events = []
        for request, tokens in written:
            job = self._jobs[id(request)]
            upto, finished = len(request.tokens), request.finished
            if request.table is None and self._stop_ids.intersection(tokens):
                upto = next(at for at in range(job.told, upto) if request.tokens[at] in self._stop_ids)
                finished = "stop"
                self.engine.cancel(request)
            events.append((job, self._event(job, upto, finished)))
        self._tell(events)

    def _event(self, job: Job, upto: int, finished: str | None) -> Event:
        """Return what is new of a sequence, and forget it if it has ended."""
        request = job.request
        assert request is not None, "it was added"
        event = Event(
            request.tokens[job.told : upto], request.log_probs[job.told : upto], request.forced - job.forced, finished
        )
        job.told, job.forced = upto, request.forced
        if finished is not None:
            job.ended = True
            del self._jobs[id(request)]
        return event
