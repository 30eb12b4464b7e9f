"""The JSON texts of strings: quotes, escapes, and how many ways there are to write a string."""

from __future__ import annotations

from json.encoder import encode_basestring, encode_basestring_ascii
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...automata.budget import Meter
from ...automata.labelled import Labelled, minimized
from .escape_kernels import SORTS, SORTS_ASCII, texts_of
from .memo import remembered


def quoted(word: str, ascii: bool) -> bytes:
    """Return the JSON text of a string, as `json.dumps` writes it; lone surrogates are written as escapes."""
    text = encode_basestring_ascii(word) if ascii else encode_basestring(word)
    return text.encode("utf-8", "backslashreplace")


def has_spellings(word: str, ascii: bool) -> bool:
    """Return whether a string has several spellings in JSON text, as it has characters that need an escape."""
    return any(c not in _PLAIN and (ascii or c < "\x80") for c in word)


_PLAIN = frozenset(map(chr, range(0x20, 0x7F))) - {'"', "\\"}  # characters of one byte that JSON writes in one way


def escaped(content: Labelled, ascii: bool, meter: Meter) -> tuple[NDArray[np.uint16], NDArray[np.int32]]:
    r"""Return the JSON texts of the content's words from behind the opening quote: class_of (256,), transition (N, C).

    -2 - label stands for the closing quote of a word of that label. Characters that JSON must escape may be written by
    any of their escapes. All others are written as they are; if ascii, DEL and those beyond ASCII as \uXXXX.
    """
    key = id(content), ascii
    kept = _escaped.get(key)
    if kept is None or kept.content is not content:
        _escaped.pop(key, None)
        kept = remembered(_escaped, key, lambda: _Escaped(content, _escape(content, ascii, meter)))
    return kept.text


class _Escaped(NamedTuple):
    """The JSON texts of a content, known by its identity."""

    content: Labelled  # kept alive, so that its identity stays its own
    text: tuple[NDArray[np.uint16], NDArray[np.int32]]


_escaped: dict[tuple[int, bool], _Escaped] = {}


def _escape(content: Labelled, ascii: bool, meter: Meter) -> tuple[NDArray[np.uint16], NDArray[np.int32]]:
    """Return the same as `escaped`, made anew."""
    states = content.num_states
    meter.check(bytes=400 * states * (16 if ascii else 1), doing="escaping strings")
    class_of, rows = texts_of(*content, SORTS_ASCII if ascii else SORTS, ascii)
    if not ascii:
        return class_of, rows
    # Hexadecimal digits cut characters up in another way than UTF-8 does: many states are equal, and some are dead.
    labels = int(content.label.max()) + 1
    label = np.concatenate((np.full(len(rows), -1, np.int32), np.arange(labels, dtype=np.int32)))
    to = np.where(rows < -1, len(rows) - 2 - rows, rows)
    small = minimized(class_of, np.concatenate((to, np.full((labels, rows.shape[1]), -1, np.int32))), label, meter)
    ends = small.label >= 0  # these have no transitions, and become the code of their label
    code = np.append(np.where(ends, -2 - small.label, np.cumsum(~ends) - 1), -1).astype(np.int32)
    return small.class_of, code[small.transition[~ends]]
