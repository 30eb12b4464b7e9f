"""Suites that have parts, each run in a process of its own."""

import argparse
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Any

from .harness import RESULTS, ROOT, write_json

# glibc gives freed megabytes back to the system at moments of its own choosing; fetching them again makes any method
# here up to three times slower, in one process and not in the next. This keeps them, for all methods alike.
_KEEP_FREED_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(2**25), "MALLOC_TRIM_THRESHOLD_": str(2**32)}


def run_parts(
    suite: str, about: str, parts: Mapping[str, Callable[[float], list[dict[str, Any]]]], report: Callable[[], None]
) -> None:
    """Run the parts of `benchmarks.suites.SUITE` that the command line asks for, and make the report of what is there.

    A part takes the fraction of the IDs, and returns records, which are kept in `results/SUITE-PART.json` for all IDs.
    """
    parser = argparse.ArgumentParser(description=about.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=[*parts, "report"], default=[*parts, "report"])
    parser.add_argument("--scale", type=float, default=1.0, help="fraction of the IDs; results are kept only at 1")
    parser.add_argument("--here", action="store_true", help="run in this process")
    arguments = parser.parse_args()
    for part in arguments.only:
        if part == "report":
            report()
        elif arguments.here:
            print(f"{part}: {(parts[part].__doc__ or '').strip()}")
            records = parts[part](arguments.scale)
            if arguments.scale == 1:
                write_json(RESULTS / f"{suite}-{part}.json", records)
        else:
            command = [sys.executable, "-m", f"benchmarks.suites.{suite}", "--here", "--only", part]
            options = ["--scale", str(arguments.scale)]
            subprocess.run([*command, *options], check=True, cwd=ROOT, env={**_KEEP_FREED_MEMORY, **os.environ})
