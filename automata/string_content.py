"""Strings of JSON by the DFAs of their content, which are read without rows."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..kernels.arrays import Int32Array, Uint16Array, Uint64Array
from ..kernels.compiled import kernel
from ..kernels.deadline import is_late
from .state_ranges import PHASES, TEXTS


class Content(NamedTuple):
    r"""A string by the DFA of its content, N states and C classes of bytes.

    State first + PHASES * (k * N + q) of the machine is state q of the content after k characters, which are counted
    only where there is a bound. The states up to the next multiple of PHASES are within an escape: behind \, \u, \u0,
    \u00, and \u00 with a further 0, 1, 2, 5.
    """

    class_of: NDArray[np.uint16]  # (256,)
    transition: NDArray[np.int32]  # (N, C)
    label: NDArray[np.int32]  # (N,)
    free: int = -1  # the state after which anything may come, which is the library's string
    most: int = -1  # characters, -1 for any number
    needed: NDArray[np.int32] = np.zeros(0, np.int32)  # (N,) characters that must follow, -1 where no end does; or none
    first: int = TEXTS

    @property
    def positions(self) -> int:
        """Numbers of characters that are told apart."""
        return self.most + 1 if self.most >= 0 else 1


@kernel
def labels_in_escapes(class_of: Uint16Array, transition: Int32Array, ahead: Uint64Array) -> Uint64Array:
    """Return the labels ahead of the states of a content and of the places in an escape behind each, (N, PHASES, W).

    ahead: the labels ahead of the states (N, W), as bits. See `Content` for the places.
    """
    states = transition.shape[0]
    out = np.zeros((states, PHASES, ahead.shape[1]), np.uint64)
    out[:, 0] = ahead
    for phase, low, high in (
        (4, 0, 0x1F), (4, 0x22, 0x22), (4, 0x5C, 0x5C), (5, 0, 0x0F), (6, 0x10, 0x1F), (7, 0x22, 0x22), (8, 0x5C, 0x5C)
    ):  # fmt: skip
        for s in range(states):
            if is_late():
                return out
            for byte in range(low, high + 1):
                target = transition[s, class_of[byte]]
                if target >= 0:
                    out[s, phase] |= ahead[target]
    for phase in range(1, 4):  # any of them may still come
        out[:, phase] = out[:, 4]
    return out
