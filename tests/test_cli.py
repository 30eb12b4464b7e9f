"""The command line, run as a user runs it."""

from __future__ import annotations

import numpy as np
import pytest
from click.testing import CliRunner

import maskwright as mw
from maskwright.cli import main

pa = pytest.importorskip("pyarrow")


@pytest.fixture
def rows():
    return np.random.default_rng(0).integers(0, 300, (500, 4))


@pytest.fixture
def files(rows, tmp_path):
    from pyarrow import feather, parquet

    table = pa.table({"sid": pa.array(rows.tolist()), "a": rows[:, 0], "b": rows[:, 1], "title": ["x"] * 500})
    parquet.write_table(table, tmp_path / "ids.parquet")
    feather.write_feather(table, tmp_path / "ids.feather")
    with pa.OSFile(str(tmp_path / "ids.arrow"), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    np.save(tmp_path / "ids.npy", rows.astype(np.uint16))
    return tmp_path


def run(*arguments):
    return CliRunner().invoke(main, [str(a) for a in arguments])


@pytest.mark.parametrize("name", ["ids.parquet", "ids.feather", "ids.arrow", "ids.npy"])
def test_build_then_inspect(files, rows, name):
    column = [] if name.endswith("npy") else ["--column", "sid"]
    out = run("build", files / name, *column, "--vocab-size", 300, "-o", files / "ids.safetensors")
    assert out.exit_code == 0, out.output
    assert "500 rows" in out.output
    table = mw.TransitionTable.load(files / "ids.safetensors")
    assert table.contains(rows).all()
    shown = run("inspect", files / "ids.safetensors")
    assert shown.exit_code == 0, shown.output
    for part in ("sequences", "edge_token", "branches by level", "integers:300"):
        assert part in shown.output
    assert f"{table.num_states:,}" in shown.output


def test_build_from_one_column_per_position(files, rows):
    arguments = ("--column", "a", "--column", "b", "--vocab-size", 300, "-o", files / "t")
    assert run("build", files / "ids.parquet", *arguments).exit_code == 0
    assert mw.TransitionTable.load(files / "t").contains(rows[:, :2]).all()


def test_build_ragged_with_eos(files):
    from pyarrow import parquet

    parquet.write_table(pa.table({"s": [[1, 2], [1], [3, 4, 5]]}), files / "r.parquet")
    arguments = ("--column", "s", "--vocab-size", 9, "--ragged", "--eos", 0, "-o", files / "t")
    out = run("build", files / "r.parquet", *arguments)
    assert out.exit_code == 0, out.output
    assert mw.TransitionTable.load(files / "t").accepts([1, 2, 0])


ERRORS = [
    (("ids.parquet", "--vocab-size", 300), "name the column that holds the sequences with --column, one of: sid, a, b"),
    (("ids.parquet", "--column", "sids", "--vocab-size", 300), "has no column 'sids'; it has sid, a, b, title"),
    (("ids.parquet", "--column", "title", "--vocab-size", 300), "a column of integer lists is needed"),
    (("ids.parquet", "--column", "a", "--column", "title", "--vocab-size", 300), "column 'title' holds string"),
    (("ids.parquet", "--column", "sid", "--vocab-size", 20), "outside 0 .. 19"),
    (("ids.npy", "--column", "sid", "--vocab-size", 300), "--column goes with Parquet and Arrow files"),
    (("ids.csv", "--vocab-size", 300), "is neither .parquet, .arrow, .feather nor .npy"),
    (("broken.npy", "--vocab-size", 300), "broken.npy cannot be read"),
    (("empty.npy", "--vocab-size", 300), "empty.npy cannot be read"),
    (("several.npy", "--vocab-size", 300), "several.npy holds several arrays"),
    (("corrupt.parquet", "--column", "sid", "--vocab-size", 300), "corrupt.parquet cannot be read"),
    (("broken.parquet", "--column", "sid", "--vocab-size", 300), "broken.parquet cannot be read"),
    (("absent.parquet", "--vocab-size", 300), "does not exist"),
]


@pytest.mark.parametrize(("arguments", "message"), ERRORS, ids=[m[:30] for _, m in ERRORS])
def test_bad_calls_end_with_one_clear_line(files, arguments, message):
    (files / "ids.csv").write_text("1,2\n")
    (files / "broken.npy").write_bytes(b"no array")
    (files / "broken.parquet").write_bytes(b"no parquet")
    (files / "empty.npy").touch()
    np.savez(files / "several.npz", a=[1], b=[2])
    (files / "several.npz").rename(files / "several.npy")
    whole = bytearray((files / "ids.parquet").read_bytes())
    whole[20:400] = b"\xff" * 380
    (files / "corrupt.parquet").write_bytes(whole)
    name, *rest = arguments
    out = run("build", files / name, *rest, "-o", files / "t")
    assert out.exit_code != 0
    assert message in " ".join(out.output.split())
    assert "Traceback" not in out.output
    assert not (files / "t").exists()


def test_a_missing_folder_is_said_before_anything_is_built(files):
    out = run("build", files / "ids.npy", "--vocab-size", 300, "-o", files / "absent" / "t")
    assert out.exit_code != 0
    assert "there is no folder" in out.output


def test_inspect_refuses_what_is_no_table(files):
    out = run("inspect", files / "ids.npy")
    assert out.exit_code != 0
    assert "truncated or is not a maskwright table" in " ".join(out.output.split())
