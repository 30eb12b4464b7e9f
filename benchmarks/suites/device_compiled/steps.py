"""The steps that are compiled: operations on tables, given as functions of shapes.

Tables are compiled and laid out as users' tables are; of their arrays only shapes and types are kept, so that tables of
millions of items need no device.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import maskwright as mw
from maskwright.runtime import jax_ops
from maskwright.runtime.decode import beam_search

from ...peers.tokenizers import tekken

BATCH, BEAMS, SID_VOCABULARY, LENGTH = 2, 70, 2048, 8
"""Inputs, beams of each, codes of a level and levels of semantic IDs."""

ROWS, MANY_ROWS = 8, 64
"""Rows of a batch on tables of text; as many as a server may have at once."""

PATTERN = r"[A-Za-z0-9._+-]{1,32}@[a-z0-9-]{1,24}(\.[a-z]{2,8}){1,3}"
SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 40},
        "days": {"type": "integer", "minimum": 1, "maximum": 14},
        "unit": {"enum": ["C", "F"]},
        "tags": {"type": "array", "items": {"type": "string"}, "maxItems": 4},
        "near": {"$ref": "#"},
    },
    "required": ["city", "unit"],
    "additionalProperties": False,
}


@dataclass(frozen=True)
class Step:
    """A function of `table` and of `shapes(table)`, and the name of the table.

    The function's first parameter must be called `table`: so its arrays are told apart in the compiled code.
    """

    name: str
    table: str
    function: Callable[..., Any]
    shapes: Callable[[Any], tuple[Any, ...]]

    def arguments(self, platform: str) -> tuple[Any, ...]:
        """Return the shapes of all arguments, the table's first, which is laid out for a platform."""
        table = TABLES[self.table](platform)
        return (table, *self.shapes(table))


# ---------------------------------------------------------------------------------------- tables


def shapes_of(tree: Any) -> Any:
    """Return a tree with the shape and type of each array in its place."""
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), tree)


@functools.cache
def sid_table(count: int, platform: str) -> Any:
    """Return the shapes of a table of so many random semantic IDs."""
    sids = np.random.default_rng(0).integers(0, SID_VOCABULARY, (count, LENGTH), dtype=np.uint16)
    return shapes_of(jax_ops.to_device(mw.compile_sids(sids, SID_VOCABULARY), platform=platform))


@functools.cache
def vocabulary() -> mw.Vocabulary:
    """Return Tekken, 131,072 tokens."""
    tokenizer = tekken()
    return mw.Vocabulary.from_bytes(tokenizer.tokens, eos=tokenizer.eos)


@functools.cache
def graph_table(platform: str) -> Any:
    """Return the shapes of a graph: the table of a regular expression."""
    return shapes_of(jax_ops.to_device(mw.compile_regex(PATTERN, vocabulary()), platform=platform))


@functools.cache
def nested_table(platform: str) -> Any:
    """Return the shapes of a nested table: that of a JSON schema that refers to itself."""
    return shapes_of(
        jax_ops.to_device(mw.compile_json_schema(SCHEMA, vocabulary()), on_demand=False, platform=platform)
    )


@functools.cache
def arena_table(platform: str) -> Any:
    """Return the shapes of an arena of the usual capacity, in which each row of a batch starts in a table."""
    arena = mw.Arena(vocabulary())
    handle = arena.add(mw.compile_json_schema(SCHEMA, vocabulary()))
    return shapes_of(jax_ops.with_start_states(jax_ops.to_device(arena, platform=platform), [handle] * ROWS))


SID_COUNTS = {"10^5": 10**5, "10^6": 10**6, "10^7": 10**7}
TABLES: dict[str, Callable[[str], Any]] = {
    **{f"SID {name}": functools.partial(sid_table, count) for name, count in SID_COUNTS.items()},
    "graph": graph_table,
    "nested": nested_table,
    "arena": arena_table,
}
"""Tables by name, given the platform; each is made once."""


# ---------------------------------------------------------------------------------------- steps


def start_of(table: Any, rows: int) -> Any:
    """Return the shapes of a state."""
    return shapes_of(jax.eval_shape(lambda table: jax_ops.start(table, rows), table))


def _select(level: int) -> Step:
    rows = BATCH * (1 if level == 0 else BEAMS)

    def select(table: Any, logits: Any, state: Any, scores: Any) -> Any:
        return jax_ops.select(table, logits, state, scores, BEAMS, level)

    def shapes(table: Any) -> tuple[Any, ...]:
        logits = jax.ShapeDtypeStruct((rows, SID_VOCABULARY), jnp.float32)
        return logits, start_of(table, rows), jax.ShapeDtypeStruct((BATCH, rows // BATCH), jnp.float32)

    return Step(f"select, level {level}", "", select, shapes)


def _search() -> Step:
    def search(table: Any, logits: Sequence[Any]) -> Any:
        return tuple(
            beam_search(
                lambda tokens, cache, t: (logits[t], cache),
                None,
                table,
                ops=jax_ops,
                batch=BATCH,
                beams=BEAMS,
                max_tokens=LENGTH,
            )
        )

    def shapes(table: Any) -> tuple[Any, ...]:
        return ([jax.ShapeDtypeStruct((BATCH * BEAMS, SID_VOCABULARY), jnp.float32)] * LENGTH,)

    return Step("search", "", search, shapes)


def _of_text(rows: int = ROWS) -> list[Step]:
    def logits(table: Any) -> Any:
        return jax.ShapeDtypeStruct((rows, table.vocab_size), jnp.float32)

    def tokens(table: Any) -> Any:
        return jax.ShapeDtypeStruct((rows,), jnp.int32)

    def bitmask(table: Any, state: Any) -> Any:
        return jax_ops.bitmask(table, state)

    def mask_logits(table: Any, logits: Any, state: Any) -> Any:
        return jax_ops.mask_logits(table, logits, state)

    def advance(table: Any, state: Any, tokens: Any) -> Any:
        return jax_ops.advance(table, state, tokens)

    steps = [
        Step("bitmask", "", bitmask, lambda table: (start_of(table, rows),)),
        Step("mask_logits", "", mask_logits, lambda table: (logits(table), start_of(table, rows))),
        Step("advance", "", advance, lambda table: (start_of(table, rows), tokens(table))),
    ]
    return steps if rows == ROWS else [replace(step, name=f"{step.name}, {rows} rows") for step in steps]


def _on(table: str, steps: Sequence[Step]) -> list[Step]:
    return [Step(f"{table}, {step.name}", table, step.function, step.shapes) for step in steps]


def _steps(table: str) -> list[Step]:
    if table.startswith("SID"):
        return [*map(_select, range(LENGTH)), _search()]
    return _of_text() + (_of_text(MANY_ROWS) if table == "nested" else [])


STEPS = {step.name: step for table in TABLES for step in _on(table, _steps(table))}
"""Steps by name, a table's one after the other."""
