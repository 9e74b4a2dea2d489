"""What may change about a pod that exists: almost nothing of its spec, and its status by rules."""

from __future__ import annotations

from typing import Any

from zonewise.api import field_errors
from zonewise.api.values import names
from zonewise.embedded.apiserver.strategy import metadata
from zonewise.embedded.apiserver.strategy.base import Faults, Obj
from zonewise.embedded.apiserver.strategy.pod.affinity import REQUIRED
from zonewise.embedded.apiserver.strategy.pod.spec import (
    ADDRESS,
    APPARMOR,
    LONGEST_DEADLINE,
    MIRROR,
    is_address,
)

SYSTEM_CONDITIONS = frozenset({"Initialized", "PodScheduled", "Ready"})
SCARCE = ("cpu", "memory")
CHANGEABLE = (
    "pod updates may not change fields other than `spec.containers[*].image`,"
    " `spec.initContainers[*].image`, `spec.activeDeadlineSeconds`, `spec.tolerations` (only"
    " additions to existing tolerations), `spec.terminationGracePeriodSeconds` (allow it to be set"
    " to 1 if it was previously negative)"
)


def annotation_change_faults(obj: Obj, old: Obj) -> Faults:
    """Some annotations are immutable."""
    now = obj["metadata"].get("annotations") or {}
    was = old["metadata"].get("annotations") or {}
    if now == was:
        return []
    found: Faults = []
    for key in now.keys() | was.keys():
        if (key == MIRROR or key.startswith(APPARMOR)) and now.get(key) != was.get(key):
            at = f"metadata.annotations[{key}]"
            found.append(field_errors.forbidden(at, "may not be added, removed or updated"))
    return found


def spec_change_faults(spec: Obj, before: Obj) -> Faults:
    """What an update may not do to a pod's spec."""
    found: Faults = []
    for group in ("containers", "initContainers"):
        now, was = spec.get(group) or (), before.get(group) or ()
        if len(now) != len(was):
            text = "pod updates may not add or remove containers"
            found.append(field_errors.forbidden(f"spec.{group}", text))
            return found
    now, was = spec.get("activeDeadlineSeconds"), before.get("activeDeadlineSeconds")
    at = "spec.activeDeadlineSeconds"
    if now is not None:
        if not 0 <= now <= LONGEST_DEADLINE:
            text = f"must be between 0 and {LONGEST_DEADLINE}, inclusive"
            return [*found, field_errors.invalid(at, now, text)]
        if was is not None and was < now:
            text = "must be less than or equal to previous value"
            return [*found, field_errors.invalid(at, now, text)]
    elif was is not None:
        text = "must not update from a positive integer to nil value"
        found.append(field_errors.invalid(at, None, text))
    found += _tolerations(spec.get("tolerations") or (), before.get("tolerations") or ())
    known = {gate.get("name") for gate in before.get("schedulingGates") or ()}
    for index, gate in enumerate(spec.get("schedulingGates") or ()):
        name = gate.get("name")
        if name not in known:
            text = f"only deletion is allowed, but found new scheduling gate '{name}'"
            found.append(field_errors.forbidden(f"spec.schedulingGates[{index}].name", text))
    if spec == before:
        return found
    return found + _frozen(spec, before)


def _tolerations(now: Any, was: Any) -> Faults:
    have = [_timeless(one) for one in now]
    if all(_timeless(one) in have for one in was):
        return []
    text = "existing toleration can not be modified except its tolerationSeconds"
    return [field_errors.forbidden("spec.tolerations", text)]


def _timeless(toleration: Obj) -> Obj:
    return {key: value for key, value in toleration.items() if key != "tolerationSeconds"}


def _frozen(spec: Obj, before: Obj) -> Faults:
    """All that may change is made what it was; if the rest differs, the update is refused."""
    found: Faults = []
    same = dict(spec)
    for group in ("containers", "initContainers"):
        if spec.get(group):
            same[group] = [
                one | {"image": was.get("image")}
                for one, was in zip(spec[group], before[group], strict=True)
            ]
    keep = ["activeDeadlineSeconds", "schedulingGates", "tolerations"]
    if before.get("schedulingGates"):
        if same.get("nodeSelector") != before.get("nodeSelector"):
            chosen = spec.get("nodeSelector") or {}
            if any(
                chosen.get(key) != value
                for key, value in (before.get("nodeSelector") or {}).items()
            ):
                text = "only additions to spec.nodeSelector are allowed"
                found.append(field_errors.invalid("spec.nodeSelector", chosen, text))
            keep.append("nodeSelector")
        found += _narrowed(same, before)
    for key in keep:
        if key in before:
            same[key] = before[key]
        else:
            same.pop(key, None)
    if same != before:
        found.append(field_errors.forbidden("spec", CHANGEABLE))
    return found


