"""All engines over all grammars and their texts."""

from __future__ import annotations

import gc
import importlib
import json
import math
import subprocess
import sys
import time
from typing import Any

from rich.console import Console
from rich.progress import track

from ... import peers
from ...harness import ROOT
from .cases import Case, cases
from .engines import ENGINES, OURS, Maskwright, ebnf

WAYS = ("regular", "delimited", "as it is read")


WARM = 'start: "a" [start] "b" | /[c-e]+/'  # compiled first, so that a process is warm
console = Console(stderr=True)


Record = dict[str, Any]


def walk(session: peers.Session, tokens: list[int], eos: int, took: list[int]) -> tuple[bool, bool]:
    """Return whether a new session takes all tokens and then EOS, and whether some mask forbade one that it took.

    Appends the nanoseconds of each mask and commit. Raises peers.FaultError where the engine gives up.
    """
    clock, mask, commit, narrow = time.perf_counter_ns, session.mask, session.commit, False
    for token in tokens:
        begin = clock()
        mask()
        masked = clock() - begin
        if fault := session.fault():
            raise peers.FaultError(fault)
        allowed = peers.allows(session.bits(), token)
        begin = clock()
        try:
            taken = commit(token) is not False
        except ValueError:
            taken = False
        took.append(masked + clock() - begin)
        if allowed and not taken:
            raise peers.FaultError(f"refuses token {token}, which its mask allows")
        if not taken:
            return False, narrow
        narrow |= not allowed
    mask()
    if fault := session.fault():
        raise peers.FaultError(fault)
    return peers.allows(session.bits(), eos), narrow


def first_mask(engine: Any, case: Case) -> tuple[Any, float]:
    """Return a compiled grammar and the processor's seconds from its text to the first mask."""
    begin = time.process_time()
    compiled = engine.compile(case)
    engine.session(compiled).mask()
    return compiled, time.process_time() - begin


def ask(engine: Any, case: Case, tokenizer: peers.Tokenizer, rounds: int, limit: float) -> Record:
    """Return what an engine does with a grammar: its answers, and the time they took.

    A round compiles anew; what takes longer than `limit` seconds is not done again, and no further text is read.
    """
    record: Record = {"first_ms": [], "again_ms": [], "steps_ns": {"first": [], "again": []}}
    record |= {"read": 0, "wrong": [], "narrow": 0}
    begin = time.perf_counter()
    try:
        engine.forget()
        compiled, seconds = first_mask(engine, case)
    except Exception as error:  # each engine has errors of its own; all mean that it refuses
        return {**record, "refused": f"{type(error).__name__}: {error}"[:300]}
    record["first_ms"].append(1e3 * seconds)
    while len(record["first_ms"]) < rounds and time.perf_counter() - begin < limit:
        engine.forget()
        record["first_ms"].append(1e3 * first_mask(engine, case)[1])
        record["again_ms"].append(1e3 * first_mask(engine, case)[1])
        gc.collect()
    texts = [(text, inside, tokenizer.encode(text)) for text, inside in case.texts]
    for which in ("first", "again"):
        found = answers(engine, compiled, texts, tokenizer.eos, record["steps_ns"][which], limit)
        if which == "first":
            record |= found
    record["bytes"] = engine.size(compiled)
    return record


def answers(
    engine: Any, compiled: Any, texts: list[tuple[str, bool, list[int]]], eos: int, took: list[int], limit: float
) -> Record:
    """Return how many texts were read in time, which of them wrongly, and of how many a mask is too narrow."""
    found: Record = {"read": 0, "wrong": [], "narrow": 0}
    begin = time.perf_counter()
    for text, inside, tokens in texts:
        if time.perf_counter() - begin > limit:
            break
        found["read"] += 1
        try:
            accepted, narrow = walk(engine.session(compiled), tokens, eos, took)
            said = "accepts" if accepted else "refuses"
        except peers.FaultError as error:
            accepted, narrow, said = not inside, False, f"gives up: {error}"[:200]
        found["narrow"] += accepted and narrow
        if accepted != inside:
            found["wrong"].append({"text": text, "said": said})
    return found


