"""Masks in a decoding loop of your own, in PyTorch: greedy decoding of three rows at once."""

import numpy as np
import torch

import maskwright as mw
from maskwright.runtime import torch_ops

torch.manual_seed(0)
catalogue = np.random.default_rng(0).integers(0, 64, (1000, 4))
table = mw.compile_sids(catalogue, vocab_size=64)
dev = torch_ops.to_device(table)

state = torch_ops.start(dev, batch=3)
written = []
for _ in range(4):
    logits = torch.randn(3, 64)  # your model's
    tokens = torch_ops.mask_logits(dev, logits, state).argmax(dim=-1)
    state = torch_ops.advance(dev, state, tokens)
    written.append(tokens)

sids = torch.stack(written, dim=1)
print(sids)
print("all in the catalogue:", torch_ops.contains(dev, sids).all().item())
