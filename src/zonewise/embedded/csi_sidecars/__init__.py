"""The sidecars of a CSI driver and the kubelet's part of CSI, for the embedded cluster.

On a real cluster the official sidecars and the kubelet do this work. ``provisioner`` creates and
deletes volumes for claims (``volumes`` has its requests, ``sources`` what a claim is filled from),
``resizer`` grows them, ``snapshotter`` takes snapshots, ``capacity`` publishes free capacity;
``sidecars`` runs these for a driver. ``registration`` registers the driver on nodes, ``pod_mounts``
mounts volumes for pods. They work on any API server, with any driver behind a ``CsiClient``.
"""
