"""What is left of formulas about arrays when an item begins, and what they ask of it."""

from __future__ import annotations

from ...automata.formulas import Atom, Formula
from ..json_schema.algebra import Items, Node, Unique, is_any
from .schema_formulas import VALUE, Path, SchemaFormulas
from .state_atoms import Contained, ItemsAtLeast


def by_item(schema: SchemaFormulas, formula: Formula, path: Path) -> Formula:
    """Return what is left of a formula about the array at a path when one more item begins."""
    return schema.step(formula, path, "item", schema.formulas.exactly(lambda atom: _after(schema, atom)))


def _after(schema: SchemaFormulas, atom: Atom) -> Formula:
    f, shape = schema.formulas, type(atom)
    if shape is Items:
        prefix, rest = atom.args
        asked = f.inside(VALUE, schema.of(prefix[0] if prefix else rest))
        if not prefix:
            return f.all_of(asked, f.atom(atom))
        left = schema.everything if len(prefix) == 1 and is_any(rest) else f.atom(Items(prefix[1:], rest))
        return f.all_of(asked, left)
    if shape is ItemsAtLeast:
        (least,) = atom.args
        return f.atom(ItemsAtLeast(least - 1)) if least > 1 else schema.everything
    if shape is Contained:
        node, least = atom.args
        fewer = f.atom(Contained(node, least - 1)) if least > 1 else schema.everything
        return f.any_of(f.all_of(f.inside(VALUE, schema.of(node)), fewer), f.atom(atom))
    if shape is Unique:
        (left,) = atom.args
        return f.any_of(
            *[
                f.all_of(f.inside(VALUE, schema.of(one)), f.atom(Unique(left[:i] + left[i + 1 :])))
                for i, one in enumerate(left)
            ]
        )
    raise TypeError(f"not about arrays: {atom!r}")


def asked_of_item(atom: Node, place: int) -> tuple[Node, ...]:
    """Return the nodes that an atom of an array's formula asks of the item at a place, in the order of the schema."""
    shape = type(atom)
    if shape is Items:
        prefix, rest = atom.args
        return (prefix[place] if place < len(prefix) else rest,)
    if shape is Unique:
        return tuple(atom.args[0])
    return (atom.args[0],)  # of Contains
