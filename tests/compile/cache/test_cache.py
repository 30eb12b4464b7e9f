"""`Cache`: each source compiled once, whoever asks; bounded in memory and on disk; nothing on disk is believed."""

from __future__ import annotations

import copy
import gc
import json
import os
import pickle
import random
import subprocess
import sys
import threading
import time
import tracemalloc
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import maskwright as mw
from maskwright import errors
from maskwright.automata import budget as budgets
from maskwright.compile import compile_grammar as grammar_module
from maskwright.compile import text as text_module
from maskwright.compile.cache import cache as cache_module
from maskwright.compile.schemas import compile_schema as schema_module
from maskwright.compile.tags import build as tag_module


@pytest.fixture(scope="module")
def vocab():
    return mw.Vocabulary.from_bytes([b"", *(bytes([b]) for b in range(256)), b'{"', b'": '], eos=0)


def number(n: int) -> dict[str, object]:
    """A schema unlike those of other numbers."""
    return {"type": "object", "properties": {f"key{n}": {"type": "integer", "minimum": n}}, "required": [f"key{n}"]}


LIST = 'start: "a" ("," "a")*\nnested: "(" nested ")" | "a"'
TAG = {
    "type": "structural_tag",
    "structures": [{"begin": "<f>", "schema": {"type": "integer"}, "end": "</f>"}],
    "triggers": ["<f"],
}
CHOICE = {"type": "tag", "begin": "<c>", "content": {"type": "regex", "pattern": "[ab]+"}, "end": "</c>"}
PALINDROMES = 'start: "a" start "a" | "b" start "b" | "a" | "b"'  # no letter says whether the middle was passed


def accepts(table: mw.TransitionTable, text: str) -> bool:
    matcher = mw.Matcher(table)
    return all(matcher.advance(1 + byte) for byte in text.encode()) and matcher.is_accepting


@pytest.fixture
def compilations(monkeypatch):
    """What was really compiled, by whatever way."""
    made = []
    kinds = [
        (schema_module, "compile_request"), (text_module, "compile_regex"), (text_module, "compile_choices"),
        (grammar_module, "compile_grammar"), (tag_module, "compile_structural_tag"),
    ]  # fmt: skip
    for module, name in kinds:
        real = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *a, real=real, **k: (made.append(a[0]), real(*a, **k))[1])
    return made


# ------------------------------------------------------------------------------------------------------- keys


def test_the_same_source_is_compiled_once_however_it_is_spelled(vocab, compilations):
    cache = mw.Cache(vocab)
    schema = number(3)
    found = [
        cache.compile_json_schema(schema),
        cache.compile_json_schema(copy.deepcopy(schema)),
        cache.compile_json_schema(json.dumps(schema)),
        cache.compile_json_schema(json.dumps(schema, indent=7)),
        cache.compile_json_schema(json.dumps(schema).encode()),
        cache.compile_json_schema(schema, depth=64, allow=[]),
    ]
    assert all(table is found[0] for table in found)
    assert len(compilations) == 1
    assert cache.stats[:3] == (1, cache.stats.bytes, 5)
    assert cache.compile_regex("[ab]", flags="is") is cache.compile_regex("[ab]", flags="si")
    assert cache.compile_choices(["a", "b"]) is cache.compile_choices(iter(("a", "b")))
    assert len(compilations) == 3
    assert cache.compile_grammar(LIST) is cache.compile_grammar(LIST, start="start", syntax="lark", depth=64)
    assert len(compilations) == 4
    found = [
        cache.compile_structural_tag(TAG),
        cache.compile_structural_tag(copy.deepcopy(TAG), depth=64, allow=iter(())),
        cache.compile_structural_tag(json.dumps(TAG)),
        cache.compile_structural_tag(json.dumps(TAG, indent=7).encode()),
    ]
    assert all(table is found[0] for table in found)
    text = [mw.TaggedText([mw.Tag("<c>", "</c>", regex="[ab]+")], at_most=2) for _ in range(2)]
    assert cache.compile_structural_tag(text[0]) is cache.compile_structural_tag(text[1])
    assert len(compilations) == 6


