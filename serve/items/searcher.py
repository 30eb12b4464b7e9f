"""The thread that searches: requests that wait become batches, and each client gets its turn."""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ...compile.catalogue import Catalogue
from ...errors import MaskwrightError
from ...runtime.integrations.item_search import Found, Placed, Query
from ...table.snapshot import LiveFilter
from ..refusals import Refused, of_constraint, said
from .engines import EngineSearch, GivenUpError, sglang_fields
from .models import ItemModel
from .shop import Shop

_log = logging.getLogger("maskwright.serve")


class Searched(NamedTuple):
    """What a search found, and where: the version of the catalogue, and the filter under which it ran."""

    version: Catalogue
    keep: LiveFilter | None
    found: Found | None  # None where the filter keeps no item, so that nothing was searched
    changed: int = 0  # items of an engine's answer that this version does not have, or that do not pass


@dataclass(eq=False)
class Search:
    """One request that waits for its search, or whose search runs."""

    model: ItemModel
    shop: Shop
    prompt: Sequence[int]
    beams: int
    filters: Sequence[str]
    deny: Sequence[Any]
    client: str
    loop: asyncio.AbstractEventLoop
    until: float = math.inf  # the deadline, by `time.monotonic`
    done: asyncio.Future[Searched] = field(init=False)
    given_up: bool = False  # nobody waits for it any more

    def __post_init__(self) -> None:
        self.done = self.loop.create_future()

    def tell(self, result: Searched | Exception) -> None:
        """Give the result to whoever waits for it."""

        def settle() -> None:
            if self.done.done():
                return
            if isinstance(result, Exception):
                self.done.set_exception(result)
            else:
                self.done.set_result(result)

        if not self.loop.is_closed():
            self.loop.call_soon_threadsafe(settle)


