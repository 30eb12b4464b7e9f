"""`maskwright serve`: the OpenAI-compatible HTTP API over one engine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..errors import MissingDependencyError


def start(
    model: Path | None,
    *,
    host: str,
    port: int,
    say: Callable[[str], None],
    tokenizer: Path | None = None,
    eos: int | None = None,
    name: str | None = None,
    device: str | None = None,
    dtype: str = "auto",
    capacity: Any = None,
    cache_bytes: int = 1 << 30,
    cache_directory: Path | None = None,
    directory_bytes: int = 4 << 30,
    playground: bool = True,
    **limits: Any,
) -> None:
    """Serve a model, a small one made on the spot if None, until told to stop by SIGTERM or SIGINT.

    say: is told what there is to know at start. playground: whether its page is at /. limits: of `service.Limits`.
    Raises DataError, ConstraintError, MissingDependencyError.
    """
    try:
        import fastapi  # noqa: F401
        import prometheus_client  # noqa: F401
        import torch  # noqa: F401
        import transformers  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise MissingDependencyError(f"serving needs {error.name}: pip install 'maskwright[serve]'") from None
    from . import loading, server, service

    loaded = (
        loading.tiny() if model is None
        else loading.load(model, tokenizer=tokenizer, eos=eos, name=name, device=device, dtype=dtype)
    )  # fmt: skip
    for note in loaded.notes:
        say(note)
    made = service.Service(
        loaded, service.Limits(**limits), capacity=capacity, cache_bytes=cache_bytes, cache_directory=cache_directory,
        directory_bytes=directory_bytes,
    )  # fmt: skip
    context = "" if loaded.context is None else f", {loaded.context:,} positions"
    say(
        f"{loaded.name}: {loaded.vocabulary.size:,} tokens{context}, on {loaded.model.device}; "
        f"{made.limits.rows} rows, an arena of {made.arena.nbytes / 1e6:,.0f} MB"
    )
    say(f"http://{host}:{port}/v1 (model {loaded.name!r}); /health, /ready, /metrics; stop it with Ctrl-C")
    if playground:
        say(f"http://{host}:{port}/ is the playground; --no-playground leaves it out")
    server.run(made, host, port, playground=playground)
