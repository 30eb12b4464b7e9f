"""Expressions over columns: what Python says of each item, but false where a value is missing."""

from __future__ import annotations

import time
import warnings

import numpy as np
import pytest

import maskwright as mw
from maskwright.compile import item_filters
from maskwright.compile.columns import Column
from maskwright.compile.item_filters import check, keeps
from maskwright.table.item_ids import IdIndex, ItemIds

BIG = 1 << 53
VALUES = {
    "price": [1.5, None, -2.0, 0.0, 7.0, 1.5, float(BIG)],
    "stock": [0, 3, None, -4, BIG + 1, 3, -(1 << 63)],
    "sold": [True, False, None, True, False, False, True],
    "category": ["hat", "shoe", None, "", "Hüte", "hat", "it's"],
}
IDS = ["a", "b", "c", "d", "e", "f", "g"]
COLUMNS = {name: Column.of(name, values, len(values)) for name, values in VALUES.items()}
LITERALS = {
    "price": [
        "0",
        "1.5",
        "-2",
        "7",
        "1e300",
        "-1e300",
        "1e400",
        f"{BIG}",
        f"{BIG + 1}",
        f"{1 << 1100}",
        f"-{1 << 1100}",
    ],
    "stock": [
        "0",
        "3",
        "-4",
        "3.5",
        "-0.5",
        str(BIG),
        str(BIG + 1),
        f"{BIG}.0",
        "1e30",
        "-1e30",
        "1e400",
        str(1 << 70),
    ],
    "sold": ["True", "False"],
    "category": ["'hat'", '"Hüte"', "''", '"it\'s"', "'zzz'"],
    "id": ["'a'", "'zz'"],
}


def comparison(random):
    name = random.choice(list(LITERALS))
    values = [str(random.choice(LITERALS[name])) for _ in range(3)]
    kind = random.integers(5)
    if kind == 0:
        return f"{name} {random.choice(['in', 'not in'])} ({', '.join(values[: random.integers(4)])},)".replace(
            "(,)", "()"
        )
    if kind == 1:
        return f"{name} is {random.choice(['', 'not '])}None"
    ops = ["==", "!="] if name in ("id", "sold") else ["==", "!=", "<", "<=", ">", ">="]
    if kind == 2:
        return f"{values[0]} {random.choice(ops)} {name} {random.choice(ops)} {values[1]}"
    if kind == 3 and name == "sold":
        return name
    return f"{name} {random.choice(ops)} {values[0]}"


def expression(random, depth=0):
    kind = random.integers(4) if depth < 3 else 0
    if kind < 2:
        return comparison(random)
    if kind == 2:
        return f"not ({expression(random, depth + 1)})"
    word = random.choice([" and ", " or "])
    return "(" + word.join(expression(random, depth + 1) for _ in range(random.integers(2, 4))) + ")"


class Missing:
    """A value that is missing: every comparison with it is false."""

    def _false(self, other):
        return False

    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _false
    __hash__ = None

    def __bool__(self):
        return False


def judged(text, row):
    """What Python says of a row."""
    named = {name: Missing() if values[row] is None else values[row] for name, values in VALUES.items()}
    told = text.replace("category is ", "VALUES['category'][row] is ").replace("id is ", "IDS[row] is ")
    for name in ("price", "stock", "sold"):
        told = told.replace(f"{name} is ", f"VALUES['{name}'][row] is ")
    for name in VALUES:  # a missing value is in no list, and not in none either
        told = told.replace(f"{name} not in ", f"named['{name}'].__class__ is not Missing and {name} not in ")
        told = told.replace(f"{name} in ", f"named['{name}'].__class__ is not Missing and {name} in ")
        told = told.replace(f"Missing and named['{name}'].__class__ is not Missing and ", "Missing and ")
    return bool(eval(told, {"VALUES": VALUES, "IDS": IDS, "row": row, "named": named, "Missing": Missing},
                     {**named, "id": IDS[row]}))  # fmt: skip


