"""A catalogue that changes while the demo's model searches it: filters, items sold out, items added after training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from maskwright.compile.catalogue import Catalogue as ItemCatalogue
from maskwright.runtime import torch_ops
from maskwright.runtime.decode import beam_search
from maskwright.table.snapshot import Snapshot

from .dataset import Catalogue, Ints, TestRows
from .model import START, Transformer, blocks_of, tokens_of

_IN_STOCK = 0.5  # of the items, drawn for each user


@dataclass(frozen=True)
class Living:
    """What searches of a live catalogue returned, over test rows whose next item is one that was added.

    in_stock        share of returned items that the user's own filter keeps: searched without it, and with it
    sold_out        items that were sold out between the steps of running searches: the best of each user
    still_running   of the running searches, the share that returned what they began with
    sold_out_after  how many of the sold-out items the next searches returned
    added           items that were added, which the model was not trained on
    recall_at_10    on these: before they were added, after, and after under a filter that keeps the new ones
    """

    rows: int
    in_stock: tuple[float, float]
    sold_out: int
    still_running: float
    sold_out_after: int
    added: int
    recall_at_10: tuple[float, float, float]


def live_without(catalogue: Catalogue, items: Ints, vocab_size: int) -> ItemCatalogue:
    """Return a catalogue that lives of all items but some; ids are the numbers of items."""
    there = np.setdiff1d(np.arange(len(catalogue.sids)), items)
    offset = int(tokens_of(np.zeros(1, np.int64))[0])
    made = ItemCatalogue.of(catalogue.sids[there], there, vocab_size, offsets=offset, kind="matrix")
    return made.live(capacity=max(64, 2 * len(items)))


def live_searches(
    network: Transformer, catalogue: Catalogue, rows: TestRows, new: Ints, *, beams: int, batch: int, seed: int
) -> Living:
    """Search a live catalogue for every row: under filters, while items are sold out, and once `new` ones are added."""
    live, random = live_without(catalogue, new, network.vocab_size), np.random.default_rng(seed)
    dev: Any = torch_ops.to_device(live.table)
    kept_share: list[tuple[float, float]] = []
    same, gone, after = 0, set(), 0
    hits: tuple[list[bool], list[bool], list[bool]] = ([], [], [])

    def search(part: TestRows, dev: Any, then: Any = None) -> Any:
        blocks, counts = blocks_of(part.histories, catalogue.sids, network.config.history)
        step, cache = network.decoder(blocks, counts, beams)

        def stepped(tokens: torch.Tensor, cache: Any, t: int) -> Any:
            if t == 1 and then is not None:
                then()
            return step(tokens, cache, t)

        options: dict[str, Any] = {"ops": torch_ops, "batch": len(part), "beams": beams, "start_token": START}
        with torch.no_grad():
            return beam_search(stepped, cache, dev, max_tokens=catalogue.length, **options)

    parts = [rows.take(np.arange(begin, min(begin + batch, len(rows)))) for begin in range(0, len(rows), batch)]
    for part in parts:  # each user has a filter of their own, and the best items are sold out meanwhile
        now = live.publish()
        dev = torch_ops.with_snapshot(dev, _snapshot(now))
        keeps = [random.random(len(now)) < _IN_STOCK for _ in range(len(part))]
        filters: Any = [now.filter(keep) for keep in keeps]
        free, filtered = search(part, dev), search(part, torch_ops.with_filters(dev, filters))
        kept_share.append(
            (_share(now.items(free), keeps, now), _share(now.items(filtered, filters=filters), keeps, now))
        )
        hits[0].extend(_hits(now.items(free, 10), part))
        best = sorted({ids[0] for ids in now.items(free, 1)})

        def sell_out(best: list[Any] = best) -> None:
            live.delete(best)

        running = search(part, dev, then=sell_out)
        same += int((running.tokens == free.tokens).all(dim=(1, 2)).sum())
        gone.update(best)
        now = live.publish()
        dev = torch_ops.with_snapshot(dev, _snapshot(now))
        after += sum(item in gone for ids in now.items(search(part, dev)) for item in ids)
    live.insert(catalogue.sids[new], new)
    now = live.publish()
    dev = torch_ops.with_snapshot(dev, _snapshot(now))
    arrivals = now.filter(np.arange(len(now)) >= len(now) - len(new))  # the new ones have the last rows
    shelf = torch_ops.with_filters(dev, [arrivals])
    for part in parts:
        hits[1].extend(_hits(now.items(search(part, dev), 10), part))
        hits[2].extend(_hits(now.items(search(part, shelf), 10, filters=arrivals), part))
    free_share, filtered_share = np.mean(kept_share, axis=0)
    return Living(
        rows=len(rows),
        in_stock=(float(free_share), float(filtered_share)),
        sold_out=len(gone),
        still_running=same / len(rows),
        sold_out_after=after,
        added=len(new),
        recall_at_10=(float(np.mean(hits[0])), float(np.mean(hits[1])), float(np.mean(hits[2]))),
    )


def _snapshot(now: ItemCatalogue) -> Snapshot:
    """Return what a live catalogue published for devices."""
    assert isinstance(now.table, Snapshot)
    return now.table


def _share(found: list[list[Any]], keeps: list[NDArray[np.bool_]], now: ItemCatalogue) -> float:
    """Return the share of returned items that each user's filter keeps."""
    kept = [set(now.ids.at(np.flatnonzero(keep))) for keep in keeps]
    return float(np.mean([item in own for ids, own in zip(found, kept, strict=True) for item in ids]))


def _hits(found: list[list[Any]], part: TestRows) -> list[bool]:
    """Return whether the next item of each row was returned."""
    return [target in ids for ids, target in zip(found, part.targets.tolist(), strict=True)]
