"""Formulas about strings as automata over the UTF-8 of their content, and from there over their JSON text.

A string that no UTF-8 spells, one with a lone surrogate, can be a word of an enumeration, where it is written with an
escape; no automaton accepts one.

Where a format's language is known only between two bounds (see `formats`), a string in the gap is in neither the
formula nor its negation: it is refused on either side, and nothing is accepted wrongly.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from json.encoder import encode_basestring, encode_basestring_ascii
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...automata import ops, utf8
from ...automata.budget import Budget, Meter
from ...automata.dfa import BYTES, Dfa
from ...automata.labelled import Labelled, joint, labelled, minimized, overlaid, relabelled, spelled
from ...automata.minimize import canonical, merge_columns
from ...automata.slots import slot_of
from ...automata.utf8 import characters_left
from ...errors import SchemaError
from ...kernels.compiled import kernel
from ..regex.lower import to_dfa
from . import formats
from .algebra import AllOf, AnyOf, Format, Length, Node, Not, Pattern, Types, Words, atoms, negate
from .memo import remembered
from .skeleton import Bounded, Finite, Free, Regular, Text

_MOST_COUNTED = 1 << 26  # states of a content and numbers of characters that a reader can number

_results: dict[tuple[Node, ...], Text | None] = {}
_languages: dict[object, Dfa] = {}
_partitions: dict[tuple[Node, ...], tuple[Labelled, list[tuple[bool, ...]]]] = {}


def texts(parts: tuple[Node, ...], meter: Meter) -> Text | None:
    """Return the strings in some part, label i for those in parts[i]; None if no string is in any.

    parts: formulas as `algebra.restrict` makes them for STRING, pairwise disjoint. Raises BudgetError, RegexError.
    """
    return remembered(_results, parts, lambda: _texts(parts, meter))


def _texts(parts: tuple[Node, ...], meter: Meter) -> Text | None:
    live = [i for i, part in enumerate(parts) if type(part) is not Types or part.args[0]]
    if len(live) == 1:
        bounds = _lengths(parts[live[0]])
        if bounds is not None:
            low, high = bounds
            if high is None and not low:
                return Free(live[0])
            return None if high is not None and low > high else Bounded(live[0], low, high)
    if live and all(type(atom) is Length for i in live for atom in atoms(parts[i])):
        return _by_length({i: parts[i] for i in live}, meter)
    words: dict[str, int] = {}
    others: list[int] = []
    for i in live:
        listed = _words(parts[i], meter)
        if listed is not None:
            words.update(dict.fromkeys(listed, i))
        else:
            others.append(i)
    if len(others) == 1 and not words and _excluded(parts[others[0]]) is None:
        return _alone(others[0], parts[others[0]], meter)
    excluded = _excluded(parts[others[0]]) if len(others) == 1 else None
    if excluded is not None:  # all strings but some, of which a few have other labels
        both = next((word for word in words if word not in excluded), None)
        if both is not None:
            raise ValueError(f"formulas {words[both]} and {others[0]} are not disjoint: {both!r} is in both")
        free = relabelled(utf8.text(), others[0])
        return Regular(minimized(*overlaid(free, _utf8(dict.fromkeys(excluded, -1) | words), meter), meter))
    dfas = {i: dfa for i in others if not (dfa := language(parts[i], meter)).is_empty}
    if not dfas:
        return Finite(words) if words else None
    listing: dict[int, list[str]] = {}
    for word, i in words.items():
        listing.setdefault(i, []).append(word)
    dfas.update({i: _spelled(tuple(listed), meter) for i, listed in listing.items()})
    nothing = _nothing()
    return Regular(labelled([dfas.get(i, nothing) for i in range(len(parts))], meter))


def _alone(label: int, node: Node, meter: Meter) -> Text | None:
    """Return the strings in one formula; to count their characters is left to those who read them."""
    dfa, most = _uncut(node, meter)
    if dfa.is_empty:
        return None
    if most is not None:
        arrays = dfa.class_of, dfa.transition, dfa.accepting
        if characters_left(*arrays, False)[0] > most:
            return None
        if dfa.is_finite and characters_left(*arrays, True)[0] <= most:
            most = None
    if ops.equivalent(dfa, utf8.text()):
        return Free(label) if most is None else Bounded(label, 0, most)
    text = Regular(relabelled(dfa, label), most)
    if most is not None and most * dfa.num_states > _MOST_COUNTED:
        return Regular(cut(text, meter))  # if the budget allows
    return text


def cut(text: Regular, meter: Meter) -> Labelled:
    """Return the strings of a text of at most so many characters as a DFA that counts them."""
    content, most = text.content, text.most
    if most is None:
        return content
    dfa = Dfa(content.class_of, content.transition, content.label >= 0)
    return relabelled(ops.intersection(dfa, _counted(0, most, meter), meter), int(content.label.max()))


def holds(node: Node, text: str, meter: Meter | None = None) -> bool:
    """Whether a string is in a formula as `algebra.restrict` makes it for STRING.

    Raises SchemaError where that cannot be told, as of a host name whose label is an internationalised one.
    """
    told = _truth(node, text, Budget().begin() if meter is None else meter)
    if told is None:
        name = next(atom.args[0] for atom in atoms(node) if type(atom) is Format)
        raise SchemaError(
            f"whether {text!r} is of the format {name!r} cannot be told exactly: {formats.INEXACT.get(name, '')}",
            "",
            "format",
        )
    return told


def _truth(node: Node, text: str, meter: Meter) -> bool | None:
    """Return whether a string is in a formula, None where it is in the gap of a format that decides."""
    kind = type(node)
    if kind is Types:
        return bool(node.args[0])
    if kind is Words:
        return text in node.args[0]
    if kind is Length:
        low, high = node.args
        return low <= len(text) and (high is None or len(text) <= high)
    if kind is Not:
        inner = _truth(node.args[0], text, meter)
        return None if inner is None else not inner
    if kind is AllOf or kind is AnyOf:
        unless = kind is AnyOf  # one part of this truth settles it
        settled: bool | None = not unless
        for part in node.args:
            inner = _truth(part, text, meter)
            if inner is unless:
                return unless
            if inner is None:
                settled = None
        return settled
    word = text.encode("utf-8", "surrogatepass")  # no language has a word with a surrogate
    if kind is Pattern:
        return _pattern(node.args[0], meter).accepts(word)
    if kind is Format:
        if formats.language(node.args[0], meter).accepts(word):
            return True
        return None if formats.superset(node.args[0], meter).accepts(word) else False
    raise TypeError(f"not about strings: {node!r}")


def quoted(word: str, ascii: bool) -> bytes:
    """Return the JSON text of a string, as `json.dumps` writes it; lone surrogates are written as escapes."""
    text = encode_basestring_ascii(word) if ascii else encode_basestring(word)
    return text.encode("utf-8", "backslashreplace")


def has_spellings(word: str, ascii: bool) -> bool:
    """Return whether JSON text has several ways to write a string, by escapes that it needs."""
    return any(c not in _PLAIN and (ascii or c < "\x80") for c in word)


_PLAIN = frozenset(map(chr, range(0x20, 0x7F))) - {'"', "\\"}  # characters of one byte that JSON writes in one way


# ------------------------------------------------------------------------------------------------------- formulas


def _lengths(node: Node) -> tuple[int, int | None] | None:
    """Return the bounds of a formula that is a conjunction of lengths alone, else None."""
    low, high = 0, None
    for part in node.args if type(node) is AllOf else (node,):
        if type(part) is Length:
            low = max(low, part.args[0])
            if part.args[1] is not None:
                high = part.args[1] if high is None else min(high, part.args[1])
        elif type(part) is not Types or not part.args[0]:
            return None
    return low, high


def _by_length(parts: Mapping[int, Node], meter: Meter) -> Text | None:
    """Return the strings in some formula, which are about lengths alone, each with its label."""
    found = [atom.args for part in parts.values() for atom in atoms(part)]
    turns = sorted({0, *(low for low, _ in found), *(high + 1 for _, high in found if high is not None)})
    longest = turns[-1]
    text = utf8.text()
    T, C = text.transition.shape
    meter.check(states=T * (longest + 1), bytes=8 * T * C * (longest + 1), doing=f"counting to {longest:,} characters")
    label = np.full(longest + 1, -1, np.int32)  # by length
    for turn in turns:
        label[turn:] = next((i for i, part in parts.items() if _fits(part, turn)), -1)
    changes = np.flatnonzero(label[1:] != label[:-1])
    if not changes.size:
        return Free(int(label[0])) if label[0] >= 0 else None
    # a state is how many characters there were and a state of the text; each character's first byte counts
    longest = int(changes[-1]) + 1
    live = longest + int(label[longest] >= 0)  # so many numbers of characters lead to a label
    first = np.zeros(C, np.int32)
    first[text.class_of[:0x80]] = first[text.class_of[0xC0:]] = 1
    counts = np.minimum(np.arange(live, dtype=np.int32)[:, None, None] + first, longest)
    transition = np.where((text.transition >= 0) & (counts < live), (counts - 1) * T + text.transition + 1, -1)
    ends = np.where(text.accepting, label[:live, None], -1).ravel()
    inner = np.arange(1, T)  # states inside a character with none before are not reached
    rows = np.delete(transition.reshape(-1, C), inner, axis=0)
    return Regular(Labelled(text.class_of, rows, np.delete(ends, inner)))


def _fits(node: Node, length: int) -> bool:
    """Whether the strings of a length are in a formula that is about lengths alone."""
    kind = type(node)
    if kind is Length:
        low, high = node.args
        return bool(low <= length and (high is None or length <= high))
    if kind is Not:
        return not _fits(node.args[0], length)
    if kind is Types:
        return bool(node.args[0])
    return (all if kind is AllOf else any)(_fits(part, length) for part in node.args)


def _words(node: Node, meter: Meter) -> Sequence[str] | None:
    """Return the strings of a formula that lists them, else None."""
    kind = type(node)
    if kind is Words:
        words: tuple[str, ...] = node.args[0]
        return words
    if kind is AllOf:
        for i, part in enumerate(node.args):
            listed = _words(part, meter)
            if listed is not None:
                others = node.args[:i] + node.args[i + 1 :]
                return [word for word in listed if all(_truth(other, word, meter) for other in others)]
    if kind is AnyOf:
        found: dict[str, None] = {}
        for part in node.args:
            listed = _words(part, meter)
            if listed is None:
                return None
            found.update(dict.fromkeys(listed))
        return list(found)
    return None


def _excluded(node: Node) -> dict[str, None] | None:
    """Return the strings that are not in a formula that lists them, one at least that some text spells, else None."""
    found: dict[str, None] = {}
    for part in node.args if type(node) is AllOf else (node,):
        if type(part) is not Not or type(part.args[0]) is not Words:
            return None
        found.update(dict.fromkeys(part.args[0].args[0]))
    return found if any(map(_is_text, found)) else None


def _is_text(word: str) -> bool:
    try:
        word.encode()
    except UnicodeEncodeError:  # a lone surrogate
        return False
    return True


def language(node: Node, meter: Meter) -> Dfa:
    """Return the strings that are surely in a formula, as UTF-8.

    Those surely not in it are the language of its negation: all others, unless a format with a gap occurs.
    """
    return remembered(_languages, node, lambda: _language(node, meter))


def _language(node: Node, meter: Meter) -> Dfa:
    made, most = _uncut(node, meter)
    return made if most is None else ops.intersection(made, _counted(0, most, meter), meter)


def _uncut(node: Node, meter: Meter) -> tuple[Dfa, int | None]:
    """Return the same, and how many characters they have at most, None for no bound: that is not counted in the DFA."""
    kind = type(node)
    if kind is AnyOf:
        return ops.unions([language(part, meter) for part in node.args], meter), None
    inner: list[Dfa] = []
    outer: list[Dfa] = []
    low, high = 0, None
    for part in node.args if kind is AllOf else (node,):
        shape = type(part)
        if shape is Length:
            low = max(low, part.args[0])
            if part.args[1] is not None:
                high = part.args[1] if high is None else min(high, part.args[1])
        elif shape is Pattern:
            inner.append(_pattern(part.args[0], meter))
        elif shape is Format:
            inner.append(formats.language(part.args[0], meter))
        elif shape is Words:
            inner.append(_spelled(part.args[0], meter))
        elif shape is AnyOf:
            inner.append(language(part, meter))
        elif shape is Types:
            if not part.args[0]:
                return _nothing(), None
        elif shape is Not:
            atom = part.args[0]
            if type(atom) is Pattern:
                outer.append(_pattern(atom.args[0], meter))
            elif type(atom) is Format:
                outer.append(formats.superset(atom.args[0], meter))
            elif type(atom) is Length:
                outer.append(_counted(atom.args[0], atom.args[1], meter))
            elif type(atom) is Words:
                outer.append(_spelled(atom.args[0], meter))
            else:
                raise TypeError(f"not about strings: {node!r}")
        else:
            raise TypeError(f"not about strings: {node!r}")
    inner = inner or [utf8.text()]  # `_counted` counts characters, whatever bytes come with them: it is never alone
    made = ops.intersections([*inner, _counted(low, None, meter)] if low else inner, meter)
    for dfa in sorted(outer, key=lambda dfa: dfa.transition.size):
        made = ops.difference(made, dfa, meter)
    return made, high


@lru_cache(maxsize=1)
def _nothing() -> Dfa:
    return canonical(np.zeros(BYTES, np.uint16), np.full((1, 1), -1, np.int32), np.zeros(1, np.bool_))


def _pattern(source: str, meter: Meter) -> Dfa:
    return remembered(_languages, source, lambda: to_dfa(source, dialect="ecma", search=True, meter=meter))


def _spelled(words: Sequence[str], meter: Meter) -> Dfa:
    found = _utf8(dict.fromkeys(words, 0))
    if not found:
        return _nothing()
    made = spelled(found, meter)
    return Dfa(made.class_of, made.transition, made.label == 0)


def _utf8(words: Mapping[str, int]) -> dict[bytes, int]:
    """Return the bytes of words with their labels, but for those with a lone surrogate, which no text has."""
    return {word.encode(): label for word, label in words.items() if _is_text(word)}


def _counted(low: int, high: int | None, meter: Meter) -> Dfa:
    """Return the words of low .. high code points, of those that are valid UTF-8."""
    if high is not None and high < low:
        return _nothing()
    longest = low if high is None else high
    meter.check(states=longest + 1, bytes=10 * (longest + 1), doing=f"counting to {longest:,} characters")
    class_of = np.zeros(BYTES, np.uint16)
    class_of[0x80:0xC0] = 1  # all but a character's first byte
    transition = np.empty((longest + 1, 2), np.int32)
    transition[:, 1] = np.arange(longest + 1)
    transition[:, 0] = np.arange(1, longest + 2)
    transition[longest, 0] = longest if high is None else -1
    return canonical(class_of, transition, np.arange(longest + 1) >= low, meter=meter)


# ----------------------------------------------------------------------------------------------------------- keys


def partition(keys: Sequence[str], languages: Sequence[Node], meter: Meter) -> tuple[Labelled, list[tuple[bool, ...]]]:
    """Return the strings with label j for keys[j], and len(keys) + c for a string of class c that is none of the keys.

    A class is which of some languages, formulas as `algebra.restrict` makes them for STRING, a string is in. The list
    has each class's truths; only classes that some string is of occur. Raises BudgetError, RegexError.
    """
    base, classes = remembered(_partitions, tuple(languages), lambda: _classes(languages, meter))
    return (base, classes) if not keys else _overlaid(base, classes, keys, meter)


def _classes(languages: Sequence[Node], meter: Meter) -> tuple[Labelled, list[tuple[bool, ...]]]:
    """Return all strings with their class as label, and each class's truths."""
    if not languages:
        return relabelled(utf8.text(), 0), [()]
    dfas = [utf8.text(), *(language(node, meter) for node in languages)]
    gaps = [
        i
        for i, node in enumerate(languages)
        if any(type(atom) is Format and atom.args[0] in formats.INEXACT for atom in atoms(node))
    ]
    dfas.extend(language(negate(languages[i]), meter) for i in gaps)
    class_of, transition, inside = joint(dfas, meter)
    ends = inside[:, 0].copy()
    for i, g in enumerate(gaps):
        ends &= inside[:, 1 + g] | inside[:, 1 + len(languages) + i]
    truths, number = np.unique(inside[ends, 1 : 1 + len(languages)], axis=0, return_inverse=True)
    label = np.full(ends.size, -1, np.int32)
    label[ends] = number.reshape(-1)
    found = Labelled(class_of, transition, label)
    if gaps:
        found = minimized(class_of, transition, label, meter)
    return found, [tuple(map(bool, row)) for row in truths]


