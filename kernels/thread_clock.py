"""The processor clock of a thread, for other threads to read: Python has it on Linux alone."""

from __future__ import annotations

import ctypes
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

Clock = Callable[[], float]
"""Returns the processor seconds of one thread; raises OSError if the thread has ended."""


def clock_of_this_thread() -> Clock | None:
    """Return what reads the clock of this thread, from any thread; None on a system that is not known."""
    if hasattr(time, "pthread_getcpuclockid"):
        return partial(time.clock_gettime, time.pthread_getcpuclockid(threading.get_ident()))
    if sys.platform == "darwin":
        return _of_mach()
    if sys.platform == "win32":
        return _of_windows()
    return None


def _of_mach() -> Clock:
    """Return the clock on macOS: `thread_info`, seconds and microseconds in user code and in the system."""
    system: Any = ctypes.CDLL(None)
    system.pthread_mach_thread_np.argtypes, system.pthread_mach_thread_np.restype = (ctypes.c_void_p,), ctypes.c_uint32
    port = system.pthread_mach_thread_np(threading.get_ident())
    basic, numbers = 3, 10  # THREAD_BASIC_INFO and its size

    def clock() -> float:
        found, count = (ctypes.c_int32 * numbers)(), ctypes.c_uint32(numbers)
        if system.thread_info(ctypes.c_uint32(port), basic, found, ctypes.byref(count)):
            raise OSError("the thread has ended")
        user, user_micros, inside, inside_micros = found[:4]
        return float(user + inside + (user_micros + inside_micros) / 1e6)

    return clock


def _of_windows() -> Clock:
    """Return the clock on Windows: `GetThreadTimes`, in units of 100 ns."""
    system: Any = ctypes.WinDLL("kernel32", use_last_error=True)  # type: ignore[attr-defined,unused-ignore]
    system.OpenThread.restype = ctypes.c_void_p
    may_ask, identity = 0x0800, threading.get_ident()  # THREAD_QUERY_LIMITED_INFORMATION

    def clock() -> float:
        thread = ctypes.c_void_p(system.OpenThread(may_ask, False, identity))
        if not thread:
            raise OSError("the thread has ended")
        times = [ctypes.c_uint64() for _ in range(4)]  # begun, ended, in the system, in user code
        done = system.GetThreadTimes(thread, *(ctypes.byref(each) for each in times))
        system.CloseHandle(thread)
        if not done:
            raise OSError("the thread has ended")
        return (times[2].value + times[3].value) / 1e7

    return clock
