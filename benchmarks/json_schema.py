"""JSON Schemas on a real vocabulary: what is enforced, compiling, masks and sizes, against two published engines.

Claims checked here (Tekken, 131,072 tokens; schemas with instances that are known to be valid or not):

- at least 96 % of the schemas pass: every valid instance is accepted, every invalid one refused;
- no invalid instance is accepted, and of at most 0.3 % of the schemas a valid one is refused;
- from a schema to its first mask takes at most 3 times llguidance's time in the median, twice at the 99th percentile,
  and never 5 s;
- one mask and one advance take at most 5 microseconds in the median, 20 at the 99th percentile, and never 1 ms;
- a table takes at most 256 KB in the median, the part that all tables share aside.

    python benchmarks/json_schema.py --data FILE        all engines, in turn, some schemas each
    python benchmarks/json_schema.py                    the few schemas below, to see that it runs
    python benchmarks/json_schema.py --data FILE --limit 5 --engines maskwright llguidance

FILE has one JSON object a line, perhaps compressed (.xz, .gz): `id`, `group`, `schema` and `tests`, a list of
{"valid": bool, "data": value}. With it, `results/json_schema.json` is written, and table and plot are made from that;
without, or with --limit or --quick, they go to a folder of their own. Measured are schemas of MaskBench
(guidance-ai/jsonschemabench), brought into this form.

maskwright and llguidance run in this process. xgrammar runs in one of its own, which waits while the others work: its
native code cannot be interrupted, and with some schemas it does not come back. maskwright with members in any order has
one too, as what it finds would be known to the other. Whole tables are worked out last; garbage is collected between
schemas, outside of what is timed. What an engine remembers of the schemas before stays with it. An
instance is written as `json.dumps` does, without escaping what is not ASCII, and its members come as they do in FILE.
The engines ask for them in the schema's order: where ours refuses a valid instance, it is asked about that order last.
"""

from __future__ import annotations

import argparse
import collections
import gc
import gzip
import itertools
import json
import lzma
import os
import resource
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import peers
from harness import Bar, as_code, grid, machine, processor_seconds, save, write_json, write_report
from rich.console import Console
from rich.progress import Progress, track

RESULTS = Path(__file__).parent / "results"
OURS, ANY_ORDER, REFERENCE = "maskwright", "maskwright, any order", "llguidance"
APART = ("xgrammar", ANY_ORDER)  # in a process of their own: what ours knows of strings must not be known by then
TIMEOUT = 30.0  # seconds for one schema, its instances included
MEMORY = 12e9  # bytes that an engine apart may take
COLLECTED = 32  # schemas between garbage collections: what comes after one finds caches and free lists empty
BARS = {
    "pass_share": 0.96, "wrong_accepts": 0, "wrong_refusal_share": 0.003, "first_p50": 3.0, "first_p99": 2.0,
    "first_worst_s": 5.0, "step_p50_us": 5.0, "step_p99_us": 20.0, "step_worst_us": 1000.0, "bytes_p50": 256 * 1024,
}  # fmt: skip
OUTCOMES = ("pass", "wrong accept", "wrong refusal", "refused", "timeout", "died")
PERCENTILES = (50, 90, 99, 99.9, 100)
WARM: Any = {"type": "object", "properties": {"a": {"type": ["string", "number"]}, "b": {"type": "array"}}}
console = Console(stderr=True)

Record = dict[str, Any]


# ------------------------------------------------------------------------------------------------------- schemas


def _case(group: str, name: str, schema: Any, valid: list[Any], invalid: list[Any]) -> Record:
    tests = [{"valid": True, "data": data} for data in valid] + [{"valid": False, "data": data} for data in invalid]
    return {"id": name, "group": group, "schema": schema, "tests": tests}


_STRING, _INTEGER, _NUMBER = {"type": "string"}, {"type": "integer"}, {"type": "number"}
_SKU = {"type": "string", "pattern": "^[A-Z]{3}-[0-9]+$"}


def _object(properties: Any, required: list[str], closed: bool = False) -> dict[str, Any]:
    schema = {"type": "object", "properties": properties, "required": required}
    return {**schema, "additionalProperties": False} if closed else schema


