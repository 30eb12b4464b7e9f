"""The command line, run as a user runs it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections import Counter
from itertools import groupby

import jsonschema
import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

import maskwright as mw
from maskwright.cli import drawing
from maskwright.cli.main import main
from maskwright.compile.regex.lower import to_dfa
from maskwright.runtime import numpy_ops
from tests.strategies import tokenizer_zoo as zoo


def run(*arguments, stdin=None):
    return CliRunner().invoke(main, [str(a) for a in arguments], input=stdin)


def run_well(*arguments, stdin=None):
    out = run(*arguments, stdin=stdin)
    assert out.exit_code == 0, out.output
    return out.output


# ---------------------------------------------------------------------------------------------------- sequences


@pytest.fixture
def rows():
    return np.random.default_rng(0).integers(0, 300, (500, 4))


@pytest.fixture
def files(rows, tmp_path):
    pa = pytest.importorskip("pyarrow")
    from pyarrow import feather, parquet

    table = pa.table({"sid": pa.array(rows.tolist()), "a": rows[:, 0], "b": rows[:, 1], "title": ["x"] * 500})
    parquet.write_table(table, tmp_path / "ids.parquet")
    feather.write_feather(table, tmp_path / "ids.feather")
    with pa.OSFile(str(tmp_path / "ids.arrow"), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    np.save(tmp_path / "ids.npy", rows.astype(np.uint16))
    return tmp_path


@pytest.mark.parametrize("name", ["ids.parquet", "ids.feather", "ids.arrow", "ids.npy"])
def test_build_then_inspect(files, rows, name):
    column = [] if name.endswith("npy") else ["--column", "sid"]
    out = run("build", files / name, *column, "--vocab-size", 300, "-o", files / "ids.safetensors")
    assert out.exit_code == 0, out.output
    assert "500 rows" in out.output
    table = mw.TransitionTable.load(files / "ids.safetensors")
    assert table.contains(rows).all()
    shown = run("inspect", files / "ids.safetensors")
    assert shown.exit_code == 0, shown.output
    for part in ("sequences", "edges.token", "branches by level", "integers:300"):
        assert part in shown.output
    assert f"{table.num_states:,}" in shown.output


def test_build_from_one_column_per_position(files, rows):
    arguments = ("--column", "a", "--column", "b", "--vocab-size", 300, "-o", files / "t")
    assert run("build", files / "ids.parquet", *arguments).exit_code == 0
    assert mw.TransitionTable.load(files / "t").contains(rows[:, :2]).all()


def test_build_ragged_with_eos(files):
    import pyarrow as pa
    from pyarrow import parquet

    parquet.write_table(pa.table({"s": [[1, 2], [1], [3, 4, 5]]}), files / "r.parquet")
    arguments = ("--column", "s", "--vocab-size", 9, "--ragged", "--eos", 0, "-o", files / "t")
    out = run("build", files / "r.parquet", *arguments)
    assert out.exit_code == 0, out.output
    assert mw.TransitionTable.load(files / "t").accepts([1, 2, 0])
    out = run("build", files / "r.parquet", *arguments, "--eos", 8)
    assert out.exit_code == 0, out.output
    assert mw.TransitionTable.load(files / "t").ends == (0, 8)


def test_build_shards_then_merge(files, rows):
    pytest.importorskip("duckdb")
    options = ("--column", "a", "--column", "b", "--vocab-size", 900, "--offset", 10, "--offset", 500)
    sharded = ("build", files / "ids.parquet", *options, "--shards", 3, "--memory", "2GB", "-o", files / "out")
    shown = run_well(*sharded)
    assert "3 shards of" in shown
    assert "500 rows" in shown
    assert run_well(*sharded).split(", ")[:-1] == shown.split(", ")[:-1]
    for kind in ("table", "matrix"):
        assert "500 items" in run_well("merge", files / "out", "--kind", kind, "-o", files / "catalogue")
        catalogue = mw.Catalogue.load(files / "catalogue")
        found = catalogue.states(rows[:, :2] + [10, 500])
        assert all(at in items for at, items in enumerate(catalogue.items(found[:, None])))
    (files / "out" / "shard-00001.safetensors").unlink()
    out = run("merge", files / "out", "-o", files / "catalogue")
    assert out.exit_code == 1
    assert "shard-00001.safetensors is missing: run the same `maskwright build` again" in out.output


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--items", "a"), "--items goes with --shards"),
        (("--offset", 1), "--offset goes with --shards"),
        (("--shards", 2), "name the column that holds the codes"),
        (("--shards", 2, "--ragged"), "--ragged and --eos are for tables"),
        (("--shards", 2, "--memory", "much"), "'much' is no size: write 500MB or 4GB"),
    ],
)
def test_wrong_options_of_shards(files, options, message):
    out = run("build", files / "ids.parquet", "--vocab-size", 300, "-o", files / "out", *options)
    assert out.exit_code == 2
    assert message in out.output


def test_a_folder_needs_shards(files):
    out = run("build", files, "--column", "a", "--vocab-size", 300, "-o", files / "t")
    assert out.exit_code == 2
    assert "is a folder: pass --shards" in " ".join(out.output.split())


ERRORS = [
    (("ids.parquet", "--vocab-size", 300), "name the column that holds the sequences with --column, one of: sid, a, b"),
    (("ids.parquet", "--column", "sids", "--vocab-size", 300), "has no column 'sids'; it has sid, a, b, title"),
    (("ids.parquet", "--column", "title", "--vocab-size", 300), "a column of integer lists is needed"),
    (("ids.parquet", "--column", "a", "--column", "title", "--vocab-size", 300), "column 'title' holds string"),
    (("ids.parquet", "--column", "sid", "--vocab-size", 20), "outside 0 .. 19"),
    (("ids.npy", "--column", "sid", "--vocab-size", 300), "--column goes with Parquet and Arrow files"),
    (("ids.csv", "--vocab-size", 300), "is neither .parquet, .arrow, .feather nor .npy"),
    (("broken.npy", "--vocab-size", 300), "broken.npy cannot be read"),
    (("empty.npy", "--vocab-size", 300), "empty.npy cannot be read"),
    (("several.npy", "--vocab-size", 300), "several.npy holds several arrays"),
    (("corrupt.parquet", "--column", "sid", "--vocab-size", 300), "corrupt.parquet cannot be read"),
    (("broken.parquet", "--column", "sid", "--vocab-size", 300), "broken.parquet cannot be read"),
    (("absent.parquet", "--vocab-size", 300), "does not exist"),
]


@pytest.mark.parametrize(("arguments", "message"), ERRORS, ids=[m[:30] for _, m in ERRORS])
def test_bad_calls_end_with_one_clear_line(files, arguments, message):
    (files / "ids.csv").write_text("1,2\n")
    (files / "broken.npy").write_bytes(b"no array")
    (files / "broken.parquet").write_bytes(b"no parquet")
    (files / "empty.npy").touch()
    np.savez(files / "several.npz", a=[1], b=[2])
    (files / "several.npz").rename(files / "several.npy")
    whole = bytearray((files / "ids.parquet").read_bytes())
    whole[20:400] = b"\xff" * 380
    (files / "corrupt.parquet").write_bytes(whole)
    name, *rest = arguments
    out = run("build", files / name, *rest, "-o", files / "t")
    assert out.exit_code != 0
    assert message in " ".join(out.output.split())
    assert "Traceback" not in out.output
    assert not (files / "t").exists()


def test_a_missing_folder_is_said_before_anything_is_built(files):
    out = run("build", files / "ids.npy", "--vocab-size", 300, "-o", files / "absent" / "t")
    assert out.exit_code != 0
    assert "there is no folder" in out.output


def test_inspect_refuses_what_is_no_table(files):
    out = run("inspect", files / "ids.npy")
    assert out.exit_code != 0
    assert "truncated or is not a maskwright table" in " ".join(out.output.split())


# --------------------------------------------------------------------------------------------------------- texts

DATE = r"(19|20)[0-9]{2}-(0[1-9]|1[0-2])"
STRING = r'"([^"\\]|\\.)*"'


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    """A file with the tokenizer whose vocabulary `vocab` is."""
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    zoo.byte_level_bpe()[0].save(str(path))
    return path


@pytest.fixture
def vocab():
    return zoo.byte_level_bpe()[1]


def same(a, b):
    others = b.arrays.by_name()
    return repr(a) == repr(b) and all(np.array_equal(x, others[name]) for name, x in a.arrays.by_name().items())


def test_a_regex_is_compiled_as_in_python_and_inspected(tokenizer, vocab, tmp_path):
    printed = run_well("compile", "regex", DATE, "--tokenizer", tokenizer, "--eos", 0, "-o", tmp_path / "t")
    table = mw.TransitionTable.load(tmp_path / "t", vocabulary=vocab)
    assert same(table, mw.compile_regex(DATE, vocab, lazy=False))
    assert table.accepts([*vocab.encode("2024-07"), 0])
    assert f" {table.num_states:,} states, " in printed
    assert "does not say" not in printed
    shown = run_well("inspect", tmp_path / "t")
    assert f" {table.num_states:,}: {table.num_rows:,} rows, the one after EOS and the dead one" in shown
    assert f"{table.min_length} to {table.max_length} tokens" in shown
    assert "1 row accepts; from any state" in shown
    assert "branches by level" not in shown
    more = ("--tokenizer", tokenizer, "--size", 1024, "--eos", 0, "--eos", 1000)
    assert "eos = [0, 1000]" in run_well("compile", "regex", DATE, *more, "-o", tmp_path / "t")
    assert mw.TransitionTable.load(tmp_path / "t").ends == (0, 1000)
    assert "eos = [0, 1000]" in run_well("inspect", tmp_path / "t")


def test_through_a_pipe_nothing_of_a_table_is_cut(tokenizer, vocab, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    run_well("compile", "regex", STRING, "--tokenizer", tokenizer, "--eos", 0, "-o", tmp_path / "t")
    table = mw.TransitionTable.load(tmp_path / "t")
    shown = run_well("inspect", tmp_path / "t")
    assert f"{vocab.fingerprint}, V = " in shown
    assert table.source in shown
    for part in ("bases by the rows that share them", "class lists", "bases.target"):
        assert part in shown
    assert "…" not in shown
    assert not [line for line in shown.splitlines() if len(line) > 300]


def test_a_table_without_bases_is_inspected_without_them(tokenizer, tmp_path):
    run_well("compile", "regex", "ab", "--tokenizer", tokenizer, "--eos", 0, "-o", tmp_path / "t")
    assert not mw.TransitionTable.load(tmp_path / "t").bases.mask.size
    shown = run_well("inspect", tmp_path / "t")
    for part in ("bases", "class lists", "bases.target", "masks", "(0,)"):
        assert part not in shown


def test_flags_and_the_width_of_logits_are_passed_on(tokenizer, tmp_path):
    arguments = ("--tokenizer", tokenizer, "--eos", 1000, "--size", 1024)
    run_well("compile", "regex", "yes|no", "--flags", "i", *arguments, "-o", tmp_path / "t")
    table = mw.TransitionTable.load(tmp_path / "t")
    wide = mw.Vocabulary.from_file(tokenizer, size=1024, eos=1000)
    assert (table.vocab_size, table.eos) == (1024, 1000)
    assert table.accepts([*wide.encode("yEs"), 1000])


def test_a_table_without_a_token_that_ends_texts_is_pointed_out(tokenizer, tmp_path):
    printed = run_well("compile", "regex", "a+", "--tokenizer", tokenizer, "-o", tmp_path / "t")
    assert "does not say which token ends a text" in printed
    assert mw.TransitionTable.load(tmp_path / "t").eos is None
    assert "1 token or more" in run_well("inspect", tmp_path / "t")


@pytest.mark.parametrize("raw", [b"red\ngreen\n", b"red\r\ngreen\r\n", b"\xef\xbb\xbfred\ngreen"])
def test_choices_are_lines_of_a_file_or_of_standard_input(tokenizer, vocab, tmp_path, raw):
    (tmp_path / "colours").write_bytes(raw)
    expected = mw.compile_choices(["red", "green"], vocab)
    for source, stdin in ((tmp_path / "colours", None), ("-", raw)):
        arguments = ("--tokenizer", tokenizer, "--eos", 0, "-o", tmp_path / "t")
        run_well("compile", "choices", source, *arguments, stdin=stdin)
        assert same(mw.TransitionTable.load(tmp_path / "t"), expected)


# ---------------------------------------------------------------------------------------------------- JSON Schema

SCHEMA = """{
  "type": "object",
  "properties": {
    "name": {"type": "string"},
    "tags": {"type": "array", "items": {"type": "string"}, "uniqueItems": true},
    "next": {"$ref": "#"},
    "at": {"$ref": "https://example.com/place"}
  },
  "required": ["name"],
  "additionalProperties": false
}"""
PLACE = '{"type": "string", "pattern": "^[A-Z]é$"}'


def test_a_schema_is_compiled_as_in_python_and_inspected(tokenizer, vocab, tmp_path):
    (tmp_path / "place").write_text(PLACE)
    arguments = ("--tokenizer", tokenizer, "--eos", 0, "--allow", "uniqueItems", "-o", tmp_path / "t")
    document = ("--document", "https://example.com/place", tmp_path / "place")
    for form, options, text in (
        (("--ascii", "--depth", 2), {"ascii": True, "depth": 2}, r'{"name": "", "at": "A\u00e9"}'),
        (("--whitespace", "compact"), {"whitespace": "compact"}, '{"name":"","at":"Aé"}'),
        (("--separators", " , ", ":"), {"whitespace": (" , ", ":")}, '{"name":"" , "tags":["" , ""]}'),
        (("--any-order",), {"any_order": True}, '{"tags": [], "name": ""}'),
    ):
        printed = run_well("compile", "json-schema", "-", *form, *document, *arguments, stdin=SCHEMA)
        documents = {"https://example.com/place": PLACE}
        expected = mw.compile_json_schema(
            SCHEMA, vocab, allow=["uniqueItems"], documents=documents, **options
        ).to_table()
        table = mw.TransitionTable.load(tmp_path / "t", vocabulary=vocab)
        assert same(table, expected)
        assert table.depth == expected.depth
        assert table.accepts([*vocab.encode(text), 0])
        assert f" {table.num_states:,} states, " in printed
        assert [each.pointer for each in table.unenforced] == ["/properties/tags/uniqueItems"]
        shown = run_well("inspect", tmp_path / "t")
        assert f" {table.num_sites:,} return sites, {int(table.sites.is_leaf.sum()):,} of parts" in shown
        assert f" {table.depth:,} calls may be open at once" in shown
        assert f"with {table.num_symbols:,} symbols" in shown
        assert "where no call is open" in shown
        assert "exits.token" in shown
        assert "not enforced  /properties/tags/uniqueItems: equal items may be written" in shown


def test_what_is_not_enforced_is_shown_wherever_a_constraint_is(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "idna", None)  # without which the format is not enforced
    schema = {"properties": {"[b]": {"uniqueItems": True}, "c": {"format": "idn-hostname"}}}
    tags = {"type": "structural_tag", "format": {"type": "json_schema", "json_schema": schema}}
    (tmp_path / "s.json").write_text(json.dumps(schema))
    (tmp_path / "t.json").write_text(json.dumps(tags))
    for words in (("sample", "json-schema", tmp_path / "s.json"), ("sample", "tags", tmp_path / "t.json")):
        out = run(*words, "-n", 1, "--max-bytes", 400, "--allow", "all")
        assert out.exit_code == 0
        warned = [line.partition("/properties")[2] for line in out.stderr.splitlines() if line.startswith("warning: ")]
        assert warned == [
            "/[b]/uniqueItems is not enforced: equal items may be written",
            "/c/format is not enforced: any string may be written",
        ]
    shown = run_well("inspect", "tags", tmp_path / "t.json", "--allow", "all")
    assert "/properties/[b]/uniqueItems: equal items may be written" in shown
    assert "/properties/c/format: any string may be written" in shown


def test_a_schema_that_is_no_good_is_said_to_be_before_the_tokenizer_is_read(tmp_path):
    (tmp_path / "s.json").write_text('{"required": ["a"], "properties": {"a": false}, "type": "object"}')
    (tmp_path / "bad.json").write_text("{")
    arguments = ("--tokenizer", tmp_path / "bad.json", "-o", tmp_path / "t")
    out = run("compile", "json-schema", tmp_path / "s.json", *arguments)
    assert f"Error: {tmp_path}/s.json: the schema matches no value: the member 'a'" in out.output


# ------------------------------------------------------------------------------------------------------- grammars

LIST = """
start: item ("," item)*
item: NAME | NUMBER
NAME: /[a-zé]+/
%import common.INT -> NUMBER
%ignore " "
"""
EBNF = "root ::= [a-z]+ ('-' [0-9])?\n"
GBNF = 'main ::= "é" rest\nrest ::= [0-9]*\n'
NESTED = 'start: "(" start ")" | "a"'
PALINDROMES = 'start: "a" start "a" | "b" start "b" | "a" | "b"'


@pytest.mark.parametrize(
    ("name", "text", "options", "arguments", "member"),
    [
        ("g.lark", LIST, {}, (), "a, é,12 "),
        ("g.LARK", LIST, {"start": "item"}, ("--start", "item"), "éa"),
        ("g.gbnf", "\ufeff" + GBNF, {"syntax": "gbnf", "start": "main"}, ("--start", "main"), "é07"),
        ("g.ebnf", EBNF, {"syntax": "ebnf"}, (), "abc-7"),
        ("g.txt", EBNF, {"syntax": "ebnf"}, ("--syntax", "ebnf"), "b"),
        ("-", LIST, {}, ("--syntax", "lark"), "a"),
        ("n.lark", NESTED, {"depth": 3}, ("--depth", 3), "((a))"),
    ],
)
def test_a_grammar_is_compiled_as_in_python(tokenizer, vocab, tmp_path, name, text, options, arguments, member):
    file = name if name == "-" else tmp_path / name
    (tmp_path / name).write_text(text)
    to = ("--tokenizer", tokenizer, "--eos", 0, "-o", tmp_path / "t")
    printed = run_well("compile", "grammar", file, *arguments, *to, stdin=text)
    table = mw.TransitionTable.load(tmp_path / "t", vocabulary=vocab)
    assert same(table, mw.compile_grammar(text.removeprefix("\ufeff"), vocab, **options).to_table())
    assert table.accepts([*vocab.encode(member), 0])
    assert f" {table.num_states:,} states, " in printed
    for words in (("inspect",), ("inspect", "table")):
        shown = run_well(*words, tmp_path / "t")
        assert ("calls and returns (delimited)" if text == NESTED else "the states of a DFA (regular)") in shown
        assert table.source in shown


def test_the_way_down_that_a_grammar_takes_is_inspected(tokenizer, vocab, tmp_path):
    (tmp_path / "list.lark").write_text(LIST)
    (tmp_path / "palindromes.lark").write_text(PALINDROMES)
    bytes_alone = run_well("inspect", "grammar", tmp_path / "list.lark")
    assert "the states of a DFA (regular)" in bytes_alone
    assert "V = 256, eos = None" in bytes_alone
    table = mw.compile_grammar(LIST, vocab).to_table()
    tokens = run_well("inspect", "grammar", tmp_path / "list.lark", "--tokenizer", tokenizer, "--eos", 0)
    assert f" {table.num_states:,}: {table.num_rows:,} rows, " in tokens
    assert table.source in tokens
    (tmp_path / "nested.lark").write_text(NESTED)
    nested = run_well("inspect", "grammar", tmp_path / "nested.lark", "--depth", 7)
    assert "calls and returns (delimited)" in nested
    assert "7 calls may be open" in nested
    shown = run_well("inspect", "grammar", tmp_path / "palindromes.lark")
    assert "states that are made as texts come to them (as it is read)" in shown
    assert "because" in shown
    assert "no finite table" in shown
    (tmp_path / "wide.lark").write_text('start: ("a" | "b")* "a" ("a" | "b")~16')
    shown = run_well("inspect", "grammar", tmp_path / "wide.lark", "--budget-states", 2000)
    assert "(as it is read)" in shown
    assert "Raise it with --budget-states" in shown
    assert "(regular)" not in shown


TAGS = """{"type": "structural_tag", "triggers": ["<f"], "structures": [
    {"begin": "<f>", "schema": {"type": "object", "properties": {"a": {"$ref": "u:a"}}}, "end": "</f>"}
]}"""


def test_the_way_down_that_tags_take_is_inspected(tokenizer, tmp_path):
    grammar = {"type": "grammar", "syntax": "lark", "grammar": PALINDROMES}
    for name, content, way in (
        ("words", {"type": "regex", "pattern": "a+"}, "the states of a DFA (regular)"),
        ("lists", {"type": "json_schema", "json_schema": {"items": {"type": "null"}}}, "calls and returns (delimited)"),
        ("palindromes", grammar, "states that are made as texts come to them (as it is read)"),
    ):
        tag = {"type": "triggered_tags", "triggers": ["<"], "tags": [{"begin": "<a>", "content": content, "end": "</"}]}
        tag = {"type": "structural_tag", "format": tag}
        (tmp_path / name).write_text(json.dumps(tag))
        assert way in run_well("inspect", "tags", tmp_path / name)
        shown = run_well("inspect", "tags", tmp_path / name, "--tokenizer", tokenizer, "--eos", 0)
        assert way in shown
        assert ("no finite table" in shown) == (name == "palindromes")
    (tmp_path / "wrong").write_text('{"type": "structural_tag", "format": {"type": "tag", "begin": 1}}')
    assert "/format" in run("inspect", "tags", tmp_path / "wrong").stderr


def test_text_with_tags_is_compiled_as_in_python(tokenizer, vocab, tmp_path):
    (tmp_path / "tags.json").write_text(TAGS)
    (tmp_path / "a").write_text('{"type": "null"}')
    to = ("--document", "u:a", tmp_path / "a", "--tokenizer", tokenizer, "--eos", 0, "-o", tmp_path / "t")
    known = {"u:a": {"type": "null"}}
    for text, name in ((None, tmp_path / "tags.json"), (TAGS, "-")):
        printed = run_well("compile", "tags", name, "--whitespace", "compact", "--depth", 5, *to, stdin=text)
        table = mw.TransitionTable.load(tmp_path / "t", vocabulary=vocab)
        made = mw.compile_structural_tag(TAGS, vocab, whitespace="compact", depth=5, documents=known)
        assert same(table, made.to_table())
        assert f" {table.num_states:,} states, " in printed
    assert table.accepts([*vocab.encode('so <f>{"a":null}</f>'), 0])
    assert not table.accepts([*vocab.encode('so <f>{"a": null}</f>'), 0])


def test_a_table_with_calls_is_said_to_be_one(vocab, tmp_path):
    mw.compile_json_schema(True, vocab).save(tmp_path / "t")
    assert "calls and returns (delimited)" in run_well("inspect", tmp_path / "t")
    mw.compile_sequences([[1]], vocab_size=9).save(tmp_path / "ids")
    assert "followed by" not in run_well("inspect", tmp_path / "ids")


def test_a_table_with_calls_is_not_drawn_as_if_it_had_none(vocab, tmp_path):
    mw.compile_json_schema(True, vocab).save(tmp_path / "t")
    out = run("show", tmp_path / "t", "-o", tmp_path / "x.dot", "--max-states", 10**6)
    assert out.exit_code == 1
    assert f"{tmp_path}/t cannot be drawn: it has calls" in out.output
    assert not (tmp_path / "x.dot").exists()


# -------------------------------------------------------------------------------------------------------- samples


def test_samples_of_a_regex_are_members_and_the_same_for_a_seed():
    members = run_well("sample", "regex", DATE, "-n", 30, "--seed", 7).splitlines()
    assert len(members) == 30
    assert len(set(members)) > 20
    assert all(re.fullmatch(DATE, member) for member in members)
    assert run_well("sample", "regex", DATE, "-n", 30, "--seed", 7).splitlines() == members
    assert run_well("sample", "regex", DATE, "-n", 30).splitlines() != members


@pytest.mark.parametrize("kind", ["regex", "choices"])
def test_samples_are_uniform_among_members_that_are_short_enough(kind):
    members = ["a", "b", "aa", "ab", "ba", "bb"]
    stdin = "\n".join([*members, "aa", "aaa", "é" * 2])
    arguments = ("regex", "[ab]{1,3}") if kind == "regex" else ("choices", "-")
    printed = run_well("sample", *arguments, "-n", 1200, "--max-bytes", 2, "--seed", 0, stdin=stdin)
    counts = Counter(printed.splitlines())
    assert set(counts) == set(members)
    assert 140 < min(counts.values()) <= max(counts.values()) < 260  # 200 expected: 60 are more than 4.6 sigma


def test_samples_of_a_schema_fit_it_and_are_the_same_for_a_seed(tmp_path):
    schema = {
        "type": "object", "required": ["name", "tree"], "additionalProperties": False,
        "properties": {"name": {"type": "string", "maxLength": 5}, "tree": {"$ref": "#/$defs/tree"}},
        "$defs": {"tree": {"type": "array", "items": {"$ref": "#/$defs/tree"}}},
    }  # fmt: skip
    (tmp_path / "s.json").write_text(json.dumps(schema))
    arguments = ("sample", "json-schema", tmp_path / "s.json", "-n", 20, "--whitespace", "compact")
    members = run_well(*arguments, "--seed", 3).splitlines()
    assert len(set(members)) > 15
    for member in members:
        assert jsonschema.Draft202012Validator(schema).is_valid(json.loads(member))
        assert len(member.encode()) <= 64
    assert run_well(*arguments, "--seed", 3).splitlines() == members
    assert run_well(*arguments).splitlines() != members


def test_a_sample_that_can_just_be_short_enough_is_found_at_once(tmp_path):
    (tmp_path / "s.json").write_text('{"type": "array", "items": {"type": "integer"}, "minItems": 20}')
    arguments = ("sample", "json-schema", tmp_path / "s.json", "--whitespace", "compact", "-n", 3, "--max-bytes", 41)
    for member in run_well(*arguments).splitlines():  # one digit each: by chance alone, none in 10^20
        assert len(member) == 41
        assert len(json.loads(member)) == 20


def test_samples_of_grammars_and_tags_are_members(tmp_path):
    (tmp_path / "pairs.lark").write_text('start: "(" start ")" | "x"')  # a table with calls
    (tmp_path / "twice.lark").write_text('start: "a" start "a" | "b" start "b" | "!"')  # with none
    for name, pattern in (("pairs.lark", r"(\(*)x(\)*)"), ("twice.lark", "([ab]*)!([ab]*)")):
        for member in run_well("sample", "grammar", tmp_path / name, "-n", 20).splitlines():
            before, after = re.fullmatch(pattern, member).groups()
            assert before == after[::-1].replace(")", "(")
    tag = {"type": "tag", "begin": "<n>", "content": {"type": "regex", "pattern": "[0-9]{2}"}, "end": "</n>"}
    (tmp_path / "tag.json").write_text(json.dumps({"type": "structural_tag", "format": tag}))
    printed = run_well("sample", "tags", tmp_path / "tag.json", "-n", 5).splitlines()
    assert all(re.fullmatch("<n>[0-9]{2}</n>", member) for member in printed)


def test_each_member_is_one_line():
    assert set(run_well("sample", "regex", r"\n|x|é|", "-n", 40, "--seed", 0).splitlines()) == {"x", "é", r"'\n'", "''"}


@pytest.mark.long
def test_a_pipe_that_is_closed_early_is_no_error():
    command = [sys.executable, "-m", "maskwright.cli.main", "sample", "regex", "[0-9]+", "-n", "3000"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as sampling:
        assert sampling.stdout.readline().strip().isdigit()
        sampling.stdout.close()
        assert sampling.stderr.read() == b""


# ------------------------------------------------------------------------------------------------------- drawings


def source(path):
    """Return the nodes, {state: attributes}, and edges, {(from, to): attributes}, of a .dot file."""
    text = path.read_text()
    quoted = r'(?:"(?:[^"\\]|\\.)*"|[^\s"\]]+)'
    nodes, edges = {}, {}
    for line in text.splitlines():
        found = re.fullmatch(r"\t(\d+)(?: -> (\d+))? \[(.*)\]", line)
        if found is None:
            continue
        attributes = {}
        for name, value in re.findall(rf"(\w+)=({quoted})", found[3]):
            if value.startswith('"'):
                value = value[1:-1].replace('\\"', '"')
            attributes[name] = value
        if found[2] is None:
            nodes[int(found[1])] = attributes
        else:
            edges[int(found[1]), int(found[2])] = attributes
    return nodes, edges


def bytes_of(label):
    """Return the set of bytes that a label says, read by Python's own regular expressions."""
    if label == "any byte":
        return set(range(256))
    pattern = label if len(label) > 1 else re.escape(label)
    return {b for b in range(256) if re.fullmatch(pattern.replace("␣", " "), chr(b), re.DOTALL)}


