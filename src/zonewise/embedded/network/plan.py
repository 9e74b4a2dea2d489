"""What the network of a cluster should be: pure functions of its objects.

Every node with a simulated kubelet has its addresses, and every pod that runs on it has its own. A
pod answers on the ports that its containers name and on those at which it is an endpoint. A node
that failed is disconnected: packets to it are silently lost, as when a machine loses its power.

Addresses come from objects that any client may write, so invalid ones are ignored, and of two
objects with the same address the first by name has it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from zonewise.api.objects.core import Node
from zonewise.api.objects.discovery import LeanEndpointSlice
from zonewise.api.objects.pod import Pod
from zonewise.api.objects.pod_state import FINISHED_PHASES
from zonewise.embedded.components.kubelet.node_status import (
    FAILED_ANNOTATION,
    has_simulated_kubelet,
    internal_ips,
)
from zonewise.topology.nodes import zone_of
from zonewise.traffic.routes.addresses import parse_address

PROTOCOLS = ("TCP", "UDP", "SCTP")


class PodPort(NamedTuple):
    """A port at which a pod answers."""

    protocol: str
    address: str
    port: int


@dataclass(frozen=True, slots=True)
class NodeNetwork:
    """The network of one node.

    ``pods`` are the addresses of its pods, ``answers`` the answer at each of their ports.
    """

    addresses: tuple[str, ...]
    connected: bool = True
    pods: frozenset[str] = frozenset()
    answers: Mapping[PodPort, str] = field(default_factory=dict)


def plan_network(
    nodes: Iterable[Node], pods: Iterable[Pod], slices: Iterable[LeanEndpointSlice]
) -> dict[str, NodeNetwork]:
    """The network of every node, by name."""
    used: set[str] = set()
    planned_nodes: dict[str, tuple[Node, tuple[str, ...]]] = {}
    for node in sorted(nodes, key=lambda node: node.metadata.name):
        addresses = _parse_addresses(internal_ips(node))
        if not has_simulated_kubelet(node) or not addresses:
            continue
        addresses = tuple(address for address in addresses if address not in used)
        used.update(addresses)
        if addresses:
            planned_nodes[node.metadata.name] = (node, addresses)
    endpoint_ports = _endpoint_ports(slices)
    pods_by_node: dict[str, frozenset[str]] = {}
    answers: dict[str, dict[PodPort, str]] = {name: {} for name in planned_nodes}
    for pod in sorted(pods, key=lambda pod: pod.key):
        planned = planned_nodes.get(pod.spec.node_name)
        if planned is None or pod.status.phase in FINISHED_PHASES:
            continue
        node, node_addresses = planned
        name = node.metadata.name
        pod_addresses = _parse_addresses(pod_ip.ip for pod_ip in pod.status.pod_ips)
        if not pod.spec.host_network:
            pod_addresses = tuple(address for address in pod_addresses if address not in used)
            used.update(pod_addresses)
            pods_by_node[name] = pods_by_node.get(name, frozenset()).union(pod_addresses)
        else:
            pod_addresses = tuple(address for address in pod_addresses if address in node_addresses)
        zone = zone_of(node)
        answer = f"{'/'.join(pod.key)} on node {name} in {f'zone {zone}' if zone else 'no zone'}"
        container_ports = _container_ports(pod)
        for address in pod_addresses:
            ports = container_ports | endpoint_ports.get((name, address), set())
            for protocol, port in sorted(ports):
                answers[name].setdefault(PodPort(protocol, address, port), answer)
    return {
        name: NodeNetwork(
            addresses,
            connected=FAILED_ANNOTATION not in node.metadata.annotations,
            pods=pods_by_node.get(name, frozenset()),
            answers=answers[name],
        )
        for name, (node, addresses) in planned_nodes.items()
    }


def plan_routes(networks: Mapping[str, NodeNetwork], links: Mapping[str, str]) -> dict[str, str]:
    """The route to each address: its link, and for pods the node's address as gateway."""
    routes: dict[str, str] = {}
    for name, node in networks.items():
        link = links.get(name)
        if link is None:
            continue
        for address in node.addresses:
            routes[address] = f"dev {link}" if node.connected else ""
        for address in node.pods:
            is_v6 = ":" in address
            gateways = [gateway for gateway in node.addresses if (":" in gateway) is is_v6]
            if gateways:
                route = f"via {gateways[0]} dev {link} onlink"
                routes[address] = route if node.connected else ""
    return routes


def _parse_addresses(texts: Iterable[str]) -> tuple[str, ...]:
    parsed = filter(None, map(parse_address, texts))
    return tuple(dict.fromkeys(address.text for address in parsed if not address.special))


def _container_ports(pod: Pod) -> set[tuple[str, int]]:
    """The ports that a pod's containers name, sidecars included."""
    sidecars = (c for c in pod.spec.init_containers if c.restart_policy == "Always")
    return {
        (port.protocol or "TCP", port.container_port)
        for container in (*(pod.spec.containers or ()), *sidecars)
        for port in container.ports
        if port.protocol in PROTOCOLS and 0 < port.container_port < 1 << 16
    }


def _endpoint_ports(
    slices: Iterable[LeanEndpointSlice],
) -> dict[tuple[str, str], set[tuple[str, int]]]:
    """The ports at which addresses are endpoints, by node and address."""
    ports_by_address: dict[tuple[str, str], set[tuple[str, int]]] = {}
    for endpoint_slice in slices:
        ports = {
            (port.protocol or "TCP", port.port)
            for port in endpoint_slice.ports or ()
            if port.port and (port.protocol or "TCP") in PROTOCOLS and 0 < port.port < 1 << 16
        }
        for endpoint in endpoint_slice.endpoints or ():
            for address in _parse_addresses(endpoint.addresses or ()):
                key = (endpoint.node_name or "", address)
                ports_by_address.setdefault(key, set()).update(ports)
    return ports_by_address
