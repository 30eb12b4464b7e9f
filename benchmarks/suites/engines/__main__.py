"""Run the suite."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ...harness import RESULTS, ROOT, Bar, grid, machine, write_json, write_report
from . import __doc__ as about
from .tiny import ROWS, schemas, texts, write_model

HERE = Path(__file__).parent
ENGINES = {"vllm": ("maskwright", "xgrammar", "guidance"), "sglang": ("maskwright", "xgrammar", "llguidance")}
_SIDS, _CODES = 1_000_000, 200
_FILL, _TAIL, _ACCEPT, _BATCH, _START = 40.0, 250.0, 15.0, 4.0, 3.0
Record = dict[str, Any]


def program(python: Path, script: Path, *given: Path | str, options: str = "") -> Record:
    """Run a program in the environment of the engines; return what it wrote into the last path given."""
    paths = [str(ROOT / "tests/engines/stand_ins"), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "MASKWRIGHT_ENGINE_OPTIONS": options}
    command = [str(python), str(script), *map(str, given)]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True)
    if ended.returncode:
        raise SystemExit(ended.stderr[-4000:])
    told: Record = json.loads(Path(given[-1]).read_text())
    return told


def cases(data: Path | None) -> list[tuple[str, str]]:
    """Return 64 schemas, each with the text of an instance: those of a file, or made-up ones."""
    if data is None:
        return list(zip(map(json.dumps, schemas()), texts(), strict=True))
    from ..json_schema.cases import read

    found: list[tuple[str, str]] = []
    for case in read(data):
        valid = [test["data"] for test in case["tests"] if test["valid"]]
        if valid and len(found) < ROWS:
            found.append((json.dumps(case["schema"]), json.dumps(valid[0])))
    return found


# --------------------------------------------------------------------------------------------------------- parts


def measure_rows(python: Path, folder: Path, data: Path | None) -> Record:
    """Mask rows in vLLM's classes, and batches of 256 in XGrammar's."""
    (folder / "cases.json").write_text(json.dumps(cases(data)))
    return program(python, HERE / "rows.py", folder / "cases.json", folder / "rows.json")


def measure_answers(engine: str, python: Path, folder: Path, data: Path | None) -> Record:
    """Answers of a tiny model through an engine's backends, and how long the engine took to start."""
    import jsonschema

    write_model(folder / "model")
    given = schemas()
    (folder / "schemas.json").write_text(json.dumps(list(map(json.dumps, given))))
    out: Record = {}
    for backend in ENGINES[engine]:
        told = program(
            python, HERE / "answers.py", engine, backend, folder / "model", folder / "schemas.json",
            folder / "answers.json",
        )  # fmt: skip
        finished = invalid = 0
        for (text, reason), schema in zip(told["answers"], given * 2, strict=True):
            finished += reason == "stop"
            try:
                jsonschema.validate(json.loads(text), schema)
            except (ValueError, jsonschema.ValidationError):
                invalid += reason == "stop"
        out[backend] = {
            "answers": len(told["answers"]), "finished": finished, "finished but invalid": invalid,
            "start_s": told["ready"],
        }  # fmt: skip
    return out


def measure_beams(python: Path, folder: Path, data: Path | None) -> Record:
    """Beams of SGLang over a million semantic IDs, beside our own search with the same model."""
    import maskwright as mw

    if not (folder / "model").exists():
        write_model(folder / "model")
    rng = np.random.default_rng(0)
    size = json.loads((folder / "model/config.json").read_text())["vocab_size"]
    sids = rng.integers(0, _CODES, (_SIDS, 4)) + _CODES * np.arange(1, 5)
    keep = rng.random(_SIDS) < 0.1
    mw.Catalogue.of(sids, np.arange(_SIDS), vocab_size=size, kind="matrix").save(folder / "items")
    mw.compile_sids(sids, vocab_size=size).save(folder / "table")
    np.save(folder / "keep.npy", keep)
    options = {
        "catalogues": {name: str(folder / name) for name in ("items", "table")},
        "filters": {"kept": {"catalogue": "items", "keep": str(folder / "keep.npy")}},
    }
    script = ROOT / "tests/engines/real/run_sglang_catalogues.py"
    told = program(python, script, folder / "model", folder / "beams.json", options=json.dumps(options))
    there, kept = mw.sort_sids(sids, vocab_size=size), mw.sort_sids(sids[keep], vocab_size=size)
    out: Record = {}
    for name, (tokens, exact, worst) in told["beams"].items():
        kind, width, prompt = name.split()
        exist = int((kept if kind == "kept" else there).contains(np.array(tokens)).sum())
        same = None if exact is None else len(set(map(tuple, tokens)) & set(map(tuple, exact)))
        out[f"{kind}, {width} beams, prompt {prompt}"] = {
            "beams": int(width), "exist": exist, "in the exact search": same, "largest difference": worst,
        }  # fmt: skip
    return out


