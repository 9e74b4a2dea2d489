"""StatefulSets and DaemonSets."""

from __future__ import annotations

from typing import Any

from zonewise.api.field_cursor import Field
from zonewise.api.values import names
from zonewise.api.values.numbers import parse_natural
from zonewise.embedded.apiserver.strategy.base import Obj, StrategyContext, words
from zonewise.embedded.apiserver.strategy.pod.spec import validate_pod_template_spec
from zonewise.embedded.apiserver.strategy.pod.volumes import validate_claim_spec
from zonewise.embedded.apiserver.strategy.selectors import is_empty, validate_label_selector
from zonewise.embedded.apiserver.strategy.workload.replicated import (
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

RETENTIONS = ("Delete", "Retain")
CHANGEABLE = words(
    "replicas ordinals template updateStrategy revisionHistoryLimit"
    " persistentVolumeClaimRetentionPolicy minReadySeconds"
)
TEMPLATE_GENERATION = "deprecated.daemonset.template.generation"
COUNTS = words(
    "currentNumberScheduled numberMisscheduled desiredNumberScheduled numberReady"
    " observedGeneration updatedNumberScheduled numberAvailable numberUnavailable collisionCount"
)


class StatefulSetRules(WorkloadRules):
    """The rules of StatefulSets."""

    names_pods = False

    def name_errors(self, name: str) -> list[str]:
        """Pods are called after their set, and names of pods are host names."""
        return names.label_errors(name)

    def prepare_create(self, obj: Obj, context: StrategyContext) -> None:
        """Nothing runs yet."""
        obj["status"] = {"replicas": 0, "availableReplicas": 0}

    def validate_create(self, obj: Field, context: StrategyContext) -> None:
        self.validate(obj, context)
        for claim in obj["spec"]["volumeClaimTemplates"].each():
            validate_claim_spec(claim["spec"])
        obj["spec"]["serviceName"].optional().dns_label()

    def validate(self, obj: Field, context: StrategyContext) -> None:
        spec = obj["spec"]
        validate_not_negative(spec, "replicas", "minReadySeconds")
        policy = spec["podManagementPolicy"]
        if policy.required() and policy.value not in {"OrderedReady", "Parallel"}:
            policy.invalid("must be 'OrderedReady' or 'Parallel'")
        _validate_stateful_strategy(spec["updateStrategy"])
        retention = spec["persistentVolumeClaimRetentionPolicy"]
        if retention.value is not None:
            retention.get("whenDeleted", "").enum(RETENTIONS)
            retention.get("whenScaled", "").enum(RETENTIONS)
        validate_not_negative(spec["ordinals"], "start")
        _validate_stateful_template(spec)

    def validate_update(self, obj: Field, old: Obj, context: StrategyContext) -> None:
        """Only a few fields may change."""
        self.validate(obj, context)
        spec, old_spec = obj["spec"].value or {}, old["spec"]
        keys = (spec.keys() | old_spec.keys()) - set(CHANGEABLE)
        if any(spec.get(key) != old_spec.get(key) for key in keys):
            listed = ", ".join(f"'{key}'" for key in CHANGEABLE)
            obj["spec"].forbid(
                f"updates to statefulset spec for fields other than {listed} are forbidden"
            )

    def validate_status(self, obj: Field, old: Obj, context: StrategyContext) -> None:
        validate_replica_status(
            obj["status"],
            "readyReplicas",
            "currentReplicas",
            "updatedReplicas",
            "availableReplicas",
        )
        validate_collision_count(obj, old)

    def warn(self, obj: Obj, old: Obj | None, context: StrategyContext) -> None:
        super().warn(obj, old, context)
        if (obj.get("spec") or {}).get("revisionHistoryLimit", 0) < 0:
            context.warnings.append(
                "spec.revisionHistoryLimit: a negative value retains all historical revisions;"
                " a value >= 0 is recommended"
            )


def _validate_stateful_strategy(strategy: Field) -> None:
    kind, rolling = (strategy.value or {}).get("type", ""), strategy["rollingUpdate"]
    if not kind:
        strategy.missing()
    elif kind == "OnDelete":
        rolling.invalid_set("only allowed for updateStrategy 'RollingUpdate'")
    elif kind != "RollingUpdate":
        strategy.invalid("must be 'RollingUpdate' or 'OnDelete'")
    elif rolling.value is not None:
        validate_not_negative(rolling, "partition")
        unavailable = rolling["maxUnavailable"]
        if unavailable.value is not None:
            validate_int_or_percent(unavailable)
            validate_at_most_100_percent(unavailable)
            if int_or_percent_value(unavailable.value) == 0:
                unavailable.invalid("cannot be 0")


def _validate_stateful_template(spec: Field) -> None:
    selector, template = spec["selector"], spec["template"]
    if not validate_selector(selector, "statefulset"):
        selector.invalid("")
    else:
        if selector.value is None or not is_empty(selector.value):
            validate_selector_matches_labels(spec)
        validate_pod_template_spec(
            template.holding(_with_claims(template.value or {}, spec.value or {}))
        )
    validate_always_restarting_template(template, "StatefulSet")


def _with_claims(template: Obj, spec: Obj) -> Obj:
    """The template as its pods will be: with the claims as volumes, without names of its own."""
    pod_spec = template.get("spec") or {}
    claims = spec.get("volumeClaimTemplates") or ()
    if not claims and "subdomain" not in pod_spec and "hostname" not in pod_spec:
        return template
    pod_spec = {
        key: value for key, value in pod_spec.items() if key not in {"subdomain", "hostname"}
    }
    if claims:
        added: dict[str, Any] = {}
        for claim in claims:
            name = (claim.get("metadata") or {}).get("name", "")
            added[name] = {"name": name, "persistentVolumeClaim": {"claimName": name}}
        pod_spec["volumes"] = [
            *added.values(),
            *(
                volume
                for volume in pod_spec.get("volumes") or ()
                if volume.get("name") not in added
            ),
        ]
    return {**template, "spec": pod_spec}


class DaemonSetRules(FixedSelectorRules):
    """The rules of DaemonSets; an annotation counts the changes of their template."""

    names_pods = False

    def prepare_create(self, obj: Obj, context: StrategyContext) -> None:
        """Nothing runs yet."""
        obj["status"] = dict.fromkeys(COUNTS[:4], 0)
        _set_template_generation(obj, max(_template_generation(obj), 1))

    def prepare_update(self, obj: Obj, old: Obj, context: StrategyContext) -> None:
        """Only the server counts."""
        number = _template_generation(old)
        if (obj.get("spec") or {}).get("template") != old["spec"].get("template"):
            number += 1
        _set_template_generation(obj, number)

    def validate(self, obj: Field, context: StrategyContext) -> None:
        spec = obj["spec"]
        selector, template = spec["selector"], spec["template"]
        if selector.is_valid(validate_label_selector):
            validate_selector_matches_labels(spec)
        if selector.value is not None and is_empty(selector.value):
            selector.invalid("empty selector is invalid for daemonset")
        validate_pod_template_spec(template)
        validate_always_restarting_template(template, "DaemonSet")
        validate_not_negative(spec, "minReadySeconds", "revisionHistoryLimit")
        _validate_daemon_strategy(spec["updateStrategy"])

    def validate_status(self, obj: Field, old: Obj, context: StrategyContext) -> None:
        validate_not_negative(obj["status"], *COUNTS)
        validate_collision_count(obj, old)


def _template_generation(obj: Obj) -> int:
    text = (obj["metadata"].get("annotations") or {}).get(TEMPLATE_GENERATION, "0")
    return parse_natural(text) or 0


def _set_template_generation(obj: Obj, number: int) -> None:
    annotations = dict(obj["metadata"].get("annotations") or {})
    annotations[TEMPLATE_GENERATION] = str(number)
    obj["metadata"]["annotations"] = annotations


def _validate_daemon_strategy(strategy: Field) -> None:
    kind, rolling = strategy["type"].value, strategy["rollingUpdate"]
    if kind == "OnDelete":
        return
    if kind != "RollingUpdate":
        strategy.unsupported(("OnDelete", "RollingUpdate"), strategy.value or {})
        return
    if not rolling.present():
        return
    unavailable, surge = rolling.get("maxUnavailable", 0), rolling.get("maxSurge", 0)
    for value in (unavailable, surge):
        validate_int_or_percent(value)
        validate_at_most_100_percent(value)
    has_unavailable, has_surge = (
        bool(int_or_percent_value(value.value)) for value in (unavailable, surge)
    )
    if has_unavailable and has_surge:
        surge.invalid("may not be set when maxUnavailable is non-zero")
    elif not has_unavailable and not has_surge:
        unavailable.missing("cannot be 0 when maxSurge is 0")
