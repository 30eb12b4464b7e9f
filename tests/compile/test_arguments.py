"""What every compilation does with its budget."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import pytest

import maskwright as mw
from maskwright.automata import deadline

VOCAB = mw.Vocabulary.from_bytes([b"", *(bytes([byte]) for byte in range(256))], eos=0)
TAG = {"type": "tag", "begin": "<", "content": {"type": "any_text"}, "end": ">"}
VALUE_IN_TAG = {**TAG, "content": {"type": "json_schema", "json_schema": {"type": "integer"}}}
DOORS = {
    "regex": partial(mw.compile_regex, "a"),
    "choices": partial(mw.compile_choices, ["a"]),
    "grammar": partial(mw.compile_grammar, 'start: "a"'),
    "schema": partial(mw.compile_json_schema, {"type": "integer"}),
    "schema at once": partial(mw.compile_json_schema, {"type": "integer"}, lazy=False),
    "tag": partial(mw.compile_structural_tag, TAG),
    "tag with a value": partial(mw.compile_structural_tag, VALUE_IN_TAG),
}


def end_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each compilation take half a second after its last look at the deadline."""
    end = deadline.end

    def ends_late() -> None:
        end()
        until = time.thread_time() + 0.5
        while time.thread_time() < until:
            pass

    monkeypatch.setattr(deadline, "end", ends_late)


@pytest.mark.parametrize("door", DOORS)
def test_a_compilation_that_ends_late_is_an_error(door: str, monkeypatch: pytest.MonkeyPatch) -> None:
    DOORS[door](VOCAB)  # so that all that is made once is there
    end_late(monkeypatch)
    with pytest.raises(mw.errors.BudgetError) as raised:
        DOORS[door](VOCAB, budget=mw.Budget(seconds=0.4))
    assert (raised.value.limit, raised.value.allowed) == ("seconds", 0.4)
    assert raised.value.reached > 0.4


@pytest.mark.parametrize("door", ["grammar", "schema", "tag", "tag with a value"])
def test_the_arrays_of_a_lazy_table_that_end_late_are_an_error(door: str, monkeypatch: pytest.MonkeyPatch) -> None:
    table: Any = DOORS[door](VOCAB, budget=mw.Budget(seconds=0.4))
    with monkeypatch.context() as late:
        end_late(late)
        with pytest.raises(mw.errors.BudgetError):
            table.to_table()
    assert table.to_table().num_states


def test_an_error_of_a_compilation_that_ends_late_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    end_late(monkeypatch)
    with pytest.raises(mw.errors.RegexError):
        mw.compile_regex("(", VOCAB, budget=mw.Budget(seconds=0.4))
