"""What kernels read of a table, one row of a batch a program: its edges, its masks and the sites on its stack.

`header` is that of `layout.header_of`. TOKEN: the bytes of a token in the table's arrays. Names and meaning are those
of `..edges` and of `stepping`, which do the same for all rows at once.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .layout import (
    ACCEPTING,
    ACTION_ROOM,
    ACTION_START,
    BASE_CLASSES,
    BASE_MASK,
    BASE_ROW,
    BASE_START,
    BASE_TARGET,
    BASES,
    CLASS_ID,
    CLASS_START,
    CLASS_TOKEN,
    CODE_STEP,
    DEPTH,
    DISTANCE,
    DISTANCE_ROOM,
    DISTANCE_ROOMS,
    EDGE_TOKEN,
    END_STEP,
    MASK_WORDS,
    MASKS,
    NUM_EDGES,
    NUM_ROWS,
    NUM_STATES,
    ROOM_CODE_STEP,
    ROOM_END_STEP,
    ROW_START,
    SITE_FRAMES,
    SITE_START,
    SITE_SYMBOL,
    SITE_TARGET,
    SITE_WIDTH,
    SLOTS,
    STATE_ROOM,
    STATE_ROOMS,
    SYMBOLS,
    VOCAB_SIZE,
)

# Triton evaluates annotations inside its kernels and refuses names such as Any: only constants carry one.


@triton.jit  # type: ignore[untyped-decorator]
def number(header, AT: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return a size of the table, int32."""
    return tl.load(header + AT).to(tl.int32)


