"""`maskwright serve`: the OpenAI API over one model, or a server of items."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from .. import serve as server
from ..automata.budget import Budget
from ..compile.json_schema.layout import Whitespace
from ..serve.families import NAMES
from ..serve.settings import (
    Access,
    CacheSettings,
    CatalogueSettings,
    ItemSettings,
    Limits,
    ModelSettings,
    Settings,
)
from . import options


def _models(
    given: tuple[tuple[str | None, Path | str], ...],
    key: str | None,
    tokenizer: Path | None,
    eos: int | None,
    name: str | None,
    device: str | None,
    dtype: str,
    calls: str,
) -> tuple[ModelSettings, ...]:
    if not given and (tokenizer, eos, name, device) != (None,) * 4:
        raise click.UsageError("--tokenizer, --eos, --name and --device go with --model")
    if name is not None and len(given) > 1:
        raise click.UsageError("--name is of one model: name several as --model NAME=FOLDER")
    return tuple(
        ModelSettings(None, tokenizer, eos, name or own, url=each, key=key)
        if isinstance(each, str)
        else ModelSettings(each, tokenizer, eos, name or own, device, dtype, calls)
        for own, each in given
    ) or (ModelSettings(calls=calls),)


class _FolderOrUrl(click.Path):
    """A folder, or where an engine is."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, str) and value.startswith(("http://", "https://")):
            return value
        return super().convert(value, param, ctx)


_model_options = options.gathered(
    "models",
    _models,
    click.option(
        "--model",
        "given",
        multiple=True,
        type=options.Named(_FolderOrUrl(exists=True, file_okay=False, path_type=Path)),
        help="Folder of a causal language model of transformers, as FOLDER or NAME=FOLDER. Without one, the server "
        "makes a small model of nonsense. A server of items takes several, and encoder-decoders too. It also takes the "
        "URL of a running vLLM or SGLang in the place of a folder.",
    ),
    click.option(
        "--engine-key",
        "key",
        envvar="MASKWRIGHT_ENGINE_KEY",
        metavar="KEY",
        help="Key that the vLLM or SGLang at the URL of a --model wants. The environment variable "
        "MASKWRIGHT_ENGINE_KEY holds one too.",
    ),
    click.option(
        "--tokenizer",
        type=click.Path(exists=True, path_type=Path),
        metavar="SOURCE",
        help="The model's tokenizer, if it is not in the same folder: a folder or a file, as for `compile`.",
    ),
    click.option("--eos", type=click.IntRange(min=0), help="Token that ends a text, if not the tokenizer's own."),
    click.option("--name", help="The model's name for clients, if not its folder's."),
    click.option(
        "--device", help="Device of the model, such as cuda:1. Without it, a GPU if there is one, else the CPU."
    ),
    click.option("--dtype", default="auto", show_default=True, help="Type of the weights, such as bfloat16."),
    click.option(
        "--calls",
        type=click.Choice(NAMES),
        default="hermes",
        show_default=True,
        help="Family of the model, by how it writes calls of tools.",
    ),
)


def _limits(
    rows: int, max_queue: int, max_tokens: int, max_schema_bytes: int, max_body_bytes: int, compile_processes: int,
    whitespace: Whitespace, separators: tuple[str, str] | None, allow: tuple[str, ...], grace: float,
) -> Limits:  # fmt: skip
    return Limits(
        rows=rows, max_queue=max_queue, max_tokens=max_tokens, max_schema_bytes=max_schema_bytes,
        max_body_bytes=max_body_bytes, compile_processes=compile_processes, whitespace=separators or whitespace,
        allow=options.allowed(allow), grace_seconds=grace,
    )  # fmt: skip


_USUAL = Limits()
_limit_options = options.gathered(
    "limits",
    _limits,
    click.option(
        "--rows", type=click.IntRange(min=1), default=_USUAL.rows, show_default=True,
        help="Most sequences that the model writes at once.",
    ),
    click.option(
        "--max-queue", type=click.IntRange(min=0), default=_USUAL.max_queue, show_default=True,
        help="Most sequences that wait.",
    ),
    click.option(
        "--max-tokens", type=click.IntRange(min=1), default=_USUAL.max_tokens, show_default=True,
        help="Most tokens of an answer.",
    ),
    click.option(
        "--max-schema-bytes", type=click.IntRange(min=1), default=_USUAL.max_schema_bytes, show_default=True,
        help="Most bytes of a constraint.",
    ),
    click.option(
        "--max-body-bytes", type=click.IntRange(min=1), default=_USUAL.max_body_bytes, show_default=True,
        help="Most bytes of a request.",
    ),
    click.option(
        "--compile-processes", type=click.IntRange(min=1), default=_USUAL.compile_processes, show_default=True,
        help="Processes that compile constraints, of which one client has half at most, of an odd number one more.",
    ),
    options.server_whitespace,
    options.separator_pair,
    options.allow,
    click.option(
        "--grace", type=click.FloatRange(min=0), default=_USUAL.grace_seconds, show_default=True,
        help="Seconds to finish answers after the server is told to stop.",
    ),
)  # fmt: skip


