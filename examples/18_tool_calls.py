"""Free text in which a model may call tools: each call fits the tool's schema, and the text around it is its own."""

import json
import re

import jsonschema
import numpy as np

import maskwright as mw

tools = {
    "weather": {
        "type": "object",
        "properties": {
            "city": {"type": "string", "pattern": "^[A-Z][a-z]{2,9}$"},
            "days": {"type": "integer", "enum": [1, 3, 7]},
        },
        "required": ["city", "days"],
        "additionalProperties": False,
    },
    "convert": {
        "type": "object",
        "properties": {
            "amount": {"type": "integer", "minimum": 1, "maximum": 9999},
            "to": {"enum": ["EUR", "USD", "JPY"]},
        },
        "required": ["amount", "to"],
        "additionalProperties": False,
    },
}

# wherever "<call:" occurs, one of the tools follows, and then free text again; two or three of them in all
tags = [mw.Tag(f"<call:{name}>", "</call>", schema=schema) for name, schema in tools.items()]
text_with_calls = mw.TaggedText(tags, triggers=["<call:"], at_least=2, at_most=3)

pieces = [b"<call:", b"</call>", b"weather", b"convert", b'{"', b'": ', b'", "', b'"}', b" the", b" and", b" so", b". "]
words = [b"<end>", *(bytes([b]) for b in range(256)), *pieces]
vocab = mw.Vocabulary.from_bytes(words, eos=0)
table = mw.compile_structural_tag(text_with_calls, vocab, whitespace=(", ", ": "))

likes = np.full(vocab.size, -9.0)  # a model's logits, here of one that writes a few words and likes to call
likes[[1 + b for b in b"abcdefghijklmnopqrstuvwxyz"]] = 0.0
likes[[words.index(piece) for piece in (b"<call:", b" the", b" and", b" so", b". ")]] = 2.0
likes[0] = 1.0
rng = np.random.default_rng(7)
for _ in range(4):
    matcher, text = mw.Matcher(table, max_tokens=90), b""  # complete within 90 tokens, both calls included
    while not matcher.is_finished:
        bits = np.unpackbits(matcher.mask().view(np.uint8), count=vocab.size, bitorder="little")
        token = int(np.argmax(np.where(bits, likes + rng.gumbel(size=vocab.size), -np.inf)))
        matcher.advance(token)
        text += words[token] if token != vocab.eos else b""
    print(text.decode())
    calls = re.findall(r"<call:(\w+)>(.*?)</call>", text.decode())  # no string of these tools has "</call>" within
    assert 2 <= len(calls) <= 3
    assert text.count(b"<call:") == len(calls)
    for name, arguments in calls:
        jsonschema.validate(json.loads(arguments), tools[name])
        print(f"    {name} {json.loads(arguments)}")
