"""Beam search with a model that has a cache: a recurrent cell whose hidden state follows its beam."""

import numpy as np
import torch

import maskwright as mw
from maskwright.runtime import torch_ops
from maskwright.runtime.decode import beam_search

torch.manual_seed(0)
batch, beams, vocab, length = 2, 5, 64, 4
catalogue = np.random.default_rng(0).integers(0, vocab, (1000, length))
table = mw.compile_sids(catalogue, vocab_size=vocab)

embed, cell, head = torch.nn.Embedding(vocab, 32), torch.nn.GRUCell(32, 32), torch.nn.Linear(32, vocab)


def step(tokens, cache, t):
    """Return logits (B * M, V) and the cache after the tokens chosen at t - 1."""
    hidden = cell(embed(tokens), cache["hidden"])
    return head(hidden), {"hidden": hidden}


users = torch.randn(batch, 32)  # what is known of each user
cache = {"hidden": users.repeat_interleave(beams, dim=0)}
with torch.inference_mode():
    out = beam_search(
        step,
        cache,
        torch_ops.to_device(table),
        ops=torch_ops,
        batch=batch,
        beams=beams,
        max_tokens=length,
        start_token=0,
    )
for user in range(batch):
    print(f"user {user}:")
    items = table.input_rows(out.states[user])
    for sid, score, rows in zip(out.tokens[user].tolist(), out.scores[user].tolist(), items, strict=True):
        print(f"  {sid}  log-probability {score:.2f}  items {rows.tolist()}")
