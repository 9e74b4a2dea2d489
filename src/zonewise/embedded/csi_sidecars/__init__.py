"""What surrounds a CSI driver in a real cluster, for the embedded one.

There external sidecars provision, resize and snapshot, the node registrar announces the driver and
the kubelet mounts for pods; here ``provisioner``, ``registration`` and ``pod_mounts`` do, and
``snapshot_definitions`` are the custom resources they need.
"""