def as_ranges(members):
    runs = groupby(enumerate(sorted(members)), key=lambda pair: pair[1] - pair[0])
    return [(run[0][1], run[-1][1]) for run in (list(group) for _, group in runs)]


@given(st.sets(st.integers(0, 255), min_size=1) | st.sets(st.sampled_from(b" []^-\\\n\t\0.\x7f\x80"), min_size=1))
def test_a_byte_class_says_its_bytes(members):
    ranges = as_ranges(members)
    assert bytes_of(drawing.byte_class(ranges)) == members
    if len(ranges) > 3:
        assert drawing.byte_class(ranges, 3).endswith(f"…] ({len(members)} bytes)")


@pytest.mark.parametrize("pattern", [DATE, STRING, "<a b>|<b>", r"\\|\x20|\S"])
def test_a_drawn_regex_has_the_states_and_edges_of_its_dfa(pattern, tmp_path):
    pytest.importorskip("graphviz")
    run_well("show", "regex", pattern, "-o", tmp_path / "x.dot")
    dfa = to_dfa(pattern)
    nodes, edges = source(tmp_path / "x.dot")
    assert [nodes[s]["peripheries"] == "2" for s in range(dfa.num_states)] == dfa.accepting.tolist()
    expected: dict[tuple[int, int], set[int]] = {}
    for state in range(dfa.num_states):
        for byte in range(256):
            if dfa.step(state, byte) >= 0:
                expected.setdefault((state, dfa.step(state, byte)), set()).add(byte)
    # escaping doubles each backslash
    assert {k: bytes_of(edge["tooltip"].replace("\\\\", "\\")) for k, edge in edges.items()} == expected


