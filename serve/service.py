"""Requests over one engine: checks before an answer begins, places in the queue, and the end of each answer."""

from __future__ import annotations

import asyncio
import json
import logging
import pickle
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from ..compile.cache.cache import Cache, NotCompiledError
from ..compile.cache.compilers import Compilers, allowance
from ..compile.json_schema.source import text_of
from ..errors import Advice, BudgetError, ConstraintError, NoTableError, ProcessError, SchemaError, Unenforced
from ..first_use import use
from ..lazy.lazy_table import Compiled, LazyTable
from ..runtime.host.matcher import Matcher
from ..runtime.integrations.engine import Engine
from .answers import AnyCalls, ChatForm, Choice, CompletionForm, Form, Part, choice_of, reader_of
from .constraints import Constraint, Function, constraint_of
from .fair_queue import Turns
from .loading import Loaded
from .metrics import Metrics, Now
from .places import Places
from .refusals import Refused, of_constraint, said
from .requests import ChatRequest, CompletionRequest
from .settings import CacheSettings, Limits
from .worker import Event, Job, Worker

_log = logging.getLogger("maskwright.serve")
_CODE_OF_SCHEMAS = "invalid_schema"
_LOOKING = 4  # threads that look constraints up, and work out what a limit of tokens asks of a table
_OWN = "the server itself"
_FREE_TOKENS = 16  # OpenAI's default for a completion without max_tokens, here for one without a constraint


Offered = tuple[Compiled, list[Refused]]
"""A constraint's table, and the errors of tools that it leaves out."""


@dataclass
class Plan:
    """A checked request: its prompts, its constraint and the form of its answer."""

    prompts: list[list[int]]
    each: int  # sequences for each prompt
    constraint: Constraint | None
    form: Form
    stops: list[str]
    calls: Callable[[], AnyCalls | None]  # makes the reader of calls in an answer's text
    options: dict[str, Any]  # of `Engine.add`, without max_tokens and seed
    max_tokens: int | None
    limit_param: str  # the field that gives max_tokens
    seed: int | None


