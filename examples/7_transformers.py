"""A regular expression in Hugging Face transformers: a logits processor, and beam search that carries its states."""

import re

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

import maskwright as mw
from maskwright.runtime.integrations.transformers import ConstraintLogitsProcessor, constrained_generate

# a tokenizer trained on a few words and a model with random weights: what they write is the constraint's doing alone
tok = Tokenizer(models.BPE())
tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
tok.decoder = decoders.ByteLevel()
letters = pre_tokenizers.ByteLevel.alphabet()
tok.train_from_iterator(
    ["The train to Oslo leaves at 10:45, the bus to Rome at 9:05."] * 4,
    trainers.BpeTrainer(vocab_size=400, initial_alphabet=letters, special_tokens=["<end>"], show_progress=False),
)
tokenizer = PreTrainedTokenizerFast(tokenizer_object=tok, eos_token="<end>", pad_token="<end>", padding_side="left")
torch.manual_seed(0)
config = LlamaConfig(
    vocab_size=512, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
    bos_token_id=None, eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id, initializer_range=0.3,
)  # fmt: skip
model = LlamaForCausalLM(config).eval()

pattern = r"(train|bus|plane) to [A-Z][a-z]{2,7} at ([01]?\d|2[0-3]):[0-5]\d"
table = mw.compile_regex(pattern, mw.Vocabulary.from_transformers(tokenizer, size=config.vocab_size), flags="a")
inputs = tokenizer(["Which one?", "When does the bus leave?"], return_tensors="pt", padding=True)
inputs.pop("token_type_ids", None)
length = inputs["input_ids"].shape[1]


def show(title, out):
    """Print what each row wrote after the prompt, which is a match, always."""
    print(title)
    for text in tokenizer.batch_decode(out[:, length:], skip_special_tokens=True):
        print(f"  {text!r}")
        assert re.fullmatch(pattern, text, re.ASCII), f"{text!r} is no match"


# 30 tokens are enough for a complete match, always; one more is for the end
constraint = ConstraintLogitsProcessor(table, max_tokens=30)
options = {"logits_processor": [constraint], "max_new_tokens": 31}
show("greedy", model.generate(**inputs, **options))
show("sampled", model.generate(**inputs, **options, do_sample=True, top_p=0.9))
show("transformers' beams", model.generate(**inputs, **options, num_beams=4))

# a different constraint for each row, None for no constraint
colours = mw.compile_choices(["red", "green"], mw.Vocabulary.from_transformers(tokenizer, size=config.vocab_size))
rows = ConstraintLogitsProcessor([table, colours], max_tokens=30)
out = model.generate(**inputs, logits_processor=[rows], max_new_tokens=31)
show("a journey", out[:1])
colour = tokenizer.decode(out[1, length:], skip_special_tokens=True)
print(f"and a colour\n  {colour!r}")
assert colour in ("red", "green")

options = {"custom_generate": constrained_generate, "tables": table, "max_new_tokens": 31}
show("exact beams", model.generate(**inputs, **options, num_beams=4, num_return_sequences=2))
