"""`maskwright serve`: the OpenAI-compatible HTTP API over one engine, or a server of items."""

from __future__ import annotations

from collections.abc import Callable

from ..errors import MissingDependencyError
from .settings import Settings


def start(settings: Settings, *, say: Callable[[str], None]) -> None:
    """Serve a model until the process receives SIGTERM or SIGINT.

    say: takes each line about the model and the address at start. Raises DataError, ConstraintError,
    MissingDependencyError.
    """
    try:
        import fastapi  # noqa: F401
        import prometheus_client  # noqa: F401
        import torch  # noqa: F401
        import transformers  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise MissingDependencyError(f"serving needs {error.name}: pip install 'maskwright[serve]'") from None
    if settings.items is not None:
        from . import items

        items.start(settings, say=say)
        return
    from . import app, loading, server, service

    loaded = loading.loaded(settings.model)
    for note in loaded.notes:
        say(note)
    made = service.Service(loaded, settings.limits, cache=settings.cache)
    context = "" if loaded.context is None else f", {loaded.context:,} positions"
    say(f"{loaded.name}: {loaded.vocabulary.size:,} tokens{context}, on {loaded.model.device}; {made.limits.rows} rows")
    access = settings.access
    say(f"{access.address}/v1 (model {loaded.name!r}); /health, /ready, /metrics; stop it with Ctrl-C")
    playground = settings.playground and not access.api_keys
    if playground:
        say(f"{access.address}/ is the playground; --no-playground leaves it out")
    made_app = app.create_app(made, playground=playground, api_keys=access.api_keys, log_requests=access.log_requests)
    server.run(made_app, made, access)
