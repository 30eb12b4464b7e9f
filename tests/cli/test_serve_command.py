"""The options of `maskwright serve`, as the settings that the server starts with."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

import maskwright as mw
from maskwright import serve
from maskwright.cli.main import main
from maskwright.serve.settings import (
    Access,
    CacheSettings,
    CatalogueSettings,
    ItemSettings,
    Limits,
    ModelSettings,
    Settings,
)


@pytest.fixture
def started(monkeypatch):
    """Return a function that runs the command and returns the settings in place of a server."""
    found = []
    monkeypatch.setattr(serve, "start", lambda settings, say: found.append(settings))

    def run(*arguments):
        out = CliRunner().invoke(main, ["serve", *map(str, arguments)])
        assert out.exit_code == 0, out.output
        return found.pop()

    return run


def test_without_options_the_settings_are_the_usual_ones(started):
    assert started() == Settings()


def test_every_option_is_one_setting(started, tmp_path):
    options = {
        "--model": tmp_path, "--tokenizer": tmp_path, "--eos": 7, "--name": "it", "--device": "cuda:1",
        "--dtype": "bfloat16", "--calls": "glm_4_7",
        "--host": "0.0.0.0", "--port": 81, "--rows": 2, "--max-queue": 3, "--max-tokens": 4,
        "--max-schema-bytes": 5, "--max-body-bytes": 6, "--compile-processes": 8, "--budget-states": 9,
        "--budget-seconds": 1.5, "--budget-bytes": 10, "--whitespace": "compact", "--cache-dir": tmp_path / "c",
        "--cache-bytes": 11, "--cache-dir-bytes": 12, "--grace": 2.5, "--allow": "format",
        "--api-key": "one", "--ssl-certfile": tmp_path / "cert.pem", "--ssl-keyfile": tmp_path / "key.pem",
        "--max-connections": 15, "--max-header-bytes": 1600, "--read-seconds": 17.5, "--write-seconds": 18.5,
    }  # fmt: skip
    for name in ("cert.pem", "key.pem"):
        (tmp_path / name).touch()
    flags = ("--api-key", "two", "--log-requests", "--no-playground")
    settings = started(*[word for pair in options.items() for word in pair], *flags)
    budget = mw.Budget(states=9, seconds=1.5, bytes=10)
    assert settings == Settings(
        model=ModelSettings(tmp_path, tmp_path, 7, "it", "cuda:1", "bfloat16", "glm_4_7"),
        limits=Limits(2, 3, 4, 5, 6, 8, budget, grace_seconds=2.5, whitespace="compact", allow=("format",)),
        cache=CacheSettings(11, tmp_path / "c", 12),
        access=Access(
            "0.0.0.0", 81, ("one", "two"), tmp_path / "cert.pem", tmp_path / "key.pem", 15, 1600, 17.5, 18.5, True
        ),
        playground=False,
    )
    known = {name for param in main.commands["serve"].params for name in param.opts}
    of_items = {
        "--catalogue", "--log", "--follow", "--filter", "--prompt", "--between", "--beam-rows", "--max-beams",
        "--deadline", "--capacity", "--shadow", "--example", "--engine-key",
    }  # fmt: skip
    of_others = {"--separators", "--playground", "--log-requests"}
    assert known - set(options) == of_items | of_others, "an option is not tried here"


def test_every_option_of_items_is_one_setting(started, tmp_path):
    for name in ("one.catalogue", "two.catalogue"):
        (tmp_path / name).touch()
    settings = started(
        "--model", f"a={tmp_path}", "--model", f"b={tmp_path}", "--catalogue", tmp_path / "one.catalogue",
        "--catalogue", f"shop={tmp_path / 'two.catalogue'}", "--log", f"shop={tmp_path / 'log'}", "--follow",
        "--filter", "cheap=price == 5", "--prompt", "bought {history}", "--between", "; ", "--beam-rows", 7,
        "--max-beams", 6, "--deadline", 1.5, "--capacity", 9, "--shadow", "next=0.25", "--example",
    )  # fmt: skip
    assert settings.items == ItemSettings(
        models=(ModelSettings(tmp_path, name="a"), ModelSettings(tmp_path, name="b")),
        catalogues=(
            CatalogueSettings("one", tmp_path / "one.catalogue", capacity=9),
            CatalogueSettings("shop", tmp_path / "two.catalogue", tmp_path / "log", True, 9),
        ),
        filters=(("cheap", "price == 5"),), prompt="bought {history}", between="; ", example=True,
        beam_rows=7, most_beams=6, shadow=("next", 0.25), deadline=1.5,
    )  # fmt: skip
    one = tmp_path / "one.catalogue"
    assert started("--model", tmp_path, "--catalogue", one, "--log", "x").items.catalogues[0].log == Path("x")
    assert started("--example").items.models == ()
    engine = ModelSettings(None, tmp_path, name="big", url="http://host:8000/", key="k")
    asked = ("--model", "big=http://host:8000/", "--tokenizer", tmp_path, "--engine-key", "k")
    assert started(*asked, "--catalogue", one).items.models == (engine,)
    assert "'k'" not in repr(engine)  # no log has it


def test_separators_take_the_place_of_white_space(started):
    assert started("--separators", ", ", ": ").limits.whitespace == (", ", ": ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--eos", "3"), "--tokenizer, --eos, --name and --device go with --model"),
        (("--api-key", ""), "--api-key is empty"),
        (("--log", "x"), "--log, --follow, --filter and --shadow go with --catalogue"),
        (("--catalogue", __file__), "--catalogue needs the --model"),
        (("--catalogue", __file__, "--log", "other=x"), "--log 'other' is of no catalogue"),
        (("--catalogue", __file__, "--follow"), "--follow needs the --log"),
        (("--catalogue", __file__, "--filter", "price < 5"), "has no name"),
        (("--catalogue", __file__, "--shadow", "0.5"), "--shadow names no model"),
        (("--model", f"a={Path(__file__).parent}", "--model", f"b={Path(__file__).parent}"), "has one --model"),
        (("--ssl-keyfile", __file__), "--ssl-keyfile goes with --ssl-certfile"),
        (("--separators", ";", ":"), "--separators must be a comma and a colon"),
        (("--model", str(Path(__file__))), "is a file"),
    ],
)
def test_bad_options_are_refused_before_a_server_starts(monkeypatch, arguments, message):
    monkeypatch.setattr(serve, "start", lambda settings, say: pytest.fail("a server has started"))
    out = CliRunner().invoke(main, ["serve", *arguments])
    assert out.exit_code == 2
    assert message in out.output
