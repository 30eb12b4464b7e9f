"""Decorators that compile functions with numba and keep their machine code on disk.

Numba keeps the machine code of a function until the file of that function changes. The code also contains the functions
that it calls, so a change in another file would leave old code in use. Here a kernel's code is kept until any file of
kernels in its package changes.

Numba has no public way to replace this condition. All that the package uses of its private parts is in this file.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numba
from numba.core.caching import FunctionCache, IndexDataCacheFile
from numba.core.ccallback import CFunc
from numba.core.sigutils import normalize_signature

MARKS = (b"compiled import", b"Kernels take names from this file.")
"""What is in every file of kernels, and in every other file whose constants and types kernels use."""


def kernel(function: Callable[..., Any] | None = None, /, **options: Any) -> Callable[..., Any]:
    """Return a function compiled on its first call, as `numba.njit` does, whose machine code is cached.

    Use it bare or with options of `numba.njit`, as in `@kernel(inline="always")`. A kernel releases the GIL.
    """
    if function is None:
        return lambda function: kernel(function, **options)
    compiled: Callable[..., Any] = numba.njit(nogil=True, **options)(function)
    if compiled is not function:  # which it is if NUMBA_DISABLE_JIT is set
        _keep(compiled, function)
    return compiled


def callback(signature: Any) -> Callable[[Callable[..., Any]], Any]:
    """Return a decorator that compiles a C function at once, as `numba.cfunc` does, whose machine code is cached."""

    def compiled(function: Callable[..., Any]) -> Any:
        made = CFunc(function, normalize_signature(signature), locals={}, options={})  # type: ignore[no-untyped-call]
        _keep(made, function)
        made.compile()
        return made

    return compiled


def _keep(compiled: Any, function: Callable[..., Any]) -> None:
    """Keep the machine code of a function, unless the sources that it depends on cannot be read, as in an archive."""
    stamp = source_stamp(function.__module__.partition(".")[0])
    if stamp is not None:
        compiled._cache = _KernelCache(function, stamp)


class _KernelCache(FunctionCache):
    """Numba's cache, in the place that numba chooses, whose entries hold for one state of the sources.

    Numba writes over entries of another state.
    """

    def __init__(self, function: Callable[..., Any], stamp: str) -> None:
        super().__init__(function)  # type: ignore[no-untyped-call]
        self._cache_file = IndexDataCacheFile(  # type: ignore[no-untyped-call]
            cache_path=self._cache_path, filename_base=self._impl.filename_base, source_stamp=stamp
        )
        # compared before entries are unpickled, which fails where a class that they name has moved
        self._cache_file._version = f"{numba.__version__} {stamp}"


@cache
def source_stamp(package: str) -> str | None:
    """Return a digest of numba's version and of the files of kernels in an imported package, None if none can be read.

    It takes 5 ms, once per process. The first kernel asks for it while the package is imported, so that it describes
    the sources that are loaded, not later ones.
    """
    every = [(path, path.read_bytes()) for path in _sources(package)]
    files = [(path, source) for path, source in every if any(mark in source for mark in MARKS)]
    if not files:
        return None
    digest = hashlib.sha256(numba.__version__.encode())
    for path, source in [*files, (Path(__file__), Path(__file__).read_bytes())]:
        digest.update(f"\0{path.name}\0{len(source)}\0".encode() + source)
    return digest.hexdigest()


def _sources(package: str) -> Iterator[Path]:
    """Yield the Python files of an imported package, or the one of a module, in an order that is always the same."""
    module = sys.modules[package]
    if not hasattr(module, "__path__"):
        if (file := getattr(module, "__file__", None)) and os.path.isfile(file):
            yield Path(file)
        return
    folders = [folder for folder in module.__path__ if os.path.isdir(folder)]
    while folders:
        with os.scandir(folders.pop()) as listing:
            entries = sorted(listing, key=lambda entry: entry.name)
        for entry in entries:
            if entry.name.endswith(".py"):
                yield Path(entry.path)
            elif entry.is_dir() and os.path.isfile(os.path.join(entry.path, "__init__.py")):
                folders.append(entry.path)
