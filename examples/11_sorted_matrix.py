"""A sorted matrix of item IDs in place of a table: nothing is built, and a file of it is opened as it is."""

import tempfile
from pathlib import Path

import numpy as np
import torch

import maskwright as mw
from maskwright.runtime import torch_ops
from maskwright.runtime.decode import beam_search, sample_sequences

V, L = 256, 4
items = np.random.default_rng(0).integers(0, V, (50_000, L))  # one row an item, in any order
matrix = mw.sort_sids(items, vocab_size=V)
print(matrix, "- the longest interval at each depth:", matrix.widths)

follows = torch.randn(L, V, V, generator=torch.Generator().manual_seed(0))  # a model: what comes after each token


def step(tokens, cache, t):
    """Return logits (N, V) after the tokens chosen at t - 1."""
    return follows[t, tokens], cache


dev = torch_ops.to_device(matrix)
options = {"ops": torch_ops, "batch": 1, "max_tokens": L}
beams = beam_search(step, None, dev, beams=3, **options)
for tokens, score, rows in zip(beams.tokens[0], beams.scores[0], matrix.input_rows(beams.states[0]), strict=True):
    print(tokens.tolist(), f"{score:.2f}", "item", rows.tolist())

table = torch_ops.to_device(mw.compile_sids(items, V))
same = beam_search(step, None, table, beams=3, **options)
print("with a table:", "the same" if torch.equal(beams.tokens, same.tokens) else "other sequences")
drawn = sample_sequences(step, None, dev, torch.Generator().manual_seed(0), samples=1000, **options)
print("samples in the set:", int(torch_ops.contains(dev, drawn.tokens[0]).sum()))

with tempfile.TemporaryDirectory() as folder:  # the next process: what is sorted is not sorted again
    path = Path(folder) / "sids.npy"
    np.save(path, matrix.sids)
    again = mw.sort_sids(np.load(path, mmap_mode="r"), vocab_size=V)
    print("from a file:", again)
