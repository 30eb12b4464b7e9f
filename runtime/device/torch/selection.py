"""The best continuations of rows and of beams."""

from __future__ import annotations

import torch
from torch import Tensor

from ..device_table import AnyState, Candidates, Selection, State, check_logits, check_rows
from ..dispatch import by_kind
from ..end_in_order import with_end
from . import arrays, compat
from .arrays import gather, keep_bits, log_softmax, top_k, top_of_beams, widen
from .edges import first_edge, first_edges, rank_of, target_of, token_of
from .masks import mask_logits, run_in_kernels, unfold
from .memory import takes_logits, takes_triton
from .states import accepting, advance, check_state_of, follow_token, map_state, only_where
from .table import TorchTable


@by_kind(arrays)
def candidates(dev: TorchTable, logits: Tensor, state: AnyState, width: int, level: int | None = None) -> Candidates:
    """Return the `width` best allowed continuations of each row, EOS among them, best first.

    Of several ends it is `eos` that is among them, with the probability of all ends together.
    Scores are log-probabilities under the full softmax. Unused slots score -inf and lead to the dead state. `level`
    is a depth at which all the states must be: only as many edges as a state there can have are read, and where a
    state is of another depth some of its tokens are left out.
    """
    check_logits(dev.vocab_size, logits.shape)
    check_rows(logits.shape[0], state.node.shape)
    log_probs = log_softmax(logits)
    shape = None if level is None else dev.level(level)
    if shape is None or shape.dense:
        scores = mask_logits(dev, log_probs, state)
        token = None
    else:
        _, token, allowed = first_edges(dev, state.node, shape.width)
        scores = torch.where(allowed, log_probs.gather(1, token.clamp(max=dev.vocab_size - 1)), -torch.inf)
        if dev.eos is not None:
            last = torch.where(accepting(dev, state), log_probs[:, dev.eos], -torch.inf)
            scores, token = with_end(arrays, scores, token, last, dev.eos)
    best, at = top_k(torch.where(scores.isnan(), -torch.inf, scores), width)
    tokens = at if token is None else token.gather(1, at)
    alive = best > -torch.inf
    tokens = torch.where(alive, tokens, 0)
    rows = map_state(lambda x: x.repeat_interleave(width, dim=0, output_size=tokens.numel()), state)
    reached = only_where(dev, alive.view(-1), advance(dev, rows, tokens.reshape(-1)))
    return Candidates(best, tokens, map_state(lambda x: x.view(*tokens.shape, *x.shape[1:]), reached))


