"""Serving many schemas at once: a cache of tables, an arena of them, and a batch in which every row has its own.

Claims checked here (Tekken, 131,072 tokens; the schemas of `json_schema.py --data`):

- a schema that is in the cache, among 1,000, is found in under 20 microseconds;
- 64 threads that ask for 10 new schemas cause 10 compilations;
- in one step for 64 rows with 64 different schemas masks and advance cost at most a fifth of what llguidance's parallel
  batch fill, application and commits cost, and of xgrammar's, in one process, where tokens are drawn from masks: by
  what that takes beyond drawing without any constraint; measured too is masking the logits in place;
- an arena with 1,000 of the schemas takes less than 512 MB;
- 100 schemas, 100 requests each, from 32 clients of `maskwright serve`: every answer is complete and valid.

    python benchmarks/serving.py --data FILE [--parts cache step arena server] [--quick]

writes `results/serving.json`, and a table beside it. Each step is taken by all engines in turn, at the same place of
the same texts; what is compared is the median of ratios, and of differences the ratio of medians. Compared too is what
each engine takes for masks alone. All engines mask in place the same buffer of logits, written anew before each of
them, outside of what is timed. Where tokens are drawn, peers have theirs drawn from what they masked by the kernel
which draws ours from masks: their users would draw by operations of torch, which take longer.

The server has its default model, which is tiny, so a step of it is mostly what a server does beside its model. The
same server then writes as many tokens without any constraint.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import json
import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import jsonschema
import load
import numpy as np
import peers
import torch
from harness import machine, write_json
from json_schema import ENGINES, read
from rich.progress import track

import maskwright as mw
from maskwright.runtime import torch_ops
from maskwright.runtime.decode import sample
from maskwright.runtime.device.torch import drawing
from maskwright.runtime.host.draw import Filters
from maskwright.serve.loading import TINY, tiny

RESULTS = Path(__file__).parent / "results"
ROWS, KEPT = 64, 1000
SERVED, REQUESTS, CLIENTS, ANSWER = 100, 100, 32, 64  # schemas, of each, and tokens at most
PARTS = ("cache", "step", "arena", "server")
MEASURED = ("fill", "commit", "step", "greedy", "sampled", "added to greedy", "added to sampled")
"""What is timed of a step: masks alone; taking tokens; masking in place and taking tokens; masks, drawing the best or
at temperature 1, and taking tokens; how much longer that is than drawing without any constraint."""
EVERY, UNIFORMS = torch.full((ROWS, 4096), -1, dtype=torch.int32), torch.rand(ROWS, 2)  # made outside of what is timed
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

    def draw(self, logits: torch.Tensor, temperature: float) -> Any:
        return sample(self.dev, logits, self.state, None, ops=torch_ops, temperature=temperature, log_mass=False)

    def commit(self, tokens: torch.Tensor) -> None:
        self.state = torch_ops.advance(self.dev, self.state, tokens)


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

    def draw(self, logits: torch.Tensor, temperature: float) -> Any:
        self.mask(logits)
        return draw_any(logits, temperature)

    def commit(self, tokens: torch.Tensor) -> None:
        for matcher, token in zip(self.matchers, tokens.tolist(), strict=True):
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

    def draw(self, logits: torch.Tensor, temperature: float) -> Any:
        self.mask(logits)
        return draw_any(logits, temperature)

    def commit(self, tokens: torch.Tensor) -> None:
        self.batch.batch_accept_token(self.matchers, tokens.tolist())


def draw_any(logits: torch.Tensor, temperature: float) -> Any:
    """Return tokens drawn from all that are not -inf, by the kernel that draws from masks: the quickest there is."""
    filters = Filters.of([(temperature, None, None, None)])
    return drawing.draw_packed(EVERY[:, : logits.shape[1] // 32], logits, UNIFORMS, filters, mass=False)


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
            table = mw.compile_json_schema(case["schema"], vocab, lazy=False, budget=mw.Budget(seconds=2)).to_table()
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
    out: Record = {"rows": len(chosen), "steps": steps, "torch_threads": torch.get_num_threads()}
    out["draw"] = _drawing(batch["maskwright"], torch.randn(len(chosen), vocab.size))
    for kind in (torch.float32, torch.bfloat16):
        out[str(kind).removeprefix("torch.")] = _timed(batch, [each[3] for each in chosen], vocab.size, kind)
    return out


def _drawing(engine: Ours, logits: torch.Tensor) -> Record:
    """Return what drawing takes by the kernel, and by array operations, where little is allowed and where all is."""
    out: Record = {}
    vocab = mw.Vocabulary.from_bytes([b"", *(b"%d" % token for token in range(1, logits.shape[1]))], eos=0)
    free = torch_ops.put(mw.compile_regex("[0-9]*", vocab))
    places = {"little allowed": (engine.dev, engine.state), "all allowed": (free, torch_ops.start(free, len(logits)))}
    for (where, place), (name, options) in itertools.product(
        places.items(), (("best", {"temperature": 0}), ("temperature 1", {}), ("top_p 0.9", {"top_p": 0.9}))
    ):
        draw = partial(sample, place[0], logits, place[1], None, ops=torch_ops, **options)
        each = out[f"{name}, {where}"] = {"kernel_us": statistics.median(microseconds(draw) for _ in range(10))}
        with patch.object(torch_ops, "draw", return_value=None):
            each["operations_us"] = statistics.median(microseconds(draw) for _ in range(5))
    return out


def _timed(batch: dict[str, Any], texts: list[list[int]], size: int, kind: torch.dtype) -> Record:
    """Return what steps along texts take of each engine, on logits of a type."""
    logits = torch.randn(len(texts), size).to(kind)
    x = torch.empty_like(logits)
    times: dict[str, dict[str, list[float]]] = {name: {part: [] for part in MEASURED} for name in batch}
    for pass_ in range(5):  # the first warms caches that engines keep; the others count
        for engine in batch.values():
            engine.reset()
        for t in range(len(texts[0])):
            tokens = torch.tensor([text[t] for text in texts])  # as drawing from logits leaves them
            for name in _turned(list(batch), t):
                engine = batch[name]
                x.copy_(logits)
                mask = microseconds(partial(engine.mask, x))
                drawn = []
                for temperature in (0.0, 1.0):
                    x.copy_(logits)
                    free = microseconds(partial(draw_any, x, temperature))
                    x.copy_(logits)
                    drawn.append((free, microseconds(partial(engine.draw, x, temperature))))
                fill = microseconds(engine.fill)
                commit = microseconds(partial(engine.commit, tokens))
                if pass_:
                    (_, best), (_, sampled) = drawn
                    added = [commit + value - free for free, value in drawn]
                    values = fill, commit, mask + commit, best + commit, sampled + commit, *added
                    for part, value in zip(MEASURED, values, strict=True):
                        times[name][part].append(value)
    # what writing -inf over all logits takes, which no engine can do without where little is allowed
    over = [microseconds(partial(x.fill_, -torch.inf)) for _ in range(100) if x.copy_(logits) is x]
    out: Record = {"write_us": percentiles(over)}
    for name, parts in times.items():
        out[name] = {part: percentiles(values) for part, values in parts.items()}
        if name != "maskwright":
            for part in MEASURED[2:]:
                ours = times["maskwright"][part]
                if not part.startswith("added"):
                    ratio = statistics.median(b / a for a, b in zip(ours, parts[part], strict=True))
                    out[name][part]["times_ours"] = ratio
                    continue
                # of medians: a single difference of two times may be as good as nothing
                added = out["maskwright"][part]["p50"]
                out[name][part]["times_ours"] = out[name][part]["p50"] / added if added > 0 else None
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
            tables.append(mw.compile_json_schema(schema, vocab, lazy=False, budget=mw.Budget(seconds=2)).to_table())
        except mw.ConstraintError:
            continue
    tables = sorted(tables, key=lambda table: table.num_edges + 4 * table.num_rows)[:kept]
    held = mw.Arena(vocab)
    dev = torch_ops.put(held)
    units, part_of = _units(vocab)
    before = held.stored.free
    adding, taken, parts = [], [], []
    first = mw.compile_json_schema(True, vocab, lazy=False).to_table()  # with which all comes that all share
    for table in [first, *tables]:
        adding.append(microseconds(partial(held.add, table)))
        now = held.stored.free
        parts.append({part: before[part] - now[part] for part in now})
        taken.append(sum(units[part_of.get(part, part)] * count for part, count in parts[-1].items()))
        before = now
    again = [microseconds(partial(held.add, table)) for table in tables]
    return {
        "tables": held.stored.tables, "arena_bytes": held.nbytes, "same_arrays": torch_ops.put(held) is dev,
        "tables_bytes": sum(table.nbytes for table in tables), "add_us": percentiles(adding[1:]),
        "add_again_us": percentiles(again), "free": held.stored.free,
        "default_bytes": {
            "without budgets": mw.Arena(vocab).nbytes, "with budgets": mw.Arena(vocab, budgets=True).nbytes,
            "with budgets, ends=1": mw.Arena(vocab, mw.Capacity(ends=1), budgets=True).nbytes,
        },
        "unit_bytes": units, "unit_bytes_with_budgets": _units(vocab, True)[0], "true_takes": taken[0],
        "true_takes_of": parts[0], "takes": percentiles(taken[1:]),
        "takes_of": {part: percentiles([each[part] for each in parts[1:]]) for part in now},
        "table_bytes": percentiles([table.nbytes for table in tables]),
        "vocabulary_bytes": sum(map(len, vocab.tokens)),
        "trie_bytes": sum(getattr(getattr(vocab.trie, each.name), "nbytes", 0) for each in fields(vocab.trie)),
    }  # fmt: skip


def _units(vocab: mw.Vocabulary, budgets: bool = False) -> tuple[dict[str, float], dict[str, str]]:
    """Return the bytes on a device of one more of each of an arena's capacities, and whose unit a part of it has."""
    least, more, default = mw.Arena(vocab, budgets=budgets).nbytes, 1024, mw.Capacity()

    def unit(name: str) -> float:
        larger = replace(default, **{name: getattr(default, name) + more})
        return (mw.Arena(vocab, larger, budgets=budgets).nbytes - least) / more

    units = {name: unit(name) for name in _SHARED}
    units["half a list"] = units["lists"] / 4  # which are of two kinds, each with a start and an end
    return units, {"class lists": "half a list", "exit lists": "half a list"}


