"""`ItemService`: from a request to its items: what is asked of the model, and what is told of what it found."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...compile.catalogue import Catalogue
from ...compile.columns import wrong_value
from ...compile.found_items import best_items
from ...errors import ConstraintError
from ..places import Places
from ..refusals import Refused, of_constraint, said
from ..settings import ItemSettings, Limits
from .engines import EngineSearch
from .metrics import ItemMetrics, ItemsNow
from .models import HISTORY, ItemModel
from .requests import MOST_ID, Item, Line, RetrieveRequest, Value
from .searcher import Search, Searched, Searcher
from .shadow import Shadow
from .shop import Shop

_log = logging.getLogger("maskwright.serve")
_MOST_TOKENS = 1 << 14  # of a prompt and a semantic ID, where a model does not say
_SERVER = "the server itself"  # the client of searches that nobody asked for
_THREADS = 4  # that read prompts and updates, and write answers


@dataclass
class Asked:
    """A checked request: what is searched, and what is told beside the items."""

    request: RetrieveRequest
    model: ItemModel
    shop: Shop
    prompt: list[int]
    deny: list[Any]
    notes: list[dict[str, Any]]


class ItemService:
    """Models and catalogues by name, the thread that searches, and the open requests.

    The event loop that called `start` calls the coroutines. Raises ConstraintError if a model cannot write a catalogue.
    """

    def __init__(
        self, models: Sequence[ItemModel], shops: Sequence[Shop], settings: ItemSettings, limits: Limits | None = None
    ) -> None:
        self.settings, self.limits = settings, Limits() if limits is None else limits
        self.models, self.shops = _by_name(models, "model"), _by_name(shops, "catalogue")
        for model in models:
            for shop in shops:
                model.check(shop.name, shop.newest())
        for name, error in shops[0].unusable.items() if shops else ():
            if not any(name in shop.filters for shop in shops):
                raise ConstraintError(f"the filter {name!r} is of no catalogue: {error}")
        if settings.prompt.count(HISTORY) != 1:
            raise ConstraintError(f"the prompt of the server must have {HISTORY} once, not {settings.prompt!r}")
        self.metrics = ItemMetrics()
        self.searcher = Searcher(settings.beam_rows, self.metrics.searched)
        at_once = max(1, min(64, settings.beam_rows // settings.most_beams))
        self.engines = {  # each with threads of its own, so that none waits for another or for the models here
            each.name: Searcher(settings.beam_rows, self.metrics.searched, at_once)
            for each in models if isinstance(each.search, EngineSearch)
        }  # fmt: skip
        self._searchers = [self.searcher, *self.engines.values()]
        self._places = Places(1, self.limits.max_queue, "requests")
        self._pool = ThreadPoolExecutor(_THREADS, "maskwright-items")
        self.draining = self.warm = False
        self.failed: str | None = None  # the reason why the first search failed
        self._warming: asyncio.Task[None] | None = None
        self.metrics.watch(self)
        self.shadow: Shadow | None = None
        if settings.shadow is not None:
            name, share = settings.shadow
            if name not in self.models:
                raise ConstraintError(f"the shadow {name!r} is no model here; there are: {', '.join(self.models)}")
            searcher = self._searcher(self.models[name])
            self.shadow = Shadow(
                name, share, lambda asked: self._found(asked, _SERVER, ""), lambda: searcher.waiting > 0, self.metrics
            )

    # ---------------------------------------------------------------------------------------------- from start to end

    async def start(self) -> None:
        """Start the threads, and search each catalogue once with each model, so that no request waits for that."""
        for searcher in self._searchers:
            searcher.start()
        self._warming = asyncio.create_task(self._warm_up())

    async def _warm_up(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            for model in self.models.values():
                for shop in self.shops.values():
                    first = [0] * min(4, model.context or 4)
                    until = time.monotonic() + self.settings.deadline if model.name in self.engines else math.inf
                    search = Search(model, shop, first, 2, (), (), _SERVER, loop, until)
                    self._searcher(model).submit(search)
                    try:
                        await search.done
                    except Refused as refused:
                        if model.name not in self.engines:
                            raise
                        _log.warning("the model %r finds no items of %r: %s", model.name, shop.name, refused)
            self.warm = True
        except Exception as error:
            self.failed = said(error)

    def drain(self) -> None:
        """Refuse new requests from now on."""
        self.draining = True

    def cancel_all(self) -> None:
        """End the requests that are still open."""
        for searcher in self._searchers:
            searcher.cancel_all()

    async def stop(self) -> None:
        """End the threads. Updates that were begun are in the log."""
        self.drain()
        if self._warming is not None:
            self._warming.cancel()
        if self.shadow is not None:
            self.shadow.stop()
        for searcher in self._searchers:
            await asyncio.to_thread(searcher.close, 10.0)
        self._pool.shutdown(wait=False, cancel_futures=True)

    @property
    def open(self) -> int:
        """How many requests are open."""
        return self._places.open

    @property
    def fault(self) -> str | None:
        """The reason why the server can find no items, None if it can."""
        fault = next((each.fault for each in self._searchers if each.fault is not None), None)
        if fault is not None:
            return f"the search has failed: {type(fault).__name__}"
        return None if self.failed is None else f"the first search failed: {self.failed}"

    @property
    def ready(self) -> bool:
        """Whether the server takes and answers requests."""
        stalled = self.searcher.stalled(self.limits.stall_seconds)
        return self.warm and not stalled and not self.draining and self.fault is None

    def now(self) -> ItemsNow:
        """Return the state of the service for `ItemMetrics`."""
        waiting, running = (sum(getattr(each, name) for each in self._searchers) for name in ("waiting", "running"))
        return ItemsNow(waiting, running, self.ready, [shop.about() for shop in self.shops.values()])

    # ------------------------------------------------------------------------------------------------------- searches

    async def retrieve(self, request: RetrieveRequest, client: str, name: str) -> dict[str, Any]:
        """Return the answer to a request. name: the answer's id. Raises Refused."""
        self._check_open()
        self._places.take(1, client)
        try:
            answer = await self._found(request, client, name)
        finally:
            self._places.leave(1, client)
        if self.shadow is not None:
            self.shadow.follow(request, answer)
        return answer

    async def _found(self, request: RetrieveRequest, client: str, name: str) -> dict[str, Any]:
        seconds = self.settings.deadline if request.timeout is None else request.timeout
        until = time.monotonic() + seconds
        loop = asyncio.get_running_loop()
        asked = await loop.run_in_executor(self._pool, self._asked, request)
        search = Search(
            asked.model, asked.shop, asked.prompt, request.beams, request.filters, asked.deny, client, loop, until
        )
        self._searcher(asked.model).submit(search)
        try:
            searched = await asyncio.wait_for(search.done, until - time.monotonic())
        except TimeoutError:
            raise Refused(
                f"the search took longer than {seconds:g} seconds and was given up", status=504, param="timeout",
                code="deadline_exceeded",
            ) from None  # fmt: skip
        finally:
            search.given_up = True
        return await loop.run_in_executor(self._pool, _answer, asked, searched, name)

    def _searcher(self, model: ItemModel) -> Searcher:
        return self.engines.get(model.name, self.searcher)

    def _check_open(self) -> None:
        if self.draining:
            raise Refused("the server is shutting down", status=503, code="shutting_down")
        if self.fault is not None:
            raise Refused(self.fault, status=500, code="engine_fault")

    def _asked(self, request: RetrieveRequest) -> Asked:
        """Return a checked request. Raises Refused."""
        model = _one(self.models, request.model, "model")
        shop = self.shop(request.catalogue)
        most = min(self.settings.most_beams, self.settings.beam_rows)
        if request.beams > most:
            raise Refused(f"beams is {request.beams}, and this server searches with {most} at most", param="beams")
        version = shop.newest()
        for name in request.columns if isinstance(request.columns, list) else ():
            if name not in version.columns:
                there = ", ".join(version.columns) or "none"
                raise Refused(
                    f"the catalogue {shop.name!r} has no column {name!r}; it has: {there}", param="columns",
                    code="no_such_column",
                )  # fmt: skip
        for text in request.filters:
            try:
                version.check_expression(shop.expression(text))
            except ConstraintError as error:
                raise of_constraint(error, "filter", "invalid_filter") from None
        notes: list[dict[str, Any]] = []
        history = list(request.history or ())
        _check_ids(version, history, "history")
        _check_ids(version, request.deny, "deny")
        prompt = self._prompt(request, model, version, history, notes)
        missing = [
            each for each, rows in zip(request.deny, version.rows_of(request.deny), strict=True) if not rows.size
        ]
        if missing:
            notes.append(_note("unknown_deny", "some denied items are not in the catalogue", missing))
        deny = [*request.deny, *(history if request.exclude_history else ())]
        return Asked(request, model, shop, prompt, deny, notes)

    def _prompt(
        self, request: RetrieveRequest, model: ItemModel, version: Catalogue, history: list[Any],
        notes: list[dict[str, Any]],
    ) -> list[int]:  # fmt: skip
        """Return the tokens that the model reads; `notes` receives what was left out. Raises Refused."""
        if isinstance(request.prompt, list):
            if history and not request.exclude_history:
                raise Refused("a prompt of tokens holds the history already: leave one out", param="history")
            return self._checked(request.prompt, model, version, False)
        text = self.settings.prompt if request.prompt is None else request.prompt
        if request.prompt is not None and history and text.count(HISTORY) != 1 and not request.exclude_history:
            raise Refused(f"the prompt must have {HISTORY} once, where the history stands", param="prompt")
        if not history and HISTORY in text and request.history is None:
            raise Refused(f"the prompt has {HISTORY}: send a history", param="history")
        items = _tokens_of_history(version, history, notes)
        try:
            length, between = version.code_tokens.length, len(model.between)
            context = _MOST_TOKENS if model.context is None else model.context
            room = max(0, (context - len(model.tokens(text, ())) - length + between) // (length + between))
            if len(items) > room:
                items = items[len(items) - room :]
                notes.append(_note("history_cut", f"the model has room for the latest {room} items"))
            return self._checked(model.tokens(text, items), model, version, request.history is not None)
        except ConstraintError as error:
            raise of_constraint(error, "prompt", "invalid_prompt") from None

    @staticmethod
    def _checked(tokens: list[int], model: ItemModel, version: Catalogue, has_history: bool) -> list[int]:
        """Return a prompt's tokens. Raises Refused if the model cannot read them."""
        if not tokens:
            raise Refused(
                "nothing is left for the model to read: "
                + ("it knows no item of the history" if has_history else "the prompt is empty"),
                param="history" if has_history else "prompt", code="empty_prompt",
            )  # fmt: skip
        width = 1 << 31 if model.width is None else model.width  # an engine refuses others by itself
        wrong = next((token for token in tokens if not 0 <= token < width), None)
        if wrong is not None:
            raise Refused(f"token {wrong} is not in 0 .. {width - 1}", param="prompt")
        context = _MOST_TOKENS if model.context is None else model.context
        if len(tokens) + version.code_tokens.length > context:
            raise Refused(
                f"the prompt has {len(tokens)} tokens, and there is room for {context} with the answer",
                param="prompt", code="context_length_exceeded",
            )  # fmt: skip
        return tokens

    # ----------------------------------------------------------------------------------------------------- catalogues

    def shop(self, name: str | None) -> Shop:
        """Return a catalogue by its name; None for the only one. Raises Refused."""
        found: Shop = _one(self.shops, name, "catalogue")
        return found

    def item(self, shop: Shop, name: str) -> dict[str, Any]:
        """Return one item as it is now. Raises Refused."""
        version = shop.newest()
        each = id_of(name, strings=shop.ids_are_strings)
        rows = version.rows_of([each])[0]
        if not rows.size:
            raise _no_item(shop, each)
        sids = version.code_tokens.codes(version.tokens_of(rows)).tolist()
        columns = {column: held.at(rows[:1])[0] for column, held in version.columns.items()}
        return {"id": each, "sids": sids, "columns": columns, "epoch": version.epoch}

    async def put(self, shop: Shop, name: str, item: Item) -> dict[str, Any]:
        """Replace or add an item. Raises Refused."""
        return await self._change(shop, lambda: self._groups(shop, [(1, _line(shop, name, item))]))

    async def delete(self, shop: Shop, name: str) -> dict[str, Any]:
        """Remove an item. Raises Refused."""

        def groups() -> list[Group]:
            version = shop.newest()
            each = id_of(name, strings=shop.ids_are_strings)
            if not version.rows_of([each])[0].size:
                raise _no_item(shop, each)
            return self._groups(shop, [(1, Line(id=each, delete=True))])

        return await self._change(shop, groups)

    async def update(self, shop: Shop, lines: Sequence[Numbered]) -> dict[str, Any]:
        """Make updates in their order, and return once they are in the log. Raises Refused.

        Lines that follow each other and do the same are one update. If a line is wrong in itself, nothing is done; if
        its item is not there, the lines before its update are.
        """
        return await self._change(shop, lambda: self._groups(shop, lines))

    async def _change(self, shop: Shop, groups: Callable[[], list[Group]]) -> dict[str, Any]:
        """Make updates, each after the one before; no thread of those that searches need waits for the log."""
        self._check_open()
        shop.check_changes()
        told = {"epoch": 0, "put": 0, "deleted": 0}
        try:
            for group in await asyncio.get_running_loop().run_in_executor(self._pool, groups):
                await self._make(shop, group, told)
        finally:
            self.metrics.updated(told["put"], told["deleted"])
        return told

    async def _make(self, shop: Shop, group: Group, told: dict[str, Any]) -> None:
        """Make one update, and count it in `told`. Raises Refused."""
        done = told["put"] + told["deleted"]
        more = {"acknowledged": done, **({"epoch": told["epoch"]} if done else {})}
        doing = shop.delete(group.ids) if group.deletes else shop.put(group.ids, group.sids, group.columns)
        try:
            told["epoch"] = await asyncio.wrap_future(doing)
        except ConstraintError as error:
            line = group.numbers[0]
            if group.sids is None:  # a line is right in itself, so its item is not there
                found = await asyncio.get_running_loop().run_in_executor(
                    self._pool, lambda: shop.newest().rows_of(group.ids)
                )
                line = next((at for at, rows in zip(group.numbers, found, strict=True) if not rows.size), line)
            param = "id" if error.argument in (None, "items") else error.argument  # as Python's `delete` calls it
            why = said(error).removeprefix(f"{error.argument} ")
            raise Refused(why, param=param, code="invalid_item", line=line, **more) from None
        except OSError as error:
            raise Refused(
                f"the log of the catalogue {shop.name!r} cannot be written: {error.strerror}: this update "
                "was not made",
                status=500, code="log_fault", line=group.numbers[0], **more,
            ) from None  # fmt: skip
        told["deleted" if group.deletes else "put"] += len(group.ids)

    @staticmethod
    def _groups(shop: Shop, lines: Sequence[Numbered]) -> list[Group]:
        """Return the updates that lines are. Raises Refused for one that is wrong in itself."""
        version = shop.newest()
        for at, line in lines:
            more = {"line": at, "acknowledged": 0}
            _check_ids(version, [line.id], "id", code="invalid_item", **more)
            if line.sid is not None:
                _check_sid(version, line.sid, **more)
            for name, value in line.columns.items():
                column = version.columns.get(name)
                if column is None:
                    there = ", ".join(version.columns) or "none"
                    raise Refused(
                        f"the catalogue {shop.name!r} has no column {name!r:.100}; it has: {there}", param="columns",
                        code="no_such_column", **more,
                    )  # fmt: skip
                if value is not None and (why := wrong_value(column.kind, value)):
                    raise Refused(f"{name} has {value!r:.100}: {why}", param="columns", code="invalid_item", **more)
        return [Group.of(each) for each in _alike(lines)]


Numbered = tuple[int, Line]
"""A line and its number in the body."""


class Group(NamedTuple):
    """Lines that are one update."""

    numbers: list[int]
    deletes: bool
    ids: list[int | str]
    sids: list[list[int]] | None
    columns: dict[str, list[Value]]

    @classmethod
    def of(cls, numbered: Sequence[Numbered]) -> Group:
        """Return the update of lines that are alike."""
        numbers, lines = [at for at, _ in numbered], [line for _, line in numbered]
        first = lines[0]
        sids = None if first.sid is None else [line.sid or [] for line in lines]
        columns = {name: [line.columns[name] for line in lines] for name in first.columns}
        return cls(numbers, first.delete, [line.id for line in lines], sids, columns)


def _alike(lines: Sequence[Numbered]) -> list[list[Numbered]]:
    """Return lines in groups that are one update each: of one kind, with the same columns, and no id twice."""
    groups: list[list[Numbered]] = []
    seen: set[int | str] = set()
    before: tuple[Any, ...] = ()
    for at, line in lines:
        kind = line.delete, line.sid is None, tuple(line.columns)
        if groups and kind == before and line.id not in seen:
            groups[-1].append((at, line))
        else:
            groups.append([(at, line)])
            seen.clear()
        before = kind
        seen.add(line.id)
    return groups


def _tokens_of_history(version: Catalogue, history: list[Any], notes: list[dict[str, Any]]) -> list[list[int]]:
    """Return the tokens of the items of a history, of removed ones too; `notes` receives what there is to say."""
    found = version.rows_of(history, removed=True)
    unknown = [each for each, rows in zip(history, found, strict=True) if not rows.size]
    if unknown:
        notes.append(_note("unknown_history", "some items of the history were never in the catalogue", unknown))
    there = version.rows_of(history)
    gone = [e for e, old, new in zip(history, found, there, strict=True) if old.size and not new.size]
    if gone:
        notes.append(_note("removed_history", "some items of the history were removed; the model reads them", gone))
    rows = [int(new[0]) if new.size else int(old[-1]) for old, new in zip(found, there, strict=True) if old.size]
    tokens: list[list[int]] = version.tokens_of(np.array(rows, np.int64)).tolist()
    return tokens


def _answer(asked: Asked, searched: Searched, name: str) -> dict[str, Any]:
    """Return the answer to a request whose search has ended."""
    request, version, notes = asked.request, searched.version, asked.notes
    rows, scores, below = _ranked(searched, request.limit, request.min_score)
    if searched.found is None:
        notes.append(_note("filter_keeps_none", "no item passes the filter, so that none was searched"))
    elif below:
        notes.append(_note("below_min_score", f"{below} items were found whose scores are below min_score"))
    if searched.changed:
        notes.append(
            _note("changed_items", f"{searched.changed} items of the engine are left out: its catalogue is another "
                  "version, or its filter another")
        )  # fmt: skip
    if searched.found is not None and len(rows) + below < request.limit:
        left = "" if searched.keep is None else " that pass the filter"
        full = len(searched.found.states) + searched.changed >= request.beams  # else no beam was dropped at any step
        more = ": more beams may find more" if full else ", and there are no others"
        notes.append(_note("fewer_items", f"the search found {len(rows) + below} items{left}{more}"))
    items = []
    if len(rows):
        sids = version.code_tokens.codes(version.tokens_of(rows)).tolist()
        for at, each in enumerate(version.ids.at(rows)):
            items.append({"id": each, "score": scores[at], "sid": sids[at]})
        wanted = list(version.columns) if request.columns == "all" else request.columns
        if wanted:
            values = {column: version.columns[column].at(rows) for column in wanted}
            for at, item in enumerate(items):
                item["columns"] = {column: held[at] for column, held in values.items()}
    return {
        "id": name, "object": "retrieval", "model": asked.model.name, "catalogue": asked.shop.name,
        "epoch": version.epoch, "items": items, "notes": notes,
        "usage": {"prompt_tokens": len(asked.prompt), "beams": request.beams},
    }  # fmt: skip


def _ranked(searched: Searched, limit: int, least: float | None) -> tuple[NDArray[np.int64], list[float], int]:
    """Return the rows of the best items with their scores, each id once, and how many more scored below the least."""
    version, found = searched.version, searched.found
    if found is None:
        return np.empty(0, np.int64), [], 0
    table = version.table if searched.keep is None else searched.keep
    valid = np.ones(len(found.states), np.bool_)
    best = [*best_items(table, version.ids, found.states, found.scores, valid, limit).values()]
    kept = [(row, score) for row, score in best if least is None or score >= least]
    return np.array([row for row, _ in kept], np.int64), [score for _, score in kept], len(best) - len(kept)


def _by_name(given: Sequence[Any], kind: str) -> dict[str, Any]:
    found = {each.name: each for each in given}
    if len(found) < len(given):
        raise ConstraintError(f"two of one name: give each {kind} a name of its own, as NAME=PATH")
    return found


def _one(found: dict[str, Any], name: str | None, kind: str) -> Any:
    """Return what goes by a name; None for the only one. Raises Refused."""
    if name is None and len(found) == 1:
        return next(iter(found.values()))
    if name is None:
        raise Refused(f"there are several, {', '.join(found)}: name one", param=kind)
    if name not in found:
        raise Refused(
            f"there is no {kind} {name!r} here; there are: {', '.join(found)}", status=404, param=kind,
            code={"model": "model_not_found", "catalogue": "catalogue_not_found"}[kind],
        )  # fmt: skip
    return found[name]


def _check_ids(version: Catalogue, ids: Sequence[Any], param: str, **more: Any) -> None:
    """Raise Refused for an id of the other kind, and for text that no UTF-8 spells."""
    kind = int if version.ids.numbers is not None else str
    for each in ids:
        if not isinstance(each, kind):
            named = "integers" if kind is int else "strings"
            raise Refused(f"{param} has {each!r}, and ids of this catalogue are {named}", param=param, **more)
        if isinstance(each, str):
            try:
                each.encode()
            except UnicodeEncodeError:
                why = f"{param} has a lone surrogate, which no UTF-8 spells: remove it"
                raise Refused(why, param=param, **more) from None


def _check_sid(version: Catalogue, sid: Sequence[int], **more: Any) -> None:
    """Raise Refused for codes that are no semantic ID of a catalogue."""
    if len(sid) != version.code_tokens.length:
        why = f"sid has {len(sid)} codes, and semantic IDs of this catalogue have {version.code_tokens.length}"
        raise Refused(why, param="sid", code="invalid_item", **more)
    if (wrong := next((code for code in sid if not 0 <= code < 1 << 31), None)) is not None:
        raise Refused(f"sid has {wrong!r:.100}, which is no code", param="sid", code="invalid_item", **more)
    try:
        version.code_tokens.tokens(np.array(sid), None, version.table.vocab_size)
    except ConstraintError as error:
        raise Refused(said(error), param="sid", code="invalid_item", **more) from None


def _line(shop: Shop, name: str, item: Item) -> Line:
    """Return the line that puts an item with the id that a path names. Raises Refused."""
    if len(name) > MOST_ID:
        raise Refused(f"the id has {len(name):,} characters, and an id has {MOST_ID:,} at most", param="id")
    return Line(id=id_of(name, strings=shop.ids_are_strings), sid=item.sid, columns=item.columns)


def id_of(name: str, *, strings: bool) -> int | str:
    """Return the id that a path names. strings: whether ids are strings, not integers. Raises Refused."""
    if strings:
        return name
    try:
        found = int(name)
    except ValueError:
        found = 1 << 63
    if not -(1 << 63) <= found < 1 << 63 or str(found) != name:
        raise Refused(f"{name[:100]!r} is no id of this catalogue, whose ids are integers", status=404, param="id")
    return found


def _no_item(shop: Shop, each: object) -> Refused:
    return Refused(
        f"there is no item {each!r} in the catalogue {shop.name!r}", status=404, param="id", code="item_not_found"
    )


def _note(code: str, message: str, ids: Sequence[Any] | None = None) -> dict[str, Any]:
    return {"code": code, "message": message, **({} if ids is None else {"ids": list(ids)})}
