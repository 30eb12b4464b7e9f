"""What the demo found: tables for a terminal, a plot, and JSON."""

from __future__ import annotations

import json
import math
import platform
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from .evaluation import Comparison
from .living import Living
from .served import Call

_COLOURS = {
    "unconstrained": "#999999",
    "random guess": "#E69F00",
    "constrained": "#0072B2",
}  # Okabe and Ito's


@dataclass(frozen=True)
class ColdStart:
    """The newest `share` of the items, left out of training, as the allowed set.

    dropped     training sequences left out because they contain one of the items
    comparison  over the test rows whose next item is one of them; None if there is no such row
    """

    share: float
    items: int
    dropped: int
    comparison: Comparison | None


@dataclass(frozen=True)
class Example:
    """One test row: titles of the last items and of the next, and the best IDs with their titles, if any."""

    history: tuple[str, ...]
    target: str
    unconstrained: tuple[tuple[str, str | None], ...]
    constrained: tuple[tuple[str, str | None], ...]


@dataclass(frozen=True)
class Report:
    """The demo's results. Shares and recalls are of 1, times in milliseconds or, where named so, seconds."""

    data: str
    seed: int
    items: int
    ids: int
    levels: int
    codes: int
    histories: int
    beams: int
    batch: int
    parameters: int
    training_seconds: float
    seconds: float
    next_item: Comparison
    cold_start: tuple[ColdStart, ...]
    living: Living | None
    example: Example
    served: tuple[Call, ...]

    def print(self, console: Console) -> None:
        """Print the results as tables."""
        console.print(Group(Text(self._summary()), self._next_item_table(), self._cold_start_table()))
        if self.living is not None:
            console.print(Text(_living_text(self.living)), overflow="fold")
        console.print(self._example_text(), overflow="fold")
        console.print(Text(_served_text(self.served)), overflow="fold")

    def save(self, out: Path) -> None:
        """Write `demo.json` and `demo.png` to the directory `out`, which is made if need be."""
        out.mkdir(parents=True, exist_ok=True)
        machine = {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "threads": torch.get_num_threads(),
        }
        text = json.dumps({**asdict(self), **machine}, indent=2, allow_nan=False, ensure_ascii=False)
        (out / "demo.json").write_text(text + "\n", encoding="utf-8")
        self._figure().savefig(out / "demo.png", dpi=150)

    def _summary(self) -> str:
        return (
            f"{self.data}, seed {self.seed}\n"
            f"{self.items:,} items, {self.ids:,} distinct IDs of {self.levels} levels x {self.codes} codes; "
            f"{self.parameters:,} parameters, {self.histories:,} training histories\n"
            f"{self.training_seconds:.0f} s of training, {self.seconds:.0f} s in all\n"
        )

    def _next_item_table(self) -> Table:
        result = self.next_item
        table = Table(
            title=f"Next item, {result.rows:,} test rows, {self.beams} beams, {self.batch} users at a time",
            title_justify="left",
            caption_justify="left",
        )
        table.add_column("beam search")
        for heading in ("IDs that exist", "recall@1", "recall@10", "ms per step"):
            table.add_column(heading, justify="right")
        for name, measures in (("unconstrained", result.unconstrained), ("constrained", result.constrained)):
            table.add_row(
                name,
                f"{measures.share_valid:.1%}",
                _percent(measures.recall_at_1, result.rows),
                _percent(measures.recall_at_10, result.rows),
                f"{measures.ms_per_step:.2f}",
            )
        low, median, high = result.overhead_ms
        table.caption = (
            f"± is one standard error; constraint: {median:+.2f} ms per step on one thread, "
            f"median of paired batches (half of them from {low:+.2f} to {high:+.2f})"
        )
        return table

    def _cold_start_table(self) -> Table:
        table = Table(
            title="Cold start: recall@1 on items left out of training", title_justify="left", caption_justify="left"
        )
        table.add_column("newest")
        for heading in ("IDs", "dropped", "rows", "unconstrained", "random", "constrained"):
            table.add_column(heading, justify="right")
        for cold in self.cold_start:
            name, result = f"{cold.share:.0%} ({cold.items})", cold.comparison
            if result is None:
                table.add_row(name, "", f"{cold.dropped:,}", "0", *["no test row"] * 3)
                continue
            table.add_row(
                name,
                f"{result.ids}",
                f"{cold.dropped:,}",
                f"{result.rows}",
                _percent(result.unconstrained.recall_at_1, result.rows),
                f"{result.random_at_1:.1%}",
                _percent(result.constrained.recall_at_1, result.rows),
            )
        table.caption = (
            "constrained: to the IDs of exactly these items; random: one ID out of them; "
            "dropped: training histories with such an item"
        )
        return table

    def _example_text(self) -> Text:
        text = Text(f"\nOne user: … → {' → '.join(self.example.history)}\nnext: {self.example.target}\n")
        for name, best in (
            ("unconstrained", self.example.unconstrained),
            ("constrained", self.example.constrained),
        ):
            text.append(f"{name}\n")
            for sid, title in best:
                text.append(f"  {sid}  ")
                text.append(f"{title or 'no such item'}\n", style="" if title else "red")
        return text

    def _figure(self) -> Figure:
        figure = Figure(figsize=(12, 4.6), layout="constrained")
        quality, cold, speed = figure.subplots(1, 3, width_ratios=(4, 4, 3))
        self._plot_next_item(quality)
        self._plot_cold_start(cold)
        self._plot_time(speed)
        handles = [Patch(color=colour, label=name) for name, colour in _COLOURS.items()]
        figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False)
        figure.suptitle(f"{self.data}: {self.items:,} items, {self.beams} beams, seed {self.seed}")
        return figure

    def _plot_next_item(self, axes: Axes) -> None:
        result = self.next_item
        kinds = ("share_valid", "recall_at_1", "recall_at_10")
        series = {
            name: [getattr(measures, kind) for kind in kinds]
            for name, measures in (
                ("unconstrained", result.unconstrained),
                ("constrained", result.constrained),
            )
        }
        _bars(axes, ("IDs that exist", "recall@1", "recall@10"), series, result.rows, exact=("IDs that exist",))
        axes.set_ylim(0, 115)
        axes.set_title(f"Next item, {result.rows:,} test rows")

    def _plot_cold_start(self, axes: Axes) -> None:
        shown = [(cold.share, cold.comparison) for cold in self.cold_start if cold.comparison is not None]
        axes.set_title("Cold start, recall@1")
        if not shown:
            axes.text(0.5, 0.5, "no test rows", ha="center", va="center", transform=axes.transAxes)
            return
        series = {
            "unconstrained": [result.unconstrained.recall_at_1 for _, result in shown],
            "random guess": [result.random_at_1 for _, result in shown],
            "constrained": [result.constrained.recall_at_1 for _, result in shown],
        }
        labels = tuple(f"newest {share:.0%} of items\n{result.rows} test rows" for share, result in shown)
        _bars(axes, labels, series, [result.rows for _, result in shown], exact=("random guess",))

    def _plot_time(self, axes: Axes) -> None:
        result = self.next_item
        both = {
            "unconstrained": result.unconstrained.ms_per_step,
            "constrained": result.constrained.ms_per_step,
        }
        bars = axes.bar(list(both), list(both.values()), color=[_COLOURS[name] for name in both], width=0.6)
        axes.bar_label(bars, fmt="%.2f", padding=2)
        axes.set_ylabel(f"ms per step, {self.batch} users")
        axes.set_title(f"Time; constraint: {result.overhead_ms[1]:+.2f} ms")
        axes.margins(y=0.15)
        axes.spines[["top", "right"]].set_visible(False)


