"""A pydantic model to JSON that always fits it, whatever a language model prefers: here, one that knows nothing."""

from typing import Literal

import numpy as np
from pydantic import BaseModel, Field

import maskwright as mw


class Line(BaseModel, extra="forbid"):  # else further members, of any kind, may follow
    item: Literal["apple", "pear", "plum"]
    count: int = Field(ge=1, le=99)


class Order(BaseModel, extra="forbid"):
    customer: str = Field(min_length=1, max_length=12)
    lines: list[Line] = Field(min_length=1, max_length=3)
    note: str | None
    replaces: "Order | None" = None


# what each token id spells; for a real tokenizer, Vocabulary.from_transformers(tok) or Vocabulary.from_file(path)
words = [b"<end>", *(bytes([b]) for b in range(256)), b'{"', b'": ', b'", "', b"null", b"}]", b"apple", b"count"]
vocab = mw.Vocabulary.from_bytes(words, eos=0)
table = mw.compile_json_schema(Order, vocab, whitespace=(", ", ": "), ascii=True)
print(table)

rng = np.random.default_rng(1)
for _ in range(3):
    matcher, text = mw.Matcher(table, max_tokens=150), b""  # complete within 150 tokens, always
    while not matcher.is_finished:
        bits = np.unpackbits(matcher.mask().view(np.uint8), count=vocab.size, bitorder="little")
        token = int(np.argmax(np.where(bits, rng.normal(size=vocab.size), -np.inf)))  # a model's logits, masked
        matcher.advance(token)
        text += words[token] if token != vocab.eos else b""
    print(text.decode())
    print("   ", repr(Order.model_validate_json(text)))
