"""Every block of Python on a page stands alone, runs, and prints what the page says; every command shown is one."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import shlex
import sys
import types
from pathlib import Path
from typing import Any

import click
import pytest

from maskwright.cli.main import main as command_line
from tests.docs.pages import Block, blocks
from tests.strategies import tokenizer_zoo

SNIPPETS = blocks("python")
PRINTED = "# > "  # begins a line of a block that says what the block prints, as ruff formats it


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder in which path/to/model is a small model with random weights, made from its configuration."""
    transformers, torch = pytest.importorskip("transformers"), pytest.importorskip("torch")
    folder = tmp_path_factory.mktemp("snippets")
    size = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    backend, _ = tokenizer_zoo.byte_level_bpe()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|endoftext|>")
    config = transformers.LlamaConfig(vocab_size=len(tokenizer) + 7, eos_token_id=tokenizer.eos_token_id, **size)
    torch.manual_seed(0)
    transformers.LlamaForCausalLM(config).save_pretrained(folder / "path/to/model")
    tokenizer.save_pretrained(folder / "path/to/model")
    return folder


@pytest.mark.parametrize("block", SNIPPETS, ids=lambda block: block.name)
def test_each_block_of_python_runs_by_itself_and_prints_what_the_page_says(block: Block, home, monkeypatch):
    monkeypatch.chdir(home)
    module = types.ModuleType("snippet")  # where pydantic and pickle look for classes
    monkeypatch.setitem(sys.modules, "snippet", module)
    code = compile("\n" * (block.line - 1) + block.text, block.page, "exec")
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(code, module.__dict__)
    promised = [line.removeprefix(PRINTED) for line in block.text.splitlines() if line.startswith(PRINTED)]
    if promised:
        assert out.getvalue().splitlines() == promised


def test_there_are_blocks_on_the_main_pages():
    pages = {block.page.name for block in SNIPPETS}
    assert pages >= {"README.md", "first_sid_table.md", "json_with_transformers.md", "own_decoder.md", "table.md"}
    assert sum(f"\n{PRINTED}" in block.text for block in SNIPPETS) > 20  # else no promise would be held


def commands() -> list[tuple[str, list[str]]]:
    """Return the commands of maskwright on all pages, with where each stands."""
    found = []
    for block in blocks("bash"):
        lines = block.text.replace("\\\n", " ").splitlines()
        shown = [shlex.split(line, comments=True)[1:] for line in lines if line.startswith("maskwright ")]
        found += [(block.name, words) for words in shown]
    return found


@pytest.mark.parametrize(("where", "words"), commands(), ids=lambda each: each if isinstance(each, str) else "")
def test_each_command_shown_is_one_and_has_the_options_shown(where, words):
    command: click.Command = command_line
    while isinstance(command, click.Group):
        if words[0] not in command.commands:
            assert "table" in command.commands, f"{where} shows a command that there is not: {words[0]}"
            words = ["table", *words]  # `show FILE` and `inspect FILE`
        command, words = command.commands[words[0]], words[1:]
    known = {option for param in command.params for option in (*param.opts, *param.secondary_opts)} | {"--help"}
    shown = {word.partition("=")[0] for word in words if word.startswith("-") and len(word) > 1}
    assert shown <= known, f"{where} shows {', '.join(sorted(shown - known))}"


def requests_shown(*, of_items: bool) -> list[tuple[str, str, str, dict[str, Any] | None]]:
    """Return where each request of curl on a page stands, its method, its route and its body."""
    found = []
    for block in blocks("bash"):
        calls = [shlex.split(text) for text in block.text.split("\n\n") if text.startswith("curl ")]
        for words in calls:
            route, given = words[1].partition("/")[2], words.index("-d") if "-d" in words else None
            method = words[words.index("-X") + 1] if "-X" in words else "POST"
            if route.startswith(("v1/retrieve", "v1/catalogues")) == of_items:
                body = None if given is None else json.loads(words[given + 1])
                found.append((block.name, method, route, body))
    return found


@pytest.mark.long
def test_the_requests_for_items_are_answered(tmp_path):
    pytest.importorskip("fastapi")
    httpx = pytest.importorskip("httpx")
    from maskwright.serve.items import example, models, routes
    from maskwright.serve.items.service import ItemService
    from maskwright.serve.items.shop import Shop
    from maskwright.serve.settings import ItemSettings

    shown = requests_shown(of_items=True)
    assert {method for _, method, _, _ in shown} == {"POST", "PUT", "DELETE"}

    async def ask() -> list[Any]:
        with example.made(ItemSettings()) as settings:
            shop = Shop(settings.catalogues[0], settings.filters)
            app = routes.create_app(ItemService([models.example()], [shop], settings))
            async with (
                app.router.lifespan_context(app),
                httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://x") as client,
            ):
                found = [
                    await client.request(method, f"/{route}", json=body, timeout=60) for _, method, route, body in shown
                ]
            shop.close()
            return found

    for (where, _, _, body), answer in zip(shown, asyncio.run(ask()), strict=True):
        assert answer.status_code == 200, f"{where}: {answer.text}"
        if body is not None and "limit" in body:
            assert len(answer.json()["items"]) == body["limit"]
            assert answer.json()["notes"] == []


@pytest.mark.long
def test_the_requests_shown_are_answered_as_the_page_says():
    pytest.importorskip("fastapi")
    httpx, jsonschema = pytest.importorskip("httpx"), pytest.importorskip("jsonschema")
    from maskwright.serve import loading
    from maskwright.serve.app import create_app
    from maskwright.serve.service import Limits, Service

    shown = requests_shown(of_items=False)
    assert shown

    async def ask() -> list[Any]:
        app = create_app(Service(loading.tiny(), Limits()))
        transport = httpx.ASGITransport(app)
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=transport, base_url="http://x") as client,
        ):
            return [await client.post(f"/{route}", json=body, timeout=60) for _, _, route, body in shown]

    for (where, _, _, body), answer in zip(shown, asyncio.run(ask()), strict=True):
        assert answer.status_code == 200, f"{where}: {answer.text}"
        choice = answer.json()["choices"][0]
        assert choice["finish_reason"] == "stop"
        jsonschema.validate(json.loads(choice["message"]["content"]), body["response_format"]["json_schema"]["schema"])
