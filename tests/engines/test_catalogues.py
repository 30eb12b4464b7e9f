"""Catalogues that an operator names, and what requests ask of them."""

from __future__ import annotations

import json
from pathlib import Path

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


class Shop:
    """A catalogue with a log, a filter in a file, and the catalogues of an engine that serves both."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        mw.Catalogue.of(SIDS, IDS, vocab_size=16, kind="matrix").save(folder / "shop")
        self.store = mw.Catalogue.open(folder / "shop", log=folder / "log")
        self.keep([True, False, True, False])
        given = {
            "catalogues": {"shop": {"file": str(folder / "shop"), "log": str(folder / "log")}},
            "filters": {"stock": {"catalogue": "shop", "keep": str(folder / "keep.npy")}},
        }
        self.served = Catalogues(options_of({"MASKWRIGHT_ENGINE_OPTIONS": json.dumps(given)}))

    def keep(self, keep: object) -> None:
        np.save(self.folder / "new.npy", keep)
        (self.folder / "new.npy").replace(self.folder / "keep.npy")

    def left(self, sids: list[list[int]], admits: bool = True, **fields) -> list[bool]:
        asked = request_of({"maskwright_catalogue": "shop"} | {f"maskwright_{name}": fields[name] for name in fields})
        return self.served.constraint(asked, admits=admits).contains(sids).tolist()


def test_the_next_request_has_what_was_written_before_it(tmp_path):
    shop = Shop(tmp_path)
    asked = request_of({"maskwright_catalogue": "shop"})
    first = shop.served.constraint(asked)
    assert shop.served.constraint(asked) is first
    shop.store.delete(["shoe"])
    shop.store.insert([[6, 6], [7, 7]], ["vest", "robe"])
    sids = [*SIDS, [6, 6], [7, 7]]
    assert shop.left(sids) == [True, False, True, True, True, True]
    assert shop.left(sids, filter="stock") == [True, False, True, False, False, False]
    assert shop.left(sids, deny=["vest", "coat"]) == [True, False, True, False, False, True]
    shop.keep([False, True, True, True, True, False, True])  # of items that came, of one that is gone, of one to come
    assert shop.left(sids, filter="stock") == [False, False, True, True, True, False]
    shop.store.save(tmp_path / "shop")
    shop.store.insert([[8, 8]], ["hood"])
    assert shop.left([*sids, [8, 8]], filter="stock", deny=["sock"]) == [*[False] * 3, True, True, False, True]
    assert first.contains(sids).tolist() == [True] * 4 + [False] * 2  # a request keeps what it was given
    shop.store.delete(["hat", "sock", "coat", "vest", "robe", "hood"])
    with pytest.raises(mw.errors.ConstraintError, match="leaves no item of the catalogue 'shop'") as error:
        shop.left(sids)
    assert error.value.argument == "maskwright_catalogue"
    shop.store.insert([[9, 9]], ["cap"])
    assert shop.left([[9, 9]]) == [True]


def test_filters_of_fixed_catalogues_change_too_unless_several_processes_must_agree(tmp_path):
    given = options_of({"MASKWRIGHT_ENGINE_OPTIONS": options(tmp_path)})
    moving, still = Catalogues(given), Catalogues(given)
    still.keep_still("two would not agree")
    asked = request_of({"maskwright_catalogue": "tables", "maskwright_filter": "in table"})
    for keep in ([False, True, True, False], [True, True, True, False]):
        np.save(tmp_path / "new.npy", keep)
        (tmp_path / "new.npy").replace(tmp_path / "keep.npy")
        assert moving.constraint(asked).contains(SIDS).tolist() == keep
        assert still.constraint(asked).contains(SIDS).tolist() == [True, False, True, False]
    shop = Shop(tmp_path)
    with pytest.raises(mw.errors.ConstraintError, match="'shop' has a log, and two would not agree"):
        shop.served.keep_still("two would not agree")


def test_files_that_break_are_refused_to_clients_until_they_are_mended(tmp_path, caplog):
    shop = Shop(tmp_path)
    keep, log = tmp_path / "keep.npy", tmp_path / "log"
    for broken in (lambda: shop.keep([1, 2]), lambda: keep.write_bytes(b"noise"), keep.unlink):
        caplog.clear()
        broken()
        for _ in range(2):
            with pytest.raises(mw.errors.ConstraintError, match="names 'stock', which cannot be read: ") as error:
                shop.left(SIDS, filter="stock")
        assert error.value.argument == "maskwright_filter"
        assert shop.left(SIDS, admits=False, filter="stock") == [True, False, True, False]
        assert shop.left(SIDS) == [True] * 4
        assert caplog.text.count("the filter 'stock' stays as it was: ") == 1
        shop.keep([True, False, True, False])
        assert shop.left(SIDS, filter="stock") == [True, False, True, False]
    at = log.stat().st_size
    shop.store.insert([[6, 6]], ["vest"])
    shop.store.insert([[7, 7]], ["robe"])
    data = log.read_bytes()
    log.write_bytes(data[: at + 12] + bytes([data[at + 12] ^ 1]) + data[at + 13 :])
    with pytest.raises(mw.errors.ConstraintError, match=f"which cannot be read: .*is damaged at byte {at}") as error:
        shop.left(SIDS)
    assert error.value.argument == "maskwright_catalogue"
    assert shop.left([[3, 10], [6, 6], [7, 7]], admits=False) == [True, False, False]
    assert caplog.text.count("the catalogue 'shop' stays as it was") == 1
    log.write_bytes(data)
    assert shop.left([[3, 10], [6, 6], [7, 7]]) == [True, True, True]


def test_another_catalogue_in_the_place_of_the_first_needs_a_new_engine(tmp_path):
    shop = Shop(tmp_path)
    shop.store.close()
    (tmp_path / "log").unlink()
    mw.Catalogue.of([[1, 2, 3]], ["hat"], vocab_size=16, kind="matrix").save(tmp_path / "shop")
    other = mw.Catalogue.open(tmp_path / "shop", log=tmp_path / "log")
    other.close()
    with pytest.raises(mw.errors.ConstraintError, match="'shop' is another one now"):
        shop.left(SIDS)
    assert shop.left(SIDS, admits=False) == [True] * 4
    mw.Catalogue.of(SIDS[:2], IDS[:2], vocab_size=16, kind="matrix").save(tmp_path / "shop")
    (tmp_path / "log").unlink()
    other = mw.Catalogue.open(tmp_path / "shop", log=tmp_path / "log")
    assert shop.left(SIDS) == [True, True, False, False]


def test_items_that_came_and_that_the_model_cannot_write_are_left_out(tmp_path, caplog):
    shop, sids = Shop(tmp_path), [[3, 10], [6, 6], [7, 7], [1, 7]]
    shop.served.check(16, {1: "eos"})
    shop.store.insert([[6, 6]], ["vest"])
    assert shop.left(sids) == [True, True, False, False]
    shop.store.insert([[1, 7], [7, 7]], ["bad", "robe"])
    shop.keep([True] * 9)
    for _ in range(2):
        assert shop.left(sids) == shop.left(sids, filter="stock") == [True, True, True, False]
        assert shop.left(sids, deny=["vest"]) == [True, False, True, False]
    assert (
        caplog.text.count("1 items of the catalogue 'shop' are left out: token 1 in the semantic ID of one is eos") == 1
    )
    assert not shop.served.uses("shop", 1)
    shop.store.delete(["bad"])
    assert shop.left(sids) == [True, True, True, False]
    assert [token for token in range(-1, 17) if shop.served.uses("shop", token)] == [3, 4, 5, 6, 7, 10, 11, 12]
    shop.store.delete(["coat"])
    assert shop.left([[5, 12]]) == [False]
    assert not shop.served.uses("shop", 5)  # a row of the base that is gone
    shop.store.insert([[7, 1]], ["worse"])
    shop.store.delete(["hat", "shoe", "sock", "vest", "robe"])
    with pytest.raises(mw.errors.ConstraintError, match="leaves no item"):
        shop.left(sids)


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
        ({"catalogues": {"new": {"log": "x"}}}, 'or of {"file": path, "log": path}, by name'),
        ({"catalogues": {"new": {"file": known["items"], "log": str(tmp_path / "gone")}}}, "gone"),
        ({"catalogues": {"new": {"file": known["tables"], "log": known["items"]}}}, "of sorted matrices"),
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
