"""A process that says what one engine does with each schema.

    python -m benchmarks.suites.json_schema.worker ENGINE

reads cases with the tokens of their instances as JSON, one a line, and answers each with a line of JSON.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import resource
import sys

from ... import peers
from .asking import COLLECTED, Bench, settle
from .engines import ENGINES

MEMORY = 12e9  # bytes that an engine may take


def work(name: str) -> None:
    """Answer on standard output what an engine does with the schemas on standard input, until that ends."""
    resource.setrlimit(resource.RLIMIT_AS, (int(MEMORY), int(MEMORY)))
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what native code prints must not come between the answers
    bench = Bench(name, peers.tekken())
    print(json.dumps({"setup_s": bench.setup_s}), file=answer, flush=True)
    settle()
    for i, line in enumerate(sys.stdin):
        print(json.dumps(bench.ask(*json.loads(line))), file=answer, flush=True)
        if i % COLLECTED == 0:
            gc.collect()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("engine", choices=ENGINES)
    work(parser.parse_args().engine)
