"""`TransitionTable`: a compiled constraint, composed of groups of flat arrays."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..errors import TableError, TableFileError, Unenforced
from ..kernels.arrays import IntArray
from ..kernels.limits import MOST_DEPTH, MOST_TOKENS, UNREACHABLE
from ..vocabulary.vocabulary import Vocabulary
from . import file
from .distances import GraphFacts, farthest, graph_facts, trie_distances
from .filter_bits import Words
from .graph_checks import NOTHING_COMMON, Common, FramesRequired, check_graph, common_of
from .grouped import GroupedArrays, token_rows
from .groups import (
    NO_TRIE,
    Actions,
    Bases,
    Edges,
    Exits,
    Rows,
    Sites,
    TableArrays,
    TokenClasses,
    check_declared,
)
from .kept_edges import kept_edges
from .nested_distances import Distances, nested_distances
from .several_ends import as_eos, check_unused, checked_other_ends
from .sid_filter import SidFilter
from .states import NestedState, state_out_of_range
from .trie_checks import Lengths, check_trie
from .walk import NO_EOS, walk_graph, walk_trie

_BLOCK = 256  # states per count of accepting ones kept for looking up input rows
_TOGETHER = 4096  # states looked up at once


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
class TransitionTable(GroupedArrays):
    """A deterministic automaton over tokens, as arrays that any backend can gather from. Compilers return it.

    Examples:
        >>> from maskwright import compile_sids
        >>> table = compile_sids([[3, 1, 2], [3, 1, 0], [0, 2, 2]], vocab_size=4)
        >>> table.num_sequences, table.max_length, table.contains([[3, 1, 0], [3, 1, 1]])
        (3, 3, array([ True, False]))
        >>> table.filter([True, False, True]).num_sequences, table.input_rows(table.walk([[0, 2, 2]]))
        (2, [array([2], dtype=int32)])

    The arrays stand in groups, declared in `groups.py`: every table has rows, edges, bases and token classes; a trie
    also has levels and items (`trie`), a nested table also actions, exits and return sites.

    There are S *rows*, each with edges of its own, and T *tail entries*: runs of tokens without branches that need no
    row. States are numbered 0 .. S - 1 for rows and S .. S + T + 1 for tail entries; 0 is the start. Both read the
    same way: state s owns the edges first(s) .. first(s + 1) of `edges.token`, where
    first(s) = rows.edge_start[min(s, S)] + max(s - S, 0).

    - Edge e < E leads to state `edges.target[e]`. An edge of a tail entry leads to the next entry.
    - A tail entry that holds `end` (= vocab_size) is a final state. The last two entries are the state after EOS,
      final as well, and the dead state, which holds vocab_size + 1 and allows nothing.
    - `rows.accepting` rows and final tail entries may be followed by EOS, if the table has one.
    - A row whose `rows.base` is not negative shares that *base*: it also allows the tokens of
      bases.masks[bases.mask[base]], except where an edge of its own says otherwise; an edge to the dead state takes a
      token away. Where a token of the base leads depends on its class in class list k = bases.class_list[base]: the
      `classes.number` of its entry among classes.start[k] .. classes.start[k + 1] of `classes.token`, or 0 if it has
      none. The target is bases.target[bases.target_start[base] + class].
    - Targets of bases are coded, so that states that are alike up to their number share one base: code c leads from
      state s to state (c >> 1) + (c & 1) * s.

    A table of sequences is a *trie*: its rows have levels. The edges of a level lead one level down, to rows and to
    tails in the order of these, and masks are in the order of rows. The k-th accepting state stands for the input rows
    trie.item_row[trie.item_start[k] : trie.item_start[k + 1]], and a base there only repeats the edges of its one row,
    as a mask for whole rows of logits. Any other table is a *graph*: it has no levels, no tail entries but the last
    two, and no input rows.

    A *nested* table is a graph with a stack of return sites. A part of its rows is a *fragment*: entered with a site on
    top of the stack, left by an *exit*, a token in which the fragment ends.

    - Targets of edges and of sites are codes: states as above (S rows, the state after EOS, the dead state), then
      actions. Action a, coded S + 2 + a, pushes the sites actions.push[actions.push_start[a] :
      actions.push_start[a + 1]] in order and goes on in `actions.state[a]`. Targets of bases are states alone.
    - Exit list l is the entries exits.start[l] .. exits.start[l + 1]: reading `exits.token` there leaves the fragment
      with symbol `exits.symbol`, which stands for how it ended and for the bytes of the token that are left after the
      end. A row has the lists exits.of_row[row], which overrides its base, and exits.of_base[base]; -1 for none.
    - Return site k says what a symbol leads to, among its entries sites.start[k] .. sites.start[k + 1]: `sites.target`
      of `sites.symbol` is a code, or -1 - y: leave that frame too, with symbol y for the next site. A symbol without an
      entry is not allowed.
    - A row whose `sites.of_row` is not negative borrows its base from a fragment: a token of the base's mask also
      pushes that site, and the base's exits find it on top.
    - exits.label[y] is how the fragment ended where symbol y leaves no bytes, -1 where it leaves some.
    - Frames of sites that are `sites.is_leaf` belong to fragments that make no calls: they are only ever on top, and do
      not count. Of all others at most `depth` may be open. A state is only entered where `rows.frames_required` more of
      them fit, which is how many it takes to leave its fragment, and a site only pushed where `sites.frames_required`
      more of them than lie below it fit. Both empty: 0 throughout, and no text opens more than `depth`.
    - EOS is allowed in accepting rows where the stack is empty.

    A table may have several end tokens. `eos` stands for all of them in the arrays and states above; `other_ends` are
    the rest. Each is allowed wherever EOS is, leads where EOS leads, and stands nowhere in the arrays.

    The arrays are checked when the table is made and are read-only from then on. Raises TableError if they contradict
    each other.
    """

    arrays: TableArrays
    vocab_size: int
    eos: int | None = None
    vocabulary: str = ""  # fingerprint
    source: str = ""  # hash of what was compiled
    depth: int = 0  # most open frames that are no leaves
    common: Common = NOTHING_COMMON
    unenforced: tuple[Unenforced, ...] = ()  # what of a schema is not enforced, as `allow` let it
    other_ends: tuple[int, ...] = ()  # tokens that end a sequence, beside eos

    def __post_init__(self) -> None:
        facts = self.__dict__
        parts: tuple[Any, ...] = self.arrays
        facts["arrays"] = TableArrays(*(type(part)(*map(_read_only, part)) for part in parts))
        facts["common"] = common_of(self.common)
        facts["unenforced"] = _unenforced_of(self.unenforced)
        _check_scalars(self)
        facts["other_ends"] = checked_other_ends(self.other_ends, self.eos, self.vocab_size)
        check_declared(self.arrays, self.vocab_size)
        check_unused(self.arrays, self.other_ends)
        if self.vocabulary == "":
            facts["vocabulary"] = integer_vocabulary(self.vocab_size)
        if not self.is_nested and (self.depth or self.has_calls):
            raise TableError("a table without return sites has no actions, exits, symbols, frames or depth")
        if self.is_trie and (self.is_nested or self.common.rows):
            raise TableError("a trie has no return sites, and nothing in common with others")
        eos = NO_EOS if self.eos is None else self.eos
        if self.is_trie:
            facts["_lengths"] = check_trie(self.arrays, self.vocab_size, eos)
            return
        facts["_frames"] = check_graph(self.arrays, self.vocab_size, eos, self.common)
        if not self.is_nested and (self._facts.distance[:-1] == UNREACHABLE).any():
            where = int(np.argmax(self._facts.distance == UNREACHABLE))
            raise TableError(f"no end can be reached from a row: decoding would run into a dead end (at {where})")

    @classmethod
    def graph(
        cls, *, rows: Rows, edges: Edges, bases: Bases, classes: TokenClasses, actions: Actions, exits: Exits,
        sites: Sites, **scalars: Any,
    ) -> TransitionTable:  # fmt: skip
        """Return the table of a graph: of groups other than a trie's, and of the fields that are no arrays."""
        return cls(TableArrays(rows, edges, bases, classes, NO_TRIE, actions, exits, sites), **scalars)

    def __setstate__(self, fields: dict[str, Any]) -> None:
        """Take the arrays of a pickle or a copy, which can be written to, as read-only ones again."""
        fields = {name: fields[name] for name in _FIELDS if name in fields}
        fields["arrays"] = TableArrays(*(type(part)(*map(_read_only, part)) for part in fields["arrays"]))
        self.__dict__.update(fields)
        self.__post_init__()

    def __getstate__(self) -> dict[str, Any]:
        return {name: self.__dict__[name] for name in _FIELDS}

    def __repr__(self) -> str:
        sequences = f"{self.num_sequences:,} sequences, " if self.is_trie else ""
        ends = f"ends={self.ends}" if self.other_ends else f"eos={self.eos}"
        return (
            f"TransitionTable({sequences}{self.num_states:,} states, {self.nbytes:,} bytes, "
            f"vocab_size={self.vocab_size}, {ends})"
        )

    def to_table(self) -> TransitionTable:
        """Return this table: constraints of other kinds are compiled to one."""
        return self

    # -------------------------------------------------------------------------------------------- sizes

    @property
    def num_items(self) -> int:
        """N: input rows; 0 of a graph."""
        return int(self.item_row.size)

    @property
    def item_start(self) -> IntArray:
        """Where the input rows of each sequence begin: (Q + 1,)."""
        return self.trie.item_start

    @property
    def item_row(self) -> IntArray:
        """The input rows of all sequences, in the order of these: (N,)."""
        return self.trie.item_row

    @property
    def bytes_by_part(self) -> dict[str, int]:
        """Bytes of each array, by name."""
        return {name: int(array.nbytes) for name, array in self.arrays.by_name().items()}

    @property
    def nbytes(self) -> int:
        """Bytes of the table without the map back to input rows, which stays on the host."""
        return self.arrays.nbytes - self.trie.item_start.nbytes - self.trie.item_row.nbytes

    @cached_property
    def memory(self) -> int:
        """Bytes of all arrays in this process."""
        return self.arrays.nbytes

    # -------------------------------------------------------------------------------------------- lengths

    @property
    def min_length(self) -> int:
        """Fewest tokens in a sequence; of a nested table, how many are known to be enough for one."""
        return self._lengths.shortest

    @property
    def max_length(self) -> int | None:
        """Most tokens in a sequence, None where there is no most, and of a nested table."""
        if self.is_trie:
            return self._lengths.longest
        return None if self.is_nested else self._facts.longest

    @property
    def fixed_length(self) -> int | None:
        """The length of every sequence, or None where lengths differ or EOS is needed to end."""
        longest = self.max_length
        return longest if longest is not None and self.eos is None and self.min_length == longest else None

    @cached_property
    def _lengths(self) -> Lengths:
        """Of a graph; those of a trie are found when it is checked."""
        shortest = self.distances.code[0, 0] if self.is_nested else self._facts.distance[0]
        return Lengths(int(shortest), -1)

    @cached_property
    def _facts(self) -> GraphFacts:
        """Of a graph without calls: distances, and the longest sequence."""
        return graph_facts(self.arrays)

    @cached_property
    def _frames(self) -> FramesRequired:
        """Of a trie; those of a graph are found when it is checked."""
        return FramesRequired(np.zeros(0, np.int32), 0, 0)

    @property
    def code_frames_required(self) -> NDArray[np.int32]:
        """Of a nested table: how many more frames must fit for a code to be followed, (S + 2 + A,); else (0,)."""
        return self._frames.by_code

    @property
    def most_frames_required(self) -> int:
        """How many more frames must fit for nothing to be refused for want of frames."""
        return self._frames.most

    @property
    def most_pushes(self) -> int:
        """The most frames that one token opens."""
        return self._frames.most_pushes

    @cached_property
    def levels(self) -> tuple[Level, ...]:
        """What is static at each depth 0 .. max_length - 1: gather width, masks, tails; empty of a graph."""
        if not self.is_trie or self.max_length is None:
            return ()
        counts, level_start, base = np.diff(self.rows.edge_start), self.trie.level_start, self.rows.base
        levels, tails = [], False
        for depth in range(self.max_length):
            if depth >= level_start.size - 1:
                levels.append(Level(width=1, dense=False, rows=False, tails=True))
                continue
            lo, hi = level_start[depth], level_start[depth + 1]
            dense = bool(hi <= base.size and base[lo] >= 0)
            levels.append(Level(max(1, int(counts[lo:hi].max())), dense, True, tails))
            targets = self.edges.target[self.rows.edge_start[lo] : self.rows.edge_start[hi]]
            tails = tails or bool((targets >= self.num_rows).any())
        return tuple(levels)

    @property
    def widths(self) -> tuple[int, ...]:
        """Most tokens allowed at each depth, EOS aside: the static gather widths."""
        return tuple(level.width for level in self.levels)

    @cached_property
    def distance(self) -> NDArray[np.int32]:
        """Fewest tokens from each state to an accepting end, EOS aside: (num_states,); UNREACHABLE from the dead state.

        Of a nested table, to any end of the fragment that the state is in.
        """
        if self.is_trie:
            out = np.empty(self.num_states, np.int32)
            trie_distances(self.arrays, self.vocab_size, out)
            return out
        if self.is_nested:
            return np.asarray(self.distances.code[: self.num_states].min(axis=1), np.int32)
        return self._facts.distance

    @cached_property
    def distances(self) -> Distances:
        """Of a nested table: distances of codes and sites, upper bounds that some allowed token always reduces.

        Raises ValueError for a table that is not nested.
        """
        if not self.is_nested:
            raise ValueError("a table without calls has one distance for each state: use distance")
        return nested_distances(self.arrays, self.code_frames_required)

    @cached_property
    def farthest(self) -> NDArray[np.int32]:
        """The largest `distance` that a token of each state leads to, (num_states,): -1 where there is no token.

        With more tokens left than that, no token of the state can make an end impossible. Never too small; it may be
        too large for a row that takes away all tokens of some class of its base.
        """
        if self.is_nested:
            raise TypeError("what is far from the end of a nested table depends on its stack: see distances.farthest")
        out = np.full(self.num_states, -1, np.int32)
        farthest(self.arrays, self.is_trie, self.vocab_size, self.distance, out)
        return out

    # -------------------------------------------------------------------------------------------- membership

    def walk(self, tokens: ArrayLike, states: ArrayLike | None = None) -> NDArray[np.int64]:
        """Return the state that each row of tokens leads to.

        A nested table is walked from the start alone; `follow` goes on from anywhere.

        Args:
            tokens: (N, L).
            states: (N,) where each row starts; the start if left out.

        Returns:
            (N,) states; the dead one where a row is not allowed.

        Raises:
            ValueError: States have another shape, or are not this table's.
        """
        if self.is_nested:
            if states is not None:
                raise ValueError("a state of a nested table needs its stack: use follow")
            return np.asarray(self.follow(tokens).node)
        array = as_eos(token_rows(tokens), self.eos, self.other_ends)
        out = np.zeros(array.shape[0], np.int64) if states is None else _as_states(states, array.shape[0])
        if array.size == 0:
            return out
        if self.is_trie:
            rows, edges = self.rows, self.edges
            outside = walk_trie(
                rows.edge_start, edges.token, edges.target, rows.accepting, self.vocab_size, self._ends.eos, array, out
            )
        else:
            outside = walk_graph(self.rows, self.edges, self.bases, self.classes, self._ends, array, out)
        if outside >= 0:
            raise state_out_of_range(self, int(out[outside]))
        return out

    def follow(self, tokens: ArrayLike, state: NestedState | None = None) -> NestedState:
        """Return where each row of tokens leads in a nested table.

        Args:
            tokens: (N, L).
            state: Where each row starts (N,); the start if left out.

        Returns:
            (N,) states with stacks; the dead one where a row is not allowed.

        Raises:
            ValueError: The state is of another table, or this is a trie, which has no stack.
        """
        if self.is_trie:
            raise ValueError("a trie has no stack: use walk")
        return self._followed(self.code_frames_required, tokens, state)

    def contains(self, sids: ArrayLike) -> NDArray[np.bool_]:
        """Return whether rows of tokens are in the set.

        Args:
            sids: (N, L) tokens; EOS may close a row, also more than once.

        Returns:
            (N,) bool.
        """
        if self.is_nested:
            reached = self.follow(sids)
            return np.asarray(self.is_accepting(reached.node) & (reached.height == 0))
        return self.is_accepting(self.walk(sids))

    def accepts(self, tokens: Sequence[int] | NDArray[Any]) -> bool:
        """Return whether one sequence of tokens is in the set.

        Args:
            tokens: (L,); EOS may close it, also more than once, as in a batch.
        """
        return bool(self.contains(np.asarray(tokens)[None])[0])

    def input_rows(self, states: ArrayLike) -> list[IntArray]:
        """Return the input rows that final states of a trie stand for.

        Args:
            states: (N,) before EOS: where sequences go on, EOS leads from all of them to the one state `after_eos`. All
                states of an `Arena` are others: ask `arena.input_rows` for those.

        Returns:
            An array of rows for each state, empty for any other state.

        Raises:
            ValueError: A state is outside the table.
        """
        array = np.atleast_1d(np.asarray(states))
        if array.size and not 0 <= array.min() <= array.max() < self.num_states:
            raise state_out_of_range(self, int(array.min() if array.min() < 0 else array.max()))
        item_start, item_row = self.trie.item_start, self.trie.item_row
        if not self.is_trie:
            return [item_row[:0] for _ in range(array.size)]
        groups = self.sequence_numbers(array.astype(np.int64))
        first = item_start[np.maximum(groups, 0)]
        stop = np.where(groups < 0, first, item_start[groups + 1])
        return [item_row[low:high] for low, high in zip(first.tolist(), stop.tolist(), strict=True)]

    def sequence_numbers(self, states: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return which sequence of a trie ends in each state (n,), as `trie.item_start` counts them; -1 for none."""
        rows, out = self.num_rows, np.full(states.shape, -1)
        accepting = self.is_accepting(states) & (states != self.after_eos)
        in_rows, in_tails = accepting & (states < rows), accepting & (states >= rows)
        is_end = self.edges.token[self.num_edges :]
        out[in_rows] = _count_before(self.rows.accepting, True, self._accepting_before, states[in_rows])
        counted = _count_before(is_end, self.vocab_size, self._ends_before, states[in_tails] - rows)
        out[in_tails] = self._accepting_before[-1] + counted
        return out

    def sequences_of(self, sids: ArrayLike) -> NDArray[np.int64]:
        """Return which sequence of a trie each row of sids (N, L) is, EOS behind it or not: (N,); Q for none."""
        tokens = token_rows(sids)
        inside = self.contains(tokens)
        states = np.zeros(inside.shape, np.int64)
        if self.ends and tokens.size:  # EOS leads from many sequences to one state
            going = np.ones(inside.shape, np.bool_)
            for column, is_end in zip(tokens.T, np.isin(tokens, self.ends).T, strict=True):
                going &= ~is_end
                states = np.where(going, self.walk(column[:, None], states), states)
        else:
            states = self.walk(tokens)
        return np.where(inside, self.sequence_numbers(states), self.num_sequences)

    def shortest_of(self, rows: Words) -> int:
        """Return the fewest tokens in a sequence whose bit is set, of any sequence where none is."""
        if self.min_length == self.max_length or not rows.any():
            return self.min_length
        near = kept_edges(self, rows, distances=True).distance
        assert near is not None
        return int(near[0])

    def filter(self, keep: Any) -> SidFilter:
        """Return a filter that keeps some of the items of a table of sequences.

        Args:
            keep: (N,) booleans, one for each input row, in their order: an array, or a column of Arrow, Polars, pandas
                or DuckDB. 10^7 items take some 10 ms.

        Returns:
            The filter, which `&`, `|` and `~` join with others of this table.

        Raises:
            ConstraintError: These are no booleans, there is a null, or there are not as many as items.
            TypeError: This is the table of a text, which has no items.
        """
        if not self.is_trie:
            raise TypeError("the table of a text has no items to filter")
        return SidFilter.of(self, keep)

    @cached_property
    def _accepting_before(self) -> IntArray:
        """Accepting rows before each block of `_BLOCK`, and of all."""
        return _counts_of_blocks(self.rows.accepting)

    @cached_property
    def _ends_before(self) -> IntArray:
        """Final tail entries before each block of `_BLOCK` entries, and of all."""
        return _counts_of_blocks(self.edges.token[self.num_edges :] == self.vocab_size)

    # -------------------------------------------------------------------------------------------- the file

    def noting(self, unenforced: tuple[Unenforced, ...]) -> TransitionTable:
        """Return this table, which does not enforce some keywords."""
        return replace(self, unenforced=unenforced) if unenforced else self

    def header(self) -> dict[str, Any]:
        """Return the fields that are no arrays, as a file has them; those of `_LATER` only where they say something."""
        found = {name: getattr(self, name) for name in _FIELDS if name != "arrays"}
        return {name: value for name, value in found.items() if value or name not in _LATER}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the table to one safetensors file, in full or not at all.

        Args:
            path: The file.

        Raises:
            FileNotFoundError: There is no folder for it.
        """
        file.write(path, self.header(), self.arrays.by_name())

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, vocabulary: Vocabulary | None = None) -> TransitionTable:
        """Return the table in a file that `save` wrote.

        Args:
            path: The file.
            vocabulary: The one that the table must have been compiled for, if that is to be checked.

        Raises:
            FileNotFoundError: There is no such file.
            TableFileError: The file is truncated, no table, of another format version, or was changed.
            VocabularyMismatchError: The table is of another vocabulary.
        """
        header, arrays = file.read(path, None if vocabulary is None else vocabulary.fingerprint)
        try:
            return cls(TableArrays.from_names(arrays), **header)
        except (TableError, TypeError) as error:  # TypeError: a header of other fields
            raise TableFileError(f"{os.fspath(path)} is not a valid table: {error}") from error


