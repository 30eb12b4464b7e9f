"""`TransitionTable`: a compiled constraint as flat arrays, and its file."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import ArrayLike, NDArray
from safetensors import safe_open
from safetensors.numpy import save_file

from .errors import TableError, TableFileError, VocabularyMismatchError

FORMAT_VERSION = 2
"""Version of the file format; a reader refuses any other."""

MOST_TOKENS = 2**31 - 3
"""The largest vocabulary: tokens and two numbers more fit into 32 bits on every backend."""

NEVER = 2**31 - 1
"""The distance of a state from which no end can be reached."""

IntArray = NDArray[np.signedinteger[Any]]

_ARRAYS = (
    "row_start", "edge_token", "edge_target", "accepting", "base_row", "masks",
    "base_mask", "base_classes", "base_start", "base_target", "class_start", "class_token", "class_id",
    "level_start", "item_start", "item_row",
)  # fmt: skip
_TOGETHER = 256  # rows walked side by side in `_walk`
_BLOCK = 256  # tail entries per count of ends kept for looking up input rows


class Level(NamedTuple):
    """What is known of all states at one depth before any of them is reached."""

    width: int  # the most tokens any of them allows, EOS aside
    dense: bool  # rows at this depth have masks
    rows: bool  # some states at this depth are rows
    tails: bool  # some states at this depth are tail entries


def integer_vocabulary(vocab_size: int) -> str:
    """Return the fingerprint of a vocabulary of bare integers 0 .. vocab_size - 1."""
    return f"integers:{vocab_size}"


@dataclass(frozen=True, eq=False)
class TransitionTable:
    """A deterministic automaton over tokens, as arrays that any backend can gather from.

    There are S *rows*, each with edges of its own, and T *tail entries*: runs of tokens without branches that
    need no row. States are numbered 0 .. S - 1 for rows and S .. S + T + 1 for tail entries; 0 is the start.
    Both read the same way: state s owns the edges first(s) .. first(s + 1) of `edge_token`, where
    first(s) = row_start[min(s, S)] + max(s - S, 0).

    - Edge e < E leads to state `edge_target[e]`. An edge of a tail entry leads to the next entry.
    - A tail entry that holds `end` (= vocab_size) is a final state. The last two entries are the state after
      EOS, final as well, and the dead state, which holds vocab_size + 1 and allows nothing.
    - `accepting` rows and final tail entries may be followed by EOS, if the table has one.
    - A row whose `base_row` is not negative shares that *base*: it also allows the tokens of
      masks[base_mask[base]], except where an edge of its own says otherwise; one to the dead state takes a token
      away. Where a token of the base leads depends on its class in class list k = base_classes[base]: the `class_id`
      of its entry among class_start[k] .. class_start[k + 1] of `class_token`, or 0 if it has none. The target is
      base_target[base_start[base] + class].
    - Targets of bases are coded, so that states that are alike up to their number share one base: code c leads
      from state s to state (c >> 1) + (c & 1) * s.

    A table of sequences is a *trie*: its rows have levels, its edges lead one level down, the k-th accepting
    state stands for the input rows item_row[item_start[k] : item_start[k + 1]], and a base there only repeats the
    edges of its one row, as a mask for whole rows of logits. Any other table is a graph: it has no levels, no tail
    entries but the last two, and no input rows.

    Frozen and checked when made: raises TableError if the arrays contradict each other.
    """

    vocab_size: int
    row_start: IntArray  # (S + 1,) int32, or int64 for very large tables
    edge_token: NDArray[np.unsignedinteger[Any]]  # (E + T + 2,) smallest unsigned type that holds V + 1
    edge_target: IntArray  # (E,)
    accepting: NDArray[np.bool_]  # (S,)
    base_row: NDArray[np.int32]  # (H,), H <= S
    masks: NDArray[np.uint32]  # (U, ceil(V / 32)): bit i of word w is token 32 * w + i
    base_mask: NDArray[np.int32]  # (R,) row of masks
    base_classes: NDArray[np.int32]  # (R,) class list
    base_start: NDArray[np.int32]  # (R + 1,)
    base_target: NDArray[np.int32]  # (X,) coded targets by class
    class_start: NDArray[np.int32]  # (K + 1,)
    class_token: NDArray[np.unsignedinteger[Any]]  # (Z,) of the type of edge_token, sorted within a list
    class_id: NDArray[np.int32]  # (Z,)
    level_start: NDArray[np.int64]  # (D + 1,) rows of depth d: level_start[d] .. level_start[d + 1]; (0,) of a graph
    item_start: IntArray  # (Q + 1,)
    item_row: IntArray  # (N,)
    min_length: int = -1  # fewest tokens in a sequence; -1 to have both worked out, of a graph
    max_length: int | None = None  # most tokens in a sequence, None where there is no most
    eos: int | None = None
    vocabulary: str = ""  # fingerprint
    source: str = ""  # hash of what was compiled

    def __post_init__(self) -> None:
        for name in _ARRAYS:
            array = np.asarray(getattr(self, name))
            if array.flags.writeable or not array.flags.c_contiguous:  # whoever holds it could change it still
                array = array.copy()
                array.flags.writeable = False
            object.__setattr__(self, name, array)
        if self.vocabulary == "":
            object.__setattr__(self, "vocabulary", integer_vocabulary(self.vocab_size))
        _check(self)

    def __repr__(self) -> str:
        sequences = f"{self.num_sequences:,} sequences, " if self.is_trie else ""
        return (
            f"TransitionTable({sequences}{self.num_states:,} states, {self.nbytes:,} bytes, "
            f"vocab_size={self.vocab_size}, eos={self.eos})"
        )

    @classmethod
    def graph(cls, **fields: Any) -> TransitionTable:
        """Return the table of a graph from what its fields are, those aside that only a trie has."""
        nothing = np.empty(0, np.int32)
        return cls(level_start=np.empty(0, np.int64), item_start=np.zeros(1, np.int32), item_row=nothing, **fields)

    # -------------------------------------------------------------------------------------------- sizes

    @property
    def is_trie(self) -> bool:
        """Whether this is a set of sequences, with levels and input rows."""
        return bool(self.level_start.size)

    @property
    def num_rows(self) -> int:
        """S: states with a row of edges."""
        return int(self.row_start.size) - 1

    @property
    def num_edges(self) -> int:
        """E: edges of rows."""
        return int(self.edge_target.size)

    @property
    def num_states(self) -> int:
        """All states: rows, tail entries, the state after EOS and the dead state."""
        return self.num_rows + int(self.edge_token.size) - self.num_edges

    @property
    def after_eos(self) -> int:
        """The final state that EOS leads to from an accepting row."""
        return self.num_states - 2

    @property
    def dead(self) -> int:
        """The state that a token that is not allowed leads to; it allows nothing."""
        return self.num_states - 1

    @property
    def num_sequences(self) -> int:
        """Q: distinct sequences; 0 of a graph, which does not count them."""
        return int(self.item_start.size) - 1

    @property
    def bytes_by_part(self) -> dict[str, int]:
        """Bytes of each array, by name."""
        return {name: int(getattr(self, name).nbytes) for name in _ARRAYS}

    @property
    def nbytes(self) -> int:
        """Bytes of the table without the map back to input rows, which stays on the host."""
        return sum(n for name, n in self.bytes_by_part.items() if not name.startswith("item_"))

    @property
    def fixed_length(self) -> int | None:
        """The length of every sequence, or None where lengths differ or EOS is needed to end."""
        return self.min_length if self.min_length == self.max_length and self.eos is None else None

    # -------------------------------------------------------------------------------------------- structure

    @cached_property
    def levels(self) -> tuple[Level, ...]:
        """What is static at each depth 0 .. max_length - 1: gather width, masks, tails; empty of a graph."""
        if not self.is_trie or self.max_length is None:
            return ()
        counts = np.diff(self.row_start)
        levels, tails = [], False
        for depth in range(self.max_length):
            if depth >= self.level_start.size - 1:
                levels.append(Level(width=1, dense=False, rows=False, tails=True))
                continue
            lo, hi = self.level_start[depth], self.level_start[depth + 1]
            dense = bool(hi <= self.base_row.size and self.base_row[lo] >= 0)
            levels.append(Level(max(1, int(counts[lo:hi].max())), dense, True, tails))
            targets = self.edge_target[self.row_start[lo] : self.row_start[hi]]
            tails = tails or bool((targets >= self.num_rows).any())
        return tuple(levels)

    @property
    def widths(self) -> tuple[int, ...]:
        """Most tokens allowed at each depth, EOS aside: the static gather widths."""
        return tuple(level.width for level in self.levels)

    @cached_property
    def distance(self) -> NDArray[np.int32]:
        """Fewest tokens from each state to an accepting end, EOS aside: (num_states,); NEVER from the dead state."""
        if self.is_trie:
            out = np.empty(self.num_states, np.int32)
            _distances(self.row_start, self.edge_token, self.edge_target, self.accepting, self.vocab_size, out)
            return out
        return self._facts[0]

    @cached_property
    def farthest(self) -> NDArray[np.int32]:
        """The largest `distance` that a token of each state leads to, (num_states,): -1 where there is no token.

        With more tokens left than that, no token of the state can make an end impossible. Never too small; it may be
        too large for a row that takes away all tokens of some class of its base.
        """
        out = np.full(self.num_states, -1, np.int32)
        _farthest(
            self.row_start, self.edge_token, self.edge_target, self.base_row, self.base_start, self.base_target,
            self.is_trie, self.vocab_size, self.distance, out,
        )  # fmt: skip
        return out

    @cached_property
    def _facts(self) -> tuple[NDArray[np.int32], int]:
        """Of a graph: `distance`, and the most tokens in a sequence, -1 where there is no most."""
        outside, distance, longest = graph_facts(
            self.row_start, self.edge_token, self.edge_target, self.accepting, self.base_row, self.masks,
            self.base_mask, self.base_classes, self.base_start, self.base_target, self.class_start, self.class_token,
            self.class_id,
        )  # fmt: skip
        if outside >= 0:
            raise TableError(f"a base leads outside the table (at {outside})")
        return np.concatenate([distance, np.array([0, NEVER], np.int32)]), int(longest)

    # -------------------------------------------------------------------------------------------- membership

    def walk(self, tokens: ArrayLike, states: NDArray[np.int64] | None = None) -> NDArray[np.int64]:
        """Return the state (N,) that each row of tokens (N, L) leads to; the dead state if it is not allowed.

        states: where each row starts (N,); the start if left out. Raises ValueError for one that this table has not.
        """
        array = np.asarray(tokens)
        if array.size == 0:
            return np.zeros(array.shape[:1], np.int64) if states is None else states.copy()
        if array.ndim != 2 or array.dtype.kind not in "iu":
            raise ValueError(f"tokens must be integers of shape (N, L), not {array.dtype} of shape {array.shape}")
        array = array.astype(array.dtype.newbyteorder("="), copy=False)
        out = np.zeros(array.shape[0], np.int64) if states is None else states.copy()
        eos = -1 if self.eos is None else self.eos
        stray = _walk(
            self.row_start, self.edge_token, self.edge_target, self.accepting, self.base_row, self.masks,
            self.base_mask, self.base_classes, self.base_start, self.base_target, self.class_start, self.class_token,
            self.class_id, self.is_trie, self.vocab_size, eos, array, out,
        )  # fmt: skip
        if stray >= 0:
            raise stray_state(self, int(out[stray]))
        return out

    def is_accepting(self, states: ArrayLike) -> NDArray[np.bool_]:
        """Return whether each state (N,) ends a sequence: bool (N,)."""
        array = np.asarray(states)
        if array.size and not 0 <= array.min() <= array.max() < self.num_states:
            raise stray_state(self, int(array.min() if array.min() < 0 else array.max()))
        rows = self.accepting[np.minimum(array, self.num_rows - 1)]
        tails = self.edge_token[self.num_edges + np.maximum(array - self.num_rows, 0)] == self.vocab_size
        return np.asarray(np.where(array < self.num_rows, rows, tails))

    def contains(self, sids: ArrayLike) -> NDArray[np.bool_]:
        """Return whether each row of sids (N, L) is in the set: bool (N,)."""
        return self.is_accepting(self.walk(sids))

    def accepts(self, tokens: Sequence[int] | NDArray[Any]) -> bool:
        """Return whether one sequence of tokens is in the set; EOS may close it, also more than once, as in a batch."""
        array = np.asarray(tokens)
        return bool(self.contains(array[None])[0])

    def input_rows(self, states: ArrayLike) -> list[IntArray]:
        """Return the input rows that each final state (N,) of a trie stands for; an empty array for any other state.

        Ask for the state before EOS: where sequences go on, EOS leads from all of them to the one state `after_eos`.
        """
        out: list[IntArray] = []
        for state in np.atleast_1d(np.asarray(states)).tolist():
            if state == self.after_eos or not self.is_trie or not bool(self.is_accepting(state)):
                out.append(self.item_row[:0])
                continue
            if state < self.num_rows:
                group = int(np.count_nonzero(self.accepting[:state]))
            else:
                entry = state - self.num_rows
                block = entry // _BLOCK
                first = self.num_edges + block * _BLOCK
                inside = self.edge_token[first : self.num_edges + entry] == self.vocab_size
                group = int(self._ends_before[block]) + int(np.count_nonzero(inside)) + self._accepting_rows
            out.append(self.item_row[self.item_start[group] : self.item_start[group + 1]])
        return out

    @cached_property
    def _accepting_rows(self) -> int:
        return int(np.count_nonzero(self.accepting))

    @cached_property
    def _ends_before(self) -> IntArray:
        """Final tail entries before each block of `_BLOCK` entries."""
        ends = self.edge_token[self.num_edges :] == self.vocab_size
        counts = np.add.reduceat(ends, np.arange(0, ends.size, _BLOCK), dtype=np.int64)
        return np.concatenate([[0], np.cumsum(counts)])

    # -------------------------------------------------------------------------------------------- the file

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the table to one safetensors file, in full or not at all."""
        target = Path(path)
        if not target.parent.is_dir():
            raise FileNotFoundError(f"there is no folder {target.parent} to save {target.name} in")
        arrays = {name: getattr(self, name) for name in _ARRAYS}
        metadata = {"maskwright": json.dumps(self._header(arrays), sort_keys=True)}
        temporary = target.with_name(f"{target.name}.{uuid.uuid4().hex}.part")
        try:
            temporary.touch()
            mode = temporary.stat().st_mode
            save_file(arrays, temporary, metadata)
            temporary.chmod(mode)  # safetensors makes files that only their owner can read
            os.replace(temporary, target)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise

    def _header(self, arrays: dict[str, NDArray[Any]]) -> dict[str, Any]:
        header: dict[str, Any] = {"version": FORMAT_VERSION}
        for field in dataclasses.fields(self):
            if field.name not in _ARRAYS:
                header[field.name] = getattr(self, field.name)
        header["checksum"] = _checksum(header, arrays)
        return header

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, vocabulary: str | None = None) -> TransitionTable:
        """Read a table back; `vocabulary` is the fingerprint it must have been compiled for, if that is to be checked.

        Raises FileNotFoundError; TableFileError for a file that is truncated, not maskwright's, of another format
        version or changed since it was written; VocabularyMismatchError for another vocabulary's.
        """
        name = os.fspath(path)
        try:
            with safe_open(name, framework="numpy") as file:
                metadata = file.metadata() or {}
                if "maskwright" not in metadata:
                    raise TableFileError(f"{name} is a safetensors file, but not one that maskwright wrote")
                header = dict(json.loads(metadata["maskwright"]))
                if header.get("version") != FORMAT_VERSION:
                    raise TableFileError(
                        f"{name} has format version {header.get('version')}, this maskwright reads "
                        f"{FORMAT_VERSION}: build it again from its source"
                    )
                missing = sorted(set(_ARRAYS) - set(file.keys()))
                if missing:
                    raise TableFileError(f"{name} lacks {', '.join(missing)}: build it again from its source")
                arrays = {key: file.get_tensor(key) for key in _ARRAYS}
        except FileNotFoundError:
            raise FileNotFoundError(f"no table at {name}") from None
        except TableError:
            raise
        except Exception as error:  # whatever a reader of damaged files may raise
            raise TableFileError(
                f"{name} is truncated or is not a maskwright table ({error}): build it again from its source"
            ) from error
        checksum = header.pop("checksum", None)
        if checksum != _checksum(header, arrays):
            raise TableFileError(f"{name} was changed after it was written: build it again from its source")
        del header["version"]
        if vocabulary is not None and header.get("vocabulary") != vocabulary:
            raise VocabularyMismatchError(
                f"{name} was compiled for vocabulary {header.get('vocabulary')}, not {vocabulary}: compile it again"
            )
        try:
            return cls(**arrays, **header)
        except (TableError, TypeError) as error:  # TypeError: a header of other fields
            raise TableFileError(f"{name} is not a valid table: {error}") from error


