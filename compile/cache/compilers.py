"""Processes that compile, each under hard limits of processor seconds and memory.

A constraint that can be read as texts come to its states needs no table: the process only tries how that begins, and
whoever asked does the same again, in about as little time. The whole table of any other is made by the process.
"""

from __future__ import annotations

import copy
import math
import os
import pickle
import queue
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

from ...automata.budget import Budget
from ...errors import BudgetError, ConstraintError, NoTableError, ProcessError, RaiseBudget
from ...kernels import compiled
from ...lazy.lazy_table import Compiled, LazyTable
from ...table.transition_table import TransitionTable
from ...vocabulary.vocabulary import Vocabulary
from ..constraint_source import Source
from .folder import Folder, key_of

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

try:
    import resource
except ImportError:  # Windows, where the clock of whoever asks is the only limit
    resource = None  # type: ignore[assignment]

Warm = Callable[[Vocabulary], None]

_PATIENCE = 2.5  # times the seconds of a budget, which a table and what precedes it may each have
FREELY = 2.0  # seconds of the processor beside it: to read a source and to send a table
FOR_KERNELS = 60.0  # seconds of the processor in which numba compiles kernels, where no library has them
_ON_THE_CLOCK = 8.0  # times the seconds of the processor: a process that waits ends too
_ROOM = 2  # times the bytes of a budget, which counts the arrays of one step
_FREE_BYTES = 128 << 20  # beside it
_KEPT_BYTES = 256 << 20  # by which a process may have grown when its job is done, before another takes its place
_NICE = 5  # compiling gives way to whoever writes answers
_STATM = Path("/proc/self/statm")  # of Linux
_IMPORTED_LATE = (  # by the functions that compile; each process has them from the one that it is forked from
    "json_schema.build", "json_schema.emit", "json_schema.keywords", "json_schema.lazily", "json_schema.library",
    "grammar.lark", "grammar.lark_parser", "grammar.terminals", "tags.values", "tags.json_rules",
)  # fmt: skip
_STARTS = threading.Lock()
_STARTING = 300.0  # seconds in which a process must be ready
_READING = 0.5  # seconds that a constraint may take to begin, and then each mask and token, where it has no table


@dataclass
class Allowance:
    """Processor seconds that several jobs share."""

    seconds: float
    left: float


def allowance(budget: Budget) -> Allowance:
    """Return the seconds of a budget, for jobs that share them."""
    return Allowance(budget.seconds, budget.seconds)


class Compiles(Protocol):
    """What compiles in place of a cache: `Compilers`, `Lanes`, or `InThread`."""

    def compile(self, source: Source, budget: Budget | None = None, shared: Allowance | None = None) -> Compiled | None:
        """Return what is found for a source; None for what is then compiled by the thread that asks."""


