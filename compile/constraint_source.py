"""`Source`: what texts must be, of any kind. Nothing else knows which kinds there are and what compiles them."""

from __future__ import annotations

import pickle
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, get_args
from weakref import WeakKeyDictionary

from ..automata.budget import Budget
from ..depth import Flat, deep_value
from ..lazy.lazy_table import Compiled
from ..vocabulary.vocabulary import Vocabulary
from . import arguments, text
from . import compile_grammar as grammars
from .grammar.notations import Syntax
from .json_schema import request as requests
from .json_schema.approximations import allowed_keywords
from .schemas import compile_schema as schemas
from .tags import build as tags
from .tags.tagged_text import PARTS, SCHEMAS, plain

Kind = Literal["json schema", "regex", "choices", "grammar", "structural tag"]

_classes: WeakKeyDictionary[type, tuple[Any, Any]] = WeakKeyDictionary()  # the schemas of pydantic classes


@dataclass(frozen=True, eq=False)
class Source:
    """Something to compile: a JSON Schema, a pattern, a list of texts, a grammar or text with tags, with its options.

    Make one with the method of its kind. Whatever compiles constraints takes it: a `Cache`, pools of processes, the
    server, the plugins of engines and the command line. What is wrong with it is said by `compile`, or by `key`,
    whichever is called first.

    Attributes:
        kind: "json schema", "regex", "choices", "grammar" or "structural tag".
        contents: The schema, the pattern, the texts, the grammar or the tag.
        options: Those of the function that compiles this kind, but for `lazy` and `budget`.
        lazy: Whether it need not be a whole table.

    Examples:
        >>> vocab = Vocabulary.from_bytes([b"", *(bytes([b]) for b in range(256))], eos=0)
        >>> source = Source.regex("[ab]+")
        >>> source.compile(vocab).accepts([98, 99])
        True
        >>> source.key(vocab) == Source.regex("[ab]+").key(vocab), source.key(vocab) == Source.regex("[ba]+").key(vocab)
        (True, False)
    """

    kind: Kind
    contents: Any
    options: Mapping[str, Any] = field(default_factory=dict)
    lazy: bool = True

    @classmethod
    def json_schema(cls, schema: object, *, lazy: bool = True, **options: Any) -> Source:
        """Return the source of a schema.

        Args:
            schema: As in `compile_json_schema`.
            lazy: As in `compile_json_schema`.
            **options: Other arguments of `compile_json_schema`, but for `budget`.

        Returns:
            The source.

        Raises:
            TypeError: `lazy` is no bool.

        Examples:
            >>> Source.json_schema({"type": "integer"}).kind
            'json schema'
        """
        if not isinstance(lazy, bool):
            raise TypeError(f"lazy must be True or False, not {lazy!r}")
        return cls("json schema", _contents_of(schema) if isinstance(schema, type) else schema, _json(options), lazy)

    @classmethod
    def regex(cls, pattern: str, *, flags: str = "", lazy: bool = True) -> Source:
        """Return the source of a pattern.

        Args:
            pattern: As in `compile_regex`.
            flags: As in `compile_regex`.
            lazy: As in `compile_regex`.

        Returns:
            The source.

        Examples:
            >>> Source.regex("[ab]+", flags="i").options
            {'flags': 'i'}
        """
        flags = "".join(sorted(set(flags))) if isinstance(flags, str) else flags
        return cls("regex", _plain(pattern), {"flags": flags}, lazy)

    @classmethod
    def choices(cls, choices: Iterable[str]) -> Source:
        """Return the source of a list of texts.

        Args:
            choices: As in `compile_choices`.

        Returns:
            The source.

        Examples:
            >>> Source.choices(["yes", "no"]).contents
            ('yes', 'no')
        """
        if isinstance(choices, (str, bytes)) or not isinstance(choices, Iterable):
            return cls("choices", choices)
        return cls("choices", tuple(map(_plain, choices)))

    @classmethod
    def grammar(cls, grammar: str, *, start: str | None = None, syntax: Syntax = "lark", depth: int = 64) -> Source:
        """Return the source of a grammar.

        Args:
            grammar: As in `compile_grammar`.
            start: As in `compile_grammar`.
            syntax: As in `compile_grammar`.
            depth: As in `compile_grammar`.

        Returns:
            The source.

        Examples:
            >>> Source.grammar('start: "(" start ")" | "x"').kind
            'grammar'
        """
        return cls("grammar", _plain(grammar), {"start": _plain(start), "syntax": _plain(syntax), "depth": depth})

    @classmethod
    def structural_tag(cls, tag: object, **options: Any) -> Source:
        """Return the source of text with tags.

        Args:
            tag: As in `compile_structural_tag`.
            **options: Other arguments of `compile_structural_tag`, but for `budget`.

        Returns:
            The source.

        Examples:
            >>> Source.structural_tag({"type": "structural_tag", "format": {"type": "any_text"}}).kind
            'structural tag'
        """
        return cls("structural tag", tag if isinstance(tag, str) else _format(plain(tag)), _json(options))

    @property
    def whole(self) -> Source:
        """The source of the whole table."""
        return replace(self, lazy=False)

    def compile(self, vocabulary: Vocabulary, budget: Budget | None = None) -> Compiled:
        """Return the table of this source.

        Args:
            vocabulary: The tokens that texts are written with.
            budget: Limits of this compilation, and of what is read later.

        Returns:
            A `LazyTable` where the source is lazy and can be, else a `TransitionTable`.

        Raises:
            ConstraintError: What the function that compiles this kind raises.
        """
        made: Compiled
        match self.kind:
            case "json schema":
                made = schemas.compile_request(self._asked, vocabulary, lazy=self.lazy, budget=budget)
            case "regex":
                made = text.compile_regex(self.contents, vocabulary, lazy=self.lazy, budget=budget, **self.options)
            case "choices":
                made = text.compile_choices(self.contents, vocabulary, budget=budget)
            case "grammar":
                made = grammars.compile_grammar(self.contents, vocabulary, budget=budget, **self.options)
            case "structural tag":
                made = tags.compile_structural_tag(self._tag, vocabulary, budget=budget, **self.options)
        return made if self.lazy else made.to_table()

    def key(self, vocabulary: Vocabulary) -> str | None:
        """Return a hash of all that the table follows from, `source` of the table: by it caches know the table.

        Args:
            vocabulary: The one that the table is for: grammars and tags may name its special tokens.

        Returns:
            The hash; None for contents or options of a wrong type.

        Raises:
            ConstraintError: What `compile` raises for wrong options, and for a schema or tag that cannot be read.
        """
        contents, options = self.contents, self.options
        match self.kind:
            case "json schema":
                return self._asked.source
            case "regex":
                is_right = isinstance(contents, str) and isinstance(options["flags"], str) and type(self.lazy) is bool
                return arguments.source_of("regex", options["flags"], contents) if is_right else None
            case "choices":
                if not isinstance(contents, tuple) or not all(isinstance(each, str) for each in contents):
                    return None  # lone surrogates are known by their bytes, as the compiler knows them
                spelt = [repr(each.encode("utf-8", "surrogatepass")) for each in contents]
                return arguments.source_of("choices", *spelt)
            case "grammar":
                start, syntax, depth = options["start"], options["syntax"], options["depth"]
                named = isinstance(contents, str) and isinstance(start, str | None) and syntax in get_args(Syntax)
                if not named or type(depth) is not int:
                    return None
                return grammars.request(contents, vocabulary, start=start, syntax=syntax, depth=depth)[1]
            case "structural tag":
                return tags.source_of_tags(self._tag, requests.request(True, **options), vocabulary)

    @property
    def spelling(self) -> Hashable:
        """What it says as it stands, from which nothing else has to be made; None where that may mislead.

        A pickle says all there is to plain objects, and takes a part that occurs in several places once.
        """
        contents, options = self.contents, self.options
        if self.kind == "grammar" or options.get("documents") is not None:
            return None
        try:
            said = contents
            if self.kind in ("json schema", "structural tag") and type(contents) is not str:
                if deep_value(contents) is not None:
                    return None
                said = pickle.dumps(contents, 5)
            spelling = self.kind, said, pickle.dumps(tuple(options.items()), 5), self.lazy
            hash(spelling)
        except (ValueError, TypeError, AttributeError, RecursionError, pickle.PicklingError):
            return None
        return spelling

    @cached_property
    def _asked(self) -> requests.Request:
        return requests.request(self.contents, **self.options)

    @cached_property
    def _tag(self) -> Mapping[str, Any]:
        return _format(plain(self.contents)) if isinstance(self.contents, str) else self.contents  # type: ignore[no-any-return]

    def __reduce__(self) -> Any:
        # whatever the depth of its JSON
        options = {name: Flat(value) if name == "documents" else value for name, value in self.options.items()}
        if self.kind == "choices" and isinstance(self.contents, tuple):
            contents: Any = tuple([each if isinstance(each, str) else Flat(each) for each in self.contents])
        else:
            contents = Flat(self.contents)
        return Source, (self.kind, contents, options, self.lazy)


