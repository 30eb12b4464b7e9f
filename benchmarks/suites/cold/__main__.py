"""Processor seconds of new processes before their first mask: `python -m benchmarks.suites.cold --wheel FILE`.

The wheel is installed into an environment of its own, at a path that no cache has seen. Each program runs in a new
process, first with an empty cache, then again. Other engines run in the environment of the benchmarks.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import statistics
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from ...harness import RESULTS, Bar, grid, machine, write_json, write_report
from ...peers import tekken
from ...peers.engines import versions
from .programs import BEGIN, END, OURS, PEERS

_FIRST = {"import": 0.25, "regex": 0.6, "JSON": 1.2, "grammar": 1.2, "SIDs, torch": 0.8}  # bars of a new machine
_SECOND = {"import": 0.2, "JSON": 0.6}


def installed(wheel: Path, folder: Path) -> Path:
    """Return the Python of a new environment with a wheel, in which what it does not need comes from this one."""
    subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
    python = folder / "venv/bin/python"
    subprocess.run([python, "-m", "pip", "install", "--quiet", wheel], check=True)
    sites = next((folder / "venv").glob("lib/python*/site-packages"))
    kept = Path(sysconfig.get_paths()["purelib"])
    # torch alone: the editable install of this environment must not be found
    (sites / "torch-of-benchmarks.pth").write_text(f"{folder / 'torch'}\n")
    (folder / "torch").mkdir()
    for name in kept.iterdir():
        if name.name.partition("-")[0].lower() in _TORCH:
            (folder / "torch" / name.name).symlink_to(name)
    return python


_TORCH = {"torch", "torchgen", "functorch", "sympy", "mpmath", "networkx", "jinja2", "markupsafe", "filelock", "fsspec",
          "typing_extensions.py", "typing_extensions"}  # fmt: skip


def run(python: Path, program: str, vocabulary: Path, cache: Path) -> dict[str, Any]:
    """Return what a program in a new process says of itself."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "program.py"
        file.write_text(BEGIN + program + END)
        environment = {name: text for name, text in os.environ.items() if not name.startswith(("MASKWRIGHT", "PYTHON"))}
        environment |= {"MASKWRIGHT_CACHE": str(cache), "OMP_NUM_THREADS": "1"}
        command = [python, file, vocabulary]
        ended = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
        if ended.returncode:
            raise SystemExit(ended.stderr)
        told: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
        return told


def measured(wheel: Path, repeats: int) -> dict[str, Any]:
    """Return the median of each stage: of first processes, each with an empty cache, of second ones, and of others."""
    record: dict[str, Any] = {"first": {}, "second": {}, "others": {}}
    with tempfile.TemporaryDirectory() as made:
        folder, tokenizer = Path(made), tekken()
        vocabulary = folder / "vocabulary.pickle"
        vocabulary.write_bytes(pickle.dumps((tokenizer.tokens, tokenizer.special, tokenizer.eos)))
        python = installed(wheel, folder)
        for kind, program in OURS.items():
            told: dict[str, list[dict[str, Any]]] = {"first": [], "second": []}
            for i in range(repeats):
                for when in told:
                    told[when].append(run(python, program, vocabulary, folder / f"cache-{kind[:3]}-{i}"))
            masks = {each["masks"] for several in told.values() for each in several}
            if len(masks) != 1 or any(each["numba"] for each in told["first"]):
                raise SystemExit(f"{kind}: processes differ in their masks, or numba was imported")
            for when, several in told.items():
                record[when][kind] = _medians(several)
        for name, program in PEERS.items():
            several = [run(Path(sys.executable), program, vocabulary, folder) for _ in range(repeats)]
            record["others"][name] = _medians(several)
    record["wheel"] = {"name": wheel.name, "bytes": wheel.stat().st_size}
    return record


def _medians(several: list[dict[str, Any]]) -> dict[str, float]:
    stages = several[0]["taken"]
    return {stage: statistics.median(each["taken"][stage] for each in several) for stage in stages}


def to_first_mask(stages: dict[str, float]) -> float:
    """Return the seconds from the start to the first mask or search, without torch's import and a text that follows."""
    return sum(seconds for stage, seconds in stages.items() if stage not in ("torch", "a text"))


def bars(record: dict[str, Any]) -> list[Bar]:
    """Return what was asked and what was measured."""
    found: list[Bar] = []
    for when, limits in (("first", _FIRST), ("second", _SECOND)):
        for what, limit in limits.items():
            each = record[when]["JSON"]["import"] if what == "import" else to_first_mask(record[when][what])
            found.append((f"{when} process: {what}", f"{limit} s", f"{each:.2f} s", each <= limit))
    ours, theirs = to_first_mask(record["second"]["JSON"]), to_first_mask(record["others"]["llguidance"])
    found.append(("second process, JSON, over llguidance", "1", f"{ours / theirs:.2f}", ours <= theirs))
    size = record["wheel"]["bytes"] / 1e6
    found.append(("wheel", "5 MB", f"{size:.1f} MB", size <= 5))
    return found


def main() -> None:
    """Measure, print and keep the record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--wheel", type=Path, required=True)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, default=RESULTS)
    asked = parser.parse_args()
    record = measured(asked.wheel.resolve(), asked.repeats)
    results = {"machine": machine(), "versions": versions(PEERS), **record}
    write_json(asked.out / "cold.json", results)
    rows = [
        [
            when,
            kind,
            *(stages.get(stage) for stage in ("numpy", "import", "vocabulary", "first mask", "first search", "a text")),
        ]
        for when in ("first", "second", "others")
        for kind, stages in record[when].items()
    ]
    about = (
        "Processor seconds of new processes, medians. The vocabulary is Tekken's, 131,072 tokens. The times to a first "
        "mask hold numpy's import too, that of a first search holds no import of torch."
    )
    parts = grid(["process", "what", "numpy", "import", "vocabulary", "first mask", "first search", "a text"], rows)
    write_report(asked.out / "cold.md", "Cold starts", about, results, bars(record), parts)


if __name__ == "__main__":
    main()
