"""Run the suite."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from ... import peers
from ...harness import RESULTS, machine, write_json
from . import __doc__ as about
from .cases import CASES, Record, limited, read
from .engines import ANY_ORDER, ENGINES
from .measuring import TIMEOUT, console, measure
from .report import faults, report, summary


def main() -> None:
    """Measure, and make the reports."""
    parser = argparse.ArgumentParser(description=(about or "").splitlines()[0], prog=f"python -m {__package__}")
    parser.add_argument("--data", type=Path, metavar="FILE", help="schemas, one a line; without, the few in this file")
    parser.add_argument("--limit", type=int, metavar="N", help="the first N schemas of each group")
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=list(ENGINES))
    parser.add_argument("--timeout", type=float, default=TIMEOUT, help="seconds for one schema, its instances included")
    parser.add_argument("--quick", action="store_true", help="one schema of each group, to see that it runs")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="where the results go")
    arguments = parser.parse_args()
    limit = 1 if arguments.quick else arguments.limit
    cases = limited(read(arguments.data) if arguments.data else CASES, limit)
    whole = arguments.data is not None and limit is None
    folder = arguments.out or (RESULTS if whole else Path(tempfile.gettempdir()) / "maskwright-json-schema")
    records = measure(cases, arguments.engines, arguments.timeout)
    versions = peers.versions([name for name in arguments.engines if name != ANY_ORDER])
    results: Record = {
        "data": f"{len(cases):,} schemas" + (f" of {arguments.data.name}" if arguments.data else " of its own"),
        "timeout_s": arguments.timeout,
        "versions": versions,
        "machine": machine(),
        "summary": summary(records, arguments.engines),
        "faults": faults(records),
    }
    write_json(folder / "json_schema.json", results)
    report(results, folder)
    console.print(f"{folder}/json_schema.json, json_schema.md, json_schema.png")


if __name__ == "__main__":
    main()
