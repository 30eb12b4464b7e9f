"""Constraints of any depth, through every front door: right, or an error that names the limit; in a second."""

from __future__ import annotations

import copy
import gc
import json
import math
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import maskwright as mw
from maskwright.compile.json_schema.source import check_depth, check_text_depth
from maskwright.depth import (
    LIMIT,
    MOST_FORMATS,
    MOST_GROUPS,
    MOST_IN_PLACE,
    MOST_LEVELS,
    MOST_LOOKS,
    MOST_PARENTHESES,
    MOST_PARTS,
    MOST_RULES,
    MOST_TERMINALS,
    Flat,
    deep_text,
    deep_value,
)
from maskwright.runtime.host.matcher import Matcher
from tests.strategies import deep_sources as deep

VOCAB = mw.Vocabulary.from_bytes([b"", *(bytes([b]) for b in range(256)), b'{"', b'": ', b'a"'], eos=0)
SECOND = 1.0  # of the processor, as a busy machine takes longer

KINDS: dict[str, dict[str, deep.Source]] = {
    "json schema": deep.SCHEMAS,
    "regex": deep.PATTERNS,
    **{f"grammar {syntax}": found for syntax, found in deep.GRAMMARS.items()},
    "structural tag": deep.TAGS,
    "choices": deep.CHOICES,
}
MALFORMED = {"never closed", "stars", "lists"}


def python(kind: str, source: Any) -> Any:
    """Compile with the functions of the package."""
    if kind == "json schema":
        return mw.compile_json_schema(source, VOCAB)
    if kind == "regex":
        return mw.compile_regex(source, VOCAB)
    if kind == "structural tag":
        return mw.compile_structural_tag(source, VOCAB)
    if kind == "choices":
        return mw.compile_choices(source, VOCAB)
    return mw.compile_grammar(source, VOCAB, syntax=kind.split()[1])


def cached(folder: Path) -> Callable[[str, Any], Any]:
    """Compile with a cache that has a folder, twice."""

    def compile_cached(kind: str, source: Any) -> Any:
        cache = mw.Cache(VOCAB, directory=folder)
        made = _with(cache, kind, source)
        assert _with(cache, kind, source) is made
        return made

    return compile_cached


def _with(cache: mw.Cache, kind: str, source: Any) -> Any:
    if kind.startswith("grammar"):
        return cache.compile_grammar(source, syntax=kind.split()[1])
    return getattr(cache, f"compile_{kind.replace(' ', '_')}")(source)


def engine(kind: str, source: Any) -> Any:
    """Compile as the plugins of vLLM and SGLang do."""
    if kind == "grammar gbnf" or not isinstance(source, str):
        return None
    from maskwright.engines.constraints import EngineConstraints
    from maskwright.engines.options import EngineOptions

    name = {"json schema": "json", "structural tag": "structural_tag", "choices": "choice"}.get(kind, kind)
    return EngineConstraints(VOCAB, EngineOptions()).matcher("grammar" if " " in name else name, source).table


def as_xgrammar(kind: str, source: Any) -> Any:
    """Compile with the classes in the shape of xgrammar's."""
    from maskwright.engines import xgrammar

    compiler = xgrammar.GrammarCompiler(xgrammar.TokenizerInfo(VOCAB))
    name = {"json schema": "json_schema", "structural tag": "structural_tag", "grammar ebnf": "grammar"}.get(kind, kind)
    call = getattr(compiler, f"compile_{name.replace(' ', '_')}", None)
    return None if call is None else call(source).table


def within_second(door: Callable[[str, Any], Any], kind: str, source: Any) -> tuple[Any, str]:
    """Return what a door makes of a source, or its error, and what is wrong with that.

    On a busy machine the same work takes more processor time: the least of three tries counts.
    """
    least = math.inf
    for _ in range(3):
        began = time.process_time()
        try:
            found = door(kind, source)
            if found is not None:
                walked(found)
        except mw.errors.ConstraintError as error:
            found = error
        except BaseException as error:
            return None, f"{type(error).__name__}: {str(error)[:80]}"
        least = min(least, time.process_time() - began)
        if least <= SECOND:
            break
    return found, f"{least:.2f} s" if least > SECOND else ""


def walked(table: Any, steps: int = 40) -> Matcher:
    """Follow the first allowed token of each step."""
    matcher = Matcher(table, VOCAB)
    for _ in range(steps):
        allowed = np.flatnonzero(np.unpackbits(matcher.mask().view(np.uint8), bitorder="little"))
        assert len(allowed)
        if matcher.is_terminated or not matcher.advance(int(allowed[-1])):
            break
    return matcher