@by_kind(arrays)
def select(
    dev: TorchTable | None,
    logits: Tensor,
    state: AnyState,
    scores: Tensor,
    beams: int,
    level: int,
    renormalise: bool = False,
) -> Selection:
    """Return the `beams` best continuations over all beams of each batch element, EOS aside.

    logits: (B * m, V). state: (B * m,), all at depth `level`. scores: (B, m) totals so far, to which log-probabilities
    under the full softmax are added; renormalise: under that of the allowed tokens alone. A row of logits that has
    no distribution (NaN, +inf, all -inf) has no continuations. dev None: no constraint.

    On CUDA one Triton kernel does all of it for a trie, within the limits of `gpu.sid_step.takes`.
    """
    batch, m = scores.shape
    if dev is None:
        return _select_unconstrained(logits, state, scores, beams)
    check_logits(dev.vocab_size, logits.shape)
    check_rows(logits.shape[0], state.node.shape)
    check_state_of(dev, state)
    if dev.is_trie and _has_one_launch(dev, logits, state.node, scores):
        from .gpu import sid_step

        if sid_step.takes(dev, logits, state.node, scores, beams):
            return sid_step.select(dev, logits, state.node, scores, beams, level, renormalise)
    log_probs = widen(logits) if renormalise else log_softmax(logits)
    shape = dev.level(level)
    # all states of level 0 are the root, whose edges need no look-up and no ranking in its mask
    dense = shape.dense and (level > 0 or not dev.is_trie)
    in_kernels = not dev.is_trie and run_in_kernels(dev, state, None)
    if dense and in_kernels:
        x = mask_logits(dev, log_probs, state)
        if dev.eos is not None:
            x[:, dev.eos] = -torch.inf
    elif dense:
        tails = dev.sparse_width if not dev.is_trie else 1 if shape.tails else 0
        if renormalise:  # of logits that are not normalised, some that are not allowed may be NaN or inf: no sums
            mask = unfold(dev, state, dev.byte_mask, tails)
            x = log_probs.new_full(mask.shape, -torch.inf)
            x[:, : dev.vocab_size] = keep_bits(log_probs[:, : dev.vocab_size], mask[:, : dev.vocab_size])
        else:
            x = unfold(dev, state, dev.byte_penalty, tails).to(log_probs.dtype)
            x[:, : dev.vocab_size] += log_probs[:, : dev.vocab_size]  # in place: fresh pages cost more than the sum
    else:
        if level == 0:
            edge = torch.arange(shape.width, device=log_probs.device)
            token = token_of(dev, edge)
            edge, token = edge.expand(batch * m, -1), token.expand(batch * m, -1)
            x = log_probs.gather(1, token)
            scores = torch.where(state.node.view(batch, m) == 0, scores, -torch.inf)
        else:
            if shape.rows:
                edge, token, allowed = first_edges(dev, state.node, shape.width)
            else:
                edge = (state.node + (dev.num_edges - dev.num_rows))[:, None]
                token = token_of(dev, edge)
                allowed = token < dev.vocab_size
            x = log_probs.gather(1, token.clamp(max=dev.vocab_size - 1))
            x = torch.where(allowed, x, -torch.inf)
    width = x.shape[1]
    if renormalise:
        mass = torch.logsumexp(x, dim=-1)
        if dev.eos is not None:
            last = torch.where(accepting(dev, state), log_probs[:, dev.eos], -torch.inf)
            mass = torch.logaddexp(mass, last)
        x = x - mass[:, None]
    parents = None
    if m == beams and shape.width == 1 and not dense:  # nothing branches: each beam goes on in its place
        best = (scores + x.view(batch, m)).nan_to_num_(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf)
        tokens, edges = token.reshape(batch, m), edge.reshape(-1)
    else:
        best, at = top_of_beams(x.view(batch, m, width), scores, beams)
        parents = at // width
        if dense:
            tokens = (at - parents * width).clamp(max=dev.vocab_size - 1)
            state = gather(state, (parents + m * torch.arange(batch, device=parents.device)[:, None]).view(-1))
            if dev.is_trie:
                edges = first_edge(dev, state.node) + rank_of(dev, state.node, tokens.view(-1))
        else:
            tokens = token.reshape(batch, -1).gather(1, at)
            edges = edge.reshape(batch, -1).gather(1, at).view(-1)
    alive = best > -torch.inf
    if dev.is_trie:
        reached: AnyState = State(target_of(dev, edges))
    else:  # no token that is kept is EOS, which alone `advance` follows to elsewhere
        reached = (advance if in_kernels else follow_token)(dev, state, tokens.view(-1))
    return Selection(best, parents, torch.where(alive, tokens, 0), only_where(dev, alive.view(-1), reached))


def _has_one_launch(dev: TorchTable, *arrays: Tensor) -> bool:
    """Return whether Triton is there for a step over a trie, and logits (B * m, V), states and scores are plain."""
    logits, node, scores = arrays
    return (
        takes_logits(logits)
        and takes_triton(dev.edge_token, logits, node, scores)
        and compat.is_as_stored(scores)
        and not compat.wants_derivative(scores)
    )


def _select_unconstrained(logits: Tensor, state: AnyState, scores: Tensor, beams: int) -> Selection:
    """Return what `select` does without a table: all tokens are allowed, and both softmaxes are one."""
    (batch, m), width = scores.shape, logits.shape[1]
    best, at = top_of_beams(log_softmax(logits).view(batch, m, width), scores, beams)
    alive = best > -torch.inf
    unused = state.node.new_zeros(batch * beams)
    return Selection(best, at // width, torch.where(alive, at % width, 0), State(unused))


@by_kind(arrays)
def end_scores(dev: TorchTable, logits: Tensor, state: AnyState, renormalise: bool = False) -> Tensor:
    """Return the log-probability of EOS (B,) where a sequence may end, -inf elsewhere; `renormalise` as in `select`.

    Of several ends it is the probability that the model ends by any of them.
    """
    check_rows(logits.shape[0], state.node.shape)
    last = log_softmax(mask_logits(dev, logits, state) if renormalise else logits)[:, dev.eos]
    return torch.where(accepting(dev, state) & (last <= torch.inf), last, -torch.inf)
