"""Formulas about strings as automata over the UTF-8 of their content, and from there over their JSON text.

A string that no UTF-8 spells, one with a lone surrogate, can be a word of an enumeration, where it is written with an
escape; no automaton accepts one.

Where a format's language is known only between two bounds (see `formats`), a string in the gap is in neither the
formula nor its negation: it is refused on either side, and nothing is accepted wrongly.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np

from ...automata import ops, utf8
from ...automata.budget import Budget, Meter
from ...automata.dfa import BYTES, Dfa
from ...automata.labelled import Labelled, joint, labelled, minimized, overlaid, relabelled, spelled
from ...automata.minimize import canonical
from ...automata.utf8 import characters_left
from ...errors import SchemaError
from ..regex.lower import to_dfa
from . import formats
from .algebra import AllOf, AnyOf, Format, Length, Node, Not, Pattern, Types, Words, atoms, negate
from .memo import remembered
from .skeleton import Bounded, Finite, Free, Regular, StringSet

_MOST_COUNTED = 1 << 26  # states of a content and numbers of characters that a reader can number

_results: dict[tuple[Node, ...], StringSet | None] = {}
_languages: dict[object, Dfa] = {}
_partitions: dict[tuple[Node, ...], tuple[Labelled, list[tuple[bool, ...]]]] = {}


def texts(parts: tuple[Node, ...], meter: Meter) -> StringSet | None:
    """Return the strings in some part, label i for those in parts[i]; None if no string is in any.

    parts: formulas as `algebra.restrict` makes them for STRING, pairwise disjoint. Raises BudgetError, RegexError.
    """
    return remembered(_results, parts, lambda: _texts(parts, meter))


def _texts(parts: tuple[Node, ...], meter: Meter) -> StringSet | None:
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


def _alone(label: int, node: Node, meter: Meter) -> StringSet | None:
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


def _by_length(parts: Mapping[int, Node], meter: Meter) -> StringSet | None:
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