_SHARED = (
    "states", "edges", "bases", "base_targets", "masks", "lists", "classes", "exits", "sites", "site_entries",
    "actions", "pushes",
)  # fmt: skip


def server(schemas: list[Any], wanted: int, each: int) -> Record:
    """Return how a server answers `each` requests for each of `wanted` schemas, and as many tokens without any."""
    vocab = tiny().vocabulary
    with load.served("--max-tokens", str(ANSWER)) as (port, process):

        def body(schema: Any, tokens: int, seed: int) -> Record:
            asked = {"model": TINY, "prompt": "Answer: ", "max_tokens": tokens, "seed": seed}
            return asked if schema is None else {**asked, "structured_outputs": {"json": schema}}

        client, taken, refused = load.Client(port), [], Counter[str]()
        for schema in schemas:
            if _odd(schema):
                continue
            status, said = client.post("/v1/completions", body(schema, ANSWER, 0))
            taken += [schema] if status == 200 else []
            if status != 200:
                refused[str(said["error"]["code"])] += 1
            if len(taken) == wanted:
                break
        order = np.random.default_rng(0).permutation(len(taken) * each).tolist()
        rss = _resident(process)
        before = load.steps(port)
        bodies = ((i, body(taken[i % len(taken)], ANSWER, i)) for i in order)
        replies, seconds = load.asked(port, CLIENTS, bodies)
        between = load.steps(port)
        tokens = [reply.body["usage"]["completion_tokens"] for reply in replies if reply.status == 200]
        written = 0

        def enough(reply: load.Reply) -> bool:
            nonlocal written
            written += reply.body["usage"]["completion_tokens"]
            return bool(written >= sum(tokens))

        def free() -> Iterator[tuple[int, Record]]:
            for i in itertools.count():
                yield i, body(None, max(1, tokens[i % len(tokens)]), i)

        plain, plain_seconds = load.asked(port, CLIENTS, free(), enough)
        after = load.steps(port)
        grown = _resident(process) - rss
    invalid = _invalid(replies, taken, vocab)

    def part(replies: list[load.Reply], seconds: float, tokens: int, steps: tuple[int, float]) -> Record:
        return {
            "requests": len(replies), "seconds": seconds, "requests_per_s": len(replies) / seconds,
            "tokens": tokens, "tokens_per_s": tokens / seconds, "steps": steps[0],
            "step_us": 1e6 * steps[1] / max(1, steps[0]),
            "latency_ms": percentiles([1e3 * reply.seconds for reply in replies]),
        }  # fmt: skip

    return {
        "schemas": len(taken), "refused": dict(refused.most_common()), "clients": CLIENTS, "max_tokens": ANSWER,
        "failed": sum(reply.status != 200 for reply in replies),
        "invalid": len(invalid), "examples": invalid[:5],
        "incomplete": sum(
            reply.status == 200 and reply.body["choices"][0]["finish_reason"] != "stop" for reply in replies
        ),
        "grown_bytes": grown,
        "constrained": part(replies, seconds, sum(tokens), (between[0] - before[0], between[1] - before[1])),
        "unconstrained": part(plain, plain_seconds, written, (after[0] - between[0], after[1] - between[1])),
    }  # fmt: skip


