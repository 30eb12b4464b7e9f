"""What texts must be, as XGrammar's `Grammar`: held as a format of structural tags."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Mapping
from decimal import Decimal
from functools import lru_cache
from typing import Any

from ...compile.constraint_source import Source
from ...compile.grammar.notations import STARTS
from ...compile.json_schema.source import SchemaSource, read
from ...compile.regex.lower import engine_flags
from ...compile.tags.tagged_text import SCHEMAS, plain
from ...depth import enough_stack
from ...errors import ConstraintError
from ...vocabulary.vocabulary import Vocabulary
from .config import VERSION
from .exception import DeserializeFormatError, InvalidStructuralTagError, UsageError, parsed, raising
from .strict_schemas import closed
from .structural_tag import tag_of
from .tokenizer_info import checked

Layout = str | tuple[str, str]
"""Where white space may stand in JSON, as for `compile_json_schema`."""
_OF_NUMBERS = frozenset(("type", "title", "description"))
_NUMBERS = {"integer": "-?(0|[1-9][0-9]*)", "number": r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?"}


class Grammar:
    """What texts must be. Make one with a method of its kind; all but `concat` and `union` check what they are given.

    Raises ConstraintError, which is a RuntimeError here too, for what is at fault.
    """

    def __init__(self, format: Mapping[str, Any], whitespace: Layout = "flexible") -> None:
        self.format, self.whitespace = format, whitespace

    @classmethod
    def from_ebnf(cls, ebnf_string: str, *, root_rule_name: str = "root") -> Grammar:
        """Return that of a grammar in EBNF, or of what `str` wrote of another grammar."""
        return cls.of_text(ebnf_string, root_rule_name)._checked()

    @classmethod
    def from_lark(cls, lark_string: str, *, tokenizer_info: object = None, named_grammars: object = None) -> Grammar:
        """Return that of a grammar in Lark's notation. tokenizer_info: taken, and not needed before it is compiled."""
        return cls.of_lark(lark_string, named_grammars)._checked()

    @classmethod
    def from_regex(cls, regex_string: str, *, print_converted_ebnf: bool = False) -> Grammar:
        """Return that of a pattern, of the whole text, in the syntax of Python's `re`."""
        return cls.of_regex(regex_string)._checked(print_converted_ebnf)

    @classmethod
    def from_json_schema(cls, schema: SchemaSource, *, print_converted_ebnf: bool = False, **options: Any) -> Grammar:
        """Return that of a JSON Schema; options: those of `GrammarCompiler.compile_json_schema`."""
        return cls.of_schema(schema, **options)._checked(print_converted_ebnf)

    @classmethod
    def from_structural_tag(cls, *args: Any, **kwargs: Any) -> Grammar:
        """Return that of text with tags: a structural tag, or a list of tags and one of triggers."""
        return cls.of_tag(*args, **kwargs)._checked()

    @classmethod
    def builtin_json_grammar(cls) -> Grammar:
        """Return that of any JSON object or list."""
        return cls({"type": "json_schema", "json_schema": {"type": ["object", "array"]}})

    @classmethod
    def concat(cls, *grammars: Grammar) -> Grammar:
        """Return that of a text of each grammar, one behind the other."""
        return cls({"type": "sequence", "elements": [each.format for each in grammars]}, _one_layout(grammars))

    @classmethod
    def union(cls, *grammars: Grammar) -> Grammar:
        """Return that of a text of one of the grammars."""
        return cls({"type": "or", "elements": [each.format for each in grammars]}, _one_layout(grammars))

    # ------------------------------------------------------------------------------- without a check, for compilers

    @classmethod
    def of_text(cls, text: str, root: str) -> Grammar:
        """Return the grammar of EBNF, or of what `str` wrote."""
        if not isinstance(text, str):
            raise TypeError(f"a grammar is a str, not {type(text).__name__}")
        if text.lstrip().startswith("{"):  # no grammar begins so
            return cls(_prepared(parsed(text)))
        return cls({"type": "grammar", "grammar": text, "syntax": "ebnf", "start": root})

    @classmethod
    def of_lark(cls, text: str, named: object) -> Grammar:
        """Return the grammar of Lark's notation. Raises UsageError for named grammars."""
        if named:
            raise UsageError("named_grammars are not supported: write their rules into the grammar")
        return cls({"type": "grammar", "grammar": text, "syntax": "lark", "start": STARTS["lark"]})

    @classmethod
    def of_regex(cls, pattern: str) -> Grammar:
        """Return the grammar of a pattern."""
        return cls({"type": "regex", "pattern": pattern})

    @classmethod
    def of_schema(
        cls,
        schema: SchemaSource,
        *,
        any_whitespace: bool = True,
        indent: int | None = None,
        separators: tuple[str, str] | None = None,
        strict_mode: bool = True,
        max_whitespace_cnt: int | None = None,
        any_order: bool = False,
    ) -> Grammar:
        """Return the grammar of a schema; the arguments are those of `GrammarCompiler.compile_json_schema`."""
        with raising():
            contents = read(schema)
            contents = closed(contents) if strict_mode else contents
        layout: Layout = "flexible"
        if not any_whitespace and indent is not None:
            raise UsageError(
                "indent is not supported: any_whitespace=True allows what json.dumps writes with any indent, and "
                "any_whitespace=False one line"
            )
        if not any_whitespace:
            comma, colon = (", ", ": ") if separators is None else separators
            layout = comma, colon
        elif max_whitespace_cnt is not None:
            if max_whitespace_cnt < 1:
                raise UsageError(f"max_whitespace_cnt must be 1 or more, not {max_whitespace_cnt}")
            layout = "spaced"
        return cls({"type": "json_schema", "json_schema": contents, "any_order": any_order}, layout)

    @classmethod
    def of_tag(cls, *args: Any, **kwargs: Any) -> Grammar:
        """Return the grammar of a structural tag; the arguments are those of `compile_structural_tag`."""
        tag = tag_of(*args, **kwargs)
        with raising(InvalidStructuralTagError), enough_stack():
            tag = plain(tag)
            if "structures" in tag:
                tag = {"type": "structural_tag", "format": _newer(tag)}
            if tag.get("type") != "structural_tag" or not isinstance(tag.get("format"), Mapping) or len(tag) > 2:
                raise ConstraintError('a structural tag is {"type": "structural_tag", "format": ..}', pointer="")
            return cls(_prepared(tag["format"]))

    # --------------------------------------------------------------------------------------------------- what it is

    @property
    def source(self) -> Source:
        """What compiles it."""
        said, kind = self.format, self.format.get("type")
        if kind == "json_schema" and "json_schema" in said and set(said) <= {"type", "json_schema", "any_order"}:
            order = said.get("any_order", False)
            return Source.json_schema(said["json_schema"], whitespace=self.whitespace, any_order=order)
        if kind == "regex" and set(said) == {"type", "pattern"} and isinstance(said["pattern"], str):
            return Source.regex(said["pattern"], flags=engine_flags(said["pattern"]))
        if kind == "grammar" and set(said) == {"type", "grammar", "syntax", "start"}:
            return Source.grammar(said["grammar"], syntax=said["syntax"], start=said["start"])
        return Source.structural_tag({"type": "structural_tag", "format": said}, whitespace=self.whitespace)

    def __str__(self) -> str:
        """Return the grammar as it was given in EBNF; any other as JSON text, which `from_ebnf` reads."""
        said = self.format
        if said.get("type") == "grammar" and said.get("syntax") == "ebnf" and said.get("start") == STARTS["ebnf"]:
            return str(said["grammar"])
        return json_of(said)

    def serialize_json(self) -> str:
        """Return it as JSON text."""
        return json_of({**self.contents, "__VERSION__": VERSION})

    @classmethod
    def deserialize_json(cls, json_string: str) -> Grammar:
        """Return what was written. Raises InvalidJSONError, DeserializeFormatError and DeserializeVersionError."""
        return cls.from_contents(checked(parsed(json_string)))

    @property
    def contents(self) -> dict[str, Any]:
        """What is written of it."""
        return {"format": self.format, "whitespace": self.whitespace}

    @classmethod
    def from_contents(cls, said: Mapping[str, Any]) -> Grammar:
        """Return the grammar of its contents. Raises DeserializeFormatError."""
        format, layout = said.get("format"), said.get("whitespace")
        if not isinstance(format, Mapping) or not isinstance(layout, str | list):
            raise DeserializeFormatError("this is no grammar: it has no format or no whitespace")
        return cls(format, layout if isinstance(layout, str) else tuple(layout))

    def _checked(self, shown: bool = False) -> Grammar:
        """Return this grammar. Raises ConstraintError for what cannot be compiled for any tokenizer."""
        if shown:
            print(self)
        names: set[str] = set()
        source = Grammar(_named(self.format, names), self.whitespace).source
        with raising(InvalidStructuralTagError if source.kind == "structural tag" else RuntimeError):
            source.compile(_bytes_and(frozenset(names)))
        return self


