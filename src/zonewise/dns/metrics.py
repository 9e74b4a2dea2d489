"""What the name server counts, under the names CoreDNS has for it.

Everything is read at each scrape; the packet loop increments one counter per answer, and nothing
else. So dashboards made for CoreDNS show this server too. What has no counterpart there starts with
``zonewise_dns_``.

A request's duration is that of its share of a wake-up of the packet loop: all of its time is ours.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from zonewise.dns.cluster_cache import SIZES, AnswerKind
from zonewise.dns.outside.forward import Forwarder
from zonewise.dns.responder import Responder
from zonewise.dns.tcp import StreamServer
from zonewise.dns.udp import PacketServer

SECONDS = tuple(0.000_01 * 2**power for power in range(18))
_RCODES = {0: "NOERROR", 1: "FORMERR", 2: "SERVFAIL", 3: "NXDOMAIN", 4: "NOTIMP", 5: "REFUSED"}


class Durations:
    """How long packets took, by upper bound."""

    def __init__(self) -> None:
        self.counts = [0] * (len(SECONDS) + 1)
        self.total = 0.0

    def __call__(self, packets: int, seconds: float) -> None:
        self.counts[bisect_left(SECONDS, seconds / packets)] += packets
        self.total += seconds


class DnsMetrics(Collector):
    """Reads a running server. ``family`` is "1" for IPv4 and "2" for IPv6, as CoreDNS has it."""

    def __init__(
        self,
        *,
        server: str,
        family: str,
        responder: Responder,
        packets: PacketServer,
        streams: StreamServer,
        durations: Durations,
        forwarder: Forwarder | None,
    ) -> None:
        self._server = server
        self._family = family
        self._responder = responder
        self._packets = packets
        self._streams = streams
        self._durations = durations
        self._forwarder = forwarder

    def describe(self) -> Iterator[Metric]:
        """Nothing: the metrics are known at a scrape only."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """All series."""
        counts = self._responder.cache.counts()
        counts.update(self._responder.counts)
        yield from self._requests(counts)
        yield from self._sizes(counts)
        yield self._times()
        yield from self._own_series()
        if self._forwarder is not None:
            yield from self._forwarded(self._forwarder)

    def _requests(self, counts: Counter[AnswerKind]) -> Iterator[Metric]:
        requests: Counter[tuple[str, ...]] = Counter()
        responses: Counter[tuple[str, ...]] = Counter()
        secure: Counter[tuple[str, ...]] = Counter()
        for kind, count in counts.items():
            base = (self._server, kind.zone, "")
            proto = "tcp" if kind.stream else "udp"
            requests[(*base, proto, self._family, kind.type)] += count
            plugin = "forward" if kind.zone == "." else "kubernetes"
            responses[(*base, _RCODES.get(kind.rcode, str(kind.rcode)), plugin)] += count
            if kind.do:
                secure[base] += count
        base_labels = ("server", "zone", "view")
        for name, help, labels, values in (
            ("requests", "DNS requests.", (*base_labels, "proto", "family", "type"), requests),
            ("responses", "DNS responses by code.", (*base_labels, "rcode", "plugin"), responses),
            ("do_requests", "DNS requests with the DO bit.", base_labels, secure),
        ):
            family = CounterMetricFamily(f"coredns_dns_{name}", help, labels=labels)
            for label_values, value in values.items():
                family.add_metric(label_values, value)
            yield family

    def _sizes(self, counts: Counter[AnswerKind]) -> Iterator[Metric]:
        labels = ("server", "zone", "view", "proto")
        for name, help in (("request", "Size of questions."), ("response", "Size of answers.")):
            family = HistogramMetricFamily(f"coredns_dns_{name}_size_bytes", help, labels=labels)
            series: dict[tuple[str, ...], Counter[float]] = {}
            for kind, count in counts.items():
                proto = "tcp" if kind.stream else "udp"
                size = kind.question_size if name == "request" else kind.answer_size
                key = (self._server, kind.zone, "", proto)
                series.setdefault(key, Counter())[size] += count
            for label_values, sizes in series.items():
                numbers = [sizes[bound] for bound in SIZES]
                family.add_metric(label_values, _buckets(SIZES, numbers), None)
            yield family

    def _times(self) -> Metric:
        family = HistogramMetricFamily(
            "coredns_dns_request_duration_seconds",
            "Time to answer a packet.",
            labels=("server", "zone", "view"),
        )
        durations = self._durations
        *numbers, more = durations.counts
        buckets = [*_buckets(SECONDS, numbers)[:-1], ("+Inf", float(sum(numbers) + more))]
        family.add_metric((self._server, ".", ""), buckets, durations.total)
        return family

    def _own_series(self) -> Iterator[Metric]:
        cache, cluster = self._responder.cache, self._responder.cluster
        for name, help, value in (
            ("kept_answers", "Prepared answers.", len(cache.table) + len(cache.sections)),
            ("kept_bytes", "Approximate memory of prepared answers.", cache.size),
            ("locators", "Pods whose location is known.", len(cluster.locators)),
            ("label_maps", "Distinct sets of node labels.", len(cluster.locators.interner)),
            ("connections", "Open TCP connections.", self._streams.connections),
        ):
            yield GaugeMetricFamily(f"zonewise_dns_{name}", help, value=value)
        for name, help, value in (
            ("kept_dropped", "Prepared answers invalidated by a change.", cache.dropped),
            ("kept_evicted", "Prepared answers evicted to make room.", cache.evicted),
            ("unsent", "Answers that had to wait for the socket.", self._packets.unsent),
            (
                "connections_refused",
                "TCP connections refused above the limit.",
                self._streams.refused,
            ),
        ):
            yield CounterMetricFamily(f"zonewise_dns_{name}", help, value=value)

    def _forwarded(self, forwarder: Forwarder) -> Iterator[Metric]:
        cache, server = forwarder.cache, self._server
        hits = CounterMetricFamily(
            "coredns_cache_hits", "Cache hits.", labels=("server", "type", "zones", "view")
        )
        hits.add_metric((server, "success", ".", ""), cache.hits)
        hits.add_metric((server, "denial", ".", ""), cache.denial_hits)
        yield hits
        for name, help, value in (
            ("misses", "Cache misses.", cache.misses),
            ("served_stale", "Expired answers served.", cache.served_stale),
        ):
            labels = ("server", "zones", "view")
            family = CounterMetricFamily(f"coredns_cache_{name}", help, labels=labels)
            family.add_metric((server, ".", ""), value)
            yield family
        entries = GaugeMetricFamily(
            "coredns_cache_entries", "Answers in the cache.", labels=("server", "zones", "view")
        )
        entries.add_metric((server, ".", ""), len(cache))
        yield entries
        yield CounterMetricFamily(
            "coredns_forward_max_concurrent_rejects",
            "Questions refused above the limit of concurrent forwards.",
            value=forwarder.rejected,
        )
        yield CounterMetricFamily(
            "zonewise_dns_forwarded", "Questions forwarded.", value=forwarder.forwarded
        )
        yield CounterMetricFamily(
            "zonewise_dns_forward_failures",
            "Questions that no upstream answered.",
            value=forwarder.failed,
        )
        yield GaugeMetricFamily(
            "zonewise_dns_looping_upstreams",
            "Upstreams that lead back here and are not used.",
            value=len(forwarder.looping),
        )


def _buckets(bounds: Sequence[float], numbers: Sequence[int]) -> list[tuple[str, float]]:
    buckets, total = [], 0
    for bound, number in zip(bounds, numbers, strict=True):
        total += number
        buckets.append((str(float(bound)), float(total)))
    return [*buckets, ("+Inf", float(total))]