PARTS: dict[str, Callable[[Path, Path, Path | None], Record]] = {
    "rows": measure_rows, "vllm": partial(measure_answers, "vllm"), "sglang": partial(measure_answers, "sglang"),
    "beams": measure_beams,
}  # fmt: skip


# -------------------------------------------------------------------------------------------------------- report


def bars(results: Record) -> list[Bar]:
    """Return what was asked and what was measured; of parts that were not run, nothing."""
    found: list[Bar] = []
    if "rows" in results:
        row = results["rows"]["rows"]["maskwright"]
        for what, kind, key, limit in (
            ("fill of a mask row, mean", "later", "mean", _FILL), ("fill of a mask row, p99", "later", "p99", _TAIL),
            ("accept, mean", "accept", "mean", _ACCEPT),
        ):  # fmt: skip
            found.append((what, f"{limit:.0f} us", f"{row[kind][key]:.1f} us", row[kind][key] <= limit))
        batch = results["rows"]["batch"]
        times = batch["xgrammar"]["processor_ms"]["mean"] / batch["maskwright"]["processor_ms"]["mean"]
        what = "256 rows on two threads, mean, xgrammar's time over ours"
        found.append((what, f"{_BATCH:.0f}", f"{times:.1f}", times >= _BATCH))
    for engine in ENGINES:
        if engine in results:
            ours, *peers = (results[engine][backend] for backend in ENGINES[engine])
            whole = ours["finished"] == ours["answers"] and not ours["finished but invalid"]
            said = f"{ours['finished']} of {ours['answers']}, {ours['finished but invalid']} invalid"
            found.append((f"answers through {engine}", "all finished, 0 invalid", said, whole))
            beyond = ours["start_s"] - min(each["start_s"] for each in peers)
            found.append((f"start of {engine} beyond without", f"{_START:.0f} s", f"{beyond:.1f} s", beyond <= _START))
    if "beams" in results:
        rows = results["beams"].values()
        all_there = all(row["exist"] == row["beams"] for row in rows)
        all_same = all(row["in the exact search"] in (None, row["beams"]) for row in rows)
        worst = max(row["largest difference"] or 0.0 for row in rows)
        found.append(("beams of SGLang that exist", "all", "all" if all_there else "not all", all_there))
        found.append(("beams of SGLang in the exact search", "all", "all" if all_same else "not all", all_same))
        found.append(("scores beside the exact search", "1e-5", f"{worst:.1e}", worst <= 1e-5))
    return found


def report(results: Record, folder: Path) -> None:
    """Write the tables."""
    lines: list[str] = []
    if "rows" in results:
        part = results["rows"]
        lines += [
            f"Mask rows, {part['cases']} schemas of {results['data']} that all take, {part['tokens']:,} tokens:",
            "",
        ]
        lines += grid(
            ["class", "refused", "fill, mean us", "p99", "first time, mean us", "p99", "accept, mean us"],
            [
                [
                    name, part["refused"][name], each["later"]["mean"], each["later"]["p99"], each["first"]["mean"],
                    each["first"]["p99"], each["accept"]["mean"],
                ]
                for name, each in part["rows"].items()
            ],
        )  # fmt: skip
        lines += ["A batch of 256 rows on two threads:", ""]
        lines += grid(
            ["class", "processor, mean ms", "median", "by the clock, mean ms", "median"],
            [
                [name, *(each[kind][q] for kind in ("processor_ms", "clock_ms") for q in ("mean", "p50"))]
                for name, each in part["batch"].items()
            ],
        )
    for part, title in (
        ("vllm", "Answers of 400 tokens at most through vLLM:"), ("sglang", "The same through SGLang:"),
        ("beams", "Beams of SGLang over 1,000,000 semantic IDs:"),
    ):  # fmt: skip
        if part in results:
            names = list(next(iter(results[part].values())))
            lines += [title, "", *grid(["", *names], [[name, *row.values()] for name, row in results[part].items()])]
    head = (about or "").partition("\n\n")[0]
    write_report(folder / "engines.md", "Inside serving engines", head, results, bars(results), lines)


def main() -> None:
    """Measure what the command line asks for, and keep it beside parts that were measured before."""
    parser = argparse.ArgumentParser(description=(about or "").splitlines()[0], prog=f"python -m {__package__}")
    parser.add_argument("--python", type=Path, default=ROOT / ".venv-engines/bin/python", help="that of the engines")
    parser.add_argument("--data", type=Path, metavar="FILE", help="schemas, one a line; without, made-up ones")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--out", type=Path, default=RESULTS, metavar="FOLDER", help="where the results go")
    given = parser.parse_args()
    file = given.out / "engines.json"
    results: Record = json.loads(file.read_text())["results"] if file.exists() else {"versions": {}}
    with tempfile.TemporaryDirectory() as folder:
        for part in given.parts:
            results[part] = PARTS[part](given.python, Path(folder), given.data)
            if part == "rows":
                results["data"] = given.data.name if given.data else "its own"
                results["versions"] = results["rows"].pop("versions")
            results["machine"] = machine()
            write_json(file, results)
            report(results, given.out)


if __name__ == "__main__":
    main()
