"""The folder in which the package keeps what is computed once for all processes.

Kernels take no names from this file.
"""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path | None:
    """Return the folder, which need not exist; None if no variable names one and the user has no home.

    The environment variable MASKWRIGHT_CACHE names it. Otherwise it is `maskwright` in the user's cache folder.
    """
    if named := os.environ.get("MASKWRIGHT_CACHE"):
        return Path(named)
    if base := os.environ.get("XDG_CACHE_HOME"):
        return Path(base) / "maskwright"
    try:
        return Path.home() / ".cache" / "maskwright"
    except RuntimeError:  # there is no home
        return None