def test_each_state_of_a_drawn_regex_says_how_many_tokens_it_allows(tokenizer, vocab, tmp_path):
    pytest.importorskip("graphviz")
    run_well("show", "regex", STRING, "--tokenizer", tokenizer, "--eos", 0, "-o", tmp_path / "x.dot")
    dfa, (nodes, _) = to_dfa(STRING), source(tmp_path / "x.dot")
    for state in range(dfa.num_states):
        count = 0
        for token in filter(None, vocab.tokens):
            at = state
            for byte in token:
                at = dfa.step(at, byte) if at >= 0 else at
            count += at >= 0
        assert nodes[state]["label"] == f"{state}\\n{count} token{'s' * (count != 1)}"


def test_a_state_inside_of_tokens_is_said_to_be_one():
    pytest.importorskip("graphviz")
    vocab = mw.Vocabulary.from_bytes([b"ab", b"c", b"bc", b""], eos=3)
    dfa = to_dfa("abc")
    counts = drawing.tokens_by_state(dfa, mw.compile_regex("abc", vocab), vocab)
    assert counts == {0: 1, 2: 1, 3: 0}
    assert "no token ends here" in drawing.draw_dfa(dfa, allowed=counts).source


@pytest.mark.parametrize("kind", ["graph", "base", "trie"])
def test_a_drawn_table_counts_what_each_state_allows(kind, vocab, tmp_path):
    pytest.importorskip("graphviz")
    table = {
        "graph": lambda: mw.compile_regex(DATE, vocab, lazy=False),
        "base": lambda: mw.compile_regex(STRING, vocab, lazy=False),
        "trie": lambda: mw.compile_sequences([[1, 2, 3, 4], [1, 2], [5, 6]], vocab_size=9, eos=0),
    }[kind]()
    table.save(tmp_path / "t")
    for words in (("show",), ("show", "table")):
        printed = run_well(*words, tmp_path / "t", "-o", tmp_path / "x.dot")
        assert f": {table.num_states - 2:,} of {table.num_states:,} states, " in printed
        nodes, edges = source(tmp_path / "x.dot")
        assert set(nodes) == set(range(table.num_states - 2))
        counts = Counter()
        for state, node in nodes.items():
            naive = {token: to for token, to in numpy_ops.edges(table, state).items() if token != table.eos}
            tokens, targets = drawing.moves(table, state)
            assert dict(zip(tokens.tolist(), targets.tolist(), strict=True)) == naive
            assert node["label"].endswith(f"\\n{len(naive)} token{'s' * (len(naive) != 1)}")
            assert (node["peripheries"] == "2") == bool(table.is_accepting(state))
            counts.update((state, to) for to in naive.values())
        assert set(edges) == set(counts)
        for edge, count in counts.items():
            label = edges[edge]["label"]
            assert label == f"{count} tokens" if count > 3 else len(label.split(", ")) == count


