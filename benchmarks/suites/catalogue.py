"""A living catalogue: filters by request, inserts and deletes, and skewed catalogues, with sorted matrices and tables.

Claims checked here (V = 2048, L = 8, B = 2, M = 70), on uniform and on skewed random IDs:

- a filter over 10^7 rows is made and put from a boolean column in at most 25 ms;
- a step with a filter for each row takes at most 1.1 times as long as without in JAX, 1.15 compiled and 1.5 eager in
  PyTorch;
- of a live set of 10^7 rows, with a delta of 10,000 and of 45,000: 100 items are inserted, published and put in 2 ms,
  1,000 in 5 ms; a delete takes 0.1 ms;
- a step on it takes at most as many times as long as one on its base as a step with filters does;
- 10^7 items in 20 Parquet files become 16 shards within 1 GB of memory, each within 10 % of the others, and merged
  they are the single build; with `--only build --scale 10` it is 10^8 items in 200 files and 4 GB;
- of 3 million skewed items a sorted matrix takes at most 1.3 times as long as a table in beam search, and 1.5 times in
  the logits processor.

    python -m benchmarks.suites.catalogue                       everything; needs 8 GB of memory and a few minutes
    python -m benchmarks.suites.catalogue --only filters
    python -m benchmarks.suites.catalogue --scale 0.01          a hundredth of the IDs, to see that it runs

Each part writes `results/catalogue-PART.json`; `results/catalogue.md` is made from those.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

import maskwright as mw
from maskwright.runtime import jax_ops, torch_ops
from maskwright.runtime.integrations.transformers import ConstraintLogitsProcessor
from maskwright.table.live_sids import LiveSids
from maskwright.table.shards import Manifest
from maskwright.table.sorted_matrix import SortedMatrix

from ..beams import for_search, random_logits, search_jax, search_torch
from ..harness import RESULTS, Bar, grid, ratios, spread, time_interleaved, write_report
from ..parts import run_parts

BATCH, BEAMS, LENGTH, VOCAB = 2, 70, 8, 2048
SHARES = (0.5, 0.01)  # of the items that the filters of the two rows keep
Records = list[dict[str, Any]]


def uniform(count: int, seed: int = 0) -> np.ndarray[Any, Any]:
    """Return random IDs (count, LENGTH), all tokens as probable."""
    return np.random.default_rng(seed).integers(0, VOCAB, (count, LENGTH), dtype=np.uint16)


def skewed(count: int, seed: int = 0) -> np.ndarray[Any, Any]:
    """Return random IDs (count, LENGTH) in which the k-th token of each place is as probable as 1 / k (Zipf's law)."""
    rng = np.random.default_rng(seed)
    weights = 1 / np.arange(1, VOCAB + 1)
    edges = np.cumsum(weights / weights.sum())
    out = np.empty((count, LENGTH), np.uint16)
    for depth in range(LENGTH):
        name = rng.permutation(VOCAB).astype(np.uint16)  # so that the frequent tokens of a place are any
        out[:, depth] = name[np.minimum(np.searchsorted(edges, rng.random(count)), VOCAB - 1)]
    return out


KINDS: dict[str, Callable[..., np.ndarray[Any, Any]]] = {"uniform": uniform, "skewed": skewed}


def _search_jax(steps: Any, dev: Any) -> Any:
    return jax.block_until_ready(search_jax(dev, steps, BATCH, BEAMS))


def searches() -> dict[str, Callable[[Any], Any]]:
    """Return beam search over logits without a model, by backend: a function of what is decoded with.

    What was compiled before is forgotten, or torch would compile what comes next for sizes of any kind.
    """
    torch.compiler.reset()
    logits = for_search(random_logits(BATCH, BEAMS, VOCAB, LENGTH), BEAMS)
    steps_torch, steps_jax = [torch.tensor(x) for x in logits], [jnp.asarray(x) for x in logits]

    def eager(dev: Any) -> Any:
        return search_torch(dev, steps_torch, BATCH, BEAMS)

    return {
        "torch, eager": eager,
        "torch, compiled": torch.compile(eager, fullgraph=True, dynamic=False),
        "jax": partial(_search_jax, steps_jax),
    }


def filters(scale: float) -> Records:
    """Make and put filters over 10^7 items given in any order; a step with one a row, over one without."""
    torch.set_num_threads(1)
    records: Records = []
    for kind, draw in KINDS.items():
        count = int(1e7 * scale)
        sids = draw(count)
        columns = [np.random.default_rng(1).random(count) < share for share in SHARES]
        for of, made in (("matrix", mw.sort_sids), ("table", mw.compile_sids)):
            row = {"of": of, "kind": kind, "count": count}
            records += [{**row, **each} for each in _filters_of(made(sids, VOCAB), columns)]
    return records


def _filters_of(constraint: Any, columns: list[Any]) -> Records:
    """Return milliseconds of new filters, and microseconds of a step with and without them, by backend."""
    rows: Records = []
    run = searches()
    made = [constraint.filter(column) for column in columns]
    plain = {name: (jax_ops if name == "jax" else torch_ops).to_device(constraint) for name in run}
    put = {"torch": (torch_ops, plain["torch, eager"]), "jax": (jax_ops, plain["jax"])}
    for name, (ops, dev) in put.items():
        for share, column in zip(SHARES, columns, strict=True):
            times = time_interleaved(
                {
                    "make": partial(constraint.filter, column),
                    "make and put": partial(_put_filter, ops, dev, constraint, column),
                },
                repeats=15,
                clock=time.thread_time,
            )
            rows.append({"backend": name, "what": f"filter of {share:.0%}"})
            rows[-1] |= {f"{what}, ms": 1e3 * spread(values).median for what, values in times.items()}
            print(" ", rows[-1])
    with torch.inference_mode():
        for name, search in run.items():
            ops = jax_ops if name == "jax" else torch_ops
            devs = {"plain": plain[name], "filtered": ops.with_filters(plain[name], made)}
            times = time_interleaved({what: partial(search, dev) for what, dev in devs.items()}, repeats=41)
            rows.append({"backend": name, "what": "step"})
            rows[-1] |= {f"{what}, us": 1e6 * spread(v).median / LENGTH for what, v in times.items()}
            rows[-1]["times plain"] = ratios(times, "plain")["filtered"].median
            print(" ", rows[-1])
    return rows


def live(scale: float) -> Records:
    """Insert and delete items of a live set; a step on it, over one on its base.

    Updates are in processor time: inserts until published and put in PyTorch, deletes until made.
    """
    torch.set_num_threads(1)
    records: Records = []
    run = searches()
    for kind, draw in KINDS.items():
        count = int(1e7 * scale)
        matrix = mw.sort_sids(draw(count), VOCAB)
        widths = (1 << 16,) * 2 + (1024, 128) + (32,) * 4 if kind == "skewed" else None
        made = LiveSids(matrix, widths=widths)
        records += [{"kind": kind, "count": count, **row} for row in _updates(kind, made)]
        snapshot = made.publish()
        with torch.inference_mode():
            for name, search in run.items():
                ops: Any = jax_ops if name == "jax" else torch_ops
                devs = {"base": ops.to_device(matrix), "live": ops.to_device(snapshot)}
                times = time_interleaved({what: partial(search, each) for what, each in devs.items()}, repeats=21)
                records.append({"kind": kind, "count": count, "backend": name, "what": "step"})
                records[-1] |= {f"{what}, us": 1e6 * spread(v).median / LENGTH for what, v in times.items()}
                records[-1]["times base"] = ratios(times, "base")["live"].median
                print(" ", records[-1])
    return records


def _updates(kind: str, made: LiveSids) -> Records:
    """Return milliseconds of updates, at two sizes of the delta."""
    rows: Records = []
    rng, matrix = np.random.default_rng(1), made.base
    fresh = iter(np.array_split(KINDS[kind](400_000, 7), 400))  # of 1,000 each
    dev = torch_ops.to_device(made.publish())

    def insert(many: int) -> None:
        nonlocal dev
        made.insert(next(fresh)[:many])
        dev = torch_ops.with_snapshot(dev, made.publish())

    def delete() -> None:
        made.delete(gone.pop()[None])

    gone = list(matrix.sids[rng.permutation(matrix.num_sequences)[:50]])
    for delta in (10_000, 45_000):
        while made.num_delta < delta:
            made.insert(next(fresh))
        calls = {f"insert {many}": partial(insert, many) for many in (1, 100, 1000)} | {"delete 1": delete}
        for what, call in calls.items():
            seconds = time_interleaved({what: call}, repeats=11, clock=time.thread_time)[what]
            rows.append({"delta": delta, "what": what, "ms": 1e3 * spread(seconds).median})
            print(" ", rows[-1])
    return rows


def _put_filter(ops: Any, dev: Any, constraint: Any, column: Any) -> None:
    """Make a filter and put it on a device."""
    jax.block_until_ready(ops.with_filters(dev, [constraint.filter(column)]).kept.of)


def skew(scale: float) -> Records:
    """Compare a sorted matrix with a table of 3 million items: a step of beam search, a call of the processor."""
    torch.set_num_threads(1)
    records: Records = []
    run = searches()
    del run["torch, compiled"]
    for kind, draw in KINDS.items():
        sids = draw(int(3e6 * scale))
        constraints = {"table": mw.compile_sids(sids, VOCAB), "matrix": mw.sort_sids(sids, VOCAB)}
        calls: dict[str, dict[str, Callable[[], Any]]] = {}
        for name, search in run.items():
            ops = jax_ops if name == "jax" else torch_ops
            calls[f"step, {name}"] = {what: partial(search, ops.to_device(one)) for what, one in constraints.items()}
        calls["processor"] = {what: _processed(one, sids) for what, one in constraints.items()}
        with torch.inference_mode():
            for what, each in calls.items():
                times = time_interleaved(each, repeats=21)
                records.append({"kind": kind, "count": len(sids), "what": what})
                records[-1] |= {f"{name}, us": 1e6 * spread(v).median / LENGTH for name, v in times.items()}
                records[-1]["times table"] = ratios(times, "table")["matrix"].median
                print(" ", records[-1])
    return records


def _processed(constraint: Any, sids: np.ndarray[Any, Any]) -> Callable[[], None]:
    """Return a run of the logits processor over a batch of B * M rows, each of which becomes an item of the set."""
    processor = ConstraintLogitsProcessor(constraint, eos_token_ids=VOCAB)
    chosen = np.random.default_rng(2).integers(0, len(sids), BATCH * BEAMS)
    rows = torch.tensor(np.insert(sids[chosen].astype(np.int64), 0, 0, axis=1))
    scores = torch.tensor(np.random.default_rng(3).standard_normal((len(rows), VOCAB + 1), dtype=np.float32))

    def run() -> None:
        processor.reset()
        for width in range(1, LENGTH + 1):
            processor(rows[:, :width], scores)

    return run


def build(scale: float) -> Records:
    """Build 10^7 items from 20 Parquet files in 16 shards with DuckDB, and merge them; memory of all processes.

    Each file has other frequent codes than the next, as data that came in over time has. All is written below TMPDIR.
    """
    count, files = int(1e7 * scale), max(2, int(20 * scale))
    memory = 4 * 10**9 if scale > 1 else 10**9
    with tempfile.TemporaryDirectory() as scratch:
        data, folder = Path(scratch, "data"), Path(scratch, "shards")
        _write_items(data, count, files)
        arguments = [str(data), str(folder), str(memory)]
        begin = time.perf_counter()
        peak = _peak_of_all([sys.executable, "-c", _BUILD, *arguments])
        seconds = time.perf_counter() - begin
        manifest = Manifest.load(folder)
        sizes = [shard.rows for shard in manifest.shards]
        begin = time.perf_counter()
        merged = mw.Catalogue.merge_shards(folder, kind="matrix")
        merging = time.perf_counter() - begin
        same = _is_merged(merged, data, scale > 1)
        row = {
            "count": count, "files": files, "shards": len(sizes), "allowed, GB": memory / 1e9, "peak, GB": peak / 1e9,
            "build, s": seconds, "merge, s": merging, "shards, GB": sum(s.bytes for s in manifest.shards) / 1e9,
            "largest over smallest": max(sizes) / min(sizes), "merged equals single": same,
        }  # fmt: skip
    print(" ", row)
    return [row]


_BUILD = """
import sys, maskwright as mw
data, folder, memory = sys.argv[1:]
mw.Catalogue.build_shards(data, folder, 2048, shards=16, sids="sid", items="item", memory=int(memory))
"""


def _write_items(folder: Path, count: int, files: int) -> None:
    folder.mkdir()
    for number, rows in enumerate(np.array_split(np.arange(count), files)):
        sids = pa.FixedSizeListArray.from_arrays(pa.array(skewed(len(rows), number).reshape(-1)), LENGTH)
        pq.write_table(pa.table({"sid": sids, "item": rows * 7}), folder / f"part-{number:05d}.parquet")


def _is_merged(merged: mw.Catalogue, data: Path, large: bool) -> bool:
    """Return whether a merged matrix is that of a single build; of a large one, whether three files are in it."""
    assert isinstance(merged.table, SortedMatrix)
    if not large:
        single = mw.Catalogue.from_parquet(data, VOCAB, sids="sid", items="item", kind="matrix")
        assert isinstance(single.table, SortedMatrix)
        names = ("columns", "item_start", "item_row")
        same = all(np.array_equal(getattr(merged.table, n), getattr(single.table, n)) for n in names)
        return same and np.array_equal(merged.ids.numbers, single.ids.numbers)  # type: ignore[arg-type]
    place = np.empty(len(merged), np.int32)  # of each row among the sequences
    starts = merged.table.item_start
    place[merged.table.item_row] = np.repeat(np.arange(len(starts) - 1, dtype=np.int32), np.diff(starts))
    each = len(merged) // len(list(data.iterdir()))
    for number in (0, len(list(data.iterdir())) // 2, len(list(data.iterdir())) - 1):
        rows = np.arange(number * each, number * each + each)
        found = merged.table.find(skewed(each, number))
        if not np.array_equal(place[rows], found) or not np.array_equal(merged.ids.numbers[rows], rows * 7):  # type: ignore[index]
            return False
    return True


def _peak_of_all(command: list[str]) -> int:
    """Run a program; return the most resident bytes that it and the processes which it began had at once."""
    peak = 0
    with subprocess.Popen(command) as process:
        while process.poll() is None:
            peak = max(peak, sum(_resident(pid) for pid in _family(process.pid)))
            time.sleep(0.02)
    if process.returncode:
        raise RuntimeError(f"the build ended with status {process.returncode}")
    return peak


def _family(pid: int) -> Iterator[int]:
    yield pid
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            for child in task.read_text().split():
                yield from _family(int(child))


def _resident(pid: int) -> int:
    with suppress(OSError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0


PARTS: dict[str, Callable[[float], Records]] = {"filters": filters, "live": live, "build": build, "skew": skew}
UPDATES = {"insert 100": 2.0, "insert 1000": 5.0, "delete 1": 0.1}
MOST = {"jax": 1.1, "torch, compiled": 1.15, "torch, eager": 1.5}


def bars(parts: dict[str, Records]) -> list[Bar]:
    """Return the claims, and whether the records hold them."""
    out: list[Bar] = []

    def add(what: str, most: float, found: float, unit: str = "") -> None:
        out.append((what, f"at most {most:g}{unit}", f"{found:.3g}{unit}", found <= most))

    for row in parts.get("filters", []):
        case = f"of a {row['of']}, {row['kind']}, {row['backend']}"
        if "make and put, ms" in row:
            add(f"{row['what']} {case}", 25, row["make and put, ms"], " ms")
        else:
            add(f"step with filters {case}", MOST[row["backend"]], row["times plain"])
    for row in parts.get("live", []):
        if row["what"] == "step":
            add(f"step on a live set, {row['kind']}, {row['backend']}", MOST[row["backend"]], row["times base"])
        elif row["what"] in UPDATES:
            add(f"{row['what']}, {row['kind']}, delta {row['delta']:,}", UPDATES[row["what"]], row["ms"], " ms")
    for row in parts.get("build", []):
        add(f"peak memory, {row['count']:,} items", row["allowed, GB"], row["peak, GB"], " GB")
        add(f"largest shard over smallest, {row['count']:,} items", 1.1, row["largest over smallest"])
        out.append(("merged equals single", "yes", str(row["merged equals single"]), row["merged equals single"]))
    for row in parts.get("skew", []):
        most = 1.5 if row["what"] == "processor" else 1.3
        add(f"matrix over table, {row['kind']}, {row['what']}", most, row["times table"])
    return out


def report() -> None:
    """Make the report from whatever results are there."""
    paths = {part: RESULTS / f"catalogue-{part}.json" for part in PARTS}
    read = {part: json.loads(path.read_text()) for part, path in paths.items() if path.exists()}
    if not read:
        return
    parts = {part: record["results"] for part, record in read.items()}
    machine = next(iter(read.values()))["machine"]
    lines: list[str] = []
    for part, rows in parts.items():
        columns = list(dict.fromkeys(key for row in rows for key in row))
        lines += [f"## {part}", "", (PARTS[part].__doc__ or "").strip(), ""]
        lines += grid(columns, [[row.get(column) for column in columns] for row in rows])
    versions = {name: version for name, version in machine["versions"].items() if version}
    about = "Made by `python -m benchmarks.suites.catalogue` from the JSON files beside it."
    results = {"machine": machine, "versions": versions}
    write_report(RESULTS / "catalogue.md", "A living catalogue", about, results, bars(parts), lines)


if __name__ == "__main__":
    run_parts("catalogue", __doc__ or "", PARTS, report)
