"""How the server answers a request that it does not carry out: a status, and an error in the shape of OpenAI's API."""

from __future__ import annotations

from typing import Any, assert_never

from ..errors import (
    AddDocument,
    Advice,
    AllowKeyword,
    BudgetError,
    GrammarError,
    KeepOrder,
    MaskwrightError,
    RaiseBudget,
    RaiseCapacity,
    ReadOnDemand,
    RegexError,
    Remedy,
    SchemaError,
    Wording,
    remedy_to_json,
)

_KINDS = {
    400: "invalid_request_error", 401: "authentication_error", 404: "invalid_request_error",
    413: "invalid_request_error", 429: "rate_limit_error", 503: "overloaded",
}  # fmt: skip
_CODES: tuple[tuple[type[MaskwrightError], str], ...] = (
    (SchemaError, "invalid_schema"),
    (RegexError, "invalid_regex"),
    (GrammarError, "invalid_grammar"),
    (BudgetError, "constraint_too_expensive"),
)


class Refused(Exception):  # noqa: N818  # as it reads where it is raised
    """A request that the server does not carry out; `body` is the answer to the client."""

    def __init__(
        self, message: str, *, status: int = 400, param: str | None = None, code: str | None = None, **more: Any
    ) -> None:
        super().__init__(message)
        self.status, self.param, self.code, self.more = status, param, code, more

    @property
    def headers(self) -> dict[str, str]:
        """Return when the client may try again, or how it says who it is, if that helps."""
        return {429: {"Retry-After": "1"}, 503: {"Retry-After": "1"}, 401: {"WWW-Authenticate": "Bearer"}}.get(
            self.status, {}
        )

    @property
    def body(self) -> dict[str, Any]:
        """The error as it is sent."""
        kind = _KINDS.get(self.status, "server_error" if self.status >= 500 else "invalid_request_error")
        error = {"message": str(self), "type": kind, "param": self.param, "code": self.code, **self.more}
        return {"error": error}


class ServerWording(Wording):
    """How the server words errors: a client sends fields, and only the server's operator sets limits."""

    def remedy(self, remedy: Remedy) -> str:
        match remedy:
            case Advice():
                return self.advice(remedy)
            case RaiseBudget(limits=limits, otherwise=otherwise):
                options = " or ".join(f"--budget-{limit}" for limit in limits)
                return f"The server's operator can raise it with {options}; or {otherwise}"
            case RaiseCapacity(name=name, least=least):
                return f"Give the arena more room, Capacity({name}={'N' if least is None else least})"
            case AllowKeyword(keyword=keyword, approximation=approximation):
                return f'Send "allow": ["{keyword}"] to accept {approximation}, or take it out'
            case AddDocument():
                return 'Put it into the schema itself, under "$defs"'
            case KeepOrder():
                return "Members in any order take far more than members in the schema's order"
            case ReadOnDemand():
                return "This server needs a table"
            case _:
                assert_never(remedy)


WORDING = ServerWording()


def said(error: Exception) -> str:
    """Return what any error says, in the server's words if it is one of maskwright's."""
    return error.worded(WORDING) if isinstance(error, MaskwrightError) else str(error)


def of_constraint(
    error: Exception, param: str | None, code: str = "invalid_constraint", function: str | None = None
) -> Refused:
    """Return the answer to a constraint that cannot be compiled.

    code: for an error that has no code of its own. function: the name of the tool whose parameters are at fault.
    """
    named = "" if function is None else f"function {function!r}: "
    code = next((own for kind, own in _CODES if isinstance(error, kind)), code)
    more = fields_of(error) if isinstance(error, MaskwrightError) else {}
    return Refused(named + said(error), param=param, code=code, **more)


def fields_of(error: MaskwrightError) -> dict[str, Any]:
    """Return the fields of an error that say something, beside its message.

    summary and excerpt: parts of the message, for those who show the place in another way.
    """
    named = ("pointer", "position", "line", "column", "limit", "allowed", "reached")
    found = {name: value for name in named if (value := getattr(error, name)) is not None}
    if isinstance(error, SchemaError):
        found["keyword"] = error.keyword  # null too, as of each error of a schema
    if error.remedies:
        found["remedies"] = [remedy_to_json(remedy) for remedy in error.remedies]
    return {**found, "summary": error.summary(WORDING), "excerpt": error.excerpt}
