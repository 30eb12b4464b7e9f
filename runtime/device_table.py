"""A table as an accelerator holds it, and the checks every backend shares."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..errors import TableError, VocabularyMismatchError
from ..table import Level, TransitionTable


class State(NamedTuple):
    """Where each sequence of a batch stands in its table: a tuple of integer arrays with the batch first."""

    node: Any  # (B,)


class Candidates(NamedTuple):
    """The best allowed continuations of each row, best first; unused slots score -inf."""

    scores: Any  # (B, width) log-probabilities under the full softmax
    tokens: Any  # (B, width)
    states: State  # (B, width)


class Selection(NamedTuple):
    """The beams that one step of beam search keeps; unused slots score -inf.

    Best first, except where nothing branches: then each beam continues in its place, `parents` is None, and a
    model's cache can stay as it is.
    """

    scores: Any  # (B, M) totals
    parents: Any  # (B, M) which beam each continues, 0 .. m - 1; None for itself
    tokens: Any  # (B, M); 0 in unused slots, so that a model can always be fed
    state: State  # (B * M,); the dead state in unused slots


@dataclass(frozen=True, eq=False)
class DeviceTable:
    """A `TransitionTable` in device arrays, padded so that gathers of static width stay inside.

    States without a base point to one more base, whose mask is one more row of `masks` that is all zeros. Masks are
    bytes here, K of them a row, with 8 K a multiple of 64. Of a trie, `rank` counts the bits set before each byte.
    """

    row_start: Any  # (S + 1,)
    edge_token: Any  # (E + T + 2 + width,)
    edge_target: Any  # (max(E, 1),)
    accepting: Any  # (S,)
    base_row: Any  # (H + 1,)
    masks: Any  # (U + 1, K) uint8: bit i of byte k is token 8 * k + i
    rank: Any  # (U + 1, K); (1, 1) of a graph
    base_mask: Any  # (R + 1,)
    base_classes: Any  # (R + 1,)
    base_start: Any  # (R + 1,)
    base_target: Any  # (X + 1,)
    class_start: Any  # (lists + 2,): one more list, which is empty, for the base that allows nothing
    class_token: Any  # (Z + class_width + 1,)
    class_id: Any  # (Z + class_width + 1,)
    distance: Any  # (num_states,), or (0,) if it was not put
    vocab_size: int
    num_rows: int
    num_edges: int
    num_states: int
    eos: int | None
    fixed_length: int | None
    min_length: int
    max_length: int | None
    levels: tuple[Level, ...]
    sparse_width: int  # most edges of a row without a mask; of a graph, of any row
    class_width: int  # most tokens in a class list
    has_masks: bool
    is_trie: bool
    start_accepting: bool
    host: TransitionTable | None  # the table itself, for operations that run on the host

    @property
    def dead(self) -> int:
        """The state that allows nothing."""
        return self.num_states - 1

    @property
    def after_eos(self) -> int:
        """The final state that EOS leads to from an accepting row."""
        return self.num_states - 2

    def level(self, depth: int) -> Level:
        """Return what is static of states at a depth; at and beyond the longest sequence all are final."""
        if not self.is_trie:
            return Level(self.vocab_size, True, True, False)
        return self.levels[depth] if depth < len(self.levels) else Level(1, False, False, True)


ARRAYS = (
    "row_start", "edge_token", "edge_target", "accepting", "base_row", "masks", "rank", "base_mask", "base_classes",
    "base_start", "base_target", "class_start", "class_token", "class_id", "distance",
)  # fmt: skip
STATICS = (
    "vocab_size", "num_rows", "num_edges", "num_states", "eos", "fixed_length", "min_length", "max_length",
    "levels", "sparse_width", "class_width", "has_masks", "is_trie", "start_accepting", "host",
)  # fmt: skip


Made = TypeVar("Made", bound=DeviceTable)


def device_table(
    table: TransitionTable,
    convert: Callable[[NDArray[Any]], Any],
    kind: type[Made],
    budgets: bool,
    host: TransitionTable | None = None,
    **more: NDArray[Any],
) -> Made:
    """Lay a table out for gathers, as a `kind` that may have `more` arrays; each array goes through `convert`.

    budgets: with the distances that `remaining` needs. host: the table, where operations may run on the host.
    """
    check_table(table)
    size = table.vocab_size
    words = table.masks.astype("<u4").view(np.uint8)
    masks = np.zeros((table.masks.shape[0] + 1, 8 * -(-size // 64)), np.uint8)
    masks[:-1, : words.shape[1]] = words[:, : masks.shape[1]]
    rank = np.zeros((1, 1), np.int32)
    if table.is_trie:
        bits = np.bitwise_count(masks).astype(np.int32)
        rank = np.cumsum(bits, axis=1, dtype=np.int32) - bits
    none = table.base_mask.size
    base_row = np.append(np.where(table.base_row < 0, none, table.base_row), none).astype(np.int32)
    levels = table.levels
    edges = np.diff(table.row_start)
    if table.is_trie:
        sparse_width = max((level.width for level in levels if not level.dense), default=1)
        width = max(sparse_width, *(level.width for level in levels))
    else:
        width = sparse_width = max(1, int(edges.max()))
    class_width = max(1, int(np.diff(table.class_start).max(initial=0)))
    end = np.full(width, size, table.edge_token.dtype)
    no_class = np.zeros(class_width + 1, np.int32)
    arrays = {
        "row_start": table.row_start,
        "edge_token": np.concatenate([table.edge_token, end]),
        "edge_target": table.edge_target if table.num_edges else np.zeros(1, table.edge_target.dtype),
        "accepting": table.accepting,
        "base_row": base_row,
        "masks": masks,
        "rank": rank.astype(np.uint16) if size < 2**16 else rank,
        "base_mask": np.append(table.base_mask, len(table.masks)).astype(np.int32),
        "base_classes": np.append(table.base_classes, table.class_start.size - 1).astype(np.int32),
        "base_start": table.base_start,
        "base_target": np.append(table.base_target, 0).astype(np.int32),
        "class_start": np.append(table.class_start, table.class_start[-1:]).astype(np.int32),
        "class_token": np.concatenate([table.class_token, np.full(no_class.size, size, table.class_token.dtype)]),
        "class_id": np.concatenate([table.class_id, no_class]),
        "distance": table.distance if budgets else np.zeros(0, np.int32),
        **more,
    }
    return kind(
        **{name: convert(array) for name, array in arrays.items()},
        vocab_size=size,
        num_rows=table.num_rows,
        num_edges=table.num_edges,
        num_states=table.num_states,
        eos=table.eos,
        fixed_length=table.fixed_length,
        min_length=table.min_length,
        max_length=table.max_length,
        levels=levels,
        sparse_width=sparse_width,
        class_width=class_width,
        has_masks=bool(table.masks.shape[0]),
        is_trie=table.is_trie,
        start_accepting=bool(table.accepting[0]),
        host=host,
    )


def map_tree(function: Callable[[Any], Any], tree: Any) -> Any:
    """Return a tree of dicts, lists and tuples, named ones too, with `function` applied to its leaves but None."""
    if tree is None:
        return None
    if isinstance(tree, dict):
        return {key: map_tree(function, value) for key, value in tree.items()}
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*(map_tree(function, value) for value in tree))
    if isinstance(tree, (list, tuple)):
        return type(tree)(map_tree(function, value) for value in tree)
    return function(tree)


def check_table(table: TransitionTable) -> None:
    """Raise TypeError unless this is a table."""
    if not isinstance(table, TransitionTable):
        raise TypeError(f"put takes a TransitionTable, not {type(table).__name__}")


def unbranched(table: TransitionTable, depth: int) -> bool:
    """Return whether it is known that every state at a depth has at most one continuation, EOS aside."""
    return table.is_trie and (depth >= len(table.levels) or table.levels[depth].width == 1)


def check_remaining(rows: int, shape: tuple[int, ...], integers: bool, dtype: Any, budgets: bool) -> None:
    """Raise unless there is a whole number of tokens for each of `rows` rows, and the table was put with distances.

    Raises ValueError, TypeError.
    """
    if not integers:
        raise TypeError(f"remaining must be integers, not {dtype}")
    if tuple(shape) != (rows,):
        raise ValueError(
            f"remaining has shape {tuple(shape)}, there are {rows} rows: one number of tokens a row is needed"
        )
    if not budgets:
        raise ValueError("remaining needs the table's distances on the device: put(table, budgets=True)")


def check_logits(vocab_size: int, shape: tuple[int, ...]) -> None:
    """Raise VocabularyMismatchError unless logits (B, V') cover the table's vocabulary; padding columns are fine."""
    if len(shape) != 2:
        raise VocabularyMismatchError(f"logits must have shape (B, V), not {tuple(shape)}")
    if shape[1] < vocab_size:
        raise VocabularyMismatchError(
            f"logits have {shape[1]} columns, the table's vocabulary has {vocab_size}: "
            "it was compiled for another model"
        )


def check_rows(rows: int, shape: tuple[int, ...]) -> None:
    """Raise ValueError unless a state has one entry for each of `rows` rows of logits."""
    if tuple(shape) != (rows,):
        raise ValueError(f"the state has shape {tuple(shape)}, the logits have {rows} rows: one state a row is needed")


def check_tokens(rows: int, shape: tuple[int, ...], integers: bool, dtype: Any) -> None:
    """Raise unless there is one integer token for each of `rows` states: ValueError, TypeError."""
    if not integers:
        raise TypeError(f"tokens must be integers, not {dtype}")
    if tuple(shape) != (rows,):
        raise ValueError(f"tokens have shape {tuple(shape)}, there are {rows} states: one token a state is needed")


def check_floating(floating: bool, dtype: Any) -> None:
    """Raise TypeError unless logits are floating-point numbers."""
    if not floating:
        raise TypeError(f"logits must be floating-point numbers, not {dtype}: integers have no -inf")


def check_sids(shape: tuple[int, ...]) -> None:
    """Raise ValueError unless sids have shape (N, L)."""
    if len(shape) != 2:
        raise ValueError(f"sids must have shape (N, L), not {tuple(shape)}")


def check_put(dev: Any) -> None:
    """Raise TypeError unless a table has been through `put`."""
    if not isinstance(dev, DeviceTable):
        raise TypeError(f"a table from put is needed, not a {type(dev).__name__}: pass it through put once, first")


def refuse_wide(table: TransitionTable) -> None:
    """Raise TableError where indices of 64 bits would be needed."""
    check_table(table)
    if table.row_start.dtype.itemsize > 4:
        raise TableError(
            "this table has more than 2^31 entries, so JAX needs 64-bit indices for it: "
            "set jax.config.update('jax_enable_x64', True)"
        )
