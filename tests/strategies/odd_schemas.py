"""Hypothesis strategies for schemas with odd keys and texts, and what judges them: `jsonschema` as ECMA 262 reads."""

from __future__ import annotations

import itertools
import json
import random
import re
from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Any

import numpy as np
from hypothesis import strategies as st

import maskwright as mw
from maskwright.kernels.limits import UNREACHABLE

PIECES = (
    *('"', '","', '":', '": "', '":{"', '": {', '":["', "[", "]", "{", "}", "},", "}}", "]]", "],", "[[", '{"', '["'),
    *("[]", "{}", "}]", '"}', '"]', '"},', '"}],', ",", ", ", ', "', ": ", ":", "\n", "\n  ", "\n    ", '\n    "'),
    *("\n\t", '\n\t\t"', ",\n  ", "},\n", '{\n  "', "[\n", "\n}", "\n  ]", "\\", "\\n", '\\"', "\\u", "\\u00"),
    *("\\u00e9", "\\ud83d", "\\ude00", "\\ud83d\\ude00", "\\/", "\\u0041", "0", "1", "-", "-1", "12", "0.", ".5", "e"),
    *("e5", "E+", "-0", "1.0", "100", "true", "false", "null", "tr", "ue", "nul", "l", "name", " name", "a", "b", "ab"),
    *("abc", "x", "id", "type", "kind", "value", " ", "  ", "é", "日", "😀", "日本", "2024", "2024-", "-05", "T10:"),
    *("Z", ":30", "/", "://", "@", ".", "#"),
)


def some_tokens(count: int, seed: int = 0) -> list[bytes]:
    """Return EOS, all bytes, and longer tokens: pieces of JSON, one or several, some cut through characters."""
    rng = random.Random(seed)
    pieces = [piece.encode() for piece in PIECES]
    pieces += [piece[:n] for piece in pieces for n in range(1, len(piece))]
    longer = dict.fromkeys(pieces)
    while len(longer) < count:
        longer[b"".join(rng.choices(pieces, k=rng.randint(2, 4)))] = None
    kept = [token for token in longer if len(token) > 1]
    rng.shuffle(kept)
    return [b"", *(bytes([b]) for b in range(256)), *kept[:count]]


_KEY_LIKE = (b"a", b"b", b"ab", b"1", b'"a', b'a"', b'"', b"\xc3", b"\xe6")


class Writer:
    """Writes texts with a vocabulary: any tokens that spell them, and any that a table allows."""

    def __init__(self, tokens: Sequence[bytes], seed: int) -> None:
        self.tokens, self.rng = tokens, random.Random(seed)
        self.known = {token: v for v, token in enumerate(tokens) if token}
        self.longest = max(map(len, tokens))

    def spelled(self, text: str) -> list[int]:
        """Return tokens that spell a text, drawn by chance."""
        data, out, at = text.encode(), [], 0
        while at < len(data):
            lengths = [n for n in range(1, self.longest + 1) if data[at : at + n] in self.known]
            n = self.rng.choice(lengths)
            out.append(self.known[data[at : at + n]])
            at += n
        return out

    def written(self, table: mw.TransitionTable) -> str | None:
        """Return a text that a table allows, with a liking for brackets and quotes; None if it gets long."""
        rng, tokens = self.rng, self.tokens
        try:
            shortest = table.to_table().min_length
        except mw.errors.NoTableError:  # of arrays of distinct items, which a matcher follows
            shortest = UNREACHABLE
        limit = None if shortest == UNREACHABLE else shortest + rng.choice([0, 3, 10, 30])
        matcher, out = mw.Matcher(table, max_tokens=limit), b""
        while len(out) < 3000:
            allowed = allowed_by(matcher)
            assert allowed, f"nothing may follow {out!r}"
            if 0 in allowed and (len(allowed) == 1 or rng.random() < 0.3):
                return out.decode()
            others = [v for v in allowed if v]
            choice = rng.random()
            liked = []
            if choice < 0.5:
                liked = [v for v in others if tokens[v][:1] in b'{}[]",:\\']
            elif choice < 0.7:
                liked = [v for v in others if tokens[v] in _KEY_LIKE]
            token = rng.choice(liked or others)
            assert matcher.advance(token)
            out += tokens[token]
        return None


def allowed_by(matcher: mw.Matcher) -> list[int]:
    """Return the tokens that a matcher allows."""
    bits = np.unpackbits(matcher.mask().astype("<u4").view(np.uint8), bitorder="little")
    return list(map(int, np.flatnonzero(bits)))


# ------------------------------------------------------------------------------------------------------------- texts


def dumps(value: Any, ascii: bool, comma: str, colon: str, indent: str | None = None, level: int = 0) -> str:
    """Return a value's text in canonical numbers, and the separators or an indentation."""
    if isinstance(value, float):
        return str(int(value)) if value == int(value) else format(Decimal(repr(value)), "f")
    if not isinstance(value, (list, dict)) or not value:
        return json.dumps(value, ensure_ascii=ascii)
    items = value.values() if isinstance(value, dict) else value
    inside = [dumps(item, ascii, comma, colon, indent, level + 1) for item in items]
    if isinstance(value, dict):
        inside = [json.dumps(key, ensure_ascii=ascii) + colon + text for key, text in zip(value, inside, strict=True)]
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    if indent is None:
        return opening + comma.join(inside) + closing
    line = "\n" + indent * (level + 1)
    return opening + line + ("," + line).join(inside) + "\n" + indent * level + closing