def whole(engine: Maskwright, case: Case, tokenizer: peers.Tokenizer) -> Record:
    """Return which way down a grammar takes with maskwright, and, where it has a whole table, what that is like."""
    compiled = engine.compile(case)
    begin = time.process_time()
    try:
        table = compiled.to_table()
    except (engine.mw.errors.NoTableError, engine.mw.errors.BudgetError) as error:
        way = WAYS[2]
        if isinstance(error, engine.mw.errors.BudgetError):  # a table that there is, but not within the budget
            tokens = [b"", *(bytes([byte]) for byte in range(256))]
            small = engine.mw.compile_grammar(case.lark, engine.mw.Vocabulary.from_bytes(tokens, eos=0))
            way = WAYS[small.to_table().is_nested]
        return {"way": way, "whole": f"{error}".split("\n", 1)[0][:200]}
    milliseconds = 1e3 * (time.process_time() - begin)
    texts = [(text, inside, tokenizer.encode(text)) for text, inside in case.texts]
    steps: dict[str, list[int]] = {"whole": [], "whole, again": []}
    for took in steps.values():
        found = answers(engine, table, texts, tokenizer.eos, took, math.inf)
    record = {"way": WAYS[1] if table.is_nested else WAYS[0], "whole_ms": milliseconds, "whole_bytes": table.nbytes}
    return {**record, "whole_wrong": found["wrong"], "whole_narrow": found["narrow"], "whole_ns": steps}


def measure(some: list[Case], names: list[str], rounds: int, limit: float) -> list[Record]:
    """Return a record for each grammar and engine; all engines take each grammar in turn, each another first."""
    tokenizer = peers.tekken()
    warm = _warm()
    engines: dict[str, Any] = {name: ENGINES[name](tokenizer) for name in names}
    for engine in engines.values():
        for _ in range(2):
            compiled, _ = first_mask(engine, warm)
            walk(engine.session(compiled), tokenizer.encode("aacbb"), tokenizer.eos, [])
    records = []
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        for i, case in enumerate(track(some, "grammars", console=console)):
            ebnf(case)  # not timed
            turn = i % len(names)
            for name in names[turn:] + names[:turn]:
                record: Record = {"engine": name, "grammar": case.name, "texts": len(case.texts)}
                record |= ask(engines[name], case, tokenizer, rounds, limit)
                if name == OURS:
                    record |= whole(engines[name], case, tokenizer)
                    record["steps_ns"] |= record.pop("whole_ns", {})
                records.append(record)
                gc.collect()
    finally:
        gc.enable()
        gc.unfreeze()
    return records


def _warm() -> Case:
    return Case("warm", "", WARM, WARM, (), (), ())


def process(name: str) -> Record:
    """Return what an engine takes in this process, which is new: seconds for its vocabulary, and for two grammars."""
    tokenizer = peers.tekken()
    one, other = cases(["json"]) + cases(["arithmetic"])
    if name == "xgrammar":  # in others it would do beforehand some of what is timed
        for case in (one, other):
            ebnf(case)
    importlib.import_module(ENGINES[name].package)  # as maskwright has been
    begin = time.perf_counter()
    engine = ENGINES[name](tokenizer)
    setup = time.perf_counter() - begin
    first, second = (first_mask(engine, case)[1] for case in (one, other))
    return {"setup_s": setup, "first_s": first, "second_s": second}


def new_process(name: str) -> Record:
    """Return what `process` measures in a process of its own."""
    command = [sys.executable, "-m", str(__package__), "--process", name]
    answer: Record = json.loads(subprocess.run(command, capture_output=True, check=True, text=True, cwd=ROOT).stdout)
    return answer
