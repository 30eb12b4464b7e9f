"""`TransitionTable`: a compiled constraint as flat arrays, and its file."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Protocol, overload, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray
from safetensors import safe_open
from safetensors.numpy import save_file

from ..errors import BudgetError, NoTableError, TableError, TableFileError, VocabularyMismatchError
from ..kernels.compiled import kernel
from ..kernels.limits import MOST_TOKENS
from .groups import Actions, Bases, Edges, Exits, Rows, Sites, TableArrays, TokenClasses, TrieLevels

FORMAT_VERSION = 4
"""Version of the file format; a reader refuses any other."""

NEVER = 2**31 - 1
"""The distance of a state from which no end can be reached."""

MOST_DEPTH = 2**16
"""The largest `depth` of a nested table, and the largest need of a state or a site."""

IntArray = NDArray[np.signedinteger[Any]]

_ARRAYS = (
    "row_start", "edge_token", "edge_target", "accepting", "base_row", "masks",
    "base_mask", "base_classes", "base_start", "base_target", "class_start", "class_token", "class_id",
    "level_start", "item_start", "item_row",
    "action_state", "action_start", "action_push", "row_exit", "base_exit", "exit_start", "exit_token", "exit_symbol",
    "site_start", "site_symbol", "site_target", "base_push", "symbol_label", "site_leaf", "state_need", "site_need",
)  # fmt: skip
_INT32, _INT64, _BOOL, _UINT32 = (np.dtype(kind) for kind in (np.int32, np.int64, np.bool_, np.uint32))
_KINDS: dict[str, tuple[np.dtype[Any], ...]] = {  # of arrays; () for tokens and for edge_target, which follow others
    **dict.fromkeys(_ARRAYS, (_INT32,)),
    **dict.fromkeys(("row_start", "item_start", "item_row"), (_INT32, _INT64)),
    **dict.fromkeys(("accepting", "site_leaf"), (_BOOL,)),
    **dict.fromkeys(("edge_target", "edge_token", "class_token", "exit_token"), ()),
    "masks": (_UINT32,),
    "level_start": (_INT64,),
}
_OF_CALLS = (
    "action_state", "action_push", "row_exit", "base_exit", "exit_token", "site_symbol", "base_push", "symbol_label",
    "state_need",
)  # fmt: skip
_TOGETHER = 256  # rows walked side by side in `_walk`
_BLOCK = 256  # tail entries per count of ends kept for looking up input rows


class Level(NamedTuple):
    """What is known of all states at one depth before any of them is reached."""

    width: int  # the most tokens any of them allows, EOS aside
    dense: bool  # rows at this depth have masks
    rows: bool  # some states at this depth are rows
    tails: bool  # some states at this depth are tail entries


class Common(NamedTuple):
    """What a graph has in common with others of its vocabulary: a library, on which each was built.

    Those are its rows 1 .. rows, and the first bases, sites and actions, which lead only to one another; the bases lead
    to states, not so many states further. An `Arena` keeps equal ones once.
    """

    rows: int = 0
    bases: int = 0
    sites: int = 0
    actions: int = 0


_NOTHING = Common()


class Distances(NamedTuple):
    """What budgets need to know of a nested table: distances by C *ends*, which tell apart how a fragment may end.

    Of the stack's lowest j frames, far[j, c] is the distance if the topmost of them ends with c: far[0] is 0 for end 0,
    how a text ends, and NEVER for all others; far[j + 1, c] is the least of site[k, c, d] + far[j, d] over the first F
    ends d, those of fragments that make calls; k is site j. A configuration's distance is the least of code[s, c] +
    far[h, c]. With one end these are sums. Left out are ways for which there is no room.
    """

    code: NDArray[np.int64]  # (S + 2 + A, C) fewest tokens to this end of the fragment; for actions, with their pushes
    site: NDArray[np.int64]  # (K, C, F) fewest tokens from the return after an end to one of the fragment below
    farthest: NDArray[np.int64]  # (S + 2, C) no token leads farther than the least of this + far[h], with enough room
    code_room: NDArray[np.int64]  # (S + 2 + A, C) how many more frames must fit for that; (0, C) where it is known to
    site_room: NDArray[np.int64]  # (K, C, F) the same, above those below the site; (0, C, F)


class _Length:
    """A field that a nested table works out when it is first asked for: most are never asked."""

    @overload
    def __get__(self, table: None, owner: type) -> int: ...

    @overload
    def __get__(self, table: TransitionTable, owner: type) -> int: ...

    def __get__(self, table: TransitionTable | None, owner: type) -> int:
        if table is None:
            return -1  # the field's default
        table.complete()
        found: int = table.__dict__["_min_length"]
        if found == -1 and table.is_nested:
            found = table.__dict__["_min_length"] = int(table.distances.code[0, 0])
        return found

    def __set__(self, table: TransitionTable, value: int) -> None:
        table.__dict__["_min_length"] = value


def integer_vocabulary(vocab_size: int) -> str:
    """Return the fingerprint of a vocabulary of bare integers 0 .. vocab_size - 1."""
    return f"integers:{vocab_size}"


class NestedState(NamedTuple):
    """Where sequences stand in a table with calls: a state, and the return sites of the frames that are open."""

    node: Any  # (B,)
    stack: Any  # (B, slots) sites, the outermost first; 0 from `height` on
    height: Any  # (B,) open frames; 0 where the state is dead


def _nothing() -> NDArray[np.int32]:
    return _NO_NUMBERS


def _no_tokens() -> NDArray[Any]:
    return _NO_NUMBERS


def _no_lists() -> NDArray[np.int32]:
    return _NO_LISTS


def _no_flags() -> NDArray[np.bool_]:
    return _NO_FLAGS


_NO_NUMBERS, _NO_LISTS, _NO_FLAGS = np.empty(0, np.int32), np.zeros(1, np.int32), np.empty(0, np.bool_)
for _array in (_NO_NUMBERS, _NO_LISTS, _NO_FLAGS):  # shared by all tables without calls
    _array.flags.writeable = False


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

    A *nested* table is a graph with a stack of return sites. A part of its rows is a *fragment*: entered with a site on
    top of the stack, left by an *exit*, a token in which the fragment ends. Without calls all that follows is empty.

    - Targets of edges and of sites are codes: states as above (S rows, the state after EOS, the dead state), then
      actions. Action a, coded S + 2 + a, pushes the sites action_push[action_start[a] : action_start[a + 1]] in order
      and goes on in `action_state[a]`. Targets of bases are states alone.
    - Exit list l is the entries exit_start[l] .. exit_start[l + 1]: reading `exit_token` there leaves the fragment with
      symbol `exit_symbol`, which stands for how it ended and for the bytes of the token that are left after the end. A
      row has the lists row_exit[row], which overrides its base, and base_exit[base], which is the base's; -1 for none.
    - Return site k says what a symbol leads to, among its entries site_start[k] .. site_start[k + 1]: `site_target` of
      `site_symbol` is a code, or -1 - y: leave that frame too, with symbol y for the next site. No entry: not allowed.
    - A row whose `base_push` is not negative borrows its base from a fragment: a token of the base's mask also pushes
      that site, and the base's exits find it on top.
    - symbol_label[y] is how the fragment ended where symbol y leaves no bytes, -1 where it leaves some.
    - Frames of sites that are `site_leaf` belong to fragments that make no calls: they are only ever on top, and do not
      count. Of all others at most `depth` may be open. A state is only entered where `state_need` more of them fit,
      which is how many it takes to leave its fragment, and a site only pushed where `site_need` more of them than lie
      below it fit. Both empty: 0 throughout, and no text opens more than `depth`.
    - EOS is allowed in accepting rows where the stack is empty.

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
    min_length: _Length = _Length()  # fewest tokens in a sequence; left out to have both worked out, of a graph
    max_length: int | None = None  # most tokens in a sequence, None where there is no most, and of a nested table
    eos: int | None = None
    vocabulary: str = ""  # fingerprint
    source: str = ""  # hash of what was compiled
    action_state: NDArray[np.int32] = dataclasses.field(default_factory=_nothing)  # (A,) rows
    action_start: NDArray[np.int32] = dataclasses.field(default_factory=_no_lists)  # (A + 1,)
    action_push: NDArray[np.int32] = dataclasses.field(default_factory=_nothing)  # (P,) sites
    row_exit: NDArray[np.int32] = dataclasses.field(default_factory=_nothing)  # (S,) or (0,) exit list
    base_exit: NDArray[np.int32] = dataclasses.field(default_factory=_nothing)  # (R,) or (0,) exit list
    exit_start: NDArray[np.int32] = dataclasses.field(default_factory=_no_lists)  # (L + 1,)
    exit_token: NDArray[np.unsignedinteger[Any]] = dataclasses.field(default_factory=_no_tokens)  # (N,)
    exit_symbol: NDArray[np.int32] = dataclasses.field(default_factory=_nothing)  # (N,)
    site_start: NDArray[np.int32] = dataclasses.field(default_factory=_no_lists)  # (K + 1,)
    site_symbol: NDArray[np.int32] = dataclasses.field(default_factory=_nothing)  # (M,) sorted within a site
    site_target: NDArray[np.int32] = dataclasses.field(default_factory=_nothing)  # (M,) a code, or -1 - symbol
    base_push: NDArray[np.int32] = dataclasses.field(default_factory=_nothing)  # (S,) or (0,) site
    symbol_label: NDArray[np.int32] = dataclasses.field(default_factory=_nothing)  # (Y,)
    site_leaf: NDArray[np.bool_] = dataclasses.field(default_factory=_no_flags)  # (K,)
    state_need: NDArray[np.int32] = dataclasses.field(default_factory=_nothing)  # (S,) or (0,)
    site_need: NDArray[np.int32] = dataclasses.field(default_factory=_nothing)  # (K,) or (0,)
    depth: int = 0  # most frames that are no leaves
    common: Common = _NOTHING

    def __post_init__(self) -> None:
        if self.exit_token.size == 0:
            object.__setattr__(self, "exit_token", self.edge_token[:0])
        fields = self.__dict__
        for name in _ARRAYS:
            array = np.asarray(fields[name])
            flags = array.flags
            if flags.writeable or not flags.c_contiguous:  # whoever holds it could change it still
                array = array.copy()
                array.flags.writeable = False
            fields[name] = array
        if self.vocabulary == "":
            object.__setattr__(self, "vocabulary", integer_vocabulary(self.vocab_size))
        fields["common"] = _common(self.common)
        _check(self)

    def __setstate__(self, fields: dict[str, Any]) -> None:
        """Take the arrays of a pickle or copy, which can be written to, as read-only ones again."""
        fields.pop("distances", None)
        for value in fields.values():
            if isinstance(value, np.ndarray):
                value.flags.writeable = False
        self.__dict__.update(fields)

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

    @cached_property
    def arrays(self) -> TableArrays:
        """All arrays, in groups."""
        return TableArrays(
            Rows(self.row_start, self.accepting, self.base_row, self.state_need),
            Edges(self.edge_token, self.edge_target),
            Bases(self.masks, self.base_mask, self.base_classes, self.base_start, self.base_target),
            TokenClasses(self.class_start, self.class_token, self.class_id),
            TrieLevels(self.level_start, self.item_start, self.item_row),
            Actions(self.action_state, self.action_start, self.action_push),
            Exits(self.row_exit, self.base_exit, self.exit_start, self.exit_token, self.exit_symbol, self.symbol_label),
            Sites(self.site_start, self.site_symbol, self.site_target, self.site_leaf, self.site_need, self.base_push),
        )

    @property
    def rows(self) -> Rows:
        """States that have edges of their own."""
        return self.arrays.rows

    @property
    def edges(self) -> Edges:
        """Tokens that lead on from rows, then the entries of tails."""
        return self.arrays.edges

    @property
    def bases(self) -> Bases:
        """Sets of tokens that many rows share."""
        return self.arrays.bases

    @property
    def classes(self) -> TokenClasses:
        """Lists of tokens that lead elsewhere than most tokens of a base."""
        return self.arrays.classes

    @property
    def trie(self) -> TrieLevels:
        """What only a trie has."""
        return self.arrays.trie

    @property
    def actions(self) -> Actions:
        """Targets that push return sites."""
        return self.arrays.actions

    @property
    def exits(self) -> Exits:
        """Tokens in which a fragment ends."""
        return self.arrays.exits

    @property
    def sites(self) -> Sites:
        """Return sites."""
        return self.arrays.sites

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
    def is_nested(self) -> bool:
        """Whether this table has calls, so that a stack belongs to its states."""
        return self.site_start.size > 1

    @property
    def num_sites(self) -> int:
        """K: return sites."""
        return int(self.site_start.size) - 1

    @property
    def num_symbols(self) -> int:
        """Y: symbols that fragments are left with."""
        return int(self.symbol_label.size)

    @property
    def num_actions(self) -> int:
        """A: targets that push."""
        return int(self.action_state.size)

    @property
    def slots(self) -> int:
        """The places of a stack: one more than `depth`, for the leaf on top; 0 of a table without calls."""
        return self.depth + 1 if self.is_nested else 0

    @property
    def num_sequences(self) -> int:
        """Q: distinct sequences; 0 of a graph, which does not count them."""
        return int(self.item_start.size) - 1

    @property
    def bytes_by_part(self) -> dict[str, int]:
        """Bytes of each array, by name."""
        return {name: int(getattr(self, name).nbytes) for name in _ARRAYS}

    def complete(self) -> TransitionTable:
        """Return this table: its arrays are there, as those of a `LazyTable` are once it is complete."""
        return self

    @property
    def nbytes(self) -> int:
        """Bytes of the table without the map back to input rows, which stays on the host."""
        return sum(n for name, n in self.bytes_by_part.items() if not name.startswith("item_"))

    @property
    def memory(self) -> int:
        """Bytes that the table takes in this process now: its arrays, and masks kept for matchers.

        Of a lazy table that is what has been written of it so far, which grows as it is read.
        """
        host = self.__dict__.get("_host")
        return self._arrays_bytes + (0 if host is None else int(host.nbytes))

    @cached_property
    def _arrays_bytes(self) -> int:
        return sum(self.bytes_by_part.values())

    @property
    def fixed_length(self) -> int | None:
        """The length of every sequence, or None where lengths differ or EOS is needed to end."""
        fixed = self.max_length is not None and self.eos is None and self.min_length == self.max_length
        return self.max_length if fixed else None

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
        """Fewest tokens from each state to an accepting end, EOS aside: (num_states,); NEVER from the dead state.

        Of a nested table, to any end of the fragment that the state is in.
        """
        if self.is_trie:
            out = np.empty(self.num_states, np.int32)
            _distances(self.row_start, self.edge_token, self.edge_target, self.accepting, self.vocab_size, out)
            return out
        if self.is_nested:
            return np.asarray(self.distances.code[: self.num_states].min(axis=1), np.int32)
        return self._facts[0]

    @cached_property
    def distances(self) -> Distances:
        """Of a nested table: distances of codes and sites, upper bounds that some allowed token always reduces.

        Distances are over tokens that leave no bytes behind where a fragment ends, and over what opens as few frames as
        that end needs. NEVER where there is no such way. The ends are the symbols that leave nothing behind, those of
        fragments that make calls first. An accepting row in a fragment ends it before the next token: with several
        symbols, rows whose first exits have one symbol have an end of their own, which leads where their exits do.
        """
        found = _nested_distances(
            self.row_start, self.edge_token, self.edge_target, self.accepting, self.base_row, self.masks,
            self.base_mask, self.base_classes, self.base_start, self.base_target, self.class_start, self.class_token,
            self.class_id, self.action_state, self.action_start, self.action_push, self.row_exit, self.base_exit,
            self.exit_start, self.exit_token, self.exit_symbol, self.site_start, self.site_symbol, self.site_target,
            self.base_push, self.symbol_label, self.site_leaf, self.state_need, self.site_need, self.code_need,
        )  # fmt: skip
        for array in found:
            array.flags.writeable = False
        return Distances(*found)

    @property
    def code_need(self) -> NDArray[np.int32]:
        """Of a nested table: how many more frames must fit for a code to be followed, (S + 2 + A,); of no other."""
        need: NDArray[np.int32] = _fact(self, "_code_need")
        return need

    @property
    def most_need(self) -> int:
        """How many more frames must fit for nothing to be refused for want of room."""
        need: int = _fact(self, "_most_need")
        return need

    @property
    def most_pushes(self) -> int:
        """The most frames that a token opens."""
        pushes: int = _fact(self, "_most_pushes")
        return pushes

    @cached_property
    def farthest(self) -> NDArray[np.int32]:
        """The largest `distance` that a token of each state leads to, (num_states,): -1 where there is no token.

        With more tokens left than that, no token of the state can make an end impossible. Never too small; it may be
        too large for a row that takes away all tokens of some class of its base.
        """
        if self.is_nested:
            raise TypeError("what is far from the end of a nested table depends on its stack: see distances.farthest")
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
        A nested table is walked from the start alone; `follow` goes on from anywhere.
        """
        if self.is_nested:
            if states is not None:
                raise ValueError("a state of a nested table needs its stack: use follow")
            return np.asarray(self.follow(tokens).node)
        array = _tokens(tokens)
        if array.size == 0:
            return np.zeros(array.shape[:1], np.int64) if states is None else states.copy()
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

    def follow(self, tokens: ArrayLike, state: NestedState | None = None) -> NestedState:
        """Return where each row of tokens (N, L) leads in a nested table: (N,); to the dead state if it is not allowed.

        state: where each row starts (N,); the start if left out. Raises ValueError for one that this table has not.
        """
        array = _tokens(tokens)
        count = len(array)
        if state is None:
            state = NestedState(
                np.zeros(count, np.int64), np.zeros((count, self.slots), np.int32), np.zeros(count, np.int32)
            )
        out = NestedState(
            np.array(state.node, np.int64), np.array(state.stack, np.int32), np.array(state.height, np.int32)
        )
        if (out.node.shape, out.stack.shape, out.height.shape) != ((count,), (count, self.slots), (count,)):
            raise ValueError(
                f"a state for {count} rows of this table has node and height ({count},) and stack ({count}, "
                f"{self.slots}), not {out.node.shape}, {out.height.shape} and {out.stack.shape}"
            )
        stray = follow_rows(
            self.row_start, self.edge_token, self.edge_target, self.accepting, self.base_row, self.masks,
            self.base_mask, self.base_classes, self.base_start, self.base_target, self.class_start, self.class_token,
            self.class_id, self.action_state, self.action_start, self.action_push, self.row_exit, self.base_exit,
            self.exit_start, self.exit_token, self.exit_symbol, self.site_start, self.site_symbol, self.site_target,
            self.base_push, self.site_leaf, self.site_need, self.code_need, self.depth, self.vocab_size,
            -1 if self.eos is None else self.eos, array if array.size else np.zeros((count, 0), np.int64), *out,
        )  # fmt: skip
        if stray >= 0:
            raise stray_configuration(self, out, int(stray))
        return out

    def is_accepting(self, states: ArrayLike) -> NDArray[np.bool_]:
        """Return whether each state (N,) ends a sequence, of a nested table with an empty stack: bool (N,)."""
        array = np.asarray(states)
        if array.size and not 0 <= array.min() <= array.max() < self.num_states:
            raise stray_state(self, int(array.min() if array.min() < 0 else array.max()))
        rows = self.accepting[np.minimum(array, self.num_rows - 1)]
        tails = self.edge_token[self.num_edges + np.maximum(array - self.num_rows, 0)] == self.vocab_size
        return np.asarray(np.where(array < self.num_rows, rows, tails))

    def contains(self, sids: ArrayLike) -> NDArray[np.bool_]:
        """Return whether each row of sids (N, L) is in the set: bool (N,)."""
        if self.is_nested:
            reached = self.follow(sids)
            return np.asarray(self.is_accepting(reached.node) & (reached.height == 0))
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
            return TransitionTable(**arrays, **header)
        except (TableError, TypeError) as error:  # TypeError: a header of other fields
            raise TableFileError(f"{name} is not a valid table: {error}") from error