def orders(value: Any) -> Iterator[Any]:
    """Yield a value with its members in every order."""
    if isinstance(value, list):
        yield from map(list, itertools.product(*(list(itertools.islice(orders(item), 6)) for item in value)))
    elif isinstance(value, dict):
        for keys in itertools.permutations(value):
            for items in itertools.product(*(list(itertools.islice(orders(value[key]), 6)) for key in keys)):
                yield dict(zip(keys, items, strict=True))
    else:
        yield value


class TwiceError(Exception):
    """A key occurs twice in an object."""


def parsed(text: str) -> Any:
    """Return a text's value. Raises TwiceError, with the key."""

    def members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        keys = [key for key, _ in pairs]
        for key in keys:
            if keys.count(key) > 1:
                raise TwiceError(key)
        return dict(pairs)

    return json.loads(text, object_pairs_hook=members)


def is_plain(value: Any) -> bool:
    """Whether numbers are what a float can tell apart."""
    if isinstance(value, list):
        return all(map(is_plain, value))
    if isinstance(value, dict):
        return all(map(is_plain, value.values()))
    return not isinstance(value, (int, float)) or value == 0 or 1e-9 < abs(value) < 1e14


class EcmaRe:
    """Python's `re`, with "$" the very end of a text as ECMA 262 has it."""

    def __getattr__(self, name: str) -> Any:
        return getattr(re, name)

    @staticmethod
    def search(pattern: str, text: str) -> Any:
        return re.search(pattern.replace("$", r"\Z"), text)


# ----------------------------------------------------------------------------------------------------------- schemas

KEYS = (
    *("", "a", "ab", "abc", "b", 'a"', "a\\", "a\n", "\0", "é", "éa", "日", "日本", "😀", "a/b"),
    *("\x7f", "\\n", "\u2028", "a b", "\t", "A", "aé", "ab\n"),
)
WORDS = (*KEYS, "null", "1", "xxxxx", 'ab"c', "é😀")
PATTERNS = (
    *("^a", "é", "^[a-c]*$", r"\n", r"^[^\n]{0,2}$", "[^a-z]", "^$", '"', "😀|日", "^(a|ab|abc)$", r"\\", "b$"),
    *(r"^[^\\]*$", r"^[^\x00-\x1f]*$", "^(?!ab)", "[^é]$"),
)
NUMBERS = (0, 1, -1, 2, 10, 100, 255, -128, 0.5, -0.5, 0.01, 1.25, 99.99, 1000000, -7.125)
FORMATS = ("date", "ipv4", "ipv6", "uuid")  # those that jsonschema knows exactly

keys = st.sampled_from(KEYS)
words = st.sampled_from(WORDS)
numbers = st.sampled_from(NUMBERS)
patterns = st.sampled_from(PATTERNS)
scalars = st.one_of(st.none(), st.booleans(), numbers, words)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3),
    max_leaves=4,
)


def _with(optional: dict[str, st.SearchStrategy[Any]], **always: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.fixed_dictionaries(dict(always), optional=optional)


_string = st.just("string")
texts = st.one_of(
    _with({"minLength": st.integers(0, 4), "maxLength": st.integers(0, 6)}, type=_string),
    _with({"pattern": patterns, "maxLength": st.integers(0, 5)}, type=_string),
    _with({"pattern": patterns, "not": _with({}, enum=st.lists(words, min_size=1, max_size=3))}, type=_string),
)
leaves = st.one_of(
    texts,
    texts,
    _with({"maxLength": st.integers(5, 40)}, type=_string, format=st.sampled_from(FORMATS)),
    _with(
        {
            "minimum": numbers,
            "maximum": numbers,
            "exclusiveMaximum": numbers,
            "multipleOf": st.sampled_from([1, 2, 3, 7, 0.5, 0.25, 1000]),
        },
        type=st.sampled_from(["number", "integer"]),
    ),
    st.fixed_dictionaries({"enum": st.lists(values, min_size=1, max_size=4)}),
    st.fixed_dictionaries({"const": values}),
    st.sampled_from([True, {}, {"type": "boolean"}, {"type": ["string", "null", "integer"]}, {"$ref": "#"}]),
)


def _branches(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    arrays = _with(
        {
            "items": inner,
            "prefixItems": st.lists(inner, min_size=1, max_size=3),
            "minItems": st.integers(0, 2),
            "maxItems": st.integers(0, 4),
            "contains": inner,
        },
        type=st.just("array"),
    )
    objects = _with(
        {
            "properties": st.dictionaries(keys, inner, max_size=4),
            "required": st.lists(keys, max_size=2, unique=True),
            "additionalProperties": inner | st.booleans(),
            "patternProperties": st.dictionaries(patterns, inner, max_size=2),
            "propertyNames": texts,
            "minProperties": st.integers(0, 2),
            "maxProperties": st.integers(0, 4),
            "dependentRequired": st.dictionaries(keys, st.lists(keys, max_size=2, unique=True), max_size=1),
        },
        type=st.just("object"),
    )
    several = st.lists(inner, min_size=1, max_size=3)
    return st.one_of(
        arrays,
        objects,
        objects,
        *(st.fixed_dictionaries({word: several}) for word in ("anyOf", "oneOf", "allOf")),
        st.fixed_dictionaries({"not": inner}),
        st.fixed_dictionaries({"if": inner, "then": inner, "else": inner}),
    )


schemas = st.recursive(leaves, _branches, max_leaves=6).map(
    lambda schema: schema if isinstance(schema, dict) else {"allOf": [schema]}
)
