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


def kept(path: Path) -> dict[str, dict[str, Any]]:
    """Return the records that a file keeps, none where there is no file.

    Raises SystemExit where they were made by other compilers: then everything is to be compiled anew.
    """
    if not path.exists():
        return {}
    results = json.loads(path.read_text())["results"]
    if results["versions"] != versions():
        raise SystemExit(f"{path} is of {results['versions']}: compile all steps for all targets, without --only")
    records: dict[str, dict[str, Any]] = results["records"]
    return records


def main() -> None:
    """Compile, print and keep the record."""
    from .steps import STEPS

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="steps whose names begin so; records of others stay as they are")
    parser.add_argument("--targets", nargs="+", choices=list(TARGETS), default=list(TARGETS))
    parser.add_argument("--limit", type=float, default=LIMIT, help="processor seconds of one step")
    parser.add_argument("--out", type=Path, default=RESULTS)
    asked = parser.parse_args()
    steps = [name for name in STEPS if name.startswith(asked.only)]
    whole = len(steps) == len(STEPS) and set(asked.targets) == set(TARGETS)
    records = {} if whole else kept(asked.out / f"{NAME}.json")
    for step, record in compile_all(steps, asked.targets, asked.limit).items():
        records[step] = records.get(step, {}) | record
    records = {
        step: {name: records[step][name] for name in TARGETS if name in records[step]}
        for step in STEPS
        if step in records
    }
    results = {"machine": machine(), "versions": versions(), "limit": asked.limit, "records": records}
    write_json(asked.out / f"{NAME}.json", results)
    write_report(asked.out / f"{NAME}.md", "Compiled for devices", ABOUT, results, bars(records), parts(records))


if __name__ == "__main__":
    main()
