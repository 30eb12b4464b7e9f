"""What can be wrong with the arrays of a table, by the numbers that kernels return.

Kernels take names from this file.
"""

from __future__ import annotations

from ..errors import TableError
from ..kernels.arrays import Int

SOUND = 0
EDGE_STARTS = 1
DEAD_END_ROW = 2
UNSORTED_ROW = 3
STRAY_EDGE = 4
MASK_IS_NOT_EDGES = 5
STRAY_BASE = 6
TAIL_TOKEN = 7
TAIL_END = 8
ITEM_STARTS = 9
STRAY_ITEM = 10
ITEM_COUNT = 11
EOS_EDGE = 12
SOME_MASKS = 13
SHARED_TAIL = 14
TAKES_NOTHING_AWAY = 15
BASE_STARTS = 16
STRAY_MASK = 17
UNSORTED_CLASS = 18
MASK_BIT = 19
STRAY_BASE_TARGET = 20
CLASS_STARTS = 21
CLASS_WITHOUT_TARGET = 22
PUSH_STARTS = 23
STRAY_ACTION = 24
PUSH_ONTO_LEAF = 25
STRAY_EXIT_LIST = 26
STRAY_ROW_SITE = 27
EXIT_STARTS = 28
UNSORTED_EXIT = 29
STRAY_SYMBOL = 30
SITE_STARTS = 31
UNSORTED_SITE = 32
STRAY_SITE_TARGET = 33
FRAMES = 34
LABEL = 35
BASE_LEAVES_TABLE = 36
EDGE_ORDER = 37
MASK_ORDER = 38

_TEXTS = {
    EDGE_STARTS: "rows.edge_start does not rise from 0 to the number of edges",
    DEAD_END_ROW: "a row has no edges and is not accepting: decoding would run into a dead end",
    UNSORTED_ROW: "tokens of a row are not strictly increasing and below vocab_size",
    STRAY_EDGE: "an edge leads outside the table or not to the next level",
    MASK_IS_NOT_EDGES: "a row's mask is not its edges",
    STRAY_BASE: "rows.base points outside the bases",
    TAIL_TOKEN: "a tail entry is not a token",
    TAIL_END: "the last tail has no end",
    ITEM_STARTS: "trie.item_start does not rise from 0 to the number of items",
    STRAY_ITEM: "trie.item_row points outside the input",
    ITEM_COUNT: "accepting states and items do not match",
    EOS_EDGE: "an edge or a tail entry holds eos",
    SOME_MASKS: "some rows of a level have masks and some do not",
    SHARED_TAIL: "tails are shared or left over",
    TAKES_NOTHING_AWAY: "an edge to the dead state takes nothing away",
    BASE_STARTS: "bases.target_start does not rise from 0 to the number of base targets",
    STRAY_MASK: "bases.mask or bases.class_list points outside",
    UNSORTED_CLASS: "tokens of a class list are not strictly increasing and below vocab_size",
    MASK_BIT: "a mask has a bit for eos or beyond vocab_size",
    STRAY_BASE_TARGET: "a base leads outside the table",
    CLASS_STARTS: "classes.start does not rise from 0 to the number of classed tokens",
    CLASS_WITHOUT_TARGET: "a class has no target in a base",
    PUSH_STARTS: "actions.push_start does not rise from 0 to the number of pushes, by one push an action at least",
    STRAY_ACTION: "an action leads or pushes outside the table",
    PUSH_ONTO_LEAF: "an action pushes onto a leaf",
    STRAY_EXIT_LIST: "exits.of_row or exits.of_base points outside",
    STRAY_ROW_SITE: "sites.of_row points outside",
    EXIT_STARTS: "exits.start does not rise from 0 to the number of exits",
    UNSORTED_EXIT: "tokens of an exit list are not strictly increasing, below vocab_size and other than eos",
    STRAY_SYMBOL: "an exit's symbol is outside exits.label",
    SITE_STARTS: "sites.start does not rise from 0 to the number of targets",
    UNSORTED_SITE: "symbols of a site are not strictly increasing and in exits.label",
    STRAY_SITE_TARGET: "a site leads outside the table",
    FRAMES: "frames_required is negative or more than any depth",
    LABEL: "exits.label is less than -1",
    BASE_LEAVES_TABLE: "a row's base leads outside the table",
    EDGE_ORDER: "edges of a level do not lead to rows and tails in the order of these, to each row once",
    MASK_ORDER: "the masks of a trie are not in the order of its rows",
}


def check(fault: Int, where: Int) -> None:
    """Raise TableError for a fault that a kernel found, with the place where it found it."""
    if fault != SOUND:
        raise TableError(f"{_TEXTS[int(fault)]} (at {where})")
