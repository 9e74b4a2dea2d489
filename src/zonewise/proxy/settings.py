"""The settings of a proxy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from zonewise.api.objects.core import Node
from zonewise.proxy.tables.cidrs import loops_back, merged
from zonewise.proxy.tables.ruleset import FAMILIES, FamilyName, FrameSettings
from zonewise.traffic.routes.service import RouteSettings

LocalMode = Literal["ClusterCIDR", "NodeCIDR", "BridgeInterface", "InterfaceNamePrefix"]

PRIMARY = "primary"
_EVERYWHERE: Mapping[FamilyName, str] = {"IPv4": "0.0.0.0/0", "IPv6": "::/0"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Conntrack:
    """Settings of the kernel's conntrack table; None leaves a value unchanged."""

    max_per_core: int | None = None
    min: int | None = None
    tcp_established_timeout: str | None = None
    tcp_close_wait_timeout: str | None = None
    tcp_be_liberal: bool | None = None
    udp_timeout: str | None = None
    udp_stream_timeout: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxySettings:
    """One node's proxy; fields are named as kube-proxy's flags are.

    ``detect_local_mode`` says how packets of this node's pods are recognised.
    ``nodeport_addresses`` are networks, or ``primary``: the addresses of the Node object.
    """

    node_name: str
    routing: RouteSettings = field(default_factory=RouteSettings)
    detect_local_mode: LocalMode = "ClusterCIDR"
    cluster_cidrs: tuple[str, ...] = ()
    pod_interface: str = ""
    masquerade_all: bool = False
    masquerade_bit: int = 14
    nodeport_addresses: tuple[str, ...] = (PRIMARY,)
    healthz_listen: str = "0.0.0.0:10256"
    metrics_listen: str = "127.0.0.1:10249"
    conntrack: Conntrack = Conntrack()

    def frames(self) -> dict[FamilyName, FrameSettings]:
        """What the rules of each family depend on."""
        return {
            family: FrameSettings(
                pods=self._pods_known_by(family),
                masquerade_all=self.masquerade_all,
                masquerade_bit=self.masquerade_bit,
            )
            for family in FAMILIES
        }

    def _pods_known_by(self, family: FamilyName) -> str:
        mode = self.detect_local_mode
        if mode == "BridgeInterface":
            return f"={self.pod_interface}"
        if mode == "InterfaceNamePrefix":
            return f"{self.pod_interface}*"
        if mode == "NodeCIDR" or _of(family, self.cluster_cidrs):
            return "address"
        return ""

    def networks(
        self, node: Node, addresses: tuple[str, ...], service_cidrs: tuple[str, ...]
    ) -> Mapping[FamilyName, Mapping[str, tuple[str, ...]]]:
        """What the sets of networks hold.

        Beside another proxy, addresses that no Service of ours has are not ours to drop; nor ever
        are those of the machine itself, which a ServiceCIDR of ``0.0.0.0/0`` would name.
        """
        pods: tuple[str, ...] = ()
        if self.detect_local_mode == "ClusterCIDR":
            pods = self.cluster_cidrs
        elif self.detect_local_mode == "NodeCIDR":
            spec = node.spec
            pods = spec.pod_cidrs or ((spec.pod_cidr,) if spec.pod_cidr else ())
        nodeports = self.nodeport_networks(addresses)
        dropped = () if self.routing.proxy_name else service_cidrs
        dropped = tuple(text for text in dropped if not loops_back(text))
        return {
            family: {
                "pods": _of(family, pods),
                "service-cidrs": _of(family, dropped),
                "nodeport-addresses": nodeports[family],
            }
            for family in FAMILIES
        }

    def nodeport_networks(self, addresses: tuple[str, ...]) -> Mapping[FamilyName, tuple[str, ...]]:
        """Where node ports and health checks of load balancers are; ``addresses`` are the Node's.

        A family for which none is given has them at all addresses, as with kube-proxy.
        """
        given = addresses if self.nodeport_addresses == (PRIMARY,) else self.nodeport_addresses
        return {family: _of(family, given) or (_EVERYWHERE[family],) for family in FAMILIES}


def _of(family: FamilyName, texts: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(map(str, merged(family, texts)))
