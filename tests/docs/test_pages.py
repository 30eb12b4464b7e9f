"""Pages lead where they say, and name only files, folders and names that there are."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.pages import DOCS, PAGES, ROOT

LINK = re.compile(r"\]\(([^)\s]+)\)")
BESIDE = ("tests", "docs", "examples", "benchmarks")  # folders that are no part of the package


def shown(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=shown)
def test_links_lead_to_files_and_headings(page):
    for target in LINK.findall(page.read_text()):
        if target.startswith("http"):
            continue
        name, _, heading = target.partition("#")
        path = (page.parent / name).resolve() if name else page
        assert path.exists(), f"{shown(page)} links to {target}"
        if heading and "." not in heading and "generated:" not in path.read_text():
            anchors = {
                re.sub(r"[^\w\s-]", "", line.lstrip("# ")).strip().lower().replace(" ", "-")
                for line in path.read_text().splitlines() if line.startswith("#")
            }  # fmt: skip
            assert heading in anchors, f"{shown(page)} links to {target}"


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 130


def test_the_map_names_every_folder_of_the_package():
    text = (DOCS / "contributing/map.md").read_text()
    for init in ROOT.glob("*/**/__init__.py"):
        folder = init.parent.relative_to(ROOT)
        if not folder.parts[0].startswith((".", "build")) and folder.parts[0] not in (*BESIDE, "dist"):
            assert f"`{folder}/`" in text or f"`{folder.name}/`" in text, folder


def test_the_glossary_is_in_order_and_says_each_term_once():
    terms = re.findall(r"^\*\*(.+)\*\*$", (DOCS / "glossary.md").read_text(), re.MULTILINE)
    assert len(terms) > 80
    assert len(terms) == len(set(terms))
    assert terms == sorted(terms, key=str.lower)


NAME = re.compile(r"`([A-Za-z_][\w.]*\w)(?:\([^`]*\))?`")
ELSEWHERE = {
    "json.dumps", "json.loads", "torch.multinomial", "re.fullmatch", "fill_",
    "readOnly", "writeOnly", "contentEncoding", "contentMediaType", "contentSchema", "SGLANG_PLUGINS",
    "min_tokens",
}  # fmt: skip
"""Names of other packages, and keywords that are annotations."""


@pytest.mark.parametrize("page", [p for p in PAGES if p.is_relative_to(DOCS)], ids=shown)
def test_names_of_code_that_a_page_uses_are_in_the_code(page, words_of_the_code):
    for name in NAME.findall(re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)):
        last = name.rpartition(".")[2]
        if (
            name in ELSEWHERE
            or name.startswith("maskwright_")
            or not ("_" in last or re.search(r"[a-z][A-Z]", last) or "." in name)
        ):
            continue
        assert last in words_of_the_code, f"{shown(page)} names {name}"


@pytest.fixture(scope="module")
def words_of_the_code() -> set[str]:
    folders = [
        p
        for p in ROOT.iterdir()
        if p.is_dir() and not p.name.startswith((".", "_")) and p.name not in ("docs", "build")
    ]
    sources = [*ROOT.glob("*.*"), *(path for folder in folders for path in folder.rglob("*.*"))]
    kinds = {".py", ".toml", ".js", ".json", ".md"}
    texts = [path.read_text() for path in sources if path.suffix in kinds and "benchmarks/results" not in str(path)]
    return {word for text in texts for word in re.findall(r"\w+", text)}
