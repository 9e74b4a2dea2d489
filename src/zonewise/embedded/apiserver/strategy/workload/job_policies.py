"""When a Job has failed or succeeded early: its failure and success policies, and index lists."""

from __future__ import annotations

from itertools import pairwise

from zonewise.api.field_cursor import Field
from zonewise.api.values.numbers import parse_natural

ACTIONS = ("Count", "FailIndex", "FailJob", "Ignore")
OPERATORS = ("In", "NotIn")
STATUSES = ("False", "True", "Unknown")
RULES_LIMIT = 20
VALUES_LIMIT = 255
PATTERNS_LIMIT = 20
INDEXES_LIMIT = 64 * 1024


def validate_pod_failure_policy(spec: Field) -> None:
    """The pod failure policy of a job."""
    rules, pod_spec = spec["podFailurePolicy"]["rules"], spec["template"]["spec"]
    rules.max_items(RULES_LIMIT)
    container_names = {
        container.get("name")
        for containers in ("containers", "initContainers")
        for container in pod_spec[containers].value or ()
    }
    for rule in rules.each():
        action, codes, conditions = rule["action"], rule["onExitCodes"], rule["onPodConditions"]
        action.required().enum(ACTIONS)
        if action.value == "FailIndex" and spec["backoffLimitPerIndex"].value is None:
            action.invalid("requires the backoffLimitPerIndex to be set")
        if codes.value is not None:
            _validate_exit_codes(codes, container_names)
        _validate_condition_patterns(conditions)
        if (codes.value is not None) == bool(conditions.value):
            rule.invalid("specifying one of OnExitCodes and OnPodConditions is required, not both")


def _validate_exit_codes(codes: Field, container_names: set[str | None]) -> None:
    operator, name, values = codes["operator"], codes["containerName"], codes.get("values", [])
    operator.required().enum(OPERATORS)
    if name.value is not None and name.value not in container_names:
        name.invalid("must be one of the container or initContainer names in the pod template")
    if not values.value:
        values.invalid("at least one value is required", [])
    values.max_items(VALUES_LIMIT)
    seen: set[int] = set()
    for value in values.each():
        if value.value == 0 and operator.value == "In":
            value.invalid("must not be 0 for the In operator")
        value.unique(seen)
    if any(value > following for value, following in pairwise(values.value or ())):
        values.invalid("must be ordered")


def _validate_condition_patterns(patterns: Field) -> None:
    patterns.max_items(PATTERNS_LIMIT)
    for pattern in patterns.each():
        pattern.get("type", "").qualified_name()
        pattern["status"].required().enum(STATUSES)


def validate_success_policy(spec: Field) -> None:
    """The success policy of an indexed job."""
    rules = spec["successPolicy"]["rules"]
    rules.required("at least one rule must be specified")
    rules.max_items(RULES_LIMIT)
    completions = spec.value.get("completions") or 0
    for rule in rules.each():
        indexes, count = rule["succeededIndexes"], rule["succeededCount"]
        if indexes.value is None and count.value is None:
            rule.missing("at least one of succeededCount or succeededIndexes must be specified")
        total = completions
        if indexes.value is not None:
            indexes.max_length(INDEXES_LIMIT)
            total, reason = count_indexes(indexes.value, completions)
            indexes.invalid_if(reason)
        count.not_negative()
        count.maximum(completions)
        if indexes.value is not None:
            count.maximum(total)


def count_indexes(text: str, completions: int) -> tuple[int, str]:
    """How many indexes a list like ``1,3-5`` has, and why it is not valid."""
    if not text:
        return 0, ""
    total = 0
    last = -1
    for interval in text.split(","):
        numbers = [parse_natural(number) for number in interval.split("-")]
        start, end = numbers[0], numbers[-1]
        if len(numbers) > 2 or start is None or end is None:
            return total, f"invalid interval {interval!r}"
        if start >= completions or end >= completions:
            return total, f"too large index: {interval!r}"
        if len(numbers) == 2 and start >= end:
            return total, f"non-increasing order, previous: {start}, current: {end}"
        if start <= last:
            return total, f"non-increasing order, previous: {last}, current: {start}"
        total += end - start + 1
        last = end
    return total, ""


def index_intervals(text: str, completions: int) -> set[tuple[int, int]]:
    """The intervals of a list of indexes; none if it is not valid."""
    if not text or count_indexes(text, completions)[1]:
        return set()
    pairs = (interval.split("-") for interval in text.split(","))
    return {(int(pair[0]), int(pair[-1])) for pair in pairs}