CASES = [
    _case(
        "records", "order",
        {
            "$defs": {
                "customer": _object(
                    {"name": {"type": "string", "minLength": 1}, "email": {"type": "string", "format": "email"}},
                    ["name"],
                ),
                "line": _object({"sku": _SKU, "count": _INTEGER}, ["sku", "count"], True),
            },
            **_object(
                {
                    "id": {"type": "integer", "minimum": 1},
                    "customer": {"$ref": "#/$defs/customer"},
                    "lines": {"type": "array", "items": {"$ref": "#/$defs/line"}, "minItems": 1},
                },
                ["id", "lines"],
                True,
            ),
        },
        [
            {"id": 7, "customer": {"name": "Ada", "email": "ada@example.com"}, "lines": [{"sku": "ABC-1", "count": 2}]},
            {"id": 8, "lines": [{"sku": "XYZ-42", "count": 1}, {"sku": "ABC-7", "count": 30}]},
        ],
        [
            {"id": 0, "lines": [{"sku": "ABC-1", "count": 2}]},
            {"id": 7, "lines": []},
            {"id": 7, "lines": [{"sku": "abc", "count": 2}]},
            {"id": 7, "customer": {"name": ""}, "lines": [{"sku": "ABC-1", "count": 2}]},
            {"id": 7, "lines": [{"sku": "ABC-1", "count": 2}], "note": "x"},
        ],
    ),
    _case(
        "records", "settings",
        {
            "type": "object",
            "properties": {"level": {"enum": ["debug", "info", "error"]}, "port": {"type": "integer", "maximum": 9999}},
            "patternProperties": {"^x-": _STRING},
            "additionalProperties": {"type": "boolean"},
        },
        [{"level": "info", "port": 8080, "x-a": "1", "verbose": True}, {}],
        [{"level": "warn"}, {"port": 10000}, {"x-a": 1}, {"verbose": "yes"}, []],
    ),
    _case(
        "recursion", "tree",
        _object({"value": _NUMBER, "children": {"type": "array", "items": {"$ref": "#"}}}, ["value"], True),
        [{"value": 1, "children": [{"value": 2.5, "children": []}, {"value": -300.0}]}],
        [{"value": 1, "children": [{"children": []}]}, {"value": 1, "children": {}}, {"children": []}],
    ),
    _case("recursion", "any JSON", True, [[{"a": [None, True, "x", {"b": [[]]}]}], "\u03c0\n", -0.25], []),
    _case(
        "logic", "shape",
        {
            "type": "object",
            "oneOf": [
                {"properties": {"kind": {"const": "circle"}, "radius": _NUMBER}, "required": ["kind", "radius"]},
                {"properties": {"kind": {"const": "square"}, "side": _NUMBER}, "required": ["kind", "side"]},
            ],
        },
        [{"kind": "circle", "radius": 2}, {"kind": "square", "side": 1.5}],
        [{"kind": "circle", "side": 2}, {"kind": "oval", "radius": 1}],
    ),
    _case(
        "logic", "card or cash",
        {
            **_object({"method": {"enum": ["card", "cash"]}, "number": _STRING}, ["method"]),
            "if": {"properties": {"method": {"const": "card"}}},
            "then": {"required": ["number"]},
            "else": {"not": {"required": ["number"]}},
        },
        [{"method": "card", "number": "4111"}, {"method": "cash"}],
        [{"method": "card"}, {"method": "cash", "number": "4111"}],
    ),
    _case(
        "logic", "one or two sevens",
        {"type": "array", "items": _INTEGER, "contains": {"multipleOf": 7}, "maxContains": 2},
        [[1, 7, 14], [21]],
        [[], [1, 2], [7, 7, 7]],
    ),
    _case(
        "scalars", "temperature",
        {"type": "number", "exclusiveMinimum": -273.25, "multipleOf": 0.25},
        [21.5, 0, -273],
        [-273.25, -274, 0.1, "21.5"],
    ),
    _case(
        "scalars", "when",
        {"type": "string", "format": "date"},
        ["2024-02-29", "1999-12-31"],
        ["2023-02-29", "2024-04-31", "2024-1-1", ""],
    ),
    _case(
        "scalars", "short text",
        {"type": "string", "minLength": 2, "maxLength": 12},
        ["gr\u00f6\u00dfe", "\u65e5\u672c\u8a9e", 'a "b"'],
        ["a", "a little too long"],
    ),
]  # fmt: skip


