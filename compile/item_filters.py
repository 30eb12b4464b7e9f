"""Expressions over the columns of a catalogue, such as `price < 50 and category in ("shoe", "hat")`.

They are a part of Python's, which `ast` reads. What they mean is worked out column by column: of strings once for each
distinct one.
"""

from __future__ import annotations

import ast
import operator
import warnings
from collections.abc import Callable, Mapping
from typing import Any, Literal, NoReturn

import numpy as np
from numpy.typing import NDArray

from ..errors import ConstraintError
from ..table.item_ids import ItemIds
from .columns import Column, Kind

MOST_TEXT = 4096
"""Most characters of an expression."""

_MOST_DEPTH = 50
_ID = "id"
_COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}  # fmt: skip
_TURNED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.Gt, ast.LtE: ast.GtE, ast.Gt: ast.Lt, ast.GtE: ast.LtE, ast.Eq: ast.Eq, ast.NotEq: ast.NotEq
}  # fmt: skip
_TYPES: dict[str, tuple[type, ...]] = {"bool": (bool,), "int": (int, float), "float": (int, float), "str": (str,)}
_NAMED = {"bool": "True or False", "int": "numbers", "float": "numbers", "str": "strings"}

Bools = NDArray[np.bool_]


def keeps(text: str, columns: Mapping[str, Column], ids: ItemIds) -> Bools:
    """Return of which items an expression is true, (N,). A comparison with a value that is missing is false.

    columns: (N,) each. Raises ConstraintError, with argument "filter", for anything that is no such expression.
    """
    kinds: dict[str, Kind] = {name: column.kind for name, column in columns.items()}
    return _Filter(text, kinds, "str" if ids.numbers is None else "int").of(columns, ids)


def check(text: str, kinds: Mapping[str, Kind], ids: Literal["int", "str"]) -> None:
    """Raise ConstraintError for what `keeps` would refuse. kinds: of columns. ids: of which kind items' ids are."""
    _Filter(text, kinds, ids)


