"""Triton kernels compile for GPUs, and do what numpy's operations do. No device is needed.

Triton brings its own assembler. Its interpreter runs kernels on tensors of the host, but accepts some that its compiler
refuses: both are asked.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import inspect
import os
import pkgutil
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import pytest

import maskwright as mw
from maskwright.runtime import numpy_ops
from maskwright.runtime.device import device_table
from maskwright.runtime.device.device_table import State
from maskwright.table.transition_table import Level
from tests.oracles import nested_model as nested
from tests.runtime.device.interpreted import run_interpreted
from tests.strategies import random_graphs as graphs
from tests.support import nested_schemas
from tests.support.backends import bits_of
from tests.support.nested_schemas import SMALL

ARCHITECTURES = (90, *(pytest.param(each, marks=pytest.mark.slow) for each in (80, 100)))  # H100; A100, B200
FLOATS = ("fp32", "fp16", "bf16")
INTERPRETED = ("check_graphs", "check_nested", "check_arena", "check_layouts", "check_select")


def run(check: str, **more: str) -> None:
    """Run a check in a process of its own: Triton decides at import whether kernels are compiled or interpreted."""
    pytest.importorskip("torch")
    pytest.importorskip("triton")
    from maskwright.runtime.device.torch import memory

    if "sid_step" in check and not memory.has_triton():
        pytest.skip("needs Triton 3.3")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TRITON_")}
    code = f"import tests.runtime.device.test_triton as t; t.{check}"
    here = Path(mw.__file__).parent
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=environment | more, cwd=here, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_kernels_compile(architecture, tmp_path):
    run(f"check_machine_code({architecture})", TRITON_CACHE_DIR=str(tmp_path))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_kernels_of_a_step_over_a_trie_compile(architecture, tmp_path):
    run(f"check_sid_step({architecture})", TRITON_CACHE_DIR=str(tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize("architecture", [80, 90, 100])
def test_they_compile_for_many_shapes(architecture, tmp_path):
    run(f"check_sid_steps_of_many_shapes({architecture})", TRITON_CACHE_DIR=str(tmp_path))


def test_a_launch_compiles_a_kernel(tmp_path):
    run("check_launch()", TRITON_CACHE_DIR=str(tmp_path))


@pytest.mark.long
@pytest.mark.parametrize("check", INTERPRETED)
def test_kernels_do_what_numpy_says(check):
    pytest.importorskip("torch")
    pytest.importorskip("triton")
    run_interpreted("tests.runtime.device.test_triton", check)


# ------------------------------------------------------------------------------------------------ compiled


class Case(NamedTuple):
    """A kernel with the types of its arguments, as Triton names them, and its constants."""

    kernel: str
    types: tuple[str, ...]
    constants: dict[str, Any]
    options: dict[str, int] = {}  # noqa: RUF012, nothing writes to it
    aligned: tuple[int, ...] = ()  # arguments that are multiples of 16
    stack: int = 0  # bytes that may be spilled


def cases() -> Iterator[Case]:
    """Yield kernels with arguments of each kind that they take."""
    from maskwright.runtime.device.torch.gpu import apply, text_masks, text_step

    pointers, integers = range(3), range(3, 8)
    for kind, same, aligned in product(FLOATS, (False, True), (False, True)):
        types = ("*i32", f"*{kind}", f"*{kind}", *("i32" for _ in integers))
        multiples = (*pointers, *(integers if aligned else ()))
        # 16-bit logits whose rows do not begin at multiples of 16 elements are read in single elements, and spill
        most = 64 if kind != "fp32" and not same and not aligned else 0
        yield Case("apply_masks", types, {"COLUMNS": apply.COLUMNS_AT_ONCE, "SAME": same}, {}, multiples, most)
    for kind, ends in product((0, 1, 2), (0, 1, 9, 33)):
        if kind < 2 and ends > 1:
            continue  # without calls there is one end
        stacks, token = ("*i32", 4) if kind == 2 else ("*i64", 2)
        types = ("*i64", "*i64", stacks, stacks, "*i64", "*i64", "*i32")
        constants = {"KIND": kind, "TOKEN": token, "ENDS": ends}
        yield Case("_write_masks", types, constants, text_masks.launch_options(ends), tuple(range(7)))
    for kind, token in product((0, 1, 2), (2, 4)):
        stacks, slots = ("*i32", 128) if kind == 2 else ("*i64", 0)
        types = ("*i64", "*i64", stacks, stacks, "*i64", "*i64", stacks, stacks)
        constants = {"KIND": kind, "TOKEN": token, "RANKS": token, "WIDTH": slots}
        yield Case("_follow", types, constants, text_step.OPTIONS, tuple(range(8)))


def kernels() -> dict[str, Any]:
    """Return the kernels that are launched from Python, by name, but those of `sid_step`, which have a check."""
    from maskwright.runtime.device.torch import gpu

    found = {}
    for module in pkgutil.iter_modules(gpu.__path__):
        if module.name == "sid_step":
            continue
        file = importlib.import_module(f"{gpu.__name__}.{module.name}")
        launched = re.findall(r"launch\(\s*(\w+)", inspect.getsource(file))
        found |= {name: getattr(file, name) for name in launched if name != "kernel"}
    return found


def check_machine_code(architecture: int) -> None:
    """Every kernel becomes machine code for an architecture, and spills no registers but where a case says so."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    known, seen = kernels(), set()
    for case in cases():
        seen.add(case.kernel)
        function = known[case.kernel]
        types = (*case.types, *("constexpr" for _ in case.constants))
        source = ASTSource(
            fn=function,
            signature=dict(zip(function.arg_names, types, strict=True)),
            constexprs=case.constants,
            attrs={(i,): [["tt.divisibility", 16]] for i in case.aligned},
        )
        made = triton.compile(source, target=GPUTarget("cuda", architecture, 32), options=case.options)
        usage = resources(made.asm["cubin"])
        assert usage["STACK"] <= case.stack, (architecture, case, usage)  # where spilled registers go
        assert usage["LOCAL"] == 0, (architecture, case, usage)
    assert seen == known.keys()  # another kernel needs a case


