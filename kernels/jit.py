"""Kernels that numba compiles when they are first called, and the cache that keeps their machine code.

Numba keeps the machine code of a function until the file of that function changes. The code also contains the functions
that it calls, so a change in another file would leave old code in use. Here all code lies in one folder. Its name is a
digest of all files of kernels, of the versions of numba and Python, and of numba's settings. Processes that need a
kernel at once wait for the first of them to compile it.

Numba has no public way to do this. All that the package uses of its private parts at run time is in this file.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm
import numba
import numpy as np
from numba.core import config, event
from numba.core.caching import CompileResultCacheImpl, FunctionCache
from numba.core.ccallback import CFunc
from numba.core.registry import CPUDispatcher
from numba.extending import intrinsic as _numba_intrinsic

try:
    import fcntl
except ImportError:  # Windows has no such locks: processes that start together all compile
    fcntl = None  # type: ignore[assignment]

from .native import cache_folder
from .preparing import preparing
from .progress import CompilingProgress
from .sources import source_digest

_UNUSED = 14 * 24 * 3600.0  # seconds after which machine code that nobody has read is removed

_settings: Any = config

ahead = False
"""Whether code is made for other processors too: see `build.py`."""

kernels: dict[tuple[str, str], Any] = {}
"""All kernels by module and name, as numba has them; of two that are made of one function, the first."""

every: list[Any] = []
"""All of them, both of such two."""


def kernel(function: Callable[..., Any], options: dict[str, Any]) -> Callable[..., Any]:
    """Return a function compiled on its first call, as `numba.njit` does, whose machine code is kept."""
    compiled: Callable[..., Any] = numba.njit(nogil=True, **options)(function)
    if compiled is not function:  # which it is if NUMBA_DISABLE_JIT is set
        _keep(compiled, function)
        compiled.__class__ = _Stoppable
    every.append(compiled)
    kernels.setdefault((function.__module__, function.__qualname__), compiled)
    return compiled


def intrinsic(function: Callable[..., Any]) -> Any:
    """Return a function of LLVM instructions, as kernels call it."""
    return _numba_intrinsic(function)


class _Loop:
    """A kernel as a native function of an address."""

    def __init__(self, function: Callable[..., Any], constants: tuple[Any, ...]) -> None:
        (kind,) = constants or (None,)
        if kind is None:

            def loop(argument: int) -> None:
                function(argument)

        else:

            def loop(argument: int) -> None:
                function(argument, kind)

        loop.__module__, loop.__qualname__ = function.__module__, f"{function.__name__}.loop.{kind and np.dtype(kind)}"
        made: Any = CFunc(loop, ((numba.int64,), numba.void), locals={}, options={})
        _keep(made, loop)
        made.compile()
        self._made = made
        self.address: int = made.address
        self._call = made.ctypes

    def __call__(self, argument: int) -> None:
        """Call it, without the GIL."""
        self._call(argument)


def native_loop(function: Callable[..., Any], constants: tuple[Any, ...]) -> _Loop:
    """Return a kernel as a native function, compiled at once."""
    return _Loop(function, constants)


def entry_of(loop: Any, arguments: tuple[Any, ...]) -> Any:
    """Return what was compiled of a kernel for arguments of these types, without numba's look at them."""
    if not hasattr(loop, "overloads"):  # NUMBA_DISABLE_JIT is set
        return loop
    signature = tuple(map(numba.typeof, arguments))
    loop.compile(signature)
    return loop.overloads[signature].entry_point


class _Compiling(event.Listener):
    """Counts the time in which a thread compiles kernels as preparing."""

    def on_start(self, event: event.Event) -> None:
        preparing().__enter__()

    def on_end(self, event: event.Event) -> None:
        preparing().__exit__()


event.register("numba:compile", _Compiling())  # type: ignore[no-untyped-call]


def share(name: str, address: int) -> bool:
    """Give what lies at an address a name in machine code; return False if kernels run as plain Python."""
    if _settings.DISABLE_JIT:
        return False
    llvm.add_symbol(name, address)
    return True


class _Stoppable(CPUDispatcher):
    """A kernel whose call raises BudgetError if it stopped because its thread is late: see `deadline.py`."""

    def __call__(self, *arguments: Any) -> Any:
        returned = super().__call__(*arguments)
        deadline = sys.modules.get(_DEADLINE)
        if deadline is not None and deadline.is_any_late() and deadline.was_told(threading.get_ident()):
            deadline.stop()
        return returned


_DEADLINE = f"{__name__.rpartition('.')[0]}.deadline"


# -- machine code on disk ----------------------------------------------------------------------------------------------


