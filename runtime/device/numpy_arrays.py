"""Functions of arrays alone in numpy: the primitives of `backend.Backend`, as the other libraries have them too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .backend import Cache, Offer, Random
from .device_table import map_tree

Array = NDArray[Any]


def log_softmax(logits: Array) -> Array:
    """Return log-probabilities (B, V) over all columns; NaN throughout a row that has no distribution."""
    with np.errstate(all="ignore"):
        x = logits.astype(np.promote_types(logits.dtype, np.float32))
        shifted = x - x.max(axis=-1, keepdims=True)
        return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True)))


def widen(logits: Array) -> Array:
    """Return logits in at least 32 bits."""
    return logits.astype(np.promote_types(logits.dtype, np.float32), copy=False)


def softmax_of(logits: Array, read: Callable[[Array, bool], Offer]) -> Offer:
    """Return what is read of log-probabilities (n, V); NaN in a row of logits that has no distribution."""
    return read(log_softmax(logits), True)


def top_k(scores: Array, k: int) -> tuple[Array, Array]:
    """Return the k largest of each row (B, n) and where they stand, largest first; -inf fills up where k > n."""
    if k > scores.shape[1]:
        fill = np.full((len(scores), k - scores.shape[1]), -np.inf, scores.dtype)
        best, at = top_k(np.concatenate([scores, fill], axis=1), k)
        return best, np.minimum(at, scores.shape[1] - 1)
    order = np.argsort(-scores, axis=-1, kind="stable")[:, :k]
    return np.take_along_axis(scores, order, axis=-1), order


def top_of_beams(x: Array, scores: Array, k: int) -> tuple[Array, Array]:
    """Return the k largest of x (B, m, w) + scores (B, m) and where they stand in (B, m * w); NaN counts as -inf."""
    totals = (x + scores[:, :, None]).reshape(len(x), -1)
    return top_k(np.where(np.isnan(totals), -np.inf, totals).astype(totals.dtype), k)


def take(array: Array, index: Array) -> Array:
    """Return array (B, n) gathered at index (B, k) along the second axis."""
    return np.take_along_axis(array, index, axis=1)


def gather(cache: Cache, index: Array) -> Any:
    """Return a tree of arrays gathered at index (n,) along each array's first axis."""
    return map_tree(lambda leaf: leaf[index], cache)


def zeros(shape: tuple[int, ...], like: Array) -> Array:
    """Return zeros of the type of `like`, in at least 32 bits."""
    return np.zeros(shape, np.promote_types(like.dtype, np.float32) if like.dtype.kind == "f" else like.dtype)


def arange(n: int, like: Array) -> Array:
    """Return 0 .. n - 1, of the type of `like`."""
    return np.arange(n, dtype=like.dtype)


def uniform(random: Random, shape: tuple[int, ...], like: Array) -> Array:
    """Return random numbers in [0, 1) of the type of `like`, from a numpy Generator."""
    if not isinstance(random, np.random.Generator):
        kind = type(random).__name__
        raise TypeError(f"random must be a numpy Generator, as np.random.default_rng(seed) makes one, not a {kind}")
    return random.random(shape, np.float64 if like.dtype == np.float64 else np.float32)


def split(random: Random) -> tuple[Any, Any]:
    """Return what to draw from now and what to draw from later: of numpy one Generator, which goes on."""
    return random, random


def logsumexp(x: Array) -> Array:
    """Return the logarithm of each row's sum of exponentials (B,); not finite for a row without a distribution."""
    with np.errstate(all="ignore"):
        highest = x.max(axis=-1)
        highest = np.where(np.isfinite(highest), highest, x.dtype.type(0))
        return np.asarray(highest + np.log(np.exp(x - highest[:, None]).sum(axis=-1)))


def lookup(array: Array, index: Array) -> Array:
    """Return array (n,) at indices of any shape."""
    return np.asarray(array[index])


def integers(x: Array, like: Array) -> Array:
    """Return whole numbers in the type of `like`; what is too large for that, or too small, is as far out as may be."""
    if x.dtype == np.uint64 or x.dtype.itemsize > like.dtype.itemsize:
        bounds = np.iinfo(like.dtype)
        x = np.minimum(x, bounds.max) if x.dtype.kind == "u" else np.clip(x, bounds.min, bounds.max)
    return x.astype(like.dtype)


