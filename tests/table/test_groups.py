"""The declaration of a table's arrays decides what is checked, written, read, measured and copied."""

from __future__ import annotations

import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import maskwright as mw
from maskwright.table.groups import SPECS, TableArrays

ROOT = Path(mw.__file__).parent


@pytest.fixture(scope="module")
def table():
    return mw.compile_sids(np.random.default_rng(0).integers(0, 20, (100, 3)), vocab_size=20)


def test_names_lead_to_the_groups_and_back(table):
    arrays = table.arrays.by_name()
    assert list(arrays) == list(SPECS)
    back = TableArrays.from_names(arrays)
    for part, same in zip(table.arrays, back, strict=True):
        assert all(one is other for one, other in zip(part, same, strict=True))
    assert sum(table.bytes_by_part.values()) == table.arrays.nbytes


def test_every_array_says_what_it_means():
    for name, spec in SPECS.items():
        assert spec.meaning, name
        assert len(spec.shape) == (2 if name == "bases.masks" else 1)


def test_an_array_of_another_name_is_refused(table):
    with pytest.raises(TypeError, match=r"no arrays rows\.colour"):
        table.arrays.with_arrays(rows__colour=np.zeros(1))


@pytest.mark.parametrize("name", sorted(SPECS))
def test_an_array_of_another_type_or_rank_is_refused(table, name):
    array = table.arrays.by_name()[name]
    for other in (array.astype(np.complex64), array[None]):
        with pytest.raises(mw.errors.TableError, match=name.replace(".", r"\.")):
            mw.TransitionTable(table.arrays.with_arrays(**{name.replace(".", "__"): other}), table.vocab_size)


def test_a_pickled_table_is_checked_and_read_only(table):
    other = pickle.loads(pickle.dumps(table))
    for name, array in other.arrays.by_name().items():
        assert not array.flags.writeable
        assert np.array_equal(array, table.arrays.by_name()[name])


FIELD = """
    weight: Annotated[Int32Array, _numbers("S", "how often it was used", may_be_empty=True)] = np.zeros(0, np.int32)
"""
USE = """
import numpy as np, maskwright as mw
table = mw.compile_sids(np.array([[1, 2], [1, 3]]), vocab_size=5)
assert table.rows.weight.size == 0
weights = np.arange(table.num_rows, dtype=np.int32)
other = mw.TransitionTable(table.arrays.with_arrays(rows__weight=weights), 5)
assert other.bytes_by_part["rows.weight"] == weights.nbytes
assert other.nbytes == table.nbytes + weights.nbytes
other.save("table.safetensors")
assert mw.TransitionTable.load("table.safetensors").rows.weight.tolist() == weights.tolist()
try:
    mw.TransitionTable(table.arrays.with_arrays(rows__weight=weights[:-1]), 5)
except mw.errors.TableError as error:
    assert "rows.weight" in str(error)
else:
    raise AssertionError("an array of another length was taken")
"""


def test_adding_an_array_is_one_edit(tmp_path):
    """A copy of the package in which one line is added writes, reads, measures and checks one more array."""
    copy = tmp_path / "maskwright"
    ignored = shutil.ignore_patterns(
        ".*", "__pycache__", "tests", "benchmarks", "docs", "examples", "build", "*.egg-info"
    )
    shutil.copytree(ROOT, copy, ignore=ignored)
    groups = copy / "table" / "groups.py"
    text = groups.read_text()
    at = text.index("class Edges(")
    groups.write_text(text[:at].rstrip() + FIELD + "\n\n" + text[at:])
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "NUMBA_DISABLE_JIT": "1", "MASKWRIGHT_JIT": "1"}
    subprocess.run([sys.executable, "-c", USE], env=environment, cwd=tmp_path, check=True, timeout=120)
