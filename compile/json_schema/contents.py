"""Labelled DFAs of the contents of strings: which states are needed, and in which order their labels are told."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...automata.labelled import Labelled, states_before
from ...automata.utf8 import characters_left


def has_several_labels(content: Labelled) -> bool:
    """Return whether words end with several labels."""
    ends = content.label[content.label >= 0]
    return bool((ends != ends[0]).any())


def ordered(label: NDArray[Any], free: int) -> tuple[NDArray[Any], tuple[int, ...]]:
    """Return labels renumbered by their place in an order, and that order.

    The label of the free state comes first, as any string ends by label 0. free: -1 for no such state.
    """
    order = tuple(range(int(label.max()) + 1))
    if free < 0 or not label[free]:
        return label, order
    order = (int(label[free]), *(other for other in order if other != label[free]))
    place = np.full(len(order) + 1, -1, np.int32)
    place[list(order)] = np.arange(len(order))
    return place[label], order


def before_each(content: Labelled) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Return `states_before` of a content."""
    found: tuple[NDArray[np.int64], NDArray[np.int32]] = states_before(
        np.ascontiguousarray(content.transition, np.int32)
    )
    return found


def characters_needed(content: Labelled) -> NDArray[np.int32]:
    """Return how many characters must follow each state (N,), -1 where no word can be read on."""
    class_of = np.ascontiguousarray(content.class_of, np.uint16)
    needed: NDArray[np.int32] = characters_left(
        class_of, np.ascontiguousarray(content.transition, np.int32), content.label >= 0, False
    )
    return needed


def trimmed(content: Labelled, live: NDArray[np.bool_]) -> Labelled:
    """Return an automaton without the states that are not live; no live state needs them."""
    number = np.append(np.where(live, np.cumsum(live) - 1, -1), -1).astype(np.int32)
    return Labelled(content.class_of, number[content.transition[live]], content.label[live])