class LazyMachine(Protocol):
    """What a lazy table is until it is worked out: a machine that can be read as it is, from state 0."""

    depth: int
    most_need: int
    strings: int  # the first state within a string

    @property
    def nbytes(self) -> int:
        """Bytes of what has been written so far."""

    def is_leaf(self, site: int) -> bool:
        """Return whether a site is pushed for a fragment that makes no calls."""

    def accepts(self, node: int) -> bool:
        """Return whether a text may end in a state if nothing is open."""

    def alike(self, node: int) -> int:
        """Return the state that stands for all that allow the same as a state within a string, whatever the stack."""

    def mask(self, node: int, sites: bytes, frames: int) -> tuple[NDArray[np.uint32], int, bool | bytes]:
        """Return the tokens that a configuration allows, read-only, and how much of the stack they depend on.

        sites: those of the stack, int32, the outermost first. And what is noted of it in few words, by automata that
        are `Noting`, or whether it is worth being kept as it is. What is returned is written anew once nobody holds it.
        """

    def advance(self, node: int, stack: Any, token: int, push: Callable[[Any, int], Any]) -> tuple[int, Any] | None:
        """Return the state and stack that a token leads to, None if it is not allowed."""

    def fits(self, node: int, stack: Any) -> bool:
        """Return whether there is room to leave all that is open."""


