"""What becomes of nodes and of the pods on them when a node is lost, drained or deleted.

``health`` and ``zones`` decide, ``NodeLifecycle`` says it in conditions and taints,
``TaintEviction`` drives pods away (``tolerance``), ``PodCollector`` removes what is left over.
"""

from zonewise.embedded.nodes.collection import PodCollector
from zonewise.embedded.nodes.eviction import TaintEviction
from zonewise.embedded.nodes.lifecycle import NodeLifecycle
from zonewise.embedded.nodes.settings import Settings

__all__ = ["NodeLifecycle", "PodCollector", "Settings", "TaintEviction"]
