"""Loader for the Amazon review data released with MiniOneRec: semantic IDs, titles and next-item rows."""

from __future__ import annotations

import ast
import csv
import html
import io
import json
import re
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from maskwright.errors import DataError

from .dataset import Catalogue, Dataset, Ints, TestRows

_COLUMNS = (
    "user_id",
    "history_item_title",
    "item_title",
    "history_item_id",
    "item_id",
    "history_item_sid",
    "item_sid",
)
_TOKEN = re.compile(r"<([a-z])_([0-9]{1,5})>")
_NUMBER = re.compile(r"[0-9]{1,9}")


@dataclass(frozen=True)
class _Row:
    """One line of a split: who, the items before (at most as many as the split keeps), the next item."""

    user: str
    history: list[int]
    target: int


def amazon_dataset(directory: Path) -> Dataset:
    """Return the data in `directory`, laid out as `index/`, `info/`, `valid/` and `test/`.

    There is no training split: the users' histories in the validation file, each continued with its next
    items, are the training sequences. A step that is also a row of the test file (same user, same history,
    same next item) ends its sequence, so that no test target is trained on.

    There are no dates either. The rows of both files are in order of time, the validation file first, and
    an item's age is the row at which it first is the next item. Items that are already in a user's history
    when that user first appears, and items that no row mentions, are older than all of those; among
    themselves they keep the order of their numbers.

    Raises DataError if a file is missing or malformed.
    """
    directory = Path(directory)
    if not directory.is_dir():
        raise DataError(f"{directory} is not a directory: give one that holds index/, info/, valid/ and test/")
    index = _only_file(directory / "index", "*.index.json")
    sids, codes = _read_index(index)
    titles = _read_titles(_only_file(directory / "info", "*.txt"), sids)
    valid = _read_rows(_only_file(directory / "valid", "*.csv"), sids)
    test = _read_rows(_only_file(directory / "test", "*.csv"), sids)
    return Dataset(
        name=f"Amazon reviews, {index.name.removesuffix('.index.json')}",
        catalogue=Catalogue(sids, codes, _ages(valid + test, len(sids)), titles),
        train=_training_sequences(valid, test),
        test=TestRows(
            tuple(np.array(row.history, dtype=np.int64) for row in test),
            np.array([row.target for row in test], dtype=np.int64),
        ),
    )


def _only_file(folder: Path, pattern: str) -> Path:
    """Return the one file of `folder` that matches; refuse to guess among several."""
    if not folder.is_dir():
        raise DataError(f"{folder} is missing: the data needs the folders index/, info/, valid/ and test/")
    found = sorted(folder.glob(pattern))
    if len(found) == 1:
        return found[0]
    names = ", ".join(path.name for path in found) or "none"
    raise DataError(f"{folder} must hold exactly one file {pattern}, found {names}: keep one data set per directory")


