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

import pytest

import maskwright as mw

ARCHITECTURES = (80, 90, 100)  # A100, H100, B200
FLOATS = ("fp32", "fp16", "bf16")


@pytest.mark.parametrize("check", ["check_machine_code", "check_launch"])
def test_kernels_compile(check, tmp_path):
    """Each check has a process of its own: Triton decides at import whether kernels are compiled or interpreted."""
    pytest.importorskip("torch")
    pytest.importorskip("triton")
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
