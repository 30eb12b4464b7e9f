"""Texts as tokens without a tokenizer: the longest token at each position."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from ..errors import ConstraintError


class LongestMatch:
    """Encodes bytes with the longest token at each position after which the rest can still be written.

    Of tokens with equal bytes it takes the lowest id.
    """

    def __init__(self, tokens: Sequence[bytes]) -> None:
        self._longest = max(map(len, tokens))
        self._id_of = {token: i for i, token in reversed(list(enumerate(tokens)))}
        self._id_of.pop(b"", None)

    def encode(self, raw: bytes) -> list[int]:
        """Return ids that spell some bytes. Raises ConstraintError if no tokens do."""
        ids = self._id_of
        stuck = bytearray(len(raw) + 1)  # positions from which the rest cannot be written
        starts: list[int] = []  # of the tokens chosen so far
        position = furthest = 0
        while position < len(raw):
            for end in range(min(position + self._longest, len(raw)), position, -1):
                if not stuck[end] and raw[position:end] in ids:
                    starts.append(position)
                    position = end
                    furthest = max(furthest, end)
                    break
            else:
                if not starts:
                    raise ConstraintError(
                        f"{shortened(raw)} cannot be written with this vocabulary: no token fits at byte {furthest}, "
                        f"{raw[furthest : furthest + 1]!r}"
                    )
                stuck[position] = 1  # the token before was too long: take a shorter one
                position = starts.pop()
        return [ids[raw[a:b]] for a, b in pairwise([*starts, len(raw)])]


def shortened(raw: bytes) -> str:
    """Return bytes as Python writes them, at most 40 of them, for a message."""
    return repr(raw) if len(raw) <= 40 else f"{raw[:40]!r}..."
