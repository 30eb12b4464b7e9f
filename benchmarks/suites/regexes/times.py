"""Times of compiling and of steps: one mask and one advance of one sequence."""

from __future__ import annotations

import gc
import time
from collections import defaultdict

import numpy as np
from rich.progress import track

from ... import peers
from ...harness import ratios, spread
from .engines import ENGINES, SMALL, first_mask
from .exactness import usable
from .plan import OURS, Plan, Record, console

LONG = 3.0  # seconds from which on a compilation is timed in two rounds only
STEPS = 200  # tokens of one text whose masks are timed, so that no long text outweighs the others


def compiling(plan: Plan, earlier: Record) -> Record:
    """Seconds from a pattern to its first mask, all engines in turn; each round with a new maskwright vocabulary."""
    tokenizer = peers.tekken()
    able = usable(earlier, plan)
    names = list(ENGINES)
    made = {name: ENGINES[name](tokenizer) for name in names}
    times: dict[str, dict[str, list[float]]] = {pattern.name: defaultdict(list) for pattern in plan.patterns}
    rounds = plan.rounds(5)
    gc.disable()  # as timeit does
    for round_ in range(rounds):
        # whatever a vocabulary remembers of a pattern must not serve the next round
        made |= {name: ENGINES[name](tokenizer) for name in names if name.startswith(OURS)}
        for name in names:
            first_mask(made[name], SMALL)
        order = plan.patterns[round_::rounds] + [p for i, p in enumerate(plan.patterns) if i % rounds != round_]
        for at, pattern in enumerate(track(order, f"compile: round {round_ + 1}", console=console)):
            long = max(able[pattern.name].values(), default=0.0) > LONG
            if long and round_ >= 2:
                continue
            turn = (at + round_) % len(names)
            for name in names[turn:] + names[:turn]:
                if name in able[pattern.name]:
                    compiled, seconds = first_mask(made[name], pattern)
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
    names = [name for name in ENGINES if name != "maskwright, choices"]
    made = {name: ENGINES[name](tokenizer) for name in names}
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
