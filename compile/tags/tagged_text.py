"""Text with tags as Python objects, and its form as the dict of a structural tag."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...depth import LIMIT, MOST_FORMATS, enough_stack
from ...errors import ConstraintError
from ..json_schema.source import check_depth, parsed, shown
from .checks import refuse

PARTS = ("format", "content", "elements", "tags")
"""Where formats stand in a format, one or a list of them."""
SCHEMAS = ("schema", "json_schema")
"""Where a JSON Schema stands."""


@dataclass(frozen=True)
class SpecialToken:
    """A token by its name in the tokenizer, where a tag begins or ends.

    Args:
        name: Such as `<|tool_call|>`.

    Examples:
        >>> Tag(SpecialToken("<|tool_call|>"), SpecialToken("<|end|>"), schema={"type": "object"}).begin
        SpecialToken(name='<|tool_call|>')
    """

    name: str


@dataclass(frozen=True)
class Tag:
    """A region of text from `begin` to `end`, by what stands in between: one of the last four fields.

    Args:
        begin: A text, in which the name of a control token means that token; or a special token.
        end: As `begin`, or several texts, one of which ends the tag.
        schema: A JSON Schema, as `compile_json_schema` takes it.
        regex: A pattern, as `compile_regex` takes it.
        grammar: A grammar in Lark's notation.
        content: Another `TaggedText`, or a format as in a structural tag, such as {"type": "any_text"}.

    Examples:
        >>> Tag("<n>", "</n>", regex="[0-9]+").regex
        '[0-9]+'
    """

    begin: str | SpecialToken
    end: str | SpecialToken | Sequence[str] = ""
    schema: Any = None
    regex: str | None = None
    grammar: str | None = None
    content: TaggedText | Mapping[str, Any] | None = None


@dataclass(frozen=True)
class TaggedText:
    """Free text with tags in it.

    Args:
        tags: What stands in it.
        triggers: Texts with which a tag begins wherever they occur; None for the whole begins of all tags.
        at_least: How many tags there are at least.
        at_most: How many there are at most; None for any number.
        stop: Whether the text ends with the first tag.
        excludes: Texts that do not occur between tags.

    Examples:
        >>> TaggedText([Tag("<n>", "</n>", regex="[0-9]+")], at_least=1).at_least
        1
    """

    tags: Sequence[Tag]
    triggers: Sequence[str] | None = None
    at_least: int = 0
    at_most: int | None = None
    stop: bool = False
    excludes: Sequence[str] = ()


@enough_stack()
def plain(source: object) -> Mapping[str, Any]:
    """Return text with tags, in whatever way it is given, as the dict of a structural tag.

    Raises TypeError, and ConstraintError for JSON text that is malformed and for what is nested too deeply.
    """
    if isinstance(source, TaggedText):
        _check_levels([source], _contents_of)
        source = {"type": "structural_tag", "format": _format_of(source)}
    if isinstance(source, (str, bytes, bytearray)):
        source = parsed(source, "")
        if not isinstance(source, Mapping):
            refuse("", f"a structural tag is an object, not {shown(source)}")
    if not isinstance(source, Mapping):
        raise TypeError(f"a structural tag is a TaggedText, a dict or JSON text, not {type(source).__name__}")
    _check_levels([source], parts_of)
    check_depth(source)
    return source


def _check_levels(level: list[Any], inner: Callable[[Any], Iterable[Any]]) -> None:
    """Raise ConstraintError if formats stand within each other too deep, or one within itself."""
    deep = 0
    while level:
        deep += 1
        if deep > MOST_FORMATS:
            said = f"formats stand within each other more than {MOST_FORMATS} deep, or one within itself"
            raise ConstraintError(said, pointer="").reaching(LIMIT, MOST_FORMATS)
        level = list({id(part): part for each in level for part in inner(each)}.values())


def _contents_of(text: object) -> list[Any]:
    """Return the texts with tags that stand in the tags of one."""
    if not isinstance(text, TaggedText) or not isinstance(text.tags, Sequence):
        return []
    return [tag.content for tag in text.tags if isinstance(tag, Tag) and tag.content is not None]


def parts_of(value: object) -> list[Any]:
    """Return the formats that stand in one."""
    if not isinstance(value, Mapping):
        return []
    parts = [value[key] for key in PARTS if key in value]
    return [each for part in parts for each in (part if isinstance(part, (list, tuple)) else [part])]


def _format_of(text: TaggedText) -> dict[str, Any]:
    """Return text with tags as a format."""
    tags: list[dict[str, Any]] = []
    for tag in text.tags:
        if not isinstance(tag, Tag):
            raise TypeError(f"the tags of a TaggedText are of the class Tag, not {type(tag).__name__}")
        contents: dict[str, Any] = {
            "schema": {"type": "json_schema", "json_schema": tag.schema},
            "regex": {"type": "regex", "pattern": tag.regex, "flags": ""},
            "grammar": {"type": "grammar", "grammar": tag.grammar, "syntax": "lark"},
            "content": _format_of(tag.content) if isinstance(tag.content, TaggedText) else tag.content,
        }
        given = [name for name in contents if getattr(tag, name) is not None]
        if len(given) != 1:
            raise ConstraintError(
                f"the tag that begins with {tag.begin!r} has {' and '.join(given) or 'no content'}: give one of "
                "schema, regex, grammar and content"
            )
        begin, end = (
            {"type": "token", "token": each.name} if isinstance(each, SpecialToken) else each
            for each in (tag.begin, tag.end)
        )
        tags.append({"type": "tag", "begin": begin, "content": contents[given[0]], "end": end})
    return {
        "type": "triggered_tags", "tags": tags,
        "triggers": [tag["begin"] for tag in tags if isinstance(tag["begin"], str)]
        if text.triggers is None
        else _listed(text.triggers),
        "at_least": text.at_least, "at_most": text.at_most, "stop_after_first": text.stop,
        "excludes": _listed(text.excludes),
    }  # fmt: skip


def _listed(texts: object) -> Any:
    """Return some texts as a list; whatever is no such thing stays, to be refused where it stands."""
    return list(texts) if isinstance(texts, Iterable) and not isinstance(texts, (str, bytes)) else texts
