"""What happens to nodes and the pods on them when a node is lost, drained or deleted.

``health`` decides, ``NodeLifecycleController`` writes conditions and taints,
``TaintEvictionController`` deletes pods that do not tolerate them, ``PodGCController`` deletes
orphaned and finished pods.
"""
