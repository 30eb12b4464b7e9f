"""What compiled code does, read off its text: operations, cycles, gathers, copies, bytes.

The text is XLA's optimised HLO with its schedule. A line is an instruction: a name, the type of its result with its
layout, an opcode, operands and attributes. On a TPU `S(1)` in a layout says that an array lies in VMEM, the memory
beside the core; arrays without it lie in HBM.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

_HEAD = re.compile(r"^(?:ENTRY )?%?([\w.\-]+) \(.*\) -> .* \{$")
_LINE = re.compile(r"^\s+(?:ROOT )?%?([\w.\-]+) = (.*)$")
_ARRAY = re.compile(r"([a-z][a-z0-9]*)\[([\d,]*)\](?:\{([^}]*)\})?")
_OPERAND = re.compile(r"%([\w.\-]+)")
_CALLED = re.compile(r"(?:to_apply|body|condition|true_computation|false_computation)=%?([\w.\-]+)")
_BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")
_FUSED = re.compile(r"calls=%?([\w.\-]+)")
_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
_NAME = re.compile(r'op_name="([^"]*)"')

FREE = {"parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all"}
"""Opcodes that run nothing of their own, as are all that end in `-done`: what they end has begun before."""

_COPIES = {"copy", "copy-start", "slice-start"}

_VIEWS = {"bitcast", "reshape", "get-tuple-element", "copy", "copy-start", "copy-done", "convert", "transpose"}
_READERS = {"gather", "dynamic-slice", "slice"}
_BITS = {"pred": 8, "bf16": 16, "c64": 64, "c128": 128}


def array_bytes(kind: str, shape: str) -> int:
    """Return the bytes of an array: `array_bytes("u16", "140,8")` is 2,240. Types of fewer than 8 bits are packed."""
    found = re.search(r"\d+", kind)
    bits = _BITS.get(kind) or (int(found[0]) if found else 0)
    return -(-bits * prod(int(n) for n in shape.split(",") if n) // 8)


@dataclass(frozen=True)
class Instruction:
    """A line of a computation."""

    name: str
    type: str
    opcode: str
    operands: tuple[str, ...]
    rest: str  # operands and attributes as they are written

    @cached_property
    def arrays(self) -> list[tuple[int, bool]]:
        """The bytes of each array of the result, and whether it lies in VMEM."""
        found = _ARRAY.findall(self.type)
        return [(array_bytes(kind, shape), "S(1)" in layout) for kind, shape, layout in found]

    @property
    def runs(self) -> bool:
        """Whether this takes time of its own."""
        return self.opcode not in FREE and not self.opcode.endswith("-done")

    @property
    def made(self) -> tuple[int, bool]:
        """The bytes that an asynchronous operation or a copy writes, and whether they lie in VMEM.

        The result of `copy-start` is a tuple of destination, source and flag; that of other operations is one of the
        sources, the destination and a flag.
        """
        return self.arrays[0 if self.opcode in ("copy", "copy-start") else len(self.operands)]

    @property
    def nbytes(self) -> int:
        """The bytes of the result."""
        return sum(size for size, _ in self.arrays)

    @property
    def nbytes_outside(self) -> int:
        """The bytes of the result outside VMEM."""
        return sum(size for size, beside in self.arrays if not beside)


Computation = dict[str, Instruction]
"""Instructions by name, in the order of the text: that of the schedule."""


def parse(text: str) -> tuple[dict[str, Computation], str]:
    """Return the computations of HLO text by name, and the name of the one that is entered.

    Raises ValueError where there is none.
    """
    computations: dict[str, Computation] = {}
    entry, current = None, None
    for line in text.splitlines():
        if (head := _HEAD.match(line)) is not None:
            current = computations[head[1]] = {}
            entry = head[1] if line.startswith("ENTRY ") else entry
        elif line.startswith("}"):
            current = None
        elif current is not None and (found := _LINE.match(line)) is not None:
            one = _instruction(found[1], found[2])
            current[one.name] = one
    if entry is None:
        raise ValueError("this is no HLO text: it has no ENTRY")
    return computations, entry


def _instruction(name: str, said: str) -> Instruction:
    """Return the instruction that `said`, the text after "=", means."""
    end = _closing(said, 0) + 1 if said.startswith("(") else said.index(" ")
    kind, said = said[:end], said[end:].lstrip()
    opcode, _, rest = said.partition("(")
    inside = rest[: _closing("(" + rest, 0) - 1]
    return Instruction(name, kind, opcode, tuple(_OPERAND.findall(inside)), rest)


def _closing(text: str, at: int) -> int:
    """Return where the parenthesis that opens at a place is closed."""
    depth = 0
    for i in range(at, len(text)):
        depth += (text[i] == "(") - (text[i] == ")")
        if not depth:
            return i
    raise ValueError(f"a parenthesis is not closed: {text[at : at + 80]}")


class Code:
    """Compiled code, as counts."""

    def __init__(self, text: str) -> None:
        self.computations, self.entry = parse(text)

    def _run(self, name: str, times: int = 1) -> Iterator[tuple[str, Instruction, int]]:
        """Yield what a computation runs: the computation of each instruction, the instruction, and how often it runs.

        A loop whose number of rounds the compiler does not know counts once. Of branches all count.
        """
        for one in self.computations[name].values():
            if one.runs:
                yield name, one, times
            if one.opcode in ("while", "call", "conditional", "async-start"):
                rounds = _TRIPS.search(one.rest)
                called = [*_CALLED.findall(one.rest), *_FUSED.findall(one.rest)]
                for several in _BRANCHES.findall(one.rest):
                    called += _OPERAND.findall(several)
                for each in called:
                    yield from self._run(each, times * int(rounds[1]) if rounds else times)

    @cached_property
    def running(self) -> list[tuple[str, Instruction, int]]:
        """What runs, in order."""
        return list(self._run(self.entry))

    def opcodes(self) -> Counter[str]:
        """Return how often each opcode stands in what runs and in what is fused into it."""
        count: Counter[str] = Counter()
        for _, one, _ in self.running:
            count[one.opcode] += 1
            for fused in _FUSED.findall(one.rest) if one.opcode == "fusion" else ():
                count += self._fused(fused)
        return count

    def _fused(self, name: str) -> Counter[str]:
        count: Counter[str] = Counter()
        for one in self.computations[name].values():
            count[one.opcode] += 1
            for fused in _FUSED.findall(one.rest) if one.opcode == "fusion" else ():
                count += self._fused(fused)
        return count

    def table_copies(self) -> list[tuple[str, int]]:
        """Return the arrays of the table that are copied into VMEM, or elsewhere, and the bytes of each copy.

        An array may be copied in several slices.
        """
        found = []
        for computation, one, times in self.running:
            if one.opcode not in _COPIES:
                continue
            name = self._table_array(computation, one.operands[0])
            if name is not None:
                found += [(name, one.made[0])] * times
        return found

    def _table_array(self, computation: str, name: str) -> str | None:
        """Return the array of the table that a value is but for its shape and place, None of other values."""
        one = self.computations[computation].get(name)
        while one is not None and one.opcode in _VIEWS and one.operands:
            one = self.computations[computation].get(one.operands[0])
        if one is None or one.opcode != "parameter" or computation != self.entry:
            return None
        named = _NAME.search(one.rest)
        return named[1] if named is not None and named[1].startswith("table") else None

    def bytes_moved(self) -> int:
        """Return the bytes that all instructions read outside VMEM and write there.

        A gather reads what it fetches and its indices, not the array that it fetches from. What a Pallas kernel copies
        of the table is left out. Caches are not counted in.
        """
        total = 0
        for computation, one, times in self.running:
            if one.opcode in ("while", "call", "conditional"):
                continue  # their insides count
            total += times * (self._read(computation, one) + self._written(one))
        return total

    @staticmethod
    def _written(one: Instruction) -> int:
        if one.opcode.endswith("-start"):
            size, beside = one.made
            return 0 if beside else size
        return one.nbytes_outside

    def _read(self, computation: str, one: Instruction) -> int:
        total = 0
        for at, name in enumerate(one.operands):
            operand = self.computations[computation].get(name)
            if operand is None or operand.opcode == "constant" or not operand.nbytes_outside:
                continue
            if one.opcode == "custom-call" and self._table_array(computation, name) is not None:
                continue  # a kernel of ours, which copies the rows it needs: how many, the code does not say
            total += min(operand.nbytes_outside, self._fetched(one, at, operand.nbytes_outside))
        return total

    def _fetched(self, one: Instruction, at: int, whole: int) -> int:
        """Return how many bytes of its operand number `at`, of `whole` bytes, an instruction reads."""
        if one.opcode == "slice-start":
            return one.made[0]
        if one.opcode in _READERS:
            return one.nbytes if at == 0 else whole
        if one.opcode != "fusion":
            return whole
        fused = self.computations[_FUSED.findall(one.rest)[0]]
        inner = next((x for x in fused.values() if x.opcode == "parameter" and x.rest.startswith(f"{at})")), None)
        if inner is None:
            return whole
        return self._fetched_in(fused, inner.name, whole)

    def _fetched_in(self, fused: Computation, name: str, whole: int) -> int:
        """Return how many bytes of a value of `whole` bytes its users in a fused computation read."""
        total = 0
        for user in fused.values():
            if name not in user.operands:
                continue
            if user.opcode in ("bitcast", "reshape"):
                total += self._fetched_in(fused, user.name, whole)
            elif user.opcode == "fusion":
                total += sum(self._fetched(user, at, whole) for at, each in enumerate(user.operands) if each == name)
            elif user.opcode in _READERS and user.operands[0] == name and name not in user.operands[1:]:
                total += user.nbytes
            else:
                return whole
        return min(total, whole)


def read(compiled: Any) -> dict[str, Any]:
    """Return the counts of a compiled function.

    operations: instructions that run, each a kernel of its own on a GPU. cycles: the sum of XLA's estimates, on a TPU;
    gathers and copies carry none. gathers, sorts, scatters, loops: how many, fused ones among them. table_copies: whole
    arrays of the table that are copied, and table_copy_bytes their bytes. moved_bytes: what all operations read from
    the large memory and write to it. temporary_bytes: memory besides arguments and results.
    """
    code = Code(compiled.as_text())
    opcodes = code.opcodes()
    copies = code.table_copies()
    cycles = [times * int(found[1]) for _, one, times in code.running if (found := _CYCLES.search(one.rest))]
    memory = compiled.memory_analysis()
    return {
        "operations": len(code.running),
        "cycles": sum(cycles) if cycles else None,
        "gathers": opcodes["gather"],
        "sorts": opcodes["sort"],
        "scatters": opcodes["scatter"],
        "loops": opcodes["while"],
        "table_copies": sorted({name for name, _ in copies}),
        "table_copy_bytes": sum(size for _, size in copies),
        "moved_bytes": code.bytes_moved(),
        "argument_bytes": memory.argument_size_in_bytes,
        "temporary_bytes": memory.temp_size_in_bytes,
    }
