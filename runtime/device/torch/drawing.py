"""Drawing of tokens on the host, in one pass of a kernel over the logits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from ....table.states import NestedState, configuration_out_of_range
from ...host import draw as host_draw
from ...host import mask_jobs
from ..checks import check_logits, check_rows
from ..device_live import DeviceLive
from ..device_matrix import DeviceMatrix
from ..device_table import AnyState
from ..on_demand import OnDemandTable
from . import compat
from .masks import check_remaining_of, on_host
from .memory import addresses, in_memory, is_in_rows, logits_at, torch_team
from .operations import bitmask
from .states import check_state_of, map_state
from .table import TorchTable


def draw(
    dev: TorchTable | OnDemandTable | DeviceMatrix,
    logits: Tensor,
    state: AnyState,
    uniforms: Callable[[], Tensor],
    filters: tuple[float, int | None, float | None, float | None],
    remaining: Tensor | None,
    mass: bool,
) -> tuple[Tensor | None, ...] | None:
    """Return tokens, log-probabilities, log-mass and which are valid, as `decode.sample` does, in one pass of a kernel.

    Logits on the host alone are drawn from in this way, and none is written; elsewhere, while tracing, of other types
    and for a matrix None is returned: then it takes array operations. uniforms() returns (n, 2).
    """
    if isinstance(dev, DeviceMatrix | DeviceLive) or not can_draw(
        logits, *state, *(() if remaining is None else (remaining,))
    ):
        return None
    numbers = None if filters[0] == 0 else uniforms()
    if numbers is not None and not (compat.is_plain(numbers) and numbers.is_cpu):
        return None
    asked = host_draw.Filters.of([filters])
    composes = isinstance(dev, TorchTable) and not dev.other_ends  # a kernel that does as it draws knows of one end
    if composes and isinstance(state, NestedState) and on_host(cast(TorchTable, dev), state, remaining):
        drawn = draw_nested(cast(TorchTable, dev), logits, state, numbers, asked, remaining, mass)
    else:
        drawn = draw_packed(bitmask(cast(TorchTable, dev), state, remaining), logits, numbers, asked, mass)
    tokens, log_probs, log_mass, valid = map(torch.from_numpy, drawn)
    return tokens, log_probs, log_mass if mass else None, valid


def draw_nested(
    dev: TorchTable,
    logits: Tensor,
    state: NestedState,
    uniforms: Tensor | None,
    filters: host_draw.Filters,
    remaining: Tensor | None,
    mass: bool,
) -> host_draw.Drawn:
    """Draw from what configurations of a nested table allow, each of whose masks is composed when it is needed."""
    assert dev.host is not None
    check_logits(dev.vocab_size, logits.shape)
    check_rows(logits.shape[0], state.node.shape)
    check_state_of(dev, state)
    check_remaining_of(dev, state, remaining)
    given = in_memory(state)  # names keep what is converted: kernels are handed addresses
    room = None if remaining is None else remaining.long().clamp(min=0).contiguous()
    where = logits_at(logits)
    order = mask_jobs.order_of(dev.host, addresses(given), 0 if room is None else room.data_ptr(), where)
    drawn = _drawn(order, logits, uniforms, filters, mass, dev.host.arrays.edges.token.dtype)
    if isinstance(drawn, int):
        raise configuration_out_of_range(dev.host, map_state(Tensor.numpy, state), drawn)
    return drawn


def can_draw(logits: Tensor, *others: Tensor) -> bool:
    """Return whether a kernel may draw from logits (n, V') where they are, given others."""
    return (
        compat.is_plain(logits, *others)
        and str(logits.dtype).removeprefix("torch.") in host_draw.FLOATS
        and all(x.is_cpu for x in (logits, *others))
        and is_in_rows(logits)
    )


def draw_packed(
    masks: Tensor, logits: Tensor, uniforms: Tensor | None, filters: host_draw.Filters, mass: bool = True
) -> host_draw.Drawn:
    """Return a token for each row of logits (n, V'), of which `can_draw` holds, among what masks (n, words) allow.

    uniforms: (n, 2) in [0, 1), None where the best is taken of all. mass: whether log P(allowed) is wanted.
    """
    drawn = _drawn(masks.contiguous().numpy().view(np.uint32), logits, uniforms, filters, mass)
    assert not isinstance(drawn, int), "there is no table to stray from"
    return drawn


def _drawn(masks: Any, logits: Tensor, uniforms: Tensor | None, *options: Any) -> host_draw.Drawn | int:
    numbers = np.zeros((logits.shape[0], 2)) if uniforms is None else uniforms.detach().double().contiguous().numpy()
    kind, where = str(logits.dtype).removeprefix("torch."), logits_at(logits)
    filters, mass, *tokens = options
    team = torch_team()
    return host_draw.draw(masks, where, kind, filters, numbers, mass, torch.get_num_threads(), team, *tokens)
