"""Kernels and loops in Python see by themselves that the seconds of a budget are spent."""

from __future__ import annotations

import ast
import contextlib
import functools
import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import maskwright as mw
from maskwright.automata.deadline import look
from maskwright.automata.minimize import canonical
from maskwright.kernels import deadline
from maskwright.kernels.ahead import signatures
from maskwright.kernels.preparing import preparing
from maskwright.kernels.thread_clock import clock_of_this_thread

ROOT = Path(mw.__file__).parent
LOOPS = (ast.For, ast.While)
REACHED = ("automata", "compile", "kernels", "lazy", "table", "vocabulary")
"""Folders of the kernels that compiling calls."""

_LINEAR = "all its loops, or those that do not look, are one pass over arrays whose bytes the meter has let through"
_SHARED = "it works for all constraints of a vocabulary, which no budget counts"
_CATALOGUE = "a catalogue takes no budget"
_FILE = "it checks a table that was read, once"
_ONE_STATE = "it works for one mask, token or state, and may write what tables share, which must not be left half done"
_PAUSES = "it works for one state, and comes back by its own count"

LET_THROUGH = {
    "automata.dfa": {"_topological": _LINEAR},
    "automata.frames_required": {"_lower_frames": _LINEAR},
    "automata.labelled": {"_spelt": "the loop that does not look writes 64 words, each no longer than those above"},
    "automata.minimize": dict.fromkeys(("merge_columns", "_canonical", "_incoming", "_trim"), _LINEAR),
    "automata.nfa": dict.fromkeys(("_in_chains", "_copied_chains", "_copied"), _LINEAR),
    "automata.ops": {"_pairs": _LINEAR},
    "automata.pushdown_rows": {"fill_rows": _LINEAR},
    "automata.refinement": {"rounds": "the loop that does not look counts bits"},
    "automata.sequence_sort": _CATALOGUE,
    "automata.subsets": {"_slots_of": _LINEAR},
    "automata.trie": _CATALOGUE,
    "automata.utf8": {"_character": "it looks at all characters, of which there are 1,114,112"},
    "automata.word_tries": {"_fill_tries": _LINEAR},
    "compile.bind.bind": {"_fill_rows": _LINEAR},
    "compile.bind.link_pools": {"_place_actions": _LINEAR},
    "compile.bind.pushdown_walk": {"_sort_rows": _LINEAR},
    "compile.bind.similar_states": dict.fromkeys(("_name_states", "_relative_steps", "number_along"), _LINEAR),
    "compile.bind.symbols": {"place_symbols": _LINEAR},
    "compile.bind.wide_rows": {"loops_of": _LINEAR},
    "compile.json_schema.bounded": {"follow_string": _SHARED},
    "compile.json_schema.escape_kernels": dict.fromkeys(("texts_of", "_table_of", "_alike_in_escapes"), _LINEAR),
    "compile.json_schema.fragments": dict.fromkeys(("_ends_only_in", "come_narrowly"), _LINEAR),
    "kernels.queue": {"lower": "it moves one entry of a heap"},
    "lazy.grammar.closure": _PAUSES,
    "lazy.grammar.masks": _PAUSES,
    "lazy.grammar.sets": _PAUSES,
    "lazy.grammar.step": _PAUSES,
    "lazy.pushdown.content_mask": _ONE_STATE,
    "lazy.pushdown.counted_strings": _ONE_STATE,
    "lazy.pushdown.frames": _ONE_STATE,
    "lazy.pushdown.free_contents": _ONE_STATE,
    "lazy.pushdown.free_rows": _ONE_STATE,
    "lazy.pushdown.header": _ONE_STATE,
    "lazy.pushdown.mask": _ONE_STATE,
    "lazy.pushdown.mask_words": _ONE_STATE,
    "lazy.pushdown.step": _ONE_STATE,
    "lazy.pushdown.string_walks": _ONE_STATE,
    "table.delta_rows": _CATALOGUE,
    "table.distances": dict.fromkeys(
        ("_longest_path", "breadth_first", "reversed_edges", "farthest", "trie_distances"), _LINEAR
    ),
    "table.filter_bits": _CATALOGUE,
    "table.graph_checks": _FILE,
    "table.nested_distances": {"_excess": _LINEAR},
    "table.nested_ends": dict.fromkeys(("site_ways", "ends_of", "_shared_symbols"), _LINEAR),
    "table.nested_settling": dict.fromkeys(("_constants", "readers_of"), _LINEAR),
    "table.nested_targets": dict.fromkeys(("belonging", "own_targets", "base_targets"), _LINEAR),
    "table.sorted_matrix": _CATALOGUE,
    "table.trie_checks": _FILE,
    "table.walk": _FILE,
    "vocabulary.token_trie": _SHARED,
}
"""Why kernels need not look at the deadline in each outermost loop: by module, for all of it or by name."""