@runtime_checkable
class Noting(Protocol):
    """What notes masks in few words."""

    def restored(self, noted: bytes) -> NDArray[np.uint32]:
        """Return a mask again that was found before, read-only."""


class LazyTable(TransitionTable):
    """A table whose arrays are worked out when they are first asked for, which may take long: `complete` says when.

    Until then a `Matcher` without a budget of tokens reads the machine that the table is made from, state by state as
    they are reached, with the same answers. Whatever needs arrays, such as operations on a device or `Matcher.state`,
    completes the table. BudgetError then says that it is larger than its budget allows. Reading raises it too, where
    what is reached does not fit; and TableError once it was interrupted, which does not keep the table from completing.
    """

    def __init__(
        self, automaton: LazyMachine, make: Callable[[], TransitionTable], *, vocab_size: int, eos: int | None,
        vocabulary: str, source: str, depth: int, nested: bool = True,
        renewed: Callable[[Any], LazyMachine] | None = None,
    ) -> None:  # fmt: skip
        self.__dict__.update(
            vocab_size=vocab_size, eos=eos, vocabulary=vocabulary, source=source, depth=depth, automaton=automaton,
            _make=make, _lock=threading.Lock(), _nested=nested, _renewed=renewed,
        )  # fmt: skip

    @property
    def is_complete(self) -> bool:
        """Whether the arrays are there."""
        return "row_start" in self.__dict__

    def complete(self) -> LazyTable:
        """Work out the arrays, if they are not there yet, and return the table.

        Raises BudgetError, and NoTableError where a grammar has no finite table.
        """
        with self.__dict__["_lock"]:
            if not self.is_complete:
                self.__dict__.update(self.__dict__["_make"]().__dict__)
                # matchers that read it keep what they need
                for name in ("automaton", "_make", "_renewed", "_lazy_host"):
                    self.__dict__.pop(name, None)
        return self

    def reading(self) -> LazyMachine | None:
        """Return the machine that a new matcher reads, None once the table is complete.

        That is another one where so many states of the last one were reached that its budget would not last.
        """
        automaton: LazyMachine | None = self.__dict__.get("automaton")
        renewed = self.__dict__.get("_renewed")
        if automaton is None or renewed is None or (found := renewed(automaton)) is automaton:
            return automaton
        lock = self.__dict__["_lock"]
        if lock.acquire(blocking=False):  # else another thread completes the table
            try:
                if not self.is_complete:
                    self.__dict__["automaton"] = found
            finally:
                lock.release()
        return found  # type: ignore[no-any-return]

    def has_arrays(self) -> bool:
        """Return whether there is a finite table, within the budget; it is worked out to know that.

        Raises the errors of a constraint that is at fault. What was found stays so: `complete` may be asked again.
        """
        if self.is_complete:
            return True
        known: bool | None = self.__dict__.get("_has_arrays")
        if known is None:
            try:
                self.complete()
                known = True
            except (NoTableError, BudgetError):
                known = False
            self.__dict__["_has_arrays"] = known
        return known

    def contains(self, sids: ArrayLike) -> NDArray[np.bool_]:
        """Return whether each row of sids (N, L) is in the set: bool (N,); one without calls is read as it is."""
        automaton: LazyMachine | None = self.__dict__.get(
            "automaton"
        )  # another thread may complete the table meanwhile
        if automaton is None or automaton.depth:
            return super().contains(sids)
        return np.array([_reads(automaton, row, self.vocab_size, self.eos) for row in _tokens(sids).tolist()], np.bool_)

    def keep_with(self, around: Callable[[Callable[[], TransitionTable]], TransitionTable]) -> None:
        """Have the arrays worked out by around(make), which may know them from elsewhere, or keep them there."""
        make = self.__dict__["_make"]
        self.__dict__["_make"] = lambda: around(make)

    @property
    def memory(self) -> int:
        """Bytes that the table takes in this process now: what has been written so far, and masks kept for matchers."""
        automaton = self.__dict__.get("automaton")
        if automaton is None:
            return super().memory
        host = self.__dict__.get("_lazy_host")
        return int(automaton.nbytes) + (0 if host is None else int(host.nbytes))

    @property
    def is_nested(self) -> bool:
        """Whether this table has calls, or may have some as long as it is not complete."""
        return self.site_start.size > 1 if self.is_complete else bool(self.__dict__["_nested"])

    def __getattr__(self, name: str) -> Any:
        if name not in _MADE:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return self.complete().__dict__[name]

    def __repr__(self) -> str:
        if self.is_complete:
            return super().__repr__()
        return f"LazyTable(vocab_size={self.vocab_size}, eos={self.eos}, not worked out yet)"

    def __reduce__(self) -> Any:
        self.complete()
        names = [field.name for field in dataclasses.fields(TransitionTable)]
        if self.is_nested:  # it is worked out when it is asked for
            names.remove("min_length")
        return _complete_table, ({name: getattr(self, name) for name in names},)

    def __copy__(self) -> LazyTable:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> LazyTable:
        return self  # tables do not change


def _reads(automaton: LazyMachine, tokens: list[int], vocab_size: int, eos: int | None) -> bool:
    """Return whether a machine without a stack accepts tokens, which EOS may close."""
    node = 0
    for i, token in enumerate(tokens):
        if token == eos:
            return automaton.accepts(node) and all(other == eos for other in tokens[i:])
        found = automaton.advance(node, None, token, _no_push) if 0 <= token < vocab_size else None
        if found is None:
            return False
        node = found[0]
    return automaton.accepts(node)