@pytest.fixture(scope="module", autouse=True)
def warm() -> None:
    """Have kernels loaded, and lark's tables made, before anything is timed."""
    for kind, sources in KINDS.items():
        for name in list(sources)[:1]:
            within_second(python, kind, sources[name](2))


CASES = [(kind, name) for kind, sources in KINDS.items() for name in sources]


@pytest.mark.long
@pytest.mark.parametrize(("kind", "name"), CASES)
def test_every_front_door_answers_any_depth_in_a_second(kind: str, name: str, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    doors = [python, cached(tmp_path), engine, as_xgrammar]
    wrong = []
    for levels in deep.LEVELS:
        source: Any = KINDS[kind][name](levels)
        given = [(door, source) for door in doors]
        if kind == "choices":
            given = [(engine, source), *((door, deep.value_of(source)) for door in doors[:2])]
        elif kind in ("json schema", "structural tag") and name != "never closed" and levels <= 10_000:
            given += [(door, deep.value_of(source)) for door in (python, cached(tmp_path), as_xgrammar)]
        for door, each in given:
            found, why = within_second(door, kind, each)
            if not why and levels >= 10_000 and isinstance(found, mw.errors.ConstraintError) and name not in MALFORMED:
                why = "" if found.limit == LIMIT else f"{found.limit}: {str(found)[-100:]}"
            if not why and isinstance(found, mw.errors.ConstraintError):
                same = pickle.loads(pickle.dumps(found))
                assert str(copy.deepcopy(same)) == str(found)
            if why:
                wrong.append((door.__name__, levels, type(each).__name__, why))
            del found
        del given, source
    assert not wrong


@pytest.mark.parametrize(
    ("kind", "name"), [case for case in CASES if case[0].startswith("grammar") and case[1].startswith("rules")]
)
def test_as_many_rules_as_there_may_be_compile_in_a_second(kind: str, name: str) -> None:
    source = KINDS[kind][name](MOST_RULES - 2)  # beside the first and the last
    for door in (python, engine, as_xgrammar):
        found, why = within_second(door, kind, source)
        assert not why
        assert not isinstance(found, mw.errors.ConstraintError)


@pytest.mark.parametrize("name", ["properties", "items", "enum", "not"])
def test_values_built_in_python_a_million_deep_are_refused_and_freed(name: str, tmp_path: Path) -> None:
    value = deep.value_of(deep.SCHEMAS[name](200_000))
    tag = {"type": "structural_tag", "format": {"type": "json_schema", "json_schema": value}}
    for door in (python, cached(tmp_path)):
        for kind, source in (("json schema", value), ("structural tag", tag)):
            found, why = within_second(door, kind, source)
            assert not why
            assert isinstance(found, mw.errors.ConstraintError)
            assert (found.limit, found.allowed) == (LIMIT, MOST_LEVELS)
            assert found.pointer
    given = {"https://example.org/a": value}
    with pytest.raises(mw.errors.SchemaError, match="nested more than") as error:
        mw.compile_json_schema({"$ref": "https://example.org/a"}, VOCAB, documents=given)
    assert error.value.pointer.startswith("https://example.org/a#/")
    del value, tag, given
    gc.collect()


AT_LIMIT = [
    *(("json schema", name, MOST_LEVELS // 2 - 1) for name in ("properties", "required", "prefixItems", "$defs")),
    *(("json schema", name, MOST_LEVELS - 2) for name in ("items", "contains", "enum", "const", "default")),
    *(("json schema", name, MOST_IN_PLACE - 1) for name in ("anyOf", "allOf", "oneOf", "not", "if")),
    ("json schema", "members and branches", MOST_LEVELS // 4 - 1),
    ("json schema", "$ref", MOST_IN_PLACE - 2),
    ("json schema", "$ref in properties", 10_000),
    *(("regex", name, MOST_GROUPS) for name in ("groups", "repeats", "branches", "anchors")),
    *(("regex", name, MOST_LOOKS) for name in ("lookaheads", "lookbehinds", "not ahead")),
    *((f"grammar {syntax}", "repeats", MOST_LEVELS) for syntax in ("ebnf", "gbnf")),
    ("grammar lark", "repeats", MOST_PARENTHESES),
    ("grammar ebnf", "around itself", MOST_LEVELS),
    ("grammar lark", "in a terminal", MOST_PARENTHESES),
    ("grammar lark", "in a pattern", MOST_GROUPS),
    ("grammar lark", "terminals", MOST_TERMINALS - 1),
    ("grammar ebnf", "rules", MOST_RULES - 10),
    ("structural tag", "sequence", MOST_FORMATS - 3),
    ("structural tag", "tag", MOST_FORMATS - 3),
    ("structural tag", "schema", MOST_LEVELS // 2 - 3),
]


@pytest.mark.parametrize(("kind", "name", "levels"), AT_LIMIT)
def test_what_is_as_deep_as_it_may_be_compiles_with_a_fourth_of_the_stack_taken(
    kind: str, name: str, levels: int
) -> None:
    source, made = KINDS[kind][name](levels), []

    def further(calls: int) -> None:
        if calls:
            further(calls - 1)
        else:
            made.append(walked(python(kind, source)).table)

    thread = threading.Thread(target=further, args=(sys.getrecursionlimit() // 4,))
    thread.start()
    thread.join()
    assert made
    repr(made[0])
    copy.deepcopy(made[0])
    hash(made[0])
    del made[0]
    gc.collect()


WHOLE = [case for case in AT_LIMIT if case[1] not in ("around itself",)]


@pytest.mark.long
def test_tables_at_the_limit_go_to_other_processes_and_to_files(tmp_path: Path) -> None:
    made = {}
    for kind, name, levels in WHOLE:
        if levels == 10_000:
            continue
        try:
            made[f"{kind} {name}"] = python(kind, KINDS[kind][name](levels)).to_table()
        except (mw.errors.NoTableError, mw.errors.BudgetError):
            continue
    assert len(made) > 20
    (tmp_path / "tables").write_bytes(pickle.dumps(made))
    code = (
        "import pickle, sys\n"
        "for name, table in pickle.load(open(sys.argv[1], 'rb')).items():\n"
        "    assert len(repr(table)) < 1000\n"
        "    table.save(sys.argv[2])\n"
        "    print(name, type(table).load(sys.argv[2]).num_states)\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "tables"), str(tmp_path / "one.safetensors")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [f"{name} {table.num_states}" for name, table in made.items()]


ROOMS = range(80, 720, 40)  # calls that are left when a door is called


@pytest.mark.parametrize(("kind", "name", "levels"), [
    ("json schema", "properties", MOST_LEVELS // 2 - 1), ("json schema", "anyOf", MOST_IN_PLACE - 1),
    ("grammar lark", "repeats", MOST_PARENTHESES), ("structural tag", "tag", MOST_FORMATS - 3),
])  # fmt: skip
def test_a_full_stack_is_an_error_of_the_door(kind: str, name: str, levels: int) -> None:
    source, ended = KINDS[kind][name](levels), []

    def further(calls: int) -> None:
        if calls:
            further(calls - 1)
            return
        try:
            ended.append(type(python(kind, source)).__name__)
        except mw.errors.ConstraintError as error:
            ended.append(error.limit)
        except RecursionError:
            ended.append("no error of the door")

    for room in ROOMS:
        thread = threading.Thread(target=further, args=(sys.getrecursionlimit() - room,))
        thread.start()
        thread.join()
    refused = ended.count(LIMIT)
    assert 0 < refused < len(ROOMS) == len(ended)
    assert ended == [LIMIT] * refused + ended[-1:] * (len(ROOMS) - refused)
    assert ended[-1].endswith("Table")


# -------------------------------------------------------------------------------------------------- counting levels


def test_levels_of_text_are_those_of_its_value_whatever_strings_hold() -> None:
    for text, levels in (
        ("1", 0), ("[]", 1), ('[{"a": "[[[[{{{{"}]', 2), (r'{"\"[": [[]], "b": "\\"}', 3), ('{"[": "]", "{": [1]}', 2),
        ("[" * 50 + "]" * 50 + "," + "[" * 9, 50),
    ):  # fmt: skip
        assert deep_text(text, levels) is None
        if levels:
            found = deep_text(text, levels - 1)
            assert found is not None
            assert found.position is not None
            assert text[found.position] in "[{"
        try:
            value = json.loads(text)
        except ValueError:
            continue
        assert deep_value(value, levels) is None
        assert levels < 2 or deep_value(value, levels - 1) is not None


@pytest.mark.parametrize("rest", [" ", '"a', "a", r"\a", '"', "\\"])
def test_what_follows_the_last_bracket_is_read_once(rest: str) -> None:
    text = "[" + "[]," * 800 + '[]]"' + rest * 300_001
    began = time.process_time()
    assert deep_text(text) is None
    assert deep_text(text[:-1], 1) is not None
    assert time.process_time() - began < SECOND
    assert deep_text('"' + "[" * 700 + '"') is None  # one string


def test_shared_parts_count_wherever_they_are_and_what_is_in_itself_to_where_it_begins() -> None:
    shared: Any = {"a": 1}
    for _ in range(60):
        shared = {"a": shared, "b": shared}
    assert deep_value(shared, 61) is None
    assert deep_value(shared, 60) is not None
    first: list[Any] = [shared]  # which is met at a lesser depth before
    assert deep_value([shared, [[first]]], 64) is not None
    assert deep_value([shared, [[first]]], 65) is None
    first.append(first)
    assert deep_value(first, 62) is None
    wide = [[] for _ in range(MOST_PARTS)]
    found = deep_value(wide)
    assert found is not None
    assert "more than 200,000 objects and arrays" in found.message


def test_errors_say_the_limit_and_the_place() -> None:
    text = deep.SCHEMAS["properties"](400)
    with pytest.raises(mw.errors.SchemaError) as error:
        check_text_depth(text)
    assert (error.value.limit, error.value.allowed) == (LIMIT, MOST_LEVELS)
    assert text[: error.value.position].count("{") == MOST_LEVELS
    assert error.value.excerpt.endswith("^")
    with pytest.raises(mw.errors.SchemaError) as error:
        check_depth({"x": deep.value_of(text)})
    assert error.value.pointer.startswith("/x/properties/a/properties")
    for kind, name, most in (
        ("json schema", "anyOf", MOST_IN_PLACE), ("regex", "groups", MOST_GROUPS), ("regex", "not ahead", MOST_LOOKS),
        ("grammar ebnf", "groups", MOST_LEVELS), ("grammar lark", "groups", MOST_PARENTHESES),
        ("grammar lark", "terminals", MOST_TERMINALS), ("structural tag", "tag", MOST_FORMATS),
    ):  # fmt: skip
        with pytest.raises(mw.errors.ConstraintError, match=f"more than {most}") as refused:
            python(kind, KINDS[kind][name](700 if most == MOST_LEVELS else 300))
        assert (refused.value.limit, refused.value.allowed) == (LIMIT, most)
        assert f"{refused.value.pointer}{refused.value.position}" != "NoneNone"
    for syntax in ("ebnf", "lark"):
        with pytest.raises(mw.errors.GrammarError, match=f"more than {MOST_RULES:,} rules"):
            python(f"grammar {syntax}", deep.GRAMMARS[syntax]["rules"](MOST_RULES + 1))


@pytest.mark.parametrize(
    ("chain", "same"), [("**", "*"), ("?*", "*"), ("*?", "*"), ("+?", "*"), ("??", "?"), ("++", "+")]
)
def test_a_repeat_of_a_repeat_in_gbnf_is_the_one_that_says_the_same(chain: str, same: str) -> None:
    found, plain = (python("grammar gbnf", f'root ::= "ab"{signs}') for signs in (chain, same))
    for text in (b"", b"ab", b"abab", b"aba"):
        tokens = VOCAB.encode(text)
        assert found.accepts([*tokens, 0]) == plain.accepts([*tokens, 0])


@pytest.mark.parametrize("levels", [10, 300, 10_000, 200_000])
def test_sources_of_any_depth_go_to_another_process(levels: int) -> None:
    schema, choices = deep.value_of(deep.SCHEMAS["properties"](levels)), deep.value_of(deep.CHOICES["lists"](levels))
    sources = [
        mw.Source.json_schema(schema), mw.Source.json_schema({"$ref": "x:y"}, documents={"x:y": schema}),
        mw.Source.choices(choices), mw.Source.choices(("a", *choices)),
    ]  # fmt: skip
    for source in sources:
        same = pickle.loads(pickle.dumps(source))
        assert ending(same) == ending(source)
        assert levels < 10_000 or ending(source)
    assert pickle.loads(pickle.dumps(mw.Source.choices(["yes", "no"]))).contents == ("yes", "no")


def ending(source: mw.Source) -> str | None:
    """Return the error of compiling a source, None if there is none."""
    try:
        source.compile(VOCAB)
    except (mw.errors.ConstraintError, TypeError) as error:
        return str(error)
    return None


@pytest.mark.parametrize("name", ["properties", "items", "enum", "anyOf"])
def test_a_value_at_the_limit_goes_to_another_process(name: str) -> None:
    value = deep.value_of(deep.SCHEMAS[name](300))
    same = pickle.loads(pickle.dumps(Flat(value)))
    assert json.dumps(same) == json.dumps(value)
    shared: Any = {"a": [1, "x", None, {}]}
    both = pickle.loads(pickle.dumps(Flat({"p": shared, "q": (shared, 2)})))
    assert both == {"p": shared, "q": [shared, 2]}
    assert both["p"] is both["q"][0]
    assert pickle.loads(pickle.dumps(Flat(True))) is True
