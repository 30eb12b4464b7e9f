"""Count what each PyTorch operation would ask of a GPU: launches, bytes, and reads by the host.

No GPU is needed. Tensors are fake: they have shapes, types and a device named `cuda`, and no values. A dispatch mode
sees every operation that PyTorch would run, and every Triton kernel is counted where it would be launched.

    python -m tests.runtime.device.launches             what is counted, beside the limits
    python -m tests.runtime.device.launches --write     make what is counted the limits, in launch_limits.json

One operation counts as one launch, though a few of PyTorch's take several kernels (`topk`, `sort`). Bytes are those of
all arguments and results, as if no cache held any; a gather reads what it fetches, not what it fetches from. Of a
Triton kernel the bytes are those that `TRITON_BYTES` tells, else none.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import torch
import triton
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import maskwright as mw
from benchmarks.peers.tokenizers import tekken
from maskwright.runtime import torch_ops as ops
from maskwright.runtime.device.torch import compat
from maskwright.table.live_sids import LiveSids

LIMITS = Path(__file__).parent / "launch_limits.json"
BATCH, BEAMS, SIZE, LENGTH = 2, 32, 2048, 8  # of semantic IDs: codes of a level, and levels
ROWS = BATCH * BEAMS

ALLOCATES = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"}
READS = {"_local_scalar_dense", "nonzero", "masked_select", "equal", "is_nonzero", "_unique2", "unique_consecutive"}
GATHERS = {"index_select", "gather", "take", "index", "embedding"}
SCATTERS = {"scatter", "scatter_", "index_put", "index_put_", "index_copy_", "index_fill_"}

TRITON_BYTES: dict[str, Callable[..., int]] = {
    # the words of a base are read and written; single bits of lists are few
    "_write_masks": lambda header, *given, **_: distinct(*given) + size_of(given[-1]),
    "_follow": lambda header, *given, **_: distinct(*given),
    # each row of logits is read once; of a table, a few edges a beam
    "branch": lambda logits, _stride, rows, _table, kept, scratch, *_, **__: (
        size_of(logits) + sum(map(size_of, (*rows, *kept))) + 2 * size_of(scratch.entries)
    ),
    "go_on": lambda logits, _stride, rows, _table, kept, *_, **__: size_of(logits) + sum(map(size_of, (*rows, *kept))),
    "apply_masks": lambda masks, logits, out, *_, SAME, **__: (
        size_of(masks) + size_of(out) + (0 if SAME else size_of(logits))
    ),
}
"""The bytes that a kernel moves, but for the lists of a table, by its name and given its arguments."""


def distinct(*arrays: Tensor) -> int:
    """Return the bytes of tensors, each counted once: an argument that a kernel does not read is another one again."""
    return sum(map(size_of, {id(x): x for x in arrays}.values()))


def size_of(x: Tensor) -> int:
    """Return the bytes of what a tensor shows."""
    return x.numel() * x.element_size()


# ---------------------------------------------------------------------------------------- counting


def _same_place(a: Tensor, b: Tensor) -> bool:
    """Return whether two fake tensors are the same numbers."""
    return (a.dtype, a.shape, a.stride(), address(a)) == (b.dtype, b.shape, b.stride(), address(b))


class Counts(NamedTuple):
    """What a run of an operation asks of a GPU."""

    launches: int
    bytes: int
    reads: int


class LaunchCounter(TorchDispatchMode):
    """Counts what runs inside it."""

    def __init__(self) -> None:
        super().__init__()
        self.launches: Counter[str] = Counter()
        self.reads: Counter[str] = Counter()
        self.bytes = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = function._schema.name.split("::")[1]
        if name in READS:
            self.reads[name] += 1
        out = function(*args, **(kwargs or {}))
        given = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        made = [x for x in tree_leaves(out) if isinstance(x, Tensor)]
        on_device = [x for x in (*given, *made) if x.device.type == "cuda"]
        if not made or not on_device or name in ALLOCATES or self._is_view(function, given, made):
            return out
        if any(x.device.type == "cuda" for x in given) and any(x.device.type == "cpu" for x in made):
            self.reads[name] += 1
        self.launches[name] += 1
        self.bytes += self._moved(name, given, made)
        return out

    @staticmethod
    def _is_view(function: Any, given: list[Tensor], made: list[Tensor]) -> bool:
        """Return whether results are arguments in another shape: nothing runs for them, nor to copy one to itself."""
        if function._schema.name == "aten::copy_" and _same_place(*given):
            return True
        if function._schema.is_mutable:
            return False
        old = {x.untyped_storage()._cdata for x in given}
        return all(x.untyped_storage()._cdata in old for x in made)

    @staticmethod
    def _moved(name: str, given: list[Tensor], made: list[Tensor]) -> int:
        if name in GATHERS:
            return sum(map(size_of, [*given[1:], *made, *made]))
        if name in SCATTERS:  # indices and values are read, values written; what is copied first is counted as made
            values = max((size_of(x) for x in given[1:]), default=0)
            return sum(map(size_of, given[1:])) + values + (0 if name.endswith("_") else 2 * sum(map(size_of, made)))
        return sum(map(size_of, [*given, *made]))

    def launch(self, kernel: Any, arguments: tuple[Any, ...], constants: dict[str, Any]) -> None:
        """Count a Triton kernel."""
        name = kernel.__name__
        self.launches[name] += 1
        self.bytes += TRITON_BYTES[name](*arguments, **constants) if name in TRITON_BYTES else 0


@contextlib.contextmanager
def pretending() -> Iterator[None]:
    """Let fake tensors pass for plain ones on a GPU: operations take the way there that they take on a device."""
    with (
        mock.patch.object(compat, "is_plain", return_value=True),
        mock.patch.object(torch.cuda, "device_of", return_value=contextlib.nullcontext()),
        mock.patch.object(torch.cuda, "is_current_stream_capturing", return_value=False),
        mock.patch.object(torch.cuda, "current_stream", return_value=SimpleNamespace(cuda_stream=0)),
        mock.patch.object(FakeTensor, "data_ptr", address),
        mock.patch.object(FakeTensor, "__getitem__", getitem),
        mock.patch.object(FakeTensor, "__setitem__", setitem),
        mock.patch.object(FakeTensor, "__invert__", lambda x: torch.bitwise_not(x)),
        mock.patch.object(FakeTensor, "copy_", copy_),
        mock.patch.object(FakeTensor, "contiguous", contiguous),
    ):
        yield


@contextlib.contextmanager
def counting() -> Iterator[LaunchCounter]:
    """Count what runs inside; Triton kernels are counted in place of being launched."""
    counter = LaunchCounter()

    def of_kernel(kernel: Any, grid: Any) -> Callable[..., None]:
        return lambda *arguments, **constants: counter.launch(kernel, arguments, constants)

    with mock.patch.object(triton.runtime.jit.KernelInterface, "__getitem__", of_kernel), counter:
        yield counter


def address(x: Tensor) -> int:
    """Return a number that two fake tensors share if they begin at the same place."""
    return x.untyped_storage()._cdata + x.storage_offset() * x.element_size()


def _indexed(x: Tensor, index: Any) -> tuple[Tensor, list[Tensor | None]]:
    """Return the view of x that an index without its tensors means, and the tensors by the view's axes."""
    parts = index if isinstance(index, tuple) else (index,)
    tensors: list[Tensor | None] = []
    for at, part in enumerate(parts):
        axis = len(tensors)
        if part is None:
            x = x.unsqueeze(axis)
            tensors.append(None)
        elif part is Ellipsis:
            tensors += [None] * (x.dim() - axis - sum(each is not None for each in parts[at + 1 :]))
        elif isinstance(part, Tensor):
            tensors.append(part)
        elif isinstance(part, slice):
            whole = part == slice(None)
            x = x if whole else torch.ops.aten.slice.Tensor(x, axis, part.start, part.stop, part.step or 1)
            tensors.append(None)
        else:
            x = x.select(axis, part)
    return x, tensors