class Compilers:
    """Processes that compile constraints of one vocabulary. A process that goes over a hard limit is killed.

    A budget is kept by the compiler itself, which looks at it between steps. The limits here hold for whatever it
    misses: some more seconds and bytes than the budget has, kept by the operating system. Another process takes the
    place of one that ended. Memory is limited where the system does so for a process: on Linux.

    count: how many compile at a time. warm: what a process does with the vocabulary before it takes jobs. folder: where
    processes keep tables, which they then do not send. nice: by how much they give way to others.
    """

    def __init__(
        self, vocabulary: Vocabulary, count: int, warm: Warm, *, folder: Folder | None = None, nice: int = _NICE
    ) -> None:
        self.count = count
        # a tokenizer's function may not be one that can be sent
        self._given = replace(vocabulary, encoder=None), warm, folder, nice
        # None: a place whose process is to start
        self._free: queue.SimpleQueue[CompilerProcess | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._all: set[CompilerProcess] = set()
        self._closed = False

    def start(self, at_once: bool = True) -> None:
        """Start the processes, which get warm meanwhile; or, if not at once, each with the first job that needs it."""
        for _ in range(self.count):
            if at_once:
                self._begin()
            else:
                self._free.put(None)

    def compile(
        self, source: Source, budget: Budget | None = None, shared: Allowance | None = None
    ) -> TransitionTable | None:
        """Return the whole table of a source; None if it can be read as it is, or the folder has the table.

        Any thread may call it; it waits for a process that is free. What is read as it is keeps to `reading_budget`.

        shared: seconds that it shares with others, of which it takes what it needs.
        Raises the errors of the function that compiles; BudgetError for a process that was killed at a limit;
        ProcessError for one that ended by itself or cannot be started, and once these processes are closed.
        """
        budget = Budget() if budget is None else budget
        if shared is not None:
            if shared.left <= 0:
                raise _over_together(shared)
            budget = replace(budget, seconds=min(budget.seconds, shared.left))
        process = self._taken()
        try:
            answer = process.ask(source, budget)
        except BaseException:
            self._end(process)
            self._begin()
            raise
        if answer.last:
            self._end(process)
            self._begin()
        else:
            self._free.put(process)
        if shared is not None:
            shared.left -= answer.seconds
        if not isinstance(answer.found, Exception):
            return answer.found
        if shared is not None and budget.seconds < shared.seconds and _is_late(answer.found):
            raise _over_together(shared)
        raise answer.found

    def _taken(self) -> CompilerProcess:
        """Return a process that is free; a new one if it has ended meanwhile. Raises ProcessError."""
        process = self._free.get()
        try:
            if self._closed:
                raise _closed()
            if process is not None and process.is_alive():
                return process
            if process is not None:
                self._end(process)
            return self._started()
        except BaseException:
            self._free.put(None)  # for the next who waits
            raise

    def close(self) -> None:
        """Kill the processes. Whoever waits for one gets a ProcessError."""
        with self._lock:
            self._closed = True
            processes = list(self._all)
        for process in processes:
            self._end(process)
        self._free.put(None)

    @property
    def pids(self) -> list[int]:
        """The numbers of the processes that there are."""
        with self._lock:
            return [process.pid for process in self._all]

    def _begin(self) -> None:
        """Start a process for a place. If there can be none now, whoever takes the place starts it, or learns why."""
        process = None
        try:
            with suppress(ProcessError):
                process = self._started()
        finally:
            self._free.put(process)

    def _started(self) -> CompilerProcess:
        """Return a new process. Raises ProcessError."""
        with self._lock:
            if self._closed:
                raise _closed()
            try:
                process = CompilerProcess(*self._given)
            except (OSError, EOFError) as error:  # too many processes or open files, or the one they are forked from
                raise ProcessError(f"no process could be started to compile the constraint: {error}") from error
            self._all.add(process)
        return process

    def _end(self, process: CompilerProcess) -> None:
        with self._lock:
            self._all.discard(process)
        process.end()


class _Answer(NamedTuple):
    found: TransitionTable | Exception | None
    seconds: float  # of the processor
    last: bool  # whether another process should take the place of this one


class CompilerProcess:
    """One process, seen by those who have jobs for it."""

    def __init__(self, vocabulary: Vocabulary, warm: Warm, folder: Folder | None, nice: int) -> None:
        context = _context()
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_work, args=(theirs, vocabulary, warm, folder, nice), daemon=True)
        try:
            with _without_main():
                self._process.start()
        except BaseException:
            self._connection.close()
            raise
        finally:
            theirs.close()
        self._is_ready = False
        self._in_use = threading.Lock()  # the connection: it is not closed while a job waits for an answer

    @property
    def pid(self) -> int:
        return self._process.pid or 0

    def is_alive(self) -> bool:
        """Whether it runs; one that never was ready counts as such, so that whoever asks it learns why."""
        return not self._is_ready or self._process.is_alive()

    def ask(self, source: Source, budget: Budget) -> _Answer:
        """Return what becomes of a source. Raises BudgetError or ProcessError if the process ends over it."""
        with self._in_use:
            return self._answer(source, budget)

    def _answer(self, source: Source, budget: Budget) -> _Answer:
        try:
            if not self._is_ready:
                if not self._connection.poll(_STARTING):
                    raise ProcessError(f"a process that compiles was not ready within {_STARTING:.0f} s")
                self._connection.recv_bytes()
                self._is_ready = True
            self._connection.send_bytes(pickle.dumps((source, budget), 5))
            seconds = _seconds(budget)
            if not self._connection.poll(None if seconds is None else seconds * _ON_THE_CLOCK):
                raise _over("seconds", budget)
            answer: _Answer = pickle.loads(self._connection.recv_bytes())
            return answer
        except (EOFError, OSError):
            raise self._why(budget) from None

    def end(self) -> None:
        """Kill the process. A job that waits for it ends then, and lets go of the connection."""
        self._process.kill()
        self._process.join()
        with self._in_use:
            self._connection.close()

    def _why(self, budget: Budget) -> BudgetError | ProcessError:
        """Return the error of a job whose process has ended."""
        self._process.join(5)
        code = self._process.exitcode
        if code is not None and code < 0 and -code == getattr(signal, "SIGXCPU", None):
            return _over("seconds", budget)
        how = "did not go on" if code is None else f"ended by signal {-code}" if code < 0 else f"ended with {code}"
        return ProcessError(f"the process that compiled the constraint {how}")


