"""What happens to nodes and the pods on them when a node is lost, drained or deleted.

``health`` and ``zones`` decide, ``NodeLifecycle`` writes conditions and taints, ``TaintEviction``
evicts pods (``tolerance``), ``PodCollector`` removes what is left over.
"""

from zonewise.embedded.components.nodelifecycle.controller import NodeLifecycle
from zonewise.embedded.components.nodelifecycle.pod_gc import PodCollector
from zonewise.embedded.components.nodelifecycle.settings import NodeLifecycleSettings
from zonewise.embedded.components.nodelifecycle.taint_eviction import TaintEviction

__all__ = ["NodeLifecycle", "NodeLifecycleSettings", "PodCollector", "TaintEviction"]
