"""What every benchmark shares: one beam-search loop for all methods, interleaved timing, peak memory.

A *method* is one way to constrain beam search, on one backend. It has two functions:

    start(batch) -> carry
        the constraint's state for `batch` rows of one beam each
    select(logits (B*m, V), scores (B, m), carry, level, beams) -> (scores, parents, tokens (B, beams), carry)
        one step: log-softmax over V, the constraint, beam totals, the `beams` best (beam, token) pairs

`level` and `beams` are static. A beam that no valid sequence is left for has the score -inf; its parent and
token are in range and mean nothing. The final top-k is the same for all, so that only the constraint differs.
PyTorch methods are plain objects; JAX methods are pytrees, so that their arrays enter `jax.jit` as arguments and
are not compiled in.
"""

import functools
import importlib.metadata
import json
import os
import platform
import time
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

import jax
import jax.numpy as jnp
import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import torch
from memory import PeakMemory as PeakMemory
from memory import peak_memory as peak_memory
from rich.console import Console
from rich.table import Table

from maskwright.runtime import jax_ops, torch_ops
from maskwright.runtime.decode import beam_search

matplotlib.use("Agg")

# ---------------------------------------------------------------------------------------- beam search


class Method(Protocol):
    """One way to constrain beam search on one backend; the module's docstring defines its functions."""

    def start(self, batch: int) -> Any: ...

    def select(self, logits: Any, scores: Any, carry: Any, level: int, beams: int) -> tuple[Any, Any, Any, Any]: ...


def torch_best(totals: Any, beams: int) -> tuple[Any, Any, Any]:
    """Return the `beams` best of all beams' candidates: (B, m, W) -> scores, parents, slots (B, beams).

    Where there are fewer than `beams` candidates, the rest have the score -inf.
    """
    batch, m, width = totals.shape
    flat = totals.reshape(batch, m * width)
    missing = beams - m * width
    if missing > 0:
        flat = torch.nn.functional.pad(flat, (0, missing), value=-torch.inf)
    scores, index = torch_ops.top_k(flat, beams)
    if missing > 0:
        index = index.clamp_max(m * width - 1)
    return scores, index // width, index % width


def jax_best(totals: Any, beams: int) -> tuple[Any, Any, Any]:
    """Return the `beams` best of all beams' candidates: (B, m, W) -> scores, parents, slots (B, beams).

    Where there are fewer than `beams` candidates, the rest have the score -inf.
    """
    batch, m, width = totals.shape
    flat = totals.reshape(batch, m * width)
    missing = beams - m * width
    if missing > 0:
        flat = jnp.pad(flat, ((0, 0), (0, missing)), constant_values=-jnp.inf)
    scores, index = jax_ops.top_k(flat, beams)
    if missing > 0:
        index = jnp.minimum(index, m * width - 1)
    return scores, index // width, index % width


def torch_pick(values: Any, parents: Any, slots: Any) -> Any:
    """Return `values[b, parents[b, i], slots[b, i]]`: (B, m, W) and twice (B, k) -> (B, k)."""
    return values.flatten(1).gather(1, parents * values.shape[2] + slots)


def jax_pick(values: Any, parents: Any, slots: Any) -> Any:
    """Return `values[b, parents[b, i], slots[b, i]]`: (B, m, W) and twice (B, k) -> (B, k)."""
    batch, m, width = values.shape
    return jnp.take_along_axis(values.reshape(batch, m * width), parents * width + slots, axis=1)


class TorchUnconstrained:
    """Beam search without a constraint: the lower bound on a step's time."""

    def start(self, batch: int) -> tuple[()]:
        return ()

    def select(
        self, logits: Any, scores: Any, carry: tuple[()], level: int, beams: int
    ) -> tuple[Any, Any, Any, tuple[()]]:
        batch, m = scores.shape
        log_probs = logits.log_softmax(-1, dtype=torch.float32)
        totals = log_probs.view(batch, m, -1) + scores.unsqueeze(-1)
        scores, parents, tokens = torch_best(totals, beams)
        return scores, parents, tokens, carry


