"""Schemas, a vocabulary for their texts, and the tokens of masks."""

from __future__ import annotations

import os
from functools import cache

import numpy as np
from hypothesis import HealthCheck, settings

import maskwright as mw
from tests.strategies.odd_schemas import (
    some_tokens,
)

TIMES = int(os.environ.get("TEST_TIMES", "1"))  # how much more than usual is tried


@cache
def vocabulary(count: int = 3000) -> mw.Vocabulary:
    return mw.Vocabulary.from_bytes(some_tokens(count), eos=0)


TREE = {
    "$ref": "#/$defs/node",
    "$defs": {
        "node": {
            "type": "object",
            "properties": {"value": {}, "kids": {"type": "array", "items": {"$ref": "#/$defs/node"}}},
            "required": ["value"],
            "additionalProperties": False,
        }
    },
}
PIECES = {
    "any value": True,
    "a free string": {"type": "string"},
    "at most": {"type": "string", "maxLength": 3},
    "at least": {"properties": {"a": {"type": "string", "minLength": 3}}},
    "from to": {"type": "array", "items": {"type": "string", "minLength": 2, "maxLength": 4}},
    "a pattern": {"type": "array", "items": {"pattern": "^(ab|é)+x?$", "type": "string"}},
    "what may go on freely": {"type": "array", "items": {"pattern": "a|日", "type": "string"}},
    "all but some": {"type": "array", "items": {"type": "string", "not": {"enum": ["a", "ab", 'b"']}}},
    "no quotes": {"type": "array", "items": {"pattern": '^[^"]*$', "type": "string"}},
    "formats": {
        "properties": {"d": {"format": "date"}, "u": {"format": "uuid"}, "t": {"type": "string", "format": "time"}},
        "required": ["d"],
        "additionalProperties": False,
    },
    "an enumeration": {"enum": ["a", "ab", "b\n", 1, 1.5, None, True, {"a": 1}, ["x", []], "é"]},
    "bounded numbers": {"type": "array", "items": {"type": "number", "minimum": -3, "maximum": 12.5}},
    "multiples": {"type": "array", "items": {"type": "integer", "multipleOf": 7}, "maxItems": 3},
    "a choice by label": {
        "oneOf": [
            {"properties": {"kind": {"const": "a"}, "x": {"type": "integer"}}, "required": ["kind"]},
            {
                "properties": {"kind": {"const": "ab"}, "x": {"type": "string"}, "z": {}},
                "required": ["kind", "x"],
                "additionalProperties": False,
            },
        ]
    },
    "labels of items": {
        "anyOf": [
            {"type": "array", "items": {"type": ["string", "integer"]}, "contains": {"const": "a"}},
            {"type": "array", "items": {"type": "number"}},
        ]
    },
    "a complement": {"type": "array", "items": {"not": {"items": {"type": "string"}}}},
    "keys by patterns": {
        "type": "object",
        "patternProperties": {"^a": {"type": "integer"}, "b$": {"type": "number"}},
        "properties": {"ab": {}, "x": {"type": "string"}},
        "additionalProperties": {"type": "null"},
    },
    "keys that fit": {
        "type": "object",
        "propertyNames": {"pattern": "^[a-z]+$", "maxLength": 4},
        "properties": {"id": {"type": "boolean"}},
    },
    "other keys": {"type": "object", "properties": {"name": {"type": "string"}, "na": {}, "id": {"type": "integer"}}},
    "odd keys": {"type": "object", "properties": {key: {"type": "null"} for key in ("a\nb", "é", "a", 'a"', "")}},
    "counted members": {
        "type": "object",
        "minProperties": 2,
        "maxProperties": 3,
        "properties": {"a": {"type": "integer"}, "b": {"type": "string"}},
        "required": ["b"],
    },
    "recursion": TREE,
    "nested arrays": {
        "type": "array",
        "items": {"type": "array", "items": {"type": "array", "items": {"type": ["integer", "boolean"]}}},
    },
}


LAYOUTS = ({}, {"whitespace": "compact"}, {"whitespace": (", ", ": ")}, {"ascii": True}, {"any_order": True})
RANDOM = settings(deadline=None, suppress_health_check=list(HealthCheck))
LONG = {
    "type": "object",
    "properties": {
        "any": {"type": "string", "maxLength": 90},
        "some": {"type": "string", "minLength": 3},
        "few": {"type": "string", "minLength": 2, "maxLength": 5},
        "word": {"type": "string", "pattern": "^[a-z]{1,40}$"},
        "unicode": {"type": "string", "pattern": r"^[^\s]+$"},
        "somewhere": {"type": "string", "pattern": "[0-9]{2}-x"},
        "beginning": {"type": "string", "pattern": "^ab"},
        "date": {"format": "date-time"},
        "words": {"type": "string", "pattern": r"^(?:\S+\s+){0,6}\S+$", "maxLength": 50},
        "counted": {"type": "string", "pattern": "^[a-c]*(é[^,]+)?$", "minLength": 2, "maxLength": 8},
        "mail": {"format": "email"},
        "many": {"enum": [f"value {i}" for i in range(300)]},
        "labels": {"anyOf": [{"items": {"pattern": "^[a-m]*$"}}, {"contains": {"pattern": "^[k-z]+$"}}]},
    },
}


def tokens_of(mask):
    """Return the tokens that a mask allows, in order."""
    return np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist()
