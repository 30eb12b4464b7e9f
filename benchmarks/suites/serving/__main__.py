"""Run the suite."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np

import maskwright as mw

from ... import peers
from ...harness import RESULTS, write_json
from ..json_schema.cases import read
from . import __doc__ as about
from .arena import arena
from .cache import cache
from .report import report
from .server import server
from .step import step
from .times import Record

KEPT, SERVED, REQUESTS = 1000, 100, 100  # schemas in the cache; schemas served, and requests for each
PARTS = ("cache", "step", "arena", "server")


def main() -> None:
    """Measure, and write results."""
    parser = argparse.ArgumentParser(
        description=about, formatter_class=argparse.RawDescriptionHelpFormatter, prog=f"python -m {__package__}"
    )
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
