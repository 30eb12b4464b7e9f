"""The engines, each with a batch in which every row has a constraint of its own."""

from __future__ import annotations

from typing import Any

import torch

import maskwright as mw
from maskwright.runtime import torch_ops
from maskwright.runtime.decode import sample
from maskwright.runtime.device.torch import drawing
from maskwright.runtime.host.draw import Filters

from .times import ROWS

EVERY, UNIFORMS = torch.full((ROWS, 4096), -1, dtype=torch.int32), torch.rand(ROWS, 2)  # made outside of what is timed


class Ours:
    """An arena on the CPU: `mask_logits_` and `advance`, one call each for the whole batch."""

    def __init__(self, tables: list[Any], vocab: mw.Vocabulary) -> None:
        arena = mw.Arena(vocab, mw.Capacity(states=1 << 21))
        self.handles = [arena.add(table) for table in tables]
        self.dev = torch_ops.to_device(arena)
        self.reset()

    def reset(self) -> None:
        self.state = torch_ops.start(torch_ops.with_start_states(self.dev, self.handles), len(self.handles))

    def fill(self) -> Any:
        return torch_ops.bitmask(self.dev, self.state)

    def mask(self, logits: Any) -> None:
        torch_ops.mask_logits_(self.dev, logits, self.state)

    def draw(self, logits: torch.Tensor, temperature: float) -> Any:
        return sample(self.dev, logits, self.state, None, ops=torch_ops, temperature=temperature, log_mass=False)

    def commit(self, tokens: torch.Tensor) -> None:
        self.state = torch_ops.advance(self.dev, self.state, tokens)


class Llguidance:
    """llguidance: its executor fills all masks in parallel, its own kernel applies them."""

    def __init__(self, engine: Any, matchers: list[Any]) -> None:
        import llguidance
        import llguidance.torch

        self.compiled, self.executor = matchers, llguidance.LLExecutor(num_threads=torch.get_num_threads())
        self.lib: Any = llguidance.torch
        self.bits = llguidance.torch.allocate_token_bitmask(len(matchers), engine.tokenizer.vocab_size)
        self.reset()

    def reset(self) -> None:
        self.matchers = [matcher.deep_copy() for matcher in self.compiled]

    def fill(self) -> Any:
        rows = [(matcher, i) for i, matcher in enumerate(self.matchers)]
        self.lib.fill_next_token_bitmask_par(self.executor, rows, self.bits)
        return self.bits

    def mask(self, logits: Any) -> None:
        self.fill()
        self.lib.apply_token_bitmask_inplace(logits, self.bits)

    def draw(self, logits: torch.Tensor, temperature: float) -> Any:
        self.mask(logits)
        return draw_any(logits, temperature)

    def commit(self, tokens: torch.Tensor) -> None:
        for matcher, token in zip(self.matchers, tokens.tolist(), strict=True):
            matcher.consume_token(token)


class Xgrammar:
    """xgrammar: a batch matcher fills all masks, its own kernel applies them."""

    def __init__(self, engine: Any, compiled: list[Any], size: int) -> None:
        import xgrammar

        self.lib: Any = xgrammar
        self.compiled, self.batch = compiled, xgrammar.BatchGrammarMatcher(torch.get_num_threads())
        self.bits = xgrammar.allocate_token_bitmask(len(compiled), size)
        self.reset()

    def reset(self) -> None:
        self.matchers = [self.lib.GrammarMatcher(each) for each in self.compiled]

    def fill(self) -> Any:
        self.batch.batch_fill_next_token_bitmask(self.matchers, self.bits)
        return self.bits

    def mask(self, logits: Any) -> None:
        self.fill()
        self.lib.apply_token_bitmask_inplace(logits, self.bits)

    def draw(self, logits: torch.Tensor, temperature: float) -> Any:
        self.mask(logits)
        return draw_any(logits, temperature)

    def commit(self, tokens: torch.Tensor) -> None:
        self.batch.batch_accept_token(self.matchers, tokens.tolist())


def draw_any(logits: torch.Tensor, temperature: float) -> Any:
    """Return tokens drawn from all that are not -inf, by the kernel that draws from masks: the quickest there is."""
    filters = Filters.of([(temperature, None, None, None)])
    return drawing.draw_packed(EVERY[:, : logits.shape[1] // 32], logits, UNIFORMS, filters, mass=False)
