"""The keys that formulas about an object name, in the order of writing, and how keys are read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from ...automata.formulas import Formula, Inside
from ..json_schema.algebra import AllOf, AnyOf, Members, Names, Node, Not, Reference, Required, Types
from ..json_schema.escapes import has_spellings
from ..json_schema.key_order import in_order
from .schema_formulas import Path, SchemaFormulas
from .state_atoms import Has, Lacks


class KeyBranch:
    """A place in the trie of an object's keys. key: the place of the key that ends here, or -1."""

    __slots__ = ("below", "branches", "key")

    def __init__(self) -> None:
        self.key = -1
        self.branches: dict[str, KeyBranch] = {}
        self.below: list[int] = []  # the places of all keys that go on from here, or end here


class ObjectShape:
    """What does not change while the members of an object are written.

    keys: those that formulas name, in the order of writing. members: the Members of formulas, in the order of the
    schema. is_told: whether other keys are told apart, by patterns or what names of keys must be.
    """

    def __init__(self, keys: tuple[str, ...], members: tuple[Members, ...], is_told: bool, ascii: bool) -> None:
        self.keys, self.members, self.is_told = keys, members, is_told
        self.end = len(keys)
        self.place = {key: place for place, key in enumerate(keys)}
        self.has_spellings = any(has_spellings(key, ascii) for key in keys)
        self.is_ascii = all(map(str.isascii, keys))
        self.trie = KeyBranch()
        for place, key in enumerate(keys):
            here = self.trie
            here.below.append(place)
            for character in key:
                here = here.branches.setdefault(character, KeyBranch())
                here.below.append(place)
            here.key = place

    def reach(self, members: Members) -> int:
        """Return the place behind the last key that Members declare."""
        return max([self.place[key] + 1 for key, _ in members.args[0] if key in self.place], default=0)


class ObjectShapes:
    """Makes shapes, each once."""

    def __init__(self, schema: SchemaFormulas, ascii: bool) -> None:
        self._schema, self._ascii = schema, ascii
        self._known: dict[Any, ObjectShape] = {}
        self._told: dict[Members, bool] = {}

    def shape(self, formula: Formula, path: Path, asked: Sequence[Node]) -> ObjectShape:
        """Return the shape of the object at a path, before its first member.

        asked: the nodes that its value is asked to be in, in the order of the schema.
        """
        atoms = object_atoms(self._schema, formula, path)
        key = tuple(asked), frozenset(atoms), bool(path)
        found = self._known.get(key)
        if found is None:
            walk = _Walk(self._schema, atoms)
            if path or len(asked) == 1:
                for node in asked:
                    walk.visit(node)
            else:
                walk.conjunction(asked)
            keys = in_order(walk.orders())
            told = any(type(atom) is Names or (type(atom) is Members and self.is_told(atom)) for atom in walk.atoms)
            made = ObjectShape(keys, tuple(walk.members), told, self._ascii)
            # one object for equal shapes
            found = self._known.setdefault((made.keys, made.members, told), made)
            self._known[key] = found
        return found

    def is_told(self, members: Members) -> bool:
        """Return whether Members tell keys that they do not declare apart."""
        found = self._told.get(members)
        if found is None:
            schema = self._schema
            _, patterns, rest = members.args
            is_any = schema.is_any(rest)
            found = any(not (is_any and schema.is_any(node)) for _, node in patterns)
            self._told[members] = found
        return found


def object_atoms(schema: SchemaFormulas, formula: Formula, path: Path) -> dict[Any, None]:
    """Return the atoms about the object at a path; in place of `Lacks` the Members that it is about."""
    found: dict[Any, None] = {}
    for part in schema.innermost(formula, path):
        for atom in atoms_in(part):
            found[atom.args[0] if type(atom) is Lacks else atom] = None
    return found


def atoms_in(formula: Formula) -> tuple[Any, ...]:
    """Return the atoms of a formula at its own level, each once."""
    known: tuple[Any, ...] | None = formula.memo.get("atoms")
    if known is None:
        found: dict[Any, None] = {}
        if formula.atom is not None and type(formula.atom) is not Inside:
            found[formula.atom] = None
        for part in formula.parts:
            found.update(dict.fromkeys(atoms_in(part)))
        known = formula.memo["atoms"] = tuple(found)
    return known


class _Walk:
    """The keys of nodes in the order of the schema, as `json_schema.key_order` has it, of some atoms alone."""

    def __init__(self, schema: SchemaFormulas, atoms: dict[Any, None]) -> None:
        self._schema, self.atoms = schema, atoms
        self.members: dict[Members, None] = {}
        self._declared = {key for atom in atoms if type(atom) is Members for key, _ in atom.args[0]}
        self._required = {atom.key for atom in atoms if type(atom) is Has}
        self._orders: list[list[str]] = []
        self._seen: set[Node] = set()

    def orders(self) -> Iterable[Sequence[str]]:
        """Return the orders that were noted, and those of atoms that no node that was visited has."""
        for atom in self.atoms:
            if type(atom) is Members:
                self.visit(atom)
        left = self._required - {key for order in self._orders for key in order}
        return [*self._orders, *[[key] for key in sorted(left)]]

    def visit(self, node: Node) -> None:
        """Note the keys of a node."""
        shape = type(node)
        if isinstance(node, Members):
            if node in self.atoms and node not in self.members:
                self.members[node] = None
                self._orders.append([key for key, _ in node.properties])
        elif shape is Not:
            self.visit(node.args[0])
        elif shape is Types or node in self._seen:
            return
        elif shape is Required:
            self._seen.add(node)
            wanted = (key for key in node.args[0] if key in self._required and key not in self._declared)
            self._orders.extend([[key] for key in wanted])
        elif shape is AllOf or shape is AnyOf:
            self._seen.add(node)
            self.conjunction(node.args)
        elif isinstance(node, Reference):
            self._seen.add(node)
            branches = self._schema.gates.get(node)
            if branches is None:
                self.visit(node.node)
            else:
                self._gate(branches)

    def conjunction(self, nodes: Iterable[Node]) -> None:
        """Note the keys of several nodes, those last that are only required."""
        late = []
        for part in nodes:
            if type(part) is Required:
                late.append(part)
            else:
                self.visit(part)
        for part in late:
            self.visit(part)

    def _gate(self, branches: Sequence[Node]) -> None:
        """Note the keys of branches, of which each stands beside the negations of the others."""
        for i, branch in enumerate(branches):
            others = [other for j, other in enumerate(branches) if j != i]
            self.conjunction([*(branch.args if type(branch) is AllOf else (branch,)), *map(_plain, others)])


def _plain(node: Node) -> Node:
    """Return a node that `conjunction` visits where it stands."""
    return Not(node)


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


