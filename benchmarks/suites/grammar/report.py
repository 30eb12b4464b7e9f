"""The report: claims, tables and plot, from what was measured."""

from __future__ import annotations

import collections
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from ...harness import Bar, as_code, grid, save, write_report
from .engines import ENGINES, OURS, REFERENCE
from .measuring import WAYS, Record

BARS = {"first": 3.0, "p50_us": 5.0, "p99_us": 20.0, "read_p50_us": 8.0}


STYLES = {"first": ":", "again": "-", "whole": "--", "whole, again": "-."}  # walks: states' first use, their second


def summary(records: list[Record], names: list[str]) -> list[Record]:
    """Return for each engine, way down and walk how long steps took; a grammar's way is the one maskwright takes."""
    ways = {record["grammar"]: record["way"] for record in records if "way" in record}
    out = []
    quantiles = [*range(1, 100), 99.5, 99.9, 100]
    for name in names:
        for kind in ("all", "table", *WAYS):
            within = {"all": WAYS, "table": WAYS[:2]}.get(kind, (kind,))
            for which in STYLES:
                steps = [
                    ns / 1e3
                    for record in records
                    if record["engine"] == name and ways.get(record["grammar"], WAYS[2]) in within
                    for ns in record["steps_ns"].get(which, ())
                ]
                if steps:
                    row: Record = {"engine": name, "way": kind, "walk": which, "steps": len(steps)}
                    row |= {f"p{q}": float(np.percentile(steps, q)) for q in (50, 90, 99, 99.9, 100)}
                    if kind == "all":  # for the plot
                        row |= {"quantiles": quantiles, "us": np.percentile(steps, quantiles).round(3).tolist()}
                    out.append(row)
    return out


def rows(records: list[Record]) -> list[Record]:
    """Return the records with quantiles in place of their steps."""
    out = []
    for record in records:
        row = {key: value for key, value in record.items() if key != "steps_ns"}
        for which, values in record["steps_ns"].items():
            if values:
                found = np.percentile(values, [50, 99, 100]) / 1e3
                row[f"{which}_us"] = dict(zip(("p50", "p99", "worst"), found.round(3).tolist(), strict=True))
        out.append(row)
    return out


def bars(results: Record) -> list[Bar]:
    """Return (what, bar, measured, held) for each claim; `held` is None where something was not measured."""
    by = {(row["engine"], row["grammar"]): row for row in results["grammars"]}
    steps = {(row["engine"], row["way"], row["walk"]): row for row in results["summary"]}
    mine = [row for (name, _), row in by.items() if name == OURS]
    if not mine:
        return []
    texts, wrong = sum(row["texts"] for row in mine), sum(row["texts"] for row in mine if "refused" in row)
    for row in mine:  # a text is wrong as it is read, on the whole table, or both
        ways = (row["wrong"], row["narrow"]), (row.get("whole_wrong", ()), row.get("whole_narrow", 0))
        wrong += max(len(others) + narrow for others, narrow in ways)
    peers_right = [f"{name} {_right(by, name)}" for name in results["versions"] if name != OURS]
    said = f"{texts - wrong:,} of {texts:,}" + (f"; {', '.join(peers_right)}" if peers_right else "")
    out: list[Bar] = [("right answers", "all texts", said, not wrong)]
    for key, what in (("first_ms", "text to first mask, terminals new"), ("again_ms", "the same grammar again")):
        ours, theirs = (_median(by, name, key) for name in (OURS, REFERENCE))
        said = f"{ours:.2f} ms" + (f": {REFERENCE} x {ours / theirs:.2f}" if theirs else "") if ours else ""
        held = ours <= BARS["first"] * theirs if ours and theirs else None
        out.append((f"{what}, median", f"{REFERENCE} x {BARS['first']:g}", said, held))
    all_have_tables = all("whole_ms" in row for row in mine if row.get("way") in WAYS[:2])
    for on, walked in (("tables", ("whole", "whole, again")), ("the same as they are read", ("first", "again"))):
        walks = [row for walk in walked if (row := steps.get((OURS, "table", walk)))]
        for quantile in ("p50", "p99"):
            said = "; ".join(f"{row['walk']} {row[quantile]:.2f}" for row in walks)
            bar = BARS[f"{quantile}_us"] if on == "tables" else None
            held = all_have_tables and all(row[quantile] <= bar for row in walks) if bar and walks else None
            what = f"mask and advance, regular and delimited, {on}, {quantile}"
            out.append((what, f"{bar:g} us" if bar else "", f"{said} us", held))
    row = steps.get((OURS, WAYS[2], "again"))
    said = f"{row['p50']:.2f} us" if row else ""
    held = row["p50"] <= BARS["read_p50_us"] if row else None
    out.append(("mask and advance, as it is read, second use, p50", f"{BARS['read_p50_us']:g} us", said, held))
    return out