def _no_push(stack: Any, site: int) -> Any:
    raise AssertionError("a machine without a stack pushes nothing")


_MADE = frozenset((*_ARRAYS, "_min_length", "_code_need", "_most_need", "_most_pushes"))


def _fact(table: TransitionTable, name: str) -> Any:
    """Return what was found when a table was checked; a lazy one is worked out for it."""
    return getattr(table, name)


def _complete_table(fields: dict[str, Any]) -> TransitionTable:
    return TransitionTable(**fields)


def stray_state(table: TransitionTable, state: int) -> ValueError:
    """Return the error for a state that is none of a table's."""
    return ValueError(
        f"state {state} is outside this table, whose states are 0 .. {table.num_states - 1}: "
        "it comes from another table"
    )


def stray_configuration(table: TransitionTable, state: NestedState, row: int) -> ValueError:
    """Return the error for a row of a batch that stands nowhere in a nested table."""
    node, height = int(state.node[row]), int(state.height[row])
    if not 0 <= node < table.num_states:
        return stray_state(table, node)
    return ValueError(
        f"row {row} has a stack of height {height} with sites {state.stack[row].tolist()}: this table's has at most "
        f"{table.slots} of sites 0 .. {table.num_sites - 1}, none of them after EOS; it comes from another table"
    )


def _tokens(tokens: ArrayLike) -> NDArray[Any]:
    """Return tokens (N, L) as an array in this machine's byte order; ValueError for what is none."""
    array = np.asarray(tokens)
    if array.size == 0:
        return array
    if array.ndim != 2 or array.dtype.kind not in "iu":
        raise ValueError(f"tokens must be integers of shape (N, L), not {array.dtype} of shape {array.shape}")
    return array.astype(array.dtype.newbyteorder("="), copy=False)


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
    token, row = (np.min_scalar_type(size + 1),), (table.row_start.dtype,)
    for name, allowed in _KINDS.items():
        array = getattr(table, name)
        kinds = allowed or (row if name == "edge_target" else token)
        ndim = 2 if name == "masks" else 1
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
        (
            min(table.action_start.size, table.exit_start.size, table.site_start.size) >= 1,
            "action_start, exit_start or site_start is empty",
        ),
        (table.action_start.size == table.action_state.size + 1, "action_state and action_start differ in length"),
        (table.row_exit.size in (0, rows), "row_exit and row_start differ in length"),
        (table.base_push.size in (0, rows), "base_push and row_start differ in length"),
        (table.state_need.size in (0, rows), "state_need and row_start differ in length"),
        (table.base_exit.size in (0, bases), "base_exit and base_mask differ in length"),
        (table.exit_token.size == table.exit_symbol.size, "exit_token and exit_symbol differ in length"),
        (table.site_symbol.size == table.site_target.size, "site_symbol and site_target differ in length"),
        (table.site_leaf.size == table.num_sites, "site_leaf and site_start differ in length"),
        (table.site_need.size in (0, table.num_sites), "site_need and site_start differ in length"),
    )
    for holds, message in consistent:
        if not holds:
            raise TableError(message)
    if type(table.depth) is not int or not 0 <= table.depth <= MOST_DEPTH:
        raise TableError(f"depth must be an integer from 0 to {MOST_DEPTH:,}, not {table.depth!r}")
    if not table.is_nested and (
        table.depth or any(getattr(table, name).size for name in _OF_CALLS) or table.exit_start.size > 1
    ):
        raise TableError("a table without return sites has no actions, exits, symbols, needs or depth")
    if table.is_trie and (table.is_nested or table.common.rows):
        raise TableError("a trie has no return sites, and nothing in common with others")
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
    fault, where, need, most, pushes = _first_graph_fault(
        table.row_start, table.edge_token, table.edge_target, table.base_row, table.masks, table.base_mask,
        table.base_classes, table.base_start, table.base_target, table.class_start, table.class_token, table.class_id,
        table.action_state, table.action_start, table.action_push, table.row_exit, table.base_exit, table.exit_start,
        table.exit_token, table.exit_symbol, table.site_start, table.site_symbol, table.site_target, table.base_push,
        table.symbol_label, table.site_leaf, table.state_need, table.site_need, table.vocab_size,
        -1 if table.eos is None else table.eos,
    )  # fmt: skip
    if fault:
        raise TableError(f"{_FAULTS[fault]} (at {where})")
    common = table.common
    if any(common):
        within = (
            common.rows < table.num_rows and common.bases <= table.base_mask.size and common.sites <= table.num_sites
            and common.actions <= table.num_actions
        )  # fmt: skip
        if not within or leads_out(table.__dict__, common):
            raise TableError(f"what is common to tables, {common}, leads to what is not, or is led to by distance")
    if table.is_nested:
        need.flags.writeable = False
        table.__dict__.update(_code_need=need, _most_need=int(most), _most_pushes=int(pushes))
        if table.__dict__["_min_length"] != -1 or table.max_length is not None:
            _check_lengths(table, int(table.distances.code[0, 0]), None)
        return
    distance, longest = table._facts
    if (distance[:-1] == NEVER).any():
        raise TableError(f"no end can be reached from a row: decoding would run into a dead end "
                         f"(at {int(np.argmax(distance == NEVER))})")  # fmt: skip
    found = int(distance[0]), None if longest < 0 else longest
    if table.min_length == -1 and table.max_length is None:
        object.__setattr__(table, "min_length", found[0])
        object.__setattr__(table, "max_length", found[1])
    _check_lengths(table, *found)


def _common(found: Any) -> Common:
    """Return what a table has in common with others, as a file may say it; TableError for anything else."""
    if not isinstance(found, tuple | list) or len(found) != len(Common._fields):
        raise TableError(f"common must be {len(Common._fields)} numbers, not {found!r}")
    if any(type(count) is not int or count < 0 for count in found):
        raise TableError(f"common must be numbers of rows, bases, sites and actions, not {found!r}")
    if not found[0] and any(found):
        raise TableError("common bases, sites and actions belong to rows, and there are none")
    return Common(*found)


def leads_out(arrays: Mapping[str, Any], common: Common) -> bool:
    """Return whether what is said to be common leads to what is not, or other rows into it by distance."""
    a = arrays
    found: bool = _leads_out(
        a["row_start"], a["edge_target"], a["base_row"], a["base_start"], a["base_target"], a["action_state"],
        a["action_start"], a["action_push"], a["site_start"], a["site_target"], a["base_push"], *common,
    )  # fmt: skip
    return found


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
    "action_start does not rise from 0 to the number of pushes, by one push an action at least",
    "an action leads or pushes outside the table",
    "an action pushes onto a leaf",
    "row_exit or base_exit points outside",
    "base_push points outside",
    "exit_start does not rise from 0 to the number of exits",
    "tokens of an exit list are not strictly increasing, below vocab_size and other than eos",
    "an exit's symbol is outside symbol_label",
    "site_start does not rise from 0 to the number of targets",
    "symbols of a site are not strictly increasing and in symbol_label",
    "a site leads outside the table",
    "a need is negative or more than any depth",
    "symbol_label is less than -1",
    "a row's base leads outside the table",
)


@kernel
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


@kernel
def _leads_out(
    row_start: Any,
    edge_target: Any,
    base_row: Any,
    base_start: Any,
    base_target: Any,
    action_state: Any,
    action_start: Any,
    action_push: Any,
    site_start: Any,
    site_target: Any,
    base_push: Any,
    common_rows: int,
    common_bases: int,
    common_sites: int,
    common_actions: int,
) -> bool:
    """Return whether what is common leads to what is not, or a row is numbered relative to one on the other side."""
    rows = row_start.size - 1
    action = rows + 2
    for e in range(row_start[1], row_start[common_rows + 1]):
        code = edge_target[e]
        if code == 0 or common_rows < code < rows or code >= action + common_actions:
            return True
    for x in range(base_start[common_bases]):
        code = base_target[x]
        if code & 1 or not 1 <= code >> 1 <= common_rows:
            return True
    for s in range(rows):
        if 1 <= s <= common_rows:
            if base_row[s] >= common_bases or (base_push.size and base_push[s] >= common_sites):
                return True
        elif base_row[s] >= common_bases:
            for x in range(base_start[base_row[s]], base_start[base_row[s] + 1]):
                code = base_target[x]
                t = s + (np.int64(code) >> 1)
                # own rows lie side by side, the start before the others, without what is common between them
                if code & 1 and 0 <= t < rows and (t <= common_rows or s == 0):
                    return True
    for a in range(common_actions):
        if not 1 <= action_state[a] <= common_rows:
            return True
    for x in range(action_start[common_actions]):
        if action_push[x] >= common_sites:
            return True
    for x in range(site_start[common_sites]):
        code = site_target[x]
        if code == 0 or common_rows < code < rows or code >= action + common_actions:
            return True
    return False


