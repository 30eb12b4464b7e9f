"""Regular expressions on a real vocabulary: exactness, compiling, masks and logits, against three published engines.

Claims checked here (Tekken, 131,072 tokens; the patterns are in `patterns.py`, the engines in `peers.py`):

- every regular pattern is accepted exactly; what each peer refuses or gets wrong is listed beside;
- compiling takes at most 1/40 of outlines-core's time in the median, and never more than 1/4;
- one mask and one advance on the host take at most 4 microseconds in the median, 12 at the 99th percentile;
- masking a batch of logits is at least as fast as llguidance's compiled kernel;
- importing and the first compilation in a new process take less than a second together.

    python benchmarks/regexes.py                       everything, about half an hour
    python benchmarks/regexes.py --quick               two patterns a group and few rounds, to see that it runs
    python benchmarks/regexes.py --only compile steps
    python benchmarks/regexes.py --engines maskwright  other engines' outcomes are kept, all are timed

Each part runs in a process of its own; `results/regex.json` holds what all of them measured, table and plot are made
from it. The module is not called `regex`: that would hide the package which tokenizers import under this name.
"""

from __future__ import annotations

import argparse
import functools
import gc
import json
import os
import pickle
import re
import select
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import peers
import torch
from harness import (
    Bar,
    as_cell,
    as_code,
    grid,
    machine,
    processor_seconds,
    ratios,
    save,
    spread,
    time_interleaved,
    write_json,
    write_report,
)
from patterns import PATTERNS, Pattern, check
from rich.console import Console
from rich.progress import track

RESULTS = Path(__file__).parent / "results"
BATCH = 64
OURS, REFERENCE = "maskwright", "outlines-core"
COMPILE_LIMIT, CHECK_LIMIT = 60.0, 120.0  # processor seconds for one pattern: to its first mask, for all its texts
LONG = 3.0  # seconds from which on a compilation is timed in two rounds only
STEPS = 200  # tokens of one text whose masks are timed, so that no long text outweighs the others
# one table of these has sparse and dense states
MIXED = ("date", "URL", "application log", "thought and action", "dotted name", "JSON string", "German address")
BARS = {"compile_median": 40.0, "compile_worst": 4.0, "step_p50_us": 4.0, "step_p99_us": 12.0, "import_s": 1.0}
console = Console(stderr=True)


@dataclass(frozen=True)
class Plan:
    """How much to measure."""

    quick: bool
    engines: tuple[str, ...]  # those whose exactness is checked

    @property
    def patterns(self) -> list[Pattern]:
        """All patterns, or two of each group."""
        if not self.quick:
            return list(PATTERNS)
        groups = defaultdict(list)
        for pattern in PATTERNS:
            groups[pattern.group].append(pattern)
        return [pattern for group in groups.values() for pattern in group[:2]]

    def rounds(self, usual: int) -> int:
        """Return how often to repeat what is usually repeated so often."""
        return 2 if self.quick else usual


Record = dict[str, Any]
Masking = Callable[[Any], Any]


# ------------------------------------------------------------------------------------------------ exactness


