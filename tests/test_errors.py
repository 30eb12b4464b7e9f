"""Errors: the fields of each kind, and how Python, the command line and the server word them."""

from __future__ import annotations

import copy
import inspect
import json
import pickle
from pathlib import Path
from typing import get_args

import numpy as np
import pytest

import maskwright as mw
from maskwright import errors
from maskwright.cli.wording import CommandWording
from maskwright.errors import (
    AddDocument,
    Advice,
    AllowKeyword,
    KeepOrder,
    RaiseBudget,
    RaiseCapacity,
    ReadOnDemand,
    error_from_json,
    error_to_json,
)
from maskwright.serve.refusals import WORDING, of_constraint

BYTES = [b"", *(bytes([b]) for b in range(256))]
ORDER = {"properties": {name: {"type": "integer"} for name in "abcdefghijklmnop"}}
PALINDROMES = 'start: "a" start "a" | "b" start "b" | "a" | "b"'


@pytest.fixture(scope="module")
def vocab():
    return mw.Vocabulary.from_bytes(BYTES, eos=0)


def in_a_small_arena(vocab, table, **capacity):
    mw.Arena(vocab, mw.Capacity(**capacity)).add(table)


def tag(content):
    return {"type": "structural_tag", "format": {"type": "tag", "begin": "<", "content": content, "end": ">"}}


def matched_with_another(vocab):
    other = mw.Vocabulary.from_bytes([b"", b"a"], eos=0)
    mw.Matcher(mw.compile_regex("a", vocab), other)


def file_without_a_table(tmp_path):
    (tmp_path / "t").write_bytes(b"no table")
    mw.TransitionTable.load(tmp_path / "t")


