"""Beam search with one key-value cache for all beams: what transformers finds, in a fraction of its cache."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import maskwright as mw
from maskwright.runtime.integrations.transformers import ConstraintLogitsProcessor
from maskwright.runtime.integrations.tree_beams import tree_beam_search

torch.manual_seed(0)
config = LlamaConfig(
    vocab_size=500, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
    bos_token_id=None, eos_token_id=0, pad_token_id=0, initializer_range=0.3,
)  # fmt: skip
model = LlamaForCausalLM(config).eval()
sids = torch.randint(1, 500, (5000, 6))
# what generate would be given; without it, nothing is constrained
constraint = ConstraintLogitsProcessor(mw.compile_sids(sids.numpy(), 500, eos=0))


def report(beams, length):
    """Print how many positions of keys and values a search held, after a check that generate finds the same."""
    ids = torch.randint(1, 500, (2, length))
    mask = torch.ones_like(ids)
    mask[1, : length // 4] = 0  # the second prompt is shorter, and padded on the left
    options = {"max_new_tokens": 7, "num_return_sequences": 3, "logits_processor": [constraint]}
    found = tree_beam_search(model, ids, mask, beams=beams, collect=2, **options)
    expected = model.generate(ids, attention_mask=mask, num_beams=beams, **options)
    assert torch.equal(found.sequences, expected)
    members = set(map(tuple, sids.tolist()))
    assert all(tuple(row) in members for row in found.sequences[:, length:-1].tolist())
    entries = found.entries
    print(f"{beams:5} {length:7} {entries.tree:6} {entries.copies:7} {entries.copies / entries.tree:6.1f}")
    return found


print("beams  prompt   tree  copies  ratio")
for length in (16, 256, 1024):
    for beams in (3, 9, 15):
        found = report(beams, length)
print("best of the last:", found.sequences[0, length:-1].tolist(), f"{found.scores[0]:.3f}")
