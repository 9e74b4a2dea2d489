"""What may be chosen about kubelets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from zonewise.embedded.components.kubelet.stages import Stages, default_stages

V4 = "10.128.0.0/9"
V6 = "fd00:10:128::/48"


@dataclass(frozen=True, slots=True, kw_only=True)
class KubeletSettings:
    """Times are in seconds. Networks are those of pods and of nodes, one of each family or both.

    Every node gets a part of each pod network, of the size in ``blocks``. A pod whose start takes
    longer than ``coalesce`` is shown as Pending with its containers being created; quicker ones are
    written once, when they run. ``resources`` are for nodes that do not specify theirs.
    """

    stages: Stages = field(default_factory=default_stages)
    pod_networks: tuple[str, ...] = (V4,)
    blocks: tuple[int, ...] = (24,)
    node_networks: tuple[str, ...] = ("172.16.0.0/12",)
    heartbeat: float = 30.0
    lease_duration: int = 40
    refresh: float = 300.0
    coalesce: float = 2.0
    workers: int = 64
    resources: Mapping[str, str] = field(
        default_factory=lambda: {
            "cpu": "8",
            "memory": "32Gi",
            "ephemeral-storage": "100Gi",
            "pods": "110",
        }
    )


DUAL_STACK = KubeletSettings(
    pod_networks=(V4, V6),
    blocks=(24, 64),
    node_networks=("172.16.0.0/12", "fd00:172:16::/64"),
)
