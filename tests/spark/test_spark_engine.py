"""Builds of catalogues in shards on Spark: `make test-spark`. It needs pyspark and Java 17."""

from __future__ import annotations

import os
import shutil
import sys

import numpy as np
import pytest

import maskwright as mw
from tests.strategies.datasets import same_catalogues, skewed_ids, write_dataset

pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")
if shutil.which("java") is None:
    pytest.skip("Spark needs Java", allow_module_level=True)

pytestmark = pytest.mark.filterwarnings("ignore")  # pyspark's own


@pytest.fixture(scope="module", autouse=True)
def session():
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable  # the session of a user, who says which Python the tasks take
    options = {"spark.ui.enabled": "false", "spark.driver.host": "127.0.0.1", "spark.sql.shuffle.partitions": "4"}
    made = SparkSession.builder.master("local[2]").config(map=options).getOrCreate()
    yield made
    made.stop()


@pytest.mark.parametrize("columns", [False, True])
def test_merged_is_the_single_build(tmp_path, columns):
    items = np.random.default_rng(0).permutation(2000)
    ids = items if columns else [f"é{i}" for i in items]
    data = write_dataset(tmp_path / "a+b [1] %20 é", skewed_ids(2000, 4, 30), ids, files=3, columns=columns)
    options = {"sids": [f"c{i}" for i in range(4)] if columns else "sid", "items": "item", "offsets": [10, 40, 70, 100]}
    manifest = mw.Catalogue.build_shards(data, tmp_path / "out", 130, shards=3, engine="spark", **options)
    assert len(manifest.shards) == 3
    same_catalogues(mw.Catalogue.merge_shards(tmp_path / "out"), mw.Catalogue.from_parquet(data, 130, **options))
    (tmp_path / "out" / manifest.shards[1].file).unlink()
    assert mw.Catalogue.build_shards(data, tmp_path / "out", 130, shards=3, engine="spark", **options) == manifest


def test_a_wrong_row_is_named(tmp_path):
    sids = skewed_ids(10, 4, 30).tolist()
    sids[7] = [1, 2, 3, 40]
    data = write_dataset(tmp_path / "data", sids, range(10), files=2)
    with pytest.raises(mw.errors.ConstraintError, match=r"row 2 of .*part-1.parquet has code 40 at position 3"):
        mw.Catalogue.build_shards(data, tmp_path / "out", 130, shards=2, sids="sid", offsets=100, engine="spark")
