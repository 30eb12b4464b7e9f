"""The walk of the token trie: which tokens a state allows, for the stack at hand.

**The walk.** A trie holds all tokens: a node stands for the bytes on the way to it, and lists the tokens that end
there. The walk goes down from the root with the state that the bytes lead to, so it reads each common beginning once.
It keeps one level for each byte of the path (`Levels`), with the state and the sites pushed and popped, and takes the
next child of the deepest level. If the state does not read the child's byte, the walk skips the whole subtree.
Otherwise it sets the bits of the tokens that end at the child, and goes one level down. When a level has no more
children, it goes back up.

**What makes it short.** Most tokens need no look. Tokens in free groups (`FreeTokens`) are right already. Where the
words hold the mask of a template, and both read a byte alike, the whole subtree is right already. Within a string that
reads any characters, all tokens below a child of such characters are set at once. A string with conditions has a faster
loop of its own (`string_walks`).

The other walks of the trie follow the same plan: `string_walks`, `content_mask`, `lazy.grammar.masks`, and those of
`compile.bind`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ...automata.state_ranges import CALL, DEAD, KEEP, KEYS, RETURN, STRINGS, TEXTS, UNWRITTEN
from ...kernels.arrays import Bool, Int, Int32Array, Int64Array
from ...kernels.compiled import kernel
from ...kernels.pointers import array_at
from ...vocabulary.token_trie import NODE_CHARACTERS, NODE_CHILD, NODE_REACH, NODE_STOP, NODE_TOKENS, OF_NODE
from .content_strings import content_at, content_code, is_in_content, next_plain_child, plain_code, row_at
from .counted_strings import counted_code, equals_any_string
from .frames import fits
from .header import (
    ALL_BYTES,
    AT_ANY_STRING_GROUPS,
    AT_CALLS,
    AT_CHARACTERS,
    AT_LEVELS,
    AT_ROWS,
    AT_SCRATCH,
    AT_SITE_START,
    AT_SITE_STATES,
    DONE,
    HEADER,
    SETS_OF_NODE,
    Trie,
    trie_of,
)
from .mask_words import MaskWords, by_address, list_exits, set_tokens
from .step import code_of, is_any_string, is_state_or_dead
from .string_walks import has_own_walk, pending_parts, scratch_size, walk_string
from .utf8 import continues
from .word_tries import is_in_use, next_differing_child, next_word_child, state_behind, use_at, word_code

_ENDED = -2
"""In place of a state of the template: its string or fragment has ended, and the exits of the base say what follows."""
_FREE = 1
"""All bytes so far are characters of the free groups: see `Levels.inside`."""
_IN_ANY_STRING = 2
"""The walk is in a string that reads any characters of `AT_ANY_STRING_GROUPS`."""


class OpenStack(NamedTuple):
    """The stack where a walk begins."""

    sites: Int32Array  # the open return sites, the outermost first, int32
    popped: Int  # how many of these are popped already
    frames: Int  # open frames that count towards the depth, -1 where the depth cannot matter


class Template(NamedTuple):
    """The library state whose mask the words hold already, -1 if there is none."""

    state: Int
    site: Int  # the site that the state at hand pushes in addition, -1 if it pushes none


class FreeTokens(NamedTuple):
    """Tokens of which the words hold already whether they are allowed, as their characters are in free groups."""

    others: np.uint64  # the groups that are not free
    length: Int  # bytes of the longest of these tokens: negative for any number, 0 if there are no such tokens


class Levels(NamedTuple):
    """What a walk keeps for each level of the trie, about the path that leads to the nodes of the level."""

    at: Int64Array  # the next node
    stop: Int64Array  # the node after the last
    state: Int64Array
    height: Int64Array  # sites that the path pushed
    pops: Int64Array  # open sites that the path popped
    template: Int64Array  # the template's state, DEAD if it reads this no more, or _ENDED
    inside: Int64Array  # _FREE, _IN_ANY_STRING, or 0
    row: Int64Array  # what `row_at` finds of a state of a content
    record: Int64Array  # the address of the use or of the content that the state belongs to
    is_alike: Int64Array  # 1 if the stack is that of the template
    stack: Int32Array  # (levels, levels) the sites that the path pushed, flat


@kernel(inline="always")
def _levels_at(where: Int, levels: Int) -> Levels:
    """Return the levels that lie at an address: see `scratch_size`."""
    return Levels(
        array_at(where, levels, np.int64), array_at(where + 8 * levels, levels, np.int64),
        array_at(where + 16 * levels, levels, np.int64), array_at(where + 24 * levels, levels, np.int64),
        array_at(where + 32 * levels, levels, np.int64), array_at(where + 40 * levels, levels, np.int64),
        array_at(where + 48 * levels, levels, np.int64), array_at(where + 56 * levels, levels, np.int64),
        array_at(where + 64 * levels, levels, np.int64), array_at(where + 72 * levels, levels, np.int64),
        array_at(where + 80 * levels, levels * levels, np.int32),
    )  # fmt: skip


@kernel(inline="always")
def _begin(header: Int64Array, level: Levels, d: Int, state: Int, parent: Int, record: Int) -> None:
    """Find the row and the record of the state of a level; parent: the state above, with its record, or -1."""
    level.row[d] = level.record[d] = 0
    if state >= TEXTS:
        level.record[d] = record if parent >= TEXTS and is_in_content(record, state) else content_at(header, state)
        level.row[d] = row_at(level.record[d], state)
    elif KEYS <= state < STRINGS:
        same = KEYS <= parent < STRINGS and is_in_use(record, state)
        level.record[d] = record if same else use_at(header, state)


@kernel(inline="always")
def _next_child(header: Int64Array, rows: Int32Array, trie: Trie, level: Levels, d: Int, free: FreeTokens) -> Int:
    """Return the next node of a level that the walk must look at, or the node after the last.

    It passes over the nodes below which the words are right already, and over those that are certainly not read.
    """
    i, last, here, template = level.at[d], level.stop[d], level.state[d], level.template[d]
    byte, length = trie.byte, free.length
    if length and level.inside[d] == _FREE:  # all of a token is read, and in the words, or none of it is
        characters = array_at(header[AT_CHARACTERS], header[AT_CHARACTERS + 1], np.uint64)
        any_length = length < 0 or length >= ALL_BYTES
        while (
            i < last
            and characters[np.uint64(i)] & free.others == 0
            and (any_length or trie.node[OF_NODE * i + NODE_REACH] <= length)
        ):
            i += 1
    elif here < KEYS and template == DEAD:  # most bytes are not read
        while i < last and rows[here << 8 | byte[i]] == DEAD:
            i += 1
    elif here < KEYS and template >= 0 and level.is_alike[d]:  # most bytes are read as the template reads them
        while (
            i < last
            and is_state_or_dead(rows[here << 8 | byte[i]])
            and (rows[here << 8 | byte[i]] == rows[template << 8 | byte[i]])
        ):
            i += 1
    elif here < STRINGS and template >= 0 and level.is_alike[d]:
        i = next_differing_child(header, level.record[d], here, template, byte, trie.sets, i, last)
    elif here < STRINGS and here >= KEYS and template == DEAD:
        i = next_word_child(header, level.record[d], here, byte, i, last)
    elif level.row[d] and template == DEAD:  # with a template the walk has to clear bits
        i = next_plain_child(level.record[d], level.row[d], here, byte, i, last)
    return np.int64(i)


@kernel(inline="always")
def _code_in(header: Int64Array, rows: Int32Array, level: Levels, d: Int, here: Int, c: Int) -> Int:
    """Return the code of the state of a level and a byte."""
    if here < KEYS:
        return np.int64(rows[here << 8 | c])
    if here < STRINGS:
        return word_code(header, level.record[d], here, c)
    if level.row[d]:
        return plain_code(header, level.record[d], level.row[d], here, c)
    if level.record[d]:
        return content_code(header, level.record[d], here, c)
    return counted_code(header, here, c)


@kernel(inline="always")
def _leave(
    header: Int64Array, pushed: Int32Array, top: Int, real: Int32Array, code: Int, here: Int, c: Int, h: Int, p: Int,
    looked: Int,
) -> tuple[Int, Int, Int, Int, Int]:  # fmt: skip
    """Follow returns with a byte c: pop sites until a code is no return.

    pushed: from `top` on, the h sites that the path pushed. p: how many of the open sites in `real` are popped.

    Returns (code, here, h, p, looked): if the code is UNWRITTEN, `here` is the state to be written; looked: the most
    open sites that were looked at, one more than there are if more were asked for.
    """
    rows = array_at(header[AT_ROWS], header[AT_ROWS + 1], np.int32)
    site_start = array_at(header[AT_SITE_START], header[AT_SITE_START + 1], np.int32)
    site_states = array_at(header[AT_SITE_STATES], header[AT_SITE_STATES + 1], np.int32)
    while CALL < code < DEAD:
        if h:
            h -= 1
            site = np.int64(pushed[top + h])
        elif p < real.size:
            p += 1
            site = np.int64(real[real.size - p])
            looked = max(looked, p)
        else:
            looked = np.int64(real.size + 1)
            code = np.int64(DEAD)
            break
        label = RETURN - code if code > KEEP else KEEP - code
        here = np.int64(-1)
        if site_start[site] + label < site_start[site + 1]:
            here = np.int64(site_states[site_start[site] + label])
        if here < 0:
            code = np.int64(DEAD)
        elif code > KEEP:
            code = here
        else:
            code = code_of(header, rows, here, c)
    return code, here, h, p, looked


@kernel
def walk_pending(
    header: Int64Array, parts: Int, sites: Int32Array, words: MaskWords, exits: Int32Array
) -> tuple[Int, Int, Int]:
    """Set the bits of the tokens in the pending parts that `walk_string` left; return as `walk_tokens` does."""
    pending, work = pending_parts(header), np.int64(0)
    looked: Int = np.int64(0)
    none, nothing = Template(np.int64(-1), np.int64(-1)), FreeTokens(np.uint64(0), np.int64(0))
    stack = OpenStack(sites, np.int64(0), np.int64(-1))
    for x in range(parts):
        state, seen, nodes = _walk_rest(
            header, np.int64(0), pending[3 * x], stack, none, nothing, words, exits, pending[3 * x + 1],
            pending[3 * x + 2], True,
        )  # fmt: skip
        looked, work = max(looked, seen), work + nodes
        if state != DONE:
            return state, looked, work
    return np.int64(DONE), looked, work


@kernel
def _walk_own(
    header: Int64Array, state: Int, low: Int, high: Int, words: MaskWords, exits: Int32Array, real: Int32Array,
    pushed: Int32Array,
) -> tuple[Int, Int, Int, bool]:  # fmt: skip
    """Walk a string that `has_own_walk`, from nodes low .. high on, and then the parts that it leaves pending.

    real, pushed: the open sites, the upper ones pushed by the path. Returns as `walk_tokens` does, and whether that was
    done: if not, more parts are pending than there is room for.
    """
    left, work = walk_string(header, state, low, high, words)
    if left <= 0:
        return np.int64(DONE), np.int64(0), work, left == 0
    sites = np.empty(real.size + pushed.size, np.int32)
    sites[: real.size], sites[real.size :] = real, pushed
    unwritten, looked, nodes = walk_pending(header, left, sites, words, exits)
    return unwritten, looked, work + nodes, True


@kernel(inline="always")
def _reads_alike(header: Int64Array, code: Int, template: Int, most: Int) -> Bool:
    """Return whether a state reads `most` bytes as the template's state does."""
    if STRINGS <= code < TEXTS:
        return equals_any_string(header, code, template, most)
    return code == template


