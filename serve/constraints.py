"""The constraint of a request, if it has one, and the field of the request that holds it."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from ..automata.budget import Budget
from ..compile.cache.cache import Cache
from ..compile.constraint_source import Source
from ..compile.grammar.notations import Syntax, syntax_of
from ..compile.json_schema.layout import Whitespace
from ..compile.json_schema.source import text_of
from ..compile.regex.lower import engine_flags
from ..errors import ConstraintError, Unenforced
from .families import FAMILIES, tag_of
from .refusals import Refused
from .requests import (
    AllowedChoice,
    ChatRequest,
    CompletionRequest,
    GrammarFormat,
    NamedTool,
    ObjectFormat,
    SchemaFormat,
    StructuredOutputs,
    TagFormat,
    Tool,
)

Kind = Literal["schema", "regex", "choices", "grammar", "tags", "calls"]
OPEN, CLOSE = "<tool_call>", "</tool_call>"
"""The marks around a call. Hermes and Qwen use them; the convention of another model is unknown.

A mark that is a control token of the vocabulary is that token.
"""

_ANSWER = "urn:maskwright:answer"


class Function(NamedTuple):
    """A function that may be called."""

    name: str
    parameters: dict[str, Any]
    at: int  # its place among the request's tools
    strict: bool  # whether the request fails if its parameters cannot be enforced

    @property
    def param(self) -> str:
        """The field that holds its parameters."""
        return f"tools[{self.at}].function.parameters"


@dataclass(frozen=True)
class Constraint:
    """A constraint that is not compiled yet."""

    kind: Kind
    source: Any  # a schema, a pattern, a list of texts, a grammar, a structural tag, or a list of `Function`
    param: str  # the field of the request
    whitespace: Whitespace | None = None  # of JSON, if not the server's
    allow: tuple[str, ...] = ()  # keywords of its schemas that may stay unenforced
    any_order: bool = False  # whether members of objects may come in any order
    syntax: Syntax | None = None  # of a grammar; None: its text decides
    start: str | None = None  # the first rule of a grammar, if not the usual one
    tool: str | None = None  # the function whose arguments these are
    only: bool = False  # calls alone, at least one, and no free text
    parallel: bool = True  # there may be several calls; otherwise the answer ends behind the first
    family: str = "hermes"  # of the model, whose calls these are: see `families.NAMES`
    answer: str | None = None  # the schema of an answer that has no calls, as text; None: free text around calls

    def size(self) -> int:
        """Return its size in bytes, as a client writes it."""
        source = self.source if isinstance(self.source, str) else text_of(self.source)
        return len(source.encode()) + len((self.answer or "").encode())

    @property
    def alone(self) -> Constraint | None:
        """The constraint of an answer that has no calls."""
        return None if self.answer is None else Constraint("schema", json.loads(self.answer), _SCHEMA_PARAM)

    def to_compile(self, whitespace: str | tuple[str, str]) -> Source:
        """Return what is compiled for it. whitespace: the server's, of JSON. Raises the errors of `Source`."""
        if self.kind == "regex":
            return Source.regex(self.source, flags=engine_flags(self.source))
        if self.kind == "choices":
            return Source.choices(self.source)
        if self.kind == "grammar":
            return Source.grammar(self.source, start=self.start, syntax=self.syntax or syntax_of(self.source))
        options: dict[str, Any] = {"whitespace": self.whitespace or whitespace}
        if self.allow:
            options["allow"] = self.allow
        if self.any_order:
            options["any_order"] = True
        if self.kind == "schema":
            return Source.json_schema(self.source, **options)
        if self.kind == "tags":
            return Source.structural_tag(self.source, **options)
        only = self.only or self.answer is not None
        options["whitespace"] = "spaced"
        documents = {} if self.answer is None else {_ANSWER: json.loads(self.answer)}
        functions = [(each.name, each.parameters) for each in self.source]
        if self.family in FAMILIES:
            tag = tag_of(FAMILIES[self.family], functions, only, self.parallel)
        else:
            tag = _with_calls(functions, only, self.parallel)
        more = {"documents": documents} if documents else {}
        return Source.structural_tag(self._or_answer(tag), **options, **more)

    def _or_answer(self, tag: dict[str, Any]) -> dict[str, Any]:
        """Return a structural tag of calls, or of an answer without any if there may be one."""
        if self.answer is None:
            return tag
        alone = {"type": "json_schema", "json_schema": {"$ref": _ANSWER}}
        return {**tag, "format": {"type": "or", "elements": [tag["format"], alone]}}

    def named(self, unenforced: Sequence[Unenforced]) -> list[Unenforced]:
        """Return what is not enforced, each by the field of the request that it stands in."""
        functions = self.source if self.kind == "calls" else ()
        params = {"": self.param, _ANSWER: _SCHEMA_PARAM}
        found = []
        for each in unenforced:
            document, _, rest = each.pointer.partition("#") if "#" in each.pointer else ("", "#", each.pointer)
            if functions and document == "":
                found.append(_placed_in(each, functions))
            else:
                found.append(each._replace(pointer=f"{params[document]}#{rest}") if document in params else each)
        return found

    def faults(self, cache: Cache, budget: Budget) -> list[tuple[Function, ConstraintError]]:
        """Return the functions whose parameters cannot be compiled, and why; of a constraint of another kind, none."""
        found: list[tuple[Function, ConstraintError]] = []
        for each in self.source if self.kind == "calls" else ():
            try:
                cache.compile(replace(self, source=[each], answer=None).to_compile("spaced"), budget)
            except ConstraintError as own:
                found.append((each, _within_schema(own)))
                if own.limit == "seconds":  # none are left for the others
                    break
        return found


