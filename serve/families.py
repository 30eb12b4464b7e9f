"""How the models of each family write tool calls: the structural tag of calls, and reading them back.

`hermes`, where a call is JSON, is in `constraints.py`. The styles of parameters are those of structural tags.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ..compile.tags.reading_back import read_parameters
from ..compile.tags.styles import RawSchema
from ..vocabulary.vocabulary import Vocabulary

_DSML = "｜DSML｜"
_M3 = "]<]minimax[>["
_NAME = "NAME"


class Family(NamedTuple):
    """What stands around calls: `first` and `last` around all of them, `begin` and `end` around each.

    begin: with `NAME` in place of the function's. style: of the parameters. gap: between calls that nothing stands
    around.
    """

    style: str
    begin: str
    end: str
    first: str = ""
    last: str = ""
    gap: str = ""

    @property
    def trigger(self) -> str:
        """The text with which calls begin in free text."""
        return self.first or self.begin.partition(_NAME)[0]

    def begin_of(self, name: str) -> str:
        """Return the text before the parameters of a function."""
        return self.begin.replace(_NAME, name)


_QWEN = Family("qwen_xml", "<tool_call>\n<function=NAME>\n", "\n</function>\n</tool_call>", gap="\n")

FAMILIES: Mapping[str, Family] = {
    "qwen_3_coder": _QWEN,
    "qwen_3_5": _QWEN,
    "mimo": Family("qwen_xml", "<tool_call><function=NAME>", "</function></tool_call>"),
    "glm_4_7": Family("glm_xml", "<tool_call>NAME", "</tool_call>"),
    "minimax": Family(
        "minimax_xml", '<invoke name="NAME">\n', "</invoke>\n", "<minimax:tool_call>\n", "</minimax:tool_call>"
    ),
    "minimax_m3": Family(
        "minimax_m3_xml", f'{_M3}<invoke name="NAME">', f"{_M3}</invoke>\n", f"{_M3}<tool_call>\n", f"{_M3}</tool_call>"
    ),
    **{
        name: Family(
            style, f'<{mark}invoke name="NAME">\n', f"</{mark}invoke>\n", f"<{mark}{calls}>\n", f"</{mark}{calls}>"
        )
        for name, style, mark, calls in (
            ("deepseek_v3_2", "deepseek_xml", _DSML, "function_calls"),
            ("deepseek_v4", "deepseek_xml", _DSML, "tool_calls"),
            ("deepseek_v4_1", "deepseek_v4_1_xml", f"{_DSML} ", "calls"),
        )
    },
    "cohere": Family(
        "cohere_xml", '<cofl:tool_call id="0" name="NAME">', "</cofl:tool_call>", "<cofl:tool_calls>",
        "</cofl:tool_calls>",
    ),
}  # fmt: skip
"""The families whose parameters have a style of their own, by XGrammar's names."""

NAMES = ("hermes", *FAMILIES)
"""The names of all families that the server knows."""


def tag_of(family: Family, functions: Sequence[tuple[str, Any]], only: bool, parallel: bool) -> dict[str, Any]:
    """Return the structural tag of calls.

    functions: names and parameters. only: calls alone, at least one. parallel: there may be several.
    """
    tags = [
        {
            "type": "tag", "begin": family.begin_of(name), "end": family.end,
            "content": {"type": "json_schema", "json_schema": parameters, "style": family.style},
        }
        for name, parameters in functions
    ]  # fmt: skip
    if family.first:
        inside = {
            "type": "tags_with_separator", "tags": tags, "separator": "", "at_least_one": True,
            "stop_after_first": not parallel,
        }  # fmt: skip
        tags = [{"type": "tag", "begin": family.first, "content": inside, "end": family.last}]
    text: dict[str, Any]
    if not only:
        text = {"type": "triggered_tags", "triggers": [family.trigger], "tags": tags, "stop_after_first": not parallel}
    elif family.first:
        text = tags[0]
    else:
        text = {
            "type": "tags_with_separator", "tags": tags, "separator": family.gap, "at_least_one": True,
            "stop_after_first": not parallel,
        }  # fmt: skip
    return {"type": "structural_tag", "format": text}


class Spelled(NamedTuple):
    """The texts of a family as they stand in decoded text, in which a control token is a character of its own."""

    family: Family
    first: str
    last: str
    opened: re.Pattern[str]  # a call's begin, with the name as a group
    end: str
    trigger: str
    tokens: Mapping[int, str]
    names: Mapping[str, str]  # of control tokens, by their characters

    def arguments(self, text: str, schema: RawSchema) -> str:
        """Return the arguments that a text between begin and end has, as JSON text."""
        for character, name in self.names.items():
            text = text.replace(character, name)
        lines = self.family.begin.endswith("\n")
        return json.dumps(read_parameters(self.family.style, text, schema, lines), ensure_ascii=False)


def spelled(family: Family, vocabulary: Vocabulary) -> Spelled:
    """Return the texts of a family for a vocabulary."""
    names = [name for name, i in vocabulary.special_ids.items() if name and not vocabulary.tokens[i]]
    texts = (family.first, family.last, family.begin, family.end, family.trigger)
    used = sorted({name for name in names if any(name in text for text in texts)}, key=len, reverse=True)
    characters = {name: chr(0xDC00 + at) for at, name in enumerate(used)}  # which no decoded text has

    def of(text: str) -> str:
        for name, character in characters.items():
            text = text.replace(name, character)
        return text

    before, _, behind = of(family.begin).partition(_NAME)
    opened = re.compile(f"{re.escape(before)}([a-zA-Z0-9_-]+){re.escape(behind)}")
    return Spelled(
        family, of(family.first), of(family.last), opened, of(family.end), of(family.trigger),
        {vocabulary.special_ids[name]: character for name, character in characters.items()},
        {character: name for name, character in characters.items()},
    )  # fmt: skip