def getitem(x: Tensor, index: Any) -> Tensor:
    """Return x[index] as PyTorch does, but that it would first make the GPU the current device, and there is none."""
    view, tensors = _indexed(x, index)
    if all(each is None for each in tensors):
        return view
    found: Tensor = torch.ops.aten.index.Tensor(view, tensors)
    return found


def copy_(x: Tensor, other: Tensor, non_blocking: bool = False) -> Tensor:
    """Copy a tensor to another, below autograd, whose function for it asks for the GPU; see `getitem`."""
    keys = torch._C.DispatchKey
    above = functools.reduce(
        lambda a, b: a | b,
        map(torch._C.DispatchKeySet, (keys.ADInplaceOrView, keys.AutogradCUDA, keys.AutogradFunctionality)),
    )
    with torch._C._ExcludeDispatchKeyGuard(above):
        torch.ops.aten.copy_.default(x, other, non_blocking)
    return x


def contiguous(x: Tensor) -> Tensor:
    """Return a tensor in one piece, without a current device; see `getitem`."""
    if x.is_contiguous():
        return x
    found: Tensor = torch.ops.aten.clone.default(x, memory_format=torch.contiguous_format)
    return found


def setitem(x: Tensor, index: Any, value: Any) -> None:
    """Do x[index] = value as PyTorch does, without a current device; see `getitem`."""
    view, tensors = _indexed(x, index)
    if any(each is not None for each in tensors):
        view.index_put_(tensors, torch.as_tensor(value))
    elif isinstance(value, Tensor):
        view.copy_(value)
    else:
        view.fill_(value)


