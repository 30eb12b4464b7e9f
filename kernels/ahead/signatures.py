"""Which kernels Python calls and with which types of arguments, as lines of `signatures.txt`.

    Rows.1 = table.groups.Rows{int32[:], bool[:]}
    lazy.pushdown.mask write_mask(int64, bytes, uint32[:], Rows.1) loop

An array is C-contiguous unless an A or F follows it. Braces hold the fields of a named tuple, which has a name in this
file, parentheses those of a plain one. `=` is an argument that was left out. Behind a line, `loop` says that threads
call the kernel as a native function of an address: see `compiled.native_loop`.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numba.core import types as numba_types
from numba.np.numpy_support import from_dtype

from ..native import PACKAGE

if TYPE_CHECKING:
    from ..compiled import NumbaType

types: Any = numba_types
FILE = Path(__file__).with_name("signatures.txt")


class Signature(NamedTuple):
    """One kernel, and the types of its arguments."""

    module: str  # within the package
    name: str
    arguments: tuple[Any, ...]
    is_loop: bool = False

    def text(self, names: dict[str, str] | None = None) -> str:
        """Return the signature as a line; names: those of named tuples, to which new ones are added."""
        told = ", ".join(type_to_text(each, names) for each in self.arguments)
        return f"{self.module} {self.name}({told})" + (" loop" if self.is_loop else "")


def read(file: Path = FILE) -> list[Signature]:
    """Return the signatures in a file. Raises ValueError, with the line, for what is none."""
    named: dict[str, Any] = {}
    signatures = []
    for line in file.read_text().splitlines() if file.exists() else ():
        if given := re.fullmatch(r"([\w.]+) = (.*)", line):
            named[given[1]], _ = _type(given[2], named)
        else:
            signatures.append(_of_line(line, named))
    return signatures


def write(signatures: Iterable[Signature], file: Path = FILE) -> None:
    """Write signatures into a file, sorted, each once."""
    names: dict[str, str] = {}
    lines = [each.text(names) for _, each in sorted({each.text(): each for each in signatures}.items())]
    file.write_text("".join(f"{line}\n" for line in [*(f"{name} = {text}" for text, name in names.items()), *lines]))


def without_flags(kind: NumbaType) -> Any:
    """Return a type in which no array is read-only and none is known to be aligned: the code is the same."""
    if isinstance(kind, types.Array):
        return types.Array(kind.dtype, kind.ndim, kind.layout)
    if isinstance(kind, types.NamedTuple | types.NamedUniTuple):
        return types.BaseTuple.from_types([without_flags(each) for each in kind], kind.instance_class)
    if isinstance(kind, types.BaseTuple):
        return types.BaseTuple.from_types([without_flags(each) for each in kind])
    return kind


def type_to_text(kind: NumbaType, names: dict[str, str] | None = None) -> str:
    """Return a type of numba as it stands in the file. Raises ValueError for one that cannot be passed to a library."""
    if isinstance(kind, types.Bytes):
        return "bytes"
    if isinstance(kind, types.Array):
        return f"{kind.dtype}[{':,' * (kind.ndim - 1)}:]" + ("" if kind.layout == "C" else kind.layout)
    if isinstance(kind, types.NamedTuple | types.NamedUniTuple):
        owner = kind.instance_class
        whole = f"{owner.__module__.removeprefix(f'{PACKAGE}.')}.{owner.__qualname__}"
        text = whole + "{" + ", ".join(type_to_text(each, names) for each in kind) + "}"
        if names is None:
            return text
        name = owner.__qualname__.lstrip("_")
        return names.setdefault(text, f"{name}.{1 + sum(each.startswith(f'{name}.') for each in names.values())}")
    if isinstance(kind, types.BaseTuple):
        return f"({', '.join(type_to_text(each, names) for each in kind)})"
    if isinstance(kind, types.Omitted):
        return f"={kind.value!r}"
    if isinstance(kind, types.NoneType):
        return "None"
    if isinstance(kind, types.DType):
        return f"dtype({kind.dtype})"
    if isinstance(kind, types.Boolean | types.Integer | types.Float) and not isinstance(kind, types.Literal):
        return str(kind)
    raise ValueError(f"no library can be called with a {kind}")


def _of_line(line: str, named: dict[str, Any]) -> Signature:
    found = re.fullmatch(r"([\w.]+) ([\w.<>]+)\((.*)\)( loop)?", line)
    if not found:
        raise ValueError(f"{FILE.name} has a line that is no signature: {line}")
    kinds, rest = _types(found[3], named)
    if rest:
        raise ValueError(f"{FILE.name} has a line that goes on after its types with {rest!r}: {line}")
    return Signature(found[1], found[2], tuple(kinds), bool(found[4]))


def _types(text: str, named: dict[str, Any]) -> tuple[list[Any], str]:
    """Return the types that a text begins with, and what follows them."""
    kinds: list[Any] = []
    while text and text[0] not in ")}":
        kind, text = _type(text, named)
        kinds.append(kind)
        text = text.removeprefix(",").lstrip()
    return kinds, text


def _type(text: str, named: dict[str, Any]) -> tuple[Any, str]:
    """Return the type that a text begins with, and what follows it."""
    if text[0] == "(":
        kinds, rest = _types(text[1:], named)
        return types.BaseTuple.from_types(kinds), rest[1:]
    if text[0] == "=":
        value = re.match(r"=([\w.'-]+)", text)
        assert value
        return types.Omitted({"True": True, "False": False, "None": None}.get(value[1], _number(value[1]))), text[
            value.end() :
        ]
    found = re.match(r"dtype\((\w+)\)|([\w.]+)", text)
    if not found:
        raise ValueError(f"{FILE.name} has no type where it has {text!r}")
    rest = text[found.end() :]
    if found[1]:
        return types.DType(_scalar(found[1])), rest
    name = found[2]
    if name in named:
        return named[name], rest
    if rest.startswith("{"):
        kinds, rest = _types(rest[1:], named)
        module, _, owner = name.rpartition(".")
        return types.BaseTuple.from_types(kinds, getattr(importlib.import_module(f"{PACKAGE}.{module}"), owner)), rest[
            1:
        ]
    if array := re.match(r"\[([:,]+)\]([AF]?)", rest):
        return types.Array(_scalar(name), array[1].count(":"), array[2] or "C"), rest[array.end() :]
    if name == "bytes":
        return types.Bytes(types.uint8, 1, "C"), rest
    return (types.none if name == "None" else _scalar(name)), rest


def _number(text: str) -> Any:
    return int(text) if text.lstrip("-").isdigit() else text


def _scalar(name: str) -> Any:
    return types.boolean if name == "bool" else from_dtype(np.dtype(name))
