"""The walk of the trie of tokens, and how a token is read: kernels that stop where a row has not been made.

**A place** is a state and a place within a character: `state * NUM_INNER + inner`, where inner 0 is between characters.
A byte leads within an alphabet until a character is whole; the class of the character then leads to the next state.
So a state has one cell for each class, and the bytes of characters cost no states.

**The walk.** A node of the trie stands for the bytes on the way to it, and lists the tokens that end there. The walk
goes down from the root with the place that the bytes lead to, so it reads each common beginning once. It keeps one
level for each byte of the path, and takes the next child of the deepest level. A child that is not read ends the whole
subtree. Where all characters of a subtree lead a state back to itself, as within a string, all its tokens are taken at
once. A walk that comes to a state without a row says which; it goes on where it was once the row is there.

**Home.** Writing the 125,000 tokens of a free string takes 200 us, and copying them 2. So a walk may have a home: a
state that characters of most groups lead back to, or to others that count them and are otherwise alike. The tokens of
such characters alone are in the mask before, and the walk takes none of them again as long as it is at home. The walk
begins there, or most first characters lead there, as behind the beginning of a key: then it takes away the tokens whose
first character leads elsewhere, and reads them.

**Frames.** Open frames are a linked list, so that the levels of a walk share them: frame k > 0 has the state to go on
in and the frame below; 0 is the bottom.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import numpy as np

from ...kernels.arrays import Bool, Int, Int32Array, Int64Array, Uint32Array
from ...kernels.compiled import entry_of, kernel
from ...kernels.pointers import array_at
from ...vocabulary.characters import BYTE_GROUP
from ...vocabulary.token_trie import NODE_CHARACTERS, NODE_CHILD, NODE_STOP, NODE_TOKENS, OF_NODE
from .header import (
    AT_ALPHABET,
    AT_BYTE,
    AT_CALL_START,
    AT_CALL_STATES,
    AT_CELLS,
    AT_ENDS,
    AT_FRAMES,
    AT_HOME,
    AT_INNER,
    AT_LEVELS,
    AT_LIVE,
    AT_LOOPS,
    AT_NODE,
    AT_PUSHED,
    AT_REACH,
    AT_ROOT,
    AT_ROW,
    AT_TOKEN,
    DONE,
    END,
    FARTHEST,
    HEADER,
    HOME,
    IN_HOME,
    LEVEL,
    LOOKED,
    MASK_WORDS,
    NEEDS_SITES,
    NO_BOUND,
    NUM_FRAMES,
    NUM_INNER,
    NUM_WORDS,
    OF_ENDS,
    OF_FRAME,
    OF_LEVEL,
    REFUSED,
    TO_HOME,
    WORK,
)
from .rules import CALL, DEAD, POP

_SETS_OF_NODE = OF_NODE // 2
_TOKENS_OF_A_NODE = 4  # writing a power of two of tokens takes as long as reading a node


@kernel(inline="always")
def _is_live(header: Int64Array, state: Int, inner: Int) -> bool:
    """Return whether a state reads a character that begins with the bytes at a place within it."""
    live = array_at(header[AT_LIVE], header[AT_LIVE + 1], np.uint64)
    reach = array_at(header[AT_REACH], header[AT_REACH + 1], np.uint64)
    words = header[NUM_WORDS]
    for w in range(words):  # noqa: SIM110 - which numba cannot compile
        if live[state * words + w] & reach[inner * words + w]:
            return True
    return False


@kernel(inline="always")
def _open_frames(header: Int64Array, code: Int, top: Int) -> tuple[Int, Int]:
    """Open the frames of a call on top of a frame; return the state that it leads to, and the innermost frame."""
    call_start = array_at(header[AT_CALL_START], header[AT_CALL_START + 1], np.int32)
    call_states = array_at(header[AT_CALL_STATES], header[AT_CALL_STATES + 1], np.int32)
    frames = array_at(header[AT_FRAMES], header[AT_FRAMES + 1], np.int64)
    ends = array_at(header[AT_ENDS], header[AT_ENDS + 1], np.int64)
    first, stop = call_start[CALL - code], call_start[CALL - code + 1]
    noted = header[NUM_FRAMES]
    for k in range(first + 1, stop):
        state = np.int64(call_states[k])
        frames[OF_FRAME * noted], frames[OF_FRAME * noted + 1] = state, top
        frames[OF_FRAME * noted + 2] = frames[OF_FRAME * top + 2] + ends[OF_ENDS * state]
        top = noted
        noted += 1
    header[NUM_FRAMES] = noted
    return np.int64(call_states[first]), top


@kernel
def _next_place(
    header: Int64Array, state: Int, inner: Int, byte: Int, top: Int, looked_at: Int
) -> tuple[Int, Int, Int]:
    """Return what a byte leads to: (what, inner, frame).

    looked_at: frames up to this number were open where the token begins: `LOOKED` says how many of them were closed.
    what: a state; REFUSED; or, below that, a state without a row: REFUSED - 1 - state.
    """
    rows = array_at(header[AT_ROW], header[AT_ROW + 1], np.int64)
    alphabet = array_at(header[AT_ALPHABET], header[AT_ALPHABET + 1], np.int32)
    cells = array_at(header[AT_CELLS], header[AT_CELLS + 1], np.int32)
    root = array_at(header[AT_ROOT], header[AT_ROOT + 1], np.int32)
    frames = array_at(header[AT_FRAMES], header[AT_FRAMES + 1], np.int64)
    if inner:
        within = array_at(header[AT_INNER], header[AT_INNER + 1], np.int32)
        found = np.int64(within[inner << 8 | byte])
    else:
        found = np.int64(root[np.int64(alphabet[state]) << 8 | byte])
    while True:
        if found == 0:
            return np.int64(REFUSED), np.int64(0), top
        if rows[state] < 0:
            return REFUSED - 1 - state, np.int64(0), top
        if found > 0:  # within a character
            if _is_live(header, state, found):
                return state, found, top
            return np.int64(REFUSED), np.int64(0), top
        code = np.int64(cells[rows[state] - 1 - found])
        if code >= 0:
            return code, np.int64(0), top
        if code == DEAD:
            return np.int64(REFUSED), np.int64(0), top
        if code <= CALL:
            state, top = _open_frames(header, code, top)
            return state, np.int64(0), top
        if top <= looked_at:
            header[LOOKED] = max(header[LOOKED], looked_at - top + 1)
        if top == 0:
            if code == POP:
                return header[END], np.int64(0), top
            return np.int64(REFUSED), np.int64(0), top
        state, top = frames[OF_FRAME * top], frames[OF_FRAME * top + 1]
        if code == POP:
            return state, np.int64(0), top
        found = np.int64(root[np.int64(alphabet[state]) << 8 | byte])  # KEEP: the frame behind reads the byte


@kernel
def _take_sites(header: Int64Array, sites: Int32Array) -> None:
    """Note the frames that are open where a walk begins."""
    frames = array_at(header[AT_FRAMES], header[AT_FRAMES + 1], np.int64)
    ends = array_at(header[AT_ENDS], header[AT_ENDS + 1], np.int64)
    frames[2] = 0
    for k in range(sites.size):
        at, state = OF_FRAME * (k + 1), np.int64(sites[k])
        frames[at], frames[at + 1], frames[at + 2] = state, np.int64(k), frames[at - 1] + ends[OF_ENDS * state]


@kernel(inline="always")
def _stays_at_home(header: Int64Array, begins: Bool, byte: Int, inner: Int, to: Int) -> Bool:
    """Return whether a byte behind a place at home leads to one at home.

    begins: whether it is the first of a walk that does not begin at home. to: the state that it leads to.
    """
    if inner > 0:
        return True
    group = np.uint64(1) << np.uint64(BYTE_GROUP[byte])
    if np.uint64(header[IN_HOME]) & group == 0:
        return False
    return not begins or to == header[HOME] or np.uint64(header[TO_HOME]) & group != 0


@kernel
def _begin(header: Int64Array, place: Int, open_sites: Int32Array, out: Uint32Array, before_at: Int) -> Int:
    """Note where a walk begins, and write the mask before it; return how many levels are at home."""
    node = array_at(header[AT_NODE], header[AT_NODE + 1], np.int32)
    level = array_at(header[AT_LEVELS], header[AT_LEVELS + 1], np.int64)
    _take_sites(header, open_sites)
    header[LOOKED], header[WORK], header[FARTHEST] = 0, 0, -1
    level[0], level[1] = 0, node[NODE_CHILD]
    level[2], level[3] = place // header[NUM_INNER], place % header[NUM_INNER]
    level[4], level[5] = open_sites.size, open_sites.size + 1
    if before_at:
        out[:] = array_at(before_at, header[MASK_WORDS], np.uint32)
        return np.int64(1)
    out[:] = np.uint32(0)
    return np.int64(0)


@kernel
def write_mask(
    header_at: int, place: int, sites: bytes, mask_at: int, goes_on: bool, room: int, before_at: int
) -> Int:  # fmt: skip
    """Write the tokens that a place allows, without the end token, for the frames that are open.

    sites: the states to go on in behind open frames, the outermost first, int32, as bytes. goes_on: whether the walk
    goes on where it stopped for a row. room: the bytes within which an end must be behind a token, NO_BOUND for any
    number; with it `FARTHEST` says in how many bytes an end is behind any token that is allowed without it. before_at:
    without `room`, a mask of the tokens of characters alone that stay in the walk's home; 0 without a home.

    Returns DONE, or the state that needs a row or, with `room`, the bytes to its end.
    """
    header = array_at(header_at, HEADER, np.int64)
    out = array_at(mask_at, header[MASK_WORDS], np.uint32)
    rows = array_at(header[AT_ROW], header[AT_ROW + 1], np.int64)
    loops = array_at(header[AT_LOOPS], header[AT_LOOPS + 1], np.uint64)
    bytes_of = array_at(header[AT_BYTE], header[AT_BYTE + 1], np.uint8)
    node = array_at(header[AT_NODE], header[AT_NODE + 1], np.int32)
    sets = array_at(header[AT_NODE], header[AT_NODE + 1] >> 1, np.uint64)
    token = array_at(header[AT_TOKEN], header[AT_TOKEN + 1], np.int32)
    level = array_at(header[AT_LEVELS], header[AT_LEVELS + 1], np.int64)
    frames = array_at(header[AT_FRAMES], header[AT_FRAMES + 1], np.int64)
    ends = array_at(header[AT_ENDS], header[AT_ENDS + 1], np.int64)
    open_sites = np.frombuffer(sites, np.int32)
    one, height = np.uint32(1), np.int64(open_sites.size)
    d = np.int64(header[LEVEL])
    begin, home, in_home = place // header[NUM_INNER], np.int64(header[HOME]), np.uint64(header[IN_HOME])
    at_home = np.int64(header[AT_HOME])  # levels from the topmost on that only characters of `before_at` lead to
    if not goes_on:
        at_home, d = np.int64(_begin(header, place, open_sites, out, before_at)), np.int64(0)
    while True:
        at = OF_LEVEL * d
        i, state = level[at], level[at + 2]
        if i == level[at + 1]:
            if d == 0:
                return np.int64(DONE)
            d -= 1
            continue
        if rows[state] < 0:
            header[LEVEL], header[AT_HOME] = d, at_home
            return np.int64(state)
        inner, n = level[at + 3], OF_NODE * i
        level[at] = i + 1
        is_home = d < at_home and (d > 0 or begin == home)
        staying, bound = in_home if is_home else loops[state], np.int64(NO_BOUND)
        if room != NO_BOUND:  # only characters that lead to the state itself, as its bounds are theirs then
            known = OF_ENDS * state
            bound = max(ends[known], ends[known + 1]) + frames[OF_FRAME * level[at + 4] + 2]
            is_sure = ends[known + 1] != NO_BOUND and (bound < room or room == 0)
            staying = np.uint64(ends[known + 2]) if is_sure else np.uint64(0)
        if inner == 0 and sets[_SETS_OF_NODE * i + NODE_CHARACTERS] & ~staying == 0:
            if is_home:
                continue
            first, stop = node[n + NODE_TOKENS], node[n + NODE_TOKENS + 2]
            if room != NO_BOUND and first < stop:
                header[FARTHEST] = max(header[FARTHEST], bound)
                stop = stop if bound < room else first
            header[WORK] += (stop - first) >> _TOKENS_OF_A_NODE
            for x in range(first, stop):
                out[token[x] >> 5] |= one << np.uint32(token[x] & 31)
            continue
        header[NUM_FRAMES] = level[at + 5]
        header[WORK] += 1
        byte = np.int64(bytes_of[i])
        to, within, top = _next_place(header, state, inner, byte, level[at + 4], height)
        if to < REFUSED:
            level[at], header[LEVEL], header[AT_HOME] = i, d, at_home
            return REFUSED - 1 - to
        if d < at_home:
            begins = d == 0 and begin != home
            stays = _stays_at_home(header, begins, byte, inner, to)
            at_home = d + 2 if stays else d + 1
            if begins and not stays:
                first, stop = node[n + NODE_TOKENS], node[n + NODE_TOKENS + 2]
                header[WORK] += (stop - first) >> _TOKENS_OF_A_NODE
                for x in range(first, stop):
                    out[token[x] >> 5] &= ~(one << np.uint32(token[x] & 31))
        if to == REFUSED:
            continue
        first, stop = node[n + NODE_TOKENS], node[n + NODE_TOKENS + 1]
        if room != NO_BOUND and first < stop:
            bound = ends[OF_ENDS * to + (within > 0)]
            if bound == NO_BOUND:
                level[at], header[LEVEL] = i, d
                return to
            bound += frames[OF_FRAME * top + 2]
            header[FARTHEST] = max(header[FARTHEST], bound)
            stop = stop if bound < room else first
        for x in range(first, stop):
            out[token[x] >> 5] |= one << np.uint32(token[x] & 31)
        if node[n + NODE_CHILD] < node[n + NODE_STOP]:
            d += 1
            at = OF_LEVEL * d
            level[at], level[at + 1] = node[n + NODE_CHILD], node[n + NODE_STOP]
            level[at + 2], level[at + 3], level[at + 4], level[at + 5] = to, within, top, header[NUM_FRAMES]


@kernel
def read_token(header_at: int, place: int, text: bytes, sites: bytes, is_all: bool) -> tuple[Int, Int, Int]:
    """Read a token from a place: return (the place that it leads to, frames that it closes, frames that it opens).

    sites: the states to go on in behind open frames, the outermost first, int32, as bytes. is_all: whether these are
    all that are open. The frames that it opens are at `AT_PUSHED`, the outermost first.

    In place of a place it returns REFUSED; NEEDS_SITES, if it closes more frames than were passed; or (DONE, state, 0)
    where that state needs a row first.
    """
    header = array_at(header_at, HEADER, np.int64)
    frames = array_at(header[AT_FRAMES], header[AT_FRAMES + 1], np.int64)
    pushed = array_at(header[AT_PUSHED], header[AT_PUSHED + 1], np.int32)
    open_sites = np.frombuffer(sites, np.int32)
    height, nothing = np.int64(open_sites.size), np.int64(0)
    _take_sites(header, open_sites)
    header[NUM_FRAMES], header[LOOKED] = height + 1, 0
    top: Int = height
    state: Int = place // header[NUM_INNER]
    inner: Int = place % header[NUM_INNER]
    for x in range(len(text)):
        state, inner, top = _next_place(header, state, inner, np.int64(text[x]), top, height)
        if header[LOOKED] > height and not is_all:
            return np.int64(NEEDS_SITES), nothing, nothing
        if state == REFUSED:
            return np.int64(REFUSED), nothing, nothing
        if state < REFUSED:
            return np.int64(DONE), REFUSED - 1 - state, nothing
    count, below = nothing, top
    while below > height:
        count, below = count + 1, frames[OF_FRAME * below + 1]
    left = top
    for k in range(count - 1, -1, -1):
        pushed[k], left = np.int32(frames[OF_FRAME * left]), frames[OF_FRAME * left + 1]
    return state * header[NUM_INNER] + inner, height - below, count


class EntryPoints(NamedTuple):
    """The kernels that Python calls, without numba's check of the arguments: see `entry_of`."""

    write_mask: Callable[..., int]
    read_token: Callable[..., tuple[int, int, int]]


@cache
def entry_points() -> EntryPoints:
    """Load the kernels before a caller waits for a mask."""
    return EntryPoints(
        entry_of(write_mask, (0, 0, b"", 0, True, 0, 0)),
        entry_of(read_token, (0, 0, b"", b"", True)),
    )
