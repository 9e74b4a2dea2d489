"""When a Job has failed or succeeded early: its failure and success policies, and index lists."""

from __future__ import annotations

from itertools import pairwise

from zonewise.api import field_errors
from zonewise.api.values.numbers import natural
from zonewise.embedded.apiserver.strategy import metadata
from zonewise.embedded.apiserver.strategy.base import Faults, Obj
from zonewise.embedded.apiserver.strategy.numbers import count_faults

ACTIONS = ("Count", "FailIndex", "FailJob", "Ignore")
OPERATORS = ("In", "NotIn")
STATUSES = ("False", "True", "Unknown")
RULES_LIMIT = 20
VALUES_LIMIT = 255
PATTERNS_LIMIT = 20
INDEXES_LIMIT = 64 * 1024


def failure_faults(spec: Obj, path: str) -> Faults:
    """What is wrong with a pod failure policy."""
    rules = spec["podFailurePolicy"].get("rules") or ()
    found: Faults = []
    if len(rules) > RULES_LIMIT:
        found.append(field_errors.too_many(f"{path}.rules", len(rules), RULES_LIMIT))
    inner = (spec.get("template") or {}).get("spec") or {}
    known = {
        one.get("name")
        for group in ("containers", "initContainers")
        for one in inner.get(group) or ()
    }
    for index, rule in enumerate(rules):
        at = f"{path}.rules[{index}]"
        found += _action_faults(rule.get("action", ""), spec, f"{at}.action")
        codes, conditions = rule.get("onExitCodes"), rule.get("onPodConditions") or ()
        if codes is not None:
            found += _code_faults(codes, f"{at}.onExitCodes", known)
        found += _condition_faults(conditions, f"{at}.onPodConditions")
        if (codes is not None) == bool(conditions):
            text = "specifying one of OnExitCodes and OnPodConditions is required, not both"
            found.append(field_errors.invalid(at, rule, text))
    return found


def _action_faults(action: str, spec: Obj, path: str) -> Faults:
    if not action:
        return [field_errors.required(path)]
    if action not in ACTIONS:
        return [field_errors.unsupported(path, action, ACTIONS)]
    if action == "FailIndex" and spec.get("backoffLimitPerIndex") is None:
        return [field_errors.invalid(path, action, "requires the backoffLimitPerIndex to be set")]
    return []


def _code_faults(codes: Obj, path: str, known: set[str | None]) -> Faults:
    found: Faults = []
    operator, values = codes.get("operator", ""), codes.get("values") or []
    if not operator:
        found.append(field_errors.required(f"{path}.operator"))
    elif operator not in OPERATORS:
        found.append(field_errors.unsupported(f"{path}.operator", operator, OPERATORS))
    name = codes.get("containerName")
    if name is not None and name not in known:
        text = "must be one of the container or initContainer names in the pod template"
        found.append(field_errors.invalid(f"{path}.containerName", name, text))
    at = f"{path}.values"
    if not values:
        found.append(field_errors.invalid(at, values, "at least one value is required"))
    elif len(values) > VALUES_LIMIT:
        found.append(field_errors.too_many(at, len(values), VALUES_LIMIT))
    seen: set[int] = set()
    for index, value in enumerate(values):
        if value == 0 and operator == "In":
            text = "must not be 0 for the In operator"
            found.append(field_errors.invalid(f"{at}[{index}]", value, text))
        if value in seen:
            found.append(field_errors.duplicate(f"{at}[{index}]", value))
        seen.add(value)
    if any(one > two for one, two in pairwise(values)):
        found.append(field_errors.invalid(at, values, "must be ordered"))
    return found


def _condition_faults(patterns: list[Obj] | tuple[Obj, ...], path: str) -> Faults:
    found: Faults = []
    if len(patterns) > PATTERNS_LIMIT:
        found.append(field_errors.too_many(path, len(patterns), PATTERNS_LIMIT))
    for index, pattern in enumerate(patterns):
        at = f"{path}[{index}]"
        kind, status = pattern.get("type", ""), pattern.get("status", "")
        found += [
            field_errors.invalid(f"{at}.type", kind, text) for text in metadata.qualified_name(kind)
        ]
        if not status:
            found.append(field_errors.required(f"{at}.status"))
        elif status not in STATUSES:
            found.append(field_errors.unsupported(f"{at}.status", status, STATUSES))
    return found


def success_faults(spec: Obj, path: str) -> Faults:
    """What is wrong with a success policy of an indexed job."""
    rules = spec["successPolicy"].get("rules") or ()
    found: Faults = []
    if not rules:
        found.append(field_errors.required(f"{path}.rules", "at least one rule must be specified"))
    if len(rules) > RULES_LIMIT:
        found.append(field_errors.too_many(f"{path}.rules", len(rules), RULES_LIMIT))
    wanted = spec.get("completions") or 0
    for index, rule in enumerate(rules):
        at = f"{path}.rules[{index}]"
        indexes, count = rule.get("succeededIndexes"), rule.get("succeededCount")
        if indexes is None and count is None:
            text = "at least one of succeededCount or succeededIndexes must be specified"
            found.append(field_errors.required(at, text))
        total = 0
        if indexes is not None:
            if len(indexes) > INDEXES_LIMIT:
                found.append(field_errors.too_long(f"{at}.succeededIndexes", INDEXES_LIMIT))
            total, why = read_indexes(indexes, wanted)
            if why:
                found.append(field_errors.invalid(f"{at}.succeededIndexes", indexes, why))
        if count is not None:
            found += count_faults(rule, at, "succeededCount")
            if count > wanted:
                text = f"must be less than or equal to {wanted}"
                found.append(field_errors.invalid(f"{at}.succeededCount", count, text))
            if indexes is not None and count > total:
                text = f"must be less than or equal to {total}"
                found.append(field_errors.invalid(f"{at}.succeededCount", count, text))
    return found


def read_indexes(text: str, wanted: int) -> tuple[int, str]:
    """How many indexes a list like ``1,3-5`` has, and why it is none."""
    if not text:
        return 0, ""
    total = 0
    last = -1
    for piece in text.split(","):
        first, *ends = piece.split("-")
        numbers = [natural(one) for one in (first, *ends)]
        start, end = numbers[0], numbers[-1]
        if len(numbers) > 2 or start is None or end is None:
            return total, f"invalid interval {piece!r}"
        if start >= wanted or end >= wanted:
            return total, f"too large index: {piece!r}"
        if len(numbers) == 2 and start >= end:
            return total, f"non-increasing order, previous: {start}, current: {end}"
        if start <= last:
            return total, f"non-increasing order, previous: {last}, current: {start}"
        total += end - start + 1
        last = end
    return total, ""


def index_set(text: str, wanted: int) -> set[tuple[int, int]]:
    """The intervals of a list of indexes that is well formed."""
    if not text or read_indexes(text, wanted)[1]:
        return set()
    pairs = (piece.split("-") for piece in text.split(","))
    return {(int(pair[0]), int(pair[-1])) for pair in pairs}
