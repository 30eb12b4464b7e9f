"""A gate: how maskwright compares in new records, held against the records that are kept.

    python -m benchmarks.gate                   the records in `results/` against those of the last commit
    python -m benchmarks.gate NEW               the records of a folder against those in `results/`
    python -m benchmarks.gate NEW --kept OLD    against those of another folder

Times differ between machines and days, so that none is compared. A ratio is maskwright's time over that of a peer, a
baseline or another way to do the same, both from one record and so from one machine and one run: less is better. The
gate fails, and names each ratio, where one of a new record is larger than the kept one by more than the tolerance:
15 % of a median, 40 % of a tail (p99), because a few steps decide a tail. A ratio that the kept record has and the new
one lacks fails too, unless `--partial` says that it was left out on purpose. Records without a kept one are new, and
are only counted.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

RESULTS = Path(__file__).parent / "results"
OURS = "maskwright"
MEDIAN, TAIL = 0.15, 0.40
"""How much larger a ratio may become: that of medians, that of 99th percentiles."""

Ratios = dict[str, float]


class Worse(NamedTuple):
    """A ratio that is worse than the tolerance allows; `new` is None where it was not measured."""

    name: str
    kept: float
    new: float | None
    tolerance: float

    def __str__(self) -> str:
        """Return the name and the numbers on one line."""
        if self.new is None:
            return f"{self.name}: not measured, {self.kept:.3g} is kept"
        return (
            f"{self.name}: {self.new:.3g}, {self.new / self.kept - 1:+.0%} over the kept {self.kept:.3g} "
            f"({self.tolerance:.0%} is tolerated)"
        )


# ------------------------------------------------------------------------------------------------ ratios of records


def _pairs(rows: list[Any], key: Callable[[Any], Any], who: str, what: str) -> Iterator[tuple[Any, str, float]]:
    """Yield for rows that are alike but for who did it: what is alike, the other one, our value over its value."""
    alike: dict[Any, dict[str, float]] = defaultdict(dict)
    for row in rows:
        if row.get(what):
            alike[key(row)][row[who]] = row[what]
    for place, values in alike.items():
        for other, value in values.items():
            if OURS in values and other.split(",")[0] != OURS:
                yield place, other, values[OURS] / value


def _sid(results: Any) -> Ratios:
    out = {}
    for place, other, ratio in _pairs(results, lambda r: (r.get("count"), r.get("input")), "method", "seconds"):
        out[f"build, {place[0]:,} IDs of {place[1]}, over {other}"] = ratio
    for place, other, ratio in _pairs(results, lambda r: (r.get("count"), r.get("backend")), "method", "us_per_step"):
        out[f"step, {place[1]}, {place[0]:,} IDs, over {other}"] = ratio
    for place, other, ratio in _pairs(results, lambda r: r.get("count"), "method", "ns_per_query"):
        out[f"contains, {place:,} IDs, over {other}"] = ratio
    return out


def _matrix(results: Any) -> Ratios:
    return {f"{r['what']}, {r['count']:,} IDs, {r['method']} over table": r["times_table"] for r in results
            if r["method"] != "table"}  # fmt: skip


def _catalogue(results: Any) -> Ratios:
    """Read a part of the catalogue suite: its rows with a ratio to what is plain, a base or a table."""
    out = {}
    for row in results:
        name = ", ".join(str(row[key]) for key in ("what", "of", "kind", "backend") if key in row)
        for over in ("plain", "base", "table"):
            if f"times {over}" in row:
                out[f"{name}, {row['count']:,} IDs, over {over}"] = row[f"times {over}"]
    return out


def _device(results: Any) -> Ratios:
    rows = [
        dict(zip(("way", "method"), r["method"].split(": "), strict=True), us=r["us_per_step"])
        for r in results["times"]
        if ": " in r["method"]  # steps of text have one method a way
    ]
    return {
        f"step, {way}, over {other}": ratio for way, other, ratio in _pairs(rows, lambda r: r["way"], "method", "us")
    }


def _regex(results: Any) -> Ratios:
    out = {}
    over = defaultdict(list)
    for record in results.get("compile", {}).get("records", ()):
        for name, times in record["over_maskwright"].items():
            over[name].append(1 / times)
    for name, values in over.items():
        if not name.startswith(OURS):
            out[f"compile, median pattern, over {name}"] = statistics.median(values)
    for q in ("p50", "p99"):
        rows = results.get("steps", {}).get("summary", [])
        for (kind, walk), other, ratio in _pairs(rows, lambda r: (r["kind"], r["walk"]), "engine", f"{q}_us"):
            out[f"mask and advance, {kind}, {walk} walk, {q}, over {other}"] = ratio
    for part in ("apply", "apply, one thread"):
        for row in results.get(part, {}).get("times", ()):
            if row["method"] == f"{OURS}, in place":
                out[f"{part}, in place, {row['dtype']}, over llguidance"] = row["over_llguidance"]
    return out


def _json_schema(results: Any) -> Ratios:
    out = {}
    for key, said in (("first_ms", "schema to first mask"), ("step_us", "mask and advance")):
        for q in ("p50", "p99"):
            rows = [
                {"engine": r["engine"], q: r[key][q]} for r in results["summary"] if r["group"] == "all" and key in r
            ]
            for _, other, ratio in _pairs(rows, lambda r: None, "engine", q):
                out[f"{said}, {q}, over {other}"] = ratio
    return out


def _grammar(results: Any) -> Ratios:
    out: Ratios = {}
    for key, said in (("first_ms", "grammar to first mask"), ("again_ms", "the same grammar again")):
        rows = [
            {"engine": r["engine"], "grammar": r["grammar"], "ms": statistics.median(r[key])}
            for r in results["grammars"] if r.get(key)
        ]  # fmt: skip
        over = defaultdict(list)
        for _, other, ratio in _pairs(rows, lambda r: r["grammar"], "engine", "ms"):
            over[other].append(ratio)
        out |= {f"{said}, median grammar, over {other}": statistics.median(values) for other, values in over.items()}
    for q in ("p50", "p99"):
        for (way, walk), other, ratio in _pairs(results["summary"], lambda r: (r["way"], r["walk"]), "engine", q):
            out[f"mask and advance, {way}, {walk}, {q}, over {other}"] = ratio
    return out


def _serving(results: Any) -> Ratios:
    out = {}
    for dtype in ("float32", "bfloat16"):
        for name, parts in results.get("step", {}).get(dtype, {}).items():
            for part, times in parts.items() if name in ("llguidance", "xgrammar") else ():
                if times.get("times_ours"):
                    out[f"step of a batch, {dtype}, {part}, over {name}"] = 1 / times["times_ours"]
    if "server" in results:
        free, held = results["server"]["unconstrained"], results["server"]["constrained"]
        out["server, seconds of a token, over none constrained"] = free["tokens_per_s"] / held["tokens_per_s"]
    return out


def _engines(results: Any) -> Ratios:
    out = {}
    if "rows" in results:
        classes = results["rows"]["rows"]
        for what, kind, q in (("fill", "later", "mean"), ("fill", "later", "p99"), ("accept", "accept", "mean")):
            for name, each in classes.items():
                if name != OURS:
                    out[f"{what} in vLLM's classes, {q}, over {name}"] = classes[OURS][kind][q] / each[kind][q]
        batch = results["rows"]["batch"]
        for name, each in batch.items():
            if name != OURS:
                ratio = batch[OURS]["processor_ms"]["p50"] / each["processor_ms"]["p50"]
                out[f"256 rows on two threads, over {name}"] = ratio
    return out


def _attack(results: Any) -> Ratios:
    found = {(r["constraint"], r["attack"]): r["latency_ms"]["p99"] for r in results if "attack" in r}
    return {
        f"latency under attack, {kind} constraints, p99, over none": value / found[kind, "without"]
        for (kind, when), value in found.items()
        if when == "with"
    }


def _decode(results: Any) -> Ratios:
    out = {}
    for row in results["projections"]:
        name = f"allowed logits, {row['allowed']:,} of {row['vocabulary']:,}, over all"
        out[name] = row["allowed_us"] / row["all_us"]
    for row in results["beams"]:
        name = f"one cache for {row['beams']} beams, prompt of {row['prompt']:,}, over a cache each"
        out[name] = row["tree_s"] / row["copies_s"]
    return out


def _self_draft(results: Any) -> Ratios:
    out = {}
    for data, methods in results["summary"].items():
        base = methods["ordinary"].get("latency_ms")
        for method, row in methods.items():
            if base and method != "ordinary" and row.get("latency_ms"):
                out[f"{data}, {method}, over ordinary search"] = row["latency_ms"][1] / base[1]  # the median of three
    return out


def _item_search(results: Any) -> Ratios:
    return {
        f"one batch, {case['prompt']} tokens of {case['tokens']:,}, over {name}": 1 / row["times"]
        for case in results
        for name, row in case["methods"].items()
        if row["times"] != 1
    }


def _cold(results: Any) -> Ratios:
    ours = _seconds(results["second"]["JSON"])
    return {
        f"a process to its first mask, JSON, over {name}": ours / _seconds(each)
        for name, each in results["others"].items()
    }


def _seconds(stages: Any) -> float:
    """Return the processor seconds from the start of a process to its first mask."""
    return float(sum(stages[stage] for stage in ("numpy", "import", "vocabulary", "first mask")))


READERS: dict[str, Callable[[Any], Ratios]] = {
    "sid-build": _sid, "sid-decode": _sid, "sid-contains": _sid, "sid-matrix": _matrix,
    "catalogue-filters": _catalogue, "catalogue-live": _catalogue, "catalogue-skew": _catalogue,
    "device-cpu": _device, "device-cuda": _device, "regex": _regex, "json_schema": _json_schema, "grammar": _grammar,
    "serving": _serving, "decode": _decode, "self_draft": _self_draft, "cold": _cold, "engines": _engines,
    "attack-latency": _attack, "item_search": _item_search,
}  # fmt: skip
"""How to read the ratios of a record, by its name; records of other names have none."""


# ------------------------------------------------------------------------------------------------------ comparing


def ratios(records: Mapping[str, Any]) -> Ratios:
    """Return the ratios of records, by the record's name and their own."""
    return {
        f"{record}: {name}": value
        for record in sorted(records.keys() & READERS.keys())
        for name, value in READERS[record](records[record]).items()
    }


