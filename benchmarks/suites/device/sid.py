"""Searches over semantic IDs, 2 inputs with 70 beams each: by maskwright, by dense-plus-CSR tables and by neither."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np
import torch

import maskwright as mw
from maskwright.runtime import jax_ops, torch_ops

from ...baselines import dense_csr
from ...beams import (
    JaxUnconstrained,
    Method,
    TorchUnconstrained,
    decode_jax,
    decode_torch,
    for_search,
    random_logits,
    search_jax,
    search_torch,
)
from .checks import check_order, check_search, wanted
from .roofline import Timed

BATCH, BEAMS, LENGTH, VOCAB = 2, 70, 8, 2048
NAMES = {10**6: "SID 10^6, search", 10**7: "SID 10^7, search"}
"""Names of these searches in the record of compiled code, by the number of IDs."""


def must_move() -> int:
    """Return the bytes that a search cannot avoid: the float32 logits of each level once; of the first, one beam's."""
    return 4 * VOCAB * BATCH * (1 + BEAMS * (LENGTH - 1))


class Searches:
    """Searches over one random set of IDs, all with the same logits."""

    def __init__(self, count: int) -> None:
        sids = np.random.default_rng(0).integers(0, VOCAB, (count, LENGTH), dtype=np.uint16)
        self.count, self.table, self.dense = count, mw.compile_sids(sids, VOCAB), dense_csr.build(sids, VOCAB)
        self.logits = random_logits(BATCH, BEAMS, VOCAB, LENGTH)
        self.repeated = for_search(self.logits, BEAMS)
        self.expected = wanted(self.table, self.repeated, BATCH, BEAMS)

    def of_torch(self, device: torch.device, repeats: int) -> tuple[list[Timed], int]:
        """Return torch's searches, checked, and how many steps chose what they chose before (`check_order`)."""
        for_methods = [torch.tensor(x, device=device) for x in self.logits]
        steps = [torch.tensor(x, device=device) for x in self.repeated]
        dev = torch_ops.to_device(self.table, device)
        methods: dict[str, Method] = {
            "unconstrained": TorchUnconstrained(),
            "dense+CSR": dense_csr.to_torch(self.dense, device),
            "dense+CSR, children only": dense_csr.to_torch(self.dense, device, project=False),
        }
        runs: dict[str, Callable[[], Any]] = {"maskwright": lambda: search_torch(dev, steps, BATCH, BEAMS)}
        for name, method in methods.items():
            runs[name] = partial(decode_torch, method, for_methods, BATCH, BEAMS)
        timed: list[Timed] = []
        for name, run in runs.items():
            timed.append(self._timed(f"torch eager: {name}", run))
            timed.append(self._timed(f"torch.compile: {name}", torch.compile(run, fullgraph=True)))
            if device.type == "cuda":
                timed.append(self._timed(f"CUDA graph: {name}", cuda_graph(run)))
        for each in timed:
            if each.method.endswith(": maskwright"):
                check_search(each.method, each.run(), self.expected)
        return timed, check_order(dev, steps, BATCH, BEAMS, repeats)

    def of_jax(self) -> list[Timed]:
        """Return JAX's searches, checked; on the device that JAX takes unasked."""
        dev = jax_ops.to_device(self.table)
        steps, logits = _arrays(self.repeated), _arrays(self.logits)
        check_search("jax.jit", search_jax(dev, steps, BATCH, BEAMS), self.expected)
        runs: dict[str, Callable[[], Any]] = {"maskwright": lambda: search_jax(dev, steps, BATCH, BEAMS)}
        for name, method in {"unconstrained": JaxUnconstrained(), "dense+CSR": dense_csr.to_jax(self.dense)}.items():
            runs[name] = partial(decode_jax, method, logits, BATCH, BEAMS)
        return [self._timed(f"jax.jit: {name}", run) for name, run in runs.items()]

    def _timed(self, method: str, run: Callable[[], Any]) -> Timed:
        compiled = NAMES.get(self.count, "") if method == "jax.jit: maskwright" else ""
        return Timed(f"SID, {self.count:,} IDs, a step", method, run, must_move(), compiled, LENGTH)


def cuda_graph(run: Callable[[], Any]) -> Callable[[], Any]:
    """Return a function that replays one run and returns what it wrote; capturing fails if it waits for the host."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        wrote = run()

    def replay() -> Any:
        graph.replay()
        return wrote

    return replay


def _arrays(logits: Sequence[np.ndarray[Any, Any]]) -> list[Any]:
    return [jnp.asarray(x) for x in logits]
