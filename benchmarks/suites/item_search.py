"""Requests for items searched in one batch, one at a time, and by `generate` of transformers.

Claims checked here, for 64 requests of 50 beams with histories of 512 tokens:

- one batch takes an eighth of the time of `generate` with `prefix_allowed_tokens_fn`, one at a time, or less;
- and a third of its time in batches, and of `constrained_generate`'s, or less.

All find the same items, which is checked first. The model is an untrained Llama of two layers: time does not depend on
weights. One thread, so that what other processes do counts for nothing. `generate` gets 4 requests at a time at most: a
cache for each beam of 64 takes gigabytes.

    python -m benchmarks.suites.item_search            two minutes
    python -m benchmarks.suites.item_search --quick    to see that it runs
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

import maskwright as mw
from maskwright.runtime.integrations.item_search import ItemSearch, Query
from maskwright.runtime.integrations.transformers import constrained_generate, place

from ..harness import RESULTS, Bar, grid, machine, spread, time_interleaved, write_json, write_report

LEVELS, CODES = 4, 256
BATCH, ALONE = "one batch", "one at a time"
NAMES = tuple(f"{name}, {how}" for name in ("generate", "constrained_generate") for how in (ALONE, "in batches"))
BARS = dict(zip(NAMES, (8.0, 3.0, 3.0, 3.0), strict=True))


def allowed_by(tokens: np.ndarray[Any, Any], prompt: int) -> Callable[[int, Any], list[int]]:
    """Return what `prefix_allowed_tokens_fn` takes: a trie of dicts, as users write it."""
    trie: dict[int, Any] = {}
    for row in tokens.tolist():
        node = trie
        for token in row:
            node = node.setdefault(token, {})

    def allowed(row: int, ids: Any) -> list[int]:
        node = trie
        for token in ids[prompt:].tolist():
            node = node.get(token, {})
        return list(node) or [0]

    return allowed


def measured(text: int, prompt: int, quick: bool) -> dict[str, Any]:
    """Return the processor's milliseconds a request, by method, with `text` tokens before those of codes."""
    rng = np.random.default_rng(0)
    size, count, beams, few = text + LEVELS * CODES, 8 if quick else 64, 5 if quick else 50, 4
    codes = rng.integers(0, CODES, (1000 if quick else 100_000, LEVELS))
    offsets = [text + CODES * level for level in range(LEVELS)]
    catalogue = mw.Catalogue.of(codes, np.arange(len(codes)), size, offsets=offsets, kind="matrix")
    torch.manual_seed(0)
    model: Any = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=size, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
            max_position_embeddings=1024, initializer_range=0.2, pad_token_id=0, eos_token_id=None,
        )
    )  # fmt: skip
    model.eval()
    ids: Any = torch.from_numpy(rng.integers(0, size, (count, prompt)))
    queries = [Query(row, beams) for row in ids.numpy()]
    search = ItemSearch(model)
    placed = search.place(catalogue.table)
    options = {
        "num_beams": beams, "num_return_sequences": beams, "max_new_tokens": LEVELS, "length_penalty": 0.0,
        "do_sample": False,
    }  # fmt: skip
    allowed = {"prefix_allowed_tokens_fn": allowed_by(catalogue.code_tokens.tokens(codes), prompt)}
    ours = {"custom_generate": constrained_generate, "tables": place(catalogue.table)}

    def generate(rows: int, given: dict[str, Any]) -> list[Any]:
        found = []
        for part in ids[:few].split(rows):
            out = model.generate(part, attention_mask=torch.ones_like(part), **options, **given)
            states = catalogue.states(out[:, prompt:]).reshape(len(part), beams)
            found += catalogue.items(states)
        return found

    work: dict[str, tuple[int, Callable[[], list[Any]]]] = {
        BATCH: (count, lambda: [catalogue.items(each) for each in search.search(placed, queries)]),
        ALONE: (few, lambda: [catalogue.items(search.search(placed, [each])[0]) for each in queries[:few]]),
        **{
            name: (few, partial(generate, rows, given))
            for name, (given, rows) in zip(NAMES, [(g, r) for g in (allowed, ours) for r in (1, few)], strict=True)
        },
    }
    expected = work[BATCH][1]()
    for name, (rows, run) in work.items():
        assert [set(each) for each in run()] == [set(each) for each in expected[:rows]], name
    functions = {name: run for name, (_, run) in work.items()}
    times = time_interleaved(functions, 1 if quick else 5, warmup=0, clock=time.process_time)
    each = {name: [1e3 * value / work[name][0] for value in values] for name, values in times.items()}
    against = {name: spread(np.divide(values, each[BATCH]).tolist()).median for name, values in each.items()}
    return {
        "tokens": size, "prompt": prompt, "requests": count, "beams": beams,
        "methods": {name: {"ms": spread(values).median, "times": against[name]} for name, values in each.items()},
    }  # fmt: skip


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few small requests, to see that it runs")
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    torch.set_num_threads(1)
    shapes = [(100, 16)] if given.quick else [(100, 512), (32_000, 512), (100, 32)]
    cases = [measured(text, prompt, given.quick) for text, prompt in shapes]
    bars: list[Bar] = []
    for name, bar in BARS.items():
        times = cases[0]["methods"][name]["times"]
        bars.append((f"{name}, time of one batch's", f"{bar:g}", f"{times:.1f}", times >= bar))
    parts = []
    for case in cases:
        title = f"{case['requests']} requests of {case['beams']} beams, {case['prompt']} tokens of {case['tokens']:,}"
        rows = [[name, row["ms"], row["times"]] for name, row in case["methods"].items()]
        parts += [f"## {title}", "", *grid(["", "ms a request", "times one batch's"], rows)]
    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    about = (
        "Made by `python -m benchmarks.suites.item_search` from the JSON file beside it. An untrained Llama of two "
        "layers and width 64, 100,000 items of four codes, one thread, the processor's time; medians of runs in turn "
        "in one process."
    )
    write_json(given.out / "item_search.json", cases)
    write_report(
        given.out / "item_search.md",
        "Searches for items",
        about,
        {"machine": machine(), "versions": versions},
        bars,
        parts,
    )


if __name__ == "__main__":
    main()
