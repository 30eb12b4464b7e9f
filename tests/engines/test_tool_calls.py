"""Structural tags as serving engines write them for tool calls: where the answer ends."""

from __future__ import annotations

import json
from typing import Any

import pytest

import maskwright as mw
from maskwright.engines.constraints import EngineConstraints
from maskwright.engines.options import EngineOptions

SPECIAL = {"<tool_call>": 257, "</tool_call>": 258}
TOOLS = {"f": {"type": "object", "properties": {}, "additionalProperties": False}, "g": {"enum": [1]}}


def written(text: str, special: bool) -> list[int]:
    out: list[int] = []
    while text:
        name = next((name for name in SPECIAL if special and text.startswith(name)), None)
        out += [SPECIAL[name]] if name else [1 + byte for byte in text[0].encode()]
        text = text[len(name or "x") :]
    return out


def tags_of(**more: Any) -> dict[str, Any]:
    tags = [
        {
            "type": "tag",
            "begin": f'<tool_call>\n{{"name": "{name}", "arguments": ',
            "content": {"type": "json_schema", "json_schema": schema},
            "end": "}\n</tool_call>",
        }
        for name, schema in TOOLS.items()
    ]
    tagged = {"type": "triggered_tags", "triggers": ["<tool_call>"], "tags": tags, **more}
    return {"type": "structural_tag", "format": tagged}


F = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'
G = '<tool_call>\n{"name": "g", "arguments": 1}\n</tool_call>'


def older(tag: dict[str, Any]) -> dict[str, Any]:
    """Return a structural tag in the older form, as SGLang writes it."""
    form = {key: value for key, value in tag["format"].items() if key not in ("type", "tags")}
    structures = [
        {"begin": each["begin"], "schema": each["content"]["json_schema"], "end": each["end"]}
        for each in tag["format"]["tags"]
    ]
    return {"type": "structural_tag", "structures": structures, **form}


@pytest.mark.parametrize("form", [dict, older])
@pytest.mark.parametrize("special", [False, True])
@pytest.mark.parametrize("required", [False, True])
@pytest.mark.parametrize("parallel", [False, True])
def test_an_answer_has_the_calls_that_a_request_asks_for(form, special, required, parallel):
    letters = [b"", *(bytes([b]) for b in range(256))]
    vocab = mw.Vocabulary.from_bytes(letters + [b""] * 2 * special, eos=0, special=SPECIAL if special else ())
    constraints = EngineConstraints(vocab, EngineOptions())
    flags: dict[str, Any] = {"at_least_one": required, "stop_after_first": not parallel}
    table = constraints.compile("structural_tag", json.dumps(form(tags_of(**flags))))
    texts = {
        "no call": not required, F: True, "first: " + G: not required, F + G: parallel, F + "\n" + G: parallel,
        F + "and so on": parallel, F.replace('"f"', '"h"'): False, F[:-1]: False, "": not required,
    }  # fmt: skip
    for _ in range(2):
        assert {text: table.accepts(written(text, special)) for text in texts} == texts
        table.to_table()
    matcher = mw.Matcher(table, vocab)
    assert all(map(matcher.advance, written(F, special)))
    if not parallel:  # nothing but the end is left
        mask = matcher.mask()
        assert [i for i in range(vocab.size) if mask[i >> 5] >> (i & 31) & 1] == [0]
