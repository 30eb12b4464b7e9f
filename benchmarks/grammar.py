"""Grammars on a real vocabulary: right answers, compiling, masks and sizes, against two published engines.

Claims checked here (Tekken, 131,072 tokens; grammars and texts in and outside their languages are in `grammars/`):

- every text is accepted or refused as it should be;
- from a grammar to its first mask takes at most 3 times llguidance's time in the median;
- one mask and one advance on the host take at most 5 microseconds in the median and 20 at the 99th percentile on the
  tables of grammars that are regular or whose nesting is delimited, at the first use of a state and at the second;
- and where a grammar is read as it is, at most 8 in the median at the second use.

    python benchmarks/grammar.py                        everything, some minutes
    python benchmarks/grammar.py --quick                few rounds, to see that it runs
    python benchmarks/grammar.py --only json sql --engines maskwright llguidance

NAME.lark is a grammar in Lark's notation, NAME.json the texts: `inside`, `outside`, and `beyond`, which the language
has and the grammar leaves out. NAME.llguidance.lark is what llguidance needs spelled otherwise, as it has a lexer: no
lookahead, `~` for keywords, spaces between words only ignored. xgrammar gets EBNF made from NAME.lark by `to_ebnf`,
which is exact. All engines run in this process, each grammar in turn. An engine accepts a text if each mask allows the
next token, it takes it, and its last mask allows EOS. Compiling is measured in processor time, which leaves out what
other processes take; steps are too short for that.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import functools
import gc
import importlib
import itertools
import json
import math
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import peers
from harness import Bar, as_code, grid, machine, save, write_json, write_report
from rich.console import Console
from rich.progress import track

from maskwright.automata import ops
from maskwright.automata.dfa import Dfa
from maskwright.compile.grammar import form, terminals
from maskwright.compile.grammar.lark import read_lark

HERE = Path(__file__).parent
RESULTS, GRAMMARS = HERE / "results", HERE / "grammars"
OURS, REFERENCE = "maskwright", "llguidance"
BARS = {"first": 3.0, "p50_us": 5.0, "p99_us": 20.0, "read_p50_us": 8.0}
WAYS = ("regular", "delimited", "as it is read")
STYLES = {"first": ":", "again": "-", "whole": "--", "whole, again": "-."}  # walks: states' first use, their second
WARM = 'start: "a" [start] "b" | /[c-e]+/'  # compiled first, so that a process is warm
console = Console(stderr=True)

Record = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Case:
    """A grammar and its texts."""

    name: str
    title: str  # the first line of its file
    lark: str
    llguidance: str
    inside: tuple[str, ...]
    outside: tuple[str, ...]  # texts that are not in the language
    beyond: tuple[str, ...]  # texts that are, but that the grammar leaves out

    @property
    def texts(self) -> list[tuple[str, bool]]:
        """Every text, and whether the grammar derives it."""
        return [(text, True) for text in self.inside] + [(text, False) for text in (*self.outside, *self.beyond)]


def cases(only: Iterable[str] | None = None) -> list[Case]:
    """Return the grammars of this benchmark, or those named. Raises ValueError for a name that is none of them."""
    names = sorted(path.stem for path in GRAMMARS.glob("*.json"))
    unknown = sorted(set(only or ()) - set(names))
    if unknown:
        raise ValueError(f"no grammar is called {', '.join(unknown)}: there are {', '.join(names)}")
    return [_case(name) for name in names if only is None or name in only]


def _case(name: str) -> Case:
    lark = (GRAMMARS / f"{name}.lark").read_text()
    other = GRAMMARS / f"{name}.llguidance.lark"
    texts = json.loads((GRAMMARS / f"{name}.json").read_text())
    title = lark.split("\n", 1)[0].removeprefix("// ")
    kinds = (tuple(texts[kind]) for kind in ("inside", "outside", "beyond"))
    return Case(name, title, lark, other.read_text() if other.exists() else lark, *kinds)


# -------------------------------------------------------------------------------------------------- EBNF of a grammar


def to_ebnf(lark: str) -> str:
    """Return a grammar in Lark's notation as EBNF with the same language; terminals become expressions over classes."""
    grammar = read_lark(lark)
    names = {rule: f"r{i}_{re.sub('[^A-Za-z0-9_]', '_', rule)}" for i, rule in enumerate(grammar.rules)}
    written: dict[bytes, list[str]] = {}

    def terminal(dfa: Dfa) -> str:
        key = dfa.class_of.tobytes() + dfa.transition.tobytes() + dfa.accepting.tobytes()
        if key not in written:
            written[key] = automaton_rules(f"t{len(written)}", dfa)
        return written[key][0].split(" ", 1)[0]

    # any number of ignored words as one expression without a choice of how to cut them
    between = "" if grammar.ignored is None else f" {terminal(ops.star(grammar.ignored))}"

    def write(node: form.Node) -> str:
        if isinstance(node, form.Text):
            return f'"{_quoted(node.data.decode())}"{between}' if node.data else '""'
        if isinstance(node, form.Terminal):
            return terminal(node.dfa) + between
        if isinstance(node, form.Rule):
            return names[node.name]
        if isinstance(node, form.Sequence):
            return " ".join(map(write, node.items)) or '""'
        if isinstance(node, form.Choice):
            return f"({' | '.join(map(write, node.items))})"
        if isinstance(node, form.Repeat):
            times = {(0, None): "*", (1, None): "+", (0, 1): "?"}.get((node.low, node.high))
            high = "" if node.high is None else node.high
            return f"({write(node.item)}){times or f'{{{node.low},{high}}}'}"
        raise TypeError(f"a {type(node).__name__} cannot be written as EBNF")

    rules = [f"{names[rule]} ::= {write(node)}" for rule, node in grammar.rules.items()]
    return "\n".join([f"root ::={between} {names[grammar.start]}", *rules, *itertools.chain(*written.values())]) + "\n"


