"""Tensors that lie in a CPU's memory, as the host's kernels take them, the threads for them, and what Triton takes."""

from __future__ import annotations

import ctypes
import importlib.metadata
import importlib.util
import os
import sys
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ....table.states import NestedState
from ...host import logits as host_logits
from ...host import thread_pool as host_team
from . import compat

SAME_SIZE = {
    torch.float64: torch.int64,
    torch.float32: torch.int32,
    torch.float16: torch.int16,
    torch.bfloat16: torch.int16,
}

LOWEST = {kind: int(torch.full((), -torch.inf, dtype=kind).view(same)) for kind, same in SAME_SIZE.items()}

_PROCESS = os.getpid()  # a forked one has none of torch's threads


def is_writable(logits: Tensor) -> bool:
    """Return whether a kernel may write to logits (B, V') on the host, or to a copy of them."""
    return compat.is_plain(logits) and logits.is_cpu and logits.dtype in SAME_SIZE and is_in_rows(logits)


def is_in_rows(logits: Tensor) -> bool:
    """Return whether rows (B, V') lie apart, each in one piece, and no derivative is asked for."""
    apart = logits.shape[0] < 2 or logits.stride(0) >= logits.shape[1]
    whole = logits.stride(1) == 1 or logits.shape[1] < 2
    return compat.is_as_stored(logits) and not compat.wants_derivative(logits) and apart and whole


def logits_at(logits: Tensor) -> host_logits.Logits:
    """Return where logits (n, V') lie."""
    (rows, columns), size = logits.shape, logits.element_size()
    return host_logits.Logits(logits.data_ptr(), rows, columns, size * logits.stride(0), size, LOWEST[logits.dtype])


def in_memory(state: NestedState) -> NestedState:
    """Return a state as kernels read it: node int64, the others int32, each in one piece."""
    return NestedState(state.node.long().contiguous(), state.stack.int().contiguous(), state.height.int().contiguous())


def addresses(state: NestedState) -> tuple[int, int, int]:
    return state.node.data_ptr(), state.stack.data_ptr(), state.height.data_ptr()


def write_lowest(masks: NDArray[np.uint32], logits: Tensor) -> Tensor:
    """Write -inf to logits in place where masks (n, ceil(V / 32)) have no bit set."""
    bits = logits.detach().view(SAME_SIZE[logits.dtype]).numpy()
    team = torch_team()
    host_logits.apply(masks, bits, LOWEST[logits.dtype], torch.get_num_threads(), team)
    return logits


def torch_team() -> host_team.Team | None:
    """Return what runs a function in torch's own threads, None where there are none: a forked process has lost them."""
    return find_team() if os.getpid() == _PROCESS else None


@lru_cache(maxsize=1)
def find_team() -> host_team.Team | None:
    """Return what runs a function in torch's own threads, None where they are not those of GNU's OpenMP.

    What has just been computed by torch has left them spinning, on all processors there are: threads beside them wait
    for one. Measured for 64 x 131,072 logits on two processors: 0.85 ms in place of 1.35.
    """
    if sys.platform != "linux" or not compat.has_openmp():
        return None
    names = ["libgomp.so.1", *map(str, (Path(torch.__file__).parent / "lib").glob("libgomp*.so*"))]
    for name in names:
        try:
            run = ctypes.CDLL(name, mode=os.RTLD_NOLOAD | os.RTLD_LAZY).GOMP_parallel
        except (OSError, AttributeError):  # it is not there, or nobody has loaded it
            continue
        run.argtypes, run.restype = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint), None
        return lambda function, argument, threads: run(function, argument, threads, 0)
    return None


def takes_triton(*arrays: Tensor) -> bool:
    """Return whether Triton kernels take these: ordinary memory of one CUDA device, and Triton 3.3 or newer is there.

    Triton's interpreter, which the environment variable `TRITON_INTERPRET` asks for, takes tensors of the host.
    """
    there = os.environ.get("TRITON_INTERPRET") == "1" or (
        not compat.is_rocm() and all(x.is_cuda and x.device == arrays[0].device for x in arrays)
    )
    return there and compat.is_plain(*arrays) and has_triton()


def takes_logits(logits: Tensor) -> bool:
    """Return whether Triton kernels may read and write logits (B, V'): of a float type that they know, row by row."""
    known = logits.dtype in (torch.float32, torch.float16, torch.bfloat16)
    return known and takes_triton(logits) and is_in_rows(logits)


@lru_cache(maxsize=1)
def has_triton() -> bool:
    """Return whether Triton 3.3 or newer is installed, which torch 2.7 brings: it takes named tuples as arguments."""
    if importlib.util.find_spec("triton") is None:
        return False
    import triton  # slow; its distribution has several names

    major, minor = triton.__version__.split(".")[:2]
    return (int(major), int(minor)) >= (3, 3)


def noted(logits: Tensor) -> Tensor:
    """Return logits that were written to behind autograd's back, and tell it."""
    if not logits.is_inference():
        torch.autograd.graph.increment_version(logits)
    return logits
