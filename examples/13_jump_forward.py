"""JSON of which most tokens are forced: appended without asking the model, which reads them with what follows."""

import json

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import maskwright as mw
from maskwright.runtime import torch_ops
from maskwright.runtime.decode import count_forced, sample_jumping
from maskwright.runtime.integrations.reader import TransformersReader

# what each token id spells; for a real tokenizer, Vocabulary.from_transformers(tok) or Vocabulary.from_file(path)
words = [b"<end>", *(bytes([b]) for b in range(256)), b'{"', b'": ', b'": "', b'", "', b"name", b"status", b"open"]
vocab = mw.Vocabulary.from_bytes(words, eos=0)
schema = {
    "type": "object",
    "properties": {
        "customer_name": {"type": "string", "maxLength": 8},
        "order_status": {"enum": ["open", "paid", "sent to the customer"]},
        "express_delivery": {"type": "boolean"},
    },
    "required": ["customer_name", "order_status", "express_delivery"],
    "additionalProperties": False,
}
table = mw.compile_json_schema(schema, vocab, whitespace=(", ", ": "), ascii=True)

torch.set_num_threads(1)  # a model this small is faster so
torch.manual_seed(0)
config = LlamaConfig(
    vocab_size=vocab.size, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
    bos_token_id=None, eos_token_id=0, pad_token_id=0, initializer_range=0.3,
)  # fmt: skip
model = TransformersReader(LlamaForCausalLM(config).eval())
prompts = [vocab.encode("An order: "), vocab.encode("As JSON: ")]  # of different lengths
random = torch.Generator().manual_seed(1)
options = {"ops": torch_ops, "prompts": prompts, "max_tokens": 120}
found = sample_jumping(model, table, random, vocabulary=vocab, **options)
for row, forced in zip(found.tokens.tolist(), found.forced, strict=True):
    tokens = [t for t in row if t >= 0]
    text = vocab.decode(tokens).decode()
    assert json.loads(text)["order_status"] in schema["properties"]["order_status"]["enum"]
    print(f"{forced:3} of {len(tokens)} tokens forced: {text}")
print(f"{found.calls} calls of the model for the longest of them, {found.fed} tokens read, prompts included")

# how much that is for texts at hand, without any model
text = b'{"customer_name": "Ada", "order_status": "sent to the customer", "express_delivery": true}'
counted = count_forced(mw.Matcher(table, vocab), text)
print(f"{text.decode()}: {counted.tokens} tokens in {counted.calls} calls")