def test_with_its_tokenizer_a_drawn_table_shows_what_tokens_spell(tokenizer, vocab, tmp_path):
    pytest.importorskip("graphviz")
    mw.compile_choices(["<é"], vocab).save(tmp_path / "t")
    arguments = ("show", tmp_path / "t", "-o", tmp_path / "x.dot", "--tokenizer", tokenizer)
    run_well(*arguments, "--eos", 0)
    assert "'<'" in (tmp_path / "x.dot").read_text()
    out = run(*arguments)
    assert out.exit_code == 1
    assert "the table was compiled for vocabulary" in out.output


@pytest.mark.skipif(shutil.which("dot") is None, reason="the program dot of Graphviz is not installed")
@pytest.mark.parametrize("ending", ["svg", "png"])
def test_drawings_are_made_by_dot(tmp_path, ending):
    pytest.importorskip("graphviz")
    printed = run_well("show", "regex", r'<b>|"\\x', "-o", tmp_path / f"x.{ending}")
    assert "6 states" in printed
    drawn = (tmp_path / f"x.{ending}").read_bytes()
    if ending == "png":
        assert drawn.startswith(b"\x89PNG")
    else:
        assert b"<svg" in drawn
        assert b"&lt;b&gt;|&quot;\\\\x" in drawn  # the caption is the pattern as it was written


