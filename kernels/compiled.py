"""Functions that are compiled to machine code: kernels, and loops that threads of somebody else call.

In a wheel all of them are compiled ahead, in one library: see `native.py`. Where no library fits, numba compiles each
when it is first called: see `jit.py`. One process uses one of the two for everything.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar, overload

from ..errors import MissingDependencyError
from . import native

if TYPE_CHECKING:
    from llvmlite import ir
    from numba.core import base, types
    from numba.core.typing import context, templates

    Builder: TypeAlias = ir.IRBuilder
    Context: TypeAlias = base.BaseContext
    NumbaType: TypeAlias = types.Type
    Signature: TypeAlias = templates.Signature
    TypingContext: TypeAlias = context.BaseContext
    Value: TypeAlias = ir.Value
    Intrinsic: TypeAlias = tuple[Signature, Callable[[Context, Builder, Signature, Sequence[Value]], Value]]

LIBRARY = native.load()
"""The library of all kernels compiled ahead, None where numba compiles them."""


def _jit() -> Any:
    """Return the module that compiles kernels with numba. Raises MissingDependencyError without numba."""
    try:
        from . import jit
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("numba", "llvmlite"):
            raise
        raise MissingDependencyError(
            "maskwright's kernels are not compiled for this machine, and numba, which would compile them, is not "
            "installed: pip install 'maskwright[jit]'"
        ) from None
    return jit


def kernels_from() -> str:
    """Return where this process has its kernels from, in a few words."""
    if LIBRARY is None:
        return "kernels that numba compiles"
    return f"compiled kernels ({LIBRARY.variant}) from {LIBRARY.path}"


class NativeLoop(Protocol):
    """A function of machine code that takes one number, the address of what it works on, and returns nothing."""

    @property
    def address(self) -> int:
        """Where its code is, for those that call it as `void (*)(void *)`."""

    def __call__(self, argument: int) -> None:
        """Call it, without the GIL."""


Function = TypeVar("Function", bound=Callable[..., Any])


@overload
def kernel(function: Function, /) -> Function: ...
@overload
def kernel(**options: Any) -> Callable[[Function], Function]: ...
def kernel(function: Callable[..., Any] | None = None, /, **options: Any) -> Callable[..., Any]:
    """Return a function as machine code, which takes positional arguments alone and releases the GIL.

    Use it bare or with options of `numba.njit`, as in `@kernel(inline="always")`.
    """
    if function is None:
        return lambda function: kernel(function, **options)
    if LIBRARY is not None and LIBRARY.holds(function.__module__):
        return LIBRARY.kernel(function)
    made: Callable[..., Any] = _jit().kernel(function, options)
    return made


def native_loop(function: Callable[..., Any], *constants: object) -> NativeLoop:
    """Return a kernel as a native function of its first argument, an address; the others are these constants.

    The constants are types of numpy.
    """
    if LIBRARY is not None and LIBRARY.holds(function.__module__):
        found: NativeLoop = LIBRARY.loop(function, constants)
        return found
    loop: NativeLoop = _jit().native_loop(function, constants)
    return loop


def intrinsic(function: Callable[..., Any]) -> Any:
    """Return what kernels call in place of a function that says which LLVM instructions to write.

    See `numba.extending.intrinsic`. A library holds those instructions already.
    """
    if LIBRARY is not None and LIBRARY.holds(function.__module__):
        return None
    return _jit().intrinsic(function)


def entry_of(loop: object, arguments: tuple[Any, ...]) -> Any:
    """Return a kernel as it is called where the types of its arguments are those of `arguments`.

    Numba looks at all arguments of each call for what was compiled for their types, which takes longer than many a loop
    runs. Here nobody looks: integers must be integers, and arrays such as these. Nor does anybody see that a kernel was
    told to stop, so it must not ask `is_late`.
    """
    if LIBRARY is not None:
        return loop  # which looks quickly
    return _jit().entry_of(loop, arguments)


def share(name: str, address: int) -> bool:
    """Give what lies at an address a name in the machine code of kernels; return False if they run as plain Python."""
    shared: bool = _jit().share(name, address)
    return shared


def kernel_folder() -> Path | None:
    """Return the folder in which machine code of kernels is kept, None if there is none."""
    if LIBRARY is not None:
        return LIBRARY.path.parent if LIBRARY.is_kept else None
    folder: Path | None = _jit().code_folder(native.PACKAGE)
    return folder