@cache
def code_folder(package: str) -> Path | None:
    """Return the folder for the machine code of a package's kernels, made; None, with one warning, where none can be.

    One that is there may be read-only. Machine code that nobody has read for two weeks is removed when a new folder is
    made.
    """
    digest = source_digest(package)
    if digest is None:  # the sources cannot be read, as in an archive
        return None
    settings = sorted(f"{name}={text}" for name, text in os.environ.items() if name.startswith("NUMBA_"))
    named = hashlib.sha256(f"{digest} {numba.__version__} {sys.version} {settings}".encode()).hexdigest()[:32]
    base = cache_folder()
    try:
        if base is None:
            raise OSError("the user has no home")
        folder = base / f"kernels-{named}"
        if not folder.is_dir():
            _remove_unused(base)
            folder.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(OSError):
            os.utime(folder)
    except OSError as error:
        _warn_once(str(error))
        return None
    return folder


_warned: list[str] = []


def _warn_once(why: str) -> None:
    """Warn, the first time in this process, that machine code cannot be kept."""
    if _warned:
        return
    _warned.append(why)
    warnings.warn(
        f"kernels are compiled anew in each process, as their machine code cannot be kept: {why}. "
        "Set MASKWRIGHT_CACHE to a folder that can be written.",
        RuntimeWarning,
        stacklevel=3,
    )


def _remove_unused(base: Path) -> None:
    """Remove machine code that no process has used for long."""
    for folder in base.glob("kernels-*"):
        with contextlib.suppress(OSError):
            if time.time() - folder.stat().st_mtime > _UNUSED:
                shutil.rmtree(folder, ignore_errors=True)


def _keep(compiled: Any, function: Callable[..., Any]) -> None:
    """Keep the machine code of a function, if there is a folder for it."""
    folder = code_folder(function.__module__.partition(".")[0])
    if folder is None:
        return
    compiled._cache = kept = _KernelCache(function)

    def compile_once(*signature: Any) -> Any:
        with kept.turn():
            return type(compiled).compile(compiled, *signature)

    compiled.compile = compile_once


class _Place:
    """Where numba keeps the machine code of one function."""

    def __init__(self, function: Callable[..., Any], file: str) -> None:
        folder = code_folder(function.__module__.partition(".")[0])
        assert folder is not None
        self._path, self._py_file = str(folder), file
        module = hashlib.sha256(function.__module__.encode()).hexdigest()[:12]
        self._name = f"{function.__code__.co_firstlineno}-{module}"

    @classmethod
    def from_function(cls, function: Callable[..., Any], file: str) -> _Place:
        return cls(function, file)

    def get_cache_path(self) -> str:
        return self._path

    def ensure_cache_path(self) -> None:
        """Do nothing: the folder was made when the process began."""

    def get_source_stamp(self) -> str:
        return ""  # the folder's name says it

    def get_disambiguator(self) -> str:
        return self._name


class _PlacedCache(CompileResultCacheImpl):
    _locator_classes = [_Place]  # noqa: RUF012 - as numba declares it


_HELD: dict[str, int] = {}
"""The locks that this process holds, by path: two kernels may be made of one function."""


def _let_go() -> None:
    """Close a parent's locks in a process that was forked, which would hold them as long as it runs."""
    while _HELD:
        os.close(_HELD.popitem()[1])


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go)


class _KernelCache(FunctionCache):
    """Numba's cache of one function, with a turn for each process that has to compile it."""

    _impl_class = _PlacedCache

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)  # type: ignore[no-untyped-call]
        self._lock = os.path.join(self._cache_path, f"{self._impl.filename_base}.lock")

    @contextlib.contextmanager
    def turn(self) -> Iterator[None]:
        """Give back behind `with` the lock that `load_overload` has taken in it; numba lets one thread at a time in."""
        before = self._lock in _HELD
        try:
            yield
        finally:
            if not before and self._lock in _HELD:
                os.close(_HELD.pop(self._lock))
                CompilingProgress.end()

    def load_overload(self, signature: object, target_context: object) -> Any:
        """Return what is kept. If there is nothing, wait until no other process compiles the function; look again."""
        found = self._read(signature, target_context)
        if found is not None or self._lock in _HELD:
            return found
        with contextlib.suppress(OSError):  # of a file system without locks
            _HELD[self._lock] = os.open(self._lock, os.O_CREAT | os.O_RDWR, 0o666)
            CompilingProgress.begin()
            if fcntl is not None:
                fcntl.flock(_HELD[self._lock], fcntl.LOCK_EX)
            found = self._read(signature, target_context)
        return found

    def _read(self, signature: object, target_context: object) -> Any:
        try:
            return super().load_overload(signature, target_context)  # type: ignore[no-untyped-call]
        except Exception:  # whatever a reader of damaged files may raise
            with contextlib.suppress(OSError):
                self.flush()  # type: ignore[no-untyped-call]
            return None

    def save_overload(self, signature: object, data: object) -> None:
        """Keep what was compiled; warn once if the disk refuses it."""
        try:
            super().save_overload(signature, data)  # type: ignore[no-untyped-call]
        except OSError as error:
            _warn_once(str(error))
