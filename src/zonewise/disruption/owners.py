"""Which owner requests how many pods, and which of them are of an old revision.

A pod's controller is followed up once, from a ReplicaSet to its own controller, if that has
replicas: a Deployment, an Argo Rollout, any custom kind. Owners without a number, and pods without
an owner, request the pods that exist. The number of an owner that cannot be found is unknown, and
its budget allows nothing.

A pod is *outdated* if its owner would now create it differently: its ReplicaSet is not the newest
of its Deployment, its StatefulSet's update revision or its DaemonSet's template generation is
another. An owner without revisions has no outdated pods.

A pod is *dispensable* if its StatefulSet was scaled down below its ordinal: whatever deletes it, no
update does.
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

REVISION_ANNOTATIONS = ("deployment.kubernetes.io/revision", "rollout.argoproj.io/revision")
GENERATION_ANNOTATION = "deprecated.daemonset.template.generation"
GENERATION_LABEL = "pod-template-generation"
REVISION_LABEL = "controller-revision-hash"
HASH_LABEL = "pod-template-hash"
REPLICA_SET = "ReplicaSet"
STATEFUL_SET = "StatefulSet"
DAEMON_SET = "DaemonSet"
DEFAULT_REPLICAS = {"Deployment": 1, REPLICA_SET: 1, STATEFUL_SET: 1, "ReplicationController": 1}

Place: TypeAlias = tuple[str, str, str, str]
"""Group, kind, namespace and name of an owner."""


class Reference(NamedTuple):
    """A pod's controller, as the pod names it, and the revision the pod was made of."""

    place: Place
    uid: str
    revision: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleOwner:
    """What budgets see of a workload; ``replicas`` is None if it does not say a number."""

    place: Place
    uid: str = ""
    replicas: int | None = None
    controller: OwnerReference | None = None
    revision: str = ""
    created: str = ""
    leaving: bool = False
    recreates: bool = False
    """Whether all old pods are deleted before the first new one is made."""
    first_ordinal: int = 0
    template: PodTemplateSpec | None = None


def owner_of(item: Object | Unstructured) -> ScaleOwner:
    """An object as the owner of pods, whatever its kind and however much of it was decoded."""
    meta = item.metadata
    kind = item.resource.kind
    spec: Any = getattr(item, "spec", None)
    said = getattr(spec, "replicas", None)
    if isinstance(item, Unstructured):
        said = item.get("spec", "replicas")
    status: Any = getattr(item, "status", None)
    revision = {
        DAEMON_SET: meta.annotations.get(GENERATION_ANNOTATION, ""),
        STATEFUL_SET: getattr(status, "update_revision", ""),
    }.get(kind, _revision(meta))
    return ScaleOwner(
        place=(item.resource.group, kind, meta.namespace, meta.name),
        uid=meta.uid,
        replicas=_replicas(kind, said),
        controller=meta.controller,
        revision=revision,
        created=meta.creation_timestamp or "",
        leaving=meta.deletion_timestamp is not None,
        recreates=getattr(getattr(spec, "strategy", None), "type", "") == "Recreate",
        first_ordinal=getattr(getattr(spec, "ordinals", None), "start", 0),
        template=_template(getattr(spec, "template", None), f"{kind} {meta.namespace}/{meta.name}"),
    )


def reference_of(pod: Pod) -> Reference | None:
    """A pod's controller, if it has one."""
    owner = pod.metadata.controller
    if owner is None:
        return None
    label = {STATEFUL_SET: REVISION_LABEL, DAEMON_SET: GENERATION_LABEL}.get(owner.kind, "")
    return Reference(
        place_of(owner, pod.metadata.namespace),
        owner.uid,
        pod.metadata.labels.get(label, ""),
    )


def place_of(owner: OwnerReference, namespace: str) -> Place:
    """Where an owner is found."""
    return owner.api_version.rpartition("/")[0], owner.kind, namespace, owner.name