class _Filter:
    """An expression that was checked."""

    def __init__(self, text: str, kinds: Mapping[str, Kind], ids: Literal["int", "str"]) -> None:
        self._text = text
        self._kinds: dict[str, Kind] = {**kinds, _ID: ids}
        if len(text) > MOST_TEXT:
            self._refuse(f"has {len(text):,} characters, and an expression has {MOST_TEXT:,} at most")
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # Python's about literals, which are refused below
                self._tree = ast.parse(text.strip(), mode="eval").body
        except SyntaxError as error:
            self._refuse(f"is no expression: {error.msg}, at character {error.offset or 1}")
        except (ValueError, RecursionError, MemoryError):
            self._refuse("is no expression, or is nested too deeply")
        self._check(self._tree, 0)

    def _refuse(self, why: str, node: ast.expr | None = None) -> NoReturn:
        where = ""
        if node is not None:
            where = f", at character {node.col_offset + 1}" if node.lineno == 1 else f", on line {node.lineno}"
        raise ConstraintError(f"{self._text[:100]!r} {why}{where}", argument="filter")

    # -------------------------------------------------------------------------------------------------- checking

    def _check(self, node: ast.expr, depth: int) -> None:
        if depth > _MOST_DEPTH:
            self._refuse(f"is nested more than {_MOST_DEPTH} deep", node)
        match node:
            case ast.BoolOp():
                for each in node.values:
                    self._check(each, depth + 1)
            case ast.UnaryOp(op=ast.Not()):
                self._check(node.operand, depth + 1)
            case ast.Name():
                if self._kind(node) != "bool":
                    self._refuse(f"has {node.id!r} alone, which is no column of booleans: compare it", node)
            case ast.Compare():
                before = node.left
                for op, right in zip(node.ops, node.comparators, strict=True):
                    self._check_comparison(before, op, right)
                    before = right
            case _:
                self._refuse(
                    "has what no filter may have: columns, values, comparisons, in, is None, and, or, not", node
                )

    def _kind(self, node: ast.Name) -> Kind:
        found = self._kinds.get(node.id)
        if found is None:
            there = ", ".join(self._kinds)
            self._refuse(f"names {node.id!r}, and there are: {there}", node)
        return found

    def _check_comparison(self, left: ast.expr, op: ast.cmpop, right: ast.expr) -> None:
        if isinstance(op, ast.In | ast.NotIn):
            if not isinstance(left, ast.Name) or not isinstance(right, ast.Tuple | ast.List):
                self._refuse("has an in that is no column in a list of values", left)
            for each in right.elts:
                self._check_value(left, each)
            return
        if isinstance(op, ast.Is | ast.IsNot):
            if not isinstance(left, ast.Name) or not (isinstance(right, ast.Constant) and right.value is None):
                self._refuse("has an is that is no column is None", left)
            self._kind(left)
            return
        if isinstance(left, ast.Name) == isinstance(right, ast.Name):
            self._refuse("has a comparison that is not of a column and a value", left)
        column, value = (left, right) if isinstance(left, ast.Name) else (right, left)
        assert isinstance(column, ast.Name)
        self._check_value(column, value)
        ordered = not isinstance(op, ast.Eq | ast.NotEq)
        if ordered and (column.id == _ID or self._kind(column) == "bool"):
            self._refuse(f"orders {column.id!r}, which is compared by ==, != and in alone", column)

    def _check_value(self, column: ast.Name, node: ast.expr) -> None:
        kind, value = self._kind(column), self._value(node)
        if type(value) not in _TYPES[kind]:
            self._refuse(f"compares {column.id!r} with {value!r:.100}, and its values are {_NAMED[kind]}", node)

    def _value(self, node: ast.expr) -> Any:
        """Return the value of a literal, which may have a sign."""
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
            value = self._value(node.operand)
            if type(value) not in (int, float):
                self._refuse("has a sign before what is no number", node)
            return -value if isinstance(node.op, ast.USub) else value
        if not isinstance(node, ast.Constant):
            self._refuse("has something in the place of a value", node)
        return node.value

    # ------------------------------------------------------------------------------------------------- evaluating

    def of(self, columns: Mapping[str, Column], ids: ItemIds) -> Bools:
        """Return of which items the expression is true."""
        self._columns, self._ids = columns, ids
        found: Bools = self._of(self._tree)
        return found

    def _of(self, node: ast.expr) -> Any:
        match node:
            case ast.BoolOp():
                joined = np.logical_and if isinstance(node.op, ast.And) else np.logical_or
                found = self._of(node.values[0])
                for each in node.values[1:]:
                    found = joined(found, self._of(each))
                return found
            case ast.UnaryOp():
                return ~self._of(node.operand)
            case ast.Name():
                column = self._columns[node.id]
                return column.values & column.known
            case ast.Compare():
                parts = []
                before = node.left
                for op, right in zip(node.ops, node.comparators, strict=True):
                    parts.append(self._compared(before, op, right))
                    before = right
                return np.logical_and.reduce(parts)
            case _:
                raise AssertionError(f"{type(node).__name__} was refused before")

    def _compared(self, left: ast.expr, op: ast.cmpop, right: ast.expr) -> Any:
        if not isinstance(left, ast.Name):
            left, op, right = right, _TURNED[type(op)](), left
        assert isinstance(left, ast.Name)
        if isinstance(op, ast.Is | ast.IsNot):
            known = np.ones(len(self._ids), np.bool_) if left.id == _ID else self._columns[left.id].known
            return ~known if isinstance(op, ast.Is) else known.copy()
        if isinstance(op, ast.In | ast.NotIn):
            assert isinstance(right, ast.Tuple | ast.List)
            values = [self._value(each) for each in right.elts]
            return self._among(left.id, values, isinstance(op, ast.In))
        value = self._value(right)
        if isinstance(op, ast.Eq | ast.NotEq):
            return self._among(left.id, [value], isinstance(op, ast.Eq))
        column = self._columns[left.id]
        if column.kind == "str":
            compare = _COMPARISONS[type(op)]
            true = np.fromiter((compare(text, value) for text in column.texts[:]), np.bool_)
            return column.known & (true[np.minimum(column.values, len(true) - 1)] if len(true) else False)
        if column.kind == "int":
            return column.known & _integers_compared(column.values, op, value)
        return column.known & _COMPARISONS[type(op)](column.values, _float_of(value))

    def _among(self, name: str, values: list[Any], inside: bool) -> Bools:
        """Return which items have one of some values in a column, or none of them and another."""
        if name == _ID:
            found = np.zeros(len(self._ids), np.bool_)
            if values:
                found[self._ids.rows([value for value in values if _is_id(self._ids, value)])] = True
            return found if inside else ~found
        column = self._columns[name]
        if column.kind == "str":
            wanted = set(values)
            places = np.array([place for place, text in enumerate(column.texts[:]) if text in wanted], np.int32)
            true = np.isin(column.values, places)
        elif column.kind == "int":
            true = np.isin(column.values, [v for v in map(_integer_of, values) if v is not None])
        elif column.kind == "float":
            true = np.isin(column.values, [float(v) for v in values if _float_of(v) == v])
        else:
            true = np.isin(column.values, np.array(values, np.bool_))
        return column.known & (true if inside else ~true)


def _integers_compared(values: NDArray[np.int64], op: ast.cmpop, value: float) -> Any:
    """Compare integers with a number as Python does, which floats could not say of large ones."""
    if value != value:  # NaN, as no literal is
        return np.zeros(len(values), np.bool_)
    limits = np.iinfo(np.int64)
    if value in (float("inf"), float("-inf")) or not limits.min <= value <= limits.max:
        return np.full(len(values), _COMPARISONS[type(op)](0, value))
    floor = int(value // 1)
    if floor == value:
        return _COMPARISONS[type(op)](values, floor)
    return values <= floor if isinstance(op, ast.Lt | ast.LtE) else values > floor


def _integer_of(value: float) -> int | None:
    """Return the integer of 64 bits that a number is, None if it is none."""
    limits = np.iinfo(np.int64)
    whole = value == value and abs(value) != float("inf") and value == int(value)
    return int(value) if whole and limits.min <= value <= limits.max else None


def _float_of(value: float) -> float:
    try:
        return float(value)
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")


def _is_id(ids: ItemIds, value: Any) -> bool:
    """Return whether a value may be an id."""
    if ids.numbers is None:
        return isinstance(value, str)
    return _integer_of(value) is not None and isinstance(value, int)
