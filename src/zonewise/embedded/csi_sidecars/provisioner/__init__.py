"""Between Kubernetes and a CSI driver: claims, sizes, free room and snapshots.

Works on any API server through ``runtime``'s client, and with any driver through a ``CsiClient``.
On a real cluster the official sidecars do this work; ``zonewise install --csi`` prints them.
"""

from zonewise.embedded.csi_sidecars.provisioner.options import TopologyOptions
from zonewise.embedded.csi_sidecars.provisioner.program import DriverLoops

__all__ = ["DriverLoops", "TopologyOptions"]
