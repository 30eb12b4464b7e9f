"""The trie of an object's declared keys, and the rows of all states within a key at once.

Where a key may come, a mask asks for a row behind each beginning of each declared key. From object to object, and from
member to member, these rows differ in no more than what whole keys lead to. So they are made together.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from .content_sets import Groups

_MOST_KEYS, _MOST_BRANCHES = 16, 1024  # of a block

Codes = NDArray[np.int32]


class KeyBranch:
    """A place in the trie of an object's keys.

    depth: how many characters lead here. key: the place of the key that ends here, or -1.
    """

    __slots__ = ("_block", "below", "branches", "depth", "key")

    def __init__(self, depth: int = 0) -> None:
        self.key, self.depth = -1, depth
        self.branches: dict[str, KeyBranch] = {}
        self.below: list[int] = []  # the places of all keys that go on from here, or end here
        self._block: KeyBlock | bool = False

    @property
    def block(self) -> KeyBlock | None:
        """Return the branch and all below it; None where these are many."""
        found = self._block
        if found is False:
            found = self._block = len(self.below) > _MOST_KEYS or _block_of(self)
        return None if isinstance(found, bool) else found


def trie_of(keys: Iterable[str]) -> KeyBranch:
    """Return the trie of keys, whose places count from 0."""
    root = KeyBranch()
    for place, key in enumerate(keys):
        here = root
        here.below.append(place)
        for character in key:
            here = here.branches.setdefault(character, KeyBranch(here.depth + 1))
            here.below.append(place)
        here.key = place
    return root


class KeyBlock:
    """N branches of a trie, the topmost first, with the P keys that go on from it.

    links: the branch that each but the first follows, and the character between them.
    """

    def __init__(self, branches: Sequence[KeyBranch], links: Sequence[tuple[int, str]]) -> None:
        self.branches, self.keys = branches, branches[0].below
        self._links = links
        self._groups: tuple[Codes, Codes] | None = None  # of the links: the branches before them, the groups
        column = {key: k for k, key in enumerate(self.keys)}
        self._through = np.zeros((len(self.keys), len(branches)), np.bool_)  # by key: the branches on its way
        for n, branch in enumerate(branches):
            self._through[[column[key] for key in branch.below], n] = True
        ends = [(n, column[branch.key]) for n, branch in enumerate(branches) if branch.key >= 0]
        self._ends = np.array(ends, np.int32).reshape(-1, 2).T

    def towards(self, keys: Sequence[bool]) -> NDArray[np.bool_]:
        """Return which branches (N,) some of the keys (P,) go on from, or end in."""
        found: NDArray[np.bool_] = np.any(self._through[np.array(keys, np.bool_)], axis=0)
        return found

    def rows(self, states: Codes, behind: Sequence[int], other: int, other_end: int, groups: Groups) -> Codes:
        """Return the rows (N, C) of all branches.

        states: of each branch (N,). behind: where each key (P,) leads with its closing quote. other, other_end: where a
        character leads with which no declared key goes on, and a closing quote that ends none.
        """
        if self._groups is None:
            before = np.array([n for n, _ in self._links], np.int32)
            self._groups = before, np.array([groups.of_character[c] for _, c in self._links], np.int32)
        before, group = self._groups
        codes = np.full((len(states), len(groups.points)), other, np.int32)
        codes[before, group] = states[1:]
        codes[:, groups.end] = other_end
        codes[self._ends[0], groups.end] = np.array(behind, np.int32)[self._ends[1]]
        return codes[:, groups.of_class]


def _block_of(root: KeyBranch) -> KeyBlock | bool:
    """Return the block of a branch; True if it has many branches."""
    branches, links = [root], []
    for n, branch in enumerate(branches):  # which grows
        for character, below in branch.branches.items():
            branches.append(below)
            links.append((n, character))
        if len(branches) > _MOST_BRANCHES:
            return True
    return KeyBlock(branches, links)
