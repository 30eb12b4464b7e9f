"""The demo from beginning to end: data, training, both searches, cold start, report."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from .amazon import amazon_dataset
from .dataset import Catalogue, Dataset, Ints, TestRows
from .evaluation import Found, allowed_set, compare, search_both
from .model import ModelConfig, Transformer
from .report import ColdStart, Example, Report
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
    cold_shares: tuple[float, ...] = (0.02, 0.05)

    def __post_init__(self) -> None:
        if self.beams < 10:
            raise ValueError(f"beams is {self.beams}, but recall@10 needs at least 10")


def run(
    data: Path | None,
    out: Path,
    seed: int,
    *,
    config: DemoConfig | None = None,
    progress: Callable[[str], None] = lambda line: None,
) -> Report:
    """Train a small generative-retrieval model and return how both searches do on it.

    Writes `demo.json` and `demo.png` to the directory `out`. data: a directory in the Amazon layout, or None for the synthetic catalogue. progress: called with one
    line of text before each part.

    Raises DataError if a file of the data is missing or malformed.
    """
    config = config or DemoConfig()
    began = time.perf_counter()
    progress("making a catalogue and histories" if data is None else f"reading {data}")
    dataset = synthetic_dataset(config.synthetic, seed) if data is None else amazon_dataset(data)
    catalogue = dataset.catalogue
    everything = np.arange(len(catalogue.sids))

    network, seconds = _train(dataset.train, catalogue, config, seed, progress)
    rows = _sample(dataset.test, config.test_rows, seed)
    progress(f"searching for {len(rows)} next items")
    searches = _search(network, catalogue, rows, everything, config)
    targets = catalogue.sids[rows.targets]
    next_item = compare(*searches, targets, _distinct(catalogue.sids))
    example = _example(dataset, rows, *searches)

    cold_start = []
    for share in config.cold_shares:
        cold = catalogue.newest(share)
        kept = dataset.without(cold)
        rows = _sample(dataset.rows_with_target(cold), config.test_rows, seed)
        comparison = None
        if len(rows):
            network, taken = _train(
                kept, catalogue, config, seed, progress, f" without the newest {share:.0%} of items"
            )
            seconds += taken
            progress(f"searching for {len(rows)} cold items")
            searches = _search(network, catalogue, rows, cold, config)
            comparison = compare(*searches, catalogue.sids[rows.targets], _distinct(catalogue.sids[cold]))
        cold_start.append(ColdStart(share, len(cold), len(dataset.train) - len(kept), comparison))

    report = Report(
        data=dataset.name,
        seed=seed,
        items=len(catalogue.sids),
        ids=_distinct(catalogue.sids),
        levels=catalogue.length,
        codes=catalogue.codes,
        sequences=len(dataset.train),
        beams=config.beams,
        batch=config.batch,
        parameters=sum(parameter.numel() for parameter in network.parameters()),
        training_seconds=seconds,
        seconds=time.perf_counter() - began,
        next_item=next_item,
        cold_start=tuple(cold_start),
        example=example,
    )
    progress(f"writing {out / 'demo.json'} and {out / 'demo.png'}")
    report.save(out)
    return report


def _train(
    sequences: Sequence[Ints],
    catalogue: Catalogue,
    config: DemoConfig,
    seed: int,
    progress: Callable[[str], None],
    detail: str = "",
) -> tuple[Transformer, float]:
    """Return a trained model and the seconds it took."""
    progress(f"training on {len(sequences)} histories{detail}")
    began = time.perf_counter()
    network = train(catalogue, sequences, config.model, config.training, seed)
    return network, time.perf_counter() - began


def _sample(rows: TestRows, most: int, seed: int) -> TestRows:
    """Return at most `most` of the rows, drawn without replacement."""
    return rows.take(np.sort(np.random.default_rng(seed).permutation(len(rows))[:most]))


def _search(
    network: Transformer, catalogue: Catalogue, rows: TestRows, items: Ints, config: DemoConfig
) -> tuple[Found, Found]:
    """Return both searches, unconstrained first, with the IDs of `items` as the allowed set."""
    table = allowed_set(catalogue, items, network.vocab_size)
    return search_both(network, catalogue, rows, table, beams=config.beams, batch=config.batch)


def _distinct(sids: Ints) -> int:
    return len(np.unique(sids, axis=0))


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
