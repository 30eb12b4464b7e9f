"""Whether a JSON value is in a node of `json_schema.algebra`, straight from each atom's definition."""

from __future__ import annotations

import json
from decimal import Decimal
from functools import lru_cache
from typing import Any

from maskwright.automata.budget import Budget
from maskwright.automata.dfa import Dfa
from maskwright.compile.json_schema import algebra as a
from maskwright.compile.json_schema import formats
from maskwright.compile.regex.lower import to_dfa


def parsed(text: str) -> Any:
    """Return a JSON text's value, with fractions as Decimal."""
    return json.loads(text, parse_float=Decimal)


def exact(value: Any) -> Any:
    """Return a value in which floats are Decimal, as they are written."""
    if isinstance(value, float):
        return Decimal(repr(value))
    if isinstance(value, list):
        return [exact(item) for item in value]
    if isinstance(value, dict):
        return {key: exact(member) for key, member in value.items()}
    return value


def kind(value: Any) -> int:
    """Return the one type of a value."""
    if value is None:
        return a.NULL
    if isinstance(value, bool):
        return a.TRUE if value else a.FALSE
    for types, bit in (((int, Decimal), a.NUMBER), (str, a.STRING), (list, a.ARRAY), (dict, a.OBJECT)):
        if isinstance(value, types):
            return bit
    raise TypeError(type(value).__name__)


@lru_cache(maxsize=4096)
def searched(pattern: str) -> Dfa:
    """Return the DFA of the strings in which a pattern matches somewhere."""
    return to_dfa(pattern, dialect="ecma", search=True)


def has_format(name: str, text: str) -> bool:
    return formats.language(name, Budget().begin()).accepts(text.encode())


def between(count: int, low: int, high: int | None) -> bool:
    return low <= count and (high is None or count <= high)


def equal(x: Any, y: Any) -> bool:
    """Whether two values are equal as JSON Schema has it."""
    if kind(x) != kind(y):
        return False
    if isinstance(x, list):
        return len(x) == len(y) and all(map(equal, x, y))
    if isinstance(x, dict):
        return x.keys() == y.keys() and all(equal(x[key], y[key]) for key in x)
    return x == y


def holds(node: a.Node, value: Any) -> bool:
    """Whether a value, with Decimal for fractions, is in a node."""
    node = a.force(node)
    if isinstance(node, a.Types):
        return bool(node.mask & kind(value))
    if isinstance(node, a.AllOf):
        return all(holds(part, value) for part in node.parts)
    if isinstance(node, a.AnyOf):
        return any(holds(part, value) for part in node.parts)
    if isinstance(node, a.Not):
        return not holds(node.part, value)
    if kind(value) != node.kind:
        return True
    return ATOMS[type(node)](node, value)


def in_range(node: a.Range, value: Any) -> bool:
    if node.low is not None and (value < node.low or (node.low_open and value == node.low)):
        return False
    return node.high is None or not (value > node.high or (node.high_open and value == node.high))


def multiple(node: a.Multiple, value: Any) -> bool:
    x, y = (Decimal(n).as_integer_ratio() for n in (value, node.of))
    return (x[0] * y[1]) % (x[1] * y[0]) == 0


def members(node: a.Members, value: dict[str, Any]) -> bool:
    properties = dict(node.properties)
    for key, member in value.items():
        nodes = [properties[key]] if key in properties else []
        nodes += [inner for source, inner in node.patterns if searched(source).accepts(key.encode())]
        if not all(holds(inner, member) for inner in nodes or [node.rest]):
            return False
    return True


def unique(node: a.Unique, value: list[Any]) -> bool:
    found = [[i for i, inner in enumerate(node.left) if holds(inner, item)] for item in value]
    assert all(len(places) <= 1 for places in found), "the nodes of Unique overlap"
    places = [i for some in found for i in some]
    return len(places) == len(value) == len(set(places))


ATOMS = {
    a.Integer: lambda node, value: Decimal(value) == Decimal(value).to_integral_value(),
    a.Range: in_range,
    a.Multiple: multiple,
    a.OneOfValues: lambda node, value: value in node.values,
    a.Length: lambda node, value: between(len(value), node.low, node.high),
    a.Pattern: lambda node, value: searched(node.source).accepts(value.encode()),
    a.Format: lambda node, value: has_format(node.name, value),
    a.Words: lambda node, value: value in node.words,
    a.Items: lambda node, value: all(
        holds(node.prefix[i] if i < len(node.prefix) else node.rest, item) for i, item in enumerate(value)
    ),
    a.ItemCount: lambda node, value: between(len(value), node.low, node.high),
    a.Contains: lambda node, value: between(sum(holds(node.node, item) for item in value), node.low, node.high),
    a.Unique: unique,
    a.Members: members,
    a.Required: lambda node, value: all(key in value for key in node.keys),
    a.MemberCount: lambda node, value: between(len(value), node.low, node.high),
    a.Names: lambda node, value: all(holds(node.node, key) for key in value),
}
