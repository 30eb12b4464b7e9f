"""Sets of declared keys that formulas about objects require, name or allow: bits of an int, by place."""

from __future__ import annotations

from collections.abc import Iterator

from .algebra import NEVER, AllOf, AnyOf, Members, Node, Not, Required, Types, all_of, any_of, negate
from .member_letters import FINDING, Letters
from .negated_members import Beyond, Lacks
from .value_builder import Parts, ValueBuilder

_OF_ENTRY = 100  # bytes that a set was seen to take besides its bits

_OFTEN = 1 << 20  # bytes after which the meter is asked again


class KeptBytes:
    """Counts bytes that are kept, and asks the builder's meter once in a while."""

    def __init__(self, builder: ValueBuilder) -> None:
        self._builder, self.size, self._asked = builder, 0, 0

    def add(self, size: int) -> None:
        """Note that some bytes more are kept. Raises BudgetError."""
        self.size += size
        if self.size - self._asked > _OFTEN:
            self._asked = self.size
            self._builder.meter.check(bytes=self.size, doing=FINDING)


class KeySets:
    """The declared keys that formulas require, name or allow, each found once."""

    def __init__(self, letters: Letters, kept: KeptBytes) -> None:
        self._letters, self._place, self._kept = letters, letters.place, kept
        self._required: dict[Node, int] = {}
        self._said: dict[Node, int] = {}
        self._allowed: dict[Node, int] = {}
        self._absent: list[dict[Node, Node]] = [{} for _ in letters.keys]

    def without(self, node: Node, place: int) -> Node:
        """Return what is left of a formula if the object does not have the declared key at a place."""
        if not self.required_in(node) >> place & 1:
            return node
        shape = type(node)
        if shape is Required:
            return NEVER
        memo = self._absent[place]
        found = memo.get(node)
        if found is None:
            if shape is Not:
                found = negate(self.without(node.args[0], place))
            else:
                parts = [self.without(part, place) for part in node.args]
                found = all_of(parts) if shape is AllOf else any_of(parts)
            memo[node] = found
        return found

    def required_by(self, left: Parts) -> int:
        """Return the keys that the Required atoms of formulas name."""
        found = 0
        for node in left:
            found |= self.required_in(node)
        return found

    def required_in(self, node: Node) -> int:
        """Return the keys that a formula's Required atoms name."""
        shape = type(node)
        if shape is not AllOf and shape is not AnyOf and shape is not Not and shape is not Required:
            return 0
        found = self._required.get(node)
        if found is None:
            found = 0
            if shape is Required:
                for key in node.args[0]:
                    found |= 1 << self._place[key]
            else:
                for part in node.args:
                    found |= self.required_in(part)
            self._required[node] = found
            self._kept.add(_OF_ENTRY + found.bit_length() // 8)
        return found

    def said_by(self, node: Node) -> int:
        """Return the keys that a formula names."""
        shape = type(node)
        if shape is Required:
            return self.required_in(node)
        if shape is Lacks or shape is Beyond:
            return self.said_by(node.args[0])
        if shape is not AllOf and shape is not AnyOf and shape is not Not and shape is not Members:
            return 0
        found = self._said.get(node)
        if found is None:
            found = 0
            if shape is Members:
                for key, _ in node.args[0]:
                    found |= 1 << self._place[key]
            else:
                for part in node.args:
                    found |= self.said_by(part)
            self._said[node] = found
            self._kept.add(_OF_ENTRY + found.bit_length() // 8)
        return found

    def allowed_in(self, left: Parts) -> int:
        """Return the keys that what is left may have; -1 for any."""
        found = 0
        for node in left:
            found |= self._allowed_by(node)
        return found

    def _allowed_by(self, node: Node) -> int:
        found = self._allowed.get(node)
        if found is None:
            shape = type(node)
            found = -1
            if isinstance(node, Members):
                found = self._letters.declared(node)
            elif shape is Types:
                found = -1 if node.args[0] else 0
            elif shape is AllOf:
                for part in node.args:
                    found &= self._allowed_by(part)
            elif shape is AnyOf:
                found = 0
                for part in node.args:
                    found |= self._allowed_by(part)
                    if found < 0:
                        break
            self._allowed[node] = found
            self._kept.add(_OF_ENTRY + found.bit_length() // 8)
        return found


def places_of(keys: int) -> Iterator[int]:
    """Yield the places in a set of keys, from first to last."""
    while keys:
        last = keys & -keys
        yield last.bit_length() - 1
        keys ^= last
