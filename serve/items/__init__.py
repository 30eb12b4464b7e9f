"""`maskwright serve --catalogue`: a server that finds items: a history or a prompt goes in, ranked items come out."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import NoReturn

from ...errors import DataError
from .. import server
from ..settings import Settings
from . import example, models, routes
from .service import ItemService
from .shop import Shop


def start(settings: Settings, *, say: Callable[[str], None]) -> None:
    """Serve items until the process receives SIGTERM or SIGINT; arguments as of `serve.start`.

    Raises DataError, ConstraintError, TableFileError, VocabularyMismatchError, MissingDependencyError.
    """
    items, access = settings.items, settings.access
    assert items is not None, "the server of texts has its own start"
    with ExitStack() as made:
        made.enter_context(_closed_by_sigterm())
        if items.example:
            items = made.enter_context(example.made(items))
            say("an example: a small model that was never trained, and 1,000 items. Its ranks mean nothing")
        between = items.between
        found = [models.load(each, between) if each.folder or each.url else models.example() for each in items.models]
        for one in found:
            say(f"{one.name}: {one.about}")
        shops = [Shop(each, items.filters) for each in items.catalogues]
        for shop in shops:
            made.callback(shop.close)
            now = shop.newest()
            changes = "follows a log" if shop.follows else "changes, with a log" if shop.lives else "is fixed"
            say(f"{shop.name}: {now.num_items:,} items of {now.table.max_length} codes; it {changes}")
        if not found or not shops:
            raise DataError("a server of items needs a model and a catalogue: give --model and --catalogue")
        service = ItemService(found, shops, items, settings.limits)
        say(f"{access.address}/v1/retrieve; /v1/catalogues, /health, /ready, /metrics; stop it with Ctrl-C")
        page = settings.playground and not access.api_keys
        if page:
            say(f"{access.address}/ is a page to try it; --no-playground leaves it out")
        app = routes.create_app(service, page=page, api_keys=access.api_keys, log_requests=access.log_requests)
        server.run(app, service, access)


class _TerminatedError(BaseException):
    """The process has received SIGTERM."""


@contextmanager
def _closed_by_sigterm() -> Iterator[None]:
    """Let SIGTERM end the process after all inside has been closed: uvicorn sends it again when it has stopped."""
    if threading.current_thread() is not threading.main_thread():  # where no signal arrives
        yield
        return

    def end(*_: object) -> NoReturn:
        raise _TerminatedError

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    except _TerminatedError:
        signal.signal(signal.SIGTERM, before)
        signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)
