"""Python expressions by a grammar, read as it is while a text is written, to any depth of nesting. `ast` judges."""

import ast

import numpy as np

import maskwright as mw

grammar = r"""
start: expr
expr: disjunction [" if " disjunction " else " expr] | "lambda " NAME ": " expr
disjunction: comparison ((" and " | " or ") comparison)*
comparison: sum ((" < " | " == " | " in " | " is not ") sum)*
sum: term ((" + " | " - " | " * " | " // ") term)*
term: "-" term | /[1-9][0-9]{0,3}/ | atom trailer*
trailer: "." NAME | "[" expr "]" | "(" [expr (", " expr)*] ")"
atom: NAME | /'[a-z ]{0,9}'/ | "(" expr ")"
    | "[" [expr (", " expr)*] "]" | "[" expr " for " NAME " in " disjunction [" if " disjunction] "]"
    | "{" [expr ": " expr (", " expr ": " expr)*] "}"
NAME: /(?!(?:and|as|def|del|elif|else|for|from|if|in|is|not|or|pass|try|with)\b)[a-z]{1,4}/
"""

words = [b"<end>", *(bytes([b]) for b in range(256)), b" if ", b" else ", b" for ", b" in ", b"lambda ", b" == ", b", "]
vocab = mw.Vocabulary.from_bytes(words, eos=0)
table = mw.compile_grammar(grammar, vocab)

# without max_tokens nothing makes a text end, so a model must want to: this one closes what is open after 25 tokens
closing = np.zeros(vocab.size)
closing[[vocab.eos, *(1 + ord(c) for c in ")]}x:1' "), words.index(b" in "), words.index(b" else ")]] = range(20, 9, -1)

rng = np.random.default_rng(0)
for _ in range(6):
    matcher, text, tokens = mw.Matcher(table), b"", 0
    while not matcher.is_finished:
        bits = np.unpackbits(matcher.mask().view(np.uint8), count=vocab.size, bitorder="little")
        logits = rng.normal(size=vocab.size) + (closing if tokens > 25 else 0)
        token = int(np.argmax(np.where(bits, logits, -np.inf)))
        matcher.advance(token)
        tokens, text = tokens + 1, text + (words[token] if token != vocab.eos else b"")
    print(f"{text.decode():70} {type(ast.parse(text, mode='eval').body).__name__}")
