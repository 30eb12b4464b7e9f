"""The keys of an object as letters: a letter for each declared key, and one for each class of other keys."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ...automata.deadline import look
from ...automata.labelled import Labelled
from .algebra import (
    ANY,
    STRING,
    Members,
    Node,
    Pattern,
    Words,
    all_of,
    atoms,
    is_any,
    is_never,
    restrict,
)
from .key_classes import partition
from .string_languages import holds
from .value_builder import ValueBuilder

FINDING = "finding the states of an object"
FEW = 64  # undeclared keys of a class that are declared where members are counted


class Letters:
    """The letters of an object: declared keys are letters 0 .. len(keys) - 1, then come classes of all other keys.

    Behind these `num` letters, letter num + j is key j where no formula names it.
    """

    def __init__(
        self, builder: ValueBuilder, keys: tuple[str, ...], members: Sequence[Members], names: Iterable[Node]
    ) -> None:
        self._meter = builder.meter
        flat = builder.cases.flat
        languages: dict[Node, int] = {}
        self.keys = keys
        self.place = {key: place for place, key in enumerate(keys)}
        self._flat = flat
        self._names: dict[Node, int] = {}
        self._members: dict[Members, tuple[dict[str, Node], list[tuple[int, Node]], Node]] = {}
        for one in members:
            rest = flat(one.rest)
            patterns = []
            for source, node in one.patterns:
                node = flat(node)
                if not (is_any(rest) and is_any(node)):  # else it says nothing
                    patterns.append((languages.setdefault(Pattern(source), len(languages)), node))
            self._members[one] = (dict(one.properties), patterns, rest)
        for name in names:
            self._names[name] = languages.setdefault(restrict(flat(name), STRING), len(languages))
        self._languages = list(languages)
        self.language: Labelled | None = None
        self._classes: Sequence[tuple[bool, ...]] = [()]
        if languages:
            self.language, self._classes = partition(keys, self._languages, builder.meter)
        self.num = len(keys) + len(self._classes)

    def few(self) -> list[str]:
        """Return the undeclared keys of classes that have few, first those that the schema lists, in its order."""
        words: set[str] = set()
        for letter in range(len(self.keys), self.num if self.language is not None else 0):
            look(FINDING)
            assert self.language is not None
            words.update(word.decode() for word in self.language.words(letter, FEW, self._meter) or ())
        listed = [word for atom in atoms(*self._names) if type(atom) is Words for word in atom.args[0] if word in words]
        return [*dict.fromkeys(listed + sorted(words))]

    def _holds(self, language: int, letter: int) -> bool:
        """Return whether the keys of a letter are in a language."""
        if not len(self.keys) <= letter < self.num:
            return holds(self._languages[language], self.keys[letter % self.num])
        return self._classes[letter - len(self.keys)][language]

    def named(self, name: Node, letter: int) -> bool:
        """Return whether the keys of a letter are in the node of a Names."""
        return self._holds(self._names[name], letter)

    def node(self, members: Members, letter: int) -> Node:
        """Return the node that the value of a member with a key of this letter must be in."""
        properties, patterns, rest = self._members[members]
        found = properties.get(self.keys[letter]) if letter < len(self.keys) else None
        nodes = [] if found is None else [self._flat(found)]
        for language, node in patterns:
            if self._holds(language, letter):
                nodes.append(node)
        if not nodes:
            return rest
        return nodes[0] if len(nodes) == 1 else all_of(nodes)

    def reach(self, members: Members) -> tuple[int, Node]:
        """Return the place behind the last key that Members declare, and what they say from there on."""
        properties, patterns, rest = self._members[members]
        place = max([self.place[key] + 1 for key in properties], default=0)
        if not patterns and is_any(rest):
            return place, ANY
        bare = Members((), members.patterns if patterns else (), rest)
        self._members[bare] = ({}, patterns, rest)
        return place, bare

    def declared(self, members: Members) -> int:
        """Return the declared keys that Members allow, a bit each by place; -1 for any key."""
        properties, patterns, rest = self._members[members]
        if patterns or not is_never(rest):
            return -1
        return sum([1 << self.place[key] for key in properties])
