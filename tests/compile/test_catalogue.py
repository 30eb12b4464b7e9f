"""Catalogues: items behind semantic IDs, tokens of codes, Parquet, and the file; against dictionaries."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections import defaultdict
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import maskwright as mw
from maskwright.runtime import numpy_ops
from maskwright.runtime.decode import beam_search, sample_sequences
from maskwright.table.item_ids import ItemIds
from tests.oracles import naive

SIDS = np.array([[3, 1, 0], [3, 1, 0], [0, 2, 1], [3, 0, 0], [0, 2, 2], [3, 1, 0]])
NUMBERS = np.array([10, 11, 12, 13, 10, 9])  # 10 has two IDs, three items share one
NAMES = ["shoe", "hat", "ütz", "", "shoe", "a" * 300]
OFFSETS = [100, 104, 108]


class Found(NamedTuple):
    states: Any
    scores: Any
    valid: Any


def expected(rows: list[naive.Tokens], ids: list[Any], wanted: list[naive.Tokens]) -> list[Any]:
    """Return the ids of sequences, each once, in their order and that of the input."""
    behind = defaultdict(list)
    for row, item in zip(rows, ids, strict=True):
        behind[row].append(item)
    return list(dict.fromkeys(item for row in wanted for item in behind[row]))


@pytest.mark.parametrize("kind", ["table", "matrix"])
@pytest.mark.parametrize("ids", [NUMBERS, NAMES], ids=["numbers", "strings"])
def test_beams_become_items_in_the_order_of_their_scores(kind, ids):
    catalogue = mw.Catalogue.of(SIDS, ids, 120, offsets=OFFSETS, kind=kind)
    dev = numpy_ops.to_device(catalogue.table)
    model = np.random.default_rng(0).normal(size=(3, 2, 120)).astype(np.float32)

    def step(tokens: Any, cache: Any, t: int) -> Any:
        return np.repeat(model[t], len(tokens) // 2, axis=0), cache

    beams = beam_search(step, None, dev, ops=numpy_ops, batch=2, beams=6, max_tokens=3)
    assert beams.valid.sum(-1).tolist() == [4, 4]
    rows = [tuple(row) for row in SIDS.tolist()]
    for b, found in enumerate(catalogue.items(beams)):
        wanted = [tuple((row - OFFSETS).tolist()) for row in beams.tokens[b, :4]]
        assert found == expected(rows, list(ids), wanted)
    assert catalogue.items(beams, limit=2) == [found[:2] for found in catalogue.items(beams)]
    for b, pairs in enumerate(catalogue.ranked(beams)):
        assert [item for item, _ in pairs] == catalogue.items(beams)[b]
        assert [score for _, score in pairs] == sorted((score for _, score in pairs), reverse=True)
        assert pairs[0][1] == beams.scores[b, 0]
    drawn = sample_sequences(
        step, None, dev, np.random.default_rng(0), ops=numpy_ops, batch=2, samples=5, max_tokens=3
    )  # fmt: skip
    best = drawn.log_probs.argmax(-1)
    for b, found in enumerate(catalogue.items(drawn)):
        assert found[0] == expected(rows, list(ids), [tuple((drawn.tokens[b, best[b]] - OFFSETS).tolist())])[0]


@pytest.mark.parametrize("kind", ["table", "matrix"])
def test_states_of_tokens_mean_items_and_others_none(kind):
    catalogue = mw.Catalogue.of(SIDS, NUMBERS, 120, offsets=OFFSETS, kind=kind)
    tokens = catalogue.code_tokens.tokens(np.array([[[0, 2, 1], [3, 3, 3]], [[3, 1, 0], [0, 2, 2]]]))
    behind = np.concatenate([tokens, np.full((2, 2, 2), -1)], -1)  # padding
    assert catalogue.items(catalogue.states(behind)) == [[12], [10, 11, 9]]
    assert catalogue.items(catalogue.states(tokens)[1]) == [10, 11, 9]
    assert catalogue.items(catalogue.states(np.array([[-1, -1, -1], [1, 2, 3]]))) == []
    assert catalogue.code_tokens.codes(tokens).tolist() == [[[0, 2, 1], [3, 3, 3]], [[3, 1, 0], [0, 2, 2]]]
    states = catalogue.states(tokens)
    scores = np.array([[0.0, 1.0], [1.0, 2.0]])
    assert catalogue.items(Found(states, scores, np.array([[True, True], [True, False]]))) == [[12], [10, 11, 9]]
    assert catalogue.items(Found(states, scores, np.ones((2, 2), bool)))[1] == [10, 11, 9]


@pytest.mark.parametrize("kind", ["table", "matrix"])
def test_no_result_is_lost_to_items_that_a_row_leaves_out(kind):
    """Each row has its own: 20 items come back of 20 beams, and none that was seen."""
    sids = np.random.default_rng(0).integers(0, 4, (200, 4))
    catalogue = mw.Catalogue.of(sids, [f"item-{i}" for i in range(200)], 4, kind=kind)
    model = np.random.default_rng(1).normal(size=(4, 2, 4)).astype(np.float32)

    def step(tokens: Any, cache: Any, t: int) -> Any:
        return np.repeat(model[t], len(tokens) // 2, axis=0), cache

    dev = numpy_ops.to_device(catalogue.table)
    options: dict[str, Any] = {"ops": numpy_ops, "batch": 2, "beams": 20, "max_tokens": 4}
    seen = [row[:30] for row in catalogue.items(beam_search(step, None, dev, **options))]
    filters = [catalogue.without(seen[0]), catalogue.without(["item-1000"])]
    found = beam_search(step, None, numpy_ops.with_filters(dev, filters), **options)
    assert found.valid.all()
    left, all_of_them = catalogue.items(found, filters=filters)
    assert not set(left) & set(seen[0])
    assert all_of_them[:30] == seen[1]
    of_ids = {f"item-{i}": tuple(row) for i, row in enumerate(sids.tolist())}
    expected = {tuple(row) for row in found.tokens[0].tolist()}
    assert {of_ids[item] for item in left} == expected  # each beam has an item that is kept
    assert catalogue.items(found.states[0], filters=filters[0]) == left
    assert [pair[0] for pair in catalogue.ranked(found, filters=filters)[0]] == left
    with pytest.raises(mw.errors.ConstraintError, match="filters is of another catalogue"):
        catalogue.items(found, filters=mw.Catalogue.of(sids, range(200), 4, kind=kind).without([1]))
    with pytest.raises(ValueError, match="3 filters for 2 rows"):
        catalogue.items(found, filters=filters[:1] * 3)


@settings(deadline=None, max_examples=30)
@given(naive.sid_sets(), st.booleans(), st.integers(0, 50), st.data())
def test_catalogues_are_dictionaries(case, matrix, offset, data):
    rows, vocab = case
    ids = data.draw(st.lists(st.one_of(st.integers(-5, 5)), min_size=len(rows), max_size=len(rows)))
    ids = ids if data.draw(st.booleans()) else [f"é{i}" for i in ids]
    catalogue = mw.Catalogue.of(
        np.array(rows), ids, vocab + offset, offsets=offset, kind="matrix" if matrix else "table"
    )
    wanted = data.draw(st.lists(st.sampled_from(rows), max_size=10))
    tokens = np.array(wanted, np.int64).reshape(-1, len(rows[0])) + offset
    assert catalogue.items(catalogue.states(tokens)) == expected(rows, ids, wanted)
    assert catalogue.table.contains(np.array(rows) + offset).all()


@pytest.mark.parametrize("kind", ["table", "matrix"])
@pytest.mark.parametrize("ids", [NUMBERS, NAMES], ids=["numbers", "strings"])
def test_a_catalogue_comes_back_from_its_file(kind, ids, tmp_path):
    vocabulary = mw.Vocabulary.from_bytes([b"", *[b"a"] * 119], eos=0)
    made = mw.Catalogue.of(SIDS, ids, vocabulary=vocabulary, offsets=OFFSETS, kind=kind, metadata={"model": ["a", 1]})
    made.save(tmp_path / "items.catalogue")
    read = mw.Catalogue.load(tmp_path / "items.catalogue", vocabulary=vocabulary)
    assert list(read.ids) == list(made.ids) == list(ids)
    assert read.metadata == {"model": ["a", 1]}
    assert (read.vocabulary, read.code_tokens.offsets) == (vocabulary.fingerprint, (100, 104, 108))
    states = made.states(SIDS + OFFSETS)
    assert read.items(states) == made.items(states)
    assert type(read.table) is type(made.table)
    with pytest.raises(mw.errors.VocabularyMismatchError, match="compiled for vocabulary"):
        mw.Catalogue.load(tmp_path / "items.catalogue", vocabulary=mw.Vocabulary.from_bytes([b"a", b""], eos=1))


def test_damaged_files_and_files_of_other_kinds_are_refused(tmp_path):
    made = mw.Catalogue.of(SIDS, NAMES, 120, offsets=OFFSETS)
    path = tmp_path / "items.catalogue"
    made.save(path)
    whole = path.read_bytes()
    for at in range(100, len(whole), len(whole) // 7):
        path.write_bytes(whole[:at])
        with pytest.raises(mw.errors.TableFileError, match="truncated"):
            mw.Catalogue.load(path)
    changed = bytearray(whole)
    changed[whole.rindex("ütz".encode()) + 2] ^= 1
    path.write_bytes(changed)
    with pytest.raises(mw.errors.TableFileError, match="was changed"):
        mw.Catalogue.load(path)
    with pytest.raises(FileNotFoundError, match="no catalogue"):
        mw.Catalogue.load(tmp_path / "none")
    made.table.save(path)
    with pytest.raises(mw.errors.TableFileError, match="for a catalogue"):
        mw.Catalogue.load(path)
    made.save(path)
    with pytest.raises(mw.errors.TableFileError, match="for a table"):
        mw.TransitionTable.load(path)


def named_vocabulary(extra: int = 0) -> mw.Vocabulary:
    """Return a vocabulary in which tokens are known by name, in no order."""
    names = [f"<a_{i}>" for i in (3, 0)] + [f"<b_{i}>" for i in (2, 1, 0)] + ["zero", "one", "two"]
    tokens = [b"x"] * 30 + [name.encode() for name in names[: len(names) - extra]] + [b""]
    return mw.Vocabulary.from_bytes(
        tokens, eos=len(tokens) - 1, special={n: 30 + i for i, n in enumerate(names[: len(names) - extra])}
    )


def test_codes_are_tokens_by_name():
    vocabulary = named_vocabulary()
    names = ["<a_{}>", "<b_{}>", ["zero", "one", "two"]]
    catalogue = mw.Catalogue.of(SIDS, NUMBERS, names=names, vocabulary=vocabulary)
    tokens = np.array([[30, 33, 35], [31, 32, 36]])  # <a_3><b_1>zero, <a_0><b_2>one
    assert catalogue.items(catalogue.states(tokens)) == [10, 11, 9, 12]
    assert catalogue.code_tokens.codes(tokens).tolist() == [[3, 1, 0], [0, 2, 1]]
    assert catalogue.code_tokens.codes(np.array([[32, 33, -1]])).tolist() == [[-1, 1, -1]]
    assert catalogue.code_tokens.tokens(np.array([3, 1, 0])).tolist() == [30, 33, 35]
    with pytest.raises(
        mw.errors.ConstraintError, match="row 0 has code 1 at position 0, for which the catalogue has no token"
    ):
        catalogue.code_tokens.tokens(np.array([[1, 1, 0]]))
    with pytest.raises(mw.errors.ConstraintError, match="no token of the name 'zero', 'one', 'two'"):
        mw.Catalogue.of(SIDS, NUMBERS, names=names, vocabulary=named_vocabulary(3))


def test_names_come_back_from_a_file(tmp_path):
    made = mw.Catalogue.of(
        SIDS, NUMBERS, names=["<a_{}>", "<b_{}>", ["zero", "one", "two"]], vocabulary=named_vocabulary()
    )
    made.save(tmp_path / "named")
    read = mw.Catalogue.load(tmp_path / "named")
    assert read.code_tokens.tokens(SIDS).tolist() == made.code_tokens.tokens(SIDS).tolist()


WRITTEN = [["<a_3>", "<b_1>"], ["<a_0>", "<b_2>"], ["<a_3>", "<b_1>"]]


def written_forms() -> list[Any]:
    pa = pytest.importorskip("pyarrow")
    joined = ["".join(row) for row in WRITTEN]
    return [
        WRITTEN, joined, np.array(WRITTEN), np.array(joined), np.array(joined, object), pa.array(WRITTEN),
        pa.array(joined), pa.array(joined).dictionary_encode(), pa.array(WRITTEN, pa.list_(pa.string(), 2)),
        pa.chunked_array([joined[:1], joined[1:]]),
    ]  # fmt: skip


@pytest.mark.parametrize("form", range(10))
def test_semantic_ids_may_be_names_of_tokens(form):
    catalogue = mw.Catalogue.of(written_forms()[form], [7, 8, 9], vocabulary=named_vocabulary())
    assert catalogue.items(catalogue.states(np.array([[31, 32], [30, 33]]))) == [8, 7, 9]
    assert catalogue.code_tokens.tokens(np.array([30, 33])).tolist() == [30, 33]


@pytest.mark.parametrize(
    ("sids", "options", "said"),
    [
        (["<a_3><b_1>", "<a_3>-<b_1>"], {}, "row 1 is '<a_3>-<b_1>', which is not a sequence of names"),
        ([["<a_3>"], ["<a_3>", "<b_1>"]], {}, "row 1 has 2 names, row 0 has 1"),
        (["<a_3>", None], {}, "row 1 is None"),
        (["<a_3>", ""], {}, "row 1 has 0 names"),
        ([["<a_3>"], [3]], {}, r"row 1 is \[3\]"),
        (["<a_3><c_1>", "<a_9><b_1>"], {}, "no token of the name '<c_1>', '<a_9>'"),
        (["<a_3>"] * 2, {"offsets": 3}, "leave names and offsets out"),
        (["<a_3>"] * 2, {"vocabulary": None, "vocab_size": 50}, "names of tokens. Pass vocabulary of the tokenizer"),
    ],
)
def test_wrong_names_are_named(sids, options, said):
    with pytest.raises(mw.errors.ConstraintError, match=said):
        mw.Catalogue.of(sids, [1, 2], **({"vocabulary": named_vocabulary()} | options))


def test_names_of_tokens_are_read_from_parquet(tmp_path):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    columns = {"sid": ["".join(row) for row in WRITTEN], "item": [7, 8, 9]}
    columns |= {"a": [row[0] for row in WRITTEN], "b": [row[1] for row in WRITTEN]}
    pq.write_table(pa.table(columns), tmp_path / "rows.parquet")
    for sids in ("sid", ["a", "b"]):
        read = mw.Catalogue.from_parquet(tmp_path, sids=sids, items="item", vocabulary=named_vocabulary())
        assert read.items(read.states(np.array([[31, 32], [30, 33]]))) == [8, 7, 9]
    with pytest.raises(
        mw.errors.ConstraintError, match=r"rows.parquet: the vocabulary has no token of the name '<b_1>', '<b_2>'\. Add"
    ):
        mw.Catalogue.from_parquet(tmp_path, sids="sid", items="item", vocabulary=named_vocabulary(6))
    with pytest.raises(mw.errors.ConstraintError, match="leave names and offsets out"):
        mw.Catalogue.from_parquet(tmp_path, sids="sid", items="item", vocabulary=named_vocabulary(), offsets=1)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"items": [1, 2]}, "2 item ids for 6 semantic IDs"),
        ({"items": [1, 2, 3, 4, 5, "a"]}, "row 0 has item id 1"),
        ({"items": [1, 2, 3, 4, 5, None]}, "row 0 has item id 1: all ids must be integers, or all strings"),
        ({"items": ["a", "b", "c", "d", "e", None]}, "row 5 has item id None"),
        ({"items": ["a", "b", "c", "d", "e", "\ud800"]}, "row 5 .*lone surrogate"),
        ({"items": np.full(6, 2**63, np.uint64)}, "64 bits with a sign"),
        ({"items": np.zeros((6, 2), int)}, r"must have shape \(N,\)"),
        ({"offsets": [1, 2]}, "offsets must be a number, or 3 of them"),
        ({"offsets": -1}, "0 or more"),
        ({"offsets": [100, 104, 119]}, r"row 2 has code 1 at position 2, outside 0 .. 0: the offset is 119"),
        ({"sids": SIDS - 1}, r"row 2 has code -1 at position 0, outside 0 .. 119"),
        ({"names": ["<a_{}>"] * 3}, "names are looked up in a vocabulary. Pass vocabulary too"),
        ({"names": ["<a_{}>"] * 2, "vocabulary": named_vocabulary()}, "3 patterns or lists"),
        ({"names": ["<a>"] * 3, "vocabulary": named_vocabulary()}, "stands for the code"),
        ({"names": ["<a_{}>"] * 3, "vocabulary": named_vocabulary(), "offsets": 3}, "leave one out"),
        ({"names": ["<a_{}>"] * 3, "vocabulary": named_vocabulary(), "sids": SIDS << 50}, "level 0 has code 3377"),
        ({"names": [["x"]] * 3, "vocabulary": named_vocabulary(), "sids": SIDS - 4}, "level 0 has code -4"),
        ({"names": [["x"]] * 3, "vocabulary": named_vocabulary()}, "names 1 codes of level 0, which has code 3"),
        ({"vocab_size": None}, "Pass vocab_size or vocabulary"),
        ({"sids": pytest.importorskip("pyarrow").table({"a": [1]})}, "pass one column of it"),
        ({"kind": "list"}, 'kind must be "table" or "matrix"'),
        ({"kind": "matrix", "eos": 1}, "eos is for tables"),
    ],
)
def test_what_is_no_catalogue_is_refused(options, said):
    given = {"sids": SIDS, "items": NUMBERS, "vocab_size": 120} | options
    with pytest.raises(mw.errors.ConstraintError, match=said):
        mw.Catalogue.of(**given)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"items.starts": np.array([0, 4, 2, 6, 8, 9, 10])}, "starts of item ids"),
        ({"items.starts": np.arange(7) / 1.0}, "must be uint8"),
        ({"items.starts": np.array([0, 5, 8, 8, 12, 12, 14])}, "starts of item ids"),
        ({"items.text": np.full(10, 0xFF, np.uint8), "items.starts": np.array([0, 2, 4, 6, 8, 9, 10])}, "not UTF-8"),
        (
            {"items.text": np.frombuffer("üüüüü".encode(), np.uint8), "items.starts": np.array([0, 1, 2, 3, 4, 5, 10])},
            "middle",
        ),
        ({"items.numbers": np.arange(6)}, "must be numbers, or"),
    ],
)
def test_a_file_whose_ids_are_none_is_refused(changed, said, tmp_path, monkeypatch):
    path = tmp_path / "catalogue"
    catalogue = mw.Catalogue.of(SIDS, ["a", "b", "c", "d", "e", "f"], 120)
    arrays = catalogue.ids.by_name() | {name: np.asarray(array) for name, array in changed.items()}
    monkeypatch.setattr(ItemIds, "by_name", lambda self: arrays)
    catalogue.save(path)
    with pytest.raises(mw.errors.TableFileError, match=said):
        mw.Catalogue.load(path)


def test_metadata_must_be_json():
    with pytest.raises(TypeError, match="not JSON serializable"):
        mw.Catalogue.of(SIDS, NUMBERS, 120, metadata={"a": object()})


# ---------------------------------------------------------------------------------------------------- Parquet


@pytest.fixture
def folder(tmp_path):
    """Return a folder of Parquet files with SIDS as lists and as columns, in three files, one of which is empty."""
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")

    def write(name: str, rows: slice, strings: bool = True) -> None:
        columns = {"sid": pa.array(SIDS[rows].tolist(), pa.list_(pa.int32())), "number": pa.array(NUMBERS[rows])}
        columns |= {f"c{level}": pa.array(SIDS[rows, level], pa.uint16()) for level in range(3)}
        columns["name"] = pa.array(NAMES[rows])
        (tmp_path / name).parent.mkdir(exist_ok=True)
        pq.write_table(pa.table(columns), tmp_path / name)

    write("day=1/part-0.parquet", slice(0, 2))
    write("day=1/part-1.parquet", slice(2, 2))
    write("day=2/part-0.parquet", slice(2, 6))
    (tmp_path / "_SUCCESS.parquet").write_bytes(b"no Parquet")
    return tmp_path


@pytest.mark.parametrize("sids", ["sid", ["c0", "c1", "c2"]])
@pytest.mark.parametrize("items", ["number", "name"])
def test_a_folder_of_parquet_files_is_read_batch_by_batch(folder, sids, items, monkeypatch):
    monkeypatch.setattr("maskwright.compile.parquet.BATCH", 3)
    read = mw.Catalogue.from_parquet(folder, 120, sids=sids, items=items, offsets=OFFSETS)
    made = mw.Catalogue.of(SIDS, NUMBERS if items == "number" else NAMES, 120, offsets=OFFSETS)
    assert list(read.ids) == list(made.ids)
    for name, array in made.table.arrays.by_name().items():
        np.testing.assert_array_equal(read.table.arrays.by_name()[name], array)
    one = mw.Catalogue.from_parquet(folder / "day=2/part-0.parquet", 120, sids=sids, items=items, kind="matrix")
    assert list(one.ids) == list(made.ids)[2:]


@pytest.mark.parametrize("kind", ["file", "stream", "feather"])
def test_arrow_files_are_refused_with_the_line_that_converts_them(kind, tmp_path):
    import pyarrow as pa
    from pyarrow import feather

    folder = tmp_path / "it's here"
    folder.mkdir()
    path = folder / ("items.feather" if kind == "feather" else "items.arrow")
    columns = {"c0": [3, 1, 2], "c1": [1, 1, 0], "item": ["x", "y", "z"]}
    table = pa.table(columns)
    if kind == "feather":
        feather.write_feather(table, path)
    else:
        with (pa.ipc.new_stream if kind == "stream" else pa.ipc.new_file)(path, table.schema) as writer:
            writer.write_table(table)
    options = {"sids": ["c0", "c1"], "items": "item"}
    for source in (folder, path):
        with pytest.raises(
            mw.errors.DataError, match=r"is an Arrow file: catalogues and shards are built from P"
        ) as caught:
            mw.Catalogue.from_parquet(source, 5, **options)
        with pytest.raises(
            mw.errors.DataError, match=r"is an Arrow file: catalogues and shards are built from Parquet"
        ):
            mw.Catalogue.build_shards(source, tmp_path / "out", 5, shards=1, **options)
    if kind != "stream":  # whatever its name is
        other = path.rename(folder / "items.parquet")
        with pytest.raises(mw.errors.DataError, match="is an Arrow file"):
            mw.Catalogue.from_parquet(other, 5, **options)
        other.rename(path)
    command = caught.value.remedies[0].text.removeprefix("Convert such files: ")
    command = command.replace("python", shlex.quote(sys.executable), 1)
    subprocess.run(command, shell=True, check=True, cwd=tmp_path)
    found = mw.Catalogue.from_parquet(folder, 5, **options)
    assert found.items(found.states([[1, 1], [2, 0], [3, 1]])) == ["y", "z", "x"]


def test_named_codes_are_read_from_parquet(folder):
    vocabulary, names = named_vocabulary(), ["<a_{}>", "<b_{}>", ["zero", "one", "two"]]
    read = mw.Catalogue.from_parquet(folder, sids="sid", items="number", names=names, vocabulary=vocabulary)
    assert read.items(read.states(np.array([[30, 33, 35], [31, 32, 36]]))) == [10, 11, 9, 12]
    with pytest.raises(mw.errors.ConstraintError, match="leave one out"):
        mw.Catalogue.from_parquet(folder, sids="sid", items="number", names=names, vocabulary=vocabulary, offsets=1)


def test_wrong_rows_of_parquet_files_are_named(folder, monkeypatch):
    import pyarrow as pa
    import pyarrow.parquet as pq

    def refused(error: type[Exception], said: str, source: Any = folder, **options: Any) -> None:
        given = {"sids": "sid", "items": "number", "vocab_size": 120} | options
        with pytest.raises(error, match=said):
            mw.Catalogue.from_parquet(source, **given)

    refused(mw.errors.ConstraintError, r"part-0.parquet has no column 'id'; it has sid, number", items="id")
    refused(mw.errors.ConstraintError, "row 0 has code 3 at position 0, outside 0 .. 1", vocab_size=2)
    refused(FileNotFoundError, "no file and no folder", source=folder / "none")
    (folder / "empty").mkdir()
    refused(FileNotFoundError, r"no file \*.parquet", source=folder / "empty")
    refused(mw.errors.ConstraintError, "no rows", source=folder / "day=1/part-1.parquet")
    monkeypatch.setattr("maskwright.compile.parquet.BATCH", 2)
    broken = folder / "day=3.parquet"
    for sid, number, said in [
        ([[1, 1, 1], [1, 1, 1], [1, 1, 1], None], [1, 2, 3, 4], r"counting from row 2: row 1 is null"),
        ([[1, 1, 1]] * 4, [1, 2, None, 4], r"counting from row 2: row 0 has no item id"),
        ([[1, 1]] * 4, [1, 2, 3, 4], "row 6 has 2 codes, row 0 has 3"),
        ([[1.5, 1, 1]] * 4, [1, 2, 3, 4], "day=3.parquet: the column holds lists of double"),
    ]:
        pq.write_table(pa.table({"sid": sid, "number": number}), broken)
        refused(mw.errors.ConstraintError, said)
    broken.write_bytes(b"PAR1 and no more")
    refused(mw.errors.DataError, "day=3.parquet cannot be read")


def test_without_pyarrow_its_lack_is_named(tmp_path):
    code = (
        "import sys; sys.modules['pyarrow'] = None\nimport maskwright as mw\n"
        f"try: mw.Catalogue.from_parquet({str(tmp_path)!r}, 9, sids='a', items='b')\n"
        "except mw.errors.MissingDependencyError as error: print(error)"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "needs pyarrow: pip install 'maskwright[arrow]'" in out.stdout


def test_arrow_columns_are_ids():
    pa = pytest.importorskip("pyarrow")
    for column, ids in [
        (pa.array(NAMES), NAMES),
        (pa.array(NAMES).slice(2, 3), NAMES[2:5]),
        (pa.chunked_array([NAMES[:2], NAMES[2:]]), NAMES),
        (pa.array(NAMES).dictionary_encode(), NAMES),
        (pa.array(NAMES, pa.large_string()), NAMES),
        (pa.array(NUMBERS).slice(1), NUMBERS[1:].tolist()),
        (pa.chunked_array([], pa.int64()), []),
    ]:
        assert list(ItemIds.of(column)) == ids
    for column, said in [(pa.array([1.5]), "holds double"), (pa.array(["a", None]), "row 1 has no item id")]:
        with pytest.raises(mw.errors.ConstraintError, match=said):
            ItemIds.of(column)
    with pytest.raises(mw.errors.ConstraintError, match="pass one column"):
        ItemIds.of(pa.table({"a": [1]}))
    with pytest.raises(mw.errors.ConstraintError, match="make all of them one kind"):
        ItemIds.joined([ItemIds.of([1]), ItemIds.of(["a"])])


def test_several_ends_come_back_from_a_file(tmp_path):
    made = mw.Catalogue.of(SIDS, NAMES, 120, offsets=OFFSETS, eos=[0, 2])
    made.save(tmp_path / "items.catalogue")
    assert mw.Catalogue.load(tmp_path / "items.catalogue").table.ends == (0, 2)


@pytest.mark.parametrize("kind", ["table", "matrix"])
def test_items_under_a_filter_are_the_kept_ones(kind):
    catalogue = mw.Catalogue.of([[3, 1], [3, 0], [3, 1]], ["a", "b", "c"], 8, kind=kind)
    kept, states = catalogue.filter([False, True, True]), catalogue.states([[3, 1], [3, 0]])
    assert catalogue.items(states, filters=kept) == ["c", "b"]
    other = mw.Catalogue.of([[3, 1], [3, 0], [3, 1]], ["a", "b", "c"], 8, kind=kind)
    with pytest.raises(mw.errors.ConstraintError, match="of another catalogue"):
        other.items(states, filters=kept)
