"""Serving many schemas at once: a cache of tables, an arena of them, and a batch in which every row has its own.

Claims checked here (Tekken, 131,072 tokens; the schemas of `json_schema.py --data`):

- a schema that is in the cache, among 1,000, is found in under 20 microseconds;
- 64 threads that ask for 10 new schemas cause 10 compilations;
- one step for 64 rows with 64 different schemas, masks written over logits and tokens taken, costs at most a fifth of
  what llguidance's parallel batch fill, application and commits cost, and of xgrammar's, in one process;
- an arena with 1,000 of the schemas takes less than 512 MB.

    python benchmarks/serving.py --data FILE [--parts cache step arena] [--quick]

writes `results/serving.json`, and a table beside it. Each step is taken by all engines in turn, at the same place of
the same texts; what is compared is the median of ratios. Compared too is what each engine takes for masks alone.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import peers
import torch
from harness import machine, write_json
from json_schema import ENGINES, read
from rich.progress import track

import maskwright as mw
from maskwright.runtime import torch_ops

RESULTS = Path(__file__).parent / "results"
ROWS, KEPT = 64, 1000
BARS = {"hit_us": 20.0, "compilations": 10, "step_ratio": 5.0, "arena_bytes": 512e6}
Record = dict[str, Any]


def microseconds(work: Callable[[], Any]) -> float:
    """Return how long something takes once."""
    begin = time.perf_counter_ns()
    work()
    return (time.perf_counter_ns() - begin) / 1e3


def percentiles(values: list[float]) -> Record:
    """Return the median, the 99th of a hundred and the worst."""
    return {"p50": float(np.percentile(values, 50)), "p99": float(np.percentile(values, 99)), "worst": max(values)}


# ------------------------------------------------------------------------------------------------------- parts


def cache(schemas: list[Any], vocab: mw.Vocabulary, kept: int) -> Record:
    """Return the time of hits among `kept` tables, by dict and by text, and what many threads compile."""
    held = mw.Cache(vocab, max_bytes=1 << 40)
    resident, compiling = [], []
    for schema in track(schemas, "cache", transient=True):
        begin = time.perf_counter_ns()
        try:
            held.compile_json_schema(schema)
        except mw.ConstraintError:
            continue
        compiling.append((time.perf_counter_ns() - begin) / 1e3)
        resident.append(schema)
        if len(resident) == kept:
            break
    texts = [json.dumps(schema) for schema in resident]
    for text in texts:
        held.compile_json_schema(text)  # the first time in this spelling
    order = np.random.default_rng(0).permutation(len(resident))
    dicts = [copy.deepcopy(resident[i]) for i in order]  # equal to what was asked for, and not the same
    again = [texts[i][:1] + texts[i][1:] for i in order]
    by_dict = [microseconds(partial(held.compile_json_schema, schema)) for schema in dicts]
    by_text = [microseconds(partial(held.compile_json_schema, text)) for text in again]
    stats = held.stats
    fresh = mw.Cache(vocab)
    new = resident[:10]
    ready = threading.Barrier(ROWS)

    def ask() -> None:
        ready.wait()
        for schema in new:
            fresh.compile_json_schema(schema)

    threads = [threading.Thread(target=ask) for _ in range(ROWS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {
        "resident": len(resident), "bytes": stats.bytes, "schema_bytes": percentiles([len(text) for text in texts]),
        "hit_by_dict_us": percentiles(by_dict), "hit_by_text_us": percentiles(by_text),
        "compile_us": percentiles(compiling), "compilations": fresh.stats.compilations, "threads": ROWS,
    }  # fmt: skip


class Ours:
    """An arena on the CPU: `mask_logits_` and `advance`, one call each for the whole batch."""

    def __init__(self, tables: list[Any], vocab: mw.Vocabulary) -> None:
        arena = mw.Arena(vocab, mw.Capacity(states=1 << 21))
        self.handles = [arena.add(table) for table in tables]
        self.dev = torch_ops.put(arena)
        self.reset()

    def reset(self) -> None:
        self.state = torch_ops.start(torch_ops.at(self.dev, self.handles), len(self.handles))

    def fill(self) -> Any:
        return torch_ops.bitmask(self.dev, self.state)

    def mask(self, logits: Any) -> None:
        torch_ops.mask_logits_(self.dev, logits, self.state)

    def commit(self, tokens: list[int]) -> None:
        self.state = torch_ops.advance(self.dev, self.state, torch.tensor(tokens))


class Llguidance:
    """llguidance: its executor fills all masks in parallel, its own kernel applies them."""

    def __init__(self, engine: Any, matchers: list[Any]) -> None:
        import llguidance
        import llguidance.torch

        self.compiled, self.executor = matchers, llguidance.LLExecutor(num_threads=torch.get_num_threads())
        self.lib: Any = llguidance.torch
        self.bits = llguidance.torch.allocate_token_bitmask(len(matchers), engine.tokenizer.vocab_size)
        self.reset()

    def reset(self) -> None:
        self.matchers = [matcher.deep_copy() for matcher in self.compiled]

    def fill(self) -> Any:
        rows = [(matcher, i) for i, matcher in enumerate(self.matchers)]
        self.lib.fill_next_token_bitmask_par(self.executor, rows, self.bits)
        return self.bits

    def mask(self, logits: Any) -> None:
        self.fill()
        self.lib.apply_token_bitmask_inplace(logits, self.bits)

    def commit(self, tokens: list[int]) -> None:
        for matcher, token in zip(self.matchers, tokens, strict=True):
            matcher.consume_token(token)


class Xgrammar:
    """xgrammar: a batch matcher fills all masks, its own kernel applies them."""

    def __init__(self, engine: Any, compiled: list[Any], size: int) -> None:
        import xgrammar

        self.lib: Any = xgrammar
        self.compiled, self.batch = compiled, xgrammar.BatchGrammarMatcher(torch.get_num_threads())
        self.bits = xgrammar.allocate_token_bitmask(len(compiled), size)
        self.reset()

    def reset(self) -> None:
        self.matchers = [self.lib.GrammarMatcher(each) for each in self.compiled]

    def fill(self) -> Any:
        self.batch.batch_fill_next_token_bitmask(self.matchers, self.bits)
        return self.bits

    def mask(self, logits: Any) -> None:
        self.fill()
        self.lib.apply_token_bitmask_inplace(logits, self.bits)

    def commit(self, tokens: list[int]) -> None:
        self.batch.batch_accept_token(self.matchers, tokens)


def step(cases: list[Record], vocab: mw.Vocabulary, tokenizer: peers.Tokenizer, steps: int) -> Record:
    """Measure steps of 64 rows with 64 schemas that all engines compile, along texts that all of them accept."""
    engines = {name: ENGINES[name](tokenizer) for name in ("llguidance", "xgrammar")}
    chosen: list[tuple[Any, Any, Any, list[int]]] = []
    seen: dict[str, int] = {}
    for case in cases:
        if len(chosen) == ROWS or seen.get(case["group"], 0) >= 12:
            continue
        texts = [json.dumps(test["data"], ensure_ascii=False) for test in case["tests"] if test["valid"]]
        tokens = max((tokenizer.encode(text) for text in texts), key=len, default=[])
        if len(tokens) < steps:
            continue
        try:
            table = mw.compile_json_schema(case["schema"], vocab, lazy=False, budget=mw.Budget(seconds=2))
            compiled = [engines[name].compile(case["schema"]) for name in engines]
        except Exception:  # whichever engine refuses it, however it says so
            continue
        sessions = [engines[name].session(each) for name, each in zip(engines, compiled, strict=True)]
        small = table.num_states < 100_000 and table.accepts(tokens)
        if small and all(_takes(session, tokens) for session in sessions):
            chosen.append((table, *compiled, tokens[:steps]))
            seen[case["group"]] = seen.get(case["group"], 0) + 1
    batch: dict[str, Any] = {
        "maskwright": Ours([each[0] for each in chosen], vocab),
        "llguidance": Llguidance(engines["llguidance"], [each[1] for each in chosen]),
        "xgrammar": Xgrammar(engines["xgrammar"], [each[2] for each in chosen], vocab.size),
    }
    logits = torch.randn(len(chosen), vocab.size)
    times: dict[str, dict[str, list[float]]] = {name: {"step": [], "fill": [], "commit": []} for name in batch}
    for pass_ in range(3):  # the first warms caches that engines keep; the others count
        for engine in batch.values():
            engine.reset()
        for t in range(steps):
            tokens = [each[3][t] for each in chosen]
            for name in _turned(list(batch), t):
                engine, x = batch[name], logits.clone()
                mask = microseconds(partial(engine.mask, x))
                fill = microseconds(engine.fill)
                commit = microseconds(partial(engine.commit, tokens))
                if pass_:
                    for part, value in (("fill", fill), ("commit", commit), ("step", mask + commit)):
                        times[name][part].append(value)
    out: Record = {"rows": len(chosen), "steps": steps, "torch_threads": torch.get_num_threads()}
    for name, parts in times.items():
        out[name] = {part: percentiles(values) for part, values in parts.items()}
        if name != "maskwright":
            ratios = [b / a for a, b in zip(times["maskwright"]["step"], parts["step"], strict=True)]
            out[name]["times_ours"] = statistics.median(ratios)
    return out


def _turned(names: list[str], by: int) -> list[str]:
    """Return names in another order each time, so that none is always first."""
    return names[by % len(names) :] + names[: by % len(names)]


def _takes(session: Any, tokens: list[int]) -> bool:
    for token in tokens:
        session.mask()
        if session.commit(token) is False or session.fault():
            return False
    return True


def arena(schemas: list[Any], vocab: mw.Vocabulary, kept: int) -> Record:
    """Return the memory of an arena that holds the `kept` smallest tables, and how long adding one takes."""
    tables = []
    for schema in track(schemas, "arena", transient=True):
        try:
            tables.append(mw.compile_json_schema(schema, vocab, lazy=False, budget=mw.Budget(seconds=2)))
        except mw.ConstraintError:
            continue
    tables = sorted(tables, key=lambda table: table.num_edges + 4 * table.num_rows)[:kept]
    held = mw.Arena(vocab, mw.Capacity(states=1 << 21, edges=3 << 22))
    dev = torch_ops.put(held)
    adding = [microseconds(partial(held.add, table)) for table in tables]
    again = [microseconds(partial(held.add, table)) for table in tables]
    return {
        "tables": held.stored.tables, "arena_bytes": held.nbytes, "same_arrays": torch_ops.put(held) is dev,
        "tables_bytes": sum(table.nbytes for table in tables), "add_us": percentiles(adding),
        "add_again_us": percentiles(again), "free": held.stored.free,
    }  # fmt: skip


# ------------------------------------------------------------------------------------------------------- reporting


def report(results: Record) -> str:
    """Return what was measured as a table."""
    lines = [
        "# Serving",
        "",
        f"Made by `python benchmarks/serving.py --data FILE`. Tekken, 131,072 tokens; {machine()['processor']}.",
        "", "| what | bar | measured |", "| --- | --- | --- |",
    ]  # fmt: skip

    def row(what: str, bar: str, measured: str) -> None:
        lines.append(f"| {what} | {bar} | {measured} |")

    if "cache" in results:
        part = results["cache"]
        for name, shown in (("hit_by_dict_us", "a dict"), ("hit_by_text_us", "text")):
            row(
                f"cache hit by {shown}, {part['resident']:,} schemas resident", "under 20 us",
                f"p50 {part[name]['p50']:.1f} us, p99 {part[name]['p99']:.0f} us",
            )  # fmt: skip
        row(
            "compiling instead", "", f"p50 {part['compile_us']['p50']:,.0f} us, p99 {part['compile_us']['p99']:,.0f} us"
        )
        row(f"{part['threads']} threads ask for 10 new schemas", "10 compilations", str(part["compilations"]))
    if "step" in results:
        part = results["step"]
        for name in ("maskwright", "llguidance", "xgrammar"):
            engine = part[name]
            ratio = engine.get("times_ours")
            shown = "" if ratio is None else f", **{ratio:.1f} times ours**"
            row(
                f"one step, {part['rows']} rows with as many schemas, {name}", "" if ratio is None else "5 times ours",
                f"p50 {engine['step']['p50']:,.0f} us{shown} (masks alone {engine['fill']['p50']:,.0f}, tokens "
                f"{engine['commit']['p50']:,.0f})",
            )  # fmt: skip
    if "arena" in results:
        part = results["arena"]
        row(
            f"arena with {part['tables']:,} schemas, the smallest tables", "under 512 MB",
            f"{part['arena_bytes'] / 1e6:,.0f} MB",
        )  # fmt: skip
        row("these tables, each by itself", "", f"{part['tables_bytes'] / 1e6:,.0f} MB")
        row("adding a table", "", f"p50 {part['add_us']['p50']:,.0f} us, p99 {part['add_us']['p99']:,.0f} us")
        row("adding one that is there", "", f"p50 {part['add_again_us']['p50']:.1f} us")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure, and write results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--parts", nargs="+", choices=("cache", "step", "arena"), default=["cache", "step", "arena"])
    parser.add_argument("--quick", action="store_true", help="few schemas, and nothing is written")
    options = parser.parse_args()
    cases = list(read(options.data))
    np.random.default_rng(0).shuffle(cases)
    if options.quick:
        cases = cases[:150]
    tokenizer = peers.tekken()
    vocab = mw.Vocabulary.from_bytes(tokenizer.tokens, eos=tokenizer.eos, special=tokenizer.special)
    mw.compile_json_schema({}, vocab, lazy=False)
    path = RESULTS / "serving.json"
    results: Record = json.loads(path.read_text())["results"] if path.exists() and not options.quick else {}
    kept = 100 if options.quick else KEPT
    schemas = [case["schema"] for case in cases]
    for part in options.parts:
        if part == "cache":
            results[part] = cache(schemas, vocab, kept)
        elif part == "step":
            results[part] = step(cases, vocab, tokenizer, 24)
        else:
            results[part] = arena(schemas, vocab, kept)
        if not options.quick:
            write_json(path, results)
    text = report(results)
    print(text)
    if not options.quick:
        path.with_suffix(".md").write_text(text)


if __name__ == "__main__":
    main()
