"""The keys that formulas about an object name, in the order of writing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from ...automata.formulas import Formula, Kind, kept
from ..json_schema.algebra import (
    OBJECT,
    STRING,
    AllOf,
    AnyOf,
    MemberCount,
    Members,
    Names,
    Node,
    Not,
    Pattern,
    Reference,
    Required,
    Types,
    Words,
    atoms,
    restrict,
)
from ..json_schema.escapes import has_spellings
from ..json_schema.key_classes import partition
from ..json_schema.key_order import in_order
from .counted_members import MOST_COUNTED, is_counted
from .key_trie import trie_of
from .schema_formulas import Path, SchemaFormulas
from .state_atoms import Has, Lacks, MembersAtLeast, atoms_in


class ObjectShape:
    """What does not change while the members of an object are written.

    keys: those that formulas name, in the order of writing. members: the Members of formulas, in the order of the
    schema. is_told: whether other keys are told apart, by patterns or what names of keys must be. is_strict: whether it
    may matter that a key comes again. absent: keys that formulas may ask not to come.
    """

    def __init__(
        self, keys: tuple[str, ...], members: tuple[Members, ...], is_told: bool, is_strict: bool,
        absent: frozenset[str], ascii: bool,
    ) -> None:  # fmt: skip
        self.keys, self.members, self.is_told, self.is_strict = keys, members, is_told, is_strict
        self.end = len(keys)
        self.place = {key: place for place, key in enumerate(keys)}
        self.has_spellings = any(has_spellings(key, ascii) for key in keys)
        self.is_ascii = all(map(str.isascii, keys))
        declared = {key for one in members for key, _ in one.properties}
        self.declared = 0 if is_strict else sum([1 << self.place[key] for key in declared - absent])
        self.absent = sum([1 << self.place[key] for key in absent])
        self.unsaid = 0  # keys of which formulas say nothing at the beginning, as something else says more
        self.trie = trie_of(keys)

    @property
    def all_keys(self) -> int:
        """All keys, a bit each."""
        return (1 << self.end) - 1

    def said_by(self, atoms: Iterable[Any]) -> int:
        """Return the keys that atoms name, a bit each."""
        said = 0
        for atom in atoms:
            if type(atom) is Has:
                said |= 1 << self.place[atom.key]
            elif isinstance(atom, Members):
                for key, _ in atom.args[0]:
                    said |= 1 << self.place[key]
        return said

    def reach(self, members: Members) -> int:
        """Return the place behind the last key that Members declare."""
        return max([self.place[key] + 1 for key, _ in members.args[0] if key in self.place], default=0)


class ObjectShapes:
    """Makes shapes, each once."""

    def __init__(self, schema: SchemaFormulas, ascii: bool) -> None:
        self._schema, self._ascii = schema, ascii
        self._known: dict[Any, ObjectShape] = {}
        self._walks = NodeWalk(schema)

    def shape(self, formula: Formula, path: Path, asked: Sequence[Node]) -> ObjectShape:
        """Return the shape of the object at a path, before its first member.

        asked: the nodes that its value is asked to be in, in the order of the schema.
        """
        here = object_atoms(self._schema, formula, path)
        if len(asked) > 1 or path:  # alternatives may be out
            asked = [node for node in asked if not here.keys().isdisjoint(self._walks.atoms(node))]
        parts = self._schema.innermost(formula, path)
        is_strict = (
            bool(path)
            or any(type(atom) is MembersAtLeast for atom in here)
            or any(_fails(False, part) for part in parts)
        )
        absent = frozenset().union(*[_absent(bool(path), part) for part in parts])
        key = tuple(asked), is_strict, absent, bool(path), frozenset(here)
        found = self._known.get(key)
        if found is None:
            mentions = self._walks.mentions(asked, is_conjunction=not path)
            keys = in_order(_orders(mentions))
            if any(map(is_counted, mentions)):
                keys = (*keys, *self._few(keys, mentions))
            told = any(
                type(atom) is Names or (isinstance(atom, Members) and bool(self._telling_patterns(atom)))
                for atom in mentions
            )
            members = tuple([atom for atom in mentions if isinstance(atom, Members)])
            made = ObjectShape(keys, members, told, is_strict, absent, self._ascii)
            made.unsaid = made.all_keys & ~made.said_by(here)
            equal = keys, members, told, is_strict, absent, made.unsaid
            found = self._known[key] = self._known.setdefault(equal, made)
        return found

    def _few(self, keys: tuple[str, ...], mentions: Sequence[Node]) -> list[str]:
        """Return the undeclared keys of classes that have few, so that they are counted as declared keys are.

        First come those that the schema lists, in its order.
        """
        schema = self._schema
        names = [restrict(atom.args[0], STRING) for atom in mentions if type(atom) is Names]
        patterns = [
            Pattern(source) for atom in mentions if isinstance(atom, Members) for source in self._telling_patterns(atom)
        ]
        if not names and not patterns:
            return []
        language, classes = partition(keys, [*dict.fromkeys([*patterns, *names])], schema.meter)
        words: set[str] = set()
        for letter in range(len(keys), len(keys) + len(classes)):
            words.update(word.decode() for word in language.words(letter, MOST_COUNTED, schema.meter) or ())
        listed = [word for atom in atoms(*names) if type(atom) is Words for word in atom.args[0] if word in words]
        return [*dict.fromkeys(listed + sorted(words))]

    def _telling_patterns(self, members: Members) -> list[str]:
        """Return the patterns by which Members tell keys that they do not declare apart."""
        schema = self._schema
        _, patterns, rest = members.args
        is_any = schema.is_any(rest)
        return [source for source, node in patterns if not (is_any and schema.is_any(node))]


@kept
def _fails(in_gate: bool, formula: Formula) -> bool:
    """Return whether a formula asks that some member fail what Members say. in_gate: it is of a branch of a gate."""
    if formula.atom is not None:
        return isinstance(formula.atom, Members) and (in_gate or formula.kind is Kind.NOT)
    return any(_fails(in_gate or formula.kind in _GATES, part) for part in formula.parts)


@kept
def _absent(is_negated: bool, formula: Formula) -> frozenset[str]:
    """Return the keys that a formula may ask not to come. is_negated: it may be asked not to hold."""
    atom = formula.atom
    if atom is not None:
        return frozenset([atom.key] if type(atom) is Has and (is_negated or formula.kind is Kind.NOT) else ())
    return frozenset().union(*[_absent(is_negated or formula.kind in _GATES, part) for part in formula.parts])


_GATES = (Kind.ONE_OF, Kind.NOT_ONE_OF)


def object_atoms(schema: SchemaFormulas, formula: Formula, path: Path) -> dict[Any, None]:
    """Return the atoms about the object at a path; in place of `Lacks` the Members that it is about."""
    found: dict[Any, None] = {}
    for part in schema.innermost(formula, path):
        for atom in atoms_in(part):
            found[atom.args[0] if type(atom) is Lacks else atom] = None
    return found


def _orders(mentions: Iterable[Node]) -> list[list[str]]:
    """Return the orders of keys that atoms mention, as `json_schema.key_order` has them."""
    declared = {key for atom in mentions if isinstance(atom, Members) for key, _ in atom.properties}
    orders: list[list[str]] = []
    for atom in mentions:
        if isinstance(atom, Members):
            orders.append([key for key, _ in atom.properties])
        elif type(atom) is Required:
            orders.extend([[key] for key in atom.args[0] if key not in declared])
    return orders


class NodeWalk:
    """The atoms about objects in nodes, in the order of the schema, without those of which other types depend."""

    def __init__(self, schema: SchemaFormulas) -> None:
        self._schema = schema
        self._constant: dict[Node, bool | None] = {}
        self._atoms: dict[Node, frozenset[Any]] = {}

    def mentions(self, nodes: Sequence[Node], is_conjunction: bool) -> tuple[Node, ...]:
        """Return the Members, Required and Names of nodes, each once.

        Keys that are only required come last in their conjunction. is_conjunction: of all the nodes.
        """
        found: dict[Node, None] = {}
        seen: set[Node] = set()
        if is_conjunction and len(nodes) > 1:
            parts = [part for node in nodes for part in (node.args if type(node) is AllOf else (node,))]
            self._conjunction(parts, found, seen)
        else:
            for node in nodes:
                self._visit(node, found, seen)
        return tuple(found)

    def atoms(self, node: Node) -> frozenset[Any]:
        """Return the atoms of formulas that may come of a node."""
        known = self._atoms.get(node)
        if known is None:
            found: set[Any] = set()
            for atom in self.mentions((node,), False):
                found.update([Has(key) for key in atom.args[0]] if type(atom) is Required else [atom])
            known = self._atoms[node] = frozenset(found)
        return known

    def _visit(self, node: Node, found: dict[Node, None], seen: set[Node]) -> None:
        shape = type(node)
        if shape is Members or shape is Required or shape is Names or shape is MemberCount:
            found[node] = None
        elif shape is Not:
            self._visit(node.args[0], found, seen)
        elif node in seen or node.kind or self.truth(node) is not None:
            return
        elif shape is AllOf or shape is AnyOf:
            seen.add(node)
            self._conjunction(node.args, found, seen)
        elif isinstance(node, Reference):
            seen.add(node)
            branches = self._schema.gates.get(node)
            if branches is None:
                self._visit(node.node, found, seen)
                return
            for i, branch in enumerate(branches):  # each stands beside the negations of the others
                others = [Not(other) for j, other in enumerate(branches) if j != i]
                self._conjunction([*(branch.args if type(branch) is AllOf else (branch,)), *others], found, seen)

    def _conjunction(self, nodes: Iterable[Node], found: dict[Node, None], seen: set[Node]) -> None:
        late = []
        for part in map(self._alone, nodes):
            if type(part) is Required:
                late.append(part)
            else:
                self._visit(part, found, seen)
        found.update(dict.fromkeys(late))

    def _alone(self, node: Node) -> Node:
        """Return the one part of a node that says anything of objects, if there is but one, else the node."""
        while type(node) is AllOf or type(node) is AnyOf:
            left = [part for part in node.args if self.truth(part) is not (type(node) is AllOf)]
            if len(left) != 1:
                break
            node = left[0]
        return node

    def truth(self, node: Node) -> bool | None:
        """Return whether all objects are plainly in a node, or none; None where it depends."""
        if node not in self._constant:
            self._constant[node] = None  # of a gate that refers to itself through a reference
            self._constant[node] = self._truth(node)
        return self._constant[node]

    def _truth(self, node: Node) -> bool | None:
        shape = type(node)
        if shape is Types:
            return bool(node.args[0] & OBJECT)
        if shape is AllOf or shape is AnyOf:
            settles = shape is AnyOf
            truths = [self.truth(part) for part in node.args]
            if settles in truths:
                return settles
            return None if None in truths else not settles
        if shape is Not:
            inner = self.truth(node.args[0])
            return None if inner is None else not inner
        if isinstance(node, Reference):
            return None if node in self._schema.gates else self.truth(node.node)
        return None if node.kind == OBJECT else True


def array_atoms(schema: SchemaFormulas, nodes: Iterable[Node], seen: set[Node]) -> Iterator[Node]:
    """Yield the atoms about arrays of some nodes, in the order of the schema."""
    for node in nodes:
        shape = type(node)
        if shape is Types or node in seen:
            continue
        seen.add(node)
        if shape is AllOf or shape is AnyOf or shape is Not:
            yield from array_atoms(schema, node.args, seen)
        elif isinstance(node, Reference):
            branches = schema.gates.get(node)
            yield from array_atoms(schema, (node.node,) if branches is None else branches, seen)
        else:
            yield node
