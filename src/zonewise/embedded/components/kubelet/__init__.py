"""Kubelets without containers: every Node becomes Ready, and so do the pods bound to it.

In the order things happen: ``node_status`` fills in a Node, ``heartbeats`` renews its lease,
``ipam`` assigns addresses to nodes and pods, ``stages`` defines what happens to a pod and when,
``pod_lifecycle`` applies that, ``pod_status`` renders the status. ``kubelets`` is the component
that does all this.
"""
