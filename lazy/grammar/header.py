"""The header: where a lazy grammar keeps the arrays that its kernels read and write.

It works like the header of a lazy machine, see `lazy.pushdown.header`. Here kernels also append to arrays: the numbers
behind `NUM_STATES` say how much of each is in use. A kernel that runs out of room changes nothing that others read. It
returns `FULL` minus the place of the array in the header; `GrammarMemory` makes room, and the kernel is called again.

Kernels take names from this file.
"""

from __future__ import annotations

import numpy as np

from ...kernels.arrays import Int64Array
from ...kernels.compiled import kernel
from ...kernels.deadline import is_late

DEAD = -1
UNKNOWN = -2
"""In a cell that no kernel has worked out."""
FULL = -3
"""Minus the place of an array: it has no room left. Minus PAUSE: look at the clock, and call again."""
PAUSE = 1
"""In place of a place in the header."""
ROOT = 0
"""The frame of the whole."""
LOCAL = 1 << 30
"""From here on numbers of frames that a closure is about to make, by rule."""
BIAS = 1 << 20
"""More than there are rules."""
MOST_SPENT = 1 << 20
"""Pairs that kernels look at before their caller looks at the clock.

A closure cannot go on where it paused: its caller calls it again within a deadline, and says so in GUARDED. From then
on it asks that deadline.
"""
MANY_TOKENS = 64
"""Tokens below a node from which on it is worth knowing which characters lead a state back to itself."""
UNSEEN = np.uint64((1 << 64) - 1)
"""In place of the groups of characters that lead a state back to itself."""

# Places of arrays in the header, two numbers each
(
    # the network; see `automata.network`
    AT_CLASS_OF, AT_TRANSITION, AT_ENDS, AT_POSITION_STATE, AT_POSITION_NODE, AT_NODE_FINAL, AT_TERMINAL_START,
    AT_TERMINAL, AT_CALL_START, AT_CALL_RULE, AT_CALL_NODE, AT_RULE_NODE, AT_RULE_GROUP,
    # the trie of tokens, see `vocabulary.TokenTrie`, and the bytes of each token
    AT_BYTE, AT_SKIP, AT_DEPTH, AT_CONTENT, AT_TOKEN_START, AT_TOKEN, AT_ROOT_START, AT_TEXT, AT_TEXT_START,
    # states: (S, C) the state that each class leads to; the items of each state, a position and a frame each; whether a
    # text may end; the groups of characters that lead back to the state
    AT_CELLS, AT_STATE_START, AT_ITEM_POSITION, AT_ITEM_FRAME, AT_ACCEPTS, AT_LOOPS,
    # frames: the edges of each, a node to go on from and the frame that this one is in
    AT_FRAME_START, AT_EDGE_NODE, AT_EDGE_FRAME,
    # cores: what a state is closed from, with the state, and slots that find a core or a state by its hash
    AT_CORE_START, AT_CORE_DATA, AT_CORE_STATE, AT_CORE_SLOTS, AT_STATE_SLOTS,
    # groups of frames that wait for each other, with the first frame, and slots that find them
    AT_GROUP_START, AT_GROUP_DATA, AT_GROUP_FRAME, AT_GROUP_SLOTS,
    # memory to work in: pairs to look at; the core at hand; the items of the state at hand; frames at hand as they are
    # noted in AT_GROUP_DATA; who calls a rule, in lists by rule; pairs that were met, with stamps; by rule, what a
    # closure knows of it
    AT_WORK, AT_CORE, AT_SCAN, AT_BUFFER, AT_ENTRY, AT_SEEN, AT_SEEN_STAMP, AT_ACTIVE, AT_RULES, AT_LOCAL_OF, AT_HEAD,
    AT_LINK, AT_VISITED, AT_PATH,
) = range(0, 108, 2)  # fmt: skip
# Places of numbers: how many there are of each, a number that marks what was met, the work since the last pause, the
# size that a full array needs if that is known, and whether the thread has a deadline
(
    NUM_CLASSES, NUM_LEVELS, NUM_STATES, NUM_ITEMS, NUM_FRAMES, NUM_EDGES, NUM_CORES, NUM_CORE_WORDS, NUM_GROUPS,
    NUM_GROUP_WORDS, STAMP, SPENT, NEEDED, GUARDED, HEADER,
) = range(108, 123)  # fmt: skip


@kernel
def must_pause(header: Int64Array) -> bool:
    """Return whether a kernel must return before it is done, as its caller has to look at the clock, or is late."""
    return bool(header[SPENT] > MOST_SPENT and (header[GUARDED] == 0 or is_late()))
