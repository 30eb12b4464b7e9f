"""A small model drafts, a large one reads the draft in one pass; what is written is the large one's, under a table."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import maskwright as mw
from maskwright.runtime import torch_ops
from maskwright.runtime.decode import speculative_sample
from maskwright.runtime.integrations.reader import TransformersReader

torch.set_num_threads(1)  # models this small are faster so
words = [b"<end>", *(bytes([b]) for b in range(256)), b"the ", b"cat ", b"dog ", b"sat ", b"on ", b"a ", b"mat "]
vocab = mw.Vocabulary.from_bytes(words, eos=0)
table = mw.compile_regex(r"((the|a) (cat|dog|mat|[a-z]{3,6}) (sat|ran|lay) (on|by) ){2,4}", vocab)


def llama(layers):
    """Return a model that knows nothing, as deep as this."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=vocab.size, hidden_size=64, intermediate_size=128, num_hidden_layers=layers, num_attention_heads=4,
        bos_token_id=None, eos_token_id=0, pad_token_id=0, initializer_range=0.1,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


large, small = llama(6), llama(2)
small.load_state_dict(large.state_dict(), strict=False)  # the first layers of the large one: a draft for free
target, draft = TransformersReader(large), TransformersReader(small)
dev = torch_ops.to_device(table, distances=True)
options = {"ops": torch_ops, "prompts": [vocab.encode("Once "), vocab.encode("upon a time ")], "max_tokens": 60}


def report(name, found):
    """Print what a run took."""
    rate = found.accepted.sum() / max(1, found.tried.sum())
    print(f"{name:24} {found.lengths.sum().item():6} {found.calls:7} {found.draft_calls:7} {rate:9.2f}")


print("draft                    tokens   large   small  accepted")
for branches in ((), (1, 1), (1, 1, 1, 1), (2, 2, 1)):
    random = torch.Generator().manual_seed(0)
    report(str(branches), speculative_sample(target, draft, dev, random, branches=branches, **options))

# what must follow is taken at once, also inside a draft
random = torch.Generator().manual_seed(0)
found = speculative_sample(
    target, draft, None, random, branches=(1, 1, 1, 1), table=table, vocabulary=vocab, **options
)  # fmt: skip
report("(1, 1, 1, 1) and jumps", found)
for row in found.tokens.tolist():
    print(vocab.decode(t for t in row if t >= 0).decode())

# at temperature 0 it is what the large model alone would write
greedy = [speculative_sample(target, draft, dev, None, branches=b, temperature=0, **options) for b in ((), (3, 2))]
assert torch.equal(greedy[0].tokens, greedy[1].tokens)