def _keys(ctx: click.Context, param: click.Parameter, given: tuple[str, ...]) -> tuple[str, ...]:
    if not all(given):
        raise click.UsageError("--api-key is empty: anybody could send it")
    return given


_REACHED = Access()
_access_options = options.gathered(
    "access",
    Access,
    click.option("--host", default=_REACHED.host, show_default=True, help="Address to listen on."),
    click.option(
        "--port", type=click.IntRange(0, 65535), default=_REACHED.port, show_default=True, help="Port to listen on."
    ),
    click.option(
        "--api-key", "api_keys", multiple=True, envvar="MASKWRIGHT_API_KEY", metavar="KEY", callback=_keys,
        help="Key of which one goes with each request, as Authorization: Bearer KEY. May be given several times. The "
        "environment variable MASKWRIGHT_API_KEY holds keys with blanks between them. With a key, there is no "
        "playground.",
    ),
    click.option(
        "--ssl-certfile", "certificate", type=options.FILE, help="Certificate for HTTPS, in PEM."
    ),
    click.option(
        "--ssl-keyfile", "private_key", type=options.FILE, help="Key of the certificate, if it is not in the same file."
    ),
    click.option(
        "--max-connections", type=click.IntRange(min=1), default=_REACHED.max_connections, show_default=True,
        help="Most connections at a time.",
    ),
    click.option(
        "--max-header-bytes", type=click.IntRange(min=256), default=_REACHED.max_header_bytes, show_default=True,
        help="Most bytes of a request's headers.",
    ),
    click.option(
        "--read-seconds", type=click.FloatRange(min=0.1), default=_REACHED.read_seconds, show_default=True,
        help="Seconds in which a client must have sent a request.",
    ),
    click.option(
        "--write-seconds", type=click.FloatRange(min=0.1), default=_REACHED.write_seconds, show_default=True,
        help="Seconds after which a client that does not read its answer is cut off.",
    ),
    click.option("--log-requests", is_flag=True, help="Write a line of JSON for each request to standard error."),
)  # fmt: skip

_KEPT = CacheSettings()
_cache_options = options.gathered(
    "cache",
    CacheSettings,
    click.option(
        "--cache-dir",
        "directory",
        type=click.Path(file_okay=False, path_type=Path),
        help="Folder that keeps tables for later processes.",
    ),
    click.option(
        "--cache-bytes", "max_bytes", type=click.IntRange(min=1), default=_KEPT.max_bytes, show_default=True,
        help="Most bytes of tables in memory.",
    ),
    click.option(
        "--cache-dir-bytes", "directory_bytes", type=click.IntRange(min=1), default=_KEPT.directory_bytes,
        show_default=True, help="Most bytes of tables in the folder.",
    ),
)  # fmt: skip


_SHOWN = ItemSettings()


def _items(
    catalogues: tuple[tuple[str | None, Path], ...], logs: tuple[tuple[str | None, Path], ...], follow: bool,
    filters: tuple[tuple[str | None, str], ...], prompt: str, between: str, beam_rows: int, most_beams: int,
    deadline: float, capacity: int, shadow: tuple[str | None, float] | None, example: bool,
) -> ItemSettings | None:  # fmt: skip
    if not catalogues and not example:
        if logs or filters or follow or shadow:
            raise click.UsageError("--log, --follow, --filter and --shadow go with --catalogue")
        return None
    named = [(name or file.stem, file) for name, file in catalogues]
    of = {name or (named[0][0] if len(named) == 1 else ""): log for name, log in logs}
    if wrong := set(of) - {name for name, _ in named}:
        raise click.UsageError(
            f"--log {wrong.pop()!r} is of no catalogue: give it as NAME=FILE, with a catalogue's name"
        )
    if follow and not of:
        raise click.UsageError("--follow needs the --log that another process writes")
    if unnamed := [text for name, text in filters if name is None]:
        raise click.UsageError(f"--filter {unnamed[0]!r} has no name: give it as NAME=EXPRESSION")
    if shadow is not None and shadow[0] is None:
        raise click.UsageError("--shadow names no model: give it as NAME=SHARE")
    return ItemSettings(
        catalogues=tuple(
            CatalogueSettings(name, file, of.get(name), follow and name in of, capacity) for name, file in named
        ),
        filters=tuple((name or "", text) for name, text in filters),
        prompt=prompt, between=between, example=example, beam_rows=beam_rows, most_beams=most_beams, deadline=deadline,
        shadow=None if shadow is None else (shadow[0] or "", shadow[1]),
    )  # fmt: skip


