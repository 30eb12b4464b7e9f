"""Formulas about strings as sets of strings that a machine can read: any, bounded, listed, or by their content.

A string with a lone surrogate has no UTF-8. It can be a word of an enumeration, and is written with an escape then; no
automaton accepts one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ...automata import ops, utf8
from ...automata.budget import Meter
from ...automata.dfa import Dfa
from ...automata.labelled import Labelled, labelled, minimized, overlaid, relabelled
from ...automata.utf8 import characters_left
from .algebra import AllOf, AnyOf, Length, Node, Not, Types, Words, atoms, once_each
from .memo import remembered
from .skeleton import Bounded, Finite, Free, Regular, StringSet
from .string_languages import counted, is_text, language, nothing, spelled_out, truth_of, uncut, utf8_of

_MOST_COUNTED = 1 << 26  # states of a content, times characters, that a reader can number

_results: dict[tuple[Node, ...], StringSet | None] = {}


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
        return Regular(minimized(*overlaid(free, utf8_of(dict.fromkeys(excluded, -1) | words), meter), meter))
    dfas = {i: dfa for i in others if not (dfa := language(parts[i], meter)).is_empty}
    if not dfas:
        return Finite(words) if words else None
    listing: dict[int, list[str]] = {}
    for word, i in words.items():
        listing.setdefault(i, []).append(word)
    dfas.update({i: spelled_out(tuple(listed), meter) for i, listed in listing.items()})
    empty = nothing()
    return Regular(labelled([dfas.get(i, empty) for i in range(len(parts))], meter))


def _alone(label: int, node: Node, meter: Meter) -> StringSet | None:
    """Return the strings in one formula. The reader counts their characters, not the automaton, if it can."""
    dfa, most = uncut(node, meter)
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
    """Return the strings of a text as a DFA that counts their characters, if these are bounded."""
    content, most = text.content, text.most
    if most is None:
        return content
    dfa = Dfa(content.class_of, content.transition, content.label >= 0)
    return relabelled(ops.intersection(dfa, counted(0, most, meter), meter), int(content.label.max()))


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
    """Return the strings in some formula, each with its label, of formulas that are about lengths alone."""
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


@once_each
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


@once_each
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
                return [word for word in listed if all(truth_of(other, word, meter) for other in others)]
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
    """Return the strings that a formula excludes, if it does nothing but list them and one has UTF-8; else None."""
    found: dict[str, None] = {}
    for part in node.args if type(node) is AllOf else (node,):
        if type(part) is not Not or type(part.args[0]) is not Words:
            return None
        found.update(dict.fromkeys(part.args[0].args[0]))
    return found if any(map(is_text, found)) else None
