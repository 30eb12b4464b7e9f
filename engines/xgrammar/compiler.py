"""Constraints compiled for one tokenizer."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from ...compile.cache.cache import Cache
from ...compile.json_schema.source import SchemaSource
from ...lazy.lazy_table import Compiled
from ...vocabulary.vocabulary import Vocabulary
from .config import VERSION
from .exception import DeserializeFormatError, InvalidStructuralTagError, UsageError, parsed, raising
from .grammar import Grammar, json_of
from .tokenizer_info import TokenizerInfo, checked


class CompiledGrammar:
    """A compiled constraint, for any number of matchers."""

    def __init__(self, table: Compiled, tokenizer_info: TokenizerInfo, grammar: Grammar) -> None:
        self.table, self.tokenizer_info, self.grammar = table, tokenizer_info, grammar
        self._others: dict[tuple[int, ...], tuple[Compiled, Vocabulary]] = {}

    @property
    def memory_size_bytes(self) -> int:
        """Bytes that the constraint takes now."""
        return self.table.memory

    def ending_with(self, ends: Iterable[int] | None) -> tuple[Compiled, Vocabulary]:
        """Return the table in which certain tokens end a text, the tokenizer's if None, and its vocabulary.

        Made when it is first asked for. Raises UsageError for tokens that there are not.
        """
        info = self.tokenizer_info
        wanted = info.vocabulary.ends if ends is None else tuple(dict.fromkeys(ends))
        if wanted == info.vocabulary.ends:
            return self.table, info.vocabulary
        found = self._others.get(wanted)
        if found is None:
            vocabulary = info.ending_with(wanted)
            with raising():
                found = self._others[wanted] = self.grammar.source.compile(vocabulary), vocabulary
        return found

    def serialize_json(self) -> str:
        """Return what it was compiled from as JSON text, from which it is compiled again."""
        info = self.tokenizer_info
        named = {**info.metadata, "vocabulary": info.vocabulary.fingerprint, "names": info.vocabulary.names}
        return json_of({"grammar": self.grammar.contents, "tokenizer_metadata": named, "__VERSION__": VERSION})

    @classmethod
    def deserialize_json(cls, json_str: str, tokenizer_info: TokenizerInfo) -> CompiledGrammar:
        """Return what was written, for the same tokenizer.

        Raises InvalidJSONError, DeserializeVersionError; DeserializeFormatError for another tokenizer too.
        """
        said = checked(parsed(json_str))
        named, contents = said.get("tokenizer_metadata"), said.get("grammar")
        vocabulary = tokenizer_info.vocabulary
        own = {**tokenizer_info.metadata, "vocabulary": vocabulary.fingerprint, "names": vocabulary.names}
        if named != own or not isinstance(contents, dict):
            raise DeserializeFormatError("this is no compiled grammar, or one of another tokenizer")
        grammar = Grammar.from_contents(contents)
        with raising():
            return cls(grammar.source.compile(vocabulary), tokenizer_info, grammar)


class GrammarCompiler:
    """Compiles constraints for one tokenizer, each once.

    Args:
        tokenizer_info: That of the model's tokenizer.
        max_threads: Taken, and not needed.
        cache_enabled: Whether what was compiled is kept.
        cache_limit_bytes: The most bytes that are kept; -1 for no limit.

    Raises:
        ConstraintError: It cannot be compiled. It is a RuntimeError here, too.
        UsageError: An argument cannot be.
    """

    def __init__(
        self,
        tokenizer_info: TokenizerInfo,
        *,
        max_threads: int = 8,
        cache_enabled: bool = True,
        cache_limit_bytes: int = -1,
    ) -> None:
        if not isinstance(tokenizer_info, TokenizerInfo):
            raise UsageError(f"pass a TokenizerInfo, not {type(tokenizer_info).__name__}")
        if max_threads < 1 or cache_limit_bytes < -1:
            raise UsageError(
                f"max_threads={max_threads} must be 1 or more, cache_limit_bytes={cache_limit_bytes} -1 or more"
            )
        self.tokenizer_info, self.cache_limit_bytes = tokenizer_info, cache_limit_bytes
        self._cache: Cache | None = None
        if cache_enabled and cache_limit_bytes != 0:
            most = sys.maxsize if cache_limit_bytes < 0 else cache_limit_bytes
            self._cache = Cache(tokenizer_info.vocabulary, max_bytes=most)

    def compile_json_schema(
        self,
        schema: SchemaSource,
        *,
        any_whitespace: bool = True,
        indent: int | None = None,
        separators: tuple[str, str] | None = None,
        strict_mode: bool = True,
        max_whitespace_cnt: int | None = None,
        any_order: bool = False,
    ) -> CompiledGrammar:
        """Return the constraint of a JSON Schema.

        Args:
            schema: A dict, JSON text or a pydantic class.
            any_whitespace: True for white space where json.dumps puts it with any indent, False for one line.
            indent: Only None, unless there is any white space.
            separators: Those of one line; None for (", ", ": ").
            strict_mode: Whether an object that names properties has no others, and a list that says what its first
                items are has no further ones.
            max_whitespace_cnt: With any number of characters, where white space is allowed, it is exactly that of
                json.dumps without an indent.
            any_order: Whether properties may stand in any order; each key occurs once, and required ones do.
        """
        grammar = Grammar.of_schema(
            schema, any_whitespace=any_whitespace, indent=indent, separators=separators, strict_mode=strict_mode,
            max_whitespace_cnt=max_whitespace_cnt, any_order=any_order,
        )  # fmt: skip
        return self._compiled(grammar)

    def compile_builtin_json_grammar(self) -> CompiledGrammar:
        """Return the constraint of any JSON object or list."""
        return self._compiled(Grammar.builtin_json_grammar())

    def compile_regex(self, regex: str) -> CompiledGrammar:
        r"""Return the constraint of a pattern, of the whole text, in the syntax of Python's `re`.

        `\d`, `\w` and `\s` are ASCII; a pattern that begins with (?u) asks for Unicode.
        """
        return self._compiled(Grammar.of_regex(regex))

    def compile_grammar(self, grammar: str | Grammar, *, root_rule_name: str = "root") -> CompiledGrammar:
        """Return the constraint of a grammar: an object, or EBNF."""
        return self._compiled(grammar if isinstance(grammar, Grammar) else Grammar.of_text(grammar, root_rule_name))

    def compile_lark(self, lark_string: str, *, named_grammars: object = None) -> CompiledGrammar:
        """Return the constraint of a grammar in Lark's notation."""
        return self._compiled(Grammar.of_lark(lark_string, named_grammars))

    def compile_structural_tag(self, *args: Any, **kwargs: Any) -> CompiledGrammar:
        """Return the constraint of text with tags: a structural tag, or a list of tags and one of triggers.

        A structural tag is a `StructuralTag`, a dict or JSON text, in either form.
        """
        return self._compiled(Grammar.of_tag(*args, **kwargs))

    def clear_cache(self) -> None:
        """Forget what was compiled."""
        if self._cache is not None:
            self._cache.clear()

    def get_cache_size_bytes(self) -> int:
        """Return the bytes of what is kept."""
        return 0 if self._cache is None else self._cache.stats.bytes

    def _compiled(self, grammar: Grammar) -> CompiledGrammar:
        source = grammar.source
        with raising(InvalidStructuralTagError if source.kind == "structural tag" else RuntimeError):
            if self._cache is None:
                table = source.compile(self.tokenizer_info.vocabulary)
            else:
                table = self._cache.compile(source)
        return CompiledGrammar(table, self.tokenizer_info, grammar)
