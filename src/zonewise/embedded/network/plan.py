"""What the network of a cluster is to be; pure.

Every node with a kubelet of ours has its addresses, and every pod on it that runs has its own. A
pod answers on the ports that its containers name and on those under which it is an endpoint. A node
that failed is cut off: packets to it are silently lost, as when a machine loses its power.

Addresses come from objects that any client may write, so what is not an address is left out, and of
two that claim the same one the first by name has it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from zonewise.api.objects.core import Node
from zonewise.api.objects.discovery import LeanEndpointSlice
from zonewise.api.objects.pod import Pod
from zonewise.api.objects.pod_state import FINISHED
from zonewise.embedded.components.kubelet import FAILED, KUBELET
from zonewise.topology import zone_of
from zonewise.traffic.routes import parse_address

PROTOCOLS = ("TCP", "UDP", "SCTP")


class PodPort(NamedTuple):
    """Where something answers."""

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


def plan(
    nodes: Iterable[Node], pods: Iterable[Pod], slices: Iterable[LeanEndpointSlice]
) -> dict[str, NodeNetwork]:
    """The network of every node, by name."""
    taken: set[str] = set()
    homes: dict[str, tuple[Node, tuple[str, ...]]] = {}
    for node in sorted(nodes, key=lambda one: one.metadata.name):
        texts = (one.address for one in node.status.addresses if one.type == "InternalIP")
        addresses = _addresses(texts)
        if node.metadata.annotations.get(KUBELET) == "none" or not addresses:
            continue
        addresses = tuple(one for one in addresses if one not in taken)
        taken.update(addresses)
        if addresses:
            homes[node.metadata.name] = (node, addresses)
    offered = _offered(slices)
    found: dict[str, frozenset[str]] = {}
    answers: dict[str, dict[PodPort, str]] = {name: {} for name in homes}
    for pod in sorted(pods, key=lambda one: one.key):
        home = homes.get(pod.spec.node_name)
        if home is None or pod.status.phase in FINISHED:
            continue
        node, own = home
        name = node.metadata.name
        here = _addresses(one.ip for one in pod.status.pod_ips)
        if not pod.spec.host_network:
            here = tuple(one for one in here if one not in taken)
            taken.update(here)
            found[name] = found.get(name, frozenset()).union(here)
        else:
            here = tuple(one for one in here if one in own)
        zone = zone_of(node)
        text = f"{'/'.join(pod.key)} on node {name} in {f'zone {zone}' if zone else 'no zone'}"
        named = _named(pod)
        for address in here:
            for protocol, port in sorted(named | offered.get((name, address), set())):
                answers[name].setdefault(PodPort(protocol, address, port), text)
    return {
        name: NodeNetwork(
            addresses,
            connected=FAILED not in node.metadata.annotations,
            pods=found.get(name, frozenset()),
            answers=answers[name],
        )
        for name, (node, addresses) in homes.items()
    }


def routes(wanted: Mapping[str, NodeNetwork], wires: Mapping[str, str]) -> dict[str, str]:
    """Where packets to each address go: by which wire, by way of which address of the node."""
    found: dict[str, str] = {}
    for name, node in wanted.items():
        wire = wires.get(name)
        if wire is None:
            continue
        for address in node.addresses:
            found[address] = f"dev {wire}" if node.connected else ""
        for address in node.pods:
            six = ":" in address
            gateway = next((one for one in node.addresses if (":" in one) is six), None)
            if gateway is not None:
                way = f"via {gateway} dev {wire} onlink"
                found[address] = way if node.connected else ""
    return found


def _addresses(texts: Iterable[str]) -> tuple[str, ...]:
    parsed = (parse_address(text) for text in texts)
    return tuple(dict.fromkeys(one.text for one in parsed if one is not None and not one.special))


def _named(pod: Pod) -> set[tuple[str, int]]:
    """The ports that a pod's containers name, those that start first and stay included."""
    staying = (one for one in pod.spec.init_containers if one.restart_policy == "Always")
    return {
        (port.protocol or "TCP", port.container_port)
        for container in (*(pod.spec.containers or ()), *staying)
        for port in container.ports
        if port.protocol in PROTOCOLS and 0 < port.container_port < 1 << 16
    }


def _offered(
    slices: Iterable[LeanEndpointSlice],
) -> dict[tuple[str, str], set[tuple[str, int]]]:
    """The ports under which addresses are endpoints, by node and address."""
    found: dict[tuple[str, str], set[tuple[str, int]]] = {}
    for piece in slices:
        ports = {
            (port.protocol or "TCP", port.port)
            for port in piece.ports or ()
            if port.port and (port.protocol or "TCP") in PROTOCOLS and 0 < port.port < 1 << 16
        }
        for endpoint in piece.endpoints or ():
            for address in _addresses(endpoint.addresses or ()):
                found.setdefault((endpoint.node_name or "", address), set()).update(ports)
    return found
