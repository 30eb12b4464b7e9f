"""All strings as one automaton that tells keys, and classes of other strings, apart."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...automata import utf8
from ...automata.budget import Meter
from ...automata.labelled import Labelled, joint, minimized, overlaid, relabelled
from . import formats
from .algebra import Format, Node, atoms, negate
from .memo import remembered
from .string_languages import language, utf8_of

_partitions: dict[tuple[Node, ...], tuple[Labelled, list[tuple[bool, ...]]]] = {}


def partition(keys: Sequence[str], languages: Sequence[Node], meter: Meter) -> tuple[Labelled, list[tuple[bool, ...]]]:
    """Return the strings with label j for keys[j], and len(keys) + c for a string of class c that is none of the keys.

    languages: formulas as `algebra.restrict` makes them for STRING. Strings of one class are in the same languages. The
    list says of each class which languages its strings are in; every class has a string. Raises BudgetError and
    RegexError.
    """
    base, classes = remembered(_partitions, tuple(languages), lambda: _classes(languages, meter))
    return (base, classes) if not keys else _overlaid(base, classes, keys, meter)


def _classes(languages: Sequence[Node], meter: Meter) -> tuple[Labelled, list[tuple[bool, ...]]]:
    """Return all strings with their class as label, and the languages of each class."""
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
    meter.check(bytes=2 * inside.size, doing="telling keys apart")
    packed = np.packbits(inside[ends, 1 : 1 + len(languages)], axis=1)  # in the order of the rows, and faster to sort
    packed, number = np.unique(packed, axis=0, return_inverse=True)
    truths = np.unpackbits(packed, axis=1, count=len(languages)).astype(np.bool_)
    label = np.full(ends.size, -1, np.int32)
    label[ends] = number.reshape(-1)
    found = Labelled(class_of, transition, label)
    if gaps:
        found = minimized(class_of, transition, label, meter)
    return found, list(map(tuple, truths.tolist()))


def _overlaid(
    base: Labelled, classes: list[tuple[bool, ...]], keys: Sequence[str], meter: Meter
) -> tuple[Labelled, list[tuple[bool, ...]]]:
    """Return the automaton in which some keys have labels of their own, and the classes that other strings still have.

    Each node of the keys' trie leads to a key whose label no other string has, so that no states can be merged.
    """
    shifted = base._replace(label=np.where(base.label >= 0, base.label + np.int32(len(keys)), np.int32(-1)))
    found = overlaid(shifted, utf8_of({key: j for j, key in enumerate(keys)}), meter)
    label = found.label
    left = np.unique(label[label >= len(keys)]) - len(keys)
    if left.size < len(classes):
        renamed = np.full(len(classes) + len(keys) + 1, -1, np.int32)
        renamed[: len(keys)] = np.arange(len(keys))
        renamed[len(keys) + left] = len(keys) + np.arange(left.size)
        found = found._replace(label=renamed[label])
        classes = [classes[c] for c in left.tolist()]
    return found, classes
