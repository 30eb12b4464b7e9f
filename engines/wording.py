"""How maskwright words errors inside an engine: a client sends a constraint, only the operator sets options."""

from __future__ import annotations

from ..errors import (
    AddDocument,
    AllowKeyword,
    KeepOrder,
    MaskwrightError,
    RaiseBudget,
    RaiseCapacity,
    ReadOnDemand,
    Remedy,
    Wording,
)
from .options import VARIABLE


class EngineWording(Wording):
    """The words of all engines."""

    def remedy(self, remedy: Remedy) -> str:
        match remedy:
            case RaiseBudget(limits=limits, otherwise=otherwise):
                options = " or ".join(f'"budget": {{"{limit}": ..}}' for limit in limits)
                return f"The server's operator can raise it with {options} in {VARIABLE}; or {otherwise}"
            case AllowKeyword(keyword=keyword, approximation=approximation):
                return (
                    f'The server\'s operator can accept {approximation} with "allow": ["{keyword}"] in {VARIABLE}; '
                    "or take it out"
                )
            case AddDocument():
                return 'Put it into the schema itself, under "$defs"'
            case KeepOrder() | RaiseCapacity() | ReadOnDemand():
                return super().remedy(remedy)
            case _:
                return self.advice(remedy)


WORDING = EngineWording()


def said(error: Exception) -> str:
    """Return what an error says to a client, in these words if it is one of maskwright's."""
    return error.worded(WORDING) if isinstance(error, MaskwrightError) else str(error)
