"""Link machines with calls to a vocabulary: what is on top of a library is walked, all else is known.

A machine that no library carries is its own: `link_machine` binds all of it, and links a start on top.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ...automata.budget import Meter
from ...automata.frames_required import frames_required
from ...automata.pushdown import PushdownMachine
from ...errors import ConstraintError, NoTableError
from ...kernels.limits import MOST_DEPTH
from ...table.transition_table import TransitionTable
from ...vocabulary.vocabulary import Vocabulary
from .arrays import ACTIONS, REMAINDERS, SYMBOLS
from .fragment import Fragment
from .library import LinkedLibrary, bind_rows, linked_fields
from .link_pools import ACTION, EntryPool, LinkPools, copied_actions, empty_link_pools
from .linked_table import LinkedParts, OwnBases, linked_table
from .pushdown_walk import BINDING, StatesToWalk, walk
from .return_sites import resolve
from .symbols import ADMIT_ANY, ADMIT_NONE, name_ends
from .wide_rows import WideRows

VERY_WIDE = 4096  # own edges from which on a row becomes a base: fewer are found sooner as they are
_PLACES_AT_ONCE = 1 << 22  # of stacks, of tokens that may come first


def link_machine(
    machine: PushdownMachine, start: int, vocabulary: Vocabulary, source: str, depth: int, meter: Meter
) -> TransitionTable:
    """Return the table of a machine that is built on no other.

    Raises NoTableError if no depth is enough for some texts that could be begun; ConstraintError if it is enough for
    none; BudgetError.
    """
    if machine.height is None or machine.height > depth:
        need, _, _ = frames_required(machine, MOST_DEPTH, hope=False)
        if (need[1:] >= MOST_DEPTH).any():
            raise NoTableError(
                "this grammar has no finite table: what is read within brackets decides whether others have to follow, "
                "so that no depth would be enough for every text that was begun"
            )
    library = LinkedLibrary(
        **linked_fields(machine, vocabulary, bind_rows(machine, vocabulary, split=True, meter=meter))
    )
    top = PushdownMachine(machine)
    top.height, top.anything = machine.height, machine.anything
    top.copy(0, start)  # to which nothing leads back
    if start in machine.accepting:
        top.accepting.add(0)
    return link(library, top, source, depth, meter)


def link(library: LinkedLibrary, machine: PushdownMachine, source: str, depth: int, meter: Meter) -> TransitionTable:
    """Return the table of a machine built on the library's, whose state 0 is its start.

    Raises ConstraintError if the depth is enough for no text; BudgetError.
    """
    vocabulary, text = library.vocabulary, library.token_text
    first, states = library.machine.size, machine.size
    meter.check(states=states, bytes=4 * 256 * states, doing=BINDING)
    pools = _pools_on(library, states)
    labels = int(np.diff(machine.sites[0]).max(initial=1))
    symbols = name_ends(library.copied_symbols(), labels, library.nothing, text, pools.counters)
    walked = np.ones(states, np.bool_)
    walked[1:first] = False
    fragments: list[tuple[int, Fragment]] = []
    for at, class_of, codes, common in machine.apart:
        fragment, symbols = library.fragment(class_of, codes, common, symbols, pools.counters, meter)
        walked[at : at + len(fragment.edge_count)] = False
        fragments.append((at, fragment))
    number, total = np.arange(states, dtype=np.int32), states
    if machine.counted:
        for at, opening, _, _ in machine.counted:
            walked[at : at + opening] = False
        number, total, fragments = _with_counted(library, machine, fragments, meter)
    template, template_site = machine.all_twins
    order = np.flatnonzero(walked).astype(np.int32)
    to_walk = StatesToWalk(order, template, template_site, np.zeros(states, np.uint64))
    admit = ADMIT_ANY if machine.closed else ADMIT_NONE  # a library's fragments say what may follow, but of DFAs here
    pools, symbols = walk(machine, to_walk, vocabulary, text, pools, symbols, admit, meter)
    meter.check(states=states, bytes=pools.nbytes, doing=BINDING)
    pools, symbols, sites = resolve(
        machine, library.machine.num_sites, library.num_symbols, text, vocabulary.trie.longest, pools, symbols,
        admit, meter,
    )  # fmt: skip
    pools, own_bases = _narrowed(pools, np.where(template[order] < 0, number[order], -1), number, vocabulary.size)
    parts = LinkedParts(library, machine, number, total, order, pools, symbols, sites, fragments, own_bases)
    table = linked_table(parts, source, depth)
    required = table.rows.frames_required
    if required.size and required[0] > table.depth and not _begins(table):
        raise too_deep(int(required[0]), table.depth)
    return table


def _pools_on(library: LinkedLibrary, states: int) -> LinkPools:
    """Return pools for rows of some states, with the library's actions, remainders and symbols."""
    actions = library.rows.actions.state.size
    pools = empty_link_pools(states, library.vocabulary.trie.token.size, copied_actions(library.actions, actions))
    pools.counters[ACTIONS] = actions
    pools.counters[REMAINDERS], pools.counters[SYMBOLS] = library.num_remainders, library.num_symbols
    return pools


