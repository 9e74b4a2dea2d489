"""Indexes that several components use: an index is kept once if it is the same function."""

from __future__ import annotations

from collections.abc import Mapping

from zonewise.api.meta import Object
from zonewise.api.objects.pod import Pod
from zonewise.api.objects.pod_state import is_pod_finished
from zonewise.runtime.cache.store import IndexFunction


def node_of(pod: Pod) -> tuple[str, ...]:
    """The node a pod is bound to, if it is."""
    return (pod.spec.node_name,) if pod.spec.node_name else ()


BY_NODE: Mapping[str, IndexFunction[Pod]] = {"node": node_of}
"""Pods under the name of their node: ``store.by("node", name)``."""


def namespace_of(item: Object) -> tuple[str, ...]:
    """The namespace an object is in."""
    return (item.metadata.namespace,)


BY_NAMESPACE: Mapping[str, IndexFunction[Object]] = {"namespace": namespace_of}
"""Objects under their namespace: ``store.by("namespace", name)``."""


def end_of(pod: Pod) -> tuple[str, ...]:
    """Whether a pod's containers have ended for good."""
    return ("finished",) if is_pod_finished(pod) else ()


BY_END: Mapping[str, IndexFunction[Pod]] = {"end": end_of}
"""Pods that are finished: ``store.by("end", "finished")``."""
