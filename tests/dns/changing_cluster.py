"""A cluster that a test changes, passed to the name server as each source of locations has it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from tests.dns.clusters import Names, Obj, namespace

from zonewise.api import FeatureGates

ZONE, HOST, RACK = "topology.kubernetes.io/zone", "kubernetes.io/hostname", "example.com/rack"
Source = Literal["locators", "pods", "both"]


@dataclass
class World:
    """A cluster a test changes; the name server gets every change as the source has it.

    With locators, this class also plays the controller that writes them.
    """

    source: Source
    trusted: tuple[str, ...] = ()
    gates: FeatureGates = field(default_factory=FeatureGates)
    nodes: dict[str, dict[str, str]] = field(default_factory=dict)
    pods: dict[str, Obj] = field(default_factory=dict)
    version: int = 0

    def __post_init__(self) -> None:
        self.names = Names(nodes=self.source != "locators", trusted=self.trusted, gates=self.gates)
        self.names.put(namespace("shop"))

    def node(self, name: str, labels: dict[str, str], address: str = "") -> None:
        """Add a node, or change its labels."""
        self.nodes[name] = labels
        self._tell_node(name, address)
        for pod in [pod_name for pod_name, state in self.pods.items() if state["node"] == name]:
            self._tell(pod)

    def no_node(self, name: str) -> None:
        """Delete a node."""
        del self.nodes[name]
        if self.source != "locators":
            self.names.remove("Node", name)
        for pod in [pod_name for pod_name, state in self.pods.items() if state["node"] == name]:
            self._tell(pod)

    def pod(self, name: str, node: str, *ips: str, created: int = 0, done: bool = False) -> None:
        """Add or change a pod."""
        self.pods[name] = {"node": node, "ips": list(ips), "created": created, "done": done}
        self._tell(name)

    def no_pod(self, name: str) -> None:
        """Delete a pod."""
        del self.pods[name]
        self.names.remove("Pod" if self.source == "pods" else "PodLocator", name, "shop")

    def _tell_node(self, name: str, address: str) -> None:
        if self.source == "locators":
            return
        addresses = [{"type": "InternalIP", "address": address}] if address else []
        self.names.put(
            {
                "kind": "Node",
                "metadata": {"name": name, "labels": self.nodes[name]},
                "status": {"addresses": addresses},
            }
        )

    def _tell(self, name: str) -> None:
        self.version += 1
        state = self.pods[name]
        meta = {
            "name": name,
            "namespace": "shop",
            "uid": name,
            "resourceVersion": str(self.version),
            "creationTimestamp": f"2026-01-01T00:00:{state['created']:02}Z",
        }
        if self.source == "pods":
            self.names.put(
                {
                    "kind": "Pod",
                    "metadata": meta,
                    "spec": {"nodeName": state["node"]},
                    "status": {
                        "phase": "Succeeded" if state["done"] else "Running",
                        "podIPs": [{"ip": ip} for ip in state["ips"]],
                    },
                }
            )
            return
        known = state["node"] in self.nodes
        self.names.put(
            {
                "kind": "PodLocator",
                "metadata": meta,
                "ips": [] if state["done"] else [{"ip": ip} for ip in state["ips"]],
                "nodeName": state["node"] if known else "",
                "nodeLabels": self.nodes[state["node"]] if known else {},
            }
        )