@pytest.mark.parametrize("seed", range(20))
def test_random_expressions_are_judged_as_python_does(seed):
    random = np.random.default_rng(seed)
    for _ in range(100):
        text = expression(random)
        found = keeps(text, COLUMNS, ItemIds.of(IDS))
        assert found.tolist() == [judged(text, row) for row in range(len(IDS))], text


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "no expression"),
        ("price <", "no expression"),
        ("price < 50 and", "at character"),
        ("price", "no column of booleans"),
        ("colour == 1", "names 'colour', and there are: price"),
        ("price < 'a'", "its values are numbers"),
        ("category == 1", "its values are strings"),
        ("sold == 1", "True or False"),
        ("sold < True", "orders 'sold'"),
        ("id < 'a'", "orders 'id'"),
        ("id == 5", "its values are strings"),
        ("price == None", "numbers"),
        ("price + 1 < 5", "not of a column and a value"),
        ("price < stock", "not of a column and a value"),
        ("1 < 2", "not of a column and a value"),
        ("price in 5", "no column in a list"),
        ("price in category", "no column in a list"),
        ("5 in (5,)", "no column in a list"),
        ("price is 5", "no column is None"),
        ("price in (1, 'a')", "numbers"),
        ("__import__('os')", "what no filter may have"),
        ("price.real < 5", "in the place of a value|not of a column"),
        ("[x for x in (1,)]", "what no filter may have"),
        ("lambda: 0", "what no filter may have"),
        ("price if sold else stock", "what no filter may have"),
        ("price < -'a'", "sign before what is no number"),
        ("price < 5; stock", "no expression"),
        ("price := 5", "no expression"),
        ("price < 5\nstock", "no expression"),
        ("price < 5j", "numbers"),
        ("category == b'hat'", "strings"),
        ("price < \x00", "no expression"),
        ("not " * 200 + "sold", "nested"),
        ("(" * 3000 + "sold", "no expression"),
        ("-" * 4000 + "5 < price", "nested|expression|value|sign"),
        ("-" * 1008 + "5 < price", "sign before what is no number"),
        ("--5 < price", "sign before what is no number"),
        ("category == '\ud800'", "lone surrogate"),
        ("sold and " * 1000 + "sold", "4,096 at most"),
    ],
)
def test_anything_else_is_refused(text, why):
    with pytest.raises(mw.errors.ConstraintError, match=why) as raised:
        keeps(text, COLUMNS, ItemIds.of(IDS))
    assert raised.value.argument == "filter"
    with pytest.raises(mw.errors.ConstraintError):
        check(text, {name: column.kind for name, column in COLUMNS.items()}, "str")


@pytest.mark.parametrize(
    ("text", "before"),
    [
        ("price <", "price <"),
        ("", ""),
        ("price < 'a'", "price < "),
        ("price < 5 sold", "price < 5 "),
        ("  (price < 1\n and colour == 2)", "  (price < 1\n and "),
        (
            "(category == '\u2028' and\r\n category == 'é' and colour == 2)",
            "(category == '\u2028' and\r\n category == 'é' and ",
        ),
        ("category == 'é' and 5 < 3", "category == 'é' and "),
        ("category == 'é\ud800'", "category == 'é"),
    ],
)
def test_an_error_names_the_character(text, before):
    with pytest.raises(mw.errors.ConstraintError, match=rf"at character {len(before) + 1}$"):
        keeps(text, COLUMNS, ItemIds.of(IDS))


def test_long_lists_are_as_short_ones():
    values = [*range(-6, 6), BIG, BIG + 1, 2.5]
    for name in ("price", "stock"):
        listed, one_by_one = f"{name} in {values}", " or ".join(f"{name} == {value}" for value in values)
        assert (keeps(listed, COLUMNS, ItemIds.of(IDS)) == keeps(one_by_one, COLUMNS, ItemIds.of(IDS))).all()
    texts = ["hat", "", *map(str, range(20))]
    assert keeps(f"category in {texts}", COLUMNS, ItemIds.of(IDS)).tolist() == [1, 0, 0, 1, 0, 1, 0]
    assert keeps(f"category not in {texts}", COLUMNS, ItemIds.of(IDS)).tolist() == [0, 1, 0, 0, 1, 0, 1]