@lru_cache(16)
def _bytes_and(names: frozenset[str]) -> Vocabulary:
    """Return the vocabulary of all bytes and of some tokens with a name."""
    given = sorted(names)
    tokens = [*(bytes([b]) for b in range(256)), b"", *(name.encode("utf-8", "replace") for name in given)]
    return Vocabulary.from_bytes(tokens, eos=256, names={name: 257 + i for i, name in enumerate(given)})


def _named(value: Any, names: set[str]) -> Any:
    """Return a format in which each token has a name, and add these to `names`."""

    def name(token: Any) -> Any:
        if isinstance(token, int) and not isinstance(token, bool):
            token = f"<token {token}>"
        if isinstance(token, str):
            names.add(token)
        return token

    if isinstance(value, list | tuple):
        return [_named(each, names) for each in value]
    if not isinstance(value, Mapping):
        return value
    made = dict(value)
    for key, each in value.items():
        if key == "token":
            made[key] = name(each)
        elif key in ("trigger_tokens", "exclude_tokens") and isinstance(each, list | tuple):
            made[key] = list(map(name, each))
        elif key not in SCHEMAS:
            made[key] = _named(each, names)
    return made


def _one_layout(grammars: tuple[Grammar, ...]) -> Layout:
    if not grammars:
        raise UsageError("pass at least one grammar")
    layouts = {each.whitespace for each in grammars}
    if len(layouts) > 1:
        raise UsageError("grammars with white space in other places cannot be joined: pass the same options of JSON")
    return layouts.pop()


