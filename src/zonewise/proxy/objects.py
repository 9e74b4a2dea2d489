"""Objects that only a proxy reads."""

from __future__ import annotations

from typing import ClassVar

from zonewise.api.meta import Object
from zonewise.api.objects.core import Node
from zonewise.api.resource import Resource
from zonewise.api.struct import Struct


class NodeMetadata(Object):
    """Name and labels of a node, and nothing of what it reports every few seconds."""

    resource: ClassVar = Node.resource
    metadata_only: ClassVar[bool] = True


class ServiceCIDRSpec(Struct):
    """Networks that ClusterIPs are taken from."""

    cidrs: tuple[str, ...] = ()


class ServiceCIDR(Object):
    """The ranges of ClusterIPs."""

    resource: ClassVar = Resource(
        "networking.k8s.io", "v1", "ServiceCIDR", "servicecidrs", namespaced=False
    )

    spec: ServiceCIDRSpec = ServiceCIDRSpec()
