"""How many pods each owner requests, and which of them are of an old revision.

A pod's controller is followed up one level, from a ReplicaSet to its own controller, if that has
replicas: a Deployment, an Argo Rollout, any custom kind. A Job's number is in ``owner_views``.
Owners without a number, and pods without an owner, request the pods that exist. The number of an
owner that cannot be found is unknown, and its budget allows nothing.

A pod is *outdated* if its owner would now create it differently: its ReplicaSet is not the newest
of its Deployment, its StatefulSet's update revision or its DaemonSet's template generation is
another. An owner without revisions has no outdated pods.

A pod is *dispensable* if its StatefulSet was scaled down below its ordinal: its deletion is no
update.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

import msgspec

from zonewise.api.codec import decode
from zonewise.api.errors import ParseError
from zonewise.api.meta import Object, ObjectMeta, OwnerReference
from zonewise.api.objects.pod import Pod, PodTemplateSpec
from zonewise.api.unstructured import Unstructured
from zonewise.disruption.owner_views import count_job_pods

REVISION_ANNOTATIONS = ("deployment.kubernetes.io/revision", "rollout.argoproj.io/revision")
GENERATION_ANNOTATION = "deprecated.daemonset.template.generation"
GENERATION_LABEL = "pod-template-generation"
REVISION_LABEL = "controller-revision-hash"
HASH_LABEL = "pod-template-hash"
REPLICA_SET = "ReplicaSet"
REPLICATION_CONTROLLER = "ReplicationController"
STATEFUL_SET = "StatefulSet"
DAEMON_SET = "DaemonSet"
JOB = ("batch", "Job")
DEFAULT_REPLICAS = {"Deployment": 1, REPLICA_SET: 1, STATEFUL_SET: 1, REPLICATION_CONTROLLER: 1}

OwnerKey: TypeAlias = tuple[str, str, str, str]
"""Group, kind, namespace and name of an owner."""


class ControllerReference(NamedTuple):
    """A pod's controller, as the pod names it, and the revision the pod was created from."""

    key: OwnerKey
    uid: str
    revision: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleOwner:
    """What budgets read of a workload; ``replicas`` is None if it has no number of pods."""

    key: OwnerKey
    uid: str = ""
    replicas: int | None = None
    controller: OwnerReference | None = None
    revision: str = ""
    created: str = ""
    terminating: bool = False
    recreates: bool = False
    """Whether all old pods are deleted before the first new one is created."""
    first_ordinal: int = 0
    template: PodTemplateSpec | None = None


def owner_of(item: Object | Unstructured) -> ScaleOwner:
    """An object as the owner of pods, whatever its kind and however much of it was decoded."""
    meta = item.metadata
    kind = item.resource.kind
    spec: Any = getattr(item, "spec", None)
    replicas = getattr(spec, "replicas", None)
    if isinstance(item, Unstructured):
        replicas = item.get("spec", "replicas")
        if (item.resource.group, kind) == JOB:
            replicas = count_job_pods(item)
    status: Any = getattr(item, "status", None)
    revision = {
        DAEMON_SET: meta.annotations.get(GENERATION_ANNOTATION, ""),
        STATEFUL_SET: getattr(status, "update_revision", ""),
    }.get(kind, _find_revision(meta))
    return ScaleOwner(
        key=(item.resource.group, kind, meta.namespace, meta.name),
        uid=meta.uid,
        replicas=_parse_replicas(kind, replicas),
        controller=meta.controller,
        revision=revision,
        created=meta.creation_timestamp or "",
        terminating=meta.deletion_timestamp is not None,
        recreates=getattr(getattr(spec, "strategy", None), "type", "") == "Recreate",
        first_ordinal=getattr(getattr(spec, "ordinals", None), "start", 0),
        template=_parse_template(
            getattr(spec, "template", None), f"{kind} {meta.namespace}/{meta.name}"
        ),
    )


def reference_of(pod: Pod) -> ControllerReference | None:
    """A pod's controller, if it has one."""
    owner = pod.metadata.controller
    if owner is None:
        return None
    label = {STATEFUL_SET: REVISION_LABEL, DAEMON_SET: GENERATION_LABEL}.get(owner.kind, "")
    return ControllerReference(
        owner_key(owner, pod.metadata.namespace), owner.uid, pod.metadata.labels.get(label, "")
    )


def owner_key(owner: OwnerReference, namespace: str) -> OwnerKey:
    """The key of an owner that an owner reference names."""
    return owner.api_version.rpartition("/")[0], owner.kind, namespace, owner.name


