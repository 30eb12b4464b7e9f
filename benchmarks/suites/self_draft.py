"""A self-drafting head against ordinary constrained beam search, on generative retrieval (NEZHA's tables 3 and 4).

Claims checked here:

- recall of a head with verification is at most 3 % (relative) below that of ordinary beam search;
- it takes one pass of the transformer where ordinary beam search takes one a level, the first of them over the history;
- what the transition, the placeholders and the verification bring is measured by leaving them out.

Both are trained from scratch for as many steps, over the same batches, by seed: the transformer of ordinary search by
its own loss, the other one by the head's alone. All that is searched is the same: at every step by a table, at the end
by looking drafts up in a sorted matrix. Time depends on the sizes of models and not on what their weights are, so that
it is measured on untrained ones. What is on record in the results, for the same settings, is not measured again.

    python -m benchmarks.suites.self_draft              the demo's made-up catalogue, a quarter of an hour
    python -m benchmarks.suites.self_draft --data DIR   and real semantic IDs, as for `make demo DATA=DIR`
    python -m benchmarks.suites.self_draft --time       time alone, once more, half a minute
    python -m benchmarks.suites.self_draft --steps 1000 --seeds 1 --ablations 0 --suffix=-longer
    python -m benchmarks.suites.self_draft --quick      to see that it runs
"""

from __future__ import annotations

import argparse
import json
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import torch
from rich.console import Console

import maskwright as mw
from examples.demo import DemoConfig
from examples.demo.amazon import amazon_dataset
from examples.demo.dataset import Dataset, TestRows
from examples.demo.evaluation import allowed_set
from examples.demo.model import START, Cache, Step, Transformer, _attend, blocks_of, tokens_of
from examples.demo.synthetic import synthetic_dataset
from examples.demo.training import train, train_drafting
from maskwright.runtime import torch_ops
from maskwright.runtime.decode import Beams, beam_search
from maskwright.runtime.integrations.self_draft import DraftHead, self_draft_search

from ..harness import RESULTS, machine, spread, time_interleaved, write_json

matplotlib.use("Agg")

BAR = 0.03  # by how much of its recall drafting may fall behind
CUTOFFS = (1, 5, 10)
ORDINARY, STEP, END, NONE = "ordinary", "verified at every step", "verified at the end", "not verified"
ALONE, BY_TABLE, BY_MATRIX = "the pass of drafting", "look-up in the table", "look-up in the matrix"
MORE = "verified at the end, 4 times the drafts"
ABLATIONS: dict[str, tuple[dict[str, Any], str]] = {
    "without transition": ({"transition": "none"}, STEP),
    "without transition, verified at the end": ({"transition": "none"}, END),
    "transition by addition": ({"transition": "add"}, STEP),
    "without placeholders": ({"placeholders": False}, STEP),
}
HEADLINE = (ORDINARY, STEP, END, MORE, NONE)
Search = Callable[[TestRows], Beams]
Record = dict[str, Any]
console = Console(stderr=True)


@dataclass(frozen=True)
class Plan:
    """What is trained and searched."""

    config: DemoConfig
    rows: int  # test rows at most
    rounds: int  # of timing


# ------------------------------------------------------------------------------------------------ searches


class Passes:
    """Counts how often a transformer is run: each run, of whatever kind, projects the first layer once."""

    def __init__(self, network: Transformer) -> None:
        self.count = 0
        layer: Any = network.layers[0]
        inner = layer.project

        def project(*args: Any) -> Any:
            self.count += 1
            return inner(*args)

        layer.project = project


class Valid(NamedTuple):
    """The IDs that there are, on the device."""

    table: Any
    matrix: Any


def valid_of(data: Dataset) -> Valid:
    """Return the IDs of a catalogue as a table and as a sorted matrix."""
    catalogue = data.catalogue
    size = catalogue.codes + START + 1
    table = allowed_set(catalogue, np.arange(len(catalogue.sids)), size)
    return Valid(torch_ops.to_device(table), torch_ops.to_device(mw.sort_sids(tokens_of(catalogue.sids), size)))