def resources(cubin: bytes) -> dict[str, int]:
    """Return the number of registers that machine code uses, and its bytes of each kind of memory."""
    import triton

    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        done = subprocess.run([tool, "--dump-resource-usage", file.name], capture_output=True, text=True, check=True)
    return {name: int(number) for name, number in re.findall(r"\b(REG|STACK|LOCAL):(\d+)", done.stdout)}


def check_launch() -> None:
    """A kernel compiles as a launch on an H100 would compile it: from the arguments themselves."""
    import torch
    from triton.backends.compiler import GPUTarget
    from triton.runtime import driver

    from maskwright.runtime.device.torch.gpu import apply

    class Driver:
        """A driver for a device that is not there."""

        def get_current_target(self) -> GPUTarget:
            return GPUTarget("cuda", 90, 32)

        def get_current_device(self) -> int:
            return 0

        def get_current_stream(self, device: int) -> int:
            return 0

    driver.set_active(Driver())
    masks = torch.zeros(2, 64, dtype=torch.int32)
    for kind, same in ((torch.float32, False), (torch.float16, True), (torch.bfloat16, False)):
        x = torch.zeros(2, 2048, dtype=kind)
        arguments = (masks, x, x, 2048, 64, 64, 2048, 2048)
        made = apply.apply_masks.warmup(*arguments, COLUMNS=apply.COLUMNS_AT_ONCE, SAME=same, grid=(2, 1))
        assert made.asm["cubin"]


def check_sid_step(architecture: int) -> None:
    """The kernels of a step over a trie become machine code for an architecture, and spill no registers."""
    import triton

    from maskwright.runtime.device.torch.gpu import sid_kernels

    made = {name for name, one in vars(sid_kernels).items() if isinstance(one, triton.JITFunction)}
    assert {name for name in made if name[0] != "_"} == {"branch", "go_on"}  # another needs a signature here
    for kind in FLOATS:
        compile_sid_step(architecture, kind, 2048, 70, 1, 70)
        compile_sid_step(architecture, kind, 2048, 70, 8, 8)
    if architecture == 90:
        compile_sid_step(90, "fp32", 2048, 70, 64, 70)


