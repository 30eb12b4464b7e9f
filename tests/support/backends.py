"""The three backends of operations, by name, and arrays of theirs as numpy's."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import pytest

from maskwright.runtime import numpy_ops
from maskwright.runtime.device.device_table import State


class Backend(NamedTuple):
    """An operations module, and how to get arrays into it and out of it."""

    ops: ModuleType
    into: Any

    def state(self, nodes: np.ndarray) -> State:
        return State(self.into(nodes))


def backend(name: str) -> Backend:
    if name == "numpy":
        return Backend(numpy_ops, np.asarray)
    if name == "torch":
        torch = pytest.importorskip("torch")
        from maskwright.runtime import torch_ops

        return Backend(torch_ops, torch.tensor)
    pytest.importorskip("jax")
    import jax.numpy as jnp

    from maskwright.runtime import jax_ops

    return Backend(jax_ops, lambda x: jnp.asarray(x, jnp.int32 if np.asarray(x).dtype.kind == "i" else None))


def compiled(name: str, function: Callable[..., Any], *static: int) -> Callable[..., Any]:
    """Return a function as it is; in JAX compiled as a whole, as users have it: alone each step takes long to compile.

    static: the places of arguments that are no arrays.
    """
    if name != "jax":
        return function
    import jax

    return jax.jit(function, static_argnums=static)


def out(array: Any) -> np.ndarray:
    if "bfloat16" in str(array.dtype):  # numpy has no such type
        array = array.float() if hasattr(array, "float") else array.astype("float32")
    return np.asarray(array)


ALL = ["numpy", "torch", "jax"]
FAST = ["torch", "jax"]


def bits_of(words: Any, size: int) -> np.ndarray:
    """Return which tokens masks (n, W) allow, as booleans (n, size)."""
    words = np.ascontiguousarray(np.asarray(words)).view(np.uint32).astype("<u4")
    return np.unpackbits(words.view(np.uint8), axis=1, bitorder="little")[:, :size].astype(bool)
