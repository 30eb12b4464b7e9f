"""TransitionTable: its checks and its file."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys

import numpy as np
import pytest
import safetensors
from safetensors.numpy import save_file

import maskwright as mw
from maskwright.table.file import FileKind, write_arrays
from tests.strategies.tables import replaced


@pytest.fixture
def table():
    rows = np.random.default_rng(0).integers(0, 40, (2000, 3))
    return mw.compile_sids(np.concatenate([rows, rows[:50]]), 40)


@pytest.fixture
def saved(table, tmp_path):
    path = tmp_path / "table.safetensors"
    table.save(path)
    return path


def test_a_saved_table_comes_back_as_it_was(table, saved):
    loaded = mw.TransitionTable.load(saved)
    for field in dataclasses.fields(table):
        if field.name != "arrays":
            assert getattr(table, field.name) == getattr(loaded, field.name)
    new = loaded.arrays.by_name()
    for name, old in table.arrays.by_name().items():
        assert np.array_equal(old, new[name])
        assert old.dtype == new[name].dtype
    assert (loaded.min_length, loaded.max_length) == (table.min_length, table.max_length)


@pytest.mark.long
def test_a_saved_table_works_in_a_fresh_process(table, saved):
    code = (
        "import sys, numpy as np, maskwright as mw\n"
        "from maskwright.runtime import numpy_ops as ops\n"
        "t = mw.TransitionTable.load(sys.argv[1])\n"
        "state = ops.advance(t, ops.start(t, 1), np.array([int(sys.argv[2])]))\n"
        "print(sorted(ops.edges(t, int(state.node[0]))))\n"
    )
    token = int(table.edges.token[0])
    out = subprocess.run([sys.executable, "-c", code, saved, str(token)], capture_output=True, text=True, check=True)
    state = int(table.walk([[token]])[0])
    assert (
        json.loads(out.stdout)
        == table.edges.token[table.rows.edge_start[state] : table.rows.edge_start[state + 1]].tolist()
    )


def test_every_truncation_is_refused(saved):
    whole = saved.read_bytes()
    for keep in [0, 1, 7, 8, 9, 100, len(whole) // 2, len(whole) - 1]:
        saved.write_bytes(whole[:keep])
        with pytest.raises(mw.errors.TableFileError, match="truncated or is not a maskwright table"):
            mw.TransitionTable.load(saved)


def test_a_flipped_byte_anywhere_is_refused(saved):
    whole = saved.read_bytes()
    rng = np.random.default_rng(1)
    for at in [*rng.integers(8, len(whole), 60).tolist(), len(whole) - 1]:
        changed = bytearray(whole)
        changed[at] ^= 0x11
        saved.write_bytes(bytes(changed))
        with pytest.raises(mw.errors.TableFileError):
            mw.TransitionTable.load(saved)


def test_foreign_files_are_refused(tmp_path):
    path = tmp_path / "x.safetensors"
    save_file({"weight": np.ones(3)}, path)
    with pytest.raises(mw.errors.TableFileError, match="not one that maskwright wrote"):
        mw.TransitionTable.load(path)
    path.write_bytes(b"\x80\x04\x95 a pickle, say")
    with pytest.raises(mw.errors.TableFileError, match="truncated or is not a maskwright table"):
        mw.TransitionTable.load(path)
    with pytest.raises(FileNotFoundError, match="no table at"):
        mw.TransitionTable.load(tmp_path / "absent.safetensors")


def forged(saved, **fields):
    """Write the file again with other header fields and a checksum that fits them."""
    with safetensors.safe_open(saved, framework="numpy") as file:
        header = json.loads(file.metadata()["maskwright"])
        arrays = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 - not a dict
    del header["checksum"]
    header |= fields
    header = {key: value for key, value in header.items() if value != "absent"}
    arrays = {key: arrays[key] for key in header["arrays"]} if "arrays" in header else arrays
    write_arrays(saved, FileKind("maskwright", "table", 0, 0, ""), header, arrays)


@pytest.mark.parametrize(
    "fields",
    [
        {"min_length": 2, "max_length": 2},
        {"max_length": 10**12},
        {"vocab_size": 40.0},
        {"vocab_size": "absent"},
        {"vocab_size": None},
        {"eos": 1.5},
        {"vocabulary": []},
        {"vocabulary": "integers:999"},
        {"source": {}},
        {"more": 1},
    ],
)
def test_a_forged_header_is_refused_even_with_a_fitting_checksum(saved, fields):
    forged(saved, **fields)
    with pytest.raises(mw.errors.TableFileError):
        mw.TransitionTable.load(saved)


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 50_000, "5", "null", "[1]", "x"])
def test_metadata_that_is_no_header_is_refused(saved, text):
    with safetensors.safe_open(saved, framework="numpy") as file:
        arrays = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 - not a dict
    save_file(arrays, saved, {"maskwright": text})
    with pytest.raises(mw.errors.TableFileError):
        mw.TransitionTable.load(saved)


def test_an_array_type_that_numpy_lacks_is_refused(saved):
    whole = saved.read_bytes()
    saved.write_bytes(whole.replace(b'"dtype":"BOOL"', b'"dtype":"F8_E5M2"'.ljust(14))[: len(whole)])
    with pytest.raises(mw.errors.TableFileError):
        mw.TransitionTable.load(saved)


def test_another_version_is_refused(table, saved, monkeypatch):
    monkeypatch.setattr("maskwright.table.file.FORMAT_VERSION", 99)
    with pytest.raises(mw.errors.TableFileError, match="format version 5, this maskwright reads 99"):
        mw.TransitionTable.load(saved)


def test_another_vocabulary_is_refused(saved):
    vocab, other = (mw.Vocabulary.from_bytes([b"", each], eos=0) for each in (b"a", b"b"))
    with pytest.raises(mw.errors.VocabularyMismatchError, match="compiled for vocabulary integers:40, not bytes:"):
        mw.TransitionTable.load(saved, vocabulary=vocab)
    mw.compile_choices(["a"], vocab).save(saved)
    assert mw.TransitionTable.load(saved, vocabulary=vocab).vocab_size == 2
    with pytest.raises(mw.errors.VocabularyMismatchError, match="compiled for vocabulary bytes:"):
        mw.TransitionTable.load(saved, vocabulary=other)


def test_a_saved_file_can_be_read_by_whom_the_umask_lets(saved):
    plain = saved.with_name("plain")
    plain.write_text("")
    assert saved.stat().st_mode == plain.stat().st_mode


def test_a_failed_save_leaves_the_old_file(table, saved, monkeypatch):
    before = saved.read_bytes()

    def fail(*args):
        raise OSError("disk full")

    monkeypatch.setattr("maskwright.table.file.save_file", fail)
    with pytest.raises(OSError, match="disk full"):
        table.save(saved)
    assert saved.read_bytes() == before
    assert [p.name for p in saved.parent.iterdir()] == [saved.name]


def changed(array, at, value):
    array = array.copy()
    array[at] = value
    return array


def swapped_tails(table):
    """Return targets of which two of one level lead to the tails of each other."""
    low = int(table.rows.edge_start[table.trie.level_start[-2]])
    first, second = low + np.flatnonzero(table.edges.target[low:] >= table.num_rows)[:2]
    return changed(table.edges.target, [first, second], table.edges.target[[second, first]])


FAULTS = [
    ("rows.edge_start", lambda t: changed(t.rows.edge_start, 1, 10**6), "rows.edge_start does not rise"),
    ("rows.edge_start", lambda t: changed(t.rows.edge_start, 0, 1), "rows.edge_start does not rise"),
    ("rows.edge_start", lambda t: changed(t.rows.edge_start, 2, t.rows.edge_start[1]), "dead end"),
    ("rows.edge_start", lambda t: t.rows.edge_start[:1], "not S = 0"),
    ("rows.edge_start", lambda t: t.rows.edge_start.astype(float), "rows.edge_start is float64"),
    ("edges.token", lambda t: changed(t.edges.token, 1, t.edges.token[0]), "not strictly increasing"),
    ("edges.token", lambda t: changed(t.edges.token, t.rows.edge_start[1] - 1, 40), "below vocab_size"),
    ("edges.token", lambda t: changed(t.edges.token, -1, 40), "the last tail has no end"),
    ("edges.token", lambda t: changed(t.edges.token, -3, 3), "the last tail has no end"),
    ("edges.token", lambda t: changed(t.edges.token, t.num_edges, 41), "not a token"),
    ("edges.target", lambda t: changed(t.edges.target, 5, -1), "outside the table"),
    ("edges.target", lambda t: changed(t.edges.target, 5, t.num_states - 2), "outside the table"),
    ("edges.target", lambda t: changed(t.edges.target, 5, 0), "not to the next level"),
    ("edges.target", lambda t: changed(t.edges.target, [0, 1], t.edges.target[[1, 0]]), "in the order of these"),
    ("edges.target", lambda t: changed(t.edges.target, 1, t.edges.target[0]), "to each row once"),
    ("edges.target", lambda t: swapped_tails(t), "rows and tails in the order of these"),
    ("rows.base", lambda t: changed(t.rows.base, [1, 2], t.rows.base[[2, 1]]), "not in the order of its rows"),
    ("rows.accepting", lambda t: t.rows.accepting[:-1], "rows.accepting has a size of"),
    ("rows.accepting", lambda t: changed(t.rows.accepting, 1, True), "accepting states and items do not match"),
    ("rows.base", lambda t: changed(t.rows.base, 0, 99), "rows.base points outside"),
    ("bases.masks", lambda t: changed(t.bases.masks, (0, 0), t.bases.masks[0, 0] ^ 1), "mask is not its edges"),
    ("bases.masks", lambda t: t.bases.masks[:, :-1], "bases.masks has a size of 1"),
    ("trie.level_start", lambda t: changed(t.trie.level_start, 1, 0), "trie.level_start does not rise"),
    ("trie.level_start", lambda t: t.trie.level_start[:-1], "trie.level_start does not end"),
    ("trie.item_start", lambda t: changed(t.trie.item_start, 1, 0), "trie.item_start does not rise"),
    ("trie.item_row", lambda t: changed(t.trie.item_row, 1, 10**6), "trie.item_row points outside"),
    ("eos", lambda t: 40, "eos must be an integer from 0 to 39, not 40"),
    ("vocab_size", lambda t: 0, "vocab_size must be an integer from 1 to"),
    ("rows.base", lambda t: changed(t.rows.base, 5, -1), "some rows of a level have masks"),
    ("rows.base", lambda t: t.rows.base.astype(np.int8), "rows.base is int8"),
    ("rows.edge_start", lambda t: t.rows.edge_start.astype(np.int16), "rows.edge_start is int16"),
    ("edges.token", lambda t: t.edges.token.astype(np.uint64), "edges.token is uint64"),
    ("edges.target", lambda t: t.edges.target.astype(np.int64), "edges.target is int64"),
    ("rows.accepting", lambda t: changed(t.rows.accepting, 0, True), "the empty sequence"),
    ("eos", lambda t: int(t.edges.token[0]), "holds eos"),
    ("eos", lambda t: True, "eos must be an integer"),
    ("vocab_size", lambda t: 40.0, "vocab_size must be an integer"),
    ("vocabulary", lambda t: 5, "vocabulary and source must be text"),
    ("vocabulary", lambda t: "integers:41", "the vocabulary is integers:41, but vocab_size is 40"),
]


@pytest.mark.parametrize(("name", "change", "message"), FAULTS, ids=[f"{f[0]}: {f[2]}" for f in FAULTS])
def test_arrays_that_contradict_each_other_are_refused(table, name, change, message):
    with pytest.raises(mw.errors.TableError, match=message):
        replaced(table, name, change(table))


def test_a_table_does_not_share_arrays_that_others_can_change(table):
    row_start = table.rows.edge_start.copy()
    other = replaced(table, "rows.edge_start", row_start)
    row_start[1] = 10**6
    assert other.rows.edge_start.tolist() == table.rows.edge_start.tolist()


def test_tokens_outside_the_vocabulary_are_never_members(table):
    member = table.edges.token[:1].tolist()
    while not table.accepts(member):
        state = int(table.walk([member])[0])
        if state < table.num_rows:
            member.append(int(table.edges.token[table.rows.edge_start[state]]))
        else:
            member.append(int(table.edges.token[table.num_edges + state - table.num_rows]))
    for extra in (-1, 40, 41, 42, 2**31, 2**62):
        assert not table.accepts([*member, extra])
    assert not table.contains(np.array([[*member, 2**64 - 1]], np.uint64)).any()
    assert table.contains(np.array([member], ">i4")).all()
    assert table.contains([]).tolist() == []


def test_a_table_cannot_be_changed(table):
    with pytest.raises(dataclasses.FrozenInstanceError):
        table.eos = 3
    with pytest.raises(ValueError, match="read-only"):
        table.edges.target[0] = 3


def test_looking_up_states_that_are_not_final_gives_no_rows(table):
    assert [rows.size for rows in table.input_rows([0, 1, table.dead, table.after_eos])] == [0, 0, 0, 0]


def test_membership_takes_integers_only(table):
    with pytest.raises(ValueError, match="tokens must be integers"):
        table.contains([[0.5, 1.0, 2.0]])
    assert table.contains([[-1, 0, 0], [40, 0, 0], [2**40, 1, 1]]).tolist() == [False] * 3
    assert not table.accepts([])