# One loop: its body reads a node, and leaves the node early in nine ways. Parts of it that stand alone are above.
def _walk_tokens(
    header: Int64Array, rests: Int, start: Int, stack: OpenStack, template: Template, free: FreeTokens,
    words: MaskWords, exits: Int32Array, low: Int, high: Int, within: bool | None = None,
) -> tuple[Int, Int, Int]:  # fmt: skip
    """Set and clear the bits of tokens as a state reads them from an open stack: the walk that this file explains.

    rests: 1 to walk the rests of tokens, 0 to walk the tokens. exits: lists tokens that end the frame, in place of
    following them; empty to follow them. low, high: the nodes to begin with, where bytes were read before; high is 0
    for the root. within: not None if another walk waits for this one; then it uses the second part of the scratch.

    Returns (a state that must be written first, or DONE; how many open sites it looked at; how many nodes it read).
    """
    # arrays by their addresses: for others numba counts references, atomically, wherever a kernel is inlined
    header, words = array_at(header.ctypes.data, HEADER, np.int64), by_address(words)
    real, popped, frames = array_at(stack.sites.ctypes.data, stack.sites.size, np.int32), stack.popped, stack.frames
    rows = array_at(header[AT_ROWS], header[AT_ROWS + 1], np.int32)
    calls = array_at(header[AT_CALLS], header[AT_CALLS + 1], np.int32)
    trie, levels = trie_of(header, rests), header[AT_LEVELS]
    byte, node, sets, token = trie
    where = header[AT_SCRATCH]
    if within is not None:
        where += 8 * scratch_size(levels)
    level = _levels_at(where, levels)
    pushed = level.stack
    behind_template = state_behind(header, template.site, np.int64(0)) if template.site >= 0 else np.int64(-1)
    # a walk that only sets bits may leave strings to their own loops
    only_sets = not rests and not free.length and not exits.size and frames < 0
    work, d = np.int64(0), np.int64(0)
    looked: Int = np.int64(popped)
    any_groups = np.uint64(header[AT_ANY_STRING_GROUPS]) if frames < 0 and not rests else np.uint64(0)
    level.at[0], level.stop[0] = low, high if high else node[NODE_CHILD]
    level.state[0], level.height[0], level.pops[0], level.template[0] = start, 0, popped, template.state
    level.inside[0], level.is_alike[0] = _FREE, template.site < 0
    if low and not free.length and any_groups and is_any_string(header, start):
        level.inside[0] = _IN_ANY_STRING
    _begin(header, level, d, start, np.int64(-1), np.int64(0))
    while True:
        i = _next_child(header, rows, trie, level, d, free)
        if i == level.stop[d]:
            if d == 0:
                break
            d -= 1
            continue
        level.at[d], here, like = i + 1, level.state[d], level.template[d]
        c, n = np.int64(byte[i]), OF_NODE * i
        first, behind = node[n + NODE_TOKENS], node[n + NODE_TOKENS + 2]  # the tokens at and below the node
        if level.inside[d] == _IN_ANY_STRING and sets[SETS_OF_NODE * i + NODE_CHARACTERS] & ~any_groups == 0:
            set_tokens(words, token, first, behind, True)
            continue
        if like >= 0:
            like = np.int64(rows[like << 8 | c])
            if like <= RETURN:
                like = np.int64(_ENDED)
        code = _code_in(header, rows, level, d, here, c)
        if code == DEAD and like == DEAD:
            continue
        work += 1
        level.inside[d + 1] = 0
        if free.length and level.inside[d] == _FREE:
            level.inside[d + 1] = continues(c, d, ~free.others)
        h, p = level.height[d], level.pops[d]
        leaves = like == _ENDED and level.template[d] >= 0  # with this very byte: later the template says no more
        if code == RETURN and h == 0 and p == popped and template.site < 0 and leaves:
            continue  # both end here in the same frame: the exits of the base say what follows
        if exits.size and h == 0 and KEEP < code <= RETURN:
            list_exits(exits, token, first, behind, RETURN - code)
            continue
        top, below = (d + 1) * levels, d * levels
        for k in range(h):
            pushed[top + k] = pushed[below + k]
        code, here, h, p, looked = _leave(header, pushed, top, real, code, here, c, h, p, looked)
        if code == UNWRITTEN:
            return here, looked, work
        if code == DEAD:
            if like != DEAD:  # the base may allow what lies below, by a token or by an exit
                set_tokens(words, token, first, behind, False)
            continue
        if code <= CALL:
            pushed[top + h] = calls[2 * (CALL - code)]
            h += 1
            code = np.int64(calls[2 * (CALL - code) + 1])
        is_alike = p == popped and (h == 0 if template.site < 0 else h == 1 and pushed[top] == template.site)
        if p == popped and template.state >= 0 and like != DEAD:
            if like == _ENDED:
                same = leaves and h == 0 and code == behind_template
            else:
                same = is_alike and _reads_alike(header, code, like, np.int64(node[n + NODE_REACH]))
            if same:
                continue  # from here on all is as the base and its exits have it
        stop = node[n + NODE_TOKENS + 1]
        if any_groups and sets[SETS_OF_NODE * i + NODE_CHARACTERS] & ~any_groups == 0 and is_any_string(header, code):
            stop = behind
        if first < stop:
            allowed = True
            if frames >= 0:  # the site on top says how many frames are required
                allowed = fits(header, pushed[top : top + h], p, code, real, frames)
                looked = max(looked, min(np.int64(p + 1), np.int64(real.size)))
            set_tokens(words, token, first, stop, allowed)
        if stop >= behind:
            continue
        under, end = np.int64(node[n + NODE_CHILD]), np.int64(node[n + NODE_STOP])
        if within is None:  # noqa: SIM102 - numba leaves this out of the kernel that a waiting walk calls
            if only_sets and like == DEAD and has_own_walk(header, code):
                unwritten, seen, nodes, is_done = _walk_own(
                    header, code, under, end, words, exits, real[: real.size - p], pushed[top : top + h]
                )
                looked, work = max(looked, p + max(seen - h, 0)), work + nodes
                if unwritten != DONE:
                    return unwritten, looked, work
                if is_done:
                    continue
        d += 1
        if any_groups and level.inside[d] != _FREE and is_any_string(header, code):
            level.inside[d] = _IN_ANY_STRING
        _begin(header, level, d, code, level.state[d - 1], level.record[d - 1])
        level.at[d], level.stop[d], level.state[d], level.height[d] = under, end, code, h
        level.pops[d], level.template[d], level.is_alike[d] = p, like, is_alike
    return np.int64(DONE), looked, work


# Two kernels and not one that calls itself: numba's cache does not bring back a kernel that does. Each other type of an
# argument takes seconds to compile, so all calls pass the same types, constants and empty arrays included.
walk_tokens, _walk_rest = kernel(_walk_tokens), kernel(_walk_tokens)
