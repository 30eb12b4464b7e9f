"""The report: claims, tables and plot, from what was measured."""

from __future__ import annotations

import collections
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np

from ...harness import Bar, as_code, grid, save, write_report
from .cases import Record
from .engines import ANY_ORDER, ENGINES, OURS, REFERENCE

BARS = {
    "pass_share": 0.96, "wrong_accepts": 0, "wrong_refusal_share": 0.003, "first_p50": 3.0, "first_p99": 2.0,
    "first_worst_s": 5.0, "step_p50_us": 5.0, "step_p99_us": 20.0, "step_worst_us": 1000.0, "bytes_p50": 256 * 1024,
}  # fmt: skip
OUTCOMES = ("pass", "wrong accept", "wrong refusal", "refused", "timeout", "died")
PERCENTILES = (50, 90, 99, 99.9, 100)


def summary(records: list[Record], names: list[str]) -> list[Record]:
    """Return for each engine what it did, of each group and of all schemas together."""
    out = []
    for name in names:
        mine = [record for record in records if record["engine"] == name]
        for group in ["all", *sorted({record["group"] for record in mine})]:
            some = [record for record in mine if group in ("all", record["group"])]
            counts = collections.Counter(record["outcome"] for record in some)
            row: Record = {"engine": name, "group": group, "schemas": len(some)}
            row |= {outcome: counts[outcome] for outcome in OUTCOMES}
            if name == OURS:
                row["refused in order"] = sum(bool(record.get("refused in order")) for record in some)
            first = [1e3 * record["first_s"] for record in some if "first_s" in record]
            steps = [ns / 1e3 for record in some for ns in record.get("steps_ns", ())]
            whole = [1e3 * record["whole_s"] for record in some if "whole_s" in record]
            sizes = [record["bytes"] for record in some if "bytes" in record]
            row["steps"] = len(steps)
            for key, values in (("first_ms", first), ("step_us", steps), ("whole_ms", whole), ("bytes", sizes)):
                if values:
                    row[key] = {f"p{q}": float(np.percentile(values, q)) for q in PERCENTILES}
            if group == "all":
                row["setup_s"] = mine[0]["setup_s"]
                quantiles = [*range(1, 100), 99.5, 99.9, 99.99, 100]
                for key, values in (("first_ms", first), ("step_us", steps)):
                    row[f"{key}_quantiles"] = np.percentile(values, quantiles).round(3) if values else []
                row["quantiles"] = quantiles
            out.append(row)
    return out


def faults(records: list[Record]) -> list[Record]:
    """Return the records of schemas that did not pass, without their steps."""
    return [
        {key: value for key, value in record.items() if key not in ("steps_ns", "setup_s")}
        for record in records
        if record["outcome"] != "pass"
    ]


def bars(rows: list[Record]) -> list[Bar]:
    """Return (what, bar, measured, held) for each claim; `held` is None where something was not measured."""
    totals = {row["engine"]: row for row in rows if row["group"] == "all"}
    mine, theirs = totals.get(OURS), totals.get(REFERENCE)
    out: list[Bar] = []
    if mine is None:
        return out
    count = mine["schemas"]
    passed, accepts, most = mine["pass"], mine["wrong accept"], BARS["wrong_refusal_share"]
    out.append(
        (
            "schemas passed", f"{BARS['pass_share']:.0%}", f"{passed:,} of {count:,}, {passed / count:.1%}",
            passed >= BARS["pass_share"] * count,
        )
    )  # fmt: skip
    out.append(("invalid instances accepted", "of 0 schemas", f"of {accepts:,}", accepts == 0))
    refusals = {
        "valid instances refused as they are written": mine["wrong refusal"],
        "valid instances refused with members in the schema's order": mine["refused in order"],
    }
    if ANY_ORDER in totals:
        refusals[f"{ANY_ORDER}: valid instances refused"] = totals[ANY_ORDER]["wrong refusal"]
    for what, some in refusals.items():
        out.append((what, f"of {most:.1%} of schemas", f"of {some:,}, {some / count:.2%}", some <= most * count))
    for q in (50, 99):
        bar = BARS[f"first_p{q}"]
        ms = mine["first_ms"][f"p{q}"] if "first_ms" in mine else None
        base = theirs["first_ms"][f"p{q}"] if theirs and "first_ms" in theirs else None
        said = f"{ms:,.2f} ms" + (f": {REFERENCE} x {ms / base:.2f}" if base else "") if ms else ""
        held = ms <= bar * base if ms and base else None
        out.append((f"schema to first mask, p{q}", f"{REFERENCE} x {bar:g}", said, held))
    if "first_ms" in mine:
        worst = mine["first_ms"]["p100"] / 1e3
        said = f"{worst:,.2f} s"
        out.append(
            ("schema to first mask, worst", f"{BARS['first_worst_s']:g} s", said, worst <= BARS["first_worst_s"])
        )
    if "step_us" in mine:
        for q, name in ((50, "step_p50_us"), (99, "step_p99_us"), (100, "step_worst_us")):
            value, what = mine["step_us"][f"p{q}"], f"p{q}" if q < 100 else "worst"
            out.append((f"mask and advance, {what}", f"{BARS[name]:,g} us", f"{value:,.2f} us", value <= BARS[name]))
    if "bytes" in mine:
        size, bar = mine["bytes"]["p50"], BARS["bytes_p50"]
        said = f"{size / 1024:,.1f} KB"
        out.append(("bytes of a table, shared part aside, p50", f"{bar / 1024:.0f} KB", said, size < bar))
    return out