def read(path: Path) -> Iterator[Record]:
    """Yield the cases of a file of JSON lines, perhaps compressed."""
    opened: Any = {".xz": lzma.open, ".gz": gzip.open}.get(path.suffix, open)
    with opened(path, "rt", encoding="utf-8") as lines:
        yield from map(json.loads, lines)


def limited(cases: Iterable[Record], most: int | None) -> list[Record]:
    """Return the first cases of each group."""
    seen: collections.Counter[str] = collections.Counter()
    out = []
    for case in cases:
        seen[case["group"]] += 1
        if most is None or seen[case["group"]] <= most:
            out.append(case)
    return out


# ------------------------------------------------------------------------------------------------------- engines


class Maskwright(peers.Maskwright):
    """`compile_json_schema` and `Matcher`."""

    def compile(self, schema: Any) -> Any:
        """Return a schema's table."""
        return self.mw.compile_json_schema(schema, self.vocab)


class AnyOrder(Maskwright):
    """The same, members in any order."""

    def compile(self, schema: Any) -> Any:
        """Return a schema's table."""
        return self.mw.compile_json_schema(schema, self.vocab, any_order=True)


class Llguidance(peers.Llguidance):
    """llguidance: an Earley parser over derivatives, as it is used for JSON Schema."""

    def compile(self, schema: Any) -> Any:
        """Return a matcher at the start, which sessions copy."""
        grammar = self.lib.LLMatcher.grammar_from_json_schema(json.dumps(schema))
        matcher = self.lib.LLMatcher(self.tokenizer, grammar, log_level=0)
        if matcher.is_error():
            raise ValueError(matcher.get_error())
        return matcher


class Xgrammar(peers.Xgrammar):
    """xgrammar, with any white space, and with additional members where a schema allows them."""

    def compile(self, schema: Any) -> Any:
        """Return a compiled grammar."""
        return self.compiler.compile_json_schema(json.dumps(schema), any_whitespace=True, strict_mode=False)


ENGINES: dict[str, Callable[[peers.Tokenizer], Any]] = {
    OURS: Maskwright,
    ANY_ORDER: AnyOrder,
    "llguidance": Llguidance,
    "xgrammar": Xgrammar,
}


# ------------------------------------------------------------------------------------------------------- measuring


class TooLongError(Exception):
    """A schema took longer than it may."""


class Bench:
    """One engine, made and warm: compiles schemas and writes their instances, token by token."""

    def __init__(self, name: str, tokenizer: peers.Tokenizer) -> None:
        begin = time.perf_counter()
        self.name = name
        self.eos, self.spell = tokenizer.eos, tokenizer.spell
        self.engine = ENGINES[name](tokenizer)
        self.engine.session(self.engine.compile(WARM)).mask()
        self.setup_s = time.perf_counter() - begin  # paid once for a vocabulary
        self.shared = self.engine.compile(True).to_table().nbytes if name == OURS else 0

    def ask(self, case: Record, texts: list[list[int]]) -> Record:
        """Return what the engine does with a schema; texts: the tokens of its instances."""
        record: Record = {"steps_ns": []}
        begin = time.perf_counter()
        try:
            compiled = self.engine.compile(case["schema"])
            self.engine.session(compiled).mask()
        except TooLongError:
            raise
        except Exception as error:  # each engine has errors of its own; all mean that it refuses
            return {**record, "outcome": "refused", "error": f"{type(error).__name__}: {error}"[:300]}
        record["first_s"] = time.perf_counter() - begin
        wrong: dict[str, list[int]] = {"wrong accept": [], "wrong refusal": []}
        for at, (test, tokens) in enumerate(zip(case["tests"], texts, strict=True)):
            accepted = written(self.engine.session(compiled), tokens, self.eos, record["steps_ns"])
            if accepted != test["valid"]:
                wrong["wrong accept" if accepted else "wrong refusal"].append(at)
        record["outcome"] = next((kind for kind, tests in wrong.items() if tests), "pass")
        if record["outcome"] != "pass":
            record["tests"] = wrong[record["outcome"]]
        return record

    def whole(self, case: Record) -> Record:
        """Return what the whole table takes, which none of the above needs; it may be over its budget."""
        begin = time.perf_counter()
        try:
            compiled = self.engine.compile(case["schema"]).to_table()
            return {"whole_s": time.perf_counter() - begin, "bytes": compiled.nbytes - self.shared}
        except TooLongError:
            raise
        except Exception as error:
            return {"whole": f"{type(error).__name__}: {error}"[:300]}

    def reordered(self, case: Record, tests: list[int]) -> Record:
        """Return which of these tests, valid but refused, is also refused with members in the schema's order."""
        matcher = self.engine.mw.Matcher(self.engine.compile(case["schema"]))
        declared = list(dict.fromkeys(_declared(case["schema"])))

        def is_taken(value: Any) -> bool:
            matcher.reset()
            return any(matcher.is_accepting for _ in in_order(matcher, self.spell, value, declared))

        return {"refused in order": [at for at in tests if not is_taken(case["tests"][at]["data"])]}


