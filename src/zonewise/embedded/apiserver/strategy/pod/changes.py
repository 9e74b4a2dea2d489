"""What may change about a pod that exists: almost nothing of its spec, and its status by rules."""

from __future__ import annotations

from zonewise.api.field_cursor import Field
from zonewise.embedded.apiserver.strategy.addresses import NOT_AN_ADDRESS, is_ip
from zonewise.embedded.apiserver.strategy.base import Obj, revert
from zonewise.embedded.apiserver.strategy.pod.affinity import REQUIRED
from zonewise.embedded.apiserver.strategy.pod.resources import CPU_AND_MEMORY
from zonewise.embedded.apiserver.strategy.pod.spec import APPARMOR, MAX_DEADLINE, MIRROR

SYSTEM_CONDITIONS = frozenset({"Initialized", "PodScheduled", "Ready"})
CHANGEABLE = (
    "pod updates may not change fields other than `spec.containers[*].image`,"
    " `spec.initContainers[*].image`, `spec.activeDeadlineSeconds`, `spec.tolerations` (only"
    " additions to existing tolerations), `spec.terminationGracePeriodSeconds` (allow it to be set"
    " to 1 if it was previously negative)"
)


def validate_pod_annotations_update(annotations: Field, old: dict[str, str]) -> None:
    """Some annotations are immutable."""
    current = annotations.value or {}
    if current == old:
        return
    for key in current.keys() | old.keys():
        if (key == MIRROR or key.startswith(APPARMOR)) and current.get(key) != old.get(key):
            annotations.entry(key).forbid("may not be added, removed or updated")


def validate_pod_spec_update(spec: Field, old: Obj) -> None:
    """What an update may not do to a pod's spec."""
    for containers in ("containers", "initContainers"):
        if len(spec.value.get(containers) or ()) != len(old.get(containers) or ()):
            spec[containers].forbid("pod updates may not add or remove containers")
            return
    deadline, old_deadline = spec["activeDeadlineSeconds"], old.get("activeDeadlineSeconds")
    if deadline.value is not None:
        if not deadline.between(0, MAX_DEADLINE):
            return
        if old_deadline is not None and old_deadline < deadline.value:
            deadline.invalid("must be less than or equal to previous value")
            return
    elif old_deadline is not None:
        deadline.invalid("must not update from a positive integer to nil value")
    if old.get("tolerations"):
        remaining = [_without_seconds(value) for value in spec.value.get("tolerations") or ()]
        if any(_without_seconds(value) not in remaining for value in old["tolerations"]):
            spec["tolerations"].forbid(
                "existing toleration can not be modified except its tolerationSeconds"
            )
    if spec.value.get("schedulingGates"):
        old_gates = {gate.get("name") for gate in old.get("schedulingGates") or ()}
        for gate in spec["schedulingGates"].each():
            name = gate["name"]
            if name.value not in old_gates:
                name.forbid(
                    f"only deletion is allowed, but found new scheduling gate '{name.value}'"
                )
    if spec.value != old:
        _validate_rest_unchanged(spec, old)


def _without_seconds(toleration: Obj) -> Obj:
    return {key: value for key, value in toleration.items() if key != "tolerationSeconds"}


def _validate_rest_unchanged(spec: Field, old: Obj) -> None:
    """All that may change is made what it was; if the rest differs, the update is refused."""
    reverted = dict(spec.value)
    for containers in ("containers", "initContainers"):
        if spec.value.get(containers):
            reverted[containers] = [
                container | {"image": old_container.get("image")}
                for container, old_container in zip(
                    spec.value[containers], old[containers], strict=True
                )
            ]
    changeable = ["activeDeadlineSeconds", "schedulingGates", "tolerations"]
    if old.get("schedulingGates"):
        if reverted.get("nodeSelector") != old.get("nodeSelector"):
            labels = spec.value.get("nodeSelector") or {}
            if any(
                labels.get(key) != value for key, value in (old.get("nodeSelector") or {}).items()
            ):
                spec["nodeSelector"].invalid(
                    "only additions to spec.nodeSelector are allowed", labels
                )
            changeable.append("nodeSelector")
        _validate_gated_affinity(spec, old, reverted)
    revert(reverted, old, *changeable)
    if reverted != old:
        spec.forbid(CHANGEABLE)


