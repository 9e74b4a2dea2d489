"""Deployments, ReplicaSets, ReplicationControllers, PodTemplates and ControllerRevisions."""

from __future__ import annotations

from zonewise.api.field_cursor import Field
from zonewise.embedded.apiserver.strategy.base import Obj, Rules, StrategyContext, revert
from zonewise.embedded.apiserver.strategy.pod.spec import validate_pod_template_spec
from zonewise.embedded.apiserver.strategy.selectors import is_empty
from zonewise.embedded.apiserver.strategy.workload.replicated import (
    MISMATCH,
    FixedSelectorRules,
    WorkloadRules,
    int_or_percent_value,
    validate_always_restarting_template,
    validate_at_most_100_percent,
    validate_collision_count,
    validate_int_or_percent,
    validate_not_negative,
    validate_replica_status,
    validate_selector,
    validate_selector_matches_labels,
)


def _validate_selector_and_template(spec: Field, kind: str) -> None:
    selector, template = spec["selector"], spec["template"]
    if not validate_selector(selector, kind):
        selector.invalid("invalid label selector")
        return
    if selector.value is None or not is_empty(selector.value):
        validate_selector_matches_labels(spec)
    validate_pod_template_spec(template)
    validate_always_restarting_template(template, kind)


class DeploymentRules(FixedSelectorRules):
    """The rules of Deployments."""

    def validate(self, obj: Field, context: StrategyContext) -> None:
        spec = obj["spec"]
        validate_not_negative(spec, "replicas", "minReadySeconds", "revisionHistoryLimit")
        _validate_selector_and_template(spec, "deployment")
        _validate_strategy(spec["strategy"])
        deadline = spec["progressDeadlineSeconds"]
        if deadline.value is not None:
            deadline.not_negative()
            if deadline.value <= spec.value.get("minReadySeconds", 0):
                deadline.invalid("must be greater than minReadySeconds")

    def validate_status(self, obj: Field, old: Obj, context: StrategyContext) -> None:
        validate_replica_status(
            obj["status"], "updatedReplicas", "readyReplicas", "availableReplicas"
        )
        validate_collision_count(obj, old)

    def prepare_status(self, obj: Obj, old: Obj, context: StrategyContext) -> None:
        """Labels stay; annotations do not."""
        revert(obj["metadata"], old["metadata"], "labels")

    def changed(self, obj: Obj, old: Obj) -> bool:
        """Annotations count as well: they are copied to the ReplicaSets."""
        return super().changed(obj, old) or (
            obj["metadata"].get("annotations") != old["metadata"].get("annotations")
        )


def _validate_strategy(strategy: Field) -> None:
    kind, rolling = strategy["type"].value, strategy["rollingUpdate"]
    if kind == "Recreate":
        rolling.forbid_set("may not be specified when strategy `type` is 'Recreate'")
    elif kind != "RollingUpdate":
        strategy.unsupported(("Recreate", "RollingUpdate"), strategy.value or {})
    elif rolling.present():
        unavailable, surge = rolling.get("maxUnavailable", 0), rolling.get("maxSurge", 0)
        validate_int_or_percent(unavailable)
        validate_int_or_percent(surge)
        if not int_or_percent_value(unavailable.value) and not int_or_percent_value(surge.value):
            unavailable.invalid("may not be 0 when `maxSurge` is 0")
        validate_at_most_100_percent(unavailable)


class _ReplicatedRules(WorkloadRules):
    def prepare_create(self, obj: Obj, context: StrategyContext) -> None:
        """Nothing runs yet."""
        obj["status"] = {"replicas": 0}

    def validate_status(self, obj: Field, old: Obj, context: StrategyContext) -> None:
        validate_replica_status(
            obj["status"], "fullyLabeledReplicas", "readyReplicas", "availableReplicas"
        )


class ReplicaSetRules(_ReplicatedRules, FixedSelectorRules):
    """The rules of ReplicaSets."""

    def validate(self, obj: Field, context: StrategyContext) -> None:
        validate_not_negative(obj["spec"], "replicas", "minReadySeconds")
        _validate_selector_and_template(obj["spec"], "replicaset")


class ReplicationControllerRules(_ReplicatedRules):
    """The rules of ReplicationControllers; their pods are orphaned by default."""

    default_policy = "Orphan"
    selectable = frozenset({"status.replicas"})

    def fields(self, obj: Obj) -> dict[str, str]:
        return {"status.replicas": str((obj.get("status") or {}).get("replicas", 0))}

    def validate(self, obj: Field, context: StrategyContext) -> None:
        spec = obj["spec"]
        selector, template = spec["selector"], spec["template"]
        validate_not_negative(spec, "replicas", "minReadySeconds")
        selector.required()
        if not template.present():
            return
        labels = template["metadata"]["labels"]
        present = labels.value or {}
        if any(present.get(key) != value for key, value in (selector.value or {}).items()):
            labels.invalid(MISMATCH, present)
        validate_pod_template_spec(template)
        validate_always_restarting_template(template, "ReplicationController")


class PodTemplateRules(WorkloadRules):
    """The rules of PodTemplates."""

    template_path = "template"
    names_pods = False

    def validate(self, obj: Field, context: StrategyContext) -> None:
        validate_pod_template_spec(obj["template"])


class ControllerRevisionRules(Rules):
    """The rules of ControllerRevisions."""

    def validate(self, obj: Field, context: StrategyContext) -> None:
        obj["revision"].not_negative()

    def validate_create(self, obj: Field, context: StrategyContext) -> None:
        """A new one has the data that is revised."""
        self.validate(obj, context)
        if not isinstance(obj["data"].value, dict):
            obj["data"].missing("data is mandatory")

    def validate_update(self, obj: Field, old: Obj, context: StrategyContext) -> None:
        """The data does not change."""
        self.validate(obj, context)
        obj["data"].immutable(old.get("data"))