def _right(by: dict[tuple[str, str], Record], engine: str) -> str:
    mine = [row for (name, _), row in by.items() if name == engine]
    read = sum(row.get("read", 0) for row in mine)
    unread = sum(row["texts"] for row in mine) - read
    right = read - sum(len(row["wrong"]) for row in mine)
    return f"{right:,} of {read:,}" + (f", {unread:,} not read" if unread else "")


def _median(by: dict[tuple[str, str], Record], engine: str, key: str) -> float | None:
    values = [float(np.median(row[key])) for (name, _), row in by.items() if name == engine and row[key]]
    return float(np.median(values)) if values else None


def report(results: Record, folder: Path) -> None:
    """Write grammar.md and grammar.png, and print the bars."""
    about = (
        "Made by `python -m benchmarks.suites.grammar` from `grammar.json` beside it. Tekken, 131,072 tokens; "
        f"{len({row['grammar'] for row in results['grammars']})} grammars, in `benchmarks/suites/grammar/grammars/`."
    )
    lines = [line for part in (_grammars, _steps, _processes, _wrong) for line in part(results)]
    write_report(folder / "grammar.md", "Grammars", about, results, bars(results), lines)
    _plot(results, folder / "grammar.png")


def _grammars(results: Record) -> list[str]:
    names = list(results["versions"])
    by = {(row["engine"], row["grammar"]): row for row in results["grammars"]}
    grammars = sorted({row["grammar"] for row in results["grammars"]})

    def answers(row: Record) -> str:
        if "refused" in row:
            return "refused"
        right = f"{row['read'] - len(row['wrong'])}"
        return right + (f" of {row['read']} read" if row["read"] < row["texts"] else "")

    def middle(row: Record, key: str) -> float | None:
        return float(np.median(row[key])) if row[key] else None

    def step(row: Record, which: str) -> float | None:
        return float(row[f"{which}_us"]["p50"]) if f"{which}_us" in row else None

    def size(row: Record) -> str:
        return f"{row['bytes'] / 1024:,.0f}" if row.get("bytes") else ""

    of = {grammar: [by[name, grammar] for name in names] for grammar in grammars}
    ways = {grammar: by.get((OURS, grammar), {}).get("way") for grammar in grammars}
    return [
        "## Grammar by grammar",
        "",
        "Texts answered rightly; milliseconds from a grammar's text to its first mask, in a warm process, terminals "
        "new to the engine (median); microseconds of mask and commit, second use of the states (median); KiB that it "
        "takes after all texts.",
        "",
        *grid(
            ["grammar", "way down", "texts"]
            + [f"{what}, {name}" for what in ("right", "first", "step", "KiB") for name in names],
            [
                [grammar, ways[grammar], of[grammar][0]["texts"], *map(answers, of[grammar])]
                + [middle(row, "first_ms") for row in of[grammar]]
                + [step(row, "again") for row in of[grammar]]
                + [size(row) for row in of[grammar]]
                for grammar in grammars
            ],
        ),
        "A whole table of maskwright's, as a device needs it:",
        "",
        *grid(
            ["grammar", "ms", "KiB", "or why there is none"],
            [
                [grammar, row.get("whole_ms"), f"{row['whole_bytes'] / 1024:,.0f}" if "whole_bytes" in row else "",
                 row.get("whole", "")]
                for grammar in grammars if (row := by.get((OURS, grammar)))
            ],
        ),
    ]  # fmt: skip


