"""Domain names with internationalised labels (IDNA 2008, RFC 5890 to 5893), by the tables of the library `idna`.

A name here is always valid: `idna.encode` takes it, and each label of a name with letters from right to left keeps to
the Bidi rule. Some valid names are left out, as `formats.INEXACT` says: they would cost too many states.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from functools import cache
from typing import NamedTuple

import idna
import numpy as np
from idna import idnadata

from ...automata import ops
from ...automata.dfa import BYTES, Dfa
from ...automata.minimize import canonical
from ...automata.nfa import Nfa
from ...automata.subsets import determinize
from ..regex.lower import to_dfa

TABLES = f"{idna.__version__} {unicodedata.unidata_version}"
"""What decides which characters a label may have: the tables of `idna` and those of Python."""

DOTS = ".\u3002\uff0e\uff61"
"""The characters that separate labels where people type them (RFC 3490, 3.1)."""

_SCRIPTS = (
    (0x002D, 0x002D), (0x0030, 0x0039), (0x0061, 0x007A), (0x00B7, 0x024F), (0x1E00, 0x1EFF),  # Latin
    (0x0370, 0x03FF), (0x0400, 0x052F), (0x0531, 0x058F), (0x10D0, 0x10FF),  # Greek, Cyrillic, Armenian, Georgian
    (0x05D0, 0x05F4), (0x0620, 0x06FF), (0x1200, 0x137F),  # Hebrew, Arabic, Ethiopic
    (0x0900, 0x0DFF), (0x0E00, 0x0EFF), (0x1000, 0x109F), (0x1780, 0x17E9),  # Brahmic, Thai, Lao, Burmese, Khmer
    (0x200C, 0x200D), (0x3005, 0x3007), (0x3041, 0x30FF), (0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xAC00, 0xD7A3),  # CJK
)  # fmt: skip
_LATIN = "\u0080-\u024f\u1e00-\u1eff"
_MOST_CHARACTERS, _MOST_PRICE = 13, 53
_MOST_OCTETS, _MOST_IN_LAST, _MOST_LABELS = 63, 61, 4
_CLASSES = (8, 9, 103, 107, 118, 219, 255)  # the highest combining class of each group of marks


class _Characters(NamedTuple):
    """Code points that labels may have, by what the rules ask of them."""

    all: frozenset[int]
    marks: frozenset[int]
    right_to_left: frozenset[int]
    arabic_digits: frozenset[int]
    european_digits: frozenset[int]
    composed_with: frozenset[int]  # letters that compose with what follows
    composing: frozenset[int]  # characters that compose with what precedes
    groups: tuple[frozenset[int], ...]  # marks by ascending combining class
    viramas: frozenset[int]
    joining: tuple[frozenset[int], frozenset[int]]  # letters that join what follows them, and what precedes them
    greek: frozenset[int]
    hebrew: frozenset[int]
    japanese: frozenset[int]


@cache
def _characters() -> _Characters:
    kinds = idnadata.codepoint_classes
    allowed = {code for kind in ("PVALID", "CONTEXTJ", "CONTEXTO") for code in _codes(kinds[kind])}
    every = {code for low, high in _SCRIPTS for code in range(low, high + 1) if code in allowed}
    bidi = {code: unicodedata.bidirectional(chr(code)) for code in every}
    every = {code for code in every if bidi[code]}  # Python knows them
    order = {code: unicodedata.combining(chr(code)) for code in every}
    marks = {code for code in every if unicodedata.category(chr(code))[0] == "M"}
    rtl = {code for code in every if bidi[code] in ("R", "AL")} - marks
    first, second = _compositions()
    bounds = zip((0, *_CLASSES), _CLASSES, strict=False)
    return _Characters(
        all=frozenset(every),
        marks=frozenset(marks),
        right_to_left=frozenset(rtl),
        arabic_digits=frozenset(code for code in every if bidi[code] == "AN") - marks,
        european_digits=frozenset(code for code in every if bidi[code] == "EN"),
        composed_with=frozenset(code for code in every if ord(unicodedata.normalize("NFD", chr(code))[0]) in first),
        composing=frozenset(second & every),
        groups=tuple([frozenset(c for c in every if low < order[c] <= high) for low, high in bounds]),
        viramas=frozenset(code for code in every if order[code] == 9),
        joining=(
            frozenset(code for code in rtl if idna.valid_contextj(f"{chr(code)}\u200c\u0628", 1)),
            frozenset(code for code in rtl if idna.valid_contextj(f"\u0628\u200c{chr(code)}", 1)),
        ),
        greek=_of_scripts(every, "Greek"),
        hebrew=_of_scripts(every, "Hebrew"),
        japanese=_of_scripts(every, "Hiragana", "Katakana", "Han"),
    )


def _codes(ranges: Iterable[int]) -> Iterable[int]:
    """Return the code points of ranges as `idna` keeps them: the first in the upper half, the end in the lower."""
    return (code for each in ranges for code in range(each >> 32, each & 0xFFFFFFFF))


def _of_scripts(every: set[int], *names: str) -> frozenset[int]:
    return frozenset(code for name in names for code in _codes(idnadata.scripts[name]) if code in every)


def _compositions() -> tuple[set[int], set[int]]:
    """Return the first and the second characters of the pairs that NFC composes."""
    first: set[int] = set()
    second: set[int] = set()
    for code in range(0x10000):
        parts = unicodedata.decomposition(chr(code)).split()
        if len(parts) == 2 and parts[0][0] != "<" and unicodedata.is_normalized("NFC", chr(code)):
            first.add(int(parts[0], 16))
            second.add(int(parts[1], 16))
    return first, second


def _between_brackets(codes: Iterable[int]) -> str:
    """Return code points as the inside of a character class."""
    ranges: list[list[int]] = []
    for code in sorted(codes):
        if ranges and ranges[-1][1] == code - 1:
            ranges[-1][1] = code
        else:
            ranges.append([code, code])
    return "".join(f"\\u{{{low:x}}}-\\u{{{high:x}}}" for low, high in ranges)


def _regex(pattern: str) -> Dfa:
    return to_dfa(pattern, dialect="ecma")


def _with(pattern: str) -> Dfa:
    """Return the texts in which a pattern matches somewhere."""
    return to_dfa(pattern, dialect="ecma", search=True)


# ---------------------------------------------------------------------------------------------------------- labels


def _broken_rules() -> list[str]:
    """Return a pattern for each rule, which matches in a label that breaks it."""
    chars, inside = _characters(), _between_brackets
    marks = frozenset().union(*chars.groups)
    viramas, (before, after), japanese = inside(chars.viramas), map(inside, chars.joining), inside(chars.japanese)
    up_to = [inside(frozenset().union(*chars.groups[: n + 1])) for n in range(len(chars.groups))]
    not_ascending = [f"[{inside(group)}][{lower}]" for group, lower in zip(chars.groups, up_to, strict=True)]
    return [
        "^[^]{2}--",  # RFC 5891, 4.2.3.1
        "|".join(not_ascending),  # 4.1: NFC, the order of marks
        f"[{inside(chars.composed_with)}][{inside(chars.composing)}]",  # and no two characters that compose
        f"[{inside(marks)}][{inside(chars.composing & marks)}]",
        f"(?<![{viramas}])\u200d",  # RFC 5892, A.2
        f"(?<![{viramas}{before}])\u200c|(?<![{viramas}])\u200c(?![{after}])",  # A.1
        "(?<!l)\u00b7|\u00b7(?!l)",  # A.3
        f"\u0375(?![{inside(chars.greek)}])",  # A.4
        f"(?<![{inside(chars.hebrew)}])[\u05f3\u05f4]",  # A.5, A.6
        f"(?<![{japanese}\u30fb])\u30fb(?![{japanese}])",  # A.7
    ]


def _foreign(pattern: str) -> Dfa:
    """Return the labels of a pattern that keep to all rules and are not ASCII; in Punycode they take at most 57 octets.

    The encoder's deltas ascend, so they add up to no more than the scripts are wide. A search over all states of the
    encoder (its bias, the characters so far, and how much width is left) shows that 13 characters below U+D800 take at
    most 52 octets behind "xn--", and b ASCII characters with j Latin ones up to U+024F and k up to U+1EFF at most 57
    where b + 3 j + 4 k is at most 53.
    """
    label = ops.intersection(_regex(pattern), _with(r"[^\0-\x7f]"))
    for rule in _broken_rules():
        label = ops.difference(label, _with(rule))
    class_of = np.zeros(BYTES, np.uint16)
    class_of[0x80:0xC0], class_of[0xC0:0xE0], class_of[0xE0:] = 1, 2, 3
    place = np.arange(_MOST_PRICE + 1, dtype=np.int32)
    transition = np.full((place.size, 4), -1, np.int32)
    for kind, price in enumerate((1, 0, 3, 4)):
        transition[: place.size - price, kind] = place[price:]
    priced = canonical(class_of, transition, np.ones(place.size, np.bool_))
    latin = ops.intersection(priced, _regex(rf"[\0-\x7f{_LATIN}]*"))
    return ops.intersection(label, ops.union(latin, _regex(f"[^{_LATIN}]{{1,{_MOST_CHARACTERS}}}")))


def _ascii(first: str) -> Dfa:
    label = _regex(f"{first}(?:[A-Za-z0-9-]*[A-Za-z0-9])?")
    return ops.difference(label, _with(f"^[^]{{2}}--|[^]{{{_MOST_OCTETS + 1}}}"))


def _left_to_right() -> tuple[Dfa, Dfa]:
    """Return the labels without letters from right to left: those that are not ASCII, and those that are."""
    chars = _characters()
    inside = chars.all - chars.right_to_left - chars.arabic_digits - {ord("-")}
    ends, begins = _between_brackets(inside), _between_brackets(inside - chars.marks)
    return _foreign(f"[{begins}](?:[{ends}-]*[{ends}])?"), _ascii("[A-Za-z0-9]")


def _bidirectional() -> tuple[Dfa, Dfa]:
    """Return the labels that begin with a letter from right to left and keep to the Bidi rule, and those in ASCII."""
    chars = _characters()
    begins, patterns = _between_brackets(chars.right_to_left), []
    for digits in (chars.arabic_digits, chars.european_digits):  # a label has one kind
        ends = _between_brackets(chars.right_to_left | digits)
        patterns.append(f"[{begins}](?:[{ends}\u200c-]*[{ends}])?")
    return _foreign("|".join(patterns)), _ascii("[A-Za-z]")


# ----------------------------------------------------------------------------------------------------------- names


def mail_domain() -> Dfa:
    """Return the domains of a Mailbox (RFC 6531, 3.3): labels between full stops."""
    found = []
    for foreign, in_ascii in (_left_to_right(), _bidirectional()):
        nfa, label = Nfa(), ops.union(foreign, in_ascii)
        others = nfa.repeat(nfa.concat([nfa.literal(b"."), nfa.embed(label)]), 0, None)
        found.append(determinize(nfa, nfa.concat([nfa.embed(label), others])))
    return ops.unions(found)


def host_name() -> Dfa:
    """Return host names of up to four labels, the fourth of at most 61 octets: 253 in all."""
    dot, found = _regex(f"[{DOTS}]"), []
    for foreign, in_ascii in (_left_to_right(), _bidirectional()):
        label, last = ops.union(foreign, in_ascii), ops.union(foreign, ops.difference(in_ascii, _with("[^]{62}")))
        nfa = Nfa()
        before = nfa.concat([nfa.embed(label), nfa.embed(dot)])
        three = nfa.concat([nfa.repeat(before, 0, _MOST_LABELS - 2), nfa.embed(label)])
        four = nfa.concat([nfa.repeat(before, _MOST_LABELS - 1, _MOST_LABELS - 1), nfa.embed(last)])
        found.append(determinize(nfa, nfa.union([three, four])))
    return ops.unions(found)
