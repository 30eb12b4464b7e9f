"""The server's metrics for Prometheus."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ..compile.cache.cache import CacheStats

_FAST = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
SLOW = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)


class Now(NamedTuple):
    """What a service holds at one moment."""

    waiting: int  # sequences that have no row yet
    running: int  # sequences that have a row
    rows: int
    compiling: int  # constraints
    ready: bool
    cache: CacheStats


class Watched(Protocol):
    """What `Metrics` reads of a service."""

    def now(self) -> Now:
        """Return what it holds."""


class ServerMetrics:
    """What every server counts, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "maskwright_requests", "Requests that have ended, by how", ["endpoint", "outcome"], registry=self.registry
        )

    def report(self, moment: Callable[[], Iterator[Metric]]) -> None:
        """Report what is so at the moment as well, at each request for the metrics."""
        self.registry.register(_Moment(moment))


class _Moment(Collector):
    """What is so at the moment of a request."""

    def __init__(self, moment: Callable[[], Iterator[Metric]]) -> None:
        self._moment = moment

    def collect(self) -> Iterator[Metric]:
        return self._moment()


class Metrics(ServerMetrics):
    """Counters and times of a server of texts."""

    def __init__(self) -> None:
        super().__init__()
        own = self.registry
        self.prompt_tokens = Counter("maskwright_prompt_tokens", "Tokens of prompts", registry=own)
        self.tokens = Counter("maskwright_generated_tokens", "Tokens written, forced ones included", registry=own)
        self.forced = Counter("maskwright_forced_tokens", "Tokens written without asking the model", registry=own)
        self.compile_seconds = Histogram(
            "maskwright_compile_seconds", "From a constraint to its table, the cache's answers included", registry=own,
            buckets=SLOW,
        )  # fmt: skip
        self.first_token_seconds = Histogram(
            "maskwright_time_to_first_token_seconds", "From a request to its first token", registry=own, buckets=SLOW
        )
        self.step_seconds = Histogram(
            "maskwright_step_seconds", "One step of the engine, for all rows", registry=own, buckets=_FAST
        )

    def watch(self, service: Watched) -> None:
        """Report what a service holds as well."""
        self.report(lambda: _held(service.now()))


def _held(now: Now) -> Iterator[Metric]:
    """Return what a service holds."""
    stats = now.cache
    for name, value, what in (
        ("queue_length", now.waiting, "Sequences taken on that have no row yet"),
        ("running", now.running, "Sequences that have a row"),
        ("rows", now.rows, "Rows there are"),
        ("compiling", now.compiling, "Constraints that are being compiled or looked up"),
        ("ready", int(now.ready), "Whether requests are taken"),
        ("cache_entries", stats.entries, "Tables and errors in the cache"),
        ("cache_bytes", stats.bytes, "Bytes of the cache"),
    ):
        yield GaugeMetricFamily(f"maskwright_{name}", what, value=value)
    asked = CounterMetricFamily("maskwright_cache_requests", "Answers of the cache, by origin", labels=["origin"])
    for origin, count in (
        ("memory", stats.hits), ("waited", stats.waits), ("disk", stats.disk_hits),
        ("compiled", stats.compilations),
    ):  # fmt: skip
        asked.add_metric([origin], count)
    yield asked
    yield CounterMetricFamily(
        "maskwright_cache_failures", "Constraints that could not be compiled", value=stats.failures
    )
    yield CounterMetricFamily("maskwright_cache_evictions", "Tables and errors forgotten", value=stats.evictions)
