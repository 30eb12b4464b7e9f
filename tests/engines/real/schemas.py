"""What real engines are asked to write."""

from __future__ import annotations

ROWS = 64


def schemas() -> list[dict]:
    """Return schemas whose instances are short, each another one."""
    out = []
    for i in range(ROWS):
        properties = {
            f"name_{i}": {"type": "string", "maxLength": 8 + i % 5},
            "founded": {"type": "integer", "minimum": -5000, "maximum": 2100 + i},
            "kind": {"enum": ["city", "town", f"village{i}"]},
            "tags": {"type": "array", "items": {"type": "string", "maxLength": 6}, "maxItems": 2},
        }
        required = {"required": list(properties), "additionalProperties": False}
        out.append({"type": "object", "properties": properties, **required})
    return out
