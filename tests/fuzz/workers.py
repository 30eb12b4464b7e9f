"""A process for each case, forked from one that has everything loaded, under limits of processor time and memory."""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import resource
import select
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import maskwright as mw

ROOT = str(Path(mw.__file__).parent)
SECONDS = 4  # of the processor, for each step of a case
GROWTH = 512 << 20  # bytes by which the process may grow
_ADDRESSES = 4 << 30  # bytes of address space beyond those of the parent: a guard for the machine
_WALL = 120.0  # seconds after which a worker that waits is killed


class Steps:
    """What a worker is doing, told to its parent, which cannot ask once the worker was killed."""

    def __init__(self, out: int) -> None:
        self._out = out

    def tell(self, **said: Any) -> None:
        """Write one line for the parent."""
        os.write(self._out, json.dumps(said).encode() + b"\n")

    def forget_memory(self) -> None:
        """Have memory counted from here on."""
        self.tell(resident=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)

    @contextlib.contextmanager
    def __call__(self, name: str, seconds: int = SECONDS) -> Iterator[None]:
        """Run what is behind `with` as one step, with seconds of its own."""
        began = time.process_time()
        resource.setrlimit(resource.RLIMIT_CPU, (int(began) + seconds + 1, resource.RLIM_INFINITY))
        self.tell(step=name)
        yield
        spent = time.process_time() - began
        if spent > seconds:
            raise OverrunError(f"{name} took {spent:.1f} s of the processor")


class Rehearsal(Steps):
    """Steps without limits, of which nobody is told."""

    def __init__(self) -> None:
        super().__init__(-1)

    def tell(self, **said: Any) -> None:
        """Tell nobody."""

    @contextlib.contextmanager
    def __call__(self, name: str, seconds: int = SECONDS) -> Iterator[None]:
        """Run what is behind `with`."""
        yield


class OverrunError(Exception):
    """A step that took more than it may."""


class DifferenceError(Exception):
    """Two answers that must be the same and are not."""


@dataclass(frozen=True)
class Outcome:
    """How a case ended."""

    found: str  # "done", "refused", or what was wrong: "foreign", "overrun", "difference", "crash"
    detail: str  # the class of the refusal; a traceback; what was different
    where: str  # the step, and for exceptions the last line of the package, by which findings are told apart

    @property
    def is_wrong(self) -> bool:
        """Whether this is a finding."""
        return self.found not in ("done", "refused")


def is_refusal(error: BaseException) -> bool:
    """Return whether an error was raised on purpose: ours, or a plain one by a `raise` in the package."""
    if isinstance(error, mw.errors.MaskwrightError):
        return True
    if type(error) not in (TypeError, ValueError, IndexError, FileNotFoundError):
        return False
    frames = traceback.extract_tb(error.__traceback__)
    last = frames[-1] if frames else None
    if last is None or not last.filename.startswith(ROOT):
        return False
    line = last.line or ""  # `operator.index` is how the package asks for integers
    return line.startswith("raise ") or (type(error) is TypeError and "operator.index(" in line)


def run(check: Callable[[Steps], None]) -> Outcome:
    """Run a check in a forked process, and return how it ended."""
    with tempfile.TemporaryFile() as errors:
        said, out = os.pipe()
        sys.stdout.flush()
        with warnings.catch_warnings():  # where JAX is loaded it warns of forks; no case uses it
            warnings.simplefilter("ignore")
            child = os.fork()
        if not child:
            status = 1
            try:
                os.close(said)
                _in_worker(check, Steps(out), errors.fileno())
                status = 0
            finally:
                os._exit(status)
        os.close(out)
        lines, late = _read(said, child)
        _, status, used = os.wait4(child, 0)
        errors.seek(0)
        return _judged(lines, late, status, used.ru_maxrss, errors.read()[-4000:].decode(errors="replace"))


def _in_worker(check: Callable[[Steps], None], steps: Steps, errors: int) -> None:
    faulthandler.enable(errors)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + _ADDRESSES, resource.RLIM_INFINITY))
    steps.forget_memory()
    try:
        check(steps)
        steps.tell(found="done", detail="", where="")
    except OverrunError as error:
        steps.tell(found="overrun", detail=str(error), where="")
    except DifferenceError as error:
        steps.tell(found="difference", detail=str(error), where=_place(error))
    except BaseException as error:
        if is_refusal(error):
            _show(error, steps)
            return
        told = "".join(traceback.format_exception(error))
        steps.tell(found="foreign", detail=told[-6000:], where=f"{type(error).__name__} {_place(error)}")


def _show(error: BaseException, steps: Steps) -> None:
    """Refuse, with all that an error has to say, which must not fail either."""
    try:
        with steps("showing the error"):
            str(error), repr(error)
    except Exception as other:
        told = "".join(traceback.format_exception(other))
        steps.tell(found="foreign", detail=told[-6000:], where=f"{type(other).__name__} {_place(other)}")
    else:
        steps.tell(found="refused", detail=type(error).__name__, where="")


def _place(error: BaseException) -> str:
    """Return the last line of the package, or of the checks, that an error came through."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if frame.filename.startswith(ROOT)] or frames
    shown = [f"{os.path.relpath(frame.filename, ROOT)}:{frame.name}" for frame in own[-1:]]
    return "".join(shown)


def _read(said: int, child: int) -> tuple[list[dict[str, Any]], bool]:
    """Return the lines of a worker until it ends, and whether it had to be killed."""
    whole, until, late = b"", time.monotonic() + _WALL, False
    with os.fdopen(said, "rb", buffering=0) as source:
        while True:
            ready, _, _ = select.select([source], [], [], max(0.0, until - time.monotonic()))
            if not ready:
                os.kill(child, signal.SIGKILL)
                late = True
                break
            part = source.read(1 << 16)
            if not part:
                break
            whole += part
    return [json.loads(line) for line in whole.splitlines() if line.endswith(b"}")], late


def _judged(lines: list[dict[str, Any]], late: bool, status: int, most: int, errors: str) -> Outcome:
    """Return what a worker's lines and end mean. most: kilobytes that it had at once."""
    step = next((line["step"] for line in reversed(lines) if "step" in line), "beginning")
    last = next((line for line in reversed(lines) if "found" in line), None)
    if late:
        return Outcome("overrun", f"{step} took more than {_WALL:.0f} s", step)
    if os.WIFSIGNALED(status):
        killed = os.WTERMSIG(status)
        if killed == signal.SIGXCPU:
            return Outcome("overrun", f"{step} took more than {SECONDS} s of the processor", step)
        return Outcome("crash", f"signal {killed} in {step}\n{errors}", f"signal {killed} {step}")
    if last is None:
        return Outcome("crash", f"status {status} in {step}\n{errors}", step)
    began = next((line["resident"] for line in reversed(lines) if "resident" in line), most)
    if last["found"] in ("done", "refused") and (most - began) * 1024 > GROWTH:
        return Outcome("overrun", f"it grew by {(most - began) / 1024:,.0f} MB, last in {step}", f"memory {step}")
    return Outcome(last["found"], last["detail"], f"{step} {last['where']}" if last["where"] else step)
