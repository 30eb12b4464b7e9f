"""Constrained beam search on an accelerator: eager, compiled and as a CUDA graph, beside dense-plus-CSR tables.

Claim checked: on a GPU a constrained step costs no more than with dense-plus-CSR tables, and no host work is needed
between steps, so a whole search is one CUDA graph. 20 M semantic IDs (V = 2048, L = 8), B = 2, M = 70.

    python -m benchmarks.suites.device                 on a GPU if there is one, else a smaller set on the CPU
    python -m benchmarks.suites.device --count 1000000

Writes `results/device-cuda.json` (or `-cpu`) and prints one table.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from rich.console import Console
from rich.table import Table

import maskwright as mw
from maskwright.runtime import jax_ops, torch_ops

from ..baselines import dense_csr
from ..beams import (
    Method,
    TorchUnconstrained,
    decode_jax,
    decode_torch,
    for_search,
    random_logits,
    search_jax,
    search_torch,
)
from ..harness import RESULTS, spread, time_interleaved, write_json

BATCH, BEAMS, LENGTH, VOCAB = 2, 70, 8, 2048


def cuda_graph(run: Callable[[], Any]) -> Callable[[], None]:
    """Return a function that replays one run; capturing fails if anything in it waits for the host."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return lambda: graph.replay()


def main() -> None:
    """Run the benchmark and print its table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    cuda = torch.cuda.is_available()
    usual = 20_000_000 if cuda else 1_000_000
    parser.add_argument("--count", type=int, default=usual, help="results are kept only for the usual number")
    parser.add_argument("--repeats", type=int, default=100 if cuda else 20)
    arguments = parser.parse_args()
    device = torch.device("cuda" if cuda else "cpu")
    if not cuda:
        torch.set_num_threads(1)
    sids = np.random.default_rng(0).integers(0, VOCAB, (arguments.count, LENGTH), dtype=np.uint16)
    table, dense = mw.compile_sids(sids, VOCAB), dense_csr.build(sids, VOCAB)
    logits = random_logits(BATCH, BEAMS, VOCAB, LENGTH)
    repeated = for_search(logits, BEAMS)
    for_methods = [torch.tensor(x, device=device) for x in logits]
    steps = [torch.tensor(x, device=device) for x in repeated]
    dev = torch_ops.put(table, device)
    methods: dict[str, Method] = {
        "unconstrained": TorchUnconstrained(),
        "dense+CSR": dense_csr.to_torch(dense, device),
        "dense+CSR, children only": dense_csr.to_torch(dense, device, project=False),
    }

    runs: dict[str, Callable[[], Any]] = {"maskwright": lambda: search_torch(dev, steps, BATCH, BEAMS)}
    for name, method in methods.items():
        runs[name] = partial(decode_torch, method, for_methods, BATCH, BEAMS)

    timed: dict[str, Callable[[], Any]] = {}
    for name, run in runs.items():
        timed[f"torch eager: {name}"] = run
        timed[f"torch.compile: {name}"] = torch.compile(run, fullgraph=True)
        if cuda:
            timed[f"CUDA graph: {name}"] = cuda_graph(run)
    jax_dev = jax_ops.put(table)
    jax_steps, jax_logits = [jnp.asarray(x) for x in repeated], [jnp.asarray(x) for x in logits]

    jax_dense = dense_csr.to_jax(dense)
    timed["jax.jit: maskwright"] = lambda: jax.block_until_ready(search_jax(jax_dev, jax_steps, BATCH, BEAMS))
    timed["jax.jit: dense+CSR"] = lambda: jax.block_until_ready(decode_jax(jax_dense, jax_logits, BATCH, BEAMS))

    def synchronised(run: Callable[[], Any]) -> Callable[[], Any]:
        def wait() -> None:
            run()
            if cuda:
                torch.cuda.synchronize()

        return wait

    with torch.inference_mode():
        times = time_interleaved({k: synchronised(v) for k, v in timed.items()}, arguments.repeats, warmup=5)
    shown = Table(title=f"{arguments.count:,} IDs on {torch.cuda.get_device_name() if cuda else 'CPU'}")
    for heading in ("", "us a step", "quartiles"):
        shown.add_column(heading, justify="left" if not heading else "right")
    records = []
    for name, seconds in times.items():
        q1, median, q3 = (1e6 * x / LENGTH for x in spread(seconds))
        records.append({"method": name, "count": arguments.count, "us_per_step": median, "q1": q1, "q3": q3})
        shown.add_row(name, f"{median:,.1f}", f"{q1:,.1f} to {q3:,.1f}")
    Console().print(shown)
    sizes = {"maskwright": table.nbytes, "dense+CSR": dense.nbytes}
    print("bytes: " + ", ".join(f"{name} {size / 1e6:,.0f} MB" for name, size in sizes.items()))
    if arguments.count != usual:
        return
    name = "cuda" if cuda else "cpu"
    write_json(RESULTS / f"device-{name}.json", {"bytes": sizes, "times": records})


if __name__ == "__main__":
    main()