def test_sources_and_options_that_mean_something_else_are_other_tables(vocab):
    cache = mw.Cache(vocab)
    first = {"properties": {"a": {"type": "null"}, "b": {"type": "null"}}, "required": ["a", "b"]}
    second = {"properties": {"b": {"type": "null"}, "a": {"type": "null"}}, "required": ["a", "b"]}
    asked = [
        lambda: cache.compile_json_schema(first),
        lambda: cache.compile_json_schema(second),  # the order of keys is that of the text
        lambda: cache.compile_json_schema(first, whitespace="compact"),
        lambda: cache.compile_json_schema(first, ascii=True),
        lambda: cache.compile_json_schema(first, lazy=False),
        lambda: cache.compile_json_schema(first, budget=mw.Budget(seconds=9)),
        lambda: cache.compile_json_schema({"const": 1}),
        lambda: cache.compile_json_schema({"const": True}),
        lambda: cache.compile_json_schema({"const": "1"}),
        lambda: cache.compile_json_schema('{"const": 1.0}'),
        lambda: cache.compile_json_schema('{"const": "1.0"}'),
        lambda: cache.compile_json_schema({"const": "Decimal('1.0')"}),
        lambda: cache.compile_json_schema({"const": Decimal("1.5")}),
        lambda: cache.compile_json_schema({"$ref": "a"}, documents={"a": {"type": "null"}}),
        lambda: cache.compile_json_schema({"$ref": "a"}, documents={"a": {"type": "integer"}}),
        lambda: cache.compile_regex("a"),
        lambda: cache.compile_regex("a", flags="i"),
        lambda: cache.compile_choices(["a"]),
        lambda: cache.compile_choices(["a", "b"]),
        lambda: cache.compile_grammar(LIST),
        lambda: cache.compile_grammar(LIST, start="nested"),
        lambda: cache.compile_grammar(LIST, start="nested", depth=9),
        lambda: cache.compile_grammar(LIST, budget=mw.Budget(seconds=9)),
        lambda: cache.compile_grammar(LIST + " "),
        lambda: cache.compile_grammar('root ::= "a"', syntax="gbnf"),
        lambda: cache.compile_grammar('root ::= "a"', syntax="ebnf"),
        lambda: cache.compile_structural_tag(TAG),
        lambda: cache.compile_structural_tag({**TAG, "triggers": ["<f>"]}),
        lambda: cache.compile_structural_tag({**TAG, "structures": TAG["structures"] * 2}),
        lambda: cache.compile_structural_tag(TAG, whitespace="compact"),
        lambda: cache.compile_structural_tag(TAG, depth=9),
        lambda: cache.compile_structural_tag(TAG, budget=mw.Budget(seconds=9)),
        lambda: cache.compile_structural_tag(CHOICE),
        lambda: cache.compile_structural_tag({"type": "structural_tag", "format": CHOICE}),
        lambda: cache.compile_structural_tag({**CHOICE, "content": {"type": "json_schema", "json_schema": first}}),
        lambda: cache.compile_structural_tag({**CHOICE, "content": {"type": "json_schema", "json_schema": second}}),
    ]
    tables = [ask() for ask in asked]
    assert len({id(table) for table in tables}) == len(asked)
    assert [ask() for ask in asked] == tables  # tables compare by identity
    assert cache.stats.compilations == len(asked)
    assert not accepts(tables[1], '{"a": null, "b": null}')
    assert accepts(tables[8], '"1"')
    assert not accepts(tables[6], '"1"')


def test_a_schema_that_is_changed_after_it_was_asked_for_is_another_one(vocab):
    cache = mw.Cache(vocab)
    schema = {"type": "object", "properties": {"a": {"$ref": "#/$defs/x"}}, "$defs": {"x": {"type": "integer"}}}
    before = cache.compile_json_schema(schema)
    schema["$defs"]["x"]["type"] = "string"  # type: ignore[index]
    after = cache.compile_json_schema(schema)
    assert before is not after
    assert accepts(before, '{"a": 1}')
    assert not accepts(before, '{"a": "1"}')
    assert accepts(after, '{"a": "1"}')


def test_a_pydantic_class_is_known_by_its_schema_and_again_once_it_is_rebuilt(vocab):
    pydantic = pytest.importorskip("pydantic")
    cache = mw.Cache(vocab)

    class Thing(pydantic.BaseModel):
        a: int

    first = cache.compile_json_schema(Thing)
    assert cache.compile_json_schema(Thing) is first is cache.compile_json_schema(Thing.model_json_schema())
    Thing.model_fields["a"].annotation = str
    Thing.model_rebuild(force=True)
    assert accepts(cache.compile_json_schema(Thing), '{"a": "x"}')


def test_a_class_within_tags_is_known_by_its_schema(vocab):
    pydantic = pytest.importorskip("pydantic")
    cache = mw.Cache(vocab)

    def made(kind: type) -> type:
        class Thing(pydantic.BaseModel):
            a: kind  # type: ignore[valid-type]

        return Thing

    def tagged(schema: object) -> mw.TaggedText:
        return mw.TaggedText([mw.Tag("<f>", "</f>", schema=schema)])

    first, second = (cache.compile_structural_tag(tagged(made(kind))) for kind in (int, str))  # of the same name
    assert accepts(first, '<f>{"a": 1}</f>')
    assert accepts(second, '<f>{"a": "1"}</f>')
    assert cache.compile_structural_tag(tagged(made(int))) is first
    assert cache.compile_structural_tag(tagged(made(str).model_json_schema())) is second