def stray_state(table: TransitionTable, state: int) -> ValueError:
    """Return the error for a state that is none of a table's."""
    return ValueError(
        f"state {state} is outside this table, whose states are 0 .. {table.num_states - 1}: "
        "it comes from another table"
    )


def _checksum(header: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> str:
    """SHA-256 over the header and every array's name, type, shape and bytes."""
    digest = hashlib.sha256(json.dumps(header, sort_keys=True).encode())
    for name in _ARRAYS:
        array = np.ascontiguousarray(arrays[name])
        digest.update(f"{name} {array.dtype.str} {array.shape};".encode())
        digest.update(array.view(np.uint8).data if array.size else b"")
    return digest.hexdigest()


# ------------------------------------------------------------------------------------------------------ checks


def _check(table: TransitionTable) -> None:
    """Raise TableError unless the arrays form a table."""
    size = table.vocab_size
    if type(size) is not int or not 1 <= size <= MOST_TOKENS:
        raise TableError(f"vocab_size must be an integer from 1 to {MOST_TOKENS:,}, not {size!r}")
    if table.eos is not None and (type(table.eos) is not int or not 0 <= table.eos < size):
        raise TableError(f"eos must be an integer from 0 to {size - 1}, not {table.eos!r}")
    if type(table.vocabulary) is not str or type(table.source) is not str:
        raise TableError("vocabulary and source must be text")
    if table.vocabulary.startswith("integers:") and table.vocabulary != integer_vocabulary(size):
        raise TableError(f"the vocabulary is {table.vocabulary}, but vocab_size is {size}")
    index = (np.dtype(np.int32), np.dtype(np.int64))
    token = np.min_scalar_type(size + 1)
    for name, kinds, ndim in (
        ("row_start", index, 1),
        ("edge_token", (token,), 1),
        ("edge_target", (table.row_start.dtype,), 1),
        ("accepting", (np.dtype(np.bool_),), 1),
        ("base_row", index[:1], 1),
        ("masks", (np.dtype(np.uint32),), 2),
        ("base_mask", index[:1], 1),
        ("base_classes", index[:1], 1),
        ("base_start", index[:1], 1),
        ("base_target", index[:1], 1),
        ("class_start", index[:1], 1),
        ("class_token", (token,), 1),
        ("class_id", index[:1], 1),
        ("level_start", index[1:], 1),
        ("item_start", index, 1),
        ("item_row", index, 1),
    ):
        array = getattr(table, name)
        if array.dtype not in kinds or array.ndim != ndim:
            raise TableError(f"{name} is {array.dtype} with {array.ndim} axes, not {kinds[0]} with {ndim}")
    rows, edges, bases = table.num_rows, table.num_edges, table.base_mask.size
    words = -(-size // 32)
    consistent = (
        (rows >= 1, "there is no start row"),
        (table.edge_token.size >= edges + 2, "edge_token is shorter than edge_target"),
        (table.accepting.size == rows, "accepting and row_start differ in length"),
        (table.base_row.size <= rows, "base_row is longer than row_start"),
        (table.masks.shape[1] == words, f"masks need {words} uint32 words a row"),
        (
            table.base_classes.size == bases and table.base_start.size == bases + 1,
            "base_mask, base_classes and base_start differ in length",
        ),
        (table.class_start.size >= 1, "class_start is empty"),
        (table.class_token.size == table.class_id.size, "class_token and class_id differ in length"),
    )
    for holds, message in consistent:
        if not holds:
            raise TableError(message)
    if table.is_trie:
        _check_trie(table)
    else:
        _check_graph(table)


def _check_trie(table: TransitionTable) -> None:
    consistent = (
        (not table.accepting[0], "the start accepts the empty sequence, which no decoder could write"),
        (table.level_start.size >= 2 and table.level_start[0] == 0, "level_start does not begin at 0"),
        (table.level_start[-1] == table.num_rows, "level_start does not end at the last row"),
        (bool((np.diff(table.level_start) > 0).all()), "level_start does not rise"),
        (
            table.base_target.size == 0 and np.array_equal(table.base_mask, np.arange(len(table.masks))),
            "a trie has one base a mask, without targets",
        ),
    )
    for holds, message in consistent:
        if not holds:
            raise TableError(message)
    fault, where, shortest, longest = _first_fault(
        table.row_start, table.edge_token, table.edge_target, table.accepting, table.base_row, table.masks,
        table.level_start, table.item_start, table.item_row, table.vocab_size, -1 if table.eos is None else table.eos,
    )  # fmt: skip
    if fault:
        raise TableError(f"{_FAULTS[fault]} (at {where})")
    _check_lengths(table, shortest, longest)


def _check_graph(table: TransitionTable) -> None:
    if table.base_row.size != table.num_rows or table.edge_token.size != table.num_edges + 2:
        raise TableError("a graph has a base_row for every row, and no tail entries")
    if table.item_start.tolist() != [0] or table.item_row.size:
        raise TableError("a graph has no input rows")
    if table.row_start.dtype != np.int32:
        raise TableError("a graph has row_start of int32")
    fault, where = _first_graph_fault(
        table.row_start, table.edge_token, table.edge_target, table.base_row, table.masks, table.base_mask,
        table.base_classes, table.base_start, table.base_target, table.class_start, table.class_token, table.class_id,
        table.vocab_size, -1 if table.eos is None else table.eos,
    )  # fmt: skip
    if fault:
        raise TableError(f"{_FAULTS[fault]} (at {where})")
    distance, longest = table._facts
    if (distance[:-1] == NEVER).any():
        raise TableError(f"no end can be reached from a row: decoding would run into a dead end "
                         f"(at {int(np.argmax(distance == NEVER))})")  # fmt: skip
    found = int(distance[0]), None if longest < 0 else longest
    if table.min_length == -1 and table.max_length is None:
        object.__setattr__(table, "min_length", found[0])
        object.__setattr__(table, "max_length", found[1])
    _check_lengths(table, *found)


def _check_lengths(table: TransitionTable, shortest: int, longest: int | None) -> None:
    lengths = (table.min_length, table.max_length)
    kinds = (int, int if longest is not None else type(None))
    if lengths != (shortest, longest) or any(type(x) is not kind for x, kind in zip(lengths, kinds, strict=True)):
        raise TableError(f"sequences have {shortest} to {longest} tokens, not {lengths[0]!r} to {lengths[1]!r}")


_FAULTS = (
    "",
    "row_start does not rise from 0 to the number of edges",
    "a row has no edges and is not accepting: decoding would run into a dead end",
    "tokens of a row are not strictly increasing and below vocab_size",
    "an edge leads outside the table or not to the next level",
    "a row's mask is not its edges",
    "base_row points outside masks",
    "a tail entry is not a token",
    "the last tail has no end",
    "item_start does not rise from 0 to the number of items",
    "item_row points outside the input",
    "accepting states and items do not match",
    "an edge or a tail entry holds eos",
    "some rows of a level have masks and some have not",
    "tails are shared or left over",
    "an edge to the dead state takes nothing away",
    "base_start does not rise from 0 to the number of base targets",
    "base_mask or base_classes points outside",
    "tokens of a class list are not strictly increasing and below vocab_size",
    "a mask has a bit for eos or beyond vocab_size",
    "a base leads outside the table",
    "class_start does not rise from 0 to the number of classed tokens",
    "a class has no target in a base",
)


@njit(cache=True, nogil=True)
def _first_fault(
    row_start: Any,
    edge_token: Any,
    edge_target: Any,
    accepting: Any,
    base_row: Any,
    masks: Any,
    level_start: Any,
    item_start: Any,
    item_row: Any,
    vocab_size: int,
    eos: int,
) -> Any:
    """Return (index into _FAULTS, position, shortest, longest sequence); index 0 if there is no contradiction."""
    rows, edges = row_start.size - 1, edge_target.size
    end = edge_token.size
    states = rows + end - edges
    if row_start[0] != 0 or row_start[rows] != edges:
        return 1, 0, 0, 0
    if edge_token[end - 2] != vocab_size or edge_token[end - 1] != vocab_size + 1:
        return 8, end, 0, 0
    if end - 2 > edges and edge_token[end - 3] != vocab_size:
        return 8, end, 0, 0
    shortest, longest = np.int64(1) << 62, np.int64(0)
    finals, leaves, walked = 0, 0, 0
    for level in range(level_start.size - 1):
        last_level = level + 2 == level_start.size
        low = rows if last_level else level_start[level + 1]
        high = rows if last_level else level_start[level + 2]
        first_row = level_start[level]
        masked = first_row < base_row.size and base_row[first_row] >= 0
        for s in range(first_row, level_start[level + 1]):
            a, b = row_start[s], row_start[s + 1]
            if b < a or b > edges:
                return 1, s, 0, 0
            if accepting[s]:
                finals += 1
                shortest = min(shortest, np.int64(level))
                longest = max(longest, np.int64(level))
            elif a == b:
                return 2, s, 0, 0
            base = base_row[s] if s < base_row.size else -1
            if base < -1 or base >= masks.shape[0]:
                return 6, s, 0, 0
            if (base >= 0) != masked:
                return 13, s, 0, 0
            previous = -1
            for e in range(a, b):
                token = np.int64(edge_token[e])
                if token <= previous or token >= vocab_size:
                    return 3, e, 0, 0
                if token == eos:
                    return 12, e, 0, 0
                previous = int(token)
                target = edge_target[e]
                if base >= 0 and (masks[base, token >> 5] >> np.uint32(token & 31)) & np.uint32(1) == 0:
                    return 5, s, 0, 0
                if low <= target < high:
                    continue
                if not rows <= target < states - 2:
                    return 4, e, 0, 0
                entry = edges + target - rows
                while edge_token[entry] < vocab_size:
                    if edge_token[entry] == eos:
                        return 12, entry, 0, 0
                    entry += 1
                if edge_token[entry] > vocab_size:
                    return 7, entry, 0, 0
                length = level + 1 + entry - (edges + target - rows)
                shortest = min(shortest, length)
                longest = max(longest, length)
                leaves += 1
                walked += length - level
            if base >= 0:
                bits = 0
                for w in range(masks.shape[1]):
                    word = masks[base, w]
                    while word:
                        word &= word - np.uint32(1)
                        bits += 1
                if bits != b - a:
                    return 5, s, 0, 0
    ends = 0
    for e in range(edges, end - 2):
        ends += edge_token[e] == vocab_size
    if ends != leaves or walked != end - 2 - edges:
        return 14, edges, 0, 0
    if item_start.size == 0 or item_start[0] != 0 or item_start[item_start.size - 1] != item_row.size:
        return 9, 0, 0, 0
    for i in range(1, item_start.size):
        if item_start[i] <= item_start[i - 1]:
            return 9, i, 0, 0
    wrong = 0  # counted without a way out, so that this is vector code
    for i in range(item_row.size):
        wrong += (item_row[i] < 0) | (item_row[i] >= item_row.size)
    if wrong:
        return 10, 0, 0, 0
    if finals + leaves != item_start.size - 1:
        return 11, 0, 0, 0
    return 0, 0, shortest, longest


@njit(cache=True, nogil=True)
def _first_graph_fault(
    row_start: Any,
    edge_token: Any,
    edge_target: Any,
    base_row: Any,
    masks: Any,
    base_mask: Any,
    base_classes: Any,
    base_start: Any,
    base_target: Any,
    class_start: Any,
    class_token: Any,
    class_id: Any,
    vocab_size: int,
    eos: int,
) -> Any:
    """Return (index into _FAULTS, position) of a graph; index 0 if there is no contradiction."""
    rows, edges, bases = row_start.size - 1, edge_target.size, base_mask.size
    lists = class_start.size - 1
    dead = rows + 1
    if edge_token[edges] != vocab_size or edge_token[edges + 1] != vocab_size + 1:
        return 8, edges
    for u in range(masks.shape[0]):
        if eos >= 0 and (masks[u, eos >> 5] >> np.uint32(eos & 31)) & np.uint32(1):
            return 19, u
        if vocab_size & 31 and masks[u, masks.shape[1] - 1] >> np.uint32(vocab_size & 31):
            return 19, u
    if class_start[0] != 0 or class_start[lists] != class_token.size:
        return 21, 0
    classes = np.zeros(lists, np.int64)  # of each list
    for k in range(lists):
        if class_start[k + 1] < class_start[k] or class_start[k + 1] > class_token.size:
            return 21, k
        classes[k] = 1
        previous: Any = -1
        for x in range(class_start[k], class_start[k + 1]):
            token = np.int64(class_token[x])
            if token <= previous or token >= vocab_size:
                return 18, x
            if class_id[x] < 0:
                return 22, x
            classes[k] = max(classes[k], class_id[x] + 1)
            previous = token
    if base_start[0] != 0 or base_start[bases] != base_target.size:
        return 16, 0
    for b in range(bases):
        if not (0 <= base_mask[b] < masks.shape[0] and 0 <= base_classes[b] < lists):
            return 17, b
        if base_start[b + 1] < base_start[b] or base_start[b + 1] > base_target.size:
            return 16, b
        if base_start[b + 1] - base_start[b] < classes[base_classes[b]]:
            return 22, b
        for x in range(base_start[b], base_start[b + 1]):
            code = base_target[x]
            if code >> 1 >= rows or code >> 1 < (1 - rows if code & 1 else 0):
                return 20, b
    if row_start[0] != 0 or row_start[rows] != edges:
        return 1, 0
    for s in range(rows):
        a, b = row_start[s], row_start[s + 1]
        base = base_row[s]
        if b < a or b > edges:
            return 1, s
        if base < -1 or base >= bases:
            return 6, s
        previous = -1
        for e in range(a, b):
            token, target = np.int64(edge_token[e]), edge_target[e]
            if token <= previous or token >= vocab_size:
                return 3, e
            if token == eos:
                return 12, e
            previous = token
            if target == dead:
                if base < 0 or not (masks[base_mask[base], token >> 5] >> np.uint32(token & 31)) & np.uint32(1):
                    return 15, e
            elif target < 0 or target >= rows:
                return 4, e
    return 0, 0


# ------------------------------------------------------------------------------------------------------ kernels


@njit(cache=True, nogil=True)
def _walk(
    row_start: Any,
    edge_token: Any,
    edge_target: Any,
    accepting: Any,
    base_row: Any,
    masks: Any,
    base_mask: Any,
    base_classes: Any,
    base_start: Any,
    base_target: Any,
    class_start: Any,
    class_token: Any,
    class_id: Any,
    is_trie: bool,
    vocab_size: int,
    eos: int,
    tokens: Any,
    out: Any,
) -> int:
    """Follow each row of tokens (N, L) from its state in out (N,) by binary search; out gets the state reached.

    Return the place of a state that is outside the table, with nothing done, or -1.
    """
    rows, edges = row_start.size - 1, edge_target.size
    dead = rows + edge_token.size - edges - 1
    for i in range(out.size):
        if out[i] < 0 or out[i] > dead:
            return i
    for block in range(0, tokens.shape[0], _TOGETHER):
        last = min(block + _TOGETHER, tokens.shape[0])
        for j in range(tokens.shape[1]):
            for i in range(block, last):  # one step of many rows: their cache misses overlap
                state = out[i]
                token = np.int64(tokens[i, j])
                if state >= rows:
                    entry = np.int64(edge_token[edges + state - rows])
                    if entry == token and token < vocab_size:
                        out[i] = state + 1
                    elif not (entry == vocab_size and token == eos and eos >= 0):
                        out[i] = dead
                    continue
                lo, hi = np.int64(row_start[state]), np.int64(row_start[state + 1])
                stop = hi
                while lo < hi:
                    mid = (lo + hi) >> 1
                    if np.int64(edge_token[mid]) < token:
                        lo = mid + 1
                    else:
                        hi = mid
                if lo < stop and np.int64(edge_token[lo]) == token:
                    out[i] = edge_target[lo]
                    continue
                if accepting[state] and token == eos and eos >= 0:
                    out[i] = dead - 1
                    continue
                out[i] = dead
                if is_trie or base_row[state] < 0 or token < 0 or token >= vocab_size:
                    continue
                base = base_row[state]
                if not (masks[base_mask[base], token >> 5] >> np.uint32(token & 31)) & np.uint32(1):
                    continue
                classes = base_classes[base]
                lo, hi = np.int64(class_start[classes]), np.int64(class_start[classes + 1])
                stop = hi
                while lo < hi:
                    mid = (lo + hi) >> 1
                    if np.int64(class_token[mid]) < token:
                        lo = mid + 1
                    else:
                        hi = mid
                found = class_id[lo] if lo < stop and np.int64(class_token[lo]) == token else 0
                code = np.int64(base_target[base_start[base] + found])
                out[i] = (code >> 1) + (code & 1) * state
    return -1


@njit(cache=True, nogil=True)
def _distances(row_start: Any, edge_token: Any, edge_target: Any, accepting: Any, vocab_size: int, out: Any) -> None:
    """Fewest tokens from each state of a trie to an end; targets have higher numbers, so one backward pass does."""
    rows, edges = row_start.size - 1, edge_target.size
    for entry in range(edge_token.size - 1, edges - 1, -1):
        s = rows + entry - edges
        if edge_token[entry] >= vocab_size:
            out[s] = 0 if edge_token[entry] == vocab_size else NEVER
        else:
            out[s] = out[s + 1] + 1
    for s in range(rows - 1, -1, -1):
        best = 0 if accepting[s] else NEVER
        if not accepting[s]:
            for e in range(row_start[s], row_start[s + 1]):
                best = min(best, out[edge_target[e]] + 1)
        out[s] = best


@njit(cache=True, nogil=True)
def graph_facts(
    row_start: Any,
    edge_token: Any,
    edge_target: Any,
    accepting: Any,
    base_row: Any,
    masks: Any,
    base_mask: Any,
    base_classes: Any,
    base_start: Any,
    base_target: Any,
    class_start: Any,
    class_token: Any,
    class_id: Any,
) -> Any:
    """Return (a row whose base leads outside the table or -1, distance (S,), most tokens of a sequence or -1).

    Works on the distinct targets of each row. Those of a base are found once, with how many tokens lead there; a row
    that shares the base has those of them that its own edges leave a token.
    """
    rows, bases = row_start.size - 1, base_mask.size
    dead = rows + 1
    by_base = np.zeros(bases + 2, np.int64)  # rows in the order of their bases, those without one first
    for s in range(rows):
        by_base[base_row[s] + 2] += 1
    for b in range(bases + 1):
        by_base[b + 1] += by_base[b]
    place = by_base.copy()
    order = np.empty(rows, np.int64)
    for s in range(rows):
        order[place[base_row[s] + 1]] = s
        place[base_row[s] + 1] += 1

    start = np.zeros(rows + 1, np.int64)  # distinct targets of the rows, in `order`
    to = np.empty(edge_target.size + 64, np.int32)
    back = np.zeros(rows + 1, np.int64)
    target_seen = np.full(rows, -1, np.int64)
    left = np.empty(base_target.size + 1, np.int64)  # tokens of each class of the base
    used = at = 0
    base = -1
    for i in range(rows):
        s = order[i]
        if base_row[s] != base:  # a new base: its codes, and how many tokens have each
            base = base_row[s]
            count = 0
            for w in range(masks.shape[1]):
                word = masks[base_mask[base], w]
                word -= (word >> np.uint32(1)) & np.uint32(0x55555555)
                word = (word & np.uint32(0x33333333)) + ((word >> np.uint32(2)) & np.uint32(0x33333333))
                word = (word + (word >> np.uint32(4))) & np.uint32(0x0F0F0F0F)
                count += ((word * np.uint32(0x01010101)) & np.uint32(0xFFFFFFFF)) >> np.uint32(24)
            used = base_start[base + 1] - base_start[base]
            left[:used] = 0
            left[0] = count
            classes = base_classes[base]
            for x in range(class_start[classes], class_start[classes + 1]):
                token = np.int64(class_token[x])
                if (masks[base_mask[base], token >> 5] >> np.uint32(token & 31)) & np.uint32(1):
                    left[0] -= 1
                    left[class_id[x]] += 1
        if at + row_start[s + 1] - row_start[s] + used > to.size:
            grown = np.empty(2 * to.size + used + row_start[s + 1] - row_start[s], np.int32)
            grown[:at] = to[:at]
            to = grown
        for sign in (-1, 1):
            if sign == 1 and base >= 0:
                for x in range(used):
                    if left[x] > 0:
                        code = np.int64(base_target[base_start[base] + x])
                        t = (code >> 1) + (code & 1) * s
                        if t < 0 or t >= rows:
                            return s, np.empty(0, np.int32), -1
                        if target_seen[t] != s:
                            target_seen[t] = s
                            to[at] = t
                            at += 1
            for e in range(row_start[s], row_start[s + 1]):
                t = edge_target[e]
                if sign == 1 and t != dead and target_seen[t] != s:
                    target_seen[t] = s
                    to[at] = t
                    at += 1
                if base < 0:
                    continue
                token = np.int64(edge_token[e])
                if not (masks[base_mask[base], token >> 5] >> np.uint32(token & 31)) & np.uint32(1):
                    continue
                classes = base_classes[base]
                lo, hi = np.int64(class_start[classes]), np.int64(class_start[classes + 1])
                stop = hi
                while lo < hi:
                    mid = (lo + hi) >> 1
                    if np.int64(class_token[mid]) < token:
                        lo = mid + 1
                    else:
                        hi = mid
                left[class_id[lo] if lo < stop and np.int64(class_token[lo]) == token else 0] += sign
        start[i + 1] = at
    for x in range(at):
        back[to[x] + 1] += 1
    for s in range(rows):
        back[s + 1] += back[s]
    origin = np.empty(at, np.int32)
    fill = back[:-1].copy()
    ways = np.empty(rows, np.int64)
    for i in range(rows):
        ways[order[i]] = start[i + 1] - start[i]
        for x in range(start[i], start[i + 1]):
            origin[fill[to[x]]] = order[i]
            fill[to[x]] += 1
    # distances breadth first from the accepting rows
    distance = np.full(rows, NEVER, np.int32)
    queue = np.empty(rows, np.int32)
    tail = 0
    for s in range(rows):
        if accepting[s]:
            distance[s] = 0
            queue[tail] = s
            tail += 1
    head = 0
    while head < tail:
        t = queue[head]
        head += 1
        for x in range(back[t], back[t + 1]):
            if distance[origin[x]] == NEVER:
                distance[origin[x]] = distance[t] + 1
                queue[tail] = origin[x]
                tail += 1
    # the longest path, from the last rows of an acyclic graph backwards
    longest = np.zeros(rows, np.int64)
    tail = 0
    for s in range(rows):
        if ways[s] == 0:
            queue[tail] = s
            tail += 1
    head = 0
    while head < tail:
        t = queue[head]
        head += 1
        for x in range(back[t], back[t + 1]):
            s = origin[x]
            longest[s] = max(longest[s], longest[t] + 1)
            ways[s] -= 1
            if ways[s] == 0:
                queue[tail] = s
                tail += 1
    return -1, distance, longest[0] if tail == rows else -1


@njit(cache=True, nogil=True)
def _farthest(
    row_start: Any,
    edge_token: Any,
    edge_target: Any,
    base_row: Any,
    base_start: Any,
    base_target: Any,
    is_trie: bool,
    vocab_size: int,
    distance: Any,
    out: Any,
) -> None:
    rows, edges = row_start.size - 1, edge_target.size
    dead = distance.size - 1
    for s in range(rows):
        for e in range(row_start[s], row_start[s + 1]):
            if edge_target[e] != dead:
                out[s] = max(out[s], distance[edge_target[e]])
        if not is_trie and base_row[s] >= 0:
            for x in range(base_start[base_row[s]], base_start[base_row[s] + 1]):
                t = (np.int64(base_target[x]) >> 1) + (base_target[x] & 1) * s
                if 0 <= t < rows:
                    out[s] = max(out[s], distance[t])
    for s in range(rows, dead):
        if edge_token[edges + s - rows] < vocab_size:
            out[s] = distance[s + 1]
