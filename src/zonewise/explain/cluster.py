"""A cluster as reports about Services read it: objects of any source, indexed once.

What ``kubectl get nodes,services,endpointslices`` prints is enough. In a namespace of which no pod
was read, the slices are used instead. An object without a namespace is in ``default``, as it is
when such a file is applied.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from zonewise.api.meta import Key, Object
from zonewise.api.objects.core import Node, Service
from zonewise.api.objects.discovery import LeanEndpointSlice, service_name_of
from zonewise.api.objects.pod import Pod
from zonewise.topology.eligible_nodes import EligibleNodes
from zonewise.topology.nodes import cpu_milli, sends_traffic, zone_of
from zonewise.topology.shares import MissingCpu, MissingZone, Shares, shares_of
from zonewise.traffic.modes import reported_gates
from zonewise.traffic.routes.choice import ClientLocation

DEFAULT_NAMESPACE = "default"


@dataclass(frozen=True, slots=True)
class ReportSettings:
    """The settings of the cluster's controller, as a report assumes them.

    Without ``gates`` they are those that the controller's condition on a Service shows.
    """

    gates: Mapping[str, bool] | None = None
    missing_cpu: MissingCpu = MissingCpu.DISABLE
    missing_zone: MissingZone = MissingZone.DISABLE


class ReportedCluster:
    """The objects that reports are made from."""

    def __init__(
        self,
        *,
        nodes: Iterable[Node] = (),
        services: Iterable[Service] = (),
        slices: Iterable[LeanEndpointSlice] = (),
        pods: Iterable[Pod] = (),
        settings: ReportSettings | None = None,
    ) -> None:
        self.settings = settings or ReportSettings()
        self.nodes = {node.metadata.name: node for node in nodes}
        self.services = {key_of(service): service for service in services}
        self.zones = {name: zone_of(node) for name, node in self.nodes.items()}
        self._slices = tuple(slices)
        self._pods: dict[str, list[Pod]] = {}
        for pod in pods:
            self._pods.setdefault(key_of(pod)[0], []).append(pod)
        self._shares: dict[EligibleNodes, Shares] = {}

    def shares(self, reach: EligibleNodes) -> Shares:
        """The shares of the zones, of the nodes within reach."""
        if reach not in self._shares:
            self._shares[reach] = shares_of(
                reach.select(self.nodes.values()),
                missing_cpu=self.settings.missing_cpu,
                missing_zone=self.settings.missing_zone,
            )
        return self._shares[reach]

    def gates(self, service: Service) -> Mapping[str, bool]:
        """The gates by which the hints of a Service are decided."""
        gates = self.settings.gates
        return reported_gates(service) if gates is None else gates

    @cached_property
    def labels(self) -> dict[str, dict[str, str]]:
        """The labels of every node."""
        return {name: node.metadata.labels for name, node in self.nodes.items()}

    @cached_property
    def senders(self) -> tuple[tuple[ClientLocation, int], ...]:
        """Where traffic starts, and how much of it: on every node that counts, by its CPU.

        As for shares, all count alike if the CPU of one is missing and the settings say so.
        """
        counting = [node for _, node in sorted(self.nodes.items()) if sends_traffic(node)]
        alike = self.settings.missing_cpu is MissingCpu.EQUAL and not all(map(cpu_milli, counting))
        return tuple(
            (ClientLocation.of(node), 1 if alike else cpu_milli(node)) for node in counting
        )

    def pods(self, service: Service) -> list[Pod] | None:
        """The pods a Service selects, by name; None if there is no pod to decide by."""
        selector = (service.spec.selector or {}).items()
        pods = self._pods.get(key_of(service)[0])
        if pods is None or not selector:
            return None
        return sorted((pod for pod in pods if selector <= pod.metadata.labels.items()), key=key_of)

    @cached_property
    def _by_service(self) -> dict[Key, list[LeanEndpointSlice]]:
        by_service: dict[Key, list[LeanEndpointSlice]] = {}
        for part in sorted(self._slices, key=key_of):
            if name := service_name_of(part):
                by_service.setdefault((key_of(part)[0], name), []).append(part)
        return by_service

    def slices(self, service: Service) -> tuple[LeanEndpointSlice, ...]:
        """The slices of a Service, whichever controller writes them, by name."""
        return tuple(self._by_service.get(key_of(service), ()))


def key_of(source: Object) -> Key:
    """Namespace and name, the namespace never empty."""
    return source.metadata.namespace or DEFAULT_NAMESPACE, source.metadata.name
