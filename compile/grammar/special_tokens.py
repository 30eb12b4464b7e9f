"""Special tokens as bytes that no text has, so that whatever reads bytes reads them as well."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from ...errors import ConstraintError
from ...vocabulary.vocabulary import MARKS, Vocabulary
from .analysis import items
from .form import Choice, Grammar, Node, Repeat, Sequence, Special, Text

VALUE = "\0value "  # the name of a JSON value among special tokens, before the number of its schema
TOKEN = "\0token "  # that of a token that is given by its id
TOKENS = "\0tokens "  # that of any of some tokens, by ids and ranges of ids with commas between them


def spelt(grammar: Grammar, vocabulary: Vocabulary, first: Iterable[int] = ()) -> tuple[Grammar, Vocabulary]:
    """Return a grammar in which special tokens are texts of a byte, and the vocabulary that spells them so.

    Tokens that always stand together in sets have one byte together. first: tokens that are such texts already, by the
    first of `MARKS`. JSON values stay special tokens. Raises ConstraintError for a name that the vocabulary does not
    know, for EOS, and for more sets of tokens than there are marks.
    """
    sets: dict[str, tuple[int, ...]] = {}
    for body in grammar.rules.values():
        for name in _named(body):
            if name not in sets:
                sets[name] = _tokens(name, vocabulary)
    known = tuple(first)
    within: dict[int, list[str]] = {token: [] for token in known}
    for name, tokens in sets.items():
        for token in tokens:
            within.setdefault(token, []).append(name)
    groups: dict[object, list[int]] = {token: [token] for token in known}
    for token in sorted(within.keys() - set(known)):
        groups.setdefault(tuple(within[token]), []).append(token)
    if not groups:
        return grammar, vocabulary
    marked = vocabulary.marked(tuple([tuple(group) for group in groups.values()]))
    parts: dict[str, list[Node]] = {name: [] for name in sets}
    for n, group in enumerate(groups.values()):
        for name in within[group[0]]:
            parts[name].append(Text(MARKS[n : n + 1]))
    nodes = {name: found[0] if len(found) == 1 else Choice(tuple(found)) for name, found in parts.items()}
    return replace(grammar, rules={name: replaced(body, nodes) for name, body in grammar.rules.items()}), marked


def _tokens(name: str, vocabulary: Vocabulary) -> tuple[int, ...]:
    """Return the tokens that a special token, or a set of some, stands for."""
    if not name.startswith(TOKENS):
        return (checked_token(name, vocabulary),)
    found: set[int] = set()
    for part in name.removeprefix(TOKENS).split(","):
        low, _, high = part.partition("-")
        for bound in (low, high or low):
            checked_token(f"{TOKEN}{bound}", vocabulary)
        found.update(range(int(low), int(high or low) + 1))
    for token in found:
        checked_token(f"{TOKEN}{token}", vocabulary)
    return tuple(sorted(found))


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


def has_specials(node: Node) -> bool:
    """Whether a special token or a JSON value stands in a node."""
    todo = [node]
    while todo:
        each = todo.pop()
        if isinstance(each, Special):
            return True
        todo.extend(items(each))
    return False


def replaced(node: Node, nodes: Mapping[str, Node]) -> Node:
    """Return a node with others in place of special tokens, by their names."""
    if isinstance(node, Special):
        return nodes.get(node.name, node)
    if isinstance(node, (Sequence, Choice)):
        return type(node)(tuple(replaced(item, nodes) for item in node.items))
    return Repeat(replaced(node.item, nodes), node.low, node.high) if isinstance(node, Repeat) else node