def _declared(schema: Any) -> Iterator[tuple[str, ...]]:
    """Yield the names that each "properties" of a schema declares."""
    if isinstance(schema, dict):
        if isinstance(schema.get("properties"), dict):
            yield tuple(schema["properties"])
        for inner in schema.values():
            yield from _declared(inner)
    elif isinstance(schema, list):
        for inner in schema:
            yield from _declared(inner)


def in_order(
    matcher: Any, spell: Callable[[str], list[int]], value: Any, declared: list[tuple[str, ...]]
) -> Iterator[None]:
    """Write a value in the orders of its schema, and yield behind it whenever the matcher takes all of it.

    Which "properties" describe an object is not asked: its members come as each of them has these, then as the others
    do, then those that none declares.
    """

    def put(text: str) -> Iterator[None]:
        taken = 0
        for token in spell(text):
            if not matcher.advance(token):
                break
            taken += 1
        else:
            yield
        if taken:
            matcher.rollback(taken)

    def parts(left: list[tuple[str, Any]], end: str) -> Iterator[None]:
        if not left:
            yield from put(end)
            return
        before, inner = left[0]
        for _ in put(before):
            for _ in in_order(matcher, spell, inner, declared):
                yield from parts(left[1:], end)

    if isinstance(value, dict):
        orders = {tuple(value): 0}  # each with how many of the names it was made from are here
        for names in declared:
            place = {name: at for at, name in enumerate(dict.fromkeys(itertools.chain(names, *declared)))}
            orders[tuple(sorted(value, key=lambda key: place.get(key, len(place))))] = len(value.keys() & names)
        for order in sorted(orders, key=lambda order: -orders[order]):
            members = [
                (", " * (at > 0) + json.dumps(key, ensure_ascii=False) + ": ", value[key])
                for at, key in enumerate(order)
            ]
            for _ in put("{"):
                yield from parts(members, "}")
    elif isinstance(value, list):
        for _ in put("["):
            yield from parts([(", " * (at > 0), item) for at, item in enumerate(value)], "]")
    else:
        yield from put(json.dumps(value, ensure_ascii=False))


def written(session: peers.Session, tokens: list[int], eos: int, took: list[int]) -> bool:
    """Return whether a new session takes all tokens and then EOS; append the nanoseconds of each mask and commit."""
    clock, mask, commit = time.perf_counter_ns, session.mask, session.commit
    for token in tokens:
        begin = clock()
        mask()
        try:
            taken = commit(token)
        except ValueError:
            taken = False
        took.append(clock() - begin)
        if taken is False:
            return False
    mask()
    return not session.fault() and peers.allows(session.bits(), eos)


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


class Apart:
    """An engine in a process of its own, killed and started anew when it takes too long or dies."""

    def __init__(self, name: str, tokenizer: peers.Tokenizer, limit: float) -> None:
        self.name, self.limit = name, limit
        self.process: subprocess.Popen[bytes] | None = None
        self.setup_s = 0.0
        self._running()

    def ask(self, case: Record, texts: list[list[int]]) -> Record:
        """Return what the engine does with a schema."""
        process = self._running()
        assert process.stdin is not None
        process.stdin.write(json.dumps([case, texts]).encode() + b"\n")
        answer = self._line(process, self.limit)
        return {"outcome": answer} if isinstance(answer, str) else answer

    def _running(self) -> subprocess.Popen[bytes]:
        if self.process is None:
            command = [sys.executable, __file__, "--worker", self.name]
            self.process = subprocess.Popen(
                # unbuffered: `select` must see what has not been read
                command, bufsize=0, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            )  # fmt: skip
            ready = self._line(self.process, 300.0)
            if isinstance(ready, str):
                raise RuntimeError(f"the worker did not start ({ready}): run `{' '.join(command)}` to see why")
            self.setup_s = ready["setup_s"]
        return self.process

    def _line(self, process: subprocess.Popen[bytes], limit: float) -> Record | str:
        """Return the next answer, or why there is none, with the process ended."""
        assert process.stdout is not None
        begin, spent = time.monotonic(), processor_seconds(process.pid)
        outcome, line = "timeout", b""
        # processor time is what counts, since other work may share the machine; four times that ends it in any case
        while processor_seconds(process.pid) - spent < limit and time.monotonic() - begin < 4 * limit:
            if select.select([process.stdout], [], [], 0.5)[0]:
                some = os.read(process.stdout.fileno(), 1 << 20)
                line += some
                if line.endswith(b"\n"):
                    answer: Record = json.loads(line)
                    return answer
                if not some:
                    outcome = "died"
                    break
        self.close()
        return outcome

    def close(self) -> None:
        """End the process."""
        if self.process is not None:
            self.process.kill()
            self.process.communicate()
            self.process = None


