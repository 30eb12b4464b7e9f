"""Arrays that grow as a construction goes on."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def resized(values: NDArray[Any], capacity: int, used: int) -> NDArray[Any]:
    """Return an array of `capacity` rows, of which the first `used` are those of `values`."""
    out = np.empty((capacity, *values.shape[1:]), values.dtype)
    out[:used] = values[:used]
    return out


def long_enough(values: NDArray[Any], used: int, size: int, grows: bool) -> NDArray[Any]:
    """Return an array of at least `size` rows, of which the first `used` are those of `values`.

    That is `values` if it is as long, else one of `size` rows, or of twice as many if it goes on growing.
    """
    return values if size <= len(values) else resized(values, 2 * size if grows else size, used)
