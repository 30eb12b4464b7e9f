"""`LazyPushdown`: a machine with calls that a matcher reads as it is.

What a table holds in rows, exits and return sites is found here where a text needs it, for the stack at hand. States
that no text comes to cost nothing, and need not even be written: see `PushdownMachine.later`. A mask costs more than
that of a table: some microseconds for most states, and some hundred in a string that is hardly bound.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Callable
from sys import byteorder
from typing import NamedTuple
from weakref import finalize

import numpy as np
from numpy.typing import NDArray

from ...automata.budget import Meter
from ...automata.pushdown import PushdownMachine
from ...automata.state_ranges import DEAD, KEYS, PHASES, STRINGS, TEXTS
from ...automata.word_tries import KEY_LIKE, USE_SITE
from ...kernels.limits import MOST_DEPTH
from ...kernels.pointers import address_of
from ..protocol import Open, Stack
from .bases import Base
from .end_bounds import EndBounds, EndRule
from .entry_points import entry_points
from .header import (
    AT_EOS,
    AT_FREE_GROUPS,
    AT_LEVELS,
    AT_SCRATCH,
    DONE,
    NEEDS_BASE,
    NEEDS_SITES,
    NEEDS_STATE,
    NOT_LOOKED,
    READS_LITTLE,
)
from .mask import NO_WALK
from .memory import FramesRequired, Growth, LibraryParts, PushdownMemory
from .scratch import content_buffer, scratch_of, slab_with
from .shortest_ends import ShortestEnds

_STATES_AT_ONCE = 64  # written together with one that is reached, while a caller waits for a mask
_FEW_AT_ONCE = 16  # with a further one for the same mask
MOST_BASES = 1024  # from which masks are noted: they stay with the machine, even after `StringMaskCache` drops them
_SITES_AT_ONCE = 4  # that a token is likely to pop
_MANY_NODES = 512  # of the trie, from which on a mask is worth keeping


class FrameRule(NamedTuple):
    """What limits open frames.

    find: returns the frames that states and sites require, and writes all of the machine to know that. most_required:
    frames that suffice in every state, None where even none left does no harm.
    """

    find: Callable[[], FramesRequired]
    depth: int
    most_required: int | None


class LazyPushdown:
    """A machine with calls, read as it is: a `LazyMachine` whose masks can be noted.

    release: called when the machine is freed, unless the interpreter exits. It must not refer to the machine. ends:
    where the bounds of its ends come from, None if there are none.
    """

    left_out = 0

    def __init__(
        self,
        machine: PushdownMachine,
        parts: LibraryParts,
        frames: FrameRule,
        meter: Meter,
        release: Callable[[], None],
        ends: EndRule | None = None,
    ) -> None:
        # thousands of objects: in a cycle they would wait for the garbage collector, and make it walk all of a process.
        # Not while the interpreter exits: it frees everything itself, and modules that `release` needs may be gone.
        finalize(self, release).atexit = False
        self._kernels = entry_points()
        self.machine, self.bases, self.meter = machine, parts.bases, meter
        self.depth, self.strings = frames.depth, STRINGS
        self.most_frames_required = -MOST_DEPTH if frames.most_required is None else frames.most_required
        self._find_frames = frames.find
        self._frames_required: FramesRequired | None = None
        self._lock = threading.RLock()
        self._end_rule = ends
        self._end_bounds: EndBounds | None = None
        self._memory = memory = PushdownMemory(machine, parts, frames.depth, meter)
        self._header, self._header_at = memory.header, address_of(memory.header)
        self._growth = Growth(memory)
        self._levels = int(memory.header[AT_LEVELS])
        self._scratch_at = 0
        self._tokens, self._has_eos = parts.vocabulary.tokens, parts.vocabulary.eos is not None
        self._texts = parts.vocabulary.token_bytes, parts.vocabulary.token_offset
        self._any_string, self._counted, self.string_masks = parts.any_string, parts.counted, parts.string_masks
        self._content_numbers: dict[int, int] = {}  # of contents, in `StringMaskCache`
        self._noted_bases: list[Base] = []  # from which masks differ in few words
        self._number_of_base: dict[int, int] = {}  # its place among these, by its address

    @property
    def is_large(self) -> bool:
        """Whether texts have spent an eighth of the states that the budget left them, or all of the budget."""
        return self._growth.is_large

    @property
    def num_states(self) -> int:
        """States that have been written so far, a library's among them."""
        return int(self.machine.size)

    @property
    def nbytes(self) -> int:
        """Bytes of what has been written so far, a library's rows among it."""
        return self._memory.nbytes

    def is_leaf(self, site: int) -> bool:
        """Return whether a site is pushed for a fragment that makes no calls."""
        return self._memory.is_leaf(site)

    def accepts(self, node: int) -> bool:
        """Return whether a text may end in a state if nothing is open."""
        return node in self.machine.accepting

    # ------------------------------------------------------------------------------------------------ masks

    def mask(self, node: int, sites: bytes, frames: int) -> tuple[NDArray[np.uint32], int, bool | bytes]:
        """Return the tokens that a configuration allows, EOS included, (ceil(V / 32),) read-only.

        sites: the open return sites, int32, the outermost first. frames: how many of these are no leaves where frames
        may run out, else -1.

        Also returns on how many sites from the top the mask depends, one more if it depends on there being no more; and
        a note from which `restored` makes the mask again, or, if it differs from its base in too many words, whether it
        was much work. The array is written anew once nobody holds it.
        """
        string_masks, memory = self.string_masks, self._memory
        with self._lock:
            if self._growth.is_torn:
                self._growth.check()
            if frames >= 0:
                self._required()
            may_end, at_once = node in self.machine.accepting, _STATES_AT_ONCE
            ends = may_end and self._has_eos and not sites
            while True:
                # which base, and whether the trie is walked: beside a template, or -1 beside none
                site, template, least, most = -1, NO_WALK, 0, 0
                base = self.bases.get(node)
                if base is None:
                    template = -1
                    if node >= TEXTS:  # where labels may require different numbers of frames, it is walked
                        base = None if frames >= 0 and self._has_labels(node) else self._content_base(node)
                    elif node >= STRINGS:
                        base, least, most = self._counted_base(node)
                    elif node >= KEYS:
                        first, _, trie, words = self._use(node)
                        like = DEAD if words >= 0 else memory.keys[node - first + trie, KEY_LIKE]
                        if like == self._any_string and (
                            frames < 0 or self._may_push(int.from_bytes(sites[-4:], byteorder), frames)
                        ):
                            template = like
                    elif node >= self.machine.first:
                        template, site = memory.templates[0, node], memory.templates[1, node]
                    if base is not None:
                        template = NO_WALK
                    elif template >= 0 and not (site >= 0 and frames >= 0 and not self._may_push(site, frames)):
                        base = self.bases[template]
                    else:
                        base = string_masks.nothing
                scratch = scratch_of(self._levels)  # held for as long as its address is used
                if scratch.at != self._scratch_at:
                    self._scratch_at = self._header[AT_SCRATCH] = scratch.at
                freely = NOT_LOOKED if template == -1 and frames < 0 and node < KEYS else 0
                while True:
                    buffers = base.buffers
                    if buffers is None:
                        buffers = string_masks.buffers
                    buffer = buffers.take()
                    state, looked, work, differing = self._kernels.write_mask(
                        self._header_at,
                        node,
                        template,
                        site,
                        base.at,
                        least,
                        most,
                        frames,
                        sites,
                        buffer.at,
                        ends,
                        freely,
                    )
                    if state != NEEDS_BASE:
                        break
                    buffers.give(buffer)
                    groups, _, freely = self._header[AT_FREE_GROUPS:].tolist()
                    base = string_masks.free(groups, freely)  # held, as another machine may drop it meanwhile
                mask = buffer.shown  # held before another thread may take the buffer
                buffers.give(buffer)
                if state == DONE:
                    break
                del mask
                self._growth.reach(state, at_once)
                at_once = _FEW_AT_ONCE  # the caller has waited for some already
            if may_end and not looked:
                looked = 1
            if differing >= 0:
                number = self._number_of_base.get(base.at)
                if number is None and len(self._noted_bases) < MOST_BASES:
                    number = self._note(base, template != NO_WALK or node < TEXTS)
                if number is not None:
                    note = scratch.differing
                    note[0] = number
                    return mask, looked, note[: 2 + 2 * differing].tobytes()
        return mask, looked, work > _MANY_NODES

    def _note(self, base: Base, shared: bool) -> int:
        """Return the number of a base from which masks differ in few words. shared: whether others hold it anyway."""
        self._noted_bases.append(base)
        if not shared:
            self._memory.own_bytes += base.nbytes
        number = self._number_of_base[base.at] = len(self._noted_bases) - 1
        return number

    def restored(self, noted: bytes) -> NDArray[np.uint32]:
        """Return the mask of which this was noted, read-only; it is written anew once nobody holds it."""
        base = self._noted_bases[int.from_bytes(noted[:4], byteorder)]
        buffers = base.buffers
        if buffers is None:
            buffers = self.string_masks.buffers
        buffer = buffers.take()
        self._kernels.restore(base.at, buffer.mask.size, buffer.at, noted)
        mask = buffer.shown  # held before another thread may take the buffer
        buffers.give(buffer)
        return mask

    def alike(self, node: int) -> int:
        """Return the state that stands for all that allow the same as a state within a string, whatever the stack.

        Where the characters that were read are counted, they matter only when a token may come to the bound.
        """
        if node < TEXTS:
            first, low, high = self.machine.strings[bisect_right(self._memory.first_strings, node) - 1]
            k, q = divmod(node - first, len(self._counted.rows))
            if k < low or (high is not None and high - k < self._memory.longest):
                return node
            return first + low * len(self._counted.rows) + q
        first, states, is_counted, slack = self._memory.numbers[bisect_right(self._memory.first_contents, node) - 1]
        k, state = divmod(node - first, PHASES * states)
        return first + state if is_counted and k <= slack else node

    # ------------------------------------------------------------------------------------- bases of strings

    def _content_base(self, node: int) -> Base | None:
        """Return the base of a state of a string by its content, None if a walk is quick: see `reads_little`."""
        n = bisect_right(self._memory.first_contents, node) - 1
        string_masks, first = self.string_masks, self._memory.numbers[n].first
        number = self._content_numbers.get(n)
        if number is None:
            if self._kernels.reads_little(self._header, node):
                return None
            number = self._content_numbers[n] = string_masks.number(self.machine.texts[n])
        base = string_masks.content_base(number, node - first)
        if base is None:
            base = self._new_content_base(node)
            if base is not None:
                string_masks.keep(number, node - first, base)
        return base

    def _new_content_base(self, node: int) -> Base | None:
        """Find the base of a state of a string by its content, None if little of it is read freely."""
        string_masks = self.string_masks
        slab = slab_with(string_masks.most_numbers)
        scratch = scratch_of(self._levels)  # held for as long as its address is used
        self._scratch_at = self._header[AT_SCRATCH] = scratch.at
        free, free_at, buffer = string_masks.total, 0, content_buffer(string_masks.buffer_size)
        while True:
            state, used, words = self._kernels.write_content(
                self._header_at, node, free_at, string_masks.at, buffer, slab.at
            )
            if state == DONE:
                break
            if state == READS_LITTLE:
                return None
            groups, _, freely = self._header[AT_FREE_GROUPS:].tolist()
            free = string_masks.free(groups, freely)
            free_at = free.at
        if not used:
            return free
        return Base(slab.take(used), free.buffers if words >= 0 else None, 8 * used, (slab.numbers, free))

    def _counted_base(self, node: int) -> tuple[Base, int, int]:
        """Return the base of a state of a counted string, and how many characters an exit must and may read."""
        first, low, high = self.machine.strings[bisect_right(self._memory.first_strings, node) - 1]
        k, q = divmod(node - first, len(self._counted.rows))
        left = MOST_DEPTH if high is None else high - k
        return self._counted.base(q, left if left < self._counted.most else None), low - k, left

    def _has_labels(self, node: int) -> bool:
        """Return whether a string by its content may end with several labels."""
        return bool(self.machine.texts[bisect_right(self._memory.first_contents, node) - 1].label.max() > 0)

    def _use(self, node: int) -> tuple[int, int, int, int]:
        """Return the use that a word state belongs to."""
        return self.machine.uses[bisect_right(self._memory.first_uses, node) - 1]

    # ----------------------------------------------------------------------------------------------- frames

    def _required(self) -> FramesRequired:
        """Return the frames that states and sites require; found once frames are about to run out."""
        if self._frames_required is None:
            required = self._growth.grow(self._find_frames)
            self._memory.take_frames(required)
            self._frames_required = required
        return self._frames_required

    def frames_required(self, node: int) -> int:
        """Return how many frames it takes at least to leave a state that has a row."""
        with self._lock:
            return _required_by(self._required()[0], node)

    def _may_push(self, site: int, frames: int) -> bool:
        """Return whether the frames left are enough to push a site."""
        return frames + max(int(not self.is_leaf(site)), _required_by(self._required()[1], site)) <= self.depth

    def fits(self, node: int, stack: Stack) -> bool:
        """Return whether the frames left are enough to leave all that is open."""
        with self._lock:
            of_state, of_site, _ = self._required()
            if KEYS <= node < STRINGS or node >= TEXTS:
                if stack.frames + self._kernels.frames_behind(self._header, node, stack.site) > self.depth:
                    return False
                if node >= TEXTS or self._use(node)[USE_SITE] < 0:  # that includes what the site on top requires
                    stack = stack.below
            elif stack.frames + _required_by(of_state, node) > self.depth:
                return False
            while stack.below is not None:
                if stack.below.frames + _required_by(of_site, stack.site) > self.depth:
                    return False
                stack = stack.below
            return True

    # ------------------------------------------------------------------------------------------------- ends

    ends_alike = True

    @property
    def has_bounds(self) -> bool:
        """Whether it is known how many tokens an end is away at most."""
        return self._end_rule is not None

    def nearest(self, node: int, stack: Stack) -> int:
        """Return a number of tokens in which a text can end; `NO_WAY` or more where that is not known."""
        with self._lock:
            self._growth.check()
            return self._bounds().nearest(node, stack)

    def text_to_end(self, node: int, stack: Stack) -> None:
        """Return None: searches for bounds keep no texts."""

    def farthest(self, node: int, stack: Stack) -> int:
        """Return the most that `nearest` is behind a token that is allowed next, or more; -1 where none is.

        Frames must not be about to run out.
        """
        with self._lock:
            return self._bounds().farthest(
                node, stack, lambda: self._without_eos(self.mask(node, stack.sites(), -1)[0])
            )

    def within(self, node: int, stack: Stack, frames: int, room: int) -> NDArray[np.uint32]:
        """Return the mask of the tokens behind which `nearest` is below room, and of EOS, read-only.

        frames: as of `mask`.
        """
        with self._lock:
            mask, _, _ = self.mask(node, stack.sites(), frames)
            tokens = self._without_eos(mask)
            near = self._bounds().within(node, stack, tokens, room) | (mask & ~tokens)
        near.flags.writeable = False
        return near

    def _without_eos(self, mask: NDArray[np.uint32]) -> NDArray[np.uint32]:
        eos = int(self._header[AT_EOS])
        if not self._has_eos or not mask[eos >> 5] >> (eos & 31) & 1:
            return mask
        tokens = mask.copy()
        tokens[eos >> 5] ^= np.uint32(1 << (eos & 31))
        return tokens

    def _bounds(self) -> EndBounds:
        if self._end_bounds is None:
            assert self._end_rule is not None, "the caller has seen to it"
            library, anchor_of = self._end_rule
            growth, memory, kernels = self._growth, self._memory, self._kernels
            header_at, tokens = self._header_at, self._tokens

            def follow(node: int, token: int, sites: bytes) -> tuple[int, int, tuple[int, ...]]:
                while True:
                    state, popped, pushed = kernels.read_token(header_at, node, tokens[token], sites)
                    if state != NEEDS_STATE:
                        return state, popped, tuple(memory.pushed[:pushed])
                    growth.reach(popped, _STATES_AT_ONCE)

            shortest = ShortestEnds(
                self.machine, library.ends, anchor_of(), lambda state: growth.reach(state, _FEW_AT_ONCE),
                self._any_string, len(self._counted.rows),
            )  # fmt: skip
            self._end_bounds = EndBounds(self.machine, shortest, library.quoted, self._texts, follow)
        return self._end_bounds

    # ----------------------------------------------------------------------------------------------- tokens

    def advance(self, node: int, stack: Open, token: int, push: Callable[[Open, int], Open]) -> tuple[int, Open] | None:
        """Return the state and stack that a token leads to, None if it is not allowed.

        stack: `site` on top of the stack `below`, None at the bottom, `height` of them; `packed` has all sites after a
        call of `sites()`, and `top(n)` returns some. push(stack, site) returns the stack with one site more.
        """
        text = self._tokens[token]
        if not text:
            return None
        sites = stack.packed
        if sites is None:
            sites = stack.top(_SITES_AT_ONCE)
        read_token = self._kernels.read_token
        with self._lock:
            if self._growth.is_torn:
                self._growth.check()
            while True:
                state, popped, pushed = read_token(self._header_at, node, text, sites)
                if state >= 0:
                    break
                if state == NEEDS_STATE:
                    self._growth.reach(popped, _STATES_AT_ONCE)
                elif state == NEEDS_SITES and len(sites) < 4 * stack.height:
                    sites = stack.top(len(sites))  # four times as many
                else:
                    return None
            while popped:
                stack = stack.below
                popped -= 1
            for k in range(pushed):
                stack = push(stack, self._memory.pushed[k])
        return state, stack


def _required_by(frames: NDArray[np.int32], which: int) -> int:
    """Return the frames that a state or a site requires."""
    return int(frames[which]) if which < frames.size else 0
