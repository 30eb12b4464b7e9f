"""Exactness: every engine on every pattern and its texts."""

from __future__ import annotations

from rich.progress import track

from ...peers import Process
from .engines import takes
from .plan import Plan, Record, console

COMPILE_LIMIT, CHECK_LIMIT = 60.0, 120.0  # processor seconds for one pattern: to its first mask, for all its texts


class Worker(Process):
    """A process that says what an engine does with each pattern."""

    def __init__(self, engine: str) -> None:
        super().__init__("benchmarks.suites.regexes.worker", engine)
        self.engine = engine

    def ask(self, name: str, limit: float, check_limit: float) -> Record:
        """Return what the worker says of a pattern, as one record with an `outcome`."""
        self.send(name)
        record: Record = {"engine": self.engine, "pattern": name}
        first = self.answer(limit)
        if isinstance(first, str):
            return {**record, "outcome": first, "limit_s": limit}
        if "refused" in first:
            return {**record, "outcome": "refused", "error": first["refused"]}
        record["compiled_s"] = first["compiled"]
        found = self.answer(check_limit)
        if isinstance(found, str):
            return {**record, "outcome": f"{found} when checked", "limit_s": check_limit}
        wrong = found["wrong_accepts"] or found["wrong_rejects"] or found["faults"]
        return {**record, **found, "outcome": "wrong" if wrong else "exact"}


def exact(plan: Plan, earlier: Record) -> Record:
    """Every engine on every pattern: its texts and 20 mutations, in the tokenizer's tokens and byte by byte."""
    limit, check_limit = (10.0, 20.0) if plan.quick else (COMPILE_LIMIT, CHECK_LIMIT)
    kept = earlier.get("exact", {"records": []})["records"]
    records = [record for record in kept if record["engine"] not in plan.engines]
    for engine in plan.engines:
        worker = Worker(engine)
        todo = [pattern for pattern in plan.patterns if takes(engine, pattern)]
        shown = track(todo, f"exact: {engine}", console=console)
        records += [worker.ask(pattern.name, limit, check_limit) for pattern in shown]
        worker.close()
    return {"records": records}


# ------------------------------------------------------------------------------------------------ compiling


def usable(earlier: Record, plan: Plan) -> dict[str, dict[str, float]]:
    """Return for each pattern the engines that compile it in time, with the seconds it took them when checked."""
    if "exact" not in earlier:
        raise SystemExit("this part needs the outcomes of the part `exact`: run that first, or all parts")
    found: dict[str, dict[str, float]] = {pattern.name: {} for pattern in plan.patterns}
    for record in earlier["exact"]["records"]:
        if record["pattern"] in found and record["outcome"] in ("exact", "wrong"):
            found[record["pattern"]][record["engine"]] = record["compiled_s"]
    return found
