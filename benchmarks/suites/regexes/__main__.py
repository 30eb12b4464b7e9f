"""Run the suite."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch

from ... import peers
from ...harness import RESULTS, ROOT, machine, write_json
from . import __doc__ as about
from .engines import ENGINES
from .exactness import exact
from .logits import apply
from .patterns import PATTERNS, check
from .plan import Plan, Record, console
from .report import report
from .start import first
from .times import compiling, steps

PARTS: dict[str, Callable[[Plan, Record], Record]] = {
    "exact": exact,
    "compile": compiling,
    "steps": steps,
    "apply": apply,
    "apply, one thread": apply,
    "first": first,
}


def main() -> None:
    """Run the parts asked for, each in a process of its own, and make the reports."""
    parser = argparse.ArgumentParser(description=(about or "").splitlines()[0], prog=f"python -m {__package__}")
    parser.add_argument("--only", nargs="+", choices=[*PARTS, "report"], default=[*PARTS, "report"])
    parser.add_argument(
        "--quick", action="store_true", help="few patterns and rounds; results go to a folder of its own"
    )
    known = list(ENGINES)
    parser.add_argument("--engines", nargs="+", choices=known, default=known, help="check these; keep others' outcomes")
    parser.add_argument(
        "--here", type=Path, metavar="FILE", help="run one part in this process; results so far in FILE"
    )
    arguments = parser.parse_args()
    plan = Plan(arguments.quick, tuple(arguments.engines))
    if arguments.here:
        (part,) = arguments.only
        earlier = json.loads(arguments.here.read_text())["results"]
        if part == "apply, one thread":
            torch.set_num_threads(1)
        write_json(arguments.here.with_suffix(".part"), PARTS[part](plan, earlier))
        return
    for pattern in PATTERNS:
        check(pattern)
    folder = Path(tempfile.gettempdir()) / "maskwright-regex" if plan.quick else RESULTS
    path = folder / "regex.json"
    results: Record = json.loads(path.read_text())["results"] if path.exists() else {}
    results |= {"versions": peers.versions(ENGINES), "machine": machine()}
    for part in arguments.only:
        if part != "report":
            write_json(path, results)
            console.print(f"[bold]{part}[/bold]: {(PARTS[part].__doc__ or '').splitlines()[0]}")
            command = [sys.executable, "-m", str(__package__), "--here", str(path.absolute()), "--only", part]
            options = ["--engines", *plan.engines, *(["--quick"] if plan.quick else [])]
            subprocess.run([*command, *options], check=True, cwd=ROOT, env=_environment(part))
            made = path.with_suffix(".part")
            results[part] = json.loads(made.read_text())["results"]
            made.unlink()
            write_json(path, results)
    report(results, folder)
    console.print(f"{path.parent}/regex.json, regex.md, regex.png")


def _environment(part: str) -> dict[str, str]:
    """Return the environment of a part: a compiled kernel keeps the number of threads it was compiled for."""
    if not part.startswith("apply"):
        return dict(os.environ)
    return {
        **os.environ,
        **({"OMP_NUM_THREADS": "1"} if part == "apply, one thread" else {}),
        "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1",
    }


if __name__ == "__main__":
    main()
