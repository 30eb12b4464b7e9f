"""Bind a byte automaton to a vocabulary: which tokens each state allows, and where they lead.

`bind` finds a state's row by walking the trie of all tokens along the automaton. Four things keep this short:

- **Rows are differences.** A walk of a state that agrees with a wide row already walked, its *base*, goes side by side
  with that row. Where both paths have come to the same state, everything below is the same, so the walk turns back.
  The row's own edges are the differences.
- **States alike up to their number** share one row, found by partition refinement: see `similar_states`.
- **Characters that change nothing.** Where a part of the trie holds only characters that lead from a state back to it,
  the walk takes all its tokens at once.
- **Only reachable states** are walked, and a byte without a transition at the root costs nothing.

If some bytes are no tokens, a state may be unable to finish by tokens though bytes could. `bind` finds such states with
a first walk and leaves them out of a second one: a finished table has no dead ends.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...automata.budget import Meter
from ...automata.dfa import Dfa
from ...errors import ConstraintError
from ...kernels.arrays import UintArray
from ...kernels.compiled import kernel
from ...kernels.limits import UNREACHABLE
from ...table.distances import graph_facts
from ...table.groups import NO_ACTIONS, NO_SITES, NO_TRIE, Bases, Edges, Rows, TableArrays, TokenClasses, no_exits
from ...table.transition_table import TransitionTable
from ...vocabulary.vocabulary import Vocabulary
from .arrays import KILL, TrieArrays
from .dfa_walk import walk_states
from .row_pools import BASES, CLASS_ENTRIES, CLASS_LISTS, MASKS, QUEUE_TAIL, TARGETS, RowPools, empty_pools, with_room
from .similar_states import FEW_STATES, compared, number_along, renumbered


def bind(dfa: Dfa, vocabulary: Vocabulary, *, source: str, meter: Meter) -> TransitionTable:
    """Return the table of the token sequences whose bytes `dfa` accepts.

    source: hash of what was compiled. Raises ConstraintError if there is no such sequence, BudgetError.
    """
    if dfa.is_empty:
        raise ConstraintError("the constraint matches nothing: no text could be written")
    transition = np.ascontiguousarray(dfa.transition, np.int32)
    class_of = np.ascontiguousarray(dfa.class_of[:256], np.int32)
    states = dfa.num_states
    accepting = dfa.accepting
    if states > FEW_STATES:
        number = number_along(class_of, transition, vocabulary.trie.root_start)
        transition, accepting = renumbered(transition, accepting, number)
    rows = walked(class_of, transition, np.ones(states, np.bool_), vocabulary, meter)
    if not vocabulary.spells_all_bytes:
        everything = np.arange(states, dtype=np.int32)
        distance = graph_facts(table_arrays(rows, accepting, everything, vocabulary.size)).distance[:-2]
        closed = distance != UNREACHABLE
        if not closed[0]:
            raise ConstraintError(
                "no text that fits the constraint can be written with this vocabulary: "
                "it lacks tokens for bytes that every such text needs"
                + ("; its words spell a space before them: begin the constraint with one" * vocabulary.leading_space)
            )
        if not closed[rows.states.reached].all():
            rows = walked(class_of, transition, closed | ~rows.states.reached, vocabulary, meter)
    reached = rows.states.reached
    number = np.where(reached, np.cumsum(reached) - 1, -1).astype(np.int32)
    return TransitionTable(
        table_arrays(rows, accepting, number, vocabulary.size), vocab_size=vocabulary.size, eos=vocabulary.eos,
        vocabulary=vocabulary.fingerprint, source=source, other_ends=vocabulary.other_ends,
    )  # fmt: skip


def walked(
    class_of: NDArray[np.int32], transition: NDArray[np.int32], live: NDArray[np.bool_], vocabulary: Vocabulary,
    meter: Meter,
) -> RowPools:  # fmt: skip
    """Return the rows of all states that tokens reach from state 0 of a DFA (N, C).

    live: (N,) whether tokens may end in a state. Raises BudgetError.
    """
    trie, size = vocabulary.trie, vocabulary.size
    states = compared(class_of, transition, live, trie.longest, meter)
    own_limit = max(16, min(512, size // 256))
    rows = empty_pools(len(transition), trie.token.size, -(-size // 32))
    arrays = TrieArrays.of(trie)
    while True:
        done = walk_states(states, arrays, rows, size, own_limit)
        meter.check(states=int(rows.counters[QUEUE_TAIL]), bytes=rows.nbytes, doing="binding to the vocabulary")
        if done:
            return rows
        rows = with_room(rows, own_limit, trie.token.size)


def table_arrays(
    rows: RowPools, accepting: NDArray[np.bool_], number: NDArray[np.int32], vocab_size: int
) -> TableArrays:
    """Return the arrays of a table in which state s has number[s]; states with number -1 are left out.

    The arrays are read-only.
    """
    kept = np.flatnonzero(number >= 0)
    used = rows.counters.tolist()
    reached, own = rows.states.reached[kept], rows.states.own[kept]
    kind = np.min_scalar_type(vocab_size + 1)
    edge_start = np.zeros(kept.size + 1, np.int32)
    np.cumsum(np.where(reached, own[:, 1], 0), out=edge_start[1:])
    token = np.empty(int(edge_start[-1]) + 2, kind)
    token[-2:] = vocab_size, vocab_size + 1
    target = np.empty(int(edge_start[-1]), np.int32)
    _fill_rows(kept, rows, edge_start, number, token, target)
    based = _Based(
        np.where(reached, rows.states.base[kept], -1).astype(np.int32),
        rows.bases.mask[: used[BASES]],
        rows.bases.class_list[: used[BASES]],
        rows.bases.first[: used[BASES] + 1],
        rows.bases.target[: used[TARGETS]],
    )
    if kept.size < len(number):
        based = _renumbered_bases(kept, number, based)
    arrays = TableArrays(
        rows=Rows(edge_start, np.ascontiguousarray(accepting[kept]), based.of_row, np.zeros(0, np.int32)),
        edges=Edges(token, target),
        bases=Bases(
            rows.bases.words[: used[MASKS]].copy(),
            *(array.copy() for array in (based.mask, based.class_list, based.first, based.target)),
        ),
        classes=TokenClasses(
            rows.class_lists.first[: used[CLASS_LISTS] + 1].copy(),
            rows.class_lists.token[: used[CLASS_ENTRIES]].astype(kind),
            rows.class_lists.number[: used[CLASS_ENTRIES]].copy(),
        ),
        trie=NO_TRIE,
        actions=NO_ACTIONS,
        exits=no_exits(kind),
        sites=NO_SITES,
    )
    for array in arrays.by_name().values():
        array.flags.writeable = False  # given away: the table need not copy them
    return arrays


class _Based(NamedTuple):
    """The base of each row, and what bases are."""

    of_row: NDArray[np.int32]
    mask: NDArray[np.int32]
    class_list: NDArray[np.int32]
    first: NDArray[np.int32]
    target: NDArray[np.int32]


def _renumbered_bases(kept: NDArray[np.int64], number: NDArray[np.int32], based: _Based) -> _Based:
    """Return bases by the new numbers of the states that are kept.

    Without some states, steps of one length may differ in length: rows then get a copy of their base for each way.
    """
    of_row = based.of_row.copy()
    of_base: list[int] = []
    targets: list[NDArray[Any]] = []
    for base in range(based.mask.size):  # few
        members = np.flatnonzero(based.of_row == base)
        if not members.size:
            continue
        codes = based.target[based.first[base] : based.first[base + 1]]
        old = (codes >> 1)[None, :] + (codes & 1)[None, :] * kept[members][:, None]
        inside = (old >= 0) & (old < number.size)  # a row that has no token of a class may have no state for it either
        new = np.where(inside, number[np.where(inside, old, 0)], -1)
        steps = np.where(codes & 1, 2 * (new - members[:, None]) + 1, 2 * new)
        ways, which = np.unique(np.where(new < 0, 0, steps), axis=0, return_inverse=True)
        of_row[members] = len(of_base) + which.reshape(-1)
        of_base += [base] * len(ways)
        targets += list(ways)
    lengths = [0, *(len(codes) for codes in targets)]
    copied = np.array(of_base, np.int64)
    return _Based(
        of_row, based.mask[copied], based.class_list[copied], np.cumsum(lengths).astype(np.int32),
        np.concatenate([based.target[:0], *targets]).astype(np.int32),
    )  # fmt: skip


@kernel
def _fill_rows(
    kept: NDArray[np.int64], rows: RowPools, edge_start: NDArray[np.int32], number: NDArray[np.int32],
    token: UintArray, target: NDArray[np.int32],
) -> None:  # fmt: skip
    """Write the own edges of the states that are kept, by their new numbers."""
    dead, own, own_token, own_code = kept.size + 1, rows.states.own, rows.own_token, rows.own_code
    for i in range(kept.size):
        s = kept[i]
        at = own[s, 0]
        for e in range(edge_start[i], edge_start[i + 1]):
            code = np.int64(own_code[at])
            token[e] = own_token[at]
            target[e] = dead if code == KILL else number[(code >> 1) + (code & 1) * s]
            at += 1
