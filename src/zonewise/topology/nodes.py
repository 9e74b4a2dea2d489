"""What a node states about its topology: whether it counts, its zone, its CPU.

A node counts towards the shares when it is Ready and not part of the control plane. Cordoned and
tainted nodes count: the pods on them keep sending traffic.
"""

from __future__ import annotations

from zonewise.api.errors import ParseError
from zonewise.api.meta import is_condition_true
from zonewise.api.objects.core import Node
from zonewise.api.values.quantity import milli

HOSTNAME_LABEL = "kubernetes.io/hostname"
REGION_LABEL = "topology.kubernetes.io/region"
ZONE_LABEL = "topology.kubernetes.io/zone"
CONTROL_PLANE_LABELS = ("node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/master")
OUT_OF_SERVICE = "node.kubernetes.io/out-of-service"
"""The taint by which an administrator says that a machine is off; of any effect and value."""
CPU_LIMIT = 2**63 - 1


def zone_of(node: Node) -> str:
    """The zone of a node, "" if its label is missing or empty."""
    return node.metadata.labels.get(ZONE_LABEL, "")


def is_node_ready(node: Node) -> bool:
    """Whether the node reports Ready."""
    return is_condition_true(node.status.conditions, "Ready")


def is_out_of_service(node: Node) -> bool:
    """Whether an administrator has declared the node out of service."""
    return any(taint.key == OUT_OF_SERVICE for taint in node.spec.taints)


def is_control_plane(node: Node) -> bool:
    """Whether the node has a role label of the control plane, of any value."""
    return any(label in node.metadata.labels for label in CONTROL_PLANE_LABELS)


def sends_traffic(node: Node) -> bool:
    """Whether the node is expected to send traffic."""
    return is_node_ready(node) and not is_control_plane(node)


def cpu_milli(node: Node) -> int:
    """Allocatable CPU in thousandths of a core; 0 if it is missing, negative or not a quantity.

    It is cut at 64 bits: a quantity may have any number of digits, which no float could hold.
    """
    text = node.status.allocatable.get("cpu")
    if text is None:
        return 0
    try:
        return min(max(0, milli(text)), CPU_LIMIT)
    except ParseError:
        return 0