def _bars(
    axes: Axes,
    labels: tuple[str, ...],
    series: dict[str, list[float]],
    rows: int | list[int],
    exact: tuple[str, ...] = (),
) -> None:
    """Draw grouped bars in per cent, with standard errors over `rows` but for what `exact` names."""
    place, width = np.arange(len(labels)), 0.8 / len(series)
    counts = np.broadcast_to(rows, len(labels))
    for index, (name, values) in enumerate(series.items()):
        error = [
            0.0 if name in exact or label in exact else 100 * _standard_error(value, count)
            for label, value, count in zip(labels, values, counts, strict=True)
        ]
        bars = axes.bar(
            place + (index - (len(series) - 1) / 2) * width,
            [100 * value for value in values],
            width * 0.94,
            yerr=error,
            label=name,
            color=_COLOURS[name],
            error_kw={"lw": 1},
        )
        axes.bar_label(bars, fmt="%.1f", padding=2, fontsize=9)
    axes.margins(y=0.1)
    axes.set_xticks(place, labels)
    axes.set_ylabel("per cent, ± standard error")
    axes.spines[["top", "right"]].set_visible(False)


def _living_text(living: Living) -> str:
    before, after, alone = living.recall_at_10
    return (
        f"\nLive catalogue, {living.rows} test rows whose next item is added after training\n"
        f"filter: half of the items are in stock for each user; of those returned {living.in_stock[0]:.1%} are "
        f"without a filter, {living.in_stock[1]:.1%} with one\n"
        f"sold out: {living.sold_out} items between the steps of searches, of which {living.still_running:.1%} return "
        f"what they began with; the next searches return {living.sold_out_after} of them\n"
        f"added: {living.added} items; recall@10 on them is {_percent(before, living.rows)} before and "
        f"{_percent(after, living.rows)} after, with the same model, and {_percent(alone, living.rows)} under a filter "
        f"that keeps the new ones ({min(1, 10 / living.added):.1%} by chance)\n"
    )


def _served_text(served: tuple[Call, ...]) -> str:
    """Show requests to the server of items, with the titles that came back."""
    lines = ["\nThe same model and catalogue behind maskwright serve --catalogue:"]
    for call in served:
        lines += ["", f"$ {call.command}"]
        if "items" in call.answer:
            lines += [f"  {item['score']:8.2f}  {item['columns']['title']}" for item in call.answer["items"]]
        else:
            lines.append(f"  {json.dumps(call.answer)}")
    return "\n".join(lines)


def _standard_error(share: float, rows: int) -> float:
    """Return the standard error of a share over `rows` taken as independent."""
    return math.sqrt(share * (1 - share) / rows)


def _percent(share: float, rows: int) -> str:
    return f"{share:.1%} ± {100 * _standard_error(share, rows):.1f}"
