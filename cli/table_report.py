"""Reports about tables, as `inspect` prints them."""

from __future__ import annotations

import click
import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..errors import ConstraintError
from ..kernels.limits import UNREACHABLE
from ..lazy.lazy_table import Compiled
from ..table.several_ends import one_or_all
from ..table.transition_table import TransitionTable
from . import drawing
from .wording import CommandWording

_MOST_BASES = 20  # rows of the table of bases


def print_way(table: Compiled, console: Console) -> None:
    """Print what a table holds, or how texts are followed without one, and why there is none."""
    try:
        whole = table.to_table()
    except ConstraintError as error:
        facts = _facts()
        facts.add_row("followed by", "states that are made as texts come to them (as it is read)")
        facts.add_row("because", error.worded(CommandWording()))
        _add_unenforced(facts, table)
        facts.add_row("source", table.source)
        console.print(facts)
    else:
        print_table(whole, console)


def print_table(table: TransitionTable, console: Console) -> None:
    """Print what a table holds: facts, bytes by array, and the levels of a trie or the bases of a graph."""
    console.print(_facts_of(table))
    console.print(_parts_table(table))
    if table.is_trie:
        console.print(_level_table(table))
    elif _has_bases(table):
        console.print(_base_table(table))


def _has_bases(table: TransitionTable) -> bool:
    return not table.is_trie and table.bases.mask.size > 0


def _facts_of(table: TransitionTable) -> Table:
    facts = _facts()
    size = f"{table.nbytes:,}"
    if table.is_trie:
        facts.add_row("sequences", f"{table.num_sequences:,} distinct in {table.num_items:,} rows")
        size += f" ({table.nbytes / table.num_sequences:.1f} a sequence), map to rows aside"
    else:
        facts.add_row("followed by", _way(table))
    facts.add_row("length", lengths_of(table))
    facts.add_row("vocabulary", f"{table.vocabulary}, V = {table.vocab_size:,}, eos = {one_or_all(table.ends)}")
    facts.add_row("states", _states(table))
    facts.add_row("edges", f"{table.num_edges:,}")
    if _has_bases(table):
        shared = int(np.count_nonzero(table.rows.base >= 0))
        facts.add_row(
            "bases", f"{table.bases.mask.size:,}, shared by {shared:,} rows, with {len(table.bases.masks):,} masks"
        )
        lists = table.classes.start.size - 1
        facts.add_row("class lists", f"{lists:,}, with {table.classes.token.size:,} tokens that have a class")
    ends = int(np.count_nonzero(table.rows.accepting))
    accept = f"{ends:,} row accepts" if ends == 1 else f"{ends:,} rows accept"
    if table.is_nested:
        leaves = int(np.count_nonzero(table.sites.is_leaf))
        facts.add_row("calls", f"{table.num_sites:,} return sites, {leaves:,} of parts that make no calls themselves")
        facts.add_row("pushes", f"{table.num_actions:,} actions, of up to {table.most_pushes:,} sites at once")
        lists, exits = table.exits.start.size - 1, table.exits.token.size
        facts.add_row("exits", f"{exits:,} tokens in {lists:,} lists, with {table.num_symbols:,} symbols")
        facts.add_row("depth", f"{table.depth:,} calls may be open at once, beside one that makes none itself")
        facts.add_row("ends", f"{accept} where no call is open")
    elif not table.is_trie:
        reach = drawing.in_tokens(int(table.distance[table.distance != UNREACHABLE].max()))
        facts.add_row("ends", f"{accept}; from any state one is at most {reach} away")
    _add_unenforced(facts, table)
    facts.add_row("bytes", size)
    facts.add_row("source", table.source)
    return facts


def _parts_table(table: TransitionTable) -> Table:
    parts = Table(title="bytes by part", title_justify="left")
    parts.add_column("array")
    parts.add_column("type")
    parts.add_column("shape")
    parts.add_column("bytes", justify="right")
    arrays = table.arrays.by_name()
    # an empty group still has starts, whose only entry is 0
    filled = {name.partition(".")[0] for name, array in arrays.items() if array.size > 1 or array.any()}
    for name, array in arrays.items():
        if array.size and name.partition(".")[0] in filled:
            parts.add_row(name, str(array.dtype), str(array.shape), f"{array.nbytes:,}")
    return parts


def _facts() -> Table:
    facts = Table(box=None, show_header=False)
    facts.add_column()
    facts.add_column(overflow="fold")  # a hash is longer than many a terminal is wide
    return facts


def _way(table: TransitionTable) -> str:
    """Return how texts are followed in a table of a graph."""
    return "calls and returns (delimited)" if table.is_nested else "the states of a DFA (regular)"


def _states(table: TransitionTable) -> str:
    rows = table.num_rows
    tails = drawing.num_drawn(table) - rows
    kinds = f"{rows:,} row{'s' * (rows != 1)}" + f", {tails:,} in tails" * (tails > 0)
    return f"{table.num_states:,}: {kinds}, the one after EOS and the dead one"


def _level_table(table: TransitionTable) -> Table:
    levels = Table(title="branches by level", title_justify="left")
    for heading in ("level", "rows", "edges", "most branches", "masks"):
        levels.add_column(heading, justify="right")
    for depth, level in enumerate(table.levels):
        rows = edges = 0
        if depth < table.trie.level_start.size - 1:
            lo, hi = table.trie.level_start[depth], table.trie.level_start[depth + 1]
            rows, edges = int(hi - lo), int(table.rows.edge_start[hi] - table.rows.edge_start[lo])
        levels.add_row(str(depth), f"{rows:,}", f"{edges:,}", f"{level.width:,}", "yes" if level.dense else "")
    return levels


def _base_table(table: TransitionTable) -> Table:
    """Return the bases that most rows share."""
    shared = np.bincount(table.rows.base[table.rows.base >= 0], minlength=table.bases.mask.size)
    own = np.diff(table.rows.edge_start)
    order = np.argsort(-shared, kind="stable")[:_MOST_BASES]
    more = f", {order.size} of {shared.size:,}" if order.size < shared.size else ""
    bases = Table(title=f"bases by the rows that share them{more}", title_justify="left")
    for heading in ("base", "rows", "their edges", "mask", "tokens", "class list", "targets"):
        bases.add_column(heading, justify="right")
    for base in order.tolist():
        mask = table.bases.mask[base]
        values = (
            base, shared[base], own[table.rows.base == base].sum(), mask,
            np.bitwise_count(table.bases.masks[mask]).sum(),
            table.bases.class_list[base], table.bases.target_start[base + 1] - table.bases.target_start[base],
        )  # fmt: skip
        bases.add_row(*(f"{int(value):,}" for value in values))
    return bases


def _add_unenforced(facts: Table, table: Compiled) -> None:
    """Add what a table does not enforce, a row for each keyword."""
    for place, each in enumerate(table.unenforced):
        facts.add_row("" if place else "not enforced", Text(f"{each.pointer}: {each.approximation} may be written"))


def warn_unenforced(table: Compiled) -> None:
    """Warn on standard error of each keyword of a schema that a table does not enforce, as far as it is known."""
    for each in table.unenforced:
        click.echo(f"warning: {each}", err=True)


def lengths_of(table: TransitionTable) -> str:
    """Return how many tokens the texts of a table have."""
    if table.max_length is None:
        return f"{drawing.in_tokens(table.min_length)} or more"
    if table.min_length == table.max_length:
        return drawing.in_tokens(table.min_length)
    return f"{table.min_length:,} to {drawing.in_tokens(table.max_length)}"
