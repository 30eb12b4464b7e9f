"""Arithmetic by a grammar: whatever a model prefers, Python can evaluate what comes out, and it ends in time."""

import numpy as np

import maskwright as mw

grammar = r"""
start: sum
sum: product | sum ("+" | "-") product
product: factor | product "*" factor
factor: NUMBER | "-" factor | "(" sum ")"
NUMBER: /0|[1-9][0-9]{0,2}/
%ignore " "
"""

# what each token id spells; for a real tokenizer, Vocabulary.from_transformers(tok) or Vocabulary.from_file(path)
words = [b"<end>", *(bytes([b]) for b in range(256)), b" + ", b" * ", b" - ", b"((", b"))", b" (", b"12", b"100"]
vocab = mw.Vocabulary.from_bytes(words, eos=0)
table = mw.compile_grammar(grammar, vocab)

rng = np.random.default_rng(2)
for _ in range(5):
    matcher, text = mw.Matcher(table, max_tokens=40), b""  # complete within 40 tokens, brackets included
    while not matcher.is_finished:
        bits = np.unpackbits(matcher.mask().view(np.uint8), count=vocab.size, bitorder="little")
        logits = np.where(bits, rng.normal(size=vocab.size), -np.inf)  # a model's, with all that is not allowed masked
        logits[1 + ord(" ")] -= 5
        token = int(np.argmax(logits))
        matcher.advance(token)
        text += words[token] if token != vocab.eos else b""
    print(f"{text.decode()} = {eval(text)}")
