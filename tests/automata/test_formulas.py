"""Formulas against truth tables."""

from __future__ import annotations

from itertools import product
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from maskwright.automata.formulas import Formula, Formulas, Inside, Kind

NAMES = "abcd"
TREES = st.recursive(
    st.sampled_from([*NAMES, "T", "F", *[("in", name) for name in NAMES]]),
    lambda inner: (
        st.tuples(st.sampled_from(["all", "any", "one"]), st.lists(inner, max_size=4))
        | st.tuples(st.just("not"), inner)
    ),
    max_leaves=12,
)


def built(f: Formulas, tree: Any) -> Formula:
    if tree in ("T", "F"):
        return f.everything if tree == "T" else f.nothing
    if isinstance(tree, str):
        return f.atom(tree)
    kind, rest = tree
    if kind == "in":
        return f.inside("place", f.atom(rest))
    if kind == "not":
        return f.negated(built(f, rest))
    return {"all": f.all_of, "any": f.any_of, "one": f.one_of}[kind](*[built(f, part) for part in rest])


def of_tree(tree: Any, held: frozenset[str], inner: frozenset[str]) -> bool:
    """Whether a tree holds; held: the atoms that do outside, inner: those that do at the place."""
    if tree in ("T", "F"):
        return bool(tree == "T")
    if isinstance(tree, str):
        return tree in held
    kind, rest = tree
    if kind == "in":
        return rest in inner
    if kind == "not":
        return not of_tree(rest, held, inner)
    found = [of_tree(part, held, inner) for part in rest]
    return all(found) if kind == "all" else any(found) if kind == "any" else sum(found) == 1


def of_formula(formula: Formula, held: frozenset[str], inner: frozenset[str]) -> bool:
    kind, atom = formula.kind, formula.atom
    if isinstance(atom, Inside):
        assert kind is Kind.ATOM
        return of_formula(atom.formula, inner, inner)
    if kind is Kind.ATOM or kind is Kind.NOT:
        return (atom in held) == (kind is Kind.ATOM)
    found = [of_formula(part, held, inner) for part in formula.parts]
    return {
        Kind.EVERYTHING: True, Kind.NOTHING: False, Kind.ALL_OF: all(found), Kind.ANY_OF: any(found),
        Kind.ONE_OF: sum(found) == 1, Kind.NOT_ONE_OF: sum(found) != 1,
    }[kind]  # fmt: skip


def has_inside(formula: Formula) -> bool:
    return isinstance(formula.atom, Inside) or any(map(has_inside, formula.parts))


def sets() -> list[frozenset[str]]:
    return [
        frozenset(name for name, is_in in zip(NAMES, row, strict=True) if is_in) for row in product([0, 1], repeat=4)
    ]


@given(TREES)
def test_a_formula_means_what_its_tree_does(tree: Any) -> None:
    f = Formulas()
    formula = built(f, tree)
    inside = sets() if "in" in repr(tree) else [frozenset()]
    for held in sets():
        for inner in inside:
            assert of_formula(formula, held, inner) == of_tree(tree, held, inner)
    assert f.negated(f.negated(formula)) is formula
    assert formula.is_open == has_inside(formula)


@given(TREES, st.randoms(use_true_random=False))
def test_parts_may_come_in_any_order(tree: Any, random: Any) -> None:
    def shuffled(tree: Any) -> Any:
        if isinstance(tree, str) or tree[0] == "in":
            return tree
        if tree[0] == "not":
            return tree[0], shuffled(tree[1])
        return tree[0], random.sample([shuffled(part) for part in tree[1]], len(tree[1]))

    f = Formulas()
    assert built(f, tree) is built(f, tree)
    assert built(f, shuffled(tree)) is built(f, tree)


@given(TREES, st.dictionaries(st.sampled_from(NAMES), st.sampled_from(["T", "F", "b", "d"])))
def test_replacing_atoms(tree: Any, by: dict[str, str]) -> None:
    f = Formulas()

    def replace(atom: Any) -> Formula:
        if isinstance(atom, Inside):
            return f.inside(atom.place, f.mapped(atom.formula, f.exactly(replace), {}))
        return built(f, by.get(atom, atom))

    def replaced(tree: Any) -> Any:
        if isinstance(tree, str):
            return by.get(tree, tree)
        if tree[0] == "in":
            inner = by.get(tree[1], tree[1])
            return inner if inner in ("T", "F") else ("in", inner)
        if tree[0] == "not":
            return tree[0], replaced(tree[1])
        return tree[0], [replaced(part) for part in tree[1]]

    found = f.mapped(built(f, tree), f.exactly(replace), {})
    for held in sets():
        assert of_formula(found, held, held) == of_tree(replaced(tree), held, held)


def test_a_combination_with_all_parts_of_another_is_gone() -> None:
    f = Formulas()
    a, b, c, d = map(f.atom, NAMES)
    assert f.any_of(f.all_of(a, b, c), f.all_of(a, b)) is f.all_of(a, b)
    assert f.any_of(f.all_of(a, b, c, d), f.all_of(b, d), f.all_of(a, c)) is f.any_of(f.all_of(a, c), f.all_of(b, d))
    assert f.all_of(f.any_of(a, f.negated(b)), f.any_of(a, f.negated(b), d)) is f.any_of(a, f.negated(b))
    assert len(f.any_of(f.all_of(a, b), f.all_of(a, c), f.all_of(b, c)).parts) == 3
