"""Shows `>>>` examples of docstrings as code; Markdown alone would take them for quotations."""

from __future__ import annotations

from typing import Any

import griffe


class Doctests(griffe.Extension):
    """Fences the examples of every docstring."""

    def on_instance(self, *, obj: Any, **_: Any) -> None:
        """Change the docstring of one object."""
        if getattr(obj, "docstring", None) is not None and ">>>" in obj.docstring.value:
            obj.docstring.value = fenced(obj.docstring.value)


def fenced(text: str) -> str:
    """Return a docstring with a fence around each example: from a line with `>>>` to the next empty line."""
    out, inside = [], False
    for line in text.splitlines():
        if not inside and line.startswith(">>>"):
            out += ["", "```pycon"]
            inside = True
        elif inside and not line.strip():
            out.append("```")
            inside = False
        out.append(line.replace("  # doctest: +SKIP", ""))
    return "\n".join([*out, "```"] if inside else out)
