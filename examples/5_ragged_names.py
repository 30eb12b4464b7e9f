"""Sequences of different lengths with an end token: entity names, one of which is the prefix of another."""

import torch

import maskwright as mw
from maskwright.runtime import torch_ops
from maskwright.runtime.decode import beam_search

words = ["<end>", "new", "york", "city", "times", "delhi"]
names = ["new york", "new york city", "new york times", "new delhi", "delhi"]
table = mw.compile_sequences([[words.index(w) for w in name.split()] for name in names], vocab_size=len(words), eos=0)

torch.manual_seed(1)
bigrams = torch.randn(len(words), len(words))  # a model: logits from the previous word alone


def step(tokens, cache, t):
    """Return logits (B * M, V)."""
    return bigrams[tokens], cache


out = beam_search(
    step,
    None,
    torch_ops.to_device(table),
    ops=torch_ops,
    batch=1,
    beams=8,
    max_tokens=3,
    start_token=0,
    length_penalty=0.5,
)
for tokens, length, score, valid in zip(out.tokens[0], out.lengths[0], out.scores[0], out.valid[0], strict=True):
    if valid:  # eight beams, five names: three results are flagged as not there
        print(f"{' '.join(words[t] for t in tokens[:length]):16} {score:.2f}")
