"""What to try with real packets: commands that show where they go."""

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
    """A question from a pod's address on a node, and what it shows."""

    node: str
    source: str
    url: str
    meaning: str


def trials(
    nodes: Iterable[Node],
    pods: Iterable[Pod],
    services: Iterable[Service],
    slices: Iterable[EndpointSlice],
) -> list[Trial]:
    """A question to one Service from a pod in each of a few zones; of Services, one with hints."""
    counts: dict[tuple[str, str], tuple[bool, int]] = {}
    for piece in slices:
        key = (piece.metadata.namespace, service_name_of(piece))
        hinted, count = counts.get(key, (False, 0))
        ends = piece.endpoints or ()
        counts[key] = (hinted or any(one.hints for one in ends), count + len(ends))

    def rank(service: Service) -> tuple[bool, bool, int, tuple[str, str]]:
        hinted, count = counts.get(service.key, (False, 0))
        return not hinted, _port(service) != HTTP, -count, service.key

    asked = [
        one
        for one in services
        if one.spec.cluster_ip not in ("", "None")
        and _port(one)
        and one.key != ("default", "kubernetes")
    ]
    chosen = min(asked, key=rank, default=None)
    if chosen is None or not counts.get(chosen.key, (False, 0))[1]:
        return []
    address = chosen.spec.cluster_ip
    host = f"[{address}]" if ":" in address else address
    number = _port(chosen)
    url = f"http://{host}" if number == HTTP else f"http://{host}:{number}"
    zones = {node.metadata.name: zone_of(node) for node in nodes}
    found: dict[str, Trial] = {}
    for pod in sorted(pods, key=lambda one: one.key):
        zone = zones.get(pod.spec.node_name)
        source = next(
            (one.ip for one in pod.status.pod_ips if (":" in one.ip) is (":" in address)), ""
        )
        if zone is None or zone in found or not source or not is_pod_ready(pod):
            continue
        where = f"zone {zone}" if zone else "no zone"
        meaning = f"{'/'.join(chosen.key)} asked by {'/'.join(pod.key)} in {where}"
        found[zone] = Trial(pod.spec.node_name, source, url, meaning)
    return [found[zone] for zone in sorted(found)][:MOST]


def _port(service: Service) -> int:
    """The first port for TCP, 0 if there is none."""
    return next((port.port for port in service.spec.ports if port.protocol == "TCP"), 0)


def packet_lines(found: Iterable[Trial], command: Callable[[str, str, str], str]) -> list[str]:
    """The commands for people, each with what it shows."""
    lines = []
    for one in found:
        lines += [f"  {command(one.node, one.source, one.url)}", f"    # {one.meaning}"]
    return lines
