"""Catalogues that an operator names, and what requests ask of them."""

from __future__ import annotations

import json

import numpy as np
import pytest

import maskwright as mw
from maskwright.engines.catalogues import CatalogueRequest, Catalogues, catalogues_here, request_of
from maskwright.engines.options import options_of

SIDS = [[3, 10], [3, 11], [4, 10], [5, 12]]
IDS = ["hat", "shoe", "sock", "coat"]


def options(folder, **more) -> str:
    """Write a catalogue of each kind, a table and a filter; return the text of options that name them."""
    mw.Catalogue.of(SIDS, IDS, vocab_size=16, kind="matrix").save(folder / "items")
    mw.Catalogue.of(SIDS, [1, 2, 3, 4], vocab_size=16, kind="matrix").save(folder / "numbers")
    mw.Catalogue.of(SIDS, IDS, vocab_size=16).save(folder / "tables")
    mw.compile_sequences([[3], [3, 4, 5]], vocab_size=16, eos=1).save(folder / "bare")
    np.save(folder / "keep.npy", [True, False, True, False])
    np.save(folder / "two.npy", [False, True])
    names = {name: str(folder / name) for name in ("items", "numbers", "tables", "bare")}
    kept, of_table, of_bare = (
        {"catalogue": name, "keep": str(folder / file)}
        for name, file in (("items", "keep.npy"), ("tables", "keep.npy"), ("bare", "two.npy"))
    )
    filters = {"stock": kept, "same": kept, "in table": of_table, "in bare": of_bare}
    return json.dumps({"catalogues": names, "filters": filters} | more)


@pytest.fixture(scope="module")
def catalogues(tmp_path_factory) -> Catalogues:
    return Catalogues(options_of({"MASKWRIGHT_ENGINE_OPTIONS": options(tmp_path_factory.mktemp("items"))}))


def test_what_passes_all_filters_and_is_not_denied_is_left(catalogues):
    def left(**fields) -> list[bool]:
        asked = request_of({f"maskwright_{name}": value for name, value in fields.items()})
        return catalogues.constraint(asked).contains(SIDS).tolist()

    assert left(catalogue="items") == [True] * 4
    assert left(catalogue="items", filter="stock") == [True, False, True, False]
    assert left(catalogue="items", filter=["stock", "same"], deny=["hat", "unknown"]) == [False, False, True, False]
    assert left(catalogue="numbers", deny=[4]) == [True, True, True, False]
    assert left(catalogue="tables") == [True] * 4
    assert left(catalogue="tables", filter="in table") == [True, False, True, False]
    assert left(catalogue="tables", filter="in table", deny=["hat"]) == [False, False, True, False]
    asked = request_of({"maskwright_catalogue": "bare", "maskwright_filter": "in bare"})
    assert catalogues.constraint(asked).contains([[3, 4, 5]]).all()
    assert not catalogues.constraint(asked).contains([[3, 1, 1]]).any()
    assert len(catalogues) == 4


def test_fields_of_others_are_left_alone():
    assert request_of(None) is None
    assert request_of({"kv_transfer_params": {}}) is None
    assert request_of({"session": 1, "maskwright_catalogue": "a"}) == CatalogueRequest("a")


@pytest.mark.parametrize(
    ("fields", "field", "said"),
    [
        ({"maskwright_catalog": "items"}, "maskwright_catalog", "is no field"),
        ({"maskwright_deny": []}, "maskwright_deny", "add maskwright_catalogue"),
        ({"maskwright_catalogue": 1}, "maskwright_catalogue", "must be the name"),
        ({"maskwright_catalogue": "item"}, "maskwright_catalogue", "names 'item', and there are 'bare', 'items'"),
        ({"maskwright_catalogue": "items", "maskwright_filter": 1}, "maskwright_filter", "list of names"),
        (
            {"maskwright_catalogue": "items", "maskwright_filter": "new"},
            "maskwright_filter",
            "are 'in bare', 'in table'",
        ),
        ({"maskwright_catalogue": "tables", "maskwright_filter": "stock"}, "maskwright_filter", "of the catalogue"),
        ({"maskwright_catalogue": "items", "maskwright_deny": "hat"}, "maskwright_deny", "list of ids"),
        ({"maskwright_catalogue": "items", "maskwright_deny": [1.5]}, "maskwright_deny", "list of ids"),
        ({"maskwright_catalogue": "items", "maskwright_deny": [7]}, "maskwright_deny", "are strings"),
        ({"maskwright_catalogue": "numbers", "maskwright_deny": ["7"]}, "maskwright_deny", "are integers"),
        (
            {"maskwright_catalogue": "bare", "maskwright_deny": ["hat"]},
            "maskwright_deny",
            "needs a catalogue with items",
        ),
        ({"maskwright_catalogue": "tables", "maskwright_deny": IDS}, "maskwright_deny", "leaves no item"),
        ({"maskwright_catalogue": "items", "maskwright_deny": IDS}, "maskwright_deny", "leaves no item"),
    ],
)
def test_what_a_request_cannot_ask_for_is_refused_by_its_field(catalogues, fields, field, said):
    with pytest.raises(mw.errors.ConstraintError) as error:
        catalogues.constraint(request_of(fields))
    assert error.value.argument == field
    assert said in str(error.value)