@kernel
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
    action_state: Any,
    action_start: Any,
    action_push: Any,
    row_exit: Any,
    base_exit: Any,
    exit_start: Any,
    exit_token: Any,
    exit_symbol: Any,
    site_start: Any,
    site_symbol: Any,
    site_target: Any,
    base_push: Any,
    symbol_label: Any,
    site_leaf: Any,
    state_need: Any,
    site_need: Any,
    vocab_size: int,
    eos: int,
) -> Any:
    """Return (index into _FAULTS, position, need by code, most need, most pushes) of a graph; index 0 if it is sound.

    Lists are scanned without ways out, so that this is vector code; where one is wrong, it is searched again.
    """
    rows, edges, bases = row_start.size - 1, edge_target.size, base_mask.size
    lists, actions, sites, symbols = class_start.size - 1, action_state.size, site_leaf.size, symbol_label.size
    exits = exit_start.size - 1
    dead = rows + 1
    codes = rows + 2 + actions
    nested = sites > 0
    need = np.zeros(codes if nested else 0, np.int32)
    if edge_token[edges] != vocab_size or edge_token[edges + 1] != vocab_size + 1:
        return 8, edges, need, 0, 0
    for u in range(masks.shape[0]):
        if eos >= 0 and (masks[u, eos >> 5] >> np.uint32(eos & 31)) & np.uint32(1):
            return 19, u, need, 0, 0
        if vocab_size & 31 and masks[u, masks.shape[1] - 1] >> np.uint32(vocab_size & 31):
            return 19, u, need, 0, 0
    if class_start[0] != 0 or class_start[lists] != class_token.size:
        return 21, 0, need, 0, 0
    classes = np.zeros(lists, np.int64)  # of each list
    for k in range(lists):
        if class_start[k + 1] < class_start[k] or class_start[k + 1] > class_token.size:
            return 21, k, need, 0, 0
        classes[k] = 1
        previous: Any = -1
        for x in range(class_start[k], class_start[k + 1]):
            token = np.int64(class_token[x])
            if token <= previous or token >= vocab_size:
                return 18, x, need, 0, 0
            if class_id[x] < 0:
                return 22, x, need, 0, 0
            classes[k] = max(classes[k], class_id[x] + 1)
            previous = token
    if base_start[0] != 0 or base_start[bases] != base_target.size:
        return 16, 0, need, 0, 0
    lowest, highest = np.zeros(bases, np.int64), np.zeros(bases, np.int64)  # rows by whom all codes lead to rows
    for b in range(bases):
        if not (0 <= base_mask[b] < masks.shape[0] and 0 <= base_classes[b] < lists):
            return 17, b, need, 0, 0
        if base_start[b + 1] < base_start[b] or base_start[b + 1] > base_target.size:
            return 16, b, need, 0, 0
        if base_start[b + 1] - base_start[b] < classes[base_classes[b]]:
            return 22, b, need, 0, 0
        lowest[b], highest[b] = 0, rows - 1
        for x in range(base_start[b], base_start[b + 1]):
            code = base_target[x]
            if not code & 1 and not 0 <= code >> 1 < rows:
                return 20, b, need, 0, 0
            if code & 1:
                lowest[b] = max(lowest[b], -(np.int64(code) >> 1))
                highest[b] = min(highest[b], rows - 1 - (np.int64(code) >> 1))
        if base_exit.size and not -1 <= base_exit[b] < exits:
            return 26, b, need, 0, 0
    if row_start[0] != 0 or row_start[rows] != edges:
        return 1, 0, need, 0, 0
    unsorted, strays = 0, 0  # where tokens do not rise, within rows in the end; tokens that no row may hold
    for e in range(1, edges):
        unsorted += edge_token[e] <= edge_token[e - 1]
    for e in range(edges):
        strays += (edge_token[e] >= vocab_size) | (edge_token[e] == eos)
    for s in range(rows):
        a, b = row_start[s], row_start[s + 1]
        base = base_row[s]
        if b < a or b > edges:
            return 1, s, need, 0, 0
        if base < -1 or base >= bases:
            return 6, s, need, 0, 0
        if 0 < a < b:
            unsorted -= edge_token[a] <= edge_token[a - 1]
        if not nested:
            for e in range(a, b):
                if edge_target[e] == dead:
                    token = np.int64(edge_token[e])
                    if base < 0 or not (masks[base_mask[base], token >> 5] >> np.uint32(token & 31)) & np.uint32(1):
                        return 15, e, need, 0, 0
    for e in range(edges):
        strays += (edge_target[e] < 0) | (edge_target[e] >= codes) | (edge_target[e] == dead - 1)
    if unsorted or strays:
        for s in range(rows):
            previous = -1
            for e in range(row_start[s], row_start[s + 1]):
                token = np.int64(edge_token[e])
                if token <= previous or token >= vocab_size:
                    return 3, e, need, 0, 0
                if token == eos:
                    return 12, e, need, 0, 0
                if edge_target[e] < 0 or edge_target[e] >= codes or edge_target[e] == dead - 1:
                    return 4, e, need, 0, 0
                previous = token
    if not nested:
        return 0, 0, need, 0, 0

    if action_start[0] != 0 or action_start[actions] != action_push.size:
        return 23, 0, need, 0, 0
    for y in range(symbols):
        if symbol_label[y] < -1:
            return 35, y, need, 0, 0
    for s in range(state_need.size):
        if not 0 <= state_need[s] <= MOST_DEPTH:
            return 34, s, need, 0, 0
        need[s] = state_need[s]
    for k in range(site_need.size):
        if not 0 <= site_need[k] <= MOST_DEPTH:
            return 34, k, need, 0, 0
    most_state = need.max()
    most_pushes = np.int64(0)
    for action in range(actions):
        first, stop = np.int64(action_start[action]), np.int64(action_start[action + 1])
        if stop <= first or stop > action_push.size:
            return 23, action, need, 0, 0
        if not 0 <= action_state[action] < rows:
            return 24, action, need, 0, 0
        frames, most = np.int64(0), np.int64(0)
        for p in range(first, stop):
            k = action_push[p]
            if not 0 <= k < sites:
                return 24, action, need, 0, 0
            if site_leaf[k] and p + 1 < stop:
                return 25, action, need, 0, 0
            if site_need.size:
                most = max(most, frames + site_need[k])
            frames += not site_leaf[k]
        most = max(most, frames + need[action_state[action]])
        need[rows + 2 + action] = min(most, MOST_DEPTH + 1)
        most_pushes = max(most_pushes, stop - first)
    most_need = np.int64(need.max())
    if exit_start[0] != 0 or exit_start[exits] != exit_token.size:
        return 28, 0, need, 0, 0
    unsorted = strays = 0
    for x in range(1, exit_token.size):
        unsorted += exit_token[x] <= exit_token[x - 1]
    for x in range(exit_token.size):
        strays += (exit_token[x] >= vocab_size) | (exit_token[x] == eos)
    for k in range(exits):
        a, b = exit_start[k], exit_start[k + 1]
        if b < a or b > exit_token.size:
            return 28, k, need, 0, 0
        if 0 < a < b:
            unsorted -= exit_token[a] <= exit_token[a - 1]
    if unsorted or strays:
        return 29, 0, need, 0, 0
    for x in range(exit_symbol.size):
        strays += (exit_symbol[x] < 0) | (exit_symbol[x] >= symbols)
    if strays:
        return 30, 0, need, 0, 0
    if site_start[0] != 0 or site_start[sites] != site_symbol.size:
        return 31, 0, need, 0, 0
    for k in range(sites):
        a, b = site_start[k], site_start[k + 1]
        if b < a or b > site_symbol.size:
            return 31, k, need, 0, 0
        previous = -1
        for x in range(a, b):
            if site_symbol[x] <= previous or site_symbol[x] >= symbols:
                return 32, x, need, 0, 0
            previous = site_symbol[x]
            code = site_target[x]
            if code < -symbols or code >= codes or code == dead or code == dead - 1:
                return 33, x, need, 0, 0
    for s in range(row_exit.size):
        if not -1 <= row_exit[s] < exits:
            return 26, s, need, 0, 0
    for s in range(base_push.size):
        k = base_push[s]
        if not -1 <= k < sites:
            return 27, s, need, 0, 0
        if k >= 0:
            most_pushes = max(most_pushes, np.int64(1))
            if site_need.size:
                most_need = max(most_need, np.int64(site_need[k]))
            if not site_leaf[k]:
                most_need = max(most_need, np.int64(1) + most_state)
    held = np.zeros(base_target.size, np.int64)  # tokens of each class of a base
    counted = np.zeros(bases, np.bool_)
    for s in range(rows):
        base = base_row[s]
        if base < 0 or lowest[base] <= s <= highest[base]:
            continue
        # some class leads to no row from here: the row's own edges and exits must take all its tokens
        listed, first = base_classes[base], np.int64(base_start[base])
        if not counted[base]:
            counted[base] = True
            for w in range(masks.shape[1]):
                word = masks[base_mask[base], w]
                word -= (word >> np.uint32(1)) & np.uint32(0x55555555)
                word = (word & np.uint32(0x33333333)) + ((word >> np.uint32(2)) & np.uint32(0x33333333))
                word = (word + (word >> np.uint32(4))) & np.uint32(0x0F0F0F0F)
                held[first] += ((word * np.uint32(0x01010101)) & np.uint32(0xFFFFFFFF)) >> np.uint32(24)
            for y in range(class_start[listed], class_start[listed + 1]):
                token = np.int64(class_token[y])
                if (masks[base_mask[base], token >> 5] >> np.uint32(token & 31)) & np.uint32(1):
                    held[first] -= 1
                    held[first + class_id[y]] += 1
        stray = np.int64(0)
        for x in range(first, base_start[base + 1]):
            code = np.int64(base_target[x])
            if not 0 <= (code >> 1) + (code & 1) * s < rows:
                stray += held[x]
        own = row_exit[s] if row_exit.size else -1
        for pool in range(2 if stray else 0):
            if pool and own < 0:
                break
            tokens = exit_token if pool else edge_token
            for x in range(
                exit_start[own] if pool else row_start[s], exit_start[own + 1] if pool else row_start[s + 1]
            ):
                token = np.int64(tokens[x])
                if not (masks[base_mask[base], token >> 5] >> np.uint32(token & 31)) & np.uint32(1):
                    continue
                if pool and _place(edge_token, row_start[s], row_start[s + 1], token) >= 0:
                    continue
                y = _place(class_token, class_start[listed], class_start[listed + 1], token)
                code = np.int64(base_target[first + (class_id[y] if y >= 0 else 0)])
                if not 0 <= (code >> 1) + (code & 1) * s < rows:
                    stray -= 1
        if stray:
            return 36, s, need, 0, 0
    return 0, 0, need, most_need, most_pushes


