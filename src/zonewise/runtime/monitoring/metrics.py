"""What the program counts, for Prometheus.

One registry of our own, so that two programs in one process (tests, the embedded cluster) do not
mix and nothing is counted by import. Names are upstream's where upstream has one (``workqueue_*``,
``leader_election_*``), else they start with ``zonewise_``.

*Pulled*: watches and queues keep plain counters that cost an addition; they are read at each
scrape, by one collector, and several watches of one resource and namespace become one series.
*Pushed*: results of reconciles, leadership and dropped events. Label children are made once, when a
controller registers, because looking them up costs four times as much as counting. There are no
labels by object or endpoint: the number of series is bounded by the program's parts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

from zonewise.runtime.controller.controller import Observe, Result

if TYPE_CHECKING:
    from zonewise.runtime.client.watch import WatchStats
    from zonewise.runtime.controller.queue import Queue, QueueStats

CONTENT_TYPE = CONTENT_TYPE_LATEST
SECONDS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100)
"""Bounds of duration histograms: half decades from a millisecond on."""


class Metrics:
    """The registry and everything this package measures in it."""

    def __init__(self, *, clock: Callable[[], float] | None = None) -> None:
        self.registry = registry = CollectorRegistry()
        self._sources = _Sources(clock)
        self.registry.register(self._sources)
        options: dict[str, Any] = {"buckets": SECONDS, "registry": registry}
        self._reconciles = Counter(
            "zonewise_reconcile",
            "Reconciles by result.",
            ["controller", "result"],
            registry=registry,
        )
        self._durations = Histogram(
            "workqueue_work_duration_seconds", "Duration of a reconcile.", ["name"], **options
        )
        self._waits = Histogram(
            "workqueue_queue_duration_seconds",
            "Time a key waited for a worker.",
            ["name"],
            **options,
        )
        self._leading = Gauge(
            "leader_election_master_status",
            "1 while this replica holds the lease.",
            ["name"],
            registry=registry,
        )
        self._admissions = Counter(
            "zonewise_admission",
            "Webhook calls by outcome.",
            ["path", "outcome"],
            registry=registry,
        )
        self._admission_seconds = Histogram(
            "zonewise_admission_duration_seconds", "Duration of webhook calls.", ["path"], **options
        )

    def watches(self, stats: Callable[[], Iterable[WatchStats]]) -> None:
        """Show watches; ``lambda: cache.stats`` is such a source."""
        self._sources.watches.append(stats)

    def queue(self, name: str, queue: Queue[Any]) -> None:
        """Show a queue, and from now on how long keys wait in it; do it before keys are added."""
        self._sources.queues[name] = queue.stats
        queue.waited = self._waits.labels(name).observe

    def controller(self, name: str) -> Observe:
        """What a ``Controller`` is to be given as ``observe``."""
        counts = {result: self._reconciles.labels(name, result) for result in get_args(Result)}
        duration = self._durations.labels(name)

        def observe(result: Result, seconds: float) -> None:
            counts[result].inc()
            duration.observe(seconds)

        return observe

    def leading(self, lease: str) -> Callable[[bool], None]:
        """What an ``Election`` is to be given as ``on_change``."""
        child = self._leading.labels(lease)
        child.set(0)
        return lambda leads: child.set(1 if leads else 0)

    def admission(self, path: str, outcome: str, seconds: float) -> None:
        """The ``observe`` of an ``AdmissionDispatcher``; paths are those it serves."""
        self._admissions.labels(path, outcome).inc()
        self._admission_seconds.labels(path).observe(seconds)

    def counts(
        self, name: str, help: str, label: str, read: Callable[[], Mapping[str, int]]
    ) -> None:
        """Export counters that another object keeps, one series per key."""
        self._sources.counts.append((name, help, label, read))

    def render(self) -> bytes:
        """Everything, as Prometheus reads it; ``CONTENT_TYPE`` is its type."""
        return generate_latest(self.registry)


class _Sources(Collector):
    """Reads the counters of other objects at each scrape."""

    def __init__(self, clock: Callable[[], float] | None) -> None:
        self.watches: list[Callable[[], Iterable[WatchStats]]] = []
        self.queues: dict[str, Callable[[], QueueStats]] = {}
        self.counts: list[tuple[str, str, str, Callable[[], Mapping[str, int]]]] = []
        self._clock = clock

    def describe(self) -> Iterator[Metric]:
        return iter(())

    def collect(self) -> Iterator[Metric]:
        yield from self._watches()
        yield from self._queues()
        for name, help, label, read in self.counts:
            family = CounterMetricFamily(name, help, labels=[label])
            for key, value in read().items():
                family.add_metric([key], value)
            yield family

    def _watches(self) -> Iterator[Metric]:
        now = self._clock() if self._clock is not None else asyncio.get_running_loop().time()
        groups: dict[tuple[str, str], list[WatchStats]] = {}
        for source in self.watches:
            for stats in source():
                groups.setdefault((stats.resource, stats.namespace), []).append(stats)
        for name, help, kind, read in _WATCH_SERIES:
            labels = ["resource", "namespace"]
            family = kind(f"zonewise_watch_{name}", help, labels=labels)
            for key, group in groups.items():
                family.add_metric(key, read(group, now))
            yield family

    def _queues(self) -> Iterator[Metric]:
        read = {name: stats() for name, stats in self.queues.items()}
        for name, help, kind, value in _QUEUE_SERIES:
            family = kind(f"workqueue_{name}", help, labels=["name"])
            for queue, stats in read.items():
                family.add_metric([queue], value(stats))
            yield family


_Kind = type[CounterMetricFamily] | type[GaugeMetricFamily]
_WatchRead = Callable[[list["WatchStats"], float], float]


def _total(count: str) -> _WatchRead:
    return lambda group, _: sum(getattr(stats, count) for stats in group)


_WATCH_SERIES: tuple[tuple[str, str, _Kind, _WatchRead], ...] = (
    (
        "last_byte_age_seconds",
        "Seconds since the last byte was received on the watch.",
        GaugeMetricFamily,
        lambda group, now: max(
            stats.age(now) if stats.started or stats.last_byte else 0.0 for stats in group
        ),
    ),
    ("connected", "Open watch streams.", GaugeMetricFamily, _total("connected")),
    (
        "synced",
        "1 when the first list is complete.",
        GaugeMetricFamily,
        lambda group, _: min(stats.synced for stats in group),
    ),
    ("objects", "Objects in the store.", GaugeMetricFamily, _total("objects")),
    ("events", "Changes received.", CounterMetricFamily, _total("events")),
    ("bytes", "Bytes received.", CounterMetricFamily, _total("bytes")),
    ("relists", "How often all objects were listed again.", CounterMetricFamily, _total("relists")),
    ("restarts", "How often the watch was reconnected.", CounterMetricFamily, _total("restarts")),
    ("too_old", "How often the server answered 410 Gone.", CounterMetricFamily, _total("too_old")),
    ("failures", "Failed lists and watches.", CounterMetricFamily, _total("failures")),
)

_QUEUE_SERIES: tuple[tuple[str, str, _Kind, Callable[[QueueStats], float]], ...] = (
    ("depth", "Keys waiting for a worker.", GaugeMetricFamily, lambda stats: stats.ready),
    ("delayed", "Keys waiting for a delay to end.", GaugeMetricFamily, lambda stats: stats.delayed),
    ("active", "Keys being processed.", GaugeMetricFamily, lambda stats: stats.active),
    ("adds", "Keys added.", CounterMetricFamily, lambda stats: stats.added),
    ("retries", "Keys whose reconcile failed.", CounterMetricFamily, lambda stats: stats.retried),
)
