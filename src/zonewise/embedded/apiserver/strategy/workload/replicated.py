"""What kinds that keep pods running share: selectors, templates, counts, percentages, statuses."""

from __future__ import annotations

import re

from zonewise.api.field_cursor import Field
from zonewise.embedded.apiserver.strategy.base import Obj, Rules, StrategyContext, read_path
from zonewise.embedded.apiserver.strategy.pod.warnings import pod_warnings, warn_of_name
from zonewise.embedded.apiserver.strategy.selectors import (
    is_empty,
    matches,
    validate_label_selector,
)

MISMATCH = "`selector` does not match template `labels`"
_PERCENT = re.compile(r"[0-9]{1,18}%\Z", re.ASCII)
_INTEGER = re.compile(r"-?[0-9]{1,18}\Z", re.ASCII)


class WorkloadRules(Rules):
    """What kinds with a template of pods have in common."""

    template_path = "spec.template"
    names_pods = True
    """Whether its pods are called after it."""

    def warn(self, obj: Obj, old: Obj | None, context: StrategyContext) -> None:
        """Warn of the object and of its pods, when it is new or changed."""
        top = self.template_path.partition(".")[0]
        if old is not None and obj.get(top) == old.get(top):
            return
        if old is None and self.names_pods:
            warn_of_name(obj, context, "Pod names and hostnames")
        template = read_path(obj, self.template_path) or {}
        context.warnings.extend(pod_warnings(template, self.template_path))


class FixedSelectorRules(WorkloadRules):
    """What kinds have in common whose selector does not change."""

    def validate_update(self, obj: Field, old: Obj, context: StrategyContext) -> None:
        """The selector does not change."""
        self.validate(obj, context)
        obj["spec"]["selector"].immutable(old["spec"].get("selector"))


def validate_not_negative(holder: Field, *keys: str) -> None:
    """Counts that may be missing, but not negative."""
    fields = holder.value or {}
    for key in keys:
        value = fields.get(key)
        if value is not None and value < 0:
            holder[key].not_negative()


def validate_int_or_percent(value: Field) -> None:
    """A count or a percentage, where there is one."""
    if isinstance(value.value, str):
        value.matches(
            _PERCENT, "a valid percent string must be a numeric string followed by an ending '%'"
        )
    else:
        value.not_negative()


def validate_at_most_100_percent(value: Field) -> None:
    """A percentage of no more than all."""
    text = value.value
    if isinstance(text, str) and _PERCENT.match(text) and int(text[:-1]) > 100:
        value.invalid("must not be greater than 100%")


def int_or_percent_value(value: int | str | None) -> int:
    """The number, or the number before the percent sign; 0 if it is not valid."""
    if isinstance(value, str):
        if _PERCENT.match(value):
            return int(value[:-1])
        return int(value) if _INTEGER.match(value) else 0
    return value or 0


def validate_selector(selector: Field, kind: str) -> bool:
    """A selector that is required and selects not everything; whether it is valid as such."""
    if not selector.present():
        return True
    is_valid = selector.is_valid(validate_label_selector)
    if is_empty(selector.value):
        selector.invalid(f"empty selector is invalid for {kind}")
    return is_valid


def validate_selector_matches_labels(spec: Field) -> None:
    """The labels of the template are those that the selector selects."""
    labels = spec["template"]["metadata"]["labels"]
    if not matches(spec["selector"].value, labels.value):
        labels.invalid(MISMATCH, labels.value or {})


def validate_always_restarting_template(template: Field, kind: str) -> None:
    """Pods that are replaced when they end must restart and have no deadline."""
    policy = template["spec"].get("restartPolicy", "")
    if policy.value != "Always":
        policy.unsupported(("Always",))
    template["spec"]["activeDeadlineSeconds"].forbid_set(
        f"activeDeadlineSeconds in {kind} is not Supported"
    )


def validate_replica_status(status: Field, *parts: str) -> None:
    """A status that counts pods: nothing is negative, no part is more than the whole."""
    validate_not_negative(
        status,
        "observedGeneration",
        "replicas",
        *parts,
        "unavailableReplicas",
        "terminatingReplicas",
        "collisionCount",
    )
    fields = status.value or {}
    for key in parts:
        if fields.get(key, 0) > fields.get("replicas", 0):
            status.get(key, 0).invalid("cannot be greater than status.replicas")
    if fields.get("availableReplicas", 0) > fields.get("readyReplicas", 0):
        status.get("availableReplicas", 0).invalid("cannot be greater than readyReplicas")


def validate_collision_count(obj: Field, old: Obj) -> None:
    """The count of collisions only grows."""
    count = obj["status"]["collisionCount"]
    before = (old.get("status") or {}).get("collisionCount")
    if before is not None and (count.value is None or count.value < before):
        count.invalid("cannot be decremented", count.value or 0)
