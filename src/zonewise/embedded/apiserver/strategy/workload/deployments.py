"""Deployments, ReplicaSets, ReplicationControllers, PodTemplates and ControllerRevisions."""

from __future__ import annotations

from zonewise.api import field_errors
from zonewise.embedded.apiserver.strategy.base import Faults, Obj, Rules, StrategyContext
from zonewise.embedded.apiserver.strategy.numbers import (
    count_faults,
    portion_faults,
    size,
    too_much,
)
from zonewise.embedded.apiserver.strategy.pod.spec import template_faults
from zonewise.embedded.apiserver.strategy.pod.warnings import warn_of_workload
from zonewise.embedded.apiserver.strategy.selectors import is_empty, matches, selector_faults

IMMUTABLE = "field is immutable"
MISMATCH = "`selector` does not match template `labels`"
STRATEGIES = ("Recreate", "RollingUpdate")


def judged_template(spec: Obj, path: str, kind: str) -> Faults:
    """Selector and template of a kind that keeps pods running."""
    found: Faults = []
    selector, template = spec.get("selector"), spec.get("template") or {}
    bad: Faults = []
    if selector is None:
        found.append(field_errors.required(f"{path}.selector"))
    else:
        bad = selector_faults(selector, f"{path}.selector")
        found += bad
        if is_empty(selector):
            text = f"empty selector is invalid for {kind}"
            found.append(field_errors.invalid(f"{path}.selector", selector, text))
    if bad:
        found.append(field_errors.invalid(f"{path}.selector", selector, "invalid label selector"))
        return found
    labels = (template.get("metadata") or {}).get("labels") or {}
    if (selector is None or not is_empty(selector)) and not matches(selector, labels):
        found.append(field_errors.invalid(f"{path}.template.metadata.labels", labels, MISMATCH))
    found += template_faults(template, f"{path}.template")
    return found + running_template(template, f"{path}.template", kind)


def running_template(template: Obj, path: str, kind: str) -> Faults:
    """Pods that are replaced when they end must restart and have no deadline."""
    found: Faults = []
    spec = template.get("spec") or {}
    if spec.get("restartPolicy") != "Always":
        policy = spec.get("restartPolicy", "")
        found.append(field_errors.unsupported(f"{path}.spec.restartPolicy", policy, ("Always",)))
    if spec.get("activeDeadlineSeconds") is not None:
        text = f"activeDeadlineSeconds in {kind} is not Supported"
        found.append(field_errors.forbidden(f"{path}.spec.activeDeadlineSeconds", text))
    return found


def same(obj: Obj, old: Obj, key: str) -> Faults:
    """A field of the spec that an update may not touch."""
    value = obj["spec"].get(key)
    if value == old["spec"].get(key):
        return []
    return [field_errors.invalid(f"spec.{key}", value, IMMUTABLE)]


def replica_faults(status: Obj, *parts: str) -> Faults:
    """A status that counts pods: nothing is negative, no part is more than the whole."""
    found = count_faults(
        status,
        "status",
        "observedGeneration",
        "replicas",
        *parts,
        "unavailableReplicas",
        "terminatingReplicas",
        "collisionCount",
    )
    total = status.get("replicas", 0)
    for key in parts:
        if status.get(key, 0) > total:
            text = "cannot be greater than status.replicas"
            found.append(field_errors.invalid(f"status.{key}", status.get(key, 0), text))
    available = status.get("availableReplicas", 0)
    if available > status.get("readyReplicas", 0):
        text = "cannot be greater than readyReplicas"
        found.append(field_errors.invalid("status.availableReplicas", available, text))
    return found


def collision_faults(obj: Obj, old: Obj) -> Faults:
    """The count of collisions only grows."""
    before = (old.get("status") or {}).get("collisionCount")
    now = (obj.get("status") or {}).get("collisionCount")
    if before is None or (now is not None and now >= before):
        return []
    return [field_errors.invalid("status.collisionCount", now or 0, "cannot be decremented")]


class DeploymentRules(Rules):
    """The rules of Deployments."""

    def validate(self, obj: Obj, context: StrategyContext) -> Faults:
        """What is wrong with a Deployment."""
        spec = obj.get("spec") or {}
        found = count_faults(spec, "spec", "replicas", "minReadySeconds", "revisionHistoryLimit")
        found += judged_template(spec, "spec", "deployment")
        found += _strategy_faults(spec.get("strategy") or {}, "spec.strategy")
        deadline = spec.get("progressDeadlineSeconds")
        if deadline is not None:
            found += count_faults(spec, "spec", "progressDeadlineSeconds")
            if deadline <= spec.get("minReadySeconds", 0):
                text = "must be greater than minReadySeconds"
                found.append(field_errors.invalid("spec.progressDeadlineSeconds", deadline, text))
        return found

    def validate_update(self, obj: Obj, old: Obj, context: StrategyContext) -> Faults:
        """The selector stays."""
        return self.validate(obj, context) + same(obj, old, "selector")

    def validate_status(self, obj: Obj, old: Obj, context: StrategyContext) -> Faults:
        """What is wrong with a new status."""
        parts = ("updatedReplicas", "readyReplicas", "availableReplicas")
        return replica_faults(obj.get("status") or {}, *parts) + collision_faults(obj, old)

    def prepare_status(self, obj: Obj, old: Obj, context: StrategyContext) -> None:
        """Labels stay; annotations do not."""
        obj["metadata"].pop("labels", None)
        if "labels" in old["metadata"]:
            obj["metadata"]["labels"] = old["metadata"]["labels"]

    def changed(self, obj: Obj, old: Obj) -> bool:
        """Annotations count as well: they are copied to the ReplicaSets."""
        return super().changed(obj, old) or (
            obj["metadata"].get("annotations") != old["metadata"].get("annotations")
        )

    def warn(self, obj: Obj, old: Obj | None, context: StrategyContext) -> None:
        """Say what is odd about it and its pods."""
        warn_of_workload(obj, old, context)


