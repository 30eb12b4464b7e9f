"""What a request lets its answer be: nothing of it, or one constraint, with where in the request it stands."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Literal

from ..automata.budget import Budget
from ..compile.cache import Cache
from ..errors import ConstraintError, SchemaError
from ..table import TransitionTable
from .refusals import Refused
from .requests import ChatRequest, CompletionRequest, NamedTool, ObjectFormat, SchemaFormat, Tool

Kind = Literal["schema", "regex", "choices", "call"]
SEPARATORS = (", ", ": ")  # of calls of tools, so that it is known where their arguments begin
_DOCUMENT = "urn:maskwright:tool:"


@dataclass(frozen=True)
class Constraint:
    """What may be written, not compiled yet."""

    kind: Kind
    source: Any  # a schema, a pattern, a list of texts, or the tools of which one is called
    param: str
    whitespace: Literal["flexible", "compact"] | None = None  # of JSON, if not the server's
    allow: tuple[str, ...] = ()  # keywords of a schema that need not be enforced

    def size(self) -> int:
        """Return how many bytes it has as a client writes it."""
        if isinstance(self.source, str):
            return len(self.source.encode())
        return len(json.dumps(self.source))

    def compile(self, cache: Cache, budget: Budget, whitespace: Any) -> TransitionTable:
        """Return its table, whole, as an arena takes it; the errors of `Cache`."""
        if self.kind == "regex":
            return cache.compile_regex(self.source, budget=budget)
        if self.kind == "choices":
            return cache.compile_choices(self.source, budget=budget)
        if self.kind == "schema":
            allow = {"allow": self.allow} if self.allow else {}
            return cache.compile_json_schema(
                self.source, lazy=False, budget=budget, whitespace=self.whitespace or whitespace, **allow
            )
        # each tool's schema is a document of its own, so that references within it stay within it
        documents = {f"{_DOCUMENT}{name}": parameters for name, parameters in self.source}
        calls = [
            {
                "type": "object",
                "properties": {"name": {"const": name}, "arguments": {"$ref": f"{_DOCUMENT}{name}"}},
                "required": ["name", "arguments"],
                "additionalProperties": False,
            }
            for name, _ in self.source
        ]
        return cache.compile_json_schema(
            {"anyOf": calls}, lazy=False, budget=budget, whitespace=SEPARATORS, documents=documents
        )

    def locate(self, error: SchemaError, cache: Cache, budget: Budget) -> tuple[ConstraintError, str]:
        """Return an error of compiling, and where in the request its schema stands: of several tools, which one's."""
        if self.kind == "call":
            for at, (_, parameters) in enumerate(self.source):
                try:
                    cache.compile_json_schema(parameters, budget=budget, whitespace=SEPARATORS)
                except ConstraintError as own:
                    return own, f"tools[{at}].function.parameters"
        return error, self.param


def constraint_of(asked: ChatRequest | CompletionRequest) -> Constraint | None:
    """Return what a request's answer is bound to, None for free text; Refused where it asks for too much."""
    found: list[Constraint] = []
    match asked.response_format:
        case ObjectFormat():
            found.append(Constraint("schema", {"type": "object"}, "response_format"))
        case SchemaFormat(json_schema=given):
            found.append(Constraint("schema", given.schema_, "response_format.json_schema.schema"))
    told = asked.structured_outputs
    if told is not None:
        own: list[tuple[Kind, str, Any]] = [
            ("schema", "json", told.json_), ("regex", "regex", told.regex), ("choices", "choice", told.choice),
            ("schema", "json_object", {"type": "object"} if told.json_object else None),
        ]  # fmt: skip
        given_here = [
            Constraint(kind, each, f"structured_outputs.{name}") for kind, name, each in own if each is not None
        ]
        if not given_here:
            raise Refused("it asks for nothing: give json, regex, choice or json_object", param="structured_outputs")
        found += given_here
    guided: list[tuple[Kind, str, Any]] = [
        ("schema", "guided_json", asked.guided_json), ("regex", "guided_regex", asked.guided_regex),
        ("choices", "guided_choice", asked.guided_choice),
    ]  # fmt: skip
    found += [Constraint(kind, each, name) for kind, name, each in guided if each is not None]
    if isinstance(asked, ChatRequest):
        call = _call_of(asked)
        found += [] if call is None else [call]
    if len(found) > 1:
        names = " and ".join(each.param for each in found)
        raise Refused(f"{names} bind the answer at the same time: give one of them", param=found[1].param)
    if found and asked.stops:
        raise Refused(
            f"stop would cut what {found[0].param} says is to be complete: leave one of them out", param="stop"
        )
    return found[0] if found else None


def _call_of(asked: ChatRequest) -> Constraint | None:
    """Return the constraint of a call of a tool, None where none is asked for."""
    tools, choice = asked.tools or [], asked.tool_choice
    names = [tool.function.name for tool in tools]
    for at, name in enumerate(names):
        if name in names[:at]:
            raise Refused(f"there are two functions called {name!r}", param=f"tools[{at}].function.name")
    if choice == "none" or (not tools and choice in (None, "auto")):
        return None
    if not tools:
        raise Refused("there are no tools to choose from", param="tool_choice")
    if choice in (None, "auto"):
        raise Refused(
            'tool_choice "auto", which is also what tools without tool_choice ask for, is not there yet: nothing could '
            'vouch for calls that the model begins by itself. Say "required", "none", or name a function',
            param="tool_choice",
        )
    if isinstance(choice, NamedTool):
        if choice.function.name not in names:
            raise Refused(
                f"there is no function {choice.function.name!r} among tools: {', '.join(names)}",
                param="tool_choice.function.name",
            )
        at = names.index(choice.function.name)
        return Constraint("schema", _parameters(tools[at], at), f"tools[{at}].function.parameters")
    return Constraint("call", [(tool.function.name, _parameters(tool, at)) for at, tool in enumerate(tools)], "tools")


def _parameters(tool: Tool, at: int) -> dict[str, Any]:
    """Return the schema of a function's arguments: of an object in any case."""
    given = tool.function.parameters
    if given is None:
        return {"type": "object", "properties": {}, "additionalProperties": False}
    if given.get("type", "object") != "object":
        raise Refused(
            f'arguments are an object, not {json.dumps(given["type"])[:40]}: parameters must have the type "object"',
            param=f"tools[{at}].function.parameters",
        )
    return {"type": "object", **given}
