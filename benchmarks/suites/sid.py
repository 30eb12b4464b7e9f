"""Semantic-ID sets: building, size, decoding and membership, against the published methods.

Claims checked here (V = 2048, L = 8, B = 2, M = 70, uniform random IDs, unless varied):

- sorting and building 10 M IDs on one thread is faster than for dense-plus-CSR tables, and takes less memory;
- a table takes about 21 MB per million IDs;
- a constrained step takes no longer than with dense-plus-CSR tables, in PyTorch and in JAX, whatever the set's size;
- V = 32,768 needs no V x V table;
- a sorted matrix of the IDs is made faster than a table where they are sorted already, takes less memory, and a step
  with it takes at most half as long again.

    python -m benchmarks.suites.sid                       everything; needs 16 GB of memory and about half an hour
    python -m benchmarks.suites.sid --only decode contains
    python -m benchmarks.suites.sid --scale 0.01          a hundredth of the IDs, to see that it runs

Each part runs in a process of its own and writes `results/sid-PART.json`; tables and plots are made from those.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import torch

import maskwright as mw
from maskwright.runtime import jax_ops, torch_ops

from ..baselines import dense_csr, dict_trie, hash_bitmap, prefix_verification
from ..beams import (
    JaxUnconstrained,
    TorchUnconstrained,
    decode_jax,
    decode_torch,
    for_search,
    random_logits,
    search_jax,
    search_torch,
)
from ..harness import RESULTS, ratios, spread, time_interleaved
from ..memory import PeakMemory, peak_memory
from ..parts import run_parts

matplotlib.use("Agg")

BATCH, BEAMS, LENGTH, VOCAB = 2, 70, 8, 2048
Records = list[dict[str, Any]]
Run = tuple[str, int]  # method, IDs in the set; 0 for none


def random_sids(count: int, vocab: int = VOCAB, dtype: Any = np.uint16, seed: int = 0) -> np.ndarray[Any, Any]:
    """Return uniform random IDs (count, LENGTH)."""
    return np.random.default_rng(seed).integers(0, vocab, (count, LENGTH), dtype=dtype)


# ------------------------------------------------------------------------------------------------ building


def build_maskwright(sids: Any, vocab: int) -> int:
    """Build a table; return its bytes."""
    return mw.compile_sids(sids, vocab).nbytes


def build_matrix(sids: Any, vocab: int) -> int:
    """Sort a matrix; return its bytes."""
    return mw.sort_sids(sids, vocab).nbytes


def build_dense_csr(sids: Any, vocab: int) -> int:
    """Build dense-plus-CSR tables; return their bytes."""
    return dense_csr.build(sids, vocab).nbytes


BUILDERS: dict[str, Callable[[Any, int], int]] = {
    "maskwright": build_maskwright,
    "sorted matrix": build_matrix,
    "dense+CSR": build_dense_csr,
}


def _build_random(method: str, count: int, dtype: str) -> int:
    return BUILDERS[method](random_sids(count, dtype=np.dtype(dtype)), VOCAB)


def _only_random(count: int, dtype: str) -> int:
    return int(random_sids(count, dtype=np.dtype(dtype)).size)


def build(scale: float) -> Records:
    """Sort and build on one thread: seconds, ratio, bytes kept, and memory above the input."""
    records: Records = []
    for method, builder in BUILDERS.items():
        builder(random_sids(1000), VOCAB)  # kernels are compiled, once per input type
        builder(random_sids(1000, dtype=np.int32), VOCAB)
        print(f"  warm: {method}")
    for count in (int(1e6 * scale), int(1e7 * scale)):
        for dtype in ("uint16", "int32"):
            sids = random_sids(count, dtype=np.dtype(dtype))
            times = time_interleaved(
                {name: partial(builder, sids, VOCAB) for name, builder in BUILDERS.items()},
                repeats=3,
                warmup=0,
                clock=time.process_time,
            )
            slower = ratios(times, "maskwright")
            for name, builder in BUILDERS.items():
                size = builder(sids, VOCAB)
                memory = peak_memory(_build_random, name, count, dtype)
                inputs = peak_memory(_only_random, count, dtype)
                records.append(
                    {
                        "method": name,
                        "count": count,
                        "input": dtype,
                        "seconds": spread(times[name]).median,
                        "times_maskwright": slower[name].median,
                        "bytes": size,
                        "bytes_per_million": size / count * 1e6,
                        "peak_bytes_above_input": _above(memory, inputs),
                    }
                )
                print(" ", records[-1])
    return records


def _above(memory: PeakMemory, inputs: PeakMemory) -> int:
    return memory.bytes_above_start - inputs.bytes_above_start


def _build_mapped(path: str) -> int:
    return build_maskwright(np.load(path, mmap_mode="r"), VOCAB)


def huge(scale: float) -> Records:
    """100 M x 8 uint16 from a memory map: time and peak memory, the mapped pages included."""
    count = int(1e8 * scale)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "sids.npy"
        mapped = np.lib.format.open_memmap(path, mode="w+", dtype=np.uint16, shape=(count, LENGTH))
        for lo in range(0, count, 10_000_000):
            hi = min(lo + 10_000_000, count)
            mapped[lo:hi] = random_sids(hi - lo, seed=lo)
        mapped.flush()
        del mapped
        _build_mapped_small(folder)
        memory = peak_memory(_build_mapped, str(path))
    record = {"count": count, "seconds": memory.seconds, "peak_bytes": memory.bytes_above_start}
    print(" ", record)
    return [record]


def _build_mapped_small(folder: str) -> None:
    """Compile the kernels for this kind of input, so that the child only loads them."""
    path = Path(folder) / "small.npy"
    np.save(path, random_sids(1000))
    _build_mapped(str(path))


# ------------------------------------------------------------------------------------------------ decoding


def decode(scale: float) -> Records:
    """One beam-search step, B = 2 and M = 70; all methods and set sizes of a backend in the same rounds; no model."""
    torch.set_num_threads(1)
    logits = random_logits(BATCH, BEAMS, VOCAB, LENGTH)
    repeated = for_search(logits, BEAMS)
    for_torch, for_jax = [torch.tensor(x) for x in logits], [jnp.asarray(x) for x in logits]
    steps_torch, steps_jax = [torch.tensor(x) for x in repeated], [jnp.asarray(x) for x in repeated]

    def run_torch(method: Any) -> Callable[[], Any]:
        return lambda: decode_torch(method, for_torch, BATCH, BEAMS)

    def ours_torch(dev: Any) -> Any:
        return search_torch(dev, steps_torch, BATCH, BEAMS)

    def ours_jax(dev: Any) -> Any:
        return jax.block_until_ready(search_jax(dev, steps_jax, BATCH, BEAMS))

    def run_jax(method: Any) -> Callable[[], Any]:
        return lambda: jax.block_until_ready(decode_jax(method, for_jax, BATCH, BEAMS))

    compiled = torch.compile(ours_torch, fullgraph=True)
    counts = [int(1e5 * scale), int(1e6 * scale), int(1e7 * scale)]
    fast: dict[str, dict[Run, Callable[[], Any]]] = {
        "torch": {("unconstrained", 0): run_torch(TorchUnconstrained())},
        "torch.compile": {("unconstrained", 0): lambda: compiled(None)},
        "jax": {("unconstrained", 0): run_jax(JaxUnconstrained())},
    }
    slow: dict[str, dict[Run, Callable[[], Any]]] = {"torch": {}, "torch.compile": {}, "jax": {}}
    records: Records = []
    for count in counts:
        sids = random_sids(count)
        table, dense = mw.compile_sids(sids, VOCAB), dense_csr.build(sids, VOCAB)
        constraints: dict[str, Any] = {"maskwright": table, "sorted matrix": mw.sort_sids(sids, VOCAB)}
        for name, constraint in constraints.items():
            dev = torch_ops.to_device(constraint)
            fast["torch"][name, count] = partial(ours_torch, dev)
            fast["torch.compile"][name, count] = partial(compiled, dev)
            fast["jax"][name, count] = partial(ours_jax, jax_ops.to_device(constraint))
        for name, project in (("dense+CSR", True), ("dense+CSR, children only", False)):
            fast["torch"][name, count] = run_torch(dense_csr.to_torch(dense, project=project))
            fast["jax"][name, count] = run_jax(dense_csr.to_jax(dense, project=project))
        bitmap = hash_bitmap.build(sids, VOCAB)
        others: dict[str, tuple[Any, Any]] = {
            "PPV, exact": (prefix_verification, prefix_verification.build(sids, VOCAB)),
            "PPV, top 50": (prefix_verification, prefix_verification.build(sids, VOCAB, top=50)),
            "hash bitmap": (hash_bitmap, bitmap),
        }
        if count <= 1_000_000:  # ten million nested dictionaries do not fit
            others["dictionary trie"] = (dict_trie, dict_trie.build(sids, VOCAB))
        for name, (module, built) in others.items():
            slow["torch"][name, count] = run_torch(module.to_torch(built))
            slow["jax"][name, count] = run_jax(module.to_jax(built))
        accepted, tried = bitmap.false_positives(sids, trials=100_000, seed=1)
        records.append({"count": count, "method": "hash bitmap", "false_positives": accepted / max(tried, 1)})
        print(f"  hash bitmap, {count:,}: {accepted} of {tried} invalid continuations accepted")
    for backend in fast:
        with torch.inference_mode():
            times = time_interleaved(fast[backend], repeats=60, warmup=4)
            if slow[backend]:
                times |= time_interleaved(slow[backend], repeats=7)
        free = np.array(times["unconstrained", 0])
        for (name, count), seconds in times.items():
            q1, median, q3 = (1e6 * x / LENGTH for x in spread(seconds))
            record = {"backend": backend, "method": name, "count": count, "us_per_step": median, "q1": q1, "q3": q3}
            if (name, count) in fast[backend] and count:  # differences and ratios within a round
                record["over_unconstrained_us"] = 1e6 * spread(np.array(seconds) - free).median / LENGTH
                record["times_smallest_set"] = spread(np.array(seconds) / np.array(times[name, counts[0]])).median
            records.append(record)
            print(" ", record)
    return records


def matrix(scale: float) -> Records:
    """Compare a sorted matrix with a table: making it, bytes, one step of beam search (B = 2, M = 70), 10^5 look-ups.

    Times are medians; `times_table` is the median of the ratios within a round. Unsorted, sorted: the input.
    """
    torch.set_num_threads(1)
    logits = for_search(random_logits(BATCH, BEAMS, VOCAB, LENGTH), BEAMS)
    steps_torch, steps_jax = [torch.tensor(x) for x in logits], [jnp.asarray(x) for x in logits]
    records: Records = []
    for count in (1000, int(1e5 * scale), int(1e6 * scale), int(1e7 * scale)):
        sids = random_sids(count)
        table, made = mw.compile_sids(sids, VOCAB), mw.sort_sids(sids, VOCAB)
        ordered = np.ascontiguousarray(made.sids)
        rng = np.random.default_rng(1)
        asked = torch.tensor(np.concatenate([sids[rng.integers(0, count, 50_000)], random_sids(50_000)]).astype(int))
        devs: dict[str, Any] = {"table": torch_ops.to_device(table), "matrix": torch_ops.to_device(made)}
        devs_jax = {"table": jax_ops.to_device(table), "matrix": jax_ops.to_device(made)}
        held = {"table": table.nbytes, "matrix": sum(x.nbytes for x in (*devs["matrix"].words, devs["matrix"].masks))}
        many = 21 if count < 10**6 else 5

        def step_torch(dev: Any) -> Any:
            return search_torch(dev, steps_torch, BATCH, BEAMS)

        def step_jax(dev: Any) -> Any:
            return jax.block_until_ready(search_jax(dev, steps_jax, BATCH, BEAMS))

        makers: dict[str, Any] = {"table": mw.compile_sids, "matrix": mw.sort_sids}
        calls: dict[str, Any]
        with torch.inference_mode():
            for what, each, calls, repeats in (
                ("make, unsorted, s", 1.0, {n: partial(make, sids, VOCAB) for n, make in makers.items()}, many),
                ("make, sorted, s", 1.0, {n: partial(make, ordered, VOCAB) for n, make in makers.items()}, many),
                ("step, torch, us", 1e6 / LENGTH, {n: partial(step_torch, dev) for n, dev in devs.items()}, 21),
                ("step, jax, us", 1e6 / LENGTH, {n: partial(step_jax, dev) for n, dev in devs_jax.items()}, 21),
                ("contains, torch, ns", 1e4, {n: partial(torch_ops.contains, devs[n], asked) for n in makers}, 7),
            ):
                times = time_interleaved(calls, repeats, warmup=1)
                slower = ratios(times, "table")
                for name, seconds in times.items():
                    record = {"count": count, "what": what, "method": name, "median": each * spread(seconds).median}
                    records.append({**record, "times_table": slower[name].median})
                    print(" ", records[-1])
        for name, size in held.items():
            records.append({"count": count, "what": "on the device, MB", "method": name, "median": size / 1e6})
            records[-1]["times_table"] = size / held["table"]
    return records


def _step_times(table: Any, vocab: int, repeats: int) -> dict[str, float]:
    """Return microseconds per step in PyTorch, unconstrained and with a table; all levels share their logits."""
    torch.set_num_threads(1)
    logits = torch.tensor(random_logits(BATCH, BEAMS, vocab, 2)[1])
    dev = torch_ops.to_device(table)

    steps = [logits] * LENGTH

    def run(dev: Any) -> Any:
        return search_torch(dev, steps, BATCH, BEAMS)

    with torch.inference_mode():
        times = time_interleaved({"unconstrained": lambda: run(None), "maskwright": lambda: run(dev)}, repeats)
    return {name: 1e6 * spread(values).median / LENGTH for name, values in times.items()}


def _sweep(vocabs: list[int], count: int, repeats: int) -> Records:
    records: Records = []
    for vocab in vocabs:
        sids = random_sids(count, vocab, np.uint16 if vocab <= 2**16 else np.int32)
        mw.compile_sids(sids[:1000], vocab)
        began = time.process_time()
        table = mw.compile_sids(sids, vocab)
        seconds = time.process_time() - began
        records.append(
            {
                "vocab_size": vocab,
                "count": count,
                "distinct": table.num_sequences,
                "seconds": seconds,
                "bytes_per_million": table.nbytes / table.num_sequences * 1e6,
                "mask_bytes": table.bytes_by_part["masks"],
                "widths": table.widths,
                "dense_csr_bytes_per_million": dense_csr.upper_bound(vocab, LENGTH, count) / count * 1e6,
                **{f"{name}_us": value for name, value in _step_times(table, vocab, repeats).items()},
            }
        )
        print(" ", records[-1])
    return records


def vocabulary(scale: float) -> Records:
    """V from 256 to 32,768 at 10^7 IDs."""
    return _sweep([256, 1024, 2048, 4096, 8192, 16384, 32768], int(1e7 * scale), repeats=11)


def branches(scale: float) -> Records:
    """Branch factors 2 to 2^18 at 10^6 IDs, as in appendix D of arXiv 2602.22647: V is the branch factor."""
    return _sweep([2**k for k in range(1, 19)], int(1e6 * scale), repeats=7)


# ------------------------------------------------------------------------------------------------ membership


def contains(scale: float) -> Records:
    """10^6 queries, half of them members, against 10^7 IDs: the table, a hash set, a binary search."""
    count, queries = int(1e7 * scale), int(1e6 * scale)
    sids = random_sids(count)
    rng = np.random.default_rng(1)
    asked = np.concatenate([sids[rng.integers(0, count, queries // 2)], random_sids(queries - queries // 2, seed=2)])
    asked = rng.permutation(asked)

    def as_bytes(rows: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return np.ascontiguousarray(rows.astype(">u2")).view(f"S{2 * LENGTH}")[:, 0]

    table = mw.compile_sids(sids, VOCAB)
    matrix = mw.sort_sids(sids, VOCAB)
    ordered = np.sort(as_bytes(sids))
    members = set(as_bytes(sids).tolist())
    keys = as_bytes(asked)

    def binary_search() -> Any:
        at = np.minimum(np.searchsorted(ordered, keys), count - 1)
        return ordered[at] == keys

    functions: dict[str, Callable[[], Any]] = {
        "maskwright": lambda: table.contains(asked),
        "sorted matrix": lambda: matrix.contains(asked),
        "hash set": lambda: np.array([key in members for key in keys.tolist()]),
        "binary search": binary_search,
    }
    answers = [function() for function in functions.values()]
    assert all((answer == answers[0]).all() for answer in answers)
    times = time_interleaved(functions, repeats=5, warmup=1)
    sizes = {
        "maskwright": table.nbytes,
        "sorted matrix": matrix.nbytes,
        "hash set": sys.getsizeof(members) + len(members) * sys.getsizeof(b" " * 2 * LENGTH),
        "binary search": ordered.nbytes,
    }
    records = [
        {"method": name, "count": count, "queries": queries, "ns_per_query": 1e9 * spread(values).median / queries,
         "bytes": sizes[name]}
        for name, values in times.items()
    ]  # fmt: skip
    for record in records:
        print(" ", record)
    return records


# ------------------------------------------------------------------------------------------------ reports


def report() -> None:
    """Make the table and the plots from whatever results are there."""
    parts = {
        part: json.loads((RESULTS / f"sid-{part}.json").read_text())
        for part in PARTS
        if (RESULTS / f"sid-{part}.json").exists()
    }
    lines = ["# Semantic-ID sets", "", "Made by `python -m benchmarks.suites.sid` from the JSON files beside it.", ""]
    for part, record in parts.items():
        rows, machine = record["results"], record["machine"]
        lines += [f"## {part}", "", (PARTS[part].__doc__ or "").strip(), ""]
        lines += [f"{machine['processor']}, {machine['cores']} cores; {_versions(machine)}", ""]
        columns = list(dict.fromkeys(key for row in rows for key in row))
        lines += ["| " + " | ".join(columns) + " |", "|" + " --- |" * len(columns)]
        lines += ["| " + " | ".join(_cell(row.get(c, "")) for c in columns) + " |" for row in rows]
        lines.append("")
    (RESULTS / "sid.md").write_text("\n".join(lines))

    if "decode" in parts:
        rows = [r for r in parts["decode"]["results"] if "us_per_step" in r]
        figure, axes = plt.subplots(1, 2, figsize=(11, 4.2), sharey=True)
        for axis, backend in zip(axes, ("torch", "jax"), strict=True):
            for method in dict.fromkeys(r["method"] for r in rows):
                points = [
                    (r["count"], r["us_per_step"]) for r in rows if (r["backend"], r["method"]) == (backend, method)
                ]
                ours = method == "maskwright"
                axis.loglog(
                    *zip(*points, strict=True), "o-", label=method, linewidth=3 if ours else 1.2, zorder=2 + ours
                )
            axis.set(title=f"one step, {backend}, CPU", xlabel="IDs in the set")
        axes[0].set_ylabel("microseconds")
        axes[1].legend(fontsize=7)
        _save(figure, "sid-decode.png")
    if "vocabulary" in parts and "branches" in parts:
        figure, axes = plt.subplots(1, 2, figsize=(11, 4.2))
        rows = parts["vocabulary"]["results"]
        x = [r["vocab_size"] for r in rows]
        axes[0].loglog(x, [r["bytes_per_million"] / 1e6 for r in rows], "o-", label="maskwright", linewidth=3)
        axes[0].loglog(x, [r["dense_csr_bytes_per_million"] / 1e6 for r in rows], "o-", label="dense+CSR, its bound")
        axes[0].set(title=f"table size, {rows[0]['count']:,} IDs", xlabel="V", ylabel="MB per million IDs")
        axes[0].legend()
        rows = parts["branches"]["results"]
        x = [r["vocab_size"] for r in rows]
        axes[1].loglog(x, [r["maskwright_us"] for r in rows], "o-", label="maskwright", linewidth=3)
        axes[1].loglog(x, [r["unconstrained_us"] for r in rows], "o-", label="unconstrained")
        axes[1].set(title="one step, torch, CPU", xlabel="branch factor = V", ylabel="microseconds")
        axes[1].legend()
        _save(figure, "sid-sweeps.png")


def _versions(machine: dict[str, Any]) -> str:
    return ", ".join(f"{name} {version}" for name, version in machine["versions"].items() if version)


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.0f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _save(figure: Any, name: str) -> None:
    figure.tight_layout()
    figure.savefig(RESULTS / name, dpi=110)


PARTS: dict[str, Callable[[float], Records]] = {
    "build": build,
    "huge": huge,
    "decode": decode,
    "matrix": matrix,
    "vocabulary": vocabulary,
    "branches": branches,
    "contains": contains,
}


if __name__ == "__main__":
    run_parts("sid", __doc__ or "", PARTS, report)
