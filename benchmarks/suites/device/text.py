"""Steps over a table of text: masks of 64 rows of a JSON schema with 131,072 tokens, and following a token."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

import maskwright as mw
from maskwright.runtime import jax_ops, numpy_ops, torch_ops

from ..device_compiled.steps import MANY_ROWS, SCHEMA, vocabulary
from .checks import check_masked, check_masks, check_state
from .roofline import Timed

WRITTEN = 32
"""Rows of the batch have written 0 to 31 tokens."""


class TextSteps:
    """Rows of one table, each some tokens into its text, and what the specification says of them."""

    def __init__(self) -> None:
        self.table = mw.compile_json_schema(SCHEMA, vocabulary(), lazy=False)
        self.host = numpy_ops.to_device(self.table)
        self.state, self.tokens = _walked(self.table)
        self.logits = np.random.default_rng(0).standard_normal((MANY_ROWS, self.table.vocab_size), dtype=np.float32)

    @cached_property
    def masks(self) -> np.ndarray[Any, Any]:
        """What numpy allows: packed, (rows, words)."""
        return numpy_ops.bitmask(self.host, self.state)

    def of_torch(self, device: torch.device) -> list[Timed]:
        """Return torch's steps, checked."""
        dev = torch_ops.to_device(self.table, device)
        state = type(self.state)(*(torch.tensor(part, device=device) for part in self.state))
        logits, tokens = torch.tensor(self.logits, device=device), torch.tensor(self.tokens, device=device)
        steps: dict[str, Callable[[], Any]] = {
            "bitmask": lambda: torch_ops.bitmask(dev, state),
            "mask_logits": lambda: torch_ops.mask_logits(dev, logits, state),
            "advance": lambda: torch_ops.advance(dev, state, tokens),
        }
        return self._checked("torch eager", steps)

    def of_jax(self) -> list[Timed]:
        """Return JAX's steps, checked; on the device that JAX takes unasked."""
        dev = jax_ops.to_device(self.table, on_demand=False)
        state = type(self.state)(*map(jnp.asarray, self.state))
        logits, tokens = jnp.asarray(self.logits), jnp.asarray(self.tokens)
        bitmask, mask_logits = jax.jit(jax_ops.bitmask), jax.jit(jax_ops.mask_logits)
        advance = jax.jit(jax_ops.advance)
        steps: dict[str, Callable[[], Any]] = {
            "bitmask": lambda: bitmask(dev, state),
            "mask_logits": lambda: mask_logits(dev, logits, state),
            "advance": lambda: advance(dev, state, tokens),
        }
        return self._checked("jax.jit", steps)

    def _checked(self, method: str, steps: dict[str, Callable[[], Any]]) -> list[Timed]:
        check_masks(f"{method}: bitmask", steps["bitmask"](), self.masks)
        check_masked(f"{method}: mask_logits", steps["mask_logits"](), self.logits, self.masks)
        check_state(f"{method}: advance", steps["advance"](), numpy_ops.advance(self.host, self.state, self.tokens))
        words, state = self.masks.nbytes, sum(part.nbytes for part in self.state)
        must_move = {
            "bitmask": 2 * words + state,
            "mask_logits": 2 * self.logits.nbytes + words + state,
            "advance": 2 * state + self.tokens.nbytes,
        }
        names = {name: f"nested, {name}, {MANY_ROWS} rows" for name in steps}
        return [
            Timed(names[name], method, run, must_move[name], names[name] if method == "jax.jit" else "")
            for name, run in steps.items()
        ]


def _walked(table: Any) -> tuple[Any, np.ndarray[Any, Any]]:
    """Return states of numpy in which rows have written up to 31 tokens, and a token for each to go on with."""
    rng = np.random.default_rng(0)
    dev = torch_ops.to_device(table)
    state = torch_ops.start(dev, MANY_ROWS)
    for written in range(WRITTEN):
        goes_on = torch.arange(MANY_ROWS) % WRITTEN > written
        after = torch_ops.advance(dev, state, _some_allowed(dev, state, rng))
        state = type(state)(
            *(
                torch.where(goes_on.reshape(-1, *[1] * (one.ndim - 1)), one, two)
                for one, two in zip(after, state, strict=True)
            )
        )
    return type(state)(*(part.numpy() for part in state)), _some_allowed(dev, state, rng).numpy()


def _some_allowed(dev: Any, state: Any, rng: np.random.Generator) -> torch.Tensor:
    masks = np.unpackbits(torch_ops.bitmask(dev, state).numpy().view(np.uint8), axis=1, bitorder="little")
    return torch.tensor([rng.choice(np.flatnonzero(row)) for row in masks])
