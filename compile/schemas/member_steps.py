"""What is left of formulas about objects when one more member begins, and what they ask of its key and value."""

from __future__ import annotations

from collections.abc import Sequence

from ...automata.formulas import Atom, Formula, Kind
from ..json_schema.algebra import STRING, Members, Names, Node, Pattern, Words
from .counted_members import Said
from .object_shape import ObjectShape, object_atoms
from .schema_formulas import KEY, VALUE, Path, SchemaFormulas
from .state_atoms import Has, Lacks, MembersAtLeast
from .string_formulas import StringFormulas


class MemberSteps:
    """Derivatives of formulas by members.

    any_order: whether members may come in any order, so that only the key at hand does not come again.
    """

    def __init__(self, schema: SchemaFormulas, strings: StringFormulas, any_order: bool) -> None:
        self._schema, self._strings, self._any_order = schema, strings, any_order
        self._matching: dict[tuple[str, str], bool] = {}
        self._asked: dict[tuple[ObjectShape, str | None], tuple[Node, ...]] = {}

    # ---------------------------------------------------------------------------------------------- declared keys

    def by_key(self, formula: Formula, path: Path, shape: ObjectShape, place: int) -> Formula:
        """Return what is left when the member of a declared key begins. Then no key before it comes, unless any may."""
        schema = self._schema
        key = shape.keys[place]
        of_literal = schema.formulas.exactly(lambda atom: self._after_key(atom, shape, key, place))
        return schema.step(formula, path, ("key", shape, place), of_literal)

    def without(self, formula: Formula, path: Path, shape: ObjectShape, place: int) -> Formula:
        """Return what is left if a declared key does not come."""
        schema, key = self._schema, shape.keys[place]

        def absent(atom: Atom) -> Formula:
            return schema.nothing if type(atom) is Has and atom.key == key else schema.formulas.atom(atom)

        return schema.step(formula, path, ("without", key), schema.formulas.exactly(absent))

    def _after_key(self, atom: Atom, shape: ObjectShape, key: str, place: int) -> Formula:
        schema, kind = self._schema, type(atom)
        f = schema.formulas
        if isinstance(atom, Members):
            asked = f.all_of(*[f.inside(VALUE, schema.of(node)) for node in self.nodes(atom, key)])
            return f.all_of(asked, self._left(atom, shape, place))
        if kind is Has:
            if atom.key == key:
                return schema.everything
            is_past = not self._any_order and shape.place[atom.key] < place
            return schema.nothing if is_past else f.atom(atom)
        if kind is MembersAtLeast:
            return self._fewer(atom)
        if kind is Names:
            return f.atom(atom) if self.names(atom, key) else schema.nothing
        if kind is Lacks:  # a declared member that fails decides, as its key does not come again
            asked = f.all_of(*[f.inside(VALUE, schema.of(node)) for node in self.nodes(atom.members, key)])
            return f.any_of(f.negated(asked), f.atom(atom))
        raise TypeError(f"not about objects: {atom!r}")

    def _left(self, members: Members, shape: ObjectShape, place: int) -> Formula:
        """Return what Members say behind the key at a place."""
        schema = self._schema
        if self._any_order:
            key = shape.keys[place]
            properties, patterns, rest = members.args
            left = tuple([each for each in properties if each[0] != key])
            if left:
                return schema.formulas.atom(Members(left, patterns, rest))
        elif not shape.is_strict or (members.args[0] and shape.reach(members) > place + 1):
            return schema.formulas.atom(members)  # which says that its keys are declared
        _, patterns, rest = members.args
        if schema.is_any(rest) and all(schema.is_any(node) for _, node in patterns):
            return schema.everything
        return schema.formulas.atom(Members((), patterns, rest))

    def _fewer(self, atom: MembersAtLeast) -> Formula:
        least, place = atom.args
        schema = self._schema
        return schema.formulas.atom(MembersAtLeast(least - 1, place)) if least > 1 else schema.everything

    def nodes(self, members: Members, key: str) -> list[Node]:
        """Return the nodes that the value of a member with a key must be in."""
        properties, patterns, rest = members.args
        found = [node for name, node in properties if name == key]
        found += [node for source, node in patterns if self._matches(source, key)]
        return found or [rest]

    def names(self, atom: Names, key: str) -> bool:
        """Return whether a key is one that Names allow."""
        return self._strings.holds(self._named(atom), key)

    def _named(self, atom: Names) -> Formula:
        """Return what Names ask of a key, as of a string."""
        return self._schema.opened(self._schema.of(atom.args[0]), (), STRING)

    def undeclared(self, said: Said, keys: Sequence[str]) -> Formula:
        """Return what is asked of the content of a key that is none of some keys, and that may come."""
        f = self._schema.formulas
        return f.all_of(f.negated(self._one_of(keys)), *map(self._allowed, said))

    def _allowed(self, atom: Members | Names) -> Formula:
        """Return what Names, or members without any value, ask of the content of a key."""
        schema, f = self._schema, self._schema.formulas
        if not isinstance(atom, Members):
            return self._strings.of_content(self._named(atom))
        found = f.negated(self._one_of([key for key, node in atom.properties if schema.is_never(node)]))
        found = f.all_of(found, *[self.matched(source, False) for source, n in atom.patterns if schema.is_never(n)])
        if not schema.is_never(atom.rest):
            return found
        declared = self._one_of([key for key, _ in atom.properties])
        return f.all_of(found, f.any_of(declared, *[self.matched(source, True) for source, _ in atom.patterns]))

    def _one_of(self, keys: Sequence[str]) -> Formula:
        """Return that the content of a key is one of some keys."""
        if not keys:
            return self._schema.nothing
        return self._strings.of_content(self._schema.formulas.atom(Words(tuple(keys))))

    def matched(self, source: str, matches: bool) -> Formula:
        """Return that the content of a key matches a pattern, or that it does not."""
        f = self._schema.formulas
        found = self._strings.of_content(f.atom(Pattern(source)))
        return found if matches else f.negated(found)

    def _matches(self, source: str, key: str) -> bool:
        found = self._matching.get((source, key))
        if found is None:
            pattern = self._schema.formulas.atom(Pattern(source))
            found = self._matching[source, key] = self._strings.holds(pattern, key)
        return found

    def asked_of(self, shape: ObjectShape, key: str | None) -> tuple[Node, ...]:
        """Return the nodes asked of the value of a key, in the order of the schema; None for undeclared keys."""
        found = self._asked.get((shape, key))
        if found is None:
            nodes: dict[Node, None] = {}
            for members in shape.members:
                if key is None:
                    nodes.update(dict.fromkeys([*[node for _, node in members.args[1]], members.args[2]]))
                else:
                    nodes.update(dict.fromkeys(self.nodes(members, key)))
            found = self._asked[shape, key] = tuple(nodes)
        return found

    # -------------------------------------------------------------------------------------------- undeclared keys

    def by_other(self, formula: Formula, path: Path) -> Formula:
        """Return what is left when a member begins whose key is none of those that formulas name."""
        schema = self._schema
        if schema.is_gated(formula) and any(map(self._is_two_sided, object_atoms(schema, formula, path))):
            formula = schema.ungated(formula)
        return schema.step(formula, path, "other", self._after_other)

    def _is_two_sided(self, atom: Atom) -> bool:
        """Return whether the negation of what an atom asks of an undeclared member leads on in a way of its own."""
        if isinstance(atom, Members):
            schema = self._schema
            return any(
                not schema.is_any(n) and not schema.is_never(n) for n in (atom.rest, *dict(atom.patterns).values())
            )
        return type(atom) is Names

    def _after_other(self, literal: Formula) -> Formula:
        schema, atom, negated = self._schema, literal.atom, literal.kind is Kind.NOT
        f, kind = schema.formulas, type(literal.atom)
        if isinstance(atom, Members):
            return self._failing(atom, literal) if negated else f.all_of(self._passing(atom), f.atom(atom))
        if kind is Lacks:
            return self._lacking(atom.members, literal)
        if kind is Names:
            named = self._named(atom)
            asked = f.inside(KEY, self._strings.of_content(f.negated(named) if negated else named))
            return f.any_of(asked, literal) if negated else f.all_of(asked, literal)
        if kind is Has:
            return literal
        found = self._fewer(atom)
        return f.negated(found) if negated else found

    def _patterns(self, members: Members) -> list[tuple[Formula, Node]]:
        """Return the patterns of Members, as formulas about a key, with their nodes."""
        f = self._schema.formulas
        return [(f.inside(KEY, self.matched(source, True)), node) for source, node in members.args[1]]

    def _passing(self, members: Members) -> Formula:
        """Return that a member passes: its value is in the nodes of all patterns that match, or in the rest."""
        schema, patterns = self._schema, self._patterns(members)
        f = schema.formulas
        of_rest = f.inside(VALUE, schema.of(members.rest))
        matched = [f.any_of(f.negated(key), f.inside(VALUE, schema.of(node))) for key, node in patterns]
        return f.all_of(*matched, f.any_of(*[key for key, _ in patterns], of_rest))

    def _never(self, members: Members) -> Formula:
        """Return that no value would pass beside the key."""
        schema, patterns = self._schema, self._patterns(members)
        f = schema.formulas
        found = [key for key, node in patterns if schema.is_never(node)]
        if schema.is_never(members.rest):
            found.append(f.all_of(*[f.negated(key) for key, _ in patterns]))
        return f.any_of(*found) if found else schema.nothing

    def _always(self, members: Members) -> Formula:
        """Return that any value would pass beside the key."""
        schema, patterns = self._schema, self._patterns(members)
        f = schema.formulas
        found = [f.negated(key) for key, node in patterns if not schema.is_any(node)]
        if not schema.is_any(members.rest):
            found.append(f.any_of(*[key for key, _ in patterns]) if patterns else schema.nothing)
        return f.all_of(*found) if found else schema.everything

    def _failing(self, members: Members, literal: Formula) -> Formula:
        """Return what is left of negated Members behind an undeclared member.

        One that fails is what was asked for, unless its key comes again: `Lacks` is left then.
        """
        schema, passing = self._schema, self._passing(members)
        f = schema.formulas
        return f.any_of(
            self._never(members),
            f.all_of(passing, literal),
            f.all_of(f.negated(passing), f.atom(Lacks(members))),
        )

    def _lacking(self, members: Members, literal: Formula) -> Formula:
        """Return what is left of `Lacks` behind one more undeclared member."""
        schema, passing, always = self._schema, self._passing(members), self._always(members)
        f = schema.formulas
        return f.any_of(
            self._never(members),
            f.all_of(always, literal),
            f.all_of(f.negated(always), passing, f.negated(f.atom(members))),
            f.all_of(f.negated(passing), literal),
        )
