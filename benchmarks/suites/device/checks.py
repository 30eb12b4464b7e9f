"""What is checked on a device before anything is timed there: results of numpy, and the order of memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from maskwright.runtime import numpy_ops, torch_ops
from maskwright.runtime.decode import beam_search

TOLERANCE = 1e-4  # of scores, which add up over levels


def wanted(table: Any, logits: Sequence[Any], batch: int, beams: int) -> Any:
    """Return what the specification finds in a search over given logits, one array (B * M, V) a level."""
    return beam_search(
        lambda tokens, cache, t: (logits[t], cache),
        None,
        numpy_ops.to_device(table),
        ops=numpy_ops,
        batch=batch,
        beams=beams,
        max_tokens=len(logits),
    )


def check_search(name: str, found: Any, expected: Any) -> None:
    """Compare a search with that of the specification. Raises SystemExit that names the first beam that differs.

    Beams whose scores are as close as rounding may change their order: scores are compared, then tokens where no
    neighbour is as close.
    """
    scores, tokens = _host(found.scores), _host(found.tokens)
    at = np.argwhere(~np.isclose(scores, expected.scores, rtol=TOLERANCE, atol=TOLERANCE))
    if at.size:
        row, beam = at[0]
        raise SystemExit(
            f"{name}: beam {beam} of input {row} scores {scores[row, beam]}, numpy {expected.scores[row, beam]}"
        )
    gap = np.diff(expected.scores, axis=1, prepend=np.inf, append=-np.inf)
    alone = (np.abs(gap[:, :-1]) > 2 * TOLERANCE) & (np.abs(gap[:, 1:]) > 2 * TOLERANCE)
    at = np.argwhere(alone & (tokens != expected.tokens).any(axis=-1))
    if at.size:
        row, beam = at[0]
        raise SystemExit(
            f"{name}: beam {beam} of input {row} is {tokens[row, beam].tolist()}, "
            f"numpy {expected.tokens[row, beam].tolist()}"
        )


def check_masks(name: str, found: Any, expected: np.ndarray[Any, Any]) -> None:
    """Compare packed masks (n, W). Raises SystemExit that names the first row that differs."""
    _refuse_difference(name, "the mask", _host(found).view(np.uint32) != expected)


def check_masked(name: str, found: Any, logits: np.ndarray[Any, Any], masks: np.ndarray[Any, Any]) -> None:
    """Compare masked logits (n, V) with logits where packed masks allow them. Raises SystemExit as `check_masks`."""
    allowed = np.unpackbits(masks.view(np.uint8), axis=1, count=logits.shape[1], bitorder="little").astype(bool)
    _refuse_difference(name, "what is masked", _host(found) != np.where(allowed, logits, -np.inf))


def check_state(name: str, found: Any, expected: Any) -> None:
    """Compare states, part by part. Raises SystemExit as `check_masks`."""
    for field, one, two in zip(expected._fields, found, expected, strict=True):
        _refuse_difference(name, field, (_host(one) != two).reshape(len(two), -1))


def _refuse_difference(name: str, what: str, differs: np.ndarray[Any, Any]) -> None:
    rows = np.flatnonzero(differs.any(axis=-1))
    if rows.size:
        raise SystemExit(f"{name}: {what} of row {rows[0]} is not that of numpy")


def check_order(dev: Any, logits: Sequence[Any], batch: int, beams: int, repeats: int) -> int:
    """Select over and over, on two streams at once where there is CUDA; return how many steps were compared.

    In a fused step the last program of an input reads what the others wrote. A read that came too early would give
    other beams in some of so many steps. Each is compared with the first, bit by bit. Raises SystemExit.
    """
    streams: list[Any] = [torch.cuda.Stream(), torch.cuda.Stream()] if logits[0].is_cuda else [None]
    state: Any = torch_ops.start(dev, batch)
    scores = logits[0].new_zeros((batch, 1))
    compared = 0
    for level, x in enumerate(logits):
        x = x[:: x.shape[0] // batch] if level == 0 else x
        first = torch_ops.select(dev, x, state, scores, beams, level)
        if first.parents is not None:
            _synchronise(x)
            others = [torch.zeros((), dtype=torch.bool, device=x.device) for _ in streams]
            _synchronise(x)
            for at in range(repeats):
                which = at % len(streams)
                with torch.cuda.stream(streams[which]):  # what a stream found stays with it
                    again = torch_ops.select(dev, x, state, scores, beams, level)
                    for one, two in zip(_arrays(first), _arrays(again), strict=True):
                        others[which] |= (one != two).any()
                compared += 1
            _synchronise(x)
            if any(map(bool, others)):
                raise SystemExit(f"level {level}: one of {repeats:,} steps over the same logits chose other beams")
        state, scores = first.state, first.scores
    return compared


def _arrays(selection: Any) -> list[Any]:
    return [selection.scores, selection.parents, selection.tokens, *selection.state]


def _synchronise(x: Any) -> None:
    if x.is_cuda:
        torch.cuda.synchronize()


def _host(x: Any) -> np.ndarray[Any, Any]:
    return np.asarray(x.cpu() if isinstance(x, torch.Tensor) else x)