def _validate_gated_affinity(spec: Field, old: Obj, reverted: Obj) -> None:
    """A gated pod's node affinity may become stricter; ``reverted`` gets the old one."""
    affinity, old_affinity = spec["affinity"]["nodeAffinity"], (old.get("affinity") or {})
    before = old_affinity.get("nodeAffinity")
    if affinity.value == before:
        return
    terms = affinity[REQUIRED]["nodeSelectorTerms"]
    terms = terms.holding(terms.value or [])
    old_terms = ((before or {}).get(REQUIRED) or {}).get("nodeSelectorTerms") or []
    if old_terms and len(old_terms) != len(terms.value):
        terms.invalid("no additions/deletions to non-empty NodeSelectorTerms list are allowed")
    else:
        for term, old_term in zip(terms.each(), old_terms, strict=False):
            if not _only_adds(term.value, old_term):
                term.invalid("only additions are allowed (no mutations or deletions)")
    rest = dict(spec["affinity"].value or {})
    rest.pop("nodeAffinity", None)
    if before is not None:
        rest["nodeAffinity"] = before
    if rest or "affinity" in old:
        reverted["affinity"] = rest
    else:
        reverted.pop("affinity", None)


def _only_adds(term: Obj, old: Obj) -> bool:
    parts = ("matchExpressions", "matchFields")
    if not any(old.get(part) for part in parts):
        return not any(term.get(part) for part in parts)
    return all(
        (term.get(part) or [])[: len(old.get(part) or [])] == (old.get(part) or [])
        for part in parts
    )


def validate_ephemeral_containers_update(spec: Field, old: Obj) -> None:
    """Ephemeral containers do not change once they are added."""
    containers = spec["ephemeralContainers"]
    by_name = {container.get("name"): container for container in containers.value or ()}
    for old_container in old.get("ephemeralContainers") or ():
        name = old_container.get("name")
        if by_name.get(name) != old_container:
            verb = "changed" if name in by_name else "removed"
            containers.forbid(f'existing ephemeral containers "{name}" may not be {verb}')


def keep_but_ephemeral(obj: Obj, old: Obj) -> None:
    """The ``ephemeralcontainers`` subresource changes nothing else."""
    changed = dict(old["spec"])
    revert(changed, obj.get("spec") or {}, "ephemeralContainers")
    obj["spec"] = changed
    _keep_metadata(obj, old)


def keep_but_resources(obj: Obj, old: Obj) -> None:
    """The ``resize`` subresource changes only the resources of containers."""
    spec, old_spec = obj.get("spec") or {}, old["spec"]
    for containers in ("containers", "initContainers"):
        if len(spec.get(containers) or ()) != len(old_spec.get(containers) or ()):
            return
    merged = dict(old_spec)
    for containers in ("containers", "initContainers"):
        if old_spec.get(containers):
            merged[containers] = _with_resources(spec[containers], old_spec[containers])
    revert(merged, spec, "resources")
    obj["spec"] = merged
    _keep_metadata(obj, old)


def _with_resources(containers: list[Obj], old: list[Obj]) -> list[Obj]:
    pairs = list(zip(containers, old, strict=True))
    if any(container.get("name") != before.get("name") for container, before in pairs):
        return containers
    merged = []
    for container, before in pairs:
        resized = dict(before)
        revert(resized, container, "resources", "resizePolicy")
        merged.append(resized)
    return merged


def _keep_metadata(obj: Obj, old: Obj) -> None:
    keys = ("labels", "annotations", "finalizers", "ownerReferences", "deletionTimestamp")
    revert(obj["metadata"], old["metadata"], *keys, "deletionGracePeriodSeconds")


def validate_pod_resize(pod: Field, old: Obj, qos: str, old_qos: str) -> None:
    """What a resize may not do."""
    spec, old_spec = pod["spec"], old["spec"]
    if MIRROR in (old["metadata"].get("annotations") or {}):
        pod.forbid("static pods cannot be resized")
        return
    if (old_spec.get("os") or {}).get("name") == "windows":
        pod.forbid("windows pods cannot be resized")
        return
    if qos != old_qos:
        spec.invalid("Pod QOS Class may not change as a result of resizing", old_qos)
    running = [
        status
        for status in (old.get("status") or {}).get("containerStatuses") or ()
        if (status.get("state") or {}).get("running") is not None
    ]
    if running and running[0].get("resources") is None:
        spec.forbid("Pod running on node without support for resize")
    if not _validate_same_containers(spec, old_spec):
        return
    for key in ("initContainers", "containers"):
        for container, before in zip(spec[key].each(), old_spec.get(key) or (), strict=True):
            resources, old_resources = container["resources"], before.get("resources") or {}
            for side in ("requests", "limits"):
                removed = (old_resources.get(side) or {}).keys() - (
                    resources[side].value or {}
                ).keys()
                if removed:
                    resources[side].forbid(f"resource {side} cannot be removed")
            if _without_cpu_and_memory(container.value) != _without_cpu_and_memory(before):
                reported = spec if key == "containers" else container
                reported.forbid("only cpu and memory resources are mutable")


