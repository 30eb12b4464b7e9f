"""What requests of a serving engine may ask for, compiled for the engine's tokenizer."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Literal

from ..compile.cache.cache import Cache
from ..compile.constraint_source import Source
from ..compile.grammar.notations import syntax_of
from ..compile.json_schema.source import check_text_depth
from ..compile.regex.lower import engine_flags
from ..depth import enough_stack
from ..errors import ConstraintError
from ..lazy.lazy_table import Compiled
from ..runtime.host.matcher import Matcher
from ..vocabulary.vocabulary import Vocabulary
from .options import EngineOptions

_log = logging.getLogger(__name__)

Kind = Literal["json", "json_object", "regex", "choice", "grammar", "ebnf", "gbnf", "structural_tag"]
"""What a source is. choice: a JSON list of texts; grammar: EBNF or Lark's notation, as its text looks."""


def engine_vocabulary(tokenizer: object, size: int, ends: Iterable[int]) -> Vocabulary:
    """Return the vocabulary of a tokenizer of transformers whose texts also end with the tokens that an engine says.

    size: V, the width of the model's logits. ends: of the model's generation config, which the engine stops at.
    Raises ConstraintError for an end that spells text or is beyond V, and for a tokenizer without exact bytes.
    """
    known = sorted(ends)
    vocabulary = Vocabulary.from_transformers(tokenizer, size=size).with_ends(known)
    check_stops(vocabulary, known, "eos_token_id of the model's generation config")
    return vocabulary


class EngineConstraints:
    """Tables of one tokenizer, each compiled once for all requests of a process.

    Raises ConstraintError for a tokenizer whose tokens have no exact bytes, or that has no token to end with.
    """

    def __init__(self, vocabulary: Vocabulary, options: EngineOptions) -> None:
        if vocabulary.eos is None:
            raise ConstraintError(
                "this tokenizer has no token that ends a text, so no answer could end: give it an eos_token"
            )
        self.vocabulary, self.options = vocabulary, options
        self.cache = Cache(vocabulary, directory=options.cache_directory)

    @enough_stack()
    def compile(self, kind: Kind, source: str) -> Compiled:
        """Return the table of a constraint's text; of JSON Schemas, grammars and tags it may be lazy.

        Raises ConstraintError of any kind.
        """
        return self.cache.compile(self._source(kind, source), self.options.budget)

    def _source(self, kind: Kind, source: str) -> Source:
        if kind == "regex":
            return Source.regex(source, flags=engine_flags(source))
        if kind == "choice":
            return Source.choices(_texts(source))
        if kind in ("grammar", "ebnf", "gbnf"):
            return Source.grammar(source, syntax=syntax_of(source) if kind == "grammar" else kind)
        options: dict[str, Any] = {"whitespace": self.options.whitespace}
        if self.options.allow:
            options["allow"] = self.options.allow
        if kind == "structural_tag":
            return Source.structural_tag(_with_type(source), **options)
        return Source.json_schema('{"type": "object"}' if kind == "json_object" else source, **options)

    def matcher(self, kind: Kind, source: str) -> Matcher:
        """Return a matcher at the start of a constraint. Raises the errors of `compile`."""
        return Matcher(self.compile(kind, source), self.vocabulary)

    def without_text(self, tokens: Iterable[int]) -> EngineConstraints:
        """Return the constraints of this vocabulary in which these tokens are control tokens; itself if they are."""
        spelt = {token for token in tokens if 0 <= token < self.vocabulary.size and self.vocabulary.tokens[token]}
        if not spelt:
            return self
        texts = tuple(b"" if token in spelt else text for token, text in enumerate(self.vocabulary.tokens))
        special = self.vocabulary.special | spelt
        return EngineConstraints(replace(self.vocabulary, tokens=texts, special=special), self.options)

    def check_stops(self, tokens: Iterable[int]) -> None:
        """Raise ConstraintError if one of these tokens, with which an engine ends an answer, spells text.

        An answer that comes to it would be cut in the middle. Control tokens spell none: of constraints only tags and
        grammars that name them have them.
        """
        check_stops(self.vocabulary, tokens)


def check_stops(vocabulary: Vocabulary, tokens: Iterable[int], where: str = "stop_token_ids") -> None:
    """Raise ConstraintError as `EngineConstraints.check_stops` says. where: what has the tokens, for the error."""
    known = vocabulary.tokens
    for token in tokens:
        if 0 <= token < len(known) and known[token]:
            raise ConstraintError(
                f"token {token}, {known[token]!r}, ends an answer and is text that a constraint may need: take it "
                f"out of {where}"
            )


def tell_unenforced(request: str, matcher: Matcher) -> None:
    """Log what of a request's constraint is not enforced, as the operator's option "allow" lets it.

    request: by the id that the engine gave it.
    """
    unenforced = getattr(matcher.table, "unenforced", ())
    if unenforced:
        _log.warning("request %s is not enforced in full: %s", request, "; ".join(map(str, unenforced)))


def format_of(kind: Kind, source: str) -> dict[str, Any]:
    """Return the format of structural tags that holds a constraint as it stands.

    >>> format_of("regex", "[ab]")
    {'type': 'regex', 'pattern': '[ab]'}
    """
    if kind == "json_object":
        return {"type": "json_schema", "json_schema": {"type": "object"}}
    if kind == "json":
        return {"type": "json_schema", "json_schema": json.loads(source)}
    if kind == "regex":
        return {"type": "regex", "pattern": source}
    if kind == "ebnf":
        return {"type": "grammar", "grammar": source}
    raise ConstraintError(f"a constraint ({kind}) cannot be framed")


def _with_type(tag: str) -> str:
    """Return a structural tag with its type, which engines let the older form leave out."""
    check_text_depth(tag)
    try:
        found = json.loads(tag)
    except ValueError:
        return tag  # the compiler says where it is malformed
    if isinstance(found, dict) and "structures" in found and "type" not in found:
        return json.dumps({"type": "structural_tag", **found})
    return tag


def _texts(source: str) -> list[Any]:
    check_text_depth(source)
    try:
        found = json.loads(source)
    except ValueError:
        found = None
    if not isinstance(found, list):
        raise ConstraintError(f"choices are a JSON list of texts, not {source[:40]}")
    return found
