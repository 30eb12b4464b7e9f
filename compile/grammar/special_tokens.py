"""Special tokens as bytes that no text has, so that whatever reads bytes reads them as well."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from ...errors import ConstraintError
from ...vocabulary.vocabulary import MARKS, Vocabulary
from .analysis import items
from .form import Choice, Grammar, Node, Repeat, Sequence, Special, Text

VALUE = "\0value "  # the name of a JSON value among special tokens, before the number of its schema
TOKEN = "\0token "  # that of a token that is given by its id


def spelt(grammar: Grammar, vocabulary: Vocabulary, first: Iterable[int] = ()) -> tuple[Grammar, Vocabulary]:
    """Return a grammar in which special tokens are texts of a byte, and the vocabulary that spells them so.

    first: tokens that are such texts already, by the first of `MARKS`. JSON values stay special tokens. Raises
    ConstraintError for a name that the vocabulary does not know, and for EOS.
    """
    ids: dict[str, int] = {}
    for body in grammar.rules.values():
        for name in _named(body):
            if name not in ids:
                ids[name] = checked_token(name, vocabulary)
    known = tuple(first)
    order = (*known, *sorted(set(ids.values()).difference(known)))
    if not order:
        return grammar, vocabulary
    marked = vocabulary.marked(order)
    marks: dict[str, Node] = {name: Text(MARKS[order.index(i) : order.index(i) + 1]) for name, i in ids.items()}
    rules = {name: replaced(body, marks) for name, body in grammar.rules.items()}
    return Grammar(rules, grammar.start, grammar.ignored, grammar.source, grammar.where), marked


def checked_token(name: str, vocabulary: Vocabulary, *, ends: bool = False) -> int:
    """Return the id of a special token.

    ends: whether it may be one that ends a text. Raises ConstraintError for what is none, and for single bytes.
    """
    if name.startswith(TOKEN):
        token = int(name.removeprefix(TOKEN))
        if not 0 <= token < vocabulary.size:
            raise ConstraintError(f"token {token} is outside the vocabulary, 0 .. {vocabulary.size - 1}")
    else:
        token = vocabulary.id_of(name)
    if token in vocabulary.ends:
        if ends:
            return token
        which = "the token that ends" if len(vocabulary.ends) == 1 else "one of the tokens that end"
        raise ConstraintError(
            f"{name.removeprefix(TOKEN)!r} is {which} a text, and is allowed wherever one may end: leave it out"
        )
    if len(vocabulary.tokens[token]) == 1:
        raise ConstraintError(
            f"token {token} is the single byte {vocabulary.tokens[token]!r}, which text needs: it cannot be meant as a "
            "whole"
        )
    return token


def _named(node: Node) -> Iterator[str]:
    """Yield the special tokens of a node, but no JSON values."""
    todo = [node]
    while todo:
        each = todo.pop()
        if isinstance(each, Special) and not each.name.startswith(VALUE):
            yield each.name
        todo.extend(reversed(items(each)))


def replaced(node: Node, nodes: Mapping[str, Node]) -> Node:
    """Return a node with others in place of special tokens, by their names."""
    if isinstance(node, Special):
        return nodes.get(node.name, node)
    if isinstance(node, (Sequence, Choice)):
        return type(node)(tuple(replaced(item, nodes) for item in node.items))
    return Repeat(replaced(node.item, nodes), node.low, node.high) if isinstance(node, Repeat) else node
