"""The classes of XGrammar's Python package, with maskwright underneath, for code that is written for that package.

`docs/how_to/drop_in_matchers.md` lists what is different. Names are imported when they are first asked for: those of
bitmasks need torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .bitmasks import (
        allocate_token_bitmask as allocate_token_bitmask,
    )
    from .bitmasks import (
        apply_token_bitmask_inplace as apply_token_bitmask_inplace,
    )
    from .bitmasks import (
        bitmask_dtype as bitmask_dtype,
    )
    from .bitmasks import (
        reset_token_bitmask as reset_token_bitmask,
    )
    from .compiler import CompiledGrammar as CompiledGrammar
    from .compiler import GrammarCompiler as GrammarCompiler
    from .config import (
        get_max_recursion_depth as get_max_recursion_depth,
    )
    from .config import (
        get_serialization_version as get_serialization_version,
    )
    from .config import (
        max_recursion_depth as max_recursion_depth,
    )
    from .config import (
        set_max_recursion_depth as set_max_recursion_depth,
    )
    from .exception import (
        DeserializeFormatError as DeserializeFormatError,
    )
    from .exception import (
        DeserializeVersionError as DeserializeVersionError,
    )
    from .exception import (
        InvalidJSONError as InvalidJSONError,
    )
    from .exception import (
        InvalidStructuralTagError as InvalidStructuralTagError,
    )
    from .grammar import Grammar as Grammar
    from .matcher import BatchGrammarMatcher as BatchGrammarMatcher
    from .matcher import GrammarMatcher as GrammarMatcher
    from .matcher import get_bitmask_shape as get_bitmask_shape
    from .structural_tag import StructuralTag as StructuralTag
    from .structural_tag import StructuralTagItem as StructuralTagItem
    from .tokenizer_info import TokenizerInfo as TokenizerInfo
    from .tokenizer_info import VocabType as VocabType

_NAMES = {
    "bitmasks": ("allocate_token_bitmask", "apply_token_bitmask_inplace", "bitmask_dtype", "reset_token_bitmask"),
    "compiler": ("CompiledGrammar", "GrammarCompiler"),
    "config": (
        "get_max_recursion_depth", "get_serialization_version", "max_recursion_depth", "set_max_recursion_depth",
    ),
    "exception": (
        "DeserializeFormatError", "DeserializeVersionError", "InvalidJSONError", "InvalidStructuralTagError",
    ),
    "grammar": ("Grammar",),
    "matcher": ("BatchGrammarMatcher", "GrammarMatcher", "get_bitmask_shape"),
    "structural_tag": ("StructuralTag", "StructuralTagItem"),
    "tokenizer_info": ("TokenizerInfo", "VocabType"),
}  # fmt: skip
"""Public names, by the file that each is imported from."""
_FILES = {name: file for file, names in _NAMES.items() for name in names}
_TOOLS = 'compile_structural_tag of what the engine\'s own parser asks for, in the styles of "json_schema" formats'
_NOT_OFFERED = {
    "get_model_structural_tag": _TOOLS,
    "get_builtin_structural_tag": _TOOLS,
    "register_model_structural_tag": _TOOLS,
    "normalize_tool_choice": _TOOLS,
    "testing": "compile with a GrammarCompiler and ask a GrammarMatcher",
}

__all__ = list(_FILES)


def __getattr__(name: str) -> Any:
    """Import a public name, or a file of this package, when it is first asked for."""
    if name in _NAMES or name == "contrib":
        return import_module(f"{__name__}.{name}")
    if name == "hf":
        return import_module(f"{__name__}.contrib.hf")
    if name in _NOT_OFFERED:
        raise AttributeError(f"{name} of XGrammar is not offered: {_NOT_OFFERED[name]}")
    if name not in _FILES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(f"{__name__}.{_FILES[name]}"), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_NAMES, "contrib", "hf"})