def test_arguments_that_are_none_are_refused_as_the_functions_refuse_them(vocab):
    cache = mw.Cache(vocab)
    wrong = [
        lambda m: m.compile_json_schema(3), lambda m: m.compile_json_schema({}, lazy="yes"),
        lambda m: m.compile_json_schema({}, depth=0), lambda m: m.compile_json_schema({}, allow="x"),
        lambda m: m.compile_json_schema({}, nonsense=1), lambda m: m.compile_json_schema({}, budget=3),
        lambda m: m.compile_json_schema({}, lazy=[]), lambda m: m.compile_regex(b"a"),
        lambda m: m.compile_regex("a", flags=3), lambda m: m.compile_choices("abc"),
        lambda m: m.compile_choices(3), lambda m: m.compile_choices([1]), lambda m: m.compile_choices([]),
        lambda m: m.compile_grammar(b"a"), lambda m: m.compile_grammar(LIST, syntax="bnf"),
        lambda m: m.compile_grammar(LIST, syntax=3), lambda m: m.compile_grammar(LIST, start=3),
        lambda m: m.compile_grammar(LIST, start="x", syntax="bnf"), lambda m: m.compile_grammar(LIST, start=""),
        lambda m: m.compile_grammar(LIST, budget=3), lambda m: m.compile_structural_tag(3),
        lambda m: m.compile_structural_tag(TAG, depth=0), lambda m: m.compile_structural_tag(TAG, nonsense=1),
        lambda m: m.compile_structural_tag("{"), lambda m: m.compile_structural_tag(TAG, budget=3),
        lambda m: m.compile_structural_tag(TAG, budget=[]), lambda m: m.compile_structural_tag({**TAG, "type": 3}),
    ]  # fmt: skip

    class Plain:
        compile_json_schema = staticmethod(lambda *a, **k: mw.compile_json_schema(a[0], vocab, **k))
        compile_regex = staticmethod(lambda *a, **k: mw.compile_regex(a[0], vocab, **k))
        compile_choices = staticmethod(lambda *a, **k: mw.compile_choices(a[0], vocab, **k))
        compile_grammar = staticmethod(lambda *a, **k: mw.compile_grammar(a[0], vocab, **k))
        compile_structural_tag = staticmethod(lambda *a, **k: mw.compile_structural_tag(a[0], vocab, **k))

    for ask in wrong:
        for _ in range(2):
            with pytest.raises((TypeError, ValueError)) as ours:
                ask(cache)
            with pytest.raises((TypeError, ValueError)) as theirs:
                ask(Plain)
            assert type(ours.value) is type(theirs.value)
    for options in ({"max_bytes": 0}, {"max_entries": 0}, {"directory_bytes": -1}):
        with pytest.raises(ValueError, match="must be 1 or more"):
            mw.Cache(vocab, **options)
    with pytest.raises(TypeError, match="max_bytes must be an integer"):
        mw.Cache(vocab, max_bytes=1e9)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="Vocabulary"):
        mw.Cache(None)  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------------------------ errors


def test_what_cannot_be_compiled_raises_the_same_error_again_without_being_compiled(vocab, compilations):
    cache = mw.Cache(vocab)
    seen = []
    for _ in range(3):
        with pytest.raises(mw.errors.SchemaError) as schema_error:
            cache.compile_json_schema({"properties": {"a": {"minimum": "x"}}})
        with pytest.raises(mw.errors.RegexError) as regex_error:
            cache.compile_regex("a(")
        with pytest.raises(mw.errors.GrammarError, match="line 2, column 7"):
            cache.compile_grammar('start: "a"\nrule: nowhere')
        with pytest.raises(mw.errors.ConstraintError, match="/triggers/0: the text is empty"):
            cache.compile_structural_tag({**TAG, "triggers": [""]})
        seen.append((schema_error.value, regex_error.value))
    assert len(compilations) == 4
    assert cache.stats.failures == 4
    for schema, regex in seen:
        assert (str(schema), schema.pointer, schema.keyword) == (
            str(seen[0][0]),
            seen[0][0].pointer,
            seen[0][0].keyword,
        )
        assert (str(regex), regex.pattern, regex.position) == (str(seen[0][1]), "a(", seen[0][1].position)
    assert len({id(schema) for schema, _ in seen}) == 3  # else each would gather the frames of all


def test_why_a_grammar_has_no_arrays_is_found_out_once(vocab, tmp_path, monkeypatch):
    """Those who read it as it is are served all along, here and from the folder."""
    tried = []
    real = mw.LazyTable.keep_with
    monkeypatch.setattr(
        mw.LazyTable, "keep_with", lambda t, around: real(t, lambda make: around(lambda: (tried.append(1), make())[1]))
    )
    for cache in (mw.Cache(vocab), mw.Cache(vocab, directory=tmp_path)):
        table, said = cache.compile_grammar(PALINDROMES), set()
        tried.clear()
        for _ in range(3):
            with pytest.raises(mw.errors.ConstraintError) as error:
                cache.compile_grammar(PALINDROMES).to_table()
            said.add((type(error.value), str(error.value)))
        assert (len(tried), len(said)) == (1, 1)
        assert accepts(table, "abbabba")
        assert not accepts(table, "abab")
    assert not list(tmp_path.iterdir())
    assert accepts(mw.Cache(vocab, directory=tmp_path).compile_grammar(PALINDROMES), "bab")


@pytest.mark.parametrize("error", [
    errors.SchemaError("wrong", "/a", "minimum"), errors.RegexError("wrong", "a(", 1), errors.BudgetError("too much"),
    errors.TableFileError("torn"), errors.ConstraintError("none"), errors.GrammarError("wrong", "a:\n  b", 5),
])  # fmt: skip
def test_errors_can_be_copied_and_pickled(error):
    for again in (copy.copy(error), pickle.loads(pickle.dumps(error))):
        assert type(again) is type(error)
        assert str(again) == str(error)
        assert vars(again) == vars(error)


# ----------------------------------------------------------------------------------------------------- threads


