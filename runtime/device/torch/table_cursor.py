"""Tables and arenas as a kind of constraint in PyTorch."""

from __future__ import annotations

from typing import cast

import numpy as np
import torch
from torch import Tensor

from ....kernels.limits import UNREACHABLE
from ....table.states import NestedState
from ....table.transition_table import TransitionTable
from .. import stepping
from ..backend import Cache, Offer
from ..checks import check_distances, check_starts
from ..cursor import Chosen, Cursor, Unconstrained
from ..device_table import AnyState, Selection, State
from . import compat, stacks
from .arrays import keep, keep_bits, keep_packed, pack
from .edges import find_edge, first_edge, first_edges, is_narrow, rank_of, target_of, token_of
from .masks import allowed, check_remaining_of, mask_on_host, on_host, packed, run_in_kernels, unfold
from .memory import is_writable, noted, takes_logits, takes_triton
from .states import accepting, check_state_of, follow_on_host, follow_token, only_where
from .table import TorchTable


class TableCursor(Cursor):
    """A table, or the tables of an arena.

    On a CPU the kernels of `runtime/host` run on the tensors' memory. On CUDA one Triton kernel does all of a step over
    a trie, within the limits of `gpu.sid_step.takes`, and kernels of `gpu` compose masks and follow tokens.
    """

    def first_tokens(self, dev: TorchTable, cache: Cache, count: int, token: int) -> Tensor:
        return torch.full((count,), token, dtype=torch.int64, device=dev.row_start.device)

    def check_state(self, dev: TorchTable, state: AnyState) -> None:
        check_state_of(dev, state)

    def start(self, dev: TorchTable, batch: int) -> AnyState:
        check_starts(dev.starts.shape[0], batch)
        if dev.arena:
            node = dev.starts.long()[:, None].expand(-1, batch // dev.starts.shape[0]).reshape(-1)
        else:  # of their own: compiled by inductor, two runs over one graph shared what `starts` gives, and wrote to it
            node = torch.zeros(batch, dtype=torch.int64, device=dev.starts.device)
        if dev.calls is None:
            return State(node)
        stack = torch.zeros(batch, dev.calls.slots, dtype=torch.int32, device=node.device)
        return NestedState(node, stack, torch.zeros_like(node, dtype=torch.int32))

    def accepting(self, dev: TorchTable, state: AnyState) -> Tensor:
        check_state_of(dev, state)
        return accepting(dev, state)

    def distance(self, dev: TorchTable, state: AnyState) -> Tensor:
        check_distances(dev)
        near: Tensor = dev.distance.take(state.node).long() if dev.distance.ndim == 1 else dev.distance[:, state.node].T
        if dev.calls is None:
            return near
        check_state_of(dev, state)
        stack = stacks.stacks_of(dev.calls, state, True)
        far = stepping.around_of(stacks, stack, stack.height[:, None]).far
        assert far is not None
        by_end: Tensor = near + far[:, 0]
        if near.ndim == 1:
            return by_end
        if dev.calls.distance_room.shape[0]:
            frames = stack.frames.gather(1, stack.height[:, None])
            room = dev.calls.distance_room.index_select(1, state.node).T
            by_end = torch.where(frames + room <= dev.calls.depth, by_end, UNREACHABLE)
        return by_end.amin(dim=1)

    # ----------------------------------------------------------------------------------------------------- masks

    def mask_words(self, dev: TorchTable, state: AnyState, remaining: Tensor | None) -> Tensor:
        check_remaining_of(dev, state, remaining)
        if on_host(dev, state, remaining):
            masks = np.empty((state.node.shape[0], -(-dev.vocab_size // 32)), np.uint32)
            packed(dev, state, remaining, masks)
            return torch.from_numpy(masks.view(np.int32))
        if run_in_kernels(dev, state, remaining):
            from .gpu import text_masks  # Triton is slow to import

            return text_masks.bitmask(dev, state, remaining)
        return pack(allowed(dev, state, remaining)[:, : dev.vocab_size])

    def masked(self, dev: TorchTable, x: Tensor, state: AnyState, remaining: Tensor | None = None) -> Tensor:
        check_remaining_of(dev, state, remaining)
        if on_host(dev, state, remaining) and is_writable(x):
            return mask_on_host(dev, x.clone(memory_format=torch.contiguous_format), state, remaining)
        if run_in_kernels(dev, state, remaining):
            return keep_packed(x, self.mask_words(dev, state, remaining), dev.vocab_size)
        return keep(x, allowed(dev, state, remaining), dev.vocab_size)

    def mask_in_place(self, dev: TorchTable, x: Tensor, state: AnyState, remaining: Tensor | None) -> Tensor:
        """Mask x (n, V') in its memory. On a CPU only what is not allowed is written."""
        check_remaining_of(dev, state, remaining)
        if on_host(dev, state, remaining) and is_writable(x):
            return noted(mask_on_host(dev, x, state, remaining))
        if run_in_kernels(dev, state, remaining):
            return keep_packed(x, self.mask_words(dev, state, remaining), dev.vocab_size, in_place=True)
        kept = allowed(dev, state, remaining)[:, : dev.vocab_size].bool()
        forbidden = torch.nn.functional.pad(~kept, (0, x.shape[1] - dev.vocab_size), value=True)
        return x.masked_fill_(forbidden, -torch.inf)

    def masked_at(self, dev: TorchTable, x: Tensor, state: AnyState, level: int, in_place: bool) -> Tensor:
        """Return what `masked` does: kernels read no more than a state has, wherever it is."""
        if dev.host is not None or dev.eos is not None:
            return self.mask_in_place(dev, x, state, None) if in_place else self.masked(dev, x, state)
        return cast(Tensor, super().masked_at(dev, x, state, level, in_place))

    # ----------------------------------------------------------------------------------------------------- beams

    def select_at_once(
        self,
        dev: TorchTable,
        logits: Tensor,
        state: AnyState,
        scores: Tensor,
        beams: int,
        level: int,
        renormalize: bool,
    ) -> Selection | None:
        """Return what `select` does where a Triton kernel does all of it: logits, states and scores are plain."""
        plain = dev.is_trie and takes_logits(logits) and takes_triton(dev.edge_token, logits, state.node, scores)
        if not plain or not compat.is_as_stored(scores) or compat.wants_derivative(scores):
            return None
        from .gpu import sid_step

        if not sid_step.takes(dev, logits, state.node, scores, beams):
            return None
        return sid_step.select(dev, logits, state.node, scores, beams, level, renormalize)

    def offers(self, dev: TorchTable, x: Tensor, state: AnyState, level: int, normalized: bool) -> Offer:
        shape, size = dev.level(level), dev.vocab_size
        # all states of level 0 are the root of a trie, whose edges need no look-up and no ranking in its mask
        if shape.dense and (level > 0 or not dev.is_trie):
            return Offer(self._dense(dev, x, state, normalized, shape.tails), None)
        if level == 0:
            edge = torch.arange(shape.width, device=x.device)
            token = token_of(dev, edge)
            edge, token = edge.expand(x.shape[0], -1), token.expand(x.shape[0], -1)
            return Offer(x.gather(1, token).masked_fill_((state.node != 0)[:, None], -torch.inf), token, edge)
        if shape.rows:
            edge, token, kept = first_edges(dev, state.node, shape.width)
        else:
            edge = (state.node + (dev.num_edges - dev.num_rows))[:, None]
            token = token_of(dev, edge)
            kept = (token < size) & (edge >= dev.num_edges)  # not of a state that is not that deep
        return Offer(torch.where(kept, x.gather(1, token.clamp(max=size - 1)), -torch.inf), token, edge)

    def _dense(self, dev: TorchTable, x: Tensor, state: AnyState, normalized: bool, tails: bool) -> Tensor:
        """Return x (n, V or more) with -inf where a token is not allowed, ends among them."""
        size = dev.vocab_size
        if not dev.is_trie and run_in_kernels(dev, state, None):
            out = self.masked(dev, x, state)
            if dev.eos is not None:
                out[:, dev.eos] = -torch.inf
            return out
        width = dev.sparse_width if not dev.is_trie else 1 if tails else 0
        if not normalized:  # some that are not allowed may be NaN or inf: no sums
            mask = unfold(dev, state, dev.byte_mask, width)
            out = x.new_full(mask.shape, -torch.inf)
            out[:, :size] = keep_bits(x[:, :size], mask[:, :size])
            return out
        out = unfold(dev, state, dev.byte_penalty, width).to(x.dtype)
        out[:, :size] += x[:, :size]  # in place: fresh pages cost more than the sum
        return out

    def reached(self, dev: TorchTable, chosen: Chosen) -> AnyState:
        if not dev.is_trie:  # no token is EOS, which alone `after` follows to elsewhere
            state = chosen.states()
            go_on = self.after if run_in_kernels(dev, state, None) else follow_token
            return only_where(dev, chosen.alive, go_on(dev, state, chosen.tokens))
        if chosen.edges is not None:
            edges = chosen.edges()
        else:
            node = chosen.states().node
            edges = first_edge(dev, node) + rank_of(dev, node, chosen.tokens)
        return State(torch.where(chosen.alive, target_of(dev, edges), dev.dead))

    # ---------------------------------------------------------------------------------------------------- tokens

    def follow(
        self, dev: TorchTable, state: AnyState, tokens: Tensor, level: int | None, alive: Tensor | None
    ) -> AnyState:
        width = tokens.shape[1]
        if width > 1:
            state = type(state)(*(x.repeat_interleave(width, dim=0, output_size=tokens.numel()) for x in state))
        found = self.after(dev, state, tokens.reshape(-1))
        if alive is not None:
            found = only_where(dev, alive.view(-1), found)
        return type(found)(*(x.view(*tokens.shape, *x.shape[1:]) for x in found))

    def after(self, dev: TorchTable, state: AnyState, tokens: Tensor) -> AnyState:
        if dev.host is None and is_narrow(dev) and takes_triton(dev.row_start, tokens, *state):
            from .gpu import text_step  # Triton is slow to import

            return text_step.advance(dev, state, tokens)
        if dev.host is not None and compat.is_plain(tokens, *state):
            if not isinstance(state, NestedState):
                table = cast(TransitionTable, dev.host)  # an arena is nested
                return State(torch.from_numpy(table.walk(tokens.numpy()[:, None], state.node.numpy())))
            return follow_on_host(dev.host, state, tokens)
        if dev.is_trie:
            edge, found = find_edge(dev, state.node, tokens)
            reached: AnyState = State(torch.where(found, target_of(dev, edge), dev.dead))
        else:
            reached = follow_token(dev, state, tokens)
        if dev.eos is None:
            return reached
        ended = torch.where(state.node < dev.num_rows, dev.after_eos, state.node)
        node = torch.where((tokens == dev.eos) & self.accepting(dev, state), ended, reached.node)
        return reached._replace(node=node)  # EOS leads to the dead state so far, with nothing on its stack

    def first_offers(
        self, dev: TorchTable, state: AnyState, width: int, remaining: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        check_remaining_of(dev, state, remaining)
        edge, token, kept = first_edges(dev, state.node, width)
        if remaining is not None or not dev.is_trie:
            last = None if remaining is None else (remaining.long().clamp(0, UNREACHABLE) - 1)[:, None]
            target = torch.where(kept, target_of(dev, edge), dev.dead)
            kept = kept & stepping.may_follow(stacks, dev, target, None, last)
        return token, kept


class NoConstraint(Unconstrained):
    """No constraint, on the device of a model's cache."""

    def first_tokens(self, dev: None, cache: Cache, count: int, token: int) -> Tensor:
        return torch.full((count,), token, dtype=torch.int64, device=_device(cache))


def _device(cache: Cache) -> torch.device | None:
    """Return the device of the first tensor in a tree."""
    if isinstance(cache, Tensor):
        return cache.device
    leaves = cache.values() if isinstance(cache, dict) else cache if isinstance(cache, (list, tuple)) else ()
    return next((found for leaf in leaves if (found := _device(leaf)) is not None), None)
