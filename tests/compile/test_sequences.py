"""compile_sids and compile_sequences: what is in, what is out, and what the errors say."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import maskwright as mw
from maskwright.automata import sequence_sort
from maskwright.automata import trie as trie_module
from tests.oracles import naive

INTEGERS = [np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64]


def check_against_set(table: mw.TransitionTable, rows: list[naive.Tokens], eos: int | None) -> None:
    """Hold a table against the rows it was made from: members, near misses, structure, and the way back."""
    members = set(rows)
    assert table.num_sequences == len(members)
    lengths = {len(row) for row in members}
    assert (table.min_length, table.max_length) == (min(lengths), max(lengths))
    for member in members:
        assert table.accepts(member)
        state = table.walk([member])
        assert table.input_rows(state)[0].tolist() == [i for i, row in enumerate(rows) if row == member]
        for near in (member[:-1], (*member, 0), (*member[:-1], (member[-1] + 1) % table.vocab_size)):
            if near:
                assert table.accepts(near) == (near in members or (near[-1] == eos and near[:-1] in members))
    for prefix in naive.prefixes(members):
        if prefix:
            assert int(table.walk([prefix])[0]) != table.dead
    for depth, level in enumerate(table.levels):
        counts = [len(naive.allowed_after(members, p, None)) for p in naive.prefixes(members) if len(p) == depth]
        assert level.width == max(1, *counts)


@settings(deadline=None, max_examples=60)
@given(naive.sid_sets(), st.sampled_from(INTEGERS))
def test_a_table_holds_exactly_the_given_sids(case, dtype):
    rows, vocab = case
    if max(max(row) for row in rows) > np.iinfo(dtype).max:
        dtype = np.int32
    check_against_set(mw.compile_sids(np.array(rows, dtype), vocab), rows, None)


@settings(deadline=None, max_examples=60)
@given(naive.ragged_sets(eos=0), st.booleans())
def test_a_table_holds_exactly_the_given_sequences(case, with_eos):
    rows, vocab = case
    values, offsets = naive.flatten(rows)
    eos = 0 if with_eos else None
    check_against_set(mw.compile_sequences(values, offsets, vocab_size=vocab, eos=eos), rows, eos)


@settings(deadline=None, max_examples=40)
@given(naive.ragged_sets())
def test_distance_is_the_fewest_tokens_to_an_end(case):
    rows, vocab = case
    table = mw.compile_sequences([list(row) for row in rows], vocab_size=vocab)
    for prefix in naive.prefixes(set(rows)):
        state = int(table.walk([prefix])[0]) if prefix else 0
        if state < table.num_rows:
            assert table.distance[state] == min(len(r) - len(prefix) for r in rows if r[: len(prefix)] == prefix)


@pytest.mark.long
@pytest.mark.parametrize("shape", ["random", "one long shared prefix", "one last token", "all equal", "clustered"])
def test_large_sets_of_any_shape_hold_what_numpy_says(shape):
    rng = np.random.default_rng(7)
    n, length, vocab = 30_000, 11, 3000
    rows = rng.integers(0, vocab, (n, length))
    if shape == "one long shared prefix":
        rows[:, :9] = rows[0, :9]
    elif shape == "one last token":
        rows[:, :-1] = 5
    elif shape == "all equal":
        rows[:] = rows[0]
    elif shape == "clustered":
        rows = np.minimum(rng.geometric(0.2, (n, length)), vocab - 1)
    table = mw.compile_sids(rows.astype(np.uint16), vocab)
    distinct = np.unique(rows, axis=0)
    assert table.num_sequences == len(distinct)
    assert table.contains(rows).all()
    others = rows.copy()
    others[:, rng.integers(length)] += 1
    members = set(map(tuple, distinct.tolist()))
    assert table.contains(others).tolist() == [tuple(row) in members for row in others.tolist()]
    groups = table.input_rows(table.walk(distinct))
    assert sorted(itertools.chain.from_iterable(g.tolist() for g in groups)) == list(range(n))
    for sid, group in zip(distinct[:200], groups[:200], strict=True):
        assert (rows[group] == sid).all()


def test_indices_of_64_bits_hold_the_same_set(monkeypatch):
    rows = np.random.default_rng(3).integers(0, 9, (500, 4))
    narrow = mw.compile_sids(rows, 9)
    for module in (sequence_sort, trie_module):
        monkeypatch.setattr(module, "WIDE", 0)
    wide = mw.compile_sids(rows, 9)
    assert (narrow.rows.edge_start.dtype, wide.rows.edge_start.dtype) == (np.int32, np.int64)
    every = np.array(list(itertools.product(range(9), repeat=4)))
    assert (narrow.contains(every) == wide.contains(every)).all()
    assert (narrow.walk(every) == wide.walk(every)).all()


def test_tokens_take_the_smallest_type_that_holds_them():
    sizes = {vocab: mw.compile_sids([[0, vocab - 1]], vocab).edges.token.itemsize for vocab in (200, 60_000, 200_000)}
    assert sizes == {200: 1, 60_000: 2, 200_000: 4}


def test_every_kind_of_input_gives_the_same_table(tmp_path):
    pa = pytest.importorskip("pyarrow")
    rows = np.random.default_rng(0).integers(0, 50, (40, 3))
    np.save(tmp_path / "sids.npy", rows.astype(np.int16))
    offsets = np.arange(0, 121, 3)
    lists = pa.array(rows.tolist())
    sources = {
        "C order": rows,
        "Fortran order": np.asfortranarray(rows),
        "big endian": rows.astype(">i4"),
        "strided": np.repeat(rows, 2, axis=0)[::2],
        "nested list": rows.tolist(),
        "memory map": np.load(tmp_path / "sids.npy", mmap_mode="r"),
        "list column": lists,
        "large list column": lists.cast(pa.large_list(pa.int16())),
        "fixed-size column": lists.cast(pa.list_(pa.int64(), 3)),
        "chunked column": pa.chunked_array([lists.slice(0, 7), lists.slice(7)]),
        "sliced column": pa.concat_arrays([lists.slice(0, 5), lists]).slice(5),
        "sliced fixed-size column": pa.concat_arrays([lists, lists]).cast(pa.list_(pa.int64(), 3)).slice(40),
    }
    reference = mw.compile_sids(rows, 50)
    for name, source in sources.items():
        tables = [mw.compile_sids(source, 50)]
        if "column" in name:
            tables.append(mw.compile_sequences(source, vocab_size=50))
        for table in tables:
            assert table.edges.token.tolist() == reference.edges.token.tolist(), name
            assert table.trie.item_row.tolist() == reference.trie.item_row.tolist(), name
    ragged = mw.compile_sequences(rows.reshape(-1), offsets, vocab_size=50)
    assert ragged.edges.token.tolist() == reference.edges.token.tolist()


def test_offsets_may_leave_values_out_at_both_ends():
    table = mw.compile_sequences([9, 9, 1, 2, 3, 9], [2, 4, 5], vocab_size=4)
    assert table.accepts([1, 2])
    assert table.accepts([3])
    assert table.num_sequences == 2


def arrow(value, **kwargs):
    return pytest.importorskip("pyarrow").array(value, **kwargs)


BAD_SIDS = [
    (
        [[1, 2], [3, 9]],
        {},
        "row 1 has token 9 at position 1, outside 0 .. 8. Correct the row, or raise vocab_size, now 9",
    ),
    ([[1, -2]], {}, "row 0 has token -2 at position 1, outside 0 .. 8"),
    (
        np.array([[0], [-1]], np.int8),
        {"vocab_size": 300},
        "row 1 has token -1 at position 0, outside 0 .. 299",
    ),
    (np.array([[2**63]], np.uint64), {}, "row 0 has token 9223372036854775808 at position 0"),
    (np.empty((0, 3), np.int64), {}, "the set is empty"),
    ([], {}, "sids must have shape (N, L), not (0,)"),
    (np.empty((2, 0), np.int64), {}, "row 0 is empty"),
    ([1, 2, 3], {}, "sids must have shape (N, L), not (3,)"),
    (
        [[1.0, 2.5], [3.0, 4.0]],
        {},
        "sids has dtype float64: tokens must be integers, and row 0 has 1.0",
    ),
    (np.ones((2, 2), np.float32), {}, "all are whole numbers, so convert with .astype"),
    (np.ones((2, 2), bool), {}, "sids has dtype bool: tokens must be integers"),
    ([["a", "b"]], {}, "tokens must be integers"),
    (np.array([[1.0, 2.5]]), {}, "sids has dtype float64: tokens must be integers, and row 0 is [1.0, 2.5]"),
    ([[1, 2], [3]], {}, "row 1 has 1 tokens, row 0 has 2: semantic IDs have one length"),
    ([[1, 2], 3], {}, "sids is not a rectangle of integers"),
    ([[1, 2], [2, 2**64]], {}, "and row 1 has 18446744073709551616"),
    ([[1, -1], [2, 2**63]], {}, "and row 0 has -1"),
    (5, {}, "sids must have shape (N, L), not ()"),
    (None, {}, "sids has dtype object: tokens must be integers"),
    ([[1]], {"vocab_size": 0}, "vocab_size must be an integer from 1 to 2,147,483,645, not 0"),
    ([[1]], {"vocab_size": 2.5}, "vocab_size must be an integer from 1 to 2,147,483,645, not 2.5"),
    ([[1]], {"vocab_size": True}, "not True"),
    ([[1]], {"vocab_size": 2**63}, "not 9223372036854775808"),
    ([[1]], {"eos": 9}, "eos must be token ids from 0 to 8, not 9"),
    ([[1]], {"eos": 1.5}, "eos must be token ids from 0 to 8, not 1.5"),
    ([[1]], {"eos": True}, "eos must be token ids from 0 to 8, not True"),
    ([[1, 2], [3, 4]], {"eos": 4}, "row 1 has the eos token 4 at position 1"),
    (lambda: arrow([[1, 2], [3]]), {}, "row 1 has 1 tokens, row 0 has 2"),
    (lambda: arrow([[1, 2], None]), {}, "row 1 is null"),
    (lambda: arrow([[1, 2], [3, None]]), {}, "row 1 has a null at position 1"),
    (lambda: pytest.importorskip("pyarrow").table({"sid": [[1]]}), {}, "a pyarrow Table was given: pass one column"),
    (lambda: arrow([1, 2]), {}, "the column holds int64: a column of integer lists is needed"),
    (lambda: arrow([[1.5]]), {}, "the column holds lists of double"),
]


@pytest.mark.parametrize(("sids", "options", "message"), BAD_SIDS, ids=[case[2][:40] for case in BAD_SIDS])
def test_bad_sids_are_refused_with_the_row(sids, options, message):
    with pytest.raises(mw.errors.ConstraintError) as caught:
        mw.compile_sids(sids() if callable(sids) else sids, **{"vocab_size": 9, **options})
    assert message in str(caught.value)


BAD_SEQUENCES = [
    (([1, 2, 3], [0, 2, 2, 3]), {}, "row 1 is empty"),
    (([1, 2, 3], [0, 2, 1]), {}, "offsets fall at row 1: from 2 to 1"),
    (([1, 2, 3], [0, 4]), {}, "offsets run from 0 to 4, but there are 3 values"),
    (([1, 2, 3], [-1, 2]), {}, "offsets run from -1 to 2"),
    (([1, 2, 3], [0]), {}, "the set is empty"),
    (([1, 2, 9], [0, 1, 3]), {}, "row 1 has token 9 at position 1"),
    (([1, 2, 3], [0, 1, 3]), {"eos": 2}, "row 1 has the eos token 2 at position 0"),
    (([1.5], [0, 1]), {}, "values has dtype float64"),
    (([1], [0.0, 1.0]), {}, "offsets has dtype float64"),
    (([[1]], [0, 1]), {}, "values and offsets must have one axis each"),
    (([[1], [2.5]],), {}, "row 1 has dtype float64"),
    (([[1], []],), {}, "row 1 is empty"),
    (([],), {}, "the set is empty"),
    (([1, 2, 3],), {}, "row 0 has 0 axes: each row must be one sequence of tokens"),
    ((np.arange(5),), {}, "say with offsets= where each sequence starts"),
    (([[[1, 2], [3, 4]], [1]],), {}, "row 0 has 2 axes"),
    (([[1, 2], [[1, 2], [3]]],), {}, "row 1 is not a rectangle of integers"),
    (([[1, 2], [-3]],), {}, "row 1 has token -3 at position 0"),
    (([[1, 2], [2**63]],), {}, "row 1 has token 9223372036854775808 at position 0"),
    ((None,), {}, "a list of sequences is needed, not NoneType"),
    ((5,), {}, "a list of sequences is needed, not int"),
]


@pytest.mark.parametrize(("source", "options", "message"), BAD_SEQUENCES, ids=[case[2][:40] for case in BAD_SEQUENCES])
def test_bad_sequences_are_refused_with_the_row(source, options, message):
    with pytest.raises(mw.errors.ConstraintError) as caught:
        mw.compile_sequences(*source, **{"vocab_size": 9, **options})
    assert message in str(caught.value)


def test_progress_is_silent_when_not_a_terminal_and_shown_when_it_is(monkeypatch, capsys):
    from maskwright.compile import sequences

    rows = np.random.default_rng(0).integers(0, 10, (100, 3))
    monkeypatch.setattr(sequences, "LONG_BUILD", 1)
    mw.compile_sids(rows, 10)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    monkeypatch.setenv("FORCE_COLOR", "1")
    mw.compile_sids(rows, 10)
    assert "sorting" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("vocab", [2, 17, 256, 2048, 40_000, 1_000_000])
def test_millions_of_rows_hold_what_numpy_says(vocab):
    rng = np.random.default_rng(vocab)
    rows = rng.integers(0, vocab, (2_000_000, 6))
    rows[: len(rows) // 2, :4] = rows[rng.integers(0, 1000, len(rows) // 2), :4]  # half of them share long prefixes
    table = mw.compile_sids(rows, vocab)
    distinct, group = np.unique(rows, axis=0, return_inverse=True)
    assert table.num_sequences == len(distinct)
    assert table.contains(distinct).all()
    order = np.argsort(group.reshape(-1), kind="stable")
    assert (table.trie.item_row == order).all()  # no sequence is a prefix of another, so groups come in sorted order
    near = distinct.copy()
    near[:, -1] = (near[:, -1] + 1) % vocab
    keys = {row.tobytes() for row in distinct}
    sample = rng.integers(0, len(near), 20_000)
    assert table.contains(near[sample]).tolist() == [row.tobytes() in keys for row in near[sample]]


@pytest.mark.parametrize("function", [mw.compile_sids, mw.sort_sids])
def test_masked_entries_are_refused_by_place(function):
    rows = np.ma.array([[1, 2], [2, 3]], mask=[[False, False], [False, True]])
    with pytest.raises(mw.errors.ConstraintError, match=r"masked entry at \[1, 1\]"):
        function(rows, 4)
    whole = function(np.ma.array([[1, 2], [2, 3]]), 4)
    assert whole.contains(np.array([[1, 2], [2, 3], [1, 3]])).tolist() == [True, True, False]


@pytest.mark.parametrize("vocab_size", [5, 255, 256, 65_535, 70_000])
@pytest.mark.parametrize("kind", INTEGERS)
def test_every_type_of_integers_makes_the_same_table_with_every_size_of_vocabulary(kind, vocab_size):
    """The type of tokens in a table follows the vocabulary's size, and kernels are compiled for each pair of types."""
    rows = np.array([[0, 1, 2], [4, 1, 3], [0, 1, 2], [0, 2, 2]])
    buffer = bytearray(rows.size * np.dtype(kind).itemsize + 1)
    unaligned = np.frombuffer(buffer, kind, rows.size, offset=1).reshape(rows.shape)
    unaligned[:] = rows
    expected = mw.compile_sids(rows.tolist(), vocab_size)
    for given_rows in (
        rows.astype(kind),
        np.asfortranarray(rows.astype(kind)),
        rows.astype(kind)[:, ::-1][:, ::-1],
        unaligned,
    ):
        made = mw.compile_sids(given_rows, vocab_size)
        for name, array in expected.arrays.by_name().items():
            assert np.array_equal(array, made.arrays.by_name()[name]), name
        matrix = mw.sort_sids(given_rows, vocab_size)
        assert matrix.contains(rows).all()
        assert not matrix.contains(np.array([[0, 1, 3]])).any()
        assert made.contains(rows).all()
        assert made.num_sequences == 3
    uneven = mw.compile_sequences([row[: 1 + i].astype(kind) for i, row in enumerate(rows[:3])], vocab_size=vocab_size)
    assert [uneven.accepts(x) for x in ((0,), (4, 1), (0, 1, 2), (0, 1))] == [True, True, True, False]