def test_many_threads_that_want_the_same_make_each_table_once(vocab, compilations):
    cache = mw.Cache(vocab)
    ready, found = threading.Barrier(32), {}

    def ask(n: int) -> None:
        ready.wait()
        for i in random.Random(n).sample(range(10), 10):
            found[n, i] = cache.compile_json_schema(number(i))

    threads = [threading.Thread(target=ask, args=(n,)) for n in range(32)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(compilations) == 10
    assert {id(table) for table in found.values()} == {id(cache.compile_json_schema(number(i))) for i in range(10)}
    stats = cache.stats
    assert stats.compilations == 10
    assert stats.hits + stats.waits >= 320  # who waits is told by the one waited for


def test_who_waits_for_an_interrupted_compilation_begins_it_again(vocab, monkeypatch):
    cache = mw.Cache(vocab)
    begun, go_on, real, calls = threading.Event(), threading.Event(), schema_module.compile_request, []

    def slow(*args, **options):
        calls.append(args)
        if len(calls) == 1:
            begun.set()
            go_on.wait()
            raise KeyboardInterrupt
        return real(*args, **options)

    monkeypatch.setattr(schema_module, "compile_request", slow)
    outcomes = []

    def first() -> None:
        try:
            cache.compile_json_schema(number(1))
        except KeyboardInterrupt:
            outcomes.append("interrupted")

    threads = [threading.Thread(target=first)]
    threads[0].start()
    begun.wait()
    threads.append(threading.Thread(target=lambda: outcomes.append(cache.compile_json_schema(number(1)))))
    threads[1].start()
    while cache.stats.waits < 1:
        time.sleep(0.001)
    go_on.set()
    for thread in threads:
        thread.join()
    assert len(calls) == 2
    assert cache.compile_json_schema(number(1)) in outcomes
    assert "interrupted" in outcomes


def test_an_error_reaches_all_who_wait_for_it(vocab, monkeypatch):
    cache = mw.Cache(vocab)
    real = schema_module.compile_request
    monkeypatch.setattr(schema_module, "compile_request", lambda *a, **k: (time.sleep(0.05), real(*a, **k))[1])
    told = []

    def ask() -> None:
        try:
            cache.compile_json_schema({"type": "string", "pattern": "("})
        except mw.errors.SchemaError as error:
            told.append(str(error))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(told) == 8
    assert len(set(told)) == 1
    assert cache.stats.compilations == 1


# ------------------------------------------------------------------------------------------------------- bounds


def test_what_was_asked_for_least_recently_goes_first(vocab):
    cache = mw.Cache(vocab, max_entries=3)
    tables = [cache.compile_json_schema(number(i)) for i in range(3)]
    cache.compile_json_schema(number(0))
    cache.compile_json_schema(number(3))  # in place of 1
    assert cache.stats.entries == 3
    assert cache.stats.evictions == 1
    before = cache.stats.compilations
    assert cache.compile_json_schema(number(0)) is tables[0]
    assert cache.compile_json_schema(number(2)) is tables[2]
    assert cache.stats.compilations == before
    assert cache.compile_json_schema(number(1)) is not tables[1]
    assert accepts(tables[1], '{"key1": 5}')  # who holds it can go on


def test_bytes_are_bounded_and_are_what_is_really_held(vocab):
    one = mw.Cache(vocab).compile_json_schema(number(0)).memory
    cache = mw.Cache(vocab, max_bytes=5 * one)
    tables = []
    for i in range(30):
        tables.append(cache.compile_json_schema(number(i)))
        assert cache.stats.bytes <= 5 * one
    assert 2 <= cache.stats.entries <= 5
    counts_what_is_held(cache, *tables[-cache.stats.entries :])
    cache.clear()
    assert (cache.stats.entries, cache.stats.bytes) == (0, 0)


def counts_what_is_held(cache: mw.Cache, *tables: Any) -> None:
    """Check that the bytes of a cache are those of its tables, and little for the sources that they are found by."""
    around = cache.stats.bytes - sum(table.memory for table in tables)
    assert 0 < around < 100_000 * len(tables)


def test_a_lazy_table_counts_as_much_as_it_has_grown(vocab):
    cache = mw.Cache(vocab)
    schema = {"type": "object", "properties": {f"p{i}": number(i) for i in range(600)}}
    table = cache.compile_json_schema(schema)
    before = cache.stats.bytes
    assert accepts(table, "{" + ", ".join(f'"p{i}": {{"key{i}": {i}}}' for i in range(0, 600, 7)) + "}")
    cache.compile_json_schema(schema)
    read = cache.stats.bytes
    table.to_table()
    cache.compile_json_schema(schema)
    assert before < read
    assert cache.stats.bytes >= table.to_table().nbytes
    counts_what_is_held(cache, table)


def test_a_grammar_counts_as_much_as_it_has_grown(vocab):
    cache = mw.Cache(vocab)
    table = cache.compile_grammar(PALINDROMES)
    before = cache.stats.bytes
    assert accepts(table, "ab" * 200 + "a")
    cache.compile_grammar(PALINDROMES)
    assert cache.stats.bytes > before + 10_000
    counts_what_is_held(cache, table)


def test_text_with_tags_counts_as_much_as_it_has_grown(vocab):
    cache = mw.Cache(vocab)
    text = mw.TaggedText([mw.Tag("<g>", "</g>", grammar=PALINDROMES)])
    table = cache.compile_structural_tag(text)
    before = cache.stats.bytes
    assert accepts(table, "so <g>" + "ab" * 200 + "a</g>")
    cache.compile_structural_tag(text)
    assert cache.stats.bytes > before + 10_000
    counts_what_is_held(cache, table)


def test_something_larger_than_the_cache_is_made_and_takes_its_place_alone(vocab):
    cache = mw.Cache(vocab, max_bytes=1)
    cache.compile_regex("a", lazy=False)
    table = cache.compile_regex("b", lazy=False)
    assert cache.stats.entries == 1
    assert cache.compile_regex("b", lazy=False) is table


# ---------------------------------------------------------------------------------------------------------- disk


def test_tables_and_errors_on_disk_serve_another_cache(vocab, tmp_path, compilations):
    first, folder = mw.Cache(vocab, directory=tmp_path / "new"), tmp_path / "new"
    made = first.compile_json_schema(number(1), lazy=False)
    first.compile_regex("[a-c]{2,5}", lazy=False)
    with pytest.raises(mw.errors.SchemaError) as error:
        first.compile_json_schema({"type": 3})
    assert sorted(path.suffix for path in folder.iterdir()) == [".json", ".safetensors", ".safetensors"]
    compilations.clear()
    second = mw.Cache(vocab, directory=folder)
    for options in ({"lazy": False}, {}):  # whoever wants a lazy one is served as well
        table = second.compile_json_schema(number(1), **options)
        assert table.source == made.source
        assert accepts(table, '{"key1": 5}')
        assert not accepts(table, '{"key1": 0}')
    assert accepts(second.compile_regex("[a-c]{2,5}", lazy=False), "abc")
    with pytest.raises(mw.errors.SchemaError) as again:
        second.compile_json_schema({"type": 3})
    assert (str(again.value), again.value.pointer) == (str(error.value), error.value.pointer)
    assert compilations == []
    assert second.stats.disk_hits == 4


def test_a_lazy_table_is_kept_on_disk_once_it_is_worked_out(vocab, tmp_path):
    first = mw.Cache(vocab, directory=tmp_path)
    table = first.compile_json_schema(number(1))
    assert isinstance(table, mw.LazyTable)
    assert not list(tmp_path.iterdir())
    table.to_table()
    assert len(list(tmp_path.iterdir())) == 1
    second = mw.Cache(vocab, directory=tmp_path)
    assert second.compile_json_schema(number(1)).to_table().num_states == table.to_table().num_states
    assert second.stats.disk_hits == 1
    other = mw.compile_json_schema(number(1), vocab)
    assert other.to_table().num_states == table.to_table().num_states


def test_the_arrays_and_errors_of_grammars_are_kept_on_disk(vocab, tmp_path, compilations):
    first = mw.Cache(vocab, directory=tmp_path)
    first.compile_grammar(LIST).to_table()
    with pytest.raises(mw.errors.GrammarError) as error:
        first.compile_grammar("root ::= x", syntax="gbnf")
    compilations.clear()
    second = mw.Cache(vocab, directory=tmp_path)
    table = second.compile_grammar(LIST)
    assert not isinstance(table, mw.LazyTable)
    assert [accepts(table, text) for text in ("a,a", "a,")] == [True, False]
    with pytest.raises(mw.errors.GrammarError) as again:
        second.compile_grammar("root ::= x", syntax="gbnf")
    assert (str(again.value), again.value.line, again.value.column) == (str(error.value), 1, 10)
    assert (compilations, second.stats.disk_hits) == ([], 2)


def test_the_arrays_and_errors_of_tags_are_kept_on_disk(vocab, tmp_path, compilations):
    wrong = {**TAG, "triggers": ["<f", "<g"]}
    options = {"whitespace": "compact", "documents": {"u:a": {"type": "null"}}}
    first = mw.Cache(vocab, directory=tmp_path)
    for tag in (TAG, CHOICE):
        first.compile_structural_tag(tag, **options).to_table()
    with pytest.raises(mw.errors.ConstraintError) as error:
        first.compile_structural_tag(wrong)
    compilations.clear()
    second = mw.Cache(vocab, directory=tmp_path)
    table, other = (second.compile_structural_tag(tag, **options) for tag in (TAG, CHOICE))
    assert not isinstance(table, mw.LazyTable)
    assert [accepts(table, text) for text in ("a <f>1</f> b", "<f>1")] == [True, False]
    assert [accepts(other, text) for text in ("<c>ab</c>", "<c></c>")] == [True, False]
    with pytest.raises(mw.errors.ConstraintError) as again:
        second.compile_structural_tag(wrong)
    assert str(again.value) == str(error.value)
    assert (compilations, second.stats.disk_hits) == ([], 3)


def test_another_vocabulary_has_tables_of_its_own(vocab, tmp_path):
    mw.Cache(vocab, directory=tmp_path).compile_regex("a+", lazy=False)
    other = mw.Vocabulary.from_bytes([b"", *(bytes([b]) for b in range(256))], eos=0)
    cache = mw.Cache(other, directory=tmp_path)
    assert cache.compile_regex("a+", lazy=False).vocabulary == other.fingerprint
    assert cache.stats.disk_hits == 0


@pytest.mark.parametrize("suffix", [".safetensors", ".json"])
def test_a_file_that_is_cut_or_changed_anywhere_is_made_again(vocab, tmp_path, suffix):
    pattern = "(ab|c){1,3}" if suffix == ".safetensors" else "(ab"

    def ask(cache):
        try:
            return cache.compile_regex(pattern, lazy=False)
        except mw.errors.RegexError as error:
            return str(error)

    expected = ask(mw.Cache(vocab, directory=tmp_path))
    (file,) = tmp_path.iterdir()
    assert file.suffix == suffix
    whole = file.read_bytes()
    rng = random.Random(1)
    places = sorted({0, 1, 7, 8, len(whole) // 2, len(whole) - 1, *rng.sample(range(len(whole)), 60)})
    for place in places:
        for damaged in (
            whole[:place],
            whole[:place] + bytes([whole[place] ^ 1 << rng.randrange(8)]) + whole[place + 1 :],
        ):
            file.write_bytes(damaged)
            cache = mw.Cache(vocab, directory=tmp_path)
            found = ask(cache)
            if isinstance(found, str):
                assert found == expected
            else:
                assert accepts(found, "abc")
                assert not accepts(found, "abab" * 3)
            assert file.read_bytes() == whole  # made again, or the change was none that says anything


@pytest.mark.long
def test_a_process_killed_while_it_writes_leaves_nothing_half_written(vocab, tmp_path):
    program = f"""
import maskwright as mw
vocab = mw.Vocabulary.from_bytes([b"", *(bytes([b]) for b in range(256)), b'{{"', b'": '], eos=0)
cache = mw.Cache(vocab, directory={str(tmp_path)!r})
print("ready", flush=True)
for i in range(100_000):
    cache.compile_regex("[a-c]{{1,%d}}" % (i + 1), lazy=False)
"""
    for delay in (0.0, 0.01, 0.03, 0.1):
        process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(delay)
        process.kill()
        process.wait()
        process.stdout.close()
    cache = mw.Cache(vocab, directory=tmp_path)
    there = [path for path in tmp_path.iterdir() if path.suffix == ".safetensors"]
    for path in there:
        mw.TransitionTable.load(path)
    for i in range(min(len(there), 20)):
        assert accepts(cache.compile_regex("[a-c]{1,%d}" % (i + 1), lazy=False), "a" * (i + 1))  # noqa: UP031
    assert cache.stats.compilations <= 1


def test_the_folder_is_bounded_and_forgets_what_was_not_used_for_longest(vocab, tmp_path):
    mw.Cache(vocab, directory=tmp_path / "one").compile_regex("a{0}", lazy=False)
    size = next((tmp_path / "one").iterdir()).stat().st_size
    cache = mw.Cache(vocab, directory=tmp_path / "some", directory_bytes=6 * size)
    (tmp_path / "some").mkdir()
    stale = tmp_path / "some" / "table-x.safetensors.123.part"
    stale.write_bytes(b"x")
    os.utime(stale, (1.0, 1.0))
    (tmp_path / "some" / "notes.txt").write_text("not ours")
    for i in range(12):
        cache.compile_regex(f"a{{{i}}}", lazy=False)
        time.sleep(0.01)
    kept = [path for path in (tmp_path / "some").iterdir() if path.suffix == ".safetensors"]
    assert 1 <= len(kept) <= 6
    assert not stale.exists()
    assert (tmp_path / "some" / "notes.txt").exists()
    later = mw.Cache(vocab, directory=tmp_path / "some")
    later.compile_regex("a{11}", lazy=False)
    later.compile_regex("a{0}", lazy=False)
    assert later.stats.disk_hits == 1


def test_a_folder_that_cannot_be_written_is_done_without(vocab, tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    cache = mw.Cache(vocab, directory=blocked / "inside")
    assert accepts(cache.compile_regex("a+", lazy=False), "aa")
    assert cache.compile_json_schema(number(1)).to_table().num_states
    assert cache.stats.compilations == 2


# ------------------------------------------------------------------------------------------------------- warming


@pytest.mark.long
def test_warming_compiles_in_processes_and_says_what_cannot_be(vocab, tmp_path):
    cache = mw.Cache(vocab, directory=tmp_path)
    schemas = [number(0), {"type": 3}, json.dumps(number(1)), number(0), "{", {"type": "string", "pattern": "("}]
    warmed = cache.warm(schemas, processes=2)
    assert warmed.tables == 3
    assert sorted(warmed.errors) == [1, 4, 5]
    assert warmed.errors[1].pointer == "/type"  # type: ignore[attr-defined]
    stats = cache.stats
    assert stats.compilations == 4
    assert not isinstance(cache.compile_json_schema(number(0)), mw.LazyTable)
    assert accepts(cache.compile_json_schema(number(1)), '{"key1": 1}')
    with pytest.raises(mw.errors.SchemaError, match="the pattern cannot be compiled"):
        cache.compile_json_schema({"type": "string", "pattern": "("})
    assert cache.stats.compilations == stats.compilations
    again = cache.warm(schemas, processes=2)
    assert again.tables == 3
    assert {n: str(error) for n, error in again.errors.items()} == {n: str(e) for n, e in warmed.errors.items()}
    assert cache.stats.compilations == stats.compilations
    assert len(list(tmp_path.iterdir())) == 4
    with pytest.raises(TypeError, match="takes a list"):
        cache.warm(number(0))  # type: ignore[arg-type]


@pytest.mark.long
def test_warming_leaves_to_lazy_tables_what_is_too_large(vocab):
    cache = mw.Cache(vocab)
    large = {"type": "object", "properties": {f"p{i}": {"type": "string", "maxLength": 900 + i} for i in range(40)}}
    budget = mw.Budget(states=300)
    warmed = cache.warm([large], processes=1, budget=budget)
    assert warmed.tables == 0
    assert isinstance(warmed.errors[0], mw.errors.BudgetError)
    assert cache.stats.entries == 0


@pytest.mark.long
def test_nothing_leaks_when_a_thousand_schemas_go_through_a_small_cache(vocab):
    cache = mw.Cache(vocab, max_entries=20)
    texts = [json.dumps(number(i)) + 100_000 * " " for i in range(1100)]
    for text in texts[:100]:
        cache.compile_json_schema(text)
    before = _resident()
    for i in range(100, 1100):
        cache.compile_json_schema(texts[i])
        texts[i] = ""
    assert _resident() - before < 30e6  # twenty tables of 0.2 MB, and what the allocator does not give back
    assert cache.stats.entries == 20


def _resident() -> float:
    gc.collect()
    file = Path("/proc/self/statm")
    if not file.exists():
        pytest.skip("resident memory is read from /proc")
    return float(int(file.read_text().split()[1]) * 4096)


def test_the_public_names_are_there():
    assert mw.Cache is cache_module.Cache


# ------------------------------------------------------------------------------------------- what must not be mixed


def test_documents_that_are_classes_count_by_what_they_say(vocab):
    pydantic = pytest.importorskip("pydantic")

    def thing(kind):
        class Thing(pydantic.BaseModel):
            a: kind

        return Thing

    cache = mw.Cache(vocab)
    schema = {"$ref": "http://x/a"}
    numbers, texts = (cache.compile_json_schema(schema, documents={"http://x/a": thing(kind)}) for kind in (int, str))
    assert accepts(numbers, '{"a": 1}')
    assert accepts(texts, '{"a": "x"}')
    assert not accepts(texts, '{"a": 1}')


def test_what_json_writes_alike_and_is_not_is_kept_apart(vocab):
    np = pytest.importorskip("numpy")
    cache = mw.Cache(vocab)
    valid, other = {"const": {"true": 1}}, {"const": {True: 1}}
    cache.compile_json_schema(valid)
    with pytest.raises((mw.errors.SchemaError, TypeError)):
        cache.compile_json_schema(other)
    fresh = mw.Cache(vocab)
    with pytest.raises((mw.errors.SchemaError, TypeError)):
        fresh.compile_json_schema(other)
    assert accepts(fresh.compile_json_schema(valid), '{"true": 1}')
    number = np.frombuffer(np.float64(1.0).tobytes(), np.int64)[0]
    tables = []
    for minimum in (np.float64(1.0), number):
        try:
            tables.append(cache.compile_json_schema({"type": "integer", "minimum": minimum}))
        except (mw.errors.SchemaError, TypeError):
            tables.append(None)
    assert tables[0] is not tables[1]

    class Odd(str):
        __slots__ = ()

        def __repr__(self):
            return "'a'"

        def __hash__(self):
            return hash("a")

        def __eq__(self, other):
            return str.__eq__("a", other)

    assert accepts(cache.compile_regex("a"), "a")
    assert accepts(cache.compile_regex(Odd("b")), "b")
    with pytest.raises(TypeError, match="lazy"):
        cache.compile_json_schema(valid, lazy=1)


def test_schemas_that_contain_themselves_are_kept_apart(vocab):
    def schema(closes):
        p = {"type": "object", "properties": {"v": {"type": "null"}}, "additionalProperties": False}
        q = {"type": "object", "properties": {}, "additionalProperties": False}
        q["properties"]["q"] = q if closes == "q" else p
        p["properties"]["q"] = q
        return p

    cache = mw.Cache(vocab)
    tables = [cache.compile_json_schema(schema(closes)) for closes in ("q", "p", "q")]
    assert tables[0] is tables[2]  # spelled alike
    assert tables[0].source != tables[1].source
    assert mw.compile_json_schema(schema("q"), vocab).source != tables[0].source
    assert accepts(tables[1], '{"q": {"q": {"v": null}}}')
    assert not accepts(tables[0], '{"q": {"q": {"v": null}}}')


def test_parts_that_stand_in_many_places_are_spelled_once(vocab):
    schema = {"type": "null"}
    for _ in range(60):
        schema = {"allOf": [schema, schema]}
    cache = mw.Cache(vocab)
    assert cache.compile_json_schema(schema) is cache.compile_json_schema(schema)


def test_what_ran_out_of_time_is_tried_again_and_what_was_too_large_is_not(vocab):
    cache = mw.Cache(vocab)
    for budget, compilations in ((mw.Budget(states=10), 1), (mw.Budget(seconds=0), 3)):
        for _ in range(2):
            with pytest.raises(mw.errors.BudgetError):
                cache.compile_regex("(.*a.{20}){3}", budget=budget, lazy=False)
        assert cache.stats.compilations == compilations
    assert cache.stats.entries == 1


def test_arrays_that_ran_out_of_time_are_tried_again(vocab, monkeypatch):
    cache = mw.Cache(vocab)
    table = cache.compile_grammar(LIST)
    with monkeypatch.context() as patch:
        patch.setattr(budgets.Meter, "seconds", property(lambda meter: 1e9))
        assert not table.has_arrays()
        with pytest.raises(mw.errors.BudgetError) as raised:
            table.to_table()
    assert raised.value.limit == "seconds"
    assert table.has_arrays()
    assert table.to_table() is cache.compile_grammar(LIST).to_table()


def test_an_error_has_its_cause_the_first_time(vocab):
    cache = mw.Cache(vocab)
    with pytest.raises(mw.errors.SchemaError) as first:
        cache.compile_json_schema({"type": "string", "pattern": "("})
    assert isinstance(first.value.__cause__, mw.errors.RegexError)


def test_spellings_that_are_forgotten_take_no_room(vocab):
    cache = mw.Cache(vocab)
    sizes = []
    tracemalloc.start()
    for width in range(200_000, 200_040):
        cache.compile_json_schema(json.dumps(number(1)) + width * " ")
        sizes.append(cache.stats.bytes)
    taken = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert sizes[-1] - sizes[0] < 4 * 201_000
    assert 4 * 200_000 < taken < 8 * 200_000


@pytest.mark.parametrize("content", ["null", "5", '"x"', "[" * 9000, "{}", '{"checksum": 1}'])
def test_an_error_s_file_that_holds_something_else_is_made_again(content, vocab, tmp_path):
    with pytest.raises(mw.errors.RegexError):
        mw.Cache(vocab, directory=tmp_path).compile_regex("(")
    (file,) = tmp_path.iterdir()
    whole = file.read_text()
    file.write_text(content)
    with pytest.raises(mw.errors.RegexError):
        mw.Cache(vocab, directory=tmp_path).compile_regex("(")
    assert file.read_text() == whole


def test_a_file_under_another_s_name_is_not_believed(vocab, tmp_path):
    for pattern in ("a", "("):
        folder = tmp_path / str(pattern == "a")
        cache = mw.Cache(vocab, directory=folder)
        names = []
        for one in (pattern, pattern + "b"):
            before = set(folder.iterdir()) if folder.exists() else set()
            try:
                cache.compile_regex(one, lazy=False)
            except mw.errors.RegexError as error:
                assert one in str(error)  # noqa: PT017
            names += set(folder.iterdir()) - before
        names[1].write_bytes(names[0].read_bytes())
        try:
            table = mw.Cache(vocab, directory=folder).compile_regex(pattern + "b", lazy=False)
            assert accepts(table, "ab")
            assert not accepts(table, "a")
        except mw.errors.RegexError as error:
            assert pattern + "b" in str(error)  # noqa: PT017


def test_processes_that_write_little_bound_the_folder_too(vocab, tmp_path):
    mw.Cache(vocab, directory=tmp_path / "one").compile_regex("a{0}", lazy=False)
    size = next((tmp_path / "one").iterdir()).stat().st_size
    folder = tmp_path / "some"
    (folder / "table-foreign.json").mkdir(parents=True)
    os.utime(folder / "table-foreign.json", (1.0, 1.0))
    for i in range(9):
        mw.Cache(vocab, directory=folder, directory_bytes=3 * size).compile_regex(f"a{{{i}}}", lazy=False)
    kept = [path for path in folder.iterdir() if path.suffix == ".safetensors"]
    assert 1 <= len(kept) <= 4


@pytest.mark.long
def test_warming_reads_the_folder_and_is_waited_for(vocab, tmp_path, monkeypatch):
    first = mw.Cache(vocab, directory=tmp_path)
    first.warm([number(0), {"type": 3}], processes=1)
    again = mw.Cache(vocab, directory=tmp_path)
    warmed = again.warm(iter([number(0), {"type": 3}]), processes=1, allow=iter(["uniqueItems"][:0]))
    assert warmed.tables == 1
    assert list(warmed.errors) == [1]
    assert again.stats.compilations == 0
    assert again.stats.disk_hits == 2
    lazy = again.compile_json_schema(number(5))
    assert again.warm([number(5)]).tables == 1
    assert lazy.is_complete
    assert again.compile_json_schema(number(5)) is lazy
    one = mw.Cache(vocab, max_entries=1)
    found = one.warm([{"type": 3}, number(0)], processes=1)
    assert (found.tables, list(found.errors)) == (1, [0])
    with pytest.raises(ValueError, match="processes=0"):
        one.warm([number(0)], processes=0)
    for wrong in (["unique"], "unique", 5):
        with pytest.raises(mw.errors.ConstraintError, match="allow must be"):
            one.warm([number(0)], allow=wrong)
    waiting = mw.Cache(vocab)
    begun, compile_all = threading.Event(), cache_module.compile_all
    monkeypatch.setattr(cache_module, "compile_all", lambda *given: (begun.set(), compile_all(*given))[1])
    warm = threading.Thread(target=lambda: waiting.warm([number(7)], processes=1))
    warm.start()
    assert begun.wait(60)
    table = waiting.compile_json_schema(number(7))
    warm.join()
    assert waiting.stats.compilations == 1
    assert waiting.compile_json_schema(number(7)) is table


def test_a_structural_tag_is_read_no_deeper_than_its_formats(vocab):
    deep: Any = "x"
    for _ in range(3000):
        deep = [deep]
    for part in ({"type": "const_string", "value": deep}, {"type": "any_text", "unknown": deep}):
        said = []
        for ask in (
            mw.Cache(vocab).compile_structural_tag,
            partial(tag_module.compile_structural_tag, vocabulary=vocab),
        ):
            with pytest.raises(mw.errors.ConstraintError) as caught:
                ask({"type": "structural_tag", "format": part})
            said.append(str(caught.value))
        assert said[0] == said[1]


def test_options_of_tags_make_other_tables(vocab):
    cache = mw.Cache(vocab)
    tag = {"begin": "<a>", "content": {"type": "json_schema", "json_schema": {"$ref": "a"}}, "end": "</a>"}
    ways = [{"documents": {"a": {"type": "null"}}}, {"documents": {"a": {"type": "integer"}}},
            {"documents": {"a": {"type": "null"}}, "allow": ("format",)},
            {"documents": {"a": {"type": "null"}}, "ascii": True}]  # fmt: skip
    tables = [cache.compile_structural_tag({"type": "tag", **tag}, **way) for way in ways]
    assert len(set(map(id, tables))) == len(ways)
    assert len({table.source for table in tables}) == len(ways)


def test_a_schema_without_a_table_is_no_error_of_its_lazy_table(vocab):
    """Items that a matcher remembers: `warm` makes tables, which cannot."""
    schema = {"type": "array", "items": {"type": "string"}, "uniqueItems": True}
    cache = mw.Cache(vocab)
    for _ in range(2):
        warmed = cache.warm([schema], processes=1)
        assert warmed.tables == 0
        assert "uniqueItems" in str(warmed.errors[0])
        assert cache.compile_json_schema(schema).unique is not None
