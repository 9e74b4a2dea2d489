"""StatefulSets and DaemonSets."""

from __future__ import annotations

from typing import Any

from zonewise.api import field_errors
from zonewise.api.values import names
from zonewise.api.values.numbers import natural
from zonewise.embedded.apiserver.strategy.base import Faults, Obj, Rules, StrategyContext
from zonewise.embedded.apiserver.strategy.numbers import (
    count_faults,
    portion_faults,
    size,
    too_much,
)
from zonewise.embedded.apiserver.strategy.pod.spec import template_faults
from zonewise.embedded.apiserver.strategy.pod.volumes import claim_spec_faults
from zonewise.embedded.apiserver.strategy.pod.warnings import warn_of_workload
from zonewise.embedded.apiserver.strategy.selectors import is_empty, matches, selector_faults
from zonewise.embedded.apiserver.strategy.workload.deployments import (
    MISMATCH,
    collision_faults,
    replica_faults,
    running_template,
    same,
)

RETENTIONS = ("Delete", "Retain")
CHANGEABLE = (
    "replicas",
    "ordinals",
    "template",
    "updateStrategy",
    "revisionHistoryLimit",
    "persistentVolumeClaimRetentionPolicy",
    "minReadySeconds",
)
TEMPLATE_GENERATION = "deprecated.daemonset.template.generation"
COUNTS = (
    "currentNumberScheduled",
    "numberMisscheduled",
    "desiredNumberScheduled",
    "numberReady",
    "observedGeneration",
    "updatedNumberScheduled",
    "numberAvailable",
    "numberUnavailable",
    "collisionCount",
)


class StatefulSetRules(Rules):
    """The rules of StatefulSets."""

    def name_faults(self, name: str) -> list[str]:
        """Why a name is none: pods are called after their set, and names of pods are host names."""
        return names.label(name)

    def prepare_create(self, obj: Obj, context: StrategyContext) -> None:
        """Nothing runs yet."""
        obj["status"] = {"replicas": 0, "availableReplicas": 0}

    def validate_create(self, obj: Obj, context: StrategyContext) -> Faults:
        """What is wrong with a new set."""
        spec = obj.get("spec") or {}
        found = self.validate(obj, context)
        for index, claim in enumerate(spec.get("volumeClaimTemplates") or ()):
            at = f"spec.volumeClaimTemplates[{index}].spec"
            found += claim_spec_faults(claim.get("spec") or {}, at)
        name = spec.get("serviceName")
        if name:
            found += [
                field_errors.invalid("spec.serviceName", name, text) for text in names.label(name)
            ]
        return found

    def validate(self, obj: Obj, context: StrategyContext) -> Faults:
        """What is wrong with a set, new or not."""
        spec = obj.get("spec") or {}
        found = count_faults(spec, "spec", "replicas", "minReadySeconds")
        policy = spec.get("podManagementPolicy", "")
        if not policy:
            found.append(field_errors.required("spec.podManagementPolicy"))
        elif policy not in {"OrderedReady", "Parallel"}:
            text = "must be 'OrderedReady' or 'Parallel'"
            found.append(field_errors.invalid("spec.podManagementPolicy", policy, text))
        found += _update_strategy(spec.get("updateStrategy") or {}, "spec.updateStrategy")
        retention = spec.get("persistentVolumeClaimRetentionPolicy")
        if retention is not None:
            for key in ("whenDeleted", "whenScaled"):
                if retention.get(key) not in RETENTIONS:
                    at = f"spec.persistentVolumeClaimRetentionPolicy.{key}"
                    found.append(field_errors.unsupported(at, retention.get(key, ""), RETENTIONS))
        if spec.get("ordinals"):
            found += count_faults(spec["ordinals"], "spec.ordinals", "start")
        return found + _stateful_template(spec)

    def validate_update(self, obj: Obj, old: Obj, context: StrategyContext) -> Faults:
        """Only a few fields may change."""
        found = self.validate(obj, context)
        spec, before = obj.get("spec") or {}, old["spec"]
        keys = (spec.keys() | before.keys()) - set(CHANGEABLE)
        if any(spec.get(key) != before.get(key) for key in keys):
            listed = ", ".join(f"'{key}'" for key in CHANGEABLE)
            text = f"updates to statefulset spec for fields other than {listed} are forbidden"
            found.append(field_errors.forbidden("spec", text))
        return found

    def validate_status(self, obj: Obj, old: Obj, context: StrategyContext) -> Faults:
        """What is wrong with a new status."""
        parts = ("readyReplicas", "currentReplicas", "updatedReplicas", "availableReplicas")
        return replica_faults(obj.get("status") or {}, *parts) + collision_faults(obj, old)

    def warn(self, obj: Obj, old: Obj | None, context: StrategyContext) -> None:
        """Say what is odd about it and its pods."""
        warn_of_workload(obj, old, context, named=False)
        if (obj.get("spec") or {}).get("revisionHistoryLimit", 0) < 0:
            context.warnings.append(
                "spec.revisionHistoryLimit: a negative value retains all historical revisions;"
                " a value >= 0 is recommended"
            )


def _update_strategy(strategy: Obj, path: str) -> Faults:
    kind, rolling = strategy.get("type", ""), strategy.get("rollingUpdate")
    if not kind:
        return [field_errors.required(path)]
    if kind == "OnDelete":
        if rolling is None:
            return []
        text = "only allowed for updateStrategy 'RollingUpdate'"
        return [field_errors.invalid(f"{path}.rollingUpdate", rolling, text)]
    if kind != "RollingUpdate":
        return [field_errors.invalid(path, strategy, "must be 'RollingUpdate' or 'OnDelete'")]
    if rolling is None:
        return []
    found = count_faults(rolling, f"{path}.rollingUpdate", "partition")
    down = rolling.get("maxUnavailable")
    if down is not None:
        at = f"{path}.rollingUpdate.maxUnavailable"
        found += portion_faults(down, at) + too_much(down, at)
        if size(down) == 0:
            found.append(field_errors.invalid(at, down, "cannot be 0"))
    return found


