"""Answers as the server sends them: text from tokens, stop texts, tool calls, and the objects of OpenAI's API."""

from __future__ import annotations

import codecs
import re
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

from ..vocabulary.vocabulary import Vocabulary
from .call_marks import CallMarks, call_marks
from .constraints import Constraint
from .families import FAMILIES, Spelled, spelled

_CALL = re.compile(r'\{"name": "([a-zA-Z0-9_-]+)", "arguments": ')


class DecodedText:
    """The text of one sequence. It holds back characters and possible stop texts until they are complete."""

    def __init__(self, vocabulary: Vocabulary, stops: Sequence[str], marks: Mapping[int, str] | None = None) -> None:
        """Make the text of no tokens. marks: characters for control tokens, which have no text otherwise."""
        self._vocabulary, self._stops, self._marks = vocabulary, stops, marks or {}
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""
        self.stopped = False

    def feed(self, tokens: Sequence[int], last: bool) -> str:
        """Return the text that is certain after more tokens. At a stop text, `stopped` becomes true and text ends."""
        if self.stopped:
            return ""
        begin = 0
        for at, token in enumerate(tokens):
            if token in self._marks:
                self._held += self._decoder.decode(self._vocabulary.decode(tokens[begin:at]), True) + self._marks[token]
                begin = at + 1
        self._held += self._decoder.decode(self._vocabulary.decode(tokens[begin:]), last)
        if (cut := first_stop(self._held, self._stops)) is not None:
            self.stopped = True
            return self._held[:cut]
        keep = 0 if last else max((_overlap(self._held, stop) for stop in self._stops), default=0)
        out, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
        return out


def first_stop(text: str, stops: Sequence[str]) -> int | None:
    """Return where the stop text begins that is complete first, the longest of several; None if there is none.

    A longer stop text that begins earlier but ends later does not count: generation has ended by then, and the answer
    must not depend on how many tokens come at once.
    """
    found = [(at + len(stop), at) for stop in stops if (at := text.find(stop)) >= 0]
    return min(found)[1] if found else None


def _overlap(text: str, stop: str) -> int:
    """Return the length of the longest end of a text that is also a beginning of a stop text."""
    return next((size for size in range(min(len(text), len(stop) - 1), 0, -1) if text.endswith(stop[:size])), 0)


class Call:
    """A tool call: its name, then its arguments as the model writes them.

    name: the function's, if it is known; the text then holds the arguments alone. Otherwise the text is an object with
    name and arguments.
    """

    def __init__(self, name: str | None, index: int = 0) -> None:
        self.id = f"call_{uuid.uuid4().hex[:24]}"
        self.name, self.index = name, index  # among the calls of an answer
        self.arguments = ""  # as much as `DecodedText` has released
        self._wrapped = name is None
        self._held = ""
        self.begun = False  # the client has its name

    def feed(self, text: str) -> str:
        """Return the arguments that are certain after more text."""
        self._held += text
        if self.name is None:
            head = _CALL.match(self._held)
            if head is None:
                return ""
            self.name, self._held = head[1], self._held[head.end() :]
        keep = int(self._wrapped)  # the brace around both
        out, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
        return out


Part = tuple[Call | None, str]
"""More of a call's arguments, or more text outside calls for None."""


class OneCall:
    """A text that is the arguments of one tool call; name: the function's."""

    def __init__(self, name: str) -> None:
        self.found = [Call(name)]

    def feed(self, text: str, last: bool) -> list[Part]:
        """Return the parts of the call that are certain after more text."""
        return [(self.found[0], self.found[0].feed(text))]

    def ended(self, full: bool) -> str:
        """Return the reason why the complete text has ended."""
        return "stop"  # as OpenAI's API says for a named function


