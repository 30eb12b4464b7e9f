"""The styles in which models write the parameters of a tool: each as a text with its name, beside JSON.

`docs/reference/tags.md` has a table of them. What a style says here is what the readers of serving engines take: where
a value ends, what they cut off it, and how they tell its type.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias

STRING, NUMBER, BOOLEAN, NULL, OBJECT, ARRAY = "string", "number", "boolean", "null", "object", "array"
KINDS = (STRING, NUMBER, BOOLEAN, NULL, OBJECT, ARRAY)

RawSchema: TypeAlias = Any
"""A schema as a tool gives it: parsed JSON, of which nothing is known."""


class Style(NamedTuple):
    """How a parameter is written: `before`, its name, `behind`, perhaps `gap`, `kinds[type]`, the value, `close`.

    ends: patterns of what readers take for an end, which no value holds. cuts: a pattern of the characters that some
    reader takes off both ends of a value: one at most at each if `cuts_one`. nulls: a pattern of words that some reader
    takes for null, whatever the schema says. is_typed: whether `kinds` tell a reader the type. by_schema: whether some
    reader goes by the types that the schema of the parameter names. item, item_close: what stands around an item of an
    array, where arrays and objects are written in the style too; else they are JSON. is_named: whether `close` is
    followed by the name and ">". last: what may stand behind a parameter.
    """

    before: str
    behind: str
    close: str
    ends: tuple[str, ...]
    kinds: Mapping[str, str] = dict.fromkeys(KINDS, "")
    gap: str = ""
    cuts: str | None = None
    cuts_one: bool = False
    nulls: str | None = None
    is_typed: bool = False
    by_schema: bool = True
    item: str | None = None
    item_close: str = ""
    is_named: bool = False
    last: str = "\n"

    @property
    def texts(self) -> tuple[str, ...]:
        """The texts that its parameters are made of."""
        texts = (self.before, self.behind, self.close, *self.kinds.values(), self.item or "", self.item_close)
        return tuple(text for text in texts if text)


def _dsml(space: str) -> Style:
    """Return a style of DeepSeek, which says of each value whether it is a string."""
    mark = "｜DSML｜" + space
    return Style(
        f'<{mark}parameter name="', '"', f"</{mark}parameter>", ("</?｜DSML｜",),
        {kind: f' string="{"true" if kind == STRING else "false"}">' for kind in KINDS}, cuts=r"\s", is_typed=True,
    )  # fmt: skip


_COHERE = {STRING: "raw", OBJECT: "dict", ARRAY: "list"}
_MINIMAX = "]<]minimax[>["

STYLES: Mapping[str, Style] = {
    "qwen_xml": Style(
        "<parameter=", ">", "</parameter>",
        (r"<\s*/\s*parameter\s*>", r"<\s*parameter\s*=", "</function>", "<function=", "</?tool_call>"),
        cuts="\n", cuts_one=True, nulls="(?i:null)",
    ),
    "minimax_xml": Style(
        '<parameter name="', '">', "</parameter>",
        (r"<\s*/\s*parameter\s*>", r"<\s*parameter\s+name\s*=", "</invoke>", "<invoke name=", "</?minimax:tool_call>"),
        cuts="\n", nulls="(?i:null|none|nil)",
    ),
    "minimax_m3_xml": Style(
        f"{_MINIMAX}<", ">", f"{_MINIMAX}</", (re.escape(_MINIMAX),), cuts=r"\s",
        item=f"{_MINIMAX}<item>", item_close=f"{_MINIMAX}</item>", is_named=True,
    ),
    "deepseek_xml": _dsml(""),
    "deepseek_v4_1_xml": _dsml(" "),
    "glm_xml": Style(
        "<arg_key>", "</arg_key>", "</arg_value>", ("</?arg_key>", "</?arg_value>", "</?tool_call>"),
        dict.fromkeys(KINDS, "<arg_value>"), gap="\n",
    ),
    "cohere_xml": Style(
        '<cofl:value name="', '"', "</cofl:value>", ("</?cofl:",),
        {kind: f' type="{_COHERE.get(kind, "json")}">' for kind in KINDS},
        is_typed=True, by_schema=False, item="<cofl:value", item_close="</cofl:value>",
    ),
    "kimi_k3_xml": Style(
        '<|open|>argument key="', '"', "<|close|>argument<|sep|>", (r"<\|open\|>", r"<\|close\|>", r"<\|sep\|>"),
        {kind: f' type="{kind}"<|sep|>' for kind in KINDS}, is_typed=True, by_schema=False,
    ),
}  # fmt: skip
