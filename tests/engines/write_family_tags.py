"""Write the structural tags that XGrammar makes for each family of models to `family_tags.json`.

python tests/engines/write_family_tags.py      # where xgrammar is installed
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

PATH = Path(__file__).parent / "family_tags.json"
WEATHER = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "minLength": 1},
        "days": {"type": "integer", "minimum": 1, "maximum": 14},
        "unit": {"type": "string", "enum": ["C", "F"]},
        "hourly": {"type": "boolean"},
        "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "places": {"type": "array", "items": {"type": "string"}, "maxItems": 3},
        "range": {
            "type": "object",
            "properties": {"low": {"type": "number"}, "label": {"type": "string"}},
            "required": ["low"],
            "additionalProperties": False,
        },
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}
NOTHING: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": parameters}}
    for name, parameters in (("weather", WEATHER), ("now", NOTHING))
]
CHOICES: dict[str, Any] = {
    "auto": "auto", "required": "required", "named": {"type": "function", "function": {"name": "weather"}},
}  # fmt: skip


def main() -> None:
    """Write all tags, each schema once."""
    import xgrammar
    from xgrammar.builtin_structural_tag import _structural_tag_registry as families

    tags = {
        f"{family} {choice} {'several' if several else 'one'}": xgrammar.get_model_structural_tag(
            family, TOOLS, asked, reasoning="disabled", parallel_tool_calls=several
        ).model_dump(exclude_defaults=False)
        for family in sorted(families)
        for choice, asked in CHOICES.items()
        for several in (True, False)
    }
    text = json.dumps(tags, ensure_ascii=False, indent=None, default=str)
    for name, schema in (("weather", WEATHER), ("now", NOTHING)):
        text = text.replace(json.dumps(schema, ensure_ascii=False), json.dumps(name))
    PATH.write_text(text + "\n")


if __name__ == "__main__":
    main()