class Calls:
    """Tool calls between marks, in free text or alone; only: what stands between them is no text of the answer."""

    def __init__(self, marks: CallMarks, *, only: bool = False) -> None:
        self.found: list[Call] = []
        self.marks, self._only = marks, only
        self._held = ""
        self._place: Literal["text", "before", "call", "behind"] = "text"
        self._depth = 0  # open brackets of the current call
        self._quoted = self._escaped = False  # whether the call is in a string, and behind a backslash there

    def feed(self, text: str, last: bool) -> list[Part]:
        """Return the parts that are certain after more text, in order. A possible part of a mark is held back."""
        out: list[Part] = []
        self._held += text
        while self._held:
            if self._place == "text":
                at = self._held.find(self.marks.open)
                begun = at >= 0
                said = self._cut(
                    at if begun else len(self._held) - (0 if last else _overlap(self._held, self.marks.open))
                )
                if said and not self._only:
                    out.append((None, said))
                if not begun:
                    break
                self._cut(len(self.marks.open))
                self._place = "before"
                self.found.append(Call(None, len(self.found)))
            elif self._place == "before":
                self._held = self._held.removeprefix("\n")
                self._place = "call" if self._held else "before"
            elif self._place == "call":
                call = self.found[-1]
                out.append((call, call.feed(self._cut(self._end_of_call()))))
                self._place = "call" if self._depth else "behind"
            else:
                at = self._held.find(self.marks.close)
                if at < 0:
                    break
                self._cut(at + len(self.marks.close))
                self._place = "text"
        return out

    def ended(self, full: bool) -> str:
        """Return the reason why the complete text has ended; full: it has as many tokens as it may have."""
        return "tool_calls" if self.found else "length" if full else "stop"

    def _cut(self, size: int) -> str:
        """Release the beginning of the text that is held back."""
        out, self._held = self._held[:size], self._held[size:]
        return out

    def _end_of_call(self) -> int:
        """Return how much of the held text belongs to the call's object, counting its brackets."""
        for at, character in enumerate(self._held):
            if self._quoted:
                self._quoted = self._escaped or character != '"'
                self._escaped = character == "\\" and not self._escaped
            elif character == '"':
                self._quoted = True
            elif character in "{[":
                self._depth += 1
            elif character in "}]":
                self._depth -= 1
                if not self._depth:
                    return at + 1
        return len(self._held)


class StyledCalls:
    """Tool calls whose parameters have a style of their own; each is read once it is whole.

    schemas: of the parameters by function. only: what stands around calls is no text of the answer.
    """

    def __init__(self, texts: Spelled, schemas: Mapping[str, Any], *, only: bool = False) -> None:
        self.found: list[Call] = []
        self.marks, self._schemas, self._only = texts, schemas, only
        self._held = ""
        self._within = False  # whether calls have begun, and the text around all of them is open

    def feed(self, text: str, last: bool) -> list[Part]:
        """Return the parts that are certain after more text, in order. A possible part of a mark is held back."""
        out: list[Part] = []
        self._held += text
        while self._held:
            if not self._within:
                at = self._held.find(self.marks.trigger)
                size = at if at >= 0 else len(self._held) - (0 if last else _overlap(self._held, self.marks.trigger))
                said, self._held = self._held[:size], self._held[size:]
                if said and not self._only:
                    out.append((None, said))
                if at < 0:
                    break
                self._within = True
            else:
                part = self._call()
                if part is None:
                    break
                out += part
        return out

    def ended(self, full: bool) -> str:
        """Return the reason why the complete text has ended; full: it has as many tokens as it may have."""
        return "tool_calls" if self.found else "length" if full else "stop"

    def _call(self) -> list[Part] | None:
        """Read the next call, or the end of all; None where more text is needed."""
        marks = self.marks
        if marks.first and self._held.startswith(marks.first):
            self._held = self._held.removeprefix(marks.first)
            return []
        if marks.last and self._held.startswith(marks.last):
            self._held, self._within = self._held.removeprefix(marks.last), False
            return []
        begun = marks.opened.match(self._held)
        stop = self._held.find(marks.end, begun.end()) if begun is not None else -1
        if begun is None or stop < 0:
            return None
        call = Call(begun[1], len(self.found))
        self.found.append(call)
        arguments = marks.arguments(self._held[begun.end() : stop], self._schemas[begun[1]])
        self._held, self._within = self._held[stop + len(marks.end) :], bool(marks.last)
        return [(call, call.feed(arguments))]


