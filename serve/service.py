"""Requests over one engine: what is checked before anything is written, who gets a place, and how it ends."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from ..automata.budget import Budget
from ..compile.cache.cache import Cache
from ..errors import ArenaError, ConstraintError, SchemaError
from ..lazy.lazy_table import Compiled
from ..runtime.arena.arena import Arena
from ..runtime.arena.capacity import Capacity
from ..runtime.host.matcher import Matcher
from ..runtime.integrations.engine import Engine
from .answers import Calls, ChatForm, Choice, CompletionForm, Form, OneCall, Part, Text
from .constraints import Constraint, constraint_of
from .loading import Loaded
from .metrics import Metrics
from .refusals import Refused, of_constraint
from .requests import ChatRequest, CompletionRequest, NamedTool
from .worker import Event, Job, Worker

_log = logging.getLogger("maskwright.serve")
_FREE_TOKENS = 16  # of a completion that neither a limit nor a constraint is given for, as OpenAI has it


@dataclass(frozen=True)
class Limits:
    """What one server does at most."""

    rows: int = 16  # sequences written at once
    max_queue: int = 256  # sequences that wait
    max_tokens: int = 1024  # of one answer
    max_schema_bytes: int = 1 << 18
    max_body_bytes: int = 4 << 20
    compile_threads: int = 4
    budget: Budget = field(default_factory=lambda: Budget(seconds=10.0))  # of one constraint
    grace_seconds: float = 30.0  # for what is being written when the server is told to stop
    stall_seconds: float = 60.0  # of one step, after which the server is not ready
    whitespace: str | tuple[str, str] = "flexible"  # of JSON


@dataclass
class Plan:
    """A request that was looked through: what is to be read, and what is to be written."""

    prompts: list[list[int]]
    each: int  # sequences of each prompt
    constraint: Constraint | None
    form: Form
    stops: list[str]
    calls: Callable[[], OneCall | Calls | None]  # how an answer's text is read
    options: dict[str, Any]  # of `Engine.add`, max_tokens and seed aside
    max_tokens: int | None
    limit_param: str
    seed: int | None


class Service:
    """One model, its engine in a thread of its own, one cache, and the requests that are open.

    All methods but `metrics` are for the event loop that `start` was called in.
    """

    def __init__(
        self,
        loaded: Loaded,
        limits: Limits | None = None,
        *,
        capacity: Capacity | None = None,
        cache_bytes: int = 1 << 30,
        cache_directory: Path | None = None,
        directory_bytes: int = 4 << 30,
    ) -> None:
        self.loaded, self.limits = loaded, Limits() if limits is None else limits
        vocabulary = loaded.vocabulary
        self.cache = Cache(
            vocabulary, max_bytes=cache_bytes, directory=cache_directory, directory_bytes=directory_bytes
        )
        self.arena = Arena(vocabulary, capacity, budgets=True)
        self.room = self.arena.stored.free  # of each part, when there is nothing yet
        self.metrics = Metrics()
        engine = Engine(loaded.model, self.arena, rows=self.limits.rows, vocabulary=vocabulary)
        self.worker = Worker(engine, loaded.stop_ids, self.metrics.step_seconds.observe)
        self.open = 0  # sequences that were taken on and have not ended
        self.compiling = 0
        self.draining = False
        self.warm = False
        self.failed: str | None = None  # why it never became warm
        self._loop: asyncio.AbstractEventLoop | None = None
        self._warming: asyncio.Task[None] | None = None
        self._pool = ThreadPoolExecutor(self.limits.compile_threads, "maskwright-compile")
        self.metrics.watch(self)

    # ---------------------------------------------------------------------------------------------- from start to end

    async def start(self) -> None:
        """Begin to step, and write something, so that the first request does not wait for kernels."""
        self._loop = asyncio.get_running_loop()
        self.worker.start(self._tell)
        self._warming = asyncio.create_task(self._warm_up())

    async def _warm_up(self) -> None:
        try:
            table = None
            with suppress(Refused):  # where limits are tight: kernels have been loaded all the same
                table = await self.compile(
                    Constraint("schema", {"type": "object"}, "response_format"), 16, "max_tokens"
                )
            for each in (None, table):
                answer = Answer(self, [self._job([1], each, {"max_tokens": 16 if each is not None else 1}, 0)])
                try:
                    async for _, _ in answer.events():
                        pass
                finally:
                    answer.close()
            self.warm = True
        except Exception as error:
            self.failed = str(error)
            _log.exception("the server could not write a first answer")

    def drain(self) -> None:
        """Take nothing more."""
        self.draining = True

    async def stop(self) -> None:
        """End what is left."""
        self.drain()
        if self._warming is not None:
            self._warming.cancel()
        await asyncio.to_thread(self.worker.close, 10.0)
        self._pool.shutdown(wait=False, cancel_futures=True)

    @property
    def fault(self) -> str | None:
        """Why nothing can be written any more, None if it can."""
        if self.worker.fault is not None:
            return f"the engine has failed: {type(self.worker.fault).__name__}"
        return None if self.failed is None else f"no first answer could be written: {self.failed}"

    @property
    def ready(self) -> bool:
        """Whether requests are taken and answered."""
        steps = not self.worker.stalled(self.limits.stall_seconds)
        return self.warm and steps and not self.draining and self.fault is None

    def _tell(self, batch: list[tuple[Job, Event]]) -> None:
        """Hand events of the engine's thread to the event loop."""
        if batch and self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(_deliver, batch)

    # ------------------------------------------------------------------------------------------------------ requests

    def take(self, sequences: int) -> None:
        """Count sequences in; `Answer.close` counts them out. Refused where there are too many already."""
        most = self.limits.rows + self.limits.max_queue
        if self.draining:
            raise Refused("the server is shutting down", status=503, code="shutting_down")
        if self.fault is not None:
            raise Refused(self.fault, status=500, code="engine_fault")
        if sequences > most:
            raise Refused(
                f"{sequences} sequences are asked for, and this server takes {most} at a time: ask for fewer", param="n"
            )
        if self.open + sequences > most:
            raise Refused(
                f"{self.open} sequences are being written or wait, of {most} that may (--max-queue): try again later",
                status=503, code="queue_full",
            )  # fmt: skip
        self.open += sequences

    async def plan(self, asked: ChatRequest | CompletionRequest) -> Plan:
        """Return what a request comes to; Refused."""
        self._check(asked)
        constraint = constraint_of(asked)
        calls: Callable[[], OneCall | Calls | None] = _no_calls
        max_tokens, limit_param = asked.max_tokens, "max_tokens"
        form: Form
        if isinstance(asked, ChatRequest):
            if asked.max_completion_tokens is not None:
                if max_tokens not in (None, asked.max_completion_tokens):
                    raise Refused("max_tokens and max_completion_tokens differ: give one of them", param="max_tokens")
                max_tokens, limit_param = asked.max_completion_tokens, "max_completion_tokens"
            if isinstance(asked.tool_choice, NamedTool):
                calls = partial(OneCall, asked.tool_choice.function.name)
            elif constraint is not None and constraint.kind in ("call", "calls"):
                calls = Calls if constraint.kind == "calls" else partial(OneCall, None)
            form = ChatForm(self.loaded.name, bool(asked.logprobs))
            prompts = [await asyncio.to_thread(self._read_chat, asked)]
        else:
            form = CompletionForm(self.loaded.name, asked.logprobs is not None)
            prompts = await asyncio.to_thread(self._read_prompts, asked)
            if max_tokens is None and constraint is None:
                max_tokens = _FREE_TOKENS
        options = {
            "temperature": 1.0 if asked.temperature is None else asked.temperature, "top_p": asked.top_p,
            "min_p": asked.min_p, "top_k": asked.top_k,
        }  # fmt: skip
        if asked.top_k is not None and not 0 < asked.top_k < self.loaded.vocabulary.size:
            options["top_k"] = None
        return Plan(
            prompts, asked.n or 1, constraint, form, asked.stops, calls, options, max_tokens, limit_param, asked.seed,
        )  # fmt: skip

    def _check(self, asked: ChatRequest | CompletionRequest) -> None:
        if asked.model != self.loaded.name:
            raise Refused(
                f"there is no model {asked.model!r} here, but {self.loaded.name!r}", status=404, param="model",
                code="model_not_found",
            )  # fmt: skip
        if asked.stream_options is not None and not asked.stream:
            raise Refused("stream_options goes with stream: true", param="stream_options")
        if asked.max_tokens is not None and asked.max_tokens > self.limits.max_tokens:
            self._refuse_length(asked.max_tokens, "max_tokens")
        if isinstance(asked, ChatRequest) and (asked.max_completion_tokens or 0) > self.limits.max_tokens:
            self._refuse_length(asked.max_completion_tokens or 0, "max_completion_tokens")

    def _refuse_length(self, given: int, param: str) -> None:
        raise Refused(f"{param} is {given}, and this server writes at most {self.limits.max_tokens}", param=param)

    def _read_chat(self, asked: ChatRequest) -> list[int]:
        messages = []
        for at, message in enumerate(asked.messages):
            told = message.model_dump(include={"role", "content", "name", "tool_calls", "tool_call_id"})
            told = {name: value for name, value in told.items() if value is not None}
            if not isinstance(message.content, str | None):
                told["content"] = "".join(part.text for part in message.content or [])
            if "content" not in told and message.role != "assistant":
                raise Refused(f"a message of {message.role} has content", param=f"messages[{at}].content")
            told.setdefault("content", "")
            messages.append(told)
        tools = None
        if asked.tools and asked.tool_choice != "none":
            tools = [tool.model_dump(exclude_none=True) for tool in asked.tools]
        _check_text(json.dumps([messages, tools], ensure_ascii=False), "messages")
        return self._checked(self.loaded.chat(messages, tools), "messages")

    def _read_prompts(self, asked: CompletionRequest) -> list[list[int]]:
        given = asked.prompt
        texts: list[Any] = [given] if isinstance(given, str) or isinstance(given[0], int) else list(given)
        for text in texts:
            if isinstance(text, str):
                _check_text(text, "prompt")
        return [
            self._checked(self.loaded.encode(text) if isinstance(text, str) else list(text), "prompt") for text in texts
        ]

    def _checked(self, tokens: list[int], param: str) -> list[int]:
        """Return a prompt's tokens, if the model can read them."""
        size = self.loaded.vocabulary.size
        if not tokens:
            raise Refused("it is empty, and this model has no token to begin with: write something", param=param)
        for token in tokens:
            if not 0 <= token < size:
                raise Refused(f"token {token} is not in 0 .. {size - 1}", param=param)
        context = self.loaded.context
        if context is not None and len(tokens) >= context:
            raise Refused(
                f"the prompt has {len(tokens)} tokens, and the model has room for {context} with the answer",
                param=param, code="context_length_exceeded",
            )  # fmt: skip
        return tokens

    def _lengths(self, plan: Plan) -> int:
        """Return the most tokens of each answer."""
        longest, context = max(map(len, plan.prompts)), self.loaded.context
        room = self.limits.max_tokens if context is None else min(self.limits.max_tokens, context - longest)
        if plan.max_tokens is None:
            return room
        if plan.max_tokens > room:
            raise Refused(
                f"{longest} tokens of the prompt and {plan.limit_param}={plan.max_tokens} are more than the {context} "
                "that the model has positions for",
                param=plan.limit_param, code="context_length_exceeded",
            )  # fmt: skip
        return plan.max_tokens

    async def compile(self, constraint: Constraint, max_tokens: int, limit_param: str) -> Compiled:
        """Return a constraint's table, made away from the event loop and the engine; Refused."""
        began = time.monotonic()
        self.compiling += 1
        try:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._pool, self._compiled, constraint, max_tokens, limit_param)
        finally:
            self.compiling -= 1
            self.metrics.compile_seconds.observe(time.monotonic() - began)

    def table(self, constraint: Constraint) -> Compiled:
        """Return a constraint's table, compiled here if the cache has none: not for the event loop. Refused.

        A grammar's may be lazy, and have no arrays.
        """
        try:
            size, most = constraint.size(), self.limits.max_schema_bytes
            if size > most:
                raise Refused(
                    f"it has {size:,} bytes, and this server reads {most:,} (--max-schema-bytes): make it smaller",
                    param=constraint.param, code="constraint_too_large",
                )  # fmt: skip
            return constraint.compile(self.cache, self.limits.budget, self.limits.whitespace)
        except SchemaError as error:
            found, param = constraint.locate(error, self.cache, self.limits.budget)
            raise of_constraint(found, param) from None
        except (ConstraintError, RecursionError, ValueError) as error:
            raise of_constraint(error, constraint.param) from None

    def _compiled(self, constraint: Constraint, max_tokens: int, limit_param: str) -> Compiled:
        table = self.table(constraint)
        try:
            table.to_table()
            self.arena.fits(table)
        except (ArenaError, ConstraintError) as error:  # a grammar may have no arrays
            raise of_constraint(error, constraint.param, "constraint_without_table") from None
        try:  # what the engine will do as well, with distances worked out here
            Matcher(table, self.loaded.vocabulary, max_tokens=max_tokens)
        except ValueError as error:
            raise Refused(str(error), param=limit_param, code="max_tokens_too_small") from None
        return table

    async def begin(self, plan: Plan) -> Answer:
        """Return the answer to a request, from now on written; Refused. Who gets it closes it."""
        count = plan.each * len(plan.prompts)
        self.take(count)
        try:
            max_tokens = self._lengths(plan)
            table = None
            if plan.constraint is not None:
                table = await self.compile(plan.constraint, max_tokens, plan.limit_param)
        except BaseException:
            self.open -= count
            raise
        jobs: list[Job] = []
        for prompt in plan.prompts:
            for choice in range(plan.each):
                seed = None if plan.seed is None else (plan.seed + choice) % (1 << 64)
                jobs.append(
                    self._job(prompt, table, {**plan.options, "max_tokens": max_tokens, "seed": seed}, len(jobs))
                )
        self.metrics.prompt_tokens.inc(sum(map(len, plan.prompts)))
        return Answer(self, jobs, plan, counted=count)

    def _job(self, prompt: list[int], table: Compiled | None, options: dict[str, Any], index: int) -> Job:
        return Job(prompt, table, options, None, index)


