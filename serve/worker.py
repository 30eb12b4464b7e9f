"""The thread that owns the engine: it takes commands from a list under a lock, and reports through a callback."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple

from ..lazy.lazy_table import Compiled
from ..runtime.integrations.engine import Engine, Request, Tops
from .refusals import said

_log = logging.getLogger("maskwright.serve")


class Event(NamedTuple):
    """The change of one sequence in one step."""

    tokens: list[int]
    log_probs: list[float]
    forced: int
    finished: str | None  # "stop", "length", "cancelled", "no distribution", "budget", "refused" or "fault"
    why: str = ""
    tops: Sequence[Tops] = ()  # beside each token, if they were asked for


@dataclass(eq=False)
class Job:
    """One sequence to write, and the queue that receives its events."""

    prompt: list[int]
    table: Compiled | None
    options: dict[str, Any]  # of `Engine.add`
    listener: asyncio.Queue[tuple[int, Event]] | None
    index: int
    client: str = ""  # whose turn it takes for a row
    request: Request | None = None
    told: int = 0  # tokens in events so far
    forced: int = 0  # those of them that the constraint forced
    ended: bool = False


Tell = Callable[[list[tuple[Job, Event]]], None]


class Worker:
    """Steps an engine as long as there is work. An exception of the engine ends the worker and all its sequences.

    rows: of the engine; clients whose sequences wait for one take turns. stop_ids: tokens that end a sequence without a
    table, beside the engine's eos. seen: receives the seconds of each step. Any thread may call any method.
    """

    def __init__(self, engine: Engine, rows: int, stop_ids: frozenset[int], seen: Callable[[float], None]) -> None:
        self.engine, self._rows, self._stop_ids, self._seen = engine, rows, stop_ids, seen
        self.fault: BaseException | None = None
        self.steps = 0
        self.stepping_since: float | None = None
        self._commands: list[Callable[[], None]] = []
        self._jobs: dict[int, Job] = {}  # by id() of the engine's request, which the job keeps alive
        self._wake = threading.Condition()
        self._submitted: set[Job] = set()  # jobs that the engine does not have yet
        self._queues: OrderedDict[str, deque[Job]] = OrderedDict()  # of these by client, the one next in turn first
        self._closing = False
        self._tell: Tell = lambda batch: None
        self._thread = threading.Thread(target=self._run, name="maskwright-engine", daemon=True)

    def start(self, tell: Tell) -> None:
        """Start the thread, which calls tell(events) once a step."""
        self._tell = tell
        self._thread.start()

    def submit(self, jobs: Sequence[Job]) -> bool:
        """Take sequences. Returns False if the worker has failed or is closing."""
        with self._wake:
            if self.fault is not None or self._closing:
                return False
            for job in jobs:
                self._submitted.add(job)
                self._commands.append(lambda job=job: self._queue(job))  # type: ignore[misc]
            self._wake.notify()
        return True

    def cancel(self, jobs: Sequence[Job]) -> None:
        """Cancel sequences. Each that has not ended yet gets an event "cancelled"."""
        with self._wake:
            if jobs and self.fault is None:
                self._commands.append(lambda: self._cancel(jobs))
                self._wake.notify()

    def cancel_all(self) -> None:
        """Cancel all sequences."""
        with self._wake:
            if self.fault is None:
                self._commands.append(lambda: self._cancel([*self._jobs.values(), *chain(*self._queues.values())]))
                self._wake.notify()

    def close(self, seconds: float) -> None:
        """Cancel all sequences and end the thread, waiting at most so many seconds for it."""
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
                    while not (self._commands or self._queues or self.engine.busy or self._closing):
                        self._wake.wait()
                    commands, self._commands = self._commands, []
                    if self._closing and not commands:
                        return
                for command in commands:
                    command()
                self._take_turns()
                if self.engine.busy:
                    self._step()
        except BaseException as error:
            _log.exception("the engine has failed; the server writes no more answers")
            with self._wake:
                self.fault, self.stepping_since = error, None
                left = {*self._jobs.values(), *self._submitted}
                self._commands.clear()
                self._jobs.clear()
                self._submitted.clear()
                self._queues.clear()
            why = f"the engine has failed ({type(error).__name__}): restart the server"
            self._tell([(job, Event([], [], 0, "fault", why)) for job in left])

    def _queue(self, job: Job) -> None:
        self._queues.setdefault(job.client, deque()).append(job)

    def _take_turns(self) -> None:
        """Give rows that are free to clients that wait, one to each in turn."""
        while self._queues and len(self._jobs) < self._rows:
            client, queue = next(iter(self._queues.items()))
            self._add(queue.popleft())
            self._queues.move_to_end(client)
            if not queue:
                del self._queues[client]

    def _leave(self, job: Job) -> None:
        """Take a job out of its client's queue."""
        queue = self._queues[job.client]
        queue.remove(job)
        if not queue:
            del self._queues[job.client]
        self._submitted.discard(job)
        job.ended = True

    def _add(self, job: Job) -> None:
        self._submitted.discard(job)
        try:
            job.request = self.engine.add(job.prompt, job.table, **job.options)
        except (ValueError, TypeError) as error:  # of this request alone
            job.ended = True
            self._tell([(job, Event([], [], 0, "refused", said(error)))])
            return
        self._jobs[id(job.request)] = job

    def _cancel(self, jobs: Sequence[Job]) -> None:
        ended = []
        for job in jobs:
            if job.ended:
                continue
            if job.request is None:
                self._leave(job)
                ended.append((job, Event([], [], 0, "cancelled")))
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
        """Return the news of a sequence up to a token, and forget the sequence if it has ended."""
        request = job.request
        assert request is not None, "`_add` gives each job its request"
        event = Event(
            request.tokens[job.told : upto], request.log_probs[job.told : upto], request.forced - job.forced, finished,
            tops=request.tops[job.told : upto],
        )  # fmt: skip
        job.told, job.forced = upto, request.forced
        if finished is not None:
            job.ended = True
            del self._jobs[id(request)]
        return event
