"""Adds the library of compiled kernels to a wheel: see `kernels/ahead`. All else of the package is in pyproject.toml.

Where no library can be made, on other systems than Linux and on free-threaded Python, the wheel has none, and numba
compiles kernels at run time. MASKWRIGHT_JIT=1 asks for such a wheel.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).parent
LIBRARY = (
    sys.platform == "linux"
    and platform.machine() in ("x86_64", "aarch64")
    and not sysconfig.get_config_var("Py_GIL_DISABLED")
    and os.environ.get("MASKWRIGHT_JIT") != "1"
)


class BuildKernels(build_ext):
    """Compiles kernels with numba, in processes of their own that import the package from here."""

    def run(self) -> None:
        """Make the library, but not for an editable install, whose kernels change."""
        if not (self.editable_mode or self.inplace):
            super().run()

    def build_extension(self, extension: Extension) -> None:
        """Have numba compile the kernels, in processes of their own."""
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "maskwright").symlink_to(ROOT)
            target = Path(self.get_ext_fullpath(extension.name)).absolute()
            environment = os.environ | {"PYTHONPATH": os.pathsep.join([folder, *filter(None, sys.path)])}
            command = [sys.executable, "-m", "maskwright.kernels.ahead.build", str(target)]
            subprocess.run(command, check=True, cwd=folder, env=environment)

    def get_outputs(self) -> list[str]:
        """Return the files of the wheel that are built."""
        return [] if self.editable_mode else super().get_outputs()


settings: dict[str, Any] = {}
if LIBRARY:
    settings = {
        "ext_modules": [Extension("maskwright.kernels._native", [], py_limited_api=True)],
        "cmdclass": {"build_ext": BuildKernels},
        "options": {"bdist_wheel": {"py_limited_api": "cp311"}},
    }
setup(**settings)
