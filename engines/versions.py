"""The releases of engines that were tested."""

from __future__ import annotations

from ..errors import MissingDependencyError

TESTED = {"vLLM": ("0.32.0",), "SGLang": ("0.5.23",)}
"""By engine: the releases with which the tests of `tests/engines` passed."""


def check_version(engine: str, found: str, instead: str) -> None:
    """Raise MissingDependencyError unless a release of an engine was tested; a local part, as in "+cpu", is ignored.

    instead: how to do without maskwright.
    """
    tested = TESTED[engine]
    if found.partition("+")[0] not in tested:
        raise MissingDependencyError(
            f"maskwright was tested with {engine} {' and '.join(tested)}, and this is {found}, whose insides may "
            f"differ: install one of these, or {instead}"
        )
