"""A kernel that masks logits by packed words on a TPU: it reads the logits once, and unfolds words in registers."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.experimental import pallas as pl

from .arrays import unpack
from .tpu_layout import LANES
from .tpu_parts import Ref, Scalar, shape_of

_ROWS = 16  # of a block, a tile of 16-bit numbers
_WORDS = 2 * LANES  # of a block
_COLUMNS = 32 * _WORDS
AT_ONCE = 32  # blocks of 128 columns that a loop over them is written out for
_LOWEST_HALF = int(np.array(-np.inf, np.float16).view(np.int16))


def takes(logits: Array) -> bool:
    """Return whether the kernel takes logits: some, of 16 or 32 bits."""
    return logits.size > 0 and logits.dtype in (jnp.float32, jnp.bfloat16, jnp.float16)


@jax.custom_jvp
def keep_words(logits: Array, words: Array) -> Array:
    """Return logits (B, C) with -inf where no bit is set in words (B, W): token 32 * w + i is bit i of word w.

    Of columns from 32 W on none is set. What is kept is not changed by a bit.
    """
    n, columns = logits.shape
    blocks = -(-columns // _COLUMNS)
    words = words[:, : blocks * _WORDS]
    words = jnp.pad(words, ((0, 0), (0, blocks * _WORDS - words.shape[1])))

    # a TPU has no registers of float16: of these, kernels move 16 bits as an integer
    wide, lowest = (jnp.int32, _LOWEST_HALF) if logits.dtype == jnp.float16 else (jnp.float32, -np.inf)
    given = lax.bitcast_convert_type(logits, jnp.int16) if logits.dtype == jnp.float16 else logits

    def kernel(words: Ref, logits: Ref, out: Ref) -> None:
        lane = lax.broadcasted_iota(jnp.int32, (_ROWS, LANES), 1)
        bit = (lane & 31).astype(jnp.uint32)
        for part in range(_WORDS // LANES):
            some = words[:, part * LANES : (part + 1) * LANES]

            def mask(group: Scalar, _: None, part: int = part, some: Array = some) -> None:
                for each in range(AT_ONCE):
                    block = group * AT_ONCE + each
                    at = pl.ds(pl.multiple_of((part * 32 + block) * LANES, LANES), LANES)
                    word = jnp.take_along_axis(some, 4 * block + (lane >> 5), axis=1, mode="promise_in_bounds")
                    kept = ((word >> bit) & 1) != 0
                    out[:, at] = jnp.where(kept, logits[:, at].astype(wide), lowest).astype(out.dtype)

            lax.fori_loop(0, 32 // AT_ONCE, mask, None)

    masked: Array = pl.pallas_call(
        kernel,
        grid=(-(-n // _ROWS), blocks),
        in_specs=[
            pl.BlockSpec((_ROWS, _WORDS), lambda row, column: (row, column)),
            pl.BlockSpec((_ROWS, _COLUMNS), lambda row, column: (row, column)),
        ],
        out_specs=pl.BlockSpec((_ROWS, _COLUMNS), lambda row, column: (row, column)),
        out_shape=shape_of(given.shape, given.dtype),
        name="keep_words",
    )(words, given)
    return masked if given is logits else lax.bitcast_convert_type(masked, logits.dtype)


@keep_words.defjvp
def _tangent(primals: tuple[Array, Array], tangents: tuple[Array, Array]) -> tuple[Array, Array]:
    """Return the masked logits, and the tangents of what is kept."""
    logits, words = primals
    size = min(logits.shape[1], 32 * words.shape[1])
    kept = unpack(words, size)
    kept = jnp.pad(kept, ((0, 0), (0, logits.shape[1] - size)))
    return keep_words(logits, words), jnp.where(kept, tangents[0], 0)
