"""Commands to try on a cluster with a network: they show where packets go."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from zonewise.api import Node, Pod, Service
from zonewise.api.objects.discovery import EndpointSlice, service_name_of
from zonewise.api.objects.pod_state import is_pod_ready
from zonewise.topology.nodes import zone_of

ABSENT = (
    "No packets are sent: zonewise up --network, as root, gives every pod an address that answers."
)
HTTP = 80
MOST = 3


@dataclass(frozen=True, slots=True)
class Trial:
    """A request from a pod's address on a node, and what it shows."""

    node: str
    source: str
    url: str
    meaning: str


def list_trials(
    nodes: Iterable[Node],
    pods: Iterable[Pod],
    services: Iterable[Service],
    slices: Iterable[EndpointSlice],
) -> list[Trial]:
    """Requests to a Service, with hints if possible, from a pod in each of the first zones."""
    counts: dict[tuple[str, str], tuple[bool, int]] = {}
    for part in slices:
        key = (part.metadata.namespace, service_name_of(part))
        hinted, count = counts.get(key, (False, 0))
        endpoints = part.endpoints or ()
        hinted = hinted or any(endpoint.hints for endpoint in endpoints)
        counts[key] = (hinted, count + len(endpoints))

    def rank(service: Service) -> tuple[bool, bool, int, tuple[str, str]]:
        hinted, count = counts.get(service.key, (False, 0))
        return not hinted, _tcp_port(service) != HTTP, -count, service.key

    candidates = [
        service
        for service in services
        if service.spec.cluster_ip not in ("", "None")
        and _tcp_port(service)
        and service.key != ("default", "kubernetes")
    ]
    chosen = min(candidates, key=rank, default=None)
    if chosen is None or not counts.get(chosen.key, (False, 0))[1]:
        return []
    address = chosen.spec.cluster_ip
    host = f"[{address}]" if ":" in address else address
    port = _tcp_port(chosen)
    url = f"http://{host}" if port == HTTP else f"http://{host}:{port}"
    zones = {node.metadata.name: zone_of(node) for node in nodes}
    by_zone: dict[str, Trial] = {}
    for pod in sorted(pods, key=lambda pod: pod.key):
        zone = zones.get(pod.spec.node_name)
        ips = (pod_ip.ip for pod_ip in pod.status.pod_ips)
        source = next((ip for ip in ips if (":" in ip) is (":" in address)), "")
        if zone is None or zone in by_zone or not source or not is_pod_ready(pod):
            continue
        where = f"zone {zone}" if zone else "no zone"
        meaning = f"{'/'.join(chosen.key)} asked by {'/'.join(pod.key)} in {where}"
        by_zone[zone] = Trial(pod.spec.node_name, source, url, meaning)
    return [by_zone[zone] for zone in sorted(by_zone)][:MOST]


def _tcp_port(service: Service) -> int:
    """The first port for TCP, 0 if there is none."""
    return next((port.port for port in service.spec.ports if port.protocol == "TCP"), 0)


def format_trials(trials: Iterable[Trial], command: Callable[[str, str, str], str]) -> list[str]:
    """The commands, each followed by what it shows."""
    lines = []
    for trial in trials:
        lines += [f"  {command(trial.node, trial.source, trial.url)}", f"    # {trial.meaning}"]
    return lines