@pytest.mark.parametrize("kind", INTEGERS)
def test_states_to_walk_from_may_be_of_any_type_of_integers(kind):
    table = mw.compile_sids([[1, 2], [3, 4], [1, 3]], 9)
    first = table.walk([[1], [3]])
    assert table.walk([[3], [4]], first.astype(kind)).tolist() == table.walk([[1, 3], [3, 4]]).tolist()
    assert table.walk([[3], [4]], first.tolist()).tolist() == table.walk([[1, 3], [3, 4]]).tolist()


@pytest.mark.parametrize("states", [[0], [0, 0, 0, 0, 0], [[0], [0]], 0, [0.0, 0.0], ["a", "b"]])
def test_states_that_are_not_one_for_each_row_are_refused(states):
    with pytest.raises(ValueError, match=r"states must be integers of shape \(2,\), not"):
        mw.compile_sids([[1, 2], [3, 4]], 9).walk([[1], [3]], states)


def test_a_table_without_calls_has_no_stack_to_follow_and_no_distances_by_ends():
    table = mw.compile_sids([[1, 2], [3, 4]], 9)
    with pytest.raises(ValueError, match="use walk"):
        table.follow([[1]])
    for flat in (table, mw.compile_regex("[ab]+c?", mw.Vocabulary.from_bytes([b"", b"a", b"b", b"c"], eos=0))):
        with pytest.raises(ValueError, match="use distance"):
            _ = flat.distances