def work(name: str) -> None:
    """Answer on standard output what an engine does with the schemas on standard input, until that ends."""
    resource.setrlimit(resource.RLIMIT_AS, (int(MEMORY), int(MEMORY)))
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what native code prints must not come between the answers
    bench = Bench(name, peers.tekken())
    print(json.dumps({"setup_s": bench.setup_s}), file=answer, flush=True)
    _settle()
    for i, line in enumerate(sys.stdin):
        print(json.dumps(bench.ask(*json.loads(line))), file=answer, flush=True)
        if i % COLLECTED == 0:
            gc.collect()


def _settle() -> None:
    """Keep the garbage collector out of what is timed, as timeit does, and make it quick between schemas."""
    gc.collect()
    gc.freeze()
    gc.disable()


def _texts(case: Record, tokenizer: peers.Tokenizer) -> list[list[int]]:
    return [tokenizer.encode(json.dumps(test["data"], ensure_ascii=False)) for test in case["tests"]]


def measure(cases: list[Record], names: list[str], limit: float = TIMEOUT) -> list[Record]:
    """Return a record for each case and engine; engines take some schemas each in turn, each time another one first.

    As many as there are between two collections: what one engine reads all the time is in the processor's caches when
    it is timed, as where it serves, and a machine that becomes slower does so for all of them.
    """
    tokenizer = peers.tekken()
    runners = {name: (Apart if name in APART else Here)(name, tokenizer, limit) for name in names}
    records = []
    _settle()
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


# --------------------------------------------------------------------------------------------------------- results


def summary(records: list[Record], names: list[str]) -> list[Record]:
    """Return for each engine what it did, of each group and of all schemas together."""
    out = []
    for name in names:
        mine = [record for record in records if record["engine"] == name]
        for group in ["all", *sorted({record["group"] for record in mine})]:
            some = [record for record in mine if group in ("all", record["group"])]
            counts = collections.Counter(record["outcome"] for record in some)
            row: Record = {"engine": name, "group": group, "schemas": len(some)}
            row |= {outcome: counts[outcome] for outcome in OUTCOMES}
            if name == OURS:
                row["refused in order"] = sum(bool(record.get("refused in order")) for record in some)
            first = [1e3 * record["first_s"] for record in some if "first_s" in record]
            steps = [ns / 1e3 for record in some for ns in record.get("steps_ns", ())]
            whole = [1e3 * record["whole_s"] for record in some if "whole_s" in record]
            sizes = [record["bytes"] for record in some if "bytes" in record]
            row["steps"] = len(steps)
            for key, values in (("first_ms", first), ("step_us", steps), ("whole_ms", whole), ("bytes", sizes)):
                if values:
                    row[key] = {f"p{q}": float(np.percentile(values, q)) for q in PERCENTILES}
            if group == "all":
                row["setup_s"] = mine[0]["setup_s"]
                quantiles = [*range(1, 100), 99.5, 99.9, 99.99, 100]
                for key, values in (("first_ms", first), ("step_us", steps)):
                    row[f"{key}_quantiles"] = np.percentile(values, quantiles).round(3) if values else []
                row["quantiles"] = quantiles
            out.append(row)
    return out


