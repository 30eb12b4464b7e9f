"""The entry point of SGLang's plugins: makes `--grammar-backend maskwright` known."""

from __future__ import annotations

from typing import Any

from ...errors import ConstraintError
from ..versions import check_version

NAME = "maskwright"


def register() -> None:
    """Give SGLang the name of the backend; SGLang calls it in every process."""
    from sglang.srt.arg_groups.choices import GRAMMAR_BACKEND_CHOICES, add_grammar_backend_choices
    from sglang.srt.constrained.base_grammar_backend import register_grammar_backend

    if NAME not in GRAMMAR_BACKEND_CHOICES:
        add_grammar_backend_choices([NAME])
    register_grammar_backend(NAME, make_backend)


def make_backend(server_args: Any, tokenizer: Any, vocab_size: int, eos_token_ids: set[int] | None) -> Any:
    """Return the backend of a server that asks for it.

    Raises MissingDependencyError for a release of SGLang that was not tested, ConstraintError for settings and
    tokenizers that the backend does not serve. What SGLang hears from a plugin at once it only logs, so this waits
    until the server wants the backend, and then stops it.
    """
    import sglang

    check_version("SGLang", sglang.__version__, "name another --grammar-backend")
    from sglang.srt.runtime_context import get_serving

    serving = get_serving()
    for setting, value in (
        ("--reasoning-parser", serving.reasoning_parser),
        ("--enable-strict-thinking", serving.enable_strict_thinking),
        ("--constrained-json-whitespace-pattern", serving.constrained_json_whitespace_pattern),
        ("--constrained-json-max-whitespace-cnt", serving.constrained_json_max_whitespace_cnt),
    ):
        if value:
            raise ConstraintError(
                f"the grammar backend {NAME} does not take {setting}: leave it out, or name another --grammar-backend"
            )
    from ..constraints import EngineConstraints, engine_vocabulary
    from ..options import options_of
    from .backend import MaskwrightBackend

    options = options_of()
    if serving.constrained_json_disable_any_whitespace:
        options = options.compact()
    return MaskwrightBackend(EngineConstraints(engine_vocabulary(tokenizer, vocab_size, eos_token_ids or ()), options))