def _strategy_faults(strategy: Obj, path: str) -> Faults:
    kind, rolling = strategy.get("type", ""), strategy.get("rollingUpdate")
    if kind == "Recreate":
        if rolling is None:
            return []
        text = "may not be specified when strategy `type` is 'Recreate'"
        return [field_errors.forbidden(f"{path}.rollingUpdate", text)]
    if kind != "RollingUpdate":
        return [field_errors.unsupported(path, strategy, STRATEGIES)]
    if rolling is None:
        return [field_errors.required(f"{path}.rollingUpdate")]
    at = f"{path}.rollingUpdate"
    down, up = rolling.get("maxUnavailable", 0), rolling.get("maxSurge", 0)
    found = portion_faults(down, f"{at}.maxUnavailable") + portion_faults(up, f"{at}.maxSurge")
    if size(down) == 0 and size(up) == 0:
        text = "may not be 0 when `maxSurge` is 0"
        found.append(field_errors.invalid(f"{at}.maxUnavailable", down, text))
    return found + too_much(down, f"{at}.maxUnavailable")


class _Replicated(Rules):
    def prepare_create(self, obj: Obj, context: StrategyContext) -> None:
        """Nothing runs yet."""
        obj["status"] = {"replicas": 0}

    def validate_status(self, obj: Obj, old: Obj, context: StrategyContext) -> Faults:
        """What is wrong with a new status."""
        parts = ("fullyLabeledReplicas", "readyReplicas", "availableReplicas")
        return replica_faults(obj.get("status") or {}, *parts)


class ReplicaSetRules(_Replicated):
    """The rules of ReplicaSets."""

    def validate(self, obj: Obj, context: StrategyContext) -> Faults:
        """What is wrong with a ReplicaSet."""
        spec = obj.get("spec") or {}
        found = count_faults(spec, "spec", "replicas", "minReadySeconds")
        return found + judged_template(spec, "spec", "replicaset")

    def validate_update(self, obj: Obj, old: Obj, context: StrategyContext) -> Faults:
        """The selector stays."""
        return self.validate(obj, context) + same(obj, old, "selector")

    def warn(self, obj: Obj, old: Obj | None, context: StrategyContext) -> None:
        """Say what is odd about it and its pods."""
        warn_of_workload(obj, old, context)


class ReplicationControllerRules(_Replicated):
    """The rules of ReplicationControllers; their pods are orphaned by default."""

    default_policy = "Orphan"
    selectable = frozenset({"status.replicas"})

    def fields(self, obj: Obj) -> dict[str, str]:
        """The values of the selectable fields."""
        return {"status.replicas": str((obj.get("status") or {}).get("replicas", 0))}

    def validate(self, obj: Obj, context: StrategyContext) -> Faults:
        """What is wrong with a ReplicationController."""
        spec = obj.get("spec") or {}
        found = count_faults(spec, "spec", "replicas", "minReadySeconds")
        selector, template = spec.get("selector") or {}, spec.get("template")
        if not selector:
            found.append(field_errors.required("spec.selector"))
        if template is None:
            found.append(field_errors.required("spec.template"))
            return found
        labels = (template.get("metadata") or {}).get("labels") or {}
        if any(labels.get(key) != value for key, value in selector.items()):
            found.append(field_errors.invalid("spec.template.metadata.labels", labels, MISMATCH))
        found += template_faults(template, "spec.template")
        return found + running_template(template, "spec.template", "ReplicationController")

    def warn(self, obj: Obj, old: Obj | None, context: StrategyContext) -> None:
        """Say what is odd about it and its pods."""
        warn_of_workload(obj, old, context)


class PodTemplateRules(Rules):
    """The rules of PodTemplates."""

    def validate(self, obj: Obj, context: StrategyContext) -> Faults:
        """What is wrong with a PodTemplate."""
        return template_faults(obj.get("template") or {}, "template")

    def warn(self, obj: Obj, old: Obj | None, context: StrategyContext) -> None:
        """Say what is odd about it and its pods."""
        warn_of_workload(obj, old, context, named=False, path="template")


class RevisionRules(Rules):
    """The rules of ControllerRevisions."""

    def validate(self, obj: Obj, context: StrategyContext) -> Faults:
        """What is wrong with a ControllerRevision, new or not."""
        revision = obj.get("revision", 0)
        if revision >= 0:
            return []
        return [field_errors.invalid("revision", revision, "must be greater than or equal to 0")]

    def validate_create(self, obj: Obj, context: StrategyContext) -> Faults:
        """A new one must say what is revised."""
        found = self.validate(obj, context)
        if not isinstance(obj.get("data"), dict):
            found.append(field_errors.required("data", "data is mandatory"))
        return found

    def validate_update(self, obj: Obj, old: Obj, context: StrategyContext) -> Faults:
        """The data stays."""
        found = self.validate(obj, context)
        if obj.get("data") != old.get("data"):
            found.append(field_errors.invalid("data", obj.get("data"), IMMUTABLE))
        return found
