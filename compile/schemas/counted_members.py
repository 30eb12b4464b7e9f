"""Counts of members, and where they cannot be kept: a text may repeat an undeclared key, which is no further member."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from ...automata.formulas import Atom, Formula, Kind, kept
from ..json_schema.algebra import (
    OBJECT,
    AllOf,
    AnyOf,
    Contains,
    Items,
    MemberCount,
    Members,
    Names,
    Node,
    Not,
    Reference,
    Unique,
)
from .gated_nodes import SchemaNode
from .schema_formulas import Path, SchemaFormulas
from .state_atoms import Has, MembersAtLeast, atoms_in

MOST_COUNTED = 64
"""Undeclared keys of a class that are declared where members are counted."""
_TWICE = 'keys that "properties" does not declare are not remembered, and the same one twice would count as two'


@kept
def check_counts(required: int, known: frozenset[str], formula: Formula) -> None:
    """Raise SchemaError if a formula about an object asks for more undeclared members than can be told apart: for two.

    What may stay unenforced is noted instead. known: keys that the object has. required: how many other members it has.
    """
    kind, atom = formula.kind, formula.atom
    if kind is Kind.ATOM:
        if type(atom) is MembersAtLeast and atom.args[1] is not None and atom.args[0] - required - len(known) > 1:
            atom.args[1].approximate(_TWICE, "the same key twice as two")
        return
    before = required
    if kind is Kind.ALL_OF:
        known |= _required_in(formula)
        before += max([_least_required(known, part) for part in formula.parts])
    for part in formula.parts:
        check_counts(required if part.kind is Kind.ANY_OF else before, known, part)


def _required_in(formula: Formula) -> frozenset[str]:
    """Return the keys that a conjunction itself asks for."""
    return frozenset([part.atom.key for part in formula.parts if part.kind is Kind.ATOM and type(part.atom) is Has])


def _least_required(known: frozenset[str], formula: Formula) -> int:
    """Return how many keys besides known ones all alternatives ask for."""
    if formula.kind is Kind.ANY_OF:
        return min([_least_required(known, part) for part in formula.parts])
    if formula.kind is Kind.ALL_OF:
        return len(_required_in(formula) - known)
    return int(formula.kind is Kind.ATOM and type(formula.atom) is Has and formula.atom.key not in known)


def before_others(schema: SchemaFormulas, formula: Formula) -> Iterator[tuple[Formula, int]]:
    """Yield what a formula about an object says before undeclared keys, and how many keys that it names came then.

    Keys that must come have come; of the others, none, one, or all.
    """
    keys = {atom.key for atom in atoms_in(formula) if type(atom) is Has}
    parts = formula.parts if formula.kind is Kind.ALL_OF else (formula,)
    required = {part.atom.key for part in parts if part.kind is Kind.ATOM and type(part.atom) is Has}
    for came in [
        required,
        *[required | {key} for key in sorted(keys - required)],
        *([keys] if required < keys else []),
    ]:

        def of_atom(atom: Atom, came: set[str] = came) -> Formula:
            if type(atom) is Has:
                return schema.everything if atom.key in came else schema.nothing
            return schema.formulas.atom(atom)

        yield schema.formulas.mapped(formula, schema.formulas.exactly(of_atom), {}), len(came)


def without_counts(schema: SchemaFormulas, formula: Formula, path: Path = ()) -> Formula:
    """Return a formula without what it asks of the number of members of the object at a path."""

    def of_literal(literal: Formula) -> Formula:
        return schema.everything if type(literal.atom) is MembersAtLeast else literal

    return schema.step(formula, path, "without counts", of_literal)


Said = tuple[Members | Names, ...]
"""What holds of the members of an object."""


class Reach(Protocol):
    """Tells which members an object may have beside what is said of its members."""

    def may_have_any(self, node: Node, formula: Formula) -> bool:
        """Return whether an object of a node may have members. formula: that of the object once it has begun."""

    def may_have(self, said: Said, key: str) -> bool:
        """Return whether a member of a key may come, and some value be its."""

    def may_have_other(self, said: Said, members: Members, source: str | None) -> bool:
        """Return whether a key may come that Members do not declare.

        It is one that a pattern of theirs matches, or, with None, one that none does.
        """


def counting_formulas(schema: SchemaFormulas, whole: SchemaNode, reach: Reach) -> list[tuple[Node, Formula]]:
    """Return the formulas about objects that count members, as far as values are asked for by them alone.

    Each is about an object that has begun, and comes with the node that it is of. Members that plainly cannot come are
    passed over.
    """
    found: dict[Formula, Node] = {}
    values = [(whole.node, True)]
    known = set(values)
    for node, holds in values:  # which grows
        formula = _of_object(schema, node, holds)
        if _counts(formula):
            found[formula] = node
        has_members = reach.may_have_any(node, formula)
        for below in _values_below(schema, node, holds, reach if has_members else None):
            if below not in known:
                known.add(below)
                values.append(below)
    return [(node, formula) for formula, node in found.items()]


@kept
def _counts(formula: Formula) -> bool:
    atom: Atom = formula.atom
    if atom is not None:
        return type(atom) is MembersAtLeast and atom.args[1] is not None
    return any(map(_counts, formula.parts))


def _of_object(schema: SchemaFormulas, node: Node, holds: bool) -> Formula:
    """Return the formula of an object that has begun and is to be in a node, or not to be in it."""
    formula = schema.opened(schema.of(node), (), OBJECT)
    return schema.ungated(formula if holds else schema.formulas.negated(formula))


def _said(schema: SchemaFormulas, node: Node, holds: bool) -> Said:
    """Return what plainly holds of the members of an object that is to be in a node, or not to be in it."""
    formula = _of_object(schema, node, holds)
    parts = formula.parts if formula.kind is Kind.ALL_OF else (formula,)
    atoms = [part.atom for part in parts if part.kind is Kind.ATOM]
    return tuple([atom for atom in atoms if isinstance(atom, Members) or type(atom) is Names])


def _values_below(
    schema: SchemaFormulas, node: Node, holds: bool, reach: Reach | None
) -> Iterator[tuple[Node, bool]]:  # fmt: skip
    """Yield the nodes of the members and items of a node, and whether they are to be in them.

    reach: None where an object has no members.
    """
    of_all = _said(schema, node, holds)
    todo = [(node, holds, of_all)]
    seen = set(todo)
    while todo:
        node, holds, said = todo.pop()
        shape = type(node)
        if (shape is AllOf) is holds and (shape is AllOf or shape is AnyOf):  # what a conjunction says holds of it all
            said = tuple(dict.fromkeys([*of_all, *_said(schema, node, holds)]))
        inside: list[tuple[Node, bool]] = []
        if shape is AllOf or shape is AnyOf:
            inside = [(part, holds) for part in node.args]
        elif shape is Not:
            inside = [(node.args[0], not holds)]
        elif isinstance(node, Reference):
            branches = schema.gates.get(node)
            inside = [(node.node, holds)]
            if branches is not None:
                inside = [(branch, either) for branch in branches for either in (True, False)]
        elif isinstance(node, Members):
            if reach is None:
                continue
            yield from [(each, holds) for key, each in node.properties if reach.may_have(said, key)]
            yield from [(each, holds) for source, each in node.patterns if reach.may_have_other(said, node, source)]
            if reach.may_have_other(said, node, None):
                yield node.rest, holds
        elif isinstance(node, Items):
            yield from [(each, holds) for each in (*node.prefix, node.rest)]
        elif shape is Contains:
            yield node.args[0], True
            if not holds or node.args[2] is not None:
                yield node.args[0], False
        elif shape is Unique:
            yield from [(each, holds) for each in node.args[0]]
        for below, is_in in inside:
            entry = below, is_in, said
            if entry not in seen:
                seen.add(entry)
                todo.append(entry)


def is_counted(node: Node) -> bool:
    """Return whether a node is a count that may have to be approximated."""
    return type(node) is MemberCount and node.args[2] is not None
