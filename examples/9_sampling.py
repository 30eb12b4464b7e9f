"""Sampling item names as the model itself would, and how far plain masking is from that."""

from itertools import pairwise

import torch

import maskwright as mw
from maskwright.runtime import torch_ops
from maskwright.runtime.decode import sample_sequences, sample_unbiased

words = ["<end>", "used", "soccer", "running", "shoes", "gloves", "shirt"]
names = ["used soccer shoes", "used shirt", "running shoes", "soccer gloves"]
table = mw.compile_sequences([[words.index(w) for w in name.split()] for name in names], vocab_size=7, eos=0)
dev = torch_ops.to_device(table)

# a model that knows of one word what comes next: most of what begins with "soccer" would be "soccer shoes"
follows = torch.tensor([
    # end   used  soccer running shoes gloves shirt
    [0.00, 0.30, 0.50, 0.20, 0.00, 0.00, 0.00],  # at the beginning
    [0.00, 0.00, 0.80, 0.05, 0.00, 0.00, 0.15],  # after "used"
    [0.00, 0.00, 0.00, 0.00, 0.94, 0.06, 0.00],
    [0.00, 0.00, 0.00, 0.00, 0.80, 0.00, 0.20],
    [0.90, 0.05, 0.00, 0.00, 0.00, 0.00, 0.05],
    [0.90, 0.05, 0.00, 0.00, 0.00, 0.00, 0.05],
    [0.90, 0.05, 0.00, 0.00, 0.00, 0.05, 0.00],
])  # fmt: skip


def step(tokens, cache, t):
    """Return logits (N, V) after the tokens chosen at t - 1."""
    return follows.log()[tokens], cache


def probability(name):
    """Return what the model says of a whole name."""
    path = [0, *(words.index(w) for w in name.split()), 0]
    return torch.stack([follows[a, b] for a, b in pairwise(path)]).prod()


def shares(tokens):
    """Return how often each name was drawn: tokens (N, L)."""
    drawn = [" ".join(words[t] for t in row if t >= 0) for row in tokens.tolist()]
    return [drawn.count(name) / len(drawn) for name in names]


random, draws = torch.Generator().manual_seed(0), 10_000
options = {"ops": torch_ops, "batch": draws, "max_tokens": 3}
masked = sample_sequences(step, None, dev, random, **options)
unbiased = sample_unbiased(step, None, dev, random, candidates=8, **options)
model = torch.stack([probability(name) for name in names])
columns = zip(names, (model / model.sum()).tolist(), shares(masked.tokens[:, 0]), shares(unbiased.tokens), strict=True)
print(f"{'':20} model  masked  unbiased")
for name, *column in columns:
    print(f"{name:20} {column[0]:5.3f}  {column[1]:5.3f}   {column[2]:5.3f}")
needed = unbiased.candidates.double().mean()
print(f"{needed:.2f} candidates a name, since only {model.sum():.2f} of what the model would write is in the set")
