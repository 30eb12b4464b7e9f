"""Frames that states require, against passes until nothing changes."""

from __future__ import annotations

import time

import numpy as np
import pytest

import maskwright as mw
from maskwright.automata.frames_required import frames_required
from maskwright.compile.bind import link, linked_table
from maskwright.kernels.limits import MOST_DEPTH
from tests.oracles import naive_frames

VOCAB = mw.Vocabulary.from_bytes([b"", *(bytes([byte]) for byte in range(256))], eos=0)
ITEMS = {"type": "array", "items": {"anyOf": [{"type": "integer"}, {"$ref": "#"}]}}
SOURCES = {
    "items": {**ITEMS, "minItems": 3},
    "no end but deeper": {"type": "array", "prefixItems": [{"type": "array", "minItems": 1, "items": {"$ref": "#"}}]},
    "keys": {
        "properties": {"a": {"$ref": "#"}, "ab": {"enum": ["a", "ab", 1]}, "c": {"maxLength": 9}},
        "patternProperties": {"^x": {"type": "array", "minItems": 2}, "y$": {"$ref": "#"}},
        "required": ["a"],
        "additionalProperties": {"pattern": "^a"},
        "minProperties": 1,
    },
    "grammar": 'start: "(" first ")"\nfirst: "[" second start? "]"\nsecond: start | "{" "a"* "}" | "<" first ">"',
}


@pytest.fixture(scope="module", params=SOURCES)
def compiled(request):
    """Machines whose frames were asked for while a table was made."""
    machines = []

    def asked(machine, most, **options):
        machines.append(machine)
        return frames_required(machine, most, **options)

    source = SOURCES[request.param]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(link, "frames_required", asked)
        patch.setattr(linked_table, "frames_required", asked)
        if isinstance(source, str):
            mw.compile_grammar(source, VOCAB).to_table()
        else:
            mw.compile_json_schema(source, VOCAB, lazy=False)
    return machines


def test_frames_are_those_of_passes_until_nothing_changes(compiled):
    assert compiled
    for machine in compiled:
        sure, hoped = (np.array(naive_frames.frames_of_states(machine, MOST_DEPTH, safely)) for safely in (True, False))
        assert np.array_equal(frames_required(machine, MOST_DEPTH, hope=False)[0], sure)
        found, _, is_sure = frames_required(machine, MOST_DEPTH)
        assert np.array_equal(found, np.where(sure < MOST_DEPTH, sure, hoped))
        assert np.array_equal(is_sure, sure < MOST_DEPTH)
        assert len(set(sure.tolist())) > 1


def test_a_whole_table_of_many_items_stays_within_its_budget():
    mw.compile_json_schema({**ITEMS, "minItems": 9}, VOCAB, lazy=False)  # which may compile kernels
    began = time.thread_time()
    mw.compile_json_schema({**ITEMS, "minItems": 8000}, VOCAB, lazy=False, budget=mw.Budget(seconds=8))
    assert time.thread_time() - began < 8  # passes over all states until nothing changes took more, outside the budget
