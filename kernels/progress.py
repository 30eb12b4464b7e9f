"""What is said while numba compiles kernels that somebody waits for."""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.status import Status

_LOG = logging.getLogger("maskwright")
_SAID = "maskwright compiles kernels for this machine, once; `maskwright warm` does it ahead"


class CompilingProgress:
    """On a terminal a status that counts kernels, elsewhere one record of the log."""

    _status: Status | None = None
    _begun = _open = 0

    @classmethod
    def begin(cls) -> None:
        """Say that one more kernel is being compiled."""
        cls._begun += 1
        cls._open += 1
        if not sys.stderr.isatty():
            if cls._begun == 1:
                _LOG.info(_SAID)
            return
        if cls._status is None:
            from rich.console import Console

            cls._status = Console(stderr=True).status(_SAID)
        cls._status.update(f"{_SAID} ({cls._begun} so far)")
        cls._status.start()

    @classmethod
    def end(cls) -> None:
        """Clear what was said once nothing is being compiled."""
        cls._open -= 1
        if not cls._open and cls._status is not None:
            cls._status.stop()
