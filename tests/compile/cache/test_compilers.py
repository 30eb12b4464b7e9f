"""Processes that compile: the same tables, and nothing that a source can do to whoever asks."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path

import pytest

import maskwright as mw
from maskwright.compile.cache import compilers as module
from maskwright.compile.cache.cache import NotCompiledError
from maskwright.compile.cache.compilers import Compilers, allowance, found
from maskwright.compile.cache.folder import Folder
from maskwright.compile.cache.lanes import Lanes
from maskwright.compile.constraint_source import Source

ON_LINUX = pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory is limited on Linux alone")
SCHEMA = {"properties": {"a": {"type": "integer"}, "b": {"maxLength": 9}}, "required": ["a"]}
TAG = {"type": "structural_tag", "format": {"type": "tag", "begin": "<", "content": {"type": "any_text"}, "end": ">"}}
SIZED = ("regex", "(a|b)*a(a|b){24}")  # takes as long and as much as it may


def quiet(vocabulary):
    """What a process does before it takes jobs: nothing."""


def stuck(source, budget, vocabulary):
    """Compile without ever asking the meter; which module-level name is patched decides what is done."""
    if source.contents == "spin":
        while True:
            pass
    if source.contents == "grow":
        kept = []
        while True:
            kept.append(bytearray(1 << 20))
    if source.contents == "sleep":
        time.sleep(1000)
    if source.contents == "exit":
        os._exit(3)
    if source.contents == "odd":
        raise Odd(lambda: None)
    return found(source, budget, vocabulary)


class Odd(Exception):  # noqa: N818
    """An error that cannot be sent."""


def ill(vocabulary):
    """Have `stuck` stand for the compiler in a process that has its kernels, and needs no seconds to compile them."""
    found(*regex("[ab]c"), vocabulary)
    module.FOR_KERNELS = 0.0
    module.found = stuck


@pytest.fixture(scope="module")
def vocab():
    return mw.Vocabulary.from_bytes([b"", *(bytes([b]) for b in range(256))], eos=0)


@pytest.fixture
def made(vocab, request):
    processes = Compilers(vocab, 2, getattr(request, "param", quiet))
    processes.start()
    yield processes
    processes.close()
    assert not processes.pids


def regex(source, seconds=5.0, size=1 << 28):
    return Source.regex(source, lazy=False), mw.Budget(seconds=seconds, bytes=size)


def outcome(work):
    try:
        return work()
    except mw.errors.MaskwrightError as error:
        return error


def test_a_cache_with_processes_has_the_tables_and_errors_of_one_without(vocab, made):
    far, near = mw.Cache(vocab, compilers=made), mw.Cache(vocab)

    def of(cache):
        yield lambda: cache.compile_json_schema(SCHEMA, allow=iter(["format"]), lazy=False)
        yield lambda: cache.compile_json_schema({"$ref": "urn:a"}, documents={"urn:a": SCHEMA}, lazy=False)
        yield lambda: cache.compile_regex("[ab]+", flags="i", lazy=False)
        yield lambda: cache.compile_choices(["a", "bc"])
        yield lambda: cache.compile_grammar('root ::= "a" root "b" | "c"', syntax="ebnf", start="root")
        yield lambda: cache.compile_structural_tag(TAG)
        yield lambda: cache.compile_json_schema({"type": "none"}, lazy=False)
        yield lambda: cache.compile_regex("(a")
        yield lambda: cache.compile_grammar("start: rule")
        yield lambda: cache.compile_regex("[a-z]{900}", budget=mw.Budget(states=10), lazy=False)

    for there, here in zip(of(far), of(near), strict=True):
        wanted = outcome(lambda here=here: here().to_table())
        if isinstance(wanted, Exception):
            found = outcome(there)
            assert (type(found), str(found)) == (type(wanted), str(wanted))
        else:
            table = there()
            assert isinstance(table, mw.TransitionTable)
            assert table.source == wanted.source
            assert {n: a.tobytes() for n, a in table.arrays.by_name().items()} == {
                n: a.tobytes() for n, a in wanted.arrays.by_name().items()
            }
            assert there() is table
    assert far.stats.compilations == near.stats.compilations == 10


def test_what_begins_soon_and_has_bounds_is_read_as_it_is(vocab, made, monkeypatch):
    def never(self):
        raise AssertionError("a table is made")

    cache = mw.Cache(vocab, compilers=made)
    alternatives = [{"properties": {"k": {"pattern": f"^k{n}:"}, "v": {"minLength": n}}} for n in range(20)]
    read = [
        cache.compile_json_schema(SCHEMA),
        cache.compile_json_schema({"type": "object", "required": ["k", "v"], "oneOf": alternatives}),
        cache.compile_regex(".*foo.{20}"),
    ]
    assert cache.compile_json_schema(SCHEMA) is read[0]
    monkeypatch.setattr(mw.LazyTable, "to_table", never)
    for table in read:
        assert isinstance(table, mw.LazyTable)
        assert table.has_bounds
        assert mw.Matcher(table, vocab, max_tokens=200, may_complete=False).mask().any()


def test_what_has_no_bounds_is_a_table_if_one_is_made_soon_and_read_otherwise(vocab, made):
    cache = mw.Cache(vocab, compilers=made)
    assert isinstance(cache.compile_structural_tag(TAG), mw.TransitionTable)
    assert isinstance(cache.compile_grammar('start: "a" start "b" | "c"'), mw.TransitionTable)
    palindromes = cache.compile_grammar('start: "a" start "a" | "b" start "b" | "a" | "b"')
    assert isinstance(palindromes, mw.LazyTable)
    assert not palindromes.has_bounds
    assert mw.Matcher(palindromes).accept_tokens([98, 99, 98])


@pytest.mark.parametrize("made", [ill], indirect=True)
@pytest.mark.parametrize(("source", "limit"), [("spin", "seconds"), pytest.param("grow", "bytes", marks=ON_LINUX)])
def test_a_process_over_a_hard_limit_is_stopped_and_replaced_and_nothing_is_kept(vocab, made, source, limit):
    cache = mw.Cache(vocab, compilers=made)
    budget = mw.Budget(seconds=0.1, bytes=1 << 26)
    before = set(made.pids)
    for _ in made.pids:  # each is ready before the clock starts
        made.compile(*regex("a"))
    began = time.monotonic()
    with pytest.raises(mw.errors.BudgetError) as found:
        cache.compile_regex(source, budget=budget, lazy=False)
    assert time.monotonic() - began < 60
    assert (found.value.limit, found.value.allowed) == (limit, getattr(budget, limit))
    assert cache.stats.entries == (limit == "bytes")  # what ran out of time is tried again
    assert len(set(made.pids) - before) == 1
    assert len(made.pids) == 2
    assert cache.compile_regex("[ab]c", lazy=False).accepts([98, 100])


@pytest.mark.parametrize("made", [ill], indirect=True)
def test_a_process_that_waits_for_ever_is_stopped_by_the_clock(made, monkeypatch):
    monkeypatch.setattr(module, "FOR_KERNELS", 0.0)
    monkeypatch.setattr(module, "FREELY", 0.0)
    with pytest.raises(mw.errors.BudgetError) as found:
        made.compile(*regex("sleep", seconds=0.05))
    assert found.value.limit == "seconds"


@pytest.mark.parametrize("made", [ill], indirect=True)
def test_a_process_that_ends_is_replaced_and_its_job_says_so(made):
    with pytest.raises(mw.errors.ProcessError, match="ended with 3"):
        made.compile(*regex("exit"))
    with pytest.raises(RuntimeError, match="Odd"):
        made.compile(*regex("odd"))
    assert made.compile(*regex("a|b")).accepts([98])
    for pid in made.pids:  # while they have nothing to do
        os.kill(pid, signal.SIGKILL)
    time.sleep(0.2)
    assert made.compile(*regex("a|c")).accepts([98])
    assert len(made.pids) == 2


def test_a_process_that_cannot_be_started_is_started_for_the_next_who_asks(vocab, monkeypatch):
    processes, original, refused = Compilers(vocab, 1, ill), module.CompilerProcess, []

    def start(*given):
        if len(refused) < 2:
            refused.append(given)
            raise BlockingIOError("Resource temporarily unavailable")
        return original(*given)

    processes.start()
    try:
        monkeypatch.setattr(module, "CompilerProcess", start)
        with pytest.raises(mw.errors.ProcessError, match="ended with 3"):
            processes.compile(*regex("exit"))
        assert not processes.pids
        with pytest.raises(
            mw.errors.ProcessError, match="could be started to compile the constraint: Resource temporarily"
        ):
            processes.compile(*regex("a|b"))
        for source in ("a|b", "a|c"):
            assert processes.compile(*regex(source)).accepts([98])
        assert len(processes.pids) == 1
    finally:
        processes.close()
    assert not processes.pids


def test_jobs_that_share_seconds_have_those_together(made):
    shared = allowance(mw.Budget(seconds=0.5))
    before = shared.left
    made.compile(*regex("[a-z]{300}"), shared)
    assert shared.left < before
    shared.left = 0.05
    with pytest.raises(mw.errors.BudgetError, match=r"together need more than 0\.5 s") as found:
        made.compile(*regex(SIZED[1]), shared)
    assert (found.value.limit, found.value.allowed) == ("seconds", 0.5)
    with pytest.raises(mw.errors.BudgetError, match="together"):
        made.compile(*regex("a"), shared)


def test_what_ran_out_of_shared_seconds_is_compiled_for_those_who_have_more(vocab, made):
    cache = mw.Cache(vocab, compilers=made)
    poor = allowance(mw.Budget(seconds=2.0))
    poor.left = 0.0
    with pytest.raises(mw.errors.BudgetError, match="together"):
        cache.sharing(poor).compile_regex("[ab]{9}")
    assert cache.compile_regex("[ab]{9}").accepts([98] * 9)


def test_a_view_that_does_not_compile_has_what_is_in_memory(vocab, made):
    cache = mw.Cache(vocab, compilers=made)
    view = cache.without_compiling()
    with pytest.raises(NotCompiledError):
        view.compile_regex("[ab]{7}")
    table = cache.compile_regex("[ab]{7}")
    assert view.compile_regex("[ab]{7}") is table
    assert cache.stats.hits == view.stats.hits == 1


def test_whoever_waits_when_the_processes_are_closed_is_told(made, request):
    found = []
    request.addfinalizer(partial(sys.setswitchinterval, sys.getswitchinterval()))
    sys.setswitchinterval(1e-6)  # so that a connection which is closed under a job is likely to be noticed

    def ask():
        try:
            made.compile(*regex(SIZED[1], seconds=60.0, size=1 << 32))
        except mw.errors.ProcessError as error:
            found.append(error)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    time.sleep(0.3)
    made.close()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()
    assert len(found) == 4


# ------------------------------------------------------------------------------------------------------------- lanes

BOMB = r"(?:\d*[a-zé]?(?=.{3,40}x)){8}[a-w]*"


def test_what_takes_long_holds_up_only_its_like(vocab):
    lanes, budget = Lanes(vocab, 1, quiet), mw.Budget(seconds=3)
    assert lanes.compile(Source.regex("[ab]+"), budget) is None  # read as it is
    assert lanes.compile(Source.choices(["a", "b"]), budget).accepts([98])
    ended = []

    def attack(number):
        with pytest.raises(mw.errors.BudgetError) as error:
            lanes.compile(Source.regex(BOMB + str(number)), budget)
        ended.append(error.value)

    bombs = [threading.Thread(target=attack, args=(number,)) for number in range(5)]
    for bomb in bombs:
        bomb.start()
    for number in range(20):
        assert lanes.compile(Source.regex(f"[ab]+{number}"), budget) is None
    assert len(ended) < 5, "the bombs were over before others were answered"
    for bomb in bombs:
        bomb.join()
    assert {error.limit for error in ended} <= {"seconds", "states", "bytes"}
    assert {error.allowed for error in ended if error.limit == "seconds"} <= {3}
    with pytest.raises(mw.errors.ConstraintError, match="never closed"):
        lanes.compile(Source.regex("(a"), budget)


def test_a_task_that_is_cancelled_leaves_the_queue(vocab, monkeypatch):
    lanes, budget = Lanes(vocab, 1, quiet), mw.Budget(seconds=1)
    tried, compile_one = [], Compilers.compile
    monkeypatch.setattr(
        Compilers, "compile", lambda self, source, *given: tried.append(source) or compile_one(self, source, *given)
    )

    async def some():
        assert await lanes.tried(Source.regex("[ab]+"), budget) is None
        first = asyncio.ensure_future(lanes.tried(Source.regex(BOMB), budget))
        await asyncio.sleep(0)
        others = [asyncio.ensure_future(lanes.tried(Source.regex(BOMB + "b" * n), budget)) for n in range(30)]
        await asyncio.sleep(0)
        for other in others:
            other.cancel()
        assert await lanes.tried(Source.regex("[ab]+c"), budget) is None
        with pytest.raises(mw.errors.BudgetError):
            await first

    asyncio.run(some())
    assert len(tried) <= 2 + 3 + 1  # one of the others may have begun


def test_tables_stay_in_a_folder_and_are_not_sent(vocab, tmp_path):
    folder = Folder(tmp_path, 1 << 30, vocab)
    lanes = Lanes(vocab, 1, quiet, folder)
    source = Source.choices(["red", "green"])
    assert lanes.compile(source) is None
    assert [file.suffix for file in tmp_path.iterdir()] == [".safetensors"]
    cache = mw.Cache(vocab, directory=tmp_path)
    assert cache.compile(source).accepts(vocab.encode(b"red"))
    assert (cache.stats.disk_hits, cache.stats.compilations) == (1, 0)


def test_the_main_program_does_not_run_again_in_a_process(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        "import maskwright as mw\n"
        "from pathlib import Path\n"
        f"Path({str(tmp_path / 'ran')!r}).open('a').write('once ')\n"
        "cache = mw.Cache(mw.Vocabulary.from_bytes([b'', b'a', b'b'], eos=0))\n"
        "print(cache.warm([{'const': 1}, {'enum': [1, 2]}], processes=2).tables)\n"
    )
    found = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, timeout=300, check=False)
    assert (found.returncode, found.stderr) == (0, "")
    assert (tmp_path / "ran").read_text() == "once "
