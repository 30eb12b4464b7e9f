r"""Sets of characters, as ranges of code points: \d \w \s, \p{...}, case, union and complement.

No table of Unicode is kept here. What `re` means by a class, and by ignoring case, is asked of `re` itself over all
characters; properties come from the `regex` package in the same way. So the answers are those of the interpreter and
of the `regex` release at hand.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...automata.utf8 import ANY, Ranges, complement_ranges, normalize_ranges

ASCII_DIGIT: Ranges = ((48, 57),)
ASCII_WORD: Ranges = ((48, 57), (65, 90), (95, 95), (97, 122))
NEWLINE: Ranges = ((10, 10),)
ECMA_LINE_ENDS: Ranges = ((10, 10), (13, 13), (0x2028, 0x2029))
ECMA_SPACE: Ranges = (
    (9, 13), (32, 32), (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A), (0x2028, 0x2029), (0x202F, 0x202F),
    (0x205F, 0x205F), (0x3000, 0x3000), (0xFEFF, 0xFEFF),
)  # fmt: skip

# ECMA 262, table "Binary Unicode property aliases"; other names without a value must be general categories there
_ECMA_BINARY = frozenset(
    """ASCII ASCII_Hex_Digit AHex Alphabetic Alpha Any Assigned Bidi_Control Bidi_C Bidi_Mirrored Bidi_M Case_Ignorable
    CI Cased Changes_When_Casefolded CWCF Changes_When_Casemapped CWCM Changes_When_Lowercased CWL
    Changes_When_NFKC_Casefolded CWKCF Changes_When_Titlecased CWT Changes_When_Uppercased CWU Dash
    Default_Ignorable_Code_Point DI Deprecated Dep Diacritic Dia Emoji Emoji_Component EComp Emoji_Modifier EMod
    Emoji_Modifier_Base EBase Emoji_Presentation EPres Extended_Pictographic ExtPict Extender Ext Grapheme_Base Gr_Base
    Grapheme_Extend Gr_Ext Hex_Digit Hex IDS_Binary_Operator IDSB IDS_Trinary_Operator IDST ID_Continue IDC ID_Start IDS
    Ideographic Ideo Join_Control Join_C Logical_Order_Exception LOE Lowercase Lower Math Noncharacter_Code_Point NChar
    Pattern_Syntax Pat_Syn Pattern_White_Space Pat_WS Quotation_Mark QMark Radical Regional_Indicator RI
    Sentence_Terminal STerm Soft_Dotted SD Terminal_Punctuation Term Unified_Ideograph UIdeo Uppercase Upper
    Variation_Selector VS White_Space space XID_Continue XIDC XID_Start XIDS""".split()  # noqa: SIM905 - a table reads better than a list
)
_ECMA_VALUE = re.compile(r"(?:General_Category|gc|Script|sc|Script_Extensions|scx)=\w+", re.ASCII)
_PROPERTY = re.compile(r"[A-Za-z][\w .-]*(?:[=:][\w .&-]+|&)?", re.ASCII)


# --------------------------------------------------------------------------------------------------------- sets


@lru_cache(maxsize=1024)
def union(*parts: Ranges) -> Ranges:
    """Return the characters in any of the parts; parts may overlap and hold surrogates, which are left out."""
    return normalize_ranges(chain.from_iterable(parts))


@lru_cache(maxsize=256)
def complement(ranges: Ranges) -> Ranges:
    """Return all characters that are not in the ranges."""
    return complement_ranges(ranges)


def contains(ranges: Ranges, points: NDArray[np.integer[Any]]) -> NDArray[np.bool_]:
    """Return for each code point whether it lies in the ranges."""
    edges = np.array([edge for low, high in ranges for edge in (low, high + 1)], np.int64)
    return np.asarray(np.searchsorted(edges, points, side="right") % 2 == 1)


# ------------------------------------------------------------------------------------------------------ classes


@lru_cache(maxsize=16)
def shorthand(letter: str, ascii_only: bool) -> Ranges:
    r"""Return the characters of \d, \s, \w, \D, \S or \W as `re` has them, in a str pattern with or without re.A."""
    if letter.isupper():
        return complement(shorthand(letter.lower(), ascii_only))
    return _ask(re.compile(f"\\{letter}+", re.ASCII if ascii_only else re.UNICODE))


@lru_cache(maxsize=256)
def property_of(name: str, ecma: bool) -> Ranges:
    r"""Return the characters with a Unicode property, given as between the braces of \p{...}.

    Raises LookupError, with what to write instead, for a name that does not exist.
    """
    import regex  # 20 ms, and only patterns with \p need it

    if ecma:
        if not (name in _ECMA_BINARY or _ECMA_VALUE.fullmatch(name)):
            if not re.fullmatch(r"\w+", name, re.ASCII):
                raise LookupError("write a general category, such as L, a binary property or Script=...")
            name = f"gc={name}"
    elif not _PROPERTY.fullmatch(name):
        raise LookupError("write a general category, such as L or Lu, a script, or Property=Value")
    if name.endswith("L&"):  # UTS 18 names cased letters so; here the package would drop the sign and say L
        name = name[:-1] + "C"
    try:
        asked = regex.compile(f"\\p{{{name}}}+")
    except regex.error:
        raise LookupError("the regex package, which has the properties, knows none of that name") from None
    return _ask(asked)


def _ask(asked: Any) -> Ranges:
    """Return the characters that a compiled pattern matches; it must match whole runs of them."""
    found: list[tuple[int, int]] = []
    for low, high in ANY:
        text = np.arange(low, high + 1, dtype="<u4").tobytes().decode("utf-32-le")
        for match in asked.finditer(text):
            start, end = match.span()
            found.append((low + start, low + end - 1))
    return tuple(found)


# --------------------------------------------------------------------------------------------------------- case


@lru_cache(maxsize=4096)
def ignoring_case(ranges: Ranges, ascii_only: bool) -> Ranges:
    r"""Return the characters that `re` matches with one out of these ranges when it ignores case.

    With re.A only ASCII letters have cases. Without, `re` is asked for every character that has any; for others case
    makes no difference. The question is put in ranges throughout: of several letters beyond FFFF in one set, `re`
    misses the capitals ("[\U00010400x]" does not match "\U00010400" itself); here they are matched.
    """
    if ascii_only:
        letters = ((65, 90), (97, 122))
        held = [(max(low, a), min(high, z)) for low, high in ranges for a, z in letters if max(low, a) <= min(high, z)]
        return union(ranges, tuple((low ^ 32, high ^ 32) for low, high in held))
    source = "".join(f"\\U{low:08x}-\\U{high:08x}" for low, high in ranges)
    return _with_cased(ranges, re.findall(f"[{source}]", _cased(), re.IGNORECASE)) if ranges else ()


@lru_cache(maxsize=1024)
def ecma_ignoring_case(ranges: Ranges) -> Ranges:
    """Return the characters with the same simple case folding as one in the ranges: ECMA 262's flags i and u."""
    folds = _folds()
    cased = np.fromiter(map(ord, folds), np.int64)
    keys = list(folds.values())
    wanted = {keys[i] for i in np.flatnonzero(contains(ranges, cased))}
    return _with_cased(ranges, [c for c, key in folds.items() if key in wanted])