def faults(records: list[Record]) -> list[Record]:
    """Return the records of schemas that did not pass, without their steps."""
    return [
        {key: value for key, value in record.items() if key not in ("steps_ns", "setup_s")}
        for record in records
        if record["outcome"] != "pass"
    ]


def bars(rows: list[Record]) -> list[Bar]:
    """Return (what, bar, measured, held) for each claim; `held` is None where something was not measured."""
    totals = {row["engine"]: row for row in rows if row["group"] == "all"}
    mine, theirs = totals.get(OURS), totals.get(REFERENCE)
    out: list[Bar] = []
    if mine is None:
        return out
    count = mine["schemas"]
    passed, accepts, most = mine["pass"], mine["wrong accept"], BARS["wrong_refusal_share"]
    out.append(
        (
            "schemas passed", f"{BARS['pass_share']:.0%}", f"{passed:,} of {count:,}, {passed / count:.1%}",
            passed >= BARS["pass_share"] * count,
        )
    )  # fmt: skip
    out.append(("invalid instances accepted", "of 0 schemas", f"of {accepts:,}", accepts == 0))
    refusals = {
        "valid instances refused as they are written": mine["wrong refusal"],
        "valid instances refused with members in the schema's order": mine["refused in order"],
    }
    if ANY_ORDER in totals:
        refusals[f"{ANY_ORDER}: valid instances refused"] = totals[ANY_ORDER]["wrong refusal"]
    for what, some in refusals.items():
        out.append((what, f"of {most:.1%} of schemas", f"of {some:,}, {some / count:.2%}", some <= most * count))
    for q in (50, 99):
        bar = BARS[f"first_p{q}"]
        ms = mine["first_ms"][f"p{q}"] if "first_ms" in mine else None
        base = theirs["first_ms"][f"p{q}"] if theirs and "first_ms" in theirs else None
        said = f"{ms:,.2f} ms" + (f": {REFERENCE} x {ms / base:.2f}" if base else "") if ms else ""
        held = ms <= bar * base if ms and base else None
        out.append((f"schema to first mask, p{q}", f"{REFERENCE} x {bar:g}", said, held))
    if "first_ms" in mine:
        worst = mine["first_ms"]["p100"] / 1e3
        said = f"{worst:,.2f} s"
        out.append(
            ("schema to first mask, worst", f"{BARS['first_worst_s']:g} s", said, worst <= BARS["first_worst_s"])
        )
    if "step_us" in mine:
        for q, name in ((50, "step_p50_us"), (99, "step_p99_us"), (100, "step_worst_us")):
            value, what = mine["step_us"][f"p{q}"], f"p{q}" if q < 100 else "worst"
            out.append((f"mask and advance, {what}", f"{BARS[name]:,g} us", f"{value:,.2f} us", value <= BARS[name]))
    if "bytes" in mine:
        size, bar = mine["bytes"]["p50"], BARS["bytes_p50"]
        said = f"{size / 1024:,.1f} KB"
        out.append(("bytes of a table, shared part aside, p50", f"{bar / 1024:.0f} KB", said, size < bar))
    return out


def report(results: Record, folder: Path) -> None:
    """Write json_schema.md and json_schema.png, and print the bars."""
    rows = results["summary"]
    about = (
        "Made by `python benchmarks/json_schema.py` from `json_schema.json` beside it. Tekken, 131,072 tokens; "
        f"{results['data']}."
    )
    engines = [row["engine"] for row in rows if row["group"] == "all"]
    lines = [*_totals(rows), *_groups(rows), *_faults(results["faults"], engines)]
    write_report(folder / "json_schema.md", "JSON Schema", about, results, bars(rows), lines)
    _plot(rows, folder / "json_schema.png")


def _totals(rows: list[Record]) -> list[str]:
    totals = [row for row in rows if row["group"] == "all"]

    def spread(key: str) -> list[list[Any]]:
        return [[row["engine"], *row[key].values()] for row in totals if key in row]

    names = [f"p{q:g}" if q < 100 else "worst" for q in PERCENTILES]
    return [
        "## All schemas",
        "",
        "A schema passes if every valid instance is accepted and every invalid one refused. An engine accepts an "
        "instance if it takes every token and its mask then allows EOS.",
        "",
        *grid(
            ["engine", "schemas", *OUTCOMES, "setup, s"],
            [[row["engine"], row["schemas"], *(row[key] for key in OUTCOMES), row["setup_s"]] for row in totals],
        ),
        "Milliseconds from a schema to its first mask, in a warm process, the schema new to it:",
        "",
        *grid(["engine", *names], spread("first_ms")),
        "Microseconds of one mask and one commit:",
        "",
        *grid(["engine", *names], spread("step_us")),
        "Milliseconds to a whole table, as a device needs it; a matcher on the host does not:",
        "",
        *grid(["engine", *names], spread("whole_ms")),
        "Bytes of a table beyond those of the schema `true`, which all tables of one vocabulary share:",
        "",
        *grid(["engine", *names], spread("bytes")),
    ]