def _stateful_template(spec: Obj) -> Faults:
    found: Faults = []
    selector, template = spec.get("selector"), spec.get("template") or {}
    bad: Faults = []
    if selector is None:
        found.append(field_errors.required("spec.selector"))
    else:
        bad = selector_faults(selector, "spec.selector")
        found += bad
        if is_empty(selector):
            text = "empty selector is invalid for statefulset"
            found.append(field_errors.invalid("spec.selector", selector, text))
    if bad:
        found.append(field_errors.invalid("spec.selector", selector, ""))
    else:
        labels = (template.get("metadata") or {}).get("labels") or {}
        if (selector is None or not is_empty(selector)) and not matches(selector, labels):
            found.append(field_errors.invalid("spec.template.metadata.labels", labels, MISMATCH))
        found += template_faults(_with_claims(template, spec), "spec.template")
    return found + running_template(template, "spec.template", "StatefulSet")


def _with_claims(template: Obj, spec: Obj) -> Obj:
    """The template as its pods will be: with the claims as volumes, without names of its own."""
    inner = template.get("spec") or {}
    claims = spec.get("volumeClaimTemplates") or ()
    if not claims and "subdomain" not in inner and "hostname" not in inner:
        return template
    inner = {key: value for key, value in inner.items() if key not in {"subdomain", "hostname"}}
    if claims:
        added: dict[str, Any] = {}
        for claim in claims:
            name = (claim.get("metadata") or {}).get("name", "")
            added[name] = {"name": name, "persistentVolumeClaim": {"claimName": name}}
        rest = [one for one in inner.get("volumes") or () if one.get("name") not in added]
        inner["volumes"] = [*added.values(), *rest]
    return {**template, "spec": inner}


class DaemonSetRules(Rules):
    """The rules of DaemonSets; an annotation counts the changes of their template."""

    def prepare_create(self, obj: Obj, context: StrategyContext) -> None:
        """Nothing runs yet."""
        obj["status"] = dict.fromkeys(COUNTS[:4], 0)
        _count_template(obj, max(_template_generation(obj), 1))

    def prepare_update(self, obj: Obj, old: Obj, context: StrategyContext) -> None:
        """Only the server counts."""
        number = _template_generation(old)
        if (obj.get("spec") or {}).get("template") != old["spec"].get("template"):
            number += 1
        _count_template(obj, number)

    def validate(self, obj: Obj, context: StrategyContext) -> Faults:
        """What is wrong with a set."""
        spec = obj.get("spec") or {}
        selector, template = spec.get("selector"), spec.get("template") or {}
        bad = selector_faults(selector, "spec.selector")
        found = list(bad)
        labels = (template.get("metadata") or {}).get("labels") or {}
        if not bad and not matches(selector, labels):
            found.append(field_errors.invalid("spec.template.metadata.labels", labels, MISMATCH))
        if selector is not None and is_empty(selector):
            text = "empty selector is invalid for daemonset"
            found.append(field_errors.invalid("spec.selector", selector, text))
        found += template_faults(template, "spec.template")
        found += running_template(template, "spec.template", "DaemonSet")
        found += count_faults(spec, "spec", "minReadySeconds", "revisionHistoryLimit")
        return found + _daemon_strategy(spec.get("updateStrategy") or {}, "spec.updateStrategy")

    def validate_update(self, obj: Obj, old: Obj, context: StrategyContext) -> Faults:
        """The selector stays."""
        return self.validate(obj, context) + same(obj, old, "selector")

    def validate_status(self, obj: Obj, old: Obj, context: StrategyContext) -> Faults:
        """What is wrong with a new status."""
        found = count_faults(obj.get("status") or {}, "status", *COUNTS)
        return found + collision_faults(obj, old)

    def warn(self, obj: Obj, old: Obj | None, context: StrategyContext) -> None:
        """Say what is odd about it and its pods."""
        warn_of_workload(obj, old, context, named=False)


def _template_generation(obj: Obj) -> int:
    text = (obj["metadata"].get("annotations") or {}).get(TEMPLATE_GENERATION, "0")
    return natural(text) or 0


def _count_template(obj: Obj, number: int) -> None:
    annotations = dict(obj["metadata"].get("annotations") or {})
    annotations[TEMPLATE_GENERATION] = str(number)
    obj["metadata"]["annotations"] = annotations


def _daemon_strategy(strategy: Obj, path: str) -> Faults:
    kind, rolling = strategy.get("type", ""), strategy.get("rollingUpdate")
    if kind == "OnDelete":
        return []
    if kind != "RollingUpdate":
        return [field_errors.unsupported(path, strategy, ("OnDelete", "RollingUpdate"))]
    at = f"{path}.rollingUpdate"
    if rolling is None:
        return [field_errors.required(at)]
    found: Faults = []
    down, up = rolling.get("maxUnavailable", 0), rolling.get("maxSurge", 0)
    for key, value in (("maxUnavailable", down), ("maxSurge", up)):
        found += portion_faults(value, f"{at}.{key}") + too_much(value, f"{at}.{key}")
    if size(down) and size(up):
        text = "may not be set when maxUnavailable is non-zero"
        found.append(field_errors.invalid(f"{at}.maxSurge", up, text))
    elif not size(down) and not size(up):
        found.append(
            field_errors.required(f"{at}.maxUnavailable", "cannot be 0 when maxSurge is 0")
        )
    return found
