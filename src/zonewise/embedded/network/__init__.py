"""Real packets in an embedded cluster: a network namespace for each node, an address for each pod.

``instance`` names namespaces and removes them, also those of a program that was killed; ``plan`` is
what there should be, ``wiring`` makes it so, ``echo`` answers for the pods and ``proxies`` are the
real ones. ``network`` is the component that does all this, in the process of the cluster.
"""

from zonewise.embedded.network.instance import Instance, remove_stale
from zonewise.embedded.network.network import ClusterNetwork

__all__ = ["ClusterNetwork", "Instance", "remove_stale"]
