"""Expressions over the columns of a catalogue, such as `price < 50 and category in ("shoe", "hat")`.

They are a part of Python's, which `ast` reads. What they mean is worked out column by column: of strings once for each
distinct one.
"""

from __future__ import annotations

import ast
import operator
import re
import threading
import warnings
from collections.abc import Callable, Mapping
from typing import Any, Literal, NoReturn

import numpy as np
from numpy.typing import NDArray

from ..errors import ConstraintError
from ..table.item_ids import IdIndex, ItemIds
from .columns import Column, Kind

MOST_TEXT = 4096
"""Most characters of an expression."""

MOST_ORDERED = 10_000_000
"""Most texts that one expression compares with values by <, <=, > and >=: a second's work."""

_MOST_DEPTH = 50
_FEW = 8  # values that are compared one by one: each takes 0.3 ms of 10^6 rows
_ID = "id"
_LINE = re.compile(r"[^\r\n]*(?:\r\n?|\n)?")
_MAY_WARN = re.compile(r"\\|[\d.][a-zA-Z]")  # Python warns of unknown escapes, and of numbers such as 1or
_warnings_lock = threading.Lock()  # filters of warnings are of the process
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


def keeps(text: str, columns: Mapping[str, Column], ids: ItemIds, index: IdIndex | None = None) -> Bools:
    """Return of which items an expression is true, (N,). A comparison with a value that is missing is false.

    columns: (N,) each. index: of the ids, and maybe of later ones. Raises ConstraintError, with argument "filter", for
    anything that is no such expression.
    """
    kinds: dict[str, Kind] = {name: column.kind for name, column in columns.items()}
    made = _Filter(text, kinds, "str" if ids.numbers is None else "int")
    return made.of(columns, len(ids), IdIndex(ids) if index is None else index)


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
            self._tree = _parsed(text.strip())
        except SyntaxError as error:
            end = len(text.rstrip()) + 1
            self._refuse(f"is no expression: {error.msg}", self._place(error.lineno, error.offset) or end)
        except UnicodeEncodeError as error:
            self._refuse("has a lone surrogate, which no UTF-8 spells", self._place(1, error.start + 1))
        except (ValueError, RecursionError, MemoryError):
            self._refuse("is no expression, or is nested too deeply")
        self._check(self._tree, 0)

    def _place(self, line: int | None, character: int | None) -> int:
        """Return the place in the text of a character of a line, both counted from 1; 0 where it is not known."""
        if not line or not character:
            return 0
        before = len(self._text) - len(self._text.lstrip())
        return before + sum(map(len, _LINE.findall(self._text.strip())[: line - 1])) + character

    def _refuse(self, why: str, at: ast.expr | int = 0) -> NoReturn:
        if isinstance(at, ast.expr):
            line = _LINE.findall(self._text.strip())[at.lineno - 1]
            at = self._place(at.lineno, len(line.encode()[: at.col_offset].decode()) + 1)
        where = f", at character {at}" if at else ""
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
            value: Any = node.operand.value if isinstance(node.operand, ast.Constant) else None
            if type(value) not in (int, float):
                self._refuse("has a sign before what is no number", node)
            return -value if isinstance(node.op, ast.USub) else value
        if not isinstance(node, ast.Constant):
            self._refuse("has something in the place of a value", node)
        return node.value

    # ------------------------------------------------------------------------------------------------- evaluating

    def of(self, columns: Mapping[str, Column], count: int, index: IdIndex) -> Bools:
        """Return of which of so many items the expression is true."""
        self._columns, self._count, self._index = columns, count, index
        self._ordered = 0  # texts that were compared with a value one by one
        return self._of(self._tree)

    def _of(self, node: ast.expr) -> Bools:
        """Return of which items a part is true, an array of its own."""
        found: Bools
        match node:
            case ast.BoolOp():
                joined = np.logical_and if isinstance(node.op, ast.And) else np.logical_or
                found = self._of(node.values[0])
                for each in node.values[1:]:
                    joined(found, self._of(each), out=found)
                return found
            case ast.UnaryOp():
                return ~self._of(node.operand)
            case ast.Name():
                column = self._columns[node.id]
                found = column.values & column.known
                return found
            case ast.Compare():
                found = self._compared(node.left, node.ops[0], node.comparators[0])
                for left, op, right in zip(node.comparators, node.ops[1:], node.comparators[1:], strict=False):
                    found &= self._compared(left, op, right)
                return found
            case _:
                raise AssertionError(f"{type(node).__name__} was refused before")

    def _compared(self, left: ast.expr, op: ast.cmpop, right: ast.expr) -> Bools:
        if not isinstance(left, ast.Name):
            left, op, right = right, _TURNED[type(op)](), left
        assert isinstance(left, ast.Name)
        if isinstance(op, ast.Is | ast.IsNot):
            known = np.ones(self._count, np.bool_) if left.id == _ID else self._columns[left.id].known
            return ~known if isinstance(op, ast.Is) else known.copy()
        if isinstance(op, ast.In | ast.NotIn):
            assert isinstance(right, ast.Tuple | ast.List)
            values = [self._value(each) for each in right.elts]
            return self._among(left.id, values, isinstance(op, ast.In))
        value = self._value(right)
        if isinstance(op, ast.Eq | ast.NotEq):
            return self._among(left.id, [value], isinstance(op, ast.Eq))
        column = self._columns[left.id]
        found: Bools
        if column.kind == "str":
            compare = _COMPARISONS[type(op)]
            self._ordered += len(column.texts)
            if self._ordered > MOST_ORDERED:
                self._refuse(
                    f"orders strings too often: it compares more than {MOST_ORDERED:,} texts with a value", left
                )
            true = np.fromiter((compare(text, value) for text in column.texts[:] or [""]), np.bool_)
            found = true[column.values]
        elif column.kind == "int":
            found = _integers_compared(column.values, op, value)
        else:
            found = _floats_compared(column.values, op, value)
        found &= column.known
        return found

    def _among(self, name: str, values: list[Any], inside: bool) -> Bools:
        """Return which items have one of some values in a column, or none of them and another."""
        wanted: set[Any] = set(values)
        if name == _ID:
            found = np.zeros(self._count, np.bool_)
            named = [each if isinstance(each, str) else _integer_of(each) for each in wanted]
            for rows in self._index.rows([each for each in named if each is not None], self._count):
                found[rows] = True
            return found if inside else ~found
        column = self._columns[name]
        if column.kind == "str":
            wanted = {place for text in wanted if (place := column.places.get(text)) is not None}
        elif column.kind == "int":
            wanted = {whole for value in wanted if (whole := _integer_of(value)) is not None}
        elif column.kind == "float":
            wanted = {float(value) for value in wanted if _float_of(value) == value}
        if len(wanted) > _FEW:
            found = np.isin(column.values, list(wanted))
        else:
            found = np.zeros(self._count, np.bool_)
            for each in wanted:
                found |= column.values == each
        if not inside:
            np.logical_not(found, out=found)
        found &= column.known
        return found


def _parsed(text: str) -> ast.expr:
    """Return the tree of an expression, without Python's warnings."""
    if not _MAY_WARN.search(text):
        return ast.parse(text, mode="eval").body
    with _warnings_lock, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(text, mode="eval").body


def _floats_compared(values: NDArray[np.float64], op: ast.cmpop, value: float) -> Any:
    """Compare floats with a number as Python does, where no float may be an integer."""
    near = _float_of(value)
    if near == value:
        return _COMPARISONS[type(op)](values, near)
    if near < value:
        return values <= near if isinstance(op, ast.Lt | ast.LtE) else values > near
    return values < near if isinstance(op, ast.Lt | ast.LtE) else values >= near


def _integers_compared(values: NDArray[np.int64], op: ast.cmpop, value: float) -> Any:
    """Compare integers with a number as Python does, which floats could not say of large ones."""
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
    whole = abs(value) != float("inf") and value == int(value)
    return int(value) if whole and limits.min <= int(value) <= limits.max else None


def _float_of(value: float) -> float:
    try:
        return float(value)
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")