def _narrowed(same: Obj, before: Obj) -> Faults:
    """A gated pod's node affinity may become stricter."""
    now = (same.get("affinity") or {}).get("nodeAffinity")
    was = (before.get("affinity") or {}).get("nodeAffinity")
    if now == was:
        return []
    found: Faults = []
    at = f"spec.affinity.nodeAffinity.{REQUIRED}.nodeSelectorTerms"
    old_terms = ((was or {}).get(REQUIRED) or {}).get("nodeSelectorTerms") or []
    new_terms = ((now or {}).get(REQUIRED) or {}).get("nodeSelectorTerms") or []
    if old_terms and len(old_terms) != len(new_terms):
        text = "no additions/deletions to non-empty NodeSelectorTerms list are allowed"
        found.append(field_errors.invalid(at, new_terms, text))
    else:
        for index, (new, old) in enumerate(zip(new_terms, old_terms, strict=False)):
            if not _only_added(new, old):
                text = "only additions are allowed (no mutations or deletions)"
                found.append(field_errors.invalid(f"{at}[{index}]", new, text))
    rest = dict(same.get("affinity") or {})
    rest.pop("nodeAffinity", None)
    if was is not None:
        rest["nodeAffinity"] = was
    if rest or "affinity" in before:
        same["affinity"] = rest
    else:
        same.pop("affinity", None)
    return found


def _only_added(new: Obj, old: Obj) -> bool:
    parts = ("matchExpressions", "matchFields")
    if not any(old.get(part) for part in parts):
        return not any(new.get(part) for part in parts)
    return all(
        (new.get(part) or [])[: len(old.get(part) or [])] == (old.get(part) or []) for part in parts
    )


def ephemeral_change_faults(spec: Obj, before: Obj) -> Faults:
    """Ephemeral containers do not change once they are added."""
    found: Faults = []
    now = {one.get("name"): one for one in spec.get("ephemeralContainers") or ()}
    for old in before.get("ephemeralContainers") or ():
        name = old.get("name")
        if now.get(name) == old:
            continue
        verb = "changed" if name in now else "removed"
        text = f'existing ephemeral containers "{name}" may not be {verb}'
        found.append(field_errors.forbidden("spec.ephemeralContainers", text))
    return found


def keep_but_ephemeral(obj: Obj, old: Obj) -> None:
    """The ``ephemeralcontainers`` subresource changes nothing else."""
    added = (obj.get("spec") or {}).get("ephemeralContainers")
    obj["spec"] = dict(old["spec"])
    obj["spec"].pop("ephemeralContainers", None)
    if added:
        obj["spec"]["ephemeralContainers"] = added
    _keep_metadata(obj, old)


def keep_but_resources(obj: Obj, old: Obj) -> None:
    """The ``resize`` subresource changes only the resources of containers."""
    spec, before = obj.get("spec") or {}, old["spec"]
    for group in ("containers", "initContainers"):
        if len(spec.get(group) or ()) != len(before.get(group) or ()):
            return
    merged = dict(before)
    for group in ("containers", "initContainers"):
        if before.get(group):
            merged[group] = _resized(spec[group], before[group])
    if spec.get("resources") is not None:
        merged["resources"] = spec["resources"]
    else:
        merged.pop("resources", None)
    obj["spec"] = merged
    _keep_metadata(obj, old)


def _resized(now: list[Obj], was: list[Obj]) -> list[Obj]:
    if any(one.get("name") != two.get("name") for one, two in zip(now, was, strict=True)):
        return now
    merged = []
    for one, two in zip(now, was, strict=True):
        new = dict(two)
        for key in ("resources", "resizePolicy"):
            if key in one:
                new[key] = one[key]
            else:
                new.pop(key, None)
        merged.append(new)
    return merged


def _keep_metadata(obj: Obj, old: Obj) -> None:
    meta, before = obj["metadata"], old["metadata"]
    for key in (
        "labels",
        "annotations",
        "finalizers",
        "ownerReferences",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
    ):
        if key in before:
            meta[key] = before[key]
        else:
            meta.pop(key, None)


def resize_faults(obj: Obj, old: Obj, quality: str, before_quality: str) -> Faults:
    """What a resize may not do."""
    spec, before = obj["spec"], old["spec"]
    if MIRROR in (old["metadata"].get("annotations") or {}):
        return [field_errors.forbidden("", "static pods cannot be resized")]
    if (before.get("os") or {}).get("name") == "windows":
        return [field_errors.forbidden("", "windows pods cannot be resized")]
    found: Faults = []
    if quality != before_quality:
        text = "Pod QOS Class may not change as a result of resizing"
        found.append(field_errors.invalid("spec", before_quality, text))
    running = [
        one
        for one in (old.get("status") or {}).get("containerStatuses") or ()
        if (one.get("state") or {}).get("running") is not None
    ]
    if running and running[0].get("resources") is None:
        found.append(
            field_errors.forbidden("spec", "Pod running on node without support for resize")
        )
    order = _same_containers(spec, before)
    if order:
        return found + order
    for group in ("initContainers", "containers"):
        for index, (one, was) in enumerate(
            zip(spec.get(group) or (), before.get(group) or (), strict=True)
        ):
            now, then = one.get("resources") or {}, was.get("resources") or {}
            for side in ("requests", "limits"):
                if (then.get(side) or {}).keys() - (now.get(side) or {}).keys():
                    at = f"spec.{group}[{index}].resources.{side}"
                    found.append(field_errors.forbidden(at, f"resource {side} cannot be removed"))
            if _without_scarce(one) != _without_scarce(was):
                at = "spec" if group == "containers" else f"spec.{group}[{index}]"
                text = "only cpu and memory resources are mutable"
                found.append(field_errors.forbidden(at, text))
    return found