def check_sid_steps_of_many_shapes(architecture: int) -> None:
    """So they do for few and many beams, for many children and for rows that are not aligned."""
    shapes = [
        (2048, 70, 64, 70),
        (2047, 70, 2048, 70),
        (150_001, 1, 8000, 70),
        (2048, 1024, 4096, 1024),
        (33, 4, 33, 4),
    ]
    for kind, shape in product(FLOATS, shapes):
        compile_sid_step(architecture, kind, *shape)


def compile_sid_step(architecture: int, kind: str, columns: int, m: int, width: int, beams: int) -> None:
    """Compile the kernel that takes a step of m beams to others, and check its resources and its order of memory."""
    import torch
    from triton.backends.compiler import GPUTarget
    from triton.runtime import driver

    from maskwright.runtime.device.torch.gpu import sid_kernels, sid_step

    class Driver:
        """A driver for a device that is not there; its number stands for the architecture."""

        def get_current_target(self) -> GPUTarget:
            return GPUTarget("cuda", architecture, 32)

        def get_current_device(self) -> int:
            return architecture

        def get_current_stream(self, device: int) -> int:
            return 0

    driver.set_active(Driver())
    found = []

    def compile_only(kernel, grid, *arguments, **constants):
        found.append(kernel.warmup(*arguments, grid=grid, **constants))

    sid_step.launch = compile_only
    dtype = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}[kind]
    level = Level(width, False, True, True)
    dev = SimpleNamespace(
        row_start=torch.zeros(8, dtype=torch.int32), edge_token=torch.zeros(8, dtype=torch.int16),
        edge_target=torch.zeros(8, dtype=torch.int32), accepting=torch.zeros(8, dtype=torch.bool),
        level=lambda _: level, vocab_size=columns, eos=0, num_rows=5, num_edges=7, num_states=9,
    )  # fmt: skip
    node, scores = torch.zeros(m, dtype=torch.int64), torch.zeros(1, m)
    sid_step.select(dev, torch.zeros(m, columns, dtype=dtype), node, scores, beams, 1, False)
    for made in found:
        usage = resources(made.asm["cubin"])
        assert usage["STACK"] == usage["LOCAL"] == 0, (architecture, kind, columns, m, width, beams, usage)
        if made.metadata.name == sid_kernels.branch.__name__:
            check_order(made.asm["ptx"])


def check_order(ptx: str) -> None:
    """A barrier of the block stands before and after the counter's addition, which acquires and releases.

    All that is read of entries, which other programs have written, goes past L1: they alone have 64 bits there.
    """
    asked = r"\b(bar\.sync|atom\.\S+|st\.global|ld\.global\S*)"
    order = [line for line in re.findall(asked, ptx) if not line.startswith("ld.global.b")]
    (at,) = (i for i, line in enumerate(order) if line.startswith("atom"))
    assert order[at] == "atom.global.gpu.acq_rel.add.u32"
    assert order[at - 1] == order[at + 1] == "bar.sync"
    later = re.findall(r"\bld\.global\S*b64\b", ptx[ptx.index("atom.global") :])
    assert later
    assert all(line.startswith("ld.global.cg") for line in later)


# ------------------------------------------------------------------------------------------------ interpreted


def into(x: Any) -> Any:
    import torch

    return type(x)(*map(into, x)) if isinstance(x, tuple) else torch.tensor(x)


def on_device(table: Any) -> Any:
    """Return a table as it is put on a GPU, where no operation runs on the host."""
    from maskwright.runtime import torch_ops

    return dataclasses.replace(torch_ops.to_device(table, distances=True), host=None)