class Kernels:
    """The kernels of some folders, and which of their loops can take long."""

    def __init__(self) -> None:
        self.nodes: dict[str, ast.FunctionDef] = {}
        self.modules: dict[str, str] = {}
        for folder in REACHED:
            for path in sorted((ROOT / folder).rglob("*.py")):
                for node in ast.walk(ast.parse(path.read_text())):
                    if isinstance(node, ast.FunctionDef) and any(
                        ast.unparse(each).startswith("kernel") for each in node.decorator_list
                    ):
                        self.nodes[node.name] = node
                        self.modules[node.name] = ".".join(path.relative_to(ROOT).with_suffix("").parts)

    def called(self, nodes: Iterator[ast.AST]) -> list[str]:
        names = (node.func.id for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Name))
        return [name for name in names if name in self.nodes]

    @functools.cache  # noqa: B019 - one object lives as long as a test
    def has_loop(self, name: str) -> bool:
        node = self.nodes[name]
        return any(isinstance(each, LOOPS) for each in ast.walk(node)) or any(
            map(self.has_loop, self.called(ast.walk(node)))
        )

    def is_long(self, loop: ast.For | ast.While) -> bool:
        """Return whether a loop is no plain pass: it has another loop in it, or an end that nothing tells ahead."""
        inside = [each for part in loop.body for each in ast.walk(part)]
        return (
            isinstance(loop, ast.While)
            or any(isinstance(each, LOOPS) for each in inside)
            or any(map(self.has_loop, self.called(iter(inside))))
        )

    def looks(self, loop: ast.For | ast.While) -> bool:
        return "is_late" in self.called(ast.walk(loop))

    def to_be_checked(self) -> set[str]:
        """Return the kernels that Python calls, and those that these call outside of all loops."""
        asked = {(each.module, each.name) for each in signatures.read()}
        todo, found = [name for name in self.nodes if (self.modules[name], name) in asked], set[str]()
        while todo:
            name = todo.pop()
            if name not in found:
                found.add(name)
                todo += self.called(apart_from_loops(self.nodes[name]))
        return found


def apart_from_loops(node: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, LOOPS):
            yield child
            yield from apart_from_loops(child)


def outermost_loops(node: ast.AST) -> Iterator[ast.For | ast.While]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, LOOPS):
            yield child
        else:
            yield from outermost_loops(child)


def test_every_kernel_looks_at_the_deadline_in_its_outermost_loops():
    kernels, blind = Kernels(), set()
    for name in kernels.to_be_checked():
        module = kernels.modules[name]
        if any(kernels.is_long(loop) and not kernels.looks(loop) for loop in outermost_loops(kernels.nodes[name])):
            blind.add((module, name))
    reasons = {(module, name) for module, name in blind if isinstance(LET_THROUGH.get(module), str)}
    named = {(module, name) for module, names in LET_THROUGH.items() if isinstance(names, dict) for name in names}
    assert blind - reasons - named == set(), "these loops must ask is_late, or be named with the reason"
    assert named - blind == set(), "these need no reason any more"
    unused = {module for module, why in LET_THROUGH.items() if isinstance(why, str)} - {module for module, _ in reasons}
    assert not unused


# ------------------------------------------------------------------------------------------------------- behaviour


def spin(seconds: float) -> None:
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


