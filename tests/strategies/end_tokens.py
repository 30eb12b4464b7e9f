"""Constraints with several end tokens, beside the same constraints with one."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

import maskwright as mw


class Pair(NamedTuple):
    """A constraint with several end tokens, and with the first of them alone; vocabularies where it has some."""

    several: Any
    one: Any
    vocabularies: tuple[mw.Vocabulary, mw.Vocabulary] | None

    @property
    def ends(self) -> tuple[int, ...]:
        return tuple(self.several.ends)

    def mapped(self, tokens: np.ndarray) -> np.ndarray:
        """Return tokens with the one end in place of all others."""
        return np.where(np.isin(tokens, self.ends), self.ends[0], tokens)

    def allowed(self, bits: np.ndarray) -> np.ndarray:
        """Return what (n, V) is allowed with all ends, given what is allowed with one."""
        out = bits.copy()
        out[:, list(self.ends)] = bits[:, self.ends[:1]]
        return out

    def merged(self, logits: np.ndarray) -> np.ndarray:
        """Return logits (n, V) in which one end has the weight of all."""
        out = logits.astype(np.float64)
        with np.errstate(divide="ignore"):
            out[:, self.ends[0]] = np.log(np.exp(out[:, list(self.ends)]).sum(axis=1))
        out[:, list(self.ends[1:])] = -np.inf
        return out


TEXTS = {
    "regex": (mw.compile_regex, "(ab|[0-9]{1,3})*x?"),
    "any text": (mw.compile_regex, "(?s:.*)"),
    "choices": (mw.compile_choices, ["red", "green", "redder"]),
    "schema": (mw.compile_json_schema, {"type": "array", "items": {"enum": [1, "a", None]}, "maxItems": 3}),
    "nested": (mw.compile_json_schema, {"$defs": {"t": {"type": "array", "items": {"$ref": "#/$defs/t"}}},
                                        "$ref": "#/$defs/t"}),
    "grammar": (mw.compile_grammar, 'start: "(" start* ")" | "x"'),
}  # fmt: skip
IDS = ("sids", "sequences")
KINDS = (*TEXTS, *IDS)


def pair(kind: str, seed: int) -> Pair:
    """Return a constraint of a kind, with two or three ends at random places of a vocabulary of random size."""
    rng = np.random.default_rng(seed)
    count = int(rng.integers(2, 4))
    if kind in IDS:
        size = int(rng.choice([5, 32, 33, 70, 300]))
        ends = rng.choice(size, count, replace=False).tolist()
        tokens = np.setdiff1d(np.arange(size), ends)
        if kind == "sids":
            rows: Any = rng.choice(tokens, (12, 3))
            return Pair(mw.compile_sids(rows, size, eos=ends), mw.compile_sids(rows, size, eos=ends[0]), None)
        rows = [rng.choice(tokens, int(rng.integers(1, 5))).tolist() for _ in range(9)]
        made = (mw.compile_sequences(rows, vocab_size=size, eos=eos) for eos in (ends, ends[0]))
        return Pair(*made, None)
    spelt = [bytes([b]) for b in range(256)] + [b"ab", b"red", b"12", b"[]", b'"a', b"((", b"", b"", b""]
    rng.shuffle(spelt)
    ends = [i for i, token in enumerate(spelt) if not token][:count]
    several = mw.Vocabulary.from_bytes(spelt, eos=ends, special=[i for i, token in enumerate(spelt) if not token])
    one = mw.Vocabulary.from_bytes(spelt, eos=ends[0], special=several.special)
    compiler, source = TEXTS[kind]
    return Pair(compiler(source, several), compiler(source, one), (several, one))
