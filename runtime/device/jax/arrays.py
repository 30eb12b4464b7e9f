"""Functions of arrays alone: the primitives of `backend.Backend` in JAX."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from numpy.typing import NDArray

from ....kernels.limits import UNREACHABLE
from ..backend import Cache, Offer, Random

_BLOCK = 64  # scores per block maximum in `top_k`

_FEWEST = 16  # rows of masks that are written at once


def gathered(array: Array, *index: Array) -> Array:
    """Return array[index]; all indices made here are inside, so none needs a check."""
    return array.at[index].get(mode="promise_in_bounds")


def log_softmax(logits: Array) -> Array:
    """Return log-probabilities (B, V) over all columns; NaN throughout a row that has no distribution."""
    return jax.nn.log_softmax(widen(logits), axis=-1)


def widen(logits: Array) -> Array:
    """Return logits in at least 32 bits."""
    return logits if logits.dtype == jnp.float64 else logits.astype(jnp.float32)


def softmax_of(logits: Array, read: Callable[[Array, bool], Offer]) -> Offer:
    """Return what is read of log-probabilities (n, V): the softmax is of all, and only what is read is divided by it.

    -inf in a row of logits that has no distribution.
    """
    logits = widen(logits)
    log_z = logsumexp(logits)[:, None]
    offer = read(logits, False)
    return offer._replace(scores=jnp.where(jnp.isfinite(log_z), offer.scores - log_z, -jnp.inf))


def logsumexp(x: Array) -> Array:
    """Return the logarithm of each row's sum of exponentials (n,); not finite for a row without a distribution."""
    highest = lax.stop_gradient(x.max(axis=-1))
    highest = jnp.where(highest == -jnp.inf, 0.0, highest)  # a row of -inf alone: its sum is 0
    return highest + jnp.log(jnp.exp(x - highest[:, None]).sum(axis=-1))


