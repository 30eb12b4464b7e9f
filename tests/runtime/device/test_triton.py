"""Triton kernels compile for GPUs: Triton brings its own assembler, so no device is needed.

`test_graph_operations.py` runs them in Triton's interpreter, which accepts kernels that its compiler refuses.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import pytest

import maskwright as mw
from maskwright.table.transition_table import Level

ARCHITECTURES = (80, 90, 100)  # A100, H100, B200
FLOATS = ("fp32", "fp16", "bf16")


@pytest.mark.parametrize("check", ["check_machine_code", "check_launch", "check_sid_step"])
def test_kernels_compile(check, tmp_path):
    """Each check has a process of its own: Triton decides at import whether kernels are compiled or interpreted."""
    run(check, tmp_path)


@pytest.mark.slow
def test_kernels_compile_for_many_shapes(tmp_path):
    run("check_sid_steps_of_many_shapes", tmp_path)


def run(check: str, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("triton")
    from maskwright.runtime.device.torch import memory

    if "sid_step" in check and not memory.has_groups():
        pytest.skip("needs Triton 3.3")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TRITON_")}
    environment["TRITON_CACHE_DIR"] = str(tmp_path)
    code = f"import tests.runtime.device.test_triton as t; t.{check}()"
    here = Path(mw.__file__).parent
    done = subprocess.run([sys.executable, "-c", code], env=environment, cwd=here, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def check_machine_code() -> None:
    """Every kernel becomes machine code for each architecture, type and layout, and spills no registers.

    One case is known to spill: 16-bit logits whose rows do not begin at multiples of 16 elements, read in single
    elements.
    """
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from maskwright.runtime.device.torch import triton_ops

    kernels = {name: one for name, one in vars(triton_ops).items() if isinstance(one, triton.JITFunction)}
    assert kernels.keys() == {"_apply_masks"}  # another needs a signature here
    pointers, integers = range(3), range(3, 8)
    for architecture, kind, same, aligned in product(ARCHITECTURES, FLOATS, (False, True), (False, True)):
        types = ["*i32", f"*{kind}", f"*{kind}", *("i32" for _ in integers), "constexpr", "constexpr"]
        source = ASTSource(
            fn=kernels["_apply_masks"],
            signature=dict(zip(kernels["_apply_masks"].arg_names, types, strict=True)),
            constexprs={"COLUMNS": triton_ops._COLUMNS, "SAME": same},
            attrs={(i,): [["tt.divisibility", 16]] for i in (*pointers, *(integers if aligned else ()))},
        )
        made = triton.compile(source, target=GPUTarget("cuda", architecture, 32))
        usage = resources(made.asm["cubin"])
        most = 64 if kind != "fp32" and not same and not aligned else 0
        assert usage["STACK"] <= most, (architecture, kind, same, aligned, usage)  # where spilled registers go
        assert usage["LOCAL"] == 0, (architecture, kind, same, aligned, usage)


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

    from maskwright.runtime.device.torch import triton_ops

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
    for kind, same in product((torch.float32, torch.float16, torch.bfloat16), (False, True)):
        x = torch.zeros(2, 2048, dtype=kind)
        arguments = (masks, x, x, 2048, 64, 64, 2048, 2048)
        made = triton_ops._apply_masks.warmup(*arguments, COLUMNS=triton_ops._COLUMNS, SAME=same, grid=(2, 1))
        assert made.asm["cubin"]


def check_sid_step() -> None:
    """The kernels of a step over a trie become machine code for each architecture and type, and spill no registers."""
    import triton

    from maskwright.runtime.device.torch.gpu import sid_kernels

    made = {name for name, one in vars(sid_kernels).items() if isinstance(one, triton.JITFunction)}
    assert {name for name in made if name[0] != "_"} == {"branch", "go_on"}  # another needs a signature here
    for architecture in ARCHITECTURES:
        for kind in FLOATS:
            compile_sid_step(architecture, kind, 2048, 70, 1, 70)
            compile_sid_step(architecture, kind, 2048, 70, 8, 8)
    compile_sid_step(90, "fp32", 2048, 70, 64, 70)


def check_sid_steps_of_many_shapes() -> None:
    """So they do for few and many beams, for many children and for rows that are not aligned."""
    shapes = [
        (2048, 70, 64, 70),
        (2047, 70, 2048, 70),
        (150_001, 1, 8000, 70),
        (2048, 1024, 4096, 1024),
        (33, 4, 33, 4),
    ]
    for architecture, kind, shape in product(ARCHITECTURES, FLOATS, shapes):
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

    All that is read of other programs' entries goes past L1.
    """
    asked = r"\b(bar\.sync|atom\.\S+|st\.global|ld\.global\S*)"
    order = [line for line in re.findall(asked, ptx) if not line.startswith("ld.global.b")]
    (at,) = (i for i, line in enumerate(order) if line.startswith("atom"))
    assert order[at] == "atom.global.gpu.acq_rel.add.u32"
    assert order[at - 1] == order[at + 1] == "bar.sync"
    later = [line for line in re.findall(asked, ptx[ptx.index("atom.global") :]) if line.startswith("ld.global.")]
    assert any(line.startswith("ld.global.cg") for line in later)