def check_rows(table: Any, state: Any, rng: np.random.Generator) -> None:
    """Masks with and without budgets, and where tokens lead, are those of numpy, each in one launch."""
    from maskwright.runtime import torch_ops

    dev, rows = on_device(table), len(state.node)
    for room in (None, rng.integers(-1, 12, rows), np.full(rows, 2**31 - 1)):
        there = None if room is None else into(room)
        wanted = numpy_ops.bitmask(table, state, room)
        with counted("text_masks") as launches:
            got = torch_ops.bitmask(dev, into(state), there)
        assert launches == ["_write_masks"]
        np.testing.assert_array_equal(got.numpy().view(np.uint32), wanted)
    stray = rng.random(rows) < 0.3  # numbers that are no states, which no operation returns
    strays = rng.choice([-5_000_000, -1, dev.num_states, 1 << 40], rows)
    got = torch_ops.bitmask(dev, into(state._replace(node=np.where(stray, strays, state.node))))
    wanted = numpy_ops.bitmask(table, state._replace(node=np.where(stray, dev.num_states - 1, state.node)))
    np.testing.assert_array_equal(got.numpy().view(np.uint32), wanted)
    tokens = rng.integers(-1, table.vocab_size + 1, rows)
    for i, mask in enumerate(bits_of(numpy_ops.bitmask(table, state), table.vocab_size)):
        if mask.any() and rng.random() < 0.85:
            tokens[i] = rng.choice(np.flatnonzero(mask))
    with counted("text_step") as launches:
        reached = torch_ops.advance(dev, into(state), into(tokens))
    assert launches == ["_follow"]
    for got, wanted in zip(reached, numpy_ops.advance(table, state, tokens), strict=True):
        assert got.numpy().dtype == np.asarray(wanted).dtype
        np.testing.assert_array_equal(got.numpy(), wanted)


@contextlib.contextmanager
def counted(module: str) -> Iterator[list[str]]:
    """Yield the names of the kernels that a module of the GPU's launches from here on."""
    file = importlib.import_module(f"maskwright.runtime.device.torch.gpu.{module}")
    launch, names = file.launch, []

    def counting(kernel: Any, *arguments: Any, **constants: Any) -> None:
        names.append(kernel.__name__)
        launch(kernel, *arguments, **constants)

    with mock.patch.object(file, "launch", counting):
        yield names


def check_graphs() -> None:
    """Tries and graphs, tokens of one and of two bytes among them."""
    rng = np.random.default_rng(0)
    tables = [graphs.random_table(seed) for seed in range(8)]
    wide = mw.compile_sids(rng.integers(0, 70_000, (60, 3)), 70_000)  # tokens of four bytes
    for table in (*tables, graphs.bound_pattern(), wide):
        check_rows(table, State(graphs.some_nodes(table, 6)), rng)
    assert {table.is_trie for table in tables} == {False, True}


def check_nested() -> None:
    """Nested tables, with room for few frames, several ends, and sites searched for their symbols."""
    rng, kinds = np.random.default_rng(0), set()
    for seed, entries in ((nested.ROOMY[0], 1 << 16), (nested.ROOMY[1], 0), (0, 0), (1, 1 << 16), (2, 0)):
        with mock.patch.multiple(device_table, DENSE_SITES=entries, SPARSE_SITES=0):
            table = nested.random_nested(seed)
            places = nested.some_places(nested.random_model(seed), seed, most=8)
            calls, dev = on_device(table).calls, on_device(table)
            kinds |= {"searched" if calls.site_width else "dense", "ends" if dev.distance.ndim > 1 else "one end"}
            kinds |= {"rooms"} if calls.state_room.shape[0] or calls.distance_room.shape[0] else set()
            check_rows(table, nested.state_of(table, places[:12]), rng)
    assert kinds == {"searched", "dense", "ends", "one end", "rooms"}


