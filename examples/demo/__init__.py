"""`make demo`: generative retrieval trained on the spot, searched with and without a constraint."""

from __future__ import annotations

from maskwright.errors import DataError, MissingDependencyError

try:
    import matplotlib  # noqa: F401  # only to see whether it is there
    import sklearn  # noqa: F401
    import torch  # noqa: F401
except ImportError as error:
    raise MissingDependencyError(
        f"the demo needs {error.name}, which is not installed: `make demo` installs what it takes"
    ) from error

from .experiment import DemoConfig, run
from .report import Report

__all__ = ["DataError", "DemoConfig", "Report", "run"]
