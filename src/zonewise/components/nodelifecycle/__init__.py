"""What becomes of nodes and of the pods on them when a node is lost, drained or deleted.

``health`` and ``zones`` decide, ``NodeLifecycle`` says it in conditions and taints,
``TaintEviction`` drives pods away (``tolerance``), ``PodCollector`` removes what is left over.
"""

from zonewise.components.nodelifecycle.controller import NodeLifecycle
from zonewise.components.nodelifecycle.pod_gc import PodCollector
from zonewise.components.nodelifecycle.settings import NodeLifecycleSettings
from zonewise.components.nodelifecycle.taint_eviction import TaintEviction

__all__ = ["NodeLifecycle", "NodeLifecycleSettings", "PodCollector", "TaintEviction"]