def test_without_dot_it_is_said_how_to_get_it(tmp_path, monkeypatch):
    pytest.importorskip("graphviz")
    monkeypatch.setenv("PATH", str(tmp_path))
    out = run("show", "regex", "a", "-o", tmp_path / "x.svg")
    assert out.exit_code == 1
    assert "needs the program dot of Graphviz: apt install graphviz" in out.output
    assert not (tmp_path / "x.svg").exists()
    run_well("show", "regex", "a", "-o", tmp_path / "x.dot")


def test_without_the_package_it_is_said_how_to_install_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "graphviz", None)
    out = run("show", "regex", "a", "-o", tmp_path / "x.dot")
    assert out.exit_code == 1
    assert "drawing needs graphviz: pip install 'maskwright[draw]'" in out.output


# --------------------------------------------------------------------------------------------------------- errors

OUT = ("-o", "{tmp}/x.dot")
TO_TABLE = ("--tokenizer", "{tok}", "--eos", "0", "-o", "{tmp}/t")
TO_JSON = ("compile", "json-schema", "{tmp}/schema")
TO_GRAMMAR = ("compile", "grammar", "{tmp}/bad.lark")
TO_TAGS = ("compile", "tags", "{tmp}/tags.json")
BAD_TAGS = {
    "tags.json": TAGS.replace('{"$ref": "u:a"}', '{"type": 3}'),
    "older.json": TAGS.replace('["<f"]', '["<f", ""]'),
    "true.json": "true",
    "wrong.json": '{"type": "structural_tag", "format": {"type": "grammar", "grammar": "root ::= x"}}',
    "open.json": '{"type": "regex", "pattern": "(a"}',
    "named.json": '{"type": "token", "token": "<|f|>"}',
}
AWAY = ("compile", "json-schema", "{tmp}/away", "--document", "https://example.com/place", "{tmp}/schema")
TEXT_ERRORS = [
    ((*TO_JSON, *TO_TABLE), '{tmp}/schema#/properties/tags/uniqueItems: "uniqueItems" cannot be enforced exactly'),
    ((*TO_JSON, *TO_TABLE), "Pass --allow uniqueItems to accept equal items"),
    ((*TO_JSON, "--allow", "uniqueItems", *TO_TABLE), "Pass it, --document https://example.com/place FILE"),
    ((*AWAY, *TO_TABLE), 'Error: https://example.com/place#/properties/tags/uniqueItems: "unique'),
    ((*TO_JSON, *TO_TABLE, "--allow", "pattern"), "'pattern' is not one of 'format', 'maxProperties', 'minProperties'"),
    ((*TO_JSON, *TO_TABLE, "--separators", ";", ":"), "--separators must be a comma and a colon with white space"),
    ((*TO_JSON, *TO_TABLE, "--depth", "0"), "0 is not in the range 1<=x<=65536"),
    ((*TO_JSON, *TO_TABLE, "--budget-seconds", "0"), "Raise it with --budget-seconds, or"),
    (
        ("compile", "json-schema", "{tmp}/bad.json", *TO_TABLE),
        "{tmp}/bad.json: malformed JSON in line 1, column",
    ),
    (("compile", "json-schema", "{tmp}/latin", *TO_TABLE), "Error: {tmp}/latin: the text is not UTF-8"),
    (
        ("compile", "json-schema", "{tmp}/pattern", *TO_TABLE),
        "{tmp}/pattern#/properties/a/pattern: the pattern cannot be compiled: this group is never closed",
    ),
    (("compile", "json-schema", "{tmp}/none", *TO_TABLE), "does not exist"),
    (("compile", "regex", "(a", *TO_TABLE), "Error: this group is never closed: add )\n    (a\n    ^"),
    (("compile", "regex", r"(a)\1", *TO_TABLE), "back-reference"),
    (("compile", "regex", "a(?!)", *TO_TABLE), "the pattern matches nothing"),
    (("compile", "regex", "a{5000}", *TO_TABLE, "--budget-states", "100"), "Raise it with --budget-states, or"),
    (("compile", "regex", "a{5000}", *TO_TABLE, "--budget-seconds", "0"), "Raise it with --budget-seconds, or"),
    (("compile", "regex", "a", *TO_TABLE, "--flags", "q"), "--flags must be letters out of \"aimsx\", not 'q'"),
    (("compile", "regex", "a", *TO_TABLE, "--size", "3"), "--size must be an integer from"),
    (("compile", "regex", "a", "--tokenizer", "{tok}", "--eos", "99999", "-o", "{tmp}/t"), "Error: --eos must be"),
    (("compile", "regex", "(a", "--tokenizer", "{tmp}/bad.json", "-o", "{tmp}/t"), "this group is never closed"),
    (("compile", "regex", "a(?!)", "--tokenizer", "{tok}", "-o", "{tmp}/t"), "Error: the pattern matches nothing"),
    (("compile", "regex", "a", "--tokenizer", "{tmp}/foo", "-o", "{tmp}/t"), "of the folder {tmp}/foo (ValueError: "),
    (("compile", "regex", "a", "--tokenizer", "{tmp}", "-o", "{tmp}/t"), "the folder {tmp} has neither"),
    (("compile", "regex", "a", "--tokenizer", "{tmp}/bad.json", "-o", "{tmp}/t"), "cannot be read as a tokenizer"),
    (("compile", "regex", "a", "--tokenizer", "{tmp}/none", "-o", "{tmp}/t"), "does not exist"),
    (("compile", "regex", "a", "--tokenizer", "{tok}", "-o", "{tmp}/none/t"), "there is no folder"),
    (("compile", "choices", "{tmp}/gap", *TO_TABLE), "line 2 of {tmp}/gap is empty: remove it"),
    (("compile", "choices", "{tmp}/latin", *TO_TABLE), "line 2 of {tmp}/latin is not UTF-8"),
    (("compile", "choices", "{tmp}/empty", *TO_TABLE), "{tmp}/empty is empty: write one choice a line"),
    ((*TO_GRAMMAR, *TO_TABLE), "Error: {tmp}/bad.lark, line 2, column 4: there is no rule y: define or import it\n"),
    (("compile", "grammar", "{tmp}/odd.lark", "--start", "z", *TO_TABLE), "{tmp}/odd.lark, line 1, column 1: "),
    ((*TO_GRAMMAR, "--tokenizer", "{tmp}/bad.json", "-o", "{tmp}/t"), "there is no rule y"),
    (("inspect", "grammar", "{tmp}/bad.lark"), "{tmp}/bad.lark, line 2, column 4: there is no rule y"),
    (("compile", "grammar", "{tmp}/odd.lark", *TO_TABLE), "Error: this grammar has no finite table: "),
    (("compile", "grammar", "{tmp}/odd.lark", *TO_TABLE, "--budget-seconds", "0"), "Raise it with --budget-seconds"),
    (("compile", "grammar", "{tmp}/gap", *TO_TABLE), "{tmp}/gap ends in none of .lark, .gbnf, .ebnf: say which"),
    (("compile", "grammar", "-", *TO_TABLE), "standard input ends in none of"),
    (("compile", "grammar", "{tmp}/latin", "--syntax", "gbnf", *TO_TABLE), "line 2 of {tmp}/latin is not UTF-8"),
    (("compile", "grammar", "{tmp}/odd.lark", "--syntax", "bnf", *TO_TABLE), "'bnf' is not one of 'lark'"),
    (("inspect", "grammar", "{tmp}/odd.lark", "--eos", "0"), "--size and --eos go with --tokenizer"),
    ((*TO_TAGS, *TO_TABLE), "Error: {tmp}/tags.json#/structures/0/schema/properties/a/type: "),
    ((*TO_TAGS, *TO_TABLE, "--budget-seconds", "0"), "Raise it with --budget-seconds"),
    (("compile", "tags", "{tmp}/older.json", *TO_TABLE), "Error: {tmp}/older.json#/triggers/1: the text is empty"),
    (("compile", "tags", "{tmp}/bad.json", *TO_TABLE), "Error: {tmp}/bad.json: malformed JSON in line 1"),
    (("compile", "tags", "{tmp}/true.json", *TO_TABLE), "Error: {tmp}/true.json: a structural tag is an object"),
    (
        ("compile", "tags", "{tmp}/wrong.json", *TO_TABLE),
        "{tmp}/wrong.json#/format/grammar, line 1, column 10: there is no rule x: define it\n    root ::= x\n",
    ),
    (
        ("compile", "tags", "{tmp}/open.json", *TO_TABLE),
        "Error: {tmp}/open.json#/pattern: this group is never closed: add )\n    (a\n    ^",
    ),
    (("compile", "tags", "{tmp}/named.json", *TO_TABLE), "no special token of the name '<|f|>'"),
    (("sample", "regex", "aaa", "--max-bytes", "2"), "the shortest has 3; raise --max-bytes"),
    (("sample", "grammar", "{tmp}/odd.lark", "--max-bytes", "0"), "no member of at most 0 bytes was found in 1,000"),
    (("sample", "json-schema", "{tmp}/bad.json"), "Error: {tmp}/bad.json: malformed"),
    (("sample", "regex", "a(?!)"), "the pattern matches nothing"),
    (("sample", "choices", "{tmp}/latin"), "is not UTF-8"),
    (("show", "regex", "a{200}", *OUT), "201 states to draw are more than a drawing can show clearly"),
    (("show", "regex", "abc", *OUT, "--max-states", "3"), "4 states to draw are more than"),
    (
        ("show", "{tmp}/names", "--tokenizer", "{tok}", *OUT),
        "which spell nothing: it has no tokenizer",
    ),
    (("show", "regex", "a", "-o", "{tmp}/x.jpg"), "a drawing ends in .svg, .pdf, .png, .dot, not '.jpg'"),
    (("show", "regex", "a", *OUT, "--size", "9"), "--size and --eos go with --tokenizer"),
    (("show", "{tmp}/bad.json", *OUT), "is not a maskwright table"),
    (("show", "{tmp}/none", *OUT), "does not exist"),
]


