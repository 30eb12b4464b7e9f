"""Frames near the limit of the depth: whether the stack after a token can be left again.

Every state and return site requires some frames: so many more must be opened at least before it can be left. Where
frames run out, a token is allowed only if the frames left are enough for all that is open.
"""

from __future__ import annotations

import numpy as np

from ...automata.state_ranges import KEYS, PHASES, STRINGS, TEXTS
from ...automata.word_tries import KEY_END, KEY_LABEL, KEY_LIKE, KEY_STOP, OF_KEY, OF_USE
from ...kernels.arrays import Int, Int32Array, Int64Array
from ...kernels.compiled import kernel
from ...kernels.limits import MOST_DEPTH
from ...kernels.pointers import array_at
from .content_strings import content_at
from .header import (
    AT_CONTENTS,
    AT_DEPTH,
    AT_IS_CERTAIN,
    AT_KEYS,
    AT_LABELS_AHEAD,
    AT_SITE_FRAMES,
    AT_SITE_LEAF,
    AT_STATE_FRAMES,
    OF_CONTENT,
)
from .word_tries import site_of_use, state_behind, use_at


@kernel
def fits(header: Int64Array, pushed: Int32Array, popped: Int, state: Int, real: Int32Array, frames: Int) -> bool:
    """Return whether all that is open after a token can be left within the depth.

    pushed: sites that the token pushes. popped: how many of `real`, the open sites before it, the token pops. frames:
    open frames before it that count.
    """
    # what may still come in such a string says how many frames are required behind it
    by_end = KEYS <= state < STRINGS or state >= TEXTS
    # and so it says what the site on top requires
    within = by_end and (state >= TEXTS or site_of_use(header, state) < 0)
    top = np.int64(-1)
    site_leaf = array_at(header[AT_SITE_LEAF], header[AT_SITE_LEAF + 1], np.uint8)
    state_frames = array_at(header[AT_STATE_FRAMES], header[AT_STATE_FRAMES + 1], np.int32)
    site_frames = array_at(header[AT_SITE_FRAMES], header[AT_SITE_FRAMES + 1], np.int32)
    left = np.int64(frames)
    for k in range(popped):
        left -= not site_leaf[real[real.size - 1 - k]]
    most = left
    if pushed.size:
        top = np.int64(pushed[pushed.size - 1])
    elif popped < real.size:
        top = np.int64(real[real.size - 1 - popped])
        if not within and top < site_frames.size:  # outside its trie this may be more than before
            most = max(most, left - (not site_leaf[top]) + site_frames[top])
    for k in range(pushed.size):
        if pushed[k] < site_frames.size and not (within and k == pushed.size - 1):
            most = max(most, left + site_frames[pushed[k]])
        left += not site_leaf[pushed[k]]
    if by_end:
        left += frames_behind(header, state, top)
    elif state < state_frames.size:
        left += state_frames[state]
    return bool(max(most, left) <= header[AT_DEPTH])


@kernel
def frames_behind(header: Int64Array, here: Int, top: Int) -> Int:
    """Return how many frames the cheapest end of a word state or a content state requires; top: the site on top."""
    if not header[AT_STATE_FRAMES + 1]:
        return np.int64(0)
    least: Int = np.int64(MOST_DEPTH)  # over ends that are certain
    hoped: Int = np.int64(MOST_DEPTH)  # over the others
    if here >= TEXTS:
        content = content_at(header, here)
        first, _, _, _, states, _, _, _, _, _ = array_at(content, OF_CONTENT, np.int64)
        which = 2 * ((content - header[AT_CONTENTS]) // (8 * OF_CONTENT))
        ahead_at, words = array_at(header[AT_LABELS_AHEAD] + 8 * which, 2, np.int64)
        if words == 0:
            least, hoped = _better(header, least, hoped, state_behind(header, top, 0))
        ahead = array_at(ahead_at, PHASES * states * words, np.uint64)
        begin = words * ((here - first) % (PHASES * states))
        for w in range(words):
            labels = ahead[begin + w]
            label = np.int64(64) * w
            while labels:
                if labels & np.uint64(1):
                    least, hoped = _better(header, least, hoped, state_behind(header, top, label))
                labels >>= np.uint64(1)
                label += 1
        return least if least < MOST_DEPTH else hoped
    keys = array_at(header[AT_KEYS], header[AT_KEYS + 1], np.int32)
    first, _, trie, site = array_at(use_at(header, here), OF_USE, np.int64)
    child, site = np.int64(here - first + trie), np.int64(top if site < 0 else site)
    stop = np.int64(keys[OF_KEY * child + KEY_STOP])
    if keys[OF_KEY * child + KEY_LIKE] >= 0:  # any other word
        least, hoped = _better(header, least, hoped, state_behind(header, site, 0))
    while child != stop:
        child = np.int64(keys[OF_KEY * child + KEY_END])
        label = np.int64(keys[OF_KEY * child + KEY_LABEL])
        least, hoped = _better(header, least, hoped, state_behind(header, site, label))
        child += 1
    return least if least < MOST_DEPTH else hoped


@kernel
def _better(header: Int64Array, least: Int, hoped: Int, state: Int) -> tuple[Int, Int]:
    """Return the fewest frames over certain ends and over the others, with one more end, which leads to `state`.

    DEAD is no end. An end is certain if it can be left within the frames that it requires, whatever comes.
    """
    if state < 0:
        return least, hoped
    required = np.int64(array_at(header[AT_STATE_FRAMES], header[AT_STATE_FRAMES + 1], np.int32)[state])
    if array_at(header[AT_IS_CERTAIN], header[AT_IS_CERTAIN + 1], np.uint8)[state]:
        return min(least, required), hoped
    return least, min(hoped, required)
