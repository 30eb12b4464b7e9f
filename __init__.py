"""Constrained decoding: compile what a model may write into one flat table, apply it to logits.

Names are imported when they are first asked for: plugins of engines are loaded by engines that do not use them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import errors as errors
    from .automata.budget import Budget
    from .compile.cache.cache import Cache
    from .compile.catalogue import Catalogue
    from .compile.compile_grammar import compile_grammar
    from .compile.constraint_source import Source
    from .compile.schemas.compile_schema import compile_json_schema
    from .compile.sequences import compile_sequences, compile_sids, sort_sids
    from .compile.tags.build import compile_structural_tag
    from .compile.tags.tagged_text import SpecialToken, Tag, TaggedText
    from .compile.text import compile_choices, compile_regex
    from .first_use import warm
    from .lazy.lazy_table import LazyTable
    from .runtime.arena.arena import Arena
    from .runtime.arena.capacity import Capacity
    from .runtime.host.matcher import Matcher
    from .table.transition_table import TransitionTable
    from .texts import generate, logits_processor
    from .vocabulary.vocabulary import Vocabulary

__version__ = "0.1.0"

__all__ = [
    "Arena",
    "Budget",
    "Cache",
    "Capacity",
    "Catalogue",
    "LazyTable",
    "Matcher",
    "Source",
    "SpecialToken",
    "Tag",
    "TaggedText",
    "TransitionTable",
    "Vocabulary",
    "compile_choices",
    "compile_grammar",
    "compile_json_schema",
    "compile_regex",
    "compile_sequences",
    "compile_sids",
    "compile_structural_tag",
    "generate",
    "logits_processor",
    "sort_sids",
    "warm",
]

_NAMES = {
    "automata.budget": ("Budget",),
    "compile.cache.cache": ("Cache",),
    "compile.catalogue": ("Catalogue",),
    "compile.constraint_source": ("Source",),
    "compile.compile_grammar": ("compile_grammar",),
    "compile.schemas.compile_schema": ("compile_json_schema",),
    "compile.sequences": ("compile_sequences", "compile_sids", "sort_sids"),
    "compile.tags.build": ("compile_structural_tag",),
    "compile.tags.tagged_text": ("SpecialToken", "Tag", "TaggedText"),
    "compile.text": ("compile_choices", "compile_regex"),
    "first_use": ("warm",),
    "lazy.lazy_table": ("LazyTable",),
    "runtime.arena.arena": ("Arena",),
    "runtime.arena.capacity": ("Capacity",),
    "runtime.host.matcher": ("Matcher",),
    "table.transition_table": ("TransitionTable",),
    "texts": ("generate", "logits_processor"),
    "vocabulary.vocabulary": ("Vocabulary",),
}
"""Public names, by the file that each is imported from."""
_FILES = {name: file for file, names in _NAMES.items() for name in names}
_PACKAGES = frozenset(file.partition(".")[0] for file in _NAMES) | {"errors", "kernels"}


def __getattr__(name: str) -> Any:
    """Import a public name, or a package of this one, when it is first asked for."""
    if name in _PACKAGES:
        return import_module(f"{__name__}.{name}")
    if name not in _FILES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(f"{__name__}.{_FILES[name]}"), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_PACKAGES})
