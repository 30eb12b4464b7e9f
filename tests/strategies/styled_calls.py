"""Random tools, and calls of them as the models of each family write them."""

from __future__ import annotations

import json
import random
from typing import Any

import maskwright as mw

SPACED = {"whitespace": "spaced"}
DSML = "｜DSML｜"
M3 = "]<]minimax[>["
NASTY = ["", "a", "Zürich 🌧️", "a < b && c > d", "line\nbreak", " edge ", '"quoted"', "</param", "<parameter",
         "{x}", "\\n\t", "</ parameter", "<|open", "]<]", "日本\n\n", "x" * 300, "<b>bold</b>", "5 apples",
         "nulls", "true story"]  # fmt: skip
LIKE_ENDS = ["</parameter>", "a</arg_value>b", f"</{DSML}parameter>", f"x</{DSML} parameter>", f"{M3}</a>",
             "</cofl:value>", "<|close|>argument<|sep|>", "</function>", "</invoke>", "</tool_call>", "< / parameter >",
             "<parameter=b>"]  # fmt: skip
KINDS: dict[str, dict[str, Any]] = {
    "text": {"type": "string"},
    "word": {"type": "string", "pattern": "^[a-zé ]{1,9}$"},
    "short": {"type": "string", "minLength": 1, "maxLength": 5},
    "unit": {"type": "string", "enum": ["C", "F", "deg C"]},
    "count": {"type": "integer", "minimum": 0, "maximum": 365},
    "ratio": {"type": "number"},
    "flag": {"type": "boolean"},
    "maybe": {"anyOf": [{"type": "string"}, {"type": "null"}]},
    "either": {"type": ["string", "integer"]},
    "mixed": {"enum": ["x", 7, None, "y z"]},
    "names": {"type": "array", "items": {"type": "string"}, "maxItems": 4},
    "numbers": {"type": "array", "items": {"type": "integer"}},
    "inner": {
        "type": "object",
        "properties": {
            "low": {"type": "number"}, "label": {"type": "string"},
            "more": {"type": "array", "items": {"type": "object", "properties": {"z": {"type": "boolean"}},
                                                "required": ["z"], "additionalProperties": False}},
        },
        "required": ["low"],
        "additionalProperties": False,
    },
}  # fmt: skip


INSIDE: list[dict[str, Any]] = [
    {}, {"label": "L <b>"}, {"more": []}, {"label": "é", "more": [{"z": True}, {"z": False}]},
]  # fmt: skip


def random_parameters(rng: random.Random) -> dict[str, Any]:
    """Return the schema of a tool's parameters."""
    names = rng.sample(sorted(KINDS), rng.randrange(6))
    schema: dict[str, Any] = {"type": "object", "properties": {name: KINDS[name] for name in names}}
    schema["required"] = [name for name in names if rng.random() < 0.5]
    if rng.random() < 0.7 or not names:
        schema["additionalProperties"] = False
    return schema


def random_value(rng: random.Random, name: str) -> Any:
    """Return a value of a parameter that all styles can write."""
    text = rng.choice(NASTY)
    some = {
        "text": lambda: text, "word": lambda: rng.choice(["a", "née", "two words"]),
        "short": lambda: rng.choice(["a", "日本", "<b>", "a\nb"]), "unit": lambda: rng.choice(KINDS["unit"]["enum"]),
        "count": lambda: rng.choice([0, 7, 365]), "ratio": lambda: rng.choice([0, -1.5, 2e10, 0.25]),
        "flag": lambda: rng.random() < 0.5,
        "maybe": lambda: rng.choice([None, "Zürich", "</param", "5"]),
        "either": lambda: rng.choice([5, -1, "five", "a 5"]),
        "mixed": lambda: rng.choice(KINDS["mixed"]["enum"]),
        "names": lambda: [rng.choice(["a", "b c", "日本", 'q"q', "<"]) for _ in range(rng.randrange(4))],
        "numbers": lambda: [rng.randrange(-9, 99) for _ in range(rng.randrange(4))],
        "inner": lambda: {"low": 1.5} | rng.choice(INSIDE),
    }  # fmt: skip
    return some[name]()


def random_arguments(rng: random.Random, schema: dict[str, Any]) -> dict[str, Any]:
    """Return arguments that fit, in the order of the schema."""
    return {
        name: random_value(rng, name)
        for name in schema["properties"]
        if name in schema["required"] or rng.random() < 0.6
    }


def written(style: str, arguments: dict[str, Any]) -> str:
    """Return the text of arguments in a style, as the template of the model has it."""
    if style == "minimax_m3_xml":
        return "".join(_element(name, value) for name, value in arguments.items())
    if style == "cohere_xml":
        return "".join(_cohere(value, f' name="{name}"') for name, value in arguments.items())
    return "".join(_parameter(style, name, value) for name, value in arguments.items())


