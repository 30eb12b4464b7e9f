"""Every JAX operation becomes code for a CPU, a TPU and a GPU, on each kind of table, without a number of 64 bits.

`jax.export` traces an operation once and lowers it for all three platforms; no device is needed, and nothing runs.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import maskwright as mw
from maskwright.table.live_sids import LiveSids

jax = pytest.importorskip("jax")

from jax import export  # noqa: E402
from jax import numpy as jnp  # noqa: E402

from maskwright.runtime import jax_ops as ops  # noqa: E402

PLATFORMS = ("cpu", "tpu", "cuda")
BATCH, BEAMS, SIZE, LENGTH = 2, 3, 64, 4  # of semantic IDs: codes of a level, and levels
ROWS = BATCH * BEAMS
SCHEMA = {
    "$defs": {
        "node": {
            "type": "object",
            "properties": {"a": {"type": "string", "maxLength": 3}, "b": {"$ref": "#/$defs/node"}},
            "additionalProperties": False,
        }
    },
    "$ref": "#/$defs/node",
}
CAPACITY = mw.Capacity(
    states=4000, edges=20_000, bases=300, base_targets=2000, masks=64, lists=300, classes=6000, exits=1000, sites=200,
    site_entries=4000, actions=500, pushes=1000, row_width=300, class_width=300, exit_width=64, site_width=160,
    symbols=512, pops=8,
)  # fmt: skip


# ---------------------------------------------------------------------------------------- tables


@functools.cache
def vocabulary() -> mw.Vocabulary:
    return mw.Vocabulary.from_bytes([b"", *(bytes([b]) for b in range(256)), b'{"', b'": '], eos=0)


def sids() -> np.ndarray:
    return np.random.default_rng(0).integers(0, SIZE, (500, LENGTH))


def arena() -> Any:
    made = mw.Arena(vocabulary(), CAPACITY, distances=True)
    handle = made.add(mw.compile_json_schema(SCHEMA, vocabulary(), depth=3))
    return ops.with_start_states(ops.to_device(made, distances=True), [handle] * BATCH)


def filtered() -> Any:
    matrix = mw.sort_sids(sids(), SIZE)
    return ops.with_filters(ops.to_device(matrix), [matrix.filter(np.arange(len(sids())) % 2 == 0)])


MAKE: dict[str, Callable[[], Any]] = {
    "trie": lambda: ops.to_device(mw.compile_sids(sids(), SIZE), distances=True),
    "matrix": lambda: ops.to_device(mw.sort_sids(sids(), SIZE)),
    "filtered": filtered,
    "live": lambda: ops.to_device(LiveSids(mw.sort_sids(sids(), SIZE), capacity=64).publish()),
    "graph": lambda: ops.to_device(mw.compile_regex("[0-9]{4}-[0-9]{2}|[a-z]+", vocabulary()), distances=True),
    "nested": lambda: ops.to_device(mw.compile_json_schema(SCHEMA, vocabulary()), distances=True, on_demand=False),
    "arena": arena,
}


@functools.cache
def table(kind: str) -> Any:
    """Return the shapes of a table of a kind."""
    return shapes_of(MAKE[kind]())


def shapes_of(tree: Any) -> Any:
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), tree)


def state_of(dev: Any, rows: int = ROWS) -> Any:
    return shapes_of(jax.eval_shape(lambda dev: ops.start(dev, rows), dev))


def logits_of(dev: Any, kind: Any = jnp.float32) -> Any:
    return jax.ShapeDtypeStruct((ROWS, dev.vocab_size), kind)


def numbers(*shape: int, kind: Any = jnp.int32) -> Any:
    return jax.ShapeDtypeStruct(shape, kind)


# ---------------------------------------------------------------------------------------- operations

Case = Callable[[Any], tuple[Callable[..., Any], tuple[Any, ...]]]
"""For a table: a function of a table and of arrays, and the shapes of those arrays."""


def with_budgets(operation: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of what an operation takes and of `remaining`, which does both, with it and without."""
    return lambda *given: (operation(*given[:-1]), operation(*given))


def case_of_select(dev: Any) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    def both(dev: Any, logits: Any, state: Any, scores: Any) -> Any:
        return [tuple(ops.select(dev, logits, state, scores, BEAMS, 1, renormalize)) for renormalize in (False, True)]

    return both, (logits_of(dev), state_of(dev), numbers(BATCH, BEAMS, kind=jnp.float32))