def check_arena() -> None:
    """Tables in an arena that tells ends apart: its arrays of distances lie in memory in another order."""
    import torch

    from maskwright.runtime import torch_ops

    rng = np.random.default_rng(0)
    made = [nested_schemas.compiled(name) for name in ("good", "lists", "flat")]
    arena = mw.Arena(nested_schemas.vocabulary(), SMALL, distances=True)
    handles = [arena.add(table) for table in made for _ in range(2)]
    dev = dataclasses.replace(
        torch_ops.with_start_states(torch_ops.to_device(arena, distances=True), handles), host=None
    )
    assert dev.distance.ndim == 2
    assert not dev.distance.is_contiguous()
    states = torch_ops.start(dev, len(handles))
    alone = [numpy_ops.start(table, 2) for table in made]
    for _ in range(4):
        for room in (None, 3, 9):
            there = None if room is None else torch.full((len(handles),), room)
            left = None if room is None else np.full(2, room)
            wanted = [numpy_ops.bitmask(t, each, left) for t, each in zip(made, alone, strict=True)]
            got = torch_ops.bitmask(dev, states, there).numpy().view(np.uint32)
            np.testing.assert_array_equal(got, np.concatenate(wanted))
        wanted = np.concatenate([numpy_ops.bitmask(t, each) for t, each in zip(made, alone, strict=True)])
        allowed = bits_of(wanted, arena.table.vocab_size)
        tokens = np.array([rng.choice(np.flatnonzero(mask)) if mask.any() else 0 for mask in allowed])
        states = torch_ops.advance(dev, states, into(tokens))
        parts = np.split(tokens, len(made))
        alone = [numpy_ops.advance(t, *both) for t, *both in zip(made, alone, parts, strict=True)]


def check_select() -> None:
    """The best continuations of graphs and nested tables are those of numpy, from masks and steps that are launched."""
    from maskwright.runtime import torch_ops

    rng = np.random.default_rng(0)
    for seed, calls in ((1, False), (2, True), (3, False), (5, True)):
        table: Any = nested.random_nested(seed) if calls else graphs.random_table(seed)
        state: Any = State(graphs.some_nodes(table, 3)[:6])
        if calls:
            state = nested.state_of(table, nested.some_places(nested.random_model(seed), seed)[:6])
        rows = len(state.node) // 2 * 2
        state = type(state)(*(x[:rows] for x in state))
        logits = rng.normal(size=(rows, table.vocab_size + 3)).astype(np.float32)
        logits[0, 1] = np.nan
        scores = rng.normal(size=(2, rows // 2)).astype(np.float32)
        for renormalize in (False, True):
            wanted = numpy_ops.select(table, logits, state, scores, 5, 0, renormalize)
            with counted("text_masks") as launches:
                got = torch_ops.select(on_device(table), *map(into, (logits, state, scores)), 5, 0, renormalize)
            assert launches == ["_write_masks"]
            alive = wanted.scores > -np.inf
            assert alive.any()
            np.testing.assert_allclose(got.scores.numpy(), wanted.scores, rtol=1e-5, atol=1e-5)
            np.testing.assert_array_equal(got.tokens.numpy(), wanted.tokens)
            np.testing.assert_array_equal(got.parents.numpy()[alive], wanted.parents[alive])
            for mine, theirs in zip(got.state, wanted.state, strict=True):
                np.testing.assert_array_equal(mine.numpy(), theirs)


def check_layouts() -> None:
    """States and budgets of any layout and type are read; a batch of nothing launches nothing."""
    from maskwright.runtime import torch_ops

    table = nested.random_nested(1)
    dev, state = on_device(table), nested.state_of(table, nested.some_places(nested.random_model(1), 1, most=4)[:6])
    rows = len(state.node)
    apart = type(state)(*(into(np.repeat(x, 2, axis=0))[::2] for x in state))
    room = np.arange(rows, dtype=np.int16)
    got = torch_ops.bitmask(dev, apart, into(np.repeat(room, 2))[::2]).numpy().view(np.uint32)
    np.testing.assert_array_equal(got, numpy_ops.bitmask(table, state, room))
    tokens = np.arange(rows, dtype=np.uint8)
    reached = torch_ops.advance(dev, apart, into(np.repeat(tokens, 2))[::2])
    for mine, wanted in zip(reached, numpy_ops.advance(table, state, tokens), strict=True):
        np.testing.assert_array_equal(mine.numpy(), wanted)
    nothing = type(state)(*(into(x[:0]) for x in state))
    assert torch_ops.bitmask(dev, nothing).shape == (0, -(-table.vocab_size // 32))
    assert torch_ops.advance(dev, nothing, into(tokens[:0])).node.shape == (0,)
