"""The formats of structural tags as Python objects, as XGrammar names them: what they say is what their dict says."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, Self

from .exception import InvalidStructuralTagError, UsageError, parsed, raising

_PLAIN = ("json_schema", "schema")  # fields whose dicts are no formats


@dataclass(kw_only=True)
class Format:
    """What may stand somewhere. Fields are checked when it is compiled."""

    type: str = ""

    def __post_init__(self) -> None:
        for each in fields(self):
            if each.name not in _PLAIN:
                setattr(self, each.name, _read(getattr(self, each.name)))

    def model_dump(self, *, exclude_none: bool = False, **_: object) -> dict[str, Any]:
        """Return it as a dict, that of a structural tag; other options of pydantic are taken, and change nothing."""
        named = ((each.name, getattr(self, each.name)) for each in fields(self))
        return {name: _dumped(value, exclude_none) for name, value in named if not (exclude_none and value is None)}

    def model_dump_json(self, *, indent: int | None = None, exclude_none: bool = False, **_: object) -> str:
        """Return it as JSON text."""
        return json.dumps(self.model_dump(exclude_none=exclude_none), indent=indent, ensure_ascii=False)

    @classmethod
    def model_validate(cls, value: object) -> Self:
        """Return the object of a dict. Raises InvalidStructuralTagError for fields too many or too few."""
        if isinstance(value, cls):
            return value
        if not isinstance(value, Mapping):
            raise InvalidStructuralTagError(f"a {cls.__name__} is made of a dict, not of {type(value).__name__}")
        known = {each.name: each for each in fields(cls)}
        wrong = [name for name in value if name not in known]
        missing = [
            name for name, each in known.items()
            if name not in value and each.default is MISSING and each.default_factory is MISSING
        ]  # fmt: skip
        said = value.get("type", known["type"].default if "type" in known else None)
        if wrong or missing or ("type" in known and said != known["type"].default):
            fault = f"has no field {wrong[0]!r}" if wrong else f"needs {missing[0]!r}" if missing else f"is no {said!r}"
            raise InvalidStructuralTagError(f"a {cls.__name__} {fault}")
        return cls(**{str(name): each for name, each in value.items()})

    @classmethod
    def model_validate_json(cls, text: str | bytes) -> Self:
        """Return the object of a JSON text. Raises InvalidJSONError too."""
        return cls.model_validate(parsed(text))


@dataclass(kw_only=True)
class ConstStringFormat(Format):
    """One text."""

    type: str = "const_string"
    value: str


@dataclass(kw_only=True)
class JSONSchemaFormat(Format):
    """A value of a schema, as JSON or in a style of parameters."""

    type: str = "json_schema"
    json_schema: Any
    style: str = "json"
    any_order: bool = False
    max_whitespace_cnt: int | None = None
    excludes: Sequence[str] = ()


@dataclass(kw_only=True)
class QwenXMLParameterFormat(Format):
    """A value of a schema in the style "qwen_xml"."""

    type: str = "qwen_xml_parameter"
    json_schema: Any


@dataclass(kw_only=True)
class AnyTextFormat(Format):
    """Any text."""

    type: str = "any_text"
    excludes: Sequence[str] = ()
    max_tokens: int | None = None
    max_chars: int | None = None


@dataclass(kw_only=True)
class GrammarFormat(Format):
    """What a grammar in EBNF derives."""

    type: str = "grammar"
    grammar: str


@dataclass(kw_only=True)
class RegexFormat(Format):
    """What a pattern matches."""

    type: str = "regex"
    pattern: str


@dataclass(kw_only=True)
class TokenFormat(Format):
    """One token, by its name or id."""

    type: str = "token"
    token: int | str


@dataclass(kw_only=True)
class ExcludeTokenFormat(Format):
    """Refused when it is compiled: any token but these."""

    type: str = "exclude_token"
    exclude_tokens: Sequence[int | str] = ()


@dataclass(kw_only=True)
class AnyTokensFormat(Format):
    """Refused when it is compiled: any tokens but these."""

    type: str = "any_tokens"
    exclude_tokens: Sequence[int | str] = ()
    max_tokens: int | None = None


@dataclass(kw_only=True)
class SequenceFormat(Format):
    """Formats one behind the other."""

    type: str = "sequence"
    elements: Sequence[Any]


@dataclass(kw_only=True)
class OrFormat(Format):
    """One of several formats."""

    type: str = "or"
    elements: Sequence[Any]


@dataclass(kw_only=True)
class TagFormat(Format):
    """What stands between a begin and an end."""

    type: str = "tag"
    begin: Any
    content: Any
    end: Any


@dataclass(kw_only=True)
class TriggeredTagsFormat(Format):
    """Free text in which triggers begin tags."""

    type: str = "triggered_tags"
    triggers: Sequence[str]
    tags: Sequence[Any]
    at_least_one: bool = False
    stop_after_first: bool = False
    excludes: Sequence[str] = ()


@dataclass(kw_only=True)
class TokenTriggeredTagsFormat(Format):
    """Free text in which tokens begin tags."""

    type: str = "token_triggered_tags"
    trigger_tokens: Sequence[int | str]
    tags: Sequence[Any]
    exclude_tokens: Sequence[int | str] = ()
    at_least_one: bool = False
    stop_after_first: bool = False


@dataclass(kw_only=True)
class TagsWithSeparatorFormat(Format):
    """Tags with a text between each two."""

    type: str = "tags_with_separator"
    tags: Sequence[Any]
    separator: str
    at_least_one: bool = False
    stop_after_first: bool = False


@dataclass(kw_only=True)
class OptionalFormat(Format):
    """A format once or not at all."""

    type: str = "optional"
    content: Any


@dataclass(kw_only=True)
class PlusFormat(Format):
    """A format once or more often."""

    type: str = "plus"
    content: Any


@dataclass(kw_only=True)
class StarFormat(Format):
    """A format any number of times."""

    type: str = "star"
    content: Any


@dataclass(kw_only=True)
class RepeatFormat(Format):
    """A format from `min` to `max` times; -1 for any number."""

    type: str = "repeat"
    min: int
    max: int
    content: Any


@dataclass(kw_only=True)
class DispatchFormat(Format):
    """Free text in which what a rule says follows its text."""

    type: str = "dispatch"
    rules: Sequence[Any]
    loop: bool = True
    excludes: Sequence[str] = ()


@dataclass(kw_only=True)
class TokenDispatchFormat(Format):
    """Free text in which what a rule says follows its token."""

    type: str = "token_dispatch"
    rules: Sequence[Any]
    loop: bool = True
    exclude_tokens: Sequence[int | str] = ()


@dataclass(kw_only=True)
class StructuralTag(Format):
    """A whole structural tag."""

    type: str = "structural_tag"
    format: Any

    @classmethod
    def from_legacy_structural_tag(cls, tags: Sequence[Any], triggers: Sequence[str]) -> StructuralTag:
        """Return free text in which triggers begin tags of schemas; tags: of the class `StructuralTagItem`."""
        made = [
            TagFormat(begin=tag.begin, content=JSONSchemaFormat(json_schema=_schema(tag.schema_)), end=tag.end)
            for tag in tags
        ]
        return cls(format=TriggeredTagsFormat(triggers=list(triggers), tags=made))

    @classmethod
    def from_json(cls, json_str: str | Mapping[str, Any]) -> StructuralTag:
        """Return the object of a JSON text or a dict."""
        return cls.model_validate_json(json_str) if isinstance(json_str, str) else cls.model_validate(json_str)


@dataclass(kw_only=True)
class StructuralTagItem:
    """A tag of the older form."""

    begin: str
    schema: Any = field(repr=False)
    end: str

    @property
    def schema_(self) -> Any:
        """Its schema: a dict, JSON text or a pydantic class."""
        return self.schema


FORMATS: dict[str, type[Format]] = {kind.type: kind for kind in Format.__subclasses__() if kind is not StructuralTag}


def tag_of(*args: Any, **kwargs: Any) -> Mapping[str, Any]:
    """Return the dict of a structural tag, given as `compile_structural_tag` takes it.

    Raises InvalidJSONError, InvalidStructuralTagError for what is no object, UsageError for other arguments.
    """
    names = {0: (), 1: ("structural_tag",), 2: ("tags", "triggers")}.get(len(args), range(len(args)))
    given = dict(zip(names, args, strict=True)) | kwargs
    if set(given) == {"tags", "triggers"}:
        return StructuralTag.from_legacy_structural_tag(given["tags"], given["triggers"]).model_dump()
    if set(given) != {"structural_tag"}:
        raise UsageError(f"pass a structural tag, or tags and triggers, not {', '.join(map(str, given)) or 'nothing'}")
    tag = given["structural_tag"]
    if isinstance(tag, str):
        tag = parsed(tag)
    elif hasattr(tag, "model_dump"):  # of these classes, or of pydantic
        tag = tag.model_dump()
    if not isinstance(tag, Mapping):
        raise InvalidStructuralTagError(f"a structural tag is an object, not {type(tag).__name__}")
    return tag


def _schema(schema: object) -> Any:
    from ...compile.json_schema.source import read

    with raising(InvalidStructuralTagError):
        return read(schema)  # type: ignore[arg-type]


def _read(value: Any) -> Any:
    """Return a value with each dict in it that is a format as an object."""
    if isinstance(value, Mapping) and value.get("type") in FORMATS:
        return FORMATS[value["type"]].model_validate(value)
    if isinstance(value, list | tuple):
        return type(value)(map(_read, value))
    return value


def _dumped(value: Any, exclude_none: bool) -> Any:
    if isinstance(value, Format):
        return value.model_dump(exclude_none=exclude_none)
    return [_dumped(each, exclude_none) for each in value] if isinstance(value, list | tuple) else value
