"""What the EndpointSlice controller counts, under the names of Kubernetes' own.

``endpoint_slice_controller_*`` mean what they mean upstream, so that dashboards keep working. The
label ``approach`` of the sources' design (``auto`` when zones are hinted by CPU, else ``random``)
is beside upstream's ``topology``, which has our modes as well. What the design calls a failure has
upstream's two names: ``stale`` is a turn that came before the watch had shown an earlier write and
waits for it, ``error`` one that ended with an error. Where nothing is written, because we observe,
turns count as what they are: syncs that changed no slice.

Gauges are sums over Services. They are added up at each scrape, from the state of each Service
after its last turn, so a turn costs nothing for them.
"""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Iterator, Mapping

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from zonewise.api.meta import Key
from zonewise.api.objects.core import Service
from zonewise.controllers.hints.decided import DecidedService
from zonewise.traffic.modes import LIMITED_MODES, HintRequest
from zonewise.traffic.slices.planning import SlicePlan

PREFIX = "endpoint_slice_controller"
_BUCKETS = tuple(2.0 * 2**power for power in range(15))
_FEW = (0, 1, 2, 3, 5, 10, 20, 50, 100)


class HintsMetrics(Collector):
    """Everything the controller shows."""

    def __init__(
        self, registry: CollectorRegistry, decided_services: Mapping[Key, DecidedService]
    ) -> None:
        self._decided_services = decided_services
        self._added = Histogram(
            f"{PREFIX}_endpoints_added_per_sync",
            "Endpoints added in one sync of a Service.",
            buckets=_BUCKETS,
            registry=registry,
        )
        self._removed = Histogram(
            f"{PREFIX}_endpoints_removed_per_sync",
            "Endpoints removed in one sync of a Service.",
            buckets=_BUCKETS,
            registry=registry,
        )
        self._changed = Histogram(
            f"{PREFIX}_endpointslices_changed_per_sync",
            "EndpointSlices written in one sync of a Service.",
            ["topology", "traffic_distribution", "approach"],
            buckets=_FEW,
            registry=registry,
        )
        self._changes = Counter(
            f"{PREFIX}_changes", "EndpointSlices written.", ["operation"], registry=registry
        )
        self._syncs = Counter(
            f"{PREFIX}_syncs", "Syncs of Services by result.", ["result"], registry=registry
        )
        registry.register(self)

    def synced(self, result: str) -> None:
        """A turn ended: ``success``, ``stale`` or ``error``."""
        self._syncs.labels(result).inc()

    def planned(
        self, service: Service, request: HintRequest, plan: SlicePlan, *, writes: bool
    ) -> None:
        """A turn decided what to write; without ``writes`` it is only reported."""
        if not writes:
            plan = SlicePlan()
        self._added.observe(plan.added)
        self._removed.observe(plan.removed)
        limited = request.mode in LIMITED_MODES
        self._changed.labels(
            request.mode.value if limited else "Disabled",
            service.spec.traffic_distribution or "",
            "auto" if limited else "random",
        ).observe(plan.writes)
        changes = {"create": plan.create, "update": plan.update, "delete": plan.delete}
        for operation, pieces in changes.items():
            if pieces:
                self._changes.labels(operation).inc(len(pieces))

    def describe(self) -> Iterator[Metric]:
        """Nothing: the metrics are known at a scrape only."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """The sums over Services."""
        families = [
            family
            for standing in self._decided_services.values()
            for family in standing.families.values()
        ]
        for name, help, value in (
            ("endpoints_desired", "Desired endpoints.", sum(f.desired_endpoints for f in families)),
            ("num_endpoint_slices", "Existing EndpointSlices.", sum(f.slices for f in families)),
            (
                "desired_endpoint_slices",
                "EndpointSlices needed if each were filled.",
                sum(f.desired_slices for f in families),
            ),
        ):
            yield GaugeMetricFamily(f"{PREFIX}_{name}", help, value=value)
        distributions = Tally(
            standing.distribution
            for standing in self._decided_services.values()
            if standing.distribution
        )
        by_distribution = GaugeMetricFamily(
            f"{PREFIX}_services_count_by_traffic_distribution",
            "Services by their trafficDistribution.",
            labels=["traffic_distribution"],
        )
        for distribution, count in sorted(distributions.items()):
            by_distribution.add_metric([distribution], count)
        yield by_distribution
        services = GaugeMetricFamily(
            "zonewise_hints_services",
            "Services by mode, whether they have hints, and why.",
            labels=["mode", "state", "reason"],
        )
        states = Tally(standing.labels for standing in self._decided_services.values())
        for labels, count in sorted(states.items()):
            services.add_metric(labels, count)
        yield services
