"""One engine, asked about one schema after another."""

from __future__ import annotations

import gc
import itertools
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

from ... import peers
from .cases import Record
from .engines import ENGINES, OURS

COLLECTED = 32  # schemas between garbage collections: what comes after one finds caches and free lists empty
WARM: Any = {"type": "object", "properties": {"a": {"type": ["string", "number"]}, "b": {"type": "array"}}}


class TooLongError(Exception):
    """A schema took longer than it may."""


class Bench:
    """One engine, made and warm: compiles schemas and writes their instances, token by token."""

    def __init__(self, name: str, tokenizer: peers.Tokenizer) -> None:
        begin = time.perf_counter()
        self.name = name
        self.eos, self.spell = tokenizer.eos, tokenizer.spell
        self.engine: Any = ENGINES[name](tokenizer)
        self.engine.session(self.engine.compile(WARM)).mask()
        self.setup_s = time.perf_counter() - begin  # paid once for a vocabulary
        self.shared = self.engine.compile(True).to_table().nbytes if name == OURS else 0

    def ask(self, case: Record, texts: list[list[int]]) -> Record:
        """Return what the engine does with a schema; texts: the tokens of its instances."""
        record: Record = {"steps_ns": []}
        begin = time.perf_counter()
        try:
            compiled = self.engine.compile(case["schema"])
            self.engine.session(compiled).mask()
        except TooLongError:
            raise
        except Exception as error:  # each engine has errors of its own; all mean that it refuses
            return {**record, "outcome": "refused", "error": f"{type(error).__name__}: {error}"[:300]}
        record["first_s"] = time.perf_counter() - begin
        wrong: dict[str, list[int]] = {"wrong accept": [], "wrong refusal": []}
        for at, (test, tokens) in enumerate(zip(case["tests"], texts, strict=True)):
            accepted = written(self.engine.session(compiled), tokens, self.eos, record["steps_ns"])
            if accepted != test["valid"]:
                wrong["wrong accept" if accepted else "wrong refusal"].append(at)
        record["outcome"] = next((kind for kind, tests in wrong.items() if tests), "pass")
        if record["outcome"] != "pass":
            record["tests"] = wrong[record["outcome"]]
        return record

    def whole(self, case: Record) -> Record:
        """Return what the whole table takes, which none of the above needs; it may be over its budget."""
        begin = time.perf_counter()
        try:
            table = self.engine.compile(case["schema"]).to_table()
            return {"whole_s": time.perf_counter() - begin, "bytes": table.nbytes - self.shared}
        except TooLongError:
            raise
        except Exception as error:
            return {"whole": f"{type(error).__name__}: {error}"[:300]}

    def reordered(self, case: Record, tests: list[int]) -> Record:
        """Return which of these tests, valid but refused, is also refused with members in the schema's order."""
        matcher = self.engine.mw.Matcher(self.engine.compile(case["schema"]))
        declared = list(dict.fromkeys(_declared(case["schema"])))

        def is_taken(value: Any) -> bool:
            matcher.reset()
            return any(matcher.is_accepting for _ in in_order(matcher, self.spell, value, declared))

        return {"refused in order": [at for at in tests if not is_taken(case["tests"][at]["data"])]}


def _declared(schema: Any) -> Iterator[tuple[str, ...]]:
    """Yield the names that each "properties" of a schema declares."""
    if isinstance(schema, dict):
        if isinstance(schema.get("properties"), dict):
            yield tuple(schema["properties"])
        for inner in schema.values():
            yield from _declared(inner)
    elif isinstance(schema, list):
        for inner in schema:
            yield from _declared(inner)


def in_order(
    matcher: Any, spell: Callable[[str], list[int]], value: Any, declared: list[tuple[str, ...]]
) -> Iterator[None]:
    """Write a value in the orders of its schema, and yield behind it whenever the matcher takes all of it.

    Which "properties" describe an object is not asked: its members come as each of them has these, then as the others
    do, then those that none declares.
    """

    def put(text: str) -> Iterator[None]:
        taken = 0
        for token in spell(text):
            if not matcher.advance(token):
                break
            taken += 1
        else:
            yield
        if taken:
            matcher.rollback(taken)

    def parts(left: list[tuple[str, Any]], end: str) -> Iterator[None]:
        if not left:
            yield from put(end)
            return
        before, inner = left[0]
        for _ in put(before):
            for _ in in_order(matcher, spell, inner, declared):
                yield from parts(left[1:], end)

    if isinstance(value, dict):
        orders = {tuple(value): 0}  # each with how many of the names it was made from are here
        for names in declared:
            place = {name: at for at, name in enumerate(dict.fromkeys(itertools.chain(names, *declared)))}
            orders[tuple(sorted(value, key=lambda key: place.get(key, len(place))))] = len(value.keys() & names)
        for order in sorted(orders, key=lambda order: -orders[order]):
            members = [
                (", " * (at > 0) + json.dumps(key, ensure_ascii=False) + ": ", value[key])
                for at, key in enumerate(order)
            ]
            for _ in put("{"):
                yield from parts(members, "}")
    elif isinstance(value, list):
        for _ in put("["):
            yield from parts([(", " * (at > 0), item) for at, item in enumerate(value)], "]")
    else:
        yield from put(json.dumps(value, ensure_ascii=False))


def written(session: peers.Session, tokens: list[int], eos: int, took: list[int]) -> bool:
    """Return whether a new session takes all tokens and then EOS; append the nanoseconds of each mask and commit."""
    clock, mask, commit = time.perf_counter_ns, session.mask, session.commit
    for token in tokens:
        begin = clock()
        mask()
        try:
            taken = commit(token)
        except ValueError:
            taken = False
        took.append(clock() - begin)
        if taken is False:
            return False
    mask()
    return not session.fault() and peers.allows(session.bits(), eos)


def settle() -> None:
    """Keep the garbage collector out of what is timed, as timeit does, and make it quick between schemas."""
    gc.collect()
    gc.freeze()
    gc.disable()
