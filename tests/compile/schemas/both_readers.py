"""The rules of a schema beside the table of `compile_json_schema`: which bytes each allows, along texts."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

import maskwright as mw
from maskwright.automata.budget import Budget
from maskwright.compile.json_schema.request import request
from maskwright.compile.schemas.schema_rules import SchemaRules, schema_rules
from tests.compile.schemas.byte_reader import ByteReader

VOCABULARY = mw.Vocabulary.from_bytes([b"", *(bytes([byte]) for byte in range(256))], eos=0)
_LONGEST = 300
REMEMBERED = ("uniqueItems", "minProperties", "maxProperties")
"""Keywords that a matcher sees to beside either reader."""
_IN_ESCAPE = re.compile(rb"(?<!\\)(?:\\\\)*\\(?:u[0-9a-fA-F]{0,3})?$")


def rules_of(schema: Any, seconds: float = 20, **options: Any) -> SchemaRules:
    """Return the rules of a schema."""
    return schema_rules(request(schema, **options), VOCABULARY, Budget(seconds=seconds).begin())


def allowed(matcher: mw.Matcher) -> tuple[set[int], bool]:
    """Return the bytes that a matcher allows, and whether a text may end."""
    bits = np.unpackbits(matcher.mask().astype("<u4").view(np.uint8), bitorder="little")
    tokens = np.flatnonzero(bits).tolist()
    return {token - 1 for token in tokens if 1 <= token <= 256}, 0 in tokens


class Outcome:
    """What both say of a schema: whether it is refused, and the text before the first byte on which they differ."""

    def __init__(self, schema: Any, seconds: float = 5, **options: Any) -> None:
        self.schema, self.options = schema, options
        self.table: Any = None
        self.reader: ByteReader | None = None
        self.refusals: list[mw.errors.MaskwrightError | None] = [None, None]
        try:
            self.table = mw.compile_json_schema(schema, VOCABULARY, budget=mw.Budget(seconds=seconds), **options)
        except mw.errors.MaskwrightError as error:
            self.refusals[0] = error
        try:
            self.reader = ByteReader(rules_of(schema, **options))
        except mw.errors.MaskwrightError as error:
            self.refusals[1] = error

    @property
    def is_comparable(self) -> bool:
        """Whether the table is within its budget, and neither refuses the schema."""
        return self.table is not None and self.reader is not None

    @property
    def agrees_on_refusal(self) -> bool:
        """Whether both refuse the schema or none does.

        But a budget of the table may be too small, and it refuses counts of members that no text asks for. A matcher
        sees to distinct items and keys beside either.
        """
        theirs, mine = self.refusals
        if theirs is None and getattr(mine, "keyword", "") in REMEMBERED:
            return True
        if isinstance(theirs, mw.errors.BudgetError) or (theirs is None) == (mine is None):
            return True
        return mine is None and getattr(theirs, "keyword", "") in REMEMBERED

    def difference(self, choose: Callable[[set[int], int, bool], int | None]) -> str | None:
        """Return how both differ along a text of chosen bytes; None if they do not.

        choose: given the bytes that may come, how many came, and whether the text may end; None to stop.
        """
        assert self.reader is not None
        matcher, place, out = mw.Matcher(self.table), self.reader.start, bytearray()
        while len(out) < _LONGEST:
            theirs, ends = allowed(matcher)
            mine, accepts = set(self.reader.mask(place)), self.reader.accepts(place)
            if (theirs != mine or ends != accepts) and _is_spelling(bytes(out), theirs ^ mine):
                return None
            if theirs != mine or ends != accepts:
                more, less = bytes(sorted(mine - theirs)), bytes(sorted(theirs - mine))
                return f"{self.schema} {self.options} behind {bytes(out)!r}: more {more!r}, less {less!r}, {accepts=}"
            if not mine and not accepts:
                return f"{self.schema} {self.options}: nothing may follow {bytes(out)!r}"
            byte = choose(mine, len(out), accepts)
            if byte is None or byte not in mine:
                return None
            following = self.reader.step(place, byte)
            assert following is not None
            assert matcher.advance(1 + byte)
            place = following
            out.append(byte)
        return None

    def difference_on(self, texts: Iterable[str], walks: int = 0, seed: int = 0) -> str | None:
        """Return how both differ along some texts, and along texts drawn by chance; None if they do not."""
        for text in texts:
            data = text.encode()
            found = self.difference(lambda _, at, __, data=data: data[at] if at < len(data) else None)  # type: ignore[misc]
            if found:
                return found
        rng = random.Random(seed)
        for _ in range(walks):
            found = self.difference(lambda bytes_, at, ends: _drawn(rng, bytes_, at, ends))
            if found:
                return found
        return None


def _is_spelling(text: bytes, different: set[int]) -> bool:
    """Return whether readers differ in how a number or character may be spelled, after a text.

    That follows from how far formulas are simplified: a table spells a value that it tells apart from others in fewer
    ways, although nothing depends on it.
    """
    if _IN_ESCAPE.search(text):
        return True
    return text[-1:].isdigit() and different <= set(b"eE.0")


def _drawn(rng: random.Random, allowed: set[int], at: int, ends: bool) -> int | None:
    """Return a byte that may come, with a liking for what ends a value, and for printable ASCII."""
    if ends and (not allowed or at > 60 or rng.random() < 0.3):
        return None
    closing = [byte for byte in allowed if byte in b'"}]']
    if closing and (at > 40 or rng.random() < 0.3):
        return rng.choice(closing)
    plain = [byte for byte in sorted(allowed) if 0x20 < byte < 0x7F and (byte != 0x5C or rng.random() < 0.1)]
    return rng.choice(plain or sorted(allowed))