def _overlaid(
    base: Labelled, classes: list[tuple[bool, ...]], keys: Sequence[str], meter: Meter
) -> tuple[Labelled, list[tuple[bool, ...]]]:
    """Return the automaton with labels of their own for some words, and the classes that others are still of.

    Each node of the words' trie leads to a word whose label no other has, so that nothing can be merged.
    """
    shifted = base._replace(label=np.where(base.label >= 0, base.label + np.int32(len(keys)), np.int32(-1)))
    found = overlaid(shifted, _utf8({key: j for j, key in enumerate(keys)}), meter)
    label = found.label
    left = np.unique(label[label >= len(keys)]) - len(keys)
    if left.size < len(classes):
        renamed = np.full(len(classes) + len(keys) + 1, -1, np.int32)
        renamed[: len(keys)] = np.arange(len(keys))
        renamed[len(keys) + left] = len(keys) + np.arange(left.size)
        found = found._replace(label=renamed[label])
        classes = [classes[c] for c in left.tolist()]
    return found, classes


# -------------------------------------------------------------------------------------------------------- escapes


def escaped(content: Labelled, ascii: bool, meter: Meter) -> tuple[NDArray[np.uint16], NDArray[np.int32]]:
    r"""Return the JSON texts of the content's words from behind the opening quote: class_of (256,), transition (N, C).

    -2 - label stands for the closing quote of a word of that label. The characters that JSON makes one escape are
    written with any of their escapes, all others as they are or, if ascii, DEL and those beyond ASCII as \uXXXX.
    """
    key = id(content), ascii
    kept = _escaped.get(key)
    if kept is None or kept.content is not content:
        _escaped.pop(key, None)
        kept = remembered(_escaped, key, lambda: _Escaped(content, _escape(content, ascii, meter)))
    return kept.text


