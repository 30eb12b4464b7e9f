"""Constrained steps on an accelerator: eager, compiled and as a CUDA graph, beside dense-plus-CSR tables.

Claim checked: on a device a constrained step costs no more than with dense-plus-CSR tables, and no host work is needed
between steps, so a whole search is one CUDA graph. 20 M semantic IDs (V = 2048, L = 8), B = 2, M = 70; then masks of
text, 64 rows of 131,072 tokens. Before anything is timed, searches, masks and states are compared with numpy's, and a
fused step is repeated on two streams at once and compared with itself.

    python -m benchmarks.suites.device                 on a GPU or a TPU if there is one, else a smaller set on the CPU
    python -m benchmarks.suites.device --count 1000000

PyTorch runs on a GPU or on the CPU, JAX on the device that it takes unasked; on a TPU JAX runs alone. Prints one table.
For the usual number of IDs it writes `results/device-cuda.json` and `.md` (or `-tpu`, `-cpu`), in which each measured
time stands beside what must move.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import jax
import torch
from rich.console import Console
from rich.table import Table

from ...harness import RESULTS, Spread, machine, spread, time_interleaved, write_json, write_report
from .roofline import Timed, lines
from .sid import Searches
from .text import TextSteps

ABOUT = (
    "Steps timed on one device, after their results were compared with numpy's. Times are medians; those of semantic "
    "IDs are of one step of a search of 8 levels. No code takes less time than the bytes that must move need."
)


def main() -> None:
    """Run the benchmark and print its table."""
    where = "cuda" if torch.cuda.is_available() else jax.default_backend()
    usual = 1_000_000 if where == "cpu" else 20_000_000
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=usual, help="results are kept only for the usual number")
    parser.add_argument(
        "--steps", type=int, default=3 if where == "cpu" else 2000, help="a level, to check their order"
    )
    parser.add_argument("--repeats", type=int, default=20 if where == "cpu" else 100)
    arguments = parser.parse_args()
    if where == "cpu":
        torch.set_num_threads(1)
    device = {"cuda": lambda: torch.cuda.get_device_name(), "cpu": lambda: "this CPU, one thread"}.get(
        where, lambda: jax.devices()[0].device_kind
    )()
    searches = Searches(arguments.count)
    with torch.inference_mode():
        timed = steps_of(searches, where, arguments.steps)
        measured = time_all(timed, arguments.repeats, wait=torch.cuda.synchronize if where == "cuda" else None)
    show(device, measured)
    sizes = {"maskwright": searches.table.nbytes, "dense+CSR": searches.dense.nbytes}
    print("bytes: " + ", ".join(f"{name} {size / 1e6:,.0f} MB" for name, size in sizes.items()))
    if arguments.count == usual:
        write(f"device-{where}", device, sizes, measured)


def steps_of(searches: Searches, where: str, repeats: int) -> list[Timed]:
    """Return all steps to time. Raises SystemExit where one gives another result than numpy."""
    text, timed = TextSteps(), []
    if where in ("cuda", "cpu"):
        searched, repeated = searches.of_torch(torch.device(where), repeats)
        timed += [*searched, *text.of_torch(torch.device(where))]
        print(f"order: {repeated:,} repeated steps chose the same beams")
    timed += [*searches.of_jax(), *text.of_jax()]
    print("equal to numpy: searches, masks of text, states after a token")
    return timed


def time_all(timed: list[Timed], repeats: int, wait: Callable[[], None] | None) -> list[tuple[Timed, Spread]]:
    """Return the seconds of each run; those of searches and those of text are interleaved among themselves."""

    def waited(run: Callable[[], Any]) -> Callable[[], Any]:
        def call() -> None:
            jax.block_until_ready(run())
            if wait is not None:
                wait()

        return call

    measured = []
    for searches in (True, False):
        runs = {i: waited(each.run) for i, each in enumerate(timed) if (each.parts > 1) == searches}
        times = time_interleaved(runs, repeats, warmup=5)
        measured += [(timed[i], spread(seconds)) for i, seconds in times.items()]
    return measured


def show(device: str, measured: list[tuple[Timed, Spread]]) -> None:
    """Print the table."""
    shown = Table(title=f"Measured on {device}")
    for heading in ("step", "method", "us", "quartiles"):
        shown.add_column(heading, justify="right" if heading in ("us", "quartiles") else "left")
    for each, seconds in measured:
        q1, median, q3 = (1e6 * x / each.parts for x in seconds)
        shown.add_row(each.step, each.method, f"{median:,.1f}", f"{q1:,.1f} to {q3:,.1f}")
    Console().print(shown)


def write(name: str, device: str, sizes: dict[str, int], measured: list[tuple[Timed, Spread]]) -> None:
    """Write the record and its report."""
    times = []
    for each, seconds in measured:
        q1, median, q3 = (1e6 * x / each.parts for x in seconds)
        row = {"step": each.step, "method": each.method, "us_per_step": median, "q1": q1, "q3": q3}
        times.append({**row, "must_move": each.must_move / each.parts})
    write_json(RESULTS / f"{name}.json", {"device": device, "bytes": sizes, "times": times})
    versions = {"torch": torch.__version__, "jax": jax.__version__}
    results = {**machine(), "versions": versions}
    write_report(
        RESULTS / f"{name}.md", "Measured on a device", ABOUT, {"machine": results, "versions": versions}, [],
        lines(device, measured),
    )  # fmt: skip


if __name__ == "__main__":
    main()