# ---------------------------------------------------------------------------------------- tables


@functools.cache
def vocabulary() -> mw.Vocabulary:
    """Return Tekken, 131,072 tokens."""
    tokenizer = tekken()
    return mw.Vocabulary.from_bytes(tokenizer.tokens, eos=tokenizer.eos)


def sids() -> np.ndarray:
    return np.random.default_rng(0).integers(0, SIZE, (100_000, LENGTH), dtype=np.uint16)


def schema() -> mw.LazyTable:
    of = {
        "type": "object",
        "properties": {
            "city": {"type": "string", "maxLength": 20},
            "days": {"type": "integer", "minimum": 1, "maximum": 14},
            "tags": {"type": "array", "items": {"type": "string"}, "maxItems": 3},
            "near": {"$ref": "#"},
        },
        "additionalProperties": False,
    }
    return mw.compile_json_schema(of, vocabulary())


def arena() -> Any:
    made = mw.Arena(vocabulary(), distances=True)
    handle = made.add(schema())
    return ops.with_start_states(ops.to_device(made, "cpu", distances=True), [handle] * ROWS)


def filtered() -> Any:
    matrix = mw.sort_sids(sids(), SIZE)
    return ops.with_filters(ops.to_device(matrix, "cpu"), [matrix.filter(np.arange(len(sids())) % 2 == 0)])


MAKE: dict[str, Callable[[], Any]] = {
    "trie": lambda: ops.to_device(mw.compile_sids(sids(), SIZE), "cpu", distances=True),
    "matrix": lambda: ops.to_device(mw.sort_sids(sids(), SIZE), "cpu"),
    "filtered": filtered,
    "live": lambda: ops.to_device(LiveSids(mw.sort_sids(sids(), SIZE), capacity=4096).publish(), "cpu"),
    "graph": lambda: ops.to_device(
        mw.compile_regex("[a-z]{1,30}@[a-z0-9.]{3,40}", vocabulary()), "cpu", distances=True
    ),
    "nested": lambda: ops.to_device(schema(), "cpu", distances=True, on_demand=False),
    "arena": arena,
}


@functools.cache
def mode() -> FakeTensorMode:
    return FakeTensorMode(allow_non_fake_inputs=True)


def fake(x: Any) -> Any:
    """Return a table, a tuple or a tensor with fake tensors on a GPU in the place of tensors."""
    if isinstance(x, Tensor):
        return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="cuda")
    if dataclasses.is_dataclass(x) and not isinstance(x, type):
        changed = {field.name: fake(getattr(x, field.name)) for field in dataclasses.fields(x) if field.init}
        return dataclasses.replace(x, **changed | ({"host": None} if "host" in changed else {}))
    return type(x)(map(fake, x)) if type(x) is tuple else x


@functools.cache
def table(kind: str) -> Any:
    """Return a fake table of a kind on a GPU."""
    made = MAKE[kind]()
    with mode():
        return fake(made)


# ---------------------------------------------------------------------------------------- operations

Case = Callable[[Any], tuple[Callable[..., Any], tuple[Any, ...]]]
"""For a table: a function of the table and of arguments, and the arguments."""


def numbers(*shape: int, kind: torch.dtype = torch.int64) -> Tensor:
    return torch.empty(shape, dtype=kind, device="cuda")


def logits(dev: Any) -> Tensor:
    return numbers(ROWS, dev.vocab_size, kind=torch.float32)


def start(dev: Any) -> Any:
    return ops.start(dev, ROWS)


