"""One step of a batch: masks, drawing and taking tokens, by all engines in turn."""

from __future__ import annotations

import itertools
import json
import statistics
from functools import partial
from typing import Any
from unittest.mock import patch

import torch

import maskwright as mw
from maskwright.runtime import torch_ops
from maskwright.runtime.decode import sample

from ... import peers
from ..json_schema.engines import ENGINES
from .engines import Llguidance, Ours, Xgrammar, draw_any
from .times import ROWS, Record, microseconds, percentiles

MEASURED = ("fill", "commit", "step", "greedy", "sampled", "added to greedy", "added to sampled")
"""What is timed of a step: masks alone; taking tokens; masking in place and taking tokens; masks, drawing the best or
at temperature 1, and taking tokens; how much longer that is than drawing without any constraint."""


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
    free = torch_ops.to_device(mw.compile_regex("[0-9]*", vocab))
    places = {"little allowed": (engine.dev, engine.state), "all allowed": (free, torch_ops.start(free, len(logits)))}
    ways: dict[str, Record] = {"best": {"temperature": 0}, "temperature 1": {}, "top_p 0.9": {"top_p": 0.9}}
    for (where, place), (name, options) in itertools.product(places.items(), ways.items()):
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
