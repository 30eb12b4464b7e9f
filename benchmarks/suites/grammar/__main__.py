"""Run the suite."""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

from ... import peers
from ...harness import RESULTS, machine, write_json
from . import __doc__ as about
from .cases import cases
from .engines import ENGINES
from .measuring import Record, console, measure, new_process, process
from .report import report, rows, summary


def main() -> None:
    """Measure, and make the reports."""
    parser = argparse.ArgumentParser(description=(about or "").splitlines()[0], prog=f"python -m {__package__}")
    parser.add_argument("--only", nargs="+", metavar="GRAMMAR", help="these grammars and no others")
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=list(ENGINES))
    parser.add_argument("--rounds", type=int, default=7, help="how often each grammar is compiled")
    parser.add_argument("--limit", type=float, default=10.0, help="seconds from which on nothing is done again")
    parser.add_argument("--quick", action="store_true", help="one round and a second for each, to see that it runs")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="where the results go")
    parser.add_argument("--process", choices=ENGINES, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.process:
        print(json.dumps(process(arguments.process)))
        return
    rounds, limit = (1, 1.0) if arguments.quick else (arguments.rounds, arguments.limit)
    whole = not arguments.quick and arguments.only is None
    folder = arguments.out or (RESULTS if whole else Path(tempfile.gettempdir()) / "maskwright-grammar")
    processes = {} if arguments.quick else {name: new_process(name) for name in arguments.engines}
    records = measure(cases(arguments.only), arguments.engines, rounds, limit)
    results: Record = {
        "versions": peers.versions(arguments.engines),
        "machine": machine(),
        "process": processes,
        "summary": summary(records, arguments.engines),
        "grammars": rows(records),
    }
    write_json(folder / "grammar.json", results)
    report(results, folder)
    console.print(f"{folder}/grammar.json, grammar.md, grammar.png")


if __name__ == "__main__":
    main()
