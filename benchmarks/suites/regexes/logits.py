"""Times of masking a batch of logits."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from ... import peers
from ...harness import ratios, spread, time_interleaved
from .engines import ENGINES
from .patterns import PATTERNS, Pattern
from .plan import BATCH, OURS, Plan, Record

# one table of these has sparse and dense states
MIXED = ("date", "URL", "application log", "thought and action", "dotted name", "JSON string", "German address")


Masking = Callable[[Any], Any]


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
    able = [name for name in ENGINES if name in (OURS, "llguidance", "xgrammar")]
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
    engine = ENGINES[name](tokenizer)
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

    engine = ENGINES[OURS](tokenizer)
    dev = torch_ops.to_device(engine.compile(pattern))
    rows = []
    for prefix in prefixes:
        state = torch_ops.start(dev, 1)
        for token in prefix:
            state = torch_ops.advance(dev, state, torch.tensor([token]))
        rows.append(state)
    return torch_ops, dev, type(rows[0])(*(torch.cat(parts) for parts in zip(*rows, strict=True)))
