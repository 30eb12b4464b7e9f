"""A catalogue that changes while it is decoded with: a filter for each request, an item sold out, an item added."""

import numpy as np
import torch

import maskwright as mw
from maskwright.runtime import torch_ops
from maskwright.runtime.decode import beam_search

V, L = 256, 4
rng = np.random.default_rng(0)
sids = rng.integers(0, V, (50_000, L))  # one row an item
matrix = mw.sort_sids(sids, vocab_size=V)
follows = torch.randn(L, V, V, generator=torch.Generator().manual_seed(0))  # a model: what comes after each token
options = {"ops": torch_ops, "beams": 3, "max_length": L}


def step(tokens, cache, t):
    """Return logits (N, V) after the tokens chosen at t - 1."""
    return follows[t, tokens], cache


price = rng.integers(1, 1000, len(sids))
cheap, few = mw.filter_sids(matrix, price < 50), mw.filter_sids(matrix, rng.random(len(sids)) < 0.01)
filters = [cheap, cheap & few]
dev = torch_ops.put(matrix)
found = beam_search(step, None, torch_ops.filtered(dev, filters), batch=2, **options)
for row, kept in enumerate(filters):
    items = [rows.tolist() for rows in kept.input_rows(found.states[row])]
    print(kept, "-> items", items, "prices", [price[rows].tolist() for rows in items])

live = mw.LiveSids(matrix, capacity=1000)
shown = torch_ops.put(live.publish())
first = beam_search(step, None, shown, batch=1, **options)
best = first.tokens[0, 0]
print("best", best.tolist())
live.delete([best.tolist()])  # sold out
new = [*best[:3].tolist(), (int(best[3]) + 1) % V]
live.insert([new])
snapshot = live.publish()
now = torch_ops.refreshed(shown, snapshot)
again = beam_search(step, None, now, batch=1, **options)
print("sold out, so the best is", again.tokens[0, 0].tolist())
print("the new item is in the set:", bool(snapshot.contains([new])[0]))
kept = beam_search(step, None, shown, batch=1, **options)
print("a search that began before goes on as it was:", torch.equal(kept.tokens, first.tokens))
