"""The requests of clients: those of OpenAI's API, with the constraints of vLLM's.

The server refuses a field by name if it would change the answer and is not supported. Many clients send such fields
with a value that changes nothing, such as a penalty of 0: the server takes that value.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic_core import PydanticCustomError

from ..compile.grammar.notations import Syntax
from ..compile.json_schema.approximations import allowed_keywords
from ..errors import ConstraintError

T = TypeVar("T")

MOST_CHOICES = 128
MOST_TOPS = 20  # tokens that are told in the place of one
_COLDEST = 1e-4  # a smaller divisor takes logits out of the range of float32


def wrong_value(message: str) -> PydanticCustomError:
    """Return the error of a field's value; pydantic puts words of its own before a ValueError's."""
    text = message.encode(errors="backslashreplace").decode()  # halves of surrogate pairs, which a field may have
    return PydanticCustomError("wrong_value", "{message}", {"message": text})


def _temperature(value: float) -> float:
    if 0 < value < _COLDEST:
        raise wrong_value(f"must be 0, which takes the best token, or at least {_COLDEST}")
    return value


def _nothing(value: T) -> T:
    if value:
        raise wrong_value("is not supported: leave it out")
    return value


def _none_as(reason: str) -> AfterValidator:
    """Return what refuses a field with any value that changes something, and says why."""

    def nothing(value: T) -> T:
        if value:
            raise wrong_value(f"is not supported, as {reason}: leave it out")
        return value

    return AfterValidator(nothing)


_PENALTIES = _none_as("the server keeps no counts of the tokens of an answer on the device")
_BIAS = _none_as("tokens are drawn from the logits of the model, under the constraint alone")


def _texts(value: list[str]) -> list[str]:
    if not all(value):
        raise wrong_value("an empty text would stop every answer at once: remove it")
    return value


def _keywords(value: list[str] | Literal["all"]) -> list[str]:
    try:
        return list(allowed_keywords(value))
    except ConstraintError as error:
        raise wrong_value(error.message) from None


Keywords = Annotated[list[str] | Literal["all"], AfterValidator(_keywords)]
"""Keywords of schemas that may stay unenforced: a list of them, or "all". Read, it is a list of them, ascending."""


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


# ---------------------------------------------------------------------------------------------------- constraints


class JsonSchema(_Model):
    """A schema with a name. The server enforces it, strict or not."""

    name: str
    description: str | None = None
    schema_: dict[str, Any] | bool = Field(alias="schema")
    strict: bool | None = None


class TextFormat(_Model):
    """No constraint."""

    type: Literal["text"]


class ObjectFormat(_Model):
    """Any JSON object."""

    type: Literal["json_object"]


class SchemaFormat(_Model):
    """The JSON texts that fit a schema."""

    type: Literal["json_schema"]
    json_schema: JsonSchema


class GrammarFormat(_Model):
    """The texts that a grammar derives."""

    type: Literal["grammar"]
    grammar: str
    syntax: Syntax | None = None  # as its text looks if None
    start: str | None = None


class TagFormat(_Model):
    """Text with tags, in either form: `structures` and `triggers`, or a `format`."""

    model_config = ConfigDict(extra="allow")  # the compiler checks the fields, and says where one is wrong

    type: Literal["structural_tag"]


Format = Annotated[TextFormat | ObjectFormat | SchemaFormat | GrammarFormat | TagFormat, Field(discriminator="type")]
Choices = Annotated[list[str], Field(min_length=1)]


class StructuredOutputs(_Model):
    """vLLM's form: one of json, regex, choice, grammar, structural_tag and json_object."""

    json_: dict[str, Any] | str | bool | None = Field(default=None, alias="json")
    regex: str | None = None
    choice: Choices | None = None
    grammar: str | None = None
    syntax: Syntax | None = None  # of the grammar, as its text looks if None
    start: str | None = None  # of the grammar
    structural_tag: dict[str, Any] | str | None = None
    json_object: Literal[True] | None = None


# ------------------------------------------------------------------------------------------------------ requests


class StreamOptions(_Model):
    """The parts of a stream beside the text."""

    include_usage: bool | None = None
    include_obfuscation: Literal[False] | None = None


