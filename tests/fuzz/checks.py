"""What each kind of case has to hold: an answer or a refusal, and one answer whichever way it is asked."""

from __future__ import annotations

import contextlib
import re
import tempfile
import warnings
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

import maskwright as mw
from maskwright.runtime import numpy_ops
from maskwright.runtime.host import nested_masks
from maskwright.table import file as table_file
from tests.strategies.odd_schemas import some_tokens

from .attacks import ATTACKS
from .cases import Case
from .device_checks import check_devices
from .disturbances import check_signals, check_threads
from .http_requests import check_http
from .workers import DifferenceError, Steps, is_refusal

BUDGET = mw.Budget(seconds=2, bytes=256 << 20)
VOCABULARY = mw.Vocabulary.from_bytes(some_tokens(200), eos=0)
_WALKS, _LONGEST = 3, 40
_BEYOND = (mw.errors.BudgetError, mw.errors.NoTableError)
"""Refusals of a whole table where a lazy one may do."""


def _allowed(mask: np.ndarray) -> list[int]:
    return np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist()


def _chosen(rng: Random, allowed: Sequence[int]) -> int:
    """Return one of the tokens; often one that ends something, so that texts end."""
    ends = [token for token in allowed if VOCABULARY.tokens[token] in (b"", b"}", b"]", b'"')]
    return rng.choice(ends if ends and rng.random() < 0.4 else allowed)


def _walk_both(one: Any, other: Any, rng: Random) -> list[bytes]:
    """Write texts with two constraints that must allow the same; return those that came to an end."""
    texts = []
    for _ in range(_WALKS):
        first, second = mw.Matcher(one), mw.Matcher(other)
        written = b""
        for _ in range(_LONGEST):
            masks = first.mask(), second.mask()
            allowed = _allowed(masks[0])
            if allowed != _allowed(masks[1]):
                only = set(allowed) ^ set(_allowed(masks[1]))
                raise DifferenceError(f"after {written!r} only one allows {[VOCABULARY.tokens[t] for t in only][:9]}")
            if not allowed:
                raise DifferenceError(f"after {written!r} nothing is allowed")
            token = _chosen(rng, allowed) if rng.random() < 0.95 else rng.randrange(VOCABULARY.size)
            took = first.advance(token), second.advance(token)
            if took != (token in allowed,) * 2:
                raise DifferenceError(f"after {written!r} {VOCABULARY.tokens[token]!r} was taken: {took}")
            if token == 0 and took[0]:
                texts.append(written)
                break
            if took[0]:
                written += VOCABULARY.tokens[token]
    return texts


def _walk_within(table: Any, rng: Random) -> None:
    """Write texts of a few tokens at most: each must come to an end with them."""
    most = rng.choice((4, 16, 60, 1000))
    for _ in range(_WALKS):
        matcher = mw.Matcher(table, max_tokens=most)
        for left in range(most, -1, -1):
            allowed = _allowed(matcher.mask())
            if not allowed:
                raise DifferenceError(f"of {most} tokens {left} are left, and nothing is allowed")
            token = _chosen(rng, allowed)
            if not matcher.advance(token):
                raise DifferenceError(f"{VOCABULARY.tokens[token]!r} was refused with {left} of {most} tokens left")
            if token == 0:
                break
        else:
            raise DifferenceError(f"a text did not end within {most} tokens")