def _groups(rows: list[Record]) -> list[str]:
    names = [row["engine"] for row in rows if row["group"] == "all"]
    by = {(row["engine"], row["group"]): row for row in rows}
    groups = sorted({row["group"] for row in rows} - {"all"})

    def middle(row: Record, key: str) -> float | None:
        return float(row[key]["p50"]) if key in row else None

    return [
        "## Groups",
        "",
        "Schemas passed, milliseconds to the first mask (median), microseconds of mask and commit (median).",
        "",
        *grid(
            ["group", "schemas", *names, *(f"first, {name}" for name in names), *(f"step, {name}" for name in names)],
            [
                [
                    group,
                    by[names[0], group]["schemas"],
                    *(by[name, group]["pass"] for name in names),
                    *(middle(by[name, group], "first_ms") for name in names),
                    *(middle(by[name, group], "step_us") for name in names),
                ]
                for group in groups
            ],
        ),
    ]


def _faults(records: list[Record], names: list[str]) -> list[str]:
    lines = ["## What did not pass", ""]
    for name in names:
        mine = [record for record in records if record["engine"] == name]
        lines += [f"### {name}", ""]
        wrong = [[r["id"], r["group"], r["outcome"]] for r in mine if r["outcome"] != "refused"]
        reasons = collections.Counter(as_code(record["error"]) for record in mine if record["outcome"] == "refused")
        lines += grid(["schema", "group", "what it does"], wrong[:_MOST_SHOWN]) if wrong else []
        if len(wrong) > _MOST_SHOWN:
            lines += [f"And {len(wrong) - _MOST_SHOWN} more.", ""]
        refused = [[count, reason] for reason, count in reasons.most_common(_MOST_SHOWN)]
        lines += grid(["schemas", "refused, because"], refused) if refused else []
        if not mine:
            lines += ["None.", ""]
    return lines


_MOST_SHOWN = 25


def _plot(rows: list[Record], path: Path) -> None:
    figure, axes = plt.subplots(1, 2, figsize=(13, 5))
    colours = dict(zip(ENGINES, ("C3", "C1", "C0", "C2"), strict=True))
    for axis, key, title, unit in (
        (axes[0], "first_ms", "schema to first mask", "milliseconds"),
        (axes[1], "step_us", "mask and commit, one sequence", "microseconds"),
    ):
        for row in rows:
            if row["group"] == "all" and len(row[f"{key}_quantiles"]):
                axis.semilogx(
                    row[f"{key}_quantiles"], row["quantiles"], label=row["engine"], color=colours[row["engine"]]
                )
        axis.set(title=title, xlabel=unit, ylabel="percent below")
    save(figure, path)


def main() -> None:
    """Measure, and make the reports."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, metavar="FILE", help="schemas, one a line; without, the few in this file")
    parser.add_argument("--limit", type=int, metavar="N", help="the first N schemas of each group")
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=list(ENGINES))
    parser.add_argument("--timeout", type=float, default=TIMEOUT, help="seconds for one schema, its instances included")
    parser.add_argument("--quick", action="store_true", help="one schema of each group, to see that it runs")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="where the results go")
    parser.add_argument("--worker", choices=ENGINES, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        work(arguments.worker)
        return
    limit = 1 if arguments.quick else arguments.limit
    cases = limited(read(arguments.data) if arguments.data else CASES, limit)
    whole = arguments.data is not None and limit is None
    folder = arguments.out or (RESULTS if whole else Path(tempfile.gettempdir()) / "maskwright-json-schema")
    records = measure(cases, arguments.engines, arguments.timeout)
    versions = peers.versions([name for name in arguments.engines if name != ANY_ORDER])
    results: Record = {
        "data": f"{len(cases):,} schemas" + (f" of {arguments.data.name}" if arguments.data else " of this file"),
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