class Owners:
    """The owners of a cluster, or of a namespace; ``version`` grows with each change."""

    def __init__(self, owners: Iterable[ScaleOwner] = ()) -> None:
        self._owners: dict[Place, ScaleOwner] = {}
        self._sets: dict[tuple[str, ...], dict[Place, ScaleOwner]] = {}
        self.version = 0
        for owner in owners:
            self.put(owner)

    def put(self, owner: ScaleOwner) -> bool:
        """Add or change an owner; returns whether anything is new."""
        if self._owners.get(owner.place) == owner:
            return False
        self.drop(owner.place)
        self._owners[owner.place] = owner
        if (family := _family(owner)) is not None:
            self._sets.setdefault(family, {})[owner.place] = owner
        self.version += 1
        return True

    def drop(self, place: Place) -> None:
        """Remove an owner."""
        owner = self._owners.pop(place, None)
        if owner is None:
            return
        self.version += 1
        if (family := _family(owner)) is not None:
            siblings = self._sets[family]
            del siblings[place]
            if not siblings:
                del self._sets[family]

    def get(self, place: Place, uid: str = "") -> ScaleOwner | None:
        """An owner; one of the same name with another uid is None. No uid matches any."""
        found = self._owners.get(place)
        if found is None or (uid and found.uid and found.uid != uid):
            return None
        return found

    def asking(self, reference: Reference) -> ScaleOwner | None:
        """The owner that says how many pods there should be; None if that is unknown."""
        owner = self.get(reference.place, reference.uid)
        if owner is None or owner.place[1] != REPLICA_SET or owner.controller is None:
            return owner
        above = self.get(place_of(owner.controller, owner.place[2]), owner.controller.uid)
        return owner if above is not None and above.replicas is None else above

    def followed(self, reference: Reference) -> list[Place]:
        """The owners that are looked up to find the requesting one, as far as they are known."""
        owner = self.get(reference.place, reference.uid)
        if owner is None or owner.place[1] != REPLICA_SET or owner.controller is None:
            return [reference.place]
        return [reference.place, place_of(owner.controller, owner.place[2])]

    def missing(self, reference: Reference) -> Place | None:
        """The owner that is missing to find the requesting one."""
        owner = self.get(reference.place, reference.uid)
        if owner is None:
            return reference.place
        if owner.place[1] != REPLICA_SET or owner.controller is None:
            return None
        above = place_of(owner.controller, owner.place[2])
        return above if self.get(above, owner.controller.uid) is None else None

    def recreated(self, reference: Reference) -> bool:
        """Whether pods are deleted before their replacements are made (``Recreate``).

        A budget that held one of them would wait for its replacement forever.
        """
        owner = self.get(reference.place, reference.uid)
        if owner is None or owner.place[1] != REPLICA_SET or owner.controller is None:
            return False
        above = self.get(place_of(owner.controller, owner.place[2]), owner.controller.uid)
        return above is not None and above.recreates and owner.replicas == 0

    def dispensable(self, pod: Pod) -> bool:
        """Whether a pod's StatefulSet requests fewer pods than this one's ordinal."""
        reference = reference_of(pod)
        if reference is None or reference.place[1] != STATEFUL_SET:
            return False
        owner = self.get(reference.place, reference.uid)
        number = pod.metadata.name.rpartition("-")[2]
        if owner is None or owner.replicas is None or not (number.isascii() and number.isdigit()):
            return False
        return not 0 <= int(number) - owner.first_ordinal < owner.replicas

    def outdated(self, reference: Reference) -> bool:
        """Whether pods of this controller and revision would be made differently now."""
        owner = self.get(reference.place, reference.uid)
        if owner is None:
            return False
        if owner.place[1] == REPLICA_SET:
            family = _family(owner)
            if family is None:
                return False
            siblings = self._sets[family]
            return len(siblings) > 1 and self._newest(owner, siblings) != owner.place
        return bool(owner.revision and reference.revision) and owner.revision != reference.revision

    def _newest(self, owner: ScaleOwner, siblings: Mapping[Place, ScaleOwner]) -> Place:
        """The ReplicaSet its Deployment would make pods from."""
        numbered = {place: int(one.revision) for place, one in siblings.items() if one.revision}
        if numbered:
            return max(numbered, key=lambda place: (numbered[place], place))
        assert owner.controller is not None
        above = self.get(place_of(owner.controller, owner.place[2]), owner.controller.uid)
        if above is not None and above.template is not None:
            wanted = _unhashed(above.template)
            same = sorted(
                place
                for place, one in siblings.items()
                if one.template is not None and _unhashed(one.template) == wanted
            )
            if same:
                return same[0]
        return max(siblings, key=lambda place: (siblings[place].created, place))


def _family(owner: ScaleOwner) -> tuple[str, ...] | None:
    """What ReplicaSets of one controller have in common."""
    if owner.place[1] != REPLICA_SET or owner.controller is None:
        return None
    return place_of(owner.controller, owner.place[2])


def _revision(meta: ObjectMeta) -> str:
    for name in REVISION_ANNOTATIONS:
        text = meta.annotations.get(name, "")
        if text.isascii() and text.isdigit():
            return text[:18]
    return ""


def _replicas(kind: str, said: Any) -> int | None:
    """A custom kind may mean anything by ``replicas``; what is not a number is ignored."""
    if said is None:
        return DEFAULT_REPLICAS.get(kind)
    return said if type(said) is int and said >= 0 else None


def _template(value: Any, whose: str) -> PodTemplateSpec | None:
    if not isinstance(value, msgspec.Raw):
        return None
    try:
        return _decoded(bytes(value))
    except ParseError as error:
        raise ParseError(f"{whose}: spec.template cannot be read: {error}; correct it") from None


@lru_cache(maxsize=4096)
def _decoded(text: bytes) -> PodTemplateSpec:
    return decode(PodTemplateSpec, text)


def _unhashed(template: PodTemplateSpec) -> tuple[dict[str, str], object]:
    labels = template.metadata.labels
    return {key: value for key, value in labels.items() if key != HASH_LABEL}, template.spec