_item_options = options.gathered(
    "items",
    _items,
    click.option(
        "--catalogue", "catalogues", multiple=True, type=options.Named(options.FILE),
        help="Catalogue of items to find, as FILE or NAME=FILE. The server then finds items and writes no texts. May "
        "be given several times.",
    ),
    click.option(
        "--log", "logs", multiple=True, type=options.Named(click.Path(dir_okay=False, path_type=Path)),
        help="File with the updates of a catalogue, as FILE or NAME=FILE. With it, items come and go over HTTP.",
    ),
    click.option("--follow", is_flag=True, help="Read the logs, which other processes write, and take no updates."),
    click.option(
        "--filter", "filters", multiple=True, type=options.Named(click.STRING),
        help="Filter that requests name, as NAME=EXPRESSION over columns, such as cheap='price < 50'.",
    ),
    click.option(
        "--prompt", default=_SHOWN.prompt, show_default=True,
        help="What the model reads of a history. The semantic IDs of its items stand for {history}.",
    ),
    click.option("--between", default=_SHOWN.between, help="Text that stands between two items of a history."),
    click.option(
        "--beam-rows", type=click.IntRange(min=1), default=_SHOWN.beam_rows, show_default=True,
        help="Most beams of one batch of searches.",
    ),
    click.option(
        "--max-beams", "most_beams", type=click.IntRange(min=1), default=_SHOWN.most_beams, show_default=True,
        help="Most beams of one request.",
    ),
    click.option(
        "--deadline", type=click.FloatRange(min=0.001), default=_SHOWN.deadline, show_default=True,
        help="Seconds after which a search is given up whose request names none.",
    ),
    click.option(
        "--capacity", type=click.IntRange(min=1), default=CatalogueSettings.capacity, show_default=True,
        help="Most sequences that are added to a catalogue until its file is saved anew.",
    ),
    click.option(
        "--shadow", type=options.Named(click.FloatRange(0, 1)), metavar="NAME=SHARE",
        help="Model that searches a share of the requests of other models too. Answers stay as they are; metrics tell "
        "how many items are the same.",
    ),
    click.option(
        "--example", is_flag=True,
        help="Serve a small model and 1,000 items, made on the spot, to try a server of items.",
    ),
)  # fmt: skip


@click.command()
@_model_options
@_item_options
@_access_options
@_limit_options
@options.budget_from(_USUAL.budget)
@_cache_options
@click.option(
    "--playground/--no-playground",
    default=True,
    show_default=True,
    help="Whether to serve a page at / to try constraints on texts, or to find items.",
)
def serve(
    models: tuple[ModelSettings, ...],
    items: ItemSettings | None,
    access: Access,
    limits: Limits,
    budget: Budget,
    cache: CacheSettings,
    playground: bool,
) -> None:
    """Serve the OpenAI API over one model: chat and completions, in the form that each request asks for.

    With --catalogue, serve items: POST /v1/retrieve ranks those of a catalogue.
    """
    if access.private_key is not None and access.certificate is None:
        raise click.UsageError("--ssl-keyfile goes with --ssl-certfile")
    if items is not None:
        given = tuple(model for model in models if model.folder is not None or model.url is not None)
        if not given and not items.example:
            raise click.UsageError("--catalogue needs the --model that ranks its items")
        items = replace(items, models=given)
    elif len(models) > 1:
        raise click.UsageError("a server of texts has one --model: give --catalogue too to serve items")
    elif models[0].url is not None:
        raise click.UsageError("a server of texts runs its model itself: a --model at a URL is for --catalogue")
    settings = Settings(models[0], items, replace(limits, budget=budget), cache, access, playground=playground)
    server.start(settings, say=lambda line: click.echo(line, err=True))