def _context() -> Any:
    # 20 ms to import, for those who have no other processes
    from multiprocessing import get_all_start_methods, get_context

    if "forkserver" not in get_all_start_methods():  # Windows
        return get_context("spawn")
    context = get_context("forkserver")
    package = __package__.rpartition(".")[0]
    context.set_forkserver_preload([__name__, *(f"{package}.{name}" for name in _IMPORTED_LATE)])
    return context


@contextmanager
def _without_main() -> Iterator[None]:
    """Have a process that this thread starts not run the main program again, which may be a whole engine."""
    from multiprocessing import spawn

    given, mine = spawn.get_preparation_data, threading.get_ident()

    def prepared(name: str) -> dict[str, Any]:
        found: dict[str, Any] = given(name)
        if threading.get_ident() != mine:
            return found
        return {key: value for key, value in found.items() if not key.startswith("init_main")}

    with _STARTS:
        spawn.get_preparation_data = prepared
        try:
            yield
        finally:
            spawn.get_preparation_data = given


def _closed() -> ProcessError:
    return ProcessError("the processes that compile are closed")


def _seconds(budget: Budget) -> float | None:
    """Return the most processor seconds of one job, None if there is no limit."""
    if math.isinf(budget.seconds):
        return None
    return budget.seconds * _PATIENCE + FREELY + (FOR_KERNELS if compiled.LIBRARY is None else 0)


def _over(limit: Literal["seconds", "bytes"], budget: Budget) -> BudgetError:
    """Return the error of a job that went over a hard limit."""
    allowed = budget.seconds if limit == "seconds" else budget.bytes
    shown = f"seconds={allowed:g}" if limit == "seconds" else f"bytes={allowed:,}"
    return BudgetError(
        f"the constraint needs far more than its budget ({shown}), and the process that compiled it was stopped",
        limit=limit,
        allowed=allowed,
        remedies=[RaiseBudget((limit,), "make the constraint smaller")],
    )


def _over_together(shared: Allowance) -> BudgetError:
    return BudgetError(
        f"the parts of the constraint, which are compiled one by one, together need more than {shared.seconds:g} s",
        limit="seconds",
        allowed=shared.seconds,
        reached=shared.seconds - shared.left,
        remedies=[RaiseBudget(("seconds",), "send fewer parts")],
    )


def _is_late(error: Exception) -> bool:
    return isinstance(error, BudgetError) and error.limit == "seconds"


# ---------------------------------------------------------------------------------------------------- in a process