class Searcher:
    """Searches for what was asked, in batches.

    A batch is of one model and one catalogue, and its beams fill `beam_rows` at most, but for one request alone. It
    takes a request of each client in turn. seen(seconds, requests, beams) is told of each batch. threads: how many
    batches at once, more than one where an engine searches; a batch is then one request.
    """

    def __init__(self, beam_rows: int, seen: Callable[[float, int, int], None], threads: int = 1) -> None:
        self._beam_rows, self._seen = beam_rows, seen
        self.fault: BaseException | None = None
        self.running = 0  # requests of the batch that runs
        self.since: float | None = None  # when it began
        self._waiting: OrderedDict[str, deque[Search]] = OrderedDict()  # by client, the one next in turn first
        self._wake = threading.Condition()
        self._closing = False
        self._placed: dict[tuple[int, int], Placed] = {}
        self._threads = [
            threading.Thread(target=self._run, name="maskwright-search", daemon=True) for _ in range(threads)
        ]

    def start(self) -> None:
        """Start the threads."""
        for thread in self._threads:
            thread.start()

    def submit(self, search: Search) -> None:
        """Let a request wait for its search. Raises Refused if nothing is searched any more."""
        with self._wake:
            if self.fault is not None:
                raise Refused("the search has failed: restart the server", status=500, code="engine_fault")
            if self._closing:
                raise Refused("the server is shutting down", status=503, code="shutting_down")
            self._waiting.setdefault(search.client, deque()).append(search)
            self._wake.notify()

    @property
    def waiting(self) -> int:
        """How many requests wait."""
        with self._wake:
            return sum(map(len, self._waiting.values()))

    def cancel_all(self) -> None:
        """Give up all requests."""
        with self._wake:
            for search in [one for queue in self._waiting.values() for one in queue]:
                search.given_up = True
                search.tell(Refused("the server is shutting down", status=503, code="shutting_down"))
            self._waiting.clear()

    def close(self, seconds: float) -> None:
        """Give up all requests and end the threads, waiting at most so many seconds for them."""
        self.cancel_all()
        with self._wake:
            self._closing = True
            self._wake.notify_all()
        until = time.monotonic() + seconds
        for thread in self._threads:
            if thread.is_alive():
                thread.join(max(0.0, until - time.monotonic()))

    def stalled(self, seconds: float) -> bool:
        """Whether one batch has taken longer than so many seconds."""
        since = self.since
        return since is not None and time.monotonic() - since > seconds

    # ---------------------------------------------------------------------------------------------- in the thread

    def _run(self) -> None:
        try:
            while True:
                with self._wake:
                    while not self._waiting and not self._closing:
                        self._wake.wait()
                    if self._closing:
                        return
                    batch = self._batch()
                if batch:
                    self._search(batch)
        except BaseException as error:
            _log.exception("the search has failed; the server finds no more items")
            with self._wake:
                self.fault, self.since = error, None
                left = [one for queue in self._waiting.values() for one in queue]
                self._waiting.clear()
            for search in left:
                search.tell(Refused("the search has failed: restart the server", status=500, code="engine_fault"))

    def _batch(self) -> list[Search]:
        """Take the next batch: the first request, and others of its model and catalogue, one of each client in turn."""
        batch: list[Search] = []
        rows, clients = 0, deque(self._waiting)
        while clients:
            client = clients.popleft()
            queue = self._waiting[client]
            at = next((i for i, one in enumerate(queue) if one.given_up or _fits(batch, one)), None)
            if at is not None and batch and rows + queue[at].beams > self._beam_rows and not queue[at].given_up:
                at = None
            if at is not None:
                search = queue[at]
                del queue[at]
                if not search.given_up:
                    batch.append(search)
                    rows += search.beams
                    self._waiting.move_to_end(client)
                clients.append(client)
            if not queue:
                del self._waiting[client]
                clients = deque(each for each in clients if each != client)
        return batch

    def _search(self, batch: list[Search]) -> None:
        began = time.monotonic()
        with self._wake:
            self.since, self.running = began, self.running + len(batch)
        try:
            self._found(batch)
        except Refused as refused:  # by an engine, or what no engine can be asked for
            for search in batch:
                search.tell(refused)
        except GivenUpError:
            for search in batch:
                search.tell(Refused("the search was given up", status=504, code="deadline_exceeded"))
        except Exception as error:  # such as memory that a device lacks for one batch
            _log.exception("a batch of %d searches has failed", len(batch))
            for search in batch:
                search.tell(Refused(f"the search has failed: {said(error)}"[:500], status=500, code="model_fault"))
        finally:
            with self._wake:
                self.since, self.running = None, self.running - len(batch)
        self._seen(time.monotonic() - began, len(batch), sum(search.beams for search in batch))

    def _found(self, batch: list[Search]) -> None:
        model, shop = batch[0].model, batch[0].shop
        version = shop.newest()
        ready: list[tuple[Search, LiveFilter | None]] = []
        for search in batch:
            try:
                keep = shop.keep(version, search.filters, search.deny)
            except MaskwrightError as error:
                search.tell(of_constraint(error, "filter", "invalid_filter"))
                continue
            if keep is not None and not keep.num_sequences:
                search.tell(Searched(version, keep, None))
            else:
                ready.append((search, keep))
        if not ready:
            return
        placed = self._place(model, shop, version)
        if isinstance(model.search, EngineSearch):
            ((search, keep),) = ready
            named = search.filters if all(each in shop.filters for each in search.filters) else None
            best, changed = model.search.find(
                version, placed, Query(search.prompt, search.beams, keep),
                lambda: sglang_fields(shop.name, version, keep, named, search.deny), search.until,
                lambda: search.given_up,
            )  # fmt: skip
            search.tell(Searched(version, keep, best, changed))
            return
        queries: list[tuple[Search, LiveFilter | None, Query]] = []
        for search, keep in ready:
            query = Query(search.prompt, search.beams, keep)
            try:
                model.search.check(placed, query)
                queries.append((search, keep, query))
            except ValueError as error:  # of this request alone
                search.tell(Refused(said(error), param="prompt", code="invalid_prompt"))

        def late() -> list[int]:
            return [at for at, (search, _, _) in enumerate(queries) if search.given_up]

        found = model.search.search(placed, [query for _, _, query in queries], stop=late)
        for (search, keep, _), each in zip(queries, found, strict=True):
            if each is not None:
                search.tell(Searched(version, keep, each))

    def _place(self, model: ItemModel, shop: Shop, version: Catalogue) -> Placed:
        """Return a version on the model's device; an earlier one gives way to it."""
        key = id(model), id(shop)
        placed = self._placed[key] = model.search.place(version.table, self._placed.get(key))
        return placed


def _fits(batch: Sequence[Search], search: Search) -> bool:
    if not batch:
        return True
    alike = batch[0].model is search.model and batch[0].shop is search.shop
    return alike and not isinstance(search.model.search, EngineSearch)
