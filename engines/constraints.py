"""What requests of a serving engine may ask for, compiled for the engine's tokenizer."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Literal, cast

from ..compile.cache.cache import Cache
from ..compile.cache.compilers import InThread
from ..compile.cache.lanes import Lanes
from ..compile.constraint_source import Source
from ..compile.grammar.notations import syntax_of
from ..compile.json_schema.source import check_text_depth
from ..compile.regex.lower import engine_flags
from ..depth import enough_stack
from ..errors import BudgetError, ConstraintError
from ..first_use import use
from ..lazy.lazy_table import Compiled
from ..runtime.host.bitmask_rows import words_of_rows, write_row
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


class RequestMatcher(Matcher):
    """A matcher of one request: reading that exceeds its half second ends the request, and not the engine.

    Where a mask cannot be read, only the end is allowed there, and it is not taken: `advance` returns False, at which
    engines end a request with an error.
    """

    __slots__ = ("_unread",)

    def __init__(self, table: Compiled, vocabulary: Vocabulary) -> None:
        super().__init__(table, vocabulary)
        self._unread = -1  # how many tokens there were where nothing could be read

    def fill_bitmask(self, bitmask: object, row: int = 0) -> None:
        """Write the tokens that are allowed next into a row of the engine's bitmasks, as `Matcher.fill_bitmask`."""
        try:
            super().fill_bitmask(bitmask, row)
        except BudgetError as error:
            self._give_up(error)
            write_row(words_of_rows(bitmask), row, self._only([]))
            return
        if self._unread == self.num_tokens:  # after other tokens than these
            self._unread = -1

    def advance(self, token: int) -> bool:
        """Take one more token, if it is allowed and could be read; return whether it is. Raises ValueError."""
        if self._unread == self.num_tokens:
            return False
        try:
            return super().advance(token)
        except BudgetError as error:
            self._give_up(error)
            return False

    def forced_tokens(self) -> list[int]:
        """Return the tokens that must follow, as `Matcher.forced_tokens`; none where that cannot be read."""
        try:
            return super().forced_tokens()
        except BudgetError:
            return []

    def copy(self) -> RequestMatcher:
        """Return a matcher that stands where this one does."""
        twin = cast(RequestMatcher, super().copy())
        twin._unread = self._unread
        return twin

    def _give_up(self, error: BudgetError) -> None:
        if self._unread != self.num_tokens:
            _log.warning("a constraint takes too long after %d tokens, so its answer ends: %s", self.num_tokens, error)
        self._unread = self.num_tokens


def processes_beside() -> int:
    """Return how many processes compile beside an engine: one for two processors, four at most."""
    return max(1, min(4, (os.cpu_count() or 1) // 2))


class EngineConstraints:
    """Tables of one tokenizer, each compiled once for all requests of a process.

    What begins soon is read as texts come to its states, for half a second at a time at most. processes: how many
    compile what does not; 0 for the thread that asks.
    Raises ConstraintError for a tokenizer whose tokens have no exact bytes, or that has no token to end with.
    """

    def __init__(self, vocabulary: Vocabulary, options: EngineOptions, processes: int = 0) -> None:
        if vocabulary.eos is None:
            raise ConstraintError(
                "this tokenizer has no token that ends a text, so no answer could end: give it an eos_token"
            )
        self.vocabulary, self.options, self._processes = vocabulary, options, processes
        compilers = Lanes(vocabulary, processes, use) if processes else InThread(vocabulary)
        self.cache = Cache(vocabulary, directory=options.cache_directory, compilers=compilers)

    @enough_stack()
    def compile(self, kind: Kind, source: str) -> Compiled:
        """Return the table of a constraint's text; it may be lazy. Raises ConstraintError of any kind."""
        return self.cache.compile(self.source(kind, source), self.options.budget)

    def source(self, kind: Kind, source: str) -> Source:
        """Return what is compiled for a constraint's text. Raises ConstraintError."""
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

    def matcher(self, kind: Kind, source: str) -> RequestMatcher:
        """Return a matcher at the start of a constraint. Raises the errors of `compile`."""
        return RequestMatcher(self.compile(kind, source), self.vocabulary)

    def without_text(self, tokens: Iterable[int]) -> EngineConstraints:
        """Return the constraints of this vocabulary in which these tokens are control tokens; itself if they are."""
        spelt = {token for token in tokens if 0 <= token < self.vocabulary.size and self.vocabulary.tokens[token]}
        if not spelt:
            return self
        texts = tuple(b"" if token in spelt else text for token, text in enumerate(self.vocabulary.tokens))
        special = self.vocabulary.special | spelt
        return EngineConstraints(replace(self.vocabulary, tokens=texts, special=special), self.options, self._processes)

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
