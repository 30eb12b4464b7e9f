"""Compile every step for every device: `python -m benchmarks.suites.device_compiled`."""

from __future__ import annotations

import argparse
import importlib.metadata
import json
from pathlib import Path
from typing import Any

from ...harness import RESULTS, machine, write_json, write_report
from .compiler import LIMIT, Compiler
from .report import ABOUT, bars, parts
from .targets import TARGETS

NAME = "device-compiled"
PACKAGES = ("jax", "libtpu", "jax-cuda12-plugin", "nvidia-cuda-nvcc-cu12")


def compile_all(steps: list[str], targets: list[str], limit: float) -> dict[str, dict[str, Any]]:
    """Return the records of steps by step and target, each of which is printed as it comes."""
    records: dict[str, dict[str, Any]] = {}
    with Compiler(limit) as compiler:
        for step in steps:
            for target in targets:
                record = compiler.compile(step, target)
                records.setdefault(step, {})[target] = record
                print(f"{step}, {target}: {json.dumps(record)}", flush=True)
    return records


def versions() -> dict[str, str]:
    """Return the versions of the compilers."""
    return {name: importlib.metadata.version(name) for name in PACKAGES}


def main() -> None:
    """Compile, print and keep the record."""
    from .steps import STEPS

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="steps whose names begin so; nothing is kept of some alone")
    parser.add_argument("--targets", nargs="+", choices=list(TARGETS), default=list(TARGETS))
    parser.add_argument("--limit", type=float, default=LIMIT, help="processor seconds of one step")
    parser.add_argument("--out", type=Path, default=RESULTS)
    asked = parser.parse_args()
    steps = [name for name in STEPS if name.startswith(asked.only)]
    records = compile_all(steps, asked.targets, asked.limit)
    if len(steps) < len(STEPS) or set(asked.targets) != set(TARGETS):
        return
    results = {"machine": machine(), "versions": versions(), "limit": asked.limit, "records": records}
    write_json(asked.out / f"{NAME}.json", results)
    write_report(asked.out / f"{NAME}.md", "Compiled for devices", ABOUT, results, bars(records), parts(records))


if __name__ == "__main__":
    main()