def _same_containers(spec: Obj, before: Obj) -> Faults:
    found: Faults = []
    for group in ("containers", "initContainers"):
        now, was = spec.get(group) or (), before.get(group) or ()
        if len(now) != len(was):
            text = f"{group} may not be added or removed on resize"
            found.append(field_errors.forbidden(f"spec.{group}", text))
            continue
        for index, (one, two) in enumerate(zip(now, was, strict=True)):
            if one.get("name") != two.get("name"):
                text = f"{group} may not be renamed or reordered on resize"
                found.append(field_errors.forbidden(f"spec.{group}[{index}].name", text))
    return found


def _without_scarce(container: Obj) -> Obj:
    rest = {key: value for key, value in container.items() if key != "resources"}
    resources = container.get("resources") or {}
    for side in ("requests", "limits"):
        rest[side] = {
            name: amount
            for name, amount in (resources.get(side) or {}).items()
            if name not in SCARCE
        }
    return rest


def status_faults(obj: Obj, old: Obj) -> Faults:
    """What a new status of a pod may not say."""
    status, before = obj.get("status") or {}, old.get("status") or {}
    found = annotation_change_faults(obj, old)
    for index, condition in enumerate(status.get("conditions") or ()):
        if condition.get("observedGeneration", 0) < 0:
            at = f"status.conditions[{index}].observedGeneration"
            value = condition["observedGeneration"]
            found.append(field_errors.invalid(at, value, "must be a non-negative integer"))
        kind = condition.get("type", "")
        if kind not in SYSTEM_CONDITIONS:
            at = f"status.conditions[{index}].Type"
            found += [
                field_errors.invalid(at, kind, text) for text in metadata.qualified_name(kind)
            ]
    nominated = status.get("nominatedNodeName", "")
    if nominated and nominated != before.get("nominatedNodeName"):
        at = "status.nominatedNodeName"
        found += [field_errors.invalid(at, nominated, text) for text in names.subdomain(nominated)]
        if old["spec"].get("nodeName"):
            text = "may not be set on pods that are already bound to a node"
            found.append(field_errors.forbidden(at, text))
    if status.get("observedGeneration", 0) < 0:
        value = status["observedGeneration"]
        text = "must be a non-negative integer"
        found.append(field_errors.invalid("status.observedGeneration", value, text))
    if status.get("qosClass") != before.get("qosClass"):
        text = "field is immutable"
        found.append(field_errors.invalid("status.qosClass", status.get("qosClass"), text))
    for group in ("containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses"):
        if before.get(group):
            found += _revived(group, status, before, old["spec"])
    found += _addresses(status, "podIPs")
    if status.get("hostIPs"):
        first = status["hostIPs"][0].get("ip", "")
        if first != status.get("hostIP", ""):
            found.append(
                field_errors.invalid("status.hostIPs[0].ip", first, "must be equal to `hostIP`")
            )
        found += _addresses(status, "hostIPs")
    return found


def _revived(group: str, status: Obj, before: Obj, spec: Obj) -> Faults:
    """A container that has ended runs again only if its policy says so."""
    found: Faults = []
    now = {one.get("name"): one for one in status.get(group) or ()}
    holders = {"containerStatuses": "containers", "initContainerStatuses": "initContainers"}
    for index, was in enumerate(before[group]):
        ended = (was.get("state") or {}).get("terminated")
        one = now.get(was.get("name"))
        if ended is None or one is None or (one.get("state") or {}).get("terminated") is not None:
            continue
        containers = spec.get(holders.get(group, "")) or ()
        container = next((c for c in containers if c.get("name") == was.get("name")), None)
        if container is not None and _restarts(container, spec, ended.get("exitCode", 0)):
            continue
        text = "may not be transitioned to non-terminated state"
        found.append(field_errors.forbidden(f"status.{group}[{index}].state", text))
    return found


def _restarts(container: Obj, spec: Obj, code: int) -> bool:
    for rule in container.get("restartPolicyRules") or ():
        codes = rule.get("exitCodes") or {}
        if (code in (codes.get("values") or ())) == (codes.get("operator") == "In"):
            return bool(rule.get("action") == "Restart")
    policy = container.get("restartPolicy") or spec.get("restartPolicy")
    return bool(policy == "Always") or (policy == "OnFailure" and code != 0)


def _addresses(status: Obj, key: str) -> Faults:
    found: Faults = []
    texts = [one.get("ip", "") for one in status.get(key) or ()]
    for index, text in enumerate(texts):
        if not is_address(text):
            found.append(field_errors.invalid(f"status.{key}[{index}]", text, ADDRESS))
    if len(texts) > 1:
        families = {":" in text for text in texts}
        if len(families) < 2 or len(texts) > 2:
            text = "may specify no more than one IP for each IP family"
            found.append(field_errors.invalid(f"status.{key}", status[key], text))
    return found
