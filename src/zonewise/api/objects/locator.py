"""PodLocator: where a pod is, for clients that may read neither pods nor nodes (KEP-536).

One object for each pod, of the same namespace and name: its addresses, its node, and the labels of
that node. It is small and changes seldom, so a DNS server or a proxy can watch all of them.
"""

from __future__ import annotations

from typing import ClassVar

from zonewise.api.meta import Object
from zonewise.api.objects.pod import PodIP
from zonewise.api.resource import Resource
from zonewise.api.struct import Struct, field


class PodLocator(Object):
    """Where a pod is; ``ips`` are empty once it has finished: another pod may get its address.

    ``node_label_keys`` are the labels that were looked for, where these are not all: the node may
    have others.
    """

    resource: ClassVar = Resource("zonewise.io", "v1alpha1", "PodLocator", "podlocators")

    ips: tuple[PodIP, ...] | None = ()
    node_name: str = ""
    node_labels: dict[str, str] | None = field(default_factory=dict)
    node_label_keys: tuple[str, ...] | None = None


class LocatedPodSpec(Struct):
    """On which node a pod is."""

    node_name: str = ""


class LocatedPodStatus(Struct):
    """The addresses of a pod, and whether it still has them."""

    phase: str = ""
    pod_ips: tuple[PodIP, ...] = field(name="podIPs", default=())


class LocatedPod(Object):
    """The part of a pod that says where it is, for reading only."""

    resource: ClassVar = Resource("", "v1", "Pod", "pods")

    spec: LocatedPodSpec = LocatedPodSpec()
    status: LocatedPodStatus = LocatedPodStatus()
