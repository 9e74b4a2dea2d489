"""Kubelets without containers: every Node becomes Ready, and so do the pods bound to it.

In the order things happen: ``node_status`` fills in a Node, ``heartbeats`` keep it alive, ``ipam``
gives addresses to nodes and pods, ``stages`` say what happens to a pod, ``pod_lifecycle`` lets it
happen, ``pod_status`` writes it down. ``kubelets`` is the component that does all this.
"""

from zonewise.embedded.components.kubelet.kubelets import Kubelets
from zonewise.embedded.components.kubelet.node_status import FAILED, KUBELET
from zonewise.embedded.components.kubelet.settings import DUAL_STACK, KubeletSettings
from zonewise.embedded.components.kubelet.stages import default_stages, read_stages, timed

__all__ = [
    "DUAL_STACK",
    "FAILED",
    "KUBELET",
    "KubeletSettings",
    "Kubelets",
    "default_stages",
    "read_stages",
    "timed",
]