def test_python_warns_of_no_expression():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = keeps(r"category == '\d' or price == 7or sold", COLUMNS, ItemIds.of(IDS))
    assert found.tolist() == [1, 0, 0, 1, 1, 0, 1]


def test_ids_may_be_integers():
    assert keeps("id in (3, 9) or id == -1", {}, ItemIds.of([3, 4, -1])).tolist() == [True, False, True]
    assert keeps("id != 3", {}, ItemIds.of([3, 4])).tolist() == [False, True]
    assert not keeps(f"id == {1 << 80}", {}, ItemIds.of([3, 4])).any()
    assert keeps("id in (3.0, 3.5)", {}, ItemIds.of([3, 4])).tolist() == [True, False]


def test_a_filter_of_a_catalogue_keeps_what_the_expression_says():
    made = mw.Catalogue.of(
        [[0], [1], [2]],
        ["a", "b", "c"],
        4,
        kind="matrix",
        columns={"price": [5, 60, None], "sold": [True, False, None]},
    )
    for catalogue in (made, made.live()):
        assert catalogue.where("price < 50").contains([[0], [1], [2]]).tolist() == [True, False, False]
        assert catalogue.where("not sold").contains([[0], [1], [2]]).tolist() == [False, True, True]
        assert catalogue.where("price is None or id == 'a'").contains([[0], [1], [2]]).tolist() == [True, False, True]


def test_an_item_that_comes_later_is_not_in_an_earlier_version():
    shop = mw.Catalogue.of([[0], [1]], ["a", "b"], 4, kind="matrix").live()
    shop.put(["a", "c"], [[2], [3]])
    later = shop.publish()
    assert shop.keeps("id in ('a', 'c')").tolist() == [True, False]
    assert later.keeps("id in ('a', 'c')").tolist() == [True, False, True, True]
    assert later.where("id in ('a', 'c')").contains([[0], [1], [2], [3]]).tolist() == [False, False, True, True]


def test_a_million_items_take_milliseconds():
    random = np.random.default_rng(0)
    columns = {
        "price": Column.of("price", random.random(1_000_000), 1_000_000),
        "category": Column("str", random.integers(0, 50, 1_000_000).astype(np.int32), np.ones(1_000_000, bool),
                           [f"c{i}" for i in range(50)]),
    }  # fmt: skip
    columns["brand"] = Column("str", np.arange(1_000_000, dtype=np.int32), np.ones(1_000_000, bool),
                              [f"b{i}" for i in range(1_000_000)])  # fmt: skip
    ids = ItemIds.of(np.arange(1_000_000))
    index = IdIndex(ids)
    index.rows([0], 1)  # sorted once
    assert columns["brand"].places["b5"] == 5  # made once
    text = "price < 0.5 and category in ('c1', 'c2') and (brand != 'b5' or id == 5)"
    times = []
    for _ in range(5):
        began = time.thread_time()
        found = keeps(text, columns, ids, index)
        times.append(time.thread_time() - began)
    assert 15_000 < found.sum() < 25_000
    assert min(times) < 0.02


def test_what_orders_too_many_texts_is_refused(monkeypatch):
    monkeypatch.setattr(item_filters, "MOST_ORDERED", 20)
    made = mw.Catalogue.of([[0], [1]], [1, 2], 4, columns={"title": ["a", "b"]})
    assert made.keeps("title < 'b' and " * 9 + "title < 'b'").tolist() == [True, False]
    with pytest.raises(mw.errors.ConstraintError, match="orders strings too often") as raised:
        made.keeps("title < 'b' and " * 10 + "title < 'b'")
    assert raised.value.argument == "filter"
