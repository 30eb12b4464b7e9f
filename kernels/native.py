"""The library of kernels that were compiled ahead.

A wheel has it beside this file, and `maskwright warm` makes one in the cache folder. A library is used if it was made
of the sources that are here, to the byte, and has code for this processor.

The environment variable MASKWRIGHT_JIT decides otherwise: with 1 numba compiles kernels although a library is there,
with 0 it is an error if none fits.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable
from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..errors import Advice, KernelError
from .sources import source_digest


def cache_folder() -> Path | None:
    """Return the folder, which need not exist; None if no variable names one and the user has no home.

    The environment variable MASKWRIGHT_CACHE names it. Otherwise it is `maskwright` in the user's cache folder.
    """
    if named := os.environ.get("MASKWRIGHT_CACHE"):
        return Path(named)
    if base := os.environ.get("XDG_CACHE_HOME"):
        return Path(base) / "maskwright"
    try:
        return Path.home() / ".cache" / "maskwright"
    except RuntimeError:  # there is no home
        return None


PACKAGE = __name__.partition(".")[0]
FILE_NAME = "_native.abi3.so"
AHEAD = Path(__file__).parent / "ahead"
"""Where the other things lie that a library is made of."""


class Library:
    """What a library holds, under the names that kernels have in the sources."""

    def __init__(self, module: Any, path: Path) -> None:
        self.path, self.is_kept = path, path.parent != Path(__file__).parent
        self.variant: str = module.variant
        self.deadline: int = module.deadline  # where the words of `deadline.py` are
        self._kernels: dict[tuple[str, str], Callable[..., Any]] = module.kernels
        self._loops: dict[tuple[str, str, str], Any] = module.loops

    def holds(self, module: str) -> bool:
        """Return whether the library has the kernels of a module."""
        return module.startswith(f"{PACKAGE}.")

    def kernel(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a kernel as Python calls it; where only kernels call it, what says so when it is called."""
        name = function.__module__.removeprefix(f"{PACKAGE}."), function.__qualname__
        return self._kernels.get(name) or InnerKernel(*name)

    def loop(self, function: Callable[..., Any], constants: tuple[Any, ...]) -> Any:
        """Return a kernel as a native function: see `compiled.native_loop`."""
        assert isinstance(function, InnerKernel)
        kinds = ",".join(str(np.dtype(each)) for each in constants)
        try:
            return _Loop(*self._loops[function.module, function.name, kinds])
        except KeyError:
            raise not_compiled(function.module, function.name, f"address, {kinds}") from None


class _Loop(NamedTuple):
    """A kernel as a native function of an address: see `compiled.NativeLoop`."""

    address: int
    call: Callable[[int], None]

    def __call__(self, argument: int) -> None:
        self.call(argument)


class InnerKernel:
    """A kernel that is compiled into others and cannot be called by itself."""

    def __init__(self, module: str, name: str) -> None:
        self.module, self.name = module, name

    def __call__(self, *arguments: Any) -> Any:
        raise not_compiled(self.module, self.name, ", ".join(type(each).__name__ for each in arguments))


def not_compiled(module: str, name: str, arguments: str) -> KernelError:
    """Return the error for a kernel that the library does not have for such arguments."""
    return KernelError(
        f"the library of compiled kernels has no {module}.{name}({arguments})",
        remedies=[
            Advice("set MASKWRIGHT_JIT=1 and install numba, which compiles it"),
            Advice("report this as a bug of maskwright"),
        ],
    )


def load() -> Library | None:
    """Return the library that fits the sources and the processor, None where numba is to compile kernels."""
    asked = os.environ.get("MASKWRIGHT_JIT", "")
    if asked not in ("", "0", "1"):
        raise KernelError(
            f"the environment variable MASKWRIGHT_JIT is {asked!r}",
            remedies=[
                Advice("set it to 1 for numba's kernels, to 0 for those compiled ahead"),
                Advice("do not set it"),
            ],
        )
    digest = library_digest()
    if asked == "1" or digest is None:
        return None
    for path in (Path(__file__).with_name(FILE_NAME), kept_at(digest)):
        if path is not None and path.is_file() and (library := read(path, digest)) is not None:
            if library.is_kept:
                with contextlib.suppress(OSError):
                    os.utime(path.parent)  # folders that nobody has used for long are removed
            return library
    if asked == "0":
        raise KernelError(
            "no library of compiled kernels was made of these sources for this processor, and MASKWRIGHT_JIT=0",
            remedies=[Advice("run `maskwright warm`"), Advice("do not set MASKWRIGHT_JIT")],
        )
    return None


def library_digest() -> str | None:
    """Return a digest of all that a library is made of, None if it cannot be read, as in an archive."""
    sources = source_digest(PACKAGE)
    if sources is None:
        return None
    digest = hashlib.sha256(sources.encode())
    for name in ("glue.c", "tables.h", "lower.py", "signatures.txt"):
        digest.update((AHEAD / name).read_bytes() + b"\0")
    return digest.hexdigest()


def kept_at(digest: str) -> Path | None:
    """Return where a library of sources with a digest is kept, None without a cache folder."""
    folder = cache_folder()
    return None if folder is None else folder / f"kernels-{digest[:32]}" / FILE_NAME


def read(path: Path, digest: str) -> Library | None:
    """Return the library in a file; None if it is of other sources, of another interpreter, or of another processor."""
    loader = ExtensionFileLoader(f"{PACKAGE}.kernels._native", str(path))
    spec = spec_from_loader(loader.name, loader)
    assert spec is not None
    try:
        module: Any = module_from_spec(spec)
        loader.exec_module(module)
    except ImportError:
        return None
    return Library(module, path) if module.digest == digest else None
