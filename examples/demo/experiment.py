"""The demo from beginning to end: data, training, both searches, cold start, a live catalogue, report."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from .amazon import amazon_dataset
from .dataset import Catalogue, Dataset, Ints, TestRows
from .evaluation import Comparison, Found, allowed_set, compare, search_both
from .living import Living, live_searches
from .model import ModelConfig, Transformer
from .report import ColdStart, Example, Report
from .served import calls
from .synthetic import SyntheticConfig, synthetic_dataset
from .training import TrainingConfig, train


@dataclass(frozen=True)
class DemoConfig:
    """Sizes of the demo; batch and beams as in the published cold-start experiment (STATIC, section 6)."""

    synthetic: SyntheticConfig = field(default_factory=SyntheticConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    beams: int = 20
    batch: int = 16
    test_rows: int = 2000
    live_rows: int = 160
    cold_shares: tuple[float, ...] = (0.02, 0.05)

    def __post_init__(self) -> None:
        if self.beams < 10:
            raise ValueError(f"beams is {self.beams}, but recall@10 needs at least 10")


@contextmanager
def _one_thread() -> Iterator[None]:
    """Let torch use one thread.

    Tensors this small keep threads waiting for each other. Measured on 2 cores: a training step takes 65 ms
    with one thread and 44 with two, but 100 and 1,500 as soon as other programs want the cores as well.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@_one_thread()
def run(
    data: Path | None,
    out: Path,
    seed: int,
    *,
    config: DemoConfig | None = None,
    progress: Callable[[str], None] = lambda line: None,
) -> Report:
    """Train a small generative-retrieval model and return how both searches do on it.

    Writes `demo.json` and `demo.png` to the directory `out`. data: a directory in the Amazon layout, or None
    for the synthetic catalogue. progress: called with one line of text before each part.

    Raises DataError if a file of the data is missing or malformed, ValueError for a negative seed.
    """
    if seed < 0:
        raise ValueError(f"seed is {seed}: choose one that is not negative")
    config = config or DemoConfig()
    began = time.perf_counter()
    progress("making a catalogue and histories" if data is None else f"reading {data}")
    dataset = synthetic_dataset(config.synthetic, seed) if data is None else amazon_dataset(data)
    catalogue = dataset.catalogue
    training_seconds = 0.0

    def trained(sequences: Sequence[Ints], on: str) -> Transformer:
        nonlocal training_seconds
        progress(f"training on {len(sequences):,} {on}")
        start = time.perf_counter()
        network = train(catalogue, sequences, config.model, config.training, seed)
        training_seconds += time.perf_counter() - start
        return network

    full = trained(dataset.train, "histories")
    rows = _sample(dataset.test, config.test_rows, seed)
    progress(f"searching for {len(rows):,} next items")
    searches, next_item = _search(full, catalogue, rows, np.arange(len(catalogue.sids)), config)
    example = _example(dataset, rows, *searches)
    progress("serving the catalogue over HTTP")
    served = calls(full, catalogue, rows.histories[0], config.beams)

    cold_start: list[ColdStart] = []
    living: Living | None = None
    for share in config.cold_shares:
        cold = catalogue.newest(share)
        kept = dataset.without(cold)
        rows = _sample(dataset.rows_with_target(cold), config.test_rows, seed)
        comparison = None
        if len(rows):
            network = full  # which has not seen the items either if no history was dropped
            if len(kept) < len(dataset.train):
                network = trained(kept, f"histories without the newest {share:.0%} of items")
            progress(f"searching for {len(rows):,} cold items")
            _, comparison = _search(network, catalogue, rows, cold, config)
            if living is None:
                rows = _sample(rows, config.live_rows, seed)
                progress(f"searching a live catalogue for {len(rows):,} of them")
                sizes = {"beams": config.beams, "batch": config.batch}
                living = live_searches(network, catalogue, rows, cold, seed=seed, **sizes)
        cold_start.append(ColdStart(share, len(cold), len(dataset.train) - len(kept), comparison))

    report = Report(
        data=dataset.name,
        seed=seed,
        items=len(catalogue.sids),
        ids=next_item.ids,
        levels=catalogue.length,
        codes=catalogue.codes,
        histories=len(dataset.train),
        beams=config.beams,
        batch=config.batch,
        parameters=sum(parameter.numel() for parameter in full.parameters()),
        training_seconds=training_seconds,
        seconds=time.perf_counter() - began,
        next_item=next_item,
        cold_start=tuple(cold_start),
        living=living,
        example=example,
        served=served,
    )
    progress(f"writing {out / 'demo.json'} and {out / 'demo.png'}")
    report.save(out)
    return report


def _sample(rows: TestRows, most: int, seed: int) -> TestRows:
    """Return at most `most` of the rows, drawn without replacement."""
    return rows.take(np.sort(np.random.default_rng(seed).permutation(len(rows))[:most]))


def _search(
    network: Transformer, catalogue: Catalogue, rows: TestRows, items: Ints, config: DemoConfig
) -> tuple[tuple[Found, Found], Comparison]:
    """Return both searches, unconstrained first, and compare them; the IDs of `items` are allowed."""
    table = allowed_set(catalogue, items, network.vocab_size)
    found = search_both(network, catalogue, rows, table, beams=config.beams, batch=config.batch)
    ids = len(np.unique(catalogue.sids[items], axis=0))
    return found, compare(*found, catalogue.sids[rows.targets], ids)


def _example(dataset: Dataset, rows: TestRows, unconstrained: Found, constrained: Found) -> Example:
    """Return the first row whose three best unconstrained IDs include one that no item has, else row 0."""
    invented = (unconstrained.returned & ~unconstrained.exists)[:, :3].any(axis=1)
    row = int(invented.argmax())
    titles = dataset.catalogue.titles
    of_id: dict[tuple[int, ...], str] = {}
    for sid, title in zip(dataset.catalogue.sids.tolist(), titles, strict=True):
        of_id.setdefault(tuple(sid), title)

    def best(found: Found) -> tuple[tuple[str, str | None], ...]:
        sids = found.sids[row, :3][found.returned[row, :3]].tolist()
        return tuple((_spell(sid), of_id.get(tuple(sid))) for sid in sids)

    return Example(
        history=tuple(titles[item] for item in rows.histories[row][-3:]),
        target=titles[rows.targets[row]],
        unconstrained=best(unconstrained),
        constrained=best(constrained),
    )


def _spell(sid: Sequence[int]) -> str:
    return "".join(f"<{chr(ord('a') + level)}_{code}>" for level, code in enumerate(sid))