def _check_lazy(compile_: Callable[..., Any], seed: int, steps: Steps) -> None:
    """Compile lazily, then whole, and compare. compile_: takes `lazy`."""
    refused, lazy = None, None
    with steps("compiling lazily"):
        try:
            lazy = compile_(lazy=True)
        except mw.errors.MaskwrightError as error:
            refused = error
    try:
        with steps("compiling the whole"):
            whole = compile_(lazy=False).to_table()
    except _BEYOND:
        whole = None
    except mw.errors.MaskwrightError as error:
        if refused is None:
            raise DifferenceError(f"lazily it is compiled, else refused: {error}") from error
        if type(refused) is not type(error) and not isinstance(refused, _BEYOND):
            raise DifferenceError(f"lazily it is refused by {refused!r}, else by {error!r}") from error
        raise
    if refused is not None:
        if whole is not None and not isinstance(refused, _BEYOND):
            raise DifferenceError(f"it is compiled whole, but lazily refused: {refused}")
        raise refused
    rng = Random(seed)
    with steps("walking"), contextlib.suppress(mw.errors.BudgetError):  # of a lazy table whose states were too many
        _walk_both(lazy, lazy if whole is None else whole, rng)
    if whole is not None:
        with steps("writing a few tokens"):
            _walk_within(whole, rng)


def check_schema(source: Any, seed: int, steps: Steps) -> None:
    options: dict[str, Any] = {"any_order": True} if seed % 4 == 0 else {}
    if seed % 5 == 0:
        options["whitespace"] = (", ", ": ")

    def compile_(lazy: bool) -> Any:
        return mw.compile_json_schema(source, VOCABULARY, lazy=lazy, budget=BUDGET, **options)

    _check_lazy(compile_, seed, steps)


def check_grammar(source: str, seed: int, steps: Steps) -> None:
    syntax = "gbnf" if "::=" in source else "lark"

    def compile_(lazy: bool) -> Any:
        made = mw.compile_grammar(source, VOCABULARY, syntax=syntax, budget=BUDGET)
        return made if lazy else made.to_table()

    _check_lazy(compile_, seed, steps)


def check_tag(source: Any, seed: int, steps: Steps) -> None:
    def compile_(lazy: bool) -> Any:
        made = mw.compile_structural_tag(source, VOCABULARY, budget=BUDGET)
        return made if lazy else made.to_table()

    _check_lazy(compile_, seed, steps)


def check_regex(source: str, seed: int, steps: Steps) -> None:
    with steps("compiling"):
        table = mw.compile_regex(source, VOCABULARY, budget=BUDGET)
    with steps("walking"):
        texts = _walk_both(table, table, Random(seed))
    try:
        with warnings.catch_warnings(action="ignore"):
            judge = re.compile(source)
    except (re.error, OverflowError, RecursionError):
        return
    if len(source) > 40 or max(map(len, texts), default=0) > 20:  # which `re` may take forever for
        return
    for text in texts:
        with steps("asking re"):
            if not judge.fullmatch(text.decode()):
                raise DifferenceError(f"re does not match {text!r}")


def check_choices(source: list[str], seed: int, steps: Steps) -> None:
    with steps("compiling"):
        table = mw.compile_choices(source, VOCABULARY, budget=BUDGET)
    with steps("walking"):
        texts = _walk_both(table, table, Random(seed))
    for text in texts:
        if text.decode() not in source:
            raise DifferenceError(f"{text!r} is no choice")


_TABLES: tuple[Callable[[], Any], ...] = (
    lambda: mw.compile_regex("(ab|[c-f]{2,5}é)*x?", VOCABULARY),
    lambda: mw.compile_choices(["red", "green", "blue", "reddish"], VOCABULARY),
    lambda: mw.compile_json_schema(True, VOCABULARY, lazy=False),
    lambda: mw.compile_json_schema(
        {
            "type": "object", "required": ["a"],
            "properties": {"a": {"type": "array", "items": {"$ref": "#"}, "maxItems": 2}, "b": {"maxLength": 4}},
        },
        VOCABULARY, lazy=False,
    ),
    lambda: mw.compile_grammar('start: "(" start? ")" | "[" start start "]" | /[a-z]{1,3}/', VOCABULARY),
    lambda: mw.compile_sids([[1, 2, 3], [1, 2, 4], [5, 2, 3]], VOCABULARY.size),
)  # fmt: skip


@cache
def _saved(number: int) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return the header and the arrays of the file of a table."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "table"
        _TABLES[number]().to_table().save(path)
        return table_file.read(path, None)