def chain(states: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return a random automaton that takes seconds to minimise."""
    rng = np.random.default_rng(0)
    to = rng.integers(0, states, (states, 64)).astype(np.int32)
    return np.arange(64, dtype=np.uint16), to, rng.random(states) < 0.5


def minimise_for_long() -> None:
    class_of, to, accepting = chain(60_000)
    while True:
        canonical(class_of, to, accepting)


def test_a_kernel_ends_with_the_budget_and_says_what_was_being_done():
    meter = mw.Budget(seconds=0.2).begin()
    began = time.thread_time()
    meter.check(doing="testing")
    with pytest.raises(mw.errors.BudgetError, match="reached while testing") as raised, meter:
        minimise_for_long()
    assert (raised.value.limit, raised.value.allowed) == ("seconds", 0.2)
    assert 0.2 <= raised.value.reached < 1
    assert time.thread_time() - began < 1
    assert not deadline.is_any_late()


def test_only_the_thread_that_is_late_is_stopped():
    late, done = threading.Event(), threading.Event()
    found: dict[str, object] = {}

    def is_late() -> None:
        with pytest.raises(mw.errors.BudgetError), mw.Budget(seconds=0.05).begin():
            wait_while_late()
        found["late"] = True

    def wait_while_late() -> None:
        while not deadline.is_any_late():
            spin(0.001)
        late.set()
        done.wait(30)
        look("waiting")

    def is_not() -> None:
        assert late.wait(30)
        with mw.Budget(seconds=30).begin():
            class_of, to, accepting = chain(3_000)
            found["states"] = canonical(class_of, to, accepting).num_states
            look("working")
            found["marked"] = deadline.is_any_late()
        done.set()

    threads = [threading.Thread(target=each) for each in (is_late, is_not)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(60)
    assert found == {"late": True, "states": canonical(*chain(3_000)).num_states, "marked": True}
    assert not deadline.is_any_late()


def test_the_work_of_other_threads_is_not_charged():
    stop = threading.Event()

    def works() -> None:
        while not stop.is_set():
            spin(0.01)

    thread = threading.Thread(target=works)
    thread.start()
    try:
        with mw.Budget(seconds=0.2).begin():
            until = time.monotonic() + 0.6
            while time.monotonic() < until:
                time.sleep(0.01)
                look("sleeping")
    finally:
        stop.set()
        thread.join()


def test_the_outer_of_two_compilations_ends_both_and_the_inner_only_itself():
    with mw.Budget(seconds=30).begin():
        with pytest.raises(mw.errors.BudgetError) as raised, mw.Budget(seconds=0.05).begin():
            minimise_for_long()
        assert raised.value.allowed == 0.05
        canonical(*chain(1_000))
        look("going on")
    with pytest.raises(mw.errors.BudgetError) as raised, mw.Budget(seconds=0.05).begin(), mw.Budget(seconds=30).begin():
        minimise_for_long()
    assert raised.value.allowed == 0.05


def test_nobody_is_stopped_outside_a_compilation_nor_by_a_budget_without_end():
    for seconds in (math.inf, 30):
        with mw.Budget(seconds=seconds).begin():
            canonical(*chain(1_000))
            look("working")
    spin(0.05)
    canonical(*chain(1_000))
    look("working")


def test_more_threads_than_there_are_places_are_all_stopped():
    ended = []

    def is_late() -> None:
        with pytest.raises(mw.errors.BudgetError), mw.Budget(seconds=0.01).begin():
            look_for_long()
        ended.append(True)

    def look_for_long() -> None:
        while True:
            look("waiting")
            spin(0.001)

    threads = [threading.Thread(target=is_late) for _ in range(2 * deadline.MOST)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(60)
    assert len(ended) == 2 * deadline.MOST
    assert not deadline.is_any_late()


def test_what_serves_all_later_compilations_costs_nothing():
    with mw.Budget(seconds=0.1).begin() as meter:
        with preparing(), preparing():
            spin(0.3)
        look("going on")
        meter.check(doing="going on")
        assert meter.seconds < 0.1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_process_that_was_forked_has_a_timer_of_its_own():
    """In a process without JAX, which warns of a fork."""
    program = """
import os, sys
import maskwright as mw
VOCABULARY = mw.Vocabulary.from_bytes([b"", *(bytes([byte]) for byte in range(256))], eos=0)
with mw.Budget(seconds=30).begin():
    child = os.fork()
    if not child:
        code = 1
        try:
            mw.compile_regex("(a|b)*a(a|b){20}", VOCABULARY, lazy=False, budget=mw.Budget(states=1 << 30, seconds=0.1))
        except mw.errors.BudgetError as error:
            code = 0 if error.limit == "seconds" else 2
        finally:
            os._exit(code)
_, status = os.waitpid(child, 0)
sys.exit(os.waitstatus_to_exitcode(status))
"""
    assert subprocess.run([sys.executable, "-c", program], timeout=60).returncode == 0


@pytest.mark.skipif(sys.platform not in ("linux", "darwin", "win32"), reason="the clock of a thread is not known")
def test_a_thread_reads_the_processor_clock_of_another():
    clock = clock_of_this_thread()
    assert clock is not None
    seen: list[float] = []

    def reads() -> None:
        seen.append(clock())

    for seconds in (0.1, 0.0):
        thread = threading.Thread(target=reads)
        thread.start()
        thread.join()
        spin(seconds)
    assert 0.09 < seen[1] - seen[0] < 1
    assert abs(seen[1] - time.thread_time()) < 0.2


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no timer")
def test_compilations_that_signals_end_anywhere_leave_nothing_behind():
    class DisturbedError(BaseException):
        pass

    def disturb(number: int, frame: object) -> None:
        raise DisturbedError

    def begin_and_end() -> None:
        while True:
            with mw.Budget(seconds=0.0002).begin(), mw.Budget(seconds=30).begin():
                pass

    before = signal.signal(signal.SIGALRM, disturb)
    try:
        for tries in range(300):
            with contextlib.suppress(DisturbedError):
                signal.setitimer(signal.ITIMER_REAL, 1e-4 + tries * 1e-6)
                begin_and_end()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    time.sleep(0.2)
    assert not deadline.is_any_late()
    canonical(*chain(1_000))
    with mw.Budget(seconds=30).begin():
        canonical(*chain(1_000))
    with pytest.raises(mw.errors.BudgetError), mw.Budget(seconds=0.05).begin():
        minimise_for_long()
