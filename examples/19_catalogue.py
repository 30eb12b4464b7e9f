"""A catalogue from Parquet to items: codes inside a text vocabulary, beams, and training under the constraint."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

import maskwright as mw
from maskwright.runtime import torch_ops
from maskwright.runtime.decode import beam_search

torch.manual_seed(0)
text, codes, levels = 1000, 64, 3  # tokens of text, codes of a level, levels
vocab = text + levels * codes
sids = np.random.default_rng(0).integers(0, codes, (5000, levels))
Path("items").mkdir()
for part in range(2):  # as a job that makes IDs leaves them
    rows = slice(2500 * part, 2500 * (part + 1))
    columns = {"item": [f"item-{i}" for i in range(rows.start, rows.stop)], "sid": sids[rows].tolist()}
    pq.write_table(pa.table(columns), f"items/part-{part}.parquet")

offsets = [text + codes * level for level in range(levels)]
catalogue = mw.Catalogue.from_parquet("items", vocab, sids="sid", items="item", offsets=offsets)
catalogue.save("shop.catalogue")
print(mw.Catalogue.load("shop.catalogue"))
dev = torch_ops.to_device(catalogue.table)  # once

embed, cell, head = torch.nn.Embedding(vocab, 32), torch.nn.GRUCell(32, 32), torch.nn.Linear(32, vocab)
users = torch.randn(2, 32)  # what is known of each user


def step(tokens, cache, t):
    """Return logits (B * M, V) and the cache after the tokens chosen at t - 1."""
    hidden = cell(embed(tokens), cache)
    return head(hidden), hidden


def recommend():
    """Return the best pairs of item and score for each user."""
    with torch.inference_mode():
        beams = beam_search(
            step, users.repeat_interleave(20, dim=0), dev, ops=torch_ops, batch=2, beams=20, max_tokens=levels
        )
    return catalogue.ranked(beams, limit=3)


def logits_of(tokens):
    """Return logits (B, L, V) of all positions of sequences (B, L)."""
    before = torch.cat([torch.zeros_like(tokens[:, :1]), tokens[:, :-1]], dim=1)
    hidden, found = users, []
    for t in range(levels):
        hidden = cell(embed(before[:, t]), hidden)
        found.append(head(hidden))
    return torch.stack(found, dim=1)


print("before:", recommend()[0])
liked = catalogue.code_tokens.tokens(sids[[7, 42]])  # user 0 likes item 7, user 1 item 42
liked = torch.from_numpy(liked)
optimizer = torch.optim.Adam([*embed.parameters(), *cell.parameters(), *head.parameters()], lr=0.02)
for _ in range(60):  # on the policy that is served: the softmax of what is allowed
    loss = -torch_ops.log_probs(dev, logits_of(liked), liked).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("after: ", recommend()[0])
print("found: ", [row[0][0] for row in recommend()])
