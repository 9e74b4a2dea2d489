"""What can be expected of a cluster: a number, and a bound for it.

``ready shop/web >= 5``: a measure, mostly of a workload or a Service, maybe ``in`` a zone, compared
with a number or a percentage.

==============  =================================================================================
pods            pods of a workload that are not terminating
ready           those of them that are Ready; also ``in`` a zone
unavailable     how many Ready ones a workload lacks
surplus         how many pods it has too many
updated         Ready pods of its newest revision, as its status says
skew            how many more Ready pods it has in its fullest zone than in its emptiest one
pending         pods without a node, of a workload or of all
nodes           Ready nodes; also ``in`` a zone
drains          nodes that are being drained, and are not empty yet
misplaced       pods that were put on a node against a DoNotSchedule constraint, since the start
in-zone         part of a Service's simulated requests that stayed in their zone, last minute
failed          part of them that found no endpoint
==============  =================================================================================

Gauges read the stores that the cluster's parts share, so they see what those see, when they do. The
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
from zonewise.api.objects.pod_state import active, ready
from zonewise.api.objects.taints import kept_off
from zonewise.api.values import selector
from zonewise.embedded.simulated_traffic import SimulatedTraffic
from zonewise.runtime.cache.cache import Cache
from zonewise.scheduling.taints import UNSCHEDULABLE
from zonewise.topology import is_ready, zone_of

Workload: TypeAlias = Deployment | StatefulSet | DaemonSet

OF_ALL = frozenset({"drains", "misplaced", "nodes", "pending"})
OF_SERVICES = frozenset({"in-zone", "failed"})
OF_WORKLOADS = frozenset({"pods", "ready", "unavailable", "surplus", "updated", "skew", "pending"})
_COMPARE: Mapping[str, Callable[[float, float], bool]] = {
    "==": operator.eq,
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
}
_SENTENCE = re.compile(
    r"(?P<measure>[a-z-]+)(?: (?P<target>[-a-z0-9.]+/[-a-z0-9.]+))?(?: in (?P<zone>[-a-z0-9]+))?"
    r" (?P<compare>==|<=|>=|<|>) (?P<number>[0-9]+(?:\.[0-9]+)?)(?P<percent>%?)"
)


@dataclass(frozen=True, slots=True)
class Assertion:
    """A sentence, understood."""

    text: str
    measure: str
    target: Key | None
    zone: str
    compare: str
    number: float

    @classmethod
    def parse(cls, text: str) -> Assertion:
        """Understand a sentence."""
        found = _SENTENCE.fullmatch(" ".join(text.split()))
        if found is None:
            raise ConfigError(f'"{text}" is not an expectation; write it like ready shop/web >= 5')
        measure, target = found["measure"], found["target"]
        if measure not in OF_ALL | OF_SERVICES | OF_WORKLOADS:
            raise ConfigError(f'"{text}": unknown measure {measure}')
        if target is None and measure not in OF_ALL:
            raise ConfigError(f'"{text}" does not say of what; name it like shop/web')
        namespace, _, name = (target or "").partition("/")
        return cls(
            text=found.group(),
            measure=measure,
            target=(namespace, name) if target else None,
            zone=found["zone"] or "",
            compare=found["compare"],
            number=float(found["number"]) / (100 if found["percent"] else 1),
        )

    def holds(self, value: float | None) -> bool:
        """Whether a value is as expected; one that is not there is not."""
        return value is not None and _COMPARE[self.compare](value, self.number)

    def worse(self, value: float, than: float) -> bool:
        """Whether a value is nearer to breaking the expectation than another."""
        if self.compare in (">=", ">"):
            return value < than
        return value > than


@dataclass(slots=True)
class _Tally:
    """A workload's pods that are not on their way out."""

    chosen: selector.Selector
    pods: int = 0
    ready: int = 0
    pending: int = 0

    def count(self, pod: Pod, sign: int) -> None:
        if active(pod) and self.chosen.matches(pod.metadata.labels):
            self.pods += sign
            self.ready += sign * ready(pod)
            self.pending += sign * (not pod.spec.node_name)


