"""What a request is answered with that is not done: a status, and an error in the shape that OpenAI's clients know."""

from __future__ import annotations

import re
from typing import Any

from ..errors import ArenaError, BudgetError, GrammarError, RegexError, SchemaError

_KINDS = {400: "invalid_request_error", 404: "invalid_request_error", 413: "invalid_request_error", 503: "overloaded"}


class Refused(Exception):  # noqa: N818  # as it reads where it is raised
    """A request that is not done; `body` is what the client is told."""

    def __init__(
        self, message: str, *, status: int = 400, param: str | None = None, code: str | None = None, **more: Any
    ) -> None:
        super().__init__(message)
        self.status, self.param, self.code, self.more = status, param, code, more

    @property
    def headers(self) -> dict[str, str]:
        """Return when to come back, where that helps."""
        return {"Retry-After": "1"} if self.status == 503 else {}

    @property
    def body(self) -> dict[str, Any]:
        """The error as it is sent."""
        kind = _KINDS.get(self.status, "server_error" if self.status >= 500 else "invalid_request_error")
        error = {"message": str(self), "type": kind, "param": self.param, "code": self.code, **self.more}
        return {"error": error}


def of_constraint(error: Exception, param: str, code: str = "invalid_constraint") -> Refused:
    """Return what a client is told of a constraint that cannot be compiled, or has no room.

    code: for an error that has no code of its own.
    """
    said = _for_clients(str(error))
    place = _PLACE.match(said)  # within a structural tag
    more: dict[str, Any] = {} if place is None else {"pointer": place[1].removesuffix("/")}
    if isinstance(error, SchemaError):
        return Refused(said, param=param, code="invalid_schema", pointer=error.pointer, keyword=error.keyword)
    if isinstance(error, RegexError):
        return Refused(said, param=param, code="invalid_regex", position=error.position, **more)
    if isinstance(error, GrammarError):
        return Refused(
            said, param=param, code="invalid_grammar", line=error.line, column=error.column, position=error.position,
            **more,
        )  # fmt: skip
    if isinstance(error, BudgetError):
        return Refused(said, param=param, code="constraint_too_expensive")
    if isinstance(error, ArenaError):
        return Refused(said, param=param, code="constraint_too_large")
    if isinstance(error, RecursionError):
        return Refused("it is nested too deep to be read: make it flatter", param=param, code="invalid_schema")
    return Refused(said, param=param, code=code, **more)


_PLACE = re.compile(r"(?:line \d+, column \d+: )?(?:in )?(/[\w/]*): ")


def _for_clients(message: str) -> str:
    """Return a message with the server's options in place of arguments of Python's, which a client cannot give."""
    message = re.sub(
        r"raise (?:it with budget=)?Budget\((\w+)=\.\.\.\)",
        r"this server has a limit, --budget-\1: raise it there",
        message,
    )
    message = re.sub(r"make it with (?:a larger )?Capacity\((\w+)=[^)]*\)", r"raise the server's --arena \1=", message)
    message = re.sub(r"[;:] a Matcher[^.;]*", "; this server needs one", message)
    return re.sub(r"Drop handles, or raise", "Raise", message)