def top_k(scores: Array, k: int) -> tuple[Array, Array]:
    """Return the k largest of each row (B, n) and where they stand, largest first; -inf fills up where k > n.

    Exact, in two passes for wide rows: the k blocks with the largest maxima hold k of the largest scores, so only
    those are looked into.
    """
    batch, n = scores.shape
    scores = jnp.where(scores == 0, 0, scores)  # XLA takes -0.0 for less than 0.0
    if k > n:
        scores = jnp.pad(scores, ((0, 0), (0, k - n)), constant_values=-jnp.inf)
    elif n >= 4 * k * _BLOCK:
        scores = jnp.pad(scores, ((0, 0), (0, -n % _BLOCK)), constant_values=-jnp.inf)
        blocks = scores.reshape(batch, -1, _BLOCK)
        _, block = lax.top_k(blocks.max(axis=-1), k)
        block = jnp.sort(block, axis=-1)  # so that of equal scores the first counts as larger, as in one pass
        inside = jnp.take_along_axis(blocks, block[:, :, None], axis=1, mode="promise_in_bounds").reshape(batch, -1)
        best, at = lax.top_k(inside, k)
        return best, take_inside(block, at // _BLOCK) * _BLOCK + at % _BLOCK
    best, at = lax.top_k(scores, k)
    return best, jnp.minimum(at, n - 1)


def top_of_beams(x: Array, scores: Array, k: int) -> tuple[Array, Array]:
    """Return the k largest of x (B, m, w) + scores (B, m) and where they stand in (B, m * w); NaN counts as -inf."""
    totals = (x + scores[:, :, None]).reshape(x.shape[0], -1)
    return top_k(jnp.where(jnp.isnan(totals), -jnp.inf, totals), k)


def take(array: Array, index: Array) -> Array:
    """Return array (B, n) gathered at index (B, k) along the second axis."""
    return jnp.take_along_axis(array, index, axis=1)


def take_inside(array: Array, index: Array) -> Array:
    """Return array (B, n) gathered at index (B, k) along the second axis; all indices must be 0 .. n - 1."""
    return jnp.take_along_axis(array, index, axis=1, mode="promise_in_bounds")


def repeated_rows(x: Array, count: int) -> Array:
    """Return x (n, ..) with each row `count` times, one behind the other: a broadcast, where `repeat` is a scatter."""
    return jnp.broadcast_to(x[:, None], (x.shape[0], count, *x.shape[1:])).reshape(-1, *x.shape[1:])


def gather(cache: Cache, index: Array) -> Any:
    """Return a tree of arrays gathered at index (n,) along each array's first axis."""
    return jax.tree.map(lambda leaf: leaf[index], cache)


def zeros(shape: tuple[int, ...], like: Array) -> Array:
    """Return zeros of the type of `like`, in at least 32 bits."""
    return jnp.zeros(shape, jnp.promote_types(like.dtype, jnp.float32) if like.dtype.kind in "fV" else like.dtype)


def arange(n: int, like: Array) -> Array:
    """Return 0 .. n - 1, of the type of `like`."""
    return jnp.arange(n, dtype=like.dtype)


def uniform(random: Random, shape: tuple[int, ...], like: Array) -> Array:
    """Return random numbers in [0, 1) of the type of `like`, from a JAX key."""
    dtype = getattr(random, "dtype", None)
    if dtype is None or not (jnp.issubdtype(dtype, jax.dtypes.prng_key) or dtype == jnp.uint32):
        kind = type(random).__name__
        raise TypeError(f"random must be a JAX key, as jax.random.key(seed) makes one, not a {kind}")
    return jax.random.uniform(random, shape, like.dtype)


def split(random: Random) -> tuple[Any, Any]:
    """Return what to draw from now and what to draw from later: two new keys."""
    now, later = jax.random.split(random)
    return now, later


def lookup(array: Array, index: Array) -> Array:
    """Return array (n,) at indices of any shape."""
    return gathered(array, index)


def integers(x: Array, like: Array) -> Array:
    """Return whole numbers in the type of `like`; what is too large for that, or too small, is as far out as may be."""
    if isinstance(x, np.ndarray) and x.dtype.itemsize > 4:  # which JAX would wrap in its 32-bit mode
        x = np.clip(x, 0 if x.dtype.kind == "u" else -UNREACHABLE, UNREACHABLE)
    if x.dtype.itemsize > like.dtype.itemsize:
        bounds = np.iinfo(like.dtype)
        x = jnp.clip(x, bounds.min, bounds.max)
    return (jnp.minimum(x, UNREACHABLE) if x.dtype == jnp.uint32 else x).astype(like.dtype)


def search(ascending: Array, query: Array) -> Array:
    """Return how many of ascending numbers (n,) are below each of query."""
    return jnp.searchsorted(ascending, query)


def lowest(x: Array) -> Array:
    """Return -inf in the shape and type of an array."""
    return jnp.full_like(x, -jnp.inf)


def scatter(array: Array, index: Array, value: Array | int) -> Array:
    """Return array (B, n), which may be written to, with a value, or values (B, k), at index (B, k)."""
    return array.at[jnp.arange(array.shape[0])[:, None], index].set(value, mode="promise_in_bounds")


def keep(x: Array, mask: Array, size: int) -> Array:
    """Return x (B, n) with -inf where mask (B, >= size) is 0, and from column `size` on; a mask is 0 or -1."""
    return jnp.where(jnp.pad(mask[:, :size] != 0, ((0, 0), (0, x.shape[1] - size))), x, -jnp.inf)


def pack(mask: Array) -> Array:
    """Return a mask (B, n) as bits: uint32 (B, ceil(n / 32))."""
    words = -(-mask.shape[1] // 32)
    bits = jnp.pad(mask != 0, ((0, 0), (0, -mask.shape[1] % 32))).reshape(mask.shape[0], words, 32)
    return (bits.astype(jnp.uint32) << jnp.arange(32, dtype=jnp.uint32)).sum(axis=-1, dtype=jnp.uint32)


def words(x: Array) -> Array:
    """Return bytes (B, 4 n) as words of a packed mask (B, n)."""
    found: Array = lax.bitcast_convert_type(x.reshape(x.shape[0], -1, 4), jnp.uint32)
    return found


def unpack(words: Array, size: int) -> Array:
    """Return which of `size` bits are set in words (B, ceil(size / 32)): bool (B, size)."""
    bits = (words[:, :, None] >> jnp.arange(32, dtype=jnp.uint32)) & jnp.uint32(1)
    found: Array = bits.reshape(words.shape[0], -1)[:, :size] != 0
    return found


def keep_packed(x: Array, words: Array, size: int, in_place: bool = False) -> Array:
    """Return x (B, n) with -inf where no bit is set in words (B, ceil(size / 32)), and from column `size` on.

    in_place: has no meaning here, as arrays do not change.
    """
    return keep(x, unpack(words, size), size)


def doubled(array: Array) -> Array:
    """Return an array with as many rows again behind its own, which are 0."""
    return jnp.concatenate([array, jnp.zeros_like(array)])


def put_rows(array: Array, index: NDArray[Any], values: NDArray[Any]) -> Array:
    """Return an array with values (n, ..) of the host in rows index (n,); the one given is used up."""
    size = max(_FEWEST, 1 << (len(index) - 1).bit_length())  # few sizes, each of which is compiled for once
    to = np.full(size, array.shape[0], index.dtype)
    to[: len(index)] = index
    padded = np.zeros((size, *values.shape[1:]), values.dtype)
    padded[: len(index)] = values
    placed: Array = _with_rows(array, to, padded)
    return placed


@partial(jax.jit, donate_argnums=0)
def _with_rows(array: Array, index: Array, values: Array) -> Array:
    """Return an array with values in rows, but those behind its last."""
    return array.at[index].set(values.astype(array.dtype), mode="drop")


def is_integral(x: Array) -> bool:
    """Return whether an array is of whole numbers."""
    return bool(jnp.issubdtype(x.dtype, jnp.integer))


def is_floating(x: Array) -> bool:
    """Return whether an array is of floating-point numbers that have -inf: of 16 bits or more."""
    return bool(jnp.issubdtype(x.dtype, jnp.floating)) and x.dtype.itemsize > 1


def is_concrete(*arrays: Array) -> bool:
    """Return whether the values of arrays can be read now, instead of being traced."""
    return not any(isinstance(array, jax.core.Tracer) for array in arrays)


def is_recording(*arrays: Array) -> bool:
    """Return whether what is computed from arrays is recorded, with all else as it is now."""
    return not is_concrete(*arrays)


def without_nan(x: Array) -> Array:
    """Return x with -inf where it is NaN."""
    return jnp.where(jnp.isnan(x), -jnp.inf, x)


def running_max(x: Array) -> Array:
    """Return the largest of each row (B, n) up to each column."""
    return lax.cummax(x, axis=1)


def sort(x: Array) -> Array:
    """Return each row (B, n) with the largest first."""
    return -jnp.sort(-x, axis=-1)


def all_known_true(holds: Array) -> bool:
    """Return whether `holds` is so throughout and that can be known now: False where values are only traced."""
    return not isinstance(holds, jax.core.Tracer) and bool(holds.all())


def to_device(array: NDArray[Any], like: Array) -> Array:
    """Return an array of the host where `like` is."""
    out: Array = jax.device_put(jnp.asarray(array), next(iter(like.devices())))
    return out


def to_host(array: Array) -> NDArray[Any]:
    """Return an array on the host, once it is there."""
    return np.asarray(array)


where = jnp.where

concatenate = jnp.concatenate

exp = jnp.exp
