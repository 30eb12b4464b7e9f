"""The site builds without a warning, and has what it should."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest

import maskwright as mw
from maskwright.runtime import numpy_ops
from tests.docs.pages import ROOT

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    pytest.importorskip("material")
    pytest.importorskip("mkdocstrings")
    folder = tmp_path_factory.mktemp("site")
    # -P: folders of the checkout, such as `table`, are no modules
    command = [sys.executable, "-P", "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", folder / "site"]
    out = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert out.returncode == 0, out.stderr
    return folder / "site"


def test_every_public_name_is_in_the_reference(site):
    pages = "".join(page.read_text() for page in (site / "reference").rglob("index.html"))
    for name in mw.__all__:
        assert f'id="maskwright.{name}"' in pages or f'id="maskwright.errors.{name}"' in pages, name


def test_every_operation_is_in_the_reference(site):
    page = (site / "reference/python/operations/index.html").read_text()
    for name in set(numpy_ops.__all__) - {"arrays"}:
        assert f"numpy_ops.{name}" in page or f"Backend.{name}" in page, name


def test_examples_and_results_are_on_the_site(site):
    for path in (ROOT / "examples").glob("*.py"):
        assert (site / "examples" / path.stem / "index.html").exists(), path.name
    assert (site / "results/sid/index.html").exists()
    assert "../../results/sid-decode.png" in (site / "explanation/benchmarks/index.html").read_text()


def test_examples_of_docstrings_are_shown_as_code(site):
    page = (site / "reference/python/compile/index.html").read_text()
    assert "&gt;&gt;&gt;" in page
    assert "<blockquote>" not in page


def test_no_mark_of_a_table_is_left(site):
    for page in site.rglob("*.html"):
        assert "<!-- generated" not in page.read_text(), page


SCROLLED = """() => [document.documentElement, ...document.querySelectorAll(".md-content *")].filter(each =>
    each.clientWidth && each.scrollWidth > each.clientWidth
    && (each === document.documentElement || ["auto", "scroll"].includes(getComputedStyle(each).overflowX))
).map(each => each.innerText.slice(0, 80))"""


def test_no_page_needs_a_horizontal_scroll_bar_at_1400_pixels(site):
    api = pytest.importorskip("playwright.sync_api")
    path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if path is None:
        pytest.skip("there is no Chromium to show the pages: apt-get install chromium")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport={"width": 1400, "height": 900})
        found = {}
        for file in sorted(site.rglob("*.html")):
            page.goto(file.as_uri())
            found[str(file.relative_to(site))] = page.evaluate(SCROLLED)
        browser.close()
    assert len(found) > 60
    assert not {name: scrolled for name, scrolled in found.items() if scrolled}