@kernel
def _place(array: Any, first: Any, stop: Any, value: Any) -> Any:
    """Return where a sorted part of an array holds a value, or -1."""
    lo, hi = np.int64(first), np.int64(stop)
    end = hi
    while lo < hi:
        mid = (lo + hi) >> 1
        if np.int64(array[mid]) < value:
            lo = mid + 1
        else:
            hi = mid
    return lo if lo < end and np.int64(array[lo]) == value else np.int64(-1)


# ------------------------------------------------------------------------------------------------------ kernels


@kernel
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


@kernel
def stray_row(rows: int, sites: int, node: Any, stack: Any, height: Any) -> int:
    """Return the first of configurations (n,) that is none of a nested table with so many rows and sites, or -1."""
    for i in range(node.size):
        if not (0 <= node[i] <= rows + 1 and 0 <= height[i] <= (stack.shape[1] if node[i] < rows else 0)):
            return i
        for j in range(height[i]):
            if not 0 <= stack[i, j] < sites:
                return i
    return -1


@kernel
def follow_rows(
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
    action_state: Any,
    action_start: Any,
    action_push: Any,
    row_exit: Any,
    base_exit: Any,
    exit_start: Any,
    exit_token: Any,
    exit_symbol: Any,
    site_start: Any,
    site_symbol: Any,
    site_target: Any,
    base_push: Any,
    site_leaf: Any,
    site_need: Any,
    code_need: Any,
    depth: int,
    vocab_size: int,
    eos: int,
    tokens: Any,
    node: Any,
    stack: Any,
    height: Any,
) -> int:
    """Follow each row of tokens (N, L) of a nested table, in place; return a row that stands nowhere in it, or -1."""
    rows = row_start.size - 1
    dead = rows + 1
    stray = stray_row(rows, site_leaf.size, node, stack, height)
    if stray >= 0:
        return stray
    for i in range(node.size):
        s, h = node[i], np.int64(height[i])
        stack[i, h:] = 0
        for j in range(tokens.shape[1]):
            token = np.int64(tokens[i, j])
            if s >= rows:
                if not (s < dead and token == eos and eos >= 0):
                    s = dead
                continue
            frames = np.int64(0)
            for x in range(h):
                frames += not site_leaf[stack[i, x]]
            code, symbol = np.int64(dead), np.int64(-1)
            found = _place(edge_token, row_start[s], row_start[s + 1], token)
            own = row_exit[s] if row_exit.size else -1
            own_exit = np.int64(-1)
            if found < 0 and own >= 0:
                own_exit = _place(exit_token, exit_start[own], exit_start[own + 1], token)
            base = base_row[s]
            if found >= 0:
                code = edge_target[found]
            elif own_exit >= 0:
                symbol = exit_symbol[own_exit]
            elif token == eos and eos >= 0:
                if accepting[s] and h == 0:
                    code = dead - 1
            elif base >= 0 and 0 <= token < vocab_size:
                push = base_push[s] if base_push.size else -1
                if push >= 0:
                    needed = np.int64(not site_leaf[push])
                    if site_need.size:
                        needed = max(needed, site_need[push])
                    if frames + needed <= depth and h < stack.shape[1]:
                        stack[i, h] = push
                        h += 1
                        frames += not site_leaf[push]
                    else:
                        base = -1
                if base < 0:
                    pass
                elif (masks[base_mask[base], token >> 5] >> np.uint32(token & 31)) & np.uint32(1):
                    k = base_classes[base]
                    found = _place(class_token, class_start[k], class_start[k + 1], token)
                    code = np.int64(base_target[base_start[base] + (class_id[found] if found >= 0 else 0)])
                    code = (code >> 1) + (code & 1) * s
                elif base_exit.size and base_exit[base] >= 0:
                    found = _place(exit_token, exit_start[base_exit[base]], exit_start[base_exit[base] + 1], token)
                    if found >= 0:
                        symbol = exit_symbol[found]
            while symbol >= 0:
                if h == 0:
                    break
                h -= 1
                k = stack[i, h]
                stack[i, h] = 0
                frames -= not site_leaf[k]
                found = _place(site_symbol, site_start[k], site_start[k + 1], symbol)
                if found < 0:
                    break
                code = np.int64(site_target[found])
                symbol = -1 - code if code < 0 else np.int64(-1)
                if code < 0:
                    code = np.int64(dead)
            if code < dead - 1 or code > dead:
                if frames + code_need[code] > depth:
                    code = np.int64(dead)
                elif code > dead:
                    first, stop = np.int64(action_start[code - rows - 2]), np.int64(action_start[code - rows - 1])
                    if h + stop - first > stack.shape[1]:
                        code = np.int64(dead)
                    else:
                        for p in range(first, stop):
                            stack[i, h] = action_push[p]
                            h += 1
                        code = np.int64(action_state[code - rows - 2])
            s = code
            if s >= rows:
                stack[i, :] = 0
                h = np.int64(0)
        node[i], height[i] = s, h
    return -1


@kernel
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


@kernel
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


@kernel
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


@kernel
def _belong(
    code: Any, where: Any, rows: Any, action_state: Any, action_start: Any, action_push: Any, of_row: Any, of_site: Any,
    done: Any,
) -> Any:  # fmt: skip
    """Note that a code is followed in a fragment (2) or outside of all (1); return whether that was news."""
    news = False
    if code >= rows + 2:
        for p in range(action_start[code - rows - 2], action_start[code - rows - 1]):
            news |= of_site[action_push[p]] | where != of_site[action_push[p]]
            of_site[action_push[p]] |= where
            where = np.uint8(2)
        code = np.int64(action_state[code - rows - 2])
    if code < rows and of_row[code] | where != of_row[code]:
        of_row[code] |= where
        done[code] = False
        news = True
    return news


@kernel
def _belonging(
    base_row: Any,
    action_state: Any,
    action_start: Any,
    action_push: Any,
    site_start: Any,
    site_target: Any,
    base_push: Any,
    start: Any,
    to: Any,
    own_start: Any,
    own_to: Any,
) -> Any:
    """Return where rows (S,) and what lies below sites (K,) can be: 1 outside of all fragments, 2 in one, 3 both, or 0.

    start, to: what each row's base leads to; own_start, own_to: its own edges.
    """
    rows, sites = base_row.size, site_start.size - 1
    of_row, of_site = np.zeros(rows, np.uint8), np.zeros(sites, np.uint8)
    done, returned = np.ones(rows, np.bool_), np.zeros(sites, np.uint8)
    of_row[0] = 1
    done[0] = False
    news = True
    while news:
        news = False
        for s in range(rows):
            if done[s]:
                continue
            done[s] = True
            for e in range(own_start[s], own_start[s + 1]):
                news |= _belong(
                    own_to[e], of_row[s], rows, action_state, action_start, action_push, of_row, of_site, done
                )
            where = of_row[s]
            if base_row[s] >= 0 and base_push.size and base_push[s] >= 0:
                news |= of_site[base_push[s]] | where != of_site[base_push[s]]
                of_site[base_push[s]] |= where
                where = np.uint8(2)
            for x in range(start[s], start[s + 1]):
                if to[x] >= 0:
                    news |= _belong(to[x], where, rows, action_state, action_start, action_push, of_row, of_site, done)
        for k in range(sites):
            if of_site[k] == returned[k]:
                continue
            returned[k] = of_site[k]
            for x in range(site_start[k], site_start[k + 1]):
                if site_target[x] >= 0:
                    news |= _belong(
                        np.int64(site_target[x]), of_site[k], rows, action_state, action_start, action_push, of_row,
                        of_site, done,
                    )  # fmt: skip
    return of_row, of_site


