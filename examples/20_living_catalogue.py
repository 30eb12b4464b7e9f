"""A shop that changes while it is decoded with: a filter for each request, an item sold out, one added, and a crash."""

import tempfile
from pathlib import Path

import numpy as np
import torch

import maskwright as mw
from maskwright.runtime import torch_ops
from maskwright.runtime.decode import beam_search

V, L = 256, 4
rng = np.random.default_rng(0)
codes = rng.integers(0, V, (50_000, L))
catalogue = mw.Catalogue.of(codes, [f"item-{i}" for i in range(50_000)], vocab_size=V, kind="matrix")
price = rng.integers(1, 1000, len(codes))  # a column over the items, in their order
follows = torch.randn(L, V, V, generator=torch.Generator().manual_seed(0))  # a model: what comes after each token


def step(tokens, cache, t):
    """Return logits (N, V) after the tokens chosen at t - 1."""
    return follows[t, tokens], cache


def search(dev, batch=1):
    """Return the best beams of each row of a batch."""
    return beam_search(step, None, dev, ops=torch_ops, batch=batch, beams=3, max_tokens=L)


log = Path(tempfile.mkdtemp()) / "updates.log"  # for as long as the catalogue lives, in earnest
now = catalogue.live(capacity=1000, log=log)
dev = torch_ops.to_device(now.table)

cheap, few = now.filter(price < 50), now.filter(rng.random(len(codes)) < 0.01)
filters = [cheap, cheap & few]
found = search(torch_ops.with_filters(dev, filters), batch=2)
print("cheap items, and a few of them:", now.items(found, filters=filters))

first = search(dev)
best = now.items(first)[0][0]
print("best:", best)
now.delete([best])  # sold out
new = codes[int(best.removeprefix("item-"))].copy()
new[-1] = (new[-1] + 1) % V
now.insert([new], ["item-from-today"])  # the model was trained before it came
price = np.append(price, 20)  # it has the next row of each column

then = now.publish()
dev_now = torch_ops.with_snapshot(dev, then.table)  # nothing is compiled again, and the base is not copied
print("now:", then.items(search(dev_now))[0])
cheap = then.filter(price < 50)
print("cheap now:", then.items(search(torch_ops.with_filters(dev_now, [cheap])), filters=[cheap])[0])
print("a search that began before goes on as it was:", now.items(search(dev))[0][0] == best)

then.close()  # or the process ends in the middle: each update was on the disk before the call returned
after = catalogue.live(capacity=1000, log=log)
print("after a crash:", after.items(search(torch_ops.to_device(after.table)))[0])
