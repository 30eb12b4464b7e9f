"""Nodes of the algebra as formulas in normal form, and their derivatives at any place inside one another.

A formula says what is still asked of a value. While a member or an item is being written, the formula of the object or
array has atoms `Inside(VALUE, f)`: the value that is being written is in f. So f stands one level deeper, and a *path*,
a sequence of places, says on which level something is read. While an undeclared key is being written, `Inside(KEY, f)`
says that the key is in f.

Each derivative is found once for each part of a formula.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable

from ...automata.budget import Meter
from ...automata.dfa import Dfa
from ...automata.formulas import Atom, Formula, Formulas, Inside, Kind, Literal, kept
from ..json_schema.algebra import (
    EVERYTHING,
    AllOf,
    AnyOf,
    Contains,
    ItemCount,
    Items,
    MemberCount,
    Members,
    Names,
    Node,
    Not,
    Reference,
    Required,
    Types,
    Unique,
    is_any,
    is_never,
)
from .gated_nodes import Gates
from .state_atoms import Contained, Count, DfaStates, Has, ItemsAtLeast, Lacks, MembersAtLeast

VALUE, KEY = "value", "key"
Path = tuple[str, ...]
"""Places inside one another, `VALUE` or `KEY`."""

_READING = "reading a schema"
_FAR = 1 << 20  # the estimate of what is empty


class SchemaFormulas:
    """The formulas of one schema."""

    def __init__(self, gates: Gates, meter: Meter) -> None:
        self.gates, self.meter = gates, meter
        self.formulas = Formulas()
        self.everything, self.nothing = self.formulas.everything, self.formulas.nothing
        self._of: dict[Node, Formula] = {}
        self.origin: dict[Formula, Node] = {}  # the first node of a formula
        self._states: dict[tuple[bytes, bytes, bytes], DfaStates] = {}
        self._known: dict[Hashable, dict[Formula, Formula]] = {}

    # ------------------------------------------------------------------------------------------------------- nodes

    def of(self, node: Node) -> Formula:
        """Return the formula of a node. Its atoms are nodes about one type, `Types`, and references."""
        found = self._of.get(node)
        if found is None:
            found = self._of[node] = self._made(node)
            self.origin.setdefault(found, node)
        return found

    def _made(self, node: Node) -> Formula:
        shape, f = type(node), self.formulas
        if shape is AllOf:
            return f.all_of(*map(self.of, node.args))
        if shape is AnyOf:
            return f.any_of(*map(self.of, node.args))
        if shape is Not:
            return f.negated(self.of(node.args[0]))
        if shape is Types and not node.args[0]:
            return self.nothing
        if shape is Types and node.args[0] == EVERYTHING:
            return self.everything
        if isinstance(node, Reference) and node in self.gates:
            return f.one_of(*map(self.of, self.gates[node]))
        return f.atom(node)

    def is_any(self, node: Node) -> bool:
        """Return whether a node, or what it refers to, is plainly everything."""
        return is_any(self._followed(node))

    def is_never(self, node: Node) -> bool:
        """Return whether a node, or what it refers to, is plainly empty."""
        return is_never(self._followed(node))

    def _followed(self, node: Node) -> Node:
        return node.node if isinstance(node, Reference) and node not in self.gates else node

    def start_of(self, dfa: Dfa) -> Formula:
        """Return the formula of the texts of a DFA. Equal DFAs have one formula."""
        key = dfa.class_of.tobytes(), dfa.transition.tobytes(), dfa.accepting.tobytes()
        states = self._states.get(key)
        if states is None:
            states = self._states[key] = DfaStates(dfa)
        return states.formula(self.formulas, 0)

    # ----------------------------------------------------------------------------------------------------- mapping

    def step(self, formula: Formula, path: Path, key: Hashable, of_literal: Literal) -> Formula:
        """Return a formula in which each literal at a path becomes another. key: names what it becomes."""
        known = self._known.get((path, key))
        if known is None:
            known = self._known[path, key] = {}
        if not path:
            return self.formulas.mapped(formula, of_literal, known)
        if not formula.is_open:
            return formula
        place, below = path[0], path[1:]

        def of_inside(literal: Formula) -> Formula:
            atom = literal.atom
            if type(atom) is Inside and atom.place == place:
                return self.formulas.inside(place, self.step(atom.formula, below, key, of_literal))
            return literal

        return self.formulas.mapped(formula, of_inside, known)

    def innermost(self, formula: Formula, path: Path) -> tuple[Formula, ...]:
        """Return the formulas at a path, each once."""
        here = {formula: None}
        for place in path:
            below: dict[Formula, None] = {}
            for each in here:
                if each.is_open:
                    below.update(dict.fromkeys([a.formula for a in insides(each) if a.place == place]))
            here = below
        return tuple(here)

    # ----------------------------------------------------------------------------------------------- whole values

    def opened(self, formula: Formula, path: Path, kind: int) -> Formula:
        """Return what is asked of a value at a path that is of one type; atoms are about that type then."""

        def of_atom(atom: Atom) -> Formula:
            shape = type(atom)
            if shape is Types:
                return self.everything if atom.args[0] & kind else self.nothing
            if isinstance(atom, Reference):
                return self.opened(self.of(atom.node), (), kind)
            if atom.kind != kind:
                return self.everything
            return self._begun(atom)

        return self.step(formula, path, ("open", kind), self.formulas.exactly(of_atom))

    def _begun(self, atom: Node) -> Formula:
        """Return an atom in the form that it has while a value is written."""
        shape, f = type(atom), self.formulas
        if shape is Required:
            return f.all_of(*[f.atom(Has(key)) for key in atom.args[0]])
        if shape is ItemCount:
            low, high = atom.args
            return self._between(low, high, lambda least: f.atom(ItemsAtLeast(least)))
        if shape is MemberCount:
            low, high, place = atom.args
            return self._between(low, high, lambda least: f.atom(MembersAtLeast(least, place)))
        if shape is Contains:
            node, low, high = atom.args
            return self._between(low, high, lambda least: f.atom(Contained(node, least)))
        return f.atom(atom)

    def _between(self, low: int, high: int | None, at_least: Callable[[int], Formula]) -> Formula:
        f = self.formulas
        parts = [at_least(low)] if low else []
        if high is not None:
            parts.append(f.negated(at_least(high + 1)))
        return f.all_of(*parts) if parts else self.everything

    def ended(self, formula: Formula, path: Path) -> Formula:
        """Return what is left where the value or key at a path ends here: at that level, everything or nothing."""
        everything, nothing = self.everything, self.nothing
        return self.step(
            formula, path, "end", self.formulas.exactly(lambda atom: everything if _ends(atom) else nothing)
        )

    def ends(self, formula: Formula) -> bool:
        """Return whether a value of which this is asked may end here."""
        return self.ended(formula, ()) is self.everything

    def read(self, formula: Formula, path: Path, character: str) -> Formula:
        """Return what is left behind a character of the string, key or number at a path."""
        f = self.formulas
        return self.step(formula, path, character, self.formulas.exactly(lambda atom: atom.after(f, character)))

    # ------------------------------------------------------------------------------------------------------- gates

    @kept
    def ungated(self, formula: Formula) -> Formula:
        """Return a formula without gates: each part of one stands beside the negations of the others.

        Some atoms are known between two bounds only, or lead on differently when they are negated. They need it.
        """
        kind, f = formula.kind, self.formulas
        if kind is Kind.ATOM and type(formula.atom) is Inside:
            return f.inside(formula.atom.place, self.ungated(formula.atom.formula))
        if kind is Kind.ALL_OF:
            return f.all_of(*map(self.ungated, formula.parts))
        if kind is Kind.ANY_OF:
            return f.any_of(*map(self.ungated, formula.parts))
        if kind is not Kind.ONE_OF and kind is not Kind.NOT_ONE_OF:
            return formula
        parts = [self.ungated(part) for part in formula.parts]
        others = [self.ungated(f.negated(part)) for part in formula.parts]
        n = len(parts)
        self.meter.check(states=n * n, doing="telling the branches of oneOf apart")
        if kind is Kind.ONE_OF:
            return f.any_of(*[f.all_of(parts[i], *[others[j] for j in range(n) if j != i]) for i in range(n)])
        two = [f.all_of(parts[i], f.any_of(*parts[i + 1 :])) for i in range(n - 1)]
        return f.any_of(f.all_of(*others), *two)

    @kept
    def is_gated(self, formula: Formula) -> bool:
        """Return whether a gate stands anywhere in a formula."""
        kind = formula.kind
        if kind is Kind.ATOM:
            return type(formula.atom) is Inside and self.is_gated(formula.atom.formula)
        return kind is Kind.ONE_OF or kind is Kind.NOT_ONE_OF or any(map(self.is_gated, formula.parts))

    # --------------------------------------------------------------------------------------------------- estimates

    @kept
    def estimate(self, formula: Formula) -> int:
        """Return about how much must be written until a formula is satisfied: it guides a search, no more."""
        kind = formula.kind
        if kind is Kind.EVERYTHING:
            return 0
        if kind is Kind.NOTHING:
            return _FAR
        if kind is Kind.ALL_OF:
            return min(sum(map(self.estimate, formula.parts)), _FAR)
        if kind is Kind.ANY_OF or kind is Kind.ONE_OF:
            return min(map(self.estimate, formula.parts))
        return 1 if kind is Kind.NOT_ONE_OF else self._estimate_of(formula.atom, kind is Kind.NOT)

    def _estimate_of(self, atom: Atom, negated: bool) -> int:
        shape = type(atom)
        if shape is Inside:
            return 1 + self.estimate(atom.formula)
        if shape is Members or shape is Items or shape is Names:
            return 3 if negated else 0
        if shape in _NEVER_AT_END and negated:
            return 0
        if shape is Has:
            return 3
        if shape is MembersAtLeast:
            return 3 * int(atom.args[0])
        if shape is ItemsAtLeast:
            return 2 * int(atom.args[0])
        if shape is Contained:  # more than that of an item, or a search begins new ones for ever
            return (3 + self.estimate(self.of(atom.args[0]))) * int(atom.args[1])
        if isinstance(atom, Reference):
            return 6
        if isinstance(atom, Node) and shape is not Count:  # about a value that has not begun
            return 1
        return int(atom.accepts) if negated else int(atom.estimate)

    @property
    def nbytes(self) -> int:
        """About how many bytes the formulas and their derivatives take."""
        return 400 * len(self.formulas) + 120 * sum(map(len, self._known.values()))


@kept
def insides(formula: Formula) -> tuple[Inside, ...]:
    """Return the `Inside` atoms of a formula, each once."""
    found: dict[Inside, None] = {}
    if type(formula.atom) is Inside:
        found[formula.atom] = None
    for part in formula.parts:
        if part.is_open:
            found.update(dict.fromkeys(insides(part)))
    return tuple(found)


_NEVER_AT_END = frozenset({Has, MembersAtLeast, ItemsAtLeast, Contained})
_ALWAYS_AT_END = frozenset({Members, Lacks, Names, Items, Unique})


def _ends(atom: Atom) -> bool:
    """Return whether nothing more is asked by an atom of a value that ends here."""
    shape = type(atom)
    if shape in _ALWAYS_AT_END:
        return True
    return shape not in _NEVER_AT_END and bool(atom.accepts)