def _work(connection: Connection, vocabulary: Vocabulary, warm: Warm, folder: Folder | None, nice: int) -> None:
    """Compile one job after the other, until there is nobody who sends any."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal, meant for the process that started this one
    if resource is not None:
        os.nice(nice)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    warm(vocabulary)
    before = _sizes()[1]
    with suppress(EOFError, OSError):
        connection.send_bytes(b"ready")
        last = False
        while not last:
            source, budget = pickle.loads(connection.recv_bytes())
            answer = _compiled(source, budget, vocabulary, folder)
            last = answer.last or _sizes()[1] > before + _KEPT_BYTES
            connection.send_bytes(_written(answer._replace(last=last)))


def _compiled(source: Source, budget: Budget, vocabulary: Vocabulary, folder: Folder | None) -> _Answer:
    seconds, began = _seconds(budget), time.process_time()
    _limit("RLIMIT_CPU", None if seconds is None else math.ceil(began + seconds))
    _limit("RLIMIT_AS", _sizes()[0] + _ROOM * budget.bytes + _FREE_BYTES)
    outcome: TransitionTable | Exception | None
    last = False
    try:
        made = found(source, budget, vocabulary)
        outcome = None if isinstance(made, LazyTable) else made
        if outcome is not None and folder is not None:
            folder.write(key_of(source, source.key(vocabulary) or "", budget), outcome)
            outcome = None
    except MemoryError:
        outcome, last = _over("bytes", budget), True
    except ConstraintError as error:
        outcome = copy.copy(error)  # without the frames that it came through
    except Exception as error:
        outcome = error
    _limit("RLIMIT_AS", None)
    return _Answer(outcome, time.process_time() - began, last)


def _limit(name: Literal["RLIMIT_CPU", "RLIMIT_AS"], most: int | None) -> None:
    """Have the system hold this process to a limit. None: to none."""
    if resource is None or (name == "RLIMIT_AS" and not _STATM.exists()):
        return
    infinite = resource.RLIM_INFINITY
    resource.setrlimit(getattr(resource, name), (infinite if most is None else most, infinite))


def reading_budget(budget: Budget | None) -> Budget:
    """Return the budget of what is read as it is, in the process that asked for it: its steps hold up others."""
    budget = Budget() if budget is None else budget
    return replace(budget, seconds=min(budget.seconds, _READING))


def found(source: Source, budget: Budget, vocabulary: Vocabulary) -> Compiled:
    """Return the table of a source, a lazy one if it can be read so: it begins soon, and bounds say how far an end is.

    What has no bounds is read as well if it has no table, or none that is made soon. Raises the errors of
    `Source.compile`.
    """
    if not source.lazy:
        return source.compile(vocabulary, budget).to_table()
    try:
        made = source.compile(vocabulary, reading_budget(budget))
        if isinstance(made, TransitionTable):
            return made
        if made.machine is not None:
            made.machine.mask(0, b"", -1)
    except BudgetError as error:
        if error.limit != "seconds" or budget.seconds <= _READING:
            raise
        return source.whole.compile(vocabulary, budget).to_table()  # for which there is more time
    try:
        return made if made.has_bounds else made.to_table()
    except (NoTableError, BudgetError):
        return made


class InThread:
    """Compiles in the thread that asks what processes would: a table, or a lazy one whose steps are short."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary

    def compile(self, source: Source, budget: Budget | None = None, shared: Allowance | None = None) -> Compiled:
        """Return the table of a source as `found` does."""
        return found(source, Budget() if budget is None else budget, self._vocabulary)


def compile_all(
    vocabulary: Vocabulary, sources: Sequence[tuple[Any, Source]], budget: Budget | None, processes: int | None
) -> Iterator[tuple[Any, TransitionTable | ConstraintError]]:
    """Yield (key, table or error) of (key, source), as they are done, by processes that end with it.

    processes: None for as many as processors. Raises ProcessError.
    """
    if not sources:
        return
    from concurrent.futures import ThreadPoolExecutor, as_completed

    count = min(len(sources), processes or os.cpu_count() or 1)
    compilers = Compilers(vocabulary, count, _no_warming)

    def compiled(source: Source) -> TransitionTable | ConstraintError:
        try:
            made = compilers.compile(source.whole, budget)
            assert made is not None, "only what is lazy is read as it is"
            return made
        except ConstraintError as error:
            return error

    compilers.start()
    threads = ThreadPoolExecutor(count)  # each waits for a process
    try:
        waiting = {threads.submit(compiled, source): key for key, source in sources}
        for done in as_completed(waiting):
            yield waiting[done], done.result()
    finally:
        threads.shutdown(wait=False, cancel_futures=True)
        compilers.close()


def _no_warming(vocabulary: Vocabulary) -> None:
    """Do nothing before the first source."""


def _written(answer: _Answer) -> bytes:
    try:
        return pickle.dumps(answer, 5)
    except Exception:  # an error of somebody else's, with fields that cannot be sent
        return pickle.dumps(answer._replace(found=RuntimeError(repr(answer.found))), 5)


def _sizes() -> tuple[int, int]:
    """Return the bytes of this process's addresses, and of those in memory; 0 where the system does not say."""
    if not _STATM.exists():
        return 0, 0
    addresses, resident, *_ = map(int, _STATM.read_text().split())
    page = os.sysconf("SC_PAGE_SIZE")
    return addresses * page, resident * page