def automaton_rules(name: str, dfa: Dfa) -> list[str]:
    """Return EBNF rules for the words of a DFA, the first of them called `name`.

    One rule for each state that several lead to, a loop in it as a repeated class: the form that xgrammar is best at.
    Masks inside a string of JSON take it 13 microseconds so, and 76,000 where the string is one repeated group.
    """
    ways = [_characters(dfa, state) for state in range(dfa.num_states)]
    into = collections.Counter(target for state, row in enumerate(ways) for target in row if target != state)
    named = {0: name} | {state: f"{name}_{state}" for state in range(1, dfa.num_states) if into[state] > 1}

    def write(state: int) -> str:
        loop = f"{_class(ways[state][state], True)}*" if state in ways[state] else ""
        others = [f"{_class(points)} {reach(t)}".rstrip() for t, points in sorted(ways[state].items()) if t != state]
        if dfa.accepting[state]:
            others.append('""')
        rest = others[0] if len(others) == 1 else f"({' | '.join(others)})"
        return f"{loop} {rest if rest != empty else ''}".strip() or empty

    def reach(state: int) -> str:
        text = named[state] if state in named else write(state)
        return "" if text == empty else text

    empty = '""'
    return [f"{named[state]} ::= {write(state)}" for state in named]


def _characters(dfa: Dfa, state: int) -> dict[int, list[tuple[int, int]]]:
    """Return for each state that one character leads to from a state the ranges of these characters."""
    rows: Any = dfa.transition[:, dfa.class_of].tolist()
    memo: dict[tuple[int, int], list[tuple[int, int, int]]] = {}

    def behind(at: int, more: int) -> list[tuple[int, int, int]]:
        """Return what so many more bytes of a character lead to: (first, last, state), characters from 0."""
        if (at, more) not in memo:
            found = [(0, 0, at)] if not more else []
            for byte in range(64) if more else ():
                if (target := rows[at][0x80 + byte]) >= 0:
                    low = byte << 6 * (more - 1)
                    found += [(low + a, low + b, end) for a, b, end in behind(target, more - 1)]
            memo[at, more] = _joined(found)
        return memo[at, more]

    found = [(byte, byte, target) for byte in range(0x80) if (target := rows[state][byte]) >= 0]
    for first, last, bits, more in ((0xC2, 0xDF, 0x1F, 1), (0xE0, 0xEF, 0x0F, 2), (0xF0, 0xF4, 0x07, 3)):
        for byte in range(first, last + 1):
            if (target := rows[state][byte]) >= 0:
                low = (byte & bits) << 6 * more
                found += [(low + a, low + b, end) for a, b, end in behind(target, more)]
    out: dict[int, list[tuple[int, int]]] = collections.defaultdict(list)
    for a, b, end in _joined(found):
        out[end].append((a, b))
    return out