def _steps(results: Record) -> list[str]:
    kinds = {"all": "all", "table": "regular and delimited"}
    return [
        "## Steps",
        "",
        "Microseconds of one mask and one commit over all texts, by the way that maskwright takes, at the first and at "
        "the second use of a state, and on a whole table.",
        "",
        *grid(
            ["engine", "way down", "use", "steps", "p50", "p90", "p99", "p99.9", "worst"],
            [
                [row["engine"], kinds.get(row["way"], row["way"]), row["walk"], row["steps"]]
                + [row[f"p{q}"] for q in (50, 90, 99, 99.9, 100)]
                for row in results["summary"]
            ],
        ),
    ]


def _processes(results: Record) -> list[str]:
    if not results["process"]:
        return []
    return [
        "## A new process",
        "",
        "Seconds to a vocabulary; milliseconds to the first mask of a first grammar (JSON), of a second (arithmetic).",
        "",
        *grid(
            ["engine", "vocabulary, s", "first, ms", "second, ms"],
            [
                [name, row["setup_s"], 1e3 * row["first_s"], 1e3 * row["second_s"]]
                for name, row in results["process"].items()
            ],
        ),
    ]


def _wrong(results: Record) -> list[str]:
    lines = ["## What is wrong", "", "One text for each grammar.", ""]
    for name in results["versions"]:
        mine = [row for row in results["grammars"] if row["engine"] == name]
        table = [
            [row["grammar"], "refuses the grammar", "", as_code(row["refused"])] for row in mine if "refused" in row
        ]
        for row, wrong in [(row, [*row["wrong"], *row.get("whole_wrong", ())]) for row in mine]:
            for said, some in _kinds(wrong).items():
                shortest = min((one["text"] for one in some), key=len)
                table.append([row["grammar"], said, len(some), as_code(shortest) if shortest else "the empty text"])
        narrow = sum(row["narrow"] for row in mine)
        lines += [f"### {name}", ""]
        lines += grid(["grammar", "what it does", "texts", "one of them"], table) if table else ["Nothing.", ""]
        if narrow:
            lines += [f"Of {narrow} texts that it takes its masks forbid a token on the way.", ""]
    return lines


def _kinds(wrong: list[Record]) -> dict[str, list[Record]]:
    """Return texts that were judged wrongly by what was done to them."""
    found = collections.defaultdict(list)
    for one in wrong:
        found[one["said"].split("\n", 1)[0][:80]].append(one)
    return found


def _plot(results: Record, path: Path) -> None:
    figure, axes = plt.subplots(1, 2, figsize=(13, 5))
    colours = dict(zip(ENGINES, ("C3", "C0", "C2"), strict=True))
    grammars = sorted({row["grammar"] for row in results["grammars"]})
    for name in results["versions"]:
        mine = {row["grammar"]: row for row in results["grammars"] if row["engine"] == name}
        points = [(float(np.median(mine[g]["first_ms"])), i) for i, g in enumerate(grammars) if mine[g]["first_ms"]]
        axes[0].semilogx(*zip(*points, strict=True), "o", label=name, color=colours[name]) if points else None
        for row in results["summary"]:
            if (row["engine"], row["way"]) == (name, "all"):
                style, label = STYLES[row["walk"]], f"{name}, {row['walk']}"
                axes[1].semilogx(row["us"], row["quantiles"], style, label=label, color=colours[name])
    axes[0].set(title="grammar to first mask", xlabel="milliseconds", yticks=range(len(grammars)), yticklabels=grammars)
    axes[1].set(title="mask and commit, one sequence", xlabel="microseconds", ylabel="percent below")
    save(figure, path)
