"""What every benchmark shares: interleaved timing, records with the machine they were taken on, reports.

Peak memory is in `memory.py`, suites of several parts in `parts.py`, the gate that compares records in `gate.py`, beam
search in `beams.py`.
"""

import importlib.metadata
import importlib.util
import json
import os
import platform
import time
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
from rich.console import Console
from rich.table import Table

matplotlib.use("Agg")

ROOT = Path(__file__).resolve().parents[1]
RESULTS = Path(__file__).parent / "results"

# ---------------------------------------------------------------------------------------- time


class Spread(NamedTuple):
    """First quartile, median and third quartile."""

    q1: float
    median: float
    q3: float


def spread(times: Sequence[float]) -> Spread:
    """Return the quartiles of a list of times, in the unit they came in."""
    q1, median, q3 = np.quantile(np.asarray(times, dtype=np.float64), [0.25, 0.5, 0.75])
    return Spread(float(q1), float(median), float(q3))


Name = TypeVar("Name", bound=Hashable)


def time_interleaved(
    functions: Mapping[Name, Callable[[], object]],
    repeats: int,
    warmup: int = 2,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[Name, list[float]]:
    """Return the seconds of each call, by name, with all functions run in turn in one process.

    Noise on a shared machine then falls on all of them alike, and ratios hold. Each round starts one function
    later, so that none is always first. A function must wait for its own device work to end. For work on one
    CPU thread, `clock=time.process_time` leaves out the time that other processes took.
    """
    names = list(functions)
    for _ in range(warmup):
        for name in names:
            functions[name]()
    times: dict[Name, list[float]] = {name: [] for name in names}
    for round_ in range(repeats):
        first = round_ % len(names)
        for name in names[first:] + names[:first]:
            begin = clock()
            functions[name]()
            times[name].append(clock() - begin)
    return times


def ratios(times: Mapping[Name, Sequence[float]], reference: Name) -> dict[Name, Spread]:
    """Return for each name the spread of its time over the reference's time in the same round."""
    base = np.asarray(times[reference])
    return {name: spread(np.asarray(values) / base) for name, values in times.items()}


# ---------------------------------------------------------------------------------------- records


def machine() -> dict[str, Any]:
    """Return what the numbers were taken on: processor, cores, memory, accelerator, versions."""
    processor = platform.processor()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        lines = cpuinfo.read_text().splitlines()
        processor = next((x.split(":", 1)[1].strip() for x in lines if x.startswith("model name")), processor)
    versions: dict[str, str | None] = {}
    for package in ("numpy", "numba", "torch", "jax", "jaxlib"):
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = None
    return {
        "processor": processor,
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        **_of_torch(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "versions": versions,
    }


def _of_torch() -> dict[str, Any]:
    """Return what torch says of the machine; None of all of it in an environment without torch."""
    if importlib.util.find_spec("torch") is None:
        return {"accelerator": None, "torch_threads": None}
    import torch

    name = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {"accelerator": name, "torch_threads": torch.get_num_threads()}


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")


def write_json(path: str | os.PathLike[str], results: Any) -> None:
    """Write `{"machine": machine(), "results": results}`; NumPy numbers and arrays become plain ones."""
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    record = {"machine": machine(), "results": results}
    target.write_text(json.dumps(record, indent=1, default=_plain) + "\n")


def processor_seconds(pid: int) -> float:
    """Return the processor time that a child has taken, in all its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


# ---------------------------------------------------------------------------------------- reports

Bar = tuple[str, str, str, bool | None]
"""A claim: what, its bar, what was measured, and whether it holds; None where something was not measured."""

_BARS = ("what", "bar", "measured", "held")


def write_report(
    path: Path, title: str, about: str, results: Mapping[str, Any], bars: list[Bar], parts: Iterable[str]
) -> None:
    """Write a report in Markdown and print its bars: what it is about, what it ran on, its bars, then lines of parts.

    results: with the machine and the engines' versions. Beside it are its numbers, in a file of the same name.
    """
    rows = [[*bar[:3], {True: "yes", False: "no", None: "not measured" if bar[1] else ""}[bar[3]]] for bar in bars]
    if rows:
        shown = Table(*_BARS, title=title)
        for row in rows:
            shown.add_row(*row)
        Console().print(shown)
    on = results["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in results["versions"].items())
    head = [f"# {title}", "", about, "", f"{on['processor']}, {on['cores']} cores; {versions}", ""]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([*head, *(grid(_BARS, rows) if rows else []), *parts]))


def grid(headings: Sequence[str], rows: Iterable[Sequence[Any]]) -> list[str]:
    """Return the lines of a table in Markdown, and an empty one."""
    lines = ["| " + " | ".join(headings) + " |", "|" + " --- |" * len(headings)]
    return [*lines, *("| " + " | ".join(map(as_cell, row)) + " |" for row in rows), ""]


def as_cell(value: Any) -> str:
    """Return what stands in a cell: numbers with three digits that count, text on one line."""
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:,.3g}" if abs(value) < 100 else f"{value:,.0f}"
    return str(value).replace("|", "\\|").replace("\n", " ")


def as_code(text: str, most: int = 100) -> str:
    """Return text as Markdown code on one line, cut to `most` characters."""
    text = text if len(text) <= most else text[:most] + "..."
    return "`" + text.replace("\n", "\\n").replace("\t", "\\t").replace("`", "'") + "`"


def save(figure: Any, path: Path) -> None:
    """Write a figure, with a legend on each of its axes that has lines, and let go of it."""
    for axis in figure.axes:
        if axis.lines:
            axis.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)