def _newer(tag: Mapping[str, Any]) -> dict[str, Any]:
    """Return the format of a structural tag in the older form."""
    more = {key: value for key, value in tag.items() if key not in ("structures", "type")}
    tags = [
        {**each, "content": {"type": "json_schema", "json_schema": each["schema"]}}
        if isinstance(each, Mapping) and "schema" in each else each
        for each in tag["structures"]
    ]  # fmt: skip
    for each in tags:
        if isinstance(each, dict):
            each.pop("schema", None)
    return {"type": "triggered_tags", "tags": tags, **more}


def _prepared(format: Any) -> Any:
    """Return a format as maskwright reads it: schemas in strict mode, as XGrammar has it in tags, and no dispatch."""
    if not isinstance(format, Mapping):
        return format
    made = dict(format)
    match made.get("type"):
        case "json_schema" | "qwen_xml_parameter" if isinstance(made.get("json_schema"), dict | str):
            schema = made["json_schema"] = closed(read(made["json_schema"]))
            # a number in JSON ends before what no number has, a pattern before anything
            if made.get("style", "json") == "json" and isinstance(schema, dict) and not set(schema) - _OF_NUMBERS:
                number = _NUMBERS.get(str(schema.get("type")))
                return made if number is None else {"type": "regex", "pattern": number}
        case "grammar" if str(made.get("grammar")).lstrip().startswith("{"):
            return _prepared(parsed(made["grammar"]))
        case "dispatch" | "token_dispatch" as kind if isinstance(made.get("rules"), list | tuple):
            made = _as_triggered(made, kind)
    for key in ("content", "format"):
        if key in made:
            made[key] = _prepared(made[key])
    for key in ("elements", "tags"):
        if isinstance(made.get(key), list | tuple):
            made[key] = [_prepared(each) for each in made[key]]
    return made


def _as_triggered(made: dict[str, Any], kind: str) -> dict[str, Any]:
    """Return free text in which rules say what follows a text or a token, as free text with tags that have no end."""
    rules = made["rules"]
    if not all(isinstance(rule, list | tuple) and len(rule) == 2 for rule in rules):
        raise ConstraintError("a rule is a list of what begins it and a format", pointer="/rules")
    by_token = kind == "token_dispatch"
    tags = [
        {"type": "tag", "begin": {"type": "token", "token": begin} if by_token else begin, "content": inner, "end": ""}
        for begin, inner in rules
    ]
    rest = {key: value for key, value in made.items() if key not in ("type", "rules", "loop")}
    return {
        "type": "token_triggered_tags" if by_token else "triggered_tags",
        "trigger_tokens" if by_token else "triggers": list(dict.fromkeys(begin for begin, _ in rules)),
        "tags": tags, "stop_after_first": not made.get("loop", True), **rest,
    }  # fmt: skip


def json_of(value: object) -> str:
    """Return JSON text with each number as it was written."""
    mark = uuid.uuid4().hex

    def number(each: object) -> str:
        if isinstance(each, Decimal):
            return f"{mark}{each}"
        raise TypeError(f"a {type(each).__name__} is no JSON")

    with enough_stack():
        return re.sub(f'"{mark}([^"]*)"', r"\1", json.dumps(value, default=number, ensure_ascii=False))
