"""The same search in JAX, compiled whole: the table is an argument of the jitted function, not a constant in it."""

import jax
import jax.numpy as jnp
import numpy as np

import maskwright as mw
from maskwright.runtime import jax_ops
from maskwright.runtime.decode import beam_search

batch, beams, vocab, length = 2, 5, 64, 4
keys = jax.random.split(jax.random.key(0), 3)
weights = {
    "embed": jax.random.normal(keys[0], (vocab, 32)),
    "mix": jax.random.normal(keys[1], (32, 32)) / 6,
    "head": jax.random.normal(keys[2], (32, vocab)),
}


@jax.jit
def recommend(dev, weights, users):
    """Return the best semantic IDs of each user (B, 32)."""

    def step(tokens, hidden, t):
        hidden = jnp.tanh(hidden @ weights["mix"] + weights["embed"][tokens])
        return hidden @ weights["head"], hidden

    cache = jnp.repeat(users, beams, axis=0)
    return beam_search(step, cache, dev, ops=jax_ops, batch=batch, beams=beams, max_tokens=length)


catalogue = np.random.default_rng(0).integers(0, vocab, (1000, length))
table = mw.compile_sids(catalogue, vocab_size=vocab)
out = recommend(jax_ops.to_device(table), weights, jax.random.normal(jax.random.key(1), (batch, 32)))
print(out.tokens)
print("all in the catalogue:", table.contains(np.asarray(out.tokens).reshape(-1, length)).all())
