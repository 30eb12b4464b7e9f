"""All engines over all schemas, some in processes of their own."""

from __future__ import annotations

import gc
import json
import signal
from collections.abc import Callable

from rich.console import Console
from rich.progress import Progress, track

from ... import peers
from .asking import COLLECTED, Bench, TooLongError, settle
from .cases import Record
from .engines import ANY_ORDER, OURS

APART = ("xgrammar", ANY_ORDER)  # in a process of their own: what ours knows of strings must not be known by then
WORKER = "benchmarks.suites.json_schema.worker"
TIMEOUT = 30.0  # seconds for one schema, its instances included


console = Console(stderr=True)


class Here:
    """An engine in this process, interrupted after its time as soon as it is back in Python."""

    def __init__(self, name: str, tokenizer: peers.Tokenizer, limit: float) -> None:
        self.bench, self.limit = Bench(name, tokenizer), limit
        self.setup_s = self.bench.setup_s

    def ask(self, case: Record, texts: list[list[int]]) -> Record:
        """Return what the engine does with a schema."""
        return self._limited(lambda: self.bench.ask(case, texts))

    def whole(self, case: Record) -> Record:
        """Return what the whole table takes."""
        return self._limited(lambda: self.bench.whole(case))

    def reordered(self, case: Record, tests: list[int]) -> Record:
        """Return which tests are refused with members in the schema's order too; all of them if that takes too long."""
        found = self._limited(lambda: self.bench.reordered(case, tests))
        return {"refused in order": tests} if "outcome" in found else found

    def _limited(self, work: Callable[[], Record]) -> Record:
        def ring(*_: object) -> None:
            raise TooLongError

        before = signal.signal(signal.SIGALRM, ring)
        signal.setitimer(signal.ITIMER_REAL, self.limit)
        try:
            return work()
        except TooLongError:
            return {"outcome": "timeout"}
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)

    def close(self) -> None:
        """Do nothing: the engine goes with this process."""


class Apart(peers.Process):
    """An engine in a process of its own."""

    def __init__(self, name: str, limit: float) -> None:
        super().__init__(WORKER, name)
        self.limit = limit
        self.running()

    @property
    def setup_s(self) -> float:
        """The seconds that the engine took before its first schema."""
        return float(self.ready["setup_s"])

    def ask(self, case: Record, texts: list[list[int]]) -> Record:
        """Return what the engine does with a schema."""
        self.send(json.dumps([case, texts]))
        answer = self.answer(self.limit)
        return {"outcome": answer} if isinstance(answer, str) else answer


def _texts(case: Record, tokenizer: peers.Tokenizer) -> list[list[int]]:
    return [tokenizer.encode(json.dumps(test["data"], ensure_ascii=False)) for test in case["tests"]]


def measure(cases: list[Record], names: list[str], limit: float = TIMEOUT) -> list[Record]:
    """Return a record for each case and engine; engines take some schemas each in turn, each time another one first.

    As many as there are between two collections: what one engine reads all the time is in the processor's caches when
    it is timed, as where it serves, and a machine that becomes slower does so for all of them.
    """
    tokenizer = peers.tekken()
    runners = {name: Apart(name, limit) if name in APART else Here(name, tokenizer, limit) for name in names}
    records = []
    settle()
    try:
        with Progress(console=console) as progress:
            task = progress.add_task("schemas", total=len(cases) * len(names))
            for turn, begin in enumerate(range(0, len(cases), COLLECTED)):
                some = [(case, _texts(case, tokenizer)) for case in cases[begin : begin + COLLECTED]]
                first = turn % len(names)
                for name in names[first:] + names[:first]:
                    for case, texts in some:
                        found = runners[name].ask(case, texts)
                        records.append({"engine": name, "id": case["id"], "group": case["group"], **found})
                        progress.advance(task)
                    gc.collect()
        mine, own = runners.get(OURS), [record for record in records if record["engine"] == OURS]
        if isinstance(mine, Here):  # last, as whole tables push what steps need out of the processor's caches
            for record, case in track(list(zip(own, cases, strict=True)), "whole tables", console=console):
                if record["outcome"] in ("pass", "wrong accept", "wrong refusal"):
                    found = mine.whole(case)
                    record.update({"whole": found["outcome"]} if "outcome" in found else found)
                    gc.collect()
                if record["outcome"] == "wrong refusal":
                    record.update(mine.reordered(case, record["tests"]))
    finally:
        gc.enable()
        gc.unfreeze()
        for runner in runners.values():
            runner.close()
    for record in records:
        record["setup_s"] = runners[record["engine"]].setup_s
    return records
