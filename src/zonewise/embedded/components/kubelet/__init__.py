"""Kubelets without containers: every Node becomes Ready, and so do the pods bound to it.

In the order things happen: ``node_status`` fills in a Node, ``heartbeats`` renews its lease,
``ipam`` assigns addresses to nodes and pods, ``stages`` defines what happens to a pod and when,
``pod_lifecycle`` applies that, ``pod_status`` renders the status. ``kubelets`` is the component
that does all this.
"""

from zonewise.embedded.components.kubelet.kubelets import DUAL_STACK, Kubelets, KubeletSettings
from zonewise.embedded.components.kubelet.node_status import (
    FAILED_ANNOTATION,
    KUBELET_ANNOTATION,
    has_simulated_kubelet,
    internal_ips,
)
from zonewise.embedded.components.kubelet.stages import default_stages, read_stages, with_delays

__all__ = [
    "DUAL_STACK",
    "FAILED_ANNOTATION",
    "KUBELET_ANNOTATION",
    "KubeletSettings",
    "Kubelets",
    "default_stages",
    "has_simulated_kubelet",
    "internal_ips",
    "read_stages",
    "with_delays",
]