def warm() -> None:
    """Load the libraries and kernels that most constraints need, before workers are forked."""
    mw.compile_json_schema({"type": "object"}, VOCABULARY)
    mw.compile_json_schema({"type": "object"}, VOCABULARY, whitespace=(", ", ": "), lazy=False)
    mw.compile_grammar('start: "a" | "(" start ")"', VOCABULARY).to_table()
    mw.compile_regex("a+", VOCABULARY)


def load_tables() -> None:
    """Make all tables that files, devices and matchers are tried with, before workers are forked."""
    for number in range(len(_TABLES)):
        _saved(number)
        _table(number)


@cache
def _table(number: int) -> Any:
    return _TABLES[number]()


def _forge(header: dict[str, Any], arrays: dict[str, np.ndarray], rng: Random) -> None:
    """Change a header or an array of a table in place."""
    names = [name for name, array in arrays.items() if array.size]
    if rng.random() < 0.15:
        field = rng.choice([name for name in header if name != "version"])
        header[field] = rng.choice((None, -1, 0, 1, 2**31, 2**63, "", [], 1.5, True, header.get(field)))
        return
    name = rng.choice(names)
    array = arrays[name] = arrays[name].copy()
    flat, kind = array.reshape(-1), array.dtype.kind
    if rng.random() < 0.1:
        arrays[name] = rng.choice((array[:-1], np.concatenate([array, array[-1:]]), array[:0], array[::-1].copy()))
        return
    for _ in range(rng.choice((1, 1, 2, 9))):
        most = 1 if kind == "b" else int(np.iinfo(array.dtype).max)
        least = 0 if kind == "b" else int(np.iinfo(array.dtype).min)
        near = int(flat.max()) + 2
        value = rng.choice((most, least, rng.randint(0, max(0, min(most, 2 * near))), int(rng.choice(flat.tolist()))))
        flat[rng.randrange(flat.size)] = value


def forged(source: int, rng: Random, steps: Steps) -> mw.TransitionTable:
    """Return the table of a file that was changed, with a fitting checksum."""
    header, arrays = _saved(source % len(_TABLES))
    header, arrays = dict(header), dict(arrays)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        _forge(header, arrays, rng)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "table"
        table_file.write(path, header, arrays)
        with steps("loading"):
            return mw.TransitionTable.load(path)


def check_table_file(source: int, seed: int, steps: Steps) -> None:
    """Load a table whose file was changed, with a fitting checksum, and use it."""
    rng = Random(seed)
    table = forged(source, rng, steps)
    with steps("asking for distances"):
        assert table.distance.size == table.num_states
        assert table.distances if table.is_nested else table.farthest.size
    with steps("walking"):
        _use(table, rng)


def _use(table: Any, rng: Random) -> None:
    """Write texts with matchers and on arrays, which must agree; see `numpy_ops`."""
    if table.vocab_size > 1 << 20:
        return
    matcher, state = mw.Matcher(table), numpy_ops.start(table, 1)
    for _ in range(12):
        mask = matcher.mask()
        masks = numpy_ops.bitmask(table, state)
        if not np.array_equal(mask, np.asarray(masks)[0]):
            raise DifferenceError("a matcher and numpy_ops have other masks")
        if table.is_nested:
            nested_masks.compose_nested(table, state, np.array([rng.randrange(9)]))
        numpy_ops.bitmask(table, state, np.array([rng.randrange(20)]))
        allowed = [token for token in _allowed(mask) if token < table.vocab_size]
        if not allowed:
            return
        token = rng.choice(allowed) if rng.random() < 0.9 else rng.randrange(table.vocab_size)
        took = matcher.advance(token)
        if took != (token in allowed):
            raise DifferenceError(f"token {token} was taken: {took}, the mask says otherwise")
        if not took or matcher.is_finished:
            return
        state = numpy_ops.advance(table, state, np.array([token]))