@kernel(inline="always")
def _lower(
    code: Any, needed: Any, counting: Any, several: Any, most: Any, s: Any, code_need: Any, room_code: Any, far: Any,
    best: Any,
) -> None:  # fmt: skip
    """Lower what is best for each end of a row by a token to a code, which needs room besides."""
    for c in range(best.size):
        room = max(needed, np.int64(code_need[code]))
        if several:
            room = max(room, room_code[code, c])
        if not counting:
            best[c] = min(best[c], room)
        elif room <= (room_code[s, c] if several else most):
            best[c] = min(best[c], far[code, c] + 1)


@kernel
def _nested_distances(
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
    action_state: Any,
    action_start: Any,
    action_push: Any,
    row_exit: Any,
    base_exit: Any,
    exit_start: Any,
    exit_token: Any,
    exit_symbol: Any,
    site_start: Any,
    site_symbol: Any,
    site_target: Any,
    base_push: Any,
    symbol_label: Any,
    site_leaf: Any,
    state_need: Any,
    site_need: Any,
    code_need: Any,
) -> Any:
    """Return `Distances`: found by passes over all rows, last first, until nothing changes."""
    rows, bases, sites, actions = row_start.size - 1, base_mask.size, site_leaf.size, action_state.size
    dead = rows + 1
    tight = state_need.size > 0  # without needs the limit is out of reach
    left = np.zeros(base_target.size, np.int64)  # tokens of each class of each base
    for b in range(bases):
        count = 0
        for w in range(masks.shape[1]):
            word = masks[base_mask[b], w]
            word -= (word >> np.uint32(1)) & np.uint32(0x55555555)
            word = (word & np.uint32(0x33333333)) + ((word >> np.uint32(2)) & np.uint32(0x33333333))
            word = (word + (word >> np.uint32(4))) & np.uint32(0x0F0F0F0F)
            count += ((word * np.uint32(0x01010101)) & np.uint32(0xFFFFFFFF)) >> np.uint32(24)
        if base_start[b + 1] > base_start[b]:
            left[base_start[b]] += count
        k = base_classes[b]
        for x in range(class_start[k], class_start[k + 1]):
            token = np.int64(class_token[x])
            if (masks[base_mask[b], token >> 5] >> np.uint32(token & 31)) & np.uint32(1):
                left[base_start[b]] -= 1
                left[base_start[b] + class_id[x]] += 1
    # what remains of each row's base: states, and as -1 - symbol its exits that leave no bytes behind
    start = np.zeros(rows + 1, np.int64)
    to = np.empty(edge_target.size + 64, np.int64)
    last_code, last_symbol = np.full(rows + 2 + actions, -1, np.int64), np.full(symbol_label.size, -1, np.int64)
    at = 0
    for s in range(rows):
        base = base_row[s]
        start[s + 1] = at
        if base < 0:
            continue
        room = np.int64(base_start[base + 1] - base_start[base])
        found = np.int64(base_exit[base]) if base_exit.size else np.int64(-1)
        if found >= 0:
            room += exit_start[found + 1] - exit_start[found]
        if at + room > to.size:
            grown = np.empty(2 * to.size + room, np.int64)
            grown[:at] = to[:at]
            to = grown
        own = row_exit[s] if row_exit.size else -1
        k = base_classes[base]
        for sign in (-1, 1):
            if sign == 1:
                for x in range(base_start[base], base_start[base + 1]):
                    code = np.int64(base_target[x])
                    code = (code >> 1) + (code & 1) * s
                    if left[x] > 0 and last_code[code] != s:
                        last_code[code] = s
                        to[at] = code
                        at += 1
            for part in range(2 if own >= 0 else 1):
                array = exit_token if part else edge_token
                first = exit_start[own] if part else row_start[s]
                stop = exit_start[own + 1] if part else row_start[s + 1]
                for e in range(first, stop):
                    token = np.int64(array[e])
                    if not (masks[base_mask[base], token >> 5] >> np.uint32(token & 31)) & np.uint32(1):
                        continue
                    if part and _place(edge_token, row_start[s], row_start[s + 1], token) >= 0:
                        continue  # counted already
                    x = _place(class_token, class_start[k], class_start[k + 1], token)
                    left[base_start[base] + (class_id[x] if x >= 0 else 0)] += sign
        if found >= 0:
            for x in range(exit_start[found], exit_start[found + 1]):
                token, y = np.int64(exit_token[x]), exit_symbol[x]
                if (
                    symbol_label[y] >= 0
                    and last_symbol[y] != s
                    and _place(edge_token, row_start[s], row_start[s + 1], token) < 0
                    and (own < 0 or _place(exit_token, exit_start[own], exit_start[own + 1], token) < 0)
                    and not (masks[base_mask[base], token >> 5] >> np.uint32(token & 31)) & np.uint32(1)
                ):
                    last_symbol[y] = s
                    to[at] = -1 - np.int64(y)
                    at += 1
        start[s + 1] = at
    # and where its own edges lead
    own_start, own_to = np.zeros(rows + 1, np.int64), np.empty(edge_target.size, np.int64)
    last_code[:] = -1
    at = 0
    for s in range(rows):
        for e in range(row_start[s], row_start[s + 1]):
            code = np.int64(edge_target[e])
            if code != dead and last_code[code] != s:
                last_code[code] = s
                own_to[at] = code
                at += 1
        own_start[s + 1] = at

    of_row, of_site = _belonging(
        base_row, action_state, action_start, action_push, site_start, site_target, base_push, start, to, own_start,
        own_to,
    )  # fmt: skip
    # the ends: symbols that leave nothing behind, of fragments that make calls first
    end_of = np.full(symbol_label.size, -1, np.int64)
    ends, outer = np.int64(0), np.int64(1)
    for leaf in (False, True):
        for k in range(sites):
            if of_site[k] == 0 or site_leaf[k] != leaf:
                continue
            for x in range(site_start[k], site_start[k + 1]):
                y = site_symbol[x]
                if symbol_label[y] >= 0 and end_of[y] < 0:
                    end_of[y] = ends
                    ends += 1
        if not leaf:
            outer = max(outer, ends)
    ends = max(ends, np.int64(1))
    # and those of rows that end before the next token: by their first exit's symbol, with the symbols all of them have
    of_first = np.full(symbol_label.size, -1, np.int64)
    end_at = np.zeros(rows, np.int64)  # of accepting rows
    named = ends
    if ends > 1:
        for s in range(rows):
            if not accepting[s] or not of_row[s] & 2:
                continue
            end_at[s] = -1
            if row_exit.size and row_exit[s] >= 0:
                for x in range(exit_start[row_exit[s]], exit_start[row_exit[s] + 1]):
                    if _place(edge_token, row_start[s], row_start[s + 1], np.int64(exit_token[x])) < 0:
                        y = exit_symbol[x]
                        if of_first[y] < 0:
                            of_first[y] = ends
                            ends += 1
                        end_at[s] = of_first[y]
                        break
    leads = np.zeros((ends - named, symbol_label.size), np.bool_)
    if ends > named:
        having, last = np.zeros(leads.shape, np.int64), np.full(symbol_label.size, -1, np.int64)
        alike = np.zeros(ends - named, np.int64)
        for s in range(rows):
            c = end_at[s] - named
            if not accepting[s] or c < 0:
                continue
            alike[c] += 1
            for x in range(exit_start[row_exit[s]], exit_start[row_exit[s] + 1]):
                y = exit_symbol[x]
                if last[y] != s and _place(edge_token, row_start[s], row_start[s + 1], np.int64(exit_token[x])) < 0:
                    last[y] = s
                    having[c, y] += 1
        for c in range(ends - named):
            for y in range(symbol_label.size):
                leads[c, y] = having[c, y] == alike[c]
    # where sites lead after each end: a code or -1 - end, and whether that takes a token
    way_start, size = np.zeros(sites + 1, np.int64), np.int64(64)
    way_end, way_to, way_more = np.empty(size, np.int64), np.empty(size, np.int64), np.empty(size, np.int64)
    at = 0
    for k in range(sites):
        for x in range(site_start[k], site_start[k + 1] if of_site[k] else site_start[k]):
            y, code = site_symbol[x], np.int64(site_target[x])
            if code < 0:  # with nothing below it is not allowed
                code = np.int64(-1) - end_of[-1 - code]
                if of_site[k] & 1 or code == 0 or code < -outer:
                    continue
            if at + ends > size:
                size *= 2
                grown = np.empty((3, size), np.int64)
                grown[0, :at], grown[1, :at], grown[2, :at] = way_end[:at], way_to[:at], way_more[:at]
                way_end, way_to, way_more = grown[0], grown[1], grown[2]
            if end_of[y] >= 0:
                way_end[at], way_to[at], way_more[at] = end_of[y], code, 0
                at += 1
            for c in range(ends - named):
                if leads[c, y]:
                    way_end[at], way_to[at], way_more[at] = named + c, code, 1
                    at += 1
        way_start[k + 1] = at

    # how many frames each end takes at least, then how few tokens with as many; with one end, a state's need says that
    several = tight and ends > 1
    room_code = np.full((rows + 2 + actions if several else 0, ends), NEVER, np.int64)
    room_site = np.full((sites if several else 0, ends, outer), NEVER, np.int64)
    far_code = np.full((rows + 2 + actions, ends), NEVER, np.int64)
    far_site = np.full((sites, ends, outer), NEVER, np.int64)
    best, inner = np.empty(ends, np.int64), np.empty(ends, np.int64)
    for counting in range(0 if several else 1, 2):
        code_is, site_is = (far_code, far_site) if counting else (room_code, room_site)
        groups = outer if several and counting else 1  # ends for which there is the same room
        code_is[rows, 0] = 0
        for s in range(rows):
            if accepting[s] and end_at[s] >= 0:
                code_is[s, end_at[s]] = 0
            if row_exit.size and row_exit[s] >= 0 and not of_row[s] & 1:
                missing = named
                for x in range(exit_start[row_exit[s]], exit_start[row_exit[s] + 1]):
                    c = end_of[exit_symbol[x]]
                    if c < 0 or code_is[s, c] <= counting:
                        continue
                    if _place(edge_token, row_start[s], row_start[s + 1], np.int64(exit_token[x])) < 0:
                        code_is[s, c] = counting
                        missing -= 1
                        if missing == 0:
                            break
        changed = True
        while changed:
            changed = False
            for k in range(sites):
                for x in range(way_start[k], way_start[k + 1]):
                    c, code, more = way_end[x], way_to[x], way_more[x]
                    for d in range(outer):
                        found = np.int64(NEVER)
                        if code < 0:
                            found = counting * more if -1 - code == d else found
                        else:
                            needed, most = np.int64(code_need[code]), np.int64(MOST_DEPTH + 1)
                            if several:
                                needed, most = max(needed, room_code[code, d]), room_site[k, c, d]
                            elif tight:
                                most = np.int64(site_need[k]) if site_need.size else np.int64(0)
                            if not counting:
                                found = needed
                            elif needed <= most:
                                found = far_code[code, d] + more
                        if found < site_is[k, c, d]:
                            site_is[k, c, d] = found
                            changed = True
            for a in range(actions):
                all_frames = np.int64(0)
                for p in range(action_start[a], action_start[a + 1]):
                    all_frames += not site_leaf[action_push[p]]
                state, stop = action_state[a], action_start[a + 1]
                for group in range(groups):
                    most = room_code[rows + 2 + a, group] if several else np.int64(MOST_DEPTH + 1)
                    frames = all_frames
                    for c in range(ends):
                        best[c] = code_is[state, c]
                        if not counting:
                            best[c] += frames
                        elif several and frames + room_code[state, c] > most:
                            best[c] = NEVER
                    for p in range(stop - 1, action_start[a] - 1, -1):
                        k = np.int64(action_push[p])
                        frames -= not site_leaf[k]
                        inner[:] = best
                        best[:] = NEVER
                        for c in range(ends if p == stop - 1 else outer):
                            for d in range(outer):
                                if not counting:
                                    best[d] = min(best[d], max(inner[c], frames + room_site[k, c, d]))
                                elif not several or frames + room_site[k, c, d] <= most:
                                    best[d] = min(best[d], inner[c] + far_site[k, c, d])
                    for d in range(group, group + 1 if groups > 1 else outer):
                        if not counting:
                            best[d] = max(best[d], np.int64(code_need[rows + 2 + a]))
                        if best[d] < code_is[rows + 2 + a, d]:
                            code_is[rows + 2 + a, d] = best[d]
                            changed = True
            for s in range(rows - 1, -1, -1):
                if ends == 1 and far_code[s, 0] <= 1:
                    continue
                best[:] = code_is[s]
                most = np.int64(code_need[s]) if tight and not several else np.int64(MOST_DEPTH + 1)
                for e in range(own_start[s], own_start[s + 1]):
                    _lower(own_to[e], np.int64(0), counting, several, most, s, code_need, room_code, far_code, best)
                push = np.int64(base_push[s]) if base_push.size else np.int64(-1)
                frames = needed = np.int64(0)
                if push >= 0:
                    frames = np.int64(not site_leaf[push])
                    needed = max(frames, np.int64(site_need[push]) if site_need.size else np.int64(0))
                if needed <= most:
                    for x in range(start[s], start[s + 1]):
                        target = to[x]
                        if target >= 0:
                            if push < 0:
                                _lower(target, needed, counting, several, most, s, code_need, room_code, far_code, best)
                            continue
                        if push >= 0:
                            at = _place(site_symbol, site_start[push], site_start[push + 1], -1 - target)
                            if at < 0:
                                continue
                            target = np.int64(site_target[at])
                        if target >= 0:
                            _lower(target, needed, counting, several, most, s, code_need, room_code, far_code, best)
                        elif end_of[-1 - target] >= 0 and not of_row[s] & 1:
                            c = end_of[-1 - target]
                            if not counting:
                                best[c] = min(best[c], needed)
                            elif not several or needed <= room_code[s, c]:
                                best[c] = min(best[c], np.int64(1))
                for group in range(groups if push >= 0 and needed <= most else 0):
                    if several and counting:
                        most = room_code[s, group]
                        if needed > most:
                            continue
                    inner[:] = NEVER
                    for x in range(start[s], start[s + 1]):
                        for c in range(ends if to[x] >= 0 else 0):
                            room = frames + code_need[to[x]]
                            if several:
                                room = max(room, frames + room_code[to[x], c])
                            if not counting:
                                inner[c] = min(inner[c], room)
                            elif room <= most:
                                inner[c] = min(inner[c], far_code[to[x], c] + 1)
                    for c in range(ends):
                        for d in range(group, group + 1 if groups > 1 else outer):
                            if not counting:
                                best[d] = min(best[d], max(needed, max(inner[c], room_site[push, c, d])))
                            elif not several or room_site[push, c, d] <= most:
                                best[d] = min(best[d], inner[c] + far_site[push, c, d])
                for c in range(ends):
                    if best[c] < code_is[s, c]:
                        code_is[s, c] = best[c]
                        changed = True
    farthest = np.full((rows + 2, ends), -1, np.int64)
    # by how much the distance rises at most when a fragment is left, above what each of its ends would take
    excess = np.zeros(ends, np.int64)
    for k in range(sites):
        inner[:] = -1
        for x in range(site_start[k], site_start[k + 1] if of_site[k] else site_start[k]):
            if site_target[x] >= 0:
                for d in range(outer):
                    inner[d] = max(inner[d], far_code[site_target[x], d])
        for c in range(ends):
            for d in range(outer):
                if far_site[k, c, d] < NEVER:
                    rise = inner[d] - far_site[k, c, d] if inner[d] < NEVER else np.int64(NEVER)
                    excess[c] = max(excess[c], rise)
    changed = bool(ends > 1)
    while changed:  # and so that the next one is left too
        changed = False
        for k in range(sites):
            leaves = 0
            for x in range(site_start[k], site_start[k + 1] if of_site[k] else site_start[k]):
                leaves += site_target[x] < 0
            for c in range(ends if leaves else 0):
                for d in range(outer):
                    if far_site[k, c, d] < NEVER:
                        rise = excess[d] - far_site[k, c, d] if excess[d] < NEVER else np.int64(NEVER)
                        changed |= rise > excess[c]
                        excess[c] = max(excess[c], rise)
    for s in range(rows):
        best[:] = -1
        for e in range(own_start[s], own_start[s + 1]):
            for c in range(ends):
                best[c] = max(best[c], far_code[own_to[e], c])
        push = np.int64(base_push[s]) if base_push.size else np.int64(-1)
        inner[:] = -1
        for x in range(start[s], start[s + 1]):
            if to[x] >= 0:
                for c in range(ends):
                    inner[c] = max(inner[c], far_code[to[x], c])
        if base_row[s] >= 0 and base_exit.size and base_exit[base_row[s]] >= 0:
            for c in range(ends):
                inner[c] = max(inner[c], excess[c])
        if push >= 0 and inner.max() >= 0:
            for d in range(outer):
                least = np.int64(NEVER)
                for c in range(ends):
                    least = min(least, inner[c] + far_site[push, c, d])
                best[d] = max(best[d], least)
            best[outer:] = NEVER
        else:
            for c in range(ends):
                best[c] = max(best[c], inner[c])
        if row_exit.size and row_exit[s] >= 0:
            for c in range(ends):
                best[c] = max(best[c], excess[c])
        for c in range(ends):
            farthest[s, c] = min(best[c], NEVER)
    return far_code, far_site, farthest, room_code, room_site