class Owners:
    """The owners of a cluster, or of a namespace; ``version`` grows with each change."""

    def __init__(self, owners: Iterable[ScaleOwner] = ()) -> None:
        self._owners: dict[OwnerKey, ScaleOwner] = {}
        self._replica_sets: dict[tuple[str, ...], dict[OwnerKey, ScaleOwner]] = {}
        self.version = 0
        for owner in owners:
            self.put(owner)

    def put(self, owner: ScaleOwner) -> bool:
        """Add or change an owner; returns whether anything is new."""
        if self._owners.get(owner.key) == owner:
            return False
        self.drop(owner.key)
        self._owners[owner.key] = owner
        if (controller_key := _controller_key(owner)) is not None:
            self._replica_sets.setdefault(controller_key, {})[owner.key] = owner
        self.version += 1
        return True

    def drop(self, key: OwnerKey) -> None:
        """Remove an owner."""
        owner = self._owners.pop(key, None)
        if owner is None:
            return
        self.version += 1
        if (controller_key := _controller_key(owner)) is not None:
            siblings = self._replica_sets[controller_key]
            del siblings[key]
            if not siblings:
                del self._replica_sets[controller_key]

    def get(self, key: OwnerKey, uid: str = "") -> ScaleOwner | None:
        """An owner by its key; None if its uid is another one. An empty uid matches any."""
        owner = self._owners.get(key)
        if owner is None or (uid and owner.uid and owner.uid != uid):
            return None
        return owner

    def replica_sets_of(self, key: OwnerKey) -> list[ScaleOwner]:
        """The ReplicaSets of a controller."""
        return list(self._replica_sets.get(key, {}).values())

    def find_scale_owner(self, reference: ControllerReference) -> ScaleOwner | None:
        """The owner that says how many pods there should be; None if it is not known."""
        owner = self.get(reference.key, reference.uid)
        if owner is None or owner.key[1] != REPLICA_SET or owner.controller is None:
            return owner
        controller = self.get(owner_key(owner.controller, owner.key[2]), owner.controller.uid)
        return owner if controller is not None and controller.replicas is None else controller

    def lookup_chain(self, reference: ControllerReference) -> list[OwnerKey]:
        """The keys of the owners that are looked up for the scale, as far as they are known."""
        owner = self.get(reference.key, reference.uid)
        if owner is None or owner.key[1] != REPLICA_SET or owner.controller is None:
            return [reference.key]
        return [reference.key, owner_key(owner.controller, owner.key[2])]

    def find_missing(self, reference: ControllerReference) -> OwnerKey | None:
        """The key of the owner that is missing to find the scale; None if none is."""
        owner = self.get(reference.key, reference.uid)
        if owner is None:
            return reference.key
        if owner.key[1] != REPLICA_SET or owner.controller is None:
            return None
        controller_key = owner_key(owner.controller, owner.key[2])
        return controller_key if self.get(controller_key, owner.controller.uid) is None else None

    def is_recreated(self, reference: ControllerReference) -> bool:
        """Whether pods are deleted before their replacements are created (``Recreate``).

        A budget that protected one of them would wait for its replacement forever.
        """
        owner = self.get(reference.key, reference.uid)
        if owner is None or owner.key[1] != REPLICA_SET or owner.controller is None:
            return False
        controller = self.get(owner_key(owner.controller, owner.key[2]), owner.controller.uid)
        return controller is not None and controller.recreates and owner.replicas == 0

    def is_dispensable(self, pod: Pod) -> bool:
        """Whether a pod's StatefulSet requests fewer pods than this one's ordinal."""
        reference = reference_of(pod)
        if reference is None or reference.key[1] != STATEFUL_SET:
            return False
        owner = self.get(reference.key, reference.uid)
        ordinal = pod.metadata.name.rpartition("-")[2]
        if owner is None or owner.replicas is None or not (ordinal.isascii() and ordinal.isdigit()):
            return False
        return not 0 <= int(ordinal) - owner.first_ordinal < owner.replicas

    def is_outdated(self, reference: ControllerReference) -> bool:
        """Whether pods of this controller and revision would be created differently now."""
        owner = self.get(reference.key, reference.uid)
        if owner is None:
            return False
        if owner.key[1] == REPLICA_SET:
            controller_key = _controller_key(owner)
            if controller_key is None:
                return False
            siblings = self._replica_sets[controller_key]
            return len(siblings) > 1 and self._find_newest(owner, siblings) != owner.key
        return bool(owner.revision and reference.revision) and owner.revision != reference.revision

    def _find_newest(self, owner: ScaleOwner, siblings: Mapping[OwnerKey, ScaleOwner]) -> OwnerKey:
        """The ReplicaSet from which its Deployment creates pods now."""
        revisions = {key: int(owner.revision) for key, owner in siblings.items() if owner.revision}
        if revisions:
            return max(revisions, key=lambda key: (revisions[key], key))
        assert owner.controller is not None
        controller = self.get(owner_key(owner.controller, owner.key[2]), owner.controller.uid)
        if controller is not None and controller.template is not None:
            desired = _without_hash(controller.template)
            matches = sorted(
                key
                for key, sibling in siblings.items()
                if sibling.template is not None and _without_hash(sibling.template) == desired
            )
            if matches:
                return matches[0]
        return max(siblings, key=lambda key: (siblings[key].created, key))


def _controller_key(owner: ScaleOwner) -> tuple[str, ...] | None:
    """The key that all ReplicaSets of one controller have in common."""
    if owner.key[1] != REPLICA_SET or owner.controller is None:
        return None
    return owner_key(owner.controller, owner.key[2])


def _find_revision(meta: ObjectMeta) -> str:
    for name in REVISION_ANNOTATIONS:
        text = meta.annotations.get(name, "")
        if text.isascii() and text.isdigit():
            return text[:18]
    return ""


def _parse_replicas(kind: str, value: Any) -> int | None:
    """A custom kind may use ``replicas`` for anything; what is not a number is ignored."""
    if value is None:
        return DEFAULT_REPLICAS.get(kind)
    return value if type(value) is int and value >= 0 else None


def _parse_template(value: Any, owner: str) -> PodTemplateSpec | None:
    if not isinstance(value, msgspec.Raw):
        return None
    try:
        return _decode_template(bytes(value))
    except ParseError as error:
        raise ParseError(f"{owner}: spec.template cannot be read: {error}; correct it") from None


@lru_cache(maxsize=4096)
def _decode_template(text: bytes) -> PodTemplateSpec:
    return decode(PodTemplateSpec, text)


def _without_hash(template: PodTemplateSpec) -> tuple[dict[str, str], object]:
    labels = template.metadata.labels
    return {key: value for key, value in labels.items() if key != HASH_LABEL}, template.spec