def test_a_model_that_cannot_write_a_catalogue_is_refused(catalogues):
    catalogues.check(16, {1: "eos", 2: "a stop"})
    for size, ends, said in (
        (15, {1: "eos"}, "has 16 tokens, and the model 15"),
        (16, {1: "eos", 12: "in stop_token_ids"}, "has token 12 in a semantic ID, and it is in stop_token_ids"),
        (16, {2: "eos"}, "'bare' ends with token 1, and answers of this model with 2"),
        (16, {}, "'bare' ends with token 1, and answers of this model with None"),
    ):
        with pytest.raises(mw.errors.ConstraintError, match="MASKWRIGHT_ENGINE_OPTIONS catalogues: ") as error:
            catalogues.check(size, ends)
        assert said in str(error.value)


def test_each_end_of_a_catalogue_is_an_end_of_the_model(tmp_path):
    mw.compile_sequences([[3], [3, 4, 5]], vocab_size=16, eos=[1, 9]).save(tmp_path / "two")
    named = json.dumps({"catalogues": {"two": str(tmp_path / "two")}})
    catalogues = Catalogues(options_of({"MASKWRIGHT_ENGINE_OPTIONS": named}))
    catalogues.check(16, {1: "eos", 9: "another"})
    with pytest.raises(
        mw.errors.ConstraintError, match="'two' ends with token 9 too, which ends no answer of this model"
    ):
        catalogues.check(16, {1: "eos", 8: "another"})


def test_files_that_are_something_else_are_refused_by_their_name(tmp_path, monkeypatch):
    vocab = mw.Vocabulary.from_bytes([b"", b"a"], eos=0)
    mw.compile_regex("a+", vocab).save(tmp_path / "text")
    (tmp_path / "noise").write_bytes(b"noise")
    np.save(tmp_path / "numbers.npy", np.arange(4))
    (tmp_path / "cut.npy").write_bytes((tmp_path / "numbers.npy").read_bytes()[:-8])
    known = json.loads(options(tmp_path))["catalogues"]

    def filtered(name, of="items"):
        return {"catalogues": known, "filters": {"new": {"catalogue": of, "keep": str(tmp_path / name)}}}

    for given, said in (
        ({"catalogues": {"new": str(tmp_path / "gone")}}, "catalogues: 'new': no "),
        ({"catalogues": {"new": str(tmp_path / "text")}}, "structured outputs take its source"),
        ({"catalogues": {"new": str(tmp_path / "noise")}}, "is truncated"),
        ({"catalogues": {"new": ""}}, "object of paths"),
        (filtered("numbers.npy"), "booleans"),
        (filtered("cut.npy"), "is no array"),
        (filtered("noise"), "is no array"),
        (filtered("gone.npy"), "gone.npy"),
        (filtered("keep.npy", "bare"), "one boolean is needed for each of the 2 input rows"),
        (filtered("keep.npy", "no"), "there is no catalogue 'no'"),
        ({"filters": {"new": {"keep": "x"}}}, "by name"),
    ):
        monkeypatch.setenv("MASKWRIGHT_ENGINE_OPTIONS", json.dumps(given))
        with pytest.raises(mw.errors.ConstraintError, match="MASKWRIGHT_ENGINE_OPTIONS") as error:
            catalogues_here()
        assert said in str(error.value)
    monkeypatch.setenv("MASKWRIGHT_ENGINE_OPTIONS", options(tmp_path))
    assert catalogues_here() is catalogues_here()
