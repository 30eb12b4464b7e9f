"""The table of a linked machine: the start, the library's rows, the rows on top, and fragments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from ...automata.frames_required import frames_required
from ...automata.pushdown import PushdownMachine
from ...kernels.limits import MOST_DEPTH
from ...table.graph_checks import Common, leads_out
from ...table.groups import NO_TRIE, Bases, Edges, Exits, Rows, Sites, TableArrays, TokenClasses
from ...table.transition_table import TransitionTable
from .arrays import ACTIONS, KILL, SYMBOLS
from .fragment import Fragment
from .library import LinkedLibrary
from .link_pools import ACTION, LinkPools
from .symbols import Symbols


class OwnBases(NamedTuple):
    """Bases of rows on top that are very wide, one for each of some states, by their number in the table."""

    states: NDArray[np.int32]
    bases: Bases
    classes: TokenClasses


@dataclass(frozen=True, eq=False)
class LinkedParts:
    """What linking a machine has found; N states of the machine."""

    library: LinkedLibrary
    machine: PushdownMachine
    number: NDArray[np.int32]  # (N,) of each state in the table
    num_rows: int  # of the table
    order: NDArray[np.int32]  # states that were walked
    pools: LinkPools
    symbols: Symbols
    sites: NDArray[np.int32]  # (3, n) site, symbol and target, without those of the library
    fragments: Sequence[tuple[int, Fragment]]  # with their first state in the table
    own_bases: OwnBases | None

    @property
    def rows(self) -> NDArray[np.int32]:
        """The rows of the table that were walked, in order."""
        return self.number[self.order]


def linked_table(parts: LinkedParts, source: str, depth: int) -> TransitionTable:
    """Return the table of what linking has found."""
    library, vocabulary, machine = parts.library, parts.library.vocabulary, parts.machine
    depth, rows_required, sites_required = _frames_required(parts, depth)
    edge_start, edges = _edges(parts)
    base, bases, classes, exits = _bases_and_exits(parts)
    sites = _sites(parts, sites_required)
    if not machine.num_sites:  # nothing calls
        exits = exits._replace(of_row=exits.of_row[:0], of_base=exits.of_base[:0])
        sites = sites._replace(of_row=sites.of_row[:0])
    accepting = np.zeros(parts.num_rows, np.bool_)
    accepting[parts.number[list(machine.accepting)]] = True
    actions = parts.pools.actions.used(int(parts.pools.counters[ACTIONS]))
    arrays = TableArrays(
        rows=Rows(edge_start, accepting, base, rows_required),
        edges=edges,
        bases=bases,
        classes=classes,
        trie=NO_TRIE,
        actions=actions._replace(state=parts.number[actions.state]),
        exits=exits,
        sites=sites,
    )
    for array in arrays.by_name().values():
        array.flags.writeable = False
    return TransitionTable(
        arrays, vocab_size=vocabulary.size, eos=vocabulary.eos, vocabulary=vocabulary.fingerprint, source=source,
        depth=depth, common=_common(library, machine, arrays), other_ends=vocabulary.other_ends,
    )  # fmt: skip


def _common(library: LinkedLibrary, machine: PushdownMachine, arrays: TableArrays) -> Common:
    """Return how much of a table is the same in all tables that are built on the library."""
    first = library.machine.size
    if not (library.is_shared and machine.num_sites and first > 1):
        return Common()
    actions = library.rows.actions.state.size
    common = Common(first - 1, library.rows.bases.mask.size, library.machine.num_sites, actions)
    # strings that are counted share bases, whose classes may lead anywhere by distance where no token is of them
    return Common() if leads_out(arrays, common) else common


def _edges(parts: LinkedParts) -> tuple[NDArray[Any], Edges]:
    """Return where the edges of each row begin, and the edges."""
    library, states, vocab_size = parts.library.rows, parts.num_rows, parts.library.vocabulary.size
    rows, walked = parts.rows, parts.pools.edges
    start = np.zeros(states + 1, np.int64)
    start[rows + 1] = np.diff(walked.start[: rows.size + 1])
    start[2 : parts.library.machine.size + 1] = library.edge_count
    for at, fragment in parts.fragments:
        start[at + 1 : at + 1 + len(fragment.edge_count)] = fragment.edge_count
    np.cumsum(start, out=start)
    edges = int(start[-1])
    start = start.astype(np.int32 if edges < 2**31 else np.int64)
    token = np.empty(edges + 2, np.min_scalar_type(vocab_size + 1))
    target = np.zeros(edges, np.int32)
    token[-2:] = vocab_size, vocab_size + 1
    # walked states in runs of successive numbers lie as they are
    cuts = np.flatnonzero(np.diff(rows) != 1) + 1
    for run in np.split(np.arange(rows.size), cuts) if rows.size else ():
        lo, hi = int(walked.start[run[0]]), int(walked.start[run[-1] + 1])
        at = int(start[rows[run[0]]])
        token[at : at + hi - lo] = walked.token[lo:hi]
        target[at : at + hi - lo] = walked.value[lo:hi]
    at = int(start[1])
    token[at : at + library.edge_token.size] = library.edge_token
    target[at : at + library.edge_token.size] = library.edge_code
    _decode(target, parts.number, states)
    for origin, fragment in parts.fragments:
        at, n = int(start[origin]), fragment.edge_target.size
        token[at : at + n] = fragment.edge_token
        dead = len(fragment.edge_count)
        target[at : at + n] = np.where(fragment.edge_target == dead, states + 1, fragment.edge_target + origin)
    return start, Edges(token, target)


def _bases_and_exits(parts: LinkedParts) -> tuple[NDArray[np.int32], Bases, TokenClasses, Exits]:
    """Return the base of each row, bases and class lists, and exits."""
    library, first, rows = parts.library.rows, parts.library.machine.size, parts.rows
    joined = _Joined(library.bases, library.classes, library.exits)
    base = np.full(parts.num_rows, -1, np.int32)
    base[1:first] = library.base[1:]
    template = parts.machine.all_twins[0]
    based = np.flatnonzero(template >= 0)
    base[parts.number[based]] = library.base[template[based]]

    walked = parts.pools.exits
    counts = np.diff(walked.start[: rows.size + 1])
    has = counts > 0
    exit_list = np.full(parts.num_rows, -1, np.int32)
    exit_list[1:first] = library.exits.of_row
    exit_list[rows] = np.where(has, np.cumsum(has) - 1 + joined.exit_lists, -1)
    used = int(walked.start[rows.size])
    joined.add_exits(np.concatenate(([0], np.cumsum(counts[has]))), walked.token[:used], walked.value[:used])

    shared = joined.num_bases  # the first base of strings that are counted
    if parts.machine.counted:
        joined.add_bases(*parts.library.lengths.shared_bases())
    for origin, fragment in parts.fragments:
        n = len(fragment.edge_count)
        first_base = joined.num_bases if fragment.bases.mask.size else shared
        base[origin : origin + n] = np.where(fragment.base >= 0, fragment.base + first_base, -1)
        of_row = fragment.exits.of_row
        exit_list[origin : origin + n] = np.where(of_row >= 0, of_row + joined.exit_lists, -1)
        codes = fragment.bases.target
        codes = np.where(codes & 1, codes, codes + 2 * origin)
        joined.add_bases(fragment.bases._replace(target=codes), fragment.classes)
        joined.add_exits(fragment.exits.start, fragment.exits.token, fragment.exits.symbol)
    if parts.own_bases is not None:
        own = parts.own_bases
        base[own.states] = joined.num_bases + np.arange(own.states.size)
        joined.add_bases(own.bases, own.classes)

    symbols, text_start = parts.symbols, parts.library.text_start
    count = int(parts.pools.counters[SYMBOLS])
    token, offset = symbols.token[symbols.remainder[:count]], symbols.offset[symbols.remainder[:count]]
    nothing_left = text_start[token] + offset == text_start[token + 1]
    label = np.where(nothing_left, symbols.label[:count], -1).astype(np.int32)
    return base, *joined.groups(parts.library.vocabulary.size, exit_list, label)


class _Joined:
    """Bases, class lists and exit lists of several parts of a table, one after the other."""

    def __init__(self, bases: Bases, classes: TokenClasses, exits: Exits) -> None:
        self._bases, self._classes, self._exits = [bases], [classes], [exits]
        self.num_bases, self.exit_lists = bases.mask.size, exits.start.size - 1
        self._masks, self._lists = len(bases.masks), classes.start.size - 1
        self._targets, self._entries, self._exit_entries = bases.target.size, classes.token.size, exits.token.size

    def add_bases(self, bases: Bases, classes: TokenClasses) -> None:
        """Add bases and their class lists, which have no exits."""
        self._bases.append(Bases(
            bases.masks, bases.mask + self._masks, bases.class_list + self._lists,
            bases.target_start[1:] + self._targets, bases.target,
        ))  # fmt: skip
        self._classes.append(TokenClasses(classes.start[1:] + self._entries, classes.token, classes.number))
        self.num_bases += bases.mask.size
        self._masks += len(bases.masks)
        self._lists += classes.start.size - 1
        self._targets += bases.target.size
        self._entries += classes.token.size

    def add_exits(self, start: NDArray[Any], token: NDArray[Any], symbol: NDArray[np.int32]) -> None:
        """Add exit lists."""
        none = np.zeros(0, np.int32)
        self._exits.append(Exits(none, none, start[1:] + self._exit_entries, token, symbol, none))
        self.exit_lists += start.size - 1
        self._exit_entries += token.size

    def groups(
        self, vocab_size: int, of_row: NDArray[np.int32], label: NDArray[np.int32]
    ) -> tuple[Bases, TokenClasses, Exits]:
        """Return the arrays of all parts."""
        kind = np.min_scalar_type(vocab_size + 1)
        bases = Bases(
            _concatenated([part.masks for part in self._bases], np.uint32),
            *(_concatenated([part[k] for part in self._bases]) for k in range(1, len(Bases._fields))),
        )
        classes = TokenClasses(
            _concatenated([part.start for part in self._classes]),
            _concatenated([part.token for part in self._classes], kind),
            _concatenated([part.number for part in self._classes]),
        )
        none = np.full(self.num_bases - self._exits[0].of_base.size, -1, np.int32)
        exits = Exits(
            of_row,
            _concatenated([self._exits[0].of_base, none]),
            _concatenated([part.start for part in self._exits]),
            _concatenated([part.token for part in self._exits], kind),
            _concatenated([part.symbol for part in self._exits]),
            label,
        )
        return bases, classes, exits


def _concatenated(parts: list[NDArray[Any]], kind: DTypeLike = np.int32) -> NDArray[Any]:
    """Return arrays one after the other; a single one that is not empty is not copied."""
    found = [part for part in parts if part.size] or parts[:1]
    return (found[0] if len(found) == 1 else np.concatenate(found)).astype(kind, copy=False)


def _sites(parts: LinkedParts, frames_required: NDArray[np.int32]) -> Sites:
    """Return where return sites lead, and which of them rows of templates push."""
    library, machine = parts.library, parts.machine
    site, symbol, target = (np.concatenate(both) for both in zip(library.rows.sites, parts.sites, strict=True))
    if parts.sites.shape[1] and parts.sites[0, 0] < library.machine.num_sites:  # new symbols at the library's sites
        by_site = np.lexsort((symbol, site))
        site, symbol, target = site[by_site], symbol[by_site], target[by_site]
    _decode(target, parts.number, parts.num_rows)
    start = np.zeros(machine.num_sites + 1, np.int32)
    np.cumsum(np.bincount(site, minlength=machine.num_sites), out=start[1:])
    template, template_site = machine.all_twins
    based = np.flatnonzero(template >= 0)
    of_row = np.full(parts.num_rows, -1, np.int32)
    of_row[parts.number[based]] = template_site[based]
    return Sites(start, symbol.astype(np.int32), target, machine.sites[2], frames_required, of_row)


def _frames_required(parts: LinkedParts, depth: int) -> tuple[int, NDArray[np.int32], NDArray[np.int32]]:
    """Return the depth of a table, and the frames that its rows and its sites require; empty where it is 0 for all."""
    machine, none = parts.machine, np.zeros(0, np.int32)
    if machine.height is not None and machine.height <= depth:
        if not machine.anything:
            return machine.height, none, none
        return depth, none, np.zeros(machine.num_sites, np.int32)  # there: it can run out, in free values
    by_state, by_site, _ = frames_required(machine, MOST_DEPTH)
    of_rows = np.zeros(parts.num_rows, np.int32)
    of_rows[parts.number] = by_state
    return depth, of_rows, by_site


def _decode(codes: NDArray[np.int32], number: NDArray[np.int32], states: int) -> None:
    """Write targets as a table has them: states by number, then actions, the dead state for tokens taken away."""
    actions = codes >= ACTION
    plain = (codes >= 0) & ~actions
    codes[plain] = number[codes[plain]]
    codes[actions] += states + 2 - ACTION
    codes[codes == KILL] = states + 1