def _with_cased(ranges: Ranges, cased: Iterable[str]) -> Ranges:
    """Return the ranges with what they hold of characters that have cases exchanged for the given ones."""
    found = tuple((ord(c), ord(c)) for c in cased)
    if all(low == high for low, high in ranges):  # a letter, nearly always
        return union(tuple(range_ for range_ in ranges if chr(range_[0]) not in _cased()), found)
    return union(complement(union(complement(ranges), _cased_ranges())), found)


@lru_cache(maxsize=1)
def _cased_ranges() -> Ranges:
    return union(tuple((ord(c), ord(c)) for c in _cased()))


@lru_cache(maxsize=1)
def _cased() -> str:
    """Return every character that lower() or upper() changes, and what they change it to."""
    found: set[str] = set()
    for low, high in ANY:
        text = np.arange(low, high + 1, dtype="<u4").tobytes().decode("utf-32-le")
        for i in range(0, len(text), 256):  # whole blocks are compared first: few have any
            block = text[i : i + 256]
            if block.lower() != block or block.upper() != block:
                for c in block:
                    if c.lower() != c or c.upper() != c:
                        found.update(c, c.lower(), c.upper())
    return "".join(sorted(found))


@lru_cache(maxsize=1)
def _folds() -> dict[str, str]:
    """Return the simple case folding of every character that has cases.

    Where the full folding takes several characters, the simple one is the lower case, if that is one character.
    """

    def fold(c: str) -> str:
        full = c.casefold()
        if len(full) == 1:
            return full
        lower = c.lower()
        return lower if len(lower) == 1 else c

    return {c: fold(c) for c in _cased()}