class CallsOrText:
    """Tool calls alone, or a text of JSON alone: the first character says which."""

    def __init__(self, calls: Calls | StyledCalls) -> None:
        self._calls, self.marks, self.found = calls, calls.marks, calls.found
        self._is_text: bool | None = None

    def feed(self, text: str, last: bool) -> list[Part]:
        """Return the parts that are certain after more text, in order."""
        if self._is_text is None and text:
            begin = self.marks.open if isinstance(self.marks, CallMarks) else self.marks.trigger
            self._is_text = text[0] != begin[0]
        return [(None, text)] if self._is_text else self._calls.feed(text, last)

    def ended(self, full: bool) -> str:
        """Return the reason why the complete text has ended."""
        return "stop" if self._is_text else self._calls.ended(full)


AnyCalls = OneCall | Calls | StyledCalls | CallsOrText


def reader_of(constraint: Constraint | None, vocabulary: Vocabulary) -> Callable[[], AnyCalls | None]:
    """Return what makes the reader of calls in an answer under a constraint; it makes None if there are no calls."""
    if constraint is not None and constraint.kind == "calls":
        only = constraint.only or constraint.answer is not None
        made: Callable[[], Calls | StyledCalls] = partial(Calls, call_marks(vocabulary), only=only)
        if constraint.family in FAMILIES:
            schemas = {each.name: each.parameters for each in constraint.source}
            made = partial(StyledCalls, spelled(FAMILIES[constraint.family], vocabulary), schemas, only=only)
        return made if constraint.answer is None else lambda: CallsOrText(made())
    name = None if constraint is None else constraint.tool
    return _no_calls if name is None else partial(OneCall, name)


def _no_calls() -> None:
    return None


@dataclass
class Choice:
    """One sequence of an answer."""

    index: int
    text: DecodedText
    calls: AnyCalls | None = None
    said: str = ""  # outside calls
    tokens: int = 0
    log_probs: list[dict[str, Any]] = field(default_factory=list)
    finished: str | None = None

    def feed(self, tokens: Sequence[int], last: bool) -> list[Part]:
        """Add tokens, and return the parts that are certain after them."""
        self.tokens += len(tokens)
        text = self.text.feed(tokens, last)
        parts: list[Part] = [(None, text)]
        if self.calls is not None:
            parts = self.calls.feed(text, last or self.text.stopped)
        for call, more in parts:
            if call is None:
                self.said += more
            else:
                call.arguments += more
        return parts


def choice_of(index: int, vocabulary: Vocabulary, stops: Sequence[str], calls: AnyCalls | None) -> Choice:
    """Return an empty sequence of an answer, whose text has the marks of its calls."""
    marks = None if calls is None or isinstance(calls, OneCall) else calls.marks.tokens
    return Choice(index, DecodedText(vocabulary, stops, marks), calls)