def select(level: int) -> Case:
    def run(dev: Any, *given: Any) -> Any:
        return ops.select(dev, *given, BEAMS, level)

    return lambda dev: (run, (logits(dev), start(dev), numbers(BATCH, BEAMS, kind=torch.float32)))


CASES: dict[str, Case] = {
    "start": lambda dev: (ops.start, (ROWS,)),
    "first_tokens": lambda dev: (ops.first_tokens, (None, ROWS, 0)),
    "accepting": lambda dev: (ops.accepting, (start(dev),)),
    "distance": lambda dev: (ops.distance, (start(dev),)),
    "advance": lambda dev: (ops.advance, (start(dev), numbers(ROWS))),
    "contains": lambda dev: (ops.contains, (numbers(ROWS, LENGTH),)),
    "bitmask": lambda dev: (ops.bitmask, (start(dev),)),
    "bitmask, remaining": lambda dev: (ops.bitmask, (start(dev), numbers(ROWS))),
    "mask_logits": lambda dev: (ops.mask_logits, (logits(dev), start(dev))),
    "mask_logits, remaining": lambda dev: (ops.mask_logits, (logits(dev), start(dev), numbers(ROWS))),
    "mask_logits_": lambda dev: (ops.mask_logits_, (logits(dev), start(dev))),
    "log_mass": lambda dev: (ops.log_mass, (logits(dev), start(dev))),
    "log_probs": lambda dev: (
        ops.log_probs,
        (logits(dev).view(-1, LENGTH, logits(dev).shape[1]), numbers(ROWS // LENGTH, LENGTH)),
    ),
    "allowed_tokens": lambda dev: (ops.allowed_tokens, (start(dev), BEAMS)),
    "candidates": lambda dev: (ops.candidates, (logits(dev), start(dev), BEAMS)),
    "select": select(1),
    "select, level 2": select(2),
    "select, last level": select(LENGTH - 1),
    "end_scores": lambda dev: (ops.end_scores, (logits(dev), start(dev))),
}

ON_THE_HOST = {"to_device", "with_start_states", "with_filters", "with_snapshot", "draw"}
"""What takes what Python holds, and what draws on the host and nowhere else."""

AS_MATRICES = {"bitmask", "mask_logits", "advance", "select", "select, level 2", "select, last level", "candidates"}
"""What is counted of filters and live sets, which are read as sorted matrices are."""

NOT_FOR = {
    ("end_scores", "trie"), ("end_scores", "matrix"),  # there is no EOS
    *itertools.product(("allowed_tokens",), ("graph", "nested", "arena")),  # wider than is known
    ("log_probs", "arena"),  # as of a nested table
    *itertools.product(("contains",), ("graph", "nested", "arena")),  # `advance`, again and again
    *itertools.product(("select, level 2", "select, last level"), ("graph", "nested", "arena")),  # levels are alike
    *itertools.product(CASES.keys() - AS_MATRICES, ("filtered", "live")),
}  # fmt: skip

PAIRS = [(name, kind) for kind in MAKE for name in CASES if (name, kind) not in NOT_FOR]


def measure(name: str, kind: str) -> Counts:
    """Return what an operation on a table of a kind asks of a GPU, after a first time: what is kept is made then."""
    dev = table(kind)
    with mode(), pretending():
        function, arguments = CASES[name](dev)
        for _ in range(2):
            with counting() as counter:
                function(dev, *arguments)
    return Counts(counter.launches.total(), counter.bytes, counter.reads.total())


def limits() -> dict[str, dict[str, int]]:
    """Return the most launches and bytes of each operation and kind of table."""
    found: dict[str, dict[str, int]] = json.loads(LIMITS.read_text())
    return found


def main() -> None:
    """Print what is counted, and write it if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="make what is counted the limits")
    asked = parser.parse_args()
    found = {f"{name}: {kind}": measure(name, kind) for name, kind in PAIRS}
    old = limits() if LIMITS.exists() else {}
    for case, counts in found.items():
        before = old.get(case, {})
        launches = f"launches {counts.launches:5} ({before.get('launches', '')})"
        moved = f"MB {counts.bytes / 1e6:10,.3f} ({before.get('bytes', 0) / 1e6:,.3f})"
        print(f"{case:32} {launches:24} {moved:36} reads {counts.reads}")
    if asked.write:
        lines = (f'"{case}": {{"launches": {each.launches}, "bytes": {each.bytes}}}' for case, each in found.items())
        LIMITS.write_text("{\n  " + ",\n  ".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