@triton.jit  # type: ignore[untyped-decorator]
def array(header, AT: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return a pointer to an array of 32-bit numbers."""
    return tl.load(header + AT).to(tl.pointer_type(tl.int32))


@triton.jit  # type: ignore[untyped-decorator]
def tokens_at(header, AT: tl.constexpr, at, inside, TOKEN: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return tokens of an array, int32; 0 where not inside."""
    address = tl.load(header + AT)
    if TOKEN == 1:
        return tl.load(address.to(tl.pointer_type(tl.int8)) + at, mask=inside, other=0).to(tl.int32) & 0xFF
    if TOKEN == 2:
        return tl.load(address.to(tl.pointer_type(tl.int16)) + at, mask=inside, other=0).to(tl.int32) & 0xFFFF
    return tl.load(address.to(tl.pointer_type(tl.int32)) + at, mask=inside, other=0)


@triton.jit
def first_edge(header, node):  # type: ignore[no-untyped-def]
    """Return the first edge of a state; a state ends where the next one starts."""
    rows = number(header, NUM_ROWS)
    return tl.load(array(header, ROW_START) + tl.minimum(node, rows)) + tl.maximum(node - rows, 0)


@triton.jit
def base_of(header, node):  # type: ignore[no-untyped-def]
    """Return the base of a state; the last, which allows nothing, where it has none."""
    return tl.load(array(header, BASE_ROW) + tl.minimum(node, number(header, BASES) - 1))


@triton.jit  # type: ignore[untyped-decorator]
def find_token(header, AT: tl.constexpr, low, last, token, TOKEN: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return where a token stands among the sorted tokens low .. last of an array, and whether it does."""
    high = last
    while low < high:
        middle = low + ((high - low) >> 1)
        if tokens_at(header, AT, middle, True, TOKEN) < token:
            low = middle + 1
        else:
            high = middle
    return low, (low < last) & (tokens_at(header, AT, low, low < last, TOKEN) == token)


@triton.jit
def in_mask(header, base, token, inside):  # type: ignore[no-untyped-def]
    """Return whether tokens are in the mask of a base."""
    row = tl.load(array(header, BASE_MASK) + base).to(tl.int64) * number(header, MASK_WORDS)
    word = tl.load(array(header, MASKS) + row + (token >> 5), mask=inside, other=0)
    return ((word >> (token & 31)) & 1) != 0


@triton.jit
def class_target(header, node, base, name, inside):  # type: ignore[no-untyped-def]
    """Return where a state leads by tokens of its base that have this class."""
    first = tl.load(array(header, BASE_START) + base)
    code = tl.load(array(header, BASE_TARGET) + first + name, mask=inside, other=0)
    dead = number(header, NUM_STATES) - 1
    return tl.minimum(tl.maximum((code >> 1) + (code & 1) * node, 0), dead)


@triton.jit  # type: ignore[untyped-decorator]
def target_in_base(header, node, base, token, TOKEN: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return where a token of its base's mask leads from a state."""
    classes = tl.load(array(header, BASE_CLASSES) + base)
    starts = array(header, CLASS_START) + classes
    at, found = find_token(header, CLASS_TOKEN, tl.load(starts), tl.load(starts + 1), token, TOKEN)
    name = tl.load(array(header, CLASS_ID) + at, mask=found, other=0)
    return class_target(header, node, base, name, True)


@triton.jit
def site_target(header, site, symbol, inside):  # type: ignore[no-untyped-def]
    """Return what symbols come to at a site: a code, the dead state where the site has none, or -1 - y."""
    targets = array(header, SITE_TARGET)
    dead = number(header, NUM_STATES) - 1
    if number(header, SITE_WIDTH) == 0:
        found = tl.load(targets + site.to(tl.int64) * number(header, SYMBOLS) + symbol, mask=inside, other=0)
    else:
        symbols = array(header, SITE_SYMBOL)
        starts = array(header, SITE_START) + site
        first, last = tl.load(starts), tl.load(starts + 1)
        low, high = symbol * 0 + first, symbol * 0 + last
        left = last - first
        while left > 0:
            middle = low + ((high - low) >> 1)
            searching = inside & (low < high)
            below = tl.load(symbols + middle, mask=searching, other=0) < symbol
            low = tl.where(searching & below, middle + 1, low)
            high = tl.where(searching & ~below, middle, high)
            left = left >> 1
        here = inside & (low < last)
        here = here & (tl.load(symbols + low, mask=here, other=-1) == symbol)
        found = tl.load(targets + low, mask=here, other=0)
        found = tl.where(here, found, dead)
    return found


@triton.jit
def has_room(header, code, inside, frames, height):  # type: ignore[no-untyped-def]
    """Return whether codes fit onto a stack of a height, `frames` of which are no leaves; none does that is dead."""
    dead = number(header, NUM_STATES) - 1
    depth = number(header, DEPTH)
    action = tl.maximum(code - dead, 0)
    room = tl.load(array(header, ACTION_ROOM) + action, mask=inside, other=0)
    if number(header, STATE_ROOMS) > 0:
        of_state = tl.load(array(header, STATE_ROOM) + tl.minimum(code, dead), mask=inside, other=0)
        room = tl.maximum(room, of_state)
    starts = array(header, ACTION_START) + action
    pushed = tl.load(starts + 1, mask=inside, other=0) - tl.load(starts, mask=inside, other=0)
    return inside & (code != dead) & (frames + room <= depth) & (height + pushed <= number(header, SLOTS))


@triton.jit  # type: ignore[untyped-decorator]
def is_near(header, code, inside, frames, far, last, ENDS: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return whether an end is within `last` tokens of codes.

    far: where the distances (ENDS,) int64 of the stack below them lie. ENDS: how many ends are told apart.
    """
    distances = array(header, DISTANCE)
    if ENDS == 1:
        near = tl.load(distances + code, mask=inside, other=0).to(tl.int64)
        return inside & (near + tl.load(far) <= last)
    found = inside & False
    end_step, code_step = tl.load(header + END_STEP), tl.load(header + CODE_STEP)
    rooms = array(header, DISTANCE_ROOM)
    limited = number(header, DISTANCE_ROOMS) > 0
    room_end, room_code = tl.load(header + ROOM_END_STEP), tl.load(header + ROOM_CODE_STEP)
    depth = number(header, DEPTH)
    for end in range(ENDS):
        near = tl.load(distances + end * end_step + code * code_step, mask=inside, other=0).to(tl.int64)
        close = near + tl.load(far + end) <= last
        if limited:
            room = tl.load(rooms + end * room_end + code * room_code, mask=inside, other=0)
            close = close & (frames + room <= depth)
        found = found | close
    return inside & found


@triton.jit  # type: ignore[untyped-decorator]
def may_end(header, node, TOKEN: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return whether a sequence may end in a state, its stack aside."""
    rows = number(header, NUM_ROWS)
    accepting = tl.load(header + ACCEPTING).to(tl.pointer_type(tl.int8))
    here = tl.load(accepting + tl.minimum(node, rows - 1)) != 0
    entry = tl.maximum(node - rows, 0) + tl.load(header + NUM_EDGES).to(tl.int32)
    return tl.where(node < rows, here, tokens_at(header, EDGE_TOKEN, entry, True, TOKEN) == number(header, VOCAB_SIZE))


@triton.jit
def frames_of(header, stack, height):  # type: ignore[no-untyped-def]
    """Return how many frames of a stack are no leaves."""
    frames = 0
    for at in range(height):
        frames += tl.load(array(header, SITE_FRAMES) + tl.load(stack + at))
    return frames


@triton.jit
def node_at(header, nodes, row):  # type: ignore[no-untyped-def]
    """Return the state of a row: the dead one in place of a number that is no state."""
    node, states = tl.load(nodes + row).to(tl.int64), number(header, NUM_STATES)
    return tl.where((node >= 0) & (node < states), node, states - 1).to(tl.int32)


@triton.jit
def height_at(header, heights, row):  # type: ignore[no-untyped-def]
    """Return the height of a row's stack, which has no more than its slots."""
    height = tl.load(heights + row).to(tl.int64)
    return tl.minimum(tl.maximum(height, 0), number(header, SLOTS)).to(tl.int32)
