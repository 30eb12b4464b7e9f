"""JSON values as formulas, for `enum` and `const`, and the values of formulas that have few."""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal
from math import isfinite

from ...automata.deadline import look
from ...depth import inside
from .algebra import (
    ARRAY,
    FALSE,
    NEVER,
    NULL,
    NUMBER,
    OBJECT,
    STRING,
    TRUE,
    AllOf,
    AnyOf,
    Integer,
    ItemCount,
    Items,
    Members,
    Node,
    OneOfValues,
    Range,
    Required,
    Types,
    Words,
    all_of,
    any_of,
)
from .disjoint import kinds

_LITERALS: dict[bool | None, Node] = {None: Types(NULL), False: Types(FALSE), True: Types(TRUE)}
_STRING, _NUMBER, _ARRAY, _OBJECT = Types(STRING), Types(NUMBER), Types(ARRAY), Types(OBJECT)


def number(value: object) -> Decimal | None:
    """Return an int, float or Decimal exactly as it is written; None if the value is no JSON number."""
    if type(value) is int:
        return Decimal(value)
    if type(value) is float:
        return Decimal(repr(value)) if isfinite(value) else None
    if type(value) is Decimal:
        return value if value.is_finite() else None
    if isinstance(value, (int, float)) and type(value) is not bool:  # of a subclass
        return number(int(value) if isinstance(value, int) else float(value))
    return None


def one_of(values: Iterable[object], known: dict[int, Node] | None = None) -> Node:
    """Return the node of the values equal to one of `values`. Raises ValueError if one is no JSON value.

    known: the nodes of objects and arrays by their identity, as values may share parts.
    """
    words: dict[str, None] = {}
    numbers: list[Decimal] = []
    mask = 0
    others: list[Node] = []
    known = {} if known is None else known
    for value in values:
        look("reading the schema")
        if type(value) is str:
            words[value] = None
        elif value is None:
            mask |= NULL
        elif value is True:
            mask |= TRUE
        elif value is False:
            mask |= FALSE
        elif (decimal := number(value)) is not None:
            numbers.append(decimal)
        else:
            node = known.get(id(value))
            if node is None:
                node = _compound(value, known)
            others.append(node)
    parts: list[Node] = []
    if words:
        check_text("".join(words))
        mask |= STRING
        parts.append(Words(tuple(words)))
    if numbers:
        mask |= NUMBER
        parts.append(OneOfValues(frozenset(numbers)))
    # an atom says nothing about values of other types
    scalars = AllOf(Types(mask), *parts) if parts else Types(mask) if mask else NEVER
    return any_of([scalars, *others]) if others else scalars


def check_text(text: str) -> None:
    """Raise ValueError for a string that is no Unicode text."""
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ValueError(
                f"half of a surrogate pair, \\u{ord(text[error.start]):04x}, cannot be written as UTF-8"
            ) from None


def _compound(value: object, known: dict[int, Node]) -> Node:
    """Return the node of one object, array or other value, made from the inside out; `known` has it and its parts then.

    Raises ValueError if a part is no JSON value, or contains itself.
    """
    todo, begun = [value], set()
    while todo:
        part = todo[-1]
        if id(part) in known:
            todo.pop()
        elif id(part) in begun:
            known[id(part)] = _made(todo.pop(), known)
        else:
            begun.add(id(part))
            for inner in inside([part]) if isinstance(part, (dict, list, tuple)) else ():
                if id(inner) in known:
                    continue
                if id(inner) in begun:
                    raise ValueError("it contains itself, which no JSON text can")
                todo.append(inner)
    return known[id(value)]


def _made(value: object, known: dict[int, Node]) -> Node:
    """Return the node of one object, array or other value; the objects and arrays in it are known."""
    if isinstance(value, dict):
        members = []
        for key, member in value.items():
            if not isinstance(key, str):
                raise ValueError(f"the key {key!r} of an object is no string")
            check_text(key)
            members.append((key, one_of([member], known)))
        if not members:
            return all_of([_OBJECT, Members((), (), NEVER)])
        return all_of([_OBJECT, Members(tuple(members), (), NEVER), Required(tuple(value))])
    if isinstance(value, (list, tuple)):
        size = len(value)
        if not size:
            return all_of([_ARRAY, ItemCount(0, 0)])
        return all_of([_ARRAY, Items(tuple(one_of([item], known) for item in value), NEVER), ItemCount(size, size)])
    if isinstance(value, str):
        check_text(value)
        return all_of([_STRING, Words((str(value),))])
    raise ValueError(f"{value!r} is no JSON value")


def values_of(node: Node, most: int) -> tuple[Node, ...] | None:
    """Return a node for each of finitely many values, which include all values of a node; None if more than `most`.

    The nodes are pairwise disjoint. None too if arrays, objects or the values of a `Reference` are in the node.
    """
    found: dict[Node, None] = {}
    for part in node.parts if type(node) is AnyOf else (node,):
        atoms = part.args if type(part) is AllOf else (part,)
        mask = kinds(part)
        if mask & (ARRAY | OBJECT):
            return None
        for bit, literal in ((NULL, None), (FALSE, False), (TRUE, True)):
            if mask & bit:
                found[_LITERALS[literal]] = None
        if mask & STRING:
            words = [atom.words for atom in atoms if type(atom) is Words]
            if not words or len(words[0]) > most:
                return None
            found.update((one_of([word]), None) for word in words[0])
        if mask & NUMBER:
            numbers = _numbers(atoms, most)
            if numbers is None:
                return None
            found.update((one_of([value]), None) for value in numbers)
        if len(found) > most:
            return None
    return tuple(found)


def _numbers(atoms: tuple[Node, ...], most: int) -> list[Decimal] | None:
    """Return the numbers of a conjunction, if its atoms show that they are few; else None."""
    low: Decimal | None = None
    high: Decimal | None = None
    integer = False
    for atom in atoms:
        if type(atom) is OneOfValues:
            return sorted(atom.values) if len(atom.values) <= most else None
        if type(atom) is Integer:
            integer = True
        elif type(atom) is Range:
            low = atom.low if low is None else low if atom.low is None else max(low, atom.low)
            high = atom.high if high is None else high if atom.high is None else min(high, atom.high)
    if not integer or low is None or high is None or high - low > most or max(low.adjusted(), high.adjusted()) > 20:
        return None
    return [Decimal(value) for value in range(int(low) - 1, int(high) + 2) if low <= value <= high]