def _plain(given: object) -> Any:
    """Return a str as one of no class of its own; anything else as it is."""
    return "".join([given]) if isinstance(given, str) else given


def _json(options: dict[str, Any]) -> dict[str, Any]:
    """Return options of JSON, of which `allow` may be read only once."""
    return {**options, "allow": allowed_keywords(options["allow"])} if "allow" in options else options


def _contents_of(model: type) -> Any:
    """Return the schema of a pydantic model class, which takes a while to make, once for each class."""
    from .json_schema.source import read

    made = getattr(model, "__pydantic_core_schema__", None)  # another object after the model is rebuilt
    known = _classes.get(model)
    if known is not None and known[0] is made and made is not None:
        return known[1]
    contents = read(model)
    _classes[model] = made, contents
    return contents


def _format(part: object) -> Any:
    """Return a part of a structural tag as it is to be read, with the schemas of pydantic classes in their places.

    A class says nothing by itself, and is another once it is rebuilt.
    """
    if not isinstance(part, Mapping):
        return part
    read = {}
    for key in (*PARTS, "structures"):
        if key in part:
            inner = part[key]
            read[key] = list(map(_format, inner)) if isinstance(inner, (list, tuple)) else _format(inner)
    classes = {key: _contents_of(part[key]) for key in SCHEMAS if isinstance(part.get(key), type)}
    return {**part, **read, **classes}
