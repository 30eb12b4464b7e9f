"""Programs that run in a process of their own, on eight devices of JAX."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
EIGHT_DEVICES = {
    "JAX_PLATFORMS": "cpu",
    "XLA_FLAGS": os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8",
}


def run(code: str, *arguments: str, **environment: str) -> subprocess.Popen[str]:
    """Start a program with arguments, in this environment and some more variables."""
    kept = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)]), **environment}
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.Popen(command, env=kept, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def errors_of(process: subprocess.Popen[str]) -> str:
    """Return what a program that failed wrote of it, once it ended; "" if it did not fail."""
    with process:
        errors = process.communicate(timeout=300)[1]
    return errors if process.returncode else ""