def worse(
    kept: Ratios, new: Ratios, *, median: float = MEDIAN, tail: float = TAIL, partial: bool = False
) -> list[Worse]:
    """Return which ratios are worse than kept by more than the tolerance; without partial, also those that lack."""
    found = []
    for name, value in kept.items():
        tolerance = tail if ", p99" in name else median
        if name not in new:
            if not partial:
                found.append(Worse(name, value, None, tolerance))
        elif new[name] > value * (1 + tolerance):
            found.append(Worse(name, value, new[name], tolerance))
    return found


def in_folder(folder: Path) -> dict[str, Any]:
    """Return the results of the records of a folder, by name. Raises SystemExit where there are none."""
    found = {path.stem: json.loads(path.read_text())["results"] for path in sorted(folder.glob("*.json"))}
    if not found.keys() & READERS.keys():
        raise SystemExit(f"{folder} has no records: give a folder with some of {', '.join(READERS)} (.json)")
    return found


def committed(commit: str = "HEAD") -> dict[str, Any]:
    """Return the results of the records that a commit keeps, by name."""

    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=RESULTS, check=True, capture_output=True, text=True).stdout

    names = [Path(name).stem for name in git("ls-tree", "--name-only", commit, "./").split() if name.endswith(".json")]
    return {name: json.loads(git("show", f"{commit}:./{name}.json"))["results"] for name in names}


def main(arguments: list[str] | None = None) -> int:
    """Compare, print what is worse, and return 1 if anything is."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gate", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("new", nargs="?", type=Path, metavar="NEW", help="a folder of new records")
    parser.add_argument("--kept", type=Path, metavar="OLD", help="a folder of records to hold them against")
    parser.add_argument("--median", type=float, default=MEDIAN, help="how much larger a ratio of medians may be")
    parser.add_argument("--tail", type=float, default=TAIL, help="how much larger a ratio of 99th percentiles may be")
    parser.add_argument("--partial", action="store_true", help="ratios that the new records lack are left out")
    options = parser.parse_args(arguments)
    new_records = in_folder(options.new or RESULTS)
    last = committed() if options.new is None else in_folder(RESULTS)
    kept_records = in_folder(options.kept) if options.kept else last
    new, kept = ratios(new_records), ratios({name: kept_records[name] for name in kept_records.keys() & new_records})
    found = worse(kept, new, median=options.median, tail=options.tail, partial=options.partial)
    for each in found:
        print(each)
    first = len(new.keys() - kept.keys())
    print(f"{len(kept)} ratios compared, {len(found)} worse" + (f", {first} new" if first else ""))
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
