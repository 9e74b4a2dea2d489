"""What can be expected of a cluster: a number, and a bound for it.

``ready shop/web >= 5``: a measure, mostly of a workload or a Service, maybe ``in`` a zone, compared
with a number or a percentage.

==============  =================================================================================
pods            pods of a workload that are not terminating
ready           those of them that are Ready; also ``in`` a zone
unavailable     how many Ready pods a workload lacks
surplus         how many pods it has beyond the desired number
updated         Ready pods of its newest revision, according to its status
skew            how many more Ready pods it has in its fullest zone than in its emptiest one
pending         pods without a node, of a workload or of all
nodes           Ready nodes; also ``in`` a zone
drains          nodes that are being drained, and are not empty yet
misplaced       pods that were bound to a node against a DoNotSchedule constraint, since the start
in-zone         part of a Service's simulated requests that stayed in their zone, last minute
failed          part of them that were not answered
==============  =================================================================================

Measurements read the stores that the cluster's components share, so they see the same state. The
pods of workloads are counted change by change: reading is cheap, however many there are.
"""

from __future__ import annotations

import operator
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from zonewise.api import Node, Pod
from zonewise.api.errors import ConfigError
from zonewise.api.meta import Key
from zonewise.api.objects.apps import DaemonSet, DaemonSetStatus, Deployment, StatefulSet
from zonewise.api.objects.pod import TopologySpreadConstraint
from zonewise.api.objects.pod_state import is_pod_active, is_pod_ready
from zonewise.api.objects.taints import has_untolerated_taint
from zonewise.api.values import selector
from zonewise.embedded.simulated_traffic import SimulatedTraffic
from zonewise.runtime.cache.cache import Cache
from zonewise.scheduling.node_fit import UNSCHEDULABLE_TAINT
from zonewise.topology.nodes import is_node_ready, zone_of

Workload: TypeAlias = Deployment | StatefulSet | DaemonSet

CLUSTER_MEASURES = frozenset({"drains", "misplaced", "nodes", "pending"})
SERVICE_MEASURES = frozenset({"in-zone", "failed"})
WORKLOAD_MEASURES = frozenset(
    {"pods", "ready", "unavailable", "surplus", "updated", "skew", "pending"}
)
_COMPARISONS: Mapping[str, Callable[[float, float], bool]] = {
    "==": operator.eq,
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
}
_SYNTAX = re.compile(
    r"(?P<measure>[a-z-]+)(?: (?P<target>[-a-z0-9.]+/[-a-z0-9.]+))?(?: in (?P<zone>[-a-z0-9]+))?"
    r" (?P<compare>==|<=|>=|<|>) (?P<number>[0-9]+(?:\.[0-9]+)?)(?P<percent>%?)"
)


@dataclass(frozen=True, slots=True)
class Assertion:
    """A parsed assertion."""

    text: str
    measure: str
    target: Key | None
    zone: str
    compare: str
    number: float

    @classmethod
    def parse(cls, text: str) -> Assertion:
        """Parse an assertion."""
        match = _SYNTAX.fullmatch(" ".join(text.split()))
        if match is None:
            raise ConfigError(f'"{text}" is not an expectation; write it like ready shop/web >= 5')
        measure, target = match["measure"], match["target"]
        if measure not in CLUSTER_MEASURES | SERVICE_MEASURES | WORKLOAD_MEASURES:
            raise ConfigError(f'"{text}": unknown measure {measure}')
        if target is None and measure not in CLUSTER_MEASURES:
            raise ConfigError(f'"{text}" names no workload or Service; name it like shop/web')
        namespace, _, name = (target or "").partition("/")
        return cls(
            text=match.group(),
            measure=measure,
            target=(namespace, name) if target else None,
            zone=match["zone"] or "",
            compare=match["compare"],
            number=float(match["number"]) / (100 if match["percent"] else 1),
        )

    def is_met(self, value: float | None) -> bool:
        """Whether a value is as expected; without a value the expectation is not met."""
        return value is not None and _COMPARISONS[self.compare](value, self.number)

    def is_worse(self, value: float, than: float) -> bool:
        """Whether a value is nearer to a violation than another."""
        if self.compare in (">=", ">"):
            return value < than
        return value > than


