"""A step of beam search over a trie on a CUDA device, in one launch.

A program a beam reads the children of the beam's state, the logits of those alone, and its row of logits once for the
sum of its softmax. The last program of a batch element to be done picks the best continuations over all beams and
follows them. Where no state branches, each program follows its own beam, and that is all.

Imported only where Triton is installed.
"""

from __future__ import annotations

import threading

import torch
import triton
from torch import Tensor

from ...device_table import Selection, State
from ..table import TorchTable
from .launch import launch
from .sid_kernels import Edges, Kept, Rounds, Rows, Scratch, Sizes, branch, go_on

MOST_BEAMS = 1024
MOST_TOKENS = 262_144
_BLOCK = 4096  # logits that a program reads at once
PIECE = 2048  # most children of one beam in one program: with 4,096, ptxas spills registers
# most continuations in a program's registers at once. With 8,192 a program takes all registers of a multiprocessor
JOINED = 4096

_local = threading.local()


def takes(dev: TorchTable, logits: Tensor, node: Tensor, scores: Tensor, beams: int) -> bool:
    """Return whether `select` takes these: at most 1,024 beams and 262,144 columns, float32 scores, one device."""
    return (
        scores.numel() > 0
        and 0 < beams <= MOST_BEAMS
        and scores.shape[1] <= MOST_BEAMS
        and logits.shape[1] <= MOST_TOKENS
        and scores.dtype == torch.float32
        and node.dtype == torch.int64
        and scores.device == node.device == logits.device == dev.row_start.device
    )


def select(
    dev: TorchTable, logits: Tensor, node: Tensor, scores: Tensor, beams: int, level: int, renormalize: bool
) -> Selection:
    """Return the `beams` best continuations over all beams of each batch element, as `torch_ops.select` does.

    dev: a trie. logits: (B * m, V') float32, float16 or bfloat16, with rows in one piece. node: (B * m,) int64.
    scores: (B, m) float32. beams: M. Of equal scores the first beam's come first, and of one beam the smallest token:
    that is the order of `numpy_ops`. `takes` says what fits.

    One launch, and no other operation of torch but allocations: scratch memory is 8 bytes a continuation that is
    compared, B * m * min(width, M) of them or some more. If m * min(width, M) exceeds 4,096, teams of beams join their
    continuations in rounds, within the same launch. If a state may have more than 2,048 children, several programs
    share a beam, and each reads the row.
    """
    batch, m = scores.shape
    width = dev.level(level).width
    shape = (batch, beams)
    places = torch.empty((3, *shape), dtype=torch.int64, device=scores.device).unbind()
    kept = Kept(torch.empty(shape, dtype=torch.float32, device=scores.device), *places)
    table = Edges(dev.row_start, dev.edge_token, dev.edge_target, dev.accepting.view(torch.uint8))
    rows = Rows(node.contiguous(), scores.contiguous())
    columns, stride = logits.shape[1], logits.stride(0)
    block = min(triton.next_power_of_2(columns), _BLOCK)
    eos = -1 if dev.eos is None else dev.eos
    numbers = (columns, dev.vocab_size, eos, dev.num_rows, dev.num_edges, dev.num_states, width, m, beams)
    sizes = Sizes(*numbers, int(renormalize))
    if width == 1 and m == beams:
        launch(go_on, (batch * m,), logits, stride, rows, table, kept, sizes, BLOCK=block)
        return Selection(kept.scores, None, kept.tokens, State(kept.states.view(-1)))
    piece = min(triton.next_power_of_2(width), PIECE)
    rounds, most = plan(m, width, beams, piece)
    entries = torch.empty((batch, rounds.entries_stride), dtype=torch.int64, device=scores.device)
    scratch = Scratch(entries, _counters(batch * rounds.counters_stride, scores.device))
    launch(
        branch, (batch * m * rounds.pieces,), logits, stride, rows, table, kept, scratch, sizes, rounds,
        BLOCK=block, PIECE=piece, MOST=most, KEPT=triton.next_power_of_2(beams), num_warps=warps(piece, most),
    )  # fmt: skip
    return Selection(kept.scores, kept.parents, kept.tokens, State(kept.states.view(-1)))


def plan(m: int, width: int, beams: int, piece: int) -> tuple[Rounds, int]:
    """Return how the continuations of an element come together, and how many entries a team joins, a power of two.

    m: beams that come in. width: most children of a state. beams: M. piece: children in one program.
    """
    pieces = -(-width // piece)
    length = min(width, piece, beams)
    lists = m * pieces
    teams = -(-lists // (JOINED // length))
    first, later = -(-lists // teams), JOINED // beams
    entries, counters, left = m + lists * length, 0, lists
    while counters == 0 or left > 1:
        left = -(-left // (later if counters else first))
        entries += left * beams
        counters += left
    most = max(first * length, beams, min(teams, later) * beams)
    return Rounds(pieces, length, first, later, entries, counters), triton.next_power_of_2(most)


def warps(piece: int, most: int) -> int:
    """Return how many warps a program has: enough for registers to hold what it compares, without spills."""
    return 8 if max(piece, most) > 1024 else 4


def _counters(count: int, device: torch.device) -> Tensor:
    """Return at least `count` counters that are 0 when the next kernel of the current stream begins.

    A step sets its counters back, so the next step in the same stream takes them again. Steps that may run at the same
    time must not share any: each thread has its own for each stream. A step that is captured in a CUDA graph gets new
    ones, which the graph sets to 0 itself, since graphs that were captured in one stream may run in several.
    """
    if device.type != "cuda" or torch.cuda.is_current_stream_capturing():
        return torch.zeros(count, dtype=torch.int32, device=device)
    held: dict[tuple[int, int], Tensor] = _local.__dict__.setdefault("counters", {})
    key = (device.index, torch.cuda.current_stream(device).cuda_stream)
    found = held.get(key)
    if found is None or found.shape[0] < count:
        found = held[key] = torch.zeros(count, dtype=torch.int32, device=device)
    return found
