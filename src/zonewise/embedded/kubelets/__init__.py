"""Kubelets without containers: every Node comes to life, and so do the pods bound to it.

In the order things happen: ``machine`` fills in a Node, ``heartbeats`` keep it alive, ``addresses``
are given to nodes and pods, ``stages`` say what happens to a pod, ``life`` lets it happen,
``report`` writes it down. ``kubelets`` is the part of the crew that does all this.
"""

from zonewise.embedded.kubelets.kubelets import Kubelets
from zonewise.embedded.kubelets.machine import FAILED, KUBELET
from zonewise.embedded.kubelets.settings import DUAL_STACK, Settings
from zonewise.embedded.kubelets.stages import default_stages, read_stages, timed

__all__ = [
    "DUAL_STACK",
    "FAILED",
    "KUBELET",
    "Kubelets",
    "Settings",
    "default_stages",
    "read_stages",
    "timed",
]