def report(results: Record, folder: Path) -> None:
    """Write json_schema.md and json_schema.png, and print the bars."""
    rows = results["summary"]
    about = (
        "Made by `python -m benchmarks.suites.json_schema` from `json_schema.json` beside it. Tekken, 131,072 tokens; "
        f"{results['data']}."
    )
    engines = [row["engine"] for row in rows if row["group"] == "all"]
    lines = [*_totals(rows), *_groups(rows), *_faults(results["faults"], engines)]
    write_report(folder / "json_schema.md", "JSON Schema", about, results, bars(rows), lines)
    _plot(rows, folder / "json_schema.png")


def _totals(rows: list[Record]) -> list[str]:
    totals = [row for row in rows if row["group"] == "all"]

    def spread(key: str) -> list[list[Any]]:
        return [[row["engine"], *row[key].values()] for row in totals if key in row]

    names = [f"p{q:g}" if q < 100 else "worst" for q in PERCENTILES]
    return [
        "## All schemas",
        "",
        "A schema passes if every valid instance is accepted and every invalid one refused. An engine accepts an "
        "instance if it takes every token and its mask then allows EOS.",
        "",
        *grid(
            ["engine", "schemas", *OUTCOMES, "setup, s"],
            [[row["engine"], row["schemas"], *(row[key] for key in OUTCOMES), row["setup_s"]] for row in totals],
        ),
        "Milliseconds from a schema to its first mask, in a warm process, the schema new to it:",
        "",
        *grid(["engine", *names], spread("first_ms")),
        "Microseconds of one mask and one commit:",
        "",
        *grid(["engine", *names], spread("step_us")),
        "Milliseconds to a whole table, as a device needs it; a matcher on the host does not:",
        "",
        *grid(["engine", *names], spread("whole_ms")),
        "Bytes of a table beyond those of the schema `true`, which all tables of one vocabulary share:",
        "",
        *grid(["engine", *names], spread("bytes")),
    ]


def _groups(rows: list[Record]) -> list[str]:
    names = [row["engine"] for row in rows if row["group"] == "all"]
    by = {(row["engine"], row["group"]): row for row in rows}
    groups = sorted({row["group"] for row in rows} - {"all"})

    def middle(row: Record, key: str) -> float | None:
        return float(row[key]["p50"]) if key in row else None

    return [
        "## Groups",
        "",
        "Schemas passed, milliseconds to the first mask (median), microseconds of mask and commit (median).",
        "",
        *grid(
            ["group", "schemas", *names, *(f"first, {name}" for name in names), *(f"step, {name}" for name in names)],
            [
                [
                    group,
                    by[names[0], group]["schemas"],
                    *(by[name, group]["pass"] for name in names),
                    *(middle(by[name, group], "first_ms") for name in names),
                    *(middle(by[name, group], "step_us") for name in names),
                ]
                for group in groups
            ],
        ),
    ]


def _faults(records: list[Record], names: list[str]) -> list[str]:
    lines = ["## What did not pass", ""]
    for name in names:
        mine = [record for record in records if record["engine"] == name]
        lines += [f"### {name}", ""]
        wrong = [[r["id"], r["group"], r["outcome"]] for r in mine if r["outcome"] != "refused"]
        reasons = collections.Counter(as_code(record["error"]) for record in mine if record["outcome"] == "refused")
        lines += grid(["schema", "group", "what it does"], wrong[:_MOST_SHOWN]) if wrong else []
        if len(wrong) > _MOST_SHOWN:
            lines += [f"And {len(wrong) - _MOST_SHOWN} more.", ""]
        refused = [[count, reason] for reason, count in reasons.most_common(_MOST_SHOWN)]
        lines += grid(["schemas", "refused, because"], refused) if refused else []
        if not mine:
            lines += ["None.", ""]
    return lines


_MOST_SHOWN = 25


def _plot(rows: list[Record], path: Path) -> None:
    figure, axes = plt.subplots(1, 2, figsize=(13, 5))
    colours = dict(zip(ENGINES, ("C3", "C1", "C0", "C2"), strict=True))
    for axis, key, title, unit in (
        (axes[0], "first_ms", "schema to first mask", "milliseconds"),
        (axes[1], "step_us", "mask and commit, one sequence", "microseconds"),
    ):
        for row in rows:
            if row["group"] == "all" and len(row[f"{key}_quantiles"]):
                axis.semilogx(
                    row[f"{key}_quantiles"], row["quantiles"], label=row["engine"], color=colours[row["engine"]]
                )
        axis.set(title=title, xlabel=unit, ylabel="percent below")
    save(figure, path)
