"""What a proxy counts, under kube-proxy's names where kube-proxy has one.

A write covers both families at once, so each is counted for both. Ours are how many ports of
Services are routed by which rule; per Service that is at ``/routes``, not in labels, because a
series per Service and node is more than a large cluster's Prometheus bears.
"""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Callable
from contextlib import suppress

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from zonewise.api.errors import ParseError
from zonewise.api.values import times
from zonewise.proxy.observer import Change, Observer, Sync
from zonewise.proxy.summary import RoutesSummary

FAMILIES = ("IPv4", "IPv6")
_SECONDS = tuple(0.001 * 2**i for i in range(15))
_PROGRAMMING = (
    *(0.25, 0.5, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 15, 20, 30, 45, 60),
    *(120, 180, 240, 300),
)


class ProxyMetrics(Observer):
    """Everything a proxy counts."""

    def __init__(
        self, registry: CollectorRegistry, summary: RoutesSummary, *, clock: Callable[[], float]
    ) -> None:
        self._clock = clock
        self._registry = registry
        self._sync = self._histogram("sync_proxy_rules", "How long a write of rules took.")
        self._full = self._histogram("sync_full_proxy_rules", "How long a full write took.")
        self._partial = self._histogram(
            "sync_partial_proxy_rules", "How long a write of changes took."
        )
        self._programming = Histogram(
            "kubeproxy_network_programming_duration_seconds",
            "From the change of a pod or Service to the kernel.",
            ["ip_family"],
            buckets=_PROGRAMMING,
            registry=registry,
        )
        self._last = self._gauge("last_timestamp_seconds", "When rules were last written.")
        self._queued = self._gauge(
            "last_queued_timestamp_seconds", "When a change was last received."
        )
        self._pending = {
            kind: self._gauge(f"{kind}_changes_pending", f"Changes of {kind}s not written yet.")
            for kind in ("endpoint", "service")
        }
        self._changes = {
            kind: self._counter(f"sync_proxy_rules_{kind}_changes", f"Changes of {kind}s so far.")
            for kind in ("endpoint", "service")
        }
        self._failures = self._counter(
            "sync_proxy_rules_nftables_sync_failures", "Writes that failed."
        )
        self._cleanups = self._counter(
            "sync_proxy_rules_nftables_cleanup_failures", "Unused chains that could not be removed."
        )
        self._deleted = self._counter(
            "conntrack_reconciler_deleted_entries", "Stale UDP flows that were removed."
        )
        self._reconciled = self._histogram(
            "conntrack_reconciler_sync", "How long the search for stale UDP flows took."
        )
        self._requests = {
            path: Counter(
                f"kubeproxy_proxy_{path}", f"Answers of /{path}.", ["code"], registry=registry
            )
            for path in ("healthz", "livez")
        }
        for family in FAMILIES:
            for counter in (self._failures, self._cleanups, self._deleted):
                counter.labels(family)
        registry.register(_Routes(summary))

    def _histogram(self, name: str, help: str) -> Histogram:
        return Histogram(
            f"kubeproxy_{name}_duration_seconds",
            help,
            ["ip_family"],
            buckets=_SECONDS,
            registry=self._registry,
        )

    def _gauge(self, name: str, help: str) -> Gauge:
        full = f"kubeproxy_sync_proxy_rules_{name}"
        return Gauge(full, help, ["ip_family"], registry=self._registry)

    def _counter(self, name: str, help: str) -> Counter:
        return Counter(f"kubeproxy_{name}", help, ["ip_family"], registry=self._registry)

    def object_changed(self, change: Change) -> None:
        for family in FAMILIES:
            self._changes[change].labels(family).inc()
            self._pending[change].labels(family).inc()
            self._queued.labels(family).set(self._clock())

    def synced(self, sync: Sync) -> None:
        for family in FAMILIES:
            self._sync.labels(family).observe(sync.seconds)
            (self._full if sync.full else self._partial).labels(family).observe(sync.seconds)
            self._last.labels(family).set(self._clock())
            for gauge in self._pending.values():
                gauge.labels(family).set(0)
            for text in sync.triggers:
                with suppress(ParseError):
                    passed = max(0.0, self._clock() - times.parse_duration(text))
                    self._programming.labels(family).observe(passed)

    def failed(self, error: Exception) -> None:
        for family in FAMILIES:
            self._failures.labels(family).inc()

    def not_swept(self, error: Exception) -> None:
        for family in FAMILIES:
            self._cleanups.labels(family).inc()

    def flows_removed(self, family: str, count: int, seconds: float) -> None:
        """Count the stale flows of a family that were removed, and the time that took."""
        self._reconciled.labels(family).observe(seconds)
        self._deleted.labels(family).inc(count)

    def count_request(self, path: str, code: int) -> None:
        """Count a request for health."""
        self._requests[path].labels(str(code)).inc()


class _Routes(Collector):
    """How many Services are routed how, counted at each scrape."""

    def __init__(self, summary: RoutesSummary) -> None:
        self._summary = summary

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> list[Metric]:
        rules = GaugeMetricFamily(
            "zonewise_proxy_service_ports",
            "Ports of Services by the rule that chose their endpoints here.",
            labels=["rule"],
        )
        tally = Tally(rule for several in self._summary.rules.values() for rule in several)
        for rule, count in sorted(tally.items()):
            rules.add_metric([rule], count)
        unlocal = GaugeMetricFamily(
            "kubeproxy_sync_proxy_rules_no_local_endpoints_total",
            "Ports of Services with a Local policy, and endpoints elsewhere but none here.",
            labels=["ip_family", "traffic_policy"],
        )
        missing = Tally(pair for several in self._summary.unlocal.values() for pair in several)
        for family in FAMILIES:
            for policy in ("internal", "external"):
                unlocal.add_metric([family, policy], missing[family, policy])
        return [rules, unlocal]