_SCHEMA_PARAM = "response_format.json_schema.schema"
_IN_TAG = re.compile(r".*?/(?:tags|elements)/(\d+)/content(?:/elements/2)?/json_schema(?=/|$)")


def _within_schema(error: ConstraintError) -> ConstraintError:
    """Return an error about a schema in a tag as one about the schema alone."""
    pointer = error.pointer or ""
    found = _IN_TAG.match(pointer)
    if found is not None:
        error.pointer = pointer[found.end() :]
    return error


def _placed_in(each: Unenforced, functions: Sequence[Function]) -> Unenforced:
    """Return what is not enforced in a tag of calls by the field of the request that it stands in."""
    found = _IN_TAG.match(each.pointer)
    assert found is not None, "a schema stands in the tag of a function"
    return each._replace(pointer=f"{functions[int(found[1])].param}#{each.pointer[found.end() :]}")


def _with_calls(functions: Sequence[tuple[str, Any]], only: bool, parallel: bool) -> dict[str, Any]:
    """Return a structural tag of calls in JSON, with or without line breaks, alone or in free text.

    functions: names and parameters. parallel: whether there may be several, or the text ends with the first.
    """
    line = {"type": "regex", "pattern": "\n?"}
    calls = []
    for name, parameters in functions:
        begin = f'{{"name": {json.dumps(name, ensure_ascii=False)}, "arguments": '
        call = [{"type": "const_string", "value": begin}, {"type": "json_schema", "json_schema": parameters}]
        content = {"type": "sequence", "elements": [line, *call, {"type": "const_string", "value": "}"}, line]}
        calls.append({"type": "tag", "begin": OPEN, "content": content, "end": CLOSE})
    text: dict[str, Any] = {"type": "or", "elements": calls}
    if not only:
        text = {"type": "triggered_tags", "triggers": [OPEN], "tags": calls, "stop_after_first": not parallel}
    elif parallel:
        more = {"type": "star", "content": {"type": "sequence", "elements": [line, text]}}
        text = {"type": "sequence", "elements": [text, more]}
    return {"type": "structural_tag", "format": text}


def constraint_of(asked: ChatRequest | CompletionRequest, family: str = "hermes") -> Constraint | None:
    """Return the constraint of a request's answer, None for free text. Raises Refused for several at a time.

    family: of the model, which says how it writes calls of tools.
    """
    found: list[Constraint] = []
    match asked.response_format:
        case ObjectFormat():
            found.append(Constraint("schema", {"type": "object"}, "response_format"))
        case SchemaFormat(json_schema=given):
            found.append(Constraint("schema", given.schema_, _SCHEMA_PARAM))
        case GrammarFormat(grammar=grammar, syntax=syntax, start=start):
            found.append(Constraint("grammar", grammar, "response_format.grammar", syntax=syntax, start=start))
        case TagFormat(type=kind, model_extra=more):
            found.append(Constraint("tags", {"type": kind, **(more or {})}, "response_format"))
    if asked.structured_outputs is not None:
        found += _structured(asked.structured_outputs)
    guided: list[tuple[Kind, str, Any]] = [
        ("schema", "guided_json", asked.guided_json), ("regex", "guided_regex", asked.guided_regex),
        ("choices", "guided_choice", asked.guided_choice), ("grammar", "guided_grammar", asked.guided_grammar),
    ]  # fmt: skip
    found += [Constraint(kind, each, name) for kind, name, each in guided if each is not None]
    if isinstance(asked, ChatRequest):
        call = _call_of(asked, family)
        if call is not None and found and isinstance(asked.response_format, (ObjectFormat, SchemaFormat)):
            # it is about answers without calls, of which "required" and a named function leave none
            without = found.pop(0)
            if call.kind == "calls" and not call.only:
                call = replace(call, answer=text_of(without.source))
        found += [] if call is None else [call]
    if len(found) > 1:
        names = " and ".join(each.param for each in found)
        raise Refused(f"{names} constrain the answer at the same time: give one of them", param=found[1].param)
    if found and asked.stops:
        raise Refused(
            f"stop would cut an answer that {found[0].param} wants complete: leave one of them out", param="stop"
        )
    if asked.allow or asked.any_order:
        if not found or found[0].kind in ("regex", "choices", "grammar"):
            said, param = ("names keywords", "allow") if asked.allow else ("is about the members", "any_order")
            raise Refused(f"it {said} of a schema, and there is none: leave it out", param=param)
        return replace(found[0], allow=tuple(asked.allow or ()), any_order=bool(asked.any_order))
    return found[0] if found else None


