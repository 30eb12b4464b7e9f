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

FORMAT_VERSION = 1
"""Version of the file format; a reader refuses any other."""

MOST_TOKENS = 2**31 - 3
"""The largest vocabulary: tokens and two numbers more fit into 32 bits on every backend."""

IntArray = NDArray[np.signedinteger[Any]]

_ARRAYS = (
    "row_start", "edge_token", "edge_target", "accepting", "base_row", "masks",
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
    - A row whose `base_row` is not negative allows exactly the tokens of that row of `masks`, which are its
      edges once more: a mask for whole rows of logits, edges for where they lead. States from
      len(base_row) on have none.
    - `accepting` rows and final tail entries may be followed by EOS, if the table has one.

    The k-th accepting state stands for the input rows item_row[item_start[k] : item_start[k + 1]].

    Frozen and checked when made: raises TableError if the arrays contradict each other.
    """

    vocab_size: int
    row_start: IntArray  # (S + 1,) int32, or int64 for very large tables
    edge_token: NDArray[np.unsignedinteger[Any]]  # (E + T + 2,) smallest unsigned type that holds V + 1
    edge_target: IntArray  # (E,)
    accepting: NDArray[np.bool_]  # (S,)
    base_row: NDArray[np.int32]  # (H,), H <= S
    masks: NDArray[np.uint32]  # (U, ceil(V / 32)): bit i of word w is token 32 * w + i
    level_start: NDArray[np.int64]  # (D + 1,) rows of depth d: level_start[d] .. level_start[d + 1]
    item_start: IntArray  # (Q + 1,)
    item_row: IntArray  # (N,)
    min_length: int  # fewest tokens in a sequence
    max_length: int  # most tokens in a sequence
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
        return (
            f"TransitionTable({self.num_sequences:,} sequences, {self.num_states:,} states, {self.nbytes:,} bytes, "
            f"vocab_size={self.vocab_size}, eos={self.eos})"
        )

    # -------------------------------------------------------------------------------------------- sizes

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
        """Q: distinct sequences."""
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
        """What is static at each depth 0 .. max_length - 1: gather width, masks, tails."""
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
        """Fewest tokens from each row to an accepting end, EOS aside: (S,)."""
        out = np.empty(self.num_rows, np.int32)
        _distances(self.row_start, self.edge_token, self.edge_target, self.accepting, self.vocab_size, out)
        return out

    # -------------------------------------------------------------------------------------------- membership

    def walk(self, tokens: ArrayLike) -> NDArray[np.int64]:
        """Return the state (N,) that each row of tokens (N, L) leads to; the dead state if it is not allowed."""
        array = np.asarray(tokens)
        if array.size == 0:
            return np.zeros(len(array), np.int64)
        if array.ndim != 2 or array.dtype.kind not in "iu":
            raise ValueError(f"tokens must be integers of shape (N, L), not {array.dtype} of shape {array.shape}")
        array = array.astype(array.dtype.newbyteorder("="), copy=False)
        out = np.empty(array.shape[0], np.int64)
        eos = -1 if self.eos is None else self.eos
        _walk(
            self.row_start,
            self.edge_token,
            self.edge_target,
            self.accepting,
            self.vocab_size,
            eos,
            array,
            out,
        )
        return out

    def is_accepting(self, states: ArrayLike) -> NDArray[np.bool_]:
        """Return whether each state (N,) ends a sequence: bool (N,)."""
        array = np.asarray(states)
        rows = self.accepting[np.minimum(array, self.num_rows - 1)]
        tails = self.edge_token[self.num_edges + np.maximum(array - self.num_rows, 0)] == self.vocab_size
        return np.asarray(np.where(array < self.num_rows, rows, tails))

    def contains(self, sids: ArrayLike) -> NDArray[np.bool_]:
        """Return whether each row of sids (N, L) is in the set: bool (N,)."""
        return self.is_accepting(self.walk(sids))

    def accepts(self, tokens: Sequence[int] | NDArray[Any]) -> bool:
        """Return whether one sequence of tokens is in the set; EOS may close it, also more than once, as in a batch."""
        array = np.asarray(tokens)
        return bool(array.size) and bool(self.contains(array[None])[0])

    def input_rows(self, states: ArrayLike) -> list[IntArray]:
        """Return the input rows that each final state (N,) stands for; an empty array for any other state.

        Ask for the state before EOS: where sequences go on, EOS leads from all of them to the one state `after_eos`.
        """
        out: list[IntArray] = []
        for state in np.atleast_1d(np.asarray(states)).tolist():
            if state == self.after_eos or not bool(self.is_accepting(state)):
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
    for name, kinds, ndim in (
        ("row_start", index, 1),
        ("edge_token", (np.min_scalar_type(size + 1),), 1),
        ("edge_target", (table.row_start.dtype,), 1),
        ("accepting", (np.dtype(np.bool_),), 1),
        ("base_row", index[:1], 1),
        ("masks", (np.dtype(np.uint32),), 2),
        ("level_start", index[1:], 1),
        ("item_start", index, 1),
        ("item_row", index, 1),
    ):
        array = getattr(table, name)
        if array.dtype not in kinds or array.ndim != ndim:
            raise TableError(f"{name} is {array.dtype} with {array.ndim} axes, not {kinds[0]} with {ndim}")
    rows, edges = table.num_rows, table.num_edges
    words = -(-size // 32)
    consistent = (
        (rows >= 1, "there is no start row"),
        (table.edge_token.size >= edges + 2, "edge_token is shorter than edge_target"),
        (table.accepting.size == rows, "accepting and row_start differ in length"),
        (not table.accepting[:1].any(), "the start accepts the empty sequence, which no decoder could write"),
        (table.base_row.size <= rows, "base_row is longer than row_start"),
        (
            table.masks.dtype == np.uint32 and table.masks.shape[1] == words,
            f"masks need {words} uint32 words a row",
        ),
        (table.level_start.size >= 2 and table.level_start[0] == 0, "level_start does not begin at 0"),
        (
            table.level_start.size < 2 or table.level_start[-1] == rows,
            "level_start does not end at the last row",
        ),
        (bool((np.diff(table.level_start) > 0).all()), "level_start does not rise"),
    )
    for holds, message in consistent:
        if not holds:
            raise TableError(message)
    eos = -1 if table.eos is None else table.eos
    fault, where, shortest, longest = _first_fault(
        table.row_start, table.edge_token, table.edge_target, table.accepting, table.base_row, table.masks,
        table.level_start, table.item_start, table.item_row, size, eos,
    )  # fmt: skip
    if fault:
        raise TableError(f"{_FAULTS[fault]} (at {where})")
    lengths = (table.min_length, table.max_length)
    if lengths != (shortest, longest) or any(type(length) is not int for length in lengths):
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


# ------------------------------------------------------------------------------------------------------ kernels


@njit(cache=True, nogil=True)
def _walk(
    row_start: Any,
    edge_token: Any,
    edge_target: Any,
    accepting: Any,
    vocab_size: int,
    eos: int,
    tokens: Any,
    out: Any,
) -> None:
    """Follow each row of tokens (N, L) from the start by binary search; out (N,) gets the state reached."""
    rows, edges = row_start.size - 1, edge_target.size
    dead = rows + edge_token.size - edges - 1
    for block in range(0, tokens.shape[0], _TOGETHER):
        last = min(block + _TOGETHER, tokens.shape[0])
        out[block:last] = 0
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
                elif accepting[state] and token == eos and eos >= 0:
                    out[i] = dead - 1
                else:
                    out[i] = dead


@njit(cache=True, nogil=True)
def _distances(row_start: Any, edge_token: Any, edge_target: Any, accepting: Any, vocab_size: int, out: Any) -> None:
    """Fewest tokens from each row to an end; targets have higher numbers, so one backward pass does."""
    rows, edges = row_start.size - 1, edge_target.size
    for s in range(rows - 1, -1, -1):
        best = 0 if accepting[s] else 2**31 - 1
        if not accepting[s]:
            for e in range(row_start[s], row_start[s + 1]):
                target = edge_target[e]
                if target < rows:
                    steps = np.int64(out[target])
                else:
                    entry = edges + target - rows
                    steps = np.int64(0)
                    while edge_token[entry + steps] != vocab_size:
                        steps += 1
                if steps + 1 < best:
                    best = int(steps) + 1
        out[s] = best
