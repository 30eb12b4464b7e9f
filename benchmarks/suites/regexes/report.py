"""The report: claims, tables and plot, from what all parts measured."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from ...harness import Bar, as_cell, as_code, grid, save, write_report
from .engines import ENGINES
from .patterns import PATTERNS
from .plan import BATCH, OURS, REFERENCE, Record

BARS = {"compile_median": 40.0, "compile_worst": 4.0, "step_p50_us": 4.0, "step_p99_us": 12.0, "import_s": 1.0}


def right(record: Record, groups: dict[str, str]) -> bool:
    """Return whether an engine did what is right: exact where regular, refused where not."""
    irregular = groups[record["pattern"]] == "irregular"
    return record["outcome"] == "exact" or (irregular and record["outcome"] == "refused")


def bars(results: Record) -> list[Bar]:
    """Return (what, bar, measured, held) for each claim; `held` is None where maskwright was not measured."""
    groups = {pattern.name: pattern.group for pattern in PATTERNS}
    rows: list[Bar] = []

    def row(what: str, bar: str, measured: str, held: bool | None) -> None:
        rows.append((what, bar, measured, held))

    if "exact" in results:
        mine = [r for r in results["exact"]["records"] if r["engine"] == OURS and groups[r["pattern"]] != "irregular"]
        count = sum(right(r, groups) for r in mine)
        row(
            "patterns accepted exactly",
            "all that are regular",
            f"{count} of {len(mine)}",
            count == len(mine) if mine else None,
        )
    if "compile" in results:
        over = [
            (r["over_maskwright"][REFERENCE], r["pattern"])
            for r in results["compile"]["records"]
            if REFERENCE in r["over_maskwright"]
        ]
        median = float(np.median([ratio for ratio, _ in over])) if over else None
        worst = min(over, default=None)
        row(
            "compile, median pattern",
            f"outlines-core / {BARS['compile_median']:.0f}",
            f"outlines-core / {median:,.1f}" if median else "",
            median >= BARS["compile_median"] if median else None,
        )
        row(
            "compile, slowest beside outlines-core",
            f"outlines-core / {BARS['compile_worst']:.0f}",
            f"outlines-core / {worst[0]:,.1f} ({worst[1]})" if worst else "",
            worst[0] >= BARS["compile_worst"] if worst else None,
        )
    if "steps" in results:
        for walk, said in (("again", "later walks"), ("first", "first walk over a new table")):
            mine = [
                r for r in results["steps"]["summary"] if (r["engine"], r["kind"], r["walk"]) == (OURS, "usual", walk)
            ]
            for p in (50, 99):
                bar, value = BARS[f"step_p{p}_us"], mine[0][f"p{p}_us"] if mine else None
                row(
                    f"mask and advance, one sequence, {said}, p{p}",
                    f"{bar:.0f} us",
                    f"{value:,.2f} us" if value else "",
                    value <= bar if value else None,
                )
    for part in ("apply", "apply, one thread"):
        for r in results.get(part, {}).get("times", []):
            if r["method"] == f"{OURS}, in place":
                over_llguidance = r["over_llguidance"]
                row(
                    f"mask_logits_, B = {BATCH}, {r['dtype']}, {_threads(results[part]['threads'])}",
                    "llguidance x 1",
                    f"{r['us']:,.0f} us: llguidance x {over_llguidance:.2f}",
                    over_llguidance <= 1,
                )
    for r in results.get("first", {}).get("records", []):
        if r["engine"] == OURS:
            row(
                "import, vocabulary and first compile",
                f"{BARS['import_s']:.0f} s",
                f"{r['all_s']:.2f} s, at worst {r['all_worst_s']:.2f} s",
                r["all_worst_s"] < BARS["import_s"],
            )
    return rows


def report(results: Record, folder: Path) -> None:
    """Write regex.md and regex.png, and print the bars."""
    parts = (_exactness, _compile_table, _steps_table, _apply_table, _first_table, _wrong)
    about = "Made by `python -m benchmarks.suites.regexes` from `regex.json` beside it. Tekken, 131,072 tokens."
    lines = [line for part in parts for line in part(results)]
    write_report(folder / "regex.md", "Regular expressions", about, results, bars(results), lines)
    _plot(results, folder / "regex.png")


def _threads(count: int) -> str:
    return "1 thread" if count == 1 else f"{count} threads"


def _engines(results: Record) -> list[str]:
    return [name for name in ENGINES if name in results["versions"]]


def _exactness(results: Record) -> list[str]:
    if "exact" not in results:
        return []
    groups = {pattern.name: pattern.group for pattern in PATTERNS}
    rows = []
    for name in _engines(results):
        mine = [r for r in results["exact"]["records"] if r["engine"] == name]
        for kind, within in (("usual", lambda g: g not in ("hard", "irregular")), ("hard", "hard".__eq__)):
            some = [r for r in mine if within(groups[r["pattern"]])]
            if not some:
                continue
            count = Counter(r["outcome"] for r in some)
            accepts = sum(bool(r.get("wrong_accepts")) for r in some)
            rejects = sum(bool(r.get("wrong_rejects")) for r in some)
            other = sum(count.values()) - sum(count[k] for k in ("exact", "wrong", "refused"))
            narrow = sum(bool(r.get("narrow")) for r in some)
            rows.append([name, kind, len(some), count["exact"], accepts, rejects, count["refused"], other, narrow])
        some = [r for r in mine if groups[r["pattern"]] == "irregular"]
        if some:
            rows.append([name, "irregular", len(some), *[""] * 3, sum(r["outcome"] == "refused" for r in some)])
            rows[-1] += ["", ""]
    return [
        "## Exactness",
        "",
        "Each pattern's own texts and 20 mutations, in the tokenizer's tokens and byte by byte, are judged by Python's "
        "`re` (by `regex` where the pattern has `\\p`). An engine accepts a text if it takes every token and its mask "
        "then allows EOS. `\\d`, `\\w`, `\\s` and `\\b` mean Unicode classes, as in Python: to read them as ASCII, "
        "or by other tables, is wrong by this measure. Irregular patterns are rightly refused. Narrow are masks that "
        "forbade a token of an accepted text, as where an engine allows only its tokenizer's own way to write what "
        "must follow.",
        "",
        *grid(
            [
                *("engine", "patterns", "number", "exact", "wrongly accepts", "wrongly rejects", "refused"),
                *("timeout or died", "narrow"),
            ],
            rows,
        ),
    ]


def _compile_table(results: Record) -> list[str]:
    if "compile" not in results:
        return []
    names = _engines(results)
    outcome = {(r["engine"], r["pattern"]): r["outcome"] for r in results.get("exact", {}).get("records", [])}
    rows = []
    for record in results["compile"]["records"]:
        row = [record["pattern"], record["group"]]
        for name in names:
            what = outcome.get((name, record["pattern"]), "")
            seconds = record["seconds"].get(name)
            row.append(f"{as_cell(1e3 * seconds)}{'' if what == 'exact' else ' ' + what}" if seconds else what)
        ratio = record["over_maskwright"].get(REFERENCE)
        rows.append([*row, ratio])
    return [
        "## Compiling",
        "",
        "Milliseconds from the pattern to the first mask in a warm process, median of the rounds; in words, what an "
        "engine that is not exact did. The last column is outlines-core's time over maskwright's in the same round.",
        "",
        *grid(["pattern", "group", *names, "ratio"], rows),
    ]


def _steps_table(results: Record) -> list[str]:
    if "steps" not in results:
        return []
    keys = ("p50_us", "p90_us", "p99_us", "p99.9_us")
    rows = [
        [r["engine"], r["kind"], r["walk"], r["steps"], *(r[key] for key in keys)]
        for r in sorted(
            results["steps"]["summary"], key=lambda r: (r["kind"] != "usual", r["kind"], r["walk"], r["p50_us"])
        )
    ]
    return [
        "## Mask and advance on the host",
        "",
        "Microseconds of one mask and one advance along the texts that match. `first` is the first walk over a newly "
        "compiled pattern, `again` the walks after it. Where an engine wrongly rejects, its walk ends.",
        "",
        *grid(["engine", "patterns", "walk", "steps", "p50", "p90", "p99", "p99.9"], rows),
    ]


def _apply_table(results: Record) -> list[str]:
    lines: list[str] = []
    for part in ("apply", "apply, one thread"):
        if part not in results:
            continue
        record = results[part]
        if not lines:
            lines = [
                "## Masking logits",
                "",
                f"Logits ({BATCH}, 131,072) on the CPU; {100 * record['allowed_share']:.1f} % of all tokens are "
                "allowed. maskwright starts from states, the peers from masks that are already made. Bits in which "
                "each engine's masks differ from those applied: "
                f"{', '.join(f'{name} {count}' for name, count in record['bits_that_differ'].items())}.",
                "",
            ]
        rows = [[r["dtype"], r["method"], r["us"], r["q1"], r["q3"], r["over_llguidance"]] for r in record["times"]]
        lines += [f"{_threads(record['threads'])}:", ""]
        lines += grid(["type", "method", "us", "q1", "q3", "over llguidance, in place"], rows)
    return lines


def _first_table(results: Record) -> list[str]:
    if "first" not in results:
        return []
    keys = ("import_s", "vocabulary_s", "compile_s", "import_and_compile_s", "import_and_compile_worst_s")
    rows = [[r["engine"], *(r[k] for k in (*keys, "all_s", "all_worst_s"))] for r in results["first"]["records"]]
    headings = ["engine", "import", "vocabulary", "compile", "import + compile", "worst", "all three", "worst"]
    return ["## A new process", "", "Seconds; caches are warm.", "", *grid(headings, rows)]


def _wrong(results: Record) -> list[str]:
    if "exact" not in results:
        return []
    groups = {pattern.name: pattern.group for pattern in PATTERNS}
    lines = ["## Refusals and wrong answers", ""]
    for name in _engines(results):
        rows = []
        for r in results["exact"]["records"]:
            if r["engine"] != name or right(r, groups):
                continue
            if r["outcome"] == "wrong":
                what = []
                for kind in ("wrong_accepts", "wrong_rejects"):
                    if r[kind]:
                        example = min(r[kind], key=lambda x: len(x["text"]))
                        number = f"{len(r[kind])} of {r['texts']}"
                        verb = kind.replace("_", "ly ").removesuffix("s")
                        what.append(f"{verb}s {number}, such as {as_code(example['text'])} by {example['by']}")
                if r["faults"]:
                    what.append(f"gives up on {len(r['faults'])}: {as_code(r['faults'][0]['error'])}")
                rows.append([r["pattern"], groups[r["pattern"]], "; ".join(what)])
            elif r["outcome"] == "refused":
                rows.append([r["pattern"], groups[r["pattern"]], f"refuses: {as_code(_reason(r['error']), 140)}"])
            else:
                limit = f" ({r['limit_s']:.0f} s)" if "timeout" in r["outcome"] else ""
                rows.append([r["pattern"], groups[r["pattern"]], r["outcome"] + limit])
        lines += [f"### {name}", ""]
        lines += grid(["pattern", "group", "what it does"], rows) if rows else ["None.", ""]
    return lines


def _reason(error: str) -> str:
    """Return the line of a message that says why, where the others quote the pattern."""
    error = re.sub(r"\[[\d:]+\] \S+: ", "", error)  # a time of day, and where in the engine's source
    lines = [line.strip() for line in error.splitlines() if line.strip()]
    return next((line for line in lines if line.startswith("error:")), lines[0])


def _plot(results: Record, path: Path) -> None:
    figure, axes = plt.subplots(1, 2, figsize=(13, 5))
    colours = dict(zip(ENGINES, ("C3", "C1", "C0", "C2", "C4"), strict=True))
    if "compile" in results:
        records = results["compile"]["records"]
        by = next((n for n in (OURS, REFERENCE) if any(n in r["seconds"] for r in records)), "")
        records = sorted(records, key=lambda r: r["seconds"].get(by, np.inf))
        for name in _engines(results):
            points = [(i, 1e3 * r["seconds"][name]) for i, r in enumerate(records) if name in r["seconds"]]
            axes[0].semilogy(*zip(*points, strict=True), ".", label=name, color=colours[name])
        axes[0].set(title="pattern to first mask", xlabel=f"patterns, by {by}'s time", ylabel="milliseconds")
    if "steps" in results:
        for r in results["steps"]["summary"]:
            if r["kind"] == "usual":
                style = "-" if r["walk"] == "again" else ":"
                label = f"{r['engine']}, {'later walks' if r['walk'] == 'again' else 'first walk'}"
                axes[1].semilogx(r["quantiles_us"], r["quantiles"], style, label=label, color=colours[r["engine"]])
        axes[1].set(title="mask and advance, one sequence", xlabel="microseconds", ylabel="percent of steps below")
    save(figure, path)