def _text(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8 text at byte {error.start}; convert it to UTF-8") from error


def _read_index(path: Path) -> tuple[Ints, int]:
    """Return the codes of items 0 .. n-1 (n, L), from 0, and how many codes a level has at most."""
    try:
        index = json.loads(_text(path))
    except json.JSONDecodeError as error:
        raise DataError(f"{path}: not a JSON file ({error})") from error
    if not isinstance(index, dict) or not index:
        raise DataError(f'{path}: expected one object like {{"0": ["<a_60>", "<b_159>", "<c_203>"], ...}}')
    codes = []
    for item in range(len(index)):
        tokens = index.get(str(item))
        if tokens is None:
            raise DataError(f"{path}: item {item} is missing: items must be numbered 0 to {len(index) - 1}")
        text = "".join(map(str, tokens)) if isinstance(tokens, list) else ""
        codes.append(_codes(text, f"{path}: item {item}", tokens))
        if len(codes[item]) != len(codes[0]):
            raise DataError(f"{path}: item {item} has {len(codes[item])} tokens, item 0 has {len(codes[0])}")
    sids = np.array(codes, dtype=np.int64)
    return sids, int(sids.max()) + 1


def _codes(text: str, where: str, shown: object) -> list[int]:
    """Return the codes of `<a_60><b_159><c_203>`, whose letters must count up from a."""
    tokens = _TOKEN.findall(text)
    letters = "".join(letter for letter, _ in tokens)
    spelled = "".join(f"<{letter}_{code}>" for letter, code in tokens)
    if not tokens or spelled != text or letters != "abcdefghijklmnopqrstuvwxyz"[: len(letters)]:
        raise DataError(f"{where}: {shown!r} is not a semantic ID; expected tokens like <a_60>, <b_159>, <c_203>")
    return [int(code) for _, code in tokens]


def _read_titles(path: Path, sids: Ints) -> tuple[str, ...]:
    """Return the title of every item, after checking its ID against the index."""
    titles = [""] * len(sids)
    for number, line in enumerate(io.StringIO(_text(path)), start=1):
        where = f"{path}, line {number}"
        fields = line.rstrip("\r\n").split("\t")
        if len(fields) != 3:
            raise DataError(f"{where}: expected semantic ID, title and item number, separated by tabs")
        item = _item(fields[2], sids, where)
        _check_sid(fields[0], item, sids, where)
        titles[item] = html.unescape(fields[1])
    return tuple(titles)


def _read_rows(path: Path, sids: Ints) -> list[_Row]:
    """Return the rows of a split, after checking items and IDs against the index."""
    reader = csv.DictReader(io.StringIO(_text(path), newline=""), strict=True)
    try:
        missing = [name for name in _COLUMNS if name not in (reader.fieldnames or ())]
        if missing:
            raise DataError(f"{path}, line 1: no column {', '.join(missing)}; expected {', '.join(_COLUMNS)}")
        rows = [_row(row, sids, f"{path}, line {reader.line_num}") for row in reader]
    except csv.Error as error:
        raise DataError(f"{path}, line {reader.reader.line_num}: {error}; check the quotes") from error
    if not rows:
        raise DataError(f"{path}: there are no rows below the header")
    return rows


def _row(row: dict[str | Any, str | Any], sids: Ints, where: str) -> _Row:
    if None in row or None in row.values():
        raise DataError(f"{where}: more or fewer fields than columns; check quotes and commas")
    history = [_item(item, sids, where) for item in _list(row["history_item_id"], "history_item_id", where)]
    spelled = _list(row["history_item_sid"], "history_item_sid", where)
    if len(spelled) != len(history):
        raise DataError(f"{where}: history_item_id lists {len(history)}, history_item_sid {len(spelled)}")
    target = _item(row["item_id"], sids, where)
    for sid, item in zip([*spelled, row["item_sid"]], [*history, target], strict=True):
        _check_sid(sid, item, sids, where)
    return _Row(row["user_id"], history, target)


def _list(text: str, column: str, where: str) -> list[object]:
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        value = None
    if not isinstance(value, list):
        raise DataError(f"{where}: {column} is {text[:60]!r}; expected a list such as [926, 38]")
    return value


def _item(value: object, sids: Ints, where: str) -> int:
    number = int(value) if isinstance(value, str) and _NUMBER.fullmatch(value) else value
    if not isinstance(number, int) or not 0 <= number < len(sids):
        raise DataError(
            f"{where}: item {value!r} is not in the index, whose items are 0 to {len(sids) - 1}; "
            "check that all files come from the same release"
        )
    return number


def _check_sid(text: object, item: int, sids: Ints, where: str) -> None:
    codes = _codes(text if isinstance(text, str) else "", where, text)
    if codes != sids[item].tolist():
        raise DataError(
            f"{where}: item {item} has ID {text} here and codes {sids[item].tolist()} in the index; "
            "check that all files come from the same release"
        )


def _training_sequences(valid: list[_Row], test: list[_Row]) -> tuple[Ints, ...]:
    """Return each validation user's items in order, cut before the first step that is a test row."""
    held_out = defaultdict(list)
    for row in test:
        held_out[row.user].append(row)
    kept = []
    for user, chain in ((user, chain) for user, chains in _chains(valid).items() for chain in chains):
        leak = (
            step
            for step in range(1, len(chain))
            for row in held_out[user]
            if chain[step] == row.target and _ends_with(chain[:step], row.history)
        )
        kept.append(np.array(chain[: next(leak, len(chain))], dtype=np.int64))
    return tuple(kept)


def _chains(rows: list[_Row]) -> dict[str, list[list[int]]]:
    """Join each user's rows: a row goes on from the one before if its history is how that one ends."""
    chains: dict[str, list[list[int]]] = defaultdict(list)
    for row in rows:
        if chains[row.user] and _ends_with(chains[row.user][-1], row.history):
            chains[row.user][-1].append(row.target)
        else:
            chains[row.user].append([*row.history, row.target])
    return chains


def _ends_with(items: list[int], end: list[int]) -> bool:
    return len(end) > 0 and items[-len(end) :] == end


def _ages(rows: list[_Row], count: int) -> Ints:
    """Return the position of every item in the order of appearance: (n,), 0 for the oldest."""
    first = np.full(count, -1, dtype=np.int64)
    known: set[str] = set()
    before: set[int] = set()
    for row in rows:
        if row.user not in known:
            known.add(row.user)
            before.update(row.history)
    for number, row in enumerate(rows):
        if row.target not in before and first[row.target] < 0:
            first[row.target] = number
    return np.argsort(np.argsort(first, kind="stable"), kind="stable")
