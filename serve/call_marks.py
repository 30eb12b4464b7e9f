"""The marks of tool calls as they stand in the text of an answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from ..vocabulary.vocabulary import Vocabulary
from .constraints import CLOSE, OPEN

_OPENS, _CLOSES = "\udc00", "\udc01"  # characters that no decoded text has


class CallMarks(NamedTuple):
    """The texts around a call; tokens: the character of each mark that is a control token.

    Letters that spell the name of such a token are text.
    """

    open: str = OPEN
    close: str = CLOSE
    tokens: Mapping[int, str] = {}


def call_marks(vocabulary: Vocabulary) -> CallMarks:
    """Return the marks of calls for a vocabulary, of which one or both may be control tokens."""
    texts, tokens = [], {}
    for name, character in ((OPEN, _OPENS), (CLOSE, _CLOSES)):
        token = vocabulary.special_ids.get(name)
        if token is not None and not vocabulary.tokens[token]:
            tokens[token] = character
        texts.append(character if token in tokens else name)
    return CallMarks(texts[0], texts[1], tokens)
