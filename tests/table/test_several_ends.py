"""Several end tokens of tables: in files, in pickles, and what is refused."""

from __future__ import annotations

import dataclasses
import json
import pickle

import numpy as np
import pytest
from safetensors import safe_open

import maskwright as mw
from maskwright.table import file
from tests.strategies import end_tokens


def header_of(path):
    with safe_open(path, framework="numpy") as saved:
        return json.loads(next(iter(saved.metadata().values())))


@pytest.mark.parametrize("kind", end_tokens.KINDS)
def test_a_file_keeps_all_ends(kind, tmp_path):
    table = end_tokens.pair(kind, 4).several.to_table()
    table.save(tmp_path / "table")
    header = header_of(tmp_path / "table")
    assert (header["version"], header["eos"], header["other_ends"]) == (6, table.ends[0], list(table.ends[1:]))
    for found in (mw.TransitionTable.load(tmp_path / "table"), pickle.loads(pickle.dumps(table))):
        assert found.ends == table.ends
        assert found.header() == table.header()
    assert "ends=" in repr(table)


@pytest.mark.parametrize("kind", end_tokens.KINDS)
def test_a_file_with_one_end_is_what_it_was(kind, tmp_path):
    """Of version 5, with the fields that version 5 has."""
    pair = end_tokens.pair(kind, 4)
    one = pair.one.to_table()
    one.save(tmp_path / "table")
    wanted = {"version", "checksum", "vocab_size", "eos", "vocabulary", "source", "depth", "common"}
    header = header_of(tmp_path / "table")
    assert header["version"] == 5
    assert set(header) == wanted
    again = mw.TransitionTable.load(tmp_path / "table")
    again.save(tmp_path / "again")
    assert (tmp_path / "table").read_bytes() == (tmp_path / "again").read_bytes()
    if pair.vocabularies is None:
        values = [[1, 2], [3]]
        tables = [mw.compile_sequences(values, vocab_size=4, eos=eos) for eos in (0, [0], (0, 0), np.array([0]))]
        assert {table.header().__repr__() for table in tables} == {repr(tables[0].header())}


def test_a_reader_that_knows_of_one_end_refuses_a_file_with_several(tmp_path, monkeypatch):
    end_tokens.pair("sids", 0).several.save(tmp_path / "table")
    monkeypatch.setattr(file, "SEVERAL_ENDS_VERSION", 5)
    with pytest.raises(mw.errors.TableFileError, match="has format version 6, this maskwright reads 5"):
        mw.TransitionTable.load(tmp_path / "table")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"other_ends": (3,), "eos": None}, "other_ends are beside eos, and there is none"),
        ({"other_ends": (0,)}, "must be different integers from 0 to 39, without eos"),
        ({"other_ends": (3, 3)}, "must be different integers"),
        ({"other_ends": (40,)}, "must be different integers"),
        ({"other_ends": (3.0,)}, "must be different integers"),
        ({"other_ends": "3"}, "must be a list of tokens"),
        ({"other_ends": (5,)}, "a mask, an edge or an exit has token 5, which is one of the ends"),
    ],
)
def test_ends_that_no_table_has_are_refused(changes, message):
    table = mw.compile_sequences([[5, 6], [7]], vocab_size=40, eos=0)
    assert dataclasses.replace(table, other_ends=[4]).ends == (0, 4)
    with pytest.raises(mw.errors.TableError, match=message):
        dataclasses.replace(table, **changes)


@pytest.mark.parametrize("kind", ["any text", "nested", "schema"])
def test_a_mask_or_an_exit_with_another_end_is_refused(kind):
    table = end_tokens.pair(kind, 4).one.to_table()
    allowed = np.flatnonzero(np.unpackbits(mw.Matcher(table).mask().astype("<u4").view(np.uint8), bitorder="little"))
    with pytest.raises(mw.errors.TableError, match="which is one of the ends"):
        dataclasses.replace(table, other_ends=(int(next(t for t in allowed if t != table.eos)),))


@pytest.mark.parametrize("inside", [0, 3])
def test_a_sequence_with_an_end_inside_is_refused(inside):
    with pytest.raises(mw.errors.ConstraintError, match=f"row 1 has the eos token {inside} at position 0"):
        mw.compile_sequences([[5, 6], [inside, 7]], vocab_size=8, eos=[0, 3])