def _no_calls() -> None:
    """Read no calls in an answer's text."""


def _check_text(text: str, param: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise Refused("it has a lone surrogate, which no UTF-8 spells: remove it", param=param) from None


def _deliver(batch: Iterable[tuple[Job, Event]]) -> None:
    for job, event in batch:
        job.listener.put_nowait((job.index, event))


class Answer:
    """The sequences of one request, while they are written."""

    def __init__(self, service: Service, jobs: list[Job], plan: Plan | None = None, counted: int = 0) -> None:
        self._service, self._jobs, self._counted = service, jobs, counted
        self._events: asyncio.Queue[tuple[int, Event]] = asyncio.Queue()
        self._began = time.monotonic()
        self._left = set(range(len(jobs)))
        self._plan = plan
        self.choices: list[Choice] = []
        if plan is not None:
            vocabulary = service.loaded.vocabulary
            self.choices = [Choice(job.index, Text(vocabulary, plan.stops), plan.calls()) for job in jobs]
        for job in jobs:
            job.listener = self._events
        if not service.worker.submit(jobs):
            self.close()
            raise Refused(service.fault or "the server is shutting down", status=503, code="shutting_down")

    async def events(self) -> AsyncIterator[tuple[int, Event]]:
        """Yield what happens, until all sequences have ended; Refused if one ends otherwise than it should."""
        while self._left:
            index, event = await self._events.get()
            if index not in self._left:
                continue
            if event.finished is not None:
                self._left.discard(index)
            if event.finished == "refused":
                raise Refused(event.why)
            if event.finished == "fault":
                raise Refused(event.why, status=500, code="engine_fault")
            if event.finished == "cancelled":
                raise Refused("the server is shutting down", status=503, code="shutting_down")
            if event.finished == "no distribution":
                raise Refused("the model gave no numbers to draw from", status=500, code="model_fault")
            yield index, event

    async def pieces(self) -> AsyncIterator[tuple[Choice, list[Part], list[dict[str, Any]]]]:
        """Yield what can be said: (choice, more of its text and calls, log-probabilities); `choice` is up to date."""
        plan, service = self._plan, self._service
        assert plan is not None, "an answer to a request"
        first = True
        spelt = service.loaded.vocabulary.tokens
        async for index, event in self.events():
            if first and event.tokens:
                service.metrics.first_token_seconds.observe(time.monotonic() - self._began)
                first = False
            service.metrics.tokens.inc(len(event.tokens))
            service.metrics.forced.inc(event.forced)
            choice = self.choices[index]
            parts = choice.feed(event.tokens, event.finished is not None)
            if choice.text.stopped and event.finished is None:
                service.worker.cancel([self._jobs[index]])
                self._left.discard(index)
            if choice.text.stopped or event.finished == "stop":
                full = choice.tokens >= self._jobs[index].options["max_tokens"]
                choice.finished = "stop" if choice.calls is None else choice.calls.ended(full)
            elif event.finished is not None:
                choice.finished = event.finished
            log_probs = []
            if plan.form.with_log_probs:
                log_probs = [
                    plan.form.log_prob(spelt[token], value)
                    for token, value in zip(event.tokens, event.log_probs, strict=True)
                ]
                choice.log_probs += log_probs
            yield choice, parts, log_probs

    @property
    def usage(self) -> dict[str, int]:
        """What was read and written so far."""
        read = 0 if self._plan is None else sum(map(len, self._plan.prompts))
        wrote = sum(choice.tokens for choice in self.choices)
        return {"prompt_tokens": read, "completion_tokens": wrote, "total_tokens": read + wrote}

    def close(self) -> None:
        """End what is still being written, and give its places to others."""
        if self._left:
            self._service.worker.cancel([self._jobs[index] for index in self._left])
            self._left.clear()
        self._service.open -= self._counted
        self._counted = 0
