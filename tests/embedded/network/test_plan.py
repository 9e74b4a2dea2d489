"""The plan of a cluster's network: addresses and ports from nodes, pods and slices."""

from __future__ import annotations

from typing import Any

import msgspec

from zonewise.api.objects.core import Node
from zonewise.api.objects.discovery import EndpointSlice
from zonewise.api.objects.pod import Pod
from zonewise.embedded.network.plan import NodeNetwork, PodPort, plan_network, plan_routes


def node(name: str, *addresses: str, zone: str = "a", **annotations: str) -> Node:
    labels = {"topology.kubernetes.io/zone": zone} if zone else {}
    notes = {f"zonewise.io/{key}": value for key, value in annotations.items()}
    return msgspec.convert(
        {
            "metadata": {"name": name, "labels": labels, "annotations": notes},
            "status": {
                "addresses": [{"type": "InternalIP", "address": address} for address in addresses]
            },
        },
        Node,
    )


def pod(name: str, home: str, *addresses: str, phase: str = "Running", **spec: Any) -> Pod:
    ports = spec.pop("ports", [{"containerPort": 8080}])
    return msgspec.convert(
        {
            "metadata": {"name": name, "namespace": "shop"},
            "spec": {"nodeName": home, "containers": [{"name": "c", "ports": ports}], **spec},
            "status": {"phase": phase, "podIPs": [{"ip": address} for address in addresses]},
        },
        Pod,
    )


def piece(home: str, address: str, *ports: dict[str, Any]) -> EndpointSlice:
    return msgspec.convert(
        {
            "metadata": {"name": "s", "namespace": "shop"},
            "addressType": "IPv4",
            "ports": list(ports),
            "endpoints": [{"addresses": [address], "nodeName": home}],
        },
        EndpointSlice,
    )


def test_the_ports_of_a_pod() -> None:
    """Ports come from containers and from slices, at each address of the pod."""
    plan = plan_network(
        [node("n1", "172.16.0.2", "fd00::2")],
        [pod("web", "n1", "10.128.0.5", "fd01::5")],
        [piece("n1", "10.128.0.5", {"port": 53, "protocol": "UDP"})],
    )
    text = "shop/web on node n1 in zone a"
    assert plan == {
        "n1": NodeNetwork(
            ("172.16.0.2", "fd00::2"),
            pods=frozenset({"10.128.0.5", "fd01::5"}),
            answers={
                PodPort("TCP", "10.128.0.5", 8080): text,
                PodPort("UDP", "10.128.0.5", 53): text,
                PodPort("TCP", "fd01::5", 8080): text,
            },
        )
    }


def test_which_pods_have_no_address() -> None:
    """Pods that have ended, are pending or run on foreign nodes have no network."""
    plan = plan_network(
        [node("n1", "172.16.0.2"), node("theirs", "172.16.0.3", kubelet="none"), node("new")],
        [
            pod("done", "n1", "10.128.0.5", phase="Succeeded"),
            pod("waits", "n1", phase="Pending"),
            pod("lost", "nowhere", "10.128.0.6"),
            pod("away", "theirs", "10.128.0.7"),
        ],
        [],
    )
    assert plan == {"n1": NodeNetwork(("172.16.0.2",))}


def test_invalid_and_duplicate_addresses() -> None:
    """Invalid addresses are left out, and a duplicate one belongs to the first name."""
    plan = plan_network(
        [node("n2", "172.16.0.2"), node("n1", "172.16.0.2", "x", "127.0.0.1")],
        [
            pod("b", "n1", "10.128.0.5"),
            pod("a", "n1", "10.128.0.5", "172.16.0.2", "::1; reboot"),
            pod("c", "n1", "10.128.0.9", ports=[{"containerPort": 0}, {"containerPort": 70000}]),
        ],
        [piece("n1", "no address", {"port": 1}), piece("n1", "10.128.0.9", {"port": None})],
    )
    assert list(plan) == ["n1"]
    assert plan["n1"].pods == {"10.128.0.5", "10.128.0.9"}
    assert plan["n1"].answers == {PodPort("TCP", "10.128.0.5", 8080): "shop/a on node n1 in zone a"}


def test_pods_of_the_hosts_network_answer_at_the_node() -> None:
    """A pod in the host network has the node's addresses and adds none."""
    plan = plan_network(
        [node("n1", "172.16.0.2", zone="")],
        [pod("agent", "n1", "172.16.0.2", hostNetwork=True)],
        [],
    )
    assert plan["n1"].pods == frozenset()
    answers = {PodPort("TCP", "172.16.0.2", 8080): "shop/agent on node n1 in no zone"}
    assert plan["n1"].answers == answers


def test_a_failed_node_is_cut_off() -> None:
    """Every address is routed to its node, or nowhere if the node failed."""
    plan = plan_network(
        [node("n1", "172.16.0.2"), node("n2", "172.16.0.3", failed="true")],
        [pod("a", "n1", "10.128.0.5", "fd01::5"), pod("b", "n2", "10.128.1.5")],
        [],
    )
    assert plan_routes(plan, {"n1": "w1", "n2": "w2"}) == {
        "172.16.0.2": "dev w1",
        "10.128.0.5": "via 172.16.0.2 dev w1 onlink",
        "172.16.0.3": "",
        "10.128.1.5": "",
    }