def search(ascending: Array, query: Array) -> Array:
    """Return how many of ascending numbers (n,) are below each of query."""
    return np.searchsorted(ascending, query)


def lowest(x: Array) -> Array:
    """Return -inf in the shape and type of an array."""
    return np.full_like(x, -np.inf)


def scatter(array: Array, index: Array, value: Array | int) -> Array:
    """Return array (B, n), which may be written to, with a value, or values (B, k), at index (B, k)."""
    np.put_along_axis(array, index, value, axis=1)
    return array


def keep(x: Array, mask: Array, size: int) -> Array:
    """Return x (B, n) with -inf where mask (B, >= size) is 0, and from column `size` on; a mask is 0 or -1."""
    out = np.full_like(x, -np.inf)
    out[:, :size] = np.where(mask[:, :size] != 0, x[:, :size], -np.inf)
    return out


def pack(mask: Array) -> Array:
    """Return a mask (B, n) of 0 and -1 as bits: uint32 (B, ceil(n / 32))."""
    bits = np.zeros((len(mask), -(-mask.shape[1] // 32) * 32), bool)
    bits[:, : mask.shape[1]] = mask != 0
    return np.packbits(bits, axis=1, bitorder="little").view("<u4").astype(np.uint32)


def words(x: Array) -> Array:
    """Return bytes (B, 4 n) as words of a packed mask (B, n)."""
    return np.ascontiguousarray(x).view("<u4").astype(np.uint32)


def unpack(words: Array, size: int) -> Array:
    """Return which of `size` bits are set in words (B, ceil(size / 32)): bool (B, size)."""
    bits = np.unpackbits(words.astype("<u4").view(np.uint8), axis=1, bitorder="little")
    return bits[:, :size].astype(bool)


def keep_packed(x: Array, words: Array, size: int, in_place: bool = False) -> Array:
    """Return x (B, n) with -inf where no bit is set in words (B, ceil(size / 32)), and from column `size` on.

    in_place: write to x itself.
    """
    kept = keep(x, unpack(words, size), size)
    if in_place:
        x[...] = kept
    return x if in_place else kept


def doubled(array: Array) -> Array:
    """Return an array with as many rows again behind its own, which are 0."""
    return np.concatenate([array, np.zeros_like(array)])


def put_rows(array: Array, index: Array, values: Array) -> Array:
    """Return an array with values (n, ..) of the host in rows index (n,); the one given is used up."""
    array[index] = values
    return array


def is_integral(x: Array) -> bool:
    """Return whether an array is of whole numbers."""
    return x.dtype.kind in "iu"


def is_floating(x: Array) -> bool:
    """Return whether an array is of floating-point numbers that have -inf: of 16 bits or more."""
    return x.dtype.kind == "f"


def is_concrete(*arrays: Array) -> bool:
    """Return whether the values of arrays can be read now, instead of being traced."""
    return True


def is_recording(*arrays: Array) -> bool:
    """Return whether what is computed from arrays is recorded, with all else as it is now."""
    return False


def without_nan(x: Array) -> Array:
    """Return x with -inf where it is NaN."""
    return np.where(np.isnan(x), -np.inf, x).astype(x.dtype)


def running_max(x: Array) -> Array:
    """Return the largest of each row (B, n) up to each column."""
    return np.maximum.accumulate(x, axis=1)


def sort(x: Array) -> Array:
    """Return each row (B, n) with the largest first."""
    return -np.sort(-x, axis=-1)


def all_known_true(holds: Array) -> bool:
    """Return whether `holds` is so throughout and that can be known now: False where values are only traced."""
    return bool(holds.all())


def to_device(array: Array, like: Array) -> Array:
    """Return an array of the host where `like` is."""
    return np.asarray(array)


def to_host(array: Array) -> Array:
    """Return an array on the host, once it is there."""
    return np.asarray(array)


where = np.where
concatenate = np.concatenate
exp = np.exp