_LATER = ("unenforced", "other_ends")  # fields that are younger than the format
_FIELDS = ("arrays", "vocab_size", "eos", "vocabulary", "source", "depth", "common", *_LATER)


def _counts_of_blocks(holds: NDArray[np.bool_]) -> IntArray:
    """Return how many of `holds` (n,) are so before each block of `_BLOCK`, and in all: (blocks + 1,)."""
    counts = np.add.reduceat(holds, np.arange(0, holds.size, _BLOCK), dtype=np.int64)
    return np.concatenate([[0], np.cumsum(counts)])


def _count_before(values: NDArray[Any], wanted: int, blocks: IntArray, places: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return how many values before each place (n,) are the one wanted, given the counts before blocks."""
    out = np.empty(places.shape, np.int64)
    for low in range(0, places.size, _TOGETHER):
        at = places[low : low + _TOGETHER]
        block = at // _BLOCK
        window = block[:, None] * _BLOCK + np.arange(_BLOCK)
        inside = (window < at[:, None]) & (values[np.minimum(window, values.size - 1)] == wanted)
        out[low : low + _TOGETHER] = blocks[block] + inside.sum(axis=1)
    return out


def _read_only(array: ArrayLike) -> NDArray[Any]:
    """Return an array that nobody can write to: itself, or a copy if somebody could."""
    found = np.asarray(array)
    if found.flags.writeable or not found.flags.c_contiguous:
        found = found.copy()
        found.flags.writeable = False
    return found


def _check_scalars(table: TransitionTable) -> None:
    """Raise TableError for fields, other than arrays, that no table has."""
    size = table.vocab_size
    if type(size) is not int or not 1 <= size <= MOST_TOKENS:
        raise TableError(f"vocab_size must be an integer from 1 to {MOST_TOKENS:,}, not {size!r}")
    if table.eos is not None and (type(table.eos) is not int or not 0 <= table.eos < size):
        raise TableError(f"eos must be an integer from 0 to {size - 1}, not {table.eos!r}")
    if type(table.vocabulary) is not str or type(table.source) is not str:
        raise TableError("vocabulary and source must be text")
    if table.vocabulary.startswith("integers:") and table.vocabulary != integer_vocabulary(size):
        raise TableError(f"the vocabulary is {table.vocabulary}, but vocab_size is {size}")
    if type(table.depth) is not int or not 0 <= table.depth <= MOST_DEPTH:
        raise TableError(f"depth must be an integer from 0 to {MOST_DEPTH:,}, not {table.depth!r}")


def _unenforced_of(given: object) -> tuple[Unenforced, ...]:
    """Return what is not enforced, of a file's lists too. Raises TableError for anything else."""
    if not isinstance(given, (tuple, list)) or not all(
        isinstance(each, (tuple, list)) and len(each) == 3 and all(isinstance(part, str) for part in each)
        for each in given
    ):
        raise TableError(f"unenforced must be a list of pointer, keyword and approximation, not {given!r}")
    return tuple(Unenforced(*each) for each in given)


def _as_states(states: ArrayLike, rows: int) -> NDArray[np.int64]:
    """Return a copy of states (N,) as int64. Raises ValueError for what is none, or not one for each row."""
    array = np.asarray(states)
    if array.shape != (rows,) or (array.size and array.dtype.kind not in "iu"):
        raise ValueError(f"states must be integers of shape ({rows},), not {array.dtype} of shape {array.shape}")
    return np.array(array, np.int64, order="C")