def _joined(found: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """Return ranges in order with neighbours that lead to one state as one; no text has what UTF-8 leaves out."""
    out: list[tuple[int, int, int]] = []
    for a, b, end in found:
        if out and out[-1][2] == end and (out[-1][1] + 1 == a or (out[-1][1], a) == (0xD7FF, 0xE000)):
            out[-1] = out[-1][0], b, end
        else:
            out.append((a, b, end))
    return out


def _class(ranges: list[tuple[int, int]], repeated: bool = False) -> str:
    if not repeated and len(ranges) == 1 and ranges[0][0] == ranges[0][1]:
        return f'"{_point(ranges[0][0])}"'
    return "[" + "".join(_point(a) if a == b else f"{_point(a)}-{_point(b)}" for a, b in ranges) + "]"


def _point(point: int) -> str:
    if point < 0x10000:
        return chr(point) if chr(point).isascii() and chr(point).isalnum() else f"\\u{point:04x}"
    return f"\\U{point:08x}"


def _quoted(text: str) -> str:
    return "".join(c if " " <= c <= "~" and c not in '"\\' else _point(ord(c)) for c in text)


# -------------------------------------------------------------------------------------------------------- engines


class Maskwright(peers.Maskwright):
    """`compile_grammar` and `Matcher`."""

    def compile(self, case: Case) -> Any:
        """Return a grammar's table."""
        return self.mw.compile_grammar(case.lark, self.vocab)

    def forget(self) -> None:
        """Have the next grammar's terminals made anew, as those of a grammar that nobody has compiled before."""
        terminals._memo.clear()

    def size(self, compiled: Any) -> int:
        """Return the bytes that a table takes after it was read."""
        return int(compiled.memory)


class Llguidance(peers.Llguidance):
    """llguidance: an Earley parser above a lexer by derivatives, made as they are needed."""

    def compile(self, case: Case) -> Any:
        """Return a matcher at the start, which sessions copy."""
        grammar = self.lib.LLMatcher.grammar_from_lark(case.llguidance)
        matcher = self.lib.LLMatcher(self.tokenizer, grammar, log_level=0)
        if matcher.is_error():
            raise ValueError(matcher.get_error())
        return matcher

    def forget(self) -> None:
        """Do nothing: it keeps nothing."""

    def size(self, compiled: Any) -> None:
        """Return nothing: it does not say."""


class Xgrammar(peers.Xgrammar):
    """xgrammar, with EBNF in place of Lark; turning one into the other is not timed."""

    def compile(self, case: Case) -> Any:
        """Return a compiled grammar."""
        return self.compiler.compile_grammar(ebnf(case))

    def forget(self) -> None:
        """Do nothing: its cache is off."""

    def size(self, compiled: Any) -> int:
        """Return the bytes of a compiled grammar."""
        return int(compiled.memory_size_bytes)


ENGINES: dict[str, Callable[[peers.Tokenizer], Any]] = {
    "maskwright": Maskwright,
    "llguidance": Llguidance,
    "xgrammar": Xgrammar,
}


@functools.cache
def ebnf(case: Case) -> str:
    """Return a case's grammar as EBNF."""
    return to_ebnf(case.lark)


# ------------------------------------------------------------------------------------------------------ measuring


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
    table = engine.compile(case)
    begin = time.process_time()
    try:
        table = table.to_table()
    except (engine.mw.NoTableError, engine.mw.BudgetError) as error:
        way = WAYS[2]
        if isinstance(error, engine.mw.BudgetError):  # a table that there is, but not within the budget
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
    engines = {name: ENGINES[name](tokenizer) for name in names}
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
                record = {"engine": name, "grammar": case.name, "texts": len(case.texts)}
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
    importlib.import_module(peers.ENGINES[name].package)  # as maskwright has been
    begin = time.perf_counter()
    engine = ENGINES[name](tokenizer)
    setup = time.perf_counter() - begin
    first, second = (first_mask(engine, case)[1] for case in (one, other))
    return {"setup_s": setup, "first_s": first, "second_s": second}


def new_process(name: str) -> Record:
    """Return what `process` measures in a process of its own."""
    command = [sys.executable, __file__, "--process", name]
    answer: Record = json.loads(subprocess.run(command, capture_output=True, check=True, text=True).stdout)
    return answer


# --------------------------------------------------------------------------------------------------------- results


def summary(records: list[Record], names: list[str]) -> list[Record]:
    """Return for each engine, way down and walk how long steps took; a grammar's way is the one maskwright takes."""
    ways = {record["grammar"]: record["way"] for record in records if "way" in record}
    out = []
    quantiles = [*range(1, 100), 99.5, 99.9, 100]
    for name in names:
        for kind in ("all", "table", *WAYS):
            within = {"all": WAYS, "table": WAYS[:2]}.get(kind, (kind,))
            for which in STYLES:
                steps = [
                    ns / 1e3
                    for record in records
                    if record["engine"] == name and ways.get(record["grammar"], WAYS[2]) in within
                    for ns in record["steps_ns"].get(which, ())
                ]
                if steps:
                    row: Record = {"engine": name, "way": kind, "walk": which, "steps": len(steps)}
                    row |= {f"p{q}": float(np.percentile(steps, q)) for q in (50, 90, 99, 99.9, 100)}
                    if kind == "all":  # for the plot
                        row |= {"quantiles": quantiles, "us": np.percentile(steps, quantiles).round(3).tolist()}
                    out.append(row)
    return out


def rows(records: list[Record]) -> list[Record]:
    """Return the records with quantiles in place of their steps."""
    out = []
    for record in records:
        row = {key: value for key, value in record.items() if key != "steps_ns"}
        for which, values in record["steps_ns"].items():
            if values:
                found = np.percentile(values, [50, 99, 100]) / 1e3
                row[f"{which}_us"] = dict(zip(("p50", "p99", "worst"), found.round(3).tolist(), strict=True))
        out.append(row)
    return out


def bars(results: Record) -> list[Bar]:
    """Return (what, bar, measured, held) for each claim; `held` is None where something was not measured."""
    by = {(row["engine"], row["grammar"]): row for row in results["grammars"]}
    steps = {(row["engine"], row["way"], row["walk"]): row for row in results["summary"]}
    mine = [row for (name, _), row in by.items() if name == OURS]
    if not mine:
        return []
    texts, wrong = sum(row["texts"] for row in mine), sum(row["texts"] for row in mine if "refused" in row)
    for row in mine:  # a text is wrong as it is read, on the whole table, or both
        ways = (row["wrong"], row["narrow"]), (row.get("whole_wrong", ()), row.get("whole_narrow", 0))
        wrong += max(len(others) + narrow for others, narrow in ways)
    peers_right = [f"{name} {_right(by, name)}" for name in results["versions"] if name != OURS]
    said = f"{texts - wrong:,} of {texts:,}" + (f"; {', '.join(peers_right)}" if peers_right else "")
    out: list[Bar] = [("right answers", "all texts", said, not wrong)]
    for key, what in (("first_ms", "text to first mask, terminals new"), ("again_ms", "the same grammar again")):
        ours, theirs = (_median(by, name, key) for name in (OURS, REFERENCE))
        said = f"{ours:.2f} ms" + (f": {REFERENCE} x {ours / theirs:.2f}" if theirs else "") if ours else ""
        held = ours <= BARS["first"] * theirs if ours and theirs else None
        out.append((f"{what}, median", f"{REFERENCE} x {BARS['first']:g}", said, held))
    all_have_tables = all("whole_ms" in row for row in mine if row.get("way") in WAYS[:2])
    for on, walked in (("tables", ("whole", "whole, again")), ("the same as they are read", ("first", "again"))):
        walks = [row for walk in walked if (row := steps.get((OURS, "table", walk)))]
        for quantile in ("p50", "p99"):
            said = "; ".join(f"{row['walk']} {row[quantile]:.2f}" for row in walks)
            bar = BARS[f"{quantile}_us"] if on == "tables" else None
            held = all_have_tables and all(row[quantile] <= bar for row in walks) if bar and walks else None
            what = f"mask and advance, regular and delimited, {on}, {quantile}"
            out.append((what, f"{bar:g} us" if bar else "", f"{said} us", held))
    row = steps.get((OURS, WAYS[2], "again"))
    said = f"{row['p50']:.2f} us" if row else ""
    held = row["p50"] <= BARS["read_p50_us"] if row else None
    out.append(("mask and advance, as it is read, second use, p50", f"{BARS['read_p50_us']:g} us", said, held))
    return out


def _right(by: dict[tuple[str, str], Record], engine: str) -> str:
    mine = [row for (name, _), row in by.items() if name == engine]
    read = sum(row.get("read", 0) for row in mine)
    unread = sum(row["texts"] for row in mine) - read
    right = read - sum(len(row["wrong"]) for row in mine)
    return f"{right:,} of {read:,}" + (f", {unread:,} not read" if unread else "")


def _median(by: dict[tuple[str, str], Record], engine: str, key: str) -> float | None:
    values = [float(np.median(row[key])) for (name, _), row in by.items() if name == engine and row[key]]
    return float(np.median(values)) if values else None


def report(results: Record, folder: Path) -> None:
    """Write grammar.md and grammar.png, and print the bars."""
    about = (
        "Made by `python benchmarks/grammar.py` from `grammar.json` beside it. Tekken, 131,072 tokens; "
        f"{len({row['grammar'] for row in results['grammars']})} grammars, in `benchmarks/grammars/`."
    )
    lines = [line for part in (_grammars, _steps, _processes, _wrong) for line in part(results)]
    write_report(folder / "grammar.md", "Grammars", about, results, bars(results), lines)
    _plot(results, folder / "grammar.png")


def _grammars(results: Record) -> list[str]:
    names = list(results["versions"])
    by = {(row["engine"], row["grammar"]): row for row in results["grammars"]}
    grammars = sorted({row["grammar"] for row in results["grammars"]})

    def answers(row: Record) -> str:
        if "refused" in row:
            return "refused"
        right = f"{row['read'] - len(row['wrong'])}"
        return right + (f" of {row['read']} read" if row["read"] < row["texts"] else "")

    def middle(row: Record, key: str) -> float | None:
        return float(np.median(row[key])) if row[key] else None

    def step(row: Record, which: str) -> float | None:
        return float(row[f"{which}_us"]["p50"]) if f"{which}_us" in row else None

    def size(row: Record) -> str:
        return f"{row['bytes'] / 1024:,.0f}" if row.get("bytes") else ""

    of = {grammar: [by[name, grammar] for name in names] for grammar in grammars}
    ways = {grammar: by.get((OURS, grammar), {}).get("way") for grammar in grammars}
    return [
        "## Grammar by grammar",
        "",
        "Texts answered rightly; milliseconds from a grammar's text to its first mask, in a warm process, terminals "
        "new to the engine (median); microseconds of mask and commit, second use of the states (median); KiB that it "
        "takes after all texts.",
        "",
        *grid(
            ["grammar", "way down", "texts"]
            + [f"{what}, {name}" for what in ("right", "first", "step", "KiB") for name in names],
            [
                [grammar, ways[grammar], of[grammar][0]["texts"], *map(answers, of[grammar])]
                + [middle(row, "first_ms") for row in of[grammar]]
                + [step(row, "again") for row in of[grammar]]
                + [size(row) for row in of[grammar]]
                for grammar in grammars
            ],
        ),
        "A whole table of maskwright's, as a device needs it:",
        "",
        *grid(
            ["grammar", "ms", "KiB", "or why there is none"],
            [
                [grammar, row.get("whole_ms"), f"{row['whole_bytes'] / 1024:,.0f}" if "whole_bytes" in row else "",
                 row.get("whole", "")]
                for grammar in grammars if (row := by.get((OURS, grammar)))
            ],
        ),
    ]  # fmt: skip


def _steps(results: Record) -> list[str]:
    kinds = {"all": "all", "table": "regular and delimited"}
    return [
        "## Steps",
        "",
        "Microseconds of one mask and one commit over all texts, by the way that maskwright takes, at the first and at "
        "the second use of a state, and on a whole table.",
        "",
        *grid(
            ["engine", "way down", "use", "steps", "p50", "p90", "p99", "p99.9", "worst"],
            [
                [row["engine"], kinds.get(row["way"], row["way"]), row["walk"], row["steps"]]
                + [row[f"p{q}"] for q in (50, 90, 99, 99.9, 100)]
                for row in results["summary"]
            ],
        ),
    ]


def _processes(results: Record) -> list[str]:
    if not results["process"]:
        return []
    return [
        "## A new process",
        "",
        "Seconds to a vocabulary; milliseconds to the first mask of a first grammar (JSON), of a second (arithmetic).",
        "",
        *grid(
            ["engine", "vocabulary, s", "first, ms", "second, ms"],
            [
                [name, row["setup_s"], 1e3 * row["first_s"], 1e3 * row["second_s"]]
                for name, row in results["process"].items()
            ],
        ),
    ]


def _wrong(results: Record) -> list[str]:
    lines = ["## What is wrong", "", "One text for each grammar.", ""]
    for name in results["versions"]:
        mine = [row for row in results["grammars"] if row["engine"] == name]
        table = [
            [row["grammar"], "refuses the grammar", "", as_code(row["refused"])] for row in mine if "refused" in row
        ]
        for row, wrong in [(row, [*row["wrong"], *row.get("whole_wrong", ())]) for row in mine]:
            for said, some in _kinds(wrong).items():
                shortest = min((one["text"] for one in some), key=len)
                table.append([row["grammar"], said, len(some), as_code(shortest) if shortest else "the empty text"])
        narrow = sum(row["narrow"] for row in mine)
        lines += [f"### {name}", ""]
        lines += grid(["grammar", "what it does", "texts", "one of them"], table) if table else ["Nothing.", ""]
        if narrow:
            lines += [f"Of {narrow} texts that it takes its masks forbid a token on the way.", ""]
    return lines


def _kinds(wrong: list[Record]) -> dict[str, list[Record]]:
    """Return texts that were judged wrongly by what was done to them."""
    found = collections.defaultdict(list)
    for one in wrong:
        found[one["said"].split("\n", 1)[0][:80]].append(one)
    return found


def _plot(results: Record, path: Path) -> None:
    figure, axes = plt.subplots(1, 2, figsize=(13, 5))
    colours = dict(zip(ENGINES, ("C3", "C0", "C2"), strict=True))
    grammars = sorted({row["grammar"] for row in results["grammars"]})
    for name in results["versions"]:
        mine = {row["grammar"]: row for row in results["grammars"] if row["engine"] == name}
        points = [(float(np.median(mine[g]["first_ms"])), i) for i, g in enumerate(grammars) if mine[g]["first_ms"]]
        axes[0].semilogx(*zip(*points, strict=True), "o", label=name, color=colours[name]) if points else None
        for row in results["summary"]:
            if (row["engine"], row["way"]) == (name, "all"):
                style, label = STYLES[row["walk"]], f"{name}, {row['walk']}"
                axes[1].semilogx(row["us"], row["quantiles"], style, label=label, color=colours[name])
    axes[0].set(title="grammar to first mask", xlabel="milliseconds", yticks=range(len(grammars)), yticklabels=grammars)
    axes[1].set(title="mask and commit, one sequence", xlabel="microseconds", ylabel="percent below")
    save(figure, path)


def main() -> None:
    """Measure, and make the reports."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="+", metavar="GRAMMAR", help="these grammars and no others")
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=list(ENGINES))
    parser.add_argument("--rounds", type=int, default=7, help="how often each grammar is compiled")
    parser.add_argument("--limit", type=float, default=10.0, help="seconds from which on nothing is done again")
    parser.add_argument("--quick", action="store_true", help="one round and a second for each, to see that it runs")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="where the results go")
    parser.add_argument("--process", choices=ENGINES, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.process:
        print(json.dumps(process(arguments.process)))
        return
    rounds, limit = (1, 1.0) if arguments.quick else (arguments.rounds, arguments.limit)
    whole = not arguments.quick and arguments.only is None
    folder = arguments.out or (RESULTS if whole else Path(tempfile.gettempdir()) / "maskwright-grammar")
    processes = {} if arguments.quick else {name: new_process(name) for name in arguments.engines}
    records = measure(cases(arguments.only), arguments.engines, rounds, limit)
    results: Record = {
        "versions": peers.versions(arguments.engines),
        "machine": machine(),
        "process": processes,
        "summary": summary(records, arguments.engines),
        "grammars": rows(records),
    }
    write_json(folder / "grammar.json", results)
    report(results, folder)
    console.print(f"{folder}/grammar.json, grammar.md, grammar.png")


if __name__ == "__main__":
    main()
