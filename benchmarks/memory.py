"""Peak memory of one call, in a process of its own that imports no more than the call needs."""

import multiprocessing
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple


class PeakMemory(NamedTuple):
    """The largest resident memory above the start, in bytes, and the seconds the call took."""

    bytes_above_start: int
    seconds: float


def _resident(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/self/status has no {field}: peak memory is measured on Linux only")


def _reset_peak() -> bool:
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


def _measure(connection: Any, function: Callable[..., object], arguments: tuple[Any, ...]) -> None:
    try:
        exact = _reset_peak()
        # Where the high-water mark cannot be reset, growth is counted from it: a lower bound.
        start = _resident("VmRSS") if exact else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        begin = time.perf_counter()
        result = function(*arguments)
        seconds = time.perf_counter() - begin
        peak = _resident("VmHWM") if exact else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        del result
        connection.send(PeakMemory(peak - start, seconds))
    except BaseException as error:
        connection.send(error)
        raise
    finally:
        connection.close()


def peak_memory(function: Callable[..., object], *arguments: Any) -> PeakMemory:
    """Return the peak resident memory of `function(*arguments)` above what the process held before the call.

    Runs in a new process, which must be able to import the function; the arguments are already there when
    counting starts, the result is counted.
    """
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    with receiver:
        process = context.Process(target=_measure, args=(sender, function, arguments))
        process.start()
        sender.close()
        try:
            outcome = receiver.recv()
        except EOFError:
            outcome = None
        process.join()
    if isinstance(outcome, BaseException):
        raise outcome
    if outcome is None:
        raise RuntimeError(f"the measured process ended with exit code {process.exitcode} before it reported")
    return PeakMemory(*outcome)