@pytest.mark.parametrize(("arguments", "message"), TEXT_ERRORS, ids=[m[:30] for _, m in TEXT_ERRORS])
def test_bad_calls_on_texts_end_with_a_clear_message(tokenizer, tmp_path, arguments, message):
    (tmp_path / "bad.json").write_text("{")
    (tmp_path / "gap").write_text("a\n\nb\n")
    (tmp_path / "latin").write_bytes(b"a\n\xe9\n")
    (tmp_path / "pattern").write_text('{"properties": {"a": {"pattern": "(a"}}}')
    (tmp_path / "empty").touch()
    (tmp_path / "bad.lark").write_text('start: "a" x\nx: y')
    (tmp_path / "odd.lark").write_text(PALINDROMES)
    for name, text in BAD_TAGS.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "schema").write_text(SCHEMA)
    (tmp_path / "away").write_text('{"$ref": "https://example.com/place"}')
    mw.compile_sequences([[1, 2], [3]], vocab_size=9).save(tmp_path / "names")
    (tmp_path / "foo").mkdir()
    (tmp_path / "foo" / "tokenizer_config.json").write_text('{"tokenizer_class": "FooTokenizer"}')
    out = run(*(a.format(tmp=tmp_path, tok=tokenizer) if "{t" in a else a for a in arguments))
    assert out.exit_code in (1, 2)
    assert out.exception is None or isinstance(out.exception, SystemExit)
    message = message.replace("{tmp}", str(tmp_path))
    assert message in (out.output if "\n" in message else " ".join(out.output.split()))
    assert out.output.count("\n") <= 4  # a usage message has the most
    assert "does not say" not in out.output
    assert not (tmp_path / "t").exists()
    assert not (tmp_path / "x.dot").exists()