CASES: dict[str, Case] = {
    "start": lambda dev: (lambda dev: ops.start(dev, ROWS), ()),
    "first_tokens": lambda dev: (lambda dev: ops.first_tokens(dev, None, ROWS, 0), ()),
    "accepting": lambda dev: (ops.accepting, (state_of(dev),)),
    "distance": lambda dev: (ops.distance, (state_of(dev),)),
    "advance": lambda dev: (ops.advance, (state_of(dev), numbers(ROWS))),
    "contains": lambda dev: (ops.contains, (numbers(ROWS, 2),)),
    "bitmask": lambda dev: (with_budgets(ops.bitmask), (state_of(dev), numbers(ROWS))),
    "mask_logits": lambda dev: (with_budgets(ops.mask_logits), (logits_of(dev), state_of(dev), numbers(ROWS))),
    "mask_logits_": lambda dev: (ops.mask_logits_, (logits_of(dev, jnp.bfloat16), state_of(dev))),
    "log_mass": lambda dev: (ops.log_mass, (logits_of(dev), state_of(dev))),
    "log_probs": lambda dev: (
        jax.grad(lambda dev, logits, tokens: ops.log_probs(dev, logits, tokens).sum(), argnums=1),
        (jax.ShapeDtypeStruct((BATCH, BEAMS, dev.vocab_size), jnp.float32), numbers(BATCH, BEAMS)),
    ),
    "allowed_tokens": lambda dev: (
        with_budgets(lambda dev, state, *room: ops.allowed_tokens(dev, state, 5, *room)),
        (state_of(dev), numbers(ROWS)),
    ),
    "candidates": lambda dev: (
        lambda dev, logits, state: tuple(ops.candidates(dev, logits, state, BEAMS)),
        (logits_of(dev), state_of(dev)),
    ),
    "select": case_of_select,
    "end_scores": lambda dev: (
        lambda dev, *given: [ops.end_scores(dev, *given, renormalize) for renormalize in (False, True)],
        (logits_of(dev), state_of(dev)),
    ),
}

ON_THE_HOST = {"to_device", "with_start_states", "with_filters", "with_snapshot"}
"""What takes what Python holds, and returns what the others take."""

NOTHING = {"draw"}
"""What is here for PyTorch alone."""

NOT_FOR = {
    ("end_scores", "trie"), ("end_scores", "matrix"),  # there is no EOS
    ("allowed_tokens", "graph"), ("allowed_tokens", "nested"), ("allowed_tokens", "arena"),  # wider than is known
    # filters and live sets are read as sorted matrices are
    *itertools.product(CASES.keys() - {"bitmask", "advance", "select"}, ("filtered", "live")),
}  # fmt: skip

PAIRS = [(name, kind) for kind in MAKE for name in CASES if (name, kind) not in NOT_FOR]


def test_every_operation_on_tables_is_exported():
    found = set(ops.__all__) - {"arrays"}  # what decoders are written in, which takes no table
    assert found == CASES.keys() | ON_THE_HOST | NOTHING
    assert all(getattr(ops, name)() is None for name in NOTHING)


@pytest.mark.parametrize(("name", "kind"), PAIRS, ids=lambda each: each)
def test_an_operation_is_code_for_every_platform(name, kind):
    dev = table(kind)
    function, arrays = CASES[name](dev)
    made = export.export(jax.jit(function), platforms=PLATFORMS)(dev, *arrays)
    assert made.platforms == PLATFORMS
    assert wide_types(made.mlir_module()) == set()


def wide_types(module: str) -> set[str]:
    """Return the types of 64 bits that arrays of a module have; a window's padding is no array."""
    module = re.sub(r"padding = dense<[^>]*> : tensor<[^>]*>", "", module)
    return set(re.findall(r"tensor<(?:[\d?]+x)*(i64|ui64|f64|complex<f64>)>", module))


def test_numbers_of_64_bits_would_be_found():
    with jax.enable_x64(True):
        made = export.export(jax.jit(lambda x: x.astype(jnp.int64).sum()))(numbers(2, 3))
    assert wide_types(made.mlir_module()) == {"i64"}
