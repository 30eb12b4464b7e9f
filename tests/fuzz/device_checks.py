"""Tables on devices, sound ones and forged ones: what torch and JAX say of them is what numpy says."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, NamedTuple

import numpy as np

import maskwright as mw
from maskwright.runtime import numpy_ops

from .workers import DifferenceError, Steps

_ROWS, _TOKENS = 3, 8
_JAX_EVERY = 16  # cases, of which each compiles for seconds
_TORCH_SECONDS, _JAX_SECONDS = 8, 60


class Backend(NamedTuple):
    """The operations of one library."""

    name: str
    ops: Any
    array: Callable[[np.ndarray[Any, Any]], Any]  # makes an array of the library of one of numpy
    seconds: int  # of the processor, for each step of a case


def load_backends() -> None:
    """Load torch and JAX, so that workers that are forked later are not charged for it."""
    import torch

    import maskwright.runtime.jax_ops
    import maskwright.runtime.torch_ops  # noqa: F401

    torch.set_num_threads(1)


def check_devices(table: mw.TransitionTable, rng: Random, seed: int, steps: Steps) -> None:
    """Write texts on a device, with tokens that are allowed and with others; each step must be that of numpy."""
    import torch

    from maskwright.runtime import jax_ops, torch_ops

    tokens = _tokens(table, rng)
    _compare(Backend("torch", torch_ops, torch.from_numpy, _TORCH_SECONDS), table, tokens, steps)
    if seed % _JAX_EVERY == 0:
        _compare(Backend("JAX", jax_ops, lambda array: array, _JAX_SECONDS), table, tokens, steps)
        steps.forget_memory()  # the compiler's


def _tokens(table: mw.TransitionTable, rng: Random) -> np.ndarray[Any, Any]:
    """Return tokens (steps, rows), most of which are allowed where they stand."""
    state = numpy_ops.start(table, _ROWS)
    tokens = np.zeros((_TOKENS, _ROWS), np.int64)
    for step in range(_TOKENS):
        bits = numpy_ops.arrays.unpack(numpy_ops.bitmask(table, state), table.vocab_size)
        for row in range(_ROWS):
            allowed = np.flatnonzero(bits[row])
            any_token = rng.randrange(table.vocab_size)
            tokens[step, row] = rng.choice(allowed.tolist()) if allowed.size and rng.random() < 0.9 else any_token
        state = numpy_ops.advance(table, state, tokens[step])
    return tokens


def _compare(backend: Backend, table: mw.TransitionTable, tokens: np.ndarray[Any, Any], steps: Steps) -> None:
    """Raise DifferenceError where a backend has another mask, another budget's mask or another state than numpy."""
    name, ops, array, seconds = backend
    with steps(f"putting a table for {name}", seconds=seconds):
        dev = ops.to_device(table, distances=True)
        state = ops.start(dev, _ROWS)
    expected = numpy_ops.start(table, _ROWS)
    for step, given in enumerate(tokens):
        with steps(f"a step in {name}", seconds=seconds):
            left = np.full(_ROWS, step % 5, np.int32)
            for remaining in (None, left):
                found = ops.bitmask(dev, state, None if remaining is None else array(left))
                wanted = numpy_ops.bitmask(table, expected, remaining)
                if not np.array_equal(ops.arrays.to_host(found).view(np.uint32), wanted):
                    raise DifferenceError(f"{name} and numpy have other masks after {step} tokens, left: {remaining}")
            state = ops.advance(dev, state, array(given))
            expected = numpy_ops.advance(table, expected, given)
            if not np.array_equal(ops.arrays.to_host(state.node), expected.node):
                raise DifferenceError(f"{name} and numpy are in other states after {step + 1} tokens")
