"""The metrics of a server of items, for Prometheus."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

from prometheus_client import Counter, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric

from ..metrics import SLOW, ServerMetrics

_COUNTS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_SHARES = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
_BEAMS = (16, 64, 256, 1024, 4096, 16384)


class ItemsNow(NamedTuple):
    """What a service holds at one moment."""

    waiting: int  # requests
    running: int
    ready: bool
    catalogues: list[dict[str, Any]]  # the state of each


class Watched(Protocol):
    """What `ItemMetrics` reads of a service."""

    def now(self) -> ItemsNow:
        """Return what it holds."""


class ItemMetrics(ServerMetrics):
    """Counters and times of a server of items."""

    def __init__(self) -> None:
        super().__init__()
        own = self.registry
        self._seconds = Histogram("maskwright_search_seconds", "One batch of searches", registry=own, buckets=SLOW)
        self._batch = Histogram("maskwright_search_requests", "Requests of one batch", registry=own, buckets=_COUNTS)
        self._beams = Histogram("maskwright_search_beams", "Beams of one batch", registry=own, buckets=_BEAMS)
        self._updates = Counter(
            "maskwright_item_updates", "Items put and deleted, all of them in a log", ["kind"], registry=own
        )

        self._shadowed = Counter(
            "maskwright_shadow_requests", "Requests repeated with the shadow", ["outcome"], registry=own
        )
        self._same = Histogram(
            "maskwright_shadow_same", "Share of an answer's items that the shadow finds too", registry=own,
            buckets=_SHARES,
        )  # fmt: skip

    def searched(self, seconds: float, requests: int, beams: int) -> None:
        """Count a batch."""
        self._seconds.observe(seconds)
        self._batch.observe(requests)
        self._beams.observe(beams)

    def updated(self, put: int, deleted: int) -> None:
        """Count items that were put and deleted."""
        self._updates.labels("put").inc(put)
        self._updates.labels("deleted").inc(deleted)

    def shadowed(self, outcome: str, same: float | None = None) -> None:
        """Count a request for the shadow. same: the share of its answer's items that were found too."""
        self._shadowed.labels(outcome).inc()
        if same is not None:
            self._same.observe(same)

    def watch(self, service: Watched) -> None:
        """Report what a service holds as well."""
        self.report(lambda: _held(service.now()))


def _held(now: ItemsNow) -> Iterator[Metric]:
    """Return what a service holds."""
    for name, value, what in (
        ("queue_length", now.waiting, "Requests that wait for their search"),
        ("running", now.running, "Requests that are searched"),
        ("ready", int(now.ready), "Whether requests are taken"),
    ):
        yield GaugeMetricFamily(f"maskwright_{name}", what, value=value)
    for name, what in (
        ("items", "Items of a catalogue"), ("epoch", "Updates that a catalogue has taken"),
        ("added", "Sequences beside those of the file"), ("capacity", "Sequences that may be added"),
    ):  # fmt: skip
        family = GaugeMetricFamily(f"maskwright_catalogue_{name}", what, labels=["catalogue"])
        for each in now.catalogues:
            family.add_metric([each["name"]], each[name])
        yield family
    faults = GaugeMetricFamily("maskwright_catalogue_fault", "Whether a log cannot be read", labels=["catalogue"])
    for each in now.catalogues:
        faults.add_metric([each["name"]], int(each["fault"] is not None))
    yield faults