# kind, what raises it, its fields, and its words in Python, on the command line (of a file FILE), and from the server
TABLE = {
    "a pattern": (
        mw.errors.RegexError,
        lambda v: mw.compile_regex("x(a", v),
        {"position": 1, "pattern": "x(a", "excerpt": "    x(a\n     ^"},
        "this group is never closed: add )\n    x(a\n     ^",
        "this group is never closed: add )\n    x(a\n     ^",
        "this group is never closed: add )\n    x(a\n     ^",
    ),
    "a pattern within tags": (
        mw.errors.RegexError,
        lambda v: mw.compile_structural_tag(tag({"type": "regex", "pattern": "(a"}), v),
        {"position": 0, "pointer": "/format/content/pattern"},
        "/format/content/pattern: this group is never closed: add )\n    (a\n    ^",
        "FILE#/format/content/pattern: this group is never closed: add )\n    (a\n    ^",
        "/format/content/pattern: this group is never closed: add )\n    (a\n    ^",
    ),
    "a schema": (
        mw.errors.SchemaError,
        lambda v: mw.compile_json_schema({"properties": {"a/b": {"type": "strin"}}}, v),
        {"pointer": "/properties/a~1b/type", "keyword": None},
        '/properties/a~1b/type: "type" must be ',
        'FILE#/properties/a~1b/type: "type" must be ',
        '/properties/a~1b/type: "type" must be ',
    ),
    "a whole schema": (
        mw.errors.SchemaError,
        lambda v: mw.compile_json_schema('{"a": ', v),
        {"pointer": "", "position": 6},
        "/: malformed JSON in line 1, column 7: Expecting value\n    {\"a\": \n          ^",
        "FILE: malformed JSON in line 1, column 7: Expecting value\n    {\"a\": \n          ^",
        "/: malformed JSON in line 1, column 7: Expecting value\n    {\"a\": \n          ^",
    ),
    "a pattern of a schema": (
        mw.errors.SchemaError,
        lambda v: mw.compile_json_schema({"items": {"pattern": "(a"}}, v),
        {"pointer": "/items/pattern", "keyword": "pattern", "position": 0, "excerpt": "    (a\n    ^"},
        "/items/pattern: the pattern cannot be compiled: this group is never closed: add )\n    (a\n    ^",
        "FILE#/items/pattern: the pattern cannot be compiled: this group is never closed: add )\n    (a\n    ^",
        "/items/pattern: the pattern cannot be compiled: this group is never closed: add )\n    (a\n    ^",
    ),
    "a schema within tags": (
        mw.errors.SchemaError,
        lambda v: mw.compile_structural_tag(tag({"type": "json_schema", "json_schema": {"items": {"type": 3}}}), v),
        {"pointer": "/format/content/json_schema/items/type"},
        '/format/content/json_schema/items/type: "type" must be ',
        'FILE#/format/content/json_schema/items/type: "type" must be ',
        '/format/content/json_schema/items/type: "type" must be ',
    ),
    "a keyword that is not enforced": (
        mw.errors.SchemaError,
        lambda v: mw.compile_json_schema({"not": {"uniqueItems": True}}, v),
        {
            "pointer": "/not/uniqueItems", "keyword": "uniqueItems",
            "remedies": (AllowKeyword("uniqueItems", "equal items"),),
        },
        'Pass allow=["uniqueItems"] to accept equal items, or take it out',
        "Pass --allow uniqueItems to accept equal items, or take it out",
        'Send "allow": ["uniqueItems"] to accept equal items, or take it out',
    ),
    "a document that is not given": (
        mw.errors.SchemaError,
        lambda v: mw.compile_json_schema({"$ref": "u:a"}, v),
        {"pointer": "/$ref", "remedies": (AddDocument("u:a"),)},
        'leads to u:a, which is not known and is not fetched. Pass it, documents={"u:a": ...}',
        "leads to u:a, which is not known and is not fetched. Pass it, --document u:a FILE",
        'leads to u:a, which is not known and is not fetched. Put it into the schema itself, under "$defs"',
    ),
    "a fault in a document that is given": (
        mw.errors.SchemaError,
        lambda v: mw.compile_json_schema({"$ref": "u:a"}, v, documents={"u:a": {"items": {"minLength": -1}}}),
        {"pointer": "u:a#/items/minLength"},
        "u:a#/items/minLength: ",
        "u:a#/items/minLength: ",
        "u:a#/items/minLength: ",
    ),
    "a grammar": (
        mw.errors.GrammarError,
        lambda v: mw.compile_grammar('start: "a"\nx: y', v),
        {"position": 14, "line": 2, "column": 4, "excerpt": "    x: y\n       ^"},
        "line 2, column 4: there is no rule y: define or import it\n    x: y\n       ^",
        "FILE, line 2, column 4: there is no rule y: define or import it\n    x: y\n       ^",
        "line 2, column 4: there is no rule y: define or import it\n    x: y\n       ^",
    ),
    "a grammar within tags": (
        mw.errors.GrammarError,
        lambda v: mw.compile_structural_tag(tag({"type": "grammar", "grammar": "root ::=\n x"}), v),
        {"pointer": "/format/content/grammar", "line": 2, "column": 2, "position": 10},
        "/format/content/grammar, line 2, column 2: there is no rule x: define it\n     x\n     ^",
        "FILE#/format/content/grammar, line 2, column 2: there is no rule x: define it\n     x\n     ^",
        "/format/content/grammar, line 2, column 2: there is no rule x: define it\n     x\n     ^",
    ),
    "a grammar without a table": (
        mw.errors.NoTableError,
        lambda v: mw.compile_grammar(PALINDROMES, v).to_table(),
        {"remedies": (ReadOnDemand(),), "pointer": None},
        "must be remembered. A Matcher follows it, and to_device() reads it on demand, without max_tokens",
        "must be remembered. In Python a Matcher follows it",
        "must be remembered. This server needs a table",
    ),
    "a budget of states": (
        mw.errors.BudgetError,
        lambda v: mw.compile_regex("a{500}", v, lazy=False, budget=mw.Budget(states=np.int32(100))),
        {"limit": "states", "allowed": 100, "remedies": (RaiseBudget(("states",), "make the constraint smaller"),)},
        "so far). Raise it with budget=Budget(states=...), or make the constraint smaller",
        "so far). Raise it with --budget-states, or make the constraint smaller",
        "so far). The server's operator can raise it with --budget-states; or make the constraint smaller",
    ),
    "a budget of seconds": (
        mw.errors.BudgetError,
        lambda v: mw.compile_regex("a{500}", v, budget=mw.Budget(seconds=0)),
        {"limit": "seconds", "allowed": 0, "remedies": (RaiseBudget(("seconds",), "make the constraint smaller"),)},
        "the constraint needs more than 0 s, reached while ",
        "the constraint needs more than 0 s, reached while ",
        "the constraint needs more than 0 s, reached while ",
    ),
    "a budget of bytes": (
        mw.errors.BudgetError,
        lambda v: mw.Budget(bytes=10).begin().check(bytes=2_500, doing="testing"),
        {"limit": "bytes", "allowed": 10, "reached": 2_500},
        "Raise it with budget=Budget(bytes=...), or",
        "Raise it with --budget-bytes, or",
        "can raise it with --budget-bytes; or",
    ),
    "a budget that any order may have used up": (
        mw.errors.BudgetError,
        lambda v: mw.compile_json_schema(ORDER, v, any_order=True, lazy=False, budget=mw.Budget(states=50)),
        {"limit": "states", "allowed": 50,
         "remedies": (RaiseBudget(("states",), "make the constraint smaller"), KeepOrder())},
        "smaller. any_order=True takes far more than any_order=False, where members come in the schema's order",
        "smaller. --any-order takes far more than members in the schema's order",
        "smaller. Members in any order take far more than members in the schema's order",
    ),
    "a delta without room": (
        mw.errors.DeltaFullError,
        lambda v: mw.Catalogue.of([[1, 1]], [1], 4, kind="matrix").live(capacity=1).insert([[1, 2], [2, 2]], [2, 3]),
        {"pointer": None},
        "Give a larger capacity, or insert fewer",
        "or insert fewer",
        "or insert fewer",
    ),
    "an argument": (
        mw.errors.ConstraintError,
        lambda v: mw.Vocabulary.from_bytes(BYTES, eos=300),
        {"argument": "eos", "pointer": None},
        "eos must be token ids from 0 to 256, not 300",
        "--eos must be token ids from 0 to 256, not 300",
        "eos must be token ids from 0 to 256, not 300",
    ),
    "a depth": (
        mw.errors.ConstraintError,
        lambda v: mw.compile_grammar('start: e\ne: "{" ("(" e* ")")+ "}"', v, depth=1).to_table(),
        {"argument": "depth"},
        "depth 1 is enough for no text: raise it to 2",
        "--depth 1 is enough for no text: raise it to ",
        "depth 1 is enough for no text: raise it to 2",
    ),
    "an advice about an argument": (
        mw.errors.ConstraintError,
        lambda v: mw.compile_sids([[1, 2], [3, 9]], vocab_size=9),
        {"remedies": (Advice("Correct the row, or raise {}, now 9", ("vocab_size",)),)},
        "row 1 has token 9 at position 1, outside 0 .. 8. Correct the row, or raise vocab_size, now 9",
        "row 1 has token 9 at position 1, outside 0 .. 8. Correct the row, or raise --vocab-size, now 9",
        "row 1 has token 9 at position 1, outside 0 .. 8. Correct the row, or raise vocab_size, now 9",
    ),
    "a field of a structural tag": (
        mw.errors.ConstraintError,
        lambda v: mw.compile_structural_tag({"type": "structural_tag"}, v),
        {"pointer": ""},
        "/: 'format' is missing",
        "FILE: 'format' is missing",
        "/: 'format' is missing",
    ),
    "an arena that is full": (
        mw.errors.ArenaError,
        lambda v: in_a_small_arena(v, mw.compile_regex("[0-9]{40}", v), states=16),
        {"limit": "states", "allowed": 16, "reached": 42, "remedies": (RaiseCapacity("states", 42),)},
        "Make it with Capacity(states=42)",
        "Give the arena more room, Capacity(states=42)",
        "Give the arena more room, Capacity(states=42)",
    ),
    "an arena that is too narrow": (
        mw.errors.ArenaError,
        lambda v: in_a_small_arena(v, mw.compile_choices(list("0123456789"), v), row_width=2),
        {"limit": "row_width", "allowed": 2, "reached": 10, "remedies": (RaiseCapacity("row_width", 10),)},
        "the table has 10 edges in one state, the arena was made for 2. Make it with Capacity(row_width=10)",
        "10 edges in one state, the arena was made for 2. Give the arena more room, Capacity(row_width=10)",
        "the arena was made for 2. Give the arena more room, Capacity(row_width=10)",
    ),
    "another vocabulary": (
        mw.errors.VocabularyMismatchError, matched_with_another, {}, *["compiled for vocabulary "] * 3
    ),
}  # fmt: skip


