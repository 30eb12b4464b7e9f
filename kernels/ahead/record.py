"""Notes which kernels Python calls, and with which types: run tests with `-p maskwright.kernels.ahead.record`.

Numba has to compile the kernels, so MASKWRIGHT_JIT=1 must be set. What is new is added to `signatures.txt`.
"""

from __future__ import annotations

import atexit
import fcntl
import sys
from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from numba.core import types as _types
from numba.core.dispatcher import Dispatcher
from numba.np.numpy_support import from_dtype

from .. import compiled, jit
from ..native import PACKAGE
from .signatures import FILE, Signature, read, without_flags, write

types: Any = _types
typeof: Any = numba.typeof

_seen: dict[str, Signature] = {}


class _Recorded:
    """A kernel in whose place Python finds this, while other kernels find the kernel."""

    def __init__(self, kernel: Any) -> None:
        self._kernel, self.__name__, self.__doc__ = kernel, kernel.__name__, kernel.__doc__
        self.__module__, self.__qualname__ = kernel.__module__, kernel.__qualname__
        self._numba_type_ = typeof(kernel)

    def __call__(self, *arguments: Any) -> Any:
        self._note(tuple(map(typeof, arguments)))
        return self._kernel(*arguments)

    def compile(self, signature: tuple[Any, ...]) -> Any:
        self._note(signature)
        return self._kernel.compile(signature)

    @property
    def overloads(self) -> Any:
        return self._kernel.overloads

    def _note(self, kinds: tuple[Any, ...]) -> None:
        _add(self.__module__, self.__qualname__, kinds)


def _add(module: str, name: str, kinds: tuple[Any, ...], *, is_loop: bool = False) -> None:
    plain = tuple(map(without_flags, kinds))
    try:
        signature = Signature(module.removeprefix(f"{PACKAGE}."), name, plain, is_loop)
        _seen[signature.text()] = signature
    except ValueError as error:
        print(f"not noted: {module}.{name}: {error}", file=sys.stderr)


def _note_all() -> None:
    """Put what notes calls in place of all kernels that there are, and of those that come."""
    noted: dict[int, _Recorded] = {}

    def recorded(made: object) -> Any:
        if not isinstance(made, Dispatcher) or not made.__module__.startswith(f"{PACKAGE}."):
            return made
        return noted.setdefault(id(made), _Recorded(made))

    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == PACKAGE and module is not jit:
            for known, value in list(vars(module).items()):
                vars(module)[known] = recorded(value)
    make, loop = compiled.kernel, compiled.native_loop

    def kernel(function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
        if function is None:
            return lambda function: kernel(function, **options)
        return recorded(make(function, **options))

    def native_loop(function: Callable[..., Any], *constants: Any) -> Any:
        kinds = tuple(types.DType(from_dtype(np.dtype(each))) for each in constants)
        _add(function.__module__, function.__qualname__, (types.int64, *kinds), is_loop=True)
        return loop(function, *constants)

    compiled.kernel = kernel
    for module in list(sys.modules.values()):
        if getattr(module, "native_loop", None) is loop:
            vars(module)["native_loop"] = native_loop


def _save() -> None:
    with FILE.open("a") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        write([*read(), *_seen.values()])


_note_all()
atexit.register(_save)