def _with_counted(
    library: LinkedLibrary, machine: PushdownMachine, fragments: list[tuple[int, Fragment]], meter: Meter
) -> tuple[NDArray[np.int32], int, list[tuple[int, Fragment]]]:
    """Return (number of each state in the table, number of states, fragments), with strings that are counted.

    The machine has only the beginning of each: all of it comes last in the table.
    """
    number = np.arange(machine.size, dtype=np.int32)
    counted = []
    for at, opening, low, high in machine.counted:
        number[at : at + opening] = -1
        counted.append((at, opening, library.lengths.fragment(low, high, meter)))
    kept = number >= 0
    total = int(kept.sum())
    number[kept] = np.arange(total)
    out = [(int(number[at]), fragment) for at, fragment in fragments]
    for at, opening, fragment in counted:
        number[at : at + opening] = np.arange(total, total + opening)
        out.append((total, fragment))
        total += len(fragment.edge_count)
    meter.check(bytes=32 * total, doing=BINDING)
    return number, total, out


def _narrowed(
    pools: LinkPools, states: NDArray[np.int32], number: NDArray[np.int32], vocab_size: int
) -> tuple[LinkPools, OwnBases | None]:
    """Return pools where very wide rows have only edges that push, and these states with bases for the rest of them.

    states: of each row, -1 where it has a base as it is.
    """
    edges = pools.edges
    start = edges.start[: states.size + 1]
    likely = np.flatnonzero((np.diff(start) > VERY_WIDE) & (states >= 0)).tolist()
    chosen = [row for row in likely if (edges.value[start[row] : start[row + 1]] < ACTION).sum() > VERY_WIDE]
    if not chosen:
        return pools, None
    wide = WideRows(vocab_size)
    used = int(start[-1])
    kept = np.ones(used, np.bool_)
    for row in chosen:
        part = slice(int(start[row]), int(start[row + 1]))
        token, code = edges.token[part], edges.value[part]
        plain = code < ACTION
        wide.add(token[plain], number[code[plain]])
        kept[part] = ~plain
    before = np.concatenate(([0], np.cumsum(kept)))
    narrow = EntryPool(before[start], edges.token[:used][kept], edges.value[:used][kept])
    return pools._replace(edges=narrow), OwnBases(states[chosen], *wide.groups())


def too_deep(need: int, depth: int) -> ConstraintError:
    """Return the error of a depth with which no token may come first. need: a depth that is enough."""
    return ConstraintError(f"{depth} is enough for no text: raise it to {need}", argument="depth")


def _begins(table: TransitionTable) -> bool:
    """Return whether some token may come first."""
    part = max(1, _PLACES_AT_ONCE // max(1, table.slots))
    for first in range(0, table.vocab_size, part):
        tokens = np.arange(first, min(first + part, table.vocab_size))
        if (table.follow(tokens[:, None]).node != table.dead).any():
            return True
    return False
