"""Queries by a grammar with a database's own tables and columns in it; SQLite judges every one of them."""

import sqlite3

import numpy as np

import maskwright as mw

database = sqlite3.connect(":memory:")
database.executescript("""
create table books (title, author, year, price);
insert into books values ('Emma', 'Austen', 1815, 9.5), ('Ulysses', 'Joyce', 1922, 14), ('Walden', 'Thoreau', 1854, 11);
""")
columns = [row[1] for row in database.execute("pragma table_info(books)")]

# keywords are set off by spaces that are written out: there is no lexer, so "select" and "title" could touch otherwise
grammar = rf"""
start: "SELECT " (_list{{item}} | "*") " FROM books" [" WHERE " condition] [order] [" LIMIT " INT]
order: " ORDER BY " COLUMN [" DESC"]
_list{{x}}: x (", " x)*
item: sum | ("min" | "max" | "count") "(" COLUMN ")"
condition: test ((" AND " | " OR ") test)*
test: sum (" = " | " < " | " > ") sum | COLUMN " LIKE " STRING | "(" condition ")"
    | COLUMN " IN (" ("SELECT " COLUMN " FROM books WHERE " condition | _list{{value}}) ")"
sum: value ((" + " | " - ") value)*
value: COLUMN | INT | STRING | "(" sum ")"
COLUMN: {" | ".join(f'"{name}"' for name in columns)}
INT: /[1-9][0-9]{{0,3}}/
STRING: /'[A-Za-z%]{{1,8}}'/
"""

pieces = [b"SELECT ", b" FROM", b" books", b" WHERE ", b" AND ", b" OR ", b" LIKE ", b" IN (", b" LIMIT ", b"%'", b"19"]
words = [b"<end>", *(bytes([b]) for b in range(256)), *pieces, *(name.encode() for name in columns)]
vocab = mw.Vocabulary.from_bytes(words, eos=0)
table = mw.compile_grammar(grammar, vocab)

rng = np.random.default_rng(4)
for _ in range(6):
    matcher, text = mw.Matcher(table, max_tokens=60), b""
    while not matcher.is_finished:
        bits = np.unpackbits(matcher.mask().view(np.uint8), count=vocab.size, bitorder="little")
        token = int(np.argmax(np.where(bits, rng.normal(size=vocab.size), -np.inf)))  # a model's logits, masked
        matcher.advance(token)
        text += words[token] if token != vocab.eos else b""
    print(text.decode())
    print("   ", len(database.execute(text.decode()).fetchall()), "rows")
