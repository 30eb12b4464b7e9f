"""Random structural tags whose parts overlap, and random texts that nearly fit them."""

from __future__ import annotations

import random
from typing import Any

NAMES = {"<|x|>": "\ue000", "<|y|>": "\ue001"}
"""Control tokens, and the characters that stand for them."""

_TEXTS = ["x", "<", "a", "</", "ab", "<a", "/a>", "b</a", "\n", "<|x|>", "a<|y|>"]
_BEGINS: list[Any] = ["<a>", "<b>", "<a", "<ab>", "b", "/a>", "<|x|>", "<|x|>a", {"type": "token", "token": "<|x|>"}]
_ENDS: list[Any] = ["</a>", "</a>", "</", "<", "aa", ["</a>", "b"], ["ab", "b"], ["", "b"], "", "\n</a>", "<|y|>"]
_ENDS += ["b<|y|>", {"type": "token", "token": "<|y|>"}]
_PATTERNS = ["[ab<]*", "(ab|</?)*", "a?", "[ab]", "[</a>]{1,5}", "x|<"]
_SCHEMAS: list[Any] = [
    {"enum": ["a", "ab"]},
    {"type": "boolean"},
    {"const": "</a>"},
    {"type": "null"},
    {"enum": [1, 2]},
]
_VALUES = ['"a"', '"ab"', "true", "false", '"</a>"', "null", "1", "2"]
_GRAMMARS = {'root ::= "a" root | "b"': ["b", "ab", "aab"], 'root ::= "(" root ")" | "a"': ["a", "(a)"]}


def random_tag(rng: random.Random, *, json: bool = True) -> dict[str, Any]:
    """Return a structural tag, mostly one tag whose content is put together of many parts."""
    maker = _Maker(rng, json)
    form = maker.tag(3) if rng.random() < 0.7 else maker.form(3)
    return {"type": "structural_tag", "format": form}


class _Maker:
    def __init__(self, rng: random.Random, json: bool) -> None:
        self.rng, self.json = rng, json

    def form(self, deep: int) -> dict[str, Any]:
        rng = self.rng
        kinds = ["const_string", "any_text", "any_text", "regex", "token"]
        kinds += ["json_schema", "json_schema", "grammar"] if self.json else []
        if deep:
            kinds += ["sequence"] * 5 + ["or", "optional", "plus", "star", "repeat", "tag", "tag"]
            kinds += ["triggered_tags", "triggered_tags", "tags_with_separator"]
        kind = rng.choice(kinds)
        match kind:
            case "const_string":
                return {"type": kind, "value": rng.choice(_TEXTS)}
            case "any_text":
                more: list[dict[str, Any]] = [{}, {}, {}, {"excludes": ["ab"]}, {"max_chars": 2}, {"excludes": ["<"]}]
                return {"type": kind, **rng.choice(more)}
            case "regex":
                return {"type": kind, "pattern": rng.choice(_PATTERNS)}
            case "token":
                return {"type": kind, "token": rng.choice(list(NAMES))}
            case "json_schema":
                return {"type": kind, "json_schema": rng.choice(_SCHEMAS)}
            case "grammar":
                return {"type": kind, "grammar": rng.choice(list(_GRAMMARS))}
            case "sequence" | "or":
                return {"type": kind, "elements": [self.form(deep - 1) for _ in range(rng.randint(1, 4))]}
            case "optional" | "plus" | "star":
                return {"type": kind, "content": self.form(deep - 1)}
            case "repeat":
                return {"type": kind, "content": self.form(deep - 1), "min": rng.randint(0, 1), "max": 2}
            case "tag":
                return self.tag(deep - 1)
        return self.tags(kind, deep - 1)

    def tag(self, deep: int) -> dict[str, Any]:
        rng = self.rng
        return {"type": "tag", "begin": rng.choice(_BEGINS), "content": self.form(deep), "end": rng.choice(_ENDS)}

    def tags(self, kind: str, deep: int) -> dict[str, Any]:
        rng = self.rng
        tags = [self.tag(deep) for _ in range(rng.randint(1, 2))]
        out: dict[str, Any] = {"type": kind, "tags": tags, "at_least": rng.choice([0, 0, 0, 1, 2])}
        if rng.random() < 0.3:
            out["at_most"] = out["at_least"] + rng.randint(0, 1)
        if out["at_least"] < 2 and out.get("at_most") != 0:
            out["at_least_one"], out["stop_after_first"] = rng.random() < 0.3, rng.random() < 0.3
        if kind == "tags_with_separator":
            return {**out, "separator": rng.choice(["", "b", "<", "\n"])}
        begins = [tag["begin"] for tag in tags if isinstance(tag["begin"], str)]
        whole = rng.random() < 0.6 or any("|" in begin for begin in begins)
        out["triggers"] = begins if whole else sorted({begin[: rng.randint(1, 2)] for begin in begins})
        return {**out, "excludes": rng.choice([[], [], [], ["ab"]])}


def random_texts(rng: random.Random, tag: dict[str, Any], count: int) -> list[str]:
    """Return texts put together as a structural tag says, and such texts with a few letters changed."""
    out = []
    for _ in range(count):
        text = _text(rng, tag["format"])
        for _ in range(rng.choice([0, 0, 0, 1, 1, 2])):
            at = rng.randint(0, len(text))
            put = rng.choice(["", "a", "<", ">", "</a>", "b", "x", "\n", *NAMES.values()])
            text = text[:at] + put + text[at + rng.randint(0, 2) :]
        out.append(text)
    return out


def _text(rng: random.Random, form: dict[str, Any]) -> str:
    kind = form["type"]
    match kind:
        case "const_string":
            return _spelled(form["value"])
        case "token":
            return NAMES[form["token"]]
        case "any_text":
            return rng.choice(["", "", "a", "x", "b", "<", "</", "</a", "</a>", "ab", "aé", "/a>", "\n"])
        case "regex":
            return rng.choice(["", "a", "ab", "b", "<", "</", "x", "</a>"])
        case "json_schema":
            return rng.choice(_VALUES)
        case "grammar":
            return rng.choice(_GRAMMARS[form["grammar"]])
        case "sequence":
            return "".join(_text(rng, each) for each in form["elements"])
        case "or":
            return _text(rng, rng.choice(form["elements"]))
        case "optional" | "plus" | "star" | "repeat":
            return "".join(_text(rng, form["content"]) for _ in range(rng.choice([0, 1, 1, 1, 2])))
        case "tag":
            end = rng.choice(form["end"]) if isinstance(form["end"], list) else form["end"]
            return _spelled(form["begin"]) + _text(rng, form["content"]) + _spelled(end)
    out = ""
    for i in range(rng.choice([0, 1, 1, 1, 2])):
        between = _spelled(form["separator"]) if kind == "tags_with_separator" else rng.choice(["", "", "b", "<", "a<"])
        out += (between if i or kind == "triggered_tags" else "") + _text(
            rng, {**rng.choice(form["tags"]), "type": "tag"}
        )
    return out + (rng.choice(["", "b", "<", "<a", "</"]) if kind == "triggered_tags" else "")


def _spelled(value: Any) -> str:
    if not isinstance(value, str):
        return NAMES[value["token"]]
    for name, character in NAMES.items():
        value = value.replace(name, character)
    return value