def _json(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _kind(value: Any) -> str:
    kinds = ((bool, "boolean"), ((int, float), "number"), (str, "string"), (list, "array"), (dict, "object"))
    return next((name for kind, name in kinds if isinstance(value, kind)), "null")


def _parameter(style: str, name: str, value: Any) -> str:
    text = _json(value)
    if style in ("deepseek_xml", "deepseek_v4_1_xml"):
        mark = DSML if style == "deepseek_xml" else f"{DSML} "
        is_string = "true" if isinstance(value, str) else "false"
        return f'<{mark}parameter name="{name}" string="{is_string}">{text}</{mark}parameter>\n'
    return {
        "qwen_xml": f"<parameter={name}>\n{text}\n</parameter>\n",
        "mimo": f"<parameter={name}>{text}</parameter>",
        "minimax_xml": f'<parameter name="{name}">{text}</parameter>\n',
        "glm_xml": f"<arg_key>{name}</arg_key><arg_value>{text}</arg_value>",
        "kimi_k3_xml": f'<|open|>argument key="{name}" type="{_kind(value)}"<|sep|>{text}<|close|>argument<|sep|>',
    }[style]


def _element(name: str, value: Any) -> str:
    if isinstance(value, dict):
        inside = "".join(_element(key, each) for key, each in value.items())
    elif isinstance(value, list):
        inside = "".join(_element("item", each) for each in value)
    else:
        inside = _json(value)
    return f"{M3}<{name}>{inside}{M3}</{name}>"


def _cohere(value: Any, name: str = "") -> str:
    if isinstance(value, dict):
        kind, inside = "dict", "".join(_cohere(each, f' name="{key}"') for key, each in value.items())
    elif isinstance(value, list):
        kind, inside = "list", "".join(map(_cohere, value))
    else:
        kind, inside = "raw" if isinstance(value, str) else "json", _json(value)
    return f'<cofl:value{name} type="{kind}">{inside}</cofl:value>'


FAMILIES: dict[str, tuple[str, str, str, str, str]] = {
    # style, begin of all calls, begin of one, end of one, end of all
    "qwen_3_coder": ("qwen_xml", "", "<tool_call>\n<function=NAME>\n", "</function>\n</tool_call>", ""),
    "mimo": ("mimo", "", "<tool_call><function=NAME>", "</function></tool_call>", ""),
    "glm_4_7": ("glm_xml", "", "<tool_call>NAME", "</tool_call>", ""),
    "minimax": (
        "minimax_xml", "<minimax:tool_call>\n", '<invoke name="NAME">\n', "</invoke>\n", "</minimax:tool_call>",
    ),
    "minimax_m3": (
        "minimax_m3_xml", f"{M3}<tool_call>\n", f'{M3}<invoke name="NAME">', f"{M3}</invoke>\n", f"{M3}</tool_call>",
    ),
    "deepseek_v3_2": (
        "deepseek_xml", f"<{DSML}function_calls>\n", f'<{DSML}invoke name="NAME">\n', f"</{DSML}invoke>\n",
        f"</{DSML}function_calls>",
    ),
    "deepseek_v4": (
        "deepseek_xml", f"<{DSML}tool_calls>\n", f'<{DSML}invoke name="NAME">\n', f"</{DSML}invoke>\n",
        f"</{DSML}tool_calls>",
    ),
    "deepseek_v4_1": (
        "deepseek_v4_1_xml", f"<{DSML} calls>\n", f'<{DSML} invoke name="NAME">\n', f"</{DSML} invoke>\n",
        f"</{DSML} calls>",
    ),
    "cohere": (
        "cohere_xml", "<cofl:tool_calls>", '<cofl:tool_call id="0" name="NAME">', "</cofl:tool_call>",
        "</cofl:tool_calls>",
    ),
    "kimi_k3": (
        "kimi_k3_xml", "<|open|>tools<|sep|>", '<|open|>call tool="NAME" index="0"<|sep|>', "<|close|>call<|sep|>",
        "<|close|>tools<|sep|>",
    ),
}  # fmt: skip
"""How each family that has a style of its own writes calls."""


def tag_of(family: str, parameters: dict[str, Any], name: str = "f") -> dict[str, Any]:
    """Return the structural tag of one call of a tool."""
    style, first, begin, end, last = FAMILIES[family]
    end = f"\n{end}" if style == "qwen_xml" else end
    content = {"type": "json_schema", "json_schema": parameters, "style": "qwen_xml" if style == "mimo" else style}
    call = {"type": "tag", "begin": begin.replace("NAME", name), "content": content, "end": end}
    if not first:
        return {"type": "structural_tag", "format": call}
    return {"type": "structural_tag", "format": {"type": "tag", "begin": first, "content": call, "end": last}}


def call_of(family: str, arguments: dict[str, Any], name: str = "f") -> str:
    """Return the text of one call."""
    style, first, begin, end, last = FAMILIES[family]
    end = f"\n{end}" if style == "qwen_xml" and not arguments else end
    return first + begin.replace("NAME", name) + written(style, arguments) + end + last


LIKELY = {bytes([byte]) for byte in b"<</>]|[&\n \"'5ntfa\\;u="} | {b"</", b">\n", b"parameter"}


def walked(rng: random.Random, matcher: mw.Matcher, vocab: mw.Vocabulary) -> str | None:
    """Return a random text of a constraint, None if it did not end."""
    out = b""
    for _ in range(1500):
        mask = matcher.mask()
        tokens = [token for token in range(1, vocab.size) if mask[token >> 5] >> (token & 31) & 1]
        if matcher.is_accepting or not tokens:
            return out.decode()
        likely = [token for token in tokens if vocab.tokens[token] in LIKELY] if len(tokens) > 60 else tokens
        if rng.random() < 0.2:
            likely = [token for token in tokens if vocab.tokens[token][:1] in (b"<", b"]", b"e", b"E")] or likely
        token = rng.choice(likely or tokens)
        assert matcher.advance(token)
        out += vocab.tokens[token]
    return None