def raised(kind, make, vocab):
    with pytest.raises(kind) as found:
        make(vocab)
    assert type(found.value) is kind
    return found.value


@pytest.mark.parametrize("name", TABLE)
def test_an_error_has_its_fields_and_each_front_end_words_them(vocab, name):
    kind, make, fields, python, command, server = TABLE[name]
    error = raised(kind, make, vocab)
    assert {field: getattr(error, field) for field in fields} == fields
    if error.allowed is not None:
        assert error.reached > error.allowed
    assert python in str(error)
    assert command in error.worded(CommandWording("FILE"))
    assert server in error.worded(WORDING)
    if "\n" in python:  # a place, a message and an excerpt are the whole
        assert (str(error), error.worded(CommandWording("FILE")), error.worded(WORDING)) == (python, command, server)


@pytest.mark.parametrize("name", TABLE)
def test_the_server_sends_the_fields_of_an_error(vocab, name):
    kind, make, *_ = TABLE[name]
    error = raised(kind, make, vocab)
    refused = of_constraint(error, "guided_json")
    body = json.loads(json.dumps(refused.body))["error"]
    assert (body["message"], body["param"]) == (error.worded(WORDING), "guided_json")
    for field in ("pointer", "position", "line", "column", "limit", "allowed", "reached"):
        assert body.get(field) == getattr(error, field)
    assert [each["kind"] for each in body.get("remedies", [])] == [each.kind for each in error.remedies]
    assert body["summary"] in body["message"]
    assert body["message"].endswith(body["excerpt"])
    if kind is mw.errors.SchemaError:
        assert body["keyword"] == error.keyword


