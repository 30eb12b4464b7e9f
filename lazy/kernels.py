"""What reads a machine with calls as it is, byte by byte, and what walks the trie of all tokens for a mask.

All of it is said in one array of numbers, the header: addresses of arrays and their sizes. See `lazy`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..automata.codes import CALL, DEAD, KEEP, KEYS, PHASES, RETURN, STRINGS, TEXTS, UNWRITTEN
from ..automata.word_tries import (
    KEY_BYTE,
    KEY_CHILD,
    KEY_END,
    KEY_ESCAPE,
    KEY_LABEL,
    KEY_LIKE,
    KEY_NEXT,
    KEY_STOP,
    OF_KEY,
    OF_USE,
    USE_SITE,
)
from ..kernels.compiled import kernel
from ..kernels.limits import MOST_DEPTH
from ..kernels.mask_buffers import ALL_WORDS, MOST_NOTED
from ..kernels.pointers import array_at
from ..vocabulary.characters import BYTE_GROUP, IS_SIGN, UNCLEAN
from ..vocabulary.token_trie import NODE_CHARACTERS, NODE_CHILD, NODE_REACH, NODE_STOP, NODE_TOKENS, OF_NODE

WRITTEN = -1  # in place of a state that has yet to be written
ASKS = -2  # in its place too: what a state reads freely is in the header, and the mask of that is wanted
MORE = -3  # the same: it depends on more of the stack
LITTLE = -4  # what a state reads freely, which is soon walked
UNKNOWN = -(1 << 40)  # bytes that a state surely reads, where nobody has looked
_UNBOUNDED = 1 << 40  # characters, where they are not counted
_MANY = 16  # bytes that a state reads from which on it is worth knowing which characters it reads freely
_MOST_AHEAD = 1024  # states looked at to know that
_MOST_BYTES = 32  # of a token that are known to be read, where it is not known that all are
ALL_BYTES = 1 << 20  # of any token
_MOST_TRIES = 8  # to leave out the characters that keep others from being read
_MOST_LOOKS = 16  # at what states read freely, by one walk, where another's is known that is less
MOST_SETS = 256  # of groups that states read freely, kept
_OWN = 512  # beside the number of such a set: it was looked for from this very state
_TOTAL = 1024  # and: any characters are read, and after them any others
_PART = 4096  # tokens behind a first byte from which on that is looked at anew for what comes after it
_SMALL_PART = 256  # where that of another state is known
_LONG = 3 << 14  # nodes that were walked, after which all tokens are read in their order
_MOST_STEPS = 1 << 14  # transitions of a text for which that is done
_IN_ORDER = ALL_BYTES + 1  # bytes that are read freely, where that is so
_SETS = OF_NODE // 2  # numbers of 64 bits of a node
_LEFT = -2  # the base has ended: what is below are its exits

# places in the header: of arrays, two each, and of numbers
(
    AT_ROWS, AT_CALLS, AT_SITE_START, AT_SITE_STATES, AT_SITE_LEAF, AT_TWINS, AT_KEYS, AT_USES, AT_STRING_ROWS,
    AT_STRINGS, AT_NEED_STATE, AT_NEED_SITE, AT_BYTE, AT_NODE, AT_TOKEN, AT_END_BYTE, AT_END_NODE, AT_SYMBOL, AT_TEXTS,
    AT_SETS, AT_CHARACTERS, AT_SURELY, AT_PUSHED, AT_AHEAD, AT_SHARES, AT_ORDER, AT_DEPTHS, AT_SKIP, AT_CONTENT,
    AT_FIRST_TOKEN,
) = range(0, 60, 2)  # fmt: skip
(
    AT_LEVELS, AT_SYMBOLS, AT_NOTHING, AT_BODY, AT_BODY_GROUPS, AT_DEPTH, AT_WORDS, AT_EOS, AT_SCRATCH, AT_GROUPS,
    AT_WANTED, AT_FREE_BYTES, HEADER,
) = range(60, 73)  # fmt: skip
# groups of characters that JSON writes as they are
PLAIN = np.uint64(
    sum({1 << int(group) for group in BYTE_GROUP} - {1 << int(BYTE_GROUP[b]) for b in (*range(32), 34, 92)})
)
PLAIN &= ~np.uint64(1 << UNCLEAN)
# and of those others that strings may have: the quote, the escape, and DEL, which is in a group with controls
_OTHERS = np.uint64(sum(1 << int(BYTE_GROUP[b]) for b in b'"\\\x7f'))
# numbers that say what a text is: its first state; the addresses of classes, transitions and labels; how many states
# and classes; the state after which anything may come; the most characters; the addresses of those that must follow,
# and of what each state reads freely, as far as that is known
OF_TEXT = 10
OF_LEVEL = 10  # numbers of each level of a walk
MOST_PENDING = 128  # parts of a trie that a loop of its own leaves to another
_IN_A_ROW = 8  # pairs of words that are compared at once
OF_BASE = 11  # numbers that say what a base is: see `lazy.Base`
OF_KNOWN = 8  # those of `lazy.Known`


@kernel
def _code(header: Any, here: Any, byte: Any) -> Any:
    """Return the code of a state that has no row, and a byte."""
    if here < STRINGS:
        return _word_code(header, _use_in(header, here), here, byte)
    if here < TEXTS:
        return _string_code(header, here, byte)
    return _text_code(header, _text_in(header, here), here, byte)


@kernel
def _record_in(records: Any, count: Any, size: Any, here: Any) -> Any:
    """Return the address of the last of some records, of so many numbers each, whose first is at most a state."""
    numbers = array_at(records, size * count, np.int64)
    low, high = np.int64(0), count
    while high - low > 1:
        middle = (low + high) >> 1
        if numbers[size * middle] <= here:
            low = middle
        else:
            high = middle
    return records + 8 * size * low


@kernel
def _use_in(header: Any, here: Any) -> Any:
    """Return the address of the numbers that say which use of which trie a state is of."""
    return _record_in(header[AT_USES], header[AT_USES + 1], OF_USE, here)


@kernel
def _is_of(use: Any, here: Any) -> Any:
    """Return whether a state is of a use of a trie, of which the numbers are at an address."""
    first, stop, _, _ = array_at(use, OF_USE, np.int64)
    return first <= here < stop


@kernel
def _word_code(header: Any, use: Any, here: Any, byte: Any) -> Any:
    """Return the code of a state of a trie of words, of which the use is at an address, and a byte."""
    keys = array_at(header[AT_KEYS], header[AT_KEYS + 1], np.int32)
    first, _, trie, site = array_at(use, OF_USE, np.int64)
    at = OF_KEY * (here - first + trie)
    like, label = np.int64(keys[at + KEY_LIKE]), np.int64(keys[at + KEY_LABEL])
    if byte == 0x22 and label >= 0:
        return np.int64(RETURN - label) if site < 0 else _state_behind(header, site, label)
    if byte == 0x5C and keys[at + KEY_ESCAPE] >= 0:
        return np.int64(keys[at + KEY_ESCAPE])
    child = np.int64(keys[at + KEY_CHILD])
    several = label >= 0 or (child >= 0 and keys[OF_KEY * child + KEY_NEXT] >= 0)
    while child >= 0 and keys[OF_KEY * child + KEY_BYTE] < byte:
        child = np.int64(keys[OF_KEY * child + KEY_NEXT])
    if child >= 0 and keys[OF_KEY * child + KEY_BYTE] == byte:  # where one way leads on, what came leads somewhere
        return child - trie + first if site < 0 or not several or _leads(header, keys, child, site) else np.int64(DEAD)
    return np.int64(DEAD if like < 0 else array_at(header[AT_ROWS], header[AT_ROWS + 1], np.int32)[like << 8 | byte])


@kernel
def _state_behind(header: Any, site: Any, label: Any) -> Any:
    """Return the state to which a site leads by a label, DEAD for none."""
    start = array_at(header[AT_SITE_START], header[AT_SITE_START + 1], np.int32)[site]
    return np.int64(array_at(header[AT_SITE_STATES], header[AT_SITE_STATES + 1], np.int32)[start + label])


@kernel
def _leads(header: Any, keys: Any, child: Any, site: Any) -> Any:
    """Return whether a site leads somewhere by one of the words below a state of a trie."""
    here, stop = child, np.int64(keys[OF_KEY * child + KEY_STOP])
    while here < stop:
        here = np.int64(keys[OF_KEY * here + KEY_END])
        if _state_behind(header, site, keys[OF_KEY * here + KEY_LABEL]) >= 0:
            return True
        here += 1
    return False


@kernel
def _next_word(header: Any, use: Any, here: Any, byte: Any, i: Any, last: Any) -> Any:
    """Return the next node, from i to last, whose byte a state of a trie may read, or `last`."""
    first, _, trie, site = array_at(use, OF_USE, np.int64)
    if site < 0:
        return i
    keys = array_at(header[AT_KEYS], header[AT_KEYS + 1], np.int32)
    at = OF_KEY * (here - first + trie)
    child, ends = np.int64(keys[at + KEY_CHILD]), keys[at + KEY_LABEL] >= 0
    while i < last:
        b = byte[i]
        while child >= 0 and keys[OF_KEY * child + KEY_BYTE] < b:
            child = np.int64(keys[OF_KEY * child + KEY_NEXT])
        if child < 0 and (not ends or b > 0x22):
            return last
        if (child >= 0 and keys[OF_KEY * child + KEY_BYTE] == b) or (ends and b == 0x22):
            break
        i += 1
    return i


@kernel
def _other_word(header: Any, use: Any, here: Any, other: Any, byte: Any, sets: Any, i: Any, last: Any) -> Any:
    """Return the next node, from i to last, below which a state of a trie reads not as another does, or `last`."""
    keys = array_at(header[AT_KEYS], header[AT_KEYS + 1], np.int32)
    first, _, trie, _ = array_at(use, OF_USE, np.int64)
    at = OF_KEY * (here - first + trie)
    if keys[at + KEY_LIKE] != other:
        return i
    child = np.int64(keys[at + KEY_CHILD])
    ends = keys[at + KEY_LIKE] == header[AT_BODY]
    groups = np.uint64(header[AT_BODY_GROUPS]) if ends else np.uint64(0)  # of these all are read, in the trie or not
    while i < last:
        b = byte[i]
        while child >= 0 and keys[OF_KEY * child + KEY_BYTE] < b:
            child = np.int64(keys[OF_KEY * child + KEY_NEXT])
        if ((child >= 0 and keys[OF_KEY * child + KEY_BYTE] == b) or (ends and (b == 0x22 or b == 0x5C))) and (
            sets[_SETS * i + NODE_CHARACTERS] & ~groups
        ):
            break
        i += 1
    return i


@kernel
def _is_any(header: Any, state: Any) -> Any:
    """Return whether a state surely reads what any string has, a token of it: in a bounded one, or towards a key."""
    if state < KEYS:
        if state == header[AT_BODY]:
            return True
        twins = array_at(header[AT_TWINS], header[AT_TWINS + 1], np.int32)  # (2, n)
        n = twins.size >> 1
        # one that pushes a site with the string: a trie of keys in rows, where what has begun may become any other key
        return state < n and twins[state] == header[AT_BODY] and twins[n + state] >= 0
    if state < STRINGS:
        keys = array_at(header[AT_KEYS], header[AT_KEYS + 1], np.int32)
        first, _, trie, _ = array_at(_use_in(header, state), OF_USE, np.int64)
        return keys[OF_KEY * (state - first + trie) + KEY_LIKE] == header[AT_BODY]
    if state >= TEXTS:
        return False
    first, states, _, high = _string_in(header, state)
    k = (state - first) // states
    return state == first + k * states and (high < 0 or high - k >= header[AT_LEVELS])


@kernel
def _is_free(header: Any, state: Any, like: Any, most: Any) -> Any:
    """Return whether a state of a counted string reads all of `most` bytes as that state of any string does."""
    first, states, low, high = _string_in(header, state)
    k = (state - first) // states
    unbound = k >= low and (high < 0 or high - k >= most)
    return unbound and like == header[AT_BODY] + state - first - k * states


@kernel
def read(header: Any, node: int, text: Any, sites: Any) -> Any:
    """Read a token from a state. sites: of the frames that are open, or some of them on top, int32, as bytes.

    Returns (the state it leads to, how many of the sites are gone then, how many others are on top of what is left).
    These are in the room that the header says. In place of the state DEAD where the token is not allowed; ASKS where
    another state must be written first, which is next; MORE where one more site would be gone.
    """
    rows = array_at(header[AT_ROWS], header[AT_ROWS + 1], np.int32)
    calls = array_at(header[AT_CALLS], header[AT_CALLS + 1], np.int32)
    site_start = array_at(header[AT_SITE_START], header[AT_SITE_START + 1], np.int32)
    site_states = array_at(header[AT_SITE_STATES], header[AT_SITE_STATES + 1], np.int32)
    pushed = array_at(header[AT_PUSHED], header[AT_PUSHED + 1], np.int32)
    open_sites = np.frombuffer(sites, np.int32)
    here, nothing = np.int64(node), np.int64(0)
    at = popped = height = nothing
    while at < len(text):
        code = _any_code(header, rows, here, np.int64(text[at]))
        if code > 0:
            here = code
            at += 1
        elif code == DEAD:
            return np.int64(DEAD), nothing, nothing
        elif code <= CALL:
            pushed[height], here = calls[2 * (CALL - code)], np.int64(calls[2 * (CALL - code) + 1])
            height += 1
            at += 1
        elif code == UNWRITTEN:
            return np.int64(ASKS), here, nothing
        else:
            if height:
                height -= 1
                site = np.int64(pushed[height])
            elif popped < open_sites.size:
                popped += 1
                site = np.int64(open_sites[open_sites.size - popped])
            else:
                return np.int64(MORE), nothing, nothing
            to = site_start[site] + (RETURN - code if code > KEEP else KEEP - code)
            here = np.int64(site_states[to] if to < site_start[site + 1] else DEAD)
            if here < 0:
                return np.int64(DEAD), nothing, nothing
            at += code > KEEP
    return here, popped, height


@kernel
def _text_in(header: Any, here: Any) -> Any:
    """Return the address of the numbers that say which text a state is of."""
    return _record_in(header[AT_TEXTS], header[AT_TEXTS + 1], OF_TEXT, here)


@kernel
def _is_in(text: Any, here: Any) -> Any:
    """Return whether a state is of a text, of which the numbers are at an address; 0 is none."""
    if text == 0:
        return False
    first, _, _, _, states, _, _, most, _, _ = array_at(text, OF_TEXT, np.int64)
    return first <= here < first + PHASES * states * (most + 1 if most >= 0 else 1)


@kernel
def _row_of(text: Any, here: Any) -> Any:
    """Return the address of the transitions of a state of a text, 0 within an escape."""
    first, _, transitions_at, _, states, classes, _, _, _, _ = array_at(text, OF_TEXT, np.int64)
    q = (here - first) // PHASES
    return transitions_at + 4 * (q % states) * classes if q * PHASES == here - first else np.int64(0)


@kernel
def _plain_code(header: Any, text: Any, row_at: Any, here: Any, byte: Any) -> Any:
    """Return the code of a state of a text that is not within an escape, of which `_row_of` says this, and a byte."""
    first, classes_at, _, labels_at, states, _, free, most, needed_at, _ = array_at(text, OF_TEXT, np.int64)
    if byte == 0x22:
        label = array_at(labels_at, states, np.int32)[(here - first) // PHASES % states]
        return np.int64(RETURN - label) if label >= 0 else np.int64(DEAD)
    if byte < 0x20:
        return np.int64(DEAD)
    if byte == 0x5C or (most >= 0 and byte >= 0x80):
        return _text_code(header, text, here, byte)
    to = np.int64(array_at(row_at, 256, np.int32)[array_at(classes_at, 256, np.uint16)[byte]])
    if to < 0 or (needed_at != 0 and to != free and array_at(needed_at, to + 1, np.int32)[to] < 0):
        return np.int64(DEAD)
    if most >= 0:
        return _text_code(header, text, here, byte)
    return header[AT_BODY] if to == free else first + to * PHASES


@kernel
def _next_plain(text: Any, row_at: Any, here: Any, byte: Any, i: Any, last: Any) -> Any:
    """Return the next node, from i to last, whose byte a state as of `_plain_code` may read, or `last`."""
    first, classes_at, _, labels_at, states, _, _, _, _, _ = array_at(text, OF_TEXT, np.int64)
    row, class_of = array_at(row_at, 256, np.int32), array_at(classes_at, 256, np.uint16)
    ends = array_at(labels_at, states, np.int32)[(here - first) // PHASES % states] >= 0
    while i < last:
        b = byte[i]
        if ends if b == 0x22 else b == 0x5C or (b >= 0x20 and row[class_of[b]] >= 0):
            break
        i += 1
    return i


@kernel
def _text_at(text: Any, here: Any) -> Any:
    """Return what a text at an address has: its first state, arrays, flat, and free state; and where in it a state is.

    That is: the state of the content, how many characters may begin after one more, and how many it has at most. And
    what is known of what its states read freely.
    """
    first, classes_at, transitions_at, labels_at, states, classes, free, most, needed_at, known_at = array_at(
        text, OF_TEXT, np.int64
    )
    q, left = (here - first) // PHASES, np.int64(_UNBOUNDED)
    if most >= 0:
        done = q // states
        q -= done * states
        left = most - done - 1
    class_of, transition = array_at(classes_at, 256, np.uint16), array_at(transitions_at, states * classes, np.int32)
    label, needed = array_at(labels_at, states, np.int32), array_at(needed_at, states if needed_at else 0, np.int32)
    known = array_at(known_at, states if known_at else 0, np.int16)
    return first, class_of, transition, label, needed, free, q, left, most, known


@kernel
def _text_code(header: Any, text: Any, here: Any, byte: Any) -> Any:
    """Return the code of a state of a string by its content, of which the numbers are at an address, and a byte."""
    first, class_of, transition, label, needed, free, q, left, most, _ = _text_at(text, here)
    classes = transition.size // label.size
    row = transition[q * classes : (q + 1) * classes]
    phase = (here - first) % PHASES
    character = np.int64(-1)
    if phase == 0:
        if byte == 0x22:
            return np.int64(RETURN - label[q]) if label[q] >= 0 else np.int64(DEAD)
        if byte == 0x5C:
            return (
                here + 1
                if _reads_some(row, class_of, 0, 0x1F, needed, left)
                or _reads_some(row, class_of, 0x22, 0x22, needed, left)
                or _reads_some(row, class_of, 0x5C, 0x5C, needed, left)
                else np.int64(DEAD)
            )
        if byte >= 0x20:
            character = np.int64(byte)
    elif phase == 1:
        if byte == 0x75:
            return here + 1
        for letter, meant in ((0x62, 8), (0x66, 12), (0x6E, 10), (0x72, 13), (0x74, 9), (0x22, 0x22), (0x5C, 0x5C)):
            if byte == letter:
                character = np.int64(meant)
    elif phase < 4:
        return here + 1 if byte == 0x30 else np.int64(DEAD)
    elif phase == 4:
        for digit, low_one, high_one, ahead in (
            (0x30, 0, 0x0F, 1), (0x31, 0x10, 0x1F, 2), (0x32, 0x22, 0x22, 3), (0x35, 0x5C, 0x5C, 4)
        ):  # fmt: skip
            if byte == digit and _reads_some(row, class_of, low_one, high_one, needed, left):
                return here + ahead
    elif phase < 7:
        value = np.int64(byte) - 0x30 if byte <= 0x39 else (np.int64(byte) | 0x20) - 0x57
        if 0 <= value < 16 and (byte <= 0x39 or value >= 10):  # 0x60 lies between the letters
            character = (phase - 5) * 16 + value
    elif phase == 7:
        character = np.int64(0x22) if byte == 0x32 else np.int64(-1)
    elif byte | 0x20 == 0x63:
        character = np.int64(0x5C)
    if character < 0:
        return np.int64(DEAD)
    target = np.int64(row[class_of[character]])
    if target < 0:
        return np.int64(DEAD)
    if target == free:
        return header[AT_BODY]
    if character & 0xC0 == 0x80:  # within a character, which was counted when it began
        left += 1
    if not _lives(needed, left, target):
        return np.int64(DEAD)
    if most >= 0:
        target += (most - left) * len(label)
    return first + target * PHASES


@kernel
def _reads_some(row: Any, class_of: Any, low: Any, high: Any, needed: Any, left: Any) -> Any:
    """Return whether a row of a content reads one of some characters, after which so many may be left."""
    last = -1
    for c in range(low, high + 1):
        if class_of[c] != last:  # which many in a row have in common
            last = class_of[c]
            if _lives(needed, left, row[last]):
                return True
    return False


@kernel
def _string_in(header: Any, here: Any) -> Any:
    """Return of the counted string that a state is of: its first state, how many are of one count, and its bounds."""
    strings = array_at(header[AT_STRINGS], header[AT_STRINGS + 1], np.int64)  # (3, n)
    count = strings.size // 3
    at = count - 1
    while strings[at] > here:
        at -= 1
    return strings[at], header[AT_STRING_ROWS + 1] >> 8, strings[count + at], strings[2 * count + at]


@kernel
def _string_code(header: Any, here: Any, byte: Any) -> Any:
    """Return the code of a state of a counted string and a byte."""
    rows = array_at(header[AT_STRING_ROWS], header[AT_STRING_ROWS + 1], np.int32)
    first, states, low, high = _string_in(header, here)
    k = (here - first) // states
    code = np.int64(rows[(here - first - k * states) << 8 | byte])
    if code == DEAD:
        return code
    if code <= RETURN:
        return code if k >= low and (high < 0 or k <= high) else np.int64(DEAD)
    done = k + (code == 0)
    if high < 0 and done >= low:
        return header[AT_BODY] + code
    if high >= 0 and done + (code > 0) > high:
        return np.int64(DEAD)
    return first + done * states + code


@kernel
def _any_code(header: Any, rows: Any, here: Any, byte: Any) -> Any:
    """Return the code of a state and a byte."""
    return np.int64(rows[here << 8 | byte]) if here < KEYS else _code(header, here, byte)


@kernel
def _follow(byte: Any, phase: Any) -> Any:
    """Return the bytes of a character that are to come after one more: phases 4 to 7 are those of its second byte."""
    if phase:
        return phase - 1 if phase < 4 else 1 if phase < 6 else 2
    if byte < 0x80:
        return 0
    if byte < 0xF0:
        return 1 if byte < 0xE0 else 4 if byte == 0xE0 else 5 if byte == 0xED else 2
    return 6 if byte == 0xF0 else 7 if byte == 0xF4 else 3


@kernel
def _bytes_of(phase: Any) -> Any:
    """Return the lowest and the highest byte that may come in a phase within a character."""
    low = 0xA0 if phase == 4 else 0x90 if phase == 6 else 0x80
    return low, 0x9F if phase == 5 else 0x8F if phase == 7 else 0xBF


@kernel
def _reads(header: Any, rows: Any, state: Any, phase: Any) -> Any:
    """Return whether a state within a character reads all that may be left of it."""
    low, high = _bytes_of(phase)
    after = _follow(low, phase)
    last = np.int64(0)
    for c in range(low, high + 1):
        to = _any_code(header, rows, state, c)
        if to <= 0 or (to != last and after and not _reads(header, rows, to, after)):
            return False
        last = to
    return True


@kernel
def groups_read(header: Any, rows: Any, state: Any, groups: Any) -> Any:
    """Return which of some groups of characters a state reads all, within its frame."""
    last, last_phase, reads = np.int64(-1), np.int64(-1), True
    for b in range(256):
        group = BYTE_GROUP[b]
        bit = np.uint64(1) << np.uint64(group)
        if group == UNCLEAN or not groups & bit:
            continue
        to, phase = _any_code(header, rows, state, b), np.int64(_follow(b, 0))
        if to != last or phase != last_phase:
            reads = to > 0 and (not phase or _reads(header, rows, to, phase))
            last, last_phase = to, phase
        if not reads:
            groups &= ~bit
    return groups


@kernel
def _usual_groups(header: Any, rows: Any, start: Any) -> Any:
    """Return the groups of characters that a state reads, but for those after which little of the rest is read."""
    one = np.uint64(1)
    groups = groups_read(header, rows, start, ~(one << np.uint64(UNCLEAN)))
    last, dropped = np.int64(-1), np.uint64(0)
    for b in range(128):
        bit = one << np.uint64(BYTE_GROUP[b])
        to = _any_code(header, rows, start, b)
        if not groups & bit or to == last:
            continue
        last = to
        lacking = groups & ~groups_read(header, rows, to, groups)
        if 2 * _size_of(lacking) > _size_of(groups):
            dropped |= bit
            last = np.int64(-1)
    return groups & ~dropped


@kernel
def _row_freely(header: Any, start: Any) -> Any:
    """Return groups of characters, as bits, and how many of their bytes, _MOST_BYTES at most, a state surely reads.

    And the groups of all others that are read up to there; and a state that must be written first to say so, or -1.
    """
    rows = array_at(header[AT_ROWS], header[AT_ROWS + 1], np.int32)
    read = 0
    for b in range(256):
        read += rows[start << 8 | b] > 0
    if read < _MANY:
        return np.uint64(0), np.int64(0), np.uint64(0), np.int64(WRITTEN)
    groups = _usual_groups(header, rows, start)
    surely, wanted, unwritten, sign = _row_ahead(header, rows, start, groups)
    fewer, tries = groups, 1
    while sign >= 0 and tries < _MOST_TRIES:
        fewer &= ~(np.uint64(1) << np.uint64(sign))
        more, others, unwritten, sign = _row_ahead(header, rows, start, fewer)
        if more > surely:
            groups, surely, wanted = fewer, more, others
        tries += 1
    return groups, surely, wanted, unwritten


@kernel
def _row_ahead(header: Any, rows: Any, start: Any, groups: Any) -> Any:
    """Return how many bytes of any characters of some groups a row surely reads, and the groups of others read.

    And a state that must be written first to say so, or -1; and the group of a sign without which it may read more,
    as the end of a trigger in free text, or -1.
    """
    one, wanted = np.uint64(1), np.uint64(0)
    queue, phases, level, signs = (
        np.empty(_MOST_AHEAD, np.int64), np.empty(_MOST_AHEAD, np.int64), np.empty(_MOST_AHEAD, np.int64),
        np.empty(_MOST_AHEAD, np.int64),
    )  # fmt: skip
    queue[0], phases[0], level[0], signs[0] = start, 0, 0, -1
    count, at = 1, 0
    while at < count:
        here, phase, depth = queue[at], phases[at], level[at]
        at += 1
        low, high = (0, 0xFF) if phase == 0 else _bytes_of(phase)
        last, last_phase = np.int64(-1), np.int64(-1)
        for b in range(low, high + 1):
            to, after = _any_code(header, rows, here, b), np.int64(_follow(b, phase))
            if phase == 0 and not (groups >> np.uint64(BYTE_GROUP[b])) & one:
                if to != DEAD:
                    wanted |= one << np.uint64(BYTE_GROUP[b])
                continue
            if to <= 0:
                if to == UNWRITTEN:
                    return depth, wanted, here, np.int64(-1)
                return depth, wanted, np.int64(WRITTEN), signs[at - 1]
            if to == last and after == last_phase:
                continue
            last, last_phase = to, after
            new = True
            for k in range(count):
                if queue[k] == to and phases[k] == after:
                    new = False
                    break
            if new and depth + 1 < _MOST_BYTES:
                if count == _MOST_AHEAD:  # not all states after so many bytes have been looked at
                    return depth, wanted, np.int64(WRITTEN), np.int64(-1)
                queue[count], phases[count], level[count] = to, after, depth + 1
                signs[count] = BYTE_GROUP[b] if IS_SIGN[b] else signs[at - 1]
                count += 1
    return np.int64(_MOST_BYTES), wanted, np.int64(WRITTEN), np.int64(-1)


@kernel
def _lives(needed: Any, left: Any, target: Any) -> Any:
    """Return whether a state of a content leads to an end, if so many characters may begin."""
    return target >= 0 and (not needed.size or 0 <= needed[target] <= left)


@kernel
def _by_class(class_of: Any, classes: Any, after: Any, group: Any, count: Any) -> None:
    """Write what the bytes of each phase, within a character or before one, lead to: a class of bytes, and a phase.

    classes, after, group: (9, 256), of which the first `count` (9,) of each phase are written; group: of phase 0, the
    group of characters. Those that JSON writes as escapes, and DEL, are in a phase of their own, the last.
    """
    for phase in range(9):
        low, high = (0, 0xF4) if phase in (0, 8) else _bytes_of(phase)
        n = 0
        for b in range(low, high + 1):
            follows, name = np.int64(0), np.int64(0)
            if phase == 8:
                if b >= 0x20 and b != 0x22 and b != 0x5C and b != 0x7F:
                    continue
                name = np.int64(BYTE_GROUP[0x7F if b == 0x7F else 0x5C])
            else:
                follows = _follow(b, phase)
                if phase == 0:
                    name = np.int64(BYTE_GROUP[b])
                    if not (PLAIN >> np.uint64(name)) & np.uint64(1):
                        continue
            known = n > 0 and classes[phase, n - 1] == class_of[b]
            if not (known and after[phase, n - 1] == follows and group[phase, n - 1] == name):
                classes[phase, n], after[phase, n], group[phase, n] = class_of[b], follows, name
                n += 1
        count[phase] = n


@kernel
def _content_ahead(
    transition: Any, label: Any, needed: Any, left: Any, classes: Any, after: Any, group: Any, count: Any, free: Any,
    start: Any, groups: Any, queue: Any,
) -> Any:  # fmt: skip
    """Return how many bytes, _MOST_BYTES at most, a state of a content reads of any characters of some groups.

    And the groups of all other characters that are read up to there; and which groups not to ask for to see more. And
    how many states in the queue it comes to, 8 for each of the content, 0 if there may be more; if there are none, it
    reads ALL_BYTES. Where the first is below 0, it reads as many characters of these groups, whatever they are, and no
    more: they are counted, or the content is as long everywhere.
    """
    one, width = np.uint64(1), transition.size // label.size
    # the bytes read before each state; the group of the last character, or the one begun
    level, last = np.empty(_MOST_AHEAD, np.int64), np.empty(_MOST_AHEAD, np.int64)
    slots = np.full(2 * _MOST_AHEAD, -1, np.int64)
    queue[0], level[0], last[0] = start << 3, 0, -1
    size, at, most, sure = 1, 0, np.int64(_MOST_BYTES), np.int64(_MOST_BYTES)
    wanted, dropped, asked = np.uint64(0), np.uint64(0), _size_of(groups)
    ends, even = np.int64(0), True  # the bytes after which no state reads any more, where all those before read all
    # behind characters that will not be asked for again, nothing says which others not to ask for
    while at < size and level[at] < most and level[at] <= sure:
        q, phase, read, came = queue[at] >> 3, queue[at] & 7, level[at], last[at]
        at += 1
        lacking, reads = np.uint64(0), False
        if phase == 0:
            if label[q] >= 0:
                wanted |= one << np.uint64(BYTE_GROUP[0x22])
            for k in range(count[8]):
                if _lives(needed, left, transition[q * width + classes[8, k]]):
                    wanted |= one << np.uint64(group[8, k])
        for k in range(count[phase]):
            to, name = np.int64(transition[q * width + classes[phase, k]]), came if phase else group[phase, k]
            bit = one << np.uint64(name)
            if not groups & bit:
                if _lives(needed, left, to):
                    wanted |= bit
                continue
            if not _lives(needed, left, to):
                lacking |= bit
                continue
            reads = True
            if to == free:  # which reads all
                wanted |= (PLAIN & ~groups) | _OTHERS
                even = False
                continue
            if needed.size:  # each byte may begin a character
                most = min(most, left - needed[to] + 1)
            state = to << 3 | after[phase, k]
            even = even and after[phase, k] == 0  # a byte is a character
            slot = (state * 0x9E3779B1) & (slots.size - 1)
            while slots[slot] >= 0 and queue[slots[slot]] != state:
                slot = (slot + 1) & (slots.size - 1)
            if slots[slot] >= 0:
                even = even and level[slots[slot]] == read + 1
                continue
            slots[slot] = size
            if size == _MOST_AHEAD:
                most, even = min(most, read), False  # what comes after it is not looked at
                break
            queue[size], level[size], last[size] = state, read + 1, name
            size += 1
        if reads:
            even = even and not lacking
        else:
            even, ends = even and (not ends or ends == read), read
        if lacking:
            if came < 0:  # the start does not read them
                return np.int64(0), wanted, lacking, 0
            sure = min(sure, read)
            dropped |= one << np.uint64(came) if 2 * _size_of(lacking) > asked else lacking
    if at == size and even and ends:
        return -ends, wanted, np.uint64(0), 0
    if at == size and needed.size and most == left + 1 and sure == _MOST_BYTES:
        return -most, wanted, dropped, 0
    if at == size and left == _UNBOUNDED and min(most, sure) == _MOST_BYTES:
        return np.int64(ALL_BYTES), wanted, dropped, size
    return min(most, sure), wanted, dropped, 0


@kernel
def _reads_little(
    here: Any, first: Any, class_of: Any, transition: Any, label: Any, needed: Any, q: Any, left: Any
) -> Any:
    """Return whether a state of a text, of which `_text_at` says this, reads few characters, or is in an escape."""
    width, read = transition.size // label.size, 0
    for b in range(0x20, 0x7F):
        read += _lives(needed, left, transition[q * width + class_of[b]])
    return read < _MANY or (here - first) % PHASES != 0


@kernel
def reads_little(header: Any, here: int) -> bool:
    """Return whether a state of a text reads few characters, or is in an escape: its mask is soon found."""
    first, class_of, transition, label, needed, _, q, left, _, _ = _text_at(_text_in(header, here), np.int64(here))
    return bool(_reads_little(np.int64(here), first, class_of, transition, label, needed, q, left))


@kernel
def text_freely(header: Any, here: Any) -> Any:
    """Return of a state of a text what `_row_freely` does of one with a row, and whether it reads any characters."""
    first, class_of, transition, label, needed, free, q, left, _, known = _text_at(_text_in(header, here), here)
    nothing = np.uint64(0), np.int64(0), np.uint64(0), False
    if (here - first) % PHASES:
        return nothing
    sets = array_at(header[AT_SETS], 2 * MOST_SETS, np.int64)
    before = np.int64(known[q]) if known.size else np.int64(-1)
    if before >= 0:
        at = 2 * (before & MOST_SETS - 1)
        all_read = np.uint64(sets[at]), np.int64(ALL_BYTES), np.uint64(sets[at + 1]), before & _TOTAL != 0
        # what all states behind another one read, this among them, may be little of what this one does
        more = 0
        for b in range(0x20, 0x7F):
            other = not all_read[0] & (np.uint64(1) << np.uint64(BYTE_GROUP[b]))
            more += other and _lives(needed, left, transition[q * (transition.size // label.size) + class_of[b]])
        if before & _OWN or more < _MANY:
            return all_read
    elif _reads_little(here, first, class_of, transition, label, needed, q, left):
        return nothing
    classes, after, group = np.empty((9, 256), np.int64), np.empty((9, 256), np.int64), np.empty((9, 256), np.int64)
    count = np.empty(9, np.int64)
    _by_class(class_of, classes, after, group, count)
    groups, queue = PLAIN, np.empty(_MOST_AHEAD, np.int64)
    best, most = (groups, np.int64(0), np.uint64(0), np.int64(0)), -1.0
    for _ in range(_MOST_TRIES):
        found, wanted, dropped, size = _content_ahead(
            transition, label, needed, left, classes, after, group, count, free, q, groups, queue
        )
        tokens = _tokens_of(header, groups, found)
        if tokens > most:
            best, most = (groups, found, wanted, size), tokens
        if not dropped:
            break
        groups &= ~dropped
    groups, found, wanted, size = best
    total = False
    if size and known.size:  # the same holds for all these states, and for other ends as well
        wanted |= _OTHERS
        at = np.int64(0)
        while at < header[AT_SETS + 1] and (np.uint64(sets[2 * at]) != groups or np.uint64(sets[2 * at + 1]) != wanted):
            at += 1
        if at < MOST_SETS:
            sets[2 * at], sets[2 * at + 1] = np.int64(groups), np.int64(wanted)
            header[AT_SETS + 1] = max(header[AT_SETS + 1], at + 1)
            total = groups == PLAIN and _stays(transition, label.size, classes[8, : count[8]], free, queue[:size])
            last, less = np.int64(-1), False  # the set that was looked at last, and whether fewer tokens are read so
            for x in range(size):
                to = queue[x] >> 3
                if queue[x] & 7 == 0 and known[to] >= 0 and known[to] & MOST_SETS - 1 != last:
                    last = np.int64(known[to] & MOST_SETS - 1)
                    less = _tokens_of(header, np.uint64(sets[2 * last]), ALL_BYTES) < most
                if queue[x] & 7 == 0 and (known[to] < 0 or less):
                    known[to] = at | (_OWN if to == q else 0) | (_TOTAL if total else 0)
    if before >= 0 and most <= _tokens_of(header, all_read[0], ALL_BYTES):
        known[q] = before | _OWN
        return all_read
    return groups, found, wanted, total


@kernel
def _tokens_of(header: Any, groups: Any, found: Any) -> Any:
    """Return about how many tokens have so many bytes, or -found characters, all but the first of some groups.

    A first one that is not costs a walk little: behind it a state is known. Groups are taken to be independent.
    """
    share = array_at(header[AT_SHARES], header[AT_SHARES + 1], np.float64)
    tokens = share[64 + min(abs(found), share.size - 65)] if found else 0.0
    others = PLAIN & ~groups
    for g in range(64):
        if (others >> np.uint64(g)) & np.uint64(1):
            tokens *= share[g]
    return tokens


@kernel
def _stays(transition: Any, states: Any, classes: Any, free: Any, queue: Any) -> Any:
    """Return whether some states of a content read all of some classes, too, and what comes then is one of them.

    queue: 8 for each state and the place in a character, 0 before one. What is free may come as well.
    """
    width, among = transition.size // states, np.zeros(states, np.bool_)
    for x in queue:
        if x & 7 == 0:
            among[x >> 3] = True
    for q in np.flatnonzero(among):
        for c in classes:
            to = transition[q * width + c]
            if to < 0 or not (to == free or among[to]):
                return False
    return True


@kernel
def _size_of(groups: Any) -> Any:
    """Return how many groups there are."""
    size = 0
    while groups:
        groups &= groups - np.uint64(1)
        size += 1
    return size


@kernel
def _goes_on(byte: Any, read: Any, groups: Any) -> Any:
    """Return whether a byte, after some read, begins a character of some groups or is within one."""
    if BYTE_GROUP[byte] == UNCLEAN:
        return read > 0
    return (groups >> np.uint64(BYTE_GROUP[byte])) & np.uint64(1) != 0


@kernel
def write_free(characters: Any, groups: Any, out: Any) -> None:
    """Set the bits of the tokens whose characters are all of some groups, not UNCLEAN."""
    read = np.empty(32 * out.size, np.uint8)
    read[characters.size :] = 0
    others = ~groups
    for t in range(characters.size):  # without branches: this becomes vector code
        read[t] = characters[t] & others == 0
    for w in range(out.size):
        word = np.uint32(0)
        for t in range(32):
            word |= np.uint32(read[32 * w + t]) << np.uint32(t)
        out[w] = word


@kernel
def write_short(mask: Any, token: Any, short: int, out: Any) -> None:
    """Set the bits of a mask that are of the first `short` of all tokens."""
    one = np.uint32(1)
    if short + short > token.size:
        _copy(mask, out)
        for t in token[short:]:
            out[t >> 5] &= ~(one << np.uint32(t & 31))
    else:
        _copy(mask[:0], out)
        for t in token[:short]:
            out[t >> 5] |= mask[t >> 5] & one << np.uint32(t & 31)


@kernel
def _fits(header: Any, pushed: Any, popped: Any, state: Any, real: Any, frames: Any) -> Any:
    """Return whether what is open after a token can be left again."""
    told = KEYS <= state < STRINGS or state >= TEXTS  # what may still come says how many are needed behind it
    within = told and (state >= TEXTS or _site_of(header, state) < 0)  # and so what the site on top needs
    top = np.int64(-1)
    site_leaf = array_at(header[AT_SITE_LEAF], header[AT_SITE_LEAF + 1], np.uint8)
    need_state = array_at(header[AT_NEED_STATE], header[AT_NEED_STATE + 1], np.int32)
    need_site = array_at(header[AT_NEED_SITE], header[AT_NEED_SITE + 1], np.int32)
    left = np.int64(frames)
    for k in range(popped):
        left -= not site_leaf[real[real.size - 1 - k]]
    most = left
    if pushed.size:
        top = np.int64(pushed[pushed.size - 1])
    elif popped < real.size:
        top = np.int64(real[real.size - 1 - popped])
        if not within and top < need_site.size:  # which may be more than it was, outside its trie
            most = max(most, left - (not site_leaf[top]) + need_site[top])
    for k in range(pushed.size):
        if pushed[k] < need_site.size and not (within and k == pushed.size - 1):
            most = max(most, left + need_site[pushed[k]])
        left += not site_leaf[pushed[k]]
    if told:
        left += needed_behind(header, state, top)
    elif state < need_state.size:
        left += need_state[state]
    return max(most, left) <= header[AT_DEPTH]


@kernel
def needed_behind(header: Any, here: Any, top: Any) -> Any:
    """Return how many frames it takes behind what a state of a trie or of a text may become; top: the site on top."""
    if not header[AT_NEED_STATE + 1]:
        return np.int64(0)
    least, hoped = np.int64(MOST_DEPTH), np.int64(MOST_DEPTH)
    if here >= TEXTS:
        text = _text_in(header, here)
        first, _, _, _, states, _, _, _, _, _ = array_at(text, OF_TEXT, np.int64)
        which = 2 * ((text - header[AT_TEXTS]) // (8 * OF_TEXT))
        ahead_at, words = array_at(header[AT_AHEAD] + 8 * which, 2, np.int64)
        if words == 0:
            least, hoped = _better(header, least, hoped, _state_behind(header, top, 0))
        ahead = array_at(ahead_at, PHASES * states * words, np.uint64)
        begin = words * ((here - first) % (PHASES * states))
        for w in range(words):
            labels = ahead[begin + w]
            label = np.int64(64) * w
            while labels:
                if labels & np.uint64(1):
                    least, hoped = _better(header, least, hoped, _state_behind(header, top, label))
                labels >>= np.uint64(1)
                label += 1
        return least if least < MOST_DEPTH else hoped
    keys = array_at(header[AT_KEYS], header[AT_KEYS + 1], np.int32)
    first, _, trie, site = array_at(_use_in(header, here), OF_USE, np.int64)
    child, site = np.int64(here - first + trie), np.int64(top if site < 0 else site)
    stop = np.int64(keys[OF_KEY * child + KEY_STOP])
    if keys[OF_KEY * child + KEY_LIKE] >= 0:  # any other
        least, hoped = _better(header, least, hoped, _state_behind(header, site, 0))
    while child != stop:
        child = np.int64(keys[OF_KEY * child + KEY_END])
        label = np.int64(keys[OF_KEY * child + KEY_LABEL])
        least, hoped = _better(header, least, hoped, _state_behind(header, site, label))
        child += 1
    return least if least < MOST_DEPTH else hoped


@kernel
def _better(header: Any, least: Any, hoped: Any, state: Any) -> Any:
    """Return the fewest frames that are surely and perhaps needed, where a further state may come, or DEAD."""
    if state < 0:
        return least, hoped
    need = np.int64(array_at(header[AT_NEED_STATE], header[AT_NEED_STATE + 1], np.int32)[state])
    if array_at(header[AT_SURELY], header[AT_SURELY + 1], np.uint8)[state]:
        return min(least, need), hoped
    return least, min(hoped, need)


@kernel
def _site_of(header: Any, here: Any) -> Any:
    """Return the site that says where words lead from a state of a trie, DEAD where one on the stack does."""
    return array_at(_use_in(header, here), OF_USE, np.int64)[USE_SITE]


@kernel
def _is_plain(code: Any) -> Any:
    """Return whether a code is that of a state, or of none."""
    return code > 0 or code == DEAD


@kernel
def _put(out: Any, mask: Any, noted: Any, token: Any, allowed: Any) -> None:
    """Set or clear the bit of a token, and note the word if it was until now that of a mask; see `bundle.Sheet`."""
    w, bit = np.uint64(token) >> np.uint64(5), np.uint32(1) << np.uint32(token & 31)
    before = out[w]
    after = before | bit if allowed else before & ~bit
    if after != before:
        out[w] = after
        if noted[0] != ALL_WORDS and before == (mask[w] if mask.size else np.uint32(0)):
            if noted[0] < MOST_NOTED:
                noted[0] += np.uint32(1)
                noted[np.uint64(noted[0])] = np.uint32(w)
            else:
                noted[0] = ALL_WORDS


def _walk_tokens(
    header: Any, ends: Any, start: Any, popped: Any, base: Any, base_site: Any, frames: Any, real: Any, out: Any,
    mask: Any, noted: Any, wanted: Any, freely: Any, ended: Any, low: Any, high: Any, within: Any = None,
) -> Any:  # fmt: skip
    """Set and clear the bits of the tokens of a trie in `out`, as they are read from a state.

    ends: 1 to walk what may be left of tokens, 0 to walk the tokens. popped: sites of `real` that are gone already.
    base: the state whose tokens are in `out`, -1 for none: what reads like it stays as it is. mask, noted: see `_put`;
    the first is empty where all its words are 0, the second where nothing is noted. wanted, freely: tokens of so many
    bytes, or of any number if that is below 0, that have no characters of the groups wanted are in `out`, if they are
    read. ended: where the tokens that leave the frame are listed, and not followed; see `write_text`. low, high: the
    nodes that come next, where something was read before; all tokens if these are 0. within: not None where another
    walk waits for this one, with the scratch. Returns (a state that must be written first, or -1; sites looked at;
    nodes).
    """
    rows = array_at(header[AT_ROWS], header[AT_ROWS + 1], np.int32)
    calls = array_at(header[AT_CALLS], header[AT_CALLS + 1], np.int32)
    site_start = array_at(header[AT_SITE_START], header[AT_SITE_START + 1], np.int32)
    site_states = array_at(header[AT_SITE_STATES], header[AT_SITE_STATES + 1], np.int32)
    shift = AT_END_BYTE - AT_BYTE if ends else 0
    byte = array_at(header[AT_BYTE + shift], header[AT_BYTE + shift + 1], np.uint8)
    node = array_at(header[AT_NODE + shift], header[AT_NODE + shift + 1], np.int32)
    sets = array_at(header[AT_NODE + shift], header[AT_NODE + shift + 1] >> 1, np.uint64)
    token = array_at(header[AT_TOKEN + shift], header[AT_TOKEN + shift + 1], np.int32)
    characters = array_at(header[AT_CHARACTERS], header[AT_CHARACTERS + 1], np.uint64)  # of tokens
    levels, at_once = header[AT_LEVELS], freely < 0 or freely >= ALL_BYTES
    where = header[AT_SCRATCH]  # this much of each for each level of the trie
    if within is not None:
        where += 8 * room_of(levels)
    at, stop = array_at(where, levels, np.int64), array_at(where + 8 * levels, levels, np.int64)
    state, height = array_at(where + 16 * levels, levels, np.int64), array_at(where + 24 * levels, levels, np.int64)
    pops, twin = array_at(where + 32 * levels, levels, np.int64), array_at(where + 40 * levels, levels, np.int64)
    # 1: read freely so far, 2: in any string from here on
    pure = array_at(where + 48 * levels, levels, np.int64)
    row_at, texts = array_at(where + 56 * levels, levels, np.int64), array_at(where + 64 * levels, levels, np.int64)
    alike = array_at(where + 72 * levels, levels, np.int64)  # 1 where the stack is what it is in the base
    stack = array_at(where + 80 * levels, levels * levels, np.int32)
    after_base = np.int64(site_states[site_start[base_site]]) if base_site >= 0 else np.int64(-1)
    one, notes = np.uint32(1), noted.size > 0
    alone = not ends and not freely and not ended.size and frames < 0  # see `_walk_apart`
    looked, work = np.int64(popped), np.int64(0)
    any_groups = np.uint64(header[AT_BODY_GROUPS]) if frames < 0 and not ends else np.uint64(0)
    d = np.int64(0)
    at[0], stop[0] = low, high if high else node[NODE_CHILD]
    state[0], height[0], pops[0], twin[0], pure[0] = start, 0, popped, base, 1
    if low and not freely and any_groups and _is_any(header, start):
        pure[0] = 2
    alike[0] = base_site < 0
    row_at[0] = texts[0] = 0
    if start >= TEXTS:
        texts[0] = _text_in(header, start)
        row_at[0] = _row_of(texts[0], start)
    elif KEYS <= start < STRINGS:
        texts[0] = _use_in(header, start)
    while True:
        i, last, here, other = at[d], stop[d], state[d], twin[d]
        if freely and pure[d] == 1:  # all of a token is read, and in `out`, or none of it is
            while (
                i < last
                and characters[np.uint64(i)] & wanted == 0
                and (at_once or node[OF_NODE * i + NODE_REACH] <= freely)
            ):
                i += 1
        elif here < KEYS and other == DEAD:  # most bytes are not read
            while i < last and rows[here << 8 | byte[i]] == DEAD:
                i += 1
        elif here < KEYS and other >= 0 and alike[d]:  # most are read as the base reads them
            while (
                i < last
                and _is_plain(rows[here << 8 | byte[i]])
                and (rows[here << 8 | byte[i]] == rows[other << 8 | byte[i]])
            ):
                i += 1
        elif here < STRINGS and other >= 0 and alike[d]:  # the same, of keys
            i = _other_word(header, texts[d], here, other, byte, sets, i, last)
        elif here < STRINGS and here >= KEYS and other == DEAD:
            i = _next_word(header, texts[d], here, byte, i, last)
        elif row_at[d] and other == DEAD:  # what a base allows has to be taken out
            i = _next_plain(texts[d], row_at[d], here, byte, i, last)
        if i == last:
            if d == 0:
                break
            d -= 1
            continue
        at[d] = i + 1
        c, n = np.int64(byte[i]), OF_NODE * i
        if pure[d] == 2 and sets[_SETS * i + NODE_CHARACTERS] & ~any_groups == 0:
            for x in range(node[n + NODE_TOKENS], node[n + NODE_TOKENS + 2]):
                if notes:
                    _put(out, mask, noted, token[x], True)
                else:
                    out[token[x] >> 5] |= one << np.uint32(token[x] & 31)
            continue
        if other >= 0:
            other = np.int64(rows[other << 8 | c])
            if other <= RETURN:
                other = np.int64(_LEFT)
        if here < KEYS:
            code = np.int64(rows[here << 8 | c])
        elif here < STRINGS:
            code = _word_code(header, texts[d], here, c)
        elif row_at[d]:
            code = _plain_code(header, texts[d], row_at[d], here, c)
        elif texts[d]:
            code = _text_code(header, texts[d], here, c)
        else:
            code = _string_code(header, here, c)
        if code == DEAD and other == DEAD:
            continue
        first, behind = node[n + NODE_TOKENS], node[n + NODE_TOKENS + 2]  # the tokens that begin with what led here
        work += 1
        pure[d + 1] = 0
        if freely and pure[d] == 1:
            pure[d + 1] = _goes_on(c, d, ~wanted)
        h, p = height[d], pops[d]
        leaves = other == _LEFT and twin[d] >= 0  # by this very byte: later the base says no more
        if code == RETURN and h == 0 and p == popped and base_site < 0 and leaves:
            continue  # both end here, in one frame: an exit of the base
        if ended.size and h == 0 and code <= RETURN and code > KEEP:
            for x in range(first, behind):
                count = np.int64(ended[0]) + 1
                ended[0], ended[2 * count - 1], ended[2 * count] = count, token[x], RETURN - code
            continue
        copied = False
        while code <= UNWRITTEN and code > CALL and code != DEAD:
            if code == UNWRITTEN:
                return here, looked, work
            if h:
                if not copied:
                    for k in range(h):
                        stack[(d + 1) * levels + k] = stack[d * levels + k]
                    copied = True
                h -= 1
                site = np.int64(stack[(d + 1) * levels + h])
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
                code = _any_code(header, rows, here, c)
        if code == DEAD:
            if other != DEAD:  # the base might allow what is below, by a token or by an exit
                for x in range(first, behind):
                    if notes:
                        _put(out, mask, noted, token[x], False)
                    else:
                        out[token[x] >> 5] &= ~(one << np.uint32(token[x] & 31))
            continue
        if not copied:
            for k in range(h):
                stack[(d + 1) * levels + k] = stack[d * levels + k]
        if code <= CALL:
            stack[(d + 1) * levels + h] = calls[2 * (CALL - code)]
            h += 1
            code = np.int64(calls[2 * (CALL - code) + 1])
        if p == popped and base >= 0 and other != DEAD:
            if other == _LEFT:
                same = leaves and h == 0 and code == after_base
            else:
                same = other == code
                if STRINGS <= code < TEXTS:
                    same = _is_free(header, code, other, np.int64(node[n + NODE_REACH]))
                same = same and (h == 0 if base_site < 0 else h == 1 and stack[(d + 1) * levels] == base_site)
            if same:
                continue  # from here on exactly what the base, or its exits, say
        is_any = any_groups and sets[_SETS * i + NODE_CHARACTERS] & ~any_groups == 0 and _is_any(header, code)
        below = behind if is_any else node[n + NODE_TOKENS + 1]
        if first < below:
            allowed = True
            if frames >= 0:  # what is on top says how many are needed
                allowed = _fits(header, stack[(d + 1) * levels : (d + 1) * levels + h], p, code, real, frames)
                looked = max(looked, min(p + 1, real.size))
            for x in range(first, below):
                bit = one << np.uint32(token[x] & 31)
                if notes:
                    _put(out, mask, noted, token[x], allowed)
                elif allowed:
                    out[token[x] >> 5] |= bit
                else:
                    out[token[x] >> 5] &= ~bit
        if within is None:  # noqa: SIM102 - what comes now is not compiled where it is something
            if alone and other == DEAD and below < behind and _is_apart(header, code):
                under, end = np.int64(node[n + NODE_CHILD]), np.int64(node[n + NODE_STOP])
                left, nodes = _walk_apart(header, code, under, end, out, mask, noted)
                work += nodes
                around = np.empty(real.size - p + h if left > 0 else 0, np.int32)
                if left > 0:
                    around[: real.size - p] = real[: real.size - p]
                    around[real.size - p :] = stack[(d + 1) * levels : (d + 1) * levels + h]
                pending = array_at(header[AT_SCRATCH] + 16 * room_of(levels), 3 * MOST_PENDING, np.int64)
                for x in range(left):
                    code, under, end = pending[3 * x], pending[3 * x + 1], pending[3 * x + 2]
                    unwritten, seen, nodes = _walk_rest(
                        header, np.int64(0), code, np.int64(0), np.int64(-1), np.int64(-1), frames, around, out, mask,
                        noted, np.uint64(0), freely, ended, under, end, True,
                    )  # fmt: skip
                    looked, work = max(looked, p + max(seen - h, 0)), work + nodes
                    if unwritten != WRITTEN:
                        return unwritten, looked, work
                if left >= 0:
                    continue
        if below < behind:
            d += 1
            if any_groups and pure[d] != 1 and _is_any(header, code):
                pure[d] = 2
            row_at[d] = texts[d] = 0
            if code >= TEXTS:
                texts[d] = texts[d - 1] if _is_in(texts[d - 1], code) else _text_in(header, code)
                row_at[d] = _row_of(texts[d], code)
            elif KEYS <= code < STRINGS:
                same = KEYS <= state[d - 1] < STRINGS and _is_of(texts[d - 1], code)
                texts[d] = texts[d - 1] if same else _use_in(header, code)
            at[d], stop[d] = node[n + NODE_CHILD], node[n + NODE_STOP]
            state[d], height[d], pops[d], twin[d] = code, h, p, other
            alike[d] = p == popped and (h == 0 if base_site < 0 else h == 1 and stack[d * levels] == base_site)
    return np.int64(WRITTEN), looked, work


@kernel
def room_of(levels: Any) -> Any:
    """Return how many numbers of 64 bits a walk keeps for so many levels of the trie."""
    return levels * OF_LEVEL + (levels * levels >> 1) + 1


@kernel
def _trie_of_tokens(header: Any) -> Any:
    """Return bytes, nodes and tokens of the trie of all tokens; see `vocabulary.Branches`."""
    byte = array_at(header[AT_BYTE], header[AT_BYTE + 1], np.uint8)
    node = array_at(header[AT_NODE], header[AT_NODE + 1], np.int32)
    return byte, node, array_at(header[AT_TOKEN], header[AT_TOKEN + 1], np.int32)


@kernel
def _is_apart(header: Any, state: Any) -> Any:
    """Return whether what a state reads has a loop of its own: a string with conditions, or nothing but words."""
    if STRINGS <= state < TEXTS:
        return not _is_any(header, state)
    if state >= TEXTS:
        first = array_at(_text_in(header, state), OF_TEXT, np.int64)[0]
        return (state - first) % PHASES == 0
    return KEYS <= state < STRINGS and _site_of(header, state) >= 0


@kernel
def _walk_apart(header: Any, start: Any, low: Any, high: Any, out: Any, mask: Any, noted: Any) -> Any:
    """Set the bits of the tokens that a state as of `_is_apart` reads within its string, from nodes low .. high on.

    What leaves the string, or a text for what is no state of it, is left: a state and the nodes that come next. Returns
    how many of these there are in the scratch, -1 if they are too many, and how many nodes were read.
    """
    levels = header[AT_LEVELS]
    where = header[AT_SCRATCH] + 8 * room_of(levels)  # of a walk that comes later
    at, stop = array_at(where, levels, np.int64), array_at(where + 8 * levels, levels, np.int64)
    state, rest = array_at(where + 16 * levels, levels, np.int64), array_at(where + 24 * levels, levels, np.int64)
    pending = array_at(header[AT_SCRATCH] + 16 * room_of(levels), 3 * MOST_PENDING, np.int64)
    if STRINGS <= start < TEXTS:
        return _string_apart(header, start, low, high, out, mask, noted, at, stop, state, pending)
    if start >= TEXTS:
        return _text_apart(header, start, low, high, out, mask, noted, at, stop, state, rest, pending)
    return _words_apart(header, start, low, high, out, mask, noted, at, stop, state, rest, pending)


@kernel
def _words_apart(
    header: Any, start: Any, low: Any, high: Any, out: Any, mask: Any, noted: Any, at: Any, stop: Any, state: Any,
    next_one: Any, pending: Any,
) -> Any:  # fmt: skip
    """Do what `_walk_apart` says of a trie of words."""
    byte, node, token = _trie_of_tokens(header)
    keys = array_at(header[AT_KEYS], header[AT_KEYS + 1], np.int32)
    first, _, trie, site = array_at(_use_in(header, start), OF_USE, np.int64)
    d, left, work = np.int64(0), np.int64(0), np.int64(0)
    at[0], stop[0], state[0] = low, high, start - first + trie
    next_one[0] = keys[OF_KEY * state[0] + KEY_CHILD]
    while d >= 0:
        i, last, here, child = at[d], stop[d], state[d], next_one[d]
        ends, found = keys[OF_KEY * here + KEY_LABEL] >= 0, False
        while i < last:
            b = byte[i]
            if b == 0x22 and ends:
                if left == MOST_PENDING:
                    return np.int64(-1), work
                pending[3 * left], pending[3 * left + 1], pending[3 * left + 2] = here - trie + first, i, i + 1
                left += 1
            while child >= 0 and keys[OF_KEY * child + KEY_BYTE] < b:
                child = np.int64(keys[OF_KEY * child + KEY_NEXT])
            if child < 0 and (not ends or b >= 0x22):
                break
            if child >= 0 and keys[OF_KEY * child + KEY_BYTE] == b:
                found = True
                break
            i += 1
        if not found:
            d -= 1
            continue
        at[d], next_one[d] = i + 1, child
        several = ends or keys[OF_KEY * np.int64(keys[OF_KEY * here + KEY_CHILD]) + KEY_NEXT] >= 0
        if several and not _leads(header, keys, child, site):
            continue
        work += 1
        n = OF_NODE * i
        for x in range(node[n + NODE_TOKENS], node[n + NODE_TOKENS + 1]):
            _put(out, mask, noted, token[x], True)
        if node[n + NODE_CHILD] < node[n + NODE_STOP]:
            d += 1
            at[d], stop[d], state[d] = node[n + NODE_CHILD], node[n + NODE_STOP], child
            next_one[d] = keys[OF_KEY * child + KEY_CHILD]
    return left, work


@kernel
def _string_apart(
    header: Any, start: Any, low: Any, high: Any, out: Any, mask: Any, noted: Any, at: Any, stop: Any, state: Any,
    pending: Any,
) -> Any:  # fmt: skip
    """Do what `_walk_apart` says of a string whose characters are counted."""
    byte, node, token = _trie_of_tokens(header)
    d, left, work = np.int64(0), np.int64(0), np.int64(0)
    at[0], stop[0], state[0] = low, high, start
    while d >= 0:
        i = at[d]
        if i == stop[d]:
            d -= 1
            continue
        at[d] = i + 1
        code, n = _string_code(header, state[d], np.int64(byte[i])), OF_NODE * i
        if code == DEAD:
            continue
        work += 1
        under, end = np.int64(node[n + NODE_CHILD]), np.int64(node[n + NODE_STOP])
        if code < 0:
            under, end, code = i, i + 1, state[d]  # the end of the string
        else:
            for x in range(node[n + NODE_TOKENS], node[n + NODE_TOKENS + 1]):
                _put(out, mask, noted, token[x], True)
            if under == end:
                continue
            if code >= STRINGS:
                d += 1
                at[d], stop[d], state[d] = under, end, code
                continue
        if left == MOST_PENDING:
            return np.int64(-1), work
        pending[3 * left], pending[3 * left + 1], pending[3 * left + 2] = code, under, end
        left += 1
    return left, work


@kernel
def _text_apart(
    header: Any, start: Any, low: Any, high: Any, out: Any, mask: Any, noted: Any, at: Any, stop: Any, state: Any,
    rest: Any, pending: Any,
) -> Any:  # fmt: skip
    """Do what `_walk_apart` says of a text."""
    byte, node, token = _trie_of_tokens(header)
    first, class_of, transition, label, needed, free, q, begin, most, _ = _text_at(_text_in(header, start), start)
    width, d, left, work = transition.size // label.size, np.int64(0), np.int64(0), np.int64(0)
    at[0], stop[0], state[0], rest[0] = low, high, q, begin + 1  # characters that may still begin
    while d >= 0:
        i, last, q, may = at[d], stop[d], state[d], rest[d]
        to = after = np.int64(-1)
        while i < last:
            b = np.int64(byte[i])
            if b == 0x5C or (b == 0x22 and label[q] >= 0):
                if left == MOST_PENDING:
                    return np.int64(-1), work
                pending[3 * left] = first + PHASES * (q + (most - may if most >= 0 else 0) * label.size)
                pending[3 * left + 1], pending[3 * left + 2] = i, i + 1
                left += 1
            elif b >= 0x20 and b != 0x22:
                to, after = np.int64(transition[q * width + class_of[b]]), may - (b & 0xC0 != 0x80)
                if to == free or _lives(needed, after, to):
                    break
            i += 1
        if i == last:
            d -= 1
            continue
        at[d] = i + 1
        if to < 0:  # there is no free state
            continue
        work += 1
        n = OF_NODE * i
        for x in range(node[n + NODE_TOKENS], node[n + NODE_TOKENS + 1]):
            _put(out, mask, noted, token[x], True)
        if node[n + NODE_CHILD] == node[n + NODE_STOP]:
            continue
        if to == free:
            if left == MOST_PENDING:
                return np.int64(-1), work
            pending[3 * left], pending[3 * left + 1] = header[AT_BODY], node[n + NODE_CHILD]
            pending[3 * left + 2] = node[n + NODE_STOP]
            left += 1
            continue
        d += 1
        at[d], stop[d] = node[n + NODE_CHILD], node[n + NODE_STOP]
        state[d], rest[d] = to, after
    return left, work


# Two functions, and not one that calls itself, which numba's cache does not bring back. Each other type of an argument
# takes seconds to compile: so all calls have the same, those with a constant or an empty array too.
_walk, _walk_rest = kernel(_walk_tokens), kernel(_walk_tokens)


@kernel
def _list(ended: Any, token: Any, first: Any, stop: Any, label: Any) -> None:
    """List tokens first .. stop as such that end with a label."""
    count = np.int64(ended[0])
    for x in range(first, stop):
        count += 1
        ended[2 * count - 1], ended[2 * count] = token[x], label
    ended[0] = count


@kernel
def _walk_text(header: Any, start: Any, out: Any, wanted: Any, freely: Any, ended: Any) -> Any:
    """Set the bits of the tokens that a state of a text reads within it, and list those that end it; see `_walk`.

    The state is not within an escape. What comes where anything may is left to `_walk`. Returns whether that was done,
    and not too long for what `_clear_text` can do.
    """
    byte, node, token = _trie_of_tokens(header)
    characters = array_at(header[AT_CHARACTERS], header[AT_CHARACTERS + 1], np.uint64)
    sets = array_at(header[AT_SETS], 2 * MOST_SETS, np.int64)
    text = _text_in(header, start)
    first, class_of, transition, label, needed, free, q, left, most, known = _text_at(text, start)
    width, levels, one = transition.size // label.size, header[AT_LEVELS], np.uint32(1)
    at_once = freely < 0 or freely >= ALL_BYTES
    real, nothing = np.empty(0, np.int32), out[:0]
    at, stop, state, rest, phase = (
        np.empty(levels, np.int64), np.empty(levels, np.int64), np.empty(levels, np.int64), np.empty(levels, np.int64),
        np.empty(levels, np.int64),
    )  # fmt: skip
    # whether all was read freely so far; and the groups that are from here on, if known, and down to which level
    pure, groups, reach = np.empty(levels, np.bool_), np.empty(levels, np.uint64), np.empty(levels, np.int64)
    d = np.int64(0)
    at[0], stop[0], state[0], phase[0] = 0, node[NODE_CHILD], q, 0
    rest[0] = left + 1  # characters that may still begin
    pure[0], groups[0], reach[0] = True, np.uint64(0), 0
    looks = work = np.int64(0)
    most_work = _LONG if freely != _IN_ORDER and transition.size <= _MOST_STEPS else 1 << 62
    while d >= 0:
        i, last = at[d], stop[d]
        while i < last:
            n, have = OF_NODE * i, characters[np.uint64(i)]
            if not (pure[d] and have & wanted == 0 and (at_once or node[n + NODE_REACH] <= freely)):
                if have & ~groups[d] or node[n + NODE_REACH] > reach[d]:
                    break
                for x in range(node[n + NODE_TOKENS], node[n + NODE_TOKENS + 2]):
                    out[token[x] >> 5] |= one << np.uint32(token[x] & 31)
            i += 1
        if i == last:
            d -= 1
            continue
        work += 1
        if work > most_work:
            ended[0] = 0
            return False
        at[d] = i + 1
        b, n, q = np.int64(byte[i]), OF_NODE * i, state[d]
        begun, behind = node[n + NODE_TOKENS], node[n + NODE_TOKENS + 2]  # the tokens that begin with what led here
        step = np.int64(0)
        if phase[d] or b == 0x5C:
            here = first + PHASES * (q + (most - rest[d] if most >= 0 else 0) * label.size) + phase[d]
            code = _text_code(header, text, here, b)
            if code == DEAD:
                continue
            to, after = free, rest[d]
            if code != header[AT_BODY]:
                to, step = (code - first) // PHASES, (code - first) % PHASES
                if most >= 0:
                    after = most - to // label.size
                    to %= label.size
        else:
            if b < 0x20:
                continue
            if b == 0x22:
                if label[q] >= 0:
                    _list(ended, token, begun, behind, label[q])
                continue
            to, after = np.int64(transition[q * width + class_of[b]]), rest[d] - (b & 0xC0 != 0x80)
            if to < 0 or (to != free and not _lives(needed, after, to)):
                continue
        for x in range(begun, node[n + NODE_TOKENS + 1]):
            out[token[x] >> 5] |= one << np.uint32(token[x] & 31)
        low, high = np.int64(node[n + NODE_CHILD]), np.int64(node[n + NODE_STOP])
        if low == high:
            continue
        pure[d + 1] = pure[d] and _goes_on(b, d, ~wanted)
        if to == free:
            _walk(
                header, np.int64(0), header[AT_BODY], np.int64(0), np.int64(-1), np.int64(-1), np.int64(-1), real, out,
                nothing, nothing, wanted, np.int64(freely if pure[d + 1] else 0), ended, low, high,
            )  # fmt: skip
            continue
        groups[d + 1], reach[d + 1] = np.uint64(0), 0
        if step:  # within an escape
            reach[d + 1] = 0
        elif behind - begun >= _PART or (
            behind - begun >= _SMALL_PART and looks < _MOST_LOOKS
            and known.size and known[to] >= 0 and not known[to] & _OWN
        ):  # fmt: skip
            looks += 1
            more = (most - after) * label.size if most >= 0 else 0
            some, length, _, _ = text_freely(header, first + PHASES * (to + more))
            groups[d + 1], reach[d + 1] = some, d + 1 + abs(length)  # characters have a byte at least
        elif known.size and known[to] >= 0:
            groups[d + 1], reach[d + 1] = np.uint64(sets[2 * (known[to] & MOST_SETS - 1)]), ALL_BYTES
        elif reach[d] < ALL_BYTES and _goes_on(b, 1, groups[d]):  # within a character, where one was begun
            groups[d + 1], reach[d + 1] = groups[d], reach[d]
        d += 1
        at[d], stop[d], state[d], rest[d], phase[d] = low, high, to, after, step
    return True


@kernel
def _clear_text(header: Any, start: Any, out: Any) -> None:
    """Clear the bits of the tokens of plain characters, all of which are set, that a state of a text does not read.

    The state is not within an escape. All tokens are read in their order, which takes a fifth of the time for each
    that `_walk_text` does.
    """
    # unsigned numbers, as numba looks at the sign of every other index
    one, nodes = np.uint64(1), np.uint64(header[AT_ORDER + 1])
    byte, depth = array_at(header[AT_ORDER], nodes, np.uint8), array_at(header[AT_DEPTHS], nodes, np.uint16)
    skip, content = array_at(header[AT_SKIP], nodes, np.uint32), array_at(header[AT_CONTENT], nodes, np.uint64)
    begun = array_at(header[AT_FIRST_TOKEN], nodes + one, np.uint32)
    token = array_at(header[AT_TOKEN], header[AT_TOKEN + 1], np.uint32)
    sets = array_at(header[AT_SETS], 2 * MOST_SETS, np.int64)
    _, class_of, transition, label, needed, free, q, left, _, known = _text_at(_text_in(header, start), start)
    states, classes = label.size, transition.size // label.size
    width, over, dead = np.uint64(classes + 3), np.uint64(1 << 62), np.uint64(1 << 63)
    # of each state: where it leads, by class and then by what is not plain, as a place in here, or what is to be done;
    # the characters that have to be looked at, with those that are not whole; and those that must follow
    step = np.empty(np.uint64(states) * width, np.uint64)
    whole, at_other, at_keep, at_needed = PLAIN | one << np.uint64(UNCLEAN), classes, classes + 1, classes + 2
    for x in range(states):
        row = step[np.uint64(x) * width : np.uint64(x + 1) * width]
        for c in range(classes):
            target = np.int64(transition[x * classes + c])
            if target < 0 or (target != free and needed.size and needed[target] < 0):
                row[c] = dead
            else:
                row[c] = over if target == free else np.uint64(target) * width
        row[at_other], row[at_keep], row[at_needed] = over, whole, 0
        if known.size and known[x] >= 0:
            row[at_keep] = whole & ~np.uint64(sets[2 * (known[x] & MOST_SETS - 1)])
        if needed.size and needed[x] >= 0:
            row[at_needed] = needed[x]
    kind = np.empty(256, np.uint64)  # the class of each byte that is plain, or is within a character
    for b in range(256):
        name = np.uint64(BYTE_GROUP[b])
        inside = 0x80 <= b < 0xC0
        kind[b] = class_of[b] if inside or (name != UNCLEAN and (PLAIN >> name) & one) else at_other
    state, rest = np.empty(header[AT_LEVELS] + 1, np.uint64), np.empty(header[AT_LEVELS] + 1, np.int64)
    state[0], rest[0] = np.uint64(q) * width, left + 1
    counts, i = needed.size > 0, np.uint64(0)
    while i < nodes:
        d, b = np.uint64(depth[i]), byte[i]
        to = step[state[d - one] + kind[b]]
        if to < over and counts:
            rest[d] = rest[d - one] - (b & 0xC0 != 0x80)
            if np.int64(step[to + np.uint64(at_needed)]) > rest[d]:
                to = dead
        if to < over:
            state[d] = to
            i = np.uint64(i + one if content[i] & step[to + np.uint64(at_keep)] else skip[i])
            continue
        if to == dead:
            for x in range(np.uint64(begun[i]), np.uint64(begun[skip[i]])):
                out[np.uint64(token[x] >> 5)] &= ~np.uint32(one << np.uint64(token[x] & 31))
        i = np.uint64(skip[i])


@kernel
def _copy(mask: Any, out: Any) -> None:
    """Write a mask into out, or 0 where it is empty."""
    if mask.size:
        for w in range(np.uint64(mask.size)):  # a slice is copied ten times as slowly, as it might overlap
            out[w] = mask[w]
    else:
        for w in range(np.uint64(out.size)):
            out[w] = np.uint32(0)


@kernel
def _renew(mask: Any, out: Any, noted: Any, whole: Any, differ: Any) -> None:
    """Write a mask into out, or 0 where it is empty, then words at their places, and note these.

    out has the mask already, but for the words noted; whole: it does not.
    """
    if whole or noted[0] == ALL_WORDS:
        _copy(mask, out)
    else:
        for k in range(np.uint64(1), np.uint64(noted[0]) + np.uint64(1)):
            w = np.uint64(noted[k])
            out[w] = mask[w] if mask.size else np.uint32(0)
    for k in range(np.uint64(differ.size >> 1)):
        w = np.uint64(differ[k + k])
        out[w], noted[k + np.uint64(1)] = differ[k + k + np.uint64(1)], differ[k + k]
    noted[0] = differ.size >> 1


@kernel
def restore(base: int, words: int, whole: bool, sheet: int, differ: Any) -> None:
    """Write a mask by the words in which it differs from a base, of which the numbers are at an address.

    sheet: the address of a `bundle.Sheet` of so many words. whole: it does not have the mask of the base. differ: two
    numbers for whoever kept it, then places and words, uint32, as bytes.
    """
    mask_at, size, _, _, _, _, _, _, _, _, _ = array_at(base, OF_BASE, np.int64)
    out, noted = array_at(sheet, words, np.uint32), array_at(sheet + 4 * words, 1 + MOST_NOTED, np.uint32)
    _renew(array_at(mask_at, size, np.uint32), out, noted, whole, np.frombuffer(differ, np.uint32)[2:])


@kernel
def write_mask(
    header: Any, node: int, walk: bool, twin: int, site: int, base: int, least: int, room: int, frames: int, sites: Any,
    sheet: int, whole: bool, ends: bool, wanted: int, freely: int,
) -> Any:  # fmt: skip
    """Write a mask; see `Lazy.mask`. Returns (a state that must be written first, or -1; sites looked at; work; words).

    base: the address of the numbers of a base. sheet, whole: see `restore`. ends: whether EOS is allowed. words: in
    which the mask differs from its base, which are before the scratch then; -1 if they are too many.

    wanted, freely: tokens of so many bytes that have no characters of the groups wanted are read as the base says, and
    tokens of any length where that is below 0, as only how many characters they have decides. If nobody knows how
    many, and where they may be some, they are found, and the mask is asked for.
    """
    if freely == UNKNOWN:
        groups, surely, others, unwritten = _row_freely(header, node)
        if unwritten != WRITTEN:
            return unwritten, np.int64(0), np.int64(0), np.int64(-1)
        if surely:
            header[AT_GROUPS], header[AT_WANTED] = np.int64(groups), np.int64(others)
            header[AT_FREE_BYTES] = surely
            return np.int64(ASKS), np.int64(0), np.int64(0), np.int64(-1)
        freely = 0
    mask_at, size, differ_at, differing, token_at, symbol_at, characters_at, label_at, exits, counted, labels = (
        array_at(base, OF_BASE, np.int64)
    )
    words, one = header[AT_WORDS], np.uint32(1)
    packed: Any = np.frombuffer(sites, np.int32)
    real = array_at(packed.ctypes.data, packed.size, np.int32)  # can be written to, as wherever `_walk` is called
    mask, out = array_at(mask_at, size, np.uint32), array_at(sheet, words, np.uint32)
    noted, ended = array_at(sheet + 4 * words, 1 + MOST_NOTED, np.uint32), array_at(sheet, 0, np.int32)
    _renew(mask, out, noted, whole, array_at(differ_at, differing, np.uint32))
    work = np.int64(0)
    looked = np.int64(frames >= 0 and real.size > 0)  # whether there is room depends on the site on top
    if exits:
        looked = max(looked, np.int64(site < 0))
    if exits and (site >= 0 or real.size):
        site_start = array_at(header[AT_SITE_START], header[AT_SITE_START + 1], np.int32)
        site_states = array_at(header[AT_SITE_STATES], header[AT_SITE_STATES + 1], np.int32)
        token, symbol = array_at(token_at, exits, np.int32), array_at(symbol_at, exits, np.int32)
        characters, label = array_at(characters_at, counted, np.int32), array_at(label_at, labels, np.int32)
        left, nothing = site if site >= 0 else np.int64(real[real.size - 1]), header[AT_NOTHING]
        popped = np.int64(site < 0)
        alive = np.empty((header[AT_SYMBOLS] + 31) >> 5, np.uint32)
        first = np.int64(0)
        while first < exits:
            stop, to = np.int64(exits), np.int64(site_start[left])
            if labels:
                stop, to = first, to + label[first]
                while stop < exits and label[stop] == label[first]:
                    stop += 1
            start = np.int64(site_states[to]) if to < site_start[left + 1] else np.int64(-1)
            if start >= 0:
                alive[:] = np.uint32(0)
                state, seen, nodes = _walk(
                    header, np.int64(1), start, popped, np.int64(-1), np.int64(-1), np.int64(frames), real, alive,
                    mask[:0], noted[:0], np.uint64(0), np.int64(0), ended, np.int64(0), np.int64(0),
                )  # fmt: skip
                looked, work = max(looked, seen), work + nodes
                if state != WRITTEN:
                    return state, looked, work, np.int64(-1)
                if frames >= 0:
                    looked = max(looked, min(popped + 1, real.size))
                if nothing >= 0 and (frames < 0 or _fits(header, real[:0], popped, start, real, frames)):
                    alive[nothing >> 5] |= one << np.uint32(nothing & 31)
                for x in range(first, stop):
                    y = symbol[x]
                    if (not counted or least <= characters[x] <= room) and (alive[y >> 5] >> np.uint32(y & 31)) & one:
                        _put(out, mask, noted, token[x], True)
            first = stop
    if walk:
        left = np.int64(-1)
        if frames < 0 and not freely and twin < 0 and _is_apart(header, node):
            high = np.int64(array_at(header[AT_NODE], OF_NODE, np.int32)[NODE_CHILD])
            left, work = _walk_apart(header, np.int64(node), np.int64(0), high, out, mask, noted)
        if left < 0:
            state, seen, nodes = _walk(
                header, np.int64(0), np.int64(node), np.int64(0), np.int64(twin), np.int64(site), np.int64(frames),
                real, out, mask, noted, np.uint64(wanted), np.int64(freely), ended, np.int64(0), np.int64(0),
            )  # fmt: skip
            if state != WRITTEN:
                return state, looked, work, np.int64(-1)
            looked, work = max(looked, seen), work + nodes
        pending = array_at(header[AT_SCRATCH] + 16 * room_of(header[AT_LEVELS]), 3 * MOST_PENDING, np.int64)
        for x in range(left):
            state, seen, nodes = _walk_rest(
                header, np.int64(0), pending[3 * x], np.int64(0), np.int64(-1), np.int64(-1), np.int64(frames), real,
                out, mask, noted, np.uint64(0), np.int64(0), ended, pending[3 * x + 1], pending[3 * x + 2], True,
            )  # fmt: skip
            if state != WRITTEN:
                return state, looked, work, np.int64(-1)
            looked, work = max(looked, seen), work + nodes
    if ends:
        _put(out, mask, noted, header[AT_EOS], True)
    if noted[0] == ALL_WORDS:
        return np.int64(WRITTEN), looked, work, np.int64(-1)
    differ = array_at(header[AT_SCRATCH] - 8 * MOST_NOTED, 2 * MOST_NOTED, np.uint32)
    for k in range(np.uint64(noted[0])):
        w = np.uint64(noted[k + np.uint64(1)])
        differ[k + k], differ[k + k + np.uint64(1)] = np.uint32(w), out[w]
    return np.int64(WRITTEN), looked, work, np.int64(noted[0])


@kernel
def write_text(header: Any, node: int, base: int, known: int, sheet: int, slab: int) -> Any:
    """Write the numbers of the base of a state of a text, and what they are the addresses of; see `lazy.Base`.

    base: the address of the numbers of one of what the state reads freely, of which the header says more; 0 if nobody
    has looked. known: the address of those of `lazy.Known`. sheet: that of room for a mask, and for tokens that end a
    string. slab: where to write.

    Returns (WRITTEN, how many numbers were, in how many words the mask differs from that of the base or -1 where it is
    whole), without numbers if it is the mask of states that read any characters; (ASKS, ...) where the base is wanted;
    or (LITTLE, ...) where no more is read freely.
    """
    symbol_at, symbols, ending, total_at, text_at, start_at, token_at, tokens = array_at(known, OF_KNOWN, np.int64)
    symbol_of = array_at(symbol_at, symbols, np.int32)
    out, nothing = array_at(sheet, header[AT_WORDS], np.uint32), np.int64(0)
    ended = array_at(sheet + 4 * header[AT_WORDS], 2 * ending + 2, np.int32)
    ended[0] = 0
    if base == 0:
        groups, freely, wanted, total = text_freely(header, np.int64(node))
        if not freely:
            return np.int64(LITTLE), nothing, nothing
        if not (total and tokens):
            header[AT_GROUPS], header[AT_WANTED], header[AT_FREE_BYTES] = np.int64(groups), np.int64(wanted), freely
            return np.int64(ASKS), nothing, nothing
        mask_at, out = total_at, array_at(total_at, header[AT_WORDS], np.uint32)
        token, start = array_at(token_at, tokens, np.int32), array_at(start_at, tokens + 1, np.int32)
        text = array_at(text_at, start[tokens], np.uint8)
        words = _read_each(header, np.int64(node), out, text, start, token, ended)
    else:
        mask_at = array_at(base, OF_BASE, np.int64)[0]
        free = array_at(mask_at, header[AT_WORDS], np.uint32)
        _copy(free, out)
        freely = header[AT_FREE_BYTES]
        if freely == _IN_ORDER:
            _clear_text(header, np.int64(node), out)
        if not _walk_text(header, np.int64(node), out, np.uint64(header[AT_WANTED]), freely, ended):
            header[AT_GROUPS], header[AT_WANTED] = np.int64(PLAIN), np.int64(_OTHERS)
            header[AT_FREE_BYTES] = _IN_ORDER
            return np.int64(ASKS), nothing, nothing
        words = _difference(header, free, out)
    count, last = np.int64(0), np.int64(0)
    for k in range(1, ended[0] + 1):
        count += symbol_of[ended[2 * k - 1]] >= 0
        last = max(last, np.int64(ended[2 * k]))
    if not base and not count and not words:
        return np.int64(WRITTEN), nothing, nothing
    size, own = OF_BASE + (3 * count + 1) // 2, words if words >= 0 else (out.size + 1) // 2
    exits_at, at = slab + 8 * OF_BASE, slab + 8 * size
    _by_label(ended, symbol_of, last, count, array_at(exits_at, 3 * count, np.int32))
    if words < 0:
        _copy(out, array_at(at, header[AT_WORDS], np.uint32))
        mask_at = at
    else:
        _copy(array_at(header[AT_SCRATCH] - 8 * MOST_NOTED, 2 * words, np.uint32), array_at(at, 2 * words, np.uint32))
    numbers = array_at(slab, OF_BASE, np.int64)
    numbers[0], numbers[1], numbers[2], numbers[3] = mask_at, header[AT_WORDS], at, 2 * words if words > 0 else 0
    numbers[4], numbers[5], numbers[6] = exits_at, exits_at + 4 * count, exits_at
    numbers[7], numbers[8], numbers[9], numbers[10] = exits_at + 8 * count, count, 0, count if last else 0
    return np.int64(WRITTEN), size + own, words


@kernel
def _read_each(header: Any, node: Any, mask: Any, text: Any, start: Any, token: Any, ended: Any) -> Any:
    """Read tokens from a state of a text that reads any characters: those that end it, and those with other escapes.

    mask: of such states that have only the escapes that a character needs. text, start, token: the bytes of the tokens.
    Words in which the mask is another are written before the scratch, and tokens that end the text listed. Returns how
    many words these are.
    """
    rows = array_at(header[AT_ROWS], header[AT_ROWS + 1], np.int32)
    differ = array_at(header[AT_SCRATCH] - 8 * MOST_NOTED, 2 * MOST_NOTED, np.uint32)
    first, class_of, transition, label, _, free, origin, _, _, _ = _text_at(_text_in(header, node), node)
    width, words, one = transition.size // label.size, np.int64(0), np.uint32(1)
    for k in range(token.size):
        q, x, stop = origin, np.int64(start[k]), np.int64(start[k + 1])
        while x < stop and text[x] != 0x22 and text[x] != 0x5C:
            q = np.int64(transition[q * width + class_of[text[x]]])
            x += 1
        if x < stop and text[x] == 0x22 and q != free:
            if label[q] >= 0:
                _list(ended, token, k, k + 1, label[q])
            continue
        here = first + PHASES * q if q != free else header[AT_BODY]
        while x < stop and here > 0:  # what is not read as it is
            here = _any_code(header, rows, here, np.int64(text[x]))
            x += 1
        if here > 0:
            w, at = np.uint32(token[k] >> 5), np.int64(0)
            while at < words and differ[2 * at] != w:
                at += 1
            if at == words:
                differ[2 * at], differ[2 * at + 1] = w, mask[w]
                words += 1
            differ[2 * at + 1] |= one << np.uint32(token[k] & 31)
        elif here != DEAD:
            _list(ended, token, k, k + 1, RETURN - here)
    return words


@kernel
def _by_label(ended: Any, symbol_of: Any, last: Any, count: Any, exits: Any) -> None:
    """Write listed tokens that have a symbol, `count` of them, these and their labels, by label, up to the last."""
    place = np.zeros(last + 2, np.int64)  # where those of each label come
    for k in range(1, ended[0] + 1):
        place[ended[2 * k] + 1] += symbol_of[ended[2 * k - 1]] >= 0
    for y in range(last + 1):
        place[y + 1] += place[y]
    for k in range(1, ended[0] + 1):
        token, label = ended[2 * k - 1], ended[2 * k]
        if symbol_of[token] >= 0:
            at = place[label]
            exits[at], exits[count + at], exits[2 * count + at] = token, symbol_of[token], label
            place[label] += 1


@kernel
def _difference(header: Any, base: Any, out: Any) -> Any:
    """Write the words in which a mask differs from another before the scratch; return how many, -1 if too many."""
    differ = array_at(header[AT_SCRATCH] - 8 * MOST_NOTED, 2 * MOST_NOTED, np.uint32)
    # unsigned numbers, as numba looks at the sign of every other index, and makes no vector code then
    one, count, most = np.uint64(1), np.uint64(0), np.uint64(MOST_NOTED)
    row, words = np.uint64(_IN_A_ROW), np.uint64(out.size)
    for first in range(np.uint64(0), words, row):
        stop = min(first + row, words)
        other = np.uint32(0)
        if stop - first == row:
            for k in range(row):
                other |= out[first + k] ^ base[first + k]
            if not other:
                continue
        for w in range(first, stop):
            if out[w] != base[w]:
                if count == most:
                    return np.int64(-1)
                differ[count + count], differ[count + count + one] = np.uint32(w), out[w]
                count += one
    return np.int64(count)


@kernel
def addresses(mask: Any, token: Any, symbol: Any, characters: Any, out: Any) -> Any:
    """Write the numbers of a base, see `lazy.Base`, into out (OF_BASE,), and return their address."""
    out[0], out[1], out[2], out[3] = mask.ctypes.data, mask.size, mask.ctypes.data, 0
    out[4], out[5], out[6], out[7] = token.ctypes.data, symbol.ctypes.data, characters.ctypes.data, token.ctypes.data
    out[8], out[9], out[10] = token.size, characters.size, 0
    return np.int64(out.ctypes.data)