class _Escaped(NamedTuple):
    content: Labelled  # kept alive, so that its identity stays its own
    text: tuple[NDArray[np.uint16], NDArray[np.int32]]


_escaped: dict[tuple[int, bool], _Escaped] = {}


def _escape(content: Labelled, ascii: bool, meter: Meter) -> tuple[NDArray[np.uint16], NDArray[np.int32]]:
    states = content.num_states
    meter.check(bytes=400 * states * (16 if ascii else 1), doing="escaping strings")
    class_of, rows = _write(*content, _SPECIAL_ASCII if ascii else _SPECIAL, ascii)
    if not ascii:
        return class_of, rows
    # hexadecimal digits cut characters up in another way than UTF-8: many states are equal, and some lead nowhere
    labels = int(content.label.max()) + 1
    label = np.concatenate((np.full(len(rows), -1, np.int32), np.arange(labels, dtype=np.int32)))
    to = np.where(rows < -1, len(rows) - 2 - rows, rows)
    small = minimized(class_of, np.concatenate((to, np.full((labels, rows.shape[1]), -1, np.int32))), label, meter)
    ends = small.label >= 0  # these have no transitions, and become the code of their label
    code = np.append(np.where(ends, -2 - small.label, np.cumsum(~ends) - 1), -1).astype(np.int32)
    return small.class_of, code[small.transition[~ends]]


