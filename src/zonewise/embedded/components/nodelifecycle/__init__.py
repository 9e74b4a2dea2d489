"""What happens to nodes and the pods on them when a node is lost, drained or deleted.

``health`` decides, ``NodeLifecycleController`` writes conditions and taints,
``TaintEvictionController`` deletes pods that do not tolerate them, ``PodGCController`` deletes
orphaned and finished pods.
"""

from zonewise.embedded.components.nodelifecycle.controller import NodeLifecycleController
from zonewise.embedded.components.nodelifecycle.pod_gc import PodGCController
from zonewise.embedded.components.nodelifecycle.settings import NodeLifecycleSettings
from zonewise.embedded.components.nodelifecycle.taint_eviction import TaintEvictionController

__all__ = [
    "NodeLifecycleController",
    "NodeLifecycleSettings",
    "PodGCController",
    "TaintEvictionController",
]
