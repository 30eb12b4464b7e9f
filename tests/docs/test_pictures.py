"""Pictures show what the code computes, and need nothing from elsewhere."""

from __future__ import annotations

import importlib.util
import re
import xml.etree.ElementTree as ET

import pytest

from tests.docs.pages import DOCS, PAGES

FOLDER = DOCS / "pictures"
WIDEST = 868  # of a page's text in a window of 1,400 pixels


def drawn():
    """Return the functions that draw pictures, by name."""
    spec = importlib.util.spec_from_file_location("pictures_of_the_site", FOLDER / "draw.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.PICTURES


@pytest.mark.parametrize(("name", "draw"), drawn().items(), ids=lambda each: each if isinstance(each, str) else "")
def test_each_picture_is_that_of_todays_code(name, draw):
    assert (FOLDER / f"{name}.svg").read_text() == draw(), "run python docs/pictures/draw.py"


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.svg")), ids=lambda path: path.stem)
def test_each_picture_is_small_readable_and_shown_with_a_description(path):
    text = path.read_text()
    root = ET.fromstring(text)
    assert len(text) < 16_000
    assert float(root.get("width", "inf")) <= WIDEST  # so a page does not scale its text down
    assert min(map(float, re.findall(r"font(?:-size)?: ([\d.]+)px", text))) >= 12
    assert "prefers-color-scheme: dark" in text
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)|@import|<script|<image|url\((?!#)", text)
    shown = [found for page in PAGES for found in re.findall(rf"!\[([^\]]*)\]\([^)]*{path.name}\)", page.read_text())]
    assert shown
    assert min(map(len, shown)) > 60