_QUOTE, _BACKSLASH, _CONTROL, _BEYOND = 27, 28, 29, 30


def _specials(ascii: bool) -> NDArray[np.int32]:
    """Return what a byte is in a text: 0 for nothing special, a number of its own for each that escapes are made of."""
    special = np.zeros(BYTES, np.int32)
    for i, byte in enumerate(b"0123456789abcdefABCDEFnrtu"):
        special[byte] = i + 1
    special[0x22], special[0x5C], special[:0x20] = _QUOTE, _BACKSLASH, _CONTROL
    if ascii:
        special[0x7F:] = _BEYOND  # DEL too, as json.dumps has it
    return special


_SPECIAL, _SPECIAL_ASCII = _specials(False), _specials(True)

# what a state of a text has read: within an escape, a state of the content before it and what of the escape is known
_CONTENT, _ESCAPE, _U, _U0, _U0X, _U00X = 0, 1, 2, 3, 4, 5
_TWO, _TWO_HIGH, _ONE = 6, 7, 8  # two UTF-8 bytes to come; and the four highest bits of the first; one, and two bits
_UD, _HIGH, _HIGHER, _PAIR, _PAIR_ESCAPE, _PAIR_U, _PAIR_UD, _LOW = 9, 10, 11, 12, 13, 14, 15, 16  # surrogate pairs


