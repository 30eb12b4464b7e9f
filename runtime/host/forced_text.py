"""Text that every match goes on with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

from .host_reader import HostReader


def forced_text(reader: HostReader[Any], place: object, tokens: Sequence[bytes]) -> bytes:
    """Return the bytes that every match goes on with from a place; b"" if there is a choice, or an end is possible."""
    text = b""
    ahead = {(b"", place)}  # after `text`: the rest of a token that has begun in it, and where that leads
    while True:
        places = [at for rest, at in ahead if not rest]
        if any(reader.ends(at) for at in places):
            return text
        begun = [(rest, at) for rest, at in ahead if rest]
        following = [(at, reader.allowed(at)) for at in places]
        common = _shared_beginning(
            chain((rest for rest, _ in begun), (tokens[t] for _, allowed in following for t in allowed))
        )
        if not common:
            return text
        text += common
        n = len(common)
        ahead = {(rest[n:], at) for rest, at in begun}
        ahead |= {(tokens[t][n:], reader.step(at, t)) for at, allowed in following for t in allowed.tolist()}


def _shared_beginning(texts: Iterator[bytes]) -> bytes:
    """Return the longest text that all begin with; of many that differ at once only the first few are looked at."""
    shared = next(texts)
    for text in texts:
        while not text.startswith(shared):
            shared = shared[:-1]
        if not shared:
            break
    return shared


def whole_characters(text: bytes) -> bytes:
    """Return a text without the bytes at its end that only begin a UTF-8 character: no tokenizer splits such a text."""
    for cut in range(min(4, len(text))):
        try:
            text[: len(text) - cut].decode()
        except UnicodeDecodeError:
            continue
        return text[: len(text) - cut]
    return text