def _validate_same_containers(spec: Field, old: Obj) -> bool:
    errors = spec.errors
    count = len(errors)
    for key in ("containers", "initContainers"):
        containers, before = spec[key], old.get(key) or ()
        if len(containers.value or ()) != len(before):
            containers.forbid(f"{key} may not be added or removed on resize")
            continue
        for container, old_container in zip(containers.each(), before, strict=True):
            if container["name"].value != old_container.get("name"):
                container["name"].forbid(f"{key} may not be renamed or reordered on resize")
    return len(errors) == count


def _without_cpu_and_memory(container: Obj) -> Obj:
    rest = {key: value for key, value in container.items() if key != "resources"}
    resources = container.get("resources") or {}
    for side in ("requests", "limits"):
        rest[side] = {
            name: amount
            for name, amount in (resources.get(side) or {}).items()
            if name not in CPU_AND_MEMORY
        }
    return rest


def validate_pod_status_update(pod: Field, old: Obj) -> None:
    """What a new status of a pod may not say."""
    status, before = pod["status"], old.get("status") or {}
    fields = status.value or {}
    validate_pod_annotations_update(
        pod["metadata"]["annotations"], old["metadata"].get("annotations") or {}
    )
    for condition in status["conditions"].each():
        condition["observedGeneration"].minimum(0, "must be a non-negative integer")
        kind = condition.value.get("type", "")
        if kind not in SYSTEM_CONDITIONS:
            condition.child("Type", kind).qualified_name()
    nominated = status["nominatedNodeName"]
    if nominated.value and nominated.value != before.get("nominatedNodeName"):
        nominated.dns_subdomain()
        if old["spec"].get("nodeName"):
            nominated.forbid("may not be set on pods that are already bound to a node")
    status["observedGeneration"].minimum(0, "must be a non-negative integer")
    status["qosClass"].immutable(before.get("qosClass"))
    for key, containers in (
        ("containerStatuses", "containers"),
        ("initContainerStatuses", "initContainers"),
        ("ephemeralContainerStatuses", ""),
    ):
        if before.get(key):
            _validate_no_restarts(status, key, before[key], old["spec"], containers)
    _validate_pod_ips(status["podIPs"])
    if fields.get("hostIPs"):
        first = status["hostIPs"].item(0).get("ip", "")
        if first.value != fields.get("hostIP", ""):
            first.invalid("must be equal to `hostIP`")
        _validate_pod_ips(status["hostIPs"])


def _validate_no_restarts(
    status: Field, key: str, old_statuses: list[Obj], spec: Obj, containers: str
) -> None:
    """A container that has ended runs again only if its policy says so."""
    by_name = {value.get("name"): value for value in status[key].value or ()}
    by_container = {value.get("name"): value for value in reversed(spec.get(containers) or ())}
    for index, old in enumerate(old_statuses):
        ended = (old.get("state") or {}).get("terminated")
        current = by_name.get(old.get("name"))
        if ended is None or current is None:
            continue
        if (current.get("state") or {}).get("terminated") is not None:
            continue
        container = by_container.get(old.get("name"))
        if container is None or not _restarts(container, spec, ended.get("exitCode", 0)):
            Field(None, status[key], index)["state"].forbid(
                "may not be transitioned to non-terminated state"
            )


def _restarts(container: Obj, spec: Obj, code: int) -> bool:
    for rule in container.get("restartPolicyRules") or ():
        codes = rule.get("exitCodes") or {}
        if (code in (codes.get("values") or ())) == (codes.get("operator") == "In"):
            return bool(rule.get("action") == "Restart")
    policy = container.get("restartPolicy") or spec.get("restartPolicy")
    return bool(policy == "Always") or (policy == "OnFailure" and code != 0)


def _validate_pod_ips(addresses: Field) -> None:
    texts = [value.get("ip", "") for value in addresses.value or ()]
    for index, text in enumerate(texts):
        if not is_ip(text):
            addresses.item(index).invalid(NOT_AN_ADDRESS, text)
    if len(texts) > 2 or (len(texts) == 2 and (":" in texts[0]) == (":" in texts[1])):
        addresses.invalid("may specify no more than one IP for each IP family")
