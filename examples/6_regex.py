"""A regular expression over a tokenizer's tokens: compile it, follow it token by token, save it and load it."""

import tempfile
from pathlib import Path

import numpy as np

import maskwright as mw

# what each token id spells; for a real tokenizer, Vocabulary.from_transformers(tok) or Vocabulary.from_file(path)
words = [b"<end>", *(bytes([b]) for b in range(256)), b"20", b"-0", b"-1", b"19", b"2024", b" noon"]
vocab = mw.Vocabulary.from_bytes(words, eos=0)
table = mw.compile_regex(r"(19|20)[0-9]{2}-(0[1-9]|1[0-2]) at noon", vocab)
print(table)

matcher = mw.Matcher(table, vocab)
rng = np.random.default_rng(3)
while not matcher.is_finished:
    bits = np.unpackbits(matcher.mask().view(np.uint8), count=vocab.size, bitorder="little")
    logits = np.where(bits, rng.normal(size=vocab.size), -np.inf)  # a model's, with all that is not allowed masked
    token = int(np.argmax(logits))
    matcher.advance(token)
    forced = matcher.forced_tokens()  # what must follow anyway, without asking the model
    for following in forced:
        matcher.advance(following)
    print(f"{words[token]!r:8} of {bits.sum()} allowed, then forced: {[words[t] for t in forced]}")

with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "date.safetensors"
    table.save(path)
    loaded = mw.TransitionTable.load(path, vocabulary=vocab)
print("loaded:", loaded.accepts([*vocab.encode("2024-07 at noon"), vocab.eos]))
