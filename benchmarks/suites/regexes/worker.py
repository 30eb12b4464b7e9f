"""A process that says what one engine does with each pattern.

    python -m benchmarks.suites.regexes.worker ENGINE [--memory GB]

reads names of patterns, one a line, and answers each with two lines of JSON, {"compiled": seconds to the first mask} or
{"refused": why}, then {"wrong_accepts": [...], "wrong_rejects": [...], ...}. Native code cannot be interrupted, so a
worker that takes too long is killed by whoever asks.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
from collections.abc import Iterator
from typing import Any

from ...peers import Engine, FaultError, Tokenizer, accepts, tekken
from .engines import ENGINES, SMALL, first_mask
from .patterns import PATTERNS, Pattern, mutations


def verdicts(engine: Engine, compiled: Any, pattern: Pattern, tokenizer: Tokenizer) -> dict[str, Any]:
    """Return the texts that an engine wrongly accepts and rejects, in the tokenizer's tokens or byte by byte.

    The texts are the pattern's own and mutations of those it matches. `narrow` counts the accepted ones that a mask
    forbade on the way, `faults` are failures.
    """
    matches = pattern.truth()
    found: dict[str, Any] = {"texts": 0, "narrow": 0, "wrong_accepts": [], "wrong_rejects": [], "faults": []}
    for text in (*pattern.positive, *pattern.negative, *mutations(pattern)):
        expected = matches(text)
        for way, tokens in (("tokens", tokenizer.encode(text)), ("bytes", tokenizer.spell(text))):
            found["texts"] += 1
            shown = {"text": text if len(text) <= 200 else text[:100] + " ... " + text[-20:], "by": way}
            try:
                accepted, narrow = accepts(engine.session(compiled), tokens, tokenizer.eos)
            except FaultError as error:
                found["faults"].append({**shown, "error": str(error)[:300]})
                continue
            found["narrow"] += accepted and narrow
            if accepted != expected:
                found["wrong_accepts" if accepted else "wrong_rejects"].append(shown)
    return found


def answers(engine: Engine, tokenizer: Tokenizer, names: Iterator[str]) -> Iterator[dict[str, Any]]:
    """Yield what the worker says about each pattern named."""
    by_name = {pattern.name: pattern for pattern in PATTERNS}
    for name in names:
        pattern = by_name[name]
        try:
            compiled, seconds = first_mask(engine, pattern)
        except Exception as error:  # each engine has errors of its own; all mean that it refused
            yield {"refused": f"{type(error).__name__}: {error}"}
            continue
        yield {"compiled": seconds}
        yield verdicts(engine, compiled, pattern, tokenizer)
        del compiled


def main() -> None:
    """Answer on standard output until standard input ends."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("engine", choices=ENGINES)
    parser.add_argument("--memory", type=float, default=8.0, help="most memory to take, in GB")
    arguments = parser.parse_args()
    most = int(arguments.memory * 1e9)
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what native code prints must not come between the answers
    tokenizer = tekken()
    engine = ENGINES[arguments.engine](tokenizer)
    first_mask(engine, SMALL)
    print(json.dumps({"ready": True}), file=answer, flush=True)
    for line in answers(engine, tokenizer, (line.rstrip("\n") for line in sys.stdin)):
        print(json.dumps(line), file=answer, flush=True)


if __name__ == "__main__":
    main()
