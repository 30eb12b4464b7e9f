"""Formulas about a string or an undeclared key, once its first character is to be read: states over its content.

How the content may be spelled follows from what is asked, as in `json_schema`: any way where nothing but the number of
characters matters, and from there on where nothing matters any more; one way for listed words; else characters are
escaped that must be, in any of the ways for it.
"""

from __future__ import annotations

from ...automata.alphabet import Spelling
from ...automata.formulas import Formula, Kind, kept
from ...vocabulary.vocabulary import Vocabulary
from ..json_schema import formats
from ..json_schema.algebra import Format, Length, Node, Pattern, Words
from ..regex.pattern_rules import PatternRules
from .schema_formulas import Path, SchemaFormulas
from .state_atoms import Count, PatternStates, atoms_in, counted, trie_of_words


class StringFormulas:
    """Begins strings."""

    def __init__(self, schema: SchemaFormulas, vocabulary: Vocabulary) -> None:
        self._schema, self._vocabulary = schema, vocabulary
        self._begun: dict[tuple[Formula, Path], tuple[Formula, Spelling]] = {}
        self._atoms: dict[Node, Formula] = {}
        self._patterns: list[PatternRules] = []

    def begin_reading(self) -> None:
        """Have rows of patterns leave out from now on what cannot soon be shown to be completed."""
        for rules in self._patterns:
            rules.begin_reading()

    @property
    def left_out(self) -> int:
        """How many ways on were left out of rows of patterns."""
        return sum([rules.left_out for rules in self._patterns])

    def begun(self, formula: Formula, path: Path) -> tuple[Formula, Spelling]:
        """Return what is asked of a string at a path before its first character, and how it is spelled."""
        found = self._begun.get((formula, path))
        if found is None:
            found = self._begun[formula, path] = self._begin(formula, path)
        return found

    def _begin(self, formula: Formula, path: Path) -> tuple[Formula, Spelling]:
        schema = self._schema
        parts = [part for part in schema.innermost(formula, path) if part.kind is not Kind.NOTHING]
        if all(map(_is_listed, parts)):
            spelling = Spelling.ONE
        elif not path and _is_counted(self.of_content(formula)):
            spelling = Spelling.ANY
        else:
            spelling = Spelling.NEEDED
        if schema.is_gated(formula) and any(map(_is_inexact, parts)):
            formula = schema.ungated(formula)
        return schema.step(formula, path, "begin string", self._literal), spelling

    def of_content(self, formula: Formula) -> Formula:
        """Return a formula about a string as one about its content."""
        return self._schema.step(formula, (), "begin string", self._literal)

    def holds(self, formula: Formula, text: str) -> bool:
        """Return whether a string is in a formula about strings."""
        found = self.of_content(formula)
        for character in text:
            found = self._schema.read(found, (), character)
        return self._schema.ends(found)

    def _literal(self, literal: Formula) -> Formula:
        schema, atom = self._schema, literal.atom
        negated = literal.kind is Kind.NOT
        if negated and type(atom) is Format:  # what may be of the format is out
            return schema.formulas.negated(schema.start_of(formats.superset(atom.args[0], schema.meter)))
        found = self._atoms.get(atom)
        if found is None:
            found = self._atoms[atom] = self._atom(atom)
        return schema.formulas.negated(found) if negated else found

    def _atom(self, atom: Node) -> Formula:
        schema, shape = self._schema, type(atom)
        if shape is Length:
            return counted(schema.formulas, *atom.args)
        if shape is Words:
            return schema.formulas.atom(trie_of_words(atom.args[0]))
        if shape is Format:
            return schema.start_of(formats.language(atom.args[0], schema.meter))
        if shape is Pattern:
            rules = PatternRules(atom.args[0], self._vocabulary, dialect="ecma", search=True)
            self._patterns.append(rules)
            return PatternStates(rules).start(schema.formulas)
        raise TypeError(f"not about strings: {atom!r}")


@kept
def _is_listed(formula: Formula) -> bool:
    """Return whether a formula lists its strings."""
    kind = formula.kind
    if kind is Kind.ALL_OF:
        return any(map(_is_listed, formula.parts))
    if kind is Kind.ANY_OF or kind is Kind.ONE_OF:
        return all(map(_is_listed, formula.parts))
    return kind is Kind.ATOM and type(formula.atom) is Words


@kept
def _is_counted(formula: Formula) -> bool:
    """Return whether a formula about a content asks for nothing but a number of characters."""
    if formula.kind is Kind.ALL_OF:
        return all(map(_is_counted, formula.parts))
    return formula.kind is Kind.EVERYTHING or (formula.kind is Kind.ATOM and type(formula.atom) is Count)


def _is_inexact(formula: Formula) -> bool:
    """Return whether a formula has a format that is known between two bounds only."""
    return any(type(atom) is Format and atom.args[0] in formats.INEXACT for atom in atoms_in(formula))