@dataclass(slots=True)
class _Tally:
    """Counts of a workload's pods that are not terminating."""

    pod_selector: selector.Selector
    pods: int = 0
    ready: int = 0
    pending: int = 0

    def count(self, pod: Pod, sign: int) -> None:
        if is_pod_active(pod) and self.pod_selector.matches(pod.metadata.labels):
            self.pods += sign
            self.ready += sign * is_pod_ready(pod)
            self.pending += sign * (not pod.spec.node_name)


class Measurements:
    """Measures one cluster."""

    def __init__(self, cache: Cache, traffic: SimulatedTraffic) -> None:
        self._traffic = traffic
        self.pods = cache.store(Pod)
        self.nodes = cache.store(Node)
        self._deployments = cache.store(Deployment)
        self._statefulsets = cache.store(StatefulSet)
        self._daemonsets = cache.store(DaemonSet)
        self._tallies: dict[str, dict[Key, _Tally]] = {}  # by namespace
        self.drains = 0
        self._misplaced = 0
        for store in (self._deployments, self._statefulsets, self._daemonsets):
            store.on_change(self._workload_changed)
        self.pods.on_change(self._pod_changed)

    def value(self, assertion: Assertion) -> float | None:
        """The measured number; None if its object does not exist."""
        match assertion.measure:
            case "drains":
                return self.drains
            case "misplaced":
                return self._misplaced
            case "nodes":
                nodes = (node for node in self.nodes if _is_in_zone(node, assertion.zone))
                return sum(map(is_node_ready, nodes))
            case "pending" if assertion.target is None:
                return sum(not pod.spec.node_name for pod in self.pods if is_pod_active(pod))
            case "in-zone" | "failed":
                assert assertion.target is not None
                service_traffic = self._traffic.service_traffic().get(assertion.target)
                if service_traffic is None or not self._traffic.has_answered(assertion.target):
                    return None  # A Service that waits for its first endpoint is no outage.
                return (
                    service_traffic.failed
                    if assertion.measure == "failed"
                    else service_traffic.in_zone
                )
        assert assertion.target is not None
        workload = self.workload(assertion.target)
        return None if workload is None else self._measure_workload(assertion, workload)

    def workload(self, key: Key) -> Workload | None:
        """The workload of that name."""
        workload = self._deployments.get(key) or self._statefulsets.get(key)
        return workload or self._daemonsets.get(key)

    def ready_counts(self) -> dict[Key, tuple[int, int]]:
        """Of each workload, how many pods are Ready and how many it should have.

        How many pods a DaemonSet should have is known only from its status, a moment later than its
        pods; so both numbers are from there.
        """
        stores = (self._deployments, self._statefulsets)
        counts = {
            workload.key: (self._tally(workload).ready, workload.spec.replicas)
            for store in stores
            for workload in store
        }
        for daemon_set in self._daemonsets:
            status = daemon_set.status
            counts[daemon_set.key] = (status.number_ready, status.desired_number_scheduled)
        return counts

    def _measure_workload(self, assertion: Assertion, workload: Workload) -> float:
        tally = self._tally(workload)
        match assertion.measure:
            case "pods":
                return tally.pods
            case "ready" if not assertion.zone:
                return tally.ready
            case "unavailable":
                return max(0, _desired_pods(workload) - tally.ready)
            case "surplus":
                return max(0, tally.pods - _desired_pods(workload))
            case "pending":
                return tally.pending
            case "updated":
                return _updated_pods(workload)
        zones = Counter({zone_of(node): 0 for node in self.nodes})
        zones.update(
            self._zone_of_pod(pod)
            for pod in self.pods
            if pod.metadata.namespace == workload.metadata.namespace
            and tally.pod_selector.matches(pod.metadata.labels)
            and is_pod_active(pod)
            and is_pod_ready(pod)
        )
        if assertion.measure == "ready":
            return zones[assertion.zone]
        return max(zones.values(), default=0) - min(zones.values(), default=0)

    def _tally(self, workload: Workload) -> _Tally:
        return self._tallies[workload.metadata.namespace][workload.key]

    def _workload_changed(self, old: Workload | None, new: Workload | None) -> None:
        """Count the pods of a new workload; selectors never change."""
        if old is None and new is not None:
            namespace = new.metadata.namespace
            tally = _Tally(selector.from_object(new.spec.selector))
            self._tallies.setdefault(namespace, {})[new.key] = tally
            for pod in self.pods:
                if pod.metadata.namespace == namespace:
                    tally.count(pod, 1)

    def _pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        for pod, sign in ((old, -1), (new, 1)):
            if pod is not None:
                for tally in self._tallies.get(pod.metadata.namespace, {}).values():
                    tally.count(pod, sign)
        if old is not None and new is not None and new.spec.node_name and not old.spec.node_name:
            self._misplaced += any(
                rule.when_unsatisfiable == "DoNotSchedule" and self._violates(new, rule)
                for rule in new.spec.topology_spread_constraints
            )

    def _zone_of_pod(self, pod: Pod) -> str:
        node = self.nodes.get(("", pod.spec.node_name))
        return zone_of(node) if node else ""

    def _violates(self, pod: Pod, rule: TopologySpreadConstraint) -> bool:
        """Whether the pod's domain exceeds the skew, with the nodes and pods as they are now."""
        domains = Counter(
            {
                node.metadata.labels[rule.topology_key]: 0
                for node in self.nodes
                if rule.topology_key in node.metadata.labels and _is_counted(node, pod, rule)
            }
        )
        pod_selector = selector.from_object(rule.label_selector)
        labels = pod.metadata.labels
        own = {key: labels[key] for key in rule.match_label_keys if key in labels}.items()
        for other in self.pods:
            node = self.nodes.get(("", other.spec.node_name))
            domain = node.metadata.labels.get(rule.topology_key, "") if node else ""
            is_counted = other.metadata.namespace == pod.metadata.namespace and is_pod_active(other)
            other_labels = other.metadata.labels
            if (
                domain in domains
                and is_counted
                and own <= other_labels.items()
                and pod_selector.matches(other_labels)
            ):
                domains[domain] += 1
        own_node = self.nodes.get(("", pod.spec.node_name))
        own_domain = own_node.metadata.labels.get(rule.topology_key, "") if own_node else ""
        return domains[own_domain] - min(domains.values(), default=0) > rule.max_skew


def _is_counted(node: Node, pod: Pod, rule: TopologySpreadConstraint) -> bool:
    """Whether a node's domain counts for the pod; node affinity is ignored."""
    if not pod.spec.node_selector.items() <= node.metadata.labels.items():
        return False
    unschedulable = (UNSCHEDULABLE_TAINT,) if node.spec.unschedulable else ()
    taints = (*node.spec.taints, *unschedulable)
    honored = rule.node_taints_policy == "Honor"
    return not (honored and has_untolerated_taint(taints, pod.spec.tolerations))


def _is_in_zone(node: Node, zone: str) -> bool:
    return not zone or zone_of(node) == zone


def _desired_pods(workload: Workload) -> int:
    if isinstance(workload, DaemonSet):
        return workload.status.desired_number_scheduled
    return workload.spec.replicas


def _updated_pods(workload: Workload) -> int:
    status = workload.status
    if status.observed_generation < workload.metadata.generation:
        return 0
    if isinstance(status, DaemonSetStatus):
        return min(status.updated_number_scheduled, status.number_ready)
    return min(status.updated_replicas, status.ready_replicas)
