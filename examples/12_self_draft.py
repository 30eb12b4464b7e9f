"""Self-drafting: one pass of a model over its prompt, and a small head writes the semantic IDs."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import maskwright as mw
from maskwright.runtime import torch_ops
from maskwright.runtime.integrations.self_draft import DraftHead, draft_loss, prefill_of, self_draft_search

torch.set_num_threads(1)
torch.manual_seed(0)
CODES, LEVELS, ITEMS = 16, 3, 60
config = LlamaConfig(
    vocab_size=ITEMS + 1, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
    bos_token_id=None, eos_token_id=None, pad_token_id=0,
)  # fmt: skip
model = LlamaForCausalLM(config)
head = DraftHead(config.hidden_size, CODES, LEVELS, deviation=config.initializer_range)
sids = torch.randint(0, CODES, (ITEMS, LEVELS))
dev = torch_ops.to_device(mw.compile_sids(sids.numpy(), CODES))


def batch(rows):
    """Return histories of 2 to 4 items, padded on the right, and what comes next: the last item's number times 7."""
    ids = torch.randint(1, ITEMS + 1, (rows, 4))
    mask = torch.arange(4) < torch.randint(2, 5, (rows, 1))
    last = ids.gather(1, mask.sum(dim=1, keepdim=True) - 1)[:, 0]
    return ids * mask, mask, 7 * last % ITEMS


optimizer = torch.optim.AdamW([*model.parameters(), *head.parameters()], lr=5e-3)
for step in range(201):
    ids, mask, item = batch(64)
    loss = draft_loss(head, prefill_of(model, ids, mask)(head.placeholders), sids[item])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 100 == 0:
        print(f"step {step:3}: loss {loss.item():.3f}")

calls = []
model.base_model.register_forward_pre_hook(lambda *_: calls.append(1))
ids, mask, item = batch(200)
model.eval()
print("\nverified      right  drafts that exist  passes of the model")
for verify in ("none", "end", "step"):
    calls.clear()
    found = self_draft_search(head, prefill_of(model, ids, mask), dev, beams=10, verify=verify)
    right = (found.tokens[:, 0] == sids[item]).all(dim=1).float().mean()
    exist = torch_ops.contains(dev, found.tokens.clamp(min=0).flatten(0, 1)).view(found.valid.shape) & found.valid
    print(f"{verify:12} {right:6.0%} {exist.float().mean():18.0%} {len(calls):20}")
