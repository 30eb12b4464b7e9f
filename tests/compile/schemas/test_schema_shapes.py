"""Schemas whose states explode when all are made ahead: right, and soon, when they are made as texts reach them."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from maskwright.automata.formulas import uncollected
from tests.compile.schemas.both_readers import Outcome, rules_of
from tests.compile.schemas.byte_reader import ByteReader
from tests.strategies.schema_shapes import (
    Shape,
    arrays_by_item,
    dependent_required,
    if_by_field,
    if_by_pattern,
    kind_last,
    kinds_by_length,
    kinds_by_pattern,
    kinds_by_range,
    overlapping_ranges,
    patterns_of_keys,
    several_contains,
)

SHAPES: list[Shape] = [
    kinds_by_pattern,
    kinds_by_range,
    kinds_by_length,
    kind_last,
    if_by_pattern,
    if_by_field,
    dependent_required,
    arrays_by_item,
    several_contains,
    patterns_of_keys,
    overlapping_ranges,
]


@pytest.mark.parametrize("any_order", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_four_parts_are_read_as_a_table_reads_them(shape: Shape, any_order: bool) -> None:
    schema, right, wrong = shape(4)
    outcome = Outcome(schema, any_order=any_order)
    assert outcome.agrees_on_refusal, outcome.refusals
    if outcome.is_comparable:
        found = outcome.difference_on([json.dumps(right), json.dumps(wrong)], walks=6)
        assert found is None, found


@pytest.mark.parametrize("shape", SHAPES)
def test_many_parts_are_read_soon(shape: Shape) -> None:
    """Processor seconds in plain Python: the first mask within 0.25, and two whole texts, a mask a byte, within one."""
    schema, right, wrong = shape(64)
    rules_of(shape(3)[0])  # what all schemas share
    with uncollected():  # as when schemas are compiled: other tests may have filled the process
        first, whole = seconds_of(schema, right, wrong)
    assert first < 2 * 0.25  # the machine may be busy
    assert whole < 2 * 1.0


def seconds_of(schema: Any, right: Any, wrong: Any) -> tuple[float, float]:
    """Return the processor seconds of the first mask, and of two texts with a mask a byte."""
    began = time.process_time()
    reader = ByteReader(rules_of(schema))
    assert reader.mask(reader.start)
    first = time.process_time() - began
    began = time.process_time()
    for value, fits in ((right, True), (wrong, False)):
        place: Any = reader.start
        for byte in json.dumps(value).encode():
            if byte not in reader.mask(place):
                place = None
                break
            place = reader.step(place, byte)
        assert (place is not None and reader.accepts(place)) == fits
    return first, time.process_time() - began