def asking(network: Transformer, blocks: torch.Tensor, counts: torch.Tensor, beams: int) -> tuple[Step, Cache]:
    """Return what `Transformer.decoder` does, with START read along with the histories: L passes for L levels."""
    batch, _, size = blocks.shape
    rows, written = torch.arange(batch), counts * size  # START is right behind each history
    x = network.embedding[torch.arange(size), blocks].flatten(1, 2)
    x = torch.cat((x, torch.zeros_like(x[:, :1])), dim=1)
    x[rows, written] = network.embedding[0, START]
    x, past = network._run(x, torch.arange(x.shape[1]), None)
    first = network._logits(network.norm(x[rows, written]) @ network.embedding[1].T)
    padding = torch.arange(x.shape[1]) > written[:, None]
    start = written.repeat_interleave(beams)[:, None]

    def step(tokens: torch.Tensor, cache: Cache, t: int) -> tuple[torch.Tensor, Cache]:
        if t == 0:
            return first.repeat_interleave(beams, dim=0), cache
        x = network.embedding[t][tokens][:, None]
        grown = []
        for module, read, (key, value) in zip(network.layers, past, cache, strict=True):
            layer: Any = module
            query, new_key, new_value = layer.project(x, start + t)
            own = torch.cat((key, new_key), dim=2), torch.cat((value, new_value), dim=2)
            x = layer.finish(x, _attend(query, read, own, padding))
            grown.append(own)
        return network._logits(network.norm(x[:, 0]) @ network.embedding[t + 1].T), tuple(grown)

    heads = network.config.heads
    empty = torch.zeros(batch * beams, heads, 0, network.config.width // heads)
    return step, tuple((empty, empty) for _ in network.layers)


def ordinary(network: Transformer, data: Dataset, valid: Valid, plan: Plan) -> Search:
    """Return constrained beam search over the transformer itself."""
    beams = plan.config.beams

    @torch.no_grad()
    def search(rows: TestRows) -> Beams:
        blocks, counts = blocks_of(rows.histories, data.catalogue.sids, network.config.history)
        step, cache = asking(network, blocks, counts, beams)
        options: dict[str, Any] = {"max_tokens": data.catalogue.length, "start_token": START}
        return beam_search(step, cache, valid.table, ops=torch_ops, batch=len(rows), beams=beams, **options)

    return search


def drafting(network: Transformer, head: DraftHead, data: Dataset, valid: Valid, plan: Plan, kind: str) -> Search:
    """Return a search over the head with one kind of verification."""
    beams = plan.config.beams
    kinds: dict[str, dict[str, Any]] = {
        STEP: {"dev": valid.table, "verify": "step"},
        END: {"dev": valid.matrix, "verify": "end"},
        MORE: {"dev": valid.matrix, "verify": "end", "drafts": 4 * beams},
        NONE: {"dev": None, "verify": "none"},
    }
    options = kinds[kind]

    def search(rows: TestRows) -> Beams:
        blocks, counts = blocks_of(rows.histories, data.catalogue.sids, network.config.history)
        return self_draft_search(head, network.prefill(blocks, counts), beams=beams, **options)

    return search


# ------------------------------------------------------------------------------------------------ measuring


def measure(search: Search, data: Dataset, rows: TestRows, plan: Plan, is_member: Any) -> Record:
    """Return recalls, and the share of beams that hold an ID that does not exist."""
    batch = plan.config.batch
    hits, invalid, returned = [], 0, 0
    for begin in range(0, len(rows), batch):
        part = rows.take(np.arange(begin, min(begin + batch, len(rows))))
        found = search(part)
        targets = torch.from_numpy(tokens_of(data.catalogue.sids[part.targets]))
        hits.append((found.valid & (found.tokens == targets[:, None]).all(dim=-1)).numpy())
        held = found.tokens[found.valid]
        returned += len(held)
        invalid += len(held) - int(is_member(held).sum())
    hit = np.concatenate(hits)
    return {
        **{f"recall@{k}": float(hit[:, :k].any(axis=1).mean()) for k in CUTOFFS},
        "invalid": invalid / max(1, returned),
        "returned": returned / hit.size,
    }


def dataset_of(source: Path | None, seed: int, plan: Plan) -> tuple[Dataset, TestRows]:
    """Return a data set and the rows of it that are searched."""
    data = synthetic_dataset(plan.config.synthetic, seed) if source is None else amazon_dataset(source)
    return data, data.test.take(np.sort(np.random.default_rng(seed).permutation(len(data.test))[: plan.rows]))


def run(source: Path | None, seed: int, kinds: Sequence[str], plan: Plan, records: Records) -> None:
    """Train and measure what is named in `kinds`, of HEADLINE and ABLATIONS, and is not on record."""
    data, rows = dataset_of(source, seed, plan)
    kinds = [kind for kind in kinds if not records.has(data.name, seed, kind)]
    if not kinds:
        return
    valid = valid_of(data)
    about = {"data": data.name, "levels": data.catalogue.length, "seed": seed, "rows": len(rows)}
    trained: dict[str, tuple[Transformer, DraftHead, float]] = {}  # by what is left out

    def measured(search: Search, method: str, seconds: float) -> None:
        found = measure(search, data, rows, plan, lambda tokens: torch_ops.contains(valid.table, tokens))
        records.add({**about, "method": method, "training_seconds": seconds, **found})

    for kind in kinds:
        begin = time.perf_counter()
        arguments = data.catalogue, data.train, plan.config.model, plan.config.training, seed
        if kind == ORDINARY:
            network = train(*arguments)
            measured(ordinary(network, data, valid, plan), kind, time.perf_counter() - begin)
            continue
        options, verification = ABLATIONS.get(kind, ({}, kind))
        if str(options) not in trained:
            trained[str(options)] = *train_drafting(*arguments, **options), time.perf_counter() - begin
        network, head, seconds = trained[str(options)]
        measured(drafting(network, head, data, valid, plan, verification), kind, seconds)


def clock(source: Path | None, plan: Plan, records: Records, again: bool = False) -> None:
    """Time a batch from histories to IDs, all searches in turn, and count passes, unless that is on record.

    again: also if it is, in its place.

    The models are untrained: no shape and no branch of what is timed depends on a weight.
    """
    data, rows = dataset_of(source, 0, plan)
    if records.timed(data.name) and not again:
        return
    valid, part = valid_of(data), rows.take(np.arange(min(plan.config.batch, len(rows))))
    arguments = data.catalogue, data.train, plan.config.model, replace(plan.config.training, steps=0), 0
    network = train(*arguments)
    searches, passes = {ORDINARY: ordinary(network, data, valid, plan)}, {ORDINARY: Passes(network)}
    network, head = train_drafting(*arguments)
    blocks, counts = blocks_of(part.histories, data.catalogue.sids, network.config.history)
    for kind in HEADLINE[1:]:
        searches[kind] = drafting(network, head, data, valid, plan, kind)
    drafts = searches[NONE](part).tokens.flatten(0, 1)
    passes |= dict.fromkeys(HEADLINE[1:], Passes(network))
    for kind, (options, verification) in ABLATIONS.items():
        ablated = train_drafting(*arguments, **options)
        searches[kind], passes[kind] = drafting(*ablated, data, valid, plan, verification), Passes(ablated[0])
    taken = {}
    for kind, search in searches.items():
        before = passes[kind].count
        search(part)
        taken[kind] = passes[kind].count - before

    def prefill() -> Any:
        with torch.no_grad():
            return network.prefill(blocks, counts)(head.placeholders)

    calls: dict[str, Callable[[], object]] = {name: lambda s=s: s(part) for name, s in searches.items()}  # type: ignore[misc]  # mypy does not see the default
    calls |= {ALONE: prefill}
    calls |= {BY_TABLE: lambda: torch_ops.contains(valid.table, drafts)}
    calls |= {BY_MATRIX: lambda: torch_ops.contains(valid.matrix, drafts)}
    # processor time: all is on one thread, and what other programs take is left out
    times = time_interleaved(calls, plan.rounds, clock=time.process_time)
    latency = {name: [1e3 * x for x in spread(each)] for name, each in times.items()}
    records.forget_times(data.name)
    records.add({"data": data.name, "levels": data.catalogue.length, "latency_ms": latency, "passes": taken})


# ------------------------------------------------------------------------------------------------ reporting


class Records:
    """What was measured, kept in a file from run to run; tables and plots are made anew with each record."""

    def __init__(self, stem: Path, settings: Record) -> None:
        self.stem, self.settings = stem, json.loads(json.dumps(settings))  # as a file gives it back
        self.all: list[Record] = []
        path = stem.with_suffix(".json")
        kept = json.loads(path.read_text())["results"] if path.exists() else {}
        if kept.get("settings") == self.settings:
            self.all = kept["records"]

    def has(self, data: str, seed: int, method: str) -> bool:
        """Return whether this was measured."""
        return any((one["data"], one.get("seed"), one.get("method")) == (data, seed, method) for one in self.all)

    def timed(self, data: str) -> bool:
        """Return whether latency was measured."""
        return any(one["data"] == data and "latency_ms" in one for one in self.all)

    def forget_times(self, data: str) -> None:
        """Leave out what was timed on a data set."""
        self.all = [one for one in self.all if one["data"] != data or "latency_ms" not in one]

    def add(self, record: Record) -> None:
        """Keep a record and write everything."""
        console.print(json.dumps(record))
        self.all.append(record)
        summary = summarise(self.all)
        results = {"settings": self.settings, "records": self.all, "summary": summary}
        write_json(self.stem.with_suffix(".json"), results)
        self.stem.with_suffix(".md").write_text(markdown(summary, self.settings, machine()))
        plot(summary, self.stem.with_suffix(".png"))


def summarise(records: list[Record]) -> dict[str, dict[str, Record]]:
    """Return by data set and method the mean and standard deviation over seeds, and recall over ordinary search's."""
    by: dict[str, dict[str, list[Record]]] = defaultdict(lambda: defaultdict(list))
    for record in records:
        if "method" in record:
            by[record["data"]][record["method"]].append(record)
    out: dict[str, dict[str, Record]] = {}
    for data, methods in by.items():
        base = {one["seed"]: one for one in methods[ORDINARY]}  # measured first, seed by seed
        out[data] = {}
        for method, each in methods.items():
            row: Record = {"seeds": len(each)}
            for key in (*(f"recall@{k}" for k in CUTOFFS), "invalid", "returned"):
                values = [one[key] for one in each]
                row[key] = [float(np.mean(values)), float(np.std(values, ddof=1)) if len(values) > 1 else None]
            for k in CUTOFFS:
                mine = [one[f"recall@{k}"] for one in each]
                theirs = [base[one["seed"]][f"recall@{k}"] for one in each]
                row[f"relative@{k}"] = float(np.sum(mine) / np.sum(theirs)) if np.sum(theirs) else None
            out[data][method] = row
    for record in records:
        if "latency_ms" in record:
            methods_of = out.setdefault(record["data"], {})
            for method, quartiles in record["latency_ms"].items():
                methods_of.setdefault(method, {})["latency_ms"] = quartiles
            for method, passes in record["passes"].items():
                methods_of[method]["passes"] = passes
    order = (*HEADLINE, *ABLATIONS, ALONE, BY_TABLE, BY_MATRIX)
    return {data: {name: rows[name] for name in order if name in rows} for data, rows in out.items()}


def _percent(pair: list[Any]) -> str:
    mean, deviation = pair
    return f"{100 * mean:.1f}" + ("" if deviation is None else f" ± {100 * deviation:.1f}")


def markdown(summary: dict[str, dict[str, Record]], settings: Record, on: Record) -> str:
    """Return the tables as Markdown."""
    lines = [
        "# Self-drafting",
        "",
        "Made by `python -m benchmarks.suites.self_draft` from the JSON file beside it. "
        f"{settings['training']['steps']:,} training steps of {settings['training']['batch']} histories for every "
        f"model, {settings['beams']} beams, batches of {settings['batch']} users, one thread. Recall in per cent, mean "
        "and standard deviation over seeds, and its share of ordinary search's over the same seeds. Times are the "
        "processor's for a batch, from histories to IDs, medians of runs in turn in one process, with untrained models "
        "of the same sizes: time does not depend on weights. Passes are counted. Ordinary search reads the history in "
        "the pass that writes the first level, and writes each further level in another. At every step a table "
        "verifies, at the end a sorted matrix.",
        "",
        f"{on['processor']}, {on['cores']} cores; torch {on['versions']['torch']}",
        "",
    ]
    for data, methods in summary.items():
        lines += [
            f"## {data}",
            "",
            "| | seeds | " + " | ".join(f"recall@{k} | of ordinary" for k in CUTOFFS) + " | passes | ms | not an ID |",
            "| --- " * (2 + 2 * len(CUTOFFS) + 3) + "|",
        ]
        for method, row in methods.items():
            if "seeds" not in row:
                continue
            cells = [method, str(row["seeds"])]
            for k in CUTOFFS:
                relative = row[f"relative@{k}"]
                cells += [_percent(row[f"recall@{k}"]), "" if relative is None else f"{relative:.3f}"]
            time_of = row.get("latency_ms")
            cells += [str(row.get("passes", "")), f"{time_of[1]:.1f}" if time_of else ""]
            cells.append(f"{100 * row['invalid'][0]:.1f} %")
            lines.append("| " + " | ".join(cells) + " |")
        parts = [name for name in (ALONE, BY_TABLE, BY_MATRIX) if name in methods]
        shown = "; ".join(f"{name} {methods[name]['latency_ms'][1]:.2f}" for name in parts)
        lines += ["", f"Parts of this alone, in ms: {shown}.", ""] if parts else [""]
        for method in (kind for kind in (STEP, END) if kind in methods):
            relative = [methods[method][f"relative@{k}"] for k in CUTOFFS]
            if None not in relative:
                verdict = "met" if min(relative) >= 1 - BAR else "NOT met"
                lines += [f"At least {1 - BAR:.0%} of ordinary recall, {method}: {verdict}.", ""]
    return "\n".join(lines).rstrip() + "\n"


def plot(summary: dict[str, dict[str, Record]], path: Path) -> None:
    """Draw recall@10 and latency by method, a row a data set."""
    figure, grid = plt.subplots(len(summary), 2, figsize=(12, 3.2 * len(summary)), squeeze=False, layout="constrained")
    for (data, methods), (left, right) in zip(summary.items(), grid, strict=True):
        shown = {name: row for name, row in methods.items() if "seeds" in row}
        names = list(reversed(shown))
        means = [100 * shown[name]["recall@10"][0] for name in names]
        errors = [100 * (shown[name]["recall@10"][1] or 0) for name in names]
        colours = ["#0072B2" if name == ORDINARY else "#009E73" if name in HEADLINE else "#999999" for name in names]
        left.barh(names, means, xerr=errors, color=colours)
        left.set_title(f"{data}: recall@10, per cent, ± standard deviation")
        timed = [name for name in names if "latency_ms" in shown[name]]
        bars = right.barh(
            timed, [shown[name]["latency_ms"][1] for name in timed],
            color=["#0072B2" if name == ORDINARY else "#009E73" if name in HEADLINE else "#999999" for name in timed],
        )  # fmt: skip
        right.bar_label(bars, fmt="%.1f", padding=2)
        right.set_title("ms a batch")
        for axes in (left, right):
            axes.spines[["top", "right"]].set_visible(False)
            axes.margins(x=0.12)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="directory of real semantic IDs, measured beside the made-up ones")
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--seeds", type=int, default=3, help="how many")
    parser.add_argument("--steps", type=int, help="training steps, the demo's by default")
    parser.add_argument("--ablations", type=int, default=1, help="with how many of the seeds ablations are trained")
    parser.add_argument("--time", action="store_true", help="time all searches once more, and train nothing")
    parser.add_argument("--quick", action="store_true", help="hardly any training, to see that it runs")
    parser.add_argument("--suffix", default="", help="goes behind the names of the files")
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    torch.set_num_threads(1)
    config = DemoConfig()
    steps = given.steps or (5 if given.quick else config.training.steps)
    config = replace(config, training=replace(config.training, steps=steps))
    seeds = tuple(range(given.seed, given.seed + given.seeds))
    plan = Plan(config, 64 if given.quick else 5000, 3 if given.quick else 40)
    settings = {
        **{name: asdict(getattr(config, name)) for name in ("synthetic", "model", "training")},
        "beams": config.beams,
        "batch": config.batch,
        "rows": plan.rows,
        "quick": given.quick,
    }
    given.out.mkdir(parents=True, exist_ok=True)
    records = Records(given.out / f"self_draft{'-quick' if given.quick else ''}{given.suffix}", settings)
    sources = [None, *([given.data] if given.data else [])]
    jobs = [(seed, HEADLINE) for seed in seeds] + [(seed, tuple(ABLATIONS)) for seed in seeds[: given.ablations]]
    for seed, kinds in () if given.time else jobs:  # what matters most comes first
        for source in sources:
            run(source, seed, kinds, plan, records)
    for source in sources:
        clock(source, plan, records, given.time)
    Console().print(records.stem.with_suffix(".md").read_text())


if __name__ == "__main__":
    main()