@pytest.mark.parametrize("remake", [
    copy.copy, copy.deepcopy, lambda error: pickle.loads(pickle.dumps(error)),
    lambda error: error_from_json(json.loads(json.dumps(error_to_json(error)))),
], ids=["copy", "deepcopy", "pickle", "JSON"])  # fmt: skip
@pytest.mark.parametrize("name", TABLE)
def test_an_error_survives_copies_pickles_and_files(vocab, name, remake):
    kind, make, *_ = TABLE[name]
    error = raised(kind, make, vocab)
    made = remake(error)
    assert type(made) is kind
    assert (made.args, made.__dict__) == (error.args, error.__dict__)
    assert (str(made), made.excerpt, hash(made.remedies)) == (str(error), error.excerpt, hash(error.remedies))


def test_errors_without_fields_survive_too(tmp_path):
    with pytest.raises(mw.errors.TableFileError) as found:
        file_without_a_table(tmp_path)
    for error in (
        found.value,
        mw.errors.MissingDependencyError("x needs y"),
        mw.errors.DataError("{no} file"),
        mw.errors.MaskwrightError(),
    ):
        for made in (copy.copy(error), pickle.loads(pickle.dumps(error)), error_from_json(error_to_json(error))):
            assert (type(made), str(made)) == (type(error), str(error))


def test_the_table_has_every_kind_of_constraint_error_and_of_remedy():
    kinds = {
        kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, mw.errors.ConstraintError)
    }
    assert kinds <= {row[0] for row in TABLE.values()}
    remedies = {type(remedy) for row in TABLE.values() for remedy in row[2].get("remedies", ())}
    assert remedies == set(get_args(errors.Remedy))


def test_every_error_can_be_read_back_from_json():
    for _, kind in inspect.getmembers(errors, inspect.isclass):
        if issubclass(kind, mw.errors.MaskwrightError):
            made = kind.__new__(kind)
            made.args = ("what is wrong",)
            assert type(error_from_json(error_to_json(made))) is kind


def test_a_remedy_that_is_added_and_a_place_that_is_changed_leave_the_first_error_as_it_was():
    error = mw.errors.BudgetError("too much", limit="states", allowed=1, reached=2)
    assert str(error.also(KeepOrder()).at("/a")).startswith("/a: too much. any_order=True")
    assert str(error) == "too much"


def test_messages_show_of_a_long_pointer_how_it_begins_and_ends():
    pointer = "/first" + "/items" * 300 + "/last"
    error = mw.errors.ConstraintError("too much", pointer=pointer)
    for said in (str(error), error.worded(CommandWording("a.json"))):
        assert len(said) < 240
        assert "/first/items/items" in said
        assert "/items/items/last: too much" in said
    assert error.pointer == pointer
    assert str(error.at("/a" * 100)) == f"{'/a' * 100}: too much"


def test_braces_in_an_advice_stand_for_themselves_where_it_names_no_argument():
    assert str(mw.errors.MaskwrightError("a", remedies=[Advice("See {x: {}}")])) == "a. See {x: {}}"


def test_no_front_end_reads_or_rewrites_a_message():
    """The folders of front ends neither split, match nor replace what an error says."""
    for folder in ("cli", "serve"):
        for path in (Path(errors.__file__).parent / folder).glob("*.py"):
            text = path.read_text()
            for reading in ("str(error).", "in str(error)", "(str(error))[", "removeprefix('Value error"):
                assert reading not in text, f"{path.name}: {reading}"
            assert ".sub(" not in text, path.name