@kernel
def _write(class_of: Any, transition: Any, label: Any, special: Any, ascii: bool) -> Any:
    """Return class_of (256,) and transition (N, C) of the texts of a content automaton; -2 - label for an end.

    Unless ascii, every state leads to an end, and states within an escape are shared by all that go on alike.
    """
    N, C = transition.shape
    number = np.full(32 * C, -1, np.int32)
    wide = np.empty(256, np.uint16)
    byte_of = np.empty(256, np.int32)  # one of each class
    K = 0
    for byte in range(256):
        key = 32 * class_of[byte] + special[byte]
        if number[key] < 0:
            number[key] = K
            byte_of[K] = byte
            K += 1
        wide[byte] = number[key]
    short = np.full(256, -1, np.int32)  # the characters of short escapes
    short[98], short[102], short[110], short[114], short[116], short[34], short[92] = 8, 12, 10, 13, 9, 34, 92

    # states from which escapes go on alike: the first of them, by the classes of what escapes stand for
    escaping = np.zeros(C, np.bool_)
    for byte in range(256):
        if special[byte] >= _QUOTE:
            escaping[class_of[byte]] = True
    slots = 16
    while slots < 2 * N:
        slots *= 2
    table = np.full(slots, -1, np.int32)
    first = np.full(N, -1, np.int32)  # -1 where there is no escape
    for s in range(N):
        digest = np.uint64(0)
        some = False
        for c in range(C):
            if escaping[c]:
                some = some or transition[s, c] >= 0
                digest = (digest ^ np.uint64(transition[s, c] + 1)) * np.uint64(0x9E3779B97F4A7C15)
                digest ^= digest >> np.uint64(29)
        if not some:
            continue
        slot = np.int64(digest & np.uint64(slots - 1))
        while table[slot] >= 0:
            c = 0
            while c < C and (not escaping[c] or transition[table[slot], c] == transition[s, c]):
                c += 1
            if c == C:
                break
            slot = (slot + 1) & (slots - 1)
        if table[slot] < 0:
            table[slot] = s
        first[s] = table[slot]

    capacity = N + 1024
    slots = 1024
    while slots < 2 * capacity:
        slots *= 2
    table = np.full(slots, -1, np.int32)
    codes = np.zeros(capacity, np.int64)
    rows = np.full((capacity, K), -1, np.int32)
    count = 1  # codes[0] is the content's start
    i = -1  # the round before the first puts it into the table
    while i < count:
        if count + 300 > capacity:  # a row has at most 256 new targets
            more = 2 * capacity + 300
            grown_codes, grown_rows = np.zeros(more, np.int64), np.full((more, K), -1, np.int32)
            grown_codes[:capacity] = codes
            grown_rows[:capacity] = rows
            codes, rows, capacity = grown_codes, grown_rows, more
            while slots < 2 * capacity:
                slots *= 2
            table = np.full(slots, -1, np.int32)
            for j in range(count):
                slot = slot_of(codes[j], slots)
                while table[slot] >= 0:
                    slot = (slot + 1) & (slots - 1)
                table[slot] = j
        kind, s, x = -1, 0, 0
        if i >= 0:
            kind, s, x = codes[i] >> 48, (codes[i] >> 8) & 0xFFFFFFFF, codes[i] & 0xFF
        for k in range(K if i >= 0 else 1):
            byte = byte_of[k]
            sort = special[byte]
            h = sort - 1 if sort < 17 else sort - 7  # of a hexadecimal digit
            to, t, known = _CONTENT, -1, 0
            if kind < 0:
                t = 0
            elif kind == _CONTENT:
                if sort == _QUOTE:
                    if label[s] >= 0:
                        rows[i, k] = -2 - label[s]
                elif sort == _BACKSLASH:
                    to, t = _ESCAPE, first[s]
                elif sort < _CONTROL:
                    t = transition[s, class_of[byte]]
            elif kind == _ESCAPE:
                if byte == 117:
                    to, t = _U, s
                elif short[byte] >= 0:
                    t = transition[s, class_of[short[byte]]]
            elif kind == _PAIR:
                if byte == 92:
                    to, t, known = _PAIR_ESCAPE, s, x
            elif kind == _PAIR_ESCAPE:
                if byte == 117:
                    to, t, known = _PAIR_U, s, x
            elif not 0 <= h < 16:
                continue
            elif kind == _U:
                if h == 0:
                    to, t = _U0, s
                elif ascii and h == 13:
                    to, t = _UD, s
                elif ascii:
                    to, t = _TWO, transition[s, class_of[0xE0 | h]]
            elif kind == _U0:
                if h == 0 or (ascii and h < 8):
                    to, t, known = _U0X, s, h
                elif ascii:
                    to, t, known = _TWO_HIGH, transition[s, class_of[0xE0]], h
            elif kind == _U0X:
                if x > 0 or h >= 8:
                    if ascii:
                        to, t, known = _ONE, transition[s, class_of[0xC0 | x << 2 | h >> 2]], h & 3
                elif h < 3 or h == 5 or (ascii and h == 7):
                    some, same = False, h == 1  # as after another zero
                    for low in range(16):
                        char = h << 4 | low
                        if h < 2 or char == 0x22 or char == 0x5C or char == 0x7F:
                            some = some or transition[s, class_of[char]] >= 0
                        same = same and transition[s, class_of[char]] == transition[s, class_of[low]]
                    if some:
                        to, t, known = _U00X, s, 0 if same else h
            elif kind == _U00X:
                if x < 2 or (x == 2 and h == 2) or (x == 5 and h == 12) or (x == 7 and h == 15):
                    t = transition[s, class_of[x << 4 | h]]
            elif kind == _TWO:
                to, t, known = _TWO_HIGH, s, h
            elif kind == _TWO_HIGH:
                to, t, known = _ONE, transition[s, class_of[0x80 | x << 2 | h >> 2]], h & 3
            elif kind == _ONE:
                t = transition[s, class_of[0x80 | x << 4 | h]]
            elif kind == _UD:
                if h < 8:
                    to, t, known = _TWO_HIGH, transition[s, class_of[0xED]], h
                elif h < 12:
                    to, t, known = _HIGH, s, h & 3
            elif kind == _HIGH:  # bits 19 .. 14 of what the pair stands for, which is the character less 10000
                plane = (x << 2 | h >> 2) + 1
                to, t, known = _HIGHER, transition[s, class_of[0xF0 | plane >> 2]], (plane & 3) << 2 | (h & 3)
            elif kind == _HIGHER:  # bits 17 .. 10 of the character are known: a byte, and two bits of the next one
                to, t, known = _PAIR, transition[s, class_of[0x80 | x << 2 | h >> 2]], h & 3
            elif kind == _PAIR_U:
                if h == 13:
                    to, t, known = _PAIR_UD, s, x
            elif kind == _PAIR_UD:
                if h >= 12:
                    to, t, known = _LOW, s, x << 2 | (h & 3)
            elif kind == _LOW:
                to, t, known = _ONE, transition[s, class_of[0x80 | x << 2 | h >> 2]], h & 3
            if t < 0:
                continue
            code = (np.int64(to) << 48) | (np.int64(t) << 8) | np.int64(known)
            slot = slot_of(code, slots)
            while table[slot] >= 0 and codes[table[slot]] != code:
                slot = (slot + 1) & (slots - 1)
            if table[slot] < 0:
                if i < 0:
                    count = 0
                table[slot] = count
                codes[count] = code
                count += 1
            if i >= 0:
                rows[i, k] = table[slot]
        i += 1
    # most digits and letters do nothing that others do not
    narrow, columns = merge_columns(wide, rows[:count])
    small = np.empty((count, columns.size), np.int32)
    for j in range(count):
        for k in range(columns.size):
            small[j, k] = rows[j, columns[k]]
    return narrow, small
