"""The shards of a build on devices, without a merge: each row once, and no pair of tokens on two devices."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import maskwright as mw
from maskwright.table import sharded_files
from maskwright.table.filter_bits import booleans_of
from maskwright.table.sharded_files import ShardSummary, layout_of
from maskwright.table.sharded_matrix import ShardedMatrix
from maskwright.table.shards import Shard, sha256
from tests.strategies.datasets import write_files


@pytest.fixture
def matrix():
    """Of 1,000 sequences half begin with one pair, so that several files lie within it."""
    rng = np.random.default_rng(0)
    below = np.concatenate([np.full((600, 2), 5), rng.integers(0, 30, (600, 2))], 1)
    sids = np.unique(np.concatenate([below, rng.integers(0, 12, (600, 4))]), axis=0)
    return mw.sort_sids(sids, 30)


@pytest.mark.parametrize("shards", [1, 2, 3, 7])
@pytest.mark.parametrize("at_random", [False, True])
def test_devices_have_each_row_once_and_no_pair_twice(matrix, shards, at_random, tmp_path):
    rng = np.random.default_rng(1)
    count = matrix.num_sequences
    cuts = sorted(rng.choice(np.arange(1, count), 6, replace=False).tolist()) if at_random else None
    write_files(tmp_path, matrix, cuts or [count * at // 7 for at in range(1, 7)])
    files = mw.Catalogue.open_shards(tmp_path, shards)
    parts = [files.columns(number) for number in range(shards)]
    assert np.array_equal(np.concatenate(parts, axis=1), matrix.columns)
    pairs = [set(map(tuple, part[:2].T.tolist())) for part in parts]
    assert sum(map(len, pairs)) == len(set().union(*pairs))
    layout, whole = layout_of(30, list(map(ShardSummary.of, parts))), ShardedMatrix(matrix, shards).layout
    assert np.array_equal(layout.head.columns, whole.head.columns)
    assert np.array_equal(layout.pair_starts, whole.pair_starts)
    assert layout.starts.tolist() == [0, *np.cumsum([part.shape[1] for part in parts])]
    assert (layout.widths, layout.branches) == (matrix.widths, matrix.branches)
    assert [most is None for most in layout.firsts] == [most is None for most in whole.firsts]
    for part in parts:
        for found, most in zip(layout.first_rows(part), layout.firsts, strict=True):
            assert found is None or found.size <= most


@pytest.mark.parametrize("shards", [1, 2, 3, 7])
@pytest.mark.parametrize("several", [False, True])
def test_devices_know_which_of_their_rows_a_filter_keeps(shards, several, tmp_path):
    rng = np.random.default_rng(shards)
    below = np.concatenate([np.full((600, 2), 5), rng.integers(0, 30, (600, 2))], 1)
    sids = np.concatenate([below, rng.integers(0, 12, (600, 4))])
    sids = np.concatenate([sids, sids[rng.integers(0, 1200, 500)]]) if several else np.unique(sids, axis=0)
    rng.shuffle(sids)
    matrix = mw.sort_sids(sids, 30)
    cuts = sorted(rng.choice(np.arange(1, matrix.num_sequences), 6, replace=False).tolist())
    write_files(tmp_path, matrix, cuts)
    files = mw.Catalogue.open_shards(tmp_path, shards)
    keep = rng.random(len(sids)) < 0.3
    kept, wanted = files.filter(keep), set(map(tuple, sids[keep].tolist()))
    found = []
    for number in range(shards):
        columns = files.columns(number)
        out = np.zeros(columns.shape[1] // 32 + 1, np.uint32)
        files.item_order(number).write_kept(kept.items, out)
        found += booleans_of(out, columns.shape[1]).tolist()
    assert found == [tuple(row) in wanted for row in matrix.sids.tolist()]


def test_more_items_than_a_filter_can_number_are_refused_by_name(matrix, tmp_path, monkeypatch):
    write_files(tmp_path, matrix, [500])
    files, count = mw.Catalogue.open_shards(tmp_path, 2), matrix.num_items
    keep = np.ones(count, np.bool_)
    monkeypatch.setattr(sharded_files, "MOST_ITEMS", count)
    assert files.filter(keep).num_items == count
    monkeypatch.setattr(sharded_files, "MOST_ITEMS", count - 1)
    with pytest.raises(
        mw.errors.ConstraintError, match=f"{count:,} rows are more than a filter may have, {count - 1:,}"
    ):
        files.filter(keep)


def test_filters_of_files_are_joined_item_by_item(matrix, tmp_path):
    write_files(tmp_path, matrix, [500])
    files, other = mw.Catalogue.open_shards(tmp_path, 2), mw.Catalogue.open_shards(tmp_path, 2)
    count = matrix.num_items
    a, b = np.random.default_rng(2).random((2, count)) < 0.5
    of_a, of_b = files.filter(a), files.filter(b)
    for found, keep in ((of_a & of_b, a & b), (of_a | of_b, a | b), (~of_a, ~a), (~(of_a & ~of_b), ~a | b)):
        assert np.array_equal(found.keeps(np.arange(count)), keep)
        assert found.num_items == keep.sum()
    assert repr(of_a) == f"FilesFilter({a.sum():,} of {count:,} items)"
    with pytest.raises(mw.errors.ConstraintError, match="filters of different ShardedFiles cannot be joined"):
        of_a & other.filter(a)
    with pytest.raises(TypeError, match="a filter of files is joined with another one, not with a SidFilter"):
        of_a & matrix.filter(a)
    for row in (-1, count):
        with pytest.raises(
            mw.errors.ConstraintError, match=f"rows must be input rows of the build, 0 .. {count - 1:,}"
        ):
            of_a.keeps([0, row])
    with pytest.raises(
        mw.errors.ConstraintError, match=r"keep has shape \(3,\), one boolean is needed for each of the"
    ):
        files.filter(a[:3])
    with pytest.raises(ValueError, match="read-only"):
        of_a.items[0] = 0


def test_rows_that_the_build_does_not_have_are_refused_by_name(matrix, tmp_path):
    manifest = write_files(tmp_path, matrix, [500])
    shard, path = manifest.shard(1), tmp_path / "shard-1.bin"
    Shard(shard.matrix, shard.rows + 1, shard.ids).save(path, manifest.build)
    record = replace(manifest.shards[1], sha256=sha256(path), bytes=path.stat().st_size)
    replace(manifest, shards=(manifest.shards[0], record)).save()
    with pytest.raises(mw.errors.TableFileError, match=r"shard-1\.bin has other rows than the manifest says"):
        mw.Catalogue.open_shards(tmp_path, 2).item_order(1)


def test_a_state_is_found_in_its_file(matrix, tmp_path):
    manifest = write_files(tmp_path, matrix, [100, 101, 700])
    file, place = mw.Catalogue.open_shards(tmp_path, 2).locate([0, 99, 100, 101, 699, 700, -1, matrix.num_sequences])
    assert file.tolist() == [0, 0, 1, 2, 2, 3, -1, -1]
    assert place.tolist() == [0, 99, 0, 0, 598, 0, -1, -1]
    assert np.array_equal(manifest.shard(2).matrix.sids[598], matrix.sids[699])


def test_what_cannot_be_served_is_refused_by_name(matrix, tmp_path):
    write_files(tmp_path, matrix, [500])
    for shards in (0, True, 1.5):
        with pytest.raises(mw.errors.ConstraintError, match="shards must be an integer, 1 or more"):
            mw.Catalogue.open_shards(tmp_path, shards)
    with pytest.raises(mw.errors.ConstraintError, match="shards must be at most 2, as many as the build has, not 3"):
        mw.Catalogue.open_shards(tmp_path, 3)
    files = mw.Catalogue.open_shards(tmp_path, 2)
    (tmp_path / "shard-1.bin").write_bytes(b"")
    with pytest.raises(mw.errors.TableFileError, match=r"shard-1\.bin is truncated or was changed after it was built"):
        files.columns(1)
    write_files(tmp_path / "short", mw.sort_sids([[0, 1], [1, 1]], 3), [1])
    with pytest.raises(mw.errors.ConstraintError, match="sequences of 2 tokens have no shards: merge them"):
        mw.Catalogue.open_shards(tmp_path / "short", 2)
