"""The shards of a build on devices, without a merge: each row once, and no pair of tokens on two devices."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import maskwright as mw
from maskwright.table.item_ids import ItemIds
from maskwright.table.sharded_files import ShardSummary, layout_of
from maskwright.table.shards import Manifest, Shard, ShardRecord, sha256


def write_files(folder: Path, matrix: mw.SortedMatrix, cuts: list[int], build: str = "of a test") -> Manifest:
    """Write the sequences of a matrix as shards that begin at these rows, as a build does, one item of each."""
    folder.mkdir(exist_ok=True)
    records = []
    for number, (low, high) in enumerate(zip([0, *cuts], [*cuts, matrix.num_sequences], strict=True)):
        rows = np.ascontiguousarray(matrix.columns[:, low:high])
        path = folder / f"shard-{number}.bin"
        ids = ItemIds(np.arange(low, high), None, None)
        Shard(mw.SortedMatrix(matrix.vocab_size, rows), np.arange(low, high), ids).save(path, build)
        ends = (tuple(rows[:, at].tolist()) for at in (0, -1))
        records.append(ShardRecord(path.name, sha256(path), path.stat().st_size, high - low, high - low, *ends))
    manifest = Manifest(folder, build, matrix.vocab_size, (0,) * matrix.length, {}, (), tuple(records))
    manifest.save()
    return manifest


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
    files = mw.ShardedFiles(tmp_path, shards)
    parts = [files.columns(number) for number in range(shards)]
    assert np.array_equal(np.concatenate(parts, axis=1), matrix.columns)
    pairs = [set(map(tuple, part[:2].T.tolist())) for part in parts]
    assert sum(map(len, pairs)) == len(set().union(*pairs))
    layout, whole = layout_of(30, list(map(ShardSummary.of, parts))), mw.ShardedMatrix(matrix, shards).layout
    assert np.array_equal(layout.head.columns, whole.head.columns)
    assert np.array_equal(layout.pair_starts, whole.pair_starts)
    assert layout.starts.tolist() == [0, *np.cumsum([part.shape[1] for part in parts])]
    assert (layout.widths, layout.branches) == (matrix.widths, matrix.branches)
    assert [most is None for most in layout.firsts] == [most is None for most in whole.firsts]
    for part in parts:
        for found, most in zip(layout.first_rows(part), layout.firsts, strict=True):
            assert found is None or found.size <= most


def test_a_state_is_found_in_its_file(matrix, tmp_path):
    manifest = write_files(tmp_path, matrix, [100, 101, 700])
    file, place = mw.ShardedFiles(tmp_path, 2).locate([0, 99, 100, 101, 699, 700, -1, matrix.num_sequences])
    assert file.tolist() == [0, 0, 1, 2, 2, 3, -1, -1]
    assert place.tolist() == [0, 99, 0, 0, 598, 0, -1, -1]
    assert np.array_equal(manifest.shard(2).matrix.sids[598], matrix.sids[699])


def test_what_cannot_be_served_is_refused_by_name(matrix, tmp_path):
    write_files(tmp_path, matrix, [500])
    for shards in (0, True, 1.5):
        with pytest.raises(mw.ConstraintError, match="shards must be an integer, 1 or more"):
            mw.ShardedFiles(tmp_path, shards)
    with pytest.raises(mw.ConstraintError, match="shards must be at most 2, as many as the build has, not 3"):
        mw.ShardedFiles(tmp_path, 3)
    files = mw.ShardedFiles(tmp_path, 2)
    (tmp_path / "shard-1.bin").write_bytes(b"")
    with pytest.raises(mw.TableFileError, match=r"shard-1\.bin is truncated or was changed after it was built"):
        files.columns(1)
    write_files(tmp_path / "short", mw.sort_sids([[0, 1], [1, 1]], 3), [1])
    with pytest.raises(mw.ConstraintError, match="sequences of 2 tokens have no shards: merge them"):
        mw.ShardedFiles(tmp_path / "short", 2)
