"""Checks of Triton kernels in its interpreter, each in a process of its own: Triton decides that at import."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import FunctionType

import maskwright as mw


def run_interpreted(module: str, check: str) -> None:
    """Call a function of a test module, without arguments, in a process in which Triton interprets its kernels."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TRITON_")}
    code = f"from {__name__} import replace_once; replace_once(); import {module} as t; t.{check}()"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], env={**environment, "TRITON_INTERPRET": "1"},
        cwd=Path(mw.__file__).parent, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def replace_once() -> None:
    """Have the interpreter replace the functions of its language once a launch, not once a call: half of its time.

    Where they are replaced already, another replacement changes nothing. A Triton without these names runs as it is.
    """
    from triton import language
    from triton.runtime import interpreter

    replace = getattr(interpreter, "_patch_lang", None)
    unchanged = getattr(interpreter, "_LangPatchScope", None)
    if replace is None or unchanged is None:
        return

    def once(function: FunctionType) -> object:
        modules = [each for each in (language, language.core) if each in function.__globals__.values()]
        waiting = any(language.core.is_builtin(each.load) for each in modules)
        return replace(function) if waiting or not modules else unchanged()

    interpreter._patch_lang = once