@functools.partial(jax.tree_util.register_dataclass, data_fields=[], meta_fields=[])
@dataclass(frozen=True)
class JaxUnconstrained:
    """Beam search without a constraint: the lower bound on a step's time."""

    def start(self, batch: int) -> tuple[()]:
        return ()

    def select(
        self, logits: Any, scores: Any, carry: tuple[()], level: int, beams: int
    ) -> tuple[Any, Any, Any, tuple[()]]:
        batch, m = scores.shape
        log_probs = jax.nn.log_softmax(logits.astype(jnp.float32))
        totals = log_probs.reshape(batch, m, -1) + scores[:, :, None]
        scores, parents, tokens = jax_best(totals, beams)
        return scores, parents, tokens, carry


def decode_torch(method: Method, logits: Sequence[Any], batch: int, beams: int) -> tuple[Any, Any]:
    """Run beam search over given logits, so that a method's own cost is all there is.

    `logits` holds one array per level: (B, V) for the first, (B*M, V) for the others.
    Returns tokens (B, M, L) and scores (B, M), best first.
    """
    scores = logits[0].new_zeros((batch, 1), dtype=torch.float32)
    carry = method.start(batch)
    steps = []
    for level, step_logits in enumerate(logits):
        scores, parents, tokens, carry = method.select(step_logits, scores, carry, level, beams)
        steps.append((parents, tokens))
    beam = torch.arange(beams, device=scores.device).expand(batch, beams)
    backwards = []
    for parents, tokens in reversed(steps):
        backwards.append(tokens.gather(1, beam))
        beam = parents.gather(1, beam)
    return torch.stack(backwards[::-1], dim=-1), scores


@functools.partial(jax.jit, static_argnames=("batch", "beams"))
def decode_jax(method: Method, logits: Sequence[Any], batch: int, beams: int) -> tuple[Any, Any]:
    """Run beam search over given logits, all levels in one compiled program; see `decode_torch`."""
    scores = jnp.zeros((batch, 1), jnp.float32)
    carry = method.start(batch)
    steps = []
    for level, step_logits in enumerate(logits):
        scores, parents, tokens, carry = method.select(step_logits, scores, carry, level, beams)
        steps.append((parents, tokens))
    beam = jnp.broadcast_to(jnp.arange(beams), (batch, beams))
    backwards = []
    for parents, tokens in reversed(steps):
        backwards.append(jnp.take_along_axis(tokens, beam, axis=1))
        beam = jnp.take_along_axis(parents, beam, axis=1)
    return jnp.stack(backwards[::-1], axis=-1), scores


def search_torch(dev: Any, logits: Sequence[Any], batch: int, beams: int) -> Any:
    """Run maskwright's own beam search over given logits, one array (B*M, V) per level."""
    return beam_search(
        lambda tokens, cache, t: (logits[t], cache),
        None,
        dev,
        ops=torch_ops,
        batch=batch,
        beams=beams,
        max_length=len(logits),
    )


@functools.partial(jax.jit, static_argnames=("batch", "beams"))
def search_jax(dev: Any, logits: Sequence[Any], batch: int, beams: int) -> Any:
    """Run maskwright's own beam search over given logits, compiled whole; see `search_torch`."""
    return beam_search(
        lambda tokens, cache, t: (logits[t], cache),
        None,
        dev,
        ops=jax_ops,
        batch=batch,
        beams=beams,
        max_length=len(logits),
    )


def for_search(logits: Sequence[np.ndarray[Any, Any]], beams: int) -> list[np.ndarray[Any, Any]]:
    """Return logits of `random_logits` with the first level's rows repeated: a search feeds all beams."""
    return [np.repeat(logits[0], beams, axis=0), *logits[1:]]


def random_logits(batch: int, beams: int, vocab_size: int, length: int, seed: int = 0) -> list[np.ndarray[Any, Any]]:
    """Return float32 standard normal logits for `decode_torch`: (B, V), then L - 1 times (B*M, V)."""
    rng = np.random.default_rng(seed)
    rows = [batch] + [batch * beams] * (length - 1)
    return [rng.standard_normal((n, vocab_size), dtype=np.float32) for n in rows]


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
        "accelerator": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "torch_threads": torch.get_num_threads(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "versions": versions,
    }


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
    shown = Table(*_BARS, title=title)
    for row in rows:
        shown.add_row(*row)
    Console().print(shown)
    on = results["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in results["versions"].items())
    head = [f"# {title}", "", about, "", f"{on['processor']}, {on['cores']} cores; {versions}", ""]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([*head, *grid(_BARS, rows), *parts]))


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