class Measurements:
    """Measures one cluster."""

    def __init__(self, cache: Cache, clients: SimulatedTraffic) -> None:
        self._clients = clients
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

    def value(self, asked: Assertion) -> float | None:
        """The measured number; None if its object does not exist."""
        match asked.measure:
            case "drains":
                return self.drains
            case "misplaced":
                return self._misplaced
            case "nodes":
                return sum(is_ready(node) for node in self.nodes if _inside(node, asked.zone))
            case "pending" if asked.target is None:
                return sum(not pod.spec.node_name for pod in self.pods if active(pod))
            case "in-zone" | "failed":
                assert asked.target is not None
                seen = self._clients.seen().get(asked.target)
                if seen is None or not self._clients.answered(asked.target):
                    return None  # A Service that waits for its first endpoint fails nobody.
                return seen.failed if asked.measure == "failed" else seen.in_zone
        assert asked.target is not None
        workload = self.workload(asked.target)
        return None if workload is None else self._of_workload(asked, workload)

    def workload(self, key: Key) -> Workload | None:
        """The workload of that name."""
        found = self._deployments.get(key) or self._statefulsets.get(key)
        return found or self._daemonsets.get(key)

    def counts(self) -> dict[Key, tuple[int, int]]:
        """Of each workload, how many pods are Ready and how many there are to be.

        How many pods a DaemonSet is to have is known only from its status, a moment later than its
        pods; so both numbers are from there.
        """
        stores = (self._deployments, self._statefulsets)
        found = {
            one.key: (self._tally(one).ready, one.spec.replicas)
            for store in stores
            for one in store
        }
        for each in self._daemonsets:
            found[each.key] = (each.status.number_ready, each.status.desired_number_scheduled)
        return found

    def _of_workload(self, asked: Assertion, workload: Workload) -> float:
        tally = self._tally(workload)
        match asked.measure:
            case "pods":
                return tally.pods
            case "ready" if not asked.zone:
                return tally.ready
            case "unavailable":
                return max(0, _desired(workload) - tally.ready)
            case "surplus":
                return max(0, tally.pods - _desired(workload))
            case "pending":
                return tally.pending
            case "updated":
                return _updated(workload)
        zones = Counter({zone_of(node): 0 for node in self.nodes})
        zones.update(
            self._zone(pod)
            for pod in self.pods
            if pod.metadata.namespace == workload.metadata.namespace
            and tally.chosen.matches(pod.metadata.labels)
            and active(pod)
            and ready(pod)
        )
        if asked.measure == "ready":
            return zones[asked.zone]
        return max(zones.values(), default=0) - min(zones.values(), default=0)

    def _tally(self, workload: Workload) -> _Tally:
        return self._tallies[workload.metadata.namespace][workload.key]

    def _workload_changed(self, old: Workload | None, new: Workload | None) -> None:
        """Selectors never change, so only new workloads have to be counted for."""
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
                rule.when_unsatisfiable == "DoNotSchedule" and self._broken(new, rule)
                for rule in new.spec.topology_spread_constraints
            )

    def _zone(self, pod: Pod) -> str:
        node = self.nodes.get(("", pod.spec.node_name))
        return zone_of(node) if node else ""

    def _broken(self, pod: Pod, rule: TopologySpreadConstraint) -> bool:
        """Whether the pod's domain has too many, as the nodes and pods are now."""
        domains = Counter(
            {
                node.metadata.labels[rule.topology_key]: 0
                for node in self.nodes
                if rule.topology_key in node.metadata.labels and _counts(node, pod, rule)
            }
        )
        chosen = selector.from_object(rule.label_selector)
        labels = pod.metadata.labels
        own = {key: labels[key] for key in rule.match_label_keys if key in labels}.items()
        for other in self.pods:
            node = self.nodes.get(("", other.spec.node_name))
            domain = node.metadata.labels.get(rule.topology_key, "") if node else ""
            same = other.metadata.namespace == pod.metadata.namespace and active(other)
            theirs = other.metadata.labels
            if domain in domains and same and own <= theirs.items() and chosen.matches(theirs):
                domains[domain] += 1
        home = self.nodes.get(("", pod.spec.node_name))
        here = home.metadata.labels.get(rule.topology_key, "") if home else ""
        return domains[here] - min(domains.values(), default=0) > rule.max_skew


def _counts(node: Node, pod: Pod, rule: TopologySpreadConstraint) -> bool:
    """Whether a node's domain counts for the pod; node affinity is not looked at."""
    if not pod.spec.node_selector.items() <= node.metadata.labels.items():
        return False
    taints = (*node.spec.taints, UNSCHEDULABLE) if node.spec.unschedulable else node.spec.taints
    honored = rule.node_taints_policy == "Honor"
    return not (honored and kept_off(taints, pod.spec.tolerations))


def _inside(node: Node, zone: str) -> bool:
    return not zone or zone_of(node) == zone


def _desired(workload: Workload) -> int:
    if isinstance(workload, DaemonSet):
        return workload.status.desired_number_scheduled
    return workload.spec.replicas


def _updated(workload: Workload) -> int:
    status = workload.status
    if status.observed_generation < workload.metadata.generation:
        return 0
    if isinstance(status, DaemonSetStatus):
        return min(status.updated_number_scheduled, status.number_ready)
    return min(status.updated_replicas, status.ready_replicas)
