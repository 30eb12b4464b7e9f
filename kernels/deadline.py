"""Which threads have spent the seconds of their budgets: words in memory that kernels read by themselves.

A timer writes them (`automata/deadline.py`). A kernel asks `is_late` in its outermost loops, which reads one word of
all threads as long as no thread is late: 0.1 ns of a loop that runs. A kernel that is told True returns at once, with
whatever is at hand: nobody sees it, as the call raises BudgetError in Python in place of returning.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from .compiled import LIBRARY, intrinsic, kernel, share

if TYPE_CHECKING:
    from .compiled import Builder, Context, Intrinsic, NumbaType, Signature, TypingContext, Value

NAME = "maskwright_deadline"
"""Name of the words in machine code."""

MOST = 15
"""Threads that can be late at once; `glue.c` says the same. A further one waits for its turn, as its timer says."""

# threads that are late; each one's identity, 0 for none; whether a kernel was told so
_COUNT, _THREAD, _TOLD, _WORDS = 0, 1, 1 + MOST, 1 + 2 * MOST


@intrinsic
def read(typing: TypingContext, at: NumbaType) -> Intrinsic:
    """Return a word. No compiler moves such a load out of a loop."""
    from numba import types

    def generate(context: Context, builder: Builder, signature: Signature, arguments: Sequence[Value]) -> Value:
        return builder.load_atomic(_place(builder, arguments[0]), "monotonic", 8)

    return types.int64(types.int64), generate


@intrinsic
def write(typing: TypingContext, at: NumbaType, word: NumbaType) -> Intrinsic:
    """Write a word."""
    from numba import types

    def generate(context: Context, builder: Builder, signature: Signature, arguments: Sequence[Value]) -> Value:
        builder.store_atomic(arguments[1], _place(builder, arguments[0]), "monotonic", 8)
        return context.get_dummy_value()  # type: ignore[no-untyped-call]

    return types.void(types.int64, types.int64), generate


def _place(builder: Builder, at: Value) -> Value:
    """Return the pointer to a word."""
    from llvmlite import ir

    number = ir.IntType(64)
    words = builder.module.globals.get(NAME) or ir.GlobalVariable(builder.module, ir.ArrayType(number, _WORDS), NAME)
    return builder.gep(words, [number(0), at])


@intrinsic
def own_thread(typing: TypingContext) -> Intrinsic:
    """Return the identity of the thread, as `threading.get_ident` does."""
    from llvmlite import ir
    from numba import types

    name, bits = ("GetCurrentThreadId", 32) if sys.platform == "win32" else ("pthread_self", 64)

    def generate(context: Context, builder: Builder, signature: Signature, arguments: Sequence[Value]) -> Value:
        kind = ir.FunctionType(ir.IntType(bits), [])
        called = builder.call(builder.module.globals.get(name) or ir.Function(builder.module, kind, name), [])
        return called if bits == 64 else builder.zext(called, ir.IntType(64))

    return types.int64(), generate


@kernel
def _is_marked() -> bool:
    """Return whether this thread is one of those that are late, and note that it was told."""
    thread = own_thread()
    for k in range(MOST):
        if read(_THREAD + k) == thread:
            write(_TOLD + k, 1)
            return True
    return False


@kernel
def is_late() -> bool:
    """Return whether this thread has spent the seconds of its budget: the kernel at hand must return at once."""
    return bool(read(_COUNT) != 0 and _is_marked())


if LIBRARY is None:
    _words = (ctypes.c_int64 * _WORDS)()
    if not share(NAME, ctypes.addressof(_words)):  # kernels run as plain Python, and to their ends

        def is_late() -> bool:
            return False

else:
    _words = (ctypes.c_int64 * _WORDS).from_address(LIBRARY.deadline)


def mark(thread: int) -> int | None:
    """Note that a thread is late, and return its place, None if none is left. The timer calls it under its lock."""
    for k in range(MOST):
        if not _words[_THREAD + k]:
            _words[_TOLD + k] = 0
            _words[_THREAD + k] = thread
            _words[_COUNT] += 1
            return k
    return None


def unmark(place: int) -> None:
    """Take back that the thread at a place is late."""
    _words[_COUNT] -= 1
    _words[_THREAD + place] = 0


def unmark_all() -> None:
    """Take back all that was noted, in a process that was forked."""
    ctypes.memset(_words, 0, ctypes.sizeof(_words))


def is_any_late() -> bool:
    """Return whether some thread is late."""
    return _words[_COUNT] != 0


def was_told(thread: int) -> bool:
    """Return whether a kernel was told that this thread is late."""
    return any(_words[_THREAD + k] == thread and _words[_TOLD + k] for k in range(MOST))


_raising: list[Callable[[], None]] = []


def raise_by(function: Callable[[], None]) -> None:
    """Have a function raise the error where a kernel was told to stop."""
    _raising[:] = [function]


def stop() -> None:
    """Raise BudgetError: called in place of returning what a kernel has that was told to stop."""
    _raising[0]()
