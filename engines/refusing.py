"""Members of another package's classes that maskwright's do not have, refused by what to do instead."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar


class Refusing:
    """Says of members that a package has and a class of its name here has not what to do instead."""

    _package: ClassVar[str]
    _not_offered: ClassVar[Mapping[str, str]]  # by name of a member

    def __getattr__(self, name: str) -> Any:
        kind = type(self).__name__
        if name in self._not_offered:
            raise AttributeError(f"{kind}.{name} of {self._package} is not offered: {self._not_offered[name]}")
        raise AttributeError(f"{kind!r} object has no attribute {name!r}")