def check_device(source: int, seed: int, steps: Steps) -> None:
    """Load a table whose file was changed, or a sound one, and use it with torch and JAX."""
    rng = Random(seed)
    table = _table(source % len(_TABLES)).to_table() if seed % 4 == 0 else forged(source, rng, steps)
    if table.vocab_size <= 1 << 16:
        check_devices(table, rng, seed, steps)


def _lazily(source: Any) -> Callable[[], Any]:
    return partial(mw.compile_json_schema, source, VOCABULARY, lazy=True, budget=BUDGET)


def check_in_threads(source: Any, seed: int, steps: Steps) -> None:
    with contextlib.suppress(mw.errors.BudgetError):  # whose moment depends on who comes first
        check_threads(_lazily(source), seed, steps)


def check_under_signals(source: Any, seed: int, steps: Steps) -> None:
    check_signals(_lazily(source), seed, steps)


_ODD_TOKENS = (-1, -(2**31), 2**31, 2**63, 10**30, None, "1", 1.0, True, b"a", np.int64(5), np.uint64(2**63))


def check_matcher(source: int, seed: int, steps: Steps) -> None:
    """Call a matcher with whatever comes, and compare it with a new one that reads only the tokens that were taken."""
    rng = Random(seed)
    table = _table(source % len(_TABLES))
    budget = rng.choice((None, None, 3, 20, 2**31, 2**63))
    with steps("calling"):
        matcher, taken = mw.Matcher(table, VOCABULARY, max_tokens=budget), []
        for _ in range(60):
            taken = _call(matcher, taken, rng)
        again = mw.Matcher(table, VOCABULARY, max_tokens=budget)
        if not again.accept_tokens(taken):
            raise DifferenceError(f"a new matcher refuses {taken}")
        if not np.array_equal(again.mask(), matcher.mask()) or again.is_finished != matcher.is_finished:
            raise DifferenceError(f"a new matcher has another mask after {taken}")


def _call(matcher: mw.Matcher, taken: list[int], rng: Random) -> list[int]:
    """Call one method, and return the tokens that the matcher has taken then."""
    token: Any = rng.choice(_ODD_TOKENS) if rng.random() < 0.2 else rng.randrange(VOCABULARY.size)
    call = rng.randrange(10)
    try:
        if call < 4:
            allowed = _allowed(matcher.mask())
            token = rng.choice(allowed) if allowed and rng.random() < 0.8 else token
            return [*taken, int(token)] if matcher.advance(token) else taken
        if call == 4:
            back: Any = rng.choice((0, 1, 2, len(taken), -1, 10**30, None))
            matcher.rollback(back)
            return taken[: len(taken) - back]
        if call == 5:
            some = [token, *rng.choices(range(VOCABULARY.size), k=3)]
            matcher.validate_tokens(some), matcher.accepts(some)
        elif call == 6:
            matcher.forced_text(), matcher.forced_tokens()
        elif call == 7:
            width = rng.choice((0, 1, -(-VOCABULARY.size // 32), 100))
            bits = np.zeros((2, width), rng.choice((np.int32, np.uint32, np.int64)))
            matcher.fill_bitmask(bits, rng.choice((0, 1, 2, -1, 10**30)))
        elif call == 8:
            copied = matcher.copy()
            copied.advance(token)
        else:
            matcher.remaining, matcher.is_accepting, matcher.num_tokens, repr(matcher)
    except Exception as error:
        if not is_refusal(error):
            raise
    return taken


_CHECKS: dict[str, Callable[[Any, int, Steps], None]] = {
    "schema": check_schema, "regex": check_regex, "grammar": check_grammar, "tag": check_tag,
    "choices": check_choices, "table_file": check_table_file, "matcher": check_matcher, "http": check_http,
    "device": check_device, "threads": check_in_threads, "signals": check_under_signals,
}  # fmt: skip


def check_of(case: Case) -> Callable[[Steps], None]:
    """Return what tries a case."""
    source = ATTACKS[case.kind][case.attack]() if case.attack is not None else case.source
    return partial(_CHECKS[case.kind], source, case.seed)