class Form:
    """The objects of one endpoint's answers."""

    kind = chunk_kind = prefix = ""

    def __init__(self, model: str, log_probs: bool) -> None:
        self.head = {"id": f"{self.prefix}-{uuid.uuid4().hex}", "created": int(time.time()), "model": model}
        self.with_log_probs = log_probs

    def log_prob(self, token: bytes, value: float, tops: Sequence[tuple[bytes, float]] = ()) -> dict[str, Any]:
        """Return the object for a token's log-probability, and those of the best tokens in its place."""
        return {**_log_prob(token, value), "top_logprobs": [_log_prob(*each) for each in tops]}

    def whole(self, choices: Sequence[Choice], usage: dict[str, int]) -> dict[str, Any]:
        """Return the object of a whole answer."""
        return {
            **self.head, "object": self.kind, "choices": [self.choice(choice) for choice in choices], "usage": usage,
        }  # fmt: skip

    def chunk(self, choices: list[dict[str, Any]], usage: dict[str, int] | None, with_usage: bool) -> dict[str, Any]:
        """Return the object of one event of a stream."""
        out = {**self.head, "object": self.chunk_kind, "choices": choices}
        return {**out, "usage": usage} if with_usage else out

    def choice(self, choice: Choice) -> dict[str, Any]:
        """Return the object of one whole choice."""
        raise NotImplementedError

    def first(self, choice: Choice) -> list[dict[str, Any]]:
        """Return the objects that a stream sends of a choice before its text."""
        return []

    def piece(self, choice: Choice, parts: Sequence[Part], log_probs: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the objects that a stream sends for more of a choice, and at its end."""
        raise NotImplementedError


def _log_prob(token: bytes, value: float) -> dict[str, Any]:
    """Return what is told of a token; its value is a finite number in JSON."""
    return {"token": token.decode(errors="replace"), "logprob": max(value, -9999.0), "bytes": list(token)}


class ChatForm(Form):
    """Answers of /v1/chat/completions."""

    kind, chunk_kind, prefix = "chat.completion", "chat.completion.chunk", "chatcmpl"

    def choice(self, choice: Choice) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": choice.said, "refusal": None}
        calls = [] if choice.calls is None else [call for call in choice.calls.found if call.name is not None]
        if calls:
            message["content"] = choice.said or None
            message["tool_calls"] = [
                {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
                for call in calls
            ]
        return {
            "index": choice.index, "message": message, "logprobs": self._log_probs(choice.log_probs),
            "finish_reason": choice.finished,
        }  # fmt: skip

    def _log_probs(self, log_probs: list[dict[str, Any]]) -> dict[str, Any] | None:
        return {"content": log_probs, "refusal": None} if self.with_log_probs else None

    def first(self, choice: Choice) -> list[dict[str, Any]]:
        said = {"content": ""} if choice.calls is None else {}
        return [_delta(choice.index, {"role": "assistant", **said}, None, None)]

    def piece(self, choice: Choice, parts: Sequence[Part], log_probs: list[dict[str, Any]]) -> list[dict[str, Any]]:
        out = []
        told = self._log_probs(log_probs) if log_probs else None
        for call, said in parts:
            if call is not None and call.name is not None and not call.begun:
                call.begun = True
                function = {"name": call.name, "arguments": ""}
                whole = {"index": call.index, "id": call.id, "type": "function", "function": function}
                out.append(_delta(choice.index, {"tool_calls": [whole]}, None, None))
            if said:
                more: dict[str, Any] = {"content": said}
                if call is not None:
                    more = {"tool_calls": [{"index": call.index, "function": {"arguments": said}}]}
                out.append(_delta(choice.index, more, told, None))
                told = None
        if told is not None:
            out.append(_delta(choice.index, {"content": ""} if choice.calls is None else {}, told, None))
        if choice.finished is not None:
            out.append(_delta(choice.index, {}, None, choice.finished))
        return out


def _delta(index: int, delta: dict[str, Any], log_probs: dict[str, Any] | None, finished: str | None) -> dict[str, Any]:
    return {"index": index, "delta": delta, "logprobs": log_probs, "finish_reason": finished}


class CompletionForm(Form):
    """Answers of /v1/completions."""

    kind = chunk_kind = "text_completion"
    prefix = "cmpl"

    def choice(self, choice: Choice) -> dict[str, Any]:
        return self._choice(choice.index, choice.said, choice.log_probs, choice.finished)

    def _choice(self, index: int, text: str, log_probs: list[dict[str, Any]], finished: str | None) -> dict[str, Any]:
        told = {
            "tokens": [each["token"] for each in log_probs],
            "token_logprobs": [each["logprob"] for each in log_probs],
            "top_logprobs": [
                {top["token"]: top["logprob"] for top in reversed(each["top_logprobs"])} for each in log_probs
            ]
            if any(each["top_logprobs"] for each in log_probs)
            else None,
            "text_offset": None,
        }
        return {
            "index": index, "text": text, "logprobs": told if self.with_log_probs else None, "finish_reason": finished,
        }  # fmt: skip

    def piece(self, choice: Choice, parts: Sequence[Part], log_probs: list[dict[str, Any]]) -> list[dict[str, Any]]:
        said = "".join(more for _, more in parts)
        if not said and choice.finished is None and not (log_probs and self.with_log_probs):
            return []
        return [self._choice(choice.index, said, log_probs, choice.finished)]
