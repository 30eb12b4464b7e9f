"""The pages of the documentation, and the blocks of code in them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import maskwright as mw

ROOT = Path(mw.__file__).parent
DOCS = ROOT / "docs"

PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *DOCS.rglob("*.md"), ROOT / "examples" / "README.md"])
"""Every page that a reader meets, on the site or beside the code."""

_FENCE = re.compile(r"^( *)```(\w+)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    """A fenced block of a page."""

    page: Path
    line: int  # of its first line of code, from 1
    text: str

    @property
    def name(self) -> str:
        """Where it stands, such as docs/glossary.md:12."""
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks(language: str) -> list[Block]:
    """Return the fenced blocks of a language on all pages."""
    found = []
    for page in PAGES:
        text = page.read_text()
        for fence in _FENCE.finditer(text):
            if fence[2] == language:
                inside = "\n".join(line.removeprefix(fence[1]) for line in fence[3].splitlines())
                found.append(Block(page, text.count("\n", 0, fence.start(3)) + 1, inside + "\n"))
    return found