class _Request(_Model):
    """The fields of both kinds of requests."""

    model: str
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: Annotated[float, Field(ge=0, le=100), AfterValidator(_temperature)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1, description="0 and -1 keep all")] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    seed: Annotated[int, Field(description="choice i is drawn with seed + i")] | None = None
    n: Annotated[int, Field(ge=1, le=MOST_CHOICES)] | None = None
    stop: (
        Annotated[str, Field(min_length=1)] | Annotated[list[str], Field(max_length=16), AfterValidator(_texts)] | None
    ) = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    response_format: Format | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: dict[str, Any] | str | bool | None = None
    guided_regex: str | None = None
    guided_choice: Choices | None = None
    guided_grammar: str | None = None
    # keywords of schemas that may stay unenforced
    allow: Keywords | None = None
    any_order: bool | None = None  # whether members of objects may come in any order, not only in the schema's
    # annotations: no answer depends on them
    user: str | None = None
    metadata: dict[str, Any] | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    service_tier: str | None = None
    # only with a value that changes nothing
    presence_penalty: Annotated[float, _PENALTIES] | None = None
    frequency_penalty: Annotated[float, _PENALTIES] | None = None
    logit_bias: Annotated[dict[str, float], _BIAS] | None = None

    @property
    def stops(self) -> list[str]:
        """The texts before which an answer ends."""
        return [self.stop] if isinstance(self.stop, str) else self.stop or []


class TextPart(_Model):
    """A part of a message."""

    type: Literal["text"]
    text: str


class CalledFunction(_Model):
    """The name of a called function, and its arguments as JSON text."""

    name: str
    arguments: str


class ToolCall(_Model):
    """A call in an earlier message."""

    id: str
    type: Literal["function"]
    function: CalledFunction


class Message(_Model):
    """One message of a conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[TextPart] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    # fields of OpenAI's answers, which clients send back
    refusal: None = None
    annotations: Annotated[list[Any], AfterValidator(_nothing)] | None = None
    audio: None = None
    function_call: None = None


class Function(_Model):
    """A function that the model may call."""

    name: str = Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(_Model):
    """A tool. The only kind is a function."""

    type: Literal["function"]
    function: Function


class FunctionName(_Model):
    """The name of the function to call."""

    name: str


class NamedTool(_Model):
    """The tool to use."""

    type: Literal["function"]
    function: FunctionName


class AllowedTool(_Model):
    """A function that may be called."""

    type: Literal["function"]
    function: FunctionName


class AllowedTools(_Model):
    """Some of the tools, and whether one of them must be called."""

    mode: Literal["auto", "required"]
    tools: Annotated[list[AllowedTool], Field(min_length=1)]


class AllowedChoice(_Model):
    """Some of the tools, as if there were no others."""

    type: Literal["allowed_tools"]
    allowed_tools: AllowedTools


class ChatRequest(_Request):
    """POST /v1/chat/completions."""

    messages: Annotated[list[Message], Field(min_length=1)]
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MOST_TOPS)] | None = None
    tools: Annotated[list[Tool], Field(max_length=128)] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | AllowedChoice | None = None
    parallel_tool_calls: bool | None = None  # false: an answer ends behind its first call
    chat_template_kwargs: dict[str, Any] | None = None  # variables of the model's chat template
    reasoning_effort: str | None = None  # one more of them
    store: Annotated[bool, AfterValidator(_nothing)] | None = None
    modalities: list[Literal["text"]] | None = None

    @property
    def best(self) -> int:
        """How many tokens are told in the place of each."""
        return (self.top_logprobs or 0) if self.logprobs else 0


class CompletionRequest(_Request):
    """POST /v1/completions."""

    prompt: (
        str
        | Annotated[list[str], Field(min_length=1, max_length=MOST_CHOICES)]
        | Annotated[list[int], Field(min_length=1)]
        | Annotated[list[list[int]], Field(min_length=1, max_length=MOST_CHOICES)]
    )
    logprobs: Annotated[int, Field(ge=0, le=MOST_TOPS)] | None = None
    echo: Annotated[bool, AfterValidator(_nothing)] | None = None
    suffix: Annotated[str, AfterValidator(_nothing)] | None = None
    best_of: Annotated[int, Field(ge=1, le=1)] | None = None

    @property
    def best(self) -> int:
        """How many tokens are told in the place of each."""
        return self.logprobs or 0


WHY = {
    "repetition_penalty": "the server keeps no counts of the tokens of an answer on the device: leave it out",
    "logits_processors": "code of a client is never run: leave it out",
    "grammar": "send it as guided_grammar, or within structured_outputs",
    "ebnf": "send it as guided_grammar, or as grammar within structured_outputs",
    "structural_tag": "send it as response_format, or within structured_outputs",
    "functions": 'it is the old form of tools: send tools and tool_choice "required" or a function',
    "function_call": "it is the old form of tool_choice",
}
"""Advice for refused fields, by name."""