class Worker:
    """An engine in a process of its own, killed and started anew when it takes too long or dies."""

    def __init__(self, engine: str) -> None:
        self.engine = engine
        self.process: subprocess.Popen[bytes] | None = None

    def ask(self, name: str, limit: float, check_limit: float) -> Record:
        """Return what the worker says of a pattern, as one record with an `outcome`."""
        process = self._running()
        assert process.stdin is not None
        process.stdin.write(name.encode() + b"\n")
        record: Record = {"engine": self.engine, "pattern": name}
        first = self._line(process, limit)
        if isinstance(first, str):
            return {**record, "outcome": first, "limit_s": limit}
        if "refused" in first:
            return {**record, "outcome": "refused", "error": first["refused"]}
        record["compiled_s"] = first["compiled"]
        found = self._line(process, check_limit)
        if isinstance(found, str):
            return {**record, "outcome": f"{found} when checked", "limit_s": check_limit}
        wrong = found["wrong_accepts"] or found["wrong_rejects"] or found["faults"]
        return {**record, **found, "outcome": "wrong" if wrong else "exact"}

    def _running(self) -> subprocess.Popen[bytes]:
        if self.process is None:
            command = [sys.executable, str(Path(__file__).parent / "peers.py"), self.engine]
            self.process = subprocess.Popen(
                # unbuffered: `select` must see what has not been read
                command,
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
            ready = self._line(self.process, 300.0)
            if isinstance(ready, str):
                raise RuntimeError(f"the worker did not start ({ready}): run `{' '.join(command)}` to see why")
        return self.process

    def _line(self, process: subprocess.Popen[bytes], limit: float) -> Record | str:
        """Return the next answer, or why there is none, with the process ended."""
        assert process.stdout is not None
        begin, spent = time.monotonic(), processor_seconds(process.pid)
        outcome = "timeout"
        # processor time is what counts, since other work may share the machine; four times that ends it in any case
        while processor_seconds(process.pid) - spent < limit and time.monotonic() - begin < 4 * limit:
            # an answer is written at once to a pipe nothing else reads: once there is something, all of it follows
            if select.select([process.stdout], [], [], 0.5)[0]:
                line = process.stdout.readline()
                if line:
                    answer: Record = json.loads(line)
                    return answer
                outcome = "died"
                break
        self.close()
        return outcome

    def close(self) -> None:
        """End the process."""
        if self.process is not None:
            self.process.kill()
            self.process.communicate()
            self.process = None


def exact(plan: Plan, earlier: Record) -> Record:
    """Every engine on every pattern: its texts and 20 mutations, in the tokenizer's tokens and byte by byte."""
    limit, check_limit = (10.0, 20.0) if plan.quick else (COMPILE_LIMIT, CHECK_LIMIT)
    kept = earlier.get("exact", {"records": []})["records"]
    records = [record for record in kept if record["engine"] not in plan.engines]
    for engine in plan.engines:
        worker = Worker(engine)
        todo = [pattern for pattern in plan.patterns if peers.takes(engine, pattern)]
        shown = track(todo, f"exact: {engine}", console=console)
        records += [worker.ask(pattern.name, limit, check_limit) for pattern in shown]
        worker.close()
    return {"records": records}


# ------------------------------------------------------------------------------------------------ compiling


def usable(earlier: Record, plan: Plan) -> dict[str, dict[str, float]]:
    """Return for each pattern the engines that compile it in time, with the seconds it took them when checked."""
    if "exact" not in earlier:
        raise SystemExit("this part needs the outcomes of the part `exact`: run that first, or all parts")
    found: dict[str, dict[str, float]] = {pattern.name: {} for pattern in plan.patterns}
    for record in earlier["exact"]["records"]:
        if record["pattern"] in found and record["outcome"] in ("exact", "wrong"):
            found[record["pattern"]][record["engine"]] = record["compiled_s"]
    return found


def compiling(plan: Plan, earlier: Record) -> Record:
    """Seconds from a pattern to its first mask, all engines in turn; each round with a new maskwright vocabulary."""
    tokenizer = peers.tekken()
    able = usable(earlier, plan)
    names = peers.engines()
    made = {name: peers.ENGINES[name](tokenizer) for name in names}
    times: dict[str, dict[str, list[float]]] = {pattern.name: defaultdict(list) for pattern in plan.patterns}
    rounds = plan.rounds(5)
    gc.disable()  # as timeit does
    for round_ in range(rounds):
        # whatever a vocabulary remembers of a pattern must not serve the next round
        made |= {name: peers.ENGINES[name](tokenizer) for name in names if name.startswith(OURS)}
        for name in names:
            peers.first_mask(made[name], peers.SMALL)
        order = plan.patterns[round_::rounds] + [p for i, p in enumerate(plan.patterns) if i % rounds != round_]
        for at, pattern in enumerate(track(order, f"compile: round {round_ + 1}", console=console)):
            long = max(able[pattern.name].values(), default=0.0) > LONG
            if long and round_ >= 2:
                continue
            turn = (at + round_) % len(names)
            for name in names[turn:] + names[:turn]:
                if name in able[pattern.name]:
                    compiled, seconds = peers.first_mask(made[name], pattern)
                    times[pattern.name][name].append(seconds)
                    del compiled  # large indices are freed between measurements, not in one
        gc.collect()
    gc.enable()
    records = []
    for pattern in plan.patterns:
        taken = times[pattern.name]
        over = {}
        if OURS in taken:
            over = {name: value.median for name, value in ratios(taken, OURS).items() if name != OURS}
        records.append(
            {
                "pattern": pattern.name,
                "group": pattern.group,
                "seconds": {name: spread(values).median for name, values in taken.items()},
                "first_round": {name: values[0] for name, values in taken.items()},
                "over_maskwright": over,
            }
        )
    return {"records": records}


# ------------------------------------------------------------------------------------- masks, one sequence


def steps(plan: Plan, earlier: Record) -> Record:
    """Nanoseconds of one mask and one advance along the texts that match, all engines in turn.

    The first walk along a text is kept apart: engines that work lazily do their work there. A table's first mask is not
    in it, as it is counted with compiling.
    """
    tokenizer = peers.tekken()
    able = usable(earlier, plan)
    names = [name for name in peers.engines() if name != "maskwright, choices"]
    made = {name: peers.ENGINES[name](tokenizer) for name in names}
    walks = plan.rounds(8)
    pooled: dict[tuple[str, str, str], list[int]] = defaultdict(list)  # engine, easy or hard, first or again
    records = []
    gc.disable()
    for pattern in track(plan.patterns, "steps", console=console):
        texts = [tokenizer.encode(text)[:STEPS] for text in pattern.positive]
        compiled = {n: made[n].compile(pattern) for n in names if n in able[pattern.name]}
        for name, what in compiled.items():
            made[name].session(what).mask()  # counted with compiling
        alone: dict[str, list[int]] = defaultdict(list)
        kind = pattern.group if pattern.group in ("hard", "irregular") else "usual"
        for walk in range(walks):
            for name, what in compiled.items():
                took = [step for tokens in texts for step in _walk(made[name].session(what), tokens)]
                pooled[name, kind, "again" if walk else "first"] += took
                if walk:
                    alone[name] += took
        records.append(
            {
                "pattern": pattern.name,
                "group": pattern.group,
                "p50_us": {name: float(np.percentile(values, 50)) / 1e3 for name, values in alone.items() if values},
                "p99_us": {name: float(np.percentile(values, 99)) / 1e3 for name, values in alone.items() if values},
            }
        )
        del compiled
    gc.enable()
    quantiles = [*range(1, 99), 99, 99.5, 99.9, 100]
    summary = [
        {
            "engine": name,
            "kind": kind,
            "walk": walk,
            "steps": len(values),
            **{f"p{q}_us": float(np.percentile(values, q)) / 1e3 for q in (50, 90, 99, 99.9)},
            "quantiles": quantiles,
            "quantiles_us": (np.percentile(values, quantiles) / 1e3).round(3),
        }
        for (name, kind, walk), values in pooled.items()
        if values
    ]
    return {"records": records, "summary": summary}


def _walk(session: peers.Session, tokens: list[int]) -> list[int]:
    """Return nanoseconds a step until the engine refuses a token; a peer's wrong answer ends its walk."""
    clock, mask, commit = time.perf_counter_ns, session.mask, session.commit
    took = []
    for token in tokens:
        begin = clock()
        mask()
        try:
            taken = commit(token)
        except ValueError:
            break
        end = clock()
        if taken is False:
            break
        took.append(end - begin)
    return took


# ----------------------------------------------------------------------------------------- masks on logits


@torch.inference_mode()
def apply(plan: Plan, earlier: Record) -> Record:
    """Masking logits (64, 131,072) on the CPU: maskwright from states, the peers from masks that are already made."""
    import llguidance.torch
    import xgrammar

    tokenizer = peers.tekken()
    wanted = [pattern for pattern in PATTERNS if pattern.name in MIXED]
    mixed = Pattern("mixed", "apply", "|".join(f"(?:{pattern.pattern})" for pattern in wanted), (), ())
    rng = np.random.default_rng(0)
    prefixes = []
    for row in range(BATCH):
        texts = wanted[row % len(wanted)].positive
        tokens = tokenizer.encode(texts[int(rng.integers(len(texts)))])
        prefixes.append(tokens[: int(rng.integers(len(tokens) + 1))])
    # outlines-core rejects some of these texts and has no kernel of its own
    able = [name for name in peers.engines() if name in (OURS, "llguidance", "xgrammar")]
    masks = {name: _masks(name, mixed, prefixes, tokenizer) for name in able}
    given = masks.get(OURS, masks["llguidance"])
    bits = torch.from_numpy(given.view(np.int32))
    allowed = torch.from_numpy(np.unpackbits(given.view(np.uint8), axis=1, bitorder="little").astype(bool))
    differ = {name: int(np.bitwise_count(other ^ given).sum()) for name, other in masks.items()}
    record: Record = {
        "threads": torch.get_num_threads(),
        "allowed_share": float(allowed.float().mean()),
        "allowed_each": allowed.sum(1).tolist(),
        "bits_that_differ": differ,
        "times": [],
    }
    in_place: dict[str, Masking] = {
        "llguidance": lambda x: llguidance.torch.apply_token_bitmask_inplace(x, bits),
        "xgrammar": lambda x: xgrammar.apply_token_bitmask_inplace(x, bits),
    }
    fresh: dict[str, Masking] = {name: _on_a_copy(function) for name, function in in_place.items()}
    if OURS in masks:
        torch_ops, dev, state = _ours(mixed, prefixes, tokenizer)
        in_place[OURS] = lambda x: torch_ops.mask_logits_(dev, x, state)
        fresh[OURS] = lambda x: torch_ops.mask_logits(dev, x, state)
    # a kernel that fell back to eager execution would make llguidance look slow
    torch._dynamo.config.fail_on_recompile_limit_hit = True
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        torch.compiler.reset()
        torch.manual_seed(0)
        logits = torch.randn(BATCH, len(tokenizer.tokens)).to(dtype)
        expected = torch.where(allowed, logits, -torch.inf)
        runs: dict[str, Callable[[], Any]] = {}
        for name in in_place:
            own = logits.clone()
            in_place[name](own)
            if not torch.equal(own, expected) or not torch.equal(fresh[name](logits), expected):
                raise RuntimeError(f"{name} masks {dtype} logits otherwise than the mask says")
            # masking twice is masking once, so the same logits serve all rounds
            runs[f"{name}, in place"] = functools.partial(in_place[name], own)
            runs[f"{name}, new logits"] = functools.partial(fresh[name], logits)
        times = time_interleaved(runs, repeats=10 if plan.quick else 100, warmup=5)
        over = ratios(times, "llguidance, in place")
        for name, seconds in times.items():
            q1, median, q3 = (1e6 * value for value in spread(seconds))
            record["times"].append(
                {
                    "method": name,
                    "dtype": str(dtype).removeprefix("torch."),
                    "us": median,
                    "q1": q1,
                    "q3": q3,
                    "over_llguidance": over[name].median,
                }
            )
    return record


def _on_a_copy(in_place: Masking) -> Masking:
    """Return a function that masks a copy of its logits."""

    def masked(logits: Any) -> Any:
        out = logits.clone()
        in_place(out)
        return out

    return masked


def _masks(name: str, pattern: Pattern, prefixes: list[list[int]], tokenizer: peers.Tokenizer) -> Any:
    """Return an engine's masks after each prefix: uint32 (B, ceil(V / 32))."""
    engine = peers.ENGINES[name](tokenizer)
    compiled = engine.compile(pattern)
    rows = []
    for prefix in prefixes:
        session = engine.session(compiled)
        for token in prefix:
            session.mask()
            if session.commit(token) is False:
                raise RuntimeError(f"{name} refuses token {token} after part of a text that matches")
        session.mask()
        rows.append(np.array(session.bits(), dtype=np.uint32))
    return np.stack(rows)


def _ours(pattern: Pattern, prefixes: list[list[int]], tokenizer: peers.Tokenizer) -> tuple[Any, Any, Any]:
    """Return torch's operations, maskwright's table on the CPU and the states after all prefixes."""
    from maskwright.runtime import torch_ops

    engine = peers.Maskwright(tokenizer)
    dev = torch_ops.put(engine.compile(pattern))
    rows = []
    for prefix in prefixes:
        state = torch_ops.start(dev, 1)
        for token in prefix:
            state = torch_ops.advance(dev, state, torch.tensor([token]))
        rows.append(state)
    return torch_ops, dev, type(rows[0])(*(torch.cat(parts) for parts in zip(*rows, strict=True)))


# -------------------------------------------------------------------------------------------- a new process

_BEGIN = (
    "import pickle, sys, time\ntokens, special, eos, pattern = pickle.load(open(sys.argv[1], 'rb'))\n"
    "t = [time.perf_counter()]"
)
_NOW = "t.append(time.perf_counter())"
FIRST = {
    OURS: [
        "import maskwright as mw",
        "vocab = mw.Vocabulary.from_bytes(tokens, eos=eos, special=special)",
        "table = mw.compile_regex(pattern, vocab)\nmw.Matcher(table).mask()",
    ],
    "outlines-core": [
        "import outlines_core, collections",
        "ids = collections.defaultdict(list)\nfor i, token in enumerate(tokens):\n    if token: ids[token].append(i)\n"
        "vocab = outlines_core.Vocabulary(eos, dict(ids))",
        "outlines_core.Index(pattern, vocab)",
    ],
    "xgrammar": [
        "import xgrammar as x",
        "info = x.TokenizerInfo([token or b'<s_%d>' % i for i, token in enumerate(tokens)], "
        "vocab_type=x.VocabType.RAW, vocab_size=len(tokens), stop_token_ids=[eos])",
        "m = x.GrammarMatcher(x.GrammarCompiler(info, max_threads=1).compile_regex(pattern))\n"
        "m.fill_next_token_bitmask(x.allocate_token_bitmask(1, len(tokens)))",
    ],
    "llguidance": [
        "import llguidance, llguidance.numpy",
        "class T:\n    eos_token_id, bos_token_id, special_token_ids = eos, None, special\n"
        "    tokens = [token or b'\\xff<%d>' % i for i, token in enumerate(tokens)]\n"
        "    def __call__(self, text): return list(text.encode() if isinstance(text, str) else text)\n"
        "tok = llguidance.LLTokenizer(llguidance.TokenizerWrapper(T()))",
        "m = llguidance.LLMatcher(tok, llguidance.LLMatcher.grammar_from_regex(pattern))\n"
        "llguidance.numpy.fill_next_token_bitmask(m, llguidance.numpy.allocate_token_bitmask(1, tok.vocab_size), 0)",
    ],
}  # what a program does first: import, vocabulary, compile and mask


def first(plan: Plan, earlier: Record) -> Record:
    """Seconds in a new process: importing, making the vocabulary, the first pattern to its first mask."""
    tokenizer = peers.tekken()
    pattern = next(pattern for pattern in PATTERNS if pattern.name == "e-mail")
    names = [name for name in peers.engines() if name in FIRST]
    stages: dict[str, list[list[float]]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tokens.pickle"
        path.write_bytes(pickle.dumps((tokenizer.tokens, tokenizer.special, tokenizer.eos, pattern.pattern)))
        # the first run is not counted: it fills caches
        for run in track(range(1 + plan.rounds(9)), "first", console=console):
            for name in names:
                code = "\n".join([_BEGIN, *(f"{stage}\n{_NOW}" for stage in FIRST[name]), "print(*t)"])
                out = subprocess.run(
                    [sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True
                )
                if run:
                    stages[name].append(np.diff([float(x) for x in out.stdout.split()]).tolist())
    records = []
    for name, runs in stages.items():
        imported, vocabulary, compiled = np.array(runs).T
        without, total = imported + compiled, imported + vocabulary + compiled
        records.append(
            {
                "engine": name,
                "runs": len(runs),
                "import_s": np.median(imported),
                "vocabulary_s": np.median(vocabulary),
                "compile_s": np.median(compiled),
                "import_and_compile_s": np.median(without),
                "import_and_compile_worst_s": without.max(),
                "all_s": np.median(total),
                "all_worst_s": total.max(),
            }
        )
    return {"pattern": pattern.name, "records": records}


# ------------------------------------------------------------------------------------------------- reports


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
    about = "Made by `python benchmarks/regexes.py` from `regex.json` beside it. Tekken, 131,072 tokens."
    lines = [line for part in parts for line in part(results)]
    write_report(folder / "regex.md", "Regular expressions", about, results, bars(results), lines)
    _plot(results, folder / "regex.png")


def _threads(count: int) -> str:
    return "1 thread" if count == 1 else f"{count} threads"


def _engines(results: Record) -> list[str]:
    return [name for name in peers.ENGINES if name in results["versions"]]


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
    colours = dict(zip(peers.ENGINES, ("C3", "C1", "C0", "C2", "C4"), strict=True))
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


PARTS: dict[str, Callable[[Plan, Record], Record]] = {
    "exact": exact,
    "compile": compiling,
    "steps": steps,
    "apply": apply,
    "apply, one thread": apply,
    "first": first,
}


def main() -> None:
    """Run the parts asked for, each in a process of its own, and make the reports."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=[*PARTS, "report"], default=[*PARTS, "report"])
    parser.add_argument(
        "--quick", action="store_true", help="few patterns and rounds; results go to a folder of its own"
    )
    known = peers.engines()
    parser.add_argument("--engines", nargs="+", choices=known, default=known, help="check these; keep others' outcomes")
    parser.add_argument(
        "--here", type=Path, metavar="FILE", help="run one part in this process; results so far in FILE"
    )
    arguments = parser.parse_args()
    plan = Plan(arguments.quick, tuple(arguments.engines))
    if arguments.here:
        (part,) = arguments.only
        earlier = json.loads(arguments.here.read_text())["results"]
        if part == "apply, one thread":
            torch.set_num_threads(1)
        write_json(arguments.here.with_suffix(".part"), PARTS[part](plan, earlier))
        return
    for pattern in PATTERNS:
        check(pattern)
    folder = Path(tempfile.gettempdir()) / "maskwright-regex" if plan.quick else RESULTS
    path = folder / "regex.json"
    results: Record = json.loads(path.read_text())["results"] if path.exists() else {}
    results |= {"versions": peers.versions(), "machine": machine()}
    for part in arguments.only:
        if part != "report":
            write_json(path, results)
            console.print(f"[bold]{part}[/bold]: {(PARTS[part].__doc__ or '').splitlines()[0]}")
            command = [sys.executable, __file__, "--here", str(path), "--only", part, "--engines", *plan.engines]
            subprocess.run([*command, *(["--quick"] if plan.quick else [])], check=True, env=_environment(part))
            made = path.with_suffix(".part")
            results[part] = json.loads(made.read_text())["results"]
            made.unlink()
            write_json(path, results)
    report(results, folder)
    console.print(f"{path.parent}/regex.json, regex.md, regex.png")


def _environment(part: str) -> dict[str, str]:
    """Return the environment of a part: a compiled kernel keeps the number of threads it was compiled for."""
    if not part.startswith("apply"):
        return dict(os.environ)
    return {
        **os.environ,
        **({"OMP_NUM_THREADS": "1"} if part == "apply, one thread" else {}),
        "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1",
    }


if __name__ == "__main__":
    main()
