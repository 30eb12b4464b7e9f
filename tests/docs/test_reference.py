"""The reference has every keyword, format, option, array and field, as the code has them."""

from __future__ import annotations

import dataclasses
import importlib.util
import re

import click
import pytest
from click.testing import CliRunner

import maskwright as mw
from maskwright.cli.main import main as command_line
from maskwright.compile.json_schema.approximations import ALLOWED
from maskwright.compile.json_schema.dialects import DIALECTS
from maskwright.compile.json_schema.formats import INEXACT, KNOWN
from maskwright.compile.json_schema.keywords import HANDLERS, NARROWER
from maskwright.compile.tags import reading
from maskwright.table.file import FORMAT_VERSION
from maskwright.table.groups import SPECS
from tests.docs.pages import DOCS

REFERENCE = DOCS / "reference"


@pytest.fixture(scope="module")
def hooks():
    """Return what fills the pages when the site is built."""
    pytest.importorskip("fastapi")
    spec = importlib.util.spec_from_file_location("hooks_of_the_site", DOCS / "hooks.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def cells(markdown: str) -> dict[str, str]:
    """Return the rows of all tables of a page by each name in backticks in their first cell."""
    found = {}
    for line in markdown.splitlines():
        if line.startswith("| `"):
            first, _, rest = re.sub(r"\\\|", "/", line).strip("| ").partition(" | ")
            found.update(dict.fromkeys(re.findall(r"`([^`]+)`", first), rest))
    return found


def section(page: str, heading: str) -> str:
    text = (REFERENCE / page).read_text()
    return text.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def test_every_keyword_is_on_the_page():
    told = cells(section("json_schema.md", "Each keyword"))
    known = set(HANDLERS) | {word for dialect in DIALECTS.values() for word in dialect.keywords}
    assert known <= set(told)
    for word in known:
        assert "exact" in told[word] or "formats" in told[word], word
    for word in NARROWER:
        assert "**narrower**" in told[word], word
    for word in set(told) - {"true"}:
        assert word in known, f"{word} is no keyword"


def test_keywords_that_allow_may_name_have_a_line_that_says_what_is_accepted():
    refused = cells(section("json_schema.md", "Refusals"))
    assert set(refused) - {"idn-hostname", "idn-email", "idna"} == ALLOWED


def test_keywords_that_are_annotations_change_nothing():
    vocab = mw.Vocabulary.from_bytes([b"", *(bytes([b]) for b in range(256))], eos=0)
    sentence = (REFERENCE / "json_schema.md").read_text().partition("All other keywords are annotations:")[2]
    words = re.findall(r"`([\w$]+)`", sentence.partition(", and")[0])
    assert len(words) > 8
    schema = {"type": "boolean", **dict.fromkeys(words, "nonsense")}
    assert mw.compile_json_schema(schema, vocab).accepts(vocab.encode("true"))


def test_every_format_is_there_with_what_is_inexact(hooks):
    told = cells(hooks.formats())
    assert set(told) == KNOWN
    for name, why in INEXACT.items():
        assert told[name].startswith("**narrower**")
        assert why in told[name]
    assert all(told[name] == "exact" for name in set(KNOWN) - set(INEXACT))


@pytest.mark.parametrize("bits", [8, 16, 32, 64])
def test_formats_of_numbers_are_exact_as_the_page_says(bits):
    vocab = mw.Vocabulary.from_bytes([b"", *(bytes([b]) for b in range(256))], eos=0)
    page = (REFERENCE / "json_schema.md").read_text()
    for name, low, high in ((f"int{bits}", -(1 << bits - 1), (1 << bits - 1) - 1), (f"uint{bits}", 0, (1 << bits) - 1)):
        assert f"`{name}`" in page
        table = mw.compile_json_schema({"format": name}, vocab)
        accepted = [table.accepts(vocab.encode(str(n))) for n in (low - 1, low, high, high + 1, 0.5)]
        assert accepted == [False, True, True, False, False]


def test_every_option_of_every_command_is_on_the_page(hooks):
    page = hooks.filled((REFERENCE / "cli.md").read_text())

    def check(command: click.Command, path: str) -> None:
        if isinstance(command, click.Group):
            for name, inner in command.commands.items():
                check(inner, f"{path} {name}")
            return
        part = page.partition(f"# `{path}`\n")[2].partition("\n## ")[0].partition("\n### ")[0]
        shown = CliRunner().invoke(command_line, [*path.split()[1:], "--help"]).output
        options = set(re.findall(r"(?<![\w-])--[a-z][\w-]*", shown.partition("Options:")[2])) - {"--help"}
        for option in options:
            assert option in part, f"{path} {option}"

    check(command_line, "maskwright")


def test_every_array_is_on_the_page_with_what_it_means(hooks):
    page = hooks.filled((REFERENCE / "file_format.md").read_text())
    told = cells(page)
    for name, spec in SPECS.items():
        assert spec.meaning in told[name]
        assert all(str(kind) in told[name] for kind in spec.kinds)
    letters = {letter for spec in SPECS.values() for axis in spec.shape for letter in re.findall("[A-Z]", axis)}
    named = set(re.findall(r"\b([A-Z]) [a-z]", page.partition("sizes:")[2].partition(".\n")[0]))
    assert letters <= named
    assert f"the format version, {FORMAT_VERSION};" in page
    assert f"| {FORMAT_VERSION} |" in page


def test_every_field_of_the_files_header_is_on_the_page(tmp_path):
    from safetensors import safe_open

    table = mw.compile_sids([[1, 2]], vocab_size=4, eos=[0, 3])
    table.noting((mw.errors.Unenforced("/uniqueItems", "uniqueItems", "equal items"),)).save(tmp_path / "table")
    with safe_open(tmp_path / "table", framework="numpy") as file:
        header = set(re.findall(r'"(\w+)": ', file.metadata()["maskwright"]))
    assert header == set(cells((REFERENCE / "file_format.md").read_text().partition("## Arrays")[0]))


def test_every_format_of_structural_tags_is_on_the_page():
    told = cells(section("tags.md", "As JSON"))
    assert set(told) == set(reading.KINDS)
    refused = cells(section("tags.md", "Refusals"))
    assert set(reading.REFUSED) <= set(refused)


def test_every_error_code_of_the_server_is_on_the_page():
    told = cells(section("http.md", "Errors"))
    page = section("http.md", "Errors")
    sources = "".join(path.read_text() for path in (DOCS.parent / "serve").glob("*.py"))
    codes = set(re.findall(r'code="(\w+)"', sources))
    assert len(codes) > 10
    for code in codes:
        assert f"`{code}`" in page, code
    assert not told  # rows begin with a status


def test_every_metric_is_on_the_page():
    page = section("http.md", "Metrics")
    source = (DOCS.parent / "serve" / "metrics.py").read_text()
    names = set(re.findall(r'"maskwright_(\w+)"', source)) | set(re.findall(r'\("(\w+)", [^,]+, "', source))
    assert len(names) > 15
    for name in names:
        assert f"maskwright_{name}" in page, name


def test_every_field_of_requests_is_on_the_page(hooks):
    from maskwright.serve.requests import ChatRequest, CompletionRequest

    page = hooks.filled((REFERENCE / "http.md").read_text())
    for model in (ChatRequest, CompletionRequest):
        for name, field in model.model_fields.items():
            assert f"| `{field.alias or name}` |" in page, name


def test_every_error_is_on_the_page():
    named = {name for name in vars(mw.errors) if name.endswith("Error")}
    assert len(named) > 12
    assert named == set(re.findall(r"\b[A-Z]\w+Error\b(?=\(|  )", mw.errors.__doc__)) | {"MaskwrightError"}


def test_bytes_of_an_arena_are_those_of_the_page():
    class Tekken:
        size, eos, fingerprint = 131_072, 2, "as many tokens as Tekken has"

    def bytes_of(capacity: mw.Capacity, budgets: bool) -> int:
        return mw.Arena(Tekken(), capacity, distances=budgets).nbytes

    page = (DOCS / "how_to/capacity.md").read_text()
    small = mw.Capacity(
        states=999, edges=999, bases=99, base_targets=99, masks=16, lists=64, classes=999, exits=999, sites=99,
        site_entries=999, actions=99, pushes=99,
    )  # fmt: skip
    told = cells(page.partition("## Choosing")[2].partition("\n\nEntries that several")[0])
    del told["Capacity"]  # the heading
    assert len(told) == 12
    for name, rest in told.items():
        row = [int(cell.rpartition("=")[2].replace(",", "")) for cell in rest.split(" | ")[:2]]
        more = dataclasses.replace(small, **{name: getattr(small, name) + 32})
        assert row == [(bytes_of(more, b) - bytes_of(small, b)) / 32 for b in (False, True)], name
    usual = [round(bytes_of(mw.Capacity(), budgets) / 1e6) for budgets in (False, True)]
    assert f"| an arena of the default `Capacity` | {usual[0]} MB; with budgets {usual[1]} MB |" in page
    example = page.partition("    Capacity(")[2].partition(")\n")[0]
    parts = re.findall(r"(\w+)=(\d+) << (\d+)|(\w+)=(\d+)", example)
    sizes = {name or plain: int(low) << int(high) if name else int(size) for name, low, high, plain, size in parts}
    assert f"That is {round(bytes_of(mw.Capacity(**sizes), True) / 1e6)} MB" in page