class Service:
    """One model, its engine in a thread of its own, one cache, and the open requests.

    The event loop that called `start` calls all methods, apart from `now` and `table`, which any thread may call.
    """

    def __init__(
        self,
        loaded: Loaded,
        limits: Limits | None = None,
        *,
        cache: CacheSettings | None = None,
    ) -> None:
        self.loaded, self.limits = loaded, Limits() if limits is None else limits
        vocabulary = loaded.vocabulary
        kept = CacheSettings() if cache is None else cache
        self.compilers = Compilers(vocabulary, self.limits.compile_processes, use)
        self.cache = Cache(
            vocabulary, max_bytes=kept.max_bytes, directory=kept.directory, directory_bytes=kept.directory_bytes,
            compilers=self.compilers,
        )  # fmt: skip
        self._known = self.cache.without_compiling()
        self.metrics = Metrics()
        engine = Engine(loaded.model, vocabulary, rows=self.limits.rows)
        self.worker = Worker(engine, self.limits.rows, loaded.stop_ids, self.metrics.step_seconds.observe)
        self._places = Places(self.limits.rows, self.limits.max_queue, "sequences")
        self.compiling = 0
        self.draining = False
        self.warm = False
        self.failed: str | None = None  # the reason why the first answer failed
        self.loop: asyncio.AbstractEventLoop | None = None
        self._warming: asyncio.Task[None] | None = None
        self.turns = Turns(self.limits.compile_processes, max(1, self.limits.max_queue // 2))
        self._pool = ThreadPoolExecutor(self.limits.compile_processes, "maskwright-compile")  # each waits for a process
        self._looking = ThreadPoolExecutor(_LOOKING, "maskwright-look-up")
        self._running: dict[bytes, asyncio.Future[Offered]] = {}  # by constraint
        self.metrics.watch(self)

    # ---------------------------------------------------------------------------------------------- from start to end

    async def start(self) -> None:
        """Start the engine, use each kind of constraint and write a first answer, so that no request waits for that."""
        self.loop = asyncio.get_running_loop()
        self.worker.start(self._tell)
        await asyncio.to_thread(self.compilers.start)
        self._warming = asyncio.create_task(self._warm_up())

    async def _warm_up(self) -> None:
        try:
            await asyncio.get_running_loop().run_in_executor(self._looking, use, self.loaded.vocabulary)
            table = None
            try:
                table, _ = await self.compile(
                    Constraint("schema", {"type": "object"}, "response_format"), 16, "max_tokens"
                )
            except Refused as refused:  # under tight limits; the kernels are loaded all the same
                if refused.status >= 500:
                    raise
            for each in (None, table):
                answer = Answer(self, [self._job([1], each, {"max_tokens": 16 if each is not None else 1}, 0)])
                try:
                    async for _, _ in answer.events():
                        pass
                finally:
                    answer.close()
            self.warm = True
        except Exception as error:
            self.failed = said(error)
            _log.exception("the server could not write a first answer")

    @property
    def open(self) -> int:
        """How many sequences the service has taken on that have not ended."""
        return self._places.open

    def drain(self) -> None:
        """Refuse new requests from now on."""
        self.draining = True

    def cancel_all(self) -> None:
        """Cancel the sequences that are open."""
        self.worker.cancel_all()

    async def stop(self) -> None:
        """Cancel the remaining sequences and end the threads."""
        self.drain()
        if self._warming is not None:
            self._warming.cancel()
        await asyncio.to_thread(self.worker.close, 10.0)
        await asyncio.to_thread(self.compilers.close)
        for pool in (self._pool, self._looking):
            pool.shutdown(wait=False, cancel_futures=True)

    @property
    def fault(self) -> str | None:
        """The reason why the server can write no answers, None if it can."""
        if self.worker.fault is not None:
            return f"the engine has failed: {type(self.worker.fault).__name__}"
        return None if self.failed is None else f"no first answer could be written: {self.failed}"

    @property
    def ready(self) -> bool:
        """Whether the server takes and answers requests."""
        steps = not self.worker.stalled(self.limits.stall_seconds)
        return self.warm and steps and not self.draining and self.fault is None

    def now(self) -> Now:
        """Return the state of the service for `Metrics`."""
        running = self.worker.running
        return Now(
            waiting=max(0, self.open - running), running=running, rows=self.limits.rows,
            compiling=max(self.compiling, len(self._running)),
            ready=self.ready, cache=self.cache.stats,
        )  # fmt: skip

    def _tell(self, batch: list[tuple[Job, Event]]) -> None:
        """Pass events from the engine's thread to the event loop."""
        if batch and self.loop is not None and not self.loop.is_closed():
            self.loop.call_soon_threadsafe(_deliver, batch)

    # ------------------------------------------------------------------------------------------------------ requests

    def take(self, sequences: int, client: str) -> None:
        """Count sequences of a client in; `leave` counts them out. Raises Refused if there are too many."""
        if self.draining:
            raise Refused("the server is shutting down", status=503, code="shutting_down")
        if self.fault is not None:
            raise Refused(self.fault, status=500, code="engine_fault")
        self._places.take(sequences, client)

    def leave(self, sequences: int, client: str) -> None:
        """Count out sequences that `take` has counted in."""
        self._places.leave(sequences, client)

    async def plan(self, asked: ChatRequest | CompletionRequest) -> Plan:
        """Return a checked request. Raises Refused."""
        self._check(asked)
        constraint = constraint_of(asked, self.loaded.calls)
        calls = reader_of(None, self.loaded.vocabulary)
        max_tokens, limit_param = asked.max_tokens, "max_tokens"
        form: Form
        if isinstance(asked, ChatRequest):
            if asked.max_completion_tokens is not None:
                if max_tokens not in (None, asked.max_completion_tokens):
                    raise Refused("max_tokens and max_completion_tokens differ: give one of them", param="max_tokens")
                max_tokens, limit_param = asked.max_completion_tokens, "max_completion_tokens"
            calls = reader_of(constraint, self.loaded.vocabulary)
            form = ChatForm(self.loaded.name, bool(asked.logprobs))
            prompts = [await asyncio.to_thread(self._read_chat, asked)]
        else:
            form = CompletionForm(self.loaded.name, asked.logprobs is not None)
            prompts = await asyncio.to_thread(self._read_prompts, asked)
            if max_tokens is None and constraint is None:
                max_tokens = _FREE_TOKENS
        options = {
            "temperature": 1.0 if asked.temperature is None else asked.temperature, "top_p": asked.top_p,
            "min_p": asked.min_p, "top_k": asked.top_k, "best": asked.best,
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
        if isinstance(asked, ChatRequest) and asked.top_logprobs and not asked.logprobs:
            raise Refused("top_logprobs goes with logprobs: true", param="top_logprobs")
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
        variables = dict(asked.chat_template_kwargs or {})
        if asked.reasoning_effort is not None:
            variables["reasoning_effort"] = asked.reasoning_effort
        return self._checked(self.loaded.chat(messages, tools, variables), "messages")

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
        """Return a prompt's tokens. Raises Refused if the model cannot read them."""
        size = self.loaded.vocabulary.size
        if not tokens:
            raise Refused("it is empty, and this model has no token that begins a text: write something", param=param)
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
        """Return the most tokens of an answer. Raises Refused if prompt and answer exceed the model's positions."""
        longest, context = max(map(len, plan.prompts)), self.loaded.context
        room = self.limits.max_tokens if context is None else min(self.limits.max_tokens, context - longest)
        if plan.max_tokens is None:
            return room
        if plan.max_tokens > room:
            raise Refused(
                f"{longest} tokens of the prompt and {plan.limit_param}={plan.max_tokens} exceed the model's "
                f"{context} positions: lower {plan.limit_param}",
                param=plan.limit_param, code="context_length_exceeded",
            )  # fmt: skip
        return plan.max_tokens

    async def compile(
        self, constraint: Constraint, max_tokens: int, limit_param: str, *, client: str = _OWN, sequences: int = 1
    ) -> Offered:
        """Return a constraint's table, tried or compiled in another process if the cache has none. Raises Refused.

        Beside it are the errors of tools that cannot be enforced: the table has no call of these.
        client: who takes a turn for the process. sequences: how many of its wait with it.
        """
        began = time.monotonic()
        self.compiling += 1
        loop = asyncio.get_running_loop()
        try:
            try:
                found = await loop.run_in_executor(self._looking, self.offered, constraint, self._known)
            except NotCompiledError:
                found = await self._compile_in_turn(constraint, client, sequences)
            await loop.run_in_executor(self._looking, self._check_use, found[0], constraint, max_tokens, limit_param)
            return found
        finally:
            self.compiling -= 1
            self.metrics.compile_seconds.observe(time.monotonic() - began)

    async def _compile_in_turn(self, constraint: Constraint, client: str, sequences: int) -> Offered:
        """Return what `offered` does, once it is the client's turn; what another request has begun is done once.

        A request that is cancelled leaves the queue. What it has begun ends within its limits, and keeps its place.
        """
        name = pickle.dumps(replace(constraint, source=text_of(constraint.source)))
        running = self._running.get(name)
        if running is None:
            await self.turns.take(client, sequences)
            running = self._running.get(name)  # begun meanwhile
            if running is not None:
                self.turns.give(client)
        if running is None:
            running = asyncio.get_running_loop().run_in_executor(self._pool, self.offered, constraint)
            self._running[name] = running

            def ended(future: asyncio.Future[Offered]) -> None:
                del self._running[name]
                self.turns.give(client)
                if not future.cancelled():
                    future.exception()  # which nobody may wait for any more

            running.add_done_callback(ended)
        return await asyncio.shield(running)

    def offered(self, constraint: Constraint, cache: Cache | None = None) -> Offered:
        """Return a constraint's table without the tools that cannot be enforced, and the error of each of these.

        All that is compiled for it shares the seconds of one budget. cache: a view of the cache to ask instead.
        Raises Refused as `table` does, if no tool is left, if a tool that cannot be enforced is strict, and for a
        malformed schema.
        """
        cache = self.cache.sharing(allowance(self.limits.budget)) if cache is None else cache
        try:
            return self.table(constraint, cache), []
        except Refused as refused:
            if refused.code != _CODE_OF_SCHEMAS:
                raise
            faults = self._faults(constraint, cache)
            wrong = [function.at for function, _ in faults]
            left = [function for function in constraint.source if function.at not in wrong] if faults else []
            if not left or not all(map(_may_be_left_out, faults)):
                raise
            table = self.table(replace(constraint, source=left), cache)
            return table, [of_constraint(error, function.param, function=function.name) for function, error in faults]

    def table(self, constraint: Constraint, cache: Cache | None = None) -> Compiled:
        """Return a constraint's table from the cache, lazy where it can be read as it is. Raises Refused.

        cache: a view of the cache to ask instead.
        """
        cache = self.cache if cache is None else cache
        try:
            size, most = constraint.size(), self.limits.max_schema_bytes
            if size > most:
                raise Refused(
                    f"it has {size:,} bytes, and this server reads {most:,} (--max-schema-bytes): make it smaller",
                    param=constraint.param, code="constraint_too_large",
                )  # fmt: skip
            source = self._with_allowed(constraint).to_compile(self.limits.whitespace)
            return cache.compile(source, self.limits.budget)
        except SchemaError as error:
            for function, own in sorted(self._faults(constraint, cache), key=_may_be_left_out):
                raise of_constraint(own, function.param, function=function.name) from None
            if constraint.alone is not None:
                self.table(replace(constraint.alone, allow=constraint.allow, any_order=constraint.any_order), cache)
            raise of_constraint(error, constraint.param, function=constraint.tool) from None
        except ProcessError as error:
            _log.exception("a constraint ended the process that compiled it")
            raise Refused(said(error), status=500, param=constraint.param, code="compiler_fault") from None
        except NoTableError as error:
            raise of_constraint(error, constraint.param, "constraint_without_table") from None
        except (ConstraintError, ValueError) as error:
            raise of_constraint(error, constraint.param, function=constraint.tool) from None

    def table_in_turn(self, constraint: Constraint, client: str) -> Compiled:
        """Return a constraint's table, made once it is the client's turn. Raises Refused.

        Any thread but the event loop's may call it.
        """
        assert self.loop is not None, "the service has started"
        try:
            return self.table(constraint, self._known)
        except NotCompiledError:
            turn = self._compile_in_turn(constraint, client, 1)
        return asyncio.run_coroutine_threadsafe(turn, self.loop).result()[0]

    def _faults(self, constraint: Constraint, cache: Cache) -> list[tuple[Function, ConstraintError]]:
        return self._with_allowed(constraint).faults(cache, self.limits.budget)

    def _with_allowed(self, constraint: Constraint) -> Constraint:
        """Return a constraint that allows what its request or else the server's operator allows."""
        return constraint if constraint.allow else replace(constraint, allow=self.limits.allow)

    def _check_use(self, table: Compiled, constraint: Constraint, max_tokens: int, limit_param: str) -> None:
        """Raise Refused if an answer of so many tokens has no room for a text of the table, as far as that is known."""
        if not _is_kept_within(table):
            return
        try:  # the engine does the same; this thread finds what it needs to know for that
            Matcher(table, self.loaded.vocabulary, max_tokens=max_tokens, may_complete=False)
        except BudgetError as error:  # of the half second that reading may take at a time, which no option changes
            smaller = [Advice("Make the constraint smaller")]
            late = BudgetError(
                "it takes too long to find how a text ends", limit=error.limit, allowed=error.allowed,
                reached=error.reached, remedies=smaller,
            )  # fmt: skip
            raise of_constraint(late, constraint.param) from None
        except ConstraintError as error:
            raise of_constraint(error, constraint.param, "constraint_without_table") from None
        except ValueError as error:
            raise Refused(said(error), param=limit_param, code="max_tokens_too_small") from None

    async def begin(self, plan: Plan, client: str = _OWN) -> Answer:
        """Begin to write the answer to a client's request, and return it. The caller closes it. Raises Refused."""
        count = plan.each * len(plan.prompts)
        self.take(count, client)
        try:
            max_tokens = self._lengths(plan)
            table, left_out = None, list[Refused]()
            if plan.constraint is not None:
                table, left_out = await self.compile(
                    plan.constraint, max_tokens, plan.limit_param, client=client, sequences=count
                )
        except BaseException:
            self.leave(count, client)
            raise
        jobs: list[Job] = []
        for prompt in plan.prompts:
            for choice in range(plan.each):
                seed = None if plan.seed is None else (plan.seed + choice) % (1 << 64)
                options = {**plan.options, "max_tokens": max_tokens, "seed": seed}
                options["complete"] = table is not None and _is_kept_within(table)
                jobs.append(self._job(prompt, table, options, len(jobs), client))
        self.metrics.prompt_tokens.inc(sum(map(len, plan.prompts)))
        unenforced = [] if table is None or plan.constraint is None else plan.constraint.named(table.unenforced)
        return Answer(self, jobs, plan, counted=count, client=client, left_out=left_out, unenforced=unenforced)

    def _job(
        self, prompt: list[int], table: Compiled | None, options: dict[str, Any], index: int, client: str = _OWN
    ) -> Job:
        return Job(prompt, table, options, None, index, client)


def _is_kept_within(table: Compiled) -> bool:
    """Return whether texts can be kept to a number of tokens; others may be cut."""
    return not isinstance(table, LazyTable) or table.has_bounds


def _may_be_left_out(fault: tuple[Function, ConstraintError]) -> bool:
    """Whether a request goes on without a function: not if it is strict, nor if its schema is malformed."""
    function, error = fault
    return not function.strict and isinstance(error, SchemaError) and error.keyword is not None


def _check_text(text: str, param: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise Refused("it has a lone surrogate, which no UTF-8 spells: remove it", param=param) from None


def _deliver(batch: Iterable[tuple[Job, Event]]) -> None:
    for job, event in batch:
        if job.listener is not None:
            job.listener.put_nowait((job.index, event))


class Answer:
    """The sequences of one request while the engine writes them."""

    def __init__(
        self,
        service: Service,
        jobs: list[Job],
        plan: Plan | None = None,
        counted: int = 0,
        client: str = _OWN,
        left_out: Sequence[Refused] = (),
        unenforced: Sequence[Unenforced] = (),
    ) -> None:
        self._service, self._jobs, self._counted, self._client = service, jobs, counted, client
        self.unenforced = unenforced  # keywords of the schema, as `allow` let them
        self.left_out = left_out  # tools that the model cannot call, as they cannot be enforced
        self._events: asyncio.Queue[tuple[int, Event]] = asyncio.Queue()
        self._began = time.monotonic()
        self._left = set(range(len(jobs)))
        self._plan = plan
        self.choices: list[Choice] = []
        if plan is not None:
            vocabulary = service.loaded.vocabulary
            self.choices = [choice_of(job.index, vocabulary, plan.stops, plan.calls()) for job in jobs]
        for job in jobs:
            job.listener = self._events
        if not service.worker.submit(jobs):
            self.close()
            raise Refused(service.fault or "the server is shutting down", status=503, code="shutting_down")

    async def events(self) -> AsyncIterator[tuple[int, Event]]:
        """Yield (sequence, event) until all sequences have ended. Raises Refused if one ends by a fault."""
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
        """Yield (choice, more of its text and calls, log-probabilities). `choice` already includes them."""
        plan, service = self._plan, self._service
        assert plan is not None, "only warming up has no plan, and it reads events"
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
                tops = event.tops or [[] for _ in event.tokens]
                log_probs = [
                    plan.form.log_prob(spelt[token], value, [(spelt[other], each) for other, each in top])
                    for token, value, top in zip(event.tokens, event.log_probs, tops, strict=True)
                ]
                choice.log_probs += log_probs
            yield choice, parts, log_probs

    @property
    def usage(self) -> dict[str, int]:
        """The number of tokens read and written so far."""
        read = 0 if self._plan is None else sum(map(len, self._plan.prompts))
        wrote = sum(choice.tokens for choice in self.choices)
        return {"prompt_tokens": read, "completion_tokens": wrote, "total_tokens": read + wrote}

    def close(self) -> None:
        """Cancel unfinished sequences, and free their places."""
        if self._left:
            self._service.worker.cancel([self._jobs[index] for index in self._left])
            self._left.clear()
        self._service.leave(self._counted, self._client)
        self._counted = 0
