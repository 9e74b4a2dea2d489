"""Objects that only a proxy reads."""

from __future__ import annotations

from typing import ClassVar

from zonewise.api.meta import Object
from zonewise.api.objects.core import Node, NodeAddress
from zonewise.api.resource import Resource
from zonewise.api.struct import Struct


class NodeMetadata(Object):
    """Name and labels of a node, and nothing of what it reports every few seconds."""

    resource: ClassVar = Node.resource
    metadata_only: ClassVar[bool] = True


class ReportedAddresses(Struct):
    """What is read of a node's status."""

    addresses: tuple[NodeAddress, ...] = ()


class NodeWithAddresses(Object):
    """Name and addresses of a node."""

    resource: ClassVar = Node.resource

    status: ReportedAddresses = ReportedAddresses()


class ServiceCIDRSpec(Struct):
    """Networks that ClusterIPs are taken from."""

    cidrs: tuple[str, ...] = ()


class ServiceCIDR(Object):
    """The ranges of ClusterIPs."""

    resource: ClassVar = Resource(
        "networking.k8s.io", "v1", "ServiceCIDR", "servicecidrs", namespaced=False
    )

    spec: ServiceCIDRSpec = ServiceCIDRSpec()