def _odd(schema: Any) -> bool:
    """Return whether a schema refers to what jsonschema would have to fetch."""
    text = json.dumps(schema)
    return '"$ref": "http' in text or '"$dynamicRef"' in text


def _invalid(replies: list[load.Reply], schemas: list[Any], vocab: mw.Vocabulary) -> list[Record]:
    """Return answers that are not of their schema by the table compiled here, or by jsonschema."""
    checks = [
        (mw.compile_json_schema(schema, vocab), jsonschema.validators.validator_for(schema)(schema))
        for schema in schemas
    ]
    wrong = []
    for reply in track(replies, "checking", transient=True):
        if reply.status != 200:
            continue
        text = reply.body["choices"][0]["text"]
        table, validator = checks[reply.which % len(schemas)]
        matcher = mw.Matcher(table)
        said = []
        if not (all(matcher.advance(token) for token in vocab.encode(text)) and matcher.is_accepting):
            said.append("table")
        try:
            value = json.loads(text)
            said += [str(error.message)[:200] for error in itertools.islice(validator.iter_errors(value), 1)]
        except ValueError as error:
            said.append(str(error))
        if said:
            wrong.append({"schema": schemas[reply.which % len(schemas)], "text": text[:300], "said": said})
    return wrong


def _resident(process: int) -> int:
    """Return the resident bytes of a process."""
    for line in Path(f"/proc/{process}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return 1024 * int(line.split()[1])
    raise RuntimeError(f"process {process} has gone")


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
        for kind, which in itertools.product(("float32", "bfloat16"), MEASURED[2:]):
            what, bar = _SHOWN[which]
            shown = f"{part[kind]['maskwright'][which]['p50']:,.0f} us"
            for name in ("llguidance", "xgrammar"):
                engine, ratio = part[kind][name][which], part[kind][name][which]["times_ours"]
                shown += f"; {name} {engine['p50']:,.0f}" + (f", **{ratio:.1f} times ours**" if ratio else "")
            row(f"{what}, {kind}", bar, shown)
        for name, each in part["draw"].items():
            row(
                f"drawing a token of each row, {name}, log P(allowed) with it", "",
                f"{each['kernel_us'] / 1e3:.1f} ms; by array operations {each['operations_us'] / 1e3:,.0f}",
            )  # fmt: skip
        for which, what in (("fill", "masks alone"), ("commit", "taking tokens alone")):
            each = (f"{name} {part['float32'][name][which]['p50']:,.0f}" for name in ("llguidance", "xgrammar"))
            row(what, "", "; ".join((f"{part['float32']['maskwright'][which]['p50']:,.0f} us", *each)))
        for kind in ("float32", "bfloat16"):
            medians = {
                name: {which: part[kind][name][which]["p50"] for which in ("fill", "commit", "step")}
                for name in ("maskwright", "llguidance", "xgrammar")
            }
            own = medians.pop("maskwright")
            ours = own["fill"] + own["commit"]
            peers_take = {name: each["step"] - each["commit"] for name, each in medians.items()}
            compared = (f"{name} {took:,.0f}, **{took / ours:.1f} times ours**" for name, took in peers_take.items())
            row(
                f"masks and taking tokens, no logit written; peers: masks made and applied, {kind}", "5 times ours",
                "; ".join((f"{ours:,.0f} us", *compared)),
            )  # fmt: skip
        for kind in ("float32", "bfloat16"):
            row(f"-inf over as many logits, {kind}: `Tensor.fill_`", "", f"{part[kind]['write_us']['p50']:,.0f} us")
    if "arena" in results:
        part = results["arena"]
        row(
            f"arena with {part['tables']:,} schemas, the smallest tables", "under 512 MB",
            f"{part['arena_bytes'] / 1e6:,.0f} MB",
        )  # fmt: skip
        row("these tables, each by itself", "", f"{part['tables_bytes'] / 1e6:,.0f} MB")
        row(
            "what a table takes of the arena", "",
            f"p50 {part['takes']['p50'] / 1e3:,.0f} KB, p99 {part['takes']['p99'] / 1e3:,.0f} KB; the first, with what "
            f"all share, {part['true_takes'] / 1e3:,.0f} KB",
        )  # fmt: skip
        row("adding a table", "", f"p50 {part['add_us']['p50']:,.0f} us, p99 {part['add_us']['p99']:,.0f} us")
        row("adding one that is there", "", f"p50 {part['add_again_us']['p50']:.1f} us")
    if "server" in results:
        part = results["server"]
        free, held = part["unconstrained"], part["constrained"]
        row(
            f"server: {part['schemas']} schemas, {held['requests']:,} requests, {part['clients']} clients",
            "all valid and complete",
            f"{part['failed']} failed, {part['incomplete']} incomplete, {part['invalid']} invalid",
        )
        why = ", ".join(f"{count} {code}" for code, count in part["refused"].items())
        row("schemas that it refused before it had so many", "", f"{sum(part['refused'].values())}: {why}")
        for name, each in (("constrained", held), ("the same server unconstrained, as many tokens", free)):
            row(
                name, "",
                f"{each['requests_per_s']:,.0f} requests/s, {each['tokens_per_s']:,.0f} tokens/s, step "
                f"{each['step_us'] / 1e3:.1f} ms; latency p50 {each['latency_ms']['p50']:,.0f} ms, p99 "
                f"{each['latency_ms']['p99']:,.0f} ms",
            )  # fmt: skip
    return "\n".join(lines) + "\n"


_SHOWN = {
    "step": (f"{ROWS} rows with as many schemas, logits masked in place and tokens taken", "5 times ours"),
    "greedy": ("the same by drawing from masks, the best token; peers: masked, then drawn by the same kernel", ""),
    "sampled": ("the same, drawn at temperature 1", ""),
    "added to greedy": ("what that takes beyond drawing the best without any constraint", "5 times ours"),
    "added to sampled": ("beyond drawing at temperature 1 without any", "5 times ours"),
}


def main() -> None:
    """Measure, and write results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
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
        elif part == "server":
            results[part] = server(schemas, 10 if options.quick else SERVED, 10 if options.quick else REQUESTS)
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