def _structured(told: StructuredOutputs) -> list[Constraint]:
    """Return the constraints in vLLM's form."""
    own: list[tuple[Kind, str, Any]] = [
        ("schema", "json", told.json_), ("regex", "regex", told.regex), ("choices", "choice", told.choice),
        ("tags", "structural_tag", told.structural_tag),
        ("schema", "json_object", {"type": "object"} if told.json_object else None),
    ]  # fmt: skip
    found = [Constraint(kind, each, f"structured_outputs.{name}") for kind, name, each in own if each is not None]
    if told.grammar is not None:
        at = "structured_outputs.grammar"
        found.append(Constraint("grammar", told.grammar, at, syntax=told.syntax, start=told.start))
    for name, value in (("syntax", told.syntax), ("start", told.start)):
        if value is not None and told.grammar is None:
            raise Refused(f"{name} goes with grammar", param=f"structured_outputs.{name}")
    if not found:
        raise Refused(
            "it asks for nothing: give json, regex, choice, grammar, structural_tag or json_object",
            param="structured_outputs",
        )
    return found


def _call_of(asked: ChatRequest, family: str) -> Constraint | None:
    """Return the constraint of tool calls, of text with calls, or of arguments; None if the request wants no calls."""
    tools, choice = asked.tools or [], asked.tool_choice
    names = [tool.function.name for tool in tools]
    for at, name in enumerate(names):
        if name in names[:at]:
            raise Refused(f"there are two functions called {name!r}", param=f"tools[{at}].function.name")
    if choice == "none" or (not tools and choice in (None, "auto")):
        return None
    if not tools:
        raise Refused("there are no tools to choose from", param="tool_choice")
    left = list(range(len(tools)))
    if isinstance(choice, AllowedChoice):
        allowed, choice = [each.function.name for each in choice.allowed_tools.tools], choice.allowed_tools.mode
        for at, name in enumerate(allowed):
            if name not in names:
                raise Refused(
                    f"there is no function {name!r} among tools: {', '.join(names)}",
                    param=f"tool_choice.allowed_tools.tools[{at}].function.name",
                )
        left = [at for at in left if names[at] in allowed]
    if isinstance(choice, NamedTool):
        if choice.function.name not in names:
            raise Refused(
                f"there is no function {choice.function.name!r} among tools: {', '.join(names)}",
                param="tool_choice.function.name",
            )
        at = names.index(choice.function.name)
        parameters, name = _parameters(tools[at], at), choice.function.name
        param = f"tools[{at}].function.parameters"
        if family in FAMILIES:  # which has no form for arguments alone
            one = Function(name, parameters, at, bool(tools[at].function.strict))
            return Constraint("calls", [one], param, tool=name, only=True, parallel=False, family=family)
        return Constraint("schema", parameters, param, tool=name)
    functions = [
        Function(tool.function.name, _parameters(tool, at), at, bool(tool.function.strict))
        for at, tool in enumerate(tools)
        if at in left
    ]
    parallel = asked.parallel_tool_calls is not False
    return Constraint("calls", functions, "tools", only=choice == "required", parallel=parallel, family=family)


def _parameters(tool: Tool, at: int) -> dict[str, Any]:
    """Return the schema of a function's arguments, which are always an object."""
    given = tool.function.parameters
    if given is None:
        return {"type": "object", "properties": {}, "additionalProperties": False}
    if given.get("type", "object") != "object":
        raise Refused(
            f"the arguments of {tool.function.name!r} are an object, not {json.dumps(given['type'])[:40]}: its "
            'parameters must have the type "object"',
            param=f"tools[{at}].function.parameters",
        )
    return {"type": "object", **given}
